"""The report of one run."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide.report import pieces, probed
from gradtide.report.folder import Row, RunFolderError, entry, read_table, read_text
from gradtide.report.timeline import milliseconds, size


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template of a run and what it shows."""
    path = run_dir / "summary.json"
    jobs: Mapping[str, Any] = entry(path, summary, "jobs", dict)
    tables = {
        name: pieces.by_job(read_table(run_dir, f"{name}.csv", required=name != "bandwidth"))
        for name in ("iterations", "transfers", "operations", "bandwidth")
    }
    links = read_table(run_dir, "links.csv")
    rates = {row["rate_bps"] for row in links}
    rate = rates.pop() if len(rates) == 1 else None
    # The first iteration of the pipe engine begins with the forward pass, that of the packet engine with the backward
    # pass. Both end when the same pass begins again.
    packets = summary.get("engine") == "packet"
    measured = ", measured from one backward pass to the next" if packets else ""
    views = []
    for number, name in enumerate(jobs):
        if number < caps.jobs:
            mine = {key: table.get(name, []) for key, table in tables.items()}
            views.append(_job(path, name, jobs[name], mine, rate, f"t{number}", caps, measured))
    overview = pieces.table(
        "Jobs",
        ("job", "model", "#workers", "#iteration time, ms", "#utilisation U, %", "#exposed, ms", "#rho"),
        [_job_row(path, name, facts) for name, facts in jobs.items()] if len(jobs) > 1 else [],
        cap=caps.rows,
        where="summary.json",
    )
    first = views[0]["what"] if len(views) == 1 else f"{len(jobs)} jobs" if jobs else "background flows without a job"
    traffic: Mapping[str, Any] = entry(path, summary, "traffic", dict) if "traffic" in summary else {}
    return "run.html.j2", {
        "title": f"gradtide run: {', '.join(pieces.clip(name, 30) for name in list(jobs or traffic)[:3])}",
        "what": first if rate is None else f"{first}, {pieces.rate(rate)} links",
        "reproduce": "gradtide run scenario.resolved.toml",
        "jobs": views,
        "many": len(jobs) > 1,
        "overview": overview,
        "dropped": f"{len(views)} of {len(jobs)} jobs are drawn; the table above has them all."
        if len(views) < len(jobs)
        else "",
        "traffic": [_tenant(path, name, traffic[name], caps) for name in list(traffic)[: caps.jobs]],
        "probed": probed.draw({"": read_table(run_dir, "queues.csv", required=False)}, ["transfer"], caps),
        "links": _links(links, packets, caps),
        "warnings": [pieces.clip(text, 200) for text in summary.get("warnings", []) if isinstance(text, str)],
        "scenario": resolved_scenario(run_dir, caps),
    }


def _links(rows: Sequence[Row], queues: bool, caps: pieces.Caps) -> dict[str, Any]:
    """Return the table of links; with what their queues did where there were `queues`."""
    columns = ["link", "#rate", "#sent", "#busy, ms", "#utilisation, %"]
    more = {"drops": "#dropped packets", "ce_marks": "#marked packets", "max_queue_packets": "#longest queue, packets"}
    known = list(more) if queues else []

    def cells(row: Row) -> list[Any]:
        own = [pieces.rate(row["rate_bps"]), size(row["bytes"]), milliseconds(row["busy_us"])]
        rest = ["–" if row[column] is None else row[column] for column in known]
        return [row["link"], *own, pieces.percent(row["utilisation"]), *rest]

    cap = min(caps.rows, 64)
    if len(rows) > cap:
        # Of a large network the busiest links tell most.
        rows = sorted(rows, key=lambda row: -row["utilisation"])
    return pieces.table(
        "Links" if len(rows) <= cap else "Links, the busiest first",
        [*columns, *(more[column] for column in known)],
        [cells(row) for row in rows],
        cap=cap,
        where="links.csv",
    )


def _tenant(path: Path, name: str, classes: Any, caps: pieces.Caps) -> dict[str, Any]:
    """Return the completion times of one tenant's flows by size class."""
    if not isinstance(classes, Mapping):
        raise RunFolderError(f"{path}: key `traffic.{pieces.clip(name)}`: an object was expected")
    figures = {f"{name}_fct_ms": f"{name}, ms" for name in ("mean", "p50", "p90", "p99")}
    if all("mean_slowdown" in of for of in classes.values() if isinstance(of, Mapping)):
        figures |= {"mean_slowdown": "slowdown, mean", "p99_slowdown": "slowdown, p99"}

    def cell(size_class: str, figure: str) -> dict[str, str]:
        value = entry(path, classes, f"{size_class}.{figure}", (int, float, type(None)))
        text = "–" if value is None else pieces.ms(value) if figure in figures else str(value)
        return pieces.cell(text, key=f"traffic.{name}.{size_class}.{figure}")

    table = pieces.table(
        f"Completion times of the flows of {pieces.clip(name)}",
        ("flows", "#started", "#completed", *(f"#{word}" for word in figures.values())),
        [[label, *(cell(label, figure) for figure in ("started", "completed", *figures))] for label in classes],
        cap=caps.rows,
        where="summary.json",
    )
    return {"name": pieces.clip(name), "table": table}


