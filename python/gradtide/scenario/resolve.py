"""From the keys of a file to jobs that can be run: what one key means for another, and every fault at once.

    data -> ScenarioFile (types, units) -> jobs (models read, hosts given out, limits checked)

A value that pydantic refuses is left out and the rest is checked with its default, so that one fault does
not hide others.
"""

import difflib
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeGuard

from gradtide import units
from gradtide.collectives import ALL_REDUCES, NOT_SUMMED
from gradtide.errors import Fault, ScenarioError
from gradtide.scenario import servers as op_by_op
from gradtide.scenario.check import example, plain, read_keys
from gradtide.scenario.fabric import (
    Cable,
    Fabric,
    Tree,
    cable_fault,
    clos,
    dealt_out,
    host_number,
    leaf_spine,
    nearest_ratios,
    read_cables,
    star,
    wired,
)
from gradtide.scenario.job import Job
from gradtide.scenario.keys import (
    PPM,
    Adaptive,
    AdaptiveTable,
    Cluster,
    Collective,
    JobPriority,
    JobTable,
    Priority,
    Ps,
    Queue,
    Run,
    ScenarioFile,
    Schedule,
    Table,
    ThesisModel,
    Topology,
    TrafficTable,
    Transport,
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
    "announced": ("pcn",),
    "timeout": ("pcn",),
    "expire": ("pcn",),
    "threshold": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "mark_at": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "min": ("red",),
    "max": ("red",),
    "max_probability": ("red",),
    "weight": ("red",),
    "ecn": ("red",),
}
"""Keys of a queue, and the kinds that they are for."""

RED_MAX_PROBABILITY_PPM, RED_WEIGHT_PPM = 100_000, 2_000
"""Floyd & Jacobson (1993), section 6, recommend the weight; the probability is that of Floyd's later advice (1997)."""

TOPOLOGY_KEYS = {
    "star": ("hosts",),
    "leaf_spine": ("leaves", "hosts_per_leaf", "hosts", "spines", "bisection", "fabric_link"),
    "clos2": ("ports", "bisection"),
    "clos3": ("ports", "bisection"),
    "custom": ("hosts", "switches", "links"),
}
"""Keys of a topology by its kind."""

GROUPED = ("butterfly_layered", "hierarchical")
"""Collectives that have groups of ranks."""

FLOW_KEYS = ("sizes", "cdf", "replay", "flows", "incast", "bursts")
"""Keys of a neighbour that say what its flows are; one of them."""

_JOB_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


DEFAULT_TOLERANCE_PPM = 20_000
DEFAULT_LOW_CREDIT = 4
LEAST_LOW_WINDOW = 16_000
"""Bytes: an initial window (RFC 6928), so that slow start is not what limits a message."""
LOW_WINDOW_PS = 100_000_000
"""Time for which a window in the low band keeps a link busy: some tens of full packets at any rate of today."""
DEFAULT_PRICE_PPM = PPM

POLICY_BANDS: dict[str, JobPriority] = {
    "deadline": "low",
    "background": "low",
    "oracle": "low",
    "all-low": "low",
    "lower-layers-high": ["high", "low"],
    "all-high": "high",
}
"""What a policy sends in; of those that change bands, what they begin with."""


@dataclass
class Resolved:
    """A scenario whose faults have all been looked for.

    Attributes:
        file: the keys, with defaults.
        fabric: shape of the network.
        jobs: the jobs, in the order of the file.
        origins: where each neighbour's flows come from, in the order of the file.
        written: the resolved scenario as plain data.
    """

    file: ScenarioFile
    fabric: Fabric
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


def kind_of(collective: Collective) -> str:
    """Return the algorithm of a collective; giving parameter servers names it."""
    return "ps" if collective.ps is not None else collective.kind


PLANNED = ("caramel", "edf", "optimal")
"""Orders that plan: what is sent together and where the barrier is, is theirs to say."""


SETTINGS = {
    "deadline": ("credit", "window", "tolerance", "margin", "exchange"),
    "background": ("credit", "window"),
    "oracle": ("price",),
}
"""Keys that a policy has beside its name."""


