"""What a user asks about, read without anything that a run needs: an error is answered at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide.scenario import Scenario


def as_scenario(scenario: Scenario | str | Path | dict[str, Any]) -> Scenario:
    """Read a scenario from whatever a user has: one already, a file, a preset's name, or a dict."""
    if isinstance(scenario, Scenario):
        return scenario
    return Scenario.from_dict(scenario) if isinstance(scenario, dict) else Scenario.load(scenario)


def refuse(why: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect, if they are not None; `why` they have none."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{why}: {', '.join(given)} would do nothing; leave it out")


def refuse_divided(base: Scenario, what: str) -> None:
    """Refuse a job whose model is divided over ranks, for a study that is of gradients alone."""
    job = next((job for job in base.jobs if job.is_divided), None)
    if job is not None:
        has, able = "repeats a recorded step", "gradtide run"
        if job.division is not None:
            has, able = "has `parallel`", "gradtide run, and gradtide compare with --parallel"
        raise ValueError(
            f"{what} is not built yet for a model that is divided over ranks, and [job.{job.name}] {has}; "
            f"available: {able}"
        )
