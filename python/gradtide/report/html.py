"""The report: a run or study folder as one HTML file that opens anywhere, with nothing to fetch.

Read here: what is shown and in which words. How it looks is in `assets/`, how a timeline is drawn in `timeline.py`.
The page holds no time stamp and nothing of the machine, so the same folder gives the same bytes.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from markupsafe import Markup

from gradtide.report import timeline
from gradtide.report.folder import Row, RunFolderError, entry, read_json, read_table, read_text
from gradtide.report.timeline import milliseconds, size

MAX_BYTES = 400_000
"""A report is mailed and kept beside results; it never grows past this."""

_UPLOT = "uplot-1.6.32"

# Name: light, dark. Hues after Okabe & Ito (2008), told apart by colour-blind readers; lightness set for contrast:
# text on `bg` and `panel`, and `on-colour` on the waterfall's fills, reach 4.5:1 (a test computes it).
_TOKENS = {
    "bg": ("#ffffff", "#11161d"),
    "panel": ("#f3f5f8", "#1b222c"),
    "text": ("#141a22", "#e9edf3"),
    "muted": ("#55606f", "#a7b1bf"),
    "line": ("#d8dde4", "#343e4b"),
    "link": ("#0b5cad", "#7db8f5"),
    "focus": ("#0b5cad", "#7db8f5"),
    "good": ("#006b52", "#45cfa6"),
    "compute": ("#2b6cb3", "#6fa8e8"),
    "backward": ("#1c4676", "#4a7cb8"),
    "transfer": ("#00876a", "#2cbd96"),
    "slack": ("#c9e8de", "#1d4a40"),
    "exposed": ("#c2410c", "#ff8a50"),
    "exposed-soft": ("#fbe3d6", "#4a2817"),
    "exposed-text": ("#b03a0a", "#ff9a68"),
    "barrier": ("#93468f", "#d993d4"),
    "barrier-soft": ("#f1ddf0", "#432743"),
    "barrier-text": ("#84387f", "#dfa0da"),
    "slowdown": ("#8a6400", "#e6b43c"),
    "on-colour": ("#ffffff", "#11161d"),
    "s1": ("#2b6cb3", "#6fa8e8"),
    "s2": ("#c2410c", "#ff9a66"),
    "s3": ("#00876a", "#2cbd96"),
    "s4": ("#93468f", "#d993d4"),
    "s5": ("#c98a00", "#f2c14e"),
    "s6": ("#8793a3", "#7b8797"),
}

# Lines are drawn in this order; each is thinner than the one below, so that lines that coincide all stay visible.
_STYLES: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("s6", 10, ()),
    ("s1", 6, ()),
    ("s5", 3.4, (9, 7)),
    ("s2", 1.8, ()),
    ("s3", 2.4, (3, 6)),
    ("s4", 1.4, (10, 4, 2, 4)),
)

_WATERFALL = (
    ("compute", "compute", "compute"),
    ("slowdown", "slowdown by overlap", "slowdown"),
    ("exposed", "exposed communication", "exposed"),
    ("barrier", "wait at barrier", "barrier"),
)


@dataclass(frozen=True)
class _Caps:
    """How much of a large folder is shown."""

    rows: int
    jobs: int
    timelines: int
    charts: int
    scenario: int


_CAPS = (
    _Caps(200, 6, 8, 12, 40_000),
    _Caps(60, 3, 4, 8, 10_000),
    _Caps(20, 1, 2, 4, 3_000),
    _Caps(8, 1, 1, 2, 500),
)


def render(run_dir: Path) -> str:
    """Return the report of a finished run or study folder.

    Args:
        run_dir: folder with a `summary.json` of schema `gradtide.run/1`, `gradtide.compare/1` or `gradtide.reproduce/1`.

    Returns:
        A whole HTML document below 400 kB. Where a folder holds more than a page can show, the page says what is left out.

    Raises:
        RunFolderError: if a file of the folder is missing, truncated or garbled, or the schema is unknown.
    """
    path = run_dir / "summary.json"
    summary = read_json(path)
    schema = entry(path, summary, "schema", str)
    views = {"gradtide.run/1": _run, "gradtide.compare/1": _compare, "gradtide.reproduce/1": _reproduce}
    if schema not in views:
        raise RunFolderError(f"{path}: key `schema`: `{_clip(schema)}` is none of {', '.join(views)}")
    for caps in _CAPS:
        template, view = views[schema](run_dir, summary, caps)
        page = _page(template, view, run_dir, summary)
        if len(page.encode("utf-8")) < MAX_BYTES:
            break
    return page


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "assets")
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _page(template: str, view: dict[str, Any], run_dir: Path, summary: Row) -> str:
    light, dark = ("".join(f"--{k}:{v[i]};" for k, v in _TOKENS.items()) for i in (0, 1))
    css = (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
    # A canvas has two device pixels a CSS pixel at least, so that charts are crisp on paper too.
    uplot = (
        f"/*!\n{_asset(_UPLOT + '.LICENSE.txt')}\n*/\nconst uPlot = (() => {{\n"
        f"const devicePixelRatio = Math.max(2, window.devicePixelRatio || 1);\n{_asset(_UPLOT + '.iife.min.js')}\nreturn uPlot;\n}})();\n"
    )
    versions = read_json(run_dir / "versions.json")
    known = [f"{key} {_clip(versions[key])}" for key in ("gradtide", "python", "platform") if key in versions]
    facts = [f"{key} {_clip(summary[key])}" for key in ("engine", "seed") if key in summary]
    sha = summary.get("scenario_sha256")
    if isinstance(sha, str):
        facts.append(f"scenario sha256 {sha[:12]}")
    return (
        _templates()
        .get_template(template)
        .render(
            css=Markup(css + _asset(_UPLOT + ".min.css") + _asset("report.css")),
            js=Markup(uplot + _asset("report.js")),
            headline=_clip(entry(run_dir / "summary.json", summary, "headline", str), 600),
            version=_clip(summary.get("version", "")),
            versions=" · ".join(known + facts),
            **view,
        )
    )


def _clip(value: object, length: int = 80) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- numbers in words -------------------------------------------------------------------------------------------------


def _ms(value: float) -> str:
    return milliseconds(value * 1e3)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _rate(bps: float) -> str:
    unit, scale = ("Gbit/s", 1e9) if bps >= 1e9 else ("Mbit/s", 1e6)
    return f"{bps / scale:g} {unit}"


def _figure(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _schedule(order: str, barrier: bool) -> str:
    return f"{_clip(order, 24)}, {'barrier' if barrier else 'no barrier'}"


# ---- pieces ------------------------------------------------------------------------------------------------------------


def _cell(text: object, cls: str = "", key: str = "", small: str = "") -> dict[str, str]:
    return {"text": _clip(text), "cls": cls, "key": key, "small": small}


def _table(
    label: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cap: int, where: str = ""
) -> dict[str, Any]:
    """Return a table for the template; a `#` before a column's title sets its numbers right."""
    cells = [[x if isinstance(x, dict) else _cell(x) for x in row] for row in rows]
    note = (
        f"The first {cap} of {len(cells)} rows{'; all are in ' + where if where else ''}."
        if len(cells) > cap
        else ""
    )
    heads = [{"title": _clip(c.removeprefix("#")), "number": c.startswith("#")} for c in columns]
    return {"label": label, "columns": heads, "rows": cells[:cap], "note": note}


