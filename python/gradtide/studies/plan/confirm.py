"""A plan of a packet scenario: searched on the fluid engine, then run packet by packet.

A search takes hundreds of runs, which packets would make hours. So the fluid engine searches, and what it finds is run
once more on the engine that was asked about, beside what it is compared with. The figures of a plan are those runs'.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from gradtide.answer import Premise
from gradtide.errors import LimitReached, ScenarioError, SimulationError
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.network import altered
from gradtide.studies.run import run_all

Name = TypeVar("Name")


def on_fluid(asked: Scenario) -> Scenario:
    """Return a scenario on the fluid engine, without what only packets have: queues, transport, bands."""
    of_packets = ("queue", "switch_buffer", "transport", "probe", "follow", "start_jitter", "announce", "priority")
    return altered(asked, engine="fluid", **dict.fromkeys(of_packets))


def confirmed(scenarios: Mapping[Name, Scenario], how: Mapping[str, Any]) -> tuple[dict[Name, RunResult], str]:
    """Run what a search on another engine has found, each scenario on its own engine.

    Args:
        scenarios: by what the study calls them.
        how: the `jobs`, `progress`, `keep` and `limits` of `run_all`.

    Returns:
        The runs; or none, and why: they would take more than the limits, or one of them cannot go on.
    """
    try:
        return dict(zip(scenarios, run_all(list(scenarios.values()), **how), strict=True)), ""
    except LimitReached:
        raise
    except ScenarioError as error:
        return {}, "; ".join(fault.msg for fault in error.faults)
    except SimulationError as error:
        return {}, str(error)


def engines(searched_on: str, asked: str, why_not: str) -> dict[str, Any]:
    """Return the keys of a summary that say which engine searched, and which one the figures are of."""
    found = {"searched_on": searched_on, "confirmed_on": searched_on if why_not else asked}
    return {**found, "not_confirmed": why_not} if why_not else found


def premises(searched_on: str, asked: str, why_not: str) -> list[Premise]:
    """Return the premise that a search on another engine is."""
    if searched_on == asked:
        return []
    figures = f"not confirmed on {asked}" if why_not else f"figures from {asked} runs"
    return [Premise("engine of the search", f"{searched_on} ({figures})", False)]


def sentence(searched_on: str, asked: str, why_not: str) -> list[str]:
    """Say which engine searched, where it is not the one that was asked about."""
    if searched_on == asked:
        return []
    if why_not:
        return [f"Searched and predicted on the {searched_on} engine, not on the {asked} engine: {why_not}."]
    return [f"Searched on the {searched_on} engine. The iteration times are of runs on the {asked} engine."]
