"""The report of `gradtide compare`: many schedules, grouped by model, workers and link rate."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gradtide import words
from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, grouped, read_table
from gradtide.report.run import resolved_scenario, slack_chart
from gradtide.report.timeline import milliseconds

GROUP = ("job", "model", "workers", "servers", "batch", "task", "rate_bps")
"""Columns whose values are equal among schedules that are compared (a group). The last one is the x axis of charts."""

MOST_COLUMNS = 12
MOST_LINES = len(pieces.STYLES)

SAME = 1e-4
"""Schedules share a line of a chart if the relative difference of their values is at most this."""


def inside(folder: Path, *parts: str) -> Path:
    """Return the path `parts` below `folder`.

    Raises:
        RunFolderError: if the path leads out of `folder`.
    """
    relative = PurePosixPath(*parts)
    if relative.is_absolute() or ".." in relative.parts or "\\" in str(relative) or ":" in str(relative):
        raise RunFolderError(f"{folder}: `{pieces.clip(relative)}` is not a folder below it")
    return folder / relative


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a comparison."""
    path = run_dir / "rows.csv"
    rows = read_table(run_dir, "rows.csv")
    if not rows:
        raise RunFolderError(f"{path}:2: a comparison has at least one row")
    groups = grouped(rows, lambda row: tuple(row[key] for key in GROUP))
    varied = [key for key in GROUP if len({row[key] for row in rows}) > 1]

    def title(key: tuple[Any, ...], rate: bool = True) -> str:
        row = dict(zip(GROUP, key, strict=True))
        row |= {"job": pieces.clip(row["job"], 30), "model": pieces.clip(row["model"], 40)}
        return words.group(row, varied) + (f", {pieces.rate(row['rate_bps'])}" if rate else "")

    def gain(key: tuple[Any, ...]) -> float:
        return float(max(row["saves_percent"] for row in words.settled(groups[key])))

    telling = max(groups, key=lambda key: (gain(key), -key[-1]))
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    is_over_groups = len(schedules) == 1 < len(groups)
    if is_over_groups:
        # With a single schedule, the page compares groups, and a group's name replaces the schedule's.
        short = _short_names({key: title(key) for key in groups})[0]
        chosen = [{**row, "schedule": short[key]} for key, own in groups.items() for row in own]
    else:
        chosen = groups[telling]
    best = min(words.settled(chosen), key=lambda row: row["iteration_time_us"])
    pair = [chosen[0], best] if best is not chosen[0] else chosen[:2]
    titled = [(inside(run_dir, "runs", row["run"]), row["job"], row["schedule"]) for row in pair]
    timelines = [
        {**drawn, "title": f"{row['schedule']}: {milliseconds(row['iteration_time_us'])} ms"}
        for row, drawn in zip(pair, pieces.drawn_timelines(titled, caps), strict=True)
        if drawn
    ]
    charts, more = _rate_charts(groups, schedules, title, gain, caps)
    why = _fastest(chosen)
    if len(groups) > 1 and not is_over_groups:
        why = (
            f"Of {len(groups)} groups, this one has the largest saving: {best['schedule']} saves {gain(telling):.1f} % "
            f"over {chosen[0]['schedule']}."
        )
    best_run = inside(run_dir, "runs", best["run"])
    alike = [row for row in rows if all(row[key] == best[key] for key in GROUP[:-1])]
    return "compare.html.j2", {
        "title": "gradtide compare",
        "what": f"{schedules[0]} in {len(rows)} runs"
        if len(schedules) == 1
        else f"{len(schedules)} schedules in {len(rows)} runs",
        "telling": {
            "name": schedules[0] if is_over_groups else title(telling),
            "why": f"{why} The fastest is on top. Gains in throughput are over {chosen[0]['schedule']}.",
            "waterfall": _group_bars(chosen, caps),
            "figures": _figures(chosen, caps),
        },
        "timelines": timelines,
        "legend": set().union(*(t["legend"] for t in timelines)),
        "pivot": _pivot(groups, schedules, title, caps),
        "slack": slack_chart(pieces.by_job(read_table(best_run, "transfers.csv")).get(best["job"], []), caps),
        "times": _time_chart(alike, caps),
        "times_of": title(telling, False),
        "best": best["schedule"],
        "scenario": resolved_scenario(best_run, caps),
        "charts": charts,
        "charts_note": more,
        "everything": _everything(rows, caps),
    }


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Return the rows by iteration time, the fastest first. Times that are equal in nanoseconds keep their order."""
    return sorted(rows, key=lambda row: round(row["iteration_time_us"], 3))


def _gain(row: Row, first: Row) -> str:
    gain = 100 * (first["iteration_time_us"] / row["iteration_time_us"] - 1)
    return "" if row is first else f"{gain:+.1f} %".replace("-", "−")


def _fastest(rows: Sequence[Row]) -> str:
    rows = words.settled(rows)
    least = min(row["iteration_time_us"] for row in rows)
    some = [row["schedule"] for row in rows if row["iteration_time_us"] <= least * (1 + SAME)]
    if len(some) == len(rows) > 1:
        return "All schedules take equally long."
    return f"{some[0]} is the fastest." if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]} are the fastest."


def _group_bars(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    longest = max(row["iteration_time_us"] for row in rows)
    fastest = min(row["iteration_time_us"] for row in words.settled(rows))
    bars, seen = [], set()
    for row in _sorted(rows)[: min(caps.rows, 24)]:
        values = {"compute": row["compute_us"], "exposed": row["exposed_us"], "barrier": row["barrier_us"]}
        if row.get("host_us"):
            values["host"] = row["host_us"]
        values["slowdown"] = max(row["iteration_time_us"] - sum(values.values()), 0.0)
        if values["slowdown"] < 1e-3:  # below a nanosecond: rounding error
            values["slowdown"] = 0.0
        parts = pieces.bar({k: v / 1e3 for k, v in values.items()}, longest / 1e3, 85)
        seen |= {p["kind"] for p in parts if p["share"] > 0}
        total = f"{milliseconds(row['iteration_time_us'])} ms"
        label = f"{row['schedule']}: {total}; " + "; ".join(p["words"] for p in parts if p["share"] > 0)
        bound = None
        if row["lower_bound_us"] is not None:
            bound = 100 * min(row["lower_bound_us"] / longest, 1.0)
            label += f"; lower bound {milliseconds(row['lower_bound_us'])} ms"
        is_bound = row["order"] == words.BOUND
        best = not is_bound and fastest <= row["iteration_time_us"] <= fastest * (1 + 1e-9) < longest
        name = f"{row['schedule']} (bound)" if is_bound else row["schedule"]
        bar = {"name": name, "parts": parts, "total": total, "label": label, "best": best}
        bars.append(bar | {"bound": bound, "gain": _gain(row, rows[0])})
    legend = [pieces.meaning(k, name) for k, name, _ in pieces.WATERFALL if k in seen]
    if any(bar["bound"] is not None for bar in bars):
        legend.append(pieces.meaning("bound", "lower bound: no order of these transfers is faster"))
    return {"rows": bars, "legend": legend}


def _figures(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    def text(key: str, digits: int, unit: str = "", scale: float = 1.0) -> Callable[[Row], str]:
        # `+ 0.0` turns -0.0 into 0.0.
        return lambda row: pieces.fixed(
            None if row[key] is None else round(row[key] / scale, digits) + 0.0, digits, unit
        )

    columns: pieces.Columns = {
        "schedule": lambda row: row["schedule"],
        "#T, ms": lambda row: milliseconds(row["iteration_time_us"]),
        "#p95, ms": text("iteration_time_p95_us", 1, scale=1e3),
        "#throughput": lambda row: _gain(row, rows[0]) or "–",
        "#rho = N/C": text("rho", 3),
        "#overlap alpha": text("alpha", 3),
        "#U = C/T": text("utilisation", 3),
        "#straggler": text("straggler_percent", 1, " %"),
        "#lower bound, ms": text("lower_bound_us", 1, scale=1e3),
        "#above it": text("above_bound_percent", 1, " %"),
    }
    return pieces.listing("Figures of each schedule", columns, _sorted(rows), cap=caps.rows, where="rows.csv")


def _lines(named: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """Return the lines of a chart. Names whose values coincide share a line."""
    merged: list[tuple[list[str], Sequence[float | None]]] = []
    for name, values in named.items():
        for others, known in merged:
            pairs = list(zip(values, known, strict=True))
            if all((a is None) == (b is None) for a, b in pairs) and all(
                abs(a - b) <= SAME * max(abs(a), abs(b), 1.0) for a, b in pairs if a is not None and b is not None
            ):
                others.append(name)
                break
        else:
            merged.append(([name], values))
    return [pieces.line(i, ", ".join(some), values) for i, (some, values) in enumerate(merged[:MOST_LINES])]


def _short_names(names: Mapping[tuple[Any, ...], str]) -> tuple[dict[tuple[Any, ...], str], str]:
    """Return the names of groups without their common part, and the common part."""
    split = {key: name.split(", ") for key, name in names.items()}
    common = next((i for i, of in enumerate(zip(*split.values(), strict=False)) if len(set(of)) > 1), 0)
    return {key: ", ".join(parts[common:]) for key, parts in split.items()}, ", ".join(
        next(iter(split.values()))[:common]
    )


def _pivot(
    groups: Mapping[tuple[Any, ...], list[Row]],
    schedules: Sequence[str],
    title: Callable[[tuple[Any, ...]], str],
    caps: pieces.Caps,
) -> dict[str, Any]:
    table, shown = [], schedules[:MOST_COLUMNS]
    # The note has the common part of the names, so that the first column is narrow.
    names, common = _short_names({key: title(key) for key in groups})
    for key, rows in groups.items():
        times = {row["schedule"]: row for row in rows}
        taken = [row["iteration_time_us"] for row in rows]
        fastest, slowest = min(row["iteration_time_us"] for row in words.settled(rows)), max(taken)
        cells: list[Any] = [names[key]]
        for row in map(times.get, shown):
            if row is None:
                cells.append("–")
                continue
            is_fastest = row["iteration_time_us"] <= fastest * (1 + 1e-9) and slowest > fastest * (1 + 1e-6)
            best = is_fastest and row["order"] != words.BOUND
            saves = row["saves_percent"]
            small = "" if row is rows[0] or abs(saves) < 0.05 else f"{-saves:+.1f} %".replace("-", "−")
            cells.append(pieces.cell(milliseconds(row["iteration_time_us"]), "best" if best else "", small=small))
        table.append(cells)
    label, columns = "Iteration time by group and schedule", ("group", *("#" + s for s in shown))
    made = pieces.table(label, columns, table, cap=min(caps.rows, 80), where="rows.csv")
    of = f" of {common}" if common else ""
    note = f"Iteration time{of} in ms, and its change against the first schedule. The fastest of each group is green."
    if len(schedules) > len(shown):
        note += f" The first {len(shown)} of {len(schedules)} schedules."
    made["note"] = f"{note} {made['note']}".strip()
    return made


def _time_chart(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw iteration time over link rate, for one model and number of workers; None if there is only one rate."""
    rates = sorted({row["rate_bps"] for row in rows})
    found = {(row["schedule"], row["rate_bps"]): row["iteration_time_us"] / 1e3 for row in rows}
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    if len(rates) < 2:
        return None
    return pieces.chart(
        "Iteration time over link rate",
        lines=_lines({s: [found.get((s, rate)) for rate in rates] for s in schedules}),
        ylabel="iteration time, ms",
        **pieces.over_rates(rates),
        marks=[{"y": rows[0]["compute_us"] / 1e3, "label": "compute alone"}],
        cap=caps.rows,
    )


