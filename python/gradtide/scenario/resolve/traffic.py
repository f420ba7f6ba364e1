"""Checks the keys of background traffic, and reads the flows of each tenant."""

from gradtide.errors import ScenarioError
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.origins import Origin, Tenant, nodes_of
from gradtide.scenario.resolve import network, placement, priority
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.source import Failure, Loc
from gradtide.traffic import MAX_FLOWS, too_many

FLOW_KEYS = ("sizes", "cdf", "replay", "flows", "incast", "bursts")
"""Keys that define the flows of a tenant. A table `traffic.NAME` must have exactly one of them."""


def origins(ctx: Context, fabric: Fabric | None) -> tuple[Origin, ...]:
    """Return the background flows of each tenant whose keys have no faults."""
    origins: list[Origin] = []
    total = 0
    for name, traffic in ctx.file.traffic.items():
        loc: Loc = ("traffic", name)
        if not ctx.ok("traffic", name) or not _check(ctx, traffic, loc):
            continue
        band = priority.band(ctx, traffic.priority, (*loc, "priority"))
        duration_ps = ctx.file.run.duration_ps
        if fabric is None or duration_ps is None:
            continue
        host_count = fabric.host_count
        if host_count < 2:
            msg = f'the flows of "{name}" need two hosts, and the cluster has one'
            placement.too_few(ctx, msg, "write hosts = 2, or more", host_count)
            continue
        tenant = Tenant(
            name=name,
            table=traffic,
            source=ctx.source,
            base_dir=ctx.base_dir,
            host_count=host_count,
            rate_bps=fabric.mean_host_rate_bps,
            band=band or 0,
            band_count=network.bands_of(ctx.file.cluster.queue),
            until_ps=duration_ps,
            run_seed=ctx.file.run.seed,
            is_first=not any(o.is_random for o in origins),
        )
        try:
            origin = tenant.origin()
        except ScenarioError as error:
            ctx.faults += error.faults
            continue
        origins.append(origin)
        total += origin.flows.expected_count
        if total > MAX_FLOWS:
            ctx.faults.append(too_many(total, Failure(ctx.source, (*loc, origin.key))))
            total -= origin.flows.expected_count
    return tuple(origins)


def nodes(ctx: Context) -> int | None:
    """Return the number of hosts that replayed connection matrices of htsim require; `None` if none sets the number."""
    if not ctx.is_open_star:
        return None
    replayed = [t.replay for name, t in ctx.file.traffic.items() if t.replay is not None and ctx.ok("traffic", name)]
    return max((found for one in replayed if (found := nodes_of(ctx.base_dir / one)) is not None), default=None)


def _check(ctx: Context, traffic: TrafficTable, loc: Loc) -> bool:
    """Check the keys of a tenant against one another; return whether all of its keys are valid."""
    before = len(ctx.faults)
    given = [key for key in FLOW_KEYS if traffic.value(key) is not None]
    if len(given) > 1:
        msg = f"`{given[0]}` and `{given[1]}` contradict each other"
        ctx.add("GT016", (*loc, given[1]), msg, "keep one of them")
    elif not given:
        if not ctx.misspelt(loc, *FLOW_KEYS):
            ctx.add("GT010", (*loc, "sizes"), "`sizes` is missing", 'write sizes = "web-search", or a replay')
    elif given[0] not in ("sizes", "cdf"):
        why = "a time of its own" if given[0] in ("incast", "bursts") else "the start times of its own list"
        for key in ("arrivals", "load", "burst"):
            if traffic.value(key) is not None:
                ctx.no_effect((*loc, key), f"with `{given[0]}`", f"it has {why}")
    elif traffic.arrivals is not None and traffic.load_ppm is not None:
        ctx.add("GT016", (*loc, "load"), "`arrivals` and `load` contradict each other", "keep one of them")
    elif traffic.arrivals is None and traffic.load_ppm is None and not ctx.misspelt(loc, "arrivals", "load"):
        hint = 'write arrivals = { rate = "23/s" } or load = 0.3'
        ctx.add("GT010", (*loc, "arrivals"), "`arrivals` is missing", hint)
    for key in ("replay_sha256", "replay_start_unit"):
        if traffic.value(key) is not None and traffic.replay is None:
            ctx.no_effect((*loc, key), "without `replay`", "leave it out")
    network.announce(ctx, traffic.announce, loc)
    is_whole = all(ctx.ok(str(loc[0]), str(loc[1]), key) for key in TrafficTable.declared() if key != "priority")
    return len(ctx.faults) == before and is_whole
