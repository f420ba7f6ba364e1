"""`gradtide tenants`: how training jobs slow down background flows, and what de-prioritising the jobs costs them.

Each seed has three runs with the same background flows: jobs in the priority band of the flows, jobs in a lower band,
and no jobs. Changes are computed between runs of the same seed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import fct
from gradtide.answer.build import build
from gradtide.errors import SimulationError, Unfinished
from gradtide.estimate import Limits, foresee, within_limits
from gradtide.studies.alone import alone_ps, flows_of
from gradtide.studies.arguments import with_lists
from gradtide.studies.keep import Kept
from gradtide.studies.result import Flow, RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import part_of, run_all, run_named, total_cost
from gradtide.studies.run_folder import write_study
from gradtide.studies.tenants.cases import BANDS, NO_JOB, Case, checked, head, known_seeds, moved_jobs, probed, variant
from gradtide.studies.tenants.comparison import FIGURES, Comparison, hinted, sentence, verdict
from gradtide.studies.trained import Cluster, trained
from gradtide.units import PS_PER_MS


class TenantsResult(StudyRows):
    """Result of running jobs and background flows together, with the jobs in the flows' band and in a lower band.

    Attributes:
        comparison: comparison of the two bands, paired by seed.
        rows: one dict per seed, side (the jobs' band, or no jobs), tenant and size class of flows, with the columns
            of `rows.csv`.
        results: the finished runs, by case.
    """

    def __init__(self, comparison: Comparison, failed: Mapping[Case, str] | None = None) -> None:
        self.comparison, self.failed = comparison, failed or {}
        self.scenario, self.seeds = comparison.scenario, list(comparison.seeds)
        cases = [Case(*key, comparison.cell) for key in comparison.flow_classes]
        self.results = {case: comparison.results[case] for case in cases}
        self.rows = [row for case in cases for row in _rows(comparison, case)]
        found = self.comparison
        cost, gain = found.cost, found.gain
        since_ps, until_ps = found.between_ps
        self.summary: dict[str, Any] = {
            **head("tenants", self.scenario, self.seeds, found.payer, self.failed),
            **build("tenants", _headline(found), [one.scenario for one in self.results.values()]).to_dict(),
            "verdict": verdict(cost, gain),
            "counted": {
                "traffic": self.scenario.traffic[0].name,
                "warmup_ms": max(self.scenario.warmup_ps, since_ps) / PS_PER_MS,
                "cooldown_ms": self.scenario.cooldown_ps / PS_PER_MS,
                **({} if until_ps is None else {"until_ms": until_ps / PS_PER_MS}),
                "small_bytes": found.classes.small_bytes,
                "large_bytes": found.classes.large_bytes,
            },
            "classes": found.classes_summary,
            "iteration_time_ms": found.iteration_time_ms,
            "jobs": found.jobs_summary,
            "max_link_utilisation": found.pair(found.links("max_utilisation")),
            "drops": found.pair(found.links("drops")),
            "switch_drops": found.pair(found.links("switch_drops")),
            "host_drops": found.pair(found.links("host_drops")),
            "colour": cost.colour,
            "cost": total_cost(result.summary for result in self.results.values()),
        }

    def write(self, folder: Path) -> None:
        """Write the result into `folder`, which is created if it is missing."""
        write_study(self, folder, runs={case.folder: result for case, result in self.results.items()})


@with_lists
@within_limits
def tenants(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    seeds: Sequence[int] = (0,),
    job: str | None = None,
    classes: fct.Classes | str | None = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> TenantsResult:
    """Run background flows with jobs in the same band, with jobs in a lower band, and without jobs.

    Args:
        scenario: a scenario with one or several jobs, background flows, and the fluid or the packet engine.
        cluster: as in `run`.
        seeds: seeds of the background flows; all runs of a seed have the same flows. With at least two seeds, changes
            have confidence intervals.
        job: name of the only job whose band is lowered. Default: the bands of all jobs are lowered.
        classes: sizes up to which a flow is small, and from which it is large, as in `small=100kB,large=1MB`. Default:
            100 kB and 10 MB.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C, with the result of the seeds whose runs have all finished.
        ScenarioError: if the scenario is invalid, or the estimate exceeds the limits.
        ValueError: if the scenario has no job or no background flows, no seed is given, or `job` or `classes` is
            invalid.
    """
    base = trained(scenario, cluster, **keys)
    seeds = checked(base, seeds)
    moved = moved_jobs(base, job)
    sizes = fct.Classes.parse(classes) if isinstance(classes, str) else classes or fct.DEFAULT
    base = probed(base)
    sides = (*BANDS, NO_JOB)
    cases = {Case(seed, side): variant(base, seed, side, moved) for seed in seeds for side in sides}

    # Each distinct flow is also simulated alone: slowdowns are relative to its completion time on an idle network.
    alone = [(cases[Case(seed, NO_JOB)], 1) for seed in seeds]
    foresee(lambda: [*((one, 1) for one in cases.values()), *alone], "identical flows are simulated alone only once")

    def study(results: Mapping[Case, RunResult], alone: Mapping[int, Mapping[Flow, int]]) -> TenantsResult:
        known = tuple(known_seeds([*results, *failed], seeds, sides))
        return TenantsResult(Comparison(base, known, results, moved, classes=sizes, alone_ps=alone), failed)

    finished: dict[Case, RunResult] = {}
    failed: dict[Case, str] = {}
    try:
        finished, failed = run_named(cases, jobs, part_of(progress, 0, 0.8), keep, limits)
        if not known_seeds(finished, seeds):
            raise SimulationError(next(iter(failed.values())))
        rest = part_of(progress, 0.8, 1)
        of_seed = {seed: [run for case, run in finished.items() if case.seed == seed] for seed in seeds}
        times = alone_ps(
            [(cases[Case(seed, NO_JOB)], flows_of(of_seed[seed])) for seed in seeds],
            lambda scenarios: run_all(scenarios, jobs, rest, keep, limits),
        )
    except Unfinished as stop:
        if not finished:
            finished = {case: run for case, run in zip(cases, stop.results, strict=True) if run is not None}
        if known_seeds(finished, seeds, sides):
            stop.attach(study(finished, {}))
        raise
    return study(finished, dict(zip(seeds, times, strict=True)))


def figures(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures that `--fail-if` can test: `iteration_change_percent`, `small_mean_saves_percent` etc."""
    named = {"iteration_change_percent": summary["iteration_time_ms"]["change_percent"]}
    for size, classes in summary["classes"].items():
        for figure in FIGURES:
            named[f"{size}_{figure.removesuffix('_fct_ms')}_saves_percent"] = classes[figure]["saves_percent"]
    return named


def _rows(comparison: Comparison, case: Case) -> list[dict[str, Any]]:
    iteration_ms = comparison.iteration_ms(comparison.payer)(case.seed, case.side)
    return [
        {
            "run": case.folder,
            "seed": case.seed,
            "band": case.side,
            "traffic": tenant,
            "class": size,
            "started": figures["started"],
            "completed": figures["completed"],
            **{figure: figures.get(figure) for figure in FIGURES},
            "iteration_time_ms": iteration_ms,
        }
        for tenant, classes in comparison.flow_classes[case.seed, case.side].items()
        for size, figures in classes.items()
    ]


def _headline(found: Comparison) -> str:
    count = len(found.scenario.jobs)
    what = "this job" if count == 1 else found.moved[0]
    what = what if len(found.moved) == 1 else f"these {len(found.moved)} jobs"
    text = sentence(f"de-prioritising {what}", found.cost, found.gain, found.seeds, whose=found.whose)
    if found.added.percent is not None:
        added = found.added.sentence("later", "sooner", "at the same time")
        beside = "this job" if count == 1 else f"these {count} jobs"
        text += f" Compared with no job, small flows finish {added} on average beside {beside} in their band."
    return hinted(text, found.scenario, found.seeds)
