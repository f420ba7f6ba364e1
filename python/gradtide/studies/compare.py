"""`gradtide compare`: compares schedules over a grid of models, workers, servers, mini-batches, tasks and rates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gradtide import report, units, words
from gradtide.answer import Candidate
from gradtide.answer.build import build
from gradtide.answer.memory import feasibility
from gradtide.answer.runtimes import runs_on
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import refuse_parallel, with_lists
from gradtide.studies.folder import write_text, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.network import altered
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import head, run_all, total_cost
from gradtide.studies.run_folder import run_name, write_runs, write_summary
from gradtide.studies.schedules import Contender, Schedule, contender
from gradtide.studies.trained import Cluster, trained, without_scale

DEFAULT_SCHEDULES = ("fifo+barrier", "random", "fifo", "priority", "tic", "tac", "caramel", "optimal")
"""Default schedules if workers exchange gradients; the first is the baseline."""

PULL_SCHEDULES = ("random", "arbitrary", "priority", "tic", "tac", "tac_folded", "optimal")
"""Default schedules if every iteration begins with a pull from parameter servers; the first is the baseline."""

TASKS = ("train", "inference")

RANDOM_ITERATIONS = 100
"""Smallest number of iterations of a schedule with a random order and no barrier, except in the slow packet engine.

