"""Ranking of a study's points by one figure.

A point is a combination of values of the varied keys, with one run per seed. It has a rank if all its runs have
finished, fit in device memory, and have the figure. Points without a rank follow, with the reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gradtide import words
from gradtide.answer import Candidate, Feasibility
from gradtide.answer.memory import feasibility
from gradtide.intervals import mean_interval
from gradtide.studies.sweep import settings
from gradtide.studies.sweep.study import Study

NO_FIT = "does not fit"
VERDICTS = ("not checked", "fits", "too close to call", NO_FIT)
"""Verdicts on whether a job fits in device memory, in ascending severity; a run has the most severe of its jobs."""

SAME = 1e-9
"""Two figures are considered equal if their relative difference is below this rounding error."""


def worst(summary: Mapping[str, Any]) -> Feasibility:
    """Return the memory feasibility of the job with the most severe verdict; `summary` is that of a run."""

    def place(one: Feasibility) -> tuple[int, float]:
        share = (one.needed_bytes or 0) / (one.device_bytes or 1)
        return VERDICTS.index(one.verdict), share

    return max((feasibility(job) for job in summary["jobs"].values()), key=place, default=Feasibility())


def of_memory(one: Feasibility) -> str:
    """Return the needed and the available device memory as text; empty if memory was not checked."""
    if one.needed_bytes is None or one.device_bytes is None:
        return ""
    return f"{words.size(one.needed_bytes, 4)} of {words.size(one.device_bytes, 3)}"


class State(IntEnum):
    """State of a run, or of a point, whose state is the maximum over its runs."""

    FINISHED = 0
    NO_FIGURE = 1
    NO_FIT = 2
    MISSING = 3
    FAILED = 4
    REFUSED = 5

    @property
    def words(self) -> str:
        """The state as text in tables."""
        return {State.FINISHED: "ranked", State.NO_FIT: NO_FIT}.get(self, self.name.lower().replace("_", " "))


@dataclass(frozen=True)
class Point:
    """A point of a study, with its rank.

    Attributes:
        run: number of the point's first run; its runs with the other seeds have the next numbers.
        settings: value of each varied key.
        label: the settings as text.
        rank: 1 for the best point; `None` for a point without a rank.
        state: `ranked`, `does not fit`, `no figure`, `failed`, `refused` or `missing`.
        reason: explanation of the state; empty for a ranked point.
        figure: mean over the seeds of the figure by which points are ranked; `None` if a run lacks it.
        behind_percent: by how much the figure is worse than the best point's, in percent of the best point's; `None`
            without a rank, or if a figure of the best point is not positive.
        low_percent: lower end of the 95 % interval of `behind_percent` over the seeds; `None` with one seed.
        high_percent: upper end of the same interval.
        feasibility: whether the point fits in device memory.
        again: command of the point's first run; `None` if a command line cannot express the settings.
    """

    run: int
    settings: dict[str, Any]
    label: str
    rank: int | None
    state: str
    reason: str
    figure: float | None
    behind_percent: float | None
    low_percent: float | None
    high_percent: float | None
    feasibility: Feasibility
    again: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the point as a JSON-compatible dict."""
        return {
            "rank": self.rank,
            "run": self.run,
            "settings": {key: value if value is None else _plain(value) for key, value in self.settings.items()},
            "label": self.label,
            "figure": self.figure,
            "behind_percent": self.behind_percent,
            "low_percent": self.low_percent,
            "high_percent": self.high_percent,
            "state": self.state,
            "reason": self.reason,
            "feasibility": self.feasibility.verdict,
            "memory_bytes": self.feasibility.needed_bytes,
            "device_bytes": self.feasibility.device_bytes,
            "again": self.again,
        }

    @property
    def candidate(self) -> Candidate:
        """The point as a candidate of the study's answer."""
        refused = f"{self.state}: {self.reason}" if self.state in ("refused", "failed", "missing", "no figure") else ""
        return Candidate(self.label, self.figure, self.feasibility, refused=refused, rank=self.rank)

    def to_row(self, figure: str | None) -> dict[str, Any]:
        """Return the point as a row of `points.csv`; `figure` is the name of the figure by which points are ranked."""
        row = self.to_dict()
        values = {key: settings.cell(value) for key, value in self.settings.items()}
        first, last = ("rank", "run"), ("behind_percent", "low_percent", "high_percent", "state", "reason")
        memory = ("feasibility", "memory_bytes", "device_bytes") if self.feasibility.needed_bytes is not None else ()
        own = {} if figure is None or figure in values else {figure: self.figure}
        return {
            **{name: row[name] for name in first},
            **values,
            **own,
            **{name: row[name] for name in (*last, *memory, "again")},
        }


def _plain(value: Any) -> Any:
    """Return a varied value in a form that JSON can represent."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str) else settings.cell(value)


def order(ys: Sequence[float], states: Sequence[int], *, most: bool) -> list[int]:
    """Return the numbers of all points: ranked points from best to worst, then the others by state and figure.

    Args:
        ys: the figure of each point; NaN if it has none.
        states: the `State` of each point.
        most: whether the largest figure is best, rather than the smallest.
    """
    sign = -1 if most else 1

    def place(point: int) -> tuple[int, float, int]:
        y = ys[point]
        return states[point], math.inf if math.isnan(y) else sign * y, point

    return sorted(range(len(ys)), key=place)


def behind(study: Study, ys: Sequence[float], best: int, point: int, *, most: bool) -> tuple[float | None, ...]:
    """Return by how many percent a point is worse than the best, and the ends of the 95 % interval over paired seeds.

    The ends are `None` with one seed, or if the percentage is equal for all seeds. All three are `None` if a figure of
    the best point is not positive.

    Args:
        study: the study.
        ys: the figure of each run.
        best: number of the best point.
        point: number of the other point.
        most: whether the largest figure is best, rather than the smallest.
    """
    first, other = (ys[at * study.seeds : (at + 1) * study.seeds] for at in (best, point))
    if min(first) <= 0:
        return None, None, None
    shares = [100 * (1 - y / x if most else y / x - 1) for x, y in zip(first, other, strict=True)]
    differ = max(shares) - min(shares) > SAME * 100
    return math.fsum(shares) / len(shares), *((mean_interval(shares) if differ else None) or (None, None))
