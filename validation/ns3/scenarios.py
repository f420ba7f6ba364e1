"""The scenarios of scenarios/ in gradtide and in ns-3, by `gradtide check`.

    python validation/ns3/scenarios.py            prints the table
    python validation/ns3/scenarios.py --page     writes it into docs/validation/ns3.md

Needs ns-3 (on Debian: apt-get install libns3-dev g++), and two minutes.
"""

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare import PAGE, put

from gradtide.studies.check import check

FOLDER = Path(__file__).resolve().parent / "scenarios"
HEAD = [
    "| scenario | equal flows, mean | equal iterations, mean | first difference, ms |",
    "|---|---|---|---|",
]


def table() -> str:
    """Return the comparison of all scenarios as a Markdown table."""
    files = sorted(FOLDER.glob("*.toml"))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(check, files))
    rows = []
    for file, result in zip(files, results, strict=True):
        link = f"[{file.stem}](../../validation/ns3/scenarios/{file.name})"
        first, length = result.summary["first_difference_ms"], result.run.summary["simulated_ms"]
        when = "–" if first is None else f"{first:.1f} of {length:.0f}"
        flows, iterations = (_equal(result.summary[what]) for what in ("flows", "iterations"))
        rows.append(f"| {link} | {flows} | {iterations} | {when} |")
    return "\n".join([*HEAD, *rows])


def _equal(compared: Mapping[str, float]) -> str:
    if not compared["compared"]:
        return "–"
    return f"{compared['equal']} of {compared['compared']}, {compared['mean_percent']:+.2f} %"


def main() -> None:
    """Print the table, or write it into its page."""
    found = table()
    if "--page" not in sys.argv:
        print(found)
        return
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "ns-3, scenarios", found), encoding="utf-8")


if __name__ == "__main__":
    main()
