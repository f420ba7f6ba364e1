"""`gradtide run`: simulates one scenario. Other studies run their scenarios with the functions of this module."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gradtide import _core, estimate, words
from gradtide.errors import Interrupted, LimitReached, SimulationError
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.scenario.core import queries
from gradtide.studies.alone import alone_ps, flows_of
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.trained import Cluster, trained
from gradtide.system import most_resident_bytes
from gradtide.watch import Part, current, watching

# Interval at which active runs are polled, and time for which an interrupted study waits for them, in seconds.
POLL_S = 0.1
GRACE_S = 0.3


@within_limits
def run(
    scenario: "Scenario | str | Path | dict[str, Any]",
    *,
    cluster: Cluster = None,
    progress: Callable[[float], object] | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> RunResult:
    """Run one scenario.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model,
            which is trained with the defaults of all keys.
        cluster: cluster that replaces the scenario's, or on which the model is trained: `NAME/N`, as in
            `ethernet-100g/16`, a file or dict of a cluster, or a scenario.
        progress: called periodically with the completed fraction, from 0 to 1.
        limits: memory and time limits. Default: 80 % of free memory, and an hour.
        keys: replacements of the scenario's keys, by short name (`Scenario.replace`), as in `seed=3`, `seq=8192` or
            `parallel={"fsdp": 16, "tp": 8}`.

    Returns:
        The result; nothing is written to disk.

    Raises:
        ScenarioError: with all faults, if the scenario is invalid, or the limits would be exceeded.
        SimulationError: if the run fails; `LimitReached` if it has exhausted the limits.
    """
    scenario = trained(scenario, cluster, **keys)
    scenario.check_built()
    limits = limits or Limits()
    estimate.check([scenario], limits)
    result = simulate(scenario, progress)
    add_slowdowns(result, limits)
    return result


def add_slowdowns(result: RunResult, limits: Limits | None = None) -> None:
    """Add the slowdowns of flows to a run without jobs: completion time divided by its bound on the idle network.

    The bounds are simulated, with every distinct completed flow alone (`studies.alone`). If bursts are announced to
    switches, the run is also repeated without announcements. A run with jobs is not changed; `gradtide tenants`
    computes the slowdowns of its flows.
    """
    if result.scenario.jobs:
        return
    (times,) = alone_ps(
        [(result.scenario, flows_of([result]))], lambda scenarios: run_all(scenarios, limits=limits or Limits())
    )
    result.summary["traffic"] = result.flow_classes(alone_ps=times)
    announcing = _announcing(result, limits)
    if announcing:
        result.summary["announcing"] = announcing
    sentences = [words.flows_headline(result.summary["traffic"]), words.announcing_sentence(announcing)]
    result.summary["headline"] = " ".join(filter(None, sentences))


def _announcing(result: RunResult, limits: Limits | None) -> dict[str, dict[str, float]]:
    """Return the mean flow times of each tenant, with and (in a second run) without announcements of bursts."""
    tenants = [name for name, table in result.scenario.to_dict().get("traffic", {}).items() if table.get("announce")]
    if not tenants:
        return {}
    without = result.scenario.set({f"traffic.{name}.announce": False for name in tenants})
    (other,) = run_all([without], limits=limits or Limits())
    found = {}
    for name in tenants:
        # Flow numbers identify flows, because both runs have the same flows.
        times = [
            {
                row["flow"]: row["received_us"]
                for row in one.flows.to_dicts()
                if row["traffic"] == name and row["received_us"] is not None
            }
            for one in (result, other)
        ]
        both = sorted(times[0].keys() & times[1].keys())
        if both:
            with_ms, without_ms = (sum(of[flow] for flow in both) / len(both) / 1e3 for of in times)
            change = {"announced_ms": with_ms, "not_announced_ms": without_ms, "flows": len(both)}
            found[name] = {**change, "change_percent": 100 * (with_ms / without_ms - 1)}
    return found


def simulate(scenario: Scenario, progress: Callable[[float], object] | None) -> RunResult:
    """Run a scenario that has passed every check."""
    # CPU time is measured for this thread only, because other runs may be concurrent.
    wall, cpu = time.perf_counter(), time.thread_time()
    output = queries.run(scenario, progress)
    cost = {
        "cpu_s": time.thread_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_rss_mb": most_resident_bytes() / 1024**2,
    }
    return RunResult(scenario, output, cost)


def part_of(progress: Callable[[float], object] | None, low: float, high: float) -> Callable[[float], object] | None:
    """Return a callback that maps progress from 0 to 1 of a part to `low` to `high` of the whole."""
    return None if progress is None else lambda share: progress(low + (high - low) * share)


Seen = TypeVar("Seen")


def run_all(
    scenarios: Sequence[Scenario],
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    what_ifs: int = 0,
) -> list[RunResult]:
    """Run every scenario, `jobs` of them concurrently in threads; the core releases the GIL.

    The results do not depend on `jobs`. Progress weights runs by their estimated CPU times. Runs found in `keep` are
    not repeated. `what_ifs` is the number of what-if runs that follow each run, and that the estimate must include.

    Raises:
        Interrupted: on Ctrl-C, within a second, with the finished runs.
        LimitReached: when the limits are exhausted, with the finished runs.
        ScenarioError: before any run, if the estimate exceeds the limits.
        SimulationError: if a run fails; the other runs are stopped.
    """
    return run_seen(scenarios, lambda _index, result: result, jobs, progress, keep, limits, what_ifs)


class Execution(NamedTuple):
    """Arguments of `run_all` other than the scenarios."""

    jobs: int = 1
    progress: Callable[[float], object] | None = None
    keep: Kept | None = None
    limits: Limits | None = None
    what_ifs: int = 0


def run_seen(scenarios: Sequence[Scenario], seen: Callable[[int, RunResult], Seen], *how: Any) -> list[Seen]:
    """Run every scenario as `run_all` does, and keep only what `seen` returns for each result.

    Hence at most as many results are in memory as runs are active.

    Args:
        scenarios: the scenarios to run.
        seen: maps the index and the result of a run to the value that is kept; called in several threads.
        how: the fields of `Execution`. Exceptions contain the values of `seen` instead of results.
    """
    ended = _run_each(scenarios, seen, Execution(*how), goes_on=False)
    return [result for result in ended if not isinstance(result, SimulationError)]


Name = TypeVar("Name")


def run_named(scenarios: Mapping[Name, Scenario], *how: Any) -> tuple[dict[Name, RunResult], dict[Name, str]]:
    """Run every scenario, and continue if a run fails.

    Args:
        scenarios: the scenarios to run, by name.
        how: the fields of `Execution`.

    Returns:
        The finished runs, and the reasons of the failed ones.

    Raises:
        Interrupted: as in `run_all`.
        ScenarioError: as in `run_all`.
        SimulationError: if all runs fail.
    """

    def whole(_index: int, result: RunResult) -> RunResult:
        return result

    ended = dict(zip(scenarios, _run_each(list(scenarios.values()), whole, Execution(*how), goes_on=True), strict=True))
    errors = {name: one for name, one in ended.items() if isinstance(one, SimulationError)}
    if len(errors) == len(ended):
        raise next(iter(errors.values()))
    results = {name: one for name, one in ended.items() if isinstance(one, RunResult)}
    return results, {name: str(error) for name, error in errors.items()}


def _run_each(
    scenarios: Sequence[Scenario], seen: Callable[[int, RunResult], Seen], how: Execution, *, goes_on: bool
) -> "list[Seen | SimulationError]":
    """Run every scenario as `run_seen` does; with `goes_on`, return the error of a failed run instead of raising it."""
    jobs, progress, keep, limits, what_ifs = how
    for scenario in scenarios:
        scenario.check_built()

    def kept(index: int) -> Seen | None:
        result = None if keep is None else keep.find(scenarios[index])
        return None if result is None else seen(index, result)

    results: list[Seen | SimulationError | None] = [kept(index) for index in range(len(scenarios))]
    missing = [index for index, result in enumerate(results) if result is None]
    estimate.foresee(lambda: [(scenarios[index], 1) for index in missing], what_ifs=what_ifs)
    limits = limits or Limits()
    expected = estimate.check([scenarios[index] for index in missing], limits, jobs, what_ifs)
    watch = current() or limits.watch()
    weights = {index: one.cpu_s for index, one in zip(missing, expected, strict=True)}
    shares = dict.fromkeys(missing, 0.0)
    stop = threading.Event()

    def run_one(index: int) -> Seen:
        def on_progress(share: float) -> None:
            shares[index] = share

        with watching(Part(watch, stop)):
            result = simulate(scenarios[index], on_progress)
        if keep is not None:
            keep.add(result)
        return seen(index, result)

    def done() -> float:
        return sum(shares[index] * weights[index] for index in missing) / sum(weights.values())

    pool = ThreadPoolExecutor(max_workers=max(1, jobs))
    under_way: dict[Future[Seen], int] = {}
    try:
        under_way = {pool.submit(run_one, index): index for index in missing}
        while under_way:
            finished, _ = wait(under_way, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in finished:
                error = future.exception()
                if not goes_on or not isinstance(error, SimulationError) or isinstance(error, LimitReached):
                    error = None
                results[under_way[future]] = error or future.result()
                shares[under_way.pop(future)] = 1.0
            watch.check()
            if progress is not None:
                progress(done())
    except (KeyboardInterrupt, LimitReached) as end:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for future in wait(under_way, timeout=GRACE_S).done:
            if not future.cancelled() and future.exception() is None:
                results[under_way[future]] = future.result()
        known = [None if isinstance(one, SimulationError) else one for one in results]
        if isinstance(end, KeyboardInterrupt):
            raise Interrupted(known) from None
        end.results, end.share = known, done()
        raise
    finally:
        # Stop the other runs without waiting for them. This also happens after a failure.
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    return [result for result in results if result is not None]


def head(kind: str, engine: str) -> dict[str, Any]:
    """Return the keys with which the summary of every study begins."""
    return {"schema": f"gradtide.{kind}/1", "version": _core.__version__, "complete": True, "engine": engine}


def total_cost(summaries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the total cost of runs or studies. Memory is the largest peak instead of the sum."""
    costs = [summary["cost"] for summary in summaries]
    return {
        **{key: sum(cost[key] for cost in costs) for key in ("events", "packet_hops", "cpu_s", "wall_s")},
        "peak_rss_mb": max((cost["peak_rss_mb"] for cost in costs), default=0.0),
    }


def sample() -> Scenario:
    """Return a scenario of a few packets, with a job and a background flow, that commands run to list their figures."""
    layer = {"name": "a", "parameters": "8B", "forward": "1us", "backward": "1us"}
    return Scenario.from_dict(
        {
            "job": {"train": {"model": {"layers": [layer]}, "workers": 2, "iterations": 1}},
            "traffic": {"web": {"flows": [{"start": "0s", "src": "h0", "dst": "h1", "bytes": "1B"}]}},
            "cluster": {"topology": {"kind": "star", "hosts": 2}},
            "run": {"engine": "packet", "duration": "1s"},
        }
    )


def preset(name: str) -> Scenario:
    """Return the scenario of a preset, such as `paper/gao2020-ch4`.

    Raises:
        ScenarioError: if there is no such preset.
    """
    return Scenario.load(name)
