"""The report of the operating boundary: job load against background load, what the job pays and what flows save."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, row_of
from gradtide.report.run import resolved_scenario
from gradtide.report.tenants import change, saved

# Fig. 5.19 of Gao (2020). A word and a mark go with each colour: colour alone tells not everyone.
VERDICTS = {
    "green": ("✓", "free: the job pays less than 1 %"),
    "yellow": ("!", "the job pays 1 to 30 %"),
    "red": ("✕", "the job pays more than 30 %"),
    "unknown": ("?", "too little completed to say"),
}
CLASSES = ("small", "medium", "large", "all")

# A saving is shaded darker from each of these on, in percent.
SHADES = (0, 5, 10, 20, 40)


@dataclass(frozen=True)
class _Cell:
    """One cell: where it lies in the summary, its loads and figures, None for one that could not be had."""

    index: int
    name: str
    job_load: float
    traffic_load: float
    colour: str
    figures: Mapping[str, float | None]
    linked: bool

    @property
    def href(self) -> str | None:
        return f"cells/{self.name}/report.html" if self.linked else None

    @property
    def where(self) -> str:
        return f"job load {_load(self.job_load)}, background load {_load(self.traffic_load)}"

    def key(self, figure: str) -> str:
        """Return the path of a figure in the summary."""
        return f"cells.{self.index}.{figure}"


@dataclass(frozen=True)
class _Look:
    """What a cell of a map says: its class of colour, number, word below it, and all of it in a sentence."""

    cls: str
    value: str
    word: str
    words: str
    mark: str = ""


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template of an operating boundary and what it shows."""
    path = run_dir / "summary.json"
    job, model = entry(path, summary, "job", str), entry(path, summary, "model", str)
    seeds = entry(path, summary, "seeds", list)
    if not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise RunFolderError(f"{path}: key `seeds`: a list of whole numbers was expected")
    cells = [_cell(path, row, index, run_dir) for index, row in enumerate(entry(path, summary, "cells", list))]
    if not cells:
        raise RunFolderError(f"{path}: key `cells`: at least one cell was expected")
    rows = sorted({cell.job_load for cell in cells}, reverse=True)
    columns = sorted({cell.traffic_load for cell in cells})
    side = math.isqrt(3 * caps.rows)
    shown_rows, shown_columns = rows[-side:], columns[:side]
    cut = (len(shown_rows), len(shown_columns)) != (len(rows), len(columns))
    scenario_of = next((at for cell in cells for seed in seeds if (at := _run_of(run_dir, cell, seed))), None)
    several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    maps = [
        {
            **described,
            "rows": [
                {"load": _load(row), "cells": [_drawn(cells, row, column, look) for column in shown_columns]}
                for row in shown_rows
            ],
        }
        for described, look in (
            (
                {"title": "What the job pays", "note": "Change of its iteration time", "figure": "iteration"},
                _price,
            ),
            ({"title": "What small flows save", "note": "Mean completion time", "figure": "small"}, _saves("small")),
            ({"title": "What large flows save", "note": "Mean completion time", "figure": "large"}, _saves("large")),
        )
    ]
    return "boundary.html.j2", {
        "title": f"gradtide operating boundary: {pieces.clip(model, 40)}",
        "what": f"{pieces.clip(job, 30)}: {pieces.clip(model, 40)} beside its neighbours, job load against "
        f"background load, {several}",
        "reproduce": _command(scenario_of, rows, columns, seeds),
        "maps": maps,
        "columns": [_load(column) for column in shown_columns],
        "cut": f"The maps show {len(shown_rows)} of {len(rows)} job loads and {len(shown_columns)} of {len(columns)} "
        "background loads; all are in cells.csv."
        if cut
        else "",
        "missing": sum(not cell.linked for cell in cells),
        "count": len(cells),
        "colours": [
            {
                "colour": colour,
                "mark": mark,
                "words": words,
                "count": (count := sum(cell.colour == colour for cell in cells)),
                "cells": "1 cell" if count == 1 else f"{count} cells",
            }
            for colour, (mark, words) in VERDICTS.items()
            if colour != "unknown" or any(cell.colour == "unknown" for cell in cells)
        ],
        "shades": [
            {"step": step, "words": f"{low}–{high} %" if high else f"{low} % and more"}
            for step, (low, high) in enumerate(zip(SHADES, (*SHADES[1:], None), strict=True))
        ],
        "job": pieces.clip(job, 40),
        "seeds": ", ".join(map(str, seeds[:40])) + (" …" if len(seeds) > 40 else ""),
        "many_seeds": len(seeds) > 1,
        "several": several,
        "compute": [
            {"load": _load(row), "ms": pieces.ms(value)}
            for row in shown_rows
            if (value := next(c.figures["compute_ms"] for c in cells if c.job_load == row)) is not None
        ],
        "everything": _everything(cells, rows, caps),
        "scenario": None if scenario_of is None else resolved_scenario(run_dir / scenario_of, caps),
        "scenario_of": scenario_of,
    }


