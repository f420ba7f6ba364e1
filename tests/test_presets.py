"""Built-in models and devices: exact sizes, sums of FLOPs, a roofline by hand, published throughputs."""

import dataclasses
import doctest
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradtide as gt
import gradtide.roofline
from gradtide import presets
from gradtide.roofline import forward_seconds, roofline

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from preset_tables import TABLES, images_per_s, markdown_table, published_throughputs  # noqa: E402 - a script

MODELS = presets.model_names()
DEVICES = presets.device_names()
KNOWN = [name for name in DEVICES if presets.device(name).compute_efficiency is not None]

# TicTac (MLSys 2019), appendix A, Table 1: number of parameter tensors and their size in MiB, as printed;
# Caramel (arXiv:2004.14020), section 6: ResNet-v2-152, 363 tensors, 229.5 MiB.
PAPER_TABLES = {
    "tictac_alexnet_v2": (16, 191.89, 2),
    "tictac_inception_v1": (116, 25.24, 2),
    "tictac_inception_v2": (141, 42.64, 2),
    "tictac_inception_v3": (196, 103.54, 2),
    "tictac_resnet50_v1": (108, 97.39, 2),
    "tictac_resnet101_v1": (210, 169.74, 2),
    "tictac_resnet50_v2": (125, 97.45, 2),
    "tictac_resnet101_v2": (244, 169.86, 2),
    "tictac_vgg16": (32, 527.79, 2),
    "tictac_vgg19": (38, 548.05, 2),
    "caramel_resnet152_v2": (363, 229.5, 1),
}

# Number of parameters. torchvision prints these as `num_params` of its weights; the transformers' follow from
# the configurations (tied heads counted once).
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "googlenet": 6_624_904,
    "inception_v3": 27_161_264,
    "resnetv2_50": 25_549_352,
    "resnetv2_101": 44_541_480,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "bert_base_pretraining": 110_106_428,
    "gpt2": 124_439_808,
    "gpt2_xl": 1_557_611_200,
    "llama_7b": 6_738_415_616,
}

# Forward FLOPs of one sample as counted by torch 2.13 FlopCounterMode: the layers must sum to these exactly.
# inception_v3 was counted for two images (batch normalisation of its auxiliary head needs two).
FORWARD_FLOPS = {
    "alexnet": 1_428_376_960,
    "vgg16": 30_940_528_640,
    "vgg19": 39_264_124_928,
    "resnet50": 8_178_368_512,
    "resnet101": 15_602_810_880,
    "resnet152": 23_027_253_248,
    "googlenet": 2_996_752_384,
    "inception_v3": 22_875_597_184 // 2,
    "resnetv2_50": 8_178_368_512,
    "resnetv2_101": 15_602_810_880,
    "bert_base_pretraining": 28_500_298_752,
    "gpt2": 32_228_179_968,
    "gpt2_xl": 403_105_792_000,
    "llama_7b": 1_700_001_742_848,
}

