"""The levels on top of PyTorch's DistributedDataParallel: none, buckets and priority."""

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
from gradtide.torch.guard import Guard
from gradtide.torch.sender import Sender, sum_parts
from gradtide.torch.streams import Streams

BYTES_PER_MIB = 2**20


def bucket_options(plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel for a plan's bucket sizes, merged with the user's `options`.

    The plan's sizes become caps. DDP closes a bucket when it reaches its cap, so the buckets are those of the plan if
    gradients become ready in the plan's order.

    Raises:
        TrainingError: if the user's `options` contain a bucket size.
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


class Hook:
    """Communication hook of DistributedDataParallel, which waits for the hook's futures at the end of backward.

    DDP cannot handle a failed future. Errors are therefore raised by the optimizer's next step, before it uses the
    gradients. `sizes` contains the bytes of each of DDP's buckets in the last backward pass, by index of the bucket.
    """

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: "torch.optim.Optimizer", guard: Guard, *, depth: int = 1
    ) -> None:
        self._streams = Streams()
        self.sizes: dict[int, int] = {}
        self._group, self._guard, self._depth = ddp.process_group, guard, depth
        self._scale = 1.0 / dist.get_world_size(ddp.process_group)
        ddp.register_comm_hook(self, _submit_bucket)
        self._handle = optimizer.register_step_pre_hook(lambda *_: guard.check())

    def sum(self, bucket: Any, future: Any) -> None:
        """All-reduce a bucket's tensor in place as DDP does, and complete the future even on failure."""
        tensor = bucket.buffer()
        number = self._guard.expect(lambda: future.set_result(tensor))

        def ended(works: Sequence[Any], error: str) -> None:
            if error:
                self._guard.fail_by(f"the sum of gradients failed: {error}")
            self._guard.met(number)

        sum_parts(tensor, self._depth, self._group, self._guard, ended)

    def close(self) -> None:
        """Restore the optimizer; the hook is destroyed together with DDP."""
        self._handle.remove()

    def _submit(self, bucket: Any) -> Any:
        future = self._streams.future()
        tensor = bucket.buffer().mul_(self._scale)
        if bucket.index() == 0:
            self.sizes.clear()
        self.sizes[bucket.index()] = 0 if tensor.is_sparse else tensor.nbytes
        if tensor.is_sparse:  # a sparse all-reduce is not in place
            work = dist.all_reduce(tensor, group=self._group, async_op=True)
            return work.get_future().then(lambda ended: ended.value()[0])
        try:
            self.sum(bucket, future)
        except TrainingError as error:
            self._guard.fail(error)
            future.set_result(tensor)
        return future


class PriorityHook(Hook):
    """Sends DDP's buckets by priority. A bucket has the plan's priority of its most urgent parameter."""

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: "torch.optim.Optimizer", groups: Sequence[Group], sender: Sender
    ) -> None:
        self._ranks = {id(parameter): group.rank for group in groups for parameter in group.parameters}
        self._least = max(self._ranks.values(), default=0)
        self._sender = sender
        super().__init__(ddp, optimizer, sender.guard)
        self._streams = sender.streams

    def sum(self, bucket: Any, future: Any) -> None:
        """Submit a bucket to the sender."""
        rank = min(self._ranks.get(id(parameter), self._least) for parameter in bucket.parameters())
        tensor = bucket.buffer()

        def complete() -> None:
            with self._streams.handing_over():
                future.set_result(tensor)

        self._sender.submit(bucket.index(), rank, tensor, [self._streams.ready()], complete)


# DDP checks the annotations, and requires the name `bucket`.
def _submit_bucket(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    assert isinstance(state, Hook)
    return state._submit(bucket)
