"""The op graph of a module: parameters, gradients, marked ops, and the built-in graphs made again.

Needs torch, and for the built-in graphs torchvision.
"""

import copy
import json
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import gradtide as gt
import torch_models
from gradtide.presets.graphs import graph_document
from gradtide.profiling import build
from gradtide.profiling.ops import count_ops
from torch_models import library_model, small_cnn

pytestmark = torch_models.MARKS


def ops_of(model, *inputs, **options):
    dag = gt.op_dag(model, *inputs, **options)
    return dag, {op["id"]: op for op in dag["ops"]}


def test_the_op_graph_receives_every_parameter_and_ends_in_every_gradient():
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    dag, ops = ops_of(model, torch.zeros(5, 16), rate="1Gbps")
    recvs = [op for op in dag["ops"] if op["kind"] == "recv"]
    assert [op["name"] for op in recvs] == ["0.weight/read", "0.bias/read", "2.weight/read", "2.bias/read"]
    # At 1 Gbit/s a bit takes 1 ns.
    assert [op["time"] for op in recvs] == [32 * 16 * 8, 32 * 8, 32 * 8 * 4, 32 * 4]
    assert [op["id"] for op in dag["ops"]] == list(range(len(dag["ops"])))
    assert all(other < op["id"] for op in dag["ops"] for other in op["inputs"])
    end = ops[dag["target"]]
    assert (end["name"], len(end["inputs"])) == ("end", 4)
    assert json.loads(json.dumps(dag)) == dag


@pytest.mark.parametrize("device", ["V100", "measure"])
def test_the_op_graph_of_a_model_with_buffers_counts_them_as_read(device):
    # A batch norm reads x, two parameters and two buffers, and writes y and the mini-batch's two statistics.
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 3, 8, 8)
    norm = next(op for op in count_ops(model, (x,), {})["ops"] if "batch_norm" in op["name"])
    assert norm["moved_bytes"] == 4 * (2 * 2 * 8 * 6 * 6 + 6 * 8)
    ops = gt.op_dag(model, x, device=device, runs=1)["ops"]
    assert next(op["time"] for op in ops if op["name"] == norm["name"]) > 0


def test_the_op_graph_says_what_updates_what_and_where_forward_ends():
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    dag, ops = ops_of(model, torch.zeros(5, 16))
    updates = {recv: op["name"] for op in dag["ops"] for recv in op.get("updates", [])}
    assert sorted(updates) == [0, 1, 2, 3]
    assert ops[dag["inference_target"]]["name"].startswith("addmm")
    # Forward needs all four, and no op that makes a gradient.
    needed = {dag["inference_target"]}
    for op in reversed(dag["ops"]):
        if op["id"] in needed:
            needed.update(op["inputs"])
    assert needed >= {0, 1, 2, 3}
    assert not any(ops[op].get("updates") for op in needed)


class TwoHeads(nn.Module):
    """Gives a loss and logits, as models of transformers do; or both heads, as detectors do."""

    def __init__(self, *, has_loss):
        super().__init__()
        self.a, self.b, self.has_loss = nn.Linear(4, 2), nn.Linear(4, 3), has_loss

    def forward(self, x):
        logits, other = self.a(x), self.b(x)
        if not self.has_loss:
            return logits, other
        return types.SimpleNamespace(loss=logits.sum() + other.sum(), logits=logits)


@pytest.mark.parametrize(("has_loss", "received"), [(True, {0, 1}), (False, {0, 1, 2, 3})])
def test_forward_ends_in_logits_or_in_all_outputs(has_loss, received):
    dag, _ = ops_of(TwoHeads(has_loss=has_loss), torch.zeros(5, 4))
    needed = {dag["inference_target"]}
    for op in reversed(dag["ops"]):
        if op["id"] in needed:
            needed.update(op["inputs"])
    assert needed.intersection(range(4)) == received


def test_frozen_parameters_are_received_and_not_updated():
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    model[0].weight.requires_grad_(False)
    dag, _ = ops_of(model, torch.zeros(5, 16))
    assert sorted(recv for op in dag["ops"] for recv in op.get("updates", [])) == [1, 2, 3]


