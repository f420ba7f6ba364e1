"""Peak memory of a rank: parameters, gradients, optimizer states, activations and logits.

    states      = master weight and two moments in fp32, gradient, and the parameter in the precision of products; for
                  the largest FSDP unit also the gradient before and during its reduction
    activations = tensors of a block that its backward pass reads (Korthikanti et al. 2022, section 4) x blocks x
                  micro-batches in flight (1F1B: one per remaining stage; Narayanan et al. 2021)

ZeRO 1 shards optimizer states, 2 also gradients, 3 also parameters (Rajbhandari et al. 2020), over the ranks of the
axes cp and fsdp. Not modelled: memory lost to fragmentation in the allocator, buffers of communication libraries,
temporary results of kernels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from gradtide.architecture import Block, Module
from gradtide.parallel.costs import Costs, products

MASTER_BYTES = 4
MOMENTS_BYTES = 8
LOGIT_BYTES = 14
"""Bytes per logit at the peak: the logit in 16 bits and in fp32, its log-softmax and its gradient in fp32."""
DIVIDED_LOGIT_BYTES = 18
"""Bytes per logit with a vocabulary-parallel loss: the logit in 16 bits, and its log-softmax, zeros, exponential and
their sum in fp32 (torch/distributed/tensor/parallel/loss.py, `_nll_loss_and_log_softmax_backward`)."""
COMPILED_LOGIT_BYTES = 4
"""Bytes per logit with a compiled loss: the logit and its gradient in 16 bits."""
SCORE_BYTES = 5
"""Bytes per score of unfused attention: softmax, dropout and its mask (Korthikanti et al. 2022, section 4.1)."""
STATISTIC_BYTES = 4
"""Bytes per token and head that flash attention keeps: the log-sum-exp of a row of scores, in fp32."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of one rank, in bytes.

    Attributes:
        parameters: parameters in the precision of products, including all-gathered ones.
        gradients: gradients of the parameters that the rank keeps.
        optimizer: master weights and moments.
        activations: activations kept for the backward pass.
        logits: logits of the last stage, and their gradients.
        device: memory of the accelerator.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    device: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits

    @property
    def fits(self) -> bool:
        """Whether `total` is at most the device's memory; `parallel.fit` also considers the error of `total`."""
        return self.total <= self.device


