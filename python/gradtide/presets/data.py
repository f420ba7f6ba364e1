"""Access to the files of the presets."""

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def folder(name: str) -> "Traversable":
    """Return a folder of the presets, such as models."""
    from importlib.resources import files

    return files(__package__).joinpath(name)


def stems(name: str, suffix: str) -> list[str]:
    """Return the sorted names, without suffix, of the files in a folder that have this suffix."""
    files = folder(name).iterdir()
    return sorted(entry.name.removesuffix(suffix) for entry in files if entry.name.endswith(suffix))


@cache
def document(file: str) -> dict[str, Any]:
    """Return a TOML file of the presets, such as devices.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    return tomllib.loads(folder(file).read_text(encoding="utf-8"))
