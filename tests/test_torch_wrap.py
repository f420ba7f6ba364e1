"""Plans applied to real training: weights against DDP's, the user's own errors, and what is left behind.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import contextlib
import gc
import os
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_ranks
from gradtide.torch import unwrap, wrap
from torch_ranks import plan_of
from torch_training import (
    LEVELS,
    DistributedDataParallel,
    batches,
    cross_entropy,
    final_weights,
    network,
    said_by,
    step_of,
)

pytestmark = torch_ranks.MARKS
SCHEDULED = ("priority", "crossiter")


# The same weights as DDP


def mixed_groups(model):
    head, *rest = [list(module.parameters()) for module in (model[6], model[4], model[1], model[0])]
    return [{"params": head, "lr": 0.01}, {"params": [p for parameters in rest for p in parameters]}]


OPTIMIZERS = {
    "sgd with momentum": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "adamw, two groups": lambda model: torch.optim.AdamW(mixed_groups(model), lr=1e-3),
}


def train_50(rank, level, name, schedule_first):
    model = network()
    optimizer = OPTIMIZERS[name](model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5) if schedule_first else None
    wrapped = (
        DistributedDataParallel(model) if level == "ddp" else wrap(model, optimizer, plan_of(model, level, chunk=4096))
    )
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
    for inputs, labels in batches(rank, 50):
        optimizer.zero_grad()
        cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
        schedule.step()
    weights = {key: value.clone() for key, value in wrapped.state_dict().items()}
    states = optimizer.state_dict()
    if level != "ddp":
        unwrap(wrapped)
    return weights, states


def compare_all(rank, names):
    found = {}
    for number, name in enumerate(names):
        weights, state = train_50(rank, "ddp", name, True)
        for level in LEVELS[1:]:
            others, other_state = train_50(rank, level, name, bool(number % 2))
            equal = all(torch.equal(weights[key], others[key]) for key in weights) and weights.keys() == others.keys()
            same_state = all(
                torch.equal(torch.as_tensor(value), torch.as_tensor(other_state["state"][place][key]))
                for place, values in state["state"].items()
                for key, value in values.items()
            )
            found[name, level] = equal, same_state
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return torch_ranks.values(2, compare_all, tmp_path_factory.mktemp("ranks"), list(OPTIMIZERS), start="spawn")


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_50_steps_of_two_ranks_weights_and_state_are_ddps_bit_for_bit(compared, name, level):
    # A sum of two has one order. Learning rates change under way, and batch norm's buffers are the first rank's.
    for value in compared:
        assert value[name, level] == (True, True)


def regression(rank, level, steps, rate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    plan = plan_of(model, "crossiter", chunk=100)
    wrapped = DistributedDataParallel(model) if level == "ddp" else wrap(model, optimizer, plan, level=level)
    generator = torch.Generator().manual_seed(rank)
    gradients = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 16, generator=generator)).square().mean().backward()
        if level == "ddp":
            gradients = max(gradients, max(float(p.grad.abs().max()) for p in model.parameters()))
        optimizer.step()
    return final_weights(wrapped, level), gradients


def compare_regressions(rank, steps, rate):
    weights, gradients = regression(rank, "ddp", steps, rate)
    found = {}
    for level in SCHEDULED:
        others, _ = regression(rank, level, steps, rate)
        found[level] = max(float((a - b).abs().max()) for a, b in zip(weights, others, strict=True))
    return found, gradients


def test_on_four_ranks_weights_are_ddps_up_to_the_order_of_sums(tmp_path):
    # Two orders of N terms differ by at most 2 (N-1) u sum|g_i| (Higham, Accuracy and Stability, section 4.2), here
    # <= 2·3·u·4·g; SGD adds lr times that in each of 50 steps. The loss shrinks towards its minimum at this rate, so
    # that a difference is not amplified; what it changes in later gradients is of the same order: a factor 4 covers it.
    steps, rate = 50, 0.05
    for value in torch_ranks.values(4, compare_regressions, tmp_path, steps, rate):
        found, gradients = value
        bound = 4 * steps * rate * 2 * 3 * 2**-24 * 4 * gradients
        assert all(difference <= bound for difference in found.values()), (found, bound)


class Unusual(nn.Module):
    """A tied matrix, parameters used without their module's call, attention, a module that is called twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.twice = nn.Linear(16, 16)
        self.uncalled = nn.Linear(16, 16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(self.twice(x).relu())
        x = nn.functional.linear(x, self.uncalled.weight, self.uncalled.bias)
        return nn.functional.linear(x, self.embedding.weight)


def train_unusual(rank, level):
    torch.manual_seed(0)
    model = Unusual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = DistributedDataParallel(model) if level == "ddp" else wrap(model, optimizer, plan_of(model, level))
    generator = torch.Generator().manual_seed(rank)
    for number in range(10):
        tokens = torch.randint(20, (4, 6), generator=generator)
        if number == 5:  # evaluation in the middle sees the weights of now
            wrapped.eval()
            with torch.no_grad():
                seen = wrapped(tokens).sum()
            wrapped.train()
        loss = cross_entropy(wrapped(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*final_weights(wrapped, level), seen]


def test_tied_and_uncalled_layers_are_waited_for_where_they_are_used(tmp_path):
    equal = torch_ranks.values(2, torch_ranks.levels_equal_to_ddp, tmp_path, train_unusual, LEVELS)
    assert equal == [dict.fromkeys(LEVELS, True)] * 2


# Priority keeps the barrier, and so takes what needs one


def clip_and_accumulate(rank, level):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = (
        DistributedDataParallel(model) if level == "ddp" else wrap(model, optimizer, plan_of(model, level, chunk=999))
    )
    for number, (inputs, labels) in enumerate(batches(rank, 8)):
        with wrapped.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            cross_entropy(wrapped(inputs), labels).backward()
        if number % 2:
            nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return final_weights(wrapped, level)


def test_priority_clips_and_accumulates_as_ddp_does(tmp_path):
    equal = torch_ranks.values(2, torch_ranks.levels_equal_to_ddp, tmp_path, clip_and_accumulate, LEVELS[:3])
    assert equal == [dict.fromkeys(LEVELS[:3], True)] * 2


# What DDP's options ask of the hook of levels none and buckets


class Sparse(nn.Module):
    """A sparse gradient, a layer that one rank at a time uses, and one that both use."""

    def __init__(self):
        super().__init__()
        self.words, self.by_turns, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, tokens, is_turn):
        x = self.words(tokens)
        return self.head(self.by_turns(x) if is_turn else x)


def train_with(rank, level, options):
    torch.manual_seed(0)
    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = (
        DistributedDataParallel(model, **options)
        if level == "ddp"
        else wrap(model, optimizer, plan_of(model, level), **options)
    )
    generator = torch.Generator().manual_seed(rank)
    for number in range(6):
        optimizer.zero_grad()
        wrapped(torch.randint(20, (4, 3), generator=generator), number % 2 == rank).square().sum().backward()
        optimizer.step()
    return final_weights(wrapped, level)


def compare_options(rank):
    found = {}
    for more in ({}, {"gradient_as_bucket_view": True}):
        options = {"find_unused_parameters": True, **more}
        expected = train_with(rank, "ddp", options)
        for level in LEVELS[:2]:
            found[level, len(more)] = all(map(torch.equal, expected, train_with(rank, level, options)))
    return found


def test_sparse_and_unused_gradients_are_ddps_at_levels_that_leave_the_order(tmp_path):
    for value in torch_ranks.values(2, compare_options, tmp_path):
        assert set(value.values()) == {True}
        assert len(value) == 4


# Errors of the user's own (ranks that end: test_torch_lost.py)


class OwnError(Exception):
    pass


def raise_in_hooks(rank):
    said = []
    for kind in ("forward", "gradient"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def hook(*_):
            raise OwnError("mine")

        wrapped = wrap(model, optimizer, plan_of(model, "crossiter"))
        if kind == "forward":
            model[4].register_forward_pre_hook(hook)
        else:
            model[4].weight.register_hook(hook)
        try:
            step_of(wrapped, optimizer, rank)()
        except OwnError as error:
            said.append(str(error))
        unwrap(wrapped)
    return said


def test_errors_of_the_users_own_hooks_pass_through(tmp_path):
    for value in torch_ranks.values(2, raise_in_hooks, tmp_path):
        assert value == ["mine", "mine"]


# What is left behind


def tasks():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


def keep(rank):
    """Return by level the tensors that unwrap leaves behind, and the parameters that outlive the model."""
    found = {}
    # torch keeps some things of a first time.
    for level in (*LEVELS, *LEVELS):
        with torch_ranks.no_garbage_collection():
            model = network()
            optimizer = OPTIMIZERS["sgd with momentum"](model)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
            before = set(torch_ranks.live_tensors())
            wrapped = wrap(model, optimizer, plan_of(model, level, chunk=512))
            later = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
            step = step_of(wrapped, optimizer, rank)
            for _ in range(3):
                step()
                schedule.step()
            unwrap(wrapped)
            optimizer.zero_grad()
            before.update(id(one) for state in optimizer.state.values() for one in state.values())
            del wrapped, step
            left = len(torch_ranks.left_behind(before))
            seen = [weakref.ref(one) for one in model.parameters()]
            del model, optimizer, schedule, later
            found[level] = left, sum(one() is not None for one in seen)
        dist.barrier()
    return found


def test_unwrap_keeps_no_tensor(tmp_path):
    for value in torch_ranks.values(2, keep, tmp_path):
        assert value == dict.fromkeys(LEVELS, (0, 0))


def leave(rank):
    found = []
    for level in LEVELS:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not found:
            step_of(model, optimizer, rank)()  # torch starts what threads it keeps
        before = tasks(), threading.active_count(), set(vars(optimizer))
        wrapped = wrap(model, optimizer, plan_of(model, level))
        step = step_of(wrapped, optimizer, rank)
        for _ in range(3):
            step()
        bare = unwrap(wrapped)
        assert bare is model
        del wrapped, step
        hooks = sum(len(m._forward_pre_hooks) + len(m._state_dict_pre_hooks) for m in model.modules())
        hooks += sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
        # A thread that has ended is listed for a moment, and holds what it used until then.
        for _ in range(1000):
            gc.collect()
            after = tasks(), threading.active_count(), set(vars(optimizer))
            if after == before:
                break
            time.sleep(0.02)
        weight = model[4].weight.detach().clone()
        inputs = torch.full((2, 3, 8, 8), float(rank + 1))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
        found.append((level, before[1:] == after[1:], after[0] <= before[0] + (level in LEVELS[:2]) * 9, hooks))
        gathered = [torch.empty_like(weight) for _ in range(2)]
        dist.all_gather(gathered, model[4].weight.detach())
        found.append((level, not torch.equal(*gathered)))  # gradients stay with their rank again
    return found


def test_unwrap_leaves_no_thread_no_hook_and_the_optimizer_as_it_was(tmp_path):
    for value in torch_ranks.values(2, leave, tmp_path):
        for level, *fine in value:
            assert fine in ([True, True, 0], [True]), level


def train_alone(rank, in_group):
    plain, model = network(), network()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (plain, model)]
    wrapped = wrap(model, optimizers[1], plan_of(model, "crossiter"))
    for one, optimizer in ((plain, optimizers[0]), (wrapped, optimizers[1])):
        step = step_of(one, optimizer, rank)
        for _ in range(5):
            step()
    nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
    with wrapped.no_sync():
        wrapped.flush()
    same = all(map(torch.equal, plain.state_dict().values(), unwrap(wrapped).state_dict().values()))
    return same, wrapped.level, threading.active_count()


@pytest.mark.parametrize("size", [0, 1])
def test_without_other_ranks_it_trains_as_before(tmp_path, size):
    ((equal, _, threads),) = torch_ranks.values(size, train_alone, tmp_path, size)
    assert equal is True
    assert threads == 1


def fork_after_wrap(rank):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan_of(model, "crossiter"))
    step = step_of(wrapped, optimizer, rank)
    step()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = said_by(lambda: wrapped(torch.randn(2, 3, 8, 8)))
        os.write(writes, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    step()
    wrapped.flush()
    unwrap(wrapped)
    return os.read(reads, 1000).decode()


def test_a_forked_child_is_told_and_does_no_harm(tmp_path):
    for value in torch_ranks.values(2, fork_after_wrap, tmp_path):
        assert "forked after wrap" in value
