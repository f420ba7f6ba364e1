"""Checks of a job's keys: hosts, model, collective, order of transfers, traffic classes (bands)."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gradtide import units
from gradtide.algorithms import ALGORITHMS
from gradtide.counts import ALL_REDUCES, NOT_SUMMED
from gradtide.errors import ScenarioError, did_you_mean
from gradtide.recognise import other_format
from gradtide.scenario.defaults import (
    PLANNED,
    SETTINGS,
    adaptive_of,
    bands_of,
    is_remade,
    nics_of,
    with_ecn,
)
from gradtide.scenario.device import is_known, unknown_device
from gradtide.scenario.fabric import Fabric, dealt_out, host_number
from gradtide.scenario.gates import parse_gate
from gradtide.scenario.keys.job import (
    OF_PARALLEL,
    OF_ROOFLINE,
    Adaptive,
    AdaptiveTable,
    Collective,
    Compute,
    JobPriority,
    JobTable,
    Priority,
    Ps,
    Schedule,
)
from gradtide.scenario.keys.parallel import OF_MESH
from gradtide.scenario.resolve import memory
from gradtide.scenario.resolve import servers as op_by_op
from gradtide.scenario.resolve.context import MAX_WORKERS, Context
from gradtide.scenario.resolve.network import holds_a_segment, open_star
from gradtide.scenario.source import Failure, Loc, read_text
from gradtide.scenario.tables import Asked, LayerTable, rank_count, read_model, read_ranking, with_times


def hosts(ctx: Context, fabric: Fabric | None) -> dict[str, tuple[int, ...]]:
    """Assign hosts to workers; jobs that name no hosts get free ones."""
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
            wanted[name] = job.workers + op_by_op.beside(job)
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
    if job.workers is not None and job.workers + op_by_op.beside(job) != len(hosts):
        servers = f" and its servers {op_by_op.beside(job)}" if op_by_op.beside(job) else ""
        msg = f"workers = {job.workers}{servers} but `{here[-1]}` names {len(hosts)}"
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


def _ranked(ctx: Context, name: str, hosts: tuple[int, ...], fabric: Fabric) -> tuple[int, ...]:
    """Return the hosts that a job names, in rank order."""
    placement = ctx.file.job[name].placement
    if placement == "spread":
        return tuple(dealt_out(hosts, fabric))
    if placement == "random":
        return tuple(_generator(ctx, name).sample(hosts, len(hosts)))
    return hosts


def _generator(ctx: Context, name: str) -> random.Random:
    """Return the random stream for the placement of a job's ranks."""
    return random.Random(f"placement/{name}/{ctx.file.run.seed}")


def _candidates(ctx: Context, name: str, fabric: Fabric) -> Iterator[int]:
    """Yield hosts in the order in which a job takes free ones."""
    placement = ctx.file.job[name].placement
    if placement == "spread":
        return iter(dealt_out(range(fabric.host_count), fabric))
    if placement == "random":
        return iter(_generator(ctx, name).sample(range(fabric.host_count), fabric.host_count))
    return iter(range(fabric.host_count))


def _share_out(
    ctx: Context, named: dict[str, tuple[int, ...]], wanted: dict[str, int], fabric: Fabric | None
) -> dict[str, tuple[int, ...]]:
    taken: dict[int, str] = {}
    for name, numbers in named.items():
        for number in numbers:
            taken.setdefault(number, name)
    if fabric is None:
        # The resolved scenario states this number of hosts, and must give the same placement.
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


def _enough(ctx: Context, places: int) -> str:
    """Return the key or name of a cluster that holds `places` workers, for a hint."""
    cards = int(open_star(ctx.file.cluster, places).written()["hosts"])
    if ctx.cluster_name is None:
        return f"hosts = {cards}"
    node = ctx.file.cluster.node
    return f"{ctx.cluster_name.partition('/')[0]}/{cards if node is None else cards // nics_of(node)}"


