"""Records the ops of one forward and backward pass, and groups them into layers with parameters, FLOPs and bytes.

A layer begins where the forward pass first uses the parameters of another module, after which it is named. It contains
all ops until the next layer begins. The forward pass of a simulation therefore waits for a parameter where training
would, even if the code uses functions instead of modules. A shared parameter belongs to the layer that uses it first,
where the forward pass waits for it and the backward pass completes its gradient.

Under `FakeTensorMode`, tensors have only shapes, and nothing is allocated or computed. Other modules compute times.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gradtide.errors import ProfileError
from gradtide.presets import LayerPreset
from gradtide.profiling.target import words_of
from gradtide.roofline import BACKWARD_PER_FORWARD, STORED_BYTES_PER_ELEMENT

if TYPE_CHECKING:
    import torch

Call = tuple[str, int]
"""A call of a module's forward: the name of the module, and how often it was called before in this pass."""


@dataclass
class Counted:
    """One layer, counted for the whole mini-batch.

    Attributes:
        name: module that owns its parameters, or its first parameter if an earlier layer has the module's name.
        call: innermost module call in which the layer begins.
        call_index: index of `call` among the calls of all modules in this pass.
        parameters: names of parameters in order of first use; `elements` is their total number of elements.
        gradient_bytes: bytes of the parameters that get a gradient.
        forward_flops, backward_flops: FLOPs of convolutions and matrix products.
        winograd_flops: the part of `forward_flops` in 3x3 convolutions of stride 1.
        activations: number of elements, other than parameters, in the inputs and outputs of ops that use a parameter.
        has_backward: whether an op of the backward pass belongs to the layer.
    """

    name: str
    module: str
    call: Call
    call_index: int
    parameters: list[str] = field(default_factory=list)
    gradient_bytes: int = 0
    elements: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    winograd_flops: int = 0
    activations: int = 0
    has_backward: bool = False

    def forward_counts(self) -> LayerPreset:
        """Return the forward pass's counts for the roofline; the whole mini-batch counts as one sample."""
        is_winograd = 0 < self.winograd_flops == self.forward_flops
        stored = STORED_BYTES_PER_ELEMENT
        return LayerPreset(
            self.name, stored * self.elements, self.forward_flops, stored * self.activations, is_winograd
        )

    def backward_counts(self) -> LayerPreset:
        """Return the backward pass's counts: its FLOPs, and the forward pass's bytes `BACKWARD_PER_FORWARD` times."""
        forward, times = self.forward_counts(), BACKWARD_PER_FORWARD * self.has_backward
        return LayerPreset(
            self.name,
            times * forward.parameter_bytes,
            self.backward_flops,
            times * forward.activation_bytes,
            forward.winograd,
        )


class Counts(NamedTuple):
    """Result of `count`: layers in order of first use; the other fields are those of `ModelProfile`."""

    layers: list[Counted]
    tensors: int
    unused: tuple[str, ...]
    frozen: tuple[str, ...]
    shared: tuple[str, ...]


