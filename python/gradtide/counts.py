"""Collectives: which of them are all-reduces, and counts of steps, messages and bytes from the core.

docs/models/collectives.md has the table and its sources; tests compare the counts with the core's transfers.
"""

import json
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
"""Operations that are no all-reduce, each with the reason: a rank does not end up with the sum of all gradients."""

NOT_SUMMED: dict[str, str] = {kind: _NO_SUM[one.operation] for kind, one in ALGORITHMS.items() if not one.sums}
"""Collectives that are no all-reduce, each with the reason."""

ALL_REDUCES: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in NOT_SUMMED)
"""Collectives after which every rank has the sum over all ranks, as data-parallel training needs for gradients."""


@dataclass(frozen=True)
class Counts:
    """Counts of one collective on S bytes.

    `steps` are messages in sequence, `messages` their total number; `sent` is the total number of bytes and `most` that
    of the rank that sends most, both in units of S.
    """

    steps: int
    messages: int
    sent: Fraction
    most: Fraction


def count(kind: CollectiveKind, ranks: int, group: int = 1, inside: str = "ring", servers: int = 1) -> Counts:
    """Count the messages of a collective, one of `KINDS`, among N ranks: none for a single rank.

    The last group of butterfly_layered and hierarchical may be smaller than `group`. `inside` is the algorithm within a
    group of hierarchical: reduce, ring or sharded. The `servers` of ps are among the ranks.
    """
    from gradtide import _core  # imported lazily: it would dominate the time to report a faulty scenario

    parameters: dict[str, dict[str, str | int]] = {
        "group": {"group": group},
        "inside": {"inside": inside},
        "ps": {"servers": servers, "placement": "packed"},
    }
    algorithm: dict[str, str | int] = {"kind": kind}
    for key in ALGORITHMS[kind].keys:
        algorithm |= parameters[key]
    steps, messages, sent, most = _core.collective_counts(json.dumps(algorithm), ranks)
    return Counts(steps, messages, Fraction(sent), Fraction(*most))
