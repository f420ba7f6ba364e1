"""The result of `gradtide plan`: the plan, the best one of each level, all scored choices, and sentences on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gradtide import _core, report, words
from gradtide.answer import Candidate
from gradtide.answer.build import build
from gradtide.answer.memory import feasibility
from gradtide.errors import ScenarioError
from gradtide.measured import saving_errors, time_errors
from gradtide.results import Table
from gradtide.runtime import LEVELS
from gradtide.scenario.plan import Plan, read_plan
from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable, write_text, write_versions
from gradtide.studies.plan import confirm
from gradtide.studies.plan.found import Found, Gain, keeps_layers, mean_ms, plan_of
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import head, total_cost
from gradtide.studies.run_folder import write_runs, write_summary
from gradtide.studies.search import MIB, Choice

WORTH_IT, LEAVE = "worth it", "leave alone"
"""Verdicts on a plan, by whether the low end of its gain's interval reaches the required gain (`worth`)."""


class Planned(StudyRows):
    """Result of a search for a plan, which is saved as a file with only the plan, or as a folder with its report."""

    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        """Return the content of plan.json."""
        return self.plan.to_dict()

    def save(self, path: str | Path) -> Path:
        """Write only the plan if `path` ends with .json, otherwise a folder with the plan and its report.

        Raises:
            FolderError: if `path` contains foreign files, or cannot be written; no files are left behind in this case.
        """
        return save_plan(self.plan, Path(path)) if Path(path).suffix == ".json" else super().save(path)


class PlanResult(Planned):
    """A plan, with the alternatives among which it was chosen.

    Attributes:
        plan: the chosen plan, as in plan.json; the baseline if no other plan pays.
        plans: the best plan of each level, by level.
        scenario: the user's scenario with the chosen plan.
        baseline: run of the baseline to which gains are relative.
        run: run of the chosen plan; `None` if the search was interrupted before this run.
        rows: one dict for each baseline and for the best plan of each level, with the columns of `levels.csv`.
        candidates: one dict per scored choice, with the columns of `scored.csv`.
    """

    def __init__(self, found: Found) -> None:
        base_plan, self.baseline = found.baselines[found.baseline][0], found.baseline_run
        best = {level: one for level in LEVELS if (one := found.best(level)) is not None}
        names = sorted(found.baselines, key=lambda name: name != found.baseline)
        self.rows = [_baseline_row(found, name) for name in names]
        self.rows += [_row(found, choice) for choice in best.values()]
        chosen = _chosen(self.rows, 100 * found.settings.worth)
        if found.settings.schedule is not None and best:
            chosen = max(best, key=lambda level: found.gain(best[level]).mean)
        row = next(row for row in self.rows if row["name"] == (found.baseline if chosen == "none" else chosen))
        row["chosen"] = True
        choice = best.get(chosen)
        self.run = self.baseline if choice is None else found.run_of(choice)
        self.candidates = _candidates(found)
        shown = base_plan if choice is None else plan_of(found, choice)
        advice = tuple(_advice(found, chosen, best, self.rows))
        self.plan = replace(_completed(found, shown, row), level=chosen, advice=advice)
        by_name = {row["name"]: row for row in self.rows}
        self.plans = {level: _completed(found, plan_of(found, one), by_name[level]) for level, one in best.items()}
        self.scenario = self.plan.on(found.requested)
        job, settings = found.layers.job, found.settings
        engines = found.base.engine, found.requested.engine, found.why_not
        self.summary: dict[str, Any] = {
            **head("planning", self.baseline.summary["engine"]),
            "seed": found.base.seed,
            "scenario_sha256": found.requested.sha256,
            **confirm.engines(*engines),
            "job": job.name,
            "model": job.model,
            "workers": job.workers,
            **build(
                "plan",
                _headline(found, self.plan, self.rows),
                found.requested,
                _answers(found, self.rows),
                more=confirm.premises(*engines),
            ).to_dict(),
            "lower_bound_ms": found.bound_ms,
            "settings": {
                "device": settings.runtime.device,
                "device_is_known": settings.runtime_is_known,
                "level": settings.level,
                "overhead_us": settings.overhead_ps / 1e6,
                "worth_percent": 100 * settings.worth,
                "smallest_bytes": settings.smallest_bytes,
                "seeds": settings.seeds,
                "noise": settings.noise,
                "noise_is_assumed": settings.noise_is_assumed,
            },
            "searched": {
                "scored": len(self.candidates),
                "pruned": 0 if found.search is None else found.search.pruned,
                "run": len(found.runs) + len(found.baselines),
                "channels": [
                    {
                        "collective": words.collective(one.collective["kind"])
                        + ("" if one.depth == 1 else f", depth {one.depth}"),
                        "fixed_us": one.fixed_ps / 1e6,
                        "ns_per_byte": one.ps_per_byte / 1e3,
                        "whole_ms": one.whole_ps / 1e9,
                    }
                    for one in found.channels
                ],
            },
            "rows": self.rows,
            "plan": self.plan.to_dict(),
            "cost": total_cost([{"cost": cost} for cost in found.costs]),
        }

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        self.plan.save(folder / "plan.json")
        runs = {"baseline": self.baseline, **({} if self.run is None else {"plan": self.run})}
        write_runs(runs, folder)
        write_text(folder / "levels.csv", self.table.to_csv())
        if self.candidates:
            write_text(folder / "scored.csv", Table.of_dicts(self.candidates).to_csv())
        write_summary(self.summary, folder)
        write_versions(folder)
        if "plan" in runs:
            report.write_timeline(folder / "runs" / "plan").rename(folder / "timeline.pftrace")
            report.write_report(folder)


