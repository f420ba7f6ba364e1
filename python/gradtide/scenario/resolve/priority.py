"""Checks and resolves the priority bands of jobs and tenants, and the policies that change a job's band."""

from gradtide import units
from gradtide.scenario.fabric import Fabric, Reach
from gradtide.scenario.keys.cluster import Transport
from gradtide.scenario.keys.job import Adaptive, AdaptiveTable, JobPriority, Priority
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.resolve.network import SOCKET_BYTES, bands_of, holds_a_segment, with_ecn
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable
from gradtide.units import PPM

POLICY_BANDS: dict[str, JobPriority] = {
    "deadline": "low",
    "straggler": "low",
    "background": "low",
    "oracle": "low",
    "all-low": "low",
    "lower-layers-high": ["high", "low"],
    "all-high": "high",
}
"""Value of `priority` that gives a job's bands, by policy. If the policy changes bands, these are the initial bands."""

SETTINGS = {
    "deadline": ("credit", "window", "tolerance", "margin", "exchange"),
    "straggler": ("credit", "window", "tolerance", "margin", "exchange"),
    "background": ("credit", "window"),
    "oracle": ("price",),
}
"""Keys of `priority.adaptive` that have an effect, by policy; other policies have none."""

WITH_DEADLINES = ("deadline", "straggler")
"""Policies that send a chunk in the high band if it would otherwise miss its deadline."""

DEFAULT_TOLERANCE_PPM = 20_000

DEFAULT_LOW_CREDIT = 4

DEFAULT_PRICE_PPM = PPM

LEAST_LOW_WINDOW = 16_000
"""Minimum of the default window in the low band, bytes: about TCP's initial window (RFC 6928), to avoid slow start."""

LOW_WINDOW_PS = 100_000_000
"""Time in which the slowest link sends the default low-band window, ps: some tens of packets at current link rates."""


def band(ctx: Context, priority: Priority, loc: Loc) -> int | None:
    """Return the number of a priority's band in the cluster's queue; `None` if the priority is adaptive or invalid."""
    if isinstance(priority, Adaptive):
        return None
    queue = ctx.file.cluster.queue
    band_count = bands_of(queue)
    band = {"high": 0, "low": band_count - 1}.get(str(priority), priority)
    if ctx.ok("cluster", "queue") and ctx.ok(*(str(p) for p in loc)):
        here = f'kind = "{queue.kind}"'
        if priority == "low" and band_count == 1:
            hint = 'write cluster.queue = { kind = "pfifo_fast" }, or "strict" with several bands'
            ctx.add("GT015", loc, f"the low band has no effect: a queue of {here} has one band", hint)
            return None
        if int(band) >= band_count:
            bands = "only band 0" if band_count == 1 else f"bands 0 to {band_count - 1}"
            ctx.add("GT014", loc, f"there is no band {band}", f"a queue of {here} has {bands}", priority)
            return None
    return int(band)


def bands(ctx: Context, priority: JobPriority, loc: Loc, table: LayerTable | None) -> tuple[int, ...]:
    """Return the bands of a job's priority; for an adaptive priority, the initial bands."""
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


def adaptive(
    ctx: Context, priority: JobPriority, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
) -> AdaptiveTable | None:
    """Return the policy of an adaptive priority with defaults; `None` for fixed bands, or if the network is unknown."""
    if not isinstance(priority, Adaptive):
        return None
    given = priority.adaptive
    heeded = SETTINGS.get(given.policy, ())
    # Because of the reversed order, each key is mapped to the first policy in `SETTINGS` that has this key.
    first = {key: policy for policy, keys in reversed(SETTINGS.items()) for key in keys}
    for key, policy in first.items():
        if key not in heeded and given.value(key) is not None:
            why, hint = f'with policy = "{given.policy}"', f'write policy = "{policy}"'
            ctx.no_effect((*loc, "adaptive", key), why, hint)
    holds_a_segment(ctx, given.window_bytes, ctx.file.cluster.transport.segment_bytes, (*loc, "adaptive", "window"))
    if fabric is None or hosts is None:
        return None
    return _with_defaults(given, fabric.reach([hosts]), with_ecn(ctx.file.cluster.transport))


def _with_defaults(given: AdaptiveTable, reach: Reach, transport: Transport) -> AdaptiveTable | None:
    """Return a policy with defaults for the network that its job uses; `None` for a policy with fixed bands.

    With ECN, queues are short, and few packets are delayed for long. Therefore a second chunk in flight only delays the
    most urgent chunk, and a small window does not help background flows (decision 20).
    """
    if given.policy not in SETTINGS:
        return None
    if given.policy == "oracle":
        return given.with_values(price_ppm=DEFAULT_PRICE_PPM if given.price_ppm is None else given.price_ppm)
    has_deadlines = given.policy in WITH_DEADLINES
    credit = 1 if has_deadlines and transport.ecn else DEFAULT_LOW_CREDIT
    marked_bytes = SOCKET_BYTES if transport.window_bytes is None else transport.window_bytes
    window_bytes = marked_bytes if transport.ecn else _low_window(reach, transport.segment_bytes)
    low = given.with_values(credit=given.credit or credit, window_bytes=given.window_bytes or window_bytes)
    if not has_deadlines:
        return low
    return low.with_values(
        tolerance_ppm=DEFAULT_TOLERANCE_PPM if given.tolerance_ppm is None else given.tolerance_ppm,
        margin_ppm=given.margin_ppm or 0,
        exchange=given.exchange is not False,
    )


def _low_window(reach: Reach, segment: int) -> int:
    """Return the default window in the low band, bytes: what the slowest link sends in `LOW_WINDOW_PS` or two RTTs."""
    hops, rate_bps, delay_ps = reach
    busy_ps = max(LOW_WINDOW_PS, 4 * hops * delay_ps)
    return max(LEAST_LOW_WINDOW, 2 * segment, rate_bps * busy_ps // (8 * units.PS_PER_SECOND))
