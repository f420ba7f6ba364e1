"""The exceptions of the package, and the display of faults of an input."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from gradtide.known import lacking
from gradtide.units import memory_asked, memory_words, time_asked, time_words
from gradtide.words import shown

if TYPE_CHECKING:
    from datetime import datetime


MAX_SHOWN = 50
"""Largest number of faults that the text of a `ScenarioError` shows; its `errors` contains all faults."""
MAX_FAULTS = 200
"""Largest number of faults reported for one input."""
WINDOW = 100
"""Largest number of characters of a source line that a fault shows."""
MAX_WORDS = 1000
"""Largest number of characters of a fault's key, message or hint, which may contain long names from files."""
MAX_ITEMS = 100
"""Largest number of values of a wrong table or list that `ScenarioError.errors` shows."""
MAX_GUESSED = 100
"""Largest number of characters of an unknown word for which a similar known word is searched."""
WRONG_NAMES = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""System errors that are due to a wrong output name. All other errors mean that the output cannot be written now."""
MAX_EDITS = 2
"""Largest number of edits between a word and its misspelling."""
LEAST_BEGINNING, MAX_LISTED = 3, 12
"""An unknown word of at least `LEAST_BEGINNING` letters that is the beginning of at most `MAX_LISTED` known words gets
a hint with these words."""


class GradtideError(Exception):
    """Base class of the exceptions that gradtide raises deliberately.

    Attributes:
        kind: how the error ends a command, one of the kinds in `cli.ends.KINDS`.
    """

    kind: str = "failed"


class TraceError(GradtideError):
    """A foreign file (a trace of another tool) cannot be read."""

    kind = "file"


class WriteError(TraceError):
    """A file cannot be written: its name is wrong, or the disk is full or read-only."""

    kind = "failed"


def cannot_write(path: "str | os.PathLike[str]", error: OSError) -> WriteError:
    """Return the error for a file that cannot be written."""
    failed = WriteError(f"{os.fspath(path)} cannot be written: {error.strerror or error}")
    if error.errno in WRONG_NAMES:
        failed.kind = "usage"
    return failed


class ProfileError(GradtideError, ValueError):
    """A model cannot be profiled; the message contains the reason and quotes the model's own error."""


class SchedulerError(GradtideError, ValueError):
    """A user's scheduler raised an exception, which is the cause, or returned ranks that define no order."""


class TrainingError(GradtideError, RuntimeError):
    """Training cannot continue according to the plan; the message contains the reason and an alternative."""


class RankLostError(TrainingError):
    """Another rank, on which this rank waits, has ended, has stopped training or hangs.

    Every remaining rank raises this error: within ten seconds after a process has died, and within the process group's
    timeout if a rank hangs.

    Attributes:
        rank: the lost rank, in the process group of the job.
        since: time at which the rank was lost, by this host's clock.
    """

    def __init__(self, rank: int, how: str, since: "datetime", advice: str) -> None:
        super().__init__(f"rank {rank} {how}. {advice}; then start all ranks again from the last checkpoint.")
        self.rank, self.since = rank, since
        self._made_of = rank, how, since, advice

    def __reduce__(self) -> tuple[type["RankLostError"], tuple[int, str, "datetime", str]]:
        return type(self), self._made_of


class SimulationError(GradtideError):
    """A run failed; the message gives the reason."""


class CoreRefusal(GradtideError):  # noqa: N818 - the name that crates/py uses
    """The core refused a scenario that passed the parser, because it exceeds a limit on simulated time or memory."""

    kind = "refused"


class EmulationRefusal(GradtideError):  # noqa: N818 - the name that crates/py uses
    """Exception: this system cannot emulate a network. It has a code and a message for the reason."""

    kind = "refused"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unfinished(BaseException):
    """A study ended before all of its runs were finished.

    Attributes:
        results: one entry per run of the study, in the study's order: the run's result, or the part of it that the
            study keeps; `None` for an unfinished run.
        study: the result of the study from the finished runs; `None` if these are too few for a result.
    """

    how = ""
    """What ended the study, in words."""
    results: Sequence[Any] = ()
    study: Any = None

    def attach(self, study: Any) -> None:
        """Attach the result of a study of the finished runs, marked as partial."""
        study.summary["complete"] = False
        finished = sum(result is not None for result in self.results)
        known = f"{self.how} with {finished} of {len(self.results)} runs finished; only these are included."
        study.summary["headline"] = f"{known} {study.summary['headline']}"
        self.study = study


class Interrupted(Unfinished, KeyboardInterrupt):
    """Ctrl-C in the middle of a study."""

    how = "Interrupted"

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__(f"interrupted: {sum(r is not None for r in results)} of {len(results)} runs are finished")
        self.results = list(results)


