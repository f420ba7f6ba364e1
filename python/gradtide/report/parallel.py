"""The part of a run's report for one parallel job."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import lanes, pieces
from gradtide.report.folder import Row, entry, mesh_of, number
from gradtide.report.timeline import size


def job(
    path: Path, name: str, facts: Mapping[str, Any], operations: Sequence[Row], ident: str, caps: pieces.Caps
) -> dict[str, Any]:
    """Return the template's context for a parallel job."""
    key, tile = f"jobs.{name}", pieces.tile
    own = f"{key}.parallel"
    mean = number(path, facts, "iteration_time_ms.mean")
    waterfall = pieces.waterfall_of(path, facts)
    groups: Mapping[str, Any] = entry(path, facts, "parallel.groups", dict)
    classes: Sequence[Any] = entry(path, facts, "parallel.classes", list)
    mesh = mesh_of(path, facts)
    is_recorded = mesh is None
    ranks, model = entry(path, facts, "parallel.ranks", int), entry(path, facts, "model", str)
    waits = sum(number(path, groups, f"{group}.exposed_ms") for group in groups)
    others = number(path, facts, "parallel.waits_for_stages_ms")
    every = pieces.flat(facts, key, key + ".")
    return {
        "is_parallel": True,
        **dict.fromkeys(("slack", "bandwidth", "iterations", "asynchrony")),
        "name": pieces.clip(name),
        "what": f"{pieces.clip(name, 40)}: {pieces.clip(model, 40)} on {words.ranks(ranks)}, {words.mesh(mesh)}",
        "figures": [
            tile(
                "Iteration time",
                pieces.ms(mean),
                "ms",
                "",
                "the recorded step, on this network" if is_recorded else _batch(path, facts),
                f"{key}.iteration_time_ms.mean",
            ),
            *([] if is_recorded else [_throughput(path, facts, own)]),
            tile(
                "Exposed communication",
                pieces.ms(waits),
                "ms",
                "exposed",
                f"{pieces.percent(waits / mean)} % of the iteration: compute of an average rank waits"
                + (f"; {pieces.percent(others / mean)} % more for {words.others(mesh)}" if others else ""),
            ),
            *([] if is_recorded else [_memory_tile(path, facts, own)]),
        ],
        "waterfall": pieces.waterfall(waterfall, f"{key}.waterfall_ms", "wait at barrier"),
        "groups": _groups(path, groups, f"{own}.groups", caps),
        "lanes": timeline(operations, name, ident, len(classes), mesh),
        "classes": _classes(classes, mesh, caps) if len(classes) > 1 else None,
        "memory": None if is_recorded else _memory(path, facts, f"{own}.memory", caps),
        "all": pieces.table(
            f"All figures of job {pieces.clip(name)}", ("key", "#value"), every, cap=caps.rows, where="summary.json"
        ),
    }


def _batch(path: Path, facts: Mapping[str, Any]) -> str:
    tokens, sequences = (entry(path, facts, f"parallel.{name}", int) for name in ("tokens", "global_batch"))
    return f"{tokens:,} tokens in {sequences:,} sequences"


def _throughput(path: Path, facts: Mapping[str, Any], own: str) -> Any:
    return pieces.tile(
        "Tokens/s per GPU",
        words.number(number(path, facts, "parallel.tokens_per_s_per_gpu")),
        "",
        "",
        f"{pieces.percent(number(path, facts, 'parallel.mfu'))} % of the peak: model FLOPs utilisation",
        f"{own}.tokens_per_s_per_gpu",
    )


def _memory_tile(path: Path, facts: Mapping[str, Any], own: str) -> Any:
    needed, has = number(path, facts, "parallel.memory.total"), number(path, facts, "parallel.memory.device")
    known = {"fits": "of what the device has", "too close to call": "of what the device has: too close to call"}
    verdict = entry(path, facts, "parallel.memory.feasibility", str)
    shown, unit = words.size(needed, 3).split()
    share = f"{pieces.percent(needed / has)} % {known.get(verdict, 'of what the device has: it does not fit')}"
    return pieces.tile(
        "Memory of a rank", shown, unit, "" if verdict == "fits" else "worse", share, f"{own}.memory.total"
    )


