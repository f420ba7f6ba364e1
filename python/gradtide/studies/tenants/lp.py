"""`gradtide tenants lp`: a linear program (LP) chooses start and priority band of each bucket of a job.

    runs in every band -> transfer time of each bucket in each band -> LP -> run with the LP's order and bands

The solution is compared with up to three policies: all buckets in the band of the background flows (`same`), all in
the lowest band (`low`), and priority order in the band of the background flows (`priority`). The iteration time of each
policy is predicted from the transfer times, and simulated together with the background flows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from gradtide import lp, words
from gradtide.answer.build import build
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, foresee, within_limits
from gradtide.scenario import Job, Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.channels import line
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import part_of, run_all, total_cost
from gradtide.studies.run_folder import write_study
from gradtide.studies.tenants.cases import Case, check_one_job, checked, head
from gradtide.studies.tenants.comparison import Comparison, hinted, sentence
from gradtide.studies.trained import Cluster, trained
from gradtide.units import PS_PER_MS

ORDERS = ("fifo", "priority", "tic", "tac", "file")
"""Supported orders of the scenario's schedule: those in which every iteration sends in the same sequence."""

FLOWS = ("small", "large")
"""Size classes of background flows whose completion times are columns of `rows.csv`."""

BUCKET_TIMES = ("ready", "start", "end", "needed", "slack", "margin")
PS_PER_US = 1e6


MOST_POLICIES = 4
"""Largest number of compared policies: `same`, `low`, `priority`, and the LP's solution."""


@dataclass(frozen=True)
class Policy:
    """A compared policy: `order` has bucket indices in send order; `bands` has a band index per bucket (0: highest)."""

    name: str
    order: tuple[int, ...]
    bands: tuple[int, ...]
    scenario: Scenario


class LpResult(StudyRows):
    """Bands and start times of buckets from a linear program, and the iteration times of this and of other policies.

    Attributes:
        rows: one dict per policy and seed, with the columns of `rows.csv`.
        found: the LP's solution: start times of the buckets in picoseconds, and their bands.
        results: the runs by case, whose side is the name of the policy.
    """

    def __init__(
        self,
        base: Scenario,
        seeds: Sequence[int],
        bands: Sequence[int],
        quantile: float | None,
        found: lp.StartAndBand,
        policies: Sequence[Policy],
        results: dict[Case, RunResult],
    ) -> None:
        self._base, self.seeds = base, list(seeds)
        self.found, self.results, self.policies = found, results, {policy.name: policy for policy in policies}
        self.rows = [self._row(policy, seed) for policy in policies for seed in seeds]
        self.summary: dict[str, Any] = {
            **head("lp", base, seeds, base.jobs[0].name),
            "headline": "",
            "bands": list(bands),
            "transfer_times": "mean" if quantile is None else f"quantile {quantile:g}",
            "lower_bound_ms": found.lower_bound / PS_PER_MS,
            "least_high_percent": 100 * found.least_share,
            "optimal": found.optimal,
            "buckets": [
                {
                    "layers": row["bucket"],
                    "bytes": row["bytes"],
                    **{f"{key}_ms": row[key] / PS_PER_MS for key in BUCKET_TIMES},
                    "band": bands[row["band"]],
                }
                for row in found.to_dicts()
            ],
            "policies": [self._policy(policy) for policy in policies],
            "cost": total_cost(result.summary for result in results.values()),
        }
        headline = f"{_headline(self.summary)} {self._verdict()}"
        self.summary |= build("tenants", headline, [one.scenario for one in results.values()]).to_dict()

    def write(self, folder: Path) -> None:
        """Write the result into `folder`, which is created if it is missing."""
        write_study(self, folder, runs={case.folder: result for case, result in self.results.items()})

    def _verdict(self) -> str:
        """Return the sentence about the job's cost and the gain of small flows in simulations of the LP's solution."""
        found = self._compared("lp")
        if not any(found.costs_percent or [1]) and not any(found.gains_percent or [1]):
            text = "Simulated, it changes nothing: neither the job's iterations nor when small flows finish."
            text = f"One run (seed {self.seeds[0]}): {text}" if len(self.seeds) == 1 else text
            return hinted(text, self._base, self.seeds)
        text = sentence("the solution", found.cost, found.gain, self.seeds, whose=found.whose)
        return hinted(text, self._base, self.seeds)

    def _row(self, policy: Policy, seed: int) -> dict[str, Any]:
        result = self.results[Case(seed, policy.name)]
        flows = next(iter(result.summary["traffic"].values()))
        return {
            "policy": policy.name,
            "seed": seed,
            "high_percent": 100 * lp.shares(self.found.buckets, policy.bands)[0],
            "predicted_ms": self._predicted(policy),
            "simulated_ms": result.job["iteration_time_ms"]["mean"],
            **{f"{size}_{figure}": flows[size][figure] for size in FLOWS for figure in ("mean_fct_ms", "p99_fct_ms")},
        }

    def _predicted(self, policy: Policy) -> float:
        time_ps = lp.evaluate(self.found.buckets, self.found.compute, policy.order, policy.bands)
        return time_ps / PS_PER_MS

    def _policy(self, policy: Policy) -> dict[str, Any]:
        """Return the policy's means over the seeds, and its changes relative to the policy `same`, paired by seed."""
        mine = [row for row in self.rows if row["policy"] == policy.name]

        def mean(key: str) -> float | None:
            values = [row[key] for row in mine]
            return None if any(value is None for value in values) else float(np.mean(values))

        numbers = {key: mean(key) for key in mine[0] if key not in ("policy", "seed")}
        predicted, simulated = self._predicted(policy), numbers["simulated_ms"] or 0.0
        found = self._compared(policy.name)
        return {
            "policy": policy.name,
            **numbers,
            "error_percent": 100 * (simulated / predicted - 1),
            "iteration_change_percent": found.cost.percent,
            **found.cost.columns("iteration_change"),
            "small_mean_saves_percent": found.gain.percent,
            **found.gain.columns("small_mean_saves"),
        }

    def _compared(self, policy: str) -> Comparison:
        (job,) = self._base.jobs
        return Comparison(self._base, tuple(self.seeds), self.results, (job.name,), other=policy)


