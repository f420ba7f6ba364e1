"""Background flows: reads size distributions and lists of flows, draws arrivals, and returns the flows as columns.

    sizes (a CDF) + arrivals (Poisson, perhaps in bursts)  ─┐
    a list of flows (CSV)                                   ├─► BackgroundFlows: start_ps, src, dst, bytes, band
    incast (many hosts to one, periodically)               ─┘

This module opens no file and reads no scenario. Poisson flows are drawn with CPython's `random.Random` in the order of
the program of Gao (2020), so that seeds 0, 1 and 2 give exactly the flows of that thesis.
"""

import hashlib
import itertools
import math
import random
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from gradtide.errors import Fault, ScenarioError
from gradtide.units import PS_PER_NS

MAX_FLOWS = 1_000_000_000
"""Largest number of flows of one run. `gradtide.estimate` refuses runs that would need too much memory or time."""

MAX_FLOW_BYTES = 10**15
MAX_FAULTS_OF_A_FILE = 20
BYTES_PER_FLOW = 400
"""Memory of a flow in Python and the core together, in bytes. Measured, and rounded up."""

_HOST = re.compile(r"h?(0|[1-9]\d{0,8})", re.ASCII)

MAX_POINTS = 100_000
MAX_SHARE_DIGITS = 18
"""Largest number of digits of a share after its decimal point."""

Point = tuple[int, Fraction]
"""A size in bytes, and the share of flows of at most that size."""

_SHARE = re.compile(r"\d{1,18}(\.\d{0,18})?|\.\d{1,18}", re.ASCII)

_THESIS_SEED = 123456789876
"""Constant to which the program of Gao (2020) adds the number of a run to get its seed."""

_NS_PER_S = 1e9

_U64_MAX = 2**64 - 1
_HEADER = "start_ns,src,dst,bytes[,band]"
_COLUMNS = ("start_ns", "src", "dst", "bytes", "band")

FlowRow = tuple[int, int, int, int, int, "int | None"]
"""A flow in a file: line number, start in nanoseconds, source, destination, bytes, and band (None without bands)."""


@dataclass(frozen=True)
class BackgroundFlows:
    """Background flows of one `traffic` table, as columns with one entry per flow, sorted by start.

    Attributes:
        name: key of the flows in the scenario (`traffic.NAME`).
        start_ps, src, dst, bytes, band: start, two different hosts, payload and priority band of each flow.
        idle_ps: minimum pause of a host after each of its flows; `None` if every flow starts at its `start_ps`.
        together: whether hosts wait for one another: the pause of all hosts then starts when no flow is in flight.
        setup_ps: time from the opening of a flow's connection to its first byte.
    """

    name: str
    start_ps: "array[int]"
    src: "array[int]"
    dst: "array[int]"
    bytes: "array[int]"
    band: "array[int]"
    idle_ps: int | None = None
    together: bool = False
    setup_ps: int = 0

    def __len__(self) -> int:
        return len(self.start_ps)

    def before(self, until_ps: int) -> "BackgroundFlows":
        """Return the flows that start before `until_ps`."""
        stop = bisect_left(self.start_ps, until_ps)
        if stop == len(self):
            return self
        names = ("start_ps", "src", "dst", "bytes", "band")
        return replace(self, **{name: getattr(self, name)[:stop] for name in names})


def background_flows(
    name: str,
    start_ps: Sequence[int],
    src: Sequence[int],
    dst: Sequence[int],
    size_bytes: Sequence[int],
    band: "int | Sequence[int]",
) -> BackgroundFlows:
    """Return flows as columns, sorted by start; flows with equal starts keep their order."""
    bands = array("B", [band]) * len(start_ps) if isinstance(band, int) else array("B", band)
    columns = [array("Q", start_ps), array("I", src), array("I", dst), array("Q", size_bytes), bands]
    starts = columns[0]
    if any(a > b for a, b in itertools.pairwise(starts)):
        order = sorted(range(len(starts)), key=starts.__getitem__)
        columns = [array(column.typecode, [column[i] for i in order]) for column in columns]
    starts, sources, sinks, sizes, bands = columns
    return BackgroundFlows(name, starts, sources, sinks, sizes, bands)


