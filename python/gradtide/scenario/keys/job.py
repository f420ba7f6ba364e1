"""Keys of a job."""

from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)

from gradtide import units
from gradtide.counts import CollectiveKind
from gradtide.scenario.keys.model import Model
from gradtide.scenario.keys.priority import JobPriority
from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import (
    MAX_DEPTH,
    MAX_GROUP,
    Announce,
    Duration,
    Factor,
    Fusion,
    Name,
    Part,
    PartSize,
    Rate,
    Share,
    Time,
    Variation,
    custom,
)


class Straggler(Table):
    """A worker that is slow, always or now and then."""

    worker: int | None = key(default=None, ge=0, examples=[3])
    """Which worker, counted from 0 in the order of the job's hosts. Default: one drawn anew in every iteration."""
    factor_ppm: Factor = key(examples=[1.5])
    """How many times as long it computes."""
    probability_ppm: Share = key(default=1.0, examples=[0.1])
    """Probability that it is slow in an iteration, drawn anew for each."""


class Compute(Table):
    """Device, batch and scale of a job's compute times."""

    SHORT = "{}"

    device: Name = key(default="V100", examples=["V100", "H100"], core=False)
    """Device preset that turns a model's operations into times; only for models without times of their
    own."""
    efficiency_ppm: Share | None = key(default=None, examples=[0.4], core=False)
    """Share of the device's peak that training reaches: its model FLOPs utilisation without waits for the network.
    Needed for a device whose efficiency nobody published. Default: the device's own (docs/models/compute.md)."""
    batch: int = key(default=32, ge=1, le=1_000_000, examples=[32], core=False)
    """Mini-batch of one worker; only for models without times of their own. Default of a built-in graph: its paper's
    (gradtide presets graph)."""
    scale_to_ps: Duration | None = key(default=None, examples=["900ms"], core=False)
    """Rescale all times of the table so that one iteration computes for exactly this long. Default: as
    the table is."""
    order: Literal["listed", "random", "caramel"] | None = key(
        default=None, examples=["caramel"], core=False, short="compute_order"
    )
    """In which order a worker computes a graph of ops whose gradients a collective aggregates. listed: of the ops that
    can run, the first of the graph; random: any of them, as in frameworks without an order, each worker in one of its
    own that it keeps for the run; caramel: always the update that is cheapest to reach (docs/models/caramel.md).
    Default: listed."""
    overlap_slowdown_ppm: Factor = key(default=1.0, examples=[1.1])
    """Time that a unit of compute takes while a transfer of the job is under way."""
    noise_ppm: Variation = key(default=0.0, examples=[0.05])
    """Coefficient of variation of a worker's compute time. Every worker draws a factor for each iteration, uniform
    within 1 ± √3 · noise, so 1 on average, and all times of that iteration are multiplied by it. Default: all workers
    do the same at the same time."""
    straggler: Straggler | None = key(default=None, examples=[{"worker": 3, "factor": 1.5}])
    """A slow worker. Default: none."""


class Ps(Table):
    """Parameter servers."""

    servers: int | None = key(default=None, ge=1, le=1_000_000, examples=[2], core=False, short="servers")
    """Number of parameter servers, which compute nothing. Default: an eighth of the job's `workers`, at least 1, as in
    Zhang et al. (2017); with pull = "start" a quarter of the workers proper, as in TicTac (2019)."""
    placement: Literal["packed", "distributed", "separate"] | None = key(
        default=None, examples=["distributed"], core=False
    )
    """Which hosts they are. packed: the first of the job's `workers`; distributed: one in each of as many equal
    stretches of them; the others are the workers proper. separate: hosts of their own beside the `workers`, the last
    ones where `hosts` names them all. Default: packed; with pull = "start" separate."""
    pull: Literal["update", "start"] = key(default="update", examples=["start"], core=False)
    """When workers pull. update: a bucket is pushed, summed and pulled at once, as any other collective. start: every
    iteration begins with each worker pulling each parameter in its own order; it computes op by op, pushes each
    gradient when it is there, and the iteration ends with the last update, as in TicTac (docs/models/servers.md)."""
    shards: Literal["bytes", "round_robin"] | None = key(default=None, examples=["round_robin"], core=False)
    """Which parameter is on which server (pull = "start"). bytes: the largest first, each to the server that has the
    fewest bytes; round_robin: in turn, in the order of the model. Default: bytes."""


