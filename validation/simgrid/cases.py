"""Cases that are compared with SimGrid, and how each program runs them."""

import json
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
ROOT = HERE.parent.parent
SIMGRID = HERE / "exchange"
GRADTIDE = ROOT / "target" / "release" / "examples" / "simgrid"

CLOS_COLLECTIVES = ("ps-packed", "ps-distributed", "butterfly", "butterfly-layered")
FLOWS = ("f2000_128", "f10000_1024")


@dataclass(frozen=True)
class Case:
    """Flows that start together, or one exchange of 100 MB.

    Attributes:
        network: clos2, clos3, leaf-spine or star.
        ports: ports of a switch; an edge switch has half as many hosts.
        divisor: the bisection ratio is 1 / divisor.
        hosts: hosts of a star or a leaf-spine network.
        rate_bps: rate of every link.
        delay_ns: delay of every link.
        collective: algorithm of the exchange; empty for flows.
        bytes: gradient of each rank.
        flows: name of the list of flows; empty for an exchange.
    """

    network: str
    collective: str = ""
    ports: int = 16
    divisor: int = 1
    hosts: int = 8
    rate_bps: int = 32_000_000_000
    delay_ns: int = 0
    bytes: int = 100_000_000
    flows: str = ""

    def run(self, program: Path, out: Path | None = None) -> dict[str, Any]:
        """Run the case in one of the two programs; return hosts, messages, simulated_s, peak_rss_mb and cpu_s."""
        options = {name: value for name, value in asdict(self).items() if value != ""}
        if self.flows:
            options["flows"] = DATA / f"{self.flows}.csv"
        if out is not None:
            options["out"] = out
        command = [program, *(f"--{name}={value}" for name, value in options.items())]
        before = children_cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {**json.loads(done.stdout), "cpu_s": children_cpu_s() - before}


def children_cpu_s() -> float:
    """Return the CPU seconds of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def star(collective: str, hosts: int) -> Case:
    """Return an exchange on a star of 10 Gbit/s and 1 us, of nearly 100 MB in `hosts` equal parts."""
    size = 100_000_000 // hosts * hosts
    return Case("star", collective, hosts=hosts, rate_bps=10_000_000_000, delay_ns=1000, bytes=size)


def flows(name: str) -> Case:
    """Return the case of a list of flows: half bisection, no delays."""
    return Case("clos2" if name == "f2000_128" else "clos3", divisor=2, flows=name)


def exchanges() -> Iterator[Case]:
    """Yield the exchanges of data/exchange_cases.csv."""
    for delay_ns in (0, 200):
        for collective in CLOS_COLLECTIVES:
            for divisor in (1, 2, 4, 8):
                yield Case("clos2", collective, ports=32, divisor=divisor, delay_ns=delay_ns)
    for collective in (*CLOS_COLLECTIVES, "ring", "all-to-all"):
        for divisor in (1, 2, 4):
            yield Case("clos3", collective, ports=8, divisor=divisor)
    for collective, hosts in (("ring", 8), ("ring", 64), ("all-to-all", 64)):
        yield star(collective, hosts)


def build_simgrid() -> bool:
    """Build the program for SimGrid; return False, with a message, if SimGrid is missing."""
    if not Path("/usr/include/simgrid/s4u.hpp").exists():
        print("skipped, SimGrid is missing; on Debian: apt-get install libsimgrid-dev g++")
        return False
    subprocess.run(["make", "--silent", "-C", str(HERE)], check=True)
    return True


def build_gradtide() -> None:
    """Build gradtide's program."""
    command = ["cargo", "build", "--quiet", "--release", "--package", "gradtide-train", "--example", "simgrid"]
    subprocess.run(command, cwd=ROOT, check=True)
