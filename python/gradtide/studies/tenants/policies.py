"""`gradtide tenants policies`: cost to the jobs and gain of other tenants, if a policy chooses the jobs' bands.

A policy is a rule by which a job chooses the bands of its transfers. A run under a policy is compared with the run of
the same seed, and thus the same background flows, in which the jobs are in the band of these flows.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import errors, fct
from gradtide.answer import Candidate
from gradtide.answer.build import build
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.keep import Kept
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import run_named, total_cost
from gradtide.studies.run_folder import write_study
from gradtide.studies.tenants.boundary import points_of
from gradtide.studies.tenants.cases import SAME, Case, Cell, checked, head, moved_jobs, prioritised, variant
from gradtide.studies.tenants.comparison import Comparison, Effect, averaged, hinted, sentence
from gradtide.studies.trained import Cluster, trained

ORACLE = "oracle"
"""Policy that chooses bands with full knowledge of future flows: a bound that cannot be realised or recommended."""

POLICIES = ("all-low", "lower-layers-high", "background", "deadline", "straggler", ORACLE)
"""Policies that can be compared with sending everything in the band of the background flows."""

WHY_NOT = {True: "", False: "it costs the job time", None: "whether it costs the job time is unclear"}
"""Reason why a policy has no rank, by whether it is free for the jobs (`Effect.is_free`)."""

LABELS = ("cell", "job_load", "traffic_load", "policy", "job", "colour")
"""Columns of `policies.csv` that `--fail-if` cannot test."""


class PoliciesResult(StudyRows):
    """Comparison of policies for one scenario, or in each cell of a map over loads.

    Attributes:
        comparisons: comparison of each policy, in each cell, with the jobs in the band of the background flows.
        runs: the runs by case.
        rows: one dict per cell and policy, with the columns of `policies.csv`.
    """

    def __init__(self, comparisons: Sequence[Comparison], failed: Mapping[Case, str] | None = None) -> None:
        self.comparisons = list(comparisons)
        first = self.comparisons[0]
        self.runs = first.results
        self.rows = [_row(one) for one in self.comparisons]
        self.summary: dict[str, Any] = {
            **head("policies", first.scenario, first.seeds, first.payer, failed),
            **build(
                "tenants",
                _headline(self.comparisons),
                [one.scenario for one in self.runs.values()],
                _answers(self.comparisons),
                most=True,
            ).to_dict(),
            "policies": self.rows,
            "cost": total_cost(run.summary for run in self.runs.values()),
        }

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`. The runs are included only if the study is not a map."""
        runs = {case.folder: run for case, run in self.runs.items() if case.cell is None}
        write_study(self, folder, "policies.csv", runs)


