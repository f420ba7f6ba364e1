"""Runs the cases of data/ in SimGrid again.

    python validation/simgrid/make_cases.py [--check] [--flows]

Writes data/exchange_cases.csv (half a minute of CPU time) and with --flows also the finish times data/f*_fin.csv (80 s
or more); with --check compares instead and writes nothing.
"""

import argparse
import csv
import io
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from cases import DATA, FLOWS, SIMGRID, build_simgrid, exchanges, flows


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description="Runs the cases of data/ in SimGrid again.")
    parser.add_argument("--check", action="store_true", help="compare with data/ and write nothing")
    parser.add_argument("--flows", action="store_true", help="the lists of flows, too")
    options = parser.parse_args()
    if not build_simgrid():
        return
    found = {"exchange_cases.csv": exchange_table()}
    if options.flows:
        found |= {f"{name}_fin.csv": finish_times(name) for name in FLOWS}
    differ = 0
    for name, text in found.items():
        if options.check:
            same = (DATA / name).read_text(encoding="utf-8") == text
            differ += not same
            print(f"{name}: {'same' if same else 'DIFFERS'}")
        else:
            (DATA / name).write_text(text, encoding="utf-8")
    sys.exit(bool(differ))


def exchange_table() -> str:
    """Return SimGrid's results of the exchanges as CSV."""
    columns = ["network", "collective", "ports", "divisor", "hosts", "rate_bps", "delay_ns", "bytes"]
    text = io.StringIO()
    table = csv.DictWriter(text, [*columns, "messages", "simulated_s"], lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    for case in exchanges():
        table.writerow({**asdict(case), **case.run(SIMGRID)})
    return text.getvalue()


def finish_times(name: str) -> str:
    """Return SimGrid's finish time of each flow of a list as CSV."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "fin.csv"
        flows(name).run(SIMGRID, out)
        return out.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