def host_index(text: str, host_count: int) -> int | None:
    """Return the index of the host `h3` or `3`; `None` if there is no such host."""
    match = _HOST.fullmatch(text)
    return int(match[1]) if match and int(match[1]) < host_count else None


def too_many(count: int, fail: Callable[[str, str, str], Fault]) -> Fault:
    """Return the fault of too many flows for one run, with the memory that the flows would take."""
    msg = f"about {count:,} flows are too many: they would take {count * BYTES_PER_FLOW / 1e9:,.1f} GB of memory"
    return fail("GT050", msg, f"a run has at most {MAX_FLOWS:,}; lower the rate or the duration")


class Line(NamedTuple):
    """A line of a file of flows or sizes, to which faults refer.

    Attributes:
        file: name of the file.
        number: number of the line, from 1.
        text: the line.
    """

    file: str
    number: int
    text: str

    def fault(self, code: str, field: str, msg: str, hint: str, value: object = None, cell: int = -1) -> Fault:
        """Return a fault at this line, or at its comma-separated cell with index `cell` if `cell` is not negative."""
        start, stop = 0, len(self.text)
        if cell >= 0:
            cells = self.text.split(",")
            start = sum(len(c) + 1 for c in cells[:cell]) + len(cells[cell]) - len(cells[cell].lstrip())
            stop = start + len(cells[cell].strip())
        return Fault(code, field, msg, value, hint, self.file, self.number, self.text, start, max(1, stop - start))


NO_BYTES = ("all flows have 0 bytes", "let a size of at least 1 byte have a larger share than the one before")
"""Message and hint for a distribution with mean 0."""


@dataclass(frozen=True)
class Sizes:
    """A distribution of flow sizes, given by points of its CDF, between which the CDF is linear.

    Attributes:
        bytes: sizes, not decreasing.
        cdf: for each size, the share of flows of at most this size. Shares do not decrease, and the last is 1. The
            first is the share of flows of exactly the first size.
    """

    bytes: tuple[int, ...]
    cdf: tuple[float, ...]

    @classmethod
    def of(cls, points: Sequence[Point]) -> "Sizes":
        """Return the distribution with these points; shares become floats, as the generators of flows need them."""
        return cls(tuple(size for size, _ in points), tuple(float(share) for _, share in points))

    @property
    def mean_bytes(self) -> Fraction:
        """Exact mean size of the piecewise linear distribution."""
        total = Fraction(self.cdf[0]) * self.bytes[0]
        for index in range(1, len(self.cdf)):
            share = Fraction(self.cdf[index]) - Fraction(self.cdf[index - 1])
            total += share * (self.bytes[index] + self.bytes[index - 1]) / 2
        return total

    def at(self, share: float) -> int:
        """Return the size at quantile `share` (0 < share <= 1) of the distribution, at least 1 byte."""
        index = bisect_left(self.cdf, share)
        if index == 0:
            return max(1, self.bytes[0])
        low, high = self.bytes[index - 1], self.bytes[index]
        # The order of operations is that of Gao's program, because rounding affects some of the sizes.
        above = (high - low) * (share - self.cdf[index - 1]) / (self.cdf[index] - self.cdf[index - 1])
        return max(1, round(low + above))


def read_sizes(text: str, name: str) -> Sizes:
    """Return the distribution in the text of a file, in the formats of `read_points`."""
    return Sizes.of(read_points(text, name))


