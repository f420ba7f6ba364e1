"""Printing: tables and JSON go to stdout, messages to stderr."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def talk(text: str) -> None:
    """Print to stderr."""
    print(text, file=sys.stderr)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, allow_nan=False))


def cell(value: Any) -> str:
    """Write a value for a table."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) >= 1000 and value.is_integer():
        return f"{value:.0f}"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"
    return str(value)


def signed_percent(value: float | None) -> str:
    """Write a change in per cent, with its sign."""
    return "–" if value is None else f"{value:+.1f} %"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    numeric = [
        all(re.match(r"^[-–+]?[\d.]*( ?%| ms)?$", str(row[index])) for row in rows) for index in range(len(columns))
    ]
    for column, is_numeric in zip(columns, numeric, strict=True):
        table.add_column(Text(column), justify="right" if is_numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # What is piped is not wrapped: a table must survive `grep`.
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table)


def talk_of_files(output: Path) -> None:
    """Name the report and the timeline on stderr."""
    talk(f"\nreport    {output / 'report.html'}")
    if (output / "timeline.pftrace").exists():
        talk(f"timeline  {output / 'timeline.pftrace'}   (open at https://ui.perfetto.dev)")


def talk_of_cost(cost: dict[str, Any]) -> None:
    """Print on stderr what a run cost."""
    talk(f"{cost['events']} events in {cost['wall_s']:.3f} s, at most {cost['peak_rss_mb']:.0f} MB")