made_with_this_torch = pytest.mark.skipif(
    torch.__version__.split(".")[:2] != ["2", "15"],
    reason="the built-in graphs were made by torch 2.15; others name and split a few ops differently",
)


@made_with_this_torch
def test_a_built_in_graph_is_made_again_byte_for_byte(monkeypatch):
    tools = Path(__file__).resolve().parent.parent / "tools"
    monkeypatch.syspath_prepend(str(tools))
    import op_graphs

    committed = (op_graphs.GRAPHS / "tictac_alexnet_v2.json").read_text(encoding="utf-8")
    assert op_graphs.document("tictac_alexnet_v2") == committed


@made_with_this_torch
def test_a_built_in_graph_at_any_batch_is_what_a_trace_at_that_batch_gives(monkeypatch):
    tools = Path(__file__).resolve().parent.parent / "tools"
    monkeypatch.syspath_prepend(str(tools))
    import slim_models

    model = slim_models.MODELS["tictac_alexnet_v2"]()
    traced = gt.op_dag(model, *model.inputs(37), device="P100", rate="25Gbps")
    scaled = graph_document("tictac_alexnet_v2", "P100", 37, "train", 25 * 10**9)
    assert {key: traced[key] for key in ("target", "inference_target", "ops")} == {
        key: scaled[key] for key in ("target", "inference_target", "ops")
    }


def test_ops_that_hang_on_parameters_alone_are_marked():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return torch.relu(x.double() @ (self.weight * 2).double())

    dag, ops = ops_of(Cast(), torch.zeros(2, 4))
    alone = {op["name"] for op in dag["ops"] if op.get("param_only")}
    assert any(name.startswith("mul") for name in alone)
    assert not any(name.startswith(("mm", "relu", "end")) for name in alone)
    assert all(all(ops[i]["kind"] == "recv" or ops[i]["param_only"] for i in op["inputs"]) for op in dag["ops"]
               if op.get("param_only"))  # fmt: skip


@pytest.mark.slow
def test_the_op_graph_of_resnet_18_is_the_one_that_tictacs_code_was_given():
    # torchvision's ResNet-18 traced in the same way for the reference orders: 62 parameters are received, and TicTac's
    # count of ops was 475. torch versions differ in a few views and sums.
    pytest.importorskip("torchvision")
    model = build("torchvision.models:resnet18", on_meta=True)
    dag, _ = ops_of(model, torch.empty(2, 3, 96, 96, device="meta"), rate="2Gbps")
    assert sum(op["kind"] == "recv" for op in dag["ops"]) == 62
    assert len(dag["ops"]) == pytest.approx(475, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["V100", "A100", "A100-bf16"])
def test_ops_and_layers_of_resnet_50_take_equally_long(device):
    # Two ways to count bytes, with one calibration between them: the 0.4 of layers is 0.8 of kernels over the two
    # operands that training moves for each one counted, and the assumed two is good to a sixth or so.
    model, _ = library_model("resnet50")
    x = torch.empty(128, 3, 224, 224, device="meta")
    by_layer = gt.profile(model, x, device=device)
    by_op_ns = sum(op["time"] for op in gt.op_dag(model, x, device=device)["ops"] if op["kind"] == "comp")
    assert by_op_ns / 1e9 == pytest.approx(by_layer.forward_time + by_layer.backward_time, rel=0.15)


def test_measured_ops_have_times_and_the_same_graph():
    model, x = small_cnn()
    measured, modelled = gt.op_dag(model, x, device="measure", runs=1), gt.op_dag(model, x)
    assert [op["name"] for op in measured["ops"] if op["kind"] == "recv"] == [
        op["name"] for op in modelled["ops"] if op["kind"] == "recv"
    ]
    assert all(op["time"] > 0 for op in measured["ops"] if op["name"].startswith("convolution"))
    before = copy.deepcopy(model.state_dict())
    gt.op_dag(model, x, device="measure", runs=1)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
