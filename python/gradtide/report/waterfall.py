"""The report of a recorded step: breakdown of its time, causes of exposed transfers, and possible improvements."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import folder, pieces
from gradtide.report.folder import LARGEST, Row, RunFolderError, entry, read_json, read_table
from gradtide.report.timeline import WIDTH, Drawing, milliseconds, size

MAX_ROWS, MAX_RANKS = 30, 8
"""Largest numbers of transfers and of ranks in the drawing."""

PARTS = (
    ("compute", "computing", "compute", "compute"),
    ("exposed", "waiting for the network", "network", "exposed"),
    ("late", "waiting for a late rank", "late rank", "barrier"),
    ("idle", words.HOST_TIME, "host busy", "idle"),
)
"""Parts of a step: (key in the summary, name, short name, CSS class of the colour)."""

_RANK = ("rank", "span_ms", "compute_ms", "overlapped_ms", "exposed_ms", "idle_ms")

_LEFT, _RIGHT = 152.0, 84.0


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a recorded step."""
    path = run_dir / "summary.json"
    rows = read_table(run_dir, "waterfall.csv")
    picture = read_json(run_dir / "picture.json")

    number = partial(folder.number, path, summary)
    step_ms, rank, ranks = number("step_ms"), int(number("rank")), int(number("world_size"))
    parts = {key: number(f"waterfall_ms.{key}") for key, *_ in PARTS}
    waits = parts["exposed"] + parts["late"]
    advice: Mapping[str, Any] = entry(path, summary, "advice", dict)
    recorded = [
        {key: entry(path, one, key, (int, float)) for key in _RANK}
        for one in (_object(path, "ranks", one) for one in entry(path, summary, "ranks", list))
    ]
    drawn = _draw(rows, _stretches(run_dir / "picture.json", picture), entry(path, summary, "rank", int))
    by_exposed = sorted(rows, key=lambda row: (-row["exposed_us"], row["transfer"]))
    is_shared = len(recorded) > 1
    tile = pieces.tile
    share = pieces.percent(parts["compute"] / step_ms if step_ms else 0)
    in_use = f"{pieces.ms(number('network_ms'))} ms in which the network"
    if summary.get("effective_ranks") is None:
        effective, as_much = "–", "no transfer was recognised, so waits are unknown"
    else:
        effective, as_much = f"{number('effective_ranks'):.2f}", "ranks without waits would do as much work"
    rank_columns: pieces.Columns = {
        "#rank": lambda one: one["rank"],
        "#step, ms": lambda one: pieces.ms(one["span_ms"]),
        "#computing, ms": lambda one: pieces.ms(one["compute_ms"]),
        "#of it during transfers, ms": lambda one: pieces.ms(one["overlapped_ms"]),
        "#exposed, ms": lambda one: pieces.ms(one["exposed_ms"]),
        "#idle, ms": lambda one: pieces.ms(one["idle_ms"]),
    }
    return "waterfall.html.j2", {
        "title": "gradtide report: one step of a trace",
        "what": _what(path, summary),
        "rests_on": [_premises(path, summary, advice)],
        "figures": [
            tile("Step", pieces.ms(step_ms), "ms", "", f"of rank {rank}, the slowest", "step_ms"),
            tile("Computing", share, "%", "compute", f"{pieces.ms(parts['compute'])} ms"),
            tile("Exposed communication", pieces.ms(waits), "ms", "exposed", f"of the {in_use} is in use"),
            tile("Effective ranks", effective, f"of {ranks}", "", as_much, "effective_ranks"),
        ],
        "waterfall": _bar(parts, step_ms),
        "picture": drawn,
        "transfers": _table(by_exposed, caps),
        "why": _why(rows),
        "ranks": pieces.listing(
            "Ranks", rank_columns, recorded if is_shared else [], cap=caps.rows, where="summary.json"
        ),
        "alone": ""
        if is_shared
        else "A trace of one rank cannot distinguish waits for a late rank from the transfer of data.",
        "advice": _advice(path, advice, caps),
        "fit": _fit(path, advice, ranks),
        "has_scenario": (run_dir / "scenario.toml").exists(),
        "warnings": [pieces.clip(text, 200) for text in entry(path, summary, "warnings", list)],
    }


