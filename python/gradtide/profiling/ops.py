"""Traces forward and backward as one graph of ATen ops, in which parameters are received (for `gradtide order`).

`make_fx` traces a functional call of the model and the gradients of its parameters; shapes are fixed, and the model
must not branch on values. Each op has counts (FLOPs and bytes moved) in the format of `gradtide.presets.graphs`, whose
presets were made with this module. Times are computed from the counts by a device's roofline, or each op is timed on
the model's device.
"""

import gc
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gradtide.errors import ProfileError
from gradtide.presets import Device
from gradtide.presets.graphs import roofline_seconds, with_times
from gradtide.profiling.measure import WARM_UP_RUNS, clock_of
from gradtide.profiling.target import words_of
from gradtide.profiling.walk import Staged, loss_of, op_of, output_of, stage

if TYPE_CHECKING:
    import torch


def op_dag(
    model: "torch.nn.Module",
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    device: Device | None,
    runs: int,
    rate_bps: int,
) -> dict[str, Any]:
    """Return the op graph of one training step with roofline times of `device`, or measured times if it is `None`.

    The graph has the format of `gradtide.presets.graphs`, with times in whole nanoseconds. Ops are in topological
    order; those that no gradient needs are omitted. `param_only` marks ops that depend only on parameters.
    """
    try:
        return _op_dag(model, args, kwargs, device=device, runs=runs, rate_bps=rate_bps)
    finally:
        # A torch.fx graph has reference cycles, and would keep tensors such as buffers alive.
        gc.collect()


def _op_dag(
    model: "torch.nn.Module",
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    device: Device | None,
    runs: int,
    rate_bps: int,
) -> dict[str, Any]:
    with stage(model, args, kwargs, fake=device is not None) as staged:
        traced, trained = _trace(model, staged)
        counts, nodes = _counts(traced.graph, staged, trained)
        if device is not None:
            seconds = roofline_seconds(device)
        else:
            times = _measured(traced, model, [*staged.parameters.values(), *staged.inputs], runs)
            measured = {index: times.get(node, 0.0) for node, index in nodes.items()}
            seconds = lambda op: measured[op["id"]]  # noqa: E731
    return {
        "model": type(model).__name__,
        "device": "measured" if device is None else device.name,
        "train": True,
        "gbps": rate_bps / 1e9,
        "time_unit": "ns",
        **with_times(counts, seconds, rate_bps),
    }


