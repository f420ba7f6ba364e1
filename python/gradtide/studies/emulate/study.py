"""`emulate`: starts a network of real hosts and packets, runs programs on its hosts, and collects the measurements."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from gradtide import _core, fct, words
from gradtide.errors import EmulationRefusal, SimulationError
from gradtide.scenario import Scenario
from gradtide.scenario.core.queries import emulation, routed
from gradtide.studies.emulate.bursts import bursts_of
from gradtide.studies.emulate.programs import Players, Program, address, bands, commands
from gradtide.studies.emulate.results import (
    SCHEMA,
    EmulationResult,
    flows_of,
    iterations_of,
    links_of,
    queues_of,
)
from gradtide.system import has_namespaces, is_running

MAX_LATE = 0.001
"""Default limit on the share of packets that leave the switch more than 100 us after their computed time."""
PACKETS_PER_S = 280_000
"""Most packets per second that all hosts may send together; equals `PACKETS_PER_S` in crates/emulate."""
PREFIX = "gradtide-emulate-"
"""Prefix of the name of an emulation's temporary folder. The process id follows."""
SAMPLE_NS = 1_000_000
"""Default time between samples of queues."""
READY_S = 60.0
"""Longest wait until all `gradtide.emulated` programs have reported that they are ready."""
LISTENS_S = 2.0
"""Wait after the start of the receivers of bursts, which do not report when they are ready."""
_POLL_S = 0.05
_ACKNOWLEDGED = 1.5
"""Packets on the network per data packet: TCP acknowledges every second data packet."""

CONGESTION = {"cubic": "cubic", "newreno": "reno"}
"""Congestion control in the scenario -> its name in the Linux kernel."""

FIXES = {
    "privilege": "Run it as root, or in a user namespace: unshare --user --map-root-user gradtide emulate ...",
    "system": "The kernel needs network namespaces, veth, tbf and packet sockets.",
    "delay": "Lengthen cluster.link.delay to 60us or more: it hides the time that the switch needs.",
    "hosts": "Use a scenario with fewer hosts.",
    "congestion": "Load its module (modprobe), or choose cubic or newreno as cluster.transport.",
    "route": "Connect all hosts.",
    "other": "Run it on Linux.",
}
"""Code of an `EmulationRefusal` of the core -> the advice that is appended to its message."""

PACKETS = ("sent", "delivered", "dropped", "marked", "packets_per_s_max")
"""Counts that the summary lists under `packets`. It lists all other counts under `switch`."""

FAILURES = {
    "late": "more than {late:.2%} of the packets left over 100 us after their time ({share:.2%}). Stop other work on "
    "this machine, lower the rates of links, or allow more by --max-late.",
    "ring_drops": "the switch fell behind, and {ring_drops} frames were lost before it read them. Stop other work on "
    "this machine, or lower the rates of links.",
    "too_many": "hosts sent {packets_per_s_max} packets per second, and 280,000 can be switched. Lower the rates of "
    "links, or send longer packets.",
}
"""Why a run ended early."""


