"""A recorded step as a graph of all its ranks: real steps of divided models, and one that is solved by hand."""

import json
from collections import Counter
from pathlib import Path

import pytest

import gradtide as gt
from gradtide.studies.convert import convert
from gradtide.traces.recording import EXACT

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
        "groups": [{"name": "group 0", "classes": [0, 1], "ranks": 2, "stride": 1}],
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
        assert times[False] == 1000 * rank["compute_ns"]
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
        ([STEP, STEP], "no trace of rank 2; a step needs all"),
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
        files(tmp_path, *ranks, world_size=max(2, len(ranks) + (ranks == [STEP, STEP]))).graph()


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
    wanted = {("group row0", (0, 1)), ("group row2", (2, 3)), ("group column0", (0, 2)), ("group column1", (1, 3))}
    for one in (trace, gt.from_chakra([tmp_path / f"step.{rank}.et" for rank in range(4)])):
        graph = one.graph()
        assert {(group["name"], tuple(group["classes"])) for group in graph["groups"]} == wanted
        assert replayed(graph, [30 * us] * 4) >= 80 * us


def test_groups_without_names_are_named():
    with pytest.raises(gt.TraceError, match=r"process group is not named: 76 \(gloo:all_gather, gloo:all_reduce\)"):
        gt.from_kineto(TRACES / "mesh").graph()


def test_there_is_such_a_step():
    with pytest.raises(gt.TraceError, match="there is no step 9"):
        gt.from_kineto(TRACES / "fsdp").graph(9)


def test_a_step_is_of_chakra_alone(tmp_path):
    with pytest.raises(ValueError, match="an op DAG has no version and covers the whole trace: --step"):
        convert(TRACES / "fsdp", tmp_path / "dag.json", step=3)


# as models

LIKE = {
    "job": {
        "train": {
            "model": {"layers": [{"name": "any", "forward": "1ms", "backward": "1ms", "parameters": "4B"}]},
            "workers": 2,
        }
    },
    "cluster": {"link": {"rate": "1Gbps", "delay": "10us"}},
    "run": {"engine": "fluid"},
}


def run(model, **keys):
    job = {"train": {"model": model, **keys.pop("job", {})}}
    return gt.run({**LIKE, "job": job, "run": {**LIKE["run"], **keys}})


def test_a_step_by_hand_as_a_model(tmp_path):
    """Compute until 40, then two rounds of 2000 bytes (16 us and 20 us of delay), 10 of the host, 10 of computing."""
    trace = files(
        tmp_path,
        [("aten::mm", 0, 40), ("gloo:all_gather", 30, 80), ("aten::add", 90, 100)],
        [("aten::mm", 0, 40), ("gloo:all_gather", 40, 82), ("aten::add", 82, 95)],
    )
    facts = run(str(tmp_path)).job
    # An all-gather of 4000 bytes from each has one round of two ranks.
    assert facts["iteration_time_ms"]["mean"] == pytest.approx((40 + 32 + 20 + 20) / 1e3)
    assert facts["workers"] == 2
    assert facts["parallel"]["mesh"] is None
    assert facts["parallel"]["groups"]["group 0"]["bytes_per_rank"] == 4000
    again = gt.Scenario.from_dict(LIKE).replace(model=trace.to_step(), workers=None)
    again = gt.run(again).job
    assert again["iteration_time_ms"] == facts["iteration_time_ms"]


@pytest.mark.parametrize("engine", ["fluid", "packet"])
@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_step_is_a_model_on_every_engine(kind, engine):
    """It takes as long as its graph if every transfer took what it takes alone, give or take what shares a link."""
    result = run(str(TRACES / kind), engine=engine)
    graph, _ = recorded(kind)
    alone = replayed(graph, [0] * len(graph["transfers"])) / 1e9
    mean = result.job["iteration_time_ms"]["mean"]
    sent = sum(row["end_us"] - row["start_us"] for row in result.transfers.to_dicts()) / 1e3
    assert alone <= mean <= alone + sent + 1e-6
    assert len(result.transfers) == len(graph["transfers"])
    assert {row["collective"] for row in result.transfers.to_dicts()} == {row["kind"] for row in graph["transfers"]}
    classes = result.job["parallel"]["classes"]
    for key, is_host in (("compute_ms", False), ("host_ms", True)):
        times = (time for one in graph["classes"] for name, time in one["ops"] if (name == "host") is is_host)
        assert sum(one.get(key, 0.0) for one in classes) == pytest.approx(sum(times) / 1e9)


