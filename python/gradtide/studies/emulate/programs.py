"""Programs of emulated hosts: the user's commands, senders of bursts, and plans for `gradtide.emulated`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradtide.emulated import JOB_PORT
from gradtide.errors import EmulationRefusal
from gradtide.scenario import BackgroundFlows, Job, Scenario
from gradtide.scenario.core.queries import Queries

_PS_PER_NS = 1000
_CLASS_SELECTORS = 8
HIGH, NORMAL, LOW = 4, 0, 2
"""DSCPs for low delay, no preference and high throughput, from which Linux selects a band (RFC 1349, section 4)."""
MASTER_PORT = 29_500


@dataclass
class Program:
    """A command on a host.

    Attributes:
        host: number of the host.
        command: program and arguments.
        environment: variables that are added to the environment of gradtide's process.
        name: name of its output file, without suffix.
        ends_run: the run ends when all programs with this flag have ended.
        is_played: whether the command is `python -m gradtide.emulated`, which waits for the common start of all hosts.
        is_receiver: whether the command receives bursts, and therefore must listen before the senders start.
    """

    host: int
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    name: str = ""
    ends_run: bool = True
    is_played: bool = False
    is_receiver: bool = False


def address(host: int) -> str:
    """Return the IPv4 address of a host, by the rule with which crates/emulate assigns addresses."""
    high, low = divmod(host + 1, 256)
    return f"10.71.{high}.{low}"


def bands(count: int) -> list[int]:
    """Return the band of each of the 64 DSCPs in a queue with `count` bands.

    Class selector CS7 selects band 0, CS6 band 1 and so on; if there are fewer bands, the rest select the last one. Low
    delay always selects band 0 and high throughput the last one. Packets without a mark use the last band, but the
    middle
    one of three bands, as in Linux's pfifo_fast.
    """
    last = count - 1
    found = [min(_CLASS_SELECTORS - 1 - (dscp >> 3), last) for dscp in range(64)]
    found[HIGH], found[LOW] = 0, last
    if count == len((HIGH, NORMAL, LOW)):
        found[NORMAL] = 1
    return found


def service(band: int, count: int) -> int:
    """Return an IP type of service whose packets enter `band` of a queue with `count` bands."""
    of_band = bands(count)
    if count == 1:
        return NORMAL
    preferred = (HIGH, NORMAL, LOW, *(number << 3 for number in range(_CLASS_SELECTORS)))
    return next(dscp for dscp in preferred if of_band[dscp] == min(band, count - 1)) << 2


def commands(scenario: Scenario, on: Mapping[str, str], command: Sequence[str], hosts: Sequence[int]) -> list[Program]:
    """Return the user's programs: the shell commands in `on`, by host, and a rank of `command` on each of `hosts`."""
    found = []
    for name, text in on.items():
        number = int(name[1:]) if name[:1] == "h" and name[1:].isdecimal() else -1
        if not 0 <= number < scenario.hosts:
            last = f"h{scenario.hosts - 1}"
            raise ValueError(f"--on {name}: the scenario has no such host; its hosts are h0 to {last}")
        found.append(Program(number, ["/bin/sh", "-c", text], _host_environment(scenario, number), f"{name}-command"))
    for rank, host in enumerate(hosts if command else ()):
        of_rank = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": address(hosts[0]),
            "MASTER_PORT": str(MASTER_PORT),
        }
        environment = _host_environment(scenario, host) | of_rank
        found.append(Program(host, list(command), environment, f"h{host}-rank{rank}"))
    return found


def _host_environment(scenario: Scenario, host: int) -> dict[str, str]:
    """Return environment variables with the host's number, all addresses, and the interface for NCCL and Gloo."""
    return {
        "GRADTIDE_HOST": str(host),
        "GRADTIDE_HOSTS": " ".join(address(number) for number in range(scenario.hosts)),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }


class Players:
    """Turns a scenario's flows and jobs into one plan per host, and its bursts into senders and receivers."""

    def __init__(self, scenario: Scenario, *, plays_jobs: bool) -> None:
        self.scenario = scenario
        self.count = scenario.band_count
        self.flows: list[dict[str, Any]] = []
        """Background flows with tenant, source, destination, bytes and start time, by the index that messages use."""
        self.plans: dict[int, dict[str, Any]] = {}
        self.bursts: list[Program] = []
        for tenant in scenario.traffic:
            if tenant.idle_ps is None:
                self._add_flows(tenant)
            else:
                self._add_bursts(tenant)
        self.jobs = scenario.jobs if plays_jobs else ()
        queries = Queries(scenario) if self.jobs else None
        for number, job in enumerate(self.jobs):
            assert queries is not None
            self._add_job(number, job, queries)

    def _plan(self, host: int) -> dict[str, Any]:
        return self.plans.setdefault(host, {"flows": [], "jobs": []})

    def _add_flows(self, tenant: BackgroundFlows) -> None:
        columns = (tenant.src, tenant.dst, tenant.bytes, tenant.start_ps, tenant.band)
        for place, (src, dst, size, start_ps, band) in enumerate(zip(*columns, strict=True)):
            number = len(self.flows)
            start_ns = start_ps // _PS_PER_NS
            flow = {"traffic": tenant.name, "flow": place, "start_us": start_ns / 1e3}
            self.flows.append({**flow, "src": src, "dst": dst, "bytes": size, "band": band})
            sent = {"number": number, "start_ns": start_ns, "bytes": size, "address": address(dst)}
            self._plan(src)["flows"].append(sent | {"service": service(band, self.count)})
            self._plan(dst)

    def _add_bursts(self, tenant: BackgroundFlows) -> None:
        sources = sorted(set(tenant.src))
        (dst,) = set(tenant.dst)
        count = len(tenant.src) // len(sources)
        together = len(sources) if tenant.together else 1
        own = [sys.executable, "-m", "gradtide", "bursts"]
        receive = [*own, "receive", "--together", str(together), "--count", str(count * len(sources)), "--json"]
        self.bursts.append(
            Program(dst, receive, name=f"h{dst}-{tenant.name}-receiver", ends_run=False, is_receiver=True)
        )
        announced = self.scenario.announced_packets(tenant.name)
        for src in sources:
            first = tenant.src.index(src)
            options = {
                "--bytes": f"{tenant.bytes[first]}B",
                "--count": str(count),
                "--idle": f"{(tenant.idle_ps or 0) / 1e6}us",
                "--setup": f"{tenant.setup_ps / 1e6}us",
                "--start": f"{tenant.start_ps[first] / 1e6}us",
            }
            if announced is not None:
                options["--announce"] = f"{announced}pkt"
            listed = [part for option in options.items() for part in option]
            send = [*own, address(dst), *listed, "--json"]
            self.bursts.append(Program(src, send, name=f"h{src}-{tenant.name}-sender"))

    def _add_job(self, number: int, job: Job, queries: Queries) -> None:
        if job.servers or job.graph is not None or job.adaptive is not None or job.is_parallel:
            raise EmulationRefusal(
                "job",
                f"Job {job.name} does not exchange whole gradients by a collective, and cannot be played by senders "
                "that sleep. Give the ranks a command: gradtide emulate SCENARIO -- COMMAND.",
            )
        transfers = []
        sizes = [layer.parameter_bytes for layer in job.layers]
        tables: dict[int, list[list[tuple[int, list[tuple[int, int]]]]]] = {}
        for layers, _ in queries.planned(number):
            size = sum(sizes[layer] for layer in layers)
            for part in _chunks(size, job.schedule.chunk_bytes):
                if part not in tables:
                    tables[part] = _steps(queries.messages(number, part), len(job.hosts))
                transfers.append((layers, tables[part]))
        barrier, credit = job.schedule.barrier, job.schedule.credit
        band = service(job.bands[0] if job.bands else 0, self.count)
        times = [[layer.forward_ps // _PS_PER_NS, layer.backward_ps // _PS_PER_NS] for layer in job.layers]
        for rank, host in enumerate(job.hosts):
            self._plan(host)["jobs"].append(
                {
                    "job": job.name,
                    "rank": rank,
                    "port": JOB_PORT + number,
                    "addresses": [address(other) for other in job.hosts],
                    "service": band,
                    "iterations": job.iterations or _LAST,
                    "start_ns": job.start_ps // _PS_PER_NS,
                    "layers": times,
                    "transfers": [(of_layers, steps[rank]) for of_layers, steps in transfers],
                    "barrier": barrier,
                    "credit": credit,
                }
            )

    def programs(self, folder: Path, start: Path) -> list[Program]:
        """Write one plan per host into `folder`, and return the programs. They wait until the file `start` exists."""
        played = []
        for host, plan in sorted(self.plans.items()):
            path = folder / f"plan-h{host}.json"
            path.write_text(json.dumps({**plan, "start": str(start)}), encoding="utf-8", newline="")
            command = [sys.executable, "-m", "gradtide.emulated", str(path)]
            ends_run = bool(plan["jobs"] or plan["flows"])
            played.append(Program(host, command, {}, f"h{host}-played", ends_run, is_played=True))
        return played


_LAST = 1_000_000
"""Number of iterations of a job for which the scenario states none. The job trains until the run ends."""


def _chunks(size: int, chunk: int | None) -> list[int]:
    if chunk is None or size <= chunk:
        return [size]
    return [min(chunk, size - offset) for offset in range(0, size, chunk)]


def _steps(messages: Any, ranks: int) -> list[list[tuple[int, list[tuple[int, int]]]]]:
    """Return, by rank and step, the number of messages that the rank receives, and (peer, bytes) of those it sends."""
    columns = [messages.column(name) for name in ("step", "from_rank", "to_rank", "bytes")]
    rows = [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]
    steps = 1 + max((step for step, *_ in rows), default=-1)
    found: list[list[tuple[int, list[tuple[int, int]]]]] = [[(0, []) for _ in range(steps)] for _ in range(ranks)]
    for step, src, dst, size in rows:
        found[src][step][1].append((dst, size))
        found[dst][step] = (found[dst][step][0] + 1, found[dst][step][1])
    return found
