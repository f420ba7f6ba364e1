"""`gradtide plan` for FSDP: searches wrapping units, prefetch depths, and reshard-after-forward (ZeRO-3 or ZeRO-2).

Every setting can be applied with public methods of PyTorch's `fully_shard`. Settings that do not fit in the memory of a
rank are not run. All-gathers and reduce-scatters keep torch's order. The best setting is also run in TicTac's order;
the gain of any other order is at most the distance to a lower bound (`gradtide.parallel.bound`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from gradtide import _core, report, words
from gradtide.answer import Candidate, Feasibility
from gradtide.answer.build import build
from gradtide.errors import Unfinished
from gradtide.estimate import foresee
from gradtide.measured import Errors, pairs, saving_errors, time_errors
from gradtide.parallel.bound import Least, Position, least
from gradtide.results import Table
from gradtide.runtime import RUNTIMES
from gradtide.scenario import Scenario
from gradtide.scenario.job import Division
from gradtide.scenario.plan import FSDP, Plan, PlannedSharding
from gradtide.studies.folder import write_text, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.plan import confirm
from gradtide.studies.plan.result import LEAVE, WORTH_IT, Planned
from gradtide.studies.result import RunResult
from gradtide.studies.run import head, run_all, total_cost
from gradtide.studies.run_folder import write_runs, write_summary

UNITS = (1, 2, 4)
"""Blocks per unit that are tried: larger units have fewer fixed costs, but are gathered and reduced later."""
DEPTHS = (1, 2, 3)
"""Prefetch depths that are tried, in units. A GPU cannot run without prefetch (0)."""

MOST_SHOWN = 6
"""Rows of a result's table: torch's default, the scenario's setting, the best of three kinds, and the best of all."""

ALIKE = 0.01
"""Relative difference up to which iteration times count as equal; the setting nearest to torch's default then wins."""


@dataclass(frozen=True, order=True)
class Setting:
    """Arguments of `fully_shard`.

    Attributes:
        zero: 3 frees each unit after its forward pass, 2 keeps it until backward.
        unit: blocks per unit.
        forward: prefetch depth of the forward pass, in units.
        backward: prefetch depth of the backward pass, in units.
    """

    zero: int = 3
    unit: int = 1
    forward: int = 1
    backward: int = 1

    @property
    def changes(self) -> int:
        """Number of settings that differ from torch's default."""
        return sum(mine != torchs for mine, torchs in zip(astuple(self), astuple(DEFAULT), strict=True))

    @property
    def keys(self) -> dict[str, int]:
        """Keys of the table `parallel`."""
        return {
            "zero": self.zero,
            "unit": self.unit,
            "prefetch": self.forward,
            "backward_prefetch": self.backward,
        }

    def planned(self, division: Division) -> PlannedSharding:
        """Return the setting as part of a plan for a parallel model."""
        units = division.described.units
        most = len(units) - 1
        reshards = self.zero == 3
        # With tied embeddings the shared parameters are in the root unit, which is not resharded.
        keeps = reshards and units[0] != ("",)
        return PlannedSharding(units, min(self.forward, most), min(self.backward, most), reshards, keeps)


DEFAULT = Setting()
"""PyTorch's default, with one block per unit."""


def settings(division: Division) -> list[Setting]:
    """Return the search space, torch's default first. With ZeRO-2 there is no prefetch in the backward pass."""
    blocks = len(division.described.blocks) - 2
    units = [unit for unit in UNITS if unit == 1 or 2 * unit <= blocks]
    freed = [Setting(3, *one) for one in product(units, DEPTHS, DEPTHS)]
    return freed + [Setting(2, *one) for one in product(units, DEPTHS)]


@dataclass
class Tried:
    """A setting with its runs.

    Attributes:
        setting: the setting.
        scenario: the job with this setting.
        result: its run; None if it does not fit in memory or has not run yet.
        checked: its run on the user's engine, if the search used another one; None if it was not a finalist.
    """

    setting: Setting
    scenario: Scenario
    result: RunResult | None = None
    checked: RunResult | None = None

    @property
    def division(self) -> Division:
        """Division of the model over the ranks."""
        found = self.scenario.jobs[0].division
        assert found is not None
        return found

    @property
    def memory_bytes(self) -> int:
        """Largest memory of a rank."""
        return self.division.described.memory.total

    @property
    def fits(self) -> bool:
        """Whether the setting fits in the memory of each rank."""
        return self.division.fit.verdict != "does not fit"

    @property
    def time_ms(self) -> float:
        """Iteration time by which settings are compared."""
        assert self.result is not None
        return _time_ms(self.result)

    def run_beside(self, default: "Tried") -> RunResult | None:
        """Return the run to show beside that of `default`, on the same engine."""
        return self.result if self.checked is None or default.checked is None else self.checked

    @property
    def shown_ms(self) -> float:
        """Iteration time to show: on the user's engine, if it ran there."""
        run = self.run_beside(self)
        assert run is not None
        return _time_ms(run)


