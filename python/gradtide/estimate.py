"""Estimates flows, packets, memory and time of a run before it starts, and checks them against limits.

All numbers are computed from the resolved scenario without random draws: they are expected values for random flows, and
exact for lists. Times and memory are accurate to a factor of about three; docs/reference/limits.md has the formulas.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gradtide import system, traffic, units
from gradtide.algorithms import ALGORITHMS
from gradtide.errors import Fault, ScenarioError
from gradtide.watch import BASE_BYTES, Watch, current, watching

if TYPE_CHECKING:
    from gradtide.scenario import Job, Scenario
    from gradtide.scenario.fabric import Fabric

# Time and memory per unit of work, measured on the machine of bench/history.jsonl. A faster machine needs less time.
PACKET_OVERHEAD_BYTES = 54
CONTROL_PACKETS_PER_FLOW = 11
NS_PER_HOP = 45.0
NS_PER_HOP_AND_DOUBLING = 10.0
NS_PER_MESSAGE = 500.0
NS_PER_FLUID_MESSAGE = 2_000.0
NS_PER_RING_MESSAGE = 4.0
NS_PER_ROUTE = 300.0
NS_PER_FLOW = 10_000.0
NS_PER_HOST = 3_000.0
NS_PER_OPERATION = 250.0
FORESEEN_RUNS = 4
"""Cost of a run with the policy `oracle` in units of an ordinary run. The policy simulates each transfer in advance, in
two copies of the run (one per priority band), until the transfer has ended in both."""
NS_PER_COPIED_FLOW = 10.0
"""Time to copy one background flow once."""
LEAST_CHUNK_BYTES = 64 * 1024
BYTES_PER_HOST = 2_500
BYTES_PER_LINK = 1_000
BYTES_PER_ROUTE = 4
BYTES_PER_MESSAGE = 650
BYTES_PER_TRANSFER = 250
BYTES_PER_WORKER_ITERATION = 400
BYTES_PER_OPERATION = 250
BYTES_PER_PACKET_UNDER_WAY = 100
WINDOW_BYTES = 32 * 1024 * 1024
"""Most bytes that a sender has in flight, and so the most bytes per connection in an unbounded queue."""

WHAT_IF_ITERATIONS = 20
"""Iterations of a what-if run, which repeats a run at another link rate. 20 suffice for the mean of random orders;
with other orders, all iterations from the second on are equal."""

SHARE_OF_MEMORY = 0.8
DEFAULT_MAX_S = 3600.0


@dataclass(frozen=True)
class Limits:
    """Limits of a run or study.

    Attributes:
        memory_bytes: memory of all concurrent runs together; `None` for 80 % of the memory that is free at the check.
        time_s: wall-clock time of the whole run or study.
    """

    memory_bytes: int | None = None
    time_s: float = DEFAULT_MAX_S

    @property
    def allowed_bytes(self) -> int:
        """Limit of memory, in bytes."""
        return int(SHARE_OF_MEMORY * system.free_bytes()) if self.memory_bytes is None else self.memory_bytes

    def watch(self) -> Watch:
        """Return a watch that enforces these limits from now on."""
        return Watch(self.allowed_bytes, self.time_s)


P = ParamSpec("P")
R = TypeVar("R")


def within_limits(study: Callable[P, R]) -> Callable[P, R]:
    """Return `study` with one deadline and one memory limit for all of its runs, taken from its argument `limits`."""

    @wraps(study)
    def watched(*args: P.args, **kwargs: P.kwargs) -> R:
        limits = kwargs.get("limits") or Limits()
        assert isinstance(limits, Limits)
        with watching(current() or limits.watch()):
            return study(*args, **kwargs)

    return watched


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run.

    Attributes:
        flows: number of background flows.
        iterations: number of iterations of all jobs together.
        packets: number of data packets and acknowledgements; 0 on the fluid engine, which has none.
        packet_hops: number of packets times the links that each crosses.
        events: number of events that the engine handles.
        memory_bytes: peak memory of the process.
        cpu_s: processor time, in seconds.
        mostly: the work that takes most of the time, in words.
        memory_mostly: the data that take most of the memory, in words.
    """

    flows: int
    iterations: int
    packets: int
    packet_hops: int
    events: int
    memory_bytes: int
    cpu_s: float
    mostly: str
    memory_mostly: str

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as `--estimate --json` prints them."""
        return {"schema": "gradtide.estimate/1", **asdict(self)}


@dataclass
class _Work:
    """Work of a run, summed over flows and jobs. Attributes that are not listed here are these sums.

    Attributes:
        scenario: scenario of the run.
        what_ifs: number of what-if runs at other link rates that follow the run.
        duration_s: duration of the run, in seconds; infinite if the scenario has none.
    """

    scenario: "Scenario"
    what_ifs: int
    duration_s: float
    flows: int = 0
    segments: float = 0.0
    messages: float = 0.0
    message_ns: float = 0.0
    operations: float = 0.0
    operations_after: float = 0.0
    transfers: float = 0.0
    iterations: int = 0
    worker_iterations: int = 0
    at_once: int = 0
    copied: int = 0

    @property
    def is_packet(self) -> bool:
        return self.scenario.engine == "packet"

    @property
    def link_segments(self) -> float:
        """Maximum number of segments that a host's link carries within the duration."""
        rate_bytes_per_s = self.scenario.link_rate_bps / 8
        return self.duration_s * rate_bytes_per_s / (self.scenario.segment_bytes + PACKET_OVERHEAD_BYTES)

    @cached_property
    def is_alone(self) -> bool:
        """Whether the scenario is one job on the fluid engine, which then simulates only one exchange of each size."""
        jobs = [(job.is_pulled, job.schedule.credit) for job in self.scenario.jobs]
        return not self.is_packet and not self.scenario.traffic_names and jobs == [(False, 1)]

    def add_flows(self, count: int, size_bytes: int) -> None:
        """Add the flows of a tenant."""
        self.flows += count
        most = self.scenario.hosts * self.link_segments
        self.segments += min(size_bytes / self.scenario.segment_bytes + count, most)

    def add_parallel(self, job: "Job") -> None:
        """Add a job whose model is divided over ranks."""
        # Without an entry in `ranks_load`, one rank per class is simulated, with one or two flows per transfer.
        of_classes = (job.op_count, int(not self.is_packet) * job.op_count, 0)
        ops, each, crossing_bytes = self.scenario.ranks_load.get(job.name, of_classes)
        count = job.iterations or 1
        self.iterations += count
        self.operations += ops * count
        self.transfers += ops * count
        self.messages += each * count
        self.message_ns += each * count * NS_PER_FLUID_MESSAGE
        self.segments += crossing_bytes * count / self.scenario.segment_bytes

    def add(self, job: "Job", count: int) -> None:
        """Add a data-parallel job with this number of iterations."""
        fabric, counts, depth = self.scenario.fabric, job.counts, job.schedule.most_parts
        buckets, chunks = _parts(job) if len(job.hosts) > 1 else (0, 0)
        # Across nodes and in trees, the fluid engine represents all messages of a rank by one flow. On a single switch
        # these flows do not interfere.
        of_flows = 0 if self.is_packet else _flows_of_an_exchange(job, fabric)
        is_computed = of_flows > 0 and self.is_alone and _is_apart(fabric) and math.isinf(self.scenario.host_rate_bps)
        rounds = 1 if is_computed or depth > 1 else max(1, counts.steps)
        at_a_time = of_flows * rounds if of_flows else counts.messages * depth
        sent = at_a_time * chunks * (min(count, 1) if self.is_alone else count)
        if job.is_pulled:
            buckets = chunks = 2 * job.parameter_count * job.workers
            sent = buckets * count
        sent_bytes = float(counts.sent) * job.parameter_bytes * count
        per_message = max(1.0, sent_bytes / max(1, sent) / self.scenario.segment_bytes)
        self.iterations += count
        self.transfers += buckets * count
        # Identical workers run in lock step, so that only one is simulated.
        programs = job.workers if job.is_pulled or job.is_uneven or job.compute.order == "random" else 1
        self.operations += (job.op_count * programs + chunks) * count
        after = self.what_ifs * min(count, WHAT_IF_ITERATIONS)
        self.operations_after += (job.op_count * programs + chunks) * after
        self.worker_iterations += programs * count
        if self.is_packet:
            crossing = min(float(sent), job.workers * self.link_segments)
            self.messages += crossing
            self.message_ns += crossing * NS_PER_MESSAGE
            self.segments += min(sent * per_message, job.workers * self.link_segments)
        else:
            self.messages += sent
            # Ring neighbours mostly use disjoint routes; messages are then not simulated individually.
            is_ring = self.is_alone and ALGORITHMS[job.collective.kind].is_ring and depth == 1 and not of_flows
            # On a single switch all ranks are in lock step, so a closed form gives the end of an exchange.
            in_lock_step = is_ring and fabric.kind == "star" and fabric.switch_count == 1
            is_known = is_computed or is_ring
            ns_each = 0.0 if in_lock_step else NS_PER_RING_MESSAGE if is_known else NS_PER_FLUID_MESSAGE
            # What-if runs at other rates have the same cost per message.
            self.message_ns += (1 + self.what_ifs) * sent * ns_each
        self.at_once += of_flows or counts.messages * depth // max(1, counts.steps)
        self.copied += 2 * chunks * count * self.flows if job.is_foreseen else 0


