"""Training without a barrier between iterations: a layer waits for its gradients when the next forward pass uses it.

    backward      each parameter's hook copies gradient / N into its bucket's tensor; full buckets go to the sender
    step()        records the learning rates, but updates no parameter
    next forward  each module's hook waits for the buckets that the module uses, and steps the user's optimizer on them

The first forward pass records in which module's call each bucket is needed: that of the innermost module in which one
of its parameters is first used, as in `profiling.walk`. This covers shared parameters, and parameters that a parent
module uses without calling their own module. Any earlier use of a parameter triggers its update (`deferred`).

As in DistributedDataParallel, gradients are multiplied by 1/N and all-reduced, and then the optimizer steps.
"""

import copy
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradtide.errors import TrainingError
from gradtide.torch.deferred import Deferral, is_held
from gradtide.torch.groups import Group, several
from gradtide.torch.sender import Sender, Transfer

USE_PRIORITY = "use level priority: wrap(..., level='priority')"

IN_FLIGHT = (
    "at level crossiter gradients are summed while the next forward pass runs. Clipping by norm, GradScaler, "
    "accumulation over several backward passes and code that reads .grad need level priority: "
    "wrap(..., level='priority')"
)


class InFlight(torch.Tensor):  # type: ignore[misc]
    """Placeholder in `.grad` while a gradient is being reduced. It has shape, dtype and device, but no values.

    Code that reads the values (clipping, a GradScaler, a print, a second backward pass) gets an error that says what to
    do. Otherwise it would silently read the local gradient instead of the sum over all ranks.
    """

    __slots__ = ("name", "why")

    @staticmethod
    def __new__(cls, parameter: "torch.Tensor", name: str, why: str) -> "InFlight":
        """Return the placeholder of a parameter's gradient; `why` ends the error message of each access."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, parameter.size(), strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        self.name, self.why = name, why
        return self  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise `TrainingError` for every op but detach."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        one = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, InFlight))
        raise TrainingError(f"the gradient of {one.name!r} is on its way and cannot be read ({func}): {one.why}")

    def __repr__(self) -> str:
        return f"InFlight({self.name!r})"


class Bucket:
    """Parameters whose gradients are all-reduced as one tensor, and which are updated together.

    Attributes:
        key, rank: id of the bucket's transfer, and send priority.
        opens_in, opener: event that releases the bucket for sending, as in `Group.opener`.
        closed_by: ids of the parameters in `opener` whose gradient is not ready yet.
        unread: placeholders that are stored in `.grad` of the parameters.
        arrived: indices of the parameters whose gradient of this iteration is ready.
        ready: device events after which these gradients are computed.
        transfer: the all-reduce of the bucket, once it has been submitted to the sender.
        due: whether `step` was called, but has not updated the bucket's parameters yet.
        optimizer: copy of the user's optimizer with only the bucket's parameters.
    """

    def __init__(
        self, key: int, rank: int, members: "Sequence[tuple[str, torch.nn.Parameter]]", opener: "tuple[str, Any] | None"
    ) -> None:
        self.key, self.rank = key, rank
        nothing: tuple[str, Any] = ("", None)
        self.opens_in, self.opener = opener or nothing
        self.closed_by: set[int] = set()
        self.is_open = True
        self.names, self.parameters = zip(*members, strict=True)
        first = self.parameters[0]
        self.tensor = torch.zeros(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
        parts = self.tensor.split([p.numel() for p in self.parameters])
        # As in DDP, each view has the strides of its parameter, on which fused optimizers rely.
        orders = [torch.empty_like(p, device="meta").stride() for p in self.parameters]
        self.views = [
            part.as_strided(p.shape, order) for part, p, order in zip(parts, self.parameters, orders, strict=True)
        ]
        self.unread = [InFlight(p, name, IN_FLIGHT) for name, p in members]
        self.arrived: set[int] = set()
        self.ready: list[Any] = []
        self.transfer: Transfer | None = None
        self.due = False
        self.optimizer: Any = None


def buckets_of(groups: Sequence[Group]) -> list[Bucket]:
    """Return a bucket for each group of parameters, or one per dtype and device if a group has several."""
    buckets: list[Bucket] = []
    for group in groups:
        kinds: dict[Any, list[tuple[str, torch.nn.Parameter]]] = {}
        for name, parameter in zip(group.names, group.parameters, strict=True):
            kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
        for members in kinds.values():
            buckets.append(Bucket(len(buckets), group.rank, members, group.opener))
    return buckets


class CrossIteration:
    """Hooks of level crossiter on a bare module and its optimizer; `close` removes them.

    `groups` are the plan's buckets, `size` is the number of ranks. The optimizer must be one of torch.optim that
    updates each parameter independently.
    """

    def __init__(
        self, module: "torch.nn.Module", optimizer: "torch.optim.Optimizer", groups: Sequence[Group], *, size: int
    ) -> None:
        self.flushes = self.released = 0  # released: transfers that their release event started
        self._module, self._optimizer, self._scale = module, optimizer, 1.0 / size
        self._sender: Sender
        self._buckets = buckets_of(groups)
        self._step = _DeferredStep(self, optimizer)
        self._opened_by: dict[int, list[Bucket]] = {}  # buckets whose release needs this gradient
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
        self._deferral = Deferral(self._touched)
        self._updating = RLock()
        self._is_counted = False  # a flush, since the last step
        self._watched = False
        self._handles: list[Any] = []

    def start(self, sender: Sender) -> None:
        """Install the hooks."""
        self._sender = sender
        for bucket in self._buckets:
            for place, parameter in enumerate(bucket.parameters):
                hook = functools.partial(self._arrived, bucket, place)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            if bucket.opens_in == "backward":
                for parameter in bucket.opener:
                    self._opened_by.setdefault(id(parameter), []).append(bucket)
            self._empty(bucket)
        self._step.put_on()

    def close(self) -> None:
        """Remove the hooks and release all tensors. Without a `flush` before, pending updates are lost."""
        for handle in self._handles:
            handle.remove()
        self._step.take_off()
        for bucket in self._buckets:
            for parameter, unread in zip(bucket.parameters, bucket.unread, strict=True):
                self._deferral.end(parameter)
                if parameter.grad is unread:
                    parameter.grad = None
        self._deferral.close()
        vars(self).clear()  # learning rate schedulers may reference `self`

    def restore_gradients(self) -> None:
        """Store the reduced gradients in `.grad`, as DDP does, unless a gradient is missing or a step is pending."""
        if any(len(bucket.arrived) < len(bucket.parameters) or bucket.due for bucket in self._buckets):
            return
        for bucket in self._buckets:
            self._sender.wait(self._sent(bucket))
            for parameter, unread, view in zip(bucket.parameters, bucket.unread, bucket.views, strict=True):
                if parameter.grad is unread:
                    parameter.grad = view

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Return the context of a forward pass. The first training pass records which module uses each parameter."""
        if self._watched or not torch.is_grad_enabled():
            yield
            return
        uses = _Uses(self._module, self._bucket_of)
        with uses:
            yield
        for parent in _seen_modules(self._module):
            for module in filter(_is_opaque, parent.children()):
                where = parent if isinstance(module, torch.jit.ScriptModule) else module  # TorchScript has no hooks
                uses.first.update((id(parameter), where) for parameter in module.parameters())
        waits: dict[torch.nn.Module, list[Bucket]] = {}
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                module = uses.first.get(id(parameter), self._module)
                if bucket not in waits.setdefault(module, []):
                    waits[module].append(bucket)
        for module, buckets in waits.items():
            hook = functools.partial(self._before_use, tuple(buckets))
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True))
        # These hooks are prepended last, so in each call they run before the hooks that wait for gradients.
        for bucket in self._buckets:
            if bucket.opens_in == "forward":
                call = functools.partial(self._called, bucket)
                self._handles.append(bucket.opener.register_forward_pre_hook(call, prepend=True))
        self._watched = True

    @property
    def tensors(self) -> "list[torch.Tensor]":
        """The tensors that each iteration all-reduces, one per bucket."""
        return [bucket.tensor for bucket in self._buckets]

    def flush(self, *, by_user: bool = False, by_all: bool = False) -> None:
        """Wait for the gradients of all pending steps, and update the parameters.

        `by_user` means that the user's code needs the weights; such calls are counted in `flushes`. `by_all` means that
        all ranks call this function at the same point.
        """
        for bucket in self._buckets:
            if bucket.due and by_user:
                self._count_flush()
            self._update(bucket, by_all=by_all)

    def __deepcopy__(self, memo: Any) -> Any:
        """Raise `TrainingError`, because a copy would share the hooks of the original."""
        raise TrainingError(
            "a wrapped model cannot be copied: copy it before wrap, or load its state_dict into another"
        )

    # In the backward pass

    def _arrived(self, bucket: Bucket, place: int, parameter: "torch.nn.Parameter") -> None:
        if bucket.due:
            raise TrainingError(
                f"{bucket.names[place]!r} was used in this forward pass in a way that gradtide cannot see, so with the "
                f"value of the last iteration: {USE_PRIORITY}"
            )
        if not self._watched:
            raise TrainingError("call the module that wrap returned, not the one inside it")
        if bucket.transfer is not None:  # no step applied the last gradient
            self._sender.wait(bucket.transfer)
            self._empty(bucket)
        gradient = parameter.grad
        if gradient.layout is not torch.strided:
            raise TrainingError(f"the gradient of {bucket.names[place]!r} is sparse: {USE_PRIORITY}")
        with torch.no_grad():
            torch.mul(gradient, self._scale, out=bucket.views[place])
        parameter.grad = bucket.unread[place]
        bucket.arrived.add(place)
        bucket.ready.append(self._sender.streams.ready())
        for released in self._opened_by.get(id(parameter), ()):
            released.closed_by.discard(id(parameter))
            released.is_open = not released.closed_by
            self._send_if_open(released)
        self._send_if_open(bucket)

    def _send_if_open(self, bucket: Bucket) -> None:
        if bucket.is_open and len(bucket.arrived) == len(bucket.parameters):
            self._at_release(bucket)

    def _at_release(self, bucket: Bucket) -> None:
        self.released += bool(bucket.opens_in) and bucket.transfer is None
        self._sent(bucket)

    def _sent(self, bucket: Bucket) -> Transfer:
        """Submit a bucket to the sender, unless it is already submitted."""
        if bucket.transfer is None:
            bucket.transfer = self._sender.submit(bucket.key, bucket.rank, bucket.tensor, bucket.ready)
        return bucket.transfer

    # In the optimizer

    def bind(self) -> None:
        """Record a step of the optimizer, which is applied to each bucket when its parameters are needed."""
        places = [(bucket, place) for bucket in self._buckets for place in range(len(bucket.names))]
        there = [bucket.parameters[place].grad is bucket.unread[place] for bucket, place in places]
        if not any(there):  # no gradients, no update
            return
        lacking = [bucket.names[place] for (bucket, place), is_there in zip(places, there, strict=True) if not is_there]
        if lacking:
            raise TrainingError(
                f"no gradient for {several(lacking)} in this iteration: level crossiter needs one for every parameter. "
                "Freeze unused parameters (requires_grad_(False)) before wrap, or use level none with "
                "find_unused_parameters"
            )
        if any(bucket.due or len(bucket.arrived) < len(bucket.parameters) for bucket in self._buckets):
            raise TrainingError("step() was called twice for one backward pass")
        if any(parameter.requires_grad for parameter in self._frozen):
            raise TrainingError("a parameter that was frozen when wrap was called is trained now: wrap again")
        self._step.bind(self._buckets)
        self._is_counted = False
        for bucket in self._buckets:
            bucket.due, held = True, any(is_held(parameter) for parameter in bucket.parameters)
            for parameter in bucket.parameters:
                self._deferral.put_off(parameter)
            if held:
                self._count_flush()
                self._update(bucket)

    def drop(self) -> None:
        """Discard gradients that are not yet submitted to the sender, because the user has set `.grad` to None."""
        for bucket in self._buckets:
            if bucket.transfer is None and not bucket.due:
                self._empty(bucket)

    # In the next forward pass

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _before_use(self, buckets: tuple[Bucket, ...], module: "torch.nn.Module", args: Any) -> None:
        for bucket in buckets:
            self._update(bucket, by_all=self._trains())

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _called(self, bucket: Bucket, module: "torch.nn.Module", args: Any) -> None:
        if bucket.due and (self._trains() or not self._sender.is_fixed):
            self._at_release(bucket)

    def _trains(self) -> bool:
        """Return whether the present forward pass is a training pass, which all ranks perform."""
        return bool(self._module.training and torch.is_grad_enabled())

    def _touched(self, parameter: "torch.nn.Parameter") -> None:
        self._count_flush()
        self._update(self._bucket_of[id(parameter)])

    def _count_flush(self) -> None:
        self.flushes += not self._is_counted
        self._is_counted = True

    def _update(self, bucket: Bucket, *, by_all: bool = False) -> None:
        """Apply the pending step of a bucket. `by_all`: all ranks are assumed to do so at the same point."""
        with self._updating:
            if not bucket.due:  # another thread has applied it meanwhile
                return
            if bucket.transfer is None and self._sender.is_fixed and not by_all:
                raise TrainingError(
                    f"{several(list(bucket.names))} is read while the plan holds its gradient back, and the order of "
                    "sums is fixed here: call flush() of the model on every rank before"
                )
            self._sender.wait(self._sent(bucket))  # submits it if necessary
            for parameter in bucket.parameters:
                self._deferral.end(parameter)
            kept = [parameter.grad for parameter in bucket.parameters]
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view
            try:
                self._step.carry_out(bucket)
            finally:
                for parameter, gradient in zip(bucket.parameters, kept, strict=True):
                    parameter.grad = gradient
            self._empty(bucket)

    def _empty(self, bucket: Bucket) -> None:
        bucket.transfer, bucket.due, bucket.is_open = None, False, not bucket.opens_in
        bucket.arrived.clear()
        bucket.ready = []
        if bucket.opens_in == "backward":
            bucket.closed_by = {id(parameter) for parameter in bucket.opener}


