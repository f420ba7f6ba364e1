"""`gradtide plan`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, Training, Without, option, split
from gradtide.cli.printing import print_answer, print_table, put, say, talk, talk_of_files
from gradtide.cli.study import Checked, conduct
from gradtide.errors import GradtideError

if TYPE_CHECKING:
    from gradtide.studies.plan import PlanResult, ShardingResult


DEVICE_TEXT = (
    "Plan for this device: cpu, gpu, or a preset such as H100-bf16, which then also computes. ideal allows every "
    "feature that gradtide models. Default: the scenario's device, else the features that every device has."
)
ORDER_TEXT = (
    "Plan this order, even if another order saves more: fifo, priority or caramel. Default: the search chooses."
)


def plan(  # a table of options  # noqa: PLR0913
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    workers: int | None = option("N", "Set the number of workers.", min=2),
    device: str | None = option("NAME", DEVICE_TEXT),
    level: str | None = option(
        "NAME",
        "Allow the runtime at most this level: buckets, priority or crossiter. Default: the highest level of the "
        "device.",
    ),
    schedule: str | None = option("NAME", ORDER_TEXT),
    collectives: str | None = option(
        "LIST",
        "Search these collectives, each KIND[+KEY=VALUE], as in ring,tree. Default: those of the device's library.",
    ),
    overhead: str | None = option(
        "TIME", "Add this time to each message of a scheduler, above level buckets. Default: 1ms."
    ),
    worth: str = option(
        "PERCENT", "Recommend a plan only if it saves at least this share of the iteration time.", "1%"
    ),
    smallest: str | None = option("SIZE", "Send no message smaller than this. Default: 1MiB."),
    baseline: str | None = option(
        "NAME",
        "Compare plans with ddp, or with the schedule of the scenario. Default: scenario if it has one, else ddp.",
    ),
    noise: float | None = option(
        "SHARE", "Vary compute times at random by this share, if the scenario does not. Default: 0.03.", min=0, max=0.5
    ),
    seeds: int | None = option("N", "Repeat the baseline and the plan with N seeds of this noise. Default: 8.", min=1),
    output: Path | None = option(
        "PATH",
        "Write the plan alone to a file PATH that ends in .json, or else a folder of results.",
        None,
        "-o",
        "--output",
    ),
    training: Annotated[Training, Without("collective")],
    changes: Changes,
    common: Common,
) -> None:
    """Plan how a job sends its gradients, and what that saves.

    Searches orders, buckets and collectives that the device can carry out. A job with FSDP gets settings of
    fully_shard instead. gradtide run --plan and gradtide.torch read the plan.
    """
    from gradtide.studies import plan as study
    from gradtide.studies.run import sample

    with as_usage_error(ValueError):
        least = study.parse_percent("worth", worth)
        keys = {**training.keys, "device": study.computing(device)}
        base = changes.of(study.trained(scenario, cluster, workers, **keys))

    def example() -> dict[str, float | None]:
        if base.jobs and base.jobs[0].parallel_model is not None:
            return study.figures(study.plan(base))
        return study.figures(study.plan({"job": sample().to_dict()["job"]}))

    taker = f"gradtide run {scenario} --plan" if base.jobs[0].parallel_model is None else "gradtide.torch.wrap"
    conduct(
        "plans",
        replace(common, output=output),
        make=lambda how: study.plan(
            base,
            device=device,
            level=level,
            schedule=schedule,
            collectives=split("--collectives", collectives),
            overhead=overhead,
            worth=least,
            smallest=smallest,
            baseline=baseline,
            noise=noise,
            seeds=seeds,
            **how,
        ),
        show=lambda result: _print_plan(result) if isinstance(result, study.PlanResult) else _print_sharding(result),
        checked=Checked(lambda result: {result.plan.level: study.figures(result)}, example),
        check_output=_check_output,
        name_files=partial(_name_files, taker),
    )


def _check_output(path: Path | None) -> None:
    from gradtide.studies.plan import check_target

    with as_usage_error(GradtideError, option="--output"):
        check_target(path)


def _name_files(taker: str, path: Path) -> None:
    is_alone = path.suffix == ".json"
    talk("", f"plan      {path if is_alone else path / 'plan.json'}   ({taker} takes it)")
    if not is_alone:
        talk_of_files(path)


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
    print_table(["", "level", "schedule", "buckets", "iteration, ms", "saves", "95 % interval"], rows)
    if bound_ms is not None:
        say(f"Lower bound of the iteration time of every plan: {words.milliseconds(bound_ms)}.")
    print_answer(result.summary)
    for sentence in result.plan.advice:
        say(f"  - {sentence}")


def _print_sharding(result: "ShardingResult") -> None:
    from gradtide import words

    def cells(row: dict[str, Any]) -> list[Any]:
        found = [
            "plan" if row["chosen"] else "",
            row["name"],
            row["unit"],
            row["forward_prefetch"],
            row["backward_prefetch"],
            "yes" if row["reshard_after_forward"] else "no",
        ]
        memory = words.size(row["memory_bytes"], 3) + words.SHORT_FIT[row["feasibility"]]
        if row["iteration_ms"] is None:
            return [*found, "–", "–", "–", memory]
        low, high = row["saves_low_percent"], row["saves_high_percent"]
        interval = "–" if low is None else f"{round(low) + 0} to {round(high) + 0} %"
        return [*found, f"{row['iteration_ms']:.1f}", f"{row['saves_percent']:.1f} %", interval, memory]

    searched = result.summary["searched"]
    large = f", {searched['too_large']} too large for the memory" if searched["too_large"] else ""
    say(f"{searched['settings']} settings of fully_shard{large}")
    columns = ["", "setting", "unit", "fwd", "bwd", "freed", "iteration, ms", "saves", "95 % interval", "memory"]
    print_table(columns, list(map(cells, result.rows)))
    say(
        "unit: blocks that are gathered together; fwd, bwd: units gathered ahead; freed: after the forward pass",
        f"Lower bound of the iteration time of every plan: {words.milliseconds(result.summary['lower_bound_ms'])}.",
    )
    print_answer(result.summary)
    for sentence in result.plan.advice:
        say(f"  - {sentence}")
    if result.rows[-1]["setting"] != result.rows[0]["setting"]:
        say("", "The best of all with torch alone:", "")
        put(*(f"    {line}" if line else "" for line in result.snippet))
