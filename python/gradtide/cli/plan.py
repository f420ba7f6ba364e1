"""`gradtide plan`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import Changes, Common, ModelArgument, split
from gradtide.cli.printing import print_table, say, talk, talk_of_files
from gradtide.cli.samples import sample_of_plan
from gradtide.cli.study import conduct
from gradtide.errors import GradtideError

if TYPE_CHECKING:
    from gradtide.studies.plan import PlanResult


def plan(
    scenario: ModelArgument,
    *,
    workers: Annotated[int | None, typer.Option(min=2, metavar="N", help="Set the number of workers.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Use only what this device can carry out: cpu, gpu, or a preset such as H100; ideal for whatever "
            "gradtide models. Default: the scenario's; if it names none, what every device can do.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Allow the runtime this much at most: buckets, priority or crossiter. Default: the most that the "
            "device can do.",
        ),
    ] = None,
    collectives: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Consider these collectives, each KIND[+KEY=VALUE], as in ring,tree. Default: those that the device's "
            "library has.",
        ),
    ] = None,
    overhead: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Charge a scheduler this time per message, above level buckets. Default: 1ms."
        ),
    ] = None,
    worth: Annotated[
        str, typer.Option(metavar="PERCENT", help="Recommend a plan only if it saves at least this.")
    ] = "1%",
    smallest: Annotated[str, typer.Option(metavar="SIZE", help="Send no message smaller than this.")] = "1MiB",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compare with ddp or scenario. Default: the scenario's own schedule if it has one, else ddp.",
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            min=0, max=0.5, metavar="SHARE", help="Vary compute times by this, if the scenario does not. Default: 0.03."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, metavar="N", help="Run N seeds with noise, paired. Default: 8.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", help="Write the plan to NAME.json, or a folder of results."),
    ] = None,
    changes: Changes,
    common: Common,
) -> None:
    """How should this job send its gradients, what does that save, and is it worth it? Writes plan.json."""
    from gradtide.studies import plan as study

    with as_usage_error(ValueError):
        least = study.parse_percent("worth", worth)
        base = changes.of(study.trained(scenario, None, workers))

    def check_output(path: Path | None) -> None:
        with as_usage_error(GradtideError):
            study.check_target(path)

    def name_files(path: Path) -> None:
        is_alone = path.suffix == ".json"
        talk(f"\nplan      {path if is_alone else path / 'plan.json'}   (gradtide run {scenario} --plan takes it)")
        if not is_alone:
            talk_of_files(path)

    conduct(
        "plans",
        replace(common, output=output),
        make=lambda how: study.plan(
            base,
            device=device,
            level=level,
            collectives=split("--collectives", collectives),
            overhead=overhead,
            worth=least,
            smallest=smallest,
            baseline=baseline,
            noise=noise,
            seeds=seeds,
            **how,
        ),
        show=_print_plan,
        example=lambda: study.figures(sample_of_plan()),
        figures=lambda result: {result.plan.level: study.figures(result)},
        check_output=check_output,
        name_files=name_files,
    )


def _print_plan(result: "PlanResult") -> None:
    from gradtide import words

    rows = [
        [
            "plan" if row["chosen"] else "",
            words.level(row["name"]).partition(":")[0],
            words.schedule(row["order"], row["barrier"]),
            row["buckets"],
            f"{row['iteration_ms']:.1f}",
            f"{row['saves_percent']:.1f} %",
            "–"
            if row["saves_low_percent"] is None
            else f"{row['saves_low_percent']:.0f} to {row['saves_high_percent']:.0f} %",
        ]
        for row in result.rows
    ]
    bound_ms = result.summary["lower_bound_ms"]
    searched = result.summary["searched"]
    say(f"The best of each level, of {searched['scored']} plans scored and {searched['pruned']} ruled out by bounds")
    print_table(["", "level", "schedule", "buckets", "T, ms", "saves", "95 % interval"], rows)
    if bound_ms is not None:
        say(f"No plan can be below {words.milliseconds(bound_ms)}.")
    say(f"\n{result.summary['headline']}")
    for sentence in result.plan.advice:
        say(f"  - {sentence}")
