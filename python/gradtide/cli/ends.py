"""How a command ends: exit codes, and the errors of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gradtide.errors import GradtideError, ScenarioError

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_CANNOT_GO_ON, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 70, 130
EXIT_SIGNAL = 128
"""Exit code of a command that a signal ended, less the number of the signal: 130 of Ctrl-C, 143 of SIGTERM."""


class UsageError(GradtideError):
    """A command line that means nothing."""


def fail_usage(message: str) -> NoReturn:
    """End with a usage error."""
    raise UsageError(message)


class Stopped(GradtideError):  # noqa: N818 - an end, and no error
    """Ctrl-C, and the user has been told what is kept."""


@contextmanager
def as_usage_error(*errors: type[Exception]) -> Iterator[None]:
    """Turn these exceptions into usage errors; a `ScenarioError` stays as it is."""
    try:
        yield
    except ScenarioError:
        raise
    except errors as error:
        fail_usage(str(error))
