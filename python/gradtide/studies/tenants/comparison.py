"""Compares two sides of a tenant study, paired by seed: cost to the jobs, gain of the background flows, and verdict.

All sides of a seed have the same background flows (`cases`). The sides are: jobs in the flows' band (`SAME`), jobs in a
lower band or under a policy, and no jobs. A cost is an increase of iteration time, a gain is a reduction of the mean
completion time of small flows; both are relative to `SAME`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gradtide import fct
from gradtide.intervals import mean_interval
from gradtide.scenario import Scenario
from gradtide.studies.result import Flow, RunResult
from gradtide.studies.tenants.cases import LOW, NO_JOB, SAME, Case, Cell

Pair = dict[str, Any]
"""Means of a figure on all sides, and their changes; `Comparison.pair` documents the keys."""

Reader = Callable[[int, str], float | None]
"""Function that returns a figure of the run with a seed and a side; `None` if the run or the figure is missing."""

FIGURES = (*fct.TIMES, *fct.SLOWDOWNS)

# Colours in fig. 5.19 of Gao (2020): green if the cost to the job is below 1 %, yellow up to 30 %, red above.
FREE_PERCENT, DEAR_PERCENT = 1.0, 30.0


@dataclass(frozen=True)
class Effect:
    """A change in percent: its mean over the seeds (`percent`), and the ends of the mean's 95 % confidence interval.

    `percent` is `None` if the change is unknown for a seed. `ends` is `None` with one seed.
    """

    percent: float | None
    ends: tuple[float, float] | None = None

    @classmethod
    def of(cls, changes: Sequence[float] | None, *, repeated: bool = False) -> "Effect":
        """Return the effect of `changes`, one per seed; no interval if all seeds gave equal runs (`repeated`)."""
        if not changes:
            return cls(None)
        return cls(sum(changes) / len(changes), None if repeated else mean_interval(changes))

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the ends of the interval as columns of a table; `name` is the beginning of the columns' names."""
        low, high = self.ends or (None, None)
        return {f"{name}_from_percent": low, f"{name}_to_percent": high}

    @property
    def colour(self) -> str:
        """Colour of the effect as a cost (see the function `colour`); "unclear" if its interval spans several."""
        found = {colour(end) for end in self.ends or (self.percent,)}
        return found.pop() if len(found) == 1 else "unclear"

    @property
    def is_free(self) -> bool | None:
        """Whether the effect, as a cost, is below `FREE_PERCENT`; `None` if unknown, or if its interval contains it."""
        if self.percent is None:
            return None
        found = {end < FREE_PERCENT for end in self.ends or (self.percent,)}
        return found.pop() if len(found) == 1 else None

    @property
    def sign(self) -> int:
        """Sign of the effect, 1 or -1; 0 if the effect is unknown or zero, or its interval contains zero."""
        if self.percent is None:
            return 0
        low, high = self.ends or (round(self.percent, 1),) * 2
        return 1 if low > 0 else -1 if high < 0 else 0

    def sentence(self, more: str, less: str, none: str) -> str:
        """Return text such as `3.1 % longer (95 % interval: 2.0 to 4.2 %)`; the arguments are words for each sign."""
        value = self.percent or 0.0
        text = none if round(value, 1) == 0 else f"{abs(value):.1f} % {more if value > 0 else less}"
        if self.ends is None:
            return text
        low, high = (round(end, 1) for end in self.ends)
        if low < 0 < high:
            return f"{text} (95 % interval: {-low:.1f} % {less} to {high:.1f} % {more})"
        near, far = sorted((abs(low), abs(high)))
        word = "" if round(value, 1) else f" {more if high > 0 else less}"
        return f"{text} (95 % interval: {near:.1f} to {far:.1f} %{word})"


def colour(cost_percent: float | None) -> str:
    """Return the colour that fig. 5.19 of Gao (2020) gives to a job's cost; "unknown" for an unknown cost."""
    if cost_percent is None:
        return "unknown"
    return "green" if cost_percent < FREE_PERCENT else "yellow" if cost_percent <= DEAR_PERCENT else "red"


