"""A small scenario, studies of it and their rows, for the tests of sweeps."""

import csv
from pathlib import Path
from typing import Any

import pytest

from gradtide.studies.sweep import Study, executors

BASE = """
[job.train]
model = { kind = "thesis", layers = 4, time = "1ms" }
workers = 2
iterations = 2
compute = { noise = 0.05 }
[cluster]
link = { rate = "10Gbps", delay = "10us" }
"""
GRID = '[sweep]\nscenario = "base.toml"\nseeds = 2\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n'
ZIP = '[sweep.zip]\n"job.train.workers" = [2, 4]\n"cluster.link.delay" = ["1us", "2us"]\n'


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
