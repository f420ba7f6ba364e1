"""Lists of flows, streamed line by line: gradtide's CSV, htsim's connection matrices and HPCC's flow files."""

import re
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from gradtide import traffic
from gradtide.errors import Fault, ScenarioError, cannot_write
from gradtide.files import whole
from gradtide.formats.text import Complaints, Options, count, decimal, lines_of
from gradtide.traffic import BackgroundFlows
from gradtide.units import PS_PER_NS, PS_PER_US, U64_MAX, round_half_up

PS_PER_S = 10**12
NS_PER_S = 10**9
MAX_NODE = 10**9 - 1
MAX_PORT = 2**16 - 1
HTSIM_WORDS = ("id", "msg", "start", "size", "prio", "trigger", "send_done_trigger", "recv_done_trigger")
START_UNITS = {"ps": 1, "us": PS_PER_US}
"""Picoseconds in each unit that htsim uses for start times."""
MAX_UEC_START = 2**32 - 1
"""Latest start that UEC's htsim reads, in microseconds: main_uec.cpp stores starts in 32 bits."""
_UNIT_WORDS = {"ps": "picoseconds", "us": "microseconds"}
_MARKS = {"ps": "# starts are picoseconds", "us": "# starts are microseconds"}
"""Comments that state the unit of a written file. They are below the header, where htsim's reader ignores comments."""
MAX_HTSIM_BYTES = 2**31 - 1
"""Largest flow that htsim reads, because it parses sizes with `stoi`."""
MAX_HPCC_BYTES = 2**32 - 1
"""Largest flow that HPCC reads, because it stores sizes in 32 bits."""

Row = tuple[int, int, int, int, int, "int | None"]
"""A flow: line number, start in picoseconds, source, destination, bytes, and priority band if the file has bands."""


def convert(source: Path, form: str, target: Path | None, into: str, options: Options) -> dict[str, Any]:
    """Read flows, write them line by line, and return their figures.

    Raises:
        ScenarioError: with every fault of the file; an existing file `target` is then not replaced.
    """
    tally = _Tally()
    written = options.start_unit
    if form == "htsim-cm":
        written = None
        options.start_unit = options.start_unit or _start_unit(
            lines_of(source), str(source), "state it: --start-unit ps, or --start-unit us"
        )
    rows = tally.of(_READERS[form](lines_of(source), str(source), options))
    if target is None:
        for _ in rows:
            pass
        tally.hosts = max(tally.hosts, options.nodes)
        return tally.figures()
    try:
        with whole(target) as file:
            _WRITERS[into](rows, file, tally, Complaints(str(source), "GT063"), _Target(options, written))
    except OSError as error:
        raise cannot_write(target, error) from error
    return tally.figures()


def read_flows(
    text: str, file: str, form: str, name: str, host_count: int, band: int, start_unit: str | None = None
) -> BackgroundFlows:
    """Return the flows in another tool's file as background flows of a scenario.

    Args:
        text: the whole file.
        file: the file as the user named it.
        form: htsim-cm or hpcc-flow.
        name: key of the flows in the scenario.
        host_count: number of hosts of the cluster.
        band: priority band of the flows.
        start_unit: unit of htsim's starts, ps or us. Default: detected from the file.

    Raises:
        ScenarioError: with every fault of the file, or GT062 if the conversion would leave out or round anything.
    """
    lines, options = text.split("\n"), Options(start_unit=start_unit)
    if form == "htsim-cm" and start_unit is None:
        options.start_unit = _start_unit(lines, file, 'state it: replay_start_unit = "ps", or "us"')
    starts_ps, sources, sinks, sizes = (array(kind) for kind in "QIIQ")
    wrong = Complaints(file, "GT063")
    for number, start_ps, src, dst, size_bytes, _ in _READERS[form](lines, file, options):
        if max(src, dst) >= host_count:
            msg, hint = f"unknown host {max(src, dst)}", f"hosts are 0 to {host_count - 1}"
            wrong.add(number, lines[number - 1], "src" if src >= host_count else "dst", msg, hint)
        starts_ps.append(start_ps)
        sources.append(src)
        sinks.append(dst)
        sizes.append(size_bytes)
    if options.notes:
        hint = f"gradtide convert {file} flows.csv, and replay that"
        raise ScenarioError([Fault("GT062", "", "; ".join(options.notes), None, hint, file)])
    wrong.end()
    return traffic.background_flows(name, starts_ps, sources, sinks, sizes, band)


