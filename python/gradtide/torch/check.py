"""Times iterations of the user's training and compares them with the plan's prediction."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TextIO

from gradtide.errors import TrainingError
from gradtide.torch.sharded import Sharded, sharded_of
from gradtide.torch.wrapped import Wrapped, is_compiled

TOLERANCE = 0.15
"""Relative difference up to which measured and predicted iteration times agree. The limit is lower, half of the
predicted saving, if the plan saves less than twice this share."""


@dataclass(frozen=True)
class Verification:
    """Measured and predicted iteration times, in seconds.

    Attributes:
        level: the applied level, as in `Wrapped.level`, or `fsdp`.
        measured: median iteration time.
        spread: half the interquartile range of the iteration time.
        waited: time per iteration in which training waited for gradients; `None` except at level crossiter, because
            otherwise the wait is inside PyTorch.
        rate: gradient bytes per second during which gradients were being sent; `None` if this time was not measured.
        predicted: iteration time predicted by the plan; `None` if the plan has none.
        reason: a sentence on the cause of the difference between `measured` and `predicted`, or that they agree.
        missed: a sentence on the part of the plan that was not carried out; empty if all of it was.
    """

    level: str
    measured: float
    spread: float
    waited: float | None
    rate: float | None
    predicted: float | None
    reason: str
    missed: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured divided by predicted iteration time."""
        return None if self.predicted is None else self.measured / self.predicted

    def __str__(self) -> str:
        rows = [("level", self.level), ("measured", f"{1e3 * self.measured:.4g} ms ± {1e3 * self.spread:.2g}")]
        if self.waited is not None:
            rows.append(("  waits for gradients", f"{1e3 * self.waited:.4g} ms"))
        if self.rate is not None:
            rows.append(("  gradients sent at", f"{8e-6 * self.rate:.4g} Mbit/s"))
        if self.ratio is not None and self.predicted is not None:
            rows.append(("predicted", f"{1e3 * self.predicted:.4g} ms"))
            rows.append(("measured / predicted", f"{self.ratio:.3f}"))
        return "\n".join([*(f"{name:<22}{value}" for name, value in rows), "", f"{self.reason} {self.missed}".rstrip()])


