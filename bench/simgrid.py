"""The fluid engine beside SimGrid: simulated times and CPU seconds of both on the same cases, in one run.

    python bench/simgrid.py [--only NAME ...] [--long] [--growth] [--page] [--best-of N] [--no-history]

SimGrid runs validation/simgrid/exchange, which is built here against libsimgrid-dev (3.32, `-O3`); if that is missing,
the benchmark exits with a message. All cases take about three minutes; --long adds parameter servers on 2048 hosts,
which take SimGrid another three. --growth instead measures the growth of costs with nodes. It prints a table, appends
one JSON line to bench/history.jsonl, and asserts nothing; --page writes the table into bench/README.md, and the growth
into docs/images/simgrid-growth.svg.
"""

import argparse
import math
import sys
from typing import Any

from run import ROOT, remember

sys.path.insert(0, str(ROOT / "validation" / "simgrid"))

from cases import GRADTIDE, SIMGRID, Case, build_gradtide, build_simgrid, flows, star
from compare import differs, put

PAGE = ROOT / "bench" / "README.md"
PICTURE = ROOT / "docs" / "images" / "simgrid-growth.svg"
# If SimGrid took more CPU seconds than this for a collective, larger numbers of hosts are skipped.
PATIENCE_S = 5
CASES = {
    "f2000_128": flows("f2000_128"),
    "f10000_1024": flows("f10000_1024"),
    "ps_packed_1024_full": Case("clos3", "ps-packed", delay_ns=200),
    "ps_distributed_1024_full": Case("clos3", "ps-distributed", delay_ns=200),
    "ps_packed_1024": Case("clos3", "ps-packed", divisor=2, delay_ns=200),
    "ps_distributed_1024": Case("clos3", "ps-distributed", divisor=2, delay_ns=200),
    "ring_star_512": star("ring", 512),
    "all_to_all_star_256": star("all-to-all", 256),
    "butterfly_2048": Case("clos2", "butterfly", ports=64, divisor=2, delay_ns=200),
    "butterfly_layered_1024": Case("clos3", "butterfly-layered", divisor=2, delay_ns=200),
    "butterfly_layered_16384": Case("leaf-spine", "butterfly-layered", ports=64, hosts=16384, divisor=2, delay_ns=200),
}
LONG = {"ps_distributed_2048": Case("clos2", "ps-distributed", ports=64, delay_ns=200)}
# Collectives, each with its largest number of hosts; servers and workers exchange hosts²/5 messages at once.
GROWTH = {"ring": 16384, "ps-distributed": 2048, "butterfly": 16384, "butterfly-layered": 16384}
GROWTH_HOSTS = [2**power for power in range(6, 15)]


def main() -> None:
    """Build, run both, print, append."""
    parser = argparse.ArgumentParser(description="The fluid engine beside SimGrid; asserts nothing.")
    parser.add_argument("--only", nargs="+", choices=[*CASES, *LONG], metavar="NAME", help="these cases alone")
    parser.add_argument("--long", action="store_true", help="parameter servers on 2048 hosts, too")
    parser.add_argument("--growth", action="store_true", help="measure how cost grows with nodes")
    parser.add_argument("--page", action="store_true", help="write what was found into the documentation")
    parser.add_argument("--best-of", type=int, default=3, metavar="N", help="runs of gradtide (3); SimGrid runs once")
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history.jsonl")
    options = parser.parse_args()
    if not build_simgrid():
        return
    build_gradtide()
    if options.growth:
        name, figures = "SimGrid side by side, growth with nodes", growth(options.best_of)
        table = growth_table(figures)
    else:
        cases = {**CASES, **LONG}
        names = options.only or [*CASES, *(LONG if options.long else ())]
        name, figures = "SimGrid side by side", {name: both(cases[name], options.best_of) for name in names}
        table = side_by_side_table(figures)
    print(table)
    if options.page:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(put(page, "growth" if options.growth else "side by side", table), encoding="utf-8")
        if options.growth:
            PICTURE.write_text(picture(figures), encoding="utf-8")
    if not options.no_history:
        remember(name, {"cases": figures})


def both(case: Case, best_of: int) -> dict[str, Any]:
    """Return the costs of both simulators for a case, and the comparison of their results."""
    ours, theirs = cheapest(case, best_of), case.run(SIMGRID)
    return {
        "simgrid": theirs,
        "gradtide": ours,
        "difference": ours["simulated_s"] / theirs["simulated_s"] - 1,
        "ratio": theirs["cpu_s"] / ours["cpu_s"],
    }


