"""Keys of a cluster: network, queues and transport."""

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
    """A link. It carries traffic in one direction."""

    SHORT = "link_{}"

    rate_bps: Rate = key(default="10Gbps")
    """Nominal rate."""
    delay_ps: Time = key(default="10us")
    """Propagation delay."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.95])
    """Share of the rate that is left for gradients after headers and retransmissions."""


class CustomLink(Table):
    """A cable of a custom topology. It has one link in each direction."""

    a: Name = key(examples=["h0"])
    """One end of the cable: a host (h0, h1, …) or a switch (any other name). Each host has one cable."""
    b: Name = key(examples=["s0"])
    """The other end."""
    rate_bps: Rate | None = key(default=None, examples=["25Gbps"])
    """Nominal rate. Default: the rate of `cluster.link`."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: the delay of `cluster.link`."""


class FabricLink(Table):
    """A link between leaf and spine."""

    rate_bps: Rate | None = key(default=None, examples=["100Gbps"])
    """Nominal rate. Default: the rate of `cluster.link`."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: the delay of `cluster.link`."""


def _links_tag(value: object) -> str | None:
    return "<cables>" if isinstance(value, list) else "<file>" if isinstance(value, str) else None


Cables = Annotated[
    Annotated[list[CustomLink], Tag("<cables>")] | Annotated[FileName, Tag("<file>")], Discriminator(_links_tag)
]


class Topology(Table):
    """Shape of the network."""

    kind: Literal["star", "leaf_spine", "clos2", "clos3", "custom"] = key(default="star")
    """Hosts around one switch (star), leaf-spine, a Clos network of 2 or 3 layers, or a list of cables (custom)."""
    hosts: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts (star, leaf_spine, custom). Default: a star has as many as the jobs need; a custom network has
    all hosts up to the highest-numbered one that a cable names."""
    ports: int | None = key(default=None, ge=2, le=1024, examples=[16])
    """Number of ports of each switch (clos2, clos3)."""
    bisection: Ratio | None = key(default=None, examples=["1/4"])
    """Upward capacity of an edge switch divided by its downward capacity (leaf_spine, clos2, clos3). In a Clos network
    of k-port switches, (k/2) · bisection switches are above each edge switch. Default: 1, or the ratio that `spines`
    gives."""
    leaves: int | None = key(default=None, ge=1, examples=[4])
    """Number of leaf switches (leaf_spine)."""
    hosts_per_leaf: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts on each leaf. A leaf_spine needs this key or `hosts`."""
    spines: int | None = key(default=None, ge=1, examples=[2])
    """Number of spine switches, each with a link to every leaf (leaf_spine). Default: the number that `bisection`
    gives."""
    fabric_link: FabricLink | None = key(default=None, examples=[{"rate": "100Gbps"}])
    """Links between leaves and spines (leaf_spine). Default: the same as `cluster.link`."""
    switches: list[Name] | None = key(default=None, examples=[["s0", "s1"]])
    """Names of the switches (custom). Default: every end of a cable that is not a host."""
    links: Cables | None = key(default=None, examples=[[{"a": "h0", "b": "s0"}], "fabric.csv"])
    """Cables (custom): a list, an HPCC topology file, or a CSV file with the header a,b[,rate][,delay]. Rates and
    delays have units. The resolved scenario contains the cables of a file as a list."""


class Queue(Table):
    """Queue of every egress port. Only the packet engine uses it."""

    kind: QueueKind = key(default="pfifo_fast", description=MEANING_OF_QUEUES)
    capacity: Buffer = key(default="1000pkt", examples=["1000pkt", "1MB"])
    """Capacity of a port for all bands together, in packets or bytes on the wire. With `cluster.switch_buffer`, it
    applies only to the ports of hosts."""
    bands: int | None = key(default=None, ge=1, le=8, examples=[3])
    """Number of bands. kind = "strict" needs it."""
    weights: list[Annotated[int, Field(ge=1, le=1000)]] | None = key(default=None, examples=[[4, 2, 1]])
    """One weight for each of 1 to 8 bands, band 0 first: how many full packets the band sends in a round while it has
    any. kind = "drr" needs it."""
    threshold_packets: Packets | None = key(default=None, examples=["40pkt"])
    """Queue length, in all bands together, from which packets of ECN-capable senders are marked. All kinds but red have
    it; "ecn" and "pcn" need it. Default: no packet is marked."""
    mark_at: Literal["enqueue", "dequeue"] | None = key(default=None, examples=["enqueue"])
    """When the queue length is compared with the threshold: when a packet arrives or when it leaves. Default:
    enqueue."""
    min_packets: Packets | None = key(default=None, examples=["5pkt"])
    """Average queue length below which RED neither marks nor drops. kind = "red" needs it."""
    max_packets: Packets | None = key(default=None, examples=["15pkt"])
    """Average queue length from which RED marks or drops every packet. kind = "red" needs it."""
    max_probability_ppm: Share | None = key(default=None, examples=[0.1])
    """Probability with which RED marks or drops a packet just below `max`. The probability rises from 0 at `min`.
    Default: 0.1."""
    weight_ppm: Share | None = key(default=None, examples=[0.002])
    """Weight of each arriving packet in RED's moving average of the queue length. Default: 0.002."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether RED marks packets of ECN-capable senders instead of dropping them. Default: false."""
    announced_packets: Fifth | None = key(default=None, examples=["10pkt"])
    """Threshold of an egress port while a burst is announced to cross it: a multiple of 5 packets, up to 75 and not
    above `threshold`. kind = "pcn" needs it."""
    timeout_ps: Duration | None = key(default=None, examples=["1ms"])
    """How long a sender waits for the answer to its announcement before it starts the burst anyway (kind = "pcn").
    Default: a round trip over the longest route with every queue full; no answer can come later."""
    expire_ps: Duration | None = key(default=None, examples=["3ms"])
    """Age at which a switch forgets an announcement whose burst has not come (kind = "pcn"). Default: three times
    `timeout`, plus the longest `setup` of announced bursts."""


