"""Converts the core's results of a run into the entries of `summary.json`, such as picoseconds into milliseconds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtide import _core, units
from gradtide.units import PS_PER_MS

if TYPE_CHECKING:
    from gradtide.scenario import Job, Scenario
    from gradtide.scenario.job import ParallelModel

PS_PER_S = 1e12


def run_summary(scenario: "Scenario", core: dict[str, Any], cost: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run from the core's results. The caller fills in `headline` and `traffic`."""
    known = {job.name: job for job in scenario.jobs}
    jobs = {job["name"]: _job_summary(job, known[job["name"]]) for job in core["jobs"]}
    if len(jobs) > 1:
        for job in core["jobs"]:
            jobs[job["name"]]["unmeasured_iterations"] = job["unmeasured"]
    summary = {
        "schema": "gradtide.run/1",
        "version": _core.__version__,
        "engine": scenario.engine,
        "seed": scenario.seed,
        "scenario_sha256": scenario.sha256,
        "headline": "",
        "jobs": jobs,
        "traffic": {},
        "links": {
            "max_utilisation": core["max_link_utilisation"],
            "drops": core["drops"] + core["host_drops"],
            "switch_drops": core["drops"],
            "host_drops": core["host_drops"],
            "ce_marks": core["ce_marks"],
            # None on the fluid engine, which has neither packet queues nor timeouts.
            "max_queue_packets": core["max_queue_packets"],
            "timeouts": core["timeouts"],
        },
        "simulated_ms": core["end_ps"] / PS_PER_MS,
        "cost": {"events": core["event_count"], "packet_hops": core["packet_hops"], **cost},
    }
    if scenario.accuracy_ppm is not None:
        summary["accuracy"] = units.format_accuracy(scenario.accuracy_ppm)
    if core["probe_every_ps"] is not None:
        # The actual sampling interval, because a probe reduces its sampling rate in a long run.
        summary["probe_every_ms"] = core["probe_every_ps"] / PS_PER_MS
    if scenario.warnings:
        summary["warnings"] = list(scenario.warnings)
    return summary


def _job_summary(core: dict[str, Any], job: "Job") -> dict[str, Any]:
    times_ms = np.array(core["iteration_time_ps"]) / PS_PER_MS
    mean_ms = float(times_ms.mean())
    compute_ms, comm_ms = core["compute_ps"] / PS_PER_MS, core["comm_ps"] / PS_PER_MS
    host_ms = core["host_ps"] / PS_PER_MS
    # A transfer can be hidden by compute or by host time.
    busy_ms = compute_ms + host_ms
    shorter = min(busy_ms, comm_ms)
    sent = core["bytes_per_worker"]
    # Iteration time of a single worker, which never waits for others. For a graph of ops, the core reports it.
    alone_ms = busy_ms if job.graph is not None else job.compute_ps / PS_PER_MS
    asynchrony = None if core["asynchrony"] is None else _asynchrony(core["asynchrony"])
    # Asynchronous workers have individual rates, so the time per iteration is the mean over one iteration per worker.
    each_ms = mean_ms if asynchrony is None else 1e3 * core["worker_count"] / asynchrony["iterations_per_s"]
    return {
        "model": job.model,
        **({} if job.task is None else {"task": job.task}),
        "workers": core["worker_count"],
        **({"servers": job.servers} if job.servers else {}),
        "iterations": core["iteration_count"],
        "iteration_time_ms": {
            "mean": mean_ms,
            "p50": float(np.median(times_ms)),
            "p95": float(np.percentile(times_ms, 95)),
            "min": float(times_ms.min()),
            "max": float(times_ms.max()),
            "all": times_ms.tolist(),
        },
        "compute_ms": compute_ms,
        **({"host_ms": host_ms} if host_ms else {}),
        "comm_ms": comm_ms,
        "rho": comm_ms / compute_ms if compute_ms else None,
        "alpha": (busy_ms + comm_ms - mean_ms) / shorter if shorter else None,
        "utilisation": compute_ms / mean_ms,
        "alone_ms": alone_ms,
        "speed_up": core["worker_count"] * alone_ms / each_ms,
        "scaling_efficiency": alone_ms / each_ms,
        "samples_per_s": None
        if job.compute.batch is None
        else 1e3 * core["worker_count"] * job.compute.batch / each_ms,
        **({} if job.compute.batch is None else {"device": job.device.name, "batch": job.compute.batch}),
        "computed_on": job.device.described,
        "lower_bound_ms": core["lower_bound_ps"] / PS_PER_MS,
        "straggler_percent": core["straggler_percent"],
        **({} if core["slowest_worker"] is None else {"slowest_worker": core["slowest_worker"]}),
        "slack_ms": _spread_ms(core["slack_ps"]),
        "margin_ms": _spread_ms(core["margin_ps"]),
        "waterfall_ms": {
            "compute": compute_ms,
            **({"host": host_ms} if host_ms else {}),
            "slowdown": core["slowdown_ps"] / PS_PER_MS,
            "exposed": core["exposed_ps"] / PS_PER_MS,
            "barrier": core["barrier_ps"] / PS_PER_MS,
        },
        "buckets": core["bucket_count"],
        "parameter_bytes": core["parameter_bytes"],
        "bytes_per_worker": int(sent) if float(sent).is_integer() else sent,
        **({} if asynchrony is None else {"asynchrony": asynchrony}),
        **({"parallel": _parallel(core["step"], job, mean_ms)} if job.is_parallel else {}),
    }


