"""How costs grow with hosts, flows and messages: both engines, in one run on one machine.

    python bench/scale.py [--only packet fluid] [--page] [--no-history]

Packet engine, by CPU time, on stars of 8 to 4,096 hosts: the flows of the thesis's study (see bench/ns3.py) at eight
times its load; 1 or 16 MB from every host to the next seven; and four times as much. Fluid engine: random flows on a
Clos network of 1,024 hosts, and all-to-alls of unequal messages. Each case is a process of its own.
It prints a table, appends one JSON line to bench/history.jsonl, and asserts nothing; --page writes the table into
bench/README.md and the picture into docs/images/scale.svg.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from ns3 import SCHEDULE_S, schedule
from run import ROOT, remember

sys.path.insert(0, str(ROOT / "validation"))

from pages import put

PAGE = ROOT / "bench" / "README.md"
PICTURE = ROOT / "docs" / "images" / "scale.svg"
EXAMPLES = ROOT / "target" / "release" / "examples"
Costs = dict[str, dict[str, dict[str, float]]]
"""Costs by case, and by number of hosts, flows, or hosts of an all-to-all."""
# Bytes that each host sends to the next seven, by number of hosts: few hosts send more, so that every case has millions
# of hops.
STARS = {8: 16_000_000, 64: 16_000_000, 1024: 1_000_000, 4096: 1_000_000}
MOST = max(STARS)
FLUIDS = {
    "random flows, Clos of 1,024 hosts": ("random {}", (1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)),
    "skewed all-to-all, leaf-spine": ("skewed {}", (32, 64, 128, 256, 512, 1024)),
    "skewed all-to-all, star": ("skewed {} star", (32, 64, 128, 256, 512, 1024)),
}
# Accuracy in a scenario, and the argument of the example.
ACCURACIES = {"exact": "", "0.1%": " within 1000"}
# If a case took longer than this, its next size is skipped.
PATIENCE_S = 20
# End of a line of the examples with the costs of a case.
COST = re.compile(r"(?P<count>\d+) (?:packet-hops|flows).* in (?P<cpu_s>[\d.]+) CPU s, (?P<mb>\d+) MB", re.MULTILINE)


def main() -> None:
    """Build, run all, print, append."""
    parser = argparse.ArgumentParser(description="How costs grow; asserts nothing.")
    parser.add_argument("--only", nargs="+", choices=["packet", "fluid"], default=["packet", "fluid"])
    parser.add_argument("--page", action="store_true", help="write what was found into the documentation")
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history.jsonl")
    options = parser.parse_args()
    if options.page and len(options.only) < 2:
        parser.error("--page writes both engines: leave out --only")
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "gradtide-net", "--examples"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        flows = Path(folder) / "flows.csv"
        flows.write_text(schedule(SCHEDULE_S), encoding="utf-8")
        figures = {
            "packet": packets(flows) if "packet" in options.only else {},
            "fluid": fluids() if "fluid" in options.only else {},
        }
    table = "\n\n".join(part for part in (packet_table(figures["packet"]), fluid_table(figures["fluid"])) if part)
    print(table)
    if options.page:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "scale", table), encoding="utf-8")
        draw(figures)
    if not options.no_history:
        remember("how costs grow", figures)


def measure(example: str, *words: object) -> dict[str, float]:
    """Return the costs of a case of an example, with its packet-hops or flows."""
    command = [str(EXAMPLES / example), *map(str, words)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(told.strip(), file=sys.stderr)
    found = COST.search(told)
    if found is None:
        raise ValueError(f"{example} says nothing of its cost: {told}")
    return {name: float(value) for name, value in found.groupdict().items() if value is not None}


def packets(flows: Path) -> Costs:
    """Return costs and packet-hops per CPU second by case and hosts."""
    loads = {
        "the study's flows": dict.fromkeys(STARS, flows),
        "every queue full": STARS,
        # Connections open and close less often per byte.
        "every queue full, messages four times as long": {hosts: 4 * size for hosts, size in STARS.items()},
    }
    found: Costs = {name: {} for name in loads}
    # The cases of a size run one after the other, so that a temporary slow-down of the machine affects all of them.
    for hosts, (name, load) in product(STARS, loads.items()):
        cost = measure("speed", hosts, load[hosts])
        found[name][str(hosts)] = {**cost, "hops_per_s": cost["count"] / cost["cpu_s"]}
    return found


def fluids() -> Costs:
    """Return costs by case and accuracy, and by size."""
    found: Costs = {}
    for name, (words, sizes) in FLUIDS.items():
        for accuracy, within in ACCURACIES.items():
            points = found.setdefault(f"{name}, {accuracy}", {})
            for size in sizes:
                points[str(size)] = measure("fluid", *(words.format(size) + within).split())
                if points[str(size)]["cpu_s"] > PATIENCE_S:
                    break
    return found


def packet_table(found: Costs) -> str:
    """Return million packet-hops per second as a Markdown table."""
    if not found:
        return ""
    heads = " | ".join(f"{hosts:,} hosts" for hosts in STARS)
    rows = [f"| M packet-hops per CPU second | {heads} | MB, {MOST:,} hosts |", "|---|" + "---:|" * (len(STARS) + 1)]
    for name, points in found.items():
        cells = [f"{points[str(hosts)]['hops_per_s'] / 1e6:.1f}" for hosts in STARS]
        rows.append(f"| {name} | {' | '.join(cells)} | {points[str(MOST)]['mb']:.0f} |")
    return "\n".join(rows)


def fluid_table(found: Costs) -> str:
    """Return CPU seconds and memory as a Markdown table, with a row per size."""
    if not found:
        return ""
    rows = [f"| case | size | flows |{''.join(f' CPU s, {accuracy} | MB |' for accuracy in ACCURACIES)}"]
    rows.append("|---|---:|---:|" + "---:|---:|" * len(ACCURACIES))
    for name, (_, sizes) in FLUIDS.items():
        for size in map(str, sizes):
            costs = [found[f"{name}, {accuracy}"].get(size) for accuracy in ACCURACIES]
            flows = next((f"{cost['count']:,.0f}" for cost in costs if cost), "")
            cells = [f"{cost['cpu_s']:.2f} | {cost['mb']:.0f}" if cost else " | " for cost in costs]
            rows.append(f"| {name} | {int(size):,} | {flows} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(figures: dict[str, Any]) -> None:
    """Draw speed over hosts, and CPU seconds over flows."""
    mpl.use("svg")
    # Text stays text, and equal figures give equal bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scale"})
    picture, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, points in figures["packet"].items():
        speeds = [point["hops_per_s"] / 1e6 for point in points.values()]
        left.plot([int(hosts) for hosts in points], speeds, "o-", label=name)
    left.set(xscale="log", xlabel="hosts on a star", ylabel="million packet-hops per second", ylim=(0, None))
    left.set_title("Packet engine")
    for index, (name, points) in enumerate(figures["fluid"].items()):
        case, accuracy = divmod(index, len(ACCURACIES))
        flows = [point["count"] for point in points.values()]
        costs = [max(point["cpu_s"], 0.01) for point in points.values()]
        right.plot(flows, costs, "o-" if accuracy == 0 else "s--", color=f"C{case}", label=name)
    right.set(xscale="log", yscale="log", xlabel="flows that start together", ylabel="CPU seconds")
    right.set_title("Fluid engine")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    picture.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
