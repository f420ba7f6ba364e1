"""Whether a job fits in device memory, changes that make it fit, and the valid meshes of a model.

    fit(memory, stages).verdict                    "fits", "too close to call" or "does not fit"
    would_fit(costs, layout, global_batch)         changes that make the job fit
    meshes(model, accelerator, training, ranks, …) valid meshes, those that fit first

All answers come from `parallel.memory`, applied to alternative meshes and training settings. Nothing is simulated, and
times are not considered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from gradtide.architecture import Architecture, FieldError
from gradtide.parallel.costs import Accelerator, Costs, Recompute, Training
from gradtide.parallel.memory import Memory
from gradtide.parallel.mesh import Mesh
from gradtide.parallel.spec import Layout, fullest, micro_batches

Verdict = Literal["fits", "too close to call", "does not fit"]
VERDICTS: tuple[Verdict, ...] = ("fits", "too close to call", "does not fit")

OVER = 0.04
"""Largest relative overestimate of memory in 15 measured training steps (docs/validation/llm-steps.md)."""
UNDER = 0.05
"""Largest relative underestimate of memory in measured training steps without a pipeline."""
UNDER_OF_PIPELINE = 0.24
"""Largest relative underestimate of memory in four measured training steps with eight pipeline stages. Activations
received from the previous stage are not counted."""

MOST_CHANGES = 3
MOST_STAGES = 16
"""Largest number of pipeline stages tried."""
MOST_TIMES = 1024
"""Largest multiple of the job's GPUs that is tried if no change on the same GPUs helps."""
AGAIN: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Fit:
    """Whether the fullest rank, i.e. the one that needs the most memory, fits on its device.

    Attributes:
        verdict: "too close to call" if the device's memory lies in the range `likely_bytes`.
        spare_bytes: device memory minus predicted memory; negative if the device lacks memory.
        likely_bytes: smallest and largest memory that would be measured, given the known errors of the prediction.
    """

    verdict: Verdict
    spare_bytes: int
    likely_bytes: tuple[int, int]


class Change(NamedTuple):
    """An alternative mesh or training setting of a job, and the memory that the job would need with it.

    Attributes:
        keys: changed keys, as for `--parallel`: `{"recompute": "full"}`, `{"fsdp": 16, "tp": 8}`.
        mesh: the mesh and the changed keys, as they would be written in the scenario's table `parallel`.
        ranks: number of ranks of the mesh.
        memory: memory of the fullest rank.
        fit: whether the fullest rank fits.
    """

    keys: dict[str, Any]
    mesh: dict[str, Any]
    ranks: int
    memory: Memory
    fit: Fit

    @property
    def described(self) -> dict[str, Any]:
        """The change as a table of the summary."""
        return {
            "keys": self.keys,
            "parallel": self.mesh,
            "ranks": self.ranks,
            "total": self.memory.total,
            "feasibility": self.fit.verdict,
        }


@dataclass(frozen=True)
class Ways:
    """Changes that make a job fit.

    Attributes:
        changes: at most `MOST_CHANGES` changes with the same number of ranks: those that certainly fit first, then the
            smallest change first.
        more: if `changes` is empty, a mesh of more ranks that fits; None if no such mesh was found.
    """

    changes: tuple[Change, ...] = field(default=())
    more: Change | None = None


def fit(memory: Memory, stages: int) -> Fit:
    """Return whether a rank with this memory fits, for a job with `stages` pipeline stages."""
    under = UNDER if stages == 1 else UNDER_OF_PIPELINE
    least, most = round(memory.total / (1 + OVER)), round(memory.total / (1 - under))
    verdict: Verdict = "fits" if most <= memory.device else "does not fit" if least > memory.device else VERDICTS[1]
    return Fit(verdict, memory.device - memory.total, (least, most))


