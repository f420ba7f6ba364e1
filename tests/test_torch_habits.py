"""Habits of real training loops: the weights are DDP's bit for bit, or the habit is refused with its reason.

Needs torch: `make test-torch` installs it. Two ranks train every case in turn, by DDP and then at each level.
"""

import contextlib
import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradtide as gt
import torch_ranks
from gradtide.errors import ScenarioError, TrainingError
from gradtide.torch import unwrap, wrap

functional = nn.functional
pytestmark = torch_ranks.MARKS

LEVELS = ("buckets", "priority", "crossiter")
STEPS = 6
plan_of = functools.partial(torch_ranks.plan_of, chunk=2048)


# Models


class Layers(nn.Module):
    """Three layers whose inputs are images of 3 x 8 x 8; what is unusual is done by subclasses."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(288, 32)
        self.third = nn.Linear(32, 10)

    def forward(self, x):
        x = self.norm(self.first(x)).relu().flatten(1)
        return self.third(self.second(x).relu())


class Transposed(Layers):
    """Parameters that are not contiguous, as in a tied decoder or after `to(memory_format=channels_last)`."""

    def __init__(self):
        super().__init__()
        self.third.weight = nn.Parameter(torch.randn(32, 10).mul(0.1).t())
        self.to(memory_format=torch.channels_last)


class EarlyLater(Layers):
    """From the third pass on, uses a bias long before its module is called; that saves nothing for backward."""

    def __init__(self):
        super().__init__()
        self.passes = 0

    def forward(self, x):
        self.passes += self.training
        if self.passes > 2:
            x = x + self.third.bias.sum()
        return super().forward(x)


class EarlyWords(nn.Module):
    """Looks words up in a matrix, later before its module's call."""

    def __init__(self):
        super().__init__()
        self.first, self.words, self.head = nn.Linear(192, 16), nn.Embedding(20, 16), nn.Linear(16, 10)
        self.passes = 0

    def forward(self, x):
        self.passes += self.training
        tokens = x[:, 0, 0].abs().mul(9).long().clamp(max=19)
        early = functional.embedding(tokens, self.words.weight).mean(1) if self.passes > 2 else 0
        return self.head(self.first(x.flatten(1)).relu() + self.words(tokens).mean(1) + early)


class Recurrent(nn.Module):
    """An LSTM, which uses all its parameters in one call."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


class Encoder(nn.Module):
    """Attention, layer norms and a parametrized layer."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 10))

    def forward(self, x):
        return self.head(self.encoder(x.flatten(1, 2)).mean(1))


class Checkpointed(Layers):
    """Computes a part of the forward pass again in the backward pass."""

    def forward(self, x):
        x = self.norm(self.first(x)).relu().flatten(1)
        return self.third(torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=False).relu())


class Compiled(Layers):
    """A block that torch.compile has joined."""

    def __init__(self):
        super().__init__()
        self.tail = torch.compile(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10)), backend="eager")

    def forward(self, x):
        return self.tail(super().forward(x))


class Scripted(Layers):
    """A block that TorchScript runs."""

    def __init__(self):
        super().__init__()
        self.tail = torch.jit.script(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10)))

    def forward(self, x):
        return self.tail(super().forward(x))


class Skipping(Layers):
    """Leaves a layer out in the first pass, and uses it in all others."""

    def __init__(self):
        super().__init__()
        self.more, self.passes = nn.Linear(32, 32), 0

    def forward(self, x):
        self.passes += self.training
        x = self.second(self.norm(self.first(x)).relu().flatten(1)).relu()
        return self.third(
            self.more(x) if self.passes > 1 else x + 0 * self.more.weight.sum() + 0 * self.more.bias.sum()
        )