def emulate(
    scenario: Scenario,
    *,
    on: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
    max_late: float = MAX_LATE,
    compares: bool = False,
    progress: Callable[[float], object] | None = None,
) -> EmulationResult:
    """Run a scenario with real packets between network namespaces. Needs Linux, and the right to create namespaces.

    Args:
        scenario: its engine is replaced by the packet engine. Its jobs run only if neither `on` nor `command` is given,
            and sleep instead of computing.
        on: shell commands by host, as in {"h0": "iperf3 -s"}.
        command: program and arguments, which run on the host of each rank, or on every host if the scenario has no job.
        max_late: largest share of packets that may leave the switch more than 100 us after their computed time.
        compares: also replay all packets in the simulator, and count the packets for which its decision differs.
        progress: called with the completed fraction, if the scenario has a duration.

    Raises:
        EmulationRefusal: if the scenario cannot be emulated on this system.
        SimulationError: if a program failed, or more than `max_late` of the packets were late.
    """
    if isinstance(command, str):
        raise ValueError(f"command: a list of words is expected; write {shlex.split(command)}")
    if not has_namespaces():
        what = "Only Linux has network namespaces."
        raise EmulationRefusal("other", f"{what} {FIXES['other']}")
    scenario = scenario if scenario.engine == "packet" else scenario.replace(engine="packet")
    _check(scenario)
    network = routed(scenario)
    hosts = [host for job in scenario.jobs for host in job.hosts] or list(range(scenario.hosts))
    own = commands(scenario, on or {}, command, list(dict.fromkeys(hosts)))
    players = Players(scenario, plays_jobs=not command and not on)
    _check_load(network, players)
    options = {
        "congestion": CONGESTION[scenario.transport.removesuffix("+ecn")],
        "bands": bands(scenario.band_count),
        "late_ppm": round(max_late * 1e6),
        **_sampled(scenario, network),
        "compares": compares,
    }
    remove_leftovers()
    with TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as parent:
        run = _Run(scenario, Path(parent), own, players)
        core = run.play(options, progress)
        return _result(run, core, network, max_late)


def remove_leftovers() -> None:
    """Remove the temporary folders of killed emulations, which leave nothing else behind."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _check(scenario: Scenario) -> None:
    """Raise if the scenario has a network inside machines, or a transport that Linux's TCP does not implement."""
    if scenario.node is not None:
        raise EmulationRefusal(
            "nodes", "cluster.node joins GPUs by a network without packets. Remove it, or simulate: gradtide run."
        )
    kind = scenario.transport
    if kind.removesuffix("+ecn") not in CONGESTION:
        raise EmulationRefusal(
            "transport",
            f"Linux's TCP has no {kind} here. Set cluster.transport to one of: "
            f"{', '.join(f'{name}, {name}+ecn' for name in CONGESTION)}.",
        )


def _check_load(network: Mapping[str, Any], players: Players) -> None:
    """Raise if flows and jobs could send more packets per second than the switch can forward on two processors.

    Upper bound: on each path the slowest link is fully used, by packets of 1500 bytes that TCP acknowledges in pairs.
    """
    rates = [link["rate_bps"] for link in network["links"]]
    paths = [ways["there"] for tenant in network["flows"] for ways in tenant]
    if players.jobs:
        paths += [ways["there"] for ring in network["rings"] for ways in ring]
    slowest = {min(path, key=lambda link: rates[link]) for path in paths if path}
    packets = round(sum(rates[link] for link in slowest) / 12_000 * _ACKNOWLEDGED)
    if packets > PACKETS_PER_S:
        raise EmulationRefusal(
            "load",
            f"The scenario can send {packets:,} packets per second over {len(slowest)} links, and 280,000 can be "
            "switched in real time. Lower the rates of links: --set cluster.link.rate=1Gbps.",
        )