def would_fit(costs: Costs, layout: Layout, global_batch: int | None = None) -> Ways:
    """Return changes that make a job fit on the same number of GPUs, or else a mesh of more GPUs on which it fits.

    The candidates are recomputation, smaller micro-batches, more sharding, larger tensor-parallel groups within a node,
    and more pipeline stages: each alone, then combined with full recomputation.

    Args:
        costs: model, device, mesh and training settings of the job.
        layout: pipeline and sharding of the job.
        global_batch: number of sequences per iteration, which must not change; None if it may.
    """
    own = VERDICTS.index(fit(fullest(costs, layout), costs.mesh.pp).verdict)
    found = [one for one in _changed(costs, layout, global_batch) if VERDICTS.index(one.fit.verdict) < own]
    # The stable sort puts changes that certainly fit before borderline ones.
    found.sort(key=lambda one: VERDICTS.index(one.fit.verdict))
    if found:
        return Ways(tuple(found[:MOST_CHANGES]))
    ranks, per_node = costs.mesh.ranks, layout.gpus_per_node
    return Ways((), more(costs.model, costs.accelerator, costs.training, ranks, per_node))


def meshes(
    model: Architecture,
    accelerator: Accelerator,
    training: Training,
    ranks: int,
    gpus_per_node: int,
    global_batch: int | None = None,
) -> list[Change]:
    """Return all meshes of `ranks` ranks over which a model can be divided, those that fit first.

    Among these, sharding alone comes before tensor parallelism, tensor parallelism before pipelines, and all of them
    before more recomputation. If no mesh fits, the one that needs the least memory comes first.
    """
    found = list(_meshes(model, accelerator, training, ranks, gpus_per_node, global_batch))
    found.sort(key=lambda one: VERDICTS.index(one.fit.verdict))
    if found and found[0].fit.verdict == "does not fit":
        found.sort(key=lambda one: one.memory.total)
    return found


def _meshes(
    model: Architecture,
    accelerator: Accelerator,
    training: Training,
    ranks: int,
    gpus_per_node: int,
    global_batch: int | None = None,
) -> Iterator[Change]:
    ways = product(AGAIN[AGAIN.index(training.recompute) :], _powers(MOST_STAGES), _powers(gpus_per_node))
    for again, pp, tp in ways:
        if ranks % (tp * pp) or tp > ranks:
            continue
        fsdp = ranks // (tp * pp)
        keys: dict[str, Any] = {"fsdp": fsdp, "tp": tp, "pp": pp}
        keys = {axis: count for axis, count in keys.items() if count > 1} or {"fsdp": 1}
        experts = _experts(model, fsdp)
        keys |= {} if experts is None else {"ep": experts}
        keys |= {} if again == training.recompute else {"recompute": again}
        one = _tried(
            Costs(model, accelerator, Mesh(), training), Layout(gpus_per_node), keys, global_batch, is_new=True
        )
        if one is not None:
            yield one


def two_meshes(found: list[Change]) -> list[Change]:
    """Return the first mesh of `found`, and the first one that uses other axes and has the same verdict."""
    of_axes = {tuple(axis for axis in one.mesh if axis in ("fsdp", "tp", "pp")): one for one in reversed(found)}
    alike = [one for one in of_axes.values() if one.fit.verdict == found[0].fit.verdict]
    chosen = sorted(alike, key=found.index)[:2]
    return chosen if len(chosen) == 2 else found[:2]


