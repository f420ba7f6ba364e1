"""From the keys of a file to jobs that can be run: what one key means for another, and every fault at once.

    data -> ScenarioFile (types, units) -> jobs (models read, hosts given out, limits checked)

A value that pydantic refuses is left out and the rest is checked with its default, so that one fault does
not hide others.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from gradtide import units
from gradtide.errors import Fault, ScenarioError
from gradtide.layers import Layer
from gradtide.scenario.check import example, plain, read_keys
from gradtide.scenario.keys import (
    PPM,
    Adaptive,
    Cluster,
    JobPriority,
    JobTable,
    Priority,
    Queue,
    Run,
    ScenarioFile,
    Schedule,
    Straggler,
    ThesisModel,
    Topology,
    TrafficTable,
)
from gradtide.scenario.neighbours import Origin, read_origin
from gradtide.scenario.source import Failure, Loc, Source, read_text
from gradtide.scenario.tables import LayerTable, read_model, read_ranking, scaled
from gradtide.traffic import MAX_FLOWS, too_many

DEFAULT_ITERATIONS = 10
MAX_WORKERS = 1_000_000
MAX_ITERATIONS = 100_000
# Differences of times need a sign: half of what 64 bits count.
MAX_RUN_PS = units.U64_MAX // 2
MAX_OPERATIONS = 1_000_000_000
"""Layers and chunks times iterations that one run may have; calibration, about a minute of work."""

MAX_WORKER_RECORDS = 20_000_000
"""Workers that differ times iterations: each is a row of `workers.csv`. The core keeps no more."""

MAX_SEGMENT_BYTES = 65_535 - 52
"""Payload of the largest IPv4 packet with TCP's header and timestamps."""

HEADER_BYTES = 54
"""IPv4, TCP, timestamps and framing on the wire."""

SOCKET_BYTES = 32 * 1024 * 1024
"""Send and receive buffer (Gao 2020, chapter 5)."""

DCTCP_GAIN_PPM = 62_500
"""RFC 8257, 4.2: g = 1/16."""

MAX_PACKETS = 2**32 - 1
MAX_BANDS = 8
QUEUE_KEYS = {
    "bands": ("strict",),
    "weights": ("drr",),
    "threshold": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "mark_at": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "min": ("red",),
    "max": ("red",),
    "max_probability": ("red",),
    "weight": ("red",),
    "ecn": ("red",),
}
"""Keys of a queue, and the kinds that they are for."""

RED_DEFAULTS = {"max_probability": 0.1, "weight": 0.002, "ecn": False}
"""Floyd & Jacobson (1993), section 6, recommend the weight; the probability is that of Floyd's later advice (1997)."""

FLOW_KEYS = ("sizes", "cdf", "replay", "flows", "incast")
"""Keys of a neighbour that say what its flows are; one of them."""

_JOB_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST = re.compile(r"h(0|[1-9]\d{0,8})")


