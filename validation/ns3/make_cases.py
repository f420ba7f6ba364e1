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

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"

ECN = ["--ecn=true", "--mark_packets=65"]
DCTCP = ["--tcp=TcpDctcp", *ECN]
# Hosts of a case and whatever it sets beside them. The timers derive from the number of hosts.
CASES = {
    "a_single_1MB": ["--hosts=2"],
    "a_single_10MB": ["--hosts=2"],
    "a_single_100MB": ["--hosts=2"],
    "b_incast_2x10MB": ["--hosts=3"],
    "b_incast_4x10MB": ["--hosts=5"],
    "b_incast_8x10MB": ["--hosts=9"],
    "c_ring_nobg": ["--hosts=8", "--job=true", "--ready_at_once=true", "--max_buckets=3"],
    "d_prio": ["--hosts=3"],
    "d_prio_same_src": ["--hosts=3"],
    "e_share_1ms": ["--hosts=3"],
    "f_incast_16x1MB_100p": ["--hosts=17", "--buffer_packets=100"],
    "g_prio_10MB_same_src": ["--hosts=3"],
    "h_websearch_50": ["--hosts=8"],
    "i_tiny": ["--hosts=2"],
    "j_dctcp_1x20MB": ["--hosts=2", *DCTCP],
    "j_dctcp_2x20MB": ["--hosts=3", *DCTCP],
    "j_dctcp_incast_8x10MB": ["--hosts=9", *DCTCP],
    "k_cubic_2x20MB": ["--hosts=3", "--tcp=TcpCubic"],
    "k_cubic_ecn_2x20MB": ["--hosts=3", "--tcp=TcpCubic", *ECN],
    "l_newreno_ecn_1x20MB": ["--hosts=2", *ECN],
    "l_newreno_ecn_2x20MB": ["--hosts=3", *ECN],
    "m_mixed_4x1000p": ["--hosts=4", "--buffer_packets=1000"],
    "m_mixed_6x100p": ["--hosts=6", "--buffer_packets=100"],
    "m_mixed_8x60p": ["--hosts=8", "--buffer_packets=60"],
    "m_mixed_8x100p": ["--hosts=8", "--buffer_packets=100"],
    "m_mixed_8x300p": ["--hosts=8", "--buffer_packets=300"],
    "n_single_1MB_1p": ["--hosts=2", "--buffer_packets=1"],
    "o_due_on_arrival": ["--hosts=3"],
    "p_burst_at_departure": ["--hosts=3", "--buffer_packets=20"],
}
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
    for case in options.cases or CASES:
        found, summary = run(case)
        if options.check or case.startswith("c_"):
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
    ring = case.startswith("c_")
    with tempfile.TemporaryDirectory() as folder:
        flows = [] if ring else [f"--flows={DATA}/in_{case}.csv"]
        subprocess.run([HERE / "scenario", *CASES[case], *flows, f"--out={folder}"], check=True)
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