def resolved_scenario(run_dir: Path, caps: pieces.Caps) -> str:
    """Return the scenario of a run folder, cut where it is too long for a page."""
    scenario = read_text(run_dir / "scenario.resolved.toml")
    if len(scenario) <= caps.scenario:
        return scenario
    return scenario[: caps.scenario] + f"\n… {len(scenario) - caps.scenario} more characters in scenario.resolved.toml"


def _number(path: Path, facts: Mapping[str, Any], key: str) -> float:
    value = entry(path, facts, key, (int, float))
    if not math.isfinite(value):
        raise RunFolderError(f"{path}: key `{key}`: not a finite number")
    return float(value)


def _job_row(path: Path, name: str, facts: Mapping[str, Any]) -> list[Any]:
    def number(key: str, write: Callable[[float], str]) -> dict[str, str]:
        return pieces.cell(write(_number(path, facts, key)))

    return [
        name,
        entry(path, facts, "model", str),
        entry(path, facts, "workers", int),
        number("iteration_time_ms.mean", pieces.ms),
        number("utilisation", pieces.percent),
        number("waterfall_ms.exposed", pieces.ms),
        number("rho", lambda v: f"{v:.3f}"),
    ]


def _job(
    path: Path,
    name: str,
    facts: Mapping[str, Any],
    tables: Mapping[str, list[Row]],
    rate: int | None,
    ident: str,
    caps: pieces.Caps,
    measured: str,
) -> dict[str, Any]:
    def number(key: str) -> float:
        return _number(path, facts, key)

    key = f"jobs.{name}"
    mean, low, high = (number(f"iteration_time_ms.{k}") for k in ("mean", "min", "max"))
    count = entry(path, facts, "iterations", int)
    waterfall = {kind: number(f"waterfall_ms.{kind}") for kind, _, _ in pieces.WATERFALL}
    varies = high - low > 1e-6 * mean
    spread = (
        f"{pieces.ms(low)} to {pieces.ms(high)} ms in {count} iterations"
        if varies
        else f"the same in all {count} iterations"
    )
    spread += measured
    exposed = f"{pieces.percent(waterfall['exposed'] / mean)} % of the iteration: compute waits for a gradient"
    if waterfall["barrier"] > 0:
        exposed += f"; {pieces.ms(waterfall['barrier'])} ms more at the barrier"
    model, workers = entry(path, facts, "model", str), entry(path, facts, "workers", int)
    buckets = entry(path, facts, "buckets", int)
    what = (
        f"{pieces.clip(name, 40)}: {pieces.clip(model, 40)} "
        f"on {workers} worker{'s' if workers != 1 else ''}, "
        f"{size(number('parameter_bytes'))} of gradients in {buckets} bucket{'s' if buckets != 1 else ''}"
    )
    return {
        "name": pieces.clip(name),
        "what": what,
        "figures": [
            {
                "name": "Iteration time",
                "value": pieces.ms(mean),
                "unit": "ms",
                "key": f"{key}.iteration_time_ms.mean",
                "kind": "",
                "note": spread,
            },
            {
                "name": "Utilisation U",
                "value": pieces.percent(number("utilisation")),
                "unit": "%",
                "key": f"{key}.utilisation",
                "kind": "compute",
                "note": f"share of the iteration in which workers compute; {pieces.ms(number('compute_ms'))} ms",
            },
            *_speed_up(path, facts, key),
            {
                "name": "Exposed communication",
                "value": pieces.ms(waterfall["exposed"]),
                "unit": "ms",
                "key": f"{key}.waterfall_ms.exposed",
                "kind": "exposed",
                "note": exposed,
            },
            {
                "name": "ρ = N/C",
                "value": f"{number('rho'):.2f}",
                "unit": "",
                "key": f"{key}.rho",
                "kind": "transfer",
                "note": f"communication / compute: {pieces.ms(number('comm_ms'))} ms / "
                f"{pieces.ms(number('compute_ms'))} ms",
            },
        ],
        "waterfall": pieces.waterfall(waterfall, f"{key}.waterfall_ms"),
        "timeline": pieces.drawn_timeline(
            tables["operations"],
            tables["transfers"],
            label=f"Timeline of one iteration of job {pieces.clip(name)}",
            ident=ident,
            cap=caps.rows,
        ),
        "slack": slack_chart(tables["transfers"], caps),
        "bandwidth": _bandwidth_chart(tables["bandwidth"], rate, mean, number("compute_ms"), caps),
        "iterations": _iteration_chart(tables["iterations"], caps) if varies else None,
        "all": pieces.table(
            f"All figures of job {pieces.clip(name)}",
            ("key", "#value"),
            _flat(facts, key, key + "."),
            cap=caps.rows,
            where="summary.json",
        ),
    }


