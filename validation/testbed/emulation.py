"""Emulations on an idle machine: lateness, PCN, Linux's TCP beside the engine's, and training beside a flow.

    python validation/testbed/emulation.py                 # all; needs root, and 35 minutes
    python validation/testbed/emulation.py --only lateness
    python validation/testbed/emulation.py --only pcn --pairs 10
    python validation/testbed/emulation.py --only tcp
    python validation/testbed/emulation.py --only training

Writes data/emulation.csv beside this file: a row for each figure of each run. `--only` keeps the rows of other cases.
It fails if a bar is missed. A loaded machine misses the bars of lateness: the switch needs a processor of its own.
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path

import gradtide as gt
from gradtide.intervals import mean_interval

DATA = Path(__file__).parent / "data" / "emulation.csv"
MAX_LATE = 0.05
"""Share of late packets at which a run ends, except where lateness itself is measured."""
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


def lateness(rows: list[tuple[str, int, str, float]], _pairs: int) -> bool:
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


def pcn(rows: list[tuple[str, int, str, float]], pairs: int) -> bool:
    """Run `paper/pcn` with and without announcements; return whether every figure falls, as in the paper."""
    figures = ("start_queue_packets", "longest_queue_packets", "burst_ms", "retransmits")
    means: dict[tuple[str, bool], list[float]] = {}
    for pair in range(pairs):
        # Alternately first, so that a drift of the machine does not favour one of them.
        for is_announced in (True, False) if pair % 2 else (False, True):
            scenario = gt.Scenario.load("paper/pcn").set({"traffic.worker.announce": is_announced})
            bursts = gt.emulate(scenario, max_late=MAX_LATE).bursts.to_dicts()
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


TCP = """
[cluster]
topology = {{ kind = "star", hosts = 4 }}
link = {{ rate = "100Mbps", delay = "500us" }}
queue = {queue}
transport = {{ kind = "{kind}", timers = "linux", recovery = "rack"{linux} }}

[traffic.web]
flows = [
    {{ start = "0s", src = "h0", dst = "h1", bytes = "20MB" }},
    {{ start = "{offset}", src = "h2", dst = "h1", bytes = "20MB" }},
]

[run]
engine = "packet"
duration = "20s"
"""
OFFSETS = ("10ms", "100ms", "230ms", "400ms", "610ms", "900ms")
QUEUES = {
    "fifo": '{ kind = "fifo", capacity = "60pkt" }',
    "ecn": '{ kind = "ecn", capacity = "200pkt", threshold = "30pkt" }',
}
COMPLETION, COUNTS = 0.03, 1.5
"""Bars: relative difference of completion times, and ratio of drops or marks."""


def tcp(rows: list[tuple[str, int, str, float]], _pairs: int) -> bool:
    """Compare two flows into one host: Linux's TCP through the emulated queue, and the engine's through the same."""
    is_met = True
    for name, queue in QUEUES.items():
        for kind in ("cubic", "newreno"):
            chosen = kind + ("+ecn" if name == "ecn" else "")
            linux = ", byte_counting = true"
            if kind == "cubic":
                linux += ", hystart = true, as_linux = true"
            sides: dict[str, list[tuple[float, float]]] = {"simulated": [], "emulated": []}
            for run, offset in enumerate(OFFSETS):
                scenario = gt.Scenario.from_toml(TCP.format(queue=queue, kind=chosen, linux=linux, offset=offset))
                for side, result in (
                    ("simulated", gt.run(scenario)),
                    ("emulated", gt.emulate(scenario, max_late=MAX_LATE)),
                ):
                    times = [row["received_us"] / 1e6 for row in result.flows.to_dicts()]
                    count = float(sum(result.links["ce_marks" if name == "ecn" else "drops"]))
                    sides[side].append((statistics.fmean(times), count))
                    rows.append((f"{chosen} {side}", run, "completion_s", statistics.fmean(times)))
                    rows.append((f"{chosen} {side}", run, "marks" if name == "ecn" else "drops", count))
            means = {side: [statistics.fmean(column) for column in zip(*of, strict=True)] for side, of in sides.items()}
            (ours_s, ours), (theirs_s, theirs) = means["simulated"], means["emulated"]
            what = "marks" if name == "ecn" else "drops"
            print(f"{chosen}: completion simulated {ours_s:.3f} s, emulated {theirs_s:.3f} s")
            print(f"{chosen}: {what} simulated {ours:.0f}, emulated {theirs:.0f}")
            is_met &= abs(ours_s / theirs_s - 1) < COMPLETION
            is_met &= 1 / COUNTS < ours / max(theirs, 1.0) < COUNTS
    return is_met


TRAINING = """
[cluster]
topology = { kind = "star", hosts = 5 }
link = { rate = "100Mbps", delay = "100us" }
queue = { kind = "pfifo_fast", capacity = "1000pkt" }
transport = { kind = "cubic", timers = "linux", recovery = "rack", hystart = true, byte_counting = true }

[job.train]
workers = 4
iterations = 20
model = { kind = "thesis", layers = 10, time = "200ms", size = "4MB" }
schedule = { fusion = "1MB" }

[traffic.web]
flows = [{ start = "3s", src = "h4", dst = "h1", bytes = "60MB" }]

[run]
engine = "packet"
duration = "40s"
"""


def training(rows: list[tuple[str, int, str, float]], _pairs: int) -> bool:
    """Train beside a flow, in its band and in the low band; return whether the low band leaves the flow its rate."""
    base = gt.Scenario.from_toml(TRAINING)
    alone = gt.emulate(base.set({"job.train.iterations": 1}), max_late=MAX_LATE).flows.to_dicts()[0]["mean_rate_bps"]
    rates = {}
    for band in ("high", "low"):
        scenario = base.set({"job.train.priority": band})
        for side, result in (("simulated", gt.run(scenario)), ("emulated", gt.emulate(scenario, max_late=MAX_LATE))):
            times = [row["time_us"] / 1e3 for row in result.iterations.to_dicts()]
            rate = result.flows.to_dicts()[0]["mean_rate_bps"]
            rates[side, band] = rate
            found = {"iteration_ms": statistics.fmean(times), "flow_mbps": rate / 1e6}
            rows += [(f"training, {band} band, {side}", 0, name, value) for name, value in found.items()]
            print(
                f"job in the {band} band, {side}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            )
    print(f"flow alone: {alone / 1e6:.2f} Mbit/s")
    rows.append(("training", 0, "flow alone, Mbit/s", alone / 1e6))
    return bool(rates["emulated", "low"] > 0.97 * alone)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=tuple(CASES))
    parser.add_argument("--pairs", type=int, default=10)
    given = parser.parse_args()
    rows: list[tuple[str, int, str, float]] = []
    is_met = True
    for name, measure in CASES.items():
        if given.only in (None, name):
            is_met &= measure(rows, given.pairs)
    DATA.parent.mkdir(exist_ok=True)
    # Rows of cases that were not measured now are kept.
    measured = {case for case, *_ in rows}
    known = list(csv.reader(DATA.open(encoding="utf-8", newline="")))[1:] if DATA.exists() else []
    kept = [row for row in known if row[0] not in measured]
    with DATA.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *kept, *rows])
    sys.exit(not is_met)


CASES = {one.__name__: one for one in (lateness, pcn, tcp, training)}


if __name__ == "__main__":
    main()
