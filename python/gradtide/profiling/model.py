"""What a profile gives back, and the model file that holds it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide.files import write_whole
from gradtide.layers import Layer
from gradtide.presets import SCHEMA, LayerPreset
from gradtide.roofline import PICOSECONDS_PER_SECOND

PICOSECONDS_PER_MICROSECOND = 10**6


@dataclass(frozen=True)
class ModelProfile:
    """A model with the times of its layers on one device, for one mini-batch.

    Attributes:
        name: what results call it.
        title: class of the module.
        device: preset of the roofline, or what it was measured on.
        inputs: inputs of forward, `[NAME=]SHAPE:DTYPE`.
        batch: samples in the mini-batch: the first size of the first input.
        torch_version: of the torch that ran the model.
        layers: times and bytes of the gradient, in order of first use.
        counts: FLOPs and bytes of each layer's forward pass, the whole mini-batch as one sample.
        tensors: number of parameter tensors that get a gradient.
        unused: parameters that want a gradient and get none; they are in no layer's bytes.
        frozen: parameters that want none; neither are they.
        shared: parameters that stand in several places, as `first = other`; counted once.
        step_ps: measured time of forward and backward without marks, picoseconds; `None` for a roofline.
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
        """Bytes of all gradients: what one exchange moves."""
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
    def explained(self) -> float | None:
        """The layers' times over the measured step; `None` for a roofline, which has measured none."""
        if self.step_ps is None:
            return None
        return (self.forward_time + self.backward_time) / (self.step_ps / PICOSECONDS_PER_SECOND)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the model file, `"schema": "gradtide.model/1"`.

        `forward_us` and `backward_us` are exact, and what a scenario reads. `forward_flops` and `activation_bytes` are
        of one sample, rounded up.
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
                    "forward_flops": -(-count.forward_flops // self.batch),
                    "activation_bytes": -(-count.activation_bytes // self.batch),
                }
                for layer, count in zip(self.layers, self.counts, strict=True)
            ],
        }

    def save(self, path: str | Path) -> Path:
        """Write the model file, which `job.NAME.model` of a scenario takes; it appears whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        return write_json(self.to_dict(), path)


def write_json(document: dict[str, Any], path: str | Path) -> Path:
    """Write a document with one line for each entry of its long lists; it appears whole or not at all."""
    path = Path(path)
    parts = []
    for key, value in document.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list) and value:
            rows = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value)
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return write_whole(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
