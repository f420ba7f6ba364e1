"""Tables of docs/validation that scripts write: where each stands on its page, between its mark and the next end."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import gradtide

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "validation"
README = ROOT / "README.md"


def made() -> str:
    """Return when a table is made, and with which version; it stands beside the table."""
    return f"Made on {datetime.now(timezone.utc).date()} with gradtide {gradtide.__version__}."


def put(page: str, mark: str, table: str) -> str:
    """Return the page with a table and its date between its mark and the next end."""
    head, rest = page.split(f"<!-- table: {mark} -->")
    tail = rest.split("<!-- end -->", 1)[1]
    return f"{head}<!-- table: {mark} -->\n\n{table}\n\n{made()}\n\n<!-- end -->{tail}"


def rows_of(page: str, mark: str) -> list[list[str]]:
    """Return the cells of a table of a page, row by row."""
    table = page.split(f"<!-- table: {mark} -->")[1].split("<!-- end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a block of text with aligned columns, all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(["```text", *lines, "```"])


def cases_of(page: str, mark: str) -> list[list[str]]:
    """Return name and number of each case of a page that are listed as `name` (number)."""
    text = page.split(f"<!-- table: {mark} -->")[1].split("<!-- end -->")[0]
    return [list(found) for found in re.findall(r"`(\w+)` \((\d+)\)", text)]


def write_readme(rows: Mapping[str, str], says: str) -> None:
    """Write rows of README's table, each by how it begins, and their date after the text that names their script."""
    text = README.read_text(encoding="utf-8")
    for start, row in rows.items():
        text = _put_once(text, rf"^\| {re.escape(start)}.*$", row)
    README.write_text(
        _put_once(text, rf"{re.escape(says)} Made on .*? with gradtide [\d.]+\d\.", f"{says} {made()}"),
        encoding="utf-8",
    )


def _put_once(text: str, pattern: str, new: str) -> str:
    text, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise AssertionError(f"README.md has {count} times what matches {pattern}")
    return text