def save_plan(plan: Plan, path: Path) -> Path:
    """Write a plan to a file, which may replace a plan, but no other file."""
    check_target(path)
    try:
        return plan.save(path)
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror or error}; no files remain") from error


def check_target(path: Path | None) -> None:
    """Raise a FolderError if a plan cannot be saved to `path`; called before the search, so that no work is lost."""
    if path is None:
        return
    refuse_unwritable(path)
    if path.suffix != ".json":
        refuse_foreign(path)
    elif path.exists():
        try:
            read_plan(path)
        except ScenarioError:
            raise FolderError(f"{path} exists and is not a plan; name a file that does not exist yet") from None


def _baseline_row(found: Found, name: str) -> dict[str, Any]:
    plan, result = found.baselines[name][0], found.checked.get(name, found.baselines[name][1])
    rows = result.transfers.to_dicts()
    once = [row for row in rows if row["iteration"] == rows[0]["iteration"]]
    gain = Gain(0.0) if name == found.baseline else Gain.predicted(1 - mean_ms(result) / found.baseline_ms)
    messages = _Messages([row["bytes"] for row in once], sum(row["chunks"] for row in once), overhead_ps=0)
    return _line(found, plan, name, messages, mean_ms(result), gain, engine=str(result.summary["engine"]))


def _row(found: Found, choice: Choice) -> dict[str, Any]:
    assert found.search is not None
    space, run = found.search.space, found.run_of(choice)
    messages = _Messages(space.layers.sizes_of(choice.cuts), space.messages(choice), space.extra_ps(choice))
    engine = "search" if run is None else str(run.summary["engine"])
    name, time_ms = choice.mode.level, found.time_ms(choice)
    return _line(found, plan_of(found, choice), name, messages, time_ms, found.gain(choice), engine=engine)


class _Messages(NamedTuple):
    """The messages of an iteration: bytes of each bucket, number of messages, and scheduler overhead per message."""

    sizes: Sequence[int]
    total: int
    overhead_ps: int


