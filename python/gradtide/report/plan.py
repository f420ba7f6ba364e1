"""The report of `gradtide plan`: savings, candidates, and one iteration each with the plan and with the baseline."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, RunFolderError, entry, number, read_table, row_of
from gradtide.report.run import resolved_scenario

_WORDS = ("name", "level", "order", "collective")
_FLAGS = ("barrier", "chosen")
_LEVELS = ("buckets", "priority", "crossiter")
_COUNTS = ("depth", "buckets", "chunk_bytes", "messages")


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a plan."""
    path = run_dir / "summary.json"
    model, workers = entry(path, summary, "model", str), entry(path, summary, "workers", int)
    plan, predicted = entry(path, summary, "plan", dict), entry(path, summary, "plan.predicted", dict)
    rows = [_checked(path, row, index) for index, row in enumerate(entry(path, summary, "rows", list))]
    chosen = next((index for index, row in enumerate(rows) if row["chosen"]), None)
    if chosen is None:
        raise RunFolderError(f"{path}: key `rows`: none is chosen")
    baseline = words.level(pieces.clip(entry(path, predicted, "baseline", str), 20))
    timelines, legend = _timelines(run_dir, summary, plan, baseline, caps)
    scored = read_table(run_dir, "scored.csv", required=False)
    # Plans of lower levels, which need less support by the runtime, come first.
    by_level = sorted(
        scored, key=lambda row: (_LEVELS.index(row["level"]) if row["level"] in _LEVELS else 9, row["order"])
    )
    modes = list(dict.fromkeys(map(_mode, by_level)))
    bound_ms = _positive(path, summary, "lower_bound_ms")
    pruned, run = (entry(path, summary, f"searched.{key}", int) for key in ("pruned", "run"))
    return "plan.html.j2", {
        "title": f"gradtide plan: {pieces.clip(model, 40)} on {words.workers(workers)}",
        "what": f"plans for {pieces.clip(model, 40)} on {words.workers(workers)}: {len(scored)} scored",
        "tiles": _tiles(path, rows, chosen, predicted, bound_ms),
        "advice": [pieces.clip(text, 2000) for text in entry(path, plan, "advice", list)[:12]],
        "levels": _levels(rows, caps),
        "timelines": timelines,
        "legend": legend,
        "modes": scatter.legend(modes),
        "plot": _plot(scored, modes, bound_ms, caps) if scored else None,
        "searched": f"{len(scored)} plans were scored, {pruned} ruled out by lower bounds, and {run} run on the "
        "network of the scenario.",
        "buckets": _buckets(path, plan, caps),
        "channels": _channels(path, summary, caps),
        "scenario": resolved_scenario(run_dir / "runs" / "plan", caps),
    }


def _checked(path: Path, row: object, index: int) -> Row:
    row = row_of(path, "rows", row, index, words=_WORDS, counts=_COUNTS, flags=_FLAGS)
    _positive(path, row, "iteration_ms")
    number(path, row, "saves_percent")
    return row


def _positive(path: Path, table: Row, key: str) -> float:
    value = entry(path, table, key, (int, float))
    if not math.isfinite(value) or value <= 0:
        raise RunFolderError(f"{path}: key `{key}`: not a number above 0")
    return float(value)


def _saves(row: Row) -> str:
    low, high = row.get("saves_low_percent"), row.get("saves_high_percent")
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return ""
    return f"{low:.0f} to {high:.0f} %".replace("-", "−")


def _tiles(path: Path, rows: Sequence[Row], chosen: int, predicted: Row, bound_ms: float) -> list[dict[str, Any]]:
    row, tile = rows[chosen], pieces.tile
    key, now = f"rows.{chosen}", pieces.ms(row["iteration_ms"])
    before = f"{pieces.ms(_positive(path, predicted, 'baseline_iteration_time_ms'))} ms before"
    interval, kind = _saves(row), pieces.change_kind(row["saves_percent"])
    how = f"95 % interval {interval}, from the errors of earlier predictions" if interval else "of an iteration"
    above = f"no plan is faster; this plan takes {100 * (row['iteration_ms'] / bound_ms - 1):.1f} % longer"
    sent = words.buckets(row["buckets"])
    sent += f" in chunks of {words.size(row['chunk_bytes'])}" if row["chunk_bytes"] else ", sent whole"
    return [
        tile("The plan saves", pieces.fixed(row["saves_percent"]), "%", kind, how, "plan.predicted.gain_percent"),
        tile("Iteration time", now, "ms", "", before, f"{key}.iteration_ms"),
        tile("Lower bound", pieces.ms(bound_ms), "ms", "", above, "lower_bound_ms"),
        tile("Messages", str(row["messages"]), "an iteration", "", sent, f"{key}.messages"),
    ]