def plan_sharding(
    asked: Scenario,
    *,
    worth: float,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Any = None,
) -> "ShardingResult":
    """Search how `fully_shard` should shard a model; the arguments are those of `plan`.

    Raises:
        ValueError: if `fully_shard` does not apply to the job.
    """
    job = asked.jobs[0]
    division = job.division
    assert division is not None
    _refuse(division)
    base = confirm.on_fluid(asked) if asked.engine == "packet" else asked
    home = f"job.{job.name}.parallel"
    written = base.to_dict()["job"][job.name]["parallel"]

    def tried(setting: Setting) -> Tried:
        return Tried(setting, base.set({home: {**written, **setting.keys}}))

    layout = division.layout
    own = Setting(layout.zero, layout.unit, layout.prefetch, layout.backward_prefetch)
    every = [tried(setting) for setting in dict.fromkeys([DEFAULT, own, *settings(division)])]
    runs = [one for one in every if one.fits or one.setting == DEFAULT]
    why_not = ""
    # The best setting is run again in another order; with a packet scenario the settings of the table are run as well.
    later = [(base, 1), *([(asked, MOST_SHOWN)] if base is not asked else [])]
    foresee(lambda: [*((one.scenario, 1) for one in runs), *later], "what is run last depends on what is best")
    try:
        results: Sequence[RunResult | None] = run_all([one.scenario for one in runs], jobs, progress, keep, limits)
        _take(runs, results)
        in_order = _chosen(every).scenario.set({f"job.{job.name}.schedule.order": "tic"})
        ordered = run_all([in_order], 1, None, keep, limits)[0]
        if base is not asked:
            how = {"jobs": jobs, "keep": keep, "limits": limits}
            best = _chosen(every)
            shown = {one.setting: one for _, one in _shown(every, own, best, every[0]) if one.result is not None}
            planned = {setting: asked.set({home: {**written, **setting.keys}}) for setting in shown}
            checked, why_not = confirm.confirmed(planned, how)
            for setting, result in checked.items():
                shown[setting].checked = result
    except Unfinished as stop:
        if len(stop.results) == len(runs):
            _take(runs, stop.results)
        if every[0].result is not None:
            stop.tell(ShardingResult(every, own, worth, None, asked.engine, NOT_YET))
        raise
    return ShardingResult(every, own, worth, ordered, asked.engine, why_not)


def _take(runs: Sequence[Tried], results: Sequence[RunResult | None]) -> None:
    for one, result in zip(runs, results, strict=False):
        one.result = result


def _refuse(division: Division) -> None:
    mesh, layout = division.costs.mesh.sizes, division.layout
    for axis, what in (("pp", "a pipeline"), ("ep", "experts that are spread over ranks")):
        if mesh[axis] > 1:
            raise ValueError(f"plan is not built yet for {what}, and `parallel` has {axis} = {mesh[axis]}; write 1")
    if mesh["cp"] * mesh["fsdp"] < 2:
        raise ValueError("plan takes a model that FSDP shards; write parallel = { fsdp = 8 }, or more ranks")
    if layout.zero not in (2, 3):
        raise ValueError(f"plan takes what fully_shard does, and `parallel` has zero = {layout.zero}; write 3, or 2")


