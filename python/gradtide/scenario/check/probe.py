"""Names of sampled links, jobs and tenants."""

import difflib
import re

from gradtide.scenario.check.context import Context
from gradtide.scenario.fabric import (
    Fabric,
)


def check(ctx: Context, fabric: Fabric | None) -> None:
    """Check that the links, jobs and tenants to be sampled exist."""
    probe, loc = ctx.file.run.probe, ("run", "probe")
    if probe is None or not ctx.ok("run", "probe"):
        return
    known = set(fabric.link_names()) if fabric is not None and probe.links else set()
    for index, link in enumerate(probe.links or ()):
        if fabric is not None and link not in known:
            near = difflib.get_close_matches(link, known if len(known) <= 10_000 else (), 1, 0.6)
            last = fabric.host_count - 1
            inner = sorted(known - {f"h{host}" for host in range(last + 1)}, key=lambda n: (len(n), n))
            every = f"links are h0 to h{last} and {inner[0]} to {inner[-1]}" if inner else f"links are h0 to h{last}"
            hint = f'did you mean "{near[0]}"? {every}' if near else every
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
