"""`gradtide convert OLD NEW`: rewrites a folder of an earlier version in this version's format.

Figures are kept, although this version might predict others; only the format changes, one step per version.
"""

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gradtide import _core, files, report
from gradtide.files import FOLDER_SCHEMA, SUMMARY, VERSIONS
from gradtide.report.folder import RunFolderError, entry, read_json, refuse_other
from gradtide.schemas import kind_and_version
from gradtide.studies.folder import as_folder_error, refuse_foreign, write_json

ENTRIES = "entries"
"""Key of `versions.json` in some folders of version 0: the top-level files and folders."""

PAGES = ("report.html", "index.html")
MADE_AGAIN = {*PAGES, "timeline.pftrace"}
OF_VERSION_0 = {
    SUMMARY,
    VERSIONS,
    *MADE_AGAIN,
    "scenario.resolved.toml",
    "rows.csv",
    *(f"{name}.csv" for name in ("iterations", "transfers", "operations", "links", "flows", "bandwidth")),
}
"""Files in folders of version 0 that have no list of their files."""


def is_folder(source: object) -> bool:
    """Return whether this is a folder of results."""
    return isinstance(source, (str, Path)) and (Path(source) / SUMMARY).is_file()


def upgrade(old: Path, new: Path) -> dict[str, Any]:
    """Write the results in `old` to `new` in this version's format, atomically; `old` is unchanged.

    Other files in `old` are copied too.

    Returns:
        The document that `gradtide convert --json` prints.

    Raises:
        RunFolderError: if `old` is damaged, or of a newer version.
        ValueError: if there is nothing to do.
        FolderError: if `new` cannot be written.
    """
    version = _version(old)
    _, current = kind_and_version(FOLDER_SCHEMA) or ("", 0)
    if version == current:
        raise ValueError(f"{old} is of this version; there is nothing to convert")
    if version > current:
        refuse_other(old)
    if new.resolve() == old.resolve() or old.resolve() in new.resolve().parents:
        raise ValueError(f"{new} is in {old}, which stays as it is; name another folder")
    not_ours = _not_ours(old)
    refuse_foreign(new)
    with as_folder_error(new), files.whole_folder(new, not_ours) as folder:
        shutil.copytree(old, folder, symlinks=True, dirs_exist_ok=True)
        for step in range(version, current):
            for part in _parts(folder, not_ours):
                STEPS[step](part)
        for part in _parts(folder, not_ours):
            if (part / "timeline.pftrace").exists() and (part / "operations.csv").exists():
                report.write_timeline(part)
            if any((part / name).exists() for name in PAGES):
                report.write_report(part)
    kind = kind_and_version(read_json(new / SUMMARY).get("schema"))
    return {
        "schema": "gradtide.convert/1",
        "format": f"folder of version {version}",
        "holds": "results" if kind is None else kind[0],
        "written": {"file": str(new), "format": f"folder of version {current}"},
        "notes": [f"{name} was copied: {why}" for name, why in not_ours.items()],
    }


def _version(folder: Path) -> int:
    schema = read_json(folder / VERSIONS).get("schema")
    found = ("folder", 0) if schema is None else kind_and_version(schema)
    if found is None or found[0] != "folder":
        raise RunFolderError(f"{folder / VERSIONS}: key `schema` is not {FOLDER_SCHEMA}")
    return found[1]


def _parts(folder: Path, not_ours: Collection[str]) -> Iterator[Path]:
    """Yield the folder and the run folders in it, inner ones first, the order in which their pages are made."""
    for versions in sorted(folder.rglob(VERSIONS), reverse=True):
        if versions.relative_to(folder).as_posix() not in not_ours and (versions.parent / SUMMARY).is_file():
            yield versions.parent


def _not_ours(folder: Path) -> dict[str, str]:
    """Return the files of a folder of version 0 that are foreign or changed, each with the reason."""
    listed = read_json(folder / VERSIONS)
    if files.LISTED in listed:
        return files.foreign(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        is_ours = inside.parts[0] in (VERSIONS, *listed[ENTRIES]) if ENTRIES in listed else path.name in OF_VERSION_0
        if not path.is_dir() and not is_ours:
            found[inside.as_posix()] = files.NOT_OURS
    return found


# Steps


def _from_0(folder: Path) -> None:
    """Upgrade to version 1: a schema and all files in `versions.json`, and the p95 iteration time of runs."""
    versions = read_json(folder / VERSIONS)
    kept = {key: value for key, value in versions.items() if key not in (ENTRIES, files.LISTED)}
    write_json(folder / VERSIONS, {"schema": "gradtide.folder/1", **kept, "converted_by": _core.__version__})
    path = folder / SUMMARY
    summary = read_json(path)
    if summary.get("schema") == "gradtide.run/1":
        for name in entry(path, summary, "jobs", dict):
            job = entry(path, summary["jobs"], name, dict)
            times = entry(path, job, "iteration_time_ms", dict)
            p95 = float(np.percentile(entry(path, times, "all", list), 95))
            # Keys in the order of a new summary.
            job["iteration_time_ms"] = {"mean": None, "p50": None, "p95": p95, **times}
        write_json(path, summary)


STEPS: dict[int, Callable[[Path], None]] = {0: _from_0}
"""For each version, the function that upgrades a folder in place to the next one."""
