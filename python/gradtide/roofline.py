"""Compute times of a model's layers on a named device, from FLOPs and bytes moved.

    forward = max(FLOPs / (peak x efficiency), bytes / (bandwidth x efficiency)), per layer
    backward = 2 x forward

docs/models/compute.md describes the model and its limits. To measure times instead, use `gradtide profile`.
Source: Williams, Waterman, Patterson, «Roofline: an insightful visual performance model», CACM 52(4), 2009.
"""

from typing import TYPE_CHECKING

from gradtide.layers import Layer

if TYPE_CHECKING:
    from gradtide.presets import Device, LayerPreset, ModelPreset

PICOSECONDS_PER_SECOND = 10**12

BACKWARD_PER_FORWARD = 2
"""The backward pass of a layer has two products, dL/dinput and dL/dweight, each as large as the forward pass's product.

Gao (2020), section 3.6, measured the same ratio for ResNet-50 on a P100: 0.070 s forward, 0.139 s backward.
"""

STORED_BYTES_PER_ELEMENT = 4
"""Bytes per element in the counts of model files, for parameters and activations."""

OPERANDS_PER_COUNTED = 2
"""Bytes that training moves, per byte that a model file counts for a layer. The memory efficiencies in devices.toml
refer to counted bytes, so a device that reaches 0.8 of its bandwidth has 0.4 there."""


def op_seconds(flops: int, moved_bytes: int, winograd: bool, device: "Device") -> float:
    """Return the time of one op of a graph in seconds, the larger of its compute time and its memory time.

    `flops` and `moved_bytes` (4 bytes per element) cover the whole mini-batch. `winograd` means that fp32 libraries
    need fewer multiplications for the op. `moved_bytes` includes every operand that the op reads or writes, so the
    device's memory efficiency, which refers to bytes counted for layers, is multiplied by `OPERANDS_PER_COUNTED`.
    """
    bandwidth = device.memory_bytes_per_s * min(1.0, OPERANDS_PER_COUNTED * device.memory_efficiency)
    moved = moved_bytes * (device.element_bytes / STORED_BYTES_PER_ELEMENT)
    multiplied = flops / (device.winograd_gain if winograd else 1.0)
    return max(multiplied / device.reached_flops, moved / bandwidth)


def forward_seconds(layer: "LayerPreset", device: "Device", batch: int) -> float:
    """Return the forward time of one layer in seconds, the larger of its compute time and its memory time.

    The layer moves its parameters once and its activations once per sample, at `device.element_bytes` per element.
    """
    flops: float = layer.forward_flops * batch
    if layer.winograd:
        flops /= device.winograd_gain
    moved_bytes = (layer.parameter_bytes + layer.activation_bytes * batch) * (
        device.element_bytes / STORED_BYTES_PER_ELEMENT
    )
    compute_s = flops / device.reached_flops
    memory_s = moved_bytes / (device.memory_bytes_per_s * device.memory_efficiency)
    return max(compute_s, memory_s)


def roofline(model: "ModelPreset", device: "Device", batch: int) -> list[Layer]:
    """Return the layer table of a model with compute times of one worker.

    Args:
        model: a built-in model or one read from a model file.
        device: a built-in device.
        batch: samples in the mini-batch of one worker, at least 1.

    Returns:
        One row per layer, input side first. Times are whole picoseconds, each rounded to the nearest;
        backward is exactly twice forward. `parameter_bytes` is the fp32 gradient on every device.
        `update_ps` is 0.

    Raises:
        NoEfficiencyError: if the device's efficiency is unknown.
        ValueError: if `batch` is below 1.

    Example:
        >>> from gradtide import presets
        >>> rows = roofline(presets.model("resnet50"), presets.device("V100"), batch=128)
        >>> len(rows), rows[0].name, rows[-1].name
        (107, 'conv1', 'fc')
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    table = []
    for layer in model.layers:
        forward_ps = round(forward_seconds(layer, device, batch) * PICOSECONDS_PER_SECOND)
        table.append(Layer(layer.name, forward_ps, BACKWARD_PER_FORWARD * forward_ps, layer.parameter_bytes))
    return table
