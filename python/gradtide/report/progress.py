"""The progress of a job beside background flows as SVG: every bucket of a few iterations, one panel per band.

After Gao (2020), figs 5.20-5.23. The panels share one time axis, so that they can be compared. Each shows, from top to
bottom: the background traffic, the job's compute, and one row per bucket, with the input side on top.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from gradtide.report.folder import Row
from gradtide.report.timeline import MAX_ROWS, layers, merged, milliseconds, of_slowest, ticks

MAX_ITERATIONS = 3
"""Iterations drawn; in more of them a block is thinner than a line."""

_WIDTH, _LEFT, _RIGHT = 1080.0, 122.0, 18.0
_PLOT = _WIDTH - _LEFT - _RIGHT
_TOLERANCE_US = 1e-5  # times are written with six decimals; two of them may each be off by half a unit
_LOAD_STEPS = 240


@dataclass(frozen=True)
class Panel:
    """One run: its tables, and what it is called."""

    name: str
    iterations: Sequence[Row]
    transfers: Sequence[Row]
    operations: Sequence[Row]
    flows: Sequence[Row]


def drawn_iterations(panels: Sequence[Panel]) -> int:
    """Return how many iterations all panels can show: those with recorded compute, where any has."""
    recorded = [len({row["iteration"] for row in p.operations if row["kind"] == "backward"}) for p in panels]
    least = min(len(p.iterations) for p in panels)
    return min([MAX_ITERATIONS, least, *(count for count in recorded if count)])


def rows_of(panels: Sequence[Panel], cap: int) -> list[tuple[int, int, int]]:
    """Return first layer, last layer and number of the buckets that get a row, input side first."""
    every = sorted({(r["first_layer"], r["last_layer"], r["bucket"]) for p in panels for r in p.transfers})
    room = min(cap, MAX_ROWS)
    return every if len(every) <= room else [every[i * (len(every) - 1) // max(room - 1, 1)] for i in range(room)]


def draw(panels: Sequence[Panel], *, label: str, ident: str, cap: int) -> Markup | None:
    """Draw the first iterations of every panel under each other.

    Args:
        panels: runs of one job; every one has the same buckets.
        label: what the drawing shows, for readers who do not see it.
        ident: prefix of the ids in the drawing, unique in the page.
        cap: rows of buckets in each panel.

    Returns:
        One `<svg>` element; None where there is no whole iteration or nothing is sent.
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
    out: list[str] = []

    def x(us: float) -> float:
        share: float = (min(max(us, start), end) - start) / (end - start)
        return _LEFT + share * _PLOT

    def rect(kind: str, a: float, b: float, y: float, h: float, least: float = 0.6) -> None:
        wide = max(x(b) - x(a), least)
        out.append(f'<rect class="{kind}" x="{x(a):.2f}" y="{y:.1f}" width="{wide:.2f}" height="{h:.1f}"/>')

    def text(kind: str, at: float, y: float, words: str, anchor: str = "start") -> None:
        out.append(f'<text class="{kind}" x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    for tick in ticks(0, (end - start) / 1e3, 10):
        at = x(start + tick * 1e3)
        out.append(f'<path class="grid" d="M{at:.1f} 20V{height - 4:.1f}"/>')
        text("tick", at, 13, f"{tick:g}", "middle")
    text("tick", _LEFT - 10, 13, "ms", "end")

    for number, (panel, iterations, load) in enumerate(zip(panels, shown, loads, strict=True)):
        y = 22 + tall * number
        text("strong", 0, y + 14, panel.name)
        for row in iterations:
            a, b = x(row["start_us"]), x(row["start_us"] + row["time_us"])
            out.append(f'<path class="bracket" d="M{a + 1:.1f} {y + 27:.1f}v-5H{b - 1:.1f}v5"/>')
            words = f"iteration {row['iteration']}: {milliseconds(row['time_us'])} ms"
            text("muted", (a + b) / 2, y + 15, words if b - a > 150 else milliseconds(row["time_us"]), "middle")
        y += head
        if peak:
            text("label", _LEFT - 10, y + 10, "background", "end")
            text("muted small", _LEFT - 10, y + 24, f"{max(load):.3g} Gbit/s at most", "end")
            points = "".join(
                f"H{_LEFT + _PLOT * i / len(load):.1f}V{y + lane + 5 - (lane + 5) * value / peak:.1f}"
                for i, value in enumerate(load)
            )
            out.append(
                f'<path class="load" d="M{_LEFT} {y + lane + 5:.1f}{points}H{_LEFT + _PLOT}V{y + lane + 5:.1f}Z"/>'
            )
            y += lane + 14
        text("label", _LEFT - 10, y + 14, "compute", "end")
        out.append(f'<rect class="lane" x="{_LEFT}" y="{y:.1f}" width="{_PLOT}" height="{lane:.1f}"/>')
        compute = [
            row
            for row in of_slowest(panel.operations)[1]
            if row["resource"] == "compute" and row["kind"] != "barrier" and start <= row["start_us"] < end
        ]
        gap = 0.75 / _PLOT * (end - start)
        busy = merged(compute, gap)
        for (_, a), (b, _) in pairwise(busy):
            fill = f'fill="url(#{ident}-exposed)"'
            out.append(
                f'<rect class="idle exposed" {fill} x="{x(a):.2f}" y="{y:.1f}" width="{x(b) - x(a):.2f}" '
                f'height="{lane:.1f}"/>'
            )
        for kind in ("forward", "backward", "update"):
            for a, b in merged([row for row in compute if row["kind"] == kind], gap):
                rect(kind, a, b, y, lane)
        y += lane + 8
        for i, (low, high, bucket) in enumerate(buckets):
            own = [r for r in panel.transfers if r["bucket"] == bucket and r["iteration"] < count]
            _bucket(own, (low, high), panel.name, y + i * pitch, pitch, start, out, x)
        if len(panels) > 1 and number:
            out.append(f'<path class="grid" d="M0 {22 + tall * number - 8:.1f}H{_WIDTH:.0f}"/>')
        for row in iterations:
            at = x(row["start_us"] + row["time_us"])
            top = 22 + tall * number + 24
            out.append(f'<path class="turn" d="M{at:.1f} {top:.1f}V{y + pitch * len(buckets):.1f}"/>')
    pattern = (
        f'<pattern id="{ident}-exposed" class="exposed" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="7" height="7"/><path d="M0 0V7"/></pattern>'
    )
    return Markup(
        f'<svg class="timeline progress" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}"><defs>{pattern}</defs>{"".join(out)}</svg>'
    )


def _bucket(
    own: Sequence[Row],
    span: tuple[int, int],
    panel: str,
    y: float,
    pitch: float,
    origin: float,
    out: list[str],
    x: Callable[[float], float],
) -> None:
    """Draw the row of one bucket: from ready to sent as a line, from the first byte to the last as a block."""
    words = f"{panel} · {layers({'first_layer': span[0], 'last_layer': span[1]})}"
    for row in own:
        words += f" · iteration {row['iteration']}: {_sentence(row, origin)}"
    out.append(f'<g class="row" data-readout="{escape(words)}">')
    out.append(f'<rect class="hit" x="0" y="{y - 1:.1f}" width="{_WIDTH:.0f}" height="{pitch:.1f}"/>')
    name = layers({"first_layer": span[0], "last_layer": span[1]})
    out.append(f'<text class="label" x="{_LEFT - 10:.0f}" y="{y + pitch - 4:.1f}" text-anchor="end">{name}</text>')
    h = pitch - 3
    for row in own:
        ready, start, end = x(row["ready_us"]), x(row["start_us"]), x(row["end_us"])
        late = row["margin_us"] < -_TOLERANCE_US
        if start > ready:
            out.append(
                f'<rect class="waiting" x="{ready:.1f}" y="{y + h / 2 - 1:.1f}" width="{start - ready:.1f}" '
                'height="2"/>'
            )
        out.append(f'<path class="ready" d="M{ready:.1f} {y:.1f}v{h:.1f}"/>')
        kind = "transfer late" if late else "transfer"
        out.append(
            f'<rect class="{kind}" x="{start:.1f}" y="{y:.1f}" width="{max(end - start, 1.2):.1f}" height="{h:.1f}"/>'
        )
    out.append("</g>")


def _sentence(row: Row, origin: float) -> str:
    ready, start, end = (milliseconds(row[k] - origin) for k in ("ready_us", "start_us", "end_us"))
    margin = milliseconds(abs(row["margin_us"]))
    verdict = f"{margin} ms late" if row["margin_us"] < -_TOLERANCE_US else f"{margin} ms to spare"
    return f"ready {ready}, sent {start} to {end} ms, {verdict}"


def _load(flows: Sequence[Row], start: float, end: float) -> list[float]:
    """Return the background traffic in Gbit/s in equal steps of time. The bytes of a flow are spread evenly over it."""
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
