"""`gradtide tenants`: what does a training job do to everyone else's flows, and where is de-prioritising it free?

The job runs in its neighbours' band and in a lower one, with the same flows, seed by seed.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradtide import _core, fct, report
from gradtide.errors import Interrupted
from gradtide.estimate import Limits
from gradtide.results import PS_PER_MS, RunResult, StudyRows
from gradtide.scenario import Scenario
from gradtide.studies.folder import write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import as_scenario, run_all, total_cost, write_runs, write_summary

FIGURES = ("mean_fct_ms", "p50_fct_ms", "p90_fct_ms", "p99_fct_ms")
BANDS = ("same", "low")

SAMPLES, SAMPLED_ROWS = 800, 400_000
"""Instants that the probe of a run sees, and rows that it keeps at most; for pictures."""

# Fig. 5.19 of Gao (2020): green costs the job less than 1 %, yellow up to 30 %, red more.
FREE_PERCENT, DEAR_PERCENT = 1.0, 30.0


class TenantsResult(StudyRows):
    """A job beside its neighbours, in their band and in a lower one.

    Attributes:
        rows: one dict per seed, band and class of flows; the columns of `rows.csv`.
        results: the runs by name, as in `seed0-low`.
        summary: what `--json` prints.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int], results: dict[str, RunResult]) -> None:
        self.scenario = scenario
        self.seeds = list(seeds)
        self.results = results
        self.rows = [row for name, result in results.items() for row in _rows(name, result)]
        self.summary = self._summary()

    def write(self, folder: Path) -> None:
        """Write everything into `folder`, which is made if it is missing."""
        write_runs(self.results, folder)
        (folder / "rows.csv").write_text(self.table.to_csv(), encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)

    def _mean(self, band: str, of: Callable[[RunResult], float | None]) -> float | None:
        """Mean over the seeds; None if a seed has no such figure."""
        values = [of(self.results[f"seed{seed}-{band}"]) for seed in self.seeds]
        return None if any(value is None for value in values) else float(np.mean([v for v in values if v is not None]))

    def _summary(self) -> dict[str, Any]:
        first = next(iter(self.results.values())).summary
        classes = {
            name: {
                "flows": self._mean("same", _figure_of(name, "completed")),
                **{figure: self._pair(_figure_of(name, figure)) for figure in FIGURES},
            }
            for name in fct.CLASSES
        }
        iteration = self._pair(lambda result: result.job["iteration_time_ms"]["mean"], grows=True)
        return {
            "schema": "gradtide.tenants/1",
            "version": _core.__version__,
            "complete": True,
            "engine": first["engine"],
            "seeds": self.seeds,
            "job": self.scenario.jobs[0].name,
            "model": self.scenario.jobs[0].model,
            "headline": _headline(classes, iteration),
            "counted": {
                "traffic": self.scenario.traffic[0].name,
                "warmup_ms": self.scenario.warmup_ps / PS_PER_MS,
                "cooldown_ms": self.scenario.cooldown_ps / PS_PER_MS,
                "small_bytes": fct.SMALL_BYTES,
                "large_bytes": fct.LARGE_BYTES,
            },
            "classes": classes,
            "iteration_time_ms": iteration,
            "max_link_utilisation": self._pair(lambda result: result.summary["links"]["max_utilisation"]),
            "drops": self._pair(lambda result: result.summary["links"]["drops"]),
            "colour": colour(iteration["change_percent"]),
            "cost": total_cost(result.summary for result in self.results.values()),
        }

    def _pair(self, of: Callable[[RunResult], float | None], *, grows: bool = False) -> dict[str, float | None]:
        """Return both bands' means and the change.

        The change is the thesis's (section 5.4): (same - low) / low for what shrinks, and (low - same) / same for the
        iteration time, which grows.
        """
        same, low = self._mean("same", of), self._mean("low", of)
        before, after = (low, same) if not grows else (same, low)
        change = None if not before or after is None else 100 * (after - before) / before
        saved = None if not same or low is None else 100 * (same - low) / same
        return {"same": same, "low": low, "change_percent": change, "saves_percent": saved}


