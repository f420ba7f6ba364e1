"""Whether the candidates of a study fit in memory, according to the summaries of their runs."""

from collections.abc import Mapping
from typing import Any

from gradtide.answer import Feasibility


def feasibility(job: Mapping[str, Any]) -> Feasibility:
    """Return whether a job fits in the memory of its ranks, given the job's table of a run's summary."""
    memory = job.get("parallel", {}).get("memory")
    return Feasibility() if memory is None else of_memory(memory)


def of_memory(memory: Mapping[str, Any]) -> Feasibility:
    """Return the feasibility from the job's table `parallel.memory`, with the options that would make the job fit."""
    ways = [f"--parallel {_mesh(way['parallel'])}" for way in memory.get("would_fit", ())]
    if memory.get("fits_on") is not None:
        ways.append(f"{memory['fits_on']['ranks']:,} GPUs and --parallel {_mesh(memory['fits_on']['parallel'])}")
    return Feasibility(memory["feasibility"], memory["total"], memory["device"], tuple(ways))


def _mesh(keys: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in keys.items())
