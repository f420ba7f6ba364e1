"""Plans for scenarios with the packet engine: searched with the fluid engine, then confirmed with the packet engine.

The hundreds of runs of a search would take hours with the packet engine. Only the baselines and the best plans are
therefore run with the packet engine, after the search, and the result has the figures of these runs.
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
    """Return the scenario with the fluid engine, and without keys that only the packet engine supports."""
    of_packets = ("queue", "switch_buffer", "transport", "probe", "follow", "start_jitter", "announce", "priority")
    return altered(requested, engine="fluid", **dict.fromkeys(of_packets))


def confirmed(scenarios: Mapping[Name, Scenario], how: Mapping[str, Any]) -> tuple[dict[Name, RunResult], str]:
    """Run the best plans of a search with the user's engine.

    Args:
        scenarios: scenarios with the user's engine; the keys also identify the returned runs.
        how: arguments `jobs`, `progress`, `keep` and `limits` of `run_all`.

    Returns:
        The runs and an empty text. If a run fails or would exceed the limits: no runs, and the reason.
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
    """Return summary keys on the engine of the search and of the figures. `why_not` is the text of `confirmed`."""
    found = {"searched_on": searched_on, "confirmed_on": searched_on if why_not else requested}
    return {**found, "not_confirmed": why_not} if why_not else found


def premises(searched_on: str, requested: str, why_not: str) -> list[Premise]:
    """Return the premise that the search used another engine than the user's; empty if it used the user's."""
    if searched_on == requested:
        return []
    figures = f"not confirmed on {requested}" if why_not else f"figures from {requested} runs"
    return [Premise("engine of the search", f"{searched_on} ({figures})", False)]


def sentence(searched_on: str, requested: str, why_not: str) -> list[str]:
    """Return a sentence on the engine of the search and of the figures; empty if both are the user's engine."""
    if searched_on == requested:
        return []
    if why_not:
        return [f"Searched and predicted on the {searched_on} engine, not on the {requested} engine: {why_not}."]
    return [f"Searched on the {searched_on} engine. The iteration times are of runs on the {requested} engine."]
