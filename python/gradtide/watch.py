"""Limits of time and memory for a whole command or call, and their checks.

    with watching(limits):      starts the watch; nested calls use this watch and ignore their own limits
        ...
        check_cancelled()       raises `LimitReached` or `Abandoned`

The core calls `check_cancelled` every few milliseconds in all its long loops, in every thread. On the command line the
thread of `gradtide.signals` also checks the limits, so that no part of a command can run for ever.

The memory of the work is the growth of the process's resident set since the start of the work. A counting allocator in
the core would miss the memory of Python objects.
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
"""Memory of the program before any work."""

LEAST_BYTES, LEAST_S = 150_000_000, 1.0
"""Smallest limits that are enforced, because loading modules takes as much. Smaller limits are checked by estimates."""


@dataclass
class Watch:
    """The limits of some work, counted from its start.

    Attributes:
        memory_bytes: memory limit, including the memory of the program.
        time_s: limit of the wall-clock time.
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
        """Memory that the work takes now, in bytes."""
        return max(0, resident_bytes() - self.before_bytes) + BASE_BYTES

    def check(self) -> None:
        """Raise `LimitReached` if a limit is exceeded; only once, because clean-up needs more time and memory."""
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
    """A thread that does a part of some work.

    Attributes:
        whole: the limits of the whole work; None for no limit.
        over: set when the result of the thread is no longer needed.
    """

    whole: "Watch | Part | None"
    over: threading.Event

    def check(self) -> None:
        """Raise `Abandoned` if the result is no longer needed, and check the limits of the whole work."""
        if self.over.is_set():
            raise Abandoned
        if self.whole is not None:
            self.whole.check()


class Abandoned(Exception):  # noqa: N818 - it ends a thread, and is not reported
    """The result of a thread is no longer needed."""


_current: ContextVar["Watch | Part | None"] = ContextVar("watch", default=None)


def current() -> "Watch | Part | None":
    """Return the watch or part that `check_cancelled` checks in this thread."""
    return _current.get()


def check_cancelled() -> None:
    """Raise an exception if the work of this thread must end. Outside of `watching`, do nothing."""
    watch = _current.get()
    if watch is not None:
        watch.check()


@contextmanager
def watching(watch: "Watch | Part") -> Iterator[None]:
    """Make `check_cancelled` check `watch` in this thread during the `with` block."""
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)
