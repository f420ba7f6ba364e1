"""Runs a scenario in the core, and computes properties of its jobs that need no run."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradtide import _core
from gradtide.scenario.core.input import as_json, cluster_spec, job_spec, without_traffic

if TYPE_CHECKING:
    from gradtide.scenario import Scenario


def core_input(scenario: "Scenario") -> str:
    """Return the core's input for a scenario.

    Raises:
        ScenarioError: if the engine does not support a feature of the scenario.
    """
    return as_json(scenario.spec())


def run(scenario: "Scenario", progress: Callable[[float], object] | None = None) -> _core.RunOutput:
    """Run a scenario; `progress` is called repeatedly with the fraction of the run that is complete."""
    return _core.run(core_input(scenario), progress)


def routed(scenario: "Scenario") -> dict[str, Any]:
    """Return the network in the form for another simulator: links, TCP's timers, and routes of flows and rings."""
    found: dict[str, Any] = json.loads(_core.routed(core_input(scenario)))
    return found


def emulation(scenario: "Scenario", options: dict[str, Any]) -> "_core.Emulation":
    """Start an emulation of a scenario's hosts and switches, through which programs exchange real packets.

    Raises:
        EmulationRefusal: if the scenario cannot be emulated on this system.
    """
    return _core.Emulation(as_json({**scenario.spec(), "traffic": []}), json.dumps(options))


def step_graph(scenario: "Scenario") -> dict[str, Any] | None:
    """Return the graph of ops and transfers of a parallel job's iteration; None if no job is parallel."""
    text = _core.step_graph(Queries(scenario).text)
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found


def ranks_load(scenario: "Scenario") -> dict[str, tuple[int, int, int]]:
    """Return the work per iteration of each parallel job, by name of the job.

    The three numbers are the compute ops plus transfers, the messages, and the bytes that cross network cards.
    """
    resolved = scenario._resolved
    cluster = json.dumps(cluster_spec(resolved))
    jobs = ((job.name, job_spec(job, resolved.fabric)) for job in resolved.jobs if job.is_parallel)
    return {name: _core.ranks_load(json.dumps(spec), cluster) for name, spec in jobs}


class Queries:
    """Properties of a scenario's jobs that need no run; background flows are neither drawn nor used."""

    def __init__(self, scenario: "Scenario") -> None:
        self.text = json.dumps(without_traffic(scenario))

    def planned(self, job: int) -> list[tuple[list[int], int]]:
        """Return, for each bucket in send order, its layers and its release time in picoseconds of compute time."""
        return _core.planned(self.text, job)

    def messages(self, job: int, size: int) -> _core.Table:
        """Return the messages of one collective operation on `size` bytes. `job` is the number of the job."""
        return _core.messages(self.text, job, size)

    def transfer_times(self, job: int) -> list[int]:
        """Return the time in picoseconds that each layer's gradient takes on an idle network.

        If workers pull from servers, the times are those of pulling the layer's parameters.
        """
        return _core.transfer_times(self.text, job)
