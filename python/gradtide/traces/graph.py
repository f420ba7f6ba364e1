"""Dependency graph of a recorded step: compute ops per rank, transfers with their process groups, and edges.

    time with compute, split where a transfer is ready or ends    -> compute ops, in sequence on each rank
    idle time outside transfers                                   -> compute ops as well: the host was busy
    idle time in a transfer, from its ready time to its end       -> no op: the duration follows from the dependencies

A trace does not record which ops wait for a transfer. The edges are therefore inferred: a transfer depends on all ops
that its ranks had completed when the transfer was ready, and the first op that a rank starts after the transfer's end
depends on the transfer. If an op really needs the transfer later, or not at all, this dependency is too strict: on a
network slower than the recorded one the predicted step is then too long.

The document has the form of `_core.step_graph`, with one class per rank. If only one rank was recorded, it represents
all ranks: every rank runs the same ops at the same time, in its own groups. Such a step must not contain point-to-point
messages, and the ranks of each group must be evenly spaced.
"""

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gradtide.errors import TraceError
from gradtide.traces.spans import Span, joined
from gradtide.units import PS_PER_NS

if TYPE_CHECKING:
    from gradtide.traces.recording import Recording

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
"""Kind of collective in the graph, by its name in the trace."""
HARMLESS = ("element_type", "other", "dependency", "damaged", "mended")
"""Kinds of gaps that affect neither the times of a step nor the inferred dependencies."""
LINKS = ("messages",)
"""Name of the pseudo-group of point-to-point messages."""
HOST = "host"
"""Name of ops during which the device waits for the host; the core uses the same name."""
ALL = "all"
"""Name of the group of all ranks, which is unnamed in traces."""


def step_graph(trace: "Recording", number: int) -> dict[str, Any]:
    """Return a step of a trace as a document in the form of `_core.step_graph`.

    Raises:
        TraceError: if the files are incomplete, or the step contains something that a graph cannot represent.
    """
    ranks = trace.rank_numbers
    world_size = trace.summary()["world_size"] or len(ranks)
    stands_for_all = len(ranks) == 1 < world_size
    _refuse_missing(trace, ranks, number, stands_for_all=stands_for_all)
    index = trace.steps.index(number)
    document = trace._exact_step(number)
    rows = {rank: _moved_rows(trace, rank) for rank in ranks}
    windows = dict(zip(ranks, trace._steps["steps"][index]["windows_ns"], strict=True))
    if stands_for_all:
        moves = _collectives(document, rows, set(ranks))
        _refuse_messages(document, ranks[0])
    else:
        moves = _messages(document, rows, windows) + _collectives(document, rows)
    _refuse_cut(moves, document)
    classes: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    programs = [_Program(one, moves) for one in document["ranks"]]
    op_count = sum(len(own.ops) for own in programs)
    first = 0
    for own in programs:
        edges += [(first + op, op_count + place) for op, place in own.awaited if _waits(moves[place], own.rank)]
        edges += [(op_count + place, first + op) for place, op in own.waiting]
        classes.append({"name": f"rank{own.rank}", "ranks": 1, "ops": own.ops})
        first += len(own.ops)
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    transfers = [
        {
            **{key: move[key] for key in ("name", "kind", "bytes")},
            "group": groups.setdefault(move["group"], len(groups)),
        }
        for move in moves
    ]
    if stands_for_all:
        classes[0] |= {"name": "rank", "ranks": world_size}
    described = trace._core.described
    listed = []
    for name, members in groups:
        stride = _stride(name, members, world_size) if stands_for_all else None if name in LINKS else 1
        of = [0] if stands_for_all else list(members)
        listed.append({"name": _shown(name, described), "classes": of, "ranks": len(members), "stride": stride})
    return {"classes": classes, "groups": listed, "transfers": transfers, "edges": edges}


def _waits(move: dict[str, Any], rank: int) -> bool:
    """Return whether a transfer depends on ops of a rank. A message depends only on ops of its sender."""
    sender: int = move["group"][1][0]
    return move["kind"] != "send" or rank == sender


def _shown(name: str, described: Mapping[str, str]) -> str:
    """Return the display name of a group: its mesh dimension, such as `tp`, if the trace contains it."""
    if name in (*LINKS, ALL):
        return name
    return described[name].removeprefix("mesh_") if name in described else f"group {name}"


