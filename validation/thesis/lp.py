"""Start and band by a linear programme beside the thesis's background flows: the tables of docs/validation/lp.md.

40 simulations of 12 s, some 10 CPU minutes; finished ones are kept in out/ and not run again. Usage:
python validation/thesis/lp.py [JOBS], with the extra `lp` installed.
"""

import re
import sys
from pathlib import Path

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
    """Return the rows of Markdown, one per cell and policy."""
    keep = Kept(ROOT / "out" / "lp")
    made = []
    for name, changes, rate in CELLS:
        for quantile in QUANTILES:
            summary = study(changes, rate, quantile, jobs, keep).summary
            low = sum(bucket["band"] != summary["bands"][0] for bucket in summary["buckets"])
            of = f"{low} of {len(summary['buckets'])} low{'' if summary['optimal'] else ', unproven'}"
            for row in summary["policies"]:
                is_own = row["policy"] != "lp"
                if is_own and quantile is not None:
                    continue
                label = (
                    row["policy"] if is_own else f"lp, {'mean' if quantile is None else f'p{100 * quantile:g}'}: {of}"
                )
                cells = [name, label, f"{row['high_percent']:.0f}"]
                cells += [f"{row[key]:.1f}" for key in ("predicted_ms", "simulated_ms")]
                cells += [f"{row['error_percent']:+.1f}"]
                cells += [f"{row[key]:.2f}" for key in ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms")]
                made.append(f"| {' | '.join(cells)} |")
            print(name, quantile, summary["headline"], file=sys.stderr, flush=True)
    return made


if __name__ == "__main__":
    table = "\n".join(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
    page = PAGE.read_text(encoding="utf-8")
    head = r"(<!-- table: cells -->\n\n\|.*\n\|.*\n)(?:\|.*\n)*"
    PAGE.write_text(re.sub(head, lambda found: f"{found[1]}{table}\n", page), encoding="utf-8")
