"""The text of a scenario and the positions of its keys, from which faults get their line and column.

`tomllib` and `json` return values without positions. `locate` therefore scans the text again, after it has been parsed
successfully, and records the position of every key and value.
"""

import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from gradtide import inputs
from gradtide.errors import MAX_FAULTS, WINDOW, Fault, ScenarioError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Loc = tuple["str | int", ...]

MAX_DEPTH = 32
"""Keys nested more deeply have no recorded position, so that the positions take memory linear in the text's size."""
MAX_DIGITS = 100
"""Maximum length of an integer in JSON. Valid integers have at most 20 digits; longer ones may overflow a float."""
MAX_SPANS = 1_000_000
"""Maximum number of keys and list elements whose positions are recorded."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(
    rf"(?:^[ \t]*\[{{0,2}}|[{{,])[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_DEPTH}}})", re.MULTILINE
)
"""Matches a dotted key with more than `MAX_DEPTH` parts: the TOML parser takes time quadratic in their number."""
_STRINGS = {'"': re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL), "'": re.compile(r"'[^']*'")}
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


class Span(NamedTuple):
    """Offsets (start, end) of a key and its value in the text. A list element has no key: there `key` is `value`."""

    key: tuple[int, int]
    value: tuple[int, int]


class Overlay(NamedTuple):
    """A value given outside the file, for example by `--set`: its origin, its text, and the value's column in it."""

    file: str
    text: str
    column: int


@contextmanager
def as_options(options: Mapping[str, str], others: Mapping[str, str] | None = MappingProxyType({})) -> Iterator[None]:
    """Make faults of a scenario that is built from command-line options name these options.

    Args:
        options: the option that sets each key, by the key's short name in `Scenario.replace` or path in `Scenario.set`.
        others: all options of the command, by name of the key. The fault of a missing key names the key's option. With
            `None`, faults that have no text to quote are not changed.
    """

    def named(fault: Fault) -> Fault:
        what, equals, value = (fault.text or "").partition("=")
        option = options.get(what)
        if fault.file == Source.name and fault.text is None:
            if others is None:
                return fault
            key = fault.loc.rpartition(".")[2]
            return replace(fault, file=others.get(key, "command line") if fault.code == "GT010" else "command line")
        if not equals or option is None or fault.line is not None:
            return fault
        if what in ("collective", "parallel"):
            # Quote the value as the user wrote it in the option: `ring`, not the scenario's table `{ kind = "ring" }`.
            table = value.removeprefix("{ kind = ").removeprefix("{ ").removesuffix(" }")
            comma = "+" if what == "collective" else ","
            value = table.replace(" = ", "=").replace(", ", comma).replace('"', "")
        value = value[1:-1] if value[:1] == value[-1:] == '"' else value
        text = f"{option} {value}"
        return replace(fault, file=option, text=text, column=len(option) + 1, width=max(1, len(value)))

    try:
        yield
    except ScenarioError as error:
        raise ScenarioError([named(fault) for fault in error.faults]) from None


@dataclass(frozen=True)
class Source:
    """The text of a scenario, and the values that override keys of the text.

    Attributes:
        name: the file as the user named it, or `<dict>`.
        text: content of the file; `None` for a Python dict.
        overlays: values given by `--set` or `replace`, by path of the key.
        notes: warnings, one sentence each, such as for keys that were left out on purpose.
        assumed: dotted keys whose values gradtide assumed when it made the scenario from a model alone.
    """

    name: str = "<dict>"
    text: str | None = None
    overlays: Mapping[Loc, Overlay] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()

    @cached_property
    def spans(self) -> dict[Loc, Span]:
        """Positions of every key and value in the text, by path; empty without a text."""
        return {} if self.text is None else locate(self.text)

    def fault(self, code: str, loc: Loc, msg: str, hint: str = "", value: Any = None, *, at_key: bool = False) -> Fault:
        """Return a fault at the value at path `loc`, or at its key with `at_key`; if `loc` is absent, at its parent."""
        for end in range(len(loc), 0, -1):
            # The overlay replaces the value in the text, so the fault points at the overlay.
            over = self.overlays.get(loc[:end])
            if over is not None:
                column, width = over.column, len(over.text) - over.column
                return Fault(code, dotted(loc), msg, value, hint, over.file, None, over.text, column, width)
        for end in range(len(loc), 0, -1):
            span = self.spans.get(loc[:end])
            if span is not None and self.text is not None:
                start, stop = span.key if at_key or end < len(loc) else span.value
                plain = Fault(code, dotted(loc), msg, value, hint, self.name)
                return pointed(self.text, start, stop, plain)
        return Fault(code, dotted(loc), msg, value, hint, self.name)


