"""A verdict of a reproduction, its sentence and its difference are of one number: the one that is printed."""

import re

import pytest

from gradtide.papers import PARTS, harness, tictac2019
from gradtide.papers.harness import above, below, changed, exactly, judged, least, value

BOUNDS = re.compile(r"at least|more than|up to|less than")


def verdict(claim: harness.Claim) -> object:
    return claim[3]


def test_what_is_printed_is_what_is_judged() -> None:
    # 11.04 is more than 10 % off, and printed as 11: the row says 11, and so does the verdict.
    assert verdict(judged("time", value(10, "10 s"), 11.04, "{:.0f} s")) is True
    assert verdict(judged("time", value(10, "10 s"), 11.04, "{:.2f} s")) is False
    assert judged("time", value(10, "10 s"), 11.04, "{:.0f} s")[:3] == ("time", "10 s", "11 s")


def test_a_change_that_is_not_printed_is_none() -> None:
    assert verdict(changed("overlap", "more", (0.996, 0.998), "{:.2f} to {:.2f}", grows=True)) is False
    assert verdict(changed("overlap", "more", (0.996, 0.998), "{:.3f} to {:.3f}", grows=True)) is True
    assert verdict(changed("overlap", "more", (0.996, 0.998), "{:.3f} to {:.3f}", grows=True, by=0.005)) is False
    assert verdict(changed("waits", "less", (3.0, 2.0), "{:.0f} to {:.0f}", grows=False)) is True


def test_every_number_of_a_row_is_judged() -> None:
    said = value(100, "table 1")
    assert verdict(judged("ops", said, [95, 105], "{:.0f} to {:.0f} %")) is True
    assert verdict(judged("ops", said, [95, 135], "{:.0f} to {:.0f} %")) is False
    assert verdict(judged("both", [value(25, "25 %"), value(10, "10 %")], [25, 12], "{:.0f} % and {:.0f} %")) is False
    with pytest.raises(ValueError, match="zip"):
        judged("ops", said, [95, 105], "{:.0f} %")


def test_bounds_and_counts() -> None:
    assert [least(50, "").agrees(ours) for ours in (44.9, 45, 90)] == [False, True, True]
    assert [above(5, "").agrees(ours) for ours in (5, 5.1)] == [False, True]
    assert [below(5, "").agrees(ours) for ours in (5, 4.9)] == [False, True]
    assert [exactly(16, "16").agrees(ours) for ours in (16.0, 16.01)] == [True, False]


def test_nothing_differs_by_a_percentage_from_a_bound() -> None:
    assert harness.difference_percent("about 10 s", "less than 1 s") is None
    assert harness.difference_percent("50 %", "at least 50 %") is None
    assert harness.difference_percent("60 % less", "68 % less") == 13.3


@pytest.mark.parametrize("name", ["gao2020/ch3", "gao2020/ch4"])
def test_no_row_agrees_whose_difference_is_beyond_its_tolerance(name: str) -> None:
    for check in PARTS[name].make(1, None).summary["checks"]:
        # The other papers take minutes; their rows are made by the same functions.
        difference = check["difference_percent"]
        if check["verdict"] == "agrees" and difference is not None and not BOUNDS.search(check["published"]):
            assert abs(difference) <= 100 * harness.TOLERANCES["text"], check


def test_tictac_says_of_fig_4_what_its_table_shows() -> None:
    summary = PARTS["tictac"].make(1, None, "4").summary
    (table,) = summary["tables"]
    at = table["columns"].index("alpha")
    cells = {(row[0], row[1]): row[at] for row in table["rows"]}
    for task in tictac2019.TRAIN_OR_NOT.values():
        (check,) = (one for one in summary["checks"] if one["quantity"] == f"mean overlap, {task}")
        shown = [cells[task, order] for order in ("arbitrary orders", "TIC, 0.5 % out of order")]
        assert check["ours"] == " to ".join(shown)
        assert (check["verdict"] == "agrees") == (float(shown[1]) > 1.005 * float(shown[0]))


def test_the_speed_of_another_program_is_no_statement() -> None:
    checks = PARTS["tictac"].make(1, None, "Table 1").summary["checks"]
    (check,) = (one for one in checks if one["published"] == "about 10 s")
    assert check["verdict"] == "shown"
    assert check["difference_percent"] is None
