"""From a torch module to a model that can be simulated: layers, bytes and times; or a graph of ops.

    m = gt.profile(torchvision.models.resnet50(), torch.randn(32, 3, 224, 224), device="A100")
    m.save("resnet50.model.json")

`walk` counts one pass, `measure` times it, `ops` traces it as a graph, `target` reads what the command line says,
`model` is what comes back. torch is imported inside functions, here and nowhere else: the rest never needs it.
"""

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradtide import units
from gradtide.errors import ProfileError
from gradtide.layers import Layer
from gradtide.presets import Device, NoEfficiencyError, device_names
from gradtide.presets import device as device_preset
from gradtide.profiling.model import ModelProfile, write_json
from gradtide.profiling.target import InputSpec, build, make_inputs, parse_input
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
    "op_dag",
    "parse_input",
    "profile",
    "require_torch",
    "write_json",
]

MEASURE = "measure"
"""The device that stands for: this machine, measured."""
RUNS = 20
MAX_NAME = 200


def profile(
    model: "torch.nn.Module",
    *inputs: "torch.Tensor",
    kwargs: Mapping[str, Any] | None = None,
    device: str = "V100",
    name: str | None = None,
    runs: int = RUNS,
) -> ModelProfile:
    """Turn a torch module into layers with bytes and times.

    With a device of the presets the pass runs on shapes alone, and times are the roofline's (docs/models/compute.md):
    no weight is allocated and no accelerator needed. With `device="measure"` it is timed where the model is.

    Args:
        model: any module; it is left as it was. Training mode is what is profiled.
        inputs: positional inputs of its forward, the mini-batch as first size.
        kwargs: keyword inputs. If the output has a `loss`, backward starts from it, else from the sum of all outputs.
        device: a device preset, or `measure`.
        name: what results call it; the class of the module by default.
        runs: when measuring, how many to take the quickest of.

    Raises:
        ProfileError: if torch is missing, the device unknown, the model fails, branches on values, has no parameters,
            trains nothing or does not fit in memory.

    Source:
        Williams, Waterman, Patterson, «Roofline», CACM 52(4), 2009; FLOPs as torch.utils.flop_counter counts them.
    """
    require_torch()
    import torch

    from gradtide.profiling.measure import clock_of, measure
    from gradtide.profiling.walk import count

    machine = _device(device)
    if runs < 1:
        raise ProfileError(f"runs must be at least 1, got {runs}")
    model, kwargs = _unwrapped(model), dict(kwargs or {})
    specs = _specs(inputs, kwargs)
    batch = next((spec.shape[0] for spec in specs if spec.shape), 1)
    step_ps = None
    if machine is None:
        clock = clock_of(model)
        counts = count(model, inputs, kwargs, fake=False)
        times = measure(model, inputs, kwargs, counts.layers, runs=runs, clock=clock)
        pairs = list(zip(times.forward_ps, times.backward_ps, strict=True))
        step_ps = times.step_ps
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
            Layer(layer.name, *pair, layer.gradient_bytes) for layer, pair in zip(counts.layers, pairs, strict=True)
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
    """Return one training step of a torch module as a graph of ops, as `gradtide order` reads it.

    Args:
        model: any module whose forward does not branch on values; it is left as it was.
        inputs: positional inputs of its forward.
        kwargs: keyword inputs.
        device: a device preset, or `measure`: then every op takes the least of `runs`.
        rate: rate at which parameters are received, as in 10Gbps.
        runs: when measuring, how many to take the least of.

    Returns:
        `ops` (id, name, kind, inputs, time; bytes of a recv, param_only of a comp), `target`, and what they were made
        from; times in nanoseconds.

    Raises:
        ProfileError: as of `profile`, and if the step cannot be traced or the rate is none.
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
    """Move a model to where it is measured, a CUDA device if there is one, and return that."""
    import torch

    from gradtide.profiling.walk import as_profile_error

    if not torch.cuda.is_available():
        return "cpu"
    with as_profile_error("move to the CUDA device"):
        model.cuda()
    return "cuda"


def require_torch() -> None:
    """Refuse to go on without torch, and tell what to install."""
    try:
        import torch  # noqa: F401 - whether it is there is the question
    except ImportError as error:
        raise ProfileError(
            f"a profile needs PyTorch, which cannot be imported ({error}): pip install 'gradtide[torch]'"
        ) from error


def _device(name: str) -> Device | None:
    """Return a preset, or `None` for this machine."""
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
        near = difflib.get_close_matches(name.lower(), [one.lower() for one in known], 1, 0.5)
        hint = f"did you mean {next(one for one in known if one.lower() == near[0])}? " if near else ""
        raise ProfileError(f"unknown device {name!r}: {hint}there are {', '.join(known)}") from None


def _unwrapped(model: Any) -> Any:
    """Return the module itself, out of `torch.compile` and of data parallel wrappers."""
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
