"""Op graphs whose gradients a collective aggregates: keys, defaults, results. What a run does is held in Rust."""

import json
from statistics import fmean

import numpy as np
import pytest

import gradtide as gt


def wide(branches=6, seed=3):
    """A model of branches side by side, each of three layers, whose losses are added up: gradients in any order."""
    draw = np.random.default_rng(seed)
    ops = []

    def add(kind, inputs=(), time=0, **more):
        ops.append(
            {"id": len(ops), "name": f"op{len(ops)}", "kind": kind, "inputs": list(inputs), "time": time, **more}
        )
        return len(ops) - 1

    ends, layers = [], []
    for _ in range(branches):
        last = []
        for _ in range(3):
            recv = add("recv", bytes=int(draw.integers(100_000, 500_000)))
            last = [add("comp", [*last, recv], int(draw.integers(20, 400)))]
            layers.append((recv, last[0]))
        ends += last
    loss = add("comp", ends, 50)
    made, behind = [], loss
    for place, (recv, layer) in reversed(list(enumerate(layers))):
        behind = loss if place % 3 == 2 else behind
        behind = add("comp", [behind, layer], int(draw.integers(20, 400)))
        made.append(add("comp", [behind], int(draw.integers(20, 400)), updates=[recv]))
    return {"time_unit": "us", "target": add("comp", made, 1), "inference_target": loss, "ops": ops}


def scenario(tmp_path, model=None, **changes):
    (tmp_path / "model.json").write_text(json.dumps(model or wide()))
    job = {"model": "model.json", "workers": 4, "iterations": 3}
    return gt.Scenario.from_dict({"job": {"train": job}, "run": {"engine": "fluid"}}, tmp_path).replace(**changes)


def times(base, seeds):
    return [gt.run(base.replace(seed=seed)).job["iteration_time_ms"]["mean"] for seed in seeds]


def test_the_order_is_written_out_and_read_back(tmp_path):
    base = scenario(tmp_path)
    assert base.jobs[0].compute.order == "listed"
    assert base.to_dict()["job"]["train"]["compute"] == {"order": "listed", "overlap_slowdown": 1.0, "noise": 0.0}
    other = base.replace(compute_order="caramel")
    assert gt.Scenario.from_dict(other.to_dict()).to_dict() == other.to_dict()
    assert base.spec()["jobs"][0]["ops"]["order"] == "listed"


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_a_model_file_trains_on_every_engine(tmp_path, engine):
    result = gt.run(scenario(tmp_path, engine=engine, compute_order="random", order="priority", barrier=False))
    job = result.job
    assert job["compute_ms"] == pytest.approx(sum(op["time"] for op in wide()["ops"]) / 1000)
    assert job["iteration_time_ms"]["mean"] >= job["compute_ms"]
    assert job["lower_bound_ms"] <= job["iteration_time_ms"]["mean"] * (1 + 1e-9)
    assert len(result.workers) == 4 * 3


def test_caramels_order_beats_random_ones_on_average(tmp_path):
    """Every third draw or so is as good by chance; a single one proves nothing."""
    base = scenario(tmp_path, order="caramel", link_rate="5Gbps")
    (ours,) = times(base.replace(compute_order="caramel"), [0])
    assert ours < fmean(times(base.replace(compute_order="random"), range(5)))


def test_random_orders_follow_the_seed(tmp_path):
    base = scenario(tmp_path, compute_order="random", order="caramel", link_rate="5Gbps")
    assert times(base, [1, 2, 1])[0] == times(base, [1])[0]
    assert len(set(times(base, range(4)))) > 1


def test_what_is_not_trained_is_not_sent(tmp_path):
    model = wide()
    update = next(op for op in model["ops"] if op.get("updates"))
    (recv,) = update.pop("updates")
    base = scenario(tmp_path, model)
    assert base.jobs[0].parameter_bytes == sum(op.get("bytes", 0) for op in model["ops"]) - model["ops"][recv]["bytes"]
    assert gt.run(base).job["parameter_bytes"] == base.jobs[0].parameter_bytes


def test_a_scaled_graph_computes_for_exactly_so_long(tmp_path):
    assert gt.run(scenario(tmp_path, scale_to="7ms", compute_order="caramel")).job["compute_ms"] == 7.0


def test_the_report_and_the_timeline_name_the_ops(tmp_path):
    result = gt.run(scenario(tmp_path, compute_order="random", timeline=1))
    computed = {op["name"] for op in wide()["ops"] if op["kind"] == "comp"}
    assert computed <= set(result.operations["name"].tolist())
    folder = result.save(tmp_path / "run")
    assert "Timeline of one iteration" in (folder / "report.html").read_text()


def test_buckets_hold_what_is_updated_together(tmp_path):
    """With one bucket for all, everything is sent at once when the last gradient is there."""
    result = gt.run(scenario(tmp_path, fusion="1GB", compute_order="listed"))
    assert result.job["buckets"] == 1


def test_a_built_in_graph_is_meant_where_there_is_an_order():
    job = {"model": "tictac_vgg16", "workers": 2, "compute": {"device": "K80"}}
    layers = gt.Scenario.from_dict({"job": {"train": job}})
    graph = layers.replace(compute_order="caramel")
    assert (layers.jobs[0].graph, layers.jobs[0].compute.batch) == (None, 32)
    assert graph.jobs[0].graph is not None
    assert gt.Scenario.from_dict(graph.to_dict()).to_dict() == graph.to_dict()
    assert graph.jobs[0].parameter_bytes == layers.jobs[0].parameter_bytes


def test_plan_is_for_layers(tmp_path):
    with pytest.raises(ValueError, match="graph of ops"):
        gt.plan(scenario(tmp_path))
