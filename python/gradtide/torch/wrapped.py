"""`wrap` applies a plan to the user's module, and `unwrap` undoes it."""

import atexit
import contextlib
import gc
import hashlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gradtide.errors import TrainingError
from gradtide.runtime import LEVELS, of_torch
from gradtide.scenario.plan import Plan, read_plan
from gradtide.torch.crossiter import USE_PRIORITY, CrossIteration, share_buffers, share_state
from gradtide.torch.deferred import can_defer
from gradtide.torch.groups import groups_of, several
from gradtide.torch.guard import Guard, timeout_of
from gradtide.torch.parallel import Hook, PriorityHook, bucket_options
from gradtide.torch.sender import Sender, Tally
from gradtide.torch.sharded import OPTIONS, shard, sharded_of
from gradtide.torch.sockets import all_ends
from gradtide.torch.streams import streams_of

UNTESTED = "it has never run on a GPU: compare the weights with DDP's first, as make validate-gpu does"


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    """A module whose gradients are exchanged according to a plan. Made by `wrap`.

    Attributes:
        module: the user's module, whose parameters are trained.
        plan: the applied plan.
        level: the applied level, which is the argument of `wrap` or else the plan's; `alone` without other ranks.
    """

    def __init__(self, module: "torch.nn.Module", plan: Plan, level: str) -> None:
        super().__init__()
        self.module = module
        self.plan = plan
        self.level = level
        self._made_in = os.getpid()
        self._cross: CrossIteration | None = None
        self._hook: Hook | None = None
        self._sender: Sender | None = None
        self._guard: Guard | None = None
        self._group: Any = None  # the sender's process group
        self._shares_buffers: Any = None  # process group that broadcasts buffers

        # DDP is not registered as a submodule, so that keys of state_dict are `module.…`, as with DDP alone.
        self.__dict__["_ddp"] = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. At level crossiter, each layer first waits for its gradients of the last iteration."""
        guard = self._guard
        if guard is None:
            return (self.module if self._ddp is None else self._ddp)(*args, **kwargs)
        self._check_fork()
        if self._cross is None:
            if self.training and torch.is_grad_enabled():
                guard.check()
            if self._shares_buffers is not None:
                guard.step()
            return guard.explain(lambda: self._ddp(*args, **kwargs))
        if self._shares_buffers is not None:
            share_buffers(self.module, self._shares_buffers, guard.watch)
        with self._cross.forward():
            return self.module(*args, **kwargs)

    def flush(self) -> None:
        """Apply all pending updates of level crossiter, after which the parameters equal those of DDP.

        Every rank must call this, because with NCCL, gradients before their release event are reduced now.

        Raises:
            TrainingError: if a gradient cannot be reduced.
        """
        if self._cross is not None:
            self._cross.flush(by_user=True, by_all=True)

    @property
    def tally(self) -> Tally:
        """Counters of the sender, which only levels priority and crossiter have; all 0 at the other levels."""
        return Tally() if self._sender is None else self._sender.tally

    def no_sync(self) -> Any:
        """Return DDP's context in which gradients are accumulated without an exchange.

        Raises:
            TrainingError: at level crossiter, which cannot accumulate gradients.
        """
        if self._cross is not None:
            raise TrainingError(f"no_sync: gradients cannot be accumulated at level crossiter; {USE_PRIORITY}")
        if self._ddp is None:
            return contextlib.nullcontext()
        return self._ddp.no_sync()

    def train(self, mode: bool = True) -> "Wrapped":
        """Set the mode, as in torch.nn.Module. Evaluation mode first applies all pending updates."""
        if not mode and self._cross is not None:
            self._cross.flush(by_user=True)
        super().train(mode)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to zero."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                if set_to_none or type(parameter.grad) is not torch.Tensor:
                    parameter.grad = None
                else:
                    parameter.grad.detach_().zero_()
        if self._cross is not None:
            self._cross.drop()

    def __getstate__(self) -> Any:
        if self._guard is not None:
            raise TrainingError("a wrapped model cannot be copied or pickled: take its state_dict, or unwrap it first")
        return super().__getstate__()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward pass in place; raises `TrainingError` at level crossiter."""
        if self._cross is not None:
            raise TrainingError(f"level crossiter waits between the layers, which torch.compile joins; {USE_PRIORITY}")
        super().compile(*args, **kwargs)

    def _check_fork(self) -> None:
        if os.getpid() != self._made_in:
            raise TrainingError(
                "this process was forked after wrap: call wrap in it, or use the bare module (model.module)"
            )

    def _at_exit(self) -> None:
        with contextlib.suppress(TrainingError):
            self._undo(at_exit=True)

    def _undo(self, at_exit: bool = False) -> None:
        """Remove all hooks and connections. May be called repeatedly, and after an error."""
        atexit.unregister(self._at_exit)
        if self._made_in != os.getpid():
            return
        cross, hook, sender, guard, group = self._cross, self._hook, self._sender, self._guard, self._group
        self.__dict__.update(_ddp=None, _cross=None, _hook=None, _sender=None, _guard=None, _group=None)
        self.level = "unwrapped"
        failed = at_exit and getattr(sys, "last_value", None) is not None  # the script ended with an error
        try:
            if cross is not None and guard is not None and guard.fault is None and not failed:
                cross.flush(by_all=True)
                if not at_exit:
                    cross.restore_gradients()
        finally:
            for part in (cross, hook):
                if part is not None:
                    part.close()
            if sender is not None:
                sender.streams.close()
            if guard is not None:
                guard.close(at_exit=at_exit, failed=failed)
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)
            if hook is not None or cross is None:
                gc.collect()  # DDP's destructor removes its hooks


