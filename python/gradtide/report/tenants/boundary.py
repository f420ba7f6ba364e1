"""The report of `gradtide tenants map`: cost to the job and savings of flows, over job load and background load."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import fct
from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, row_of
from gradtide.report.run import resolved_scenario
from gradtide.report.tenants import VERDICTS, Head, change, count, maps, maybe, saved, tint

FIGURES = (
    "iteration_change_percent",
    "iteration_same_ms",
    "iteration_low_ms",
    *(f"{size}_saves_percent" for size in fct.CLASSES),
    "compute_ms",
    "small_saves_from_percent",
    "small_saves_to_percent",
    *(f"{size}_flows" for size in fct.CLASSES),
)

MAPS = (
    ("iteration", "What the job pays", "Change of its iteration time", maps.price),
    ("small", "What small flows save", "Mean completion time", maps.saves("small", "small_saves_percent")),
    ("large", "What large flows save", "Mean completion time", maps.saves("large", "large_saves_percent")),
)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of the map."""
    path = run_dir / "summary.json"
    head = Head.of(path, summary)
    seeds = head.seeds
    cells = [_cell(path, row, index, run_dir) for index, row in enumerate(entry(path, summary, "cells", list))]
    if not cells:
        raise RunFolderError(f"{path}: key `cells`: at least one cell was expected")
    on = maps.axes(cells, caps)
    runs = (f"cells/{cell.name}/runs/seed{seed}-same" for cell in cells for seed in seeds)
    scenario_of = next((run for run in runs if (run_dir / run / "scenario.resolved.toml").is_file()), None)
    return "boundary.html.j2", {
        "title": f"gradtide operating boundary: {head.model}",
        "what": f"{head.subject}, job load against background load, {head.several}",
        "reproduce": _command(scenario_of, on.rows, on.columns, seeds),
        "maps": [
            maps.draw(on, cells, content, name=name, title=title, note=note) for name, title, note, content in MAPS
        ],
        "cut": f"{on.cut}; all are in cells.csv." if on.cut else "",
        "missing": sum(not cell.linked for cell in cells),
        "count": len(cells),
        **maps.legends(cells),
        "job": pieces.clip(head.job, 40),
        "seeds": ", ".join(map(str, seeds[:40])) + (" …" if len(seeds) > 40 else ""),
        "many_seeds": len(seeds) > 1,
        "several": head.several,
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
    is_linked = (run_dir / "cells" / name / "report.html").is_file()
    return maps.Cell.of(path, row, f"cells.{index}", name, FIGURES, linked=is_linked)


def _command(
    scenario_of: str | None, rows: Sequence[float], columns: Sequence[float], seeds: Sequence[int]
) -> str | None:
    """Return the command that repeats the study; None if no scenario was saved, or the seeds are not consecutive."""
    if scenario_of is None or list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        return None
    job_loads, traffic_loads = (",".join(map(repr, loads)) for loads in (sorted(rows), columns))
    return (
        f"gradtide tenants map {scenario_of}/scenario.resolved.toml --job-loads {job_loads} "
        f"--traffic-loads {traffic_loads} --seed {seeds[0]} --seeds {len(seeds)}"
    )


def _everything(cells: Sequence[maps.Cell], rows: Sequence[float], caps: pieces.Caps) -> dict[str, Any]:
    table = []
    for one in sorted(cells, key=lambda cell: (rows.index(cell.job_load), cell.traffic_load)):
        texts = {
            "iteration_same_ms": (maybe, ""),
            "iteration_low_ms": (maybe, ""),
            "iteration_change_percent": (change, ""),
        }
        for size in fct.CLASSES:
            key = f"{size}_saves_percent"
            texts |= {key: (saved, tint(one.figures[key])), f"{size}_flows": (count, "")}
        loads = [maps.load(one.job_load), maps.load(one.traffic_load), f"{VERDICTS[one.colour].mark} {one.colour}"]
        figures = [pieces.cell(write(one.figures[key]), cls, one.key(key)) for key, (write, cls) in texts.items()]
        table.append([*loads, *figures])
    columns = ["#job load", "#background", "colour", "#same, ms", "#low, ms", "#change, %"]
    columns += [part for size in fct.CLASSES for part in (f"#{size}, %", "#flows")]
    return pieces.table("All figures of every cell", columns, table, cap=caps.rows, where="cells.csv")