def tenants(
    scenario: "Scenario | str | Path | dict[str, Any]",
    *,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> TenantsResult:
    """Run a job beside its neighbours, in their band and in a lower one, paired by seed.

    Args:
        scenario: has one job, neighbours and the packet engine.
        seeds: each draws the neighbours' flows anew; both bands see the same flows.
        jobs: runs under way at once; the result does not depend on it.
        progress: called now and then with the share that is done.
        keep: where finished runs are kept until the study is whole.
        limits: memory and time that the study may take.

    Raises:
        Interrupted: on Ctrl-C, with the study of the seeds that are finished.
        ScenarioError: if the scenario is wrong, or the study would take more than the limits.
        ValueError: if it does not have one job and neighbours, or no seed is given.
    """
    base = as_scenario(scenario)
    check(base, seeds)
    base = probed(base)
    cases = {f"seed{seed}-{band}": variant(base, seed, band) for seed in seeds for band in BANDS}
    try:
        results = run_all(list(cases.values()), jobs, progress, keep, limits)
    except Interrupted as stop:
        finished = {name: result for name, result in zip(cases, stop.results, strict=True) if result is not None}
        known = known_seeds(finished, seeds)
        if known:
            names = [f"seed{seed}-{band}" for seed in known for band in BANDS]
            stop.tell(TenantsResult(base, known, {name: finished[name] for name in names}))
        raise
    return TenantsResult(base, seeds, dict(zip(cases, results, strict=True)))


def known_seeds(finished: Iterable[str], seeds: Sequence[int]) -> list[int]:
    """Return the seeds of which both bands are among the names of `finished` runs."""
    names = set(finished)
    return [seed for seed in seeds if all(f"seed{seed}-{band}" in names for band in BANDS)]


def check(base: Scenario, seeds: Sequence[int]) -> None:
    """Refuse what this study is not about.

    Raises:
        ValueError: if the scenario does not have one job and neighbours, or no seed is given.
    """
    if not base.traffic:
        raise ValueError("the scenario has no [traffic.NAME]: there are no tenants to disturb")
    if len(base.jobs) != 1:
        raise ValueError(f"the scenario has {len(base.jobs)} jobs; this study moves one between two bands")
    if not seeds:
        raise ValueError("give at least one seed")


def probed(base: Scenario) -> Scenario:
    """Return the scenario with a probe, for the pictures of queues and links; its own if it has one."""
    if "probe" in base.to_dict()["run"] or base.duration_ps is None or base.engine != "packet":
        return base
    count = max(50, min(SAMPLES, SAMPLED_ROWS // (2 * base.fabric.cable_count)))
    least_ps = max(base.duration_ps // count, 1)
    unit_ps = 10 ** (len(str(least_ps)) - 1)
    every_ps = next(factor * unit_ps for factor in (1, 2, 5, 10) if factor * unit_ps >= least_ps)
    return base.set({"run.probe": {"every": f"{every_ps}ps"}})


def figures(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return what `--fail-if` can name: `iteration_change_percent`, `small_mean_saves_percent` and so on."""
    named = {"iteration_change_percent": summary["iteration_time_ms"]["change_percent"]}
    for size, classes in summary["classes"].items():
        for figure in FIGURES:
            named[f"{size}_{figure.removesuffix('_fct_ms')}_saves_percent"] = classes[figure]["saves_percent"]
    return named


def variant(base: Scenario, seed: int, band: str) -> Scenario:
    """Return the scenario of one seed with the job in its neighbours' band or in the low one.

    A job whose priority is a list, so that it travels in several bands, keeps it in place of the low one.
    """
    if band == "same":
        return base.replace(seed=seed, priority=int(base.traffic[0].band[0]))
    bands = base.jobs[0].bands
    return base.replace(seed=seed, priority=list(bands) if len(bands) > 1 else "low")


def colour(cost_percent: float | None) -> str:
    """Return the colour of a cell of fig. 5.19 for what de-prioritising costs the job."""
    if cost_percent is None:
        return "unknown"
    return "green" if cost_percent < FREE_PERCENT else "yellow" if cost_percent <= DEAR_PERCENT else "red"


def _flows(result: RunResult) -> dict[str, Any]:
    """Figures of the first neighbour."""
    figures: dict[str, Any] = next(iter(result.summary["traffic"].values()))
    return figures


def _figure_of(size: str, figure: str) -> Callable[[RunResult], float | None]:
    """Return what reads one figure of a class of the first neighbour's flows."""

    def read(result: RunResult) -> float | None:
        value: float | None = _flows(result)[size][figure]
        return value

    return read


def _rows(name: str, result: RunResult) -> list[dict[str, Any]]:
    seed, band = name.removeprefix("seed").split("-")
    return [
        {
            "run": name,
            "seed": int(seed),
            "band": band,
            "traffic": neighbour,
            "class": size,
            "started": figures["started"],
            "completed": figures["completed"],
            **{figure: figures[figure] for figure in FIGURES},
            "iteration_time_ms": result.job["iteration_time_ms"]["mean"],
        }
        for neighbour, classes in result.summary["traffic"].items()
        for size, figures in classes.items()
    ]


def _headline(classes: dict[str, Any], iteration: dict[str, float | None]) -> str:
    cost, gain = iteration["change_percent"], classes["small"]["mean_fct_ms"]["saves_percent"]
    if cost is None or gain is None:
        return "Too few flows or iterations completed to say what de-prioritising does."
    return verdict("De-prioritising this job", cost, gain)


def verdict(what: str, cost: float, gain: float, where: str = "here") -> str:
    """Say what something costs the job and saves small flows, in percent, and whether that is worth it."""
    costs = f"its iterations take {abs(cost):.1f} % {'more' if cost > 0 else 'less'}"
    if round(cost, 1) == 0:
        costs = "its iterations take as long"
    gains = f"small flows finish {gain:.1f} % sooner on average" if gain > 0 else "small flows gain nothing"
    match colour(cost):
        case "green":
            return f"{what} is free {where}: {gains} and {costs}."
        case "yellow":
            return f"{what} has a price {where}: {gains}, and {costs}."
    return f"{what} is too dear {where}: {costs}, though {gains}."
