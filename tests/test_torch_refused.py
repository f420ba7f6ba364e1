"""What wrap refuses: training loops and models that a level cannot serve, and gradients that are dropped.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import contextlib
import functools

import pytest
import torch
from torch import nn

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import unwrap, wrap
from torch_ranks import plan_of
from torch_training import DistributedDataParallel, batches, cross_entropy, final_weights, network, said_by

pytestmark = torch_ranks.MARKS


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
    return final_weights(wrapped, level)


def compare_dropped(rank):
    return all(map(torch.equal, drop_some(rank, "ddp"), drop_some(rank, "crossiter")))


def test_gradients_that_are_dropped_are_not_applied(tmp_path):
    for value in torch_ranks.values(2, compare_dropped, tmp_path):
        assert value is True
