"""Names of the collectives, which of them sum, and what the core counts of each: steps, messages and bytes.

docs/models/collectives.md has the table and its sources; the tests compare the counts with what the core sends.
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

CollectiveKind = Literal[
    "ring",
    "single_ring",
    "halving_doubling",
    "shuffle",
    "tree",
    "binary_tree",
    "butterfly",
    "butterfly_layered",
    "hierarchical",
    "ps",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "point_to_point",
]
"""Names of the algorithms, as `collective.kind` has them."""

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)

NOT_SUMMED: dict[str, str] = {
    "all_gather": "it adds nothing up: each rank gets the parts of all others",
    "reduce_scatter": "each rank gets the sum of one part only",
    "all_to_all": "it adds nothing up: each rank gets a part of each other rank's bytes",
    "broadcast": "it adds nothing up: every rank gets the bytes of the first one",
    "point_to_point": "it adds nothing up: the second rank gets the bytes of the first one",
}
"""Collectives after which a rank does not hold the sum of all ranks' gradients, and what it holds instead."""

ALL_REDUCES: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in NOT_SUMMED)
"""Collectives after which every rank holds the sum of all ranks' bytes: what training needs of its gradients."""


@dataclass(frozen=True)
class Counts:
    """What one exchange of S bytes takes.

    Messages one upon another (`steps`) and in all, and in units of S the bytes in all and of the rank that sends most.
    """

    steps: int
    messages: int
    sent: Fraction
    most: Fraction


def count(kind: str, ranks: int, group: int = 1, inside: str = "ring", servers: int = 1) -> Counts:
    """Count what an algorithm, one of `KINDS`, sends among N ranks: nothing for a single rank.

    The last `group` of butterfly_layered and hierarchical may have fewer ranks. `inside` a group of hierarchical works
    reduce, ring or sharded. The `servers` of ps are among the ranks.
    """
    from gradtide import _core  # loading it costs more than all else that reads a scenario with a fault

    algorithm: dict[str, str | int] = {"kind": kind}
    if kind == "ps":
        algorithm = {"kind": "parameter_server", "servers": servers, "placement": "packed"}
    elif kind == "butterfly_layered":
        algorithm["group"] = group
    elif kind == "hierarchical":
        algorithm |= {"group": group, "inside": inside}
    steps, messages, sent, most = _core.collective_counts(json.dumps(algorithm), ranks)
    return Counts(steps, messages, Fraction(sent), Fraction(*most))