def _group(value: object) -> int | str:
    if value == "leaf" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_GROUP):
        return value if isinstance(value, int) else "leaf"
    hint = 'write group = 8, or group = "leaf" for the hosts of one edge switch'
    code = "GT014" if isinstance(value, int) and not isinstance(value, bool) else "GT011"
    found = f"{value} is out of range" if code == "GT014" else f"expected a number, found {units.describe(value)}"
    raise custom(code, found, hint)


Group = Annotated[
    int | str,
    PlainValidator(_group),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_GROUP}, {"const": "leaf"}]}),
]


class Collective(Table):
    """Algorithm that aggregates gradients. The pipe engine knows the ring only."""

    SHORT = "{}"

    kind: CollectiveKind = key(default="ring", examples=["ring"], core=False, short="")
    """Algorithm: docs/models/collectives.md says what each sends. The last five do not sum gradients: use them with
    task = "exchange", for traffic such as that of experts or sharded models."""
    group: Group | None = key(default=None, examples=["leaf", 8], core=False)
    """Ranks of a group, consecutive ones (butterfly_layered, hierarchical): a number, or "leaf" for as many as one edge
    switch has hosts. Default: "leaf"."""
    inside: Literal["reduce", "ring", "sharded"] | None = key(default=None, examples=["sharded"], core=False)
    """What happens within a group (hierarchical). reduce: a binomial tree to its first rank; ring: a ring all-reduce;
    sharded: a ring reduce-scatter, and all ranks take part between groups. Default: ring, as in Jia et al. (2018)."""
    ps: Ps | None = key(default=None, examples=[{"servers": 2, "placement": "packed"}], core=False, short="")
    """Parameter servers, with kind = "ps"; giving this table is enough."""
    reduction_rate_bps: Rate | None = key(default=None, examples=["20GB/s"])
    """Rate at which a rank adds what it has received to its own, one message after another. Default: it takes no
    time."""
    host_cost_ps: Time | None = key(default=None, examples=["10us"])
    """Time that a host takes for each message before the message's first byte enters the network: o of LogP (Culler et
    al. 1993). A host prepares one message at a time. Default: it takes no time."""
    remainder: Literal["sent", "dropped"] = key(default="sent", examples=["sent"])
    """What a bucket leaves when it is divided by the workers. sent: some parts are a byte longer. dropped: it is not
    sent, as in the simulator of Gao (2020), chapter 5."""


def _depth(value: object) -> int | Literal["adaptive"]:
    if value == "adaptive":
        return "adaptive"
    hint = f'write depth = 4, or depth = "adaptive"; at most {MAX_DEPTH}'
    if isinstance(value, bool) or not isinstance(value, int):
        raise custom("GT011", f"expected a number, found {units.describe(value)}", hint)
    if not 1 <= value <= MAX_DEPTH:
        raise custom("GT014", f"{value} is out of range", hint)
    return value


Depth = Annotated[
    int | Literal["adaptive"],
    PlainValidator(_depth),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_DEPTH}, {"const": "adaptive"}]}),
]