def nodes_of(head: str) -> int | None:
    """Return the number of nodes that a connection matrix states; `None` if it states none."""
    match = re.search(r"(?m)^[ \t]*Nodes[ \t]+(\d{1,9})[ \t]*$", head)
    return None if match is None else int(match[1])


def _start_unit(lines: Iterable[str], file: str, how: str) -> str:
    """Return the unit of the starts in a connection matrix: ps or us.

    htsim has two dialects with the same syntax: Broadcom's has picoseconds, UEC's microseconds. They are recognised by

    - a decimal point: `ConnectionMatrix::save` writes microseconds with six decimals;
    - the keyword `addon`, which is only in Broadcom's dialect, or `msg`, which is only in UEC's;
    - a start above 2^32 - 1, which must be picoseconds, because main_uec.cpp cannot store it;
    - a comment with the unit, which `convert` writes.

    If all starts are 0, either unit is correct.

    Args:
        lines: the lines of the file.
        file: the file as the user named it.
        how: hint that explains how the user can state the unit.

    Raises:
        ScenarioError: if the dialect is ambiguous, or two lines contradict each other.

    Source: sim/datacenter/connection_matrix.cpp of Broadcom/csg-htsim, whose starts are picoseconds; main_uec.cpp of
        ultraethernet/uet-htsim, which reads the same file with starts in microseconds.
    """
    shown: dict[str, tuple[int, str]] = {}
    open_start: tuple[int, str, int] | None = None
    for number, line in enumerate(lines, 1):
        for unit, mark in _MARKS.items():
            if line.startswith(mark):
                return unit
        cells = line.split()
        if not cells or "->" not in cells[0]:
            continue
        at = cells.index("start") + 1 if "start" in cells[:-1] else 0
        start = cells[at] if at else "0"
        if "addon" in cells or (start.isdigit() and len(start) <= 20 and int(start) > MAX_UEC_START):
            shown.setdefault("ps", (number, line))
        if "msg" in cells or "." in start:
            shown.setdefault("us", (number, line))
        if open_start is None and decimal(start):
            open_start = number, line, at
    wrong = Complaints(file, "GT063")
    if len(shown) == 2:
        (first, text), (second, _) = sorted(shown.values())
        msg = f"lines {first} and {second} are of two dialects of htsim: picoseconds and microseconds"
        wrong.add(first, text, "start", msg, f"state the unit of all starts: {how}")
    elif not shown and open_start is not None:
        number, line, at = open_start
        msg = "the unit of the starts is ambiguous: htsim reads picoseconds, and its UEC program microseconds"
        wrong.add(number, line, "start", msg, how, at)
    wrong.end()
    return next(iter(shown), "ps")


@dataclass
class _Tally:
    flows: int = 0
    hosts: int = 0
    bytes: int = 0
    first_ps: int = U64_MAX
    last_ps: int = 0

    def of(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            _, start_ps, src, dst, size_bytes, _ = row
            self.flows += 1
            self.hosts = max(self.hosts, src + 1, dst + 1)
            self.bytes += size_bytes
            self.first_ps = min(self.first_ps, start_ps)
            self.last_ps = max(self.last_ps, start_ps)
            yield row

    def figures(self) -> dict[str, Any]:
        starts = {"first_start_s": self.first_ps / PS_PER_S, "last_start_s": self.last_ps / PS_PER_S}
        return {"flows": self.flows, "hosts": self.hosts, "bytes": self.bytes, **starts}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def _read_csv(lines: Iterable[str], file: str, _: Options) -> Iterator[Row]:
    for number, start_ns, src, dst, size, band in traffic.flow_rows(lines, file, MAX_NODE + 1, 256):
        yield number, start_ns * PS_PER_NS, src, dst, size, band


def _read_hpcc(lines: Iterable[str], file: str, options: Options) -> Iterator[Row]:
    """Yield the flows of an HPCC flow file: their number, then a line `src dst pg dport bytes start_s` per flow.

    Source: ReadFlowInput in simulation/scratch/third.cc of alibaba-edu/High-Precision-Congestion-Control, which ignores
    everything after the number of flows in the first line.
    """
    wrong = Complaints(file, "GT063")
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line and not line.isspace())
    number, line = next(numbered, (1, ""))
    first, head, expected = number, line, count(line.strip())
    if expected is None or expected == 0:
        wrong.add(number, line, "", "the first line is not the number of flows", "write the number of flows", 0)
        wrong.end()
    groups: set[str] = set()
    read, left = 0, 0
    for number, line in numbered:
        if read == expected:
            left += 1
            continue
        read += 1
        cells = line.split()
        if len(cells) != 6:
            hint = "write src dst pg dport bytes start: 2 1 3 100 200000 2.0"
            wrong.add(number, line, "", f"the line has {len(cells)} fields", hint)
            continue
        at = _Line(wrong, number, line, cells)
        src, dst = (_node(at, 0, "src", options), _node(at, 1, "dst", options))
        at.whole(2, "pg", 0, MAX_PORT)
        at.whole(3, "dport", 0, MAX_PORT)
        size = at.whole(4, "size", 1, traffic.MAX_FLOW_BYTES)
        start_ps = at.time_ps(5, "start", PS_PER_S, "seconds")
        if src == dst and src is not None:
            at.to_itself(1)
        groups.add(cells[2])
        if not wrong.any and src is not None and dst is not None and size and start_ps is not None:
            yield number, start_ps, src, dst, size, None
    if read < (expected or 0):
        hint = "the file is cut off, or its first line is wrong"
        wrong.add(first, head, "", f"line {first} counts {expected:,} flows and {read:,} follow", hint)
    wrong.end()
    if len(groups) > 1:
        options.notes.append(
            f"{len(groups)} priority groups are left out: HPCC's groups do not correspond to bands of a queue"
        )
    options.note(left, "1 line after the flows is left out", "lines after the flows are left out, as HPCC leaves them")
    if options.hosts is None:
        options.notes.append("hosts are the file's node numbers; if these include switches, give --topology FILE")


