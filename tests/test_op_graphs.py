"""Built-in op graphs: what they hold, how they scale with the mini-batch, and what is made of them; without torch."""

import csv
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import cli, presets
from gradtide.presets import graphs
from gradtide.scenario.opdag import load_op_dag

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import op_graphs  # noqa: E402 - a script, not a package

VARIABLES = json.loads((ROOT / "tests/graphs/slim_variables.json").read_text(encoding="utf-8"))["models"]
NAMES = graphs.graph_names()
RATE_BPS = 10**10


@pytest.fixture(params=NAMES)
def graph(request):
    return graphs.graph(request.param)


def comps(counts):
    return [op for op in counts["ops"] if op["kind"] == "comp"]


def flops_of(counts, is_backward):
    return sum(
        op.get("flops", 0) for op in comps(counts) if op["name"].startswith("convolution_backward") == is_backward
    )


def ancestors(ops, target):
    needed = {target}
    for op in sorted(ops, key=lambda op: -op["id"]):
        if op["id"] in needed:
            needed.update(op["inputs"])
    return needed


def command(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gradtide", *arguments])
        return cli._main()


def test_the_models_are_those_of_the_papers():
    assert sorted(VARIABLES) == NAMES == sorted(op_graphs.TABLE_1)


def test_parameters_are_the_variables_of_tf_slim(graph):
    expected = VARIABLES[graph.name]
    recvs = [(op["name"].removesuffix("/read"), op["bytes"]) for op in graph.counts["ops"] if op["kind"] == "recv"]
    assert (len(recvs), sum(size for _, size in recvs)) == (expected["tensors"], expected["bytes"])
    assert (
        hashlib.sha256("".join(f"{name} {size}\n" for name, size in recvs).encode()).hexdigest()
        == (expected["names_sha256"])
    )
    # What the papers print has two digits, Caramel's one: half of the last is as near as they can be.
    assert graph.parameter_bytes / 2**20 == pytest.approx(expected["published_mib"], abs=0.05)


def test_the_graph_and_the_layers_of_a_model_agree(graph):
    """Two extractions: this one from ops, the layers' from names of variables and published sizes of images."""
    layers = presets.model(graph.name)
    assert (graph.tensors, graph.parameter_bytes) == (layers.tensors, layers.parameter_bytes)
    one = graph.at(1)
    assert flops_of(one, is_backward=False) == layers.forward_flops
    winograd = sum(op["flops"] for op in comps(one) if op.get("winograd") and "backward" not in op["name"])
    assert winograd == sum(layer.forward_flops for layer in layers.layers if layer.winograd)


def test_backward_is_two_products_of_each_convolution_but_the_first(graph):
    one = graph.at(1)
    first = next(op["flops"] for op in comps(one) if op["name"] == "convolution")
    assert flops_of(one, is_backward=True) == 2 * flops_of(one, is_backward=False) - first


def test_ops_are_in_topological_order_and_the_target_needs_all(graph):
    ops = graph.counts["ops"]
    assert [op["id"] for op in ops] == list(range(len(ops)))
    assert all(other < op["id"] for op in ops for other in op["inputs"])
    assert ancestors(ops, graph.counts["target"]) == set(range(len(ops)))


def test_each_parameter_is_updated_by_one_op_of_the_backward_pass(graph):
    ops = graph.counts["ops"]
    updates = [(recv, op["id"]) for op in ops for recv in op.get("updates", [])]
    assert sorted(recv for recv, _ in updates) == [op["id"] for op in ops if op["kind"] == "recv"]
    forward = ancestors(ops, graph.counts["inference_target"])
    assert not forward.intersection(op for _, op in updates)
    # A gradient hangs on the loss, and so on what the forward pass ends in.
    for _, op in updates:
        assert graph.counts["inference_target"] in ancestors(ops[: op + 1], op)


def test_nothing_but_a_transfer_hangs_on_parameters_alone(graph):
    """A convolution takes its weights as they are: no cast and no transpose, so that TAC folded is TAC."""
    assert not any(op.get("param_only") for op in graph.counts["ops"])
    assert gt.order(graph.name, "tac").priority == gt.order(graph.name, "tac_folded").priority


def test_counts_are_straight_lines_over_the_batch(graph):
    three, five, eleven = (graph.at(batch)["ops"] for batch in (3, 5, 11))
    for a, b, c in zip(three, five, eleven, strict=True):
        for key in ("flops", "moved_bytes"):
            if key in a:
                assert (b[key] - a[key]) * 6 == (c[key] - b[key]) * 2
                assert 0 <= a[key] <= b[key]
        assert {key: a[key] for key in a if key not in ("flops", "moved_bytes")} == {
            key: c[key] for key in c if key not in ("flops", "moved_bytes")
        }


def test_inference_is_the_part_of_training_that_the_logits_need(graph):
    train = {op.id: op for op in gt.preset_graph(graph.name).ops}
    dag = gt.preset_graph(graph.name, task="inference")
    assert dag.target == dag.inference_target == graph.counts["inference_target"]
    assert all(not op.updates for op in dag.ops)
    for op in dag.ops:
        other = train[op.id]
        assert (op.kind, op.inputs, op.time, op.bytes) == (other.kind, other.inputs, other.time, other.bytes)
    left_out = {op.name for op in train.values() if op.kind == "recv"} - {
        op.name for op in dag.ops if op.kind == "recv"
    }
    # Only Inception v3 has parameters that inference does not need: those of its auxiliary head.
    assert {name.split("/")[0] for name in left_out} == (
        {"AuxLogits"} if graph.name == "tictac_inception_v3" else set()
    )
    assert len(left_out) in (0, 6)


def test_times_are_the_rooflines_and_the_rates():
    dag = gt.preset_graph("tictac_vgg16", device="k80", batch=20, rate="1Gbps")
    k80 = presets.device("K80")
    by_name = {op.name: op for op in dag.ops}
    # conv1_2: 64 3x3 filters on 64 channels of 224 x 224, with Winograd, bound by compute.
    flops = 20 * 2 * 64 * 64 * 9 * 224**2
    expected_ns = flops / 2.25 / (k80.peak_flops * k80.compute_efficiency) * 1e9
    assert by_name["convolution_1"].time == round(expected_ns)
    # Its ReLU reads and writes 20 x 64 x 224^2 elements; one op reaches twice the 0.4 of layers.
    moved = 2 * 4 * 20 * 64 * 224**2
    assert by_name["relu_1"].time == round(moved / (k80.memory_bytes_per_s * 0.8) * 1e9)
    assert by_name["conv1/conv1_2/weights/read"].time == 8 * 4 * 64 * 64 * 9  # 1 ns a bit


def test_the_default_is_the_papers():
    for name, (batch, _, _) in op_graphs.TABLE_1.items():
        assert gt.preset_graph(name) == gt.preset_graph(name, "K80", batch, "train", "10Gbps")
    times = [
        sum(op.time for op in gt.preset_graph("tictac_vgg16", device).ops)
        for device in ("K80", "P100", "V100", "A100", "H100-bf16")
    ]
    assert times == sorted(times, reverse=True), "later devices are faster"


def test_a_graph_is_read_as_a_file_is(tmp_path):
    dag = gt.preset_graph("tictac_resnet50_v2")
    path = tmp_path / "dag.json"
    path.write_text(json.dumps(graphs.graph_document("tictac_resnet50_v2", "K80", None, "train", RATE_BPS)))
    assert load_op_dag(path) == dag
    assert gt.order(path, "tac") == gt.order("tictac_resnet50_v2", "tac")
    assert any(op.updates for op in dag.ops)
    assert sum(op.bytes for op in dag.ops) == graphs.graph("tictac_resnet50_v2").parameter_bytes


def test_a_file_wins_over_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ops = [
        {"id": 0, "kind": "recv", "inputs": [], "time": 5},
        {"id": 1, "kind": "comp", "inputs": [0], "time": 2},
    ]
    Path("tictac_vgg16").write_text(json.dumps({"ops": ops, "target": 1}))
    assert gt.order("tictac_vgg16").makespan == 7
    Path("tictac_vgg16").unlink()
    assert len(gt.order("tictac_vgg16", "layer").priority) == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "tictac_vg16"}, "no op graph is called 'tictac_vg16'; did you mean tictac_vgg16"),
        ({"name": "resnet"}, "there are caramel_resnet152_v2, tictac_alexnet_v2"),
        ({"device": "k81"}, "no device is called 'k81'; there are K80"),
        ({"task": "training"}, "no task is called 'training'; there are train"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"rate": "10"}, "rate: "),
        ({"rate": "0Gbps"}, "rate: at 0 bit/s nothing is ever received"),
    ],
)
def test_what_is_not_there_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        gt.preset_graph(**{"name": "tictac_vgg16", **options})


