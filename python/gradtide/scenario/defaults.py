"""Defaults that depend on other keys."""

from collections.abc import Callable
from typing import Literal, TypeGuard

from gradtide import units
from gradtide.scenario.fabric import Reach
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.keys.cluster import Cluster, Node, Queue, Transport
from gradtide.scenario.keys.job import AdaptiveTable, JobTable, Schedule, ThesisModel
from gradtide.transports import ECN, PARAMETERS
from gradtide.units import PPM

PLANNED = ("caramel", "edf", "optimal")
"""Orders with a planner, which also determines buckets and barrier."""

SETTINGS = {
    "deadline": ("credit", "window", "tolerance", "margin", "exchange"),
    "straggler": ("credit", "window", "tolerance", "margin", "exchange"),
    "background": ("credit", "window"),
    "oracle": ("price",),
}
"""Keys that a policy has beside its name."""

WITH_DEADLINES = ("deadline", "straggler")
"""Policies that raise the priority of transfers that would miss their deadline."""

# Differences of times need a sign, so times use half the range of 64 bits.
MAX_RUN_PS = units.U64_MAX // 2

MAX_BANDS = 8

HEADER_BYTES = 54
"""IPv4, TCP, timestamps and framing on the wire."""

SOCKET_BYTES = 32 * 1024 * 1024
"""Send and receive buffer (Gao 2020, chapter 5)."""

RED_MAX_PROBABILITY_PPM, RED_WEIGHT_PPM = 100_000, 2_000
"""Floyd & Jacobson (1993), section 6, recommend the weight; the probability is that of Floyd's later advice (1997)."""

DEFAULT_TOLERANCE_PPM = 20_000
DEFAULT_LOW_CREDIT = 4
DEFAULT_PRICE_PPM = PPM
LEAST_LOW_WINDOW = 16_000
"""Bytes: an initial window (RFC 6928), so that slow start is not what limits a message."""
LOW_WINDOW_PS = 100_000_000
"""Time for which a window in the low band keeps a link busy: some tens of full packets at today's rates."""


def nics_of(node: Node) -> int:
    """Return the network cards of a node."""
    return node.gpus if node.nics is None else node.nics


def overhead_of(job: JobTable, cluster: Cluster) -> int:
    """Return the time before each transfer, in picoseconds: of a collective that of its launch on a node."""
    schedule, node = job.schedule, cluster.node
    is_open = node is not None and not schedule.is_given("overhead") and not job.collective.is_pulled
    return node.launch_ps if is_open and node is not None else schedule.overhead_ps


def bands_of(queue: Queue) -> int:
    """Return the number of bands that a queue has."""
    return {"pfifo_fast": 3, "strict": queue.bands or 1, "drr": len(queue.weights or [1])}.get(queue.kind, 1)


