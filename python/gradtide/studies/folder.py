"""Folders that appear whole or not at all."""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gradtide import _core
from gradtide.errors import GradtideError

VERSIONS = "versions.json"


class FolderError(GradtideError):
    """A folder cannot be written, or is not what it should be; the message names it and says how to fix it."""


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder beside `path` to write into, and rename it to `path` when the block ends well.

    An older folder of gradtide's at `path` is replaced; anything else that is there is left alone.

    Raises:
        FolderError: if `path` holds something that is not ours, or cannot be written.
    """
    path = Path(os.path.abspath(path))
    refuse_foreign(path)
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        yield part
        _name_entries(part)
        part.chmod(0o755)
        _replace(part, path)
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def refuse_foreign(path: Path) -> None:
    """Refuse a place where a folder of results must not go; asked before long work, not after it."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FolderError(f"{path} is a file; name a folder that does not exist yet")
    there = {entry.name for entry in path.iterdir()}
    if there and "schema" not in _peek(path / "summary.json"):
        raise FolderError(f"{path} holds files that are not a run's; name a folder that does not exist yet")
    foreign = sorted(there - {VERSIONS, *_entries(path)}) if _entries(path) else []
    if foreign:
        raise FolderError(
            f"{path} holds {foreign[0]}, which gradtide did not write; move it elsewhere, or name another folder"
        )


def what_is_replaced(path: Path) -> str | None:
    """Return what a new folder at `path` takes the place of, as in `run`; None if nothing is there."""
    schema = _peek(path / "summary.json").get("schema")
    return None if schema is None else str(schema).removeprefix("gradtide.").partition("/")[0]


def refuse_unwritable(path: Path) -> None:
    """Refuse a place where nothing can be written; asked before long work, not after it."""
    parent = Path(os.path.abspath(path)).parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise FolderError(f"cannot write {path}: {parent} is a file")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FolderError(f"cannot write {path}: {parent} is read-only, or somebody else's")


def _peek(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and str(document.get("schema")).startswith("gradtide.") else {}


def _name_entries(folder: Path) -> None:
    """Write into `versions.json` what the folder holds, so that nobody else's file in it is ever replaced."""
    versions = folder / VERSIONS
    if versions.exists():
        document = json.loads(versions.read_bytes())
        write_json(versions, {**document, "entries": sorted(entry.name for entry in folder.iterdir())})


def _entries(folder: Path) -> list[str]:
    try:
        return list(json.loads((folder / VERSIONS).read_bytes()).get("entries", ()))
    except (OSError, ValueError, AttributeError):
        return []


def _replace(part: Path, path: Path) -> None:
    if not path.exists():
        part.rename(path)
        return
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".old", dir=path.parent) as old:
        path.rename(Path(old) / "folder")
        part.rename(path)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document` with stable bytes; NaN is refused, because JSON has none."""
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_versions(folder: Path) -> None:
    """Write `versions.json`; `made_at` is the only thing in a run folder that two equal runs do not share."""
    write_json(
        folder / VERSIONS,
        {
            "gradtide": _core.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "made_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    )