def count_ops(model: "torch.nn.Module", args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the op graph of one training step with counts but without times, traced with fake tensors."""
    with stage(model, args, kwargs, fake=True) as staged:
        traced, trained = _trace(model, staged)
        return _counts(traced.graph, staged, trained)[0]


def _trace(model: "torch.nn.Module", staged: Staged) -> tuple[Any, list[str]]:
    """Return the traced step, which returns output and gradients, and the names of the gradients' parameters."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    wanted = [name for name, parameter in staged.parameters.items() if parameter.requires_grad]
    trained: list[str] = []

    def step(parameters: dict[str, torch.Tensor], *inputs: Any) -> list[torch.Tensor]:
        output = staged.forward(parameters, inputs)
        loss = loss_of(output)
        if loss is None:
            raise ProfileError(f"{type(model).__name__} trains nothing: no output hangs on a parameter")
        found = torch.autograd.grad(loss, [parameters[name] for name in wanted], allow_unused=True)
        pairs = zip(wanted, found, strict=True)
        gradients = {name: gradient for name, gradient in pairs if gradient is not None}
        trained[:] = gradients
        return [output_of(output, loss), *gradients.values()]

    try:
        traced = make_fx(step)(staged.parameters, *staged.inputs)
    except ProfileError:
        raise
    except Exception as error:
        raise ProfileError(f"the op graph of {type(model).__name__} cannot be traced: {words_of(error)}") from error
    traced.graph.eliminate_dead_code()
    return traced, trained


def _counts(graph: Any, staged: Staged, trained: Sequence[str]) -> tuple[dict[str, Any], dict[Any, int]]:
    """Return a traced step as a counted graph, and the op id of each node."""
    end = next(node for node in graph.nodes if node.op == "output")
    forward, *gradients = end.args[0]
    needed = {end, *gradients}
    for node in reversed(graph.nodes):
        if node in needed and node is not end:
            needed.update(node.all_input_nodes)
    ids: dict[Any, int] = {}
    ops: list[dict[str, Any]] = []
    recv_of: dict[str, int] = {}
    hangs_on_parameters_alone: dict[Any, bool] = {}
    # As in TicTac's worker graph, recvs come first, in the order of the model's parameters.
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    for node, (name, parameter) in zip(placeholders, staged.parameters.items(), strict=False):
        hangs_on_parameters_alone[node] = True
        if node in needed:
            ids[node] = recv_of[name] = len(ops)
            size = parameter.numel() * parameter.element_size()
            ops.append({"id": len(ops), "name": f"{name}/read", "kind": "recv", "inputs": [], "bytes": size})
    updates: dict[Any, list[int]] = {}
    for name, node in zip(trained, gradients, strict=True):
        # A gradient may be an input of the graph. As no op computes it, the end op is recorded as its producer.
        updates.setdefault(end if node.op == "placeholder" else node, []).append(recv_of[name])
    for node in graph.nodes:
        if node.op == "placeholder":
            hangs_on_parameters_alone.setdefault(node, False)
            continue
        inputs = list(dict.fromkeys(gradients)) if node is end else node.all_input_nodes
        alone = bool(inputs) and all(hangs_on_parameters_alone[other] for other in inputs)
        hangs_on_parameters_alone[node] = alone
        if node not in needed:
            continue
        ids[node] = len(ops)
        row = {
            "id": len(ops),
            "name": "end" if node is end else node.name,
            "kind": "comp",
            "inputs": [ids[other] for other in inputs if other in ids],
            **_cost(node, graph.owning_module),
        }
        if alone:
            row["param_only"] = True
        if node in updates:
            row["updates"] = updates[node]
        ops.append(row)
    # If no gradient needs the output, its op was omitted, and the end op is the target of inference.
    return {"target": ids[end], "inference_target": ids.get(forward, ids[end]), "ops": ops}, ids


def _cost(node: Any, traced: Any) -> dict[str, Any]:
    """Return the FLOPs of a node and the bytes of the operands that it reads and writes; empty for a view."""
    import torch
    from torch.utils._pytree import tree_map_only

    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    value_of = partial(_value_of, traced)
    args, kwargs = tree_map_only(torch.fx.Node, value_of, (node.args, dict(node.kwargs)))
    op = op_of(node.target, args, kwargs, value_of(node))
    if op.is_view:
        return {}
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*op.inputs, *op.outputs))
    cost: dict[str, Any] = {"flops": op.flops} if op.flops else {}
    cost["moved_bytes"] = moved
    if op.is_winograd:
        cost["winograd"] = True
    return cost


def _value_of(traced: Any, node: Any) -> Any:
    """Return the output of a node of a traced module as a fake tensor.

    Buffers are read from the module, because some versions of torch do not store `val` in their nodes.
    """
    return attrgetter(node.target)(traced) if node.op == "get_attr" else node.meta["val"]


def _measured(traced: Any, model: "torch.nn.Module", values: Sequence[Any], runs: int) -> dict[Any, float]:
    """Return the minimum time of each node over `runs`, in seconds. The device is synchronised around each node."""
    import torch

    wait = clock_of(model).wait
    times: dict[Any, float] = {}

    class Timed(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Any) -> Any:
            wait()
            start = time.perf_counter()
            result = super().run_node(n)
            wait()
            times[n] = min(times.get(n, math.inf), time.perf_counter() - start)
            return result

    for run in range(WARM_UP_RUNS + runs):
        if run == WARM_UP_RUNS:
            times.clear()
        with torch.no_grad():
            Timed(traced).run(*values, enable_io_processing=False)
    return times
