"""`gradtide calibrate`: fits the overheads of the host model (docs/models/hosts.md) to measured transfer times.

A message of s bytes passes through several stages, one of which may be the wire. With d pipelined parts, it takes

    a + x s/d + (d - 1) max(m, y s/d)

where a is the time of an empty message, x the time per byte summed over all stages, m the host's time per message, and
y the time per byte in the slowest stage. Messages of one part (d = 1) determine a and x; m and y can be determined only
from messages of several parts.
"""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gradtide import units, words
from gradtide.files import write_whole
from gradtide.intervals import student_t
from gradtide.recognise import expecting
from gradtide.studies.channels import line

SCHEMA = "gradtide.calibration/1"
COLLECTIVES = ("send", "all_reduce", "all_gather", "reduce_scatter")
LEAST_SIZES = 3
"""Fewest different message sizes that a fit accepts. A fit to two sizes would be exact, and would leave no
residuals."""
LEAST_RANGE = 16
"""A fit requires that the largest size in the table is at least this many times the smallest size."""
STAGES = ("copy", "serialise", "receive")
NEGLIGIBLE = 0.02
"""A stage is omitted if its time per byte is below this share of the time per byte in all stages."""
MAX_ROWS = 10_000
POOR_PERCENT = 20
"""If the error of a row exceeds this percentage, a note says that the times do not follow the formula."""


class Timing(NamedTuple):
    """Bytes, number of parts (`depth`) and measured time of one message, which is one round of a collective."""

    size: float
    depth: int
    time_s: float


@dataclass(frozen=True)
class Timings:
    """A table of measured times of one collective among `ranks` ranks.

    Attributes:
        collective: name in `COLLECTIVES`.
        rows: for each measurement, the size of the collective in bytes, the number of parts, and the time in seconds.
    """

    collective: str
    ranks: int
    rows: tuple[tuple[int, int, float], ...]

    @property
    def rounds(self) -> int:
        """Number of messages that a rank sends in sequence: 1 for a send, otherwise the steps of the ring algorithm."""
        return {"send": 1, "all_reduce": 2 * (self.ranks - 1)}.get(self.collective, self.ranks - 1)

    def each(self) -> list[Timing]:
        """Return the size and the time of a single message for each row."""
        share = 1 if self.collective == "send" else self.ranks
        return [Timing(size / share, depth, time_s / self.rounds) for size, depth, time_s in self.rows]