def more(
    model: Architecture, accelerator: Accelerator, training: Training, ranks: int, gpus_per_node: int
) -> Change | None:
    """Return the first mesh that fits as the number of ranks is doubled; None if `MOST_TIMES` times is not enough."""
    # Only whole nodes are tried, because cluster presets consist of whole nodes.
    nodes = -(-ranks // gpus_per_node)
    for times in _powers(MOST_TIMES):
        count = nodes * gpus_per_node * times
        if count <= ranks:
            continue
        able = (one for one in _meshes(model, accelerator, training, count, gpus_per_node) if one.fit.verdict == "fits")
        found = next(able, None)
        if found is not None:
            return found
    return None


def _changed(costs: Costs, layout: Layout, global_batch: int | None) -> Iterator[Change]:
    """Yield the candidate changes that keep the number of ranks, the smallest change first."""
    alone = list(_single(costs, layout))
    strongest = [] if costs.training.recompute == "full" else [{"recompute": "full"}]
    pairs = [{**keys, **again} for again in strongest for keys in alone if "recompute" not in keys]
    for keys in (*alone, *pairs):
        one = _tried(costs, layout, keys, global_batch)
        if one is not None:
            yield one


def _single(costs: Costs, layout: Layout) -> Iterator[dict[str, Any]]:
    mesh, training = costs.mesh, costs.training
    for again in AGAIN[AGAIN.index(training.recompute) + 1 :]:
        yield {"recompute": again}
    smaller = training.micro_batch // 2
    while smaller:
        yield {"micro_batch": smaller}
        smaller //= 2
    if mesh.fsdp * mesh.cp > 1 and layout.zero < 3:
        yield {"zero": 3}
    if mesh.dp > 1:
        yield {"fsdp": mesh.fsdp * mesh.dp, "dp": 1}
    data = mesh.fsdp * mesh.dp
    for tp in _powers(layout.gpus_per_node):
        if tp > mesh.tp and tp % mesh.tp == 0 and data % (tp // mesh.tp) == 0:
            yield {"tp": tp, "fsdp": data // (tp // mesh.tp), **({"dp": 1} if mesh.dp > 1 else {})}
    for pp in _powers(MOST_STAGES):
        if pp > mesh.pp and pp % mesh.pp == 0 and data % (pp // mesh.pp) == 0:
            yield {"pp": pp, "fsdp": data // (pp // mesh.pp), **({"dp": 1} if mesh.dp > 1 else {})}


def _tried(
    costs: Costs, layout: Layout, keys: Mapping[str, Any], global_batch: int | None, *, is_new: bool = False
) -> Change | None:
    """Return the job with `keys` of its table `parallel` changed; None if the result is invalid."""
    axes = {name: value for name, value in keys.items() if name in ("tp", "cp", "ep", "fsdp", "dp", "pp")}
    try:
        mesh = replace(costs.mesh, **({**axes, "ep": None} if axes and "ep" not in axes else axes))
        if mesh.ep is None and costs.mesh.ep is not None:
            mesh = replace(mesh, ep=_experts(costs.model, mesh.spread, costs.mesh.experts))
        training = replace(
            costs.training, **{name: keys[name] for name in ("recompute", "micro_batch") if name in keys}
        )
        if mesh.tp != costs.mesh.tp:
            training = replace(training, sequence_parallel=mesh.tp > 1)
        changed = replace(layout, zero=keys.get("zero", layout.zero))
        if mesh.pp != costs.mesh.pp or is_new:
            zero = (2 if mesh.pp > 1 else 3) if is_new else changed.zero
            changed = replace(changed, pipeline="1f1b", chunks=1, stages=None, zero=zero)
        count = micro_batches(global_batch, training.micro_batch, mesh.data, mesh.pp)
        changed = replace(changed, micro_batches=count)
        mesh.check(costs.model, training.seq, changed.chunks)
        needed = fullest(Costs(costs.model, costs.accelerator, mesh, training), changed)
    except FieldError:
        return None
    whole: dict[str, Any] = {
        axis: value
        for axis in ("tp", "cp", "ep", "fsdp", "dp", "pp")
        if (value := getattr(mesh, axis)) not in (None, 1)
    } or {"fsdp": 1}
    if mesh.ep is not None:
        whole["ep"] = mesh.ep
    whole |= {name: value for name, value in keys.items() if name in ("recompute", "micro_batch", "zero")}
    return Change(dict(keys), dict(keys) if is_new else whole, mesh.ranks, needed, fit(needed, mesh.pp))


def _experts(model: Architecture, spread: int, most: int | None = None) -> int | None:
    """Return the largest valid expert-parallel size up to `most`; None if the model has no experts."""
    counts = {module.experts for module in model.modules()} - {1}
    if not counts:
        return None
    able = [ep for ep in range(1, min(*counts, spread) + 1) if spread % ep == 0 and all(not n % ep for n in counts)]
    return max(ep for ep in able if most is None or ep <= most)


def _powers(most: int) -> list[int]:
    return [2**exponent for exponent in range(most.bit_length())]
