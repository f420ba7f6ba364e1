"""`gradtide sweep`: runs a scenario with many values of its keys, and ranks the points by one figure.

A point is a combination of values of the varied keys, and is run once with each seed. A figure is a number in a run's
summary. All scenarios are read before the first run, so that errors in the study are reported at once. Runs with an
invalid scenario are refused; all other runs that the store lacks are executed. The result is built from the store
alone, so it does not depend on which process executed a run, or when. The module is longer than 600 lines because
reading, executing and reporting share one state.
"""

import math
import re
import shlex
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from gradtide import _core, report, words
from gradtide.answer import Answer, Feasibility, Premise
from gradtide.answer.build import build, errors_of
from gradtide.errors import ExecutorError, Fault, LimitReached, ScenarioError, TraceError
from gradtide.estimate import Limits, Total, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.folder import MEASURED_COSTS, write_text, write_versions
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import GRACE_S, POLL_S, part_of
from gradtide.studies.run_folder import write_summary
from gradtide.studies.store import About, Store, key_of
from gradtide.studies.sweep import figures, ranking, settings, table
from gradtide.studies.sweep.analysis import analysed, by_run, over_seeds
from gradtide.studies.sweep.choice import opened
from gradtide.studies.sweep.executors import Documents, Executor, WorkerLost
from gradtide.studies.sweep.ranking import Point, State
from gradtide.studies.sweep.study import SEED, Study
from gradtide.watch import current

__all__ = ["Point", "Study", "SweepResult", "merge", "sweep"]

KEY_BYTES = 32

READ_S = 0.0015
"""Typical time to read one scenario, in seconds; used to estimate progress and the size of batches."""

ELSEWHERE_S = 0.2
"""Interval, in seconds, at which the store is polled for runs that another process is executing."""

MAX_BATCH = 100
"""Largest number of runs in a batch; an executor receives and returns runs in batches."""
MAX_LOSSES = 3
"""The study fails if the same run is lost this many times with its worker. Retries by the executor are not counted."""

MAX_RANKED = 10_000
"""Largest number of ranked points in `summary.json`, and of points without a rank; `points.csv` has all points."""

MAX_READ = 64
"""Largest number of points whose scenarios are read again to collect the premises (assumptions) of the answer."""
MAX_SHOWN = 20
"""Largest number of rows in each table of a notebook."""
FEW = 12
"""If more points than this have no rank, terminal and notebooks list them by reason instead of one by one."""

Progress = Callable[[float], object] | None


class Cells(NamedTuple):
    """A table for display: column titles, rows, and the number of omitted points."""

    columns: list[str]
    rows: list[list[str]]
    left_out: int


@dataclass
class Runs:
    """The runs of a study after all scenarios have been read, numbered from 0.

    Attributes:
        keys: store keys of all runs, concatenated, `KEY_BYTES` for each run; zeros for a refused run.
        seeds: seed of each run.
        refused: error message for each run with an invalid scenario, by run number.
    """

    keys: bytearray = field(default_factory=bytearray)
    seeds: "array[int]" = field(default_factory=lambda: array("Q"))
    refused: dict[int, str] = field(default_factory=dict)

    def key(self, run: int) -> bytes:
        """Return the store key of a run."""
        return bytes(self.keys[KEY_BYTES * run : KEY_BYTES * (run + 1)])

    @property
    def repeated(self) -> int:
        """Number of runs with the store key of an earlier run. Without random draws, seeds do not change the key."""
        return len(self.seeds) - len(self.refused) - len({self.key(run) for run in self._valid()})

    def _valid(self) -> Iterator[int]:
        return (run for run in range(len(self.seeds)) if run not in self.refused)


class _Seen(NamedTuple):
    """Data collected in one pass over all runs of a study.

    Attributes:
        states: `State` of each run; `NO_FIGURE` is not used, because the figure to rank by is not known yet.
        names: names of all figures, in order of appearance.
        ranges: minimum and maximum of each figure that could be the default, over the runs that fit in device memory.
        cost: total numbers of events and packet hops of all runs.
    """

    states: bytearray
    names: dict[str, None]
    ranges: dict[str, tuple[float, float]]
    cost: dict[str, int]


