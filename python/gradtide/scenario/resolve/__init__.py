"""Resolves the keys of a file into jobs that can be run, and reports every fault at once.

    data -> ScenarioFile (types, units) -> checks of keys against one another -> jobs, and the file with every default

A value that pydantic refuses is replaced by its default for the later checks, so that one fault does not hide others.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gradtide.algorithms import ALGORITHMS
from gradtide.errors import Fault, ScenarioError
from gradtide.scenario import clusters
from gradtide.scenario.defaults import (
    announced_packets,
    is_remade,
    nics_of,
    overhead_of,
    queue_of,
    schedule_of,
    start_jitter_of,
    transport_of,
)
from gradtide.scenario.fabric import Fabric, Group, Reach
from gradtide.scenario.job import Job
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.keys.job import OF_ROOFLINE, Adaptive, Collective, JobTable, Ps, Schedule
from gradtide.scenario.keys.table import Table
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.origins import Origin
from gradtide.scenario.read import plain, read_keys
from gradtide.scenario.resolve import job as jobs_of
from gradtide.scenario.resolve import memory, network, parallel, run, traffic
from gradtide.scenario.resolve import servers as op_by_op
from gradtide.scenario.resolve.context import MAX_WORKERS, Context
from gradtide.scenario.source import Loc, Source, shown_from
from gradtide.scenario.tables import scaled

DEFAULT_ITERATIONS = 10
_JOB_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass
class Resolved:
    """A scenario whose keys have been checked.

    Attributes:
        file: the keys, with defaults.
        fabric: topology of the network.
        jobs: the jobs, in the order of the file.
        origins: the source of each tenant's flows, in the order of the file.
        written: the resolved scenario as plain data.
        warnings: a sentence for each part of a model's file that the job ignores, and for each inconsistency.
        refusals: faults that prevent a run, but not reading the scenario.
    """

    file: ScenarioFile
    fabric: Fabric
    jobs: tuple[Job, ...]
    origins: tuple[Origin, ...]
    written: dict[str, Any]
    warnings: tuple[str, ...]
    refusals: tuple[Fault, ...]

    def groups(self) -> Iterator[Group]:
        """Yield the groups of hosts that communicate: those of each job and of each tenant's flows."""
        return _groups(self.jobs, self.origins, self.fabric)

    def reach(self) -> Reach:
        """Return the worst case of all routes between hosts that communicate."""
        return self.fabric.reach(self.groups())


def _groups(jobs: tuple[Job, ...], origins: tuple[Origin, ...], fabric: Fabric) -> Iterator[Group]:
    yield from (job.hosts for job in jobs)
    for origin in origins:
        yield from origin.groups(fabric.host_count)


def resolve(data: Mapping[str, Any], source: Source, base_dir: Path) -> Resolved:
    """Resolve a scenario whose relative paths start from `base_dir`.

    Raises:
        ScenarioError: with every fault, in the order of the file.
    """
    raw = plain(data, source)
    if not raw:
        hint = 'the least is [job.train] with model = "resnet50" and workers = 8'
        raise ScenarioError([source.fault("GT005", (), "the scenario is empty", hint, None)])
    try:
        cluster_name, unknown = clusters.expand(raw, source)
        file, faults, bad = read_keys(raw, source)
        faults += unknown
        bad |= {("cluster",)} if unknown else set()
        result = _resolve(Context(file, source, base_dir, bad, faults, cluster_name))
        if faults:
            raise ScenarioError(faults)
    except ScenarioError as error:
        found = sorted(error.faults, key=lambda f: (f.file != source.name, f.file, f.line or 0))
        raise ScenarioError(shown_from(found, source, base_dir)) from None
    assert result is not None  # without faults every job was resolved
    return replace(result, warnings=(*source.notes, *result.warnings))


