"""Bands of flows, and policies that change them."""

from gradtide.scenario.check import transport
from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import SETTINGS, adaptive_of, bands_of, transport_of
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys.priority import Adaptive, AdaptiveTable, JobPriority, Priority
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable

POLICY_BANDS: dict[str, JobPriority] = {
    "deadline": "low",
    "background": "low",
    "oracle": "low",
    "all-low": "low",
    "lower-layers-high": ["high", "low"],
    "all-high": "high",
}
"""Bands of a policy; for a policy that changes them, the first ones."""


def band(ctx: Context, priority: Priority, loc: Loc) -> int | None:
    """Return the band that a priority means on this queue; `None` if it is adaptive or at fault."""
    if isinstance(priority, Adaptive):
        return None
    queue = ctx.file.cluster.queue
    band_count = bands_of(queue)
    band = {"high": 0, "low": band_count - 1}.get(str(priority), priority)
    if ctx.has_bands and ctx.ok("cluster", "queue") and ctx.ok(*(str(p) for p in loc)):
        here = f'kind = "{queue.kind}"'
        if priority == "low" and band_count == 1:
            hint = 'write cluster.queue = { kind = "pfifo_fast" }, or "strict" with several bands'
            ctx.add("GT015", loc, f'priority = "low" has no effect: a queue of {here} has one band', hint)
            return None
        if int(band) >= band_count:
            bands = "only band 0" if band_count == 1 else f"bands 0 to {band_count - 1}"
            ctx.add("GT014", loc, f"there is no band {band}", f"a queue of {here} has {bands}", priority)
            return None
    return int(band)


def bands(ctx: Context, priority: JobPriority, loc: Loc, table: LayerTable | None) -> tuple[int, ...]:
    """Return the bands of a job's priority; for one that changes, the first ones."""
    if isinstance(priority, Adaptive):
        return bands(ctx, POLICY_BANDS[priority.adaptive.policy], loc, table)
    if not isinstance(priority, list):
        return (band(ctx, priority, loc) or 0,)
    if not priority:
        ctx.add("GT014", loc, "the list of bands is empty", 'write priority = ["high", "low"]', priority)
    elif table is not None and len(priority) > len(table.layers):
        msg = f"{len(priority)} bands for {len(table.layers)} layers"
        ctx.add("GT014", loc, msg, "a list has at most one band for each layer")
    found = [band(ctx, entry, (*loc, index)) for index, entry in enumerate(priority)]
    return tuple(band or 0 for band in found)


def adaptive(ctx: Context, priority: JobPriority, loc: Loc, fabric: Fabric | None) -> AdaptiveTable | None:
    """Return how a priority changes its bands; `None` if it does not, or without a network."""
    if not isinstance(priority, Adaptive):
        return None
    given = priority.adaptive
    heeded = SETTINGS.get(given.policy, ())
    # The hint names the first policy that uses a key, so the first is entered last.
    first = {key: policy for policy, keys in reversed(SETTINGS.items()) for key in keys}
    for key, policy in first.items():
        if key not in heeded and given.value(key) is not None:
            why, hint = f'with policy = "{given.policy}"', f'write policy = "{policy}"'
            ctx.no_effect((*loc, "adaptive", key), why, hint)
    transport.holds_a_segment(
        ctx, given.window_bytes, ctx.file.cluster.transport.segment_bytes, (*loc, "adaptive", "window")
    )
    return None if fabric is None else adaptive_of(given, fabric, transport_of(ctx.file.cluster, fabric))
