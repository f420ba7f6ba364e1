"""Which flows count, in which class, and what their completion times are summed up to."""

import math

import numpy as np
import pytest

from gradtide.fct import Window, class_summary

MS = 10**9


def test_classes_meet_at_100_kb_and_10_mb():
    sizes = [1, 100_000, 100_001, 9_999_999, 10_000_000, 10**12]
    summary = class_summary([0] * 6, sizes, [1 * MS, 3 * MS, 10 * MS, 20 * MS, 100 * MS, 300 * MS])
    assert [summary[name]["started"] for name in ("small", "medium", "large", "all")] == [2, 2, 2, 6]
    assert [summary[name]["mean_fct_ms"] for name in ("small", "medium", "large")] == [2, 15, 200]
    assert summary["all"]["mean_fct_ms"] == pytest.approx(434 / 6, rel=1e-15)


def test_percentiles_are_linear_between_the_two_nearest():
    times = list(range(1, 12))  # 11 flows: percentile p lies at place p / 10 from the first
    figures = class_summary([0] * 11, [1] * 11, [t * MS for t in times])["small"]
    assert (figures["p50_fct_ms"], figures["p90_fct_ms"]) == (6.0, 10.0)
    assert figures["p99_fct_ms"] == pytest.approx(10.9, rel=1e-15)


def test_flows_that_have_not_ended_are_started_and_nothing_else():
    figures = class_summary([0, 1, 2], [1, 1, 1], [4 * MS, None, math.nan])["all"]
    assert (figures["started"], figures["completed"], figures["mean_fct_ms"]) == (3, 1, 4.0)


def test_a_class_without_flows_has_no_figures():
    empty = {"started": 0, "completed": 0, "mean_fct_ms": None} | {f"p{p}_fct_ms": None for p in (50, 90, 99)}
    assert class_summary([], [], []) == dict.fromkeys(("small", "medium", "large", "all"), empty)
    assert class_summary([5], [1], [None])["all"] == empty | {"started": 1}


@pytest.mark.parametrize(
    ("warmup", "cooldown", "expected"),
    [
        (0, 0, [0, 10, 20, 30, 40]),
        (10, 0, [10, 20, 30, 40]),  # at the end of the warm-up: counts
        (11, 0, [20, 30, 40]),
        (0, 10, [0, 10, 20]),  # at the start of the cool-down: does not
        (0, 9, [0, 10, 20, 30]),
        (10, 20, [10]),
        (0, 40, []),
        (0, 1000, []),
        (1000, 0, []),
    ],
)
def test_the_window_is_from_warm_up_to_the_last_start_less_cool_down(warmup, cooldown, expected):
    starts = np.array([30, 0, 10, 40, 20], dtype=np.uint64)
    assert sorted(starts[Window(warmup, cooldown).counted(starts)]) == expected


def test_starts_near_the_end_of_the_clock_count():
    assert Window(2**64 - 2, 0).counted([2**64 - 1, 2**64 - 2]).tolist() == [True, True]
    assert Window(0, 1).counted([2**64 - 1, 2**64 - 3]).tolist() == [False, True]


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="columns of 1, 2 and 1 flows"):
        class_summary([0], [1, 2], [1])