MAX_RANKS = 16
"""Largest number of ranks that the table of ranks shows."""


def _groups(path: Path, groups: Mapping[str, Any], key: str, caps: pieces.Caps) -> dict[str, Any]:
    def cell(group: str, figure: str, show: Callable[[float], str]) -> dict[str, str]:
        is_absent = entry(path, groups, f"{group}.{figure}", object) is None
        text = "–" if is_absent else show(number(path, groups, f"{group}.{figure}"))
        return pieces.cell(text, key=f"{key}.{group}.{figure}")

    figures: dict[str, tuple[str, Callable[[float], str]]] = {
        "#exposed, ms": ("exposed_ms", pieces.ms),
        "#busy, ms": ("busy_ms", pieces.ms),
        "#ranks": ("ranks", "{:.0f}".format),
        "#on a node": ("ranks_per_node", "{:.0f}".format),
        "#transfers": ("transfers", "{:,.0f}".format),
        "#sent by a rank": ("bytes_per_rank", size),
        "#slack: least, ms": ("slack_ms.min", pieces.ms),
        "#median": ("slack_ms.p50", pieces.ms),
        "#most": ("slack_ms.max", pieces.ms),
    }
    rows = [[group, *(cell(group, *figure) for figure in figures.values())] for group in groups]
    return pieces.table("Process groups, of an average rank", ("group", *figures), rows, cap=caps.rows)


def _classes(classes: Sequence[Any], mesh: Mapping[str, int] | None, caps: pieces.Caps) -> dict[str, Any]:
    what = words.simulated(mesh, len(classes))
    columns: pieces.Columns = {
        what: lambda one: one[0],
        "#ranks": lambda one: f"{one[1]['ranks']:,}",
        "#computes, ms": lambda one: pieces.ms(one[1]["compute_ms"]),
        "#waits, ms": lambda one: pieces.ms(one[1]["waits_ms"]),
    }
    rows = list(enumerate(classes))
    if what == "stage":
        return pieces.listing("Stages of the pipeline", columns, rows, cap=caps.rows, where="summary.json")
    del columns["#ranks"]
    rows.sort(key=lambda one: -one[1]["compute_ms"])
    title = f"{min(MAX_RANKS, len(rows))} of {len(rows)} ranks: those that compute longest"
    return pieces.listing(title, columns, rows[:MAX_RANKS], cap=caps.rows, where="summary.json")


def _memory(path: Path, facts: Mapping[str, Any], key: str, caps: pieces.Caps) -> dict[str, Any]:
    parts = ("parameters", "gradients", "optimizer", "activations", "logits", "total", "device")
    rows = [
        [part, pieces.cell(size(number(path, facts, f"parallel.memory.{part}")), key=f"{key}.{part}")] for part in parts
    ]
    return pieces.table("Memory of the fullest rank", ("part", "#bytes"), rows, cap=caps.rows)


def timeline(
    operations: Sequence[Row], name: str, ident: str, count: int, mesh: Mapping[str, int] | None
) -> dict[str, Any] | None:
    """Return the timeline of an iteration; None if no operation was recorded. `count` is the number of rank classes."""
    what = words.simulated(mesh, count)
    names = {number: f"{what} {number}" if count > 1 else "all ranks" for number in range(count)}
    view = lanes.view(operations, names)
    if view is None:
        return None
    shown, with_groups = lanes.detailed(view)
    caption = "A lane is a stream of one rank of a class. All ranks of a class run in lock step."
    if what == "rank":
        caption = "A lane is a stream of one rank. Every rank is simulated."
    if len(with_groups) < len(view.classes):
        whose = "ranks" if what == "rank" else "classes"
        caption += (
            f" The drawing has {len(shown)} of {len(view.classes)} {whose}. Only the first, the last and the one with "
            "the longest wait have lanes for their process groups."
        )
    label = f"Timeline of one iteration of {pieces.clip(name)}"
    return {
        "svg": lanes.draw(view, label=label, ident=ident),
        "label": label,
        "caption": caption,
        **{
            name: any(row["kind"] == kind for rows in view.classes.values() for row in rows)
            for name, kind in (("recomputes", "recompute"), ("has_host", "host"))
        },
        "groups": [(group, group if group in lanes.AXES else "other") for group in view.groups],
    }
