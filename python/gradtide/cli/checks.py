"""`--fail-if`: a condition on a figure that makes the command exit with code 1."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import typer

from gradtide.cli.ends import EXIT_CHECK_FAILED, fail_usage
from gradtide.cli.printing import talk
from gradtide.errors import did_you_mean


class Check:
    """A comparison of a figure with a limit; the command fails if the comparison is true."""

    def __init__(self, text: str, figure: str, operator: str, limit: float) -> None:
        self.text, self.figure, self.limit = text, figure, limit
        self._holds: Callable[[float, float], bool] = {
            ">": float.__gt__,
            ">=": float.__ge__,
            "<": float.__lt__,
            "<=": float.__le__,
        }[operator]

    def holds(self, value: float) -> bool:
        """Return whether the comparison is true for this value of the figure."""
        return self._holds(float(value), self.limit)


def parse_check(text: str) -> Check:
    """Parse the text of a check, as in `iteration_time_ms>950`; ends with a usage error for other texts."""
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*", text)
    try:
        if match is not None:
            return Check(text, match[1], match[2], float(match[3]))
    except ValueError:
        pass
    fail_usage(f"--fail-if {text!r}: write FIGURE, one of > >= < <=, and a number, as in 'iteration_time_ms>950'")


def refuse_unknown(checks: Sequence[Check], example: Callable[[], dict[str, Any]]) -> None:
    """Refuse checks of unknown figures before any run; `example` returns the known figures, of a small result."""
    if not checks:
        return
    known = sorted(name for name, value in example().items() if value is None or isinstance(value, (int, float)))
    for check in checks:
        if check.figure not in known:
            hint = did_you_mean(check.figure, known, f"there are {', '.join(known)}", "{}")
            fail_usage(f"--fail-if {check.text!r}: no figure {check.figure!r}; {hint}")


def apply_checks(checks: Sequence[Check], figures_of: dict[str, dict[str, Any]]) -> None:
    """Exit with code 1 if a check is true for any result, or if a result has no value of the figure."""
    failed = []
    for check in checks:
        for name, figures in figures_of.items():
            value = figures[check.figure]
            if value is None:
                failed.append(f"check failed: {check.text} ({name}: it has no value)")
            elif check.holds(value):
                failed.append(f"check failed: {check.text} ({name}: {value:.6g})")
    if failed:
        talk(*failed)
        raise typer.Exit(EXIT_CHECK_FAILED)
