"""Lower bound on the time of an FSDP step, whatever its prefetch depths and its order of transfers.

A step visits positions 1…n: all FSDP units forward, then all backward. G_i is the total time of the all-gathers for
positions 1…i, C_ij the compute time of positions i…j, and R_j the total time of the reduce-scatters after j…n:

    step >= G_i + C_ij + R_j    for all i <= j,    since transfers are serialised on a communicator
    step >= G_n + R_1           since gathers and reduce-scatters share the communicator

Left out: a reduce-scatter may have to wait for the rank's only reduce buffer, which lengthens the step.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Position(NamedTuple):
    """The forward or backward pass of one FSDP unit. All times have the same unit, chosen by the caller.

    Attributes:
        name: display name.
        gather: time of the all-gather of its parameters; 0 if they are unsharded already.
        compute: compute time.
        reduce: time of the reduce-scatter of its gradients; 0 if there is none.
    """

    name: str
    gather: float
    compute: float
    reduce: float


class Least(NamedTuple):
    """Lower bound on the time of a step.

    Attributes:
        time: the bound, in the time unit of the positions.
        why: description of the inequality that gives the bound.
    """

    time: float
    why: str


def least(positions: Sequence[Position]) -> Least:
    """Return the lower bound of a step with these positions, of which there must be at least one."""
    gathers = list(accumulate(one.gather for one in positions))
    computes = list(accumulate((one.compute for one in positions), initial=0.0))
    reduces = list(accumulate(one.reduce for one in reversed(positions)))[::-1]
    best = Least(gathers[-1] + reduces[0], "all all-gathers and reduce-scatters, one after the other")
    start = 0
    for end, one in enumerate(positions):
        if gathers[end] - computes[end] > gathers[start] - computes[start]:
            start = end
        time = gathers[start] + computes[end + 1] - computes[start] + reduces[end]
        if time > best.time:
            best = Least(time, _chain(positions[start].name, one.name, start == 0, end + 1 == len(positions)))
    return best


def _chain(first: str, last: str, is_first: bool, is_last: bool) -> str:
    gathers = "the first all-gather" if is_first else f"all-gathers up to {first}"
    reduces = "the last reduce-scatter" if is_last else f"reduce-scatters from {last} on"
    computes = "all compute" if is_first and is_last else f"compute from {first} to {last}"
    return f"{gathers}, {computes}, and {reduces}"
