"""Sums on a GPU, as far as a machine without one can show: the calls to its streams, which stand-ins keep.

Needs torch: `make test-torch` installs it. `make validate-gpu` runs the same on a GPU.
"""

import contextlib
import functools
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import sender, streams, unwrap, wrap, wrapped
from test_torch_sender import LoneGuard
from torch_ranks import plan_of
from torch_training import batches, cross_entropy, network, said_by

pytestmark = torch_ranks.MARKS

CPU = torch.device("cpu")


class Cuda:
    """What gradtide uses of torch.cuda: it keeps every call, and refuses to wait for an event that is not recorded."""

    def __init__(self):
        self.log, self._names, self._here = [], itertools.count(), threading.local()
        self.is_capturing = False
        cuda = self

        class Stream:
            def __init__(self, device, name="sums"):
                self.name = name

            def wait_event(self, event):
                assert event.stream is not None, "nobody waits for an event that is not recorded"
                cuda.log.append(("wait", self.name, event.name))

        class Event:
            def __init__(self):
                self.name, self.stream = next(cuda._names), None

            def record(self, stream):
                assert self.stream is None
                self.stream = stream.name
                cuda.log.append(("record", stream.name, self.name))

            def synchronize(self):
                assert self.stream is not None

        self.Stream, self.Event = Stream, Event
        self._compute = Stream(None, "compute")

    def current_stream(self, device=None):
        return getattr(self._here, "stream", self._compute)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def is_current_stream_capturing(self):
        return self.is_capturing


class OnCpu(streams.CudaStreams):
    """The streams of a GPU with tensors of the CPU, whose futures know no device."""

    future = streams.Streams.future


@pytest.fixture
def lone(monkeypatch):
    """A sender on a stand-in for a GPU: (sender, the stand-in, what the backend has been given)."""
    cuda, begun = Cuda(), []

    class Work:
        def __init__(self, tensor):
            self.future = torch.futures.Future()
            begun.append(self.future)
            cuda.log.append(("sum", cuda.current_stream().name, tensor.numel()))

        def get_future(self):
            return self.future

        def wait(self):
            cuda.log.append(("backend", cuda.current_stream().name))

    monkeypatch.setattr(sender, "Guard", LoneGuard)
    monkeypatch.setattr(sender.dist, "get_rank", lambda group: 1)
    monkeypatch.setattr(sender.dist, "all_reduce", lambda tensor, group, async_op: Work(tensor))
    make = functools.partial(sender.Sender, None, None, [], streams=OnCpu(CPU, cuda))
    return make, cuda, begun


def test_a_sum_begins_behind_what_fills_it_and_computing_goes_on_behind_the_sum(lone):
    make, cuda, begun = lone
    one = make(piece_bytes=None, is_fixed=True, depth=2)
    handed = []

    def hand_over():
        with one.streams.handing_over():
            handed.append(cuda.current_stream())

    transfer = one.submit(0, 0, torch.zeros(6), [one.streams.ready()], hand_over)
    assert cuda.log == [("record", "compute", 0), ("wait", "sums", 0), ("sum", "sums", 3), ("sum", "sums", 3)]
    for future in begun:
        assert handed == []
        future.set_result(None)
    one.wait(transfer)
    assert cuda.log[4:] == [("backend", "sums"), ("backend", "sums"), ("record", "sums", 1), ("wait", "compute", 1)]
    assert [stream.name for stream in handed] == ["sums"]


def test_the_cpu_waits_until_there_is_a_mark_to_wait_for(lone):
    make, cuda, begun = lone
    one = make(piece_bytes=8, is_fixed=True)
    transfer = one.submit(0, 0, torch.zeros(4), [one.streams.ready()])
    begun[0].set_result(None)
    waiting = threading.Thread(target=one.wait, args=(transfer,))
    waiting.start()
    assert ("wait", "compute", 1) not in cuda.log  # of the first piece; the second has none
    begun[1].set_result(None)
    waiting.join(60)
    assert cuda.log[-2:] == [("wait", "compute", 1), ("wait", "compute", 2)]


