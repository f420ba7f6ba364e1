"""`gradtide report TRACE`: time components of a recorded step, bottleneck of each transfer, and possible improvements.

    trace -> one step -> its transfers as recorded by each rank -> bottleneck of each transfer
                      -> model of the step on a network fitted to the trace -> the step with other schedules

No rank leaves a collective before the last rank has joined. The shortest duration on any rank is therefore the time in
which data moved, and the rest of each rank's duration is waiting for the last rank. No synchronised clocks are needed.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gradtide import _core, report, units, words
from gradtide.errors import ScenarioError, TraceError
from gradtide.files import write_whole
from gradtide.runtime import where
from gradtide.scenario import Scenario
from gradtide.scenario.resolve.network import MAX_FLUID_BPS
from gradtide.scenario.tables import layers_table
from gradtide.studies.channels import line
from gradtide.studies.folder import write_json, write_text, write_versions
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import run_all

if TYPE_CHECKING:
    from gradtide.traces import Trace
    from gradtide.traces.model import TraceModel

HIDDEN = 0.05
"""A transfer is hidden if compute waits for it (exposed time) during less than this share of its duration."""

MOSTLY = 0.5
"""A wait that takes at least this share of a transfer's time is its bottleneck. A bus rate is low if it is below this
share of the best one."""

LEFT = 0.1
"""A transfer cannot be hidden if the compute left when it is ready is shorter than this share of its moving time."""

FIXED_US = 10_000.0
"""Upper bound of a collective's latency in microseconds, for slow networks and many ranks; longer times are waits."""

LEAST_BPS = 10e6
"""Rate of the slowest networks used for training, in bit/s; the bottleneck of slower transfers is not bandwidth."""

REPRODUCED = 0.1
"""Other schedules are predicted only if the predicted time of the recorded step has at most this relative error."""

LEAST_SAVING = 1.0
"""Smallest predicted saving, in percent of the step, for which a schedule is recommended."""

NOTABLE = 0.1
"""Smallest share of a step for which the headline mentions idle time, or different compute times of ranks."""

PART = "4MiB"
"""Chunk size of the predicted schedules; with larger chunks, urgent gradients would wait longer."""

_NS_PER_MS = 1e6
_PARTS = ("span", "compute", "overlapped", "exposed", "idle")