@with_lists
@within_limits
def policies(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    names: Sequence[str] | None = None,
    *,
    cluster: Cluster = None,
    loads: tuple[Sequence[float], Sequence[float]] | None = None,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> PoliciesResult:
    """Run jobs and background flows under several policies, with the same flows for each policy.

    Args:
        scenario: a scenario with background flows, the packet engine and one or several jobs; all jobs follow the
            policy.
        cluster: as in `run`.
        names: names in `POLICIES`. Default: all policies; but `oracle` only with a single job, and `straggler` only if
            the workers of a job differ. A job that already has a policy in the scenario keeps its parameters.
        loads: loads of the only job and loads of the background flows, as in `boundary`; the policies are compared for
            each pair of loads (cell). Default: the loads of the scenario.
        seeds: seeds of the background flows.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C.
        ScenarioError: if the scenario is invalid, or the estimate exceeds the limits.
        ValueError: if a policy is unknown, or the scenario is not valid for `tenants`, or with `loads` for `boundary`.
    """
    base = trained(scenario, cluster, **keys)
    seeds = checked(base, seeds)
    names = default_policies(base) if names is None else names
    for name in names:
        if name not in POLICIES:
            hint = errors.hinted(name, POLICIES, f"there are {', '.join(POLICIES)}")
            raise ValueError(f'policy: there is no policy "{name}"; {hint}')
    points: dict[Cell | None, Scenario] = {None: base}
    if loads is not None:
        points = dict(points_of(base, *loads).items())
    cases = {
        Case(seed, name, cell): under(point, seed, name)
        for cell, point in points.items()
        for seed in seeds
        for name in (SAME, *dict.fromkeys(names))
    }
    results, failed = run_named(cases, jobs, progress, keep, limits)
    return PoliciesResult(
        [
            Comparison(point, tuple(seeds), results, moved_jobs(point, None), other=name, cell=cell)
            for cell, point in points.items()
            for name in dict.fromkeys(names)
        ],
        failed,
    )


def default_policies(base: Scenario) -> list[str]:
    """Return the policies that `policies` compares by default for a scenario."""
    has_sense = {ORACLE: len(base.jobs) == 1, "straggler": any(job.is_uneven for job in base.jobs)}
    return [name for name in POLICIES if has_sense.get(name, True)]


def under(base: Scenario, seed: int, policy: str) -> Scenario:
    """Return the scenario with a seed and with all jobs under a policy; `SAME` is the band of the background flows."""
    if policy == SAME:
        return variant(base, seed, SAME)
    others = [job.name for job in base.jobs if job.adaptive is None or job.adaptive.policy != policy]
    return prioritised(base, seed, {name: {"adaptive": {"policy": policy}} for name in others})


def figures(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a row that `--fail-if` can test, such as `iteration_change_percent`."""
    return {name: value for name, value in row.items() if name not in LABELS}


def _row(found: Comparison) -> dict[str, Any]:
    cell, cost, classes = found.cell, found.cost, found.classes_summary
    return {
        "cell": "" if cell is None else cell.name,
        "job_load": None if cell is None else cell.job_load,
        "traffic_load": None if cell is None else cell.traffic_load,
        "policy": found.other,
        "job": found.payer,
        "colour": cost.colour,
        "iteration_ms": found.iteration_time_ms["low"],
        "iteration_change_percent": found.iteration_time_ms["change_percent"],
        **cost.columns("iteration_change"),
        **{
            f"{size}_{figure.removesuffix('_fct_ms')}_saves_percent": classes[size][figure]["saves_percent"]
            for size in fct.CLASSES
            for figure in fct.TIMES
        },
        **found.gain.columns("small_mean_saves"),
    }


def _effects(found: Sequence[Comparison]) -> dict[str, tuple[Effect, Effect]]:
    """Return by policy the cost to the jobs and the gain of small flows, averaged over all cells (or unknown)."""
    effects: dict[str, tuple[Effect, Effect]] = {}
    for policy in dict.fromkeys(one.other for one in found):
        own = [one for one in found if one.other == policy]
        is_repeated = any(one.is_repeated for one in own)
        cost, gain = (
            Effect.of(averaged(parts), repeated=is_repeated)
            for parts in ([one.costs_percent for one in own], [one.gains_percent for one in own])
        )
        effects[policy] = cost, gain
    return effects


def _answers(found: Sequence[Comparison]) -> list[Candidate]:
    """Return the policies as candidates, ranked by the gain of small flows; only policies that are free have a rank."""
    answers = []
    for policy, (cost, gain) in _effects(found).items():
        is_free, why_not = cost.is_free, WHY_NOT[cost.is_free]
        answers.append(Candidate(policy, gain.percent if is_free else None, why_not=why_not, is_bound=policy == ORACLE))
    return answers


def _headline(found: Sequence[Comparison]) -> str:
    """Return the recommendation: the policy with the largest gain among the policies that are free for the jobs."""
    effects = _effects(found)
    first = {one.other: one for one in reversed(found)}
    whose = {policy: first[policy].whose if len(first[policy].moved) > 1 else "its iterations" for policy in effects}
    if all(cost.percent is None or gain.percent is None for cost, gain in effects.values()):
        return "Too few flows or iterations completed to compare policies."

    def rank(policy: str) -> tuple[bool, bool, bool, float]:
        cost, gain = effects[policy]
        is_free, is_unknown = bool(cost.is_free), cost.percent is None or gain.percent is None
        figure = -(gain.percent or 0.0) if is_free else cost.percent or 0.0
        return policy == ORACLE, is_unknown, not is_free, figure

    best, *others = sorted(effects, key=rank)
    where = "here" if len({one.cell for one in found}) == 1 else "on average over the cells"
    named = [best, *(policy for policy in others if policy == "all-low")]
    seeds = found[0].seeds
    text = " ".join(sentence(policy, *effects[policy], seeds, whose=whose[policy], where=where) for policy in named)
    return hinted(text, found[0].scenario, seeds)