def _object(path: Path, key: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise RunFolderError(f"{path}: key `{key}`: objects were expected")
    return found


def _stretches(path: Path, picture: Row) -> list[dict[str, Any]]:
    """Return the ranks of the drawing with their intervals of computing and waiting in nanoseconds, after checks."""
    found = []
    for one in (_object(path, "ranks", one) for one in entry(path, picture, "ranks", list)):
        rank = {key: entry(path, one, key, int) for key in ("rank", "span_ns")}
        for key, length in (("computing", 3), ("waiting", 2)):
            rows = entry(path, one, key, list)
            if not all(isinstance(row, list) and len(row) == length for row in rows) or not all(
                type(time) is int and abs(time) < LARGEST for row in rows for time in row[:2]
            ):
                raise RunFolderError(f"{path}: key `ranks.{key}`: lists of two whole numbers of 64 bits were expected")
            rank[key] = rows
        found.append(rank)
    if not found:
        raise RunFolderError(f"{path}: key `ranks`: at least one was expected")
    return found


def _what(path: Path, summary: Row) -> str:
    found = entry(path, summary, "steps_found_by", str)
    count = entry(path, summary, "steps", int)
    how = {"marks": "marked by the profiler", "transfers": "recognised by repeated transfers"}.get(found, "")
    ranks = entry(path, summary, "ranks", list)
    of = f"{len(ranks)} of {entry(path, summary, 'world_size', int)} ranks"
    if not how:
        return f"a whole {entry(path, summary, 'format', str)} trace, {of}"
    return f"step {entry(path, summary, 'step', int)} of {count}, {how}, {of}"


def _premises(path: Path, summary: Row, advice: Mapping[str, Any]) -> str:
    """Return the premises as one line: how the step was recorded, and the network for which savings were predicted."""
    text = f"Premises: times as recorded, {_what(path, summary)}"
    if advice.get("rows"):
        text += "; savings are simulated on a network that is fitted to the recorded all-reduces"
    return f"{text}."


def _bar(parts: Mapping[str, float], step_ms: float) -> dict[str, Any]:
    shown, legend = [], []
    for key, name, short, kind in PARTS:
        ms = pieces.ms(parts[key])
        share = 100 * parts[key] / step_ms if step_ms else 0
        shown.append(pieces.part(kind, f"{name} {ms} ms", share, (f"{name} {ms} ms", f"{short} {ms}", ms), 120))
        legend.append(pieces.meaning(kind, name, ms, f"waterfall_ms.{key}", not parts[key]))
    return {"rows": [{"parts": shown, "label": "; ".join(part["words"] for part in shown)}], "legend": legend}


def _why(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the exposed time by cause, the longest first: cause, milliseconds and number of transfers."""
    spent: dict[str, list[float]] = {}
    for row in rows:
        late = row["exposed_late_us"]
        for cause, exposed in (("late rank", late), (row["bound"], row["exposed_us"] - late)):
            if exposed > 0:
                spent.setdefault(cause, []).append(exposed)
    ordered = sorted(spent.items(), key=lambda item: -sum(item[1]))
    return [
        {"cause": words.bound(pieces.clip(cause)), "ms": milliseconds(sum(times)), "count": len(times)}
        for cause, times in ordered
    ]


def _table(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    def time(key: str) -> Callable[[Row], str]:
        return lambda row: milliseconds(row[key])

    def exposed(row: Row) -> dict[str, str]:
        return pieces.cell(milliseconds(row["exposed_us"]), "" if row["bound"] == "hidden" else "differs")

    columns: pieces.Columns = {
        "transfer": lambda row: f"{row['transfer'] + 1}  {_name(row)}",
        "#bytes": lambda row: _size(row),
        "#ranks": lambda row: row["ranks"],
        "#from, ms": time("start_us"),
        "#takes": time("duration_us"),
        "#moving": time("moving_us"),
        "#late by": time("waited_us"),
        "#exposed": exposed,
        "#bus rate": lambda row: "–" if row["bus_rate_bps"] is None else words.rate(row["bus_rate_bps"]),
        "bounded by": lambda row: (
            f"{row['bound']} {row['late_rank']:.0f}" if row["bound"] == "late rank" else row["bound"]
        ),
    }
    return pieces.listing("Transfers, the most exposed first", columns, rows, cap=caps.rows, where="waterfall.csv")


def _name(row: Row) -> str:
    return pieces.clip(str(row["collective"]).replace("_", "-"), 24)


def _size(row: Row) -> str:
    return "–" if row["bytes"] is None else size(row["bytes"])


def _advice(path: Path, advice: Mapping[str, Any], caps: pieces.Caps) -> dict[str, Any]:
    found = [
        {"what": entry(path, row, "what", str)}
        | {key: entry(path, row, key, (int, float)) for key in ("iteration_time_ms", "saves_percent")}
        for row in (_object(path, "advice.rows", row) for row in entry(path, advice, "rows", list))
    ]
    recommended = advice.get("recommended")

    def saves(row: Row) -> dict[str, str]:
        return pieces.cell(pieces.fixed(row["saves_percent"]), "best" if row["what"] == recommended else "")

    columns: pieces.Columns = {
        "the same step, sent": lambda row: row["what"],
        "#ms": lambda row: pieces.ms(row["iteration_time_ms"]),
        "#saves, %": saves,
    }
    return pieces.listing("What would help", columns, found, cap=caps.rows)


def _fit(path: Path, advice: Mapping[str, Any], ranks: int) -> str:
    why_not = pieces.clip(advice.get("why_not") or "", 300)
    if "link_rate_bps" not in advice:
        return f"No prediction: {why_not}."
    advice = {
        key: entry(path, advice, key, (int, float))
        for key in ("link_rate_bps", "overhead_us", "predicted_ms", "off_percent")
    }
    network = f"one switch, {ranks} ranks, {words.rate(advice['link_rate_bps'])}"
    if advice["overhead_us"] >= 1:
        network += f" and {milliseconds(advice['overhead_us'])} ms a transfer"
    if why_not:
        return f"No prediction: on a network fitted to the recorded all-reduces ({network}), {why_not}."
    return (
        f"Predicted on a network that is fitted to the recorded all-reduces: {network}. On it, the recorded schedule "
        f"takes {pieces.ms(advice['predicted_ms'])} ms, {abs(advice['off_percent']):.1f} % "
        f"{'above' if advice['off_percent'] > 0 else 'below'} the recorded time. A trace does not "
        "contain the layer that needs a gradient, so the forward pass is divided among the buckets, in reverse order."
    )


def _draw(rows: Sequence[Row], ranks: Sequence[dict[str, Any]], shown: int) -> dict[str, Any]:
    """Draw the compute of several ranks, and the transfers of the rank `shown`, on one time axis."""
    ordered = sorted(ranks, key=lambda one: (one["rank"] != shown, one["rank"]))[:MAX_RANKS]
    kept = sorted(rows, key=lambda row: (-row["exposed_us"], -row["duration_us"], row["transfer"]))[:MAX_ROWS]
    kept.sort(key=lambda row: (row["start_us"], row["transfer"]))
    span: float = max(max(one["span_ns"] for one in ordered) / 1e3, 1e-3)
    lane, pitch = 26.0, 21.0 if len(kept) <= 16 else 16.0
    top, top_rows = 46.0, 46.0 + 26.0 * len(ordered) + 26
    height = top_rows + pitch * len(kept) + 8
    drawing = Drawing("w", 0.0, span, _LEFT, _RIGHT)
    text, block, right = drawing.text, drawing.block, WIDTH - _RIGHT

    drawing.axis(8, top - 8, height - 4, top - 12)
    drawing.path("bracket", f"M{_LEFT:.1f} 19v-5H{right:.1f}v5")
    text("strong", (_LEFT + right) / 2, 10, f"step {milliseconds(span)} ms", "middle")
    for i, one in enumerate(ordered):
        y = top + i * lane
        drawing.lane(f"rank {one['rank']} computes", y + 1, lane - 2, y + 16)
        for start, end in one["waiting"]:
            block("idle exposed", start / 1e3, end / 1e3, y + 1, lane - 2, fill="exposed")
        for start, end, part in one["computing"]:
            kind = {"backward": "backward", "update": "update"}.get(part, "forward")
            block(kind, start / 1e3, end / 1e3, y + 1, lane - 2)
    waiting = [(start / 1e3, end / 1e3) for start, end in ordered[0]["waiting"]]
    if kept:
        text("muted", _LEFT - 10, top_rows - 7, "sends", "end")
        text("muted", right + 72, top_rows - 7, "exposed, ms", "end")
    for i, row in enumerate(kept):
        y, h = top_rows + i * pitch, pitch - 5
        start, end = row["start_us"], row["start_us"] + row["duration_us"]
        is_hidden = row["bound"] == "hidden"
        with drawing.row(describe(row), y - 2, pitch):
            text("label", _LEFT - 10, y + h / 2 + 4, f"{_name(row)} {_size(row)}", "end")
            if row["ready_us"] < start:
                block("slack", row["ready_us"], start, y, h)
            block("transfer", start, end, y + 1.5, h - 3)
            for a, b in waiting:
                if a < end and b > start and not is_hidden:
                    block("transfer late", max(a, start), min(b, end), y + 1.5, h - 3)
            if row["exposed_late_us"] > 0:
                block("idle barrier", start, end - row["moving_us"], y + 1.5, h - 3, fill="barrier")
            exposed = milliseconds(row["exposed_us"])
            text("label" if is_hidden else "late", right + 72, y + h / 2 + 4, exposed, "end")
    label = "Compute of the ranks and transfers on one time axis"
    said = []
    if len(ordered) < len(ranks):
        said.append(f"{len(ordered)} of {len(ranks)} ranks are drawn.")
    if len(kept) < len(rows):
        said.append(f"Only the {len(kept)} most exposed of {len(rows)} transfers have a row.")
    said.append(
        f"Transfers are those of rank {shown}. The times of a rank count from the start of its step, by its own clock."
    )
    return {
        "svg": drawing.svg(label, height),
        "label": label,
        "caption": " ".join(said),
        "has_late": any(row["exposed_late_us"] > 0 for row in kept),
        "has_update": any(part == "update" for one in ordered for *_, part in one["computing"]),
        "has_rows": bool(kept),
    }


def describe(row: Row) -> str:
    """Describe a transfer in words, with times relative to the start of the step."""
    ready, start, end = (
        milliseconds(us) for us in (row["ready_us"], row["start_us"], row["start_us"] + row["duration_us"])
    )
    said = [f"{_name(row)} of {_size(row)} among {row['ranks']}", f"ready {ready}, {start} to {end} ms"]
    if row["bus_rate_bps"] is not None:
        said.append(f"{milliseconds(row['moving_us'])} ms moving at {words.rate(row['bus_rate_bps'])} on each link")
    if row["late_rank"] is not None:
        said.append(f"the earliest rank waits {milliseconds(row['waited_us'])} ms for rank {row['late_rank']:.0f}")
    said.append(f"exposed {milliseconds(row['exposed_us'])} ms: {words.bound(pieces.clip(row['bound']))}")
    return " · ".join(said)
