"""Options that commands share: all commands that simulate a scenario of the user have them, with the same effect."""

import csv
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from gradtide import cli
from gradtide.cli.options import with_options

SHARED = {"set_", "seed", "engine", "fail_if", "estimate", "output", "as_json", "max_memory", "max_time"}
STUDY = """
[sweep]
scenario = "base.toml"
[sweep.grid]
"cluster.link.rate" = ["1Gbps", "10Gbps"]
"""
BASE = """
[job.train]
model = { layers = [{ name = "a", parameters = "4MB", forward = "1ms", backward = "2ms" }] }
workers = 2
[run]
seed = 5
"""
FLOWS = """
[traffic.web]
flows = [{ start = "0s", src = "h0", dst = "h1", bytes = "1MB" }]
[cluster]
topology = { kind = "star", hosts = 2 }
[run]
engine = "fluid"
duration = "1s"
"""
TIME = "jobs.train.iteration_time_ms.mean"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "flows.toml").write_text(FLOWS)
    return tmp_path


def rows(folder: str) -> list[dict[str, str]]:
    return list(csv.DictReader((Path(folder) / "rows.csv").read_text().splitlines()))


def commands() -> dict[str, set[str]]:
    """Return the options of every command and subcommand."""
    inner = {f"{outer} {name}": one for outer, many in cli.SUBCOMMANDS.items() for name, one in many.items()}
    return {
        name: set(inspect.signature(with_options(one)).parameters) for name, one in {**cli.COMMANDS, **inner}.items()
    }


def test_every_command_that_simulates_a_scenario_of_the_user_has_the_shared_options() -> None:
    given = {name: options for name, options in commands().items() if {"scenario", "study"} & options}
    assert len(given) > 10
    for name, options in given.items():
        # `merge` simulates nothing, and the `scenario` of `sweep list` selects rows. An emulation runs in real time.
        without = {"sweep merge": {"estimate"}, "emulate": {"estimate", "max_memory", "max_time"}}
        needed = SHARED - without.get(name, set())
        assert name == "sweep list" or needed <= options, (name, needed - options)


def test_a_change_holds_for_every_run_of_a_study(gradtide: Any, place: Path) -> None:
    changed = ["--set", "job.train.workers=4", "--seed", "9", "--engine", "packet"]
    assert gradtide("sweep", "study.toml", *changed, "-q", "-o", "all")[0] == 0
    for row in rows("all"):
        alone = ["--set", f"cluster.link.rate={row['cluster.link.rate']}", *changed]
        code, stdout, _ = gradtide("run", "base.toml", *alone, "--json")
        job = json.loads(stdout)["jobs"]["train"]
        assert (code, row["seed"]) == (0, "9")
        assert float(row[TIME]) == pytest.approx(job["iteration_time_ms"]["mean"], rel=1e-12)
    summary = json.loads((place / "all" / "summary.json").read_text())
    # Both commands reproduce the results.
    _, *again = summary["again"]["command"].split()
    assert gradtide(*again, "-q", "-o", "again")[0] == 0
    assert rows("again") == rows("all")
    _, *best = summary["ranking"][0]["again"].split()
    code, stdout, _ = gradtide(*best, "--json")
    assert code == 0
    assert json.loads(stdout)["jobs"]["train"]["iteration_time_ms"]["mean"] == summary["ranking"][0]["figure"]


def test_the_seeds_of_a_study_begin_at_the_seed_of_the_command_line(gradtide: Any, place: Path) -> None:
    (place / "study.toml").write_text(STUDY.replace("[sweep.grid]", "seeds = 2\n[sweep.grid]"))
    for change in (["--seed", "9"], ["--set", "run.seed=9"]):
        assert gradtide("sweep", "study.toml", *change, "-q", "-o", "all")[0] == 0
        assert [row["seed"] for row in rows("all")] == ["9", "10", "9", "10"]


@pytest.mark.parametrize(
    ("change", "option", "code"),
    [
        (["--set", "run.sed=1"], "--set", "GT012"),
        (["--engine", "pipes"], "--engine", "GT013"),
        (["--set", "job.train.workers=0"], "--set", "GT014"),
        (["--set", "cluster.link.rate=1Gbps"], None, "GT103"),
    ],
)
@pytest.mark.parametrize("command", [["sweep"], ["sweep", "merge"]], ids=" ".join)
def test_a_wrong_change_names_its_option(
    gradtide: Any, place: Path, command: list[str], change: list[str], option: str | None, code: str
) -> None:
    status, stdout, _ = gradtide(*command, "study.toml", *change, "--json")
    [error] = json.loads(stdout)["errors"]
    assert (status, error["code"], error["option"]) == (2, code, option)


def test_a_study_fails_by_the_figures_of_its_runs(gradtide: Any, place: Path) -> None:
    limits = {"iteration_time_ms>20": 1, "iteration_time_ms>2000": 0, "speed_up<0": 0, "mean_fct_ms>1": 1}
    for check, expected in limits.items():
        for command in (["sweep"], ["sweep", "merge"]):
            code, _, stderr = gradtide(*command, "study.toml", "-q", "--store", "runs", "--fail-if", check)
            assert (code, "check failed" in stderr) == (expected, bool(expected)), (command, check, stderr)
    # 4 MB at 1 Gbit/s take 32 ms, at 10 Gbit/s 3.2 ms: only the run at 1 Gbit/s is too slow.
    _, _, stderr = gradtide("sweep", "study.toml", "-q", "--fail-if", "iteration_time_ms>20")
    assert [line for line in stderr.splitlines() if "1Gbps" in line]
    assert not [line for line in stderr.splitlines() if "10Gbps" in line]
    code, _, stderr = gradtide("sweep", "study.toml", "-q", "--fail-if", "iteration_time>20")
    assert code == 2
    assert "iteration_time_ms" in stderr


def test_refused_runs_outweigh_a_failed_check(gradtide: Any, place: Path) -> None:
    (place / "study.toml").write_text(STUDY.replace('"10Gbps"', '"10Gb"'))
    code, _, stderr = gradtide("sweep", "study.toml", "-q", "--fail-if", "iteration_time_ms>20")
    assert code == 3
    assert "check failed: iteration_time_ms>20" in stderr


def test_no_check_passes_for_lack_of_its_figure(gradtide: Any, place: Path) -> None:
    for check, expected in (("mean_fct_ms>0.5", 1), ("mean_fct_ms>5", 0), ("iteration_time_ms>5", 1)):
        assert gradtide("run", "flows.toml", "--fail-if", check)[0] == expected


def test_a_shard_has_no_checks(gradtide: Any, place: Path) -> None:
    options = ["--shard", "1/2", "--store", "runs", "--fail-if", "iteration_time_ms>20"]
    code, _, stderr = gradtide("sweep", "study.toml", *options)
    assert (code, (place / "runs").exists()) == (2, False)
    assert "--fail-if" in stderr
