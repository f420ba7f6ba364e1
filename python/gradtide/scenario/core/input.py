"""Converts a resolved scenario into the core's input.

`Table.core` returns the keys that the core's input contains unchanged; the functions here convert all others.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gradtide.disciplines import DISCIPLINES
from gradtide.scenario.core.job import ARBITRARY_PPM, algorithm, graph, parallel
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.job import Job
from gradtide.scenario.keys import Probe
from gradtide.scenario.keys.cluster import Queue, Transport
from gradtide.scenario.keys.job import Schedule
from gradtide.scenario.releases import Releases, parse_release
from gradtide.scenario.resolve.network import announced_packets
from gradtide.scenario.resolve.priority import DEFAULT_TOLERANCE_PPM, WITH_DEADLINES
from gradtide.scenario.resolve.resolved import Resolved
from gradtide.traffic import BackgroundFlows
from gradtide.transports import PARAMETERS
from gradtide.units import Buffer

if TYPE_CHECKING:
    from gradtide.scenario import Scenario


def spec(resolved: Resolved, traffic: Sequence[BackgroundFlows]) -> dict[str, Any]:
    """Return the core's input (`crates/train/src/spec.rs`) for a scenario and its background flows."""
    run = resolved.file.run
    return {
        "jobs": [job_spec(job, resolved.fabric) for job in resolved.jobs],
        "traffic": [_traffic_spec(flows, resolved) for flows in traffic],
        "cluster": cluster_spec(resolved),
        "run": {**run.core(), "all_ranks": resolved.all_simulated, "probe": _probe_spec(run.probe)},
    }


def without_traffic(scenario: "Scenario") -> dict[str, Any]:
    """Return the core's input without background flows, so that none are drawn.

    Raises:
        ScenarioError: if the engine does not support a feature of the scenario.
    """
    scenario.check_built()
    return spec(scenario._resolved, ())


def as_json(spec: dict[str, Any]) -> str:
    """Return the core's input as JSON. Flows are encoded in pieces, because one long call would block Ctrl-C."""
    tables = []
    for table in spec["traffic"]:
        rest = {name: value for name, value in table.items() if not isinstance(value, list)}
        columns = [f'"{name}":[{",".join(_pieces(table[name]))}]' for name in table if name not in rest]
        tables.append(f"{{{','.join(columns)},{json.dumps(rest)[1:]}")
    rest = {name: value for name, value in spec.items() if name != "traffic"}
    return f'{json.dumps(rest)[:-1]},"traffic":[{",".join(tables)}]}}'


def _pieces(values: Sequence[int], length: int = 100_000) -> Iterator[str]:
    for start in range(0, len(values), length):
        yield json.dumps(values[start : start + length])[1:-1]


def cluster_spec(resolved: Resolved) -> dict[str, Any]:
    """Return the cluster of the core's input."""
    cluster = resolved.file.cluster
    buffer = cluster.switch_buffer
    return {
        "topology": resolved.fabric.topology(),
        **cluster.core(),
        "queue": _queue_spec(cluster.queue),
        "switch_buffer": None if buffer is None else {"capacity": _capacity(buffer.capacity), **buffer.core()},
        "transport": _transport_spec(cluster.transport),
    }


def _traffic_spec(flows: BackgroundFlows, resolved: Resolved) -> dict[str, Any]:
    announce = resolved.file.traffic[flows.name].announce
    columns = ("start_ps", "src", "dst", "bytes", "band")
    return {
        "name": flows.name,
        **{name: getattr(flows, name).tolist() for name in columns},
        **{name: getattr(flows, name) for name in ("idle_ps", "together", "setup_ps")},
        "announced_packets": announced_packets(announce, resolved.file.cluster.queue),
    }


def _queue_spec(queue: Queue) -> dict[str, Any]:
    discipline: dict[str, Any] = {"kind": DISCIPLINES[queue.kind].order}
    discipline |= {key: queue.value(key) for key in ("bands", "weights") if queue.value(key) is not None}
    mark: dict[str, Any] | None = None
    if queue.threshold_packets is not None:
        mark = {"kind": "threshold", "packets": queue.threshold_packets, "at": queue.mark_at}
    if queue.kind == "red":
        fields = ("min_packets", "max_packets", "max_probability_ppm", "weight_ppm", "ecn")
        mark = {"kind": "red", **{name: getattr(queue, name) for name in fields}}
    pcn = {"expire_ps": queue.expire_ps, "timeout_ps": queue.timeout_ps} if queue.kind == "pcn" else None
    return {"discipline": discipline, "capacity": _capacity(queue.capacity), "mark": mark, "pcn": pcn}


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
    parameters = {name: getattr(transport, name) for name in PARAMETERS[transport.kind]}
    return {"congestion": {"kind": transport.kind, **parameters}, **transport.core()}


