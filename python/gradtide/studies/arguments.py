"""Reads the arguments of studies without importing the simulator, so that errors are reported at once."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gradtide.scenario import Scenario

P = ParamSpec("P")
R = TypeVar("R")


def as_scenario(scenario: Scenario | str | Path | dict[str, Any]) -> Scenario:
    """Return the scenario of an argument: a `Scenario`, a file, the name of a preset, or a dict."""
    if isinstance(scenario, Scenario):
        return scenario
    return Scenario.from_dict(scenario) if isinstance(scenario, dict) else Scenario.load(scenario)


def with_lists(study: Callable[P, R]) -> Callable[P, R]:
    """Let each argument of `study` that is a sequence be one value, too, where that can mean only one thing.

    `schedules="priority"` is one schedule, though a text is a sequence of letters. A number in place of a list of
    numbers is refused: `seeds=3` may be three seeds, or the seed 3.

    Raises:
        ValueError: of the function that is returned, for a number or a text in place of a list of numbers.
    """
    signature = inspect.signature(study)
    lists = {
        name: str(parameter.annotation)
        for name, parameter in signature.parameters.items()
        if re.match(r"(collections\.abc\.)?(Sequence|tuple)\[", str(parameter.annotation))
    }

    @wraps(study)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        for name in lists.keys() & given.arguments.keys():
            value = given.arguments[name]
            is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike, Mapping))
            if value is None or is_list:
                continue
            if not re.search("str|Mapping", lists[name]):
                raise ValueError(f"{name}: {value!r} is no list of numbers; write them in brackets, as in [1, 2]")
            given.arguments[name] = [value]
        return study(*given.args, **given.kwargs)

    return called


def refuse(why: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect, if they are not None; `why` they have none."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{why}: {', '.join(given)} would do nothing; leave it out")


def refuse_parallel(base: Scenario, what: str) -> None:
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
