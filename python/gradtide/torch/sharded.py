"""Applies an FSDP plan by public methods of PyTorch's `fully_shard` (FSDP2).

Each unit of the plan becomes one call of `fully_shard`; the prefetch depths become lists of modules to prefetch.
`expected_forward` and `expected_backward` predict the order in which torch gathers and reduces units under the plan;
`Sharded` records the actual order and compares the two.

A plan cannot control reductions: torch reduces each unit as a whole when the unit's backward pass has ended, one unit
at a time. A unit whose inputs need no gradient, such as an embedding, is reduced after all others. With gloo, a
reduce-scatter blocks the backward pass. An all-gather does not, because `_Gather` issues it (`set_custom_all_gather`);
torch's own function would wait for it immediately, which would defeat prefetching.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from gradtide.errors import TrainingError, nearest
from gradtide.scenario.plan import Plan, PlannedSharding
from gradtide.torch.groups import fault_of, several

Event = tuple[str, int]
"""Event of a pass: its kind (`GATHER`, `REDUCE` or `FORWARD`), and the number of the unit."""

Turn = tuple[int, bool]
"""(unit, True) at the start of the unit's forward pass, (unit, False) at its end. Units can be nested."""

GATHER, REDUCE, FORWARD = "all-gather", "reduce-scatter", "forward"
SHOWN = 6
"""Maximum number of correct events that an error message lists before the first event that differs from the plan."""
OPTIONS = ("mesh", "mp_policy", "offload_policy", "ignored_params")
"""Permitted arguments of fully_shard: they affect neither what a unit gathers nor when."""


def expected_forward(plan: PlannedSharding, gathered: set[int]) -> list[Event]:
    """Return the events that a plan predicts for a forward pass; update `gathered`, the set of unsharded units."""
    events: list[Event] = []
    count = len(plan.units)
    for unit in range(count):
        events += _gathers(range(unit, min(unit + plan.forward_prefetch + 1, count)), gathered)
        events.append((FORWARD, unit))
    if plan.reshard_after_forward:
        gathered &= _kept(plan)
    return events


def expected_backward(
    plan: PlannedSharding, turns: Sequence[Turn], late: Sequence[int], trained: set[int], gathered: set[int]
) -> list[Event]:
    """Return the events that a plan predicts for a backward pass.

    Args:
        plan: how the model is sharded.
        turns: starts and ends of units in the forward pass. The backward pass visits them in reverse order: a unit is
            gathered when its backward pass begins, and reduced when it ends.
        late: units that are reduced after all others, in this order.
        trained: units with trainable parameters, which are reduced.
        gathered: units that are unsharded before the pass; the pass clears it.
    """
    events: list[Event] = []
    order = _order(turns)
    for unit, is_start in reversed(turns):
        if not is_start:
            place = order.index(unit)
            events += _gathers(order[place : place + plan.backward_prefetch + 1], gathered)
        elif unit not in late:
            gathered.discard(unit)
            events += [(REDUCE, unit)] if unit in trained else []
    gathered.clear()
    return events + [(REDUCE, unit) for unit in late if unit in trained]


def _order(turns: Sequence[Turn]) -> list[int]:
    """Return the units in the order in which the backward pass begins them."""
    return [unit for unit, is_start in reversed(turns) if not is_start]


def _gathers(units: Iterable[int], gathered: set[int]) -> list[Event]:
    missing = [unit for unit in units if unit not in gathered]
    gathered.update(missing)
    return [(GATHER, unit) for unit in missing]


def _kept(plan: PlannedSharding) -> set[int]:
    """Return the units that stay unsharded until their backward pass, although `reshard_after_forward` is set."""
    root = {0} if plan.units[0] == ("",) else set()
    return root | ({len(plan.units) - 1} if plan.keep_last else set())


