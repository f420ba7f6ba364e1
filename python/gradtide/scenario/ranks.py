"""Decides whether one rank per class of a parallel model represents the class, or every rank is simulated."""

from collections.abc import Iterator

from gradtide.scenario.resolve import Resolved
from gradtide.scenario.source import Loc


def reasons(resolved: Resolved) -> Iterator[tuple[Loc, str]]:
    """Yield the reasons why ranks of a class differ, as (location, text); with any reason all ranks are simulated."""
    cluster = resolved.file.cluster
    for job in resolved.jobs:
        if not job.is_divided:
            continue
        loc: Loc = ("job", job.name)
        if len(resolved.jobs) > 1 or resolved.file.traffic:
            yield (
                (*loc, "model" if job.division is None else "parallel"),
                "a divided model beside other jobs or background traffic",
            )
        if job.compute.noise_ppm:
            yield (*loc, "compute", "noise"), "a divided model whose ranks differ"
        if job.compute.straggler is not None:
            yield (*loc, "compute", "straggler"), "a divided model with a straggler"
        if cluster.host is not None:
            yield ("cluster", "host"), "a divided model on hosts with stages"
        if resolved.fabric.kind != "star":
            # Routes have different lengths and share links, so ranks of a class differ.
            yield ("cluster", "topology"), "a divided model on a network of several switches"


def all_simulated(resolved: Resolved) -> bool:
    """Return whether every rank of the parallel models is simulated; False if there is no such model."""
    is_divided = any(job.is_divided for job in resolved.jobs)
    return is_divided and (resolved.file.run.engine == "packet" or any(reasons(resolved)))
