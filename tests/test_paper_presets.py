"""Presets of papers are what `gradtide reproduce` runs: the command on the preset has the figures of the same case."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradtide as gt
from gradtide.papers import PARTS, caramel2020, gao2020_ch3, gao2020_ch4, gao2020_ch5, pcn, tictac2019, zhang2017
from gradtide.scenario import Scenario, preset_names

CARAMEL = ((caramel2020.CARAMEL, caramel2020.INCEPTION), 8, 0)
HOROVOD = ((caramel2020.HOROVOD, caramel2020.INCEPTION), 8, 0)
TICTAC = tictac2019._enforced(tictac2019.Case("Inception v3", "train", tictac2019.TIC, 8, 2), tictac2019.ARBITRARY)
CH5 = ((16, 23, "same", 0), gao2020_ch5.THESIS_RECOVERY)
CLOS2_128 = zhang2017.TWO_LAYERS[0]

SAME_CASE: dict[str, tuple[Callable[..., Scenario], Any, dict[str, Any]]] = {
    # What the case says beside the preset, by keys of the file.
    "caramel2020": (caramel2020.scenario, CARAMEL, {"job.train.compute.order": "caramel"}),
    "gao2020-ch3": (gao2020_ch3.scenario, gao2020_ch3.PCIE, {}),
    "gao2020-ch5": (gao2020_ch5.scenario, CH5, {"run.timeline": 0}),
    "pcn": (pcn.scenario, pcn.ON, {"run.probe": {"every": pcn.EVERY, "links": [pcn.LINK], "cwnd": ["worker"]}}),
    "tictac2019": (tictac2019.scenario, TICTAC, {}),
}


@pytest.mark.parametrize("name", SAME_CASE)
def test_a_case_of_reproduce_is_the_preset(name: str) -> None:
    """All that a paper's module does not vary stands in the preset, with its constants."""
    scenario, case, beside = SAME_CASE[name]
    base = Scenario.load(f"paper/{name}")
    assert scenario(base, case).spec() == base.set(beside).spec()


def test_every_paper_has_a_preset_that_its_module_loads() -> None:
    parts = (caramel2020, gao2020_ch3, gao2020_ch4, gao2020_ch5, pcn, tictac2019, zhang2017)
    assert {part.PAPER["preset"] for part in parts} == set(preset_names())
    assert len(preset_names()) == len(PARTS)


def by_schedule(result: Any) -> dict[str, dict[str, Any]]:
    return {row["schedule"]: row for row in result.rows}


def test_compare_has_the_times_of_caramel_and_horovod() -> None:
    base = Scenario.load("paper/caramel2020")
    plain = by_schedule(gt.compare(base, schedules=["horovod", "caramel"]))
    # Section 6.3: Caramel is far ahead of Horovod, on hosts that copy, serialise and receive.
    assert plain["horovod"]["iteration_time_us"] > 1.4 * plain["caramel"]["iteration_time_us"]
    for case, name, own in (
        (CARAMEL, "caramel", {"compute_order": "caramel"}),
        (HOROVOD, "horovod", {"compute_order": "random"}),
    ):
        command = base.replace(**own)
        if name == "horovod":
            command = command.set({"job.train.collective.kind": "ring"})
        ours = by_schedule(gt.compare(command, schedules=[name]))[name]["iteration_time_us"]
        assert ours == pytest.approx(1e6 * gt.run(caramel2020.scenario(base, case)).iteration_time, rel=1e-12)


def test_run_has_the_iteration_of_table_3_1() -> None:
    checks = {one["quantity"]: one for one in PARTS["gao2020/ch3"].make(1, None, "Table 3.1").summary["checks"]}
    ours = gt.run("paper/gao2020-ch3").iteration_time
    assert checks["iteration time, P100, simulated"]["ours"] == f"{ours:.3f} s"


def test_run_and_compare_say_of_chapter_4_what_reproduce_says() -> None:
    summary = PARTS["gao2020/ch4"].make(1, None).summary
    rates = [f"{gbps}Gbps" for gbps in gao2020_ch4.GAO_RATES_GBPS]
    study = gt.compare("paper/gao2020-ch4", schedules=["fifo+barrier", "priority"], rates=rates)
    (table,) = summary["tables"]
    times = {row[0]: row[1:] for row in table["rows"]}
    for schedule in ("FIFO with barrier", "priority without barrier"):
        ours = [row["iteration_time_us"] / 1e3 for row in study.rows if row["schedule"] == schedule]
        assert [f"{one:.1f}" for one in ours] == times[schedule]
    from gradtide.studies.run_folder import summary as whole

    # At the rate that is asked about, the run has the saving of the figure.
    headline = whole(gt.run("paper/gao2020-ch4", link_rate="1Gbps"))["headline"]
    assert "saves 16.0 %" in summary["headline"]
    assert "At 1 Gbit/s, priority without barrier would save 16.0 %" in headline


