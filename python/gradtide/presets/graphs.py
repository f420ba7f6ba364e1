"""Op graphs of training steps as counts (FLOPs, bytes moved), and their conversion into times on a device.

A counted graph is a dictionary with `target`, `inference_target` and `ops`. Every op has `id`, `name`, `kind` and
`inputs`. An op of kind `recv` receives a parameter and has its `bytes`. A `comp` computes: it may have `flops` and
`moved_bytes` (views have neither), `winograd`, `param_only`, and `updates`, the ids of the recvs whose gradients it
produces. In a profile of one mini-batch, counts are numbers; in a preset, they are pairs [fixed, per sample].
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradtide.presets.data import folder, stems
from gradtide.presets.devices import Device, device
from gradtide.roofline import op_seconds

SCHEMA = "gradtide.graph/1"
NANOSECONDS_PER_SECOND = 10**9
TASKS = ("train", "inference")


@dataclass(frozen=True)
class GraphPreset:
    """The training step of a built-in model as a counted graph, whose counts are pairs [fixed, per sample].

    `batch` is the number of samples per mini-batch in the paper, `sample` describes a sample.
    """

    name: str
    title: str
    source: str
    sample: str
    batch: int
    counts: Mapping[str, Any]

    @property
    def tensors(self) -> int:
        """Number of parameter tensors that a worker receives."""
        return sum(op["kind"] == "recv" for op in self.counts["ops"])

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, fp32."""
        return sum(op["bytes"] for op in self.counts["ops"] if op["kind"] == "recv")

    def described(self) -> dict[str, Any]:
        """Return the graph as a row of the table of presets."""
        return {
            "kind": "graph",
            "name": self.name,
            "title": self.title,
            "sample": self.sample,
            "batch": self.batch,
            "tensors": self.tensors,
            "ops": len(self.counts["ops"]),
            "forward_ops": len(inference_part(self.counts)["ops"]),
            "parameter_mib": self.parameter_bytes / 2**20,
            "source": self.source,
        }

    def at(self, batch: int) -> dict[str, Any]:
        """Return the counted graph for a mini-batch of `batch` samples."""
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        ops = []
        for op in self.counts["ops"]:
            known = {key: op[key][0] + op[key][1] * batch for key in ("flops", "moved_bytes") if key in op}
            ops.append({**op, **known})
        return {**self.counts, "ops": ops}


def graph_names() -> list[str]:
    """Return the names of the built-in op graphs, sorted."""
    return stems("graphs", ".json")


@cache
def graph(name: str) -> GraphPreset:
    """Return a built-in op graph.

    Raises:
        KeyError: if the name is unknown.

    Example:
        >>> graph("tictac_vgg16").tensors
        32
    """
    if name not in graph_names():
        raise KeyError(f"unknown op graph {name!r}; built in are {', '.join(graph_names())}")
    document = json.loads(folder("graphs").joinpath(f"{name}.json").read_text(encoding="utf-8"))
    head = {key: document[key] for key in ("name", "title", "source", "sample", "batch")}
    return GraphPreset(**head, counts={key: document[key] for key in ("target", "inference_target", "ops")})


def graph_document(name: str, machine: Device | str, batch: int | None, task: str, rate_bps: int) -> dict[str, Any]:
    """Return the op graph of a built-in model with times on a device, in the format of `gradtide order`.

    The default of `batch` is the paper's mini-batch. `task` is train, or inference for the forward pass alone.
    Parameters are received at `rate_bps`, above 0.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    found, machine = graph(name), device(machine) if isinstance(machine, str) else machine
    batch = found.batch if batch is None else batch
    timed = with_times(found.at(batch), roofline_seconds(machine), rate_bps)
    return {
        "model": found.name,
        "device": machine.name,
        "batch": batch,
        "train": task == "train",
        "gbps": rate_bps / 1e9,
        "time_unit": "ns",
        **(timed if task == "train" else inference_part(timed)),
    }


def roofline_seconds(machine: Device) -> Callable[[Mapping[str, Any]], float]:
    """Return a function that returns the roofline time of a counted comp in seconds on a device; 0 for views."""
    return lambda op: op_seconds(op.get("flops", 0), op.get("moved_bytes", 0), bool(op.get("winograd")), machine)


def with_times(
    counts: Mapping[str, Any], seconds: Callable[[Mapping[str, Any]], float], rate_bps: int
) -> dict[str, Any]:
    """Return a counted graph of one mini-batch with counts replaced by `time` in whole nanoseconds.

    The time of a recv is its bytes over `rate_bps`, rounded up. The time of a comp is `seconds(comp)`, rounded.
    """
    ops = []
    for op in counts["ops"]:
        row = {key: op[key] for key in ("id", "name", "kind", "inputs")}
        if op["kind"] == "recv":
            row["time"] = -(-op["bytes"] * 8 * NANOSECONDS_PER_SECOND // rate_bps)
            row["bytes"] = op["bytes"]
        else:
            row["time"] = round(seconds(op) * NANOSECONDS_PER_SECOND)
            row["param_only"] = op.get("param_only", False)
            if "updates" in op:
                row["updates"] = op["updates"]
        ops.append(row)
    return {"target": counts["target"], "inference_target": counts["inference_target"], "ops": ops}


def inference_part(timed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the forward pass of a training step: `inference_target`, which becomes the target, and its ancestors."""
    needed = {timed["inference_target"]}
    for op in reversed(timed["ops"]):  # topological order: inputs come first
        if op["id"] in needed:
            needed.update(op["inputs"])
    ops = [{key: op[key] for key in op if key != "updates"} for op in timed["ops"] if op["id"] in needed]
    return {"target": timed["inference_target"], "inference_target": timed["inference_target"], "ops": ops}
