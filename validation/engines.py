"""Builds the programs for ns-3 and SimGrid, runs all their cases again, and writes every table that compares with them.

    python validation/engines.py

Needs both (on Debian: apt-get install libns3-dev libsimgrid-dev g++) and about ten minutes. The tables are those of
docs/validation/ns3.md and docs/validation/simgrid.md, and the rows of README.md that sum them up.
"""

import re
import subprocess
import sys
from pathlib import Path

from pages import PAGES, cases_of, rows_of, write_readme

HERE = Path(__file__).resolve().parent
SAYS = "Rows of ns-3 and SimGrid: `make validate`."
STEPS = (
    ("ns3/make_cases.py", "--check"),
    ("ns3/compare.py", "--page"),
    ("ns3/scenarios.py", "--page"),
    ("simgrid/make_cases.py", "--check", "--flows"),
    ("simgrid/compare.py", "--page"),
)


def main() -> None:
    """Run every step, and sum up; end with 1 if a simulator does not give its committed results."""
    failed = []
    for script, *options in STEPS:
        print(f"validation/{script} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, HERE / script, *options], check=False).returncode:
            failed.append(script)
    write_readme(summed_up(), SAYS)
    if failed:
        sys.exit(f"validation/engines.py: failed: {', '.join(failed)}")


def summed_up() -> dict[str, str]:
    """Return rows for README by how they begin, made from the tables of the pages."""
    ns3, simgrid = ((PAGES / name).read_text(encoding="utf-8") for name in ("ns3.md", "simgrid.md"))
    cases = [*cases_of(ns3, "ns-3, equal"), *rows_of(ns3, "ns-3")]
    exact = [row for row in cases if not re.match(r"[jkl]_", row[0])]
    others = [row for row in cases if row not in exact]
    worst = max(float(row[5]) if len(row) > 5 else 0.0 for row in exact)
    same = "every flow equal to the nanosecond" if worst == 0 else f"every flow within {worst:g} %"
    mean = max(abs(float(row[4])) for row in others if len(row) > 4)
    scenarios = [re.findall(r"[-+]?[\d.]+", row[1]) for row in rows_of(ns3, "ns-3, scenarios")]
    equal, flows = (sum(int(figures[at]) for figures in scenarios) for at in (0, 1))
    means = max(abs(float(figures[2])) for figures in scenarios)
    sent = sum(int(row[0].replace(",", "")) for row in rows_of(simgrid, "flows on SimGrid"))
    exchanges = sum(len(row[2].split(",")) for row in rows_of(simgrid, "exchanges on SimGrid"))
    table = "[table](docs/validation/{}.md)"
    return {
        "ns-3.37, flow by flow": f"| ns-3.37, flow by flow: {len(exact)} cases with NewReno, {len(others)} with DCTCP, "
        f"CUBIC and ECN | NewReno: {same}; the others: means within {mean:.1f} % ({table.format('ns3')}) |",
        "ns-3.37, jobs and traffic": f"| ns-3.37, jobs and traffic on {len(scenarios)} networks: star, leaf-spine, "
        f"Clos, custom, by `gradtide check` | {equal} of {flows} flows equal to the nanosecond, means within "
        f"{means:.1f} % ({table.format('ns3')}) |",
        "SimGrid 3.32,": f"| SimGrid 3.32, {sent:,} flows and {exchanges} exchanges on stars and Clos networks | "
        f"finish times equal to the nanosecond, except of flows whose delays differ: SimGrid gives the shorter "
        f"path a larger share ({table.format('simgrid')}) |",
    }


if __name__ == "__main__":
    main()
