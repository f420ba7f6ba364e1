"""`gradtide reproduce`: what is shown, on runs so short that they say nothing about the paper."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradtide import estimate, report
from gradtide.errors import Interrupted
from gradtide.papers import PARTS, Part, Reproduction, find, harness, site, verdicts
from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario
from gradtide.studies.keep import Kept

COMPUTE_MS = ch5.COMPUTE_MS
DATA = Path(__file__).parents[1] / "validation" / "ns3" / "data"


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """The preset for 0.25 s, with little to compute and to send, and so many large flows that every run has some."""
    sizes = tmp_path_factory.mktemp("sizes") / "sizes.txt"
    sizes.write_text("5000 0\n50000 50\n200000 90\n10000000 90\n10500000 100\n", encoding="utf-8")
    scenario = Scenario.load("paper/gao2020-ch5").set(
        {
            "job.train.model.size": "8MB",
            "traffic.web.sizes": str(sizes),
            "run.duration": "250ms",
            "run.warmup": "20ms",
            "run.cooldown": "40ms",
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ch5, "COMPUTE_MS", {ratio: ratio for ratio in COMPUTE_MS})
        yield scenario


@pytest.fixture(scope="module")
def whole(short: Scenario) -> Reproduction:
    return replace(ch5.STATEMENTS, base=short).make(2, None)


def test_every_figure_of_the_chapter_is_there(whole: Reproduction, tmp_path: Path) -> None:
    summary = whole.summary
    names = [item["figure"] for item in summary["figures"]]
    assert names == list(ch5.FIGURES)
    shown = {item["figure"] for key in ("maps", "series", "tables", "progress", "checks") for item in summary[key]}
    assert shown == set(names)
    assert len(summary["maps"]) == 6
    assert {len(s["lines"]) for s in summary["series"] if s["figure"] in ("5.5", "5.8", "5.10", "5.12")} == {2, 4}
    for series in summary["series"]:
        assert all(len(line["values"]) == len(series["x"]["values"]) for line in series["lines"])
    folder = whole.save(tmp_path / "ch5")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for name in names:
        assert f"{name}: " in page
    assert page.count('class="map"') == 6
    assert page.count('<div class="scroll timeline-box"') == len(ch5.PROGRESS)
    assert report.write_report(folder).read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_all_papers_together_are_expected_within_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReachedError(Exception):
        """The runs are not refused, and would begin."""

    expected: list[estimate.Estimate] = []
    check = estimate.check

    def counted(*given: Any) -> list[estimate.Estimate]:
        expected.extend(check(*given))
        raise ReachedError

    monkeypatch.setattr(estimate, "check", counted)
    for part in PARTS.values():
        with pytest.raises(ReachedError):
            part.make(2, None)
    assert sum(one.cpu_s for one in expected) / 2 < estimate.DEFAULT_MAX_S


def test_a_figure_runs_what_it_needs_alone(short: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    run = harness.run_seen

    def run_seen(scenarios: Sequence[Scenario], *rest: Any) -> list[Any]:
        asked.append(len(scenarios))
        return run(scenarios, *rest)

    monkeypatch.setattr(harness, "run_seen", run_seen)
    single = replace(ch5.STATEMENTS, base=short).make(1, None, "5.11")
    assert asked == [len(ch5.BANDS) * len(ch5.SEEDS)]
    assert [item["figure"] for item in single.summary["figures"]] == ["5.11"]
    assert {item["figure"] for item in single.summary["series"]} == {"5.11"}
    assert single.summary["part"] == "ch5/5.11"
    assert replace(ch5.STATEMENTS, base=short).make(1, None, "Table 5.4").summary["tables"][0]["figure"] == "Table 5.4"


def test_changes_are_those_that_the_thesis_prints(whole: Reproduction) -> None:
    """(same - low) / low for flows, of averages over the runs, as fig. 5.19 has it."""
    of_5_12 = {item["title"]: item["lines"] for item in whole.summary["series"] if item["figure"] == "5.12"}
    small = {line["name"]: np.array(line["values"]) for line in of_5_12["mean FCT of small flows"]}
    ours = next(line["values"] for line in of_5_12["FCT change"] if line["name"] == "small flows, ours")
    same, low = small["same band, ours"], small["low band, ours"]
    assert np.allclose(ours, 100 * (same - low) / low)


def test_the_thesis_counts_one_link_use_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ch5, "COMPUTE_MS", COMPUTE_MS)
    study = ch5.Study(Scenario.load("paper/gao2020-ch5"), {}, {})
    ((_, _, ours, agrees, note),) = ch5._use_claims(study)
    assert (ours, agrees) == ("63 of 64", False)
    assert note.startswith("Ours differs: R = 2, 92/s: 62.5")


def test_ns3_values_are_those_of_its_runs() -> None:
    with (DATA / "study_means.csv").open(encoding="utf-8") as file:
        rows = {(int(r["ratio"]), int(r["rate"]), r["band"]): r for r in csv.DictReader(file)}
    assert rows.keys() == ch5.NS3_37.keys()
    for key, values in ch5.NS3_37.items():
        assert values == tuple(float(rows[key][name]) for name in ("small_ms", "large_ms", "iteration_s"))


@pytest.mark.parametrize(
    ("what", "figure"),
    [
        ("gao2020/ch5", None),
        ("gao2020/ch5/5.12", "5.12"),
        ("gao2020/ch5/5.21", "5.20, 5.21"),
        ("gao2020/ch5/table-5.4", "Table 5.4"),
        ("gao2020/ch5/ns-3", "ns-3"),
        ("gao2020/ch4/4.8", "4.8"),
    ],
)
def test_a_figure_is_found(what: str, figure: str | None) -> None:
    found = find(what)
    assert found is not None
    assert found[1] == figure


@pytest.mark.parametrize(
    "what", ["gao2020", "gao2020/ch5/", "gao2020/ch5/5.1", "gao2020/ch4/5.12", "gao2020/ch5/5.12/x"]
)
def test_no_figure_is_made_up(what: str) -> None:
    assert find(what) is None


def test_one_figure_of_chapter_4_keeps_its_own_runs(tmp_path: Path) -> None:
    folder = PARTS["gao2020/ch4"].make(1, None, "4.8").save(tmp_path / "f")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert [item["run"] for item in summary["timelines"]] == ["runs/fifo-1gbps"]
    assert [path.name for path in (folder / "runs").iterdir()] == ["fifo-1gbps"]
    assert {item["figure"] for item in summary["checks"]} == {"4.8"}


def test_one_rule_says_what_counts_and_what_agrees() -> None:
    assert [harness.near(ours, -1.0) for ours in (-1.09, -0.91, -1.11, 0.09)] == [True, True, False, False]
    assert [harness.near(ours, 3.0, "plot") for ours in (3.9, 4.1)] == [True, False]
    assert [harness.least(1.0, "").agrees(ours) for ours in (5.0, 0.91, 0.89)] == [True, True, False]
    rows = (True, False, harness.SHOWN, harness.FITTED)
    checks = [harness.check("1", "what", "1", "1", verdict, "why") for verdict in rows]
    assert [(one["verdict"], one["note"]) for one in checks] == [
        ("agrees", ""), ("differs", "why"), ("shown", "why"), ("fitted", "why"),
    ]  # fmt: skip
    checks.append(harness.check("1", "more", "1", "2", False))
    assert harness.tally(checks) == {"statements": 3, "agree": 1, "known": 1, "unknown": 1}
    assert harness.statements_hold(checks) == (
        "1 of 3 statements agree; 1 differ, cause known; 1 differ, cause unknown."
    )


def test_every_cause_is_known_and_the_counts_are_those_of_the_runs() -> None:
    counted = verdicts()
    assert set(counted) <= set(PARTS)
    for name, counts in counted.items():
        assert counts["unknown"] == 0, name
        assert counts["statements"] == counts["agree"] + counts["known"], name
    for name in ("gao2020/ch3", "gao2020/ch4"):
        assert harness.tally(PARTS[name].make(1, None).summary["checks"]) == counted[name]


def test_table_3_1_is_predicted_from_the_stages_of_another_mini_batch() -> None:
    checks = {one["quantity"]: one for one in PARTS["gao2020/ch3"].make(1, None).summary["checks"]}
    assert checks["iteration time, P100, simulated"]["verdict"] == "agrees"
    # 128 images at the pace of the 32 that calibrate the device: 0.209 s x 4.
    assert float(checks["iteration time, P100, simulated"]["ours"].removesuffix(" s")) == pytest.approx(0.837, abs=1e-3)
    assert {checks[name]["verdict"] for name in ("forward", "backward")} == {"fitted"}


@pytest.mark.parametrize(
    ("published", "ours", "percent"),
    [
        ("150 ms", "128.1 ms", -14.6),
        ("about 1100 ms", "1110.1 ms", 0.9),
        ("3.62x", "3.28x", -9.4),
        ("-39 %", "-44 %", -12.8),
        ("at least 70 %", "72 % (VGG-16, 16 workers)", 2.9),
        ("0 %", "1 %", None),
        ("150 ms", "0.15 s", None),
        ("VGG-16", "VGG-16", None),
        ("roughly 1:2", "1:2.00", None),
        ("equal", "908.2 and 908.2 ms", None),
        ("10 and 13", "10 and 13", None),
        ("always", "30 of 30", None),
        ("decreases", "31 ms to 6 ms", None),
    ],
)
def test_a_difference_is_of_two_values_with_one_unit(published: str, ours: str, percent: float | None) -> None:
    assert harness.difference_percent(published, ours) == percent
    assert harness.check("1", "what", published, ours, True)["difference_percent"] == percent


@pytest.mark.parametrize("name", PARTS)
def test_every_figure_has_a_command_that_finds_it(name: str) -> None:
    for item in harness.commands(name, PARTS[name].figures):
        program, command, what = item["command"].split()
        assert (program, command) == ("gradtide", "reproduce")
        assert find(what) == (PARTS[name], item["figure"])


def test_a_figure_of_two_numbers_is_made_under_either() -> None:
    checks = [PARTS["gao2020/ch4"].make(1, None, name).summary["checks"] for name in ("4.10", "4.11")]
    assert [[one["figure"] for one in some] for some in checks] == [["4.10, 4.11"]] * 2


SMALL = {name: PARTS[name] for name in ("gao2020/ch3", "gao2020/ch4")}


def test_a_site_counts_what_its_pages_say(tmp_path: Path) -> None:
    shares: list[float] = []
    made = site.make(SMALL, verdicts(), jobs=2, progress=shares.append)
    folder = made.save(tmp_path / "site")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["headline"] == "1 paper: 16 of 20 statements agree; 4 differ, cause known."
    for row in summary["parts"]:
        assert {key: row[key] for key in verdicts()[row["name"]]} == verdicts()[row["name"]]
        assert (row["not_made"], row["left_out"]) == (0, [])
        page = (folder / row["folder"] / "report.html").read_text(encoding="utf-8")
        assert 'href="../index.html"' in page
        assert f'href="{row["folder"]}/report.html"' in (folder / "index.html").read_text(encoding="utf-8")
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    # A part alone has the same page without the way back.
    alone = PARTS["gao2020/ch3"].make(1, None).save(tmp_path / "alone")
    back = '<p class="screen"><a href="../index.html">All papers</a></p>'
    pages = [(one / "report.html").read_text(encoding="utf-8") for one in (alone, folder / "gao2020-ch3")]
    assert pages[0] == pages[1].replace(back, "")
    # The same command takes the place of what it made.
    made.save(folder)


def test_a_quick_site_says_what_it_leaves_out_and_what_that_found(tmp_path: Path) -> None:
    def no_run(*_how: Any, **_more: Any) -> Reproduction:
        raise AssertionError

    unmade = replace(PARTS["pcn"], make=no_run, slow=PARTS["pcn"].figures)
    made = site.make({**SMALL, "pcn": unmade}, verdicts(), quick=True)
    row = made.summary["parts"][2]
    assert (row["folder"], row["statements"], row["not_made"]) == (None, 0, verdicts()["pcn"]["statements"])
    assert [one["figure"] for one in row["left_out"]] == list(PARTS["pcn"].figures)
    assert made.summary["complete"]
    assert made.summary["headline"].endswith(" 7 more need longer runs, which --quick leaves out.")
    page = (made.save(tmp_path / "site") / "index.html").read_text(encoding="utf-8")
    assert "Not made with --quick" in page
    assert "4 of 7 statements agreed" in page
    assert "gradtide reproduce pcn/eq.-3" in page


def test_a_part_leaves_its_slow_figures_out(short: Scenario) -> None:
    made = replace(ch5.STATEMENTS, base=short).make(2, None, quick=True).summary
    figures = [item["figure"] for item in made["figures"]]
    assert sorted([*figures, *made["left_out"]]) == sorted(ch5.FIGURES)
    assert {"5.19", "ns-3", "5.20, 5.21"} <= set(made["left_out"])
    assert {"5.6", "5.11", "Table 5.4"} <= set(figures)
    assert {one["figure"] for one in made["checks"]} <= set(figures)


def test_an_interrupted_site_shows_the_parts_that_are_whole_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Kept(tmp_path / "site")

    def stop(*_how: Any) -> Reproduction:
        raise Interrupted([None, None])

    stopped = {"gao2020/ch3": PARTS["gao2020/ch3"], "gao2020/ch4": Part("Gao", stop, PARTS["gao2020/ch4"].figures)}
    with pytest.raises(Interrupted) as end:
        site.make(stopped, verdicts(), keep=keep)
    known = end.value.study.summary
    assert known["complete"] is False
    assert known["headline"].startswith("Interrupted at gao2020/ch4; 1 of 2 parts are made. ")
    assert known["headline"].endswith(" 7 more are not made.")
    assert [row["folder"] for row in known["parts"]] == ["gao2020-ch3", None]
    keep.show_part(end.value)
    assert (keep.folder / "index.html").exists()
    keep.close()
    # The next attempt runs nothing of the part that was whole.
    asked: list[int] = []
    run = harness.run_seen

    def run_seen(scenarios: Sequence[Scenario], seen: Any, jobs: int, told: Any, kept: Kept, *rest: Any) -> list[Any]:
        asked.append(sum(kept.find(one) is None for one in scenarios))
        return run(scenarios, seen, jobs, told, kept, *rest)

    monkeypatch.setattr(harness, "run_seen", run_seen)
    again = Kept(tmp_path / "site")
    made = site.make({"gao2020/ch3": PARTS["gao2020/ch3"]}, verdicts(), keep=again)
    assert asked == [0]
    made.save(tmp_path / "site")
    again.forget()
    assert not again.folder.exists()
