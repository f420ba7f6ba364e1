"""Write the table of a paper's page in docs/validation: every statement of the paper beside what comes out here.

    python validation/statements.py zhang2017|tictac [JOBS]

A CPU minute for zhang2017 (384 exchanges), half of one for tictac (407 runs).
"""

import re
import sys
from pathlib import Path
from typing import Any

from gradtide.papers import PARTS

PAGES = Path(__file__).parents[1] / "docs" / "validation"
HEADS = {
    "figure": "where",
    "quantity": "statement",
    "published": "published",
    "ours": "ours",
    "verdict": "verdict",
    "note": "why",
}


def rows(checks: list[dict[str, Any]]) -> list[str]:
    """Return one row of Markdown per statement; within a figure a reason is not repeated below itself."""
    found: list[str] = []
    above: tuple[str, str] | None = None
    for one in checks:
        cells = {name: str(one[name]) for name in HEADS if name in one}
        note = cells.get("note", "")
        if note and (one["figure"], note) == above:
            cells["note"] = "as above"
        above = (one["figure"], note)
        found.append("| " + " | ".join(cells.values()) + " |")
    return found


def page(paper: str, text: str, made: dict[str, Any]) -> str:
    """Return a page with its table, and the sentence over it, made again from a summary."""
    checks = made["checks"]
    heads = [head for name, head in HEADS.items() if name in checks[0]]
    head = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    table = "\n".join([made["headline"], "", *head, *rows(checks)])
    mark = f"<!-- table: {paper} -->"
    return re.sub(re.escape(mark) + r"\n+(?:[^|\n].*\n)?\n*(?:\|.*\n)+\n*", lambda _: f"{mark}\n\n{table}\n\n", text)


if __name__ == "__main__":
    paper, jobs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    path = PAGES / f"{paper}.md"
    made = PARTS[paper].make(jobs, None, None, None, None)
    path.write_text(page(paper, path.read_text(encoding="utf-8"), made.summary), encoding="utf-8")
