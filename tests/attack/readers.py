"""Every reader of inputs: its samples, how it reads, and which errors its documentation names.

An input is the bytes of one file. Where a reader needs more, the first line says it: `report` inputs begin with the
name of the file that they replace, `set` inputs are lines `KEY=VALUE`, `units` inputs are single texts.
"""

import contextlib
import gzip
import json
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gradtide as gt
from attack.mutate import varint
from gradtide import traces, units
from gradtide.errors import GradtideError, InternalError
from gradtide.estimate import estimate
from gradtide.report.folder import RunFolderError
from gradtide.scenario.opdag import load_op_dag, load_ranks
from gradtide.scenario.prices import read_prices
from gradtide.studies.keep import Kept
from gradtide.studies.trained import trained

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path(gt.__file__).resolve().parent
"""What is attacked: the package of the source tree, or one that is installed."""
PAPERS = PACKAGE / "presets/papers"
JOB = {"model": "resnet50", "workers": 2, "iterations": 1}

LAYERS = b"layer,forward_us,backward_us,parameter_bytes\na,1.5,2,4000000\nb,1,2,400\n"
MODEL = (
    b'{"schema": "gradtide.model/1", "name": "m", "layers": ['
    b'{"name": "a", "forward_us": 1.5, "backward_us": 2, "parameter_bytes": 3, "update_us": 1},'
    b'{"name": "b", "forward_us": 1.5, "backward_us": 2, "parameter_bytes": 3}]}'
)
CONFIGURATIONS = [
    b'{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 99,'
    b' "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,'
    b' "sliding_window": 32, "rope_theta": 1e6, "tie_word_embeddings": false}',
    b'{"model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 24,'
    b' "num_hidden_layers": 2, "num_attention_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1,'
    b' "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16,'
    b' "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "vocab_size": 99}',
    b'{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512, "n_inner": null,'
    b' "vocab_size": 99}',
]
PRICES = b"""\
currency = "USD"
[[switch]]
rate = "100Gbps"
ports = 32
price = 8000
[[cable]]
rate = "100Gbps"
price = 100
[[nic]]
rate = "100Gbps"
price = 500
"""
QUANTITIES = [
    b"10us", b"0.9s", b"6.28MB", b"64KiB", b"10Gbps", b"4GB/s", b"23/s", b"1000pkt", b"1/4", b"0.25", b"1MB", b"1Gb",
]  # fmt: skip
SETS = [
    b"cluster.link.rate=1Gbps\njob.train.workers=4", b"job.train.schedule.order=priority", b"run.engine=fluid",
    b"job.train.model={kind='thesis', layers=5}", b'job.train.hosts=["h0","h3"]', b"run.seed=7\nrun.duration=1s",
    b"job.train.collective.ps={servers=1}", b"traffic.web.load=0.3", b"job.train.priority=[0,1]",
]  # fmt: skip

Allowed = tuple[type[Exception], ...]


@dataclass
class Reader:
    """One reader.

    Attributes:
        file: name of the file that an input is written to.
        samples: what is mutated.
        read: reads the file; the folder of it is the reader's own.
        kind: as `mutate.mutated` has it.
        share: how many inputs it gets, relative to the others; quick readers get more.
        allowed: errors that its documentation names; `InternalError` is never one.
        prepare: puts into the folder what samples name.
    """

    file: str
    samples: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    kind: str = "text"
    share: int = 10
    allowed: Allowed = (GradtideError,)
    prepare: Callable[[Path], None] = field(default=lambda folder: None)

    def is_allowed(self, error: BaseException) -> bool:
        """Whether the documentation names an error."""
        return isinstance(error, self.allowed) and not isinstance(error, InternalError)


def _files(*patterns: str, under: Path = ROOT) -> list[bytes]:
    found = [path for pattern in patterns for path in sorted(under.glob(pattern))]
    assert found, patterns
    return [path.read_bytes() for path in found if path.stat().st_size < 30_000]


# Scenarios


def _siblings(folder: Path) -> None:
    for path in (ROOT / "scenarios").iterdir():
        if path.is_file():
            shutil.copy(path, folder)


