"""Writes the model files python/gradtide/presets/models/NAME.json from two tables of parameters and FLOPs.

    python tools/make_model_presets.py SLIM_JSON TORCH_JSON OUT_DIR
    python tools/make_model_presets.py --table models|devices|checks

The two tables are inputs of this script only; the package reads the files that it writes. PROVENANCE.md beside these
files has the sources of the tables. The second form prints a table of docs/models/compute.md.

Rules, in the order they are applied:

- A layer is a module that owns parameters. Layers stand in execution order: registration order, except where
  it differs (the norms of a Llama block, the shortcut of a pre-activation block of timm, the decoder bias of
  BertForPreTraining).
- forward_flops counts the multiplications and additions of convolutions and matrix products, as
  FlopCounterMode does: 0 for norms and embeddings. FLOPs of a module without parameters (attention, a head
  whose matrix is tied) go to the last parametric layer under the nearest ancestor. They sum to the table's
  total exactly.
- activation_bytes is what the layer's forward pass reads and writes besides its parameters, at 4 bytes an
  element, each operand once. A norm reads and writes as many elements as stand before it. ReLU, pooling,
  dropout, additions and attention scores are left out.
- The slim tables hold no FLOPs: output sizes follow from the layer names and the published architectures (see
  `slim_sizes`). A slim layer with batch normalisation is convolution and norm in one, so both passes over its
  output are counted.
"""

import argparse
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT_BYTES = 4
TOKENS = 128  # sequence length of the transformers' table


@dataclass
class Row:
    """One line of a model file, counts for one sample."""

    name: str
    parameter_bytes: int
    forward_flops: int
    elements: int  # activations that are read and written
    winograd: bool = False


@dataclass(frozen=True)
class TorchModel:
    """A model of the torch table: key, title, and the convolutions that change the image size."""

    key: str
    title: str
    sample: str
    batch: int = 1  # samples that the table's FLOPs were counted for
    strided: tuple[tuple[str, int], ...] = ()  # (pattern of the module, its input size in pixels)


