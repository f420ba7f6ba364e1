"""The steps of `gradtide plan` and their intermediate state: choices, their times, and their gains over the baseline.

A choice (`studies.search`) is a communication schedule on a channel, i.e. with a collective and a pipelining depth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradtide.errors import Unfinished
from gradtide.intervals import mean_interval
from gradtide.measured import saving_errors
from gradtide.runtime import LEVELS, Runtime
from gradtide.scenario import Scenario
from gradtide.scenario.plan import Plan, PlannedBucket
from gradtide.studies.channels import Channel, fit, own_collective, tried
from gradtide.studies.network import altered
from gradtide.studies.plan.confirm import confirmed
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_all
from gradtide.studies.search import (
    DDP_CAP,
    DDP_FIRST_CAP,
    ITERATIONS,
    MODES,
    MOST_CHUNKS,
    Choice,
    Layers,
    Mode,
    Search,
    Space,
    explore,
    jitter_factors,
    most_of_grid,
)

TRIALS = 2
"""Number of runs with noise per choice to find the best choice of each level. Only the best one is run with all
seeds."""

NOISY_ITERATIONS = 10

Part = Callable[[float, float], Callable[[float], object] | None]
"""Function (start, end) that returns the progress callback of one part of a study, from share `start` to `end` (0 to
1)."""


@dataclass(frozen=True)
class Settings:
    """The parsed arguments of `plan`.

    `worth` is a share of the iteration time. `noise_is_assumed` is true if the scenario has no `compute.noise`.
    `schedule` is the requested order; `None` to search all orders.
    """

    runtime: Runtime
    runtime_is_known: bool
    level: str
    overhead_ps: int
    worth: float
    smallest_bytes: int
    seeds: int
    noise: float
    noise_is_assumed: bool
    schedule: str | None = None


@dataclass(frozen=True)
class Gain:
    """Gain of a choice, i.e. the share of the baseline's iteration time that it saves.

    A measurement of the gain would be between `low` and `high` with 95 % probability, according to the errors of
    earlier predictions; both are `None` for the baseline itself. `jitter` is the 95 % confidence interval of the mean
    gain over runs with noise that are paired by seed; `None` without noise.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    jitter: tuple[float, float] | None = None

    @classmethod
    def predicted(cls, mean: float, jitter: tuple[float, float] | None = None) -> "Gain":
        """Return a gain with the interval that follows from the errors of earlier predictions."""
        low, high = saving_errors().interval(1 - mean)
        return cls(mean, 1 - high, 1 - low, jitter)