def _levels(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any]:
    def marked(text: str, row: Row, small: str = "") -> dict[str, str]:
        return pieces.cell(text, "best", small=small) if row["chosen"] else pieces.cell(text)

    def exchanged(row: Row) -> str:
        depth = f", depth {row['depth']}" if row["depth"] > 1 else ""
        return words.collective(pieces.clip(row["collective"], 40)) + depth

    def above(row: Row) -> str:
        percent = row.get("above_bound_percent")
        return f"{percent:.1f}" if isinstance(percent, (int, float)) else "–"

    columns: pieces.Columns = {
        "level": lambda row: marked(words.level(pieces.clip(row["name"], 20)), row, small="plan"),
        "#iteration, ms": lambda row: marked(pieces.ms(row["iteration_ms"]), row),
        "#saves, %": lambda row: pieces.fixed(row["saves_percent"]),
        "#95 % interval": lambda row: _saves(row) or "–",
        "#above the bound, %": above,
        "schedule": lambda row: pieces.schedule(row["order"], row["barrier"]),
        "exchanged by": exchanged,
        "#buckets": lambda row: row["buckets"],
        "#chunk": lambda row: words.size(row["chunk_bytes"]) if row["chunk_bytes"] else "–",
        "#messages": lambda row: row["messages"],
    }
    return pieces.listing("The best plan of each level", columns, rows, cap=caps.rows)


def _timelines(
    run_dir: Path, summary: Row, plan: Row, baseline: str, caps: pieces.Caps
) -> tuple[list[dict[str, Any]], set[str]]:
    job = entry(run_dir / "summary.json", summary, "job", str)
    named = [("baseline", baseline)]
    if plan.get("level") != "none":
        named.append(("plan", f"the plan, {words.level(pieces.clip(plan.get('level'), 20))}"))

    drawn = pieces.drawn_timelines([(run_dir / "runs" / name, job, title) for name, title in named], caps)
    timelines = [
        {**one, "title": title[:1].upper() + title[1:]} for (_, title), one in zip(named, drawn, strict=True) if one
    ]
    return timelines, set().union(*(one["legend"] for one in timelines))


def _mode(row: Row) -> str:
    return f"{pieces.clip(row['level'], 20)}: {pieces.schedule(row['order'], row['barrier'])}"


def _plot(scored: Sequence[Row], modes: Sequence[str], bound_ms: float, caps: pieces.Caps) -> dict[str, Any]:
    # Of candidates with the same mode, collective, depth and number of messages, only the fastest is drawn.
    best: dict[tuple[str, str, int, int], Row] = {}
    for row in scored:
        key = (_mode(row), row["collective"], row["depth"], row["messages"])
        if key not in best or row["scored_us"] < best[key]["scored_us"]:
            best[key] = row
    shown = sorted(best.values(), key=lambda row: row["scored_us"])[: 2 * caps.rows]
    points = [
        scatter.Point(
            float(row["messages"]),
            max(row["scored_us"] / 1e3, 1e-9),
            modes.index(_mode(row)),
            0 if row["depth"] == 1 else 1,
            f"{_mode(row)}, {words.collective(pieces.clip(row['collective'], 40))}"
            + (f" at depth {row['depth']}" if row["depth"] > 1 else "")
            + f", {row['buckets']} buckets of at most {words.size(row['largest_bytes'])}"
            + (f" in chunks of {words.size(row['chunk_bytes'])}" if row["chunk_bytes"] else "")
            + f": {row['messages']} messages, {pieces.ms(row['scored_us'] / 1e3)} ms an iteration",
        )
        for row in shown
    ]
    label = "Iteration time over messages"
    return {
        "label": label,
        "svg": scatter.draw(
            points,
            [],
            label=label,
            xlabel="messages per iteration",
            ylabel="scored iteration time, ms",
            floor=(bound_ms, "lower bound: no plan is faster"),
        ),
        "note": f"{len(shown)} of {len(scored)} plans are shown: the fastest of those with equal mode, collective and "
        "number of messages. scored.csv has all. Scores use the costs in the table below and can be off by a percent."
        + (" Squares: plans that cut messages into parts (depth)." if any(row["depth"] > 1 for row in shown) else ""),
    }


def _buckets(path: Path, plan: Row, caps: pieces.Caps) -> dict[str, Any]:
    table = []
    for index, bucket in enumerate(entry(path, plan, "buckets", list)):
        names = [pieces.clip(name, 40) for name in entry(path, bucket, "layers", list)]
        if not names:
            raise RunFolderError(f"{path}: key `plan.buckets`: item {index} has no layers")
        layers = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        size, rank = entry(path, bucket, "bytes", int), entry(path, bucket, "rank", int)
        table.append([index, layers, len(names), words.size(size), f"{size:,}", rank])
    columns = ("#bucket", "layers, the last first", "#layers", "#size", "#bytes", "#rank")
    return pieces.table("Buckets of the plan", columns, table, cap=caps.rows, where="plan.json")


def _channels(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    def text(key: str) -> Callable[[Row], str]:
        return lambda one: pieces.figure(entry(path, one, key, (int, float)))

    columns: pieces.Columns = {
        "exchanged by": lambda one: pieces.clip(entry(path, one, "collective", str), 60),
        "#per message, us": text("fixed_us"),
        "#per byte, ns": text("ns_per_byte"),
        "#whole gradient in one message, ms": text("whole_ms"),
    }
    channels = entry(path, summary, "searched.channels", list)
    return pieces.listing("Cost of an exchange on this network", columns, channels, cap=caps.rows)