def _read_htsim(lines: Iterable[str], file: str, options: Options) -> Iterator[Row]:
    """Yield the flows of a connection matrix: `Nodes N`, `Connections N`, then `src->dst id N start TIME size B` lines.

    Times are in `options.start_unit`. The number of nodes is stored in `options.nodes`.

    Source: ConnectionMatrix::load in sim/datacenter/connection_matrix.cpp of Broadcom/csg-htsim.
    """
    wrong = Complaints(file, "GT063")
    said: dict[str, int] = {}
    places: dict[str, tuple[int, str]] = {}
    unit = options.start_unit or "ps"
    read, left_out = 0, 0
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        word = cells[0]
        if word in ("Nodes", "Connections", "Triggers", "Failures"):
            value = count(cells[1], MAX_NODE) if len(cells) == 2 else None
            if value is None:
                wrong.add(number, line, word, f"`{word}` has no number", f"write {word} 4", 1)
            elif word in said:
                wrong.add(number, line, word, f"`{word}` occurs twice", "delete one", 0)
            said[word] = value or 0
            places[word] = number, line
            options.nodes = said.get("Nodes", 0)
        elif "->" in word:
            read += 1
            row = _htsim_flow(_Line(wrong, number, line, cells), said.get("Nodes", MAX_NODE + 1), unit)
            left_out += "prio" in cells
            if row is not None and not wrong.any:
                yield row
        elif word == "failure":
            wrong.add(number, line, "failure", "a link fails", "a list of flows has no links; delete the line", 0)
        elif word != "trigger":
            hint = "lines are Nodes N, Connections N, or SRC->DST id N start TIME size BYTES"
            wrong.add(number, line, "", f'"{word[:40]}" does not begin a line of a connection matrix', hint, 0)
    if said.get("Connections") != read and not wrong.any:
        found = "missing" if "Connections" not in said else f"{said['Connections']:,} flows"
        hint = "the file is cut off, or the count is wrong"
        number_of, text = places.get("Connections", (None, None))
        wrong.add(number_of, text, "Connections", f"`Connections` is {found}, but {read:,} follow", hint)
    if not read and not wrong.any:
        wrong.add(None, None, "", f"{file} has no flows", "write at least one")
    wrong.end()
    options.note(left_out, "the priority of 1 flow is left out", "flows have priorities, which are left out")