class Sharded:
    """A model sharded by a plan. It records the passes and compares them with the plan.

    Attributes:
        module: the user's module.
        plan: the applied plan.
        passes: number of passes so far that followed the plan. A forward pass and its backward pass are one pass.
        fault: a sentence on the first pass that did not follow the plan; empty if all passes did.
    """

    level = "fsdp"

    def __init__(self, module: "torch.nn.Module", plan: Plan, parts: "list[list[Any]]", trained: set[int]) -> None:
        assert plan.fsdp is not None
        self.module = module
        self.plan = plan
        self.passes = 0
        self.fault = ""
        self._of = plan.fsdp
        self._parts = parts
        self._trained = trained
        place = {id(one): number for number, one in enumerate(module.modules())}
        firsts = [min(place[id(one)] for one in part) for part in parts]
        self._by_place = sorted(range(len(parts)), key=lambda unit: firsts[unit])
        self._gathered: set[int] = set()
        self._aimed: list[int] | None = None
        self._events: list[Event] | None = None
        self._open()

    def listen(self) -> None:
        """Set the prefetch lists of all units, and start recording passes."""
        ours = torch.compiler.disable
        for unit, part in enumerate(self._parts):
            for one in part:
                one.register_forward_pre_hook(ours(self._on_start(unit)), with_kwargs=True)
                one.register_forward_hook(ours(self._on_end(unit)))
            part[0].set_custom_all_gather(_Gather(self, unit))
            part[0].set_custom_reduce_scatter(_Reduce(self, unit))
            ahead = range(unit + 1, min(unit + 1 + self._of.forward_prefetch, len(self._parts)))
            part[0].set_modules_to_forward_prefetch([self._parts[other][0] for other in ahead])
        self.module.register_forward_pre_hook(ours(self._on_pass), prepend=True)
        self.module.register_forward_hook(ours(self._on_output))
        self._aim(list(reversed(range(len(self._parts)))))

    def record(self, kind: str, unit: int) -> None:
        """Record an event."""
        if self._events is not None:
            self._events.append((kind, unit))

    def close(self) -> None:
        """End the recorded pass, and compare it with the plan."""
        events, self._events = self._events, None
        if not events:
            return
        expected = expected_forward(self._of, self._gathered)
        if self._went_back:
            # A pass without any reduction accumulates gradients (set_requires_gradient_sync).
            trained = self._trained & self._reached if any(kind == REDUCE for kind, _ in events) else set()
            late = [unit for unit in self._by_place if unit in self._late]
            expected += expected_backward(self._of, self._backward_turns(), late, trained, self._gathered)
        if events == expected:
            self.passes += 1
            return
        self._gathered.clear()
        pairs = enumerate(zip_longest(events, expected))
        at, did, planned = next((at, did, planned) for at, (did, planned) in pairs if did != planned)
        before = " ".join(map(_short, events[max(0, at - SHOWN) : at]))
        self.fault = self.fault or (
            f"The plan was not carried out: after {before or 'the start of a pass'} came {self._named(did)}, where the "
            f"plan has {self._named(planned)}. Modules are called in another order than the plan's units, a unit is "
            "called twice, or something else has set what is prefetched or gathered."
        )

    def _named(self, event: Event | None) -> str:
        if event is None:
            return "the end of the pass"
        kind, unit = event
        return f"{kind} of unit {unit} ({several(list(self._of.units[unit]))})"

    def _backward_turns(self) -> list[Turn]:
        """Return the starts and ends of the units whose outputs require a gradient."""
        return [turn for turn in self._turns if turn[0] in self._reached]

    def _open(self) -> None:
        self._events = []
        self._is_recording = True
        self._went_back = False
        self._turns: list[Turn] = []
        self._left = [len(part) for part in self._parts]
        self._late: set[int] = set()
        self._reached: set[int] = set()

    def _on_pass(self, *_: Any) -> None:
        self.close()
        self._open()

    def _on_start(self, unit: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            # Ignore recomputation in the backward pass (activation checkpointing).
            if not self._is_recording or (unit, True) in self._turns:
                return
            self._turns.append((unit, True))
            self.record(FORWARD, unit)
            if not any(tensor.requires_grad for tensor in _tensors((args, kwargs))):
                self._late.add(unit)

        return hook

    def _on_end(self, unit: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            if not self._is_recording:
                return
            self._left[unit] -= 1
            if self._left[unit] == 0:
                self._turns.append((unit, False))
                if any(tensor.requires_grad for tensor in _tensors(output)):
                    self._reached.add(unit)

        return hook

    def _on_output(self, module: Any, args: Any, output: Any) -> None:
        self._is_recording = False
        tensors = [tensor for tensor in _tensors(output) if tensor.requires_grad]
        for tensor in tensors:
            tensor.register_hook(self._on_gradient)
        if tensors:
            self._aim(_order(self._backward_turns()))

    def _on_gradient(self, gradient: "torch.Tensor") -> None:
        self._went_back = True

    def _aim(self, order: list[int]) -> None:
        """Set the prefetch lists of the backward pass, in which units begin in the given order.

        A unit without prefetching lists itself, because with an empty list torch prefetches one unit.
        """
        if order == self._aimed:
            return
        self._aimed = order
        for place, unit in enumerate(order):
            ahead = order[place + 1 : place + 1 + self._of.backward_prefetch] or [unit]
            self._parts[unit][0].set_modules_to_backward_prefetch([self._parts[other][0] for other in ahead])


def _short(event: Event) -> str:
    kind, unit = event
    return {GATHER: "ag", REDUCE: "rs", FORWARD: "F"}[kind] + str(unit)


class _Gather:
    """torch's all-gather, which also records an event. On the CPU it is asynchronous: the unit's first use waits."""

    def __init__(self, sharded: Sharded, unit: int) -> None:
        self._sharded = sharded
        self._unit = unit

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        self._sharded.record(GATHER, self._unit)
        async_op = async_op or output_tensor.device.type == "cpu"
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class _Reduce(_Gather):
    """torch's reduce-scatter, which also records an event. It is synchronous: torch reads the result immediately."""

    def __call__(  # type: ignore[override]
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        self._sharded.record(REDUCE, self._unit)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def _tensors(value: Any) -> "Iterator[torch.Tensor]":
    if isinstance(value, torch.Tensor):
        yield value
        return
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif is_dataclass(value) and not isinstance(value, type):
        inside = (getattr(value, one.name) for one in fields(value))
    for one in inside:
        yield from _tensors(one)


def shard(module: "torch.nn.Module", plan: Plan, options: dict[str, Any]) -> "torch.nn.Module":
    """Apply `fully_shard` to a module by a plan, in place.

    Raises:
        ScenarioError: if the plan is for another model.
        TrainingError: if the public methods of this PyTorch cannot carry out the plan.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    assert plan.fsdp is not None
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise TrainingError(
            f"torch {torch.__version__} has no FSDPModule.set_custom_all_gather, which a plan of FSDP needs: install a "
            "newer torch"
        )
    parts, owners = _parts(module, plan, options.get("ignored_params") or set())
    if any(isinstance(one, FSDPModule) for one in module.modules()):
        raise TrainingError("the model is sharded already: give wrap the model before fully_shard")
    device = next(iter(owners)).device.type if owners else "cpu"
    shallow = [name for name in ("forward", "backward") if getattr(plan.fsdp, f"{name}_prefetch") == 0]
    if device != "cpu" and shallow:
        raise TrainingError(
            f"the plan gathers nothing ahead ({' and '.join(f'{name}_prefetch = 0' for name in shallow)}). That cannot "
            f"be carried out on {device}, where the host calls the next unit while this one computes: write 1"
        )
    trained = {unit for parameter, unit in owners.items() if parameter.requires_grad}
    kept = _kept(plan.fsdp)
    for unit in _inside_first(parts):
        if parts[unit][0] is not module:
            reshards = plan.fsdp.reshard_after_forward and unit not in kept
            try:
                fully_shard(parts[unit], reshard_after_forward=reshards, **options)
            except ValueError as error:
                raise TrainingError(f"fully_shard refuses a unit of the plan: {error}") from error
    # The model itself is wrapped even if it has no parameters, because FSDP's root is the first wrapped module that is
    # called.
    fully_shard(module, **options)
    sharded = Sharded(module, plan, parts, trained)
    if dist.get_world_size() > 1:
        sharded.listen()
    module.__dict__["_gradtide_sharded"] = sharded
    return module


def _inside_first(parts: "list[list[torch.nn.Module]]") -> list[int]:
    """Return the units so that inner ones come first: fully_shard takes all parameters that no earlier call took."""
    unit_of = {id(one): unit for unit, part in enumerate(parts) for one in part}
    inside = {
        unit: {unit_of[id(one)] for top in part for one in top.modules() if id(one) in unit_of} - {unit}
        for unit, part in enumerate(parts)
    }
    try:
        return list(TopologicalSorter(inside).static_order())
    except CycleError as error:
        which = " and ".join(map(str, sorted(set(error.args[1]))))
        raise TrainingError(f"the units {which} have modules inside each other's: give each its own modules") from error


def sharded_of(module: Any) -> Sharded | None:
    """Return the `Sharded` record of a model; `None` if the model was not sharded by `shard`."""
    found: Sharded | None = getattr(module, "__dict__", {}).get("_gradtide_sharded")
    return found


def _parts(
    module: "torch.nn.Module", plan: Plan, ignored: "set[torch.nn.Parameter]"
) -> "tuple[list[list[torch.nn.Module]], dict[torch.nn.Parameter, int]]":
    """Return the modules of each unit, and the unit of each parameter, i.e. the innermost unit that contains it."""
    assert plan.fsdp is not None
    known = dict(module.named_modules(remove_duplicate=False))
    units = plan.fsdp.units
    if unknown := [name for unit in units for name in unit if name not in known]:
        near = nearest(unknown[0], sorted(known))
        hint = f"did you mean {near!r}?" if near else ""
        raise fault_of(plan, "fsdp.units", f"{type(module).__name__} has no module {several(unknown)}", hint)
    for place, name in ((place, name) for place, unit in enumerate(units) for name in unit):
        if type(known[name]).forward is torch.nn.Module.forward:
            raise TrainingError(
                f"unit {place} has {name!r}, a {type(known[name]).__name__} without a forward pass: FSDP gathers a "
                "unit when its module is called; name the modules in it"
            )
    unit_of = {id(known[name]): place for place, unit in enumerate(units) for name in unit}
    names: dict[Any, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter not in ignored:
            names.setdefault(parameter, []).append(name)
    owners: dict[Any, int] = {}
    missing = []
    for parameter, aliases in names.items():
        found = {alias: _unit_of(alias, known, unit_of) for alias in aliases}
        if None in found.values():
            missing += [alias for alias, unit in found.items() if unit is None]
            continue
        places = {unit for unit in found.values() if unit is not None}
        if len(places) > 1:
            which = " and ".join(map(str, sorted(places)))
            raise TrainingError(
                f"{several(aliases)} are one parameter in the units {which}: fully_shard gathers a parameter with one "
                "unit; name these modules in one unit of the plan"
            )
        owners[parameter] = places.pop()
    if missing:
        msg = f"no unit of the plan has {several(missing)} of {type(module).__name__}"
        raise fault_of(plan, "fsdp.units", msg, 'write [""] as the first unit: it has what no other unit has')
    if empty := sorted(set(range(len(units))) - set(owners.values())):
        msg = f"unit {empty[0]} ({several(list(units[empty[0]]))}) has no parameters of its own"
        raise fault_of(plan, "fsdp.units", msg, "leave it out")
    return [[known[name] for name in unit] for unit in units], owners


def _unit_of(name: str, known: "Mapping[str, torch.nn.Module]", unit_of: Mapping[int, int]) -> int | None:
    while name:
        name = name.rpartition(".")[0]
        if (unit := unit_of.get(id(known[name]))) is not None:
            return unit
    return None
