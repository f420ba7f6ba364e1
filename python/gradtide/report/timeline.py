"""The timeline of one iteration as SVG: ready time, transfer and deadline of each gradient bucket.

From top to bottom, the drawing has the length of the iteration, a time axis, a lane (horizontal strip) each for forward
pass, backward pass and network, and a row per bucket, the bucket that is needed first on top. Colours are CSS classes
of the theme. `progress.py`, `lanes.py` and `waterfall.py` draw with `Drawing`, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup, escape

from gradtide.report.folder import Row, grouped

_T = TypeVar("_T")

WIDTH = 1080.0

COMPUTE = ("forward", "backward", "update", "host")
"""Kinds of ops in the compute lanes. Host time is drawn there because the device cannot compute meanwhile."""

MAX_ROWS = 40
"""Largest number of buckets that get a row. More rows would not be legible."""

TIGHTEST = 16
"""Number of rows, out of `MAX_ROWS`, that are reserved for the buckets with the smallest margin."""

_LEFT, _RIGHT = 122.0, 84.0
_TOLERANCE_US = 1e-5
"""Ten times the rounding error of a difference of two times, which have six decimals."""
_MERGE_PX = 0.75
"""Blocks of a drawing that are closer to each other than this, in pixels, are drawn as one block."""


class Drawing:
    """An `<svg>` element with a horizontal time axis in microseconds, and space for text on the left and right.

    `ident` is the prefix of the ids of its elements, unique in the page. With `clips`, times outside the axis are drawn
    at the ends of the axis.
    """

    def __init__(self, ident: str, start: float, span: float, left: float, right: float, clips: bool = True) -> None:
        self.left = left
        self.plot = WIDTH - left - right
        self._ident = ident
        self._start = start
        self.span = span
        self._clips = clips
        self._out: list[str] = []

    def x(self, us: float) -> float:
        """Return the x coordinate of a time in microseconds."""
        share = (us - self._start) / self.span
        if self._clips:
            share = min(max(share, 0.0), 1.0)
        return self.left + share * self.plot

    def add(self, element: str) -> None:
        """Add an element, given as SVG source."""
        self._out.append(element)

    def path(self, kind: str, places: str) -> None:
        """Add a path."""
        self.add(f'<path class="{kind}" d="{places}"/>')

    def text(self, kind: str, at: float, y: float, words: str, anchor: str = "start") -> None:
        """Add a text at a position; `anchor` is start, middle or end."""
        self.add(f'<text class="{kind}" x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def block(self, kind: str, a: float, b: float, y: float, height: float, least: float = 0.6, fill: str = "") -> None:
        """Add a block from time `a` to `b` in us, at least `least` units wide; `fill` is the name of a hatching."""
        paint = f' fill="url(#{self._ident}-{fill})"' if fill else ""
        wide = max(self.x(b) - self.x(a), least)
        self.add(
            f'<rect class="{kind}"{paint} x="{self.x(a):.2f}" y="{y:.1f}" width="{wide:.2f}" height="{height:.1f}"/>'
        )

    def lane(self, name: str, y: float, height: float, words_y: float) -> None:
        """Add the background of a lane over the whole axis, and the name of the lane."""
        self.text("label", self.left - 10, words_y, name, "end")
        self.add(f'<rect class="lane" x="{self.left}" y="{y:.1f}" width="{self.plot}" height="{height:.1f}"/>')

    def axis(self, count: int, top: float, bottom: float, words_y: float) -> None:
        """Add about `count` vertical lines at round milliseconds since the start, from `top` to `bottom`."""
        for tick in ticks(self.span / 1e3, count):
            at = self.x(self._start + tick * 1e3)
            self.path("grid", f"M{at:.1f} {top}V{bottom:.1f}")
            self.text("tick", at, words_y, f"{tick:g}", "middle")
        self.text("tick", self.left - 10, words_y, "ms", "end")

    @contextmanager
    def row(self, words: str, y: float, height: float) -> Iterator[None]:
        """Group the elements that are added in the context into a row, which shows `words` on hover."""
        self.add(f'<g class="row" data-readout="{escape(words)}">')
        self.add(f'<rect class="hit" x="0" y="{y:.1f}" width="{WIDTH}" height="{height:.1f}"/>')
        yield
        self.add("</g>")

    def svg(
        self, label: str, height: float, hatchings: Sequence[str] = ("exposed", "barrier"), more: str = ""
    ) -> Markup:
        """Return the element; `label` is its description for screen readers."""
        angles = {"exposed": 45, "barrier": -45}
        patterns = "".join(
            f'<pattern id="{self._ident}-{cause}" class="{cause}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({angles[cause]})"><rect width="7" height="7"/><path d="M0 0V7"/></pattern>'
            for cause in hatchings
        )
        return Markup(
            f'<svg class="timeline{more}" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
            f'aria-label="{escape(label)}"><defs>{patterns}</defs>{"".join(self._out)}</svg>'
        )


def ticks(end: float, count: int) -> list[float]:
    """Return about `count` round numbers from 0 to `end`."""
    step = 10.0 ** int(f"{end / count:e}".split("e")[1])
    step *= next(m for m in (1, 2, 5, 10) if step * m * count >= end * 0.999 or m == 10)
    return [i * step for i in range(4 * count) if i * step <= end * (1 + 1e-12)]


@dataclass(frozen=True)
class Idle:
    """An interval in microseconds in which compute is idle; `cause` is `exposed` or `barrier`."""

    start: float
    end: float
    cause: str


@dataclass
class Window:
    """The content of a drawing, with times in microseconds of simulated time; `turn` is the end of the iteration."""

    start: float
    turn: float
    end: float
    compute: list[Row] = field(default_factory=list)
    network: list[Row] = field(default_factory=list)
    transfers: list[Row] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    worker: int | None = None
    """The worker whose compute is shown; None if all workers are identical."""
    in_step: bool = True
    """Whether all workers begin an iteration at the same time."""

    @property
    def span_ms(self) -> float:
        """Length of the window in milliseconds."""
        return (self.end - self.start) / 1e3

    def idle_ms(self, cause: str) -> float:
        """Return the idle compute time due to `cause` in ms. Waiting in the next forward pass is not included."""
        return sum(x.end - x.start for x in self.idle if x.cause == cause and x.end <= self.turn + 1e-3) / 1e3


def of_slowest(operations: Iterable[Row]) -> tuple[int | None, list[Row]]:
    """Return the worker that computes longest, and the rows of this worker, from the rows of one job.

    If all workers are identical, rows have no worker; the result is then None and all rows.
    """
    rows = list(operations)
    spent: dict[int, float] = {}
    for row in rows:
        if row.get("worker") is not None and row["resource"] == "compute" and row["kind"] != "barrier":
            spent[row["worker"]] = spent.get(row["worker"], 0.0) + row["end_us"] - row["start_us"]
    if not spent:
        return None, rows
    slowest = max(sorted(spent), key=lambda worker: spent[worker])
    return slowest, [row for row in rows if row.get("worker") in (None, slowest)]


def window(operations: Iterable[Row], transfers: Iterable[Row]) -> Window | None:
    """Return one iteration and the next forward pass, which uses its gradients, from the rows of one job.

    The iteration is the first recorded one that has both passes; the result is None if no operation was recorded. If no
    iteration has both passes, the result is the first backward pass and the forward pass that uses its gradients. This
    can happen on the packet engine, where a job begins with a backward pass.

    If workers differ, the compute of the slowest is shown. If iterations begin with pulls from parameter servers, the
    window extends from the first pull to the last update, and contains the pulls of the slowest worker.
    """
    worker, operations = of_slowest(operations)
    rows = sorted(operations, key=lambda row: (row["start_us"], row["end_us"]))
    passes = [row for row in rows if row["kind"] in COMPUTE]
    if not passes:
        return None
    labels = {kind: {row["iteration"] for row in passes if row["kind"] == kind} for kind in ("forward", "backward")}
    whole = labels["forward"] & labels["backward"]
    first = min(whole or {row["iteration"] for row in passes})
    following = [row for row in passes if row["iteration"] == first + 1 and row["kind"] == "forward"]
    start = min(row["start_us"] for row in passes if row["iteration"] == first)
    end = max(row["end_us"] for row in following or passes)
    turn = min((row["start_us"] for row in following), default=end)
    if not whole and first in labels["backward"]:
        turn = end
    if end <= start:
        return None
    inside = [row for row in rows if row["end_us"] > start and row["start_us"] < end]
    own = [row for row in transfers if row["iteration"] == first]
    if any(row.get("direction") for row in own):
        own = [row for row in own if row["worker"] == worker]
        start = min(row["ready_us"] for row in own)
        turn = end = max(*(row["needed_us"] for row in own), *(r["end_us"] for r in passes if r["iteration"] == first))
        inside = [row for row in rows if row["iteration"] == first]
        own = [row for row in own if row["direction"] == "pull"]
    found = Window(start, turn, end, transfers=sorted(own, key=lambda row: row["first_layer"]), worker=worker)
    pulls = (row for row in transfers if row.get("direction") == "pull")
    # If workers are synchronous, all their pulls of an iteration are ready at the same time.
    found.in_step = len({(row["iteration"], row["ready_us"]) for row in pulls}) <= len(
        {row["iteration"] for row in transfers}
    )
    found.compute = [row for row in inside if row["kind"] in COMPUTE]
    found.network = [row for row in inside if row["resource"] == "network"]
    found.idle = _idle(found)
    return found


def _idle(view: Window) -> list[Idle]:
    """Return the idle times of compute: exposed until the layer's gradient arrives, barrier from then on.

    In a job that pulls from parameter servers, idle time before an op is exposed, because ops wait only for pulls. The
    barrier is then at the end of the iteration.
    """
    ends: dict[tuple[int, int], float] = {}
    for row in view.network:
        key = row["iteration"], row["index"]
        ends[key] = max(ends.get(key, row["end_us"]), row["end_us"])
    is_pulled = any(bucket.get("direction") for bucket in view.transfers)
    idle: list[Idle] = []
    before = view.start
    for row in view.compute:
        start = row["start_us"]
        if start > before + _TOLERANCE_US:
            arrived = before
            for bucket in view.transfers:
                if bucket["first_layer"] <= row["index"] <= bucket["last_layer"]:
                    arrived = ends.get((row["iteration"] - 1, bucket["bucket"]), before)
            arrived = min(max(arrived, before), start)
            if row["kind"] != "forward" or is_pulled:
                arrived = start
            for a, b, cause in ((before, arrived, "exposed"), (arrived, start, "barrier")):
                if b > a + _TOLERANCE_US:
                    idle.append(Idle(a, b, cause))
        before = max(before, row["end_us"])
    if is_pulled and view.turn > before + _TOLERANCE_US:
        idle.append(Idle(before, view.turn, "barrier"))
    return idle


def milliseconds(us: float) -> str:
    """Return a time in ms as text with 1 to 3 decimals, fewer for long times, and a true minus sign."""
    ms = us / 1e3
    digits = 1 if abs(ms) >= 10 else 2 if abs(ms) >= 1 else 3
    text = f"{ms:.{digits}f}"
    return text.replace("-", "−") if float(text) else "0"


def size(count: float) -> str:
    """Return a number of bytes as text with a decimal prefix."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def layers(row: Row) -> str:
    """Return the layers of a bucket by their indices, as in `layers 10–37`."""
    if row["first_layer"] == row["last_layer"]:
        return f"layer {row['first_layer']}"
    return f"layers {row['first_layer']}–{row['last_layer']}"


