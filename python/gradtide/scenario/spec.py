"""From a resolved scenario to the core: what this version has an engine for, and the core's input."""

from collections.abc import Sequence
from typing import Any

from gradtide.errors import Fault
from gradtide.scenario.defaults import DEFAULT_TOLERANCE_PPM, announced_packets, transport_of
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.job import Job
from gradtide.scenario.keys import PPM, Adaptive, Probe, Queue, Schedule, SwitchBuffer, Transport
from gradtide.scenario.resolve import Resolved
from gradtide.scenario.servers import graph_spec
from gradtide.scenario.source import Loc, Source
from gradtide.scenario.write import toml_value
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
        default = cluster.with_values(transport=Transport())
        if cluster.transport != transport_of(default, resolved.fabric):
            what = f"a transport other than the default, {engine},"
            add(("cluster", "transport"), what, 'engine = "packet", or the default, newreno of 1380B')
    if is_pipe:
        engine, others = 'with engine = "pipe"', 'engine = "fluid" or "packet"'
        for name in file.traffic:
            add(("traffic", name), f"traffic of neighbours, {engine},", f"{others}, or jobs only")
        for key in ("warmup", "cooldown"):
            if file.run.value(key):
                add(("run", key), f"{key}, which is for neighbours' traffic, {engine},", f'{others}, or "0s"')
    for job in resolved.jobs:
        loc: Loc = ("job", job.name)
        if is_pipe:
            if job.collective.kind != "ring":
                what = f'kind = "{job.collective.kind}", with engine = "pipe",'
                add((*loc, "collective", "kind"), what, 'engine = "fluid" or "packet", or kind = "ring"')
            if job.collective.reduction_rate_bps is not None:
                what = 'a rate of reduction, with engine = "pipe",'
                add((*loc, "collective", "reduction_rate"), what, 'engine = "fluid" or "packet", or none')
            if job.schedule.depth != 1:
                what = f'depth = {toml_value(job.schedule.depth)}, with engine = "pipe",'
                add((*loc, "schedule", "depth"), what, 'engine = "fluid" or "packet", or 1')
        if job.is_pulled:
            if job.compute.overlap_slowdown_ppm != PPM:
                what = 'compute that overlap slows down, with pull = "start",'
                add((*loc, "compute", "overlap_slowdown"), what, 'pull = "update", or 1')
            if len(job.bands) > 1:
                add((*loc, "priority"), 'a list of bands, with pull = "start",', "one band")
            if job.schedule.overhead_ps and file.run.engine == "packet":
                what = 'an overhead, with pull = "start" and engine = "packet",'
                add((*loc, "schedule", "overhead"), what, 'engine = "fluid", or "0us"')
        if job.schedule.credit > 1 and len(set(job.bands)) > 1:
            what = f"credit = {job.schedule.credit}, with several bands of priority,"
            add((*loc, "schedule", "credit"), what, "credit = 1, or one priority")
        if job.adaptive is not None:
            plain = job.collective.kind == "ring" and job.schedule.depth == 1 and job.schedule.credit == 1
            if not plain or job.is_pulled or job.graph is not None:
                what = f'policy = "{job.adaptive.policy}" for more than a chain of layers and one ring at a time'
                add((*loc, "priority"), what, 'kind = "ring", depth = 1 and credit = 1, or another policy')
        if job.is_foreseen and len(resolved.jobs) > 1:
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
        "jobs": [_job_spec(job, resolved.fabric) for job in resolved.jobs],
        "traffic": [_traffic_spec(neighbour, resolved) for neighbour in neighbours],
        "cluster": {
            "topology": resolved.fabric.spec(),
            **cluster.core(),
            "queue": _queue_spec(cluster.queue),
            "switch_buffer": _buffer_spec(cluster.switch_buffer),
            "transport": _transport_spec(cluster.transport),
        },
        "run": {**run.core(), "probe": _probe_spec(run.probe)},
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


def _queue_spec(queue: Queue) -> dict[str, Any]:
    discipline: dict[str, Any] = {"kind": "fifo" if queue.kind in ("ecn", "red", "pcn") else queue.kind}
    if queue.kind == "strict":
        discipline["bands"] = queue.bands
    if queue.kind == "drr":
        discipline["weights"] = queue.weights
    mark: dict[str, Any] | None = None
    if queue.threshold_packets is not None:
        mark = {"kind": "threshold", "packets": queue.threshold_packets, "at": queue.mark_at}
    if queue.kind == "red":
        fields = ("min_packets", "max_packets", "max_probability_ppm", "weight_ppm", "ecn")
        mark = {"kind": "red", **{name: getattr(queue, name) for name in fields}}
    pcn = {"expire_ps": queue.expire_ps, "timeout_ps": queue.timeout_ps} if queue.kind == "pcn" else None
    return {"discipline": discipline, "capacity": _capacity(queue.capacity), "mark": mark, "pcn": pcn}


