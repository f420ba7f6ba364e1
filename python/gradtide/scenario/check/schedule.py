"""The user's own buckets."""

from gradtide.scenario.check.context import Context
from gradtide.scenario.keys.job import Schedule
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable


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
