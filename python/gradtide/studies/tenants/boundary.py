"""`gradtide tenants map`: what de-prioritising a job costs it, by job and background load (Gao 2020, fig. 5.19)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gradtide.answer.build import build
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import run_named, total_cost
from gradtide.studies.run_folder import write_study
from gradtide.studies.tenants.bands import TenantsResult
from gradtide.studies.tenants.cases import (
    BANDS,
    Case,
    Cell,
    check_one_job,
    checked,
    head,
    known_seeds,
    moved_jobs,
    variant,
)
from gradtide.studies.tenants.comparison import FREE_PERCENT, Comparison, hinted
from gradtide.studies.trained import Cluster, trained
from gradtide.units import PS_PER_MS

# Loads of a host's link by the job and by the background flows, as shares of its rate: table 5.4 of Gao (2020).
JOB_LOADS = (0.0625, 0.125, 0.25, 0.5)
TRAFFIC_LOADS = (0.03125, 0.0625, 0.125, 0.25)


class BoundaryResult(StudyRows):
    """Costs of de-prioritising a job, in each cell of a map. A cell is a pair of a job load and a background load.

    Attributes:
        cells: for each cell, the comparison of the job in the flows' band with the job in a lower band.
        rows: one dict per cell, with the columns of `cells.csv`.
    """

    def __init__(self, cells: dict[Cell, TenantsResult], failed: Mapping[Case, str] | None = None) -> None:
        self.cells, self.failed = cells, failed or {}
        self.rows = [_row(cell, study) for cell, study in cells.items()]
        first = next(iter(self.cells.values()))
        self.summary: dict[str, Any] = {
            **head("boundary", first.scenario, first.seeds, first.summary["job"], self.failed),
            **build(
                "tenants",
                hinted(_headline(self.rows, first.seeds), first.scenario, first.seeds),
                [one.scenario for study in cells.values() for one in study.results.values()],
            ).to_dict(),
            "cells": self.rows,
            "cost": total_cost(study.summary for study in self.cells.values()),
        }

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        # If a run of a cell failed, the cell has a row in `cells.csv`, but no folder.
        failed = {case.cell for case in self.failed}
        for cell, study in self.cells.items():
            if cell in failed:
                continue
            study.write(folder / "cells" / cell.name)
        write_study(self, folder, "cells.csv")


@with_lists
@within_limits
def boundary(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    job_loads: Sequence[float] = JOB_LOADS,
    traffic_loads: Sequence[float] = TRAFFIC_LOADS,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> BoundaryResult:
    """Determine what de-prioritising a job costs it, in each cell of a grid of job loads and background loads.

    Args:
        scenario: a scenario with one job, background flows with random sizes, and the packet engine.
        cluster: as in `run`.
        job_loads: loads of a host's link by the job, as shares of the link rate. The job's compute time is scaled to
            reach each load (eq. 5.2).
        traffic_loads: loads of a host's link by the background flows, as shares of the link rate. The rate of their
            arrivals is scaled to reach each load (eq. 5.3).
        seeds: seeds of the background flows; every cell is run with each seed.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the map is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C, with the map of the finished cells.
        ScenarioError: before any run, if the scenario of a cell is invalid, or the estimate exceeds the limits.
        ValueError: if a load is not between 0 and 1 or is given twice, no load or seed is given, or the scenario does
            not have exactly one job that sends data, and background flows with random sizes.
    """
    base = trained(scenario, cluster, **keys)
    seeds = checked(base, seeds)
    points = points_of(base, job_loads, traffic_loads)
    cases = {
        Case(seed, band, cell): variant(point, seed, band)
        for cell, point in points.items()
        for seed in seeds
        for band in BANDS
    }
    try:
        finished, failed = run_named(cases, jobs, progress, keep, limits)
    except Unfinished as stop:
        known = _cells(points, seeds, {case: run for case, run in zip(cases, stop.results, strict=True) if run})
        if known:
            stop.attach(BoundaryResult(known))
        raise
    return BoundaryResult(_cells(points, seeds, finished, failed), failed)


def points_of(base: Scenario, job_loads: Sequence[float], traffic_loads: Sequence[float]) -> dict[Cell, Scenario]:
    """Return the scenario of each cell of a map. Raises the errors of `boundary`."""
    check_one_job(base, "a map scales the load of one job")
    _check_scalable(base)
    _check_loads("job_loads", job_loads)
    _check_loads("traffic_loads", traffic_loads)
    _check_duration(base, min(job_loads))
    return {Cell(*loads): _at(base, *loads) for loads in product(job_loads, traffic_loads)}


def _cells(
    points: Mapping[Cell, Scenario],
    seeds: Sequence[int],
    finished: Mapping[Case, RunResult],
    failed: Mapping[Case, str] | None = None,
) -> dict[Cell, TenantsResult]:
    """Return the comparison in each cell, without cells in which a run has neither finished nor failed."""
    ended = [*finished, *(failed or ())]
    return {
        cell: TenantsResult(Comparison(point, tuple(seeds), finished, moved_jobs(point, None), cell=cell))
        for cell, point in points.items()
        if known_seeds([case for case in ended if case.cell == cell], seeds) == list(seeds)
    }


def load_words(share: float) -> str:
    """Format a load, which is a share, as a percentage such as `3.125 %`."""
    return f"{100 * share:.4g} %"


def figures(row: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures of a cell that `--fail-if` can test: `iteration_change_percent`, `small_saves_percent` etc."""
    return {name: value for name, value in row.items() if name not in ("cell", "colour")}