class Walk:
    """Assigns ops to layers as they run."""

    def __init__(self, parameters: Mapping[str, "torch.Tensor"], buffers: Sequence["torch.Tensor"]) -> None:
        self.layers: list[Counted] = []
        self.calls: list[tuple[Call, int]] = []  # stack: the innermost call is last
        self._call_count = 0
        self._calls_of: dict[str, int] = {}
        self._seen: set[str] = set()
        self._layer_of_node: dict[int, Counted] = {}
        self._before_first = 0
        # Tensors that depend only on parameters, by id: parameters, their views and casts, with the names of the
        # parameters. The tensors are referenced so that their ids are not reused.
        self._made_of = {id(tensor): (tensor, {name}) for name, tensor in parameters.items()}
        self._made_of.update((id(tensor), (tensor, set())) for tensor in buffers)
        self._sizes = {name: tensor.numel() for name, tensor in parameters.items()}
        self._place = {name: place for place, name in enumerate(parameters)}

    def enter(self, module: str, *_: Any) -> None:
        """Record the start of a module's forward."""
        count = self._calls_of.get(module, 0)
        self._calls_of[module] = count + 1
        self.calls.append(((module, count), self._call_count))
        self._call_count += 1

    def leave(self, *_: Any) -> None:
        """Record the end of the innermost module's forward."""
        self.calls.pop()

    def forward_op(self, op: "Op", node: int) -> None:
        """Record an op of the forward pass; `node` is the sequence number of its autograd node."""
        used: set[str] = set()
        activations = []
        for tensor in op.inputs:
            known = self._made_of.get(id(tensor))
            if known is None:
                activations.append(tensor)
            else:
                used |= known[1]
        if op.inputs and not activations:
            for tensor in op.outputs:
                self._made_of[id(tensor)] = (tensor, used)
            if op.is_view:
                return
        if not used <= self._seen:
            for name in sorted(used - self._seen, key=self._place.__getitem__):
                self._begin(name)
        if self.layers:
            layer = self.layers[-1]
            self._layer_of_node.setdefault(node, layer)
            layer.forward_flops += op.flops + self._before_first
            self._before_first = 0
            layer.winograd_flops += op.flops if op.is_winograd else 0
            if used and activations:
                layer.activations += sum(tensor.numel() for tensor in activations)
                layer.activations += op.outputs[0].numel() if op.outputs else 0
        else:
            self._before_first += op.flops

    def backward_op(self, op: "Op", node: int) -> None:
        """Record an op of the backward pass, run by the autograd node `node`."""
        layer = self._layer_of_node.get(node)
        if layer is not None:
            layer.backward_flops += op.flops
            layer.has_backward = True

    def _begin(self, parameter: str) -> None:
        self._seen.add(parameter)
        owner = parameter.rpartition(".")[0]
        if not self.layers or self.layers[-1].module != owner:
            is_first = all(layer.module != owner for layer in self.layers)
            name = owner if owner and is_first else parameter
            call, index = self.calls[-1] if self.calls else (("", 0), 0)
            self.layers.append(Counted(name, owner, call, index))
        layer = self.layers[-1]
        layer.parameters.append(parameter)
        layer.elements += self._sizes[parameter]


class Op(NamedTuple):
    """One call of an ATen op."""

    inputs: "list[torch.Tensor]"
    outputs: "list[torch.Tensor]"
    flops: int
    is_view: bool
    is_winograd: bool


def count(model: "torch.nn.Module", args: Sequence[Any], kwargs: Mapping[str, Any], *, fake: bool) -> Counts:
    """Count one forward and backward pass of a model in training mode; the model is restored afterwards.

    With `fake`, tensors have only shapes; otherwise the pass is computed on the model's device.
    """
    import torch

    with stage(model, args, kwargs, fake=fake) as staged:
        walk = Walk(staged.parameters, list(staged.buffers.values()))
        wanted = {name: p for name, p in staged.parameters.items() if p.requires_grad}
        with _module_calls(model, walk), _recorder(walk):
            loss = loss_of(staged.forward(staged.parameters, staged.inputs))
        if loss is None:
            raise ProfileError(
                f"{type(model).__name__} trains nothing: no output depends on a parameter with requires_grad"
            )
        with as_profile_error("backward pass"), _recorder(walk):
            gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    got = {name for name, gradient in zip(wanted, gradients, strict=True) if gradient is not None}
    for layer in walk.layers:
        layer.gradient_bytes = sum(staged.parameters[name].nbytes for name in layer.parameters if name in got)
    first: dict[int, str] = {}
    return Counts(
        walk.layers,
        len(got),
        tuple(name for name in wanted if name not in got),
        tuple(name for name in staged.parameters if name not in wanted),
        tuple(
            f"{first[id(parameter)]} = {name}"
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if first.setdefault(id(parameter), name) != name
        ),
    )


class Staged(NamedTuple):
    """A model prepared for a pass: parameters and buffers by name, input tensors, and forward(parameters, inputs)."""

    parameters: "dict[str, torch.Tensor]"
    buffers: "dict[str, torch.Tensor]"
    inputs: "list[torch.Tensor]"
    forward: "Callable[[dict[str, torch.Tensor], Sequence[torch.Tensor]], Any]"


