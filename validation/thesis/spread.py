"""How far a nanosecond of link delay moves what Gao (2020), chapter 5, prints: cells that come out otherwise.

Usage: python validation/thesis/spread.py [JOBS]. Prints one line per cell, for links of 9998 to 10002 ns.
"""

import sys

from ch5 import means

from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario

CELLS = (8, 92), (16, 184), (2, 23), (2, 46)
DELAYS_NS = 9998, 9999, 10000, 10001, 10002


def row(cell: ch5.Cell, jobs: int) -> str:
    """Return what the lower band costs the job, and the mean of small flows in it, for each delay."""
    preset = Scenario.load("paper/gao2020-ch5")
    costs, smalls = [], []
    for delay in DELAYS_NS:
        own = means(preset.set({"cluster.link.delay": f"{delay}ns"}), ch5.THESIS_RECOVERY, jobs, [cell])[cell]
        costs.append(f"{own['iteration'][2]:.2f}")
        smalls.append(f"{own['small'][1]:.2f}")
    theirs = ch5.PUBLISHED[cell]
    cost, small = f"{theirs['iteration'][2]:.1f}", f"{theirs['small'][1]:.2f}"
    return f"{f'{cell[0]}, {cell[1]}':<12}{f'{cost}; ' + ', '.join(costs):<42}{small}; {', '.join(smalls)}"


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    for cell in CELLS:
        print(row(cell, jobs), flush=True)