class Schedule(Table):
    """How gradients are grouped, and in what order the groups are sent."""

    SHORT = "{}"

    order: Literal["fifo", "priority", "random", "tic", "tac", "tac_folded", "caramel", "edf", "optimal", "file"] = key(
        default="fifo", examples=["priority"], core=False
    )
    """Order of the transmission queue. fifo: as gradients become ready; priority: lowest layer first;
    random: a fresh order in every iteration; tic, tac: TicTac's, which of layers is priority; caramel: each bucket in
    its place in the backward or the next forward pass; edf: earliest deadline first, in chunks; optimal: the best of
    what all of these do in a simulation of one channel; file: the user's. docs/models/caramel.md has the rules.
    Of parameter servers with pull = "start" it is the order of pulls: random (the default there; a fresh one in every
    iteration and for every worker), priority, tic, tac, tac_folded, optimal, file (docs/models/servers.md)."""
    fusion_bytes: Fusion = key(default="25MiB", examples=["6.28MB"], core=False)
    """Cap of a bucket of gradients that are sent together; "0B" sends every layer alone. "adaptive": small layers
    together that are computed while the network is busy (Caramel 2020, section 4.2); with order = "optimal", also what
    others send together is tried. The default is that of PyTorch DistributedDataParallel (bucket_cap_mb = 25, counted
    in MiB); with order caramel, edf or optimal it is "adaptive"."""
    first_fusion_bytes: PartSize | None = key(default=None, examples=["1MiB"], core=False)
    """Cap of the first bucket. With it, a bucket is closed by the layer with which it reaches its cap, as in PyTorch
    DDP, which has 1 MiB here. Default: a layer that would pass the cap starts a new bucket, and all caps are
    `fusion`."""
    cycle_ps: Time | None = key(default=None, examples=["5ms"], core=False)
    """With it, a bucket is what is expected to be ready at the end of a cycle of this length, at most `fusion` or one
    layer, as in Horovod, which has 5 ms and 64 MiB; "0ms": whenever the network is free. Default: buckets do not depend
    on times."""
    buckets: list[Annotated[int, Field(ge=1)]] | None = key(default=None, examples=[[28, 23, 49]], core=False)
    """Your own buckets, in place of `fusion`: the number of layers in each, from the input side. Together they hold all
    layers of the model, with or without parameters."""
    chunk_bytes: PartSize | None = key(default=None, examples=["1MB"])
    """Largest part of a bucket that is sent before the queue is looked at again. Default: a bucket is sent whole. With
    order = "edf", fixed costs are a tenth of a part's time. With order = "optimal", the best size is searched."""
    credit: int = key(default=1, ge=1, le=1024, examples=[4])
    """Parts that are on the network at one time. A more urgent part cannot overtake them."""
    queues: int | None = key(default=None, ge=1, le=1_000_000, examples=[8], core=False)
    """With order = "priority": this many classes of layers, first come first served inside a class.
    Default: each layer has its own."""
    barrier: bool = key(default=True, examples=[False])
    """Whether the next forward pass waits for all transfers. Without the barrier, each layer waits for its own.
    Default: true; with order caramel, edf or optimal: false."""
    depth: Depth = key(default=1, examples=[1], core=False)
    """Parts into which what is sent at once is cut, each of which goes through the collective by itself, so that one is
    reduced while the next is sent (Caramel 2020, section 4.4). "adaptive": 1 for what is small, up to 8 for what is
    large. The pipe engine has 1. With another engine and order caramel, edf or optimal the default is "adaptive"."""
    file: Name | None = key(default=None, examples=["order.csv"], core=False, short="order_file")
    """With order = "file": one layer name a line, most urgent first, no header, each layer that has
    parameters exactly once."""
    ranking: list[Name] | None = key(default=None, examples=[["fc", "conv1"]], core=False)
    """With order = "file": the content of `file` written here; the resolved scenario carries it so."""
    in_turn: bool | None = key(default=None, examples=[True], core=False)
    """With order = "file": whether a bucket waits for all before it in the list, though the network rests meanwhile.
    Default: false; of what is ready, the first in the list is sent."""
    disorder_ppm: Part | None = key(default=None, examples=[0.005], core=False)
    """Share of the pulls that change places with one that waits behind them on the same channel (pull = "start"):
    TicTac, section 5.1, saw 0.005. Default: 0."""
    overhead_ps: Time = key(default="0us", examples=["20us"])
    """Time for which every transfer holds the transmission queue before its first byte."""
    sync_ps: Time = key(default="0us", examples=["20us"])
    """Time from the end of a transfer on all workers to the earliest start of the next. A global syncer takes it to
    learn that all workers have finished, and to tell them to go on."""

    @property
    def cap_bytes(self) -> int:
        """Cap of a bucket; 0 where every layer is alone, and where the order decides."""
        return 0 if self.fusion_bytes == "adaptive" else self.fusion_bytes

    @property
    def parts(self) -> int:
        """Parts into which what is sent at once is cut; 1 where their number adapts."""
        return 1 if self.depth == "adaptive" else self.depth


