"""Folders of results: where one may be written, and what all of them hold."""

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
"""The scenario of a folder with every default written out; a run of it gives the same figures."""

SHOWN = 5
"""Files that an error names."""


class FolderError(GradtideError):
    """A folder cannot be written, or is not what it should be; the message names it and says how to fix it."""


class ForeignError(FolderError):
    """A folder holds what somebody else wrote or changed."""


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder to write into; it is at `path` when the block ends well.

    An older folder of gradtide's at `path` is replaced; anything else that is there is left alone.

    Raises:
        FolderError: if `path` holds something that is not ours, or cannot be written.
    """
    refuse_foreign(path)
    with as_folder_error(path), files.whole_folder(path) as folder:
        yield folder


@contextmanager
def as_folder_error(path: Path) -> Iterator[None]:
    """Turn an error of the system into one that says what cannot be written."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error


def refuse_foreign(path: Path, *known: str) -> None:
    """Refuse a place where a folder of results must not go; asked before long work, not after it.

    What a killed process left at `path` is put in order first. Entries that are `known` are not looked at.
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
        raise ForeignError(f"{path} holds files that are not a run's; name a folder that does not exist yet")
    names = [f"{name} ({why})" for name, why in found.items()]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    listed = f"{', '.join(names[:SHOWN])}{more}"
    raise ForeignError(f"{path} holds what would be lost: {listed}; move it elsewhere, or name another folder")


def what_is_replaced(path: Path) -> str | None:
    """Return what a new folder at `path` takes the place of, as in `run`; None if nothing is there."""
    schema = _peek(path / SUMMARY).get("schema")
    return None if schema is None else str(schema).removeprefix("gradtide.").partition("/")[0]


def refuse_unwritable(path: Path) -> None:
    """Refuse a place where nothing can be written; asked before long work, not after it."""
    real = Path(os.path.realpath(path))
    with as_folder_error(path):
        parent = real if files.is_fixed(real) else real.parent
        while not os.path.lexists(parent) and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise FolderError(f"cannot write {path}: {parent} is a file")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise FolderError(f"cannot write {path}: {parent} is read-only, or somebody else's")
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
    """Write a text with the same bytes on every system: UTF-8, and LF where a line ends."""
    path.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document`, which has a schema, with stable bytes; NaN is refused, because JSON has none."""
    assert str(document["schema"]).startswith("gradtide."), path
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_versions(folder: Path) -> None:
    """Write `versions.json`; `made_at` is the only thing in a run folder that two equal runs do not share."""
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
