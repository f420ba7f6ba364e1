"""The length of a run, with its warm-up and cool-down."""

from gradtide import units
from gradtide.scenario.check.context import Context


def check(ctx: Context) -> None:
    """Check the length of the run against warm-up, cool-down and traffic."""
    run, has_traffic = ctx.file.run, bool(ctx.file.traffic)
    if not ctx.ok("run", "duration"):
        return
    if run.duration_ps is None and has_traffic and not ctx.misspelt(("run",), "duration"):
        msg = "`duration` is missing: background flows do not end by themselves"
        ctx.add("GT010", ("run", "duration"), msg, 'write duration = "12s"')
    if not (ctx.ok("run", "warmup") and ctx.ok("run", "cooldown")):
        return
    for key in ("warmup", "cooldown"):
        if run.value(key) and ctx.has_bands and not has_traffic and ctx.ok("traffic"):
            ctx.no_effect(("run", key), "without traffic", "it is for background flows; leave it out")
    if run.duration_ps is not None and run.warmup_ps + run.cooldown_ps >= run.duration_ps:
        key = "warmup" if run.warmup_ps >= run.cooldown_ps else "cooldown"
        parts = f"{units.format_time(run.warmup_ps)} and {units.format_time(run.cooldown_ps)}"
        msg = f"warm-up and cool-down ({parts}) leave no time to count in {units.format_time(run.duration_ps)}"
        ctx.add("GT052", ("run", key), msg, "shorten them, or lengthen `duration`", run.value(key))
