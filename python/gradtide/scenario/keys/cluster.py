"""Keys of a cluster: network, queues and transport."""

from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
)

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import (
    Alpha,
    Buffer,
    Duration,
    Fifth,
    FileName,
    Name,
    Packets,
    PartSize,
    Rate,
    Ratio,
    Share,
    Time,
)


class Link(Table):
    """A link, one direction."""

    SHORT = "link_{}"

    rate_bps: Rate = key(default="10Gbps", examples=["10Gbps"])
    """Nominal rate."""
    delay_ps: Time = key(default="10us", examples=["10us"])
    """Propagation delay."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.95])
    """Share of the rate left to gradients after headers and retransmissions."""


class CustomLink(Table):
    """A cable of a custom topology: a link in each direction."""

    a: Name = key(examples=["h0"])
    """One end: a host h0, h1, … or a switch of any other name. A host has one cable."""
    b: Name = key(examples=["s0"])
    """The other end."""
    rate_bps: Rate | None = key(default=None, examples=["25Gbps"])
    """Nominal rate. Default: that of cluster.link."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: that of cluster.link."""


class FabricLink(Table):
    """A link between leaf and spine."""

    rate_bps: Rate | None = key(default=None, examples=["100Gbps"])
    """Nominal rate. Default: that of cluster.link."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: that of cluster.link."""


def _links_tag(value: object) -> str | None:
    return "<cables>" if isinstance(value, list) else "<file>" if isinstance(value, str) else None


Cables = Annotated[
    Annotated[list[CustomLink], Tag("<cables>")] | Annotated[FileName, Tag("<file>")], Discriminator(_links_tag)
]


class Topology(Table):
    """Shape of the network. The pipe engine knows the star only."""

    kind: Literal["star", "leaf_spine", "clos2", "clos3", "custom"] = key(default="star", examples=["star"])
    """Hosts around one switch, leaf-spine, Clos of 2 or 3 layers, or cable by cable."""
    hosts: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts (star, leaf_spine, custom). Default of a star: as many as the jobs need; of a custom network: up
    to the last one that a cable names."""
    ports: int | None = key(default=None, ge=2, le=1024, examples=[16])
    """Ports of a switch (clos2, clos3)."""
    bisection: Ratio | None = key(default=None, examples=["1/4"])
    """Capacity of an edge switch upwards over that downwards (leaf_spine, clos2, clos3): (k/2) · bisection switches are
    above it. Default: 1, unless `spines` says it."""
    leaves: int | None = key(default=None, ge=1, examples=[4])
    """Number of leaf switches (leaf_spine)."""
    hosts_per_leaf: int | None = key(default=None, ge=1, examples=[8])
    """Hosts of each leaf (leaf_spine). This or `hosts` is needed there."""
    spines: int | None = key(default=None, ge=1, examples=[2])
    """Number of spine switches, each with a link to every leaf (leaf_spine). Default: as `bisection` says."""
    fabric_link: FabricLink | None = key(default=None, examples=[{"rate": "100Gbps"}])
    """Links between leaves and spines (leaf_spine). Default: as `cluster.link`."""
    switches: list[Name] | None = key(default=None, examples=[["s0", "s1"]])
    """Names of the switches (custom). Default: every end of a cable that is no host."""
    links: Cables | None = key(default=None, examples=[[{"a": "h0", "b": "s0"}], "fabric.csv"])
    """Cables (custom): a list, a CSV file with the header a,b[,rate][,delay], rates and delays with their units, or a
    topology file of HPCC. The resolved scenario carries a file as a list."""


class Queue(Table):
    """Queue of every egress port. Read by the packet engine only."""

    kind: Literal["pfifo_fast", "fifo", "strict", "drr", "ecn", "red", "pcn"] = key(
        default="pfifo_fast", examples=["pfifo_fast"]
    )
    """Discipline. pfifo_fast: Linux's three strict bands; fifo: one band; strict: as many as `bands`; drr: bands that
    share the link by `weights`; ecn: one band with a `threshold` for congestion marks; red: one band with random early
    detection; pcn: one band with a `threshold` that announced bursts lower (Kang et al. 2021)."""
    capacity: Buffer = key(default="1000pkt", examples=["1000pkt", "1MB"])
    """Packets or bytes on the wire that wait in a port, all bands together. With `cluster.switch_buffer`, in a host's
    port only."""
    bands: int | None = key(default=None, ge=1, le=8, examples=[3])
    """Number of bands; needed with kind = "strict"."""
    weights: list[Annotated[int, Field(ge=1, le=1000)]] | None = key(default=None, examples=[[4, 2, 1]])
    """With kind = "drr", how many full packets each band sends in a round while it has any, band 0 first; one to eight
    bands. Needed there."""
    threshold_packets: Packets | None = key(default=None, examples=["40pkt"])
    """Queue length, all bands together, from which packets of ECN-capable senders are marked (all kinds but red);
    needed with kind = "ecn" and "pcn". Default: nothing is marked."""
    mark_at: Literal["enqueue", "dequeue"] | None = key(default=None, examples=["enqueue"])
    """When the queue is compared with the threshold. Default: enqueue."""
    min_packets: Packets | None = key(default=None, examples=["5pkt"])
    """Average queue below which RED does nothing; needed with kind = "red"."""
    max_packets: Packets | None = key(default=None, examples=["15pkt"])
    """Average queue from which RED hits every packet; needed with kind = "red"."""
    max_probability_ppm: Share | None = key(default=None, examples=[0.1])
    """Probability with which RED hits a packet just below `max`; it grows from 0 at `min`. Default: 0.1."""
    weight_ppm: Share | None = key(default=None, examples=[0.002])
    """By how much of the difference RED's average moves per packet that arrives. Default: 0.002."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether RED marks packets of ECN-capable senders in place of dropping them. Default: false."""
    announced_packets: Fifth | None = key(default=None, examples=["10pkt"])
    """With kind = "pcn", the threshold of an egress port while a burst is announced to come through it; a multiple of
    5 packets up to 75, and not above `threshold`. Needed there."""
    timeout_ps: Duration | None = key(default=None, examples=["1ms"])
    """With kind = "pcn", how long a sender waits for the answer to its announcement before its burst begins all the
    same. Default: a round trip over the longest route with every queue full, after which none can come."""
    expire_ps: Duration | None = key(default=None, examples=["3ms"])
    """With kind = "pcn", the age at which a switch forgets an announcement whose burst has not come. Default: three
    times `timeout`, and the longest `setup` of announced bursts."""


