"""The result of `gradtide plan`: the plan, the best of each level, and every choice that was scored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradtide import _core, report
from gradtide.errors import ScenarioError
from gradtide.measured import Errors, saving_errors, time_errors
from gradtide.results import StudyRows, Table
from gradtide.runtime import LEVELS
from gradtide.scenario.plan import Plan, read_plan
from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable, write_versions
from gradtide.studies.plan.found import Found, Gain, mean_ms, plan_of
from gradtide.studies.plan.sentences import advice, channel_name, headline, verdict
from gradtide.studies.run import total_cost, write_runs, write_summary
from gradtide.studies.search import Choice


class PlanResult(StudyRows):
    """A plan, and what it was chosen from.

    Attributes:
        plan: what plan.json holds.
        scenario: the scenario with its gradients sent as planned.
        baseline: the run that it is compared with.
        run: the run of the plan; `None` if the search was interrupted before.
        rows: one dict for the baseline and for the best of each level.
        candidates: one dict per choice that was scored; the columns of `scored.csv`.
        summary: what `--json` prints.
    """

    def __init__(self, found: Found) -> None:
        base_plan, self.baseline = found.baselines[found.baseline]
        best = {level: one for level in LEVELS if (one := found.best(level)) is not None}
        names = sorted(found.baselines, key=lambda name: name != found.baseline)
        self.rows = [_baseline_row(found, name) for name in names]
        self.rows += [_row(found, choice) for choice in best.values()]
        chosen = _chosen(self.rows, 100 * found.settings.worth)
        row = next(row for row in self.rows if row["name"] == (found.baseline if chosen == "none" else chosen))
        row["chosen"] = True
        choice = best.get(chosen)
        self.run = self.baseline if choice is None else found.runs.get(choice)
        self.candidates = _candidates(found)
        shown = base_plan if choice is None else plan_of(found, choice)
        runtime = found.settings.runtime
        self.plan = replace(
            shown,
            level=chosen,
            model=found.layers.job.model,
            workers=found.layers.job.workers,
            scenario_sha256=found.base.sha256,
            version=_core.__version__,
            runtime={"device": runtime.device, "backend": runtime.backend, "cannot_set": list(runtime.cannot)},
            predicted=_predicted(found, row),
            advice=tuple(advice(found, chosen, best, self.rows)),
        )
        self.scenario = self.plan.on(found.base)
        self.summary = self._summary(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plan.json holds it."""
        return self.plan.to_dict()

    def save(self, path: str | Path) -> Path:
        """Write the plan alone if `path` ends with .json, else a folder with the plan and its report.

        Raises:
            FolderError: if `path` holds what is not ours, or cannot be written; nothing is left behind then.
        """
        path = Path(path)
        if path.suffix != ".json":
            return super().save(path)
        check_target(path)
        try:
            return self.plan.save(path)
        except OSError as error:
            raise FolderError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`."""
        self.plan.save(folder / "plan.json")
        runs = {"baseline": self.baseline, **({} if self.run is None else {"plan": self.run})}
        write_runs(runs, folder)
        (folder / "levels.csv").write_text(self.table.to_csv(), encoding="utf-8")
        if self.candidates:
            (folder / "scored.csv").write_text(Table.of_dicts(self.candidates).to_csv(), encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        if "plan" in runs:
            report.write_timeline(folder / "runs" / "plan").rename(folder / "timeline.pftrace")
            report.write_report(folder)

    def _summary(self, found: Found) -> dict[str, Any]:
        job, settings = found.layers.job, found.settings
        return {
            "schema": "gradtide.planning/1",
            "version": _core.__version__,
            "complete": True,
            "engine": self.baseline.summary["engine"],
            "seed": found.base.seed,
            "scenario_sha256": found.base.sha256,
            "job": job.name,
            "model": job.model,
            "workers": job.workers,
            "headline": headline(found, self.plan, self.rows),
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
                        "collective": channel_name(one),
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

    def __repr__(self) -> str:
        return f"<gradtide.PlanResult {self.summary['headline']}>"


def check_target(path: Path | None) -> None:
    """Refuse a place where a plan or its folder must not go; asked before long work, not after it.

    Raises:
        FolderError: if `path` holds what is not ours, or nothing can be written there.
    """
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
    plan, result = found.baselines[name]
    rows = result.transfers.to_dicts()
    once = [row for row in rows if row["iteration"] == rows[0]["iteration"]]
    gain = Gain(0.0) if name == found.baseline else Gain.predicted(1 - mean_ms(result) / found.baseline_ms)
    return _line(
        found,
        plan,
        name=name,
        sizes=[row["bytes"] for row in once],
        messages=sum(row["chunks"] for row in once),
        overhead_ps=0,
        time_ms=mean_ms(result),
        engine=str(result.summary["engine"]),
        gain=gain,
    )


def _row(found: Found, choice: Choice) -> dict[str, Any]:
    assert found.search is not None
    space, run = found.search.space, found.runs.get(choice)
    return _line(
        found,
        plan_of(found, choice),
        name=choice.mode.level,
        sizes=space.layers.sizes_of(choice.cuts),
        messages=space.messages(choice),
        overhead_ps=space.extra_ps(choice),
        time_ms=found.time_ms(choice),
        engine="search" if run is None else str(run.summary["engine"]),
        gain=found.gain(choice),
    )


def _line(
    found: Found,
    plan: Plan,
    *,
    name: str,
    sizes: Sequence[int],
    messages: int,
    overhead_ps: int,
    time_ms: float,
    engine: str,
    gain: Gain,
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
        "buckets": len(sizes),
        "largest_bytes": max(sizes),
        "chunk_bytes": plan.chunk_bytes or 0,
        "messages": messages,
        "overhead_us": overhead_ps / 1e6,
        "iteration_ms": time_ms,
        **{f"{key}_percent": None if share is None else 100 * share for key, share in shares.items()},
        "above_bound_percent": None if found.bound_ms is None else 100 * (time_ms / found.bound_ms - 1),
        "engine": engine,
        "chosen": False,
    }


def _chosen(rows: Sequence[Mapping[str, Any]], worth: float) -> str:
    """Return the lowest level that saves about as much as any, of those that are predicted to save enough.

    Noise must not decide: with it, the low end of the mean over paired runs has to be enough.
    """
    enough = [
        row
        for row in rows
        if row["level"] != "none"
        and row["saves_percent"] > 0
        and (row["saves_percent"] if row["jitter_low_percent"] is None else row["jitter_low_percent"]) >= worth
    ]
    if not enough:
        return "none"
    most = max(row["saves_percent"] for row in enough)
    return str(next(row["level"] for row in enough if row["saves_percent"] >= most - worth))


def _predicted(found: Found, row: Mapping[str, Any]) -> dict[str, Any]:
    def interval(name: str) -> list[float] | None:
        low, high = row[f"{name}_low_percent"], row[f"{name}_high_percent"]
        return None if low is None else [low, high]

    def errors(of: Errors) -> dict[str, Any]:
        return {"count": len(of.logs), "setups": of.setups, "percent": list(of.range_percent)}

    return {
        "engine": row["engine"],
        "baseline": found.baseline,
        "baseline_iteration_time_ms": found.baseline_ms,
        "iteration_time_ms": row["iteration_ms"],
        "gain_percent": row["saves_percent"],
        "gain_interval_percent": interval("saves"),
        "verdict": verdict(row, 100 * found.settings.worth),
        "measured_errors": {"savings": errors(saving_errors()), "iteration_times": errors(time_errors())},
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