# Published multiply-accumulates of one image, billions, and the tolerance: half of the last printed
# digit, wider where the publication counts another variant.
PUBLISHED_GMAC = {
    "vgg16": (15.5, 0.05, "torchvision _ops 15.47"),
    "vgg19": (19.6, 0.05, "He et al. (2016), fig. 3: 19.6 billion"),
    "resnet50": (4.09, 0.005, "torchvision _ops 4.089; stride on the 3x3, so above He's 3.8"),
    "resnet101": (7.8, 0.05, "torchvision _ops 7.801"),
    "resnet152": (11.5, 0.05, "torchvision _ops 11.514"),
    "inception_v3": (5.7, 0.05, "torchvision _ops 5.713"),
    "googlenet": (1.5, 0.05, "torchvision _ops 1.498; Szegedy et al. (2014): a budget of 1.5 billion"),
    "alexnet": (0.714, 0.0005, "torchvision _ops 0.714"),
    "tictac_inception_v2": (2.0, 0.1, "Ioffe & Szegedy (2015): Inception of about 2 billion, read to 5 %"),
    "tictac_resnet50_v1": (3.6, 0.25, "He et al. (2016), table 1: 3.8; slim strides later units, so less"),
    "tictac_alexnet_v2": (0.72, 0.03, "Krizhevsky (2014) one-tower model, about 0.7 billion"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_sizes_are_those_of_the_papers_to_the_last_digit(name: str) -> None:
    tensors, mib, digits = PAPER_TABLES[name]
    found = presets.model(name)
    assert found.tensors == tensors
    assert round(found.parameter_bytes / 2**20, digits) == mib


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_framework(name: str) -> None:
    assert presets.model(name).parameter_bytes == 4 * PARAMETERS[name]


@pytest.mark.parametrize("name", FORWARD_FLOPS)
def test_flops_of_the_layers_sum_to_the_counted_total(name: str) -> None:
    assert presets.model(name).forward_flops == FORWARD_FLOPS[name]


@pytest.mark.parametrize(("name", "layers", "hidden"), [("bert_base", 12, 768), ("bert_large", 24, 1024)])
def test_flops_of_bert_follow_from_its_shape(name: str, layers: int, hidden: int) -> None:
    # Per token and block: 4 projections h^2, 2 of the MLP 4h^2 each; scores and values 2 T h; the
    # pooler sees one token.
    tokens = 128
    per_block = tokens * (4 * hidden**2 + 2 * 4 * hidden**2 + 2 * tokens * hidden)
    assert presets.model(name).forward_flops == 2 * (layers * per_block + hidden**2)


@pytest.mark.parametrize("name", PUBLISHED_GMAC)
def test_multiply_accumulates_are_the_published_ones(name: str) -> None:
    gmac, tolerance, source = PUBLISHED_GMAC[name]
    ours = presets.model(name).forward_flops / 2e9
    assert abs(ours - gmac) <= tolerance, f"{name}: {ours:.3f} GMAC, published {gmac} ({source})"


@pytest.mark.parametrize(
    ("slim", "torch"),
    [
        ("tictac_vgg16", "vgg16"),
        ("tictac_vgg19", "vgg19"),
        ("tictac_inception_v1", "googlenet"),
        ("tictac_inception_v3", "inception_v3"),
    ],
)
def test_derived_flops_equal_counted_flops_of_the_same_network(slim: str, torch: str) -> None:
    # Two roads to one number: sizes from layer names (slim), and a counter that watched the forward
    # pass (torch).
    assert presets.model(slim).forward_flops == presets.model(torch).forward_flops


def test_every_model_is_covered_by_a_table_of_this_file() -> None:
    assert sorted({*PAPER_TABLES, *PARAMETERS}) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_moves_bytes_and_has_a_name_of_its_own(name: str) -> None:
    found = presets.model(name)
    assert found.name == name
    names = [layer.name for layer in found.layers]
    assert len(set(names)) == len(names)
    assert all(layer.parameter_bytes > 0 and layer.activation_bytes > 0 for layer in found.layers)
    assert all(layer.forward_flops > 0 for layer in found.layers if layer.winograd)
    assert len(found.layers) <= found.tensors


HEADS = {
    "bert_base": ("embeddings.word_embeddings", "pooler.dense"),
    "bert_large": ("embeddings.word_embeddings", "pooler.dense"),
    "bert_base_pretraining": ("bert.embeddings.word_embeddings", "cls.seq_relationship"),
    "gpt2": ("transformer.wte", "transformer.ln_f"),
    "gpt2_xl": ("transformer.wte", "transformer.ln_f"),
    "llama_7b": ("model.embed_tokens", "lm_head"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_stem_comes_first_and_the_head_last(name: str) -> None:
    first, last = (presets.model(name).layers[i] for i in (0, -1))
    if name in HEADS:
        assert (first.name, last.name) == HEADS[name]
        return
    assert re.search(r"(conv1|1a|stem|features\.0)", first.name, re.IGNORECASE)
    assert re.search(r"(^fc|fc8$|head|classifier\.6|logits)", last.name, re.IGNORECASE)
    classes, bias = 1000, 1000
    features = {"resnet": 2048, "inception_v3": 2048, "vgg": 4096, "alexnet": 4096}
    inputs = next((size for word, size in features.items() if word in name), 1024)
    assert last.parameter_bytes == 4 * (inputs * classes + bias)


def test_layers_stand_in_execution_order_where_registration_differs() -> None:
    llama = [layer.name.removeprefix("model.layers.0.") for layer in presets.model("llama_7b").layers[1:10]]
    assert llama == [
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ]
    block = [layer.name.rpartition("blocks.0.")[2] for layer in presets.model("resnetv2_50").layers[1:5]]
    assert block == ["norm1", "downsample.conv", "conv1", "norm2"]
    heads = [layer.name for layer in presets.model("bert_base_pretraining").layers[-4:]]
    assert heads[1:3] == ["cls.predictions.transform.LayerNorm", "cls.predictions"]


def test_activation_bytes_by_hand() -> None:
    layers = {layer.name: layer for layer in presets.model("resnet50").layers}
    # conv1: 3x224x224 in, 64x112x112 out; bn1 reads and writes that output; layer2.0.conv2 halves 56 to 28.
    assert layers["conv1"].activation_bytes == 4 * (3 * 224**2 + 64 * 112**2)
    assert layers["bn1"].activation_bytes == 4 * 2 * 64 * 112**2
    assert layers["layer2.0.conv2"].activation_bytes == 4 * (128 * 56**2 + 128 * 28**2)
    assert not layers["layer2.0.conv2"].winograd
    assert layers["layer2.1.conv2"].winograd
    slim = {layer.name: layer for layer in presets.model("tictac_resnet50_v1").layers}
    # Slim strides on the last unit of a block; convolution and norm are one layer, so its output is
    # moved three times.
    assert slim["block1/unit_3/conv2"].activation_bytes == 4 * (64 * 56**2 + 3 * 64 * 28**2)


def test_roofline_of_one_compute_bound_layer_by_hand() -> None:
    # VGG-16 features.2 on a P100: 64 -> 64 channels, 3x3, 224x224; Winograd needs 2.25 times fewer FLOPs.
    batch, device = 32, presets.device("P100")
    flops = 2 * 9 * 64 * 64 * 224**2
    expected_s = batch * flops / 2.25 / (10.6e12 * device.compute_efficiency)
    row = next(row for row in roofline(presets.model("vgg16"), device, batch) if row.name == "features.2")
    assert row.forward_ps == pytest.approx(expected_s * 1e12, abs=1)  # one rounding
    assert row.backward_ps == 2 * row.forward_ps
    assert row.parameter_bytes == 4 * (9 * 64 * 64 + 64)


def test_roofline_of_one_memory_bound_layer_by_hand() -> None:
    # AlexNet classifier.1 at batch 1: 9216x4096 weights and 4096 biases, 9216 elements in, 4096 out, 2
    # bytes each.
    device = presets.device("A100-bf16")
    elements = 9216 * 4096 + 4096 + 9216 + 4096
    expected_s = 2 * elements / (2039e9 * device.memory_efficiency)
    row = next(row for row in roofline(presets.model("alexnet"), device, 1) if row.name == "classifier.1")
    assert row.forward_ps == pytest.approx(expected_s * 1e12, abs=1)


@pytest.mark.parametrize("device", KNOWN)
def test_time_grows_with_the_batch_and_never_faster_than_it(device: str) -> None:
    for name in ("resnet50", "vgg16", "bert_base"):
        found, machine = presets.model(name), presets.device(device)
        for layer in found.layers:
            times = [forward_seconds(layer, machine, batch) for batch in (1, 2, 8, 64)]
            assert times == sorted(times)
            assert times[-1] <= 64 * times[0] * (1 + 1e-12)


def test_a_batch_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        roofline(presets.model("alexnet"), presets.device("V100"), 0)


@pytest.mark.parametrize("name", DEVICES)
def test_device_figures_are_possible(name: str) -> None:
    device = presets.device(name)
    assert device.compute_efficiency is None or 0 < device.compute_efficiency < 1
    assert 0 < device.memory_efficiency < 1
    assert 1 <= device.winograd_gain <= 36 / 16  # F(2x2, 3x3), Lavin & Gray (2016)
    assert device.element_bytes == (4 if "fp32" in device.precision or "TF32" in device.precision else 2)
    # Flops per byte at the ridge: between 10 and 1000 on every GPU since 2014; a slip of a power of ten
    # leaves the range.
    assert 10 < device.peak_flops / device.memory_bytes_per_s < 1000


@pytest.mark.parametrize("name", DEVICES)
def test_each_device_has_a_source_and_an_efficiency_of_its_own(name: str) -> None:
    device = presets.device(name)
    assert re.search("data ?sheet|Intel: ", device.source)
    published = [one for one in published_throughputs() if one.device == name]
    others = [other for other in DEVICES if other.partition("-")[0] != name.partition("-")[0]]
    assert not [other for other in others if re.search(rf"\b{other}\b", device.basis)], device.basis
    if device.efficiency == "calibrated":
        assert [one.calibrates for one in published].count(True) == 1
    elif device.efficiency == "utilisation":
        provenance = (ROOT / "python" / "gradtide" / "presets" / "PROVENANCE.md").read_text(encoding="utf-8")
        assert f"| `{name}` |" in provenance
        assert re.search(r"at [0-9a-f]{7}", device.basis)
    else:
        assert device.efficiency == "unknown"
        assert device.compute_efficiency is None
        assert not published
        assert device.basis.startswith("no published training throughput")


def test_a_device_without_an_efficiency_is_refused_until_one_is_stated() -> None:
    with pytest.raises(presets.NoEfficiencyError, match=r"MI300X-bf16 has no known efficiency.*1307.4 TFLOP/s"):
        roofline(presets.model("resnet50"), presets.device("MI300X-bf16"), 32)
    base = {"model": "resnet50", "workers": 4}
    with pytest.raises(gt.ScenarioError, match=r"write efficiency = 0.4 beside the device") as caught:
        gt.Scenario.from_dict({"job": {"train": base | {"compute": {"device": "MI300X-bf16"}}}})
    assert [(fault["code"], fault["loc"]) for fault in caught.value.errors] == [("GT010", "job.train.compute.device")]
    stated = {"device": "MI300X-bf16", "efficiency": 0.4}
    scenario = gt.Scenario.from_dict({"job": {"train": base | {"compute": stated}}})
    machine = dataclasses.replace(presets.device("MI300X-bf16"), compute_efficiency=0.4)
    expected = roofline(presets.model("resnet50"), machine, 32)
    assert [layer.forward_ps for layer in scenario.jobs[0].layers] == [row.forward_ps for row in expected]
    # The resolved file holds it, and gives the same run again.
    assert gt.Scenario.from_dict(scenario.to_dict()).spec() == scenario.spec()
    timed = {"layers": [{"name": "a", "forward": "1ms", "backward": "1ms", "parameters": "4B"}]}
    with pytest.raises(gt.ScenarioError, match="`efficiency` has no effect for a model with times of its own"):
        gt.Scenario.from_dict({"job": {"train": {"model": timed, "workers": 2, "compute": {"efficiency": 0.4}}}})


def test_clusters_reach_800_gigabits_and_each_says_what_its_rate_and_delay_are_from() -> None:
    rows = presets.list_presets("cluster")
    names = {row["name"] for row in rows}
    assert {f"ethernet-{rate}g" for rate in (200, 400, 800)} | {"infiniband-ndr", "infiniband-xdr"} <= names
    for row in rows:
        named = "data ?sheet" if "gpus" in row else "IEEE 802.3|InfiniBand Trade Association"
        assert re.search(named, row["source"]), row
        assert "delay" in row["source"], row
    rows = [row for row in rows if "gpus" not in row]
    rates = [gt.Scenario.from_dict(presets.cluster(row["name"]) | {"job": {"a": {"model": "alexnet", "workers": 2}}})
             for row in rows]  # fmt: skip
    assert [one.link_rate_bps for one in rates] == sorted(one.link_rate_bps for one in rates)


def test_newer_devices_are_faster() -> None:
    order = ["K80", "P100", "V100", "A100", "A100-bf16"]
    speeds = [images_per_s("resnet50", device, 64) for device in order]
    assert speeds == sorted(speeds)


def test_one_model_meets_the_figure_that_calibrates_each_device() -> None:
    # The efficiencies are written with two or three digits: 1 % is their resolution.
    figures = [figure for figure in published_throughputs() if figure.calibrates]
    assert {figure.device for figure in figures} == {
        name for name in DEVICES if presets.device(name).efficiency == "calibrated"
    }
    for figure in figures:
        # The CPU is published with Inception v3 alone.
        assert figure.model == ("inception_v3" if figure.device == "Xeon-E5-2686v4" else "resnet50")
        ours = images_per_s(figure.model, figure.device, figure.batch)
        assert ours == pytest.approx(figure.images_per_s, rel=0.01), figure


# TensorFlow benchmarks, May 2017, one GPU, synthetic data; none of these was used to choose an efficiency.
# The tolerance is the claim: ResNet-152 within 10 %, other batches of ResNet-50 within 25 %, VGG and
# Inception 30 %.
@pytest.mark.parametrize(
    ("device", "model", "batch", "images", "tolerance"),
    [
        ("P100", "resnet50", 32, 195, 0.25),
        ("P100", "resnet152", 64, 91.8, 0.10),
        ("P100", "vgg16", 64, 154, 0.30),
        ("P100", "inception_v3", 64, 142, 0.30),
        ("K80", "resnet50", 32, 49.5, 0.25),
        ("K80", "resnet152", 32, 20.0, 0.10),
        ("K80", "vgg16", 32, 35.4, 0.30),
        ("K80", "inception_v3", 64, 30.5, 0.30),
        ("V100", "resnet50", 128, 380, 0.25),  # NVIDIA DeepLearningExamples, container 19.10
    ],
)
def test_throughput_is_near_published_figures_that_calibrated_nothing(
    device: str, model: str, batch: int, images: float, tolerance: float
) -> None:
    assert images_per_s(model, device, batch) == pytest.approx(images, rel=tolerance)


@pytest.mark.parametrize("device", ["P100", "K80"])
def test_alexnet_is_known_to_come_out_too_slow(device: str) -> None:
    # A limitation, stated: large matrix products and 5x5 convolutions run closer to the peak than
    # ResNet-50 does.
    figure = next(f for f in published_throughputs() if f.device == device and f.model == "tictac_alexnet_v2")
    ratio = images_per_s(figure.model, device, figure.batch) / figure.images_per_s
    assert 0.5 < ratio < 0.75


def test_names_of_devices_do_not_depend_on_case() -> None:
    assert presets.device("v100") is presets.device("V100")


def test_unknown_names_are_key_errors_that_list_the_known_ones() -> None:
    with pytest.raises(KeyError, match="resnet50"):
        presets.model("resnet5")
    with pytest.raises(KeyError, match="V100"):
        presets.device("V1000")
    with pytest.raises(KeyError):
        presets.model("../models/resnet50")


def test_list_presets_has_one_row_per_preset_and_papers_read_their_title() -> None:
    rows = presets.list_presets()
    assert [row["name"] for row in rows if row["kind"] == "model"] == MODELS
    assert [row["name"] for row in rows if row["kind"] == "device"] == DEVICES
    assert [row["name"] for row in rows if row["kind"] == "flow"] == ["cache-follower", "data-mining", "web-search"]
    assert [row["name"] for row in rows if row["kind"] == "paper"] == presets.paper_names()
    assert all(row["title"] and row["source"] for row in rows)
    vgg = next(row for row in presets.list_presets("model") if row["name"] == "tictac_vgg16")
    assert (vgg["layers"], round(vgg["parameter_mib"], 2)) == (16, 527.79)
    with pytest.raises(KeyError, match="built in are cache-follower"):
        presets.flow_text("web")
    with pytest.raises(ValueError, match="kind must be one of model, language, graph, device, accelerator, cluster"):
        presets.list_presets("models")


def test_importing_presets_reads_no_file_and_loads_no_parser() -> None:
    if (ROOT / "python" / "gradtide" / "__init__.py").exists():
        pytest.skip("the package's own imports come first and are tested where they are made")
    # -S: site may load importlib.resources and json before us.
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\n"
        "import gradtide.presets\n"
        "heavy = {'json', 'tomllib', 'importlib.resources', 'numpy', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.made
@pytest.mark.parametrize("table", TABLES)
def test_the_page_shows_the_tables_that_the_code_renders(table: str) -> None:
    page = (ROOT / "docs" / "models" / "compute.md").read_text(encoding="utf-8")
    assert f"<!-- table: {table} -->\n\n{markdown_table(table)}\n" in page


def test_the_example_of_a_model_file_on_the_page_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "models" / "compute.md").read_text(encoding="utf-8")
    example = re.search(r"```json\n(.+?)```", page, re.DOTALL)
    assert example
    first, second = json.loads(example[1])["layers"]
    assert first["parameter_bytes"] == 4 * (256 * 256 + 256)
    assert first["forward_flops"] == 2 * 256 * 256
    assert second["activation_bytes"] == 4 * (256 + 10)
    file = tmp_path / "model.json"
    file.write_text(example[1], encoding="utf-8")
    job = {"model": str(file), "workers": 2, "compute": {"device": "V100", "batch": 1}}
    layers = gt.Scenario.from_dict({"job": {"train": job}}).jobs[0].layers
    assert [layer.parameter_bytes for layer in layers] == [first["parameter_bytes"], second["parameter_bytes"]]


def test_model_files_hold_one_layer_a_line_and_match_their_name() -> None:
    folder = ROOT / "python" / "gradtide" / "presets" / "models"
    for path in sorted(folder.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        assert (document["schema"], document["name"]) == (presets.SCHEMA, path.stem)
        assert set(document) == {"schema", "name", "title", "source", "sample", "tensors", "layers"}
        for layer in document["layers"]:
            counts = {key: value for key, value in layer.items() if key not in ("name", "winograd")}
            assert set(counts) == {"parameter_bytes", "forward_flops", "activation_bytes"}
            assert all(type(count) is int and count >= 0 for count in counts.values())
        assert text.count("\n  {") == len(document["layers"])


def test_published_figures_name_only_what_exists() -> None:
    for figure in published_throughputs():
        assert figure.device in DEVICES
        assert figure.model in MODELS
        assert figure.source


@pytest.mark.parametrize("module", [presets, gradtide.roofline])
def test_examples_in_docstrings_run(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
