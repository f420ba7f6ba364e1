"""Tables of inputs with a fault each, as tests/data/errors has them.

    == unknown key
    @job
    [cluster.link]
    rate_gpbs = 10
    ^^^^^^^^^ GT012 cluster.link.rate_gpbs: `rate`, with

A case is a title, an input, and below the offending line what the fault must say: carets under the offending
characters, code, path, and a part of the hint. A fault without a line, or in the scenario that names the file, is last:

    - GT010 job: [job.train]
    - s.toml:3 GT038 job.a.model: convert

A case of a command has the files that it reads, its words, and parts of what it prints:

    == plan list
    -- p.json
    []
    $ gradtide run s.toml --plan p.json
    error[GT080]: --> p.json | schema
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import Fault

FOLDER = Path(__file__).parent / "data" / "errors"

JOB = '[job.train]\nmodel = { kind = "thesis", layers = 4, size = "1MB", time = "9ms" }\nworkers = 2'
PACKET = "[run]\nengine = 'packet'\nduration = '4s'"
RESNET50 = '[job.train]\nmodel = "resnet50"\nworkers = 4'
BASES = {"@job": JOB, "@packet": PACKET, "@resnet50": RESNET50}
"""What a line of an input stands for."""

_FAULT = re.compile(r"(?:- (?:s\.toml:(\d+) )?|( *)(\^+) )(GT\d{3})(?: (.*?))?(?:: (.*))?")


@dataclass(frozen=True)
class Case:
    """An input and its fault.

    Attributes:
        title: what is wrong.
        text: the input, without a line break at its end.
        code: code of the fault.
        loc: path of the offending key.
        hint: part of the hint.
        line: line of the offending characters, from 1; None if the fault has none.
        column: the first of them, from 1; None for a fault of another file, or without a line.
        width: how many they are.
    """

    title: str
    text: str
    code: str
    loc: str
    hint: str
    line: int | None
    column: int | None
    width: int | None

    def __str__(self) -> str:
        return self.title

    def is_of(self, fault: Fault) -> bool:
        """Whether a fault is as the table says."""
        place = (fault.line, fault.to_dict()["column"], fault.width)
        is_there = place[0] == self.line if self.width is None else place == (self.line, self.column, self.width)
        return is_there and (fault.code, fault.loc) == (self.code, self.loc) and self.hint in fault.hint


def cases(name: str) -> list[Case]:
    """Return the cases of tests/data/errors/NAME.txt."""
    return [_case(*lines) for lines in _lines(name)]


@dataclass(frozen=True)
class Command:
    """A command that is refused.

    Attributes:
        title: what is wrong.
        files: content of each file.
        words: the command without its name.
        code: code of the error; None if it has none.
        says: parts of what it prints on stderr.
    """

    title: str
    files: dict[str, str]
    words: list[str]
    code: str | None
    says: list[str]

    def __str__(self) -> str:
        return self.title


def commands(name: str) -> list[Command]:
    """Return the cases of commands in tests/data/errors/NAME.txt."""
    return [_command(*lines) for lines in _lines(name)]


def _lines(name: str) -> Iterator[list[str]]:
    _, *found = re.split(r"^== ", (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    yield from (one.rstrip("\n").split("\n") for one in found)


def _case(title: str, *lines: str) -> Case:
    text: list[str] = []
    for shown in lines:
        fault = _FAULT.fullmatch(shown)
        if fault is None:
            text += BASES.get(shown, shown).split("\n")
            continue
        elsewhere, indent, carets, code, loc, hint = fault.groups()
        line = len(text) if carets else int(elsewhere) if elsewhere else None
        place = (line, len(indent) + 1, len(carets)) if carets else (line, None, None)
    return Case(title, "\n".join(text), code, loc or "", hint or "", *place)


def _command(title: str, *lines: str) -> Command:
    *inputs, command, error = lines
    files: dict[str, str] = {}
    for line in inputs:
        if line.startswith("-- "):
            name = line.removeprefix("-- ")
            files[name] = ""
        else:
            files[name] += BASES.get(line, line) + "\n"
    code, _, says = error.removeprefix("error").partition(": ")
    return Command(title, files, shlex.split(command)[2:], code.strip("[]") or None, says.split(" | "))
