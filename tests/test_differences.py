"""Relative differences in texts: readable at any size."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import words
from gradtide.answer.uncertainty import _share
from gradtide.studies import check


@given(st.floats(-1e6, 1e6))
def test_a_difference_is_a_plain_number_near_its_value(percent: float) -> None:
    text = words.difference(percent, signed=True)
    if abs(percent) < words.LEAST_DIFFERENCE:
        assert text == ("0 %" if percent == 0 else "under 0.001 %")
        return
    found = re.fullmatch(r"([-+]\d[\d,]*(?:\.\d+)?) %", text)
    assert found, text
    # Two digits, as far as three decimals have them.
    assert float(found[1].replace(",", "")) == pytest.approx(percent, rel=0.051, abs=0.0006)


@given(st.floats(0, 100))
def test_an_error_of_predictions_has_no_exponent(share: float) -> None:
    assert "e" not in _share(share).replace("under", "")


def compared(mean: float, worst: float) -> dict[str, Any]:
    return {"compared": 9, "equal": 3, "unfinished_in_one": 0, "mean_percent": mean, "worst_percent": worst}


@pytest.mark.parametrize("mean", [0.0, 1e-6, -1e-6, 0.4, -0.4])
def test_means_that_hardly_differ_have_no_direction(mean: float) -> None:
    none = {**compared(0, 0), "compared": 0}
    headline = check._headline({"against": "ns-3.37", "seed": 0, "flows": compared(mean, 2e-6), "iterations": none})
    assert not re.search(r"\de-\d", headline)
    assert ("longer" in headline or "shorter" in headline) == (abs(mean) > 0.1)
    assert ("shorter" in headline) == (mean == -0.4)
