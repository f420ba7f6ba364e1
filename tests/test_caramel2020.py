"""`gradtide reproduce caramel`: what is shown, and what holds."""

from pathlib import Path

import numpy as np
import pytest

from gradtide import report
from gradtide.papers import PARTS, Reproduction, find, verdicts
from gradtide.papers import caramel2020 as paper
from gradtide.papers.harness import tally


@pytest.fixture(scope="module")
def whole() -> Reproduction:
    return paper.PART.make(2, None)


def test_every_figure_is_there_with_a_verdict(whole: Reproduction, tmp_path: Path) -> None:
    names = [item["figure"] for item in whole.summary["figures"]]
    assert names == list(paper.FIGURES)
    assert {one["figure"] for one in whole.summary["checks"]} == set(names)
    assert {item["figure"] for key in ("tables", "series") for item in whole.summary[key]} == set(names)
    folder = whole.save(tmp_path / "caramel")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "gradtide reproduce caramel<" in page
    assert report.write_report(folder).read_text(encoding="utf-8") == page


def test_what_does_not_hold_has_a_reason(whole: Reproduction) -> None:
    for one in whole.summary["checks"]:
        assert one["verdict"] == "agrees" or one["note"], one["quantity"]


def test_the_overview_counts_what_is_found(whole: Reproduction) -> None:
    assert tally(whole.summary["checks"]) == verdicts()["caramel"]


def test_the_two_values_that_are_fitted_give_what_they_were_fitted_to(whole: Reproduction) -> None:
    (table,) = (table for table in whole.summary["tables"] if table["figure"] == "11")
    used = {row[0]: float(row[3]) for row in table["rows"]}
    assert used[paper.HOROVOD] == pytest.approx(0.68, abs=0.005)
    (series,) = (series for series in whole.summary["series"] if series["figure"] == "13")
    small = {one["name"]: one["values"][0] for one in series["lines"]}
    assert small["depth 8"] / small["depth 1"] == pytest.approx(3.0, abs=0.05)


def test_a_statement_counts_once_and_what_was_fitted_to_not_at_all(whole: Reproduction) -> None:
    said = [(one["figure"], one["quantity"]) for one in whole.summary["checks"]]
    assert len(said) == len(set(said)) == 28
    fitted = [one["quantity"] for one in whole.summary["checks"] if one["verdict"] == "fitted"]
    assert fitted == ["Horovod", "1 kB: depth 8 against 1"]


def test_one_host_predicts_what_the_paper_gains(whole: Reproduction) -> None:
    """Figs 8 to 10, 13 and 14 as far as they follow from stages and a cost per message."""
    agrees = {one["quantity"] for one in whole.summary["checks"] if one["verdict"] == "agrees"}
    assert agrees >= {
        "largest improvement",
        "Horovod against Caramel",
        "VGG-16, 16 workers, against Horovod",
        "less communication than baselines",
        "largest reduction of communication, of Horovod's",
        "1 kB, 4 workers: fastest",
        "1 kB, 32 workers: fastest",
    }


def test_all_of_caramel_beats_each_step_before_and_horovod(whole: Reproduction) -> None:
    """The shape of figs 11 and 12."""
    (table,) = (table for table in whole.summary["tables"] if table["figure"] == "12")
    for row in table["rows"]:
        used = [int(cell) for cell in row[2:]]
        assert used[-1] == max(used)
        assert used[-1] > used[0]


def test_utilisation_is_what_overlap_and_ratio_say(whole: Reproduction) -> None:
    """U = 1 / (1 + rho - alpha min(rho, 1)), section 3.1; the cells have three decimals."""
    (table,) = (table for table in whole.summary["tables"] if table["figure"] == "2")
    for row in table["rows"]:
        rho, alpha, used = map(float, row[1:])
        assert used == pytest.approx(1 / (1 + rho - alpha * min(rho, 1)), abs=3e-3)


def test_a_figure_runs_what_it_needs_alone() -> None:
    assert find("caramel/13") == (PARTS["caramel"], "13")
    assert find("caramel/3") is None
    alone = PARTS["caramel"].make(1, None, "11", None, None)
    assert {one["figure"] for one in alone.summary["checks"]} == {"11"}
    assert alone.summary["part"] == "11"


def test_a_change_of_every_run_is_what_a_cause_is_tested_by() -> None:
    """Without stages all collectives send equally many bytes over the links alone: 100 MB takes all as long."""
    make = PARTS["caramel"].make
    free = dict.fromkeys(("host_copy", "host_serialise", "host_receive"))
    made = paper.STATEMENTS.changed(lambda _case, whole: whole.replace(**free)).make(1, None, "14")
    (large,) = (series for series in made.summary["series"] if series["title"] == paper.LARGE)
    times = np.array([one["values"] for one in large["lines"]])
    assert np.ptp(times, axis=0) / times.mean(axis=0) == pytest.approx(0, abs=0.01)
    assert make(1, None, "14").summary["series"] != made.summary["series"]
