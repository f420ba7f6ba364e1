"""`--fail-if`: a condition on a figure that makes the command exit with code 1."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from gradtide.cli.ends import EXIT_CHECK_FAILED, fail_usage
from gradtide.cli.printing import talk
from gradtide.errors import did_you_mean


class Check:
    """A comparison of a figure of the results with a limit. The command fails if it is true."""

    def __init__(self, text: str, figure: str, operator: str, limit: float) -> None:
        self.text, self.figure, self.limit = text, figure, limit
        self._holds: Callable[[float, float], bool] = {
            ">": float.__gt__,
            ">=": float.__ge__,
            "<": float.__lt__,
            "<=": float.__le__,
        }[operator]

    def holds(self, value: float) -> bool:
        """Return whether the comparison is true if the figure has this value."""
        return self._holds(float(value), self.limit)


def parse_check(text: str) -> Check:
    """Parse a check such as `iteration_time_ms>950`; raises `UsageError` if the text is invalid."""
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*", text)
    try:
        if match is not None and math.isfinite(limit := float(match[3])):
            return Check(text, match[1], match[2], limit)
    except ValueError:
        pass
    fail_usage(f"--fail-if {text!r}: write FIGURE, one of > >= < <=, and a number, as in 'iteration_time_ms>950'")


def refuse_unknown(checks: Sequence[Check], example: Callable[[], dict[str, Any]]) -> None:
    """Raise `UsageError` for a check of an unknown figure. `example` returns the figures of a small run."""
    if not checks:
        return
    known = sorted(name for name, value in example().items() if value is None or isinstance(value, (int, float)))
    for check in checks:
        if check.figure not in known:
            hint = did_you_mean(check.figure, known, f"there are {', '.join(known)}", "{}")
            fail_usage(f"--fail-if {check.text!r}: no figure {check.figure!r}; {hint}")


def apply_checks(checks: Sequence[Check], figures_of: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Exit with code 1 if a check is true for any result, or if its figure has no value.

    Args:
        checks: the checks of the command line.
        figures_of: (name, figures) of each result. A check applies only to results that have its figure, because
            different kinds of results have different figures; if no result has it, the check fails.
    """
    if failed := failures(checks, figures_of):
        talk(*failed)
        raise typer.Exit(EXIT_CHECK_FAILED)


def failures(checks: Sequence[Check], figures_of: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a message for each pair of a check and a result that fails it. Arguments: as in `apply_checks`."""
    lines: list[list[str]] = [[] for _ in checks]
    counts = [0] * len(checks)
    is_found = [False] * len(checks)
    for name, figures in figures_of if checks else ():
        for place, check in enumerate(checks):
            if check.figure not in figures:
                continue
            value = figures[check.figure]
            is_found[place] = True
            if value is None or check.holds(value):
                counts[place] += 1
                why = "it has no value" if value is None else f"{value:.6g}"
                if len(lines[place]) < MAX_SHOWN:
                    lines[place].append(f"check failed: {check.text} ({name}: {why})")
    for check, found, count, is_known in zip(checks, lines, counts, is_found, strict=True):
        if not is_known:
            found.append(f"check failed: {check.text} (no result has this figure)")
        elif count > len(found):
            found.append(f"check failed: {check.text} ({count - len(found):,} more)")
    return [line for found in lines for line in found]


MAX_SHOWN = 20
"""Largest number of failing results that are listed for each check."""