def low_window(reach: Reach, segment: int) -> int:
    """Return the bytes that a connection has in flight in the low band: see `LOW_WINDOW_PS`."""
    hops, rate_bps, delay_ps = reach
    busy_ps = max(LOW_WINDOW_PS, 4 * hops * delay_ps)
    return max(LEAST_LOW_WINDOW, 2 * segment, rate_bps * busy_ps // (8 * units.PS_PER_SECOND))


def adaptive_of(given: AdaptiveTable, reach: Reach, transport: Transport) -> AdaptiveTable | None:
    """Return a policy with the defaults that its job's network gives; `None` for bands that do not change.

    With ECN marking, queues are short and hardly any packet is delayed for long. Concurrent chunks then only share the
    link, at the expense of the most urgent one, and a small window does not help background flows (decision 20).
    """
    if given.policy not in SETTINGS:
        return None
    if given.policy == "oracle":
        return given.with_values(price_ppm=DEFAULT_PRICE_PPM if given.price_ppm is None else given.price_ppm)
    has_deadlines = given.policy in WITH_DEADLINES
    credit = 1 if has_deadlines and transport.ecn else DEFAULT_LOW_CREDIT
    marked_bytes = SOCKET_BYTES if transport.window_bytes is None else transport.window_bytes
    window_bytes = marked_bytes if transport.ecn else low_window(reach, transport.segment_bytes)
    low = given.with_values(credit=given.credit or credit, window_bytes=given.window_bytes or window_bytes)
    if not has_deadlines:
        return low
    return low.with_values(
        tolerance_ppm=DEFAULT_TOLERANCE_PPM if given.tolerance_ppm is None else given.tolerance_ppm,
        margin_ppm=given.margin_ppm or 0,
        exchange=given.exchange is not False,
    )


def schedule_of(
    schedule: Schedule, *, bucketed: bool = False
) -> tuple[int | Literal["adaptive"], bool, int | Literal["adaptive"]]:
    """Return fusion, barrier and depth of a schedule with the defaults that its order has, or layers that are buckets.

    What reaches a cap, or is ready at the end of a cycle, needs a cap whatever the order.
    """
    fusion, barrier, depth = schedule.fusion_bytes, schedule.barrier, schedule.depth
    is_open = not schedule.is_given("fusion") and schedule.first_fusion_bytes is None and schedule.cycle_ps is None
    if bucketed and is_open:
        fusion = 0
    if schedule.order in PLANNED:
        if is_open:
            fusion = "adaptive"
        if not schedule.is_given("barrier"):
            barrier = False
        if not schedule.is_given("depth"):
            depth = "adaptive"
    return fusion, barrier, depth


def marks(queue: Queue) -> bool:
    """Return whether a queue marks packets (ECN) instead of dropping them."""
    return queue.threshold_packets is not None or queue.kind == "pcn" or bool(queue.ecn)


def announced_packets(announce: bool | int | None, queue: Queue) -> int | None:
    """Return the threshold that bursts announce to the switches; `None` if they announce nothing."""
    if isinstance(announce, bool) or announce is None:
        return queue.announced_packets if announce else None
    return announce


def patience_ps(file: ScenarioFile, reach: Callable[[], Reach]) -> tuple[int, int]:
    """Return a sender's timeout for the answer to an announcement, and the age at which switches expire announcements.

    The default timeout is a round trip over the longest route with all queues full in both directions: a later answer
    is lost. The default expiry is three such round trips (answer, handshake, first segment) plus the longest setup time
    of a tenant's application.
    """
    cluster = file.cluster
    queue = cluster.queue
    hops, rate_bps, delay_ps = reach()
    packet_bytes = cluster.transport.segment_bytes + HEADER_BYTES
    full_bytes = queue.capacity.size if queue.capacity.is_bytes else queue.capacity.size * packet_bytes
    # Two further packets are in the transmit ring and on the wire.
    hop_ps = delay_ps + -(-(full_bytes + 3 * packet_bytes) * 8 * 10**12 // rate_bps)
    round_ps = 2 * hops * hop_ps + 4 * cluster.host_latency_ps
    timeout_ps = min(round_ps, MAX_RUN_PS // 4) if queue.timeout_ps is None else queue.timeout_ps
    if queue.expire_ps is not None:
        return timeout_ps, queue.expire_ps
    setup_ps = max((one.bursts.setup_ps for one in file.traffic.values() if one.bursts and one.announce), default=0)
    return timeout_ps, min(3 * timeout_ps + setup_ps, MAX_RUN_PS)


def with_ecn(keys: Transport) -> Transport:
    """Return a transport whose kind is its congestion control alone, and which says whether it reacts to marks."""
    congestion, plus, _ = keys.kind.partition("+ecn")
    return keys.with_values(
        kind=congestion, ecn=bool(plus) or (ECN[congestion] == "scalable" if keys.ecn is None else keys.ecn)
    )


def transport_of(cluster: Cluster, reach: Callable[[], Reach]) -> Transport:
    """Return the transport of a cluster with its defaults, some of which depend on the links that messages cross."""
    keys = with_ecn(cluster.transport)
    congestion = keys.kind
    window_bytes = keys.window_bytes
    if window_bytes is None:
        window_bytes = _two_routes_bytes(cluster, reach()) if congestion == "ideal" else SOCKET_BYTES
    defaults = PARAMETERS[congestion].items()
    given = {name: getattr(keys, name) for name, _ in defaults}
    parameters = {name: default if given[name] is None else given[name] for name, default in defaults}
    return keys.with_values(**parameters, window_bytes=window_bytes)


def queue_of(file: ScenarioFile, reach: Callable[[], Reach]) -> Queue:
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
        timeout_ps, expire_ps = patience_ps(file, reach)
        queue = queue.with_values(timeout_ps=timeout_ps, expire_ps=expire_ps)
    return queue


def start_jitter_of(file: ScenarioFile, reach: Callable[[], Reach]) -> int | None:
    """Return the jitter of start times on the packet engine; None on other engines."""
    run = file.run
    if run.engine != "packet" or run.start_jitter_ps is not None:
        return run.start_jitter_ps
    return 0 if run.follow == "ns3" else _packet_ps(file.cluster.transport.segment_bytes + HEADER_BYTES, reach())


def _packet_ps(packet_bytes: int, reach: Reach) -> int:
    """Return the serialization time of a packet on the slowest link of a route."""
    return -(-packet_bytes * 8 * 10**12 // reach.rate_bps)


def _two_routes_bytes(cluster: Cluster, reach: Reach) -> int:
    """Return twice the bandwidth-delay product of the longest route without queueing, in whole segments.

    One BDP keeps the sender's link busy; two leave room for delayed acknowledgements and queueing.
    """
    segment = cluster.transport.segment_bytes
    hops, _, delay_ps = reach
    packet_ps, ack_ps = (_packet_ps(packet_bytes, reach) for packet_bytes in (segment + HEADER_BYTES, HEADER_BYTES))
    round_ps = hops * (2 * delay_ps + packet_ps + ack_ps) + 4 * cluster.host_latency_ps
    return int(2 * -(-round_ps // packet_ps) * segment)


def link_of(cluster: Cluster) -> tuple[int, int]:
    """Return rate and delay of links for which the topology gives no others."""
    return cluster.link.rate_bps, cluster.link.delay_ps


def is_remade(model: object) -> TypeGuard[ThesisModel]:
    """Whether a model's table is made anew for another time, with its rounding and surplus, and not stretched.

    The cells of the thesis's study differ in the time that its author's program was given.
    """
    return isinstance(model, ThesisModel) and model.precision == "float32"
