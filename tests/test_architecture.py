"""Language models from Hugging Face configurations: parameters, work, faults."""

import json
import random
import re
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import presets
from gradtide.architecture import FAMILIES, Architecture, FieldError
from gradtide.errors import ScenarioError

ROOT = Path(__file__).parent.parent
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
# Parameters as their publishers or transformers count them.
KNOWN = {
    "Llama-3.1-8B": (presets.configuration("llama3-8b"), 8_030_261_248),
    "Llama-3.1-70B": (presets.configuration("llama3-70b"), 70_553_706_496),
    "Llama-3.1-405B": (presets.configuration("llama3-405b"), 405_853_388_800),
    "Mixtral-8x7B": (presets.configuration("mixtral-8x7b"), 46_702_792_704),
    # Without the layer that predicts a second token, and without biases of its router, which are no parameters.
    "DeepSeek-V3": (presets.configuration("deepseek-v3"), 671_026_404_352),
    "GPT-3": (presets.configuration("gpt3-175b"), 174_604_259_328),
    "Qwen2.5-7B": (
        {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
         "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064},
        7_615_616_512,
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
    "GPT-NeoX-20B": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
         "num_attention_heads": 64, "vocab_size": 50432},
        20_554_567_680,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_exact(name):
    config, parameters = KNOWN[name]
    assert Architecture.of(config).parameters == parameters


FILES = {
    "llama-2-7b": 6_738_415_616,
    "mistral-7b-v0.1": 7_241_732_096,
    "qwen2-0.5b": 494_032_768,
    "qwen3-8b": 8_190_735_360,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2": 235_741_434_880,
    "pythia-6.9b": 6_857_302_016,
}
"""Parameters of published models, as their pages on the hub count them."""


@pytest.mark.parametrize("name", FILES)
def test_configurations_in_files_have_the_published_parameters(name):
    file = ROOT / "tests" / "data" / "configurations" / f"{name}.json"
    assert Architecture.of(json.loads(file.read_text(encoding="utf-8"))).parameters == FILES[name]
    job = {"model": str(file), "workers": 2, "compute": {"seq": 64, "device": "H100-bf16"}}
    scenario = gt.Scenario.from_dict({"job": {"train": job}, "cluster": {"link": {"rate": "400Gbps"}}})
    assert sum(layer.parameter_bytes for layer in scenario.jobs[0].layers) == 4 * FILES[name]


def test_experts_in_some_layers_alone_are_refused():
    file = ROOT / "tests" / "data" / "configurations" / "deepseek-v2.json"
    config = {**json.loads(file.read_text(encoding="utf-8")), "moe_layer_freq": 2}
    with pytest.raises(FieldError, match="every later layer"):
        Architecture.of(config)


def test_each_built_in_language_model_is_known_and_can_be_trained():
    rows = presets.list_presets("language")
    published = {parameters for _, parameters in KNOWN.values()}
    assert [row["name"] for row in rows] == presets.language_names()
    assert {row["parameters"] for row in rows} <= published
    assert all(f"{row['parameters']:,}" in row["source"] for row in rows)
    by_name = gt.Scenario.from_dict(
        {"job": {"train": {"model": "llama3-8b", "workers": 2, "compute": {"seq": 64, "device": "H100-bf16"}}},
         "cluster": {"link": {"rate": "400Gbps"}}}
    )  # fmt: skip
    assert by_name.to_dict()["job"]["train"]["model"] == "llama3-8b"
    assert sum(layer.parameter_bytes for layer in by_name.jobs[0].layers) == 4 * 8_030_261_248
    with pytest.raises(KeyError, match="built in are deepseek-v3, gpt3-175b"):
        presets.configuration("llama3")


def test_a_token_passes_few_experts():
    # Mistral AI (2024), «Mixtral of Experts», section 2: 13 billion of 47 billion. DeepSeek-AI (2024): 37 of 671.
    assert round(Architecture.of(KNOWN["Mixtral-8x7B"][0]).active_parameters / 1e9) == 13
    assert Architecture.of(KNOWN["DeepSeek-V3"][0]).active_parameters / 1e9 == pytest.approx(37, abs=1)


@pytest.mark.parametrize(
    ("preset", "config"),
    [
        ("llama_7b", {**LLAMA, "intermediate_size": 11008, "num_key_value_heads": 32, "vocab_size": 32000}),
        ("gpt2", KNOWN["GPT-2"][0]),
        ("gpt2_xl", {**KNOWN["GPT-2"][0], "n_embd": 1600, "n_layer": 48, "n_head": 25}),
    ],
)
def test_counts_are_those_of_a_profile(preset, config):
    """The presets were profiled from transformers by torch, with sequences of 128 tokens."""
    profiled, model = presets.model(preset), Architecture.of(config)
    works = {work.name: work for work in model.works(128)}
    assert 4 * model.parameters == profiled.parameter_bytes
    assert model.forward_flops(128) == profiled.forward_flops
    assert sorted(works) == sorted(layer.name for layer in profiled.layers)
    for layer in profiled.layers:
        assert 4 * works[layer.name].parameters == layer.parameter_bytes


def test_flops_are_megatrons():
    """Narayanan et al. (2021), section 5.1: 24 B s l h² (1 + s/6h + V/12lh) of a forward pass, for h' = 4h."""
    hidden, layers, vocabulary, tokens = 1024, 24, 51200, 2048
    model = Architecture.of(
        {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": 16, "n_positions": tokens,
         "vocab_size": vocabulary}
    )  # fmt: skip
    formula = 24 * tokens * layers * hidden**2 + 4 * layers * tokens**2 * hidden + 2 * tokens * hidden * vocabulary
    assert model.forward_flops(tokens) == formula


def test_a_window_bounds_what_a_token_sees():
    config = {**LLAMA, "model_type": "mistral"}
    whole, bounded = Architecture.of(config), Architecture.of({**config, "sliding_window": 4096})
    assert whole.forward_flops(4096) == bounded.forward_flops(4096)
    attention = 2 * 8192 * 4096 * 32 * 256 * 32
    assert whole.forward_flops(8192) - bounded.forward_flops(8192) == attention


def small(draw):
    """Draw a configuration of any family, as transformers makes it; and what transformers calls it."""
    kv_heads, size = draw.choice([1, 2, 4]), draw.choice([8, 16])
    heads = kv_heads * draw.choice([1, 2, 4])
    common = {
        "hidden_size": heads * size, "num_hidden_layers": draw.randint(1, 3), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": draw.choice([48, 96, 130]), "vocab_size": 99,
        "tie_word_embeddings": draw.random() < 0.4,
    }  # fmt: skip
    family = draw.choice(sorted(FAMILIES))
    if family in ("llama", "qwen3"):
        common["attention_bias"] = draw.random() < 0.5
    if family in ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe") and draw.random() < 0.5:
        common["head_dim"] = draw.choice([8, 16, 24])
    if family == "llama":
        common["mlp_bias"] = draw.random() < 0.5
    if family in ("mixtral", "qwen2_moe", "qwen3_moe"):
        count = draw.choice([2, 4, 6])
        common["num_local_experts" if family == "mixtral" else "num_experts"] = count
        common["num_experts_per_tok"] = draw.randint(1, count)
    if family in ("qwen2_moe", "qwen3_moe"):
        common |= {
            "moe_intermediate_size": draw.choice([24, 32]), "decoder_sparse_step": draw.choice([1, 2]),
            "mlp_only_layers": draw.choice([[], [0], [1, 2]]),
        }  # fmt: skip
    if family == "qwen2_moe":
        common["shared_expert_intermediate_size"] = 40
    if family == "deepseek_v3":
        common |= {
            "moe_intermediate_size": 24, "n_routed_experts": draw.choice([4, 8]), "n_group": 2, "topk_group": 1,
            "num_experts_per_tok": 2, "q_lora_rank": draw.choice([None, 24]), "kv_lora_rank": 16,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": draw.choice([16, 24]), "v_head_dim": draw.choice([16, 32]),
            "first_k_dense_replace": draw.choice([0, 1, 2]), "n_shared_experts": draw.choice([1, 2]),
            "attention_bias": draw.random() < 0.3,
        }  # fmt: skip
    if family == "gpt2":
        common = {
            "n_embd": heads * size, "n_head": heads, "n_layer": draw.randint(1, 3), "n_positions": 50,
            "n_inner": draw.choice([None, 72]), "vocab_size": 99, "tie_word_embeddings": draw.random() < 0.5,
        }  # fmt: skip
    if family == "gpt_neox":
        common["attention_bias"] = draw.random() < 0.7
    return family, common


def test_every_parameter_is_that_of_transformers():
    """Names and shapes of 120 random configurations, through the JSON that users have."""
    torch = pytest.importorskip("torch", reason="compared where torch and transformers are installed")
    transformers = pytest.importorskip("transformers", reason="compared where torch and transformers are installed")
    draw = random.Random(1)
    for _ in range(120):
        family, given = small(draw)
        config = transformers.AutoConfig.for_model(family, **given)
        with torch.device("meta"):
            theirs = transformers.AutoModelForCausalLM.from_config(config)
        model = Architecture.of(json.loads(config.to_json_string()))
        ours = [
            (
                re.sub("^embed_out$", "lm_head", one.name),
                sorted((one.experts, *shape) if ".experts." in one.name else shape),
            )
            for one in model.modules()
            for shape in one.shapes
        ]
        expected = [
            (re.sub(r"\.(weight|bias)$", "", name), sorted(weight.shape)) for name, weight in theirs.named_parameters()
        ]
        assert sorted(ours) == sorted(expected), (family, given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "lama"}, "did you mean llama"),
        ({"model_type": "bert"}, "gradtide does not model bert yet"),
        ({"model_type": None}, "`model_type` is missing"),
        ({"model_type": ["llama"]}, "unknown family"),
        ({"hidden_size": None}, "`hidden_size` is missing"),
        ({"hidden_size": -1}, "`hidden_size` is -1"),
        ({"hidden_size": 10**30}, "`hidden_size` is 1000"),
        ({"hidden_size": 4096.5}, "`hidden_size` is 4096.5"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` is True"),
        ({"num_attention_heads": 33}, "33 heads do not divide `hidden_size` = 4096"),
        ({"num_key_value_heads": 7}, "7 heads of keys do not divide the 32 heads of queries"),
        ({"attention_bias": "yes"}, "write true or false"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "a token passes 5 of 4 experts"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(FieldError, match=re.escape(said)):
        Architecture.of({**LLAMA, **change})


def test_the_page_lists_every_family():
    page = (Path(__file__).parent.parent / "docs/own-model.md").read_text(encoding="utf-8")
    *most, last = FAMILIES
    assert f"if its `model_type` is {', '.join(most)} or {last}." in page


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": 2, "rope_theta": 500000.0}, indent=1), encoding="utf-8")
    return path


CLUSTER = {"cluster": {"link": {"rate": "100Gbps", "delay": "1us"}}}


def test_a_configuration_is_a_model(config):
    job = {"model": str(config), "workers": 4, "compute": {"device": "H100-bf16", "batch": 1, "seq": 512}}
    result = gt.run({"job": {"a": job}, **CLUSTER})
    assert result.job["model"] == "llama"
    per_block = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert result.scenario.jobs[0].parameter_bytes == 4 * (2 * per_block + 2 * 128256 * 4096 + 4096)


def test_the_resolved_scenario_runs_again(config, tmp_path):
    job = {"model": str(config), "workers": 4, "compute": {"batch": 1, "seq": 512, "device": "H100-bf16"}}
    result = gt.run({"job": {"a": job}, **CLUSTER})
    again = gt.run(result.scenario.to_dict())
    assert again.job["iteration_time_ms"] == result.job["iteration_time_ms"]


def test_the_command_takes_a_configuration(gradtide, config):
    device = ("--device", "H100-bf16")
    code, out, _ = gradtide("run", config, "--seq", 512, "--cluster", "ethernet-400g/16", *device, "--json")
    assert (code, json.loads(out)["jobs"]["train"]["workers"]) == (0, 16)
    code, out, _ = gradtide("run", config, "--seq", 512, *device, "--json")
    assert (code, json.loads(out)["jobs"]["train"]["workers"]) == (0, 8)


def test_faults_name_the_line_of_the_configuration_or_the_key_of_the_scenario(gradtide, config, tmp_path):
    code, _, err = gradtide("run", config)
    assert (code, "`seq` is missing" in err) == (2, True)
    code, _, err = gradtide("run", "resnet50", "--seq", 512)
    assert (code, "`seq` has no effect" in err, "--seq" in err) == (2, True, True)
    config.write_text(config.read_text(encoding="utf-8").replace("4096", "-4096"), encoding="utf-8")
    code, _, err = gradtide("run", config, "--seq", 512)
    assert (code, "GT039" in err, "config.json:3" in err) == (2, True, True)
    gpt2 = tmp_path / "gpt2.json"
    gpt2.write_text(json.dumps(KNOWN["GPT-2"][0]), encoding="utf-8")
    with pytest.raises(ScenarioError, match="learned 1024 positions, and a sequence has 1025 tokens"):
        gt.run(str(gpt2), seq=1025)