def _json(value: object) -> Markup:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _line(index: int, name: str, values: Sequence[float | None]) -> dict[str, Any]:
    token, width, dash = _STYLES[index % len(_STYLES)]
    rounded = [None if v is None else float(f"{v:.7g}") for v in values]
    return {"name": _clip(name), "token": token, "width": width, "dash": list(dash), "values": rounded}


def _chart(
    label: str,
    *,
    x: Sequence[float],
    lines: Sequence[dict[str, Any]],
    xlabel: str,
    ylabel: str,
    xname: str,
    xunit: str = "",
    unit: str = "ms",
    caption: str = "",
    legend: Sequence[dict[str, str]] = (),
    cap: int,
    **more: Any,
) -> dict[str, Any]:
    """Return a chart for the template; `more` goes to the drawing as it is (marks, dots, xlog, stepped, band)."""
    known = [v for line in lines for v in line["values"] if v is not None]
    known += [m["y"] for m in more.get("marks", ()) if "y" in m]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    pad = (high - low) * 0.07 or abs(high) * 0.05 or 1.0
    first, last = min(x), max(x)
    if more.get("xlog"):
        ratio = (last / first) ** 0.04 if last > first else 1.5
        xrange = [first / ratio, last * ratio]
    else:
        # Steps fill their range; points keep clear of the frame.
        margin = 0 if more.get("stepped") and last > first else (last - first) * 0.03 or 0.5
        xrange = [first - margin, last + margin]
    spec = {
        "x": list(x), "lines": list(lines), "xlabel": xlabel, "ylabel": ylabel, "xname": xname, "xunit": xunit, "unit": unit,
        "xrange": xrange, "yrange": [low - 1.6 * pad, high + pad], **more,
    }  # fmt: skip
    columns = ["#" + xlabel, *("#" + line["name"] for line in lines)]
    rows = [
        [_figure(at), *("–" if line["values"][i] is None else _figure(line["values"][i]) for line in lines)]
        for i, at in enumerate(x[:-1] if more.get("stepped") else x)
    ]
    return {
        "label": label, "spec": spec, "json": _json(spec), "legend": list(legend), "caption": caption,
        "hint": "Point at the chart, or use the arrow keys on it, to read values.",
        "table": _table(label, columns, rows, cap=cap),
    }  # fmt: skip


