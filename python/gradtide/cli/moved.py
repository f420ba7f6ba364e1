"""Command lines of earlier versions, and how they are written now."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from gradtide.deprecated import Deprecated

RENAMED: dict[tuple[str, str], Deprecated] = {}
"""Options that go, by command and option; `Deprecated` has the names of the options."""

SINCE, UNTIL = "0.1", "0.3"
"""Versions of the forms below, which were those of the time before 0.1."""


class Moved(NamedTuple):
    """A command line that is written differently now.

    Attributes:
        arguments: those that do the same now.
        why: what is deprecated.
    """

    arguments: list[str]
    why: Deprecated


def moved(arguments: Sequence[str]) -> Moved | None:
    """Return what an old command line is now; None if it is not an old one.

    Example:
        >>> moved(["tenants", "web.toml", "--map", "--job-loads", "0.1"]).arguments
        ['tenants', 'map', 'web.toml', '--job-loads', '0.1']
    """
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    given = [argument.partition("=")[0] for argument in rest]
    for option in given:
        one = RENAMED.get((command, option))
        if one is not None:
            return Moved([command, *(_renamed(argument, one.old, one.new) for argument in rest)], one)
    if command == "compare" and "--collective" in given:
        old = "compare --collective"
        new = ["collectives", *(_renamed(argument, "--collective", "--collectives") for argument in rest)]
    elif command == "tenants" and "--map" in given:
        old, new = "tenants --map", ["tenants", "map", *(argument for argument in rest if argument != "--map")]
    elif command == "tenants" and "--lp" in given:
        old, new = "tenants --lp", ["tenants", "lp", *(argument for argument in rest if argument != "--lp")]
    elif command == "tenants" and "--policy" in given and given[0] not in ("map", "policies", "lp"):
        old, new = "tenants --policy", ["tenants", "policies", *rest]
    else:
        return None
    return Moved(new, Deprecated(f"gradtide {old}", shlex.join(["gradtide", *new]), SINCE, UNTIL))


def _renamed(argument: str, old: str, new: str) -> str:
    name, equals, value = argument.partition("=")
    return new + equals + value if name == old else argument
