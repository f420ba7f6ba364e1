"""Records the current command line, which every answer repeats; there is none if gradtide is used from Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gradtide.answer import Again

_command: ContextVar[str | None] = ContextVar("_command", default=None)


@contextmanager
def asked_by(command: str) -> Iterator[None]:
    """During the block, answers contain this command line."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


def command() -> str | None:
    """Return the name of the current command, as in `run`, without that of a subcommand; None if called from Python."""
    words = (_command.get() or "").split()
    return words[1] if words[1:] else None


def again(scenario: str | None = None) -> Again:
    """Return the means to reproduce the answer of the current command.

    Args:
        scenario: path of the resolved scenario in the folder of results, if there is one.
    """
    return Again(_command.get(), scenario)
