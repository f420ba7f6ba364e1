"""Plans applied to real training: weights against DDP's, what is refused, ranks that end, and what is left behind.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import contextlib
import functools
import gc
import io
import os
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradtide as gt
import torch_ranks
from gradtide.errors import ScenarioError, TrainingError
from gradtide.scenario.plan import read_plan
from gradtide.torch import control, guard, sender, unwrap, verify, wrap
from gradtide.torch.groups import groups_of
from torch_ranks import plan_of

cross_entropy, linear = nn.functional.cross_entropy, nn.functional.linear
DistributedDataParallel = nn.parallel.DistributedDataParallel

pytestmark = torch_ranks.MARKS

LEVELS = ("none", "buckets", "priority", "crossiter")
SCHEDULED = ("priority", "crossiter")


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
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return weights, gradients


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
        x = linear(x, self.uncalled.weight, self.uncalled.bias)
        return linear(x, self.embedding.weight)


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
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return [*weights, seen]


def test_tied_and_uncalled_layers_are_waited_for_where_they_are_used(tmp_path):
    equal = torch_ranks.values(2, torch_ranks.levels_equal_to_ddp, tmp_path, train_unusual, LEVELS)
    assert equal == [dict.fromkeys(LEVELS, True)] * 2


# What is refused


def said_by(action):
    try:
        action()
    except (TrainingError, ScenarioError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def accumulate(wrapped, optimizer, loss):
    loss().backward()
    loss().backward()


def skip_a_layer(wrapped, optimizer, loss):
    wrapped.module[4].register_forward_hook(lambda module, args, output: output.detach())
    loss().backward()
    optimizer.step()


def scaled(wrapped, optimizer, loss):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss()).backward()
    scaler.step(optimizer)


def clipped(wrapped, optimizer, loss):
    loss().backward()
    nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)


def printed(wrapped, optimizer, loss):
    loss().backward()
    float(next(wrapped.parameters()).grad.norm())


def closed(wrapped, optimizer, loss):
    optimizer.step(loss)


def twice(wrapped, optimizer, loss):
    loss().backward()
    optimizer.step()
    optimizer.step()


def twice_with_a_forward_pass_between(wrapped, optimizer, loss):
    loss().backward()
    optimizer.step()
    loss()
    optimizer.step()


def thawed(wrapped, optimizer, loss):
    wrapped.module[6].bias.requires_grad_(True)
    loss().backward()
    optimizer.step()


def without_sync(wrapped, optimizer, loss):
    wrapped.no_sync()


def hooked(wrapped, optimizer, loss):
    loss().backward()
    optimizer.register_step_post_hook(print)
    optimizer.step()


def inner(wrapped, optimizer, loss):
    wrapped.module(torch.randn(2, 3, 8, 8)).sum().backward()


def copied(wrapped, optimizer, loss):
    import copy

    copy.deepcopy(wrapped)


def copied_inner(wrapped, optimizer, loss):
    import copy

    loss()
    copy.deepcopy(wrapped.module)


REFUSED = {
    clipped: "on its way and cannot be read",
    scaled: "on its way and cannot be read",
    accumulate: "on its way and cannot be read",
    printed: "on its way and cannot be read",
    skip_a_layer: "no gradient for '4.weight'",
    closed: "step(closure)",
    twice: "called twice",
    twice_with_a_forward_pass_between: "called twice",
    thawed: "frozen when wrap was called",
    without_sync: "cannot be accumulated",
    hooked: "hooks on step()",
    inner: "call the module that wrap returned",
    copied: "cannot be copied",
    copied_inner: "cannot be copied",
}


def refuse_all(rank):
    said = {}
    (inputs, labels), *_ = batches(rank, 1)
    for case in REFUSED:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(model, "crossiter")
        if case is thawed:
            model[6].bias.requires_grad_(False)
            plan["buckets"][0]["bytes"] -= model[6].bias.nbytes
        wrapped = wrap(model, optimizer, plan)

        def loss(wrapped=wrapped):
            return cross_entropy(wrapped(inputs), labels)

        said[case.__name__] = said_by(functools.partial(case, wrapped, optimizer, loss))
        with contextlib.suppress(TrainingError):
            unwrap(wrapped)
    return said, refused_by_wrap(rank)


def refused_by_wrap(rank):
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, "crossiter")

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)

    return {
        "find_unused_parameters": said_by(lambda: wrap(model, sgd, plan, find_unused_parameters=True)),
        "LBFGS": said_by(lambda: wrap(model, torch.optim.LBFGS(model.parameters()), plan)),
        "Own": said_by(lambda: wrap(model, Own(model.parameters(), lr=0.1), plan)),
        "torch.compile": said_by(lambda: wrap(torch.compile(model), sgd, plan)),
        "bare module": said_by(lambda: wrap(DistributedDataParallel(model), sgd, plan)),
        "meta": said_by(lambda: wrap(network().to("meta"), sgd, plan)),
        "rank 1 has another plan": said_by(lambda: wrap(model, sgd, plan_of(model, "crossiter", chunk=1 + rank))),
        "bucket_cap_mb is the plan's": said_by(lambda: wrap(model, sgd, plan, level="buckets", bucket_cap_mb=1)),
    }


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return torch_ranks.values(2, refuse_all, tmp_path_factory.mktemp("ranks"), timeout_s=20)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.__name__)
def test_what_crossiter_cannot_do_is_refused(refused, case):
    for value in refused:
        said = value[0][case.__name__]
        assert said.startswith("TrainingError: ")
        assert REFUSED[case] in said


def test_what_wrap_cannot_take_is_refused(refused):
    for value in refused:
        for part, said in value[1].items():
            assert part in said, said


def drop_some(rank, level):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    wrapped = DistributedDataParallel(model) if level == "ddp" else wrap(model, optimizer, plan_of(model, level))
    for number, (inputs, labels) in enumerate(batches(rank, 9)):
        cross_entropy(wrapped(inputs), labels).backward()
        if number % 3 != 1:  # a step that is skipped, as after an infinite loss
            optimizer.step()
        if number % 2:
            wrapped.zero_grad()
        else:
            for parameter in model.parameters():
                parameter.grad = None
            optimizer.step()  # with no gradient: nothing
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return weights


def compare_dropped(rank):
    return all(map(torch.equal, drop_some(rank, "ddp"), drop_some(rank, "crossiter")))


def test_gradients_that_are_dropped_are_not_applied(tmp_path):
    for value in torch_ranks.values(2, compare_dropped, tmp_path):
        assert value is True


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
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return weights


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
    weights = [value.clone() for value in wrapped.state_dict().values()]
    if level != "ddp":
        unwrap(wrapped)
    return weights


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


# Predicted against measured


def verified(rank):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan_of(model, "crossiter", predicted={"iteration_time_ms": 0.001}))
    out = io.StringIO()
    result = verify(wrapped, step_of(wrapped, optimizer, rank), steps=5, warm_up=1, file=out)
    unwrap(wrapped)
    return out.getvalue(), result.measured, result.ratio


def test_verify_prints_predicted_and_measured_with_a_reason(tmp_path):
    for value in torch_ranks.values(2, verified, tmp_path):
        text, measured, ratio = value
        assert ratio == pytest.approx(measured / 1e-6)
        for words in ("measured", "waits for gradients", "predicted", "above predicted", "Profile it here"):
            assert words in text


def test_verify_says_when_they_agree():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan_of(model, "none", predicted={"iteration_time_ms": 104.0}))
    ticks = iter(range(100))
    result = verify(wrapped, lambda: None, steps=10, clock=lambda: next(ticks) / 10, file=io.StringIO())
    assert result.measured == pytest.approx(0.1)
    assert result.reason.startswith("Measured and predicted agree within 3.8%")


def test_verify_does_not_agree_where_half_of_what_the_plan_saves_is_missed():
    model = network()
    said = {"iteration_time_ms": 100.0, "baseline_iteration_time_ms": 110.0}
    wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), plan_of(model, "none", predicted=said))
    wrapped.level = "priority"
    model.compile()
    ticks = iter(range(100))
    result = verify(wrapped, lambda: None, steps=10, clock=lambda: next(ticks) * 0.109, file=io.StringIO())
    assert result.reason.startswith("Measured is 9.0% above predicted.")


# Caramel's plans: batches, releases and depth


def released(model, level, **more):
    """Plan the head to wait for the first layer's gradient, and the second layer for the next forward pass."""
    plan = plan_of(model, level, chunk=512, depth=3, order="caramel", **more)
    releases = {"6": ("backward", "0"), "4": ("forward", "1")}
    for bucket in plan["buckets"]:
        if bucket["layers"][0] in releases and level == "crossiter":
            bucket["release"] = dict(zip(("pass", "layer"), releases[bucket["layers"][0]], strict=True))
    return plan


