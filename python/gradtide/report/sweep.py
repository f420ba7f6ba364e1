"""The report of a study over any keys: small multiples, sensitivity, paired changes and a front."""

from pathlib import Path
from typing import Any

from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, entry, number


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template of a study and what it shows."""
    path = run_dir / "summary.json"
    runs = entry(path, summary, "runs", int)
    figure = pieces.clip(entry(path, summary, "figure", (str, type(None))) or "", 90)
    against = pieces.clip(summary.get("against") or "", 90)
    panels = [_panel(panel, figure, caps) for panel in summary.get("charts", [])[: caps.charts]]
    return "sweep.html.j2", {
        "title": f"gradtide sweep: {runs:,} runs",
        "what": f"study of {runs:,} runs",
        "reproduce": "gradtide sweep study.toml",
        "figure": figure,
        "against": against,
        "panels": panels,
        "samples": [_sample(one, figure) for one in summary.get("samples", [])[: caps.charts]],
        "sensitivity": _sensitivity(path, summary, caps),
        "effects": _effects(summary, caps),
        "seeds": entry(path, summary, "seeds", int),
        "front": _front(summary["front"], figure, against, caps) if summary.get("front", {}).get("corners") else None,
    }


def _panel(panel: Row, figure: str, caps: pieces.Caps) -> dict[str, Any]:
    x, unit = panel["x"], panel["unit"]
    xlabel = pieces.clip(panel["key"], 60) + (f", {unit}" if unit else "")
    drawn = pieces.chart(
        f"{figure} over {panel['key']}{': ' + panel['title'] if panel['title'] else ''}",
        x=x,
        lines=[pieces.line(index, one["name"], one["values"]) for index, one in enumerate(panel["lines"])],
        xlabel=xlabel,
        ylabel=_short(figure),
        xname="at",
        xunit=unit,
        unit="",
        cap=caps.rows,
        xlog=x[-1] > 5 * x[0] > 0,
    )
    return {**drawn, "title": pieces.clip(panel["title"], 120)}


def _short(figure: str) -> str:
    """Return a figure without the job or tenant that it is of, so that it fits beside a chart."""
    return figure.split(".", 2)[-1]


def _sample(one: Row, figure: str) -> dict[str, Any]:
    unit = f", {one['unit']}" if one["unit"] else ""
    xlabel = pieces.clip(one["key"], 60) + unit
    points = [scatter.Point(x, y, 0, 0, f"{xlabel} {x:.6g}: {y:.6g}") for x, y in one["points"]]
    label = f"{figure} over {xlabel}"
    return {"label": label, "svg": scatter.draw(points, [], label=label, xlabel=xlabel, ylabel=_short(figure))}


def _sensitivity(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    columns: pieces.Columns = {
        "key": lambda row: row["key"],
        "#share of the variance, %": lambda row: pieces.percent(number(path, row, "share")),
        "#least mean": lambda row: pieces.figure(row["least"]),
        "#largest mean": lambda row: pieces.figure(row["most"]),
    }
    return pieces.listing("Which key matters most", columns, summary.get("sensitivity", []), cap=caps.rows)


def _effects(summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    def interval(row: Row) -> str:
        low, high = row["low_percent"], row["high_percent"]
        return "–" if low is None else f"{pieces.fixed(low)} to {pieces.fixed(high)}"

    columns: pieces.Columns = {
        "key": lambda row: row["key"],
        "value": lambda row: row["value"],
        "over": lambda row: row["over"],
        "#change, %": lambda row: pieces.fixed(row["change_percent"]),
        "#95 % interval": interval,
        "#pairs": lambda row: row["pairs"],
    }
    return pieces.listing("Paired changes", columns, summary.get("effects", []), cap=caps.rows, where="summary.json")


def _front(front: Row, figure: str, against: str, caps: pieces.Caps) -> dict[str, Any]:
    xlabel = against + (f", {front['unit']}" if front["unit"] else "")
    # The front is drawn last, so that nothing covers it.
    marks = [(one, 0) for one in front["others"][: caps.rows]] + [(one, 1) for one in front["corners"][: caps.rows]]
    points = [
        scatter.Point(one["x"], one["y"], colour, colour, f"{one['values']}: {one['x']:.6g}, {one['y']:.6g}")
        for one, colour in marks
    ]
    label = f"{figure} against {against}"
    corners = [(one["x"], one["y"]) for one in front["corners"][: caps.rows]]
    columns: pieces.Columns = {
        f"#{xlabel}": lambda one: pieces.figure(one["x"]),
        f"#{figure}": lambda one: pieces.figure(one["y"]),
        "point": lambda one: one["values"],
    }
    return {
        "label": label,
        "svg": scatter.draw(points, corners, label=label, xlabel=xlabel, ylabel=_short(figure)),
        "table": pieces.listing("The front", columns, front["corners"], cap=caps.rows, where="summary.json"),
    }