def of_rank(modules: Iterable[Module], costs: Costs) -> tuple[int, int]:
    """Return the numbers of dense and of expert parameters of `modules` on a rank, before sharding."""
    dense, experts = 0, 0
    for module in modules:
        own = sum(map(prod, module.shapes))
        own = -(-own // costs.mesh.tp) if module.split else own
        if module.experts > 1:
            experts += own * module.experts // costs.mesh.experts
        else:
            dense += own
    return dense, experts


def kept(block: Block, costs: Costs) -> int:
    """Return the bytes of a block's activations kept for backward, per micro-batch and rank, without recomputation."""
    training, tp = costs.training, costs.mesh.tp
    outside = inside = 0.0
    groups: set[tuple[object, ...]] = set()
    for module in block.modules:
        # The common input of several modules, such as queries, keys and values, is kept only once.
        is_norm = all(len(shape) == 1 for shape in module.shapes)
        group = (module.name,) if is_norm else (module.inputs, module.active, module.name.rpartition(".")[0])
        copies = module.active * training.expert_skew if module.experts > 1 else 1
        if module.split == "rows":
            inside += copies * module.inputs
        elif group not in groups:
            outside += copies * module.inputs
            groups.add(group)
        if module.split == "columns":
            inside += copies * module.outputs
    sequence = tp if training.sequence_parallel else 1
    total = training.element_bytes * costs.tokens * (outside / sequence + inside / tp)
    if training.dropout:
        total += 2 * costs.tokens * costs.model.hidden / sequence
    heads = training.micro_batch * block.attention.heads * training.seq / (tp * costs.mesh.cp)
    if training.attention == "flash":
        return round(total + STATISTIC_BYTES * heads)
    scores = 0 if training.recompute == "selective" else SCORE_BYTES
    return round(total + scores * heads * training.seq)


def selected(block: Block, costs: Costs) -> float:
    """Return the bytes of a block that selective recomputation keeps with flash attention.

    These are the block's input, the output of attention, and the first, third, … product (torchtitan, `_save_list`).
    """
    training, tp, core = costs.training, costs.mesh.tp, block.attention
    sequence = tp if training.sequence_parallel else 1
    elements = costs.model.hidden / sequence + core.heads * core.value_size / tp
    for module in products(block)[::2]:
        copies = module.active * training.expert_skew if module.experts > 1 else 1
        elements += copies * module.outputs / (tp if module.split == "columns" else sequence)
    heads = core.heads / tp
    return costs.tokens * (training.element_bytes * elements + STATISTIC_BYTES * heads)


def of_logits(costs: Costs) -> int:
    """Return the bytes of logits and of the loss's temporaries on a rank of the last stage."""
    each = COMPILED_LOGIT_BYTES if costs.training.compiled_loss else LOGIT_BYTES
    if costs.mesh.tp > 1 and not costs.training.compiled_loss:
        each = DIVIDED_LOGIT_BYTES
    return costs.tokens * costs.model.vocabulary * each // costs.mesh.tp


def activations(blocks: Sequence[Block], under_way: float, costs: Costs) -> int:
    """Return the bytes of activations that a stage keeps.

    Args:
        blocks: blocks of the stage.
        under_way: number of micro-batches in flight, as `under_way()` counts them.
        costs: costs of the job.
    """
    if not blocks:
        return 0
    training = costs.training
    sequence = costs.mesh.tp if training.sequence_parallel else 1
    entering = training.element_bytes * costs.tokens * costs.model.hidden / sequence
    sizes = [kept(block, costs) for block in blocks]
    if training.recompute == "full":
        # A stage keeps the input of each block, and all activations of the block whose backward pass is running.
        return round(under_way * len(blocks) * entering + max(sizes))
    if training.recompute == "selective" and training.attention == "flash":
        own = [selected(block, costs) for block in blocks]
        again = max(entering + size - part for size, part in zip(sizes, own, strict=True))
        return round(under_way * sum(own) + again)
    return round(under_way * sum(sizes))


def gathered(costs: Costs) -> int:
    """Return the bytes of temporarily unsharded activations with sequence parallelism.

    The backward pass of a product holds two: the all-gathered input, and its gradient before the reduce-scatter.
    """
    mesh, training = costs.mesh, costs.training
    if mesh.tp == 1 or not training.sequence_parallel:
        return 0
    return 2 * training.element_bytes * costs.tokens * costs.model.hidden


def under_way(pipeline: str, stage: int, stages: int, micro_batches: int, chunks: int) -> float:
    """Return the number of micro-batches whose activations a stage keeps.

    If a rank has several virtual stages (chunks), activations of one chunk count as 1/chunks of a micro-batch.
    """
    if stages == 1:
        return 1
    if pipeline == "gpipe":
        return micro_batches
    if pipeline == "interleaved":
        # Korthikanti et al. (2022), section 4.2.3, for the first stage; each later stage keeps two chunks fewer.
        chunks_under_way = (stages - stage - 1) * 2 + (chunks - 1) * stages + 1
        return min(chunks_under_way, micro_batches * chunks) / chunks
    return min(stages - stage, micro_batches)


def states(
    dense: int, experts: int, largest: int, zero: int, prefetch: int, gradient_bytes: int, costs: Costs
) -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer states on a rank.

    Args:
        dense: number of parameters of the stage before sharding, without experts.
        experts: number of parameters of its experts before sharding.
        largest: number of parameters of its largest FSDP unit before sharding.
        zero: ZeRO stage: 0 to 3.
        prefetch: number of units that are gathered ahead.
        gradient_bytes: bytes of a gradient element.
        costs: costs of the job.
    """
    shards = costs.mesh.cp * costs.mesh.fsdp
    # Expert parallelism already divides experts over `ep` of these ranks, so only the remaining factor shards them.
    expert_shards = max(1, shards // costs.mesh.experts)
    whole = dense + experts
    shard = -(-dense // shards) + -(-experts // expert_shards)
    element = costs.training.element_bytes
    # Sharded parameters are the master weights, counted below. With a pipeline, unsharded parameters and unreduced
    # gradients are kept until the last micro-batch.
    is_pipeline = costs.mesh.pp > 1
    gathered = whole if zero < 3 or is_pipeline else min(whole, largest * (1 + prefetch))
    parameters = element * gathered
    gradients = gradient_bytes * (whole if zero < 2 or is_pipeline else shard)
    if zero > 1:
        # While a unit computes its gradients, the gradients of the previous unit are reduced from a separate buffer.
        gradients += (element + gradient_bytes) * largest
    optimizer = (MASTER_BYTES + MOMENTS_BYTES) * (shard if zero else whole)
    return parameters, gradients, optimizer
