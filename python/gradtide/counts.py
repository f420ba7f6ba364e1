"""Which collectives are all-reduces, and the numbers of messages and bytes of a collective.

docs/models/collectives.md has the formulas and their sources. Tests compare them with the core's transfers.
"""

from dataclasses import dataclass
from fractions import Fraction

from gradtide.algorithms import ALGORITHMS, CollectiveKind

KINDS: tuple[CollectiveKind, ...] = tuple(ALGORITHMS)

_NO_SUM = {
    "all_gather": "it adds nothing up: each rank gets the parts of all others",
    "reduce_scatter": "each rank gets the sum of one part only",
    "all_to_all": "it adds nothing up: each rank gets a part of each other rank's bytes",
    "broadcast": "it adds nothing up: every rank gets the bytes of the first one",
    "send": "it adds nothing up: the second rank gets the bytes of the first one",
}
"""Reason why an operation other than an all-reduce does not leave the sum of all gradients on every rank."""

NOT_SUMMED: dict[str, str] = {kind: _NO_SUM[one.operation] for kind, one in ALGORITHMS.items() if not one.sums}
"""Collectives that are not all-reduces, each with the reason from `_NO_SUM`."""

ALL_REDUCES: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in NOT_SUMMED)
"""Collectives after which every rank has the sum over all ranks, as data-parallel training needs for gradients."""


@dataclass(frozen=True)
class Counts:
    """Messages and bytes of one collective on a buffer of S bytes.

    `steps` is the number of messages on the critical path, `messages` the number of all messages. `sent` counts the
    bytes that all ranks send, `most` the bytes that the busiest rank sends, both in units of S.
    """

    steps: int
    messages: int
    sent: Fraction
    most: Fraction
