"""Counts what the reproductions of papers find, for `gradtide reproduce`, and writes the tables of their pages.

    python tools/verdicts.py [PART…]    makes all of them, or those named, as in gao2020/ch4; minutes to an hour

What they count goes to python/gradtide/papers/verdicts.toml; statements that differ go to the
page that has their table.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "validation"))

from pages import made, write_readme

from gradtide import papers
from gradtide.papers.harness import tally

ROOT = Path(__file__).parent.parent
COUNTS = ROOT / "python/gradtide/papers/verdicts.toml"
COLUMNS = {"where": "figure", "statement": "quantity", "published": "published", "ours": "ours", "why": "note"}
REST = "Those that differ:"


def rows(checks: list[dict[str, str]]) -> list[str]:
    """Return rows of Markdown: the statements that differ. Neighbours of one figure and reason share a row."""
    found = []
    differing = (check for check in checks if check["verdict"] == "differs")
    for (figure, note), group in groupby(differing, lambda check: (check["figure"], check["note"])):
        quantity, published, ours = (_joined(texts) for texts in zip(*map(_texts, group), strict=True))
        found.append(_row({"figure": figure, "quantity": quantity, "published": published, "ours": ours, "note": note}))
    return found


def _joined(texts: Sequence[str]) -> str:
    """Return "speed-up, inference / training" for two texts that differ in what follows their last comma."""
    heads, _, tails = zip(*(text.rpartition(", ") for text in dict.fromkeys(texts)), strict=True)
    return f"{heads[0]}, {' / '.join(tails)}" if len(set(heads)) == 1 and heads[0] else " / ".join(dict.fromkeys(texts))


def _texts(check: dict[str, str]) -> tuple[str, str, str]:
    return check["quantity"], check["published"], check["ours"]


def _row(check: dict[str, str]) -> str:
    return f"| {' | '.join(check[key] for key in COLUMNS.values())} |"


def table(summary: dict) -> str:
    """Return the headline and every statement of a reproduction that differs as Markdown."""
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    found = "\n".join([*head, *rows(summary["checks"])])
    return f"{made()} {summary['headline']} {REST}\n\n{found}\n"


def write_page(name: str, text: str) -> None:
    """Put the tables in the place of those that a page has below its mark, if one has."""
    for page in sorted((ROOT / "docs/validation").glob("*.md")):
        old = rf"(<!-- table: {re.escape(name)} -->\n\n)[^\n]*{REST}\n\n(?:\|.*\n)+"
        changed, count = re.subn(old, lambda found: found[1] + text, page.read_text(encoding="utf-8"))
        if count:
            page.write_text(changed, encoding="utf-8")


def main() -> None:
    """Make what is named on the command line, or everything."""
    counts = papers.verdicts()
    for name in sys.argv[1:] or papers.PARTS:
        summary = papers.reproduce(name, jobs=2).summary
        counts[name] = tally(summary["checks"])
        write_page(name, table(summary))
        print(f"{name}: {summary['headline']}", flush=True)
        rows = (f'"{part}" = {inline(counts[part])}' for part in papers.PARTS if part in counts)
        COUNTS.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    write_readme(summed_up(counts), SAYS)


def summed_up(counts: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Return the row of README that sums up the papers, by how it begins."""
    total = {key: sum(count[key] for count in counts.values()) for key in ("statements", "agree", "unknown")}
    why = f"all but {total['unknown']} of the others" if total["unknown"] else "each of the others"
    start = "published tables and figures"
    return {
        start: f"| {start}: Gao (2020), TicTac, Caramel, Zhang et al., Kang et al. | {total['agree']} of "
        f"{total['statements']} statements agree; {why} has a known cause ([all](docs/validation/papers.md)) |"
    }


SAYS = "Row of papers: `python tools/verdicts.py`."
HEAD = "# What each reproduction finds; `python tools/verdicts.py` writes it.\n\n"


def inline(counts: dict[str, int]) -> str:
    """Return counts as a table of TOML."""
    return "{ " + ", ".join(f"{key} = {value}" for key, value in counts.items()) + " }"


if __name__ == "__main__":
    main()
