"""Analysis of one figure of a study: sensitivity, effects, and the Pareto front of the figure against another one.

    sensitivity     share of the figure's variance that one key explains: runs are grouped by the key's value, and the
                    variance of the groups' means is divided by the total variance
    effect          change of the figure if a key has another value than its first, all other keys and the seed equal
    front           points for which no other point is better in both figures

All functions are pure. They take a figure as an array by run number, with NaN for runs without the figure.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from gradtide.intervals import mean_interval
from gradtide.studies.sweep.settings import UNITS, quantity, short
from gradtide.studies.sweep.study import Axis, Study

BINS = 8
"""The values of a sampled key are grouped into at most this many bins, each with at least as many points."""
MAX_PANELS, MAX_LINES, MAX_AT, MAX_FRONT, MAX_POINTS = 12, 6, 200, 200, 400
"""Largest numbers of panels, lines per panel, `x` per line, points on the front, and other points in a summary."""

ROUNDING = 1e-9
"""A sensitivity below this share of the variance is a rounding error, and is reported as 0."""


def analysed(study: Study, ys: Sequence[float], xs: Sequence[float] | None, best: str) -> dict[str, Any]:
    """Return all analyses of `ys` as keys of a summary, with the front against `xs`; `best` is "least" or "most"."""
    means = over_seeds(study, ys)
    found: dict[str, Any] = {
        "sensitivity": sensitivity(study, ys),
        "effects": effects(study, ys),
        "charts": charts(study, means),
        "samples": samples(study, means),
    }
    if xs is not None:
        found["front"] = {"unit": unit_of(study, study.against), **front(study, over_seeds(study, xs), means, best)}
    return found


def _strides(study: Study) -> list[tuple[Axis, int]]:
    """Return every axis with its stride, i.e. the difference of run numbers between two adjacent values of the axis."""
    stride, found = study.seeds, []
    for axis in reversed(study.axes):
        found.append((axis, stride))
        stride *= axis.length
    return found[::-1]


def over_seeds(study: Study, values: Sequence[float]) -> "array[float]":
    """Return for each point the mean of `values` (one per run) over the seeds; NaN if a value is NaN."""
    seeds = study.seeds
    return array("d", (math.fsum(values[at : at + seeds]) / seeds for at in range(0, len(values), seeds)))


def sensitivity(study: Study, ys: Sequence[float]) -> list[dict[str, Any]]:
    """Return the sensitivity of the figure to each key and to the seed, largest first; empty if all `ys` are equal."""
    known = array("d", (y for y in ys if not math.isnan(y)))
    mean = math.fsum(known) / max(len(known), 1)
    whole = math.fsum((y - mean) ** 2 for y in known)
    if whole <= 1e-18 * mean * mean * len(known):
        return []
    rows = []
    for name, size, group_of in _groups(study):
        sums = _Sums(size)
        for run, y in enumerate(ys):
            if not math.isnan(y):
                sums.add(group_of(run), y)
        means = sums.means()
        if len(means) > 1:
            parts = (count * (total / count - mean) ** 2 for total, count in sums.known())
            share = min(math.fsum(parts) / whole, 1.0)
            row = {"key": name, "share": share if share > ROUNDING else 0.0, "least": min(means), "most": max(means)}
            rows.append(row)
    return sorted(rows, key=lambda row: -row["share"])


class _Sums:
    """Sum and number of the values in each group, in arrays to save memory: a study can have 10^6 groups (seeds)."""

    def __init__(self, size: int) -> None:
        self._totals, self._counts = array("d", [0.0]) * size, array("L", [0]) * size

    def add(self, group: int, value: float) -> None:
        self._totals[group] += value
        self._counts[group] += 1

    def known(self) -> Iterator[tuple[float, int]]:
        """Return the sum and the number of values of each group that has a value."""
        return ((total, count) for total, count in zip(self._totals, self._counts, strict=True) if count)

    def means(self) -> "array[float]":
        """Return the mean of each group that has a value."""
        return array("d", (total / count for total, count in self.known()))


def _groups(study: Study) -> Iterator[tuple[str, int, Any]]:
    """Yield for each key, and for the seed, its name, its number of groups, and a function from run to group."""
    for axis, stride in _strides(study):
        if axis.kind != "sample":
            yield " and ".join(axis.keys), axis.length, lambda run, s=stride, n=axis.length: run // s % n
            continue
        bins = min(BINS, axis.length // BINS)
        for number, key in enumerate(axis.keys):
            order = sorted(range(axis.length), key=lambda index, n=number: (axis.share(index, n), index))  # type: ignore[misc]
            part = {index: rank * bins // axis.length for rank, index in enumerate(order)}
            yield key, max(bins, 1), lambda run, s=stride, n=axis.length, part=part: part[run // s % n]
    yield "seed", study.seeds, lambda run: run % study.seeds


def effects(study: Study, ys: Sequence[float]) -> list[dict[str, Any]]:
    """Return by how many percent each value of a grid or zip key changes the figure, with 95 % intervals over seeds."""
    rows = []
    for axis, stride in _strides(study):
        if axis.kind == "sample":
            continue
        sums = {index: _Sums(study.seeds) for index in range(1, axis.length)}
        for run, y in enumerate(ys):
            index = run // stride % axis.length
            first = ys[run - index * stride]
            if index and first > 0 and not math.isnan(y):
                sums[index].add(run % study.seeds, 100 * (y / first - 1))
        for index, of_seeds in sums.items():
            means = of_seeds.means()
            if not means:
                continue
            interval = mean_interval(means)
            rows.append(
                {
                    "key": " and ".join(axis.keys),
                    "value": _words(study, axis, index),
                    "over": _words(study, axis, 0),
                    "pairs": sum(count for _, count in of_seeds.known()),
                    "change_percent": math.fsum(means) / len(means),
                    "low_percent": None if interval is None else interval[0],
                    "high_percent": None if interval is None else interval[1],
                }
            )
    return rows


def _words(study: Study, axis: Axis, index: int) -> str:
    return ", ".join(study.labels(axis, index).values())


def _named(study: Study, axis: Axis, index: int) -> str:
    """Return the values of an axis at `index` as text, each after its key's short name, as in "workers 16"."""
    keys = short(study.keys)
    return ", ".join(f"{keys[key]} {text}" for key, text in study.labels(axis, index).items())


