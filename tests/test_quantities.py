"""Quantities with units: read exactly, written in their largest whole unit, and read back."""

# ruff: noqa: PT017 (faults are looked at where they are caught)

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import units
from scenario_parts import U64


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate, "10Gbps", 10_000_000_000),
        (units.parse_rate, "1.5Gbit/s", 1_500_000_000),
        (units.parse_rate, "100Mbps", 100_000_000),
        (units.parse_rate, "4GB/s", 32_000_000_000),
        (units.parse_rate, " 25 Gb/s ", 25_000_000_000),
        (units.parse_time, "10us", 10_000_000),
        (units.parse_time, "10µs", 10_000_000),
        (units.parse_time, "0.9s", 900_000_000_000),
        (units.parse_time, "900ms", 900_000_000_000),
        (units.parse_time, "1.5ns", 1_500),
        (units.parse_time, "20ps", 20),
        (units.parse_time, "2min", 120 * 10**12),
        (units.parse_time, "0.4ps", 0),
        (units.parse_time, "0.5ps", 1),
        (units.parse_time, "1.4999ps", 1),
        (units.parse_time, "-0s", 0),
        (units.parse_bytes, "6.28MB", 6_280_000),
        (units.parse_bytes, "64KiB", 65_536),
        (units.parse_bytes, "5333329B", 5_333_329),
        (units.parse_bytes, "1Gb", 125_000_000),
        (units.parse_bytes, "0.1GB", 100_000_000),
        (units.parse_bytes, "1kB", 1_000),
        (units.parse_bytes, "1KB", 1_000),
        (units.parse_packets, "1000pkt", 1000),
        (units.parse_frequency, "23/s", Fraction(23)),
        (units.parse_frequency, "1/min", Fraction(1, 60)),
        (units.parse_ratio, "1/4", Fraction(1, 4)),
        (units.parse_ratio, 0.25, Fraction(1, 4)),
        (units.parse_ratio, 1, Fraction(1)),
    ],
)
def test_a_quantity_is_read_exactly(parse: object, text: object, value: object) -> None:
    assert parse(text) == value  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_time(0), "0s"),
        (units.format_time(900_000_000_000), "900ms"),
        (units.format_time(1_500), "1500ps"),
        (units.format_rate(10**10), "10Gbps"),
        (units.format_rate(1_500_000_000), "1500Mbps"),
        (units.format_bytes(0), "0B"),
        (units.format_bytes(25 * 2**20), "25MiB"),
        (units.format_bytes(5_333_329), "5333329B"),
        (units.format_bytes(1000), "1kB"),
        (units.format_frequency(Fraction(1, 2)), "0.5/s"),
        (units.format_frequency(Fraction(1, 60)), "1/min"),
        (str(units.parse_ratio("2/8")), "1/4"),
        (units.format_packets(60), "60pkt"),
    ],
)
def test_a_quantity_is_written_in_its_largest_whole_unit(text: str, expected: str) -> None:
    assert text == expected


@given(U64)
def test_what_is_written_is_read_back(value: int) -> None:
    assert units.parse_time(units.format_time(value)) == value
    assert units.parse_rate(units.format_rate(value)) == value
    assert units.parse_bytes(units.format_bytes(value)) == value
    assert units.parse_packets(units.format_packets(value)) == value


@given(st.decimals(0, 10**6, places=7), st.sampled_from(["/s", "/ms", "/us", "/min", "/h"]))
def test_a_rate_of_events_is_read_back(number: object, unit: str) -> None:
    value = units.parse_frequency(f"{number:f}{unit}")
    assert units.parse_frequency(units.format_frequency(value)) == value


@given(st.text())
def test_any_text_is_a_quantity_or_a_unit_error(text: str) -> None:
    for parse in (
        units.parse_time,
        units.parse_rate,
        units.parse_bytes,
        units.parse_packets,
        units.parse_ratio,
    ):
        try:
            assert parse(text) >= 0
        except units.UnitError as error:
            assert error.code.startswith("GT")


@given(st.integers(0, 10**9), st.integers(0, 999_999))
def test_microseconds_of_a_column_are_exact(whole: int, fraction: int) -> None:
    assert units.parse_decimal_us(f"{whole}.{fraction:06}") == whole * 10**6 + fraction
