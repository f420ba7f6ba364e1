"""`gradtide run`: how long does one iteration take, and what does it wait for?"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from gradtide import _core, estimate, report, units, words
from gradtide.answer import Again
from gradtide.answer.runtimes import runs_on
from gradtide.errors import Interrupted, LimitReached, SimulationError
from gradtide.estimate import WHAT_IF_ITERATIONS, Limits, within_limits
from gradtide.files import write_whole
from gradtide.results import RunResult, Table
from gradtide.scenario import Job, Scenario
from gradtide.scenario.defaults import PLANNED
from gradtide.scenario.servers import ARBITRARY_PPM
from gradtide.scenario.times import ops_csv
from gradtide.studies.alone import alone_ps, flows_of
from gradtide.studies.folder import RESOLVED, whole_folder, write_json, write_text, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.network import altered, has_rate_of_links
from gradtide.studies.store import MEASURED_COSTS
from gradtide.studies.trained import Cluster, trained
from gradtide.system import most_resident_bytes
from gradtide.watch import Part, current, watching

# Link rates of the what-if runs, from which the report derives the rate beyond which the network does not matter:
# common link rates from a tenth of the run's own rate on, and half, twice and four times the run's rate.
WHAT_IF_RATES_BPS = tuple(int(gbps * 1e9) for gbps in (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 400, 800))
SLOWEST_WHAT_IF = 10

BESIDE = {"again": vars(Again(scenario=RESOLVED))}
"""How to repeat a run from its folder: the resolved scenario gives the same bytes."""

# Polling interval of active runs, and how long an interruption waits for them.
POLL_S = 0.1
GRACE_S = 0.3


@within_limits
def run(
    scenario: "Scenario | str | Path | dict[str, Any]",
    *,
    cluster: Cluster = None,
    progress: Callable[[float], object] | None = None,
    limits: Limits | None = None,
    threads: int = 1,
    **keys: Any,
) -> RunResult:
    """Run one scenario.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model,
            which is then trained with all defaults.
        cluster: what a model is trained on: `NAME/N`, as in `ethernet-100g/16`, a file or dict of a cluster, or a
            scenario, in which the model takes the place of the job's.
        progress: called now and then with the share that is done, 0 to 1.
        limits: memory and time that it may take; the default is 80 % of what is free and an hour.
        threads: of the packet engine. Results do not change.
        keys: keys that replace the scenario's, by short name (`Scenario.replace`), as in `seed=3`, `seq=8192` or
            `parallel={"fsdp": 16, "tp": 8}`.

    Returns:
        The result; nothing is written to disk.

    Raises:
        ScenarioError: if the scenario is wrong, or would take more than the limits; all faults at once.
        SimulationError: if the run cannot go on; a `LimitReached` if it has taken all that it may.
        ValueError: if `threads` is no number of threads that the engine can use.
    """
    scenario = trained(scenario, cluster, **keys)
    scenario.check_built()
    check_threads(scenario, threads)
    limits = limits or Limits()
    estimate.check([scenario], limits)
    result = simulate(scenario, progress, threads)
    add_slowdowns(result, limits)
    return result


def check_threads(scenario: Scenario, threads: int) -> None:
    """Refuse an invalid number of threads.

    Raises:
        ValueError: if it is out of range, or above 1 for a single-threaded engine.
    """
    most = _core.THREADS_MAX
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
        raise ValueError(f"threads: {threads!r} is no number of threads; write a whole number from 1 to {most}")
    if threads > 1 and scenario.engine != "packet":
        raise ValueError(
            f"threads: the {scenario.engine} engine runs on one thread; leave this out, or take the packet engine"
        )


def add_slowdowns(result: RunResult, limits: Limits | None = None) -> None:
    """Add slowdowns to a run without jobs: completion time of each flow over its lower bound on the idle network.

    Every distinct completed flow is simulated again, alone (`studies.alone`). If bursts are announced to switches, the
    run is also repeated without announcements. Runs with jobs are unchanged; `gradtide tenants` compares those.
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
    """Return the gain of announcing bursts to the switches, by tenant, compared with the same run without.

    Times are means over the flows that complete in both runs, from a burst's announcement to its last byte.
    """
    tenants = [name for name, table in result.scenario.to_dict().get("traffic", {}).items() if table.get("announce")]
    if not tenants:
        return {}
    without = result.scenario.set({f"traffic.{name}.announce": False for name in tenants})
    (other,) = run_all([without], limits=limits or Limits())
    found = {}
    for name in tenants:
        # Flows of a tenant have the same numbers in both.
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