def _check_loads(name: str, loads: Sequence[float]) -> None:
    if not loads:
        raise ValueError(f"{name}: the list is empty; write shares of a link, as in 0.125,0.25")
    for load in loads:
        if not 0 < load < 1:
            raise ValueError(f"{name}: {load} is not a load; write a share above 0 and below 1")
    names = [f"{100 * load:g}" for load in loads]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{name}: a load of {twice[0]} % is given twice")


def _check_scalable(base: Scenario) -> None:
    job = base.jobs[0]
    if job.workers < 2 or not job.parameter_bytes:
        raise ValueError(
            f"[job.{job.name}] sends nothing, so a map cannot vary its load; it needs 2 workers and parameters"
        )
    for name, table in base.to_dict()["traffic"].items():
        if not {"sizes", "cdf"} & set(table):
            raise ValueError(f"[traffic.{name}] has no random arrivals for the map to scale; write `sizes` or `cdf`")


def _check_duration(base: Scenario, job_load: float) -> None:
    """Raise unless `duration` is long enough for a warm-up and a measured iteration, which are longest at low loads."""
    needed_ps = 2 * _compute_ps(base, job_load)
    if base.duration_ps is not None and needed_ps > base.duration_ps:
        raise ValueError(
            f"at a job load of {load_words(job_load)} an iteration takes {needed_ps / 2e12:.3g} s of compute, and "
            f"two do not fit into run.duration = {base.duration_ps / 1e12:.3g} s; write {math.ceil(needed_ps / 1e12)}s "
            f"or more, or job loads from {math.ceil(100 * job_load * needed_ps / base.duration_ps) / 100:g} on"
        )


def _compute_ps(base: Scenario, job_load: float) -> int:
    """Return the compute time per iteration, in ps, with which the job's load of a link is `job_load` (eq. 5.2)."""
    job = base.jobs[0]
    bits = 8 * 2 * (job.workers - 1) * job.parameter_bytes / job.workers
    return round(bits / (job_load * base.link_rate_bps) * 1e12)


def _at(base: Scenario, job_load: float, traffic_load: float) -> Scenario:
    """Return the scenario with compute time and arrivals of flows scaled to the given loads (eqs 5.2 and 5.3)."""
    keys = base.replace(scale_to=f"{_compute_ps(base, job_load)}ps", timeline=0).to_dict()
    for table in keys["traffic"].values():
        table.pop("arrivals", None)
        table["load"] = traffic_load / len(keys["traffic"])
    return Scenario.from_dict(keys)


def _row(cell: Cell, study: TenantsResult) -> dict[str, Any]:
    classes, iteration = study.summary["classes"], study.summary["iteration_time_ms"]
    return {
        "cell": cell.name,
        "job_load": cell.job_load,
        "traffic_load": cell.traffic_load,
        "compute_ms": study.scenario.jobs[0].compute_ps / PS_PER_MS,
        "colour": study.summary["colour"],
        "iteration_change_percent": iteration["change_percent"],
        **study.comparison.cost.columns("iteration_change"),
        "iteration_same_ms": iteration["same"],
        "iteration_low_ms": iteration["low"],
        **{f"{size}_saves_percent": classes[size]["mean_fct_ms"]["saves_percent"] for size in classes},
        **study.comparison.gain.columns("small_saves"),
        **{f"{size}_flows": classes[size]["flows"] for size in classes},
    }


def _headline(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    colours = [row["colour"] for row in rows]
    known = [row for row in rows if row["colour"] == "green" and (row["small_saves_percent"] or 0) > 0]
    free = [row for row in known if row["small_saves_from_percent"] is None or row["small_saves_from_percent"] > 0]
    sentence = (
        f"De-prioritising costs the job less than 1 % in {colours.count('green')} of {len(rows)} cells, up to 30 % in "
        f"{colours.count('yellow')}, more in {colours.count('red')}."
    )
    unclear = [row for row in rows if row["colour"] == "unclear"]
    dear = [row for row in unclear if row["iteration_change_from_percent"] >= FREE_PERCENT]
    if dear:
        sentence += f" In {len(dear)} it costs 1 % or more, and with {len(seeds)} seeds it is unclear how much."
    if len(unclear) > len(dear):
        sentence += f" {len(unclear) - len(dear)} are unclear with {len(seeds)} seeds."
    if "unknown" in colours:
        sentence += f" In {colours.count('unknown')}, too few flows or iterations completed to judge."
    if free:
        best = max(free, key=lambda row: row["small_saves_percent"])
        sentence += (
            f" Where that is free, small flows gain most at a job load of {load_words(best['job_load'])} and a "
            f"background load of {load_words(best['traffic_load'])}: they finish "
            f"{best['small_saves_percent']:.0f} % sooner."
        )
    return f"One run of each cell (seed {seeds[0]}): {sentence}" if len(seeds) == 1 else sentence
