"""Flow sizes: distributions, and the files that describe them."""

import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gradtide.errors import Fault, ScenarioError
from gradtide.traffic.flows import MAX_FAULTS_OF_A_FILE, MAX_FLOW_BYTES, fault_at

MAX_POINTS = 100_000
MAX_SHARE_DIGITS = 18
"""Digits of a share after its decimal point."""

Point = tuple[int, Fraction]
"""A size in bytes, and the share of flows of at most that size."""

_SHARE = re.compile(r"\d{1,18}(\.\d{0,18})?|\.\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Sizes:
    """A distribution of flow sizes: points of its CDF, straight lines between them.

    Attributes:
        bytes: sizes, not falling.
        cdf: share of flows of at most that size, not falling, the last one 1; the first is the share of flows of
            exactly the first size.
    """

    bytes: tuple[int, ...]
    cdf: tuple[float, ...]

    @classmethod
    def of(cls, points: Sequence[Point]) -> "Sizes":
        """Return the distribution of exact points, with shares as floats for the generators of flows."""
        return cls(tuple(size for size, _ in points), tuple(float(share) for _, share in points))

    @property
    def mean_bytes(self) -> Fraction:
        """Mean size, exactly that of the lines."""
        total = Fraction(self.cdf[0]) * self.bytes[0]
        for index in range(1, len(self.cdf)):
            share = Fraction(self.cdf[index]) - Fraction(self.cdf[index - 1])
            total += share * (self.bytes[index] + self.bytes[index - 1]) / 2
        return total

    def at(self, share: float) -> int:
        """Return the size below which `share` of the flows are, 0 < share <= 1; at least a byte."""
        index = bisect_left(self.cdf, share)
        if index == 0:
            return max(1, self.bytes[0])
        low, high = self.bytes[index - 1], self.bytes[index]
        # The order of operations matters: the last digit decides some of the thesis's bytes.
        above = (high - low) * (share - self.cdf[index - 1]) / (self.cdf[index] - self.cdf[index - 1])
        return max(1, round(low + above))


def read_sizes(text: str, name: str) -> Sizes:
    """Return the distribution of a file, as `read_points` reads it."""
    return Sizes.of(read_points(text, name))


def read_points(text: str, name: str) -> list[Point]:
    """Return the exact points of the distribution in a file.

    Three dialects: lines `bytes percent` up to 100, lines `bytes share` up to 1 (blanks, a tab, a colon or a comma
    between them), and CSV with the header `bytes,cdf`. The last value, 100 or 1, tells percent from share. A line
    that starts with # is a comment.

    Args:
        text: the whole file.
        name: the file as the user named it.

    Raises:
        ScenarioError: with every fault, each at its line and field.
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
            raise ScenarioError([fault_at("GT061", "", msg, "write the header bytes,cdf", None, name, number, line)])
    if not rows:
        hint = "write lines of bytes and percent, as in 4000 15"
        raise ScenarioError([Fault("GT061", "", f"{name} has no points", None, hint, name)])
    if len(rows) > MAX_POINTS:
        msg = f"{name} has {len(rows):,} points"
        raise ScenarioError([Fault("GT050", "", msg, None, f"at most {MAX_POINTS:,}; is it the right file?", name)])
    return checked_points(rows, name)


def checked_points(rows: Sequence[tuple[int, str, Sequence[str]]], name: str) -> list[Point]:
    """Return the points that lines say: size in bytes, and share of flows of at most that size.

    Args:
        rows: number and text of each line, and its two cells.
        name: the file as the user named it.

    Raises:
        ScenarioError: with every fault, each at its line and field.
    """
    faults: list[Fault] = []
    points: list[tuple[int, Fraction, int, str]] = []
    for number, line, cells in rows:
        if len(faults) >= MAX_FAULTS_OF_A_FILE:
            break
        if len(cells) != 2:
            msg, hint = f"the line has {len(cells)} fields", "write bytes and percent, as in 4000 15"
            if len(cells) == 3:
                hint += "; three columns are ns-2's: gradtide convert reads them"
            faults.append(fault_at("GT061", "", msg, hint, None, name, number, line))
            continue
        size, share = cells
        good = True
        if not (size.isascii() and size.isdigit()) or len(size) > 16 or int(size) > MAX_FLOW_BYTES:
            msg, hint = f'"{size[:40]}" is not a number of bytes', f"write a whole number up to {MAX_FLOW_BYTES:,}"
            faults.append(fault_at("GT061", "bytes", msg, hint, size, name, number, line))
            good = False
        if not _SHARE.fullmatch(share):
            msg, hint = f'"{share[:40]}" is not a share', "write percent up to 100, or a share up to 1"
            faults.append(fault_at("GT061", "cdf", msg, hint, share, name, number, line))
            good = False
        if good:
            points.append((int(size), Fraction(share), number, line))
    if not faults:
        for (size_a, share_a, _, _), (size_b, share_b, number, line) in itertools.pairwise(points):
            if size_b < size_a and len(faults) < MAX_FAULTS_OF_A_FILE:
                msg, hint = f"{size_b} bytes follow {size_a}", "sort the lines by size"
                faults.append(fault_at("GT061", "bytes", msg, hint, size_b, name, number, line))
            if share_b < share_a and len(faults) < MAX_FAULTS_OF_A_FILE:
                hint = "each line holds the share of flows of at most that size"
                faults.append(fault_at("GT061", "cdf", "the shares fall", hint, float(share_b), name, number, line))
    if faults:
        raise ScenarioError(faults)
    top, number, line = points[-1][1:]
    if top not in (1, 100):
        msg, hint = f"the last share is {float(top):g}", "it is 100 (percent) or 1: all flows are of at most that size"
        raise ScenarioError([fault_at("GT061", "cdf", msg, hint, float(top), name, number, line)])
    if points[-1][0] == 0:
        hint = "the largest size is at least 1"
        raise ScenarioError([fault_at("GT061", "bytes", "all flows have 0 bytes", hint, 0, name, number, line)])
    return [(size, share / top) for size, share, _, _ in points]
