"""Keys of `job.NAME`: model, compute, collective, schedule and priority of a training job.

The module is longer than 600 lines because each key is declared with its unit, range, default and documentation.
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
    """A layer, with the times that one worker needs for one mini-batch."""

    name: Name = key(examples=["conv1"])
    """Name of the layer, unique in the model."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time."""
    parameter_bytes: Size = key(alias="parameters", examples=["4MB"])
    """Size of the layer's gradient; "0B" for a layer without parameters."""
    update_ps: Time = key(default="0s", examples=["50us"])
    """Time to apply the layer's aggregated gradient."""
    is_host: bool = key(default=False, alias="host", examples=[True])
    """Whether this row of the model is time that the host (CPU) spends while the device is idle, such as late kernel
    launches in a recorded step. This time does not count as compute, and the row has no parameters."""


class InlineModel(Table):
    """A model as a list of layers."""

    name: Name = key(default="inline", examples=["my-model"])
    """Name of the model in results."""
    layers: list[InlineLayer] = key(
        examples=[[{"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "4MB"}]]
    )
    """Layers of the model, from the input side to the output side."""
    bucketed: bool = key(default=False, examples=[True])
    """Whether each layer is already a bucket of gradients, as in a trace. Then `schedule.fusion` is "0B" by default."""
    source: FileName | None = key(default=None, examples=["step 7 of rank 0"])
    """Source of the layers' times and sizes, for readers only."""
    device: Name | None = key(default=None, examples=["A100"], core=False)
    """Device on which the layers' times were measured. It does not change the times."""
    left_out: list[FileName] = key(default=[], examples=[["events of an unknown category: 1 (hpu_op), left out"]])
    """Parts of the source, such as a trace, that the layers do not include. Each entry becomes a warning of the
    scenario."""


class ThesisModel(Table):
    """The synthetic model of Gao (2020), section 4.2: deeper layers are larger (docs/models/training.md#parameters)."""

    kind: Literal["thesis"] = key(default="thesis")
    """Marks `model` as the synthetic model."""
    layers: int = key(default=100, ge=2, examples=[50, 100])
    """Number of layers of the synthetic model, L in its formulas."""
    size_bytes: Size = key(default="100MB")
    """Nominal size M of the synthetic model's parameters."""
    time_ps: Duration = key(default="900ms", examples=["900ms", "2240ms"])
    """Nominal compute time T of an iteration of the synthetic model. With `compute.scale_to`, the layers' times are
    scaled; if precision = "float32", T itself is replaced."""
    precision: Literal["exact", "float32"] = key(default="exact")
    """Rounding of the layers' times. exact: to a picosecond. float32: computed in single-precision milliseconds and
    truncated to nanoseconds, as in Gao's program for chapter 5."""


def _rows(value: object) -> list[object]:
    if not isinstance(value, list):
        msg = f"expected a list of tables, found {units.describe(value)}"
        hint = 'write ops = [{ id = 0, kind = "recv", inputs = [], time = 0, bytes = 4096 }]'
        raise units.UnitError("GT011", msg, hint)
    return value


Rows = Annotated[list[Any], Form(_rows, {"type": "array", "items": {"type": "object"}})]


class GraphModel(Table):
    """A model as a graph of ops, with the keys of an op DAG file (docs/models/orders.md#the-file)."""

    kind: Literal["graph"] = key(default="graph")
    """Marks `model` as a graph of ops."""
    name: Name = key(default="graph", examples=["my-model"])
    """Name of the model in results."""
    device: Name | None = key(default=None, examples=["A100"], core=False)
    """Device on which the ops' times were measured. It does not change the times."""
    time_unit: Literal["ps", "ns", "us", "ms", "s"] = key(examples=["ns"])
    """Unit of the ops' times."""
    target: int = key(ge=0, examples=[3])
    """Id of the op whose end completes the compute of an iteration."""
    inference_target: int | None = key(default=None, ge=0, examples=[1])
    """Id of the op whose end completes the forward pass. Default: the whole graph is the forward pass."""
    ops: Rows = key(examples=[[{"id": 0, "kind": "recv", "inputs": [], "time": 0, "bytes": 4096}]])
    """Ops, with the keys of an op DAG file."""


class StepModel(Table):
    """A recorded training step of all ranks, as `trace.graph()` returns it."""

    kind: Literal["step"] = key(default="step")
    """Marks `model` as a recorded step."""
    name: Name = key(default="step", examples=["my-model"])
    """Name of the model in results."""
    source: FileName | None = key(default=None, examples=["step 7"])
    """Source of the recorded step, for readers only."""
    classes: Rows = key(examples=[[{"name": "rank0", "ranks": 1, "ops": [["forward", 1000000]]}]])
    """Classes of ranks with equal ops: one class if all ranks are equal, otherwise one class per rank. `ops` lists a
    rank's ops in sequence, each as a name and a time in picoseconds; `ranks` is the number of ranks."""
    groups: Rows = key(examples=[[{"name": "fsdp", "classes": [0, 1], "ranks": 2, "stride": 1}]])
    """Process groups, with the `classes` of their members. If all ranks are in one class, a group has `ranks` ranks
    whose numbers are `stride` apart. In a group of two without `stride`, the first rank sends to the second."""
    transfers: Rows = key(examples=[[{"name": "all_reduce", "kind": "all_reduce", "bytes": 4096, "group": 0}]])
    """Collective operations of process groups, and messages between the two ranks of a group."""
    edges: Rows = key(examples=[[[0, 2], [2, 1]]])
    """Dependencies between ops and transfers: in each pair of numbers, the second waits for the first. Ops are numbered
    from 0, class by class, and transfers after all ops."""

    @property
    def document(self) -> dict[str, Any]:
        """The step in the form of the core's input."""
        groups = [{"stride": None, **one} if isinstance(one, dict) else one for one in self.groups]
        return {"classes": self.classes, "groups": groups, "transfers": self.transfers, "edges": self.edges}


def _configuration(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)  # checked by `_model_tag`
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
    """Rule by which a worker sends a chunk in the high or the low band. deadline: low while the chunk is predicted to
    arrive before it is needed. straggler: like deadline, but the chunk may be late by the time for which the worker
    waits for slower workers. background: always low, with up to `credit` chunks in flight. all-low and all-high: the
    priorities "low" and 0. lower-layers-high: high for the lower half of the layers (Gao 2020, section 5.5). oracle:
    the band that is better in simulations with all future flows, for comparison only."""
    credit: int | None = key(default=None, ge=1, le=1024, examples=[4])
    """Maximum number of chunks in flight in the low band, so that the network stays busy while one is delayed. Default:
    4; 1 for deadline and straggler with ECN, because ECN keeps queues short."""
    window_bytes: PartSize | None = key(default=None, examples=["128kB"])
    """Maximum number of bytes that a connection has in flight in the low band. Default: what the slowest link sends in
    100 us or two round trips, whichever is longer, but at least 16 kB; with ECN, the window of the transport."""
    tolerance_ppm: Tolerance | None = key(default=None, examples=[0.02])
    """Allowed relative increase of the iteration time over the workers' estimate for sending everything in the high
    band. Default: 0.02."""
    margin_ppm: Tolerance | None = key(default=None, examples=[0.1])
    """Share by which a worker lengthens its estimates of later transfers' times, which sends more chunks in the high
    band. Default: 0."""
    exchange: bool | None = key(default=None, examples=[False])
    """Whether all workers send a transfer in the high band if one of them needs that band. Default: true."""
    price_ppm: Tolerance | None = key(default=None, examples=[1])
    """Seconds by which the oracle may lengthen an iteration for each second that it saves in the sum of small flows'
    completion times. Default: 1."""


class Adaptive(Table):
    """A priority band that changes while the job sends."""

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
    """Number of the slow worker, counted from 0 in the order of the job's hosts. Default: a random worker in each
    iteration."""
    factor_ppm: Factor = key(examples=[1.5])
    """Factor on the slow worker's compute times."""
    probability_ppm: Share = key(default=1.0, examples=[0.1])
    """Probability that the worker is slow in an iteration."""


OF_ROOFLINE = ("efficiency", "batch", "seq")
"""Keys of `compute` that convert counts of operations and bytes into times. Models with given times do not use them."""

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
"""Keys of `compute` that have an effect only in a job with `parallel`."""


class OpTime(Table):
    """Times of an op or a block, for one micro-batch on one rank."""

    op: Name = key(examples=["layers.*.attn"])
    """Name of an op or a block as in ops.csv of a run folder; `*` matches any number. The time of a block is divided
    among its ops in proportion to their estimated times."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time, not including recomputation."""
    recompute_ps: Time | None = key(default=None, examples=["1ms"])
    """Time to recompute activations in the backward pass. Default: 0 if another row has this key; otherwise the share
    of `forward` that recomputation takes in the estimate for the device."""
    update_ps: Time | None = key(default=None, examples=["50us"])
    """Time of the optimizer step. Default: 0 if another row has this key; otherwise the estimate for the device."""


class OpTimes(Table):
    """Your own times of ops."""

    source: FileName = key(default="the scenario", examples=["times.csv"])
    """Source of the ops' times, for readers only."""
    rows: list[OpTime] = key(examples=[[{"op": "layers.*", "forward": "1ms", "backward": "2ms"}]])
    """Times of all ops: each op needs a row, or its block does."""


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
    """Device for which compute times are estimated and plans are made. Times in a model's file are kept, except in a
    roofline profile. Default: the device that the model's file names, else `cluster.device`, else V100; a language
    model has no default device."""
    efficiency_ppm: Share | None = key(default=None, examples=[0.4], core=False)
    """Model FLOPs utilisation in training, not counting waits for the network. Default: the published value of the
    device (docs/models/compute.md#devices); required if there is none."""
    batch: int = key(default=32, ge=1, le=1_000_000, core=False)
    """Mini-batch of one worker in samples, for models without given times. Default for a Hugging Face configuration: 1;
    for a built-in op graph: as in its paper (gradtide presets graph); for a profile: as profiled."""
    seq: int | None = key(default=None, ge=1, le=100_000_000, examples=[8192], core=False)
    """Number of tokens per sequence, which is one sample. Required for a Hugging Face configuration, and an error for
    other models."""
    micro_batch: int | None = key(default=None, ge=1, le=1_000_000, examples=[1], core=False)
    """Number of sequences that a rank computes at once. Default: 1."""
    global_batch: int | None = key(default=None, ge=1, le=1_000_000_000, examples=[1024], core=False)
    """Number of sequences per iteration on all ranks together; a rank accumulates gradients over its micro-batches.
    Default: one micro-batch per data-parallel rank or, with a pipeline, as many as it has stages."""
    recompute: Literal["none", "selective", "full"] | None = key(default=None, examples=["full"], core=False)
    """Activations that the backward pass computes again, which saves memory. selective: activations of attention
    (Korthikanti et al. 2022). full: activations of every layer. none: no activations. Default: none."""
    precision: Literal["bf16", "fp16", "float8", "fp32"] | None = key(default=None, examples=["bf16"], core=False)
    """Number format of matrix products, parameters and activations. Default: bf16."""
    attention: Literal["flash", "unfused"] | None = key(default=None, examples=["unfused"], core=False)
    """Implementation of attention. flash: one kernel, which skips the scores that a causal mask hides. unfused:
    separate kernels over all scores, as in Megatron-LM before 2023. Default: flash."""
    compile: bool | None = key(default=None, examples=[False], core=False)
    """Whether element-wise operations are fused, as by torch.compile. Default: true."""
    compile_loss: bool | None = key(default=None, examples=[True], core=False)
    """Whether the loss is compiled, as by torchtitan since April 2025; it then needs 4 instead of 14 bytes of memory
    per logit. Default: false."""
    scaling_loss_ppm: Variation | None = key(default=None, examples=[0.02], core=False)
    """Relative increase of compute times with each doubling of the number of nodes, because all ranks wait for the
    slowest. Default: the value of the device; 0 with `noise` or a `straggler`."""
    times: Times | None = key(default=None, examples=["times.csv"], core=False)
    """Your own times of ops. A CSV file has the header op,forward_us,backward_us[,recompute_us][,update_us] and a row
    for each op or block. Default: estimates for the device (docs/models/compute.md#language-models-on-many-ranks)."""
    scale_to_ps: Duration | None = key(default=None, examples=["900ms"], core=False)
    """Compute time of one iteration, to which all compute times are scaled. Default: no scaling."""
    order: Literal["listed", "random", "caramel"] | None = key(
        default=None, examples=["caramel"], core=False, short="compute_order"
    )
    """Order in which a worker computes the ops of a graph whose gradients a collective aggregates. listed: the first op
    of the graph that can run. random: any op that can run; each worker keeps its own order. caramel: the ops for the
    gradient that needs the least compute time (docs/models/caramel.md#caramels-rules). Default: listed."""
    overlap_slowdown_ppm: Factor = key(default=1.0, examples=[1.1])
    """Factor on compute times while a transfer of the job is in progress."""
    noise_ppm: Variation = key(default=0.0, examples=[0.05])
    """Coefficient of variation of a worker's compute time, drawn anew for each iteration
    (docs/models/compute.md#workers-that-differ)."""
    straggler: Straggler | None = key(default=None, examples=[{"worker": 3, "factor": 1.5}])
    """A worker that is slow, always or sometimes (docs/models/compute.md#workers-that-differ). Default: none."""


class Bounded(Table):
    """Bounded staleness (docs/models/servers.md#without-a-barrier)."""

    staleness: int = key(ge=0, le=1_000_000, examples=[3])
    """Maximum number of iterations by which a worker may be ahead of the slowest worker."""


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
    """Number of parameter servers, which compute nothing. Default: an eighth of `workers` (Zhang et al. 2017); with
    pull = "start", a quarter of the workers that compute (TicTac 2019); at least 1."""
    placement: Literal["packed", "distributed", "separate"] | None = key(
        default=None, examples=["distributed"], core=False
    )
    """Which hosts are parameter servers. packed: the first `servers` of the job's workers. distributed: one worker in
    each of `servers` equal ranges. In both cases the other workers compute. separate: hosts in addition to `workers`,
    at the end of `hosts` if that key is given. Default: packed; with pull = "start", separate."""
    pull: Literal["update", "start"] = key(default="update", examples=["start"], core=False)
    """When workers pull parameters from the servers. update: each bucket is pushed, summed and pulled in one operation,
    like any other collective. start: each worker pulls all parameters at the start of an iteration, and pushes each
    gradient when it is ready, as in TicTac."""
    shards: Literal["bytes", "round_robin"] | None = key(default=None, examples=["round_robin"], core=False)
    """How parameters are assigned to servers (pull = "start"). bytes: the largest first, each to the server with the
    fewest bytes so far. round_robin: to each server in turn, in the order of the model. Default: bytes."""
    sync: Sync | None = key(default=None, examples=["async", {"staleness": 3}], core=False)
    """Which workers a worker waits for between iterations (pull = "start"; docs/models/servers.md#without-a-barrier).
    sync: all others. async: none. { staleness = 3 }: workers that would otherwise be more than 3 iterations behind.
    Default: sync."""


_HINT_OF_GROUP = 'write group = 8, or group = "leaf" for the hosts of one edge switch'
Group = Annotated[int | str, whole_or("leaf", 1_000_000, _HINT_OF_GROUP)]


class Collective(Table):
    """Algorithm that aggregates gradients (docs/models/collectives.md#the-algorithms)."""

    SHORT = "{}"

    kind: CollectiveKind = key(default="ring", core=False, short="")
    """ring and tree use all network cards of a node, as NCCL does; single_ring uses one card per node, and binary_tree
    sends whole buffers up and down one tree. all_gather and the kinds after it do not sum gradients and require task =
    "exchange"."""
    group: Group | None = key(default=None, examples=["leaf", 8], core=False)
    """Number of consecutive ranks in a group (butterfly_layered, hierarchical). "leaf": the number of hosts on an edge
    switch. Default: "leaf"."""
    inside: Literal["reduce", "ring", "sharded"] | None = key(default=None, examples=["sharded"], core=False)
    """Algorithm inside a group (hierarchical). reduce: a reduction to the first rank by a binomial tree. ring: a ring
    all-reduce. sharded: a ring reduce-scatter, after which all ranks exchange data between groups. Default: ring (Jia
    et al. 2018)."""
    ps: Ps | None = key(default=None, examples=[{"servers": 2, "placement": "packed"}], core=False, short="")
    """Parameter servers (docs/models/servers.md). This table implies kind = "ps"."""
    reduction_rate_bps: Rate | None = key(default=None, examples=["20GB/s"])
    """Rate at which a rank adds received data to its own, one message after another. Default: adding takes no time."""
    remainder: Literal["sent", "dropped"] = key(default="sent")
    """What happens to the remainder if the number of workers does not divide a bucket's bytes. sent: some parts are one
    byte longer. dropped: it is not sent, as in the simulator of Gao (2020), chapter 5."""

    @property
    def algorithm(self) -> CollectiveKind:
        """Value of `kind`, or "ps" if the table `ps` is given."""
        return "ps" if self.ps is not None else self.kind

    @property
    def is_pulled(self) -> bool:
        """Whether every iteration begins with a pull from parameter servers."""
        return self.ps is not None and self.ps.pull == "start"

    @property
    def bound(self) -> int | None:
        """Maximum number of iterations by which a worker may be ahead of the slowest; `None` if there is no bound."""
        sync = None if self.ps is None else self.ps.sync
        if isinstance(sync, Bounded):
            return sync.staleness
        return None if sync == "async" else 0


_HINT_OF_DEPTH = 'write depth = 4, or depth = "adaptive"; at most 1024'
Depth = Annotated[int | Literal["adaptive"], whole_or("adaptive", 1024, _HINT_OF_DEPTH)]


class Schedule(Table):
    """How gradients are grouped into buckets, and when and in which order buckets are sent."""

    SHORT = "{}"

    order: Literal[
        "fifo", "priority", "random", "arbitrary", "tic", "tac", "tac_folded", "caramel", "edf", "optimal", "file"
    ] = key(default="fifo", examples=["priority"], core=False)
    """Order in which the job sends buckets (docs/models/training.md#the-transmission-queue). fifo: as gradients become
    ready. priority: the layer nearest to the input first. random: a new random order in every iteration. arbitrary:
    fifo with some swaps, as in frameworks that enforce no order. tic, tac, tac_folded: the orders of TicTac
    (docs/models/orders.md). caramel: each bucket at a planned time (docs/models/caramel.md). edf: earliest deadline
    first, in chunks. optimal: the best of several plans. file: your own order. With pull = "start": the order of pulls,
    by default random (docs/models/servers.md#orders). With `parallel`: each process group sends its transfers as they
    become ready (fifo) or as they are needed (tic, tac)."""
    fusion_bytes: Fusion = key(default="25MiB", examples=["6.28MB"], core=False)
    """Maximum size of a bucket of gradients. "0B": every layer is a bucket. "adaptive": small layers that are computed
    while the network is busy form a bucket (Caramel 2020, section 4.2). Default: 25MiB, as in PyTorch DDP; "adaptive"
    with order caramel, edf or optimal."""
    first_fusion_bytes: PartSize | None = key(default=None, examples=["1MiB"], core=False)
    """Maximum size of the first bucket, 1 MiB in PyTorch DDP. With this key, each bucket ends, as in DDP, with the
    layer that reaches the maximum; without it, such a layer starts a new bucket."""
    cycle_ps: Time | None = key(default=None, examples=["5ms"], core=False)
    """Length of a cycle as in Horovod, which uses 5 ms and a `fusion` of 64 MiB. A bucket contains the gradients that
    are expected to become ready within a cycle, up to `fusion` bytes or a single layer. "0ms": until the network is
    free. Default: no cycles."""
    buckets: list[Annotated[int, Field(ge=1)]] | None = key(default=None, examples=[[28, 23, 49]], core=False)
    """Number of layers in each bucket, from the input side, including layers without parameters. Replaces `fusion`."""
    chunk_bytes: PartSize | None = key(default=None, examples=["1MB"])
    """Maximum size of a chunk, the part of a bucket that is sent before the queue is checked again. Default: the whole
    bucket; for edf, the size at which fixed costs are a tenth of a chunk's time; for optimal, the best size found."""
    credit: int = key(default=1, ge=1, le=1024, examples=[4])
    """Maximum number of chunks in flight, which a more urgent chunk cannot overtake."""
    queues: int | None = key(default=None, ge=1, le=1_000_000, examples=[8], core=False)
    """Number of priority classes of layers (order = "priority"), inside which buckets are sent first come, first
    served. Default: one class per layer."""
    barrier: bool = key(default=True, examples=[False])
    """Whether the next forward pass waits for all transfers. Without the barrier, each layer waits only for its own
    gradient. Default: true; false with order caramel, edf or optimal."""
    depth: Depth = key(default=1, core=False)
    """Number of parts of each chunk that go through the collective separately, so that one part is reduced while the
    next is sent. "adaptive": 1 for small chunks to 8 for large ones (Caramel 2020, section 4.4). Default: 1; "adaptive"
    with order caramel, edf or optimal."""
    file: Name | None = key(default=None, examples=["order.csv"], core=False, short="order_file")
    """File with your order of transfers (order = "file"): the names of all layers with parameters, one per line, most
    urgent first."""
    ranking: list[Name] | None = key(default=None, examples=[["fc", "conv1"]], core=False)
    """Your order of transfers as a list of layers, most urgent first, instead of `file`."""
    in_turn: bool | None = key(default=None, examples=[True], core=False)
    """Whether a bucket waits for all buckets before it in your order, even if the network is idle (order = "file").
    Default: false."""
    releases: list[str] | None = key(default=None, examples=[["", "forward conv1"]], core=False)
    """Event before which each of `buckets` is not sent (order = "file"). "backward LAYER": the layer's gradient is
    ready. "forward LAYER": the next forward pass reaches the layer. Default: "", no event."""
    disorder_ppm: Part | None = key(default=None, examples=[0.005], core=False)
    """Share of pulls that swap places with a later pull of the same worker from the same server (pull = "start"), 0.005
    in section 5.1 of TicTac. Default: 0."""
    overhead_ps: Time = key(default="0us", examples=["20us"])
    """Time for which each transfer occupies the job's transmission queue before its first byte is sent. Default:
    `cluster.node.launch`, or 0us."""
    sync_ps: Time = key(default="0us", examples=["20us"])
    """Time for which a global syncer coordinates the workers between transfers: from the end of one on all workers to
    the earliest start of the next (docs/models/training.md#the-transmission-queue)."""

    @property
    def cap_bytes(self) -> int:
        """Maximum size of a bucket in bytes; 0 if every layer is a bucket, or if `fusion` is adaptive."""
        return 0 if self.fusion_bytes == "adaptive" else self.fusion_bytes

    @property
    def parts(self) -> int:
        """Number of parts into which a chunk is divided; 1 if the number is adaptive."""
        return 1 if self.depth == "adaptive" else self.depth

    @property
    def most_parts(self) -> int:
        """Maximum number of parts into which a chunk is divided: 8 if the number is adaptive (Caramel, section 4.4)."""
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
    table. Required. A trace is a file, folder, archive (.tar, .tar.gz, .tgz, .zip) or file-name pattern of traces by
    Kineto (.json, .json.gz), Chakra (.et) or Nsight Systems (.sqlite). pull = "start" and `compute.order` use the op
    graph of a preset."""
    workers: int | None = key(default=None, ge=1, examples=[8])
    """Number of workers, each on its own host: the lowest-numbered hosts that no other job names. This key or `hosts`
    is required, except with `parallel` or a recorded step."""
    hosts: list[str] | None = key(default=None, examples=[["h0", "h1", "h3"]])
    """Host of each worker."""
    placement: Placement = key(default="packed", examples=["spread", ["h3", "h1"]])
    """Which rank runs on which of the job's hosts. packed: in the order of the hosts. spread: alternating between the
    edge switches. random: drawn with the run's seed. With `workers`, spread and random also choose the hosts, among the
    hosts of no other job. A list means the same as `hosts`."""
    iterations: int | None = key(default=None, ge=1, examples=[10])
    """Number of measured iterations (docs/models/training.md#what-is-measured). Default: 10, or 1 with `parallel` or a
    recorded step; with `run.duration`, as many as fit. A job continues until all other jobs have finished."""
    task: Literal["train", "inference", "exchange"] | None = key(default=None, examples=["inference"])
    """What an iteration does. train: gradients are computed and summed. inference: parameters are pulled from servers
    for a forward pass (pull = "start"). exchange: bytes that are not gradients are sent, by any collective. Default:
    train."""
    parallel: Parallel | None = key(default=None, examples=[{"fsdp": 16, "tp": 8}], core=False)
    """How a Hugging Face configuration is divided over ranks (docs/models/parallel.md). Default: every worker has the
    whole model and its own mini-batch."""
    compute: Compute = key(default={}, examples=[{"scale_to": "900ms"}])
    """Device, batch and scale of compute times."""
    collective: Collective = key(default={}, examples=[{"kind": "ring"}])
    """Algorithm that aggregates gradients (docs/models/collectives.md#the-algorithms)."""
    schedule: Schedule = key(default={}, examples=[{"order": "fifo", "fusion": "6.28MB", "barrier": True}])
    """How gradients are grouped into buckets, and when and in which order buckets are sent."""
    priority: JobPriority = key(default="high", examples=["high", 2, ["high", "low", "low", "low"]])
    """Priority band of the job's flows. "high" is band 0, which is sent first; "low" is the queue's last band, such as
    2 of pfifo_fast. A list is distributed evenly over the layers: ["high", "low", "low", "low"] sends the quarter
    nearest to the input high. A chunk uses the band of its first layer. { adaptive = { policy = "deadline" } } changes
    the band while the job sends."""
    start_ps: Time = key(default="0s")
    """Simulated time at which the job starts."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether the job announces its bursts to the switches, which then lower their marking threshold; requires queues
    of kind = "pcn" (docs/models/pcn.md). true: to `cluster.queue.announced`. "15pkt": to 15 packets. Default: false."""