def train_gated(rank, level):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sent = []
    if level == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        wrapped = wrap(model, optimizer, released(model, level))
        if level == "crossiter":
            cross = wrapped._cross
            names = {bucket.key: bucket.names[0].partition(".")[0] for bucket in cross._buckets}
            submit = cross._sender.submit
            cross._sender.submit = lambda key, *rest: sent.append(names[key]) or submit(key, *rest)
            model[0].weight.register_post_accumulate_grad_hook(lambda _: sent.append("gradient of 0"))
            for layer in (0, 1):
                model[layer].register_forward_hook(lambda *_, layer=layer: sent.append(f"call of {layer}"))
    for inputs, labels in batches(rank, 4):
        optimizer.zero_grad()
        cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
    if level != "ddp":
        unwrap(wrapped)
    return [value.clone() for value in model.state_dict().values()], sent


def compare_gated(rank):
    expected, _ = train_gated(rank, "ddp")
    found = {}
    for level in LEVELS[1:]:
        weights, sent = train_gated(rank, level)
        found[level] = all(map(torch.equal, expected, weights)), sent
    return found


def test_release_events_and_depth_of_a_plan_are_carried_out_with_ddps_weights(tmp_path):
    for value in torch_ranks.values(2, compare_gated, tmp_path):
        assert [value[level][0] for level in LEVELS[1:]] == [True] * 3
        *_, sent = value["crossiter"]
        second = sent.index("call of 0", sent.index("gradient of 0"))
        after = sent[sent.index("gradient of 0") :]
        assert "6" not in sent[: sent.index("gradient of 0")]
        assert after[1:3] == ["6", "0"] or after[1:3] == ["0", "6"]
        assert "4" not in sent[:second]
        assert sent[second + 1 : second + 3] == ["4", "call of 1"]


