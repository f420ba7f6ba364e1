"""Lists of background flows: the CSV that gives each flow a line."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gradtide.errors import Fault, ScenarioError
from gradtide.traffic.flows import (
    MAX_FAULTS_OF_A_FILE,
    MAX_FLOW_BYTES,
    MAX_FLOWS,
    BackgroundFlows,
    background_flows,
    fault_at,
    host_index,
    too_many,
)

_PS_PER_NS = 1000
_U64_MAX = 2**64 - 1
_HEADER = "start_ns,src,dst,bytes[,band]"
_COLUMNS = ("start_ns", "src", "dst", "bytes", "band")

FlowRow = tuple[int, int, int, int, int, "int | None"]
"""A flow of a list: number of its line, start in nanoseconds, source, destination, bytes, its band if it has one."""


@dataclass(frozen=True)
class FlowList:
    """A list of flows as it was read.

    Attributes:
        flows: all of them, sorted by start.
        has_bands: whether the list gives bands of its own.
        until_ps: flows that start at or after this are left out of a run.
    """

    flows: BackgroundFlows
    has_bands: bool
    until_ps: int

    @property
    def expected_count(self) -> int:
        """Number of flows of the run."""
        return bisect_left(self.flows.start_ps, self.until_ps)

    @property
    def expected_bytes(self) -> int:
        """Payload of the flows of the run together."""
        return sum(self.flows.bytes[: self.expected_count])

    def draw(self) -> BackgroundFlows:
        """Return the flows of the run."""
        return self.flows.before(self.until_ps)


def read_flows(
    text: str, file: str, name: str, host_count: int, band_count: int, band: int
) -> tuple[BackgroundFlows, bool]:
    """Return the flows of a list with the header `start_ns,src,dst,bytes[,band]`.

    Args:
        text: the whole file.
        file: the file as the user named it.
        name: key of the flows in the scenario (`traffic.NAME`).
        host_count: hosts of the cluster; `src` and `dst` are indices or names such as h0.
        band_count: bands of the queue.
        band: band of all flows, if the list gives none.

    Returns:
        The flows, sorted by start (lines of equal start keep their order), and whether the list has bands.

    Raises:
        ScenarioError: with every fault, each at its line and field.
    """
    lines = text.split("\n")
    if len(lines) > MAX_FLOWS + 1000:
        raise ScenarioError([too_many(len(lines), lambda code, msg, hint: Fault(code, "", msg, None, hint, file))])
    starts_ps, sources, sinks, sizes, bands = (array(kind) for kind in "QIIQB")
    for _, start_ns, src, dst, size_bytes, own_band in flow_rows(lines, file, host_count, band_count):
        starts_ps.append(start_ns * _PS_PER_NS)
        sources.append(src)
        sinks.append(dst)
        sizes.append(size_bytes)
        if own_band is not None:
            bands.append(own_band)
    has_bands = bool(bands)
    return background_flows(name, starts_ps, sources, sinks, sizes, bands if has_bands else band), has_bands


def flow_rows(lines: Iterable[str], file: str, host_count: int, band_count: int) -> Iterator[FlowRow]:
    """Yield the flows of a list with the header `start_ns,src,dst,bytes[,band]`, one at a time.

    Args:
        lines: of the file, without their ends.
        file: the file as the user named it.
        host_count: hosts that there are.
        band_count: bands that there are.

    Raises:
        ScenarioError: after the last flow, with every fault, each at its line and field.
    """
    numbered = enumerate(lines, 1)
    first = next(((number, line) for number, line in numbered if _is_content(line)), None)
    if first is None:
        raise ScenarioError([Fault("GT062", "", f"{file} is empty", None, f"its first line is {_HEADER}", file)])
    columns = _flow_header(first[1], file, first[0])
    column_of = {column: index for index, column in enumerate(columns)}
    parse = _field_parser(host_count, band_count)
    # Hosts and bands recur, so each text is parsed only once.
    seen: dict[str, dict[str, int]] = {"src": {}, "dst": {}, "band": {}}
    faults: list[Fault] = []
    is_empty = True
    for number, line in numbered:
        if not _is_content(line):
            continue
        is_empty = False
        cells = line.split(",")
        if len(cells) != len(columns):
            msg = f"the line has {len(cells)} fields, the header {len(columns)}"
            faults.append(fault_at("GT063", "", msg, f"write {','.join(columns)}", None, file, number, line))
        else:
            row: dict[str, int] = {}
            for column, cell in zip(columns, cells, strict=True):
                value = seen[column].get(cell) if column in seen else None
                if value is None:
                    value, problem = parse(column, cell.strip())
                    if problem is not None:
                        at = column_of[column]
                        faults.append(fault_at("GT063", column, *problem, cell.strip(), file, number, line, at))
                        continue
                    if column in seen:
                        seen[column][cell] = value
                row[column] = value
            if len(row) == len(columns):
                if row["src"] == row["dst"]:
                    at = column_of["dst"]
                    msg, hint = f"the flow goes from h{row['src']} to itself", "name another host"
                    faults.append(fault_at("GT063", "dst", msg, hint, cells[at].strip(), file, number, line, at))
                yield number, row["start_ns"], row["src"], row["dst"], row["bytes"], row.get("band")
        if len(faults) >= MAX_FAULTS_OF_A_FILE:
            break
    if is_empty:
        faults.append(
            Fault("GT062", "", f"{file} has no flows", None, "write at least one line after the header", file)
        )
    if faults:
        raise ScenarioError(faults)


def _is_content(line: str) -> bool:
    return bool(line) and line[0] != "#" and not line.isspace()


def _flow_header(line: str, file: str, number: int) -> list[str]:
    columns = [cell.strip() for cell in line.split(",")]
    faults = []

    def fault(index: int, msg: str, hint: str = f"write {_HEADER}") -> None:
        field = columns[index] if index >= 0 else ""
        faults.append(fault_at("GT062", field, msg, hint, field or None, file, number, line, index))

    if not set(columns) & set(_COLUMNS):
        fault(-1, "the first line is not the header")
    else:
        for index, column in enumerate(columns):
            if column not in _COLUMNS:
                fault(index, f"unknown column `{column[:40]}`")
            elif column in columns[:index]:
                fault(index, f"the column `{column}` occurs twice", "delete one")
        for column in _COLUMNS[:4]:
            if column not in columns:
                fault(-1, f"the column `{column}` is missing")
    if faults:
        raise ScenarioError(faults[:MAX_FAULTS_OF_A_FILE])
    return columns


def _field_parser(host_count: int, band_count: int) -> "Callable[[str, str], tuple[int, tuple[str, str] | None]]":
    limits = {"start_ns": (0, _U64_MAX // _PS_PER_NS), "bytes": (1, MAX_FLOW_BYTES), "band": (0, band_count - 1)}

    def parse(column: str, cell: str) -> tuple[int, tuple[str, str] | None]:
        if column in ("src", "dst"):
            host = host_index(cell, host_count)
            if host is None:
                return 0, (
                    f'unknown host "{cell[:40]}"',
                    f"hosts are h0 to h{host_count - 1}, or 0 to {host_count - 1}",
                )
            return host, None
        low, high = limits[column]
        if not (cell.isascii() and cell.isdigit()):
            return 0, (f'"{cell[:40]}" is not a whole number', f"write a whole number from {low}, without unit")
        value = int(cell) if len(cell) <= 20 else _U64_MAX
        if not low <= value <= high:
            what = f"the queue has bands 0 to {high}" if column == "band" else f"`{column}` is from {low} to {high:,}"
            return 0, (f"{cell[:40]} is out of range", what)
        return value, None

    return parse
