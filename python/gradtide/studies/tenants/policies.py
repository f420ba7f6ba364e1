"""`gradtide tenants policies`: what each way to choose a job's band costs it, and what it leaves its neighbours.

Every policy is compared with the job in its neighbours' band, on the same flows, seed by seed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import _core, fct, report
from gradtide.estimate import Limits
from gradtide.results import RunResult, StudyRows
from gradtide.scenario import Scenario
from gradtide.studies.folder import write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import as_scenario, run_all, total_cost, write_runs, write_summary
from gradtide.studies.tenants.bands import FIGURES, TenantsResult, check, colour, variant, verdict
from gradtide.studies.tenants.boundary import Cell, cell_name, points_of

POLICIES = ("all-low", "lower-layers-high", "background", "deadline", "oracle")
"""What a job can do in place of travelling in its neighbours' band; that itself is all-high. The oracle knows every
flow to come, which no job can."""

LABELS = ("cell", "job_load", "traffic_load", "policy", "colour")
"""What tells rows apart."""


class PoliciesResult(StudyRows):
    """Policies beside one another, in one cell or in those of a map.

    Attributes:
        studies: what each policy does in place of the low band, by cell and policy; the cell of a scenario is None.
        rows: one dict per cell and policy; the columns of `policies.csv`.
        summary: what `--json` prints.
    """

    def __init__(self, studies: Mapping[tuple[Cell | None, str], TenantsResult], runs: Mapping[str, RunResult]) -> None:
        self.studies = dict(studies)
        self.runs = dict(runs)
        self.rows = [_row(cell, policy, study) for (cell, policy), study in self.studies.items()]
        first = next(iter(self.studies.values()))
        self.summary: dict[str, Any] = {
            "schema": "gradtide.policies/1",
            "version": _core.__version__,
            "complete": True,
            "engine": first.summary["engine"],
            "seeds": first.seeds,
            "job": first.summary["job"],
            "model": first.summary["model"],
            "headline": _headline(self.rows),
            "policies": self.rows,
            "cost": total_cost(run.summary for run in self.runs.values()),
        }

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`; the runs of a map are not kept one by one."""
        if all(cell is None for cell, _ in self.studies):
            write_runs(self.runs, folder)
        (folder / "policies.csv").write_text(self.table.to_csv(), encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)


def policies(
    scenario: "Scenario | str | Path | dict[str, Any]",
    names: Sequence[str] = POLICIES,
    *,
    loads: tuple[Sequence[float], Sequence[float]] | None = None,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> PoliciesResult:
    """Run a job beside its neighbours under several policies, paired by seed.

    Args:
        scenario: has one job, neighbours and the packet engine.
        names: policies out of `POLICIES`. A scenario whose priority is adaptive keeps its own settings of its policy.
        loads: loads of the job and of the neighbours that make the cells of a map; None runs the scenario as it is.
        seeds: each draws the neighbours' flows anew; all policies see the same flows.
        jobs: runs under way at once; the result does not depend on it.
        progress: called now and then with the share that is done.
        keep: where finished runs are kept until the study is whole.
        limits: memory and time that the study may take.

    Raises:
        Interrupted: on Ctrl-C.
        ScenarioError: if the scenario is wrong, or the study would take more than the limits.
        ValueError: if a policy is unknown, or the scenario does not suit `tenants` or its map.
    """
    base = as_scenario(scenario)
    check(base, seeds)
    for name in names:
        if name not in POLICIES:
            raise ValueError(f'"{name}" is no policy; there are {", ".join(POLICIES)}')
    points: dict[Cell | None, Scenario] = {None: base}
    if loads is not None:
        points = dict(points_of(base, *loads, seeds).items())
    cases = {
        (cell, seed, name): under(point, seed, name)
        for cell, point in points.items()
        for seed in seeds
        for name in ("same", *dict.fromkeys(names))
    }
    results = dict(zip(cases, run_all(list(cases.values()), jobs, progress, keep, limits), strict=True))
    studies = {(cell, name): paired(points[cell], cell, name, seeds, results) for cell in points for name in names}
    runs = {f"{_where(cell)}seed{seed}-{name}": result for (cell, seed, name), result in results.items()}
    return PoliciesResult(studies, runs)


def under(base: Scenario, seed: int, policy: str) -> Scenario:
    """Return the scenario of one seed under a policy, or with `same` in its neighbours' band."""
    if policy == "same":
        return variant(base, seed, "same")
    own = base.jobs[0].adaptive
    if own is not None and own.policy == policy:
        return base.replace(seed=seed)
    return base.replace(seed=seed, priority={"adaptive": {"policy": policy}})


def paired(
    base: Scenario,
    cell: Any,
    policy: str,
    seeds: Sequence[int],
    results: Mapping[tuple[Any, int, str], RunResult],
) -> TenantsResult:
    """Return the study of a policy, which has the place of the low band."""
    runs = {}
    for seed in seeds:
        runs[f"seed{seed}-same"] = results[cell, seed, "same"]
        runs[f"seed{seed}-low"] = results[cell, seed, policy]
    return TenantsResult(base, seeds, runs)


def figures(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what `--fail-if` can name of a cell and policy: `iteration_change_percent`, `small_mean_saves_percent`."""
    return {name: value for name, value in row.items() if name not in LABELS}


def _where(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell_name(cell)}-"


def _row(cell: Cell | None, policy: str, study: TenantsResult) -> dict[str, Any]:
    classes, iteration = study.summary["classes"], study.summary["iteration_time_ms"]
    return {
        "cell": "" if cell is None else cell_name(cell),
        "job_load": None if cell is None else cell[0],
        "traffic_load": None if cell is None else cell[1],
        "policy": policy,
        "colour": study.summary["colour"],
        "iteration_ms": iteration["low"],
        "iteration_change_percent": iteration["change_percent"],
        **{
            f"{size}_{figure.removesuffix('_fct_ms')}_saves_percent": classes[size][figure]["saves_percent"]
            for size in fct.CLASSES
            for figure in FIGURES
        },
    }


def _headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say which policy to take, on average over the cells: of those that are free the one that saves most."""
    averages: dict[str, tuple[float, float]] = {}
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        pairs = [(row["iteration_change_percent"], row["small_mean_saves_percent"]) for row in own]
        known = [(cost, gain) for cost, gain in pairs if cost is not None and gain is not None]
        if known:
            cost, gain = (sum(values) / len(known) for values in zip(*known, strict=True))
            averages[policy] = cost, gain
    if not averages:
        return "Too few flows or iterations completed to compare policies."

    def rank(policy: str) -> tuple[bool, bool, float]:
        cost, gain = averages[policy]
        is_free = colour(cost) == "green"
        return policy == "oracle", not is_free, -gain if is_free else cost

    best, *others = sorted(averages, key=rank)
    where = "here" if len({row["cell"] for row in rows}) == 1 else "on average over the cells"
    named = [best, *(policy for policy in others if policy == "all-low")]
    return " ".join(verdict(policy.capitalize(), *averages[policy], where) for policy in named)
