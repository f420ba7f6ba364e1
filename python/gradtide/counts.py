"""Collectives counted: steps, messages and bytes of each algorithm, without running it.

docs/models/collectives.md has the table and its sources; the tests compare the counts with what the core sends.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

CollectiveKind = Literal[
    "ring",
    "halving_doubling",
    "shuffle",
    "tree",
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

    Attributes:
        steps: messages that follow one upon another.
        messages: messages in all.
        sent: bytes in all, in units of S.
        most: bytes of the rank that sends most, in units of S.
    """

    steps: int
    messages: int
    sent: Fraction
    most: Fraction


def count(kind: str, ranks: int, group: int = 1, inside: str = "ring", servers: int = 1) -> Counts:
    """Count what an algorithm sends.

    Args:
        kind: one of `KINDS`.
        ranks: N.
        group: ranks of a group, for butterfly_layered and hierarchical; the last one may have fewer.
        inside: reduce, ring or sharded, for hierarchical.
        servers: parameter servers among the ranks, for ps.

    Returns:
        The counts; nothing for a single rank.
    """
    n = ranks
    if n < 2:
        return Counts(0, 0, Fraction(0), Fraction(0))
    share = Fraction(n - 1, n)
    if kind == "ring":
        return Counts(2 * (n - 1), 2 * n * (n - 1), Fraction(2 * (n - 1)), 2 * share)
    if kind in ("all_gather", "reduce_scatter"):
        return Counts(n - 1, n * (n - 1), Fraction(n - 1), share)
    if kind == "shuffle":
        return Counts(2, 2 * n * (n - 1), Fraction(2 * (n - 1)), 2 * share)
    if kind == "all_to_all":
        return Counts(1, n * (n - 1), Fraction(n - 1), share)
    if kind == "tree":
        return Counts(2 * _log2(n), 2 * (n - 1), Fraction(2 * (n - 1)), Fraction(min(n - 1, (n + 1) // 2, 3)))
    if kind == "broadcast":
        return Counts(_log2_up(n), n - 1, Fraction(n - 1), Fraction(_log2_up(n)))
    if kind == "point_to_point":
        return Counts(1, 1, Fraction(1), Fraction(1))
    if kind == "ps":
        workers = n - servers
        return Counts(2, 2 * servers * workers, Fraction(2 * workers), max(Fraction(1), Fraction(workers, servers)))
    if kind in ("halving_doubling", "butterfly"):
        levels = _log2(n)
        power = 1 << levels
        extra = n - power
        fold = 2 * (extra > 0)
        if kind == "butterfly":
            messages = power * levels + 2 * extra
            return Counts(levels + fold, messages, Fraction(messages), Fraction(levels + (extra > 0)))
        sent = Fraction(2 * (power - 1) + 2 * extra)
        most = Fraction(2 * (power - 1), power) + (extra > 0)
        return Counts(2 * levels + fold, 2 * power * levels + 2 * extra, sent, most)
    return _grouped(kind, n, min(group, n), inside)


def _grouped(kind: str, n: int, group: int, inside: str) -> Counts:
    heads = -(-n // group)
    depth = _log2_up(group)
    if kind == "butterfly_layered":
        between = count("butterfly", heads)
        below = n - heads
        return Counts(
            2 * depth + between.steps, 2 * below + between.messages, 2 * below + between.sent, depth + between.most
        )
    between = count("ring", heads)
    within = count("ring", group)
    if inside == "sharded":
        return Counts(
            within.steps + between.steps,
            heads * within.messages + group * between.messages,
            heads * within.sent + between.sent,
            within.most + between.most / group,
        )
    last = count("ring", n - (heads - 1) * group)
    down = n - heads
    if inside == "reduce":
        return Counts(
            2 * depth + between.steps, 2 * down + between.messages, 2 * down + between.sent, depth + between.most
        )
    return Counts(
        within.steps + between.steps + depth,
        (heads - 1) * within.messages + last.messages + between.messages + down,
        (heads - 1) * within.sent + last.sent + between.sent + down,
        within.most + between.most + depth,
    )


def _log2(n: int) -> int:
    return n.bit_length() - 1


def _log2_up(n: int) -> int:
    return (n - 1).bit_length()
