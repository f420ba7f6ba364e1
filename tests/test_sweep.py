"""Studies over any keys, and the store of their runs."""

import csv
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gradtide as gt
from gradtide.errors import ScenarioError
from gradtide.studies import run as runs
from gradtide.studies.store import Store, StoreError, key_of
from gradtide.studies.sweep import Study, analysis, executors, sobol
from run_folders import tiny_tenants

BASE = """
[job.train]
model = { kind = "thesis", layers = 4, time = "1ms" }
workers = 2
iterations = 2
[cluster]
link = { rate = "10Gbps", delay = "10us" }
"""
GRID = '[sweep]\nscenario = "base.toml"\nseeds = 2\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n'
ZIP = '[sweep.zip]\n"job.train.workers" = [2, 4]\n"cluster.link.delay" = ["1us", "2us"]\n'
GRADTIDE = [sys.executable, "-m", "gradtide"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(text: str) -> Study:
    Path("s.toml").write_text(text)
    return Study.load("s.toml")


def rows(folder: str) -> list[dict[str, str]]:
    with open(f"{folder}/rows.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the link rate of every run that is simulated from now on."""
    seen: list[str] = []
    run = executors.simulate

    def noted(scenario: Any, progress: Any) -> Any:
        seen.append(scenario.sha256)
        return run(scenario, progress)

    monkeypatch.setattr(executors, "simulate", noted)
    return seen


# Studies


def test_runs_are_in_the_order_of_the_file_and_seeds_change_first(place: Path) -> None:
    found = study(GRID + ZIP)
    assert len(found) == 2 * 2 * 2
    expected = [
        {"cluster.link.rate": rate, "job.train.workers": workers, "cluster.link.delay": delay}
        for rate, (workers, delay) in product(["1Gbps", "10Gbps"], [(2, "1us"), (4, "2us")])
    ]
    assert [found.values(run) for run in range(0, 8, 2)] == expected
    assert [found.values(run) for run in range(1, 8, 2)] == expected
    assert [found.scenario(run).seed for run in range(8)] == [0, 1] * 4


def test_a_row_has_the_figures_of_the_run_by_itself(place: Path) -> None:
    study(GRID + ZIP)
    result = gt.sweep("s.toml")
    for row in result.rows:
        scenario = gt.Scenario.load("base.toml").set({key: row[key] for key in result.study.keys})
        alone = gt.run(scenario, seed=row["seed"]).summary
        assert row["jobs.train.iteration_time_ms.mean"] == alone["jobs"]["train"]["iteration_time_ms"]["mean"]
        assert row["links.max_utilisation"] == alone["links"]["max_utilisation"]
    assert {row["state"] for row in result.rows} == {"finished"}


def test_scenarios_models_and_tables_are_values_as_any(place: Path) -> None:
    Path("other.toml").write_text(BASE.replace("10us", "20us"))
    found = study(
        "[sweep]\n[sweep.grid]\nscenario = ['base.toml', 'other.toml', 'paper/gao2020-ch4']\n"
        "'job.train.schedule' = [{ order = 'fifo' }, { order = 'priority', barrier = false }]\n"
    )
    scenarios = [found.scenario(run) for run in range(len(found))]
    assert [one.link_delay_ps for one in scenarios[:4]] == [10_000_000] * 2 + [20_000_000] * 2
    assert [one.jobs[0].schedule.order for one in scenarios] == ["fifo", "priority"] * 3
    assert gt.sweep({"sweep": {"scenario": "base.toml"}}).rows[0]["seed"] == 0


def test_the_first_powers_of_two_of_a_sample_fill_every_dimension_evenly() -> None:
    for dimension, power in product(range(sobol.DIMENSIONS), range(9)):
        count = 2**power
        cells = sorted(int(sobol.point(index, dimension) * count) for index in range(count))
        assert cells == list(range(count)), (dimension, power)


def test_the_first_two_dimensions_of_a_sample_are_a_net_of_quality_0() -> None:
    # Sobol's first two dimensions are a (0, 2)-sequence: each box of 2^-a x 2^-b holds one of the first 2^(a+b) points.
    for first, second in product(range(5), range(5)):
        count = 2 ** (first + second)
        points = [[sobol.point(index, dimension) for dimension in (0, 1)] for index in range(count)]
        assert len({(int(x * 2**first), int(y * 2**second)) for x, y in points}) == count


def test_a_sample_stays_within_its_bounds_and_a_longer_one_begins_with_it(place: Path) -> None:
    text = (
        '[sweep]\nscenario = "base.toml"\n[sweep.sample]\npoints = 16\n'
        '"cluster.link.rate" = { min = "1Gbps", max = "100Gbps", log = true }\n'
        '"job.train.workers" = { min = 2, max = 5 }\n'
    )
    found = study(text)
    values = [found.values(run) for run in range(16)]
    assert sorted(one["job.train.workers"] for one in values) == [w for w in (2, 3, 4, 5) for _ in range(4)]
    rates_bps = [found.scenario(run).link_rate_bps for run in range(16)]
    assert min(rates_bps) == 1e9
    assert max(rates_bps) < 1e11
    # Half of the points are below the geometric mean of the bounds.
    assert sum(rate < 1e10 for rate in rates_bps) == 8
    longer = study(text.replace("16", "64"))
    assert [longer.values(run) for run in range(16)] == values


WRONG = {
    "unknown table": ('[sweep]\nscenario = "base.toml"\n[grid]\n', "GT012", 3, "a study has one table"),
    "no sweep": ("# nothing\n", "GT010", None, "write [sweep]"),
    "unknown key": ('[sweep]\nscenario = "base.toml"\nseed = 5\n', "GT012", 3, "did you mean `seeds`?"),
    "no scenario": ("[sweep]\nseeds = 5\n", "GT010", 1, 'write scenario = "base.toml"'),
    "a number as scenario": ("[sweep]\nscenario = 5\n", "GT011", 2, 'write scenario = "base.toml"'),
    "no such scenario": ('[sweep]\nscenario = "bse.toml"\n', "GT002", 2, "did you mean"),
    "no such preset": ('[sweep]\nscenario = "paper/gao"\n', "GT006", 2, "paper/gao2020"),
    "no seeds": ('[sweep]\nscenario = "base.toml"\nseeds = 0\n', "GT014", 3, "`seeds` is at least 1"),
    "half a seed": ('[sweep]\nscenario = "base.toml"\nseeds = 0.5\n', "GT011", 3, "write seeds = 5"),
    "an empty list": (GRID + '"job.train.workers" = []\n', "GT100", 6, "write at least one"),
    "no list": (GRID + '"job.train.workers" = 4\n', "GT011", 6, "its values in a list"),
    "no quotes": (GRID + "job.train.workers = [4]\n", "GT011", 6, "write the key in quotes"),
    "unequal lists": (GRID + ZIP.replace("[2, 4]", "[2, 4, 8]"), "GT101", 8, "one value each"),
    "a key in two tables": (GRID + ZIP + '"cluster.link.rate" = ["1Gbps", "2Gbps"]\n', "GT103", 9, "delete one"),
    "seeds twice": (GRID + '"run.seed" = [1, 2]\n', "GT103", 6, "delete one"),
    "no points": (GRID + '[sweep.sample]\n"job.train.workers" = { min = 2, max = 4 }\n', "GT010", 6, "points = 64"),
    "no bounds": (GRID + '[sweep.sample]\npoints = 2\n"job.train.workers" = { min = 2 }\n', "GT102", 8, "write { min"),
    "bounds of two kinds": (
        GRID + '[sweep.sample]\npoints = 2\n"cluster.link.delay" = { min = "1us", max = "1GB" }\n',
        "GT102",
        8,
        "write { min",
    ),
    "bounds upside down": (
        GRID + '[sweep.sample]\npoints = 2\n"job.train.workers" = { min = 4, max = 2 }\n',
        "GT102",
        8,
        "write { min",
    ),
    "a logarithm of 0": (
        GRID + '[sweep.sample]\npoints = 2\n"cluster.link.delay" = { min = "0us", max = "1s", log = true }\n',
        "GT102",
        8,
        "raise `min`",
    ),
    "nothing sampled": (GRID + "[sweep.sample]\npoints = 2\n", "GT100", 6, "write"),
    "an unknown path": (GRID + '"job.tran.workers" = [2]\n', "GT017", 6, "job.train"),
    "an unknown field": (GRID + '"job.train.worker" = [2]\n', "GT012", 6, "did you mean `workers`"),
    "a wrong value": (GRID + '"cluster.link.delay" = ["1us", "10"]\n', "GT020", 6, ""),
    "a wrong value in a sample": (
        GRID + '[sweep.sample]\npoints = 2\n"job.train.workers" = { min = "1us", max = "2us" }\n',
        "GT011",
        8,
        "",
    ),
    "a figure that is no text": ('[sweep]\nscenario = "base.toml"\nfigure = 1\n', "GT011", 3, "write figure ="),
    "a figure that no run has": (
        '[sweep]\nscenario = "base.toml"\nfigure = "jobs.train.iteration_time_ms.men"\n',
        "GT105",
        3,
        "did you mean `jobs.train.iteration_time_ms.mean`",
    ),
    "a text that is weighed": (GRID.replace("seeds", 'against = "state"\nseeds'), "GT105", 3, ""),
    "too many runs": (
        GRID + '[sweep.sample]\npoints = 1000000\n"cluster.link.delay" = { min = "1us", max = "2us" }\n',
        "GT104",
        1,
        "at most 1,000,000",
    ),
}


@pytest.mark.parametrize(("text", "code", "line", "hint"), WRONG.values(), ids=WRONG)
def test_a_wrong_study_names_its_line_and_the_fix(
    gradtide: Any, place: Path, text: str, code: str, line: int | None, hint: str
) -> None:
    Path("s.toml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        _ = gt.sweep("s.toml").summary
    first = caught.value.errors[0]
    assert (first["code"], first["file"], first["line"]) == (code, "s.toml", line)
    assert hint in first["hint"]
    exit_code, out, err = gradtide("sweep", "s.toml", "-o", "out")
    assert exit_code == 2
    assert out == ""
    assert f"error[{code}]" in err
    assert not Path("out").exists()


def test_a_study_that_would_take_too_long_is_refused_before_it_runs(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("s.toml").write_text(GRID + '"job.train.iterations" = [100000]\n')
    seen = simulated(monkeypatch)
    code, _, err = gradtide("sweep", "s.toml", "-o", "out", "--max-time", "1ms")
    assert code == 2
    assert "error[GT053]: the 4 runs would take about" in err
    assert not seen


def test_in_python_a_study_may_hold_its_scenario(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a `Scenario` or a dict: the rows are those of one that is named, and the store has them."""
    seen = simulated(monkeypatch)
    grid = {"cluster.link.rate": ["1Gbps", "10Gbps"]}
    base = gt.Scenario.load("base.toml")
    named = gt.sweep({"sweep": {"scenario": "base.toml", "grid": grid}}, store="store").rows
    for held in (base, base.to_dict()):
        assert gt.sweep({"sweep": {"scenario": held, "grid": grid}}, store="store").rows == named
    assert len(seen) == 2
    with pytest.raises(gt.ScenarioError, match="unknown field `a`"):
        gt.sweep({"sweep": {"scenario": {"a": 1}}})


# The store


def test_no_run_is_computed_twice_across_studies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = simulated(monkeypatch)
    study(GRID)
    gt.sweep("s.toml", store="store")
    assert len(seen) == len(set(seen)) == 4
    gt.sweep("s.toml", store="store")
    assert len(seen) == 4
    # A longer study runs what is new.
    study(GRID.replace('"1Gbps"', '"1Gbps", "2Gbps"').replace("seeds = 2", "seeds = 3"))
    gt.sweep("s.toml", store="store", jobs=2)
    assert len(seen) == len(set(seen)) == 9
    # The same run under other words.
    gt.sweep({"sweep": {"scenario": "base.toml", "grid": {"cluster.link.rate": ["1000Mbps"]}}}, store="store")
    assert len(seen) == 9


@pytest.mark.parametrize("jobs", [1, 4])
def test_equal_runs_of_one_study_are_one(place: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    seen = simulated(monkeypatch)
    words = ["1Gbps", "1000Mbps", "1000000000bps"]
    study(GRID.replace('"1Gbps", "10Gbps"', ", ".join(f'"{word}"' for word in words)))
    result = gt.sweep("s.toml", store="store", jobs=jobs)
    assert len(seen) == len(set(seen)) == 2
    assert [row["state"] for row in result.rows] == ["finished"] * 6


def test_what_a_scenario_names_is_part_of_a_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,1000000\n")
    study(GRID + '"job.train.model" = ["m.csv"]\n')
    seen = simulated(monkeypatch)
    gt.sweep("s.toml", store="store")
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,2000000\n")
    gt.sweep("s.toml", store="store")
    assert len(set(seen)) == 8


def test_the_table_is_the_same_whatever_ran_before(gradtide: Any, place: Path) -> None:
    study(GRID + ZIP)
    assert gradtide("sweep", "s.toml", "-o", "one", "-j", "1", "-q")[0] == 0
    names = sorted(os.listdir("one"))
    assert names == ["report.html", "rows.csv", "rows.parquet", "study.toml", "summary.json", "versions.json"]
    assert sorted(path for path in os.listdir() if path.startswith("gradtide")) == [
        "gradtide.store",
        "gradtide.store-claims",
    ]
    for shard in ("2/3", "1/3", "3/3"):
        code, out, _ = gradtide("sweep", "s.toml", "--store", f"{shard[0]}.store", "--shard", shard)
        assert code == 0
        assert f"Shard {shard}" in out
    taken = [part for number in "123" for part in ("--from", f"{number}.store")]
    code, out, _ = gradtide("sweep", "merge", "s.toml", "--store", "all.store", *taken[:4], "-o", "part")
    assert code == 0
    assert "2 runs are not finished" in out
    assert json.loads(Path("part/summary.json").read_text())["complete"] is False
    assert [row["state"] for row in rows("part")].count("missing") == 2
    assert gradtide("sweep", "merge", "s.toml", "--store", "all.store", *taken[4:], "-o", "merged")[0] == 0
    for name in names[:-1]:
        assert Path("merged", name).read_bytes() == Path("one", name).read_bytes(), name


def test_csv_and_parquet_hold_the_same_table(gradtide: Any, place: Path) -> None:
    study(GRID + '"job.train.schedule" = [{ order = \'fifo\' }]\n"run.timeline" = [1, 2]\n')
    assert gradtide("sweep", "s.toml", "-o", "out", "-q")[0] == 0
    table = pyarrow.parquet.read_table("out/rows.parquet").to_pylist()
    texts = rows("out")
    assert [list(row) for row in table] == [list(row) for row in texts]
    for row, text in zip(table, texts, strict=True):
        for name, value in row.items():
            assert (float(text[name]) if isinstance(value, (int, float)) else text[name]) == (
                "" if value is None else value
            )
    assert table[0]["job.train.schedule"] == '{"order": "fifo"}'
    assert table[0]["run.timeline"] == 1


def test_a_run_that_cannot_go_on_is_a_row_that_says_why(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(scenario: Any, progress: Any) -> Any:
        if scenario.link_rate_bps == 10**9:
            raise gt.SimulationError("job `train` waits for itself")
        return run(scenario, progress)

    run = executors.simulate
    monkeypatch.setattr(executors, "simulate", refuses)
    study(GRID)
    code, out, _ = gradtide("sweep", "s.toml", "-o", "out")
    assert code == 0
    assert "2 runs cannot go on" in out
    states = [row["state"] for row in rows("out")]
    assert states == ["failed: job `train` waits for itself"] * 2 + ["finished"] * 2


def test_a_damaged_run_is_named_and_run_again(gradtide: Any, place: Path) -> None:
    study(GRID)
    assert gradtide("sweep", "s.toml", "-o", "one", "-q")[0] == 0
    with sqlite3.connect("gradtide.store") as database:
        database.execute("UPDATE runs SET payload = zeroblob(40) WHERE rowid = 2")
    database.close()
    code, _, err = gradtide("sweep", "s.toml", "-o", "two", "-q")
    assert code == 0
    assert err.count("is damaged") == 1
    assert Path("one/rows.csv").read_bytes() == Path("two/rows.csv").read_bytes()
    assert gradtide("sweep", "s.toml", "-o", "two", "-q")[2].count("is damaged") == 0


def _older(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 0")
    database.close()


def _broken(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + bytes(5000))


def _other(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()


STORES = {
    "older": (_older, "is a store of an older gradtide"),
    "no database": (lambda path: path.write_text("mine\n" * 1000), "name another file"),
    "broken": (_broken, "cannot use the store"),
    "another database": (_other, "no store of runs"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot use the store"),
}


@pytest.mark.parametrize(("spoil", "words"), STORES.values(), ids=STORES)
def test_a_store_that_cannot_be_used_is_one_error_and_stays(gradtide: Any, place: Path, spoil: Any, words: str) -> None:
    study(GRID)
    store = place / "store"
    assert gradtide("sweep", "s.toml", "--store", store, "-q")[0] == 0
    spoil(store)
    before = store.read_bytes() if store.is_file() else None
    code, out, err = gradtide("sweep", "s.toml", "--store", store, "-o", "out", "-q")
    assert code == 3
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert str(store) in err
    assert (store.read_bytes() if store.is_file() else None) == before
    assert not Path("out").exists()


def test_a_full_disk_is_one_error_and_finished_runs_stay(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(GRID.replace("seeds = 2", "seeds = 40"))
    opened = Store._open

    def small(store: Store) -> None:
        opened(store)
        store._db.execute("PRAGMA max_page_count = 12")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_open", small)
        code, out, err = gradtide("sweep", "s.toml", "--store", "store", "-q")
    assert (code, out) == (3, "")
    assert "database or disk is full; make room" in err
    with Store(Path("store")) as store:
        kept = len(store)
    assert 0 < kept < 80
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0


def test_a_store_that_cannot_be_written_is_one_error(gradtide: Any, place: Path) -> None:
    study(GRID)
    code, _, err = gradtide("sweep", "s.toml", "--store", "base.toml/store", "-q")
    assert code == 3
    assert "cannot use the store base.toml/store" in err


def test_a_read_only_store_is_one_error_if_something_is_missing(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(GRID)
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0
    opened = Store._open

    def read_only(store: Store) -> None:
        opened(store)
        store._db.execute("PRAGMA query_only = ON")

    monkeypatch.setattr(Store, "_open", read_only)
    assert gradtide("sweep", "s.toml", "--store", "store", "-o", "out", "-q")[0] == 0
    study(GRID.replace("seeds = 2", "seeds = 3"))
    code, _, err = gradtide("sweep", "s.toml", "--store", "store", "-q")
    assert code == 3
    assert "attempt to write a readonly database; make it writable, or name another file" in err


def test_a_study_is_a_table_of_arrow(place: Path) -> None:
    study(GRID)
    result = gt.sweep("s.toml")
    table = pyarrow.table(result)
    assert table.num_rows == 4
    assert table["cluster.link.rate"].to_pylist() == ["1Gbps"] * 2 + ["10Gbps"] * 2
    assert [row["seed"] for row in result.to_dicts()] == [0, 1, 0, 1]


def test_another_process_sees_what_is_known_so_far(gradtide: Any, place: Path) -> None:
    study(GRID)
    half = Study.load("s.toml")
    with Store(Path("store")) as store:
        gt.sweep(half, store=store, shard=(1, 2))
        # The store is still open here, as in a process that works.
        code, out, _ = gradtide("sweep", "merge", "s.toml", "--store", "store", "-o", "part")
    assert code == 0
    assert "2 runs are not finished" in out
    assert [row["state"] for row in rows("part")] == ["finished", "missing"] * 2


def test_another_process_does_not_begin_what_is_under_way(place: Path) -> None:
    key = key_of(gt.Scenario.load("base.toml"))
    ask = (
        "from pathlib import Path; from gradtide.studies.store import Store\n"
        f"with Store(Path('store')).claim(bytes.fromhex('{key.hex()}')) as mine: print(mine)"
    )

    def asked() -> str:
        return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()

    with Store(Path("store")) as store, store.claim(key) as mine:
        assert mine
        assert asked() == "False"
    assert asked() == "True"


@pytest.mark.linux
@pytest.mark.slow
def test_killed_at_any_moment_the_study_ends_with_the_same_table(place: Path) -> None:
    study(GRID.replace("seeds = 2", "seeds = 150"))
    subprocess.run([*GRADTIDE, "sweep", "s.toml", "--store", "whole.store", "-o", "whole", "-q"], check=True)
    command = [*GRADTIDE, "sweep", "s.toml", "--store", "store", "-o", "out", "-q"]
    moments = random.Random(1)
    kept = 0
    for _ in range(4):
        pair = [subprocess.Popen(command) for _ in range(2)]
        time.sleep(moments.uniform(0.3, 1.0))  # a moment at random is what is tested
        for one in pair:
            one.send_signal(signal.SIGKILL)
            one.wait()
        with Store(Path("store")) as store:
            assert kept <= len(store)
            kept = len(store)
    subprocess.run(command, check=True)
    for name in ("rows.csv", "rows.parquet", "summary.json"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()


def test_ctrl_c_keeps_what_is_done(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(GRID.replace("seeds = 2", "seeds = 20"))
    seen = simulated(monkeypatch)

    def interrupt(share: float) -> None:
        if len(seen) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gt.sweep("s.toml", store="store", progress=interrupt)
    with Store(Path("store")) as store:
        kept = len(store)
    assert 5 <= kept < 40
    gt.sweep("s.toml", store="store")
    assert len(seen) <= 40 + 2  # what was under way


# What the report says


def of(parts: dict[str, Any], seeds: int = 1) -> Study:
    return Study.load({"sweep": {"scenario": "base.toml", "seeds": seeds, **parts}})


def test_sensitivity_of_a_sum_is_the_share_of_each_term() -> None:
    # y = i + 2 j over i, j in {0, 1}: the variances 1/4 and 1 add up, and no key acts only with another.
    found = analysis.sensitivity(of({"grid": {"a.b": [0, 1], "c.d": [0, 1]}}), [0.0, 2.0, 1.0, 3.0])
    assert [(row["key"], round(row["share"], 12)) for row in found] == [("c.d", 0.8), ("a.b", 0.2)]
    assert (found[0]["least"], found[0]["most"]) == (0.5, 2.5)
    # A product of signs is due to both keys together, and to none alone.
    found = analysis.sensitivity(of({"grid": {"a.b": [-1, 1], "c.d": [-1, 1]}}), [1.0, -1.0, -1.0, 1.0])
    assert [row["share"] for row in found] == [0, 0]
    assert analysis.sensitivity(of({"grid": {"a.b": [0, 1]}}), [5.0, 5.0]) == []


def test_sensitivity_finds_the_one_sampled_key_that_matters() -> None:
    study = of({"sample": {"points": 256, "a.b": {"min": 0, "max": 1000}, "c.d": {"min": 0, "max": 1000}}})
    found = analysis.sensitivity(study, [float(study.values(run)["a.b"]) for run in range(256)])
    # Of a straight line, eight parts of one size keep 1 - 1/64 of the variance.
    assert found[0]["key"] == "a.b"
    assert found[0]["share"] == pytest.approx(1 - 1 / 64, abs=2e-3)
    assert found[1]["share"] < 0.01


def test_effects_pair_runs_that_differ_in_one_key_alone() -> None:
    # By 10 % with the first seed and by 30 % with the second, whatever the other key: a mean of 20 %, and of two values
    # an interval of 12.706 standard errors of 10 % (Student's t, one degree of freedom).
    study = of({"grid": {"a.b": ["x", "y"], "c.d": [1, 2]}}, seeds=2)
    ys = [10.0, 20.0, 100.0, 200.0, 11.0, 26.0, 110.0, 260.0]
    found = analysis.effects(study, ys)
    one = next(row for row in found if row["key"] == "a.b")
    assert (one["value"], one["over"], one["pairs"]) == ("y", "x", 4)
    assert one["change_percent"] == pytest.approx(20)
    assert [one["low_percent"], one["high_percent"]] == pytest.approx([20 - 127.06, 20 + 127.06], abs=0.01)
    assert analysis.effects(of({"grid": {"a.b": [1, 2]}}), [1.0, float("nan")]) == []


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    study = of({"grid": {"a.b": [1, 2, 3, 4, 5]}})
    found = analysis.front(study, [1.0, 2.0, 3.0, 4.0, float("nan")], [9.0, 7.0, 8.0, 6.0, 1.0])
    assert [one["run"] for one in found["corners"]] == [0, 1, 3]
    assert [one["run"] for one in found["others"]] == [2]
    assert found["points"] == 4


def test_charts_have_the_mean_of_the_seeds_in_the_order_of_the_axis(gradtide: Any, place: Path) -> None:
    study(
        GRID.replace("seeds", 'against = "cluster.link.rate"\nseeds').replace('"1Gbps", "10Gbps"', '"10Gbps", "1Gbps"')
        + ZIP
    )
    assert gradtide("sweep", "s.toml", "-o", "out", "-q")[0] == 0
    summary = json.loads(Path("out/summary.json").read_text())
    [chart] = summary["charts"]
    assert (chart["key"], chart["unit"], chart["x"]) == ("cluster.link.rate", "Gbit/s", [1, 10])
    assert [line["name"] for line in chart["lines"]] == ["workers 2, delay 1us", "workers 4, delay 2us"]
    name = "jobs.train.iteration_time_ms.mean"
    assert summary["figure"] == name
    times = [float(row[name]) for row in rows("out") if row["job.train.workers"] == "2"]
    assert chart["lines"][0]["values"] == pytest.approx([sum(times[2:]) / 2, sum(times[:2]) / 2])
    page = Path("out/report.html").read_text()
    for words in ("Which key matters most", "Paired changes", f"{name} against cluster.link.rate"):
        assert words in page
    assert gradtide("report", "out")[0] == 0
    assert Path("out/report.html").read_text() == page


def test_a_study_without_jobs_is_about_the_completion_times_of_its_flows(place: Path) -> None:
    Path("base.toml").write_text(
        '[traffic.web]\nincast = { dst = "h0", bytes = "100kB", every = "5ms" }\n'
        '[cluster]\ntopology = { kind = "star", hosts = 3 }\nlink = { rate = "10Gbps", delay = "10us" }\n'
        '[run]\nengine = "fluid"\nduration = "9ms"\n'
    )
    study(GRID)
    summary = gt.sweep("s.toml").summary
    assert summary["figure"] == "traffic.web.all.mean_fct_ms"
    assert summary["sensitivity"][0]["key"] == "cluster.link.rate"


def test_a_study_whose_runs_are_missing_has_a_report(gradtide: Any, place: Path) -> None:
    study(GRID + '[sweep.sample]\npoints = 3\n"job.train.workers" = { min = 2, max = 4 }\n')
    assert gradtide("sweep", "merge", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "12 runs are not finished" in Path("out/report.html").read_text()
    assert gradtide("sweep", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "job.train.workers" in Path("out/report.html").read_text()


def test_a_store_says_what_it_holds(gradtide: Any, place: Path) -> None:
    Path("other.toml").write_text(BASE + '[run]\nengine = "fluid"\nseed = 7\n')
    study(GRID.replace("[sweep.grid]", "[sweep.grid]\nscenario = ['base.toml', 'other.toml']"))
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0
    found = gt.sweep_list("store")
    assert [tuple(row.values()) for row in found] == [
        ("base.toml", "pipe", gt.__version__, 0, 1, 4),
        ("other.toml", "fluid", gt.__version__, 7, 8, 4),
    ]
    assert [row["runs"] for row in gt.sweep_list("store", seed=8)] == [2]
    assert [row["scenario"] for row in gt.sweep_list("store", engine="pipe")] == ["base.toml"]
    code, out, _ = gradtide("sweep", "list", "store", "--scenario", "other.toml")
    assert code == 0
    assert "4 runs" in out
    assert "base.toml" not in out
    code, _, err = gradtide("sweep", "list", "none")
    assert (code, "there is no store none" in err, Path("none").exists()) == (2, True, False)
    with pytest.raises(StoreError, match="there is no store none"):
        gt.sweep_list("none")


# Other studies on the same store


OTHERS = {
    "compare": ["compare", "base.toml", "--schedule", "fifo+barrier", "--schedule", "priority"],
    "map": ["tenants", "map", "tenants.json", "--job-loads", "0.5", "--traffic-loads", "0.03"],
    "buy": ["buy", "base.toml", "--nodes", "8", "--fabrics", "star,clos2", "--collectives", "ring"],
}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_a_study_with_a_store_repeats_no_run(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    Path("tenants.json").write_text(json.dumps(tiny_tenants()))
    assert gradtide(*command, "-o", "plain", "-q")[0] == 0
    seen: list[str] = []
    run = runs.simulate

    def noted(scenario: Any, *how: Any) -> Any:
        seen.append(scenario.sha256)
        return run(scenario, *how)

    monkeypatch.setattr(runs, "simulate", noted)
    assert gradtide(*command, "--store", "store", "-q")[0] == 0
    first = len(seen)
    assert first > 1
    assert gradtide(*command, "--store", "store", "-o", "stored", "-q")[0] == 0
    assert len(seen) == first
    names = [path.relative_to("plain") for path in Path("plain").rglob("*") if path.is_file()]
    assert names
    for name in names:
        if name.name not in ("versions.json", "report.html", "timeline.pftrace"):
            assert Path("stored", name).read_bytes() == Path("plain", name).read_bytes(), name
    assert not Path("stored.incomplete").exists()


def test_a_sweep_takes_the_runs_of_a_comparison(gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        gradtide("compare", "base.toml", "--schedule", "fifo", "--rate", "1Gbps,10Gbps", "--store", "s", "-q")[0] == 0
    )
    seen = simulated(monkeypatch)
    study(GRID.replace("seeds = 2", "seeds = 1") + "\"job.train.schedule\" = [{ order = 'fifo', barrier = false }]\n")
    assert gradtide("sweep", "s.toml", "--store", "s", "-q")[0] == 0
    assert not seen


def test_an_interrupted_study_with_a_store_goes_on_from_it(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    run = runs.simulate

    def stops(scenario: Any, *how: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(scenario)
        return run(scenario, *how)

    command = [*OTHERS["compare"], "--rate", "1Gbps,2Gbps", "-j", "1", "--store", "store", "-q"]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "simulate", stops)
        code, _, err = gradtide(*command)
    assert code == 130
    assert "2 finished runs are kept in store" in err
    assert sorted(os.listdir()) == ["base.toml", "store", "store-claims"]
    assert gradtide(*command)[0] == 0
    with Store(Path("store")) as store:
        assert len(store) == 4
