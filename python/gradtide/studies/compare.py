"""`gradtide compare`: schedules side by side, over models, workers and link rates."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gradtide import _core, report, units, words
from gradtide.errors import Interrupted
from gradtide.estimate import Limits
from gradtide.results import RunResult, StudyRows
from gradtide.scenario import Scenario
from gradtide.studies.folder import write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import as_scenario, run_all, total_cost, write_core, write_summary

DEFAULT_SCHEDULES = ("fifo+barrier", "priority+barrier", "fifo", "priority")
PULL_SCHEDULES = ("random", "priority", "tic", "tac", "tac_folded", "optimal")
"""What is compared where every iteration begins with a pull from parameter servers."""

_OWN = dict.fromkeys(
    ("fusion", "first_fusion", "cycle", "buckets", "chunk", "credit", "queues", "barrier", "depth", "order_file")
)
"""Keys of a schedule that a system's name puts back to their defaults, so that the scenario's are not in its way."""

SYSTEMS: dict[str, dict[str, Any]] = {
    # Li et al. (2020), 3.2.3, and DistributedDataParallel's defaults.
    "ddp": {"order": "fifo", "barrier": True, "first_fusion": "1MiB", "fusion": "25MiB"},
    # Sergeev & Del Balso (2018), section 4; the defaults of its documentation until version 0.21.
    "horovod": {"order": "fifo", "barrier": True, "fusion": "64MiB", "cycle": "5ms"},
    # Jayarajan et al. (2019), section 5.1: slices of 50,000 parameters.
    "p3": {"order": "priority", "fusion": "0B", "chunk": "200kB", "barrier": False},
    # Peng et al. (2019); its program's defaults: partitions of 1,000,000 parameters, a credit of four of them.
    "bytescheduler": {"order": "priority", "fusion": "0B", "chunk": "4MB", "credit": 4, "barrier": False},
    # With the defaults that these orders have.
    "caramel": {"order": "caramel"},
    "edf": {"order": "edf"},
    "optimal": {"order": "optimal"},
}
"""Schedules of whole systems, as keys of a scenario; `parse_schedule` knows them by name."""

GRAMMAR = (
    "ORDER[+barrier][+fusion=SIZE|adaptive][+first_fusion=SIZE][+cycle=TIME][+chunk=SIZE][+credit=N]"
    "[+depth=N|adaptive][+queues=N]"
)


@dataclass(frozen=True)
class Variant:
    """One run of a comparison.

    Attributes:
        name: folder of the run.
        group: what the schedules compete on: model, workers, link rate.
        schedule: name of the schedule, as in `priority without barrier`.
        scenario: what is run.
    """

    name: str
    group: tuple[str, int, int]
    schedule: str
    scenario: Scenario


class CompareResult(StudyRows):
    """Runs side by side.

    Attributes:
        rows: one dict per run and job; the columns of `rows.csv`.
        results: the runs by name.
        summary: what `--json` prints.
    """

    def __init__(self, variants: Sequence[Variant], results: Sequence[RunResult]) -> None:
        self.variants = list(variants)
        self.results = {variant.name: result for variant, result in zip(variants, results, strict=True)}
        self.rows = _rows(self.variants, self.results)
        self.summary = self._summary()

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`."""
        for name, result in self.results.items():
            (folder / "runs" / name).mkdir(parents=True)
            write_core(result, folder / "runs" / name)
        (folder / "rows.csv").write_text(self.table.to_csv(), encoding="utf-8")
        write_summary(self.summary, folder)
        write_versions(folder)
        best = folder / "runs" / self.most_telling
        report.write_timeline(best).rename(folder / "timeline.pftrace")
        report.write_report(folder)

    @property
    def most_telling(self) -> str:
        """Name of the run that saves most."""
        return str(max(self.rows, key=lambda row: row["saves_percent"])["run"])

    def _summary(self) -> dict[str, Any]:
        first = next(iter(self.results.values())).summary
        return {
            "schema": "gradtide.compare/1",
            "version": _core.__version__,
            "complete": True,
            "engine": first["engine"],
            "seed": first["seed"],
            "headline": self.headline,
            "rows": [_as_ms(row) for row in self.rows],
            "cost": total_cost(result.summary for result in self.results.values()),
        }

    @property
    def headline(self) -> str:
        """The result in a sentence or two, one per model."""
        baseline = self.variants[0].schedule
        sentences = []
        for model in dict.fromkeys(row["model"] for row in self.rows):
            rows = [row for row in self.rows if row["model"] == model]
            best = max(rows, key=lambda row: row["saves_percent"])
            if best["saves_percent"] < 100 * words.SAME:
                sentences.append(f"{model}: no schedule saves anything over {baseline}.")
                continue
            schedule = best["schedule"]
            points = [
                (float(row["rate_bps"]), 1.0, 1 - row["saves_percent"] / 100)
                for row in rows
                if row["schedule"] == schedule and (row["job"], row["workers"]) == (best["job"], best["workers"])
            ]
            who = f"{model} on {words.workers(best['workers'])}"
            sentences.append(f"{who}: {words.uncapitalised(words.saving_headline(points, baseline, schedule))}")
        return " ".join(sentences)

    def __repr__(self) -> str:
        return f"<gradtide.CompareResult {len(self.rows)} rows: {self.headline}>"


