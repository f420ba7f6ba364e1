"""Printing: tables and JSON go to stdout, messages to stderr."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradtide.cli.tables import layout, wrap
from gradtide.streams import takes_more
from gradtide.words import answer_lines, legend, shown


def talk(*lines: str) -> None:
    """Print lines to stderr. Line breaks inside a line, e.g. in a file name, are shown as visible characters."""
    print("\n".join(map(shown, lines)), file=sys.stderr)


class Document:
    """The JSON document that a command prints when it ends, if `--json` is given."""

    is_wanted = False
    content: dict[str, Any] | None = None

    def instead(self, failure: dict[str, Any]) -> None:
        """Set the document to an error, unless it already contains the partial result of an interrupted study."""
        if self.content is None or self.content.get("complete", True):
            self.content = failure if wants_json() else None

    def write(self) -> None:
        """Print the document, if there is one."""
        if self.content is not None:
            print(json_text(self.content))


_document = Document()


@contextmanager
def one_document() -> Iterator[Document]:
    """Yield the empty document of a command, and afterwards undo the redirection of `only_json`."""
    _document.__dict__.clear()
    stdout = sys.stdout
    try:
        yield _document
    finally:
        sys.stdout = stdout


def only_json(is_wanted: bool) -> bool:
    """If `--json` is given, redirect stdout to stderr until the JSON document is printed."""
    if is_wanted:
        _document.is_wanted = True
        sys.stdout = sys.stderr
    return is_wanted


def wants_json() -> bool:
    """Return whether `--json` is given. Also true if the command line is invalid and was not parsed."""
    return _document.is_wanted or "--json" in sys.argv[1:]


def print_json(document: dict[str, Any]) -> None:
    """Set the JSON document that is printed when the command ends."""
    _document.content = document


def json_text(document: dict[str, Any]) -> str:
    """Return a document as indented JSON; raises `ValueError` for NaN and infinity."""
    return json.dumps(document, indent=2, allow_nan=False)


def cell(value: Any) -> str:
    """Return the text of a table cell; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) >= 1000 and value.is_integer():
        return f"{value:.0f}"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"
    return str(value)


def signed_percent(value: float | None) -> str:
    """Return the text of a change in per cent, with its sign; a dash for None."""
    return "–" if value is None else f"{round(value, 1) + 0.0:+.1f} %"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table that fits the terminal's width; with `--wide`, print it in full with a legend of its symbols."""
    texts = [[shown(str(cell)) for cell in row] for row in rows]
    blocks = layout([shown(column) for column in columns], texts, _width())
    bold = ("\033[1m", "\033[0m") if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else ("", "")
    for number, (header, *lines) in enumerate(blocks):
        print(("\n" if number else "") + bold[0] + header + bold[1])
        print("\n".join(lines)) if lines else None
    if is_wide():
        meanings = legend([*columns, *(row[0] for row in texts)])
        if meanings:
            put(meanings)


def say(*paragraphs: str) -> None:
    """Print paragraphs to stdout, wrapped to the width of the terminal."""
    print("\n".join(wrap(shown(paragraph), _width()) for paragraph in paragraphs))


def print_answer(summary: Mapping[str, Any]) -> None:
    """Print the answer of a study below its tables: headline, premises and uncertainty."""
    say("", *answer_lines(summary))


def put(*lines: str) -> None:
    """Print lines to stdout without wrapping them."""
    print("\n".join(map(shown, lines)))


def put_at_once(*lines: str) -> bool:
    """Print lines without wrapping and flush them; return whether stdout can still be written to."""
    put(*lines)
    return takes_more("stdout")


def widen(wanted: bool) -> bool:
    """Set the value of `--wide`: whether tables and texts ignore the width of the terminal."""
    _layout["is_wide"] = wanted
    return wanted


def is_wide() -> bool:
    """Return whether `--wide` is given. Tables then use the symbols of the papers."""
    return _layout["is_wide"]


_layout = {"is_wide": False}


def _width() -> int | None:
    if is_wide():
        return None
    # Piped output is 80 columns wide, unless COLUMNS is set.
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return max(shutil.get_terminal_size((80, 24)).columns, 20) if is_known else 80


def talk_of_files(output: Path) -> None:
    """Print the paths of the report and of the timeline on stderr."""
    talk("", f"report    {output / 'report.html'}")
    if (output / "timeline.pftrace").exists():
        talk(f"timeline  {output / 'timeline.pftrace'}   (open at https://ui.perfetto.dev)")


def talk_of_cost(cost: dict[str, Any]) -> None:
    """Print events, wall time and peak memory of a run on stderr."""
    talk(f"{cost['events']} events in {cost['wall_s']:.3f} s, at most {cost['peak_rss_mb']:.0f} MB")
