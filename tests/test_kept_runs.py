"""Finished runs of an unfinished study: damaged ones are run again; a run that cannot go on makes a figure unknown."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide.studies import run as studies_run
from gradtide.studies.keep import Kept
from gradtide.studies.run import sample
from gradtide.studies.store import StoreError, key_of
from gradtide.studies.tenants.bands import tenants
from gradtide.studies.tenants.boundary import boundary
from gradtide.studies.tenants.policies import policies
from run_folders import TINY_LOADS, contents, tiny_tenants

CH4 = "paper/gao2020-ch4"

pytestmark = [pytest.mark.linux, pytest.mark.process]


# What is damaged


def store_of(folder: Path) -> Path:
    """Return the store of an unfinished study."""
    [path] = folder.glob("finished/*.store")
    return path


def put(folder: Path, packed: bytes) -> None:
    """Let the finished run of `sample` be kept as these bytes."""
    with closing(sqlite3.connect(store_of(folder), isolation_level=None)) as database:
        database.execute("INSERT OR REPLACE INTO outputs VALUES (?, ?)", (key_of(sample()), packed))


def packed_runs(folder: Path) -> list[bytes]:
    """Return the finished runs that are kept, as they are packed."""
    with closing(sqlite3.connect(store_of(folder))) as database:
        return [packed for (packed,) in database.execute("SELECT payload FROM outputs")]


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Return data with one bit changed."""
    changed = bytearray(data)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def test_a_damaged_finished_run_is_taken_out_named_and_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    keep = Kept(tmp_path / "out", said.append)
    result = gt.run(sample())
    keep.add(result)
    [whole], draw, damaged = packed_runs(keep.folder), random.Random(6), 0
    for _ in range(300):
        put(keep.folder, flipped(whole, draw))
        found = keep.find(sample())
        if found is None:
            damaged += 1
            assert packed_runs(keep.folder) == []
        else:
            # A bit after the last block that says nothing.
            assert found.summary == result.summary
    assert damaged == len(said) > 290
    assert all("run again" in text for text in said)
    keep.add(result)
    keep.forget()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", [b"{}", b"[]", b"null", b'{"a":' * 100_000, b"1e999999999", b"\xff"])
def test_a_finished_run_of_another_shape_is_damaged(tmp_path: Path, text: bytes) -> None:
    with closing(Kept(tmp_path / "out")) as keep:
        keep.add(gt.run(sample()))
        head = zlib.decompress(packed_runs(keep.folder)[0]).partition(b"\n")[0]
        for data in (text, head + b"\n" + text):
            put(keep.folder, zlib.compress(data))
            assert keep.find(sample()) is None
            assert packed_runs(keep.folder) == []


def test_no_damage_of_kept_runs_gives_another_run(tmp_path: Path) -> None:
    result = gt.run(sample())
    with closing(Kept(tmp_path / "out")) as keep:
        keep.add(result)
    path = store_of(tmp_path / "out.incomplete")
    whole, draw, ends = path.read_bytes(), random.Random(7), Counter[str]()
    for _ in range(400):
        data = flipped(whole, draw) if draw.random() < 0.8 else whole[: draw.randrange(len(whole))]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        told = ""
        try:
            with closing(Kept(tmp_path / "out")) as keep:
                found = keep.find(sample())
        except StoreError as error:
            told = str(error)
        if told:
            assert str(path) in told
            assert path.exists()
        else:
            assert found is None or found.summary == result.summary
        ends["error" if told else "found" if found else "damaged"] += 1
    assert min(ends[end] for end in ("error", "found", "damaged")) > 10


def other_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (x)")


SPOILT = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "no database": lambda path: path.write_text("mine\n" * 1000),
    "another database": other_database,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_kept_runs_that_cannot_be_read_are_one_error_and_stay(
    gradtide: Any, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    with closing(Kept(tmp_path / "out")) as keep:
        keep.add(gt.run(sample()))
    path = store_of(tmp_path / "out.incomplete")
    spoil(path)
    before = contents(path.parent)
    code, out, err = gradtide("compare", CH4, "-q", "-o", tmp_path / "out")
    assert (code, out, len(err.strip().splitlines())) == (3, "", 1)
    assert str(path) in err
    assert {**contents(path.parent), **before} == contents(path.parent)
    assert os.listdir(tmp_path) == ["out.incomplete"]
    # As the error says: what is moved elsewhere is in nobody's way.
    path.rename(tmp_path / "elsewhere")
    assert gradtide("compare", CH4, "-q", "-o", tmp_path / "out")[0] == 0
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]


