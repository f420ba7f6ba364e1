"""gradtide's packet engine against ns-3.37 on the cases of data/, flow by flow.

    python validation/ns3/compare.py            prints the tables
    python validation/ns3/compare.py --page     writes them into docs/validation/ns3.md

Flow completion time runs from a flow's start to its sender's close. Nothing here needs ns-3: its results are committed.
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gradtide import Scenario, run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import PAGES, put

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
PAGE = PAGES / "ns3.md"


@dataclass(frozen=True)
class Case:
    """A case, and the tolerance of its mean completion time.

    Attributes:
        hosts: hosts around the switch; the timers derive from their number.
        percent: largest allowed difference of the mean.
        what: subject of the case.
        capacity: capacity of a port in packets.
        transport: kind of the transport; with ECN, every queue marks from 65 packets on.
    """

    hosts: int
    percent: float
    what: str
    capacity: int = 1000
    transport: str = "newreno"

    @property
    def queue(self) -> dict[str, str]:
        """The scenario's queue."""
        size = f"{self.capacity}pkt"
        if self.transport == "dctcp" or self.transport.endswith("+ecn"):
            return {"kind": "ecn", "threshold": "65pkt", "capacity": size}
        return {"kind": "pfifo_fast", "capacity": size}


CASES = {
    "a_single_1MB": Case(2, 0.1, "handshake, slow start, close"),
    "a_single_10MB": Case(2, 2, "a window larger than the bandwidth-delay product"),
    "a_single_100MB": Case(2, 2, "the host's own queue overflows"),
    "b_incast_2x10MB": Case(3, 5, "two flows share a port"),
    "b_incast_4x10MB": Case(5, 5, "four flows share a port"),
    "b_incast_8x10MB": Case(9, 5, "eight flows share a port"),
    "d_prio": Case(3, 2, "a short flow passes a long one in a lower band"),
    "d_prio_same_src": Case(3, 2, "both flows from one host"),
    "e_share_1ms": Case(3, 5, "the second flow starts 1 ms later"),
    "f_incast_16x1MB_100p": Case(17, 0.1, "small buffers, losses, timeouts, simultaneous packets", capacity=100),
    "g_prio_10MB_same_src": Case(3, 2, "two bands of one host"),
    "h_websearch_50": Case(8, 5, "web-search flows within 50 ms"),
    "i_tiny": Case(2, 0.1, "flows of 1 B, one segment, one segment and 1 B, ten segments"),
    "j_dctcp_1x20MB": Case(2, 0.5, "DCTCP alone, marks at its own host", transport="dctcp"),
    "j_dctcp_2x20MB": Case(3, 0.5, "two DCTCP flows share a port", transport="dctcp"),
    "j_dctcp_incast_8x10MB": Case(9, 3, "eight DCTCP flows share a port", transport="dctcp"),
    "k_cubic_2x20MB": Case(3, 10, "two CUBIC flows and losses", transport="cubic"),
    "k_cubic_ecn_2x20MB": Case(3, 0.5, "two CUBIC flows and marks", transport="cubic+ecn"),
    "l_newreno_ecn_1x20MB": Case(2, 3, "NewReno alone, marks at its own host", transport="newreno+ecn"),
    "l_newreno_ecn_2x20MB": Case(3, 0.5, "two NewReno flows and marks", transport="newreno+ecn"),
    "m_mixed_4x1000p": Case(4, 0.1, "all sizes; FINs milliseconds apart"),
    "m_mixed_6x100p": Case(6, 0.1, "retransmitted SYN-ACKs", capacity=100),
    "m_mixed_8x60p": Case(8, 0.1, "last segments before the end of the handshake", capacity=60),
    "m_mixed_8x100p": Case(8, 0.1, "simultaneous timers and arrivals", capacity=100),
    "m_mixed_8x300p": Case(8, 0.1, "reordered SYNs", capacity=300),
    "n_single_1MB_1p": Case(2, 0.1, "ports that hold one packet", capacity=1),
    "o_due_on_arrival": Case(3, 0.1, "flows that start when a packet reaches their host"),
    "p_burst_at_departure": Case(3, 0.1, "bursts at the end of a transmission, into small queues", capacity=20),
}


