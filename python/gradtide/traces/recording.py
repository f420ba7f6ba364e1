"""The traces of a job's ranks, and their conversion to tables, steps, models and files."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gradtide import _core, units
from gradtide.errors import TraceError, cannot_write
from gradtide.files import write_whole
from gradtide.results import Table
from gradtide.scenario.opdag import OpDag, op_dag
from gradtide.traces import graph
from gradtide.traces.gaps import Gap, found_gaps
from gradtide.traces.model import TraceModel, TraceStep, of_step

PIXELS = 2000
"""Intervals of a step that are closer than 1/2000 of its length are merged: half a pixel of the figure in a report."""

EXACT = 1 << 62
"""Resolution at which no intervals are merged."""

CHAKRA_VERSIONS = ("0.0.4", "1.0.0")


class Recording:
    """The traces of the ranks of a job, recorded by one tool.

    Attributes:
        format: format of the files: "kineto", "pytorch-et", "chakra", "nsight" or "dag".
    """

    def __init__(self, core: _core.Trace, form: str) -> None:
        self._core = core
        self.format = form

    @property
    def rank_numbers(self) -> list[int]:
        """Ranks with a trace, ascending."""
        return [number for number, *_ in self._core.about]

    @cached_property
    def ranks(self) -> Table:
        """One row per rank: counts, time components, and the offset of its clock from that of the first rank.

        `compute_us`, `exposed_us` and `idle_us` sum to `span_us`, the time from the start of the rank's first op to the
        end of its last op. `overlapped_us` is the part of `compute_us` during which bytes move.
        """
        return Table(self._core.ranks())

    @cached_property
    def ops(self) -> Table:
        """One row per op; `start_us` counts from the start of the rank's first op."""
        return Table(self._core.ops())

    @cached_property
    def collectives(self) -> Table:
        """One row per rank and transfer, i.e. collective or message between two ranks.

        `bytes` is the size of the rank's input; `None` where the file does not contain it.
        """
        return Table(self._core.collectives())

    def summary(self) -> dict[str, Any]:
        """Return the figures of the trace as a JSON-compatible dict."""
        rows = self.ranks.to_dicts()
        about = self._core.about
        members = self._core.members
        known = max([size or 0 for _, _, size, _ in about] + [members[-1] + 1 if members else 0])
        present = set(self.rank_numbers)
        expected = range(known or max(present) + 1)
        # A job without any transfer was recorded incompletely, or uses a communication library that is not supported.
        calls = sum(gap.count for gap in self._gaps if gap.what == "unmatched_call")
        is_silent = (known > 1 or calls > 0) and not any(row["transfers"] for row in rows)
        of_job = f"in a job of {known} ranks" if known > 1 else f"though {calls} calls enqueued one"
        silent = f"no transfer was recognised {of_job}, so nothing is known of what waits"
        summary: dict[str, Any] = {
            "schema": "gradtide.trace-summary/1",
            "format": self.format,
            "version": about[0][3].strip('"'),
            "world_size": known or None,
            "missing_ranks": [rank for rank in expected if rank not in present],
            "effective_ranks": _effective(rows) if self.has_times and not is_silent else None,
            "no_transfer": silent if is_silent else None,
            "typical_step": self._typical if self.has_times else None,
            "ranks": rows if self.has_times else [_untimed(row) for row in rows],
            "left_out": [gap.to_dict() for gap in self._gaps],
        }
        summary["warnings"] = [*_warnings(summary), *map(str, self._gaps), *self._step_warnings()]
        summary["headline"] = _headline(summary) if self.has_times else self._untimed_headline(summary)
        return summary

    @cached_property
    def _typical(self) -> dict[str, Any] | None:
        """Return the time components of the typical step on its slowest rank; `None` if every step is damaged."""
        if not self.steps:
            return None
        row = self._slowest(self.step())
        parts = {f"{part}_ms": row[f"{part}_ns"] / 1e6 for part in ("span", "compute", "exposed", "idle")}
        about = {"number": self.typical_step, "found_by": self.steps_found_by, "steps": len(self.steps)}
        return about | {"rank": row["rank"]} | parts

    @property
    def has_times(self) -> bool:
        """Whether the files contain start times of ops. Formats that describe planned work contain only durations."""
        return not any(gap.what == "start" for gap in self._gaps)

    def _untimed_headline(self, summary: dict[str, Any]) -> str:
        rows, durations_us = summary["ranks"], self.ops["duration_us"]
        nodes, transfers = (sum(row[key] for row in rows) for key in ("ops", "transfers"))
        known = sum(row["transfer_bytes"] for row in rows)
        size = units.format_bytes(known)
        if any(gap.what in ("size", "unknown_transfer") for gap in self._gaps):
            size = f"at least {size}" if known else "unknown size"
        took = f"durations sum to {durations_us.sum() / 1000:.3f} ms" if durations_us.any() else "no durations"
        return (
            f"{nodes:,} nodes, of them {transfers:,} transfers of {size}; {took}. The files have no start times, so "
            "waits and overlaps are unknown."
        )

    @cached_property
    def _gaps(self) -> list[Gap]:
        return found_gaps(self._core.gaps, self.format)

    def _gaps_of_step(self, number: int) -> list[Gap]:
        """Return the gaps in a step, and the gaps of which the step is unknown."""
        return found_gaps(self._core.gaps_of_step(self.steps.index(number)), self.format)

    def _step_warnings(self) -> list[str]:
        partial, untimed = self._steps["partial"], self._steps["untimed"]
        said = [f"steps that only some ranks have: {partial}, left out"] if partial else []
        return said + ([f"steps with an event of unknown duration: {untimed}, left out"] if untimed else [])

    @cached_property
    def _steps(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._core.steps())
        return document

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that all ranks have: those of the profiler, or 0, 1, … if it marked no steps."""
        return [step["number"] for step in self._steps["steps"]]

    @property
    def steps_found_by(self) -> str:
        """How steps were found: "marks" of the profiler, repeating "transfers", or "whole": the trace is one step."""
        return str(self._steps["found_by"])

    @cached_property
    def typical_step(self) -> int:
        """Number of the step of median length, without the first step. A step is as long as on its slowest rank."""
        rows = self._steps["steps"][1:] or self._steps["steps"]
        if not rows:
            damaged = [str(gap) for gap in self._gaps if gap.what == "damaged"]
            raise TraceError(f"every step has an event of unknown duration ({', '.join(damaged)}); record it again")
        lengths = [(max(end - start for start, end in row["windows_ns"]), row["number"]) for row in rows]
        return int(sorted(lengths)[(len(lengths) - 1) // 2][1])

    def step(self, number: int | None = None) -> dict[str, Any]:
        """Return the activity of every rank in a step.

        Times are in nanoseconds since the start of the step on the rank, by the rank's own clock.

        Args:
            number: number of the step. Default: `typical_step`.

        Returns:
            A dict with the keys `number`, `ranks` and `transfers`. Each rank has `span_ns` and its components, the
            compute time by `passes` (forward, backward, update, or unsaid), and the intervals of `computing` and
            `waiting`; intervals that a timeline could not show apart are merged. Each transfer has its ready time,
            start, duration and exposed time on every rank.

        Raises:
            TraceError: if there is no such step.
        """
        return self._cut(number, PIXELS)

    @staticmethod
    def _slowest(step: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = max(step["ranks"], key=lambda row: (row["span_ns"], -row["rank"]))
        return row

    def _exact_step(self, number: int | None) -> dict[str, Any]:
        """Return a step like `step`, with unmerged intervals."""
        return self._cut(number, EXACT)

    def _cut(self, number: int | None, pixels: int) -> dict[str, Any]:
        number = self.typical_step if number is None else number
        self._check_step(number)
        document: dict[str, Any] = json.loads(self._core.step(self.steps.index(number), pixels))
        return {"number": number, **document}

    def _check_step(self, number: int) -> None:
        if number not in self.steps:
            shown = _some(self.steps).partition(" ")[2]
            raise TraceError(f"there is no step {number} that all ranks have; there are {shown}")

    def to_model(self, rank: int | None = None, *, step: int | None = None, name: str = "trace") -> TraceModel:
        """Return a step as a model for scenarios and studies, in which each all-reduce of a gradient is a layer.

        Args:
            rank: rank whose times are used. Default: the rank that computes and idles longest, for which the others
                wait.
            step: number of the step. Default: `typical_step`.
            name: name of the model in results.

        Raises:
            TraceError: if there is no such rank or step, the step has no all-reduce of a gradient, or the files contain
                something that changes the result and that no layer can represent.
        """
        if rank is not None:
            self._known(rank)
        document = self._exact_step(step)
        fatal = [f"{gap}; {gap.fix}" for gap in self._gaps_of_step(document["number"]) if gap.fix]
        if fatal:
            raise TraceError(f"the trace cannot become a model: {' · '.join(fatal)}")
        about = self.summary()
        world_size = about["world_size"] or len(self.rank_numbers)
        return of_step(document, self.steps_found_by, rank, name, world_size, tuple(about["warnings"]))

    def graph(self, step: int | None = None) -> dict[str, Any]:
        """Return a step as a graph: compute ops of every rank, transfers with their groups, and dependencies.

        Args:
            step: number of the step. Default: `typical_step`.

        Returns:
            A dict with the keys `classes`, `groups`, `transfers` and `edges`. There is one class per rank, with its
            `ops` in the order of execution (name, duration in picoseconds). A transfer has `kind`, `bytes` and `group`,
            an index into `groups`. An edge is a pair (before, after) of ids: ops are numbered rank by rank, and then
            transfers.

        Raises:
            TraceError: if there is no such step, a rank is missing, or a graph cannot represent the step.
        """
        number = self.typical_step if step is None else step
        self._check_step(number)
        return graph.step_graph(self, number)

    def to_step(self, *, step: int | None = None, name: str = "trace") -> TraceStep:
        """Return a step as a graph of all its ranks, for scenarios with jobs that send more than gradients.

        Args:
            step: number of the step. Default: `typical_step`.
            name: name of the step in results.

        Raises:
            TraceError: as in `graph`, and if the step has no transfer.
        """
        number = self.typical_step if step is None else step
        document = self.graph(number)
        if not document["transfers"]:
            raise TraceError(f"step {number} has no transfer")
        host_ps = max(sum(time for what, time in one["ops"] if what == graph.HOST) for one in document["classes"])
        idle = f"; the device of a rank is idle for up to {host_ps / 1e9:.3f} ms, which is kept" if host_ps else ""
        return TraceStep(name, graph.summed_up(document), f"step {number}{idle}")

    def to_dag(self, rank: int | None = None, *, cut: bool = False) -> OpDag:
        """Return a rank's trace as an op DAG, for `gradtide.order`; times in nanoseconds.

        Args:
            rank: number of the rank. Default: the first rank.
            cut: drop the dependencies of transfers on compute, which an op DAG cannot represent. Transfers then start
                independently, like parameters from the servers in TicTac.

        Raises:
            TraceError: if there is no such rank.
            ScenarioError: if the trace is not an op DAG: a transfer depends on compute (GT070), ops depend on each
                other in a cycle (GT072), or nothing is received (GT014).
        """
        document = json.loads(self._dag(rank, cut))
        for row in document["ops"]:
            if row.get("comm") is not None:
                row["bytes"] = row["comm"]["bytes"] or 0
        return op_dag({**document, "time_unit": "ns"})

    def save(
        self, path: str | Path, *, rank: int | None = None, cut: bool = False, version: str = "0.0.4"
    ) -> list[Path]:
        """Write the trace to files.

        Args:
            path: `NAME.et` for Chakra, with one file per rank (`NAME.0.et` and so on if there are several ranks), or
                `NAME.json` for the op DAG of one rank.
            rank: write only this rank. Default: all ranks; for an op DAG, the first rank.
            cut: as in `to_dag`.
            version: Chakra schema version in the files, 0.0.4 or 1.0.0; the nodes are equal in both.

        Returns:
            The files that were written.

        Raises:
            TraceError: if there is no such rank, or a file cannot be written.
            ValueError: if the suffix or the version is not one of these.
        """
        path = Path(path)
        if version not in CHAKRA_VERSIONS:
            raise ValueError(f"no version {version!r} is written; there are {', '.join(CHAKRA_VERSIONS)}")
        if path.suffix == ".json":
            contents = {path: self._dag(rank, cut).encode()}
        elif path.suffix == ".et":
            numbers = self.rank_numbers if rank is None else [self._known(rank)]
            several = len(numbers) > 1
            contents = {
                path.with_suffix(f".{number}.et") if several else path: self._core.to_chakra(number, version)
                for number in numbers
            }
        else:
            raise ValueError(f"{path} is neither NAME.et (Chakra) nor NAME.json (op DAG)")
        for name, content in contents.items():
            try:
                write_whole(name, content)
            except OSError as error:
                raise cannot_write(name, error) from error
        return list(contents)

    def _dag(self, rank: int | None, cut: bool) -> str:
        return self._core.to_dag(self._known(rank), cut)

    def _known(self, rank: int | None) -> int:
        if rank is None:
            return self.rank_numbers[0]
        if rank not in self.rank_numbers:
            raise TraceError(f"there is no trace of rank {rank}; there are {', '.join(map(str, self.rank_numbers))}")
        return rank

    def __repr__(self) -> str:
        return f"<Trace {self.format}: {len(self.rank_numbers)} ranks>"


def _warnings(summary: dict[str, Any]) -> list[str]:
    found = []
    missing = summary["missing_ranks"]
    if missing:
        shown = _some(missing)
        found.append(f"there is no trace of {shown}; the results cover only the other ranks")
    for row in summary["ranks"]:
        offset = row["clock_offset_us"]
        # Even with equal clocks, a collective ends at different times on different ranks. Therefore an offset is
        # attributed to the clocks only if it exceeds the span.
        if offset is not None and abs(offset) > max(1000, row["span_us"]):
            side = "ahead of" if offset > 0 else "behind"
            first = summary["ranks"][0]["rank"]
            found.append(f"the clock of rank {row['rank']} is {abs(offset):.0f} us {side} that of rank {first}")
    return found


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's row without the columns that need start times."""
    timed = ("span_us", "compute_us", "overlapped_us", "exposed_us", "idle_us", "clock_offset_us")
    return row | dict.fromkeys(timed)


