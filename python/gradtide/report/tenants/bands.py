"""The report of a job beside background flows, in their band and in a lower one."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide.report import pieces, probed, progress
from gradtide.report.folder import Row, RunFolderError, entry, read_table
from gradtide.report.run import resolved_scenario
from gradtide.report.timeline import milliseconds, size

BANDS = {"same": "same band", "low": "lower band"}
CLASSES = ("small", "medium", "large", "all")
FIGURES = {
    "mean_fct_ms": "mean, ms",
    "p50_fct_ms": "p50, ms",
    "p90_fct_ms": "p90, ms",
    "p99_fct_ms": "p99, ms",
    "mean_slowdown": "slowdown, mean",
    "p99_slowdown": "slowdown, p99",
}
CDF_POINTS = 160
GAINS, LOSSES = 10, 5

# What a colour says, after fig. 5.19 of Gao (2020). A word and a mark go with each: colour alone tells not everyone.
VERDICTS = {
    "green": ("✓", "green: free for the job"),
    "yellow": ("!", "yellow: the job pays"),
    "red": ("✕", "red: too expensive for the job"),
    "unclear": ("~", "unclear"),
}


@dataclass(frozen=True)
class Pair:
    """A background flow in both bands. Completion times are in microseconds; None if the flow did not complete."""

    seed: int
    row: Row
    same: float | None
    low: float | None

    @property
    def gain_us(self) -> float:
        """How much sooner it ends; 0 where one of its times is not known."""
        return 0.0 if self.same is None or self.low is None else self.same - self.low


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template of a study of tenants and what it shows."""
    path = run_dir / "summary.json"
    seeds = entry(path, summary, "seeds", list)
    if not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise RunFolderError(f"{path}: key `seeds`: a list of whole numbers was expected")
    job, model = entry(path, summary, "job", str), entry(path, summary, "model", str)
    runs = {(seed, band): run_dir / "runs" / f"seed{seed}-{band}" for seed in seeds for band in BANDS}
    flows = {key: read_table(folder, "flows.csv") for key, folder in runs.items()}
    iterations = {key: pieces.by_job(read_table(folder, "iterations.csv")).get(job, []) for key, folder in runs.items()}
    links = {key: read_table(folder, "links.csv") for key, folder in runs.items()}
    counted = _Counted.of(path, summary)
    pairs = [pair for seed in seeds for pair in _paired(seed, flows[seed, "same"], flows[seed, "low"], counted)]
    tenants = list(dict.fromkeys(pair.row["traffic"] for pair in pairs))
    several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    drawn = _progress(runs, iterations, flows, job, seeds[0], caps)
    return "tenants.html.j2", {
        "title": f"gradtide tenants: {pieces.clip(model, 40)}",
        "what": f"{pieces.clip(job, 30)}: {pieces.clip(model, 40)} beside background flows, {several}",
        "reproduce": f"gradtide tenants runs/seed{seeds[0]}-same/scenario.resolved.toml --seeds {len(seeds)}",
        "figures": _figures(path, summary),
        "one_run": len(seeds) == 1,
        "classes": _classes(path, summary),
        "of": pieces.clip(counted.traffic, 40),
        "others": len(tenants) > 1,
        "seeds": several,
        "mean_of": f"Means of {several}. " if len(seeds) > 1 else "",
        "cdfs": _cdfs([pair for pair in pairs if pair.row["traffic"] == counted.traffic], counted, caps),
        "iterations": _iterations(iterations, seeds, caps),
        "progress": drawn,
        "probed": _probed(runs, seeds[0], caps),
        "links": _links(links, seeds, caps),
        "gains": _gains(pairs, len(tenants) > 1, caps),
        "scenario": resolved_scenario(runs[seeds[0], "low"], caps),
        "scenario_of": f"runs/seed{seeds[0]}-low",
    }


