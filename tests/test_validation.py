"""The packet engine against ns-3's committed results, and the page that shows them."""

import csv
import itertools
import json
import re
import sys
from pathlib import Path

import pytest

import scripts
from gradtide.papers import PARTS, verdicts

ROOT = Path(__file__).resolve().parent.parent
compare_ns3 = scripts.load("validation/ns3/compare.py", "compare_ns3")


@pytest.mark.parametrize("name", compare_ns3.CASES)
def test_mean_completion_time_is_that_of_ns3(name):
    case, found = compare_ns3.CASES[name], compare_ns3.compare(name)
    assert abs(found.error_percent) <= case.percent, (found.ours_ms, found.ns3_ms)


def test_the_page_shows_what_the_comparison_gives():
    page = compare_ns3.PAGE.read_text(encoding="utf-8")
    tables = compare_ns3.tables()
    assert [mark for mark, table in tables.items() if table not in page] == [], "compare.py --page writes them anew"


def test_the_page_has_every_result_of_simgrid():
    """Ours beside them is compared in Rust; here only that the page is of the data that is there."""
    page = (ROOT / "docs" / "validation" / "simgrid.md").read_text(encoding="utf-8")
    with (ROOT / "validation" / "simgrid" / "data" / "exchange_cases.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups = itertools.groupby(
        rows, lambda row: (row["network"], row["hosts"], row["delay_ns"], row["collective"], row["ports"])
    )
    for (network, _, _, collective, _), group in groups:
        times = ", ".join(f"{float(row['simulated_s']):.7f}" for row in group)
        assert any(
            line.startswith(f"| {network}, ") and f"| {collective} |" in line and f"| {times} |" in line
            for line in page.splitlines()
        ), f"{network} {collective}: python validation/simgrid/compare.py --page writes it anew"


def test_the_page_of_the_testbed_shows_what_was_measured(monkeypatch):
    """Only that page and data agree: they are of one machine and day."""
    monkeypatch.syspath_prepend(ROOT / "validation" / "testbed")
    neighbours = scripts.load("validation/testbed/neighbours.py")
    answer = json.loads(neighbours.DATA.read_text(encoding="utf-8"))
    assert neighbours.tables(answer) in neighbours.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("paper", "figure"),
    [
        ("zhang2017", "6"),
        ("zhang2017", "10"),
        ("tictac", "Table 1"),
        ("tictac", "4"),
        ("tictac", "15"),
        ("gao2020/ch5", "Table 5.3"),
        ("gao2020/ch5", "Table 5.4"),
    ],
)
def test_a_papers_page_has_the_differing_rows_that_come_out_and_no_other(paper: str, figure: str) -> None:
    verdicts = scripts.load("tools/verdicts.py")
    page = {"gao2020/ch5": "thesis-ch5"}.get(paper, paper)
    text = (ROOT / "docs" / "validation" / f"{page}.md").read_text(encoding="utf-8")
    checks = PARTS[paper].make(1, None, figure, None, None).summary["checks"]
    section = text.split(f"<!-- table: {paper} -->")[1].split("\n## ")[0]
    for where in {check["figure"] for check in checks}:
        shown = [line for line in section.splitlines() if line.startswith(f"| {where} |")]
        assert shown == [row for row in verdicts.rows(checks) if row.startswith(f"| {where} |")]


def test_readme_has_the_rows_that_scripts_make() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in ("validation/engines.py", "tools/verdicts.py"):
        script = scripts.load(path)
        rows = script.summed_up(verdicts()) if path.startswith("tools") else script.summed_up()
        assert [row for row in rows.values() if row not in readme.splitlines()] == [], f"python {path} writes them"
        assert re.search(rf"{re.escape(script.SAYS)} Made on \d{{4}}-\d\d-\d\d with gradtide \d", readme)


def test_the_page_of_papers_counts_the_statements_that_the_verdicts_have() -> None:
    counts = verdicts().values()
    agree, statements = (sum(count[key] for count in counts) for key in ("agree", "statements"))
    page = (ROOT / "docs" / "validation" / "papers.md").read_text(encoding="utf-8")
    assert f"{agree} of {statements} published statements agree" in page


def test_the_comparison_has_the_newest_measurements() -> None:
    sys.path.insert(0, str(ROOT / "bench"))
    comparison = scripts.load("bench/comparison.py")
    assert comparison.table() in comparison.PAGE.read_text(encoding="utf-8"), "python bench/comparison.py writes it"