IMAGE, IMAGE299, SEQUENCE = "224x224x3 image", "299x299x3 image", f"sequence of {TOKENS} tokens"
RESNET_STRIDED = (
    (r"conv1", 224),
    (r"layer2\.0\.(conv2|downsample\.0)", 56),
    (r"layer3\.0\.(conv2|downsample\.0)", 28),
    (r"layer4\.0\.(conv2|downsample\.0)", 14),
)
RESNETV2_STRIDED = (
    (r"stem\.conv", 224),
    (r"stages\.1\.blocks\.0\.(conv2|downsample\.conv)", 56),
    (r"stages\.2\.blocks\.0\.(conv2|downsample\.conv)", 28),
    (r"stages\.3\.blocks\.0\.(conv2|downsample\.conv)", 14),
)
INCEPTION_STRIDED = (
    (r"Conv2d_1a_3x3\.conv", 299),
    (r"Conv2d_2a_3x3\.conv", 149),
    (r"Conv2d_4a_3x3\.conv", 73),
    (r"Mixed_6a\.(branch3x3|branch3x3dbl_3)\.conv", 35),
    (r"AuxLogits\.conv1\.conv", 5),
    (r"Mixed_7a\.(branch3x3_2|branch7x7x3_4)\.conv", 17),
)
TORCH_MODELS = {
    "alexnet": TorchModel("torchvision/alexnet", "AlexNet", IMAGE, strided=((r"features\.0", 224),)),
    "vgg16": TorchModel("torchvision/vgg16", "VGG-16", IMAGE),
    "vgg19": TorchModel("torchvision/vgg19", "VGG-19", IMAGE),
    "resnet50": TorchModel("torchvision/resnet50", "ResNet-50", IMAGE, strided=RESNET_STRIDED),
    "resnet101": TorchModel("torchvision/resnet101", "ResNet-101", IMAGE, strided=RESNET_STRIDED),
    "resnet152": TorchModel("torchvision/resnet152", "ResNet-152", IMAGE, strided=RESNET_STRIDED),
    "googlenet": TorchModel(
        "torchvision/googlenet(aux=False)",
        "GoogLeNet without auxiliary heads",
        IMAGE,
        strided=((r"conv1\.conv", 224),),
    ),
    "inception_v3": TorchModel(
        "torchvision/inception_v3(aux)",
        "Inception v3 with auxiliary head",
        IMAGE299,
        batch=2,
        strided=INCEPTION_STRIDED,
    ),
    "resnetv2_50": TorchModel("timm/resnetv2_50", "ResNet-50 v2", IMAGE, strided=RESNETV2_STRIDED),
    "resnetv2_101": TorchModel("timm/resnetv2_101", "ResNet-101 v2", IMAGE, strided=RESNETV2_STRIDED),
    "bert_base": TorchModel("transformers/BertModel base", "BERT base, encoder and pooler", SEQUENCE),
    "bert_large": TorchModel("transformers/BertModel large", "BERT large, encoder and pooler", SEQUENCE),
    "bert_base_pretraining": TorchModel(
        "transformers/BertForPreTraining base", "BERT base with pre-training heads", SEQUENCE
    ),
    "gpt2": TorchModel("transformers/GPT2LMHead small", "GPT-2 small", SEQUENCE),
    "gpt2_xl": TorchModel("transformers/GPT2LMHead xl", "GPT-2 XL", SEQUENCE),
    "llama_7b": TorchModel("transformers/Llama-7B (LlamaConfig default)", "Llama 7B", SEQUENCE),
}
SLIM_MODELS = {
    "tictac_alexnet_v2": ("AlexNet v2", IMAGE),
    "tictac_inception_v1": ("Inception v1", IMAGE),
    "tictac_inception_v2": ("Inception v2", IMAGE),
    "tictac_inception_v3": ("Inception v3", IMAGE299),
    "tictac_resnet50_v1": ("ResNet-50 v1", IMAGE),
    "tictac_resnet101_v1": ("ResNet-101 v1", IMAGE),
    "tictac_resnet50_v2": ("ResNet-50 v2", IMAGE),
    "tictac_resnet101_v2": ("ResNet-101 v2", IMAGE),
    "tictac_vgg16": ("VGG-16", IMAGE),
    "tictac_vgg19": ("VGG-19", IMAGE),
    "caramel_resnet152_v2": ("ResNet-152 v2 (Caramel)", IMAGE),
}
SOURCES = {
    "torchvision": "torchvision 0.29.2; forward FLOPs of torch 2.13 FlopCounterMode",
    "timm": "timm 1.0.31; forward FLOPs of torch 2.13 FlopCounterMode",
    "transformers": "transformers 5.23.0; forward FLOPs of torch 2.13 FlopCounterMode",
    "tictac": "TF-slim variables, TicTac (MLSys 2019) Table 1; FLOPs from published architecture",
    "caramel": "TF-slim variables, Caramel (arXiv:2004.14020) section 6; FLOPs from published architecture",
}


def execution_order(key: str, modules: list[str]) -> list[str]:
    """Moves the modules whose registration order differs from the order of their forward calls."""
    if "Llama" in key:
        place = {
            "input_layernorm": 0, "self_attn.q_proj": 1, "self_attn.k_proj": 2, "self_attn.v_proj": 3,
            "self_attn.o_proj": 4, "post_attention_layernorm": 5, "mlp.gate_proj": 6, "mlp.up_proj": 7,
            "mlp.down_proj": 8,
        }  # fmt: skip

        def llama(module: str) -> tuple[int, int]:
            block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
            if block:
                return (int(block[1]), place[block[2]])
            return (-1, 0) if module == "model.embed_tokens" else (10**6, modules.index(module))

        return sorted(modules, key=llama)
    if "resnetv2" in key:  # norm1 feeds both the shortcut and conv1
        out = [m for m in modules if not m.endswith("downsample.conv")]
        for module in modules:
            if module.endswith("downsample.conv"):
                out.insert(out.index(module.replace("downsample.conv", "norm1")) + 1, module)
        return out
    if "BertForPreTraining" in key:  # cls.predictions itself owns the bias of its tied decoder
        out = [m for m in modules if m != "cls.predictions"]
        out.insert(out.index("cls.seq_relationship"), "cls.predictions")
        return out
    return modules


