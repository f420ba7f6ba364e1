"""Checks the keys of a scenario against one another, fills in all defaults, and reports all faults at once.

    data -> ScenarioFile (types, units) -> a module per subject, such as `network` -> Resolved: jobs, keys with defaults

Each module checks the keys of its subject and fills in their defaults that depend on other keys. A value of a wrong
type or unit is replaced by its default during these checks, so that one fault does not hide others.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gradtide.errors import ScenarioError
from gradtide.scenario import clusters
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.origins import Origin
from gradtide.scenario.read import plain, read_keys
from gradtide.scenario.resolve import job as of_job
from gradtide.scenario.resolve import memory, network, placement, run, traffic
from gradtide.scenario.resolve.context import MAX_WORKERS, Context
from gradtide.scenario.resolve.resolved import Resolved, groups
from gradtide.scenario.source import Source, shown_from

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def resolve(data: Mapping[str, Any], source: Source, base_dir: Path) -> Resolved:
    """Resolve a scenario. Relative paths in `data` refer to the folder `base_dir`.

    Raises:
        ScenarioError: with every fault; the faults of a file are in the order of its lines.
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
    assert result is not None  # because there are no faults
    return replace(result, warnings=(*source.notes, *result.warnings))


def _resolve(ctx: Context) -> Resolved | None:
    file = ctx.file
    for kind, names in (("job", file.job), ("traffic", file.traffic)):
        for name in names:
            if not _NAME.fullmatch(name):
                hint = "letters, digits, - and _, at most 64"
                ctx.add("GT018", (kind, name), f'"{name[:80]}" cannot be a name', hint, name, at_key=True)
    nodes = traffic.nodes(ctx)
    if not file.job and ctx.ok("job"):
        _without_jobs(ctx, nodes)
    network.device(ctx, file.cluster.device)
    fabric = network.shape(ctx, file.cluster.topology)
    run.length(ctx)
    hosts = placement.hosts(ctx, fabric)
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
    jobs = [of_job.job(ctx, name, hosts.get(name), fabric) for name in file.job]
    if ctx.faults or fabric is None:
        return None
    resolved = tuple(job for job in jobs if job is not None)
    run.check_limits(ctx, resolved, fabric)
    cluster, keys = network.completed(file, cache(lambda: fabric.reach(groups(resolved, origins, fabric))))
    tables = {job.name: of_job.completed(file.job[job.name], job) for job in resolved}
    complete = file.with_values(job=tables, cluster=cluster, run=keys)
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
    """Add a fault to a scenario without a job, unless it has background traffic and a number of hosts."""
    if not ctx.file.traffic and ctx.ok("traffic"):
        hint = 'write [job.train] with model = "resnet50" and workers = 8'
        ctx.add("GT010", ("job",), "the scenario has no job", hint)
        return
    if nodes is None and ctx.is_open_star and ctx.ok("cluster", "topology"):
        msg = "`hosts` is missing: without a job, the star needs a number of hosts"
        ctx.add("GT010", ("cluster", "topology", "hosts"), msg, 'write topology = { kind = "star", hosts = 8 }')


def _written(ctx: Context, file: ScenarioFile, origins: tuple[Origin, ...], fabric: Fabric) -> dict[str, Any]:
    """Return the resolved scenario: keys with all defaults, where models, orders and short lists replace file names."""
    data = file.plain()
    for name, job in file.job.items():
        data["job"][name] = of_job.written(ctx, name, job, data["job"][name])
    for origin in origins:
        table = {k: v for k, v in data["traffic"][origin.name].items() if k not in origin.replaced}
        data["traffic"][origin.name] = of_job.in_order_of(TrafficTable, table | origin.written)
    data["cluster"]["topology"] = fabric.written()
    return {name: data[name] for name in data if data[name]}
