"""The report of a comparison: many schedules, grouped by model, workers and link rate."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, read_table
from gradtide.report.run import resolved_scenario, slack_chart
from gradtide.report.timeline import milliseconds


def inside(folder: Path, *parts: str) -> Path:
    """Return a folder below `folder`.

    Raises:
        RunFolderError: if the parts lead out of it.
    """
    relative = PurePosixPath(*parts)
    if relative.is_absolute() or ".." in relative.parts or "\\" in str(relative) or ":" in str(relative):
        raise RunFolderError(f"{folder}: `{pieces.clip(relative)}` is not a folder below it")
    return folder / relative


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template of a comparison and what it shows."""
    path = run_dir / "rows.csv"
    rows = read_table(run_dir, "rows.csv")
    if not rows:
        raise RunFolderError(f"{path}:2: a comparison has at least one row")
    names = {row["run"]: row["schedule"] for row in rows}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["job"], row["model"], row["workers"], row["rate_bps"]), []).append(row)
    several_jobs = len({key[0] for key in groups}) > 1

    def title(key: tuple[Any, ...], rate: bool = True) -> str:
        job, model, workers, bps = key
        words = f"{pieces.clip(model, 40)}, {workers} worker{'s' if workers != 1 else ''}" + (
            f", {pieces.rate(bps)}" if rate else ""
        )
        return f"{pieces.clip(job, 30)}: {words}" if several_jobs else words

    def gain(key: tuple[Any, ...]) -> float:
        return float(max(row["saves_percent"] for row in groups[key]))

    telling = max(groups, key=lambda key: (gain(key), -key[3]))
    chosen = groups[telling]
    best = min(chosen, key=lambda row: row["iteration_time_us"])
    pair = [chosen[0], best] if best is not chosen[0] else chosen[:2]
    drawn = [_row_timeline(run_dir, row, names[row["run"]], f"t{i}", caps, None) for i, row in enumerate(pair)]
    span = max((t["span_ms"] for t in drawn if t), default=0.0)
    timelines = [
        t
        for i, row in enumerate(pair)
        if (t := _row_timeline(run_dir, row, names[row["run"]], f"t{i}", caps, span)) is not None
    ]
    schedules = list(dict.fromkeys(names[row["run"]] for row in rows))
    charts, more = _rate_charts(groups, names, schedules, title, gain, caps)
    several = len(groups) > 1
    why = (
        f"The most telling of {len(groups)} groups: the best schedule, {names[best['run']]}, saves "
        f"{gain(telling):.1f} % against {names[chosen[0]['run']]}."
        if several
        else f"{names[best['run']]} is the fastest."
    )
    best_run = inside(run_dir, "runs", best["run"])
    return "compare.html.j2", {
        "title": "gradtide compare",
        "what": f"comparison of {len(schedules)} schedules in {len(rows)} runs",
        "reproduce": "",
        "telling": {"name": title(telling), "why": why, "waterfall": _group_bars(chosen, names, caps)},
        "timelines": timelines,
        "legend": set().union(*(t["legend"] for t in timelines)),
        "pivot": _pivot(groups, names, schedules, title, caps),
        "slack": slack_chart(pieces.by_job(read_table(best_run, "transfers.csv")).get(best["job"], []), caps),
        "times": _time_chart(
            [row for row in rows if all(row[k] == best[k] for k in ("job", "model", "workers"))], caps
        ),
        "times_of": title(telling, False),
        "best": names[best["run"]],
        "scenario": resolved_scenario(best_run, caps),
        "charts": charts,
        "charts_note": more,
        "everything": _everything(rows, caps),
    }


def _group_bars(rows: Sequence[Row], names: Mapping[str, str], caps: pieces.Caps) -> dict[str, Any]:
    longest = max(row["iteration_time_us"] for row in rows)
    fastest = min(row["iteration_time_us"] for row in rows)
    bars, seen = [], set()
    for row in rows[: min(caps.rows, 24)]:
        values = {"compute": row["compute_us"], "exposed": row["exposed_us"], "barrier": row["barrier_us"]}
        values["slowdown"] = max(row["iteration_time_us"] - sum(values.values()), 0.0)
        if values["slowdown"] < 1e-3:  # a nanosecond: what rounding leaves of a difference
            values["slowdown"] = 0.0
        parts = pieces.bar({k: v / 1e3 for k, v in values.items()}, longest / 1e3, 85)
        seen |= {p["kind"] for p in parts if p["share"] > 0}
        total = f"{milliseconds(row['iteration_time_us'])} ms"
        words = f"{names[row['run']]}: {total}; " + "; ".join(p["words"] for p in parts if p["share"] > 0)
        best = row["iteration_time_us"] <= fastest * (1 + 1e-9) < longest
        bars.append({"name": names[row["run"]], "parts": parts, "total": total, "label": words, "best": best})
    legend = [
        {"kind": k, "name": name, "value": "", "key": "", "zero": False} for k, name, _ in pieces.WATERFALL if k in seen
    ]
    return {"rows": bars, "legend": legend}


def _row_timeline(
    run_dir: Path, row: Row, name: str, ident: str, caps: pieces.Caps, span_ms: float | None
) -> dict[str, Any] | None:
    found = run_timeline(inside(run_dir, "runs", row["run"]), row["job"], f"Timeline, {name}", ident, caps, span_ms)
    return None if found is None else {**found, "title": f"{name}: {milliseconds(row['iteration_time_us'])} ms"}


