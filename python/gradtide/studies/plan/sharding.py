"""`gradtide plan` for FSDP: searches wrapping units, prefetch depths, and reshard-after-forward (ZeRO-3 or ZeRO-2).

All settings can be applied with public methods of PyTorch's `fully_shard`. Settings that do not fit in the memory of a
rank are not run. All-gathers and reduce-scatters have PyTorch's order. To show what another order could gain, the best
setting is also run in TicTac's order, and a lower bound holds for every order (`gradtide.parallel.bound`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from gradtide.errors import Unfinished
from gradtide.estimate import foresee
from gradtide.scenario import Scenario
from gradtide.scenario.job import ParallelModel
from gradtide.studies.keep import Kept
from gradtide.studies.plan import confirm
from gradtide.studies.plan.fsdp import DEFAULT, Setting, Tried, best_of, settings
from gradtide.studies.plan.sharding_result import ShardingResult, listed
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_all

MOST_SHOWN = 6
"""Largest number of settings that `listed` yields, all of which are run again for a packet scenario."""
NOT_YET = "the study was interrupted"


def plan_sharding(
    requested: Scenario,
    *,
    worth: float,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Any = None,
) -> "ShardingResult":
    """Search the best way to shard a model with `fully_shard`; arguments as in `plan`, but `worth` is from 0 to 1.

    Raises:
        ValueError: if `fully_shard` cannot shard the job's model.
    """
    job = requested.jobs[0]
    parallel_model = job.parallel_model
    assert parallel_model is not None
    _refuse(parallel_model)
    base = confirm.on_fluid(requested) if requested.engine == "packet" else requested
    home = f"job.{job.name}.parallel"
    written = base.to_dict()["job"][job.name]["parallel"]

    def tried(setting: Setting) -> Tried:
        return Tried(setting, base.set({home: {**written, **setting.keys}}))

    layout = parallel_model.layout
    own = Setting(layout.zero, layout.unit, layout.prefetch, layout.backward_prefetch)
    every = [tried(setting) for setting in dict.fromkeys([DEFAULT, own, *settings(parallel_model)])]
    runs = [one for one in every if one.fits or one.setting == DEFAULT]
    why_not = ""
    # After the search, the best setting is run in another order. For a scenario with the packet engine, the settings in
    # the result's table are also run with this engine.
    later = [(base, 1), *([(requested, MOST_SHOWN)] if base is not requested else [])]
    foresee(lambda: [*((one.scenario, 1) for one in runs), *later], "the last runs depend on which setting is best")
    try:
        results: Sequence[RunResult | None] = run_all([one.scenario for one in runs], jobs, progress, keep, limits)
        _take(runs, results)
        in_order = best_of(every).scenario.set({f"job.{job.name}.schedule.order": "tic"})
        ordered = run_all([in_order], 1, None, keep, limits)[0]
        if base is not requested:
            how = {"jobs": jobs, "keep": keep, "limits": limits}
            best = best_of(every)
            shown = {one.setting: one for _, one in listed(every, own, best, every[0]) if one.result is not None}
            planned = {setting: requested.set({home: {**written, **setting.keys}}) for setting in shown}
            checked, why_not = confirm.confirmed(planned, how)
            for setting, result in checked.items():
                shown[setting].checked = result
    except Unfinished as stop:
        if len(stop.results) == len(runs):
            _take(runs, stop.results)
        if every[0].result is not None:
            stop.attach(ShardingResult(every, own, worth, None, requested.engine, NOT_YET))
        raise
    return ShardingResult(every, own, worth, ordered, requested.engine, why_not)


def _take(runs: Sequence[Tried], results: Sequence[RunResult | None]) -> None:
    for one, result in zip(runs, results, strict=False):
        one.result = result


def _refuse(parallel_model: ParallelModel) -> None:
    mesh, layout = parallel_model.costs.mesh.sizes, parallel_model.layout
    for axis, what in (("pp", "a pipeline"), ("ep", "experts that are spread over ranks")):
        if mesh[axis] > 1:
            raise ValueError(f"plan is not built yet for {what}, and `parallel` has {axis} = {mesh[axis]}; write 1")
    if mesh["cp"] * mesh["fsdp"] < 2:
        raise ValueError("plan needs a model that FSDP shards; write parallel = { fsdp = 8 }, or more ranks")
    if layout.zero not in (2, 3):
        raise ValueError(
            f"plan supports the ZeRO stages of fully_shard, and `parallel` has zero = {layout.zero}; write 3, or 2"
        )
