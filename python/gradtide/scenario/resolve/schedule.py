"""Checks the schedule of a job, i.e. its buckets and their order, and fills in defaults that depend on other keys."""

from typing import Any

from gradtide.errors import ScenarioError, did_you_mean
from gradtide.recognise import other_format
from gradtide.scenario.keys.job import Schedule
from gradtide.scenario.releases import parse_release
from gradtide.scenario.resolve import servers
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.source import Failure, Loc, read_text
from gradtide.scenario.tables import LayerTable, read_ranking

PLANNED = ("caramel", "edf", "optimal")
"""Orders that the core plans. They have other defaults for buckets, barrier and depth."""


def schedule(ctx: Context, name: str, table: LayerTable | None) -> tuple[Schedule, tuple[int, ...] | None]:
    """Return a job's schedule with all defaults, and the rank of each layer if order = "file"; add its faults."""
    job, loc = ctx.file.job[name], ("job", name)
    keys, node, is_pulled = job.schedule, ctx.file.cluster.node, job.collective.is_pulled
    _check_buckets(ctx, name, keys, loc, table)
    ranks = _ranks(ctx, name, keys, loc, table)
    overhead_ps = keys.overhead_ps
    if node is not None and not keys.is_given("overhead") and not is_pulled:
        overhead_ps = node.launch_ps
    fusion, barrier, depth = keys.fusion_bytes, keys.barrier, keys.depth
    # With `first_fusion` or `cycle`, buckets need a size limit, whatever the order.
    is_open = not keys.is_given("fusion") and keys.first_fusion_bytes is None and keys.cycle_ps is None
    if is_pulled:
        fusion, barrier, depth = 0, True, 1
    elif keys.order in PLANNED:
        fusion = "adaptive" if is_open else fusion
        barrier = barrier if keys.is_given("barrier") else False
        depth = depth if keys.is_given("depth") else "adaptive"
    elif table is not None and table.bucketed and is_open:
        fusion = 0
    complete = keys.with_values(
        order=servers.order_of(job),
        overhead_ps=overhead_ps,
        fusion_bytes=fusion,
        barrier=barrier,
        depth=depth,
        disorder_ppm=(keys.disorder_ppm or 0) if is_pulled else None,
    )
    return complete, ranks


def _check_buckets(ctx: Context, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> None:
    """Check the keys that form buckets against one another, and that `buckets` contains every layer of the model."""
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


def _ranks(ctx: Context, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> tuple[int, ...] | None:
    """Check the keys of the send order; return the rank of every layer if order = "file"."""
    at: Loc = (*loc, "schedule")
    if not ctx.ok("job", name, "schedule", "order"):
        return None
    if schedule.cycle_ps is not None and schedule.order in PLANNED:
        msg = f'`cycle` contradicts order = "{schedule.order}", which decides when each bucket is sent'
        ctx.add("GT016", (*at, "cycle"), msg, 'leave `cycle` out, or write order = "fifo"')
    if schedule.queues is not None and schedule.order != "priority" and not ctx.file.job[name].collective.is_pulled:
        ctx.no_effect((*at, "queues"), f'with order = "{schedule.order}"', 'write order = "priority"')
    order = servers.order_of(ctx.file.job[name])
    if order != "file":
        # With pulls, `servers` reports `in_turn`.
        of_buckets = () if ctx.file.job[name].collective.is_pulled else ("in_turn",)
        for key in ("file", "ranking", "releases", *of_buckets):
            if schedule.value(key) is not None:
                ctx.no_effect((*at, key), f'with order = "{order}"', 'write order = "file"')
        return None
    _releases(ctx, schedule, at, table)
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
        foreign = other_format(text, schedule.file, "a list of layers, one name per line")
        if foreign is not None:
            ctx.faults.append(foreign)
            return None
        entries = read_ranking(text, schedule.file)
    elif ctx.ok("job", name, "schedule"):
        hint = 'write file = "order.csv": one layer name per line, most urgent first'
        ctx.add("GT010", (*at, "file"), 'order = "file" needs `file`', hint)
        return None
    else:
        return None
    if table is None:
        return None
    return _ranks_of(ctx, name, table, entries, whole)


def _releases(ctx: Context, schedule: Schedule, at: Loc, table: LayerTable | None) -> None:
    """Check that every bucket has a release event, which is empty or names a pass and a layer of the model."""
    if schedule.releases is None:
        return
    if schedule.buckets is None or len(schedule.releases) != len(schedule.buckets):
        msg = f"{len(schedule.releases)} release events for {len(schedule.buckets or ())} buckets"
        ctx.add("GT016", (*at, "releases"), msg, 'write `buckets`, and a release event or "" for each')
        return
    if schedule.in_turn:
        ctx.add("GT016", (*at, "in_turn"), "`in_turn` and `releases` contradict each other", "keep one of them")
    if table is None:
        return
    if table.graph is not None:
        ctx.add("GT016", (*at, "releases"), "the model is a graph of ops, which has no passes", "leave `releases` out")
        return
    every = {row.name: row.parameter_bytes for row in table.layers}
    for index, text in enumerate(schedule.releases):
        release = parse_release(text)
        if release is None:
            continue
        where, layer = release
        loc = (*at, "releases", index)
        if where not in ("backward", "forward"):
            ctx.add("GT016", loc, f"`{where}` is not a pass", 'write "backward LAYER", "forward LAYER" or ""', text)
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
