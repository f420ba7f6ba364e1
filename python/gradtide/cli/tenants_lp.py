"""`gradtide tenants lp`."""

from typing import Any

from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, SeedsOption, Training, option
from gradtide.cli.printing import cell, print_answer, print_table, say, signed_percent
from gradtide.cli.study import Checked, conduct, seeds_of


def tenants_lp(
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    give: str | None = option("SHARE", "Allow the iteration to take longer by this share, as in 1%. Default: 0%."),
    quantile: float | None = option(
        "Q", "Plan with this quantile of the simulated transfer times. Default: the mean.", min=0, max=1
    ),
    seeds: SeedsOption = 1,
    training: Training,
    changes: Changes,
    common: Common,
) -> None:
    """Choose start and priority band of each bucket by an LP.

    The linear programme minimises the iteration time, and then the bytes in the highest band. Needs highspy.
    """
    from gradtide.lp import SolverMissingError
    from gradtide.studies.plan import parse_percent
    from gradtide.studies.run import sample
    from gradtide.studies.tenants import lp as study

    with as_usage_error(ValueError):
        share = 0.0 if give is None else parse_percent("give", give) / 100
    if not 0 <= share <= 1:
        fail_usage(f"--give {give}: write a percentage from 0% to 100%, as in 1%")
    loaded = changes.trained(scenario, cluster, **training.keys)
    own_seeds = seeds_of(loaded, seeds)
    conduct(
        "runs in each band, and the answer",
        common,
        make=lambda how: study.plan_bands(loaded, seeds=own_seeds, quantile=quantile, give=share, **how),
        show=lambda result: _print_lp(result.summary),
        checked=Checked(
            lambda result: {"lp": study.figures(result.summary)},
            lambda: study.figures(study.plan_bands(sample()).summary),
        ),
        usage_errors=(ValueError, SolverMissingError),
    )


def _print_lp(summary: dict[str, Any]) -> None:
    times = ("ready", "start", "end", "needed", "slack", "margin")
    say("Buckets in the order in which they are sent; times in ms from the start of the backward pass")
    rows = [
        [bucket["layers"], *(f"{bucket[f'{key}_ms']:.2f}" for key in times), bucket["band"]]
        for bucket in summary["buckets"]
    ]
    print_table(["layers", *times, "band"], rows)
    say("", "Iteration time and completion times of background flows in ms")
    policies = [
        [
            row["policy"],
            f"{row['high_percent']:.1f} %",
            f"{row['predicted_ms']:.1f}",
            f"{row['simulated_ms']:.1f}",
            signed_percent(row["error_percent"]),
            *(cell(row[key]) for key in ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms")),
        ]
        for row in summary["policies"]
    ]
    columns = ("bands", "bytes high", "predicted", "simulated", "off by", "small, mean", "small, p99", "large, mean")
    print_table(list(columns), policies)
    seeds = summary["seeds"]
    count = f"one run, seed {seeds[0]}" if len(seeds) == 1 else f"means of {len(seeds)} seeds"
    say("", f"Against all buckets in the high band, with the same flows; {count}")
    changes = [
        [row["policy"], *_change(row, "iteration_change"), *_change(row, "small_mean_saves")]
        for row in summary["policies"]
        if row["policy"] != "same"
    ]
    interval = "95 % interval"
    print_table(["bands", "iteration time", interval, "small flows sooner", interval], changes)
    print_answer(summary)


def _change(row: dict[str, Any], name: str) -> list[str]:
    low, high = row[f"{name}_from_percent"], row[f"{name}_to_percent"]
    interval = "–" if low is None else f"{low:+.1f} … {high:+.1f} %"
    return [signed_percent(row[f"{name}_percent"]), interval]
