"""What a study of tenants may say: changes with their intervals, colours, verdicts and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.intervals import mean_interval

# Fig. 5.19 of Gao (2020): green costs the job less than 1 %, yellow up to 30 %, red more.
FREE_PERCENT, DEAR_PERCENT = 1.0, 30.0

HINT = "One run has no interval: add --seeds 5."


@dataclass(frozen=True)
class Effect:
    """A mean change in percent over seeds, None where a seed has none, and its 95 % interval, None with one seed."""

    percent: float | None
    ends: tuple[float, float] | None = None

    @classmethod
    def of(cls, changes: Sequence[float] | None, *, repeated: bool = False) -> "Effect":
        """Return the mean and the interval of one change per seed; `repeated` seeds count as one run."""
        if not changes:
            return cls(None)
        return cls(sum(changes) / len(changes), None if repeated else mean_interval(changes))

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the ends of the interval as columns of a table."""
        low, high = self.ends or (None, None)
        return {f"{name}_from_percent": low, f"{name}_to_percent": high}

    @property
    def colour(self) -> str:
        """The colour of a cost: `unclear` where its interval has more than one."""
        found = {colour(end) for end in self.ends or (self.percent,)}
        return found.pop() if len(found) == 1 else "unclear"

    @property
    def sign(self) -> int:
        """Whether it is above 0 (1) or below (-1); 0 where it is neither, or its interval includes both."""
        if self.percent is None:
            return 0
        low, high = self.ends or (round(self.percent, 1),) * 2
        return 1 if low > 0 else -1 if high < 0 else 0

    def sentence(self, more: str, less: str, none: str) -> str:
        """Write it as in `3.1 % longer (95 % interval 2.0 to 4.2 %)`."""
        value = self.percent or 0.0
        text = none if round(value, 1) == 0 else f"{abs(value):.1f} % {more if value > 0 else less}"
        if self.ends is None:
            return text
        low, high = (round(end, 1) for end in self.ends)
        if low < 0 < high:
            return f"{text} (95 % interval: {-low:.1f} % {less} to {high:.1f} % {more})"
        near, far = sorted((abs(low), abs(high)))
        word = "" if round(value, 1) else f" {more if high > 0 else less}"
        return f"{text} (95 % interval: {near:.1f} to {far:.1f} %{word})"


def colour(cost_percent: float | None) -> str:
    """Return the colour of a cell of fig. 5.19 for what de-prioritising costs the job."""
    if cost_percent is None:
        return "unknown"
    return "green" if cost_percent < FREE_PERCENT else "yellow" if cost_percent <= DEAR_PERCENT else "red"


LEADS = {
    "free": "{what} is free {where}",
    "harmful": "{what} costs the job nothing {where}, but small flows finish later",
    "no cost": "{what} costs the job nothing {where}, and with {seeds} seeds it is unclear what small flows gain",
    "costs": "{what} has a price {where}",
    "too expensive": "{what} is too expensive {where}",
    "unclear": "Unclear with {seeds} seeds whether {what} is free {where}",
}
"""The verdicts of a study with intervals, and how their sentences begin."""


def verdict(cost: Effect, gain: Effect) -> str:
    """Return what follows from the job's cost and from what small flows save: one of `LEADS`.

    It is `one run` where there is no interval, and `unknown` where too little completed.
    """
    if cost.percent is None or gain.percent is None:
        return "unknown"
    if cost.ends is None or gain.ends is None:
        return "one run"
    of_cost = {"yellow": "costs", "red": "too expensive", "unclear": "unclear"}.get(cost.colour)
    return of_cost or {1: "free", 0: "no cost", -1: "harmful"}[gain.sign]


def sentence(
    what: str, cost: Effect, gain: Effect, seeds: Sequence[int], *, whose: str = "its iterations", where: str = "here"
) -> str:
    """Say what something costs the job and saves small flows, with intervals, and whether that is worth it.

    `what` is judged, as in `de-prioritising this job`; `whose` iterations are meant, and `where`: here, or a part of a
    map.
    """
    found = verdict(cost, gain)
    if found == "unknown":
        return f"Too few flows or iterations completed to say what {what} does."
    takes = "takes" if whose.endswith("iteration") else "take"
    job = f"{whose} {takes} {cost.sentence('longer', 'less time', 'as long')}"
    flows = f"small flows finish {gain.sentence('sooner', 'later', 'at the same time')} on average"
    if found == "one run":
        count = f"One run (seed {seeds[0]})" if len(seeds) == 1 else f"{len(seeds)} seeds that gave the same run"
        return f"{count}, {what}: {job}, and {flows}."
    lead = LEADS[found].format(what=what, where=where, seeds=len(seeds))
    return f"{lead[:1].upper()}{lead[1:]}: over {len(seeds)} seeds {job}, and {flows}."