def train_profiled(rank):
    """Measure a model, keep what came of it, and train by a plan with releases; return how many opened."""
    with torch_ranks.no_garbage_collection():
        model = network()
        (inputs, _), *_ = batches(rank, 1)
        profile = gt.profile(model, inputs, device="measure", runs=1)
        graph = gt.op_dag(model, inputs, device="measure", runs=1)
        optimizer = sgd(model)
        wrapped = wrap(model, optimizer, released(model, "crossiter"))
        said = said_by(lambda: verify(wrapped, step_of(wrapped, optimizer, rank), steps=8, file=io.StringIO()))
        opened = wrapped._cross.released
        unwrap(wrapped)
    return said, opened, bool(profile and graph)


def test_a_model_that_was_profiled_has_the_release_events_of_its_plan(tmp_path):
    for value in torch_ranks.values(2, train_profiled, tmp_path):
        said, opened, _ = value
        assert said == "nothing"
        assert opened >= 2 * 8


def in_line():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))


def caramel_plan(folder):
    """What `gradtide plan` writes for Caramel's schedule, at a depth of 2; the model is planned for slow links."""
    layers = [{"name": str(i), "forward": "1ms", "backward": "2ms", "parameters": f"{4 * 65 * 64}B"} for i in range(8)]
    train = {"model": {"layers": layers}, "workers": 2, "schedule": {"depth": 2}}
    scenario = {"job": {"train": train}, "cluster": {"link": {"rate": "30Mbps"}}, "run": {"engine": "fluid"}}
    options = {"overhead": "0us", "smallest": 0, "seeds": 2, "worth": 50.0}
    return gt.plan(scenario, device="cpu", schedule="caramel", **options).save(folder / "plan.json")


