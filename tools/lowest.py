"""Prints the lowest versions that pyproject.toml promises, as pip takes them: python tools/lowest.py [EXTRA…]."""

import sys
from collections.abc import Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest(extras: Sequence[str]) -> list[str]:
    """Return the requirements of the project and of some of its extras, each at its lowest version, with markers."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in optional[extra])]
    return [_at_its_lowest(one) for one in wanted]


def _at_its_lowest(requirement: str) -> str:
    bounds, semicolon, condition = requirement.partition(";")
    lower, *_ = bounds.split(",")
    package, compared, version = lower.partition(">=")
    if not compared:
        raise ValueError(f"pyproject.toml: {requirement!r} does not begin with its lowest version")
    return f"{package}=={version.strip()}{semicolon}{condition}"


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