def _effective(rows: Sequence[dict[str, Any]]) -> float:
    """Return how many ranks that never wait would do the same compute work in the same time."""
    longest = max(row["span_us"] for row in rows)
    return sum(row["compute_us"] for row in rows) / longest if longest else 0.0


def _headline(summary: dict[str, Any]) -> str:
    rows = summary["ranks"]
    slowest = max(rows, key=lambda row: row["span_us"])
    span = slowest["span_us"] or 1.0
    share = {part: slowest[f"{part}_us"] / span for part in ("compute", "exposed", "idle")}
    step = summary["typical_step"]
    typical = ""
    if step is not None and step["found_by"] != "whole":
        typical = f" Step {step['number']}, of median length, takes {step['span_ms']:.3f} ms."
    took = f"of the {slowest['span_us'] / 1000:.3f} ms of rank {slowest['rank']}"
    parts = (
        f"{share['compute']:.0%} is computation, {share['exposed']:.0%} communication alone, "
        f"and {share['idle']:.0%} neither"
    )
    if summary["effective_ranks"] is None:
        return f"{summary['no_transfer'].capitalize()}: {took}, {share['compute']:.0%} is computation.{typical}"
    ranks = "1 rank does" if len(rows) == 1 else f"{len(rows)} ranks do"
    return f"{ranks} the work of {summary['effective_ranks']:.2f} ranks without waits: {took}, {parts}.{typical}"


def _some(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {', '.join(map(str, numbers[:10]))}" + (f" and {len(numbers) - 10} more" * (len(numbers) > 10))
