"""Components of all reports: formatted numbers, tables, charts, bars, timelines and charts of samples.

A component is a dictionary that the macro of the same name in `assets/parts.html.j2` renders.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from markupsafe import Markup

from gradtide import words
from gradtide.report import timeline
from gradtide.report.folder import Row, entry, grouped, number, read_table
from gradtide.report.timeline import milliseconds, size

_T = TypeVar("_T")

Columns = dict[str, Callable[[Any], object]]
"""Columns of a table: {title: function that returns the column's cell for an item}."""

# Styles of lines: colour token, width in pixels, dashes. Lines are drawn in this order, and most are thinner than the
# previous ones, so that coinciding lines stay visible.
STYLES: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("s6", 10, ()),
    ("s1", 6, ()),
    ("s5", 3.4, (9, 7)),
    ("s2", 1.8, ()),
    ("s3", 2.4, (3, 6)),
    ("s4", 1.4, (10, 4, 2, 4)),
    ("s7", 2.0, (1, 4)),
)


class Axis(NamedTuple):
    """Horizontal axis of a chart: values, label, and the name and unit with which the value at the pointer is shown."""

    values: Sequence[float]
    label: str
    name: str
    unit: str = ""


def over_rates(rates_bps: Iterable[float]) -> dict[str, Any]:
    """Return the axis of a chart over link rates, as keyword arguments of `chart`."""
    return {"x": Axis([rate / 1e9 for rate in rates_bps], "link rate, Gbit/s", "at", "Gbit/s"), "xlog": True}


PROBE_STEPS = 160
"""Largest number of steps of a chart of samples. With more samples, a step combines several of them."""

WATERFALL = (
    ("compute", "compute", "compute"),
    ("host", words.HOST_TIME, "host"),
    ("slowdown", "slowdown by overlap", "slowdown"),
    ("exposed", "exposed communication", "exposed"),
    ("barrier", "wait at barrier", "barrier"),
)


@dataclass(frozen=True)
class Caps:
    """Limits of a page: numbers of rows, jobs, timelines and charts, and of characters of the scenario."""

    rows: int
    jobs: int
    timelines: int
    charts: int
    scenario: int


def clip(value: object, length: int = 80) -> str:
    """Return a value as text, cut to `length` characters with an ellipsis if it is longer."""
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def ms(value: float) -> str:
    """Return a time in milliseconds as text, without its unit."""
    return milliseconds(value * 1e3)


def percent(share: float) -> str:
    """Return a fraction in percent as text without the sign, as in `49.6`."""
    return f"{100 * share:.1f}"


def rate(bps: float) -> str:
    """Return a link rate as text."""
    unit, scale = ("Gbit/s", 1e9) if bps >= 1e9 else ("Mbit/s", 1e6)
    return f"{bps / scale:g} {unit}"


def figure(value: float) -> str:
    """Return a number as text with six significant digits."""
    return f"{value:.6g}".replace("-", "−")


def schedule(order: str, barrier: bool) -> str:
    """Name a schedule."""
    return words.schedule(clip(order, 24), barrier)


