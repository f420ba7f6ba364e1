"""`gradtide plan`: the best way to send a job's gradients, and whether the time that it saves is worth the change.

`found` searches and executes the runs; `result` derives the plan, tables and sentences from them. For FSDP, `sharding`
and `sharding_result` do so. `gradtide.runtime` lists what runtimes support, `gradtide.measured` errors of predictions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gradtide import presets, units
from gradtide.answer import runtimes
from gradtide.errors import Interrupted, Unfinished
from gradtide.estimate import Limits, foresee, within_limits
from gradtide.results import numbers
from gradtide.runtime import LEVELS, RUNTIMES, Runtime
from gradtide.scenario import Scenario
from gradtide.scenario.device import is_known
from gradtide.scenario.plan import Plan
from gradtide.studies.arguments import with_lists
from gradtide.studies.channels import own_collective
from gradtide.studies.exchange import check_one_job, parse_size
from gradtide.studies.keep import Kept
from gradtide.studies.plan.confirm import on_fluid
from gradtide.studies.plan.found import Found, Settings, check, ddp, fill, keeps_layers, modes_of, most_work
from gradtide.studies.plan.result import PlanResult, caps, check_target
from gradtide.studies.plan.sharding import plan_sharding
from gradtide.studies.plan.sharding_result import ShardingResult
from gradtide.studies.result import RunResult
from gradtide.studies.run import part_of, run_all
from gradtide.studies.search import MODES, Layers
from gradtide.studies.trained import trained

OVERHEAD = "1ms"
"""Default time per message of a scheduler in Python. Measured: 0.8 to 1.1 ms, with gloo on two loaded cores."""

SMALLEST = "1MiB"
"""Default smallest message. Fixed costs dominate smaller messages, and only those of the network are modelled."""

WORTH_PERCENT = 1.0
NOISE = 0.03
"""Default coefficient of variation of a worker's compute time, for scenarios without `compute.noise`."""

SEEDS = 8
BUDGET = 500
"""Default number of simulations of the local search in each mode, i.e. combination of level, order and barrier."""

SEARCHED = "the runs of a search depend on earlier results, and most have larger messages"


