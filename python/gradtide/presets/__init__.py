"""Built-in models, language models, op graphs, devices, clusters, flow sizes and papers' scenarios.

Each preset names its source, and is loaded on demand. Models and op graphs are counts (bytes, FLOPs), which
`gradtide.roofline` converts into times on a device. A language model is a Hugging Face configuration. Scenarios are
not parsed here.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradtide.presets import graphs
from gradtide.presets.data import document as document
from gradtide.presets.data import folder as folder
from gradtide.presets.data import stems
from gradtide.presets.devices import Device as Device
from gradtide.presets.devices import NoEfficiencyError as NoEfficiencyError
from gradtide.presets.devices import device as device
from gradtide.presets.devices import device_names as device_names
from gradtide.presets.devices import devices

if TYPE_CHECKING:
    from gradtide.parallel.costs import Accelerator

SCHEMA = "gradtide.model/1"
KINDS = ("model", "language", "graph", "device", "accelerator", "cluster", "flow", "paper")


@dataclass(frozen=True)
class LayerPreset:
    """Parameters, FLOPs and memory traffic of one layer, for one sample.

    Attributes:
        name: name of the module or variable.
        parameter_bytes: bytes of its parameters, at 4 bytes per element.
        forward_flops: FLOPs (multiplications and additions) of its convolutions and matrix products.
        activation_bytes: bytes that its forward pass reads and writes besides the parameters, at 4 bytes per element.
        winograd: true for a 3x3 convolution of stride 1, which fp32 libraries compute with fewer multiplications.
    """

    name: str
    parameter_bytes: int
    forward_flops: int
    activation_bytes: int
    winograd: bool = False


@dataclass(frozen=True)
class ModelPreset:
    """A model as counts of its layers.

    Attributes:
        name: name in a scenario.
        title: name in reports.
        source: source of the counts.
        sample: description of a sample, such as "224x224x3 image".
        tensors: number of parameter tensors, one or more per layer; 0 if the file does not state it.
        layers: counts of each layer, in execution order from the input side.
    """

    name: str
    title: str
    source: str
    sample: str
    tensors: int
    layers: tuple[LayerPreset, ...]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters in fp32, the size of a gradient exchange."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def is_language(self) -> bool:
        """Whether a sample is a sequence of tokens."""
        return self.sample.startswith("sequence of ")

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass of one sample."""
        return sum(layer.forward_flops for layer in self.layers)

    def described(self) -> dict[str, Any]:
        """Return the model as a row of the table of presets."""
        return {
            "kind": "model",
            "name": self.name,
            "title": self.title,
            "sample": self.sample,
            "tensors": self.tensors,
            "layers": len(self.layers),
            "parameter_mib": self.parameter_bytes / 2**20,
            "forward_gflop": self.forward_flops / 1e9,
            "source": self.source,
        }


def model_names() -> list[str]:
    """Return the names of the built-in models, sorted."""
    return stems("models", ".json")


def language_names() -> list[str]:
    """Return the names of the built-in language models, sorted."""
    return stems("language", ".json")


def cluster_names() -> list[str]:
    """Return the names of the built-in clusters: single hosts, slowest first, then machines with several GPUs."""
    return list(document("clusters.toml"))


RDMA_PACKETS = {
    "transport": {"kind": "ideal", "segment": "4096B", "window": "4MiB"},
    "queue": {"capacity": "100000pkt"},
}
"""Keys of `cluster` for RDMA on the packet engine: a constant window and queues that never overflow, since credits and
PFC are not modelled, nor is head-of-line blocking. 4096 bytes are the largest MTU of InfiniBand (InfiniBand
Architecture Specification, volume 1), and of RoCE on Ethernet with jumbo frames. NCCL has at most its buffer of 4 MiB
in flight (NCCL_BUFFSIZE)."""


