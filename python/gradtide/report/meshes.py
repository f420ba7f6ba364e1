"""The report of `gradtide compare --parallel`: several meshes side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import parallel, pieces
from gradtide.report.compare import inside
from gradtide.report.folder import Row, entry, number, read_json, read_table

NOTE = (
    "Each row is one simulation. Memory is that of the rank that needs most. MFU is the model FLOPs utilisation. Less "
    "throughput: the difference in tokens/s to the fastest mesh. Waits: the share of the iteration in which compute "
    "waits for transfers or for other pipeline stages. Most for: the process group that causes most of the waits."
)


def memory(row: Row) -> dict[str, str]:
    """Return the table cell with the memory that a rank needs, and a warning if it does not fit."""
    short = words.SHORT_FIT[row["feasibility"]].removeprefix(", ")
    return pieces.cell(words.size(row["memory_bytes"], 3), "differs" if short else "", small=short)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a comparison of meshes."""
    path = run_dir / "summary.json"
    rows: Sequence[Any] = entry(path, summary, "rows", list)

    # A mesh that does not fit in memory cannot be the best, however fast it is.
    runnable = [row for row in rows if row["feasibility"] != "does not fit"]
    best = min(runnable, key=lambda row: row["iteration_time_us"], default=None)

    def mfu(row: Row) -> str:
        return "–" if row["mfu"] is None else pieces.percent(row["mfu"])

    columns: pieces.Columns = {
        "mesh": lambda row: pieces.cell(row["mesh"], "best" if row is best else ""),
        "#iteration, ms": lambda row: pieces.ms(number(path, row, "iteration_time_us") / 1e3),
        "#tokens/s per GPU": lambda row: words.number(row["tokens_per_s_per_gpu"]),
        "#less throughput, %": lambda row: f"{row['behind_percent']:.1f}",
        "#memory": memory,
        "#MFU, %": mfu,
        "#waits, %": lambda row: pieces.percent(row["exposed_us"] / row["iteration_time_us"]),
        "most for": lambda row: row["waits_most_for"] or "–",
    }
    return "meshes.html.j2", {
        "title": f"gradtide compare: {pieces.clip(rows[0]['model'], 40)} over {len(rows)} meshes",
        "what": f"{pieces.clip(rows[0]['model'], 40)} over {len(rows)} meshes",
        "table": pieces.listing("Meshes", columns, rows, cap=caps.rows, where="meshes.csv"),
        "note": NOTE,
        "bars": _bars(path, rows[: caps.rows], best),
        **drawn([timeline(run_dir, row["run"], row["mesh"], f"t{at}") for at, row in enumerate(rows[: caps.jobs])]),
    }


def drawn(timelines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the template's context for timelines: the drawings and their common legend (None without drawings)."""
    found = [one["lanes"] for one in timelines if one["lanes"]]
    legend = {
        "groups": list(dict.fromkeys(group for one in found for group in one["groups"])),
        **{key: any(one[key] for one in found) for key in ("has_host", "recomputes")},
    }
    return {"timelines": timelines, "lanes": legend if found else None}


def _bars(path: Path, rows: Sequence[Row], best: Row | None) -> dict[str, Any]:
    """Return a bar per mesh, of compute and exposed communication, with the throughput next to the bar."""
    times = {"iteration_time_us": "", "compute_us": "compute", "exposed_us": "exposed"}
    known = [{key: number(path, row, key) / 1e3 for key in times} for row in rows]
    longest = max(one["iteration_time_us"] for one in known)
    bars = []
    for row, one in sorted(zip(rows, known, strict=True), key=lambda pair: pair[1]["iteration_time_us"]):
        values = {kind: one[key] for key, kind in times.items() if kind} | {"slowdown": 0.0, "barrier": 0.0}
        parts = [part for part in pieces.bar(values, longest, 85) if part["share"] > 0]
        total, rate = f"{pieces.ms(one['iteration_time_us'])} ms", words.number(row["tokens_per_s_per_gpu"])
        label = f"{row['mesh']}: {total}; " + "; ".join(part["words"] for part in parts)
        fits = words.SHORT_FIT[row["feasibility"]].removeprefix(", ")
        bar = {"name": pieces.clip(row["mesh"]), "small": f"memory: {fits}" if fits else f"{rate} tokens/s per GPU"}
        bars.append(bar | {"parts": parts, "total": total, "label": label, "best": row is best})
    legend = [pieces.meaning(kind, name) for kind, name, _ in pieces.WATERFALL if kind in ("compute", "exposed")]
    return {"rows": bars, "legend": legend}


def timeline(run_dir: Path, run: str, name: str, ident: str) -> dict[str, Any]:
    """Return the timeline of a run with its iteration time in the title."""
    path = inside(run_dir, "runs", run) / "summary.json"
    job = next(iter(entry(path, read_json(path), "jobs", dict).values()))
    count = len(entry(path, job, "parallel.classes", list))
    mesh = entry(path, job, "parallel.mesh", dict)
    drawn = parallel.timeline(read_table(path.parent, "operations.csv"), name, ident, count, mesh)
    return {"title": f"{name}: {pieces.ms(number(path, job, 'iteration_time_ms.mean'))} ms", "lanes": drawn}
