"""Keys of `cluster`: topology, links, nodes, hosts, queues and transport."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from gradtide.disciplines import MEANING as MEANING_OF_QUEUES
from gradtide.disciplines import QueueKind
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
from gradtide.transports import MEANING as MEANING_OF_TRANSPORTS
from gradtide.transports import TransportKind


class Link(Table):
    """Rate and delay of each direction of a link, unless the topology sets them for this link."""

    SHORT = "link_{}"

    rate_bps: Rate = key(default="10Gbps")
    """Nominal rate."""
    delay_ps: Time = key(default="10us")
    """Propagation delay."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.95])
    """Share of the link rate that is left for gradients after headers and retransmissions."""


class CustomLink(Table):
    """A cable of a custom topology: a link in each direction."""

    a: Name = key(examples=["h0"])
    """Node at one end of the cable: a host (h0, h1, …), which has only one cable, or a switch (any other name)."""
    b: Name = key(examples=["s0"])
    """Node at the other end of the cable."""
    rate_bps: Rate | None = key(default=None, examples=["25Gbps"])
    """Nominal rate. Default: `cluster.link.rate`."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: `cluster.link.delay`."""


class FabricLink(Table):
    """Links between leaves and spines."""

    rate_bps: Rate | None = key(default=None, examples=["100Gbps"])
    """Nominal rate. Default: `cluster.link.rate`."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: `cluster.link.delay`."""


def _links_tag(value: object) -> str | None:
    return "<cables>" if isinstance(value, list) else "<file>" if isinstance(value, str) else None


Cables = Annotated[
    Annotated[list[CustomLink], Tag("<cables>")] | Annotated[FileName, Tag("<file>")], Discriminator(_links_tag)
]


class Topology(Table):
    """Shape of the network (docs/models/fabrics.md)."""

    kind: Literal["star", "leaf_spine", "clos2", "clos3", "custom"] = key(default="star")
    """star: hosts around one switch. leaf_spine: leaf switches, each with a link to every spine switch. clos2, clos3: a
    Clos network of 2 or 3 layers. custom: a list of cables."""
    hosts: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts (star, leaf_spine, custom). Default: in a star, as many as the jobs need; in a custom network,
    one more than the highest host number in `links`."""
    ports: int | None = key(default=None, ge=2, le=1024, examples=[16])
    """Number of ports of each switch of a Clos network."""
    bisection: Ratio | None = key(default=None, examples=["1/4"])
    """Upward divided by downward capacity of an edge switch (leaf_spine, clos2, clos3). Default: 1, or the ratio that
    `spines` gives."""
    leaves: int | None = key(default=None, ge=1, examples=[4])
    """Number of leaf switches of a leaf_spine network."""
    hosts_per_leaf: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts on each leaf switch. A leaf_spine network needs this key or `hosts`."""
    spines: int | None = key(default=None, ge=1, examples=[2])
    """Number of spine switches of a leaf_spine network. Default: the number that `bisection` gives."""
    fabric_link: FabricLink | None = key(default=None, examples=[{"rate": "100Gbps"}])
    """Links between leaves and spines. Default: rate and delay of `cluster.link`."""
    switches: list[Name] | None = key(default=None, examples=[["s0", "s1"]])
    """Names of the switches of a custom network. Default: every end of a cable that is not a host."""
    links: Cables | None = key(default=None, examples=[[{"a": "h0", "b": "s0"}], "fabric.csv"])
    """Cables of a custom network: a list, an HPCC topology file, or a CSV file with the header a,b[,rate][,delay] and
    values with units."""


