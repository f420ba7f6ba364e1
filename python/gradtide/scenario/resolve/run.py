"""Checks the keys of `run`, and that a run exceeds neither the limits of memory nor the range of simulated time."""

import math
import re

from gradtide import units
from gradtide.errors import ScenarioError, hinted
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.job import Job
from gradtide.scenario.keys.cluster import Host
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.resolve.network import MAX_FLUID_BPS, MAX_RUN_PS, TOO_FAST
from gradtide.scenario.source import Loc
from gradtide.traffic import MAX_FLOW_BYTES
from gradtide.units import PPM


def length(ctx: Context) -> None:
    """Check `run.duration` against warm-up, cool-down and background traffic."""
    run, has_traffic = ctx.file.run, bool(ctx.file.traffic)
    if not ctx.ok("run", "duration"):
        return
    if run.duration_ps is None and has_traffic and not ctx.misspelt(("run",), "duration"):
        msg = "`duration` is missing: background flows do not end by themselves"
        ctx.add("GT010", ("run", "duration"), msg, 'write duration = "12s"')
    if not (ctx.ok("run", "warmup") and ctx.ok("run", "cooldown")):
        return
    for key in ("warmup", "cooldown"):
        if run.value(key) and not has_traffic and ctx.ok("traffic"):
            ctx.no_effect(("run", key), "without traffic", "it is for background flows; leave it out")
    if run.duration_ps is not None and run.warmup_ps + run.cooldown_ps >= run.duration_ps:
        key = "warmup" if run.warmup_ps >= run.cooldown_ps else "cooldown"
        parts = f"{units.format_time(run.warmup_ps)} and {units.format_time(run.cooldown_ps)}"
        msg = f"warm-up and cool-down ({parts}) leave no time to count in {units.format_time(run.duration_ps)}"
        ctx.add("GT052", ("run", key), msg, "shorten them, or lengthen `duration`", run.value(key))


def probe(ctx: Context, fabric: Fabric | None) -> None:
    """Check that the links, jobs and tenants of `run.probe` exist."""
    probe, loc = ctx.file.run.probe, ("run", "probe")
    if probe is None or not ctx.ok("run", "probe"):
        return
    known = set(fabric.link_names()) if fabric is not None and probe.links else set()
    for index, link in enumerate(probe.links or ()):
        if fabric is not None and link not in known:
            last = fabric.host_count - 1
            inner = sorted(known - {f"h{host}" for host in range(last + 1)}, key=lambda n: (len(n), n))
            every = f"links are h0 to h{last} and {inner[0]} to {inner[-1]}" if inner else f"links are h0 to h{last}"
            if ctx.file.cluster.node is not None:
                every = f"links are {fabric.link_names()[0]} to {fabric.link_names()[-1]}"
            hint = hinted(link, sorted(known) if len(known) <= 10_000 else (), every, '"{}"')
            ctx.add("GT013", (*loc, "links", index), f'unknown link "{link[:80]}"', hint, link)
    for key, given in (("links", probe.links), ("cwnd", probe.cwnd)):
        for index, name in enumerate(given or ()):
            if name in (given or ())[:index]:
                ctx.add("GT015", (*loc, key, index), f'"{name[:80]}" is named twice', "delete one of the two", name)
    for index, name in enumerate(probe.cwnd or ()):
        owner, _, flow = name.partition(".")
        if (owner not in ctx.file.job and owner not in ctx.file.traffic) or (
            flow and (owner not in ctx.file.traffic or not re.fullmatch(r"\d{1,9}", flow, re.ASCII))
        ):
            names = ", ".join([*ctx.file.job, *ctx.file.traffic])
            hint = f"there is {names}; write NAME.NUMBER for one background flow"
            ctx.add("GT013", (*loc, "cwnd", index), f'"{name[:80]}" names no connection', hint, name)


MAX_ITERATIONS = 100_000

MAX_OPERATIONS = 1_000_000_000
"""Maximum of (compute ops + chunks) x iterations of a job. Calibration: a run at the limit takes about a minute."""

MAX_DIVIDED_OPERATIONS = 50_000_000
"""Maximum number of ops and transfers of a parallel job in all iterations: rows of the timeline and transfers.csv."""

MAX_WORKER_RECORDS = 20_000_000
"""Maximum of workers x iterations if workers differ, i.e. of rows in `workers.csv`. The core has the same limit."""


def _check_parallel(ctx: Context, job: Job, loc: Loc) -> None:
    """Add a fault if a parallel job would exceed the limits of memory or the range of simulated time."""
    count = job.iterations or 1
    if count * job.op_count > MAX_DIVIDED_OPERATIONS:
        msg = f"{count:,} iterations of about {job.op_count:,} ops and transfers are too many"
        fewer, key = (
            ("fewer iterations", "model") if job.parallel_model is None else ("a smaller `global_batch`", "parallel")
        )
        ctx.add("GT050", (*loc, key), msg, f"at most {MAX_DIVIDED_OPERATIONS:,}; use {fewer}")
    elif count * job.compute_ps > MAX_RUN_PS // 100:
        days = count * job.compute_ps // (86_400 * units.PS_PER_SECOND)
        ctx.add("GT051", loc, f"ranks would compute for {days:,} days", "a run ends within a day; is the model right?")


