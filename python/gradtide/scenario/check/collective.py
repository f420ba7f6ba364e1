"""The collective of a job against its ranks, and its parameter servers."""

from gradtide.counts import ALL_REDUCES, NOT_SUMMED
from gradtide.scenario import servers as op_by_op
from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import GROUPED
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys.job import Collective, JobTable, Ps
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable


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
    task = ("inference" if job.task == "inference" else "train") if is_pulled else ""
    if table is not None and graph is not None and table.place is not None:
        where = table.place
        op_by_op.graph_faults(graph, task, lambda at, msg, hint: ctx.faults.append(where.fault("GT074", at, msg, hint)))
    return task


def check(
    ctx: Context, name: str, keys: Collective, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
) -> tuple[int, int]:
    """Check a collective against the ranks; return the ranks of a group and the number of servers, 0 without."""
    if not ctx.ok("job", name, "collective"):
        return 0, 0
    kind = keys.algorithm
    if keys.ps is not None and keys.is_given("kind") and keys.kind != "ps":
        msg = f'`ps` contradicts kind = "{keys.kind}"'
        ctx.add("GT016", (*loc, "ps"), msg, "leave one of the two out")
    for key, kinds in (("group", GROUPED), ("inside", ("hierarchical",))):
        if keys.value(key) is not None and kind not in kinds:
            words = " and ".join(f'"{k}"' for k in kinds)
            ctx.no_effect((*loc, key), f'with kind = "{kind}"', f"it is for {words}")
    is_sum = kind not in NOT_SUMMED
    if not is_sum and ctx.file.job[name].task != "exchange":
        msg = f"{kind} does not sum gradients: {NOT_SUMMED[kind]}"
        hint = f'write {", ".join(ALL_REDUCES)}; if these bytes are not gradients, write task = "exchange"'
        ctx.add("GT049", (*loc, "kind"), msg, hint, kind)
    if keys.reduction_rate_bps is not None and kind in NOT_SUMMED and kind != "reduce_scatter":
        ctx.no_effect((*loc, "reduction_rate"), f'with kind = "{kind}"', "this collective does not add; leave it out")
    ranks = 0 if hosts is None else len(hosts)
    if ranks < 2 and not (hosts and keys.is_pulled):
        return 0, 0
    group = servers = 0
    if kind in GROUPED:
        group = _group(ctx, keys, loc, ranks, fabric)
        if keys.inside == "sharded" and group and ranks % group:
            msg = f'{ranks} ranks cannot be divided into groups of {group}, as inside = "sharded" needs'
            near = max(g for g in range(1, group + 1) if ranks % g == 0)
            ctx.add("GT048", (*loc, "group"), msg, f"write group = {near}, or another number of workers", group)
    if kind == "ps":
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
