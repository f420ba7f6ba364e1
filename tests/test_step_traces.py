"""The step of a simulated job as Chakra traces of all its ranks, read back by our own reader."""

import json
from collections import Counter, defaultdict

import pytest

import gradtide as gt
from gradtide import _core
from gradtide.scenario import Scenario
from gradtide.studies.convert import convert
from test_own_times import scenario

MESHES = [
    {"fsdp": 8},
    {"fsdp": 2, "tp": 4},
    {"fsdp": 2, "tp": 2, "pp": 2},
    {"dp": 2, "pp": 4},
    {"cp": 2, "dp": 2, "fsdp": 2},
    {"cp": 4, "pp": 2},
]


def written(tmp_path, parallel, **compute):
    one = scenario(parallel, **compute)
    (tmp_path / "job.toml").write_text(Scenario.from_dict(one).to_toml(), encoding="utf-8")
    document = convert(tmp_path / "job.toml", tmp_path / "step.et")
    assert sorted(document["written"]) == sorted(str(file) for file in tmp_path.glob("step.*"))
    groups = json.loads((tmp_path / "step.groups.json").read_text())
    documents = {}
    for file in tmp_path.glob("step.*.et"):
        rank = int(file.name.split(".")[1])
        trace = gt.from_chakra(file)
        assert [gap for gap in trace.summary()["left_out"] if gap["what"] != "start"] == []
        documents[rank] = json.loads(trace._core.to_dag(rank, False))["ops"][:-1]
    return documents, groups


def key_of(row, rank, groups, counts):
    """Return what the nodes of one transfer have in common in all files: its group, and how many came before it."""
    comm = row["comm"]
    place = ("send", *comm["ends"], comm["tag"]) if comm["collective"] is None else ("group", comm["group"])
    if comm["collective"] is None:
        return place
    assert rank in groups[comm["group"]]
    counts[place] += 1
    return (*place, counts[place])


def makespan_us(documents, groups):
    """Return when the last node ends if transfers take no time: each begins when all its ranks are there."""
    nodes, waits, costs = {}, defaultdict(set), defaultdict(int)
    for rank, rows in documents.items():
        counts = Counter()
        for row in rows:
            is_moved = row["node"] in ("coll", "send", "recv")
            nodes[rank, row["id"]] = key_of(row, rank, groups, counts) if is_moved else (rank, row["id"])
        for row in rows:
            own = nodes[rank, row["id"]]
            costs[own] = row["time"] if own == (rank, row["id"]) else 0
            waits[own] |= {nodes[rank, before] for before in row["inputs"]}
    ends, rest = {}, dict(waits)
    while rest:
        ready = [node for node, before in rest.items() if all(one in ends for one in before)]
        assert ready, "nodes wait for each other"
        for node in ready:
            ends[node] = max((ends[one] for one in rest.pop(node)), default=0) + costs[node]
    return max(ends.values()) / 1000


@pytest.mark.parametrize("parallel", MESHES, ids=str)
def test_nodes_of_all_ranks_take_as_long_as_the_run_but_for_transfers(tmp_path, parallel):
    """Ops take whole microseconds, as nodes do. A run is longer by at most the time of all transfers and launches."""
    names = ("embed", "layers.*.attn", "layers.*.mlp", "head")
    rows = [
        {"op": name, "forward": f"{8 + index}ms", "backward": f"{24 - index}ms", "update": "1ms"}
        for index, name in enumerate(names)
    ]
    compute = {"global_batch": 16, "times": {"rows": rows}}
    nodes_us = makespan_us(*written(tmp_path, parallel, **compute))
    result = gt.run(scenario(parallel, **compute))
    job, launch_us = result.job, result.scenario.jobs[0].schedule.overhead_ps / 1e6
    groups = job["parallel"]["groups"].values()
    moving_us = sum((1e3 * one["busy_ms"] + one["transfers"] * launch_us) * one["ranks"] for one in groups)
    assert nodes_us > 100_000
    assert nodes_us <= 1e3 * job["iteration_time_ms"]["mean"] <= nodes_us + moving_us