class Queue(Table):
    """Queue of every egress port. Only the packet engine uses it."""

    kind: QueueKind = key(default="pfifo_fast", description=MEANING_OF_QUEUES)
    capacity: Buffer = key(default="1000pkt", examples=["1000pkt", "1MB"])
    """Buffer capacity of a port for all bands together, in packets or bytes on the wire. With `cluster.switch_buffer`,
    it applies only to the ports of hosts."""
    bands: int | None = key(default=None, ge=1, le=8, examples=[3])
    """Number of bands of a strict queue; required."""
    weights: list[Annotated[int, Field(ge=1, le=1000)]] | None = key(default=None, examples=[[4, 2, 1]])
    """Numbers of full packets that the 1 to 8 bands of a drr queue may send per round, band 0 first; required."""
    threshold_packets: Packets | None = key(default=None, examples=["40pkt"])
    """Queue length, all bands together, from which packets of ECN-capable senders are marked. Required for ecn and pcn,
    an error for red. Default: none is marked."""
    mark_at: Literal["enqueue", "dequeue"] | None = key(default=None, examples=["enqueue"])
    """Whether the queue length is compared with `threshold` when a packet arrives or when it leaves. Default:
    enqueue."""
    min_packets: Packets | None = key(default=None, examples=["5pkt"])
    """Average length of a RED queue below which packets are neither marked nor dropped; required."""
    max_packets: Packets | None = key(default=None, examples=["15pkt"])
    """Average length of a RED queue from which every packet is marked or dropped; required."""
    max_probability_ppm: Share | None = key(default=None, examples=[0.1])
    """Probability of a mark or drop when the average length of a RED queue is just below `max`; 0 at `min`. Default:
    0.1."""
    weight_ppm: Share | None = key(default=None, examples=[0.002])
    """Weight of each arriving packet in the moving average of a RED queue's length. Default: 0.002."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether a RED queue marks packets of ECN-capable senders instead of dropping them. Default: false."""
    announced_packets: Fifth | None = key(default=None, examples=["10pkt"])
    """Marking threshold of a pcn queue from the announcement of a burst until its arrival, at most `threshold`;
    required."""
    timeout_ps: Duration | None = key(default=None, examples=["1ms"])
    """Time after which a sender starts a burst even if no pcn queue has answered its announcement. Default: the longest
    time that an answer can take, with full queues on the longest route."""
    expire_ps: Duration | None = key(default=None, examples=["3ms"])
    """Age at which a pcn queue deletes an announcement whose burst has not arrived. Default: three times `timeout`,
    plus the longest `setup` of announced bursts."""


class SwitchBuffer(Table):
    """Buffer of each switch, shared by the ports of the switch. Only the packet engine uses it."""

    capacity: Buffer = key(examples=["4MB"], core=False)
    """Buffer capacity for all ports of a switch together, in packets or bytes on the wire."""
    alpha_ppm: Alpha = key(default=1.0)
    """Maximum length of a port's queue, as a multiple of the free buffer (Choudhury & Hahne 1998)."""


class Transport(Table):
    """Transport protocol of every flow (docs/models/packet.md#transports). Only the packet engine uses it."""

    kind: TransportKind = key(default="newreno", core=False, description=MEANING_OF_TRANSPORTS)
    ecn: bool | None = key(default=None, examples=[True])
    """Whether queues may mark segments instead of dropping them (RFC 3168); requires a queue that marks. Default: true
    for dctcp, otherwise false."""
    gain_ppm: Share | None = key(default=None, examples=[0.0625], core=False)
    """Weight g of the newest window in DCTCP's moving average of the share of marked data. Default: 1/16."""
    hystart: bool | None = key(default=None, examples=[True], core=False)
    """Whether HyStart (Ha & Rhee 2011) can end CUBIC's slow start before a mark or a loss, as in Linux. Default:
    false."""
    byte_counting: bool | None = key(default=None, examples=[True], core=False)
    """By how much an acknowledgement increases the window of CUBIC or NewReno in slow start. true: by all segments that
    it acknowledges, as in Linux (RFC 3465); NewReno then also grows by one segment a round trip beyond slow start.
    false: by one segment (RFC 5681). Default: false."""
    as_linux: bool | None = key(default=None, examples=[True], core=False)
    """Whether CUBIC has Linux's differences from RFC 9438 (docs/models/packet.md#transports): when it grows, how much
    before the first loss, how HyStart counts delayed acknowledgements, and ssthresh after a timeout. Default: false."""
    segment_bytes: PartSize = key(default="1380B")
    """Payload of a full segment, which with 54 bytes of headers must fit into 65535 bytes."""
    initial_window_segments: int = key(default=10, alias="initial_cwnd", ge=1, le=10_000)
    """Initial congestion window, in segments (all kinds but ideal)."""
    window_bytes: PartSize | None = key(default=None, examples=["32MiB"])
    """Maximum number of bytes in flight per connection: the size of its buffers or, for ideal, the window. Default:
    32MiB; for ideal, twice the bandwidth-delay product of the longest route, in whole segments."""
    recovery: Literal["sack", "rack", "ns3.30"] = key(default="sack")
    """Loss detection and fast recovery. sack: RFC 6675, as in ns-3.37. rack: by time, as in Linux (RFC 8985 and 9937).
    "ns3.30": as in ns-3.30.1, which Gao (2020) used, and which also retransmits segments that are still in flight."""
    timers: Literal["derived", "linux"] = key(default="derived")
    """Values of the minimum retransmission timeout, the delay of acknowledgements, and the timeout before the first
    round-trip sample. derived: computed from the links (docs/models/packet.md#parameters). linux: 200 ms, 40 ms and 1
    s."""
    min_rto_ps: Duration | None = key(default=None, examples=["5ms"])
    """Minimum retransmission timeout. Acknowledgements are delayed by at most half of it. Default: the value that
    `timers` selects."""
    restart_after_idle: bool = key(default=False)
    """Whether a connection that has sent nothing for longer than its retransmission timeout starts again from the
    initial window (RFC 5681, 4.1)."""


