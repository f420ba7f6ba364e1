"""`gradtide run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gradtide.cli.bursts import print_bursts, print_thresholds
from gradtide.cli.checks import apply_checks, refuse_unknown
from gradtide.cli.options import (
    Changes,
    ClusterOption,
    Common,
    ModelArgument,
    Training,
    Without,
    check_target,
    option,
    save,
)
from gradtide.cli.printing import is_wide, print_answer, print_json, print_table, say, talk_of_cost, talk_of_files
from gradtide.cli.progress import progress_bar
from gradtide.cli.study import show_estimate

if TYPE_CHECKING:
    from gradtide.scenario import Scenario
    from gradtide.studies.result import RunResult


def run(
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    plan: Path | None = option("FILE", "Send gradients by this plan.json, which gradtide plan writes."),
    training: Training,
    changes: Changes,
    common: Annotated[Common, Without("jobs", "store")],
) -> None:
    """Predict the time of an iteration and what it waits for.

    Simulates one scenario, or a model on a cluster. If there are background flows beside the job, their completion
    times follow in a second table.
    """
    loaded = changes.trained(scenario, cluster, **training.keys)
    if plan is not None:
        from gradtide.scenario.plan import read_plan

        loaded = read_plan(plan).on(loaded)
        loaded.check_built()
    if common.estimate:
        show_estimate(lambda: _foresee(loaded), common)
        return
    check_target(common.output)
    from gradtide.studies import run as study
    from gradtide.studies.run_folder import summary as summary_of
    from gradtide.studies.what_ifs import what_if_count

    refuse_unknown(common.checks, example_figures)
    with progress_bar("simulating", common.quiet) as progress:
        [result] = study.run_all([loaded], progress=progress, limits=common.limits, what_ifs=what_if_count(loaded))
        study.add_slowdowns(result, common.limits)
        summary = summary_of(result)
        if common.output is not None:
            if progress is not None:
                progress.stage("writing the report")
            save(result, common.output)
    if common.as_json:
        print_json(summary)
    else:
        from gradtide import words

        parallel = [(name, job) for name, job in summary["jobs"].items() if "parallel" in job]
        for name, job in parallel:
            print_table(*words.parallel_rows(name, job))
            say("")
            print_table(*words.group_rows(job))
        if summary["jobs"] and not parallel:
            print_table(*words.run_rows(summary, has_symbols=is_wide()))
        for index, (name, classes) in enumerate(summary["traffic"].items()):
            if summary["jobs"] or index:
                say("")
            print_table(*words.flow_rows(name, classes))
        if len(result.bursts):
            say("")
            print_bursts(result.bursts)
        _print_thresholds(result)
        print_answer(summary)
    if common.output is not None and common.names_files:
        talk_of_files(common.output)
    if common.verbose:
        talk_of_cost(summary["cost"])
    apply_checks(common.checks, figures_of_run(summary))


def _print_thresholds(result: "RunResult") -> None:
    """Print the marking thresholds that the sampled links need, if the scenario's queues have a marking threshold."""
    if not len(result.queues) or result.scenario.to_dict()["cluster"]["queue"].get("threshold") is None:
        return
    if rows := result.thresholds():
        say("", "Thresholds in packets, by equations 1 and 2 of Kang et al. (2021)")
        print_thresholds(rows)


def figures_of_run(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, figures) of each job and of each tenant's flows, for the checks of `--fail-if`."""
    from gradtide.results import numbers

    jobs = [(name, _figures_of_job(job, numbers(job))) for name, job in summary["jobs"].items()]
    return jobs + [(name, numbers(classes["all"])) for name, classes in summary["traffic"].items()]


def example_figures() -> dict[str, Any]:
    """Return all figures of a small run with a job and background flows; their names are valid in `--fail-if`."""
    from gradtide.studies import run as study

    found = figures_of_run(study.run(study.sample()).summary)
    return {name: value for _, figures in found for name, value in figures.items()}


def _figures_of_job(job: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    waterfall = {f"{name}_ms": value for name, value in job["waterfall_ms"].items()}
    return {**figures, "iteration_time_ms": job["iteration_time_ms"]["mean"], **waterfall}


def _foresee(loaded: "Scenario") -> None:
    from gradtide.estimate import foresee
    from gradtide.studies.what_ifs import what_if_count

    if loaded.jobs:
        foresee(lambda: [(loaded, 1)], what_ifs=what_if_count(loaded))
    # Each distinct flow is sent once more on the idle network, to compute its slowdown.
    foresee(lambda: [(loaded, 2)], "identical flows are simulated alone only once")