class ShardingResult(Planned):
    """How a model should be sharded, and what it was chosen from.

    Attributes:
        plan: what plan.json holds.
        scenario: the scenario so sharded.
        baseline: the run of torch's default.
        run: the run of the plan.
        rows: one dict for torch's default, for the best of each kind of change, and for the best of all.
        candidates: one dict for every setting; the columns of `settings.csv`.
        ordered: the run of the best setting in TicTac's order, which torch cannot be told; None if it was not run.

    Args:
        every: what was tried, torch's default first.
        own: the scenario's setting.
        worth: share of an iteration that a setting has to save.
        ordered: as the attribute.
        asked: the engine that was asked about. Default: the one that searched.
        why_not: why nothing was run on it, where that is another one.
    """

    def __init__(
        self,
        every: Sequence[Tried],
        own: Setting,
        worth: float,
        ordered: RunResult | None = None,
        asked: str | None = None,
        why_not: str = "",
    ) -> None:
        default = every[0]
        assert default.result is not None
        self.baseline = default.checked or default.result
        self._engines = default.scenario.engine, asked or default.scenario.engine, why_not
        self.ordered = ordered
        self._worth = worth
        self._default = default
        ran = [one for one in every if one.result is not None]
        best = _chosen(every)
        self.least = bound(ran)
        pays = _pays(_line("", best, default), worth)
        chosen = best if pays or not default.fits else default
        self.run = chosen.checked or chosen.result
        self.scenario = chosen.scenario if self.run is None else self.run.scenario
        self.rows = [{**_line(name, one, default), "chosen": False} for name, one in _shown(every, own, best, default)]
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
                        for name, one in _shown(every, own, best, default)
                    ),
                    Candidate("lower bound", self.least.time, is_bound=True),
                ],
                more=confirm.premises(*self._engines),
            ).to_dict(),
            "lower_bound_ms": self.least.time,
            "lower_bound_why": self.least.why,
            "tictac_order_ms": None if ordered is None else _time_ms(ordered),
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
        """Write everything into the existing `folder`."""
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
                "baseline_iteration_time_ms": _time_ms(self.baseline),
                "iteration_time_ms": row["iteration_ms"],
                "gain_percent": row["saves_percent"],
                "gain_interval_percent": None if low is None else [low, high],
                "verdict": WORTH_IT if _pays(row, self._worth) else LEAVE,
                "measured_errors": {"savings": _errors(_savings()), "iteration_times": _errors(_times())},
                "lower_bound_ms": self.least.time,
                "memory_bytes": one.memory_bytes,
            },
            advice=tuple(self._advice(one)),
            fsdp=one.setting.planned(one.division),
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
        return f"{who}: leave torch's default alone. An iteration takes {before}, and {most}."

    def _advice(self, one: Tried) -> Iterator[str]:
        row = self._best_row
        if _pays(row, self._worth):
            yield f"Worth it: even the low end of the interval saves {row['saves_low_percent']:.1f} %."
        elif self._default.fits:
            yield "Leave it alone: predictions of FSDP were off by more than the best setting saves."
        if one.setting != DEFAULT:
            yield 'gradtide.torch.wrap(model, "plan.json", mesh=mesh) does it with public methods of fully_shard.'
        yield self._order()
        if one.division.described.units[0] == ("",):
            yield (
                "The head shares the parameters of the embedding: both are of the model itself, which fully_shard "
                "keeps. The prediction gathers the embedding once more."
            )
        yield from confirm.sentence(*self._engines)
        yield _basis()

    def _order(self) -> str:
        best_ms = self._best_ms  # on the engine of the search, as are the order and the bound

        def saves(to_ms: float) -> str:
            share = 1 - to_ms / best_ms
            return NOTHING if share < 5e-4 else f"{words.milliseconds(best_ms - to_ms)} ({100 * share:.1f} %)"

        most = saves(self.least.time)
        text = "Torch sends all-gathers and reduce-scatters in the order in which they become ready. "
        if self.ordered is None:
            text += f"Another could save at most {most}: "
        elif most == NOTHING:
            text += "Neither TicTac's, what is needed first, nor any other would save more: "
        else:
            text += f"TicTac's, what is needed first, would save {saves(_time_ms(self.ordered))}, "
            text += f"any other at most {most}: "
        return f"{text}no plan can be below {words.milliseconds(self.least.time)}, the time of {self.least.why}."


ORDER = "the order of all-gathers and reduce-scatters"
NOTHING = "nothing"
NOT_YET = "the study was interrupted"


def bound(ran: Sequence[Tried]) -> Least:
    """Return a lower bound of the iteration time of all settings, in milliseconds: the minimum over units and ZeRO.

    Transfers count with their simulated durations, if no other transfers can have slowed them down.
    """
    found = []
    for one in {(one.setting.zero, one.setting.unit): one for one in ran}.values():
        assert one.result is not None
        rows = one.result.transfers.to_dicts()
        step = least(_positions(one))
        once = one.division.described.optimizer_ps[0] / 1e9
        once += sum(_took_ms(row, one) for row in rows if row["group"] == "norm")
        found.append(Least(one.division.layout.micro_batches * step.time + once, step.why))
    return min(found)


def _took_ms(row: Mapping[str, Any], one: Tried) -> float:
    """Return the time for which a transfer occupies its queue: launch overhead and transfer time."""
    assert one.result is not None
    launch_ps: int = one.result.scenario.jobs[0].schedule.overhead_ps
    moving_us: float = row["end_us"] - row["start_us"]
    return launch_ps / 1e9 + moving_us / 1e3