def fixed(value: float | None, digits: int = 1, unit: str = "") -> str:
    """Return a number as text with `digits` decimals and a true minus sign; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}{unit}".replace("-", "−")


def plain(value: object) -> str:
    """Return a value of a summary or table as text without its unit; a dash for None."""
    return "–" if value is None else figure(value) if isinstance(value, float) else str(value)


def cell(text: object, cls: str = "", key: str = "", small: str = "") -> dict[str, str]:
    """Return a table cell. `key` is the dotted path of its value in the summary, `small` more text in small type."""
    return {"text": clip(text), "cls": cls, "key": key, "small": small}


def tile(name: str, value: str, unit: str, kind: str, note: str, key: str = "") -> dict[str, str]:
    """Return a tile for the top of the page: a named value with an explanation.

    Args:
        name: the name of the value.
        value: the value as text.
        unit: its unit.
        kind: the part of an iteration or the verdict that gives the tile its colour; neutral if empty.
        note: the explanation.
        key: the dotted path of the value in the summary.
    """
    return {"name": name, "value": value, "unit": unit, "kind": kind, "note": note, "key": key}


def change_kind(saves_percent: float | None) -> str:
    """Return `better` or `worse` for a saving, which gives its tile a colour; empty if it is below 0.05 %."""
    if saves_percent is None or abs(saves_percent) < 0.05:
        return ""
    return "better" if saves_percent > 0 else "worse"


def table(
    label: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cap: int, where: str = ""
) -> dict[str, Any]:
    """Return a table of at most `cap` rows. A column whose title begins with `#` is right-aligned."""
    cells = [[x if isinstance(x, dict) else cell(x) for x in row] for row in rows]
    note = (
        f"The first {cap} of {len(cells)} rows{'; all are in ' + where if where else ''}." if len(cells) > cap else ""
    )
    heads = [{"title": clip(c.removeprefix("#")), "number": c.startswith("#")} for c in columns]
    meanings = words.legend(columns)
    note = ". ".join(part for part in (meanings, note) if part)
    return {"label": label, "columns": heads, "rows": cells[:cap], "note": note}


def listing(label: str, columns: Columns, items: Iterable[Any], *, cap: int, where: str = "") -> dict[str, Any]:
    """Return a table with a row per item; at most `cap` rows are kept."""
    rows = [[write(item) for write in columns.values()] for item in items]
    return table(label, list(columns), rows, cap=cap, where=where)


def flat(value: Any, key: str, start: str) -> list[list[dict[str, str]]]:
    """Return a row (dotted path, value) for every scalar below `value`; lists are omitted.

    `key` is the dotted path of `value`. The paths are shown without the prefix `start`.
    """
    if isinstance(value, Mapping):
        return [row for k, v in value.items() for row in flat(v, f"{key}.{k}", start)]
    if isinstance(value, list):
        return []
    return [[cell(key.removeprefix(start)), cell(plain(value), key=key)]]


def embedded(value: object) -> Markup:
    """Return a value as JSON that is safe inside a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def line(index: int, name: str, values: Sequence[float | None], **style: Any) -> dict[str, Any]:
    """Return a line of a chart in style number `index`; keys in `style` replace its token, width, dash or fill."""
    token, width, dash = STYLES[index % len(STYLES)]
    rounded = [None if v is None else float(f"{v:.7g}") for v in values]
    return {"name": clip(name), "token": token, "width": width, "dash": list(dash), "values": rounded} | style


