"""Lays out tables of text within a given width. Numbers are never truncated or wrapped.

If a table is too wide, first its headers and then the texts in its cells are wrapped. If that does not suffice, the
columns are divided among several tables, each of which repeats the columns that identify the rows. If even a single
column is too wide for this, each row is printed as a list of "header: cell" lines.
"""

import re
import textwrap
from collections.abc import Sequence

GAP = 2
NARROW = 16
"""Smallest width of a column of wrapped texts, in characters, unless a word is longer."""

SHORT = 6
"""Texts of up to this many characters are never wrapped."""

_NUMBER = re.compile(r"[-–+]?[\d.,]*(e[-+]?\d+)?( ?%| ms)?")
_HOLD = "\u00a0"
"""No-break space: replaces the blank between a number and its unit during wrapping, which keeps them together."""


def layout(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Return the tables into which a table is divided, each as lines of text. `width` None means unlimited."""
    cells = [[str(cell) for cell in row] for row in rows]
    everything = list(range(len(columns)))
    if width is None:
        return [_grid(columns, cells, everything, None)]
    if (widths := _widths(columns, cells, everything, width)) is not None:
        return [_grid(columns, cells, everything, widths)]
    keys = _keys(columns, cells, width)
    blocks: list[list[int]] = []
    for index in everything[len(keys) :]:
        if blocks and _widths(columns, cells, [*blocks[-1], index], width) is not None:
            blocks[-1].append(index)
        else:
            blocks.append([*keys, index])
    fitting = [_widths(columns, cells, block, width) for block in blocks]
    if not keys or None in fitting:
        return [_record(columns, row, width) for row in cells]
    return [_grid(columns, cells, block, widths) for block, widths in zip(blocks, fitting, strict=True)]


def wrap(text: str, width: int | None) -> str:
    """Wrap each line of a text to the width, with its indentation; words longer than the width are not broken."""
    if width is None:
        return text
    return "\n".join(line for part in text.split("\n") for line in _wrapped_line(part, width))


def _wrapped_line(line: str, width: int) -> list[str]:
    indent = re.match(r" *(- )?", line)
    after = " " * len(indent[0]) if indent else ""
    wrapped = textwrap.wrap(_held(line), width, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    return [part.replace(_HOLD, " ") for part in wrapped] or [""]


def _held(text: str) -> str:
    return re.sub(r"(?<=\d) (?=[^\W\d]|%)", _HOLD, text)


def _lines(text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(_held(text), max(width, 1), break_long_words=False, break_on_hyphens=True)
    return [part.replace(_HOLD, " ") for part in wrapped] or [""]


def _longest_word(text: str) -> int:
    return len(text) if len(text) <= SHORT else max((len(line) for line in _lines(text, 1)), default=0)


def _is_numeric(cells: Sequence[Sequence[str]], index: int) -> bool:
    return all(_NUMBER.fullmatch(row[index]) for row in cells)


def _widths(
    columns: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int], width: int
) -> list[int] | None:
    """Return the width of each shown column; None if the columns do not fit into `width`."""
    natural, whole, least = [], [], []
    for index in shown:
        content = max((len(row[index]) for row in cells), default=0)
        header = _longest_word(columns[index])
        word = max((_longest_word(row[index]) for row in cells), default=0)
        natural.append(max(len(columns[index]), content))
        whole.append(max(header, content))
        least.append(whole[-1] if _is_numeric(cells, index) else max(header, word, min(content, NARROW)))
    widths = natural
    for floor in (whole, least):
        while _total(widths) > width:
            column = max(range(len(widths)), key=lambda index: (widths[index] > floor[index], widths[index]))
            if widths[column] <= floor[column]:
                break
            widths[column] -= 1
    return widths if _total(widths) <= width else None


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _keys(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the leading columns that identify every row; none if they need more than two thirds of the width."""
    for count in range(1, len(columns)):
        keys = list(range(count))
        if len({tuple(row[:count]) for row in cells}) == len(cells):
            return keys if _widths(columns, cells, keys, 2 * width // 3) is not None else []
    return []


def _grid(
    columns: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int], widths: Sequence[int] | None
) -> list[str]:
    if widths is None:
        widths = [max([len(columns[index]), *(len(row[index]) for row in cells)]) for index in shown]
    numeric = [_is_numeric(cells, index) for index in shown]
    lines = []
    for number, row in enumerate([columns, *cells]):
        parts = [_lines(row[index], width) for index, width in zip(shown, widths, strict=True)]
        height = max(map(len, parts))
        # Wrapped headers are aligned at the bottom, wrapped cells at the top.
        padded = [
            [""] * (height - len(part)) + part if number == 0 else part + [""] * (height - len(part)) for part in parts
        ]
        for pieces in zip(*padded, strict=True):
            filled = [
                piece.rjust(width) if is_number else piece.ljust(width)
                for piece, width, is_number in zip(pieces, widths, numeric, strict=True)
            ]
            lines.append((" " * GAP).join(filled).rstrip())
    return lines


def _record(columns: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    lines = []
    for column, cell in zip(columns, row, strict=True):
        first, *more = _lines(f"{column}: {cell}" if column else cell, width - GAP)
        lines += [first, *(" " * GAP + line for line in more)]
    return lines


__all__ = ["layout", "wrap"]
