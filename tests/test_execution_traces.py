"""Execution traces of PyTorch (ExecutionTraceObserver), through the public API: a graph without times.

Each schema's spelling is drawn and read back in crates/trace/tests/execution_trace.rs.
"""

import gzip
import json
import shutil
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import traces

DATA = Path(__file__).parent / "data"
RECORDED = DATA / "execution_traces"


def record(number, rank, *, size=4):
    """Return a record of an all-reduce of 1 kB by a rank of the group of all."""
    tensor = [7, 8, 0, 250, 4, "cuda:0"]
    values = [[tensor], number, ["0", "default_pg"], rank, "allreduce", [], [], 0, 1, size]
    types = ["GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String", *["GenericList[]"] * 2]
    types += ["Int"] * 3
    attributes = {"scope": 0, "tid": 1, "op_schema": ""}
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": 1,
        "inputs": {"values": values, "types": types},
        "outputs": {"values": [[tensor]], "types": types[:1]},
        "attrs": [{"name": name, "type": "x", "value": value} for name, value in attributes.items()],
    }


def execution_trace(path, *nodes):
    document = {"schema": "1.0.3-chakra.0.0.4", "pid": 1, "start_ts": 1, "nodes": list(nodes)}
    path.write_text(json.dumps(document))
    return path


def moved(trace):
    """Return what each rank moves, in its order; Chakra writes an unknown size and the 0 of a barrier alike."""
    rows = [(row["rank"], row["collective"], row["bytes"] or None) for row in trace.collectives.to_dicts()]
    return [[what for at, *what in rows if at == rank] for rank in trace.rank_numbers]


def test_the_transfers_are_those_that_the_profiler_recorded_of_the_same_program():
    trace = gt.from_execution_trace(RECORDED)
    assert moved(trace) == moved(gt.from_kineto(DATA / "traces"))
    assert (trace.format, trace.rank_numbers, trace.has_times) == ("pytorch-et", [0, 1], False)
    summary = trace.summary()
    assert (summary["version"], summary["world_size"], summary["missing_ranks"]) == ("1.1.1-chakra.0.0.4", 2, [])
    assert {row["group_ranks"] for row in trace.collectives.to_dicts()} == {"0 1"}


def test_it_is_read_by_its_content_and_its_rank_by_its_name(tmp_path):
    packed = tmp_path / "b.rank1.json.gz"
    shutil.copy(RECORDED / "rank1.et.json.gz", packed)
    plain = tmp_path / "a.json"
    plain.write_bytes(gzip.decompress((RECORDED / "rank0.et.json.gz").read_bytes()))
    for path in (packed, plain, tmp_path, [plain, packed]):
        assert traces.read(path).format == "pytorch-et"
    assert traces.read(packed).rank_numbers == [1]
    assert traces.read(plain).rank_numbers == [0]
    with pytest.raises(gt.TraceError, match="both of rank 1"):
        traces.read([packed, plain])  # without a rank in its name, a file is of the rank of its place


def test_a_collective_says_the_rank_before_the_name_does(tmp_path):
    path = execution_trace(tmp_path / "rank0.json", record(5, 3))
    trace = traces.read(path)
    assert (trace.rank_numbers, trace.summary()["world_size"]) == ([3], 4)
    assert trace.summary()["missing_ranks"] == [0, 1, 2]
    # What ranks say does not agree: the name counts.
    execution_trace(path, record(5, 3), record(6, 2))
    assert traces.read(path).rank_numbers == [0]


def test_it_is_written_as_chakra_and_as_a_graph_of_ops(tmp_path):
    trace = gt.from_execution_trace(RECORDED)
    trace.save(tmp_path / "a.et")
    chakra = gt.from_chakra(tmp_path)
    assert moved(chakra) == moved(trace)
    assert len(chakra.ops) == len(trace.ops)
    assert not chakra.has_times
    [path] = trace.save(tmp_path / "a.json", rank=1)
    graph = traces.read(path)
    assert (graph.rank_numbers, moved(graph)) == ([1], moved(trace)[1:])
    inputs = {op["id"]: op["inputs"] for op in json.loads(path.read_text())["ops"]}
    assert all(before < op for op, waits in inputs.items() for before in waits)


def test_what_needs_times_refuses_it_and_says_why():
    trace = gt.from_execution_trace(RECORDED)
    for refuses in (trace.waterfall, trace.to_model, trace.graph):
        with pytest.raises(gt.TraceError, match=r"start time|timeline"):
            refuses()
    assert "never wait" not in trace.summary()["headline"]


def test_unknown_bytes_are_not_counted_as_none(tmp_path):
    unsized = record(6, 3)
    unsized["inputs"]["values"][0] = []
    unsized["inputs"]["types"][0] = "GenericList[]"
    both = traces.read(execution_trace(tmp_path / "a.json", record(5, 3), unsized))
    assert moved(both) == [[["all_reduce", 1000], ["all_reduce", None]]]
    assert "2 transfers of at least 1kB" in both.summary()["headline"]
    alone = traces.read(execution_trace(tmp_path / "a.json", unsized))
    assert "1 transfers of unknown size" in alone.summary()["headline"]


def test_what_is_wrong_is_named_with_its_file_and_line(tmp_path):
    path = execution_trace(tmp_path / "a.json", record(5, 0))
    text = path.read_text()
    path.write_text(text[:-30].replace('"nodes"', '\n"nodes"'))
    with pytest.raises(gt.TraceError, match=r"a\.json: it is cut off at byte \d+ in line 2"):
        traces.read(path)
    path.write_text(text.replace("1.0.3-chakra", "2.0.0-chakra"))
    with pytest.raises(gt.TraceError, match=r"a\.json: .*2\.0\.0.*versions"):
        traces.read(path)
    with pytest.raises(
        gt.TraceError, match="not the expected execution trace of PyTorch, but a trace of PyTorch's profiler"
    ):
        gt.from_execution_trace(DATA / "traces" / "rank0.pt.trace.json.gz")