class LimitReached(Unfinished, SimulationError):  # noqa: N818 - not an error of the program
    """Work has exceeded its limit of time or memory.

    Attributes:
        what: the exceeded limit, time or memory.
        allowed: the limit, in seconds or bytes.
        taken: time or memory that the work has taken, in seconds or bytes.
        share: share of the runs that had finished, 0 to 1; None if that is unknown.
    """

    kind = "limit"
    how = "Stopped at a limit"

    def __init__(self, what: str, allowed: float, taken: float, share: float | None = None) -> None:
        super().__init__(what, allowed, taken, share)
        self.what, self.allowed, self.taken, self.share = what, allowed, taken, share

    @property
    def fault(self) -> "Fault":
        """The fault that is shown to the user, with the option that raises the limit."""
        far = "" if self.share is None else f", with {self.share:.0%} of the work done"
        # The suggested limit extrapolates from the completed share, with a margin, so that one increase is enough.
        share = self.share if self.what == "time" else None
        wanted = 1.5 * self.taken / max(share or 0.4, 0.01)
        words, asked = (time_words, time_asked) if self.what == "time" else (memory_words, memory_asked)
        msg = f"stopped after {words(self.taken)}{far}; {words(self.allowed)} is allowed"
        if self.what == "memory":
            msg = f"stopped at {words(self.taken)} of memory{far}; {words(self.allowed)} is allowed"
        return Fault(
            "GT054", "", msg, None, f"make it smaller, or allow more: {self.option} {asked(wanted)}", self.option
        )

    @property
    def option(self) -> str:
        """The option that sets the limit."""
        return f"--max-{self.what}"

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The fault as `--json` prints it."""
        return [self.fault.to_dict()]

    def __str__(self) -> str:
        return self.fault.render()


class ExecutorError(GradtideError):
    """Runs cannot be executed on the machines of the chosen executor.

    Attributes:
        fault: the fault, with its fix.
    """

    def __init__(self, fault: "Fault") -> None:
        super().__init__(fault.render())
        self.fault = fault

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The fault as `--json` prints it."""
        return [self.fault.to_dict()]