def front(study: Study, xs: Sequence[float], ys: Sequence[float], best: str = "least") -> dict[str, Any]:
    """Return the Pareto front by ascending `x`, and up to `MAX_POINTS` dominated points.

    `xs` and `ys` have one value per point. The smallest `x` is best; `best` is "least" or "most" for `y`.
    """
    sign = -1 if best == "most" else 1
    known = sorted(
        (x, sign * y, point) for point, (x, y) in enumerate(zip(xs, ys, strict=True)) if not math.isnan(x + y)
    )
    lowest = math.inf
    corners: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for x, y, point in known:
        one = {"run": point * study.seeds, "x": x, "y": sign * y, "values": study.label(point * study.seeds)}
        if y < lowest:
            corners.append(one)
            lowest = y
        elif len(others) < MAX_POINTS:
            others.append(one)
    return {"points": len(known), "corners": corners[:MAX_FRONT], "others": others}


def _scale(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Return values as numbers for a chart's axis, with their unit; `None` unless they are distinct quantities."""
    found = [quantity(value) for value in values]
    units = {one[1] for one in found if one is not None}
    if None in found or len(units) != 1:
        return None
    factor, name = UNITS[units.pop()]
    numbers = [one[0] / factor for one in found if one is not None]
    return (numbers, name) if len(set(numbers)) == len(numbers) > 1 else None


def charts(study: Study, means: Sequence[float]) -> list[dict[str, Any]]:
    """Return line charts of the figure over a key `x`: a line for each value of a second key, panels for other keys.

    `means` is the figure of each point. `x` is the numeric key in a grid or zip with the most values. If no key is
    numeric, `x` is the key with the most values, and the `x` values of a panel are indices in its `labels`.
    """
    listed = [axis for axis in study.axes if axis.kind != "sample" and 1 < axis.length <= MAX_AT]
    scales = [(axis, key, scale) for axis in listed for key in axis.keys if (scale := _scale(_listed(axis, key)))]
    labels: list[str] | None = None
    if scales:
        over, key, (numbers, unit) = max(scales, key=lambda one: one[0].length)
    elif listed:
        over = max(listed, key=lambda axis: axis.length)
        key, unit, numbers = " and ".join(over.keys), "", [float(index) for index in range(over.length)]
        labels = [_words(study, over, index) for index in range(over.length)]
    else:
        return []
    others = [axis for axis in study.axes if axis is not over]
    lined = next((axis for axis in others if axis.kind != "sample" and 1 < axis.length <= MAX_LINES), None)
    rest = [axis for axis in others if axis is not lined]
    strides = {id(axis): stride // study.seeds for axis, stride in _strides(study)}
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    panels: list[dict[str, Any]] = []
    for indices in product(*(range(axis.length) for axis in rest)):
        if len(panels) == MAX_PANELS:
            break
        start = sum(strides[id(axis)] * index for axis, index in zip(rest, indices, strict=True))
        lines = []
        for number in range(lined.length if lined else 1):
            first = start + (strides[id(lined)] * number if lined else 0)
            values = [means[first + strides[id(over)] * index] for index in order]
            name = _named(study, lined, number) if lined else "mean of the seeds"
            lines.append({"name": name, "values": [None if math.isnan(value) else value for value in values]})
        named = (_named(study, axis, index) for axis, index in zip(rest, indices, strict=True) if axis.length > 1)
        panel = {"title": "; ".join(named), "key": key, "unit": unit, "x": [numbers[index] for index in order]}
        panels.append({**panel, **({} if labels is None else {"labels": labels}), "lines": lines})
    return [panel for panel in panels if any(value is not None for one in panel["lines"] for value in one["values"])]


def _listed(axis: Axis, key: str) -> Sequence[Any]:
    values: Sequence[Any] = axis.values[axis.keys.index(key)]
    return values


def samples(study: Study, means: Sequence[float]) -> list[dict[str, Any]]:
    """Return the values of each sampled key with the figure, for scatter plots; other keys have their first values."""
    found = []
    for axis, stride in _strides(study):
        if axis.kind != "sample":
            continue
        known = [index for index in range(min(axis.length, MAX_POINTS))]
        ys = [means[index * (stride // study.seeds)] for index in known]
        for key in axis.keys[:MAX_PANELS]:
            values = [quantity(axis.at(index)[key]) for index in known]
            factor, unit = UNITS[next(one[1] for one in values if one)]
            points = [(one[0] / factor, y) for one, y in zip(values, ys, strict=True) if one and not math.isnan(y)]
            if points:
                found.append({"key": key, "unit": unit, "points": points})
    return found


def unit_of(study: Study, name: str | None) -> str:
    """Return the display unit of the varied key `name`; empty for a figure, because its name contains the unit."""
    found = quantity(study.values(0).get(name or ""))
    return "" if found is None else UNITS[found[1]][1]


def by_run(name: str, rows: Iterator[Mapping[str, Any]]) -> "array[float]":
    """Return the figure or varied key `name` of every run as a number in its display unit; NaN if it is missing."""

    def number(row: Mapping[str, Any]) -> float:
        found = quantity(row.get(name))
        return math.nan if found is None else float(found[0]) / UNITS[found[1]][0]

    return array("d", map(number, rows))
