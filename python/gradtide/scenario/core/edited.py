"""Runs with changed core input: another link rate and order, or one job that sends over a single link."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradtide import _core
from gradtide.layers import Layer
from gradtide.scenario.core.input import without_traffic
from gradtide.scenario.core.job import ARBITRARY_PPM
from gradtide.units import PPM

if TYPE_CHECKING:
    from gradtide.scenario import Scenario


def run_at(
    scenario: "Scenario", rate_bps: int, order: str, *, barrier: bool, most_iterations: int
) -> list[dict[str, Any]]:
    """Run a scenario with `cluster.link.rate`, and order and barrier of all jobs, replaced; return each job's summary.

    `run.duration` is ignored; a job has at most `most_iterations`.
    """
    spec = scenario.spec()
    spec["cluster"]["link"]["rate_bps"] = rate_bps
    spec["run"].update(duration_ps=None, timeline_iterations=0)
    for job in spec["jobs"]:
        own = job["schedule"]["order"]
        # In the core's input, order = "file" with release events has the kind "planned".
        if own["kind"] != order and (own["kind"], order) != ("planned", "file"):
            job["schedule"]["order"] = _order(order)
        job["schedule"]["barrier"] = barrier
        job["iterations"] = min(job["iterations"] or most_iterations, most_iterations)
    return _jobs(_core.run(json.dumps(spec)))


@dataclass(frozen=True)
class Schedule:
    """A schedule for `OneChannel`, with the rate of its link.

    Attributes:
        order: name of the order; `planned` for buckets with release times.
        layer_counts: number of layers of each bucket, from the input side.
        chunk_bytes: size of a chunk; None for whole buckets.
        barrier: whether the next forward pass waits for all transfers.
        overhead_ps: time before the first byte of each transfer.
        rate_bps: rate of the link.
    """

    order: str
    layer_counts: Sequence[int]
    chunk_bytes: int | None
    barrier: bool
    overhead_ps: int
    rate_bps: int


class OneChannel:
    """Runs the job of a scenario between two hosts on the fluid engine, as a ring over links without latency.

    A transfer of d bytes takes `overhead_ps` plus the time of d bytes at `rate_bps`, because each of the two hosts
    sends d/2 twice.

    Args:
        scenario: a scenario with one job.
        iterations: number of measured iterations per run.
    """

    def __init__(self, scenario: "Scenario", iterations: int) -> None:
        spec = without_traffic(scenario)
        (job,) = spec["jobs"]
        job.update(
            hosts=[0, 1],
            iterations=iterations,
            collective={**job["collective"], "algorithm": {"kind": "ring"}, "depth": 1, "reduction_rate_bps": None},
            compute={**job["compute"], "noise_ppm": 0, "straggler": None},
        )
        job["schedule"]["credit"] = 1
        del job["layers"]
        spec["cluster"].update(topology={"kind": "star", "hosts": 2}, node=None, host_latency_ps=0, host=None)
        spec["run"].update(engine="fluid", accuracy_ppm=None, duration_ps=None, timeline_iterations=0, probe=None)
        self._job, self._cluster, self._run = job, spec["cluster"], spec["run"]

    def planned(self, schedule: Schedule, layers: str) -> list[tuple[list[int], int]]:
        """Return the plan of `schedule.order`: layers and release time (ps) of each bucket, in send order."""
        return _core.planned(self._text(schedule, layers, {"kind": schedule.order}), 0)

    def times_ps(self, schedule: Schedule, layers: str, buckets: Sequence[tuple[Sequence[int], int]] = ()) -> list[int]:
        """Return the iteration times. The order `planned` needs `buckets`: layers and release time (ps) of each."""
        order = _order(schedule.order)
        if schedule.order == "planned":
            order["buckets"] = [{"layers": members, "release_ps": release_ps} for members, release_ps in buckets]
        (job,) = _jobs(_core.run(self._text(schedule, layers, order)))
        times_ps: list[int] = job["iteration_time_ps"]
        return times_ps

    def _text(self, schedule: Schedule, layers: str, order: dict[str, Any]) -> str:
        fusion = {"kind": "buckets", "layer_counts": schedule.layer_counts}
        keys = {"order": order, "fusion": fusion, "chunk_bytes": schedule.chunk_bytes, "barrier": schedule.barrier}
        keys["overhead_ps"] = schedule.overhead_ps
        job = json.dumps({**self._job, "schedule": {**self._job["schedule"], **keys}})
        link = {"rate_bps": schedule.rate_bps, "delay_ps": 0, "efficiency_ppm": PPM}
        rest = json.dumps({"traffic": [], "cluster": {**self._cluster, "link": link}, "run": self._run})
        return f'{rest[:-1]},"jobs":[{job[:-1]},"layers":{layers}}}]}}'


def layers_json(layers: Sequence[Layer]) -> str:
    """Return layers as the JSON text that `OneChannel` takes. Many schedules can share one text."""
    return json.dumps([layer._asdict() for layer in layers])


def _order(kind: str) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {"priority": {"queues": None}, "arbitrary": {"disorder_ppm": ARBITRARY_PPM}}
    return {"kind": kind, **more.get(kind, {})}


def _jobs(output: _core.RunOutput) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(output.summary_json)["jobs"]
    return jobs
