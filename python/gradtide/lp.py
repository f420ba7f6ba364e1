"""Chooses start time and priority band of each bucket of an iteration by a linear programme, which HiGHS solves.

    iteration time = max(C, end + C - deadline of every bucket), if one bucket is sent at a time
    minimised first: the iteration time; then the bytes in the highest band; then the bytes in the next band, …

C is the compute time of an iteration. Times are offsets from the start of the backward pass, all in one unit of the
caller's choice. Gao (2020), chapter 6, describes the idea without a formula; docs/models/lp.md has ours. Other modules
estimate the times and simulate the result.

The module is long because the programme, its bounds and the search that proves them share one formulation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count, pairwise
from typing import Any

from gradtide.errors import GradtideError, InternalError
from gradtide.extras import how_to_install

MOST_DECIDED = 16
"""Largest number of buckets whose order the programme decides, if no order of `by_rank` is proven optimal."""

MOST_NODES = 2_000
"""Largest number of nodes of a branch-and-bound search. A time limit would make results depend on the machine."""

MOST_CUTS = 1_000
"""Largest number of constraints for the lower bound over all orders. A chain of layers needs one per bucket."""

SAME = 1e-7
"""Relative tolerance within which times and shares count as equal, because solvers use floats."""

_MOST = 1e100
"""Largest accepted number: sums of larger ones could exceed the range of floats."""

_SCALE = 1_000.0
"""Iteration time to which all times are scaled for the solver, because the solver's tolerances are absolute."""


class SolverMissingError(GradtideError, ImportError):
    """HiGHS is not installed."""


@dataclass(frozen=True)
class TimedBucket:
    """A bucket of gradients, with `times` for its transfer on an idle network in each band, the highest band first.

    `ready` is the time at which the bucket's last gradient has been computed. `needed` is the time at which the next
    forward pass needs the bucket if no earlier bucket is late; it is at least `ready`.
    """

    name: str
    bytes: int | float
    ready: int | float
    needed: int | float
    times: tuple[int | float, ...]