class SwitchBuffer(Table):
    """Buffer that the ports of a switch share. Only the packet engine uses it."""

    capacity: Buffer = key(examples=["4MB"], core=False)
    """Capacity of a switch for all ports together, in packets or bytes on the wire."""
    alpha_ppm: Alpha = key(default=1.0)
    """A port's queue may grow to `alpha` times the free buffer (Choudhury & Hahne 1998)."""


class Transport(Table):
    """Transport protocol of every flow. Only the packet engine uses it."""

    kind: TransportKind = key(default="newreno", core=False, description=MEANING_OF_TRANSPORTS)
    ecn: bool | None = key(default=None, examples=[True])
    """Whether queues may mark segments instead of dropping them (RFC 3168). It needs a queue that marks. Default: true
    with kind = "dctcp", else false."""
    gain_ppm: Share | None = key(default=None, examples=[0.0625], core=False)
    """Weight g of the newest window in the moving average of the share of marks (dctcp). Default: 1/16."""
    hystart: bool | None = key(default=None, examples=[True], core=False)
    """With cubic, whether slow start ends not only at a mark or a loss, but also when acknowledgements last half a
    round trip or round trips grow. This is HyStart of Ha & Rhee (2011), as in Linux; it measures round trips in
    microseconds. Default: false."""
    byte_counting: bool | None = key(default=None, examples=[True], core=False)
    """With cubic, whether slow start grows by all segments that an acknowledgement covers, as in Linux (RFC 3465),
    instead of one (RFC 5681). With delayed acknowledgements, the window then doubles in a round trip instead of growing
    by half. Default: false."""
    segment_bytes: PartSize = key(default="1380B")
    """Payload of a full segment. With 54 bytes of headers it must fit into 65535 bytes."""
    initial_window_segments: int = key(default=10, alias="initial_cwnd", ge=1, le=10_000)
    """Initial window, in segments. No effect with kind = "ideal"."""
    window_bytes: PartSize | None = key(default=None, examples=["32MiB"])
    """Size of the send and receive buffers, the maximum number of bytes in flight per connection. With kind = "ideal"
    it is the window itself. Default: 32MiB; with kind = "ideal", twice the bandwidth-delay product of the longest
    route, in whole segments."""
    recovery: Literal["sack", "rack", "ns3.30"] = key(default="sack")
    """Loss detection and fast recovery. sack: RFC 6675, as in ns-3.37. rack: as in Linux, by time and with tail loss
    probes (RFC 8985), reducing the window in proportion (RFC 9937). "ns3.30": as in ns-3.30.1, which Gao (2020) used;
    it also retransmits segments that are still in flight."""
    timers: Literal["derived", "linux"] = key(default="derived")
    """How three times are set: the minimum retransmission timeout, the delay of acknowledgements, and the timeout
    before the first sample. derived: from a high estimate of the worst round trip, as in Gao (2020). linux: 200 ms, 40
    ms and 1 s; use it where slow or long links make that estimate seconds long."""
    min_rto_ps: Duration | None = key(default=None, examples=["5ms"])
    """Minimum retransmission timeout. Default: that of `timers`."""
    restart_after_idle: bool = key(default=False)
    """Whether a connection that has sent nothing for longer than its retransmission timeout starts again from the
    initial window (RFC 5681, 4.1)."""


