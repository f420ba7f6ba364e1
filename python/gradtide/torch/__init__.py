"""Applies a plan to real data-parallel training in PyTorch without changes of the training loop.

    model = gradtide.torch.wrap(model, optimizer, "plan.json")     # instead of DistributedDataParallel(model)
    …                                                              # the loop
    model = gradtide.torch.unwrap(model)

Modules: `wrapped` (wrap and unwrap), `parallel` (levels none, buckets and priority, which use DDP), `crossiter` (level
crossiter, without a barrier between iterations) with `deferred` (lazy parameter updates), `sharded` (FSDP plans), `ps`
(parameter servers), `sender` (all-reduces by priority), `streams` (CUDA streams), `control` (connections between ranks)
with `guard` (lost ranks), `check` (predicted and measured times), `wire` (marks of packets) with `sockets` (connections
of the job). Only this package and `profiling` need torch.
"""

try:
    import torch  # noqa: F401 - is it installed?
except ImportError as error:
    from gradtide.extras import how_to_install

    raise ImportError(f"gradtide.torch needs PyTorch ({error}): {how_to_install('torch')}") from error

from gradtide.errors import RankLostError, ScenarioError, TrainingError
from gradtide.torch import ps
from gradtide.torch.check import Verification, verify
from gradtide.torch.wire import WirePriority, nccl_options, wire_priority
from gradtide.torch.wrapped import Wrapped, unwrap, wrap

__all__ = [
    "RankLostError",
    "ScenarioError",
    "TrainingError",
    "Verification",
    "WirePriority",
    "Wrapped",
    "nccl_options",
    "ps",
    "unwrap",
    "verify",
    "wire_priority",
    "wrap",
]
