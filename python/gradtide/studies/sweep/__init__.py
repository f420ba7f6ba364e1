"""`gradtide sweep`: what does a figure do over the values of any keys of a scenario?

Every run is read first, so that a wrong value is found before anything runs. Then those run that the store lacks. The
table is made of the store, so it does not matter which process ran what, or when.
"""

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any

from gradtide import _core, report, words
from gradtide.errors import CoreRefusal, LimitReached, SimulationError
from gradtide.estimate import Limits, Total, within_limits
from gradtide.results import StudyRows
from gradtide.scenario import Scenario
from gradtide.studies.folder import write_versions
from gradtide.studies.run import GRACE_S, LOOK_EVERY_S, part_of, simulate, write_summary
from gradtide.studies.store import MEASURED_COSTS, Store, document, key_of
from gradtide.studies.sweep import table
from gradtide.studies.sweep.analysis import analysed, by_run
from gradtide.studies.sweep.study import SEED, Study, shown
from gradtide.watch import Part, current, watching

__all__ = ["Study", "SweepResult", "merge", "sweep"]

KEY_BYTES = 32

FIGURES = (".iteration_time_ms.mean", ".all.mean_fct_ms", "")
"""How the figure ends that the report is about if the study does not say; the first that there is."""

READ_S = 0.0015
"""Time to read a scenario, for the progress alone (`bench/run.py sweep`)."""

ELSEWHERE_S = 0.2
"""Between two looks for runs that another process has under way."""

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
            (folder / "study.toml").write_text(self.study.text, encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)


@within_limits
def sweep(
    study: str | Path | Mapping[str, Any] | Study,
    *,
    store: str | Path | Store | None = None,
    shard: tuple[int, int] = (1, 1),
    jobs: int = 1,
    progress: Progress = None,
    limits: Limits | None = None,
) -> SweepResult:
    """Run a scenario over the values of any of its keys.

    Args:
        study: a study file, or a dict with the keys of one: `{"sweep": {"scenario": ..., "grid": {...}}}`, in which the
            scenario may also be a `Scenario` or a dict.
        store: the file of finished runs, in which nothing is run twice; None for one in memory.
        shard: (i, n) runs every n-th run, from the i-th on.
        jobs: runs under way at once; the result does not depend on it.
        progress: called now and then with the share that is done.
        limits: memory and time that the study may take.

    Returns:
        The study with a row per run; those of other shards are there if the store has them.

    Raises:
        ScenarioError: if the study or one of its scenarios is wrong, or it would take more than the limits; nothing has
            run then.
        StoreError: if the store cannot be used.
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
    work = _Work(study, store, shard, jobs)
    half = work.share_of_reading
    work.read(part_of(progress, 0, half))
    work.total.check(limits)
    work.run(part_of(progress, half, 1), limits)
    return SweepResult(study, store, bytes(work.keys))


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
    work = _Work(study, store, (1, 1), 1)
    work.read(progress)
    return SweepResult(study, store, bytes(work.keys))


def _opened(study: str | Path | Mapping[str, Any] | Study, store: str | Path | Store | None) -> tuple[Study, Store]:
    return (
        study if isinstance(study, Study) else Study.load(study),
        store if isinstance(store, Store) else Store(None if store is None else Path(store)),
    )


class _Work:
    """The runs of a shard that the store lacks.

    Attributes:
        keys: the keys of all runs of the study, one after the other.
        total: what the missing runs will take.
    """

    def __init__(self, study: Study, store: Store, shard: tuple[int, int], jobs: int) -> None:
        self._study, self._store, self._shard, self._jobs = study, store, shard, max(1, jobs)
        self.keys = bytearray()
        self.total = Total(self._jobs)
        self._missing = array("L")
        self._weights = array("d")

    @property
    def share_of_reading(self) -> float:
        """The share of the time that reading may take, if all runs are as the first."""
        return READ_S / (2 * READ_S + Total().add(self._study.scenario(0)).cpu_s / self._jobs)

    def read(self, progress: Progress) -> None:
        """Read every scenario, and find out which runs the store lacks; ends at the first wrong one."""
        first, of = self._shard
        count = len(self._study)
        asked: set[bytes] = set()
        watch = current()
        for run in range(count):
            scenario = self._study.scenario(run)
            key = key_of(scenario)
            self.keys += key
            if run % of == first - 1 and key not in asked and self._store.find(key) is None:
                asked.add(key)
                self._missing.append(run)
                self._weights.append(self.total.add(scenario).cpu_s + READ_S)
            if watch is not None:
                watch.look()
            if progress is not None and run % 64 == 0:
                progress(run / count)

    def run(self, progress: Progress, limits: Limits) -> None:
        """Run what is missing; runs that another process has under way are waited for."""
        watch, stop = current() or limits.watch(), threading.Event()
        left = deque(range(len(self._missing)))
        under_way: dict[Future[bool], int] = {}
        done_s, all_s = 0.0, sum(self._weights)

        def run_one(number: int) -> bool:
            with watching(Part(watch, stop)):
                return self._run_one(self._missing[number])

        pool = ThreadPoolExecutor(max_workers=self._jobs)
        try:
            while left or under_way:
                while left and len(under_way) < 2 * self._jobs:
                    number = left.popleft()
                    under_way[pool.submit(run_one, number)] = number
                finished, _ = wait(under_way, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                elsewhere = []
                for future in finished:
                    number = under_way.pop(future)
                    if future.result():
                        done_s += self._weights[number]
                    else:
                        elsewhere.append(number)
                left.extend(elsewhere)
                watch.look()
                if elsewhere and len(elsewhere) == len(finished) and not under_way:
                    stop.wait(ELSEWHERE_S)
                if progress is not None and finished:
                    progress(done_s / all_s)
        except LimitReached as end:
            end.share = done_s / all_s
            raise
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait(under_way, timeout=GRACE_S)

    def _run_one(self, run: int) -> bool:
        """Run one that is missing; return False if another process has it under way."""
        key = bytes(self.keys[KEY_BYTES * run : KEY_BYTES * (run + 1)])
        with self._store.claim(key) as is_mine:
            if not is_mine:
                return False
            if not self._store.has(key):
                scenario = self._study.scenario(run)
                self._store.add(key, scenario, _document(scenario))
            return True


def _document(scenario: Scenario) -> dict[str, Any]:
    """Return what the store keeps of a run: its summary without what was measured, or why it cannot go on."""
    try:
        return document(simulate(scenario, None))
    except LimitReached:
        raise
    except (SimulationError, CoreRefusal) as error:
        return {"error": str(error)}