def _parts(values: Mapping[str, float], longest: float, room: float) -> list[dict[str, Any]]:
    """Return the pieces of one waterfall bar; a piece is named inside where `room` characters a bar allow it."""
    pieces = []
    for kind, name, short in _WATERFALL:
        share = 100 * max(values[kind], 0) / longest
        words = f"{name} {_ms(values[kind])} ms"
        fits = (f"{short} {_ms(values[kind])} ms", _ms(values[kind]), "")
        text = next(text for text in fits if len(text) < share / 100 * room or not text)
        pieces.append({"kind": kind, "share": share, "text": text, "words": words})
    return pieces


def _waterfall(values: Mapping[str, float], key: str) -> dict[str, Any]:
    parts = _parts(values, sum(values.values()), 120)
    legend = [
        {"kind": k, "name": name, "value": _ms(values[k]), "key": f"{key}.{k}", "zero": values[k] == 0}
        for k, name, _ in _WATERFALL
    ]
    return {"rows": [{"parts": parts, "label": "; ".join(p["words"] for p in parts)}], "legend": legend}


def _timeline(
    operations: Sequence[Row],
    transfers: Sequence[Row],
    *,
    label: str,
    ident: str,
    cap: int,
    span_ms: float | None = None,
) -> dict[str, Any] | None:
    view = timeline.window(operations, transfers)
    if view is None:
        return None
    shown, total = timeline.chosen(view.transfers), view.transfers
    exposed, barrier = view.idle_ms("exposed"), view.idle_ms("barrier")
    late = sum(row["margin_us"] < -1e-5 for row in total)
    words = (
        f"In this iteration compute waits {_ms(exposed)} ms for the network and {_ms(barrier)} ms at the barrier; "
        f"{late} of {len(total)} transfers arrive{'s' if late == 1 else ''} late."
    )
    if not total:
        words = "This job sends nothing."
    if len(shown) < len(total):
        words += (
            f" Rows show {len(shown)} of {len(total)} buckets, the {timeline.TIGHTEST} with the least margin among them; "
            "the lane `network` shows all."
        )
    rows = [
        [row["bucket"], timeline.layers(row), size(row["bytes"]), row["rank"],
         *(milliseconds(row[k] - view.start) for k in ("ready_us", "start_us", "end_us", "needed_us")),
         milliseconds(row["slack_us"]), _cell(milliseconds(row["margin_us"]), "differs" if row["margin_us"] < -1e-5 else "")]
        for row in total
    ]  # fmt: skip
    columns = (
        "#bucket",
        "layers",
        "#bytes",
        "#rank",
        "#ready, ms",
        "#sent from, ms",
        "#to, ms",
        "#needed, ms",
        "#slack, ms",
        "#margin, ms",
    )
    return {
        "svg": timeline.draw(view, label=label, ident=ident, span_ms=span_ms),
        "label": label,
        "caption": words,
        "table": _table(label, columns, rows, cap=cap, where="transfers.csv"),
        "legend": {
            *(["update"] if any(row["kind"] == "update" for row in view.compute) else []),
            *(["transfer"] if total else []),
            *(["late"] if late else []),
            *(
                ["old"]
                if any(row["iteration"] < view.compute[0]["iteration"] for row in view.network)
                else []
            ),
            *(idle.cause for idle in view.idle),
        },
        "span_ms": view.span_ms,
    }


def _by_job(rows: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["job"], []).append(row)
    return grouped


# ---- a run -------------------------------------------------------------------------------------------------------------


def _run(run_dir: Path, summary: Row, caps: _Caps) -> tuple[str, dict[str, Any]]:
    path = run_dir / "summary.json"
    jobs: Mapping[str, Any] = entry(path, summary, "jobs", dict)
    tables = {
        name: _by_job(read_table(run_dir, f"{name}.csv", required=name != "bandwidth"))
        for name in ("iterations", "transfers", "operations", "bandwidth")
    }
    links = read_table(run_dir, "links.csv")
    rates = {row["rate_bps"] for row in links}
    rate = rates.pop() if len(rates) == 1 else None
    views = []
    for number, name in enumerate(jobs):
        if number < caps.jobs:
            mine = {key: table.get(name, []) for key, table in tables.items()}
            views.append(_job(path, name, jobs[name], mine, rate, f"t{number}", caps))
    overview = _table(
        "Jobs",
        ("job", "model", "#workers", "#iteration time, ms", "#utilisation U, %", "#exposed, ms", "#rho"),
        [_job_row(path, name, facts) for name, facts in jobs.items()] if len(jobs) > 1 else [],
        cap=caps.rows,
        where="summary.json",
    )
    first = views[0]["what"] if len(views) == 1 else f"{len(jobs)} jobs"
    scenario = read_text(run_dir / "scenario.resolved.toml")
    if len(scenario) > caps.scenario:
        rest = len(scenario) - caps.scenario
        scenario = scenario[: caps.scenario] + f"\n… {rest} more characters in scenario.resolved.toml"
    link_rows = [
        (
            r["link"],
            _rate(r["rate_bps"]),
            size(r["bytes"]),
            milliseconds(r["busy_us"]),
            _percent(r["utilisation"]),
        )
        for r in links
    ]
    return "run.html.j2", {
        "title": f"gradtide run: {', '.join(_clip(name, 30) for name in list(jobs)[:3])}",
        "what": first if rate is None else f"{first}, {_rate(rate)} links",
        "reproduce": "gradtide run scenario.resolved.toml",
        "jobs": views,
        "many": len(jobs) > 1,
        "overview": overview,
        "dropped": f"{len(views)} of {len(jobs)} jobs are drawn; the table above has them all." if len(views) < len(jobs) else "",
        "links": _table("Links", ("link", "#rate", "#sent", "#busy, ms", "#utilisation, %"), link_rows, cap=min(caps.rows, 64),
                        where="links.csv"),
        "scenario": scenario,
    }  # fmt: skip


