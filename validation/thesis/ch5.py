"""Prints the difference from Gao (2020), chapter 5, by kind of recovery: the table of ch5-averages.csv.

192 simulations of 12 s, some 15 CPU minutes. Usage: python validation/thesis/ch5.py [JOBS]
"""

import sys
from collections.abc import Sequence
from itertools import product

from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario
from gradtide.studies.run import run_seen
from gradtide.studies.tenants.cases import BANDS


def means(base: Scenario, recovery: str, jobs: int, cells: Sequence[ch5.Cell] = ch5.ALL) -> dict[ch5.Cell, ch5.Means]:
    """Return the averages over three runs of every cell."""
    cases = [((*cell, band, seed), recovery) for cell, band, seed in product(cells, BANDS, ch5.SEEDS)]
    scenarios = [ch5.scenario(base, case) for case in cases]
    found = run_seen(scenarios, lambda index, result: ch5.Seen(cases[index], result), jobs)
    return ch5.Study(base, {key: seen for (key, _), seen in zip(cases, found, strict=True)}, {}).means


def rows(default: dict[ch5.Cell, ch5.Means], early: dict[ch5.Cell, ch5.Means]) -> list[str]:
    """Return one row of Markdown per cell: difference from the thesis in %, by default / as ns-3.30.1."""
    made = []
    for cell in ch5.ALL:
        cells = [str(cell[0]), str(cell[1])]
        for quantity, at in product(ch5.QUANTITIES, range(len(BANDS))):
            theirs = ch5.PUBLISHED[cell][quantity][at]
            pair = (100 * (own[cell][quantity][at] / theirs - 1) for own in (default, early))
            cells.append(" / ".join(f"{value:+.1f}" for value in pair))
        cells.append(" / ".join(f"{own[cell]['iteration'][2]:+.1f}" for own in (ch5.PUBLISHED, default, early)))
        made.append(f"| {' | '.join(cells)} |")
    return made


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    preset = Scenario.load("paper/gao2020-ch5")
    by_recovery = (means(preset, recovery, jobs) for recovery in (ch5.DEFAULT_RECOVERY, ch5.THESIS_RECOVERY))
    print("\n".join(rows(*by_recovery)))
