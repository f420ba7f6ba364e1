"""Traces of other tools, through the public API: a real one of PyTorch, Chakra's files, and files that are neither."""

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import traces

RECORDED = Path(__file__).parent / "data" / "traces"

# What tests/record_trace.py does. DDP sends the gradients of both layers in one bucket: 256 * 512 + 512 parameters and
# 512 * 10 + 10, in float32.
PARAMETERS = 256 * 512 + 512 + 512 * 10 + 10
TRANSFERS = [
    ("all_reduce", 4 * PARAMETERS),
    ("broadcast", 4 * 1000),
    ("all_gather", 8 * 250),
    ("send", 4 * 77),
    ("barrier", 0),
]


def check_recorded(trace):
    table = trace.collectives
    rows = list(zip(table["rank"], table["collective"], table["bytes"], strict=True))
    by_rank = {rank: [(what, size) for at, what, size in rows if at == rank] for rank in (0, 1)}
    assert by_rank[0] == TRANSFERS
    assert by_rank[1] == [("recv" if what == "send" else what, size) for what, size in TRANSFERS]
    assert set(table["group_ranks"]) == {"0 1"}
    ends = zip(table["collective"], table["from_rank"], table["to_rank"], strict=True)
    assert {(start, end) for what, start, end in ends if what in ("send", "recv")} == {(0.0, 1.0)}
    summary = trace.summary()
    assert summary["world_size"] == 2
    assert summary["missing_ranks"] == []
    assert summary["warnings"] == []


def test_the_recorded_step_has_its_transfers_bytes_and_groups():
    check_recorded(gt.from_kineto(RECORDED))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_step_recorded_now_has_its_transfers_bytes_and_groups(tmp_path):
    script = Path(__file__).parent / "record_trace.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=100)
    check_recorded(gt.from_kineto(tmp_path))


def test_the_parts_of_each_rank_sum_to_its_span():
    for row in gt.from_kineto(RECORDED).summary()["ranks"]:
        parts = [row[f"{part}_us"] for part in ("compute", "overlapped", "exposed", "idle")]
        # Each is a whole number of nanoseconds, shown as float64 microseconds below 2^14: an ulp is 2^-39 us.
        assert sum(parts) == pytest.approx(row["span_us"], abs=5 * 2**-39)


def test_a_missing_rank_and_a_wrong_clock_are_tolerated_and_reported(tmp_path):
    alone = gt.from_kineto(RECORDED / "rank1.pt.trace.json.gz").summary()
    assert alone["missing_ranks"] == [0]
    assert alone["warnings"] == ["there is no trace of rank 0; what is said is of the others"]

    for rank in (0, 1):
        document = json.loads(gzip.decompress((RECORDED / f"rank{rank}.pt.trace.json.gz").read_bytes()))
        document["baseTimeNanoseconds"] += rank * 3_000_000_000
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    true = gt.from_kineto(RECORDED).summary()["ranks"][1]
    summary = gt.from_kineto(tmp_path).summary()
    skewed = summary["ranks"][1]
    assert skewed["clock_offset_us"] == pytest.approx(true["clock_offset_us"] + 3e6, abs=1e-3)
    assert skewed["exposed_us"] == true["exposed_us"]
    assert "the clock of rank 1 is 2999411 us ahead of that of rank 0" in summary["warnings"]


def test_chakra_to_dag_to_chakra_keeps_ops_times_and_dependencies(tmp_path):
    # Through Chakra first, whose times are whole microseconds.
    first = gt.from_kineto(RECORDED).save(tmp_path / "a.et")
    assert [path.name for path in first] == ["a.0.et", "a.1.et"]
    again = gt.from_chakra(str(tmp_path / "a.*.et"))
    for rank in (0, 1):
        [dag] = again.save(tmp_path / f"{rank}.json", rank=rank)
        back = traces.read(dag)
        assert back.rank_numbers == [0]
        [chakra] = back.save(tmp_path / "back.et")
        assert chakra.read_bytes() == first[rank].read_bytes()
    kineto = gt.from_kineto(RECORDED)
    for name in ("rank", "id", "name", "kind", "ctrl_deps"):
        assert list(kineto.ops[name]) == list(again.ops[name])
    assert again.summary()["version"] == "0.0.4"