class Stages(Table):
    """Rates of a host's stages, in series. Each stage processes one part of a transfer at a time."""

    SHORT = "host_{}"

    copy_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """Rate of a sender's first stage, such as the copy from the accelerator to the host's memory. Default: no time."""
    serialise_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """Rate of a sender's second stage, before its network interface. Default: no time."""
    receive_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """Rate of a receiver's stage, after its network interface. Default: no time."""


class Host(Table):
    """Time that a host adds to messages of jobs, not to background flows (docs/models/hosts.md#the-model)."""

    SHORT = "host_{}"

    message_ps: Time = key(default="0us", examples=["15us"])
    """Time that a host needs for each message that it sends: the overhead o of LogP (Culler et al. 1993)."""
    stages: Stages = key(default={}, examples=[{"copy": "7Gbps", "serialise": "7Gbps", "receive": "7Gbps"}], short="")
    """Rates of a host's stages, in series. Each stage processes one part of a transfer at a time."""


class ScaleUp(Table):
    """Links between the GPUs of a node and its scale-up switch, in each direction."""

    SHORT = "scale_up_{}"

    rate_bps: Rate = key(examples=["450GBps"])
    """Nominal rate."""
    delay_ps: Time = key(default="1us", examples=["1us"])
    """Propagation delay of a scale-up link. A message crosses two links."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.8])
    """Share of the scale-up links' rate that collectives reach."""


class Node(Table):
    """Machines with several GPUs. Hosts of jobs are then GPUs, and hosts of `topology` are network cards."""

    SHORT = "node_{}"

    gpus: int = key(ge=1, le=1024, examples=[8])
    """Number of GPUs of each node (docs/models/nodes.md#the-model). With 8, h0 to h7 are the GPUs of the first node."""
    scale_up: ScaleUp = key(examples=[{"rate": "450GBps", "delay": "1us"}])
    """Links between the GPUs of a node and its scale-up switch, in each direction."""
    nics: int | None = key(default=None, ge=1, le=1024, examples=[8])
    """Number of network cards of each node, a divisor of `gpus`. Default: `gpus`."""
    launch_ps: Time = key(default="0us", examples=["20us"], core=False)
    """Time before the first byte of each collective: the default of `job.NAME.schedule.overhead`."""


class Cluster(Table):
    """The network on which jobs run."""

    SHORT = "{}"

    preset: Name | None = key(default=None, examples=["h100-hgx/32"], core=False, short="")
    """Name of a built-in cluster, as `NAME` or `NAME/N`. `cluster = "h100-hgx/32"` is a short form. Other keys replace
    those of the built-in cluster; a table with a `kind`, such as `queue`, is replaced as a whole."""
    topology: Topology = key(default={}, examples=[{"kind": "star", "hosts": 8}], core=False)
    """Shape of the network (docs/models/fabrics.md)."""
    link: Link = key(default={}, examples=[{"rate": "10Gbps", "delay": "10us"}])
    """Rate and delay of each direction of a link, unless the topology sets them for this link."""
    node: Node | None = key(default=None, examples=[{"gpus": 8, "scale_up": {"rate": "450GBps"}, "nics": 8}])
    """Machines with several GPUs. Hosts of jobs are then GPUs, and hosts of `topology` are network cards. Default: no
    such machines; every host is a worker."""
    device: Name | None = key(default=None, examples=["H100-bf16"], core=False, short="cluster_device")
    """Device of the hosts or GPUs (gradtide presets device), for jobs without `compute.device`."""
    host_latency_ps: Time = key(default="0s", examples=["5us"])
    """Time that a host's network stack takes for a message, in addition to the delay of the links."""
    host: Host | None = key(default=None, examples=[{"message": "15us", "stages": {"copy": "7Gbps"}}])
    """Time that a host adds to messages of jobs, not to background flows (docs/models/hosts.md#the-model). Default:
    nothing."""
    routing: Literal["ecmp", "dmodk", "spread"] = key(default="ecmp")
    """How a flow chooses among shortest routes. ecmp: by a hash of the flow. dmodk: by the destination's number, as in
    InfiniBand and SimGrid's fat trees. spread: by the numbers of source and destination."""
    queue: Queue = key(default={}, examples=[{"kind": "pfifo_fast", "capacity": "1000pkt"}], core=False)
    """Queue of every egress port. Only the packet engine uses it."""
    switch_buffer: SwitchBuffer | None = key(default=None, examples=[{"capacity": "4MB", "alpha": 1}], core=False)
    """Buffer of each switch, shared by the ports of the switch. Default: each port has a buffer of `queue.capacity`."""
    transport: Transport = key(default={}, examples=[{"kind": "newreno", "segment": "1380B"}], core=False)
    """Transport protocol of every flow (docs/models/packet.md#transports)."""
