"""What to buy, and which collective: candidates, the knee, terms of an exchange, and what is refused."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import report
from gradtide.counts import NOT_SUMMED
from gradtide.fabrics import SOLD
from gradtide.report import RunFolderError
from gradtide.studies import buy as study
from gradtide.studies.collectives import TERMS, winners
from gradtide.studies.exchange import alone, exchange_s, exchanged_by

MEGABYTES = 10
RATE_BPS = 10**10


def job(**more: Any) -> dict[str, Any]:
    """Return a scenario of one job that computes for 10 ms and sends 10 MB."""
    layer = {"name": "fc", "forward": "3ms", "backward": "7ms", "parameters": f"{MEGABYTES}MB"}
    return {
        "job": {"train": {"model": {"name": "fc", "layers": [layer]}, "workers": 16, **more}},
        "cluster": {"link": {"rate": "10Gbps", "delay": "1us"}, "routing": "dmodk"},
    }


EMPTY = {"name": "a", "forward": "1ms", "backward": "1ms", "parameters": "0B"}
COLLECTIVES = ("ring", "butterfly", "butterfly_layered", "ps+packed", "ps+distributed")


@pytest.fixture(scope="module")
def bought() -> gt.BuyResult:
    return gt.buy(job(), nodes=32, fabrics=["clos2", "star"], bisection=[1, "1/2", 0.25], collectives=COLLECTIVES)


def test_every_combination_is_there_once_and_a_star_at_one_ratio(bought: gt.BuyResult) -> None:
    asked = {(row["fabric"], row["bisection"], row["collective"]) for row in bought.rows}
    networks = [("clos2", "1"), ("clos2", "1/2"), ("clos2", "1/4"), ("star", "1")]
    assert asked == {(*network, collective) for network in networks for collective in COLLECTIVES}
    assert len(bought.rows) == len(asked)


def test_exchanges_take_what_their_steps_take(bought: gt.BuyResult) -> None:
    """With k = 8, 4 hosts a leaf, 8 leaves: S/B is a step of a butterfly.

    Flat: 2 steps in the leaf, 3 across it, in which the 4 hosts of a leaf share 4 r links up: 2 + 3/r. Layered:
    2·log2 4 + log2 8 steps, of which those across leaves are of one head each. Servers, an eighth of 32: push and pull
    of 28/4 S by each server's own link; packed, all four on one leaf: through its 4 r links. Ring: 2·31/32, one flow up
    and one down per leaf.
    """
    step_ms = MEGABYTES * 1e6 * 8 / RATE_BPS * 1e3
    for row in bought.rows:
        if row["fabric"] == "star":
            continue
        r = float(Fraction(row["bisection"]))
        steps = {
            "butterfly": 2 + 3 / r,
            "butterfly_layered": 2 * 2 + 3,
            "ps+packed": 2 * 7 / r,
            "ps+distributed": 2 * 7,
            "ring": 2 * 31 / 32,
        }[row["collective"]]
        # At most 62 steps of 4 links of 1 us; a step of the fluid engine may be a femtosecond late.
        latency_ms = 62 * 4 * 1e-3 + 1e-6
        assert steps * step_ms <= row["exchange_ms"] <= steps * step_ms + latency_ms, row


def test_the_knee_is_the_cheapest_within_five_percent(bought: gt.BuyResult) -> None:
    (knee,) = bought.knees
    fastest_ms = min(row["iteration_ms"] for row in bought.rows)
    near = [row for row in bought.rows if row["iteration_ms"] <= 1.05 * fastest_ms]
    assert knee["cost"] == min(row["cost"] for row in near)
    assert knee in near
    assert knee["candidate"] in bought.summary["knees"]
    assert knee["cost"] == knee["switches"] * (knee["ports"] / 2) ** 2
    # Switches of 8 ports would do, and the smallest that is sold at 10 Gbit/s has 16.
    assert {row["ports"] for row in bought.rows if row["fabric"] == "clos2"} == {16}
    for row in bought.rows:
        assert row["slower_percent"] == pytest.approx(100 * (row["iteration_ms"] / fastest_ms - 1))
        cheaper = [
            one for one in bought.rows if one["cost"] < row["cost"] and one["iteration_ms"] <= row["iteration_ms"]
        ]
        assert not (row["is_frontier"] and cheaper)


def test_an_iteration_is_that_of_the_run_in_the_candidates_folder(bought: gt.BuyResult, tmp_path: Path) -> None:
    folder = bought.save(tmp_path / "buy")
    for row in bought.rows:
        summary = json.loads((folder / "candidates" / row["candidate"] / "summary.json").read_text())
        assert summary["jobs"]["train"]["iteration_time_ms"]["mean"] == row["iteration_ms"]
        # One bucket that cannot overlap with anything, behind 10 ms of compute.
        assert row["iteration_ms"] == pytest.approx(10 + row["exchange_ms"], rel=1e-9)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count('class="row point"') == len(bought.rows)
    for row in bought.rows:
        assert page.count(f'href="candidates/{row["candidate"]}/report.html"') == 2
    assert page.count('class="ring"') == 1
    assert report.write_report(folder).read_text(encoding="utf-8") == page
    assert len(page) < 400_000
    table = (folder / "hottest.csv").read_text().splitlines()
    assert len(table) == 1 + study.HOTTEST * len(bought.rows)


def test_the_hottest_links_of_packed_servers_are_those_of_their_leaf(bought: gt.BuyResult) -> None:
    name = next(r["candidate"] for r in bought.rows if (r["bisection"], r["collective"]) == ("1/4", "ps+packed"))
    links = [row["link"] for row in bought.hottest.to_dicts() if row["candidate"] == name]
    assert {"leaf0-spine0", "spine0-leaf0"} <= set(links[:2])


def test_prices_compare_rates_and_say_what_is_free(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        "".join(
            f'[[switch]]\nports = 32\nrate = "{rate}"\nprice = {price}\n[[cable]]\nrate = "{rate}"\nprice = 10\n'
            for rate, price in (("10Gbps", 1000), ("100Gbps", 5000))
        )
    )
    result = gt.buy(
        job(), nodes=16, fabrics=["star", "clos2"], bisection=[1], collectives=["ring"], rates=["10Gbps", "100Gbps"],
        prices=prices,
    )  # fmt: skip
    star = {row["rate_bps"]: row for row in result.rows if row["fabric"] == "star"}
    assert star[10**10]["price"] == 1000 + 16 * 10
    assert star[10**11]["price"] == 5000 + 16 * 10
    assert star[10**10]["ports"] == 32
    assert star[10**10]["unused_ports"] == 16
    # The knee is that of one rate: a faster link is another purchase.
    assert [row["rate_bps"] for row in result.knees] == [10**10, 10**11]
    assert result.summary["not_priced"] == ["network cards"]


def test_without_prices_every_rate_has_its_knee() -> None:
    result = gt.buy(job(), nodes=8, fabrics=["star"], collectives=["ring"], rates=["10Gbps", "25Gbps"])
    assert [row["rate_bps"] for row in result.knees] == [10**10, 25 * 10**9]
    assert result.summary["headline"].count("buy one switch") == 2


def test_switches_have_sizes_that_are_sold_and_spare_ports_are_told() -> None:
    rates = ["100Gbps", "25Gbps"]
    result = gt.buy(
        "resnet50", nodes=128, fabrics=["clos2", "star"], bisection=["1/4"], collectives=["ring"], rates=rates
    )
    rows = {(row["fabric"], row["rate_bps"]): row for row in result.rows}
    for (_, rate_bps), row in rows.items():
        sizes = next(sizes for gbps, sizes in SOLD if gbps * 10**9 == rate_bps)
        assert row["ports"] in sizes
        trunks = row["cables"] - row["nodes"]
        assert row["unused_ports"] == row["switches"] * row["ports"] - 2 * trunks - row["nodes"]
    assert rows["clos2", 100 * 10**9]["ports"] == 16
    assert rows["clos2", 25 * 10**9]["ports"] == 16
    large = gt.buy(job(), nodes=300, fabrics=["clos2", "star"], bisection=[1], collectives=["ring"], rates=["100Gbps"])
    assert [row["fabric"] for row in large.rows] == ["clos2"]
    assert "no switch of 300 ports or more is sold at 100 Gbit/s" in large.summary["skipped"][0]["why"]


def test_the_answer_says_its_cable_delay_and_what_it_is_at_another() -> None:
    options: dict[str, Any] = {"nodes": 128, "rates": ["100Gbps"], "fabrics": ["leaf_spine"], "bisection": ["1/4"]}
    result = gt.buy("resnet50", collectives=["ring", "halving_doubling"], **options)
    assert (result.summary["cable_delay"], result.summary["other_cable_delay"]) == ("10us", "1us")
    answer, delays = result.summary["headline"].split("\n")
    assert "exchange by halving-doubling" in answer
    assert "10 us for each cable (cluster.link.delay). With 1 us, buy a leaf-spine network" in delays
    assert "and exchange by ring, for " in delays
    # Each figure at the other delay is that of the scenario with this delay.
    there = gt.Scenario.from_dict({"job": {"train": {"model": "resnet50", "workers": 8}}}).replace(link_delay="1us")
    again = gt.buy(there, collectives=["ring", "halving_doubling"], **options)
    assert again.summary["other_cable_delay"] == "10us"
    assert [row["iteration_ms"] for row in again.rows] == [row["other_delay_iteration_ms"] for row in result.rows]
    assert [row["other_delay_iteration_ms"] for row in again.rows] == [row["iteration_ms"] for row in result.rows]
    assert "exchange by ring" in again.summary["headline"]


def test_a_scenario_with_a_network_of_its_own_is_refused_with_what_to_do() -> None:
    own = job()
    own["cluster"]["topology"] = {"kind": "clos2", "ports": 12, "bisection": "1/2"}
    with pytest.raises(ValueError, match=r"one of its own, 2-layer Clos: delete \[cluster.topology\]"):
        gt.buy(own, nodes=16)


def test_the_answer_has_the_words_of_the_trade_and_the_figures_of_the_knee(bought: gt.BuyResult) -> None:
    answers = [bought, gt.buy(job(), nodes=32, fabrics=["leaf_spine"], bisection=["1/3"], collectives=["ring"])]
    for result in answers:
        [knee], headline = result.knees, result.summary["headline"]
        for figure in ("ports", "cables", *["switches"] * (knee["switches"] > 1)):
            assert str(knee[figure]) in headline.split("exchange by")[0]
        assert ("oversubscription of 3:1" in headline) == (knee["bisection"] == "1/3")
        assert not re.search(r"bisection|crossbar|knee", headline)


def test_what_cannot_be_built_is_skipped_by_name_and_refused_if_asked_for_alone() -> None:
    result = gt.buy(job(), nodes=16, fabrics=["clos3"], bisection=[1, "1/4"], collectives=["ring"])
    assert [row["bisection"] for row in result.rows] == ["1"]
    assert "of 4:1 for 16 nodes has no whole number of switches" in result.summary["skipped"][0]["why"]
    with pytest.raises(ValueError, match=r"nothing that is asked for can be bought.*4:1"):
        gt.buy(job(), nodes=16, fabrics=["clos3"], bisection=["1/4"], collectives=["ring"])


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"fabrics": ["torus"]}, "no fabric 'torus'; gradtide does not model a torus"),
        ({}, {"fabrics": []}, "fabrics: the list is empty"),
        ({}, {"bisection": ["2"]}, "bisection: .* outside"),
        ({}, {"bisection": ["1/2", 0.5]}, "bisection: 1/2 is given twice"),
        ({}, {"collectives": ["ring", "ring"]}, "collectives: ring is given twice"),
        ({}, {"collectives": ["ring+fast"]}, "cannot read 'fast'"),
        ({}, {"collectives": ["rings"]}, "did you mean \"ring\""),
        ({}, {"rates": ["10"]}, "rates: "),
        ({}, {"rates": ["0bps"]}, "rate of 0"),
        ({}, {"nodes": 1}, "1 nodes need no network"),
        ({"model": {"layers": [EMPTY]}}, {}, "has no parameters"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_name(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gt.buy(job(**changes), **{"nodes": 8, "fabrics": ["star"], "collectives": ["ring"], **options})


def test_a_scenario_with_two_jobs_or_neighbours_asks_another_question() -> None:
    two = job()
    two["job"]["other"] = two["job"]["train"]
    with pytest.raises(ValueError, match=r"takes one job, and .* has 2: train, other"):
        gt.buy(two)
    with pytest.raises(ValueError, match=r"delete \[traffic.web\]"):
        gt.buy("paper/gao2020-ch5")


def test_a_model_by_name_is_a_scenario() -> None:
    result = gt.buy("alexnet", nodes=4, fabrics=["star"], collectives=["ring"])
    assert result.summary["model"] == "alexnet"
    assert result.rows[0]["nodes"] == 4


# Exchanges by themselves


def test_an_exchange_is_as_long_as_that_of_an_iteration_with_one_bucket() -> None:
    base = exchanged_by(gt.Scenario.from_dict(job()), "butterfly", workers=8, engine="fluid")
    assert exchange_s(gt.run(alone(base, 10**7))) == pytest.approx(3 * 8e7 / RATE_BPS + 3 * 2e-6, rel=1e-9)


@pytest.mark.parametrize("workers", [8, 16])
def test_terms_are_the_textbooks_on_one_switch(workers: int) -> None:
    """Steps x two links of 1 us, and bytes of the rank that sends most over the rate (docs/models/collectives.md)."""
    base = job()
    base["job"]["train"]["workers"] = workers
    names = ["ring", "halving_doubling", "shuffle", "butterfly", "ps+servers=2"]
    result = gt.collectives(base, collectives=names, sizes=["1MB", "100MB"])
    levels = workers.bit_length() - 1
    share = 2 * (workers - 1) / workers
    steps = {"ring": 2 * (workers - 1), "halving_doubling": 2 * levels, "shuffle": 2, "butterfly": levels, "ps": 2}
    sent = {"ring": share, "halving_doubling": share, "shuffle": share, "butterfly": levels, "ps": (workers - 2)}
    for row in result.rows:
        kind = row["collective"].partition("+")[0]
        # The one byte of the latency is sent as well: at most all ranks' bytes over one link.
        byte_us = 8e6 * workers / RATE_BPS
        assert row["latency_us"] == pytest.approx(2 * steps[kind], abs=byte_us)
        assert row["bandwidth_us"] == pytest.approx(8e6 * sent[kind] * row["bytes"] / RATE_BPS, abs=byte_us)
        assert row["contention_us"] == 0
        terms_us = sum(row[f"{term}_us"] for term in TERMS)
        assert terms_us == pytest.approx(row["exchange_us"], rel=1e-9)


def test_contention_is_what_a_thin_network_adds(tmp_path: Path) -> None:
    thin = job()
    thin["cluster"]["topology"] = {"kind": "clos2", "ports": 8, "bisection": "1/4"}
    thin["job"]["train"]["workers"] = 32
    result = gt.collectives(thin, collectives=["butterfly", "butterfly-layered", "ring"], sizes=["100B", "100MB"])
    rows = {(row["collective"], row["bytes"]): row for row in result.rows}
    # Three steps of five cross the leaf, through a quarter of the links: each takes four times as long.
    step_us = 8e6 * 1e8 / RATE_BPS
    assert rows["butterfly", 10**8]["contention_us"] == pytest.approx(3 * 3 * step_us, rel=1e-5)
    assert rows["butterfly_layered", 10**8]["contention_us"] == pytest.approx(0, abs=1e-3)
    assert rows["ring", 10**8]["contention_us"] == pytest.approx(0, abs=1e-3)
    spans = result.summary["winners"]
    assert [span["collective"] for span in spans] == ["butterfly", "butterfly_layered", "ring"]
    # 2 steps of two links of 1 us and 3 of four, against 4 and 3: 4 us less; 2 + 3·4 steps of S/B against 7.
    assert spans[1]["from_bytes"] == pytest.approx(4e-6 / (7 * 8 / RATE_BPS), rel=1e-3)
    assert [span["because"] for span in spans] == ["latency", "contention", "bandwidth"]
    folder = result.save(tmp_path / "study")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "flat butterfly" in page
    assert "of flat butterfly is contention" in page
    assert report.write_report(folder).read_text(encoding="utf-8") == page


def line(name: str, sizes: list[int], latency_us: float, slope: float) -> list[dict[str, Any]]:
    return [
        {"collective": name, "bytes": size, "exchange_us": latency_us + slope * size, "latency_us": latency_us,
         "bandwidth_us": slope * size, "contention_us": 0.0}
        for size in sizes
    ]  # fmt: skip


def test_crossover_sizes_are_where_the_lines_cross() -> None:
    sizes = [10, 1000, 100_000]
    # b beats a from 900/9 = 100 bytes on, c beats b from 9000/0.9 = 10,000 on.
    rows = line("a", sizes, 100, 10) + line("b", sizes, 1000, 1) + line("c", sizes, 10_000, 0.1)
    spans = winners(rows)
    assert [span["collective"] for span in spans] == ["a", "b", "c"]
    assert [span["from_bytes"] for span in spans] == pytest.approx([10, 100, 10_000])
    assert [span["to_bytes"] for span in spans] == pytest.approx([100, 10_000, 100_000])
    assert [span["because"] for span in spans] == ["latency", "bandwidth", "bandwidth"]


def test_two_that_are_the_same_have_no_crossover() -> None:
    sizes = [10, 1000, 100_000]
    assert len(winners(line("a", sizes, 100, 10) + line("b", sizes, 100, 10))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": []}, "sizes: sizes are above 0"),
        ({"sizes": ["1MB", "1kB"]}, "increase"),
        ({"sizes": ["10"]}, "sizes: "),
        ({"collectives": []}, "collectives: the list is empty"),
        ({"collectives": ["ps+3"]}, "cannot read '3'"),
    ],
)
def test_a_comparison_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gt.collectives(job(), **{"collectives": ["ring"], **options})


# Collectives that do not sum


def test_no_study_crowns_a_collective_that_does_not_sum() -> None:
    """An all-gather moves half of a ring all-reduce's bytes and adds nothing up: it is faster, and no choice."""
    for kind in NOT_SUMMED:
        name = kind.replace("_", "-")
        with pytest.raises(ValueError, match=f"--collectives: {kind} does not sum gradients.*ring, halving"):
            gt.buy(job(), collectives=["ring", name])
        with pytest.raises(ValueError, match=f"--collectives: {kind} does not sum gradients.*ring, halving"):
            gt.plan(job(), collectives=["ring", name])
        for ask in (gt.buy, gt.plan, gt.compare, gt.run):
            with pytest.raises(gt.ScenarioError, match="GT049"):
                ask({**job(collective={"kind": kind}), "run": {"engine": "fluid"}})
    exchange = {**job(collective={"kind": "all_to_all"}, task="exchange"), "run": {"engine": "fluid"}}
    assert gt.run(exchange).iteration_time > 0
    for ask in (gt.buy, gt.plan):
        with pytest.raises(ValueError, match='task = "exchange"'):
            ask(exchange)


