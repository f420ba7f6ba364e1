"""Seeds of the core's targets.

`cd tests && python -m fuzz.seeds` writes those of readers, from samples of the repository. Seeds of runs are kept by
hand: fields of the core's input have defaults, so a seed has only those that it is about. To these a fuzzer adds
resolved scenarios (`runs`).
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradtide as gt
from attack.readers import READERS, ROOT
from attack.runs import scenario_of
from gradtide.scenario.opdag import load_op_dag
from gradtide.studies.order import TIES

SEEDS = ROOT / "fuzz" / "seeds"
DRAWN = 60
MOST_BYTES = 8000
SCHEDULERS = ("layer", "tic", "tac", "tac_folded", "random", {"arbitrary": 300_000}, "optimal")


def main() -> None:
    """Write those of readers."""
    targets = {"order": orders, "kineto": kineto, "execution_trace": execution_traces}
    for target, seeds in {**targets, "chakra": chakra, "trace_dag": dags}.items():
        folder = SEEDS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            if len(data) <= MOST_BYTES:
                (folder / name).write_bytes(data)


LAYERS = [
    {"name": f"l{index}", "forward": "1ms", "backward": "2ms", "parameters": size}
    for index, size in enumerate(("40kB", "4kB", "101kB", "7B"))
]
JOB = {"model": {"name": "own", "layers": LAYERS}, "workers": 3, "iterations": 2}
LANGUAGE = {
    "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 50, "num_local_experts": 4,
    "num_experts_per_tok": 2, "rope_scaling": None,
}  # fmt: skip
FLOWS = [
    {"start": "1ms", "src": "h4", "dst": "h0", "bytes": "40kB"},
    {"start": "2ms", "src": "h1", "dst": "h5", "bytes": "4kB"},
]
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {"fsdp": 4, "ep": 1, "unit": 1},
    "zero1": {"dp": 2, "fsdp": 2, "ep": 1, "zero": 1},
    "tp": {"tp": 2, "fsdp": 2, "ep": 1, "async_tp": True},
    "cp": {"cp": 2, "ep": 2, "fsdp": 2},
    "pp": {"pp": 2, "tp": 2, "ep": 1},
}


def graph() -> dict[str, Any]:
    """Return an op graph of three parameters."""
    recvs = [
        {"id": place, "kind": "recv", "name": f"w{place}", "inputs": [], "bytes": 9001, "time": 1} for place in range(3)
    ]
    forward = [{"id": 3 + place, "kind": "comp", "inputs": [2 + place, place], "time": 40} for place in range(3)]
    backward = [
        {"id": 6 + place, "kind": "comp", "inputs": [5 + place], "time": 70, "updates": [2 - place]}
        for place in range(3)
    ]
    forward[0]["inputs"] = [0]
    return {"time_unit": "us", "target": 8, "inference_target": 5, "ops": recvs + forward + backward}


def named(folder: Path) -> dict[str, dict[str, Any]]:
    """Return scenarios that are seldom drawn, by name."""
    (folder / "graph.json").write_text(json.dumps(graph()))
    fluid = {"engine": "fluid"}
    six = {"topology": {"hosts": 6}}
    found: dict[str, dict[str, Any]] = {
        "servers": {"job": {"a": {**JOB, "collective": {"ps": {"servers": 1}}}}, "run": fluid},
        "graph": {"job": {"a": {**JOB, "model": "graph.json"}}, "run": fluid},
        "oracle": {
            "job": {"a": {**JOB, "priority": {"adaptive": {"policy": "oracle"}}}},
            "cluster": {**six, "queue": {"kind": "strict", "bands": 2}},
            "traffic": {"web": {"flows": FLOWS}},
            "run": {"engine": "packet", "duration": "50ms"},
        },
        "deadline": {
            "job": {"a": {**JOB, "priority": {"adaptive": {"policy": "deadline"}}}},
            "cluster": {**six, "queue": {"kind": "strict", "bands": 2}},
            "traffic": {"web": {"flows": FLOWS}},
            "run": {"engine": "packet", "duration": "50ms", "probe": {"every": "9ms", "cwnd": ["a", "web"]}},
        },
    }
    for name, mesh in MESHES.items():
        compute = {"seq": 16, "micro_batch": 1, "device": "H100"}
        job = {"model": LANGUAGE, "parallel": mesh, "compute": compute, "iterations": 1}
        found[name] = {**gt.presets.cluster("h100-hgx", "fluid"), "job": {"a": job}, "run": fluid}
    return found


def runs() -> Iterator[tuple[str, bytes]]:
    """Return resolved scenarios, drawn and named."""
    for index in range(DRAWN):
        yield f"drawn-{index:02}.json", _spec(scenario_of(1, index))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, tables in named(folder).items():
            yield f"{name}.json", _spec(gt.Scenario.from_dict(tables, folder))


def _spec(scenario: gt.Scenario) -> bytes:
    return json.dumps(scenario.spec(), separators=(",", ":")).encode()


def orders() -> Iterator[tuple[str, bytes]]:
    """Return the DAGs of tests/orders, each to be ordered in another way."""
    for index, path in enumerate(sorted((ROOT / "tests/orders").glob("*.json"))):
        dag = load_op_dag(path)
        by = SCHEDULERS[index % len(SCHEDULERS)]
        spec = {"dag": dag.spec(), "scheduler": by, "ties": TIES[index % len(TIES)], "seed": index}
        yield path.name, json.dumps(spec, separators=(",", ":")).encode()


def kineto() -> Iterator[tuple[str, bytes]]:
    """Return the first events of recorded traces."""
    for index, data in enumerate(READERS["kineto"].samples()):
        yield f"recorded-{index}.json", data


def execution_traces() -> Iterator[tuple[str, bytes]]:
    """Return the first nodes of recorded execution traces."""
    for index, data in enumerate(READERS["execution-trace"].samples()):
        yield f"recorded-{index}.json", data


def chakra() -> Iterator[tuple[str, bytes]]:
    """Return recorded traces as Chakra files."""
    for index, data in enumerate(READERS["chakra"].samples()):
        yield f"recorded-{index}.et", data


def dags() -> Iterator[tuple[str, bytes]]:
    """Return recorded traces as op DAGs."""
    for index, data in enumerate(READERS["trace-dag"].samples()):
        yield f"recorded-{index}.json", data


if __name__ == "__main__":
    main()
