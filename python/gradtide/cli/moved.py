"""Command lines of earlier versions, and how they are written now."""

import shlex
from collections.abc import Sequence


def moved(arguments: Sequence[str]) -> str | None:
    """Return the command line that does what an old one did; None if it is not an old one.

    Example:
        >>> moved(["tenants", "web.toml", "--map", "--job-loads", "0.1"])
        'gradtide tenants map web.toml --job-loads 0.1'
    """
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    given = [argument.partition("=")[0] for argument in rest]
    if command == "compare" and "--collective" in given:
        new = ["collectives", *(_renamed(argument, "--collective", "--collectives") for argument in rest)]
    elif command == "tenants" and "--map" in given:
        new = ["tenants", "map", *(argument for argument in rest if argument != "--map")]
    elif command == "tenants" and "--lp" in given:
        new = ["tenants", "lp", *(argument for argument in rest if argument != "--lp")]
    elif command == "tenants" and "--policy" in given and given[0] not in ("map", "policies", "lp"):
        new = ["tenants", "policies", *rest]
    else:
        return None
    return shlex.join(["gradtide", *new])


def _renamed(argument: str, old: str, new: str) -> str:
    name, equals, value = argument.partition("=")
    return new + equals + value if name == old else argument
