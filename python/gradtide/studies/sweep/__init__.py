"""`gradtide sweep`: what does a figure do over the values of any keys of a scenario?

Every run is read first, so that a wrong value is found before anything runs. Then those run that the store lacks. The
table is made of the store, so it does not matter which process ran what, or when.
"""

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from gradtide import _core, report, words
from gradtide.errors import ExecutorError, Fault, LimitReached
from gradtide.estimate import Limits, Total, within_limits
from gradtide.results import StudyRows
from gradtide.scenario import Scenario
from gradtide.studies.asked import with_lists
from gradtide.studies.folder import write_text, write_versions
from gradtide.studies.run import GRACE_S, LOOK_EVERY_S, part_of, write_summary
from gradtide.studies.store import MEASURED_COSTS, About, Store, key_of
from gradtide.studies.sweep import table
from gradtide.studies.sweep.analysis import analysed, by_run
from gradtide.studies.sweep.executors import Documents, Executor, WorkerLost, opened
from gradtide.studies.sweep.study import SEED, Study, shown
from gradtide.watch import current

__all__ = ["Study", "SweepResult", "merge", "sweep"]

KEY_BYTES = 32

FIGURES = (".iteration_time_ms.mean", ".all.mean_fct_ms", "")
"""How the figure ends that the report is about if the study does not say; the first that there is."""

READ_S = 0.0015
"""Time to read a scenario, for the progress alone (`bench/run.py sweep`)."""

ELSEWHERE_S = 0.2
"""Between two looks for runs that another process has under way."""

MAX_BATCH = 100
"""Runs of a batch, however short they are."""
MAX_LOSSES = 3
"""Workers that a run may lose; the executor may have begun it anew before it says so."""

Progress = Callable[[float], object] | None


