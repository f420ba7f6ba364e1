"""Writes the counts of an attack into its page of the documentation, between marks."""

import re
from collections import Counter
from collections.abc import Sequence

from attack.inputs import FINE, Result
from attack.readers import ROOT

PAGE = ROOT / "docs/validation/attack.md"


def write(kind: str, result: Result, seed: int, seconds: float, processes: int, attacked: str) -> None:
    """Replace the counts of one kind of attack by those of `result`."""
    sentence = _sentence(result, seed, seconds, processes, attacked)
    put(kind, "\n".join([sentence, "", *_table(kind, result)]))


def put(kind: str, body: str) -> None:
    """Replace what stands between the marks of `kind`."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- counts: {kind} -->", f"<!-- end: {kind} -->"
    whole = f"{begin}\n{body}\n{end}"
    replaced = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: whole, text, flags=re.DOTALL)
    PAGE.write_text(replaced, encoding="utf-8")


def rows(kind: str) -> list[list[str]]:
    """Return the cells of the table of `kind`, without its head."""
    body = PAGE.read_text(encoding="utf-8").split(f"<!-- counts: {kind} -->")[1].split("<!-- end")[0]
    lines = body.split("```text\n")[-1].split("```")[0].splitlines()[1:]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as a block of aligned columns, at least two spaces apart; all columns but the first are figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *figures in rows:
        cells = [cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return ["```text", *lines, "```"]


def _sentence(result: Result, seed: int, seconds: float, processes: int, attacked: str) -> str:
    found = len(result.findings)
    findings = "no findings" if not found else f"{found} kinds of finding, listed below"
    minutes = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    notes = "".join(f", {count:,} by {name}" for name, count in sorted(result.notes.items()))
    together = f" on {processes} processes" if processes > 1 else ""
    return f"{attacked}, seed {seed}: {result.total:,} attacks in {minutes}{together}{notes}; {findings}."


def _table(kind: str, result: Result) -> list[str]:
    outcomes = sorted(sum(result.counts.values(), Counter()), key=lambda name: (name not in FINE, name))
    named = {name: counts for name, counts in result.counts.items() if counts}
    figures = [[name, *(f"{counts[outcome]:,}" for outcome in outcomes)] for name, counts in named.items()]
    return table([[_FIRST[kind], *outcomes], *figures])


_FIRST = {
    "inputs": "reader",
    "runs": "engine",
    "relations": "relation",
    "pairs": "command",
    "kills": "command",
    "saves": "what is saved",
    "sweeps": "killed",
}
