"""Traces that other tools recorded, each read by its `from_` function: a `Trace` shows and converts them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide import _core, recognise, units
from gradtide.errors import TraceError, cannot_write
from gradtide.files import write_whole
from gradtide.results import Table
from gradtide.scenario.opdag import MAX_DAG_BYTES, OpDag, op_dag
from gradtide.schemas import other_version
from gradtide.traces import files, nsight
from gradtide.traces.archives import Source
from gradtide.traces.gaps import Gap, found_gaps
from gradtide.traces.model import TraceModel, TraceStep, of_step

if TYPE_CHECKING:
    from gradtide.studies.waterfall import WaterfallResult

PIXELS = 2000
"""Resolution of the timeline of a step: twice the width of the figure in a report."""

EXACT = 1 << 62
"""Resolution at which no intervals are merged."""

MAX_RANK_DIGITS = 5
"""Longest rank in a file's name; a longer number is a date, a time or a process id."""

DAG_SCHEMA = "gradtide.trace/1"
"""Schema of the op DAG that the core writes from a trace."""

CHAKRA_VERSIONS = ("0.0.4", "1.0.0")


class Trace:
    """What the ranks of a job did, as a tool recorded it.

    Attributes:
        format: "kineto", "pytorch-et", "chakra", "nsight" or "dag".
    """

    def __init__(self, core: _core.Trace, form: str) -> None:
        self._core = core
        self.format = form

    @property
    def rank_numbers(self) -> list[int]:
        """Ranks that there are traces of, ascending."""
        return [number for number, *_ in self._core.about]

    @cached_property
    def ranks(self) -> Table:
        """One row per rank: what it did, where its time went, how far its clock is ahead of the first rank's.

        `compute_us`, `exposed_us` and `idle_us` sum to `span_us`, from the start of the rank's first op to the end of
        its last one. `overlapped_us` is what it computes while bytes move.
        """
        return Table(self._core.ranks())

    @cached_property
    def ops(self) -> Table:
        """One row per op; `start_us` counts from the start of the rank's first op."""
        return Table(self._core.ops())

    @cached_property
    def collectives(self) -> Table:
        """One row per collective, and per message between two ranks, as each rank saw it.

        `bytes` are of its input, None where the file does not say them.
        """
        return Table(self._core.collectives())

    def summary(self) -> dict[str, Any]:
        """Return the figures of the trace, as a dict that JSON can hold."""
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
        """Return the time breakdown of the typical step on its slowest rank; None if every step is damaged."""
        if not self.steps:
            return None
        row = self._slowest(self.step())
        parts = {f"{part}_ms": row[f"{part}_ns"] / 1e6 for part in ("span", "compute", "exposed", "idle")}
        about = {"number": self.typical_step, "found_by": self.steps_found_by, "steps": len(self.steps)}
        return about | {"rank": row["rank"]} | parts

    @property
    def has_times(self) -> bool:
        """Whether the files say when their ops started; some describe what is to be done, and have durations alone."""
        return not any(gap.what == "start" for gap in self._gaps)

    def _untimed_headline(self, summary: dict[str, Any]) -> str:
        """Return the headline of files without start times: nodes, transfers, bytes and durations."""
        rows, durations_us = summary["ranks"], self.ops["duration_us"]
        nodes, transfers = (sum(row[key] for row in rows) for key in ("ops", "transfers"))
        known = sum(row["transfer_bytes"] for row in rows)
        size = units.format_bytes(known)
        if any(gap.what in ("size", "unknown_transfer") for gap in self._gaps):
            size = f"at least {size}" if known else "unknown size"
        took = f"durations sum to {durations_us.sum() / 1000:.3f} ms" if durations_us.any() else "no durations"
        return (
            f"{nodes:,} nodes, of them {transfers:,} transfers of {size}; {took}. The files have no start times, so "
            "nothing is known of what waits or overlaps."
        )

    @cached_property
    def _gaps(self) -> list[Gap]:
        return found_gaps(self._core.gaps, self.format)

    def _gaps_of_step(self, number: int) -> list[Gap]:
        """Return the gaps in a step, including those whose time is unknown."""
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
        """Numbers of the steps that all ranks have: the profiler's, or counted from 0 where transfers repeat."""
        return [step["number"] for step in self._steps["steps"]]

    @property
    def steps_found_by(self) -> str:
        """How steps were told apart: "marks" of the profiler, "transfers" that repeat, or "whole": not at all."""
        return str(self._steps["found_by"])

    @cached_property
    def typical_step(self) -> int:
        """Number of the step of median length on its slowest rank; the first does not count where there are more."""
        rows = self._steps["steps"][1:] or self._steps["steps"]
        if not rows:
            damaged = [str(gap) for gap in self._gaps if gap.what == "damaged"]
            raise TraceError(f"every step has an event of unknown duration ({', '.join(damaged)}); record it again")
        lengths = [(max(end - start for start, end in row["windows_ns"]), row["number"]) for row in rows]
        return int(sorted(lengths)[(len(lengths) - 1) // 2][1])

    def step(self, number: int | None = None) -> dict[str, Any]:
        """Return what every rank did in a step, times in nanoseconds from its start on the rank's own clock.

        Args:
            number: which; None for the typical one.

        Returns:
            `number`; `ranks`, each with `span_ns` and the parts that sum to it, computing by `passes` (forward,
            backward, update, or unsaid), and the stretches of `computing` and `waiting`, joined where they are nearer
            than a pixel; and `transfers`, each with what every rank saw of it: ready, start, duration, exposed.

        Raises:
            TraceError: if there is no such step.
        """
        return self._cut(number, PIXELS)

    @staticmethod
    def _slowest(step: dict[str, Any]) -> dict[str, Any]:
        """Return the slowest rank of a step, whose length is that of the step."""
        row: dict[str, Any] = max(step["ranks"], key=lambda row: (row["span_ns"], -row["rank"]))
        return row

    def _exact_step(self, number: int | None) -> dict[str, Any]:
        """Return the same as `step`, with unmerged intervals of computing and waiting."""
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
        """Return a step as a model, for scenarios and studies: each all-reduce of a gradient is a layer.

        Args:
            rank: whose times; those of the one that computes and idles longest if not given, since the others wait
                for it.
            step: which; the typical one if not given.
            name: what results call it.

        Raises:
            TraceError: if there is no such rank or step, it has no all-reduce of a gradient, or the files hold
                something that changes the answer and that no layer can represent.
        """
        if rank is not None:
            self._known(rank)
        document = self._exact_step(step)
        fatal = [f"{gap}; {gap.fix}" for gap in self._gaps_of_step(document["number"]) if gap.fix]
        if fatal:
            raise TraceError(f"the trace is no model: {' · '.join(fatal)}")
        about = self.summary()
        world_size = about["world_size"] or len(self.rank_numbers)
        return of_step(document, self.steps_found_by, rank, name, world_size, tuple(about["warnings"]))

    def graph(self, step: int | None = None) -> dict[str, Any]:
        """Return a step as a graph: what every rank computes, what is transferred in which group, what waits for what.

        Args:
            step: which; the typical one if not given.

        Returns:
            `classes`, one per rank, each with its `ops` in their order: name and picoseconds; `groups`; `transfers`,
            each with `kind`, `bytes` and its `group`; and `edges`: pairs of which the second waits for the first. Ops
            are counted rank by rank, and transfers after them.

        Raises:
            TraceError: if there is no such step, a rank is missing, or the step holds what no graph can represent.
        """
        from gradtide.traces.graph import step_graph

        number = self.typical_step if step is None else step
        self._check_step(number)
        return step_graph(self, number)

    def to_step(self, *, step: int | None = None, name: str = "trace") -> TraceStep:
        """Return a step as a graph of all its ranks, for scenarios: jobs that send more than gradients.

        Args:
            step: which; the typical one if not given.
            name: what results call it.

        Raises:
            TraceError: as `graph`, and if the step has no transfer.
        """
        from gradtide.traces.graph import HOST, summed_up

        number = self.typical_step if step is None else step
        document = self.graph(number)
        if not document["transfers"]:
            raise TraceError(f"step {number} has no transfer")
        host_ps = max(sum(time for what, time in one["ops"] if what == HOST) for one in document["classes"])
        idle = f"; the device of a rank stands idle for up to {host_ps / 1e9:.3f} ms, which is kept" if host_ps else ""
        return TraceStep(name, summed_up(document), f"step {number}{idle}")

    def waterfall(self, step: int | None = None) -> "WaterfallResult":
        """Return where the time of a step goes, what bounds each transfer, and what would help.

        Args:
            step: which; the typical one if not given.

        Raises:
            TraceError: if there is no such step.
        """
        from gradtide.studies.waterfall import waterfall

        return waterfall(self, step)

    def to_dag(self, rank: int | None = None, *, cut: bool = False) -> OpDag:
        """Return a rank's trace as an op DAG, for `gradtide.order`; times in nanoseconds.

        Args:
            rank: which; the first if not given.
            cut: let what is received start without waiting, as the parameters of TicTac's servers do. An op DAG knows
                no transfer that waits for computation.

        Raises:
            TraceError: if there is no such rank.
            ScenarioError: if it is no op DAG: a transfer waits (GT070), ops wait for each other (GT072), nothing is
                received (GT014).
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
            path: `NAME.et` for Chakra, which has one file per rank: `NAME.0.et` and so on if there are several; or
                `NAME.json` for the op DAG of one rank.
            rank: write this one alone; an op DAG is of the first if not given.
            cut: as in `to_dag`.
            version: Chakra schema that the file names, 0.0.4 or 1.0.0. Their nodes are the same.

        Returns:
            The files that were written.

        Raises:
            TraceError: if there is no such rank, or a file cannot be written.
            ValueError: if the suffix is another, or the version.
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


def from_kineto(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read traces of PyTorch's profiler, one file per rank.

    Args:
        path: a file (.json or .json.gz), a folder or an archive of them (tar, tar.gz, zip), a pattern such as
            `"traces/rank*.json.gz"`, or a list. A file's rank is what its `distributedInfo` says, or else the last
            number in its name that follows "rank".

    Returns:
        The trace; files are read in pieces, and what is kept is smaller than they are.

    Raises:
        TraceError: if a file cannot be read, is cut off or is something else, or two are of one rank.

    Source:
        torch.profiler, `export_chrome_trace`; docs/models/traces.md.
    """
    return _read(files.named(path, files.KINETO), "kineto")


def from_execution_trace(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read traces of PyTorch's ExecutionTraceObserver, one file per rank: operators, transfers and what waits for what.

    The files have no times, so neither have ops.

    Args:
        path: as in `from_kineto`. A file's rank is the one that its collectives record, or else the last number in its
            name that follows "rank".

    Returns:
        The trace.

    Raises:
        TraceError: if a file cannot be read, is cut off or is something else, or two are of one rank.

    Source:
        torch.profiler, `ExecutionTraceObserver`, schemas 1.0.1 to 1.1.1; docs/models/traces.md.
    """
    return _read(files.named(path, files.KINETO), "pytorch-et")


def from_chakra(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read MLCommons Chakra execution traces, one file per rank.

    Args:
        path: a file (.et), a folder or an archive of them (tar, tar.gz, zip), a pattern such as `"trace.*.et"`, or a
            list. A file's rank is the last number in its name, as in `trace.3.et`.

    Raises:
        TraceError: if a file cannot be read, is cut off or is something else, or two are of one rank.

    Source:
        MLCommons Chakra, `et_def.proto`, schemas 0.0.4 and 1.0.0; docs/models/traces.md.
    """
    return _read(files.named(path, files.CHAKRA), "chakra")


def read(path: str | Source | Sequence[str | Source]) -> Trace:
    """Read a trace of whatever format its files are: one of another tool, or an op DAG that `Trace.save` wrote.

    Args:
        path: as of `from_kineto`.

    Raises:
        TraceError: as `from_kineto`, `from_execution_trace` and `from_chakra`.
    """
    names = files.named(path, files.ANY)
    if all(name.name.endswith(files.CHAKRA) for name in names):
        return _read(names, "chakra")
    if files.are_exports(names):
        return _read(names, "nsight")
    head = files.start(names[0])
    schema = re.search(rb"gradtide\.trace/\d{1,9}", head[:200]) if len(names) == 1 else None
    if schema is not None:
        other = other_version(schema[0].decode(), [DAG_SCHEMA])
        if other is not None:
            raise TraceError(f"{names[0]} {other}; update gradtide, or make it again")
        with files.faults_of(names[0], "dag"):
            return Trace(_core.Trace.from_dag(files.text(names[0], MAX_DAG_BYTES)), "dag")
    found = recognise.seen(head)
    return _read(names, "pytorch-et" if found is not None and found.name == "pytorch-et" else "kineto")


_RANK = re.compile(r"rank[_\-.]?(\d+)")

_READERS: dict[str, tuple[Callable[[Iterator[bytes]], _core.Trace], "re.Pattern[str]"]] = {
    "kineto": (_core.kineto, _RANK),
    "nsight": (_core.kineto, _RANK),
    "pytorch-et": (_core.execution_trace, _RANK),
    "chakra": (_core.chakra, re.compile(r"(\d+)(?=\D*$)")),
}
"""By format: the core's reader, and the pattern of the rank in a file's name."""


def _read(names: Sequence[Source], form: str) -> Trace:
    parts: list[_core.Trace] = []
    numbers: dict[int, Source] = {}
    for name, otherwise, chunks in _exports(names) if form == "nsight" else _files(names, form):
        with files.faults_of(name, form):
            part = _READERS[form][0](chunks)
        [(_, said, _, _)] = part.about
        number = otherwise if said is None else said
        if number in numbers:
            raise TraceError(f"{name} and {numbers[number]} are both of rank {number}; give one file per rank")
        numbers[number] = name
        parts.append(part)
    return Trace(_core.Trace.of_ranks(list(numbers), parts), form)


def _files(names: Sequence[Source], form: str) -> Iterator[tuple[Source, int, Iterator[bytes]]]:
    """Yield each file with the rank in its name, or else its index, and its bytes."""
    for index, chunks in files.pieces(names):
        yield names[index], _rank_in_name(names[index], form, index), chunks


def _exports(names: Sequence[Source]) -> Iterator[tuple[Source, int, Iterator[bytes]]]:
    """Yield each process of the exports of Nsight Systems with its rank and its events."""
    count = 0
    for name in names:
        if not isinstance(name, Path):
            raise TraceError(f"{name}: an export of Nsight Systems is not read in an archive; unpack it first")
        with files.faults_of(name):
            found = nsight.processes(name)
        for one in found:
            rank = _rank_in_name(name, "nsight", count) if len(found) == 1 else count
            yield name, rank if one.rank is None else one.rank, one.chunks()
            count += 1


def _rank_in_name(name: Source, form: str, otherwise: int) -> int:
    found = _READERS[form][1].findall(name.name)
    return _rank(found[-1] if found else "", otherwise)


def _rank(digits: str, otherwise: int) -> int:
    """Return the rank in a file's name, or `otherwise` if the number has too many digits."""
    return int(digits) if 0 < len(digits) <= MAX_RANK_DIGITS else otherwise


def _warnings(summary: dict[str, Any]) -> list[str]:
    found = []
    missing = summary["missing_ranks"]
    if missing:
        shown = _some(missing)
        found.append(f"there is no trace of {shown}; what is said is of the others")
    for row in summary["ranks"]:
        offset = row["clock_offset_us"]
        # The end of a collective also differs between ranks, so only offsets beyond the span are attributed to clocks.
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
    """Effective number of ranks: how many that never wait would compute as much in the time of the slowest."""
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
    return f"{ranks} the work of {summary['effective_ranks']:.2f} that never wait: {took}, {parts}.{typical}"


def _some(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {', '.join(map(str, numbers[:10]))}" + (f" and {len(numbers) - 10} more" * (len(numbers) > 10))
