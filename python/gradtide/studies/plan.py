"""`gradtide plan`: how should this job send its gradients, what does that gain, and is it worth the trouble?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradtide import _core, report, units, words
from gradtide.errors import Interrupted, ScenarioError
from gradtide.estimate import Limits
from gradtide.results import RunResult, StudyRows, Table, numbers
from gradtide.scenario import Scenario
from gradtide.scenario.plan import LEVELS, Plan, PlannedBucket, read_plan
from gradtide.studies.channels import Channel, fit, own_collective
from gradtide.studies.exchange import check_one_job, parse_size
from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import part_of, run_all, total_cost, write_runs, write_summary
from gradtide.studies.search import (
    DDP_CAP,
    DDP_FIRST_CAP,
    MIB,
    MODES,
    Choice,
    Layers,
    Search,
    Space,
    explore,
    paces,
)
from gradtide.studies.trained import trained

OVERHEAD = "1ms"
"""What a message costs a scheduler in Python: 0.8 to 1.1 ms were measured, with gloo on two loaded cores."""

SMALLEST = "1MiB"
"""No message is smaller: below, what a message costs, of which the model knows the network's part only, decides."""

WORTH_PERCENT = 1.0
NOISE = 0.03
"""Coefficient of variation of a worker's compute time, where the scenario has none."""

SEEDS = 8
TRIALS = 2
"""Seeds by which the best of a level is chosen, before it is run with all."""

NOISY_ITERATIONS = 10
BUDGET = 500
"""Runs of local search, in each mode."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a plan was asked for with.

    Attributes:
        level: the most that the runtime may be asked to do.
        overhead_ps: what a message costs a scheduler.
        worth: share of an iteration that a plan has to save.
        smallest_bytes: of a message.
        seeds: paired runs of the interval.
        noise: coefficient of variation of a worker's compute time in them.
        noise_is_assumed: whether the scenario says nothing of it.
    """

    level: str
    overhead_ps: int
    worth: float
    smallest_bytes: int
    seeds: int
    noise: float
    noise_is_assumed: bool


@dataclass
class _Found:
    """What is known so far; a result can be made of it from the first run on."""

    base: Scenario
    settings: Settings
    layers: Layers
    baseline: str
    baselines: dict[str, tuple[Plan, RunResult]]
    channels: Sequence[Channel] = ()
    search: Search | None = None
    runs: dict[Choice, RunResult] = field(default_factory=dict)
    noisy_s: dict[Choice | None, list[float]] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)

    def times_ps(self) -> dict[Choice, float]:
        """Return iteration times: with noise on the scenario's network, else without, else as scored."""
        if self.noisy_s:
            known = {choice: times[:TRIALS] for choice, times in self.noisy_s.items() if choice is not None}
            return {choice: 1e12 * sum(times) / len(times) for choice, times in known.items()}
        if self.runs:
            return {choice: 1e9 * _mean_ms(run) for choice, run in self.runs.items()}
        return {} if self.search is None else dict(self.search.scores)

    def time_ms(self, choice: Choice) -> float:
        """Return the iteration time of a choice as it is predicted: by a run of the scenario, else as scored."""
        assert self.search is not None
        run = self.runs.get(choice)
        return self.search.scores[choice] / 1e9 if run is None else _mean_ms(run)

    def best(self, level: str) -> Choice | None:
        """Return the plainest choice of a level that is as good as its best, but for what is not worth anything."""
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

    def gain(self, choice: Choice) -> tuple[float, float | None, float | None]:
        """Return mean and ends of the 95 % interval of what a choice saves, as shares; no ends where no seeds are."""
        pairs = zip(self.noisy_s.get(choice, ()), self.noisy_s.get(None, ()), strict=False)
        gains = [1 - time / before for time, before in pairs]
        if not gains:
            return 1 - self.time_ms(choice) / _mean_ms(self.baselines[self.baseline][1]), None, None
        mean = sum(gains) / len(gains)
        if len(gains) < 2:
            return mean, None, None
        spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1))
        t = _T[len(gains) - 2] if len(gains) - 2 < len(_T) else 1.96
        half = t * spread / math.sqrt(len(gains))
        return mean, mean - half, mean + half


