"""From a resolved scenario to the core: what this version has an engine for, and the core's input."""

from typing import Any

from gradtide.errors import Fault
from gradtide.scenario.keys import Queue, Transport
from gradtide.scenario.resolve import Job, Resolved
from gradtide.scenario.source import Loc, Source


def not_built(resolved: Resolved, source: Source) -> list[Fault]:
    """Return a fault for everything that is understood but that this version cannot run."""
    faults = []

    def add(loc: Loc, what: str, available: str) -> None:
        faults.append(source.fault("GT090", loc, f"{what} is not built yet", f"available: {available}"))

    def word(loc: Loc, value: str, available: tuple[str, ...]) -> None:
        if value not in available:
            add(loc, f'{loc[-1]} = "{value}"', ", ".join(f'"{a}"' for a in available))

    file = resolved.file
    cluster = file.cluster
    word(("run", "engine"), file.run.engine, ("pipe",))
    word(("cluster", "topology", "kind"), cluster.topology.kind, ("star",))
    word(("cluster", "routing"), cluster.routing, ("ecmp",))
    if cluster.queue != Queue():
        add(("cluster", "queue"), "a queue other than the default", "the default, pfifo_fast of 1000pkt")
    if cluster.transport != Transport():
        add(("cluster", "transport"), "a transport other than the default", "the default, newreno of 1380B")
    for job in resolved.jobs:
        loc: Loc = ("job", job.name)
        word((*loc, "collective", "kind"), job.collective, ("ring",))
        word((*loc, "schedule", "order"), job.order, ("fifo", "priority", "random", "file"))
        depth = file.job[job.name].schedule.depth
        if depth != 1:
            add((*loc, "schedule", "depth"), f"depth = {depth}", "1")
        if job.band is None:
            add((*loc, "priority"), "adaptive priority", '"high", "low", 0 to 7')
    for name in file.traffic:
        add(("traffic", name), "traffic of neighbours", "jobs only")
    for key in ("warmup", "cooldown"):
        if getattr(file.run, key):
            add(("run", key), f"{key} (it is for neighbours' traffic)", '"0s"')
    return faults


def spec(resolved: Resolved) -> dict[str, Any]:
    """Return the core's input (`crates/train/src/spec.rs`) for a scenario that has an engine."""
    cluster, run = resolved.file.cluster, resolved.file.run
    return {
        "jobs": [_job_spec(job) for job in resolved.jobs],
        "cluster": {
            "topology": {"kind": "star", "hosts": resolved.host_count},
            "link": {
                "rate_bps": cluster.link.rate,
                "delay_ps": cluster.link.delay,
                "efficiency_ppm": cluster.link.efficiency,
            },
            "host_latency_ps": cluster.host_latency,
        },
        "run": {
            "engine": run.engine,
            "seed": run.seed,
            "duration_ps": run.duration,
            "timeline_iterations": run.timeline,
        },
    }


def _job_spec(job: Job) -> dict[str, Any]:
    order: dict[str, Any] = {"kind": job.order}
    if job.order == "priority":
        order["queues"] = job.queues
    if job.order == "file":
        order["ranks"] = list(job.ranks or ())
    return {
        "name": job.name,
        "layers": [layer._asdict() for layer in job.layers],
        "hosts": list(job.hosts),
        "iterations": job.iterations,
        "collective": {"kind": job.collective},
        "schedule": {
            "order": order,
            "fusion": {"kind": "cap", "bytes": job.fusion_bytes}
            if job.buckets is None
            else {"kind": "buckets", "layer_counts": list(job.buckets)},
            "chunk_bytes": job.chunk_bytes,
            "barrier": job.barrier,
        },
        "band": job.band,
        "start_ps": job.start_ps,
        "transfer_overhead_ps": job.overhead_ps,
        "overlap_slowdown_ppm": job.overlap_slowdown_ppm,
    }
