"""The report of `gradtide tenants`: a job next to background flows, in the band of the flows and in a lower band."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import fct
from gradtide.report import pieces, progress
from gradtide.report.folder import Row, RunFolderError, entry, finite, read_table
from gradtide.report.run import resolved_scenario
from gradtide.report.tenants import BANDS, VERDICTS, Head, change, colour_of, count, saved, tint
from gradtide.report.timeline import milliseconds, size

FIGURES = {
    "mean_fct_ms": "mean, ms",
    "p50_fct_ms": "p50, ms",
    "p90_fct_ms": "p90, ms",
    "p99_fct_ms": "p99, ms",
    "mean_slowdown": "slowdown, mean",
    "p99_slowdown": "slowdown, p99",
}
TILES = (
    ("Job's iteration time", "iteration_time_ms", "ms"),
    ("Small flows save", "classes.small.mean_fct_ms", "ms, mean"),
    ("Large flows save", "classes.large.mean_fct_ms", "ms, mean"),
    ("Dropped by switches", "switch_drops", "packets"),
)
CDF_POINTS = 160
GAINS, LOSSES = 10, 5

Tables = Mapping[tuple[int, str], Sequence[Row]]
"""Rows of one table, such as `iterations.csv`, by the run's seed and band."""


@dataclass(frozen=True)
class Pair:
    """A background flow with its completion times in both bands, in microseconds; None if it did not complete."""

    seed: int
    row: Row
    same: float | None
    low: float | None

    @property
    def gain_us(self) -> float:
        """Time that the flow saves if the job is in the lower band; 0 if the flow did not complete in both runs."""
        return 0.0 if self.same is None or self.low is None else self.same - self.low


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a job's bands."""
    path = run_dir / "summary.json"
    head = Head.of(path, summary)
    failed = summary.get("failed", {})
    seeds, several = (
        [one for one in head.seeds if not any(f"seed{one}-{band}" in failed for band in BANDS)],
        head.several,
    )
    if not seeds:
        raise RunFolderError(f"{path}: key `failed`: a run of every seed failed, so there is nothing to show")
    runs = {(seed, band): run_dir / "runs" / f"seed{seed}-{band}" for seed in seeds for band in BANDS}
    flows = {key: read_table(folder, "flows.csv") for key, folder in runs.items()}
    iterations = {key: _of_job(folder, "iterations.csv", head.job) for key, folder in runs.items()}
    links = {key: read_table(folder, "links.csv") for key, folder in runs.items()}
    of, classes = entry(path, summary, "counted.traffic", str), _sizes(path, summary)
    pairs = [pair for seed in seeds for pair in _paired(path, summary, seed, flows[seed, "same"], flows[seed, "low"])]
    several_tenants = len({pair.row["traffic"] for pair in pairs}) > 1
    first = seeds[0]
    panels = []
    for band, name in BANDS.items():
        at = first, band
        sent, computed = (_of_job(runs[at], table, head.job) for table in ("transfers.csv", "operations.csv"))
        panels.append(progress.Panel(name.capitalize(), iterations[at], sent, computed, flows[at]))
    return "tenants.html.j2", {
        "title": f"gradtide tenants: {head.model}",
        "what": f"{head.subject}, {several}",
        "reproduce": f"gradtide tenants runs/seed{first}-same/scenario.resolved.toml --seeds {len(seeds)}",
        "figures": _figures(path, summary),
        "impact": _impact(path, summary, head.job),
        "worse": _worse(path, summary),
        "one_run": len(seeds) == 1,
        "classes": _classes(path, summary),
        "of": pieces.clip(of, 40),
        "others": several_tenants,
        "seeds": several,
        "mean_of": f"Means of {several}. " if len(seeds) > 1 else "",
        "cdfs": _cdfs([pair for pair in pairs if pair.row["traffic"] == of], classes, caps),
        "iterations": _iterations(iterations, seeds, caps),
        "progress": _progress(panels, first, caps),
        "probed": _probed(runs, first, caps),
        "links": _links(links, seeds, caps),
        "gains": _gains(pairs, several_tenants, caps),
        "scenario": resolved_scenario(runs[first, "low"], caps),
        "scenario_of": f"runs/seed{first}-low",
    }