def _parallel(core: dict[str, Any], job: "Job", mean_ms: float) -> dict[str, Any]:
    """Return the table `parallel` of a parallel job. A recorded step has no mesh, so its `mesh` is None."""
    groups = {
        group["name"]: {
            "ranks": group["ranks"],
            "ranks_per_node": group["per_node"],
            "transfers": group["transfer_count"],
            "bytes_per_rank": group["bytes_per_rank"],
            "busy_ms": group["busy_ps"] / PS_PER_MS,
            "exposed_ms": group["exposed_ps"] / PS_PER_MS,
            "slack_ms": _spread_ms(group["slack_ps"]),
        }
        for group in core["groups"]
    }
    ranks = len(job.hosts)
    mesh = {"mesh": None, "ranks": ranks} if job.parallel_model is None else _of_mesh(job.parallel_model, mean_ms)
    return {
        **mesh,
        "groups": groups,
        "waits_for_stages_ms": core["others_ps"] / PS_PER_MS,
        "critical_path_ms": {name: time_ps / PS_PER_MS for name, time_ps in core["critical_ps"]},
        "classes": [
            {
                "ranks": one["ranks"],
                "compute_ms": one["compute_ps"] / PS_PER_MS,
                **({"host_ms": one["host_ps"] / PS_PER_MS} if one["host_ps"] else {}),
                "waits_ms": one["exposed_ps"] / PS_PER_MS,
            }
            for one in core["classes"]
        ],
    }


def _of_mesh(parallel_model: "ParallelModel", mean_ms: float) -> dict[str, Any]:
    described = parallel_model.described
    peak = parallel_model.accelerator.peaks[parallel_model.training.precision]
    return {
        "mesh": parallel_model.costs.mesh.sizes,
        "ranks": described.ranks,
        "device": parallel_model.accelerator.name,
        "precision": parallel_model.training.precision,
        "micro_batch": parallel_model.training.micro_batch,
        "recompute": parallel_model.training.recompute,
        "seq": parallel_model.training.seq,
        "times": None if parallel_model.own is None else parallel_model.own.source,
        "stated_efficiency": parallel_model.accelerator.stated_efficiency(parallel_model.training.precision),
        "micro_batches": parallel_model.layout.micro_batches,
        "global_batch": parallel_model.global_batch,
        "tokens": described.tokens,
        "tokens_per_s_per_gpu": described.tokens_per_s(mean_ms / 1e3),
        "mfu": described.utilisation(mean_ms / 1e3, peak),
        "memory": {**asdict(described.memory), "total": described.memory.total, **parallel_model.feasibility},
    }


def _asynchrony(core: dict[str, Any]) -> dict[str, Any]:
    """Return rates, waits and staleness of asynchronous workers: of all workers, and by worker number."""
    workers = {
        str(number): {
            "iterations": worker["iteration_count"],
            "iterations_per_s": PS_PER_S / worker["time_ps"],
            "iteration_time_ms": worker["time_ps"] / PS_PER_MS,
            "bound_wait_ms": worker["bound_wait_ps"] / PS_PER_MS,
            "staleness_iterations": _mean_and_max(worker["staleness_iterations"]),
            "staleness_updates": _mean_and_max(worker["staleness_updates"]),
        }
        for number, worker in enumerate(core["workers"])
    }
    counts = [worker["iteration_count"] for worker in core["workers"]]

    def all_of(name: str) -> dict[str, Any] | None:
        parts = [worker[name] for worker in core["workers"]]
        if parts[0] is None:
            return None
        mean = sum(count * mean for count, (mean, _) in zip(counts, parts, strict=True)) / sum(counts)
        return _mean_and_max((mean, max(most for _, most in parts)))

    return {
        "bound": core["bound"],
        "iterations_per_s": sum(worker["iterations_per_s"] for worker in workers.values()),
        "bound_wait_percent": 100
        * sum(count * worker["bound_wait_ps"] for count, worker in zip(counts, core["workers"], strict=True))
        / sum(count * worker["time_ps"] for count, worker in zip(counts, core["workers"], strict=True)),
        "staleness_iterations": all_of("staleness_iterations"),
        "staleness_updates": all_of("staleness_updates"),
        "workers": workers,
    }


def _mean_and_max(figures: Sequence[float] | None) -> dict[str, float] | None:
    return None if figures is None else {"mean": figures[0], "max": figures[1]}


def _spread_ms(spread_ps: list[float] | None) -> dict[str, float | None]:
    low, middle, high = (value / PS_PER_MS for value in spread_ps) if spread_ps else (None, None, None)
    return {"min": low, "p50": middle, "max": high}