def _htsim_flow(line: "_Line", nodes: int, unit: str) -> Row | None:
    words = line.words
    ends = [count(word, MAX_NODE) for word in words[0].split("->")]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        line.fault("", f'"{words[0][:40]}" is not a pair of nodes', "write 0->1", 0)
        return None
    src, dst = ends[0], ends[1]
    if max(src, dst) >= nodes:
        line.fault("", f"there is no node {max(src, dst)}", f"`Nodes` is {nodes}: 0 to {nodes - 1}", 0)
    if src == dst:
        line.to_itself(0)
    size: int | None = None
    start_ps: int | None = None
    says_when = False
    at = 1
    while at < len(words):
        key = words[at]
        if key == "addon" or (key == "msg" and not (at + 1 < len(words) and words[at + 1].isdigit())):
            at += 1
            continue
        if key not in HTSIM_WORDS:
            line.fault("", f'unknown word "{key[:40]}"', f"a flow has {', '.join(HTSIM_WORDS)}", at)
            return None
        if at + 1 == len(words):
            line.fault(key, f"`{key}` has no value", "the line is cut off", at)
            return None
        if key == "start":
            says_when = True
            start_ps = line.time_ps(at + 1, "start", START_UNITS[unit], _UNIT_WORDS[unit])
        elif key == "size" and words[at + 1].isdigit() and not int(words[at + 1]):
            line.fault("size", "the size is 0: the flow never ends", "write its bytes, from 1", at + 1)
            size = 1
        elif key == "size":
            size = line.whole(at + 1, "size", 1, traffic.MAX_FLOW_BYTES) or 1
        else:
            line.whole(at + 1, key, 0, U64_MAX)
        if key == "trigger":
            says_when = True
            hint = "a list of flows has only start times; write flows that wait for others as the collective of a job"
            line.fault("trigger", f"the flow starts when trigger {words[at + 1][:20]} fires", hint, at)
        at += 2
    if size is None:
        line.fault("size", "the flow has no size: it never ends", "write size and its bytes", 0)
    if not says_when:
        line.fault("start", "the flow has no start", "write start and its time", 0)
    return None if start_ps is None or size is None else (line.number, start_ps, src, dst, size, None)


@dataclass(frozen=True)
class _Line:
    """A line of a file of flows: parses its words as numbers and times, and collects faults."""

    wrong: Complaints
    number: int
    text: str
    words: list[str]

    def fault(self, field: str, msg: str, hint: str, at: int) -> None:
        self.wrong.add(self.number, self.text, field, msg, hint, at)

    def to_itself(self, at: int) -> None:
        self.fault("dst", "the flow goes from a node to itself", "name another node", at)

    def whole(self, at: int, field: str, low: int, high: int) -> int | None:
        """Return the word with index `at` as a whole number; if it is none, add a fault and return `None`."""
        value = count(self.words[at], high)
        if value is None or value < low:
            hint = f"write a whole number from {low} to {high:,}"
            self.fault(field, f'"{self.words[at][:40]}" is not such a number', hint, at)
            return None
        return value

    def time_ps(self, at: int, field: str, unit_ps: int, unit: str) -> int | None:
        """Return the word with index `at` as a time in ps, rounded half up; else add a fault and return `None`."""
        word = self.words[at]
        whole, _, part = word.partition(".")
        digits = whole + part
        time_ps: int | None = None
        if whole and digits.isascii() and digits.isdigit() and len(digits) <= 40:  # usual case, without Fraction
            scale = 10 ** len(part)
            time_ps = (2 * int(digits) * unit_ps + scale) // (2 * scale)
        elif (value := decimal(word)) is not None:
            time_ps = round_half_up(value * unit_ps)
        if time_ps is None or time_ps > U64_MAX:
            self.fault(field, f'"{word[:40]}" is not a time', f"write {unit} from 0; the clock ends after 213 days", at)
            return None
        return time_ps


def _node(line: _Line, at: int, field: str, options: Options) -> int | None:
    node = line.whole(at, field, 0, MAX_NODE)
    if node is None or options.hosts is None:
        return node
    host = options.hosts.get(node)
    if host is None:
        line.fault(field, f"node {node} is not a host of the topology", "every node that is not a switch is a host", at)
    return host


_READERS: dict[str, Callable[[Iterable[str], str, Options], Iterator[Row]]] = {
    "flows": _read_csv,
    "htsim-cm": _read_htsim,
    "hpcc-flow": _read_hpcc,
}

# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Target:
    """Input of a writer: the options of the conversion, and the unit of htsim's start times if the user stated it."""

    options: Options
    start_unit: str | None

    def note_nodes(self, named: int) -> None:
        """Add a note if the source is a connection matrix with more nodes than its flows use (`named`)."""
        if self.options.nodes > named:
            self.options.notes.append(
                f"the matrix has {self.options.nodes:,} nodes, and its flows name {named:,}: give the cluster "
                f"{self.options.nodes:,} hosts"
            )