LEADS = {
    "free": "{what} is free {where}",
    "harmful": "{what} costs the job nothing {where}, but small flows finish later",
    "no cost": "{what} costs the job nothing {where}, and with {seeds} seeds it is unclear what small flows gain",
    "costs": "{what} has a price {where}",
    "costs, unclear": "{what} has a price {where}, and with {seeds} seeds it is unclear whether it is too expensive",
    "too expensive": "{what} is too expensive {where}",
    "unclear": "Unclear with {seeds} seeds whether {what} is free {where}",
}
"""Verdicts of studies with several seeds, each with the beginning of its sentence."""


def verdict(cost: Effect, gain: Effect) -> str:
    """Return the verdict on the cost to the job and the gain of small flows.

    The verdict is a key of `LEADS`; "one run" if there are no intervals; or "unknown" if a change is unknown.
    """
    if cost.percent is None or gain.percent is None:
        return "unknown"
    if cost.ends is None or gain.ends is None:
        return "one run"
    if cost.is_free:
        return {1: "free", 0: "no cost", -1: "harmful"}[gain.sign]
    if cost.is_free is None:
        return "unclear"
    return {"yellow": "costs", "red": "too expensive", "unclear": "costs, unclear"}[cost.colour]


def sentence(
    what: str, cost: Effect, gain: Effect, seeds: Sequence[int], *, whose: str = "its iterations", where: str = "here"
) -> str:
    """Return the sentence with the verdict, the cost and the gain, and their intervals.

    `what` is the change to the jobs in words, as in `de-prioritising this job`. `whose` describes the iterations of
    which `cost` is the increase. `where` is "here" or "on average over the cells".
    """
    found = verdict(cost, gain)
    if found == "unknown":
        return f"Too few flows or iterations completed to judge {what}."
    takes = "takes" if whose.endswith("iteration") else "take"
    job = f"{whose} {takes} {cost.sentence('longer', 'less time', 'as long')}"
    flows = f"small flows finish {gain.sentence('sooner', 'later', 'at the same time')} on average"
    if found == "one run":
        count = f"One run (seed {seeds[0]})" if len(seeds) == 1 else f"{len(seeds)} seeds that gave the same run"
        return f"{count}, {what}: {job}, and {flows}."
    lead = LEADS[found].format(what=what, where=where, seeds=len(seeds))
    return f"{lead[:1].upper()}{lead[1:]}: over {len(seeds)} seeds {job}, and {flows}."


def hinted(text: str, scenario: Scenario, seeds: Sequence[int]) -> str:
    """Return the text; with one seed, append why there is no interval, and how to obtain one."""
    if len(seeds) > 1:
        return text
    if scenario.drawn:
        return f"{text} One run has no interval: add --seeds 5."
    return f"{text} Nothing in this scenario is random, so every seed gives this run."


