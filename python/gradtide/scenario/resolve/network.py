"""Checks topology, queues and transport, and fills in their defaults that depend on other keys."""

from collections.abc import Callable
from fractions import Fraction

from gradtide import units
from gradtide.disciplines import DISCIPLINES, kinds_with
from gradtide.errors import ScenarioError
from gradtide.recognise import expecting
from gradtide.scenario.cables import MAX_FAULTS_OF_CABLES, Complaint, cable_fault, read_cables, wired
from gradtide.scenario.device import is_known, unknown_device
from gradtide.scenario.fabric import (
    MAX_CABLES,
    Cable,
    Fabric,
    Nodes,
    Reach,
    Tree,
    Wiring,
    clos,
    host_number,
    leaf_spine,
    nearest_ratios,
    star,
)
from gradtide.scenario.keys import Run, ScenarioFile
from gradtide.scenario.keys.cluster import Cluster, Node, Queue, Topology, Transport
from gradtide.scenario.keys.table import fields
from gradtide.scenario.read import example
from gradtide.scenario.resolve.context import MAX_WORKERS, Context
from gradtide.scenario.source import Failure, Loc, read_text
from gradtide.transports import ECN, PARAMETERS

MAX_FLUID_BPS = 2**44 - 1
"""Maximum rate of a link on the fluid engine, whose 64-bit rates have the unit 2^-20 bit/s (crates/net/src/maxmin)."""

TOO_FAST = (
    f"the fluid engine counts at most {units.format_rate(MAX_FLUID_BPS // 10**11 * 10**11)}",
    "write a lower rate",
)
"""Message and hint of the fault that a link's rate exceeds `MAX_FLUID_BPS`."""

TOPOLOGY_KEYS = {
    "star": ("hosts",),
    "leaf_spine": ("leaves", "hosts_per_leaf", "hosts", "spines", "bisection", "fabric_link"),
    "clos2": ("ports", "bisection"),
    "clos3": ("ports", "bisection"),
    "custom": ("hosts", "switches", "links"),
}
"""Keys of a topology by its kind."""

HEADER_BYTES = 54
"""Bytes of a packet in addition to its payload: headers of IPv4 and TCP with timestamps, and framing."""

SOCKET_BYTES = 32 * 1024 * 1024
"""Default size of a send or receive buffer (Gao 2020, chapter 5)."""

RED_MAX_PROBABILITY_PPM, RED_WEIGHT_PPM = 100_000, 2_000
"""Defaults of RED: the weight is from Floyd & Jacobson (1993), section 6, and the probability from Floyd (1997)."""

MAX_BANDS = 8

# A difference of times needs a sign bit, so times are limited to half the range of u64.
MAX_RUN_PS = units.U64_MAX // 2

MAX_PACKETS = 2**32 - 1

MAX_SEGMENT_BYTES = 65_535 - HEADER_BYTES
"""Maximum payload of a packet: with its headers, a packet has at most 65,535 bytes, the largest 16-bit length."""


def device(ctx: Context, name: str | None) -> None:
    """Check that `cluster.device` is a built-in device."""
    if name is not None and ctx.ok("cluster", "device") and not is_known(name):
        ctx.add("GT031", ("cluster", "device"), *unknown_device(name), name)


