"""The result of a run: its tables and figures, its answer, and its folder."""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradtide import _core, fct, words
from gradtide.answer import Answer, Candidate, Premise
from gradtide.answer.build import build
from gradtide.answer.memory import feasibility
from gradtide.answer.runtimes import runs_on
from gradtide.marking import check_k, thresholds
from gradtide.results import Series, Table
from gradtide.scenario import Scenario
from gradtide.studies import run_folder, what_ifs
from gradtide.studies.bursts import bursts_of_run, in_order
from gradtide.summary import run_summary

Flow = tuple[str, int, int, int]
"""A background flow: tenant, index of the sending host, index of the receiving host, bytes."""


class RunResult:
    """Result of simulating a scenario once.

    Attributes:
        scenario: the scenario of the run.
        output: output of the core, from which all other attributes are derived.
        summary: the figures of `summary.json`, including the measured cost.
        iterations: one row per measured iteration of each job, with the times of its slowest worker.
        workers: one row per worker and measured iteration of each job whose workers differ or are asynchronous.
        transfers: one row per bucket of each measured iteration.
        operations: one row per operation of the first measured iterations.
        links: one row per link.
        flows: one row per background flow that started.
        queues: one row per link and sample if `run.probe` is set; otherwise empty.
        cwnd: one row per connection and sample if `run.probe.cwnd` is set; otherwise empty.
    """

    def __init__(self, scenario: Scenario, output: _core.RunOutput, cost: dict[str, Any]) -> None:
        self.scenario = scenario
        self.output = output
        self.iterations = Table(output.iterations)
        self.workers = Table(output.workers)
        self.transfers = Table(output.transfers)
        self.operations = Table(output.operations)
        self.links = Table(output.links)
        self.flows = Table(output.flows)
        self.queues = Table(output.queues)
        self.cwnd = Table(output.cwnd)
        self.summary = run_summary(scenario, json.loads(output.summary_json), cost)
        self.summary["traffic"] = self.flow_classes()
        self.summary["headline"] = words.run_headline(self.summary)

    def flow_classes(
        self,
        classes: fct.Classes = fct.DEFAULT,
        alone_ps: Mapping[Flow, int] | None = None,
        *,
        between_ps: tuple[int, int | None] = (0, None),
    ) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the completion times of background flows by tenant and size class.

        Args:
            classes: payload of the largest small flow and of the smallest large flow.
            alone_ps: completion time of each flow on an idle network, in picoseconds. Default: no slowdowns.
            between_ps: half-open interval of start times in picoseconds; only flows that start within it are counted.
                Its end may be `None`.
        """
        if not self.scenario.traffic:
            return {}
        own_ps = None
        if alone_ps is not None:
            own_ps = np.array([alone_ps.get(flow, math.nan) for flow in self._flow_keys()], dtype=np.float64)
        window = fct.Window(max(self.scenario.warmup_ps, between_ps[0]), self.scenario.cooldown_ps, between_ps[1])
        tenants = [tenant.name for tenant in self.scenario.traffic]
        return fct.by_tenant(tenants, self.flows, window, classes=classes, alone_ps=own_ps)

    @property
    def jobs_ran_ps(self) -> tuple[int, int | None]:
        """(start of the last job, end of all iterations) in picoseconds; the end is `None` if not all have ended."""
        jobs = self.scenario.jobs
        since_ps = max((job.start_ps for job in jobs), default=0)
        if not jobs or any(job.iterations != self.summary["jobs"][job.name]["iterations"] for job in jobs):
            return since_ps, None
        return since_ps, round(1e6 * float((self.iterations["start_us"] + self.iterations["time_us"]).max()))

    def distinct_flows(self) -> set[Flow]:
        """Return the distinct completed background flows."""
        ended = ~np.isnan(self.flows["fct_us"])
        return {flow for flow, has_ended in zip(self._flow_keys(), ended.tolist(), strict=True) if has_ended}

    def _flow_keys(self) -> list[Flow]:
        return list(zip(*(self.flows[name].tolist() for name in ("traffic", "src", "dst", "bytes")), strict=True))

    @property
    def job(self) -> dict[str, Any]:
        """Figures of the first job."""
        first: dict[str, Any] = next(iter(self.summary["jobs"].values()))
        return first

    @property
    def iteration_time(self) -> float:
        """Mean iteration time of the first job, in seconds."""
        return float(self.job["iteration_time_ms"]["mean"]) / 1e3

    @cached_property
    def bandwidth(self) -> Table:
        """Iteration times of the jobs at other link rates, by order and barrier. They are simulated on first access."""
        return what_ifs.bandwidth(self.scenario)

    @cached_property
    def bursts(self) -> Table:
        """One row per burst, with the queue that it met if `run.probe` samples the slowest link of its path."""
        if not any(tenant.idle_ps is not None for tenant in self.scenario.traffic):
            return in_order([])
        return bursts_of_run(self.scenario, self.flows, self.queues)

    @property
    def slack(self) -> Series:
        """Network slack (needed - ready) of every bucket of every measured iteration, in seconds (Gao 2020, 3.1)."""
        return Series("slack_s", self.transfers["slack_us"] / 1e6)

    @property
    def margin(self) -> Series:
        """Slack that remains when a bucket has arrived, in seconds; negative if compute waited for the bucket."""
        return Series("margin_s", self.transfers["margin_us"] / 1e6)

    def save(self, path: str | Path) -> Path:
        """Write the run folder `path` atomically, by rename.

        Raises:
            FolderError: if `path` exists and is not a folder of results.
        """
        return run_folder.save(self, Path(path))

    def thresholds(self, k: float = 0.25) -> list[dict[str, Any]]:
        """Return the ECN marking threshold of each link, RTT · C / (N · MTU), estimated from sampled queues.

        RTT is the round-trip time without queues, C the rate of the link, and N its number of long flows. A flow is
        long if it has at least as much left to send as it has in flight. A link with a queue is full, so its long flows
        then have RTT · C / MTU packets in flight besides the queued packets. The estimate is the packets in flight less
        the queued packets. It assumes that all queued packets belong to long flows, and that a flow queues on a single
        link of its route. Values are medians over the samples in which the queue has at least half its mean length.
        Links at which long flows queue in less than a tenth of the samples are omitted.

        Args:
            k: threshold that a burst announces, as a fraction of the threshold without announcements: above 0 and at
                most 1.

        Returns:
            One dict per link: `link`, `long_flows` (N), `round_trip_packets` (RTT · C / MTU), `queue_packets`,
            `policy_packets` (RTT · C / (N · MTU)), `threshold_packets` (`policy_packets` rounded to the next larger
            multiple of 5) and `announced_packets` (k times the threshold, as a multiple of 5 from 5 to 75).

        Raises:
            ValueError: if no queue was sampled (no `run.probe`, or no queues), or `k` is out of range.

        Source:
            Kang et al. (2021), equations 1 and 2, after Wu et al. (2012), *Tuning ECN for Data Center Networks*.
        """
        check_k(k)
        if not len(self.queues):
            raise ValueError('no queue was sampled: write run.engine = "packet" and run.probe = { every = "100us" }')
        columns = self.queues.to_numpy()
        segment_bytes = self.scenario.segment_bytes
        rows: list[dict[str, Any]] = []
        for link in dict.fromkeys(columns["link"].tolist()):
            crossed = (columns["link"] == link) & (columns["long_flows"] > 0)
            waits = crossed & (columns["queue_packets"] > 1)
            if waits.sum() <= crossed.sum() / 10:
                continue
            full = waits & (columns["queue_packets"] >= columns["queue_packets"][waits].mean() / 2)
            flows, queue = float(np.median(columns["long_flows"][full])), columns["queue_packets"][full]
            held = max(0.0, float(np.median(columns["long_flight_bytes"][full] / segment_bytes - queue)))
            row = thresholds(held, flows, k)
            rows.append({"link": link, **row, "queue_packets": float(np.median(queue))})
        return rows

    def report(self, path: str | Path) -> Path:
        """Write the report, a single HTML file that needs no network."""
        return run_folder.write_part(self, Path(path), "report.html")

    def timeline(self, path: str | Path) -> Path:
        """Write the timeline for Perfetto (ui.perfetto.dev)."""
        return run_folder.write_part(self, Path(path), "timeline.pftrace")

    @cached_property
    def answer(self) -> Answer:
        """The answer of `gradtide run`: headline, premises, and the jobs as candidates."""
        more = _premises_of_losses(self.summary["links"]["timeouts"])
        return build("run", self.summary["headline"], self.scenario, _candidates(self), more=more)

    def __repr__(self) -> str:
        return f"<gradtide.RunResult {self.summary['headline']}>"

    def _repr_html_(self) -> str:
        return words.html_table(*words.run_rows(self.summary)) + words.answer_html(self.answer.to_dict())


def _candidates(result: RunResult) -> list[Candidate]:
    """Return the jobs as candidates of the answer, with feasibility and the runtime that supports each."""
    found = []
    for job in result.scenario.jobs:
        facts = result.summary["jobs"][job.name]
        by, why = None, ""
        if not job.is_parallel and not job.is_pulled and job.workers > 1:
            by, why = runs_on(job.schedule.order, job.schedule.barrier, job.collective.kind, job.device.name)
        time_ms = facts["iteration_time_ms"]["mean"]
        found.append(Candidate(job.name, time_ms, feasibility(facts), by, why, group=job.name))
    return found


def _premises_of_losses(timeouts: int | None) -> list[Premise]:
    """Return a premise if timeouts occurred: most real hosts use RACK-TLP, which would avoid some of them."""
    if not timeouts:
        return []
    count = "1 timeout" if timeouts == 1 else f"{timeouts:,} timeouts"
    return [Premise("loss recovery", f"without RACK-TLP ({count})", False)]
