"""What a file is: every reader names it where it is something else, and reads it where it is what is asked for."""

# ruff: noqa: E501 (rows of a table)

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import formats, recognise
from gradtide.scenario import opdag, plan, prices

DATA = Path(__file__).parent / "data"
SIMAI = "4 2 1 2 4 A100\n2 3\n0 2 2400Gbps 0.000025ms 0\n1 2 2400Gbps 0.000025ms 0\n0 3 100Gbps 0.0005ms 0\n1 3 100Gbps 0.0005ms 0\n"
FOREIGN: dict[str, str | bytes] = {
    "graphml": '<?xml version="1.0"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph/></graphml>',
    "gexf": '<gexf version="1.3"><graph/></gexf>',
    "gml": 'graph [\n  node [ id 0 label "a" ]\n]\n',
    "dot": "digraph g { a -> b; }\n",
    "node-link": '{"directed": false, "multigraph": false, "nodes": [{"id": "h0"}], "links": []}',
    "simgrid": '<?xml version=\'1.0\'?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1"></platform>',
    "nccl-topology": '<system version="1"><cpu numaid="0"><pci busid="0"><gpu dev="0"/></pci></cpu></system>',
    "nccl-graph": '<graphs version="1"><graph id="0" pattern="4" nchannels="2"></graph></graphs>',
    "hwloc": '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0"></topology>',
    "xml": "<mxfile><diagram/></mxfile>",
    "htsim-topo": "Nodes 8\nTiers 2\nPodsize 8\n\nTier 0\nDownlink_speed_Gbps 100\n",
    "simai": SIMAI,
    "ned": "network n { submodules: a: StandardHost; connections: a.ethg++ <--> Eth10G <--> b.ethg++; }\n",
    "omnet-ini": "[General]\nnetwork = n\nsim-time-limit = 5s\n",
    "astra-network": "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 50.0, 25.0 ]\n",
    "astra-system": '{"scheduling-policy": "LIFO", "all-reduce-implementation": ["ring"]}',
    "astra-workload": "DATA\n2\nlayer0 -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 4096 100\n",
    "basic-topology": "num_nodes=4\nnum_undirected_edges=3\nswitches=set(0,1)\n",
    "basic-flows": "0,2,3,100000000,0,,\n1,2,3,1000,129,,\n",
    "basic-config": "simulation_end_time_ns=10000000000\nsimulation_seed=123456789\n",
    "nccl-tests-json": '{"version": "2.17", "results": [{"size": 1024, "out_of_place": {"time": 21.0, "bus_bw": 0.05}}]}',
    "rccl-tests-json": '{"#wrong":"0","algBw":0.053,"busBw":0.08,"size":1024,"time":19.18}\n',
    "osu": "\n# OSU MPI Allreduce Latency Test v5.7\n# Size       Avg Latency(us)\n4   34.00\n",
    "chakra-json": '{"version": "0.0.4"}{"id": "1", "name": "a", "type": "COMM_COLL_NODE", "ctrlDeps": ["0"], "attr": []}',
    "weight-index": '{"metadata": {}, "weight_map": {"a.weight": "model-00001.safetensors"}}',
    "safetensors": b'\x40\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32"}}' + b" " * 40,
    "sqlite": b"SQLite format 3\0" + b"\x10\x00" * 40,
    "pdf": "%PDF-1.5\n%abc\n",
    "pcap": b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00" + b"\0" * 16,
    "parquet": b"PAR1\x15\x04\x15\x00" + b"\0" * 16,
    "nsys": b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n\x0bLocal (CLI)\x12\n\0\0",
    "chrome-trace": '[{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "x"}}]',
    "tar": b"a.json" + bytes(251) + b"ustar\x0000" + bytes(247),
    "xz": b"\xfd7zXZ\0\0\x04\xe6\xd6",
    "zstd": b"\x28\xb5\x2f\xfd\x04\x58",
    "bzip2": b"BZh91AY&SY\x03\xff",
    "zip": b"PK\x03\x04\x14\x00\x00\x00" + b"\0" * 60,
    "html": "<!DOCTYPE html>\n<html><head></head></html>",
    "lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    "ns2": "set ns [new Simulator]\n$ns duplex-link $a $b 10Mb 1ms DropTail\n",
    "yaml": "name: x\nnodes:\n  - a\n",
}  # fmt: skip
OURS = {
    "layers": "layer,forward_us,backward_us,parameter_bytes\nfc,1,2,100\n",
    "flows": "start_ns,src,dst,bytes\n0,0,1,9\n",
    "links": "a,b,rate,delay\nh0,s,10Gbps,1us\nh1,s,10Gbps,1us\n",
    "cdf": "bytes,cdf\n9,1\n",
    "op-times": "op,forward_us,backward_us\nx,1,2\n",
    "timings": "bytes,time_us\n1000,21\n",
    "htsim-cm": "Nodes 2\nConnections 1\n0->1 id 1 start 0 size 9\n",
    "hpcc-flow": "1\n0 1 3 100 9 0\n",
    "hpcc-topology": "3 1 2\n2\n0 2 25Gbps 1us 0\n1 2 25Gbps 1us 0\n",
    "scenario": '[job.a]\nmodel = "resnet50"\nworkers = 2\n',
    "study": '[sweep]\nscenario = "a.toml"\n',
    "prices": '[[switch]]\nports = 32\nrate = "25Gbps"\nprice = 9\n',
    "model": '{"schema": "gradtide.model/1", "name": "m", "layers": []}',
    "plan": '{"schema": "gradtide.plan/1", "level": "order"}',
    "config": '{"model_type": "llama", "hidden_size": 64}',
    "dag": '{"ops": [{"id": 0, "kind": "recv", "inputs": [], "time": 5}], "target": 0}',
    "order": '{"priority": {"0": 1}}',
    "kineto": '{"schemaVersion": 1, "traceEvents": []}',
    "pytorch-et": '{"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "p", "ctrl_deps": 0}]}',
    "nccl-tests": "# Collective test starting: all_reduce_perf\n#       size  count  type  time  algbw  busbw\n",
}


