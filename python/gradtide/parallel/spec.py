"""Describes a parallel job in numbers: bytes and times of its blocks, blocks per pipeline stage, and memory per rank.

described = describe(Costs(model, accelerator, mesh, training), layout)
described.stages, described.memory.total
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import Literal, NamedTuple

from gradtide.architecture import Block, FieldError, Module
from gradtide.parallel import memory
from gradtide.parallel.costs import Beside, Costs, OpTimes, kind_of
from gradtide.parallel.mesh import split
from gradtide.parallel.times import OwnTimes, named_blocks, op_names

Pipeline = Literal["1f1b", "gpipe", "interleaved"]
Context = Literal["ring", "all-gather"]
PICOSECONDS = 10**12
GRADIENT_BYTES = {"bf16": 4, "float8": 4, "fp16": 2, "fp32": 4}
"""Bytes of a gradient element in reductions, by precision: fp32, except in fp16 training."""
GATHERED_BYTES = {"bf16": 2, "float8": 1, "fp16": 2, "fp32": 4}
"""Bytes of a parameter element in all-gathers of blocks, by precision; with float8, parameters are converted first."""


@dataclass(frozen=True)
class Layout:
    """How the ranks of a mesh cooperate: pipeline schedule, sharding, prefetch and overlap.

    Attributes:
        gpus_per_node: number of ranks per node.
        micro_batches: number of micro-batches of a data-parallel rank per iteration.
        zero: ZeRO stage over cp and fsdp: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also parameters.
        pipeline: pipeline schedule, i.e. the order of forward and backward passes of micro-batches.
        chunks: number of virtual stages per rank; above 1 only with the interleaved schedule.
        unit: number of blocks per FSDP unit: their parameters are gathered, and their gradients reduced, together.
        prefetch: number of units whose parameters are gathered ahead in the forward pass.
        backward_prefetch: number of units whose parameters are gathered ahead in the backward pass.
        overlap_gradients: whether gradients are reduced during the backward pass.
        context: how context-parallel ranks exchange keys and values.
        async_tp: whether tensor-parallel transfers are split into parts that overlap with matrix products (asynchronous
            tensor parallelism).
        scatter_gather: whether each rank of a tensor group sends only its part of the activations to the next stage,
            which all-gathers the parts.
        gloo: whether the backend is gloo, with which torch all-reduces the whole gradient and waits for the result.
        stages: number of blocks of each virtual stage; None for equal stages.
    """

    gpus_per_node: int = 8
    micro_batches: int = 1
    zero: int = 3
    pipeline: Pipeline = "1f1b"
    chunks: int = 1
    unit: int = 1
    prefetch: int = 1
    backward_prefetch: int = 1
    overlap_gradients: bool = True
    context: Context = "ring"
    async_tp: bool = False
    scatter_gather: bool = False
    gloo: bool = False
    stages: Sequence[int] | None = None


class BesidePs(NamedTuple):
    """`Beside` in picoseconds."""

    join_ps: int
    sum_ps: int
    add_ps: int


class Op(NamedTuple):
    """`OpTimes` in picoseconds; the times in `beside` are 0 without asynchronous tensor parallelism (`async_tp`)."""

    name: str
    role: str
    forward_ps: int
    backward_ps: int
    recompute_ps: int
    recompute_communicates: bool
    exchanged_bytes: int
    beside: tuple[BesidePs, BesidePs]


class Kind(NamedTuple):
    """Sizes and ops that several blocks have in common. Bytes are those of one rank before sharding."""

    parameter_bytes: int
    gradient_bytes: int
    expert_parameter_bytes: int
    expert_gradient_bytes: int
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Described:
    """A parallel job in numbers.

    Attributes:
        kinds: kinds of blocks.
        blocks: name and index of the kind of each block; the first is the embedding, the last the head.
        unit_blocks: number of blocks of each FSDP unit.
        stages: number of blocks of each virtual stage, the embedding and the head included.
        optimizer_ps: optimizer time on a rank of each pipeline stage.
        activation_bytes: bytes of a micro-batch's activations between two blocks.
        tied_embedding_bytes: gradient bytes of an embedding that the first and the last stage share; 0 without one.
        memory: memory of the fullest rank.
        model_flops: FLOPs of the model per iteration, on all ranks, without recomputation.
        tokens: number of tokens per iteration.
        ranks: number of ranks of the mesh.
        units: names of the modules of each FSDP unit, as in a Hugging Face model. If the head shares the parameters of
            the embedding, both belong to the first unit, which is the model itself and has the name "".
    """

    kinds: tuple[Kind, ...]
    blocks: tuple[tuple[str, int], ...]
    unit_blocks: list[int]
    stages: list[int]
    optimizer_ps: list[int]
    activation_bytes: int
    tied_embedding_bytes: int
    memory: memory.Memory
    model_flops: int
    tokens: int
    ranks: int
    units: tuple[tuple[str, ...], ...]

    def ops_of(self, blocks: Iterable[tuple[str, int]]) -> Iterator[Op]:
        """Yield the ops of some of `self.blocks`."""
        for _, kind in blocks:
            yield from self.kinds[kind].ops

    def utilisation(self, iteration_s: float, peak_flops: float) -> float:
        """Return the model FLOPs utilisation (Chowdhery et al. 2022, appendix B): the model's FLOP/s over the peak."""
        return self.model_flops / (iteration_s * self.ranks * peak_flops)

    def tokens_per_s(self, iteration_s: float) -> float:
        """Return the number of tokens that a rank trains on per second."""
        return self.tokens / (iteration_s * self.ranks)