def _placement_tag(value: object) -> str | None:
    return "<hosts>" if isinstance(value, list) else "<word>" if isinstance(value, str) else None


Placement = Annotated[
    Annotated[Literal["packed", "spread", "random"], Tag("<word>")] | Annotated[list[str], Tag("<hosts>")],
    Discriminator(_placement_tag),
]


class JobTable(Table):
    """One data-parallel training job."""

    SHORT = "{}"

    model: Model | None = key(
        default=None, examples=["resnet50", "layers.csv", {"kind": "thesis", "layers": 50, "size": "100MB"}]
    )
    """What is trained: a preset, a layer table (.csv), a model file (.json), a trace of a step or more (Kineto's .json
    and .json.gz, Chakra's .et; a file, a folder or a pattern), or an inline table. Needed. Of a preset that is an op
    graph, too, pull = "start" and compute.order take the graph."""
    workers: int | None = key(default=None, ge=1, examples=[8])
    """Number of workers, each on a host of its own: the lowest-numbered hosts that no other job names.
    This or `hosts` is needed."""
    hosts: list[str] | None = key(default=None, examples=[["h0", "h1", "h3"]])
    """Host of each worker."""
    placement: Placement = key(default="packed", examples=["spread", ["h3", "h1"]])
    """Which rank is on which of the job's hosts. packed: in their order; spread: dealt out over the edge switches;
    random: drawn with the run's seed. With `workers`, spread and random also choose among all hosts that no other job
    has. A list is the same as `hosts`."""
    iterations: int | None = key(default=None, ge=1, examples=[10])
    """Measured iterations. Default: 10, or as many as `run.duration` allows if that is given."""
    task: Literal["train", "inference", "exchange"] | None = key(default=None, examples=["inference"])
    """What an iteration is. train: gradients are computed and summed. inference: pull and forward pass, with parameter
    servers and pull = "start". exchange: the bytes are not gradients and any collective may carry them.
    Default: train."""
    compute: Compute = key(default={}, examples=[{"scale_to": "900ms"}])
    """How long the layers compute."""
    collective: Collective = key(default={}, examples=[{"kind": "ring"}])
    """Algorithm that aggregates gradients."""
    schedule: Schedule = key(default={}, examples=[{"order": "fifo", "fusion": "6.28MB", "barrier": True}])
    """How gradients are grouped and ordered."""
    priority: JobPriority = key(default="high", examples=["high", 2, ["high", "low", "low", "low"]])
    """Band of the job's flows on the network: "high" is band 0, sent first, "low" the last band that the queue has
    (2 of pfifo_fast, n - 1 of n strict bands), and a number is that band. A list is shared out evenly over the layers
    from the input side, and a chunk travels in the band of the layer in which it begins: here the lowest quarter of the
    layers goes high. With one entry for each layer, alike in all layers of a bucket, every bucket has a band of its
    own. { adaptive = { policy = "deadline" } } changes the band as the job sends. No effect on the pipe engine."""
    start_ps: Time = key(default="0s", examples=["0s"])
    """Simulated time at which the job starts."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether each message of the job that follows a pause of its connection is a burst that is announced to the
    switches first; it begins a round trip later. It needs a queue of kind = "pcn". true: with the queue's `announced`;
    a number of packets, a multiple of 5 up to 75: with that threshold. Default: false."""