def estimate(scenario: "Scenario", what_ifs: int = 0) -> Estimate:
    """Estimate size and cost of a run of `scenario`, without drawing or running anything.

    Args:
        scenario: scenario of the run.
        what_ifs: number of what-if runs at other link rates that follow the run, each of `WHAT_IF_ITERATIONS`
            iterations.

    On the packet engine the number of segments is limited by the capacity of the hosts' links within the duration.
    """
    work = _Work(scenario, what_ifs, math.inf if scenario.duration_ps is None else scenario.duration_ps / 1e12)
    for count, size_bytes in scenario.expected_traffic:
        work.add_flows(count, size_bytes)
    counts_of = _iterations_of(scenario, work.duration_s, scenario.link_rate_bps / 8)
    for job in scenario.jobs:
        if job.is_parallel:
            work.add_parallel(job)
        else:
            work.add(job, counts_of[job.name])
    return _estimated(work)


def _estimated(work: _Work) -> Estimate:
    scenario, what_ifs, fabric = work.scenario, work.what_ifs, work.scenario.fabric
    links, routes = 2 * fabric.cable_count, fabric.switch_count * fabric.edge_count
    inner = links - 2 * fabric.end_count
    flows, segments, messages, operations = work.flows, work.segments, work.messages, work.operations
    packets = 1.5 * segments + 0.5 * messages + CONTROL_PACKETS_PER_FLOW * flows if work.is_packet else 0.0
    hops = scenario.reach.hops * packets
    # With more hosts, less of the simulator's state fits into the processor's caches, so that a hop takes longer.
    ns_per_hop = NS_PER_HOP + NS_PER_HOP_AND_DOUBLING * math.log2(max(2, scenario.hosts))
    ns = {
        f"{_count(hops)} packet-hops": hops * ns_per_hop,
        f"{_count(messages)} messages of collectives": work.message_ns,
        f"{_count(flows)} flows": flows * NS_PER_FLOW + work.copied * NS_PER_COPIED_FLOW / FORESEEN_RUNS,
        f"{_count(scenario.hosts)} hosts": (1 + what_ifs) * (scenario.hosts * NS_PER_HOST + routes * NS_PER_ROUTE),
        f"{_count(operations)} operations of jobs": operations * NS_PER_OPERATION,
        f"{what_ifs} runs at other rates": work.operations_after * NS_PER_OPERATION,
    }
    under_way = min(
        packets,
        links * scenario.queue_packets,
        (flows + sum(job.workers for job in scenario.jobs)) * WINDOW_BYTES / scenario.segment_bytes,
    )
    rows = work.worker_iterations
    shown = operations * min(1.0, scenario.timeline / max(1, work.iterations))
    memory = {
        "the program itself": float(BASE_BYTES),
        f"{_count(flows)} flows": flows * float(traffic.BYTES_PER_FLOW),
        f"{_count(scenario.hosts)} hosts": scenario.hosts * float(BYTES_PER_HOST),
        f"{_count(fabric.switch_count)} switches": (inner * float(BYTES_PER_LINK) + routes * BYTES_PER_ROUTE),
        f"{_count(work.at_once)} messages at once": work.at_once * float(BYTES_PER_MESSAGE),
        f"{_count(work.transfers)} transfers": work.transfers * BYTES_PER_TRANSFER,
        f"{_count(rows)} iterations of workers": rows * BYTES_PER_WORKER_ITERATION,
        f"{_count(shown)} operations of the timeline": shown * BYTES_PER_OPERATION,
        f"{_count(under_way)} packets under way": under_way * BYTES_PER_PACKET_UNDER_WAY,
    }
    return Estimate(
        flows=flows,
        iterations=work.iterations,
        packets=round(packets),
        packet_hops=round(hops),
        events=round(hops + messages + operations + 2 * flows),
        memory_bytes=round(sum(memory.values())),
        cpu_s=(FORESEEN_RUNS if any(job.is_foreseen for job in scenario.jobs) else 1) * sum(ns.values()) / 1e9,
        mostly=max(ns, key=ns.__getitem__),
        memory_mostly=max(memory, key=memory.__getitem__),
    )