@dataclass(frozen=True)
class Comparison:
    """Completion times of one case in both simulators, milliseconds."""

    name: str
    ours_ms: np.ndarray
    ns3_ms: np.ndarray

    @property
    def error_percent(self) -> float:
        """Relative difference of the means in percent."""
        return float(100 * (self.ours_ms.mean() / self.ns3_ms.mean() - 1))

    @property
    def worst_percent(self) -> float:
        """Largest relative difference of a flow in percent."""
        return float(100 * np.abs(self.ours_ms / self.ns3_ms - 1).max())

    @property
    def is_equal(self) -> bool:
        """Whether every flow is equal to the nanosecond."""
        return not np.rint(1e6 * (self.ours_ms - self.ns3_ms)).any()


def scenario_of(name: str, folder: Path) -> Scenario:
    """Return a case as a scenario; its list of flows is written into `folder`."""
    case = CASES[name]
    with (DATA / f"in_{name}.csv").open(encoding="utf-8", newline="") as file:
        flows = list(csv.DictReader(file))
    bands = {"16": 0, "0": 1, "8": 2} if case.queue["kind"] == "pfifo_fast" else {"0": 0}
    replay = folder / "flows.csv"
    lines = [
        f"{f['start_ns']},{f['src']},{f['dst']},{f['bytes']},{bands[f['tos']] if 'tos' in f else f.get('band', 0)}"
        for f in flows
    ]
    replay.write_text("\n".join(["start_ns,src,dst,bytes,band", *lines]) + "\n", encoding="utf-8")
    return Scenario.from_dict(
        {
            "cluster": {
                "topology": {"kind": "star", "hosts": case.hosts},
                "link": {"rate": "10Gbps", "delay": "10us"},
                "queue": case.queue,
                "transport": {"kind": case.transport},
            },
            "traffic": {"flows": {"replay": str(replay)}},
            "run": {"engine": "packet", "follow": "ns3", "duration": "30s"},
        }
    )


def compare(name: str) -> Comparison:
    """Run one case, and return the completion times of both simulators, flow by flow."""
    with TemporaryDirectory() as folder:
        result = run(scenario_of(name, Path(folder)))
    # ns-3's rows are in input order, ours in order of start; for these cases the orders are equal.
    return Comparison(name, result.flows["fct_us"] / 1e3, ns3_ms(name))


def ns3_ms(name: str) -> np.ndarray:
    """Return ns-3's completion times of a case, in milliseconds."""
    with (DATA / f"fct_{name}.csv").open(encoding="utf-8", newline="") as file:
        return np.array([float(row["fct_close_ns"]) / 1e6 for row in csv.DictReader(file)])


EQUAL, DIFFERENT = "ns-3, equal", "ns-3"


def tables() -> dict[str, str]:
    """Return by mark the cases whose flows are all equal to the nanosecond, and a table of the others."""
    equal = []
    different = [
        "| case | flows | what it covers | ns-3, ms | mean differs, % | worst flow, % | allowed, % |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for name, case in CASES.items():
        found = compare(name)
        if found.is_equal:
            equal.append(f"`{name}` ({len(found.ns3_ms)})")
        else:
            different.append(
                f"| {name} | {len(found.ns3_ms)} | {case.what} | {found.ns3_ms.mean():.4f} | "
                f"{found.error_percent:+.2f} | {found.worst_percent:.2f} | {case.percent:g} |"
            )
    listed = (
        "In these cases (with their number of flows), every flow ends in the same nanosecond as in ns-3: "
        f"{', '.join(equal)}. Where no packet is marked, connections also open and last bytes arrive in the same "
        "nanosecond."
    )
    return {EQUAL: listed, DIFFERENT: "\n".join(different)}


def main() -> None:
    """Print the tables, or write them into their page."""
    if "--page" not in sys.argv:
        print("\n\n".join(tables().values()))
        return
    page = PAGE.read_text(encoding="utf-8")
    for mark, table in tables().items():
        page = put(page, mark, table)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
