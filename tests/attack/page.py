"""Writes the counts of an attack into its page of the documentation, between marks."""

import re
from collections import Counter

from attack.inputs import FINE, Result
from attack.readers import ROOT

PAGE = ROOT / "docs/validation/attack.md"


def write(kind: str, result: Result, seed: int, seconds: float, processes: int, attacked: str) -> None:
    """Replace the counts of one kind of attack by those of `result`."""
    sentence = f"{_sentence(result, seed, seconds, processes)} Attacked: {attacked}."
    put(kind, "\n".join([sentence, "", *_table(kind, result)]))


def put(kind: str, body: str) -> None:
    """Replace what stands between the marks of `kind`."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- counts: {kind} -->", f"<!-- end: {kind} -->"
    whole = f"{begin}\n{body}\n{end}"
    replaced = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: whole, text, flags=re.DOTALL)
    PAGE.write_text(replaced, encoding="utf-8")


def row(kind: str, name: str) -> str:
    """Return the row of that name in the table of `kind`; nothing if there is none."""
    body = PAGE.read_text(encoding="utf-8").split(f"<!-- counts: {kind} -->")[1].split("<!-- end")[0]
    return next((line for line in body.splitlines() if line.startswith(f"| {name} |")), "")


def _sentence(result: Result, seed: int, seconds: float, processes: int) -> str:
    found = len(result.findings)
    findings = "none found anything" if not found else f"{found} kinds of finding, listed below"
    minutes = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    notes = "".join(f", {count:,} by {name}" for name, count in sorted(result.notes.items()))
    together = f" with {processes} processes" if processes > 1 else ""
    return f"Seed {seed}: {result.total:,} in all{notes}, {minutes}{together}; {findings}."


def _table(kind: str, result: Result) -> list[str]:
    outcomes = sorted(sum(result.counts.values(), Counter()), key=lambda name: (name not in FINE, name))
    rows = [f"| {_FIRST[kind]} | {' | '.join(outcomes)} |", "|---|" + "---:|" * len(outcomes)]
    for name, counts in result.counts.items():
        if counts:
            rows.append(f"| {name} | {' | '.join(f'{counts[outcome]:,}' for outcome in outcomes)} |")
    return rows


_FIRST = {
    "inputs": "reader",
    "runs": "engine",
    "relations": "relation",
    "pairs": "command",
    "kills": "command",
    "saves": "what is saved",
    "sweeps": "killed",
}
