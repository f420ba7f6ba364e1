"""Interrupts a command on Ctrl-C, SIGTERM or SIGHUP, and when it exceeds its limits of time or memory.

A signal raises `KeyboardInterrupt` once the command can handle it. Until then, while modules are loaded, the signal is
recorded. A limit raises `LimitReached` in the same way. If code outside Python blocks for longer than a second, the
process is terminated. A single thread supervises all of this.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from gradtide import system
from gradtide.system import STOPS

NOTICE_S, ANSWER_S, TIDY_S = 0.8, 2.0, 10.0
"""Time limits for the response to a signal, after which the process is terminated: `NOTICE_S` for Python to handle the
signal, `ANSWER_S` for the removal of incomplete files, and `TIDY_S` for an interrupted study to write its partial
result. A second signal terminates the process immediately. Time during which other processes used the processor does
not count, up to `PATIENCE` times the timeout."""

PATIENCE = 5

received: list[int] = []
"""The received signals, in order."""

LIMIT = system.ALARM
"""Signal that is sent to the process itself at a limit: the main thread receives it even while it waits for a file."""

POLL_S = 0.1

check: Callable[[], None] | None = None
"""Function that is called every `POLL_S` seconds, and raises once if the command has exceeded its limits."""

reached: Exception | None = None
"""The exception that `check` raised."""

last_words: Callable[[int], None] | None = None
"""Function that is called with the number of the signal before an unresponsive process is terminated."""

EXIT_SIGNAL = 128
"""A command that is ended by a signal exits with this code plus the signal's number: Ctrl-C 130, SIGTERM 143."""

EXIT_CANNOT_GO_ON = 3
"""Exit code of a command that was ended by a limit or another error during its work."""

RAISED_AGAIN_AFTER_S = 0.001
"""Seconds after which a dropped exception is raised again. Python drops exceptions that are raised in `__del__` or in
the callback of a weak reference, which happens during imports."""

_raised: BaseException | None = None
"""The exception of the first signal or limit."""

_state = {"catches": False, "raises": False, "raised": False, "dropped": False, "settled": False, "tidies": False}


def catch(noted: Sequence[int] = ()) -> None:
    """Record signals from now on, except those that are ignored, as under nohup. Further calls have no effect.

    Args:
        noted: signals that were received before this call.
    """
    if _state["catches"]:
        return
    _state["catches"] = True
    caught = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, _on_signal)
    signal.signal(LIMIT, _on_signal)
    received.extend(noted)
    sys.unraisablehook = _on_dropped
    threading.Thread(target=_watch, args=(system.arrivals(), caught), daemon=True).start()


def answer() -> None:
    """Raise `KeyboardInterrupt` on the first signal from now on, or immediately if a signal was received before."""
    _state["raises"] = True
    if received:
        _on_signal(received.pop(), None)


def settle() -> None:
    """Raise no further exceptions, because the command has ended or is about to print its last message."""
    _state.update(raises=False, settled=True)


def has_raised() -> bool:
    """Return whether a signal has raised `KeyboardInterrupt`, which some libraries convert into another exception."""
    return _state["raised"]


def again() -> None:
    """Raise the exception of a signal or limit again, if a library has converted it."""
    if _raised is not None and not _state["settled"]:
        raise _raised


def leave(code: object) -> None:
    """Exit at once after a signal or a limit, without waiting for active runs; otherwise ignore signals at exit."""
    if isinstance(code, int) and (code == EXIT_CANNOT_GO_ON or code > EXIT_SIGNAL):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    for number in (*STOPS, LIMIT):
        signal.signal(number, signal.SIG_IGN)


def is_settled() -> bool:
    """Return whether the command has ended, or is about to print its last message."""
    return _state["settled"]


def tidy() -> None:
    """Extend the timeout to `TIDY_S`, because the partial result of an interrupted study is being written."""
    _state["tidies"] = True


def _on_signal(number: int, frame: object) -> None:
    global _raised
    if _state["dropped"] and _raised is not None:
        _state["dropped"] = False
        raise _raised
    if number == LIMIT and reached is None:
        return
    received.append(number)
    if _state["raises"]:
        _state["raises"] = False
        _state["raised"] = number != LIMIT
        _raised = reached if number == LIMIT and reached is not None else KeyboardInterrupt()
        raise _raised


def _on_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    """Raise a dropped exception of a signal or limit again; print any other dropped exception, as Python does."""
    if _raised is None or dropped.exc_value is not _raised:
        sys.__unraisablehook__(dropped)
    elif not _state["settled"]:
        _state["dropped"] = True
        system.alarm_after(RAISED_AGAIN_AFTER_S)


def _is_at_limit() -> bool:
    global reached
    try:
        if check is not None:
            check()
    except Exception as error:
        reached = error
        system.alarm()
    return reached is not None


def _limit_s() -> float:
    if _state["tidies"]:
        return TIDY_S
    return ANSWER_S if received else NOTICE_S


def _watch(arrival: Callable[[float], int | None], caught: list[int]) -> None:
    """Wait for a signal or a limit, and terminate the process if it does not end by itself in time."""
    first = received[0] if received else 0
    while first not in caught:
        number = arrival(POLL_S)
        if number is not None:
            first = number
        elif _is_at_limit():
            first = LIMIT
            break
    since, since_used = time.monotonic(), time.process_time()
    while len(received) < 2:
        passed, used = time.monotonic() - since, time.process_time() - since_used
        if max(min(passed, used), passed / PATIENCE) >= _limit_s():
            break
        time.sleep(0.02)
    if last_words is not None:
        last_words(first)
    os._exit(EXIT_CANNOT_GO_ON if first == LIMIT else EXIT_SIGNAL + first)