def summed_up(document: dict[str, Any]) -> dict[str, Any]:
    """Return a smaller graph in which the compute ops between two transfer events are merged by pass.

    A transfer event is the instant at which a transfer is ready or ends. The merged graph takes the same time, because
    no transfer depends on, or precedes, an op between two events.
    """
    count = sum(len(one["ops"]) for one in document["classes"])
    cuts = {before + 1 for before, _ in document["edges"] if before < count}
    cuts |= {after for _, after in document["edges"] if after < count}
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    classes: list[dict[str, Any]] = []
    first = total = 0
    for one in document["classes"]:
        ops: list[tuple[str, int]] = []
        last = first + len(one["ops"])
        for begin, end in pairwise(sorted({first, last, *(cut for cut in cuts if first < cut < last)})):
            times: Counter[str] = Counter()
            for name, time_ps in one["ops"][begin - first : end - first]:
                times[name] += time_ps
            begins[begin] = total + len(ops)
            ops += times.items()
            ends[end - 1] = total + len(ops) - 1
        classes.append({**one, "ops": ops})
        first, total = last, total + len(ops)
    edges = [
        (
            ends[before] if before < count else before + total - count,
            begins[after] if after < count else after + total - count,
        )
        for before, after in document["edges"]
    ]
    return {**document, "classes": classes, "edges": edges}


def _stride(name: str, members: Sequence[int], world_size: int) -> int:
    """Return the rank stride of a group, if such groups can partition all ranks; otherwise raise `TraceError`."""
    size, stride = len(members), members[1] - members[0] if len(members) > 1 else 0
    evenly = range(members[0], members[0] + size * stride, stride) if stride else ()
    if list(members) != list(evenly) or members[0] // stride % size or world_size % (size * stride):
        raise TraceError(
            f"one rank cannot stand for all {world_size}: group {name} has ranks {', '.join(map(str, members[:9]))}, "
            "and all ranks cannot be in groups like it; give the traces of all ranks"
        )
    return stride


def _refuse_messages(document: dict[str, Any], rank: int) -> None:
    count = sum(transfer["collective"] in ("send", "recv") for transfer in document["transfers"])
    if count:
        raise TraceError(
            f"only rank {rank} was recorded, and it has {count} messages to or from other ranks, whose times are "
            "unknown: give the traces of all ranks"
        )


def _refuse_missing(trace: "Recording", ranks: Sequence[int], number: int, *, stands_for_all: bool) -> None:
    missing = trace.summary()["missing_ranks"]
    if missing and not stands_for_all:
        raise TraceError(
            f"there is no trace of rank {', '.join(map(str, missing[:5]))}; a step needs all of its ranks, or one that "
            "stands for all"
        )
    gaps = [str(gap) for gap in trace._gaps_of_step(number) if gap.what not in HARMLESS]
    if gaps:
        raise TraceError(f"the step cannot become a graph: {' · '.join(gaps)}")
    if not stands_for_all and list(ranks) != list(range(len(ranks))):
        raise TraceError(f"ranks are {', '.join(map(str, ranks[:5]))}; a graph counts them from 0")


def _moved_rows(trace: "Recording", rank: int) -> list[dict[str, Any]]:
    """Return the transfers of a rank with the ranks of their groups. Files list them at one transfer per group."""
    rows = [row for row in json.loads(trace._core.to_dag(rank, False))["ops"] if row.get("comm") is not None]
    listed = {row["comm"]["group"]: tuple(row["comm"]["ranks"]) for row in rows if row["comm"]["ranks"]}
    for row in rows:
        row["ranks"] = listed.get(row["comm"]["group"], ())
    return rows


def _messages(
    document: dict[str, Any], rows: dict[int, list[dict[str, Any]]], windows: dict[int, Span]
) -> list[dict[str, Any]]:
    """Return point-to-point messages. The n-th send from one rank to another matches the n-th receive there."""
    by_time = {(rank, row["node"], row["start"], row["time"]): row["comm"] for rank, own in rows.items() for row in own}
    found: dict[tuple[int, int], dict[str, list[Any]]] = defaultdict(lambda: {"send": [], "recv": []})
    for transfer in document["transfers"]:
        if transfer["collective"] not in ("send", "recv"):
            continue
        for seen in transfer["seen"]:
            start_ns = windows[seen["rank"]][0] + seen["start_ns"]
            comm = by_time[seen["rank"], transfer["collective"], start_ns, seen["duration_ns"]]
            if comm["ends"] is None:
                raise TraceError(f"a {transfer['collective']} of rank {seen['rank']} does not name sender and receiver")
            found[tuple(comm["ends"])][transfer["collective"]].append((seen["start_ns"], seen, comm["bytes"]))
    messages = []
    for ends, both in found.items():
        sent, received = (sorted(both[kind], key=lambda one: one[0]) for kind in ("send", "recv"))
        if len(sent) != len(received):
            counts = (
                f"{len(sent)} messages are sent from rank {ends[0]} to rank {ends[1]}, and {len(received)} received"
            )
            raise TraceError(f"the step cannot become a graph: {counts}")
        for (_, one, size), (_, other, _) in zip(sent, received, strict=True):
            name = f"send from rank {ends[0]} to rank {ends[1]}"
            spans = {ends[0]: _span(one), ends[1]: _span(other)}
            size = _known(size, name)
            messages.append({"name": name, "kind": "send", "bytes": size, "group": (LINKS[0], ends), "seen": spans})
    return messages


