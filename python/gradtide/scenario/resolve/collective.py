"""Checks the collective of a job, and determines the size of its groups and the number of its parameter servers."""

from collections import Counter

from gradtide.algorithms import ALGORITHMS
from gradtide.counts import ALL_REDUCES, NOT_SUMMED
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.keys.job import Collective, Ps
from gradtide.scenario.resolve import servers as pulls
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.source import Loc


def collective(ctx: Context, name: str, hosts: tuple[int, ...] | None, fabric: Fabric | None) -> Collective:
    """Check a job's collective, and fill in its defaults, such as group size and number of parameter servers."""
    job = ctx.file.job[name]
    keys, kind = job.collective, job.collective.algorithm
    group, servers = _check(ctx, name, keys, ("job", name, "collective"), hosts, fabric)
    algorithm, ps = ALGORITHMS[kind], keys.ps or Ps()
    of_servers = ps.with_values(
        servers=servers,
        placement=pulls.placement_of(ps),
        shards=(ps.shards or "bytes") if keys.is_pulled else None,
        # The default, sync = "sync", is written as no `sync`, so that equal scenarios have equal TOML.
        sync=None if keys.bound == 0 else ps.sync,
    )
    return keys.with_values(
        kind=kind,
        group=group if "group" in algorithm.keys else None,
        inside=(keys.inside or "ring") if "inside" in algorithm.keys else None,
        ps=of_servers if "ps" in algorithm.keys else None,
    )


def _check(
    ctx: Context, name: str, keys: Collective, loc: Loc, hosts: tuple[int, ...] | None, fabric: Fabric | None
) -> tuple[int, int]:
    """Check a collective against the job's ranks; return ranks per group and number of servers, 0 if there are none."""
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
            msg = f"trees need equally many ranks on each node, and the job has {counts}"
            hint = 'put as many workers on each node, or write kind = "ring"'
            ctx.add("GT048", (*loc, "kind"), msg, hint, kind)
    if "ps" in algorithm.keys:
        servers = pulls.beside(ctx.file.job[name]) or pulls.count_of(keys.ps or Ps(), ranks)
        if servers >= ranks:
            which = "the only host" if ranks == 1 else f"all {ranks} ranks"
            msg = f"{which} would be parameter servers; no worker would remain"
            hint = "servers are some of the job's workers: write fewer servers, or more workers"
            ctx.add("GT048", (*loc, "ps", "servers"), msg, hint, servers)
    return group, servers


def _group(ctx: Context, keys: Collective, loc: Loc, ranks: int, fabric: Fabric | None) -> int:
    """Return the number of ranks per group: `group` itself, or the hosts per edge switch for "leaf"."""
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
