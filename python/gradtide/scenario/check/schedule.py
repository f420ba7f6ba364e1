"""The user's own buckets, the order of transfers, and the rank of every layer where the user gives it."""

from typing import Any

from gradtide.errors import ScenarioError, did_you_mean
from gradtide.scenario import servers as op_by_op
from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import PLANNED
from gradtide.scenario.keys.job import Schedule
from gradtide.scenario.source import Failure, Loc, read_text
from gradtide.scenario.tables import LayerTable, read_ranking


def buckets(ctx: Context, name: str, schedule: Schedule, loc: Loc, table: LayerTable | None) -> None:
    """Check the user's own buckets against the model."""
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
        for key in ("file", "ranking", *of_buckets):
            if schedule.value(key) is not None:
                ctx.no_effect((*at, key), f'with order = "{order}"', 'write order = "file"')
        return None
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
