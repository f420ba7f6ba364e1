"""The levels that PyTorch's DistributedDataParallel carries out: none, buckets and priority."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradtide.errors import TrainingError
from gradtide.scenario.plan import Plan
from gradtide.torch.groups import Group
from gradtide.torch.sender import Sender

BYTES_PER_MIB = 2**20


def bucket_options(plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel that give a plan's bucket sizes, beside the user's `options`.

    A bucket of DDP is closed as soon as it holds its cap, so caps that are the plan's bytes give the plan's buckets if
    gradients become ready in the plan's order.

    Raises:
        TrainingError: if the user sets what the plan sets.
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
        if name in options:
            raise TrainingError(f"{name} is the plan's to set: leave it out, or take level='none'")
    sizes = [bucket.bytes for bucket in plan.buckets if bucket.bytes]
    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters:
        return {"bucket_cap_mb_list": [size / BYTES_PER_MIB for size in sizes]}
    cap = sorted(sizes)[len(sizes) // 2] / BYTES_PER_MIB
    if len(set(sizes[:-1])) > 1:
        warnings.warn(
            f"torch {torch.__version__} has one size for all buckets (bucket_cap_mb_list is newer): the plan's "
            f"{len(sizes)} buckets become buckets of {cap:.4g} MiB",
            stacklevel=3,
        )
    return {"bucket_cap_mb": cap}


class PriorityHook:
    """Sends the buckets of a DistributedDataParallel by the plan's ranks; DDP waits for them at the end of backward.

    Args:
        ddp: where it is registered.
        optimizer: asks before each step whether all is well.
        groups: the plan's buckets; a bucket of DDP is as urgent as the most urgent parameter in it.
        sender: sums them.
    """

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: "torch.optim.Optimizer", groups: Sequence[Group], sender: Sender
    ) -> None:
        self._ranks = {id(parameter): group.rank for group in groups for parameter in group.parameters}
        self._least = max(self._ranks.values(), default=0)
        self._sender = sender
        self._scale = 1.0 / dist.get_world_size(ddp.process_group)
        ddp.register_comm_hook(self, PriorityHook._submit)
        self._handle = optimizer.register_step_pre_hook(lambda *_: sender.check())

    # DDP reads the annotations, and insists on the name `bucket`.
    def _submit(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hand a bucket to the sender; return a future that is complete when it is summed."""
        future: Any = torch.futures.Future()
        tensor = bucket.buffer()
        tensor.mul_(self._scale)
        rank = min(self._ranks.get(id(parameter), self._least) for parameter in bucket.parameters())
        # DDP cannot take an error from a future; the optimizer's hook raises it before the gradients are used.
        self._sender.submit(bucket.index(), rank, tensor, lambda: future.set_result(tensor))
        return future

    def close(self) -> None:
        """Leave the optimizer; the hook goes with DDP."""
        self._handle.remove()