def _resolve(ctx: Context) -> Resolved | None:
    file = ctx.file
    for kind, names in (("job", file.job), ("traffic", file.traffic)):
        for name in names:
            if not _JOB_NAME.fullmatch(name):
                hint = "letters, digits, - and _, at most 64"
                ctx.add("GT018", (kind, name), f'"{name[:80]}" cannot be a name', hint, name, at_key=True)
    nodes = traffic.nodes(ctx)
    if not file.job and ctx.ok("job"):
        _without_jobs(ctx, nodes)
    network.device(ctx, file.cluster.device)
    fabric = network.shape(ctx, file.cluster.topology)
    run.length(ctx)
    hosts = jobs_of.hosts(ctx, fabric)
    is_placed = len(hosts) == len(file.job) and bool(hosts or nodes)
    if fabric is None and ctx.is_open_star and is_placed and ctx.ok("cluster", "topology"):
        places = max([1, nodes or 0, *(max(h) + 1 for h in hosts.values())])
        if places > MAX_WORKERS:
            ctx.too_many(("cluster", "topology", "hosts"), places, MAX_WORKERS, "hosts")
        else:
            fabric = network.open_star(file.cluster, places)
    network.check_queue(ctx, file.cluster.queue)
    network.check_transport(ctx, file.cluster)
    run.probe(ctx, fabric)
    origins = traffic.origins(ctx, fabric)
    jobs = [_job(ctx, name, job, hosts.get(name), fabric) for name, job in file.job.items()]
    if ctx.faults or fabric is None:
        return None
    resolved = tuple(job for job in jobs if job is not None)
    run.check_limits(ctx, resolved, fabric)
    complete = _completed(ctx, resolved, cache(lambda: fabric.reach(_groups(resolved, origins, fabric))))
    warnings = dict.fromkeys(warning for table in ctx.tables.values() for warning in table.left_out)
    warnings |= dict.fromkeys(memory.warnings(ctx, resolved))
    warnings |= dict.fromkeys(warning for origin in origins for warning in origin.warnings)
    return Resolved(
        complete,
        fabric,
        resolved,
        origins,
        _written(ctx, complete, origins, fabric),
        tuple(warnings),
        tuple(ctx.too_large.values()),
    )


def _without_jobs(ctx: Context, nodes: int | None) -> None:
    """Refuse a scenario without a job unless it has flows and a number of hosts."""
    if not ctx.file.traffic and ctx.ok("traffic"):
        hint = 'write [job.train] with model = "resnet50" and workers = 8'
        ctx.add("GT010", ("job",), "the scenario has no job", hint)
        return
    if nodes is None and ctx.is_open_star and ctx.ok("cluster", "topology"):
        msg = "`hosts` is missing: without a job, the star needs a number of hosts"
        ctx.add("GT010", ("cluster", "topology", "hosts"), msg, 'write topology = { kind = "star", hosts = 8 }')


def _job(ctx: Context, name: str, job: JobTable, hosts: tuple[int, ...] | None, fabric: Fabric | None) -> Job | None:
    loc: Loc = ("job", name)
    table = jobs_of.read_table(ctx, name, job, loc, len(hosts) if hosts else job.workers or 1)
    division = parallel.division(ctx, name, job, loc, table)
    step = parallel.recorded(ctx, job, loc, table)
    if job.iterations is not None and job.iterations > run.MAX_ITERATIONS:
        ctx.too_many((*loc, "iterations"), job.iterations, run.MAX_ITERATIONS, "iterations")
    collective = job.collective
    group, servers = jobs_of.check_collective(ctx, name, collective, (*loc, "collective"), hosts, fabric)
    kind = collective.algorithm
    task = jobs_of.servers(ctx, name, job, loc, table)
    bucketed = table is not None and table.bucketed
    fusion, barrier, depth = (0, True, 1) if task else schedule_of(job.schedule, bucketed=bucketed)
    jobs_of.buckets(ctx, name, job.schedule, loc, table)
    ranks = jobs_of.ranks(ctx, name, job.schedule, loc, table)
    bands = jobs_of.bands(ctx, job.priority, (*loc, "priority"), table)
    adaptive = jobs_of.adaptive(ctx, job.priority, (*loc, "priority"), hosts, fabric)
    network.announce(ctx, job.announce, loc)
    jobs_of.straggler(ctx, job, loc, None if hosts is None else len(hosts) - servers)
    if table is None or hosts is None or ctx.faults:
        return None
    scale_to, layers, graph = job.compute.scale_to_ps, table.layers, table.graph
    if graph is not None and scale_to is not None:
        graph = op_by_op.scaled(graph, scale_to)
    elif scale_to is not None and not is_remade(job.model):
        layers = scaled(layers, scale_to)
    if graph is not None and not task:
        layers = op_by_op.trained_layers(graph, layers)
    iterations = job.iterations
    if iterations is None and ctx.file.run.duration_ps is None:
        # All iterations of a parallel job are alike.
        iterations = DEFAULT_ITERATIONS if division is None and step is None else 1
    ps = collective.ps or Ps()
    return Job(
        name=name,
        model=table.label,
        layers=layers,
        graph=graph,
        hosts=hosts,
        iterations=iterations,
        placement=job.placement if isinstance(job.placement, str) else "packed",
        task=task or ("exchange" if job.task == "exchange" else None),
        compute=parallel.completed(job.compute, division)
        if division is not None
        else job.compute.with_values(
            device=None if table.is_timed and table.device.origin != "stated" else table.device.name,
            batch=table.batch,
            seq=table.seq,
            order=(job.compute.order or "listed") if graph is not None and not task else None,
        ),
        collective=collective.with_values(
            kind=kind,
            group=group if "group" in ALGORITHMS[kind].keys else None,
            inside=(collective.inside or "ring") if "inside" in ALGORITHMS[kind].keys else None,
            ps=ps.with_values(
                servers=servers,
                placement=op_by_op.placement_of(ps),
                shards=(ps.shards or "bytes") if task else None,
                # Synchronous servers have one canonical form: no `sync`.
                sync=None if collective.bound == 0 else ps.sync,
            )
            if kind == "ps"
            else None,
        ),
        schedule=job.schedule.with_values(
            order=op_by_op.order_of(job),
            overhead_ps=overhead_of(job, ctx.file.cluster),
            fusion_bytes=fusion,
            barrier=barrier,
            depth=depth,
            disorder_ppm=(job.schedule.disorder_ppm or 0) if task else None,
        ),
        ranks=ranks,
        bands=bands,
        adaptive=adaptive,
        start_ps=job.start_ps,
        announced_packets=announced_packets(job.announce, ctx.file.cluster.queue),
        division=division,
        step=step,
        device=table.device if division is None else division.device,
        stated=jobs_of.stated(job),
    )