@dataclass
class Found:
    """Intermediate state of a plan. A partial result can be derived from it as soon as `search` exists.

    Attributes:
        base: the scenario of the search.
        requested: the user's scenario, which may have another engine.
        baseline: name of the baseline to which gains are relative.
        noisy_s: iteration times in seconds of the runs with noise, which are paired by seed, by choice; `None` is the
            baseline.
        checked: runs with the user's engine, if the search used another one: baselines by name, and each level's best
            choice.
        why_not: reason why there are no runs with the user's engine; empty if there are runs, or if none are needed.
    """

    base: Scenario
    requested: Scenario
    settings: Settings
    layers: Layers
    baseline: str
    baselines: dict[str, tuple[Plan, RunResult]]
    channels: Sequence[Channel] = ()
    search: Search | None = None
    runs: dict[Choice, RunResult] = field(default_factory=dict)
    noisy_s: dict[Choice | None, list[float]] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)
    checked: dict[Choice | str, RunResult] = field(default_factory=dict)
    why_not: str = ""

    def run_of(self, one: Choice | str) -> RunResult | None:
        """Return the run of a choice or named baseline, with the user's engine if possible; `None` without a run."""
        run = self.baselines[one][1] if isinstance(one, str) else self.runs.get(one)
        return self.checked.get(one, run)

    @property
    def baseline_run(self) -> RunResult:
        """Run of the baseline to which gains are relative, with the user's engine if possible."""
        return self.checked.get(self.baseline, self.baselines[self.baseline][1])

    @property
    def baseline_ms(self) -> float:
        """Iteration time of the baseline, in milliseconds."""
        return mean_ms(self.baseline_run)

    @property
    def bound_ms(self) -> float | None:
        """Iteration time that no plan can beat, in milliseconds; `None` before the search."""
        return None if self.search is None else self.search.space.least_ps / 1e9

    def times_ps(self) -> dict[Choice, float]:
        """Return mean iteration times in ps by choice, from runs with noise, else from single runs, else scores."""
        if self.noisy_s:
            known = {choice: times[:TRIALS] for choice, times in self.noisy_s.items() if choice is not None}
            return {choice: 1e12 * sum(times) / len(times) for choice, times in known.items()}
        if self.runs:
            return {choice: 1e9 * mean_ms(run) for choice, run in self.runs.items()}
        return {} if self.search is None else dict(self.search.scores)

    def time_ms(self, choice: Choice) -> float:
        """Return the predicted iteration time of a choice in ms: that of its run, or its score if it was not run."""
        assert self.search is not None
        run = self.run_of(choice)
        return self.search.scores[choice] / 1e9 if run is None else mean_ms(run)

    def best(self, level: str) -> Choice | None:
        """Return the preferred choice of a level; `None` if the level has no choice with a time.

        Of all choices whose time exceeds the level's shortest time by at most `worth`, those with the scenario's own
        collective and depth are preferred, then shorter times, then fewer buckets.
        """
        times = {choice: time for choice, time in self.times_ps().items() if choice.mode.level == level}
        if not times:
            return None
        limit = min(times.values()) * (1 + self.settings.worth)
        own = self.channels[0]

        def plainness(choice: Choice) -> tuple[Any, ...]:
            channel = self.channels[choice.channel]
            differs = channel.collective != own.collective, channel.depth != own.depth
            return (*differs, times[choice], len(choice.cuts), choice.cuts, choice.chunk_bytes or 0)

        return min((choice for choice, time in times.items() if time <= limit), key=plainness)

    def gain(self, choice: Choice) -> Gain:
        """Return the gain of a choice, from runs with the user's engine, else paired runs with noise, else one run."""
        if self.is_baseline(choice):
            return Gain(0.0)
        if choice in self.checked:
            return Gain.predicted(1 - self.time_ms(choice) / self.baseline_ms)
        pairs = zip(self.noisy_s.get(choice, ()), self.noisy_s.get(None, ()), strict=False)
        gains = [1 - time / before for time, before in pairs]
        if not gains:
            return Gain.predicted(1 - self.time_ms(choice) / self.baseline_ms)
        return Gain.predicted(sum(gains) / len(gains), mean_interval(gains))

    def is_baseline(self, choice: Choice) -> bool:
        """Whether the plan of a choice is equal to the baseline's plan."""
        plan, _ = self.baselines[self.baseline]
        return replace(plan_of(self, choice), level=plan.level, predicted=plan.predicted) == plan


def mean_ms(run: RunResult) -> float:
    """Return the mean iteration time of a run, in milliseconds."""
    return float(run.job["iteration_time_ms"]["mean"])


# Plans and scenarios of choices


def ddp(base: Scenario, layers: Layers) -> Plan:
    """Return the plan with the default buckets of PyTorch's DistributedDataParallel, in FIFO order with a barrier."""
    buckets = _buckets(layers, layers.capped(DDP_CAP, DDP_FIRST_CAP), "fifo")
    return Plan("none", buckets, "fifo", True, depth=base.jobs[0].schedule.parts, collective=own_collective(base))


def keeps_layers(base: Scenario) -> bool:
    """Return whether each layer of the scenario's job is a bucket, as in a recorded step."""
    return base.jobs[0].schedule.fusion_bytes == 0


def _buckets(layers: Layers, cuts: Sequence[int], order: str) -> tuple[PlannedBucket, ...]:
    """Return the buckets between `cuts` in the order in which they become ready, from the model's output side."""
    rows, count = layers.job.layers, len(cuts) + 1
    buckets = []
    for index, (first, last) in enumerate(reversed(layers.spans(cuts))):
        names = [rows[layers.places[at]].name for at in range(last - 1, first - 1, -1)]
        size = layers.bytes_below[last] - layers.bytes_below[first]
        buckets.append(PlannedBucket(tuple(names), size, index if order == "fifo" else count - 1 - index))
    return tuple(buckets)