def test_where_the_order_is_fixed_every_rank_begins_by_itself_what_it_hands_over(lone):
    make, _, begun = lone
    one = make(piece_bytes=8, is_fixed=True)
    one.submit(0, 1, torch.zeros(20))
    one.submit(1, 0, torch.zeros(2))
    assert len(begun) == 11  # all at once, in submission order
    assert one.guard.sent == []


def test_a_captured_graph_is_refused(lone):
    make, cuda, _ = lone
    cuda.is_capturing = True
    with pytest.raises(TrainingError, match="CUDA graph"):
        make(piece_bytes=None).streams.ready()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(rank, level, cuda, *, is_fixed=False, released=False):
    model = network()
    optimizer = sgd(model)
    if level == "ddp":
        model_of = nn.parallel.DistributedDataParallel(model)
    else:
        plan = plan_of(model, level, chunk=4096, order="caramel" if released else "priority")
        if released:
            plan["buckets"][1]["release"] = {"pass": "forward", "layer": "1"}
        with pytest.MonkeyPatch.context() as patch:
            if cuda is not None:
                patch.setattr(wrapped, "streams_of", lambda device: OnCpu(device, cuda))
            if is_fixed:
                patch.setattr(wrapped, "Sender", fixed_sender)
            model_of = wrap(model, optimizer, plan)
    for inputs, labels in batches(rank, 5):
        optimizer.zero_grad()
        cross_entropy(model_of(inputs), labels).backward()
        optimizer.step()
    if is_fixed and released:
        said = said_by(lambda: model[4].weight.norm())
        assert "call flush() of the model on every rank" in said, said
        model_of.flush()
        model[4].weight.norm()
    if level != "ddp":
        unwrap(model_of)
    return list(model.state_dict().values())


def fixed_sender(*arguments, **options):
    """Return a sender as for NCCL, on gloo."""
    return sender.Sender(*arguments, **{**options, "is_fixed": True})


def compare(rank):
    expected = train(rank, "ddp", None)
    found, logs = {}, {}
    for level, is_fixed, released in (
        ("priority", False, False),
        ("crossiter", False, False),
        ("crossiter", True, False),
        ("crossiter", True, True),
    ):
        cuda = Cuda()
        weights = train(rank, level, cuda, is_fixed=is_fixed, released=released)
        found[level, is_fixed, released] = all(map(torch.equal, expected, weights))
        logs[level, is_fixed, released] = cuda.log
    return found, logs


def test_training_by_streams_has_ddps_weights_and_waits_for_recorded_events_alone(tmp_path):
    for value in torch_ranks.values(2, compare, tmp_path):
        found, logs = value
        assert set(found.values()) == {True}
        for (level, *_), log in logs.items():
            recorded = {event: stream for kind, stream, event in log if kind == "record"}
            waits = [(stream, recorded[event]) for kind, stream, event in log if kind == "wait"]
            # A sum waits for computing, computing for a sum, and neither for itself. DDP's own futures wait for it.
            expected = {("sums", "compute")} | ({("compute", "sums")} if level == "crossiter" else set())
            assert set(waits) == expected


def test_a_gpu_is_refused_or_said_to_be_untested_and_the_flag_means_nothing_elsewhere(monkeypatch):
    model = network()
    for level in ("none", "crossiter"):
        with pytest.raises(TrainingError, match=f"has no effect at level {level} on cpu: leave it out"):
            wrapped._refuse_devices(model, level, True)
    monkeypatch.setattr(nn.Module, "parameters", lambda self: iter([torch.nn.Parameter(torch.empty(1)).to("meta")]))
    with pytest.raises(TrainingError, match="cannot be carried out on meta"):
        wrapped._refuse_devices(model, "priority", False)


GPU = Path(__file__).resolve().parent.parent / "validation" / "gpu" / "train.py"


def validate_gpu(*arguments):
    return subprocess.run([sys.executable, str(GPU), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_validate_gpu_says_that_there_is_no_gpu():
    done = validate_gpu()
    assert done.returncode == 1
    assert done.stderr.startswith("validate-gpu: PyTorch sees no GPU here; --device cpu runs all but")


@pytest.mark.full
def test_validate_gpu_passes_on_the_cpu():
    done = validate_gpu("--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
