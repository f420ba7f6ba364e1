"""Tables of the command line: they fit the width that there is, and no number in them is cut."""

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import Scenario, cli, words
from gradtide.cli.tables import layout, wrap
from run_folders import tiny_tenants

SCENARIOS = Path(__file__).parent.parent / "scenarios"

words_of_a_cell = st.lists(st.sampled_from(["priority", "without", "barrier", "1MB", "seed0-low"]), max_size=6)
text_cells = words_of_a_cell.map(" ".join)
number_cells = st.floats(-1e6, 1e6).flatmap(lambda value: st.sampled_from([f"{value:.1f}", f"{value:+.1f} %"]))


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from([text_cells, number_cells]), min_size=1, max_size=14))
    columns = [" ".join(draw(st.lists(st.sampled_from(["mean", "iteration,", "ms"]), max_size=3))) for _ in kinds]
    return columns, draw(st.lists(st.tuples(*kinds), max_size=5))


@given(tables(), st.integers(30, 200))
def test_a_table_fits_its_width_and_every_number_is_whole(table, width):
    columns, rows = table
    lines = [line for block in layout(columns, rows, width) for line in block]
    assert max((len(line) for line in lines), default=0) <= width
    printed = " ".join(lines)
    for row in rows:
        for cell in row:
            assert not re.fullmatch(r"[-+.\d]+( %)?", cell) or re.search(
                rf"(?<![\d.]){re.escape(cell)}(?![\d.])", printed
            )
            assert all(word in printed for word in re.split(r"[ -]", cell))


@given(tables())
def test_a_table_of_any_width_has_a_line_for_each_row(table):
    columns, rows = table
    [block] = layout(columns, rows, None)
    assert len(block) == 1 + len(rows)


def test_headers_wrap_before_texts_and_texts_before_the_table_is_stacked():
    columns = ["schedule", "iteration time, ms"]
    rows = [["priority without barrier", "902.0"], ["FIFO with barrier", "1932.5"]]
    assert layout(columns, rows, 44) == [
        [
            "schedule                  iteration time, ms",
            "priority without barrier               902.0",
            "FIFO with barrier                     1932.5",
        ]
    ]
    assert layout(columns, rows, 35)[0][:3] == [
        "                          iteration",
        "schedule                   time, ms",
        "priority without barrier      902.0",
    ]
    assert layout(columns, rows, 30)[0][2:4] == ["priority without         902.0", "barrier"]
    assert len(layout([*columns, *columns[1:] * 3], [[*row, *row[1:] * 3] for row in rows], 40)) == 2


def test_a_column_keeps_its_place_whether_its_values_differ_or_not():
    columns = ["model", "workers", "task", "iteration time, ms"]
    for width in range(36, 70):
        alike = layout(columns, [["vgg16", "4", task, "902.0"] for task in ("train", "inference")], width)
        differ = layout(columns, [["vgg16", "4", "train", "902.0"], ["vgg19", "8", "inference", "902.0"]], width)
        assert [block[0] for block in alike] == [block[0] for block in differ]


def test_a_number_stays_with_its_unit_when_a_text_is_wrapped():
    for width in range(12, 40):
        assert "16.0 %" in wrap("At 1 Gbit/s, priority saves 16.0 % over FIFO.", width)
    assert wrap("  - one two", 9) == "  - one\n    two"


@pytest.fixture
def tiny(tmp_path):
    """A scenario for `tenants`, a list of flow sizes, and a finished run."""
    path = tmp_path / "tiny.toml"
    path.write_text(Scenario.from_dict(tiny_tenants()).to_toml())
    return path


TABLES = {
    "run": ["run", "paper/gao2020-ch4"],
    "run with background flows": ["run", "TINY"],
    "run two jobs": ["run", SCENARIOS / "two-jobs.toml"],
    "estimate": ["run", "paper/gao2020-ch4", "--estimate"],
    "compare": ["compare", "paper/gao2020-ch4"],
    "compare over rates": ["compare", "paper/gao2020-ch4", "--rate", "1Gbps,10Gbps"],
    "collectives": ["collectives", "paper/zhang2017", "--set", "job.train.workers=4", "--sizes", "1kB,1MB"],
    "tenants": ["tenants", "TINY"],
    "tenants map": ["tenants", "map", "TINY", "--job-loads", "0.125,0.5", "--traffic-loads", "0.0625,0.25"],
    "tenants policies": ["tenants", "policies", "TINY", "--policy", "all-low", "--policy", "deadline"],
    "buy": ["buy", "alexnet", "--nodes", "4", "--fabrics", "star,clos2", "--collectives", "ring"],
    "plan": ["plan", "alexnet", "--workers", "2", "--seeds", "2"],
    "reproduce": ["reproduce", "--list"],
    "presets": ["presets"],
    "order": ["order", "tictac_alexnet_v2"],
    "formats": ["convert", "--formats"],
    "doctor": ["doctor"],
}


@pytest.fixture
def printed(monkeypatch, capsys, tiny):
    """Run a command in a terminal of a width; return what it prints on stdout."""

    def call(name, width, *more):
        monkeypatch.setenv("COLUMNS", str(width))
        # What doctor prints changes from one moment to the next.
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=74.25e9))
        arguments = [tiny if argument == "TINY" else argument for argument in TABLES[name]]
        monkeypatch.setattr(sys, "argv", ["gradtide", *map(str, [*arguments, *more])])
        code = cli._main()
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return call


def numbers(text):
    return sorted(re.findall(r"\d[\d.,]*\d|\d", text))


@pytest.mark.parametrize("name", TABLES)
def test_every_command_fits_the_terminal_and_cuts_no_number(printed, name):
    whole = printed(name, 10_000)
    for width in (60, 80, 200):
        out = printed(name, width)
        too_long = [line for line in out.splitlines() if len(line) > width and " " in line.strip()]
        assert too_long == []
        assert set(numbers(whole)) <= set(numbers(out))
        assert "…" not in out.replace(" … ", "").replace("/…", "") or "…" in whole


def test_wide_prints_a_table_as_wide_as_it_is(printed):
    assert printed("presets", 60, "--wide") == printed("presets", 10_000)


def test_symbols_are_in_a_wide_table_alone_and_explained_below_it(printed):
    for name in ("run", "compare", "run with background flows"):
        assert "rho = N / C" in printed(name, 80, "--wide")
        assert not set(re.findall(r"\w+", printed(name, 80))) & {"rho", "alpha", "U", "T", "FCT"}
    assert words.legend(["slowdown"]) == "FCT = flow completion time; slowdown = FCT / least FCT on the idle network"
    assert (
        words.legend(["U"]) == "C = compute; T = iteration time; U = C / T, the utilisation"
        or words.legend(["U"]) == "T = iteration time; C = compute; U = C / T, the utilisation"
    )
    assert words.legend(["U"]) == "T = iteration time; C = compute; U = C / T, the utilisation"
    assert words.legend(["Unit", "rate"]) == ""
