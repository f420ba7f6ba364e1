"""`gradtide compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.checks import Check, apply_checks, parse_check, refuse_unknown
from gradtide.cli.collectives import compare_collectives
from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import (
    EngineOption,
    FailIfOption,
    JobsOption,
    JsonOption,
    MaxMemoryOption,
    MaxTimeOption,
    OutOption,
    QuietOption,
    SeedOption,
    SetOption,
    VerboseOption,
    changed,
    check_target,
    counts,
    limits_of,
    load,
    split,
)
from gradtide.cli.printing import print_json, print_table, signed_percent, talk_of_cost, talk_of_files
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.studies.compare import CompareResult


def compare(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json), preset (paper/…) or model preset.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="For a model: a cluster of presets, as in ethernet-25g/16, a file of one, or a scenario.",
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="As in fifo+barrier, priority+chunk=1MB, ddp, horovod, p3, bytescheduler, caramel, edf, optimal, or "
            "file:order.csv; repeat it; the first is compared with.",
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="LIST", help="Link rates, as in 1Gbps,10Gbps.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="LIST", help="Numbers of workers, as in 2,8.")] = None,
    servers: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of parameter servers, as in 1,2,4.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="LIST", help="Samples in a worker's mini-batch, as in 32,64.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="LIST", help="With parameter servers: train,inference.")] = None,
    model: Annotated[str | None, typer.Option(metavar="LIST", help="Models, as in resnet50,vgg16.")] = None,
    collective: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Instead: ways to exchange gradients, as in ring,halving_doubling."),
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="LIST", help="With --collective: gradients; 1kB to 1GB.")] = None,
    output: OutOption = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: EngineOption = None,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 1,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Schedules side by side, over rates, workers, servers, batches, tasks and models; or collectives, over sizes."""
    checks = [parse_check(text) for text in fail_if or ()]
    limits = limits_of(max_memory, max_time)
    if collective is not None:
        options = {"schedule": schedule, "rate": rate, "workers": workers, "servers": servers}
        for option, given in (options | {"batch": batch, "task": task, "model": model, "cluster": cluster}).items():
            if given:
                fail_usage(f"--collective compares on the scenario's cluster; leave out --{option}, or use --set")
        loaded = load(scenario, set_, seed, engine or "fluid")
        compare_collectives(loaded, collective, sizes, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    if sizes is not None:
        fail_usage("--sizes is for --collective")
    from gradtide.studies import compare as study
    from gradtide.studies.trained import trained

    loaded = changed(trained(scenario, cluster), set_, seed, engine)
    check_target(output)
    with as_usage_error(ValueError):
        variants = study.grid(
            loaded,
            schedule or None,
            split(model),
            counts("workers", workers),
            split(rate),
            servers=counts("servers", servers),
            batches=counts("batch", batch),
            tasks=split(task),
        )
    run_comparison(variants, output, as_json, jobs, quiet, verbose, checks, limits)


def run_comparison(
    variants: Sequence[Any],
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence[Check],
    limits: "Limits",
) -> None:
    """Run the variants of a comparison, and print the result."""
    from gradtide.studies import compare as study
    from gradtide.studies.run import sample

    refuse_unknown(checks, lambda: study.compare(sample(), schedules=["fifo"]).summary["rows"][0])

    def show(result: "CompareResult") -> None:
        if as_json:
            print_json(result.summary)
        else:
            _print_comparison(result)

    with study_under_way(f"{len(variants)} runs", output, quiet, show) as (progress, keep):
        result = study.run_variants(variants, jobs=jobs, progress=progress, keep=keep, limits=limits)
        save(result, output, keep)
    show(result)
    talk_of_files(output, quiet or as_json)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {row["run"]: row for row in result.summary["rows"]})


def _print_comparison(result: "CompareResult") -> None:
    from gradtide import words
    from gradtide.studies.compare import GROUP

    schedules = list(dict.fromkeys(row["schedule"] for row in result.rows))
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in result.rows:
        groups.setdefault(tuple(row[key] for key in GROUP), {})[row["schedule"]] = row
    varied = [key for key in GROUP if len({row[key] for row in result.rows}) > 1]
    if len(groups) > 1:
        shown = [key for key in GROUP if key in varied or key in ("model", "workers", "rate_bps")]
        table = []
        for members in groups.values():
            times = [
                f"{members[name]['iteration_time_us'] / 1e3:.1f}" if name in members else "–" for name in schedules
            ]
            best = max(words.settled(members.values()), key=lambda row: row["saves_percent"])
            of = [words.rate(best[key]) if key == "rate_bps" else best[key] or "–" for key in shown]
            saves = f"{best['saves_percent']:.1f} %"
            table.append([*of, *times, saves, words.percent(1 - best["utilisation"])])
        print("Iteration time in ms")
        names = ["link" if key == "rate_bps" else key for key in shown]
        print_table([*names, *schedules, "best saves", "still waits"], table)
    if len(groups) == 1 or len(schedules) > 1:
        telling = max(
            groups.values(), key=lambda members: max(row["saves_percent"] for row in words.settled(members.values()))
        )
        row = next(iter(telling.values()))
        print(("\n" if len(groups) > 1 else "") + f"{words.group(row, varied)}, {words.rate(row['rate_bps'])}")
        _print_figures(telling)
    print(f"\n{result.summary['headline']}")


def _print_figures(rows: dict[str, dict[str, Any]]) -> None:
    """Print what each schedule of one group comes to."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    table = [
        [
            name,
            f"{row['iteration_time_us'] / 1e3:.1f}",
            f"{row['iteration_time_p95_us'] / 1e3:.1f}",
            signed_percent(row["gain_percent"]),
            *(share(row[key]) for key in ("rho", "alpha", "utilisation")),
            f"{row['straggler_percent']:.1f} %",
            f"{row['lower_bound_us'] / 1e3:.1f}",
            f"{round(row['above_bound_percent'], 1) + 0.0:.1f} %",
        ]
        for name, row in rows.items()
    ]
    columns = ("schedule", "T, ms", "p95", "throughput", "rho", "alpha", "U", "straggler", "bound, ms", "above it")
    print_table(list(columns), table)
