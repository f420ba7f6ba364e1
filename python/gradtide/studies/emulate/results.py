"""The results of an emulation: its tables, the figures of its summary, and its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import report
from gradtide.results import Table
from gradtide.scenario import Scenario
from gradtide.studies.folder import RESOLVED, whole_folder, write_json, write_text, write_versions

SCHEMA = "gradtide.emulation/1"
_PS_PER_US = 1e6
TABLES = ("links", "queues", "flows", "bursts", "iterations")


FIGURES = {
    "iteration_time_ms": "jobs",
    **dict.fromkeys(("sent", "delivered", "dropped", "marked"), "packets"),
    **dict.fromkeys(("p50_us", "p99_us", "p999_us", "max_us", "late_share"), "lateness"),
    "differing_decisions": "",
}
"""Figures that `--fail-if` can test, each with the part of the summary that contains it ("": the top level)."""


def figures(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures that `--fail-if` can test; `iteration_time_ms` is that of the slowest job."""
    times = [job["iteration_time_ms"] for job in summary["jobs"].values()]
    parts = {**summary, "": summary, "jobs": {"iteration_time_ms": max(times, default=None)}}
    return {name: parts[part][name] for name, part in FIGURES.items()}


@dataclass(frozen=True)
class EmulationResult:
    """Result of `emulate`: measurements of the flows, queues and links of an emulated network.

    Attributes:
        scenario: the scenario.
        summary: the figures of `summary.json`.
        links: one row per link and direction.
        queues: one row per sample of a link's queue.
        flows: one row per background flow.
        bursts: one row per burst.
        iterations: one row per iteration of each job of the scenario; empty if the user's commands ran instead.
        outputs: what each command and each program for bursts printed, by the name of its file.
    """

    scenario: Scenario
    summary: dict[str, Any]
    links: Table
    queues: Table
    flows: Table
    bursts: Table
    iterations: Table
    outputs: Mapping[str, str]

    def save(self, path: Path) -> Path:
        """Write a run folder."""
        with whole_folder(path) as folder:
            write_text(folder / RESOLVED, self.scenario.to_toml())
            for name in TABLES:
                table: Table = getattr(self, name)
                if len(table):
                    write_text(folder / f"{name}.csv", table.to_csv())
            for name, text in self.outputs.items():
                write_text(folder / f"{name}.txt", text)
            write_json(folder / "summary.json", self.summary)
            write_versions(folder)
            report.write_report(folder)
        return path


def links_of(core: Mapping[str, Any], rates_bps: Sequence[int]) -> Table:
    """Return the table of links."""
    rows = core["links"]
    lasted_ps = max(core["duration_ps"], 1)
    return Table.of(
        {
            "link": [row["link"] for row in rows],
            "rate_bps": list(rates_bps),
            "packets": [row["packets"] for row in rows],
            "bytes": [row["bytes"] for row in rows],
            "busy_us": [row["busy_ps"] / _PS_PER_US for row in rows],
            "utilisation": [row["busy_ps"] / lasted_ps for row in rows],
            "drops": [row["drops"] for row in rows],
            "ce_marks": [row["marks"] for row in rows],
            "max_queue_packets": [row["queue_packets_max"] for row in rows],
        }
    )


def queues_of(core: Mapping[str, Any], names: Sequence[str], offset_us: float) -> Table:
    """Return one row per sample of a link's queue, with times since the start of the programs.

    Utilisation, drops and ECN marks refer to the interval since the link's previous sample.
    """
    before: dict[int, Mapping[str, Any]] = {}
    rows = []
    for row in core["samples"]:
        last = before.get(row["port"])
        before[row["port"]] = row
        at_us = row["at_ps"] / _PS_PER_US - offset_us
        if last is None or at_us < 0:
            continue
        lasted_ps = row["at_ps"] - last["at_ps"]
        rows.append((at_us, row, (row["busy_ps"] - last["busy_ps"]) / max(lasted_ps, 1), last))
    threshold = [row["threshold"] for _, row, _, _ in rows]
    return Table.of(
        {
            "time_us": [at_us for at_us, *_ in rows],
            "link": [names[row["port"]] for _, row, _, _ in rows],
            "queue_packets": [row["packets"] for _, row, _, _ in rows],
            "queue_bytes": [row["bytes"] for _, row, _, _ in rows],
            "utilisation": [use for _, _, use, _ in rows],
            "drops": [row["drops"] - last["drops"] for _, row, _, last in rows],
            "ce_marks": [row["marks"] - last["marks"] for _, row, _, last in rows],
            # What senders have left is unknown here.
            "long_flows": [None] * len(rows),
            "long_flight_bytes": [None] * len(rows),
            "threshold_packets": [None if one is None else float(one) for one in threshold],
        }
    )


def flows_of(flows: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], start_ns: int) -> Table:
    """Return one row per background flow that has started.

    Args:
        flows: the flows of the scenario, in the order of their numbers.
        rows: rows that `gradtide.emulated` printed: start, arrival or failure of a flow, and every second the bytes
            that have arrived of each unfinished flow.
        start_ns: start of the programs, in ns of CLOCK_REALTIME.
    """
    began = {row["flow"]: row["start_ns"] for row in rows if row["kind"] == "started"}
    arriving = {row["flow"]: (row["bytes"], row["at_ns"]) for row in rows if row["kind"] == "unfinished"}
    received = {row["flow"]: row["at_ns"] for row in rows if row["kind"] == "received"}
    numbers = [number for number in range(len(flows)) if number in began]
    starts = [began[number] for number in numbers]
    arrived = [
        (received[number] - start) / 1e3 if number in received else None
        for number, start in zip(numbers, starts, strict=True)
    ]
    sizes = [flows[number]["bytes"] for number in numbers]
    delivered, rates = [], []
    for number, size, start, us in zip(numbers, sizes, starts, arrived, strict=True):
        # If a flow has neither arrived nor been reported as unfinished, its delivered bytes are unknown and count as 0.
        part, at_ns = (size, start + us * 1e3) if us is not None else arriving.get(number, (0, start))
        delivered.append(part)
        rates.append(part * 8e9 / (at_ns - start) if at_ns > start else None)
    return Table.of(
        {
            "traffic": [flows[number]["traffic"] for number in numbers],
            "flow": [flows[number]["flow"] for number in numbers],
            "start_us": [(start - start_ns) / 1e3 for start in starts],
            "src": [flows[number]["src"] for number in numbers],
            "dst": [flows[number]["dst"] for number in numbers],
            "bytes": sizes,
            "band": [flows[number]["band"] for number in numbers],
            # `fct_us` would end with the close of the connection, which hosts do not report.
            "fct_us": [None] * len(numbers),
            "received_us": arrived,
            "delivered_bytes": delivered,
            "mean_rate_bps": rates,
        }
    )


def iterations_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per iteration k: the time on rank 0 from the backward pass of iteration k to that of k + 1."""
    starts: dict[str, dict[int, int]] = {}
    for row in rows:
        if row["kind"] == "iteration" and row["rank"] == 0:
            starts.setdefault(row["job"], {})[row["iteration"]] = row["start_ns"]
    found = [
        (job, number, (of_job[number + 1] - of_job[number]) / 1e3)
        for job, of_job in starts.items()
        for number in sorted(of_job)
        if number + 1 in of_job
    ]
    return Table.of(
        {
            "job": [job for job, _, _ in found],
            "iteration": [number for _, number, _ in found],
            "time_us": [time_us for _, _, time_us in found],
        }
    )