class SweepResult(StudyRows):
    """A study and what the store has of it.

    Attributes:
        study: what was asked.
        known: runs that are in the store.
    """

    def __init__(self, study: Study, store: Store, keys: bytes) -> None:
        self.study = study
        self._store, self._keys = store, keys
        self.known = sum(store.has(self._key(run)) for run in range(len(study)))

    def _key(self, run: int) -> bytes:
        return self._keys[KEY_BYTES * run : KEY_BYTES * (run + 1)]

    @property
    def missing(self) -> int:
        """Runs that are not in the store."""
        return len(self.study) - self.known

    def each_row(self) -> Iterator[dict[str, Any]]:
        """Give the rows in the order of the study, read one by one; those of runs that are missing have no figures."""
        varied = self.study.keys
        for run in range(len(self.study)):
            document = self._store.find(self._key(run))
            values = self.study.values(run)
            row = {"run": run, **{key: shown(values[key]) for key in varied}}
            if SEED not in varied:
                row["seed"] = run % self.study.seeds + self.study.first_seed(run)
            if document is None:
                yield {**row, "state": "missing"}
            elif "error" in document:
                yield {**row, "state": f"failed: {document['error']}"}
            else:
                yield {**row, "state": "finished", **table.figures(document["summary"])}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """All rows, each with all columns."""
        kinds = table.columns(self.each_row)
        return [row for piece in table.pieces(self.each_row, kinds) for row in piece.to_dicts()]

    @cached_property
    def summary(self) -> dict[str, Any]:  # type: ignore[override]
        """What `summary.json` says."""
        study, failed = self.study, 0
        cost = {"events": 0, "packet_hops": 0}
        times: dict[str, tuple[float, float]] = {}
        for run in range(len(study)):
            document = self._store.find(self._key(run)) or {}
            failed += "error" in document
            one = document.get("summary", {"cost": {}, "jobs": {}})
            cost = {name: sum_of + one["cost"].get(name, 0) for name, sum_of in cost.items()}
            for name, job in one["jobs"].items():
                mean_ms = job["iteration_time_ms"]["mean"]
                least, most = times.get(name, (mean_ms, mean_ms))
                times[name] = min(least, mean_ms), max(most, mean_ms)
        return {
            "schema": "gradtide.sweep/1",
            "version": _core.__version__,
            "complete": not self.missing,
            "runs": len(study),
            "runs_finished": self.known - failed,
            "runs_failed": failed,
            "points": study.points,
            "seeds": study.seeds,
            "keys": list(study.keys),
            **self._analysis(),
            "headline": self._headline(times, failed),
            "cost": {**cost, **dict.fromkeys(MEASURED_COSTS)},
        }

    def _analysis(self) -> dict[str, Any]:
        """Return the figure of the report, what it is weighed against, and what the runs say of both."""
        study = self.study
        known = {name: None for row in self.each_row() for name in table.numbers(row)}
        figures = [name for name in known if name not in study.keys]
        if not figures:
            return {"figure": None, "against": None}
        figure = study.figure or next(name for end in FIGURES for name in figures if name.endswith(end))
        for name in (figure, study.against):
            if name is not None and name not in known:
                study.refuse_figure(name, list(known))
        ys, xs = (None if name is None else by_run(name, study, self.each_row()) for name in (figure, study.against))
        assert ys is not None
        return {"figure": figure, "against": study.against, **analysed(study, ys, xs)}

    def _headline(self, times: Mapping[str, tuple[float, float]], failed: int) -> str:
        study = self.study
        seeds = "one seed" if study.seeds == 1 else f"{study.seeds} seeds"
        varied = f" over {', '.join(study.keys)}" if study.keys else ""
        sentences = [f"{len(study):,} runs{varied}, {seeds} each."]
        for name, (least, most) in times.items():
            sentences.append(f"{name}: {words.milliseconds(least)} to {words.milliseconds(most)} per iteration.")
        if failed:
            sentences.append(f"{failed:,} runs cannot go on; the column `state` says why.")
        if self.missing:
            sentences.append(f"{self.missing:,} runs are not finished.")
        return " ".join(sentences)

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`."""
        table.write(self.each_row, folder)
        if self.study.text is not None:
            write_text(folder / "study.toml", self.study.text)
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)


@with_lists
@within_limits
def sweep(
    study: str | Path | Mapping[str, Any] | Study,
    *,
    store: str | Path | Store | None = None,
    shard: tuple[int, int] = (1, 1),
    executor: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress = None,
    limits: Limits | None = None,
) -> SweepResult:
    """Run a scenario over the values of any of its keys.

    Args:
        study: a study file, or a dict with the keys of one: `{"sweep": {"scenario": ..., "grid": {...}}}`, in which the
            scenario may also be a `Scenario` or a dict.
        store: the file of finished runs, in which nothing is run twice; None for one in memory.
        shard: (i, n) runs every n-th run, from the i-th on.
        executor: where runs take place: local, in this process, or ray, on a Ray cluster that is there.
        address: of the Ray cluster; None for that of RAY_ADDRESS, or else the one of this machine.
        jobs: runs under way at once; None for one here, and for all processors of the cluster. The result does not
            depend on it.
        progress: called now and then with the share that is done.
        limits: memory and time that the study may take; on a cluster, memory is that of a run.

    Returns:
        The study with a row per run; those of other shards are there if the store has them.

    Raises:
        ScenarioError: if the study or one of its scenarios is wrong, or it would take more than the limits; nothing has
            run then.
        StoreError: if the store cannot be used.
        ExecutorError: if the cluster cannot be used, or loses the same run again and again.
        ValueError: if there is no such executor, or an address without a cluster.
        KeyboardInterrupt: on Ctrl-C; finished runs are in the store.
        LimitReached: when it has taken all that it may; finished runs are in the store.

    Example:
        >>> base = {"scenario": "paper/gao2020-ch4", "grid": {"cluster.link.rate": ["1Gbps", "10Gbps"]}}
        >>> result = sweep({"sweep": base})
        >>> [row["cluster.link.rate"] for row in result.rows]
        ['1Gbps', '10Gbps']
    """
    study, store = _opened(study, store)
    limits = limits or Limits()
    with opened(executor, address, jobs) as workers:
        # Of the share that is done, if all runs are as the first.
        reading = READ_S / (2 * READ_S + Total().add(study.scenario(0)).cpu_s / workers.at_once)
        work = _Work(study, store, shard, Total(workers.at_once, workers.neighbours))
        work.read(part_of(progress, 0, reading))
        work.total.check(replace(limits, memory_bytes=limits.memory_bytes or workers.memory_bytes))
        work.run(workers, part_of(progress, reading, 1), limits)
    return SweepResult(study, store, bytes(work.keys))


@with_lists
@within_limits
def merge(
    study: str | Path | Mapping[str, Any] | Study,
    stores: Sequence[str | Path] = (),
    *,
    store: str | Path | Store | None = None,
    progress: Progress = None,
    limits: Limits | None = None,
) -> SweepResult:
    """Return a study with what stores have of it; nothing is run.

    Args:
        study: as of `sweep`.
        stores: files whose runs are copied into `store`.
        store: the file that takes them; None for one in memory.
        progress: called now and then with the share that is done.
        limits: memory and time that it may take.

    Raises:
        ScenarioError: if the study or one of its scenarios is wrong.
        StoreError: if a store cannot be used.
    """
    study, store = _opened(study, store)
    for one in stores:
        store.take(Path(one))
    work = _Work(study, store, (1, 1), Total())
    work.read(progress)
    return SweepResult(study, store, bytes(work.keys))


def _opened(study: str | Path | Mapping[str, Any] | Study, store: str | Path | Store | None) -> tuple[Study, Store]:
    return (
        study if isinstance(study, Study) else Study.load(study),
        store if isinstance(store, Store) else Store(None if store is None else Path(store)),
    )


class _Batch(NamedTuple):
    """Runs that are submitted together, by their numbers, and the claims that keep other processes from them."""

    numbers: list[int]
    abouts: list[About]
    claims: ExitStack


class _Work:
    """The runs of a shard that the store lacks, which alone are numbered here; one thread reads and writes the store.

    Attributes:
        keys: the keys of all runs of the study, one after the other.
        total: what the missing runs will take.
    """

    def __init__(self, study: Study, store: Store, shard: tuple[int, int], total: Total) -> None:
        self._study, self._store, self._shard = study, store, shard
        self.keys = bytearray()
        self.total = total
        self._missing = array("L")
        self._weights = array("d")
        self._left: deque[int] = deque()
        self._under_way: dict[Future[Documents], _Batch] = {}
        self._begun: set[bytes] = set()
        self._left_s = self._done_s = 0.0
        self._losses: Counter[int] = Counter()

    def read(self, progress: Progress) -> None:
        """Read every scenario, and find out which runs the store lacks; ends at the first wrong one."""
        first, of = self._shard
        count = len(self._study)
        watch = current()
        for run in range(count):
            scenario = self._study.scenario(run)
            key = key_of(scenario)
            self.keys += key
            if run % of == first - 1 and self._store.find(key) is None:
                self._missing.append(run)
                self._weights.append(self.total.add(scenario).cpu_s + READ_S)
            if watch is not None:
                watch.look()
            if progress is not None and run % 64 == 0:
                progress(run / count)

    def run(self, executor: Executor, progress: Progress, limits: Limits) -> None:
        """Run what is missing; runs that another process has under way are waited for."""
        watch = current() or limits.watch()
        self._left.extend(range(len(self._missing)))
        all_s = self._left_s = sum(self._weights)
        try:
            while self._left or self._under_way:
                are_elsewhere = self._begin(executor)
                finished, _ = wait(self._under_way, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._end(self._under_way.pop(future), future)
                watch.look()
                if are_elsewhere and not self._under_way:
                    sleep(ELSEWHERE_S)
                if progress is not None and finished:
                    progress(self._done_s / all_s)
        except (KeyboardInterrupt, LimitReached, ExecutorError) as end:
            # What has ended is kept, whatever ends the rest.
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
        """Submit what may be under way; return whether another process has some of what is left."""
        elsewhere: list[int] = []
        while self._left and len(self._under_way) < 2 * executor.at_once:
            # The last batches are small, so that all of them end at about the same time.
            batch_s = min(executor.batch_s, self._left_s / (4 * executor.at_once))
            batch, scenarios = self._claimed(batch_s, elsewhere)
            if scenarios:
                self._under_way[executor.submit(scenarios)] = batch
        self._left.extend(elsewhere)
        return bool(elsewhere)

    def _claimed(self, batch_s: float, elsewhere: list[int]) -> tuple[_Batch, list[Scenario]]:
        """Take runs of about `batch_s`, at least one; those that are under way already go to `elsewhere`."""
        batch, sum_s = _Batch([], [], ExitStack()), 0.0
        scenarios: list[Scenario] = []
        while self._left and len(scenarios) < MAX_BATCH and (not scenarios or sum_s < batch_s):
            number = self._left.popleft()
            key = self._key(number)
            # A process shares its claims, so equal runs of a study are told apart here.
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
            # A run that was lost goes alone: if it ends its worker, it takes no other with it.
            sum_s = math.inf if self._losses[number] else sum_s + self._weights[number]
        return batch, scenarios

    def _end(self, batch: _Batch, future: "Future[Documents]") -> None:
        """Put a batch that has ended into the store; begin it again if it was lost."""
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
                values = ", ".join(f"{key} = {shown(value)}" for key, value in self._study.values(run).items())
                msg = f"run {run} of the study ({values}) was lost {MAX_LOSSES} times with its worker: {lost}"
                hint = "the worker's log says why; often it lacks memory. `gradtide run` with these values runs it here"
                raise ExecutorError(Fault("GT108", "", msg, None, hint, "--executor"))
            self._left_s += self._weights[number]
        self._left.extendleft(reversed(batch.numbers))

    def _key(self, number: int) -> bytes:
        run = self._missing[number]
        return bytes(self.keys[KEY_BYTES * run : KEY_BYTES * (run + 1)])
