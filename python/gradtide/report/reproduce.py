"""The report of `gradtide reproduce`: published values and figures next to ours.

If the summary has `figures`, the page is ordered by figure, each with its verdict, maps, charts, drawings and tables.
Otherwise there is one list per kind of drawing.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from types import NoneType
from typing import Any

from gradtide.report import pieces, progress
from gradtide.report.compare import inside
from gradtide.report.folder import Row, RunFolderError, are_numbers, entry, read_table
from gradtide.report.tenants import BANDS, VERDICTS, change
from gradtide.report.tenants.maps import SHADES, shades

SCORED = ("agrees", "differs")
"""Verdicts that count towards the score. Fitted values, and values that are only shown, do not count."""

_BAR_TOKENS = ("s1", "s2", "s3", "s4", "s5", "s6")


def _objects(path: Path, summary: Row, key: str) -> list[Mapping[str, Any]]:
    found = summary.get(key, [])
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise RunFolderError(f"{path}: key `{key}`: a list of objects was expected")
    return found


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a reproduction."""
    path = run_dir / "summary.json"
    checks = [_check(path, check) for check in _objects(path, summary, "checks")]
    agree, scored = (sum(check["verdict"] in of for check in checks) for of in (("agrees",), SCORED))
    series, items = _objects(path, summary, "series"), _objects(path, summary, "timelines")
    charts = _charts(path, series, caps, by_figure=bool(summary.get("figures")))
    timelines = _timelines(run_dir, path, items[: caps.timelines], caps)
    tables = [_table(path, item, caps) for item in _objects(path, summary, "tables")]
    kept = tables[: max(caps.charts, 2)]
    panels = [_progress(run_dir, path, item, caps) for item in _objects(path, summary, "progress")[: caps.timelines]]
    drawn = {
        "maps": [_map(path, item) for item in _objects(path, summary, "maps")],
        "bars": _bars(path, _objects(path, summary, "bars"), caps),
        "charts": charts,
        "drawings": list(filter(None, panels)),
        "tables": kept,
    }
    made_by = _objects(path, summary, "commands")
    commands = {_word(item, "figure"): pieces.clip(entry(path, item, "command", str), 120) for item in made_by}
    lists: dict[str, tuple[Sequence[Any], ...]] = {
        "charts": (charts, series),
        "timelines": (timelines, items),
        "tables": (kept, tables),
    }
    counts = [(what, len(shown), len(every)) for what, (shown, every) in lists.items()]
    left = [f"{total - shown} of {total} {what}" for what, shown, total in counts if shown < total]
    name = "/".join(filter(None, (pieces.clip(summary.get(key, ""), 40) for key in ("paper", "part"))))
    return "reproduce.html.j2", {
        "title": f"gradtide reproduce {name}",
        "what": pieces.clip(entry(path, summary, "title", str), 160),
        "reproduce": f"gradtide reproduce {name}",
        "tally": f"{agree} of {scored} published values agree with ours.",
        "checks": checks[: caps.rows],
        "cut": f"The first {caps.rows} are shown; all are in summary.json." if len(checks) > caps.rows else "",
        "rule": pieces.clip(summary.get("rule", ""), 600),
        "figures": [_figure(item, checks, drawn, commands) for item in _objects(path, summary, "figures")],
        "commands": commands,
        "left_out": ", ".join(pieces.clip(one, 40) for one in summary.get("left_out", ())),
        "has_index": summary.get("has_index") is True,
        "dashed": any(line.get("who") == "published" for item in series for line in item.get("lines", ())),
        "shades": shades(),
        "charts": charts,
        "timelines": timelines,
        "legend": set().union(*(t["legend"] for t in timelines)),
        "tables": kept,
        "dropped": f"Not shown: {', '.join(left)}." if left else "",
    }


def _figure(
    item: Mapping[str, Any],
    checks: Sequence[Mapping[str, str]],
    drawn: Mapping[str, Sequence[Mapping[str, Any]]],
    commands: Mapping[str, str],
) -> dict[str, Any]:
    name = _word(item, "figure")
    own = [check for check in checks if check["figure"] == name]
    return {
        "title": f"{'' if name[:1].isalpha() else 'Fig. '}{name}: {_word(item, 'title')}",
        "says": _word(item, "says"),
        "badge": _badge([check["verdict"] for check in own]),
        "command": commands.get(name, ""),
        "checks": [{**check, "figure": ""} for check in own],
        **{kind: [one for one in some if one["of"] == name] for kind, some in drawn.items()},
    }