@overload
def wrap(model: "torch.nn.Module", optimizer: "Mapping[str, Any] | str | Path | Plan", **fsdp_options: Any) -> Any: ...
@overload
def wrap(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    plan: "Mapping[str, Any] | str | Path | Plan | Any",
    *,
    level: str | None = None,
    process_group: Any = None,
    untested_on_gpu: bool = False,
    **ddp_options: Any,
) -> Wrapped: ...
def wrap(
    model: "torch.nn.Module",
    optimizer: Any,
    plan: Any = None,
    *,
    level: str | None = None,
    process_group: Any = None,
    untested_on_gpu: bool = False,
    **ddp_options: Any,
) -> Any:
    """Apply a plan to data-parallel training, instead of `DistributedDataParallel(model)`. Every rank must call this.

    `wrap(model, plan)` applies an FSDP plan instead of calls of `fully_shard`, and returns the model itself. It accepts
    fully_shard's `mesh`, `mp_policy`, `offload_policy` and `ignored_params`. Create the optimizer afterwards.

    Args:
        model: the bare module, already on its device.
        optimizer: optimizer of the training loop. Omit it for an FSDP plan.
        plan: path of a plan.json, its content, or the result of `gt.plan`.
        level: `none`, `buckets`, `priority` or `crossiter`. Default: the plan's level.
        process_group: the ranks of the job. Default: all.
        untested_on_gpu: allow levels priority and crossiter on a GPU, where they have never run.
        ddp_options: further arguments of DistributedDataParallel. Level crossiter does not use DDP and takes only
            `broadcast_buffers`.

    Returns:
        The module to call instead of the model. Without other ranks (no process group, or one rank), training is
        unchanged.

    Raises:
        ScenarioError: if the plan cannot be read or is for another model.
        TrainingError: if the level does not support the model, the optimizer or the options; the message names a level
            that does.
    """
    if plan is None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer, plan = None, optimizer
    plan = read_plan(plan)
    if plan.fsdp is not None:
        if optimizer is not None or level is not None or process_group is not None or untested_on_gpu:
            raise TrainingError(
                "a plan of FSDP takes no optimizer, level, process_group or untested_on_gpu: call wrap(model, plan, "
                "mesh=…), and then make the optimizer from model.parameters(), which are others after it"
            )
        return _shard(model, plan, ddp_options)
    if optimizer is None:
        raise TrainingError("wrap needs the optimizer: call wrap(model, optimizer, plan)")
    level = plan.level if level is None else level
    if level not in LEVELS:
        raise TrainingError(f"level is {level!r}, and can be {', '.join(LEVELS)}")
    if level != "none" and not plan.buckets:
        raise TrainingError(f"the plan has no buckets, which level {level} needs: it leaves DDP unchanged")
    if isinstance(model, (Wrapped, DistributedDataParallel, DataParallel)):
        raise TrainingError(f"wrap takes the bare module: give it model.module of this {type(model).__name__}")
    if level == "crossiter":
        _refuse_for_crossiter(model, ddp_options)
    has_unused = bool(ddp_options.get("find_unused_parameters"))  # refused at crossiter above
    groups = groups_of(plan, getattr(model, "_orig_mod", model), has_unused=has_unused) if plan.buckets else []
    base = process_group
    if base is None and ddp_options.get("device_mesh") is not None:
        base = ddp_options["device_mesh"].get_group()
    size = dist.get_world_size(base) if dist.is_available() and dist.is_initialized() else 1
    if size == 1:
        return Wrapped(model, plan, "alone")
    _warn_of_workers(plan, size)
    _refuse_devices(model, level, untested_on_gpu)
    _refuse_plan(plan, model, level)
    wrapped = Wrapped(model, plan, level)
    base = dist.group.WORLD if base is None else base
    device = _device_of(model, base, plan) if level in ("priority", "crossiter") else torch.device("cpu")
    cross = CrossIteration(model, optimizer, groups, size=size) if level == "crossiter" else None
    _agree(plan, level, model, base)
    if ddp_options.get("broadcast_buffers", True) and any(True for _ in model.buffers()):
        wrapped._shares_buffers = base
    if cross is not None:
        share_state(model, base)
        cross.start(_sender(wrapped, base, plan, device))
        wrapped._cross = cross
    else:
        planned = {} if level == "none" else bucket_options(plan, ddp_options)
        ddp = DistributedDataParallel(model, process_group=process_group, **ddp_options, **planned)
        wrapped.__dict__["_ddp"] = ddp
        if level == "priority":
            wrapped._hook = PriorityHook(ddp, optimizer, groups, _sender(wrapped, base, plan, device))
        elif _is_on_gloo(model, base):
            wrapped._guard = guard = Guard(base)
            guard.start()
            wrapped._hook = Hook(ddp, optimizer, guard, depth=1 if level == "none" else plan.depth)
    atexit.register(wrapped._at_exit)
    return wrapped


