"""Measures the times of each layer on the model's device by marks, i.e. timestamps at calls of layers and at gradients.

The forward time of a layer is from its first call to that of the next layer. Its backward time is from the gradient of
the following layer to its own gradient, which can then be sent. Therefore the layers' times sum to the time of the
pass. All these times are from one run, the fastest of several after a warm-up. TicTac (MLSys 2019) instead takes the
minimum of five runs for each op; on a shared machine, the sum of these minima can be far below the time of every run.

Marks cannot separate layers that begin in one module call, e.g. if a module uses the parameters of its children itself.
Such layers share the time of the call in proportion to their FLOPs.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gradtide.errors import ProfileError
from gradtide.profiling.target import words_of
from gradtide.profiling.walk import Call, Counted, is_out_of_memory, loss_of, training_mode
from gradtide.roofline import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import torch

WARM_UP_RUNS = 3


class Clock:
    """Clock of the host, for models on the CPU, where ops are synchronous."""

    def mark(self) -> Any:
        """Return a timestamp without synchronising with the device."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two timestamps in seconds. Call `wait` first."""
        return float(end - start)

    def wait(self) -> None:
        """Wait until all submitted ops have completed."""


class CudaClock(Clock):
    """Clock of CUDA events: the device takes a timestamp when the current stream reaches the event."""

    def mark(self) -> Any:  # noqa: D102 - as Clock
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:  # noqa: D102
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:  # noqa: D102
        import torch

        torch.cuda.synchronize()


def clock_of(model: "torch.nn.Module") -> Clock:
    """Return the clock for the model's device; raises `ProfileError` for several or unsupported devices."""
    kinds = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(kinds) > 1:
        raise ProfileError(f"the model is spread over {', '.join(kinds)}; measure it on one device")
    if kinds[0] == "cpu":
        return Clock()
    if kinds[0].startswith("cuda"):
        return CudaClock()
    raise ProfileError(f"a model on {kinds[0]} cannot be measured: move it to the cpu or to cuda, or name a device")


def refuse_compiled(model: "torch.nn.Module") -> None:
    """Raise `ProfileError` if a module was compiled by `torch.compile`, because compiled layers may be fused."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            which = f"module {name!r}" if name else f"the {type(model).__name__}"
            raise ProfileError(f"{which} is compiled, and so has no layers to measure: profile it before torch.compile")


class Measured(NamedTuple):
    """Times of the layers in the fastest run with marks, and of the fastest forward and backward without marks."""

    forward_ps: list[int]
    backward_ps: list[int]
    step_ps: int


def measure(
    model: "torch.nn.Module",
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    layers: Sequence[Counted],
    *,
    runs: int,
    clock: Clock,
) -> Measured:
    """Time each layer's forward and backward on the model's device, in the fastest of `runs` runs.

    Each run is executed once without marks and once with marks. `layers` is from `count`. The model is restored.
    """
    marked: list[tuple[list[int], list[int]]] = []
    steps_ps = []
    groups = timed_groups(layers)
    begins = {group[0].call for group in groups}
    with _restored(model):
        try:
            for _ in range(WARM_UP_RUNS):
                _step(model, args, kwargs, clock)
            for _ in range(runs):
                start, _, end = _step(model, args, kwargs, clock)
                steps_ps.append(round(clock.seconds(start, end) * PICOSECONDS_PER_SECOND))
                with _marks(model, begins, clock) as (calls, gradients):
                    instants = _step(model, args, kwargs, clock)
                forward_ps = _forward_ps(groups, calls, instants, clock)
                marked.append((forward_ps, _backward_ps(layers, gradients, instants, clock)))
        except Exception as error:
            if is_out_of_memory(error):
                raise ProfileError(f"the model does not fit in memory here: {words_of(error)}") from error
            raise
    quickest = min(marked, key=lambda times: sum(times[0]) + sum(times[1]))
    return Measured(*quickest, max(1, min(steps_ps)))


def measure_updates(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    layers: Sequence[Counted],
    *,
    runs: int,
    clock: Clock,
) -> list[int]:
    """Time the optimizer's step on a copy of the model; divide its minimum among the layers by gradient bytes."""
    try:
        model, optimizer = copy.deepcopy((model, optimizer))
        times = []
        with _restored(model):
            for _ in range(WARM_UP_RUNS + runs):
                _step(model, args, kwargs, clock)
                start = clock.mark()
                optimizer.step()
                end = clock.mark()
                clock.wait()
                times.append(clock.seconds(start, end))
    except Exception as error:
        raise ProfileError(f"the optimizer's step cannot be timed on a copy: {words_of(error)}") from error
    step_ps = round(min(times[WARM_UP_RUNS:]) * PICOSECONDS_PER_SECOND)
    return _shares(step_ps, [layer.gradient_bytes for layer in layers])


