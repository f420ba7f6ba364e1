"""Errors of past predictions, and the interval that they imply for the next prediction.

`measured.csv` lists every iteration time of real training that the documentation both predicts and measures, with the
page that contains it. No prediction is fitted to these pairs; they only determine the width of the interval. An error
is the logarithm of measured over predicted, so that errors of factors 1.1 and 1/1.1 are equally large. The spread of n
errors about zero is s = sqrt(sum of squares / n), and 95 % of further errors are expected within s times Student's t
for n degrees of freedom. Further errors may have either sign, even if all errors so far have one sign, because few
networks have been measured. docs/validation/plan.md has the table and its limits.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gradtide.intervals import student_t


@dataclass(frozen=True)
class Pair:
    """One iteration time, predicted and measured: a row of `measured.csv`.

    `baseline` is the configuration of the same setup to which the saving is relative; empty if the pair has no saving.
    """

    setup: str
    configuration: str
    baseline: str
    workers: int
    backend: str
    network: str
    runs: int
    predicted_ms: float
    measured_ms: float
    source: str


@dataclass(frozen=True)
class Errors:
    """Errors of predictions: logarithms of measured over predicted, and the number of different setups."""

    logs: tuple[float, ...]
    setups: int

    @property
    def half(self) -> float:
        """Half width of the 95 % interval of a further error, as a logarithm."""
        count = len(self.logs)
        return student_t(count) * math.sqrt(sum(log * log for log in self.logs) / count)

    @property
    def range_percent(self) -> tuple[float, float]:
        """The lowest and the highest measured error in percent: measured / predicted - 1."""
        return 100 * math.expm1(min(self.logs)), 100 * math.expm1(max(self.logs))

    def to_dict(self) -> dict[str, Any]:
        """Return the errors in the format of plan.json."""
        return {"count": len(self.logs), "setups": self.setups, "percent": list(self.range_percent)}

    def interval(self, predicted: float) -> tuple[float, float]:
        """Return the ends of the 95 % interval of a future measurement, for a predicted time or ratio of times."""
        return predicted * math.exp(-self.half), predicted * math.exp(self.half)


SHARDED = "docs/validation/testbed-fsdp.md"
"""Source of the pairs of FSDP."""


@cache
def pairs(*, sharded: bool = False) -> tuple[Pair, ...]:
    """Return the pairs of predicted and measured iteration times: with `sharded` only FSDP, otherwise all others."""
    text = resources.files("gradtide").joinpath("measured.csv").read_text(encoding="utf-8")
    kinds = Pair.__annotations__
    rows = csv.DictReader(io.StringIO(text))
    found = (Pair(**{name: kinds[name](value) for name, value in row.items()}) for row in rows)
    return tuple(one for one in found if (one.source == SHARDED) == sharded)


def time_errors(known: Sequence[Pair] | None = None) -> Errors:
    """Return the errors of iteration times."""
    known = pairs() if known is None else known
    logs = [math.log(one.measured_ms / one.predicted_ms) for one in known]
    return Errors(tuple(logs), len({one.setup for one in known}))


def saving_errors(known: Sequence[Pair] | None = None) -> Errors:
    """Return the errors of savings, i.e. of the ratio of an iteration time to the iteration time of its baseline."""
    known = pairs() if known is None else known
    by_name = {(one.setup, one.configuration): one for one in known}
    logs, setups = [], set()
    for one in known:
        if one.baseline:
            base = by_name[one.setup, one.baseline]
            measured, predicted = one.measured_ms / base.measured_ms, one.predicted_ms / base.predicted_ms
            logs.append(math.log(measured / predicted))
            setups.add(one.setup)
    return Errors(tuple(logs), len(setups))