def updates_by_element(optimizer: "torch.optim.Optimizer") -> bool:
    """Return whether the optimizer is one of torch.optim that updates each parameter independently."""
    kind = type(optimizer)
    return kind.step.__module__.startswith("torch.optim.") and kind.__name__ not in ("LBFGS", "SparseAdam")


class _DeferredStep:
    """Replaces `step` and `zero_grad` of the user's optimizer, and steps each bucket separately.

    Each bucket has a copy of the optimizer with only the bucket's parameters. All copies share the state of the
    original, so that its `state_dict` remains valid.
    """

    def __init__(self, owner: CrossIteration, optimizer: "torch.optim.Optimizer") -> None:
        self._owner, self._optimizer = owner, optimizer
        if not updates_by_element(optimizer):
            name = type(optimizer).__name__
            raise TrainingError(
                f"level crossiter updates a few parameters at a time, which {name} may not bear: it takes the "
                f"optimizers of torch.optim other than LBFGS and SparseAdam; {USE_PRIORITY}"
            )
        self._refuse_hooks()
        self._before: dict[str, Any] = {}
        self._handles: list[Any] = []
        self._groups: tuple[int, ...] = ()
        self._rest: Any = None
        self._is_on = False

    def put_on(self) -> None:
        own = vars(self._optimizer)
        self._before = {name: own[name] for name in ("step", "zero_grad") if name in own}
        # A learning rate scheduler marks `step` to count its calls, and warns if the mark is missing.
        is_counted = hasattr(self._optimizer.step, "_wrapped_by_lr_sched")

        def step(optimizer: Any, closure: Any = None) -> Any:
            if not self._is_on:  # still referenced by a learning rate scheduler
                return type(optimizer).step(optimizer, closure)
            if closure is not None:
                raise TrainingError(f"step(closure) cannot be put off: {USE_PRIORITY}")
            if is_counted:
                optimizer._opt_called = True
            self._owner.bind()

        def zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if isinstance(parameter.grad, InFlight):
                        parameter.grad = None
            if self._is_on:
                self._owner.drop()
            type(optimizer).zero_grad(optimizer, set_to_none)

        if is_counted:
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        own["step"] = types.MethodType(step, self._optimizer)
        own["zero_grad"] = types.MethodType(zero_grad, self._optimizer)
        flush = self._owner.flush
        self._handles = [
            self._optimizer.register_state_dict_pre_hook(lambda *_: flush(by_user=True)),
            self._optimizer.register_load_state_dict_pre_hook(lambda *_: flush(by_user=True)),
        ]
        self._is_on = True

    def take_off(self) -> None:
        self._is_on = False
        for handle in self._handles:
            handle.remove()
        own = vars(self._optimizer)
        for name in ("step", "zero_grad"):
            own.pop(name, None)
        own.update(self._before)
        self._rest = None

    def bind(self, buckets: Sequence[Bucket]) -> None:
        """Record the settings of all parameter groups; update parameters outside the buckets immediately."""
        self._refuse_hooks()
        groups = self._optimizer.param_groups
        sizes = tuple(len(group["params"]) for group in groups)
        if sizes != self._groups:
            self._groups = sizes
            place = {id(p): bucket for bucket in buckets for p in bucket.parameters}
            for bucket in buckets:
                bucket.optimizer = self._part([[p for p in g["params"] if place.get(id(p)) is bucket] for g in groups])
            self._rest = self._part([[p for p in group["params"] if id(p) not in place] for group in groups])
        said = [{key: _held(value) for key, value in group.items() if key not in _OF_MEMBERS} for group in groups]
        for part in [*(bucket.optimizer for bucket in buckets), self._rest]:
            for place_of, group in zip(part.places, part.param_groups, strict=True):
                group.update(said[place_of])
        if self._rest.param_groups:
            self._run(self._rest)

    def carry_out(self, bucket: Bucket) -> None:
        if bucket.optimizer.param_groups:
            self._run(bucket.optimizer)

    def _run(self, part: Any) -> None:
        part.state = self._optimizer.state  # load_state_dict may have replaced it
        with _as_outside(part):
            type(self._optimizer).step(part)

    def _part(self, members: "list[list[torch.nn.Parameter]]") -> Any:
        """Return a copy of the optimizer restricted to `members`, the parameters in each parameter group."""
        part = object.__new__(type(self._optimizer))
        vars(part).update(vars(self._optimizer))
        vars(part).pop("step", None)
        vars(part).pop("zero_grad", None)
        part.places = [place for place, parameters in enumerate(members) if parameters]
        part.param_groups = [{"params": members[place]} for place in part.places]
        part._optimizer_step_pre_hooks, part._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        return part

    def _refuse_hooks(self) -> None:
        if self._optimizer._optimizer_step_pre_hooks or self._optimizer._optimizer_step_post_hooks:
            raise TrainingError(f"the optimizer has hooks on step(), which is put off: {USE_PRIORITY}")


