"""Writes the op graphs python/gradtide/presets/graphs/NAME.json, and makes the tables about them.

    python tools/op_graphs.py [NAME ...] [--out DIR]    needs torch; tools/slim_models.py has the models
    python tools/op_graphs.py --table layers|speed      prints the table; needs no torch
    python tools/op_graphs.py --table orders            writes tools/op_graphs.csv; needs no torch

Every count of an op is a linear function of the mini-batch: two batch sizes determine it, and a third must agree. The
extraction is that of `gradtide.op_dag`.
"""

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = ROOT / "python/gradtide/presets/graphs"
ORDERS = ROOT / "tools/op_graphs.csv"
COUNTS = ("flops", "moved_bytes")
BATCHES = (2, 3, 8)
SAMPLE = "{0}x{0}x3 image"
SOURCES = {
    "tictac": "TF-slim variables, TicTac (MLSys 2019) Table 1; ATen ops of the published architecture",
    "caramel": "TF-slim variables, Caramel (arXiv:2004.14020) section 6; ATen ops of the published architecture",
}
TITLES = {
    "tictac_alexnet_v2": "AlexNet v2 (TicTac, TF-slim)",
    "tictac_inception_v1": "Inception v1 (TicTac, TF-slim)",
    "tictac_inception_v2": "Inception v2 (TicTac, TF-slim)",
    "tictac_inception_v3": "Inception v3 (TicTac, TF-slim)",
    "tictac_resnet50_v1": "ResNet-50 v1 (TicTac, TF-slim)",
    "tictac_resnet101_v1": "ResNet-101 v1 (TicTac, TF-slim)",
    "tictac_resnet50_v2": "ResNet-50 v2 (TicTac, TF-slim)",
    "tictac_resnet101_v2": "ResNet-101 v2 (TicTac, TF-slim)",
    "tictac_vgg16": "VGG-16 (TicTac, TF-slim)",
    "tictac_vgg19": "VGG-19 (TicTac, TF-slim)",
    "caramel_resnet152_v2": "ResNet-152 v2 (Caramel, TF-slim)",
}
# TicTac, Table 1: mini-batch, and ops of inference and training. Caramel states none for ResNet-152 v2, so its batch is
# that of the published throughput of a K80 (presets/devices.toml).
TABLE_1 = {
    "tictac_alexnet_v2": (512, 235, 483),
    "tictac_inception_v1": (128, 1114, 2246),
    "tictac_inception_v2": (128, 1369, 2706),
    "tictac_inception_v3": (32, 1904, 3672),
    "tictac_resnet50_v1": (32, 1114, 2096),
    "tictac_resnet101_v1": (64, 2083, 3898),
    "tictac_resnet50_v2": (64, 1423, 2813),
    "tictac_resnet101_v2": (32, 2749, 5380),
    "tictac_vgg16": (32, 388, 758),
    "tictac_vgg19": (32, 442, 857),
    "caramel_resnet152_v2": (32, 0, 0),
}
RULES = ("layer", "tic", "tac", "tac_folded")
RANDOM_ORDERS = 100


def document(name: str) -> str:
    """Returns the text of a graph file: the head, then one line per op."""
    from slim_models import MODELS

    from gradtide.profiling.ops import count_ops

    model = MODELS[name]()
    first, second, third = (count_ops(model, model.inputs(batch), {}) for batch in BATCHES)
    head = {
        "schema": "gradtide.graph/1",
        "name": name,
        "title": TITLES[name],
        "source": SOURCES[name.partition("_")[0]],
        "sample": SAMPLE.format(model.size),
        "batch": TABLE_1[name][0],
        "target": first["target"],
        "inference_target": first["inference_target"],
    }
    ops = [line(*same) for same in zip(first["ops"], second["ops"], third["ops"], strict=True)]
    body = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    rows = ",\n".join("  " + json.dumps(op, separators=(",", ":")) for op in ops)
    return "{\n" + body + ',\n "ops": [\n' + rows + "\n ]\n}\n"


