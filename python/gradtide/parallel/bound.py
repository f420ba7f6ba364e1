"""Lower bound of an FSDP step over all prefetch depths and orders of transfers.

A pass visits positions 1…n: the units forward, then backward. G_i is the time of all gathers needed by positions up to
i, C_ij the compute of positions i…j, R_j the time of all reduce-scatters that follow position j or a later one:

    step >= G_i + C_ij + R_j    for all i <= j,    since transfers are serialised on a communicator
    step >= G_n + R_1           since gathers and reduce-scatters share the communicator

Not modelled: a rank has a single buffer to reduce from.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Position(NamedTuple):
    """A unit in a pass; times in one unit.

    Attributes:
        name: display name.
        gather: time of the all-gather that it depends on; 0 if the unit is unsharded already.
        compute: compute time.
        reduce: time of the reduce-scatter that follows; 0 for none.
    """

    name: str
    gather: float
    compute: float
    reduce: float


class Least(NamedTuple):
    """A lower bound.

    Attributes:
        time: lower bound in the unit of the positions.
        why: description of the binding constraint.
    """

    time: float
    why: str


def least(positions: Sequence[Position]) -> Least:
    """Return the lower bound of a pass over at least one position."""
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