def torch_rows(model: TorchModel, entry: dict[str, Any]) -> list[Row]:
    """Turns one entry of the torch table into rows; the FLOPs of the rows sum to the entry's total."""
    owned: dict[str, dict[str, list[int]]] = {}
    for parameter in entry["param_list"]:
        module, _, leaf = parameter["name"].rpartition(".")
        owned.setdefault(module, {})[leaf] = parameter["shape"]
    table = entry["fwd_flops_by_module_batch1"]
    total, rest = divmod(table["Global"], model.batch)
    assert rest == 0, f"{model.key}: FLOPs are not for {model.batch} samples"
    root = next(name for name in table if name != "Global" and "." not in name)
    flops = {
        name.removeprefix(root).removeprefix("."): count // model.batch
        for name, count in table.items()
        if name != "Global"
    }
    order = execution_order(model.key, list(owned))
    rows: list[Row] = []
    for module in order:
        shapes = owned[module]
        parameter_bytes = FLOAT_BYTES * sum(math.prod(shape) for shape in shapes.values())
        row = Row(module, parameter_bytes, flops.get(module, 0) if not own_children(module, order) else 0, 0)
        weight = shapes.get("weight", [])
        if row.forward_flops and len(weight) == 4:
            out_channels, in_channels, height, width = weight
            size = math.isqrt(row.forward_flops // (2 * math.prod(weight)))
            assert 2 * math.prod(weight) * size * size == row.forward_flops, module
            in_size = next((s for p, s in model.strided if re.fullmatch(p, module)), size)
            row.elements = out_channels * size**2 + in_channels * in_size**2
            row.winograd = height == width == 3 and in_size < 2 * size
        elif row.forward_flops and len(weight) == 2:
            conv1d = "GPT2" in model.key  # transformers' Conv1D stores (in, out)
            in_features, out_features = weight if conv1d else weight[::-1]
            vectors = row.forward_flops // (2 * math.prod(weight))
            row.elements = vectors * (in_features + out_features)
        elif len(weight) == 2:  # an embedding reads rows of its table, and writes the same rows
            row.elements = 2 * TOKENS * weight[1]
        rows.append(row)
    fill_norms(model.key, rows, owned, model.strided)
    spread_residual(flops, rows, owned)
    assert sum(row.forward_flops for row in rows) == total, f"{model.key}: FLOPs lost"
    assert sum(row.parameter_bytes for row in rows) == FLOAT_BYTES * entry["params"], model.key
    return rows


def own_children(module: str, order: list[str]) -> bool:
    return any(other.startswith(module + ".") for other in order)


def fill_norms(
    key: str, rows: list[Row], owned: dict[str, dict[str, list[int]]], strided: tuple[tuple[str, int], ...]
) -> None:
    """Sets the elements of each norm: one read and one write of the output of the preceding module."""
    channels = {name: shapes["weight"][0] for name, shapes in owned.items() if "weight" in shapes}
    previous = 0
    for i, row in enumerate(rows):
        shape = owned[row.name].get("weight", [])
        if len(shape) == 4:
            in_size = next((s for p, s in strided if re.fullmatch(p, row.name)), None)
            size = math.isqrt(row.forward_flops // (2 * math.prod(shape)))
            previous = shape[0] * size**2
            if "resnetv2" in key and i and rows[i - 1].name.rpartition(".")[2].startswith("norm"):
                # A pre-activation norm precedes its convolution and has the size of its input.
                rows[i - 1].elements = 2 * shape[1] * (in_size or size) ** 2
        elif len(shape) == 2:
            previous = TOKENS * (shape[0] if row.forward_flops and "GPT2" not in key else shape[1])
        elif len(shape) == 1:
            assert previous % channels[row.name] == 0, row.name
            row.elements = 2 * previous


def spread_residual(flops: dict[str, int], rows: list[Row], owned: dict[str, dict[str, list[int]]]) -> None:
    """Assigns FLOPs outside of parametric layers to the last parametric layer under their nearest ancestor."""

    def parent(module: str) -> str:
        while module:
            module = module.rpartition(".")[0]
            if module in flops:  # containers without a forward pass of their own are missing in the table
                return module
        return ""

    missing_in = dict(flops)
    for module, count in flops.items():
        if module:
            missing_in[parent(module)] -= count
    for module, missing in missing_in.items():
        if missing == 0 or (module in owned and not own_children(module, list(owned))):
            continue
        ancestor = module
        names = [row.name for row in rows]
        while ancestor and not any(n == ancestor or n.startswith(ancestor + ".") for n in names):
            ancestor = ancestor.rpartition(".")[0]
        prefix = ancestor + "." if ancestor else ""
        last = [row for row in rows if row.name == ancestor or row.name.startswith(prefix)][-1]
        last.forward_flops += missing
        if module.endswith(("lm_head", "predictions.decoder")):  # logits of a tied head are read and written
            embedding = next(s["weight"] for s in owned.values() if "weight" in s)
            vectors = missing // (2 * math.prod(embedding))
            last.elements += vectors * sum(embedding)


def slim_sizes(title: str, name: str, kernel: list[int]) -> tuple[int, int]:
    """Returns the input and output size in pixels of a convolution of a TF-slim model.

    Sources: TF-slim `alexnet.py` (valid 11x11/4), `vgg.py`, `inception_v1.py`, `inception_v2.py`,
    `inception_v3.py`, `resnet_v1.py` and `resnet_v2.py` (stride 2 stands on conv2 of the last unit of blocks
    1 to 3). Fully connected layers are convolutions there.
    """
    if title == "AlexNet v2":
        sizes = {
            "conv1": (224, 54),
            "conv2": (26, 26),
            "conv3": (12, 12),
            "conv4": (12, 12),
            "conv5": (12, 12),
        }
        return sizes.get(name, (kernel[0], 1))
    if title.startswith("VGG"):
        block = re.match(r"conv(\d)/", name)
        size = 224 >> (int(block[1]) - 1) if block else 0
        return (size, size) if block else (kernel[0], 1)
    if title.startswith("ResNet"):
        if name == "conv1":
            return 224, 112
        if name == "logits":
            return 1, 1
        if name == "postnorm":
            return 7, 7
        unit = re.fullmatch(r"block(\d)/unit_(\d+)/(\w+)", name)
        assert unit, name
        block_number, unit_number = int(unit[1]), int(unit[2])
        size = 56 >> (block_number - 1)
        units = {"50": (3, 4, 6), "101": (3, 4, 23), "152": (3, 8, 36)}[title.split("-")[1].split()[0]]
        if block_number < 4 and unit_number == units[block_number - 1]:
            return {"conv2": (size, size // 2), "conv3": (size // 2, size // 2)}.get(unit[3], (size, size))
        return size, size
    if name == "Logits":
        return 1, 1
    stage = re.match(r"(?:Mixed_|Conv2d_)?(\d[a-z])", name)
    if title == "Inception v3":
        fixed = {
            "1a": (299, 149), "2a": (149, 147), "2b": (147, 147), "3b": (73, 73), "4a": (73, 71),
            "AuxLogits/1b": (5, 5), "AuxLogits/2a": (5, 1), "AuxLogits/2b": (1, 1),
            "Mixed_6a/B0": (35, 17), "Mixed_6a/B1a": (35, 35), "Mixed_6a/B1b": (35, 35),
            "Mixed_6a/B1c": (35, 17), "Mixed_7a/B0b": (17, 8), "Mixed_7a/B1d": (17, 8),
            "Mixed_7a/B0a": (17, 17),
        }  # fmt: skip
        assert name in fixed or stage, name
        size = {"5": 35, "6": 17, "7": 8}[stage[1][0]] if stage and name not in fixed else 0
        size = 17 if name.startswith("Mixed_7a") else size
        return fixed.get(name, (size, size))
    assert stage, name
    if stage[1] == "1a":
        return 224, 112
    size = {"2": 56, "3": 28, "4": 14, "5": 7}[stage[1][0]]
    if title == "Inception v2" and stage[1] in ("4a", "5a"):
        # In the reducing modules, the last convolution of a branch has stride 2.
        return (2 * size, size) if name.endswith(("B0b", "B1c")) else (2 * size, 2 * size)
    return size, size


def has_batch_norm(title: str, name: str) -> bool:
    """Returns whether the layer's `biases` is the offset of a batch normalisation."""
    if title == "AlexNet v2" or title.startswith("VGG") or name.lower() == "logits" or name == "AuxLogits/2b":
        return False
    if title.startswith("ResNet") and " v2" in title:
        return name.endswith(("/conv1", "/conv2"))
    return True


def slim_rows(title: str, entry: dict[str, Any]) -> list[Row]:
    """Turns one entry of the slim table into rows, one for each convolution and each separate norm."""
    owned: dict[str, dict[str, list[int]]] = {}
    for tensor in entry["tensors"]:
        module, _, leaf = tensor["name"].rpartition("/")
        owned.setdefault(module, {})[leaf] = tensor["shape"]
    rows: list[Row] = []
    for module, tensors in owned.items():
        parameter_bytes = FLOAT_BYTES * sum(math.prod(shape) for shape in tensors.values())
        if "beta" in tensors:
            in_size, size = slim_sizes(title, module, [1, 1])
            rows.append(Row(module, parameter_bytes, 0, 2 * tensors["beta"][0] * in_size**2))
            continue
        flops = elements = 0
        kernels = [shape for leaf, shape in tensors.items() if leaf.endswith("weights")]
        in_size, size = slim_sizes(title, module, kernels[0])
        for leaf, (height, width, in_channels, last) in (
            (leaf, shape) for leaf, shape in tensors.items() if leaf.endswith("weights")
        ):
            if leaf == "depthwise_weights":  # `last` filters per input channel
                out_channels = in_channels * last
                flops += 2 * height * width * out_channels * size**2
            else:
                out_channels = last
                flops += 2 * height * width * in_channels * out_channels * size**2
            step_in = in_size if leaf in ("weights", "depthwise_weights") else size
            elements += in_channels * step_in**2 + out_channels * size**2
        if has_batch_norm(title, module):
            elements += 2 * kernels[-1][3] * size**2
        winograd = kernels[0][:2] == [3, 3] and in_size < 2 * size and len(kernels) == 1
        rows.append(Row(module, parameter_bytes, flops, elements, winograd))
    assert sum(row.parameter_bytes for row in rows) == FLOAT_BYTES * entry["params"], title
    return rows


def document(name: str, title: str, source: str, sample: str, tensors: int, rows: list[Row]) -> str:
    """Returns the text of a model file: the head, then one line per layer."""
    head = {
        "schema": "gradtide.model/1",
        "name": name,
        "title": title,
        "source": source,
        "sample": sample,
        "tensors": tensors,
    }
    lines = []
    for row in rows:
        layer: dict[str, Any] = {
            "name": row.name,
            "parameter_bytes": row.parameter_bytes,
            "forward_flops": row.forward_flops,
            "activation_bytes": FLOAT_BYTES * row.elements,
        }
        if row.winograd:
            layer["winograd"] = True
        lines.append("  " + json.dumps(layer, separators=(",", ":")))
    body = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    return "{\n" + body + ',\n "layers": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def write_models(slim: dict[str, Any], torch: dict[str, Any], out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    texts = {}
    for name, model in TORCH_MODELS.items():
        entry = torch[model.key]
        family = model.key.partition("/")[0]
        title = f"{model.title} ({family})"
        texts[name] = document(name, title, SOURCES[family], model.sample, entry["tensors"], torch_rows(model, entry))
    for name, (key, sample) in SLIM_MODELS.items():
        entry, paper = slim[key], name.partition("_")[0]
        title = f"{key.removesuffix(' (Caramel)')} ({'TicTac' if paper == 'tictac' else 'Caramel'}, TF-slim)"
        texts[name] = document(name, title, SOURCES[paper], sample, entry["n"], slim_rows(key, entry))
    paths = []
    for name, text in texts.items():
        paths.append(out / f"{name}.json")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table",
        choices=["devices", "checks"],
        help="print a table of docs/models/compute.md",
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="SLIM_JSON TORCH_JSON OUT_DIR")
    options = parser.parse_args(arguments)
    if options.table:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
        from preset_tables import markdown_table

        print(markdown_table(options.table))
        return 0
    if len(options.paths) != 3:
        parser.error("three paths are needed: SLIM_JSON TORCH_JSON OUT_DIR")
    slim, torch = (json.loads(path.read_text(encoding="utf-8")) for path in options.paths[:2])
    written = write_models(slim, torch, options.paths[2])
    print(f"{len(written)} models, {sum(path.stat().st_size for path in written)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
