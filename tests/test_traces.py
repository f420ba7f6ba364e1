"""Traces of other tools, through the public API: a real one of PyTorch, Chakra's files, and files that are neither."""

import gzip
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import traces
from trace_files import chakra_messages, delimited, event, kineto_of

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


# What tests/record_parallel.py does: four blocks of two layers, two steps; 32 · 128 + 128 + 128 · 32 + 32 parameters of
# a block in float32, inputs of 16 rows.
DIVIDED = RECORDED
BLOCK = 4 * (32 * 128 + 128 + 128 * 32 + 32)
ROWS = 4 * 16 * 32


def sent(name, step=2):
    """Return how often each rank sent what in a step: collective, bytes."""
    trace = gt.from_kineto(DIVIDED / name)
    found = {}
    for transfer in trace.step(step)["transfers"]:
        for seen in transfer["seen"]:
            key = transfer["collective"], transfer["bytes"]
            rank = found.setdefault(seen["rank"], {})
            rank[key] = rank.get(key, 0) + 1
    return found


def test_a_step_of_fsdp_gathers_twice_and_scatters_once_a_block():
    # The last block is gathered again, too: each is freed after its forward pass.
    wanted = {("all_gather", BLOCK // 2): 2 * 4, ("reduce_scatter", BLOCK): 4}
    assert sent("fsdp") == {0: wanted, 1: wanted}
    assert gt.from_kineto(DIVIDED / "fsdp").summary()["left_out"] == []


def test_a_step_of_tensor_parallelism_sums_once_a_block_and_pass():
    # Nothing needs the gradient of the inputs.
    wanted = {("all_reduce", ROWS): 4 + 3}
    assert sent("tp") == {0: wanted, 1: wanted}
    assert gt.from_kineto(DIVIDED / "tp").summary()["left_out"] == []


def test_a_step_of_a_pipeline_sends_each_micro_batch_there_and_back():
    found = sent("pp")
    assert [sum(rank.values()) for rank in found.values()] == [8, 8]
    assert {key for rank in found.values() for key in rank} <= {("send", ROWS // 4), ("recv", ROWS // 4)}
    ends = gt.from_kineto(DIVIDED / "pp").collectives
    assert {*zip(ends["from_rank"], ends["to_rank"], strict=True)} == {(0.0, 1.0), (1.0, 0.0)}


def test_collectives_of_a_mesh_are_all_there_and_their_missing_groups_are_counted():
    # A block is divided by two in width, but for the last layer's bias: half of that is a shard.
    part = 4 * (32 * 64 + 64 + 64 * 32 + 32)
    wanted = {("all_gather", part // 2): 8, ("reduce_scatter", part): 4, ("all_reduce", ROWS): 7}
    assert sent("mesh") == dict.fromkeys(range(4), wanted)
    trace = gt.from_kineto(DIVIDED / "mesh")
    [gap] = trace.summary()["left_out"]
    assert (gap["what"], gap["count"]) == ("group", 4 * 2 * (8 + 4 + 7))
    assert "process group is not named: 152" in " ".join(trace.summary()["warnings"])
    with pytest.raises(gt.TraceError, match="NCCL names them"):
        trace.to_model()


@pytest.mark.parametrize("name", ["fsdp", "tp", "mesh"])
def test_a_thread_that_waits_for_a_transfer_does_not_compute(name):
    trace = gt.from_kineto(DIVIDED / name)
    ops = trace.ops
    first = {}
    for rank in trace.rank_numbers:
        path = DIVIDED / name / f"rank{rank}.pt.trace.json.gz"
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        waits = [one for one in events if one["name"] == "_c10d_functional::wait_tensor" and one["ph"] == "X"]
        mine = zip(ops["rank"], ops["kind"], ops["start_us"], ops["duration_us"], strict=True)
        computing = [(start, start + length) for at, kind, start, length in mine if at == rank and kind == "comp"]
        spans = [one for one in events if one.get("ph") == "X" and one.get("cat") == "cpu_op"]
        first[rank] = min(float(one["ts"]) for one in spans)
        for wait in waits:
            start, length = float(wait["ts"]) - first[rank], float(wait["dur"])
            inside = sum(max(0, min(end, start + length) - max(begin, start)) for begin, end in computing)
            assert inside <= 0.01, (rank, wait)
    assert name == "fsdp" or waits


@pytest.mark.parametrize(
    ("name", "words"),
    [("fsdp", r"8 all_gather .*4 reduce_scatter"), ("tp", "all_reduce"), ("pp", r"4 recv .*4 send")],
)
def test_a_step_of_a_divided_model_is_no_table_of_layers_and_the_error_names_what_it_sends(name, words):
    with pytest.raises(gt.TraceError, match=words) as caught:
        gt.from_kineto(DIVIDED / name).to_model()
    assert re.search("no layer can represent|is not known", str(caught.value))
    assert "the first at" in str(caught.value)


def test_the_command_names_groups_where_there_are_several(gradtide, tmp_path):
    info = {
        "backend": "nccl",
        "rank": 0,
        "world_size": 4,
        "pg_config": [{"pg_name": "1", "ranks": [0, 2]}, {"pg_name": "3", "ranks": [0, 1]}],
    }
    said = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"}
    path = kineto_of(
        tmp_path,
        event("ncclDevKernel_AllReduce", "kernel", 30, 5, 2, **said, **{"Process Group Name": "1"}),
        event("ncclDevKernel_AllReduce", "kernel", 40, 5, 2, **said, **{"Process Group Name": "3"}),
    )
    text = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**text, "distributedInfo": info}))
    code, shown, err = gradtide("report", path, "-o", tmp_path / "out")
    assert code == 0, err
    assert "group" in shown.splitlines()[1] + shown.splitlines()[0]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_step_recorded_now_has_its_transfers_bytes_and_groups(tmp_path):
    script = Path(__file__).parent / "record_trace.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    check_recorded(gt.from_kineto(tmp_path / "*.pt.trace.json"))
    of_observer = gt.from_execution_trace(tmp_path / "*.et.json").collectives.to_dicts()
    assert [(row["collective"], row["bytes"]) for row in of_observer if row["rank"] == 0] == TRANSFERS


def test_the_parts_of_each_rank_sum_to_its_span():
    for row in gt.from_kineto(RECORDED).summary()["ranks"]:
        parts = [row[f"{part}_us"] for part in ("compute", "exposed", "idle")]
        # Each is a whole number of nanoseconds, shown as float64 microseconds below 2^14: an ulp is 2^-39 us.
        assert sum(parts) == pytest.approx(row["span_us"], abs=5 * 2**-39)


def test_a_missing_rank_and_a_wrong_clock_are_tolerated_and_reported(tmp_path):
    alone = gt.from_kineto(RECORDED / "rank1.pt.trace.json.gz").summary()
    assert alone["missing_ranks"] == [0]
    assert alone["warnings"] == ["there is no trace of rank 0; the results cover only the other ranks"]

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
        assert back.rank_numbers == [rank]
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
    path.write_text(json.dumps(document, indent=2))
    best = gt.order(traces.read(path).to_dag())
    assert (best.order, best.makespan) == ([1, 0], 12)
    assert gt.order(path).order == best.order


def test_a_transfer_that_waits_is_no_op_dag_until_it_is_cut():
    trace = gt.from_kineto(RECORDED)
    with pytest.raises(gt.ScenarioError, match="a recv cannot have inputs"):
        trace.to_dag()
    dag = trace.to_dag(1, cut=True)
    assert {op.name for op in dag.ops if op.kind == "recv"} >= {"gloo:all_reduce", "gloo:recv"}
    assert gt.order(dag, "tac").makespan > 0


@pytest.mark.parametrize("version", ["0.0.4", "1.0.0"])
@pytest.mark.parametrize("size_kind", ["int32_val", "int64_val", "uint64_val", "sint64_val", "fixed64_val"])
def test_what_protobuf_writes_is_read(tmp_path, version, size_kind):
    metadata, node = chakra_messages()
    compute = node(id=2**40, name="mm" * 100, type=4, start_time_micros=7, duration_micros=5)
    compute.inputs.shapes = "[[1, 2]]"
    compute.attr.add(name="num_ops", double_val=1e9)
    compute.attr.add(name="tensors", uint64_list={"values": [1, 2, 300]})
    reduce = node(id=3, name="coll", type=7, ctrl_deps=[2**40], data_deps=[2**40, 99], duration_micros=9)
    reduce.attr.add(name="comm_type", int64_val=7)
    reduce.attr.add(name="comm_size", doc_string="bytes", **{size_kind: 123_456})
    reduce.attr.add(name="pg_name", string_val="dp")
    reduce.attr.add(name="is_cpu_op", bool_val=True)
    (tmp_path / "trace.12.et").write_bytes(b"".join(map(delimited, [metadata(version=version), compute, reduce])))
    trace = gt.from_chakra(tmp_path)
    [_, row] = trace.ops.to_dicts()
    assert (trace.rank_numbers, trace.summary()["version"]) == ([12], version)
    assert (row["kind"], row["ctrl_deps"], row["data_deps"], row["is_host"]) == ("coll", str(2**40), str(2**40), 1)
    [row] = trace.collectives.to_dicts()
    assert (row["collective"], row["bytes"], row["group"]) == ("reduce_scatter", 123_456, "dp")
    assert "dependencies on ops that the files do not have: 1 (coll), left out" in trace.summary()["warnings"]


def test_what_is_written_protobuf_reads(tmp_path):
    metadata, node = chakra_messages()
    trace = gt.from_kineto(RECORDED)
    [path] = trace.save(tmp_path / "one.et", rank=0, version="1.0.0")
    content, messages = path.read_bytes(), []
    while content:
        length = shift = 0
        while True:
            byte, content = content[0], content[1:]
            length, shift = length | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        messages.append((node if messages else metadata).FromString(content[:length]))
        content = content[length:]
    head, *nodes = messages
    rows = [row for row in trace.ops.to_dicts() if row["rank"] == 0]
    assert head.version == "1.0.0"
    assert [(one.id, one.name, " ".join(map(str, one.ctrl_deps))) for one in nodes] == [
        (row["id"], row["name"], row["ctrl_deps"]) for row in rows
    ]
    # A duration is rounded to the nearest microsecond.
    assert all(abs(one.duration_micros - row["duration_us"]) <= 0.5 for one, row in zip(nodes, rows, strict=True))
    sizes = [attr.int64_val for one in nodes for attr in one.attr if attr.name == "comm_size"]
    assert sizes == [size for _, size in TRANSFERS]


# The command


def test_the_command_says_where_the_time_went_and_converts(gradtide, tmp_path):
    code, out, _ = gradtide("convert", RECORDED)
    assert code == 0
    assert "2 ranks do the work of 0.65 ranks without waits" in out
    one_rank = RECORDED / "rank1.pt.trace.json.gz"
    _, out, err = gradtide("convert", one_rank, tmp_path / "a.et", "--version", "1.0.0", "--json")
    assert json.loads(out)["missing_ranks"] == [0]
    assert "warning: there is no trace of rank 0" in err
    assert f"wrote {tmp_path / 'a.et'}" in err
    code, out, err = gradtide("convert", tmp_path / "a.et", tmp_path / "a.png")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    broken = tmp_path / "b.json"
    broken.write_bytes(KINETO[:1000])
    assert gradtide("convert", broken)[0] == 2


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
        ("a.json", b'{"ops": [], "target": 0}', "not the expected Kineto trace, but a graph of ops"),
        ("a.json", b"[1, 2]", "no event of it can be read"),
        ("a.json", b"\x89PNG\r\n\x1a\n" * 100, "not the expected Kineto trace"),
        ("a.json", b'{"traceEvents": [{"ph": 3}]}', "no event of it can be read"),
        ("a.json", b'{"traceEvents": [1 2]}', "no event of it can be read"),
        ("a.json", b'{"traceEvents": []}', "record with ProfilerActivity.CPU"),
        ("a.et", b"", "the file is empty"),
        ("a.et", CHAKRA[:-1], "no Chakra trace"),
        ("a.et", CHAKRA[:8], "no nodes after the metadata"),
        ("a.et", KINETO, "not the expected Chakra trace"),
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
    with pytest.raises(gt.TraceError, match=r"contains no file \*\.et"):
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
