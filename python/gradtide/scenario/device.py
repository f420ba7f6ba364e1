"""Chooses the device of a job (`device_of`), and returns where this device is named.

    compute.device, else the device of the model's file, else cluster.device, else V100 for built-in image models

Language models have no default device: the scenario must name a device, or a built-in cluster with a device.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradtide.errors import hinted
from gradtide.scenario.keys.job import Compute

Origin = Literal["stated", "file", "cluster", "assumed", "none"]

ASSUMED_DEVICE = "V100"
"""Default device of built-in image models, because most of their published times were measured on a V100."""

HINT = (
    'name one, as in compute = { device = "H100-bf16" } or --device H100-bf16, or a cluster that has one, as in '
    "--cluster h100-hgx/2"
)
MEASURED = "measured"
"""Value of `device` in an op graph with times that `gradtide profile` measured. It names no device."""


@dataclass(frozen=True)
class JobDevice:
    """The device of a job.

    Attributes:
        name: name as the user wrote it; None if there is no device.
        origin: where the device is named: in the job (`stated`), the model's `file` or the `cluster`. A default is
            `assumed`; without a device, the origin is `none`.
        times_of: device on which the times in the model's file were taken, if it differs from `name`. The job keeps
            these times, so `name` only selects the runtime that executes a plan.
        cluster: `cluster.device`, if it is other hardware than `name`.
    """

    name: str | None
    origin: Origin
    times_of: str | None = None
    cluster: str | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The attributes as a dict, for summaries."""
        return asdict(self)


def device_of(
    compute: Compute, cluster_device: str | None, *, own: str | None = None, assumed: str | None = None
) -> JobDevice:
    """Return the device of a job and where it is named.

    Args:
        compute: keys of the job.
        cluster_device: `cluster.device`.
        own: device on which the times in the model's file were taken, if the file names it.
        assumed: default device; None if there is no default.
    """
    named = compute.device if compute.is_given("device") else own
    is_other = cluster_device is not None and named is not None and hardware(named) != hardware(cluster_device)
    cluster = cluster_device if is_other else None
    if compute.is_given("device"):
        is_retimed = own is not None and own.casefold() != compute.device.casefold()
        return JobDevice(compute.device, "stated", own if is_retimed else None, cluster)
    if own is not None:
        return JobDevice(own, "file", None, cluster)
    if cluster_device is not None:
        return JobDevice(cluster_device, "cluster")
    return JobDevice(assumed, "none" if assumed is None else "assumed")


def hardware(name: str) -> str:
    """Return the name of a device without its precision, so that A100 and A100-bf16 are the same hardware."""
    return re.sub("-(bf16|fp8)$", "", name.casefold())


def is_known(name: str) -> bool:
    """Return whether `name` is a built-in device, with or without support for `parallel`."""
    from gradtide import presets

    known = (*presets.device_names(), *presets.accelerator_names())
    return name.casefold() in {one.casefold() for one in known}


def unknown_device(name: str) -> tuple[str, str]:
    """Return message and hint for a device that is unknown, or that can only be used with `parallel`."""
    from gradtide import presets

    alike = [one for one in presets.device_names() if hardware(one) == hardware(name)]
    if alike:
        return f"{name} can only be used with `parallel`", f"without `parallel`, write {' or '.join(alike)}"
    known = list(dict.fromkeys((*presets.device_names(), *presets.accelerator_names())))
    otherwise = f"devices are {', '.join(known)}"
    return f'unknown device "{name:.60}"', hinted(name, known, otherwise, '"{}"', kind="device")
