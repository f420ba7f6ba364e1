"""Measured profiles: times by a clock of the test's own, and of the optimizer's step.

Needs torch: `make test-torch` installs it.
"""

import copy

import pytest
import torch
from torch import nn

import gradtide as gt
import torch_models
from gradtide.profiling.measure import Clock, clock_of, measure
from gradtide.profiling.walk import count
from torch_models import small_cnn

pytestmark = torch_models.MARKS


class Ticks:
    """A clock that stands still but for what the modules add to it, in seconds."""

    def __init__(self):
        self.now = 0.0

    def mark(self):
        return self.now

    def seconds(self, start, end):
        return end - start

    def wait(self):
        pass


def timed_layer(clock, forward_s, backward_s):
    class Spend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            clock.now += forward_s
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            clock.now += backward_s
            return gradient

    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return Spend.apply(x * self.weight)

    return Timed()


def test_each_layer_gets_the_time_that_passes_in_it():
    clock = Ticks()
    spent = [(0.001, 0.002), (0.004, 0.008), (0.016, 0.032)]
    model = nn.Sequential(*(timed_layer(clock, *times) for times in spent))
    x = torch.ones(2)
    layers = count(model, (x,), {}, fake=False).layers
    found = measure(model, (x,), {}, layers, runs=3, clock=clock)
    assert [ps / 1e12 for ps in found.forward_ps] == pytest.approx([f for f, _ in spent])
    assert [ps / 1e12 for ps in found.backward_ps] == pytest.approx([b for _, b in spent])
    assert found.step_ps == pytest.approx(sum(found.forward_ps) + sum(found.backward_ps))


def test_the_quickest_run_is_taken():
    clock = Ticks()

    class Slower(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(1)), 0

        def forward(self, x):
            self.calls += 1
            clock.now += 1.0 if self.calls != 9 else 0.25  # three to warm up, then with and without marks by turns
            return x * self.weight

    model, x = Slower(), torch.ones(1)
    layers = count(model, (x,), {}, fake=True).layers
    model.calls = 0
    found = measure(model, (x,), {}, layers, runs=4, clock=clock)
    assert sum(found.forward_ps) == 250_000_000_000
    assert found.step_ps == 10**12


class Recorded(Clock):
    """The host's clock, which keeps what it was asked for."""

    def __init__(self):
        self.spans = []

    def seconds(self, start, end):
        self.spans.append(end - start)
        return end - start


def small_transformer():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2), torch.randn(4, 16, 64)


@pytest.mark.parametrize("make", [small_cnn, small_transformer])
def test_measured_layers_tile_the_marked_pass_without_a_gap(make):
    model, x = make()
    layers = count(model, (x,), {}, fake=False).layers
    clock = Recorded()
    found = measure(model, (x,), {}, layers, runs=1, clock=clock)
    # First the unmarked step, then every forward span from start to loss; backward's whole length is asked for last.
    forward_s = sum(clock.spans[1 : 1 + len({layer.call_index for layer in layers})])
    assert sum(found.forward_ps) == pytest.approx(forward_s * 1e12, abs=len(layers))
    assert sum(found.backward_ps) == pytest.approx(clock.spans[-1] * 1e12, abs=len(layers))
    assert found.step_ps == round(clock.spans[0] * 1e12)
    assert min(found.forward_ps) > 0


def test_a_measured_profile_says_where_and_what_it_explains():
    model, x = small_cnn()
    found = gt.profile(model, x, device="measure", runs=2)
    assert found.device == "cpu, 1 threads"
    assert found.explained == pytest.approx((found.forward_time + found.backward_time) / (found.step_ps / 1e12))
    assert found.to_dict()["profile"]["method"] == "measured"
    assert [layer.name for layer in found.layers] == [layer.name for layer in gt.profile(model, x).layers]


def test_the_optimizers_step_is_timed_on_a_copy_and_divided_by_bytes():
    model, x = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = copy.deepcopy(model.state_dict())
    found = gt.profile(model, x, device="measure", runs=2, optimizer=optimizer)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
    whole = sum(layer.update_ps for layer in found.layers)
    assert whole > 0
    for layer in found.layers:  # rounded down, and what is left in the last
        share = whole * layer.parameter_bytes / found.parameter_bytes
        assert layer.update_ps == pytest.approx(share, abs=len(found.layers))
    rows = found.to_dict()["layers"]
    assert [row["update_us"] for row in rows] == [layer.update_ps / 1e6 for layer in found.layers]


def test_an_optimizer_is_timed_where_it_runs_or_refused():
    model, x = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(gt.ProfileError, match="an optimizer is timed where it runs"):
        gt.profile(model, x, optimizer=optimizer)

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no step today")

    with pytest.raises(gt.ProfileError, match=r"cannot be timed on a copy: .*no step today"):
        gt.profile(model, x, device="measure", optimizer=Broken(model.parameters(), lr=0.1))


def test_a_model_on_no_device_that_has_a_clock_is_refused():
    with pytest.raises(gt.ProfileError, match="on meta cannot be measured"):
        clock_of(nn.Linear(2, 2, device="meta"))
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(gt.ProfileError, match="spread over cpu, meta"):
        gt.profile(spread, torch.zeros(1, 2), device="measure")