# The command


def test_the_command_takes_a_built_in_graph(capsys):
    options = ["--device", "k80", "--batch", "32", "--task", "inference", "--rate", "25Gbps", "--scheduler", "tac"]
    assert command("order", "tictac_vgg16", *options, "--json") == 0
    dag = gt.preset_graph("tictac_vgg16", "K80", 32, "inference", "25Gbps")
    printed, ours = json.loads(capsys.readouterr().out), gt.order(dag, "tac").to_dict()
    assert printed.pop("again")["command"].startswith("gradtide order tictac_vgg16")
    assert ours.pop("again")["command"] is None
    assert printed == ours


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tictac_vgg"], "there are caramel_resnet152_v2"),
        (["tictac_vgg16", "--device", "p10"], "there are K80, P100"),
        (["tictac_vgg16", "--task", "infer"], "there are train, inference"),
        (["none.json"], "none.json"),
        (["mine.json", "--batch", "4"], "batch applies only to built-in op graphs; the file mine.json"),
    ],
)
def test_a_command_that_means_nothing_says_what_would(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text('{"ops": [{"id": 0, "kind": "recv", "inputs": [], "time": 5}], "target": 0}')
    assert command("order", *arguments) == 2
    assert message in capsys.readouterr().err


# The tables


@pytest.mark.parametrize("task", ["inference", "train"])
def test_the_orders_of_the_table_are_made_again(task):
    with op_graphs.ORDERS.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    page = (ROOT / "docs/models/orders.md").read_text(encoding="utf-8")
    rows = [row[1:] for row in rows if row[0] == task]
    assert [row[0] for row in rows] == list(op_graphs.TABLE_1)
    column = head.index("random") - 1
    for row in rows:
        name = row[0]
        # Random orders take most of the time: one model stands for all.
        is_random = name == "tictac_alexnet_v2"
        expected = op_graphs.orders_row(name, task, op_graphs.RANDOM_ORDERS if is_random else 0)
        if not is_random:
            expected[column] = row[column]
        assert row == expected
        # One number: the layers' order, TIC and TAC are as good as the best, and that is proven.
        assert re.fullmatch(r"[\d.]+", row[-2])
        shown = f"| `{name}`, {'training' if task == 'train' else task} | "
        assert shown not in page or shown + " | ".join(row[1:]) + " |" in page


def test_the_comparison_with_layers_is_made_again():
    page = (ROOT / "python/gradtide/presets/graphs/PROVENANCE.md").read_text(encoding="utf-8")
    assert page.endswith(op_graphs.markdown(op_graphs.layers_table()) + "\n")


def test_no_row_is_left_out_of_the_list():
    rows = presets.list_presets("graph")
    assert [row["name"] for row in rows] == NAMES
    assert next(row for row in rows if row["name"] == "tictac_vgg19")["forward_ops"] == 94
