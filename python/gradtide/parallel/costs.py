"""Roofline model of compute times: the time of each op of a block on one rank, from the shapes of its matrices.

    product      = max(FLOPs / (peak x efficiency), bytes / (bandwidth x memory efficiency))
    element-wise = bytes / (bandwidth x memory efficiency)
    op           = max(sum of its kernels, number of kernels x time in which the host issues one)
                   x straggler factor, since all ranks wait for the slowest

The backward pass has two products per forward product, and moves 1.5 times the bytes. Attention is either a single
kernel that skips masked scores and never writes scores (`flash`, Dao 2023), or products and element-wise kernels over
all scores (`unfused`, as in Megatron-LM until 2022).

Left out: the slowdown of compute by concurrent communication kernels, except where fitted efficiencies contain it.
Sources: Williams et al. (2009) for the roofline; Korthikanti et al. (2022) for the kernels between products.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any, Literal, NamedTuple

from gradtide.architecture import Architecture, Attention, Block, FieldError, Module
from gradtide.parallel.mesh import Mesh

Precision = Literal["bf16", "fp16", "float8", "fp32"]
Recompute = Literal["none", "selective", "full"]
Kernel = Literal["flash", "unfused"]
Role = Literal["embedding", "attention", "mlp", "experts", "head", "other"]

ELEMENT_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "float8": 2, "fp32": 4}
"""Bytes of an activation element, by precision. Float8 applies to operands of products only, not to activations."""

BACKWARD_PRODUCTS = 2
"""Number of backward products per forward product: one for the gradient of each operand."""
BACKWARD_MOVED = 1.5
"""Ratio of bytes moved, backward to forward: forward reads x and writes y, backward reads x and dy and writes dx."""
FLASH_BACKWARD = 2.5
"""FLOPs of a flash kernel, backward over forward: five products instead of two, because the backward pass recomputes
the scores (Dao 2023, section 3.1)."""
FLASH_SHARE = 0.5
"""Assumed ratio of the efficiency of a flash kernel to the efficiency of large products, if none was measured."""
UNFUSED_PASSES = 6.5
"""16-bit passes of unfused attention over its scores: 1 write, 2 for softmax, 2.5 for dropout and its mask, 1 read."""
UNFUSED_KERNELS = 5
FLOAT8_BYTES = 5
"""Bytes moved to convert an element to float8: 2 read to find the maximum, then 2 read and 1 written to convert it."""
HEAD_BYTES = 2 * 2 + 2 * 4
"""Bytes moved per logit in the loss: the logit in 16 bits and its copy in fp32, each written once and read once.

The memory traffic of the log-softmax is not counted.
"""
COMPILED_HEAD_BYTES = 4
"""Bytes moved per logit by a compiled loss, which reads the 16-bit logit for the maximum and again for the sum."""
ADAM_BYTES = 4 + 2 * 4 + 4 + 3 * 2 * 4
"""Bytes moved per parameter by an optimizer step, all in fp32. Clipping reads the gradient for its norm, then reads and
writes it to scale it. Adam reads the gradient, and reads and writes the master weight and two moments."""


class NoPeakError(FieldError):
    """The device does not multiply in the precision, or its efficiency in the precision is unknown."""


STATED = "stated"
"""Value of `Accelerator.basis` if the efficiencies are the user's."""


