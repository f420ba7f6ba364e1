"""The report of an FSDP plan: savings of each change of settings, and one step with the plan and with the defaults."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import meshes, pieces
from gradtide.report.folder import Row, entry

NOTE = (
    "Each row is one simulation. Unit: the number of blocks whose parameters are gathered together. Forward, backward: "
    "the number of units gathered ahead in this pass. Freed: whether parameters are freed after the forward pass."
)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of an FSDP plan."""
    path = run_dir / "summary.json"
    rows: Sequence[Any] = entry(path, summary, "rows", list)
    what = (
        f"{pieces.clip(entry(path, summary, 'model', str), 40)} on {words.ranks(entry(path, summary, 'workers', int))}"
    )

    def figure(key: str, digits: int = 1) -> Any:
        return lambda row: "–" if row[key] is None else f"{row[key]:.{digits}f}"

    columns: pieces.Columns = {
        "setting": lambda row: pieces.cell(
            f"{row['name']}{', the plan' if row['chosen'] else ''}", "best" if row["chosen"] else ""
        ),
        "#unit": lambda row: str(row["unit"]),
        "#forward": lambda row: str(row["forward_prefetch"]),
        "#backward": lambda row: str(row["backward_prefetch"]),
        "freed": lambda row: "yes" if row["reshard_after_forward"] else "no",
        "#iteration, ms": figure("iteration_ms"),
        "#waits, ms": figure("waits_ms"),
        "#saves, %": figure("saves_percent"),
        "#at least, %": figure("saves_low_percent", 0),
        "#memory": meshes.memory,
    }
    advice = entry(path, summary, "plan.advice", list)
    shown = [("baseline", "torch's default", "t0"), ("plan", "the plan", "t1")]
    return "meshes.html.j2", {
        "title": f"gradtide plan: {what}",
        "what": f"plans of FSDP for {what}",
        "table": pieces.listing("Settings of fully_shard", columns, rows, cap=caps.rows, where="settings.csv"),
        "note": " ".join([NOTE, *(pieces.clip(text, 2000) for text in advice[:12])]),
        "bars": None,
        **meshes.drawn([meshes.timeline(run_dir, run, *one) for run, *one in shown[: caps.jobs]]),
    }