def simulate(scenario: Scenario, progress: Callable[[float], object] | None, threads: int = 1) -> RunResult:
    """Run a scenario that has passed every check."""
    # With one thread, count this thread only, because other runs may be concurrent; the core's threads can only be
    # measured with the whole process.
    cpu_time = time.thread_time if threads == 1 else time.process_time
    wall, cpu = time.perf_counter(), cpu_time()
    output = _core.run(_core_input(scenario), progress, threads)
    cost = {
        "cpu_s": cpu_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_rss_mb": most_resident_bytes() / 1024**2,
    }
    return RunResult(scenario, output, cost)


def _core_input(scenario: Scenario) -> str:
    """Return the core's input as JSON; flows are encoded in pieces, because one long call would block Ctrl-C."""
    spec = scenario.spec()
    tables = []
    for table in spec.pop("traffic"):
        name = json.dumps(table.pop("name"))
        scalars = {key: value for key, value in table.items() if not isinstance(value, list)}
        columns = [f'"{column}":[{",".join(_pieces(table[column]))}]' for column in table if column not in scalars]
        columns += [f'"{key}":{json.dumps(value)}' for key, value in scalars.items()]
        tables.append(f'{{"name":{name},{",".join(columns)}}}')
    return f'{json.dumps(spec)[:-1]},"traffic":[{",".join(tables)}]}}'


def _pieces(values: Sequence[int], length: int = 100_000) -> Iterator[str]:
    for start in range(0, len(values), length):
        yield json.dumps(values[start : start + length])[1:-1]


def part_of(progress: Callable[[float], object] | None, low: float, high: float) -> Callable[[float], object] | None:
    """Return a progress callback for the part of the work from the share `low` to `high`."""
    return None if progress is None else lambda share: progress(low + (high - low) * share)


Seen = TypeVar("Seen")


def run_all(
    scenarios: Sequence[Scenario],
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    what_ifs: int = 0,
    threads: int = 1,
) -> list[RunResult]:
    """Run every scenario, `jobs` at a time in threads, because the core releases the interpreter's lock.

    The results do not depend on `jobs`. Progress weights runs by their estimated times. Runs found in `keep` are not
    repeated. The limits also have to cover `what_ifs` runs at other rates after each run. Each run may use `threads`
    threads.

    Raises:
        Interrupted: on Ctrl-C, within a second, with the finished runs.
        LimitReached: when the limits are exhausted, with the finished runs.
        ScenarioError: if the estimate exceeds the limits; nothing has run then.
        SimulationError: if one of them fails; the others are not waited for.
    """
    return run_seen(scenarios, lambda _index, result: result, jobs, progress, keep, limits, what_ifs, threads)


class Execution(NamedTuple):
    """How runs are executed: the arguments of `run_all` after the scenarios."""

    jobs: int = 1
    progress: Callable[[float], object] | None = None
    keep: Kept | None = None
    limits: Limits | None = None
    what_ifs: int = 0
    threads: int = 1


def run_seen(scenarios: Sequence[Scenario], seen: Callable[[int, RunResult], Seen], *how: Any) -> list[Seen]:
    """Run every scenario as `run_all` does, and reduce each result by `seen` as soon as it ends.

    So no more results are in memory than runs are active.

    Args:
        scenarios: the scenarios to run.
        seen: maps index and result of a run to the value that is kept; called in several threads.
        how: the fields of `Execution`; exceptions carry the values of `seen` as results.
    """
    ended = _run_each(scenarios, seen, Execution(*how), goes_on=False)
    return [result for result in ended if not isinstance(result, SimulationError)]


Name = TypeVar("Name")


def run_named(scenarios: Mapping[Name, Scenario], *how: Any) -> tuple[dict[Name, RunResult], dict[Name, str]]:
    """Run every scenario, continuing if one of them fails.

    Args:
        scenarios: the scenarios to run, by name.
        how: the fields of `Execution`.

    Returns:
        The finished runs, and the reasons of the failed ones.

    Raises:
        Interrupted: as `run_all`.
        ScenarioError: as `run_all`.
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
    """Run every scenario as `run_seen` does; with `goes_on`, a failed run yields its error instead of raising."""
    jobs, progress, keep, limits, what_ifs, threads = how
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
            result = simulate(scenarios[index], on_progress, threads)
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
        # Also after a failure: the other runs are stopped and not waited for.
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    return [result for result in results if result is not None]


def head(kind: str, engine: str) -> dict[str, Any]:
    """Return the first keys of a study's summary."""
    return {"schema": f"gradtide.{kind}/1", "version": _core.__version__, "complete": True, "engine": engine}


