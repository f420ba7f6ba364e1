"""`Resolved`, the result of resolving a scenario: checked keys with all defaults."""

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
        file: the keys, with all defaults.
        fabric: topology of the network.
        jobs: the jobs, in the order of the file.
        origins: background flows of each tenant, in the order of the file.
        written: the resolved scenario as plain data.
        warnings: warnings, one sentence each, such as for parts of a model's file that have no effect.
        refusals: faults that prevent a run but not other uses of the scenario: models too large for memory.
    """

    file: ScenarioFile
    fabric: Fabric
    jobs: tuple[Job, ...]
    origins: tuple[Origin, ...]
    written: dict[str, Any]
    warnings: tuple[str, ...]
    refusals: tuple[Fault, ...]

    def groups(self) -> Iterator[Group]:
        """Yield the groups of hosts that communicate: the hosts of each job, and the groups of each tenant's flows."""
        return groups(self.jobs, self.origins, self.fabric)

    @cached_property
    def reach(self) -> Reach:
        """Longest route, slowest link and longest link delay over all routes between hosts that communicate."""
        return self.fabric.reach(self.groups())

    @property
    def all_simulated(self) -> bool:
        """Whether every rank of parallel jobs is simulated, rather than one rank of each class of equal ranks.

        This is necessary if ranks of a class may differ: on the packet engine, with other jobs or background traffic,
        with compute noise or a straggler, with `cluster.host`, and on networks of several switches, because routes
        share links. The value is False without a parallel job.
        """
        cluster, run = self.file.cluster, self.file.run
        if not any(job.is_parallel for job in self.jobs):
            return False
        differ = any(job.is_parallel and (job.compute.noise_ppm or job.compute.straggler) for job in self.jobs)
        is_beside = len(self.jobs) > 1 or bool(self.file.traffic)
        shares = cluster.host is not None or self.fabric.kind != "star"
        return run.engine == "packet" or bool(differ) or is_beside or shares


def groups(jobs: tuple[Job, ...], origins: tuple[Origin, ...], fabric: Fabric) -> Iterator[Group]:
    """Yield the groups of hosts that communicate: the hosts of each job, and the groups of each tenant's flows."""
    yield from (job.hosts for job in jobs)
    for origin in origins:
        yield from origin.groups(fabric.host_count)