def _collectives(
    document: dict[str, Any], rows: dict[int, list[dict[str, Any]]], present: Collection[int] = ()
) -> list[dict[str, Any]]:
    """Return the collectives. `present` contains the recorded ranks; it is empty if all ranks were recorded."""
    # Chakra does not list the members of a group, so they are inferred from the ranks that take part in its transfers.
    members_of = {row["comm"]["group"]: set[int]() for own in rows.values() for row in own}
    for rank, own in rows.items():
        for row in own:
            members_of[row["comm"]["group"]] |= set(row["ranks"]) or {rank}
    found = []
    for transfer in document["transfers"]:
        kind, group = transfer["collective"], transfer["group"]
        if kind in ("send", "recv"):
            continue
        if kind not in KINDS:
            count = sum(one["collective"] == kind for one in document["transfers"])
            raise TraceError(
                f"the step cannot become a graph: it has {count} {kind}, and a graph has "
                f"{', '.join(sorted(set(KINDS.values())))}"
            )
        members = tuple(sorted(members_of[group]))
        spans = {seen["rank"]: _span(seen) for seen in transfer["seen"]}
        wanted = [rank for rank in members if not present or rank in present]
        if len(spans) != len(transfer["seen"]) or sorted(spans) != wanted:
            who = ", ".join(str(seen["rank"]) for seen in transfer["seen"])
            raise TraceError(
                f"{kind} of group {group or 'all'} has ranks {members}, and in the step ranks {who} take part in it"
            )
        size = _known(transfer["bytes"], kind) * (len(members) if kind == "all_gather" else 1)
        found.append(
            {
                "name": kind,
                "kind": KINDS[kind],
                "bytes": size,
                "group": (group or ALL, members),
                "seen": spans,
            }
        )
    return found


def _known(size: int | None, name: str) -> int:
    if size is None:
        raise TraceError(f"the step cannot become a graph: the bytes of a {name} are not recorded")
    return size


def _span(seen: dict[str, Any]) -> Span:
    """Return (ready time, end time) of a transfer on one rank, in nanoseconds."""
    return seen["ready_ns"], seen["start_ns"] + seen["duration_ns"]


def _refuse_cut(moves: Iterable[dict[str, Any]], document: dict[str, Any]) -> None:
    """Raise if a transfer of the step begins before the step or ends after it."""
    lengths = {one["rank"]: one["span_ns"] for one in document["ranks"]}
    cut = [
        f"{move['name']} of rank {rank}"
        for move in moves
        for rank, (ready, end) in move["seen"].items()
        if ready < 0 or end > lengths[rank]
    ]
    if cut:
        named = ", ".join(f"{count} {name}" for name, count in Counter(cut).most_common(5))
        raise TraceError(
            f"the step cannot become a graph: transfers continue in the step before or after it ({named}); take "
            "another step"
        )


class _Program:
    """The compute ops of a rank, and the dependencies between these ops and transfers.

    Attributes:
        rank: number of the rank.
        ops: (name, duration in picoseconds), in the order of execution.
        awaited: edges (op, transfer): the transfer depends on the op.
        waiting: edges (transfer, op): the op depends on the transfer.
    """

    def __init__(self, document: dict[str, Any], moves: Sequence[dict[str, Any]]) -> None:
        self.rank: int = document["rank"]
        spans = [(place, move["seen"][self.rank]) for place, move in enumerate(moves) if self.rank in move["seen"]]
        computing = document["computing"]
        cuts = {0, document["span_ns"], *(time for _, span in spans for time in span)}
        times = sorted(cuts | {time for start, end, _ in computing for time in (start, end)})
        moving = joined(span for _, span in spans)
        self.ops: list[tuple[str, int]] = []
        begins: list[int] = []
        for start, end in pairwise(times):
            what = _within(computing, start)
            if what is None and _within(moving, start) is not None:
                continue
            self.ops.append((HOST if what is None else what[2], (end - start) * PS_PER_NS))
            begins.append(start)
        # Ops were split at these instants, so no op is in progress when a transfer is ready or ends.
        self.awaited = [(op - 1, place) for place, (ready, _) in spans if (op := bisect_left(begins, ready)) > 0]
        self.waiting = [(place, op) for place, (_, end) in spans if (op := bisect_left(begins, end)) < len(begins)]


def _within(stretches: Sequence[Any], time: int) -> Any:
    place = bisect_right(stretches, time, key=lambda one: one[0]) - 1
    return stretches[place] if place >= 0 and time < stretches[place][1] else None