def _completed(ctx: Context, jobs: tuple[Job, ...], reach: Callable[[], Reach]) -> ScenarioFile:
    """Return the keys with the defaults that depend on other keys."""
    tables = {}
    for job in jobs:
        given = ctx.file.job[job.name]
        priority = given.priority if job.adaptive is None else Adaptive.model_construct(adaptive=job.adaptive)
        tables[job.name] = given.with_values(
            iterations=job.iterations,
            task=job.task or given.task,
            compute=job.compute,
            collective=job.collective,
            schedule=job.schedule,
            priority=priority,
            parallel=None if job.division is None else job.division.keys,
        )
    cluster = ctx.file.cluster
    node = None if cluster.node is None else cluster.node.with_values(nics=nics_of(cluster.node))
    queue, transport = queue_of(ctx.file, reach), transport_of(cluster, reach)
    cluster = cluster.with_values(node=node, queue=queue, transport=transport)
    keys = ctx.file.run.with_values(start_jitter_ps=start_jitter_of(ctx.file, reach))
    return ctx.file.with_values(job=tables, cluster=cluster, run=keys)


def _written(ctx: Context, file: ScenarioFile, origins: tuple[Origin, ...], fabric: Fabric) -> dict[str, Any]:
    """Return the resolved scenario: all defaults, and models, orders and short lists instead of their files."""
    data = file.plain()
    for name, job in file.job.items():
        table, given = data["job"][name], ctx.file.job[name]
        collective, schedule = table["collective"], table["schedule"]
        table["model"] = ctx.tables[name].written
        if not isinstance(table["model"], str) and job.parallel is None:
            # The resolved model contains its times.
            for key in OF_ROOFLINE if given.compute.is_given("device") else (*OF_ROOFLINE, "device"):
                table["compute"].pop(key, None)
        if "group" in ALGORITHMS[job.collective.kind].keys:
            # "leaf" is kept as a name: on another network its groups have another size.
            collective["group"] = given.collective.group or "leaf"
        if job.collective.is_pulled:
            for key in ("fusion", "barrier", "depth", "sync", "credit"):
                del schedule[key]
        elif job.collective.ps is not None:
            if not job.collective.ps.servers:
                collective.pop("ps")
                if given.collective.ps is not None:
                    collective["ps"] = given.collective.ps.plain()
            else:
                del collective["ps"]["pull"]
        if job.schedule.buckets is not None:
            schedule.pop("fusion", None)
        if name in ctx.rankings:
            schedule.pop("file", None)
            schedule["ranking"] = ctx.rankings[name]
        table["collective"] = _in_order_of(Collective, collective)
        table["schedule"] = _in_order_of(Schedule, schedule)
        if job.parallel is not None or ctx.tables[name].step is not None:
            data["job"][name] = _in_order_of(JobTable, parallel.without_effect(table))
    for origin in origins:
        table = {k: v for k, v in data["traffic"][origin.name].items() if k not in origin.replaced}
        data["traffic"][origin.name] = _in_order_of(TrafficTable, table | origin.written)
    data["cluster"]["topology"] = fabric.written()
    return {name: data[name] for name in data if data[name]}


def _in_order_of(keys: type[Table], table: Mapping[str, Any]) -> dict[str, Any]:
    """Sort a table by the declaration order of its keys, so that equal scenarios have equal TOML."""
    order = list(keys.declared())
    return dict(sorted(table.items(), key=lambda item: order.index(item[0])))