def _of_job(folder: Path, table: str, job: str) -> list[Row]:
    return pieces.by_job(read_table(folder, table)).get(job, [])


def _sizes(path: Path, summary: Row) -> fct.Classes:
    small, large = (entry(path, summary, f"counted.{name}_bytes", int) for name in ("small", "large"))
    try:
        return fct.Classes(small, large)
    except ValueError as error:
        raise RunFolderError(f"{path}: key `counted`: {error}") from None


def _paired(path: Path, summary: Row, seed: int, same: Sequence[Row], low: Sequence[Row]) -> list[Pair]:
    """Pair the flows of both runs of a seed, without flows that start in a tenant's warm-up or cool-down."""
    warmup_ps, cooldown_ps = (
        round(1e9 * entry(path, summary, f"counted.{name}_ms", (int, float))) for name in ("warmup", "cooldown")
    )
    has_end = "until_ms" in entry(path, summary, "counted", dict)
    until_ps = round(1e9 * entry(path, summary, "counted.until_ms", (int, float))) if has_end else None
    window = fct.Window(warmup_ps, cooldown_ps, until_ps)
    other = {(row["traffic"], row["flow"]): row["fct_us"] for row in low}
    found = []
    for tenant in dict.fromkeys(row["traffic"] for row in same):
        rows = [row for row in same if row["traffic"] == tenant]
        is_counted = window.counted([round(1e6 * row["start_us"]) for row in rows])
        found += [
            Pair(seed, row, row["fct_us"], other.get((tenant, row["flow"])))
            for row, counts in zip(rows, is_counted, strict=True)
            if counts
        ]
    return found


def _pair(
    path: Path, summary: Row, key: str, write: Callable[[float], str] = pieces.ms, *, adds: bool = False
) -> dict[str, Any]:
    """Return a figure as text: values in both bands and without job, saving in percent, and the saving's interval.

    With `adds`, the interval is the interval of the increase, i.e. of the negative saving.
    """
    pair = entry(path, summary, key, dict)
    sides = {
        side: finite(path, summary, f"{key}.{side}") if side in BANDS or side in pair else None
        for side in (*BANDS, "no_job")
    }
    saves, ends = finite(path, summary, f"{key}.saves_percent"), pair.get("saves_interval_percent")
    interval = ""
    if ends is not None:
        if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)):
            raise RunFolderError(f"{path}: key `{key}.saves_interval_percent`: two numbers were expected")
        low, high = (-ends[1], -ends[0]) if adds else ends
        interval = f"{saved(low)} to {saved(high)} %"
    texts = {side: "–" if value is None else write(value) for side, value in sides.items()}
    return {**texts, "key": key, "saves": saved(saves), "cls": tint(saves, ends), "interval": interval}


def _figures(path: Path, summary: Row) -> list[dict[str, Any]]:
    """Return the four tiles at the top, each with a change, its 95 % interval, and the values in both bands."""
    tiles = []
    for name, key, unit in TILES:
        adds = not key.startswith("classes.")
        write = "{:.0f}".format if key.endswith("drops") else pieces.ms
        pair = _pair(path, summary, key, write, adds=adds)
        kind = {"agrees": "better", "differs": "worse"}.get(pair["cls"], "")
        tile = {"name": name, "kind": kind, "unit": unit, "pair": pair, "badge": None}
        tiles.append({**tile, "value": pair["saves"], "key": f"{key}.saves_percent"})
    job, *_, dropped = tiles
    verdict = VERDICTS[colour := colour_of(path, summary)]
    job["key"] = "iteration_time_ms.change_percent"
    job["value"] = change(finite(path, summary, job["key"]))
    job["badge"] = {"colour": colour, "mark": verdict.mark, "words": verdict.badge}
    fewer = finite(path, summary, dropped["key"])
    dropped |= {"key": "", "value": change(None if fewer is None else -fewer)}
    return tiles


