"""Times of collectives within a node: fits the values of presets/clusters.toml again, and compares with measurements.

    python validation/clusters.py [--tables DIR]

Tables (validation/llm, or DIR with files of the same names):

- vtrain_allreduce_a100: nccl-tests, all-reduce on 2, 4 and 8 A100 of one node (VIA-Research/vTrain at f8dda84,
  trace/a100).
- busbw: nccl-tests and torch on 8 A100 and 8 H200 of one node (stas00/ml-engineering at 744d01e, network).

The time of a ring (crates/train/src/collective/levels.rs; crates/train/tests/classes.rs tests it against the engines):

    T = launch + rounds · 2 · delay + bytes through a port / (efficiency · rate of the port)

The A100 is fitted on all rows of the first table. Of the H200, the efficiency is fitted on the three large rings and
the launch on the small ones, with the A100's delay. All other rows are predictions.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import numpy as np  # noqa: E402

from gradtide import presets, units  # noqa: E402

TABLES = ROOT / "validation" / "llm"
TURNS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""Number of times that a ring sends the buffer around."""
SMALL_BYTES, LARGE_BYTES = 2**20, 2**34


@dataclass(frozen=True)
class Row:
    """A measured collective of `gpus` GPUs of one node."""

    gpus: int
    collective: str
    size: int
    measured_s: float
    algorithm: str = ""

    @property
    def rounds(self) -> int:
        """Number of sequential messages."""
        return TURNS[self.collective] * (self.gpus - 1)

    @property
    def sent(self) -> float:
        """Bytes that a port sends."""
        return self.rounds * self.size / self.gpus


@dataclass(frozen=True)
class Node:
    """The node of a preset; seconds, and bytes per second."""

    rate: float
    efficiency: float
    delay_s: float
    launch_s: float

    def time(self, row: Row) -> float:
        """Return the time of a ring."""
        return self.launch_s + row.rounds * 2 * self.delay_s + row.sent / (self.efficiency * self.rate)

    def errors(self, rows: Sequence[Row]) -> list[float]:
        """Return the relative error of the prediction of each row."""
        return [self.time(row) / row.measured_s - 1 for row in rows]


def node_of(name: str) -> Node:
    """Return the node of a preset."""
    node: dict[str, Any] = presets.document("clusters.toml")[name]["node"]
    link = node["scale_up"]
    rate, delay_ps = units.parse_rate(link["rate"]) / 8, units.parse_time(link["delay"])
    return Node(rate, link["efficiency"], delay_ps / 1e12, units.parse_time(node["launch"]) / 1e12)


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the measured rows by device and table."""
    with (folder / "vtrain_allreduce_a100.csv").open(newline="", encoding="utf-8") as text:
        found = {
            "A100 vtrain": [
                Row(int(row["gpus"]), "all-reduce", int(row["bytes"]), float(row["in_place_us"]) / 1e6)
                for row in csv.DictReader(text)
            ]
        }
    with (folder / "busbw.csv").open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            if row["nodes"] == "1" and row["collective"] in TURNS:
                gpus, size = int(row["gpus"]), int(row["bytes"])
                # Where only the bus bandwidth is published, the time follows from its definition.
                sent = TURNS[row["collective"]] * (gpus - 1) * size / gpus
                measured_s = float(row["time_us"]) / 1e6 if row["time_us"] else sent / float(row["busbw_gbs"]) / 1e9
                what = Row(gpus, row["collective"], size, measured_s, row["algorithm"])
                found.setdefault(row["hardware"].split()[0].removeprefix("8x") + " busbw", []).append(what)
    return found


def fitted(rows: Sequence[Row], rate: float) -> Node:
    """Return launch, delay and efficiency by least squares of the relative errors."""
    terms = np.array([(1, 2 * row.rounds, row.sent / rate) for row in rows])
    measured = np.array([row.measured_s for row in rows])
    launch_s, delay_s, slowness = np.linalg.lstsq(terms / measured[:, None], np.ones(len(rows)), rcond=None)[0]
    return Node(rate, 1 / slowness, delay_s, launch_s)


def fitted_hopper(rows: Sequence[Row], of_a100: Node, rate: float) -> Node:
    """Return the efficiency of large rings, and the launch that small ones imply with the A100's delay."""
    large = [row for row in rows if row.size == LARGE_BYTES and row.algorithm.startswith("Ring")]
    small = [row for row in rows if row.size <= SMALL_BYTES and row.algorithm.startswith("Ring")]
    node = Node(rate, fmean(row.sent / row.measured_s for row in large) / rate, of_a100.delay_s, 0.0)
    return replace(node, launch_s=fmean(row.measured_s - node.time(row) for row in small))


def described(errors: Sequence[float]) -> str:
    """Return number, mean absolute error, bias and largest error as text."""
    worst = max(errors, key=abs)
    mean = fmean(map(abs, errors))
    return f"{len(errors):3} rows  mean error {mean:6.1%}  bias {fmean(errors):+6.1%}  worst {worst:+6.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the fitted values, those of the presets, and the errors of every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES)
    tables = read(parser.parse_args(arguments).tables)
    a100, h200 = node_of("a100-hgx"), node_of("h200-hgx")
    of_a100 = fitted(tables["A100 vtrain"], a100.rate)
    of_h200 = fitted_hopper(tables["H200 busbw"], a100, h200.rate)
    for name, fit, preset in (("a100-hgx", of_a100, a100), ("h200-hgx", of_h200, h200)):
        print(name)
        for what, node in (("fitted", fit), ("preset", preset)):
            launch_us, delay_us = 1e6 * node.launch_s, 1e6 * node.delay_s
            print(f"  {what}  launch {launch_us:5.1f} us  delay {delay_us:5.2f} us  efficiency {node.efficiency:.3f}")
    h200_rows = tables["H200 busbw"]
    scored = {
        "A100, vTrain (fitted)": (a100, tables["A100 vtrain"]),
        "A100, ml-engineering (predicted)": (a100, tables["A100 busbw"]),
        "H200, rings (fitted)": (h200, [row for row in h200_rows if row.algorithm.startswith("Ring")]),
        "H200, sums in the switch (left out)": (h200, [row for row in h200_rows if row.algorithm.startswith("NVLS")]),
    }
    for title, (node, rows) in scored.items():
        print(f"{title:36}{described(node.errors(rows))}")
    by_size = sorted(tables["A100 vtrain"], key=lambda row: (row.gpus, row.size))
    for gpus in sorted({row.gpus for row in by_size}):
        errors = a100.errors([row for row in by_size if row.gpus == gpus])
        print(f"  {gpus} A100{'':26}{described(errors)}")


if __name__ == "__main__":
    main()