Without a barrier, the transfers of up to one iteration may still be unsent at the end of the measurement, and as many
at its start. Their difference is at most 1 % of the transfers of 100 iterations.
"""

GROUP = ("job", "model", "workers", "servers", "batch", "task", "rate_bps")
"""Columns that identify a job at a point of the grid; schedules are compared among rows that agree in them."""


@dataclass(frozen=True)
class Variant:
    """One run of a comparison.

    Attributes:
        name: name of the run.
        group: number of the point of the grid, within which schedules are compared.
        schedule: name of the schedule, such as `priority without barrier`.
        scenario: the scenario at this point, with this schedule.
    """

    name: str
    group: int
    schedule: str
    scenario: Scenario


class CompareResult(StudyRows):
    """Comparison of schedules for one scenario, or at each point of a grid.

    Attributes:
        rows: one dict per run and job, with the columns of `rows.csv`.
        results: the runs by name.
    """

    def __init__(self, variants: Sequence[Variant], results: Sequence[RunResult]) -> None:
        self.variants = list(variants)
        self.results = {variant.name: result for variant, result in zip(variants, results, strict=True)}
        self.rows = _rows(self.variants, self.results)
        first = next(iter(self.results.values())).summary
        self.summary: dict[str, Any] = {
            **head("compare", first["engine"]),
            "seed": first["seed"],
            **build(
                "compare",
                self.headline,
                [variant.scenario for variant in self.variants],
                self._candidates(),
            ).to_dict(),
            "rows": [_as_ms(row) for row in self.rows],
            "cost": total_cost(result.summary for result in self.results.values()),
        }

    def _advice(self, best: dict[str, Any], rows: Sequence[dict[str, Any]], baseline: str) -> tuple[str, list[str]]:
        """Return the advice for the model of `rows`, and a sentence if no runtime supports the schedule of `best`."""
        by, why_not = self._carrier(best)
        if by is not None:
            return f"use {best['schedule']}. ", []
        if not why_not:
            return "", []
        group = [row for row in rows if all(row[key] == best[key] for key in GROUP)]
        can = [row for row in words.settled(group) if self._carrier(row)[0] is not None]
        why = f"No tested runtime supports {best['schedule']}: {why_not}."
        next_best = max(can, key=lambda row: row["saves_percent"], default=None)
        if next_best is None or next_best["saves_percent"] < 100 * words.SAME:
            return f"keep {baseline}. ", [why]
        saves = words.percent(next_best["saves_percent"] / 100)
        return f"use {next_best['schedule']}, which saves {saves} over {baseline}. ", [why]

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        write_runs(self.results, folder)
        write_text(folder / "rows.csv", self.table.to_csv())
        write_summary(self.summary, folder)
        write_versions(folder)
        best = folder / "runs" / self.most_telling
        report.write_timeline(best).rename(folder / "timeline.pftrace")
        report.write_report(folder)

    @property
    def most_telling(self) -> str:
        """Name of the run with the largest saving over the baseline."""
        return str(max(words.settled(self.rows), key=lambda row: row["saves_percent"])["run"])

    def _candidates(self) -> list[Candidate]:
        """Return the rows as candidates of the answer, grouped by `GROUP`; the schedule `optimal` is a bound."""
        found = []
        for row in self.rows:
            by, why_not = self._carrier(row)
            name = words.group(row, [key for key in GROUP if len({one[key] for one in self.rows}) > 1])
            facts = self.results[row["run"]].summary["jobs"][row["job"]]
            found.append(
                Candidate(
                    row["schedule"],
                    row["iteration_time_us"] / 1e3,
                    feasibility(facts),
                    by,
                    why_not,
                    is_bound=row["order"] == words.BOUND,
                    group=f"{name}, {words.rate(row['rate_bps'])}",
                )
            )
        return found

    def _carrier(self, row: Mapping[str, Any]) -> tuple[str | None, str]:
        """Return the runtime that supports the schedule of a row, or `None` and the reason why no runtime does."""
        job = next(job for job in self.results[row["run"]].scenario.jobs if job.name == row["job"])
        if job.is_pulled:
            return None, ""
        system = row["schedule"].partition(",")[0]
        return runs_on(row["order"], row["barrier"], job.collective.kind, job.device.name, system)

    @property
    def headline(self) -> str:
        """Sentences with the best schedule of each model and what it saves."""
        baseline = self.variants[0].schedule
        sentences = []
        for model in dict.fromkeys(row["model"] for row in self.rows):
            rows = [row for row in self.rows if row["model"] == model]
            best = max(words.settled(rows), key=lambda row: row["saves_percent"])
            if best["saves_percent"] < 100 * words.SAME:
                if len({row["schedule"] for row in rows}) > 1:
                    sentences.append(f"{model}: keep {baseline}; no other schedule saves time.")
                sentences.append(_over_groups(model, rows, baseline))
                continue
            schedule = best["schedule"]
            same = [key for key in ("schedule", *GROUP) if key != "rate_bps"]
            points = [
                (float(row["rate_bps"]), 1.0, 1 - row["saves_percent"] / 100)
                for row in rows
                if all(row[key] == best[key] for key in same)
            ]
            who = words.group(best, [key for key in GROUP if len({row[key] for row in self.rows}) > 1])
            decision, why = self._advice(best, rows, baseline)
            saving = words.saving_headline(points, baseline, schedule, is_possible=not why)
            sentences += [f"{who}: {decision}{saving if decision else words.uncapitalised(saving)}", *why]
        return " ".join(sentences)


def _over_groups(model: str, rows: Sequence[dict[str, Any]], baseline: str) -> str:
    """Return a sentence on the iteration time with the baseline schedule at the points in `rows`, all of one model."""
    own = sorted((row for row in rows if row["schedule"] == baseline), key=lambda row: row["rate_bps"])
    varied = [key for key in GROUP if len({row[key] for row in own}) > 1]
    if varied and varied != ["rate_bps"]:
        ends = [find(own, key=lambda row: row["iteration_time_us"]) for find in (min, max)]
        least, most = (
            f"{words.milliseconds(row['iteration_time_us'] / 1e3)} for {words.group(row, varied)} at "
            f"{words.rate(row['rate_bps'])}"
            for row in ends
        )
        return f"With {baseline} an iteration takes from {least} to {most}."
    slowest, *faster = own
    times = f"{words.milliseconds(slowest['iteration_time_us'] / 1e3)} at {words.rate(slowest['rate_bps'])}"
    for row in faster:
        saved = 1 - row["iteration_time_us"] / slowest["iteration_time_us"]
        times += f", {words.percent(saved)} less at {words.rate(row['rate_bps'])}"
    waits = ", ".join(words.percent(1 - row["utilisation"]) for row in own)
    each = " respectively" if faster else ""
    return f"{model} with {baseline}: an iteration takes {times}; {waits} of it is waiting for the network{each}."


@with_lists
@within_limits
def compare(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    schedules: Sequence[Schedule] | None = None,
    models: Sequence[str] | None = None,
    workers: Sequence[int] | None = None,
    servers: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    rates: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> CompareResult:
    """Run a scenario with several schedules, at every point of a grid of models, workers, servers, batches and rates.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model,
            which trains on `cluster` or the defaults. A model is a preset's name, a profile, a list of layers, or a
            graph of ops (an `OpDag`, the dict of `op_dag`, or a trace that is an op DAG), which uses parameter servers.
        cluster: where a model is trained: the name of a cluster, as in `ethernet-25g/16`, a file or dict with a cluster
            only, or a scenario in which the model replaces the job's.
        schedules: the compared schedules; the first is the baseline. A schedule is a text in the syntax of
            `parse_schedule`: an order with options, as in `fifo+barrier` or `priority+chunk=1MB`; a system (`ddp`,
            `horovod`, `p3`, `bytescheduler`, `caramel`, `edf`, `optimal`); or an order file, as in `file:order.csv`. Or
            it is your own scheduler: an object with a method `ranks(dag)` that returns {op id: rank} for every transfer
            in `dag.recvs`, as in `order`, and whose name is its attribute `name` or its class. Default:
            `DEFAULT_SCHEDULES`, or `PULL_SCHEDULES` if workers pull from parameter servers before each iteration.
        models: presets or files. Default: the scenario's model.
        workers: numbers of workers. Default: the scenario's number.
        servers: numbers of parameter servers. Default: the scenario's number.
        batches: numbers of samples in a worker's mini-batch, for a model with operation counts. Default: the scenario's
            number.
        tasks: train or inference; only if workers pull from parameter servers. Default: the scenario's task.
        rates: link rates with their units, as in `10Gbps`. Default: the scenario's rate.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the comparison is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `device="A100"` or `seq=2048`.

    Raises:
        Interrupted: on Ctrl-C, with the comparison of the finished runs.
        ScenarioError: before any run, if a scenario of the grid is invalid, or the estimate exceeds the limits.
        ValueError: if a list is empty, has duplicates or does not apply to the scenario's jobs, a schedule cannot be
            parsed, or a scheduler does not rank all transfers.

    Example:
        >>> class Largest:
        ...     def ranks(self, dag):
        ...         return {op.id: -op.bytes for op in dag.ops if op.id in dag.recvs}
        >>> result = compare("resnet50", cluster="ethernet-10g/4", schedules=["fifo+barrier", "priority", Largest()])
        >>> min(result.rows, key=lambda row: row["iteration_time_us"])["schedule"]
        'priority without barrier'
    """
    base = trained(scenario, cluster, **keys)
    axes = Axes(models=models, workers=workers, servers=servers, batches=batches, tasks=tasks, rates=rates)
    variants = grid(base, schedules, axes)
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
    except Unfinished as stop:
        finished = [pair for pair in zip(variants, stop.results, strict=True) if pair[1] is not None]
        # Savings are relative to the baseline, so a run is included only if the baseline at its point has finished.
        first = variants[0].schedule
        groups = {variant.group for variant, _ in finished if variant.schedule == first}
        known = [(variant, result) for variant, result in finished if result is not None and variant.group in groups]
        if known:
            stop.attach(CompareResult([variant for variant, _ in known], [result for _, result in known]))
        raise
    return CompareResult(variants, results)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Lists of values that span the grid of points; `None` keeps the value of the scenario."""

    models: Sequence[str] | None = None
    workers: Sequence[int] | None = None
    servers: Sequence[int] | None = None
    batches: Sequence[int] | None = None
    tasks: Sequence[str] | None = None
    rates: Sequence[str] | None = None

    def points(self) -> list[dict[str, Any]]:
        """Return for each point of the grid the keys that differ from the scenario, as arguments of `altered`."""
        values = (self.models, self.workers, self.servers, self.batches, self.tasks, self.rates)
        keys = ("model", "workers", "servers", "batch", "task", "link_rate")
        points = product(*(one or (None,) for one in values))
        return [{k: v for k, v in zip(keys, point, strict=True) if v is not None} for point in points]

    def check(self, base: Scenario) -> None:
        """Raise a ValueError if a list is empty, has duplicates or does not apply to the jobs."""
        for name, values in vars(self).items():
            refuse_empty(name, values)
            twice = next((one for one in values or () if list(values).count(one) > 1), None)
            if twice is not None:
                raise ValueError(f"{name}: {twice} is given twice; delete one of them")
        for job in base.jobs:
            if self.servers is not None and job.collective.kind != "ps":
                raise ValueError(
                    f"servers: job {job.name} has none, it exchanges gradients by {job.collective.kind}; "
                    'write collective = { ps = { pull = "start" } }'
                )
            if self.batches is not None and self.models is None and job.compute.batch is None:
                raise ValueError(f"batches: {job.model} of job {job.name} has times of its own, for one mini-batch")
            if self.tasks is not None and not job.is_pulled:
                raise ValueError(
                    f"tasks: job {job.name} exchanges gradients, which inference does not; it is for "
                    'collective = { ps = { pull = "start" } }'
                )
        unknown = [task for task in self.tasks or () if task not in TASKS]
        if unknown:
            raise ValueError(f"tasks: there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")


