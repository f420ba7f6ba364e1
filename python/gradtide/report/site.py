"""The index of all reproductions: how many statements of papers agree, and a row with a link per part of a paper."""

import re
from pathlib import Path
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, row_of

OUTCOMES = {
    "agree": "agree",
    "known": "differ, cause known",
    "unknown": "differ, cause unknown",
    "not_made": "not made",
}
"""Names of the possible outcomes of a statement on the page, by their key in the summary."""


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the index."""
    path = run_dir / "summary.json"
    rows = [_row(path, row_of(path, "parts", row, i)) for i, row in enumerate(entry(path, summary, "parts", list))]
    rows = rows[: caps.rows]
    is_quick, is_whole = (summary.get(key) is True for key in ("quick", "complete"))
    total = {key: sum(row["counts"][key] for row in rows) for key in OUTCOMES}
    return "site.html.j2", {
        "title": "gradtide reproduce: papers beside ours",
        "rests_on": ["Premises: the page of each part states its own."],
        "what": "tables and figures of papers, made again",
        "reproduce": "gradtide reproduce" + (" --quick" if is_quick else ""),
        "bars": {
            "rows": [row["bar"] for row in rows],
            "legend": [pieces.meaning(key, words, zero=not total[key]) for key, words in OUTCOMES.items()],
        },
        "total": [(key, OUTCOMES[key], count) for key, count in total.items()],
        "rows": rows,
        "missing": [row for row in rows if row["left_out"]],
        "is_whole": is_whole,
    }


def _row(path: Path, row: Row) -> dict[str, Any]:
    name, folder = entry(path, row, "name", str), entry(path, row, "folder", (str, type(None)))
    if folder is not None and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}", folder) is None:
        raise RunFolderError(f"{path}: key `parts`: `{pieces.clip(folder)}` is not a folder below it")
    counts = {key: entry(path, row, key, int) for key in OUTCOMES}
    statements, whole = entry(path, row, "statements", int), max(1, sum(counts.values()))
    last = row.get("when_last_made") or {}
    words = ", ".join(f"{count} {OUTCOMES[key]}" for key, count in counts.items() if count)
    link = None if folder is None else f"{folder}/report.html"
    return {
        "name": pieces.clip(name),
        "title": pieces.clip(entry(path, row, "title", str), 120),
        "link": link,
        "counts": counts,
        "statements": statements,
        "command": pieces.clip(entry(path, row, "command", str), 120),
        "time": duration(entry(path, row, "seconds", (int, float))),
        "left_out": [
            {"figure": pieces.clip(entry(path, one, "figure", str)), "command": entry(path, one, "command", str)}
            for one in entry(path, row, "left_out", list)
        ],
        "last": {key: int(last.get(key, 0)) for key in ("statements", "agree", "known", "unknown")} if last else None,
        "bar": {
            "name": pieces.clip(name),
            "href": link,
            "small": pieces.clip(row["title"], 120),
            "label": f"{pieces.clip(name)}: {words or 'nothing'}",
            "parts": [
                {"kind": key, "share": 100 * count / whole, "text": str(count), "short": str(count)}
                for key, count in counts.items()
            ],
            "total": f"{counts['agree']} of {statements}" if statements else "–",
            "best": False,
        },
    }


def duration(seconds: float) -> str:
    """Return a duration as text, rounded."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