def cluster(name: str, engine: str | None = None) -> dict[str, Any] | None:
    """Return the scenario keys of a built-in cluster; None for an unknown name.

    `NAME/N` has N hosts, or N nodes with several GPUs each; with `NAME` alone, the jobs determine the number. The
    packet engine simulates headers and windows instead of a link efficiency; clusters with RDMA get `RDMA_PACKETS`.

    Example:
        >>> cluster("ethernet-25g/16")["cluster"]["topology"]["hosts"]
        16
        >>> cluster("h100-hgx/2")["cluster"]["node"]["gpus"]
        8
    """
    kind, slash, count = name.partition("/")
    found = document("clusters.toml").get(kind)
    if found is None or (slash and (not count.isdecimal() or int(count) < 1)):
        return None
    is_packet = engine == "packet"
    link = {key: found[key] for key in ("rate", "delay", *([] if is_packet else ["efficiency"])) if key in found}
    packets = RDMA_PACKETS if is_packet and found.get("rdma") else {}
    node = {key: found[key] for key in ("node", "device") if key in found}
    cards = found["node"]["nics"] if node else 1
    hosts = {"topology": {"kind": "star", "hosts": int(count) * cards}} if slash else {}
    return {
        "cluster": {**hosts, "link": link, **node, **packets},
        "run": {"engine": "packet" if is_packet else "fluid"},
    }


def cluster_device(name: str) -> str | None:
    """Return the device of a built-in cluster, `NAME` or `NAME/N`; None if it has none.

    Example:
        >>> cluster_device("h100-hgx/16")
        'H100-bf16'
    """
    found: str | None = document("clusters.toml").get(name.partition("/")[0], {}).get("device")
    return found


def paper_names() -> list[str]:
    """Return the names of the papers' scenarios, `paper/NAME`, sorted."""
    return [f"paper/{stem}" for stem in stems("papers", ".toml")]


def flow_names() -> list[str]:
    """Return the names of the built-in distributions of flow sizes, sorted."""
    return stems("flows", ".csv")


def flow_text(name: str) -> str:
    """Return the text of a built-in distribution of flow sizes: title, source, then `bytes,cdf`.

    Raises:
        KeyError: if the name is unknown.
    """
    if name not in flow_names():
        raise KeyError(f"unknown flow sizes {name!r}; built in are {', '.join(flow_names())}")
    return folder("flows").joinpath(f"{name}.csv").read_text(encoding="utf-8")


@cache
def model(name: str) -> ModelPreset:
    """Return a built-in model.

    Raises:
        KeyError: if the name is unknown.

    Example:
        >>> model("vgg16").parameter_bytes
        553430176
    """
    import json

    if name not in model_names():
        raise KeyError(f"unknown model {name!r}; built in are {', '.join(model_names())}")
    found = json.loads(folder("models").joinpath(f"{name}.json").read_text(encoding="utf-8"))
    head = {key: found[key] for key in ("name", "title", "source", "sample", "tensors")}
    return ModelPreset(**head, layers=tuple(LayerPreset(**layer) for layer in found["layers"]))


def configuration(name: str) -> dict[str, Any]:
    """Return the configuration of a built-in language model, in the format of Hugging Face.

    Raises:
        KeyError: if the name is unknown.

    Example:
        >>> configuration("llama3-8b")["hidden_size"]
        4096
    """
    return dict(_language(name)["configuration"])


def accelerator_names() -> list[str]:
    """Return the names of the accelerators for parallel jobs."""
    return list(document("devices.toml")["accelerator"])


def accelerator(name: str) -> "Accelerator":
    """Return a built-in accelerator, case-insensitive.

    The name of a device with a precision, such as H100-bf16, selects the accelerator H100.

    Raises:
        KeyError: if the name is unknown.

    Example:
        >>> accelerator("h100-bf16").peaks["float8"]
        1978900000000000.0
    """
    from gradtide.parallel.costs import Accelerator

    plain = name.casefold().removesuffix("-bf16").removesuffix("-fp8")
    for known, fields in document("devices.toml")["accelerator"].items():
        if known.casefold() == plain:
            return Accelerator(name=known, **fields)
    raise KeyError(f"unknown accelerator {name!r}; built in are {', '.join(accelerator_names())}")