@contextmanager
def stage(model: "torch.nn.Module", args: Sequence[Any], kwargs: Mapping[str, Any], *, fake: bool) -> Iterator[Staged]:
    """Prepare a model in training mode, with copies of its buffers or with fake tensors; restore it afterwards."""
    import torch
    from torch.func import functional_call
    from torch.nn.parameter import is_lazy
    from torch.utils._pytree import tree_flatten, tree_unflatten

    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ProfileError(f"{type(model).__name__} has parameters without a shape (lazy modules): call it once first")
    if not any(True for _ in model.parameters()):
        raise ProfileError(f"{type(model).__name__} has no parameters: there is nothing to train and nothing to send")
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    buffers: dict[str, torch.Tensor] = dict(model.named_buffers())
    with _fake_mode() if fake else torch.random.fork_rng():
        if fake:
            parameters = {name: _hollow(p).requires_grad_(p.requires_grad) for name, p in parameters.items()}
            buffers = {name: _hollow(b) for name, b in buffers.items()}
        else:
            buffers = {name: b.clone() for name, b in buffers.items()}
        leaves, shape = tree_flatten((tuple(args), dict(kwargs)))
        is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        inputs = [_hollow(leaf) if fake else leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def forward(given: "dict[str, torch.Tensor]", tensors: "Sequence[torch.Tensor]") -> Any:
            rest = iter(tensors)
            filled = [next(rest) if yes else leaf for yes, leaf in zip(is_tensor, leaves, strict=True)]
            positional, named = tree_unflatten(filled, shape)
            with as_profile_error("forward pass"):
                return functional_call(model, {**given, **buffers}, positional, named)

        with training_mode(model):
            yield Staged(parameters, buffers, inputs, forward)


@contextmanager
def training_mode(model: "torch.nn.Module") -> Iterator[None]:
    """Set training mode during the block; restore the mode of each module afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.train()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def loss_of(output: Any) -> "torch.Tensor | None":
    """Return the tensor from which backward starts: the output's `loss` if it has one, else the sum of all elements.

    Every output takes part in training if the sum is used. Returns `None` if no output requires a gradient.
    """
    import torch

    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss.sum()
    leaves = [leaf for leaf in _tensors(output) if leaf.requires_grad]
    return None if not leaves else sum((leaf.sum() for leaf in leaves[1:]), start=leaves[0].sum())


def output_of(output: Any, loss: "torch.Tensor") -> "torch.Tensor":
    """Return the result of inference: the output's `logits`, or the output if it is one tensor.

    For other outputs, return the loss, because it depends on all of them.
    """
    import torch

    logits = getattr(output, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    leaves = _tensors(output)
    return leaves[0] if len(leaves) == 1 else loss


def _tensors(tree: Any) -> "list[torch.Tensor]":
    """Return the tensors in nested tuples, lists, dicts and dataclasses; other objects are skipped."""
    import dataclasses

    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = [getattr(tree, part.name) for part in dataclasses.fields(tree)]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in _tensors(part)]
    return []


@contextmanager
def _module_calls(model: "torch.nn.Module", walk: Walk) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(walk.enter, name)))
            hooks.enter_context(module.register_forward_hook(walk.leave, always_call=True))
        yield


def _recorder(walk: Walk) -> Any:
    return _recorder_class()(walk)


@cache
def _recorder_class() -> Any:
    """Return the class of the recorder. It is created only once.

    Classes have reference cycles, so one class per walk would keep the walk's tensors until a garbage collection.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, walk: Walk) -> None:
            super().__init__()
            self.walk = walk

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func.namespace == "prim":  # reads an attribute of a tensor
                return out
            op = op_of(func, args, kwargs or {}, out)
            node = torch._C._current_autograd_node()
            if node is not None:
                self.walk.backward_op(op, node._sequence_nr())
            elif self.walk.calls:
                # autograd numbers the node of an op before the op is dispatched; torch.fx relies on this as well.
                self.walk.forward_op(op, torch.autograd._get_sequence_nr() - 1)
            return out

    return Recorder


def op_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Op:
    """Return the record of a call of an ATen op."""
    import torch
    from torch.utils._pytree import tree_leaves

    formula, is_winograd = _flops_of(func.overloadpacket), False
    if func.overloadpacket is torch.ops.aten.convolution:
        is_winograd = _is_winograd(args[1], args[3], args[5], args[6], args[8])
    elif func.overloadpacket is torch.ops.aten.convolution_backward:
        is_winograd = _is_winograd(args[2], args[4], args[6], args[7], args[9])
        formula = _convolution_backward_flops
    return Op(
        [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)],
        [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)],
        0 if formula is None else int(formula(*args, **kwargs, out_val=out)),
        bool(func.is_view),
        is_winograd,
    )


