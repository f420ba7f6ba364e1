"""Puts files and folders in place: whole or not at all, whatever fails or kills the process meanwhile.

    .NAME.TOKEN.partial     written beside NAME; becomes NAME by one rename, or changes places with an older NAME
    NAME/.TOKEN.partial     written inside the folder NAME where that cannot change places: on a mount point
    NAME/.TOKEN.ready       the same, complete: its entries move into NAME, and whoever finds it goes on with that

Whoever writes holds a lock on what it writes. What nobody locks was left by a killed process, and `heal` ends it.
A folder of results lists its files in `versions.json`, so that nothing else in it is ever replaced.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

VERSIONS, SUMMARY = "versions.json", "summary.json"
LISTED = "files"
"""Key of `versions.json`: the SHA-256 of every other file of the folder; None for other `versions.json`, which have the
time at which they were made."""

PARTIAL, READY = ".partial", ".ready"
LONGER = len(".") + len(".01234567") + len(PARTIAL)
"""Characters that the name of a file has more while it is written."""

INCOMPLETE = "incomplete"
IN_FIXED = ("lost+found", INCOMPLETE)
"""Entries that stay in a fixed folder: what a file system has in its root, and an unfinished study."""

CANNOT_EXCHANGE = {errno.EBUSY, errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.ENOTSUP}
"""What a system answers that cannot let two folders change places: a mount point, or a file system without it."""


# Files


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file, or replace it, so that it is never seen in part.

    Raises:
        OSError: if it cannot be written; an older file stays.
    """
    with whole(path) as file:
        file.write(data)
    return path


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write or replace; it is there when the block ends, and as before if that fails.

    A link stays, and leads to the new file. What is no regular file, as a pipe, is written to as it is.

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
            _sync(path.parent)


# Folders


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder to write into; it is at `path` when the block ends, and all is as before if that fails.

    What is at `path` is replaced: ask `foreign` before. A link stays, and leads to the new folder.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    heal(path)
    if is_fixed(path):
        with folder_inside(path) as part:
            yield part
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial(path.parent, f".{path.name}.", Path.mkdir) as part:
        yield part
        list_files(part)
        if not path.exists():
            os.rename(part, path)
            return
        _sync_all(part)
        try:
            exchange(part, path)
        except OSError as error:
            if error.errno not in CANNOT_EXCHANGE:
                raise
            with folder_inside(path) as inside:
                shutil.copytree(part, inside, dirs_exist_ok=True)
        else:
            _sync(path.parent)


@contextmanager
def folder_inside(folder: Path) -> Iterator[Path]:
    """Give a hidden folder inside `folder`; when the block ends, its entries replace the listed ones of `folder`.

    From the rename to `.ready` on, what was written is whole, and what is left to do can be done again.
    """
    with _partial(folder, ".", Path.mkdir) as part:
        yield part
        list_files(part)
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
    """Move the entries of a complete folder into the one that it is in, `summary.json` last; can be done again."""
    folder, old = ready.parent, ready / ".old"
    old.mkdir(exist_ok=True)
    if (ready / VERSIONS).exists():
        # The list of what is replaced is still there.
        for name in _tops(folder) - _tops(ready):
            _move_aside(folder / name, old)
    for name in sorted(set(os.listdir(ready)) - {old.name}, key=lambda name: (name == SUMMARY, name == VERSIONS)):
        if (folder / name).is_dir() or (ready / name).is_dir():
            _move_aside(folder / name, old)
        os.replace(ready / name, folder / name)
    _sync(folder)
    shutil.rmtree(ready)


def _move_aside(path: Path, folder: Path) -> None:
    with suppress(FileNotFoundError):
        os.replace(path, folder / path.name)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places at once.

    Raises:
        OSError: with an error of `CANNOT_EXCHANGE` if the system cannot.
    """
    import ctypes

    rename = _renameat2()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    # Linux, include/uapi: AT_FDCWD is -100, RENAME_EXCHANGE is 2.
    if rename(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


@cache
def _renameat2() -> "Callable[..., int] | None":
    import ctypes

    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def is_fixed(path: Path) -> bool:
    """Return whether a folder has to stay where it is.

    It is a mount point, or nothing can be written beside it, or the system cannot let folders change places.
    """
    return path.is_dir() and (
        os.path.ismount(path)
        or str(path) in _mount_points()
        or not os.access(path.parent, os.W_OK | os.X_OK)
        or _renameat2() is None
    )


def _mount_points() -> set[str]:
    """Return where something is mounted, as Linux says; `ismount` misses what is from the same file system."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return set()
    # proc(5): the fifth field, with blanks and the like as octal numbers.
    fields = (line.split()[4] for line in lines)
    return {os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), field)) for field in fields}


