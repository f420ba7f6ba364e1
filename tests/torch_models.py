"""Small models for the tests of profiles. Needs torch."""

import warnings

import pytest
import torch
from torch import nn

from gradtide.profiling import make_inputs, parse_input

# Other projects may warn while they are imported.
MARKS = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]
"""Marks of a module whose tests profile models."""


def library_model(name):
    """Return a built-in preset's model on the meta device, and its inputs."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        if name.startswith("resnetv2"):
            model, inputs = pytest.importorskip("timm").create_model(name), ["2x3x224x224"]
        elif name in ("googlenet", "inception_v3"):
            models = pytest.importorskip("torchvision").models
            heads = {"aux_logits": False} if name == "googlenet" else {}
            model = getattr(models, name)(init_weights=False, **heads)
            inputs = ["2x3x299x299" if name == "inception_v3" else "2x3x224x224"]
        elif name.split("_")[0] in ("bert", "gpt2", "llama"):
            hf = pytest.importorskip("transformers")
            inputs = ["input_ids=2x128:int64"]
            make = {
                "bert_base": lambda: hf.BertModel(hf.BertConfig()),
                "bert_large": lambda: hf.BertModel(
                    hf.BertConfig(
                        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
                    )
                ),
                "bert_base_pretraining": lambda: hf.BertForPreTraining(hf.BertConfig()),
                "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config()),
                "gpt2_xl": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
                "llama_7b": lambda: hf.LlamaForCausalLM(hf.LlamaConfig()),
            }
            model = make[name]()
        else:
            model, inputs = getattr(pytest.importorskip("torchvision").models, name)(), ["2x3x224x224"]
    return model, make_inputs([parse_input(text) for text in inputs], "meta")


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ), torch.randn(8, 3, 32, 32)  # fmt: skip