def chosen(transfers: Sequence[Row]) -> list[Row]:
    """Return the buckets that get a row, ordered by first layer.

    Of more than `MAX_ROWS` buckets, these are the `TIGHTEST` with the smallest margin, and an even sample of the
    others.
    """
    if len(transfers) <= MAX_ROWS:
        return list(transfers)
    tightest = sorted(transfers, key=lambda row: (row["margin_us"], row["first_layer"]))
    kept, rest = tightest[:TIGHTEST], sorted(tightest[TIGHTEST:], key=lambda row: row["first_layer"])
    return sorted([*kept, *evenly(rest, MAX_ROWS - TIGHTEST)], key=lambda row: row["first_layer"])


def evenly(rows: Sequence[_T], count: int) -> list[_T]:
    """Return `count` evenly spaced rows, including the first and the last."""
    return [rows[i * (len(rows) - 1) // max(count - 1, 1)] for i in range(count)]


def draw(view: Window, *, label: str, ident: str, span_ms: float | None = None) -> Markup:
    """Draw a window. `span_ms` is the length of the time axis; default: the length of the window."""
    span = (span_ms or view.span_ms) * 1e3
    rows = chosen(view.transfers)
    pitch = 21.0 if len(rows) <= 24 else 15.0
    top_compute, lane = 46.0, 24.0
    top_network = top_compute + 2 * lane + 6
    top_rows = top_network + (lane + 24 if rows else lane)
    height = top_rows + pitch * len(rows) + 8
    drawing = Drawing(ident, view.start, span, _LEFT, _RIGHT, clips=False)
    x, text, block = drawing.x, drawing.text, drawing.block
    gap = _MERGE_PX / drawing.plot * span

    # Draw the time axis, with the length of the iteration above it.
    drawing.axis(8, top_compute - 8, height - 4, top_compute - 12)
    turn = x(view.turn)
    drawing.path("bracket", f"M{x(view.start):.1f} 19v-5H{turn:.1f}v5")
    text("strong", (x(view.start) + turn) / 2, 10, f"iteration {milliseconds(view.turn - view.start)} ms", "middle")
    if x(view.end) - turn > 80:
        text("muted", (turn + x(view.end)) / 2, 10, "next forward", "middle")

    # Draw each pass as a block, with separators between layers that are wide enough.
    for name, y in (("forward", top_compute), ("backward", top_compute + lane)):
        drawing.lane(name, y + 1, lane - 2, y + 15)
    if view.worker is not None:
        text("muted", 0, 10, f"worker {view.worker}, the slowest")
    for idle in view.idle:
        if x(idle.end) - x(idle.start) >= 0.2:
            kind = f"idle {idle.cause}"
            block(kind, idle.start, idle.end, top_compute + 1, 2 * lane - 2, least=1, fill=idle.cause)
    for row in view.compute:
        if row["kind"] == "host" and x(row["end_us"]) - x(row["start_us"]) >= 0.2:
            block("host", row["start_us"], row["end_us"], top_compute + lane / 2, lane, least=0)
    for kind in ("forward", "backward", "update"):
        own = [row for row in view.compute if row["kind"] == kind]
        y = top_compute + (0 if kind == "forward" else lane)
        for a, b in merged(own, gap):
            block(kind, a, b, y + 1, lane - 2)
        _edges(drawing, [row["end_us"] for row in own if _is_wide(drawing, row)], y, lane)
    _idle_labels(view, drawing, top_compute, lane)

    # Network: the transfers of all buckets.
    drawing.lane("network", top_network + 1, lane - 2, top_network + 15)
    first = min((row["iteration"] for row in view.compute), default=0)
    for kind, own in (
        ("transfer old", [row for row in view.network if row["iteration"] < first]),
        ("transfer", [row for row in view.network if row["iteration"] >= first]),
    ):
        for a, b in merged(own, gap):
            block(kind, max(a, view.start), min(b, view.end), top_network + 1, lane - 2)
    starts = [max(row["start_us"], view.start) for row in view.network if _is_wide(drawing, row)]
    _edges(drawing, starts, top_network, lane)

    # Buckets.
    if rows:
        text("muted", _LEFT - 10, top_rows - 6, "urgent first", "end")
        text("muted", WIDTH - _RIGHT + 10, top_rows - 6, "margin, ms")
    pulls = (row for row in view.network if row["kind"] != "push")
    sent = grouped(pulls, lambda row: (row["iteration"], row["index"]))
    for i, row in enumerate(rows):
        y, h = top_rows + i * pitch, pitch - 5
        with drawing.row(describe(row, view.start), y - 2, pitch):
            text("label", _LEFT - 10, y + h / 2 + 4, layers(row), "end")
            ready, needed, end = row["ready_us"], row["needed_us"], row["end_us"]
            if needed > ready:
                block("slack", ready, needed, y, h)
            if is_late(row):
                block("overdue", max(needed, ready), end, y + h / 2 - 1.5, 3)
            for old in sent.get((first - 1, row["bucket"]), []):
                block("transfer old", max(old["start_us"], view.start), old["end_us"], y + 1.5, h - 3)
            parts = sent.get((row["iteration"], row["bucket"])) or [{"start_us": row["start_us"], "end_us": end}]
            for a, b in merged(parts, gap):
                kind = "transfer late" if is_late(row) else "transfer"
                block(kind, a, min(b, view.end), y + 1.5, h - 3, least=1.5)
            drawing.path("needed", f"M{x(needed):.1f} {y - 1:.1f}v{h + 2:.1f}")
            mark = "late" if is_late(row) else "label"
            text(mark, WIDTH - _RIGHT + 72, y + h / 2 + 4, milliseconds(row["margin_us"]), "end")
    drawing.path("turn", f"M{turn:.1f} 22V{height - 4:.1f}")
    return drawing.svg(label, height)


def _is_wide(drawing: Drawing, row: Row) -> bool:
    return drawing.x(row["end_us"]) - drawing.x(row["start_us"]) >= 3


def _edges(drawing: Drawing, times: Sequence[float], y: float, lane: float) -> None:
    if times:
        drawing.path("edge", "".join(f"M{drawing.x(time):.1f} {y + 1:.0f}v{lane - 2:.0f}" for time in times))


def merged(rows: Sequence[Row], gap: float) -> list[tuple[float, float]]:
    """Return (start, end) of the rows in microseconds; rows that are at most `gap` apart are merged."""
    spans: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: row["start_us"]):
        if spans and row["start_us"] - spans[-1][1] <= gap:
            spans[-1] = (spans[-1][0], max(spans[-1][1], row["end_us"]))
        else:
            spans.append((row["start_us"], row["end_us"]))
    return spans


def _idle_labels(view: Window, drawing: Drawing, top: float, lane: float) -> None:
    """Label the longest wait of each cause, inside the wait if it is wide enough, else next to it."""
    x, text = drawing.x, drawing.text
    words = {"exposed": "waits for network", "barrier": "waits at barrier"}
    for cause in words:
        idle = max((i for i in view.idle if i.cause == cause), key=lambda i: i.end - i.start, default=None)
        if idle is None or x(idle.end) - x(idle.start) < 1:
            continue
        says = f"{words[cause]} {milliseconds(idle.end - idle.start)} ms"
        wide = 6.3 * len(says) + 8
        span, middle = x(idle.end) - x(idle.start), (x(idle.start) + x(idle.end)) / 2
        # A wait in this iteration follows the backward pass. The forward lane is empty to the left of the wait, so the
        # label fits there, unless another wait ends where this wait starts.
        backward = [r["start_us"] for r in view.compute if r["kind"] == "backward"]
        follows = any(abs(i.end - idle.start) < 1 for i in view.idle)
        free = idle.end < view.turn + 1 and bool(backward) and x(min(backward)) + wide < x(idle.start)
        if span > wide:
            text(f"idle-label inside {cause}", middle, top + lane + 4, says, "middle")
        elif free and not follows:
            text(f"idle-label {cause}", x(idle.start) - 6, top + 16, says, "end")
        elif span > 66:
            text(f"idle-label inside {cause}", middle, top + lane - 4, words[cause].split()[-1], "middle")
            text(f"idle-label inside {cause}", middle, top + lane + 12, says.split(maxsplit=3)[-1], "middle")


def describe(row: Row, origin: float) -> str:
    """Describe a transfer in words, with times relative to `origin`, the start of the iteration."""
    ready, start, end, needed = (milliseconds(row[k] - origin) for k in ("ready_us", "start_us", "end_us", "needed_us"))
    return (
        f"Bucket {row['bucket']} · {layers(row)} · {size(row['bytes'])} · ready {ready} · "
        f"sent {start} to {end} · needed {needed} ms · slack {milliseconds(row['slack_us'])} ms · {verdict(row)}"
    )


def is_late(row: Row) -> bool:
    """Return whether a transfer arrives after its deadline."""
    return bool(row["margin_us"] < -_TOLERANCE_US)


def verdict(row: Row) -> str:
    """Return the margin of a transfer as text, as in `2.1 ms late`."""
    return f"{milliseconds(abs(row['margin_us']))} ms {'late' if is_late(row) else 'to spare'}"
