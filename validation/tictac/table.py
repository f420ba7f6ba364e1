"""Write the table of docs/validation/tictac.md: every statement of the paper beside what comes out here, and why not.

407 runs, half a CPU minute. Usage: python validation/tictac/table.py [JOBS]
"""

import re
import sys
from pathlib import Path
from typing import Any

from gradtide.studies.reproduce import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "validation" / "tictac.md"
MARK = "<!-- table: tictac -->"


def rows(checks: list[dict[str, Any]]) -> list[str]:
    """Return one row of Markdown per statement."""
    columns = ("figure", "quantity", "published", "ours", "verdict", "note")
    return ["| " + " | ".join(str(one[name]) for name in columns) + " |" for one in checks]


def page(text: str, checks: list[dict[str, Any]], headline: str) -> str:
    """Return the page with its table, and the sentence over it, made again."""
    head = ["| where | statement | published | ours | verdict | why |", "|---|---|---|---|---|---|"]
    table = "\n".join([headline, "", *head, *rows(checks)])
    return re.sub(re.escape(MARK) + r"\n+(?:\d.*\n)?\n*(?:\|.*\n)*\n*", lambda _: f"{MARK}\n\n{table}\n\n", text)


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    made = PARTS["tictac"].make(jobs, None, None, None, None)
    text = page(PAGE.read_text(encoding="utf-8"), made.summary["checks"], made.summary["headline"])
    PAGE.write_text(text, encoding="utf-8")