def job_spec(job: Job, fabric: Fabric) -> dict[str, Any]:
    """Return a job of the core's input."""
    depth, parallel_model = job.schedule.depth, job.parallel_model
    ops = None if job.is_pulled else job.graph
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
        "ops": None if ops is None else {"order": job.compute.order, "graph": graph(ops)},
        "announced_packets": job.announced_packets,
        "adaptive": _adaptive_spec(job, fabric),
        "parallel": None
        if parallel_model is None
        else parallel(parallel_model.costs, parallel_model.layout, parallel_model.described),
        "recorded": None if job.step is None else job.step.recorded,
    }


def _order_spec(job: Job) -> dict[str, Any]:
    schedule = job.schedule
    order: dict[str, Any] = {"kind": schedule.order}
    if schedule.order == "priority":
        order["queues"] = schedule.queues
    if schedule.order == "arbitrary":
        order["disorder_ppm"] = ARBITRARY_PPM
    if schedule.order == "file" and schedule.releases is not None:
        return {"kind": "planned", "buckets": _gated(job)}
    if schedule.order == "file":
        order |= {"ranks": list(job.ranks or ()), "in_turn": bool(schedule.in_turn)}
    return order


def _gated(job: Job) -> list[dict[str, Any]]:
    releases = Releases(job.layers)
    ranks, first, found = job.ranks or (), 0, []
    for count, release in zip(job.schedule.buckets or (), job.schedule.releases or (), strict=True):
        members = [place for place in range(first, first + count) if job.layers[place].parameter_bytes]
        first += count
        if members:
            opens = {"layers": members, "release_ps": releases.opens_ps(parse_release(release))}
            found.append((min(ranks[member] for member in members), opens))
    return [opens for _, opens in sorted(found, key=lambda one: one[0])]


def _adaptive_spec(job: Job, fabric: Fabric) -> dict[str, Any] | None:
    keys = job.adaptive
    if keys is None:
        return None
    bands = {"high": 0, "low": job.bands[0]}
    if keys.policy == "oracle":
        from gradtide.fct import SMALL_BYTES

        return {"policy": "oracle", **bands, "price_ppm": keys.price_ppm, "small_bytes": SMALL_BYTES}
    hops, rate_bps, delay_ps = fabric.reach([job.hosts])
    has_deadlines = keys.policy in WITH_DEADLINES
    return {
        "policy": "deadline",
        **bands,
        "has_deadlines": has_deadlines,
        "credit": keys.credit,
        "window_bytes": keys.window_bytes,
        "link_bps": rate_bps,
        "round_trip_ps": 2 * hops * delay_ps,
        "tolerance_ppm": keys.tolerance_ppm if has_deadlines else DEFAULT_TOLERANCE_PPM,
        "margin_ppm": keys.margin_ppm or 0,
        "exchange": keys.exchange is not False,
        "counts_waits": keys.policy == "straggler",
    }


def _servers_spec(job: Job) -> dict[str, Any] | None:
    ps = job.collective.ps
    if not job.is_pulled or ps is None:
        return None
    return {
        "count": ps.servers,
        "placement": ps.placement,
        "shards": ps.shards,
        "task": job.task,
        "sync": _sync_spec(job.collective.bound),
        "disorder_ppm": job.schedule.disorder_ppm,
        "graph": None if job.graph is None else graph(job.graph),
    }


def _sync_spec(bound: int | None) -> dict[str, Any]:
    if bound is None:
        return {"kind": "async"}
    return {"kind": "bounded", "staleness": bound} if bound else {"kind": "sync"}


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
    group = None if keys.group is None else job.group or 1
    placement = None if keys.ps is None else keys.ps.placement
    return algorithm(keys.algorithm, group, keys.inside, job.servers, placement)
