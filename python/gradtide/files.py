"""Writes files and folders atomically: they appear complete or not at all, even if the process is killed.

    .NAME.TOKEN.partial     written beside NAME; becomes NAME by one rename, or is exchanged with an older NAME
    NAME/.TOKEN.partial     written inside the folder NAME if NAME cannot be exchanged, as on a mount point
    NAME/.TOKEN.ready       a complete `.partial` folder, whose entries are then moved into NAME; after a crash, the
                            next process completes the move
    ….TOKEN.lock            beside each of these entries, and locked by the process that writes the entry

An entry without a lock was left by a killed process; `heal` deletes or completes it.
A folder of results lists its files in `versions.json`, so that no other file in the folder is ever replaced.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gradtide.system import CANNOT_EXCHANGE, can_exchange, close, exchange, lock, mount_points, sync

VERSIONS, SUMMARY = "versions.json", "summary.json"
FOLDER_SCHEMA = "gradtide.folder/1"
"""Schema of a folder of results: its `versions.json`, and the columns and units of its tables."""
LISTED = "files"
"""Key of `versions.json` with the SHA-256 of every other file of the folder, by path. It is None for `versions.json` in
subfolders, which contain the time of writing."""

PARTIAL, READY, LOCK = ".partial", ".ready", ".lock"
SUFFIXES = "partial|ready|lock"
LONGER = len(".") + len(".01234567") + len(PARTIAL)
"""Number of characters that are added to the name of a file while the file is written."""

INCOMPLETE = "incomplete"
NOT_OURS = "not gradtide's"
NO_LINK = getattr(os, "O_NOFOLLOW", 0)

IN_FIXED = ("lost+found", INCOMPLETE)
"""Entries that may stay in a folder that cannot be renamed: `lost+found` of a file system, and an unfinished study."""


# Files


def write_whole(path: Path, data: bytes) -> Path:
    """Write or replace a file atomically.

    Raises:
        OSError: if the file cannot be written; an older file is kept.
    """
    with whole(path) as file:
        file.write(data)
    return path


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the `with` block ends; if the block fails, an older file is unchanged.

    A symbolic link is kept and then points to the new file. A pipe or device is written to directly.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    replaces = path.exists()
    if replaces and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    heal(path)
    with _partial(path.parent, f".{path.name}.", _make_file) as part:
        with part.open("wb") as file:
            yield file
            if replaces:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
        if replaces:
            sync(path.parent)


# Folders


@contextmanager
def whole_folder(path: Path, not_ours: Collection[str] = ()) -> Iterator[Path]:
    """Yield a hidden folder to write into, which is moved to `path` when the `with` block ends without an error.

    An existing `path` is replaced, so it must be checked with `foreign` before. A symbolic link is kept and then points
    to the new folder. The list of files in `versions.json` omits those in `not_ours`.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    heal(path)
    if is_fixed(path):
        with folder_inside(path, not_ours) as part:
            yield part
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial(path.parent, f".{path.name}.", Path.mkdir) as part:
        yield part
        _tidy(part)
        list_files(part, not_ours)
        if not path.exists():
            os.rename(part, path)
            return
        _sync_all(part)
        try:
            exchange(part, path)
        except OSError as error:
            if error.errno not in CANNOT_EXCHANGE:
                raise
            with folder_inside(path, not_ours) as inside:
                shutil.copytree(part, inside, dirs_exist_ok=True)
        else:
            sync(path.parent)


@contextmanager
def folder_inside(folder: Path, not_ours: Collection[str] = ()) -> Iterator[Path]:
    """Yield a hidden folder inside `folder`, whose entries replace the listed ones of `folder` when the block ends.

    Once the hidden folder has the suffix `.ready`, it is complete, and the next process completes an interrupted move.
    """
    with _partial(folder, ".", Path.mkdir) as part:
        yield part
        _tidy(part)
        list_files(part, not_ours)
        _sync_all(part)
        ready = part.with_suffix(READY)
        try:
            os.rename(part, ready)
            _move_out(ready)
        except BaseException:
            with suppress(OSError):
                _move_out(ready)
            raise


def _move_out(ready: Path) -> None:
    """Move the entries of a complete folder into its parent, `summary.json` last; the move can be repeated."""
    folder, old = ready.parent, ready / ".old"
    old.mkdir(exist_ok=True)
    if (ready / VERSIONS).exists():
        # `folder` still has its old `versions.json`, which lists the entries to replace.
        for name in _tops(folder) - _tops(ready):
            _move_aside(folder / name, old)
    for name in sorted(set(os.listdir(ready)) - {old.name}, key=lambda name: (name == SUMMARY, name == VERSIONS)):
        if (folder / name).is_dir() or (ready / name).is_dir():
            _move_aside(folder / name, old)
        os.replace(ready / name, folder / name)
    sync(folder)
    shutil.rmtree(ready)


def _move_aside(path: Path, folder: Path) -> None:
    with suppress(FileNotFoundError):
        os.replace(path, folder / path.name)


def is_fixed(path: Path) -> bool:
    """Return whether `path` is a folder that cannot be renamed.

    The reason may be that it is a mount point, that its parent is not writable, or that the system cannot exchange
    folders.
    """
    return path.is_dir() and (
        os.path.ismount(path)
        or str(path) in mount_points()
        or not os.access(path.parent, os.W_OK | os.X_OK)
        or not can_exchange()
    )


