"""Keys of a job: its model, its priority, and what it computes, sends and when.

The module is longer than 600 lines because a key is declared with its unit, range, default and documentation.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from gradtide import units
from gradtide.algorithms import CollectiveKind
from gradtide.architecture import FAMILY
from gradtide.scenario.keys.parallel import Parallel
from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import (
    Announce,
    Duration,
    Factor,
    FileName,
    Form,
    Fusion,
    Name,
    Part,
    PartSize,
    Rate,
    Share,
    Size,
    Time,
    Tolerance,
    Variation,
    whole_or,
)


class InlineLayer(Table):
    """A layer, with the times of one worker for one mini-batch."""

    name: Name = key(examples=["conv1"])
    """Unique in the model."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time."""
    parameter_bytes: Size = key(alias="parameters", examples=["4MB"])
    """Size of the gradient; "0B" for a layer without parameters."""
    update_ps: Time = key(default="0s", examples=["50us"])
    """Time to apply the aggregated gradient."""
    is_host: bool = key(default=False, alias="host", examples=[True])
    """Whether the row contains times of the host during which the device is idle, for example because a recorded step
    launched kernels late. These times do not count as compute, and the row has no parameters."""


class InlineModel(Table):
    """A model as a list of layers."""

    name: Name = key(default="inline", examples=["my-model"])
    """Name in results."""
    layers: list[InlineLayer] = key(
        examples=[[{"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "4MB"}]]
    )
    """From the input side to the output side."""
    bucketed: bool = key(default=False, examples=[True])
    """Whether the layers are buckets already, like those of a trace: `schedule.fusion` is then "0B" by default."""
    source: FileName | None = key(default=None, examples=["step 7 of rank 0"])
    """Where the figures come from; does not change results."""
    device: Name | None = key(default=None, examples=["A100"], core=False)
    """Device on which the times were measured; does not change them."""
    left_out: list[FileName] = key(default=[], examples=[["events of an unknown category: 1 (hpu_op), left out"]])
    """Contents of the source that the layers do not represent, each with a warning."""


class ThesisModel(Table):
    """The synthetic layers of Gao (2020), section 4.2: deeper ones are larger (docs/models/training.md#parameters)."""

    kind: Literal["thesis"] = key(default="thesis")
    """Marks the table as synthetic."""
    layers: int = key(default=100, ge=2, examples=[50, 100])
    """Number of layers, L in the formulas."""
    size_bytes: Size = key(default="100MB")
    """Nominal size M."""
    time_ps: Duration = key(default="900ms", examples=["900ms", "2240ms"])
    """Nominal compute time T of an iteration. `compute.scale_to` replaces it if precision = "float32", and otherwise
    stretches the table."""
    precision: Literal["exact", "float32"] = key(default="exact")
    """exact: times are rounded to a picosecond. float32: single-precision milliseconds cut to whole nanoseconds, as in
    Gao's program for chapter 5; the slightly shorter times can change background flows."""


def _rows(value: object) -> list[object]:
    if not isinstance(value, list):
        msg = f"expected a list of tables, found {units.describe(value)}"
        hint = 'write ops = [{ id = 0, kind = "recv", inputs = [], time = 0, bytes = 4096 }]'
        raise units.UnitError("GT011", msg, hint)
    return value


Rows = Annotated[list[Any], Form(_rows, {"type": "array", "items": {"type": "object"}})]


class GraphModel(Table):
    """A model as a graph of ops, like an op DAG file (docs/models/orders.md#the-file)."""

    kind: Literal["graph"] = key(default="graph")
    """Marks the table as a graph."""
    name: Name = key(default="graph", examples=["my-model"])
    """Name in results."""
    device: Name | None = key(default=None, examples=["A100"], core=False)
    """Device on which the times were measured; does not change them."""
    time_unit: Literal["ps", "ns", "us", "ms", "s"] = key(examples=["ns"])
    """Unit of the times of ops."""
    target: int = key(ge=0, examples=[3])
    """Id of the op that ends the computation of an iteration."""
    inference_target: int | None = key(default=None, ge=0, examples=[1])
    """Id of the op that ends the forward pass. Default: the whole graph is a forward pass."""
    ops: Rows = key(examples=[[{"id": 0, "kind": "recv", "inputs": [], "time": 0, "bytes": 4096}]])
    """Ops, with the keys of an op DAG file."""


class StepModel(Table):
    """A recorded step of all ranks: what `trace.graph()` returns."""

    kind: Literal["step"] = key(default="step")
    """Marks the table as a step."""
    name: Name = key(default="step", examples=["my-model"])
    """Name in results."""
    source: FileName | None = key(default=None, examples=["step 7"])
    """Where the step comes from; does not change results."""
    classes: Rows = key(examples=[[{"name": "rank0", "ranks": 1, "ops": [["forward", 1000000]]}]])
    """Classes of ranks, each with its `ops` in sequence; an op is a name and a time in picoseconds. If all ranks are
    alike, there is one class, with their number in `ranks`; otherwise each rank is a class."""
    groups: Rows = key(examples=[[{"name": "fsdp", "classes": [0, 1], "ranks": 2, "stride": 1}]])
    """Process groups, with the `classes` of their members. If all ranks are of one class, a group consists of `ranks`
    ranks that are `stride` apart. In a group without `stride`, the first of two ranks sends messages to the second."""
    transfers: Rows = key(examples=[[{"name": "all_reduce", "kind": "all_reduce", "bytes": 4096, "group": 0}]])
    """Collective operations and messages of the groups."""
    edges: Rows = key(examples=[[[0, 2], [2, 1]]])
    """Pairs of numbers of ops or transfers; the second of a pair waits for the first. Ops are numbered class by class,
    and transfers after all ops."""

    @property
    def document(self) -> dict[str, Any]:
        """The step as the core reads it."""
        groups = [{"stride": None, **one} if isinstance(one, dict) else one for one in self.groups]
        return {"classes": self.classes, "groups": groups, "transfers": self.transfers, "edges": self.edges}


def _configuration(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)  # what else has the field that names the family?
    return value


Configuration = Annotated[
    dict[str, Any], Form(_configuration, {"type": "object", "required": [FAMILY], "title": "configuration"})
]


def _model_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<name>"
    if isinstance(value, dict) and FAMILY in value:
        return "<configuration>"
    if isinstance(value, GraphModel) or (isinstance(value, dict) and (value.get("kind") == "graph" or "ops" in value)):
        return "<graph>"
    if isinstance(value, StepModel) or (isinstance(value, dict) and (value.get("kind") == "step" or "edges" in value)):
        return "<step>"
    if isinstance(value, (InlineModel, ThesisModel)):
        return "<table>" if isinstance(value, InlineModel) else "<thesis>"
    if isinstance(value, dict):
        synthetic = "kind" in value or (type(value.get("layers")) is int) or "time" in value
        return "<thesis>" if synthetic else "<table>"
    return None


Model = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[InlineModel, Tag("<table>")]
    | Annotated[ThesisModel, Tag("<thesis>")]
    | Annotated[GraphModel, Tag("<graph>")]
    | Annotated[StepModel, Tag("<step>")]
    | Annotated[Configuration, Tag("<configuration>")],
    Discriminator(_model_tag),
]


class AdaptiveTable(Table):
    """How each worker chooses the band of its next chunk (docs/models/adaptive.md)."""

    policy: Literal["deadline", "straggler", "background", "oracle", "all-low", "lower-layers-high", "all-high"] = key(
        default="deadline", core=False
    )
    """deadline: the low band while a chunk is predicted to arrive within its slack, otherwise the high band. straggler:
    like deadline, but a worker may be late by the time for which it waits for slower workers anyway. background: always
    the low band, with up to `credit` chunks in flight. all-low and all-high: the priorities "low" and 0.
    lower-layers-high: high for the lower half of the layers, low for the others (Gao 2020, section 5.5). oracle: the
    band that is better in simulations with all future flows, for comparison only."""
    credit: int | None = key(default=None, ge=1, le=1024, examples=[4])
    """Maximum number of chunks in flight in the low band. With several, the network stays busy while one of them is
    delayed. Default: 4; 1 for deadline and straggler with ECN, because ECN keeps queues short."""
    window_bytes: PartSize | None = key(default=None, examples=["128kB"])
    """Maximum number of bytes that a connection has in flight in the low band. Default: as many as the slowest link
    sends in 100 us, or in two round trips without queues if these take longer, but at least 16 kB; with ECN, the window
    of the transport."""
    tolerance_ppm: Tolerance | None = key(default=None, examples=[0.02])
    """Share by which an iteration may exceed the time that the workers expect if they send everything in the high band.
    Default: 0.02."""
    margin_ppm: Tolerance | None = key(default=None, examples=[0.1])
    """Share by which a worker lengthens its estimate of later transfers. A larger margin sends more chunks high.
    Default: 0."""
    exchange: bool | None = key(default=None, examples=[False])
    """Whether all workers send a transfer in the high band if one of them needs it there. The syncer, which starts each
    transfer, decides this. Default: true."""
    price_ppm: Tolerance | None = key(default=None, examples=[1])
    """Seconds by which the oracle may lengthen an iteration for each second that small flows save in total completion
    time. 0: the low band only if it costs the iteration nothing. Default: 1."""


class Adaptive(Table):
    """A band that changes while the job sends."""

    adaptive: AdaptiveTable = key(examples=[{"policy": "deadline"}])
    """How each worker chooses the band of its next chunk (docs/models/adaptive.md)."""


def _priority_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<word>"
    if isinstance(value, (dict, Adaptive)):
        return "<adaptive>"
    return "<band>" if isinstance(value, int) and not isinstance(value, bool) else None


_Word = Annotated[Literal["high", "low"], Tag("<word>")]
_Band = Annotated[int, Field(ge=0, le=7), Tag("<band>")]
_Adaptive = Annotated[Adaptive, Tag("<adaptive>")]
Priority = Annotated[_Word | _Band | _Adaptive, Discriminator(_priority_tag)]


def _job_priority_tag(value: object) -> str | None:
    return "<bands>" if isinstance(value, list) else _priority_tag(value)


_Bands = Annotated[list[Annotated[_Word | _Band, Discriminator(_priority_tag)]], Tag("<bands>")]
JobPriority = Annotated[_Word | _Band | _Bands | _Adaptive, Discriminator(_job_priority_tag)]


class Straggler(Table):
    """A worker that is slow, always or sometimes (docs/models/compute.md#workers-that-differ)."""

    worker: int | None = key(default=None, ge=0, examples=[3])
    """Number of the slow worker, from 0 in the order of the job's hosts. Default: a worker that is drawn for each
    iteration."""
    factor_ppm: Factor = key(examples=[1.5])
    """Factor on its compute times."""
    probability_ppm: Share = key(default=1.0, examples=[0.1])
    """Probability that it is slow in an iteration."""


OF_ROOFLINE = ("efficiency", "batch", "seq")
"""Keys of `compute` for converting counts into times on a device; without effect for a model with its own times."""

OF_PARALLEL = (
    "micro_batch",
    "global_batch",
    "recompute",
    "precision",
    "attention",
    "compile",
    "compile_loss",
    "scaling_loss",
    "times",
)
"""Keys of `compute` that only a job with `parallel` has."""


class OpTime(Table):
    """Times of an op or a block, for one micro-batch on one rank."""

    op: Name = key(examples=["layers.*.attn"])
    """Op or block, named as in ops.csv of a run folder; `*` stands for any number. The time of a block is divided among
    its ops in proportion to the times that it replaces."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time without recomputation."""
    recompute_ps: Time | None = key(default=None, examples=["1ms"])
    """Time of recomputation in the backward pass. Default: 0 if another row has the key; otherwise the same share of
    the forward time as without `times`."""
    update_ps: Time | None = key(default=None, examples=["50us"])
    """Time of the optimizer. Default: 0 if another row has the key; otherwise as without `times`."""


class OpTimes(Table):
    """Your own times of ops."""

    source: FileName = key(default="the scenario", examples=["times.csv"])
    """Where the figures come from; does not change results."""
    rows: list[OpTime] = key(examples=[[{"op": "layers.*", "forward": "1ms", "backward": "2ms"}]])
    """Every op has one row, its own or that of its block."""


def _times_tag(value: object) -> str | None:
    return "<file>" if isinstance(value, str) else "<rows>" if isinstance(value, (dict, OpTimes)) else None


Times = Annotated[
    Annotated[FileName, Tag("<file>")] | Annotated[OpTimes, Tag("<rows>")],
    Discriminator(_times_tag),
]


class Compute(Table):
    """Device, batch and scale of compute times.

    The keys from `micro_batch` to `times` are only for jobs with `parallel`.
    """

    SHORT = "{}"

    device: Name = key(default="V100", examples=["V100", "H100"], core=False)
    """Device for which times are computed, and which determines the runtime of a plan. Times in a model's file are
    kept, except those of a roofline profile. Default: the device that the file names, otherwise `cluster.device`,
    otherwise V100. For a language model, the device must be named."""
    efficiency_ppm: Share | None = key(default=None, examples=[0.4], core=False)
    """Model FLOPs utilisation in training, without waits for the network. Default: the published value of the device
    (docs/models/compute.md#devices); required if there is none."""
    batch: int = key(default=32, ge=1, le=1_000_000, core=False)
    """Mini-batch of one worker, for models without their own times. Default for a Hugging Face configuration: 1; for a
    built-in graph: the mini-batch of its paper (gradtide presets graph); for a profile: the mini-batch that was
    profiled."""
    seq: int | None = key(default=None, ge=1, le=100_000_000, examples=[8192], core=False)
    """Number of tokens of a sequence, which is one sample. Required for a Hugging Face configuration (config.json), and
    an error for other models."""
    micro_batch: int | None = key(default=None, ge=1, le=1_000_000, examples=[1], core=False)
    """Sequences that a rank computes at once. Default: 1."""
    global_batch: int | None = key(default=None, ge=1, le=1_000_000_000, examples=[1024], core=False)
    """Number of sequences of an iteration on all ranks together; a rank accumulates gradients over its micro-batches.
    Default: one micro-batch for each data-parallel rank or, with a pipeline, as many as it has stages."""
    recompute: Literal["none", "selective", "full"] | None = key(default=None, examples=["full"], core=False)
    """Activations that the backward pass computes again, which saves memory. selective: those of attention (Korthikanti
    et al. 2022). full: those of every layer. none: no activations. Default: none."""
    precision: Literal["bf16", "fp16", "float8", "fp32"] | None = key(default=None, examples=["bf16"], core=False)
    """Number format of products, parameters and activations. Default: bf16."""
    attention: Literal["flash", "unfused"] | None = key(default=None, examples=["unfused"], core=False)
    """flash: one kernel, which skips the scores that a causal mask hides. unfused: products and element-wise kernels
    over all scores, as in Megatron-LM before 2023. Default: flash."""
    compile: bool | None = key(default=None, examples=[False], core=False)
    """Whether element-wise operations are fused, as by torch.compile. Default: true."""
    compile_loss: bool | None = key(default=None, examples=[True], core=False)
    """Whether the loss is compiled, as by torchtitan since April 2025. A logit then needs 4 bytes instead of 14.
    Default: false."""
    scaling_loss_ppm: Variation | None = key(default=None, examples=[0.02], core=False)
    """Relative increase of compute times with each doubling of nodes, because all ranks wait for the slowest. Default:
    that of the device; 0 with `noise` or a `straggler`."""
    times: Times | None = key(default=None, examples=["times.csv"], core=False)
    """Your own times of ops. A CSV file has a row for each op or block, and the header
    op,forward_us,backward_us[,recompute_us][,update_us]. Default: estimates for the device
    (docs/models/compute.md#language-models-on-many-ranks)."""
    scale_to_ps: Duration | None = key(default=None, examples=["900ms"], core=False)
    """Scales all compute times so that one iteration computes for exactly this long. Default: not scaled."""
    order: Literal["listed", "random", "caramel"] | None = key(
        default=None, examples=["caramel"], core=False, short="compute_order"
    )
    """Order in which a worker computes a graph of ops whose gradients a collective aggregates. listed: the first op of
    the graph that can run. random: any op that can run; each worker keeps its own order. caramel: the ops of the update
    that is cheapest to reach (docs/models/caramel.md#caramels-rules). Default: listed."""
    overlap_slowdown_ppm: Factor = key(default=1.0, examples=[1.1])
    """Factor on compute times while a transfer of the job is in progress."""
    noise_ppm: Variation = key(default=0.0, examples=[0.05])
    """Coefficient of variation of a worker's compute time, drawn for each iteration
    (docs/models/compute.md#workers-that-differ)."""
    straggler: Straggler | None = key(default=None, examples=[{"worker": 3, "factor": 1.5}])
    """A worker that is slow, always or sometimes (docs/models/compute.md#workers-that-differ). Default: none."""


class Bounded(Table):
    """Bounded staleness (docs/models/servers.md#without-a-barrier)."""

    staleness: int = key(ge=0, le=1_000_000, examples=[3])
    """Maximum number of iterations by which a worker may be ahead of the slowest."""


def _sync_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<word>"
    return "<bound>" if isinstance(value, (dict, Bounded)) else None


Sync = Annotated[
    Annotated[Literal["sync", "async"], Tag("<word>")] | Annotated[Bounded, Tag("<bound>")], Discriminator(_sync_tag)
]


class Ps(Table):
    """Parameter servers (docs/models/servers.md)."""

    servers: int | None = key(default=None, ge=1, le=1_000_000, examples=[2], core=False, short="servers")
    """Number of servers, which compute nothing. Default: an eighth of the `workers`, as in Zhang et al. (2017); with
    pull = "start", a quarter of the workers that compute, as in TicTac (2019); at least 1."""
    placement: Literal["packed", "distributed", "separate"] | None = key(
        default=None, examples=["distributed"], core=False
    )
    """Which hosts are servers. packed: the first of the job's `workers`. distributed: one host in each of `servers`
    equal ranges of the `workers`. In both cases the other hosts compute. separate: hosts beside the `workers`, the last
    ones if `hosts` lists them all. Default: packed; with pull = "start", separate."""
    pull: Literal["update", "start"] = key(default="update", examples=["start"], core=False)
    """When workers pull parameters. update: each bucket is pushed, summed and pulled back in one operation, like any
    other collective. start: each worker begins an iteration by pulling every parameter, and pushes each gradient when
    it is ready, as in TicTac."""
    shards: Literal["bytes", "round_robin"] | None = key(default=None, examples=["round_robin"], core=False)
    """How parameters are assigned to servers (pull = "start"). bytes: the largest first, each to the server with the
    fewest bytes. round_robin: to each server in turn, in the order of the model. Default: bytes."""
    sync: Sync | None = key(default=None, examples=["async", {"staleness": 3}], core=False)
    """Which workers a worker waits for between iterations (pull = "start"; docs/models/servers.md#without-a-barrier).
    sync: all others. async: none. { staleness = 3 }: those that would otherwise fall more than 3 iterations behind.
    Default: sync."""


_HINT_OF_GROUP = 'write group = 8, or group = "leaf" for the hosts of one edge switch'
Group = Annotated[int | str, whole_or("leaf", 1_000_000, _HINT_OF_GROUP)]


class Collective(Table):
    """Algorithm that aggregates gradients (docs/models/collectives.md#the-algorithms)."""

    SHORT = "{}"

    kind: CollectiveKind = key(default="ring", core=False, short="")
    """ring and tree use all network cards of a node, as NCCL does; single_ring leaves each node by one card, and
    binary_tree sends whole buffers up and down one tree. The last five do not sum gradients and need task =
    "exchange"."""
    group: Group | None = key(default=None, examples=["leaf", 8], core=False)
    """Number of consecutive ranks in a group (butterfly_layered, hierarchical). "leaf": as many as an edge switch has
    hosts. Default: "leaf"."""
    inside: Literal["reduce", "ring", "sharded"] | None = key(default=None, examples=["sharded"], core=False)
    """Algorithm inside a group (hierarchical). reduce: a binomial tree to the first rank. ring: a ring all-reduce.
    sharded: a ring reduce-scatter, after which all ranks take part in the exchange between groups. Default: ring, as in
    Jia et al. (2018)."""
    ps: Ps | None = key(default=None, examples=[{"servers": 2, "placement": "packed"}], core=False, short="")
    """Parameter servers (docs/models/servers.md). This table implies kind = "ps"."""
    reduction_rate_bps: Rate | None = key(default=None, examples=["20GB/s"])
    """Rate at which a rank adds received data to its own, one message after another. Default: adding takes no time."""
    remainder: Literal["sent", "dropped"] = key(default="sent")
    """Treatment of the remainder when the bytes of a bucket are divided by the number of workers. sent: some parts are
    one byte longer. dropped: the remainder is not sent, as in the simulator of Gao (2020), chapter 5."""

    @property
    def algorithm(self) -> CollectiveKind:
        """The kind: "ps" if the table `ps` is given."""
        return "ps" if self.ps is not None else self.kind

    @property
    def is_pulled(self) -> bool:
        """Whether every iteration begins with a pull from parameter servers."""
        return self.ps is not None and self.ps.pull == "start"

    @property
    def bound(self) -> int | None:
        """Iterations by which a worker may be ahead of the slowest; `None` without a bound."""
        sync = None if self.ps is None else self.ps.sync
        if isinstance(sync, Bounded):
            return sync.staleness
        return None if sync == "async" else 0


_HINT_OF_DEPTH = 'write depth = 4, or depth = "adaptive"; at most 1024'
Depth = Annotated[int | Literal["adaptive"], whole_or("adaptive", 1024, _HINT_OF_DEPTH)]


class Schedule(Table):
    """How gradients are grouped into buckets, and in what order buckets are sent."""

    SHORT = "{}"

    order: Literal[
        "fifo", "priority", "random", "arbitrary", "tic", "tac", "tac_folded", "caramel", "edf", "optimal", "file"
    ] = key(default="fifo", examples=["priority"], core=False)
    """Order in which the job sends buckets (docs/models/training.md#the-transmission-queue). fifo: as gradients become
    ready. priority: the lowest layer first. random: anew in every iteration. arbitrary: fifo with some swaps, as in
    frameworks that enforce no order. tic, tac, tac_folded: the orders of TicTac, which equal priority for a model of
    layers (docs/models/orders.md). caramel: a place in the backward or the next forward pass for each bucket
    (docs/models/caramel.md). edf: earliest deadline first, in chunks. optimal: the best of several plans. file: your
    own. With pull = "start": the order of pulls, by default random (docs/models/servers.md#orders). With `parallel`:
    the order of the transfers of each process group: as they become ready (fifo), or as they are needed (tic, tac)."""
    fusion_bytes: Fusion = key(default="25MiB", examples=["6.28MB"], core=False)
    """Maximum size of a bucket of gradients. "0B" sends every layer alone. "adaptive" groups small layers that are
    computed while the network is busy (Caramel 2020, section 4.2); order = "optimal" also tries the groups of the other
    orders. Default: 25MiB, as in PyTorch DDP (bucket_cap_mb = 25, in MiB); "adaptive" with order caramel, edf or
    optimal."""
    first_fusion_bytes: PartSize | None = key(default=None, examples=["1MiB"], core=False)
    """Maximum size of the first bucket, 1 MiB in PyTorch DDP. With this key, every bucket closes after the layer that
    reaches its maximum size, as in DDP. Default: `fusion` holds for all buckets, and a layer that would exceed it
    starts a new bucket."""
    cycle_ps: Time | None = key(default=None, examples=["5ms"], core=False)
    """Length of a cycle, as in Horovod (5 ms, with a `fusion` of 64 MiB): a bucket contains the gradients that are
    expected to be ready by the end of a cycle, up to `fusion` bytes or a single layer. "0ms": a cycle ends whenever the
    network is free. Default: no cycles."""
    buckets: list[Annotated[int, Field(ge=1)]] | None = key(default=None, examples=[[28, 23, 49]], core=False)
    """Your own buckets instead of `fusion`: the number of layers in each, from the input side. Layers without
    parameters count."""
    chunk_bytes: PartSize | None = key(default=None, examples=["1MB"])
    """Maximum part of a bucket that is sent before the queue is checked again. Default: the whole bucket; with order =
    "edf", the size at which fixed costs are a tenth of a chunk's time; with order = "optimal", the best size found."""
    credit: int = key(default=1, ge=1, le=1024, examples=[4])
    """Maximum number of chunks in flight, which a more urgent chunk cannot overtake."""
    queues: int | None = key(default=None, ge=1, le=1_000_000, examples=[8], core=False)
    """Number of priority classes of layers (order = "priority"), each first come, first served. Default: one for each
    layer."""
    barrier: bool = key(default=True, examples=[False])
    """Whether the next forward pass waits for all transfers. Without the barrier, each layer waits only for its own.
    Default: true; false with order caramel, edf or optimal."""
    depth: Depth = key(default=1, core=False)
    """Number of parts of each chunk that go through the collective separately, so that one part is reduced while the
    next is sent (Caramel 2020, section 4.4). "adaptive": 1 for small chunks to 8 for large ones. Default: 1; "adaptive"
    with order caramel, edf or optimal."""
    file: Name | None = key(default=None, examples=["order.csv"], core=False, short="order_file")
    """File with your order (order = "file"), without a header: each layer that has parameters on a line of its own,
    most urgent first."""
    ranking: list[Name] | None = key(default=None, examples=[["fc", "conv1"]], core=False)
    """Your order as a list, instead of `file`. The resolved scenario contains it in this form."""
    in_turn: bool | None = key(default=None, examples=[True], core=False)
    """Whether a bucket waits for all earlier ones of your order, even if the network is idle meanwhile (order =
    "file"). Default: false."""
    releases: list[str] | None = key(default=None, examples=[["", "forward conv1"]], core=False)
    """Release event of each of `buckets` (order = "file"): "backward LAYER" holds a bucket until that layer has its
    gradient, "forward LAYER" until the next forward pass calls it. Default: "", no event."""
    disorder_ppm: Part | None = key(default=None, examples=[0.005], core=False)
    """Share of pulls that swap places with a later one on the same channel (pull = "start"). TicTac, section 5.1,
    measured 0.005. Default: 0."""
    overhead_ps: Time = key(default="0us", examples=["20us"])
    """Time for which each transfer occupies the transmission queue before its first byte. Default:
    `cluster.node.launch`, or 0us."""
    sync_ps: Time = key(default="0us", examples=["20us"])
    """Time from the end of a transfer on all workers to the earliest start of the next, for a global syncer
    (docs/models/training.md#the-transmission-queue)."""

    @property
    def cap_bytes(self) -> int:
        """Maximum size of a bucket in bytes; 0 if every layer is a bucket, or if the order determines the buckets."""
        return 0 if self.fusion_bytes == "adaptive" else self.fusion_bytes

    @property
    def parts(self) -> int:
        """Number of parts into which a chunk is divided; 1 if the number is adaptive."""
        return 1 if self.depth == "adaptive" else self.depth

    @property
    def most_parts(self) -> int:
        """Maximum number of parts into which a chunk is divided: 8 if it is adaptive (Caramel, section 4.4)."""
        return 8 if self.depth == "adaptive" else self.depth


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
    """A preset, a layer table (.csv), a model file (.json), a Hugging Face configuration (config.json), a trace, or a
    table. Needed. A trace is a file, folder, archive (.tar, .tar.gz, .tgz, .zip) or pattern, of Kineto (.json,
    .json.gz), Chakra (.et) or Nsight Systems (.sqlite). If a preset is also an op graph, pull = "start" and
    `compute.order` use the graph."""
    workers: int | None = key(default=None, ge=1, examples=[8])
    """Number of workers, each on its own host: the lowest-numbered hosts that no other job names. This key or `hosts`
    is needed."""
    hosts: list[str] | None = key(default=None, examples=[["h0", "h1", "h3"]])
    """Host of each worker."""
    placement: Placement = key(default="packed", examples=["spread", ["h3", "h1"]])
    """Which rank runs on which of the job's hosts. packed: in the order of the hosts. spread: over the edge switches in
    turn. random: drawn with the run's seed. With `workers`, spread and random also choose the hosts, among all that no
    other job has. A list means the same as `hosts`."""
    iterations: int | None = key(default=None, ge=1, examples=[10])
    """Number of measured iterations (docs/models/training.md#what-is-measured). Default: 10; with `run.duration`, as
    many as fit into it. A job continues until all other jobs have finished theirs."""
    task: Literal["train", "inference", "exchange"] | None = key(default=None, examples=["inference"])
    """What an iteration is. train: gradients are computed and summed. inference: parameters are pulled for a forward
    pass, from servers with pull = "start". exchange: the bytes are not gradients, and any collective may carry them.
    Default: train."""
    parallel: Parallel | None = key(default=None, examples=[{"fsdp": 16, "tp": 8}], core=False)
    """How a Hugging Face configuration is divided over ranks (docs/models/parallel.md). Default: every worker has the
    whole model and its own mini-batch."""
    compute: Compute = key(default={}, examples=[{"scale_to": "900ms"}])
    """Device, batch and scale of compute times."""
    collective: Collective = key(default={}, examples=[{"kind": "ring"}])
    """Algorithm that aggregates gradients (docs/models/collectives.md#the-algorithms)."""
    schedule: Schedule = key(default={}, examples=[{"order": "fifo", "fusion": "6.28MB", "barrier": True}])
    """How gradients are grouped into buckets, and in what order buckets are sent."""
    priority: JobPriority = key(default="high", examples=["high", 2, ["high", "low", "low", "low"]])
    """Priority band of the job's flows. "high" is band 0, which is sent first; "low" is the last band of the queue: 2
    of pfifo_fast, n - 1 of n strict bands. A list is spread evenly over the layers from the input side: ["high", "low",
    "low", "low"] sends the lowest quarter high. A chunk uses the band of its first layer; for a band of each bucket,
    list one entry per layer. { adaptive = { policy = "deadline" } } changes the band while the job sends."""
    start_ps: Time = key(default="0s")
    """Simulated time at which the job starts."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether the job announces its bursts to the switches, whose queue needs kind = "pcn" (docs/models/pcn.md). true:
    with the `announced` threshold of the queue. "15pkt": with this threshold, a multiple of 5 packets up to 75.
    Default: false."""