@dataclass(frozen=True)
class Under:
    """A part of a file, with paths relative to `prefix`."""

    source: Source
    prefix: Loc

    def fault(self, code: str, loc: Loc, msg: str, hint: str = "", value: Any = None, *, at_key: bool = False) -> Fault:
        """Return a fault at the value at path `loc`, relative to `prefix`, or at its key with `at_key`."""
        return self.source.fault(code, (*self.prefix, *loc), msg, hint, value, at_key=at_key)


def pointed(text: str, start: int, stop: int, fault: Fault) -> Fault:
    """Return `fault` with line, column and quoted text of the characters from `start` to `stop` of a file's text."""
    starts = _line_starts(text)
    line = bisect_right(starts, start)
    line_start = starts[line - 1]
    line_end = starts[line] - 1 if line < len(starts) else len(text)
    # The fault contains only part of the line, because a file may be a single long line with many faults.
    first = max(line_start, start - 2 * WINDOW)
    cut = text[first : min(line_end, start + 2 * WINDOW)]
    width = max(1, min(stop, line_end) - start)
    return replace(fault, line=line, text=cut, column=start - first, width=width, cut=first - line_start)


@lru_cache(maxsize=2)
def _line_starts(text: str) -> list[int]:
    """Return the start offset of each line. Cached, so that many faults of a file need one pass over its text."""
    return [0, *(match.end() for match in re.finditer("\n", text))]


class Faults(list[Fault]):
    """List of the faults found in an input. `append` raises all of them once there are `MAX_FAULTS`.

    The number of faults is limited because in a file with a fault on every line, all faults have the same cause.
    """

    def append(self, fault: Fault) -> None:
        """Add a fault.

        Raises:
            ScenarioError: with all faults, if the list is full.
        """
        super().append(fault)
        if len(self) >= MAX_FAULTS:
            raise ScenarioError(self)

    def __iadd__(self, faults: Iterable[Fault]) -> "Faults":  # type: ignore[override,misc]
        for fault in faults:
            self.append(fault)
        return self


def shown_from(faults: Iterable[Fault], source: Source, base_dir: Path) -> list[Fault]:
    """Return the faults of a scenario, without quotes from files that its author may not be allowed to read.

    A scenario may name any file as its model, and faults quote the faulty lines of a file. To prevent disclosure, only
    those files are quoted that are in the scenario's or the current folder, or that the user named in an option.
    """
    return [fault if may_quote(fault.file, source, base_dir) else _unquoted_fault(fault) for fault in faults]


def may_quote(file: str, source: Source, base_dir: Path) -> bool:
    """Return whether a fault of a scenario may quote a file. Symbolic links are resolved first."""
    if source.text is None or file == source.name or any(file in over.text for over in source.overlays.values()):
        return True
    try:
        path = (base_dir / file).resolve()
        folders = [base_dir.resolve(), Path.cwd()]
        return not path.exists() or any(len(one.parts) > 1 and path.is_relative_to(one) for one in folders)
    except (OSError, ValueError, RuntimeError):
        return True  # an unreadable file discloses nothing


def _unquoted_fault(fault: Fault) -> Fault:
    return Fault(fault.code, "", NOT_SHOWN, None, COPY_IT, fault.file, fault.line)


NOT_SHOWN = "the file is invalid; its content is not shown, because it is outside the scenario's folder"
COPY_IT = "copy it into the scenario's folder to see the error"


