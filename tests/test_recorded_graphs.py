"""A recorded step as a graph of all its ranks: real steps of divided models, and one that is solved by hand."""

import json
from collections import Counter
from pathlib import Path

import pytest

import gradtide as gt
from gradtide.studies.convert import convert
from gradtide.traces.graph import EXACT

TRACES = Path(__file__).parent / "data" / "traces"
RECORDED = ["fsdp", "tp", "pp"]


def recorded(kind):
    trace = gt.from_kineto(TRACES / kind)
    number = trace.typical_step
    document = json.loads(trace._core.step(trace.steps.index(number), EXACT))
    return trace.graph(), document


def event(name, category, start, duration, **args):
    row = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": category, "ts": start, "dur": duration}
    return row | {"args": args}


def files(tmp_path, *ranks, world_size=2, gradient="gloo:all_reduce"):
    """Write a trace of each rank: names, starts and ends in microseconds; what is named `gradient` is a transfer."""
    for rank, spans in enumerate(ranks):
        said = {"Input Dims": [[1000]], "Input type": ["float"]}
        events = [
            event(name, "user_annotation", start, end - start, **said)
            if name.startswith("gloo:")
            else event(name, "cpu_op", start, end - start)
            for name, start, end in spans
        ]
        job = {"rank": rank, "world_size": world_size, "pg_config": [{"pg_name": "0", "ranks": [*range(world_size)]}]}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": job, "traceEvents": events}))
    return gt.from_kineto(tmp_path)


def replayed(graph, times):
    """Return when each rank has done its ops, if transfers take these times."""
    ops = [op for one in graph["classes"] for op in one["ops"]]
    waits = [set() for _ in range(len(ops) + len(times))]
    for before, after in graph["edges"]:
        waits[after].add(before)
    ends, first = {}, 0
    for one in graph["classes"]:
        for op in range(first + 1, first + len(one["ops"])):
            waits[op].add(op - 1)
        first += len(one["ops"])
    costs = [time for _, time in ops] + list(times)
    rest = set(range(len(costs)))
    while rest:
        ready = [node for node in rest if all(one in ends for one in waits[node])]
        assert ready, "nodes wait for each other"
        for node in ready:
            ends[node] = max((ends[one] for one in waits[node]), default=0) + costs[node]
        rest -= set(ready)
    return max(ends.values())


def test_a_step_by_hand(tmp_path):
    """Each rank computes, is ready at 30 and 40, waits to 80 and 82, is busy, and computes again."""
    trace = files(
        tmp_path,
        [("aten::mm", 0, 40), ("gloo:all_reduce", 30, 80), ("aten::add", 90, 100)],
        [("aten::mm", 0, 40), ("gloo:all_reduce", 40, 82), ("aten::add", 82, 95)],
    )
    us = 10**6
    assert trace.graph() == {
        "classes": [
            {"name": "rank0", "ranks": 1, "ops": [(n, t * us) for n, t in
             [("unsaid", 30), ("unsaid", 10), ("host", 10), ("unsaid", 10)]]},
            {"name": "rank1", "ranks": 1, "ops": [("unsaid", 40 * us), ("unsaid", 13 * us)]},
        ],
        "groups": [{"name": "0", "classes": [0, 1], "ranks": 2, "stride": 1}],
        "transfers": [{"name": "all_reduce", "kind": "all_reduce", "bytes": 4000, "group": 0}],
        "edges": [(0, 6), (6, 2), (4, 6), (6, 5)],
    }  # fmt: skip
    assert replayed(trace.graph(), [40 * us]) == (40 + 40 + 20) * us


@pytest.mark.parametrize("kind", RECORDED)
def test_nothing_that_is_computed_or_sent_is_dropped(kind):
    graph, document = recorded(kind)
    for one, rank in zip(graph["classes"], document["ranks"], strict=True):
        times = Counter()
        for name, time_ps in one["ops"]:
            times[name == "host"] += time_ps
        assert times[False] == 1000 * (rank["compute_ns"] + rank["overlapped_ns"])
        assert times[True] <= 1000 * rank["idle_ns"]
    sent = Counter(one["kind"] for one in graph["transfers"])
    told = Counter(one["collective"] for one in document["transfers"] for _ in one["seen"])
    assert {name: 2 * count for name, count in sent.items()} == {
        "send" if name == "send" else name: 2 * count if name == "send" else count
        for name, count in told.items()
        if name != "recv"
    }


@pytest.mark.parametrize("kind", RECORDED)
def test_a_graph_takes_as_long_as_the_step_if_transfers_take_as_long_as_recorded(kind):
    """No rank leaves a transfer before all have come: it moves for the shortest time that a rank was in it."""
    graph, document = recorded(kind)
    alone = replayed(graph, [0] * len(graph["transfers"]))
    busiest = max(sum(time for _, time in one["ops"]) for one in graph["classes"])
    assert busiest <= alone <= max(one["span_ns"] for one in document["ranks"]) * 1000
    if kind != "pp":  # of a send, only the receiver knows how long it takes
        moving = [min(seen["duration_ns"] for seen in one["seen"]) * 1000 for one in document["transfers"]]
        # Ranks leave a transfer at different times, and each sees the end a little later than it came.
        assert replayed(graph, moving) == pytest.approx(
            max(one["span_ns"] for one in document["ranks"]) * 1000, rel=0.2
        )