def test_the_order_of_a_trace_that_only_receives_first(tmp_path):
    rows = [
        {"id": 0, "name": "w0", "kind": "recv", "node": "coll", "inputs": [], "time": 9},
        {"id": 1, "name": "w1", "kind": "recv", "node": "coll", "inputs": [], "time": 2},
        {"id": 2, "name": "f1", "kind": "comp", "node": "comp", "inputs": [1], "time": 9},
        {"id": 3, "name": "f0", "kind": "comp", "node": "comp", "inputs": [0, 2], "time": 1},
        {"id": 4, "name": "end", "kind": "comp", "inputs": [3], "time": 0},
    ]
    ops = [{**row, "ctrl_inputs": 0, "start": 0, "is_host": False} for row in rows]
    document = {"schema": "gradtide.trace/1", "rank": 0, "world_size": 1, "target": 4, "ops": ops}
    path = tmp_path / "dag.json"
    path.write_text(json.dumps(document, separators=(",", ":")))
    best = gt.order(traces.read(path).to_dag())
    assert (best.order, best.makespan) == ([1, 0], 12)
    assert gt.order(path).order == best.order


def test_a_transfer_that_waits_is_no_op_dag_until_it_is_cut():
    trace = gt.from_kineto(RECORDED)
    with pytest.raises(gt.ScenarioError, match="a recv has no inputs"):
        trace.to_dag()
    dag = trace.to_dag(1, cut=True)
    assert {op.name for op in dag.ops if op.kind == "recv"} >= {"gloo:all_reduce", "gloo:recv"}
    assert gt.order(dag, "tac").makespan > 0


# What is no trace

KINETO = gzip.decompress((RECORDED / "rank0.pt.trace.json.gz").read_bytes())
CHAKRA = b"\x07\x0a\x050.0.4" + b"\x08\x08\x01\x12\x02mm\x18\x04"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "the file is empty"),
        ("a.json", b" \n", "the file is empty"),
        ("a.json", KINETO[:50_000], "cut off at byte 50000"),
        ("a.json.gz", gzip.compress(KINETO)[:3000], "compressed file is damaged or cut off"),
        ("a.json.gz", gzip.compress(KINETO)[:-4] + b"oops", "compressed file is damaged or cut off"),
        ("a.json", b'{"ops": [], "target": 0}', "no list `traceEvents`"),
        ("a.json", b"[1, 2]", "unexpected '['"),
        ("a.json", b"\x89PNG\r\n\x1a\n" * 100, "it is no Kineto trace"),
        ("a.json", b'{"traceEvents": [{"ph": 3}]}', "event 0, at byte 17"),
        ("a.json", b'{"traceEvents": [1 2]}', "event 0, at byte 17"),
        ("a.json", b'{"traceEvents": []}', "record with ProfilerActivity.CPU"),
        ("a.et", b"", "the file is empty"),
        ("a.et", CHAKRA[:-1], "no Chakra trace"),
        ("a.et", CHAKRA[:8], "no nodes after the metadata"),
        ("a.et", KINETO, "no Chakra trace"),
        ("a.et", b"\xff" * 1000, "a length of more than 64 bits"),
        ("a.et", CHAKRA + CHAKRA[8:], "two ops have the id 1"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(gt.TraceError) as caught:
        (gt.from_chakra if name.endswith(".et") else gt.from_kineto)(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_not_there_or_of_one_rank_are_refused(tmp_path):
    with pytest.raises(gt.TraceError, match="there is no file"):
        gt.from_kineto(tmp_path / "no*.json")
    with pytest.raises(gt.TraceError, match=r"holds no file \*\.et"):
        gt.from_chakra(tmp_path)
    with pytest.raises(gt.TraceError, match="both of rank 0"):
        gt.from_kineto([RECORDED / "rank0.pt.trace.json.gz"] * 2)
    with pytest.raises(gt.TraceError, match="no trace of rank 7; there are 0, 1"):
        gt.from_kineto(RECORDED).to_dag(7)
    with pytest.raises(ValueError, match="neither"):
        gt.from_kineto(RECORDED).save(tmp_path / "a.csv")


_READ = """
import resource, sys
import gradtide as gt
from gradtide import traces
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    traces.read(sys.argv[1]).summary()
    print("read")
except gt.TraceError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def read_apart(path):
    """Return what reading a file said, and by how many bytes the peak of memory grew."""
    output = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True).stdout
    said, grown = output.strip().rsplit("\n", 1)
    return said, int(grown)


@pytest.mark.slow
def test_reading_takes_less_memory_than_four_times_the_file(tmp_path):
    # Nothing but operators on one thread, each of them kept: the densest file that there is.
    event = (
        '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d.125,"dur":3.5,"args":{"External id":%d}}'
    )
    path = tmp_path / "rank0.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        file.write(",\n".join(event % (number * 4, number) for number in range(250_000)))
        file.write("]}")
    said, grown = read_apart(path)
    assert said == "read"
    assert grown < 4 * path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rank0.json", "trace.0.et"])
def test_a_gigabyte_of_nothing_is_refused_in_bounded_memory(tmp_path, name):
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [' if name.endswith(".json") else b"")
        file.truncate(10**9)  # sparse: the rest reads as zeros
    said, grown = read_apart(path)
    assert "event 0" in said or "it is no" in said
    assert grown < 300_000_000
