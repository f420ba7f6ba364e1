"""The report of the operating boundary: job load against background load, what the job pays and what flows save."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, finite, row_of
from gradtide.report.run import resolved_scenario
from gradtide.report.tenants import maps
from gradtide.report.tenants.bands import change, saved

CLASSES = ("small", "medium", "large", "all")


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
    on = maps.axes(cells, caps)
    scenario_of = next((at for cell in cells for seed in seeds if (at := _run_of(run_dir, cell, seed))), None)
    several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    drawn = [
        maps.draw(on, cells, look, name=name, title=title, note=note)
        for name, title, note, look in (
            ("iteration", "What the job pays", "Change of its iteration time", maps.price),
            ("small", "What small flows save", "Mean completion time", maps.saves("small", "small_saves_percent")),
            ("large", "What large flows save", "Mean completion time", maps.saves("large", "large_saves_percent")),
        )
    ]
    return "boundary.html.j2", {
        "title": f"gradtide operating boundary: {pieces.clip(model, 40)}",
        "what": f"{pieces.clip(job, 30)}: {pieces.clip(model, 40)} beside background flows, job load against "
        f"background load, {several}",
        "reproduce": _command(scenario_of, on.rows, on.columns, seeds),
        "maps": drawn,
        "cut": f"{on.cut}; all are in cells.csv." if on.cut else "",
        "missing": sum(not cell.linked for cell in cells),
        "count": len(cells),
        **maps.legends(cells),
        "job": pieces.clip(job, 40),
        "seeds": ", ".join(map(str, seeds[:40])) + (" …" if len(seeds) > 40 else ""),
        "many_seeds": len(seeds) > 1,
        "several": several,
        "compute": [
            {"load": maps.load(row), "ms": pieces.ms(value)}
            for row in on.shown_rows
            if (value := next(c.figures["compute_ms"] for c in cells if c.job_load == row)) is not None
        ],
        "everything": _everything(cells, on.rows, caps),
        "scenario": None if scenario_of is None else resolved_scenario(run_dir / scenario_of, caps),
        "scenario_of": scenario_of,
    }


def _cell(path: Path, row: object, index: int, run_dir: Path) -> maps.Cell:
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
    extra = ["compute_ms", "small_saves_from_percent", "small_saves_to_percent", *(f"{size}_flows" for size in CLASSES)]
    return maps.Cell(
        f"cells.{index}",
        name,
        finite(path, row, "job_load") or 0.0,
        finite(path, row, "traffic_load") or 0.0,
        colour if colour in maps.VERDICTS else "unknown",
        {
            **{key: finite(path, row, key) for key in figures},
            **{key: finite(path, row, key) if key in row else None for key in extra},
        },
        (run_dir / "cells" / name / "report.html").is_file(),
    )


def _run_of(run_dir: Path, cell: maps.Cell, seed: int) -> str | None:
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
        f"gradtide tenants map {scenario_of}/scenario.resolved.toml --job-loads {job_loads} "
        f"--traffic-loads {traffic_loads} --seed {seeds[0]} --seeds {len(seeds)}"
    )


def _everything(cells: Sequence[maps.Cell], rows: Sequence[float], caps: pieces.Caps) -> dict[str, Any]:
    def figure(cell: maps.Cell, key: str, write: Callable[[float | None], str], cls: str = "") -> dict[str, str]:
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
            maps.load(cell.job_load),
            maps.load(cell.traffic_load),
            f"{maps.VERDICTS[cell.colour][0]} {cell.colour}",
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