def _buffer_spec(buffer: SwitchBuffer | None) -> dict[str, Any] | None:
    return None if buffer is None else {"capacity": _capacity(buffer.capacity), **buffer.core()}


def _capacity(buffer: Buffer) -> dict[str, int]:
    return {"bytes" if buffer.is_bytes else "packets": buffer.size}


def _probe_spec(probe: Probe | None) -> dict[str, Any] | None:
    if probe is None:
        return None
    meant = [name.partition(".") for name in probe.cwnd or ()]
    return {
        **probe.core(),
        "cwnd": [{"tenant": owner, "flow": int(flow) if flow else None} for owner, _, flow in meant],
    }


def _transport_spec(transport: Transport) -> dict[str, Any]:
    congestion: dict[str, Any] = {"kind": transport.kind}
    if transport.kind == "dctcp":
        congestion["gain_ppm"] = transport.gain_ppm
    if transport.kind == "cubic":
        congestion |= {"hystart": transport.hystart, "byte_counting": transport.byte_counting}
    return {"congestion": congestion, **transport.core()}


def _job_spec(job: Job, fabric: Fabric) -> dict[str, Any]:
    depth = job.schedule.depth
    return {
        "name": job.name,
        "layers": [layer._asdict() for layer in job.layers],
        "hosts": list(job.hosts),
        "iterations": job.iterations,
        "collective": {
            "algorithm": _algorithm_spec(job),
            "depth": None if depth == "adaptive" else depth,
            **job.collective.core(),
        },
        "schedule": {"order": _order_spec(job), "fusion": _fusion_spec(job.schedule), **job.schedule.core()},
        "bands": list(job.bands),
        "start_ps": job.start_ps,
        "compute": job.compute.core(),
        "servers": _servers_spec(job),
        "ops": _ops_spec(job),
        "announced_packets": job.announced_packets,
        "adaptive": _adaptive_spec(job, fabric),
    }


def _order_spec(job: Job) -> dict[str, Any]:
    schedule = job.schedule
    order: dict[str, Any] = {"kind": schedule.order}
    if schedule.order == "priority":
        order["queues"] = schedule.queues
    if schedule.order == "file":
        order |= {"ranks": list(job.ranks or ()), "in_turn": bool(schedule.in_turn)}
    return order


def _adaptive_spec(job: Job, fabric: Fabric) -> dict[str, Any] | None:
    keys = job.adaptive
    if keys is None:
        return None
    bands = {"high": 0, "low": job.bands[0]}
    if keys.policy == "oracle":
        from gradtide.fct import SMALL_BYTES

        return {"policy": "oracle", **bands, "price_ppm": keys.price_ppm, "small_bytes": SMALL_BYTES}
    rate_bps, delay_ps = fabric.worst_link
    has_deadlines = keys.policy == "deadline"
    return {
        "policy": "deadline",
        **bands,
        "has_deadlines": has_deadlines,
        "credit": keys.credit,
        "window_bytes": keys.window_bytes,
        "link_bps": rate_bps,
        "round_trip_ps": 2 * fabric.hops * delay_ps,
        "tolerance_ppm": keys.tolerance_ppm if has_deadlines else DEFAULT_TOLERANCE_PPM,
        "margin_ppm": keys.margin_ppm or 0,
        "exchange": keys.exchange is not False,
    }


def _ops_spec(job: Job) -> dict[str, Any] | None:
    if job.graph is None or job.is_pulled:
        return None
    return {"order": job.compute.order, "graph": graph_spec(job.graph)}


def _servers_spec(job: Job) -> dict[str, Any] | None:
    ps = job.collective.ps
    if not job.is_pulled or ps is None:
        return None
    return {
        "count": ps.servers,
        "placement": ps.placement,
        "shards": ps.shards,
        "task": job.task,
        "disorder_ppm": job.schedule.disorder_ppm,
        "graph": None if job.graph is None else graph_spec(job.graph),
    }


def _fusion_spec(schedule: Schedule) -> dict[str, Any]:
    size_bytes = schedule.fusion_bytes
    if schedule.buckets is not None:
        return {"kind": "buckets", "layer_counts": schedule.buckets}
    if size_bytes == "adaptive":
        return {"kind": "adaptive"}
    if schedule.first_fusion_bytes is not None:
        return {"kind": "reach", "first_bytes": schedule.first_fusion_bytes, "bytes": size_bytes}
    if schedule.cycle_ps is not None:
        return {"kind": "ready", "bytes": size_bytes, "cycle_ps": schedule.cycle_ps}
    return {"kind": "cap", "bytes": size_bytes}


def _algorithm_spec(job: Job) -> dict[str, Any]:
    keys = job.collective
    if keys.ps is not None:
        return {"kind": "parameter_server", "servers": max(1, job.servers), "placement": keys.ps.placement}
    table: dict[str, Any] = {"kind": keys.kind}
    if keys.group is not None:
        table["group"] = job.group or 1
    if keys.inside is not None:
        table["inside"] = keys.inside
    return table