def _positions(one: Tried) -> list[Position]:
    """Return the units in the order of the forward and the backward pass, times in milliseconds."""
    assert one.result is not None
    described, rows = one.division.described, one.result.transfers.to_dicts()
    # Transfers of other groups may have slowed these down; their durations are then no lower bound.
    is_alone = {row["group"] for row in rows} <= {"fsdp", "norm"}
    took: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["group"] == "fsdp":
            took.setdefault((row["collective"], row["first_layer"]), _took_ms(row, one))
    first, units = 0, []
    for count in described.unit_blocks:
        units.append((first, described.blocks[first : first + count]))
        first += count

    def compute(blocks: Sequence[tuple[str, int]], *keys: str) -> float:
        times: list[int] = [getattr(op, key) for op in described.ops_of(blocks) for key in keys]
        return sum(times) / 1e9

    forward = [
        Position(
            blocks[0][0],
            took.get(("all_gather", place), 0.0) if is_alone or place == 0 else 0.0,
            compute(blocks, "forward_ps"),
            0.0,
        )
        for place, blocks in units
    ]
    is_freed = one.setting.zero == 3
    backward = [
        Position(
            f"{blocks[0][0]} backward",
            took.get(("all_gather", place), 0.0) if is_freed and is_alone and place != units[-1][0] else 0.0,
            compute(blocks, "backward_ps", "recompute_ps"),
            took.get(("reduce_scatter", place), 0.0) if is_alone else 0.0,
        )
        for place, blocks in reversed(units)
    ]
    return forward + backward


def _time_ms(result: RunResult) -> float:
    time_ms: float = result.job["iteration_time_ms"]["mean"]
    return time_ms


def _chosen(every: Sequence[Tried]) -> Tried:
    """Return the best setting that fits in memory and was run, or else torch's default, the first."""
    return _best([one for one in every if one.result is not None and one.fits]) or every[0]


def _best(some: Sequence[Tried]) -> Tried | None:
    """Return the setting with fewest changes from the default among those about as fast as the fastest."""
    if not some:
        return None
    limit = (1 + ALIKE) * min(one.time_ms for one in some)
    return min(
        (one for one in some if one.time_ms <= limit),
        key=lambda one: (one.setting.changes, _key(one)),
    )


def _key(one: Tried) -> tuple[float, int, Setting]:
    """Return the sort key of settings: time, memory, then the number of changes from the default."""
    return round(one.time_ms, 6), one.memory_bytes, one.setting


def _fits(one: Tried) -> Feasibility:
    memory = one.division.described.memory
    return Feasibility(one.division.fit.verdict, memory.total, memory.device)


def _shown(every: Sequence[Tried], own: Setting, best: Tried, default: Tried) -> Iterator[tuple[str, Tried]]:
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
            yield name, min(ran, key=_key) if ran else min(some, key=lambda one: one.memory_bytes)
    yield "best of all", best


def _line(name: str, one: Tried, default: Tried) -> dict[str, Any]:
    setting, result, beside = one.setting, one.run_beside(default), default.run_beside(one)
    assert beside is not None
    time_ms, default_ms = 0.0 if result is None else _time_ms(result), _time_ms(beside)
    saves = None if result is None else 1 - time_ms / default_ms
    low = high = None
    if saves is not None and setting != DEFAULT:
        low, high = (1 - end for end in reversed(_savings().around(1 - saves)))
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
        "device_bytes": one.division.described.memory.device,
        "fits": one.fits,
        "feasibility": one.division.fit.verdict,
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


def _errors(of: Errors) -> dict[str, Any]:
    return {"count": len(of.logs), "setups": of.setups, "percent": list(of.range_percent)}


def _basis() -> str:
    """Return the sentence about the basis of the interval."""
    savings = _savings()
    low, high = (f"{100 + end:.0f}" for end in savings.range_percent)
    return (
        f"The interval comes from {len(savings.logs)} measured savings in {savings.setups} setups, all of FSDP2 with "
        f"gloo on two CPUs: measured over predicted, the ratio of plan to default was {low} to {high} %. None is of a "
        "GPU."
    )


def snippet(one: Tried) -> list[str]:
    """Return lines of Python that apply the setting with torch alone."""
    planned = one.setting.planned(one.division)
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
    """Return the Python expression of a module, as in `model.layers[0]`."""
    parts = (f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
    return f"model{''.join(parts)}"