def test_compare_has_the_gain_of_tictac() -> None:
    base = Scenario.load("paper/tictac2019")
    rows = by_schedule(gt.compare(base, schedules=["arbitrary", "tic"]))
    for case, name in ((TICTAC, "tic"), (replace(TICTAC, order=tictac2019.ARBITRARY, disorder=0.0), "arbitrary")):
        ours = gt.run(tictac2019.scenario(base, case)).iteration_time
        assert rows[name]["iteration_time_us"] == pytest.approx(1e6 * ours, rel=1e-12)
    assert rows["tic"]["iteration_time_us"] < rows["arbitrary"]["iteration_time_us"]


def test_buy_has_the_exchanges_of_zhang(gradtide: Any) -> None:
    command = ("buy", "paper/zhang2017", "--fabrics", "clos2", "--collectives", "butterfly,butterfly_layered", "--json")
    code, out, _ = gradtide(*command)
    assert code == 0
    summary = json.loads(out)
    base = Scenario.load("paper/zhang2017")
    ours = {(Fraction(row["bisection"]), row["collective"]): row["exchange_ms"] for row in summary["rows"]}
    for ratio in (Fraction(1), Fraction(1, 8)):
        for method in (zhang2017.FLAT, zhang2017.LAYERED):
            case = (CLOS2_128, ratio, method, "4 GB/s", "0.2us", "dmodk")
            seen = zhang2017.Seen(case, gt.run(zhang2017.scenario(base, case)))
            assert ours[ratio, method] == pytest.approx(1e3 * seen.time_s, rel=1e-12)
    # Conclusions 1 and 4: a lower ratio does not affect the layered butterfly; at a ratio of 1 the flat one is faster.
    assert ours[Fraction(1, 8), zhang2017.LAYERED] == pytest.approx(ours[Fraction(1), zhang2017.LAYERED])
    assert ours[Fraction(1), zhang2017.FLAT] < ours[Fraction(1), zhang2017.LAYERED]
    assert summary["own_network"]["candidates"] == [
        row["candidate"] for row in summary["rows"] if row["bisection"] == "1"
    ]


def test_a_network_of_its_own_that_buy_does_not_offer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of its own, 2-layer Clos: delete \[cluster.topology\]"):
        gt.buy("paper/zhang2017", fabrics=["star"], collectives=["ring"])


@pytest.mark.slow
def test_tenants_has_the_cell_of_chapter_5() -> None:
    base = Scenario.load("paper/gao2020-ch5").set({"run.duration": "3s", "run.warmup": "0s", "run.cooldown": "0s"})
    study = gt.tenants(base, seeds=[0])
    for band in ("same", "low"):
        case = ((16, 23, band, 0), gao2020_ch5.THESIS_RECOVERY)
        seen = gao2020_ch5.Seen(case, gt.run(gao2020_ch5.scenario(base, case)))
        small = study.summary["classes"]["small"]["mean_fct_ms"][band]
        assert small == pytest.approx(gao2020_ch5.quantities(seen)[0], rel=1e-12)
        assert study.summary["iteration_time_ms"][band] == pytest.approx(1e3 * seen.iteration_time, rel=1e-12)


def test_run_says_of_pcn_what_its_bursts_gain() -> None:
    base = Scenario.load("paper/pcn")
    assert not base.jobs
    result = gt.run(base)
    assert "worker" in result.summary["headline"]
    seen = [pcn.Seen(case, gt.run(pcn.scenario(base, case))) for case in pcn._pair(pcn.ON)]
    # The case of reproduce that is the preset, burst by burst.
    rows = result.flows.to_dicts()
    mine = [row["received_us"] / 1e6 for row in rows if (row["traffic"], row["src"]) == ("worker", pcn.WORKER)]
    assert mine == pytest.approx([burst.whole_s for burst in seen[1].bursts], rel=1e-9)
    # Of both workers, from the announcement to the last byte, with announcements and without.
    means = [float(np.mean(one.end_s - one.start_s)) for one in seen]
    found = result.summary["announcing"]["worker"]
    assert found["flows"] == len(seen[1].start_s) == 12
    assert found["announced_ms"] == pytest.approx(1e3 * means[1], rel=1e-9)
    assert found["not_announced_ms"] == pytest.approx(1e3 * means[0], rel=1e-9)
    assert found["change_percent"] < -25
