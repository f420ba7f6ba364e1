"""Background flows as columns, the limits of a run's flows, and the faults of lines that describe them."""

import itertools
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradtide.errors import Fault

MAX_FLOWS = 1_000_000_000
"""Flows of one run. `gradtide.estimate` refuses a run before it needs too much memory or time."""

MAX_FLOW_BYTES = 10**15
MAX_FAULTS_OF_A_FILE = 20
BYTES_PER_FLOW = 400
"""Memory that a flow takes on its way into the core and out of it; measured, rounded up."""

_HOST = re.compile(r"h?(0|[1-9]\d{0,8})", re.ASCII)


@dataclass(frozen=True)
class BackgroundFlows:
    """Background flows of one `traffic` table; columns of one length, in order of start.

    Attributes:
        name: key of the flows in the scenario (`traffic.NAME`).
        start_ps: when each flow starts.
        src: index of the sending host.
        dst: index of the receiving host, another one.
        bytes: payload.
        band: band on the network.
        idle_ps: time from a flow's end to the start of the next one of its host, which does not start before; `None`
            starts every flow at its time.
        together: whether hosts wait for one another: that end is the end of the last flow under way.
        setup_ps: time from when a flow may open its connection to its first byte.
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
    """Make columns of flows, sorted by start; flows that start together keep their order."""
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
    """Make the fault of too many flows for one run, with the memory that they would take."""
    msg = f"about {count:,} flows are too many: they would take {count * BYTES_PER_FLOW / 1e9:,.1f} GB of memory"
    return fail("GT050", msg, f"a run has at most {MAX_FLOWS:,}; lower the rate or the duration")


def fault_at(
    code: str, field: str, msg: str, hint: str, value: object, file: str, number: int, line: str, index: int = -1
) -> Fault:
    """Make a fault at a line of a file, and at the comma-separated cell `index` of it if that is not negative."""
    start, stop = 0, len(line)
    if index >= 0:
        cells = line.split(",")
        cell = cells[index]
        start = sum(len(c) + 1 for c in cells[:index]) + len(cell) - len(cell.lstrip())
        stop = start + len(cell.strip())
    return Fault(code, field, msg, value, hint, file, number, line, start, max(1, stop - start))