def _charts(
    path: Path, series: Sequence[Mapping[str, Any]], caps: pieces.Caps, *, by_figure: bool
) -> list[dict[str, Any]]:
    """Return one chart per series. With `by_figure`, six times as many charts are allowed, and they have no hint."""
    made = []
    for item in series[: caps.charts * (6 if by_figure else 1)]:
        names = {"title": _figure_title(item), "of": _word(item, "figure"), "short": _word(item, "title")}
        made.append({**series_chart(path, item, caps), **names, **({"hint": ""} if by_figure else {})})
    return made


def _table(path: Path, item: Mapping[str, Any], caps: pieces.Caps) -> dict[str, Any]:
    columns, rows = [str(c) for c in entry(path, item, "columns", list)], entry(path, item, "rows", list)
    if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
        raise RunFolderError(f"{path}: key `tables`: a row of `{_word(item, 'title')}` has not {len(columns)} cells")
    numbers = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
    heads = [("#" if n else "") + c for n, c in zip(numbers, columns, strict=True)]
    texts = [list(map(pieces.plain, row)) for row in rows]
    made = pieces.table(_word(item, "title"), heads, texts, cap=caps.rows, where="summary.json")
    note = " ".join(filter(None, (_word(item, "note"), made["note"])))
    return {**made, "note": note, "of": _word(item, "figure")}


def _word(item: Mapping[str, Any], key: str) -> str:
    return pieces.clip(item.get(key, ""), 300)


def _check(path: Path, check: Mapping[str, Any]) -> dict[str, str]:
    """Return a row with a published value, our value, their difference in percent, and the verdict."""
    unit = _word(check, "unit")

    def value(whose: str) -> str:
        found = entry(path, check, whose, (str, int, float, NoneType))
        return pieces.plain(found) + (f" {unit}" if unit and found is not None else "")

    change = entry(path, {"difference_percent": None, **check}, "difference_percent", (int, float, NoneType))
    percent = "–" if change is None else f"{change:+.1f} %".replace("-", "−")
    return {
        **{key: _word(check, key) for key in ("figure", "quantity", "note")},
        **{whose: value(whose) for whose in ("published", "ours")},
        # `change` is None, and the difference a dash, if one of the values is not a number.
        "difference": "0.0 %" if change == 0 else percent,
        "verdict": pieces.clip(entry(path, check, "verdict", str), 20),
    }


def _badge(verdicts: Sequence[str]) -> dict[str, str] | None:
    """Return the combined verdict of a figure's checks; None if no check counts."""
    scored = [verdict for verdict in verdicts if verdict in SCORED]
    if not scored:
        return None
    agree = scored.count("agrees")
    if agree == len(scored):
        return {"colour": "green", "mark": "✓", "words": "holds"}
    if agree:
        return {"colour": "yellow", "mark": "!", "words": f"holds in {agree} of {len(scored)} points"}
    return {"colour": "red", "mark": "✕", "words": "differs"}