def verify(
    model: Any,
    step: Callable[[], Any],
    *,
    steps: int = 20,
    warm_up: int = 3,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Verification:
    """Run some iterations, and compare their time with the plan's prediction. Every rank must call this.

    Args:
        model: return value of `wrap`.
        step: one iteration of the user's training loop, from zero_grad to the optimizer's step.
        steps: number of measured iterations, each timed from its start to the start of the next.
        warm_up: number of iterations before the measurement.
        file: where the result is printed. Default: standard output on the first rank, nowhere on the others.
        clock: returns the time in seconds.

    Raises:
        TrainingError: if training fails, `steps` is below 2, or the plan was not carried out (the result is printed
            first).
    """
    import torch.distributed as dist

    applied = model if isinstance(model, Wrapped) else sharded_of(model)
    if applied is None:
        raise TrainingError(f"verify takes what wrap has returned, not a {type(model).__name__}")
    if steps < 2:
        raise TrainingError(f"verify needs at least 2 steps, got {steps}")
    for _ in range(warm_up):
        step()
    if isinstance(applied, Sharded):
        applied.close()
        applied.fault = ""
    before, sent, instants = _counts(applied), _sent(applied), [clock()]
    for _ in range(steps):
        step()
        instants.append(clock())
    waited, busy, moved, flushes = (now - then for now, then in zip(_counts(applied), before, strict=True))
    times = [end - start for start, end in itertools.pairwise(instants)]
    quartiles = statistics.quantiles(times, n=4)
    said = applied.plan.predicted.get("iteration_time_ms")
    if applied.level == "none":
        said = applied.plan.predicted.get("baseline_iteration_time_ms", said)
    result = Verification(
        level=applied.level,
        measured=statistics.median(times),
        spread=(quartiles[2] - quartiles[0]) / 2,
        waited=waited / steps if applied.level == "crossiter" else None,
        rate=moved / busy if busy > 0 else None,
        predicted=said / 1e3 if isinstance(said, (int, float)) and said > 0 else None,
        reason="",
    )
    missed = _missed(applied, [now - then for now, then in zip(_sent(applied), sent, strict=True)], steps)
    result = replace(result, reason=_reason(applied, result, flushes / steps), missed=missed)
    if file is None and (not dist.is_initialized() or dist.get_rank() == 0):
        file = sys.stdout
    if file is not None:
        print(result, file=file)
    if missed:
        raise TrainingError(missed)
    return result


def _missed(model: Wrapped | Sharded, sent: list[int], steps: int) -> str:
    """Describe units, buckets, pieces, parts or release times of the plan that were not applied; empty if none."""
    if isinstance(model, Sharded):
        model.close()
        return model.fault
    plan = model.plan
    sizes = [bucket.bytes for bucket in plan.buckets if bucket.bytes]
    if model.level in ("buckets", "priority") and model._hook is not None and model._hook.sizes:
        found = [model._hook.sizes[index] for index in sorted(model._hook.sizes)]
        if found != sizes:
            return (
                f"The plan was not carried out: DDP sent buckets of {_listed(found)}, the plan has {_listed(sizes)}. "
                "DDP fills buckets in the order in which gradients come: make the plan again from a profile of this "
                "model, with torch 2.13 or newer."
            )
    if model._cross is None:
        return ""
    chunk, parts = plan.chunk_bytes, 0
    for tensor in model._cross.tensors:
        pieces = [tensor] if chunk is None else tensor.split(max(1, chunk // tensor.element_size()))
        parts += sum(len(piece.chunk(plan.depth)) for piece in pieces)
    expected = (
        sum(1 if chunk is None else -(-size // chunk) for size in sizes),
        parts,
        sum(one.release is not None for one in plan.buckets),
    )
    said = (
        ("sent", "pieces", "Gradients of several dtypes in one bucket are sent apart."),
        ("sent", "parts of pieces (depth)", "Pieces of fewer elements than the plan's depth have fewer parts."),
        (
            "opened",
            "release events",
            "Something reads or holds weights before the release events, or layers are called in another order than in "
            "the profile.",
        ),
    )
    for count, planned, (did, what, why) in zip(sent, expected, said, strict=True):
        # Pieces of up to one iteration may be in flight when the measurement begins or ends.
        if abs(count - steps * planned) > planned:
            return (
                f"The plan was not carried out: an iteration {did} {count / steps:g} {what} instead of {planned}. {why}"
            )
    return ""


def _sent(model: Wrapped | Sharded) -> list[int]:
    """Return the numbers of pieces, of parts of pieces, and of buckets with a release event that were sent so far."""
    if isinstance(model, Sharded):
        return []
    return [model.tally.pieces, model.tally.parts, 0 if model._cross is None else model._cross.released]


def _listed(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:4]))
    return f"{shown} B" if len(sizes) <= 4 else f"{shown} … ({len(sizes)}) B"


def _counts(model: Wrapped | Sharded) -> tuple[float, float, float, int]:
    """Return totals so far: seconds of waiting, seconds of sending, bytes sent, and `CrossIteration.flushes`."""
    if isinstance(model, Sharded):
        return 0.0, 0.0, 0.0, 0
    tally = model.tally
    return tally.waited_s, tally.busy_s, tally.bytes, 0 if model._cross is None else model._cross.flushes


def _reason(model: Wrapped | Sharded, result: Verification, flushes: float) -> str:
    """Describe the most likely cause of the difference between measured and predicted time."""
    if result.predicted is None:
        return "The plan predicts no iteration time: nothing to compare with."
    error = result.measured / result.predicted - 1
    before = model.plan.predicted.get("baseline_iteration_time_ms")
    saved = 1 - 1e3 * result.predicted / before if isinstance(before, (int, float)) and before > 0 else 0.0
    if abs(error) <= (min(TOLERANCE, saved / 2) if saved > 0 else TOLERANCE):
        return f"Measured and predicted agree within {abs(error):.1%}."
    verdict = f"Measured is {abs(error):.1%} {'above' if error > 0 else 'below'} predicted."
    if model.level == "alone":
        return f"{verdict} There is no other rank, so nothing is exchanged."
    if model.plan.level != model.level:
        return f"{verdict} The plan predicts level {model.plan.level}, and {model.level} is applied."
    if flushes >= 0.5:
        return (
            f"{verdict} Something reads or holds weights in every iteration before their layer is called (a "
            "state_dict(), a copy of .data), and so waits for their gradients."
        )
    if any(is_compiled(module) for module in (model, *model.module.modules())) or hasattr(model.module, "_orig_mod"):
        return (
            f"{verdict} The model is compiled: backward then gives many gradients at once, where the plan expects one "
            "layer after the other."
        )
    if result.waited is not None:
        computes = result.measured - result.waited
        if computes > result.predicted:
            return (
                f"{verdict} Without waiting, an iteration already takes {1e3 * computes:.4g} ms: computing is "
                "slower here than planned with. Profile it here (gradtide profile --device measure) and plan again."
            )
        if error > 0 and result.rate is not None:
            return (
                f"{verdict} Training waits {1e3 * result.waited:.4g} ms for gradients, which came at "
                f"{8e-6 * result.rate:.4g} Mbit/s: the network is slower than in the scenario, or others use it too."
            )
    return f"{verdict} Compare compute times (gradtide profile --device measure) and the link's rate."
