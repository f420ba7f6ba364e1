"""Folders of results: checks of the target, atomic creation, and the files that all of them contain."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gradtide import _core, files
from gradtide.errors import GradtideError
from gradtide.files import SUMMARY, VERSIONS
from gradtide.system import most_name_bytes

RESOLVED = "scenario.resolved.toml"
"""File with the resolved scenario, in which defaults are written out. Running it again gives the same results."""

MEASURED_COSTS = ("cpu_s", "wall_s", "peak_rss_mb")
"""Costs in `summary.json` that differ between runs of the same scenario."""

SHOWN = 5
"""Largest number of files that an error lists."""


class FolderError(GradtideError):
    """A folder cannot be written, or contains no results. The message names the folder, and says how to fix it."""


class ForeignError(FolderError):
    """A folder contains foreign files, which gradtide did not write, or which were modified since."""


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder to write into, which is renamed to `path` if the block succeeds.

    An older folder of results at `path` is replaced. Anything else at `path` is kept, and raises an error.

    Raises:
        FolderError: if `path` contains foreign files, or cannot be written.
    """
    refuse_foreign(path)
    with as_folder_error(path), files.whole_folder(path) as folder:
        yield folder


@contextmanager
def as_folder_error(path: Path) -> Iterator[None]:
    """Convert an OSError into a FolderError with the path."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror or error}; no files remain") from error


def refuse_foreign(path: Path, *known: str) -> None:
    """Raise if results at `path` would replace foreign files. Called before a long study, so that no result is lost.

    A folder that a killed process has left half replaced is repaired first. Files named in `known` are not foreign.
    """
    with as_folder_error(path):
        files.heal(path)
        if not path.exists():
            return
        if not path.is_dir():
            raise FolderError(f"{path} is a file; name a folder that does not exist yet")
        found = files.foreign(path, *known)
    if not found:
        return
    if "schema" not in _peek(path / SUMMARY):
        raise ForeignError(f"{path} contains files that gradtide did not write; name a folder that does not exist yet")
    names = [f"{name} ({why})" for name, why in found.items()]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    listed = f"{', '.join(names[:SHOWN])}{more}"
    raise ForeignError(
        f"{path} contains files that would be lost: {listed}; move them elsewhere, or name another folder"
    )


def what_is_replaced(path: Path) -> str | None:
    """Return the kind of results at `path`, such as `run`, which a new folder would replace; `None` without results."""
    schema = _peek(path / SUMMARY).get("schema")
    return None if schema is None else str(schema).removeprefix("gradtide.").partition("/")[0]


def refuse_unwritable(path: Path) -> None:
    """Raise if a folder cannot be created at `path`. Called before a long study, so that no result is lost."""
    real = Path(os.path.realpath(path))
    with as_folder_error(path):
        parent = real if files.is_fixed(real) else real.parent
        while not os.path.lexists(parent) and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise FolderError(f"cannot write {path}: {parent} is a file")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise FolderError(f"cannot write {path}: {parent} is read-only, or owned by another user")
        most = most_name_bytes(parent) - files.LONGER
    if len(os.fsencode(real.name)) > most:
        raise FolderError(f"cannot write {path}: its name has more than {most} bytes; take a shorter one")


def _peek(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and str(document.get("schema")).startswith("gradtide.") else {}


def write_text(path: Path, text: str) -> None:
    """Write a text with the same bytes on every system: UTF-8 with LF line endings."""
    path.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document with a `schema` as JSON, with the same bytes on every system. NaN raises, as JSON has no NaN."""
    assert str(document["schema"]).startswith("gradtide."), path
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_versions(folder: Path) -> None:
    """Write `versions.json`. The folders of equal runs on one machine differ only in the `made_at` of this file."""
    write_json(
        folder / VERSIONS,
        {
            "schema": files.FOLDER_SCHEMA,
            "gradtide": _core.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "made_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    )
