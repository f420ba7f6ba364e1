"""Parameter servers on gloo: weights against those of one process, the order of pulls, what is refused.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import ps

pytestmark = torch_ranks.MARKS

STEPS = 50


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def optimizer_of(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)


def batch(worker, number):
    generator = torch.Generator().manual_seed(100 * number + worker)
    return torch.randn(8, 12, generator=generator)


def train_alone(workers):
    """Train in one process on the batches of all workers, whose gradients are added in their order."""
    model = network()
    optimizer, schedule = optimizer_of(model)
    for number in range(STEPS):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for worker in range(workers):
            optimizer.zero_grad()
            model(batch(worker, number)).square().mean().backward()
            for total, parameter in zip(sums, model.parameters(), strict=True):
                total += parameter.grad
        for total, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = total / workers
        optimizer.step()
        schedule.step()
    return list(model.state_dict().values())


def train(rank, servers, order):
    model = network()
    optimizer, schedule = optimizer_of(model)
    wrapped = ps.wrap(model, optimizer, servers=servers, order=order, example=(torch.zeros(8, 12),))
    if wrapped.serves:
        wrapped.serve()
        return None
    for number in range(STEPS):
        optimizer.zero_grad()
        wrapped(batch(rank, number)).square().mean().backward()
        optimizer.step()
        schedule.step()
        if number == 20:
            model[0].weight.norm()  # whatever reads a weight waits for it
    ps.unwrap(wrapped)
    workers = dist.get_world_size() - servers
    equal = all(map(torch.equal, train_alone(workers), model.state_dict().values()))
    return equal, wrapped.pulls, wrapped.order


@pytest.mark.parametrize(
    ("workers", "servers"),
    [pytest.param(1, 1, marks=pytest.mark.full), (2, 1), pytest.param(2, 2, marks=pytest.mark.full)],
)
def test_after_50_steps_weights_are_those_of_one_process(tmp_path, workers, servers):
    values = torch_ranks.values(workers + servers, train, tmp_path, servers, "tic")
    assert values[workers:] == [None] * servers
    for equal, pulls, order in values[:workers]:
        assert equal
        assert pulls.count == (STEPS + 1) * len(order)
        assert pulls.out_of_order <= 0.005 * pulls.count  # the paper's share, section 5.1
        assert [name.partition(".")[0] for name in order] == ["0", "0", "1", "1", "3", "3", "5", "5"]


def test_without_an_order_pulls_come_as_they_were_asked_for(tmp_path):
    (equal, pulls, order), _ = torch_ranks.values(2, train, tmp_path, 1, "random")
    assert equal
    assert order == ()
    assert pulls.out_of_order > 0.3 * pulls.count


def with_buffers():
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def keep(rank):
    """Return the order, the tensors that unwrap leaves behind, and the parameters that outlive the model."""
    for _ in range(2):  # torch keeps some things of a first time
        with torch_ranks.no_garbage_collection():
            model = with_buffers()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            before = set(torch_ranks.live_tensors())
            wrapped = ps.wrap(model, optimizer, order="tic", example=(torch.zeros(8, 12),))
            if wrapped.serves:
                wrapped.serve()
            else:
                for number in range(3):
                    optimizer.zero_grad()
                    wrapped(batch(rank, number)).square().mean().backward()
                    optimizer.step()
            ps.unwrap(wrapped)
            optimizer.zero_grad()
            order, left = wrapped.order, len(torch_ranks.left_behind(before))
            seen = [weakref.ref(one) for one in model.parameters()]
            del model, optimizer, wrapped
            alive = sum(one() is not None for one in seen)
        dist.barrier()
    return order, left, alive


def test_a_model_with_batchnorm_is_served_in_tics_order_and_unwrap_keeps_no_tensor(tmp_path):
    for order, left, alive in torch_ranks.values(2, keep, tmp_path):
        assert [name.partition(".")[0] for name in order] == ["0", "0", "1", "1", "3", "3"]
        assert (left, alive) == (0, 0)


def test_a_counter_holds_what_is_asked_for_too_early():
    counter = ps.Counter([0, 2, 5, 7])
    assert [list(counter.request(number)) for number in (5, 7, 0, 2)] == [[], [], [0], [2, 5, 7]]


def clip(model, optimizer):
    model(batch(0, 0)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def accumulate(model, optimizer):
    for _ in range(2):
        model(batch(0, 0)).sum().backward()


def save_state(model, optimizer):
    optimizer.state_dict()


def skip_a_layer(model, optimizer):
    model.module[5](torch.zeros(2, 16)).sum().backward()
    optimizer.step()


REFUSED = {
    clip: "on its way to a server",
    accumulate: "on its way to a server",
    save_state: "is on the servers",
    skip_a_layer: "no gradient for",
}


def refuse_all(rank):
    said = {}
    for case in REFUSED:
        model = network()
        optimizer, _ = optimizer_of(model)
        wrapped = ps.wrap(model, optimizer, order="random")
        if wrapped.serves:
            wrapped.serve()
            continue
        try:
            case(wrapped, optimizer)
        except TrainingError as error:
            said[case.__name__] = str(error)
        finally:
            ps.unwrap(wrapped)
    return said


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return torch_ranks.values(2, refuse_all, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.__name__)
def test_what_servers_cannot_take_is_refused(refused, case):
    assert REFUSED[case] in refused[0][case.__name__]


def test_wrap_needs_a_worker_and_a_server():
    model = network()
    with pytest.raises(TrainingError, match="start more ranks"):
        ps.wrap(model, optimizer_of(model)[0])