@pytest.mark.parametrize("kind", RECORDED)
def test_what_is_summed_up_takes_as_long(kind):
    trace = gt.from_kineto(TRACES / kind)
    graph, short = trace.graph(), trace.to_step().document
    moving = [(index % 7) * 10**8 for index in range(len(graph["transfers"]))]
    assert replayed(short, moving) == replayed(graph, moving)
    for one, whole in zip(short["classes"], graph["classes"], strict=True):
        assert len(one["ops"]) < len(whole["ops"])


def test_the_resolved_scenario_needs_no_trace_and_gives_the_same():
    first = run(str(TRACES / "pp"))
    again = gt.run(gt.Scenario.from_toml(first.scenario.to_toml()))
    assert again.summary["jobs"] == first.summary["jobs"]
    assert again.scenario.to_toml() == first.scenario.to_toml()


def test_one_rank_stands_for_all(tmp_path):
    """Four ranks in two groups of two each way; rank 1 alone was recorded, and all four give the same."""

    def write(folder, ranks):
        folder.mkdir()
        for rank in ranks:
            groups = {"mesh_tp": [rank // 2 * 2, rank // 2 * 2 + 1], "mesh_fsdp": [rank % 2, rank % 2 + 2]}
            listed = [{"pg_name": f"{name}{min(of)}", "pg_desc": name, "ranks": of} for name, of in groups.items()]
            events = [event("aten::mm", "cpu_op", 0, 20), event("aten::add", "cpu_op", 90, 10)]
            for start, one in zip((20, 55), listed, strict=True):
                said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 500}
                said |= {"Process Group Name": one["pg_name"], "Group size": 2}
                events.append(event("ncclDevKernel_AllReduce", "kernel", start, 30, stream=7, **said))
            events += [event("gemm", "kernel", 0, 20, stream=1), event("gemm", "kernel", 50, 5, stream=1)]
            events.append(event("autograd::engine::evaluate_function: X", "cpu_op", 2, 30))
            job = {"rank": rank, "world_size": 4, "pg_config": listed}
            (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": job, "traceEvents": events}))
        return str(folder)

    # More than 2 % of what is sent are no gradients, by their group.
    one, every = (run(write(tmp_path / name, ranks)) for name, ranks in (("one", [1]), ("all", range(4))))
    assert one.job["workers"] == every.job["workers"] == 4
    assert one.job["iteration_time_ms"]["mean"] == pytest.approx(every.job["iteration_time_ms"]["mean"])
    assert list(one.job["parallel"]["groups"]) == list(every.job["parallel"]["groups"]) == ["tp", "fsdp"]
    packets = [run(str(tmp_path / name), engine="packet", start_jitter="0us") for name in ("one", "all")]
    assert packets[0].job["iteration_time_ms"] == packets[1].job["iteration_time_ms"]


def test_one_rank_of_a_pipeline_stands_for_nobody(tmp_path):
    for name in (TRACES / "pp").iterdir():
        if "rank0" in name.name:
            (tmp_path / name.name).write_bytes(name.read_bytes())
    with pytest.raises(gt.TraceError, match="it has 8 messages"):
        gt.from_kineto(tmp_path).to_step()


@pytest.mark.parametrize(
    ("job", "code", "says"),
    [
        ({"workers": 3}, "GT055", "has 2 ranks, and there are 3 workers"),
        ({"parallel": {"dp": 2}}, "GT055", "its recorded step is divided already"),
        ({"collective": {"kind": "ring"}}, "GT015", "no effect"),
        ({"compute": {"batch": 8}}, "GT015", "no effect"),
    ],
)
def test_what_a_recorded_step_does_not_take(job, code, says):
    with pytest.raises(gt.ScenarioError) as caught:
        run(str(TRACES / "fsdp"), job=job)
    assert [error["code"] for error in caught.value.errors] == [code]
    assert says in str(caught.value)


def test_noise_slows_every_rank_by_its_own():
    alike = run(str(TRACES / "fsdp")).job["iteration_time_ms"]["mean"]
    uneven = run(str(TRACES / "fsdp"), job={"compute": {"straggler": {"worker": 1, "factor": 2}}}).job
    assert uneven["iteration_time_ms"]["mean"] > 1.2 * alike


def test_an_edited_step_is_checked():
    table = gt.from_kineto(TRACES / "fsdp").to_step().table
    for change, says in (
        ({"edges": [*table["edges"], [0, 10**6]]}, "from op 0 to op 1000000"),
        ({"classes": []}, "the number of ranks is 0"),
        ({"transfers": [{**table["transfers"][0], "kind": "gossip"}]}, "gossip in group 0"),
        ({"classes": "all"}, "expected a list"),
    ):
        with pytest.raises(gt.ScenarioError, match=says):
            run({**table, **change})