class Looked(nn.Module):
    """A matrix with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16, sparse=True), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.words(x[:, 0, 0].abs().mul(9).long().clamp(max=19)).mean(1))


# Habits: what a loop does with the model and the optimizer


def plain(loop):
    for number in range(STEPS):
        loop.step(number)


def under_autocast(loop):
    for number in range(STEPS):
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loop.loss(number)
        loss.backward()
        loop.optimizer.step()


def clamps(loop):
    for number in range(STEPS):
        loop.step(number)
        for parameter in loop.bare.parameters():
            parameter.data.clamp_(-0.05, 0.05)


def clamps_without_data(loop):
    for number in range(STEPS):
        loop.step(number)
        with torch.no_grad():
            for parameter in loop.bare.parameters():
                parameter.mul_(0.9)


def averages(loop):
    """An exponential moving average of the weights, by hand, through the bare module."""
    shadow = {name: parameter.detach().clone() for name, parameter in loop.bare.named_parameters()}
    for number in range(STEPS):
        loop.step(number)
        for name, parameter in loop.bare.named_parameters():
            shadow[name].lerp_(parameter.detach(), 0.3)
    loop.said += shadow.values()


def averages_by_class(loop):
    average = torch.optim.swa_utils.AveragedModel(loop.copy)
    for number in range(STEPS):
        loop.step(number)
        average.update_parameters(loop.bare)
    loop.said += average.parameters()


def holds_a_state_dict(loop):
    held = loop.bare.state_dict()
    for number in range(STEPS):
        loop.step(number)
        loop.said += [value.clone() for value in held.values()]


def logs_norms(loop):
    for number in range(STEPS):
        loop.step(number)
        loop.said += torch._foreach_norm(list(loop.bare.parameters()))


def generates(loop):
    for number in range(STEPS):
        loop.step(number)
        with torch.inference_mode():
            loop.said.append(loop.bare(loop.batches[number][0]).clone())


def saves_and_loads(loop):
    for number in range(STEPS):
        loop.step(number)
        state = copy.deepcopy(loop.bare.state_dict()), copy.deepcopy(loop.optimizer.state_dict())
        loop.bare.load_state_dict({name: value * 0.5 for name, value in state[0].items()})
        loop.optimizer.load_state_dict(state[1])


def unwraps_before_the_step(loop):
    loop.step(0)
    loop.optimizer.zero_grad()
    loop.loss(1).backward()
    loop.unwrap()
    loop.optimizer.step()


def in_default_device(loop):
    for number in range(STEPS):
        loop.optimizer.zero_grad()
        with torch.device("meta"):
            loss = loop.loss(number)
        loss.backward()
        loop.optimizer.step()


def copies(loop):
    for number in range(STEPS):
        loop.step(number)
        loop.said += [copy.deepcopy(parameter).data for parameter in loop.bare.parameters()]


def two_optimizers(loop):
    other = torch.optim.SGD(list(loop.bare.parameters())[:1], lr=0.01)
    for number in range(STEPS):
        loop.step(number)
        for parameter in loop.bare.parameters():
            parameter.grad = torch.ones_like(parameter)
        other.step()


def clips(loop):
    for number in range(STEPS):
        loop.optimizer.zero_grad()
        loop.loss(number).backward()
        nn.utils.clip_grad_norm_(loop.bare.parameters(), 0.1)
        loop.optimizer.step()


def reads_in_another_thread(loop):
    import threading

    for number in range(STEPS):
        loop.step(number)
        seen = []
        thread = threading.Thread(target=lambda seen=seen: seen.extend(p.norm() for p in loop.bare.parameters()))
        thread.start()
        thread.join()
        loop.said += seen


def compiles_in_place(loop):
    loop.model.compile(backend="eager")
    plain(loop)


def compiles_a_block_late(loop):
    loop.step(0)
    loop.bare.third.compile(backend="eager")
    plain(loop)


# Cases: a model, an optimizer, a habit

sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
adam = functools.partial(torch.optim.Adam, lr=1e-2)
CASES = {
    "plain": (Layers, sgd, plain),
    "transposed, fused": (Transposed, functools.partial(torch.optim.AdamW, lr=1e-2, fused=True), plain),
    "transposed, sgd fused": (Transposed, functools.partial(sgd, fused=True), plain),
    "a bias used earlier than at first": (EarlyLater, sgd, plain),
    "words looked up earlier than at first": (EarlyWords, sgd, plain),
    "lstm": (Recurrent, adam, plain),
    "encoder": (Encoder, adam, plain),
    "encoder, generates": (Encoder, adam, generates),
    "checkpoint": (Checkpointed, sgd, plain),
    "compiled block": (Compiled, adam, plain),
    "compiled block, generates": (Compiled, adam, generates),
    "scripted block": (Scripted, adam, plain),
    "a layer that is called from the second pass on": (Skipping, adam, plain),
    "sparse": (Looked, functools.partial(torch.optim.SGD, lr=0.1), plain),
    "autocast, adafactor": (Layers, functools.partial(torch.optim.Adafactor, lr=1e-2), under_autocast),
    **{
        f"{habit.__name__.replace('_', ' ')}": (Layers, adam, habit)
        for habit in (
            clamps,
            clamps_without_data,
            averages,
            averages_by_class,
            holds_a_state_dict,
            logs_norms,
            generates,
            saves_and_loads,
            unwraps_before_the_step,
            in_default_device,
            copies,
            two_optimizers,
            clips,
            reads_in_another_thread,
            compiles_in_place,
            compiles_a_block_late,
        )
    },
}
SMALL = ("plain", "transposed, fused", "encoder", "sparse", "averages", "saves and loads", "clips")
REFUSED = {
    ("clips", "crossiter"): "on its way and cannot be read",
    ("sparse", "crossiter"): "is sparse",
    ("compiles in place", "crossiter"): "which torch.compile joins",
}


class Loop:
    """A model that is trained by DDP or at a level, with the parts that habits use."""

    def __init__(self, rank, case, level):
        make, optimize, self.habit = CASES[case]
        torch.manual_seed(0)
        self.bare = make()
        self.copy = copy.deepcopy(self.bare)
        self.optimizer = optimize(self.bare.parameters())
        if level == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.bare)
        else:
            self.model = wrap(self.bare, self.optimizer, plan_of(self.bare, level))
        generator = torch.Generator().manual_seed(1000 + rank)
        self.batches = [
            (torch.randn(4, 3, 8, 8, generator=generator), torch.randint(10, (4,), generator=generator))
            for _ in range(STEPS)
        ]
        self.said = []
        self.level = level

    def loss(self, number):
        inputs, labels = self.batches[number]
        return functional.cross_entropy(self.model(inputs), labels)

    def step(self, number):
        self.optimizer.zero_grad()
        self.loss(number).backward()
        self.optimizer.step()

    def unwrap(self):
        if self.level != "ddp":
            unwrap(self.model)
        self.model = self.bare

    def result(self):
        """Train, and return weights, buffers, the optimizer's state and what the habit has seen."""
        try:
            self.habit(self)
            if self.model is not self.bare:
                self.unwrap()
        except BaseException:
            with contextlib.suppress(TrainingError):
                self.unwrap()
            raise
        states = sorted(self.optimizer.state_dict()["state"].items())
        state = [torch.as_tensor(value) for _, one in states for value in one.values() if value is not None]
        return [one.detach().clone() for one in (*self.bare.state_dict().values(), *state, *self.said)]


