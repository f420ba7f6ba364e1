"""The report of `gradtide sweep`: ranking, small multiples, sensitivity, paired changes and Pareto front."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, entry, number, row_of
from gradtide.words import figure as figure_of


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a sweep."""
    path = run_dir / "summary.json"
    runs = entry(path, summary, "runs", int)
    ranked_by = pieces.clip(entry(path, summary, "figure", (str, type(None))) or "", 90)
    figure = named(ranked_by)
    against = pieces.clip(summary.get("against") or "", 90)
    panels = [_panel(panel, ranked_by, caps) for panel in summary.get("charts", [])[: caps.charts]]
    return "sweep.html.j2", {
        "title": f"gradtide sweep: {runs:,} runs",
        "what": f"study of {runs:,} runs",
        "reproduce": "gradtide sweep study.toml",
        "figure": figure,
        "ranked_by": ranked_by,
        "best": "largest" if summary.get("best") == "most" else "smallest",
        **_ranking(path, summary, caps),
        "against": against,
        "panels": panels,
        "samples": [_sample(one, ranked_by) for one in summary.get("samples", [])[: caps.charts]],
        "sensitivity": _sensitivity(path, summary, caps),
        "effects": _effects(summary, caps),
        "seeds": entry(path, summary, "seeds", int),
        "front": _front(summary["front"], ranked_by, against, caps)
        if summary.get("front", {}).get("corners")
        else None,
    }


_UNITS = {"ms": "ms", "us": "us", "s": "s", "bytes": "bytes", "bps": "bit/s", "percent": "%"}


def named(figure: str) -> str:
    """Return a figure's dotted path in words, without job, tenant and unit.

    Example:
        >>> named("jobs.train.iteration_time_ms.mean")
        'iteration time, mean'
    """
    parts = [re.sub(rf"_({'|'.join(_UNITS)})$", "", part) for part in _short(figure).split(".")]
    return ", ".join(part.replace("_", " ") for part in parts)


def _axis(figure: str) -> str:
    found = re.search(rf"_({'|'.join(_UNITS)})(?=\.|$)", figure)
    return named(figure) + (f", {_UNITS[found[1]]}" if found else "")


def _tiles(path: Path, summary: Row, ranked: Sequence[Row]) -> list[dict[str, str]]:
    """Return the tiles at the top: best, second and worst value, and the key with the largest effect."""
    name, tiles = summary.get("figure") or "", []
    others = [row for row in ranked if row["figure"] != ranked[0]["figure"]]
    shown = [("Best", ranked[0], "better")] if ranked else []
    shown += [("Next best", others[0], "")] if others else []
    shown += [("Worst", others[-1], "worse")] if len(others) > 1 else []
    for title, row, kind in shown:
        value, _, unit = figure_of(name, number(path, row, "figure")).partition(" ")
        note = pieces.clip(row["label"], 120)
        equal = sum(one["figure"] == row["figure"] for one in ranked)
        if equal > 1:
            note += f", and {equal - 1} more with the same value"
        if row["behind_percent"] is not None and row is not ranked[0]:
            note = f"{pieces.fixed(row['behind_percent'])} % worse than the best: {note}"
        tiles.append(pieces.tile(title, value, unit, kind, note))
    keys = [one for one in summary.get("sensitivity", []) if one["key"] != "seed"]
    if len(keys) > 1:
        most = max(keys, key=lambda one: number(path, one, "share"))
        share = pieces.percent(number(path, most, "share"))
        note = f"of the variance comes from {pieces.clip(most['key'], 80)} alone"
        tiles.append(pieces.tile("Largest effect", share, "%", "", note))
    return tiles