def run_timeline(
    folder: Path, job: str | None, label: str, ident: str, caps: pieces.Caps, span_ms: float | None
) -> dict[str, Any] | None:
    """Draw a run of a study; None where it recorded no operations."""
    operations, transfers = (pieces.by_job(read_table(folder, name)) for name in ("operations.csv", "transfers.csv"))
    if job is None:
        job = next(iter(operations), "")
    return pieces.drawn_timeline(
        operations.get(job, []),
        transfers.get(job, []),
        label=label,
        ident=ident,
        cap=caps.rows,
        span_ms=span_ms,
    )


def _pivot(
    groups: Mapping[tuple[Any, ...], list[Row]],
    names: Mapping[str, str],
    schedules: Sequence[str],
    title: Callable[[tuple[Any, ...]], str],
    caps: pieces.Caps,
) -> dict[str, Any]:
    table = []
    shown = schedules[:12]
    for key, rows in groups.items():
        times = {names[row["run"]]: row for row in rows}
        fastest = min(row["iteration_time_us"] for row in rows)
        slowest = max(row["iteration_time_us"] for row in rows)
        cells: list[Any] = [title(key)]
        for schedule in shown:
            row = times.get(schedule)
            if row is None:
                cells.append("–")
                continue
            best = row["iteration_time_us"] <= fastest * (1 + 1e-9) and slowest > fastest * (1 + 1e-6)
            saves = row["saves_percent"]
            small = "" if row is rows[0] or abs(saves) < 0.05 else f"{-saves:+.1f} %".replace("-", "−")
            cells.append(pieces.cell(milliseconds(row["iteration_time_us"]), "best" if best else "", small=small))
        table.append(cells)
    made = pieces.table(
        "Iteration time by group and schedule",
        ("group", *("#" + s for s in shown)),
        table,
        cap=min(caps.rows, 80),
        where="rows.csv",
    )
    note = "Iteration time, ms; the fastest in each group in green, change against the first schedule beside it."
    if len(schedules) > len(shown):
        note += f" The first {len(shown)} of {len(schedules)} schedules."
    made["note"] = f"{note} {made['note']}".strip()
    return made


def _time_chart(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw iteration time over link rate for one model and number of workers; None at a single rate."""
    rates = sorted({row["rate_bps"] for row in rows})
    found = {(row["schedule"], row["rate_bps"]): row["iteration_time_us"] / 1e3 for row in rows}
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))[:6]
    if len(rates) < 2:
        return None
    return pieces.chart(
        "Iteration time over link rate",
        x=[rate / 1e9 for rate in rates],
        lines=[pieces.line(i, s, [found.get((s, rate)) for rate in rates]) for i, s in enumerate(schedules)],
        xlabel="link rate, Gbit/s",
        ylabel="iteration time, ms",
        xname="at",
        xunit="Gbit/s",
        xlog=True,
        marks=[{"y": rows[0]["compute_us"] / 1e3, "label": "compute alone"}],
        cap=caps.rows,
    )


def _rate_charts(
    groups: Mapping[tuple[Any, ...], list[Row]],
    names: Mapping[str, str],
    schedules: Sequence[str],
    title: Callable[..., str],
    gain: Callable[[tuple[Any, ...]], float],
    caps: pieces.Caps,
) -> tuple[list[dict[str, Any]], str]:
    """Draw what each schedule saves over the first one against link rate, one small chart per model and workers."""
    panels: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in groups:
        panels.setdefault(key[:3], []).append(key)
    drawable = [keys for keys in panels.values() if len(keys) > 1]
    kept = sorted(drawable, key=lambda keys: -max(map(gain, keys)))[: caps.charts]
    charts = []
    for keys in (k for k in drawable if k in kept):
        keys = sorted(keys, key=lambda key: key[3])
        found = {(names[row["run"]], key): row["saves_percent"] for key in keys for row in groups[key]}
        lines = [
            pieces.line(i, s, [found.get((s, key)) for key in keys])
            for i, s in enumerate(schedules[:6])
            if i > 0 and any((s, key) in found for key in keys)
        ]
        chart = pieces.chart(
            f"What schedules save over {schedules[0]}, {title(keys[0], False)}",
            x=[key[3] / 1e9 for key in keys],
            lines=lines,
            xlabel="link rate, Gbit/s",
            ylabel="saves, %",
            xname="at",
            xunit="Gbit/s",
            xlog=True,
            marks=[{"y": 0.0, "label": schedules[0]}],
            cap=caps.rows,
        )
        charts.append({**chart, "title": title(keys[0], False), "hint": ""})
    notes = []
    if len(kept) < len(drawable):
        notes.append(f"The {len(kept)} of {len(drawable)} charts with the largest savings.")
    if charts and len(schedules) > 6:
        notes.append(f"The first 6 of {len(schedules)} schedules.")
    return charts, " ".join(notes)


def _everything(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    numbers = {k for row in rows for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    columns = [("#" if k in numbers else "") + k for k in rows[0]]

    def text(value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:.6g}".replace("-", "−") if isinstance(value, float) else str(value)

    return pieces.table(
        "All runs",
        columns,
        [[text(v) for v in row.values()] for row in rows],
        cap=caps.rows,
        where="rows.csv",
    )
