"""`gradtide tenants`."""

from collections.abc import Sequence
from typing import Any

from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, SeedsOption, Training, option
from gradtide.cli.printing import cell, print_answer, print_table, say, signed_percent
from gradtide.cli.study import Checked, conduct, seeds_of

SHOWN = {"mean_fct_ms": "mean, ms", "p99_fct_ms": "p99, ms", "mean_slowdown": "slowdown"}
"""Figures of each size class of flows in the printed table, with their labels. Reports contain more figures."""


def tenants(
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    seeds: SeedsOption = 1,
    job: str | None = option("NAME", "Move this job to the lower band. Default: all jobs."),
    classes: str | None = option(
        "LIST",
        "Set the size of the largest small flow and of the smallest large flow. Default: small=100kB,large=10MB.",
    ),
    training: Training,
    changes: Changes,
    common: Common,
) -> None:
    """Predict what a training job does to background flows.

    Runs the flows without the job, beside the job in their own priority band, and beside the job in a lower band. The
    answer says whether the lower band is free for the job.
    """
    from gradtide.studies.run import sample
    from gradtide.studies.tenants import bands as study

    loaded = changes.trained(scenario, cluster, **training.keys)
    own_seeds = seeds_of(loaded, seeds)
    conduct(
        f"{4 * len(own_seeds)} runs",
        common,
        make=lambda how: study.tenants(loaded, seeds=own_seeds, job=job, classes=classes, **how),
        show=lambda result: _print_tenants(result.summary),
        checked=Checked(
            lambda result: {"tenants": study.figures(result.summary)},
            lambda: study.figures(study.tenants(sample()).summary),
        ),
    )


def _print_tenants(summary: dict[str, Any]) -> None:
    from gradtide import words

    rows = []
    for size, figures in summary["classes"].items():
        for name, label in SHOWN.items():
            rows.append([f"{size} flows, {label}", *_cells(figures[name])])
            if name == "mean_fct_ms":
                rows.append(["  against no job", "", "", "", *_against_no_job(figures[name])])
    jobs = summary["jobs"]
    for name, job in jobs.items():
        of = "iteration" if len(jobs) == 1 else f"{name}: iteration"
        rows.append([f"{of} time, ms", *_cells(job["iteration_time_ms"])])
    rows.append(["busiest link, use", *_cells(summary["max_link_utilisation"])])
    rows.append(["dropped by switches", *_cells(summary["switch_drops"])])
    if any(summary["host_drops"][side] for side in ("no_job", "same", "low")):
        rows.append(["dropped by senders", *_cells(summary["host_drops"])])
    seeds, moved = summary["seeds"], [name for name, job in jobs.items() if job["moved"]]
    count = f"one run, seed {seeds[0]}" if len(seeds) == 1 else f"means of {len(seeds)} seeds"
    say(f"{', '.join(moved)} ({summary['model']}) and the flows of {summary['counted']['traffic']}; {count}")
    print_table(["", "no job", "same band", "low band", "change", "95 % interval"], rows)
    small, large = (words.size(summary["counted"][f"{size}_bytes"]) for size in ("small", "large"))
    say(
        f"small: up to {small}; large: from {large}; no job: the same flows without any job; "
        "change: low band against same band; against no job: same band against no job"
    )
    if (until_ms := summary["counted"].get("until_ms")) is not None:
        say(f"Only flows that start in the first {until_ms:.4g} ms count, while the jobs run on both sides.")
    print_answer(summary)


def _cells(pair: dict[str, Any]) -> list[str]:
    """Return a figure without job, in the same band and in the low band; the change between bands; its interval."""
    saves, ends = pair["saves_percent"], pair["saves_interval_percent"]
    change = None if saves is None else -saves
    return [
        *(cell(pair[side]) for side in ("no_job", "same", "low")),
        *_change(change, None if ends is None else (-ends[1], -ends[0])),
    ]


def _against_no_job(pair: dict[str, Any]) -> list[str]:
    """Return the change of a figure due to a job in the same band, compared with no job, and its interval."""
    return _change(pair["job_adds_percent"], pair["job_adds_interval_percent"])


def _change(percent: float | None, ends: Sequence[float] | None) -> list[str]:
    return [signed_percent(percent), "–" if ends is None else f"{ends[0]:+.1f} … {ends[1]:+.1f} %"]
