"""Lets a command take no more time and memory than it may, whatever part of it is under way."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradtide.errors import LimitReached
from gradtide.watch import watching

if TYPE_CHECKING:
    from gradtide.estimate import Limits

LOOK_EVERY_S = 0.1
FIRST_LOOK_S = 1.0
"""A command that starts is left to find out by itself that it would take too much."""
GRACE_S = 2.0
"""How long what cleans up after a limit is left alone."""

SIGNAL = signal.SIGUSR2
"""Wakes the main thread also where it waits for a file. No terminal and no batch system sends it."""


@contextmanager
def limited(limits: "Limits") -> Iterator[None]:
    """Raise `LimitReached` in the main thread once the block has taken more than `limits`.

    A thread looks, and a signal tells the main one. So the limit is reached in Python and in the core alike, and what
    cleans up after Ctrl-C cleans up after it.
    """
    watch = limits.watch()
    if threading.current_thread() is not threading.main_thread():
        with watching(watch):
            yield
        return
    is_over = threading.Event()
    reached: list[LimitReached] = []

    def on_signal(*_: Any) -> None:
        if reached and not is_over.is_set():
            raise reached.pop()

    def look() -> None:
        wait_s = FIRST_LOOK_S
        while not is_over.wait(wait_s):
            wait_s = LOOK_EVERY_S
            try:
                watch.look()
            except LimitReached as limit:
                reached.append(limit)
                os.kill(os.getpid(), SIGNAL)
                wait_s = GRACE_S

    before = signal.signal(SIGNAL, on_signal)
    threading.Thread(target=look, daemon=True).start()
    try:
        with watching(watch):
            yield
    finally:
        is_over.set()
        # Not the one before: a last signal may still be on its way.
        signal.signal(SIGNAL, signal.SIG_IGN if before in (signal.SIG_DFL, None) else before)