def total_cost(summaries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the total cost of the runs or studies of summaries."""
    costs = [summary["cost"] for summary in summaries]
    return {
        **{key: sum(cost[key] for cost in costs) for key in ("events", "packet_hops", "cpu_s", "wall_s")},
        "peak_rss_mb": max((cost["peak_rss_mb"] for cost in costs), default=0.0),
    }


def save(result: RunResult, path: Path) -> Path:
    """Write a run folder with its report and timeline."""
    with whole_folder(path) as folder:
        write_run(result, folder)
        report.write_timeline(folder)
        report.write_report(folder)
    return path


def write_part(result: RunResult, path: Path, name: str) -> Path:
    """Write one file of the run folder to `path`."""
    with TemporaryDirectory(prefix="gradtide-") as parent:
        return write_whole(path, (save(result, Path(parent) / "run") / name).read_bytes())


def write_run(result: RunResult, folder: Path) -> None:
    """Write the run's results and those of the what-if runs into the existing `folder`."""
    write_core(result, folder)
    if has_what_ifs(result.scenario):
        write_text(folder / "bandwidth.csv", result.bandwidth.to_csv())
    write_summary({**summary(result), **BESIDE}, folder)


def write_core(result: RunResult, folder: Path) -> None:
    """Write the run's own results into the existing `folder`."""
    write_text(folder / RESOLVED, result.scenario.to_toml())
    optional = {
        "workers": any(job.is_uneven or not job.is_in_step for job in result.scenario.jobs),
        "flows": bool(result.scenario.traffic),
        "queues": len(result.queues) > 0,
        "cwnd": len(result.cwnd) > 0,
    }
    for name in ("iterations", "workers", "transfers", "operations", "links", "flows", "queues", "cwnd"):
        table: Table = getattr(result, name)
        if optional.get(name, True):
            write_text(folder / f"{name}.csv", table.to_csv())
    for job in result.scenario.jobs:
        if job.division is not None:
            text = ops_csv(job.division.described.spec, job.division.own)
            write_text(folder / "ops.csv", text)
    write_summary({**result.summary, **result.answer.to_dict(), **BESIDE}, folder)
    write_versions(folder)


def run_name(parts: Iterable[str]) -> str:
    """Return the name of a run's folder in a study, in lower case, from the parts that identify the run."""
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")


def write_runs(results: Mapping[str, RunResult], folder: Path) -> None:
    """Write the results of each run of a study into `folder`/runs, under its name."""
    for name, result in results.items():
        (folder / "runs" / name).mkdir(parents=True)
        write_core(result, folder / "runs" / name)


def write_study(study: Any, folder: Path, name: str = "rows.csv", runs: Mapping[str, RunResult] | None = None) -> None:
    """Write into `folder` the rows of a study under `name`, its summary, its report, and runs by their names."""
    write_runs(runs or {}, folder)
    write_text(folder / name, study.table.to_csv())
    write_summary(study.summary, folder)
    write_versions(folder)
    report.write_report(folder)


def write_summary(summary: dict[str, Any], folder: Path) -> None:
    """Write `summary.json` without measured costs, so that equal runs give equal folders."""
    cost = {**summary["cost"], **dict.fromkeys(MEASURED_COSTS)}
    write_json(folder / "summary.json", {**summary, "cost": cost})


def summary(result: RunResult) -> dict[str, Any]:
    """Return the result's summary with its answer; the headline also says what other schedules would do."""
    headline = " ".join([result.summary["headline"], *_what_if_sentences(result)])
    return {**result.summary, **replace(result.answer, headline=headline).to_dict()}


def _what_if_sentences(result: RunResult) -> list[str]:
    if not has_what_ifs(result.scenario):
        return []
    rows = result.bandwidth.to_dicts()
    sentences = []
    for job in result.scenario.jobs:
        times: dict[tuple[str, bool], dict[int, float]] = {}
        for row in rows:
            if row["job"] == job.name:
                times.setdefault((row["order"], row["barrier"]), {})[row["rate_bps"]] = row["iteration_time_us"]
        if not times:
            continue
        sentence = _saving(times, result.scenario.link_rate_bps, job)
        several = len(result.scenario.jobs) > 1
        sentences.append(f"Job {job.name}: {words.uncapitalised(sentence)}" if several else sentence)
    return sentences


def _saving(times_us: dict[tuple[str, bool], dict[int, float]], own_bps: int, job: Job) -> str:
    """Return the sentence about the best schedule at the job's own rate among those its device supports.

    Times are by order and barrier, then by link rate.
    """
    default = ("fifo", True)
    baseline = times_us.pop(default)
    carried = {one: runs_on(*one, job.collective.kind, job.device.name) for one in times_us}
    can = {one: at for one, at in times_us.items() if carried[one][0] is not None}
    best = min(can or times_us, key=lambda one: (can or times_us)[one][own_bps])
    points = [(float(rate), baseline[rate], times_us[best][rate]) for rate in baseline]
    names = words.schedule(*default), words.schedule(*best)
    by, why_not = carried[best]
    if 1 - times_us[best][own_bps] / baseline[own_bps] < words.SAME:
        return f"At {words.rate(own_bps)}, no other order of transfers would save time over {names[0]}."
    if by is None:
        return f"{words.saving_at(points, own_bps, *names)} Nothing is known to carry that out: {why_not}."
    return f"{words.saving_at(points, own_bps, *names)} {by} does that."


def has_what_ifs(scenario: Scenario) -> bool:
    """Return whether what-if runs at other rates follow a run: only for a job alone on the fluid engine.

    There all rates together take a fraction of a second, since each exchange size is simulated once; orders that are
    planned for each rate take seconds. On the packet engine, or with other flows, what-if runs would take longer than
    the run itself.
    """
    if any(job.is_divided for job in scenario.jobs):
        return False
    if scenario.engine != "fluid" or not has_rate_of_links(scenario):
        return False
    is_alone = len(scenario.jobs) == 1 and not scenario.traffic
    return is_alone and scenario.jobs[0].schedule.order not in PLANNED


def bandwidth(scenario: Scenario) -> Table:
    """Run the jobs at other link rates, under FIFO and priority (or their own order), with and without the barrier.

    The table is empty if no job sends anything, or if one has parameter servers with pull = "start", to which these
    schedules do not apply.
    """
    rows: list[tuple[str, int, str, bool, float, float, float]] = []
    at_rate: dict[int, Scenario] = {}
    for rate_bps, order, barrier in _what_ifs(scenario):
        if rate_bps not in at_rate:
            is_star = scenario.fabric.kind == "star"
            # The rate of links between switches follows, unless the scenario states it.
            at_rate[rate_bps] = scenario if is_star else altered(scenario, link_rate=units.format_rate(rate_bps))
        spec = what_if(at_rate[rate_bps].spec(), rate_bps, order, barrier)
        for job in json.loads(_core.run(json.dumps(spec)).summary_json)["jobs"]:
            times_us = [ps / 1e6 for ps in job["iteration_time_ps"]]
            mean_us = sum(times_us) / len(times_us)
            waits_us = (job["exposed_ps"] / 1e6, job["barrier_ps"] / 1e6)
            rows.append((job["name"], rate_bps, order, barrier, mean_us, *waits_us))
    names = ("job", "rate_bps", "order", "barrier", "iteration_time_us", "exposed_us", "barrier_us")
    return Table.of({name: [row[index] for row in rows] for index, name in enumerate(names)})


def _what_ifs(scenario: Scenario) -> list[tuple[int, str, bool]]:
    """Return the rates, orders and barriers of `bandwidth`."""
    own = [job.schedule.order for job in scenario.jobs if job.schedule.order not in ("fifo", "priority")]
    orders = dict.fromkeys(("fifo", *own))
    orders = orders if len(orders) > 1 else dict.fromkeys(("fifo", "priority"))
    rates_bps = what_if_rates(scenario.link_rate_bps)
    senders = [job.name for job in scenario.jobs if job.workers > 1 and job.parameter_bytes]
    if any(job.is_pulled for job in scenario.jobs):
        senders = []
    return list(product(rates_bps if senders else (), orders, (True, False)))


def what_if_count(scenario: Scenario) -> int:
    """Return how many runs at other rates follow the run of a scenario on the command line."""
    return len(_what_ifs(scenario)) if has_what_ifs(scenario) else 0


def what_if_rates(own_bps: int) -> list[int]:
    """Return the link rates of the what-if runs: from below the run's own rate up to the fastest available links."""
    fastest_bps = max(WHAT_IF_RATES_BPS[-1], own_bps)
    multiples = {rate_bps for rate_bps in (own_bps // 2, own_bps, 2 * own_bps, 4 * own_bps) if rate_bps <= fastest_bps}
    known = {rate_bps for rate_bps in WHAT_IF_RATES_BPS if rate_bps * SLOWEST_WHAT_IF >= own_bps}
    return sorted((multiples | known) - {0})


def what_if(spec: dict[str, Any], rate_bps: int, order: str, barrier: bool) -> dict[str, Any]:
    """Change rate, order and barrier in a core input; few iterations, because without random draws they repeat."""
    spec["cluster"]["link"]["rate_bps"] = rate_bps
    spec["run"].update(duration_ps=None, timeline_iterations=0)
    for job in spec["jobs"]:
        own = job["schedule"]["order"]
        # The order of a plan counts as a user-defined order.
        if own["kind"] != order and (own["kind"], order) != ("planned", "file"):
            more: dict[str, dict[str, Any]] = {
                "priority": {"queues": None},
                "arbitrary": {"disorder_ppm": ARBITRARY_PPM},
            }
            job["schedule"]["order"] = {"kind": order, **more.get(order, {})}
        job["schedule"]["barrier"] = barrier
        job["iterations"] = min(job["iterations"] or WHAT_IF_ITERATIONS, WHAT_IF_ITERATIONS)
    return spec


def sample() -> Scenario:
    """Return a scenario of a few packets whose result has all figures that a result can have."""
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
