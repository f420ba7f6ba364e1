"""Conversions and checks of arguments that several studies share."""

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
    """Return the argument of a study as a `Scenario`: it may be a `Scenario`, a file, a preset's name or a dict."""
    if isinstance(scenario, Scenario):
        return scenario
    return Scenario.from_dict(scenario) if isinstance(scenario, dict) else Scenario.load(scenario)


def with_lists(study: Callable[P, R]) -> Callable[P, R]:
    """Let callers of `study` pass a single value in place of a list, unless it is a list of numbers.

    `schedules="priority"` is one schedule, although a string is a sequence of letters. A single number raises, because
    `seeds=3` may mean three seeds or the seed 3.

    Raises:
        ValueError: when the returned function is called with a number or a string instead of a list of numbers.
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
                raise ValueError(f"{name}: {value!r} is not a list of numbers; write them in brackets, as in [1, 2]")
            given.arguments[name] = [value]
        return study(*given.args, **given.kwargs)

    return called


def refuse(why: str, options: Mapping[str, Any]) -> None:
    """Raise if any of the options is given, i.e. not `None`. The message begins with `why` it would have no effect."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{why}: {', '.join(given)} would do nothing; leave it out")


def refuse_parallel(base: Scenario, what: str) -> None:
    """Raise if a job is parallel, because the study called `what` supports only data parallelism."""
    job = next((job for job in base.jobs if job.is_parallel), None)
    if job is not None:
        has, able = "repeats a recorded step", "gradtide run"
        if job.parallel_model is not None:
            has, able = "has `parallel`", "gradtide run, and gradtide compare with --parallel"
        raise ValueError(
            f"{what} is not built yet for a model that is divided over ranks, and [job.{job.name}] {has}; "
            f"available: {able}"
        )