@dataclass(frozen=True)
class Job:
    """A training job, resolved.

    Attributes:
        name: key of the job in the scenario.
        model: name of the model in results.
        hosts: host of each worker, by index into the cluster's hosts.
        layers: times of one worker for one mini-batch, after `compute.scale_to`; input side first.
        iterations: measured iterations; `None` if `run.duration` decides.
        collective: algorithm that aggregates a bucket.
        drops_remainder: whether a bucket's rest after division by the workers is not sent.
        order: order of the transmission queue.
        fusion_bytes: cap of a bucket; 0 leaves every layer alone.
        buckets: in place of the cap, the number of layers in each bucket, from the input side.
        chunk_bytes: largest part sent at once; `None` sends a bucket whole.
        queues: classes of priority order; `None` gives each layer its own.
        ranks: with order "file", rank of every layer; smaller is sent earlier.
        barrier: whether the next forward pass waits for all transfers.
        bands: bands of the job's flows, shared out evenly over the layers from the input side; `None` if adaptive.
        start_ps: simulated time at which the job starts.
        overhead_ps: time for which a transfer holds the queue before its first byte.
        sync_ps: time from the end of a transfer on all workers to the earliest start of the next.
        overlap_slowdown_ppm: time of a unit of compute beside a transfer, in millionths.
        noise_ppm: coefficient of variation of a worker's compute time, in millionths.
        straggler: the slow worker, if there is one.
        device: device that the times come from; `None` if the model has times of its own.
        batch: mini-batch of a worker; `None` if the model has times of its own.
    """

    name: str
    model: str
    hosts: tuple[int, ...]
    layers: tuple[Layer, ...]
    iterations: int | None
    collective: str
    drops_remainder: bool
    order: str
    fusion_bytes: int
    buckets: tuple[int, ...] | None
    chunk_bytes: int | None
    queues: int | None
    ranks: tuple[int, ...] | None
    barrier: bool
    bands: tuple[int, ...] | None
    start_ps: int
    overhead_ps: int
    sync_ps: int
    overlap_slowdown_ppm: int
    noise_ppm: int
    straggler: Straggler | None
    device: str | None
    batch: int | None

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.hosts)

    @property
    def is_uneven(self) -> bool:
        """Whether workers differ in the time they compute."""
        return self.noise_ppm > 0 or self.straggler is not None

    @property
    def compute_ps(self) -> int:
        """Compute time of one iteration, without noise or straggler."""
        return sum(r.forward_ps + r.backward_ps + r.update_ps for r in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the whole gradient."""
        return sum(r.parameter_bytes for r in self.layers)


@dataclass
class Resolved:
    """A scenario whose faults have all been looked for.

    Attributes:
        file: the keys, with defaults.
        host_count: hosts of the cluster.
        jobs: the jobs, in the order of the file.
        origins: where each neighbour's flows come from, in the order of the file.
        written: the resolved scenario as plain data.
    """

    file: ScenarioFile
    host_count: int
    jobs: tuple[Job, ...]
    origins: tuple[Origin, ...]
    written: dict[str, Any]


def resolve(data: Mapping[str, Any], source: Source, base_dir: Path) -> Resolved:
    """Read a scenario.

    Args:
        data: what the file says.
        source: where it says so.
        base_dir: directory that relative paths start from.

    Raises:
        ScenarioError: with every fault, in the order of the file.
    """
    raw = plain(data, source)
    if not raw:
        hint = 'the least is [job.train] with model = "resnet50" and workers = 8'
        raise ScenarioError([source.fault("GT005", (), "the scenario is empty", hint, None)])
    file, faults, bad = read_keys(raw, source)
    resolver = _Resolver(file, source, base_dir, raw, bad, faults)
    result = resolver.result()
    if faults:
        raise ScenarioError(sorted(faults, key=lambda f: (f.file != source.name, f.file, f.line or 0)))
    assert result is not None  # without faults every job was resolved
    return result


def bands_of(queue: Queue) -> int:
    """Return the number of bands that a queue has."""
    return {"pfifo_fast": 3, "strict": queue.bands or 1, "drr": len(queue.weights or [1])}.get(queue.kind, 1)


def marks(queue: Queue) -> bool:
    """Return whether a queue marks where others drop."""
    return queue.threshold is not None or queue.kind == "pcn" or bool(queue.ecn)


@dataclass(frozen=True)
class Transport:
    """The transport of every flow, resolved.

    Attributes:
        congestion: newreno, cubic, dctcp or ideal.
        ecn: whether connections negotiate ECN.
        gain_ppm: DCTCP's g in millionths; `None` for the others.
        segment_bytes: payload of a full segment.
        initial_segments: initial window; without effect on the ideal transport.
        window_bytes: send and receive buffer, and the window of the ideal transport.
        recovery: sack or ns3.30.
    """

    congestion: str
    ecn: bool
    gain_ppm: int | None
    segment_bytes: int
    initial_segments: int
    window_bytes: int
    recovery: str

    def written(self) -> dict[str, Any]:
        """Return the keys of `cluster.transport`."""
        table: dict[str, Any] = {"kind": self.congestion, "ecn": self.ecn}
        if self.gain_ppm is not None:
            table["gain"] = self.gain_ppm / PPM
        return table | {
            "segment": units.format_bytes(self.segment_bytes),
            "initial_cwnd": self.initial_segments,
            "window": units.format_bytes(self.window_bytes),
            "recovery": self.recovery,
        }


def transport_of(cluster: Cluster) -> Transport:
    """Return the transport of a cluster with its defaults."""
    keys = cluster.transport
    congestion, plus, _ = keys.kind.partition("+ecn")
    if keys.window is not None:
        window_bytes = keys.window
    else:
        window_bytes = _two_routes_bytes(cluster) if congestion == "ideal" else SOCKET_BYTES
    return Transport(
        congestion=congestion,
        ecn=bool(plus) or (congestion == "dctcp" if keys.ecn is None else keys.ecn),
        gain_ppm=(keys.gain or DCTCP_GAIN_PPM) if congestion == "dctcp" else None,
        segment_bytes=keys.segment,
        initial_segments=keys.initial_cwnd,
        window_bytes=window_bytes,
        recovery=keys.recovery,
    )


def _two_routes_bytes(cluster: Cluster) -> int:
    """Return twice the segments that fit into a round trip over the two links of a star without queues.

    Once keeps the sender's link busy; twice leaves room for delayed acknowledgements and for those that wait.
    """
    link, segment = cluster.link, cluster.transport.segment
    packet_ps, ack_ps = (-(-n * 8 * 10**12 // link.rate) for n in (segment + HEADER_BYTES, HEADER_BYTES))
    round_ps = 2 * (2 * (link.delay + cluster.host_latency) + packet_ps + ack_ps)
    return int(2 * -(-round_ps // packet_ps) * segment)


def pace_ppm(job: Job) -> tuple[int, int]:
    """Return the least and the largest factor on a worker's compute times, in millionths."""
    width = -(-job.noise_ppm * 1_732_051 // PPM)
    straggler = PPM if job.straggler is None else job.straggler.factor
    return PPM - width, -(-(PPM + width) * straggler // PPM)


# ── what keys mean for one another ────────────────────────────────────────────────────────────────────────


def _is_remade(model: object) -> TypeGuard[ThesisModel]:
    """Whether a model's table is made anew for another time, with its rounding and surplus, and not stretched.

    The cells of the thesis's study differ in the time that its author's program was given.
    """
    return isinstance(model, ThesisModel) and model.precision == "float32"


@dataclass
class _Resolver:
    file: ScenarioFile
    source: Source
    base_dir: Path
    raw: dict[str, Any]
    bad: set[Loc]
    faults: list[Fault]
    tables: dict[str, LayerTable] = field(default_factory=dict)
    rankings: dict[str, list[str]] = field(default_factory=dict)

    def result(self) -> Resolved | None:
        file = self.file
        for kind, names in (("job", file.job), ("traffic", file.traffic)):
            for name in names:
                if not _JOB_NAME.fullmatch(name):
                    hint = "letters, digits, - and _, at most 64"
                    self.add("GT018", (kind, name), f'"{name[:80]}" cannot be a name', hint, name, at_key=True)
        if not file.job and self.ok("job"):
            hint = 'write [job.train] with model = "resnet50" and workers = 8'
            self.add("GT010", ("job",), "the scenario has no job", hint)
        host_count = self.topology(file.cluster.topology)
        self.cluster()
        self.run_keys()
        hosts = self.hosts(host_count)
        if host_count is None:
            given = [max(h, default=-1) + 1 for h in hosts.values()]
            host_count = max([1, *given])
            hosts_are_known = len(hosts) == len(file.job) and self.ok("cluster", "topology")
        else:
            hosts_are_known = True
        self.probe(host_count if hosts_are_known else None)
        origins = self.neighbours(host_count if hosts_are_known else None)
        jobs = [self.job(name, job, hosts.get(name)) for name, job in file.job.items()]
        if self.faults:
            return None
        resolved = tuple(job for job in jobs if job is not None)
        self.limits(resolved)
        return Resolved(file, host_count, resolved, origins, self.written(resolved, origins, host_count))

    def add(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None, *, at_key: bool = False) -> None:
        self.faults.append(self.source.fault(code, loc, msg, hint, value, at_key=at_key))

    def ok(self, *loc: str) -> bool:
        """Whether the value at a path, or the one inside it that matters, is what the user wrote."""
        return not any(b == loc[: len(b)] or loc == b[: len(loc)] for b in self.bad)

    def misspelt(self, loc: Loc, *keys: str) -> bool:
        """Whether an unknown key of a table, already a fault, was probably meant to be one of `keys`."""
        unknown = [str(b[-1]) for b in self.bad if b[:-1] == loc]
        known = {*JobTable.model_fields, *TrafficTable.model_fields, *Queue.model_fields, *Run.model_fields}
        return any(difflib.get_close_matches(u, keys, 1, 0.5) for u in unknown if u not in known)

    # cluster

    def topology(self, topology: Topology) -> int | None:
        """Check the shape; return its number of hosts, or `None` if the jobs decide or it cannot be known."""
        loc: Loc = ("cluster", "topology")
        if not self.ok("cluster", "topology"):
            return None
        allowed = {
            "star": ("hosts",),
            "leaf_spine": ("hosts", "leaves", "spines", "bisection"),
            "clos2": ("ports", "bisection"),
            "clos3": ("ports", "bisection"),
            "custom": ("links",),
        }[topology.kind]
        needed = {"leaf_spine": ("hosts", "leaves"), "star": ()}.get(topology.kind, allowed[:1])
        for key in Topology.model_fields:
            if key != "kind" and key not in allowed and getattr(topology, key) is not None:
                self.no_effect((*loc, key), f'with kind = "{topology.kind}"', "it has " + ", ".join(allowed))
        for key in needed:
            if getattr(topology, key) is None:
                hint = example(key, Topology.model_fields[key])
                self.add("GT010", (*loc, key), f'kind = "{topology.kind}" needs `{key}`', hint)
        if topology.hosts is not None and topology.hosts > MAX_WORKERS:
            self.too_many((*loc, "hosts"), topology.hosts, MAX_WORKERS, "hosts")
            return None
        if topology.kind in ("clos2", "clos3"):
            if topology.ports is None:
                return None
            if topology.ports % 2:
                self.add(
                    "GT014",
                    (*loc, "ports"),
                    "the number of ports is odd",
                    "write an even number",
                    topology.ports,
                )
            return topology.ports**2 // 2 if topology.kind == "clos2" else topology.ports**3 // 4
        if topology.kind == "custom":
            ends = {end for link in topology.links or [] for end in (link.a, link.b)}
            numbers = {int(end[1:]) for end in ends if _HOST.fullmatch(end)}
            return max(numbers) + 1 if numbers and max(numbers) < MAX_WORKERS else None
        return topology.hosts

    def cluster(self) -> None:
        """Check queue, transport and link against one another and against the engine."""
        self.queue(self.file.cluster.queue)
        self.transport(self.file.cluster)
        if self.is_packet and self.file.cluster.link.efficiency != PPM and self.ok("cluster", "link", "efficiency"):
            hint = "leave it out: headers and retransmissions are simulated"
            self.no_effect(("cluster", "link", "efficiency"), 'with engine = "packet"', hint)

    def transport(self, cluster: Cluster) -> None:
        loc: Loc = ("cluster", "transport")
        if not self.ok("cluster", "transport"):
            return
        keys, queue = cluster.transport, cluster.queue
        kind, plus, _ = keys.kind.partition("+ecn")
        if keys.segment > MAX_SEGMENT_BYTES:
            msg = f"a segment of {keys.segment:,} bytes fits into no packet"
            self.add("GT014", (*loc, "segment"), msg, f'write at most "{MAX_SEGMENT_BYTES}B"', keys.segment)
        elif keys.window is not None and keys.window < keys.segment:
            msg = f"a window of {keys.window:,} bytes holds no segment of {keys.segment:,}"
            self.add("GT014", (*loc, "window"), msg, "write a few segments at least", keys.window)
        if keys.gain is not None and kind != "dctcp":
            self.no_effect((*loc, "gain"), f'with kind = "{keys.kind}"', 'it is for kind = "dctcp"')
        if keys.ecn and kind == "ideal":
            self.no_effect((*loc, "ecn"), 'with kind = "ideal"', "leave it out: the window does not answer marks")
        elif keys.ecn is False and (plus or kind == "dctcp"):
            msg = f'`ecn = false` contradicts kind = "{keys.kind}"'
            self.add("GT016", (*loc, "ecn"), msg, f'leave it out, or write kind = "{kind if plus else "newreno"}"')
        elif transport_of(cluster).ecn and not marks(queue) and self.is_packet:
            if not self.ok("cluster", "queue"):
                return
            never = f'queue.kind = "{queue.kind}" never marks without `{"ecn" if queue.kind == "red" else "threshold"}`'
            hint = 'write queue = { kind = "ecn", threshold = "65pkt" }'
            if keys.ecn:
                self.no_effect((*loc, "ecn"), f"here: {never}", hint)
            else:
                less = kind if plus else "newreno"
                msg = f'kind = "{keys.kind}" is "{less}" here: {never}'
                self.add("GT015", (*loc, "kind"), msg, f'{hint}, or kind = "{less}"', keys.kind)

    def queue(self, queue: Queue) -> None:
        loc: Loc = ("cluster", "queue")
        if not self.ok("cluster", "queue"):
            return
        for key, kinds in QUEUE_KEYS.items():
            if getattr(queue, key) is not None and queue.kind not in kinds:
                words = "any other kind" if key in ("threshold", "mark_at") else f'kind = "{kinds[0]}"'
                self.no_effect((*loc, key), f'with kind = "{queue.kind}"', f"it is for {words}")
        for kind, key in (
            ("strict", "bands"),
            ("drr", "weights"),
            ("ecn", "threshold"),
            ("red", "min"),
            ("red", "max"),
        ):
            if queue.kind == kind and getattr(queue, key) is None and not self.misspelt(loc, key):
                hint = example(key, Queue.model_fields[key])
                self.add("GT010", (*loc, key), f'kind = "{kind}" needs `{key}`', hint)
        if queue.mark_at is not None and queue.threshold is None and queue.kind not in ("ecn", "red"):
            self.no_effect((*loc, "mark_at"), "without `threshold`", "nothing is marked")
        if queue.weights is not None and not 1 <= len(queue.weights) <= MAX_BANDS:
            msg = f"{len(queue.weights)} bands are out of range"
            self.add("GT014", (*loc, "weights"), msg, f"write 1 to {MAX_BANDS} weights", queue.weights)
        if queue.min is not None and queue.max is not None and queue.min >= queue.max:
            msg = f"the least average of {queue.min:,} packets is not below the greatest of {queue.max:,}"
            self.add("GT014", (*loc, "min"), msg, "lower it", queue.min)
        for key in ("threshold", "max"):
            self.within_capacity(queue, key)
        self.buffer(queue.capacity, (*loc, "capacity"))
        if self.file.cluster.switch_buffer is not None and self.ok("cluster", "switch_buffer"):
            self.buffer(self.file.cluster.switch_buffer.capacity, ("cluster", "switch_buffer", "capacity"))

    def buffer(self, buffer: units.Buffer, loc: Loc) -> None:
        if not buffer.is_bytes and buffer.size > MAX_PACKETS:
            msg, hint = f"{buffer.size:,} packets are too many", f'write at most "{MAX_PACKETS}pkt"'
            self.add("GT014", loc, msg, hint, units.format_buffer(buffer))

    def within_capacity(self, queue: Queue, key: str) -> None:
        """Refuse a length that no queue reaches; a host's port has `capacity` even where a switch shares its buffer."""
        length: int | None = getattr(queue, key)
        capacity = queue.capacity
        if length is not None and not capacity.is_bytes and length > capacity.size:
            msg = f"{length:,} packets are beyond the capacity of {capacity.size:,}"
            hint = "no packet would be marked; lower it" if key == "threshold" else "no queue gets so long; lower it"
            self.add("GT014", ("cluster", "queue", key), msg, hint, length)

    @property
    def is_packet(self) -> bool:
        return self.file.run.engine == "packet" and self.ok("run", "engine")

    def run_keys(self) -> None:
        """Check the length of the run against warm-up, cool-down and traffic."""
        run, has_traffic = self.file.run, bool(self.file.traffic)
        if not self.ok("run", "duration"):
            return
        if run.duration is None and has_traffic and not self.misspelt(("run",), "duration"):
            msg = "`duration` is missing: neighbours' flows do not end by themselves"
            self.add("GT010", ("run", "duration"), msg, 'write duration = "12s"')
        if not (self.ok("run", "warmup") and self.ok("run", "cooldown")):
            return
        for key in ("warmup", "cooldown"):
            if getattr(run, key) and self.is_packet and not has_traffic and self.ok("traffic"):
                self.no_effect(("run", key), "without traffic", "it is for neighbours' flows; leave it out")
        if run.duration is not None and run.warmup + run.cooldown >= run.duration:
            key = "warmup" if run.warmup >= run.cooldown else "cooldown"
            parts = f"{units.format_time(run.warmup)} and {units.format_time(run.cooldown)}"
            msg = f"warm-up and cool-down ({parts}) leave nothing of {units.format_time(run.duration)}"
            self.add("GT052", ("run", key), msg, "shorten them, or lengthen `duration`", getattr(run, key))

    def probe(self, host_count: int | None) -> None:
        """Check that what is to be sampled is there."""
        probe, loc = self.file.run.probe, ("run", "probe")
        if probe is None or not self.ok("run", "probe"):
            return
        for index, link in enumerate(probe.links or ()):
            number = _HOST.fullmatch(link.removeprefix("s-"))
            if number is None or (host_count is not None and int(number[1]) >= host_count):
                last = "" if host_count is None else f" to h{host_count - 1} and s-h{host_count - 1}"
                hint = f"links are h0 and s-h0{last}"
                self.add("GT013", (*loc, "links", index), f'unknown link "{link[:80]}"', hint, link)
        for key, given in (("links", probe.links), ("cwnd", probe.cwnd)):
            for index, name in enumerate(given or ()):
                if name in (given or ())[:index]:
                    hint = "the second has no effect"
                    self.add("GT015", (*loc, key, index), f'"{name[:80]}" is named twice', hint, name)
        for index, name in enumerate(probe.cwnd or ()):
            owner, _, flow = name.partition(".")
            if (owner not in self.file.job and owner not in self.file.traffic) or (
                flow and (owner not in self.file.traffic or not re.fullmatch(r"\d{1,9}", flow, re.ASCII))
            ):
                names = ", ".join([*self.file.job, *self.file.traffic])
                hint = f"there is {names}; a single flow of a neighbour is NAME.NUMBER"
                self.add("GT013", (*loc, "cwnd", index), f'"{name[:80]}" names no connection', hint, name)

    def band(self, priority: Priority, loc: Loc) -> int | None:
        """Return the band that a priority means on this queue; `None` if it is adaptive or at fault."""
        if isinstance(priority, Adaptive):
            return None
        queue = self.file.cluster.queue
        band_count = bands_of(queue)
        band = {"high": 0, "low": band_count - 1}.get(str(priority), priority)
        if self.is_packet and self.ok("cluster", "queue") and self.ok(*(str(p) for p in loc)):
            here = f'kind = "{queue.kind}"'
            if priority == "low" and band_count == 1:
                hint = 'write cluster.queue = { kind = "pfifo_fast" }, or "strict" with several bands'
                self.add("GT015", loc, f'priority = "low" has no effect: a queue of {here} has one band', hint)
                return None
            if int(band) >= band_count:
                bands = "only band 0" if band_count == 1 else f"bands 0 to {band_count - 1}"
                self.add("GT014", loc, f"there is no band {band}", f"a queue of {here} has {bands}", priority)
                return None
        return int(band)

    def bands(self, priority: JobPriority, loc: Loc, table: LayerTable | None) -> tuple[int, ...] | None:
        """Return the bands that a job's priority means; `None` if it is adaptive or at fault."""
        if not isinstance(priority, list):
            band = self.band(priority, loc)
            return None if band is None else (band,)
        if not priority:
            self.add("GT014", loc, "the list of bands is empty", 'write priority = ["high", "low"]', priority)
        elif table is not None and len(priority) > len(table.layers):
            msg = f"{len(priority)} bands for {len(table.layers)} layers"
            self.add("GT014", loc, msg, "a list has at most one band for each layer")
        found = [self.band(entry, (*loc, index)) for index, entry in enumerate(priority)]
        return tuple(band or 0 for band in found)

    # neighbours

    def neighbours(self, host_count: int | None) -> tuple[Origin, ...]:
        """Return where each neighbour's flows come from; without those at fault."""
        origins: list[Origin] = []
        total = 0
        for name, traffic in self.file.traffic.items():
            loc: Loc = ("traffic", name)
            if not self.ok("traffic", name) or not self.traffic(traffic, loc):
                continue
            band = self.band(traffic.priority, (*loc, "priority"))
            duration_ps = self.file.run.duration
            if host_count is None or duration_ps is None:
                continue
            if host_count < 2:
                msg = f'the flows of "{name}" go between hosts, and the cluster has one'
                self.too_few(msg, "write hosts = 2, or more", host_count)
                continue
            try:
                origin = read_origin(
                    name,
                    traffic,
                    source=self.source,
                    base_dir=self.base_dir,
                    host_count=host_count,
                    rate_bps=self.file.cluster.link.rate,
                    band=band or 0,
                    band_count=bands_of(self.file.cluster.queue) if self.is_packet else MAX_BANDS,
                    until_ps=duration_ps,
                    run_seed=self.file.run.seed,
                    is_first=not any(o.is_random for o in origins),
                )
            except ScenarioError as error:
                self.faults += error.faults
                continue
            origins.append(origin)
            total += origin.flows.expected_count
            if total > MAX_FLOWS:
                self.faults.append(too_many(total, Failure(self.source, (*loc, origin.key))))
                total -= origin.flows.expected_count
        return tuple(origins)

    def traffic(self, traffic: TrafficTable, loc: Loc) -> bool:
        """Check what the keys of a neighbour mean for one another; return whether its flows can be looked at."""
        before = len(self.faults)
        given = [key for key in FLOW_KEYS if getattr(traffic, key) is not None]
        if len(given) > 1:
            msg = f"`{given[0]}` and `{given[1]}` contradict each other"
            self.add("GT016", (*loc, given[1]), msg, "keep one of them")
        elif not given:
            if not self.misspelt(loc, *FLOW_KEYS):
                self.add("GT010", (*loc, "sizes"), "`sizes` is missing", 'write sizes = "web-search", or a replay')
        elif given[0] not in ("sizes", "cdf"):
            why = "a time of its own" if given[0] == "incast" else "the start times of its own list"
            for key in ("arrivals", "load", "burst"):
                if getattr(traffic, key) is not None:
                    self.no_effect((*loc, key), f"with `{given[0]}`", f"it has {why}")
        elif traffic.arrivals is not None and traffic.load is not None:
            self.add("GT016", (*loc, "load"), "`arrivals` and `load` contradict each other", "keep one of them")
        elif traffic.arrivals is None and traffic.load is None and not self.misspelt(loc, "arrivals", "load"):
            hint = 'write arrivals = { rate = "23/s" } or load = 0.3'
            self.add("GT010", (*loc, "arrivals"), "`arrivals` is missing", hint)
        if traffic.replay_sha256 is not None and traffic.replay is None:
            self.no_effect((*loc, "replay_sha256"), "without `replay`", "leave it out")
        is_whole = all(self.ok(str(loc[0]), str(loc[1]), key) for key in TrafficTable.model_fields if key != "priority")
        return len(self.faults) == before and is_whole

    # jobs

    def hosts(self, host_count: int | None) -> dict[str, tuple[int, ...]]:
        """Give hosts to the workers; jobs that name none get the lowest ones that are free."""
        named: dict[str, tuple[int, ...]] = {}
        wanted: dict[str, int] = {}
        faults_before = len(self.faults)
        is_known = self.ok("cluster", "topology")
        for name, job in self.file.job.items():
            loc: Loc = ("job", name)
            if not self.ok("job", name, "workers") or not self.ok("job", name, "hosts"):
                is_known = False
                continue
            if job.workers is not None and job.workers > MAX_WORKERS:
                self.too_many((*loc, "workers"), job.workers, MAX_WORKERS, "workers")
            elif job.hosts is not None:
                found = self.named_hosts(job, job.hosts, loc, host_count)
                if found is not None:
                    named[name] = found
            elif job.workers is not None:
                wanted[name] = job.workers
            elif not self.misspelt(loc, "workers", "hosts"):
                self.add(
                    "GT010",
                    (*loc, "workers"),
                    "`workers` is missing",
                    'write workers = 8, or hosts = ["h0", "h1"]',
                )
        if len(self.faults) > faults_before or not is_known:
            return {}
        return self.share_out(named, wanted, host_count)

    def named_hosts(self, job: JobTable, hosts: list[str], loc: Loc, host_count: int | None) -> tuple[int, ...] | None:
        here: Loc = (*loc, "hosts")
        before = len(self.faults)
        if not hosts:
            self.add(
                "GT014",
                here,
                "the list of hosts is empty",
                'write hosts = ["h0", "h1"], or workers = 2',
                hosts,
            )
        if len(hosts) > MAX_WORKERS:
            self.too_many(here, len(hosts), MAX_WORKERS, "workers")
        if job.workers is not None and job.workers != len(hosts):
            msg = f"workers = {job.workers} but `hosts` names {len(hosts)}"
            self.add("GT016", (*loc, "workers"), msg, "leave one of the two keys out", job.workers)
        seen: dict[str, int] = {}
        numbers = []
        for index, host in enumerate(hosts[:MAX_WORKERS]):
            match = _HOST.fullmatch(host)
            limit = MAX_WORKERS if host_count is None else host_count
            if match is None or int(match[1]) >= limit:
                known = "h0, h1, …" if host_count is None else f"h0 to h{host_count - 1}"
                self.add("GT040", (*here, index), f'unknown host "{host[:80]}"', f"hosts are {known}", host)
            elif host in seen:
                self.add(
                    "GT041",
                    (*here, index),
                    f'the host "{host}" is named twice',
                    "each worker has its own",
                    host,
                )
            else:
                numbers.append(int(match[1]))
            seen.setdefault(host, index)
        return tuple(numbers) if len(self.faults) == before else None

    def share_out(
        self, named: dict[str, tuple[int, ...]], wanted: dict[str, int], host_count: int | None
    ) -> dict[str, tuple[int, ...]]:
        engine = self.file.run.engine
        taken: dict[int, str] = {}
        for name, numbers in named.items():
            for index, number in enumerate(numbers):
                if number in taken and engine == "pipe" and self.ok("run", "engine"):
                    msg = f'jobs "{taken[number]}" and "{name}" share the host h{number}'
                    hint = 'give each job hosts of its own; sharing is for engine = "packet"'
                    self.add("GT043", ("job", name, "hosts", index), msg, hint, f"h{number}")
                    break
                taken.setdefault(number, name)
        result = dict(named)
        free = 0
        for name, count in wanted.items():
            if host_count is not None and count > host_count:
                msg = f"{count} workers on {host_count} hosts"
                self.too_few(msg, f"write hosts = {count}, or fewer workers", host_count)
                continue
            numbers_found: list[int] = []
            while len(numbers_found) < count and (host_count is None or free < host_count):
                if free not in taken:
                    taken[free] = name
                    numbers_found.append(free)
                free += 1
            if len(numbers_found) < count and engine == "pipe":
                total = sum(wanted.values()) + sum(map(len, named.values()))
                msg = f"the jobs have {total} workers together, the cluster {host_count} hosts"
                self.too_few(msg, f'write hosts = {total}; sharing hosts is for engine = "packet"', host_count)
                break
            used = set(numbers_found)
            spare = (n for n in range(host_count or 0) if n not in used)
            numbers_found += [next(spare) for _ in range(count - len(numbers_found))]
            result[name] = tuple(numbers_found)
        return {name: result[name] for name in self.file.job if name in result}

    def too_few(self, msg: str, hint: str, host_count: int | None) -> None:
        kind = self.file.cluster.topology.kind
        key = "hosts" if kind in ("star", "leaf_spine") else "ports" if kind.startswith("clos") else "links"
        if key != "hosts":
            hint = "enlarge the topology, or have fewer workers"
        self.add("GT042", ("cluster", "topology", key), msg, hint, host_count)

    def job(self, name: str, job: JobTable, hosts: tuple[int, ...] | None) -> Job | None:
        loc: Loc = ("job", name)
        table = self.model(name, job, loc)
        if job.iterations is not None and job.iterations > MAX_ITERATIONS:
            self.too_many((*loc, "iterations"), job.iterations, MAX_ITERATIONS, "iterations")
        collective = job.collective
        if collective.ps is not None and "kind" in collective.model_fields_set and collective.kind != "ps":
            msg = f'`ps` contradicts kind = "{collective.kind}"'
            self.add("GT016", (*loc, "collective", "ps"), msg, "leave one of the two out")
        self.buckets(name, job.schedule, loc, table)
        ranks = self.order(name, job.schedule, loc, table)
        bands = self.bands(job.priority, (*loc, "priority"), table)
        self.straggler(job, loc, hosts)
        if table is None or hosts is None or self.faults:
            return None
        scale_to, layers = job.compute.scale_to, table.layers
        if scale_to is not None and not _is_remade(job.model):
            layers = scaled(layers, scale_to)
        iterations = job.iterations
        if iterations is None and self.file.run.duration is None:
            iterations = DEFAULT_ITERATIONS
        return Job(
            name=name,
            model=table.label,
            hosts=hosts,
            layers=layers,
            iterations=iterations,
            collective="ps" if collective.ps is not None else collective.kind,
            drops_remainder=collective.remainder == "dropped",
            order=job.schedule.order,
            fusion_bytes=job.schedule.fusion,
            buckets=None if job.schedule.buckets is None else tuple(job.schedule.buckets),
            chunk_bytes=job.schedule.chunk,
            queues=job.schedule.queues,
            ranks=ranks,
            barrier=job.schedule.barrier,
            bands=bands,
            start_ps=job.start,
            overhead_ps=job.schedule.overhead,
            sync_ps=job.schedule.sync,
            overlap_slowdown_ppm=job.compute.overlap_slowdown,
            noise_ppm=job.compute.noise,
            straggler=job.compute.straggler,
            device=None if table.is_timed else job.compute.device,
            batch=None if table.is_timed else job.compute.batch,
        )

    def straggler(self, job: JobTable, loc: Loc, hosts: tuple[int, ...] | None) -> None:
        """Check that the slow worker is one of the job's."""
        worker = None if job.compute.straggler is None else job.compute.straggler.worker
        if worker is not None and hosts is not None and worker >= len(hosts):
            hint = "the only worker is 0" if len(hosts) == 1 else f"workers are 0 to {len(hosts) - 1}"
            self.add("GT014", (*loc, "compute", "straggler", "worker"), f"there is no worker {worker}", hint, worker)

    def model(self, name: str, job: JobTable, loc: Loc) -> LayerTable | None:
        if not self.ok("job", name, "model"):
            return None
        if job.model is None and self.misspelt(loc, "model"):
            return None
        if job.model is None:
            hint = 'write model = "resnet50", a layer table "layers.csv", or an inline table'
            self.add("GT010", (*loc, "model"), "`model` is missing", hint)
            return None
        compute = job.compute
        try:
            at = (*loc, "model")
            model = job.model
            if _is_remade(model) and compute.scale_to is not None:
                model = model.model_copy(update={"time": compute.scale_to})
            table = read_model(model, self.source, at, self.base_dir, compute.device, compute.batch)
        except ScenarioError as error:
            self.faults += error.faults
            return None
        if table.is_timed:
            for key in ("device", "batch"):
                if key in compute.model_fields_set:
                    self.no_effect((*loc, "compute", key), "for a model with times of its own", "leave it out")
        if sum(r.parameter_bytes for r in table.layers) > units.U64_MAX:
            self.add("GT024", (*loc, "model"), "the parameters are too large", "sizes end at 2^64 B in all")
        self.tables[name] = table
        return table

    def buckets(self, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> None:
        """Check the user's own buckets against the model."""
        at: Loc = (*loc, "schedule", "buckets")
        if schedule.buckets is None or not self.ok("job", name, "schedule", "buckets"):
            return
        if "fusion" in schedule.model_fields_set:
            self.add("GT016", at, "`buckets` and `fusion` contradict each other", "keep one of them")
        if table is not None and sum(schedule.buckets) != len(table.layers):
            msg = f"the buckets hold {sum(schedule.buckets)} layers, the model has {len(table.layers)}"
            self.add("GT014", at, msg, "count every layer once, from the input side")

    def order(self, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> tuple[int, ...] | None:
        """Check the order's keys; return the rank of every layer if a file gives it."""
        at: Loc = (*loc, "schedule")
        if not self.ok("job", name, "schedule", "order"):
            return None
        if schedule.queues is not None and schedule.order != "priority":
            self.no_effect((*at, "queues"), f'with order = "{schedule.order}"', 'write order = "priority"')
        if schedule.order != "file":
            for key in ("file", "ranking"):
                if getattr(schedule, key) is not None:
                    self.no_effect((*at, key), f'with order = "{schedule.order}"', 'write order = "file"')
            return None
        if schedule.file is not None and schedule.ranking is not None:
            self.add("GT016", (*at, "ranking"), "`file` and `ranking` contradict each other", "keep one of them")
            return None
        if schedule.ranking is not None:
            entries = [
                (layer, self.ranking_fault((*at, "ranking", index), layer))
                for index, layer in enumerate(schedule.ranking)
            ]
            whole = Failure(self.source, (*at, "ranking"))
        elif schedule.file is not None:
            whole = Failure(self.source, (*at, "file"), schedule.file)
            try:
                text = read_text(self.base_dir / schedule.file, schedule.file, whole)
            except ScenarioError as error:
                self.faults += error.faults
                return None
            entries = read_ranking(text, schedule.file)
        elif self.ok("job", name, "schedule"):
            hint = 'write file = "order.csv": one layer name a line, most urgent first'
            self.add("GT010", (*at, "file"), 'order = "file" needs `file`', hint)
            return None
        else:
            return None
        if table is None:
            return None
        return self.ranks(name, table, entries, whole)

    def ranking_fault(self, loc: Loc, layer: str) -> Any:
        return lambda msg, hint: self.source.fault("GT037", loc, msg, hint, layer)

    def ranks(self, name: str, table: LayerTable, entries: list[Any], whole: Failure) -> tuple[int, ...] | None:
        owners = [r.name for r in table.layers if r.parameter_bytes]
        every = {r.name for r in table.layers}
        rank: dict[str, int] = {}
        before = len(self.faults)
        for layer, fault in entries:
            if len(self.faults) - before >= 20:
                break
            if layer in rank:
                self.faults.append(fault(f'the layer "{layer}" is named twice', "delete one of them"))
            elif layer not in every:
                near = difflib.get_close_matches(layer, owners[:5000], 1, 0.5)
                hint = f'did you mean "{near[0]}"?' if near else f'layers are "{owners[0]}", …' if owners else ""
                self.faults.append(fault(f'the model has no layer "{layer[:80]}"', hint))
            rank.setdefault(layer, len(rank))
        missing = [o for o in owners if o not in rank]
        if missing and len(self.faults) == before:
            shown = ", ".join(f'"{m}"' for m in missing[:5]) + (", …" if len(missing) > 5 else "")
            msg = f"{len(missing)} of {len(owners)} layers with parameters are not named"
            self.faults.append(whole("GT037", msg, f"add {shown}"))
        if len(self.faults) > before:
            return None
        self.rankings[name] = [layer for layer, _ in entries]
        return tuple(rank.get(r.name, len(rank)) for r in table.layers)

    # limits

    def limits(self, jobs: tuple[Job, ...]) -> None:
        """Refuse early what would end in a full memory or past the end of the clock."""
        run, link = self.file.run, self.file.cluster.link
        for job in jobs:
            loc: Loc = ("job", job.name)
            parts = sum(1 if job.chunk_bytes is None else -(-r.parameter_bytes // job.chunk_bytes) for r in job.layers)
            key, count = "iterations", job.iterations
            least_ppm, most_ppm = pace_ppm(job)
            if count is None:
                key, count = "duration", -(-(run.duration or 0) // max(job.compute_ps * least_ppm // PPM, 1))
            at = (*loc, key) if key == "iterations" else ("run", key)
            if count > MAX_ITERATIONS:
                msg = f"a duration of about {count:,} iterations is too long"
                hint = f"a run has at most {MAX_ITERATIONS:,}; shorten it"
                self.add("GT050", at, msg, hint)
                continue
            streams = job.workers if job.is_uneven else 1
            if count * streams > MAX_WORKER_RECORDS:
                msg = f"{count:,} iterations of {streams:,} workers that differ are too many"
                hint = f"at most {MAX_WORKER_RECORDS:,} in all: each is a row of workers.csv"
                self.add("GT050", at, msg, hint)
                continue
            operations = count * (2 * len(job.layers) * streams + parts)
            if operations > MAX_OPERATIONS:
                each = f" on {streams:,} workers that differ" if job.is_uneven else ""
                msg = f"{count:,} iterations of {len(job.layers):,} layers{each} and {parts:,} chunks are too many"
                hint = f"at most {MAX_OPERATIONS:,} operations in all; use fewer iterations or larger chunks"
                self.add("GT050", (*loc, "schedule", "chunk") if job.chunk_bytes else at, msg, hint)
                continue
            steps = 2 * (job.workers - 1)
            bits = -(-job.parameter_bytes * 8 * steps // job.workers)
            wire_ps = -(-bits * units.PS_PER_SECOND * PPM // (link.rate * link.efficiency))
            fixed_ps = steps * (link.delay + self.file.cluster.host_latency) + job.overhead_ps + job.sync_ps
            compute_ps = -(-job.compute_ps * most_ppm * job.overlap_slowdown_ppm // PPM**2)
            iteration_ps = compute_ps + wire_ps + (parts + len(job.layers)) * fixed_ps
            # One iteration goes before the measured ones and one may follow them.
            total_ps = job.start_ps + (count + 2) * iteration_ps
            if run.duration is not None:
                total_ps = min(total_ps, job.start_ps + run.duration + 2 * iteration_ps)
            if total_ps > MAX_RUN_PS:
                days = total_ps // (86_400 * units.PS_PER_SECOND)
                msg = f"the run could last {days:,} simulated days"
                hint = "a run ends within 106 days; are rate, size and times in the units you meant?"
                self.add("GT051", loc, msg, hint)
        if self.faults:
            raise ScenarioError(self.faults)

    def too_many(self, loc: Loc, count: int, limit: int, what: str) -> None:
        msg = f"{count:,} {what} are too many"
        self.add("GT050", loc, msg, f"a run has at most {limit:,}: its results are held in memory", count)

    def no_effect(self, loc: Loc, why: str, hint: str) -> None:
        self.add("GT015", loc, f"`{loc[-1]}` has no effect {why}", hint, at_key=True)

    # the resolved file

    def written(self, jobs: tuple[Job, ...], origins: tuple[Origin, ...], host_count: int) -> dict[str, Any]:
        """Write every default out, and models, orders and short lists in place of the files that hold them."""
        data = self.file.model_dump(exclude_none=True)
        for job in jobs:
            table = data["job"][job.name]
            model = self.tables[job.name]
            table["model"] = model.written
            if not isinstance(model.written, str):
                del table["compute"]["device"], table["compute"]["batch"]
            if job.iterations is not None:
                table["iterations"] = job.iterations
            table["collective"]["kind"] = job.collective
            if job.buckets is not None:
                del table["schedule"]["fusion"]
            if job.name in self.rankings:
                table["schedule"].pop("file", None)
                table["schedule"]["ranking"] = self.rankings[job.name]
            table["schedule"] = _in_order_of(Schedule, table["schedule"])
            data["job"][job.name] = _in_order_of(JobTable, table)
        for origin in origins:
            table = {k: v for k, v in data["traffic"][origin.name].items() if k not in origin.replaced}
            data["traffic"][origin.name] = _in_order_of(TrafficTable, table | origin.written)
        queue = data["cluster"]["queue"]
        if "threshold" in queue:
            queue.setdefault("mark_at", "enqueue")
        if queue["kind"] == "red":
            queue |= {key: value for key, value in RED_DEFAULTS.items() if key not in queue}
        data["cluster"]["queue"] = _in_order_of(Queue, queue)
        data["cluster"]["transport"] = transport_of(self.file.cluster).written()
        topology = data["cluster"]["topology"]
        if topology["kind"] == "star":
            topology["hosts"] = host_count
        return {name: data[name] for name in data if data[name]}


def _in_order_of(keys: type[JobTable | Queue | Schedule | TrafficTable], table: Mapping[str, Any]) -> dict[str, Any]:
    """Sort a table as its keys are declared: two scenarios are equal if what is written is."""
    order = list(keys.model_fields)
    return dict(sorted(table.items(), key=lambda item: order.index(item[0])))