def _rate_charts(
    groups: Mapping[tuple[Any, ...], list[Row]],
    schedules: Sequence[str],
    title: Callable[..., str],
    gain: Callable[[tuple[Any, ...]], float],
    caps: pieces.Caps,
) -> tuple[list[dict[str, Any]], str]:
    """Draw the savings over the first schedule against link rate, in a small chart per model and number of workers."""
    panels = grouped(groups, lambda key: key[:-1])
    drawable = [keys for keys in panels.values() if len(keys) > 1]
    kept = sorted(drawable, key=lambda keys: -max(map(gain, keys)))[: caps.charts]
    charts = []
    for keys in (k for k in drawable if k in kept):
        keys = sorted(keys, key=lambda key: key[-1])
        found = {(row["schedule"], key): row["saves_percent"] for key in keys for row in groups[key]}
        values = {s: [found.get((s, key)) for key in keys] for s in schedules}
        # `first` is the line at zero, of which only the name is drawn, as label, unless there is no other line.
        first, *lines = _lines({s: row for s, row in values.items() if any(v is not None for v in row)})
        chart = pieces.chart(
            f"What schedules save over {schedules[0]}, {title(keys[0], False)}",
            lines=lines or [first],
            ylabel="saves, %",
            **pieces.over_rates(key[-1] for key in keys),
            marks=[{"y": 0.0, "label": first["name"]}],
            cap=caps.rows,
        )
        charts.append({**chart, "title": title(keys[0], False), "hint": ""})
    notes = []
    if len(kept) < len(drawable):
        notes.append(f"The {len(kept)} of {len(drawable)} charts with the largest savings.")
    most = max((len(chart["spec"]["lines"]) for chart in charts), default=0)
    if most == MOST_LINES - 1 and len(schedules) > MOST_LINES:
        notes.append(f"The first {MOST_LINES - 1} lines; all are in the table.")
    return charts, " ".join(notes)


def _everything(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    numbers = {k for row in rows for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    columns = [("#" if k in numbers else "") + k for k in rows[0]]
    table = [[str(v).lower() if isinstance(v, bool) else pieces.plain(v) for v in row.values()] for row in rows]
    return pieces.table("All runs", columns, table, cap=caps.rows, where="rows.csv")
