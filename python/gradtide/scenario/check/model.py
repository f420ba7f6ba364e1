"""The model of a job and what is said of its compute times."""

from gradtide import units
from gradtide.errors import ScenarioError
from gradtide.scenario.check.context import Context
from gradtide.scenario.defaults import is_remade
from gradtide.scenario.keys.job import JobTable
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable, read_model


def straggler(ctx: Context, job: JobTable, loc: Loc, count: int | None) -> None:
    """Check that the slow worker is one of the job's."""
    worker = None if job.compute.straggler is None else job.compute.straggler.worker
    if worker is not None and count is not None and worker >= count:
        hint = "the only worker is 0" if count == 1 else f"workers are 0 to {count - 1}"
        ctx.add("GT014", (*loc, "compute", "straggler", "worker"), f"there is no worker {worker}", hint, worker)


def read(ctx: Context, name: str, job: JobTable, loc: Loc) -> LayerTable | None:
    """Read the model of a job; return `None` if that cannot be done."""
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
        table = read_model(model, ctx.source, at, ctx.base_dir, compute, by_op=by_op)
    except ScenarioError as error:
        ctx.faults += error.faults
        return None
    if table.is_timed:
        for key in ("device", "efficiency", "batch"):
            if compute.is_given(key):
                ctx.no_effect((*loc, "compute", key), "for a model with times of its own", "leave it out")
    if sum(r.parameter_bytes for r in table.layers) > units.U64_MAX:
        ctx.add("GT024", (*loc, "model"), "the parameters are too large", "sizes end at 2^64 B in all")
    ctx.tables[name] = table
    return table