@dataclass(frozen=True)
class StartAndBand:
    """Start time and priority band of each bucket, with bounds of the optimum. Times are in the unit of the input.

    Attributes:
        buckets: the given buckets.
        order: indices into `buckets`, in the order of sending.
        bands: band of each bucket, 0 the highest.
        starts: start of each bucket.
        ends: end of each bucket.
        iteration_time: time from the start of one backward pass to the start of the next.
        compute: compute time of an iteration.
        lower_bound: lower bound of the iteration time over all orders and bands, or over all bands if the order is
            given.
        least_share: lower bound of the share of the bytes in the highest band at this `iteration_time`.
        optimal: whether the schedule is proven optimal among all orders and bands, or among all bands if the order is
            given.
    """

    buckets: tuple[TimedBucket, ...]
    order: tuple[int, ...]
    bands: tuple[int, ...]
    starts: tuple[int | float, ...]
    ends: tuple[int | float, ...]
    iteration_time: int | float
    compute: int | float
    lower_bound: int | float
    least_share: float
    optimal: bool

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the bytes in each band, the highest first."""
        return shares(self.buckets, self.bands)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per bucket, in send order.

        `slack` is needed - ready (Gao 2020, section 3.1), `margin` is needed - end. `needed` includes earlier delays.
        """
        late: int | float = 0
        needed: dict[int, int | float] = {}
        for at in sorted({bucket.needed for bucket in self.buckets}):
            awaited = [index for index, bucket in enumerate(self.buckets) if bucket.needed == at]
            needed.update(dict.fromkeys(awaited, at + late))
            late = max(late, *(self.ends[index] - at for index in awaited))
        return [
            {
                "bucket": self.buckets[index].name,
                "bytes": self.buckets[index].bytes,
                "ready": self.buckets[index].ready,
                "start": self.starts[index],
                "end": self.ends[index],
                "needed": needed[index],
                "slack": needed[index] - self.buckets[index].ready,
                "margin": needed[index] - self.ends[index],
                "band": self.bands[index],
            }
            for index in self.order
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as a JSON object."""
        return {
            "schema": "gradtide.start_and_band/1",
            "iteration_time": self.iteration_time,
            "compute": self.compute,
            "lower_bound": self.lower_bound,
            "shares": list(self.shares),
            "least_share": self.least_share,
            "optimal": self.optimal,
            "buckets": self.to_dicts(),
        }


def start_and_band(
    buckets: Iterable[Mapping[str, Any] | TimedBucket],
    compute: int | float,
    *,
    order: Sequence[int] | None = None,
    give: float = 0.0,
) -> StartAndBand:
    """Choose the start and the band of each bucket of an iteration.

    Args:
        buckets: at least one, each with `ready`, `needed`, `bytes`, and `times` for each band, the highest first;
            `name` may be left out. With a barrier, all buckets are needed at the end of the backward pass.
        compute: compute time of a whole iteration, both passes; no `needed` is later.
        order: indices of the buckets in the order of sending; if it is left out, the order is chosen, too.
        give: share by which the iteration may exceed the least iteration time if fewer bytes then need high bands.

    Returns:
        Starts and bands with the least iteration time; among those, with the fewest bytes in the highest band, then in
        the next.
        No bucket starts before the one before it in `order` has ended.

    Raises:
        ValueError: if a value is missing, negative or not a number, or a bucket is needed before it is ready.
        SolverMissingError: if HiGHS is not installed.

    Source:
        Gao (2020), chapter 6, in words; docs/models/lp.md.

    Example:
        >>> early = {"bytes": 8, "ready": 1, "needed": 8, "times": [4, 6]}
        >>> late = {"bytes": 2, "ready": 6, "needed": 6, "times": [1, 3]}
        >>> found = start_and_band([early, late], 9)
        >>> found.order, found.bands, found.starts, found.iteration_time
        ((0, 1), (0, 0), (1, 6), 10)
    """
    problem = _Problem(tuple(map(_bucket, buckets, count())), compute, give)
    if order is not None:
        given = tuple(order)
        if sorted(given) != list(range(len(problem.buckets))):
            raise ValueError(f"order is {list(given)}; name each of the {len(problem.buckets)} buckets once")
        return _result(problem, _Model(problem, problem.limit(problem.least_of(given)), given).solve())
    return _decided(problem)


def evaluate(
    buckets: Sequence[TimedBucket], compute: int | float, order: Sequence[int], bands: Sequence[int]
) -> int | float:
    """Return the iteration time of buckets that are sent one after the other in a given order and given bands."""
    ends = _ends(buckets, order, [bucket.times[band] for bucket, band in zip(buckets, bands, strict=True)])[1]
    return _time(buckets, compute, ends)


def by_rank(buckets: Sequence[TimedBucket], bands: Sequence[int], ranks: Sequence[Any]) -> tuple[int, ...]:
    """Return the order in which a work-conserving queue sends buckets: of the ready ones, the smallest rank first."""
    times = [bucket.times[band] for bucket, band in zip(buckets, bands, strict=True)]
    order: list[int] = []
    left, now = set(range(len(buckets))), min(bucket.ready for bucket in buckets)
    while left:
        now = max(now, min(buckets[index].ready for index in left))
        ready = (index for index in left if buckets[index].ready <= now)
        first = min(ready, key=lambda index: (ranks[index], buckets[index].ready, index))
        order.append(first)
        left.remove(first)
        now += times[first]
    return tuple(order)


def shares(buckets: Sequence[TimedBucket], bands: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the bytes in each band, the highest first."""
    whole, found = sum(bucket.bytes for bucket in buckets), [0.0] * len(buckets[0].times)
    for bucket, band in zip(buckets, bands, strict=True):
        found[band] += bucket.bytes
    return tuple(size / whole for size in found)


def check_give(give: float) -> None:
    """Raise ValueError if the share `give` of the iteration time is not from 0 to 1."""
    if not 0 <= give <= 1:
        raise ValueError(f"give: {give} is not a share from 0 to 1; write one, as in 0.01")


# The problem


def _bucket(given: Mapping[str, Any] | TimedBucket, index: int) -> TimedBucket:
    if isinstance(given, TimedBucket):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"bucket {index}: expected a table, found {given!r}")
    known = ("name", "bytes", "ready", "needed", "times")
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise ValueError(f"bucket {index} has no {unknown!r}; it has {', '.join(known)}")
    missing = next((key for key in known[1:] if key not in given), None)
    if missing is not None:
        raise ValueError(f"bucket {index}: {missing!r} is missing")
    times = given["times"]
    if isinstance(times, (str, Mapping)) or not isinstance(times, Iterable):
        raise ValueError(f"bucket {index}: times is {times!r}; write one time for each band, the highest first")
    bytes_, ready, needed = (_plain(given[key]) for key in ("bytes", "ready", "needed"))
    return TimedBucket(str(given.get("name", index)), bytes_, ready, needed, tuple(map(_plain, times)))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is {value!r}; write a number")
    if not 0 <= value <= _MOST:
        raise ValueError(f"{what} is {value}; write a number from 0 to {_MOST:g}")


