"""`gradtide plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.checks import apply_checks, parse_check, refuse_unknown
from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import (
    EngineOption,
    FailIfOption,
    JobsOption,
    JsonOption,
    MaxMemoryOption,
    MaxTimeOption,
    QuietOption,
    SeedOption,
    SetOption,
    VerboseOption,
    changed,
    limits_of,
    split,
)
from gradtide.cli.printing import print_json, print_table, talk, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_plan
from gradtide.cli.study import save, study_under_way
from gradtide.errors import GradtideError

if TYPE_CHECKING:
    from gradtide.studies.plan import PlanResult


def plan(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json), preset (paper/…) or model preset.")
    ],
    workers: Annotated[int | None, typer.Option(min=2, metavar="N", help="Number of workers.")] = None,
    level: Annotated[
        str, typer.Option(metavar="NAME", help="The most that the runtime may do: buckets, priority or crossiter.")
    ] = "crossiter",
    collectives: Annotated[
        str | None, typer.Option(metavar="LIST", help="KIND[+KEY=VALUE], as in ring,tree; those that suit the network.")
    ] = None,
    overhead: Annotated[
        str, typer.Option(metavar="TIME", help="What a message costs a scheduler, above level buckets.")
    ] = "1ms",
    worth: Annotated[str, typer.Option(metavar="PERCENT", help="What a plan has to save at least.")] = "1%",
    smallest: Annotated[str, typer.Option(metavar="SIZE", help="No message is smaller.")] = "1MiB",
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="ddp or scenario; the scenario's schedule if it has one, else DDP's."),
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of compute times, if the scenario has none.")
    ] = 0.03,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Paired runs with noise.")] = 8,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", help="NAME.json for the plan alone, else a folder with it."),
    ] = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: EngineOption = None,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """How should this job send its gradients, what does that save, and is it worth it? Writes plan.json."""
    checks = [parse_check(text) for text in fail_if or ()]
    limits = limits_of(max_memory, max_time)
    from gradtide.studies import plan as study

    with as_usage_error(ValueError):
        least = study.parse_percent(worth)
        base = changed(study.trained(scenario, None, workers), set_, seed, engine)
    with as_usage_error(GradtideError):
        study.check_target(output)
    refuse_unknown(checks, lambda: study.figures(sample_of_plan()))

    def show(result: "PlanResult") -> None:
        if as_json:
            print_json(result.summary)
        else:
            _print_plan(result)

    with as_usage_error(ValueError), study_under_way("plans", output, quiet, show) as (progress, keep):
        result = study.plan(
            base,
            level=level,
            collectives=split(collectives),
            overhead=overhead,
            worth=least,
            smallest=smallest,
            baseline=baseline,
            noise=noise,
            seeds=seeds,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        save(result, output, keep)
    show(result)
    if output is not None and not quiet and not as_json:
        is_alone = output.suffix == ".json"
        talk(f"\nplan      {output if is_alone else output / 'plan.json'}   (gradtide run {scenario} --plan takes it)")
        talk_of_files(None if is_alone else output, quiet)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {result.plan.level: study.figures(result)})


def _print_plan(result: "PlanResult") -> None:
    from gradtide import words

    rows = []
    for row in result.rows:
        interval = "–"
        if row["saves_low_percent"] is not None:
            interval = f"{row['saves_low_percent']:.1f} to {row['saves_high_percent']:.1f} %"
        bound = row["above_bound_percent"]
        rows.append(
            [
                "plan" if row["chosen"] else "",
                words.level(row["name"]),
                words.schedule(row["order"], row["barrier"]),
                words.collective(row["collective"]) + (f", depth {row['depth']}" if row["depth"] > 1 else ""),
                row["buckets"],
                row["messages"],
                f"{row['iteration_ms']:.1f}",
                f"{row['saves_percent']:.1f} %",
                interval,
                "–" if bound is None else f"{bound:.1f} %",
            ]
        )
    bound_ms = result.summary["lower_bound_ms"]
    searched = result.summary["searched"]
    print(f"The best of each level, of {searched['scored']} plans scored and {searched['pruned']} ruled out by bounds")
    columns = [
        "",
        "level",
        "schedule",
        "exchanged by",
        "buckets",
        "messages",
        "iteration, ms",
        "saves",
        "95 % interval",
    ]
    print_table([*columns, "above the bound"], rows)
    if bound_ms is not None:
        print(f"  no plan can be faster than {words.milliseconds(bound_ms)}: compute, the wire, or the critical path")
    print(f"\n{result.summary['headline']}")
    for sentence in result.plan.advice:
        print(f"  - {sentence}")