def low_window(fabric: Fabric, segment: int) -> int:
    """Return the bytes that a connection has under way in the low band: see `LOW_WINDOW_PS`."""
    rate_bps, delay_ps = fabric.worst_link
    busy_ps = max(LOW_WINDOW_PS, 4 * fabric.hops * delay_ps)
    return max(LEAST_LOW_WINDOW, 2 * segment, rate_bps * busy_ps // (8 * units.PS_PER_SECOND))


def adaptive_of(given: AdaptiveTable, fabric: Fabric, transport: Transport) -> AdaptiveTable | None:
    """Return a policy with its defaults on a network; `None` for bands that do not change.

    With marks, queues are short and next to nothing is held up for long: then chunks side by side only take turns,
    which the one that is needed first pays for, and a small window spares neighbours nothing (decision 20).
    """
    if given.policy not in SETTINGS:
        return None
    if given.policy == "oracle":
        return given.with_values(price_ppm=DEFAULT_PRICE_PPM if given.price_ppm is None else given.price_ppm)
    has_deadlines = given.policy == "deadline"
    credit = 1 if has_deadlines and transport.ecn else DEFAULT_LOW_CREDIT
    window_bytes = transport.window_bytes if transport.ecn else low_window(fabric, transport.segment_bytes)
    low = given.with_values(credit=given.credit or credit, window_bytes=given.window_bytes or window_bytes)
    if not has_deadlines:
        return low
    return low.with_values(
        tolerance_ppm=DEFAULT_TOLERANCE_PPM if given.tolerance_ppm is None else given.tolerance_ppm,
        margin_ppm=given.margin_ppm or 0,
        exchange=given.exchange is not False,
    )


def schedule_of(
    schedule: Schedule, engine: str, *, bucketed: bool = False
) -> tuple[int | Literal["adaptive"], bool, int | Literal["adaptive"]]:
    """Return fusion, barrier and depth of a schedule with the defaults that its order has.

    What reaches a cap, or is ready at the end of a cycle, needs a cap whatever the order.

    Args:
        schedule: the keys.
        engine: network engine.
        bucketed: whether layers are buckets already.
    """
    fusion, barrier, depth = schedule.fusion_bytes, schedule.barrier, schedule.depth
    if (
        bucketed
        and not schedule.is_given("fusion")
        and schedule.first_fusion_bytes is None
        and schedule.cycle_ps is None
    ):
        fusion = 0
    if schedule.order in PLANNED:
        if not schedule.is_given("fusion") and schedule.first_fusion_bytes is None and schedule.cycle_ps is None:
            fusion = "adaptive"
        if not schedule.is_given("barrier"):
            barrier = False
        if not schedule.is_given("depth") and engine != "pipe":
            depth = "adaptive"
    return fusion, barrier, depth


def marks(queue: Queue) -> bool:
    """Return whether a queue marks where others drop."""
    return queue.threshold_packets is not None or queue.kind == "pcn" or bool(queue.ecn)


def announced_packets(announce: bool | int | None, queue: Queue) -> int | None:
    """Return the threshold that bursts announce to the switches; `None` if they announce nothing."""
    if isinstance(announce, bool) or announce is None:
        return queue.announced_packets if announce else None
    return announce


def patience_ps(file: ScenarioFile, fabric: Fabric | None) -> tuple[int, int]:
    """Return how long a sender waits for the answer to an announcement, and the age at which switches forget one.

    The default of the first is a round trip over the longest route with every queue full, both ways: what has not come
    by then is lost. That of the second is three of these: a first for the answer, a second for the handshake, and what
    the first segment takes; and the longest time that a neighbour's application needs before it sends.
    """
    cluster = file.cluster
    queue = cluster.queue
    hops, (rate_bps, delay_ps) = (2, link_of(cluster)) if fabric is None else (fabric.hops, fabric.worst_link)
    packet_bytes = cluster.transport.segment_bytes + HEADER_BYTES
    full_bytes = queue.capacity.size if queue.capacity.is_bytes else queue.capacity.size * packet_bytes
    # Two more packets are in the device and on the wire.
    hop_ps = delay_ps + -(-(full_bytes + 3 * packet_bytes) * 8 * 10**12 // rate_bps)
    round_ps = 2 * hops * hop_ps + 4 * cluster.host_latency_ps
    timeout_ps = min(round_ps, MAX_RUN_PS // 4) if queue.timeout_ps is None else queue.timeout_ps
    if queue.expire_ps is not None:
        return timeout_ps, queue.expire_ps
    setup_ps = max((one.bursts.setup_ps for one in file.traffic.values() if one.bursts and one.announce), default=0)
    return timeout_ps, min(3 * timeout_ps + setup_ps, MAX_RUN_PS)


def transport_of(cluster: Cluster, fabric: Fabric | None) -> Transport:
    """Return the transport of a cluster with its defaults; those that are of the network need it."""
    keys = cluster.transport
    congestion, plus, _ = keys.kind.partition("+ecn")
    window_bytes = _two_routes_bytes(cluster, fabric) if congestion == "ideal" else SOCKET_BYTES
    return keys.with_values(
        kind=congestion,
        ecn=bool(plus) or (congestion == "dctcp" if keys.ecn is None else keys.ecn),
        gain_ppm=(keys.gain_ppm or DCTCP_GAIN_PPM) if congestion == "dctcp" else None,
        hystart=bool(keys.hystart) if congestion == "cubic" else None,
        byte_counting=bool(keys.byte_counting) if congestion == "cubic" else None,
        window_bytes=window_bytes if keys.window_bytes is None else keys.window_bytes,
    )


def queue_of(file: ScenarioFile, fabric: Fabric) -> Queue:
    """Return the queue of a cluster with the defaults of its kind."""
    queue = file.cluster.queue
    if queue.threshold_packets is not None:
        queue = queue.with_values(mark_at=queue.mark_at or "enqueue")
    if queue.kind == "red":
        queue = queue.with_values(
            max_probability_ppm=queue.max_probability_ppm or RED_MAX_PROBABILITY_PPM,
            weight_ppm=queue.weight_ppm or RED_WEIGHT_PPM,
            ecn=bool(queue.ecn),
        )
    if queue.kind == "pcn":
        timeout_ps, expire_ps = patience_ps(file, fabric)
        queue = queue.with_values(timeout_ps=timeout_ps, expire_ps=expire_ps)
    return queue


def _two_routes_bytes(cluster: Cluster, fabric: Fabric | None) -> int:
    """Return twice the segments that fit into a round trip over the longest route without queues.

    Once keeps the sender's link busy; twice leaves room for delayed acknowledgements and for those that wait.
    """
    segment = cluster.transport.segment_bytes
    hops, (rate_bps, delay_ps) = (2, link_of(cluster)) if fabric is None else (fabric.hops, fabric.worst_link)
    packet_ps, ack_ps = (-(-n * 8 * 10**12 // rate_bps) for n in (segment + HEADER_BYTES, HEADER_BYTES))
    round_ps = hops * (2 * delay_ps + packet_ps + ack_ps) + 4 * cluster.host_latency_ps
    return int(2 * -(-round_ps // packet_ps) * segment)


def link_of(cluster: Cluster) -> tuple[int, int]:
    """Return rate and delay of a link of which the topology says nothing else."""
    return cluster.link.rate_bps, cluster.link.delay_ps


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
        if not file.job and not file.traffic and self.ok("job"):
            hint = 'write [job.train] with model = "resnet50" and workers = 8'
            self.add("GT010", ("job",), "the scenario has no job", hint)
        fabric = self.topology(file.cluster.topology)
        self.run_keys()
        hosts = self.hosts(fabric)
        if fabric is None and self.is_open_star and len(hosts) == len(file.job) and self.ok("cluster", "topology"):
            fabric = star(max([1, *(max(h) + 1 for h in hosts.values())]), link_of(file.cluster))
        self.cluster(fabric)
        self.probe(fabric)
        origins = self.neighbours(fabric)
        jobs = [self.job(name, job, hosts.get(name), fabric) for name, job in file.job.items()]
        if self.faults or fabric is None:
            return None
        resolved = tuple(job for job in jobs if job is not None)
        self.limits(resolved, fabric)
        complete = self.completed(resolved, fabric)
        return Resolved(complete, fabric, resolved, origins, self.written(complete, origins, fabric))

    def add(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None, *, at_key: bool = False) -> None:
        self.faults.append(self.source.fault(code, loc, msg, hint, value, at_key=at_key))

    def ok(self, *loc: str) -> bool:
        """Whether the value at a path, or the one inside it that matters, is what the user wrote."""
        return not any(b == loc[: len(b)] or loc == b[: len(loc)] for b in self.bad)

    def misspelt(self, loc: Loc, *keys: str) -> bool:
        """Whether an unknown key of a table, already a fault, was probably meant to be one of `keys`."""
        unknown = [str(b[-1]) for b in self.bad if b[:-1] == loc]
        known = {*JobTable.declared(), *TrafficTable.declared(), *Queue.declared(), *Run.declared()}
        return any(difflib.get_close_matches(u, keys, 1, 0.5) for u in unknown if u not in known)

    # cluster

    def topology(self, topology: Topology) -> Fabric | None:
        """Return the shape of the network, or `None` if the jobs decide or it cannot be known."""
        loc: Loc = ("cluster", "topology")
        if not self.ok("cluster", "topology"):
            return None
        kind, before = topology.kind, len(self.faults)
        allowed = TOPOLOGY_KEYS[kind]
        for key in Topology.declared():
            if key != "kind" and key not in allowed and topology.value(key) is not None:
                self.no_effect((*loc, key), f'with kind = "{kind}"', "it has " + ", ".join(allowed))
        needed = {"leaf_spine": ("leaves",), "clos2": ("ports",), "clos3": ("ports",), "custom": ("links",)}
        for key in needed.get(kind, ()):
            if topology.value(key) is None and not self.misspelt(loc, key):
                hint = example(key, Topology.declared()[key])
                self.add("GT010", (*loc, key), f'kind = "{kind}" needs `{key}`', hint)
        if topology.hosts is not None and topology.hosts > MAX_WORKERS:
            self.too_many((*loc, "hosts"), topology.hosts, MAX_WORKERS, "hosts")
        if len(self.faults) > before:
            return None
        link = link_of(self.file.cluster)
        if kind == "star":
            return None if topology.hosts is None else star(topology.hosts, link)
        if kind == "custom":
            return self.wiring(topology, loc, link)
        tree = self.leaf_spine(topology, loc, link) if kind == "leaf_spine" else self.clos(topology, loc, link)
        if tree is not None and tree.host_count > MAX_WORKERS:
            key = "ports" if kind.startswith("clos") else "hosts" if topology.hosts_per_leaf is None else "leaves"
            self.too_many((*loc, key), tree.host_count, MAX_WORKERS, "hosts")
            return None
        return tree

    def clos(self, topology: Topology, loc: Loc, link: tuple[int, int]) -> Tree | None:
        ports, bisection = topology.ports or 0, topology.bisection or Fraction(1)
        if ports % 2:
            msg = f"a switch of a Clos network has an even number of ports, not {ports}"
            self.add("GT014", (*loc, "ports"), msg, f"write an even number: {ports - 1} or {ports + 1}", ports)
            return None
        if not self.whole_switches(bisection, Fraction(ports, 2), f"{ports}-port switches", loc):
            return None
        return clos(topology.kind, ports, bisection, link)

    def leaf_spine(self, topology: Topology, loc: Loc, link: tuple[int, int]) -> Tree | None:
        leaves, per_leaf = topology.leaves or 1, topology.hosts_per_leaf
        if per_leaf is None and topology.hosts is None:
            self.add("GT010", (*loc, "hosts_per_leaf"), "`hosts_per_leaf` is missing", "write hosts_per_leaf = 8")
            return None
        if per_leaf is None:
            per_leaf, rest = divmod(topology.hosts or 0, leaves)
            if rest or per_leaf == 0:
                msg = f"{topology.hosts} hosts are no whole number on each of {leaves} leaves"
                near = max(1, round((topology.hosts or 0) / leaves)) * leaves
                self.add("GT014", (*loc, "hosts"), msg, f"write hosts = {near}, or hosts_per_leaf", topology.hosts)
                return None
        elif topology.hosts not in (None, leaves * per_leaf):
            msg = f"hosts = {topology.hosts} but {leaves} leaves of {per_leaf} hosts have {leaves * per_leaf}"
            self.add("GT016", (*loc, "hosts"), msg, "leave `hosts` out", topology.hosts)
            return None
        given = topology.fabric_link
        rate = link[0] if given is None or given.rate_bps is None else given.rate_bps
        delay = link[1] if given is None or given.delay_ps is None else given.delay_ps
        spines = topology.spines
        if spines is not None and topology.bisection is not None:
            msg = "`spines` and `bisection` contradict each other"
            self.add("GT016", (*loc, "bisection"), msg, "keep one of them")
            return None
        if spines is None:
            if not self.ok("cluster", "link", "rate"):
                return None
            bisection, parts = topology.bisection or Fraction(1), Fraction(per_leaf * link[0], rate)
            if not self.whole_switches(bisection, parts, f"leaves of {per_leaf} hosts", loc):
                return None
            spines = int(bisection * parts)
        return leaf_spine(leaves, per_leaf, spines, link, (rate, delay))

    def whole_switches(self, bisection: Fraction, parts: Fraction, what: str, loc: Loc) -> bool:
        """Check that a bisection ratio takes a whole number of switches, of which `parts` are a ratio of 1."""
        if (bisection * parts).denominator == 1:
            return True
        near = nearest_ratios(parts, bisection)
        ratios = " or ".join(f'bisection = "{ratio}"' for ratio in near)
        hint = f"write {ratios}" if near else "write `spines`, or more hosts"
        msg = f"a bisection of {bisection} with {what} takes {float(bisection * parts):g} switches above each"
        self.add("GT044", (*loc, "bisection"), msg, hint, str(bisection))
        return False

    def wiring(self, topology: Topology, loc: Loc, link: tuple[int, int]) -> Fabric | None:
        """Return a network cable by cable, from the file or from the list."""
        from gradtide import formats

        given = topology.links or []
        lines: list[tuple[int, str]] = []
        hosts, switches = topology.hosts, topology.switches
        name = given if isinstance(given, str) else ""
        if isinstance(given, str):
            try:
                text = read_text(self.base_dir / given, given, Failure(self.source, (*loc, "links"), given))
                if formats.form_of(text.split("\n")) == "hpcc-topology":
                    cables, lines, host_count, names = formats.network.read_hpcc(text.split("\n"), given)
                    hosts, switches = hosts or host_count, switches or names
                else:
                    cables, lines = read_cables(text, given, link)
            except ScenarioError as error:
                self.faults += error.faults
                return None
        else:
            cables = [
                Cable(
                    cable.a,
                    cable.b,
                    link[0] if cable.rate_bps is None else cable.rate_bps,
                    link[1] if cable.delay_ps is None else cable.delay_ps,
                )
                for cable in given
            ]
        if topology.switches is not None:
            for index, switch in enumerate(topology.switches):
                at = (*loc, "switches", index)
                if host_number(switch) is not None:
                    self.add(
                        "GT046", at, f'"{switch}" is the name of a host', "name switches otherwise: s0, s1", switch
                    )
                elif switch in topology.switches[:index]:
                    self.add("GT046", at, f'the switch "{switch[:80]}" is named twice', "delete one", switch)
        fabric, complaints = wired(cables, hosts, switches, MAX_WORKERS)
        for code, cable_index, key, msg, hint in complaints:
            if cable_index is None or not lines:
                at = (*loc, "links") if cable_index is None else (*loc, "links", cable_index, key)
                self.add(code, at, msg, hint)
            else:
                number, line = lines[cable_index]
                self.faults.append(cable_fault(code, key, msg, hint, name, number, line))
        return fabric

    def cluster(self, fabric: Fabric | None) -> None:
        """Check queue, transport and link against one another and against the engine."""
        self.queue(self.file.cluster.queue)
        self.transport(self.file.cluster, fabric)
        if self.is_packet and self.file.cluster.link.efficiency_ppm != PPM and self.ok("cluster", "link", "efficiency"):
            hint = "leave it out: headers and retransmissions are simulated"
            self.no_effect(("cluster", "link", "efficiency"), 'with engine = "packet"', hint)

    def holds_a_segment(self, window: int | None, segment: int, loc: Loc) -> None:
        """Refuse a window below a segment."""
        if window is not None and window < segment:
            msg = f"a window of {window:,} bytes holds no segment of {segment:,}"
            self.add("GT014", loc, msg, "write a few segments at least", window)

    def transport(self, cluster: Cluster, fabric: Fabric | None) -> None:
        loc: Loc = ("cluster", "transport")
        if not self.ok("cluster", "transport"):
            return
        keys, queue = cluster.transport, cluster.queue
        kind, plus, _ = keys.kind.partition("+ecn")
        if keys.segment_bytes > MAX_SEGMENT_BYTES:
            msg = f"a segment of {keys.segment_bytes:,} bytes fits into no packet"
            self.add("GT014", (*loc, "segment"), msg, f'write at most "{MAX_SEGMENT_BYTES}B"', keys.segment_bytes)
        else:
            self.holds_a_segment(keys.window_bytes, keys.segment_bytes, (*loc, "window"))
        if keys.gain_ppm is not None and kind != "dctcp":
            self.no_effect((*loc, "gain"), f'with kind = "{keys.kind}"', 'it is for kind = "dctcp"')
        for key in ("hystart", "byte_counting"):
            if keys.value(key) is not None and kind != "cubic":
                self.no_effect((*loc, key), f'with kind = "{keys.kind}"', 'it is for kind = "cubic"')
        if keys.ecn and kind == "ideal":
            self.no_effect((*loc, "ecn"), 'with kind = "ideal"', "leave it out: the window does not answer marks")
        elif keys.ecn is False and (plus or kind == "dctcp"):
            msg = f'`ecn = false` contradicts kind = "{keys.kind}"'
            self.add("GT016", (*loc, "ecn"), msg, f'leave it out, or write kind = "{kind if plus else "newreno"}"')
        elif transport_of(cluster, fabric).ecn and not marks(queue) and self.is_packet:
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
            if queue.value(key) is not None and queue.kind not in kinds:
                words = "any other kind" if key in ("threshold", "mark_at") else f'kind = "{kinds[0]}"'
                self.no_effect((*loc, key), f'with kind = "{queue.kind}"', f"it is for {words}")
        for kind, key in (
            ("strict", "bands"),
            ("drr", "weights"),
            ("ecn", "threshold"),
            ("pcn", "threshold"),
            ("pcn", "announced"),
            ("red", "min"),
            ("red", "max"),
        ):
            if queue.kind == kind and queue.value(key) is None and not self.misspelt(loc, key):
                hint = example(key, Queue.declared()[key])
                self.add("GT010", (*loc, key), f'kind = "{kind}" needs `{key}`', hint)
        if queue.mark_at is not None and queue.threshold_packets is None and queue.kind not in ("ecn", "red"):
            self.no_effect((*loc, "mark_at"), "without `threshold`", "nothing is marked")
        if queue.weights is not None and not 1 <= len(queue.weights) <= MAX_BANDS:
            msg = f"{len(queue.weights)} bands are out of range"
            self.add("GT014", (*loc, "weights"), msg, f"write 1 to {MAX_BANDS} weights", queue.weights)
        if queue.min_packets is not None and queue.max_packets is not None and queue.min_packets >= queue.max_packets:
            msg = (
                f"the least average of {queue.min_packets:,} packets is not below the greatest of {queue.max_packets:,}"
            )
            self.add("GT014", (*loc, "min"), msg, "lower it", queue.min_packets)
        for key in ("threshold", "max"):
            self.within_capacity(queue, key)
        for announce, at in self.announcements():
            packets, threshold = announced_packets(announce, queue), queue.threshold_packets
            if queue.kind == "pcn" and packets is not None and packets > (threshold or packets):
                msg = f"{packets} packets are above the threshold of {threshold:,}, which no burst would lower"
                self.add("GT014", at, msg, "lower it", packets)
        self.buffer(queue.capacity, (*loc, "capacity"))
        if self.file.cluster.switch_buffer is not None and self.ok("cluster", "switch_buffer"):
            self.buffer(self.file.cluster.switch_buffer.capacity, ("cluster", "switch_buffer", "capacity"))

    def announcements(self) -> list[tuple[bool | int | None, Loc]]:
        """Return what is announced, and where that is written."""
        queue = self.file.cluster.queue
        found: list[tuple[bool | int | None, Loc]] = [(queue.announced_packets, ("cluster", "queue", "announced"))]
        for kind, tables in (("job", self.file.job), ("traffic", self.file.traffic)):
            for name, table in tables.items():
                if self.ok(kind, name, "announce") and not isinstance(table.announce, bool):
                    found.append((table.announce, (kind, name, "announce")))
        return found

    def announce(self, announce: bool | int | None, loc: Loc) -> None:
        """Refuse announcements that no switch would heed."""
        kind = self.file.cluster.queue.kind
        if announce is not None and announce is not False and kind != "pcn" and self.ok("cluster", "queue"):
            hint = 'write cluster.queue = { kind = "pcn", threshold = "40pkt", announced = "10pkt" }, or leave it out'
            self.no_effect((*loc, "announce"), f'with queue.kind = "{kind}"', hint)

    def buffer(self, buffer: units.Buffer, loc: Loc) -> None:
        if not buffer.is_bytes and buffer.size > MAX_PACKETS:
            msg, hint = f"{buffer.size:,} packets are too many", f'write at most "{MAX_PACKETS}pkt"'
            self.add("GT014", loc, msg, hint, units.format_buffer(buffer))

    def within_capacity(self, queue: Queue, key: str) -> None:
        """Refuse a length that no queue reaches; a host's port has `capacity` even where a switch shares its buffer."""
        length: int | None = queue.value(key)
        capacity = queue.capacity
        if length is not None and not capacity.is_bytes and length > capacity.size:
            msg = f"{length:,} packets are beyond the capacity of {capacity.size:,}"
            hint = "no packet would be marked; lower it" if key == "threshold" else "no queue gets so long; lower it"
            self.add("GT014", ("cluster", "queue", key), msg, hint, length)

    @property
    def is_packet(self) -> bool:
        return self.file.run.engine == "packet" and self.ok("run", "engine")

    @property
    def has_bands(self) -> bool:
        """Whether the engine tells bands apart."""
        return self.file.run.engine != "pipe" and self.ok("run", "engine")

    def run_keys(self) -> None:
        """Check the length of the run against warm-up, cool-down and traffic."""
        run, has_traffic = self.file.run, bool(self.file.traffic)
        if not self.ok("run", "duration"):
            return
        if run.duration_ps is None and has_traffic and not self.misspelt(("run",), "duration"):
            msg = "`duration` is missing: neighbours' flows do not end by themselves"
            self.add("GT010", ("run", "duration"), msg, 'write duration = "12s"')
        if not (self.ok("run", "warmup") and self.ok("run", "cooldown")):
            return
        for key in ("warmup", "cooldown"):
            if run.value(key) and self.has_bands and not has_traffic and self.ok("traffic"):
                self.no_effect(("run", key), "without traffic", "it is for neighbours' flows; leave it out")
        if run.duration_ps is not None and run.warmup_ps + run.cooldown_ps >= run.duration_ps:
            key = "warmup" if run.warmup_ps >= run.cooldown_ps else "cooldown"
            parts = f"{units.format_time(run.warmup_ps)} and {units.format_time(run.cooldown_ps)}"
            msg = f"warm-up and cool-down ({parts}) leave nothing of {units.format_time(run.duration_ps)}"
            self.add("GT052", ("run", key), msg, "shorten them, or lengthen `duration`", run.value(key))

    def probe(self, fabric: Fabric | None) -> None:
        """Check that what is to be sampled is there."""
        probe, loc = self.file.run.probe, ("run", "probe")
        if probe is None or not self.ok("run", "probe"):
            return
        known = set(fabric.link_names()) if fabric is not None and probe.links else set()
        for index, link in enumerate(probe.links or ()):
            if fabric is not None and link not in known:
                near = difflib.get_close_matches(link, known if len(known) <= 10_000 else (), 1, 0.6)
                last = fabric.host_count - 1
                inner = sorted(known - {f"h{host}" for host in range(last + 1)}, key=lambda n: (len(n), n))
                every = (
                    f"links are h0 to h{last} and {inner[0]} to {inner[-1]}" if inner else f"links are h0 to h{last}"
                )
                hint = f'did you mean "{near[0]}"? {every}' if near else every
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
        if self.has_bands and self.ok("cluster", "queue") and self.ok(*(str(p) for p in loc)):
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

    def bands(self, priority: JobPriority, loc: Loc, table: LayerTable | None) -> tuple[int, ...]:
        """Return the bands that a job's priority means; of one that changes, those that it begins with."""
        if isinstance(priority, Adaptive):
            return self.bands(POLICY_BANDS[priority.adaptive.policy], loc, table)
        if not isinstance(priority, list):
            return (self.band(priority, loc) or 0,)
        if not priority:
            self.add("GT014", loc, "the list of bands is empty", 'write priority = ["high", "low"]', priority)
        elif table is not None and len(priority) > len(table.layers):
            msg = f"{len(priority)} bands for {len(table.layers)} layers"
            self.add("GT014", loc, msg, "a list has at most one band for each layer")
        found = [self.band(entry, (*loc, index)) for index, entry in enumerate(priority)]
        return tuple(band or 0 for band in found)

    def adaptive(self, priority: JobPriority, loc: Loc, fabric: Fabric | None) -> AdaptiveTable | None:
        """Return how a priority changes its bands; `None` if it does not, or without a network."""
        if not isinstance(priority, Adaptive):
            return None
        given = priority.adaptive
        heeded = SETTINGS.get(given.policy, ())
        # Of the policies that heed a key the first is named, so that it comes last here.
        first = {key: policy for policy, keys in reversed(SETTINGS.items()) for key in keys}
        for key, policy in first.items():
            if key not in heeded and given.value(key) is not None:
                why, hint = f'with policy = "{given.policy}"', f'write policy = "{policy}"'
                self.no_effect((*loc, "adaptive", key), why, hint)
        self.holds_a_segment(
            given.window_bytes, self.file.cluster.transport.segment_bytes, (*loc, "adaptive", "window")
        )
        return None if fabric is None else adaptive_of(given, fabric, transport_of(self.file.cluster, fabric))

    # neighbours

    def neighbours(self, fabric: Fabric | None) -> tuple[Origin, ...]:
        """Return where each neighbour's flows come from; without those at fault."""
        origins: list[Origin] = []
        total = 0
        for name, traffic in self.file.traffic.items():
            loc: Loc = ("traffic", name)
            if not self.ok("traffic", name) or not self.traffic(traffic, loc):
                continue
            band = self.band(traffic.priority, (*loc, "priority"))
            duration_ps = self.file.run.duration_ps
            if fabric is None or duration_ps is None:
                continue
            host_count = fabric.host_count
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
                    rate_bps=fabric.mean_host_rate_bps,
                    band=band or 0,
                    band_count=bands_of(self.file.cluster.queue) if self.has_bands else MAX_BANDS,
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
        given = [key for key in FLOW_KEYS if traffic.value(key) is not None]
        if len(given) > 1:
            msg = f"`{given[0]}` and `{given[1]}` contradict each other"
            self.add("GT016", (*loc, given[1]), msg, "keep one of them")
        elif not given:
            if not self.misspelt(loc, *FLOW_KEYS):
                self.add("GT010", (*loc, "sizes"), "`sizes` is missing", 'write sizes = "web-search", or a replay')
        elif given[0] not in ("sizes", "cdf"):
            why = "a time of its own" if given[0] in ("incast", "bursts") else "the start times of its own list"
            for key in ("arrivals", "load", "burst"):
                if traffic.value(key) is not None:
                    self.no_effect((*loc, key), f"with `{given[0]}`", f"it has {why}")
        elif traffic.arrivals is not None and traffic.load_ppm is not None:
            self.add("GT016", (*loc, "load"), "`arrivals` and `load` contradict each other", "keep one of them")
        elif traffic.arrivals is None and traffic.load_ppm is None and not self.misspelt(loc, "arrivals", "load"):
            hint = 'write arrivals = { rate = "23/s" } or load = 0.3'
            self.add("GT010", (*loc, "arrivals"), "`arrivals` is missing", hint)
        if traffic.replay_sha256 is not None and traffic.replay is None:
            self.no_effect((*loc, "replay_sha256"), "without `replay`", "leave it out")
        self.announce(traffic.announce, loc)
        is_whole = all(self.ok(str(loc[0]), str(loc[1]), key) for key in TrafficTable.declared() if key != "priority")
        return len(self.faults) == before and is_whole

    # jobs

    def hosts(self, fabric: Fabric | None) -> dict[str, tuple[int, ...]]:
        """Give hosts to the workers; jobs that name none get free ones."""
        named: dict[str, tuple[int, ...]] = {}
        wanted: dict[str, int] = {}
        faults_before = len(self.faults)
        is_known = self.ok("cluster", "topology") and (fabric is not None or self.is_open_star)
        for name, job in self.file.job.items():
            loc: Loc = ("job", name)
            if not all(self.ok("job", name, key) for key in ("workers", "hosts", "placement")):
                is_known = False
                continue
            key = "placement" if isinstance(job.placement, list) else "hosts"
            given = job.placement if isinstance(job.placement, list) else job.hosts
            if isinstance(job.placement, list) and job.hosts is not None:
                msg = "`hosts` and a list as `placement` contradict each other"
                self.add("GT016", (*loc, "placement"), msg, "keep one of them")
            elif job.workers is not None and job.workers > MAX_WORKERS:
                self.too_many((*loc, "workers"), job.workers, MAX_WORKERS, "workers")
            elif given is not None:
                found = self.named_hosts(job, given, (*loc, key), fabric)
                if found is not None:
                    named[name] = self.ranked(name, found, fabric)
            elif job.workers is not None:
                wanted[name] = job.workers + op_by_op.beside(job)
            elif not self.misspelt(loc, "workers", "hosts"):
                self.add(
                    "GT010",
                    (*loc, "workers"),
                    "`workers` is missing",
                    'write workers = 8, or hosts = ["h0", "h1"]',
                )
        if len(self.faults) > faults_before or not is_known:
            return {}
        return self.share_out(named, wanted, fabric)

    @property
    def is_open_star(self) -> bool:
        """Whether the jobs decide how many hosts there are."""
        topology = self.file.cluster.topology
        return topology.kind == "star" and topology.hosts is None

    def named_hosts(self, job: JobTable, hosts: list[str], here: Loc, fabric: Fabric | None) -> tuple[int, ...] | None:
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
        if job.workers is not None and job.workers + op_by_op.beside(job) != len(hosts):
            servers = f" and its servers {op_by_op.beside(job)}" if op_by_op.beside(job) else ""
            msg = f"workers = {job.workers}{servers} but `{here[-1]}` names {len(hosts)}"
            self.add("GT016", (*here[:-1], "workers"), msg, "leave one of the two keys out", job.workers)
        seen: set[str] = set()
        numbers = []
        for index, host in enumerate(hosts[:MAX_WORKERS]):
            number = host_number(host)
            if number is None or number >= (MAX_WORKERS if fabric is None else fabric.host_count):
                known = "h0, h1, …" if fabric is None else f"h0 to h{fabric.host_count - 1}"
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
                numbers.append(number)
            seen.add(host)
        return tuple(numbers) if len(self.faults) == before else None

    def ranked(self, name: str, hosts: tuple[int, ...], fabric: Fabric | None) -> tuple[int, ...]:
        """Return the hosts that a job names, in the order of the ranks on them."""
        placement = self.file.job[name].placement
        if placement == "spread":
            return tuple(dealt_out(hosts, fabric))
        if placement == "random":
            return tuple(self.generator(name).sample(hosts, len(hosts)))
        return hosts

    def generator(self, name: str) -> random.Random:
        """Return the stream that places the ranks of a job."""
        return random.Random(f"placement/{name}/{self.file.run.seed}")

    def candidates(self, name: str, count: int, fabric: Fabric | None) -> Iterator[int]:
        """Yield hosts in the order in which a job takes those that are free."""
        placement = self.file.job[name].placement
        if fabric is None:
            return itertools.count()
        if placement == "spread":
            return iter(dealt_out(range(fabric.host_count), fabric))
        if placement == "random":
            return iter(self.generator(name).sample(range(fabric.host_count), fabric.host_count))
        return iter(range(fabric.host_count))

    def share_out(
        self, named: dict[str, tuple[int, ...]], wanted: dict[str, int], fabric: Fabric | None
    ) -> dict[str, tuple[int, ...]]:
        engine = self.file.run.engine
        taken: dict[int, str] = {}
        for name, numbers in named.items():
            for index, number in enumerate(numbers):
                if number in taken and engine == "pipe" and self.ok("run", "engine"):
                    msg = f'jobs "{taken[number]}" and "{name}" share the host h{number}'
                    hint = 'give each job hosts of its own; sharing is for engine = "fluid" and "packet"'
                    self.add("GT043", ("job", name, "hosts", index), msg, hint, f"h{number}")
                    break
                taken.setdefault(number, name)
        result = dict(named)
        for name, count in wanted.items():
            host_count = count if fabric is None else fabric.host_count
            if count > host_count:
                msg = f"{count} workers on {host_count} hosts"
                self.too_few(msg, f"write hosts = {count}, or fewer workers", host_count)
                continue
            free = (host for host in self.candidates(name, count, fabric) if host not in taken)
            found = list(itertools.islice(free, count))
            if len(found) < count and engine == "pipe":
                total = sum(wanted.values()) + sum(map(len, named.values()))
                msg = f"the jobs have {total} workers together, the cluster {host_count} hosts"
                hint = f'write hosts = {total}; sharing hosts is for engine = "fluid" and "packet"'
                self.too_few(msg, hint, host_count)
                break
            taken |= dict.fromkeys(found, name)
            used = set(found)
            shared = (host for host in self.candidates(name, count, fabric) if host not in used)
            found += itertools.islice(shared, count - len(found))
            is_drawn = fabric is None and self.file.job[name].placement == "random"
            result[name] = self.ranked(name, tuple(found), fabric) if is_drawn else tuple(found)
        return {name: result[name] for name in self.file.job if name in result}

    def too_few(self, msg: str, hint: str, host_count: int | None) -> None:
        kind = self.file.cluster.topology.kind
        keys = {"star": "hosts", "leaf_spine": "leaves", "custom": "links"}
        key = keys.get(kind, "ports")
        if key == "ports" and host_count is not None:
            ports = self.file.cluster.topology.ports
            hint = f"{kind} of {ports} ports has {host_count} hosts: have more ports, or fewer workers"
        elif key != "hosts":
            hint = "enlarge the topology, or have fewer workers"
        self.add("GT042", ("cluster", "topology", key), msg, hint, host_count)

    def job(self, name: str, job: JobTable, hosts: tuple[int, ...] | None, fabric: Fabric | None) -> Job | None:
        loc: Loc = ("job", name)
        table = self.model(name, job, loc)
        if job.iterations is not None and job.iterations > MAX_ITERATIONS:
            self.too_many((*loc, "iterations"), job.iterations, MAX_ITERATIONS, "iterations")
        collective = job.collective
        group, servers = self.collective(name, collective, (*loc, "collective"), hosts, fabric)
        kind = kind_of(collective)
        task = self.servers(name, job, loc, table)
        bucketed = table is not None and table.bucketed
        fusion, barrier, depth = (0, True, 1) if task else self.schedule(job, bucketed=bucketed)
        self.buckets(name, job.schedule, loc, table)
        ranks = self.order(name, job.schedule, loc, table)
        bands = self.bands(job.priority, (*loc, "priority"), table)
        adaptive = self.adaptive(job.priority, (*loc, "priority"), fabric)
        self.announce(job.announce, loc)
        self.straggler(job, loc, None if hosts is None else len(hosts) - servers)
        if table is None or hosts is None or self.faults:
            return None
        scale_to, layers, graph = job.compute.scale_to_ps, table.layers, table.graph
        if graph is not None and scale_to is not None:
            graph = op_by_op.scaled(graph, scale_to)
        elif scale_to is not None and not _is_remade(job.model):
            layers = scaled(layers, scale_to)
        if graph is not None and not task:
            layers = op_by_op.trained_layers(graph, layers)
        iterations = job.iterations
        if iterations is None and self.file.run.duration_ps is None:
            iterations = DEFAULT_ITERATIONS
        ps = collective.ps or Ps()
        return Job(
            name=name,
            model=table.label,
            layers=layers,
            graph=graph,
            hosts=hosts,
            iterations=iterations,
            placement=job.placement if isinstance(job.placement, str) else "packed",
            task=task or ("exchange" if job.task == "exchange" else None),
            compute=job.compute.with_values(
                device=None if table.is_timed else job.compute.device,
                batch=None if table.is_timed else table.batch or job.compute.batch,
                order=(job.compute.order or "listed") if graph is not None and not task else None,
            ),
            collective=collective.with_values(
                kind=kind,
                group=group if kind in GROUPED else None,
                inside=(collective.inside or "ring") if kind == "hierarchical" else None,
                ps=ps.with_values(
                    servers=servers,
                    placement=op_by_op.placement_of(ps),
                    shards=(ps.shards or "bytes") if task else None,
                )
                if kind == "ps"
                else None,
            ),
            schedule=job.schedule.with_values(
                order=op_by_op.order_of(job),
                fusion_bytes=fusion,
                barrier=barrier,
                depth=depth,
                disorder_ppm=(job.schedule.disorder_ppm or 0) if task else None,
            ),
            ranks=ranks,
            bands=bands,
            adaptive=adaptive,
            start_ps=job.start_ps,
            announced_packets=announced_packets(job.announce, self.file.cluster.queue),
        )

    def schedule(self, job: JobTable, *, bucketed: bool) -> tuple[int | Literal["adaptive"], bool, Any]:
        return schedule_of(job.schedule, self.file.run.engine, bucketed=bucketed)

    def servers(self, name: str, job: JobTable, loc: Loc, table: LayerTable | None) -> str:
        """Check what is said of parameter servers op by op; return the task, or nothing where there are none."""
        if not self.ok("job", name, "collective"):
            return ""
        for at, why, hint in op_by_op.without_effect(job):
            if self.ok("job", name, *(str(part) for part in at)):
                self.no_effect((*loc, *at), why, hint)
        graph = None if table is None else table.graph
        is_pulled = op_by_op.is_pulled(job.collective)
        if job.compute.order is not None and table is not None and (graph is None or is_pulled):
            why = "for a model of layers" if graph is None else 'with pull = "start": what has arrived decides'
            self.no_effect((*loc, "compute", "order"), why, "leave it out")
        if graph is not None and not is_pulled and job.schedule.queues is not None:
            hint = "every parameter has a rank of its own"
            self.no_effect((*loc, "schedule", "queues"), "for a graph of ops", hint)
        task = ("inference" if job.task == "inference" else "train") if is_pulled else ""
        if table is not None and graph is not None and table.place is not None:
            where = table.place
            op_by_op.graph_faults(
                graph, task, lambda at, msg, hint: self.faults.append(where.fault("GT074", at, msg, hint))
            )
        return task

    def collective(
        self, name: str, keys: Collective, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
    ) -> tuple[int, int]:
        """Check a collective against the ranks; return the ranks of a group and the number of servers, 0 without."""
        if not self.ok("job", name, "collective"):
            return 0, 0
        kind = kind_of(keys)
        if keys.ps is not None and keys.is_given("kind") and keys.kind != "ps":
            msg = f'`ps` contradicts kind = "{keys.kind}"'
            self.add("GT016", (*loc, "ps"), msg, "leave one of the two out")
        for key, kinds in (("group", GROUPED), ("inside", ("hierarchical",))):
            if keys.value(key) is not None and kind not in kinds:
                words = " and ".join(f'"{k}"' for k in kinds)
                self.no_effect((*loc, key), f'with kind = "{kind}"', f"it is for {words}")
        is_sum = kind not in NOT_SUMMED
        if not is_sum and self.file.job[name].task != "exchange":
            msg = f"{kind} does not sum gradients: {NOT_SUMMED[kind]}"
            hint = f'write {", ".join(ALL_REDUCES)}; if these bytes are not gradients, write task = "exchange"'
            self.add("GT049", (*loc, "kind"), msg, hint, kind)
        if keys.reduction_rate_bps is not None and kind in NOT_SUMMED and kind != "reduce_scatter":
            self.no_effect((*loc, "reduction_rate"), f'with kind = "{kind}"', "nothing is added up there")
        ranks = 0 if hosts is None else len(hosts)
        if ranks < 2 and not (hosts and op_by_op.is_pulled(keys)):
            return 0, 0
        group = servers = 0
        if kind in GROUPED:
            group = self.group(keys, loc, ranks, fabric)
            if keys.inside == "sharded" and group and ranks % group:
                msg = f"{ranks} ranks are no whole number of groups of {group}, which shards need"
                near = max(g for g in range(1, group + 1) if ranks % g == 0)
                self.add("GT048", (*loc, "group"), msg, f"write group = {near}, or another number of workers", group)
        if kind == "ps":
            servers = op_by_op.beside(self.file.job[name]) or op_by_op.count_of(keys.ps or Ps(), ranks)
            if servers >= ranks:
                which = "the only host" if ranks == 1 else f"all {ranks} ranks"
                msg = f"{which} would be parameter servers, and none a worker"
                hint = "servers are some of the job's workers: have fewer of them, or more workers"
                self.add("GT048", (*loc, "ps", "servers"), msg, hint, servers)
        return group, servers

    def group(self, keys: Collective, loc: Loc, ranks: int, fabric: Fabric | None) -> int:
        """Return the ranks of a group."""
        if isinstance(keys.group, int):
            if keys.group > ranks:
                msg = f"a group of {keys.group} has more than the {ranks} ranks of the job"
                self.add("GT048", (*loc, "group"), msg, f"write at most {ranks}", keys.group)
            return keys.group
        size = 1 if fabric is None else fabric.hosts_per_edge
        if size is None:
            msg = "the switches have different numbers of hosts"
            self.add("GT048", (*loc, "group"), msg, "write the ranks of a group, as in group = 8", keys.group)
            return 1
        return min(size, ranks)

    def straggler(self, job: JobTable, loc: Loc, count: int | None) -> None:
        """Check that the slow worker is one of the job's."""
        worker = None if job.compute.straggler is None else job.compute.straggler.worker
        if worker is not None and count is not None and worker >= count:
            hint = "the only worker is 0" if count == 1 else f"workers are 0 to {count - 1}"
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
            if _is_remade(model) and compute.scale_to_ps is not None:
                model = model.with_values(time_ps=compute.scale_to_ps)
            by_op = op_by_op.is_pulled(job.collective) or compute.order is not None
            table = read_model(model, self.source, at, self.base_dir, compute, by_op=by_op)
        except ScenarioError as error:
            self.faults += error.faults
            return None
        if table.is_timed:
            for key in ("device", "efficiency", "batch"):
                if compute.is_given(key):
                    self.no_effect((*loc, "compute", key), "for a model with times of its own", "leave it out")
        if sum(r.parameter_bytes for r in table.layers) > units.U64_MAX:
            self.add("GT024", (*loc, "model"), "the parameters are too large", "sizes end at 2^64 B in all")
        self.tables[name] = table
        return table

    def buckets(self, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> None:
        """Check the user's own buckets against the model."""
        at: Loc = (*loc, "schedule", "buckets")
        for key, others in (("first_fusion", ("buckets", "cycle")), ("cycle", ("buckets",))):
            for other in others:
                if schedule.value(key) is not None and schedule.value(other) is not None:
                    msg = f"`{key}` and `{other}` contradict each other"
                    self.add("GT016", (*loc, "schedule", key), msg, "keep one of them")
            if schedule.value(key) is not None and schedule.fusion_bytes == "adaptive":
                msg = f'`{key}` contradicts fusion = "adaptive"'
                self.add("GT016", (*loc, "schedule", key), msg, "write `fusion` as a size, or leave one of the two out")
        if schedule.buckets is None or not self.ok("job", name, "schedule", "buckets"):
            return
        if schedule.is_given("fusion"):
            self.add("GT016", at, "`buckets` and `fusion` contradict each other", "keep one of them")
        if table is not None and sum(schedule.buckets) != len(table.layers):
            msg = f"the buckets hold {sum(schedule.buckets)} layers, the model has {len(table.layers)}"
            self.add("GT014", at, msg, "count every layer once, from the input side")

    def order(self, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> tuple[int, ...] | None:
        """Check the order's keys; return the rank of every layer if a file gives it."""
        at: Loc = (*loc, "schedule")
        if not self.ok("job", name, "schedule", "order"):
            return None
        if schedule.cycle_ps is not None and schedule.order in PLANNED:
            msg = f'`cycle` contradicts order = "{schedule.order}", which decides itself when each bucket is sent'
            self.add("GT016", (*at, "cycle"), msg, 'leave `cycle` out, or write order = "fifo"')
        if (
            schedule.queues is not None
            and schedule.order != "priority"
            and not op_by_op.is_pulled(self.file.job[name].collective)
        ):
            self.no_effect((*at, "queues"), f'with order = "{schedule.order}"', 'write order = "priority"')
        order = op_by_op.order_of(self.file.job[name])
        if order != "file":
            # Of pulls, `op_by_op` says it.
            of_buckets = () if op_by_op.is_pulled(self.file.job[name].collective) else ("in_turn",)
            for key in ("file", "ranking", *of_buckets):
                if schedule.value(key) is not None:
                    self.no_effect((*at, key), f'with order = "{order}"', 'write order = "file"')
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

    def limits(self, jobs: tuple[Job, ...], fabric: Fabric) -> None:
        """Refuse early what would end in a full memory or past the end of the clock."""
        run, link = self.file.run, self.file.cluster.link
        slowest_bps, delay_ps = fabric.worst_link
        for job in jobs:
            loc: Loc = ("job", job.name)
            parts = sum(
                1 if job.schedule.chunk_bytes is None else -(-r.parameter_bytes // job.schedule.chunk_bytes)
                for r in job.layers
            )
            key, count = "iterations", job.iterations
            least_ppm, most_ppm = job.pace_ppm
            if count is None:
                key, count = "duration", -(-(run.duration_ps or 0) // max(job.compute_ps * least_ppm // PPM, 1))
            at = (*loc, key) if key == "iterations" else ("run", key)
            if count > MAX_ITERATIONS:
                msg = f"a duration of about {count:,} iterations is too long"
                hint = f"a run has at most {MAX_ITERATIONS:,}; shorten it"
                self.add("GT050", at, msg, hint)
                continue
            streams = job.workers if job.is_uneven or job.is_pulled else 1
            if job.is_pulled and count * 2 * job.parameter_count * job.workers > MAX_WORKER_RECORDS:
                msg = f"{count:,} iterations of {2 * job.parameter_count * job.workers:,} transfers are too many"
                self.add("GT050", at, msg, f"at most {MAX_WORKER_RECORDS:,} in all: each is a row of transfers.csv")
                continue
            if count * streams > MAX_WORKER_RECORDS:
                msg = f"{count:,} iterations of {streams:,} workers that differ are too many"
                hint = f"at most {MAX_WORKER_RECORDS:,} in all: each is a row of workers.csv"
                self.add("GT050", at, msg, hint)
                continue
            operations = count * (job.op_count * streams + parts)
            if operations > MAX_OPERATIONS:
                each = f" on {streams:,} workers that differ" if job.is_uneven else ""
                msg = f"{count:,} iterations of {len(job.layers):,} layers{each} and {parts:,} chunks are too many"
                hint = f"at most {MAX_OPERATIONS:,} operations in all; use fewer iterations or larger chunks"
                self.add("GT050", (*loc, "schedule", "chunk") if job.schedule.chunk_bytes else at, msg, hint)
                continue
            counts = job.counts
            # At worst one link carries what all the hosts that can share it send.
            sharers = 1 if job.collective.kind == "ring" and fabric.kind == "star" else min(fabric.shared, job.workers)
            bits = math.ceil(job.parameter_bytes * 8 * counts.most * sharers)
            wire_ps = -(-bits * units.PS_PER_SECOND * PPM // (slowest_bps * link.efficiency_ppm))
            if job.collective.reduction_rate_bps is not None:
                wire_ps += math.ceil(
                    job.parameter_bytes * 8 * counts.sent * units.PS_PER_SECOND / job.collective.reduction_rate_bps
                )
            hops = 1 if run.engine == "pipe" else fabric.hops
            fixed_ps = counts.steps * (hops * delay_ps + 2 * self.file.cluster.host_latency_ps)
            fixed_ps += job.schedule.overhead_ps + job.schedule.sync_ps
            compute_ps = -(-job.compute_ps * most_ppm * job.compute.overlap_slowdown_ppm // PPM**2)
            iteration_ps = compute_ps + wire_ps + (parts + len(job.layers)) * fixed_ps
            # One iteration goes before the measured ones and one may follow them.
            total_ps = job.start_ps + (count + 2) * iteration_ps
            if run.duration_ps is not None:
                total_ps = min(total_ps, job.start_ps + run.duration_ps + 2 * iteration_ps)
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

    def completed(self, jobs: tuple[Job, ...], fabric: Fabric) -> ScenarioFile:
        """Return the keys with every default that depends on others."""
        tables = {}
        for job in jobs:
            given = self.file.job[job.name]
            priority = given.priority if job.adaptive is None else Adaptive.model_construct(adaptive=job.adaptive)
            tables[job.name] = given.with_values(
                iterations=job.iterations,
                task=job.task or given.task,
                compute=job.compute,
                collective=job.collective,
                schedule=job.schedule,
                priority=priority,
            )
        cluster = self.file.cluster
        queue, transport = queue_of(self.file, fabric), transport_of(cluster, fabric)
        return self.file.with_values(job=tables, cluster=cluster.with_values(queue=queue, transport=transport))

    def written(self, file: ScenarioFile, origins: tuple[Origin, ...], fabric: Fabric) -> dict[str, Any]:
        """Write every default out, and models, orders and short lists in place of the files that hold them."""
        data = file.model_dump(by_alias=True, exclude_none=True)
        for name, job in file.job.items():
            table, given = data["job"][name], self.file.job[name]
            collective, schedule = table["collective"], table["schedule"]
            table["model"] = self.tables[name].written
            if not isinstance(table["model"], str):
                # Its times are written out.
                for key in ("device", "efficiency", "batch"):
                    table["compute"].pop(key, None)
            if job.collective.kind in GROUPED:
                # "leaf" stays: the same scenario on another network has groups of another size.
                collective["group"] = given.collective.group or "leaf"
            if op_by_op.is_pulled(job.collective):
                for key in ("fusion", "barrier", "depth", "sync", "credit"):
                    del schedule[key]
            elif job.collective.ps is not None:
                if not job.collective.ps.servers:
                    collective.pop("ps")
                    if given.collective.ps is not None:
                        collective["ps"] = given.collective.ps.model_dump(by_alias=True, exclude_none=True)
                else:
                    del collective["ps"]["pull"]
            if job.schedule.buckets is not None:
                schedule.pop("fusion", None)
            if name in self.rankings:
                schedule.pop("file", None)
                schedule["ranking"] = self.rankings[name]
            table["collective"] = _in_order_of(Collective, collective)
            table["schedule"] = _in_order_of(Schedule, schedule)
        for origin in origins:
            table = {k: v for k, v in data["traffic"][origin.name].items() if k not in origin.replaced}
            data["traffic"][origin.name] = _in_order_of(TrafficTable, table | origin.written)
        data["cluster"]["topology"] = fabric.written()
        return {name: data[name] for name in data if data[name]}


def _in_order_of(keys: type[Table], table: Mapping[str, Any]) -> dict[str, Any]:
    """Sort a table as its keys are declared: two scenarios are equal if what is written is."""
    order = list(keys.declared())
    return dict(sorted(table.items(), key=lambda item: order.index(item[0])))