@dataclass(frozen=True)
class Calibration:
    """Overheads of hosts and links that were fitted to measured transfer times, and scenario keys that contain them.

    The module's docstring defines a, x, m and y, which are in seconds.

    Attributes:
        timings: the measured times.
        fixed_s: a, and the half width of its 95 % confidence interval.
        per_byte_s: x, and the half width of its 95 % confidence interval.
        message_s: m; `None` if the table cannot separate m from the delay of the network.
        slowest_s: y; `None` if the table cannot separate one stage from several stages.
        cluster: keys of the scenario's table `cluster` that reproduce the times.
        notes: sentences on values that the table cannot determine, and on a poor fit.
    """

    timings: Timings
    fixed_s: tuple[float, float]
    per_byte_s: tuple[float, float]
    message_s: float | None
    slowest_s: float | None
    cluster: dict[str, Any]
    notes: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return each row of the table with the time that the keys in `cluster` predict, and the error of this time."""
        message_s, delay_s, bytes_s = _written(self.cluster)

        def fitted(one: Timing) -> float:
            times = [message_s, *(each * one.size / one.depth for each in bytes_s)]
            return self.timings.rounds * (delay_s + sum(times) + (one.depth - 1) * max(times))

        pairs = zip(self.timings.rows, self.timings.each(), strict=True)
        return [
            {
                "bytes": size,
                "depth": depth,
                "measured_us": 1e6 * time_s,
                "fitted_us": 1e6 * fitted(one),
                "error_percent": 100 * (fitted(one) / time_s - 1),
            }
            for (size, depth, time_s), one in pairs
        ]

    @property
    def worst_percent(self) -> float:
        """The largest absolute error of a row, in percent."""
        return max(abs(float(row["error_percent"])) for row in self.rows())

    @property
    def headline(self) -> str:
        """The fitted values and the largest error of a row as text."""
        fixed, interval = words.duration(self.fixed_s[0], 3), words.duration(self.fixed_s[1], 2)
        rate, share = words.rate(8 / self.per_byte_s[0]), self.per_byte_s[1] / self.per_byte_s[0]
        said = [
            f"{len(self.timings.rows)} transfers: a message takes {fixed} ± {interval}, and its bytes have a rate of "
            f"{rate} ± {words.difference(100 * share)} through all stages"
        ]
        if self.slowest_s is not None:
            said.append(f"of which the slowest has {words.rate(8 / self.slowest_s)}")
        if self.message_s is not None:
            said.append(f"each message costs its host {words.duration(self.message_s, 3)}")
        worst = words.difference(self.worst_percent)
        return f"{', '.join(said)}. The largest error of a row is {worst}. Intervals are of 95 %."

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `gradtide calibrate --json`."""
        return {
            "schema": SCHEMA,
            "collective": self.timings.collective,
            "ranks": self.timings.ranks,
            "fixed_us": 1e6 * self.fixed_s[0],
            "fixed_interval_us": 1e6 * self.fixed_s[1],
            "all_stages_gbps": 8e-9 / self.per_byte_s[0],
            "all_stages_interval_percent": 100 * self.per_byte_s[1] / self.per_byte_s[0],
            "message_us": None if self.message_s is None else 1e6 * self.message_s,
            "slowest_gbps": None if self.slowest_s is None else 8e-9 / self.slowest_s,
            "cluster": self.cluster,
            "rows": self.rows(),
            "notes": list(self.notes),
        }

    def to_toml(self, source: str) -> str:
        """Return the content of a scenario file for `--cluster`; `source` names the table of times in a comment."""
        link, host = self.cluster["link"], self.cluster.get("host")
        lines = [
            f"# Fitted by gradtide calibrate to {source}: {len(self.timings.rows)} transfers.",
            f"# The largest error of a row is {words.difference(self.worst_percent)}.",
            "[cluster]",
            f"link = {_inline(link)}",
            *([] if host is None else [f"host = {_inline(host)}"]),
            "",
            "[run]",
            'engine = "fluid"',
            "",
        ]
        return "\n".join(lines)

    def save(self, path: str | Path, source: str) -> None:
        """Write the scenario file that `to_toml` returns.

        Raises:
            OSError: if the file cannot be written.
        """
        write_whole(Path(path), self.to_toml(source).encode())


def calibrate(
    source: str | Path, *, link: str | None = None, collective: str | None = None, ranks: int | None = None
) -> Calibration:
    """Fit the overheads of hosts and the link to a table of measured transfer times.

    Args:
        source: file with the unchanged output of nccl-tests, or a CSV file with the columns bytes and time_us, and
            optionally depth (number of parts), collective and ranks.
        link: rate of the hosts' links, as in `10Gbps`. Default: the rate of the slowest stage.
        collective: measured operation: send, all_reduce, all_gather or reduce_scatter. Default: the operation named in
            the file, otherwise send.
        ranks: number of ranks in the measurement. Default: the number in the file, otherwise 2.

    Raises:
        ScenarioError: if the file is invalid, or has too few sizes (GT066).
        ValueError: if an argument is invalid.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "times.csv"
        >>> _ = file.write_text(chr(10).join(["bytes,time_us", "1000,21", "100000,120", "1000000,1020"]))
        >>> calibrate(file).cluster["link"]
        {'rate': '8Gbps', 'delay': '10us'}
    """
    if collective is not None and collective not in COLLECTIVES:
        raise ValueError(f"--collective: there is no {collective!r}; there are {', '.join(COLLECTIVES)}")
    wire_s = None if link is None else 8 / units.parse_option("--link", units.parse_rate, link)
    return fit(_read(Path(source), collective, ranks), wire_s)


