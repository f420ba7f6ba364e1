"""Progress of a job with background flows as SVG: all buckets of a few iterations, one panel per run.

The drawing follows Gao (2020), figs 5.20-5.23. All panels share one time axis. From top to bottom, a panel has the
background traffic, the job's compute and one row per bucket, with the bucket of the input layer on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from gradtide.report.folder import Row
from gradtide.report.timeline import (
    MAX_ROWS,
    WIDTH,
    Drawing,
    evenly,
    is_late,
    layers,
    merged,
    milliseconds,
    of_slowest,
    verdict,
)

MAX_ITERATIONS = 3
"""Largest number of iterations in a drawing. With more, blocks would be thinner than lines."""

_LEFT, _RIGHT = 122.0, 18.0
_LOAD_STEPS = 240


@dataclass(frozen=True)
class Panel:
    """The rows of one run's tables, and the title under which they are drawn."""

    name: str
    iterations: Sequence[Row]
    transfers: Sequence[Row]
    operations: Sequence[Row]
    flows: Sequence[Row]


def drawn_iterations(panels: Sequence[Panel]) -> int:
    """Return the number of iterations that can be drawn in all panels.

    If compute was recorded, only iterations with recorded compute count.
    """
    recorded = [len({row["iteration"] for row in p.operations if row["kind"] == "backward"}) for p in panels]
    least = min(len(p.iterations) for p in panels)
    return min([MAX_ITERATIONS, least, *(count for count in recorded if count)])


def rows_of(panels: Sequence[Panel], cap: int) -> list[tuple[int, int, int]]:
    """Return (first layer, last layer, bucket) of the buckets that get a row, the bucket of the input layer first."""
    every = sorted({(r["first_layer"], r["last_layer"], r["bucket"]) for p in panels for r in p.transfers})
    room = min(cap, MAX_ROWS)
    return every if len(every) <= room else evenly(every, room)


def draw(panels: Sequence[Panel], *, label: str, ident: str, cap: int) -> Markup | None:
    """Draw the first iterations of all panels, one panel below the other.

    Panels show the same buckets, at most `cap`. The result is None if a panel has no complete iteration, or if nothing
    is transferred.
    """
    count = drawn_iterations(panels)
    buckets = rows_of(panels, cap)
    if not count or not buckets:
        return None
    shown = [[row for row in p.iterations if row["iteration"] < count] for p in panels]
    start = min(row["start_us"] for rows in shown for row in rows)
    end = max(row["start_us"] + row["time_us"] for rows in shown for row in rows)
    if end <= start:
        return None
    loads = [_load(p.flows, start, end) for p in panels]
    peak = max((value for load in loads for value in load), default=0.0)
    pitch = 13.0 if len(buckets) <= 24 else 10.0
    lane = 20.0
    head = 40.0
    tall = head + (lane + 14 if peak else 0) + lane + 8 + pitch * len(buckets) + 18
    height = 22 + tall * len(panels)
    drawing = Drawing(ident, start, end - start, _LEFT, _RIGHT)
    x, text = drawing.x, drawing.text
    drawing.axis(10, 20, height - 4, 13)

    for number, (panel, iterations, load) in enumerate(zip(panels, shown, loads, strict=True)):
        y = 22 + tall * number
        text("strong", 0, y + 14, panel.name)
        for row in iterations:
            a, b = x(row["start_us"]), x(row["start_us"] + row["time_us"])
            drawing.path("bracket", f"M{a + 1:.1f} {y + 27:.1f}v-5H{b - 1:.1f}v5")
            words = f"iteration {row['iteration']}: {milliseconds(row['time_us'])} ms"
            text("muted", (a + b) / 2, y + 15, words if b - a > 150 else milliseconds(row["time_us"]), "middle")
        y += head
        if peak:
            text("label", _LEFT - 10, y + 10, "background", "end")
            text("muted small", _LEFT - 10, y + 24, f"{max(load):.3g} Gbit/s at most", "end")
            ground, right = y + lane + 5, WIDTH - _RIGHT
            steps = "".join(
                f"H{_LEFT + drawing.plot * i / len(load):.1f}V{ground - (lane + 5) * value / peak:.1f}"
                for i, value in enumerate(load)
            )
            drawing.path("load", f"M{_LEFT} {ground:.1f}{steps}H{right}V{ground:.1f}Z")
            y += lane + 14
        drawing.lane("compute", y, lane, y + 14)
        compute = [
            row
            for row in of_slowest(panel.operations)[1]
            if row["resource"] == "compute" and row["kind"] != "barrier" and start <= row["start_us"] < end
        ]
        gap = 0.75 / drawing.plot * (end - start)
        for (_, a), (b, _) in pairwise(merged(compute, gap)):
            drawing.block("idle exposed", a, b, y, lane, fill="exposed")
        for kind in ("forward", "backward", "update", "host"):
            for a, b in merged([row for row in compute if row["kind"] == kind], gap):
                drawing.block(kind, a, b, y, lane)
        y += lane + 8
        for i, (low, high, bucket) in enumerate(buckets):
            own = [r for r in panel.transfers if r["bucket"] == bucket and r["iteration"] < count]
            name = layers({"first_layer": low, "last_layer": high})
            _bucket(drawing, own, name, panel.name, y + i * pitch, pitch, start)
        if len(panels) > 1 and number:
            drawing.path("grid", f"M0 {22 + tall * number - 8:.1f}H{WIDTH:.0f}")
        for row in iterations:
            at, top = x(row["start_us"] + row["time_us"]), 22 + tall * number + 24
            drawing.path("turn", f"M{at:.1f} {top:.1f}V{y + pitch * len(buckets):.1f}")
    return drawing.svg(label, height, hatchings=("exposed",), more=" progress")