@with_lists
@within_limits
def plan(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: "Scenario | str | Path | Mapping[str, Any] | None" = None,
    workers: int | None = None,
    device: str | None = None,
    level: str | None = None,
    schedule: str | None = None,
    collectives: Sequence[str] | None = None,
    overhead: str | None = None,
    worth: float = WORTH_PERCENT,
    smallest: int | str | None = None,
    baseline: str | None = None,
    noise: float | None = None,
    seeds: int | None = None,
    budget: int | None = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> PlanResult | ShardingResult:
    """Search the best way to send a job's gradients: order, buckets, collective, barrier and chunk size.

    For a job with a mesh (`parallel`), search the best sharding by FSDP instead: units, prefetch, and whether
    parameters are kept after the forward pass. Of the arguments for the search, only `worth` then has an effect.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model (a
            preset's name, a profile, a list of layers), which trains on `cluster` or the defaults. The scenario must
            have one job and no background traffic. A scenario with the packet engine is searched with the fluid
            engine; then the baselines and the best plan of each level are run with the packet engine, and the result
            has the figures of these runs.
        cluster: a scenario in which the model replaces the job's, a scenario with a cluster only, or the name of a
            cluster, as in `ethernet-25g/16`.
        workers: number of workers. Default: the scenario's.
        device: cpu, gpu, or a preset such as H100-bf16, which then also determines compute times. The plan uses only
            features that gradtide.torch and the communication library support on the device. With `ideal`, it uses all
            features that gradtide models. Default: the scenario's device; without one, features that all devices
            support.
        level: highest level of the plan: buckets (other buckets in DDP), priority (another order), or crossiter (no
            barrier). Default: the highest level that the runtime supports on the device.
        schedule: order of the plan (fifo, priority or caramel), even if another order would save more. Default: the
            search chooses the order.
        collectives: collectives to search, as `KIND[+KEY=VALUE]`. Default: the scenario's collective, and those of the
            device's communication library.
        overhead: time per message at levels priority and crossiter, in addition to the scenario's. Default: 1 ms.
        worth: smallest useful saving of a plan over the baseline, or of a level over a lower level, in percent of the
            iteration time.
        smallest: smallest size of a message, in bytes or with a unit; 0 for no limit. Default: 1 MiB.
        baseline: schedule to which savings are relative: "ddp" (default buckets of PyTorch's DistributedDataParallel),
            or "scenario". Default: scenario if its schedule is not the default, otherwise ddp.
        noise: coefficient of variation of a worker's compute time, if `compute.noise` is not set; 0 for no noise.
            Default: 0.03.
        seeds: number of runs with noise of each compared plan; runs are paired by seed. Default: 8.
        budget: number of runs of the local search in each mode; equal budgets give equal plans. Default: 500.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the plan is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `parallel={"fsdp": 64}, seq=8192`.

    Raises:
        Interrupted: on Ctrl-C, with the best plan so far.
        ScenarioError: if the scenario is invalid, or the estimate exceeds the limits.
        ValueError: if an argument is invalid, or not supported on the device.

    Example:
        >>> layers = [{"name": f"fc{i}", "forward": "8ms", "backward": "16ms", "parameters": "4MiB"} for i in range(10)]
        >>> job = {"model": {"layers": layers}, "workers": 2}
        >>> plan({"job": {"train": job}, "cluster": {"link": {"rate": "1Gbps"}}}, device="cpu").plan.level
        'crossiter'
    """
    base = trained(scenario, cluster, workers, **{**keys, "device": computing(device)})
    how: dict[str, Any] = {"jobs": jobs, "keep": keep, "limits": limits}
    options = Options(level, schedule, overhead, smallest, noise, seeds)
    if len(base.jobs) == 1 and base.jobs[0].parallel_model is not None:
        of_ddp = {"device": None if computing(device) else device, **options._asdict()}
        _refuse_ddp({**of_ddp, "collectives": collectives, "baseline": baseline, "budget": budget})
        if base.jobs[0].is_uneven:
            raise ValueError(
                f"plan of FSDP takes ranks that are alike; leave compute.noise and compute.straggler out of "
                f"[job.{base.jobs[0].name}]"
            )
        return plan_sharding(base, worth=_share(worth), progress=progress, **how)
    check_one_job(base, "plan", trains=True)
    known = runtime_of(base, scenario, device)
    if known is not None:
        _refuse_collective(base, known)
    settings = _settings(base, known, options, worth)
    if base.jobs[0].workers < 2:
        raise ValueError("a single worker exchanges nothing, so there is nothing to plan")
    requested = base
    if requested.engine == "packet":
        base = on_fluid(requested)
    if base.jobs[0].is_pulled:
        raise ValueError("plan takes a job that exchanges gradients in buckets, not op by op with parameter servers")
    if base.jobs[0].graph is not None:
        raise ValueError("plan takes a model of layers, not a graph of ops")
    if baseline not in (None, "ddp", "scenario"):
        raise ValueError(f"there is no baseline {baseline!r}; there are ddp and scenario")

    part = partial(part_of, progress)
    layers = Layers(base.jobs[0])
    plans = _baselines(base, layers, is_named=baseline == "scenario")
    chosen = baseline or next(reversed(plans))
    budget = BUDGET if budget is None else budget
    foresee(lambda: most_work(base, requested, list(plans.values()), settings, collectives, budget), SEARCHED)
    results = run_all([one.on(base) for one in plans.values()], progress=part(0, 0.05), **how)
    runs = {name: (one, result) for (name, one), result in zip(plans.items(), results, strict=True)}
    costs = [result.summary["cost"] for result in results]
    found = Found(base, requested, settings, layers, chosen, runs, costs=costs)
    try:
        fill(found, collectives, budget, part, how)
        check(found, {**how, "progress": part(0.95, 1)})
    except (KeyboardInterrupt, Unfinished) as error:
        finished: list[RunResult | None] = [*results, *found.runs.values()]
        stop = error if isinstance(error, Unfinished) else Interrupted([])
        stop.results = stop.results or [*finished, None]
        if found.search is not None:
            stop.attach(PlanResult(found))
        raise stop from None
    return PlanResult(found)


def _baselines(base: Scenario, layers: Layers, *, is_named: bool) -> dict[str, Plan]:
    """Return the baselines by name: `ddp`; and `scenario`, unless its schedule is the default of unrecorded layers.

    A layer of a trace is a recorded bucket, so the scenario's schedule is what the user has, and DDP's default buckets
    would be other buckets.
    """
    plans = {"ddp": ddp(base, layers)}
    own = base.jobs[0].schedule
    if is_named or keeps_layers(base) or base.set({f"job.{base.jobs[0].name}.schedule": {}}) != base:
        # A plan without buckets keeps the scenario's schedule.
        plans["scenario"] = Plan("none", (), own.order, own.barrier, own.chunk_bytes, collective=own_collective(base))
    return plans


def computing(device: str | None) -> str | None:
    """Return `device` if it is a device preset, which determines compute times; otherwise (as for "gpu") `None`."""
    return device if device is not None and is_known(device) else None


def runtime_of(base: Scenario, scenario: Any, device: str | None) -> Runtime | None:
    """Return the runtime for `device`; by default for the scenario's device, or `None` if it has no device."""
    named = {name: one for name, one in RUNTIMES.items() if name != "unknown"}
    if device in named:
        return named[device]
    own = base.jobs[0].device.name or getattr(scenario, "device", None)
    found = runtimes.runtime_of(device or own)  # `None` is possible, because the device of a profile can be any text.
    if found is None and device is not None:
        raise ValueError(f"device: there is no {device!r}; there are {', '.join([*named, *presets.device_names()])}")
    return found


def parse_percent(name: str, text: str) -> float:
    """Parse a percentage such as `1%`; `name` is the argument's name in an error."""
    number, sign, rest = text.strip().partition("%")
    try:
        if not sign or rest:
            raise ValueError
        return float(number)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a percentage; write it with its sign, as in 1%") from None


def figures(result: PlanResult | ShardingResult) -> dict[str, float | None]:
    """Return the figures of the chosen plan that `--fail-if` can test: `saves_percent`, `iteration_ms` and others."""
    return numbers(next(row for row in result.rows if row["chosen"]))


class Options(NamedTuple):
    """Arguments of `plan` from which `Settings` are derived; `None` if an argument was not given."""

    level: str | None
    schedule: str | None
    overhead: str | None
    smallest: int | str | None
    noise: float | None
    seeds: int | None


def _settings(base: Scenario, known: Runtime | None, options: Options, worth: float) -> Settings:
    level, schedule, overhead, smallest, noise, seeds = options
    runtime = RUNTIMES["unknown"] if known is None else known
    level = runtime.levels[-1] if level is None else level
    if level not in LEVELS[1:]:
        raise ValueError(f"level: there is no {level!r}; there are {', '.join(LEVELS[1:])}")
    if level not in runtime.levels:
        others = [one.device for one in RUNTIMES.values() if level in one.levels and one.backend is not None]
        where = f"--device {' or --device '.join(others)} can"
        why = f"{runtime.name} cannot" if known else "the scenario names no device, and not every device can"
        raise ValueError(f"level: {why} carry out {level}; {where}; write level {' or '.join(runtime.levels[1:])}")
    orders = list(dict.fromkeys(mode.order for mode in MODES))
    if schedule not in (None, *orders):
        raise ValueError(f"schedule: there is no {schedule!r}; there are {', '.join(orders)}")
    if not modes_of(level, schedule):
        least = next(mode.level for mode in MODES if mode.order == schedule)
        there = f"the level is at most {level} on {runtime.name}"
        raise ValueError(f"schedule: {schedule} needs level {least}, and {there}; name another device or schedule")
    own = base.jobs[0].compute.noise_ppm / 1e6
    if overhead is not None and level == "buckets":
        raise ValueError("overhead: has no effect at level buckets, which needs no scheduler; leave it out")
    if noise is not None and own:
        raise ValueError(f"noise: the scenario has compute.noise = {own:g}; leave noise out, or change the scenario")
    if seeds is not None and noise == 0 and not base.drawn:
        raise ValueError("seeds: has no effect with noise = 0, since all runs would be equal; leave it out")
    noise, seeds = NOISE if noise is None else noise, SEEDS if seeds is None else seeds
    overhead_ps = units.parse_option("overhead", units.parse_time, OVERHEAD if overhead is None else overhead)
    share = _share(worth)
    if seeds < 1:
        raise ValueError(f"seeds: {seeds} is below 1; write 8, or noise = 0 for no runs with noise")
    if not 0 <= noise <= 0.5:
        raise ValueError(f"noise: {noise} is not a coefficient of variation; write 0.03 for 3 %")
    smallest_bytes = parse_size(SMALLEST if smallest is None else smallest, "smallest")
    return Settings(
        runtime,
        known is not None,
        level,
        overhead_ps,
        share,
        smallest_bytes,
        seeds,
        own or noise,
        own == 0,
        schedule,
    )


def _share(worth: float) -> float:
    if not 0 <= worth < 100:
        raise ValueError(f"worth: {worth} is not a percentage from 0 to below 100 %; write one, as in 1%")
    return worth / 100


def _refuse_ddp(given: Mapping[str, Any]) -> None:
    """Raise a ValueError if an argument is given that has no effect on a search for FSDP."""
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        raise ValueError(f"{name}: has no effect for a model that is divided over ranks; leave it out")


def _refuse_collective(base: Scenario, runtime: Runtime) -> None:
    """Raise a ValueError if the runtime cannot execute the scenario's collective: predictions would not apply."""
    home, kind, depth = f"job.{base.jobs[0].name}", own_collective(base)["kind"], base.jobs[0].schedule.parts
    if not runtime.allows(kind):
        known = " or ".join(f'"{name}"' for name in runtime.collectives)
        raise ValueError(
            f"device: the scenario's {kind} cannot be selected on {runtime.name}; write {home}.collective.kind = "
            f"{known}, or plan with device ideal"
        )
    if depth > 1 and not (runtime.cuts or runtime.any_collective):
        raise ValueError(
            f"device: {runtime.name} cannot cut messages into {depth} parts; write {home}.schedule.depth = 1, or plan "
            "with device ideal"
        )


__all__ = ["PlanResult", "ShardingResult", "caps", "check_target", "figures", "parse_percent", "plan", "trained"]
