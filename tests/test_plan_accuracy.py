"""Predicted gains of plans against the measured pairs of the testbed; intervals and verdicts follow from the errors."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradtide as gt
from gradtide.intervals import student_t
from gradtide.measured import pairs, saving_errors
from gradtide.runtime import RUNTIMES
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from gradtide.studies.plan.result import _chosen as chosen
from plan_scenarios import ROOT, SIX, TEN_LAYERS, on_cpus

sys.path.insert(0, str(ROOT / "validation" / "testbed"))
import plans as testbed_plans

CASES = testbed_plans.cases()


def test_the_interval_comes_from_measured_errors_not_from_noise() -> None:
    """The log of a ratio is off by s·t(n) at most, in 95 of 100 cases; noise moves the mean by a hundredth of that."""
    result = on_cpus(TEN_LAYERS)
    predicted = result.plan.predicted
    low, high = predicted["gain_interval_percent"]
    errors = saving_errors()
    assert 1 - low / 100 == pytest.approx((1 - predicted["gain_percent"] / 100) * np.exp(errors.half))
    assert 1 - high / 100 == pytest.approx((1 - predicted["gain_percent"] / 100) * np.exp(-errors.half))
    jitter_low, jitter_high = predicted["jitter_interval_percent"]
    assert low < jitter_low < predicted["gain_percent"] < jitter_high < high
    quiet = on_cpus(TEN_LAYERS, noise=0).plan.predicted["gain_interval_percent"]
    assert quiet == pytest.approx([low, high], abs=1)


def test_savings_of_a_setup_lie_in_the_interval_that_the_others_give() -> None:
    """Nothing is fitted to the figures that the interval then covers: each setup is predicted from the others.

    Of n savings 95 % are expected within it. Fewer than n - 5 of 24 would be seen in one of 1,000 cases (binomial).
    """
    outside = 0
    for setup in {pair.setup for pair in pairs() if pair.baseline}:
        others = saving_errors([pair for pair in pairs() if pair.setup != setup])
        own = saving_errors([pair for pair in pairs() if pair.setup == setup])
        outside += sum(abs(log) > others.half for log in own.logs)
    assert outside <= 5 * len(saving_errors().logs) / 24


def test_the_page_has_the_table_of_runtimes() -> None:
    lines = ["| device | library | levels | collectives |", "|---|---|---|---|"]
    for one in RUNTIMES.values():
        kinds = (
            "all, at every depth" if one.any_collective else "; ".join(f"{k}: {h}" for k, h in one.collectives.items())
        )
        name = "not named" if one.device == "unknown" else f"`{one.device}`"
        lines.append(f"| {name} | {one.library or '–'} | {', '.join(one.levels)} | {kinds} |")
    page = ROOT / "docs" / "planning.md"
    text = page.read_text()
    start, end = "<!-- table: runtimes -->\n", "<!-- end of table -->"
    now = text.partition(start)[2].partition(end)[0].strip()
    if os.environ.get("UPDATE_GOLDEN"):
        table = "\n".join(lines)
        page.write_text(
            text.replace(f"{start}{now}\n\n{end}" if now else f"{start}{end}", f"{start}\n{table}\n\n{end}")
        )
        return
    assert now == "\n".join(lines)


def test_the_documentation_holds_every_measured_pair() -> None:
    for pair in pairs():
        text = (ROOT / pair.source).read_text()
        assert any(f"{pair.measured_ms:.{digits}f}" in text for digits in (0, 1, 2)), pair
        assert any(f"{pair.predicted_ms:.{digits}f}" in text for digits in (0, 1, 2)), pair


def test_page_and_pairs_are_written_from_the_cases_of_the_testbed() -> None:
    text = (ROOT / "docs" / "validation" / "plan.md").read_text()
    now = text.partition(testbed_plans.BEGIN)[2].partition(testbed_plans.END)[0].strip()
    assert now == testbed_plans.page(CASES)
    rows = (ROOT / "python" / "gradtide" / "measured.csv").read_text().splitlines()
    assert [row for row in rows if row.startswith("plan ")] == testbed_plans.pairs(CASES)
    errors = saving_errors()
    assert f"for the {len(errors.logs)} savings" in text
    assert f"Its root mean square is {errors.half / student_t(len(errors.logs)):.3f}." in text
    assert f"within ±{errors.half:.3f}:" in text
    low, high = errors.interval(0.75)
    assert f"predicted to save 25 % is expected to save {100 - 100 * high:.0f} to {100 - 100 * low:.0f} %" in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']} {case['rate']}")
def test_predicted_times_of_the_pairs_are_what_gradtide_predicts(case: dict[str, Any], tmp_path: Path) -> None:
    """From layers and network alone, as they were measured without any of what is predicted.

    Of plans that take equally long another one may be found today: the measured one still takes as long.
    """
    result = testbed_plans.planned(case)
    assert result.plan.level == case["advised"]
    (ddp,) = [row for row in result.rows if row["name"] == "ddp"]
    assert ddp["iteration_ms"] == pytest.approx(case["predicted_ms"]["ddp"], rel=1e-9)
    alone = Scenario.from_dict(result.baseline.scenario.to_dict())
    for level, plan in result.plans.items():
        measured = tmp_path / f"{level}.json"
        measured.write_text(json.dumps({**plan.to_dict(), **case["plans"][level], "predicted": plan.predicted}))
        times = [gt.run(each.on(alone)).iteration_time for each in (plan, read_plan(measured))]
        assert times[1] == pytest.approx(times[0], rel=1e-9)
        assert plan.predicted["iteration_time_ms"] == pytest.approx(case["predicted_ms"][level], rel=1e-9)


def test_gains_are_predicted_within_three_points_and_what_is_advised_pays() -> None:
    """The bar that was set before anything was measured; one gain misses it, as docs/validation/plan.md says."""
    missed = set()
    for case in CASES:
        times = testbed_plans.means(case)
        said, took = times.pop("ddp")
        for level, (predicted, measured) in times.items():
            if abs(predicted / said - measured / took) >= 0.03:
                missed.add((case["model"], case["rate"], level))
        assert case["advised"] == "none" or times[case["advised"]][1] < took
    assert missed == {("head", "1gbit", "buckets")}


def row_that_saves(level: str, percent: float, jitter_low: float | None = None) -> dict[str, Any]:
    low, _ = (100 - 100 * end for end in reversed(saving_errors().interval(1 - percent / 100)))
    return {"level": level, "saves_percent": percent, "saves_low_percent": low, "jitter_low_percent": jitter_low}


def test_a_level_is_advised_if_it_pays_after_the_error_and_no_other_clearly_beats_it() -> None:
    """With h the interval's half, a saving s pays if 1 - (1 - s) exp(h) is enough; t clearly beats it beyond that."""
    h = saving_errors().half
    pays = 100 - 99 * np.exp(-h)  # its low end is the 1 % that it has to save
    assert chosen([row_that_saves("buckets", pays - 0.01)], 1) == "none"
    assert chosen([row_that_saves("buckets", pays + 0.01)], 1) == "buckets"
    assert chosen([row_that_saves("buckets", pays + 0.01, jitter_low=0.9)], 1) == "none"
    more = 100 - (100 - pays) * np.exp(-h)  # what is left of it is less by the error
    for beyond, level in ((0.9, "buckets"), (1.1, "crossiter")):
        rows = [row_that_saves("buckets", pays + 0.01), row_that_saves("crossiter", more + 0.01 + beyond)]
        assert chosen(rows, 1) == level
    assert chosen([], 1) == chosen([row_that_saves("crossiter", -3.0)], 0) == "none"


def test_the_verdict_follows_the_interval() -> None:
    """Ten layers: 25 % is worth it at its low end. Between the low end and the prediction, nothing is sure."""
    sure = on_cpus(TEN_LAYERS).plan
    assert sure.predicted["verdict"] == "worth it"
    assert sure.advice[0].startswith("Worth it: even the low end")
    (row,) = [row for row in on_cpus(SIX, level="buckets").rows if row["level"] == "buckets"]
    result = on_cpus(SIX, level="buckets", worth=(row["saves_percent"] + row["saves_low_percent"]) / 2)
    assert result.plan.predicted["verdict"] == "leave alone"
    assert "measured savings differed so much from predictions" in result.plan.advice[0]


def test_the_best_plan_of_each_level_is_there_though_one_is_chosen() -> None:
    result = on_cpus(TEN_LAYERS, noise=0)
    assert list(result.plans) == ["buckets", "priority", "crossiter"]
    for level, plan in result.plans.items():
        assert plan.level == level
        alone = gt.run(plan.on(Scenario.from_toml(TEN_LAYERS.read_text())))
        assert alone.job["iteration_time_ms"]["mean"] == plan.predicted["iteration_time_ms"]
    assert replace(result.plans["crossiter"], advice=result.plan.advice) == result.plan
