"""The report of meshes side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import parallel, pieces
from gradtide.report.compare import inside
from gradtide.report.folder import Row, entry, number, read_json, read_table

NOTE = (
    "Each row is one simulation. Memory is of the rank that has most. MFU: model FLOPs utilisation. Behind: the "
    "fastest mesh. Waits: compute stands still for transfers or for other stages."
)


def memory(row: Row) -> dict[str, str]:
    """Return the cell with the memory that a rank needs, and whether it fits."""
    short = words.SHORT_FIT[row["feasibility"]].removeprefix(", ")
    return pieces.cell(words.size(row["memory_bytes"], 3), "differs" if short else "", small=short)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template and its context for the report of a comparison of meshes."""
    path = run_dir / "summary.json"
    rows: Sequence[Any] = entry(path, summary, "rows", list)

    def mfu(row: Row) -> str:
        return "–" if row["mfu"] is None else pieces.percent(row["mfu"])

    columns: pieces.Columns = {
        "mesh": lambda row: row["mesh"],
        "#iteration, ms": lambda row: pieces.ms(number(path, row, "iteration_time_us") / 1e3),
        "#tokens/s per GPU": lambda row: words.number(row["tokens_per_s_per_gpu"]),
        "#behind, %": lambda row: f"{row['behind_percent']:.1f}",
        "#MFU, %": mfu,
        "#waits, %": lambda row: pieces.percent(row["exposed_us"] / row["iteration_time_us"]),
        "most for": lambda row: row["waits_most_for"] or "–",
        "#memory": memory,
    }
    return "meshes.html.j2", {
        "title": f"gradtide compare: {pieces.clip(rows[0]['model'], 40)} over {len(rows)} meshes",
        "what": f"{pieces.clip(rows[0]['model'], 40)} over {len(rows)} meshes",
        "table": pieces.listing("Meshes", columns, rows, cap=caps.rows, where="meshes.csv"),
        "note": NOTE,
        "timelines": [
            timeline(run_dir, row["run"], row["mesh"], f"t{index}") for index, row in enumerate(rows[: caps.jobs])
        ],
    }


def timeline(run_dir: Path, run: str, name: str, ident: str) -> dict[str, Any]:
    """Return a step of a run, with its iteration time as the title."""
    path = inside(run_dir, "runs", run) / "summary.json"
    job = next(iter(entry(path, read_json(path), "jobs", dict).values()))
    count = len(entry(path, job, "parallel.classes", list))
    mesh = entry(path, job, "parallel.mesh", dict)
    drawn = parallel.timeline(read_table(path.parent, "operations.csv"), name, ident, count, mesh)
    return {"title": f"{name}: {pieces.ms(number(path, job, 'iteration_time_ms.mean'))} ms", "lanes": drawn}
