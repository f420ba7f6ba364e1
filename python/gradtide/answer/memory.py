"""Whether what a study compares fits in memory, from the figures of its run."""

from collections.abc import Mapping
from typing import Any

from gradtide.answer import Feasibility


def feasibility(job: Mapping[str, Any]) -> Feasibility:
    """Return whether a job of a run's summary fits in the memory of its ranks."""
    memory = job.get("parallel", {}).get("memory")
    if memory is None or memory["device"] is None:
        return Feasibility()
    fits = memory["total"] <= memory["device"]
    return Feasibility("fits" if fits else "does not fit", memory["total"], memory["device"])