def timed_groups(layers: Sequence[Counted]) -> list[list[Counted]]:
    """Group consecutive layers that marks cannot separate. Each group begins in a later call than the previous one."""
    groups: list[list[Counted]] = []
    latest = -1
    for layer in layers:
        if not groups or layer.call_index > latest:
            groups.append([])
            latest = layer.call_index
        groups[-1].append(layer)
    return groups


def _step(
    model: "torch.nn.Module", args: Sequence[Any], kwargs: Mapping[str, Any], clock: Clock
) -> tuple[Any, Any, Any]:
    """Run forward and backward once; return timestamps of the start, the loss and the end."""
    for parameter in model.parameters():
        parameter.grad = None
    clock.wait()
    start = clock.mark()
    loss = loss_of(model(*args, **kwargs))
    middle = clock.mark()
    assert loss is not None, "count has seen a loss"
    loss.backward()
    end = clock.mark()
    clock.wait()
    return start, middle, end


@contextmanager
def _marks(
    model: "torch.nn.Module", begins: Set[Call], clock: Clock
) -> Iterator[tuple[dict[Call, Any], dict[str, Any]]]:
    """Record the timestamps of the calls in `begins` and of all gradients during the block."""
    calls: dict[Call, Any] = {}
    gradients: dict[str, Any] = {}
    counts: dict[str, int] = {}
    wanted = {name for name, _ in begins}

    def on_call(name: str, *_: Any) -> None:
        call = (name, counts.get(name, 0))
        counts[name] = call[1] + 1
        if call in begins:
            calls[call] = clock.mark()

    def on_gradient(name: str, *_: Any) -> None:
        gradients[name] = clock.mark()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name in wanted:
                hooks.enter_context(module.register_forward_pre_hook(partial(on_call, name)))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.enter_context(parameter.register_post_accumulate_grad_hook(partial(on_gradient, name)))
        yield calls, gradients


def _forward_ps(
    groups: Sequence[Sequence[Counted]], calls: Mapping[Call, Any], instants: tuple[Any, Any, Any], clock: Clock
) -> list[int]:
    start, middle, _ = instants
    if list(calls) != [group[0].call for group in groups if group[0].call in calls] or len(calls) < len(groups):
        missing = next((group[0] for group in groups if group[0].call not in calls), None)
        what = "layers were called in another order" if missing is None else f"layer {missing.name!r} was not called"
        raise ProfileError(
            f"{what} in a later pass than in the first, so their times cannot be separated: profile the model without "
            "layers that are left out or changed at random"
        )
    bounds = [start, *(calls[group[0].call] for group in groups[1:]), middle]
    times = []
    for group, since, until in zip(groups, bounds[:-1], bounds[1:], strict=True):
        span_ps = round(clock.seconds(since, until) * PICOSECONDS_PER_SECOND)
        times += _shares(span_ps, [layer.forward_flops for layer in group])
    return times


def _backward_ps(
    layers: Sequence[Counted], gradients: Mapping[str, Any], instants: tuple[Any, Any, Any], clock: Clock
) -> list[int]:
    _, middle, end = instants
    times = [0] * len(layers)
    done_s, last = 0.0, 0
    for index in reversed(range(len(layers))):
        ready = [gradients[name] for name in layers[index].parameters if name in gradients]
        ready_s = max((clock.seconds(middle, mark) for mark in ready), default=done_s)
        if ready_s > done_s:
            times[index] = round((ready_s - done_s) * PICOSECONDS_PER_SECOND)
            done_s, last = ready_s, index
    # Time after the last gradient is attributed to the layer of this gradient.
    times[last] += max(0, round((clock.seconds(middle, end) - done_s) * PICOSECONDS_PER_SECOND))
    return times


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split an integer into parts in proportion to weights, or evenly if all are 0. The parts sum to `total`."""
    weights = weights if any(weights) else [1] * len(weights)
    shares = [total * weight // sum(weights) for weight in weights]
    shares[-1] += total - sum(shares)
    return shares


@contextmanager
def _restored(model: "torch.nn.Module") -> Iterator[None]:
    """Set training mode during the block; restore mode, gradients, buffers and random state afterwards."""
    import torch

    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(), training_mode(model):
        try:
            yield
        finally:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