def line(*same: dict[str, Any]) -> dict[str, Any]:
    """Returns one op with its counts as [fixed, per sample], from the same op at three batch sizes."""
    first, second, third = same
    for key in first.keys() | second.keys() | third.keys():
        assert key in COUNTS or first[key] == second[key] == third[key], f"{first['name']}: {key} hangs on the batch"
    found = dict(first)
    for key in COUNTS:
        if key in first:
            per_sample = (second[key] - first[key]) // (BATCHES[1] - BATCHES[0])
            fixed = first[key] - per_sample * BATCHES[0]
            assert third[key] == fixed + per_sample * BATCHES[2], f"{first['name']}: {key} is no straight line"
            found[key] = [fixed, per_sample]
    return found


def layers_table() -> list[list[str]]:
    """Ops and time of each graph, beside the ops of Table 1 and the time of the model of layers, on a K80."""
    from gradtide import presets
    from gradtide.presets import graphs
    from gradtide.roofline import roofline

    rows = [
        ["preset", "batch", "parameters", "ops, inference/training", "that take time", "in Table 1", "layers", "ops",
         "difference"]
    ]  # fmt: skip
    for name, (batch, inference, training) in TABLE_1.items():
        train = graphs.graph_document(name, "K80", None, "train", 10**10)
        forward = graphs.graph_document(name, "K80", None, "inference", 10**10)
        by_layer = sum(
            row.forward_ps + row.backward_ps for row in roofline(presets.model(name), presets.device("K80"), batch)
        )
        by_op = sum(op["time"] for op in train["ops"] if op["kind"] == "comp")
        assert graphs.graph(name).parameter_bytes == presets.model(name).parameter_bytes
        rows.append(
            [
                f"`{name}`",
                str(batch),
                str(graphs.graph(name).tensors),
                f"{len(forward['ops'])}/{len(train['ops'])}",
                "/".join(str(sum(op["time"] > 0 for op in dag["ops"])) for dag in (forward, train)),
                f"{inference}/{training}" if inference else "",
                f"{by_layer / 1e9:.1f} ms",
                f"{by_op / 1e6:.1f} ms",
                f"{by_op / (by_layer / 1e3) - 1:+.1%}",
            ]
        )
    return rows


def orders_table() -> list[list[str]]:
    """Makespans of each graph in milliseconds: one server at 10 Gbit/s, a K80, the paper's batch."""
    head = ["task", "preset", "transfers", "C", "N", "lower bound", ", ".join((*RULES, "optimal")), "random"]
    rows = [[task, *orders_row(name, task, RANDOM_ORDERS)] for task in ("inference", "train") for name in TABLE_1]
    return [head, *rows]


def orders_row(name: str, task: str, random_orders: int) -> list[str]:
    """Returns one row of that table."""
    import gradtide as gt

    dag = gt.preset_graph(name, task=task)
    recvs = set(dag.recvs)
    best = gt.order(dag, "optimal")
    found = [milliseconds(gt.order(dag, rule).makespan) for rule in (*RULES, "optimal")]
    random = [gt.order(dag, "random", seed=seed).makespan for seed in range(random_orders)]
    return [
        name,
        str(len(recvs)),
        milliseconds(sum(op.time for op in dag.ops if op.kind == "comp")),
        milliseconds(sum(op.time for op in dag.ops if op.id in recvs)),
        milliseconds(best.lower_bound),
        " / ".join(dict.fromkeys(found)) + ("" if best.optimal else f", at most {best.proven_gap:.2%} too long"),
        milliseconds(sum(random) / max(1, random_orders)),
    ]


def speed_table() -> list[list[str]]:
    """CPU milliseconds of `gt.order` for each training graph, the least of several runs, without reading the graph."""
    import gradtide as gt

    rows = [["preset", "ops", "tic", "tac", "optimal"]]
    for name in TABLE_1:
        dag, times = gt.preset_graph(name), []
        for rule in ("tic", "tac", "optimal"):
            spent = []
            for _ in range(5):
                start = time.process_time()
                gt.order(dag, rule)
                spent.append(time.process_time() - start)
            times.append(f"{min(spent) * 1e3:.1f}")
        rows.append([f"`{name}`", str(len(dag.ops)), *times])
    return rows


def milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f}"


def markdown(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=["layers", "orders", "speed"])
    parser.add_argument("--out", type=Path, default=GRAPHS, metavar="DIR")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    if options.table in ("layers", "speed"):
        print(markdown(layers_table() if options.table == "layers" else speed_table()))
        return 0
    if options.table == "orders":
        with ORDERS.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(orders_table())
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or TITLES:
        text = document(name)
        (options.out / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {text.count('kind')} ops, {len(text)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
