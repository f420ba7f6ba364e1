"""Finds the parameters of a plan's buckets in a module, by the names of the plan's layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradtide.errors import Fault, ScenarioError, nearest
from gradtide.scenario.plan import Plan

OF_UNUSED = (
    "make a plan for this model; if it gets no gradient for them, freeze them (requires_grad_(False)), or pass "
    "find_unused_parameters=True to wrap at a level below crossiter"
)


@dataclass(frozen=True)
class Group:
    """The parameters of a bucket.

    Attributes:
        names, parameters: its trainable parameters, in the order of the plan's layers.
        rank: send priority; the smallest is sent first.
        opener: event before which the bucket is not sent. `("backward", parameters)`: the gradients of these parameters
            are ready. `("forward", module)`: this module is called. `None`: no such event.
    """

    names: "tuple[str, ...]"
    parameters: "tuple[torch.nn.Parameter, ...]"
    rank: int
    opener: "tuple[str, Any] | None" = None


def groups_of(plan: Plan, module: "torch.nn.Module", *, has_unused: bool = False) -> list[Group]:
    """Return the buckets of a plan as groups of a module's parameters, in the plan's order.

    A layer of a plan is the name of a parameter or of a module. A parameter belongs to the innermost layer that
    contains it, a shared parameter to that of the first of its names in any layer, and a frozen parameter to none. With
    `has_unused`, the module may have trainable parameters outside the plan, which lists only parameters that get a
    gradient.

    Raises:
        ScenarioError: if the module lacks a layer, a trainable parameter is in no layer, or a bucket has another size.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    everyone = dict(module.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in trained.items()}
    layers = [layer for bucket in plan.buckets for layer in bucket.layers]
    known = {name for name, _ in module.named_modules(remove_duplicate=False)} | set(everyone)
    if unknown := [layer for layer in layers if layer not in known]:
        near = nearest(unknown[0], sorted(known))
        hint = f"did you mean {near!r}?" if near and len(unknown) < len(layers) else ""
        raise fault_of(plan, "buckets", f"{type(module).__name__} has no layer {several(unknown)}", hint)
    holds: dict[str, list[str]] = {layer: [] for layer in layers}
    missing = []
    for name in trained:
        aliases = [other for other, p in everyone.items() if first.get(id(p)) == name]
        layer = next((layer for alias in aliases for layer in _upwards(alias) if layer in holds), None)
        if layer is None:
            missing.append(name)
        else:
            holds[layer].append(name)
    if missing and not has_unused:
        msg = f"no layer of the plan has {several(missing)} of {type(module).__name__}"
        raise fault_of(plan, "buckets", msg, OF_UNUSED)
    groups = []
    for place, bucket in enumerate(plan.buckets):
        names = tuple(name for layer in bucket.layers for name in holds[layer])
        size = sum(trained[name].numel() * trained[name].element_size() for name in names)
        if size < bucket.bytes if has_unused else size != bucket.bytes:
            msg = f"bucket {place} has {bucket.bytes} B in the plan and {size} B in {type(module).__name__}"
            hint = (
                OF_UNUSED if size > bucket.bytes else "make a plan for this model; frozen parameters are in no bucket"
            )
            raise fault_of(plan, f"buckets.{place}.bytes", msg, hint)
        if names:
            opener = None
            if bucket.release is not None:
                where, layer = bucket.release
                if layer not in known or (where == "backward" and not holds.get(layer)):
                    raise fault_of(plan, f"buckets.{place}.release", f"no layer of the plan is {layer!r}")
                module_name = layer if layer not in everyone else layer.rpartition(".")[0]
                of_backward = tuple(trained[name] for name in holds.get(layer, ()))
                opener = where, of_backward if where == "backward" else module.get_submodule(module_name)
            groups.append(Group(names, tuple(trained[name] for name in names), bucket.rank, opener))
    return groups


def _upwards(name: str) -> Iterator[str]:
    """Yield the names of a parameter, its module, and all parent modules, each of which may be a layer."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield name


def fault_of(plan: Plan, loc: str, msg: str, hint: str = "") -> ScenarioError:
    """Return the error for a plan that does not match the model."""
    made = "" if plan.model is None else f"; the plan is for {plan.model}"
    return ScenarioError([Fault("GT081", loc, msg + made, None, hint or "make a plan for this model", "plan")])


def several(names: list[str]) -> str:
    """Return the first three names, and the number of further names, as a phrase."""
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
