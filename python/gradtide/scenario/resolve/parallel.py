"""Checks a job with `parallel` or a recorded step: its mesh against the model, the cluster and the job's other keys.

The result is a `ParallelModel`, i.e. the costs and layout of the model on each rank, or a `RecordedStep`.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any, get_args

from gradtide.architecture import FieldError
from gradtide.errors import ScenarioError, did_you_mean
from gradtide.parallel.costs import Accelerator, Costs, Kernel, Precision, Recompute, Training, slowest_of
from gradtide.parallel.mesh import AXES, Mesh
from gradtide.parallel.spec import Layout, describe, micro_batches
from gradtide.scenario.core import job as core
from gradtide.scenario.device import HINT
from gradtide.scenario.job import ParallelModel, RecordedStep
from gradtide.scenario.keys.job import OF_ROOFLINE, Collective, Compute, JobTable, Schedule
from gradtide.scenario.keys.parallel import OF_MESH, Parallel
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable
from gradtide.scenario.times import read_times
from gradtide.units import PPM

WITHOUT_EFFECT = {
    "": ("task", "announce", "placement"),
    "compute": ("batch", "scale_to", "order"),
    "collective": tuple(Collective.declared()),
    "schedule": tuple(key for key in Schedule.declared() if key not in ("order", "overhead", "sync")),
}
"""Keys that have no effect on a parallel job, by table of the job; "" is `job.NAME` itself."""

ORDERS = ("fifo", "tic", "tac")
"""Values of `schedule.order` that parallel jobs support: orders of the transfers of a process group."""


def parallel_model(ctx: Context, name: str, job: JobTable, loc: Loc, table: LayerTable | None) -> ParallelModel | None:
    """Return the model divided over ranks; None for a job without `parallel` or with faults."""
    keys = job.parallel
    if keys is None:
        return None
    _without_effect(ctx, job, loc)
    if job.compute.times is not None:
        for key in ("efficiency", "compile", "scaling_loss"):
            if job.compute.is_given(key):
                ctx.no_effect((*loc, "compute", key), "beside `times`", "leave one of the two out")
    if table is None or not ctx.ok("job", name, "parallel") or not ctx.ok("job", name, "compute"):
        return None
    if table.architecture is None:
        why = "it is not a Hugging Face configuration" if table.step is None else "its recorded step is divided already"
        msg = f"{table.label} cannot be divided over ranks: {why}"
        ctx.add("GT055", (*loc, "parallel"), msg, 'write model = "config.json", or leave `parallel` out')
        return None
    try:
        return _parallel_model(ctx, job, keys, table, loc)
    except ScenarioError as error:
        ctx.faults += error.faults
        return None
    except FieldError as error:
        ctx.add("GT055", _place(loc, error.field, keys), error.msg, error.hint)
        return None


def recorded(ctx: Context, job: JobTable, loc: Loc, table: LayerTable | None) -> RecordedStep | None:
    """Return the recorded step that a job repeats; None for another model or an invalid step."""
    if table is None or table.step is None:
        return None
    # Keys in OF_ROOFLINE are skipped, because the check of models with times reports them.
    _without_effect(ctx, job, loc, OF_ROOFLINE)
    if job.parallel is not None:
        return None  # `parallel_model` reports the fault
    node = ctx.file.cluster.node
    spec = core.recorded(table.step, 1 if node is None else node.gpus)
    try:
        ranks, op_count, compute_ps = core.recorded_size(spec)
    except ValueError as error:
        ctx.add("GT055", (*loc, "model"), str(error), "name a trace, or write what `trace.graph()` returns")
        return None
    if job.workers is not None and job.workers != ranks:
        msg = f"the recorded step has {ranks:,} ranks, and there are {job.workers:,} workers"
        ctx.add("GT055", (*loc, "workers"), msg, f"write workers = {ranks}, or leave it out", job.workers)
        return None
    return RecordedStep(spec, ranks, op_count, compute_ps)


def _place(loc: Loc, field: str, keys: Parallel) -> Loc:
    """Return the path in the scenario of a field that `gradtide.parallel` names in a `FieldError`."""
    if field == "parallel":
        return (*loc, "parallel")
    is_of_mesh = field in Parallel.declared() and (field not in OF_MESH or keys.value(field) is not None)
    return (*loc, "parallel" if is_of_mesh else "compute", field)


def _without_effect(ctx: Context, job: JobTable, loc: Loc, known: Container[str] = ()) -> None:
    if job.schedule.order not in ORDERS:
        msg = f'order = "{job.schedule.order}" is for buckets of gradients, not for the transfers of a divided model'
        ctx.add("GT016", (*loc, "schedule", "order"), msg, f'write "{ORDERS[0]}", or leave it out')
    for name, keys in WITHOUT_EFFECT.items():
        table = job.value(name) if name else job
        for key in keys:
            if table.is_given(key) and key not in known:
                here = (*loc, name, key) if name else (*loc, key)
                ctx.no_effect(here, "for a model that is divided over ranks", "leave it out")


def without_effect(written: dict[str, Any]) -> dict[str, Any]:
    """Return the resolved keys of a parallel job without those in `WITHOUT_EFFECT`."""
    kept = {key: value for key, value in written.items() if key not in WITHOUT_EFFECT[""]}
    for name in filter(None, WITHOUT_EFFECT):
        table = {key: value for key, value in kept.pop(name, {}).items() if key not in WITHOUT_EFFECT[name]}
        if table:
            kept[name] = table
    return kept


def _parallel_model(ctx: Context, job: JobTable, keys: Parallel, table: LayerTable, loc: Loc) -> ParallelModel:
    from gradtide import presets

    compute, node, model = job.compute, ctx.file.cluster.node, table.architecture
    assert model is not None
    assert compute.seq is not None  # required for a configuration
    device = table.device
    if device.name is None:
        msg = "the model needs a device to compute on, and neither the job nor the cluster names one"
        raise ScenarioError([ctx.source.fault("GT010", (*loc, "compute", "device"), msg, HINT)])
    try:
        accelerator = presets.accelerator(device.name)
    except KeyError:
        known = presets.accelerator_names()
        hint = did_you_mean(device.name, known, f"there are {', '.join(known)}", kind="device")
        raise FieldError("device", f"there is no accelerator {device.name!r:.60}", hint) from None
    if compute.efficiency_ppm is not None:
        accelerator = accelerator.stated(compute.efficiency_ppm / PPM)
    precision = keys.precision or compute.precision or get_args(Precision)[0]
    if compute.times is not None and precision in accelerator.peaks and precision not in accelerator.efficiency:
        # With `times`, only ratios of roofline times are used, so any efficiency gives the same result.
        accelerator = accelerator.stated(1.0)
    mesh = Mesh(**{axis: getattr(keys, axis) for axis in AXES})
    if job.workers is not None and job.workers != mesh.ranks:
        msg = f"the mesh has {mesh.ranks:,} ranks, and there are {job.workers:,} workers"
        raise FieldError("parallel", msg, "change one of the two")
    chunks = keys.chunks or 1
    if keys.pipeline == "interleaved" and keys.chunks is None:
        raise FieldError("pipeline", "`chunks` is missing: stages of each rank", "write chunks = 2")
    gpus_per_node = 1 if node is None else node.gpus
    training = Training(
        seq=compute.seq,
        micro_batch=keys.micro_batch or compute.micro_batch or 1,
        precision=precision,
        recompute=keys.recompute or compute.recompute or get_args(Recompute)[0],
        attention=compute.attention or get_args(Kernel)[0],
        compiled=compute.compile is not False,
        compiled_loss=compute.compile_loss is True,
        sequence_parallel=mesh.tp > 1 if keys.sequence is None else keys.sequence,
        expert_skew=keys.expert_skew_ppm / PPM,
        slowest=slowest_of(-(-mesh.ranks // gpus_per_node), _scaling_loss_ppm(compute, accelerator) / PPM),
    )
    layout = Layout(
        gpus_per_node=gpus_per_node,
        micro_batches=micro_batches(compute.global_batch, training.micro_batch, mesh.data, mesh.pp),
        zero=(2 if mesh.pp > 1 else 3) if keys.zero is None else keys.zero,
        pipeline=keys.pipeline,
        chunks=chunks,
        unit=keys.unit,
        context=keys.context,
        async_tp=keys.async_tp,
        scatter_gather=keys.scatter_gather,
        prefetch=keys.prefetch,
        backward_prefetch=keys.prefetch if keys.backward_prefetch is None else keys.backward_prefetch,
        stages=keys.stages,
    )
    costs = Costs(model, accelerator, mesh, training)
    rows, own = None, None
    if compute.times is not None:
        mesh.check(model, training.seq, chunks)
        given = read_times(compute.times, ctx.source, (*loc, "compute", "times"), ctx.base_dir)
        rows, own = given.table, given.own(costs)
        if own.has_recompute and training.recompute == "none":
            raise FieldError(
                "times",
                "recompute times have no effect: nothing is computed again",
                'write recompute = "full", or delete the column',
            )
    described = describe(costs, layout, own)
    complete = keys.with_values(
        zero=layout.zero,
        sequence=training.sequence_parallel,
        backward_prefetch=layout.backward_prefetch,
        # In a resolved scenario, only `compute` contains these keys.
        **dict.fromkeys(OF_MESH),
    )
    device = replace(device, name=accelerator.name)
    return ParallelModel(complete, device, costs, layout, described, own, rows)


def _scaling_loss_ppm(compute: Compute, accelerator: Accelerator) -> int:
    if compute.scaling_loss_ppm is not None:
        return compute.scaling_loss_ppm
    says_how_ranks_differ = compute.noise_ppm > 0 or compute.straggler is not None or compute.times is not None
    return 0 if says_how_ranks_differ else round(accelerator.scaling_loss * PPM)


def completed(compute: Compute, parallel_model: ParallelModel) -> Compute:
    """Return the table `compute` of a parallel job with all defaults."""
    training = parallel_model.training
    return compute.with_values(
        device=parallel_model.accelerator.name,
        batch=None,
        micro_batch=training.micro_batch,
        global_batch=parallel_model.global_batch,
        recompute=training.recompute,
        precision=training.precision,
        attention=training.attention,
        compile=None if parallel_model.own is not None else training.compiled,
        compile_loss=training.compiled_loss,
        scaling_loss_ppm=None
        if parallel_model.own is not None
        else _scaling_loss_ppm(compute, parallel_model.accelerator),
        times=parallel_model.times,
    )
