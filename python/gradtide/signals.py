"""What ends a command before it is done: Ctrl-C, SIGTERM and SIGHUP from its first line on, and the limits it is given.

A signal raises `KeyboardInterrupt` once, where the command can answer it; before, while modules are loaded, it is
noted. A limit raises its own exception in the same way. Code that computes outside Python for longer than a second, and
so cannot answer, is ended as it is. One thread sees to all of this.
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
"""After so long the process is ended: if Python has not seen the signal; if nothing but removes what is half-written
has followed; if an interrupted study still writes its partial result. Another signal ends it at once. Time that other
processes had the processor does not count, up to `PATIENCE` times as long."""

PATIENCE = 5

received: list[int] = []
"""The signals that came, in their order."""

LIMIT = system.ALARM
"""Sent to the process itself when a limit is reached: the main thread receives it even while it waits for a file."""

POLL_S = 0.1

check: Callable[[], None] | None = None
"""Raises once, when what the command has taken is more than it may: asked ten times a second."""

reached: Exception | None = None
"""What `check` raised."""

last_words: Callable[[int], None] | None = None
"""Called with the signal before a process that does not answer is ended."""

EXIT_SIGNAL = 128
"""Exit code of a command that a signal ended, less the number of the signal: 130 for Ctrl-C, 143 for SIGTERM."""

EXIT_CANNOT_GO_ON = 3
"""Exit code of a command that a limit ended, or whatever else did not let it go on."""

RAISED_AGAIN_AFTER_S = 0.001
"""Python drops an exception that is raised where nothing can catch it: in `__del__`, or in the callback of a weak
reference, which modules that are being loaded have. What was dropped is raised again so much later."""

_raised: BaseException | None = None
"""What was raised, for a signal or for a limit."""

_state = {"catches": False, "raises": False, "raised": False, "dropped": False, "settled": False, "tidies": False}


def catch(noted: Sequence[int] = ()) -> None:
    """Note signals from now on, except for those that are ignored, as under nohup; once is enough.

    Args:
        noted: those that have come already.
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
    """Raise for the first signal, also if it came before now."""
    _state["raises"] = True
    if received:
        _on_signal(received.pop(), None)


def settle() -> None:
    """Raise nothing any more: the command has ended, or is about to say how it does."""
    _state.update(raises=False, settled=True)


def has_raised() -> bool:
    """Return whether a signal has been raised; some libraries make another exception of a `KeyboardInterrupt`."""
    return _state["raised"]


def again() -> None:
    """Raise what a signal or a limit raised, if anything, where a library has made something else of it."""
    if _raised is not None and not _state["settled"]:
        raise _raised


def leave(code: object) -> None:
    """Let signals change nothing while Python itself ends; where runs may still be under way, do not wait for them."""
    if isinstance(code, int) and (code == EXIT_CANNOT_GO_ON or code > EXIT_SIGNAL):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    for number in (*STOPS, LIMIT):
        signal.signal(number, signal.SIG_IGN)


def is_settled() -> bool:
    """Return whether the command has ended, or is about to say how it does."""
    return _state["settled"]


def tidy() -> None:
    """Say that the signal is answered, and that what is known is being written."""
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
    """Raise again what a signal or a limit raised; print any other exception that was dropped, as Python does."""
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
    """Wait for a signal, which the system reports at once, or a limit, and then for the process to end."""
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