def _shard(model: "torch.nn.Module", plan: Plan, options: dict[str, Any]) -> "torch.nn.Module":
    """Apply an FSDP plan; raise `TrainingError` if the model or the options do not allow it."""
    if isinstance(model, (Wrapped, DistributedDataParallel, DataParallel)):
        raise TrainingError(f"wrap takes the bare module: give it model.module of this {type(model).__name__}")
    if others := sorted(set(options) - set(OPTIONS)):
        raise TrainingError(
            f"with a plan of FSDP, wrap does not accept {', '.join(others)}: the plan sets such arguments, or they "
            f"change what a unit sends. Accepted are {', '.join(OPTIONS)}"
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise TrainingError("fully_shard needs a process group: call init_process_group first, also for one rank")
    mesh = options.get("mesh")
    _warn_of_workers(plan, dist.get_world_size() if mesh is None else mesh.size())
    for group in [dist.group.WORLD] if mesh is None else mesh.get_all_groups():
        _agree(plan, plan.level, model, group)
    return shard(model, plan, options)


def _warn_of_workers(plan: Plan, size: int) -> None:
    if plan.workers not in (None, size):
        warnings.warn(
            f"the plan was made for {plan.workers} workers and is applied to {size}: its gain is not the predicted one",
            stacklevel=3,
        )


def unwrap(model: Wrapped) -> "torch.nn.Module":
    """Undo `wrap`: apply pending updates, and remove hooks, connections and threads.

    Returns:
        The user's module, with the weights that DDP would have given it.

    Raises:
        TrainingError: if the last gradients could not be reduced. `wrap` is undone even then.
    """
    if sharded_of(model) is not None:
        raise TrainingError("fully_shard cannot be undone: save the state (torch.distributed.checkpoint) and load it")
    if not isinstance(model, Wrapped):
        raise TrainingError(f"unwrap takes what wrap has returned, not a {type(model).__name__}")
    model._undo()
    return model.module


def _sender(wrapped: Wrapped, base: Any, plan: Plan, device: "torch.device") -> Sender:
    """Return a sender with a private process group, so that its collectives never interleave with those of the user.

    On a GPU, the group has the backend of the user's group; on the CPU it has gloo. With NCCL the order of collectives
    is fixed, because NCCL has no CPU thread that could start them in a dynamic order while the user's other
    communicators are busy.
    """
    ranks = dist.get_process_group_ranks(base)
    is_part = len(ranks) < dist.get_world_size()
    earlier = all_ends()
    backend = _backend(base, device)
    wrapped._group = dist.new_group(ranks, timeout=timeout_of(base), backend=backend, use_local_synchronization=is_part)
    wrapped._sender = sender = Sender(
        base,
        wrapped._group,
        earlier,
        piece_bytes=plan.chunk_bytes,
        credit=plan.credit,
        depth=plan.depth,
        streams=streams_of(device),
        is_fixed=backend != "gloo",
    )
    wrapped._guard = sender.guard
    return sender


def _backend(base: Any, device: "torch.device") -> str:
    """Return the backend for tensors on a device. On the CPU it is gloo, even if the user's group has another."""
    if device.type == "cpu" or isinstance(base._get_backend(device), dist.ProcessGroupGloo):
        return "gloo"
    return "nccl"


def _device_of(model: "torch.nn.Module", base: Any, plan: Plan) -> "torch.device":
    """Return the device of the trained parameters; raise `TrainingError` if the sender cannot apply the plan there."""
    devices = {parameter.device for parameter in model.parameters() if parameter.requires_grad}
    if len(devices) > 1:
        raise TrainingError(
            f"the model is on {' and '.join(sorted(map(str, devices)))}: levels priority and crossiter take one device"
        )
    device = devices.pop()
    backend = _backend(base, device)
    if backend == "gloo" and plan.collective.get("kind", "ring") != "ring":
        raise TrainingError(f"the plan exchanges by {plan.collective['kind']}, and gloo always uses a ring")
    if backend != "gloo" and plan.order == "priority":
        raise TrainingError(
            "the plan sends in order 'priority', which is decided while sending; NCCL needs an order that is fixed "
            "before: a plan in order fifo or caramel (gradtide plan --schedule caramel)"
        )
    return device


def is_compiled(module: Any) -> bool:
    """Return whether `module.compile()` was called, after which calls of the module bypass the hooks of `wrap`."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _is_on_gloo(model: "torch.nn.Module", base: Any) -> bool:
    cpu = torch.device("cpu")
    return all(p.device == cpu for p in model.parameters()) and isinstance(
        base._get_backend(cpu), dist.ProcessGroupGloo
    )


def _agree(plan: Plan, level: str, model: "torch.nn.Module", base: Any) -> None:
    """Raise `TrainingError` if the plan, level or model of a rank differs from that of the first rank."""
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters() if p.requires_grad]
    does = (plan.buckets, plan.chunk_bytes, plan.credit, plan.depth, plan.fsdp)
    mine = {
        "plan": hashlib.sha256(repr(does).encode()).hexdigest(),
        "level": level,
        "model": hashlib.sha256(repr(shapes).encode()).hexdigest(),
    }
    everyone: list[Any] = [None] * dist.get_world_size(base)
    dist.all_gather_object(everyone, mine, group=base)
    for rank, theirs in enumerate(everyone):
        for what, value in everyone[0].items():
            if theirs[what] != value:
                raise TrainingError(f"rank {rank} has another {what} than rank 0: wrap the same on every rank")


def _refuse_devices(model: "torch.nn.Module", level: str, untested_on_gpu: bool) -> None:
    kinds = sorted({parameter.device.type for parameter in model.parameters()})
    if untested_on_gpu and not any(level in of_torch(kind).untested for kind in kinds):
        raise TrainingError(
            f"untested_on_gpu=True has no effect at level {level} on {' and '.join(kinds)}: leave it out"
        )
    for kind in kinds:
        runtime = of_torch(kind)
        if level in runtime.levels or (untested_on_gpu and level in runtime.untested):
            continue
        untested = f", or try it with untested_on_gpu=True ({UNTESTED})" if level in runtime.untested else ""
        raise TrainingError(
            f"level {level} cannot be carried out on {kind}: gradtide.torch has {' and '.join(runtime.levels)} on "
            f"{runtime.name}. Name the device to gradtide plan, or take level={runtime.levels[-1]!r}{untested}"
        )


def _refuse_plan(plan: Plan, model: "torch.nn.Module", level: str) -> None:
    """Raise `TrainingError` for features of a plan that `wrap` would ignore. Level none accepts every plan."""
    if level == "none":
        return
    kinds = {parameter.device.type for parameter in model.parameters()}
    for runtime in (of_torch(kind) for kind in sorted(kinds)):
        kind = plan.collective.get("kind", "ring")
        if not runtime.allows(kind):
            raise TrainingError(
                f"the plan exchanges by {kind}, which cannot be selected on {runtime.name}: make the plan again with "
                f"gradtide plan --device {runtime.device}, or take level='none'"
            )
        if plan.depth > 1 and not runtime.cuts:
            raise TrainingError(
                f"the plan cuts messages into {plan.depth} parts (depth), which gradtide.torch cannot do on "
                f"{runtime.name}: make it again with gradtide plan --device {runtime.device}"
            )
    if plan.order not in ("fifo", "priority", "caramel"):
        raise TrainingError(f"the plan sends in order {plan.order!r}; wrap has fifo, priority and caramel")
    if level != "crossiter" and any(bucket.release for bucket in plan.buckets):
        raise TrainingError("the plan holds buckets until their release event, which only level crossiter does")


def _refuse_for_crossiter(model: "torch.nn.Module", options: dict[str, Any]) -> None:
    others = sorted(set(options) - {"broadcast_buffers"})
    if others:
        raise TrainingError(
            f"level crossiter has no DistributedDataParallel to take {', '.join(others)}; {USE_PRIORITY}"
        )
    if hasattr(model, "_orig_mod") or any(is_compiled(module) for module in model.modules()):
        raise TrainingError(
            f"level crossiter waits between the layers of a module, which torch.compile joins; {USE_PRIORITY}"
        )
    if any(torch.nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        raise TrainingError("the model has parameters without a shape (lazy modules): call it once first")
    if others := [name for name, p in model.named_parameters() if p.requires_grad and not can_defer(p)]:
        raise TrainingError(
            f"{several(others)} is in shared memory or of a tensor class of its own: level crossiter cannot detect "
            f"reads of it; {USE_PRIORITY}"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TrainingError(f"{type(model).__name__} has no parameter that is trained")
