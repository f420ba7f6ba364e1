"""Tables of docs/validation that scripts write: where each stands on its page, between its mark and the next end."""

from datetime import datetime, timezone
from pathlib import Path

import gradtide

PAGES = Path(__file__).resolve().parent.parent / "docs" / "validation"


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
