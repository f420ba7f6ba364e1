"""Checks that a worker's device has enough memory for the whole model, which a job without `parallel` requires."""

from collections.abc import Iterable, Iterator

from gradtide.errors import Fault
from gradtide.parallel import fit
from gradtide.parallel.costs import Accelerator, Costs, Precision, Training
from gradtide.parallel.memory import MASTER_BYTES, MOMENTS_BYTES
from gradtide.parallel.mesh import Mesh
from gradtide.parallel.spec import Layout, fullest
from gradtide.scenario.job import Job
from gradtide.scenario.keys.job import JobTable
from gradtide.scenario.resolve.context import Context
from gradtide.scenario.source import Loc
from gradtide.scenario.tables import LayerTable

STATE_BYTES = 4 + MASTER_BYTES + MOMENTS_BYTES
"""Bytes per parameter with Adam: gradient, parameter and two moments in fp32 (Rajbhandari et al. 2020, section 3.1)."""


def undivided(ctx: Context, job: JobTable, loc: Loc, table: LayerTable, workers: int) -> Fault | None:
    """Return a fault if a language model exceeds a worker's memory. The hint names meshes on which the model fits."""
    from gradtide import presets

    name = table.device.name
    memory_bytes = None if name is None else presets.memory_bytes(name)
    if name is None or memory_bytes is None or not table.is_language or table.is_timed:
        return None
    if job.parallel is not None or job.collective.is_pulled or job.task not in (None, "train"):
        return None
    where: Loc = (*loc, "parallel")
    if table.architecture is None:
        states = STATE_BYTES * sum(row.parameter_bytes for row in table.layers) // 4
        hint = (
            "its layers are counts, which cannot be divided: take a language preset or a config.json, as in "
            f"gradtide run config.json --parallel fsdp={workers}"
        )
        msg = _too_large(table, states, name, memory_bytes)
        return ctx.source.fault("GT057", where, msg, hint) if states > memory_bytes else None
    assert table.seq is not None
    assert table.batch is not None
    accelerator = _accelerator(name, memory_bytes)
    training = Training(seq=table.seq, micro_batch=table.batch, precision=_precision(name))
    is_sparse = any(module.experts > 1 for module in table.architecture.modules())
    costs = Costs(table.architecture, accelerator, Mesh(dp=workers, ep=1 if is_sparse else None), training)
    needed = fullest(costs, Layout(zero=0))
    if fit.fit(needed, 1).verdict != "does not fit":
        return None
    hint = _hint(ctx, table, accelerator, training, workers)
    return ctx.source.fault("GT057", where, _too_large(table, needed.total, name, memory_bytes), hint)


def _hint(ctx: Context, table: LayerTable, accelerator: Accelerator, training: Training, workers: int) -> str:
    """Return a hint with one or two meshes on which the model fits, if necessary with more than `workers` ranks."""
    assert table.architecture is not None
    node = ctx.file.cluster.node
    per_node = 1 if node is None else node.gpus
    # With `parallel`, `compute.batch` has no effect, and the default micro-batch is one sequence.
    training = Training(seq=training.seq, precision=training.precision)
    found = fit.meshes(table.architecture, accelerator, training, workers, per_node)
    if found and found[0].fit.verdict != "does not fit":
        options = " or ".join(f"--parallel {shown(one.mesh)}" for one in fit.two_meshes(found))
        return f"divide it with `parallel`, as in {options}"
    larger = fit.more(table.architecture, accelerator, training, workers, per_node)
    if larger is None:
        return f"no mesh that was tried has the memory: take a device with more of it than {accelerator.name} has"
    on = "" if node is None else f" ({-(-larger.ranks // per_node)} nodes)"
    return (
        f"no mesh of {workers} ranks has the memory: take {larger.ranks} GPUs{on} and divide it with `parallel`, as in "
        f"--parallel {shown(larger.mesh)}"
    )


def shown(mesh: dict[str, int | str]) -> str:
    """Return a mesh in the syntax of the option `--parallel`, as in `fsdp=16,tp=8`."""
    return ",".join(f"{key}={value}" for key, value in mesh.items())


def warnings(ctx: Context, jobs: Iterable[Job]) -> Iterator[str]:
    """Yield a warning for each job without `parallel` whose model exceeds a worker's memory.

    Models other than language models get only this warning and no fault, because they may be trained without Adam.
    """
    from gradtide import presets

    for fault in ctx.too_large.values():
        yield f"{fault.msg}; {fault.hint}"
    for job in jobs:
        table, name = ctx.tables[job.name], job.device.name
        memory_bytes = None if name is None else presets.memory_bytes(name)
        is_of_workers = not (table.is_language or job.is_parallel or job.is_pulled or job.task == "exchange")
        needed = STATE_BYTES * job.parameter_bytes // 4
        if is_of_workers and memory_bytes is not None and needed > memory_bytes:
            yield (
                f"a worker of [job.{job.name}] would keep {needed / 1e9:.4g} GB of parameters, gradients and states of "
                f"Adam, and {name} has {memory_bytes / 1e9:.4g} GB"
            )


def _too_large(table: LayerTable, needed: int, device: str, memory_bytes: int) -> str:
    has = f"{device} has {memory_bytes / 1e9:.4g} GB"
    return f"{table.label} does not fit: a worker keeps {needed / 1e9:.4g} GB, and {has}"


def _accelerator(name: str, memory_bytes: int) -> Accelerator:
    """Return the accelerator of a device; for a device without accelerator figures, a placeholder with its memory."""
    from gradtide import presets

    try:
        return presets.accelerator(name)
    except KeyError:
        return Accelerator(name, name, {}, memory_bytes, 1.0, 1.0, 1.0, "", "")


def _precision(device: str) -> Precision:
    from gradtide import presets

    if device.endswith("-fp8"):
        return "float8"
    return "bf16" if presets.device(device).element_bytes == 2 else "fp32"
