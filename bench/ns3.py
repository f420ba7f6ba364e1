"""The packet engine beside ns-3: packet-hops per CPU second of both on the same scenario, in one run on one machine.

    python bench/ns3.py [--duration SECONDS] [--best-of N] [--no-history]

The scenario is run 0 of the thesis's study at 23 flows/s per host, its job in the flows' band (preset
paper/gao2020-ch5), for a few simulated seconds. A packet-hop is one packet put on one link: data, ACK or control. ns-3
runs the program of `gradtide check`, which is built here against libns3-dev (3.37, `-O3`); if that is missing, the
benchmark exits with a message. It prints a table, appends one JSON line to bench/history.jsonl, and asserts nothing.
"""

import argparse
import hashlib
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from run import remember

from gradtide import Scenario
from gradtide.studies.check import ns3

HOSTS = 8
RATE_PER_HOST = 23  # flows per second
SCHEDULE_S = 12  # what the thesis simulates
# First digits of the SHA-256 of its schedule of run 0: the file must be the very one.
SCHEDULE_DIGEST = "875275afa1f8d463"
# The web-search CDF of the thesis: bytes, percent.
SIZES = (
    (4_000, 0),
    (10_000, 15),
    (20_000, 20),
    (30_000, 30),
    (50_000, 40),
    (80_000, 53),
    (200_000, 60),
    (1_000_000, 70),
    (2_000_000, 80),
    (5_000_000, 90),
    (10_000_000, 97),
    (30_000_000, 100),
)


def main() -> None:
    """Build, run both, print, append."""
    parser = argparse.ArgumentParser(description="The packet engine beside ns-3; asserts nothing.")
    parser.add_argument("--duration", type=float, default=3, metavar="SECONDS", help="simulated time (3)")
    parser.add_argument("--best-of", type=int, default=3, metavar="N", help="runs of gradtide (3); ns-3 runs once")
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history.jsonl")
    options = parser.parse_args()
    try:
        program = ns3.build(None, print)
    except ns3.NS3MissingError as error:
        print(f"bench/ns3.py: skipped, {error}")
        return
    with tempfile.TemporaryDirectory() as folder:
        flows = Path(folder) / "flows.csv"
        flows.write_text(schedule(options.duration), encoding="utf-8")
        ours = run_gradtide(flows, options.duration, options.best_of)
        if ours is None:
            return
        theirs = run_ns3(program, flows, options.duration)
    ratio = ours["packet_hops_per_cpu_s"] / theirs["packet_hops_per_cpu_s"]
    print(f"R16_f23_same, run 0, {options.duration:g} simulated seconds")
    print(f"{'':10}{'packet-hops':>14}{'CPU s':>10}{'packet-hops per CPU s':>24}")
    for name, run in (("ns-3.37", theirs), ("gradtide", ours)):
        speed = run["packet_hops_per_cpu_s"] / 1e6
        print(f"{name:10}{run['packet_hops']:>14,}{run['cpu_s']:>10.2f}{speed:>16.3f} million")
    print(f"{'ratio':10}{ratio:>40.0f} times")
    if not options.no_history:
        name = f"ns-3 side by side, R16_f23_same, {options.duration:g} s"
        remember(name, {"ns3": theirs, "gradtide": ours, "ratio": ratio})


def run_gradtide(flows: Path, duration_s: float, best_of: int) -> dict[str, Any] | None:
    """Return packet-hops and the least CPU time of several runs; None if gradtide cannot run it."""
    command = [sys.executable, "-m", "gradtide", "run", "paper/gao2020-ch5", "--json"]
    command += [word for key, value in keys(flows, duration_s).items() for word in ("--set", f"{key}={value}")]
    costs = []
    for _ in range(best_of):
        done = subprocess.run(command, cwd=flows.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            print(f"bench/ns3.py: skipped, gradtide does not run this (exit {done.returncode}):\n{said}")
            return None
        costs.append(json.loads(done.stdout)["cost"])
    cost = min(costs, key=lambda cost: cost["cpu_s"])
    return per_second(cost["packet_hops"], cost["cpu_s"])


def keys(flows: Path, duration_s: float) -> dict[str, str]:
    """Return the changes to the preset."""
    margins = {"run.warmup": "0s", "run.cooldown": "0s"}
    # As in ns-3.37.
    recovery = {"cluster.transport.recovery": "sack"}
    return {"run.duration": f"{duration_s * 1e3:g}ms", **margins, **recovery, "traffic.web.replay": str(flows)}


def run_ns3(program: Path, flows: Path, duration_s: float) -> dict[str, Any]:
    """Return ns-3's results and costs of the scenario."""
    scenario = Scenario.load("paper/gao2020-ch5").set(keys(flows, duration_s))
    summary = ns3.measure(scenario, program, round(duration_s * 10**12)).summary
    return {
        **per_second(summary["packet_hops"], summary["cpu_s"]),
        "events": summary["events"],
        "peak_rss_mb": summary["peak_rss_kb"] / 1024,
    }


def per_second(packet_hops: int, cpu_s: float) -> dict[str, Any]:
    """Return the three compared figures."""
    return {"packet_hops": packet_hops, "cpu_s": cpu_s, "packet_hops_per_cpu_s": packet_hops / cpu_s}


def schedule(duration_s: float) -> str:
    """Return the flows of the thesis's run 0 that start before `duration_s`, as CSV.

    It draws starts, sizes and pairs from three sequences of CPython's generator, seeded in this order.
    """
    random.seed(123456789876)
    seeds = [random.randint(0, 100_000_000) for _ in range(3)]
    random.seed(seeds[0])
    starts: list[int] = []
    at_ns = 0.0
    while True:
        at_ns += -math.log(1 - random.random()) / (HOSTS * RATE_PER_HOST) * 1e9
        if at_ns >= SCHEDULE_S * 1e9:
            break
        starts.append(round(at_ns))
    random.seed(seeds[1])
    sizes = [size_at(100 * (1 - random.random())) for _ in starts]
    random.seed(seeds[2])
    pairs = []
    for _ in starts:
        src = random.randint(0, HOSTS - 1)
        dst = random.randint(0, HOSTS - 1)
        while dst == src:
            dst = random.randint(0, HOSTS - 1)
        pairs.append((src, dst))
    header = "start_ns,src,dst,bytes\n"
    lines = [f"{start},{src},{dst},{size}\n" for start, size, (src, dst) in zip(starts, sizes, pairs, strict=True)]
    digest = hashlib.sha256((header + "".join(lines)).encode()).hexdigest()
    if not digest.startswith(SCHEDULE_DIGEST):
        sys.exit(f"bench/ns3.py: this Python's random sequence gives another schedule: {digest}")
    return header + "".join(line for start, line in zip(starts, lines, strict=True) if start < duration_s * 1e9)


def size_at(percent: float) -> int:
    """Return the flow size at a percentile, by linear interpolation."""
    for (low, below), (high, above) in itertools.pairwise(SIZES):
        if percent <= above:
            return round(low + (high - low) * (percent - below) / (above - below))
    raise AssertionError(percent)


if __name__ == "__main__":
    main()
