"""Resolves a job: reads its model, checks its keys against one another, and fills in all defaults."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from gradtide import units
from gradtide.algorithms import ALGORITHMS
from gradtide.errors import ScenarioError
from gradtide.layers import Layer
from gradtide.scenario.device import is_known, unknown_device
from gradtide.scenario.fabric import Fabric
from gradtide.scenario.job import Job, ParallelModel
from gradtide.scenario.keys.job import (
    OF_PARALLEL,
    OF_ROOFLINE,
    Adaptive,
    Collective,
    Compute,
    JobTable,
    Schedule,
    ThesisModel,
)
from gradtide.scenario.keys.parallel import OF_MESH
from gradtide.scenario.keys.table import Table
from gradtide.scenario.opdag import OpDag
from gradtide.scenario.resolve import memory, network, parallel, priority
from gradtide.scenario.resolve import servers as op_by_op
from gradtide.scenario.resolve.collective import collective
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.resolve.run import MAX_ITERATIONS
from gradtide.scenario.resolve.schedule import schedule
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import ComputeRequest, LayerTable, read_model, scaled, with_times

DEFAULT_ITERATIONS = 10


def job(ctx: Context, name: str, hosts: tuple[int, ...] | None, fabric: Fabric | None) -> Job | None:
    """Resolve the job `name` with the given host of each rank; return `None` if any fault has been found."""
    keys, loc = ctx.file.job[name], ("job", name)
    table = _read_table(ctx, name, keys, loc, len(hosts) if hosts else keys.workers or 1)
    parallel_model = parallel.parallel_model(ctx, name, keys, loc, table)
    step = parallel.recorded(ctx, keys, loc, table)
    if keys.iterations is not None and keys.iterations > MAX_ITERATIONS:
        ctx.too_many((*loc, "iterations"), keys.iterations, MAX_ITERATIONS, "iterations")
    of_collective = collective(ctx, name, hosts, fabric)
    task = _check_servers(ctx, name, keys, loc, table)
    of_schedule, ranks = schedule(ctx, name, table)
    bands = priority.bands(ctx, keys.priority, (*loc, "priority"), table)
    adaptive = priority.adaptive(ctx, keys.priority, (*loc, "priority"), hosts, fabric)
    network.announce(ctx, keys.announce, loc)
    servers = 0 if of_collective.ps is None else of_collective.ps.servers or 0
    _check_straggler(ctx, keys, loc, None if hosts is None else len(hosts) - servers)
    if table is None or hosts is None or ctx.faults:
        return None
    graph, layers = _timed(keys, table, task)
    iterations = keys.iterations
    if iterations is None and ctx.file.run.duration_ps is None:
        # All iterations of a parallel job are equal, so one suffices.
        iterations = DEFAULT_ITERATIONS if parallel_model is None and step is None else 1
    return Job(
        name=name,
        model=table.label,
        layers=layers,
        graph=graph,
        hosts=hosts,
        iterations=iterations,
        placement=keys.placement if isinstance(keys.placement, str) else "packed",
        task=task or ("exchange" if keys.task == "exchange" else None),
        compute=_compute(keys.compute, table, parallel_model, task),
        collective=of_collective,
        schedule=of_schedule,
        ranks=ranks,
        bands=bands,
        adaptive=adaptive,
        start_ps=keys.start_ps,
        announced_packets=network.announced_packets(keys.announce, ctx.file.cluster.queue),
        parallel_model=parallel_model,
        step=step,
        device=table.device if parallel_model is None else parallel_model.device,
        stated=_stated(keys),
    )


def _timed(job: JobTable, table: LayerTable, task: str) -> tuple[OpDag | None, tuple[Layer, ...]]:
    """Return the graph and the layers of a model, with times scaled to `compute.scale_to` if given."""
    total_ps, layers, graph = job.compute.scale_to_ps, table.layers, table.graph
    if graph is not None:
        graph = graph if total_ps is None else op_by_op.scaled(graph, total_ps)
        return graph, layers if task else op_by_op.trained_layers(graph, layers)
    return None, layers if total_ps is None or is_remade(job.model) else scaled(layers, total_ps)


def _compute(keys: Compute, table: LayerTable, parallel_model: ParallelModel | None, task: str) -> Compute:
    if parallel_model is not None:
        return parallel.completed(keys, parallel_model)
    return keys.with_values(
        device=None if table.is_timed and table.device.origin != "stated" else table.device.name,
        batch=table.batch,
        seq=table.seq,
        order=(keys.order or "listed") if table.graph is not None and not task else None,
    )


def completed(keys: JobTable, job: Job) -> JobTable:
    """Return the keys of a job with the defaults of the resolved `job`."""
    return keys.with_values(
        iterations=job.iterations,
        task=job.task or keys.task,
        compute=job.compute,
        collective=job.collective,
        schedule=job.schedule,
        priority=keys.priority if job.adaptive is None else Adaptive.model_construct(adaptive=job.adaptive),
        parallel=None if job.parallel_model is None else job.parallel_model.keys,
    )


def written(ctx: Context, name: str, job: JobTable, table: dict[str, Any]) -> dict[str, Any]:
    """Return the resolved keys of a job as plain data, where models and orders replace the names of their files.

    Args:
        ctx: the checked scenario, for the keys as given.
        name: name of the job.
        job: keys of the job with all defaults.
        table: the same keys as plain data. This dict is modified.
    """
    given = ctx.file.job[name]
    of_collective, of_schedule = table["collective"], table["schedule"]
    table["model"] = ctx.tables[name].written
    if not isinstance(table["model"], str) and job.parallel is None:
        # The resolved model already contains the times.
        for key in OF_ROOFLINE if given.compute.is_given("device") else (*OF_ROOFLINE, "device"):
            table["compute"].pop(key, None)
    if "group" in ALGORITHMS[job.collective.kind].keys:
        # "leaf" is not replaced by a number, because on another network such groups have another size.
        of_collective["group"] = given.collective.group or "leaf"
    if job.collective.is_pulled:
        for key in ("fusion", "barrier", "depth", "sync", "credit"):
            del of_schedule[key]
    elif job.collective.ps is not None:
        if not job.collective.ps.servers:
            of_collective.pop("ps")
            if given.collective.ps is not None:
                of_collective["ps"] = given.collective.ps.plain()
        else:
            del of_collective["ps"]["pull"]
    if job.schedule.buckets is not None:
        of_schedule.pop("fusion", None)
    if name in ctx.rankings:
        of_schedule.pop("file", None)
        of_schedule["ranking"] = ctx.rankings[name]
    table["collective"] = in_order_of(Collective, of_collective)
    table["schedule"] = in_order_of(Schedule, of_schedule)
    is_parallel = job.parallel is not None or ctx.tables[name].step is not None
    return in_order_of(JobTable, parallel.without_effect(table)) if is_parallel else table


def in_order_of(keys: type[Table], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table sorted by the declaration order of its keys, so that equal scenarios have equal TOML."""
    order = list(keys.declared())
    return dict(sorted(table.items(), key=lambda item: order.index(item[0])))