def fit(timings: Timings, wire_s: float | None = None) -> Calibration:
    """Fit a, x, m and y; `wire_s` is the time of a byte on the link in seconds, `None` if the rate is unknown."""
    each = timings.each()
    whole = [one for one in each if one.depth == 1]
    sizes, times = [one.size for one in whole], [one.time_s for one in whole]
    fixed_s, byte_s = line(sizes, times)
    fixed_error, byte_error = _errors(sizes, times, fixed_s, byte_s)
    parts = [one for one in each if one.depth > 1]
    message_s, slowest_s = _corner(parts, fixed_s, byte_s)
    notes = []
    if not parts:
        notes.append(
            "All rows have one part, so the host's time per message cannot be separated from the link's delay, nor "
            "several stages from one. The fixed time is written as delay of the link."
        )
    elif message_s is None or slowest_s is None:
        what = "small enough to show the time for a message" if message_s is None else "large enough to show the stages"
        notes.append(f"No row with several parts is {what}, so this key is not written.")
    if fixed_error >= fixed_s:
        notes.append("The fixed time does not differ significantly from 0. Measure smaller transfers.")
    if wire_s is not None and byte_s <= wire_s:
        notes.append(
            "A byte takes no longer than the link alone would need, so the link is written as fast as measured."
        )
        wire_s = byte_s
    if wire_s is None:
        wire_s = slowest_s if slowest_s is not None else byte_s
    stages = _stages(byte_s - wire_s, slowest_s, wire_s)
    if len(stages) > len(STAGES):
        notes.append(f"The times suggest {len(stages)} stages beside the link; {len(STAGES)} are written.")
        stages = [sum(stages) / len(STAGES)] * len(STAGES)
    if len(stages) > 1 or (stages and slowest_s is not None):
        notes.append("The times do not determine the order of the stages.")
    host: dict[str, Any] = {}
    if message_s:
        host["message"] = _time(message_s)
    if stages:
        host["stages"] = dict(zip(STAGES, map(_rate, stages), strict=False))
    # The host keys cover a part of the fixed time. The rest is the delay of the two links that a message crosses.
    delay_s = max(0.0, fixed_s - (message_s or 0.0)) / 2
    cluster = {"link": {"rate": _rate(wire_s), "delay": _time(delay_s)}, **({"host": host} if host else {})}
    found = Calibration(
        timings, (fixed_s, fixed_error), (byte_s, byte_error), message_s, slowest_s, cluster, tuple(notes)
    )
    if found.worst_percent <= POOR_PERCENT:
        return found
    poor = (
        "The times do not follow the formula. Other work on the hosts, or another protocol for some sizes, may be why."
    )
    return replace(found, notes=(*notes, poor))


def _errors(sizes: Sequence[float], times: Sequence[float], fixed: float, slope: float) -> tuple[float, float]:
    """Return the half widths of the 95 % confidence intervals of `fixed` and `slope`, fitted by relative errors."""
    weights = [1 / time**2 for time in times]
    mean = math.fsum(w * d for w, d in zip(weights, sizes, strict=True)) / math.fsum(weights)
    square = math.fsum(w * (d - mean) ** 2 for w, d in zip(weights, sizes, strict=True))
    off = math.fsum(((fixed + slope * d) / t - 1) ** 2 for d, t in zip(sizes, times, strict=True))
    spread = student_t(len(sizes) - 2) * math.sqrt(off / (len(sizes) - 2))
    return spread * math.sqrt(1 / math.fsum(weights) + mean**2 / square), spread / math.sqrt(square)


