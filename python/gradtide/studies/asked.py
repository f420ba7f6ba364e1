"""What a user asks about, read without anything that a run needs: an error is answered at once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gradtide import units
from gradtide.scenario import Scenario

Quantity = TypeVar("Quantity")


def as_scenario(scenario: Scenario | str | Path | dict[str, Any]) -> Scenario:
    """Read a scenario from whatever a user has: one already, a file, a preset's name, or a dict."""
    if isinstance(scenario, Scenario):
        return scenario
    return Scenario.from_dict(scenario) if isinstance(scenario, dict) else Scenario.load(scenario)


def parse_option(name: str, parse: Callable[[Any], Quantity], text: object) -> Quantity:
    """Return what an option's text says; an error calls the option `name`."""
    try:
        return parse(text)
    except units.UnitError as error:
        raise ValueError(f"{name}: {error.msg}; {error.hint}") from None


def refuse(why: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect, if they are not None; `why` they have none."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{why}: {', '.join(given)} would do nothing; leave it out")
