"""Forward and backward as one graph of ATen ops, parameters as what must be received: the input of `gradtide order`.

`make_fx` traces a functional call of the model and the gradients of its parameters; shapes are fixed and nothing may
branch on values. Times are the roofline's per op, or measured where the model is.

An op counts every operand that it reads and writes, so it reaches twice the memory efficiency that `roofline` assumes
for layers, which count each operand once while training moves about twice that.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradtide.errors import ProfileError
from gradtide.presets import Device
from gradtide.profiling.measure import WARM_UP_RUNS, clock_of
from gradtide.profiling.target import words_of
from gradtide.profiling.walk import loss_of, op_of, stage
from gradtide.roofline import STORED_BYTES_PER_ELEMENT

if TYPE_CHECKING:
    import torch

NANOSECONDS_PER_SECOND = 10**9
OPERANDS_PER_COUNTED = 2
"""Bytes that training moves for each that a layer's count names: why devices.toml has 0.4 and not 0.8."""


def op_dag(
    model: "torch.nn.Module",
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    device: Device | None,
    runs: int,
    rate_bps: int,
) -> dict[str, Any]:
    """Return the op graph of one training step.

    Args:
        model: any module; it is left as it was.
        args: positional inputs.
        kwargs: keyword inputs.
        device: what computes; `None` to measure here.
        runs: when measuring, how many to take the least of.
        rate_bps: rate at which parameters are received, bits per second.

    Returns:
        `ops` in topological order, each with id, name, kind (recv or comp), inputs (ids) and time; a recv has its
        bytes, a comp param_only (it hangs on parameters alone); `target`, the id of the op that ends the step; and what
        they were made from. Times are whole nanoseconds. Ops that no gradient needs are left out.

    Raises:
        ProfileError: if the step cannot be traced.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    is_fake = device is not None
    with stage(model, args, kwargs, fake=is_fake) as staged:
        wanted = [name for name, parameter in staged.parameters.items() if parameter.requires_grad]

        def step(parameters: dict[str, torch.Tensor], *inputs: Any) -> list[torch.Tensor]:
            loss = loss_of(staged.forward(parameters, inputs))
            if loss is None:
                raise ProfileError(f"{type(model).__name__} trains nothing: no output hangs on a parameter")
            found = torch.autograd.grad(loss, [parameters[name] for name in wanted], allow_unused=True)
            return [gradient for gradient in found if gradient is not None]

        try:
            traced = make_fx(step)(staged.parameters, *staged.inputs)
        except ProfileError:
            raise
        except Exception as error:
            raise ProfileError(f"the op graph of {type(model).__name__} cannot be traced: {words_of(error)}") from error
        graph = traced.graph
        graph.eliminate_dead_code()
        if device is not None:
            times = {node: op_seconds(node, device) for node in graph.nodes if node.op == "call_function"}
        else:
            times = _measured(traced, model, [*staged.parameters.values(), *staged.inputs], runs)
    names = dict(zip((n for n in graph.nodes if n.op == "placeholder"), staged.parameters, strict=False))
    sizes = {name: p.numel() * p.element_size() for name, p in staged.parameters.items()}
    return {
        "model": type(model).__name__,
        "device": "measured" if device is None else device.name,
        "train": True,
        "gbps": rate_bps / 1e9,
        "time_unit": "ns",
        **_ops(graph, names, sizes, times, rate_bps),
    }


def op_seconds(node: Any, device: Device) -> float:
    """Return the roofline's time of one node: of its FLOPs, or of all it reads and writes. Views take none."""
    import torch
    from torch.utils._pytree import tree_map_only

    if not isinstance(node.target, torch._ops.OpOverload):
        return 0.0
    args, kwargs = tree_map_only(torch.fx.Node, lambda other: other.meta["val"], (node.args, dict(node.kwargs)))
    op = op_of(node.target, args, kwargs, node.meta["val"])
    if op.is_view:
        return 0.0
    flops = op.flops / (device.winograd_gain if op.is_winograd else 1.0)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*op.inputs, *op.outputs))
    moved *= device.element_bytes / STORED_BYTES_PER_ELEMENT
    bandwidth = device.memory_bytes_per_s * min(1.0, OPERANDS_PER_COUNTED * device.memory_efficiency)
    compute_s = float(flops / (device.peak_flops * device.compute_efficiency))
    return max(compute_s, float(moved / bandwidth))


def _measured(traced: Any, model: "torch.nn.Module", values: Sequence[Any], runs: int) -> dict[Any, float]:
    """Time each node, the least of `runs`; the device is waited for around each."""
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


def _ops(
    graph: Any, names: Mapping[Any, str], sizes: Mapping[str, int], times: Mapping[Any, float], rate_bps: int
) -> dict[str, Any]:
    output = next(node for node in graph.nodes if node.op == "output")
    needed = {output}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    ids: dict[Any, int] = {}
    ops: list[dict[str, Any]] = []
    hangs_on_parameters_alone: dict[Any, bool] = {}
    # Received parameters come first, in the order in which the model has them, as in TicTac's worker graph.
    for node, name in names.items():
        hangs_on_parameters_alone[node] = True
        if node in needed:
            ids[node] = len(ops)
            # In whole nanoseconds, rounded up.
            time_ns = -(-sizes[name] * 8 * NANOSECONDS_PER_SECOND // rate_bps)
            recv = {"id": len(ops), "name": f"{name}/read", "kind": "recv", "inputs": [], "time": time_ns}
            ops.append({**recv, "bytes": sizes[name]})
    for node in graph.nodes:
        if node.op == "placeholder":
            hangs_on_parameters_alone.setdefault(node, False)
            continue
        inputs = node.all_input_nodes
        alone = bool(inputs) and all(hangs_on_parameters_alone[other] for other in inputs)
        hangs_on_parameters_alone[node] = alone
        if node not in needed:
            continue
        ids[node] = len(ops)
        ops.append(
            {
                "id": len(ops),
                "name": "end" if node is output else node.name,
                "kind": "comp",
                "inputs": [ids[other] for other in inputs if other in ids],
                "time": round(times.get(node, 0.0) * NANOSECONDS_PER_SECOND),
                "param_only": alone,
            }
        )
    return {"target": ids[output], "ops": ops}