def chart(
    label: str,
    *,
    x: Axis,
    lines: Sequence[dict[str, Any]],
    ylabel: str,
    unit: str = "ms",
    caption: str = "",
    legend: Sequence[dict[str, str]] = (),
    cap: int,
    **more: Any,
) -> dict[str, Any]:
    """Return a chart.

    `more` has the options of report.js, such as `marks`, `xlog`, `ylog`, `stepped` and `band`.
    """
    known = [v for line in lines for v in line["values"] if v is not None]
    known += [m["y"] for m in more.get("marks", ()) if "y" in m]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    pad = (high - low) * 0.07 or abs(high) * 0.05 or 1.0
    first, last = min(x.values), max(x.values)
    yrange = [low - 1.6 * pad, high + pad]
    if more.get("ylog"):
        yrange = [low / 1.6, high * 1.6]
    if more.get("xlog"):
        ratio = (last / first) ** 0.04 if last > first else 1.5
        xrange = [first / ratio, last * ratio]
    else:
        # A chart of steps fills the axis; a chart of points has a margin on both sides.
        margin = 0 if more.get("stepped") and last > first else (last - first) * 0.03 or 0.5
        xrange = [first - margin, last + margin]
    spec = {
        "x": list(x.values),
        "lines": list(lines),
        "xlabel": x.label,
        "ylabel": ylabel,
        "xname": x.name,
        "xunit": x.unit,
        "unit": unit,
        "xrange": xrange,
        "yrange": yrange,
        **more,
    }
    columns = ["#" + x.label, *("#" + line["name"] for line in lines)]
    values = [line["values"] for line in lines]
    rows = [
        [figure(at), *("–" if of[i] is None else figure(of[i]) for of in values)]
        for i, at in enumerate(x.values[:-1] if more.get("stepped") else x.values)
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


def part(kind: str, words: str, share: float, texts: Iterable[str], room: float) -> dict[str, Any]:
    """Return a part of a bar, labelled with the first of `texts` that fits.

    `share` is the length of the part in percent of the bar, `room` the length of the bar in characters. On a narrow
    screen the page shows the last of the fitting texts, or none.
    """
    fitting = [text for text in texts if len(text) < share / 100 * room] or [""]
    return {"kind": kind, "share": share, "text": fitting[0], "short": fitting[-1], "words": words}


def meaning(kind: str, name: str, value: str = "", key: str = "", zero: bool = False) -> dict[str, Any]:
    """Return an entry of a legend of bars. If there is only one bar, the entry also has the value."""
    return {"kind": kind, "name": name, "value": value, "key": key, "zero": zero}


def waterfall_of(path: Path, facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the duration of each part of an iteration in ms. Host time occurs only in recorded steps."""
    known: Mapping[str, Any] = entry(path, facts, "waterfall_ms", dict)
    return {kind: number(path, known, kind) for kind, _, _ in _parts(known)}


def _parts(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [row for row in WATERFALL if row[0] != "host" or "host" in values]


def bar(values: Mapping[str, float], longest: float, room: float) -> list[dict[str, Any]]:
    """Return the parts of the bar of an iteration.

    `values` are durations in ms, `longest` is the duration of the longest bar, and `room` its length in characters,
    which limits the labels inside the parts.
    """
    parts = []
    for kind, name, short in _parts(values):
        text, share = ms(values[kind]), 100 * max(values[kind], 0) / longest
        parts.append(part(kind, f"{name} {text} ms", share, (f"{short} {text} ms", text), room))
    return parts


def waterfall(values: Mapping[str, float], key: str, barrier: str) -> dict[str, Any]:
    """Return a single bar of an iteration, and a legend with the durations in ms; `barrier` names the last part."""
    parts = bar(values, sum(values.values()), 120)
    names = {k: name for k, name, _ in _parts(values)} | {"barrier": barrier}
    legend = [meaning(k, name, ms(values[k]), f"{key}.{k}", values[k] == 0) for k, name in names.items()]
    return {"rows": [{"parts": parts, "label": "; ".join(p["words"] for p in parts)}], "legend": legend}


def drawn_timelines(runs: Sequence[tuple[Path, str | None, str]], caps: Caps) -> list[dict[str, Any] | None]:
    """Return the timeline of one iteration of each run, on a common time axis; None for a run without operations.

    An item of `runs` is (folder, job, title). If `job` is None, the first job is drawn.
    """
    views = []
    for folder, job, _ in runs:
        operations, transfers = (by_job(read_table(folder, f"{name}.csv")) for name in ("operations", "transfers"))
        of = next(iter(operations), "") if job is None else job
        views.append(timeline.window(operations.get(of, []), transfers.get(of, [])))
    span_ms = max((view.span_ms for view in views if view), default=None)
    return [
        drawn_timeline(view, label=f"Timeline, {title}", ident=f"t{i}", cap=caps.rows, span_ms=span_ms)
        for i, (view, (_, _, title)) in enumerate(zip(views, runs, strict=True))
    ]


def drawn_timeline(
    view: timeline.Window | None,
    *,
    label: str,
    ident: str,
    cap: int,
    span_ms: float | None = None,
) -> dict[str, Any] | None:
    """Return a timeline with its caption and its table of transfers; None if `view` is None.

    The time axis has the length of the window, or `span_ms` if it is given.
    """
    if view is None:
        return None
    shown, total = timeline.chosen(view.transfers), view.transfers
    late = sum(map(timeline.is_late, total))
    pulled = any(row.get("direction") for row in total)
    barrier = "for pushes and other workers" if pulled else "at the barrier"
    caption = (
        f"In this iteration compute waits {ms(view.idle_ms('exposed'))} ms for the network and "
        f"{ms(view.idle_ms('barrier'))} ms {barrier}; "
        f"{late} of {len(total)} transfers arrive{'s' if late == 1 else ''} late."
    )
    if view.worker is not None:
        who = f"Workers differ. The compute lanes show worker {view.worker}, the slowest, which the others wait for."
        if not view.in_step:
            who = (
                f"Workers are not in step: this is an iteration of worker {view.worker}, the slowest. An "
                "iteration of the job counts the iterations of all workers."
            )
        caption = f"{who} {caption}"
    if not total:
        caption = "This job sends nothing."
    if len(shown) < len(total):
        caption += (
            f" Rows show {len(shown)} of {len(total)} buckets, "
            f"among them the {timeline.TIGHTEST} with the smallest margin. The network lane shows all buckets."
        )

    def since(key: str) -> Callable[[Row], str]:
        return lambda row: milliseconds(row[key] - view.start)

    columns: Columns = {
        "#bucket": lambda row: row["bucket"],
        "layers": timeline.layers,
        "#bytes": lambda row: size(row["bytes"]),
        "#rank": lambda row: row["rank"],
        "#ready, ms": since("ready_us"),
        "#sent from, ms": since("start_us"),
        "#to, ms": since("end_us"),
        "#needed, ms": since("needed_us"),
        "#slack, ms": lambda row: milliseconds(row["slack_us"]),
        "#margin, ms": lambda row: cell(milliseconds(row["margin_us"]), "differs" if timeline.is_late(row) else ""),
    }
    marks = {
        "update": any(row["kind"] == "update" for row in view.compute),
        "host": any(row["kind"] == "host" and row["end_us"] > row["start_us"] for row in view.compute),
        "transfer": bool(total),
        "late": late > 0,
        "pulled": pulled,
        "old": any(row["iteration"] < view.compute[0]["iteration"] for row in view.network),
    }
    return {
        "svg": timeline.draw(view, label=label, ident=ident, span_ms=span_ms),
        "label": label,
        "caption": caption,
        "table": listing(label, columns, total, cap=cap, where="transfers.csv"),
        "legend": {mark for mark, is_drawn in marks.items() if is_drawn} | {idle.cause for idle in view.idle},
    }


def bins(rows: Sequence[_T], most: int) -> list[Sequence[_T]]:
    """Split rows into at most `most` parts of equal length; the last part may be shorter."""
    step = -(-len(rows) // most)
    return [rows[i : i + step] for i in range(0, len(rows), step or 1)]


def by_job(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by job."""
    return grouped(rows, lambda row: row["job"])


def probed(runs: Mapping[str, Sequence[Row]], tokens: Sequence[str], caps: Caps) -> dict[str, Any] | None:
    """Return charts of the queue and the utilisation of one switch port over time; None without samples.

    `runs` are the rows of `queues.csv` by run, and `tokens` the colours of the runs. Charts of all runs have the same
    axes. The port is the one that `busiest` returns.
    """
    link = busiest([row for rows in runs.values() for row in rows])
    if link is None:
        return None
    own = {name: [row for row in rows if row["link"] == link] for name, rows in runs.items()}
    if not all(own.values()):
        return None
    per_step = max(-(-len(rows) // min(PROBE_STEPS, 20 + caps.rows)) for rows in own.values())
    steps = {name: [rows[i : i + per_step] for i in range(0, len(rows), per_step)] for name, rows in own.items()}
    longest = max(row["queue_packets"] for rows in own.values() for row in rows)
    until = max(rows[-1]["time_us"] for rows in own.values()) / 1e3

    def drawn(
        name: str, token: str, title: str, values: list[float], ylabel: str, unit: str, top: float
    ) -> dict[str, Any]:
        x = [0.0, *(step[-1]["time_us"] / 1e3 for step in steps[name])]
        made = chart(
            f"{title} over time{', ' + name if name else ''}",
            x=Axis(x, "time, ms", "from", "ms"),
            lines=[line(0, title, [*values, values[-1]], token=token, width=1.2, fill=token)],
            ylabel=ylabel,
            unit=unit,
            stepped=True,
            xrange=[0, until],
            yrange=[0, top],
            cap=caps.rows,
        )
        return {**made, "hint": "", "title": name.capitalize()}

    queues, uses = [], []
    for (name, parts), token in zip(steps.items(), tokens, strict=True):
        peaks = [float(max(row["queue_packets"] for row in step)) for step in parts]
        shares = [100 * sum(row["utilisation"] for row in step) / len(step) for step in parts]
        queues.append(drawn(name, token, f"Queue before {link}", peaks, "packets", "packets", 1.05 * max(longest, 1)))
        uses.append(drawn(name, token, f"Use of {link}", shares, "busy, %", "%", 104))
    first = next(iter(own.values()))
    every = first[1]["time_us"] - first[0]["time_us"] if len(first) > 1 else first[0]["time_us"]
    note = f"{link} is the switch port with the longest queue on average. A sample every {milliseconds(every)} ms"
    note += f"; a step shows the longest queue and the mean use of {per_step} samples." if per_step > 1 else "."
    return {"charts": [*queues, *uses], "note": note, "link": link}


def busiest(rows: Sequence[Row]) -> str | None:
    """Return the switch port with the longest mean queue; if all queues are empty, the most utilised port."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        total = sums.setdefault(row["link"], [0.0, 0.0])
        total[0] += row["queue_packets"]
        total[1] += row["utilisation"]
    ports = [link for link in sums if "-" in link] or list(sums)
    return max(ports, key=lambda link: (sums[link], -ports.index(link)), default=None)
