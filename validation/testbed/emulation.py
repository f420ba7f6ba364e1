"""Emulations on an idle machine: how late packets leave, and PCN on real packets with and without announcements.

    python validation/testbed/emulation.py                 # all; needs root, and 25 minutes
    python validation/testbed/emulation.py --only lateness
    python validation/testbed/emulation.py --only pcn --pairs 10

Writes data/emulation.csv beside this file: a row for each run. It fails if a bar is missed. A loaded machine misses the
bars of lateness: the switch needs a processor of its own.
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path

import gradtide as gt
from gradtide.intervals import mean_interval

DATA = Path(__file__).parent / "data" / "emulation.csv"
COLUMNS = ("case", "run", "figure", "value")
STAR = """
[cluster]
topology = {{ kind = "star", hosts = 4 }}
link = {{ rate = "{rate}", delay = "100us" }}
queue = {{ kind = "fifo", capacity = "100pkt" }}
transport = {{ kind = "cubic", segment = "1446B", timers = "linux" }}

[traffic.long]
flows = [{flows}]

[run]
engine = "packet"
duration = "10s"
"""
FLOWS = (
    '{ start = "0s", src = "h0", dst = "h1", bytes = "1TB" }',
    '{ start = "0s", src = "h2", dst = "h3", bytes = "1TB" }',
)
BARS_US = {("1Gbps", 2): {"p50_us": 5.0, "p99_us": 20.0, "p999_us": 100.0}, ("2Gbps", 1): {"p99_us": 50.0}}
"""Largest lateness by rate of hosts' links and number of flows, in us. A second flow at 2 Gbit/s is refused."""
PAPER = {"start_queue_packets": (35.0, 5.0), "longest_queue_packets": (54.8, 44.1)}
"""Figure 9a of Kang et al. (2021): without and with announcements."""


def lateness(rows: list[tuple[str, int, str, float]]) -> bool:
    """Measure how late packets leave at each rate; return whether the bars are met."""
    is_met = True
    for (rate, count), bars in BARS_US.items():
        # The bars, not the limit of a run, judge here.
        scenario = gt.Scenario.from_toml(STAR.format(rate=rate, flows=", ".join(FLOWS[:count])))
        result = gt.emulate(scenario, max_late=1.0, compares=True)
        found = result.summary["lateness"]
        rows += [(f"lateness at {rate}", 0, name, value) for name, value in found.items()]
        differing = result.summary["differing_decisions"]
        rows.append((f"lateness at {rate}", 0, "differing_decisions", differing))
        for name, bar in bars.items():
            is_met &= found[name] < bar
            print(f"{rate}: {name} {found[name]:.1f}, bar {bar:g}")
        is_met &= differing == 0
        print(f"{rate}: a replay in the simulator decides otherwise on {differing} packets")
    return is_met


def pcn(pairs: int, rows: list[tuple[str, int, str, float]]) -> bool:
    """Run `paper/pcn` with and without announcements; return whether every figure falls, as in the paper."""
    figures = ("start_queue_packets", "longest_queue_packets", "burst_ms", "retransmits")
    means: dict[tuple[str, bool], list[float]] = {}
    for pair in range(pairs):
        # Alternately first, so that a drift of the machine does not favour one of them.
        for is_announced in (True, False) if pair % 2 else (False, True):
            scenario = gt.Scenario.load("paper/pcn").set({"traffic.worker.announce": is_announced})
            bursts = gt.emulate(scenario, max_late=0.01).bursts.to_dicts()
            for figure in figures:
                values = [row[figure] for row in bursts if row[figure] is not None]
                mean = statistics.fmean(values)
                means.setdefault((figure, is_announced), []).append(mean)
                rows.append((f"pcn {'with' if is_announced else 'without'} announcements", pair, figure, mean))
    is_met = True
    for figure in figures:
        without, with_pcn = means[figure, False], means[figure, True]
        differences = [after - before for before, after in zip(without, with_pcn, strict=True)]
        around = mean_interval(differences)
        published = f"; published {PAPER[figure][0]:g} -> {PAPER[figure][1]:g}" if figure in PAPER else ""
        text = f"{figure}: {statistics.fmean(without):.1f} -> {statistics.fmean(with_pcn):.1f}"
        print(f"{text}, difference {around}{published}")
        is_met &= around is not None and around[1] < 0
    return is_met


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("lateness", "pcn"))
    parser.add_argument("--pairs", type=int, default=10)
    given = parser.parse_args()
    rows: list[tuple[str, int, str, float]] = []
    is_met = True
    if given.only != "pcn":
        is_met &= lateness(rows)
    if given.only != "lateness":
        is_met &= pcn(given.pairs, rows)
    DATA.parent.mkdir(exist_ok=True)
    with DATA.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
