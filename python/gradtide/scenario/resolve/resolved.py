"""The result of `resolve`: a scenario without faults, with every default."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradtide.errors import Fault
from gradtide.scenario.fabric import Fabric, Group, Reach
from gradtide.scenario.job import Job
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.origins import Origin


@dataclass
class Resolved:
    """A scenario whose keys have been checked.

    Attributes:
        file: the keys, with defaults.
        fabric: topology of the network.
        jobs: the jobs, in the order of the file.
        origins: the source of each tenant's flows, in the order of the file.
        written: the resolved scenario as plain data.
        warnings: a sentence for each part of a model's file that the job ignores, and for each inconsistency.
        refusals: faults that prevent a run, although the scenario can be read.
    """

    file: ScenarioFile
    fabric: Fabric
    jobs: tuple[Job, ...]
    origins: tuple[Origin, ...]
    written: dict[str, Any]
    warnings: tuple[str, ...]
    refusals: tuple[Fault, ...]

    def groups(self) -> Iterator[Group]:
        """Yield the groups of hosts that communicate: those of each job and of each tenant's flows."""
        return groups(self.jobs, self.origins, self.fabric)

    @cached_property
    def reach(self) -> Reach:
        """The worst case of all routes between hosts that communicate."""
        return self.fabric.reach(self.groups())

    @property
    def all_simulated(self) -> bool:
        """Whether every rank of the parallel jobs is simulated, rather than one representative per class of ranks.

        Every rank is simulated if ranks of a class may differ: on the packet engine; if there are other jobs or
        background traffic; if compute has noise or a straggler; if the cluster sets `host`; and on a network of several
        switches, because routes share its links. Without a parallel job the value is False.
        """
        cluster, run = self.file.cluster, self.file.run
        if not any(job.is_parallel for job in self.jobs):
            return False
        differ = any(job.is_parallel and (job.compute.noise_ppm or job.compute.straggler) for job in self.jobs)
        is_beside = len(self.jobs) > 1 or bool(self.file.traffic)
        shares = cluster.host is not None or self.fabric.kind != "star"
        return run.engine == "packet" or bool(differ) or is_beside or shares


def groups(jobs: tuple[Job, ...], origins: tuple[Origin, ...], fabric: Fabric) -> Iterator[Group]:
    """Yield the groups of hosts that communicate."""
    yield from (job.hosts for job in jobs)
    for origin in origins:
        yield from origin.groups(fabric.host_count)