def _line(
    found: Found, plan: Plan, name: str, messages: _Messages, time_ms: float, gain: Gain, *, engine: str
) -> dict[str, Any]:
    shares = {"saves": gain.mean, "saves_low": gain.low, "saves_high": gain.high}
    shares |= dict(zip(("jitter_low", "jitter_high"), gain.jitter or (None, None), strict=True))
    return {
        "name": name,
        "level": plan.level,
        "order": plan.order,
        "barrier": plan.barrier,
        "collective": str(dict(plan.collective)["kind"]),
        "depth": plan.depth,
        "buckets": len(messages.sizes),
        "largest_bytes": max(messages.sizes),
        "chunk_bytes": plan.chunk_bytes or 0,
        "messages": messages.total,
        "overhead_us": messages.overhead_ps / 1e6,
        "iteration_ms": time_ms,
        **{f"{key}_percent": None if share is None else 100 * share for key, share in shares.items()},
        "above_bound_percent": None if found.bound_ms is None else 100 * (time_ms / found.bound_ms - 1),
        "engine": engine,
        "chosen": False,
    }


def _chosen(rows: Sequence[Mapping[str, Any]], worth: float) -> str:
    """Return the lowest level that pays and that no other level clearly beats; `none` if no level pays.

    A level pays if the low ends of its prediction interval and of its interval over runs with noise both reach `worth`
    percent. Another level clearly beats it if its gain exceeds the high end of this prediction interval by more than
    `worth` percent.
    """
    paying = [row for row in rows if _pays(row, worth)]
    if not paying:
        return "none"
    left = {str(row["level"]): 1 - row["saves_percent"] / 100 for row in paying}
    least = min(left.values()) + worth / 100
    return next(level for level, one in left.items() if saving_errors().interval(one)[0] <= least)


def _pays(row: Mapping[str, Any], worth: float) -> bool:
    lows = row["saves_low_percent"], row["jitter_low_percent"]
    saves = row["level"] != "none" and row["saves_percent"] > 0
    return saves and all(low is None or low >= worth for low in lows)


def _completed(found: Found, plan: Plan, row: Mapping[str, Any]) -> Plan:
    """Return the plan with fields that describe its scenario and runtime, and with the predicted figures in `row`."""
    job, runtime = found.layers.job, found.settings.runtime
    return replace(
        plan,
        model=job.model,
        workers=job.workers,
        scenario_sha256=found.requested.sha256,
        version=_core.__version__,
        runtime={"device": runtime.device, "backend": runtime.backend, "cannot_set": list(runtime.cannot)},
        predicted=_predicted(found, row),
    )


def _predicted(found: Found, row: Mapping[str, Any]) -> dict[str, Any]:
    def interval(name: str) -> list[float] | None:
        low, high = row[f"{name}_low_percent"], row[f"{name}_high_percent"]
        return None if low is None else [low, high]

    return {
        "engine": row["engine"],
        "baseline": found.baseline,
        "baseline_iteration_time_ms": found.baseline_ms,
        "iteration_time_ms": row["iteration_ms"],
        "gain_percent": row["saves_percent"],
        "gain_interval_percent": interval("saves"),
        "verdict": WORTH_IT if _pays(row, 100 * found.settings.worth) else LEAVE,
        "measured_errors": {"savings": saving_errors().to_dict(), "iteration_times": time_errors().to_dict()},
        "jitter_interval_percent": interval("jitter"),
        "lower_bound_ms": found.bound_ms,
        "overhead_us": row["overhead_us"],
        "noise": found.settings.noise,
        "noise_is_assumed": found.settings.noise_is_assumed,
        "seeds": len(found.noisy_s.get(None, ())),
    }


def _candidates(found: Found) -> list[dict[str, Any]]:
    if found.search is None:
        return []
    space, rows = found.search.space, []
    for choice in sorted(found.search.scores, key=found.search.key):
        channel, run = found.channels[choice.channel], found.runs.get(choice)
        rows.append(
            {
                "level": choice.mode.level,
                "order": choice.mode.order,
                "barrier": choice.mode.barrier,
                "collective": str(channel.collective["kind"]),
                "depth": channel.depth,
                "buckets": len(choice.cuts) + 1,
                "largest_bytes": max(space.layers.sizes_of(choice.cuts)),
                "chunk_bytes": choice.chunk_bytes or 0,
                "messages": space.messages(choice),
                "bound_us": space.bound_ps(choice) / 1e6,
                "scored_us": found.search.scores[choice] / 1e6,
                "iteration_us": None if run is None else 1e3 * mean_ms(run),
            }
        )
    return rows


