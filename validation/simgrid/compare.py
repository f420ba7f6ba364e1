"""gradtide's fluid engine against SimGrid 3.32 on the cases of data/.

    python validation/simgrid/compare.py            prints the tables
    python validation/simgrid/compare.py --page     writes them into docs/validation/simgrid.md

Builds our program by cargo. Nothing here needs SimGrid: its results are committed.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from cases import DATA, FLOWS, GRADTIDE, ROOT, Case, build_gradtide, exchanges, flows

sys.path.insert(0, str(ROOT / "validation"))

from pages import PAGES, put

PAGE = PAGES / "simgrid.md"


def flow_table() -> str:
    """Return the comparison of finish times as a Markdown table."""
    rows = [
        "| flows | network | bisection | last flow ends, s: SimGrid | gradtide | worst flow, relative |",
        "|---:|---|---|---:|---:|---:|",
    ]
    for name in FLOWS:
        case = flows(name)
        with TemporaryDirectory() as folder:
            out = Path(folder) / "fin.csv"
            hosts = case.run(GRADTIDE, out)["hosts"]
            ours = finish_times(out)
        theirs = finish_times(DATA / f"{name}_fin.csv")
        worst = max(abs(mine / other - 1) for mine, other in zip(ours, theirs, strict=True))
        rows.append(
            f"| {len(ours):,} | {case.network}, {hosts} hosts | 1/{case.divisor} | {max(theirs):.9f} | "
            f"{max(ours):.9f} | {differs(worst)} |"
        )
    return "\n".join(rows)


def finish_times(path: Path) -> list[float]:
    """Return when each flow has finished, in s."""
    with path.open(encoding="utf-8", newline="") as file:
        return [float(row["finish_s"]) for row in csv.DictReader(file)]


def exchange_table() -> str:
    """Return the comparison of exchanges as a Markdown table: one row for all bisection ratios of one, from 1/1 on."""
    groups: dict[str, list[tuple[Case, float, float]]] = defaultdict(list)
    for case, row in zip(exchanges(), simgrid_rows(), strict=True):
        ours = case.run(GRADTIDE)
        if ours["messages"] != int(row["messages"]):
            raise AssertionError(f"{case}: {ours['messages']} messages, SimGrid {row['messages']}")
        name = f"| {case.network}, {ours['hosts']} hosts, {case.delay_ns / 1000:g} us | {case.collective} "
        groups[name].append((case, float(row["simulated_s"]), ours["simulated_s"]))
    rows = [
        "| network, delay of a link | exchange | SimGrid, s | worst, relative |",
        "|---|---|---|---:|",
    ]
    for name, found in groups.items():
        ratios = [case.divisor for case, *_ in found]
        if ratios != [2**at for at in range(len(ratios))]:
            raise AssertionError(f"{name}: bisection ratios {ratios}")
        times = ", ".join(f"{theirs:.7f}" for _, theirs, _ in found)
        worst = max(abs(ours / theirs - 1) for _, theirs, ours in found)
        rows.append(f"{name}| {times} | {differs(worst)} |")
    return "\n".join(rows)


def simgrid_rows() -> list[dict[str, str]]:
    """Return SimGrid's results of the exchanges, in their order."""
    with (DATA / "exchange_cases.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def differs(relative: float) -> str:
    """Return a relative difference to one digit; 0 if it is beyond the 12 that SimGrid prints."""
    return f"{abs(relative):.0e}" if abs(relative) > 5e-12 else "0"


def main() -> None:
    """Print the tables, or write them into their page."""
    build_gradtide()
    tables = {"flows on SimGrid": flow_table(), "exchanges on SimGrid": exchange_table()}
    if "--page" not in sys.argv:
        print("\n\n".join(tables.values()))
        return
    page = PAGE.read_text(encoding="utf-8")
    for mark, table in tables.items():
        page = put(page, mark, table)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
