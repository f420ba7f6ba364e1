"""Capabilities of runtimes as one table: levels and collectives that are supported on each device.

`gradtide plan` searches only plans that this table allows, and `gradtide.torch` refuses all other plans. A level is
listed if gradtide.torch implements it and has been tested on the device. A collective is listed if users of the
device's library can select it:

- gloo: PyTorch's ProcessGroupGloo passes no algorithm to gloo, which then uses its ring (gloo/allreduce.cc).
- NCCL, and RCCL on AMD: NCCL_ALGO selects the algorithm; gradtide models Ring and Tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

LEVELS = ("none", "buckets", "priority", "crossiter")
"""Levels of gradtide.torch, each of which includes the previous one: leave PyTorch DDP unchanged; set its buckets; send
in another order; begin the next iteration before all gradients are sent."""


@dataclass(frozen=True)
class Runtime:
    """Capabilities of PyTorch, gradtide.torch and the communication library on one kind of device.

    Attributes:
        device: kind of device: cpu, gpu, unknown or ideal.
        what: name of the devices in sentences.
        library: library that exchanges gradients between these devices; empty if unknown.
        levels: supported levels, a subset of `LEVELS`.
        collectives: selectable collectives, each with the way to select it.
        any_collective: whether users can select every collective, at any depth.
        cuts: whether a message can be reduced in several concurrent parts. Their number is the depth in Caramel.
        untested: levels that gradtide.torch implements for this device but that were never run on it. `gradtide plan`
            does not use these levels, and `wrap` requires `untested_on_gpu=True`.
    """

    device: str
    what: str
    library: str
    levels: tuple[str, ...]
    collectives: Mapping[str, str] = field(default_factory=dict)
    any_collective: bool = False
    cuts: bool = False
    untested: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Names of devices and library, as in "CPUs with gloo"."""
        return f"{self.what} with {self.library}" if self.library else self.what

    @property
    def backend(self) -> str | None:
        """Backend of torch.distributed; `None` if it is unknown."""
        return self.library.lower() or None

    @property
    def cannot(self) -> tuple[str, ...]:
        """Short descriptions of the plan features that this runtime does not support."""
        missing = [level for level in LEVELS if level not in self.levels]
        found = [f"level {level}" for level in missing]
        if not self.any_collective:
            known = " or ".join(self.collectives)
            found += [f"a collective other than {known}"] + ["a collective cut into parts (depth)"] * (not self.cuts)
        return tuple(found)

    def allows(self, collective: str) -> bool:
        """Whether users can select a collective."""
        return self.any_collective or collective in self.collectives


RUNTIMES: Mapping[str, Runtime] = {
    one.device: one
    for one in (
        Runtime("cpu", "CPUs", "gloo", LEVELS, {"ring": "gloo always uses a ring"}, cuts=True),
        Runtime(
            "gpu",
            "GPUs",
            "NCCL",
            LEVELS[:2],
            {"ring": "set NCCL_ALGO=Ring", "tree": "set NCCL_ALGO=Tree"},
            untested=LEVELS[2:],
        ),
        Runtime("unknown", "any device", "", LEVELS[:2], {"ring": "gloo and NCCL both have a ring"}),
        Runtime("ideal", "an ideal runtime", "", LEVELS, any_collective=True),
    )
}
"""Runtimes by kind of device. `unknown` has the features that CPUs and GPUs have in common. `ideal` is hypothetical and
has every feature that gradtide models."""


def level_of(order: str, barrier: bool) -> str:
    """Return the level, one of `LEVELS`, that a schedule other than DDP's own needs."""
    if not barrier:
        return "crossiter"
    return "none" if order == "fifo" else "priority"


def where(level: str) -> str:
    """Return the names of the devices and libraries with which gradtide.torch supports a level."""
    return " and ".join(one.name for one in RUNTIMES.values() if one.library and level in one.levels)


_OF_TORCH = {"cpu": "cpu", "cuda": "gpu"}


def of_torch(device_type: str) -> Runtime:
    """Return the runtime of a torch device type such as `cuda`."""
    return RUNTIMES[_OF_TORCH.get(device_type, "unknown")]
