"""What a job computes on, and who says so; whether that has the memory; over which meshes a model can be divided."""

import itertools
import json
import re
from dataclasses import replace

import pytest

import gradtide as gt
from architectures import SMALL_LLAMA
from gradtide import presets
from gradtide.answer.premises import premises_of
from gradtide.answer.runtimes import runtime_of
from gradtide.architecture import Architecture, FieldError
from gradtide.layers import Layer
from gradtide.parallel import fit
from gradtide.parallel.costs import Costs, Training
from gradtide.parallel.mesh import Mesh
from gradtide.parallel.spec import Layout, fullest
from gradtide.profiling import ModelProfile
from gradtide.scenario import Scenario
from gradtide.studies.trained import trained

CLUSTERS = presets.cluster_names()
OF_NODES = [name for name in CLUSTERS if presets.cluster_device(name)]
PROFILED = {
    "schema": "gradtide.model/1",
    "name": "net",
    "title": "Net",
    "source": "torch 2.7.1, roofline on A100",
    "sample": "32x128:int64",
    "tensors": 2,
    "profile": {"method": "roofline", "device": "A100", "batch": 32, "inputs": ["32x128:int64"], "torch": "2.7.1"},
    "layers": [
        {"name": "emb", "parameter_bytes": 40960000, "forward_us": 60.525983, "backward_us": 121.051967,
         "forward_flops": 0, "activation_bytes": 262656},
        {"name": "attn", "parameter_bytes": 3151872, "forward_us": 183.545611, "backward_us": 367.091222,
         "forward_flops": 201326592, "activation_bytes": 2621440},
    ],
}  # fmt: skip


def faults(call, *arguments, **keys):
    with pytest.raises(gt.ScenarioError) as caught:
        call(*arguments, **keys)
    return [(error["code"], error["loc"]) for error in caught.value.errors]


def written(path, document):
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def of_cluster(name, **keys):
    """Efficiencies for devices of which none is known, so that every cluster can be asked."""
    return {"cluster": f"{name}/2", "efficiency": 0.4, **keys}


# Who says on what a job computes


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("parallel", [{"fsdp": 16}, None])
def test_a_file_computes_on_the_device_of_the_cluster_as_a_preset_does(cluster, parallel, tmp_path):
    config = presets.configuration("llama3-8b") | ({} if parallel else {"num_hidden_layers": 1, "vocab_size": 1000})
    file = written(tmp_path / "config.json", config)
    keys = of_cluster(cluster, seq=512, parallel=parallel)
    device = presets.cluster_device(cluster)
    if device is None:
        assert faults(trained, file, **keys) == [("GT010", "job.train.compute.device")]
        assert faults(trained, "llama3-8b", **keys) == [("GT010", "job.train.compute.device")]
        return
    (job,) = trained(file, **keys).jobs
    assert job.device.origin == "cluster"
    assert device.startswith(job.device.name)
    if parallel is not None:
        (named,) = trained("llama3-8b", **keys).jobs
        assert job.parallel_model.described == named.parallel_model.described
        assert job.parallel_model.accelerator.name == device.rpartition("-")[0]
    else:
        inline = {"cluster": presets.cluster(f"{cluster}/2")["cluster"]}
        compute = {"seq": 512, "efficiency": 0.4}
        (other,) = Scenario.from_dict(
            {**inline, "run": {"engine": "fluid"}, "job": {"a": {"model": config, "workers": 16, "compute": compute}}}
        ).jobs
        assert other.compute_ps == job.compute_ps
        (stated,) = trained(file, **{**keys, "cluster": "ethernet-400g/2"}, device=device).jobs
        assert stated.compute_ps == job.compute_ps


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_counts_of_a_file_compute_on_what_those_of_a_preset_do(cluster, tmp_path):
    text = presets.folder("models").joinpath("alexnet.json").read_text(encoding="utf-8")
    file = written(tmp_path / "net.json", json.loads(text))
    jobs = [trained(model, **of_cluster(cluster)).jobs[0] for model in (file, "alexnet")]
    assert jobs[0].layers == jobs[1].layers
    assert {job.device.name for job in jobs} == {presets.cluster_device(cluster) or "V100"}
    assert {job.device.origin for job in jobs} == {"cluster" if presets.cluster_device(cluster) else "assumed"}