def read_points(text: str, name: str) -> list[Point]:
    """Return the exact points of the distribution in a file.

    There are three formats: lines `bytes percent` up to 100, lines `bytes share` up to 1 (separated by blanks, a tab, a
    colon or a comma), and CSV with the header `bytes,cdf`. The last value, 100 or 1, distinguishes percent from share.
    Text after # is a comment. An error contains every fault, each at its line and field.
    """
    rows: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.split("#", 1)[0].strip()
        if bare:
            rows.append((number, line, [cell for cell in re.split(r"[\s,;:]+", bare) if cell]))
    if rows and any(c.isalpha() for c in "".join(rows[0][2])):
        number, line, cells = rows.pop(0)
        if [cell.lower() for cell in cells] != ["bytes", "cdf"]:
            msg = "the first line is neither a point nor the header"
            raise ScenarioError([Line(name, number, line).fault("GT061", "", msg, "write the header bytes,cdf")])
    if not rows:
        hint = "write lines of bytes and percent, as in 4000 15"
        raise ScenarioError([Fault("GT061", "", f"{name} has no points", None, hint, name)])
    if len(rows) > MAX_POINTS:
        msg = f"{name} has {len(rows):,} points"
        raise ScenarioError([Fault("GT050", "", msg, None, f"at most {MAX_POINTS:,}; is it the right file?", name)])
    return checked_points(rows, name)


def checked_points(rows: Sequence[tuple[int, str, Sequence[str]]], name: str) -> list[Point]:
    """Return the points in `rows` after checking them; each row has number, text and cells of a line."""
    faults: list[Fault] = []
    points: list[tuple[int, Fraction, int, str]] = []
    for number, line, cells in rows:
        if len(faults) >= MAX_FAULTS_OF_A_FILE:
            break
        if len(cells) != 2:
            msg, hint = f"the line has {len(cells)} fields", "write bytes and percent, as in 4000 15"
            if len(cells) == 3:
                hint += "; three columns are ns-2's: gradtide convert reads them"
            faults.append(Line(name, number, line).fault("GT061", "", msg, hint))
            continue
        size, share = cells
        before = len(faults)
        if not (size.isascii() and size.isdigit()) or len(size) > 16 or int(size) > MAX_FLOW_BYTES:
            msg, hint = f'"{size[:40]}" is not a number of bytes', f"write a whole number up to {MAX_FLOW_BYTES:,}"
            faults.append(Line(name, number, line).fault("GT061", "bytes", msg, hint, size))
        if not _SHARE.fullmatch(share):
            msg, hint = f'"{share[:40]}" is not a share', "write percent up to 100, or a share up to 1"
            faults.append(Line(name, number, line).fault("GT061", "cdf", msg, hint, share))
        if len(faults) == before:
            points.append((int(size), Fraction(share), number, line))
    if not faults:
        for (size_a, share_a, _, _), (size_b, share_b, number, line) in itertools.pairwise(points):
            if size_b < size_a and len(faults) < MAX_FAULTS_OF_A_FILE:
                msg, hint = f"{size_b} bytes follow {size_a}", "sort the lines by size"
                faults.append(Line(name, number, line).fault("GT061", "bytes", msg, hint, size_b))
            if share_b < share_a and len(faults) < MAX_FAULTS_OF_A_FILE:
                hint = "each line has the share of flows of at most its size"
                faults.append(Line(name, number, line).fault("GT061", "cdf", "the shares fall", hint, float(share_b)))
    if faults:
        raise ScenarioError(faults)
    top, number, line = points[-1][1:]
    if top not in (1, 100):
        msg, hint = f"the last share is {float(top):g}", "it is 100 (percent) or 1: all flows are of at most that size"
        raise ScenarioError([Line(name, number, line).fault("GT061", "cdf", msg, hint, float(top))])
    exact = [(size, share / top) for size, share, _, _ in points]
    if Sizes.of(exact).mean_bytes == 0:
        raise ScenarioError([Line(name, number, line).fault("GT061", "bytes", *NO_BYTES, 0)])
    return exact