def plan_of(found: Found, choice: Choice) -> Plan:
    """Return the plan of a choice; its only predicted figure is the overhead per message."""
    assert found.search is not None
    channel = found.channels[choice.channel]
    buckets = _buckets(found.layers, choice.cuts, choice.mode.order)
    if choice.mode.order == "caramel":
        place = {number: (rank, release) for rank, (number, release) in enumerate(found.search.packed(choice))}
        numbers = reversed(range(len(buckets)))
        buckets = tuple(
            replace(one, rank=place[number][0], release=place[number][1])
            for one, number in zip(buckets, numbers, strict=True)
        )
    return Plan(
        choice.mode.level,
        buckets,
        choice.mode.order,
        choice.mode.barrier,
        choice.chunk_bytes,
        depth=channel.depth,
        collective=channel.collective,
        predicted={"overhead_us": found.search.space.extra_ps(choice) / 1e6},
    )


# Finding


def most_work(
    base: Scenario,
    requested: Scenario,
    plans: Sequence[Plan],
    settings: Settings,
    names: Sequence[str] | None,
    budget: int,
) -> list[tuple[Scenario, int]]:
    """Return an upper bound of the work of `plan`, as pairs of a scenario and a number of runs.

    The bound assumes that all channels are searched, and that all messages have the smallest size.

    Args:
        base: the scenario of the search.
        requested: the user's scenario.
        plans: the baselines.
        settings: the settings of the search.
        names: the argument `collectives` of `plan`.
        budget: number of runs of the local search in each mode.
    """
    job, modes = base.jobs[0], modes_of(settings.level, settings.schedule)
    pairs, _, exchanges = tried(base, names, settings.smallest_bytes, settings.runtime, is_deep=_is_deep(settings))
    chunk = max(1, settings.smallest_bytes, job.parameter_bytes // MOST_CHUNKS)
    small = {"order": "priority", "fusion": "0B", "chunk": f"{chunk}B", "buckets": None, "first_fusion": None}
    small |= dict.fromkeys(("cycle", "ranking", "order_file", "releases", "in_turn", "depth", "queues"))
    cut = base.replace(**small)
    one_channel = altered(
        cut, topology={"kind": "star"}, node=None, host=None, workers=2, engine="fluid", credit=1,
        iterations=ITERATIONS + 1, collective={"kind": "ring"}, noise=None, straggler=None,
    )  # fmt: skip
    scored = sum(budget + most_of_grid(mode, len(pairs)) for mode in modes)
    noisy = cut.replace(iterations=min(job.iterations or NOISY_ITERATIONS, NOISY_ITERATIONS), timeline=0)
    repeats = 0 if settings.noise == 0 and not base.drawn else TRIALS
    rest = (1 + len(LEVELS)) * settings.seeds if repeats else 0
    found = [*((plan.on(base), 1) for plan in plans), *((one, 1) for one in exchanges)]
    found.append((one_channel, scored * len(jitter_factors(settings.noise, job.workers))))
    for table, depth in pairs:
        with_channel = {f"job.{job.name}.collective": table, f"job.{job.name}.schedule.depth": depth}
        found += [(cut.set(with_channel), 2 * len(modes)), (noisy.set(with_channel), 2 * len(modes) * repeats + rest)]
    if requested.engine != base.engine:
        found += [(plan.on(requested), 1 + len(LEVELS)) for plan in plans]
    return [(scenario, times) for scenario, times in found if times]


def _is_deep(settings: Settings) -> bool:
    return settings.level != "buckets" and (settings.runtime.any_collective or settings.schedule == "caramel")


def fill(
    found: Found,
    names: Sequence[str] | None,
    budget: int,
    part: Part,
    how: Mapping[str, Any],
) -> None:
    """Fit the channels, search, run the best choices on the scenario's network, and run them again with noise.

    `names` are the `collectives` of `plan`; `how` contains the arguments `jobs`, `keep` and `limits` of `run_all`.
    """
    base, settings = found.base, found.settings
    modes = modes_of(settings.level, settings.schedule)
    found.channels = fit(
        base,
        names,
        settings.smallest_bytes,
        settings.runtime,
        how["jobs"],
        part(0.05, 0.2),
        how["limits"],
        is_deep=_is_deep(settings),
    )
    steps = jitter_factors(settings.noise, base.jobs[0].workers)
    plain = found.baselines["ddp"][0].on(base)
    space = Space(found.layers, found.channels, modes, settings.overhead_ps, settings.smallest_bytes, plain, steps)
    found.search = Search(space)
    explore(found.search, budget, part(0.2, 0.5))
    finalists = {choice: plan_of(found, choice).on(base) for choice in _finalists(found.search)}
    try:
        results = run_all(list(finalists.values()), progress=part(0.5, 0.7), **how)
    except Unfinished as stop:
        found.runs = {one: run for one, run in zip(finalists, stop.results, strict=True) if run is not None}
        raise
    found.runs = dict(zip(finalists, results, strict=True))
    found.costs += [result.summary["cost"] for result in results]
    if settings.noise == 0 and not base.drawn:
        return
    scenarios: dict[Choice | None, Scenario] = {None: found.baselines[found.baseline][0].on(base)}
    scenarios.update(finalists.items())
    trials = range(min(TRIALS, settings.seeds))
    run_noisy(found, scenarios, trials, part(0.7, 0.85), how)
    best = [found.best(level) for level in LEVELS]
    compared = {choice: scenarios[choice] for choice in (None, *best)}
    run_noisy(found, compared, range(len(trials), settings.seeds), part(0.85, 0.95), how)


def check(found: Found, how: Mapping[str, Any]) -> None:
    """Run the baselines and the best choice of each level with the user's engine, if the search used another engine."""
    if found.requested.engine == found.base.engine:
        return
    best = [choice for level in LEVELS if (choice := found.best(level)) is not None]
    plans: dict[Choice | str, Plan] = {name: plan for name, (plan, _) in found.baselines.items()}
    plans |= {choice: plan_of(found, choice) for choice in best}
    found.checked, found.why_not = confirmed({one: plan.on(found.requested) for one, plan in plans.items()}, how)
    found.costs += [run.summary["cost"] for run in found.checked.values()]


def modes_of(level: str, schedule: str | None) -> list[Mode]:
    """Return the modes up to a level. Caramel's order was never measured, and is included only on request."""
    orders = {mode.order for mode in MODES} - {"caramel"} if schedule is None else {schedule}
    return [mode for mode in MODES if mode.order in orders and LEVELS.index(mode.level) <= LEVELS.index(level)]


def run_noisy(
    found: Found,
    scenarios: Mapping[Choice | None, Scenario],
    seeds: Sequence[int],
    progress: Callable[[float], object] | None,
    how: Mapping[str, Any],
) -> None:
    """Run every scenario with noise and the same seeds, so that runs can be paired; the key `None` is the baseline."""
    requested = [
        (choice, _noisy(found, one, found.base.seed + seed)) for choice, one in scenarios.items() for seed in seeds
    ]
    results = run_all([one for _, one in requested], progress=progress, **how)
    found.costs += [result.summary["cost"] for result in results]
    for (choice, _), result in zip(requested, results, strict=True):
        found.noisy_s.setdefault(choice, []).append(result.iteration_time)


def _noisy(found: Found, scenario: Scenario, seed: int) -> Scenario:
    count = scenario.jobs[0].iterations
    changes: dict[str, Any] = {"noise": found.settings.noise} if found.settings.noise_is_assumed else {}
    if count is not None and count > NOISY_ITERATIONS:
        changes["iterations"] = NOISY_ITERATIONS
    return scenario.replace(seed=seed, timeline=0, **changes)


def _finalists(search: Search) -> list[Choice]:
    """Return, for each mode, the best choice on each channel and the best one with a different number of buckets."""
    found: list[Choice] = []
    for mode in search.space.modes:
        ranked = sorted((choice for choice in search.scores if choice.mode == mode), key=search.key)
        for channel in range(len(search.space.channels)):
            found += [choice for choice in ranked if choice.channel == channel][:1]
        found += [choice for choice in ranked if len(choice.cuts) != len(ranked[0].cuts)][:1]
    return list(dict.fromkeys(found))