@pytest.mark.parametrize("name", [*FOREIGN, *OURS])
def test_a_file_is_told_by_its_beginning(name: str) -> None:
    text = {**FOREIGN, **OURS}[name]
    head = text if isinstance(text, bytes) else text.encode()
    found = recognise.seen(head)
    assert found is not None
    assert found.name == name
    if isinstance(text, str):
        assert recognise.seen(text) == found
        assert recognise.seen("\ufeff" + text.replace("\n", "\r\n")) == found
    assert found.use.format(file="x")


def test_a_list_of_events_of_a_profiler_is_a_trace() -> None:
    first = '[{"name": "process_name", "args": {"name": "python"}, "ph": "M", "pid": 1}'
    for event in ('{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}', '{"ph":"X","cat":"Kernel","name":"gemm"}'):
        for text in (f"{first}, {event}]", f"[{event}]"):
            found = recognise.seen(text)
            assert found is not None
            assert found.name == "kineto"
    found = recognise.seen(first + "]")
    assert found is not None
    assert found.name == "chrome-trace"


def test_a_list_of_events_is_a_model(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0, "dur": 40}
    size = {"Input Dims": [[1000]], "Input type": ["float"]}
    sent = {**event, "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "ts": 50, "args": size}
    (tmp_path / "list.json").write_text(json.dumps([{**event, "name": "aten::mm"}, sent]))
    scenario = gt.Scenario.from_dict({"job": {"a": {"model": "list.json", "workers": 2}}}, tmp_path)
    assert "4kB" in str(scenario.to_dict())


def test_what_has_no_format_is_not_guessed() -> None:
    for text in ("", "hello\nworld\n", "conv1\nfc\n", "x,y\n1,2\n", "\0\1\2" * 20, "{}", "[]", '{"a": 1}'):
        assert recognise.seen(text.encode()) is None


def scenario(**keys: Any) -> dict[str, Any]:
    return {"job": {"a": {"model": "m.csv", "workers": 2}}, **keys}


def in_links(path: Path) -> None:
    topology = {"kind": "custom", "links": path.name}
    gt.Scenario.from_dict(scenario(cluster={"topology": topology}), path.parent)


def in_traffic(key: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        keys = {key: path.name} | ({"load": 0.1} if key == "sizes" else {})
        run = {"engine": "fluid", "duration": "1s"}
        gt.Scenario.from_dict(scenario(traffic={"w": keys}, run=run), path.parent)

    return read


def in_order(path: Path) -> None:
    job = {"model": "m.csv", "workers": 2, "schedule": {"order": "file", "file": path.name}}
    gt.Scenario.from_dict({"job": {"a": job}}, path.parent)


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "scenario": (gt.Scenario.load, ".toml"),
    "links": (in_links, ".txt"),
    "flows": (in_traffic("replay"), ".csv"),
    "sizes": (in_traffic("sizes"), ".csv"),
    "layer order": (in_order, ".csv"),
    "model": (lambda path: gt.Scenario.from_dict({"job": {"a": {"model": path.name, "workers": 2}}}, path.parent), ".csv"),
    "configuration": (lambda p: gt.Scenario.from_dict({"job": {"a": {"model": p.name, "workers": 2}}}, p.parent), ".json"),
    "prices": (prices.read_prices, ".toml"),
    "plan": (plan.read_plan, ".json"),
    "graph of ops": (opdag.load_op_dag, ".json"),
    "study": (gt.sweep, ".toml"),
    "measured times": (gt.calibrate, ".txt"),
    "conversion": (gt.convert, ".txt"),
    "cluster": (lambda path: gt.run("resnet50", cluster=str(path)), ".toml"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["graphml", "simgrid", "htsim-topo", "simai", "nccl-topology", "ned", "astra-network",
                                  "basic-topology", "basic-flows", "osu"])  # fmt: skip
def test_every_reader_names_a_foreign_file_with_file_and_line(tmp_path: Path, reader: str, name: str) -> None:
    read, suffix = READERS[reader]
    (tmp_path / "m.csv").write_text(OURS["layers"])
    path = tmp_path / f"other{suffix}"
    text = FOREIGN[name]
    assert isinstance(text, str)
    path.write_text(text)
    with pytest.raises(gt.ScenarioError) as caught:
        read(path)
    faults = [fault for fault in caught.value.errors if fault["code"] == "GT007"]
    assert len(faults) == 1, caught.value.errors
    assert faults[0]["file"].endswith(path.name)
    assert faults[0]["line"] == (2 if name == "osu" else 1)
    seen = recognise.seen(text)
    assert seen is not None
    assert seen.what in faults[0]["msg"]
    assert faults[0]["hint"]


@pytest.mark.parametrize("name", ["graphml", "osu", "sqlite", "pytorch-et", "chakra-json"])
def test_a_trace_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    text = {**FOREIGN, **OURS}[name]
    path = tmp_path / "rank0.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    seen = recognise.seen(path.read_bytes())
    assert seen is not None
    with pytest.raises(gt.TraceError) as caught:
        gt.from_kineto(path)
    assert str(path) in str(caught.value)
    assert seen.what in str(caught.value)


def test_a_damaged_trace_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"schemaVersion": 1,\n"traceEvents": [\n{"ph": "X", "name": \x01}\n]}')
    with pytest.raises(gt.TraceError, match=r"rank0\.json.*line 3"):
        gt.from_kineto(path)


def test_what_gradtide_reads_elsewhere_is_sent_there(tmp_path: Path) -> None:
    path = tmp_path / "flows.csv"
    path.write_text(OURS["flows"])
    (tmp_path / "m.csv").write_text(OURS["layers"])
    with pytest.raises(gt.ScenarioError) as caught:
        in_links(path)
    [fault] = caught.value.errors
    assert fault["code"] == "GT007"
    assert "gradtide convert flows.csv" in fault["hint"]


def test_a_fault_of_the_right_format_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(OURS["layers"])
    path = tmp_path / "links.csv"
    path.write_text("a,b,rate\nh0,s,10G\nh1,s,10Gbps\n")
    with pytest.raises(gt.ScenarioError) as caught:
        in_links(path)
    assert [(fault["code"], fault["line"]) for fault in caught.value.errors] == [("GT021", 2)]


@pytest.mark.parametrize("form", formats.FORMATS, ids=lambda form: form.name)
def test_a_foreign_file_is_named_whatever_format_is_asked_for(tmp_path: Path, form: formats.Format) -> None:
    path = tmp_path / "x"
    path.write_text(FOREIGN["graphml"] if isinstance(FOREIGN["graphml"], str) else "")
    with pytest.raises((gt.ScenarioError, gt.TraceError), match="GraphML"):
        gt.convert(path, from_format=form.name, **({"packet": "1B"} if form.name == "cdf-ns2" else {}))


def test_hosts_with_two_cables_and_two_cables_between_switches_are_limits_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(OURS["layers"])
    ring = [{"a": "h0", "b": "h1"}, {"a": "h1", "b": "h0"}]
    text = '[job.x]\nmodel = "m.csv"\nworkers = 2\n[cluster]\ntopology = { kind = "custom", links = [\n'
    text += ",\n".join("{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in one.items()) + " }" for one in ring)
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_toml(text + "\n] }\n", base_dir=tmp_path)
    assert ("GT046", 7) in [(fault["code"], fault["line"]) for fault in caught.value.errors]
    (tmp_path / "t.txt").write_text("4 2 4\n2 3\n0 2 1Gbps 1us 0\n1 3 1Gbps 1us 0\n2 3 1Gbps 1us 0\n2 3 1Gbps 1us 0\n")
    with pytest.raises(gt.ScenarioError) as caught:
        in_links(tmp_path / "t.txt")
    assert [(fault["code"], fault["line"]) for fault in caught.value.errors] == [("GT046", 6)]
