"""The runs of tenant studies: their keys (cases), scenarios and folder names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradtide.scenario import Scenario
from gradtide.studies import run

SAME, LOW, NO_JOB = "same", "low", "no-job"
"""Sides of a study: jobs in the band of the background flows, jobs in a lower band, and no jobs.

Policies are further sides, by name.
"""

BANDS = (SAME, LOW)

SAMPLES, SAMPLED_ROWS = 800, 400_000
"""Number of samples of a run's probe, and largest number of rows of its table; the rows are for figures."""


class Cell(NamedTuple):
    """A cell of a map: the loads of the job and of the background flows, as shares of a host's link."""

    job_load: float
    traffic_load: float

    @property
    def name(self) -> str:
        """The name of the cell's folder, such as `job-25-flows-3.125`."""
        return f"job-{100 * self.job_load:g}-flows-{100 * self.traffic_load:g}"


@dataclass(frozen=True)
class Case:
    """Key of a run in a study: seed, side, and cell of a map; the cell is `None` for the unchanged scenario."""

    seed: int
    side: str
    cell: Cell | None = None

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"seed{self.seed}-{self.side}"

    @property
    def name(self) -> str:
        """The name of the run in its study."""
        return self.folder if self.cell is None else f"{self.cell.name}/{self.folder}"


def known_seeds(finished: Iterable[Case], seeds: Sequence[int], sides: Sequence[str] = BANDS) -> list[int]:
    """Return the seeds for which all sides have finished."""
    found = {(case.seed, case.side) for case in finished}
    return [seed for seed in seeds if all((seed, side) in found for side in sides)]


def head(
    kind: str, base: Scenario, seeds: Sequence[int], job: str, failed: Mapping[Case, str] | None = None
) -> dict[str, Any]:
    """Return the first keys of a study's summary; `failed` contains the reasons of failed runs."""
    why = {case.name: error for case, error in (failed or {}).items()}
    return {
        **run.head(kind, base.engine),
        "seeds": list(seeds),
        "job": job,
        "model": next(one.model for one in base.jobs if one.name == job),
        **({"failed": why} if why else {}),
    }


def checked(base: Scenario, seeds: Sequence[int]) -> list[int]:
    """Return the seeds that produce different runs; raise if a scenario has no jobs or no background flows."""
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
    """Raise if a scenario has several jobs; `why` is the reason why the study supports only one."""
    if len(base.jobs) > 1:
        names = ", ".join(job.name for job in base.jobs)
        raise ValueError(
            f"the scenario has {len(base.jobs)} jobs ({names}); this study takes one, because {why}: delete the others"
        )


def moved_jobs(base: Scenario, job: str | None) -> tuple[str, ...]:
    """Return the names of the jobs whose band a study changes: the job `job`, or all jobs if it is `None`."""
    names = tuple(one.name for one in base.jobs)
    if job is None:
        return names
    if job not in names:
        raise ValueError(f'job: the scenario has no job "{job}"; it has {", ".join(names)}')
    return (job,)


def variant(base: Scenario, seed: int, side: str, moved: Sequence[str] | None = None) -> Scenario:
    """Return the scenario of one seed and side: jobs in the flows' band, jobs in the low band, or no jobs.

    Only jobs in `moved` change their band; `None` means all jobs. A job whose priority is a list of bands keeps the
    list on the side `LOW`, because it already uses several bands.
    """
    if side == NO_JOB:
        return without_jobs(base).replace(seed=seed)

    def priority(bands: Sequence[int]) -> int | str | list[int]:
        if side == SAME:
            return int(base.traffic[0].band[0])
        return list(bands) if len(bands) > 1 else "low"

    return prioritised(base, seed, {job.name: priority(job.bands) for job in base.jobs}, moved)


def prioritised(base: Scenario, seed: int, priority: Mapping[str, Any], moved: Sequence[str] | None = None) -> Scenario:
    """Return the scenario of one seed with other priorities of jobs; `priority` maps names of jobs to priorities."""
    names = [name for name in priority if moved is None or name in moved]
    return base.replace(seed=seed).set({f"job.{name}.priority": priority[name] for name in names})


def without_jobs(base: Scenario) -> Scenario:
    """Return the scenario without its jobs, with only its background flows."""
    keys = base.to_dict()
    del keys["job"]
    return Scenario.from_dict(keys)


def probed(base: Scenario) -> Scenario:
    """Return the scenario with a probe, which figures of queues and links need; a probe of its own is kept."""
    if "probe" in base.to_dict()["run"] or base.duration_ps is None or base.engine != "packet":
        return base
    count = max(50, min(SAMPLES, SAMPLED_ROWS // (2 * base.fabric.cable_count)))
    least_ps = max(base.duration_ps // count, 1)
    unit_ps = 10 ** (len(str(least_ps)) - 1)
    every_ps = next(factor * unit_ps for factor in (1, 2, 5, 10) if factor * unit_ps >= least_ps)
    return base.set({"run.probe": {"every": f"{every_ps}ps"}})