class InternalError(GradtideError):
    """A bug of gradtide. Please report it with the scenario."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in an input.

    Attributes:
        code: id in `codes.CODES`.
        loc: dotted path of the offending key, or field of a model file.
        msg: what is wrong, in one clause.
        input: the offending value.
        hint: the fix, in one clause.
        file: file as the user named it, `<dict>` or `--set`.
        line: line in the file, from 1; `None` if the input has no lines.
        text: the source line, or at most 100 characters of a longer line.
        column: first offending character in `text`, from 0.
        width: number of offending characters.
        cut: number of characters of the line before `text`.
    """

    code: str
    loc: str
    msg: str
    input: Any = None
    hint: str = ""
    file: str = "<dict>"
    line: int | None = None
    text: str | None = None
    column: int = 0
    width: int = 1
    cut: int = 0

    def __post_init__(self) -> None:
        """Shorten long texts to the part that is shown, so that many faults do not copy a file many times."""
        kept: dict[str, Any] = {
            name: _cut(getattr(self, name)) for name in ("loc", "msg", "hint") if len(getattr(self, name)) > MAX_WORDS
        }
        if self.text is not None and len(self.text) > WINDOW:
            if self.line is None:
                kept["text"] = _cut(self.text)
            else:
                kept["text"], kept["column"], kept["width"] = _window(self.text, self.column, self.width)
                kept["cut"] = self.cut + self.column - kept["column"]
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    def render(self) -> str:
        """Return the lines that are shown to the user: code and message, place, source line and hint."""
        head = f"error[{self.code}]: {self.msg}"
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        lines = [head, f"  --> {where}" + (f"   {self.loc}" if self.loc else "")]
        if self.text is None:
            lines += [f"   = {self.hint}"] if self.hint else []
        else:
            number = "" if self.line is None else str(self.line)
            gutter = " " * max(2, len(number))
            text, column, width = _window(shown(self.text), self.column, self.width)
            carets = " " * column + "^" * width
            lines.append(f"{number.rjust(len(gutter))} | {text}".rstrip())
            lines.append(f"{gutter} | {carets} {self.hint}".rstrip())
        lines.append(f"help: gradtide explain {self.code}")
        return "\n".join(shown(line) for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the fault as the dict of `ScenarioError.errors`; `input` is made JSON-able."""
        return {
            "code": self.code,
            "loc": self.loc,
            "msg": self.msg,
            "input": _jsonable(self.input, [MAX_ITEMS]),
            "hint": self.hint,
            "file": self.file,
            "line": self.line,
            "column": None if self.text is None else self.cut + self.column + 1,
            "option": self.file if self.file.startswith("-") else None,
        }


class ScenarioError(GradtideError, ValueError):
    """Exception with all faults of a scenario, or of a file that the scenario names.

    Attributes:
        errors: one dict per fault with `code`, `loc`, `msg`, `input`, `hint`, `file`, `line`, `column` (from 1) and
            `option`.
    """

    kind = "scenario"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        self.errors: list[dict[str, Any]] = [fault.to_dict() for fault in self.faults]
        blocks = [fault.render() for fault in self.faults[:MAX_SHOWN]]
        if len(self.faults) > MAX_SHOWN:
            blocks.append(f"and {len(self.faults) - MAX_SHOWN} more errors")
        super().__init__("\n\n".join(blocks))

    def __reduce__(self) -> tuple[type["ScenarioError"], tuple[tuple[Fault, ...]]]:
        return (ScenarioError, (self.faults,))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"


def _window(text: str, column: int, width: int) -> tuple[str, int, int]:
    width = max(1, width)
    if len(text) > WINDOW:
        start = max(0, min(column - WINDOW // 4, len(text) - WINDOW))
        text = text[start : start + WINDOW]
        column -= start
    return text, column, max(1, min(width, max(len(text) - column, 1)))


def _jsonable(value: Any, left: list[int]) -> Any:
    """Return a value with JSON types. Tables and lists share `left[0]` items, a number that is counted down."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, int):
        return value if abs(value) < 2**64 else repr_short(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    if isinstance(value, (dict, list, tuple)) and left[0] > 0:
        found = list(islice(value.items() if isinstance(value, dict) else enumerate(value), left[0]))
        left[0] -= len(found)
        items = [(key, _jsonable(item, left)) for key, item in found]
        return {_cut(str(key)): item for key, item in items} if isinstance(value, dict) else [x for _, x in items]
    return repr_short(value)


def nearest(wanted: str, known: Iterable[str]) -> str | None:
    """Return the known word that `wanted` misspells; `None` if there is no such word.

    A misspelling differs from the known word by at most `edits_allowed` edits, ignoring case, and has the same digits:
    H100 is no misspelling of A100, and llama4 is none of llama. A letter that looks like a digit counts as the digit:
    V10O is a misspelling of V100.
    """
    word = wanted.casefold()
    if len(word) > MAX_GUESSED:
        return None
    known = list(known)
    alike = next((name for name in known if name.casefold().translate(LOOKALIKE) == word.translate(LOOKALIKE)), None)
    if alike is not None:
        return alike
    digits = _digits(word)
    best, least = None, MAX_EDITS + 1
    for name in known:
        other = name.casefold()
        if abs(len(other) - len(word)) >= least or _digits(other) != digits:
            continue
        away = edits(word, other)
        if away < least and away <= edits_allowed(word, other):
            best, least = name, away
    return best


LOOKALIKE = str.maketrans("oli", "011")
"""Letters that look like digits, in lower case."""


def edits_allowed(a: str, b: str) -> int:
    """Return how many edits a misspelling may have: fewer in short words, because two edits turn PFC into PCN."""
    letters = min(sum(character.isalpha() for character in word) for word in (a, b))
    return 0 if letters < 3 else 1 if letters < 6 else MAX_EDITS


def edits(a: str, b: str) -> int:
    """Return the number of edits between two words: letters inserted, deleted, replaced, or swapped with the next.

    Source:
        The optimal string alignment distance (Damerau 1964).
    """
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (one != other))
            if i > 1 and j > 1 and one == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _digits(word: str) -> str:
    return "".join(character for character in word if character.isdigit())


def did_you_mean(
    wanted: str, known: Iterable[str], otherwise: str, form: str = "`{}`", *, kind: str | None = None
) -> str:
    """Return the hint for an unknown word.

    The hint says that gradtide does not model the feature, suggests the nearest known word, or lists the known words
    that begin with the unknown one. If none of these applies, the hint is `otherwise`.

    Args:
        wanted: what the user wrote.
        known: the valid words.
        otherwise: the hint if no other applies.
        form: format of a known word in the hint.
        kind: vocabulary of the word in `known.LACKING`; `None` for names that users choose.
    """
    said = None if kind is None else lacking(kind, wanted)
    if said is not None:
        return said
    known = list(known)
    near = _misspelt(wanted, known, kind)
    if near is not None:
        return f"did you mean {form.format(near)}?"
    longer = [form.format(name) for name in known if name.casefold().startswith(wanted.casefold())]
    if len(wanted) >= LEAST_BEGINNING and 0 < len(longer) <= MAX_LISTED:
        return f"there {'is' if len(longer) == 1 else 'are'} {', '.join(longer)}"
    return otherwise


def _misspelt(wanted: str, known: Iterable[str], kind: str | None) -> str | None:
    """Return the known word that `wanted` misspells; `None` if `wanted` names an unmodelled feature, such as PIE."""
    return None if kind is not None and lacking("", wanted) else nearest(wanted, known)


def hinted(wanted: str, known: Iterable[str], listed: str, form: str = "{}", *, kind: str | None = None) -> str:
    """Return the hint for an unknown word: that its feature is not modelled, or a suggestion followed by `listed`."""
    known = list(known)
    said = None if kind is None else lacking(kind, wanted)
    near = _misspelt(wanted, known, kind)
    return said or (listed if near is None else f"did you mean {form.format(near)}? {listed}")


def repr_short(value: object) -> str:
    """Return a short `repr` of a value; never raises."""
    try:
        text = repr(value[:80] if isinstance(value, (str, bytes, list, tuple)) else value)
    except Exception:  # raised by the value's own `__repr__`, or an integer is too long to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
