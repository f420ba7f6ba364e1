"""Inputs that somebody typed wrong: each error names the option or argument, what is wrong and how to fix it."""

import json
from pathlib import Path
from typing import Any

import pytest

BASE = """
[job.train]
model = { layers = [{ name = "a", parameters = "4MB", forward = "1ms", backward = "2ms" }] }
workers = 2
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "cut.csv").write_text("layer,forward_us,backward_us,parameter_bytes\nconv,1,2\n")
    (tmp_path / "one.csv").write_text("bytes,time_us\n1000,5\n")
    return tmp_path


WRONG = {
    # A shell passes an empty text for a variable that is not set.
    "empty output": (["run", "base.toml", "-o", ""], ["-o/--output"]),
    "empty rate": (["run", "base.toml", "--rate", ""], ["--rate"]),
    "empty change": (["compare", "base.toml", "--set", ""], ["--set"]),
    "empty name": (["run", ""], ["scenario"]),
    "letter for a digit": (["run", "resnet5O"], ["resnet50"]),
    "device with a letter": (["run", "resnet50", "--device", "V10O"], ["--device", "V100"]),
    "model with a letter": (["compare", "base.toml", "--model", "resnet50,resnet5O"], ["--model", "did you mean"]),
    "empty JSON": (["run", "empty.json"], ["empty.json is empty"]),
    "cut row": (["run", "cut.csv"], ["cut.csv:2"]),
    "class without unit": (["tenants", "paper/gao2020-ch5", "--classes", "small=1"], ["--classes", "unit"]),
    "class twice": (["tenants", "paper/gao2020-ch5", "--classes", "small=1kB,small=2kB"], ["--classes", "twice"]),
    "rate of zero": (["bursts", "thresholds", "0Mbps", "13ms"], ["RATE"]),
    "rate without unit": (["bursts", "thresholds", "100", "13ms"], ["RATE", "unit"]),
    "time without unit": (["bursts", "thresholds", "100Mbps", "13"], ["TIME", "unit"]),
    "share of 2": (["bursts", "thresholds", "100Mbps", "13ms", "--k", "2"], ["--k", "at most 1"]),
    "collective twice": (["collectives", "base.toml", "--collectives", "ring,ring"], ["--collectives", "twice"]),
    "group of none": (["collectives", "base.toml", "--collectives", "hierarchical+group=0"], ["hierarchical+group=0"]),
    "one size": (["calibrate", "one.csv"], ["1 size of"]),
    "infinite limit": (["run", "base.toml", "--fail-if", "iteration_time_ms>1e999"], ["--fail-if"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_refused_with_its_name(
    gradtide: Any, here: Path, arguments: list[str], words: list[str]
) -> None:
    before = sorted(here.rglob("*"))
    code, stdout, stderr = gradtide(*arguments)
    assert (code, stdout) == (2, ""), stderr
    for word in words:
        assert word in stderr
    assert sorted(here.rglob("*")) == before


def test_a_cut_row_is_the_only_fault_of_its_table(gradtide: Any, here: Path) -> None:
    code, stdout, _ = gradtide("run", "cut.csv", "--json")
    assert (code, [error["line"] for error in json.loads(stdout)["errors"]]) == (2, [2])


def test_only_paths_in_a_scenario_are_relative_to_it(gradtide: Any, here: Path) -> None:
    """A file that is named on the command line is relative to the current folder."""
    for arguments in (
        ["order", "none.json"],
        ["buy", "base.toml", "--prices", "none.toml"],
        ["run", "resnet50", "--schedule", "file:none.csv"],
        ["run", "none.toml"],
    ):
        code, _, stderr = gradtide(*arguments)
        assert (code, "there is no file" in stderr, "relative to the scenario" in stderr) == (2, True, False), stderr
    (here / "far.toml").write_text(BASE.split("model")[0] + 'model = "nowhere.csv"\nworkers = 2\n')
    code, _, stderr = gradtide("run", "far.toml")
    assert (code, "relative to the scenario file" in stderr) == (2, True), stderr