def _ranking(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    """Return the ranked points with bars, the best first; the points without a rank; and the command of each point."""
    points = [
        row_of(path, "ranking", row, index, ("label", "state")) for index, row in enumerate(summary.get("ranking", []))
    ]
    ranked = [row for row in points if row["rank"] is not None and row["figure"] is not None]
    others = [row for row in points if row["rank"] is None]
    name = summary.get("figure") or ""
    longest = max((number(path, row, "figure") for row in ranked), default=0)
    has_bars = longest > 0 and all(row["figure"] >= 0 for row in ranked)
    rows = [
        {
            "rank": row["rank"],
            "is_best": row["figure"] == ranked[0]["figure"],
            "label": pieces.clip(row["label"], 160),
            "value": figure_of(name, row["figure"]),
            "share": 100 * row["figure"] / longest if has_bars else None,
            "behind": pieces.fixed(row["behind_percent"]),
            "interval": _interval(row),
            "memory": _memory(row),
            "mark": row["feasibility"] if row.get("feasibility") not in (None, "fits") else "",
        }
        for row in ranked[: caps.rows]
    ]
    columns: pieces.Columns = {
        "point": lambda row: pieces.clip(row["label"], 160),
        "why": lambda row: pieces.cell(row["state"], "unranked", small=pieces.clip(row["reason"], 300)),
        f"#{named(name)}": lambda row: "–" if row["figure"] is None else figure_of(name, row["figure"]),
    }
    if all(row["figure"] is None for row in others):
        columns.pop(f"#{named(name)}")
    commands: pieces.Columns = {
        "rank": lambda row: "–" if row["rank"] is None else row["rank"],
        "command": lambda row: {"text": pieces.clip(row["again"], 400), "cls": "command", "key": "", "small": ""},
    }
    total, count = summary.get("points", len(points)), summary.get("points_ranked", len(ranked))
    cut = f"The first {len(rows)} of {count:,}; all are in points.csv." if count > len(rows) else ""
    known = [row for row in points if row.get("again")]
    return {
        "tiles": _tiles(path, summary, ranked),
        "ranking": rows,
        "total": total,
        "ranked": count,
        "cut": cut,
        "has_intervals": any(row["interval"] for row in rows),
        "has_memory": any(row["memory"] for row in rows),
        "others": pieces.listing("Points without a rank", columns, others, cap=caps.rows, where="points.csv"),
        "unranked": total - count,
        "commands": pieces.listing("Commands", commands, known, cap=min(caps.rows, 60), where="points.csv"),
    }


def _interval(row: Row) -> str:
    low, high = row["low_percent"], row["high_percent"]
    return "" if low is None or high is None else f"{pieces.fixed(low)} to {pieces.fixed(high)}"


def _memory(row: Row) -> str:
    needed, device = row.get("memory_bytes"), row.get("device_bytes")
    return "" if needed is None or device is None else f"{words.size(needed, 3)} of {words.size(device, 3)}"


def _bars(panel: Row, figure: str) -> dict[str, Any]:
    """Return a bar chart over the values of a categorical key, with a row per value."""
    known = [value for one in panel["lines"] for value in one["values"] if value is not None]
    largest = max(map(abs, known), default=0) or 1
    tokens = [token for token, _, _ in pieces.STYLES[1:]]
    rows = []
    for at, name in enumerate(panel["labels"]):
        bars = [
            {
                "words": f"{one['name']}, {name}: {figure_of(figure, one['values'][at])}",
                "start": 0,
                "share": 100 * max(one["values"][at], 0) / largest,
                "text": figure_of(figure, one["values"][at]),
                "token": tokens[index % len(tokens)],
            }
            for index, one in enumerate(panel["lines"])
            if one["values"][at] is not None
        ]
        rows.append({"name": pieces.clip(name, 60), "bars": bars})
    legend = [
        {"token": tokens[index % len(tokens)], "name": pieces.clip(one["name"])}
        for index, one in enumerate(panel["lines"])
    ]
    return {
        "bars": {
            "legend": legend if len(legend) > 1 else [],
            "unit": f"{_axis(figure)}, by {panel['key']}",
            "rows": rows,
        },
        "title": pieces.clip(panel["title"], 120),
    }


def _panel(panel: Row, figure: str, caps: pieces.Caps) -> dict[str, Any]:
    if panel.get("labels"):
        return _bars(panel, figure)
    x, unit = panel["x"], panel["unit"]
    xlabel = pieces.clip(panel["key"], 60) + (f", {unit}" if unit else "")
    drawn = pieces.chart(
        f"{named(figure)} over {panel['key']}{': ' + panel['title'] if panel['title'] else ''}",
        x=pieces.Axis(x, xlabel, "at", unit),
        lines=[pieces.line(index, one["name"], one["values"]) for index, one in enumerate(panel["lines"])],
        ylabel=_axis(figure),
        unit="",
        cap=caps.rows,
        xlog=x[-1] > 5 * x[0] > 0,
    )
    return {**drawn, "title": pieces.clip(panel["title"], 120)}


def _short(figure: str) -> str:
    """Return the name of a figure without job and tenant, short enough for a chart."""
    return figure.split(".", 2)[-1]


def _sample(one: Row, figure: str) -> dict[str, Any]:
    unit = f", {one['unit']}" if one["unit"] else ""
    xlabel = pieces.clip(one["key"], 60) + unit
    points = [scatter.Point(x, y, 0, 0, f"{xlabel} {x:.6g}: {y:.6g}") for x, y in one["points"]]
    label = f"{named(figure)} over {xlabel}"
    return {"label": label, "svg": scatter.draw(points, [], label=label, xlabel=xlabel, ylabel=_axis(figure))}


def _sensitivity(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    columns: pieces.Columns = {
        "key": lambda row: row["key"],
        "#share of the variance, %": lambda row: pieces.percent(number(path, row, "share")),
        "#least mean": lambda row: pieces.figure(row["least"]),
        "#largest mean": lambda row: pieces.figure(row["most"]),
    }
    return pieces.listing("Which key matters most", columns, summary.get("sensitivity", []), cap=caps.rows)


def _effects(summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    columns: pieces.Columns = {
        "key": lambda row: row["key"],
        "value": lambda row: row["value"],
        "over": lambda row: row["over"],
        "#change, %": lambda row: pieces.fixed(row["change_percent"]),
        "#95 % interval": lambda row: _interval(row) or "–",
        "#pairs": lambda row: row["pairs"],
    }
    return pieces.listing("Paired changes", columns, summary.get("effects", []), cap=caps.rows, where="summary.json")


def _front(front: Row, figure: str, against: str, caps: pieces.Caps) -> dict[str, Any]:
    xlabel = against + (f", {front['unit']}" if front["unit"] else "")
    # The Pareto front is drawn last, on top of the other points.
    marks = [(one, 0) for one in front["others"][: caps.rows]] + [(one, 1) for one in front["corners"][: caps.rows]]
    points = [
        scatter.Point(one["x"], one["y"], colour, colour, f"{one['values']}: {one['x']:.6g}, {one['y']:.6g}")
        for one, colour in marks
    ]
    label = f"{named(figure)} against {against}"
    corners = [(one["x"], one["y"]) for one in front["corners"][: caps.rows]]
    columns: pieces.Columns = {
        f"#{xlabel}": lambda one: pieces.figure(one["x"]),
        f"#{_axis(figure)}": lambda one: pieces.figure(one["y"]),
        "point": lambda one: one["values"],
    }
    return {
        "label": label,
        "svg": scatter.draw(points, corners, label=label, xlabel=xlabel, ylabel=_axis(figure)),
        "table": pieces.listing("The front", columns, front["corners"], cap=caps.rows, where="summary.json"),
    }