def _cell(path: Path, row: object, index: int, run_dir: Path) -> _Cell:
    row = row_of(path, "cells", row, index)
    name = entry(path, row, "cell", str)
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,99}", name) is None:
        raise RunFolderError(f"{path}: key `cells`: `{pieces.clip(name)}` is not a folder below it")
    colour = entry(path, row, "colour", str)
    figures = [
        "iteration_change_percent",
        "iteration_same_ms",
        "iteration_low_ms",
        *(f"{size}_saves_percent" for size in CLASSES),
    ]
    extra = ["compute_ms", *(f"{size}_flows" for size in CLASSES)]
    return _Cell(
        index,
        name,
        _number(path, row, "job_load") or 0.0,
        _number(path, row, "traffic_load") or 0.0,
        colour if colour in VERDICTS else "unknown",
        {
            **{key: _number(path, row, key) for key in figures},
            **{key: _number(path, row, key) if key in row else None for key in extra},
        },
        (run_dir / "cells" / name / "report.html").is_file(),
    )


def _number(path: Path, row: Row, key: str) -> float | None:
    value = entry(path, row, key, (int, float, type(None)))
    if value is not None and not math.isfinite(value):
        raise RunFolderError(f"{path}: key `{key}`: not a finite number")
    return None if value is None else float(value)


def _load(share: float) -> str:
    return f"{100 * share:.4g} %"


def _run_of(run_dir: Path, cell: _Cell, seed: int) -> str | None:
    """Return the folder of a cell's run below the study, if it has one."""
    name = f"cells/{cell.name}/runs/seed{seed}-same"
    return name if (run_dir / name / "scenario.resolved.toml").is_file() else None


def _command(
    scenario_of: str | None, rows: Sequence[float], columns: Sequence[float], seeds: Sequence[int]
) -> str | None:
    """Return what makes the study again; None where no scenario is left or no command line has these seeds."""
    if scenario_of is None or list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        return None
    job_loads, traffic_loads = (",".join(map(repr, loads)) for loads in (sorted(rows), columns))
    return (
        f"gradtide tenants {scenario_of}/scenario.resolved.toml --map --job-loads {job_loads} "
        f"--traffic-loads {traffic_loads} --seed {seeds[0]} --seeds {len(seeds)}"
    )


def _drawn(
    cells: Sequence[_Cell], job_load: float, traffic_load: float, look: Callable[[_Cell], tuple[str, _Look]]
) -> dict[str, Any] | None:
    """Return a cell of a map for the template; None where the study has none."""
    cell = next((c for c in cells if (c.job_load, c.traffic_load) == (job_load, traffic_load)), None)
    if cell is None:
        return None
    figure, seen = look(cell)
    return {
        "cls": seen.cls,
        "mark": seen.mark,
        "value": seen.value,
        "word": seen.word,
        "key": cell.key(figure),
        "href": cell.href,
        "label": f"{cell.where[:1].upper()}{cell.where[1:]}: {seen.words}",
    }


def _price(cell: _Cell) -> tuple[str, _Look]:
    value = change(cell.figures["iteration_change_percent"])
    mark, words = VERDICTS[cell.colour]
    sentence = f"{cell.colour}, {words}" + ("" if value == "–" else f"; iteration time {value} %")
    return "iteration_change_percent", _Look(f"verdict {cell.colour}", value, cell.colour, sentence, mark)


def _saves(size: str) -> Callable[[_Cell], tuple[str, _Look]]:
    figure = f"{size}_saves_percent"

    def look(cell: _Cell) -> tuple[str, _Look]:
        value = cell.figures[figure]
        text = saved(value)
        if value is None or text == "–":
            return figure, _Look("unknown", "–", "too few", f"too few {size} flows have ended to say")
        if text == "0.0":
            return figure, _Look("shade-0", text, "same", f"{size} flows finish at the same time")
        if value < 0:
            later = text.removeprefix("−")
            return figure, _Look("loss", text, "later", f"{size} flows take {later} % longer on average")
        step = sum(float(text) >= bound for bound in SHADES) - 1
        return figure, _Look(f"shade-{step}", text, "sooner", f"{size} flows finish {text} % sooner on average")

    return look


def _everything(cells: Sequence[_Cell], rows: Sequence[float], caps: pieces.Caps) -> dict[str, Any]:
    def figure(cell: _Cell, key: str, write: Callable[[float | None], str], cls: str = "") -> dict[str, str]:
        return pieces.cell(write(cell.figures[key]), cls, cell.key(key))

    def ms(value: float | None) -> str:
        return "–" if value is None else pieces.ms(value)

    def count(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f}".removesuffix(".0")

    def tint(value: float | None) -> str:
        return "" if value is None or abs(value) < 0.5 else "agrees" if value > 0 else "differs"

    ordered = sorted(cells, key=lambda cell: (rows.index(cell.job_load), cell.traffic_load))
    table = [
        [
            _load(cell.job_load),
            _load(cell.traffic_load),
            f"{VERDICTS[cell.colour][0]} {cell.colour}",
            figure(cell, "iteration_same_ms", ms),
            figure(cell, "iteration_low_ms", ms),
            figure(cell, "iteration_change_percent", change),
            *(
                part
                for size in CLASSES
                for part in (
                    figure(cell, f"{size}_saves_percent", saved, tint(cell.figures[f"{size}_saves_percent"])),
                    figure(cell, f"{size}_flows", count),
                )
            ),
        ]
        for cell in ordered
    ]
    columns = ["#job load", "#background", "colour", "#same, ms", "#low, ms", "#change, %"]
    columns += [part for size in CLASSES for part in (f"#{size}, %", "#flows")]
    return pieces.table("All figures of every cell", columns, table, cap=caps.rows, where="cells.csv")
