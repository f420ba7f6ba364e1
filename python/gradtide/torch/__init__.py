"""Applies a plan to real data-parallel training in PyTorch; the training loop stays as it is.

    model = gradtide.torch.wrap(model, optimizer, "plan.json")     # instead of DistributedDataParallel(model)
    …                                                              # the loop
    model = gradtide.torch.unwrap(model)

`control` connects the ranks, `guard` detects lost ranks, `sender` all-reduces by priority, `streams` orders CUDA
streams, `parallel` has the levels on top of DDP, `crossiter` the level without a barrier, `deferred` its lazy parameter
updates, `sharded` applies plans of FSDP, `check` compares predicted and measured times, `wire` marks the job's packets,
`sockets` finds its connections, and `ps` has parameter servers. Only this package and `profiling` need torch.
"""

try:
    import torch  # noqa: F401 - whether it is there is the question
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