def _mean_ms(run: RunResult) -> float:
    """Return the mean iteration time as a run's summary has it."""
    return float(run.job["iteration_time_ms"]["mean"])


class PlanResult(StudyRows):
    """A plan, and what it was chosen from.

    Attributes:
        plan: what plan.json holds.
        scenario: the scenario with its gradients sent as planned.
        baseline: the run that it is compared with.
        run: the run of the plan; `None` if the search was interrupted before.
        rows: one dict for the baseline and for the best of each level.
        candidates: one dict per choice that was scored; the columns of `scored.csv`.
        summary: what `--json` prints.
    """

    def __init__(self, found: _Found) -> None:
        base_plan, self.baseline = found.baselines[found.baseline]
        best: dict[str, Choice] = {}
        for level in LEVELS:
            one = found.best(level)
            if one is not None:
                best[level] = one
        bound_ms = None if found.search is None else found.search.space.least_ps / 1e9
        names = sorted(found.baselines, key=lambda name: name != found.baseline)
        self.rows = [_baseline_row(found, name, bound_ms) for name in names]
        self.rows += [_row(found, choice, bound_ms) for choice in best.values()]
        chosen = _chosen(found, self.rows)
        row = next(row for row in self.rows if row["name"] == (found.baseline if chosen == "none" else chosen))
        row["chosen"] = True
        choice = best.get(chosen)
        self.run = self.baseline if choice is None else found.runs.get(choice)
        self.candidates = _candidates(found)
        advice = _advice(found, chosen, best, self.rows)
        shown = base_plan if choice is None else _plan_of(found, choice)
        self.plan = Plan(
            level=chosen,
            buckets=shown.buckets,
            order=shown.order,
            barrier=shown.barrier,
            chunk_bytes=shown.chunk_bytes,
            depth=shown.depth,
            collective=shown.collective,
            model=found.layers.job.model,
            workers=found.layers.job.workers,
            scenario_sha256=found.base.sha256,
            version=_core.__version__,
            predicted=_predicted(found, row, bound_ms),
            advice=tuple(advice),
        )
        self.scenario = self.plan.on(found.base)
        self.summary = self._summary(found, bound_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plan.json holds it."""
        return self.plan.to_dict()

    def save(self, path: str | Path) -> Path:
        """Write the plan alone if `path` ends with .json, else a folder with the plan and its report.

        Raises:
            FolderError: if `path` holds what is not ours, or cannot be written; nothing is left behind then.
        """
        path = Path(path)
        if path.suffix != ".json":
            return super().save(path)
        check_target(path)
        try:
            return self.plan.save(path)
        except OSError as error:
            raise FolderError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`."""
        self.plan.save(folder / "plan.json")
        runs = {"baseline": self.baseline, **({} if self.run is None else {"plan": self.run})}
        write_runs(runs, folder)
        (folder / "levels.csv").write_text(self.table.to_csv(), encoding="utf-8")
        if self.candidates:
            columns = {name: [row[name] for row in self.candidates] for name in self.candidates[0]}
            (folder / "scored.csv").write_text(Table.of(columns).to_csv(), encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        if "plan" in runs:
            report.write_timeline(folder / "runs" / "plan").rename(folder / "timeline.pftrace")
            report.write_report(folder)

    def _summary(self, found: _Found, bound_ms: float | None) -> dict[str, Any]:
        job, settings = found.layers.job, found.settings
        return {
            "schema": "gradtide.planning/1",
            "version": _core.__version__,
            "complete": True,
            "engine": self.baseline.summary["engine"],
            "seed": found.base.seed,
            "scenario_sha256": found.base.sha256,
            "job": job.name,
            "model": job.model,
            "workers": job.workers,
            "headline": _headline(self.plan, self.rows, bound_ms),
            "lower_bound_ms": bound_ms,
            "settings": {
                "level": settings.level,
                "overhead_us": settings.overhead_ps / 1e6,
                "worth_percent": 100 * settings.worth,
                "smallest_bytes": settings.smallest_bytes,
                "seeds": settings.seeds,
                "noise": found.settings.noise,
                "noise_is_assumed": found.settings.noise_is_assumed,
            },
            "searched": {
                "scored": len(self.candidates),
                "pruned": 0 if found.search is None else found.search.pruned,
                "run": len(found.runs) + len(found.baselines),
                "channels": [
                    {
                        "collective": _channel_name(one),
                        "fixed_us": one.fixed_ps / 1e6,
                        "ns_per_byte": one.ps_per_byte / 1e3,
                        "whole_ms": one.whole_ps / 1e9,
                    }
                    for one in found.channels
                ],
            },
            "rows": self.rows,
            "plan": self.plan.to_dict(),
            "cost": total_cost([{"cost": cost} for cost in found.costs]),
        }

    def __repr__(self) -> str:
        return f"<gradtide.PlanResult {self.summary['headline']}>"


def plan(
    scenario: Any,
    *,
    cluster: "Scenario | str | Path | Mapping[str, Any] | None" = None,
    workers: int | None = None,
    level: str = "crossiter",
    collectives: Sequence[str] | None = None,
    overhead: str = OVERHEAD,
    worth: float = WORTH_PERCENT,
    smallest: int | str = SMALLEST,
    baseline: str | None = None,
    noise: float = NOISE,
    seeds: int = SEEDS,
    budget: int = BUDGET,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> PlanResult:
    """Search how a job should send its gradients: order, buckets, collective, depth, barrier and chunk.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model (a
            preset's name, a profile, a list of layers), which `cluster` or all defaults then train. It has one job and
            no neighbours. With the packet engine, the fluid engine takes its place.
        cluster: a scenario in which the model takes the place of the job's, one with a cluster alone, or the name of
            a cluster, as in `ethernet-25g/16`.
        workers: number of workers; None keeps the scenario's.
        level: the most that the runtime may be asked to do: buckets, priority or crossiter.
        collectives: each `KIND[+KEY=VALUE]`; None for the scenario's own and those that suit the workers and network.
        overhead: what a message costs beyond the scenario's own overhead at the levels priority and crossiter.
        worth: percent of an iteration below which a plan is not worth it, and a lower level does as well.
        smallest: no message is smaller, in bytes or with a unit; 0 for no limit.
        baseline: ddp, PyTorch DistributedDataParallel's default buckets; or scenario. None for the scenario's schedule
            if it says one that is not the default, else ddp. Both are candidates.
        noise: coefficient of variation of a worker's compute time, where `compute.noise` says nothing; 0 for none.
        seeds: paired runs with noise, from which the interval of the gain is.
        budget: runs of local search in each mode; equal budgets give equal plans.
        jobs: runs under way at once; the result does not depend on it.
        progress: called now and then with the share that is done.
        keep: where finished runs are kept until the plan is made.
        limits: memory and time that it may take.

    Raises:
        Interrupted: on Ctrl-C, with the best plan so far.
        ScenarioError: if the scenario is wrong, or would take more than the limits.
        ValueError: if an option means nothing.

    Example:
        >>> layers = [{"name": f"fc{i}", "forward": "8ms", "backward": "16ms", "parameters": "4MiB"} for i in range(10)]
        >>> job = {"model": {"layers": layers}, "workers": 2}
        >>> plan({"job": {"train": job}, "cluster": {"link": {"rate": "1Gbps"}}}).plan.level
        'crossiter'
    """
    base = trained(scenario, cluster, workers)
    check_one_job(base, "plan", trains=True)
    settings = _settings(base, level, overhead, worth, smallest, noise, seeds)
    if base.jobs[0].workers < 2:
        raise ValueError("a single worker exchanges nothing, so there is nothing to plan")
    if base.engine == "packet":
        base = _on_fluid(base)
    if base.spec()["jobs"][0].get("servers") is not None:
        raise ValueError("plan takes a job whose gradients are exchanged in buckets, not op by op with servers")
    if base.jobs[0].graph is not None:
        raise ValueError("plan takes a model of layers, not a graph of ops")
    if baseline not in (None, "ddp", "scenario"):
        raise ValueError(f"there is no baseline {baseline!r}; there are ddp and scenario")

    part = partial(part_of, progress)
    layers = Layers(base.jobs[0])
    plans = {"ddp": _ddp(base, layers)}
    if baseline == "scenario" or not _is_default(base):
        own = base.jobs[0].schedule
        # No buckets: the scenario is left as it is.
        plans["scenario"] = Plan("none", (), own.order, own.barrier, own.chunk_bytes, collective=own_collective(base))
    chosen = baseline or next(reversed(plans))
    results = run_all([one.on(base) for one in plans.values()], jobs, part(0, 0.05), keep, limits)
    runs = {name: (one, result) for (name, one), result in zip(plans.items(), results, strict=True)}
    found = _Found(base, settings, layers, chosen, runs, costs=[result.summary["cost"] for result in results])
    try:
        _fill(found, collectives, budget, jobs, part, keep, limits)
    except KeyboardInterrupt as error:
        finished: list[RunResult | None] = [*results, *found.runs.values()]
        stop = error if isinstance(error, Interrupted) else Interrupted([*finished, None])
        if found.search is not None:
            stop.tell(PlanResult(found))
        raise stop from None
    return PlanResult(found)


def parse_percent(text: str) -> float:
    """Return percent, with or without their sign.

    Raises:
        ValueError: if it is no number.
    """
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text!r} is no percentage; write it as in 1%") from None


def check_target(path: Path | None) -> None:
    """Refuse a place where a plan or its folder must not go; asked before long work, not after it.

    Raises:
        FolderError: if `path` holds what is not ours, or nothing can be written there.
    """
    if path is None:
        return
    if path.suffix != ".json":
        refuse_foreign(path)
    elif path.exists():
        try:
            read_plan(path)
        except ScenarioError:
            raise FolderError(f"{path} is there and is no plan; name a file that does not exist yet") from None
    refuse_unwritable(path)


def figures(result: PlanResult) -> dict[str, float | None]:
    """Return what `--fail-if` can name: `saves_percent`, `iteration_ms` and so on, of the plan."""
    row = next(row for row in result.rows if row["chosen"])
    return numbers(row)


def _settings(
    base: Scenario, level: str, overhead: str, worth: float, smallest: int | str, noise: float, seeds: int
) -> Settings:
    if level not in LEVELS[1:]:
        raise ValueError(f"there is no level {level!r}; there are {', '.join(LEVELS[1:])}")
    try:
        overhead_ps = units.parse_time(overhead)
    except units.UnitError as error:
        raise ValueError(f"overhead: {error.msg}; {error.hint}") from None
    if not 0 <= worth < 100:
        raise ValueError(f"worth: {worth} is no percentage of an iteration; write 1 for 1 %")
    if seeds < 1:
        raise ValueError("seeds: an interval is of 2 paired runs or more, and 1 gives the gain without one")
    if not 0 <= noise <= 0.5:
        raise ValueError(f"noise: {noise} is no coefficient of variation; write 0.03 for 3 %")
    own = base.jobs[0].compute.noise_ppm / 1e6
    smallest_bytes = parse_size(smallest, "smallest")
    return Settings(level, overhead_ps, worth / 100, smallest_bytes, seeds, own or noise, own == 0)


def _on_fluid(base: Scenario) -> Scenario:
    """Return the scenario on the fluid engine, which has no queues and no transport."""
    data = base.to_dict()
    for key in ("queue", "switch_buffer", "transport"):
        data["cluster"].pop(key, None)
    data["run"].pop("probe", None)
    data["run"]["engine"] = "fluid"
    return Scenario.from_dict(data)


# Plans and scenarios of choices


def _is_default(base: Scenario) -> bool:
    """Whether a scenario says nothing of its schedule that is not the default."""
    return base.set({f"job.{base.jobs[0].name}.schedule": {}}) == base


def _ddp(base: Scenario, layers: Layers) -> Plan:
    """Return what PyTorch's DistributedDataParallel does by itself."""
    buckets = _buckets(layers, layers.capped(DDP_CAP, DDP_FIRST_CAP), "fifo")
    return Plan("none", buckets, "fifo", True, depth=base.jobs[0].schedule.parts, collective=own_collective(base))


def _buckets(layers: Layers, cuts: Sequence[int], order: str) -> tuple[PlannedBucket, ...]:
    """Return buckets in the order in which they become ready: from the output side."""
    rows, count = layers.job.layers, len(cuts) + 1
    buckets = []
    for index, (first, last) in enumerate(reversed(layers.stretches(cuts))):
        names = [rows[layers.places[at]].name for at in range(last - 1, first - 1, -1)]
        size = layers.bytes_below[last] - layers.bytes_below[first]
        buckets.append(PlannedBucket(tuple(names), size, index if order == "fifo" else count - 1 - index))
    return tuple(buckets)


def _plan_of(found: _Found, choice: Choice) -> Plan:
    """Return a choice as a plan, with what its messages cost."""
    assert found.search is not None
    channel = found.channels[choice.channel]
    return Plan(
        choice.mode.level,
        _buckets(found.layers, choice.cuts, choice.mode.order),
        choice.mode.order,
        choice.mode.barrier,
        choice.chunk_bytes,
        channel.depth,
        channel.collective,
        predicted={"overhead_us": found.search.space.extra_ps(choice) / 1e6},
    )


# Finding


def _fill(
    found: _Found,
    names: Sequence[str] | None,
    budget: int,
    jobs: int,
    part: Callable[[float, float], Callable[[float], object] | None],
    keep: Kept | None,
    limits: Limits | None,
) -> None:
    """Fit channels, search, run the best on the scenario's network, then in pairs with noise."""
    base, settings = found.base, found.settings
    modes = [mode for mode in MODES if LEVELS.index(mode.level) <= LEVELS.index(settings.level)]
    found.channels = fit(
        base, names, settings.smallest_bytes, settings.level != "buckets", jobs, part(0.05, 0.2), limits
    )
    steps = paces(settings.noise, base.jobs[0].workers)
    plain = found.baselines["ddp"][0].on(base)
    space = Space(
        found.layers, found.channels, modes, settings.overhead_ps, settings.smallest_bytes, plain.spec(), steps
    )
    found.search = Search(space)
    explore(found.search, budget, part(0.2, 0.5))
    finalists: dict[Choice, Scenario] = {}
    for choice in _finalists(found.search):
        finalists[choice] = _plan_of(found, choice).on(base)
    try:
        results = run_all(list(finalists.values()), jobs, part(0.5, 0.7), keep, limits)
    except Interrupted as stop:
        found.runs = {one: run for one, run in zip(finalists, stop.results, strict=True) if run is not None}
        raise
    found.runs = dict(zip(finalists, results, strict=True))
    found.costs += [result.summary["cost"] for result in results]
    if settings.noise == 0 and not base.jobs[0].is_uneven:
        return
    scenarios: dict[Choice | None, Scenario] = {None: found.baselines[found.baseline][0].on(base)}
    scenarios |= {choice: scenario for choice, scenario in finalists.items()}
    trials = range(min(TRIALS, settings.seeds))
    _run_noisy(found, scenarios, trials, jobs, part(0.7, 0.85), keep, limits)
    best = [found.best(level) for level in LEVELS]
    compared = {choice: scenarios[choice] for choice in (None, *best)}
    _run_noisy(found, compared, range(len(trials), settings.seeds), jobs, part(0.85, 1), keep, limits)


def _run_noisy(
    found: _Found,
    scenarios: Mapping[Choice | None, Scenario],
    seeds: Sequence[int],
    jobs: int,
    progress: Callable[[float], object] | None,
    keep: Kept | None,
    limits: Limits | None,
) -> None:
    """Run scenarios with noise, each with the same seeds."""
    asked = [
        (choice, _noisy(found, one, found.base.seed + seed)) for choice, one in scenarios.items() for seed in seeds
    ]
    results = run_all([one for _, one in asked], jobs, progress, keep, limits)
    found.costs += [result.summary["cost"] for result in results]
    for (choice, _), result in zip(asked, results, strict=True):
        found.noisy_s.setdefault(choice, []).append(result.iteration_time)


def _noisy(found: _Found, scenario: Scenario, seed: int) -> Scenario:
    count = scenario.jobs[0].iterations
    changes: dict[str, Any] = {"noise": found.settings.noise} if found.settings.noise_is_assumed else {}
    if count is not None and count > NOISY_ITERATIONS:
        changes["iterations"] = NOISY_ITERATIONS
    return scenario.replace(seed=seed, timeline=0, **changes)


def _finalists(search: Search) -> list[Choice]:
    """Return the best of every mode on every channel, and the runner-up with another number of buckets."""
    found: list[Choice] = []
    for mode in search.space.modes:
        ranked = sorted((choice for choice in search.scores if choice.mode == mode), key=search.key)
        for channel in range(len(search.space.channels)):
            found += [choice for choice in ranked if choice.channel == channel][:1]
        found += [choice for choice in ranked if len(choice.cuts) != len(ranked[0].cuts)][:1]
    return list(dict.fromkeys(found))


# Saying


def _channel_name(channel: Channel) -> str:
    name = words.collective(channel.collective["kind"])
    return name if channel.depth == 1 else f"{name}, depth {channel.depth}"


def _baseline_row(found: _Found, name: str, bound_ms: float | None) -> dict[str, Any]:
    plan, result = found.baselines[name]
    rows = result.transfers.to_dicts()
    once = [row for row in rows if row["iteration"] == rows[0]["iteration"]]
    return _line_of_table(
        name=name,
        level="none",
        order=plan.order,
        barrier=plan.barrier,
        collective=dict(plan.collective)["kind"],
        depth=plan.depth,
        buckets=[row["bytes"] for row in once],
        chunk_bytes=plan.chunk_bytes,
        messages=sum(row["chunks"] for row in once),
        overhead_ps=0,
        time_ms=_mean_ms(result),
        engine=str(result.summary["engine"]),
        gain=(1 - _mean_ms(result) / _mean_ms(found.baselines[found.baseline][1]), None, None),
        bound_ms=bound_ms,
    )


def _row(found: _Found, choice: Choice, bound_ms: float | None) -> dict[str, Any]:
    assert found.search is not None
    space, channel, time_ms = found.search.space, found.channels[choice.channel], found.time_ms(choice)
    run = found.runs.get(choice)
    return _line_of_table(
        name=choice.mode.level,
        level=choice.mode.level,
        order=choice.mode.order,
        barrier=choice.mode.barrier,
        collective=str(channel.collective["kind"]),
        depth=channel.depth,
        buckets=space.layers.sizes_of(choice.cuts),
        chunk_bytes=choice.chunk_bytes,
        messages=space.messages(choice),
        overhead_ps=space.extra_ps(choice),
        time_ms=time_ms,
        engine="search" if run is None else str(run.summary["engine"]),
        gain=found.gain(choice),
        bound_ms=bound_ms,
    )


def _line_of_table(
    *,
    name: str,
    level: str,
    order: str,
    barrier: bool,
    collective: str,
    depth: int,
    buckets: Sequence[int],
    chunk_bytes: int | None,
    messages: int,
    overhead_ps: int,
    time_ms: float,
    engine: str,
    gain: tuple[float, float | None, float | None],
    bound_ms: float | None,
) -> dict[str, Any]:
    mean, low, high = (None if share is None else 100 * share for share in gain)
    return {
        "name": name,
        "level": level,
        "order": order,
        "barrier": barrier,
        "collective": collective,
        "depth": depth,
        "buckets": len(buckets),
        "largest_bytes": max(buckets),
        "chunk_bytes": chunk_bytes or 0,
        "messages": messages,
        "overhead_us": overhead_ps / 1e6,
        "iteration_ms": time_ms,
        "saves_percent": mean,
        "saves_low_percent": low,
        "saves_high_percent": high,
        "above_bound_percent": None if bound_ms is None else 100 * (time_ms / bound_ms - 1),
        "engine": engine,
        "chosen": False,
    }


def _chosen(found: _Found, rows: Sequence[dict[str, Any]]) -> str:
    """Return the lowest level that saves about as much as any, of those that surely save what is worth it."""
    worth = 100 * found.settings.worth
    sure = [
        row
        for row in rows
        if row["level"] != "none"
        and row["saves_percent"] > 0
        and (row["saves_percent"] if row["saves_low_percent"] is None else row["saves_low_percent"]) >= worth
    ]
    if not sure:
        return "none"
    most = max(row["saves_percent"] for row in sure)
    return str(next(row["level"] for row in sure if row["saves_percent"] >= most - worth))


def _predicted(found: _Found, row: dict[str, Any], bound_ms: float | None) -> dict[str, Any]:
    low, high = row["saves_low_percent"], row["saves_high_percent"]
    return {
        "engine": row["engine"],
        "baseline": found.baseline,
        "baseline_iteration_time_ms": _mean_ms(found.baselines[found.baseline][1]),
        "iteration_time_ms": row["iteration_ms"],
        "gain_percent": row["saves_percent"],
        "gain_interval_percent": None if low is None else [low, high],
        "lower_bound_ms": bound_ms,
        "overhead_us": row["overhead_us"],
        "noise": found.settings.noise,
        "noise_is_assumed": found.settings.noise_is_assumed,
        "seeds": len(found.noisy_s.get(None, ())),
    }


def _candidates(found: _Found) -> list[dict[str, Any]]:
    if found.search is None:
        return []
    space, rows = found.search.space, []
    for choice in sorted(found.search.scores, key=found.search.key):
        channel, run = found.channels[choice.channel], found.runs.get(choice)
        rows.append(
            {
                "level": choice.mode.level,
                "order": choice.mode.order,
                "barrier": choice.mode.barrier,
                "collective": str(channel.collective["kind"]),
                "depth": channel.depth,
                "buckets": len(choice.cuts) + 1,
                "largest_bytes": max(space.layers.sizes_of(choice.cuts)),
                "chunk_bytes": choice.chunk_bytes or 0,
                "messages": space.messages(choice),
                "bound_us": space.bound_ps(choice) / 1e6,
                "scored_us": found.search.scores[choice] / 1e6,
                "iteration_us": None if run is None else 1e3 * _mean_ms(run),
            }
        )
    return rows


def caps(plan: Plan) -> str:
    """Return what `bucket_cap_mb_list` of PyTorch's DistributedDataParallel is for a plan's buckets.

    DDP closes a bucket with the gradient that reaches its cap; rounded down, so that it is the plan's last layer.
    """
    rounded = [math.floor(1e4 * one.bytes / MIB) / 1e4 for one in plan.buckets]
    return f"[{', '.join(f'{cap:g}' for cap in rounded)}]"


def _advice(found: _Found, chosen: str, best: Mapping[str, Choice], rows: Sequence[dict[str, Any]]) -> list[str]:
    said = []
    by_level = {row["level"]: row for row in rows}
    if chosen == "none":
        most = max((row for row in rows if row["level"] != "none"), key=lambda row: row["saves_percent"], default=None)
        what = "DDP" if found.baseline == "ddp" else "the schedule"
        if most is not None and most["saves_percent"] > 0:
            said.append(f"Leave {what} alone: the best that was found saves {_gain(most)}.")
        else:
            said.append(f"Leave {what} alone: nothing that was found saves anything.")
    if chosen in ("priority", "crossiter"):
        what = "sends in the order of the plan" + (
            "" if chosen == "priority" else ", and lets layers begin without the rest"
        )
        said.append(f'gradtide.torch.wrap(model, optimizer, "plan.json") {what}: level {chosen}.')
    if chosen != "none" and "buckets" in best:
        row, plan = by_level["buckets"], _plan_of(found, best["buckets"])
        if chosen == "buckets":
            said.append(
                f"DDP: bucket_cap_mb_list={caps(plan)}, from PyTorch 2.13 on; gradtide.torch.wrap sets it, too."
            )
        elif row["saves_percent"] >= 100 * found.settings.worth:
            is_own = plan.collective == found.channels[0].collective
            beside = "alone" if is_own else f"and {words.collective(plan.collective['kind'])}"
            said.append(f"Without it, DDP: bucket_cap_mb_list={caps(plan)} {beside} saves {_gain(row)}.")
    if chosen != "none":
        channel, own = found.channels[best[chosen].channel], found.channels[0]
        kind = channel.collective["kind"]
        if channel.collective != own.collective:
            nccl = {"ring": "NCCL_ALGO=Ring", "tree": "NCCL_ALGO=Tree"}.get(kind)
            how = (
                f"set {nccl}"
                if nccl
                else "NCCL has no such choice; with --collectives the search keeps to what you have"
            )
            said.append(f"It exchanges by {words.collective(kind)}: {how}.")
        if channel.depth != own.depth:
            said.append(f"Each message is cut into {channel.depth}, which are exchanged side by side.")
        if by_level[chosen]["overhead_us"]:
            cost = words.number(by_level[chosen]["overhead_us"] / 1e3)
            said.append(f"Of every message {cost} ms are counted for the scheduler; --overhead says yours.")
    if found.settings.noise_is_assumed and found.noisy_s:
        said.append(
            f"The interval assumes compute times that vary by {100 * found.settings.noise:g} %; "
            "compute.noise in the scenario says yours."
        )
    return said


def _gain(row: dict[str, Any]) -> str:
    low, high = row["saves_low_percent"], row["saves_high_percent"]
    mean = f"{row['saves_percent']:.1f} %"
    return mean if low is None else f"{mean} ({low:.1f} to {high:.1f} %)"


def _headline(plan: Plan, rows: Sequence[dict[str, Any]], bound_ms: float | None) -> str:
    predicted = plan.predicted
    baseline = "DDP" if predicted["baseline"] == "ddp" else "the scenario's schedule"
    before = words.milliseconds(predicted["baseline_iteration_time_ms"])
    who = f"{plan.model} on {words.workers(plan.workers or 0)}"
    if plan.level == "none":
        most = max((row for row in rows if row["level"] != "none"), key=lambda row: row["saves_percent"], default=None)
        gain = "nothing" if most is None or most["saves_percent"] <= 0 else _gain(most)
        return (
            f"{who}: leave {baseline} alone. It takes {before} an iteration, and the best that was found saves {gain}."
        )
    row = next(row for row in rows if row["chosen"])
    after = words.milliseconds(predicted["iteration_time_ms"])
    what = words.schedule(plan.order, plan.barrier)
    sentence = (
        f"{who}: {what} in {words.buckets(len(plan.buckets))} saves {_gain(row)} over {baseline}: {after} for {before}"
    )
    if bound_ms is None:
        return sentence + "."
    return f"{sentence}, {row['above_bound_percent']:.1f} % above what no plan can beat."


__all__ = ["PlanResult", "caps", "check_target", "figures", "parse_percent", "plan", "trained"]
