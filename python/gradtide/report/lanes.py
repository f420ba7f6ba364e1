"""Timeline of a parallel job as SVG, with lanes for each class of ranks.

All ranks of a class run in lock step, so each class is drawn once: a lane (horizontal strip) for compute, and one for
each process group, which determines the colour of its blocks. A line above a block marks the critical path, and a line
below a block marks a transfer for which compute waited.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gradtide.report.folder import Row, grouped
from gradtide.report.timeline import Drawing, evenly, merged, milliseconds

AXES = ("tp", "cp", "ep", "fsdp", "dp", "pp")
"""Process groups with a colour of their own: the mesh axes. All other groups share one colour."""

MAX_LANES = 42
"""Largest number of lanes of a drawing. If there are more, some classes are drawn without their process groups."""

PASSES = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "optimizer": "update",
    "update": "update",
    "unsaid": "forward",
    "host": "host",
}
"""CSS class of each kind of compute op. The last three kinds occur only in recorded steps."""

_LEFT, _RIGHT = 122.0, 20.0
_LANE, _THIN, _GAP = 20.0, 13.0, 9.0


@dataclass(frozen=True)
class View:
    """One iteration of a parallel job, times in microseconds.

    Attributes:
        start: start of the iteration.
        end: end of the iteration.
        classes: rows of `operations.csv` by rank class.
        names: names of the rank classes.
    """

    start: float
    end: float
    classes: Mapping[int, Sequence[Row]]
    names: Mapping[int, str]

    @property
    def groups(self) -> list[str]:
        """Process groups with transfers, in the order of the mesh axes."""
        found = {row["group"] for rows in self.classes.values() for row in rows if row["group"]}
        return sorted(found, key=_place)


def _place(group: str) -> tuple[int, str]:
    return (AXES.index(group) if group in AXES else len(AXES), group)


def view(operations: Iterable[Row], names: Mapping[int, str]) -> View | None:
    """Return the first iteration in the rows of `operations.csv`; None without rows."""
    rows = [row for row in operations if row["iteration"] == 0]
    if not rows:
        return None
    start, end = min(row["start_us"] for row in rows), max(row["end_us"] for row in rows)
    return (
        View(start, end, dict(sorted(grouped(rows, lambda row: row["class"]).items())), names) if end > start else None
    )


def detailed(view: View) -> tuple[list[int], set[int]]:
    """Return the rank classes that are drawn, and those of them whose process groups have lanes.

    If all lanes would be more than `MAX_LANES`, process groups are drawn for three classes only: the first, the last,
    and the one that waits longest. The other classes are sampled evenly.
    """
    lanes = {number: 1 + len({row["group"] for row in rows if row["group"]}) for number, rows in view.classes.items()}
    numbers = list(view.classes)
    if sum(lanes.values()) <= MAX_LANES:
        return numbers, set(numbers)
    waits = {number: sum(row["exposed_us"] or 0 for row in rows) for number, rows in view.classes.items()}
    chosen: list[int] = []
    for number in (numbers[0], max(numbers, key=lambda number: waits[number]), numbers[-1]):
        if number not in chosen:
            chosen.append(number)
    room = MAX_LANES - sum(lanes[number] for number in chosen)
    rest = [number for number in numbers if number not in chosen]
    return sorted([*chosen, *(rest if len(rest) <= room else evenly(rest, max(room, 1)))]), set(chosen)


def draw(view: View, *, label: str, ident: str) -> Markup:
    """Return the drawing of an iteration; `ident` is the prefix of the ids of its elements."""
    numbers, with_groups = detailed(view)
    groups = {
        number: sorted({row["group"] for row in view.classes[number] if row["group"]}, key=_place)
        if number in with_groups
        else []
        for number in numbers
    }
    top = 40.0
    height = top + sum(_LANE + _THIN * len(groups[number]) + _GAP for number in numbers)
    drawing = Drawing(ident, view.start, view.end - view.start, _LEFT, _RIGHT)
    drawing.axis(8, top - 8, height - 4, top - 12)
    y = top
    for number in numbers:
        streams = grouped(view.classes[number], lambda row: row["group"] or "")
        with drawing.row(_says(view, number), y - 2, _LANE + _THIN * len(groups[number]) + 2):
            drawing.lane(view.names.get(number, f"class {number}"), y, _LANE, y + 14)
            for kind, shown in PASSES.items():
                _blocks(drawing, shown, [row for row in streams.get("", []) if row["kind"] == kind], y, _LANE)
            _critical(drawing, streams.get("", []), y)
            y += _LANE
            for group in groups[number]:
                drawing.text("muted small", _LEFT - 10, y + 10, group, "end")
                token = group if group in AXES else "other"
                _blocks(drawing, f"axis-{token}", streams[group], y + 2, _THIN - 4)
                late = [row for row in streams[group] if row["exposed_us"]]
                _blocks(drawing, "overdue", late, y + _THIN - 2, 2)
                _critical(drawing, streams[group], y)
                y += _THIN
        y += _GAP
    return drawing.svg(label, height, hatchings=())


def _blocks(drawing: Drawing, kind: str, rows: Sequence[Row], y: float, height: float) -> None:
    gap = 0.75 / drawing.plot * drawing.span
    for a, b in merged(rows, gap):
        drawing.block(kind, a, b, y + 1, height - 1)


def _critical(drawing: Drawing, rows: Sequence[Row], y: float) -> None:
    _blocks(drawing, "critical", [row for row in rows if row["critical"]], y - 1, 3)


def _says(view: View, number: int) -> str:
    """Return the caption of a rank class: name, compute time, and waiting time by process group."""
    rows = view.classes[number]
    busy = sum(row["end_us"] - row["start_us"] for row in rows if not row["group"])
    waits = grouped([row for row in rows if row["exposed_us"]], lambda row: row["group"])
    parts = [f"{group} {milliseconds(sum(row['exposed_us'] for row in own))} ms" for group, own in waits.items()]
    waited = f"waits for {', '.join(parts)}" if parts else "waits for no transfer"
    name = view.names.get(number, f"class {number}")
    return f"{name} · computes {milliseconds(busy)} of {milliseconds(view.end - view.start)} ms · {waited}"