def _flops_of(op: Any) -> Any:
    """Return torch's formula for the FLOPs of an op; `None` if torch counts none.

    Fake passes run on the CPU. CPU variants of attention, for which some versions of torch have no formula, use that of
    the device-independent op.
    """
    import torch
    from torch.utils.flop_counter import flop_registry

    everywhere = getattr(torch.ops.aten, op.__name__.replace("_for_cpu", ""), None)
    return flop_registry.get(op) or flop_registry.get(everywhere)


def _convolution_backward_flops(gradient: Any, x: Any, weight: Any, *rest: Any, out_val: Any) -> int:
    """Return the forward pass's FLOPs for each requested gradient, i.e. of the input and of the weight.

    torch.utils.flop_counter differs for grouped convolutions: it counts the weight's gradient as if there were a single
    group.
    """
    transposed, mask = rest[4], rest[7]
    product = 2 * (x if transposed else gradient).numel() * math.prod(weight.shape[1:])
    return int(product * (mask[0] + mask[1]))


def _is_winograd(weight: Any, stride: Any, dilation: Any, transposed: bool, groups: int) -> bool:
    """Return whether libraries may compute a convolution by Winograd's algorithm: 3x3, stride 1, one group."""
    is_plain = math.prod(stride) == math.prod(dilation) == groups == 1 and not transposed
    return is_plain and tuple(weight.shape[2:]) == (3, 3)


@contextmanager
def _fake_mode() -> Iterator[None]:
    """Make all new tensors fake, i.e. without values. Tensors that a module has not registered stay real."""
    import logging

    from torch._subclasses.fake_tensor import FakeTensorMode

    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)  # torch would log tracebacks
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.setLevel(level)


def _hollow(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return an uninitialised tensor of the same shape and dtype; in the callers' fake mode, it is fake."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


@contextmanager
def as_profile_error(what: str) -> Iterator[None]:
    """Convert an exception of the user's model into a `ProfileError` that quotes it."""
    try:
        yield
    except ProfileError:
        raise
    except Exception as error:
        raise ProfileError(_words_of_fault(what, error)) from error


def _words_of_fault(what: str, error: Exception) -> str:
    if is_out_of_memory(error):
        return f"the {what} does not fit in memory: {words_of(error)}; take a smaller mini-batch"
    needs_values = ("DataDependent", "DynamicOutputShape", "GuardOnDataDependent")
    if type(error).__name__.startswith(needs_values) or "data-dependent" in str(error):
        return (
            f"the {what} reads the values of a tensor, which a pass over shapes or a graph of ops does not have: "
            f'{words_of(error)}; measure its layers instead (device "measure")'
        )
    hint = ""
    if "more than 1 value per channel" in str(error):
        hint = "; a batch norm needs a mini-batch of at least 2"
    elif isinstance(error, TypeError):
        hint = "; name inputs as forward does, as in input_ids=8x128:int64"
    elif isinstance(error, (RuntimeError, IndexError)):
        hint = "; are the inputs of the shape and dtype that it takes?"
    return f"the {what} of the model raises {words_of(error)}{hint}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that torch ran out of memory, on an accelerator or on the host."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "allocate" in str(error) and "memory" in str(error)
    )
