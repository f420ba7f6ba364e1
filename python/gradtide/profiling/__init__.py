"""Converts a torch module into a model for simulations (layers with bytes and times) or into a graph of ops.

    m = gt.profile(torchvision.models.resnet50(), torch.randn(32, 3, 224, 224), device="A100")
    m.save("resnet50.model.json")

`walk` counts the FLOPs and bytes of a pass, `measure` times it, `ops` traces it as a graph, and `target` builds the
model that a command line names. torch is imported inside functions, because the rest of the package works without it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide import units
from gradtide.errors import ProfileError, hinted
from gradtide.extras import how_to_install
from gradtide.files import write_whole
from gradtide.layers import Layer
from gradtide.presets import SCHEMA, Device, LayerPreset, NoEfficiencyError, device_names
from gradtide.presets import device as device_preset
from gradtide.profiling.target import InputSpec, build, make_inputs, make_optimizer, parse_input
from gradtide.roofline import PICOSECONDS_PER_SECOND, forward_seconds

if TYPE_CHECKING:
    import torch

__all__ = [
    "MEASURE",
    "ModelProfile",
    "ProfileError",
    "best_device",
    "build",
    "make_inputs",
    "make_optimizer",
    "op_dag",
    "parse_input",
    "profile",
    "require_torch",
    "write_json",
]

MEASURE = "measure"
"""Value of `device` for measurements on this machine."""
RUNS = 20
MAX_NAME = 200
PICOSECONDS_PER_MICROSECOND = 10**6


@dataclass(frozen=True)
class ModelProfile:
    """A model with the times of its layers on one device, for one mini-batch.

    Attributes:
        name: name in results.
        title: class of the module.
        device: device preset of the roofline, or name of the measured device.
        inputs: inputs of the model's forward, as `[NAME=]SHAPE:DTYPE`.
        batch: number of samples in the mini-batch, which is the first dimension of the first input.
        torch_version: version of torch.
        layers: name, times and gradient bytes of each layer, in order of first use.
        counts: FLOPs and bytes of each layer's forward pass over the whole mini-batch.
        tensors: number of parameter tensors that get a gradient.
        unused: parameters with `requires_grad` that get no gradient; no layer counts their bytes.
        frozen: parameters without `requires_grad`; no layer counts their bytes.
        shared: further names of parameters, as `first = other`; a shared parameter is counted once.
        step_ps: time of forward and backward in ps, measured without the timestamps of layers; `None` for a roofline.
    """

    name: str
    title: str
    device: str
    inputs: tuple[str, ...]
    batch: int
    torch_version: str
    layers: tuple[Layer, ...]
    counts: tuple[LayerPreset, ...]
    tensors: int
    unused: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    step_ps: int | None = None

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all gradients, i.e. of one gradient exchange."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def forward_time(self) -> float:
        """Seconds of the forward pass."""
        return sum(layer.forward_ps for layer in self.layers) / PICOSECONDS_PER_SECOND

    @property
    def backward_time(self) -> float:
        """Seconds of the backward pass."""
        return sum(layer.backward_ps for layer in self.layers) / PICOSECONDS_PER_SECOND

    @property
    def update_time(self) -> float:
        """Seconds of the optimizer's step; 0 if it was not timed."""
        return sum(layer.update_ps for layer in self.layers) / PICOSECONDS_PER_SECOND

    @property
    def explained(self) -> float | None:
        """Sum of the layers' forward and backward times divided by `step_ps`; `None` for a roofline."""
        if self.step_ps is None:
            return None
        return (self.forward_time + self.backward_time) / (self.step_ps / PICOSECONDS_PER_SECOND)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the model file, `"schema": "gradtide.model/1"`.

        A scenario reads the times `forward_us`, `backward_us` and, if an optimizer was timed, `update_us`.
        `forward_flops` and `activation_bytes` are per sample and rounded up.
        """
        how = "roofline" if self.step_ps is None else "measured"
        profile: dict[str, Any] = {
            "method": how,
            "device": self.device,
            "batch": self.batch,
            "inputs": list(self.inputs),
            "torch": self.torch_version,
            "unused_parameters": list(self.unused),
            "frozen_parameters": list(self.frozen),
            "shared_parameters": list(self.shared),
        }
        if self.step_ps is not None:
            profile["step_us"] = self.step_ps / PICOSECONDS_PER_MICROSECOND
        return {
            "schema": SCHEMA,
            "name": self.name,
            "title": self.title,
            "source": f"torch {self.torch_version}, {how} on {self.device}",
            "sample": ", ".join(self.inputs),
            "tensors": self.tensors,
            "profile": profile,
            "layers": [
                {
                    "name": layer.name,
                    "parameter_bytes": layer.parameter_bytes,
                    "forward_us": layer.forward_ps / PICOSECONDS_PER_MICROSECOND,
                    "backward_us": layer.backward_ps / PICOSECONDS_PER_MICROSECOND,
                    **({"update_us": layer.update_ps / PICOSECONDS_PER_MICROSECOND} if layer.update_ps else {}),
                    "forward_flops": -(-count.forward_flops // self.batch),
                    "activation_bytes": -(-count.activation_bytes // self.batch),
                }
                for layer, count in zip(self.layers, self.counts, strict=True)
            ],
        }

    def save(self, path: str | Path) -> Path:
        """Write the model file, which `job.NAME.model` of a scenario can name; the write is atomic.

        Raises:
            OSError: if the file cannot be written.
        """
        return write_json(self.to_dict(), path)


def write_json(document: dict[str, Any], path: str | Path) -> Path:
    """Write a JSON document atomically, with one line for each entry of its top-level lists."""
    path = Path(path)
    parts = []
    for key, value in document.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list) and value:
            rows = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value)
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return write_whole(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def profile(
    model: "torch.nn.Module",
    *inputs: "torch.Tensor",
    kwargs: Mapping[str, Any] | None = None,
    device: str = "V100",
    name: str | None = None,
    runs: int = RUNS,
    optimizer: "torch.optim.Optimizer | None" = None,
) -> ModelProfile:
    """Turn a torch module into layers with bytes and times.

    With a device preset, the pass uses fake tensors (shapes only), and times are computed by the roofline model
    (docs/models/compute.md). This allocates no weights and needs no accelerator. With `device="measure"`, the pass is
    timed on the model's device.

    Args:
        model: any module. It is profiled in training mode, and restored afterwards.
        inputs: positional inputs of its forward. The first dimension of the first input is the mini-batch.
        kwargs: keyword inputs. Backward starts from the output's `loss` if it has one, else from the sum of outputs.
        device: a device preset, or `measure`.
        name: name in results. Default: the module's class.
        runs: number of measured runs, of which the fastest counts.
        optimizer: optimizer of the module, if measured. One step is timed on a copy, and its time is divided among the
            layers by gradient bytes. Default: an update takes no time.

    Raises:
        ProfileError: if torch is missing, the device is unknown, or the model fails, branches on values, has no
            parameters, trains nothing or does not fit in memory.

    Source:
        Williams, Waterman, Patterson, «Roofline», CACM 52(4), 2009. FLOPs are those of torch.utils.flop_counter.
    """
    require_torch()
    import torch

    from gradtide.profiling.measure import clock_of, measure, measure_updates, refuse_compiled
    from gradtide.profiling.walk import count

    machine = _device(device)
    if runs < 1:
        raise ProfileError(f"runs must be at least 1, got {runs}")
    if optimizer is not None and machine is not None:
        raise ProfileError(f"an optimizer is timed where it runs: leave it out, or take device {MEASURE!r}")
    model, kwargs = _unwrapped(model), dict(kwargs or {})
    specs = _specs(inputs, kwargs)
    batch = next((spec.shape[0] for spec in specs if spec.shape), 1)
    step_ps, updates_ps = None, None
    if machine is None:
        refuse_compiled(model)
        clock = clock_of(model)
        counts = count(model, inputs, kwargs, fake=False)
        times = measure(model, inputs, kwargs, counts.layers, runs=runs, clock=clock)
        pairs = list(zip(times.forward_ps, times.backward_ps, strict=True))
        step_ps = times.step_ps
        if optimizer is not None:
            updates_ps = measure_updates(model, optimizer, inputs, kwargs, counts.layers, runs=runs, clock=clock)
    else:
        counts = count(model, inputs, kwargs, fake=True)
        pairs = [
            (_picoseconds(layer.forward_counts(), machine), _picoseconds(layer.backward_counts(), machine))
            for layer in counts.layers
        ]
    return ModelProfile(
        name=(name or type(model).__name__)[:MAX_NAME],
        title=type(model).__name__,
        device=_name_of_machine(model) if machine is None else machine.name,
        inputs=tuple(map(str, specs)),
        batch=batch,
        torch_version=str(torch.__version__),
        layers=tuple(
            Layer(layer.name, *pair, layer.gradient_bytes, update_ps)
            for layer, pair, update_ps in zip(counts.layers, pairs, updates_ps or [0] * len(pairs), strict=True)
        ),
        counts=tuple(layer.forward_counts() for layer in counts.layers),
        tensors=counts.tensors,
        unused=counts.unused,
        frozen=counts.frozen,
        shared=counts.shared,
        step_ps=step_ps,
    )


def op_dag(
    model: "torch.nn.Module",
    *inputs: "torch.Tensor",
    kwargs: Mapping[str, Any] | None = None,
    device: str = "V100",
    rate: str = "10Gbps",
    runs: int = RUNS,
) -> dict[str, Any]:
    """Return one training step of a torch module as a graph of ops in the format of `gradtide order`.

    Args:
        model: any module whose forward does not branch on values; it is restored afterwards.
        inputs: positional inputs of its forward.
        kwargs: keyword inputs.
        device: a device preset, or `measure`.
        rate: rate at which parameters are received, e.g. `10Gbps`.
        runs: number of measured runs; the time of an op is its minimum over them.

    Returns:
        A dict with `ops`, `target` (id of the last op), and the model, device and rate. An op has id, name, kind,
        inputs and time in nanoseconds; a recv also has bytes, and a comp may have `param_only`.

    Raises:
        ProfileError: as in `profile`, and if the step cannot be traced or the rate is invalid.
    """
    require_torch()
    from gradtide.profiling import ops

    try:
        rate_bps = units.parse_rate(rate)
    except units.UnitError as error:
        raise ProfileError(f"rate: {error.msg}; {error.hint}") from error
    if rate_bps == 0:
        raise ProfileError("rate: at 0 bit/s nothing is ever received")
    machine, model = _device(device), _unwrapped(model)
    return ops.op_dag(model, inputs, dict(kwargs or {}), device=machine, runs=runs, rate_bps=rate_bps)


def best_device(model: "torch.nn.Module") -> str:
    """Move a model to CUDA if available, and return the name of its device for measurements."""
    import torch

    from gradtide.profiling.walk import as_profile_error

    if not torch.cuda.is_available():
        return "cpu"
    with as_profile_error("move to the CUDA device"):
        model.cuda()
    return "cuda"


def require_torch() -> None:
    """Raise a ProfileError with the installation command if torch is missing."""
    try:
        import torch  # noqa: F401 - is it installed?
    except ImportError as error:
        raise ProfileError(
            f"a profile needs PyTorch, which cannot be imported ({error}): {how_to_install('torch')}"
        ) from error


def _device(name: str) -> Device | None:
    if name == MEASURE:
        return None
    try:
        machine = device_preset(name)
        _ = machine.reached_flops
        return machine
    except NoEfficiencyError as error:
        known_ones = [one for one in device_names() if device_preset(one).compute_efficiency is not None]
        raise ProfileError(
            f"{error}. A profile is made on {', '.join(known_ones)}, or measured where it runs (device measure)"
        ) from None
    except KeyError:
        known = [*device_names(), MEASURE]
        hint = hinted(name, known, f"there are {', '.join(known)}", kind="device")
        raise ProfileError(f"unknown device {name!r}: {hint}") from None


def _unwrapped(model: Any) -> Any:
    """Return the module inside wrappers of `torch.compile` and data parallelism."""
    import torch
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if not isinstance(model, torch.nn.Module):
        raise ProfileError(f"expected a torch.nn.Module, got {type(model).__name__}")
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
            model = model._orig_mod
        else:
            return model


def _specs(inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[InputSpec]:
    import torch

    named = [*((None, value) for value in inputs), *kwargs.items()]
    return [
        InputSpec(label, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for label, value in named
        if isinstance(value, torch.Tensor)
    ]


def _picoseconds(counts: Any, machine: Device) -> int:
    return round(forward_seconds(counts, machine, batch=1) * PICOSECONDS_PER_SECOND)


def _name_of_machine(model: "torch.nn.Module") -> str:
    import torch

    where = next(model.parameters()).device
    if where.type == "cuda":
        return str(torch.cuda.get_device_name(where))
    return f"{where.type}, {torch.get_num_threads()} threads"
