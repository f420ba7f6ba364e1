"""Maps over job load and background load, with a coloured cell per pair of loads: cost to the job, savings of flows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row, finite
from gradtide.report.tenants import VERDICTS, change, colour_of, saved

# Lower bounds of the shades of a saving, in percent.
SHADES = (0, 5, 10, 20, 40)


@dataclass(frozen=True)
class Cell:
    """A pair of loads with its figures, None if unknown. `at` is the dotted path of its row in the summary."""

    at: str
    name: str
    job_load: float
    traffic_load: float
    colour: str
    figures: Mapping[str, float | None]
    linked: bool

    @classmethod
    def of(
        cls,
        path: Path,
        row: Row,
        at: str,
        name: str,
        figures: Iterable[str],
        *,
        linked: bool = False,
    ) -> "Cell":
        """Return the cell of `row`, which is at the path `at` of the summary."""
        job_load, traffic_load = (finite(path, row, key) or 0.0 for key in ("job_load", "traffic_load"))
        found = {key: finite(path, row, key) for key in figures}
        return cls(at, name, job_load, traffic_load, colour_of(path, row), found, linked)

    @property
    def href(self) -> str | None:
        """Relative link to the report of the cell."""
        return f"cells/{self.name}/report.html" if self.linked else None

    @property
    def where(self) -> str:
        """The loads of the cell as text."""
        return f"job load {load(self.job_load)}, background load {load(self.traffic_load)}"

    def key(self, figure: str) -> str:
        """Return the dotted path of a figure of this cell in the summary."""
        return f"{self.at}.{figure}"


@dataclass(frozen=True)
class Appearance:
    """How a cell looks in a map: CSS class, number, word below the number, text on hover, and mark."""

    cls: str
    value: str
    word: str
    words: str
    mark: str = ""


Content = Callable[[Cell], tuple[str, Appearance]]
"""Function that returns, for a cell, the key of the figure that the map shows, and the cell's appearance."""


@dataclass(frozen=True)
class Axes:
    """Job loads in descending order, background loads in ascending order, and the loads that fit on the page."""

    rows: Sequence[float]
    columns: Sequence[float]
    shown_rows: Sequence[float]
    shown_columns: Sequence[float]

    @property
    def cut(self) -> str:
        """Note about the loads that do not fit on the page; empty if all fit."""
        if (len(self.shown_rows), len(self.shown_columns)) == (len(self.rows), len(self.columns)):
            return ""
        return (
            f"The maps show {len(self.shown_rows)} of {len(self.rows)} job loads and {len(self.shown_columns)} of "
            f"{len(self.columns)} background loads"
        )


def axes(cells: Sequence[Cell], caps: pieces.Caps) -> Axes:
    """Return the axes of a map of these cells."""
    rows = sorted({cell.job_load for cell in cells}, reverse=True)
    columns = sorted({cell.traffic_load for cell in cells})
    side = math.isqrt(3 * caps.rows)
    return Axes(rows, columns, rows[-side:], columns[:side])


def draw(
    on: Axes, cells: Sequence[Cell], content: Content, *, title: str, name: str = "", note: str = ""
) -> dict[str, Any]:
    """Return a map for the template; `name` is its unique name on the page."""
    rows = [
        {"load": load(row), "cells": [_drawn(cells, row, column, content) for column in on.shown_columns]}
        for row in on.shown_rows
    ]
    columns = [load(column) for column in on.shown_columns]
    return {"name": name, "title": title, "note": note, "rows": rows, "columns": columns}


def legends(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the legends of colours and of shades. Colours have their number of cells."""
    return {
        "colours": [
            {
                "colour": colour,
                "mark": mark,
                "words": words,
                "count": (count := sum(cell.colour == colour for cell in cells)),
                "cells": "1 cell" if count == 1 else f"{count} cells",
            }
            for colour, (mark, _, words) in VERDICTS.items()
            if colour not in ("unclear", "unknown") or any(cell.colour == colour for cell in cells)
        ],
        "shades": shades(),
    }


def shades() -> list[dict[str, Any]]:
    """Return the legend of the shades."""
    return [
        {"step": step, "words": f"{low}–{high} %" if high else f"{low} % and more"}
        for step, (low, high) in enumerate(zip(SHADES, (*SHADES[1:], None), strict=True))
    ]


def load(share: float) -> str:
    """Return a load as text in percent."""
    return f"{100 * share:.4g} %"


def _drawn(cells: Sequence[Cell], job_load: float, traffic_load: float, content: Content) -> dict[str, Any] | None:
    """Return the cell of a pair of loads for the template; None if the study has no such cell."""
    cell = next((c for c in cells if (c.job_load, c.traffic_load) == (job_load, traffic_load)), None)
    if cell is None:
        return None
    figure, appearance = content(cell)
    label = f"{cell.where[:1].upper()}{cell.where[1:]}: {appearance.words}"
    return {**asdict(appearance), "key": cell.key(figure), "href": cell.href, "label": label}


def price(cell: Cell) -> tuple[str, Appearance]:
    """Return key and appearance of a cell in the map of the job's change of iteration time."""
    value = change(cell.figures["iteration_change_percent"])
    mark, _, words = VERDICTS[cell.colour]
    sentence = f"{cell.colour}, {words}" + ("" if value == "–" else f"; iteration time {value} %")
    return "iteration_change_percent", Appearance(f"verdict {cell.colour}", value, cell.colour, sentence, mark)


def saves(size: str, figure: str) -> Content:
    """Return the content of a map of the mean time that flows of a size class save; `figure` is its key."""

    def content(cell: Cell) -> tuple[str, Appearance]:
        value = cell.figures[figure]
        text = saved(value)
        if value is None or text == "–":
            return figure, Appearance("unknown", "–", "too few", f"too few {size} flows completed to judge")
        if text == "0.0":
            return figure, Appearance("shade-0", text, "same", f"{size} flows finish at the same time")
        low, high = (cell.figures.get(figure.replace("_saves_", f"_saves_{end}_")) for end in ("from", "to"))
        if low is not None and high is not None and low < 0 < high:
            words = f"unclear: {size} flows finish {text} % sooner, 95 % interval {saved(low)} to {saved(high)} %"
            return figure, Appearance("unknown", text, "unclear", words)
        if value < 0:
            later = text.removeprefix("−")
            return figure, Appearance("loss", text, "later", f"{size} flows take {later} % longer on average")
        step = sum(float(text) >= bound for bound in SHADES) - 1
        return figure, Appearance(f"shade-{step}", text, "sooner", f"{size} flows finish {text} % sooner on average")

    return content