# Entries that a killed process left


def heal(path: Path) -> None:
    """Delete files that killed processes left next to `path` and in it, and complete the move of a `.ready` folder."""
    path = Path(os.path.realpath(path))
    own = "|".join(re.escape(name) for name in sorted({VERSIONS, *_tops(path)}))
    _end(path.parent, rf"\.{re.escape(path.name)}\.\w{{8}}")
    _end(path, rf"\.(({own})\.)?[0-9a-f]{{8}}")


def _end(folder: Path, pattern: str) -> None:
    """Delete or complete abandoned entries whose name without its suffix matches `pattern`."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in {Path(name).stem for name in names if re.fullmatch(rf"{pattern}\.({SUFFIXES})", name)}:
        part, ready, held = (folder / f"{name}{suffix}" for suffix in (PARTIAL, READY, LOCK))
        with suppress(OSError):
            _make_file(held)
        with _lock(held) as is_mine:
            if is_mine and ready.exists():
                _move_out(ready)
            elif is_mine:
                _remove(part)


def _tidy(part: Path) -> None:
    """Delete temporary entries in a folder before it is moved into place."""
    for place, _, names in os.walk(part):
        for name in names:
            if re.fullmatch(rf"\..*\.[0-9a-f]{{8}}\.({SUFFIXES})", name):
                _remove(Path(place) / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _partial(folder: Path, prefix: str, make: Callable[[Path], object]) -> Iterator[Path]:
    """Create an entry to write to, locked during the block; if it still exists at the end, it is deleted."""
    while True:
        part = folder / f"{prefix}{secrets.token_hex(4)}{PARTIAL}"
        _make_file(part.with_suffix(LOCK))
        with _lock(part.with_suffix(LOCK), wait=True) as is_mine:
            # Before the lock was acquired, another process may have deleted the lock file as abandoned.
            if is_mine:
                try:
                    make(part)
                    yield part
                finally:
                    _remove(part)
                return


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


@contextmanager
def _lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file during the `with` block and delete it at the end; yield whether the lock was acquired.

    The lock is a separate file, because Windows cannot lock folders, nor rename open files.
    """
    try:
        handle = os.open(path, os.O_RDWR | NO_LINK)
    except OSError:
        yield False
        return
    is_mine = False
    try:
        with suppress(OSError):
            # A file system without locks still allows writing; abandoned files are then not deleted.
            is_mine = (lock(handle, wait=wait) or wait) and os.fstat(handle).st_ino == os.stat(path).st_ino
        yield is_mine
    finally:
        close(handle, path if is_mine else None)


def _sync_all(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            sync(Path(path) / name)
        sync(Path(path))


# Ownership of the files in a folder


def list_files(folder: Path, not_ours: Collection[str] = ()) -> None:
    """Write the list of a folder's files into its `versions.json`, if it has one.

    Files that are `not_ours`, by their paths from the folder, are left out.
    """
    versions = folder / VERSIONS
    if not versions.exists():
        return
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    digests = {
        name: None if Path(name).name == VERSIONS else _digest(folder / name)
        for name in names
        if name not in (VERSIONS, *not_ours)
    }
    versions.write_bytes(_with_list(versions, digests))


def write_listed(path: Path, data: bytes) -> Path:
    """Write or replace a file in a folder of results or its run folders, and list it in its `versions.json`."""
    write_whole(path, data)
    real = Path(os.path.realpath(path))
    for home in real.parents:
        listed = _list(home)
        if listed is not None and real.with_name(SUMMARY).relative_to(home).as_posix() in listed:
            name = real.relative_to(home).as_posix()
            write_whole(home / VERSIONS, _with_list(home / VERSIONS, {**listed, name: _digest(real)}))
    return path


def foreign(folder: Path, *known: str) -> dict[str, str]:
    """Return the entries that would be lost if a folder were replaced, each with the reason: unlisted or changed.

    Args:
        folder: any folder.
        known: entries that are not checked.
    """
    known = (*known, *(IN_FIXED if is_fixed(folder) else ()))
    listed = _list(folder) or {}
    homes = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        for name in sorted(folders):
            own = (inside / name).as_posix()
            if own in known:
                folders.remove(name)
            elif own not in homes or os.path.islink(os.path.join(place, name)):
                folders.remove(name)
                found[own] = NOT_OURS
        for name in sorted(names):
            own = (inside / name).as_posix()
            if own in known or (own == VERSIONS and listed):
                continue
            if own not in listed:
                found[own] = NOT_OURS
            elif name != VERSIONS and _digest(Path(place) / name) != listed[own]:
                found[own] = "changed since"
    return found


def _tops(folder: Path) -> set[str]:
    """Return the top-level entries of a folder that its `versions.json` lists."""
    return {name.partition("/")[0] for name in _list(folder) or {}}


def _list(folder: Path) -> dict[str, str] | None:
    try:
        listed = json.loads((folder / VERSIONS).read_bytes())[LISTED]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return listed if isinstance(listed, dict) else None


def _with_list(versions: Path, digests: dict[str, str | None]) -> bytes:
    document = {**json.loads(versions.read_bytes()), LISTED: dict(sorted(digests.items()))}
    return (json.dumps(document, indent=2) + "\n").encode()


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a regular file; None for other entries and unreadable files."""
    digest = hashlib.sha256()
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()