def too_few(ctx: Context, msg: str, hint: str, host_count: int | None) -> None:
    """Add the fault of a cluster with too few hosts."""
    kind = ctx.file.cluster.topology.kind
    keys = {"star": "hosts", "leaf_spine": "leaves", "custom": "links"}
    key = keys.get(kind, "ports")
    if key == "ports" and host_count is not None:
        ports = ctx.file.cluster.topology.ports
        hint = f"{kind} of {ports} ports has {host_count} hosts: write more ports, or fewer workers"
    elif key != "hosts":
        hint = "enlarge the topology, or write fewer workers"
    ctx.add("GT042", ("cluster", "topology", key), msg, hint, host_count)


def straggler(ctx: Context, job: JobTable, loc: Loc, count: int | None) -> None:
    """Check that the straggler is a worker of the job."""
    worker = None if job.compute.straggler is None else job.compute.straggler.worker
    if worker is not None and count is not None and worker >= count:
        hint = "the only worker is 0" if count == 1 else f"workers are 0 to {count - 1}"
        ctx.add("GT014", (*loc, "compute", "straggler", "worker"), f"there is no worker {worker}", hint, worker)


def read_table(ctx: Context, name: str, job: JobTable, loc: Loc, ranks: int) -> LayerTable | None:
    """Read the model of a job with `ranks` ranks; return `None` if it has faults."""
    if not ctx.ok("job", name, "model"):
        return None
    if job.model is None and ctx.misspelt(loc, "model"):
        return None
    if job.model is None:
        hint = 'write model = "resnet50", a layer table "layers.csv", or an inline table'
        ctx.add("GT010", (*loc, "model"), "`model` is missing", hint)
        return None
    compute = job.compute
    try:
        at = (*loc, "model")
        model = job.model
        if is_remade(model) and compute.scale_to_ps is not None:
            model = model.with_values(time_ps=compute.scale_to_ps)
        by_op = job.collective.is_pulled or compute.order is not None
        asked = Asked(compute, ctx.file.cluster.device)
        table = read_model(model, ctx.source, at, ctx.base_dir, asked, by_op=by_op)
        too_large = memory.undivided(ctx, job, loc, table, ranks)
        if too_large is not None:
            ctx.too_large[name] = too_large
        if job.parallel is None and table.architecture is not None:
            table = with_times(table, ctx.source, at, asked)
    except ScenarioError as error:
        # A model that needs `parallel` takes its times from accelerator figures, so faults of its device do not matter.
        found = [ctx.too_large[name]] if name in ctx.too_large else error.faults
        ctx.faults += [fault for fault in found if fault not in ctx.faults]
        return None
    if table.is_timed:
        if compute.is_given("device") and not is_known(compute.device):
            ctx.add("GT031", (*loc, "compute", "device"), *unknown_device(compute.device), compute.device)
        for key in OF_ROOFLINE:
            if compute.is_given(key):
                ctx.no_effect((*loc, "compute", key), "for a model with times of its own", "leave it out")
    elif compute.seq is not None and table.seq is None:
        why = "for a model that is no Hugging Face configuration"
        ctx.no_effect((*loc, "compute", "seq"), why, "leave it out")
    for key in OF_PARALLEL:
        if compute.is_given(key) and job.parallel is None:
            ctx.no_effect(
                (*loc, "compute", key), "without `parallel`", "write parallel = { fsdp = 8 }, or leave it out"
            )
    if sum(r.parameter_bytes for r in table.layers) > units.U64_MAX:
        ctx.add("GT024", (*loc, "model"), "the parameters are too large", "sizes end at 2^64 B in all")
    ctx.tables[name] = table
    return table


def stated(job: JobTable) -> frozenset[str]:
    """Return the keys of `compute` that are given, including those written in `parallel`."""
    beside = () if job.parallel is None else (key for key in OF_MESH if job.parallel.value(key) is not None)
    return frozenset((*(key for key in Compute.declared() if job.compute.is_given(key)), *beside))


