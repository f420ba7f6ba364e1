"""Runs the cases of data/ in ns-3 again.

    python validation/ns3/make_cases.py [CASE ...] [--check]

Writes data/fct_CASE.csv and data/summary_CASE.json from data/in_CASE.csv; with --check compares instead and writes
nothing. Of the ring only the first three buckets are run, and only compared. All cases together take about 40 CPU
seconds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import CASES, DATA, HERE

RING = "c_ring_nobg"
TCP = {"dctcp": "TcpDctcp", "cubic": "TcpCubic"}


def options_of(name: str) -> list[str]:
    """Return what ns-3 is told of a case beside its flows. The timers derive from the number of hosts."""
    if name == RING:
        return ["--hosts=8", "--job=true", "--ready_at_once=true", "--max_buckets=3"]
    case = CASES[name]
    found = [f"--hosts={case.hosts}", f"--buffer_packets={case.capacity}"]
    tcp = TCP.get(case.transport.removesuffix("+ecn"))
    if tcp:
        found.append(f"--tcp={tcp}")
    if case.queue["kind"] == "ecn":
        found += ["--ecn=true", f"--mark_packets={case.queue['threshold'].removesuffix('pkt')}"]
    return found


# What a machine decides; everything else repeats to the last digit.
OF_THE_MACHINE = {"wall_s", "cpu_s", "setup_s", "events_per_cpu_s", "packet_hops_per_cpu_s", "peak_rss_kb"}


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description="Runs the cases of data/ in ns-3 again.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all, if none is named")
    parser.add_argument("--check", action="store_true", help="compare with data/ and write nothing")
    options = parser.parse_args()
    subprocess.run(["make", "--silent", "-C", str(HERE)], check=True)
    differ = 0
    for case in options.cases or [*CASES, RING]:
        found, summary = run(case)
        if options.check or case == RING:
            same = all((DATA / name).read_text(encoding="utf-8").startswith(text) for name, text in found.items())
            verdict = "same" if same else "DIFFERS"
            differ += not same
        else:
            for name, text in found.items():
                (DATA / name).write_text(text, encoding="utf-8")
            verdict = "written"
        print(f"{case:22}{summary['packet_hops']:>9} packet-hops {summary['cpu_s']:>7.2f} CPU s  {verdict}")
    sys.exit(bool(differ))


def run(case: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Run one case; return what belongs in files of data/, by name, and the summary."""
    ring = case == RING
    with tempfile.TemporaryDirectory() as folder:
        flows = [] if ring else [f"--flows={DATA}/in_{case}.csv"]
        subprocess.run([HERE / "scenario", *options_of(case), *flows, f"--out={folder}"], check=True)
        summary = json.loads(Path(folder, "summary.json").read_text(encoding="utf-8"))
        if ring:
            return {f"allreduce_{case}.csv": Path(folder, "allreduce.csv").read_text(encoding="utf-8")}, summary
        kept = {key: value for key, value in summary.items() if key not in OF_THE_MACHINE}
        return {
            f"fct_{case}.csv": Path(folder, "fct.csv").read_text(encoding="utf-8"),
            f"summary_{case}.json": json.dumps(kept) + "\n",
        }, summary


if __name__ == "__main__":
    main()
