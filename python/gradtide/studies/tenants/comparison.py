"""Runs of two sides, paired by seed: what the jobs pay, and what the background flows save."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gradtide import fct
from gradtide.results import Flow, RunResult
from gradtide.scenario import Scenario
from gradtide.studies.tenants.cases import LOW, NO_JOB, SAME, Case, Cell
from gradtide.studies.tenants.verdict import Effect

Pair = dict[str, Any]
"""A figure in both bands; `Comparison.pair` says what its keys hold."""

FIGURES = (*fct.TIMES, *fct.SLOWDOWNS)


@dataclass(frozen=True)
class Comparison:
    """Jobs in the band of the background flows against the same flows beside the jobs otherwise.

    Attributes:
        scenario: of the study.
        seeds: of which both sides are known.
        results: every run by its case.
        moved: names of the jobs that change.
        other: the side that is compared with `SAME`: the low band, or a policy.
        cell: of a map, or None.
        classes: which flows are small and which are large.
        alone_ps: by seed, how long flows take alone; empty where that was not asked.
    """

    scenario: Scenario
    seeds: tuple[int, ...]
    results: Mapping[Case, RunResult]
    moved: tuple[str, ...]
    other: str = LOW
    cell: Cell | None = None
    classes: fct.Classes = fct.DEFAULT
    alone_ps: Mapping[int, Mapping[Flow, int]] = field(default_factory=dict)

    def run(self, seed: int, side: str) -> RunResult | None:
        """Return the run of a side, if the study has it."""
        return self.results.get(Case(seed, side, self.cell))

    @cached_property
    def flow_classes(self) -> dict[tuple[int, str], dict[str, dict[str, dict[str, Any]]]]:
        """Figures of every run's flows, by seed and side, then by tenant and class."""
        found = {}
        for seed in self.seeds:
            for side in (SAME, self.other, NO_JOB):
                result = self.run(seed, side)
                if result is not None:
                    found[seed, side] = result.flow_classes(self.classes, self.alone_ps.get(seed))
        return found

    @cached_property
    def is_repeated(self) -> bool:
        """Whether all seeds gave the same run, so that their number says nothing."""
        if len(self.seeds) < 2:
            return False

        def told(seed: int, side: str) -> Any:
            result = self.run(seed, side)
            return None if result is None else (result.summary["traffic"], result.summary["jobs"])

        first, *others = ([told(seed, side) for side in (SAME, self.other)] for seed in self.seeds)
        return all(other == first for other in others)

    def means(self, of: Callable[[int, str], float | None]) -> dict[str, float | None]:
        """Return the mean over the seeds of every side; None where a seed has no such figure."""

        def mean(side: str) -> float | None:
            values = [of(seed, side) for seed in self.seeds]
            return (
                None if any(value is None for value in values) else float(np.mean([v for v in values if v is not None]))
            )

        return {"no_job": mean(NO_JOB), "same": mean(SAME), "low": mean(self.other)}

    def saved_percent(self, of: Callable[[int, str], float | None]) -> list[float] | None:
        """Return what each seed saves, in percent of the mean of the same band; None where that is not known."""
        same = self.means(of)["same"]
        pairs = [(of(seed, SAME), of(seed, self.other)) for seed in self.seeds]
        if not same or any(low is None for _, low in pairs):
            return None
        return [100 * (a - b) / same for a, b in pairs if a is not None and b is not None]

    def pair(self, of: Callable[[int, str], float | None], *, grows: bool = False) -> Pair:
        """Return a figure of both sides and its change.

        Returns:
            `no_job`, `same` and `low`: means over the seeds, without jobs, in the band of the flows and otherwise.
            `change_percent`: the thesis's (section 5.4): (same - low) / low for what shrinks, and (low - same) / same
            for the iteration time, which grows. `saves_percent`: (same - low) / same, and `saves_interval_percent`, the
            ends of its 95 % interval: Student's t on what each seed saves.
        """
        means = self.means(of)
        same, low = means["same"], means["low"]
        before, after = (low, same) if not grows else (same, low)
        change = None if not before or after is None else 100 * (after - before) / before
        saved = None if not same or low is None else 100 * (same - low) / same
        ends = Effect.of(self.saved_percent(of), repeated=self.is_repeated).ends
        interval = None if ends is None else list(ends)
        return {**means, "change_percent": change, "saves_percent": saved, "saves_interval_percent": interval}

    def flows(self, size: str, figure: str) -> Callable[[int, str], float | None]:
        """Return what reads one figure of a class of the first tenant's flows."""
        tenant = self.scenario.traffic[0].name

        def read(seed: int, side: str) -> float | None:
            figures = self.flow_classes.get((seed, side))
            value: float | None = None if figures is None else figures[tenant][size].get(figure)
            return value

        return read

    def iteration_ms(self, job: str) -> Callable[[int, str], float | None]:
        """Return what reads the mean iteration time of a job."""

        def read(seed: int, side: str) -> float | None:
            result = self.run(seed, side)
            known = None if result is None else result.summary["jobs"].get(job)
            return None if known is None else float(known["iteration_time_ms"]["mean"])

        return read

    def links(self, figure: str) -> Callable[[int, str], float | None]:
        """Return what reads a figure of the links of a run."""

        def read(seed: int, side: str) -> float | None:
            result = self.run(seed, side)
            value: float | None = None if result is None else result.summary["links"][figure]
            return value

        return read

    @cached_property
    def classes_summary(self) -> dict[str, dict[str, Any]]:
        """For each class of flows: how many completed, and a pair for each figure."""
        return {
            size: {
                "flows": self.means(self.flows(size, "completed"))["same"],
                **{figure: self.pair(self.flows(size, figure)) for figure in FIGURES},
            }
            for size in fct.CLASSES
        }

    @cached_property
    def jobs_summary(self) -> dict[str, dict[str, Any]]:
        """For each job: its model, whether it moves, iterations that count in the run with fewest, and their time."""

        def measured(job: str) -> int:
            runs = [self.run(seed, side) for seed in self.seeds for side in (SAME, self.other)]
            return min((run.iterations["job"].tolist().count(job) for run in runs if run is not None), default=0)

        return {
            job.name: {
                "model": job.model,
                "moved": job.name in self.moved,
                "measured_iterations": measured(job.name),
                "iteration_time_ms": self.pair(self.iteration_ms(job.name), grows=True),
            }
            for job in self.scenario.jobs
        }

    @cached_property
    def payer(self) -> str:
        """The moved job that pays most."""

        def cost(job: str) -> float:
            change: float | None = self.jobs_summary[job]["iteration_time_ms"]["change_percent"]
            return -np.inf if change is None else change

        return max(self.moved, key=cost)

    @property
    def iteration_time_ms(self) -> Pair:
        """Iteration time of the job that pays most."""
        pair: Pair = self.jobs_summary[self.payer]["iteration_time_ms"]
        return pair

    @property
    def costs_percent(self) -> list[float] | None:
        """By how much the iterations of the job that pays most grow, seed by seed."""
        saved = self.saved_percent(self.iteration_ms(self.payer))
        return None if saved is None else [-value for value in saved]

    @property
    def gains_percent(self) -> list[float] | None:
        """What small flows save of their mean completion time, seed by seed."""
        return self.saved_percent(self.flows("small", "mean_fct_ms"))

    @property
    def cost(self) -> Effect:
        """What the job that pays most pays."""
        return Effect.of(self.costs_percent, repeated=self.is_repeated)

    @property
    def gain(self) -> Effect:
        """What small flows save."""
        return Effect.of(self.gains_percent, repeated=self.is_repeated)

    @property
    def whose(self) -> str:
        """Whose iterations the cost is of, in words."""
        is_one = self.jobs_summary[self.payer]["measured_iterations"] == 1
        of = "its" if len(self.moved) == 1 else f"those of {self.payer}, which pays most,"
        if len(self.moved) == 1:
            return f"{of} only measured iteration" if is_one else f"{of} iterations"
        return f"the only measured iteration of {self.payer}, which pays most," if is_one else of


def averaged(parts: Sequence[list[float] | None]) -> list[float] | None:
    """Return the average over cells, seed by seed; cells where too little completed are left out."""
    known = [part for part in parts if part is not None]
    return [sum(values) / len(known) for values in zip(*known, strict=True)] if known else None