def shape(ctx: Context, topology: Topology) -> Fabric | None:
    """Return the network of `[cluster]`; `None` if the jobs determine its size, or if its keys have faults."""
    if not _check_node(ctx):
        return None
    cards, node = _shape(ctx, topology), ctx.file.cluster.node
    if cards is None or node is None:
        return cards
    nics, loc = nics_of(node), ("cluster", "topology")
    if cards.host_count % nics:
        msg = f"{cards.host_count} network cards do not fill whole nodes with {nics} each"
        key = "hosts" if topology.hosts is not None else "kind"
        hint = f"the hosts of the topology are network cards: write a multiple of {nics}, or other `nics`"
        ctx.add("GT014", (*loc, key), msg, hint, cards.host_count)
        return None
    if cards.host_count // nics * node.gpus > MAX_WORKERS:
        ctx.too_many(("cluster", "node", "gpus"), cards.host_count // nics * node.gpus, MAX_WORKERS, "GPUs")
        return None
    return _with_gpus(cards, node)


def open_star(cluster: Cluster, places: int) -> Fabric:
    """Return the smallest star for `places` workers, rounded up to whole nodes if the cluster has nodes."""
    node, link = cluster.node, link_of(cluster)
    if node is None:
        return star(places, link)
    return _with_gpus(star(-(-places // node.gpus) * nics_of(node), link), node)


def _with_gpus(cards: Tree | Wiring, node: Node) -> Nodes:
    return Nodes(cards, node.gpus, nics_of(node), (node.scale_up.rate_bps, node.scale_up.delay_ps))


def nics_of(node: Node) -> int:
    """Return the number of network cards per node."""
    return node.gpus if node.nics is None else node.nics


def link_of(cluster: Cluster) -> tuple[int, int]:
    """Return `cluster.link` as rate (bit/s) and delay (ps): the default of all links."""
    return cluster.link.rate_bps, cluster.link.delay_ps


def _check_node(ctx: Context) -> bool:
    """Check that all network cards of a node have the same number of GPUs; return whether `cluster.node` is valid."""
    node = ctx.file.cluster.node
    if node is None or not ctx.ok("cluster", "node"):
        return ctx.ok("cluster", "node")
    if node.gpus % nics_of(node) == 0:
        return True
    near = max(count for count in range(1, min(node.gpus, nics_of(node)) + 1) if node.gpus % count == 0)
    msg = f"{node.gpus} GPUs cannot share {nics_of(node)} network cards equally"
    ctx.add("GT014", ("cluster", "node", "nics"), msg, f"write a divisor of gpus, as in nics = {near}", node.nics)
    # No topology can be built with this number of cards, so later checks are skipped.
    ctx.bad.add(("cluster", "node", "nics"))
    return False


def _shape(ctx: Context, topology: Topology) -> Tree | Wiring | None:
    """Return the network between hosts, or network cards; `None` if jobs determine its size, or for faulty keys."""
    loc: Loc = ("cluster", "topology")
    if not ctx.ok("cluster", "topology"):
        return None
    kind, before = topology.kind, len(ctx.faults)
    allowed = TOPOLOGY_KEYS[kind]
    for key in Topology.declared():
        if key != "kind" and key not in allowed and topology.value(key) is not None:
            ctx.no_effect((*loc, key), f'with kind = "{kind}"', f'keys of kind = "{kind}" are ' + ", ".join(allowed))
    needed = {"leaf_spine": ("leaves",), "clos2": ("ports",), "clos3": ("ports",), "custom": ("links",)}
    for key in needed.get(kind, ()):
        if topology.value(key) is None and not ctx.misspelt(loc, key):
            ctx.add("GT010", (*loc, key), f'kind = "{kind}" needs `{key}`', example(key, Topology.declared()[key]))
    if topology.hosts is not None and topology.hosts > MAX_WORKERS:
        ctx.too_many((*loc, "hosts"), topology.hosts, MAX_WORKERS, "hosts")
    if len(ctx.faults) > before:
        return None
    link = link_of(ctx.file.cluster)
    if kind == "star":
        return None if topology.hosts is None else star(topology.hosts, link)
    if kind == "custom":
        return _wiring(ctx, topology, loc, link)
    return _leaf_spine(ctx, topology, loc, link) if kind == "leaf_spine" else _clos(ctx, topology, loc, link)


def _clos(ctx: Context, topology: Topology, loc: Loc, link: tuple[int, int]) -> Tree | None:
    ports, bisection = topology.ports or 0, topology.bisection or Fraction(1)
    if ports % 2:
        msg = f"a switch of a Clos network has an even number of ports, not {ports}"
        ctx.add("GT014", (*loc, "ports"), msg, f"write an even number: {ports - 1} or {ports + 1}", ports)
        return None
    if not _whole_switches(ctx, bisection, Fraction(ports, 2), f"{ports}-port switches", loc):
        return None
    tree = clos(topology.kind, ports, bisection, link)
    if tree.host_count > MAX_WORKERS:
        ctx.too_many((*loc, "ports"), tree.host_count, MAX_WORKERS, "hosts")
        return None
    return tree


def _leaf_spine(ctx: Context, topology: Topology, loc: Loc, link: tuple[int, int]) -> Tree | None:
    leaves, per_leaf = topology.leaves or 1, topology.hosts_per_leaf
    if per_leaf is None and topology.hosts is None:
        ctx.add("GT010", (*loc, "hosts_per_leaf"), "`hosts_per_leaf` is missing", "write hosts_per_leaf = 8")
        return None
    if per_leaf is None:
        per_leaf, rest = divmod(topology.hosts or 0, leaves)
        if rest or per_leaf == 0:
            msg = f"{topology.hosts} hosts cannot be divided equally among {leaves} leaves"
            near = max(1, round((topology.hosts or 0) / leaves)) * leaves
            ctx.add("GT014", (*loc, "hosts"), msg, f"write hosts = {near}, or hosts_per_leaf", topology.hosts)
            return None
    elif topology.hosts not in (None, leaves * per_leaf):
        msg = f"hosts = {topology.hosts} but {leaves} leaves of {per_leaf} hosts have {leaves * per_leaf}"
        ctx.add("GT016", (*loc, "hosts"), msg, "leave `hosts` out", topology.hosts)
        return None
    given = topology.fabric_link
    rate = link[0] if given is None or given.rate_bps is None else given.rate_bps
    delay = link[1] if given is None or given.delay_ps is None else given.delay_ps
    spines = topology.spines
    if spines is not None and topology.bisection is not None:
        ctx.add("GT016", (*loc, "bisection"), "`spines` and `bisection` contradict each other", "keep one of them")
        return None
    if spines is None:
        if not ctx.ok("cluster", "link", "rate"):
            return None
        bisection, parts = topology.bisection or Fraction(1), Fraction(per_leaf * link[0], rate)
        if not _whole_switches(ctx, bisection, parts, f"leaves of {per_leaf} hosts", loc):
            return None
        spines = int(bisection * parts)
    if leaves * per_leaf > MAX_WORKERS:
        key = "hosts" if topology.hosts_per_leaf is None else "leaves"
        ctx.too_many((*loc, key), leaves * per_leaf, MAX_WORKERS, "hosts")
        return None
    if leaves * spines > MAX_CABLES:
        key = "spines" if topology.bisection is None else "bisection"
        ctx.too_many((*loc, key), leaves * spines, MAX_CABLES, "cables between switches")
        return None
    return leaf_spine(leaves, per_leaf, spines, link, (rate, delay))


def _whole_switches(ctx: Context, bisection: Fraction, parts: Fraction, what: str, loc: Loc) -> bool:
    """Check that a bisection ratio r needs a whole number of switches above each edge switch: r x `parts`."""
    if (bisection * parts).denominator == 1:
        return True
    near = nearest_ratios(parts, bisection)
    ratios = " or ".join(f'bisection = "{ratio}"' for ratio in near)
    hint = f"write {ratios}" if near else "write `spines`, or more hosts"
    msg = f"a bisection of {bisection} with {what} needs {float(bisection * parts):g} switches above each"
    ctx.add("GT044", (*loc, "bisection"), msg, hint, str(bisection))
    return False


def _wiring(ctx: Context, topology: Topology, loc: Loc, link: tuple[int, int]) -> Wiring | None:
    from gradtide import formats

    given = topology.links or []
    lines: list[tuple[int, str]] = []
    hosts, switches = topology.hosts, topology.switches
    name = given if isinstance(given, str) else ""
    if isinstance(given, str):
        try:
            text = read_text(ctx.base_dir / given, given, Failure(ctx.source, (*loc, "links"), given))
            with expecting(text, given, "a list of cables", "links", "hpcc-topology"):
                if formats.form_of(text) == "hpcc-topology":
                    cables, lines, host_count, names = formats.network.read_hpcc(text.split("\n"), given)
                    hosts, switches = hosts or host_count, switches or names
                else:
                    cables, lines = read_cables(text, given, link)
        except ScenarioError as error:
            ctx.faults += error.faults
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
                ctx.add("GT046", at, f'"{switch}" is the name of a host', "give switches other names: s0, s1", switch)
            elif switch in topology.switches[:index]:
                ctx.add("GT046", at, f'the switch "{switch[:80]}" is named twice', "delete one", switch)
    fabric, complaints = wired(cables, hosts, switches, MAX_WORKERS)
    if ctx.file.run.engine == "fluid":
        # Cables with the rate `cluster.link.rate` are skipped, because `run` checks this key.
        fast = [i for i, cable in enumerate(cables) if MAX_FLUID_BPS < cable.rate_bps != link[0]]
        complaints += [Complaint("GT014", index, "rate", *TOO_FAST) for index in fast[:MAX_FAULTS_OF_CABLES]]
    for code, cable_index, key, msg, hint in complaints:
        if cable_index is None or not lines:
            at = (*loc, "links") if cable_index is None else (*loc, "links", cable_index, key)
            ctx.add(code, at, msg, hint)
        else:
            number, line = lines[cable_index]
            ctx.faults.append(cable_fault(code, key, msg, hint, name, number, line))
    return None if complaints else fabric


def check_queue(ctx: Context, queue: Queue) -> None:
    """Check the keys of a queue against its kind and its capacity."""
    loc: Loc = ("cluster", "queue")
    if not ctx.ok("cluster", "queue"):
        return
    for key in Queue.declared():
        kinds = kinds_with(key)
        if queue.value(key) is not None and queue.kind not in kinds:
            words = f'kind = "{kinds[0]}"' if len(kinds) == 1 else "any other kind"
            ctx.no_effect((*loc, key), f'with kind = "{queue.kind}"', f"it is for {words}")
    for key in DISCIPLINES[queue.kind].needs:
        if queue.value(key) is None and not ctx.misspelt(loc, key):
            ctx.add("GT010", (*loc, key), f'kind = "{queue.kind}" needs `{key}`', example(key, Queue.declared()[key]))
    if queue.mark_at is not None and queue.threshold_packets is None and queue.kind not in ("ecn", "red"):
        ctx.no_effect((*loc, "mark_at"), "without `threshold`", "nothing is marked")
    if queue.weights is not None and not 1 <= len(queue.weights) <= MAX_BANDS:
        msg = f"{len(queue.weights)} bands are out of range"
        ctx.add("GT014", (*loc, "weights"), msg, f"write 1 to {MAX_BANDS} weights", queue.weights)
    if queue.min_packets is not None and queue.max_packets is not None and queue.min_packets >= queue.max_packets:
        msg = f"`min` ({queue.min_packets:,} packets) is not below `max` ({queue.max_packets:,} packets)"
        ctx.add("GT014", (*loc, "min"), msg, "lower it", queue.min_packets)
    for key, wrong in (("threshold", "no packet would be marked"), ("max", "no queue can become so long")):
        length: int | None = queue.value(key)
        # `capacity` limits host ports even if switches have a shared buffer.
        if length is not None and not queue.capacity.is_bytes and length > queue.capacity.size:
            msg = f"{length:,} packets are more than the capacity of {queue.capacity.size:,}"
            ctx.add("GT014", (*loc, key), msg, f"{wrong}; lower it", length)
    for announce, at in _announcements(ctx):
        packets, threshold = announced_packets(announce, queue), queue.threshold_packets
        if queue.kind == "pcn" and packets is not None and packets > (threshold or packets):
            msg = f"the announced {packets} packets are above the threshold of {threshold:,}: no burst would lower it"
            ctx.add("GT014", at, msg, "lower it", packets)
    _buffer(ctx, queue.capacity, (*loc, "capacity"))
    if ctx.file.cluster.switch_buffer is not None and ctx.ok("cluster", "switch_buffer"):
        _buffer(ctx, ctx.file.cluster.switch_buffer.capacity, ("cluster", "switch_buffer", "capacity"))


def _announcements(ctx: Context) -> list[tuple[bool | int | None, Loc]]:
    """Return the values of `announced` and `announce` in the scenario that may be thresholds, with their locations."""
    queue = ctx.file.cluster.queue
    found: list[tuple[bool | int | None, Loc]] = [(queue.announced_packets, ("cluster", "queue", "announced"))]
    for kind, tables in (("job", ctx.file.job), ("traffic", ctx.file.traffic)):
        for name, table in tables.items():
            if ctx.ok(kind, name, "announce") and not isinstance(table.announce, bool):
                found.append((table.announce, (kind, name, "announce")))
    return found


def announce(ctx: Context, announce: bool | int | None, loc: Loc) -> None:
    """Add a fault if the job or tenant at `loc` announces bursts, but the queues of the cluster are not pcn."""
    kind = ctx.file.cluster.queue.kind
    if announce is not None and announce is not False and kind != "pcn" and ctx.ok("cluster", "queue"):
        hint = 'write cluster.queue = { kind = "pcn", threshold = "40pkt", announced = "10pkt" }, or leave it out'
        ctx.no_effect((*loc, "announce"), f'with queue.kind = "{kind}"', hint)


def _buffer(ctx: Context, buffer: units.Buffer, loc: Loc) -> None:
    if not buffer.is_bytes and buffer.size > MAX_PACKETS:
        msg, hint = f"{buffer.size:,} packets are too many", f'write at most "{MAX_PACKETS}pkt"'
        ctx.add("GT014", loc, msg, hint, units.format_buffer(buffer))


def bands_of(queue: Queue) -> int:
    """Return the number of priority bands of a queue."""
    given = queue.bands or (len(queue.weights) if queue.weights else None)
    return given or DISCIPLINES[queue.kind].bands


def marks(queue: Queue) -> bool:
    """Return whether a queue marks packets (ECN) instead of dropping them."""
    return queue.threshold_packets is not None or queue.kind == "pcn" or bool(queue.ecn)


def announced_packets(announce: bool | int | None, queue: Queue) -> int | None:
    """Return the marking threshold that bursts announce to switches, in packets; `None` without announcements."""
    if isinstance(announce, bool) or announce is None:
        return queue.announced_packets if announce else None
    return announce


def queue_of(file: ScenarioFile, reach: Callable[[], Reach]) -> Queue:
    """Return `cluster.queue` with the defaults of its kind; `reach` is only called for pcn."""
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


def patience_ps(file: ScenarioFile, reach: Callable[[], Reach]) -> tuple[int, int]:
    """Return `timeout` and `expire` of a pcn queue in picoseconds.

    Default of `timeout`, for which a sender waits for the answer to an announcement: a round trip over the longest
    route with all queues full in both directions. A later answer must have been lost. Default of `expire`, after which
    a switch deletes an announcement: three timeouts (answer, handshake, first segment) plus the longest `setup` of a
    tenant that announces its bursts.
    """
    cluster = file.cluster
    queue = cluster.queue
    hops, rate_bps, delay_ps = reach()
    packet_bytes = cluster.transport.segment_bytes + HEADER_BYTES
    full_bytes = queue.capacity.size if queue.capacity.is_bytes else queue.capacity.size * packet_bytes
    # At each port, a packet waits for a full queue, one packet in the transmit ring and one packet on the wire.
    hop_ps = delay_ps + -(-(full_bytes + 3 * packet_bytes) * 8 * 10**12 // rate_bps)
    round_ps = 2 * hops * hop_ps + 4 * cluster.host_latency_ps
    timeout_ps = min(round_ps, MAX_RUN_PS // 4) if queue.timeout_ps is None else queue.timeout_ps
    if queue.expire_ps is not None:
        return timeout_ps, queue.expire_ps
    setup_ps = max((one.bursts.setup_ps for one in file.traffic.values() if one.bursts and one.announce), default=0)
    return timeout_ps, min(3 * timeout_ps + setup_ps, MAX_RUN_PS)


def holds_a_segment(ctx: Context, window: int | None, segment: int, loc: Loc) -> None:
    """Add a fault if a window is smaller than one segment."""
    if window is not None and window < segment:
        msg = f"a window of {window:,} bytes is smaller than a segment of {segment:,}"
        ctx.add("GT014", loc, msg, "write at least a few segments", window)


def check_transport(ctx: Context, cluster: Cluster) -> None:
    """Check the keys of the transport against its kind and against the queue."""
    loc: Loc = ("cluster", "transport")
    if not ctx.ok("cluster", "transport"):
        return
    keys, queue = cluster.transport, cluster.queue
    kind, plus, _ = keys.kind.partition("+ecn")
    if keys.segment_bytes > MAX_SEGMENT_BYTES:
        msg = f"a segment of {keys.segment_bytes:,} bytes does not fit into a packet"
        ctx.add("GT014", (*loc, "segment"), msg, f'write at most "{MAX_SEGMENT_BYTES}B"', keys.segment_bytes)
    else:
        holds_a_segment(ctx, keys.window_bytes, keys.segment_bytes, (*loc, "window"))
    for key, field in fields(Transport).items():
        kinds = [other for other, parameters in PARAMETERS.items() if field in parameters]
        if kinds and kind not in kinds and keys.value(key) is not None:
            instead = " or ".join(f'kind = "{other}"' for other in kinds)
            ctx.no_effect((*loc, key), f'with kind = "{keys.kind}"', f"it is for {instead}")
    if keys.ecn and ECN[kind] == "ignored":
        hint = f"leave it out: the {kind} transport does not react to marks"
        ctx.no_effect((*loc, "ecn"), f'with kind = "{kind}"', hint)
    elif keys.ecn is False and (plus or ECN[kind] == "scalable"):
        msg = f'`ecn = false` contradicts kind = "{keys.kind}"'
        ctx.add("GT016", (*loc, "ecn"), msg, f'leave it out, or write kind = "{kind if plus else "newreno"}"')
    elif with_ecn(keys).ecn and not marks(queue) and ctx.is_packet:
        if not ctx.ok("cluster", "queue"):
            return
        never = f'queue.kind = "{queue.kind}" never marks without `{"ecn" if queue.kind == "red" else "threshold"}`'
        hint = 'write queue = { kind = "ecn", threshold = "65pkt" }'
        if keys.ecn:
            ctx.no_effect((*loc, "ecn"), f"here: {never}", hint)
        else:
            less = kind if plus else "newreno"
            msg = f'kind = "{keys.kind}" is "{less}" here: {never}'
            ctx.add("GT015", (*loc, "kind"), msg, f'{hint}, or kind = "{less}"', keys.kind)


def with_ecn(keys: Transport) -> Transport:
    """Return a transport in which a `kind` such as `newreno+ecn` is split into `kind = "newreno"` and `ecn = true`."""
    congestion, plus, _ = keys.kind.partition("+ecn")
    return keys.with_values(
        kind=congestion, ecn=bool(plus) or (ECN[congestion] == "scalable" if keys.ecn is None else keys.ecn)
    )


def transport_of(cluster: Cluster, reach: Callable[[], Reach]) -> Transport:
    """Return `cluster.transport` with all defaults; `reach` is only called for the window of ideal."""
    keys = with_ecn(cluster.transport)
    congestion = keys.kind
    window_bytes = keys.window_bytes
    if window_bytes is None:
        window_bytes = _two_routes_bytes(cluster, reach()) if congestion == "ideal" else SOCKET_BYTES
    defaults = PARAMETERS[congestion].items()
    given = {name: getattr(keys, name) for name, _ in defaults}
    parameters = {name: default if given[name] is None else given[name] for name, default in defaults}
    return keys.with_values(**parameters, window_bytes=window_bytes)


def completed(file: ScenarioFile, reach: Callable[[], Reach]) -> tuple[Cluster, Run]:
    """Return the tables `cluster` and `run` with the defaults that depend on other keys.

    `reach` returns the longest route, slowest link and longest delay over the routes of all messages.
    """
    cluster, run = file.cluster, file.run
    if run.engine == "packet" and run.start_jitter_ps is None:
        packet_bytes = cluster.transport.segment_bytes + HEADER_BYTES
        run = run.with_values(start_jitter_ps=0 if run.follow == "ns3" else _packet_ps(packet_bytes, reach()))
    node = None if cluster.node is None else cluster.node.with_values(nics=nics_of(cluster.node))
    queue, transport = queue_of(file, reach), transport_of(cluster, reach)
    return cluster.with_values(node=node, queue=queue, transport=transport), run


def _packet_ps(packet_bytes: int, reach: Reach) -> int:
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
