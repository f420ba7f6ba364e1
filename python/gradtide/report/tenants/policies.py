"""The report of `gradtide tenants policies`: cost of each policy to the job, against savings of the flows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, RunFolderError, entry, finite, row_of
from gradtide.report.tenants import Head, change, maps, saved

ENDS = ("small_mean_saves_from_percent", "small_mean_saves_to_percent")
MAPPED = ("iteration_change_percent", "small_mean_saves_percent")
FIGURES = (
    ("small_mean", "small, mean"),
    ("small_p99", "small, p99"),
    ("large_mean", "large, mean"),
    ("large_p99", "large, p99"),
)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a comparison of policies."""
    path = run_dir / "summary.json"
    head = Head.of(path, summary)
    rows = [row_of(path, "policies", row, i) for i, row in enumerate(entry(path, summary, "policies", list))]
    if not rows:
        raise RunFolderError(f"{path}: key `policies`: at least one row was expected")
    names = list(dict.fromkeys(entry(path, row, "policy", str) for row in rows))
    cells = {entry(path, row, "cell", str) for row in rows}
    points, table = [], []
    for row in rows:
        policy, cell = entry(path, row, "policy", str), entry(path, row, "cell", str)
        cost = finite(path, row, "iteration_change_percent")
        saves = {key: finite(path, row, f"{key}_saves_percent") for key, _ in FIGURES}
        where = pieces.clip(cell, 60) or "the scenario"
        gain = saves["small_mean"]
        if cost is not None and gain is not None:
            said = f"iteration time {change(cost)} %, small flows {saved(gain)} % sooner"
            words = f"{pieces.clip(policy, 40)}, {where}: {said}"
            kind = names.index(policy)
            points.append(scatter.Point(gain, cost, kind, kind, words))
        table.append([where, pieces.clip(policy, 40), change(cost), *(saved(saves[key]) for key, _ in FIGURES)])
    mapped = []
    for index, row in enumerate(rows):
        if row.get("job_load") is not None:
            at = maps.Cell.of(path, row, f"policies.{index}", pieces.clip(row["cell"]), (*MAPPED, *ENDS))
            mapped.append((entry(path, row, "policy", str), at))
    several = f"{len(head.seeds)} seeds" if len(head.seeds) > 1 else "1 seed"
    label = "What a policy costs the job, against what it saves small flows"
    columns = ["cell", "policy", "#iteration time, %", *(f"#{words}, % sooner" for _, words in FIGURES)]
    return "policies.html.j2", {
        "title": f"gradtide policies: {head.model}",
        "what": f"{head.subject}, {len(names)} policies in {len(cells)} {'cell' if len(cells) == 1 else 'cells'}, "
        f"{several}",
        "reproduce": None,
        "label": label,
        "svg": scatter.draw(
            points[: 6 * caps.rows],
            [],
            label=label,
            xlabel="small flows finish sooner on average, % (further right is better)",
            ylabel="iteration time longer, % (lower is better)",
            including=[(0, -1), (0, 1)],
        )
        if points
        else "",
        "legend": [{"svg": Markup(scatter.shape(i, 13, 7, 5)), **own} for i, own in enumerate(scatter.legend(names))],
        **_maps(mapped, names, caps),
        "table": pieces.table("Every cell and policy", columns, table, cap=caps.rows, where="policies.csv"),
    }


def _maps(mapped: Sequence[tuple[str, maps.Cell]], names: Sequence[str], caps: pieces.Caps) -> dict[str, Any]:
    """Return two maps per policy, over job load and background load: cost to the job, and savings of small flows."""
    cells = [cell for _, cell in mapped]
    on = maps.axes(cells, caps)
    contents = (("the job pays", maps.price), ("small flows save", maps.saves("small", "small_mean_saves_percent")))
    drawn = []
    for policy in names if cells else ():
        own = [cell for name, cell in mapped if name == policy]
        shown = pieces.clip(policy, 40)
        drawn += [maps.draw(on, own, content, title=f"{shown}: what {what}, %") for what, content in contents]
    return {"maps": drawn, "cut": f"{on.cut}; all are in policies.csv." if on.cut else "", **maps.legends(cells)}