# What a killed process left


def heal(path: Path) -> None:
    """Delete what killed writers of `path` left beside it and in it; a complete folder goes where it belongs."""
    path = Path(os.path.realpath(path))
    own = "|".join(re.escape(name) for name in sorted({VERSIONS, *_tops(path)}))
    _end(path.parent, rf"\.{re.escape(path.name)}\.\w{{8}}\{PARTIAL}")
    _end(path, rf"\.(({own})\.)?[0-9a-f]{{8}}(\{PARTIAL}|\{READY})")


def heal_all(folder: Path) -> None:
    """Delete what killed writers left of any file of a folder in which nobody but gradtide writes."""
    _end(folder, rf"\..+\.\w{{8}}\{PARTIAL}")


def _end(folder: Path, pattern: str) -> None:
    """End what nobody works on any more, of what is so called."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for found in (folder / name for name in names if re.fullmatch(pattern, name)):
        with _lock(found) as is_mine:
            if is_mine and found.suffix == READY:
                _move_out(found)
            elif is_mine:
                _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _partial(folder: Path, prefix: str, make: Callable[[Path], object]) -> Iterator[Path]:
    """Make something to write to, locked as long as the block lasts; what is left of it then is deleted."""
    while True:
        part = folder / f"{prefix}{secrets.token_hex(4)}{PARTIAL}"
        make(part)
        try:
            with _lock(part, wait=True):
                # Between the two lines before, another process may have taken it for left behind.
                if part.exists():
                    yield part
                    return
        finally:
            _remove(part)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


@contextmanager
def _lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or folder as long as the block lasts; give whether that was possible."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = os.fstat(handle).st_ino == os.stat(path).st_ino
        except OSError:
            is_mine = False
        yield is_mine
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    """Let a file or folder survive a power failure, where the file system can."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_all(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            _sync(Path(path) / name)
        _sync(Path(path))


# Whose files a folder holds


def list_files(folder: Path) -> None:
    """Write into `versions.json` of a folder which files it holds; a folder without it stays without."""
    versions = folder / VERSIONS
    if not versions.exists():
        return
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    digests = {
        name: None if Path(name).name == VERSIONS else _digest(folder / name) for name in names if name != VERSIONS
    }
    versions.write_bytes(_with_list(versions, digests))


def write_listed(path: Path, data: bytes) -> Path:
    """Write or replace a file of a folder of results, or of a run in it; the list of the folder has it then."""
    write_whole(path, data)
    real = Path(os.path.realpath(path))
    for home in real.parents:
        listed = _list(home)
        if listed is not None and real.with_name(SUMMARY).relative_to(home).as_posix() in listed:
            name = real.relative_to(home).as_posix()
            write_whole(home / VERSIONS, _with_list(home / VERSIONS, {**listed, name: _digest(real)}))
    return path


def foreign(folder: Path, *known: str) -> dict[str, str]:
    """Return what would be lost with a folder, and why: what is not gradtide's, and what somebody changed since.

    Args:
        folder: a folder, or what is no folder of gradtide's.
        known: entries that are not looked at.
    """
    known = (*known, *(IN_FIXED if is_fixed(folder) else ()))
    listed = _list(folder) or {}
    homes = {str(parent) for name in listed for parent in Path(name).parents}
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        for name in sorted(folders):
            own = os.path.normpath(os.path.join(inside, name))
            if own in known:
                folders.remove(name)
            elif own not in homes or os.path.islink(os.path.join(place, name)):
                folders.remove(name)
                found[own] = "not gradtide's"
        for name in sorted(names):
            own = os.path.normpath(os.path.join(inside, name))
            if own in known or (own == VERSIONS and listed):
                continue
            if own not in listed:
                found[own] = "not gradtide's"
            elif name != VERSIONS and _digest(Path(place) / name) != listed[own]:
                found[own] = "changed since"
    return found


def _tops(folder: Path) -> set[str]:
    """Return the entries of a folder that its list has."""
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
    """Return the SHA-256 of a regular file; None for what is none, or cannot be read."""
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