def _check_rates(ctx: Context) -> None:
    """Add a fault for each rate above `MAX_FLUID_BPS`. Cables of a custom topology are checked when they are read."""
    cluster, engine = ctx.file.cluster, ctx.file.run.engine
    topology = cluster.topology
    rates: dict[Loc, int | None] = {}
    if engine == "fluid":
        rates["cluster", "link", "rate"] = cluster.link.rate_bps
        if topology.fabric_link is not None:
            rates["cluster", "topology", "fabric_link", "rate"] = topology.fabric_link.rate_bps
    if cluster.node is not None:
        rates["cluster", "node", "scale_up", "rate"] = cluster.node.scale_up.rate_bps
    for loc, rate_bps in rates.items():
        if rate_bps is not None and rate_bps > MAX_FLUID_BPS:
            ctx.add("GT014", loc, *TOO_FAST)


def check_limits(ctx: Context, jobs: tuple[Job, ...], fabric: Fabric) -> None:
    """Raise a `ScenarioError` if the run would exceed the limits of memory or the range of simulated time."""
    _check_rates(ctx)
    run, link = ctx.file.run, ctx.file.cluster.link
    for job in jobs:
        loc: Loc = ("job", job.name)
        if job.is_parallel:
            _check_parallel(ctx, job, loc)
            continue
        parts = sum(
            1 if job.schedule.chunk_bytes is None else -(-r.parameter_bytes // job.schedule.chunk_bytes)
            for r in job.layers
        )
        key, count = "iterations", job.iterations
        least_ppm, most_ppm = job.pace_ppm
        if count is None:
            key, count = "duration", -(-(run.duration_ps or 0) // max(job.compute_ps * least_ppm // PPM, 1))
        at = (*loc, key) if key == "iterations" else ("run", key)
        if job.parameter_bytes > MAX_FLOW_BYTES:
            msg = f"{job.parameter_bytes:,} bytes of parameters are too many"
            ctx.add("GT050", (*loc, "model"), msg, f"at most {MAX_FLOW_BYTES:,}, as of a background flow")
            continue
        if count > MAX_ITERATIONS:
            msg = f"about {count:,} iterations are too many"
            ctx.add("GT050", at, msg, f"a run has at most {MAX_ITERATIONS:,}; shorten it")
            continue
        streams = job.workers if job.is_uneven or job.is_pulled else 1
        if job.is_pulled and count * 2 * job.parameter_count * job.workers > MAX_WORKER_RECORDS:
            msg = f"{count:,} iterations of {2 * job.parameter_count * job.workers:,} transfers are too many"
            ctx.add("GT050", at, msg, f"at most {MAX_WORKER_RECORDS:,} in all: each is a row of transfers.csv")
            continue
        if count * streams > MAX_WORKER_RECORDS:
            msg = f"{count:,} iterations of {streams:,} workers that differ are too many"
            ctx.add("GT050", at, msg, f"at most {MAX_WORKER_RECORDS:,} in all: each is a row of workers.csv")
            continue
        operations = count * (job.op_count * streams + parts)
        if operations > MAX_OPERATIONS:
            each = f" on {streams:,} workers that differ" if job.is_uneven else ""
            msg = f"{count:,} iterations of {len(job.layers):,} layers{each} and {parts:,} chunks are too many"
            hint = f"at most {MAX_OPERATIONS:,} operations in all; use fewer iterations or larger chunks"
            ctx.add("GT050", (*loc, "schedule", "chunk") if job.schedule.chunk_bytes else at, msg, hint)
            continue
        counts = job.counts
        hops, slowest_bps, delay_ps = fabric.reach([job.hosts])
        # Upper bound: one link transmits the traffic of all hosts that can share it.
        sharers = 1 if job.collective.kind == "ring" and fabric.kind == "star" else min(fabric.shared, job.workers)
        bits = math.ceil(job.parameter_bytes * 8 * counts.most * sharers)
        wire_ps = -(-bits * units.PS_PER_SECOND * PPM // (slowest_bps * link.efficiency_ppm))
        if job.collective.reduction_rate_bps is not None:
            wire_ps += math.ceil(
                job.parameter_bytes * 8 * counts.sent * units.PS_PER_SECOND / job.collective.reduction_rate_bps
            )
        host = ctx.file.cluster.host or Host()
        wire_ps += sum(
            math.ceil(job.parameter_bytes * 8 * counts.sent * units.PS_PER_SECOND / rate_bps)
            for rate_bps in host.stages.core().values()
            if rate_bps is not None
        )
        fixed_ps = counts.steps * (hops * delay_ps + 2 * ctx.file.cluster.host_latency_ps)
        fixed_ps += job.schedule.overhead_ps + job.schedule.sync_ps
        fixed_ps += host.message_ps * counts.messages * job.schedule.most_parts
        compute_ps = -(-job.compute_ps * most_ppm * job.compute.overlap_slowdown_ppm // PPM**2)
        iteration_ps = compute_ps + wire_ps + (parts + len(job.layers)) * fixed_ps
        # One iteration precedes the measured iterations, and one may follow them.
        total_ps = job.start_ps + (count + 2) * iteration_ps
        if run.duration_ps is not None:
            total_ps = min(total_ps, job.start_ps + run.duration_ps + 2 * iteration_ps)
        if total_ps > MAX_RUN_PS:
            days = total_ps // (86_400 * units.PS_PER_SECOND)
            msg = f"the run could last {days:,} simulated days"
            hint = "a run ends within 106 days; are rate, size and times in the units you meant?"
            ctx.add("GT051", loc, msg, hint)
    if ctx.faults:
        raise ScenarioError(ctx.faults)