def compare(rank, cases):
    found = {}
    for case in cases:
        expected = Loop(rank, case, "ddp").result()
        for level in LEVELS:
            try:
                others = Loop(rank, case, level).result()
            except TrainingError as error:
                found[case, level] = f"refused: {error}"
                continue
            same = len(expected) == len(others) and all(map(torch.equal, expected, others))
            found[case, level] = "equal" if same else "differs"
    return found


@pytest.fixture(scope="module")
def compared(request, tmp_path_factory):
    cases = torch_ranks.wanted(request, "case")
    return torch_ranks.values(2, compare, tmp_path_factory.mktemp("ranks"), cases, start="spawn")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "case", [case if case in SMALL else pytest.param(case, marks=pytest.mark.full) for case in CASES]
)
def test_weights_are_ddps_bit_for_bit_or_the_habit_is_refused(compared, case, level):
    reason = REFUSED.get((case, level))
    for value in compared:
        if reason is None:
            assert value[case, level] == "equal"
        else:
            assert value[case, level].startswith("refused: ")
            assert reason in value[case, level]


def train_module(model, rank, level, optimizer, plan, **options):
    """Train for a few steps, by DDP or at a level; return the weights and buffers."""
    optimizer = optimizer(model.parameters())
    if level == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model, **options)
    else:
        wrapped = wrap(model, optimizer, plan, **options)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        wrapped(torch.randn(4, 3, 8, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    if level != "ddp":
        unwrap(wrapped)
    return [value.clone() for value in model.state_dict().values()]


def train_on_mesh(rank, level):
    """Train on the second dimension of a mesh of 2 x 2 ranks: a group of two."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))["dp"]
    torch.manual_seed(rank // 2)
    model = Layers()
    return train_module(model, rank, level, adam, plan_of(model, level), device_mesh=mesh)


def test_a_dimension_of_a_device_mesh_is_the_group_that_is_summed_over(tmp_path):
    equal = torch_ranks.values(4, torch_ranks.levels_equal_to_ddp, tmp_path, train_on_mesh, LEVELS[:2])
    assert equal == [dict.fromkeys(LEVELS[:2], True)] * 4


class Unused(Layers):
    """A layer and a parameter that get no gradient, so that a profile gives no plan for them."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 3)
        self.third.extra = nn.Parameter(torch.ones(5))


def train_unused(rank, level):
    torch.manual_seed(0)
    model = Unused()
    profile = gt.profile(model, torch.randn(4, 3, 8, 8), device="V100")
    plan = plan_of(Layers(), level)
    assert [(row["layers"], row["bytes"]) for row in plan["buckets"][::-1]] == [
        ([layer.name], layer.parameter_bytes) for layer in profile.layers
    ]
    return train_module(model, rank, level, sgd, plan, find_unused_parameters=True)


def test_the_plan_of_a_profile_is_taken_for_a_model_with_unused_parameters(tmp_path):
    equal = torch_ranks.values(2, torch_ranks.levels_equal_to_ddp, tmp_path, train_unused, LEVELS[:2])
    assert equal == [dict.fromkeys(LEVELS[:2], True)] * 2


def test_a_plan_for_fewer_parameters_is_refused_unless_they_are_said_to_be_unused():
    model = Unused()
    with pytest.raises(ScenarioError, match="find_unused_parameters=True"):
        wrap(model, sgd(model.parameters()), plan_of(Layers(), "priority"))
    wrap(model, sgd(model.parameters()), plan_of(Layers(), "priority"), find_unused_parameters=True)