def servers(ctx: Context, name: str, job: JobTable, loc: Loc, table: LayerTable | None) -> str:
    """Check the keys of parameter servers with pull = "start"; return the task, empty without such servers."""
    if not ctx.ok("job", name, "collective"):
        return ""
    for at, why, hint in op_by_op.without_effect(job):
        if ctx.ok("job", name, *(str(part) for part in at)):
            ctx.no_effect((*loc, *at), why, hint)
    graph = None if table is None else table.graph
    is_pulled = job.collective.is_pulled
    if job.compute.order is not None and table is not None and (graph is None or is_pulled):
        why = "for a model of layers" if graph is None else 'with pull = "start": what has arrived decides'
        ctx.no_effect((*loc, "compute", "order"), why, "leave it out")
    if graph is not None and not is_pulled and job.schedule.queues is not None:
        hint = "every parameter has a rank of its own"
        ctx.no_effect((*loc, "schedule", "queues"), "for a graph of ops", hint)
    if is_pulled and table is not None and graph is None and not any(layer.parameter_bytes for layer in table.layers):
        key = (*loc, "collective", "ps", "pull")
        ctx.no_effect(key, "for a model without parameters", "there is nothing to pull; leave it out")
    task = ("inference" if job.task == "inference" else "train") if is_pulled else ""
    if table is not None and graph is not None and table.place is not None:
        where = table.place
        op_by_op.graph_faults(graph, task, lambda at, msg, hint: ctx.faults.append(where.fault("GT074", at, msg, hint)))
    return task


