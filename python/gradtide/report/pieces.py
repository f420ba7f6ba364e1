"""Pieces that all reports are put together from: numbers in words, tables, charts, bars and timelines.

Each is a dictionary for the macro of the same name in `assets/parts.html.j2`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gradtide import words
from gradtide.report import timeline
from gradtide.report.folder import Row
from gradtide.report.timeline import milliseconds, size

# Lines are drawn in this order; each is thinner than those below, so that lines that coincide stay visible.
STYLES: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("s6", 10, ()),
    ("s1", 6, ()),
    ("s5", 3.4, (9, 7)),
    ("s2", 1.8, ()),
    ("s3", 2.4, (3, 6)),
    ("s4", 1.4, (10, 4, 2, 4)),
)

WATERFALL = (
    ("compute", "compute", "compute"),
    ("slowdown", "slowdown by overlap", "slowdown"),
    ("exposed", "exposed communication", "exposed"),
    ("barrier", "wait at barrier", "barrier"),
)


@dataclass(frozen=True)
class Caps:
    """How much of a large folder is shown."""

    rows: int
    jobs: int
    timelines: int
    charts: int
    scenario: int


def clip(value: object, length: int = 80) -> str:
    """Shorten a name of any length to what a page can hold."""
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def ms(value: float) -> str:
    """Write milliseconds."""
    return milliseconds(value * 1e3)


def percent(share: float) -> str:
    """Write a share as a number of percent."""
    return f"{100 * share:.1f}"


def rate(bps: float) -> str:
    """Write a link rate."""
    unit, scale = ("Gbit/s", 1e9) if bps >= 1e9 else ("Mbit/s", 1e6)
    return f"{bps / scale:g} {unit}"


def figure(value: float) -> str:
    """Write a number with six digits."""
    return f"{value:.6g}".replace("-", "−")


def schedule(order: str, barrier: bool) -> str:
    """Name a schedule."""
    return words.schedule(clip(order, 24), barrier)


def cell(text: object, cls: str = "", key: str = "", small: str = "") -> dict[str, str]:
    """Return a cell: its text, a class, the summary key that it shows, and a word beside it."""
    return {"text": clip(text), "cls": cls, "key": key, "small": small}


def table(
    label: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cap: int, where: str = ""
) -> dict[str, Any]:
    """Return a table for the template; a `#` before a column's title sets its numbers right."""
    cells = [[x if isinstance(x, dict) else cell(x) for x in row] for row in rows]
    note = (
        f"The first {cap} of {len(cells)} rows{'; all are in ' + where if where else ''}." if len(cells) > cap else ""
    )
    heads = [{"title": clip(c.removeprefix("#")), "number": c.startswith("#")} for c in columns]
    meanings = words.legend(columns)
    note = ". ".join(part for part in (meanings, note) if part)
    return {"label": label, "columns": heads, "rows": cells[:cap], "note": note}


def embedded(value: object) -> Markup:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def line(index: int, name: str, values: Sequence[float | None]) -> dict[str, Any]:
    """Return a line of a chart in the style of its place."""
    token, width, dash = STYLES[index % len(STYLES)]
    rounded = [None if v is None else float(f"{v:.7g}") for v in values]
    return {"name": clip(name), "token": token, "width": width, "dash": list(dash), "values": rounded}


def chart(
    label: str,
    *,
    x: Sequence[float],
    lines: Sequence[dict[str, Any]],
    xlabel: str,
    ylabel: str,
    xname: str,
    xunit: str = "",
    unit: str = "ms",
    caption: str = "",
    legend: Sequence[dict[str, str]] = (),
    cap: int,
    **more: Any,
) -> dict[str, Any]:
    """Return a chart for the template; `more` goes to the script as is (marks, xlog, ylog, stepped, band …)."""
    known = [v for line in lines for v in line["values"] if v is not None]
    known += [m["y"] for m in more.get("marks", ()) if "y" in m]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    pad = (high - low) * 0.07 or abs(high) * 0.05 or 1.0
    first, last = min(x), max(x)
    yrange = [low - 1.6 * pad, high + pad]
    if more.get("ylog"):
        yrange = [low / 1.6, high * 1.6]
    if more.get("xlog"):
        ratio = (last / first) ** 0.04 if last > first else 1.5
        xrange = [first / ratio, last * ratio]
    else:
        # Steps fill their range; points keep clear of the frame.
        margin = 0 if more.get("stepped") and last > first else (last - first) * 0.03 or 0.5
        xrange = [first - margin, last + margin]
    spec = {
        "x": list(x),
        "lines": list(lines),
        "xlabel": xlabel,
        "ylabel": ylabel,
        "xname": xname,
        "xunit": xunit,
        "unit": unit,
        "xrange": xrange,
        "yrange": yrange,
        **more,
    }
    columns = ["#" + xlabel, *("#" + line["name"] for line in lines)]
    rows = [
        [figure(at), *("–" if line["values"][i] is None else figure(line["values"][i]) for line in lines)]
        for i, at in enumerate(x[:-1] if more.get("stepped") else x)
    ]
    return {
        "label": label,
        "spec": spec,
        "json": embedded(spec),
        "legend": list(legend),
        "caption": caption,
        "hint": "Point at the chart, or use the arrow keys on it, to read values.",
        "table": table(label, columns, rows, cap=cap),
    }