def _number(path: Path, facts: Mapping[str, Any], key: str) -> float:
    value = entry(path, facts, key, (int, float))
    if not math.isfinite(value):
        raise RunFolderError(f"{path}: key `{key}`: not a finite number")
    return float(value)


def _job_row(path: Path, name: str, facts: Mapping[str, Any]) -> list[Any]:
    def number(key: str, write: Callable[[float], str]) -> dict[str, str]:
        return _cell(write(_number(path, facts, key)))

    return [
        name, entry(path, facts, "model", str), entry(path, facts, "workers", int), number("iteration_time_ms.mean", _ms),
        number("utilisation", _percent), number("waterfall_ms.exposed", _ms), number("rho", lambda v: f"{v:.3f}"),
    ]  # fmt: skip


def _job(
    path: Path,
    name: str,
    facts: Mapping[str, Any],
    tables: Mapping[str, list[Row]],
    rate: int | None,
    ident: str,
    caps: _Caps,
) -> dict[str, Any]:
    def number(key: str) -> float:
        return _number(path, facts, key)

    key = f"jobs.{name}"
    mean, low, high = (number(f"iteration_time_ms.{k}") for k in ("mean", "min", "max"))
    count = entry(path, facts, "iterations", int)
    waterfall = {kind: number(f"waterfall_ms.{kind}") for kind, _, _ in _WATERFALL}
    varies = high - low > 1e-6 * mean
    spread = (
        f"{_ms(low)} to {_ms(high)} ms in {count} iterations"
        if varies
        else f"the same in all {count} iterations"
    )
    exposed = (
        f"{_percent(waterfall['exposed'] / mean)} % of the iteration: compute stands still for a gradient"
    )
    if waterfall["barrier"] > 0:
        exposed += f"; {_ms(waterfall['barrier'])} ms more at the barrier"
    model, workers = entry(path, facts, "model", str), entry(path, facts, "workers", int)
    buckets = entry(path, facts, "buckets", int)
    what = (
        f"{_clip(name, 40)}: {_clip(model, 40)} on {workers} worker{'s' if workers != 1 else ''}, "
        f"{size(number('parameter_bytes'))} of gradients in {buckets} bucket{'s' if buckets != 1 else ''}"
    )
    return {
        "name": _clip(name),
        "what": what,
        "figures": [
            {"name": "Iteration time", "value": _ms(mean), "unit": "ms", "key": f"{key}.iteration_time_ms.mean", "kind": "",
             "note": spread},
            {"name": "Utilisation U", "value": _percent(number("utilisation")), "unit": "%", "key": f"{key}.utilisation",
             "kind": "compute", "note": f"share of the iteration in which workers compute; {_ms(number('compute_ms'))} ms"},
            {"name": "Exposed communication", "value": _ms(waterfall["exposed"]), "unit": "ms",
             "key": f"{key}.waterfall_ms.exposed", "kind": "exposed", "note": exposed},
            {"name": "ρ = N/C", "value": f"{number('rho'):.2f}", "unit": "", "key": f"{key}.rho",
             "kind": "transfer", "note": f"communication over compute: {_ms(number('comm_ms'))} ms to {_ms(number('compute_ms'))} ms"},
        ],
        "waterfall": _waterfall(waterfall, f"{key}.waterfall_ms"),
        "timeline": _timeline(tables["operations"], tables["transfers"], label=f"Timeline of one iteration of job {_clip(name)}",
                              ident=ident, cap=caps.rows),
        "slack": _slack_chart(tables["transfers"], caps),
        "bandwidth": _bandwidth_chart(tables["bandwidth"], rate, mean, number("compute_ms"), caps),
        "iterations": _iteration_chart(tables["iterations"], caps) if varies else None,
        "all": _table(f"All figures of job {_clip(name)}", ("key", "#value"), _flat(facts, key, key + "."), cap=caps.rows, where="summary.json"),
    }  # fmt: skip