def test_a_job_names_its_device_before_its_file_and_that_before_the_cluster(tmp_path):
    file = written(tmp_path / "net.json", PROFILED)
    csv = tmp_path / "step.csv"
    csv.write_text("layer,forward_us,backward_us,parameter_bytes\nfc,100,200,4096\n", encoding="utf-8")

    def found(model, cluster, **keys):
        device = trained(model, cluster, **keys).jobs[0].device
        return device.name, device.origin, device.cluster

    assert found(file, "h100-hgx/1", device="V100") == ("V100", "stated", "H100-bf16")
    assert found(file, "h100-hgx/1") == ("A100", "file", "H100-bf16")
    assert found(file, "a100-hgx/1") == ("A100", "file", None)
    assert found(str(csv), "h100-hgx/1") == ("H100-bf16", "cluster", None)
    assert found(str(csv), "ethernet-10g/4") == (None, "none", None)
    assert found(str(csv), "ethernet-10g/4", device="T4") == ("T4", "stated", None)
    assert found("resnet50", "ethernet-10g/4") == ("V100", "assumed", None)


def test_a_scenario_and_a_file_of_a_cluster_may_name_its_device(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[cluster]\ndevice = "A100-bf16"\nlink = { rate = "100Gbps" }\n', encoding="utf-8")
    assert trained("resnet50", str(file)).jobs[0].device.name == "A100-bf16"
    data = {"cluster": {"device": "A100-bf16"}, "job": {"a": {"model": "resnet50", "workers": 2}}}
    scenario = Scenario.from_dict(data)
    assert scenario.jobs[0].device.name == "A100-bf16"
    assert scenario.replace(cluster_device="T4").jobs[0].device.name == "T4"
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    for name in ("A10", "H200"):
        assert faults(Scenario.from_dict, {**data, "cluster": {"device": name}}) == [("GT031", "cluster.device")]


@pytest.mark.parametrize("command", ["run", "compare", "plan"])
@pytest.mark.parametrize("model", ["llama3-70b", "gpt2"])
def test_nothing_is_assumed_of_a_language_models_device(gradtide, command, model):
    seq = ("--seq", 4096) if model != "gpt2" else ()
    code, out, err = gradtide(command, model, *seq, "--cluster", "ethernet-25g/4")
    assert (code, out) == (2, "")
    assert "GT010" in err
    assert "--device" in err


def test_the_table_of_a_run_names_the_device(gradtide, tmp_path):
    file = written(tmp_path / "config.json", SMALL_LLAMA)
    for cluster, parallel in itertools.product(("a100-hgx/1", "h100-hgx/1"), (("--parallel", "fsdp=8"), ())):
        question = ("run", file, "--seq", 512, "--cluster", cluster, *parallel)
        code, out, err = gradtide(*question)
        assert code == 0, err
        (row,) = [line for line in out.splitlines() if line.startswith("computed on")]
        assert cluster[:4].upper() in row
        _, document, _ = gradtide(*question, "--json")
        job = json.loads(document)["jobs"]["train"]
        assert job["computed_on"]["origin"] == "cluster"
        assert job["computed_on"]["name"].startswith(cluster[:4].upper())


def test_premises_name_the_device_and_who_named_it(tmp_path):
    def premises(model, cluster, **keys):
        found = premises_of(trained(model, cluster, **keys))
        return {one.name: (one.value, one.stated) for one in found}

    assert premises("resnet50", "ethernet-10g/4")["device"] == ("V100", False)
    assert premises("resnet50", "a100-hgx/1")["device"] == ("A100-bf16", True)
    file = written(tmp_path / "net.json", PROFILED)
    of_file = premises(file, "h100-hgx/1")
    assert of_file["device"] == ("A100", True)
    assert "A100" in of_file["compute times"][0]
    assert "H100-bf16" in of_file["device of the cluster"][0]
    found = premises("llama3-8b", "a100-hgx/2", seq=512, parallel={"fsdp": 16, "micro_batch": 2})
    assert (found["device"], found["micro-batch"]) == (("A100", True), ("2", True))
    assert found["recompute"] == ("none", False)


# A file that carries its device


def test_a_profile_by_roofline_is_made_anew_for_another_device(tmp_path):
    file = written(tmp_path / "net.json", PROFILED)
    own, again, other = (trained(file, "ethernet-10g/4", device=name).jobs[0] for name in (None, "a100", "V100"))
    assert own.device.name == "A100"
    assert own.layers == again.layers
    # The profile counts a sample in whole bytes.
    remade = trained(file, "ethernet-10g/4", device="A100", batch=32).jobs[0]
    assert [one.forward_ps for one in remade.layers] == pytest.approx([one.forward_ps for one in own.layers], rel=1e-3)
    machine = presets.device("V100")
    moved = 3151872 + 32 * 2621440
    expected = max(32 * 201326592 / machine.reached_flops, moved / (machine.memory_bytes_per_s * 0.4))
    assert other.layers[1].forward_ps == pytest.approx(1e12 * expected, abs=1)
    assert (other.device.name, other.device.times_of) == ("V100", None)


def test_measured_times_stay_and_say_so_where_another_device_is_named(tmp_path):
    profile = {**PROFILED["profile"], "method": "measured", "device": "NVIDIA A100-SXM4-80GB"}
    file = written(tmp_path / "net.json", {**PROFILED, "profile": profile})
    own, stated = (trained(file, "ethernet-10g/4", device=name) for name in (None, "A100"))
    assert own.jobs[0].layers == stated.jobs[0].layers
    assert (stated.jobs[0].device.name, stated.jobs[0].device.times_of) == ("A100", "NVIDIA A100-SXM4-80GB")
    assert not own.warnings
    runtime = runtime_of(own.jobs[0].device.name)
    assert (runtime.device, runtime.backend) == ("gpu", "nccl")
    assert any("NVIDIA A100-SXM4-80GB" in warning for warning in stated.warnings)
    again = Scenario.from_toml(stated.to_toml())
    assert again == stated
    assert again.jobs[0].device == stated.jobs[0].device


def test_a_graph_of_ops_has_the_device_of_its_file(tmp_path):
    graph = {
        "name": "net", "device": "A100", "time_unit": "us", "target": 1, "inference_target": 1,
        "ops": [{"id": 0, "kind": "recv", "inputs": [], "time": 0, "bytes": 4096},
                {"id": 1, "kind": "comp", "inputs": [0], "time": 10}],
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(graph), encoding="utf-8")
    job = {"model": "g.json", "workers": 4, "collective": {"ps": {"pull": "start"}}, "task": "inference"}
    data = {"job": {"a": job}, "run": {"engine": "fluid"}}
    scenario = Scenario.from_dict(data, tmp_path)
    assert scenario.jobs[0].device.name == "A100"
    assert Scenario.from_toml(scenario.to_toml()).jobs[0].device.name == "A100"
    measured = {**graph, "device": "measured"}
    (tmp_path / "g.json").write_text(json.dumps(measured), encoding="utf-8")
    assert Scenario.from_dict(data, tmp_path).jobs[0].device.name is None


def test_a_profile_in_python_carries_its_device():
    layers = (Layer("fc", 10**9, 2 * 10**9, 4096),)
    profile = ModelProfile("net", "Net", "A100", ("1x4",), 1, "2.7", layers, (), 1)
    scenario = trained(profile, "ethernet-10g/4")
    assert (scenario.jobs[0].device.name, scenario.jobs[0].device.origin) == ("A100", "file")


def test_a_comparison_in_python_takes_a_device():
    study = gt.compare("gpt2", cluster="ethernet-10g/4", device="A100", schedules=["fifo+barrier"])
    (result,) = study.results.values()
    assert result.job["computed_on"] == {"name": "A100", "origin": "stated", "times_of": None, "cluster": None}


def test_a_plan_computes_on_the_device_that_it_is_made_for():
    of_a100 = gt.plan("resnet50", cluster="ethernet-100g/2", device="A100", budget=5, seeds=1)
    assert of_a100.plan.runtime["device"] == "gpu"
    of_v100 = gt.plan("resnet50", cluster="ethernet-100g/2", budget=5, seeds=1)
    assert of_a100.summary["lower_bound_ms"] < of_v100.summary["lower_bound_ms"]


# Memory on every path


@pytest.mark.parametrize("command", ["run", "compare", "plan"])
def test_a_model_that_is_too_large_asks_for_a_mesh(gradtide, command):
    code, out, err = gradtide(command, "llama3-70b", "--seq", 4096, "--cluster", "h100-hgx/16")
    assert (code, out) == (2, "")
    assert "GT057" in err
    meshes = re.findall(r"--parallel (\S+=\S+)", err)
    assert len(set(meshes)) == 2
    for mesh in meshes:
        parallel = dict(pair.split("=") for pair in mesh.split(","))
        scenario = trained("llama3-70b", "h100-hgx/16", seq=4096, parallel=as_keys(parallel))
        assert scenario.jobs[0].parallel_model.fit.verdict == "fits"


def as_keys(parallel):
    return {key: int(value) if value.isdecimal() else value for key, value in parallel.items()}


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("cluster", OF_NODES)
@pytest.mark.parametrize("model", presets.language_names())
def test_every_mesh_that_is_named_is_valid_for_the_model_on_the_cluster(model, cluster, nodes):
    base = trained(model, f"{cluster}/{nodes}", seq=2048, efficiency=0.5)
    try:
        base.check_built()
    except gt.ScenarioError as refused:
        (said,) = refused.errors
    else:
        # 16 bytes of a parameter and activations fit on one device.
        assert base.jobs[0].parallel_model is None
        return
    assert said["code"] == "GT057"
    meshes = re.findall(r"--parallel (\S+=\S+)", said["hint"])
    larger = re.search(r"\((\d+) nodes\)", said["hint"])
    assert len(meshes) == (1 if larger else 2)
    count = int(larger[1]) if larger else nodes
    for mesh in meshes:
        parallel = as_keys(dict(pair.split("=") for pair in mesh.split(",")))
        scenario = trained(model, f"{cluster}/{count}", seq=2048, parallel=parallel, efficiency=0.5)
        scenario.check_built()
        assert scenario.jobs[0].workers == 8 * count
        assert scenario.jobs[0].parallel_model.fit.verdict != "does not fit"


def test_a_mesh_is_asked_for_before_an_efficiency_that_it_does_not_need():
    """Devices without `parallel` have other efficiencies than accelerators with it."""
    assert faults(trained, "llama3-70b", "h200-hgx/2", seq=2048) == [("GT057", "job.train.parallel")]
    trained("llama3-70b", "h200-hgx/2", seq=2048, parallel={"fsdp": 16}).check_built()


def test_counts_of_a_language_model_that_is_too_large_cannot_be_divided(gradtide):
    code, _, err = gradtide("run", "llama_7b", "--cluster", "h100-hgx/1")
    assert (code, "GT057" in err, "config.json" in err) == (2, True, True)
    assert gradtide("run", "gpt2", "--cluster", "h100-hgx/1", "--json")[0] == 0


def test_activations_count_where_a_worker_has_the_whole_model(tmp_path):
    file = written(tmp_path / "config.json", SMALL_LLAMA)
    trained(file, "h100-hgx/1", seq=1024).check_built()
    assert faults(trained(file, "h100-hgx/1", seq=1024, batch=4096).check_built) == [("GT057", "job.train.parallel")]


def test_a_device_without_an_accelerator_has_a_memory():
    for name in presets.device_names():
        assert presets.memory_bytes(name) > 10**10
    assert presets.memory_bytes("abacus") is None
    large = trained("llama3-8b", "ethernet-100g/4", seq=1024, device="V100")
    assert faults(large.check_built) == [("GT057", "job.train.parallel")]


# What would fit


H100 = presets.accelerator("H100")
LLAMA_70B = Architecture.of(presets.configuration("llama3-70b"))


def test_counted_memory_decides_only_beyond_what_it_was_off_by():
    memory = fullest(Costs(LLAMA_70B, H100, Mesh(fsdp=64), Training(4096)), Layout())

    def verdict(needed, stages):
        extra = needed - memory.total
        return fit.fit(replace(memory, activations=memory.activations + extra), stages).verdict

    device = memory.device
    assert verdict(round(0.94 * device), 1) == "fits"
    assert verdict(round(0.96 * device), 1) == verdict(round(1.03 * device), 1) == "too close to call"
    assert verdict(round(1.05 * device), 1) == "does not fit"
    assert verdict(round(0.8 * device), 1) == "fits"
    assert verdict(round(0.8 * device), 8) == "too close to call"


@pytest.mark.parametrize(
    ("mesh", "ranks"), [({"fsdp": 32}, 32), ({"dp": 4, "tp": 8}, 32), ({"fsdp": 4, "tp": 2, "pp": 4}, 32)]
)
def test_each_change_makes_a_job_fit_and_can_be_run(mesh, ranks):
    keys = {"seq": 8192, "micro_batch": 2}
    (job,) = trained("llama3-70b", f"h100-hgx/{ranks // 8}", parallel=mesh, **keys).jobs
    found = job.parallel_model.feasibility
    assert found["feasibility"] == "does not fit"
    assert (
        found["spare_bytes"]
        == job.parallel_model.described.memory.device - job.parallel_model.described.memory.total
        < 0
    )
    assert found["would_fit"]
    for way in found["would_fit"]:
        (other,) = trained("llama3-70b", f"h100-hgx/{ranks // 8}", parallel=way["parallel"], **keys).jobs
        assert other.parallel_model.described.memory.total == way["total"]
        assert other.parallel_model.fit.verdict == way["feasibility"] != "does not fit"


def test_where_no_change_is_enough_the_number_of_gpus_is_said():
    keys = {"seq": 4096}
    (job,) = trained("llama3-405b", "h100-hgx/1", parallel={"fsdp": 8}, **keys).jobs
    found = job.parallel_model.feasibility
    assert found["would_fit"] == []
    way = found["fits_on"]
    assert way["ranks"] % 8 == 0
    (larger,) = trained("llama3-405b", f"h100-hgx/{way['ranks'] // 8}", parallel=way["parallel"], **keys).jobs
    assert larger.parallel_model.fit.verdict == way["feasibility"] == "fits"


def test_a_run_says_what_would_fit():
    result = gt.run("llama3-70b", cluster="h100-hgx/4", seq=8192, parallel={"fsdp": 32, "micro_batch": 2})
    memory = result.job["parallel"]["memory"]
    assert memory["feasibility"] == "does not fit"
    assert all(mesh in result.summary["headline"] for mesh in ("recompute=full", "tp=2"))
    fits = gt.run("llama3-8b", cluster="h100-hgx/1", seq=1024, parallel={"fsdp": 8}).job["parallel"]["memory"]
    assert fits["feasibility"] == "fits"
    assert "would_fit" not in fits


# A mesh has a micro-batch and a recomputation of its own


def test_a_mesh_has_its_own_micro_batch_recomputation_and_precision(tmp_path, gradtide):
    file = written(tmp_path / "config.json", SMALL_LLAMA)
    question = (file, "--seq", 512, "--cluster", "h100-hgx/1", "--micro-batch", 1, "--recompute", "none", "--json")
    meshes = ("fsdp=8", "fsdp=4,tp=2,micro_batch=2,recompute=selective")
    code, out, err = gradtide("compare", *question, *(one for mesh in meshes for one in ("--parallel", mesh)))
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [row["mesh"] for row in rows] == list(meshes)
    assert [row["global_batch"] for row in rows] == [8, 8]
    code, out, err = gradtide("run", *question, "--parallel", meshes[1])
    assert code == 0, err
    facts = json.loads(out)["jobs"]["train"]["parallel"]
    assert (facts["micro_batch"], facts["recompute"]) == (2, "selective")
    own = {"fsdp": 8, "micro_batch": 2, "precision": "float8"}
    scenario = trained(file, "h100-hgx/1", seq=512, micro_batch=4, parallel=own)
    parallel_model = scenario.jobs[0].parallel_model
    assert (parallel_model.training.micro_batch, parallel_model.training.precision) == (2, "float8")
    resolved = scenario.to_dict()["job"]["train"]
    assert resolved["compute"]["micro_batch"] == 2
    assert "micro_batch" not in resolved["parallel"]
    assert Scenario.from_toml(scenario.to_toml()) == scenario


def test_a_wrong_key_of_a_mesh_is_named_there():
    cluster = presets.cluster("h100-hgx/1")
    job = {"model": SMALL_LLAMA, "parallel": {"fsdp": 8, "micro_batch": 0}, "compute": {"seq": 512}}
    (found,) = faults(Scenario.from_dict, {**cluster, "job": {"a": job}})
    assert found[1] == "job.a.parallel.micro_batch"


# Families that are not modelled, and fields that would be left out


@pytest.mark.parametrize("family", ["llama4", "llama4_text", "gpt_oss", "mistral3", "gemma3", "qwen3_next"])
def test_a_known_family_that_is_lacking_is_called_that(family, tmp_path):
    file = written(tmp_path / "config.json", {**SMALL_LLAMA, "model_type": family})
    with pytest.raises(gt.ScenarioError) as caught:
        trained(file, "h100-hgx/1", seq=512, parallel={"fsdp": 8})
    (error,) = caught.value.errors
    assert error["code"] == "GT039"
    assert f"does not model {family} yet" in error["msg"]
    assert "docs/own-model.md" in error["hint"]
    assert "did you mean" not in error["hint"]


def test_another_version_of_a_family_is_no_misspelling():
    for family, near in (("llama5", False), ("qwen4", False), ("lama", True), ("qwen3moe", True)):
        with pytest.raises(FieldError) as caught:
            Architecture.of({**SMALL_LLAMA, "model_type": family})
        assert ("did you mean" in caught.value.hint) == near


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("llama", "num_local_experts", 16),
        ("llama", "n_routed_experts", 8),
        ("llama", "moe_intermediate_size", 256),
        ("llama", "interleave_moe_layer_step", 1),
        ("llama", "sliding_window", 4096),
        ("llama", "layer_types", ["full_attention", "sliding_attention"] * 2),
        ("llama", "text_config", {"hidden_size": 8}),
        ("qwen2", "num_experts", 60),
        ("qwen3", "num_experts_per_tok", 4),
        ("mistral", "layer_types", ["sliding_attention", "full_attention"] * 2),
    ],
)
def test_a_field_that_a_family_is_not_built_with_is_refused(family, field, value):
    config = {**SMALL_LLAMA, "model_type": family}
    Architecture.of(config)
    Architecture.of({**config, field: None})
    with pytest.raises(FieldError) as caught:
        Architecture.of({**config, field: value})
    assert caught.value.field == field
    assert "docs/own-model.md" in caught.value.hint


def test_windows_that_are_off_change_nothing():
    qwen = {**SMALL_LLAMA, "model_type": "qwen2"}
    plain = Architecture.of(qwen)
    off = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 4}
    for idle in (off, {**off, "use_sliding_window": True}, {"layer_types": ["full_attention"] * 4}):
        assert Architecture.of({**qwen, **idle}) == plain
    with pytest.raises(FieldError):
        Architecture.of({**qwen, **off, "use_sliding_window": True, "max_window_layers": 0})
    window = {**SMALL_LLAMA, "model_type": "mistral", "sliding_window": 256}
    assert Architecture.of({**window, "layer_types": ["sliding_attention"] * 4}) == Architecture.of(window)
