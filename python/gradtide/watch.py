"""One deadline and one bound of memory for all that a command or a call does, and where both are checked.

    with watching(limits):      begins; what is called inside and asks for limits of its own has these
        ...
        check_cancelled()       raises `LimitReached`, or what else ends the work

The core calls `check_cancelled` every few milliseconds in all its long loops, in every thread. On the command line the
thread of `gradtide.signals` checks, too, so that no part of a command, in whatever module, can go on for ever.

Memory is what the process has (its resident set), less what it had when the work began. An allocator that counts would
know what the core alone has taken; but Python's tables and texts count as much for the machine, which runs out of both.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from gradtide.errors import LimitReached
from gradtide.system import resident_bytes

BASE_BYTES = 60_000_000
"""Memory of the program itself, before it does anything."""

LEAST_BYTES, LEAST_S = 150_000_000, 1.0
"""Memory and time below which nothing is ended: modules that are loaded take as much, and estimates refuse the rest."""


@dataclass
class Watch:
    """What work may take, counted from when it began.

    Attributes:
        memory_bytes: memory, with that of the program itself.
        time_s: wall-clock time.
    """

    memory_bytes: int
    time_s: float
    began_s: float = field(default_factory=time.monotonic)
    before_bytes: int = field(default_factory=resident_bytes)
    _once: threading.Lock = field(default_factory=threading.Lock)

    @property
    def elapsed_s(self) -> float:
        """Time since the work began."""
        return time.monotonic() - self.began_s

    @property
    def taken_bytes(self) -> int:
        """Memory that the work has now."""
        return max(0, resident_bytes() - self.before_bytes) + BASE_BYTES

    def check(self) -> None:
        """Raise `LimitReached` if the work has taken more than it may; once, because what cleans up takes more."""
        elapsed_s, taken_bytes = self.elapsed_s, self.taken_bytes
        if elapsed_s > max(self.time_s, LEAST_S):
            limit = LimitReached("time", self.time_s, elapsed_s)
        elif taken_bytes > max(self.memory_bytes, LEAST_BYTES):
            limit = LimitReached("memory", self.memory_bytes, taken_bytes)
        else:
            return
        if self._once.acquire(blocking=False):
            raise limit


@dataclass(frozen=True)
class Part:
    """Work of a thread, which is over when all of it is.

    Attributes:
        whole: what all of it may take; None for no limit.
        over: set when nobody waits for the thread any more.
    """

    whole: "Watch | Part | None"
    over: threading.Event

    def check(self) -> None:
        """Raise `Abandoned` if the work is over, and what the whole of it raises."""
        if self.over.is_set():
            raise Abandoned
        if self.whole is not None:
            self.whole.check()


class Abandoned(Exception):  # noqa: N818 - it ends a thread, and no one sees it
    """The work that a thread is part of is over."""


_current: ContextVar["Watch | Part | None"] = ContextVar("watch", default=None)


def current() -> "Watch | Part | None":
    """Return what `check_cancelled` checks in this thread."""
    return _current.get()


def check_cancelled() -> None:
    """Raise what ends the work of this thread, if it is to end; nothing is watched outside of `watching`."""
    watch = _current.get()
    if watch is not None:
        watch.check()


@contextmanager
def watching(watch: "Watch | Part") -> Iterator[None]:
    """Let `check_cancelled` check `watch` in this thread while the block runs."""
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)