@pytest.mark.parametrize("parallel", MESHES, ids=str)
def test_every_rank_of_a_group_has_the_same_transfers_of_it(tmp_path, parallel):
    documents, groups = written(tmp_path, parallel)
    seen = defaultdict(dict)
    for rank, rows in documents.items():
        for row in rows:
            if row["node"] == "coll":
                comm = row["comm"]
                seen[comm["group"]].setdefault(rank, []).append((comm["collective"], comm["bytes"]))
    assert set(seen) == set(groups)
    assert "0" not in groups  # all ranks, for ASTRA-sim
    for number, by_rank in seen.items():
        assert sorted(by_rank) == groups[number]
        assert len({tuple(moved) for moved in by_rank.values()}) == 1


@pytest.mark.parametrize("parallel", [{"fsdp": 2, "pp": 4}, {"cp": 4, "fsdp": 2}, {"cp": 2, "tp": 2, "pp": 2}], ids=str)
def test_a_send_is_received_once(tmp_path, parallel):
    documents, _ = written(tmp_path, parallel, global_batch=32)
    ends = {kind: Counter() for kind in ("send", "recv")}
    for rank, rows in documents.items():
        for row in rows:
            if row["node"] in ends:
                comm = row["comm"]
                assert rank == comm["ends"][row["node"] == "recv"]
                ends[row["node"]][(*comm["ends"], comm["tag"], comm["bytes"])] += 1
    assert ends["send"] == ends["recv"]
    assert set(ends["send"].values()) == {1}
    if "cp" in parallel:
        # Keys and values go around a ring: each rank sends to the next one, whatever the size of the ring.
        senders = {source for source, *_ in ends["send"]}
        assert senders == set(documents)


def test_an_all_gather_has_the_part_of_a_rank_and_a_reduce_scatter_the_whole(tmp_path):
    documents, groups = written(tmp_path, {"fsdp": 8})
    base = Scenario.from_dict(scenario({"fsdp": 8}))
    graph = json.loads(_core.step_graph(json.dumps(base.spec())))
    wanted = Counter(
        (one["kind"], -(-one["bytes"] // (8 if one["kind"] == "all_gather" else 1))) for one in graph["transfers"]
    )
    found = Counter((row["comm"]["collective"], row["comm"]["bytes"]) for row in documents[3] if row["node"] == "coll")
    assert found == wanted
    assert all(ranks == list(range(8)) for ranks in groups.values())


def test_one_rank_alone_is_as_with_the_others(tmp_path):
    written(tmp_path, {"fsdp": 2, "tp": 2})
    convert(tmp_path / "job.toml", tmp_path / "one.et", rank=2)
    assert (tmp_path / "one.et").read_bytes() == (tmp_path / "step.2.et").read_bytes()


def test_a_run_folder_is_a_scenario(tmp_path):
    gt.run(scenario({"fsdp": 2})).save(tmp_path / "run")
    written(tmp_path, {"fsdp": 2})
    convert(tmp_path / "run", tmp_path / "again.et")
    assert (tmp_path / "again.1.et").read_bytes() == (tmp_path / "step.1.et").read_bytes()


def test_what_cannot_be_written_says_why(tmp_path):
    (tmp_path / "job.toml").write_text(Scenario.from_dict(scenario({"fsdp": 2})).to_toml(), encoding="utf-8")
    (tmp_path / "whole.toml").write_text('[job.train]\nmodel = "resnet50"\nworkers = 2\n', encoding="utf-8")
    with pytest.raises(gt.TraceError, match="there is no rank 2"):
        convert(tmp_path / "job.toml", tmp_path / "step.et", rank=2)
    with pytest.raises(gt.TraceError, match="no job divides a model"):
        convert(tmp_path / "whole.toml", tmp_path / "step.et")
    with pytest.raises(ValueError, match=r"name OUT as in step\.et"):
        convert(tmp_path / "job.toml")
    with pytest.raises(ValueError, match="--cut would do nothing"):
        convert(tmp_path / "job.toml", tmp_path / "step.et", cut=True)
    with pytest.raises(ValueError, match="no version '7'"):
        convert(tmp_path / "job.toml", tmp_path / "step.et", version="7")
