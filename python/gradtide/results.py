"""The results of a run: tables and summary."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradtide import _core, fct, words
from gradtide.summary import run_summary

if TYPE_CHECKING:
    from gradtide.answer import Answer, Candidate, Premise
    from gradtide.scenario import Scenario

Flow = tuple[str, int, int, int]
"""A background flow: tenant, sender, receiver, bytes."""


class Table:
    """Named columns of one length. polars, pyarrow and pandas read it directly (Arrow PyCapsule interface).

    Times are float64 microseconds, with the unit in the column's name.
    """

    def __init__(self, core: "_core.Table") -> None:
        self._core = core

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> "Table":
        """Make a table from columns of one length: str, bool, int, or float and None."""
        return cls(_core.Table.from_columns(list(columns.items())))

    @classmethod
    def of_dicts(cls, rows: Sequence[Mapping[str, Any]]) -> "Table":
        """Make a table from at least one row; all have the same keys."""
        return cls.of({name: [row[name] for row in rows] for name in rows[0]})

    @property
    def columns(self) -> list[str]:
        """Column names, each with its unit last."""
        return self._core.columns

    def __len__(self) -> int:
        return len(self._core)

    def __getitem__(self, column: str) -> NDArray[Any]:
        return np.asarray(self._core.column(column))

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return every column as an array of shape (rows,); absent numbers are NaN."""
        return {name: self[name] for name in self.columns}

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row; absent numbers are None."""
        lists = [self[name].tolist() for name in self.columns]
        return [
            {name: _absent(value) for name, value in zip(self.columns, row, strict=True)}
            for row in zip(*lists, strict=True)
        ]

    def to_csv(self) -> str:
        """Return the table as CSV with a header row; times with all six decimals of a microsecond."""
        return self._core.to_csv()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._core.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<gradtide.Table {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return words.html_table(self.columns, [list(row.values()) for row in self.to_dicts()[:20]], len(self))


def numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a row: numbers and missing numbers, without texts and booleans."""
    return {
        name: value
        for name, value in row.items()
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    }


