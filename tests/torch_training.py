"""A small network, its batches and optimizers, and one training step, for the tests of real training. Needs torch."""

import torch
from torch import nn

from gradtide.errors import ScenarioError, TrainingError
from gradtide.torch import unwrap

cross_entropy = nn.functional.cross_entropy
DistributedDataParallel = nn.parallel.DistributedDataParallel

LEVELS = ("none", "buckets", "priority", "crossiter")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def batches(rank, count):
    generator = torch.Generator().manual_seed(1000 + rank)
    for _ in range(count):
        yield torch.randn(8, 3, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)


def step_of(model, optimizer, rank):
    (inputs, labels), *_ = batches(rank, 1)

    def step():
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def final_weights(wrapped, level):
    """Return copies of the weights, and end what `wrap` began; `level` is "ddp" where it began nothing."""
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return weights


def said_by(action):
    try:
        action()
    except (TrainingError, ScenarioError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
