"""Built-in devices: their peak rates, and the fraction of the peak rates that training achieves."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from gradtide.presets.data import document


@dataclass(frozen=True)
class Device:
    """A compute device: peak FLOP/s, memory bandwidth, and the fraction of each that training achieves.

    Attributes:
        name: name in a scenario, case-insensitive.
        title: full name.
        precision: number format of multiplications.
        peak_flops: vendor's peak of dense products in this precision, in FLOP/s.
        memory_bytes_per_s: vendor's memory bandwidth.
        element_bytes: bytes of one parameter or activation in memory.
        compute_efficiency: fraction of `peak_flops` that training reached in a measurement on this device. Without a
            measurement it is None, and the scenario must state `compute.efficiency`.
        memory_efficiency: fraction of `memory_bytes_per_s` that training reaches (assumed).
        winograd_gain: factor by which Winograd reduces the multiplications of a 3x3 convolution of stride 1.
        source: source of peak and bandwidth.
        efficiency: origin of `compute_efficiency`: calibrated, utilisation or unknown (PROVENANCE.md).
        basis: the measurement behind `compute_efficiency`, or a statement that there is none.
        kind: gpu or cpu, as in `gradtide.runtime`.
        memory_bytes: usable memory of the largest variant; None if the accelerator of the same name states it.
    """

    name: str
    title: str
    precision: str
    peak_flops: float
    memory_bytes_per_s: float
    element_bytes: int
    compute_efficiency: float | None
    memory_efficiency: float
    winograd_gain: float
    source: str
    efficiency: str
    basis: str
    kind: str = "gpu"
    memory_bytes: int | None = None

    @property
    def reached_flops(self) -> float:
        """FLOP/s that training achieves. Raises NoEfficiencyError if there is no measurement of the device."""
        if self.compute_efficiency is None:
            raise NoEfficiencyError(
                f"{self.name} has no known efficiency: {self.basis}; state the share of its "
                f"{self.peak_flops / 1e12:g} TFLOP/s that your training reaches"
            )
        return self.peak_flops * self.compute_efficiency

    def described(self) -> dict[str, Any]:
        """Return the device as a row of the table of presets."""
        return {
            "kind": "device",
            "name": self.name,
            "title": self.title,
            "precision": self.precision,
            "peak_tflop_per_s": self.peak_flops / 1e12,
            "memory_gb_per_s": self.memory_bytes_per_s / 1e9,
            "compute_efficiency": self.compute_efficiency,
            "memory_efficiency": self.memory_efficiency,
            "source": f"{self.source}; {self.efficiency}: {self.basis}",
        }


class NoEfficiencyError(ValueError):
    """The efficiency of the device in training has not been measured, and the scenario does not state it."""


@cache
def devices() -> dict[str, Device]:
    """Return the built-in devices by name: GPUs, oldest first, then CPUs."""
    unknown = {"compute_efficiency": None}
    return {
        name: Device(name=name, **(unknown | fields)) for name, fields in document("devices.toml")["device"].items()
    }


def device_names() -> list[str]:
    """Return the names of the built-in devices: GPUs, oldest first, then CPUs."""
    return list(devices())


def device(name: str) -> Device:
    """Return a built-in device, case-insensitive.

    Raises:
        KeyError: if the name is unknown.

    Example:
        >>> device("v100").peak_flops
        15700000000000.0
    """
    for known, found in devices().items():
        if known.casefold() == name.casefold():
            return found
    raise KeyError(f"unknown device {name!r}; built in are {', '.join(device_names())}")