def logged(model, wrapped, log):
    """Log gradients, the end of each layer's call, and what is handed to the sender."""
    for name, module in model.named_children():
        for parameter in module.parameters():
            parameter.register_hook(lambda _, name=name: log.append(("backward", name)))
        module.register_forward_hook(lambda *_, name=name: log.append(("called", name)))
    names = [bucket.names[0].partition(".")[0] for bucket in wrapped._cross._buckets]
    submit = wrapped._cross._sender.submit
    wrapped._cross._sender.submit = lambda key, *rest: log.append(("sent", names[key])) or submit(key, *rest)


def drop_releases(model, wrapped, log):
    for bucket in wrapped._cross._buckets:
        bucket.opens_in, bucket.is_open = "", True


def drop_depth(model, wrapped, log):
    wrapped._sender._depth = 1


CARAMEL_STEPS = 7


def train_caramel(rank, path, change):
    """Train by a plan, or by DDP; return the weights, what was sent behind which event, and what verify says."""
    model, log, out = in_line(), [], io.StringIO()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    wrapped = DistributedDataParallel(model) if change is None else wrap(model, optimizer, path)
    inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))

    def step():
        optimizer.zero_grad()
        wrapped(inputs).square().sum().backward()
        optimizer.step()
        log.append(("step", ""))

    if change is None:
        for _ in range(CARAMEL_STEPS):
            step()
        return list(model.state_dict().values()), log, ""
    change(model, wrapped, log)
    ticks, each_s = iter(range(100)), read_plan(path).predicted["iteration_time_ms"] / 1e3
    options = {"steps": CARAMEL_STEPS - 1, "warm_up": 1, "file": out, "clock": lambda: next(ticks) * each_s}
    error = said_by(lambda: verify(wrapped, step, **options))
    unwrap(wrapped)
    return list(model.state_dict().values()), log, f"{error}: {out.getvalue()}"


def compare_caramel(rank, path):
    expected, *_ = train_caramel(rank, path, None)
    weights, log, said = train_caramel(rank, path, logged)
    missed = [train_caramel(rank, path, change)[2] for change in (drop_releases, drop_depth)]
    return all(map(torch.equal, expected, weights)), log, said, missed


def test_release_events_and_depth_that_gradtide_plan_wrote_are_carried_out_and_verify_tells(tmp_path):
    path = caramel_plan(tmp_path)
    plan = read_plan(path)
    releases = {bucket.layers[0]: bucket.release for bucket in plan.buckets if bucket.release}
    assert (plan.order, plan.depth) == ("caramel", 2)
    assert {where for where, _ in releases.values()} == {"backward", "forward"}
    for value in torch_ranks.values(2, compare_caramel, tmp_path, str(path)):
        is_equal, log, said, missed = value
        assert is_equal
        assert said.startswith("nothing: ")
        assert "Measured and predicted agree within 0.0%" in said
        assert f"an iteration opened 0 release events instead of {len(releases)}" in missed[0]
        # How many exactly depends on what is under way at either end.
        assert f" parts of pieces (depth) instead of {2 * len(plan.buckets)}. " in missed[1]
        places = {}
        for place, event in enumerate(log):
            places.setdefault(event, []).append(place)
        for layer, (where, opener) in releases.items():
            sent = places["sent", layer]
            assert len(sent) == CARAMEL_STEPS
            if where == "backward":  # of two parameters
                assert all(place > both for place, both in zip(sent, places["backward", opener][1::2], strict=True))
                continue
            # Behind the step and the calls in front of the opener, before the opener's call has ended.
            calls = [*places["called", opener][1:], len(log)]
            assert all(a < b < c for a, b, c in zip(places["step", ""], sent, calls, strict=True))
            if opener != "0":
                before = places["called", str(int(opener) - 1)][1:]
                assert all(place > call for place, call in zip(sent, before, strict=False))


def refuse_plans(rank):
    model = network()
    said = []
    for change, level in (
        ({"collective": {"kind": "tree"}}, "priority"),
        ({"order": "random"}, "crossiter"),
        ({"release": True}, "priority"),
    ):
        plan = released(model, "crossiter", **{key: value for key, value in change.items() if key == "collective"})
        plan["order"] = change.get("order", "caramel")
        said.append(said_by(lambda plan=plan, level=level: wrap(model, sgd(model), plan, level=level)))
    return said


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_a_plan_asks_for_and_gloo_cannot_do_is_refused(tmp_path):
    for value in torch_ranks.values(2, refuse_plans, tmp_path):
        for said, words in zip(value, ("by tree, which CPUs", "order 'random'", "only level crossiter"), strict=True):
            assert words in said


