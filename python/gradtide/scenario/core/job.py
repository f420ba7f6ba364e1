"""Parts of a job in the core's input, and counts that the core computes for them without a scenario.

`_core` is imported inside the functions that call it: loading it would dominate the time to report a faulty scenario.
"""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradtide.algorithms import ALGORITHMS, CollectiveKind
from gradtide.counts import Counts
from gradtide.parallel.costs import Costs
from gradtide.parallel.spec import Described, Layout, Op

if TYPE_CHECKING:
    from gradtide.scenario.opdag import OpDag

ARBITRARY_PPM = 32_000
"""Fraction of transfers that order = "arbitrary" swaps with a later transfer. Calibration: of 1000 orders of VGG-16's
32 parameters, 495 are then distinct on average; TicTac (2019), section 2.2, observed 493 in TensorFlow."""


NORM_BYTES = 4
"""Size of the all-reduce that computes the norm of all gradients: one sum of squares in fp32."""


def algorithm(
    kind: CollectiveKind,
    group: int | None = None,
    inside: str | None = None,
    servers: int = 0,
    placement: str | None = None,
) -> dict[str, Any]:
    """Return the core's input for a collective algorithm; the core has defaults for arguments that are None."""
    given: dict[str, dict[str, Any]] = {
        "group": {"group": group},
        "inside": {"inside": inside},
        "ps": {"servers": max(1, servers), "placement": placement or "packed"},
    }
    own = {name: value for key in ALGORITHMS[kind].keys for name, value in given[key].items() if value is not None}
    return {"kind": kind, **own}


def counts(of_algorithm: Mapping[str, Any], ranks: int) -> Counts:
    """Return the counts of one collective operation among `ranks` ranks; `of_algorithm` is a result of `algorithm`.

    A single rank sends nothing. The last group of butterfly_layered and hierarchical may be smaller than `group`.
    """
    from gradtide import _core

    steps, messages, sent, most = _core.collective_counts(json.dumps(of_algorithm), ranks)
    return Counts(steps, messages, Fraction(sent), Fraction(*most))


def graph(dag: "OpDag") -> dict[str, Any]:
    """Return the core's input for a graph of ops. `dag` has times in picoseconds; ids become indices."""
    place = {op.id: index for index, op in enumerate(dag.ops)}
    ops = [
        {
            "id": op.id,
            "name": op.name or f"op{op.id}",
            "inputs": [place[other] for other in op.inputs],
            "receives_bytes": op.bytes if op.kind == "recv" else None,
            "time_ps": op.time if op.kind == "comp" else 0,
            "param_only": op.param_only,
            "updates": [place[other] for other in op.updates],
        }
        for op in dag.ops
    ]
    forward = dag.inference_target
    return {
        "ops": ops,
        "target": place[dag.target],
        "inference_target": None if forward is None else place[forward],
    }


def dag(of_ops: "OpDag") -> dict[str, Any]:
    """Return the op DAG that `order` passes to the core: times are in ticks of the file, and ids become indices."""
    place = {op.id: index for index, op in enumerate(of_ops.ops)}
    ops = [
        {
            "id": op.id,
            "kind": op.kind,
            "inputs": [place[other] for other in op.inputs],
            "time_ticks": op.time,
            "param_only": op.param_only,
        }
        for op in of_ops.ops
    ]
    return {"ops": ops, "target": place[of_ops.target]}


def order(of_ops: "OpDag", scheduler: str, ranks: Mapping[int, int] | None, ties: str, seed: int) -> dict[str, Any]:
    """Return the order of a DAG's transfers by a scheduler or by `ranks` (priority by op id), with its makespan."""
    from gradtide import _core

    by: Any = {"arbitrary": ARBITRARY_PPM} if scheduler == "arbitrary" else scheduler
    if ranks is not None:
        by = {"given": [ranks.get(op.id, 0) for op in of_ops.ops]}
    spec = {"dag": dag(of_ops), "scheduler": by, "ties": ties, "seed": seed}
    found: dict[str, Any] = json.loads(_core.order(json.dumps(spec)))
    return found


def parallel(costs: Costs, layout: Layout, described: Described) -> dict[str, Any]:
    """Return the core's input for a model that is divided over ranks."""
    mesh, training = costs.mesh, costs.training
    zero = layout.zero if mesh.cp * mesh.fsdp > 1 else 0
    chunks = {"chunks": layout.chunks} if layout.pipeline == "interleaved" else {}
    return {
        "mesh": mesh.sizes,
        "gpus_per_node": layout.gpus_per_node,
        "sharding": f"zero{zero}" if zero else "none",
        "micro_batches": layout.micro_batches,
        "pipeline": {"kind": "one_f_one_b" if layout.pipeline == "1f1b" else layout.pipeline, **chunks},
        "sequence_parallel": training.sequence_parallel and mesh.tp > 1,
        "async_tp": layout.async_tp,
        "scatter_gather": layout.scatter_gather,
        "context": layout.context.replace("-", "_"),
        "forward_prefetch": layout.prefetch,
        "backward_prefetch": layout.backward_prefetch,
        "overlap_gradients": layout.overlap_gradients,
        "gloo": layout.gloo,
        "kinds": [{**kind._asdict(), "ops": [_op(op) for op in kind.ops]} for kind in described.kinds],
        "blocks": [{"name": name, "kind": kind} for name, kind in described.blocks],
        "units": described.unit_blocks,
        "stages": described.stages,
        "optimizer_ps": described.optimizer_ps,
        "activation_bytes": described.activation_bytes,
        "norm_bytes": NORM_BYTES,
        "tied_embedding_bytes": described.tied_embedding_bytes,
    }


def _op(op: Op) -> dict[str, Any]:
    return {**op._asdict(), "beside": [beside._asdict() for beside in op.beside]}


def recorded(step: Any, gpus_per_node: int) -> dict[str, Any]:
    """Return the core's input for a recorded step."""
    return {"gpus_per_node": gpus_per_node, "step": step}


def recorded_size(of_step: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return number of ranks, number of compute ops plus transfers, and compute time of a result of `recorded`.

    The compute time is the compute time of the slowest rank, in picoseconds.

    Raises:
        ValueError: if the step is inconsistent.
    """
    from gradtide import _core

    return _core.recorded_size(json.dumps(of_step))