def _classes(path: Path, summary: Row) -> dict[str, Any]:
    """Return the table of size classes. Cells have the saving, and the values in both bands and without job."""
    first = entry(path, summary, f"classes.{fct.CLASSES[0]}", dict)
    shown = {figure: title for figure, title in FIGURES.items() if figure in first}
    rows = []
    for name in fct.CLASSES:
        key = f"classes.{name}.flows"
        cells = [_pair(path, summary, f"classes.{name}.{figure}") for figure in shown]
        rows.append({"name": name, "flows": count(finite(path, summary, key)), "key": key, "cells": cells})
    return {"columns": list(shown.values()), "rows": rows}


def _impact(path: Path, summary: Row, job: str) -> list[dict[str, Any]]:
    """Return bars of iteration time and of completion times of flows, in both bands and without job."""
    sides = {"no_job": ("no job", "s6"), **{band: (name, f"band-{band}") for band, name in BANDS.items()}}

    def row(name: str, key: str) -> dict[str, Any]:
        known = {
            side: finite(path, summary, f"{key}.{side}") for side in sides if side in entry(path, summary, key, dict)
        }
        times = {side: value for side, value in known.items() if value is not None}
        longest = max(times.values(), default=0.0) or 1.0
        bars = [
            {
                "words": f"{name}, {sides[side][0]}: {pieces.ms(value)} ms",
                "start": 0,
                "share": 100 * value / longest,
                "text": f"{pieces.ms(value)} ms",
                "token": sides[side][1],
            }
            for side, value in times.items()
        ]
        return {"name": name, "bars": bars}

    flows = [row(f"{name} flows", f"classes.{name}.mean_fct_ms") for name in fct.CLASSES]
    groups = [("The job", "mean iteration time", [row(pieces.clip(job, 30), "iteration_time_ms")])]
    groups.append(("The flows", "mean completion time; each row has its own scale", flows))
    made = []
    for title, unit, rows in groups:
        shown = {bar["token"] for one in rows for bar in one["bars"]}
        legend = [{"token": token, "name": name} for name, token in sides.values() if token in shown]
        made.append({"title": title, "legend": legend, "unit": unit, "rows": rows})
    return made


def _worse(path: Path, summary: Row) -> str:
    """Return a sentence that names the figures that are clearly worse in the lower band; empty if there are none."""
    found = []
    for name in fct.CLASSES:
        for figure in entry(path, summary, f"classes.{name}", dict):
            if figure in FIGURES:
                pair = _pair(path, summary, f"classes.{name}.{figure}")
                if pair["cls"] == "differs":
                    found.append(f"{name} flows, {FIGURES[figure].removesuffix(', ms')} ({pair['saves'][1:]} %)")
    return f"Longer in the lower band: {'; '.join(found)}." if found else ""


def _lines(values: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """Return a line per band. The line of the lower band is thinner, so that both are visible where they coincide."""
    widths = {"same": 5.0, "low": 2.0}
    return [
        {**pieces.line(0, BANDS[band], values[band]), "token": f"band-{band}", "width": width, "dash": []}
        for band, width in widths.items()
    ]


def _cdfs(pairs: Sequence[Pair], classes: fct.Classes, caps: pieces.Caps) -> list[dict[str, Any]]:
    titles = {
        "small": f"Small flows, up to {_round_size(classes.small_bytes)}",
        "medium": "Medium flows",
        "large": f"Large flows, {_round_size(classes.large_bytes)} and more",
        "all": "All flows",
    }
    members = classes.members([pair.row["bytes"] for pair in pairs])
    charts = []
    for name, title in titles.items():
        own = [pair for pair, is_member in zip(pairs, members[name], strict=True) if is_member]
        times = {
            "same": sorted(pair.same / 1e3 for pair in own if pair.same),
            "low": sorted(pair.low / 1e3 for pair in own if pair.low),
        }
        every = times["same"] + times["low"]
        if not every:
            continue
        x = _log_steps(min(every), max(every), min(CDF_POINTS, 20 + caps.rows))
        missing = {band: len(own) - len(times[band]) for band in BANDS}
        caption = f"{len(own)} flow{'s' if len(own) != 1 else ''}"
        if any(missing.values()):
            caption += f"; not completed: {missing['same']} in the same band, {missing['low']} in the lower"
        drawn = pieces.chart(
            f"Completion times, {title}",
            x=pieces.Axis(x, "completion time, ms", "within", "ms"),
            lines=_lines({band: [100 * bisect_right(times[band], at) / len(own) for at in x] for band in BANDS}),
            ylabel="flows completed, %",
            unit="%",
            xlog=True,
            yrange=[0, 104],
            caption=caption + ".",
            cap=caps.rows,
        )
        charts.append({**drawn, "title": title, "hint": ""})
    return charts


def _round_size(count: float) -> str:
    unit, scale = ("MB", 1e6) if count >= 1e6 else ("kB", 1e3)
    return f"{count / scale:g} {unit}"


def _log_steps(low: float, high: float, count: int) -> list[float]:
    """Return `count` values in geometric progression, from just below `low` to just above `high`."""
    low, high = low * 0.98, high * 1.002
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**i:.5g}") for i in range(count - 1)] + [float(f"{high:.5g}")]


