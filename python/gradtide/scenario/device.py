"""What a job computes on: decided by `device_of` alone, which also says who named the device.

    compute.device, else the device of the model's file, else cluster.device, else V100 for built-in image models

Nothing is assumed for a language model: whoever trains one has to name a device, or a cluster that has one.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradtide.errors import hinted
from gradtide.scenario.keys.job import Compute

Origin = Literal["stated", "file", "cluster", "assumed", "none"]

ASSUMED_DEVICE = "V100"
"""Of models that are counts and no language models: the device on which most of their published times were measured."""

HINT = (
    'name one, as in compute = { device = "H100-bf16" } or --device H100-bf16, or a cluster that has one, as in '
    "--cluster h100-hgx/2"
)
MEASURED = "measured"
"""What a graph of ops says in place of its device if it was measured."""


@dataclass(frozen=True)
class JobDevice:
    """The device of a job.

    Attributes:
        name: as it was written; None if nobody names one.
        origin: who names it: the job (`stated`), the model's `file`, the `cluster`, nobody (`assumed`, or `none`).
        times_of: device that the times of the model's file were taken on, where that is another one. They stay as they
            are: `name` then only decides which runtime carries out a plan.
        cluster: device of the cluster, where that is other hardware.
    """

    name: str | None
    origin: Origin
    times_of: str | None = None
    cluster: str | None = None

    @property
    def described(self) -> dict[str, Any]:
        """What a summary says of it."""
        return asdict(self)


def device_of(
    compute: Compute, cluster_device: str | None, *, own: str | None = None, assumed: str | None = None
) -> JobDevice:
    """Return what a job computes on, and who says so.

    Args:
        compute: keys of the job.
        cluster_device: `cluster.device`.
        own: device of the model's file, if it has times of its own and says where they come from.
        assumed: what is computed on if nobody says anything.
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
    """Return what a device is called whatever it multiplies in: the same for A100 and A100-bf16."""
    return re.sub("-(bf16|fp8)$", "", name.casefold())


def is_known(name: str) -> bool:
    """Whether there is a device or an accelerator of that name."""
    from gradtide import presets

    known = (*presets.device_names(), *presets.accelerator_names())
    return name.casefold() in {one.casefold() for one in known}


def unknown_device(name: str) -> tuple[str, str]:
    """Return message and hint for a device that there is not, or that is none without `parallel`."""
    from gradtide import presets

    alike = [one for one in presets.device_names() if hardware(one) == hardware(name)]
    if alike:
        return f"{name} computes models that are divided over ranks", f"without `parallel`, name {' or '.join(alike)}"
    known = list(dict.fromkeys((*presets.device_names(), *presets.accelerator_names())))
    otherwise = f"devices are {', '.join(known)}"
    return f'unknown device "{name:.60}"', hinted(name, known, otherwise, '"{}"', kind="device")