def dotted(loc: Loc) -> str:
    """Return a path as users write it: `job.train.model.layers[3].name`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.isprintable() and part and "." not in part else json.dumps(part)
            text += "." * bool(text) + name
    return text


def read_text(path: Path, name: str, fail: "Fail") -> str:
    """Return the text of the file at `path`, with LF line ends. Faults call the file `name`.

    Raises:
        ScenarioError: if the file is not a readable UTF-8 text of at most 10 MB.
    """
    return decoded(read_data(path, name, fail), name, fail)


def read_data(path: Path, name: str, fail: "Fail", max_bytes: int = inputs.MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of the file at `path`. Faults call the file `name`.

    Raises:
        ScenarioError: if the file cannot be read or has more than `max_bytes`.
    """
    try:
        return inputs.read(path, max_bytes)
    except inputs.InputError as error:
        raise ScenarioError([fail(error.code, f"{name} {error.msg}", error.hint)]) from None
    except FileNotFoundError:
        near = _nearest_file(path)
        hint = f"did you mean {near}?" if near else CHECK_PATH
        raise ScenarioError([fail("GT002", f"there is no file {name}", hint)]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid path"
        hint = "check its permissions" if isinstance(error, PermissionError) else "check the path"
        raise ScenarioError([fail("GT002", f"{name} cannot be read: {reason}", hint)]) from None


def decoded(data: bytes, name: str, fail: "Fail") -> str:
    """Return the text in the bytes of a file, with LF line ends. Faults call the file `name`.

    Raises:
        ScenarioError: if the bytes are not UTF-8 text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{name} is not UTF-8 text (line {line})"
        raise ScenarioError([fail("GT003", message, "save the file as UTF-8")]) from None
    if "\0" in text:
        message = f"{name} contains a NUL byte (line {text.count(chr(10), 0, text.index(chr(0))) + 1})"
        raise ScenarioError([fail("GT003", message, "save the file as UTF-8 text; is it a binary file?")])
    return text.replace("\r\n", "\n").replace("\r", "\n")


CHECK_PATH = "check the path"
"""Hint for a file that does not exist."""

Fail = Callable[[str, str, str], Fault]
"""Function of code, message and hint that returns a fault of a file, at the place where a user named the file."""


def of_command_line(name: str) -> Fail:
    """Return the `Fail` function for a file that was named on the command line."""

    def fail(code: str, msg: str, hint: str) -> Fault:
        return Fault(code, "", msg, name, hint, name)

    return fail


@dataclass(frozen=True)
class Failure:
    """`Fail` function whose faults have a fixed location in a scenario, such as the key that names a file."""

    source: Source
    loc: Loc
    value: Any = None

    def __call__(self, code: str, msg: str, hint: str) -> Fault:
        """Return the fault. For a missing file, the hint adds that the path is relative to the scenario file."""
        found = self.source.fault(code, self.loc, msg, hint, self.value)
        is_inside = bool(self.loc) and found.file == self.source.name
        return (
            replace(found, hint=f"{hint}; it is relative to the scenario file")
            if is_inside and hint == CHECK_PATH
            else found
        )


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the data of a TOML text.

    Raises:
        ScenarioError: with the first syntax fault.
    """

    def fault(msg: str, hint: str) -> Fault:
        return Fault("GT001", "", msg, None, hint, name)

    deep = _DEEP_KEY.search(text)
    if deep is not None:
        plain = fault(f"a key has more than {MAX_DEPTH} parts", "flatten it")
        raise ScenarioError([pointed(text, deep.start(1), deep.end(1), plain)])
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ScenarioError([fault("tables or lists are nested too deeply", "flatten them")]) from None
    except ValueError as error:
        # Besides TOMLDecodeError, `tomllib` raises a ValueError for an integer with thousands of digits.
        match = re.fullmatch(r"(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        if match is None:
            raise ScenarioError([fault("not valid TOML", str(error).splitlines()[0])]) from None
        if match[2] is None:
            start = max(len(text.rstrip()) - 1, 0)
        else:
            lines = text.split("\n")
            start = sum(len(line) + 1 for line in lines[: int(match[2]) - 1]) + int(match[3]) - 1
        message = "not valid TOML: " + match[1][:1].lower() + match[1][1:]
        hint = _syntax_hint(text, start, ended=match[2] is None)
        raise ScenarioError([pointed(text, min(start, len(text)), start + 1, fault(message, hint))]) from None


def parse_json(text: str, name: str, parse_float: Callable[[str], Any] = float) -> Any:
    """Return the data of a JSON text. A duplicate key is a fault.

    Raises:
        ScenarioError: with the first syntax fault.
    """

    def fault(msg: str, hint: str) -> Fault:
        return Fault("GT001", "", f"not valid JSON: {msg}", None, hint, name)

    if not text.strip():
        raise ScenarioError([Fault("GT005", "", f"{name} is empty", None, "is it the right file?", name, 1, "")])

    def refuse(number: str, fault: Fault) -> NoReturn:
        at = text.find(number)
        raise ScenarioError([pointed(text, at, at + len(number), fault)])

    def whole(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            refuse(digits, fault("a number is too long", f"write a number of at most {MAX_DIGITS} digits"))
        return int(digits)

    def broken(number: str) -> Any:
        try:
            return parse_float(number)
        except ArithmeticError:
            refuse(number, fault("an exponent is too large", "write a smaller number"))

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ScenarioError([fault(f"the key {json.dumps(twice)} is written twice", "delete one of them")])
        return data

    def constant(word: str) -> Any:
        raise ScenarioError([fault(f"{word} is not a JSON number", "write a plain number")])

    # `float` needs no wrapper, because it accepts every JSON number.
    part = float if parse_float is float else broken
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_int=whole, parse_float=part)
    except ScenarioError:
        raise
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:]
        hint = "is the file cut off?" if error.pos >= len(text.rstrip()) else "fix the syntax here"
        start = min(error.pos, max(len(text) - 1, 0))
        raise ScenarioError([pointed(text, start, start + 1, fault(what, hint))]) from None
    except RecursionError:
        raise ScenarioError([fault("nested too deeply", "flatten it")]) from None
    except ValueError as error:
        raise ScenarioError([fault("a number is too long", str(error).splitlines()[0])]) from None


def scalar(text: str) -> Any:
    """Parse a text as a TOML value; return the text itself if it is not valid TOML."""
    try:
        data = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return data["value"] if list(data) == ["value"] else text


def _syntax_hint(text: str, start: int, *, ended: bool) -> str:
    if ended:
        return "the file ends here; is it cut off, or a bracket or quote not closed?"
    line_start = text.rfind("\n", 0, start) + 1
    line = text[line_start:].split("\n", 1)[0]
    match = re.match(r"\s*[\w.-]+\s*=\s*([^\"'\[{\s][^#\n]*?)\s*$", line)
    if (
        match
        and match[1].isprintable()
        and match[1] not in ("true", "false")
        and not re.fullmatch(r"[+-]?[\d_.]+", match[1])
    ):
        if match[1] in ("True", "False"):
            return f"write {match[1].lower()}"
        return f'texts and quantities need quotes, as in "{match[1]}"'
    return "fix the syntax here; texts and quantities need quotes"


def _nearest_file(path: Path) -> str | None:
    try:
        names = [p.name for p in path.parent.iterdir()][:1000]
    except OSError:
        return None
    return nearest(path.name, names)


def locate(text: str) -> dict[Loc, Span]:
    """Return the position of every key and list element of a valid TOML or JSON text."""
    scanner = _Scanner(text)
    try:
        if text.lstrip()[:1] == "{":
            scanner.value((), (0, 0))
        else:
            scanner.document()
    except (RecursionError, IndexError, ValueError, _Enough):
        pass  # The positions found so far suffice.
    return scanner.spans


class _Enough(Exception):  # noqa: N818 - not an error
    """Raised when `MAX_SPANS` positions have been recorded."""


def _below(loc: Loc, part: str | int) -> Loc:
    return (*loc, part) if len(loc) < MAX_DEPTH else loc


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spans: dict[Loc, Span] = {}
        self.counts: dict[Loc, int] = {}

    def document(self) -> None:
        prefix: Loc = ()
        while True:
            self.gap()
            if self.at >= len(self.text):
                return
            if self.text[self.at] == "[":
                prefix = self.header()
            else:
                self.pair(prefix)

    def header(self) -> Loc:
        is_array = self.text.startswith("[[", self.at)
        self.at += 1 + is_array
        keys = self.keys()
        self.at = self.text.index("]", self.at) + 1 + is_array
        loc: Loc = ()
        for index, (name, span) in enumerate(keys):
            loc = _below(loc, name)
            last = index == len(keys) - 1
            if last and is_array:
                self.counts[loc] = self.counts.get(loc, -1) + 1
                self.spans.setdefault(loc, Span(span, span))
            if loc in self.counts:
                loc = _below(loc, self.counts[loc])
            self.spans.setdefault(loc, Span(span, span))
        return loc

    def pair(self, prefix: Loc) -> None:
        keys = self.keys()
        self.blank()
        self.at += 1  # = or :
        loc = prefix
        for name, span in keys:
            loc = _below(loc, name)
            if loc in self.counts:
                loc = _below(loc, self.counts[loc])
            self.spans.setdefault(loc, Span(span, span))
        self.value(loc, keys[-1][1])

    def keys(self) -> list[tuple[str, tuple[int, int]]]:
        found = []
        while True:
            self.blank()
            start = self.at
            if self.text[start] in "\"'":
                self.string()
                name = _unquoted(self.text[start : self.at])
            else:
                match = _BARE_KEY.match(self.text, start)
                if match is None:
                    raise IndexError
                self.at = match.end()
                name = match[0]
            found.append((name, (start, self.at)))
            self.blank()
            if self.at < len(self.text) and self.text[self.at] == ".":
                self.at += 1
                continue
            return found

    def value(self, loc: Loc, key: tuple[int, int] | None) -> None:
        self.gap()
        start = self.at
        first = self.text[start]
        if len(self.spans) >= MAX_SPANS:
            raise _Enough
        # This provisional position remains if MAX_SPANS is reached inside this list or table.
        self.spans.setdefault(loc, Span(key or (start, start + 1), (start, start + 1)))
        if first in "\"'":
            self.string()
        elif first == "[":
            self.at += 1
            index = 0
            while self.more("]"):
                self.value(_below(loc, index), None)
                index += 1
        elif first == "{":
            self.at += 1
            while self.more("}"):
                self.pair(loc)
        else:
            match = _BARE_VALUE.match(self.text, start)
            assert match is not None  # the pattern matches the empty text
            self.at = start + len(match[0].rstrip())
            if self.at == start:
                raise IndexError  # no valid text has an empty value
        self.spans[loc] = Span(key or (start, self.at), (start, self.at))

    def more(self, close: str) -> bool:
        self.gap()
        if self.text[self.at] == ",":
            self.at += 1
            self.gap()
        if self.text[self.at] == close:
            self.at += 1
            return False
        return True

    def string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            self.at += 3
            while not self.text.startswith(quote * 3, self.at):
                # Raises IndexError at the end of an unterminated string, like the case of short strings below.
                self.at += 2 if self.text[self.at] == "\\" and quote == '"' else 1
            self.at += 3
            while self.at < len(self.text) and self.text[self.at] == quote:
                self.at += 1  # content may end with quotes
            return
        match = _STRINGS[quote].match(self.text, self.at)
        if match is None:
            raise IndexError
        self.at = match.end()

    def gap(self) -> None:
        match = _GAP.match(self.text, self.at)
        assert match is not None  # the pattern matches the empty text
        self.at = match.end()

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1


def _unquoted(raw: str) -> str:
    if "\\" not in raw and raw[:3] not in ("'''", '"""'):
        return raw[1:-1]
    try:
        return str(tomllib.loads("key = " + raw)["key"])
    except ValueError:
        try:
            return str(json.loads(raw))
        except ValueError:
            return raw[1:-1]