def _scenario(path: Path) -> None:
    """Read a scenario; what is valid can be estimated, and its resolved text reads as the same."""
    scenario = gt.Scenario.load(path)
    estimate(scenario)
    again = gt.Scenario.from_toml(scenario.to_toml(), base_dir=path.parent)
    assert again == scenario, "the resolved scenario is another one"


def _json_scenarios() -> list[bytes]:
    loaded = [gt.Scenario.load(path) for path in sorted(PAPERS.glob("*.toml"))]
    return [json.dumps(scenario.to_dict()).encode() for scenario in loaded]


@cache
def _base() -> gt.Scenario:
    return gt.Scenario.from_dict({"job": {"train": JOB}})


def _set(path: Path) -> None:
    pairs = (line.partition("=") for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"))
    _base().set({key: value for key, _, value in pairs})


def _in_job(**keys: Any) -> Callable[[Path], object]:
    """Return what reads a scenario whose job names the file."""

    def read(path: Path) -> object:
        job = {**JOB, **{key: path.name if value is None else value for key, value in keys.items()}}
        return gt.Scenario.from_dict({"job": {"a": job}}, path.parent)

    return read


def _ranking(path: Path) -> object:
    job = {**JOB, "model": "twelve-layers.csv", "schedule": {"order": "file", "file": path.name}}
    return gt.Scenario.from_dict({"job": {"a": job}}, path.parent)


def _traffic(key: str, **more: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        table = {key: path.name, **more}
        run = {"duration": "10ms", "engine": "fluid"}
        data = {"job": {"a": JOB}, "cluster": {"topology": {"hosts": 8}}, "traffic": {"w": table}, "run": run}
        scenario = gt.Scenario.from_dict(data, path.parent)
        estimate(scenario)
        return scenario

    return read


def _cables(path: Path) -> object:
    cluster = {"topology": {"kind": "custom", "links": path.name}}
    return gt.Scenario.from_dict({"job": {"a": JOB}, "cluster": cluster, "run": {"engine": "fluid"}}, path.parent)


def _graphs() -> list[bytes]:
    rows = [{"id": 0, "name": "w", "kind": "recv", "inputs": [], "time": 9, "bytes": 8}]
    rows += [{"id": i, "name": f"c{i}", "kind": "compute", "inputs": [i - 1], "time": 4} for i in (1, 2, 3)]
    own = json.dumps({"ops": rows, "target": 3, "time_unit": "us"}).encode()
    return [own, *_files(*(f"tests/orders/{name}.json" for name in ("paper*", "adv*", "rand0[0-6]*")))]


def _dag(path: Path) -> None:
    dag = load_op_dag(path)
    if len(dag.ops) < 60:
        gt.order(dag, "tac")


def _order_file(path: Path) -> object:
    return load_ranks(path, load_op_dag(path.parent / "dag.json"))


def _plans() -> list[bytes]:
    plan = {
        "schema": "gradtide.plan/1", "version": "0", "scenario_sha256": None, "model": "twelve-layers", "workers": 2,
        "level": "priority", "order": "priority", "barrier": True, "chunk_bytes": 100000, "depth": 1,
        "collective": {"kind": "ring"}, "buckets": [{"layers": ["fc"], "bytes": 4000, "rank": 0}],
        "runtime": {"device": "cpu", "backend": "gloo", "cannot_set": []},
        "predicted": {"iteration_ms": 1.5, "overhead_us": 20}, "advice": ["none"],
    }  # fmt: skip
    found = gt.plan({"job": {"a": {**JOB, "model": str(ROOT / "scenarios/twelve-layers.csv")}}}, seeds=1)
    return [json.dumps(plan).encode(), json.dumps(found.plan.to_dict()).encode()]


def _plan(path: Path) -> None:
    plan = gt.read_plan(path)
    plan.on(gt.Scenario.from_dict({"job": {"a": {**JOB, "model": "twelve-layers.csv"}}}, path.parent))


def _cluster(path: Path) -> object:
    return trained("resnet50", path, 2)


# Files of other tools


def _converted(path: Path) -> None:
    for out in ("out.csv", "out.txt", "out.tcl", "out.cm", "out.json"):
        try:
            gt.convert(path, path.parent / out, packet="1460B" if out == "out.tcl" else None)
        except ValueError as error:
            # `convert` documents it: there is no such conversion.
            if type(error) is not ValueError and not isinstance(error, GradtideError):
                raise
    gt.convert(path)


TIMINGS = (
    b"bytes,time_us,depth\n1000,66,1\n100000,412,1\n10000000,34400,1\n1000,172,8\n100000,210,8\n10000000,14340,8\n"
)
NCCL_TESTS = [path.read_bytes() for path in sorted((ROOT / "tests/data/timings").glob("*.txt"))]


def _timings(path: Path) -> object:
    return gt.calibrate(path).to_toml(path.name)


# Traces


def _recorded(most: int = 90) -> list[bytes]:
    """Return the recorded traces with their first events, as JSON."""
    found = []
    for path in sorted(ROOT.glob("tests/data/traces/*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        for count in (25, most):
            found.append(json.dumps({**document, "traceEvents": document["traceEvents"][:count]}).encode())
        events = [event for event in document["traceEvents"] if "nccl" in event.get("name", "")]
        found.append(json.dumps({**document, "traceEvents": document["traceEvents"][:9] + events[:20]}).encode())
    return found


def _execution_traces() -> list[bytes]:
    """Return the recorded execution traces with their first nodes and their transfers, and records as NCCL has them."""
    found = []
    for path in sorted(ROOT.glob("tests/data/execution_traces/*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        nodes = document["nodes"]
        transfers = [node for node in nodes if node["name"].startswith("c10d::")]
        found += [json.dumps({**document, "nodes": part}).encode() for part in (nodes[:6], nodes[1:2] + transfers[:5])]
    tensor, types = [7, 8, 0, 250, 4, "cuda:0"], ["GenericList[Tensor(float)]", *["Int"] * 3, "String"]
    groups = '[{"pg_name": "0", "backend_id": 4096, "ranks": [], "group_size": 2}]'
    names = ("allreduce", "wait", "send")
    rows = [
        {"id": 3, "name": "## process_group:init ##", "parent": 1, "scope": 7, "tid": 1, "inputs": [groups]},
        *(
            {"id": 4 + place, "name": "record_param_comms", "parent": 1, "scope": 0, "tid": 1, "input_types": types}
            | {"inputs": [[tensor], 9, 4096, 1, name, [], [], 2], "op_schema": "x(Tensor(a!)[] x, int y) -> ()"}
            for place, name in enumerate(names)
        ),
        {"id": 9, "name": "aten::mul_", "parent": 1, "scope": 0, "inputs": [tensor], "input_types": ["Tensor(int)"]},
    ]
    return [*found, json.dumps({"schema": "1.0.1", "nodes": rows}).encode()]


@cache
def _trace() -> traces.Trace:
    return gt.from_kineto(ROOT / "tests/data/traces")


def _saved(suffix: str) -> Callable[[], list[bytes]]:
    def samples() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for rank in (0, 1):
                (path,) = _trace().save(Path(folder) / f"t{suffix}", rank=rank)
                found.append(path.read_bytes())
            if suffix == ".et":
                found += [_first_records(data, 40) for data in found]
            return found

    return samples


def _first_records(data: bytes, count: int) -> bytes:
    place = 0
    for _ in range(count):
        length, place = varint(data, place)
        place += length
    return data[:place]


def _read_trace(path: Path) -> None:
    trace = traces.read(path)
    json.dumps(trace.summary())
    for use in (trace.to_model, trace.waterfall, trace.to_dag):
        try:
            use()
        except GradtideError as error:
            if isinstance(error, InternalError):
                raise


# Folders of results


def _make_folders(folder: Path) -> None:
    """Write small folders of every kind of result that a report is made of."""
    model = str(ROOT / "scenarios/twelve-layers.csv")
    base = gt.Scenario.from_dict({"job": {"a": {**JOB, "model": model}}})
    with_flows = gt.Scenario.from_dict(
        {
            "job": {"a": {**JOB, "model": model}},
            "cluster": {"topology": {"hosts": 4}},
            "traffic": {"w": {"flows": [{"start": "1ms", "src": "h3", "dst": "h1", "bytes": "40kB"}]}},
            "run": {"engine": "packet", "duration": "9s", "probe": {"every": "9ms", "cwnd": ["a"]}},
        }
    )
    gt.run(base).save(folder / "run")
    gt.run(with_flows).save(folder / "flows")
    gt.compare(base).save(folder / "compare")
    gt.collectives(base).save(folder / "collectives")
    gt.plan(base, seeds=1).save(folder / "plan")
    _trace().waterfall().save(folder / "waterfall")


@cache
def _folders() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_folders(folder)
        kept = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
        return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def _put_folders(folder: Path) -> None:
    for name, content in _folders().items():
        path = folder / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _folder_samples() -> list[bytes]:
    readable = (".json", ".csv", ".toml")
    return [
        name.encode() + b"\n" + content
        for name, content in _folders().items()
        if name.endswith(readable) and "versions" not in name and len(content) < 60_000
    ]


def _report(path: Path) -> None:
    name, _, content = path.read_bytes().partition(b"\n")
    known = name.decode("latin-1")
    if known not in _folders():
        known, content = "run/summary.json", name + content
    target = path.parent / "results" / known
    target.write_bytes(content)
    try:
        gt.report.write_report(path.parent / "results" / known.partition("/")[0])
    finally:
        target.write_bytes(_folders()[known])


# Finished runs of a study


@dataclass(frozen=True)
class _Finished:
    """A finished run that is kept.

    Attributes:
        path: its store, from the folder in which the study goes to `out`.
        store: the bytes of that.
        text: what its row has, not compressed.
    """

    scenario: gt.Scenario
    path: str
    store: bytes
    text: bytes


@cache
def _finished() -> _Finished:
    scenario = gt.Scenario.from_dict({"job": {"a": {**JOB, "model": str(ROOT / "scenarios/twelve-layers.csv")}}})
    with tempfile.TemporaryDirectory() as name:
        with closing(Kept(Path(name) / "out")) as kept:
            kept.add(gt.run(scenario))
        (path,) = Path(name).rglob("*.store")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            ((packed,),) = database.execute("SELECT payload FROM outputs")
            # What it cost differs from attack to attack.
            cost = json.dumps({"cpu_s": 1.0, "wall_s": 1.0, "peak_rss_mb": 60.0}).encode()
            text = cost + b"\n" + zlib.decompress(packed).partition(b"\n")[2]
            database.execute("UPDATE outputs SET payload = ?", (zlib.compress(text, 1),))
        return _Finished(scenario, str(path.relative_to(name)), path.read_bytes(), text)


def _resume(path: Path, store: bytes, payload: bytes | None = None) -> None:
    """Go on with a study that has this store, and this payload in its row."""
    target = path.parent / _finished().path
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir(parents=True)
    target.write_bytes(store)
    if payload is not None:
        with closing(sqlite3.connect(target, isolation_level=None)) as database:
            database.execute("UPDATE outputs SET payload = ?", (payload,))
    with closing(Kept(path.parent / "out")) as kept:
        found = kept.find(_finished().scenario)
    if found is not None:
        json.dumps(found.summary)


def _units(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for parse in (
        units.parse_time,
        units.parse_rate,
        units.parse_bytes,
        units.parse_frequency,
        units.parse_packets,
        units.parse_buffer,
        units.parse_ratio,
    ):
        with contextlib.suppress(units.UnitError):
            parse(text)


FORMATS = ROOT / "tests/data/formats"


def _format(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(FORMATS / name).read_bytes()]


def _with_dag(folder: Path) -> None:
    shutil.copy(ROOT / "tests/orders/paper_fig1a.json", folder / "dag.json")


def _ranks() -> list[bytes]:
    dag = load_op_dag(ROOT / "tests/orders/paper_fig1a.json")
    ranks = {str(op): rank for rank, op in enumerate(dag.recvs)}
    return [json.dumps(ranks).encode(), json.dumps({"priority": ranks}).encode()]


READERS = {
    "scenario": Reader(
        "in.toml",
        lambda: [*_files("*.toml", under=PAPERS), *_files("scenarios/*.toml")],
        _scenario,
        share=8,
        prepare=_siblings,
    ),
    "scenario-json": Reader("in.json", _json_scenarios, _scenario, "json", 5, prepare=_siblings),
    "set": Reader("in.txt", lambda: SETS, _set, share=8),
    "units": Reader("in.txt", lambda: QUANTITIES, _units, share=60, allowed=()),
    "layers": Reader("in.csv", lambda: [LAYERS, *_files("scenarios/twelve-layers.csv")], _in_job(model=None), share=20),
    "model": Reader("in.json", lambda: [MODEL], _in_job(model=None), "json", 20),
    "configuration": Reader(
        "in.json",
        lambda: CONFIGURATIONS,
        _in_job(model=None, compute={"seq": 512, "batch": 8, "device": "H100-bf16"}),
        "json",
        20,
    ),
    "graph": Reader("in.json", _graphs, _in_job(model=None), "json", 8),
    "ranking": Reader("in.txt", lambda: _files("scenarios/own-order.txt"), _ranking, share=10, prepare=_siblings),
    "sizes": Reader(
        "in.csv",
        lambda: [b"bytes,cdf\n100,0.15\n4000,0.5\n1000000,1\n", *_files("tests/data/formats/*[hH].t*")],
        _traffic("sizes", load=0.1),  # type: ignore[arg-type]
        share=15,
    ),
    "replay": Reader("in.csv", _format("flows.csv"), _traffic("replay"), share=20),
    "links": Reader("in.csv", _format("links.csv"), _cables, share=15),
    "topology": Reader("in.txt", _format("topology.txt"), _cables, share=15),
    "convert": Reader(
        "in.txt",
        lambda: [LAYERS, MODEL, *_files("tests/data/formats/*.*")],
        _converted,
        share=20,
        allowed=(GradtideError, ValueError),
    ),
    "op-graph": Reader("in.json", _graphs, _dag, "json", 10),
    "order-file": Reader("in.json", _ranks, _order_file, "json", 20, prepare=_with_dag),
    "plan": Reader("in.json", _plans, _plan, "json", 20, prepare=_siblings),
    "prices": Reader("in.toml", lambda: [PRICES], read_prices, share=20),
    "cluster": Reader(
        "in.toml",
        lambda: [
            b"[cluster]\nlink = { rate = '10Gbps' }\ntopology = { kind = 'clos2', ports = 4 }\n[run]\nengine='fluid'\n"
        ],
        _cluster,
        share=8,
    ),
    "timings": Reader("in.txt", lambda: [TIMINGS, *NCCL_TESTS], _timings, share=20),
    "kineto": Reader("rank0.json", _recorded, _read_trace, "json", 6),
    "kineto-gzip": Reader("rank0.json.gz", _recorded, _read_trace, "gzip", 4),
    "execution-trace": Reader("rank0.json", _execution_traces, _read_trace, "json", 6),
    "chakra": Reader("trace.0.et", _saved(".et"), _read_trace, "proto", 8),
    "trace-dag": Reader("in.json", _saved(".json"), _read_trace, "json", 3),
    "report": Reader(
        "in", _folder_samples, _report, share=1, allowed=(GradtideError, RunFolderError), prepare=_put_folders
    ),
    "finished": Reader(
        "in.zlib",
        lambda: [_finished().text],
        lambda path: _resume(path, _finished().store, path.read_bytes()),
        "zlib",
        3,
    ),
    "store": Reader("in.store", lambda: [_finished().store], lambda path: _resume(path, path.read_bytes()), share=3),
}
"""Every reader by name; a folder of the corpus has the name of its reader."""