def refuse_empty(name: str, values: Sequence[Any] | None) -> None:
    """Raise a ValueError if the argument `name` is an empty list."""
    if values is not None and not list(values):
        raise ValueError(f"{name} is empty; leave it out to keep the scenario's")


def grid(base: Scenario, schedules: Sequence[Schedule] | None, axes: Axes) -> list[Variant]:
    """Return the runs of a comparison, point by point, with all schedules at each point."""
    if schedules is None:
        schedules = PULL_SCHEDULES if all(job.is_pulled for job in base.jobs) else DEFAULT_SCHEDULES
    refuse_empty("schedules", schedules)
    refuse_parallel(base, "a comparison of schedules")
    axes.check(base)
    contenders = [contender(one) for one in schedules]
    variants = []
    for group, changes in enumerate(axes.points()):
        changed = altered(without_scale(base) if "model" in changes else base, **changes)
        variants += [_variant(changed, group, one, changes) for one in contenders]
    names = [variant.name for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} would be run twice; name every schedule and every value of a list once")
    return variants


def _variant(point: Scenario, group: int, contender: Contender, axes: Mapping[str, Any]) -> Variant:
    scenario, schedule = contender.on(point)
    is_pulled = all(job.is_pulled for job in point.jobs)
    if not is_pulled and scenario.engine != "packet" and scenario.duration_ps is None:
        owing = [job for job in scenario.jobs if job.draws_orders and not job.schedule.barrier]
        counts = {f"job.{job.name}.iterations": max(job.iterations or 0, RANDOM_ITERATIONS) for job in owing}
        scenario = scenario.set(counts) if counts else scenario
    job = scenario.jobs[0]
    parts = [job.model, f"{job.computing}w", *(f"{axes[key]}{key[0]}" for key in ("servers", "batch") if key in axes)]
    parts += [axes["task"]] if "task" in axes else []
    parts += [units.format_rate(scenario.link_rate_bps), schedule]
    name = run_name(parts)
    return Variant(name, group, schedule, scenario)


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
                    "workers": job.computing,
                    "servers": job.servers,
                    "batch": job.compute.batch or 0,
                    "task": job.task or TASKS[0],
                    "rate_bps": variant.scenario.link_rate_bps,
                    "schedule": variant.schedule,
                    "order": job.schedule.order,
                    "barrier": job.schedule.barrier,
                    "fusion_bytes": job.schedule.cap_bytes,
                    "chunk_bytes": job.schedule.chunk_bytes or 0,
                    "iteration_time_us": 1e3 * mean_ms,
                    "iteration_time_p95_us": 1e3 * figures["iteration_time_ms"]["p95"],
                    "compute_us": 1e3 * figures["compute_ms"],
                    **({"host_us": 1e3 * figures["host_ms"]} if "host_ms" in figures else {}),
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
    def in_ms(name: str, value: Any) -> tuple[str, Any]:
        return (f"{name.removesuffix('_us')}_ms", value / 1e3) if name.endswith("_us") else (name, value)

    return dict(in_ms(name, value) for name, value in row.items())