@dataclass(frozen=True)
class Accelerator:
    """The device that computes: its peak rates and memory, and the share of the peak rates that kernels reach.

    Attributes:
        name: name in scenarios.
        title: full name.
        peaks: vendor's peak of dense matrix products, in FLOP/s by precision.
        memory_bytes: memory available to a program.
        memory_bytes_per_s: vendor's memory bandwidth.
        memory_efficiency: share of the memory bandwidth that element-wise kernels reach.
        half_size: inner dimension of a matrix product at which the product reaches half of `efficiency`.
        source: source of peaks, bandwidth and memory.
        basis: origin of the efficiencies, such as the measured steps that they are fitted to.
        efficiency: share of the peak that large products reach, by precision; unknown for absent precisions.
        attention_efficiency: share of the peak that a flash kernel reaches. If None, `FLASH_SHARE` times `efficiency`.
        scaling_loss: relative slowdown of ops per doubling of nodes, because all ranks wait for the slowest.
    """

    name: str
    title: str
    peaks: dict[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    memory_efficiency: float
    half_size: float
    source: str
    basis: str
    efficiency: dict[str, float] = field(default_factory=dict)
    attention_efficiency: float | None = None
    scaling_loss: float = 0.0

    def stated(self, efficiency: float) -> "Accelerator":
        """Return the accelerator with an efficiency of large products that the user states."""
        shares = dict.fromkeys(self.peaks, efficiency)
        return replace(self, efficiency=shares, attention_efficiency=efficiency * FLASH_SHARE, basis=STATED)

    def stated_efficiency(self, precision: str) -> float | None:
        """Return the efficiency that the user stated; None if it was fitted."""
        return self.efficiency[precision] if self.basis == STATED else None

    def reached_by_attention(self, precision: str) -> float:
        """Return the FLOP/s that a flash kernel reaches. With float8, its products have 16 bits."""
        reached = self.reached(precision)
        if self.attention_efficiency is None:
            return reached * FLASH_SHARE
        return self.peaks["fp32" if precision == "fp32" else "bf16"] * self.attention_efficiency

    def reached(self, precision: str) -> float:
        """Return the FLOP/s that large matrix products reach.

        Raises:
            NoPeakError: if the device has no peak in this precision, or its efficiency is unknown.
        """
        if precision not in self.peaks:
            hint = f"it multiplies in {', '.join(self.peaks)}"
            raise NoPeakError("precision", f"{self.name} does not multiply in {precision}", hint)
        if precision not in self.efficiency:
            hint = "state the share of its peak that large products reach, as in efficiency = 0.6 or --efficiency 0.6"
            raise NoPeakError("efficiency", f"{self.name} has no known efficiency: {self.basis}", hint)
        return self.peaks[precision] * self.efficiency[precision]

    @property
    def moved_per_s(self) -> float:
        """Bytes/s that element-wise kernels read and write."""
        return self.memory_bytes_per_s * self.memory_efficiency

    def described(self) -> dict[str, Any]:
        """Return the accelerator as a row of the table of presets."""
        return {
            "kind": "accelerator",
            "name": self.name,
            "title": self.title,
            "bf16_tflop_per_s": self.peaks["bf16"] / 1e12,
            "memory_gib": self.memory_bytes / 2**30,
            "memory_gb_per_s": self.memory_bytes_per_s / 1e9,
            "efficiency": self.efficiency.get("bf16"),
            "source": f"{self.source}; efficiency: {self.basis}",
        }


@dataclass(frozen=True)
class Training:
    """Settings of a training step that determine compute times and memory.

    Attributes:
        seq: number of tokens of a sequence.
        micro_batch: number of sequences that a rank computes at once.
        precision: precision of matrix products.
        recompute: what the backward pass recomputes. `full`: every block. `selective` with unfused attention: the
            attention (Korthikanti et al. 2022). `selective` with flash attention: everything except the attention and
            the first, third, … product of a block (as torchtitan).
        attention: `flash` for a fused kernel, `unfused` for separate products and element-wise kernels.
        compiled: whether element-wise ops are fused (torch.compile); if not, they move `eager_moved` times the bytes.
        compiled_loss: whether the loss is one compiled kernel, which never writes 32-bit logits.
        sequence_parallel: whether tensor-parallel ranks divide the sequence outside the matrix products.
        dropout: whether dropout masks are drawn, and kept for the backward pass.
        expert_skew: tokens on the rank with the most loaded experts, divided by the mean over ranks. All ranks get the
            times of this rank, because they wait for it.
        host_s: time in which the host issues a kernel, in seconds.
        slowest: factor by which ops take longer because all ranks wait for the slowest (`slowest_of`).
        eager_moved: factor on the bytes moved by element-wise ops that are not compiled. It is fitted to one step, the
            only one in validation/llm_rows.py without torch.compile.
    """

    seq: int
    micro_batch: int = 1
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    attention: Kernel = "flash"
    compiled: bool = True
    compiled_loss: bool = False
    sequence_parallel: bool = True
    dropout: bool = False
    expert_skew: float = 1.0
    host_s: float = 5e-6
    eager_moved: float = 2.77
    slowest: float = 1.0

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation element."""
        return ELEMENT_BYTES[self.precision]


class Beside(NamedTuple):
    """Compute of an op that can overlap with tensor-parallel communication, in seconds.

    Attributes:
        join: time of the products that consume the all-gathered tensor.
        sum: time of the product whose result is reduce-scattered.
        add: additional time to sum the received parts.
    """

    join: float = 0.0
    sum: float = 0.0
    add: float = 0.0

    def scaled(self, factor: float) -> "Beside":
        """Return the times with `join` and `sum` multiplied by a factor."""
        return Beside(self.join * factor, self.sum * factor, self.add)


@dataclass
class Op:
    """An op of a block: the work of one rank for a micro-batch. Times are in seconds.

    Attributes:
        name: display name.
        role: kind of op, which determines its communication.
        products: forward time of its matrix products.
        attention: forward time of its flash kernel.
        moved: forward time of its element-wise kernels.
        moved_again: part of `moved` that selective recomputation of unfused attention repeats.
        products_again: part of `products` that selective recomputation repeats.
        kernels: number of kernels that the host issues in the forward pass.
        kernels_again: number of kernels that selective recomputation issues again.
        exchanged_bytes: for experts, the bytes that one rank dispatches; for attention, the bytes of a rank's keys and
            values.
        beside: compute that can overlap with communication, in the forward and in the backward pass.
    """

    name: str
    role: Role
    products: float = 0.0
    attention: float = 0.0
    moved: float = 0.0
    moved_again: float = 0.0
    products_again: float = 0.0
    kernels: int = 0
    kernels_again: int = 0
    exchanged_bytes: int = 0
    beside: tuple[Beside, Beside] = (Beside(), Beside())


class OpTimes(NamedTuple):
    """Times of an op on one rank for one micro-batch, in seconds."""

    name: str
    role: Role
    forward: float
    backward: float
    recompute: float
    recompute_communicates: bool
    exchanged_bytes: int
    beside: tuple[Beside, Beside] = (Beside(), Beside())
    """Forward and backward."""


@dataclass(frozen=True)
class Costs:
    """Times of a model's ops on each rank of a mesh."""

    model: Architecture
    accelerator: Accelerator
    mesh: Mesh
    training: Training
    _seen: dict[object, tuple[OpTimes, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return self.training.micro_batch * self.training.seq // self.mesh.cp

    def embedding(self) -> tuple[OpTimes, ...]:
        """Return the ops before the first block."""
        op = Op("embed", "embedding", kernels=2)
        op.moved = self._moved(2 * len(self.model.before) * self.tokens * self.model.hidden)
        return (self._times(op, is_block=False),)

    def head(self) -> tuple[OpTimes, ...]:
        """Return the ops after the last block, the loss included."""
        op = Op("head", "head", kernels=6)
        logits = self.tokens * self.model.vocabulary / self.mesh.tp
        moved = COMPILED_HEAD_BYTES if self.training.compiled_loss else HEAD_BYTES
        op.moved = self._norms(self.model.after) + logits * moved / self.accelerator.moved_per_s
        precision = "bf16" if self.training.precision == "float8" else self.training.precision
        op.products = self._product(self.tokens, self.model.vocabulary / self.mesh.tp, self.model.hidden, precision)
        return (self._times(op, is_block=False),)

    def block(self, block: Block) -> tuple[OpTimes, ...]:
        """Return the ops of a block: attention, and the part after it."""
        key = kind_of(block)
        if key not in self._seen:
            at = 1 + next(index for index, module in enumerate(block.modules) if module.name == block.output)
            again = products(block)[1::2] if self.training.attention == "flash" else ()
            attention = self._attention(block.modules[:at], block.attention, again)
            self._seen[key] = (attention, self._fed(block.modules[at:], again))
        return self._seen[key]

    def optimizer(self, parameters: int) -> float:
        """Return the time in seconds of an optimizer step over `parameters` parameters."""
        return parameters * ADAM_BYTES / self.accelerator.moved_per_s * self.training.slowest

    def _attention(self, modules: Sequence[Module], core: Attention, again: Sequence[Module]) -> OpTimes:
        training, mesh, width = self.training, self.mesh, core.heads * core.key_size / self.mesh.tp
        op = Op("attn", "attention", beside=self._beside(modules))
        self._products(op, modules, again)
        keys = max(core.kv_heads, mesh.tp) / mesh.tp * (core.key_size + core.value_size)
        # Kernels of the norms, the rotary embedding or the split of queries and keys, and the residual addition.
        op.moved = self._norms(modules) + self._moved(self.tokens * 2 * (width + keys)) + self._residual()
        op.kernels += 6
        op.exchanged_bytes = round(self.tokens * keys * training.element_bytes)
        flops = training.micro_batch * core.flops(training.seq) / (mesh.tp * mesh.cp)
        if training.attention == "flash":
            op.attention = (
                flops * causal(core, training.seq) / self.accelerator.reached_by_attention(training.precision)
            )
            op.kernels += 1
        else:
            scores = training.micro_batch * core.heads * training.seq**2 / (mesh.tp * mesh.cp)
            op.products_again = flops / self.accelerator.reached(training.precision) * self._slower(core.key_size)
            op.moved_again = scores * UNFUSED_PASSES * training.element_bytes / self.accelerator.moved_per_s
            op.products += op.products_again
            op.moved += op.moved_again
            op.kernels_again = UNFUSED_KERNELS
            op.kernels += UNFUSED_KERNELS
        return self._times(op)

    def _fed(self, modules: Sequence[Module], again: Sequence[Module]) -> OpTimes:
        """Return the op after attention: an MLP, or experts with their router and shared experts."""
        is_sparse = any(module.experts > 1 for module in modules)
        op = Op("experts", "experts") if is_sparse else Op("mlp", "mlp", beside=self._beside(modules))
        self._products(op, modules, again)
        op.moved = self._norms(modules) + self._residual()
        op.kernels += 4
        for module in modules:
            if module.split == "rows":
                above = [one for one in modules if one.split == "columns" and one.active == module.active]
                read = sum(one.outputs for one in above if one.outputs in (module.inputs, 2 * module.inputs))
                op.moved += self._moved(self.tokens * self._active(module) * (read + module.inputs) / self.mesh.tp)
        if is_sparse:
            active = max(module.active for module in modules)
            whole = self.training.expert_skew * self.tokens * active * self.model.hidden
            op.exchanged_bytes = round(self._outside(whole) * self.training.element_bytes)
            op.moved += self._moved(self._outside(4 * whole))  # permutation by expert, and its inverse
            op.kernels += 4
        return self._times(op)

    def _products(self, op: Op, modules: Iterable[Module], again: Sequence[Module] = ()) -> None:
        tp = self.mesh.tp
        for module in modules:
            for shape in module.shapes:
                if len(shape) < 2:
                    continue
                rows, depth = (float(size) for size in shape)
                rows /= tp if module.split == "columns" else 1
                depth /= tp if module.split == "rows" else 1
                copies = module.experts // self.mesh.experts if module.experts > 1 else 1
                tokens = self.tokens * self._active(module) / copies
                product = copies * self._product(tokens, rows, depth, self.training.precision)
                op.products += product
                op.products_again += product if module in again else 0.0
                op.kernels += 1
                if self.training.precision == "float8":
                    op.moved += copies * tokens * depth * FLOAT8_BYTES / self.accelerator.moved_per_s
                    op.kernels += 2

    def _active(self, module: Module) -> float:
        """Return the number of a module's experts that a token passes through, times the skew; 1 without experts."""
        return module.active * self.training.expert_skew if module.experts > 1 else 1

    def _beside(self, modules: Sequence[Module]) -> tuple[Beside, Beside]:
        """Return the compute that asynchronous tensor parallelism can overlap with communication, as in PyTorch.

        An all-gather overlaps with all products that consume its result, a reduce-scatter with the one product that
        produces its input. In the backward pass of several matrices with one input (such as queries, keys and values),
        the reduce-scattered tensor is a sum of several products, which PyTorch does not split
        (torch/_inductor/fx_passes/micro_pipeline_tp.py, fuse_matmul_reduce_scatter).
        """
        entered = [one for one in modules if one.split == "columns" and one.inputs == self.model.hidden]
        left = [one for one in modules if one.split == "rows"]
        entering, leaving = (self._products_of(group) for group in (entered, left))
        summed = self.tokens * self.model.hidden * (1 + 1 / self.mesh.tp)
        add = summed * self.training.element_bytes / self.accelerator.moved_per_s
        is_cut = len(entered) == 1
        backward = Beside(leaving, entering if is_cut else 0.0, add if is_cut else 0.0)
        return Beside(entering, leaving, add), backward

    def _products_of(self, modules: Iterable[Module]) -> float:
        alone = Op("products", "other")
        self._products(alone, modules)
        return alone.products

    def _product(self, tokens: float, rows: float, depth: float, precision: str) -> float:
        flops = 2.0 * tokens * rows * depth
        moved = ELEMENT_BYTES[precision] * (tokens * rows + rows * depth + tokens * depth)
        compute = flops / self.accelerator.reached(precision) * self._slower(depth)
        return max(compute, moved / self.accelerator.moved_per_s)

    def _slower(self, depth: float) -> float:
        """Return the slowdown of a product with this inner dimension: filling and draining a tile has a fixed cost."""
        return 1 + self.accelerator.half_size / depth

    def _outside(self, elements: float) -> float:
        """Return the elements per rank of a tensor outside matrix products; only sequence parallelism divides it."""
        return elements / self.mesh.tp if self.training.sequence_parallel else elements

    def _norms(self, modules: Iterable[Module]) -> float:
        wide = sum(module.inputs for module in modules if all(len(shape) == 1 for shape in module.shapes))
        return self._moved(self._outside(2 * self.tokens * wide))

    def _residual(self) -> float:
        """Return the time of a residual addition: two reads, one write, and an 8-bit mask if there is dropout."""
        return self._moved(self._outside((3.5 if self.training.dropout else 3) * self.tokens * self.model.hidden))

    def _moved(self, elements: float) -> float:
        eager = 1.0 if self.training.compiled else self.training.eager_moved
        return eager * elements * self.training.element_bytes / self.accelerator.moved_per_s

    def _times(self, op: Op, *, is_block: bool = True) -> OpTimes:
        host = self.training.host_s
        forward = max(op.products + op.attention + op.moved, op.kernels * host)
        backward = BACKWARD_PRODUCTS * op.products + FLASH_BACKWARD * op.attention + BACKWARD_MOVED * op.moved
        backward = max(backward, BACKWARD_PRODUCTS * op.kernels * host)
        recompute = 0.0
        if is_block and self.training.recompute == "full":
            recompute = forward
        elif is_block and self.training.recompute == "selective":
            if self.training.attention == "unfused":
                recompute = max(op.products_again + op.moved_again, op.kernels_again * host)
            else:
                recompute = max(op.products_again + op.moved, op.kernels * host)
        is_whole = is_block and self.training.recompute == "full"
        slow = self.training.slowest
        beside = (op.beside[0].scaled(slow), op.beside[1].scaled(slow))
        return OpTimes(
            op.name, op.role, slow * forward, slow * backward, slow * recompute, is_whole, op.exchanged_bytes, beside
        )


def slowest_of(nodes: int, scaling_loss: float) -> float:
    """Return the straggler factor on compute times for a number of nodes."""
    return 1 + scaling_loss * log2(nodes)


def causal(core: Attention, tokens: int) -> float:
    """Return the share of query-key pairs that a causal mask keeps."""
    seen = tokens if core.window is None else min(tokens, core.window)
    return 1 - seen / (2 * tokens)


def products(block: Block) -> list[Module]:
    """Return the modules of a block that compute matrix products, in the order in which they run."""
    return [module for module in block.modules if any(len(shape) > 1 for shape in module.shapes)]


def kind_of(block: Block) -> object:
    """Return a key that is equal for two blocks if only the names of their modules differ."""
    return (block.attention, tuple(module._replace(name="") for module in block.modules))