class SweepResult(StudyRows):
    """Result of a sweep: its runs, and the ranking of its points, computed on demand from the store.

    Attributes:
        study: the study.
        known: number of the study's runs that are in the store.
    """

    def __init__(self, study: Study, store: Store, runs: Runs) -> None:
        self.study = study
        self._store, self._runs = store, runs
        self.known = sum(run not in runs.refused and store.has(runs.key(run)) for run in range(len(study)))

    @property
    def refused(self) -> int:
        """Number of runs that are not executed because their scenario is invalid."""
        return len(self._runs.refused)

    @property
    def missing(self) -> int:
        """Number of valid runs that are not in the store."""
        return len(self.study) - self.known - self.refused

    def refused_of(self, shard: tuple[int, int]) -> int:
        """Return the number of refused runs in the shard (i, n), which has every n-th run, starting with the i-th."""
        return sum(run % shard[1] == shard[0] - 1 for run in self._runs.refused)

    def _each(self) -> Iterator[tuple[int, str, dict[str, Any] | None]]:
        """Yield each run's number, its state as in `rows.csv`, and its summary (`None` if it has not finished)."""
        for run in range(len(self.study)):
            if run in self._runs.refused:
                yield run, f"refused: {self._runs.refused[run]}", None
                continue
            document = self._store.find(self._runs.key(run))
            if document is None:
                yield run, "missing", None
            elif "error" in document:
                yield run, f"failed: {document['error']}", None
            else:
                yield run, "finished", document["summary"]

    def finished(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the label and the summary of each finished run. The label includes the seed if there are several."""
        for run, _, summary in self._each():
            if summary is not None:
                seed = f", seed {self._runs.seeds[run]}" if self.study.seeds > 1 else ""
                yield f"{self.study.label(run)}{seed}", summary

    def each_row(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `rows.csv`, read from the store one by one; only rows of finished runs have figures."""
        varied = self.study.keys
        for run, state, summary in self._each():
            values = self.study.values(run)
            row = {"run": run, **{key: settings.cell(values[key]) for key in varied}}
            if SEED not in varied:
                row["seed"] = self._runs.seeds[run]
            row["state"] = state
            if summary is None:
                yield row
                continue
            verdict = ranking.worst(summary).verdict
            checked = {} if verdict == "not checked" else {"feasibility": verdict}
            yield {**row, **checked, **figures.of_summary(summary)}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """All rows of `rows.csv`, each with every column of the table."""
        kinds = table.columns(self.each_row)
        return [row for piece in table.pieces(self.each_row, kinds) for row in piece.to_dicts()]

    @cached_property
    def _seen(self) -> _Seen:
        seen = _Seen(bytearray(len(self.study)), {}, {}, {"events": 0, "packet_hops": 0})
        for run, state, summary in self._each():
            if summary is None:
                seen.states[run] = State[state.partition(":")[0].upper()]
                continue
            fits = ranking.worst(summary).verdict != ranking.NO_FIT
            seen.states[run] = State.FINISHED if fits else State.NO_FIT
            for name in seen.cost:
                seen.cost[name] += summary["cost"].get(name, 0)
            for name, value in figures.of_summary(summary).items():
                if value is None:
                    continue
                seen.names[name] = None
                if fits and name.endswith(figures.DEFAULTS[:-1]):
                    least, most = seen.ranges.get(name, (value, value))
                    seen.ranges[name] = min(least, value), max(most, value)
        return seen

    @cached_property
    def figure(self) -> str | None:
        """Name of the figure by which points are ranked; `None` if no run has a figure.

        Default: the first of the default figures (`figures.DEFAULTS`) that differs between runs. For example, the
        iteration time of a job that sends no data is equal on every network, and cannot rank networks.
        """
        seen, figure = self._seen, self.study.figure
        if figure is not None:
            return figure
        known = [name for end in figures.DEFAULTS for name in seen.names if name.endswith(end)]
        differ = (name for name in known if name in seen.ranges and seen.ranges[name][0] < seen.ranges[name][1])
        return next(differ, next(iter(known), None))

    @property
    def is_most_best(self) -> bool:
        """Whether the largest figure is the best one."""
        return self.study.best == "most" or (
            self.study.best is None and self.figure is not None and figures.more_is_better(self.figure)
        )

    @cached_property
    def _ys(self) -> "array[float]":
        """Value of `figure` for each run, even if the run does not fit in device memory; NaN if it has none."""
        return by_run(self.figure or "", self.each_row())

    @cached_property
    def _order(self) -> tuple[list[int], "array[float]", bytearray]:
        """Point numbers in ranking order; and by point number, the mean figure over the seeds and the `State`."""
        seeds, ys = self.study.seeds, over_seeds(self.study, self._ys)
        states = bytearray(len(ys))
        for point, y in enumerate(ys):
            states[point] = max(self._seen.states[point * seeds : (point + 1) * seeds])
            if states[point] == State.FINISHED and math.isnan(y):
                states[point] = State.NO_FIGURE
        return ranking.order(ys, states, most=self.is_most_best), ys, states

    def points(self) -> Iterator[Point]:
        """Yield every point: first the ranked points from best to worst, then the points without a rank.

        Example:
            >>> result = sweep({"sweep": {"scenario": "paper/gao2020-ch4", "grid": {"run.seed": [1, 2]}}})
            >>> [(point.rank, point.label) for point in result.points()]
            [(1, 'seed 1'), (2, 'seed 2')]
        """
        yield from map(self._point, range(self.study.points))

    def _point(self, place: int) -> Point:
        study, (order, ys, states) = self.study, self._order
        point = order[place]
        run = point * study.seeds
        behind: tuple[float | None, ...] = (None, None, None)
        if states[point] == State.FINISHED:
            behind = ranking.behind(study, self._ys, order[0], point, most=self.is_most_best)
        reason, memory = self._why(run, State(states[point]))
        again = study.again(run)
        return Point(
            run=run,
            settings=study.values(run),
            label=study.label(run),
            rank=place + 1 if states[point] == State.FINISHED else None,
            state=State(states[point]).words,
            reason=reason,
            figure=None if math.isnan(ys[point]) else ys[point],
            behind_percent=behind[0],
            low_percent=behind[1],
            high_percent=behind[2],
            feasibility=memory,
            again=None if again is None else shlex.join(again),
        )

    @cached_property
    def _ranked(self) -> int:
        return self._order[2].count(State.FINISHED)

    def _first(self, most: int) -> tuple[list[Point], list[Point]]:
        """Return the best ranked points, and the first points without a rank; at most `most` of each."""
        ranked, count = self._ranked, self.study.points
        places = range(min(ranked, most)), range(ranked, min(count, ranked + most))
        return list(map(self._point, places[0])), list(map(self._point, places[1]))

    def _why(self, first: int, state: State) -> tuple[str, Feasibility]:
        """Return why a point has this state, and whether it fits in device memory; `first` is its first run number."""
        runs = range(first, first + self.study.seeds)
        run = next((run for run in runs if self._seen.states[run] == state), first)
        if state is State.REFUSED:
            return self._runs.refused[run], Feasibility()
        document = self._store.find(self._runs.key(run)) or {}
        if "error" in document:
            return document["error"], Feasibility()
        memory = ranking.worst(document["summary"]) if document else Feasibility()
        if state is State.NO_FIT:
            ways = f"; it would fit with {' or '.join(memory.would_fit)}" if memory.would_fit else ""
            return f"a rank needs {ranking.of_memory(memory)} of its device{ways}", memory
        reasons = {State.MISSING: "it has not run yet", State.NO_FIGURE: f"its runs have no figure {self.figure}"}
        return reasons.get(state, ""), memory

    @cached_property
    def summary(self) -> dict[str, Any]:  # type: ignore[override]
        """The content of `summary.json`."""
        study, states = self.study, Counter(self._seen.states)
        ranked, others = self._first(MAX_RANKED)
        ranked += others
        return {
            "schema": "gradtide.sweep/1",
            "version": _core.__version__,
            "complete": not self.missing,
            "runs": len(study),
            "runs_finished": states[State.FINISHED] + states[State.NO_FIT],
            "runs_failed": states[State.FAILED],
            "runs_refused": states[State.REFUSED],
            "runs_that_do_not_fit": states[State.NO_FIT],
            "points": study.points,
            "points_ranked": self._ranked,
            "seeds": study.seeds,
            "keys": list(study.keys),
            **self._analysis(),
            "ranking": [point.to_dict() for point in ranked],
            **self._answer(ranked, states).to_dict(),
            "cost": {**self._seen.cost, **dict.fromkeys(MEASURED_COSTS)},
        }

    def _analysis(self) -> dict[str, Any]:
        """Return the keys of the summary on the ranking figure, computed from the runs that fit in device memory."""
        study, figure = self.study, self.figure
        if figure is None:
            return {"figure": None, "best": None, "against": None}
        fits = [state == State.FINISHED for state in self._seen.states]
        xs = None if study.against is None else by_run(study.against, self.each_row())
        ys = array("d", (y if is_fit else math.nan for y, is_fit in zip(self._ys, fits, strict=True)))
        best = "most" if self.is_most_best else "least"
        return {"figure": figure, "best": best, "against": study.against, **analysed(study, ys, xs, best)}

    def _answer(self, ranked: Sequence[Point], states: Mapping[int, int]) -> Answer:
        """Return the answer. Its premises come from at most `MAX_READ` points, spread evenly over the ranking."""
        study, headline = self.study, self._headline(ranked, states)
        known = [point.run for point in ranked if point.state != State.REFUSED.words]
        read = known[:: -(-len(known) // MAX_READ)]
        candidates = [point.candidate for point in ranked]
        has_best = ranked[0].rank is not None
        scenarios = [study.scenario(run) for run in read]
        answer = build(
            "sweep",
            headline,
            scenarios,
            candidates,
            most=self.is_most_best,
            # A varied key is a premise only if its value is equal at all points, which is known only if all were read.
            varied=() if len(read) == len(known) else study.varied,
            more=self._more(),
            scenario=BEST if has_best else None,
        )
        if (self.figure or "").startswith("traffic.") and scenarios[0].jobs:
            # Completion times of flows have other errors than iteration times.
            answer = replace(answer, uncertainty=errors_of(scenarios, "tenants"))
        # The command runs the whole study, even if this process executed only a shard or merged stores.
        return (
            answer
            if answer.again.command is None
            else replace(answer, again=replace(answer.again, command=study.command))
        )

    def _more(self) -> list[Premise]:
        """Return two further premises: the figure by which points are ranked, and the number of seeds."""
        study, most = self.study, "most" if self.is_most_best else "least"
        by = Premise(
            "ranked by", f"{self.figure}, {most} first", study.figure is not None, "sweep.figure", "figure = …"
        )
        seeds = Premise("seeds of a point", f"{study.seeds:,}", study.seeds > 1, "sweep.seeds", "seeds = …")
        return [seeds] if self.figure is None else [by, seeds]

    def _headline(self, ranked: Sequence[Point], states: Mapping[int, int]) -> str:
        study, sentences = self.study, []
        first = next((point for point in ranked if point.rank == 1), None)
        if first is not None and self.figure is not None:
            sentences.append(self._best(ranked, first) if len(ranked) > 1 else f"{self.figure}: {self._shown(first)}.")
        finished = states[State.FINISHED] + states[State.NO_FIT]
        parts = [f"{finished:,} of {len(study):,} runs finished"]
        if states[State.NO_FIT]:
            parts.append(f"{_runs(states[State.NO_FIT], 'does', 'do')} not fit in memory and {_have(states)} no rank")
        if states[State.FAILED]:
            parts.append(_runs(states[State.FAILED], "failed", "failed"))
        if self.missing:
            parts.append(f"{_runs(self.missing, 'is', 'are')} not finished")
        if states[State.REFUSED]:
            reason, _ = Counter(self._runs.refused.values()).most_common(1)[0]
            parts.append(f"{_runs(states[State.REFUSED], 'is', 'are')} refused ({reason})")
        if (study.seeds > 1 or SEED in study.varied) and (repeated := self._runs.repeated):
            parts.append(f"{_runs(repeated, 'repeats', 'repeat')} others, because nothing in them is random")
        return " ".join([*sentences, f"{'; '.join(parts)}."])

    def _shown(self, point: Point) -> str:
        return "–" if point.figure is None or self.figure is None else words.figure(self.figure, point.figure)

    def _best(self, ranked: Sequence[Point], first: Point) -> str:
        """Return the sentence about the best point, and whether it is significantly better than the second."""
        near = ranking.SAME * abs(first.figure or 0)
        alike = sum(
            point.rank is not None and abs((point.figure or 0) - (first.figure or 0)) <= near for point in ranked
        )
        if alike > 1:
            which = (
                "All points have the same value" if alike == len(ranked) else f"{alike:,} points share the best value"
            )
            return f"{which}, {self._shown(first)}; one of them is {first.label}."
        best = f"{first.label}: {self._shown(first)}"
        second = next((point for point in ranked if point.rank == 2), None)
        if second is None:
            return f"Only one point has a rank: {best}."
        other = self.study.label(second.run, first.run)
        if second.low_percent is not None and second.low_percent <= 0:
            return f"Best: {best}; with {self.study.seeds} seeds, the difference to {other} is not significant."
        behind = "" if second.behind_percent is None else f", {second.behind_percent:.1f} % behind"
        return f"Best: {best}. Next: {other}, {self._shown(second)}{behind}."

    def ranking_rows(self, most: int) -> tuple[Cells, Cells]:
        """Return two tables for display, of at most `most` rows each: ranked points, and points without a rank.

        If more than `FEW` points have no rank, points with the same state and reason share a row.
        """
        with_rank, _ = self._first(most)
        ranked: list[list[str]] = []
        for point in with_rank:
            behind = "–" if point.behind_percent is None else f"{point.behind_percent:.1f} %"
            ends = [point.low_percent, point.high_percent]
            interval = "–" if None in ends else " … ".join(f"{end:.1f}" for end in ends)
            memory = ranking.of_memory(point.feasibility)
            ranked.append([str(point.rank), point.label, self._shown(point), behind, interval, memory])
        title = (self.figure or "").partition(".")[2] or self.figure or ""
        columns = ["rank", "point", title, "behind", "95 % interval", "memory of a rank"]
        used = [at for at in range(len(columns)) if at < 4 or any(row[at] not in ("–", "") for row in ranked)]
        cells = [[row[at] for at in used] for row in ranked]
        unranked = self.study.points - self._ranked
        _, without = self._first(MAX_RANKED)
        groups: dict[object, list[Point]] = {}
        for one in without:
            groups.setdefault((one.state, one.reason) if unranked > FEW else one.run, []).append(one)
        rows = []
        for first, *others in list(groups.values())[:most]:
            label = f"{first.label}, and {len(others):,} more" if others else first.label
            rows.append([label, "–" if others else self._shown(first), f"{first.state}: {first.reason}"])
        has_figures = any(row[1] != "–" for row in rows)
        heads = ["not ranked", title, "why"]
        left_out = unranked - sum(map(len, list(groups.values())[:most]))
        return (
            Cells([columns[at] for at in used], cells, self._ranked - len(cells)),
            Cells(heads if has_figures else heads[::2], rows if has_figures else [row[::2] for row in rows], left_out),
        )

    def _repr_html_(self) -> str:
        tables = [words.html_table(one.columns, one.rows) for one in self.ranking_rows(MAX_SHOWN) if one.rows]
        return "".join(tables) + words.answer_html(self.summary)

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        table.write(self.each_row, folder / "rows.csv", as_parquet=True)
        table.write(lambda: (point.to_row(self.figure) for point in self.points()), folder / "points.csv")
        if self._ranked:
            write_text(folder / BEST, self.study.scenario(self._point(0).run).to_toml())
        if self.study.text is not None:
            write_text(folder / "study.toml", self.study.text)
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)


BEST = "best.resolved.toml"
"""Name of the file with the resolved scenario of the best point's first run, which `gradtide run` can run again."""


def _runs(count: int, one: str, many: str) -> str:
    return f"1 run {one}" if count == 1 else f"{count:,} runs {many}"


def _have(states: Mapping[int, int]) -> str:
    return "has" if states[State.NO_FIT] == 1 else "have"


@with_lists
@within_limits
def sweep(  # noqa: PLR0913 - one argument per option of the command
    study: str | Path | Mapping[str, Any] | Study,
    *,
    cluster: Any = None,
    store: str | Path | Store | None = None,
    shard: tuple[int, int] = (1, 1),
    executor: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress = None,
    limits: Limits | None = None,
    say: Callable[[str], object] | None = None,
) -> SweepResult:
    """Run a scenario over the values of any of its keys.

    Args:
        study: a study file, or a dict with its keys: `{"sweep": {"scenario": ..., "grid": {...}}}`, in which the
            scenario may also be a `Scenario`, a dict or a model.
        cluster: cluster that replaces the cluster of every scenario in the study, as in `gradtide.run`.
        store: file in which finished runs are stored; runs that it already contains are not repeated. Default: a store
            in memory.
        shard: (i, n) executes only every n-th run, starting with the i-th (i from 1 to n). Default: all runs.
        executor: "local" to run in this process, or "ray" to run on an existing Ray cluster.
        address: address of the Ray cluster. Default: that in RAY_ADDRESS, otherwise the cluster of this machine.
        jobs: number of concurrent runs; the result does not depend on it. Default: 1 locally, and the number of
            processors on a cluster.
        progress: called periodically with the completed fraction.
        limits: memory and time limits of the study. On a Ray cluster, the memory limit applies to each run.
        say: called with a warning before the first run, if some runs have an invalid scenario.

    Returns:
        The result, with a row per run. The row of a run in another shard has figures only if the run is in the store.

    Raises:
        ScenarioError: before any run, if the study or all of its scenarios are invalid, or the estimate exceeds the
            limits. If only some scenarios are invalid, the rows of these runs contain the error instead.
        StoreError: if the store cannot be used.
        ExecutorError: if the Ray cluster cannot be used, or if the same run is lost repeatedly with its worker.
        ValueError: if `executor` is unknown, or `address` is given with the local executor.
        KeyboardInterrupt: on Ctrl-C; finished runs are in the store.
        LimitReached: when the limits are exhausted; finished runs are in the store.

    Example:
        >>> base = {"scenario": "paper/gao2020-ch4", "grid": {"cluster.link.rate": ["1Gbps", "10Gbps"]}}
        >>> result = sweep({"sweep": base})
        >>> [row["cluster.link.rate"] for row in result.rows]
        ['1Gbps', '10Gbps']
    """
    study, store = _opened(study, store, cluster)
    limits = limits or Limits()
    with opened(executor, address, jobs) as workers:
        # Share of the total time for reading the scenarios, if all runs take as long as the first.
        reading = READ_S / (2 * READ_S + _first_s(study) / workers.at_once)
        work = _Work(study, store, shard, Total(workers.at_once, workers.neighbours))
        work.read(part_of(progress, 0, reading))
        work.total.check(replace(limits, memory_bytes=limits.memory_bytes or workers.memory_bytes))
        if say is not None and work.runs.refused:
            refused = _runs(len(work.runs.refused), "is", "are")
            say(f"warning: {refused} refused; the study continues with the others. {work.commonest_reason()}")
        work.run(workers, part_of(progress, reading, 1), limits)
    return SweepResult(study, store, work.runs)


def _first_s(study: Study) -> float:
    try:
        return Total().add(study.scenario(0)).cpu_s
    except WRONG:
        return 0.0


@within_limits
def estimated(
    study: str | Path | Mapping[str, Any] | Study,
    *,
    cluster: Any = None,
    store: str | Path | Store | None = None,
    jobs: int = 1,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Return the estimated cost of a study, without running it.

    Args:
        study: as in `sweep`.
        cluster: as in `sweep`.
        store: file of finished runs; runs that it contains are not included in the estimate.
        jobs: number of concurrent runs.
        limits: memory and time limits for reading the study.

    Returns:
        The document of `--estimate --json`: the estimated cost of all runs that are still to be executed, and the
        numbers of runs by state.

    Raises:
        ScenarioError: as in `sweep`.
    """
    study, store = _opened(study, store, cluster)
    work = _Work(study, store, (1, 1), Total(jobs))
    work.read(None)
    refused, missing = len(work.runs.refused), work.total.count
    known = {"runs": len(study), "runs_finished": len(study) - refused - missing, "runs_refused": refused}
    return {"schema": "gradtide.estimate/1", **known, "runs_to_do": missing, **work.taken, **work.total.to_dict()}


@with_lists
@within_limits
def merge(
    study: str | Path | Mapping[str, Any] | Study,
    stores: str | Path | Sequence[str | Path] = (),
    *,
    cluster: Any = None,
    store: str | Path | Store | None = None,
    progress: Progress = None,
    limits: Limits | None = None,
) -> SweepResult:
    """Combine the finished runs of one or several stores into the result of a study, without running anything.

    Args:
        study: as in `sweep`.
        stores: one or several store files, whose runs are copied into `store`.
        cluster: as in `sweep`.
        store: store file that receives the runs. Default: a store in memory.
        progress: called periodically with the completed fraction.
        limits: memory and time limits.

    Raises:
        ScenarioError: if the study or all of its scenarios are invalid.
        StoreError: if a store cannot be used.
    """
    study, store = _opened(study, store, cluster)
    for one in [stores] if isinstance(stores, str | Path) else stores:
        store.take(Path(one))
    work = _Work(study, store, (1, 1), Total())
    work.read(progress)
    return SweepResult(study, store, work.runs)


def _opened(
    study: str | Path | Mapping[str, Any] | Study, store: str | Path | Store | None, cluster: Any
) -> tuple[Study, Store]:
    if isinstance(study, Study) and cluster is not None:
        raise ValueError("cluster: this study is read already; read it with Study.load(study, cluster)")
    return (
        study if isinstance(study, Study) else Study.load(study, cluster),
        store if isinstance(store, Store) else Store(None if store is None else Path(store)),
    )


class _Batch(NamedTuple):
    """Runs that are submitted together: indices of missing runs, with locks (claims) that keep other processes out."""

    numbers: list[int]
    abouts: list[About]
    claims: ExitStack


class _Work:
    """Reads a study's scenarios, and executes the missing runs of a shard; only the calling thread uses the store.

    Attributes:
        runs: all runs of the study.
        total: estimated time and memory of the missing runs.
        taken: estimated total numbers of flows, iterations, packets, packet hops and events of the missing runs.
    """

    def __init__(self, study: Study, store: Store, shard: tuple[int, int], total: Total) -> None:
        self._study, self._store, self._shard = study, store, shard
        self.runs = Runs()
        self.total = total
        self.taken = dict.fromkeys(("flows", "iterations", "packets", "packet_hops", "events"), 0)
        self._missing = array("L")
        self._weights = array("d")
        self._left: deque[int] = deque()
        self._under_way: dict[Future[Documents], _Batch] = {}
        self._begun: set[bytes] = set()
        self._left_s = self._done_s = 0.0
        self._losses: Counter[int] = Counter()

    def read(self, progress: Progress) -> None:
        """Read every scenario of the study, and determine which runs are refused, and which the store lacks.

        Raises:
            ScenarioError: if all scenarios are invalid, with the errors of the first one; or if no run will have the
                `figure` or `against` of the study.
        """
        first, of = self._shard
        count = len(self._study)
        watch = current()
        wrong: ScenarioError | TraceError | None = None
        names, read = _Names(self._study), set[bytes]()
        for run in range(count):
            if watch is not None:
                watch.check()
            if progress is not None and run % 64 == 0:
                progress(run / count)
            try:
                scenario = self._study.scenario(run)
            except WRONG as error:
                wrong = wrong or error
                self.runs.refused[run] = _reason(error)
                self.runs.keys += bytes(KEY_BYTES)
                self.runs.seeds.append(self._study.first_seed(run) + run % self._study.seeds)
                continue
            names.see(scenario)
            key = key_of(scenario)
            self.runs.keys += key
            self.runs.seeds.append(scenario.seed)
            if run % of == first - 1 and key not in read and self._store.find(key) is None:
                read.add(key)
                self._missing.append(run)
                one = self.total.add(scenario)
                self._weights.append(one.cpu_s + READ_S)
                for name in self.taken:
                    self.taken[name] += getattr(one, name)
        if wrong is not None and len(self.runs.refused) == count:
            raise wrong
        names.check()

    def commonest_reason(self) -> str:
        """Return the most frequent error message of the refused runs."""
        return Counter(self.runs.refused.values()).most_common(1)[0][0]

    def run(self, executor: Executor, progress: Progress, limits: Limits) -> None:
        """Execute the missing runs; wait for those that another process is already executing."""
        watch = current() or limits.watch()
        self._left.extend(range(len(self._missing)))
        all_s = self._left_s = sum(self._weights)
        try:
            while self._left or self._under_way:
                are_elsewhere = self._begin(executor)
                finished, _ = wait(self._under_way, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._end(self._under_way.pop(future), future)
                watch.check()
                if are_elsewhere and not self._under_way:
                    sleep(ELSEWHERE_S)
                if progress is not None and finished:
                    progress(self._done_s / all_s)
        except (KeyboardInterrupt, LimitReached, ExecutorError) as end:
            # Store the batches that have finished in the meantime.
            executor.abandon()
            for future in wait(self._under_way, timeout=GRACE_S).done:
                if not future.cancelled() and future.exception() is None:
                    self._end(self._under_way.pop(future), future)
            if isinstance(end, LimitReached):
                end.share = self._done_s / all_s
            raise
        finally:
            for batch in self._under_way.values():
                batch.claims.close()

    def _begin(self, executor: Executor) -> bool:
        """Submit up to two batches per concurrent run; return whether other processes are executing remaining runs."""
        elsewhere: list[int] = []
        while self._left and len(self._under_way) < 2 * executor.at_once:
            # Batches shrink towards the end, so that all workers finish at about the same time.
            batch_s = min(executor.batch_s, self._left_s / (4 * executor.at_once))
            batch, scenarios = self._claimed(batch_s, elsewhere)
            if scenarios:
                self._under_way[executor.submit(scenarios)] = batch
        self._left.extend(elsewhere)
        return bool(elsewhere)

    def _claimed(self, batch_s: float, elsewhere: list[int]) -> tuple[_Batch, list[Scenario]]:
        """Lock and return a batch of about `batch_s` estimated seconds; append runs locked elsewhere to `elsewhere`."""
        batch, sum_s = _Batch([], [], ExitStack()), 0.0
        scenarios: list[Scenario] = []
        while self._left and len(scenarios) < MAX_BATCH and (not scenarios or sum_s < batch_s):
            number = self._left.popleft()
            key = self._key(number)
            # A claim excludes only other processes, so duplicates within this process must be detected here.
            if key in self._begun or not batch.claims.enter_context(self._store.claim(key)):
                elsewhere.append(number)
                continue
            self._left_s -= self._weights[number]
            if self._store.has(key):
                self._done_s += self._weights[number]
                continue
            scenario = self._study.scenario(self._missing[number])
            scenarios.append(scenario)
            self._begun.add(key)
            batch.numbers.append(number)
            batch.abouts.append(About(scenario.name, scenario.engine, scenario.seed))
            # A lost run is retried in a batch of its own, because it may crash its worker again.
            sum_s = math.inf if self._losses[number] else sum_s + self._weights[number]
        return batch, scenarios

    def _end(self, batch: _Batch, future: "Future[Documents]") -> None:
        """Add the runs of a finished batch to the store; queue them again if their worker was lost."""
        with batch.claims:
            self._begun.difference_update(map(self._key, batch.numbers))
            try:
                documents = future.result()
            except WorkerLost as lost:
                self._begin_again(batch, lost)
                return
            for number, about, document in zip(batch.numbers, batch.abouts, documents, strict=True):
                self._store.add(self._key(number), about, document)
                self._done_s += self._weights[number]

    def _begin_again(self, batch: _Batch, lost: WorkerLost) -> None:
        self._losses.update(batch.numbers)
        for number in batch.numbers:
            if self._losses[number] == MAX_LOSSES:
                run = self._missing[number]
                values = ", ".join(f"{key} = {settings.cell(one)}" for key, one in self._study.values(run).items())
                msg = f"run {run} of the study ({values}) was lost {MAX_LOSSES} times with its worker: {lost}"
                hint = "see the worker's log; often memory was short. `gradtide run` with these values runs it here"
                raise ExecutorError(Fault("GT108", "", msg, None, hint, "--executor"))
            self._left_s += self._weights[number]
        self._left.extendleft(reversed(batch.numbers))

    def _key(self, number: int) -> bytes:
        return self.runs.key(self._missing[number])


class _Names:
    """Checks before the first run that the figures named in a study (`figure` and `against`) will exist."""

    def __init__(self, study: Study) -> None:
        self._study = study
        is_key = {key for key in study.keys if any(settings.quantity(one) for one in study.sampled(key))}
        self._wanted = {name for name in (study.figure, study.against) if name is not None and name not in is_key}
        self._kinds: set[object] = set()
        self._known: dict[str, None] = dict.fromkeys(sorted(is_key))

    def see(self, scenario: Scenario) -> None:
        """Record the figures that a run of this scenario will have."""
        if not self._wanted:
            return
        kinds = figures.kinds(scenario)
        self._wanted = {name for name in self._wanted if not figures.is_recorded(name, scenario)}
        if kinds not in self._kinds:
            self._kinds.add(kinds)
            self._known.update(dict.fromkeys(figures.expected(scenario)))
            self._wanted -= set(self._known)

    def check(self) -> None:
        """Raise a ScenarioError if the study names a figure that no run will have."""
        for name in (self._study.figure, self._study.against):
            if name is not None and name in self._wanted:
                self._study.refuse_figure(name, list(self._known))


def _reason(error: ScenarioError | TraceError) -> str:
    """Return the first error of an invalid scenario as one line, with the number of further errors."""
    if isinstance(error, TraceError):
        return " ".join(str(error).split())
    fault, *more = error.faults
    others = f", and {len(more)} more" if more else ""
    key = _OF_STUDY.sub(r"\1", fault.loc).strip('"')
    return f"{fault.code}: {key + ': ' if key else ''}{fault.msg}{others}"


_OF_STUDY = re.compile(r'^sweep\.(?:grid|zip|sample)\.([^"\[]*|"[^"]*")(?:\[\d+\])?$')
"""Location of an error at a varied value of a study file; the group is the scenario's key."""

WRONG = (ScenarioError, TraceError)
"""Exceptions that `Study.scenario` raises if the scenario of a run is invalid."""
