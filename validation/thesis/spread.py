"""How far a nanosecond of link delay moves what Gao (2020), chapter 5, prints: cells that come out otherwise.

Usage: python validation/thesis/spread.py [JOBS]. Prints one row of Markdown per cell, for links of 9998 to 10002 ns.
"""

import sys
from itertools import product

from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario
from gradtide.studies.run import run_all
from gradtide.studies.tenants.cases import BANDS, variant

CELLS = (8, 46), (8, 92), (16, 184), (2, 23), (2, 46)
DELAYS_NS = 9998, 9999, 10000, 10001, 10002


def row(cell: ch5.Cell, jobs: int) -> str:
    """Return what the lower band costs the job, and the mean of small flows in it, for each delay."""
    base = Scenario.load("paper/gao2020-ch5").set({"cluster.transport.recovery": ch5.THESIS_RECOVERY})
    costs, smalls = [], []
    for delay in DELAYS_NS:
        scenario = ch5.cell_scenario(base.set({"cluster.link.delay": f"{delay}ns"}), cell)
        cases = {(*cell, band, seed): variant(scenario, seed, band) for band, seed in product(BANDS, ch5.SEEDS)}
        means = ch5.Study(base, dict(zip(cases, run_all(list(cases.values()), jobs, None), strict=True)), {}).means[
            cell
        ]
        costs.append(f"{means['iteration'][2]:.2f}")
        smalls.append(f"{means['small'][1]:.2f}")
    theirs = ch5.published(cell)
    texts = [
        *map(str, cell),
        f"{ch5.PUBLISHED_MEANS[cell]['iteration'][2]:.1f}",
        ", ".join(costs),
        f"{theirs['small'][1]:.2f}",
        ", ".join(smalls),
    ]
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    for cell in CELLS:
        print(row(cell, jobs), flush=True)