def verify_missed(rank):
    # All buckets but the last of one size, which is all that a DDP without bucket_cap_mb_list can have.
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    plan = plan_of(model, "buckets")
    said = []
    for _ in range(2):
        wrapped = wrap(model, sgd(model), plan)

        def step(wrapped=wrapped):
            wrapped(torch.ones(4, 8)).sum().backward()

        said.append(said_by(lambda wrapped=wrapped, step=step: verify(wrapped, step, steps=2, file=io.StringIO())))
        unwrap(wrapped)
        plan["buckets"].reverse()  # not the order in which gradients come
    return said


def test_verify_fails_when_ddps_buckets_are_not_the_plans(tmp_path):
    for value in torch_ranks.values(2, verify_missed, tmp_path):
        assert value[0] == "nothing"
        assert "The plan was not carried out: DDP sent buckets of" in value[1]


# The sender by itself


class LoneGuard(guard.Guard):
    """A guard without connections, which records its messages."""

    def __init__(self, *_):
        self.sent = []
        vars(self).update(fault=None, departed=None, changed=threading.Condition(), timeout_s=5, _lost_at=0)
        vars(self).update(
            _rank=0, _steps=0, _last_step=0, _awaited={}, _under_way=0, _own_under_way=0, _peers={0: guard._Peer()}
        )

    def start(self):
        pass

    def send(self, kind, a, b=0):
        self.sent.append((a, b))

    def _query_missing(self):
        pass


@pytest.fixture
def lone_sender(monkeypatch):
    """A sender of the first rank whose sums end when the test says so: `begun` holds (tensor, future)."""
    begun = []

    class Work:
        def __init__(self, tensor):
            self.future = torch.futures.Future()
            begun.append((tensor, self.future))

        def get_future(self):
            return self.future

    monkeypatch.setattr(sender, "Guard", LoneGuard)
    monkeypatch.setattr(sender.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(sender.dist, "all_reduce", lambda tensor, group, async_op: Work(tensor))
    one = sender.Sender(None, None, [], piece_bytes=16)
    return one, begun


@pytest.mark.parametrize(
    ("credit", "told"),
    [
        # What is under way when the more urgent transfers are ready is of the first; then by rank, in pieces' order.
        (1, [(7, 0), (9, 0), (8, 0), (8, 1), (7, 1), (7, 2)]),
        (2, [(7, 0), (7, 1), (9, 0), (8, 0), (8, 1), (7, 2)]),
    ],
)
def test_the_most_urgent_piece_goes_next_and_as_many_as_planned_are_under_way(lone_sender, credit, told):
    one, begun = lone_sender
    one._credit = credit
    one.submit(7, 2, torch.zeros(12))  # three pieces of 16 bytes
    one.submit(8, 1, torch.zeros(5))  # two
    one.submit(9, 0, torch.zeros(1))
    place = 0
    while place < len(begun):
        assert len(begun) - place == min(credit, 6 - place)
        begun[place][1].set_result(None)
        place += 1
    assert one.guard.sent == told
    assert sorted(tensor.numel() for tensor, _ in begun) == [1, 1, 4, 4, 4, 4]
    assert one.tally.pieces == 6
    assert one.tally.bytes == 18 * 4


def test_a_failed_sum_is_an_error_for_who_waits_and_for_who_submits(lone_sender, monkeypatch):
    one, begun = lone_sender
    monkeypatch.setattr(guard, "GRACE_S", 0.0)
    transfer = one.submit(1, 0, torch.zeros(2))
    begun[0][1].set_exception(RuntimeError("Connection closed by peer\nmore"))
    with pytest.raises(TrainingError, match=r"the sum of gradients failed: Connection closed by peer$"):
        one.wait(transfer)
    with pytest.raises(TrainingError, match="Connection closed"):
        one.submit(2, 0, torch.zeros(2))


# The control connection by itself


def connected(size):
    heard = [[] for _ in range(size)]
    shared, ready = [], threading.Event()

    def share(value):
        if value is not None:
            shared.append(value)
            ready.set()
        ready.wait(10)
        return shared[0]

    ends = [None] * size

    def make(rank):
        ends[rank] = control.Control(rank, size, share, lambda *message: heard[rank].append(message))
        ends[rank].start()

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "meeting_address", lambda: "127.0.0.1")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    return ends, heard


