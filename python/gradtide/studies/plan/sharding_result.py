"""The result of `gradtide plan` for FSDP: the chosen setting, all tried settings, and sentences about them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradtide import _core, report, words
from gradtide.answer import Candidate, Feasibility
from gradtide.answer.build import build
from gradtide.measured import Errors, pairs, saving_errors, time_errors
from gradtide.results import Table
from gradtide.runtime import RUNTIMES
from gradtide.scenario.plan import FSDP, Plan
from gradtide.studies.folder import write_text, write_versions
from gradtide.studies.plan import confirm
from gradtide.studies.plan.fsdp import DEFAULT, Setting, Tried, best_of, bound, run_ms, sort_key
from gradtide.studies.plan.result import LEAVE, WORTH_IT, Planned
from gradtide.studies.result import RunResult
from gradtide.studies.run import head, total_cost
from gradtide.studies.run_folder import write_runs, write_summary

ORDER = "the order of all-gathers and reduce-scatters"
NOTHING = "nothing"


class ShardingResult(Planned):
    """A plan for sharding a model, with the settings among which it was chosen.

    Attributes:
        plan: the chosen setting, as in plan.json: the best setting if it saves enough, otherwise PyTorch's default.
        scenario: the scenario with the chosen setting.
        baseline: run of PyTorch's default.
        run: run of the chosen setting.
        rows: one dict for each setting that `listed` yields.
        candidates: one dict for every setting, with the columns of `settings.csv`.
        ordered: run of the best setting in TicTac's order, which PyTorch does not support; `None` if it was not run.

    Args:
        every: the tried settings, PyTorch's default first.
        own: the scenario's setting.
        worth: smallest useful saving, as a share of the iteration time.
        ordered: the attribute of this name.
        requested: the engine of the user's scenario. Default: the engine of the search.
        why_not: reason why no setting was run with the engine `requested`; empty if settings were run with it.
    """

    def __init__(
        self,
        every: Sequence[Tried],
        own: Setting,
        worth: float,
        ordered: RunResult | None = None,
        requested: str | None = None,
        why_not: str = "",
    ) -> None:
        default = every[0]
        assert default.result is not None
        self.baseline = default.checked or default.result
        self._engines = default.scenario.engine, requested or default.scenario.engine, why_not
        self.ordered = ordered
        self._worth = worth
        self._default = default
        ran = [one for one in every if one.result is not None]
        best = best_of(every)
        self.least = bound(ran)
        pays = _pays(_line("", best, default), worth)
        chosen = best if pays or not default.fits else default
        self.run = chosen.checked or chosen.result
        self.scenario = chosen.scenario if self.run is None else self.run.scenario
        self.rows = [{**_line(name, one, default), "chosen": False} for name, one in listed(every, own, best, default)]
        self.rows[0 if chosen is default else -1]["chosen"] = True
        self.candidates = [_line("", one, default) for one in every]
        self._best_row, self._best_ms = _line("", best, default), best.time_ms
        self.snippet = snippet(best)
        self.plan = self._planned(chosen)
        self.best = self._planned(best)
        job = chosen.scenario.jobs[0]
        self.summary: dict[str, Any] = {
            **head("sharding", str(self.baseline.summary["engine"])),
            "seed": chosen.scenario.seed,
            "scenario_sha256": default.scenario.sha256,
            **confirm.engines(*self._engines),
            "job": job.name,
            "model": job.model,
            "workers": job.workers,
            **build(
                "plan",
                self._headline(best),
                self.baseline.scenario,
                [
                    *(
                        Candidate(name, one.shown_ms if one.result else None, _fits(one), RUNTIMES["gpu"].name)
                        for name, one in listed(every, own, best, default)
                    ),
                    Candidate("lower bound", self.least.time, is_bound=True),
                ],
                more=confirm.premises(*self._engines),
            ).to_dict(),
            "lower_bound_ms": self.least.time,
            "lower_bound_why": self.least.why,
            "tictac_order_ms": None if ordered is None else run_ms(ordered),
            "searched": {"settings": len(every), "run": len(ran), "too_large": sum(not one.fits for one in every)},
            "rows": self.rows,
            "plan": self.plan.to_dict(),
            "torch": self.snippet,
            "cost": total_cost(
                run.summary
                for run in (*(run for one in ran for run in (one.result, one.checked)), ordered)
                if run is not None
            ),
        }

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        assert self.run is not None
        self.plan.save(folder / "plan.json")
        self.best.save(folder / "best.json")
        write_runs({"baseline": self.baseline, "plan": self.run}, folder)
        write_text(folder / "settings.csv", Table.of_dicts(self.candidates).to_csv())
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_timeline(folder / "runs" / "plan").rename(folder / "timeline.pftrace")
        report.write_report(folder)

    def _planned(self, one: Tried) -> Plan:
        row, job = _line("", one, self._default), one.scenario.jobs[0]
        low, high = row["saves_low_percent"], row["saves_high_percent"]
        runtime = RUNTIMES["gpu"]
        return Plan(
            FSDP,
            (),
            "fifo",
            True,
            model=job.model,
            workers=job.workers,
            scenario_sha256=self._default.scenario.sha256,
            version=_core.__version__,
            runtime={"device": runtime.device, "backend": runtime.backend, "cannot_set": [ORDER]},
            predicted={
                "engine": row["engine"],
                "baseline": "torch",
                "baseline_iteration_time_ms": run_ms(self.baseline),
                "iteration_time_ms": row["iteration_ms"],
                "gain_percent": row["saves_percent"],
                "gain_interval_percent": None if low is None else [low, high],
                "verdict": WORTH_IT if _pays(row, self._worth) else LEAVE,
                "measured_errors": {"savings": _savings().to_dict(), "iteration_times": _times().to_dict()},
                "lower_bound_ms": self.least.time,
                "memory_bytes": one.memory_bytes,
            },
            advice=tuple(self._advice(one)),
            fsdp=one.setting.planned(one.parallel_model),
        )

    def _headline(self, best: Tried) -> str:
        default, row, job = self._default, self._best_row, best.scenario.jobs[0]
        who = f"{job.model} on {words.ranks(job.workers)}"
        before, after = (words.milliseconds(one.shown_ms) for one in (default, best))
        if not best.fits:
            return f"{who}: no setting fits in memory. Torch's default needs {words.size(default.memory_bytes, 3)}."
        if not default.fits:
            return (
                f"{who}: torch's default does not fit in memory. With {_words(best.setting)}, it does: an iteration "
                f"is predicted to take {after}."
            )
        if _pays(row, self._worth):
            what = f"fully_shard with {_words(best.setting)}"
            return f"{who}: {what}, is predicted to save {_gain(row)}: {after} instead of {before}."
        most = f"the best setting found saves {_gain(row)}" if row["saves_percent"] > 0 else "no setting saves anything"
        return f"{who}: keep torch's default. An iteration takes {before}, and {most}."

    def _advice(self, one: Tried) -> Iterator[str]:
        row = self._best_row
        if _pays(row, self._worth):
            yield f"Worth it: even the low end of the interval saves {row['saves_low_percent']:.1f} %."
        elif self._default.fits:
            yield "Keep torch's default: the errors of predictions of FSDP exceed the saving of the best setting."
        if one.setting != DEFAULT:
            yield 'gradtide.torch.wrap(model, "plan.json", mesh=mesh) does it with public methods of fully_shard.'
        yield self._order()
        if one.parallel_model.described.units[0] == ("",):
            yield (
                "The head shares the parameters of the embedding, so both belong to the root unit, which fully_shard "
                "does not reshard. The prediction gathers the embedding once more."
            )
        yield from confirm.sentence(*self._engines)
        yield _basis()

    def _order(self) -> str:
        best_ms = self._best_ms  # from the engine of the search, as are the times of TicTac's order and the bound

        def saves(to_ms: float) -> str:
            share = 1 - to_ms / best_ms
            return NOTHING if share < 5e-4 else f"{words.milliseconds(best_ms - to_ms)} ({100 * share:.1f} %)"

        most = saves(self.least.time)
        text = "Torch sends all-gathers and reduce-scatters in the order in which they become ready. "
        tictac = "the order of TicTac, which sends first what is needed first,"
        if self.ordered is None:
            text += f"Another order would save at most {most}"
        elif most == NOTHING:
            text += f"Neither {tictac} nor any other order would save time"
        else:
            text += f"T{tictac[1:]} would save {saves(run_ms(self.ordered))}, and every other at most {most}"
        bound = words.milliseconds(self.least.time)
        return f"{text}, because no plan is faster than {bound}, the time of {self.least.why}."


def _fits(one: Tried) -> Feasibility:
    memory = one.parallel_model.described.memory
    return Feasibility(one.parallel_model.fit.verdict, memory.total, memory.device)


def listed(every: Sequence[Tried], own: Setting, best: Tried, default: Tried) -> Iterator[tuple[str, Tried]]:
    """Yield (name, setting) per row: torch's default, the scenario's, the best of each kind of change, best of all."""
    yield "torch's default", default
    if own != DEFAULT:
        yield "the scenario's", next(one for one in every if one.setting == own)
    kinds: list[tuple[str, Callable[[Setting], bool]]] = [
        ("deeper prefetch", lambda one: (one.zero, one.unit) == (3, 1)),
        ("larger units", lambda one: (one.zero, one.forward, one.backward) == (3, 1, 1)),
        ("parameters kept", lambda one: replace(one, zero=3) == DEFAULT),
    ]
    for name, is_of in kinds:
        some = [one for one in every if is_of(one.setting) and one.setting not in (DEFAULT, own)]
        ran = [one for one in some if one.result is not None]
        if some:
            yield name, min(ran, key=sort_key) if ran else min(some, key=lambda one: one.memory_bytes)
    yield "best of all", best


def _line(name: str, one: Tried, default: Tried) -> dict[str, Any]:
    setting, result, beside = one.setting, one.run_beside(default), default.run_beside(one)
    assert beside is not None
    time_ms, default_ms = 0.0 if result is None else run_ms(result), run_ms(beside)
    saves = None if result is None else 1 - time_ms / default_ms
    low = high = None
    if saves is not None and setting != DEFAULT:
        low, high = (1 - end for end in reversed(_savings().interval(1 - saves)))
    groups = {} if result is None else result.job["parallel"]["groups"]
    return {
        "name": name,
        "setting": _label(setting),
        "unit": setting.unit,
        "forward_prefetch": setting.forward,
        "backward_prefetch": setting.backward,
        "reshard_after_forward": setting.zero == 3,
        "iteration_ms": None if result is None else time_ms,
        "waits_ms": None if result is None else sum(group["exposed_ms"] for group in groups.values()),
        "saves_ms": None if result is None else default_ms - time_ms,
        **{
            f"{key}_percent": None if share is None else 100 * share
            for key, share in (("saves", saves), ("saves_low", low), ("saves_high", high))
        },
        "memory_bytes": one.memory_bytes,
        "device_bytes": one.parallel_model.described.memory.device,
        "fits": one.fits,
        "feasibility": one.parallel_model.fit.verdict,
        "engine": "" if result is None else str(result.summary["engine"]),
    }


def _pays(row: Mapping[str, Any], worth: float) -> bool:
    low = row["saves_low_percent"]
    return bool(row["fits"] and low is not None and low >= 100 * worth)


def _label(setting: Setting) -> str:
    return ",".join(f"{key}={value}" for key, value in setting.keys.items())


def _words(setting: Setting) -> str:
    blocks = "1 block" if setting.unit == 1 else f"{setting.unit} blocks"
    kept = "" if setting.zero == 3 else ", parameters kept for backward"
    return f"{blocks} a unit, {setting.forward} ahead forward and {setting.backward} backward{kept}"


def _gain(row: Mapping[str, Any]) -> str:
    return f"{row['saves_percent']:.1f} % ({round(row['saves_low_percent'])} to {round(row['saves_high_percent'])} %)"


def _savings() -> Errors:
    return saving_errors(pairs(sharded=True))


def _times() -> Errors:
    return time_errors(pairs(sharded=True))


def _basis() -> str:
    savings = _savings()
    low, high = (f"{100 + end:.0f}" for end in savings.range_percent)
    return (
        f"The interval comes from {len(savings.logs)} measured savings in {savings.setups} setups, all of FSDP2 with "
        f"gloo on two CPUs: measured over predicted, the ratio of plan to default was {low} to {high} %. None is of a "
        "GPU."
    )


def snippet(one: Tried) -> list[str]:
    """Return the lines of a Python program that applies the setting with PyTorch alone."""
    planned = one.setting.planned(one.parallel_model)
    is_tied = planned.units[0] == ("",)
    inner = planned.units[1:] if is_tied else planned.units[1:-1]
    of_unit = one.setting.unit
    parts = [f"list(blocks[i : i + {of_unit}]) for i in range(0, {sum(map(len, inner))}, {of_unit})"]
    parts = [f"*({parts[0] if of_unit > 1 else '[block] for block in blocks'})"]
    if not is_tied:
        first, last = (f"[{', '.join(map(_path, unit))}]" for unit in (planned.units[0], planned.units[-1]))
        parts = [first, *parts, last]
    reshard = "unit is not units[-1]" if planned.keep_last else str(planned.reshard_after_forward)
    ahead, back = planned.forward_prefetch, planned.backward_prefetch
    return [
        "from torch.distributed.fsdp import fully_shard",
        "",
        f"blocks = {_path(inner[0][0].rpartition('.')[0])}",
        "units = [",
        *(f"    {part}," for part in parts),
        "]",
        "for unit in units:",
        f"    fully_shard(unit, mesh=mesh, reshard_after_forward={reshard})",
        "fully_shard(model, mesh=mesh)",
        "first = [unit[0] for unit in units]",
        "for i, one in enumerate(first):",
        f"    one.set_modules_to_forward_prefetch(first[i + 1 : i + {ahead + 1}])",
        f"    one.set_modules_to_backward_prefetch(first[max(0, i - {back}) : i][::-1])",
    ]


def _path(name: str) -> str:
    """Return the Python expression for a module of the model from its dotted name, such as `model.layers[0]`."""
    parts = (f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
    return f"model{''.join(parts)}"
