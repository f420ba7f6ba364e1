"""Plans for packet scenarios: searched on the fluid engine, then confirmed on the packet engine.

A search takes hundreds of runs, which would take hours on the packet engine. The search therefore uses the fluid
engine. Afterwards the best plans and the baselines are run on the packet engine, and the plan reports the figures of
these runs.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from gradtide.answer import Premise
from gradtide.errors import LimitReached, ScenarioError, SimulationError
from gradtide.scenario import Scenario
from gradtide.studies.network import altered
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_all

Name = TypeVar("Name")


def on_fluid(requested: Scenario) -> Scenario:
    """Return a scenario on the fluid engine, without the keys of the packet engine: queues, transport, bands."""
    of_packets = ("queue", "switch_buffer", "transport", "probe", "follow", "start_jitter", "announce", "priority")
    return altered(requested, engine="fluid", **dict.fromkeys(of_packets))


def confirmed(scenarios: Mapping[Name, Scenario], how: Mapping[str, Any]) -> tuple[dict[Name, RunResult], str]:
    """Run the results of a search on another engine, each scenario on its own engine.

    Args:
        scenarios: the scenarios, by their names in the study.
        how: arguments `jobs`, `progress`, `keep` and `limits` of `run_all`.

    Returns:
        The runs and an empty text; or no runs and the reason, if they would exceed the limits or one of them failed.
    """
    try:
        return dict(zip(scenarios, run_all(list(scenarios.values()), **how), strict=True)), ""
    except LimitReached:
        raise
    except ScenarioError as error:
        return {}, "; ".join(fault.msg for fault in error.faults)
    except SimulationError as error:
        return {}, str(error)


def engines(searched_on: str, requested: str, why_not: str) -> dict[str, Any]:
    """Return the keys of a summary that name the engine of the search and the engine of the figures."""
    found = {"searched_on": searched_on, "confirmed_on": searched_on if why_not else requested}
    return {**found, "not_confirmed": why_not} if why_not else found


def premises(searched_on: str, requested: str, why_not: str) -> list[Premise]:
    """Return the premise that the search used another engine than the user's; empty if it used the same engine."""
    if searched_on == requested:
        return []
    figures = f"not confirmed on {requested}" if why_not else f"figures from {requested} runs"
    return [Premise("engine of the search", f"{searched_on} ({figures})", False)]


def sentence(searched_on: str, requested: str, why_not: str) -> list[str]:
    """Return a sentence with the engine of the search, if it differs from the user's engine."""
    if searched_on == requested:
        return []
    if why_not:
        return [f"Searched and predicted on the {searched_on} engine, not on the {requested} engine: {why_not}."]
    return [f"Searched on the {searched_on} engine. The iteration times are of runs on the {requested} engine."]
