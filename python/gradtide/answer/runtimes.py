"""Finds the runtime that executes a schedule on a device, according to the table in `runtime.py`."""

from dataclasses import replace

from gradtide import presets, words
from gradtide.runtime import RUNTIMES, Runtime, level_of, where

SYSTEMS = {
    "ddp": "PyTorch DDP",
    "horovod": "Horovod",
    "p3": "P3 on MXNet",
    "bytescheduler": "ByteScheduler",
}
"""Names of the systems after which schedules are named, by schedule."""

MEASURED_ON = {"NVIDIA ": "gpu", "Tesla ": "gpu", "AMD Instinct": "gpu", "cpu, ": "cpu"}
"""Kind of a device by the prefix of its name in measured profiles (`gradtide profile --device measure`)."""

DDP, OURS = "PyTorch DDP", "gradtide.torch"


def runtime_of(device: str | None) -> Runtime | None:
    """Return the runtime for a preset device or the device of a measured profile; None for any other device."""
    if device is None:
        return None
    try:
        preset = presets.device(device)
    except KeyError:
        kind = next((kind for prefix, kind in MEASURED_ON.items() if device.startswith(prefix)), None)
        return None if kind is None else replace(RUNTIMES[kind], what=device)
    return replace(RUNTIMES[preset.kind], what=preset.name)


def runs_on(order: str, barrier: bool, collective: str, device: str | None, system: str = "") -> tuple[str | None, str]:
    """Return the runtime that executes a schedule and an empty text, or None and the reason why no runtime does.

    Args:
        order: order of the transfers, a value of `schedule.order`.
        barrier: whether an iteration waits for all transfers.
        collective: algorithm that aggregates gradients, a value of `collective.kind`.
        device: device of the job; None if the job names none.
        system: name of the system that has this schedule, as in `horovod`.
    """
    if system in SYSTEMS:
        return SYSTEMS[system], ""
    runtime, level = runtime_of(device), level_of(order, barrier)
    if runtime is None:
        if level in RUNTIMES["unknown"].levels:
            return DDP, ""
        return None, f"no device is given (--device), and {OURS} sends in this order only on {where(level)}"
    if not runtime.allows(collective):
        known = " or ".join(runtime.collectives)
        return None, f"{runtime.name} offers {known}, but not {words.collective(collective)}"
    if level in runtime.untested:
        return None, f"{OURS} has not been tested with this order on {runtime.name}"
    return (DDP if level in RUNTIMES["unknown"].levels else OURS), ""
