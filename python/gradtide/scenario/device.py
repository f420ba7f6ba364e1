"""The device of a job: chosen by `device_of` alone, which also returns where the device is named.

    compute.device, else the device of the model's file, else cluster.device, else V100 for built-in image models

Language models have no default device: the scenario must name one, or a cluster that has one.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradtide.errors import hinted
from gradtide.scenario.keys.job import Compute

Origin = Literal["stated", "file", "cluster", "assumed", "none"]

ASSUMED_DEVICE = "V100"
"""Default device of built-in image models: most of their published times were measured on a V100."""

HINT = (
    'name one, as in compute = { device = "H100-bf16" } or --device H100-bf16, or a cluster that has one, as in '
    "--cluster h100-hgx/2"
)
MEASURED = "measured"
"""Value of the device in a graph of ops whose times were measured."""


@dataclass(frozen=True)
class JobDevice:
    """The device of a job.

    Attributes:
        name: as written; None if none is named.
        origin: where it is named: in the job (`stated`), the model's `file` or the `cluster`; `assumed` for a default,
            `none` without one.
        times_of: device of the times in the model's file, if it differs from `name`. The job keeps these times, so
            `name` only selects the runtime that executes a plan.
        cluster: device of the cluster, if it is different hardware.
    """

    name: str | None
    origin: Origin
    times_of: str | None = None
    cluster: str | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The keys of a summary that describe the device."""
        return asdict(self)


def device_of(
    compute: Compute, cluster_device: str | None, *, own: str | None = None, assumed: str | None = None
) -> JobDevice:
    """Return the device of a job and where it is named.

    Args:
        compute: keys of the job.
        cluster_device: `cluster.device`.
        own: device of the model's file, if the file has times and names the device on which they were taken.
        assumed: the default if no device is named.
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
    """Return the name of a device without its precision, so that A100 and A100-bf16 are equal."""
    return re.sub("-(bf16|fp8)$", "", name.casefold())


def is_known(name: str) -> bool:
    """Whether a device or an accelerator has that name."""
    from gradtide import presets

    known = (*presets.device_names(), *presets.accelerator_names())
    return name.casefold() in {one.casefold() for one in known}


def unknown_device(name: str) -> tuple[str, str]:
    """Return message and hint for a device that is unknown, or known only with `parallel`."""
    from gradtide import presets

    alike = [one for one in presets.device_names() if hardware(one) == hardware(name)]
    if alike:
        return f"{name} computes models that are divided over ranks", f"without `parallel`, name {' or '.join(alike)}"
    known = list(dict.fromkeys((*presets.device_names(), *presets.accelerator_names())))
    otherwise = f"devices are {', '.join(known)}"
    return f'unknown device "{name:.60}"', hinted(name, known, otherwise, '"{}"', kind="device")