@dataclass(frozen=True)
class _Counted:
    """The flows that count: those of one tenant, outside the warm-up and the cool-down of the run."""

    traffic: str
    warmup_us: float
    cooldown_us: float
    small_bytes: float
    large_bytes: float

    @classmethod
    def of(cls, path: Path, summary: Row) -> "_Counted":
        def number(key: str) -> float:
            return float(entry(path, summary, f"counted.{key}", (int, float)))

        return cls(
            entry(path, summary, "counted.traffic", str),
            number("warmup_ms") * 1e3,
            number("cooldown_ms") * 1e3,
            number("small_bytes"),
            number("large_bytes"),
        )

    def size_class(self, count: float) -> str:
        """Return the class of a flow of that many bytes."""
        return "small" if count <= self.small_bytes else "large" if count >= self.large_bytes else "medium"

    def rows(self, flows: Sequence[Row]) -> list[Row]:
        """Return the rows that count. The cool-down of a tenant ends with the last start of its flows."""
        last: dict[str, float] = {}
        for row in flows:
            last[row["traffic"]] = max(last.get(row["traffic"], 0.0), row["start_us"])
        return [
            row
            for row in flows
            if row["start_us"] >= self.warmup_us
            and (not self.cooldown_us or row["start_us"] < last[row["traffic"]] - self.cooldown_us)
        ]


def _paired(seed: int, same: Sequence[Row], low: Sequence[Row], counted: _Counted) -> list[Pair]:
    other = {(row["traffic"], row["flow"]): row["fct_us"] for row in low}
    return [Pair(seed, row, row["fct_us"], other.get((row["traffic"], row["flow"]))) for row in counted.rows(same)]


def _known(path: Path, summary: Row, key: str) -> float | None:
    value = entry(path, summary, key, (int, float, type(None)))
    if value is not None and not math.isfinite(value):
        raise RunFolderError(f"{path}: key `{key}`: not a finite number")
    return None if value is None else float(value)


def saved(value: float | None) -> str:
    """Write a saving in percent."""
    text = "–" if value is None else f"{value:.1f}".replace("-", "−")
    return "0.0" if text == "−0.0" else text


def change(value: float | None) -> str:
    """Write a change in percent with its sign."""
    text = saved(value)
    return text if text in ("–", "0.0") or text.startswith("−") else f"+{text}"


def _maybe(value: float | None, write: Callable[[float], str] = pieces.ms) -> str:
    return "–" if value is None else write(value)


def _figures(path: Path, summary: Row) -> list[dict[str, Any]]:
    def tile(name: str, key: str, kind: str, unit: str, write: Callable[[float], str] = pieces.ms) -> dict[str, Any]:
        value = _known(path, summary, f"{key}.saves_percent")
        same, low = (_maybe(_known(path, summary, f"{key}.{band}"), write) for band in BANDS)
        return {
            "name": name,
            "value": saved(value),
            "unit": "%",
            "interval": _interval(path, summary, key, saves=True),
            "key": f"{key}.saves_percent",
            "kind": kind,
            "pair": {"same": same, "low": low, "unit": unit, "key": key},
            "badge": None,
        }

    colour = entry(path, summary, "colour", str)
    mark, words = VERDICTS.get(colour, ("?", "unknown: too few flows or iterations completed"))
    job = tile("Job's iteration time", "iteration_time_ms", "compute", "ms")
    job["key"] = "iteration_time_ms.change_percent"
    job["value"] = change(_known(path, summary, job["key"]))
    job["interval"] = _interval(path, summary, "iteration_time_ms", saves=False)
    job["badge"] = {"colour": colour if colour in VERDICTS else "unknown", "mark": mark, "words": words}
    small, large = (
        tile(f"{name.capitalize()} flows save", f"classes.{name}.mean_fct_ms", "transfer", "ms, mean")
        for name in ("small", "large")
    )
    dropped = tile("Packets dropped", "drops", "exposed", "packets", lambda v: f"{v:.0f}")
    fewer = _known(path, summary, "drops.saves_percent")
    dropped |= {"key": "", "value": change(None if fewer is None else -fewer)}
    dropped["interval"] = _interval(path, summary, "drops", saves=False)
    return [job, small, large, dropped]


