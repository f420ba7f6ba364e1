"""Interval arithmetic in nanoseconds, e.g. for the intervals in which a rank computes or a transfer runs."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

Span = tuple[int, int]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the union of intervals as disjoint intervals in ascending order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


class Covered:
    """A set of intervals, which may overlap; computes the time that they cover."""

    def __init__(self, spans: Iterable[Span]) -> None:
        known = joined(spans)
        self._starts = [start for start, _ in known]
        self._ends = [end for _, end in known]
        self._before = [0, *accumulate(end - start for start, end in known)]

    def between(self, start: int, end: int) -> int:
        """Return the covered time between `start` and `end`, in nanoseconds."""
        return self._until(end) - self._until(start)

    def _until(self, at: int) -> int:
        place = bisect_right(self._starts, at) - 1
        if place < 0:
            return 0
        return self._before[place] + min(at, self._ends[place]) - self._starts[place]
