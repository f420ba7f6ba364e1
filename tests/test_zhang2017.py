"""`gradtide reproduce zhang2017`: its statements on networks so small that a test can run them."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gradtide import report
from gradtide.fabrics import fit
from gradtide.papers import PARTS, Reproduction, find
from gradtide.papers import zhang2017 as paper
from gradtide.scenario import Scenario
from gradtide.studies.exchange import exchange_s
from gradtide.studies.run import run_all

STEP_S = paper.GRADIENT_BYTES * 8 / paper.RATES_BPS["4 GB/s"]


@pytest.fixture(scope="module")
def whole() -> Reproduction:
    """Every figure, with 128 nodes in place of the networks of 2 layers and 256 in place of those of 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "TWO_LAYERS", (paper.TWO_LAYERS[0],))
        patch.setattr(paper, "THREE_LAYERS", (paper.STARRED,))
        patch.setattr(paper, "NETS", (paper.TWO_LAYERS[0], paper.STARRED))
        patch.setattr(paper, "CLOS2_2048", paper.TWO_LAYERS[0])
        patch.setattr(paper, "CLOS3_1024", paper.STARRED)
        patch.setattr(paper, "SIMGRID", {key: value for key, value in paper.SIMGRID.items() if key[0].nodes == 128})
        return replace(paper.STATEMENTS, figures=paper.figures()).make(2, None)


def test_every_figure_is_there_with_a_verdict(whole: Reproduction, tmp_path: Path) -> None:
    names = [item["figure"] for item in whole.summary["figures"]]
    assert names == list(paper.FIGURES)
    assert {one["figure"] for one in whole.summary["checks"]} == set(names)
    folder = whole.save(tmp_path / "zhang")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "gradtide reproduce zhang2017<" in page
    assert len(page) < 400_000
    assert report.write_report(folder).read_text(encoding="utf-8") == page


def test_what_the_paper_says_holds_but_for_what_is_known_not_to(whole: Reproduction) -> None:
    differs = [one for one in whole.summary["checks"] if one["verdict"] == "differs"]
    known = (f"against {paper.NAMES[paper.DISTRIBUTED]}", "layered against flat below 1", "layered at 1/8 against 1")
    assert differs
    for one in differs:
        assert one["quantity"].endswith(known) or "layered: at 1/8" in one["quantity"]
        assert one["note"]


def test_routes_that_spread_restore_every_conclusion_and_do_not_count(whole: Reproduction) -> None:
    spread = [one for one in whole.summary["checks"] if one["quantity"].endswith("3 layers, routes that spread")]
    assert {one["quantity"][0] for one in spread} == {"1", "3", "4"}
    assert {one["verdict"] for one in spread} == {"shown"}
    of_1, of_4 = (next(one["ours"] for one in spread if one["quantity"][0] == number) for number in "14")
    assert (of_1, of_4) == ("1.00x", "faster in 3 of 3 cells")


def test_times_are_those_of_simgrid(whole: Reproduction) -> None:
    table = next(table for table in whole.summary["tables"] if table["title"].startswith("SimGrid"))
    for row in table["rows"]:
        for cell in row[2:]:
            theirs, ours = cell.split(" / ")
            assert theirs == ours


def test_a_figure_runs_what_it_needs_alone() -> None:
    assert find("zhang2017") == (PARTS["zhang2017"], None)
    assert find("zhang2017/7") == (PARTS["zhang2017"], "7")
    assert find("zhang2017/table-1") == (PARTS["zhang2017"], "Table 1")
    assert find("zhang2017/11") is None
    alone = PARTS["zhang2017"].make(1, None, "6", None, None)
    assert {one["figure"] for one in alone.summary["checks"]} == {"6"}
    assert alone.summary["part"] == "6"
    assert all(one["verdict"] == "agrees" for one in alone.summary["checks"])


@pytest.mark.parametrize("ratio", paper.RATIOS)
def test_layered_is_immune_on_three_layers_with_routes_that_spread_alone(ratio: Fraction) -> None:
    """2·log2 8 + log2 32 steps of S/B, whatever the ratio, if no two heads share a link; 32 heads of 256 nodes."""
    base = Scenario.load("paper/zhang2017")
    cases = [(paper.STARRED, ratio, paper.LAYERED, "4 GB/s", "0.2us", routing) for routing in ("spread", "dmodk")]
    spread_s, dmodk_s = map(exchange_s, run_all([paper.scenario(base, case) for case in cases]))
    # A step crosses at most 6 links of 0.2 us. With d-mod-k 2 steps and more take twice as long at 1/2.
    assert (2 * 3 + 5) * STEP_S < spread_s < (2 * 3 + 5) * STEP_S + 11 * 6 * 0.2e-6
    assert dmodk_s > spread_s * 1.15 if ratio < 1 else dmodk_s == pytest.approx(spread_s)


def test_table_1_is_what_fabrics_count() -> None:
    for net in (paper.Net("clos2", 16, 128), paper.Net("clos2", 64, 2048), paper.Net("clos3", 16, 1024)):
        for ratio in paper.RATIOS:
            fabric = fit(net.kind, net.nodes, ratio)
            assert (fabric.switches, fabric.cables) == paper.table_1(net, ratio)