def compare(
    scenario: "Scenario | str | Path | dict[str, Any]",
    *,
    schedules: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    workers: Sequence[int] | None = None,
    rates: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> CompareResult:
    """Run a scenario under several schedules, and over models, numbers of workers and link rates.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file.
        schedules: each as `parse_schedule` reads it: `fifo+barrier`, `priority+chunk=1MB`, or the name of a system:
            `ddp`, `horovod`, `p3`, `bytescheduler`, `caramel`, `edf`, `optimal`. The first is what the others are
            compared with. None takes fifo and priority, each with and without barrier; with parameter servers and
            pull = "start" every order of pulls.
        models: presets or files; None keeps the scenario's.
        workers: numbers of workers; None keeps the scenario's.
        rates: link rates with their units, as in `10Gbps`; None keeps the scenario's.
        jobs: runs under way at once; the result does not depend on it.
        progress: called now and then with the share that is done.
        keep: where finished runs are kept until the comparison is whole.
        limits: memory and time that the comparison may take.

    Raises:
        Interrupted: on Ctrl-C, with the comparison of the runs that are finished.
        ScenarioError: if a scenario of the grid is wrong, or it would take more than the limits; nothing has run then.
        ValueError: if a list is empty or a schedule is not written as above.
    """
    variants = grid(as_scenario(scenario), schedules, models, workers, rates)
    return run_variants(variants, jobs=jobs, progress=progress, keep=keep, limits=limits)


def run_variants(
    variants: Sequence[Variant],
    *,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> CompareResult:
    """Run every variant; the arguments are those of `compare`."""
    try:
        results = run_all([variant.scenario for variant in variants], jobs, progress, keep, limits)
    except Interrupted as stop:
        finished = [pair for pair in zip(variants, stop.results, strict=True) if pair[1] is not None]
        # Without the first schedule of its group a run has nothing to be compared with.
        first = variants[0].schedule
        groups = {variant.group for variant, _ in finished if variant.schedule == first}
        known = [(variant, result) for variant, result in finished if result is not None and variant.group in groups]
        if known:
            stop.tell(CompareResult([variant for variant, _ in known], [result for _, result in known]))
        raise
    return CompareResult(variants, results)


def grid(
    base: Scenario,
    schedules: Sequence[str] | None,
    models: Sequence[str] | None,
    workers: Sequence[int] | None,
    rates: Sequence[str] | None,
) -> list[Variant]:
    """Return the runs of a comparison: all schedules of one (model, workers, rate) stand together."""
    if schedules is None:
        schedules = PULL_SCHEDULES if all(job.is_pulled for job in base.jobs) else DEFAULT_SCHEDULES
    for name, values in (("schedules", schedules), ("models", models), ("workers", workers), ("rates", rates)):
        if values is not None and not list(values):
            raise ValueError(f"{name} is empty; leave it out to keep the scenario's")
    parsed = [(text, parse_schedule(text)) for text in schedules]
    variants = []
    unchanged = (None,)
    for model, count, rate in product(models or unchanged, workers or unchanged, rates or unchanged):
        point = base.replace(**_given(model=model, workers=count, link_rate=rate))
        if count is not None and point.fabric.kind == "star":
            # The cluster grows and shrinks with the job.
            point = point.set({"cluster.topology.hosts": sum(len(job.hosts) for job in point.jobs)})
        is_pulled = all(job.is_pulled for job in point.jobs)
        for text, named in parsed:
            # What every iteration begins with a pull has a barrier, and an order is all that a name stands for.
            changes = {k: v for k, v in named.items() if k != "barrier" and v is not None} if is_pulled else named
            scenario = point.replace(**changes)
            variants.append(_variant(scenario, text, changes))
    names = [variant.name for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} would be run twice; name every schedule, model, worker count and rate once")
    return variants


def parse_schedule(text: str) -> dict[str, Any]:
    """Return the changes that a schedule's name stands for, as `Scenario.replace` takes them.

    `ORDER[+barrier][+fusion=SIZE|adaptive][+first_fusion=SIZE][+cycle=TIME][+chunk=SIZE][+credit=N][+depth=N|adaptive]
    [+queues=N]`: what is not named stays as the scenario has it, except for the barrier. In place of an order, the name
    of one of `SYSTEMS`: then what neither it nor the text names is as if the scenario said nothing.

    Raises:
        ValueError: if it is not written so.

    Example:
        >>> parse_schedule("priority+chunk=1MB")
        {'order': 'priority', 'barrier': False, 'chunk': '1MB'}
    """
    order, *extras = [part.strip() for part in text.split("+")]
    changes: dict[str, Any] = _OWN | SYSTEMS[order] if order in SYSTEMS else {"order": order, "barrier": False}
    for extra in extras:
        key, equals, value = extra.partition("=")
        if extra == "barrier":
            changes["barrier"] = True
        elif equals and (key in ("fusion", "first_fusion", "cycle", "chunk") or (key, value) == ("depth", "adaptive")):
            changes[key] = value
        elif equals and key in ("queues", "credit", "depth") and value.isdigit():
            changes[key] = int(value)
        else:
            raise ValueError(
                f"schedule {text!r}: cannot read {extra!r}; write {GRAMMAR}, as in priority+chunk=1MB, or one of "
                f"{', '.join(SYSTEMS)}"
            )
    return changes


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _variant(scenario: Scenario, text: str, changes: dict[str, Any]) -> Variant:
    job = scenario.jobs[0]
    system, *extras = [part.strip().replace("=", " ") for part in text.split("+")]
    if job.is_pulled:
        system = job.order
    elif system not in SYSTEMS:
        system = words.schedule(job.order, job.barrier)
        extras = [f"{key} {changes[key]}" for key in changes if key not in ("order", "barrier")]
    schedule = ", ".join([system, *extras])
    rate = units.format_rate(scenario.link_rate_bps)
    parts = [job.model, f"{job.workers}w", rate, schedule]
    name = re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")
    return Variant(name, (job.model, job.workers, scenario.link_rate_bps), schedule, scenario)


def _rows(variants: Iterable[Variant], results: dict[str, RunResult]) -> list[dict[str, Any]]:
    baselines: dict[tuple[Any, ...], float] = {}
    rows = []
    for variant in variants:
        result = results[variant.name]
        for job in variant.scenario.jobs:
            figures = result.summary["jobs"][job.name]
            mean_ms = figures["iteration_time_ms"]["mean"]
            baseline_ms = baselines.setdefault((variant.group, job.name), mean_ms)
            rows.append(
                {
                    "run": variant.name,
                    "job": job.name,
                    "model": job.model,
                    "workers": job.workers,
                    "rate_bps": variant.scenario.link_rate_bps,
                    "schedule": variant.schedule,
                    "order": job.order,
                    "barrier": str(job.barrier).lower(),
                    "fusion_bytes": job.fusion_bytes,
                    "chunk_bytes": job.chunk_bytes or 0,
                    "iteration_time_us": 1e3 * mean_ms,
                    "iteration_time_p95_us": 1e3 * figures["iteration_time_ms"]["p95"],
                    "compute_us": 1e3 * figures["compute_ms"],
                    "comm_us": 1e3 * figures["comm_ms"],
                    "exposed_us": 1e3 * figures["waterfall_ms"]["exposed"],
                    "barrier_us": 1e3 * figures["waterfall_ms"]["barrier"],
                    "rho": figures["rho"],
                    "alpha": figures["alpha"],
                    "utilisation": figures["utilisation"],
                    "straggler_percent": figures["straggler_percent"],
                    "lower_bound_us": 1e3 * figures["lower_bound_ms"],
                    "above_bound_percent": 100 * (mean_ms / figures["lower_bound_ms"] - 1),
                    "saves_percent": 100 * (1 - mean_ms / baseline_ms),
                    "gain_percent": 100 * (baseline_ms / mean_ms - 1),
                }
            )
    return rows


def _as_ms(row: dict[str, Any]) -> dict[str, Any]:
    return {
        (name.removesuffix("_us") + "_ms" if name.endswith("_us") else name): (
            value / 1e3 if name.endswith("_us") else value
        )
        for name, value in row.items()
    }


__all__ = ["DEFAULT_SCHEDULES", "GRAMMAR", "SYSTEMS", "CompareResult", "Variant", "compare", "grid", "parse_schedule"]
