"""What networks are built from, and what they cost: table 1 of Zhang et al. (2017), and files of prices."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import ScenarioError
from gradtide.fabrics import KINDS, MOST_HOSTS, NoFabricError, crossbars_of_table_1, fit
from gradtide.scenario.prices import read_prices

RATIOS = [Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("ports", [16, 32, 48])
def test_clos_networks_have_the_counts_of_table_1(ports: int, ratio: Fraction) -> None:
    k = Fraction(ports)
    two = fit("clos2", ports**2 // 2, ratio)
    assert (two.ports, two.switches, two.cables) == (ports, k / 2 * (2 + ratio), k**2 / 2 * (1 + ratio))
    three = fit("clos3", ports**3 // 4, ratio)
    assert (three.ports, three.switches, three.cables) == (
        ports,
        k**2 / 4 * (2 + 3 * ratio),
        k**3 / 4 * (1 + 2 * ratio),
    )
    for fabric in (two, three):
        assert fabric.crossbars == fabric.switches * (ports // 2) ** 2
        # The formula of a real k has powers of N: rounding of a few units in the last place.
        assert fabric.crossbars == pytest.approx(crossbars_of_table_1(fabric.kind, fabric.nodes, ratio), rel=1e-12)


@given(st.sampled_from(KINDS), st.integers(2, 3000), st.fractions(Fraction(1, 16), 1, max_denominator=16))
def test_a_network_has_room_for_its_nodes_and_its_switches_have_the_ports(
    kind: str, nodes: int, ratio: Fraction
) -> None:
    try:
        fabric = fit(kind, nodes, ratio)
    except NoFabricError:
        return
    assert nodes <= fabric.hosts <= max(MOST_HOSTS * nodes, 8)
    assert fabric.ports % 2 == 0
    assert fabric.unused_ports >= 0
    # Every cable of a node takes one port, every other two.
    assert fabric.switches * fabric.ports == fabric.unused_ports + nodes + 2 * fabric.trunks


@given(st.sampled_from(["clos2", "clos3"]), st.integers(2, 3000))
def test_no_smaller_switches_would_do_at_full_bisection(kind: str, nodes: int) -> None:
    try:
        ports = fit(kind, nodes, Fraction(1)).ports
    except NoFabricError:
        return
    smaller = ports - 2
    assert (smaller**2 // 2 if kind == "clos2" else smaller**3 // 4) < nodes


@given(st.integers(2, 3000), st.fractions(Fraction(1, 16), 1, max_denominator=16))
def test_the_leaves_of_a_leaf_spine_network_have_the_ratio_and_a_cable_to_every_spine(
    nodes: int, ratio: Fraction
) -> None:
    try:
        fabric = fit("leaf_spine", nodes, ratio)
    except NoFabricError:
        return
    keys = fabric.topology
    assert Fraction(keys["spines"], keys["hosts_per_leaf"]) == ratio
    assert keys["spines"] + keys["hosts_per_leaf"] <= fabric.ports
    assert keys["leaves"] <= fabric.ports
    assert fabric.trunks == keys["leaves"] * keys["spines"]


def test_a_ratio_takes_larger_switches_where_it_would_take_a_part_of_one() -> None:
    # 46²/2 = 1058 hosts, but half of 23 spines is no whole number; nor is a quarter of 24 ... of 48 ports it is.
    assert [fit("clos2", 1024, ratio).ports for ratio in RATIOS] == [46, 48, 48, 48]


@pytest.mark.parametrize(
    ("kind", "nodes", "ratio", "message"),
    [
        (
            "clos3",
            128,
            Fraction(1, 8),
            "of 8:1 for 128 nodes has no whole number of switches: with 8-port switches there would be 0.5 above each",
        ),
        ("clos3", 1024, Fraction(1, 7), "of 7:1 for 1024 nodes has no whole number of switches"),
        ("star", 8, Fraction(1, 2), "a star has a bisection ratio of 1"),
        ("clos2", 8, Fraction(3, 2), "at most 1, not 3/2"),
        ("clos2", 1, Fraction(1), "1 nodes need no network"),
        ("clos2", 600_000, Fraction(1), "of at most 1024 ports has no room for 600000 nodes"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(kind: str, nodes: int, ratio: Fraction, message: str) -> None:
    with pytest.raises(NoFabricError, match=message.replace("(", r"\(")):
        fit(kind, nodes, ratio)


PRICES = """currency = "EUR"
[[switch]]
ports = 32
rate = "25Gbps"
price = 9000
[[switch]]
ports = 64
rate = "25Gbps"
price = 8500.5
[[cable]]
rate = "25Gbps"
price = 60
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_cheapest_switch_that_is_large_enough_is_taken(tmp_path: Path) -> None:
    prices = read_prices(write(tmp_path, PRICES))
    rate_bps = 25 * 10**9
    assert prices.switch(16, rate_bps) == (64, Fraction("8500.5"))
    assert prices.switch(66, rate_bps) is None
    assert prices.switch(16, 10**10) is None
    assert prices.missing(rate_bps) == []
    assert prices.missing(10**10) == ["switch", "cable"]
    assert prices.free == ["network cards"]


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "words"),
    [
        ("price = 9000", 'price = "9000 EUR"', "GT011", 5, "expected a number"),
        ("price = 9000", "price = -1", "GT014", 5, "out of range"),
        ("price = 9000", "price = nan", "GT014", 5, "out of range"),
        ("price = 9000", "cost = 9000", "GT012", 5, "unknown field `cost`"),
        ("price = 9000\n", "", "GT010", None, "`price` is missing"),
        ('rate = "25Gbps"\nprice = 9000', "rate = 25\nprice = 9000", "GT020", 4, ""),
        ('rate = "25Gbps"\nprice = 60', 'rate = "0Gbps"\nprice = 60', "GT026", 11, "zero"),
        ("ports = 32", "ports = 1", "GT014", 3, "out of range"),
        ("ports = 32", "ports = 32.0", "GT011", 3, "whole number"),
        ("ports = 32", "ports = 64", "GT016", None, "has a price already"),
        ("[[cable]]", "[[cabel]]", "GT012", None, "did you mean `cable`"),
        ("[[cable]]", "[cable]", "GT011", None, "list of tables"),
        ('currency = "EUR"', "currency = 1", "GT011", 1, "expected a text"),
        ("[[switch]]", "[[nic]]", "GT012", None, "unknown field `ports`"),
        ("[[switch]]", "[[switch", "GT001", 2, "not valid TOML"),
    ],
)
def test_a_fault_of_a_file_of_prices_is_named_with_its_line(
    old: str, new: str, code: str, line: int | None, words: str, tmp_path: Path
) -> None:
    assert old in PRICES
    path = write(tmp_path, PRICES.replace(old, new))
    with pytest.raises(ScenarioError) as caught:
        read_prices(path)
    faults = [fault for fault in caught.value.errors if fault["code"] == code]
    assert faults, caught.value
    assert words in str(caught.value)
    assert str(path) + ":" in str(caught.value)
    if line is not None:
        assert any(fault.get("line", line) == line for fault in faults)


def test_a_file_without_switches_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="`switch` is missing"):
        read_prices(write(tmp_path, 'currency = "EUR"\n'))
    with pytest.raises(ScenarioError, match="there is no file"):
        read_prices(tmp_path / "none.toml")
