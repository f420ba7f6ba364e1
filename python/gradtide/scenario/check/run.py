"""The keys of a run: its length with warm-up and cool-down, and the names of sampled links, jobs and tenants."""

import re

from gradtide import units
from gradtide.errors import nearest
from gradtide.scenario.check.context import Context
from gradtide.scenario.fabric import Fabric


def length(ctx: Context) -> None:
    """Check the length of the run against warm-up, cool-down and traffic."""
    run, has_traffic = ctx.file.run, bool(ctx.file.traffic)
    if not ctx.ok("run", "duration"):
        return
    if run.duration_ps is None and has_traffic and not ctx.misspelt(("run",), "duration"):
        msg = "`duration` is missing: background flows do not end by themselves"
        ctx.add("GT010", ("run", "duration"), msg, 'write duration = "12s"')
    if not (ctx.ok("run", "warmup") and ctx.ok("run", "cooldown")):
        return
    for key in ("warmup", "cooldown"):
        if run.value(key) and ctx.has_bands and not has_traffic and ctx.ok("traffic"):
            ctx.no_effect(("run", key), "without traffic", "it is for background flows; leave it out")
    if run.duration_ps is not None and run.warmup_ps + run.cooldown_ps >= run.duration_ps:
        key = "warmup" if run.warmup_ps >= run.cooldown_ps else "cooldown"
        parts = f"{units.format_time(run.warmup_ps)} and {units.format_time(run.cooldown_ps)}"
        msg = f"warm-up and cool-down ({parts}) leave no time to count in {units.format_time(run.duration_ps)}"
        ctx.add("GT052", ("run", key), msg, "shorten them, or lengthen `duration`", run.value(key))


def probe(ctx: Context, fabric: Fabric | None) -> None:
    """Check that the links, jobs and tenants to be sampled exist."""
    probe, loc = ctx.file.run.probe, ("run", "probe")
    if probe is None or not ctx.ok("run", "probe"):
        return
    known = set(fabric.link_names()) if fabric is not None and probe.links else set()
    for index, link in enumerate(probe.links or ()):
        if fabric is not None and link not in known:
            near = nearest(link, known if len(known) <= 10_000 else (), 0.6)
            last = fabric.host_count - 1
            inner = sorted(known - {f"h{host}" for host in range(last + 1)}, key=lambda n: (len(n), n))
            every = f"links are h0 to h{last} and {inner[0]} to {inner[-1]}" if inner else f"links are h0 to h{last}"
            hint = f'did you mean "{near}"? {every}' if near else every
            ctx.add("GT013", (*loc, "links", index), f'unknown link "{link[:80]}"', hint, link)
    for key, given in (("links", probe.links), ("cwnd", probe.cwnd)):
        for index, name in enumerate(given or ()):
            if name in (given or ())[:index]:
                hint = "delete one of the two"
                ctx.add("GT015", (*loc, key, index), f'"{name[:80]}" is named twice', hint, name)
    for index, name in enumerate(probe.cwnd or ()):
        owner, _, flow = name.partition(".")
        if (owner not in ctx.file.job and owner not in ctx.file.traffic) or (
            flow and (owner not in ctx.file.traffic or not re.fullmatch(r"\d{1,9}", flow, re.ASCII))
        ):
            names = ", ".join([*ctx.file.job, *ctx.file.traffic])
            hint = f"there is {names}; write NAME.NUMBER for one background flow"
            ctx.add("GT013", (*loc, "cwnd", index), f'"{name[:80]}" names no connection', hint, name)
