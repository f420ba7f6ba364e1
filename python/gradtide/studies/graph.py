"""Builds the op DAG of a built-in model on a device, or reads an op DAG from a file."""

import os
from pathlib import Path

from gradtide import presets, units
from gradtide.errors import hinted
from gradtide.presets.graphs import TASKS, graph_document, graph_names
from gradtide.scenario.opdag import OpDag, load_op_dag, op_dag

DEVICE, TASK, RATE = "K80", "train", "10Gbps"
"""Defaults of built-in graphs: GPU, task and link rate as in the evaluation of TicTac, on cloud machines with K80s."""


def preset_graph(
    name: str, device: str = DEVICE, batch: int | None = None, task: str = TASK, rate: str = RATE
) -> OpDag:
    """Return the op DAG of a training step or inference of a built-in model on one worker.

    Times are whole nanoseconds. Times of ops follow from the roofline of the device (docs/models/compute.md), times of
    transfers from their bytes and `rate`.

    Args:
        name: name in the list of `gradtide presets graph`.
        device: a device preset, case-insensitive.
        batch: number of samples in the mini-batch. Default: the batch size in the paper that the model is from.
        task: train or inference; inference is the forward pass only.
        rate: rate at which parameters are received, as in 10Gbps.

    Raises:
        ValueError: if the graph, device or task does not exist, the batch is below 1, or the rate is invalid.

    Example:
        >>> dag = preset_graph("tictac_vgg16", device="v100", batch=64)
        >>> len(dag.ops), len(dag.recvs)
        (215, 32)
    """
    if name not in graph_names():
        raise ValueError(f"no op graph is called {name!r}; {_near(name, graph_names(), 'model')}")
    if task not in TASKS:
        raise ValueError(f"no task is called {task!r}; {_near(task, TASKS)}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    rate_bps = units.parse_option("rate", units.parse_rate, rate)
    if rate_bps == 0:
        raise ValueError("rate: at 0 bit/s nothing is ever received")
    try:
        computes = presets.device(device).name
    except KeyError:
        raise ValueError(f"no device is called {device!r}; {_near(device, presets.device_names(), 'device')}") from None
    return op_dag(graph_document(name, computes, batch, task, rate_bps))


def find_dag(
    given: str | Path,
    device: str | None = None,
    batch: int | None = None,
    task: str | None = None,
    rate: str | None = None,
) -> OpDag:
    """Return the op DAG in the file `given`. A name that is not a file and has no dot or slash is a built-in model."""
    name = str(given)
    is_file = isinstance(given, Path) or os.path.exists(name) or "." in name or "/" in name
    if not is_file:
        return preset_graph(name, device or DEVICE, batch, task or TASK, rate or RATE)
    for word, value in (("device", device), ("batch", batch), ("task", task), ("rate", rate)):
        if value is not None:
            raise ValueError(f"{word} applies only to built-in op graphs; the file {name} has its own times")
    return load_op_dag(given)


def _near(name: str, known: "list[str] | tuple[str, ...]", kind: str | None = None) -> str:
    return hinted(name, known, f"there are {', '.join(known)}", kind=kind)
