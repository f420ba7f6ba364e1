"""Printing: tables and JSON go to stdout, messages to stderr."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide.cli.tables import layout, wrap
from gradtide.words import legend


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
    return "–" if value is None else f"{round(value, 1) + 0.0:+.1f} %"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table that is no wider than the terminal, and what the symbols in it mean."""
    texts = [[str(cell) for cell in row] for row in rows]
    above, blocks = layout(columns, texts, _width())
    if above:
        print(above)
    bold = ("\033[1m", "\033[0m") if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else ("", "")
    for number, (header, *lines) in enumerate(blocks):
        print(("\n" if number else "") + bold[0] + header + bold[1])
        print("\n".join(lines)) if lines else None
    meanings = legend([*columns, *(row[0] for row in texts)])
    if meanings:
        say(meanings)


def say(text: str) -> None:
    """Print a text, with no line longer than the terminal is wide."""
    print(wrap(text, _width()))


def widen(is_wide: bool) -> bool:
    """Print whatever follows as wide as it is, as `--wide` asks, or as wide as the terminal."""
    _layout["is_wide"] = is_wide
    return is_wide


_layout = {"is_wide": False}


def _width() -> int | None:
    if _layout["is_wide"]:
        return None
    # What is piped is 80 columns wide, unless COLUMNS says another width.
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return max(shutil.get_terminal_size((80, 24)).columns, 20) if is_known else 80


def talk_of_files(output: Path) -> None:
    """Name the report and the timeline on stderr."""
    talk(f"\nreport    {output / 'report.html'}")
    if (output / "timeline.pftrace").exists():
        talk(f"timeline  {output / 'timeline.pftrace'}   (open at https://ui.perfetto.dev)")


def talk_of_cost(cost: dict[str, Any]) -> None:
    """Print on stderr what a run cost."""
    talk(f"{cost['events']} events in {cost['wall_s']:.3f} s, at most {cost['peak_rss_mb']:.0f} MB")