def bar(values: Mapping[str, float], longest: float, room: float) -> list[dict[str, Any]]:
    """Return the pieces of a waterfall bar, named inside where `room` (characters in a bar) allows."""
    pieces = []
    for kind, name, short in WATERFALL:
        share = 100 * max(values[kind], 0) / longest
        words = f"{name} {ms(values[kind])} ms"
        fits = (f"{short} {ms(values[kind])} ms", ms(values[kind]), "")
        text = next(text for text in fits if len(text) < share / 100 * room or not text)
        pieces.append({"kind": kind, "share": share, "text": text, "words": words})
    return pieces


def waterfall(values: Mapping[str, float], key: str) -> dict[str, Any]:
    """Return the one bar of a job with its values, ms, in the legend."""
    parts = bar(values, sum(values.values()), 120)
    legend = [
        {"kind": k, "name": name, "value": ms(values[k]), "key": f"{key}.{k}", "zero": values[k] == 0}
        for k, name, _ in WATERFALL
    ]
    return {"rows": [{"parts": parts, "label": "; ".join(p["words"] for p in parts)}], "legend": legend}


def drawn_timeline(
    operations: Sequence[Row],
    transfers: Sequence[Row],
    *,
    label: str,
    ident: str,
    cap: int,
    span_ms: float | None = None,
) -> dict[str, Any] | None:
    """Return a timeline with its caption and table; None where no operation was recorded."""
    view = timeline.window(operations, transfers)
    if view is None:
        return None
    shown, total = timeline.chosen(view.transfers), view.transfers
    exposed, barrier = view.idle_ms("exposed"), view.idle_ms("barrier")
    late = sum(row["margin_us"] < -1e-5 for row in total)
    words = (
        f"In this iteration compute waits {ms(exposed)} ms for the network and "
        f"{ms(barrier)} ms at the barrier; "
        f"{late} of {len(total)} transfers arrive{'s' if late == 1 else ''} late."
    )
    if view.worker is not None:
        words = (
            f"Workers differ: compute is that of worker {view.worker}, the slowest, which the others wait for. {words}"
        )
    if not total:
        words = "This job sends nothing."
    if len(shown) < len(total):
        words += (
            f" Rows show {len(shown)} of {len(total)} buckets, "
            f"the {timeline.TIGHTEST} with the least margin among them; the network lane shows all."
        )
    rows = [
        [
            row["bucket"],
            timeline.layers(row),
            size(row["bytes"]),
            row["rank"],
            *(milliseconds(row[k] - view.start) for k in ("ready_us", "start_us", "end_us", "needed_us")),
            milliseconds(row["slack_us"]),
            cell(milliseconds(row["margin_us"]), "differs" if row["margin_us"] < -1e-5 else ""),
        ]
        for row in total
    ]
    columns = (
        "#bucket",
        "layers",
        "#bytes",
        "#rank",
        "#ready, ms",
        "#sent from, ms",
        "#to, ms",
        "#needed, ms",
        "#slack, ms",
        "#margin, ms",
    )
    return {
        "svg": timeline.draw(view, label=label, ident=ident, span_ms=span_ms),
        "label": label,
        "caption": words,
        "table": table(label, columns, rows, cap=cap, where="transfers.csv"),
        "legend": {
            *(["update"] if any(row["kind"] == "update" for row in view.compute) else []),
            *(["transfer"] if total else []),
            *(["late"] if late else []),
            *(["old"] if any(row["iteration"] < view.compute[0]["iteration"] for row in view.network) else []),
            *(idle.cause for idle in view.idle),
        },
        "span_ms": view.span_ms,
    }


def by_job(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by job."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["job"], []).append(row)
    return grouped