@dataclass
class _Problem:
    buckets: tuple[TimedBucket, ...]
    compute: int | float
    give: float
    fastest: list[int | float] = field(init=False)
    bound: int | float = field(init=False)
    """Lower bound of the iteration time over all orders and bands."""
    cuts: list[tuple[int | float, list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ValueError("there are no buckets, so nothing is sent")
        _number("compute", self.compute)
        check_give(self.give)
        if self.compute == 0:
            raise ValueError("compute is 0; write the compute time of an iteration")
        bands = len(self.buckets[0].times)
        for bucket in self.buckets:
            who = f"bucket {bucket.name}"
            for key in ("bytes", "ready", "needed"):
                _number(f"{who}: {key}", getattr(bucket, key))
            for time in bucket.times:
                _number(f"{who}: a time", time)
            if bucket.bytes == 0:
                raise ValueError(f"{who}: bytes is 0; leave out buckets that send nothing")
            if not bucket.times or len(bucket.times) != bands:
                raise ValueError(f"{who} has {len(bucket.times)} times, the first bucket {bands}: one for each band")
            if bucket.needed < bucket.ready:
                raise ValueError(f"{who} is needed at {bucket.needed}, before it is ready at {bucket.ready}")
            if bucket.needed > self.compute:
                raise ValueError(
                    f"{who} is needed at {bucket.needed}, after the end of the iteration: compute is {self.compute}"
                )
        self.fastest = [min(bucket.times) for bucket in self.buckets]
        self.cuts = self._cuts()
        of_cuts = (fixed + sum(self.fastest[index] for index in members) for fixed, members in self.cuts)
        self.bound = max([self.compute, *of_cuts])

    @property
    def band_count(self) -> int:
        return len(self.buckets[0].times)

    def tail(self, index: int) -> int | float:
        """Return the compute time from a bucket's deadline to the end of the iteration."""
        return self.compute - self.buckets[index].needed

    def least_of(self, order: Sequence[int]) -> int | float:
        """Return the iteration time of an order if every bucket is sent in its fastest band."""
        return _time(self.buckets, self.compute, _ends(self.buckets, order, self.fastest)[1])

    def limit(self, least: int | float) -> float:
        """Return the maximum iteration time, `least` increased by the share `give`."""
        return least * (1 + self.give)

    def _cuts(self) -> list[tuple[int | float, list[int]]]:
        """Return sets of buckets with r + q for each set, from which lower bounds of the iteration time follow.

        All buckets of a set are ready at time r or later, and their arrival is followed by compute of at least q. Hence
        r + q + the sum of their transfer times is a lower bound, even if transfers may be preempted. With preemption,
        the largest of these bounds is attained (Horn, 1974).
        """
        found: dict[tuple[int, ...], int | float] = {}
        indices = range(len(self.buckets))
        ready, tail = [bucket.ready for bucket in self.buckets], [self.tail(index) for index in indices]
        for first in indices:
            for last in indices:
                if ready[last] < ready[first] or tail[first] < tail[last]:
                    continue
                members = tuple(i for i in indices if ready[i] >= ready[first] and tail[i] >= tail[last])
                found[members] = ready[first] + tail[last]
        ranked = sorted(found, key=lambda members: -found[members] - sum(self.fastest[index] for index in members))
        return [(found[members], list(members)) for members in ranked[:MOST_CUTS]]


def _ends(
    buckets: Sequence[TimedBucket], order: Sequence[int], times: Sequence[int | float]
) -> tuple[list[int | float], list[int | float]]:
    """Return the earliest start and end of every bucket if buckets are sent in `order`."""
    starts: list[int | float] = [0] * len(buckets)
    ends: list[int | float] = [0] * len(buckets)
    free: int | float = 0
    for index in order:
        starts[index] = max(free, buckets[index].ready)
        free = ends[index] = starts[index] + times[index]
    return starts, ends


def _time(buckets: Sequence[TimedBucket], compute: int | float, ends: Sequence[int | float]) -> int | float:
    return max([compute, *(end + compute - bucket.needed for end, bucket in zip(ends, buckets, strict=True))])


# The programme


@dataclass(frozen=True)
class _Answer:
    """Result of a linear programme: order, bands, and value and bound of each objective in order of minimisation."""

    order: tuple[int, ...]
    bands: tuple[int, ...]
    lower_bound: int | float
    levels: tuple[float, ...]
    bounds: tuple[float, ...]
    is_proven: bool


class _Model:
    """Variables and rows for HiGHS.

    The variables are T, the iteration time, and x[i, b], which is 1 if bucket i is sent in band b. A given order adds
    start times in this sequence. `decides` adds start times and y[i, j], which is 1 if bucket i is sent before bucket
    j. Without either, transfers may be preempted, and the result is a lower bound for every schedule.
    """

    def __init__(
        self, problem: _Problem, limit: float, order: Sequence[int] | None = None, *, decides: bool = False
    ) -> None:
        self.problem, self.order, self.decides = problem, order, decides
        self.scale = _SCALE / limit
        self.highs = _highs()
        self.count = 0
        buckets = problem.buckets
        self.time = self.variable(problem.compute * self.scale, limit * self.scale)
        self.band_of = [[self.variable(0, 1, whole=True) for _ in bucket.times] for bucket in buckets]
        for choices in self.band_of:
            self.row(1, 1, dict.fromkeys(choices, 1.0))
        for fixed, members in problem.cuts:
            self.row(fixed * self.scale, math.inf, {self.time: 1.0, **self.takes(members, -1)})
        self.starts: list[int] = []
        self.before: dict[tuple[int, int], int] = {}
        if order is not None or decides:
            self.starts = [self.variable(bucket.ready * self.scale, math.inf) for bucket in buckets]
            for index in range(len(buckets)):
                tail = problem.tail(index) * self.scale
                self.row(tail, math.inf, {self.time: 1.0, self.starts[index]: -1.0, **self.takes([index], -1)})
        for first, then in pairwise(order or ()):
            self.row(0, math.inf, {self.starts[then]: 1.0, self.starts[first]: -1.0, **self.takes([first], -1)})
        if decides:
            for pair in combinations(range(len(buckets)), 2):
                self.pair(*pair, limit)

    def pair(self, one: int, other: int, limit: float) -> None:
        """Add the constraint that one of two buckets ends before the other starts."""
        chosen = self.variable(0, 1, whole=True)
        self.before[one, other] = chosen
        for first, then, sign in ((one, other, 1), (other, one, -1)):
            # Big-M constant: the maximum time by which `first` can end after the start of `then`, within the limit.
            most = max(0.0, (limit - self.problem.tail(first) - self.problem.buckets[then].ready) * self.scale)
            ends = {self.starts[then]: 1.0, self.starts[first]: -1.0, **self.takes([first], -1)}
            self.row(-most if sign > 0 else 0.0, math.inf, {**ends, chosen: -sign * most})

    def takes(self, members: Iterable[int], sign: int) -> dict[int, float]:
        """Return the total transfer time of some buckets, over all bands, as a linear expression times `sign`."""
        return {
            variable: sign * time * self.scale
            for index in members
            for variable, time in zip(self.band_of[index], self.problem.buckets[index].times, strict=True)
        }

    def variable(self, low: float, high: float, *, whole: bool = False) -> int:
        """Add a variable and return its number."""
        self.highs.addVar(low, high)
        if whole:
            self.highs.changeColIntegrality(self.count, require_solver().HighsVarType.kInteger)
        self.count += 1
        return self.count - 1

    def row(self, low: float, high: float, terms: Mapping[int, float]) -> None:
        """Add the row low <= sum of coefficient x variable <= high."""
        self.highs.addRow(low, high, len(terms), list(terms), list(terms.values()))

    def minimise(self, costs: Mapping[int, float]) -> tuple[list[float], float, bool] | None:
        """Return values of all variables, a lower bound of the objective, and whether they are optimal; or None."""
        for variable in range(self.count):
            self.highs.changeColCost(variable, costs.get(variable, 0.0))
        self.highs.run()
        info = self.highs.getInfo()
        if info.primal_solution_status != 2:  # kSolutionStatusFeasible
            return None
        is_proven = self.highs.getModelStatus() == require_solver().HighsModelStatus.kOptimal
        return list(self.highs.getSolution().col_value), info.mip_dual_bound, is_proven

    def solve(self) -> _Answer:
        """Minimise the iteration time, then the bytes in the highest band, then those in the next."""
        found = self.try_solve()
        if found is None:
            raise InternalError("the linear programme has no solution, though an order reaches its limit")
        return found

    def try_solve(self) -> _Answer | None:
        """Return the result of `solve`; None if no solution is found within the node limit."""
        problem, is_proven = self.problem, True
        bound = problem.bound if self.order is None else problem.least_of(self.order)
        if self.decides:
            found = self.minimise({self.time: 1.0})
            if found is None:
                return None
            values, dual, is_proven = found
            bound = max(bound, dual / self.scale * (1 - SAME / 10))
            least = problem.least_of(self.order_in(values))
            self.highs.changeColBounds(self.time, 0.0, problem.limit(least) * self.scale * (1 + SAME / 100))
        whole = sum(bucket.bytes for bucket in problem.buckets)
        levels: list[float] = []
        bounds: list[float] = []
        for band in range(max(1, problem.band_count - 1)):
            costs = {
                choices[band]: bucket.bytes / whole
                for choices, bucket in zip(self.band_of, problem.buckets, strict=True)
            }
            found = self.minimise(costs)
            if found is None:
                return None
            values, dual, is_best = found
            is_proven &= is_best
            levels.append(sum(cost for variable, cost in costs.items() if values[variable] > 0.5))
            bounds.append(max(0.0, dual))
            self.row(-math.inf, levels[-1] + SAME / 100, costs)
        bands = tuple(max(range(problem.band_count), key=lambda b: values[row[b]]) for row in self.band_of)
        return _Answer(self.order_in(values), bands, bound, tuple(levels), tuple(bounds), is_proven)

    def order_in(self, values: Sequence[float]) -> tuple[int, ...]:
        """Return the order given by the variables."""
        if self.order is not None:
            return tuple(self.order)
        if not self.decides:
            return tuple(range(len(self.problem.buckets)))
        sent_after = [0] * len(self.problem.buckets)
        for (one, other), variable in self.before.items():
            sent_after[other if values[variable] > 0.5 else one] += 1
        return tuple(sorted(range(len(sent_after)), key=lambda index: (sent_after[index], values[self.starts[index]])))


def _decided(problem: _Problem) -> StartAndBand:
    """Choose order and bands.

    List orders (the orders of `by_rank`, and improvements of them) are tried first. If no bound proves one of them
    optimal, the order becomes a decision of the programme. If the programme finds nothing better within its limits, the
    result is the best list order with its gap.
    """
    buckets, indices = problem.buckets, range(len(problem.buckets))
    tails = [-problem.tail(index) for index in indices]
    lists = [by_rank(buckets, [band] * len(buckets), tails) for band in range(problem.band_count)]
    lists += [by_rank(buckets, [0] * len(buckets), [0] * len(buckets))]
    lists += [_improved(problem, order, problem.fastest, problem.bound) for order in lists]
    least = min(map(problem.least_of, lists))
    limit = problem.limit(least)
    parted = _Model(problem, limit).solve()
    wanted = [bucket.times[band] for bucket, band in zip(buckets, parted.bands, strict=True)]
    start = by_rank(buckets, parted.bands, tails)
    lists = [start, _improved(problem, start, wanted, limit), *lists]
    fits = [order for order in dict.fromkeys(lists) if problem.least_of(order) <= limit]
    best = min((_Model(problem, limit, order).solve() for order in fits), key=lambda answer: answer.levels)
    is_least = least <= problem.bound * (1 + SAME)
    is_fewest = all(level <= bound + SAME for level, bound in zip(best.levels, parted.bounds, strict=True))
    if not (is_least and is_fewest) and len(indices) <= MOST_DECIDED:
        free = _Model(problem, limit, decides=True).try_solve()
        # A proven answer is optimal at the least iteration time. The best list order may take longer, and therefore
        # use lower bands.
        if free is not None and (
            free.is_proven or (problem.least_of(free.order), *free.levels) <= (least, *best.levels)
        ):
            return _result(problem, free)
    is_proven = is_least and is_fewest and parted.is_proven
    return _result(problem, _Answer(best.order, best.bands, problem.bound, best.levels, parted.bounds, is_proven))


def _improved(problem: _Problem, order: Sequence[int], times: Sequence[int | float], goal: float) -> tuple[int, ...]:
    """Return an order that is improved by moves of single buckets, until it reaches the goal or no move helps.

    The critical bucket, whose end plus the compute after it is the iteration time, must end earlier. Therefore a move
    sends the critical bucket earlier, or sends a preceding bucket after it.
    """

    def value(order: Sequence[int]) -> tuple[int | float, int]:
        ends = _ends(problem.buckets, order, times)[1]
        worst = max(order, key=lambda index: ends[index] + problem.tail(index))
        return max(problem.compute, ends[worst] + problem.tail(worst)), worst

    best = list(order)
    time, worst = value(best)
    while time > goal:
        at = best.index(worst)
        moves = [(at, to) for to in range(at)] + [(place, at) for place in range(at)]
        for place, to in moves:
            moved = best[:place] + best[place + 1 :]
            moved.insert(to, best[place])
            found = value(moved)
            if found[0] < time:
                best, (time, worst) = moved, found
                break
        else:
            break
    return tuple(best)


def _result(problem: _Problem, answer: _Answer) -> StartAndBand:
    """Return the schedule of an answer, with times recomputed from the input instead of the solver's floats."""
    buckets = problem.buckets
    times = [bucket.times[band] for bucket, band in zip(buckets, answer.bands, strict=True)]
    starts, ends = _ends(buckets, answer.order, times)
    return StartAndBand(
        buckets=buckets,
        order=answer.order,
        bands=answer.bands,
        starts=tuple(starts),
        ends=tuple(ends),
        iteration_time=_time(buckets, problem.compute, ends),
        compute=problem.compute,
        lower_bound=answer.lower_bound,
        least_share=answer.bounds[0],
        optimal=answer.is_proven,
    )


# HiGHS


def require_solver() -> Any:
    """Return the module of HiGHS; raise SolverMissingError if it is missing. Studies call this before their runs."""
    try:
        import highspy
    except ImportError as error:
        raise SolverMissingError(
            f"a linear programme needs HiGHS, which cannot be imported ({error}): {how_to_install('highspy')}"
        ) from error
    return highspy


def _highs() -> Any:
    """Return a solver without output, with an effort limit in nodes and a single thread.

    The option `threads` is not used, because it applies to the whole process and may have been set by the user.
    """
    highs = require_solver().Highs()
    for option, value in (
        ("output_flag", False),
        ("parallel", "off"),
        ("random_seed", 0),
        ("mip_max_nodes", MOST_NODES),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", SAME / 10),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
        ("dual_feasibility_tolerance", 1e-9),
    ):
        highs.setOptionValue(option, value)
    return highs