def _corner(parts: Sequence[Timing], fixed_s: float, byte_s: float) -> tuple[float | None, float | None]:
    """Return m and y of max(m, y u), where u is the size of a part in bytes, or `None` if no row determines them.

    `parts` are messages of several parts; the fit is by least squares of relative errors. Rows with u below some corner
    size determine m, and the other rows determine y. All corner sizes are tried.
    """
    known = sorted(
        (one.size / one.depth, (one.time_s - fixed_s - byte_s * one.size / one.depth) / (one.depth - 1), one)
        for one in parts
    )
    weights = [((one.depth - 1) / one.time_s) ** 2 for _, _, one in known]
    best: tuple[float, float | None, float | None] = (math.inf, None, None)
    for corner in range(len(known) + 1):
        low = list(zip(known[:corner], weights[:corner], strict=True))
        high = list(zip(known[corner:], weights[corner:], strict=True))
        message = slope = None
        if low:
            message = sum(w * z for (_, z, _), w in low) / sum(w for _, w in low)
            message = min(max(0.0, message), fixed_s)
        if any(u for (u, _, _), _ in high):
            slope = sum(w * u * z for (u, z, _), w in high) / sum(w * u * u for (u, _, _), w in high)
            slope = min(max(0.0, slope), byte_s)
        off = sum(
            w * (max(message or 0.0, (slope or 0.0) * u) - z) ** 2 for (u, z, _), w in zip(known, weights, strict=True)
        )
        if off < best[0]:
            best = off, message, slope or None
    return best[1], best[2]


def _stages(rest_s: float, slowest_s: float | None, wire_s: float) -> list[float]:
    """Return the times per byte of stages other than the wire. Their sum is `rest_s`; none exceeds `slowest_s`."""
    whole_s = rest_s + wire_s
    if rest_s <= NEGLIGIBLE * whole_s:
        return []
    if slowest_s is None:
        return [rest_s]
    stages = []
    if slowest_s > wire_s * (1 + NEGLIGIBLE):
        stages.append(min(slowest_s, rest_s))
        rest_s -= stages[0]
    if rest_s > NEGLIGIBLE * whole_s:
        count = math.ceil(rest_s / max(slowest_s, wire_s) - NEGLIGIBLE)
        stages += [rest_s / count] * count
    return stages


def _written(cluster: dict[str, Any]) -> tuple[float, float, list[float]]:
    """Return time per message, delay between hosts, and times per byte (wire first) in `cluster`, in seconds."""
    link, host = cluster["link"], cluster.get("host", {})
    message_s = units.parse_time(host.get("message", "0us")) / 1e12
    rates = [link["rate"], *host.get("stages", {}).values()]
    return message_s, 2 * units.parse_time(link["delay"]) / 1e12, [8 / units.parse_rate(rate) for rate in rates]


def _inline(table: dict[str, Any]) -> str:
    cells = (
        f"{key} = " + (_inline(value) if isinstance(value, dict) else f'"{value}"') for key, value in table.items()
    )
    return f"{{ {', '.join(cells)} }}"


def _rate(byte_s: float) -> str:
    """Format the rate at which a byte takes `byte_s` seconds, with four significant digits."""
    bps = 8 / byte_s
    digits = 3 - math.floor(math.log10(bps))
    return units.format_rate(round(round(bps, digits)))


def _time(seconds: float) -> str:
    """Format a time with four significant digits, but at most to the nanosecond."""
    if seconds <= 0:
        return "0us"
    digits = min(9, 3 - math.floor(math.log10(seconds)))
    return units.format_time(round(round(seconds, digits) * 1e12))


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(path: Path, collective: str | None, ranks: int | None) -> Timings:
    from gradtide.formats.text import Complaints, whole_text

    text = whole_text(path)
    with expecting(text, str(path), "a table of transfer times", "timings", "nccl-tests"):
        return _timings(text, Complaints(str(path), "GT066"), collective, ranks)


