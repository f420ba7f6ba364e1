"""Lets the n-th change of the file system go wrong: it fails, is interrupted by Ctrl-C, or kills the process.

A change is what a file system is asked for: open a file for writing, make a folder, rename, exchange, delete, flush.
Python tells of most of them as audit events; a hook that raises stops the change before it happens.

    with faults.injected(at=7, how=faults.fails) as fault:
        result.save(path)
    fault.changes  # how many changes there were, or 7 if the seventh went wrong

This module knows nothing of what is saved; `every_fault` runs a whole series of it.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from gradtide import files

How = Callable[[], NoReturn]


def fails(code: int = errno.EIO) -> NoReturn:
    """Answer as a broken disk does, or as `code` says."""
    raise OSError(code, os.strerror(code))


def full() -> NoReturn:
    """Answer as a full disk does."""
    fails(errno.ENOSPC)


def interrupts() -> NoReturn:
    """Press Ctrl-C."""
    raise KeyboardInterrupt


def kills() -> NoReturn:
    """End the process at once, as SIGKILL does."""
    os._exit(137)


@dataclass
class Fault:
    """A fault that is waiting for its change.

    Attributes:
        at: number of the change that goes wrong, from 1; 0 for none.
        how: what happens then.
        lasts: whether all later changes go wrong, too, as on a full disk.
        within: the folder whose changes count; None for all.
        changes: how many changes there were.
        seen: their names.
    """

    at: int
    how: How
    lasts: bool = False
    within: Path | None = None
    changes: int = 0
    seen: list[str] = field(default_factory=list)

    def change(self, name: str, path: object) -> None:
        """Count a change; let it go wrong if its turn has come."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}") if self.within else ""
        if self.within is not None and not os.fsdecode(path).startswith(str(self.within)):  # type: ignore[arg-type]
            return
        self.changes += 1
        self.seen.append(name)
        if self.at and (self.changes == self.at or (self.lasts and self.changes > self.at)):
            self.how()


_waiting: list[Fault] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _waiting and (event in _CHANGES or (event == "open" and arguments[2] & _WRITING)):
        _waiting[-1].change(event, arguments[0])


sys.addaudithook(_on_audit)


@contextmanager
def injected(at: int, how: How, *, lasts: bool = False, within: Path | None = None) -> Iterator[Fault]:
    """Let the `at`-th change of the block go wrong; 0 counts the changes."""
    fault = Fault(at, how, lasts, within)
    fsync, exchange, write_text = os.fsync, files.exchange, Path.write_text

    def flushed(handle: int) -> None:
        fault.change("fsync", handle)
        fsync(handle)

    def exchanged(one: Path, other: Path) -> None:
        fault.change("exchange", one)
        exchange(one, other)

    def written(path: Path, data: str, *arguments: Any, **more: Any) -> int:
        # A disk that is full takes the beginning of a file.
        write_text(path, data[: len(data) // 2], *arguments, **more)
        fault.change("write", path)
        return write_text(path, data, *arguments, **more)

    patches = (
        mock.patch.object(os, "fsync", flushed),
        mock.patch.object(files, "exchange", exchanged),
        mock.patch.object(Path, "write_text", written),
    )
    for patch in patches:
        patch.start()
    _waiting.append(fault)
    try:
        yield fault
    finally:
        _waiting.pop()
        for patch in patches:
            patch.stop()


def every_fault(
    how: How, save: Callable[[], object], prepare: Callable[[], object], *, lasts: bool = False
) -> Iterator[int]:
    """Prepare, save with the n-th change going wrong, and yield n; for every n that a save has.

    A fault that kills goes wrong in a child, so there must be no other thread.
    """
    at = 0
    while True:
        at += 1
        prepare()
        if how is kills:
            was_reached = _in_child(lambda at=at: _once(at, how, save, lasts)) == 137
        else:
            was_reached = _once(at, how, save, lasts)
        if not was_reached:
            return
        yield at


def _once(at: int, how: How, save: Callable[[], object], lasts: bool) -> bool:
    with injected(at, how, lasts=lasts) as fault:
        try:
            save()
        except (Exception, KeyboardInterrupt):
            if fault.changes < at:
                raise
    return fault.changes >= at


def _in_child(run: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