def test_a_process_that_is_killed_leaves_its_finished_runs(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, gradtide as gt\n"
        "from gradtide.studies.keep import Kept; from gradtide.studies.run import sample\n"
        "Kept(pathlib.Path('out')).add(gt.run(sample())); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "out.incomplete" / "finished")) > 1
    keep = Kept(tmp_path / "out")
    found = keep.find(sample())
    assert found is not None
    assert found.summary["jobs"] == gt.run(sample()).summary["jobs"]
    keep.forget()
    assert os.listdir(tmp_path) == []


def test_a_run_that_ends_after_its_study_is_not_kept(tmp_path: Path) -> None:
    keep = Kept(tmp_path / "out")
    keep.close()
    keep.add(gt.run(sample()))
    assert os.listdir(tmp_path) == []


def test_runs_of_a_scenario_whose_name_is_no_unicode_are_kept(gradtide: Any, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.toml")
    path.write_text('[job.a]\nmodel = "alexnet"\nworkers = 2\n')
    assert gradtide("compare", path, "-q", "-o", tmp_path / "out", "--schedule", "fifo")[0] == 0
    assert sorted(os.listdir(tmp_path)) == [path.name, "out"]


def test_what_other_versions_kept_is_not_read_and_goes_with_the_unfinished_folder(
    gradtide: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "out.incomplete" / "finished"
    folder.mkdir(parents=True)
    name = gt.Scenario.load(CH4).sha256 + ".json.gz"
    for left in (name, f"{name}.damaged", f".{name}.01234567.partial", "0123456789abcdef.store"):
        (folder / left).write_bytes(b"of another version")
    assert gradtide("compare", CH4, "-q", "-o", tmp_path / "out")[::2] == (0, "")
    assert os.listdir(tmp_path) == ["out"]


# A run that cannot go on


@pytest.fixture
def bad_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the runs of which something holds end with an error."""
    run = studies_run.simulate

    def of(is_bad: Callable[[gt.Scenario], bool]) -> None:
        def chosen(scenario: gt.Scenario, *how: Any) -> gt.RunResult:
            if is_bad(scenario):
                raise gt.SimulationError("job `train` completes no measured iteration")
            return run(scenario, *how)

        monkeypatch.setattr(studies_run, "simulate", chosen)

    return of


def is_low(scenario: gt.Scenario, seed: int) -> bool:
    return scenario.seed == seed and bool(scenario.jobs) and scenario.jobs[0].bands != (0,)


def test_one_bad_seed_makes_a_study_unknown_and_does_not_end_it(
    gradtide: Any, tmp_path: Path, bad_run: Callable[..., None]
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(tiny_tenants()))
    bad_run(lambda scenario: is_low(scenario, 1))
    code, out, err = gradtide("tenants", tmp_path / "s.json", "--seeds", "3", "-o", tmp_path / "out", "--json")
    summary = json.loads(out)
    assert code == 0
    assert "warning: run seed1-low failed" in err
    assert summary["failed"] == {"seed1-low": "job `train` completes no measured iteration"}
    assert (summary["colour"], summary["verdict"], summary["seeds"]) == ("unknown", "unknown", [0, 1, 2])
    assert summary["iteration_time_ms"]["same"] is not None
    assert summary["iteration_time_ms"]["low"] is None
    assert len(os.listdir(tmp_path / "out" / "runs")) == 8
    assert "report.html" in os.listdir(tmp_path / "out")


def test_one_bad_run_makes_its_cell_of_a_map_unknown(tmp_path: Path, bad_run: Callable[..., None]) -> None:
    bad: list[gt.Scenario] = []
    whole = boundary(tiny_tenants(), **TINY_LOADS)

    def first_low(scenario: gt.Scenario) -> bool:
        if is_low(scenario, 0) and not bad:
            bad.append(scenario)
        return scenario in bad

    bad_run(first_low)
    study = boundary(tiny_tenants(), **TINY_LOADS)
    study.save(tmp_path / "out")
    [unknown] = [row for row in study.rows if row["colour"] == "unknown"]
    assert unknown["iteration_change_percent"] is None
    assert study.rows[1:] == whole.rows[1:]
    assert study.summary["failed"].keys() == {f"{unknown['cell']}/seed0-low"}
    assert len(os.listdir(tmp_path / "out" / "cells")) == len(study.rows) - 1


def test_one_bad_run_makes_its_policy_unknown(tmp_path: Path, bad_run: Callable[..., None]) -> None:
    bad_run(lambda scenario: bool(scenario.jobs[0].adaptive) and scenario.jobs[0].adaptive.policy == "deadline")
    study = policies(tiny_tenants(), ["deadline", "background"], seeds=(0, 1))
    study.save(tmp_path / "out")
    colours = {row["policy"]: row["colour"] for row in study.rows}
    assert (colours["deadline"], colours["background"] != "unknown") == ("unknown", True)


def test_a_study_in_which_no_run_can_go_on_is_an_error(bad_run: Callable[..., None]) -> None:
    bad_run(lambda scenario: True)
    with pytest.raises(gt.SimulationError, match="completes no measured iteration"):
        boundary(tiny_tenants(), **TINY_LOADS)
    bad_run(lambda scenario: bool(scenario.jobs))
    with pytest.raises(gt.SimulationError, match="completes no measured iteration"):
        tenants(tiny_tenants())