def memory_bytes(name: str) -> int | None:
    """Return the memory of a device or accelerator in bytes; None if the name is unknown.

    Example:
        >>> memory_bytes("A100-bf16") == memory_bytes("A100")
        True
    """
    try:
        return accelerator(name).memory_bytes
    except KeyError:
        found = {known.casefold(): one for known, one in devices().items()}.get(name.casefold())
        return None if found is None else found.memory_bytes


def list_presets(kind: str | None = None) -> list[dict[str, Any]]:
    """Return the presets as rows of a table, one dictionary per preset.

    Args:
        kind: `model`, `language`, `graph`, `device`, `accelerator`, `cluster`, `flow` or `paper`; all of them if None.

    Returns:
        Every dictionary has `kind`, `name`, `title` and `source`. Further keys depend on the kind:

        - model: `sample`, `tensors`, `layers`, `parameter_mib`, `forward_gflop` (of one sample)
        - language: `family`, `blocks`, `hidden`, `parameters`, `active_parameters` (of one token)
        - graph: `sample`, `batch`, `tensors`, `ops`, `forward_ops`, `parameter_mib`
        - device: `precision`, `peak_tflop_per_s`, `memory_gb_per_s`, `compute_efficiency`, `memory_efficiency`
        - accelerator: `memory_gib`, `memory_gb_per_s`, `bf16_tflop_per_s`, `efficiency` (None if it is unknown)
        - cluster: `rate`, `delay`; if its nodes have several GPUs also `gpus`, `scale_up`, `device`

    Raises:
        ValueError: if `kind` is unknown.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    described: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "model": lambda: [found.described() for found in map(model, model_names())],
        "language": lambda: [_described_language(name) for name in language_names()],
        "graph": lambda: [graphs.graph(name).described() for name in graphs.graph_names()],
        "device": lambda: [machine.described() for machine in devices().values()],
        "accelerator": lambda: [accelerator(name).described() for name in accelerator_names()],
        "cluster": lambda: [_described_cluster(name) for name in cluster_names()],
        "flow": lambda: [_described_flow(name) for name in flow_names()],
        "paper": lambda: [_described_paper(name) for name in paper_names()],
    }
    return [row for one in KINDS if kind in (None, one) for row in described[one]()]


@cache
def _language(name: str) -> dict[str, Any]:
    import json

    if name not in language_names():
        raise KeyError(f"unknown language model {name!r}; built in are {', '.join(language_names())}")
    found: dict[str, Any] = json.loads(folder("language").joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return found


def _described_cluster(name: str) -> dict[str, Any]:
    fields = document("clusters.toml")[name]
    row = {"kind": "cluster", "name": name, **{key: fields[key] for key in ("title", "rate", "delay")}}
    node = fields.get("node")
    if node is not None:
        row |= {"gpus": node["gpus"], "scale_up": node["scale_up"]["rate"], "device": fields["device"]}
    source = fields["source"]
    return {**row, "source": f"{source}; {fields['basis']}" if "basis" in fields else source}


def _described_language(name: str) -> dict[str, Any]:
    from gradtide.architecture import Architecture

    found, model = _language(name), Architecture.of(configuration(name))
    return {
        "kind": "language",
        "name": name,
        "title": found["title"],
        "family": model.family,
        "blocks": len(model.blocks),
        "hidden": model.hidden,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "source": found["source"],
    }


def _described_flow(name: str) -> dict[str, Any]:
    title, source = (line.lstrip("# ") for line in flow_text(name).splitlines()[:2])
    return {"kind": "flow", "name": name, "title": title, "source": source.removeprefix("Source: ")}


def _described_paper(name: str) -> dict[str, Any]:
    file = folder("papers").joinpath(name.removeprefix("paper/") + ".toml")
    comments = (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    title = next(comments, file.name).lstrip("# ").rstrip()
    return {"kind": "paper", "name": name, "title": title, "source": file.name}


class _Command(ModuleType):
    """Class of this module, which makes the module callable like the command `presets`: `gradtide.presets("model")`."""

    def __call__(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return one dict per preset, of one kind or of all kinds."""
        return list_presets(kind)


sys.modules[__name__].__class__ = _Command