def _interval(path: Path, summary: Row, key: str, *, saves: bool) -> str:
    """Write the 95 % interval of a change; nothing where the study has none. `saves`: of what is saved, not added."""
    pair = entry(path, summary, key, dict)
    ends = pair.get("saves_interval_percent")
    if ends is None:
        return ""
    if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)):
        raise RunFolderError(f"{path}: key `{key}.saves_interval_percent`: two numbers were expected")
    low, high = ends if saves else (-ends[1], -ends[0])
    return f"{saved(low)} to {saved(high)} %"


def _classes(path: Path, summary: Row) -> dict[str, Any]:
    """Return the table of classes: in each cell what is saved, from what to what, and what it is without a job."""

    def cell(name: str, figure: str) -> dict[str, Any]:
        key = f"classes.{name}.{figure}"
        saves = _known(path, summary, f"{key}.saves_percent")
        same, low = (_maybe(_known(path, summary, f"{key}.{band}")) for band in BANDS)
        ends = entry(path, summary, key, dict).get("saves_interval_percent")
        is_clear = saves is not None and abs(saves) >= 0.5 and (ends is None or ends[0] * ends[1] > 0)
        cls = "" if saves is None or not is_clear else "agrees" if saves > 0 else "differs"
        alone = _known(path, summary, f"{key}.no_job") if "no_job" in entry(path, summary, key, dict) else None
        interval = _interval(path, summary, key, saves=True)
        no_job = "" if alone is None else _maybe(alone)
        return {
            "key": key,
            "saves": saved(saves),
            "same": same,
            "low": low,
            "cls": cls,
            "interval": interval,
            "no_job": no_job,
        }

    first = entry(path, summary, f"classes.{CLASSES[0]}", dict)
    shown = {figure: title for figure, title in FIGURES.items() if figure in first}
    rows = []
    for name in CLASSES:
        count = _known(path, summary, f"classes.{name}.flows")
        rows.append(
            {
                "name": name,
                "flows": _maybe(count, lambda v: f"{v:.1f}".removesuffix(".0")),
                "key": f"classes.{name}.flows",
                "cells": [cell(name, figure) for figure in shown],
            }
        )
    return {"columns": list(shown.values()), "rows": rows}


def _cdfs(pairs: Sequence[Pair], counted: _Counted, caps: pieces.Caps) -> list[dict[str, Any]]:
    """Draw for each class of size how many flows have ended within a time; no chart where none has."""
    what = {
        "small": f"Small flows, up to {_round_size(counted.small_bytes)}",
        "medium": "Medium flows",
        "large": f"Large flows, {_round_size(counted.large_bytes)} and more",
        "all": "All flows",
    }
    charts = []
    for name in CLASSES:
        own = [p for p in pairs if name in ("all", counted.size_class(p.row["bytes"]))]
        times = {
            "same": sorted(p.same / 1e3 for p in own if p.same),
            "low": sorted(p.low / 1e3 for p in own if p.low),
        }
        every = times["same"] + times["low"]
        if not every:
            continue
        x = _log_steps(min(every), max(every), min(CDF_POINTS, 20 + caps.rows))
        lines = []
        for index, (band, width) in enumerate((("same", 5.0), ("low", 2.0))):
            shares = [100 * bisect_right(times[band], at) / len(own) for at in x]
            lines.append(
                {
                    **pieces.line(index, BANDS[band], shares),
                    "token": f"band-{band}",
                    "width": width,
                    "dash": [],
                }
            )
        missing = {band: len(own) - len(times[band]) for band in BANDS}
        caption = f"{len(own)} flow{'s' if len(own) != 1 else ''}"
        if any(missing.values()):
            caption += f"; not completed: {missing['same']} in the same band, {missing['low']} in the lower"
        charts.append(
            {
                **pieces.chart(
                    f"Completion times, {what[name]}",
                    x=x,
                    lines=lines,
                    xlabel="completion time, ms",
                    ylabel="flows completed, %",
                    xname="within",
                    xunit="ms",
                    unit="%",
                    xlog=True,
                    yrange=[0, 104],
                    caption=caption + ".",
                    cap=caps.rows,
                ),
                "title": what[name],
                "hint": "",
            }
        )
    return charts


