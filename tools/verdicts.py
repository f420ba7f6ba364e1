"""Reproduces the papers, counts the verdicts for `gradtide reproduce`, and writes the tables of their pages.

    python tools/verdicts.py [PART…]    all parts, or the named ones, as in gao2020/ch4; takes minutes to an hour

Counts go to python/gradtide/papers/verdicts.toml, and statements that differ to the page with their table.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "validation"))

from pages import made, write_readme

from gradtide import papers
from gradtide.papers.harness import SHOWN, tally

ROOT = Path(__file__).parent.parent
COUNTS = ROOT / "python/gradtide/papers/verdicts.toml"
COLUMNS = {
    "where": "figure",
    "statement": "quantity",
    "published": "published",
    "ours": "ours",
    "verdict": "verdict",
    "why": "note",
}
REST = "The command prints those that agree. The others:"


def rows(checks: list[dict[str, str]]) -> list[str]:
    """Return the statements that do not agree as Markdown rows; a repeated reason is omitted.

    Statements in another reading, as in "..., random orders", are left out: the command shows them.
    """
    said = [(check["figure"], check["quantity"]) for check in checks if check["verdict"] != SHOWN]
    found: list[str] = []
    above: tuple[str, str] | None = None
    for check in checks:
        is_variant = any(of == check["figure"] and check["quantity"].startswith(f"{what}, ") for of, what in said)
        if check["verdict"] == "agrees" or (check["verdict"] == SHOWN and is_variant):
            continue
        reason = (check["figure"], check["note"])
        is_said = check["note"] and reason == above
        found.append(_row({**check, "note": "as above"} if is_said else check))
        above = reason
    return found


def _row(check: dict[str, str]) -> str:
    return f"| {' | '.join(check[key] for key in COLUMNS.values())} |"


def table(summary: dict) -> str:
    """Return headline and disagreeing statements of a reproduction as Markdown."""
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    found = "\n".join([*head, *rows(summary["checks"])])
    return f"{made()} {summary['headline']} {REST}\n\n{found}\n"


def write_page(name: str, text: str) -> None:
    """Replace the tables below the mark of a page, if a page has it."""
    for page in sorted((ROOT / "docs/validation").glob("*.md")):
        old = rf"(<!-- table: {re.escape(name)} -->\n\n)[^\n]*{REST}\n\n(?:\|.*\n)+"
        changed, count = re.subn(old, lambda found: found[1] + text, page.read_text(encoding="utf-8"))
        if count:
            page.write_text(changed, encoding="utf-8")


def main() -> None:
    """Reproduce the named parts, or all."""
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
    """Return the row of README's table that sums up the papers, by its first words."""
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
    """Return counts as a TOML table."""
    return "{ " + ", ".join(f"{key} = {value}" for key, value in counts.items()) + " }"


if __name__ == "__main__":
    main()