def test_a_message_waits_for_its_sender_alone_and_its_receiver_for_it():
    graph, _ = recorded("pp")
    counts = [len(one["ops"]) for one in graph["classes"]]
    rank_of = [rank for rank, count in enumerate(counts) for _ in range(count)]
    for place, transfer in enumerate(graph["transfers"]):
        sender, receiver = graph["groups"][transfer["group"]]["classes"]
        node = sum(counts) + place
        assert {rank_of[before] for before, after in graph["edges"] if after == node} == {sender}
        assert receiver in {rank_of[after] for before, after in graph["edges"] if before == node}


@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_step_is_written_with_what_waits_for_transfers(tmp_path, kind):
    document = convert(TRACES / kind, tmp_path / "step.et", step=3)
    assert len(document["written"]) == 3
    for rank in (0, 1):
        trace = gt.from_chakra(tmp_path / f"step.{rank}.et")
        rows = json.loads(trace._core.to_dag(rank, False))["ops"][:-1]
        moved = {row["id"] for row in rows if row["node"] in ("coll", "recv")}
        assert moved & {before for row in rows if row["node"] == "comp" for before in row["inputs"]}
    groups = json.loads((tmp_path / "step.groups.json").read_text())
    assert groups == ({} if kind == "pp" else {"1": [0, 1]})


STEP = [("aten::mm", 0, 40), ("gloo:all_reduce", 30, 80), ("aten::add", 90, 100)]


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([STEP], "no trace of rank 1; a step needs all"),
        ([STEP, [("aten::mm", 0, 40)]], r"ranks \(0, 1\), and in the step ranks 0 take part"),
        ([[(name.replace("all_reduce", "gather"), *times) for name, *times in STEP]] * 2, "it has 1 gather"),
        (
            [[(name.replace("all_reduce", "sparkle"), *times) for name, *times in STEP]] * 2,
            "transfers of an unknown kind",
        ),
    ],
)
def test_what_no_graph_can_represent_is_named(tmp_path, ranks, says):
    with pytest.raises(gt.TraceError, match=says):
        files(tmp_path, *ranks).graph()


@pytest.mark.parametrize("kind", RECORDED)
def test_a_step_of_chakra_has_the_same_groups_and_transfers(tmp_path, kind):
    trace = gt.from_kineto(TRACES / kind)
    trace.save(tmp_path / "trace.et")
    read = gt.from_chakra(tmp_path)
    for key in ("classes", "ranks"):
        assert [group[key] for group in read.graph()["groups"]] == [group[key] for group in trace.graph()["groups"]]
    whole, one = (Counter(transfer["kind"] for transfer in of.graph()["transfers"]) for of in (read, trace))
    # Chakra has no marks of the profiler: both steps are one.
    assert whole == Counter({kind: len(trace.steps) * count for kind, count in one.items()})


def test_a_rank_is_in_the_groups_whose_transfers_it_takes_part_in(tmp_path):
    """Four ranks, each in a row and a column of a mesh; Chakra says only what the groups are called."""
    us = 10**6
    for rank in range(4):
        pairs = {"row": [rank // 2 * 2, rank // 2 * 2 + 1], "column": [rank % 2, rank % 2 + 2]}
        names = {f"{axis}{min(ranks)}": ranks for axis, ranks in pairs.items()}
        groups = [{"pg_name": name, "ranks": ranks} for name, ranks in names.items()]
        events = [event("aten::mm", "cpu_op", 0, 20), event("aten::add", "cpu_op", 90, 10)]
        for start, name in zip((20, 55), names, strict=True):
            said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10, "Process Group Name": name}
            said["Group size"] = 2
            events.append(event("ncclDevKernel_AllReduce", "kernel", start, 30, stream=7, **said))
        events.append(event("gemm", "kernel", 0, 20, stream=1))
        job = {"rank": rank, "world_size": 4, "pg_config": groups}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": job, "traceEvents": events}))
    trace = gt.from_kineto(tmp_path)
    trace.save(tmp_path / "step.et")
    wanted = {("row0", (0, 1)), ("row2", (2, 3)), ("column0", (0, 2)), ("column1", (1, 3))}
    for one in (trace, gt.from_chakra([tmp_path / f"step.{rank}.et" for rank in range(4)])):
        graph = one.graph()
        assert {(group["name"], tuple(group["classes"])) for group in graph["groups"]} == wanted
        assert replayed(graph, [30 * us] * 4) >= 80 * us


def test_groups_without_names_are_named():
    with pytest.raises(gt.TraceError, match=r"process group is not named: 152 \(gloo:all_gather, gloo:all_reduce\)"):
        gt.from_kineto(TRACES / "mesh").graph()


def test_there_is_such_a_step():
    with pytest.raises(gt.TraceError, match="there is no step 9"):
        gt.from_kineto(TRACES / "fsdp").graph(9)


def test_a_step_is_of_chakra_alone(tmp_path):
    with pytest.raises(ValueError, match="an op DAG has no version, and is of the whole trace: --step"):
        convert(TRACES / "fsdp", tmp_path / "dag.json", step=3)
