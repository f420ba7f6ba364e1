"""Write the table of docs/validation/zhang2017.md: every statement of the paper beside what comes out here.

384 exchanges, about a CPU minute. Usage: python validation/zhang2017/table.py [JOBS]
"""

import re
import sys
from pathlib import Path
from typing import Any

from gradtide.studies.reproduce import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "validation" / "zhang2017.md"
MARK = "<!-- table: zhang2017 -->"


def rows(checks: list[dict[str, Any]]) -> list[str]:
    """Return one row of Markdown per statement."""
    columns = ("figure", "quantity", "published", "ours", "verdict")
    return ["| " + " | ".join(str(one[name]) for name in columns) + " |" for one in checks]


def page(text: str, checks: list[dict[str, Any]]) -> str:
    """Return the page with its table made again."""
    head = ["| where | statement | published | ours | verdict |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *rows(checks)])
    return re.sub(re.escape(MARK) + r"\n+(?:\|.*\n)*\n*", lambda _: f"{MARK}\n\n{table}\n\n", text)


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    made = PARTS["zhang2017"].make(jobs, None, None, None, None)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), made.summary["checks"]), encoding="utf-8")
