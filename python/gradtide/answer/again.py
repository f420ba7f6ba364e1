"""Records the current command line, which every answer contains. Calls from Python have none."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gradtide.answer import Again

_command: ContextVar[str | None] = ContextVar("_command", default=None)


@contextmanager
def asked_by(command: str) -> Iterator[None]:
    """Make all answers that are built within the `with` block contain this command line."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


def command() -> str | None:
    """Return the name of the current command, such as `tenants` for `gradtide tenants map`; None if there is none."""
    words = (_command.get() or "").split()
    return words[1] if words[1:] else None


def again(scenario: str | None = None) -> Again:
    """Return the means to reproduce the answer of the current command.

    Args:
        scenario: path of the resolved scenario in the folder of results, if there is one.
    """
    return Again(_command.get(), scenario)