def test_exchanges_that_do_not_sum_are_timed_and_said_to_be_no_choice() -> None:
    result = gt.collectives(job(), collectives=["ring", "all-gather"], sizes=["1MB", "100MB"])
    times = {(row["collective"], row["bytes"]): row["exchange_us"] for row in result.rows}
    assert times["all_gather", 10**8] < times["ring", 10**8]
    assert {row["collective"] for row in result.rows if row["is_best"]} == {"ring"}
    assert {span["collective"] for span in result.summary["winners"]} == {"ring"}
    assert "Not for gradients, because it does not sum them: all-gather." in result.summary["headline"]


# Damaged folders


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rows", [], "at least one candidate"),
        ("rows", [3], "item 0 is not an object"),
        ("needs", [{"candidate": "x"}], "not in `rows`"),
        ("nodes", "many", "wrong type"),
    ],
)
def test_a_damaged_study_is_named(bought: gt.BuyResult, key: str, value: Any, message: str, tmp_path: Path) -> None:
    folder = bought.save(tmp_path / "buy")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, key: value}))
    with pytest.raises(RunFolderError, match=message):
        report.write_report(folder)


def test_a_line_of_a_chart_is_finite(bought: gt.BuyResult, tmp_path: Path) -> None:
    folder = bought.save(tmp_path / "buy")
    summary = json.loads((folder / "summary.json").read_text())
    summary["series"][0]["lines"][0]["values"][0] = "TOO MUCH"
    (folder / "summary.json").write_text(json.dumps(summary).replace('"TOO MUCH"', "1e999"))
    with pytest.raises(RunFolderError, match=r"series\.lines\.values`: 3 numbers were expected"):
        report.write_report(folder)


def test_a_candidate_leads_to_no_folder_outside(bought: gt.BuyResult, tmp_path: Path) -> None:
    folder = bought.save(tmp_path / "buy")
    summary = json.loads((folder / "summary.json").read_text())
    summary["rows"][0]["candidate"] = "../elsewhere"
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match="not a folder below it"):
        report.write_report(folder)