def _timings(text: str, wrong: Any, collective: str | None, ranks: int | None) -> Timings:
    lines = text.splitlines()
    is_csv = next((not cells.startswith("#") and "," in cells for cells in map(str.strip, lines) if cells), False)
    said, rows = _csv(lines, wrong) if is_csv else _nccl_tests(lines, wrong, collective, ranks)
    wrong.end()
    found = Timings(collective or said.get("collective", "send"), ranks or int(said.get("ranks", 2)), tuple(rows))
    if found.collective not in COLLECTIVES:
        hint = f"there are {', '.join(COLLECTIVES)}; name it with --collective"
        wrong.add(None, None, "collective", f'"{found.collective[:40]}" is not a collective that can be fitted', hint)
    if found.ranks < 2 or (found.collective == "send" and found.ranks != 2):
        wrong.add(None, None, "ranks", f"{found.ranks} ranks do not {found.collective}", "state it with --ranks")
    if found.collective != "send" and any(depth > 1 for _, depth, _ in rows):
        hint = "measure sends, as gradtide profile --network does"
        wrong.add(None, None, "depth", f"parts of an {found.collective} overlap in ways that have no formula", hint)
    sizes = sorted({size for size, depth, _ in rows if depth == 1})
    hint = "measure from 1 kB to 100 MB; with nccl-tests: -b 1K -e 128M -f 4"
    if len(sizes) < LEAST_SIZES:
        have = words.many(len(sizes), "size")
        msg = f"the table has {have} of whole transfers, and a fit needs {LEAST_SIZES}"
        wrong.add(None, None, "bytes", msg, hint)
    elif sizes[-1] < LEAST_RANGE * sizes[0]:
        msg = f"sizes from {sizes[0]} to {sizes[-1]} B cannot separate a fixed time from a rate"
        wrong.add(None, None, "bytes", msg, hint)
    wrong.end()
    whole = [one for one in found.each() if one.depth == 1]
    _, byte_s = line([one.size for one in whole], [one.time_s for one in whole])
    if not 1 <= 8 / max(byte_s, 1e-300) <= units.U64_MAX:
        msg = "the times do not grow with the sizes as those of transfers do"
        wrong.add(None, None, "time_us", msg, "measure larger transfers, up to 100 MB")
    wrong.end()
    return found


Rows = list[tuple[int, int, float]]
BANDWIDTHS = ("algbw", "busbw")
"""Bandwidth columns of nccl-tests: size of the collective divided by its time, and rate of the busiest link."""
BANDWIDTH = re.compile(r"\d{1,15}(?:\.\d*)?", re.ASCII)


def _csv(lines: list[str], wrong: Any) -> tuple[dict[str, str], Rows]:
    """Return the collective and number of ranks that a CSV file names, and its rows. Errors are added to `wrong`."""
    numbered = [(number, text) for number, text in enumerate(lines, 1) if text.strip() and not text.startswith("#")]
    header_number, header = numbered[0]
    names = [name.strip() for name in header.split(",")]
    for name in ("bytes", "time_us"):
        if name not in names:
            wrong.add(header_number, header, name, f"there is no column {name}", "write bytes,time_us[,depth]")
    if wrong.any:
        return {}, []
    said: dict[str, str] = {}
    rows: Rows = []
    for number, text in numbered[1:]:
        try:
            (cells,) = csv.reader([text])
        except csv.Error:  # a field that is too long
            cells = []
        values = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        row = _row(values.get("bytes", ""), values.get("depth", "1"), values.get("time_us", ""))
        if row is None or len(cells) != len(names):
            wrong.add(
                number, text, "", "this is not a row of the table", f"write {len(names)} fields as in 1000000,1020.5"
            )
            continue
        rows.append(row)
        for key in ("collective", "ranks"):
            if said.setdefault(key, values.get(key, "")) != values.get(key, ""):
                wrong.add(number, text, key, f"the file has several values of {key}", "make a file of each")
        if len(rows) > MAX_ROWS:
            wrong.add(number, text, "", f"there are more than {MAX_ROWS:,} rows", "is it the right file?")
            break
    if said.get("ranks") and not re.fullmatch(r"\d{1,6}", said["ranks"], re.ASCII):
        wrong.add(header_number, header, "ranks", f'"{said["ranks"][:40]}" is not a number of ranks', "write 2")
    return {key: value for key, value in said.items() if value}, rows