@dataclass(frozen=True)
class Poisson:
    """Flows that arrive at random between random pairs of hosts, and start before `until_ps`.

    Attributes:
        flows_per_s: mean arrival rate of all hosts together, averaged over bursts and silences.
        host_count: hosts of the cluster, at least 2.
        on_ps: length of a burst; 0 if flows arrive all the time.
        off_ps: silence after a burst.

    Source:
        Gao (2020), chapter 5, and its program, which has separate seeds for starts, sizes and pairs.
    """

    name: str
    sizes: Sizes
    flows_per_s: Fraction
    host_count: int
    until_ps: int
    root_seed: int
    band: int
    on_ps: int = 0
    off_ps: int = 0

    @property
    def expected_count(self) -> int:
        """Mean number of flows, rounded up."""
        if not self.on_ps:
            return math.ceil(self.flows_per_s * self.until_ps / 10**12)
        period_ps = self.on_ps + self.off_ps
        bursts, rest_ps = divmod(self.until_ps, period_ps)
        busy_ps = bursts * self.on_ps + min(rest_ps, self.on_ps)
        return math.ceil(self.flows_per_s * period_ps / self.on_ps * busy_ps / 10**12)

    @property
    def expected_bytes(self) -> int:
        """Expected payload of all flows together, in bytes, rounded up."""
        return math.ceil(self.expected_count * self.sizes.mean_bytes)

    def between(self) -> None:
        """Return `None`: any host may send to any other."""

    def draw(self) -> BackgroundFlows:
        """Draw the flows; equal `Poisson` objects give equal flows."""
        root = random.Random(self.root_seed)
        seeds = [root.randint(0, 100_000_000) for _ in range(3)]
        starts = self._starts_ps(random.Random(seeds[0]))
        generator = random.Random(seeds[1])
        sizes = [self.sizes.at(1.0 - generator.random()) for _ in starts]
        generator = random.Random(seeds[2])
        last = self.host_count - 1
        sources, sinks = array("I"), array("I")
        for _ in starts:
            src = generator.randint(0, last)
            dst = generator.randint(0, last)
            while dst == src:
                dst = generator.randint(0, last)
            sources.append(src)
            sinks.append(dst)
        return background_flows(self.name, starts, sources, sinks, sizes, self.band)

    def _starts_ps(self, generator: random.Random) -> "array[int]":
        """Return the starts in picoseconds, rounded to whole nanoseconds as in Gao's program.

        A Poisson process is drawn over the bursts alone, as if they followed each other; then the silences between
        them are inserted.
        """
        period_ps = self.on_ps + self.off_ps
        rate = float(self.flows_per_s * period_ps / self.on_ps) if self.on_ps else float(self.flows_per_s)
        until_ns, on_ns, period_ns = self.until_ps / PS_PER_NS, self.on_ps / PS_PER_NS, period_ps / PS_PER_NS
        starts, busy_ns = array("Q"), 0.0
        while True:
            busy_ns += -math.log(1.0 - generator.random()) / rate * _NS_PER_S
            at_ns = busy_ns
            if self.on_ps:
                bursts, rest_ns = divmod(busy_ns, on_ns)
                at_ns = bursts * period_ns + rest_ns
            if at_ns >= until_ns:
                return starts
            starts.append(round(at_ns) * PS_PER_NS)


def root_seed(run_seed: int, name: str, *, is_first: bool) -> int:
    """Return the seed of the random generator of one source of flows.

    The seed of a scenario's first random source depends on the run's seed alone, as in Gao's program. The seed of every
    other source also depends on its name, so that an added source does not change the flows of the others.
    """
    if is_first:
        return _THESIS_SEED + run_seed
    digest = hashlib.sha256(f"traffic/{name}/{run_seed}".encode()).digest()
    return int.from_bytes(digest[:16], "big")