def _speed_up(path: Path, facts: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the tile of the speed-up over one worker; folders of earlier versions have none."""
    if "speed_up" not in facts:
        return []
    efficiency = pieces.percent(_number(path, facts, "scaling_efficiency"))
    return [
        {
            "name": "Speed-up",
            "value": f"{_number(path, facts, 'speed_up'):.4g}",
            "unit": "x",
            "key": f"{key}.speed_up",
            "kind": "slack",
            "note": f"over one worker without a network: a scaling efficiency of {efficiency} %",
        }
    ]


def _flat(value: Any, key: str, start: str) -> list[list[dict[str, str]]]:
    """List every number and word of a summary under its dotted key; lists are left to the file."""
    if isinstance(value, Mapping):
        return [row for k, v in value.items() for row in _flat(v, f"{key}.{k}", start)]
    if isinstance(value, list):
        return []
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = "–" if value is None else pieces.figure(value) if isinstance(value, float) and number else str(value)
    return [[pieces.cell(key.removeprefix(start)), pieces.cell(text, key=key)]]


def slack_chart(transfers: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw slack and margin of every layer, of pulls where there are any; None where nothing is sent."""
    transfers = [row for row in transfers if row.get("direction") != "push"]
    if not transfers:
        return None
    slack: dict[tuple[int, int], list[Row]] = {}
    for row in transfers:
        slack.setdefault((row["first_layer"], row["last_layer"]), []).append(row)
    spans = sorted(slack)
    step = -(
        -len(spans) // 400
    )  # Adjacent buckets share a step of the chart, which shows the least value: it is the one that delays compute.
    x: list[float] = []
    lines: list[list[float]] = [[], []]
    for i in range(0, len(spans), step):
        x.append(spans[i][0])
        for values, key in zip(lines, ("slack_us", "margin_us"), strict=True):
            means = [sum(row[key] for row in slack[s]) / len(slack[s]) / 1e3 for s in spans[i : i + step]]
            values.append(min(means))
    x.append(spans[-1][1] + 1)
    for values in lines:
        values.append(values[-1])
    note = f" Every step shows the least value of {step} adjacent buckets." if step > 1 else ""
    chart = pieces.chart(
        "Slack and margin against layer index",
        x=x,
        lines=[
            {
                **pieces.line(2, "slack: ready until needed", lines[0]),
                "dash": [],
                "width": 2.4,
                "token": "transfer",
            },
            {**pieces.line(1, "margin: received until needed", lines[1]), "width": 2.4, "token": "exposed"},
        ],
        xlabel="layer index, input side = 0",
        ylabel="ms",
        xname="layer",
        stepped=True,
        band=[1, 2],
        marks=[{"y": 0, "label": "below 0: compute waits", "token": "exposed-text"}],
        legend=[{"token": "slack", "name": "queueing and sending"}],
        caption="Layers near the input get their gradients last and need them first, so they have the least slack. "
        "Layers of one bucket have the same values. Values are means over the measured iterations." + note,
        cap=caps.rows,
    )
    return chart


def _bandwidth_chart(
    rows: Sequence[Row], rate: int | None, mean: float, compute_ms: float, caps: pieces.Caps
) -> dict[str, Any] | None:
    if not rows:
        return None
    rates = sorted({row["rate_bps"] for row in rows})
    found = {(row["order"], row["barrier"], row["rate_bps"]): row["iteration_time_us"] / 1e3 for row in rows}
    kinds = list(dict.fromkeys((row["order"], row["barrier"]) for row in rows))
    kept = rates if len(rates) <= 200 else rates[:: -(-len(rates) // 200)]
    lines = [
        pieces.line(i, pieces.schedule(*kind), [found.get((*kind, r)) for r in kept]) for i, kind in enumerate(kinds)
    ]
    marks: list[dict[str, Any]] = [{"y": compute_ms, "label": f"compute alone {pieces.ms(compute_ms)} ms"}]
    dots = []
    if rate is not None:
        marks.append({"x": rate / 1e9, "label": f"this run: {pieces.rate(rate)}", "token": "text"})
        dots.append({"x": rate / 1e9, "y": mean})
    return pieces.chart(
        "Iteration time over link rate",
        x=[r / 1e9 for r in kept],
        lines=lines,
        xlabel="link rate, Gbit/s",
        ylabel="iteration time, ms",
        xname="at",
        xunit="Gbit/s",
        xlog=True,
        # Near the fastest links all lines end in the compute time: only steps of equal ratio show both ends.
        ylog=True,
        marks=marks,
        dots=dots,
        caption="The same job at other link rates; both scales are logarithmic. Lines that coincide are drawn inside "
        "each other. Where all lines meet the dashed one, the network costs no time.",
        cap=caps.rows,
    )


def _iteration_chart(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    if len(rows) < 2:
        return None
    step = -(-len(rows) // 400)
    bins = [rows[i : i + step] for i in range(0, len(rows), step)]
    means = [sum(row["time_us"] for row in b) / len(b) / 1e3 for b in bins]
    name = "iteration time" if step == 1 else f"iteration time, means of {step}"
    return pieces.chart(
        "Iteration time of every iteration",
        x=[b[0]["iteration"] for b in bins],
        lines=[{**pieces.line(0, name, means), "width": 2}],
        xlabel="iteration",
        ylabel="ms",
        xname="iteration",
        xwhole=True,
        cap=caps.rows,
    )