def _answers(found: Found, rows: Sequence[dict[str, Any]]) -> list[Candidate]:
    job, runtime = found.layers.job, found.settings.runtime
    own = [
        Candidate(
            row["name"],
            row["iteration_ms"],
            feasibility(found.baselines[found.baseline][1].summary["jobs"][job.name]),
            runtime.name if row["level"] in runtime.levels else None,
        )
        for row in rows
    ]
    bound = [] if found.bound_ms is None else [Candidate("lower bound", found.bound_ms, is_bound=True)]
    return own + bound


# Sentences


def caps(plan: Plan) -> str:
    """Return the value of `bucket_cap_mb_list` with which DistributedDataParallel uses a plan's buckets.

    DDP closes a bucket with the gradient that reaches its cap, so caps are the buckets' sizes in MiB, rounded down.
    """
    rounded = [math.floor(1e4 * one.bytes / MIB) / 1e4 for one in plan.buckets]
    return f"[{', '.join(f'{cap:g}' for cap in rounded)}]"


def _baseline(found: Found) -> str:
    """Return what gains are relative to, in words."""
    if found.baseline == "ddp":
        return "DDP"
    stated = found.base.is_stated(f"job.{found.base.jobs[0].name}.schedule.fusion")
    is_recorded = keeps_layers(found.base) and not stated
    return "the recorded buckets" if is_recorded else "the scenario's schedule"