@with_lists
@within_limits
def plan_bands(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    seeds: Sequence[int] = (0,),
    bands: Sequence[int] | None = None,
    quantile: float | None = None,
    give: float = 0.0,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> LpResult:
    """Choose the start time and the band of each bucket of a job by linear programming, and simulate the result.

    Args:
        scenario: a scenario with one job whose model has layers, background flows, and the packet engine.
        cluster: as in `run`.
        seeds: seeds of the background flows. For each seed, all runs have the same flows.
        bands: allowed bands of a bucket, the highest first. Default: the band of the background flows, and the lowest
            band.
        quantile: quantile, such as 0.9, of the measured transfer times of a bucket in a band that the LP uses as the
            transfer time. Default: the mean.
        give: share by which the iteration time may exceed its minimum, so that fewer bytes are sent in high bands.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C; there is no partial result.
        ScenarioError: if the scenario is invalid, or the estimate exceeds the limits.
        SolverMissingError: if the LP solver HiGHS is not installed.
        ValueError: if the study does not support the scenario, or an argument is invalid.
    """
    base = trained(scenario, cluster, **keys)
    seeds = checked(base, seeds)
    check_one_job(base, "the linear programme plans one channel, without the send times of other jobs")
    job = base.jobs[0]
    _check(job)
    if quantile is not None and not 0 <= quantile <= 1:
        raise ValueError(f"quantile is {quantile}; write a share from 0 to 1, as in 0.9")
    lp.check_give(give)
    lp.require_solver()
    of_flows = int(base.traffic[0].band[0])
    same, low = (int((base.replace(priority=band).jobs[0].bands or (0,))[0]) for band in (of_flows, "low"))
    bands = [same, low] if bands is None else list(bands)
    if len(bands) < 2 or bands != sorted(set(bands)):
        raise ValueError(f"bands are {bands}; write at least two, the highest first: smaller numbers go first")
    base = base.replace(timeline=0)
    measured = {(seed, band): base.replace(seed=seed, priority=band) for seed in seeds for band in bands}
    compared = [(base.replace(seed=seed), max(0, MOST_POLICIES - len(bands))) for seed in seeds]
    foresee(lambda: [*((one, 1) for one in measured.values()), *compared], "identical policies are simulated only once")
    first = run_all(list(measured.values()), jobs, part_of(progress, 0, 0.6), keep, limits)
    runs = dict(zip(measured, first, strict=True))
    problem = buckets_of(job, {band: [runs[seed, band] for seed in seeds] for band in bands}, quantile)
    found = lp.start_and_band(problem, job.compute_ps, give=give)
    policies = _policies(base, found, bands, runs[seeds[0], bands[0]])
    wanted = {(policy, seed): policies[policy].scenario.replace(seed=seed) for policy in policies for seed in seeds}
    known = {scenario: runs[place] for place, scenario in measured.items()}
    missing = [one for one in dict.fromkeys(wanted.values()) if one not in known]
    try:
        second = run_all(missing, jobs, part_of(progress, 0.6, 1), keep, limits)
    except Unfinished as stop:
        stop.results = [*first, *stop.results]
        raise
    known.update(zip(missing, second, strict=True))
    results = {Case(seed, policy): known[one] for (policy, seed), one in wanted.items()}
    return LpResult(base, seeds, bands, quantile, found, list(policies.values()), results)


def buckets_of(job: Job, runs: dict[int, list[RunResult]], quantile: float | None = None) -> list[lp.TimedBucket]:
    """Return a job's buckets with their windows [ready, needed] and their transfer times in each band, in picoseconds.

    A bucket is ready when its gradients exist, and needed when the next forward pass uses them. Both times are measured
    from the start of the backward pass, for a worker that never waits. The transfer time of d bytes in a band is
    a + b·d, plus the schedule's `overhead` and `sync`. The line is fitted to the times from first to last byte of all
    transfers in the band, because a single bucket has too few transfers. With `quantile`, it is scaled by this quantile
    of the ratios of measured to fitted time. A time that is shorter than in a higher band is raised to that time.

    `runs` contains the runs with all buckets in one band, by band, the highest first.

    Raises:
        ValueError: if the runs in a band have no measured iteration.
    """
    fits = [_fitted(band, results, quantile) for band, results in runs.items()]
    first = _first_iteration(next(iter(runs.values()))[0])
    backward_ps = sum(row.backward_ps for row in job.layers)
    found = []
    for row in first:
        low, high = row["first_layer"], row["last_layer"]
        before = sum(layer.update_ps + layer.forward_ps for layer in job.layers[:low])
        times = accumulate((round(fixed + slope * row["bytes"]) for fixed, slope in fits), max)
        found.append(
            lp.TimedBucket(
                name=f"{low}–{high}" if low < high else str(low),
                bytes=row["bytes"],
                ready=sum(layer.backward_ps for layer in job.layers[low:]),
                needed=backward_ps + (0 if job.schedule.barrier else before),
                times=tuple(time + job.schedule.overhead_ps + job.schedule.sync_ps for time in times),
            )
        )
    return found


def _fitted(band: int, results: Sequence[RunResult], quantile: float | None) -> tuple[float, float]:
    """Return a (ps) and b (ps per byte) of the fit a + b·d to the transfer times in `results`, the runs of a band."""
    tables = [result.transfers.to_numpy() for result in results]
    sizes = np.concatenate([table["bytes"] for table in tables])
    took_ps = np.concatenate([table["end_us"] - table["start_us"] for table in tables]) * PS_PER_US
    if not len(sizes):
        raise ValueError(f"the job ends no iteration in band {band}: give the scenario a longer duration")
    fixed, slope = line(sizes.tolist(), took_ps.tolist(), (1.0 / sizes.astype(float) ** 2).tolist())
    if quantile is None:
        return fixed, slope
    factor = float(np.quantile(took_ps / (fixed + slope * sizes), quantile))
    return factor * fixed, factor * slope


def _first_iteration(result: RunResult) -> list[dict[str, Any]]:
    """Return the transfers of the first measured iteration, in the order in which their buckets become ready."""
    rows = result.transfers.to_dicts()
    return sorted((row for row in rows if row["iteration"] == rows[0]["iteration"]), key=lambda row: row["bucket"])


def in_bands(scenario: Scenario, order: Sequence[Sequence[int]], bands: Sequence[int], in_turn: bool) -> Scenario:
    """Return a single-job scenario that sends buckets in a given order, each in its own band.

    `order` has the layer indices of each bucket, in send order. With `in_turn`, the order is strict: the queue idles
    until the next bucket in the order is ready.
    """
    job = scenario.jobs[0]
    of_layer = {layer: band for layers, band in zip(order, bands, strict=True) for layer in layers}
    ranking = [job.layers[layer].name for layers in order for layer in layers if job.layers[layer].parameter_bytes]
    lowest = max(bands)
    priority = [of_layer.get(layer, lowest) for layer in range(len(job.layers))]
    how = {"order": "file", "ranking": ranking, "in_turn": in_turn or None, "priority": priority}
    return scenario.replace(order_file=None, queues=None, **how)


def figures(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures that `--fail-if` can test: `lp_simulated_ms`, `low_small_mean_fct_ms` and others."""
    named: dict[str, float | None] = {"lower_bound_ms": summary["lower_bound_ms"]}
    for row in summary["policies"]:
        named.update({f"{row['policy']}_{key}": value for key, value in row.items() if key != "policy"})
    return named


def _check(job: Job) -> None:
    for is_wrong, what, fix in (
        (job.is_pulled or job.graph is not None, "a model of layers, aggregated in buckets", "leave the graph out"),
        (
            job.schedule.order not in ORDERS,
            "an order that is the same in every iteration",
            f"write {', '.join(ORDERS)}",
        ),
        (job.schedule.chunk_bytes is not None, "buckets that are sent whole", "leave `chunk` out"),
        (job.schedule.credit != 1, "one bucket at a time", "leave `credit` out"),
        (job.workers < 2 or not job.parameter_bytes, "a job that sends something", "give it workers and parameters"),
    ):
        if is_wrong:
            raise ValueError(f"a linear programme takes {what}; in job.{job.name}, {fix}")


def _policies(base: Scenario, found: lp.StartAndBand, bands: Sequence[int], run: RunResult) -> dict[str, Policy]:
    """Return the compared policies by name. `run` has all buckets in the highest band; their order is read from it."""
    buckets, job = found.buckets, base.jobs[0]
    rows = _first_iteration(run)
    layers = [range(row["first_layer"], row["last_layer"] + 1) for row in rows]
    own, lowest_layer = [row["rank"] for row in rows], [row["first_layer"] for row in rows]
    high, low = (0,) * len(buckets), (len(bands) - 1,) * len(buckets)
    found_bands = [bands[found.bands[index]] for index in found.order]

    def listed(bands: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
        if job.schedule.in_turn:
            return tuple(sorted(range(len(ranks)), key=lambda index: ranks[index]))
        return lp.by_rank(buckets, bands, ranks)

    # The LP's order is strict (the queue idles for the next bucket) only if the iteration time would otherwise be
    # longer. Else the queue is work-conserving, which adapts to actual transfer times that differ from the estimates.
    busy = lp.by_rank(buckets, found.bands, [found.order.index(index) for index in range(len(buckets))])
    rests = lp.evaluate(buckets, found.compute, busy, found.bands) > found.iteration_time * (1 + lp.SAME)
    sent = found.order if rests else busy
    applied = in_bands(base, [layers[index] for index in found.order], found_bands, rests)
    policies = [
        Policy("same", listed(high, own), high, base.replace(priority=bands[0])),
        Policy("low", listed(low, own), low, base.replace(priority=bands[-1])),
        Policy("lp", sent, found.bands, applied),
    ]
    if job.schedule.order != "priority" or job.schedule.queues is not None:
        changes = {"order": "priority", "queues": None, "order_file": None, "ranking": None, "in_turn": None}
        scenario = base.replace(priority=bands[0], **changes)
        policies.insert(2, Policy("priority", lp.by_rank(buckets, high, lowest_layer), high, scenario))
    return {policy.name: policy for policy in policies}


def _headline(summary: dict[str, Any]) -> str:
    rows = {row["policy"]: row for row in summary["policies"]}
    lowered = sum(bucket["band"] != summary["bands"][0] for bucket in summary["buckets"])
    count, same, found = len(summary["buckets"]), rows["same"], rows["lp"]
    time = words.milliseconds(found["predicted_ms"])
    faster = found["predicted_ms"] < same["predicted_ms"] * (1 - words.SAME)
    slower = found["predicted_ms"] > same["predicted_ms"] * (1 + words.SAME)
    changed = f"falls from {words.milliseconds(same['predicted_ms'])} to {time}" if faster else f"stays {time}"
    if slower:
        changed = f"grows from {words.milliseconds(same['predicted_ms'])} to {time}"
    share = words.percent(1 - found["high_percent"] / 100)
    return (
        f"{lowered} of {words.buckets(count)}, {share} of the bytes, can leave the high band. The predicted iteration "
        f"time {changed}. The simulated one is {words.milliseconds(found['simulated_ms'])}; with all buckets in the "
        f"high band it is {words.milliseconds(same['simulated_ms'])}, in the low band "
        f"{words.milliseconds(rows['low']['simulated_ms'])}."
    )