def _write_csv(rows: Iterator[Row], file: BinaryIO, tally: _Tally, wrong: Complaints, target: _Target) -> None:
    lost, has_bands = _Lost(), False
    for index, (_, start_ps, src, dst, size, band) in enumerate(rows):
        if index == 0:
            has_bands = band is not None
            file.write(b"start_ns,src,dst,bytes,band\n" if has_bands else b"start_ns,src,dst,bytes\n")
        end = f",{band}\n" if has_bands else "\n"
        file.write(f"{lost.ns(start_ps)},{src},{dst},{size}{end}".encode())
    lost.note(target.options)
    target.note_nodes(tally.hosts)


def _write_htsim(rows: Iterator[Row], file: BinaryIO, tally: _Tally, wrong: Complaints, target: _Target) -> None:
    unit = target.start_unit or "ps"
    lost, unit_ps, latest = _Lost(), START_UNITS[unit], 0
    with tempfile.TemporaryFile() as body:
        for index, (number, start_ps, src, dst, size, band) in enumerate(rows, 1):
            _check_size(wrong, number, size, MAX_HTSIM_BYTES, "htsim")
            lost.bands |= bool(band)
            start = lost.in_units(start_ps, unit_ps)
            latest = max(latest, start)
            if unit == "us" and start > MAX_UEC_START:
                wrong.add(number, None, "start", f"a flow starts at {start:,} us", f"UEC reads up to {MAX_UEC_START:,}")
            body.write(f"{src}->{dst} id {index} start {start} size {size}\n".encode())
        wrong.end()
        nodes = max(tally.hosts, target.options.nodes)
        mark = f"{_MARKS[unit]}\n" if latest else ""
        file.write(f"Nodes {nodes}\nConnections {tally.flows}\n{mark}".encode())
        _append(body, file)
    lost.note(target.options, _UNIT_WORDS[unit])
    if latest and target.start_unit is None:
        target.options.notes.append("starts are picoseconds, as csg-htsim reads them; for UEC's htsim: --start-unit us")


def _write_hpcc(rows: Iterator[Row], file: BinaryIO, tally: _Tally, wrong: Complaints, target: _Target) -> None:
    lost, is_sorted, last_ns = _Lost(), True, 0
    with tempfile.TemporaryFile() as body:
        for number, start_ps, src, dst, size, band in rows:
            _check_size(wrong, number, size, MAX_HPCC_BYTES, "HPCC")
            lost.bands |= bool(band)
            start_ns = lost.ns(start_ps)
            is_sorted = is_sorted and start_ns >= last_ns
            last_ns = start_ns
            second, part = divmod(start_ns, NS_PER_S)
            body.write(f"{src} {dst} 3 100 {size} {second}.{part:09}\n".encode())
        wrong.end()
        file.write(f"{tally.flows}\n".encode())
        if is_sorted:
            _append(body, file)
        else:
            # HPCC starts flows in file order. All starts have nine decimals, so of two starts with texts of different
            # lengths the longer text is the later start.
            body.seek(0)
            for line in sorted(body, key=_start_in_order):
                file.write(line)
    lost.note(target.options)
    target.note_nodes(tally.hosts)


@dataclass
class _Lost:
    """What the written format loses: number of rounded starts, and whether bands were left out."""

    rounded: int = 0
    bands: bool = False

    def ns(self, start_ps: int) -> int:
        return self.in_units(start_ps, PS_PER_NS)

    def in_units(self, start_ps: int, unit_ps: int) -> int:
        """Return a start in whole units, rounded half up; count the start if rounding changes it."""
        start, rest = divmod(start_ps + unit_ps // 2, unit_ps)
        self.rounded += rest != unit_ps // 2
        return start

    def note(self, options: Options, unit: str = "nanoseconds") -> None:
        one, many = f"1 start is rounded to whole {unit}", f"starts are rounded to whole {unit}"
        options.note(self.rounded, one, many)
        if self.bands:
            options.notes.append("bands are left out: the format has none")


def _start_in_order(line: bytes) -> tuple[int, bytes]:
    start = line.rsplit(b" ", 1)[1]
    return len(start), start


def _append(body: IO[bytes], file: BinaryIO) -> None:
    body.seek(0)
    shutil.copyfileobj(body, file)


def _check_size(wrong: Complaints, number: int, size: int, most: int, tool: str) -> None:
    if size > most:
        hint = f"{tool} reads at most {most:,}; split the flow"
        wrong.add(number, None, "bytes", f"a flow has {size:,} bytes", hint)


_WRITERS: dict[str, Callable[[Iterator[Row], BinaryIO, _Tally, Complaints, _Target], None]] = {
    "flows": _write_csv,
    "htsim-cm": _write_htsim,
    "hpcc-flow": _write_hpcc,
}