@contextmanager
def _as_outside(optimizer: Any) -> Iterator[None]:
    """Run the optimizer without modes of the caller, such as autocast, inference mode and a default device."""
    kinds = {parameter.device.type for group in optimizer.param_groups for parameter in group["params"]}
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_OF_MEMBERS = ("params", "param_names")


def _held(value: Any) -> Any:
    """Return a copy of a setting of a parameter group, which the user may change before it is applied."""
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _is_opaque(module: "torch.nn.Module") -> bool:
    """Return whether hooks do not work inside a module, because of torch.compile or TorchScript."""
    return hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule)


def _seen_modules(module: "torch.nn.Module") -> "Iterator[torch.nn.Module]":
    """Yield a module and its submodules, except opaque modules (`_is_opaque`) and their submodules."""
    if not _is_opaque(module):
        yield module
        for child in module.children():
            yield from _seen_modules(child)


class _Uses(TorchFunctionMode):  # type: ignore[misc]
    """Records for each parameter the module in whose call it is first used."""

    def __init__(self, module: "torch.nn.Module", parameters: "dict[int, Any]") -> None:
        super().__init__()
        self.first: dict[int, torch.nn.Module] = {}
        self._wanted = parameters
        self._calls = [module]
        self._modules = dict.fromkeys(_seen_modules(module))
        self._handles: list[Any] = []

    def __enter__(self) -> "_Uses":
        for module in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if id(one) in self._wanted:
                    self.first.setdefault(id(one), self._calls[-1])
        return func(*args, **(kwargs or {}))

    def _enter(self, module: "torch.nn.Module", args: Any) -> None:
        self._calls.append(module)

    def _leave(self, module: "torch.nn.Module", args: Any, output: Any) -> None:
        self._calls.pop()


def share_state(module: "torch.nn.Module", group: Any) -> None:
    """Broadcast parameters and buffers from the group's first rank."""
    source = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), source, group=group)


def share_buffers(module: "torch.nn.Module", group: Any, wait: Callable[[Any], None]) -> None:
    """Broadcast buffers from the group's first rank, one message per dtype and device. `wait` waits for a message."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for buffer in module.buffers():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    for buffers in kinds.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        wait(dist.broadcast(flat, dist.get_global_rank(group, 0), group=group, async_op=True))
        for buffer, part in zip(buffers, flat.split([one.numel() for one in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))
