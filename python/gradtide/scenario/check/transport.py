"""The transport: which keys go with which kind, and with a queue that marks."""

from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import marks, transport_of
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys.cluster import Cluster
from gradtide.scenario.source import Loc

MAX_SEGMENT_BYTES = 65_535 - 52
"""Payload of the largest IPv4 packet with TCP's header and timestamps."""


def holds_a_segment(ctx: Context, window: int | None, segment: int, loc: Loc) -> None:
    """Refuse a window below a segment."""
    if window is not None and window < segment:
        msg = f"a window of {window:,} bytes is smaller than a segment of {segment:,}"
        ctx.add("GT014", loc, msg, "write at least a few segments", window)


def check(ctx: Context, cluster: Cluster, fabric: Fabric | None) -> None:
    """Check the keys of the transport against its kind and against the queue."""
    loc: Loc = ("cluster", "transport")
    if not ctx.ok("cluster", "transport"):
        return
    keys, queue = cluster.transport, cluster.queue
    kind, plus, _ = keys.kind.partition("+ecn")
    if keys.segment_bytes > MAX_SEGMENT_BYTES:
        msg = f"a segment of {keys.segment_bytes:,} bytes does not fit into a packet"
        ctx.add("GT014", (*loc, "segment"), msg, f'write at most "{MAX_SEGMENT_BYTES}B"', keys.segment_bytes)
    else:
        holds_a_segment(ctx, keys.window_bytes, keys.segment_bytes, (*loc, "window"))
    if keys.gain_ppm is not None and kind != "dctcp":
        ctx.no_effect((*loc, "gain"), f'with kind = "{keys.kind}"', 'it is for kind = "dctcp"')
    for key in ("hystart", "byte_counting"):
        if keys.value(key) is not None and kind != "cubic":
            ctx.no_effect((*loc, key), f'with kind = "{keys.kind}"', 'it is for kind = "cubic"')
    if keys.ecn and kind == "ideal":
        ctx.no_effect((*loc, "ecn"), 'with kind = "ideal"', "leave it out: the ideal transport does not react to marks")
    elif keys.ecn is False and (plus or kind == "dctcp"):
        msg = f'`ecn = false` contradicts kind = "{keys.kind}"'
        ctx.add("GT016", (*loc, "ecn"), msg, f'leave it out, or write kind = "{kind if plus else "newreno"}"')
    elif transport_of(cluster, fabric).ecn and not marks(queue) and ctx.is_packet:
        if not ctx.ok("cluster", "queue"):
            return
        never = f'queue.kind = "{queue.kind}" never marks without `{"ecn" if queue.kind == "red" else "threshold"}`'
        hint = 'write queue = { kind = "ecn", threshold = "65pkt" }'
        if keys.ecn:
            ctx.no_effect((*loc, "ecn"), f"here: {never}", hint)
        else:
            less = kind if plus else "newreno"
            msg = f'kind = "{keys.kind}" is "{less}" here: {never}'
            ctx.add("GT015", (*loc, "kind"), msg, f'{hint}, or kind = "{less}"', keys.kind)