@dataclass(frozen=True)
class Incast:
    """Hosts that all send to one host at the same instant, every `every_ps` from `start_ps` until `until_ps`."""

    name: str
    senders: tuple[int, ...]
    dst: int
    size_bytes: int
    every_ps: int
    start_ps: int
    until_ps: int
    band: int

    @property
    def expected_count(self) -> int:
        """Number of flows."""
        return len(self.senders) * max(0, -(-(self.until_ps - self.start_ps) // self.every_ps))

    @property
    def expected_bytes(self) -> int:
        """Payload of all flows together."""
        return self.expected_count * self.size_bytes

    def between(self) -> Iterator[tuple[int, int, int]]:
        """Return each source and destination with the payload that is sent between them."""
        return _to_one(self)

    def draw(self) -> BackgroundFlows:
        """Return the flows."""
        times = range(self.start_ps, self.until_ps, self.every_ps)
        starts = [time for time in times for _ in self.senders]
        count = len(starts)
        return background_flows(
            self.name, starts, self.senders * len(times), [self.dst] * count, [self.size_bytes] * count, self.band
        )


@dataclass(frozen=True)
class Bursts:
    """Hosts that send to one host, pause, and send again: the pattern of training (Kang et al. 2021, section 4).

    Each host sends `count` bursts of `size_bytes`, the first at `start_ps`. For `idle_ps`, `together` and `setup_ps`
    see `BackgroundFlows`.
    """

    name: str
    senders: tuple[int, ...]
    dst: int
    size_bytes: int
    count: int
    idle_ps: int
    together: bool
    setup_ps: int
    start_ps: int
    band: int

    @property
    def expected_count(self) -> int:
        """Number of flows in a run that is long enough for all of them."""
        return len(self.senders) * self.count

    @property
    def expected_bytes(self) -> int:
        """Payload of all flows together."""
        return self.expected_count * self.size_bytes

    def between(self) -> Iterator[tuple[int, int, int]]:
        """Return each source and destination with the payload that is sent between them."""
        return _to_one(self)

    def draw(self) -> BackgroundFlows:
        """Return the flows. Only the first flow of each host has a known start; the others start during the run."""
        count = self.expected_count
        sizes = [self.size_bytes] * count
        starts, sinks = [self.start_ps] * count, [self.dst] * count
        flows = background_flows(self.name, starts, self.senders * self.count, sinks, sizes, self.band)
        return replace(flows, idle_ps=self.idle_ps, together=self.together, setup_ps=self.setup_ps)


def _to_one(source: Incast | Bursts) -> Iterator[tuple[int, int, int]]:
    each = source.expected_bytes // max(1, len(source.senders))
    return ((sender, source.dst, each) for sender in source.senders)


@dataclass(frozen=True)
class FlowList:
    """Flows from a file, of which only those that start before `until_ps` are in the run."""

    flows: BackgroundFlows
    has_bands: bool
    until_ps: int

    @property
    def expected_count(self) -> int:
        """Number of flows of the list that start within the run."""
        return bisect_left(self.flows.start_ps, self.until_ps)

    @property
    def expected_bytes(self) -> int:
        """Payload of the flows of the run together."""
        return sum(self.flows.bytes[: self.expected_count])

    def between(self) -> Iterator[tuple[int, int, int]]:
        """Return each source and destination with the payload that is sent between them."""
        flows = self.flows
        return itertools.islice(zip(flows.src, flows.dst, flows.bytes, strict=True), self.expected_count)

    def draw(self) -> BackgroundFlows:
        """Return the flows of the run."""
        return self.flows.before(self.until_ps)


def read_flows(
    text: str, file: str, name: str, host_count: int, band_count: int, band: int
) -> tuple[BackgroundFlows, bool]:
    """Return the flows in a text with the header `start_ns,src,dst,bytes[,band]`, and whether it has bands.

    Flows are sorted by start; flows with equal starts keep their order. If the text has no bands, all flows have the
    band `band`.

    Raises:
        ScenarioError: with every fault, each at its line and field.
    """
    lines = text.split("\n")
    if len(lines) > MAX_FLOWS + 1000:
        raise ScenarioError([too_many(len(lines), lambda code, msg, hint: Fault(code, "", msg, None, hint, file))])
    starts_ps, sources, sinks, sizes, bands = (array(kind) for kind in "QIIQB")
    for _, start_ns, src, dst, size_bytes, own_band in flow_rows(lines, file, host_count, band_count):
        starts_ps.append(start_ns * PS_PER_NS)
        sources.append(src)
        sinks.append(dst)
        sizes.append(size_bytes)
        if own_band is not None:
            bands.append(own_band)
    has_bands = bool(bands)
    return background_flows(name, starts_ps, sources, sinks, sizes, bands if has_bands else band), has_bands


def flow_rows(lines: Iterable[str], file: str, host_count: int, band_count: int) -> Iterator[FlowRow]:
    """Yield the flows in lines with the header `start_ns,src,dst,bytes[,band]`, one at a time.

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
    # Hosts and bands recur, so each different text is parsed only once.
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
            faults.append(Line(file, number, line).fault("GT063", "", msg, f"write {','.join(columns)}"))
        else:
            row: dict[str, int] = {}
            for column, cell in zip(columns, cells, strict=True):
                value = seen[column].get(cell) if column in seen else None
                if value is None:
                    value, problem = parse(column, cell.strip())
                    if problem is not None:
                        at = column_of[column]
                        faults.append(Line(file, number, line).fault("GT063", column, *problem, cell.strip(), at))
                        continue
                    if column in seen:
                        seen[column][cell] = value
                row[column] = value
            if len(row) == len(columns):
                if row["src"] == row["dst"]:
                    at = column_of["dst"]
                    msg, hint = f"the flow goes from h{row['src']} to itself", "name another host"
                    faults.append(Line(file, number, line).fault("GT063", "dst", msg, hint, cells[at].strip(), at))
                yield number, row["start_ns"], row["src"], row["dst"], row["bytes"], row.get("band")
        if len(faults) >= MAX_FAULTS_OF_A_FILE:
            break
    if is_empty:
        hint = "write at least one line after the header"
        faults.append(Fault("GT062", "", f"{file} has no flows", None, hint, file))
    if faults:
        raise ScenarioError(faults)


def _is_content(line: str) -> bool:
    return bool(line) and line[0] != "#" and not line.isspace()


def _flow_header(line: str, file: str, number: int) -> list[str]:
    columns = [cell.strip() for cell in line.split(",")]
    faults = []

    def fault(index: int, msg: str, hint: str = f"write {_HEADER}") -> None:
        field = columns[index] if index >= 0 else ""
        faults.append(Line(file, number, line).fault("GT062", field, msg, hint, field or None, index))

    if not set(columns) & set(_COLUMNS):
        fault(-1, "the first line is not the header")
    else:
        seen = set[str]()
        for index, column in enumerate(columns):
            if len(faults) == MAX_FAULTS_OF_A_FILE:
                break
            if column not in _COLUMNS:
                fault(index, f"unknown column `{column[:40]}`")
            elif column in seen:
                fault(index, f"the column `{column}` occurs twice", "delete one")
            seen.add(column)
        for column in _COLUMNS[:4]:
            if column not in columns:
                fault(-1, f"the column `{column}` is missing")
    if faults:
        raise ScenarioError(faults[:MAX_FAULTS_OF_A_FILE])
    return columns


def _field_parser(host_count: int, band_count: int) -> "Callable[[str, str], tuple[int, tuple[str, str] | None]]":
    limits = {"start_ns": (0, _U64_MAX // PS_PER_NS), "bytes": (1, MAX_FLOW_BYTES), "band": (0, band_count - 1)}

    def parse(column: str, cell: str) -> tuple[int, tuple[str, str] | None]:
        if column in ("src", "dst"):
            host = host_index(cell, host_count)
            if host is None:
                last = host_count - 1
                return 0, (f'unknown host "{cell[:40]}"', f"hosts are h0 to h{last}, or 0 to {last}")
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