def _map(path: Path, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map of changes in percent. Cells have the colour of a verdict, or else a shade for their value."""
    rows = []
    for row in entry(path, item, "rows", list):
        cells = []
        for cell in entry(path, row, "cells", list):
            value, colour = float(entry(path, cell, "change_percent", (int, float))), str(cell.get("colour", ""))
            if colour in VERDICTS:
                mark, badge, _ = VERDICTS[colour]
                cells.append({"cls": colour, "value": change(value), "mark": mark, "word": colour, "label": badge})
            else:
                step = sum(value >= bound for bound in SHADES) - 1
                cls = f"shade-{step}" if value >= 0 else "loss"
                cells.append({"cls": cls, "value": change(value), "mark": "", "word": "", "label": f"{value:.1f} %"})
        rows.append({"load": pieces.clip(row.get("load", "")), "cells": cells})
    return {
        "of": pieces.clip(item.get("figure", "")),
        "title": pieces.clip(entry(path, item, "title", str)),
        "columns": [pieces.clip(c) for c in entry(path, item, "columns", list)],
        "rows": rows,
    }


def _bars(path: Path, items: Sequence[Mapping[str, Any]], caps: pieces.Caps) -> list[dict[str, Any]]:
    """Return bar charts. All charts of a figure share one scale, which includes zero."""
    figures: dict[str, list[float]] = {}
    for item in items:
        count = len(entry(path, item, "rows", list))
        for group in entry(path, item, "groups", list):
            values = entry(path, group, "values", list)
            if len(values) != count or not are_numbers(values):
                raise RunFolderError(f"{path}: key `bars.groups.values`: {count} numbers were expected")
            figures.setdefault(pieces.clip(item.get("figure", ""), 20), []).extend(values)
    made = []
    for item in items:
        of = pieces.clip(item.get("figure", ""), 20)
        low, high = min(0.0, *figures.get(of, [])), max(0.0, *figures.get(of, []))
        scale = 100 / ((high - low) or 1.0)
        legend = [
            {"name": pieces.clip(entry(path, group, "name", str), 40), "token": token}
            for group, token in zip(item["groups"], cycle(_BAR_TOKENS), strict=False)
        ]

        def bar(row: str, group: Mapping[str, str], value: float, low: float = low, scale: float = scale) -> Row:
            return {
                "token": group["token"],
                "start": (min(value, 0.0) - low) * scale,
                "share": abs(value) * scale,
                "text": pieces.fixed(value),
                "words": f"{row}, {group['name']}: {value:.1f}",
            }

        rows = []
        for i, name in enumerate(item["rows"][: caps.rows]):
            row, values = pieces.clip(name, 40), [group["values"][i] for group in item["groups"]]
            rows.append({"name": row, "bars": [bar(row, *one) for one in zip(legend, values, strict=True)]})
        title, unit = pieces.clip(entry(path, item, "title", str)), pieces.clip(entry(path, item, "unit", str), 40)
        made.append({"of": of, "title": title, "unit": unit, "legend": legend, "rows": rows})
    return made


def _progress(run_dir: Path, path: Path, item: Mapping[str, Any], caps: pieces.Caps) -> dict[str, Any] | None:
    job, of = entry(path, item, "job", str), pieces.clip(item.get("figure", ""))
    panels = []
    for band, name in BANDS.items():
        folder = inside(run_dir, entry(path, item, f"runs.{band}", str))
        iterations, transfers, operations = (
            pieces.by_job(read_table(folder, table)).get(job, [])
            for table in ("iterations.csv", "transfers.csv", "operations.csv")
        )
        panels.append(
            progress.Panel(name.capitalize(), iterations, transfers, operations, read_table(folder, "flows.csv"))
        )
    label = f"Progress of the job, fig. {of}, same band above lower band"
    svg = progress.draw(panels, label=label, ident=f"p{of.replace('.', '-').replace(', ', '-')}", cap=caps.rows)
    return None if svg is None else {"of": of, "svg": svg, "label": label}


def _figure_title(item: Mapping[str, Any]) -> str:
    figure = f"Fig. {pieces.clip(item['figure'], 20)}: " if item.get("figure") else ""
    return figure + pieces.clip(item.get("title", ""), 160)


def _timelines(
    run_dir: Path, path: Path, items: Sequence[Mapping[str, Any]], caps: pieces.Caps
) -> list[dict[str, Any]]:
    runs = [(inside(run_dir, entry(path, item, "run", str)), item.get("job"), _figure_title(item)) for item in items]
    made = []
    for item, drawn in zip(items, pieces.drawn_timelines(runs, caps), strict=True):
        if drawn:
            caption = f"{drawn['caption']} {pieces.clip(item.get('note', ''), 300)}".strip()
            made.append({**drawn, "caption": caption, "title": _figure_title(item)})
    return made


def _style(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style of a line that belongs to a band, else nothing. Published lines are dashed, and below ours."""
    if line.get("band") not in BANDS:
        return {}
    published = line.get("who") == "published"
    return {"token": f"band-{line['band']}", "width": 4.4 if published else 2.2, "dash": [2, 6] if published else []}


def series_chart(path: Path, item: Mapping[str, Any], caps: pieces.Caps) -> dict[str, Any]:
    """Return the chart of a series, which has axes `x` and `y` and several lines of values."""
    values = entry(path, item, "x.values", list)
    lines = entry(path, item, "lines", list)
    if not values or not are_numbers(values):
        raise RunFolderError(f"{path}: key `series.x.values`: a list of numbers was expected")
    if any(b <= a for a, b in pairwise(values)):
        raise RunFolderError(f"{path}: key `series.x.values`: numbers must increase")
    drawn = []
    for i, line in enumerate(lines):
        points = entry(path, line, "values", list)
        if len(points) != len(values) or not are_numbers(v for v in points if v is not None):
            raise RunFolderError(f"{path}: key `series.lines.values`: {len(values)} numbers were expected")
        drawn.append(pieces.line(i, entry(path, line, "name", str), points, **_style(line)))
    step = -(-len(values) // 600)
    note = f" Every {step}th point is drawn." if step > 1 else ""
    for line in drawn:
        line["values"] = line["values"][::step]
    return pieces.chart(
        _figure_title(item),
        x=pieces.Axis(values[::step], pieces.clip(entry(path, item, "x.label", str)), "at"),
        lines=drawn,
        ylabel=pieces.clip(entry(path, item, "y.label", str)),
        unit="",
        caption=pieces.clip(item.get("note", ""), 400) + note,
        xlog=min(values) > 0 and max(values) / min(values) >= 8,
        ylog=item.get("ylog") is True and all(v is None or v > 0 for line in drawn for v in line["values"]),
        cap=caps.rows,
    )
