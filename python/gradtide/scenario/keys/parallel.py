"""Keys of `job.NAME.parallel`: how a model is divided over ranks."""

from typing import Annotated, Literal

from pydantic import Field

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import Factor

MOST = 1_000_000

OF_MESH = ("micro_batch", "recompute", "precision")
"""Keys of `compute` that `parallel` may also contain, so that a comparison of meshes can vary them."""


class Parallel(Table):
    """How a model is divided over ranks (docs/models/parallel.md).

    The number of ranks is tp x cp x fsdp x dp x pp. Ranks are numbered in this order: the ranks of a tensor-parallel
    group have consecutive numbers, so that the group stays inside a node.
    """

    tp: int = key(default=1, ge=1, le=MOST, examples=[8], core=False)
    """Number of ranks in a tensor-parallel group. Each rank has a part of every matrix (Shoeybi et al. 2019)."""
    cp: int = key(default=1, ge=1, le=MOST, examples=[2], core=False)
    """Number of ranks in a context-parallel group. Each rank has a part of every sequence."""
    ep: int | None = key(default=None, ge=1, le=MOST, examples=[8], core=False)
    """Number of ranks over which the experts of a layer are distributed, a divisor of cp x fsdp x dp. Required for a
    model with experts; with 1, every rank has all experts."""
    fsdp: int = key(default=1, ge=1, le=MOST, examples=[16], core=False)
    """Number of ranks over which the model states that `zero` selects are sharded. Each rank trains on its own
    sequences."""
    dp: int = key(default=1, ge=1, le=MOST, examples=[2], core=False)
    """Number of replicas of the sharded model, which sum their gradients. With fsdp above 1, this is hybrid sharding
    (HSDP)."""
    pp: int = key(default=1, ge=1, le=MOST, examples=[4], core=False)
    """Number of stages of the pipeline."""
    zero: Literal[1, 2, 3] | None = key(default=None, examples=[1], core=False)
    """What is sharded over `fsdp` ranks (Rajbhandari et al. 2020). 1: optimizer states. 2: also gradients. 3: also
    parameters, as in FSDP. Default: 3; 2 with pp above 1, because 3 would gather parameters for every micro-batch."""
    pipeline: Literal["1f1b", "gpipe", "interleaved"] = key(default="1f1b", core=False)
    """Order in which a pipeline stage computes micro-batches. gpipe: all forward passes first. 1f1b: forward and
    backward passes alternate. interleaved: 1f1b with several stages (`chunks`) on each rank (Narayanan et al. 2021)."""
    chunks: int | None = key(default=None, ge=2, le=1000, examples=[2], core=False)
    """Number of pipeline stages on each rank. Required with pipeline = "interleaved"."""
    stages: list[Annotated[int, Field(ge=1)]] | None = key(default=None, examples=[[7, 9]], core=False)
    """Number of transformer blocks in each pipeline stage or, with `chunks`, in each virtual stage. Default: equal
    numbers, or one block fewer in the first and the last stage, which also have the embedding and the head (Llama 3).
    Required if the number of blocks permits neither."""
    sequence: bool | None = key(default=None, examples=[False], core=False)
    """Whether tensor-parallel groups also divide the sequence between their matrix products, with all-gathers and
    reduce-scatters in place of all-reduces (Korthikanti et al. 2022). Default: true if tp is above 1."""
    async_tp: bool = key(default=False, examples=[True], core=False)
    """Whether collectives of tensor-parallel groups are divided into parts that overlap with the adjacent matrix
    products, as with torchtitan's enable_async_tensor_parallel (docs/models/parallel.md)."""
    scatter_gather: bool = key(default=False, examples=[True], core=False)
    """Whether each rank of a tensor-parallel group sends only its part of the activations to the next pipeline stage,
    which gathers them (Narayanan et al. 2021); requires sequence = false. false: every rank sends all activations, as
    in Megatron Core."""
    context: Literal["ring", "all-gather"] = key(default="ring", examples=["all-gather"], core=False)
    """How a context-parallel group exchanges keys and values. ring: around a ring, concurrently with attention (Liu et
    al. 2023). all-gather: in one collective, for which attention waits (Llama 3)."""
    expert_skew_ppm: Factor = key(default=1.0, examples=[1.3], core=False)
    """Imbalance of experts in an expert-parallel group: tokens of the rank with most tokens, for which all ranks wait,
    divided by the mean over the ranks."""
    prefetch: int = key(default=1, ge=0, le=1000, examples=[2], core=False)
    """Number of units (see `unit`) whose parameters are gathered ahead of the unit that is being computed (zero = 2 and
    3). With 0, compute waits for each unit; 1 is PyTorch's default."""
    backward_prefetch: int | None = key(default=None, ge=0, le=1000, examples=[2], core=False)
    """Number of units whose parameters are gathered ahead in the backward pass. Default: `prefetch`."""
    unit: int = key(default=1, ge=1, le=1000, examples=[2], core=False)
    """Number of transformer blocks whose parameters are gathered together, and whose gradients are reduced together, as
    by one call of `fully_shard`. The embedding and the head are separate units."""

    micro_batch: int | None = key(default=None, ge=1, le=MOST, examples=[2], core=False)
    """Replaces `compute.micro_batch` in this mesh."""
    recompute: Literal["none", "selective", "full"] | None = key(default=None, examples=["selective"], core=False)
    """Replaces `compute.recompute` in this mesh."""
    precision: Literal["bf16", "fp16", "float8", "fp32"] | None = key(default=None, examples=["float8"], core=False)
    """Replaces `compute.precision` in this mesh."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.fsdp * self.dp * self.pp
