"""Start and band by a linear programme beside the thesis's background flows: the tables of docs/validation/lp.md.

40 simulations of 12 s, some 10 CPU minutes; finished ones are kept in out/ and not run again. Usage:
python validation/thesis/lp.py [JOBS], with the extra `lp` installed.
"""

import re
import sys
from pathlib import Path
from typing import Any

from gradtide.scenario import Scenario
from gradtide.studies.keep import Kept
from gradtide.studies.tenants.lp import LpResult, plan_bands

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "validation" / "lp.md"
SEEDS = (0, 1)

CELLS = (
    ("thesis, 1120 ms, 92/s", {"scale_to": "1120ms"}, "92/s"),
    ("thesis, 560 ms, 46/s", {"scale_to": "560ms"}, "46/s"),
    ("thesis, 560 ms, 92/s", {"scale_to": "560ms"}, "92/s"),
    ("ResNet-50, 280 ms, 46/s", {"model": "resnet50", "scale_to": "280ms", "fusion": "25MiB"}, "46/s"),
    ("ResNet-50, 280 ms, 92/s", {"model": "resnet50", "scale_to": "280ms", "fusion": "25MiB"}, "92/s"),
)
"""Cells: name, changes to the preset paper/gao2020-ch5, and flows that each host starts."""

QUANTILES = (None, 0.9)


def study(changes: dict[str, str], rate: str, quantile: float | None, jobs: int, keep: Kept) -> LpResult:
    """Return the study of a cell."""
    base = Scenario.load("paper/gao2020-ch5").set({"cluster.transport.recovery": "sack"}).replace(**changes)
    base = base.set({"traffic.web.arrivals": {"rate": rate, "per": "host"}})
    return plan_bands(base, seeds=SEEDS, quantile=quantile, jobs=jobs, keep=keep)


def rows(jobs: int) -> list[str]:
    """Return the rows of Markdown, one per cell: all buckets high, all low, and the plans from means and quantiles."""
    keep = Kept(ROOT / "out" / "lp")
    made = []
    for name, changes, rate in CELLS:
        cells = [name]
        for quantile in QUANTILES:
            summary = study(changes, rate, quantile, jobs, keep).summary
            policies = {row["policy"]: row for row in summary["policies"]}
            if quantile is None:
                cells += [_cell(policies[policy]) for policy in ("same", "low")]
            low = sum(bucket["band"] != summary["bands"][0] for bucket in summary["buckets"])
            share = 100 - round(policies["lp"]["high_percent"])
            proven = "" if summary["optimal"] else " unproven"
            cells.append(f"{low} of {len(summary['buckets'])} low ({share} %){proven}: {_cell(policies['lp'])}")
            print(name, quantile, summary["headline"], file=sys.stderr, flush=True)
        made.append(f"| {' | '.join(cells)} |")
    return made


def _cell(row: dict[str, Any]) -> str:
    flows = (f"{row[key]:.2f}" for key in ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms"))
    times = f"{row['predicted_ms']:.1f}→{row['simulated_ms']:.1f} ({row['error_percent']:+.1f} %)"
    return f"{times}; {'/'.join(flows)}"


if __name__ == "__main__":
    table = "\n".join(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
    page = PAGE.read_text(encoding="utf-8")
    head = r"(<!-- table: cells -->\n\n\|.*\n\|.*\n)(?:\|.*\n)*"
    PAGE.write_text(re.sub(head, lambda found: f"{found[1]}{table}\n", page), encoding="utf-8")
