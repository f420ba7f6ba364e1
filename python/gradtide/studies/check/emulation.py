"""Reads what an emulation on real packets measured, for the comparison with a simulation of the same scenario."""

import csv
import json
import statistics
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
Row = Mapping[str, Any]
TABLES = ("links", "flows", "bursts", "iterations")
BURSTS = {
    "start_queue_packets": "queue at the start of a burst, packets",
    "longest_queue_packets": "longest queue during a burst, packets",
    "mean_wait_us": "mean wait of a packet during a burst, us",
    "burst_ms": "burst, ms",
    "completion_ms": "burst with its announcement and setup, ms",
}
"""Columns of `bursts.csv` whose means are compared -> name and unit of the figure."""
_ABSENT = (None, "")


@dataclass(frozen=True)
class Emulated:
    """Measurements of an emulation.

    Attributes:
        flows: time in us until each flow had arrived, by tenant and index; only flows that have arrived.
        iterations: time of each iteration in us, by index.
        figures: the result of `figures`, applied to the tables of the emulation.
        summary: content of the emulation's `summary.json`.
    """

    flows: Mapping[tuple[str, int], float]
    iterations: Mapping[int, float]
    figures: Mapping[str, float]
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
    """Read the scenario and the measurements of an emulation from its folder.

    Raises:
        TraceError: if a table is damaged.
    """
    scenario = Scenario.load(str(path / RESOLVED))
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        tables = {name: _rows(path / f"{name}.csv") for name in TABLES}
        return scenario, _emulated(tables, summary)
    except (KeyError, ValueError) as error:
        raise TraceError(f"{path}: summary.json or a table is damaged: {error}") from None


def of_run(scenario: Scenario, progress: Callable[[float], object] | None) -> Emulated:
    """Emulate a scenario."""
    result: EmulationResult = emulate(scenario, progress=progress)
    return _emulated({name: getattr(result, name).to_dicts() for name in TABLES}, result.summary)


def figures(links: Sequence[Row], flows: Sequence[Row], bursts: Sequence[Row]) -> dict[str, float]:
    """Return the figures that both a simulation and an emulation have, by name and unit.

    Figures of bursts are means over all bursts, and rates are means over the unfinished flows of each tenant. A figure
    without values is left out.
    """
    found = {
        "drops of all queues": sum(float(row["drops"]) for row in links),
        "marks of all queues": sum(float(row["ce_marks"]) for row in links),
        "highest utilisation of a link, %": max((100 * float(row["utilisation"]) for row in links), default=0.0),
    }
    rates: dict[str, list[float]] = {}
    for row in flows:
        if row["received_us"] in _ABSENT and row["mean_rate_bps"] not in _ABSENT:
            rates.setdefault(f"rate of unfinished flows of {row['traffic']}, Mbit/s", []).append(
                float(row["mean_rate_bps"]) / 1e6
            )
    for column, name in BURSTS.items():
        rates[name] = [float(row[column]) for row in bursts if row[column] not in _ABSENT]
    return found | {name: statistics.fmean(values) for name, values in rates.items() if values}


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _emulated(tables: Mapping[str, Sequence[Row]], summary: Mapping[str, Any]) -> Emulated:
    arrived = {
        (row["traffic"], int(row["flow"])): float(row["received_us"])
        for row in tables["flows"]
        if row["received_us"] not in _ABSENT
    }
    iterations = {int(row["iteration"]): float(row["time_us"]) for row in tables["iterations"]}
    return Emulated(arrived, iterations, figures(tables["links"], tables["flows"], tables["bursts"]), summary)
