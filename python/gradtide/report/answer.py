"""The parts of a report that all studies share: premises, candidates, and the command that repeats the study."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, row_of

COMMAND = {"gradtide.run/1": "run", "gradtide.collectives/1": "collectives"}
"""The command of each schema whose study can be repeated from the resolved scenario in its folder."""


def view(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    """Return the template's context for the answer in `summary.json`. Without an answer, all entries are empty.

    Args:
        path: the file `summary.json`.
        summary: its content.
        caps: limits of the page.
    """
    premises = [
        row_of(path, "premises", one, index, words=("name", "value", "change"), flags=("stated",))
        for index, one in enumerate(_list(path, summary, "premises"))
    ]
    candidates = [
        row_of(path, "candidates", one, index, words=("name", "why_not", "refused", "group"), flags=("is_bound",))
        for index, one in enumerate(_list(path, summary, "candidates"))
    ]
    uncertainty = entry(path, summary, "uncertainty", dict) if "uncertainty" in summary else {}
    parts = entry(path, uncertainty, "parts", list) if "parts" in uncertainty else []
    known = [uncertainty, *(part for part in parts if isinstance(part, dict))] if uncertainty else []
    sentence = " ".join(entry(path, one, "sentence", str) for one in known)
    columns: pieces.Columns = {
        "premise": lambda one: one["name"],
        "value": lambda one: one["value"],
        "assumed; change it by": lambda one: "" if one["stated"] else one["change"] or "assumed",
    }
    compared: pieces.Columns = {
        "#rank": lambda one: "bound" if one["is_bound"] else "–" if one.get("rank") is None else str(one["rank"]),
        "candidate": lambda one: ", ".join(filter(None, (one["name"], one["group"]))),
        "memory": lambda one: words.fits(entry(path, one, "feasibility", dict)),
        "runs on": lambda one: one.get("runs_on") or one["why_not"] or "–",
        "not run because": lambda one: one["refused"] or "–",
    }
    if not any(one["refused"] for one in candidates):
        del compared["not run because"]
    again = _again(path, summary)
    return {
        "rests_on": [pieces.clip(line, 600) for line in (words.premises_line(premises, "below"), sentence) if line],
        "premises": pieces.listing("Premises", columns, premises, cap=caps.rows, where="summary.json"),
        "assumed": sum(not one["stated"] for one in premises),
        "candidates": pieces.listing("Candidates", compared, candidates, cap=caps.rows, where="summary.json"),
        **({"reproduce": again} if again else {}),
    }


def _list(path: Path, summary: Row, key: str) -> list[Any]:
    found: list[Any] = entry(path, summary, key, list) if key in summary else []
    return found


def _again(path: Path, summary: Row) -> str:
    """Return the command that repeats the study; empty if the summary contains neither a command nor a scenario."""
    again: Mapping[str, Any] = entry(path, summary, "again", dict) if "again" in summary else {}
    command, scenario = again.get("command"), again.get("scenario")
    if isinstance(command, str):
        return pieces.clip(command, 600)
    name = COMMAND.get(str(summary.get("schema")))
    if name is None or not isinstance(scenario, str):
        return ""
    if "/" in scenario or "\\" in scenario:
        raise RunFolderError(f"{path}: key `again.scenario`: `{pieces.clip(scenario)}` is not a file of the folder")
    return f"gradtide {name} {pieces.clip(scenario)}"
