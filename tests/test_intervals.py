"""Student's t against a printed table, and intervals against what they promise."""

import random

import pytest

from gradtide.intervals import mean_interval, student_t

# NIST/SEMATECH, e-Handbook of Statistical Methods, section 1.3.6.7.2: two-sided 95 %, 1 to 30 degrees of freedom.
TABLE = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@pytest.mark.parametrize(("degrees", "printed"), list(enumerate(TABLE, 1)))
def test_student_t_is_that_of_the_printed_table(degrees: int, printed: float) -> None:
    assert round(student_t(degrees), 3) == printed


def test_many_runs_come_to_the_normal_distribution() -> None:
    assert student_t(10_000) == pytest.approx(1.96, abs=3e-4)


def test_one_run_has_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([]) is None
    with pytest.raises(ValueError, match="at least two runs"):
        student_t(0)


def test_an_interval_of_two_runs_is_that_of_the_formula() -> None:
    # Mean 2, standard deviation sqrt(2), t = 12.706 with one degree of freedom: 2 +- 12.706.
    assert mean_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706), abs=1e-3)


@pytest.mark.parametrize("count", [2, 5, 12])
def test_nineteen_of_twenty_intervals_hold_the_mean(count: int) -> None:
    draw = random.Random(count)
    drawn = (mean_interval([draw.gauss(3, 2) for _ in range(count)]) or (0, 0) for _ in range(4000))
    held = sum(low <= 3 <= high for low, high in drawn)
    # 95 % of 4000; the standard deviation of the count is 14.
    assert abs(held - 3800) < 4 * 14
