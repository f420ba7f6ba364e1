"""Exit codes of commands, errors of the command line, and the JSON document of a failed command."""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gradtide import signals
from gradtide.errors import Fault, GradtideError, ScenarioError, cannot_write

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_CANNOT_GO_ON, EXIT_BUG = 1, 2, signals.EXIT_CANNOT_GO_ON, 70
# 1, 2 and 15 are SIGHUP, SIGINT and SIGTERM of POSIX. Windows has no signal.SIGHUP.
EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED = (signals.EXIT_SIGNAL + number for number in (1, 2, 15))

EXIT_CODES = {
    0: "the command succeeded",
    EXIT_CHECK_FAILED: "a check of `--fail-if` failed; results are written all the same",
    EXIT_BAD_INPUT: "an input is wrong: the scenario, a file that it names, or the command line",
    EXIT_CANNOT_GO_ON: "the run failed, reached a limit or could not write a folder or file; or stdout or "
    "stderr is full or closed (files of results are then complete); or some runs of a sweep were refused or failed "
    "(the results of the other runs are written)",
    EXIT_BUG: "a bug of gradtide; please report it",
    EXIT_HUNG_UP: "ended by SIGHUP, as when the terminal is closed; otherwise the same as Ctrl-C",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C); finished runs of a study are kept, and the same command continues",
    EXIT_TERMINATED: "ended by SIGTERM, as by batch systems; otherwise the same as Ctrl-C",
}
"""The meaning of every exit code."""

KINDS = {
    "usage": (EXIT_BAD_INPUT, "the command line is wrong"),
    "scenario": (EXIT_BAD_INPUT, "a scenario, or a file that it names, is wrong or would need too much time or memory"),
    "file": (EXIT_BAD_INPUT, "a file of another tool cannot be read"),
    "refused": (EXIT_BAD_INPUT, "the run would exceed a limit of the core on simulated time or memory"),
    "failed": (EXIT_CANNOT_GO_ON, "the run failed, or its results could not be written"),
    "limit": (EXIT_CANNOT_GO_ON, "the command reached its limit on memory or time"),
    "interrupted": (EXIT_INTERRUPTED, "the command was interrupted by Ctrl-C"),
    "terminated": (EXIT_TERMINATED, "the command was ended by SIGTERM, or by SIGHUP, which has its own exit code"),
    "bug": (EXIT_BUG, "gradtide has a bug"),
}
"""Exit code and meaning of each value of `kind` in an error document."""

KEYS_OF_AN_ERROR = tuple(Fault("", "", "").to_dict())


class UsageError(GradtideError):
    """An invalid command line.

    Attributes:
        option: the option that is wrong, as in `--rate`; None if the message names none.
    """

    kind = "usage"

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        named = re.match(r"--?[a-z][a-z-]*", message)
        self.option = option or (named[0] if named else None)


def fail_usage(message: str) -> NoReturn:
    """Raise `UsageError`."""
    raise UsageError(message)


class Stopped(GradtideError):  # noqa: N818 - it ends the command, and is no error
    """A signal interrupted the command, which has already printed which finished runs are kept."""


@contextmanager
def as_usage_error(*errors: type[Exception], option: str | None = None) -> Iterator[None]:
    """Convert `errors` of the block into `UsageError`, with `option` if given. A `ScenarioError` is not converted."""
    try:
        yield
    except (ScenarioError, UsageError):
        raise
    except errors as error:
        raise UsageError(str(error), option) from error


@contextmanager
def writing(path: Path, option: str = "--output") -> Iterator[None]:
    """Convert an `OSError` of the block into an error about `path`, or about `option` if the name is invalid."""
    try:
        yield
    except OSError as error:
        failed = cannot_write(path, error)
        if failed.kind == "usage":
            raise UsageError(str(failed), option) from error
        raise failed from error


def error_document(
    kind: str, message: str, errors: Sequence[Mapping[str, Any]] = (), exit_code: int | None = None
) -> dict[str, Any]:
    """Return the JSON document of a command without a result.

    Args:
        kind: a key of `KINDS`.
        message: the error in one sentence.
        errors: the faults of an input, each with some of `KEYS_OF_AN_ERROR`.
        exit_code: exit code of the command. Default: that of `kind`.
    """
    return {
        "schema": "gradtide.error/1",
        "kind": kind,
        "exit_code": KINDS[kind][0] if exit_code is None else exit_code,
        "message": message,
        "errors": [dict.fromkeys(KEYS_OF_AN_ERROR) | dict(error) for error in errors],
    }


def stopped_document(number: int) -> dict[str, Any]:
    """Return the JSON document of a command that was ended by the signal with this number."""
    kind = "interrupted" if number == signal.SIGINT else "terminated"
    return error_document(kind, f"ended by {signal.Signals(number).name}", exit_code=signals.EXIT_SIGNAL + number)


def document_of(error: GradtideError) -> dict[str, Any]:
    """Return the JSON document of a command that ended with this exception."""
    faults = getattr(error, "errors", ())
    if faults:
        more = len(faults) - 1
        return error_document(error.kind, faults[0]["msg"] + (f", and {more} more errors" if more else ""), faults)
    option = getattr(error, "option", None)
    where = [{"msg": str(error), "option": option}] if option else []
    return error_document(error.kind, str(error), where)