@dataclass(frozen=True)
class Comparison:
    """Comparison of the side `SAME` (jobs in the band of the background flows) with another side.

    Attributes:
        scenario: the scenario of the study.
        seeds: the compared seeds.
        results: runs of the study by case.
        moved: names of the jobs whose band differs between the sides.
        other: the side that is compared with `SAME`: `LOW`, or the name of a policy.
        cell: the cell of a map to which the runs belong; `None` if the study is not a map.
        classes: sizes that limit small and large flows.
        alone_ps: by seed, the completion time of each flow on an idle network, in ps (`studies.alone`); may be empty.
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
        """Return the run of a seed and a side; `None` if it has not finished."""
        return self.results.get(Case(seed, side, self.cell))

    @cached_property
    def between_ps(self) -> tuple[int, int | None]:
        """Interval, in ps, in which the jobs run on both sides; its end is `None` if the jobs finish in no run.

        Only flows that start in this interval are counted, on all sides, because jobs do not affect the others.
        """
        runs = [self.run(seed, side) for seed in self.seeds for side in (SAME, self.other)]
        ran = [run.jobs_ran_ps for run in runs if run is not None]
        ends = [until for _, until in ran if until is not None]
        return max((since for since, _ in ran), default=0), min(ends, default=None)

    @cached_property
    def flow_classes(self) -> dict[tuple[int, str], dict[str, dict[str, dict[str, Any]]]]:
        """Figures of the background flows by (seed, side), then by tenant, size class and name of the figure."""
        runs = {(seed, side): self.run(seed, side) for seed in self.seeds for side in (SAME, self.other, NO_JOB)}
        return {
            (seed, side): run.flow_classes(self.classes, self.alone_ps.get(seed), between_ps=self.between_ps)
            for (seed, side), run in runs.items()
            if run is not None
        }

    @cached_property
    def is_repeated(self) -> bool:
        """Whether all seeds gave equal runs, so that intervals over the seeds would be meaningless."""
        if len(self.seeds) < 2:
            return False

        def figures(seed: int) -> Any:
            runs = [self.run(seed, side) for side in (SAME, self.other)]
            return [None if run is None else (run.summary["traffic"], run.summary["jobs"]) for run in runs]

        return all(figures(seed) == figures(self.seeds[0]) for seed in self.seeds)

    def means(self, of: Reader) -> dict[str, float | None]:
        """Return the mean of a figure over the seeds for each side; `None` if the figure of a seed is missing."""

        def mean(side: str) -> float | None:
            values = [value for seed in self.seeds if (value := of(seed, side)) is not None]
            return float(np.mean(values)) if len(values) == len(self.seeds) else None

        return {"no_job": mean(NO_JOB), "same": mean(SAME), "low": mean(self.other)}

    def saved_percent(self, of: Reader) -> list[float] | None:
        """Return by seed a figure's reduction from `SAME` to `other`, in percent of the mean of `SAME`, or `None`."""
        same = self.means(of)["same"]
        pairs = [(of(seed, SAME), of(seed, self.other)) for seed in self.seeds]
        if not same or any(low is None for _, low in pairs):
            return None
        return [100 * (a - b) / same for a, b in pairs if a is not None and b is not None]

    def added_percent(self, of: Reader) -> list[float] | None:
        """Return by seed a figure's increase from no jobs to `SAME`, in percent of the mean without jobs, or `None`."""
        without = self.means(of)["no_job"]
        pairs = [(of(seed, NO_JOB), of(seed, SAME)) for seed in self.seeds]
        if not without or any(same is None for _, same in pairs):
            return None
        return [100 * (b - a) / without for a, b in pairs if a is not None and b is not None]

    def pair(self, of: Reader, *, grows: bool = False) -> Pair:
        """Return the means of a figure over the seeds on all sides, and the changes between them.

        Returns:
            A dict with these keys; changes are in percent:

            - `no_job`: mean without jobs.
            - `same`: mean with the jobs in the flows' band.
            - `low`: mean on the other side, i.e. with the jobs in a lower band or under a policy.
            - `change_percent`: (same - low) / low; with `grows`, (low - same) / same. `grows` is for iteration times,
              which increase in a lower band (Gao 2020, section 5.4).
            - `saves_percent`: (same - low) / same.
            - `saves_interval_percent`: 95 % interval of `saves_percent`, from Student's t over the seeds.
            - `job_adds_percent`: (same - no_job) / no_job.
            - `job_adds_interval_percent`: 95 % interval of `job_adds_percent`.
        """
        means = self.means(of)
        same, low = means["same"], means["low"]
        before, after = (same, low) if grows else (low, same)
        change = None if not before or after is None else 100 * (after - before) / before
        saved = None if not same or low is None else 100 * (same - low) / same
        ends = Effect.of(self.saved_percent(of), repeated=self.is_repeated).ends
        added = Effect.of(self.added_percent(of), repeated=self.is_repeated)
        return {
            **means,
            "change_percent": change,
            "saves_percent": saved,
            "saves_interval_percent": ends and list(ends),
            "job_adds_percent": added.percent,
            "job_adds_interval_percent": added.ends and list(added.ends),
        }

    def flows(self, size: str, figure: str) -> Reader:
        """Return a function that reads a figure of the first tenant's flows of a size class, such as "small"."""
        tenant = self.scenario.traffic[0].name
        return lambda seed, side: _inside(self.flow_classes.get((seed, side)), tenant, size, figure)

    def iteration_ms(self, job: str) -> Reader:
        """Return a function that reads a job's mean iteration time, in milliseconds."""
        return lambda seed, side: self._of_run(seed, side, "jobs", job, "iteration_time_ms", "mean")

    def links(self, figure: str) -> Reader:
        """Return a function that reads a figure in the key `links` of a run's summary."""
        return lambda seed, side: self._of_run(seed, side, "links", figure)

    def _of_run(self, seed: int, side: str, *keys: str) -> float | None:
        run = self.run(seed, side)
        return None if run is None else _inside(run.summary, *keys)

    @cached_property
    def classes_summary(self) -> dict[str, dict[str, Any]]:
        """By size class of flows: `pair` of each figure, and the mean number of flows completed on the side `SAME`."""
        return {
            size: {
                "flows": self.means(self.flows(size, "completed"))["same"],
                **{figure: self.pair(self.flows(size, figure)) for figure in FIGURES},
            }
            for size in fct.CLASSES
        }

    @cached_property
    def jobs_summary(self) -> dict[str, dict[str, Any]]:
        """By job: model, whether its band changes, iteration time, and the fewest measured iterations of a run."""

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
        """Name of the job with the highest cost among the jobs whose band changes; an unknown cost is the highest."""

        def cost(job: str) -> float:
            change: float | None = self.jobs_summary[job]["iteration_time_ms"]["change_percent"]
            return np.inf if change is None else change

        return max(self.moved, key=cost)

    @property
    def iteration_time_ms(self) -> Pair:
        """Iteration time of the job with the highest cost, in milliseconds."""
        pair: Pair = self.jobs_summary[self.payer]["iteration_time_ms"]
        return pair

    @property
    def costs_percent(self) -> list[float] | None:
        """Increase of the iteration time of the job with the highest cost, for each seed."""
        saved = self.saved_percent(self.iteration_ms(self.payer))
        return None if saved is None else [-value for value in saved]

    @property
    def gains_percent(self) -> list[float] | None:
        """Reduction of the mean completion time of small flows, for each seed."""
        return self.saved_percent(self.flows("small", "mean_fct_ms"))

    @property
    def cost(self) -> Effect:
        """Increase of the iteration time of the job with the highest cost: mean over the seeds, and interval."""
        return Effect.of(self.costs_percent, repeated=self.is_repeated)

    @property
    def gain(self) -> Effect:
        """Reduction of the mean completion time of small flows: mean over the seeds, and interval."""
        return Effect.of(self.gains_percent, repeated=self.is_repeated)

    @property
    def added(self) -> Effect:
        """Increase of the mean completion time of small flows if jobs run in their band, compared with no jobs."""
        return Effect.of(self.added_percent(self.flows("small", "mean_fct_ms")), repeated=self.is_repeated)

    @property
    def whose(self) -> str:
        """Words for the iterations of the job with the highest cost, such as `its iterations`."""
        is_one = self.jobs_summary[self.payer]["measured_iterations"] == 1
        if len(self.moved) == 1:
            return "its only measured iteration" if is_one else "its iterations"
        of = f"of {self.payer}, which pays most,"
        return f"the only measured iteration {of}" if is_one else f"those {of}"


def _inside(table: Mapping[str, Any] | None, *keys: str) -> float | None:
    """Return the number at a path of nested keys; `None` if a key is missing."""
    found: Any = table
    for key in keys:
        found = None if found is None else found.get(key)
    return None if found is None else float(found)


def averaged(parts: Sequence[list[float] | None]) -> list[float] | None:
    """Return each seed's average over cells; `parts` has the seeds' values for each cell, or `None` if unknown."""
    known = [part for part in parts if part]
    return [sum(values) / len(known) for values in zip(*known, strict=True)] if len(known) == len(parts) else None
