"""`gradtide compare`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import (
    Changes,
    ClusterOption,
    Common,
    ModelArgument,
    Training,
    check_target,
    counts,
    mesh,
    option,
    split,
)
from gradtide.cli.printing import is_wide, print_answer, print_table, say, signed_percent
from gradtide.cli.study import Checked, conduct

if TYPE_CHECKING:
    from gradtide.studies.compare import CompareResult, Variant
    from gradtide.studies.meshes import MeshesResult


def compare(  # noqa: PLR0913 - options of the command
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    schedule: list[str] | None = option(
        "NAME",
        "Compare this schedule: fifo+barrier, priority+chunk=1MB, ddp, horovod, p3, bytescheduler, caramel, edf, "
        "optimal or file:order.csv. Repeatable; the first one is the baseline.",
    ),
    rate: str | None = option("LIST", "Vary the link rate, as in 1Gbps,10Gbps."),
    workers: str | None = option("LIST", "Vary the number of workers, as in 2,8."),
    servers: str | None = option("LIST", "Vary the number of parameter servers, as in 1,2,4."),
    batch: str | None = option("LIST", "Vary the samples in a worker's mini-batch, as in 32,64."),
    task: str | None = option("LIST", "Vary the task of a job with parameter servers, as in train,inference."),
    model: str | None = option("LIST", "Vary the model, as in resnet50,vgg16."),
    parallel: list[str] | None = option(
        "MESH",
        "Compare this mesh of ranks for a language model, as in fsdp=16,tp=8,micro_batch=2. Repeatable.",
    ),
    training: Training,
    changes: Changes,
    common: Common,
) -> None:
    """Compare schedules, link rates, models, or meshes of ranks.

    Every combination of the given values is simulated. The first schedule is the baseline of the others.
    """
    from gradtide.scenario.source import as_options
    from gradtide.studies import compare as study
    from gradtide.studies.schedules import SCHEDULE_KEYS

    lists = {"schedule": schedule, "rate": rate, "workers": workers, "servers": servers, "batch": batch}
    given = next((name for name, value in {**lists, "task": task, "model": model}.items() if value), None)
    if parallel is not None:
        if given is not None:
            instead = ", or give one rate by --set cluster.link.rate=RATE" if given == "rate" else ""
            fail_usage(f"--{given} and --parallel cannot be compared at once; leave one of them out{instead}")
        _compare_meshes(scenario, cluster, parallel, training, changes, common)
        return
    loaded = changes.trained(scenario, cluster, **training.keys)
    check_target(common.output)
    flags = {"link_rate": "--rate"} | {name: f"--{name}" for name in ("model", "workers", "servers", "batch", "task")}
    flags |= dict.fromkeys(SCHEDULE_KEYS, "--schedule")
    with as_usage_error(ValueError), as_options(flags):
        axes = study.Axes(
            models=split("--model", model),
            workers=counts("--workers", workers),
            servers=counts("--servers", servers),
            batches=counts("--batch", batch),
            tasks=split("--task", task),
            rates=split("--rate", rate),
        )
        variants = study.grid(loaded, schedule or None, axes)
    run_comparison(variants, common)


def _compare_meshes(
    scenario: str, cluster: str | None, parallel: list[str], training: Training, changes: Changes, common: Common
) -> None:
    from gradtide.studies import meshes as study

    check_target(common.output)
    tables = [table for text in parallel if (table := mesh(text)) is not None]
    with as_usage_error(ValueError):
        scenarios = study.variants(
            lambda table: changes.trained(scenario, cluster, **{**training.keys, "parallel": table}), tables
        )
    conduct(
        f"{len(scenarios)} meshes",
        common,
        make=lambda how: study.run_meshes(scenarios, **how),
        show=_print_meshes,
        checked=Checked(lambda result: {row["run"]: row for row in result.rows}),
        usage_errors=(),
    )


def _print_meshes(result: "MeshesResult") -> None:
    from gradtide import words

    table = [
        [
            row["mesh"],
            words.milliseconds(row["iteration_time_us"] / 1e3),
            words.number(row["tokens_per_s_per_gpu"]),
            "–" if row["mfu"] is None else words.percent(row["mfu"]),
            words.percent(row["exposed_us"] / row["iteration_time_us"]),
            row["waits_most_for"] or "–",
            words.size(row["memory_bytes"], 3) + words.SHORT_FIT[row["feasibility"]],
        ]
        for row in result.rows
    ]
    print_table(["mesh", "iteration", "tokens/s per GPU", "MFU", "waits", "most for", "memory of a rank"], table)
    print_answer(result.summary)


def run_comparison(variants: "Sequence[Variant]", common: Common) -> None:
    """Run the variants of a comparison, and print the result."""
    from gradtide.studies import compare as study
    from gradtide.studies.run import sample

    conduct(
        f"{len(variants)} runs",
        common,
        make=lambda how: study.run_variants(variants, **how),
        show=_print_comparison,
        checked=Checked(
            lambda result: {row["run"]: row for row in result.summary["rows"]},
            lambda: study.compare(sample(), schedules=["fifo"]).summary["rows"][0],
        ),
        usage_errors=(),
    )


def _print_comparison(result: "CompareResult") -> None:
    from gradtide import words
    from gradtide.studies.compare import GROUP

    schedules = list(dict.fromkeys(row["schedule"] for row in result.rows))
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in result.rows:
        groups.setdefault(tuple(row[key] for key in GROUP), {})[row["schedule"]] = row
    varied = [key for key in GROUP if len({row[key] for row in result.rows}) > 1]
    if len(groups) > 1:
        # These three columns are always shown; other keys of a group only if their values differ between groups.
        first = ("model", "workers", "rate_bps")
        shown = [*first, *(key for key in varied if key not in first)]
        table = []
        for members in groups.values():
            times = [
                f"{members[name]['iteration_time_us'] / 1e3:.1f}" if name in members else "–" for name in schedules
            ]
            best = max(words.settled(members.values()), key=lambda row: row["saves_percent"])
            of = [words.rate(best[key]) if key == "rate_bps" else best[key] or "–" for key in shown]
            saves = f"{best['saves_percent']:.1f} %"
            table.append([*of, *times, saves, words.percent(1 - best["utilisation"])])
        say("Iteration time in ms")
        names = ["link" if key == "rate_bps" else key for key in shown]
        print_table([*names, *schedules, "best saves", "best waits"], table)
    if len(groups) == 1 or len(schedules) > 1:
        telling = max(
            groups.values(), key=lambda members: max(row["saves_percent"] for row in words.settled(members.values()))
        )
        row = next(iter(telling.values()))
        say(*[""] * (len(groups) > 1), f"{words.group(row, varied)}, {words.rate(row['rate_bps'])}")
        _print_figures(telling)
    print_answer(result.summary)


def _print_figures(rows: dict[str, dict[str, Any]]) -> None:
    """Print a table with one row per schedule; with `--wide`, its headers are the symbols of the papers."""
    from gradtide import words

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}" if is_wide() else words.percent(value)

    names = {"rho": "rho", "alpha": "alpha", "utilisation": "U"}
    if not is_wide():
        names = {"alpha": "overlap", "utilisation": "compute share"}
    table = [
        [
            name,
            f"{row['iteration_time_us'] / 1e3:.1f}",
            f"{row['iteration_time_p95_us'] / 1e3:.1f}",
            signed_percent(row["gain_percent"]),
            *(share(row[key]) for key in names),
            *([f"{row['straggler_percent']:.1f} %", f"{row['lower_bound_us'] / 1e3:.1f}"] if is_wide() else []),
            f"{round(row['above_bound_percent'], 1) + 0.0:.1f} %",
        ]
        for name, row in rows.items()
    ]
    time, bound = ("T, ms", ["straggler", "bound, ms", "above it"]) if is_wide() else ("mean, ms", ["above bound"])
    print_table(["schedule", time, "p95, ms", "throughput", *names.values(), *bound], table)