def side_by_side_table(figures: dict[str, Any]) -> str:
    """Return the cases as a Markdown table."""
    rows = [
        "| case | messages | simulated, s | differs by | CPU s: SimGrid | gradtide | ratio | MB: SimGrid | gradtide |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in figures.items():
        ours, theirs = found["gradtide"], found["simgrid"]
        rows.append(
            f"| {name} | {theirs['messages']:,} | {theirs['simulated_s']:.9f} | {differs(found['difference'])} | "
            f"{theirs['cpu_s']:.3g} | {ours['cpu_s']:.3g} | {found['ratio']:,.0f} | "
            f"{theirs['peak_rss_mb']:.0f} | {ours['peak_rss_mb']:.0f} |"
        )
    return "\n".join(rows)


def cheapest(case: Case, best_of: int) -> dict[str, Any]:
    """Return the run of gradtide with the least CPU time."""
    return min((case.run(GRADTIDE) for _ in range(best_of)), key=lambda result: result["cpu_s"])


def growth(best_of: int) -> dict[str, Any]:
    """Return CPU seconds of both by collective and number of hosts: 32 hosts per leaf, half bisection."""
    figures: dict[str, Any] = {}
    for collective, most in GROWTH.items():
        points = figures[collective] = {}
        theirs = None
        for hosts in (hosts for hosts in GROWTH_HOSTS if hosts <= most):
            case = Case("leaf-spine", collective, ports=64, hosts=hosts, divisor=2, delay_ns=200, bytes=2**27)
            is_asked = not points or (theirs is not None and theirs["cpu_s"] <= PATIENCE_S)
            theirs = case.run(SIMGRID) if is_asked else None
            points[str(hosts)] = {"gradtide": cheapest(case, best_of), "simgrid": theirs}
    return figures


def growth_table(figures: dict[str, Any]) -> str:
    """Return CPU seconds as a Markdown table."""
    names = "".join(f" {name}: SimGrid | gradtide |" for name in figures)
    rows = [f"| hosts |{names}", "|---:|" + "---:|" * 2 * len(figures)]
    for hosts in GROWTH_HOSTS:
        cells = []
        for points in figures.values():
            point = points.get(str(hosts), {})
            cells += [f"{point[name]['cpu_s']:.3g}" if point.get(name) else "" for name in ("simgrid", "gradtide")]
        rows.append(f"| {hosts:,} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def picture(figures: dict[str, Any]) -> str:
    """Return CPU seconds over hosts as SVG, with logarithmic axes: SimGrid dashed, gradtide solid."""
    width, height, left, top, gap = 760, 400, 64, 16, 48
    low, high = -4, 2
    colours = dict(zip(figures, ("#1b6ca8", "#c8553d", "#588157", "#7d5ba6"), strict=True))
    first, last = math.log2(GROWTH_HOSTS[0]), math.log2(GROWTH_HOSTS[-1])

    def x(hosts: int) -> float:
        return left + (math.log2(hosts) - first) / (last - first) * (width - left - 220)

    def y(seconds: float) -> float:
        return top + (high - math.log10(max(seconds, 10**low))) / (high - low) * (height - top - gap)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12">',
        "<style>text { font-family: sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for power in range(low, high + 1):
        at, text = y(10**power), f"{10.0**power:g} s"
        parts.append(f'<path d="M{left} {at:.1f}H{x(GROWTH_HOSTS[-1]):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    for hosts in GROWTH_HOSTS:
        parts.append(f'<text x="{x(hosts):.1f}" y="{height - gap + 18}" text-anchor="middle">{hosts}</text>')
    axes = f'<text x="{x(GROWTH_HOSTS[4]):.1f}" y="{height - 8}" text-anchor="middle">'
    parts.append(axes + "hosts; CPU seconds of one exchange</text>")
    for index, (collective, points) in enumerate(figures.items()):
        for name, dash in (("simgrid", ' stroke-dasharray="5 4"'), ("gradtide", "")):
            found = [(x(int(hosts)), y(point[name]["cpu_s"])) for hosts, point in points.items() if point[name]]
            path = "M" + "L".join(f"{at:.1f} {seconds:.1f}" for at, seconds in found)
            parts.append(f'<path d="{path}" fill="none" stroke="{colours[collective]}" stroke-width="2"{dash}/>')
            row = top + 20 + 44 * index + (18 if name == "gradtide" else 0)
            parts.append(
                f'<path d="M{width - 208} {row - 4}h28" stroke="{colours[collective]}" stroke-width="2"{dash}/>'
            )
            who = "SimGrid" if name == "simgrid" else "gradtide"
            parts.append(f'<text x="{width - 174}" y="{row}">{collective}, {who}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