def check_collective(
    ctx: Context, name: str, keys: Collective, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
) -> tuple[int, int]:
    """Check a collective against the ranks; return the ranks of a group and the number of servers, 0 without."""
    if not ctx.ok("job", name, "collective"):
        return 0, 0
    kind = keys.algorithm
    if keys.ps is not None and keys.is_given("kind") and keys.kind != "ps":
        ctx.add("GT016", (*loc, "ps"), f'`ps` contradicts kind = "{keys.kind}"', "leave one of the two out")
    algorithm = ALGORITHMS[kind]
    for key in ("group", "inside"):
        if keys.value(key) is not None and key not in algorithm.keys:
            words = " and ".join(f'"{k}"' for k, one in ALGORITHMS.items() if key in one.keys)
            ctx.no_effect((*loc, key), f'with kind = "{kind}"', f"it is for {words}")
    if not algorithm.sums and ctx.file.job[name].task != "exchange":
        msg = f"{kind} does not sum gradients: {NOT_SUMMED[kind]}"
        hint = f'write {", ".join(ALL_REDUCES)}; if these bytes are not gradients, write task = "exchange"'
        ctx.add("GT049", (*loc, "kind"), msg, hint, kind)
    if keys.reduction_rate_bps is not None and not algorithm.reduces:
        ctx.no_effect((*loc, "reduction_rate"), f'with kind = "{kind}"', "this collective does not add; leave it out")
    ranks = 0 if hosts is None else len(hosts)
    if ranks < 2 and not (hosts and keys.is_pulled):
        return 0, 0
    group = servers = 0
    if "group" in algorithm.keys:
        group = _group(ctx, keys, loc, ranks, fabric)
        if keys.inside == "sharded" and group and ranks % group:
            msg = f'{ranks} ranks cannot be divided into groups of {group}, as inside = "sharded" needs'
            near = max(g for g in range(1, group + 1) if ranks % g == 0)
            ctx.add("GT048", (*loc, "group"), msg, f"write group = {near}, or another number of workers", group)
    if algorithm.needs_even_nodes and hosts is not None and ctx.file.cluster.node is not None:
        gpus = ctx.file.cluster.node.gpus
        on_nodes = Counter(host // gpus for host in hosts)
        if len(set(on_nodes.values())) > 1:
            counts = ", ".join(f"{count} on node {node}" for node, count in sorted(on_nodes.items()))
            msg = f"trees have a chain of one length in each node, and the job's ranks are {counts}"
            hint = 'put as many workers on each node, or write kind = "ring"'
            ctx.add("GT048", (*loc, "kind"), msg, hint, kind)
    if "ps" in algorithm.keys:
        servers = op_by_op.beside(ctx.file.job[name]) or op_by_op.count_of(keys.ps or Ps(), ranks)
        if servers >= ranks:
            which = "the only host" if ranks == 1 else f"all {ranks} ranks"
            msg = f"{which} would be parameter servers; no worker would remain"
            hint = "servers are some of the job's workers: write fewer servers, or more workers"
            ctx.add("GT048", (*loc, "ps", "servers"), msg, hint, servers)
    return group, servers


def _group(ctx: Context, keys: Collective, loc: Loc, ranks: int, fabric: Fabric | None) -> int:
    """Return the ranks of a group."""
    if isinstance(keys.group, int):
        if keys.group > ranks:
            msg = f"a group of {keys.group} has more than the {ranks} ranks of the job"
            ctx.add("GT048", (*loc, "group"), msg, f"write at most {ranks}", keys.group)
        return keys.group
    size = 1 if fabric is None else fabric.hosts_per_edge
    if size is None:
        msg = "the switches have different numbers of hosts"
        ctx.add("GT048", (*loc, "group"), msg, "write the ranks of a group, as in group = 8", keys.group)
        return 1
    return min(size, ranks)


def buckets(ctx: Context, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> None:
    """Check user-defined buckets against the model."""
    at: Loc = (*loc, "schedule", "buckets")
    for key, others in (("first_fusion", ("buckets", "cycle")), ("cycle", ("buckets",))):
        for other in others:
            if schedule.value(key) is not None and schedule.value(other) is not None:
                msg = f"`{key}` and `{other}` contradict each other"
                ctx.add("GT016", (*loc, "schedule", key), msg, "keep one of them")
        if schedule.value(key) is not None and schedule.fusion_bytes == "adaptive":
            msg = f'`{key}` contradicts fusion = "adaptive"'
            ctx.add("GT016", (*loc, "schedule", key), msg, "write `fusion` as a size, or leave one of the two out")
    if schedule.buckets is None or not ctx.ok("job", name, "schedule", "buckets"):
        return
    if schedule.is_given("fusion"):
        ctx.add("GT016", at, "`buckets` and `fusion` contradict each other", "keep one of them")
    if table is not None and sum(schedule.buckets) != len(table.layers):
        msg = f"the buckets hold {sum(schedule.buckets)} layers, the model has {len(table.layers)}"
        ctx.add("GT014", at, msg, "count every layer once, from the input side")


def ranks(ctx: Context, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> tuple[int, ...] | None:
    """Check the order's keys; return the rank of every layer if a file gives it."""
    at: Loc = (*loc, "schedule")
    if not ctx.ok("job", name, "schedule", "order"):
        return None
    if schedule.cycle_ps is not None and schedule.order in PLANNED:
        msg = f'`cycle` contradicts order = "{schedule.order}", which decides when each bucket is sent'
        ctx.add("GT016", (*at, "cycle"), msg, 'leave `cycle` out, or write order = "fifo"')
    if schedule.queues is not None and schedule.order != "priority" and not ctx.file.job[name].collective.is_pulled:
        ctx.no_effect((*at, "queues"), f'with order = "{schedule.order}"', 'write order = "priority"')
    order = op_by_op.order_of(ctx.file.job[name])
    if order != "file":
        # `op_by_op` checks the order of pulls.
        of_buckets = () if ctx.file.job[name].collective.is_pulled else ("in_turn",)
        for key in ("file", "ranking", "gates", *of_buckets):
            if schedule.value(key) is not None:
                ctx.no_effect((*at, key), f'with order = "{order}"', 'write order = "file"')
        return None
    _gates(ctx, schedule, at, table)
    if schedule.file is not None and schedule.ranking is not None:
        ctx.add("GT016", (*at, "ranking"), "`file` and `ranking` contradict each other", "keep one of them")
        return None
    if schedule.ranking is not None:
        entries = [(layer, _fault(ctx, (*at, "ranking", index), layer)) for index, layer in enumerate(schedule.ranking)]
        whole = Failure(ctx.source, (*at, "ranking"))
    elif schedule.file is not None:
        whole = Failure(ctx.source, (*at, "file"), schedule.file)
        try:
            text = read_text(ctx.base_dir / schedule.file, schedule.file, whole)
        except ScenarioError as error:
            ctx.faults += error.faults
            return None
        foreign = other_format(text, schedule.file, "a list of layers, one name a line")
        if foreign is not None:
            ctx.faults.append(foreign)
            return None
        entries = read_ranking(text, schedule.file)
    elif ctx.ok("job", name, "schedule"):
        hint = 'write file = "order.csv": one layer name a line, most urgent first'
        ctx.add("GT010", (*at, "file"), 'order = "file" needs `file`', hint)
        return None
    else:
        return None
    if table is None:
        return None
    return _ranks_of(ctx, name, table, entries, whole)


def _gates(ctx: Context, schedule: Schedule, at: Loc, table: LayerTable | None) -> None:
    """Check that there is one gate per bucket, each a layer of the model or empty."""
    if schedule.gates is None:
        return
    if schedule.buckets is None or len(schedule.gates) != len(schedule.buckets):
        msg = f"{len(schedule.gates)} gates for {len(schedule.buckets or ())} buckets"
        ctx.add("GT016", (*at, "gates"), msg, 'write `buckets`, and a gate or "" for each')
        return
    if schedule.in_turn:
        ctx.add("GT016", (*at, "in_turn"), "`in_turn` and `gates` contradict each other", "keep one of them")
    if table is None:
        return
    if table.graph is not None:
        ctx.add("GT016", (*at, "gates"), "the model is a graph of ops, which has no passes", "leave `gates` out")
        return
    every = {row.name: row.parameter_bytes for row in table.layers}
    for index, text in enumerate(schedule.gates):
        gate = parse_gate(text)
        if gate is None:
            continue
        where, layer = gate
        loc = (*at, "gates", index)
        if where not in ("backward", "forward"):
            ctx.add("GT016", loc, f"`{where}` is no pass", 'write "backward LAYER", "forward LAYER" or ""', text)
        elif layer not in every:
            hint = did_you_mean(layer, every, f'layers are "{next(iter(every), "")}", …', '"{}"')
            ctx.add("GT037", loc, f'the model has no layer "{layer[:80]}"', hint, text)
        elif where == "backward" and not every[layer]:
            msg = f'the layer "{layer}" has no parameters, so no gradient'
            ctx.add("GT037", loc, msg, f'write "forward {layer}", or another layer', text)


def _fault(ctx: Context, loc: Loc, layer: str) -> Any:
    return lambda msg, hint: ctx.source.fault("GT037", loc, msg, hint, layer)


def _ranks_of(ctx: Context, name: str, table: LayerTable, entries: list[Any], whole: Failure) -> tuple[int, ...] | None:
    owners = [r.name for r in table.layers if r.parameter_bytes]
    every = {r.name for r in table.layers}
    rank: dict[str, int] = {}
    before = len(ctx.faults)
    for layer, fault in entries:
        if len(ctx.faults) - before >= 20:
            break
        if layer in rank:
            ctx.faults.append(fault(f'the layer "{layer}" is named twice', "delete one of them"))
        elif layer not in every:
            some = f'layers are "{owners[0]}", …' if owners else ""
            hint = did_you_mean(layer, owners[:5000], some, '"{}"')
            ctx.faults.append(fault(f'the model has no layer "{layer[:80]}"', hint))
        rank.setdefault(layer, len(rank))
    missing = [o for o in owners if o not in rank]
    if missing and len(ctx.faults) == before:
        shown = ", ".join(f'"{m}"' for m in missing[:5]) + (", …" if len(missing) > 5 else "")
        msg = f"{len(missing)} of {len(owners)} layers with parameters are not named"
        ctx.faults.append(whole("GT037", msg, f"add {shown}"))
    if len(ctx.faults) > before:
        return None
    ctx.rankings[name] = [layer for layer, _ in entries]
    return tuple(rank.get(r.name, len(rank)) for r in table.layers)


POLICY_BANDS: dict[str, JobPriority] = {
    "deadline": "low",
    "straggler": "low",
    "background": "low",
    "oracle": "low",
    "all-low": "low",
    "lower-layers-high": ["high", "low"],
    "all-high": "high",
}
"""Bands of a policy; for a policy that changes bands, the initial ones."""


def band(ctx: Context, priority: Priority, loc: Loc) -> int | None:
    """Return the band of a priority on this queue; `None` if it is adaptive or invalid."""
    if isinstance(priority, Adaptive):
        return None
    queue = ctx.file.cluster.queue
    band_count = bands_of(queue)
    band = {"high": 0, "low": band_count - 1}.get(str(priority), priority)
    if ctx.ok("cluster", "queue") and ctx.ok(*(str(p) for p in loc)):
        here = f'kind = "{queue.kind}"'
        if priority == "low" and band_count == 1:
            hint = 'write cluster.queue = { kind = "pfifo_fast" }, or "strict" with several bands'
            ctx.add("GT015", loc, f"the low band has no effect: a queue of {here} has one band", hint)
            return None
        if int(band) >= band_count:
            bands = "only band 0" if band_count == 1 else f"bands 0 to {band_count - 1}"
            ctx.add("GT014", loc, f"there is no band {band}", f"a queue of {here} has {bands}", priority)
            return None
    return int(band)


def bands(ctx: Context, priority: JobPriority, loc: Loc, table: LayerTable | None) -> tuple[int, ...]:
    """Return the bands of a job's priority; for an adaptive one, the initial bands."""
    if isinstance(priority, Adaptive):
        return bands(ctx, POLICY_BANDS[priority.adaptive.policy], loc, table)
    if not isinstance(priority, list):
        return (band(ctx, priority, loc) or 0,)
    if not priority:
        ctx.add("GT014", loc, "the list of bands is empty", 'write priority = ["high", "low"]', priority)
    elif table is not None and len(priority) > len(table.layers):
        msg = f"{len(priority)} bands for {len(table.layers)} layers"
        ctx.add("GT014", loc, msg, "a list has at most one band for each layer")
    found = [band(ctx, entry, (*loc, index)) for index, entry in enumerate(priority)]
    return tuple(band or 0 for band in found)


def adaptive(
    ctx: Context, priority: JobPriority, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
) -> AdaptiveTable | None:
    """Return the policy of an adaptive priority; `None` for a fixed one, or without a network."""
    if not isinstance(priority, Adaptive):
        return None
    given = priority.adaptive
    heeded = SETTINGS.get(given.policy, ())
    # The hint names the first policy that uses a key: reversed, since later entries overwrite.
    first = {key: policy for policy, keys in reversed(SETTINGS.items()) for key in keys}
    for key, policy in first.items():
        if key not in heeded and given.value(key) is not None:
            why, hint = f'with policy = "{given.policy}"', f'write policy = "{policy}"'
            ctx.no_effect((*loc, "adaptive", key), why, hint)
    holds_a_segment(ctx, given.window_bytes, ctx.file.cluster.transport.segment_bytes, (*loc, "adaptive", "window"))
    if fabric is None or hosts is None:
        return None
    return adaptive_of(given, fabric.reach([hosts]), with_ecn(ctx.file.cluster.transport))
