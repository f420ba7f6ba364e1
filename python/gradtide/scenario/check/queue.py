"""The queue of egress ports: which keys go with which kind, and what a queue can hold."""

from gradtide import units
from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import MAX_BANDS, announced_packets
from gradtide.scenario.keys.cluster import Queue
from gradtide.scenario.read import example
from gradtide.scenario.source import Loc

MAX_PACKETS = 2**32 - 1

QUEUE_KEYS = {
    "bands": ("strict",),
    "weights": ("drr",),
    "announced": ("pcn",),
    "timeout": ("pcn",),
    "expire": ("pcn",),
    "threshold": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "mark_at": ("pfifo_fast", "fifo", "strict", "drr", "ecn", "pcn"),
    "min": ("red",),
    "max": ("red",),
    "max_probability": ("red",),
    "weight": ("red",),
    "ecn": ("red",),
}
"""Keys of a queue, and the kinds that they are for."""


def check(ctx: Context, queue: Queue) -> None:
    """Check the keys of a queue against its kind and its capacity."""
    loc: Loc = ("cluster", "queue")
    if not ctx.ok("cluster", "queue"):
        return
    for key, kinds in QUEUE_KEYS.items():
        if queue.value(key) is not None and queue.kind not in kinds:
            words = "any other kind" if key in ("threshold", "mark_at") else f'kind = "{kinds[0]}"'
            ctx.no_effect((*loc, key), f'with kind = "{queue.kind}"', f"it is for {words}")
    for kind, key in (
        ("strict", "bands"),
        ("drr", "weights"),
        ("ecn", "threshold"),
        ("pcn", "threshold"),
        ("pcn", "announced"),
        ("red", "min"),
        ("red", "max"),
    ):
        if queue.kind == kind and queue.value(key) is None and not ctx.misspelt(loc, key):
            hint = example(key, Queue.declared()[key])
            ctx.add("GT010", (*loc, key), f'kind = "{kind}" needs `{key}`', hint)
    if queue.mark_at is not None and queue.threshold_packets is None and queue.kind not in ("ecn", "red"):
        ctx.no_effect((*loc, "mark_at"), "without `threshold`", "nothing is marked")
    if queue.weights is not None and not 1 <= len(queue.weights) <= MAX_BANDS:
        msg = f"{len(queue.weights)} bands are out of range"
        ctx.add("GT014", (*loc, "weights"), msg, f"write 1 to {MAX_BANDS} weights", queue.weights)
    if queue.min_packets is not None and queue.max_packets is not None and queue.min_packets >= queue.max_packets:
        msg = f"the least average of {queue.min_packets:,} packets is not below the greatest of {queue.max_packets:,}"
        ctx.add("GT014", (*loc, "min"), msg, "lower it", queue.min_packets)
    for key in ("threshold", "max"):
        _within_capacity(ctx, queue, key)
    for announce, at in _announcements(ctx):
        packets, threshold = announced_packets(announce, queue), queue.threshold_packets
        if queue.kind == "pcn" and packets is not None and packets > (threshold or packets):
            msg = f"the announced {packets} packets are above the threshold of {threshold:,}: no burst would lower it"
            ctx.add("GT014", at, msg, "lower it", packets)
    _buffer(ctx, queue.capacity, (*loc, "capacity"))
    if ctx.file.cluster.switch_buffer is not None and ctx.ok("cluster", "switch_buffer"):
        _buffer(ctx, ctx.file.cluster.switch_buffer.capacity, ("cluster", "switch_buffer", "capacity"))


def _announcements(ctx: Context) -> list[tuple[bool | int | None, Loc]]:
    """Return what is announced, and where that is written."""
    queue = ctx.file.cluster.queue
    found: list[tuple[bool | int | None, Loc]] = [(queue.announced_packets, ("cluster", "queue", "announced"))]
    for kind, tables in (("job", ctx.file.job), ("traffic", ctx.file.traffic)):
        for name, table in tables.items():
            if ctx.ok(kind, name, "announce") and not isinstance(table.announce, bool):
                found.append((table.announce, (kind, name, "announce")))
    return found


def announce(ctx: Context, announce: bool | int | None, loc: Loc) -> None:
    """Refuse announcements that no switch would use."""
    kind = ctx.file.cluster.queue.kind
    if announce is not None and announce is not False and kind != "pcn" and ctx.ok("cluster", "queue"):
        hint = 'write cluster.queue = { kind = "pcn", threshold = "40pkt", announced = "10pkt" }, or leave it out'
        ctx.no_effect((*loc, "announce"), f'with queue.kind = "{kind}"', hint)


def _buffer(ctx: Context, buffer: units.Buffer, loc: Loc) -> None:
    if not buffer.is_bytes and buffer.size > MAX_PACKETS:
        msg, hint = f"{buffer.size:,} packets are too many", f'write at most "{MAX_PACKETS}pkt"'
        ctx.add("GT014", loc, msg, hint, units.format_buffer(buffer))


def _within_capacity(ctx: Context, queue: Queue, key: str) -> None:
    """Refuse a length that no queue reaches; a host's port has `capacity` even where a switch shares its buffer."""
    length: int | None = queue.value(key)
    capacity = queue.capacity
    if length is not None and not capacity.is_bytes and length > capacity.size:
        msg = f"{length:,} packets are more than the capacity of {capacity.size:,}"
        hint = "no packet would be marked; lower it" if key == "threshold" else "no queue can become so long; lower it"
        ctx.add("GT014", ("cluster", "queue", key), msg, hint, length)