def _iterations_of(scenario: "Scenario", duration_s: float, rate_bytes_per_s: float) -> dict[str, int]:
    """Return the number of iterations of each job until the run ends.

    The run ends when every job has had time for its stated iterations, counted from the start of the last job. Until
    then, all jobs continue.
    """
    rate = min(rate_bytes_per_s, scenario.host_rate_bps / 8)
    last_start_s = max((job.start_ps for job in scenario.jobs), default=0) / 1e12
    each_s = {
        job.name: max(job.compute_ps / 1e12, float(job.counts.most) * job.parameter_bytes / rate, 1e-12)
        for job in scenario.jobs
        if not job.is_parallel
    }
    ends_s = [last_start_s + each_s[job.name] * (job.iterations or 0) for job in scenario.jobs if not job.is_parallel]
    is_limited = all(job.iterations is not None for job in scenario.jobs)
    until_s = min(duration_s, max(ends_s, default=0.0)) if is_limited else duration_s
    starts_s = {job.name: job.start_ps / 1e12 for job in scenario.jobs}
    return {name: max(1, math.ceil((until_s - starts_s[name]) / one_s - 1e-9)) for name, one_s in each_s.items()}


def _flows_of_an_exchange(job: "Job", fabric: "Fabric") -> int:
    """Return the number of flows that represent an exchange on the fluid engine; 0 if its messages are simulated."""
    nodes = Counter(host // getattr(fabric, "gpus", 1) for host in job.hosts)
    is_over_nodes = 1 < len(nodes) < len(job.hosts)
    kind = job.collective.kind
    has_flows = kind == "tree" or (is_over_nodes and ALGORITHMS[kind].uses_all_cards)
    return len(job.hosts) * (1 + is_over_nodes) if has_flows else 0


def _is_apart(fabric: "Fabric") -> bool:
    """Whether workers share no links, because there is a single switch and one network card per GPU."""
    return fabric.kind == "star" and getattr(fabric, "gpus", 1) == getattr(fabric, "nics", 1)


def _parts(job: "Job") -> tuple[int, int]:
    """Return the number of buckets and of chunks of an iteration."""
    schedule = job.schedule
    layers = [layer.parameter_bytes for layer in job.layers if layer.parameter_bytes]
    if schedule.buckets is not None:
        buckets = len(schedule.buckets)
    elif schedule.cap_bytes:
        buckets = min(len(layers), math.ceil(2 * job.parameter_bytes / schedule.cap_bytes))
    else:
        buckets = len(layers)
    if schedule.chunk_bytes is None:
        if schedule.order in ("edf", "optimal"):
            # These orders choose chunk sizes themselves: at least 64 KiB, typically megabytes.
            return buckets, buckets + math.ceil(job.parameter_bytes / LEAST_CHUNK_BYTES)
        return buckets, buckets
    return buckets, max(buckets, sum(-(-size // schedule.chunk_bytes) for size in layers))


def check(scenarios: "Sequence[Scenario]", limits: Limits, jobs: int = 1, what_ifs: int = 0) -> list[Estimate]:
    """Raise an error if the estimate of some runs exceeds their limits.

    Args:
        scenarios: the runs.
        limits: largest time and memory of the runs together.
        jobs: number of concurrent runs.
        what_ifs: number of what-if runs at other link rates after each run.

    Returns:
        The estimate of every run.

    Raises:
        ScenarioError: GT053, with the estimated cost, its largest part, and the option that allows the cost.
    """
    total = Total(jobs)
    estimates = [total.add(scenario, what_ifs) for scenario in scenarios]
    total.check(limits)
    return estimates


class Total:
    """Time and memory of several runs, of which `jobs` are executed concurrently.

    `neighbours` is the number of concurrent runs that share the memory of one machine. Default: `jobs`.
    """

    def __init__(self, jobs: int = 1, neighbours: int | None = None) -> None:
        self.count, self.cpu_s = 0, 0.0
        self._jobs, self._neighbours = jobs, neighbours or jobs
        self._largest: list[tuple[int, str, str]] = []
        self._longest = (0.0, "", "")

    def add(self, scenario: "Scenario", what_ifs: int = 0, times: int = 1) -> Estimate:
        """Count `times` runs of a scenario, each with `what_ifs` what-if runs; return the estimate of one run."""
        one = estimate(scenario, what_ifs)
        self.count += times
        self.cpu_s += times * one.cpu_s
        self._largest += min(times, self._neighbours) * [(one.memory_bytes, one.memory_mostly, scenario.name)]
        self._largest = sorted(self._largest, key=lambda run: run[0], reverse=True)[: self._neighbours]
        if one.cpu_s > self._longest[0]:
            self._longest = (one.cpu_s, one.mostly, scenario.name)
        return one

    @property
    def time_s(self) -> float:
        """Wall-clock time of all runs, in seconds."""
        return max(self.cpu_s / max(1, min(self._jobs, self.count)), self._longest[0])

    @property
    def memory_bytes(self) -> int:
        """Memory of all concurrent runs, in bytes."""
        return BASE_BYTES + sum(run[0] - BASE_BYTES for run in self._largest)

    def to_dict(self) -> dict[str, Any]:
        """Return memory and time as `--estimate --json` prints them, each with its largest part."""
        mostly = {"mostly": self._longest[1], "memory_mostly": self._largest[0][1] if self._largest else ""}
        return {"memory_bytes": self.memory_bytes, "cpu_s": self.cpu_s, "time_s": self.time_s, **mostly}

    def check(self, limits: Limits) -> None:
        """Raise an error if the runs exceed their limits.

        Raises:
            ScenarioError: GT053, as the function `check`.
        """
        if not self.count:
            return
        memory_bytes = self.memory_bytes
        allowed_bytes = limits.allowed_bytes
        whose = "is 80 % of the memory that is free" if limits.memory_bytes is None else "is allowed"
        faults = []
        if memory_bytes > allowed_bytes:
            _, mostly, name = self._largest[0]
            msg = (
                f"the run would take about {units.memory_words(memory_bytes)} of memory, most of it for "
                f"{mostly}; {units.memory_words(allowed_bytes)} {whose}"
            )
            hint = f"make it smaller, or allow it: --max-memory {units.memory_asked(memory_bytes)}"
            faults.append(Fault("GT053", "", msg, None, hint, name))
        if self.time_s > limits.time_s:
            _, mostly, name = self._longest
            what = "run" if self.count == 1 else f"{self.count} runs"
            msg = (
                f"the {what} would take about {units.time_words(self.time_s)}, most of it for {mostly}; "
                f"{units.time_words(limits.time_s)} is allowed"
            )
            hint = f"make it smaller, or allow it: --max-time {units.time_asked(self.time_s)}"
            faults.append(Fault("GT053", "", msg, None, hint, name))
        if faults:
            raise ScenarioError(faults)


COUNTED = ("flows", "iterations", "packets", "packet_hops", "events")


class NothingRun(Exception):  # noqa: N818 - not an error, if only the estimate of a study is wanted
    """Ends a study after its runs have been counted, before any of them starts."""


class Work:
    """The runs of a study, counted instead of executed; `jobs` is the number of runs that would be concurrent.

    Attributes:
        total: memory and time of all runs.
        counts: each of the numbers `COUNTED`, summed over all runs.
        why: reason why the study may need fewer runs; empty if the number is exact.
        note: description of work that is not counted.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.total, self.counts = Total(jobs), dict.fromkeys(COUNTED, 0)
        self.why = self.note = ""

    def add(self, scenario: "Scenario", what_ifs: int = 0, times: int = 1) -> None:
        """Count `times` runs of a scenario."""
        one = self.total.add(scenario, what_ifs, times)
        for name in COUNTED:
            self.counts[name] += times * int(getattr(one, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `--estimate --json` prints."""
        head = {"schema": "gradtide.estimate/1", "runs": self.total.count, "is_upper_bound": bool(self.why)}
        said = {key: text for key, text in (("why", self.why), ("note", self.note)) if text}
        return {**head, **said, **self.counts, **self.total.to_dict()}


_counted: ContextVar[Work | None] = ContextVar("counted", default=None)


def work_of(study: Callable[[], object], jobs: int = 1) -> Work:
    """Return the number and cost of a study's runs without executing them.

    Args:
        study: function that begins the study; `foresee` ends the study before its first run.
        jobs: number of concurrent runs.

    Raises:
        ScenarioError: any error of the study before its first run, except for exceeded limits.
    """
    work = Work(jobs)
    token = _counted.set(work)
    try:
        study()
    except NothingRun:
        pass
    finally:
        _counted.reset(token)
    return work


def foresee(
    runs: "Callable[[], Iterable[tuple[Scenario, int]]]", why: str = "", what_ifs: int = 0, note: str = ""
) -> None:
    """Count the runs of a study and end the study if only its estimate is wanted; otherwise do nothing.

    Every study calls this function through `run_all`. A study whose later runs depend on earlier ones calls it before
    its first run.

    Args:
        runs: returns the scenarios of the study, or the most scenarios that it may need, each with its number of runs.
        why: reason why the study may need fewer runs; empty if the number is exact.
        what_ifs: number of what-if runs at other link rates after each run.
        note: description of further work of the study, which is not counted.

    Raises:
        NothingRun: if only the estimate is wanted.
    """
    work = _counted.get()
    if work is None:
        return
    for scenario, times in runs():
        work.add(scenario, what_ifs, times)
    work.why, work.note = work.why or why, work.note or note
    raise NothingRun


def limits(max_memory: str | None = None, max_time: str | None = None) -> Limits:
    """Read limits with their units.

    Args:
        max_memory: memory limit, as in `64GB`; `None` for 80 % of the free memory.
        max_time: time limit, as in `10h`; `None` for an hour.

    Raises:
        ValueError: if a text has no unit or is no quantity.
    """
    try:
        memory_bytes = None if max_memory is None else units.parse_bytes(max_memory)
    except units.UnitError as error:
        raise ValueError(f"max_memory: {error}") from None
    return Limits(memory_bytes, DEFAULT_MAX_S if max_time is None else _seconds(max_time))


def _seconds(text: str) -> float:
    # `units.parse_time` is not used, because a limit on wall-clock time may exceed the range of simulated time.
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|min|h|d)\s*", text, re.ASCII)
    if match is not None:
        return float(match[1]) * {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}[match[2]]
    raise ValueError(f'max_time: "{text}" is not a time; write a number and its unit: s, min, h or d, as in 10h')


def _count(number: float) -> str:
    """Write a number in full, in thousands or millions with three digits, or from 10^9 on as in `1.2·10^9`."""
    if number < 1e5:
        return f"{number:,.0f}"
    for word, size in (("million", 1e6), ("thousand", 1e3)):
        if number >= size and number < 1e9:
            return f"{number / size:,.3g} {word}"
    return f"{number:.1e}".replace("e+", "·10^").replace("^0", "^")