class SwitchBuffer(Table):
    """Buffer that the ports of a switch share. Read by the packet engine only."""

    capacity: Buffer = key(examples=["4MB"], core=False)
    """Packets or bytes on the wire that wait in all ports of a switch together."""
    alpha_ppm: Alpha = key(default=1.0, examples=[1.0])
    """A port's queue may grow to this many times what is free (Choudhury & Hahne 1998)."""


class Transport(Table):
    """Transport protocol of every flow. Read by the packet engine only."""

    kind: Literal["newreno", "cubic", "dctcp", "ideal", "newreno+ecn", "cubic+ecn"] = key(
        default="newreno", examples=["newreno"], core=False
    )
    """Congestion control. newreno: RFC 5681, 6582 and 6675; cubic: RFC 9438; dctcp: RFC 8257; ideal: the same window
    from the first segment to the last. "newreno+ecn" and "cubic+ecn" are short for `ecn = true`."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether segments can be marked where others are dropped (RFC 3168). It needs a queue that marks. Default: true
    with kind = "dctcp", else false."""
    gain_ppm: Share | None = key(default=None, examples=[0.0625], core=False)
    """Weight g of a window's share of marks in their average (dctcp). Default: 1/16."""
    hystart: bool | None = key(default=None, examples=[True], core=False)
    """Whether slow start ends as soon as acknowledgements last half a round trip or round trips grow, and not only by
    a mark or a loss (cubic): HyStart of Ha & Rhee (2011), as in Linux; round trips are then measured in microseconds.
    Default: false."""
    byte_counting: bool | None = key(default=None, examples=[True], core=False)
    """Whether slow start grows by all segments that an acknowledgement covers, as in Linux (RFC 3465), and not by one
    (RFC 5681): with delayed acknowledgements it doubles in a round trip, and else it grows by a half (cubic). Default:
    false."""
    segment_bytes: PartSize = key(default="1380B", examples=["1380B"])
    """Payload of a full segment; with 52 bytes of headers it fits into an IPv4 packet of 65535."""
    initial_window_segments: int = key(default=10, alias="initial_cwnd", ge=1, le=10_000, examples=[10])
    """Initial window, in segments. No effect on kind = "ideal"."""
    window_bytes: PartSize | None = key(default=None, examples=["32MiB"])
    """Send and receive buffer: most bytes that a connection has under way. With kind = "ideal" it is the window.
    Default: 32MiB; with kind = "ideal" twice what a route holds, in whole segments."""
    recovery: Literal["sack", "ns3.30"] = key(default="sack", examples=["sack"])
    """Fast recovery. sack: RFC 6675, as ns-3.37 does it. "ns3.30": as ns-3.30.1 did, on which Gao (2020) ran: it also
    repeats segments that are under way already."""
    timers: Literal["derived", "linux"] = key(default="derived", examples=["derived"])
    """Least retransmission timeout, delay of acknowledgements, and timeout before the first sample. derived: from a
    high estimate of the worst round trip, as Gao (2020) has them; linux: 200 ms, 40 ms and 1 s, for links so slow or
    long that the estimate would be seconds."""


class Cluster(Table):
    """What the jobs run on."""

    SHORT = "{}"

    topology: Topology = key(default={}, examples=[{"kind": "star", "hosts": 8}], core=False)
    """Shape of the network."""
    link: Link = key(default={}, examples=[{"rate": "10Gbps", "delay": "10us"}])
    """Every link of which the topology says nothing else."""
    host_latency_ps: Time = key(default="0s", examples=["5us"])
    """Time that a host's stack takes for a message: added to the delay of every link of a host. The pipe engine counts
    one link per ring step."""
    routing: Literal["ecmp", "dmodk", "spread"] = key(default="ecmp", examples=["ecmp"])
    """Choice among equal routes. ecmp: by a hash of the flow; dmodk: by the destination's number, as in InfiniBand and
    SimGrid's fat trees; spread: by both ends' places. Where there is one way only, nothing."""
    queue: Queue = key(default={}, examples=[{"kind": "pfifo_fast", "capacity": "1000pkt"}], core=False)
    """Queue of every egress port."""
    switch_buffer: SwitchBuffer | None = key(default=None, examples=[{"capacity": "4MB", "alpha": 1}], core=False)
    """Buffer that the ports of a switch share, each switch its own. Default: every port has `queue.capacity`."""
    transport: Transport = key(default={}, examples=[{"kind": "newreno", "segment": "1380B"}], core=False)
    """Transport protocol of every flow."""