class WaterfallResult(StudyRows):
    """Time components of a recorded step, its transfers, and the predicted effect of other schedules.

    Attributes:
        rows: one dict per transfer by start time, with the columns of `waterfall.csv`.
        summary: the document of `--json`, without the rows.
        picture: data of the report's plot: for each rank, the intervals of compute and of waits in nanoseconds.
        scenario: model of the step on a network fitted to the trace; `None` if no model can be made of the trace.
    """

    def __init__(self, trace: "Trace", number: int | None) -> None:
        if not trace.has_times:
            raise TraceError(
                "the files have no start times, so no step has a timeline; gradtide convert counts their nodes and "
                "transfers"
            )
        step = trace.step(number)
        shown = trace._slowest(step)
        self.rows, self._seen = _rows(step, shown)
        keys = ("rank", "span_ns", "computing", "waiting")
        self.picture = {
            "schema": "gradtide.picture/1",
            "ranks": [{key: row[key] for key in keys} for row in step["ranks"]],
        }
        self.scenario: Scenario | None = None
        self.summary: dict[str, Any] = {
            "schema": "gradtide.waterfall/1",
            "version": _core.__version__,
            "headline": "",
            "format": trace.format,
            "step": step["number"],
            "steps": len(trace.steps),
            "steps_found_by": trace.steps_found_by,
            "rank": shown["rank"],
            **_time(step, shown, self.rows),
            "ranks": [
                {"rank": row["rank"]} | {f"{part}_ms": row[f"{part}_ns"] / _NS_PER_MS for part in _PARTS}
                for row in step["ranks"]
            ],
        }
        about = trace.summary()
        size = about["world_size"] or len(step["ranks"])
        computing = [row["compute_ns"] for row in step["ranks"]]
        mean_ns = sum(computing) / len(computing)
        self.summary |= {
            "world_size": size,
            "missing_ranks": about["missing_ranks"],
            "no_transfer": about["no_transfer"],
            # Ranks that were not recorded are assumed to compute for the mean time of the recorded ranks.
            "effective_ranks": None
            if about["effective_ranks"] is None
            else size * mean_ns / shown["span_ns"]
            if shown["span_ns"]
            else 0.0,
        }
        self.summary["advice"] = self._advice(trace, step, shown)
        self.summary["warnings"] = about["warnings"]
        self.summary["headline"] = _headline(self.summary)

    def _advice(self, trace: "Trace", step: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
        """Predict the step with the recorded schedule and, if the prediction agrees with the trace, with other ones."""
        try:
            model = trace.to_model(step=step["number"], name="trace")
            base = _like_recorded(model, [row for row, all_seen in zip(self.rows, self._seen, strict=True) if all_seen])
        except (TraceError, ScenarioError) as error:
            return {"why_not": str(error).partition("\n")[0], "rows": []}
        self.scenario = base
        # Each of the first four schedules differs from the previous one in one setting, to which its gain is due.
        in_parts = base.replace(chunk=PART)
        by_priority = in_parts.replace(order="priority")
        cut = f"in parts of {PART}"
        tried = {
            "as recorded": base,
            cut: in_parts,
            f"{cut}, by priority": by_priority,
            f"{cut}, by priority, without barrier": by_priority.replace(barrier=False),
            "as recorded, at twice the bandwidth": base.replace(link_rate=units.format_rate(2 * base.link_rate_bps)),
        }
        times_ms = [1e3 * result.iteration_time for result in run_all(list(tried.values()))]
        span_ms = shown["span_ns"] / _NS_PER_MS
        off = times_ms[0] / span_ms - 1
        fit = {
            "link_rate_bps": base.link_rate_bps,
            "overhead_us": base.jobs[0].schedule.overhead_ps / 1e6,
            "predicted_ms": times_ms[0],
            "off_percent": 100 * off,
        }
        if abs(off) > REPRODUCED:
            took, recorded = words.milliseconds(times_ms[0]), words.milliseconds(span_ms)
            said = f"the model of this step takes {took}, and {recorded} were recorded"
            return {**fit, "why_not": f"{said}, so its predictions of other schedules are not shown", "rows": []}
        rows: list[dict[str, Any]] = [
            {"what": name, "iteration_time_ms": time_ms, "saves_percent": 100 * (1 - time_ms / times_ms[0])}
            for name, time_ms in zip(tried, times_ms, strict=True)
        ]
        # The first row has the recorded schedule, and the last row another network: neither can be recommended.
        best = min(rows[1:-1], key=lambda row: row["iteration_time_ms"])
        recommended = best["what"] if best["saves_percent"] >= LEAST_SAVING else None
        return {**fit, "why_not": None, "rows": rows, "recommended": recommended}

    def to_document(self) -> dict[str, Any]:
        """Return the document of `--json`: the summary, and the rows as `transfers`."""
        return {**self.summary, "transfers": self.rows}

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        text = self.table.to_csv() if self.rows else _HEADER
        write_text(folder / "waterfall.csv", text)
        if self.scenario is not None:
            write_text(folder / "scenario.toml", self.scenario.to_toml())
        write_json(folder / "picture.json", self.picture)
        write_json(folder / "summary.json", self.summary)
        write_versions(folder)
        report.write_report(folder)

    def report(self, path: str | Path) -> Path:
        """Write the report to `path`, as a single HTML file that loads nothing from the network."""
        with TemporaryDirectory(prefix="gradtide-") as parent:
            return write_whole(Path(path), (self.save(Path(parent) / "step") / "report.html").read_bytes())


def waterfall(trace: "Trace", step: int | None = None) -> WaterfallResult:
    """Return the time components of a recorded step, the bottleneck of each transfer, and possible improvements.

    Args:
        trace: a trace of one, several or all ranks of a job.
        step: number of the step. Default: the step of median length (`typical_step`).

    Raises:
        TraceError: if there is no such step.
    """
    return WaterfallResult(trace, step)


# Transfers


_HEADER = (
    "transfer,collective,group,ranks,bytes,ready_us,start_us,duration_us,moving_us,waited_us,late_rank,exposed_us,"
    "exposed_late_us,bus_rate_bps,bound\n"
)
"""Content of `waterfall.csv` for a step without transfers."""


def _rows(step: dict[str, Any], shown: dict[str, Any]) -> tuple[list[dict[str, Any]], list[bool]]:
    """Return a row per transfer of the rank `shown`, and for each row, whether all of its ranks recorded it."""
    found: list[tuple[dict[str, Any], int]] = []
    all_seen: list[bool] = []
    for transfer in step["transfers"]:
        mine = next((seen for seen in transfer["seen"] if seen["rank"] == shown["rank"]), None)
        if mine is None or not -mine["duration_ns"] < mine["start_ns"] < shown["span_ns"]:
            continue
        last = min(transfer["seen"], key=lambda seen: (seen["duration_ns"], seen["rank"]))
        longest_ns = max(seen["duration_ns"] for seen in transfer["seen"])
        # Sender and receiver of a point-to-point message finish independently, so their durations are not comparable.
        is_shared = transfer["collective"] not in ("send", "recv") and len(transfer["seen"]) > 1
        moving_ns = last["duration_ns"] if is_shared else mine["duration_ns"]
        ranks = transfer["group_size"] or len(step["ranks"])
        moved = bus_bytes(transfer["collective"], transfer["bytes"] or 0, ranks)
        waited_ns = longest_ns - moving_ns if is_shared else 0
        row = {
            "transfer": len(found),
            "collective": transfer["collective"],
            "group": transfer["group"],
            "ranks": ranks,
            "bytes": transfer["bytes"],
            "ready_us": mine["ready_ns"] / 1e3,
            "start_us": mine["start_ns"] / 1e3,
            "duration_us": mine["duration_ns"] / 1e3,
            "moving_us": moving_ns / 1e3,
            "waited_us": waited_ns / 1e3,
            "late_rank": float(last["rank"]) if waited_ns >= MOSTLY * max(longest_ns, 1) else None,
            "exposed_us": mine["exposed_ns"] / 1e3,
            # Data moves last, so exposed time in excess of the moving time is a wait for the last rank.
            "exposed_late_us": max(0, mine["exposed_ns"] - moving_ns) / 1e3,
            "bus_rate_bps": 8e9 * moved / moving_ns if moved and moving_ns else None,
            "bound": "",
        }
        done = mine["computed"]
        left_ns = sum(shown["passes"][part] - done[part] for part in ("forward_ns", "backward_ns", "unsaid_ns"))
        found.append((row, left_ns))
        all_seen.append(len(transfer["seen"]) >= ranks)
    rates = [(row["bus_rate_bps"], row["bytes"]) for row, _ in found if row["bus_rate_bps"] and row["bytes"]]
    best = max(rates, default=(math.inf, 0))
    for row, left_ns in found:
        row["bound"] = _bound(row, left_ns / 1e3, best)
    return [row for row, _ in found], all_seen


def bus_bytes(collective: str, size: int, ranks: int) -> float:
    """Return the minimum number of bytes that each rank must send for a buffer of `size` bytes; 0 if unknown.

    Divided by the time, this is the bus bandwidth, as defined in PERFORMANCE.md of nccl-tests.
    """
    others = ranks - 1
    shares = {
        "all_reduce": 2 * others / max(ranks, 1),
        "reduce_scatter": others / max(ranks, 1),
        "reduce_scatter_block": others / max(ranks, 1),
        "all_to_all": others / max(ranks, 1),
        # A trace records the size of a rank's input to an all-gather, which is only the rank's shard.
        "all_gather": float(others),
        "broadcast": 1.0,
        "reduce": 1.0,
        "send": 1.0,
        "recv": 1.0,
    }
    return shares.get(collective, 0.0) * size


def _bound(row: dict[str, Any], left_us: float, best: tuple[float, int]) -> str:
    """Return a transfer's bottleneck; `left_us`: compute left when it is ready; `best`: highest bus rate, its bytes."""
    if row["exposed_us"] < HIDDEN * max(row["duration_us"], 1e-3):
        return "hidden"
    if row["late_rank"] is not None:
        return "late rank"
    total_us = row["start_us"] + row["duration_us"] - row["ready_us"]
    if row["start_us"] - row["ready_us"] >= MOSTLY * total_us:
        return "queued"
    rate, size = best
    if not row["bytes"] or row["bus_rate_bps"] is None:
        return "unknown"
    if row["bus_rate_bps"] < MOSTLY * rate and row["bytes"] < size:
        return "small message" if row["moving_us"] <= FIXED_US else "unknown"
    if row["bus_rate_bps"] < LEAST_BPS:
        return "unknown"
    return "last" if left_us < LEFT * row["moving_us"] else "bandwidth"


# The step


def _time(step: dict[str, Any], shown: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    exposed_ms = shown["exposed_ns"] / _NS_PER_MS
    late_ms = sum(row["exposed_late_us"] for row in rows) / 1e3
    network_ms = exposed_ms + shown["overlapped_ns"] / _NS_PER_MS
    late: dict[int, float] = {}
    for row in rows:
        if row["late_rank"] is not None:
            late[int(row["late_rank"])] = late.get(int(row["late_rank"]), 0.0) + row["waited_us"]
    return {
        "step_ms": shown["span_ns"] / _NS_PER_MS,
        "compute_ms": shown["compute_ns"] / _NS_PER_MS,
        "network_ms": network_ms,
        "hidden_percent": 100 * (1 - exposed_ms / network_ms) if network_ms else None,
        "waterfall_ms": {
            "compute": shown["compute_ns"] / _NS_PER_MS,
            "exposed": exposed_ms - late_ms,
            "late": late_ms,
            "idle": shown["idle_ns"] / _NS_PER_MS,
        },
        "late_rank": max(sorted(late), key=lambda rank: late[rank]) if late else None,
    }


def _like_recorded(model: "TraceModel", rows: Sequence[dict[str, Any]]) -> Scenario:
    """Return the scenario of the step on a single switch, with a link rate and an overhead fitted to the all-reduces.

    `rows` are the transfers that were recorded on all their ranks; for others, the wait for the last rank is unknown.
    """
    if model.waits_left_out > REPRODUCED * (model.compute_time + model.host_time):
        raise TraceError(
            f"{words.milliseconds(1e3 * model.waits_left_out)} of the step are waits for other transfers than "
            "gradients, which no order of gradients changes"
        )
    if model.world_size < 2:
        raise TraceError("the step is of one rank, which sends nothing")
    sent = [row for row in rows if row["collective"] == "all_reduce" and row["bus_rate_bps"]]
    if not sent:
        raise TraceError(
            "no all-reduce with a size was recorded on all ranks of its group, so how long its bytes take, without the "
            "wait for other ranks, is not known; give the traces of all ranks, or run the step on a network: "
            "gradtide run TRACE --cluster NAME"
        )
    sizes = [bus_bytes("all_reduce", row["bytes"], row["ranks"]) for row in sent]
    times = [row["moving_us"] for row in sent]
    together_us = _covered([(row["start_us"] + row["duration_us"], row["moving_us"]) for row in sent])
    # No line is fitted to transfers that overlap, as with gloo's threads, because only their total rate is known.
    is_alone = together_us >= 0.95 * sum(times) and len(set(sizes)) > 1
    fixed_us, us_per_byte = line(sizes, times) if is_alone else (0.0, 0.0)
    if us_per_byte <= 0:
        fixed_us, us_per_byte = 0.0, together_us / sum(sizes)
    table = layers_table(model.name, model.layers, bucketed=True, source=model.source, left_out=model.left_out)
    overhead = {"overhead": f"{round(1000 * fixed_us)}ns"}
    rate = units.format_rate(max(1, min(round(8e6 / us_per_byte), MAX_FLUID_BPS)))
    return Scenario.from_dict(
        {
            "job": {"train": {"model": table, "workers": model.world_size, "iterations": 3, "schedule": overhead}},
            "cluster": {
                "topology": {"kind": "star", "hosts": model.world_size},
                "link": {"rate": rate, "delay": "0s"},
            },
            "run": {"engine": "fluid"},
        }
    )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals; `spans` has the end and the length of each."""
    total = reached = 0.0
    for start, end in sorted((end - length, end) for end, length in spans):
        total += max(0.0, end - max(start, reached if total else start))
        reached = max(reached, end) if total else end
    return total


# Words


def _headline(summary: dict[str, Any]) -> str:
    step = "The trace" if summary["steps_found_by"] == "whole" else f"Step {summary['step']}"
    ms = words.milliseconds
    said = [f"{step}: {ms(summary['step_ms'])}, {ms(summary['compute_ms'])} of it computing."]
    parts = summary["waterfall_ms"]
    if parts["idle"] >= NOTABLE * summary["step_ms"]:
        said.append(f"The device is idle for {ms(parts['idle'])} without a transfer in progress.")
    waits_ms = parts["exposed"] + parts["late"]
    if summary["network_ms"]:
        network = (
            f"The network is in use for {ms(summary['network_ms'])}, {summary['hidden_percent']:.0f} % of it hidden"
        )
        if waits_ms < words.SAME * summary["step_ms"]:
            said.append(f"{network}; the step does not wait for it.")
        else:
            late = ""
            if parts["late"] >= 0.1 * waits_ms and summary["late_rank"] is not None:
                late = f", {ms(parts['late'])} of that for rank {summary['late_rank']}, which is late"
            said.append(f"{network}; the step waits {ms(waits_ms)} for it{late}.")
    computing = {row["rank"]: row["compute_ms"] for row in summary["ranks"]}
    most, least = max(computing, key=lambda r: computing[r]), min(computing, key=lambda r: computing[r])
    if computing[most] - computing[least] >= NOTABLE * summary["step_ms"]:
        said.append(f"Rank {most} computes {ms(computing[most] - computing[least])} longer than rank {least}.")
    size = summary["world_size"]
    if summary["effective_ranks"] is None:
        said.append(f"{summary['no_transfer'].capitalize()}.")
    elif size > 1:
        said.append(f"{size} ranks do the work of {summary['effective_ranks']:.2f} ranks without waits.")
    what = summary["advice"].get("recommended")
    best = next((row for row in summary["advice"]["rows"] if row["what"] == what), None)
    if best is not None:
        level = "crossiter" if "without barrier" in best["what"] else "priority"
        takes = ms(best["iteration_time_ms"])
        said.append(
            f"Sent {best['what']}, the step would take {takes}; gradtide.torch has this schedule on {where(level)}."
        )
    return " ".join(said)


__all__ = ["WaterfallResult", "bus_bytes", "waterfall"]