def _nccl_tests(lines: list[str], wrong: Any, collective: str | None, ranks: int | None) -> tuple[dict[str, str], Rows]:
    """Return the collective and number of ranks that output of nccl-tests names, and its rows, as `_csv` does.

    A row's time is its first time column. If the output names no collective, it follows from the ratio of the
    bandwidths. Columns are found by their header, because versions differ: `redop` or `root` may be missing, there may
    be statistics of single iterations or time stamps, and out-of-place columns may be blank.
    """
    said: dict[str, str] = {}
    rows: Rows = []
    columns: list[str] = []
    reduces, fastest, ratio = False, 0.0, 0.0
    # nccl-tests truncates long lists of devices, so the number of ranks follows from the last listed rank.
    listed = [int(found[1]) for text in lines if (found := re.match(r"#\s+Rank\s+(\d{1,6})\b", text, re.ASCII))]
    if ranks is None and listed:
        ranks = 1 + max(listed)
        said["ranks"] = str(ranks)
    for number, text in enumerate(lines, 1):
        words = text.split()
        if started := re.search(r"Collective test starting: (\w+)_perf", text):
            said["collective"] = started[1]
        if words[:1] == ["#"] and {"size", *BANDWIDTHS} <= set(words):
            columns = words[1:]
        if not words or words[0].startswith("#") or not words[0].isdigit() or not columns:
            continue
        # Of two columns with the same name (out of place, in place), the first is read.
        cells = dict(reversed([*zip(columns, words, strict=False)]))
        is_whole = all(name in cells for name in BANDWIDTHS)
        row = _row(words[0], "1", cells.get("time") or cells.get("cputime", "")) if is_whole else None
        if row is None:
            wrong.add(number, text, "time", "this is not a row of nccl-tests", "paste its output unchanged")
        elif row[0]:
            rows.append(row)
            reduces |= cells.get("redop", "none") != "none"
            algorithm, bus = (float(cells[name]) if BANDWIDTH.fullmatch(cells[name]) else 0.0 for name in BANDWIDTHS)
            if algorithm > fastest:
                fastest, ratio = algorithm, bus / algorithm
    if not rows and not wrong.any:
        hint = "give the output of nccl-tests as it is, or a CSV file with the header bytes,time_us[,depth]"
        wrong.add(None, None, "", "the file has no table of transfer times", hint)
    if ranks is None:
        hint = "paste its lines that begin with `#  Rank`, too, or give --ranks"
        wrong.add(None, None, "ranks", "the file does not state the number of ranks", hint)
    elif collective is None and "collective" not in said and ranks > 1:
        factors = {"all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks}
        if not (ratio and reduces):
            # Bandwidth ratios do not distinguish all_gather from all_to_all, or send from broadcast.
            hint = "name it, as in --collective all_gather"
            wrong.add(None, None, "collective", "the file does not name the test", hint)
        else:
            said["collective"] = min(factors, key=lambda name: abs(factors[name] - ratio))
    if said.get("collective") == "sendrecv":
        said["collective"] = "send"
    return said, rows


def _row(size: str, depth: str, time_us: str) -> tuple[int, int, float] | None:
    """Parse the cells of a row to bytes, number of parts and seconds; return `None` if a cell is invalid."""
    from gradtide.formats.text import count, decimal

    found, parts, time = count(size, 10**15), count(depth, 1024), decimal(time_us)
    if found is None or not parts or time is None or not 0 < time < 10**12:
        return None
    return found, parts, float(time) / 1e6