def _iterations(tables: Tables, seeds: Sequence[int], caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw iteration times in both bands as means over seeds, up to the last iteration that all seeds have."""
    means: dict[str, list[float]] = {}
    for band in BANDS:
        runs = [[row["time_us"] for row in tables[seed, band]] for seed in seeds]
        means[band] = [sum(times) / len(runs) / 1e3 for times in zip(*runs, strict=False)]
    longest = max(map(len, means.values()))
    if longest < 2:
        return None
    step = -(-longest // 200)
    starts = range(0, longest, step)
    bins = {band: [values[start : start + step] for start in starts] for band, values in means.items()}
    lines = _lines({band: [sum(part) / len(part) if part else None for part in parts] for band, parts in bins.items()})
    first = tables[seeds[0], "same"]
    notes = ["An iteration lasts from the start of one backward pass to the start of the next."]
    if len(seeds) > 1:
        notes.append(f"Values are means of {len(seeds)} seeds, up to the last iteration that all seeds completed.")
    if step > 1:
        notes.append(f"Every point is the mean of {step} iterations.")
    return pieces.chart(
        "Time of every iteration of the job",
        x=pieces.Axis(list(starts), "iteration", "iteration"),
        lines=lines,
        ylabel="iteration time, ms",
        xwhole=True,
        marks=[{"y": first[0]["compute_us"] / 1e3, "label": "compute alone"}] if first else [],
        caption=" ".join(notes),
        cap=caps.rows,
    )


def _progress(panels: Sequence[progress.Panel], seed: int, caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw the job's first iterations in both bands, one above the other; the caption counts late transfers."""
    count = progress.drawn_iterations(panels)
    label = f"Progress of the job in {count} iteration{'s' if count != 1 else ''}, same band above lower band"
    svg = progress.draw(panels, label=label, ident="progress", cap=caps.rows)
    if svg is None:
        return None
    late = [sum(row["margin_us"] < -1e-5 for row in panel.transfers if row["iteration"] < count) for panel in panels]
    same = panels[0]
    total = sum(row["iteration"] < count for row in same.transfers)
    drawn, every = len(progress.rows_of(panels, caps.rows)), len({row["bucket"] for row in same.transfers})
    caption = (
        f"Seed {seed}, {f'the first {count} iterations' if count > 1 else 'the first iteration'}. Of {total} transfers "
        f"{late[0]} arrive after they are needed in the same band, and {late[1]} in the lower band."
    )
    if drawn < every:
        caption += f" Rows show {drawn} of {every} buckets."
    if any(row["fct_us"] for row in same.flows):
        caption += (
            " The background traffic is that of all flows, with the bytes of a flow spread evenly over its completion "
            "time."
        )
    return {
        "svg": svg,
        "label": label,
        "caption": caption,
        "late": any(late),
        "load": any(row["fct_us"] for panel in panels for row in panel.flows),
        "compute": any(panel.operations for panel in panels),
    }


def _probed(runs: Mapping[tuple[int, str], Path], seed: int, caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw queue and utilisation of the busiest port over time, for both bands on equal axes."""
    samples = {name: read_table(runs[seed, band], "queues.csv", required=False) for band, name in BANDS.items()}
    drawn = pieces.probed(samples, [f"band-{band}" for band in BANDS], caps)
    return drawn and {**drawn, "note": f"Seed {seed}. {drawn['note']}"}


def _links(tables: Tables, seeds: Sequence[int], caps: pieces.Caps) -> dict[str, Any]:
    """Return utilisation, drops and longest queue of links in both bands; if there are many, of the busiest links."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(seeds)

    def over_seeds(band: str, column: str, fold: Callable[[Sequence[float]], float]) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for seed in seeds:
            for row in tables[seed, band]:
                if row[column] is not None:
                    found.setdefault(row["link"], []).append(float(row[column]))
        return {link: fold(values) for link, values in found.items()}

    def bars(
        name: str, own: Mapping[str, Mapping[str, float]], top: float, write: Callable[[float], str]
    ) -> list[dict[str, Any]]:
        return [
            {
                "band": band,
                "words": BANDS[band],
                "share": min(100 * values.get(name, 0.0) / (top or 1.0), 100.0),
                "text": write(values[name]) if name in values else "–",
            }
            for band, values in own.items()
        ]

    names = [row["link"] for row in tables[seeds[0], "same"]]
    use, drops, queues = (
        {band: over_seeds(band, column, fold) for band in BANDS}
        for column, fold in (("utilisation", mean), ("drops", mean), ("max_queue_packets", max))
    )
    most_drops, most_queued = (
        max((v for of in own.values() for v in of.values()), default=0) for own in (drops, queues)
    )
    columns = (
        ("utilisation, %", use, 1.0, pieces.percent),
        ("packets dropped", drops, most_drops, "{:.0f}".format),
        ("longest queue, packets", queues, most_queued, "{:.0f}".format),
    )
    room = min(caps.rows, 32)
    busiest = sorted(names, key=lambda name: (-use["same"].get(name, 0.0), names.index(name)))
    shown = names if len(names) <= room else busiest[:room]
    note = "" if len(shown) == len(names) else f"The {len(shown)} busiest of {len(names)} links; all are in links.csv."
    rows = [
        {"name": pieces.clip(name, 40), "cells": [bars(name, own, top, write) for _, own, top, write in columns]}
        for name in shown
    ]
    return {"columns": [title for title, *_ in columns], "rows": rows, "note": note}


def _gains(pairs: Sequence[Pair], several: bool, caps: pieces.Caps) -> dict[str, Any]:
    known = sorted(
        (p for p in pairs if p.same is not None and p.low is not None),
        key=lambda p: (-p.gain_us, p.seed, p.row["traffic"], p.row["flow"]),
    )
    gains = [p for p in known if p.gain_us > 0]
    losses = [p for p in reversed(known) if p.gain_us < 0]
    tenant = ["tenant"] if several else []
    columns = [*tenant, "#flow", "#seed", "#starts, ms", "from, to", "#size", "#same, ms", "#low, ms"]
    columns += ["#sooner by, ms", "#low ÷ same"]

    def cells(pair: Pair, cls: str) -> list[Any]:
        row = pair.row
        ratio = "–" if not pair.same or pair.low is None else f"{pair.low / pair.same:.3g}"
        who = [*([row["traffic"]] if several else []), row["flow"], pair.seed]
        what = [milliseconds(row["start_us"]), f"h{row['src']} → h{row['dst']}", size(row["bytes"])]
        times = [milliseconds(pair.same or 0.0), milliseconds(pair.low or 0.0)]
        return [*who, *what, *times, pieces.cell(milliseconds(pair.gain_us), cls), ratio]

    made = {
        name: pieces.table(label, columns, [cells(p, cls) for p in chosen], cap=caps.rows)
        for name, label, chosen, cls in (
            ("gain", "Flows that gain most", gains[:GAINS], "agrees"),
            ("loss", "Flows that lose most", losses[:LOSSES], "differs"),
        )
    }
    same = len(known) - len(gains) - len(losses)
    unfinished = len(pairs) - len(known)
    note = f"{len(gains)} of {len(pairs)} flows end sooner, {len(losses)} later"
    note += f", {same} at the same time" if same else ""
    note += f"; {unfinished} did not complete in at least one of the bands" if unfinished else ""
    return {**made, "note": note + "."}