class Stages(Table):
    """Stages of a host, in series. Each takes one part of a transfer after another, and passes it on as a whole."""

    SHORT = "host_{}"

    copy_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """First stage of a sender, as from the accelerator to the host's memory. Default: it takes no time."""
    serialise_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """Second stage of a sender, before its network interface. Default: it takes no time."""
    receive_bps: Rate | None = key(default=None, examples=["7Gbps"])
    """Stage of a receiver, behind its network interface. Default: it takes no time."""


class Host(Table):
    """What every host adds to the messages of jobs (docs/models/hosts.md). Background flows are not concerned."""

    SHORT = "host_{}"

    message_ps: Time = key(default="0us", examples=["15us"])
    """Time that a host spends on each message that it sends, one message after another, behind its stages: o of LogP
    (Culler et al. 1993)."""
    stages: Stages = key(default={}, examples=[{"copy": "7Gbps", "serialise": "7Gbps", "receive": "7Gbps"}], short="")
    """Rates of the stages. A part of a transfer is at one stage at a time. With a `schedule.depth` above 1, the parts
    are at several stages at the same time."""


class ScaleUp(Table):
    """Link between a GPU and the scale-up switch of its node, in each direction."""

    SHORT = "scale_up_{}"

    rate_bps: Rate = key(examples=["450GBps"])
    """Nominal rate."""
    delay_ps: Time = key(default="1us", examples=["1us"])
    """Propagation delay. A message crosses two such links."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.8])
    """Share of the rate that collectives reach."""


class Node(Table):
    """Machines with several GPUs, which are the hosts of jobs. The hosts of `topology` are their network cards."""

    SHORT = "node_{}"

    gpus: int = key(ge=1, le=1024, examples=[8])
    """Number of GPUs of each node. With 8, h0 to h7 are the GPUs of the first node."""
    scale_up: ScaleUp = key(examples=[{"rate": "450GBps", "delay": "1us"}])
    """Links within a node. A message between its GPUs uses them; any other uses the network cards of both GPUs."""
    nics: int | None = key(default=None, ge=1, le=1024, examples=[8])
    """Number of network cards of each node, a divisor of `gpus`: GPU g uses card g · nics / gpus. Default: one for each
    GPU."""
    launch_ps: Time = key(default="0us", examples=["20us"], core=False)
    """Time before the first byte of each collective: the default of `schedule.overhead`."""


class Cluster(Table):
    """The network that the jobs run on."""

    SHORT = "{}"

    preset: Name | None = key(default=None, examples=["h100-hgx/32"], core=False, short="")
    """Name of a built-in cluster, `NAME` or `NAME/N`. The other keys of this table replace those of the cluster; a
    table with a `kind` replaces the whole table of the cluster. `cluster = "h100-hgx/32"` means the same as this key
    alone. Without `run.engine`, the engine is fluid. The resolved scenario contains the keys of the cluster."""
    topology: Topology = key(default={}, examples=[{"kind": "star", "hosts": 8}], core=False)
    """Shape of the network."""
    link: Link = key(default={}, examples=[{"rate": "10Gbps", "delay": "10us"}])
    """Rate and delay of every link for which the topology gives no others."""
    node: Node | None = key(default=None, examples=[{"gpus": 8, "scale_up": {"rate": "450GBps"}, "nics": 8}])
    """Machines with several GPUs, and the links within them. Default: every host is a worker."""
    device: Name | None = key(default=None, examples=["H100-bf16"], core=False, short="cluster_device")
    """Device of the hosts or GPUs (gradtide presets device): what a job computes on if it names none. Default: none."""
    host_latency_ps: Time = key(default="0s", examples=["5us"])
    """Time that a host's network stack takes for a message. It is added to the delay of every link of a
    host."""
    host: Host | None = key(default=None, examples=[{"message": "15us", "stages": {"copy": "7Gbps"}}])
    """What a host adds to each message: stages with a rate, and a fixed time. Default: nothing."""
    routing: Literal["ecmp", "dmodk", "spread"] = key(default="ecmp")
    """How a flow chooses among equal routes. ecmp: by a hash of the flow. dmodk: by the destination's number, as in
    InfiniBand and SimGrid's fat trees. spread: by the positions of both ends. No effect where there is only one
    route."""
    queue: Queue = key(default={}, examples=[{"kind": "pfifo_fast", "capacity": "1000pkt"}], core=False)
    """Queue of every egress port."""
    switch_buffer: SwitchBuffer | None = key(default=None, examples=[{"capacity": "4MB", "alpha": 1}], core=False)
    """Buffer that the ports of a switch share; every switch has its own. Default: each port has `queue.capacity`."""
    transport: Transport = key(default={}, examples=[{"kind": "newreno", "segment": "1380B"}], core=False)
    """Transport protocol of every flow."""
