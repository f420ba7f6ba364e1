"""The runs of the tenant studies: how they are identified (`Case`), their scenarios, and the names of their folders."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradtide.scenario import Scenario
from gradtide.studies import run

SAME, LOW, NO_JOB = "same", "low", "no-job"
"""The sides that a study compares: jobs in the band of the background flows, jobs in the lowest band, and no jobs.

In a study of policies, each policy is a side as well, by its name.
"""

BANDS = (SAME, LOW)

SAMPLES, SAMPLED_ROWS = 800, 400_000
"""Number of samples of links and queues per run, for plots, and largest number of rows of all samples together."""


class Cell(NamedTuple):
    """A cell of a map over loads: loads of a host's link by the job and by the flows, as shares of the link rate."""

    job_load: float
    traffic_load: float

    @property
    def name(self) -> str:
        """The name of the cell's folder, such as `job-25-flows-3.125`."""
        return f"job-{100 * self.job_load:g}-flows-{100 * self.traffic_load:g}"


@dataclass(frozen=True)
class Case:
    """Identifies a run of a study by its seed, its side, and its cell (`None` if the study is not a map)."""

    seed: int
    side: str
    cell: Cell | None = None

    @property
    def folder(self) -> str:
        """The name of the run's folder, within the folder of its cell."""
        return f"seed{self.seed}-{self.side}"

    @property
    def name(self) -> str:
        """The name of the run in the study, which includes the cell."""
        return self.folder if self.cell is None else f"{self.cell.name}/{self.folder}"


def known_seeds(finished: Iterable[Case], seeds: Sequence[int], sides: Sequence[str] = BANDS) -> list[int]:
    """Return the seeds for which the runs of all `sides` are in `finished`."""
    found = {(case.seed, case.side) for case in finished}
    return [seed for seed in seeds if all((seed, side) in found for side in sides)]


def head(
    kind: str, base: Scenario, seeds: Sequence[int], job: str, failed: Mapping[Case, str] | None = None
) -> dict[str, Any]:
    """Return the first keys of a study's summary; `failed` contains the error messages of failed runs."""
    why = {case.name: error for case, error in (failed or {}).items()}
    return {
        **run.head(kind, base.engine),
        "seeds": list(seeds),
        "job": job,
        "model": next(one.model for one in base.jobs if one.name == job),
        **({"failed": why} if why else {}),
    }


def checked(base: Scenario, seeds: Sequence[int]) -> list[int]:
    """Return the seeds without repetitions; raise if there are no jobs, no background flows, or no seeds."""
    if not base.traffic:
        shown = "describe background flows there, as docs/for-network-operators.md shows"
        raise ValueError(f"the scenario has no [traffic.NAME]; {shown}")
    if not len(base.traffic[0].band):
        name = base.traffic[0].name
        raise ValueError(f"[traffic.{name}] has no flow within run.duration: make it longer, or the load higher")
    if not base.jobs:
        raise ValueError("the scenario has no [job.NAME]: nothing can be de-prioritised; use `gradtide run`")
    if not seeds:
        raise ValueError("give at least one seed")
    return base.different(seeds)


def check_one_job(base: Scenario, why: str) -> None:
    """Raise a ValueError if the scenario has several jobs; `why` explains why the study supports only one."""
    if len(base.jobs) > 1:
        names = ", ".join(job.name for job in base.jobs)
        raise ValueError(
            f"the scenario has {len(base.jobs)} jobs ({names}); this study takes one, because {why}: delete the others"
        )


def moved_jobs(base: Scenario, job: str | None) -> tuple[str, ...]:
    """Return the names of the jobs whose band a study changes: only `job`, or all jobs if `job` is `None`."""
    names = tuple(one.name for one in base.jobs)
    if job is None:
        return names
    if job not in names:
        raise ValueError(f'job: the scenario has no job "{job}"; it has {", ".join(names)}')
    return (job,)


def variant(base: Scenario, seed: int, side: str, moved: Sequence[str] | None = None) -> Scenario:
    """Return the scenario with a seed and a side: jobs in the flows' band, jobs in the lowest band, or no jobs.

    Only jobs in `moved` change their band (`None`: all jobs). On the side `LOW`, a job whose priority is a list of
    several bands keeps this list.
    """
    if side == NO_JOB:
        return without_jobs(base).replace(seed=seed)

    def priority(bands: Sequence[int]) -> int | str | list[int]:
        if side == SAME:
            return int(base.traffic[0].band[0])
        return list(bands) if len(bands) > 1 else "low"

    return prioritised(base, seed, {job.name: priority(job.bands) for job in base.jobs}, moved)


def prioritised(base: Scenario, seed: int, priority: Mapping[str, Any], moved: Sequence[str] | None = None) -> Scenario:
    """Return the scenario with a seed and with `priority` by name of job; only jobs in `moved` are changed."""
    names = [name for name in priority if moved is None or name in moved]
    return base.replace(seed=seed).set({f"job.{name}.priority": priority[name] for name in names})


def without_jobs(base: Scenario) -> Scenario:
    """Return the scenario with only its background flows."""
    keys = base.to_dict()
    del keys["job"]
    return Scenario.from_dict(keys)


def probed(base: Scenario) -> Scenario:
    """Return a packet scenario with periodic samples of links and queues, for plots; existing `run.probe` is kept."""
    if "probe" in base.to_dict()["run"] or base.duration_ps is None or base.engine != "packet":
        return base
    count = max(50, min(SAMPLES, SAMPLED_ROWS // (2 * base.fabric.cable_count)))
    least_ps = max(base.duration_ps // count, 1)
    unit_ps = 10 ** (len(str(least_ps)) - 1)
    every_ps = next(factor * unit_ps for factor in (1, 2, 5, 10) if factor * unit_ps >= least_ps)
    return base.set({"run.probe": {"every": f"{every_ps}ps"}})
