"""From a resolved scenario to the core: what this version has an engine for, and the core's input."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gradtide.errors import Fault
from gradtide.scenario.keys import PPM, Adaptive, Cluster, Queue, Run, Transport
from gradtide.scenario.resolve import (
    GROUPED,
    RED_DEFAULTS,
    Foresees,
    Job,
    Resolved,
    announced_packets,
    patience_ps,
    transport_of,
)
from gradtide.scenario.servers import graph_spec
from gradtide.scenario.source import Loc, Source
from gradtide.traffic import Neighbour
from gradtide.units import Buffer

_ADAPTIVE = ("adaptive priority of neighbours", '"high", "low", 0 to 7')


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
    is_pipe = file.run.engine == "pipe"
    if is_pipe and resolved.fabric.kind != "star":
        what = f'kind = "{resolved.fabric.kind}", with engine = "pipe",'
        add(("cluster", "topology", "kind"), what, 'engine = "fluid" or "packet", or kind = "star"')
    if file.run.engine != "packet":
        engine = f'with engine = "{file.run.engine}"'
        if cluster.queue != Queue():
            what = f"a queue other than the default, {engine},"
            add(("cluster", "queue"), what, 'engine = "packet", or the default, pfifo_fast of 1000pkt')
        if cluster.switch_buffer is not None:
            add(("cluster", "switch_buffer"), f"a shared buffer, {engine},", 'engine = "packet", or none')
        if file.run.probe is not None:
            add(("run", "probe"), f"a probe, {engine},", 'engine = "packet", or none')
        default = cluster.model_copy(update={"transport": Transport()})
        if transport_of(cluster, resolved.fabric) != transport_of(default, resolved.fabric):
            what = f"a transport other than the default, {engine},"
            add(("cluster", "transport"), what, 'engine = "packet", or the default, newreno of 1380B')
    if is_pipe:
        engine, others = 'with engine = "pipe"', 'engine = "fluid" or "packet"'
        for name in file.traffic:
            add(("traffic", name), f"traffic of neighbours, {engine},", f"{others}, or jobs only")
        for key in ("warmup", "cooldown"):
            if getattr(file.run, key):
                add(("run", key), f"{key}, which is for neighbours' traffic, {engine},", f'{others}, or "0s"')
    for job in resolved.jobs:
        loc: Loc = ("job", job.name)
        if is_pipe:
            if job.collective != "ring":
                what = f'kind = "{job.collective}", with engine = "pipe",'
                add((*loc, "collective", "kind"), what, 'engine = "fluid" or "packet", or kind = "ring"')
            if job.reduction_bps is not None:
                what = 'a rate of reduction, with engine = "pipe",'
                add((*loc, "collective", "reduction_rate"), what, 'engine = "fluid" or "packet", or none')
            if job.depth != 1:
                words = '"adaptive"'
                what = f'depth = {job.depth or words}, with engine = "pipe",'
                add((*loc, "schedule", "depth"), what, 'engine = "fluid" or "packet", or 1')
        if job.is_pulled:
            if job.overlap_slowdown_ppm != PPM:
                what = 'compute that overlap slows down, with pull = "start",'
                add((*loc, "compute", "overlap_slowdown"), what, 'pull = "update", or 1')
            if len(job.bands) > 1:
                add((*loc, "priority"), 'a list of bands, with pull = "start",', "one band")
            if job.overhead_ps and file.run.engine == "packet":
                what = 'an overhead, with pull = "start" and engine = "packet",'
                add((*loc, "schedule", "overhead"), what, 'engine = "fluid", or "0us"')
        if job.credit > 1 and len(set(job.bands)) > 1:
            what = f"credit = {job.credit}, with several bands of priority,"
            add((*loc, "schedule", "credit"), what, "credit = 1, or one priority")
        if job.adaptive is not None:
            plain = job.collective == "ring" and job.depth == 1 and job.credit == 1
            if not plain or job.is_pulled or job.graph is not None:
                policy = job.adaptive.written()["adaptive"]["policy"]
                what = f'policy = "{policy}" for more than a chain of layers and one ring at a time'
                add((*loc, "priority"), what, 'kind = "ring", depth = 1 and credit = 1, or another policy')
        if isinstance(job.adaptive, Foresees) and len(resolved.jobs) > 1:
            what = 'policy = "oracle" beside another job'
            add((*loc, "priority"), what, 'policy = "deadline", or one job')
    for name, table in file.traffic.items():
        if isinstance(table.priority, Adaptive):
            add(("traffic", name, "priority"), *_ADAPTIVE)
    return faults


def spec(resolved: Resolved, neighbours: Sequence[Neighbour]) -> dict[str, Any]:
    """Return the core's input (`crates/train/src/spec.rs`) for a scenario that has an engine.

    Args:
        resolved: the scenario.
        neighbours: the flows of its neighbours.
    """
    cluster, run = resolved.file.cluster, resolved.file.run
    return {
        "jobs": [_job_spec(job) for job in resolved.jobs],
        "traffic": [_traffic_spec(neighbour, resolved) for neighbour in neighbours],
        "cluster": {
            "topology": resolved.fabric.spec(),
            "link": {
                "rate_bps": cluster.link.rate,
                "delay_ps": cluster.link.delay,
                "efficiency_ppm": cluster.link.efficiency,
            },
            "host_latency_ps": cluster.host_latency,
            "routing": cluster.routing,
            "queue": _queue_spec(resolved),
            "switch_buffer": _buffer_spec(cluster),
            "transport": _transport_spec(resolved),
        },
        "run": {
            "engine": run.engine,
            "seed": run.seed,
            "duration_ps": run.duration,
            "timeline_iterations": run.timeline,
            "probe": _probe_spec(run),
        },
    }


def _traffic_spec(neighbour: Neighbour, resolved: Resolved) -> dict[str, Any]:
    announce = resolved.file.traffic[neighbour.name].announce
    return {
        "name": neighbour.name,
        "start_ps": neighbour.start_ps.tolist(),
        "src": neighbour.src.tolist(),
        "dst": neighbour.dst.tolist(),
        "bytes": neighbour.bytes.tolist(),
        "band": neighbour.band.tolist(),
        "idle_ps": neighbour.idle_ps,
        "together": neighbour.together,
        "setup_ps": neighbour.setup_ps,
        "announced_packets": announced_packets(announce, resolved.file.cluster.queue),
    }


def _queue_spec(resolved: Resolved) -> dict[str, Any]:
    queue = resolved.file.cluster.queue
    discipline: dict[str, Any] = {"kind": "fifo" if queue.kind in ("ecn", "red", "pcn") else queue.kind}
    if queue.kind == "strict":
        discipline["bands"] = queue.bands
    if queue.kind == "drr":
        discipline["weights"] = queue.weights
    mark: dict[str, Any] | None = None
    if queue.threshold is not None:
        mark = {"kind": "threshold", "packets": queue.threshold, "at": queue.mark_at or "enqueue"}
    if queue.kind == "red":
        given = {"max_probability": queue.max_probability, "weight": queue.weight}
        shares = {f"{key}_ppm": value or round(RED_DEFAULTS[key] * PPM) for key, value in given.items()}
        ends = {"min_packets": queue.min, "max_packets": queue.max}
        mark = {"kind": "red", **ends, **shares, "ecn": bool(queue.ecn)}
    pcn = None
    if queue.kind == "pcn":
        timeout_ps, expire_ps = patience_ps(resolved.file, resolved.fabric)
        pcn = {"expire_ps": expire_ps, "timeout_ps": timeout_ps}
    return {"discipline": discipline, "capacity": _capacity(queue.capacity), "mark": mark, "pcn": pcn}


def _buffer_spec(cluster: Cluster) -> dict[str, Any] | None:
    buffer = cluster.switch_buffer
    return None if buffer is None else {"capacity": _capacity(buffer.capacity), "alpha_ppm": buffer.alpha}


def _capacity(buffer: Buffer) -> dict[str, int]:
    return {"bytes" if buffer.is_bytes else "packets": buffer.size}


def _probe_spec(run: Run) -> dict[str, Any] | None:
    if run.probe is None:
        return None
    meant = [name.partition(".") for name in run.probe.cwnd or ()]
    cwnd = [{"tenant": owner, "flow": int(flow) if flow else None} for owner, _, flow in meant]
    return {"every_ps": run.probe.every, "links": run.probe.links, "cwnd": cwnd}


def _transport_spec(resolved: Resolved) -> dict[str, Any]:
    transport = transport_of(resolved.file.cluster, resolved.fabric)
    congestion: dict[str, Any] = {"kind": transport.congestion}
    if transport.gain_ppm is not None:
        congestion["gain_ppm"] = transport.gain_ppm
    if transport.congestion == "cubic":
        congestion |= {"hystart": transport.hystart, "byte_counting": transport.byte_counting}
    return {
        "congestion": congestion,
        "ecn": transport.ecn,
        "segment_bytes": transport.segment_bytes,
        "initial_window_segments": transport.initial_segments,
        "window_bytes": transport.window_bytes,
        "recovery": transport.recovery,
        "timers": transport.timers,
    }


def _job_spec(job: Job) -> dict[str, Any]:
    order: dict[str, Any] = {"kind": job.order}
    if job.order == "priority":
        order["queues"] = job.queues
    if job.order == "file":
        order["ranks"] = list(job.ranks or ())
        order["in_turn"] = job.in_turn
    return {
        "name": job.name,
        "layers": [layer._asdict() for layer in job.layers],
        "hosts": list(job.hosts),
        "iterations": job.iterations,
        "collective": {
            "algorithm": _algorithm_spec(job),
            "drops_remainder": job.drops_remainder,
            "depth": job.depth,
            "reduction_bps": job.reduction_bps,
        },
        "schedule": {
            "order": order,
            "fusion": _fusion_spec(job),
            "chunk_bytes": job.chunk_bytes,
            "credit": job.credit,
            "barrier": job.barrier,
        },
        "bands": list(job.bands),
        "start_ps": job.start_ps,
        "transfer_overhead_ps": job.overhead_ps,
        "sync_ps": job.sync_ps,
        "overlap_slowdown_ppm": job.overlap_slowdown_ppm,
        "pace": _pace_spec(job),
        "servers": _servers_spec(job),
        "ops": _ops_spec(job),
        "announced_packets": job.announced_packets,
        "adaptive": _adaptive_spec(job),
    }


def _adaptive_spec(job: Job) -> dict[str, Any] | None:
    if job.adaptive is None:
        return None
    bands = {"high": 0, "low": job.bands[0]}
    if isinstance(job.adaptive, Foresees):
        from gradtide.fct import SMALL_BYTES

        return {"policy": "oracle", **bands, **asdict(job.adaptive), "small_bytes": SMALL_BYTES}
    return {"policy": "deadline", **bands, **asdict(job.adaptive)}


def _ops_spec(job: Job) -> dict[str, Any] | None:
    if job.graph is None or job.is_pulled:
        return None
    return {"order": job.compute_order, "graph": graph_spec(job.graph)}


def _servers_spec(job: Job) -> dict[str, Any] | None:
    if not job.is_pulled:
        return None
    return {
        "count": job.servers,
        "placement": job.server_placement,
        "shards": job.shards,
        "task": job.task,
        "disorder_ppm": job.disorder_ppm,
        "graph": None if job.graph is None else graph_spec(job.graph),
    }


def _fusion_spec(job: Job) -> dict[str, Any]:
    if job.buckets is not None:
        return {"kind": "buckets", "layer_counts": list(job.buckets)}
    if job.adapts_fusion:
        return {"kind": "adaptive"}
    if job.first_fusion_bytes is not None:
        return {"kind": "reach", "first_bytes": job.first_fusion_bytes, "bytes": job.fusion_bytes}
    if job.cycle_ps is not None:
        return {"kind": "ready", "bytes": job.fusion_bytes, "cycle_ps": job.cycle_ps}
    return {"kind": "cap", "bytes": job.fusion_bytes}


def _algorithm_spec(job: Job) -> dict[str, Any]:
    if job.collective == "ps":
        return {"kind": "parameter_server", "servers": max(1, job.servers), "placement": job.server_placement}
    table: dict[str, Any] = {"kind": job.collective}
    if job.group or job.collective in GROUPED:
        table["group"] = max(1, job.group)
    if job.inside:
        table["inside"] = job.inside
    return table


def _pace_spec(job: Job) -> dict[str, Any]:
    straggler = None
    if job.straggler is not None:
        straggler = {
            "worker": job.straggler.worker,
            "factor_ppm": job.straggler.factor,
            "probability_ppm": job.straggler.probability,
        }
    return {"noise_ppm": job.noise_ppm, "straggler": straggler}