def _absent(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


class Series:
    """One column with its unit."""

    def __init__(self, name: str, values: NDArray[Any]) -> None:
        self.name = name
        self._values = values

    def to_numpy(self) -> NDArray[Any]:
        """Return the values, shape (length,)."""
        return self._values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # numpy < 2 does not pass `copy`, and its `array` does not accept None.
        return np.asarray(self._values, dtype=dtype) if copy is None else np.array(self._values, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<gradtide.Series {self.name}: {len(self)} values>"


class StudyRows:
    """What every study shows of itself: its rows, as polars, pyarrow, pandas and numpy read them.

    Attributes:
        rows: one dict per row, all with the same keys; at least one.
        summary: the figures of `summary.json`.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def table(self) -> Table:
        """The rows as a table."""
        return Table.of_dicts(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row."""
        return [dict(row) for row in self.rows]

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return every column as an array."""
        return self.table.to_numpy()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    @property
    def answer(self) -> "Answer":
        """The question answered, with what the answer rests on."""
        from gradtide.answer import Answer

        return Answer.of(self.summary)

    def __repr__(self) -> str:
        return f"<gradtide.{type(self).__name__} {self.summary['headline']}>"

    def _repr_html_(self) -> str:
        table = words.html_table(list(self.rows[0]), [list(row.values()) for row in self.rows])
        return table + words.answer_html(self.summary)

    def save(self, path: str | Path) -> Path:
        """Write the study folder `path` atomically, by rename.

        Raises:
            FolderError: if `path` exists and is not a folder of results.
        """
        from gradtide.studies.folder import whole_folder

        with whole_folder(Path(path)) as folder:
            self.write(folder)
        return Path(path)

    def write(self, folder: Path) -> None:
        """Write everything into the existing `folder`."""
        raise NotImplementedError


class RunResult:
    """A finished run.

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
        queues: one row per link and sample with `run.probe`; otherwise empty.
        cwnd: one row per connection and sample with `run.probe.cwnd`; otherwise empty.
    """

    def __init__(self, scenario: "Scenario", output: "_core.RunOutput", cost: dict[str, Any]) -> None:
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
            classes: limits of small and large flows.
            alone_ps: completion time of each flow on an idle network, in picoseconds; adds slowdowns.
            between_ps: only flows that start in this half-open interval count; an end of None is no limit.
        """
        if not self.scenario.traffic:
            return {}
        names = np.asarray(self.flows["traffic"])
        columns = (self.flows["start_us"], self.flows["bytes"], self.flows["fct_us"])
        start_ps, size_bytes, fct_ps = np.rint(columns[0] * 1e6).astype(np.uint64), columns[1], columns[2] * 1e6
        delivered = None
        if "delivered_bytes" in self.flows.columns:  # absent in stored runs of earlier versions
            delivered = self.flows["delivered_bytes"], self.flows["mean_rate_bps"]
        idle_ps = None
        if alone_ps is not None:
            idle_ps = np.array([alone_ps.get(flow, math.nan) for flow in self._flow_keys()], dtype=np.float64)
        window = fct.Window(max(self.scenario.warmup_ps, between_ps[0]), self.scenario.cooldown_ps, between_ps[1])
        return {
            tenant.name: fct.class_summary(
                start_ps[mine],
                size_bytes[mine],
                fct_ps[mine],
                window,
                classes=classes,
                alone_ps=None if idle_ps is None else idle_ps[mine],
                delivered=None if delivered is None else (delivered[0][mine], delivered[1][mine]),
            )
            for tenant in self.scenario.traffic
            for mine in [names == tenant.name]
        }

    @property
    def jobs_ran_ps(self) -> tuple[int, int | None]:
        """When the last job started, and when all had completed their iterations; None if the run ended before."""
        jobs = self.scenario.jobs
        since_ps = max((job.start_ps for job in jobs), default=0)
        if not jobs or any(job.iterations != self.summary["jobs"][job.name]["iterations"] for job in jobs):
            return since_ps, None
        return since_ps, round(1e6 * float((self.iterations["start_us"] + self.iterations["time_us"]).max()))

    def distinct_flows(self) -> set[Flow]:
        """Return the completed flows without duplicates in tenant, sender, receiver and bytes."""
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
        """Mean iteration time of the first job, seconds."""
        return float(self.job["iteration_time_ms"]["mean"]) / 1e3

    @cached_property
    def bandwidth(self) -> Table:
        """The same jobs at other link rates, each order with and without the barrier; run on first use."""
        from gradtide.studies.run import bandwidth

        return bandwidth(self.scenario)

    @property
    def slack(self) -> Series:
        """Network slack of every bucket of every measured iteration, seconds: needed - ready (thesis section 3.1)."""
        return Series("slack_s", self.transfers["slack_us"] / 1e6)

    @property
    def margin(self) -> Series:
        """Slack that remains when the bucket has arrived, seconds; negative if compute waited."""
        return Series("margin_s", self.transfers["margin_us"] / 1e6)

    def save(self, path: str | Path) -> Path:
        """Write the run folder `path` atomically, by rename.

        Raises:
            FolderError: if `path` exists and is not a folder of results.
        """
        from gradtide.studies.run import save

        return save(self, Path(path))

    def thresholds(self, k: float = 0.25) -> list[dict[str, Any]]:
        """Return the marking threshold for each link, RTT · C / (N · MTU), from measurements.

        A link with a queue is full, so the packets in flight of its N long flows, less the queued ones, are the
        bandwidth-delay product without queues, RTT · C. A flow is long if it has at least as much left to send as in
        flight; all queued packets are taken to be of long flows, and to queue on one link of their route. Values are
        medians over samples with a queue of at least half its mean length; links at which long flows queue in less than
        a tenth of the samples are omitted.

        Args:
            k: fraction of the threshold that a burst announces, above 0 and at most 1.

        Returns:
            One dict per link: `link`, `long_flows` (N), `round_trip_packets` (RTT · C / MTU, without queues),
            `queue_packets`, `policy_packets` (RTT · C / (N · MTU)), `threshold_packets` (the next multiple of 5 above
            it) and `announced_packets` (k of that: a multiple of 5, from 5 to 75).

        Raises:
            ValueError: if no queue was sampled (no `run.probe`, or no queues), or k is out of range.

        Source:
            Kang et al. (2021), equations 1 and 2, after Wu et al. (2012), *Tuning ECN for Data Center Networks*.
        """
        if not 0 < k <= 1:
            raise ValueError(f"k is {k}: above 0 and at most 1")
        if not len(self.queues):
            raise ValueError('no queue was sampled: write run.engine = "packet" and run.probe = { every = "100us" }')
        columns = self.queues.to_numpy()
        segment_bytes = self.scenario.spec()["cluster"]["transport"]["segment_bytes"]
        rows = []
        for link in dict.fromkeys(columns["link"].tolist()):
            crossed = (columns["link"] == link) & (columns["long_flows"] > 0)
            waits = crossed & (columns["queue_packets"] > 1)
            if waits.sum() <= crossed.sum() / 10:
                continue
            full = waits & (columns["queue_packets"] >= columns["queue_packets"][waits].mean() / 2)
            flows, queue = float(np.median(columns["long_flows"][full])), columns["queue_packets"][full]
            held = max(0.0, float(np.median(columns["long_flight_bytes"][full] / segment_bytes - queue)))
            threshold = 5 * (int(held / flows // 5) + 1)
            rows.append(
                {
                    "link": link,
                    "long_flows": flows,
                    "round_trip_packets": held,
                    "queue_packets": float(np.median(queue)),
                    "policy_packets": held / flows,
                    "threshold_packets": threshold,
                    "announced_packets": min(75, max(5, 5 * round(k * threshold / 5))),
                }
            )
        return rows

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML file that needs no network."""
        from gradtide.studies.run import write_part

        return write_part(self, Path(path), "report.html")

    def timeline(self, path: str | Path) -> Path:
        """Write the timeline for Perfetto (ui.perfetto.dev)."""
        from gradtide.studies.run import write_part

        return write_part(self, Path(path), "timeline.pftrace")

    @cached_property
    def answer(self) -> "Answer":
        """The question answered, with what the answer rests on."""
        from gradtide.answer.build import build

        more = _premises_of_losses(self.summary["links"]["timeouts"])
        return build("run", self.summary["headline"], self.scenario, _candidates(self), more=more)

    def __repr__(self) -> str:
        return f"<gradtide.RunResult {self.summary['headline']}>"

    def _repr_html_(self) -> str:
        return words.html_table(*words.run_rows(self.summary)) + words.answer_html(self.answer.to_dict())


def _candidates(result: RunResult) -> "list[Candidate]":
    """Return the jobs of a run as candidates: feasibility, and the runtime that supports each."""
    from gradtide.answer import Candidate
    from gradtide.answer.memory import feasibility
    from gradtide.answer.runtimes import runs_on

    found = []
    for job in result.scenario.jobs:
        facts = result.summary["jobs"][job.name]
        by, why = None, ""
        if not job.is_divided and not job.is_pulled and job.workers > 1:
            by, why = runs_on(job.schedule.order, job.schedule.barrier, job.collective.kind, job.device.name)
        time_ms = facts["iteration_time_ms"]["mean"]
        found.append(Candidate(job.name, time_ms, feasibility(facts), by, why, group=job.name))
    return found


def _premises_of_losses(timeouts: int | None) -> "list[Premise]":
    """Return a premise for a run with retransmission timeouts, some of which RACK-TLP would avoid on most hosts."""
    from gradtide.answer import Premise

    if not timeouts:
        return []
    count = "1 timeout" if timeouts == 1 else f"{timeouts:,} timeouts"
    return [Premise("loss recovery", f"without RACK-TLP ({count})", False)]