def _flat(value: Any, key: str, start: str) -> list[list[dict[str, str]]]:
    """List every number and word of a summary under its dotted key; lists are left to the file."""
    if isinstance(value, Mapping):
        return [row for k, v in value.items() for row in _flat(v, f"{key}.{k}", start)]
    if isinstance(value, list):
        return []
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = "–" if value is None else _figure(value) if isinstance(value, float) and number else str(value)
    return [[_cell(key.removeprefix(start)), _cell(text, key=key)]]


def _slack_chart(transfers: Sequence[Row], caps: _Caps) -> dict[str, Any] | None:
    if not transfers:
        return None
    slack: dict[tuple[int, int], list[Row]] = {}
    for row in transfers:
        slack.setdefault((row["first_layer"], row["last_layer"]), []).append(row)
    spans = sorted(slack)
    step = -(-len(spans) // 400)  # neighbours share a step of the chart: the least of them is what matters
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
    note = f" Every step is the least of {step} neighbouring buckets." if step > 1 else ""
    chart = _chart(
        "Slack and margin against layer index", x=x,
        lines=[{**_line(2, "slack: ready until needed", lines[0]), "dash": [], "width": 2.4, "token": "transfer"},
               {**_line(1, "margin: received until needed", lines[1]), "width": 2.4, "token": "exposed"}],
        xlabel="layer index, input side = 0", ylabel="ms", xname="layer", stepped=True, band=[1, 2],
        marks=[{"y": 0, "label": "below 0: compute waits", "token": "exposed-text"}],
        legend=[{"token": "slack", "name": "queueing and sending"}],
        caption="Layers near the input need their gradients first and get them last, so they have the least slack. "
        "Layers of one bucket share its values; means over the measured iterations." + note,
        cap=caps.rows,
    )  # fmt: skip
    return chart


def _bandwidth_chart(
    rows: Sequence[Row], rate: int | None, mean: float, compute_ms: float, caps: _Caps
) -> dict[str, Any] | None:
    if not rows:
        return None
    rates = sorted({row["rate_bps"] for row in rows})
    found = {(row["order"], row["barrier"], row["rate_bps"]): row["iteration_time_us"] / 1e3 for row in rows}
    kinds = list(dict.fromkeys((row["order"], row["barrier"]) for row in rows))
    kept = rates if len(rates) <= 200 else rates[:: -(-len(rates) // 200)]
    lines = [
        _line(i, _schedule(*kind), [found.get((*kind, r)) for r in kept]) for i, kind in enumerate(kinds)
    ]
    marks: list[dict[str, Any]] = [{"y": compute_ms, "label": f"compute alone {_ms(compute_ms)} ms"}]
    dots = []
    if rate is not None:
        marks.append({"x": rate / 1e9, "label": f"this run: {_rate(rate)}", "token": "text"})
        dots.append({"x": rate / 1e9, "y": mean})
    return _chart(
        "Iteration time over link rate", x=[r / 1e9 for r in kept], lines=lines, xlabel="link rate, Gbit/s",
        ylabel="iteration time, ms", xname="at", xunit="Gbit/s", xlog=True, marks=marks, dots=dots,
        caption="The same job at other link rates. Lines that coincide are drawn inside each other. "
        "Where all meet the dashed line, the network no longer costs anything.",
        cap=caps.rows,
    )  # fmt: skip


def _iteration_chart(rows: Sequence[Row], caps: _Caps) -> dict[str, Any] | None:
    if len(rows) < 2:
        return None
    step = -(-len(rows) // 400)
    bins = [rows[i : i + step] for i in range(0, len(rows), step)]
    means = [sum(row["time_us"] for row in b) / len(b) / 1e3 for b in bins]
    name = "iteration time" if step == 1 else f"iteration time, means of {step}"
    return _chart(
        "Iteration time of every iteration", x=[b[0]["iteration"] for b in bins],
        lines=[{**_line(0, name, means), "width": 2}], xlabel="iteration", ylabel="ms", xname="iteration", cap=caps.rows,
    )  # fmt: skip


# ---- a comparison ------------------------------------------------------------------------------------------------------


def _inside(folder: Path, *parts: str) -> Path:
    """Return a folder below `folder`.

    Raises:
        RunFolderError: if the parts lead out of it.
    """
    relative = PurePosixPath(*parts)
    if relative.is_absolute() or ".." in relative.parts or "\\" in str(relative) or ":" in str(relative):
        raise RunFolderError(f"{folder}: `{_clip(relative)}` is not a folder below it")
    return folder / relative


def _compare(run_dir: Path, summary: Row, caps: _Caps) -> tuple[str, dict[str, Any]]:
    path = run_dir / "rows.csv"
    rows = read_table(run_dir, "rows.csv")
    if not rows:
        raise RunFolderError(f"{path}:2: a comparison has at least one row")
    names = _schedule_names(rows)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["job"], row["model"], row["workers"], row["rate_bps"]), []).append(row)
    several_jobs = len({key[0] for key in groups}) > 1

    def title(key: tuple[Any, ...], rate: bool = True) -> str:
        job, model, workers, bps = key
        words = f"{_clip(model, 40)}, {workers} worker{'s' if workers != 1 else ''}" + (
            f", {_rate(bps)}" if rate else ""
        )
        return f"{_clip(job, 30)}: {words}" if several_jobs else words

    def gain(key: tuple[Any, ...]) -> float:
        return float(max(row["saves_percent"] for row in groups[key]))

    telling = max(groups, key=lambda key: (gain(key), -key[3]))
    chosen = groups[telling]
    best = min(chosen, key=lambda row: row["iteration_time_us"])
    pair = [chosen[0], best] if best is not chosen[0] else chosen[:2]
    drawn = [
        _row_timeline(run_dir, row, names[row["run"]], f"t{i}", caps, None) for i, row in enumerate(pair)
    ]
    span = max((t["span_ms"] for t in drawn if t), default=0.0)
    timelines = [
        t for i, row in enumerate(pair)
        if (t := _row_timeline(run_dir, row, names[row["run"]], f"t{i}", caps, span)) is not None
    ]  # fmt: skip
    schedules = list(dict.fromkeys(names[row["run"]] for row in rows))
    charts, more = _rate_charts(groups, names, schedules, title, gain, caps)
    several = len(groups) > 1
    why = (
        f"The most telling of {len(groups)} groups: the best schedule, {names[best['run']]}, saves {gain(telling):.1f} % against "
        f"{names[chosen[0]['run']]}." if several else f"{names[best['run']]} is the fastest."
    )  # fmt: skip
    return "compare.html.j2", {
        "title": "gradtide compare",
        "what": f"comparison of {len(schedules)} schedules in {len(rows)} runs",
        "reproduce": "",
        "telling": {"name": title(telling), "why": why, "waterfall": _group_bars(chosen, names, caps)},
        "timelines": timelines,
        "legend": set().union(*(t["legend"] for t in timelines)),
        "pivot": _pivot(groups, names, schedules, title, caps),
        "charts": charts,
        "charts_note": more,
        "everything": _everything(rows, caps),
    }


def _schedule_names(rows: Sequence[Row]) -> dict[str, str]:
    """Name the schedule of every run by what differs in the study, beside order and barrier."""
    fusions, chunks = ({row[k] for row in rows} for k in ("fusion_bytes", "chunk_bytes"))
    names = {}
    for row in rows:
        name = _schedule(row["order"], row["barrier"])
        if len(fusions) > 1:
            name += f", fusion {size(row['fusion_bytes'])}" if row["fusion_bytes"] else ", no fusion"
        if len(chunks) > 1:
            name += f", chunks {size(row['chunk_bytes'])}" if row["chunk_bytes"] else ", whole buckets"
        names[row["run"]] = name
    return names


def _group_bars(rows: Sequence[Row], names: Mapping[str, str], caps: _Caps) -> dict[str, Any]:
    longest = max(row["iteration_time_us"] for row in rows)
    fastest = min(row["iteration_time_us"] for row in rows)
    bars, seen = [], set()
    for row in rows[: min(caps.rows, 24)]:
        values = {"compute": row["compute_us"], "exposed": row["exposed_us"], "barrier": row["barrier_us"]}
        values["slowdown"] = max(row["iteration_time_us"] - sum(values.values()), 0.0)
        if values["slowdown"] < 1e-3:  # a nanosecond: what rounding leaves of a difference
            values["slowdown"] = 0.0
        parts = _parts({k: v / 1e3 for k, v in values.items()}, longest / 1e3, 85)
        seen |= {p["kind"] for p in parts if p["share"] > 0}
        total = f"{milliseconds(row['iteration_time_us'])} ms"
        words = f"{names[row['run']]}: {total}; " + "; ".join(p["words"] for p in parts if p["share"] > 0)
        best = row["iteration_time_us"] <= fastest * (1 + 1e-9) < longest
        bars.append({"name": names[row["run"]], "parts": parts, "total": total, "label": words, "best": best})
    legend = [
        {"kind": k, "name": name, "value": "", "key": "", "zero": False}
        for k, name, _ in _WATERFALL
        if k in seen
    ]
    return {"rows": bars, "legend": legend}


def _row_timeline(
    run_dir: Path, row: Row, name: str, ident: str, caps: _Caps, span_ms: float | None
) -> dict[str, Any] | None:
    found = _run_timeline(
        _inside(run_dir, "runs", row["run"]), row["job"], f"Timeline, {name}", ident, caps, span_ms
    )
    return (
        None if found is None else {**found, "title": f"{name}: {milliseconds(row['iteration_time_us'])} ms"}
    )


def _run_timeline(
    folder: Path, job: str | None, label: str, ident: str, caps: _Caps, span_ms: float | None
) -> dict[str, Any] | None:
    operations, transfers = (
        _by_job(read_table(folder, name)) for name in ("operations.csv", "transfers.csv")
    )
    if job is None:
        job = next(iter(operations), "")
    return _timeline(
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
    caps: _Caps,
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
            cells.append(_cell(milliseconds(row["iteration_time_us"]), "best" if best else "", small=small))
        table.append(cells)
    made = _table("Iteration time by group and schedule", ("group", *("#" + s for s in shown)), table, cap=min(caps.rows, 80),
                  where="rows.csv")  # fmt: skip
    note = (
        "Iteration time, ms; the fastest in each group in green, change against the first schedule beside it."
    )
    if len(schedules) > len(shown):
        note += f" The first {len(shown)} of {len(schedules)} schedules."
    made["note"] = f"{note} {made['note']}".strip()
    return made


def _rate_charts(
    groups: Mapping[tuple[Any, ...], list[Row]],
    names: Mapping[str, str],
    schedules: Sequence[str],
    title: Callable[..., str],
    gain: Callable[[tuple[Any, ...]], float],
    caps: _Caps,
) -> tuple[list[dict[str, Any]], str]:
    """Draw iteration time over link rate, one small chart per model and number of workers."""
    panels: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in groups:
        panels.setdefault(key[:3], []).append(key)
    drawable = [keys for keys in panels.values() if len(keys) > 1]
    kept = sorted(drawable, key=lambda keys: -max(map(gain, keys)))[: caps.charts]
    charts = []
    for keys in (k for k in drawable if k in kept):
        keys = sorted(keys, key=lambda key: key[3])
        found = {
            (names[row["run"]], key): row["iteration_time_us"] / 1e3 for key in keys for row in groups[key]
        }
        lines = [
            _line(i, s, [found.get((s, key)) for key in keys])
            for i, s in enumerate(schedules[:6])
            if any((s, key) in found for key in keys)
        ]
        compute = [row["compute_us"] / 1e3 for key in keys for row in groups[key]]
        marks = (
            [{"y": compute[0], "label": "compute alone"}]
            if max(compute) - min(compute) < 1e-6 * max(compute)
            else []
        )
        chart = _chart(
            f"Iteration time over link rate, {title(keys[0], False)}", x=[key[3] / 1e9 for key in keys], lines=lines,
            xlabel="link rate, Gbit/s", ylabel="ms", xname="at", xunit="Gbit/s", xlog=True, marks=marks, cap=caps.rows,
        )  # fmt: skip
        charts.append({**chart, "title": title(keys[0], False), "hint": ""})
    notes = []
    if len(kept) < len(drawable):
        notes.append(f"The {len(kept)} of {len(drawable)} charts with the largest savings.")
    if charts and len(schedules) > 6:
        notes.append(f"The first 6 of {len(schedules)} schedules.")
    return charts, " ".join(notes)


def _everything(rows: Sequence[Row], caps: _Caps) -> dict[str, Any]:
    numbers = {
        k for row in rows for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)
    }
    columns = [("#" if k in numbers else "") + k for k in rows[0]]

    def text(value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:.6g}".replace("-", "−") if isinstance(value, float) else str(value)

    return _table(
        "All runs",
        columns,
        [[text(v) for v in row.values()] for row in rows],
        cap=caps.rows,
        where="rows.csv",
    )


# ---- a reproduction ----------------------------------------------------------------------------------------------------


def _objects(path: Path, summary: Row, key: str) -> list[Mapping[str, Any]]:
    """Return a list of objects of the summary; a missing one is empty."""
    found = summary.get(key, [])
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise RunFolderError(f"{path}: key `{key}`: a list of objects was expected")
    return found


def _reproduce(run_dir: Path, summary: Row, caps: _Caps) -> tuple[str, dict[str, Any]]:
    path = run_dir / "summary.json"

    def word(item: Mapping[str, Any], key: str) -> str:
        return _clip(item.get(key, ""), 300)

    checks = []
    verdicts = []
    for check in _objects(path, summary, "checks"):
        verdict = entry(path, check, "verdict", str)
        verdicts.append(verdict)
        unit = word(check, "unit")
        published, ours = (
            f"{entry(path, check, k, (str, int, float))}{' ' + unit if unit else ''}"
            for k in ("published", "ours")
        )
        checks.append([word(check, "figure"), word(check, "quantity"), published, ours,
                       _cell(verdict, verdict if verdict in ("agrees", "differs") else ""),
                       {**_cell(""), "text": word(check, "note")}])  # fmt: skip
    agree = sum(v == "agrees" for v in verdicts)
    charts = []
    series = _objects(path, summary, "series")
    for item in series[: caps.charts]:
        chart = _series_chart(path, item, caps)
        charts.append({**chart, "title": _figure_title(item)})
    items = _objects(path, summary, "timelines")
    timelines = [t for t, _ in _reproduced_timelines(run_dir, path, items, caps)]
    tables = []
    for item in _objects(path, summary, "tables"):
        columns = [str(c) for c in entry(path, item, "columns", list)]
        rows = entry(path, item, "rows", list)
        if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
            raise RunFolderError(
                f"{path}: key `tables`: a row of `{word(item, 'title')}` has not {len(columns)} cells"
            )
        numbers = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
        heads = [("#" if n else "") + c for n, c in zip(numbers, columns, strict=True)]
        made = _table(
            word(item, "title"),
            heads,
            [[_plain(v) for v in row] for row in rows],
            cap=caps.rows,
            where="summary.json",
        )
        made["note"] = " ".join(filter(None, (word(item, "note"), made["note"])))
        tables.append(made)
    kept = tables[: max(caps.charts, 2)]
    left = [
        f"{total - shown} of {total} {what}"
        for what, shown, total in (
            ("charts", len(charts), len(series)),
            ("timelines", len(timelines), len(items)),
            ("tables", len(kept), len(tables)),
        )
        if shown < total
    ]
    paper, part = (_clip(summary.get(k, ""), 40) for k in ("paper", "part"))
    return "reproduce.html.j2", {
        "title": f"gradtide reproduce {paper}/{part}",
        "what": _clip(entry(path, summary, "title", str), 160),
        "reproduce": f"gradtide reproduce {paper}/{part}",
        "tally": f"{agree} of {len(verdicts)} published values agree with ours.",
        "checks": _table("Published values beside ours", ("figure", "quantity", "#published", "#ours", "verdict", "note"), checks,
                         cap=caps.rows, where="summary.json"),
        "charts": charts,
        "timelines": timelines,
        "legend": set().union(*(t["legend"] for t in timelines)),
        "tables": kept,
        "dropped": f"Not shown: {', '.join(left)}." if left else "",
    }  # fmt: skip


def _plain(value: Any) -> str:
    return "–" if value is None else _figure(value) if isinstance(value, float) else str(value)


def _figure_title(item: Mapping[str, Any]) -> str:
    figure = f"Fig. {_clip(item['figure'], 20)}: " if item.get("figure") else ""
    return figure + _clip(item.get("title", ""), 160)


def _reproduced_timelines(
    run_dir: Path, path: Path, items: Sequence[Mapping[str, Any]], caps: _Caps
) -> list[tuple[dict[str, Any], float]]:
    found: list[tuple[dict[str, Any], float]] = []
    span: float | None = None
    for last in (False, True):  # the first pass finds the longest, so that all share one time axis
        found = []
        for i, item in enumerate(items[: caps.timelines]):
            folder = _inside(run_dir, entry(path, item, "run", str))
            made = _run_timeline(
                folder, item.get("job"), f"Timeline, {_figure_title(item)}", f"t{i}", caps, span
            )
            if made is not None:
                note = _clip(item.get("note", ""), 300)
                made["caption"] = f"{made['caption']} {note}".strip()
                found.append(({**made, "title": _figure_title(item)}, made["span_ms"]))
        if not last:
            span = max((s for _, s in found), default=None)
    return found


def _series_chart(path: Path, item: Mapping[str, Any], caps: _Caps) -> dict[str, Any]:
    values = entry(path, item, "x.values", list)
    lines = entry(path, item, "lines", list)
    if not values or not all(isinstance(v, (int, float)) for v in values):
        raise RunFolderError(f"{path}: key `series.x.values`: a list of numbers was expected")
    if any(b <= a for a, b in zip(values, values[1:], strict=False)):
        raise RunFolderError(f"{path}: key `series.x.values`: numbers must increase")
    drawn = []
    for i, line in enumerate(lines):
        points = entry(path, line, "values", list)
        if len(points) != len(values) or not all(v is None or isinstance(v, (int, float)) for v in points):
            raise RunFolderError(f"{path}: key `series.lines.values`: {len(values)} numbers were expected")
        drawn.append(_line(i, entry(path, line, "name", str), points))
    step = -(-len(values) // 600)
    note = f" Every {step}th point is drawn." if step > 1 else ""
    for line in drawn:
        line["values"] = line["values"][::step]
    return _chart(
        _figure_title(item), x=values[::step], lines=drawn, xlabel=_clip(entry(path, item, "x.label", str)),
        ylabel=_clip(entry(path, item, "y.label", str)), xname="at", unit="", caption=_clip(item.get("note", ""), 400) + note,
        xlog=min(values) > 0 and max(values) / min(values) >= 8, cap=caps.rows,
    )  # fmt: skip
