"""Writes the table of docs/reference/formats.md from `gradtide.formats`.

Run from anywhere: python tools/make_formats.py. A test compares.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "formats.md"
sys.path.insert(0, str(ROOT / "python"))

from gradtide.formats import FORMATS  # noqa: E402


def page(text: str) -> str:
    """Return the page with a new table."""
    header = "| format | holds | looks like | recognised by | suffix | source |\n|---|---|---|---|---|---|\n"
    rows = []
    for one in FORMATS:
        suffix = f"`{one.suffix}`" if one.suffix else ""
        cells = [f"`{one.name}`", one.kind, one.what, one.recognised, suffix, one.source]
        rows.append(f"| {' | '.join(cells)} |")
    table = "<!-- table: formats -->\n\n" + header + "\n".join(rows) + "\n\n"
    return re.sub(r"<!-- table: formats -->\n\n(?:FORMATS|(?:\|.*\n)+)\n+", lambda _: table, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