def comes_true(condition):
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def test_messages_reach_every_rank_in_their_order():
    ends, heard = connected(3)
    orders = [(control.SEND, key, key % 3) for key in range(500)]
    for order in orders:
        ends[0].send(*order)
    assert comes_true(lambda: all(len(of_rank) == len(orders) for of_rank in heard[1:]))
    assert heard[1] == heard[2] == orders
    for end in ends:
        end.close()
    assert not any(thread.name == "gradtide control" for thread in threading.enumerate())


def test_who_says_good_bye_has_left_and_who_does_not_is_lost():
    ends, heard = connected(3)
    ends[1].send(control.LEFT, 1, 7)
    ends[1].close()
    assert comes_true(lambda: (control.LEFT, 1, 7) in heard[0] and (control.LEFT, 1, 7) in heard[2])
    ends[2]._peers[0].shutdown(2)  # as the kernel does for a process that has died
    assert comes_true(lambda: (control.LOST, 2, 0) in heard[0])
    assert (control.LOST, 1, 0) not in heard[0]
    for end in (ends[0], ends[2]):
        end.close()


# A plan and a model


def test_a_plan_of_a_profile_fits_the_module_that_was_profiled():
    model = network()
    profile = gt.profile(model, torch.randn(8, 3, 8, 8), device="V100")
    link = {"cluster": {"link": {"rate": "10Mbps"}}}
    result = gt.plan(profile, cluster=link, workers=2, device="cpu", overhead="0us", smallest=0, worth=0.0, seeds=2)
    wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), result)
    assert wrapped.plan.buckets
    assert {name for group in groups_of(wrapped.plan, model) for name in group.names} == dict(
        model.named_parameters()
    ).keys()
    assert unwrap(wrapped) is model


def test_layers_are_modules_parameters_or_what_is_inside_them():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), nn.MultiheadAttention(4, 2))
    plan = read_plan(
        {
            "schema": "gradtide.plan/1",
            "level": "crossiter",
            "buckets": [
                {"layers": ["1.in_proj_weight"], "bytes": 4 * 48, "rank": 1},
                {"layers": ["1", "0.1"], "bytes": 4 * (12 + 16 + 4 + 12), "rank": 2},
                {"layers": ["0"], "bytes": 4 * 9, "rank": 0},
            ],
        }
    )
    assert [group.names for group in groups_of(plan, model)] == [
        ("1.in_proj_weight",),
        ("1.in_proj_bias", "1.out_proj.weight", "1.out_proj.bias", "0.1.weight", "0.1.bias"),
        ("0.0.weight", "0.0.bias"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["buckets"][0].update(layers=["7"]), "Sequential has no layer '7'"),
        (lambda plan: plan["buckets"].pop(), r"no layer of the plan has '0\.weight', '0\.bias' of Sequential"),
        (lambda plan: plan["buckets"][0].update(bytes=12), r"GT081.*bucket 0 has 12 B in the plan and 1320 B"),
        (
            lambda plan: plan.update(model="resnet50", buckets=[{"layers": ["fc"], "bytes": 1, "rank": 0}]),
            "no layer 'fc'; the plan is for resnet50",
        ),
    ],
)
def test_a_plan_of_another_model_is_refused(change, message):
    plan = plan_of(network(), "crossiter")
    change(plan)
    with pytest.raises(ScenarioError, match=message):
        wrap(network(), torch.optim.SGD(network().parameters(), lr=0.1), plan)


def test_shared_parameters_belong_to_the_first_layer_that_has_them():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    plan = {"schema": "gradtide.plan/1", "level": "buckets", "buckets": [{"layers": ["1"], "bytes": 64, "rank": 0}]}
    (group,) = groups_of(read_plan(plan), model)
    assert group.names == ("0.weight",)
