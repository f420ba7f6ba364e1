"""Reads text files of any size line by line, and collects their faults."""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from gradtide import inputs
from gradtide.errors import Fault, ScenarioError, cannot_write
from gradtide.files import write_whole
from gradtide.scenario.source import of_command_line, read_text
from gradtide.units import U64_MAX

MAX_FAULTS_OF_A_FILE = 20
MAX_LINE = 1 << 20
_WORD = re.compile(r"\S+")
_DECIMAL = re.compile(r"(\d{1,20})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,2}))?", re.ASCII)


@dataclass
class Options:
    """Information for a conversion that the file does not contain.

    Attributes:
        packet_bytes: unit of the sizes in an ns-2 distribution, in bytes.
        hosts: host number of each node that is a host; `None` if each host number equals its node number.
        start_unit: unit of the starts in an htsim-cm file, ps or us; `None` if not given.
        nodes: number of nodes of an htsim-cm file, set by its reader; 0 for other files.
        notes: sentences for the user about omissions and roundings, added by readers and writers.
    """

    packet_bytes: int | None = None
    hosts: Mapping[int, int] | None = None
    start_unit: str | None = None
    nodes: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, count: int, one: str, many: str) -> None:
        """Add the note `one` if `count` is 1, or `many` after a larger count; add nothing if it is 0."""
        if count:
            self.notes.append(one if count == 1 else f"{count:,} {many}")


class Complaints:
    """Collects the faults of a file, each with its line and the word that is wrong."""

    def __init__(self, file: str, code: str) -> None:
        self._file = file
        self._code = code
        self._faults: list[Fault] = []

    def add(
        self,
        number: int | None,
        line: str | None,
        where: str,
        msg: str,
        hint: str,
        word: int = -1,
        *,
        code: str | None = None,
    ) -> None:
        """Add a fault of a line, or of its blank-separated word with index `word`; raise the faults if there are many.

        Default of `code`: the error code of this collection.
        """
        start, stop = 0, len(line or "")
        if line is not None and word >= 0:
            found = list(_WORD.finditer(line))
            start, stop = found[min(word, len(found) - 1)].span() if found else (0, 1)
        value = None if line is None else line[start:stop][:80]
        width = max(1, stop - start)
        self._faults.append(Fault(code or self._code, where, msg, value, hint, self._file, number, line, start, width))
        if len(self._faults) >= MAX_FAULTS_OF_A_FILE:
            self.end()

    @property
    def any(self) -> bool:
        """Whether there are faults."""
        return bool(self._faults)

    def end(self) -> None:
        """Raise a `ScenarioError` with every fault if there are any."""
        if self._faults:
            raise ScenarioError(self._faults)


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file without line endings, one at a time.

    Raises:
        ScenarioError: if the file cannot be read (GT002), is no UTF-8 text (GT003) or has a line of more than 1 MiB
            (GT004).
    """
    number = 1
    try:
        with io.TextIOWrapper(inputs.open_file(path), encoding="utf-8-sig") as file:
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    msg = f"line {number} has more than {MAX_LINE:,} characters"
                    raise ScenarioError([Fault("GT004", "", msg, None, "is it the right file?", str(path), number)])
                yield line.rstrip("\n")
                number += 1
    except inputs.InputError as error:
        raise ScenarioError([of_command_line(str(path))(error.code, f"{path} {error.msg}", error.hint)]) from None
    except UnicodeDecodeError:
        msg = f"{path} is not UTF-8 text (near line {number})"
        raise ScenarioError([Fault("GT003", "", msg, None, "save the file as UTF-8", str(path))]) from None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ScenarioError([Fault("GT002", "", msg, None, "check the path", str(path))]) from None


def whole_text(path: Path) -> str:
    """Return the text of a file named on the command line.

    Raises:
        ScenarioError: if it cannot be read, is not UTF-8, or exceeds 10 MB.
    """
    return read_text(path, str(path), of_command_line(str(path)))


def write(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        TraceError: if it cannot be written.
    """
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def count(word: str, high: int = U64_MAX) -> int | None:
    """Parse a whole number from 0 to `high`; `None` for anything else."""
    if not (word.isascii() and word.isdigit()) or len(word) > 20:
        return None
    value = int(word)
    return value if value <= high else None


def decimal(word: str) -> Fraction | None:
    """Parse a non-negative decimal exactly; `None` for anything else, including signs, NaN and infinity."""
    match = _DECIMAL.fullmatch(word)
    if match is None:
        return None
    whole, part, exponent = match.groups()
    value = Fraction(int(whole + (part or "")), 10 ** len(part or ""))
    return value * Fraction(10) ** int(exponent) if exponent else value
