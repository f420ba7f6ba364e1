"""Assigns a host to each rank of every job."""

import itertools
import random
from collections.abc import Iterator

from gradtide.scenario.fabric import Fabric, dealt_out, host_number
from gradtide.scenario.keys.job import JobTable
from gradtide.scenario.resolve import servers
from gradtide.scenario.resolve.context import MAX_WORKERS, Context
from gradtide.scenario.resolve.network import nics_of, open_star
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import rank_count


def hosts(ctx: Context, fabric: Fabric | None) -> dict[str, tuple[int, ...]]:
    """Return the host of each rank, by job. Jobs that name no hosts get hosts that no other job uses, if possible."""
    named: dict[str, tuple[int, ...]] = {}
    wanted: dict[str, int] = {}
    faults_before = len(ctx.faults)
    is_known = ctx.ok("cluster", "topology") and (fabric is not None or ctx.is_open_star)
    for name, job in ctx.file.job.items():
        loc: Loc = ("job", name)
        if not all(ctx.ok("job", name, key) for key in ("workers", "hosts", "placement")):
            is_known = False
            continue
        key = "placement" if isinstance(job.placement, list) else "hosts"
        given = job.placement if isinstance(job.placement, list) else job.hosts
        if isinstance(job.placement, list) and job.hosts is not None:
            msg = "`hosts` and a list as `placement` contradict each other"
            ctx.add("GT016", (*loc, "placement"), msg, "keep one of them")
        elif job.workers is not None and job.workers > MAX_WORKERS:
            ctx.too_many((*loc, "workers"), job.workers, MAX_WORKERS, "workers")
        elif given is not None:
            found = _named(ctx, job, given, (*loc, key), fabric)
            if found is not None:
                named[name] = found
        elif job.workers is not None:
            wanted[name] = job.workers + servers.beside(job)
        elif job.parallel is not None:
            wanted[name] = job.parallel.ranks
        elif (recorded := rank_count(job.model, ctx.base_dir)) is not None:
            if recorded > MAX_WORKERS:
                ctx.too_many((*loc, "model"), recorded, MAX_WORKERS, "ranks")
            wanted[name] = recorded
        elif not ctx.misspelt(loc, "workers", "hosts"):
            ctx.add("GT010", (*loc, "workers"), "`workers` is missing", 'write workers = 8, or hosts = ["h0", "h1"]')
    if len(ctx.faults) > faults_before or not is_known:
        return {}
    return _share_out(ctx, named, wanted, fabric)


def _named(ctx: Context, job: JobTable, hosts: list[str], here: Loc, fabric: Fabric | None) -> tuple[int, ...] | None:
    before = len(ctx.faults)
    if not hosts:
        ctx.add("GT014", here, "the list of hosts is empty", 'write hosts = ["h0", "h1"], or workers = 2', hosts)
    if len(hosts) > MAX_WORKERS:
        ctx.too_many(here, len(hosts), MAX_WORKERS, "workers")
    if job.workers is not None and job.workers + servers.beside(job) != len(hosts):
        beside = f" and its servers {servers.beside(job)}" if servers.beside(job) else ""
        msg = f"workers = {job.workers}{beside} but `{here[-1]}` names {len(hosts)}"
        ctx.add("GT016", (*here[:-1], "workers"), msg, "leave one of the two keys out", job.workers)
    seen: set[str] = set()
    numbers = []
    for index, host in enumerate(hosts[:MAX_WORKERS]):
        number = host_number(host)
        if number is None or number >= (MAX_WORKERS if fabric is None else fabric.host_count):
            known = "h0, h1, …" if fabric is None else f"h0 to h{fabric.host_count - 1}"
            ctx.add("GT040", (*here, index), f'unknown host "{host[:80]}"', f"hosts are {known}", host)
        elif host in seen:
            ctx.add(
                "GT041", (*here, index), f'the host "{host}" is named twice', "each worker needs its own host", host
            )
        else:
            numbers.append(number)
        seen.add(host)
    return tuple(numbers) if len(ctx.faults) == before else None


def _share_out(
    ctx: Context, named: dict[str, tuple[int, ...]], wanted: dict[str, int], fabric: Fabric | None
) -> dict[str, tuple[int, ...]]:
    taken: dict[int, str] = {}
    for name, numbers in named.items():
        for number in numbers:
            taken.setdefault(number, name)
    if fabric is None:
        # The resolved scenario states this number of hosts, and must result in the same placement as this scenario.
        least = max([1, len(taken) + sum(wanted.values()), *(number + 1 for number in taken)])
        fabric = open_star(ctx.file.cluster, least)
    result = {name: _ranked(ctx, name, numbers, fabric) for name, numbers in named.items()}
    host_count, what = fabric.host_count, "hosts" if ctx.file.cluster.node is None else "GPUs"
    for name, count in wanted.items():
        if count > host_count:
            msg = f"{count} workers on {host_count} {what}"
            too_few(ctx, msg, f"write {_enough(ctx, count)}, or fewer workers", host_count)
            continue
        free = (host for host in _candidates(ctx, name, fabric) if host not in taken)
        found = list(itertools.islice(free, count))
        taken |= dict.fromkeys(found, name)
        used = set(found)
        shared = (host for host in _candidates(ctx, name, fabric) if host not in used)
        found += itertools.islice(shared, count - len(found))
        result[name] = tuple(found)
    return {name: result[name] for name in ctx.file.job if name in result}


def _ranked(ctx: Context, name: str, hosts: tuple[int, ...], fabric: Fabric) -> tuple[int, ...]:
    """Return the hosts that a job names, ordered by the rank that runs on them."""
    placement = ctx.file.job[name].placement
    if placement == "spread":
        return tuple(dealt_out(hosts, fabric))
    if placement == "random":
        return tuple(_generator(ctx, name).sample(hosts, len(hosts)))
    return hosts


def _candidates(ctx: Context, name: str, fabric: Fabric) -> Iterator[int]:
    """Yield all hosts in the order in which a job without named hosts chooses free hosts."""
    placement = ctx.file.job[name].placement
    if placement == "spread":
        return iter(dealt_out(range(fabric.host_count), fabric))
    if placement == "random":
        return iter(_generator(ctx, name).sample(range(fabric.host_count), fabric.host_count))
    return iter(range(fabric.host_count))


def _generator(ctx: Context, name: str) -> random.Random:
    return random.Random(f"placement/{name}/{ctx.file.run.seed}")


def _enough(ctx: Context, places: int) -> str:
    """Return what to write for a cluster with hosts for `places` workers: a key, or the name of a built-in cluster."""
    cards = int(open_star(ctx.file.cluster, places).written()["hosts"])
    if ctx.cluster_name is None:
        return f"hosts = {cards}"
    node = ctx.file.cluster.node
    return f"{ctx.cluster_name.partition('/')[0]}/{cards if node is None else cards // nics_of(node)}"


def too_few(ctx: Context, msg: str, hint: str, host_count: int | None) -> None:
    """Add the fault `msg` that a cluster has too few hosts, at the key that determines their number."""
    kind = ctx.file.cluster.topology.kind
    keys = {"star": "hosts", "leaf_spine": "leaves", "custom": "links"}
    key = keys.get(kind, "ports")
    if key == "ports" and host_count is not None:
        ports = ctx.file.cluster.topology.ports
        hint = f"{kind} of {ports} ports has {host_count} hosts: write more ports, or fewer workers"
    elif key != "hosts":
        hint = "enlarge the topology, or write fewer workers"
    ctx.add("GT042", ("cluster", "topology", key), msg, hint, host_count)
