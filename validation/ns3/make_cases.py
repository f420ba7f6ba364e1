"""Runs the cases of data/ in ns-3 again.

    python validation/ns3/make_cases.py [CASE ...] [--check]

Writes data/fct_CASE.csv and data/summary_CASE.json from data/in_CASE.csv; with --check compares instead and writes
nothing. Of the ring, only three buckets are run, and they are only compared. All cases together take about 40 CPU
seconds. The program is that of `gradtide check`.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compare import CASES, DATA, scenario_of

from gradtide import Scenario
from gradtide.studies.check import ns3

RING = "c_ring_nobg"
RING_LAYERS = (range(5), range(5, 17), range(49, 50))
"""Layers of three buckets of the thesis's model: the two most urgent ones, and the one that is ready first."""
KEPT = ("packet_hops", "hop_bytes", "qdisc_drops", "ce_marks")
"""Keys of the summary that depend neither on the machine nor on the routes of flows."""
TIMES = ("fct_close_ns", "fct_rx_ns", "conn_ns", "status")


def main() -> None:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description="Runs the cases of data/ in ns-3 again.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all, if none is named")
    parser.add_argument("--check", action="store_true", help="compare with data/ and write nothing")
    options = parser.parse_args()
    program = ns3.build(None, print)
    differ = 0
    for case in options.cases or [*CASES, RING]:
        found, summary = run(case, program)
        if options.check or case == RING:
            same = found == committed(case)
            verdict = "same" if same else "DIFFERS"
            differ += not same
        else:
            write(case, *found)
            verdict = "written"
        print(f"{case:22}{summary['packet_hops']:>9} packet-hops {summary['cpu_s']:>7.2f} CPU s  {verdict}")
    sys.exit(bool(differ))


def run(case: str, program: Path) -> tuple[Any, dict[str, Any]]:
    """Run one case; return the results to compare with data/, and the summary."""
    with TemporaryDirectory() as folder:
        scenario = ring() if case == RING else scenario_of(case, Path(folder))
        measured = ns3.measure(scenario, program, 30 * 10**12)
    summary = measured.summary
    if case == RING:
        return [(end_ns - start_ns) for _, start_ns, end_ns in measured.all_reduces], summary
    times = [[str(row[name]) for name in TIMES] for row in measured.flows]
    return (times, {key: summary[key] for key in KEPT if key in summary}), summary


def committed(case: str) -> Any:
    """Return the committed results of a case in data/."""
    if case == RING:
        return [int(row["end_ns"]) - int(row["start_ns"]) for row in rows(f"allreduce_{case}.csv")][: len(RING_LAYERS)]
    summary = json.loads((DATA / f"summary_{case}.json").read_text(encoding="utf-8"))
    times = [[row[name] for name in TIMES] for row in rows(f"fct_{case}.csv")]
    return times, {key: summary[key] for key in KEPT if key in summary}


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of data/."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def write(case: str, times: list[list[str]], summary: dict[str, Any]) -> None:
    """Write a case into data/."""
    with (DATA / f"fct_{case}.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("flow_id", "start_ns", "src", "dst", "bytes", "tos", *TIMES))
        for number, (flow, own) in enumerate(zip(rows(f"in_{case}.csv"), times, strict=True)):
            given = [flow[key] for key in ("start_ns", "src", "dst", "bytes")]
            table.writerow((number, *given, flow.get("tos", ns3.TOS[int(flow.get("band", 0))]), *own))
    (DATA / f"summary_{case}.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")


def ring() -> Scenario:
    """Return the thesis's job with three of its buckets, all ready at one instant."""
    base = Scenario.load("paper/gao2020-ch5").set({"cluster.transport.recovery": "sack"})
    layers = base.jobs[0].layers
    idle = {"forward": "0s", "backward": "0s"}
    kept = [
        {"name": layers[at].name, "parameters": f"{layers[at].parameter_bytes}B", **idle}
        for members in RING_LAYERS
        for at in members
    ]
    kept[0] |= {"forward": "1us"}  # A model may not have times of zero only.
    data = base.to_dict()
    data["job"]["train"] |= {"model": {"layers": kept}, "iterations": 1}
    del data["traffic"]
    for key in ("warmup", "cooldown"):
        data["run"].pop(key)
    return Scenario.from_dict(data)


if __name__ == "__main__":
    main()