def _headline(found: Found, plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    runtime = found.settings.runtime
    baseline = _baseline(found)
    before = words.milliseconds(found.baseline_ms)
    who = f"{plan.model} on {words.workers(plan.workers or 0)}, {runtime.name}"
    if plan.level == "none":
        most = _most(rows)
        gain = "saves nothing" if most is None else f"saves {_gain_of(most)}"
        return f"{who}: leave {baseline} alone. An iteration takes {before}, and the best plan found {gain}."
    row = next(row for row in rows if row["chosen"])
    after = words.milliseconds(row["iteration_ms"])
    what = words.schedule(plan.order, plan.barrier)
    by = words.collective(dict(plan.collective)["kind"])
    sentence = (
        f"{who}: {what} in {words.buckets(len(plan.buckets))}, exchanged by {by}, is predicted to save {_gain_of(row)} "
        f"over {baseline}: {after} instead of {before}"
    )
    bound = row["above_bound_percent"]
    return f"{sentence}." if bound is None else f"{sentence}, {bound:.1f} % above the lower bound."


def _advice(found: Found, chosen: str, best: Mapping[str, Choice], rows: Sequence[dict[str, Any]]) -> list[str]:
    settings, runtime = found.settings, found.settings.runtime
    worth = 100 * settings.worth
    row = next(row for row in rows if row["chosen"])
    said = []
    if chosen == "none":
        most = _most(rows)
        why = "no plan saves anything" if most is None else f"the best plan found saves {_gain_of(most)}"
        if most is not None and most["saves_percent"] >= worth:
            low = most["saves_low_percent"]
            reach = f"a loss of {-low:.1f} %" if low < 0 else f"{low:.1f} %"
            why += f", and measured savings differed so much from predictions that it may be {reach}"
        said.append(f"Leave {_baseline(found)} alone: {why}.")
    elif not _pays(row, worth):
        saves = row["saves_percent"]
        gain = f"{'saves' if saves > 0 else 'loses'} {abs(saves):.1f} %"
        said.append(f"Leave it alone: {settings.schedule}, which you named, {gain}.")
    else:
        said.append(f"Worth it: even the low end of the interval saves {row['saves_low_percent']:.1f} %.")
    if chosen in ("priority", "crossiter") and not runtime.any_collective:
        what = "sends in the plan's order" + (
            "" if chosen == "priority" else " and lets each layer begin when its own gradients are there"
        )
        said.append(f'gradtide.torch.wrap(model, optimizer, "plan.json") {what}: level {chosen}.')
    if chosen != "none" and "buckets" in best:
        said += _ddp_alone(found, chosen, best["buckets"], rows)
    if chosen != "none":
        said += _exchange(found, best[chosen])
        if row["overhead_us"]:
            cost = words.number(row["overhead_us"] / 1e3)
            said.append(f"The scheduler adds {cost} ms to each message (--overhead).")
    said += _limits(found)
    said += confirm.sentence(found.base.engine, found.requested.engine, found.why_not)
    if row["saves_low_percent"] is not None:
        said.append(_basis())
    if found.noisy_s and row["jitter_low_percent"] is not None:
        assumed = " (assumed; compute.noise sets it)" if settings.noise_is_assumed else ""
        low, high = row["jitter_low_percent"], row["jitter_high_percent"]
        said.append(
            f"With compute times that vary by {100 * settings.noise:g} %{assumed}, the predicted saving lies between "
            f"{low:.1f} and {high:.1f} %. Iteration times are without this variation."
        )
    return said


def _ddp_alone(found: Found, chosen: str, choice: Choice, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return how to set the plan's buckets in DDP, or what DDP alone saves with the best buckets at that level."""
    plan = plan_of(found, choice)
    row = next(row for row in rows if row["name"] == "buckets")
    if chosen == "buckets":
        return [f"DDP: bucket_cap_mb_list={caps(plan)}, from PyTorch 2.13 on. gradtide.torch.wrap sets it, too."]
    if row["saves_percent"] < 100 * found.settings.worth:
        return []
    is_own = plan.collective == found.channels[0].collective
    beside = "alone" if is_own else f"and {words.collective(plan.collective['kind'])}"
    return [f"Without gradtide.torch, DDP with bucket_cap_mb_list={caps(plan)} {beside} saves {_gain_of(row)}."]


def _exchange(found: Found, choice: Choice) -> list[str]:
    """Return sentences on the plan's collective and pipelining depth, if they differ from the scenario's."""
    channel, own = found.channels[choice.channel], found.channels[0]
    said = []
    if channel.collective != own.collective:
        kind = channel.collective["kind"]
        how = found.settings.runtime.collectives.get(kind, "which no library of this device offers")
        said.append(f"The plan exchanges by {words.collective(kind)}: {how}.")
    if channel.depth != own.depth:
        said.append(f"The plan cuts each message into {channel.depth} parts, which are exchanged side by side.")
    return said


def _limits(found: Found) -> list[str]:
    settings, runtime = found.settings, found.settings.runtime
    if runtime.any_collective:
        return [
            "No runtime is known to have all features of this plan: --device ideal allows all that gradtide models."
        ]
    said = []
    own = found.channels[0].collective["kind"] if found.channels else None
    if own is not None and not runtime.allows(own):
        known = " and ".join(runtime.collectives)
        said.append(f"The scenario exchanges by {words.collective(own)}, but {runtime.name} offers only {known}.")
    if not settings.runtime_is_known:
        said.append(
            "The scenario names no device, so the plan uses only the features that every device has. --device cpu or "
            "--device gpu allows all features of that device."
        )
    else:
        said.append(f"The plan does not use what gradtide cannot set on {runtime.name}: {', '.join(runtime.cannot)}.")
    return said


def _basis() -> str:
    savings, times = saving_errors(), time_errors()
    ratios, errors = (" to ".join(f"{100 + end:.0f}" for end in one.range_percent) for one in (savings, times))
    return (
        f"The interval comes from {len(savings.logs)} measured savings in {savings.setups} setups, all of profiled "
        "models on calibrated networks with gloo on CPUs. Measured over predicted, the ratio of plan to baseline was "
        f"{ratios} %, and {len(times.logs)} iteration times were {errors} %. Errors of either sign are assumed "
        "possible."
    )


def _most(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the plan with the largest gain; `None` if no plan has a positive gain."""
    saving = [row for row in rows if row["level"] != "none" and row["saves_percent"] > 0]
    return max(saving, key=lambda row: row["saves_percent"], default=None)


def _gain_of(row: Mapping[str, Any]) -> str:
    low, high = row["saves_low_percent"], row["saves_high_percent"]
    mean = f"{row['saves_percent']:.1f} %"
    return mean if low is None else f"{mean} ({low:.0f} to {high:.0f} %)"
