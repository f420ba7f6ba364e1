"""The command that asks a question, so that an answer can name it: set by the command line, empty in Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gradtide.answer import Again

_command: ContextVar[str | None] = ContextVar("_command", default=None)


@contextmanager
def asked_by(command: str) -> Iterator[None]:
    """Let the answers of this block name a command line."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


def again(scenario: str | None = None) -> Again:
    """Return how to have the answer that is being made again.

    Args:
        scenario: path of the resolved scenario in the folder of results, if there is one.
    """
    return Again(_command.get(), scenario)