def micro_batches(global_batch: int | None, micro_batch: int, data: int, stages: int) -> int:
    """Return the number of micro-batches of a data-parallel rank per iteration; by default, one per stage.

    Raises:
        FieldError: if the sequences of an iteration cannot be shared equally.
    """
    if global_batch is None:
        return stages
    if global_batch % (micro_batch * data):
        msg = f"{data} data-parallel ranks with micro-batches of {micro_batch} cannot share {global_batch} sequences"
        raise FieldError("global_batch", msg, f"write a multiple of {micro_batch * data}")
    return global_batch // (micro_batch * data)


def model_flops(costs: Costs, sequences: int) -> int:
    """Return the model FLOPs of an iteration: three forward passes, in which attention includes masked pairs.

    With B sequences of s tokens, l blocks of width h and a vocabulary of V tokens, this equals for GPT
    72 B s l h² (1 + s/6h + V/12lh) (Narayanan et al. 2021). For other models it equals 6 N + 12 l h s per token
    (Chowdhery et al. 2022), where N counts the parameters that a token passes through without the embedding table.
    """
    return 3 * sequences * costs.model.forward_flops(costs.training.seq)


def describe(costs: Costs, layout: Layout, own: OwnTimes | None = None) -> Described:
    """Return the numbers of a job.

    Args:
        costs: roofline times of the model's ops.
        layout: pipeline, sharding and prefetch.
        own: op times of the user, which replace the roofline times.

    Raises:
        FieldError: if the model cannot be divided in this way, or the device cannot compute it.
    """
    model, mesh, training = costs.model, costs.mesh, costs.training
    _check(costs, layout)
    counts = _stages(costs, layout)
    kinds: list[Kind] = []
    found: dict[object, int] = {}

    def kind(key: object, modules: Sequence[Module], ops: tuple[OpTimes, ...]) -> int:
        if (key, ops) not in found:
            found[key, ops] = len(kinds)
            dense, experts = memory.of_rank(modules, costs)
            is_block = not isinstance(key, str)
            gathered = GATHERED_BYTES[training.precision] if is_block else training.element_bytes
            reduced = GRADIENT_BYTES[training.precision]
            sizes = (dense * gathered, dense * reduced, experts * gathered, experts * reduced)
            kinds.append(Kind(*sizes, tuple(_op(op, is_async=layout.async_tp) for op in ops)))
        return found[key, ops]

    timed = [(name, ops if own is None else own.of_block(name, ops)) for name, ops in named_blocks(costs)]
    modules = [model.before, *(block.modules for block in model.blocks), _after(costs)]
    keys = ["embed", *map(kind_of, model.blocks), "head"]
    blocks = tuple(
        (name, kind(key, of_block, ops)) for (name, ops), key, of_block in zip(timed, keys, modules, strict=True)
    )
    stages = list(counts)
    stages[0] += 1
    stages[-1] += 1
    of_units = units(counts, layout.unit)
    owned = [_owned(stage, counts, costs) for stage in range(mesh.pp)]
    shards = mesh.cp * mesh.fsdp if layout.zero else 1
    if own is not None and own.has_updates:
        optimizer_ps = _updates(own, timed, stages, mesh.pp)
    else:
        of_ranks = (
            costs.optimizer(-(-dense // shards) + -(-experts // max(1, shards // mesh.experts)))
            for dense, experts in owned
        )
        optimizer_ps = [_ps(seconds) for seconds in of_ranks]
    tied = model.before[0] if model.tied and mesh.pp > 1 else None
    sequences = layout.micro_batches * training.micro_batch * mesh.data
    return Described(
        kinds=tuple(kinds),
        blocks=blocks,
        unit_blocks=of_units,
        stages=stages,
        optimizer_ps=optimizer_ps,
        activation_bytes=costs.tokens * model.hidden * training.element_bytes,
        tied_embedding_bytes=memory.of_rank([tied], costs)[0] * GRADIENT_BYTES[training.precision] if tied else 0,
        memory=_fullest(costs, layout, counts),
        model_flops=model_flops(costs, sequences),
        tokens=sequences * training.seq,
        ranks=mesh.ranks,
        units=_unit_names(costs, of_units),
    )


def fullest(costs: Costs, layout: Layout) -> memory.Memory:
    """Return the memory of the rank that needs the most, without computing op times.

    Raises:
        FieldError: if the model cannot be divided in this way.
    """
    _check(costs, layout)
    return _fullest(costs, layout, _stages(costs, layout))


def _fullest(costs: Costs, layout: Layout, counts: Sequence[int]) -> memory.Memory:
    stages = (_memory(stage, counts, costs, layout) for stage in range(costs.mesh.pp))
    return max(stages, key=lambda one: one.total)


def units(counts: Sequence[int], of_unit: int) -> list[int]:
    """Return the number of blocks of each FSDP unit. The embedding and the head are separate units.

    Args:
        counts: number of blocks of each virtual stage.
        of_unit: number of blocks per unit; the last unit of a stage may have fewer.
    """
    inner = [min(of_unit, count - first) for count in counts for first in range(0, count, of_unit)]
    return [1, *inner, 1]


def _unit_names(costs: Costs, counts: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    model = costs.model
    names = iter([_common(module.name for module in block.modules) for block in model.blocks])
    inner = [tuple(islice(names, count)) for count in counts[1:-1]]
    if model.tied:
        return (("",), *inner)
    before, after = (tuple(module.name for module in modules) for modules in (model.before, model.after))
    return (before, *inner, after)


def _common(names: Iterable[str]) -> str:
    parts = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts))


def _check(costs: Costs, layout: Layout) -> None:
    mesh, training = costs.mesh, costs.training
    mesh.check(costs.model, training.seq, layout.chunks)
    if layout.chunks > 1 and layout.pipeline != "interleaved":
        raise FieldError("chunks", "only an interleaved pipeline has chunks", 'write pipeline = "interleaved"')
    if layout.pipeline == "interleaved":
        if mesh.pp == 1:
            raise FieldError("pipeline", "one stage has nothing to interleave", "write pp, or leave `pipeline` out")
        if layout.micro_batches % mesh.pp:
            msg = f"{layout.micro_batches} micro-batches are not a multiple of {mesh.pp} stages"
            raise FieldError("pipeline", msg, 'change `global_batch`, or write pipeline = "1f1b"')
    if training.sequence_parallel and costs.tokens % mesh.tp:
        msg = f"{mesh.tp} ranks cannot share {costs.tokens} tokens of a micro-batch equally"
        raise FieldError("sequence", msg, "write sequence = false, or change `tp`")
    _check_sends(costs, layout)
    longest = costs.model.longest
    if longest is not None and training.seq > longest:
        msg = f"the model has learned {longest} positions, and a sequence has {training.seq} tokens"
        raise FieldError("seq", msg, f"write at most {longest}")


def _stages(costs: Costs, layout: Layout) -> list[int]:
    """Return the number of blocks of each virtual stage.

    If the number of blocks is not a multiple of the number of stages, the embedding and the head count as one block
    each. Therefore the first and the last stage of Llama 3 have one block fewer (Llama Team 2024, section 3.3.2).
    """
    blocks, count = len(costs.model.blocks), costs.mesh.pp * layout.chunks
    if layout.stages is None:
        if blocks % count and (blocks + 2) % count:
            msg = f"{count} stages cannot share {blocks} blocks equally"
            raise FieldError("pp", msg, f"let them divide {blocks}, or write stages = {split(blocks, count)}")
        return split(blocks, count)
    if len(layout.stages) != count:
        msg = f"{count} stages are needed, and {len(layout.stages)} are listed"
        raise FieldError("stages", msg, f"write stages = {split(blocks, count)}, or leave it out")
    if sum(layout.stages) != blocks:
        msg = f"the stages have {sum(layout.stages)} blocks, and the model has {blocks}"
        raise FieldError("stages", msg, f"write stages = {split(blocks, count)}, or leave it out")
    return list(layout.stages)


def _check_sends(costs: Costs, layout: Layout) -> None:
    """Raise a `FieldError` for communication settings that do not apply to the mesh or are impossible."""
    mesh, training = costs.mesh, costs.training
    if layout.context != "ring" and mesh.cp == 1:
        raise FieldError("context", "one rank has the whole sequence", "write cp, or leave `context` out")
    if layout.async_tp:
        if mesh.tp == 1:
            raise FieldError(
                "async_tp", "a tensor group of one rank sends nothing", "write tp, or leave `async_tp` out"
            )
        if not training.sequence_parallel:
            msg = "asynchronous tensor parallelism needs sequence parallelism, whose parts it sends during the products"
            raise FieldError("async_tp", msg, "leave `sequence` out")
        if mesh.tp > layout.gpus_per_node:
            msg = f"the {mesh.tp} ranks of a tensor group do not fit on one node of {layout.gpus_per_node} GPUs"
            raise FieldError("async_tp", msg, f"write tp = {layout.gpus_per_node} at most, or leave `async_tp` out")
    if layout.scatter_gather:
        if mesh.tp == 1 or mesh.pp == 1:
            msg = "only tensor groups in a pipeline send parts"
            raise FieldError("scatter_gather", msg, "write tp and pp, or leave `scatter_gather` out")
        if training.sequence_parallel:
            msg = "with sequence parallelism every rank sends its part anyway"
            raise FieldError("scatter_gather", msg, "write sequence = false, or leave `scatter_gather` out")
    if training.expert_skew > 1:
        if mesh.experts == 1:
            msg = "every rank has all experts"
            raise FieldError("expert_skew", msg, "write ep above 1, or leave `expert_skew` out")
        most = min(mesh.experts, *(m.experts / m.active for m in costs.model.modules() if m.experts > 1))
        if training.expert_skew > most:
            msg = f"no rank of {mesh.experts} can have {training.expert_skew:g} times the mean"
            raise FieldError("expert_skew", msg, f"write at most {most:g}")


def _after(costs: Costs) -> Sequence[Module]:
    """Return the modules after the last block. In a pipeline, the last stage has a copy of a tied embedding."""
    model = costs.model
    return (*model.after, model.before[0]) if model.tied and costs.mesh.pp > 1 else model.after


def _own_blocks(stage: int, counts: Sequence[int], costs: Costs) -> list[Block]:
    """Return the blocks of a stage, including all its virtual stages."""
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    own = range(stage, len(counts), costs.mesh.pp)
    return [block for index in own for block in costs.model.blocks[ends[index] - counts[index] : ends[index]]]


def _owned(stage: int, counts: Sequence[int], costs: Costs) -> tuple[int, int]:
    """Return the number of dense and of expert parameters on a rank of a stage, before sharding."""
    modules = [module for block in _own_blocks(stage, counts, costs) for module in block.modules]
    if stage == 0:
        modules += costs.model.before
    if stage == costs.mesh.pp - 1:
        modules += _after(costs)
    return memory.of_rank(modules, costs)


def _memory(stage: int, counts: Sequence[int], costs: Costs, layout: Layout) -> memory.Memory:
    mesh, training = costs.mesh, costs.training
    blocks = _own_blocks(stage, counts, costs)
    dense, experts = _owned(stage, counts, costs)
    sizes = [sum(memory.of_rank(block.modules, costs)) for block in blocks]
    sizes = [sum(sizes[first : first + layout.unit]) for first in range(0, len(sizes), layout.unit)]
    if stage == 0:
        sizes.append(sum(memory.of_rank(costs.model.before, costs)))
    if stage == mesh.pp - 1:
        sizes.append(sum(memory.of_rank(_after(costs), costs)))
    ahead = max(layout.prefetch, layout.backward_prefetch)
    zero = layout.zero if mesh.cp * mesh.fsdp > 1 else 0
    kept_bytes = 4 if training.precision != "fp16" else 2
    parts = memory.states(dense, experts, max(sizes), zero, ahead, kept_bytes, costs)
    under_way = memory.under_way(layout.pipeline, stage, mesh.pp, layout.micro_batches, layout.chunks)
    logits = memory.of_logits(costs) if stage == mesh.pp - 1 else 0
    own = memory.activations(blocks, under_way, costs) + memory.gathered(costs)
    return memory.Memory(*parts, own, logits, costs.accelerator.memory_bytes)


def _op(op: OpTimes, *, is_async: bool) -> Op:
    again = op.recompute if op.recompute_communicates else op.forward
    forward, backward = op.beside if is_async else (Beside(), Beside())
    return Op(
        op.name,
        op.role,
        _ps(op.forward),
        _ps(op.backward),
        _ps(op.recompute),
        op.recompute_communicates,
        op.exchanged_bytes,
        (_beside(forward, _ps(min(op.forward, again))), _beside(backward, _ps(op.backward))),
    )


def _beside(beside: Beside, most_ps: int) -> BesidePs:
    """Return the times in whole picoseconds, capped so that rounding does not exceed the op's time."""
    join_ps = min(_ps(beside.join), most_ps)
    sum_ps = min(_ps(beside.sum), most_ps - join_ps)
    return BesidePs(join_ps, sum_ps, _ps(beside.add))


def _updates(
    own: OwnTimes, timed: Sequence[tuple[str, Sequence[OpTimes]]], stages: Sequence[int], pp: int
) -> list[int]:
    """Return the optimizer time on a rank of each pipeline stage, from the user's times."""
    ends = list(accumulate(stages))
    blocks = [timed[end - count : end] for end, count in zip(ends, stages, strict=True)]
    return [
        _ps(
            sum(
                sum(own.updates(op_names(name, [op.name for op in ops])))
                for part in blocks[stage::pp]
                for name, ops in part
            )
        )
        for stage in range(pp)
    ]


def _ps(seconds: float) -> int:
    return round(seconds * PICOSECONDS)