def _round_size(count: float) -> str:
    unit, scale = ("MB", 1e6) if count >= 1e6 else ("kB", 1e3)
    return f"{count / scale:g} {unit}"


def _log_steps(low: float, high: float, count: int) -> list[float]:
    """Return `count` times from just below `low` to `high` or just above, at equal ratios."""
    low, high = low * 0.98, high * 1.002
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**i:.5g}") for i in range(count - 1)] + [float(f"{high:.5g}")]


def _iterations(
    tables: Mapping[tuple[int, str], Sequence[Row]], seeds: Sequence[int], caps: pieces.Caps
) -> dict[str, Any] | None:
    """Draw the time of each iteration in both bands, mean over the seeds that all got so far."""
    means: dict[str, list[float]] = {}
    for band in BANDS:
        runs = [tables[seed, band] for seed in seeds]
        count = min(len(rows) for rows in runs)
        means[band] = [sum(rows[i]["time_us"] for rows in runs) / len(runs) / 1e3 for i in range(count)]
    longest = max(map(len, means.values()))
    if longest < 2:
        return None
    step = -(-longest // 200)
    lines = []
    for index, (band, width) in enumerate((("same", 5.0), ("low", 2.0))):
        bins = [means[band][i : i + step] for i in range(0, longest, step)]
        values = [sum(part) / len(part) if part else None for part in bins]
        lines.append({**pieces.line(index, BANDS[band], values), "token": f"band-{band}", "width": width, "dash": []})
    compute = tables[seeds[0], "same"][0]["compute_us"] / 1e3 if tables[seeds[0], "same"] else None
    notes = ["From the start of one backward pass to the start of the next."]
    if len(seeds) > 1:
        notes.append(f"Mean of {len(seeds)} seeds, up to the last iteration that all of them completed.")
    if step > 1:
        notes.append(f"Every point is the mean of {step} iterations.")
    return pieces.chart(
        "Time of every iteration of the job",
        x=list(range(0, longest, step)),
        lines=lines,
        xlabel="iteration",
        ylabel="iteration time, ms",
        xname="iteration",
        xwhole=True,
        marks=[] if compute is None else [{"y": compute, "label": "compute alone"}],
        caption=" ".join(notes),
        cap=caps.rows,
    )


def _progress(
    runs: Mapping[tuple[int, str], Path],
    iterations: Mapping[tuple[int, str], Sequence[Row]],
    flows: Mapping[tuple[int, str], Sequence[Row]],
    job: str,
    seed: int,
    caps: pieces.Caps,
) -> dict[str, Any] | None:
    panels = []
    for band, name in BANDS.items():
        folder = runs[seed, band]
        transfers, operations = (
            pieces.by_job(read_table(folder, table)).get(job, []) for table in ("transfers.csv", "operations.csv")
        )
        panels.append(
            progress.Panel(name.capitalize(), iterations[seed, band], transfers, operations, flows[seed, band])
        )
    count = progress.drawn_iterations(panels)
    label = f"Progress of the job in {count} iteration{'s' if count != 1 else ''}, same band above lower band"
    svg = progress.draw(panels, label=label, ident="progress", cap=caps.rows)
    if svg is None:
        return None
    late = [sum(row["margin_us"] < -1e-5 for row in panel.transfers if row["iteration"] < count) for panel in panels]
    total = sum(row["iteration"] < count for row in panels[0].transfers)
    drawn, every = len(progress.rows_of(panels, caps.rows)), len({row["bucket"] for row in panels[0].transfers})
    caption = (
        f"Seed {seed}, {f'the first {count} iterations' if count > 1 else 'the first iteration'}. Of {total} transfers "
        f"{late[0]} arrive after they are needed in the same band, and {late[1]} in the lower band."
    )
    if drawn < every:
        caption += f" Rows show {drawn} of {every} buckets."
    if any(row["fct_us"] for row in flows[seed, "same"]):
        caption += (
            " Background traffic: all flows together; the bytes of a flow are spread evenly over its completion time."
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
    """Draw the queue and the use of the busiest port over time, both bands side by side on the same axes."""
    samples = {name: read_table(runs[seed, band], "queues.csv", required=False) for band, name in BANDS.items()}
    drawn = probed.draw(samples, [f"band-{band}" for band in BANDS], caps)
    return drawn and {**drawn, "note": f"Seed {seed}. {drawn['note']}"}


@dataclass(frozen=True)
class _Column:
    """A figure of links: its column, its title, how seeds are folded into one value, and how that is written."""

    name: str
    title: str
    fold: Callable[[list[float]], float]
    write: Callable[[float], str]


def _links(tables: Mapping[tuple[int, str], Sequence[Row]], seeds: Sequence[int], caps: pieces.Caps) -> dict[str, Any]:
    """Return for every link use, drops and longest queue in both bands, the busiest first where not all are shown."""

    def over_seeds(band: str, column: str, fold: Callable[[list[float]], float]) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for seed in seeds:
            for row in tables[seed, band]:
                if row[column] is not None:
                    found.setdefault(row["link"], []).append(float(row[column]))
        return {link: fold(values) for link, values in found.items()}

    def mean(values: list[float]) -> float:
        return sum(values) / len(seeds)

    names = [row["link"] for row in tables[seeds[0], "same"]]
    columns = [
        _Column("utilisation", "utilisation, %", mean, pieces.percent),
        _Column("drops", "packets dropped", mean, "{:.0f}".format),
        _Column("max_queue_packets", "longest queue, packets", max, "{:.0f}".format),
    ]
    values = {c.name: {band: over_seeds(band, c.name, c.fold) for band in BANDS} for c in columns}
    use = values["utilisation"]["same"]
    room = min(caps.rows, 32)
    shown = names if len(names) <= room else sorted(names, key=lambda n: (-use.get(n, 0.0), names.index(n)))[:room]

    def bars(name: str, column: _Column) -> list[dict[str, Any]]:
        own = values[column.name]
        top = 1.0 if column.name == "utilisation" else max((v for of in own.values() for v in of.values()), default=0)
        return [
            {
                "band": band,
                "words": words,
                "share": min(100 * own[band].get(name, 0.0) / (top or 1.0), 100.0),
                "text": _maybe(own[band].get(name), column.write),
            }
            for band, words in BANDS.items()
        ]

    rows = [{"name": pieces.clip(name, 40), "cells": [bars(name, column) for column in columns]} for name in shown]
    note = "" if len(shown) == len(names) else f"The {len(shown)} busiest of {len(names)} links; all are in links.csv."
    return {"columns": [column.title for column in columns], "rows": rows, "note": note}


def _gains(pairs: Sequence[Pair], several: bool, caps: pieces.Caps) -> dict[str, Any]:
    """Return the flows that gain and lose most, in milliseconds rather than in percent."""
    known = sorted(
        (p for p in pairs if p.same is not None and p.low is not None),
        key=lambda p: (-p.gain_us, p.seed, p.row["traffic"], p.row["flow"]),
    )
    gains = [p for p in known if p.gain_us > 0]
    losses = [p for p in reversed(known) if p.gain_us < 0]
    columns = ["#flow", "#seed", "#starts, ms", "from, to", "#size", "#same, ms", "#low, ms"]
    columns = [*(["tenant"] if several else []), *columns, "#sooner by, ms", "#low ÷ same"]

    def cells(pair: Pair, cls: str) -> list[Any]:
        row = pair.row
        ratio = "–" if not pair.same or pair.low is None else f"{pair.low / pair.same:.3g}"
        own = [
            row["flow"],
            pair.seed,
            milliseconds(row["start_us"]),
            f"h{row['src']} → h{row['dst']}",
            size(row["bytes"]),
            milliseconds(pair.same or 0.0),
            milliseconds(pair.low or 0.0),
            pieces.cell(milliseconds(pair.gain_us), cls),
            ratio,
        ]
        return [row["traffic"], *own] if several else own

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
