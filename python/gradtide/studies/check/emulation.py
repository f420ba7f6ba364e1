"""An emulation on real packets beside the simulation of the same scenario."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide.errors import TraceError
from gradtide.scenario import Scenario
from gradtide.studies.emulate import EmulationResult, emulate
from gradtide.studies.emulate.results import SCHEMA
from gradtide.studies.folder import RESOLVED

NAME = "emulation"


@dataclass(frozen=True)
class Emulated:
    """What an emulation measured.

    Attributes:
        flows: time in us until each flow had arrived, by tenant and number, of those that have.
        iterations: time of each iteration in us, by number.
        summary: its figures.
    """

    flows: Mapping[tuple[str, int], float]
    iterations: Mapping[int, float]
    summary: Mapping[str, Any]

    @property
    def notes(self) -> list[str]:
        """What limits the comparison."""
        late = self.summary["lateness"]
        return [
            "Hosts of the emulation have Linux's TCP, and processors that they share with one another and the switch.",
            f"Packets left {late['p50_us']:.1f} us after their time (median; 99th percentile {late['p99_us']:.1f} us).",
        ]


def is_emulation(path: str) -> bool:
    """Return whether a path is the folder of an emulation."""
    summary = Path(path) / "summary.json"
    try:
        return bool(json.loads(summary.read_text(encoding="utf-8")).get("schema") == SCHEMA)
    except (OSError, ValueError, AttributeError):
        return False


def of_folder(path: Path) -> tuple[Scenario, Emulated]:
    """Read the folder of an emulation: its scenario, and what it measured.

    Raises:
        TraceError: if a table is damaged.
    """
    scenario = Scenario.load(str(path / RESOLVED))
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    try:
        return scenario, _emulated(_rows(path / "flows.csv"), _rows(path / "iterations.csv"), summary)
    except (KeyError, ValueError) as error:
        raise TraceError(f"{path}: flows.csv or iterations.csv is damaged: {error}") from None


def of_run(scenario: Scenario, progress: Callable[[float], object] | None) -> Emulated:
    """Emulate a scenario."""
    result: EmulationResult = emulate(scenario, progress=progress)
    return _emulated(result.flows.to_dicts(), result.iterations.to_dicts(), result.summary)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _emulated(
    flows: Sequence[Mapping[str, Any]], iterations: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Emulated:
    arrived = {
        (row["traffic"], int(row["flow"])): float(row["received_us"])
        for row in flows
        if row["received_us"] not in (None, "")
    }
    return Emulated(arrived, {int(row["iteration"]): float(row["time_us"]) for row in iterations}, summary)