def _read_table(ctx: Context, name: str, job: JobTable, loc: Loc, ranks: int) -> LayerTable | None:
    """Read the model of a job with `ranks` ranks, and check keys that depend on it; `None` if the model is faulty."""
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
        request = ComputeRequest(compute, ctx.file.cluster.device)
        table = read_model(model, ctx.source, at, ctx.base_dir, request, by_op=by_op)
        too_large = memory.undivided(ctx, job, loc, table, ranks)
        if too_large is not None:
            ctx.too_large[name] = too_large
        if job.parallel is None and table.architecture is not None:
            table = with_times(table, ctx.source, at, request)
    except ScenarioError as error:
        # A model that needs `parallel` gets its times from accelerator figures, so faults of its device do not matter.
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
        why = "for a model that is not a Hugging Face configuration"
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


def _check_straggler(ctx: Context, job: JobTable, loc: Loc, count: int | None) -> None:
    worker = None if job.compute.straggler is None else job.compute.straggler.worker
    if worker is not None and count is not None and worker >= count:
        hint = "the only worker is 0" if count == 1 else f"workers are 0 to {count - 1}"
        ctx.add("GT014", (*loc, "compute", "straggler", "worker"), f"there is no worker {worker}", hint, worker)


def _stated(job: JobTable) -> frozenset[str]:
    """Return the keys of `compute` that the user set, including keys that `parallel` replaces (`OF_MESH`)."""
    beside = () if job.parallel is None else (key for key in OF_MESH if job.parallel.value(key) is not None)
    return frozenset((*(key for key in Compute.declared() if job.compute.is_given(key)), *beside))


def _check_servers(ctx: Context, name: str, job: JobTable, loc: Loc, table: LayerTable | None) -> str:
    """Check keys that depend on pull = "start"; return the task, "train" or "inference", or "" with another `pull`."""
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


def is_remade(model: object) -> TypeGuard[ThesisModel]:
    """Return whether `compute.scale_to` changes the input of a synthetic model instead of rescaling its layers.

    This is so with precision = "float32", as the program of Gao (2020) generated the layers anew for each compute time.
    """
    return isinstance(model, ThesisModel) and model.precision == "float32"