def _sampled(scenario: Scenario, network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the links to sample: those in `run.probe`, else up to 16 between switches or, without these, to hosts."""
    links, hosts = network["links"], network["hosts"]
    probe = scenario.probe
    if probe is not None:
        named = [number for number, link in enumerate(links) if probe.links is None or link["name"] in probe.links]
        return {"sampled": named, "sample_ns": max(probe.every_ps // 1000, 1000)}
    between = [number for number, link in enumerate(links) if min(link["from"], link["to"]) >= hosts]
    to_hosts = [number for number, link in enumerate(links) if link["from"] >= hosts > link["to"]]
    return {"sampled": (between or to_hosts)[:16], "sample_ns": SAMPLE_NS}


class _Run:
    """Starts the programs of one emulation, waits until they have ended, and reads their outputs."""

    def __init__(self, scenario: Scenario, folder: Path, own: list[Program], players: Players) -> None:
        self.scenario, self.folder, self.own, self.players = scenario, folder, own, players
        self.start = folder / "start"
        self.start_ns = 0
        """Common start of the programs, in ns of CLOCK_REALTIME. The switch starts earlier."""
        self.offset_us = 0.0
        self.programs = [*players.bursts, *players.programs(folder, self.start), *own]
        if own:
            # The run ends with the last of the user's commands, even if flows are unfinished.
            for program in self.programs:
                program.ends_run = program in own
        self._read_bytes: dict[str, int] = {}
        """Name of a program -> bytes of its output that `_new_lines` has returned."""
        self.names = folder / "hosts"
        lines = [f"{address(number)} h{number}" for number in range(scenario.hosts)]
        self.names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]), encoding="ascii", newline="")

    def play(self, options: dict[str, Any], progress: Callable[[float], object] | None) -> dict[str, Any]:
        """Run the emulation until it ends, and return the measurements of the switch."""
        try:
            network = emulation(self.scenario, options)
        except EmulationRefusal as refusal:
            fix = FIXES.get(refusal.code, "")
            raise EmulationRefusal(refusal.code, f"{str(refusal)[:1].upper()}{str(refusal)[1:]}. {fix}") from None
        try:
            early = [program for program in self.programs if program.is_played or program.is_receiver]
            running = {self._spawn(network, program): program for program in early}
            self._await_ready(network, running)
            # Senders of bursts and commands do not wait for the start file: they count time from their own launch.
            self.start_ns = time.time_ns()
            self.offset_us = (self.start_ns - network.start_ns) / 1e3
            rest = [program for program in self.programs if program not in early]
            running |= {self._spawn(network, program): program for program in rest}
            self.start.with_suffix(".new").write_text(str(self.start_ns), encoding="ascii", newline="")
            self.start.with_suffix(".new").rename(self.start)
            self._await_end(network, running, progress)
        finally:
            text = network.stop()
        if text is None:
            raise SimulationError("The switch ended without results; please report this as a bug.")
        found: dict[str, Any] = json.loads(text)
        return found

    def _spawn(self, network: "_core.Emulation", program: Program) -> int:
        details = {
            "command": program.command,
            "environment": list(program.environment.items()),
            "output": str(self._output(program)),
            "names": str(self.names),
        }
        return network.spawn(program.host, json.dumps(details))

    def _output(self, program: Program) -> Path:
        return self.folder / f"{program.name}.txt"

    def text(self, program: Program) -> str:
        """Return what a program has printed."""
        path = self._output(program)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _new_lines(self, program: Program) -> list[str]:
        """Return the complete lines that a program has printed since the last call."""
        with self._output(program).open("rb") as file:
            file.seek(self._read_bytes.get(program.name, 0))
            text, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes[program.name] = self._read_bytes.get(program.name, 0) + len(text) + len(newline)
        return text.decode("utf-8", errors="replace").splitlines()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results that `gradtide.emulated` has printed on all hosts."""
        lines = [line for one in self.programs if one.is_played for line in self.text(one).splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def _await_ready(self, network: "_core.Emulation", running: Mapping[int, Program]) -> None:
        end_s = time.monotonic() + READY_S
        receives = any(program.is_receiver for program in running.values())
        listens_s = time.monotonic() + (LISTENS_S if receives else 0.0)
        waiting = {number: program for number, program in running.items() if program.is_played}
        while waiting:
            for number, program in list(waiting.items()):
                if '"ready"' in self.text(program):
                    del waiting[number]
                elif (status := network.status(number)) is not None:
                    raise SimulationError(self._failed(program, status))
            if time.monotonic() > end_s:
                raise SimulationError(f"{len(waiting)} hosts were not ready within {READY_S:.0f} s")
            time.sleep(_POLL_S)
        # `gradtide bursts receive` does not report that it listens, so a fixed time is given to it.
        time.sleep(max(listens_s - time.monotonic(), 0.0))

    def _await_end(
        self, network: "_core.Emulation", running: Mapping[int, Program], progress: Callable[[float], object] | None
    ) -> None:
        duration_ps = self.scenario.duration_ps
        end_s = time.monotonic() + duration_ps / 1e12 if duration_ps is not None else None
        began_s = time.monotonic()
        waiting = {number: program for number, program in running.items() if program.ends_run}
        done: set[str] = set()
        while waiting and network.is_running:
            for number, program in list(waiting.items()):
                status = network.status(number)
                if status is None and program.is_played and program.name not in done:
                    if any('"done"' in line for line in self._new_lines(program)):
                        done.add(program.name)
                        del waiting[number]
                elif status is not None:
                    del waiting[number]
                    if status:
                        raise SimulationError(self._failed(program, status))
            now_s = time.monotonic()
            if end_s is not None:
                if progress is not None:
                    progress(min((now_s - began_s) / max(end_s - began_s, 1e-9), 1.0))
                if now_s >= end_s:
                    return
            time.sleep(_POLL_S)

    def _failed(self, program: Program, status: int) -> str:
        last = self.text(program).strip().splitlines()[-1:] or ["it printed nothing"]
        return f"{program.command[0]} on h{program.host} ended with status {status}: {last[0]}"


def _result(run: _Run, core: Mapping[str, Any], network: Mapping[str, Any], max_late: float) -> EmulationResult:
    counts, delays = core["counts"], core["delays"]
    share = delays["late_count"] / max(delays["count"], 1)
    if core["failure"] is not None:
        reason = FAILURES[core["failure"]].format(late=max_late, share=share, **counts)
        raise SimulationError(f"The emulation ended, because {reason}")
    names = [link["name"] for link in network["links"]]
    rows = run.rows()
    flows = flows_of(run.players.flows, rows, run.start_ns)
    iterations = iterations_of(rows)
    queues = queues_of(core, names, run.offset_us)
    bursts = bursts_of(run, core, network, queues)
    played = dict.fromkeys(flow["traffic"] for flow in run.players.flows)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "scenario": run.scenario.name,
        "duration_s": core["duration_ps"] / 1e12,
        "packets": {name: counts[name] for name in PACKETS},
        "lateness": {
            "p50_us": delays["p50_ns"] / 1e3,
            "p99_us": delays["p99_ns"] / 1e3,
            "p999_us": delays["p999_ns"] / 1e3,
            "max_us": delays["max_ns"] / 1e3,
            "late_share": share,
        },
        "switch": {name: value for name, value in counts.items() if name not in PACKETS},
        "differing_decisions": core["differing"],
        "jobs": _jobs(iterations),
        "traffic": fct.by_tenant(played, flows, completed="received_us"),
        "failed_flows": [row["error"] for row in rows if row["kind"] == "failed"],
    }
    summary["headline"] = _headline(summary)
    outputs = {program.name: run.text(program) for program in run.programs if not program.is_played}
    links = links_of(core, [link["rate_bps"] for link in network["links"]])
    return EmulationResult(run.scenario, summary, links, queues, flows, bursts, iterations, outputs)


def _jobs(iterations: Any) -> dict[str, Any]:
    """Return the number of iterations of each job and their mean time. Iteration 0, the warm-up, is left out."""
    times: dict[str, list[float]] = {}
    for row in iterations.to_dicts():
        if row["iteration"]:
            times.setdefault(row["job"], []).append(row["time_us"] / 1e3)
    return {
        name: {"iterations": len(found), "iteration_time_ms": sum(found) / len(found)} for name, found in times.items()
    }


def _headline(summary: Mapping[str, Any]) -> str:
    packets, late = summary["packets"], summary["lateness"]
    text = f"{packets['delivered']:,} packets delivered in {summary['duration_s']:.1f} s, "
    text += f"{packets['dropped']:,} dropped and {packets['marked']:,} marked by queues. "
    text += f"They left {late['p50_us']:.1f} us after their time (median; 99th percentile {late['p99_us']:.1f} us, "
    text += f"{late['late_share']:.3%} over 100 us)."
    failed = summary["failed_flows"]
    lost = f"{words.many(len(failed), 'flow')} failed; the first: {failed[0]}." if failed else ""
    return " ".join(filter(None, [text, words.unfinished_sentence(summary["traffic"]), lost]))