def _bucket(drawing: Drawing, own: Sequence[Row], name: str, panel: str, y: float, pitch: float, origin: float) -> None:
    """Draw the row of a bucket: lines from ready time to first byte, and blocks from first to last byte."""
    words = f"{panel} · {name}"
    for row in own:
        ready, start, end = (milliseconds(row[key] - origin) for key in ("ready_us", "start_us", "end_us"))
        words += f" · iteration {row['iteration']}: ready {ready}, sent {start} to {end} ms, {verdict(row)}"
    h = pitch - 3
    with drawing.row(words, y - 1, pitch):
        drawing.text("label", _LEFT - 10, y + pitch - 4, name, "end")
        for row in own:
            ready_x, start_x, end_x = (drawing.x(row[key]) for key in ("ready_us", "start_us", "end_us"))
            if start_x > ready_x:
                wide = f'width="{start_x - ready_x:.1f}" height="2"'
                drawing.add(f'<rect class="waiting" x="{ready_x:.1f}" y="{y + h / 2 - 1:.1f}" {wide}/>')
            drawing.path("ready", f"M{ready_x:.1f} {y:.1f}v{h:.1f}")
            kind = "transfer late" if is_late(row) else "transfer"
            wide = f'width="{max(end_x - start_x, 1.2):.1f}" height="{h:.1f}"'
            drawing.add(f'<rect class="{kind}" x="{start_x:.1f}" y="{y:.1f}" {wide}/>')


def _load(flows: Sequence[Row], start: float, end: float) -> list[float]:
    """Return the background traffic in Gbit/s, in `_LOAD_STEPS` equal steps from `start` to `end` in microseconds.

    The bytes of a flow are spread evenly over its completion time.
    """
    step = (end - start) / _LOAD_STEPS
    bits = [0.0] * _LOAD_STEPS
    for row in flows:
        if not row["fct_us"]:
            continue
        a, b = row["start_us"] - start, row["start_us"] + row["fct_us"] - start
        rate = 8 * row["bytes"] / (b - a)
        for i in range(max(int(a // step), 0), min(int(b // step) + 1, _LOAD_STEPS)):
            bits[i] += rate * max(min(b, (i + 1) * step) - max(a, i * step), 0)
    return [value / step / 1e3 for value in bits]
