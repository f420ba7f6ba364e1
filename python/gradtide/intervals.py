"""Confidence intervals of a mean from a few runs, by Student's t distribution."""

import math
from collections.abc import Sequence
from functools import cache

CONFIDENCE = 0.95
"""Share of intervals that contain the true mean, if the values of runs are normally distributed."""


@cache
def student_t(degrees: int) -> float:
    """Return t with P(|T| <= t) = `CONFIDENCE` for T of Student's distribution with `degrees` degrees of freedom.

    Source:
        Abramowitz & Stegun (1964), 26.7.3 and 26.7.4; solved by bisection.

    Example:
        >>> round(student_t(4), 3)
        2.776
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: at least two runs are needed")
    low, high = 0.0, 13.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _within(middle, degrees) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Return P(|T| <= t) for T of Student's distribution with `degrees` degrees of freedom."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    is_odd = degrees % 2
    term = cosine if is_odd else 1.0
    total = 0.0
    for step in range(1 + is_odd, degrees, 2):
        total += term
        term *= cosine * cosine * step / (step + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends of the confidence interval of the mean of independent values; `None` for fewer than two values.

    Example:
        >>> [round(end, 2) for end in mean_interval([1.0, 2.0, 3.0])]
        [-0.48, 4.48]
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = student_t(count - 1) * spread / math.sqrt(count)
    return mean - half, mean + half
