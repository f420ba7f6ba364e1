"""How wrong answers of a kind were, or that nobody compared them (gradtide.answer.uncertainty)."""

import json
from importlib import resources

import pytest

import gradtide as gt
from gradtide import presets
from gradtide.answer.uncertainty import uncertainty_of
from gradtide.studies.meshes import meshes

TABLE = json.loads(resources.files("gradtide.answer").joinpath("compared.json").read_text(encoding="utf-8"))
STEPS = [row for row in TABLE if row["what"] == "step"]
MODELS = {"dense": "llama3-8b", "moe": "mixtral-8x7b"}
CLUSTERS = {"H100-500W": "h100-hgx", "MI300X": "mi300x"}
AXES = {"data": {}, "tensor": {"tp": 2}, "context": {"cp": 2}, "pipeline": {"pp": 2}}


def step(family="dense", device="H100", precision="bf16", parallelism="data", nodes="one", **more):
    """A step of a language model of a kind."""
    ranks = 8 if nodes == "one" else 16
    axes = AXES[parallelism]
    parallel = {**axes, "fsdp": ranks // max(axes.values(), default=1)}
    parallel |= {"ep": 4} if family == "moe" else {}
    compute = {"device": device, "precision": precision, "seq": 2048}
    compute |= {} if precision in presets.accelerator(device).efficiency else {"efficiency": 0.6}
    compute |= {key: more.pop(key) for key in ("efficiency",) if key in more}
    cluster = presets.cluster(f"{CLUSTERS.get(device, device.lower() + '-hgx')}/{ranks // 8}")
    cluster["cluster"]["link"].update(more)
    job = {"model": MODELS[family], "parallel": parallel, "compute": compute}
    return gt.Scenario.from_dict({**cluster, "job": {"train": job}})


def trained(model="resnet50", cluster="ethernet-10g/8", workers=8, engine="fluid", **compute):
    job = {"model": model, "workers": workers, "compute": compute}
    return gt.Scenario.from_dict({**presets.cluster(cluster, engine), "job": {"train": job}})


LAYERS = {"layers": [{"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "4MB"}]}


@pytest.mark.parametrize("device", presets.accelerator_names())
def test_every_combination_is_of_a_compared_kind_or_never_compared(device):
    """Devices x precisions x families x parallelisms x nodes: the figures of its own row, or none at all."""
    for precision in presets.accelerator(device).peaks:
        for family in MODELS:
            for parallelism in AXES:
                for nodes in ("one", "several"):
                    facts = {"family": family, "device": device, "precision": precision}
                    facts |= {"parallelism": parallelism, "nodes": nodes}
                    found = uncertainty_of(step(**facts), "run")
                    rows = [row for row in STEPS if facts.items() <= row.items()]
                    assert len(rows) <= 1
                    assert found.count == (rows[0]["count"] if rows else 0)
                    assert found.mean_error == (rows[0]["mean_error"] if rows else None)
                    assert found.is_compared == bool(rows)
                    assert device in found.sentence()


def test_the_sentence_names_how_many_were_compared_and_how_far_off_they_were():
    found = uncertainty_of(step(nodes="several"), "compare")
    assert found.count == 17
    sentence = found.sentence()
    assert "n = 17" in sentence
    assert f"{100 * found.mean_error:.1f} %" in sentence
    assert found.to_dict()["sentence"] == sentence
    assert found.source == "docs/validation/llm-steps.md"


@pytest.mark.parametrize(
    ("family", "device", "precision"),
    [("moe", "H100", "bf16"), ("moe", "A100", "bf16"), ("dense", "B200", "bf16"), ("dense", "MI300X", "bf16"),
     ("moe", "MI300X", "float8"), ("dense", "MI300X", "float8"), ("moe", "H200", "float8"), ("moe", "B200", "bf16")],
)  # fmt: skip
def test_what_nobody_compared_is_called_that(family, device, precision):
    for parallelism in AXES:
        found = uncertainty_of(step(family, device, precision, parallelism, "several"), "run")
        assert (found.count, found.mean_error, found.largest, found.parts) == (0, None, None, ())
        assert found.sentence().startswith("Never compared")


def test_an_efficiency_that_a_user_states_is_a_kind_of_its_own():
    """Steps on B200 were predicted at 0.6, which says nothing of another one, and H100 has an efficiency of its own."""
    assert uncertainty_of(step(device="B200", precision="float8", efficiency=0.6)).count > 0
    assert uncertainty_of(step(device="B200", precision="float8", efficiency=0.4)).count == 0
    assert uncertainty_of(step(efficiency=0.6)).count == 0


def test_a_network_that_is_slower_than_all_that_were_measured_is_another_kind():
    assert uncertainty_of(step(nodes="several", rate="50Gbps")).count > 0
    assert uncertainty_of(step(nodes="several", rate="25Gbps")).count == 0
    assert uncertainty_of(step(nodes="several", rate="800Gbps")).count == 0


def test_an_image_model_on_one_device_has_the_error_of_that_device():
    rows = {row["device"]: row for row in TABLE if row["what"] == "compute"}
    for device in ("V100", "K80", "A100-bf16"):
        found = uncertainty_of(trained(workers=1, cluster="ethernet-10g/1", device=device))
        assert (found.count, found.mean_error) == (rows[device]["count"], rows[device]["mean_error"])
    assert uncertainty_of(trained(workers=1, cluster="ethernet-10g/1", device="T4")).count == 0
    assert uncertainty_of(trained("bert_base", workers=1, cluster="ethernet-10g/1", device="V100")).count == 0
    assert uncertainty_of(trained(workers=1, cluster="ethernet-10g/1", device="V100", efficiency=0.5)).count == 0


def test_an_iteration_that_nobody_compared_names_what_of_it_was():
    found = uncertainty_of(trained(device="V100"), "compare")
    assert not found.is_compared
    compute, engine = found.parts
    assert compute.is_compared
    assert "V100" in compute.of
    assert not engine.is_compared
    assert engine.against.startswith("SimGrid")
    assert engine.count > 10_000


@pytest.mark.parametrize(("transport", "count"), [("newreno", 1656), ("cubic", 2), ("ideal", 0)])
def test_the_packet_engine_was_compared_with_a_simulator_by_transport(transport, count):
    scenario = trained(engine="packet", device="V100").set({"cluster.transport.kind": transport})
    engines = [part for part in uncertainty_of(scenario).parts if "packet" in part.of]
    assert [part.count for part in engines] == ([count] if count else [])
    assert not any(part.is_compared for part in engines)


def test_timed_layers_over_a_slow_network_are_as_wrong_as_gloo_runs():
    slow = trained(LAYERS, "ethernet-1g/2", 2)
    found = uncertainty_of(slow, "plan")
    assert found.is_compared
    assert found.source == "docs/validation/plan.md"
    assert found.count == 32
    assert not uncertainty_of(trained(LAYERS, "ethernet-100g/2", 2), "plan").is_compared
    assert not uncertainty_of(trained(LAYERS, "ethernet-1g/8", 8), "plan").is_compared


def test_collectives_inside_a_node_have_the_error_of_that_node():
    layers = {"model": LAYERS, "workers": 8}
    rows = {row["node"]: row for row in TABLE if row["what"] == "collective"}
    for cluster in presets.cluster_names():
        scenario = gt.Scenario.from_dict({**presets.cluster(f"{cluster}/8"), "job": {"train": layers}})
        count = uncertainty_of(scenario, "collectives").count
        # The figures of h100-hgx are those of h200-hgx, and nobody compared them on H100.
        same = rows.get(cluster)
        assert count == (same["count"] if same else 0), cluster
    on_h100 = {"model": "resnet50", "workers": 8, "compute": {"device": "H100-bf16"}}
    scenario = gt.Scenario.from_dict({**presets.cluster("h100-hgx/1"), "job": {"train": on_h100}})
    assert uncertainty_of(scenario, "collectives").count == 0
    wide = gt.Scenario.from_dict({**presets.cluster("a100-hgx/2"), "job": {"train": {**layers, "workers": 16}}})
    assert uncertainty_of(wide, "collectives").count == 0


def test_flows_on_linux_queues_were_measured_and_others_were_not():
    base = gt.Scenario.load("paper/gao2020-ch5")
    assert not uncertainty_of(base, "tenants").is_compared
    linux = base.set({"cluster.transport.kind": "cubic", "cluster.link.rate": "100Mbps"})
    assert uncertainty_of(linux, "tenants").count == 12


@pytest.mark.parametrize("question", ["buy", "order"])
def test_costs_and_orders_were_never_compared(question):
    assert not uncertainty_of(trained(device="V100"), question).is_compared


def test_jobs_that_share_a_network_were_never_compared():
    job = {"model": LAYERS, "workers": 2}
    two = gt.Scenario.from_dict({**presets.cluster("ethernet-1g/4"), "job": {"a": job, "b": job}})
    assert not uncertainty_of(two).is_compared


@pytest.mark.parametrize(("family", "told"), [("dense", True), ("moe", False)])
def test_a_difference_between_meshes_is_held_against_the_error_of_its_kind(family, told):
    extra = {"ep": 8} if family == "moe" else {}
    found = meshes(
        MODELS[family], [{"fsdp": 64, **extra}, {"fsdp": 32, "dp": 2, **extra}], cluster="h100-hgx/8", seq=2048,
    )  # fmt: skip
    kinds = set(found.uncertainty.values())
    assert len(kinds) == 1
    (kind,) = kinds
    assert kind.is_compared == told
    assert found.answer.uncertainty["sentence"] == kind.to_dict()["sentence"]
    assert ("no prediction of this kind has been compared" in found.headline) != told
    assert "off by 8 % on average" not in found.headline
