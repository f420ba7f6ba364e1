"""Queue disciplines of the packet engine. A new one needs an entry here and its code in crates/net/src/packet/qdisc.

The core combines an order of packets, a marking rule and PCN. Each kind of queue in a scenario is one such combination.
"""

from typing import Literal, NamedTuple

QueueKind = Literal["pfifo_fast", "fifo", "strict", "drr", "ecn", "red", "pcn"]
"""Values of `cluster.queue.kind`."""


class Discipline(NamedTuple):
    """A kind of queue, and the keys of `cluster.queue` that apply to it in addition to `kind` and `capacity`."""

    summary: str
    """Description of the discipline, a noun phrase for use in sentences."""
    order: Literal["fifo", "pfifo_fast", "strict", "drr"]
    """The core's name of the order in which packets leave."""
    needs: tuple[str, ...] = ()
    """Keys that a scenario must give, because they have no default."""
    takes: tuple[str, ...] = ()
    """Optional keys."""
    bands: int = 1
    """Number of bands if no key determines it."""


DISCIPLINES: dict[QueueKind, Discipline] = {
    "pfifo_fast": Discipline(
        "Linux's three strict bands, which share one capacity", "pfifo_fast", takes=("threshold", "mark_at"), bands=3
    ),
    "fifo": Discipline("one band, first come, first served", "fifo", takes=("threshold", "mark_at")),
    "strict": Discipline(
        "strict priority between as many bands as `bands` says", "strict", ("bands",), ("threshold", "mark_at")
    ),
    "drr": Discipline(
        "deficit round robin: bands share the link by `weights` (Shreedhar & Varghese 1995)",
        "drr",
        ("weights",),
        ("threshold", "mark_at"),
    ),
    "ecn": Discipline("one band that marks packets from `threshold` on", "fifo", ("threshold",), ("mark_at",)),
    "red": Discipline(
        "one band with random early detection (Floyd & Jacobson 1993)",
        "fifo",
        ("min", "max"),
        ("max_probability", "weight", "ecn"),
    ),
    "pcn": Discipline(
        "one band with a `threshold` that announced bursts lower (Kang et al. 2021)",
        "fifo",
        ("threshold", "announced"),
        ("mark_at", "timeout", "expire"),
    ),
}
"""Every kind of queue, in the order of the documentation."""

MEANING = f"Queue discipline. {' '.join(f'{kind}: {one.summary}.' for kind, one in DISCIPLINES.items())}"
"""Description of the key `cluster.queue.kind`."""


def kinds_with(key: str) -> list[QueueKind]:
    """Return the kinds of queue to which a key of `cluster.queue` applies; all kinds if none lists the key."""
    return [kind for kind, one in DISCIPLINES.items() if key in (*one.needs, *one.takes)] or list(DISCIPLINES)
