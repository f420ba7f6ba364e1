"""The store of a study's runs: no run is computed twice, and none is lost to a kill, a full disk or a damaged file."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gradtide as gt
from gradtide.studies import run as runs
from gradtide.studies.store import Store, StoreError, key_of
from gradtide.studies.sweep import Study, executors
from run_folders import tiny_tenants
from sweep_studies import BASE, GRID, ZIP, rows, simulated, study

GRADTIDE = [sys.executable, "-m", "gradtide"]


# The store


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "file:store", "a b%20c", "é", "-store"])
def test_a_path_is_a_path(gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    study(GRID)
    seen = simulated(monkeypatch)
    for _ in range(2):
        assert gradtide("sweep", "s.toml", f"--store={name}", "-q")[0] == 0
    assert len(seen) == 4
    assert Path(name).is_file()
    assert [row["runs"] for row in gt.sweep_list(name)] == [4]
    assert gt.sweep_merge("s.toml", name).known == 4
    assert gradtide("compare", "base.toml", "--schedule", "fifo", f"--store={name}", "-q")[0] == 0


def test_a_store_may_have_a_name_that_is_no_unicode(place: Path) -> None:
    study(GRID)
    name = os.fsdecode(b"\xff.store")
    gt.sweep("s.toml", store=name)
    assert gt.sweep_merge("s.toml", name, store="all").known == 4
    # Its own runs are no others.
    assert gt.sweep_merge("s.toml", ["all", name], store="all").known == 4


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_store_that_is_no_file_is_one_error(gradtide: Any, place: Path, name: str) -> None:
    study(GRID)
    before = sorted(os.listdir("..")), sorted(os.listdir())
    code, out, err = gradtide("sweep", "s.toml", "--store", name)
    assert (code, out) == (3, "")
    assert len(err.strip().splitlines()) == 1
    assert (sorted(os.listdir("..")), sorted(os.listdir())) == before


def test_a_merge_takes_several_stores_and_loses_none(gradtide: Any, place: Path) -> None:
    study(GRID + ZIP)
    for part in "1234":
        assert gradtide("sweep", "s.toml", "--shard", f"{part}/4", "--store", f"{part}.store", "-q")[0] == 0
    whole = gt.sweep_merge("s.toml", ["1.store", "2.store", "3.store", "4.store"])
    assert (whole.known, whole.missing) == (8, 0)
    assert gt.sweep_merge("s.toml", "1.store").known == gt.sweep_merge("s.toml", Path("1.store")).known == 2
    ways = (
        ["1.store", "2.store", "3.store", "4.store"],
        ["1.store", "--from", "2.store", "3.store", "--from", "4.store"],
    )
    for number, stores in enumerate(ways):
        code, out, err = gradtide("sweep", "merge", "s.toml", *stores, "--store", f"all{number}", "-o", "out", "--json")
        assert code == 0, err
        assert json.loads(out)["runs_finished"] == 8
    for stores in (["1.store", "none"], ["--from", "none"]):
        code, _, err = gradtide("sweep", "merge", "s.toml", *stores)
        assert (code, "there is no store none" in err, Path("none").exists()) == (2, True, False)
    with pytest.raises(StoreError, match="there is no store none"):
        gt.sweep_merge("s.toml", ["none"])
    assert not Path("none").exists()


def test_the_one_store_of_a_merge_is_named_once(gradtide: Any, place: Path) -> None:
    study(GRID)
    code, out, err = gradtide("sweep", "merge", "s.toml", "--store", "one", "--store", "two")
    assert (code, out) == (2, "")
    assert "--store" in err
    assert not Path("two").exists()


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
    tables = ["points.csv", "report.html", "rows.csv", "rows.parquet"]
    assert names == ["best.resolved.toml", *tables, "study.toml", "summary.json", "versions.json"]
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
    assert code == 3
    assert "2 runs failed" in out
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


def test_a_store_says_what_it_holds(gradtide: Any, place: Path) -> None:
    Path("other.toml").write_text(BASE + '[run]\nengine = "packet"\nseed = 7\n')
    study(GRID.replace("[sweep.grid]", "[sweep.grid]\nscenario = ['base.toml', 'other.toml']"))
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0
    found = gt.sweep_list("store")
    assert [tuple(row.values()) for row in found] == [
        ("base.toml", "fluid", gt.__version__, 0, 1, 4),
        ("other.toml", "packet", gt.__version__, 7, 8, 4),
    ]
    assert [row["runs"] for row in gt.sweep_list("store", seed=8)] == [2]
    assert [row["scenario"] for row in gt.sweep_list("store", engine="fluid")] == ["base.toml"]
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
