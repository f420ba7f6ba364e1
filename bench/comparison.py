"""Writes the newest measurements beside ns-3 and SimGrid into docs/comparison.md: `python bench/comparison.py`.

Nothing is measured here: `bench/ns3.py` and `bench/simgrid.py` do that, and append to bench/history.jsonl.
"""

import json
import sys
from typing import Any

from run import HISTORY, ROOT

sys.path.insert(0, str(ROOT / "validation"))

from pages import put

PAGE = ROOT / "docs" / "comparison.md"
# Cases of bench/simgrid.py without the ring: if ranks do not slow one another, gradtide computes it rank by rank, and
# SimGrid message by message.
CASES = {
    "f10000_1024": "10,000 random flows, Clos of 3 layers, 1024 hosts",
    "ps_packed_1024_full": "parameter servers, Clos of 3 layers, 1024 hosts",
    "all_to_all_star_256": "all-to-all, star of 256 hosts",
    "butterfly_layered_16384": "layered butterfly, leaf-spine, 16,384 hosts",
}
HEAD = """\
| beside | case | results | CPU s: theirs | gradtide | ratio |
|---|---|---|---:|---:|---:|"""


def table() -> str:
    """Return the newest measurement of each case as a Markdown table, with machine and version."""
    ns3 = newest("ns-3 side by side")
    simgrid = newest("SimGrid side by side")
    theirs, ours = ns3["ns3"], ns3["gradtide"]
    same = f"{theirs['packet_hops']:,} and {ours['packet_hops']:,} packet-hops"
    case = ns3["scenario"].removeprefix("ns-3 side by side, ")
    rows = [row("ns-3.37", f"`{case}`: 8 hosts, a job and web-search flows", same, theirs, ours)]
    for name, what in CASES.items():
        found = simgrid["cases"][name]
        same = f"times differ by {abs(found['difference']):.0e}" if found["difference"] else "equal times"
        rows.append(row("SimGrid 3.32", what, same, found["simgrid"], found["gradtide"]))
    made = "; ".join(f"{tool}: {at(line)}" for tool, line in (("ns-3", ns3), ("SimGrid", simgrid)))
    return "\n".join(
        [HEAD, *rows, "", f"The other simulator ran once, gradtide three times, of which the fastest counts. {made}."]
    )


def row(beside: str, case: str, results: str, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return a row: CPU seconds of both simulators."""
    ratio = f"{theirs['cpu_s'] / ours['cpu_s']:,.0f}"
    return f"| {beside} | {case} | {results} | {theirs['cpu_s']:.3g} | {ours['cpu_s']:.3g} | {ratio} |"


def at(line: dict[str, Any]) -> str:
    """Return the machine and the version of a measurement."""
    return f"{line['cores']} cores of {line['cpu']}, {line['system']}, commit {line['commit']}"


def newest(scenario: str) -> dict[str, Any]:
    """Return the last line of the history whose scenario has this prefix and that contains all cases."""
    lines = map(json.loads, HISTORY.read_text(encoding="utf-8").splitlines())
    found = [line for line in lines if line["scenario"].startswith(scenario) and "growth" not in line["scenario"]]
    complete = [line for line in found if "ns3" in line or CASES.keys() <= line["cases"].keys()]
    last: dict[str, Any] = complete[-1]
    return last


if __name__ == "__main__":
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "beside", table()), encoding="utf-8")
