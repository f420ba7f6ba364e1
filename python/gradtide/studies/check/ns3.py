"""Runs a scenario in ns-3: builds the program `ns3.cc`, writes its input tables, and reads its measurements.

ns-3 is licensed under GPL-2.0. gradtide contains no part of ns-3: the program is built on the user's machine, and links
to an installed ns-3.
"""

import csv
import hashlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradtide import files
from gradtide.errors import GradtideError, SimulationError
from gradtide.scenario import BackgroundFlows, Job, Scenario
from gradtide.scenario.core import queries
from gradtide.scenario.core.ns3 import NS, TCP
from gradtide.transports import PARAMETERS
from gradtide.units import PPM
from gradtide.watch import current

TESTED = "3.37"
"""The supported version of ns-3."""
LIBRARIES = ("internet", "point-to-point", "traffic-control", "network", "core")
TOS = (0x10, 0x00, 0x08)
"""IP type of service (ToS) for each band of pfifo_fast. Flows through other queues have ToS 0, because others
disable ECN."""
POLL_S = 0.1


FOLLOWED_KEYS = {"run.follow": "ns3", "run.start_jitter": "0us", "cluster.transport.recovery": "sack"}
"""Keys, with values, that make gradtide behave like ns-3.37 where ns-3.37 deviates from the standards."""


class NS3MissingError(GradtideError, ImportError):
    """ns-3, or a compiler for it, is not installed."""


@dataclass(frozen=True)
class Measured:
    """Measurements of ns-3.

    Attributes:
        version: version of ns-3.
        flows: one row per flow by start time: `fct_close_ns`, `fct_rx_ns` and `conn_ns`, each since the start of the
            flow (-1 for an event that has not happened), and `status`.
        iterations: for each iteration of the job, its start and duration in nanoseconds; the duration of an unfinished
            iteration is -1.
        all_reduces: for each all-reduce, the index of its bucket, its start and its end in nanoseconds.
        summary: numbers of packet hops and of drops, and CPU time of ns-3 in seconds.
    """

    version: str
    flows: list[dict[str, Any]]
    iterations: list[tuple[int, ...]]
    all_reduces: list[tuple[int, ...]]
    summary: dict[str, Any]


def followed(scenario: Scenario) -> Scenario:
    """Return a scenario with `FOLLOWED_KEYS` set if its engine is the packet engine, and otherwise unchanged."""
    return scenario.set(FOLLOWED_KEYS) if scenario.engine == "packet" else scenario


def find(home: Path | None) -> tuple[Path, Path, str]:
    """Return the folders of ns-3's headers and libraries, and a format string for the names of its libraries.

    Args:
        home: folder of the ns-3 installation. Default: the folder in the environment variable NS3, otherwise /usr or
            /usr/local.

    Raises:
        NS3MissingError: if ns-3 or a C++ compiler is missing.
    """
    named = home or (Path(os.environ["NS3"]) if os.environ.get("NS3") else None)
    homes = [named] if named is not None else [Path("/usr"), Path("/usr/local")]
    install = "install it (on Debian: apt-get install libns3-dev g++), or name its folder with --ns3 DIR"
    for place in homes:
        headers = place / "include"
        if not (headers / "ns3" / "core-module.h").is_file():
            continue
        for folder in (place / "lib", *sorted((place / "lib").glob("*-linux-gnu*")), place / "lib64"):
            found = sorted(folder.glob("libns3*-core*.so"))
            if found:
                before, _, after = found[0].name.removesuffix(".so").partition("-core")
                return headers, folder, f"{before.removeprefix('lib')}-{{}}{after}"
    where = " and ".join(str(place) for place in homes)
    raise NS3MissingError(f"ns-3 is not in {where}; {install}")


def build(home: Path | None, say: Callable[[str], object] | None = None) -> Path:
    """Build the program for ns-3 from `ns3.cc`, unless the cache has a build for this ns-3, and return its path.

    Raises:
        NS3MissingError: if ns-3 or a compiler is missing.
        SimulationError: if the program cannot be built.
    """
    headers, libraries, name = find(home)
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        raise NS3MissingError("ns-3 needs a C++ compiler; install one (on Debian: apt-get install g++)")
    source = resources.files(__package__).joinpath("ns3.cc").read_bytes()
    core = libraries / f"lib{name.format('core')}.so"
    about = [str(core.resolve()), str(core.stat().st_mtime_ns), str(headers), compiler, platform.machine()]
    digest = hashlib.sha256(source + "\0".join(about).encode()).hexdigest()
    program = _cache() / f"ns3-{digest[:16]}"
    if program.exists():
        return program
    if say is not None:
        say("building the program for ns-3")
    program.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gradtide-") as folder:
        (Path(folder) / "ns3.cc").write_bytes(source)
        linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *(f"-l{name.format(one)}" for one in LIBRARIES)]
        command = [compiler, "-std=c++17", "-O3", f"-I{headers}", "-o", "ns3", "ns3.cc", *linked]
        done = _finish(command, Path(folder), None)
        if done:
            first = next((line for line in done.splitlines() if "error" in line), done[-300:])
            msg = f"the program for ns-3 cannot be built with {compiler} and {headers}: {first.strip()}"
            raise SimulationError(f"{msg}; gradtide is tested with ns-3 {TESTED}")
        files.write_whole(program, (Path(folder) / "ns3").read_bytes())
    program.chmod(0o755)
    return program


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "gradtide"


def measure(
    scenario: Scenario, program: Path, stop_ps: int, progress: Callable[[float], object] | None = None
) -> Measured:
    """Run a scenario in ns-3.

    Args:
        scenario: a scenario that `Scenario.check_for_ns3` accepts.
        program: path of the program, from `build`.
        stop_ps: simulated time in picoseconds at which the run stops, even if flows are unfinished. If the scenario
            has no duration, this should be twice the expected length of the run.
        progress: called with the completed fraction.

    Raises:
        SimulationError: if ns-3 ends with an error.
    """
    with TemporaryDirectory(prefix="gradtide-") as name:
        folder = Path(name)
        settings = write_case(scenario, folder)
        settings |= {"stop_ns": stop_ps // NS, "report_ns": max(1, stop_ps // 2 // NS) if progress else 0}
        command = [str(program), f"--in={folder}", f"--out={folder}"]
        failed = _finish([*command, *(f"--{key}={value}" for key, value in settings.items())], folder, progress)
        if failed:
            raise SimulationError(f"ns-3 ended with an error: {failed.strip()[-300:]}")
        flows = [
            {key: value if key == "status" else int(value) for key, value in row.items()}
            for row in _rows(folder / "fct.csv")
        ]
        iterations = [tuple(map(int, row.values())) for row in _rows(folder / "iters.csv")]
        all_reduces = [tuple(map(int, row.values())) for row in _rows(folder / "allreduce.csv")]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return Measured(TESTED, flows, iterations, all_reduces, summary)


def _finish(command: Sequence[str], folder: Path, progress: Callable[[float], object] | None) -> str:
    """Run a command; return "" if it succeeds, otherwise its stderr. Exceeded limits and Ctrl-C kill the command."""
    watch = current()
    with (folder / "said").open("wb") as said, (folder / "shares").open("wb") as shares:
        # In a new session, the child does not receive Ctrl-C from the terminal; this process does, and kills the child.
        process = subprocess.Popen(command, cwd=folder, stdout=shares, stderr=said, start_new_session=True)
        try:
            while True:
                try:
                    code = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if watch is not None:
                        watch.check()
                    share = _last_number(folder / "shares")
                    if progress is not None and share is not None:
                        progress(min(share, 1.0))
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code == 0:
        return ""
    text = (folder / "said").read_text(encoding="utf-8", errors="replace").strip()
    return text or (signal.Signals(-code).name if code < 0 else f"exit code {code}")


def _last_number(file: Path) -> float | None:
    lines = file.read_bytes()[-64:].split()
    try:
        return float(lines[-2])  # the last line may be incomplete
    except (IndexError, ValueError):
        return None


def _rows(file: Path) -> Iterable[dict[str, str]]:
    if not file.exists():
        return  # the scenario has no job
    with file.open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def order_of_flows(traffic: Sequence[BackgroundFlows]) -> list[tuple[int, int]]:
    """Return (index of the tenant, index among the tenant's flows) for every flow, by start time."""
    flows = [
        (start_ps, tenant, place)
        for tenant, table in enumerate(traffic)
        for place, start_ps in enumerate(table.start_ps)
    ]
    return [(tenant, place) for _, tenant, place in sorted(flows)]


def write_case(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Write the input tables of the ns-3 program for a scenario, and return its command-line options."""
    routed = queries.routed(scenario)
    places = _write_links(routed["links"], folder)

    def way(ports: Iterable[int]) -> str:
        return " ".join(str(places[port]) for port in ports)

    queue, transport = scenario.cluster.queue, scenario.cluster.transport
    has_bands = queue.kind == "pfifo_fast"

    def tos(band: int) -> int:
        return TOS[band] if has_bands else 0

    lines = []
    for tenant, place in order_of_flows(scenario.traffic):
        flows, ways = scenario.traffic[tenant], routed["flows"][tenant][place]
        start_ns = flows.start_ps[place] // NS
        ends = (flows.src[place], flows.dst[place], flows.bytes[place], tos(flows.band[place]))
        lines.append([start_ns, *ends, way(ways["there"]), way(ways["back"])])
    _write(folder / "flows.csv", ("start_ns", "src", "dst", "bytes", "tos", "there", "back"), lines)
    settings = {
        "hosts": routed["hosts"],
        "duration_ns": (scenario.duration_ps or 0) // NS,
        "tcp": TCP[transport.kind],
        "ecn": int(bool(transport.ecn)),
        "dctcp_gain": (transport.gain_ppm or PARAMETERS["dctcp"]["gain_ppm"]) / PPM,
        "segment_bytes": transport.segment_bytes,
        "initial_window": transport.initial_window_segments,
        "window_bytes": transport.window_bytes,
        **{name.removesuffix("_ps") + "_ns": time_ps // NS for name, time_ps in routed["timers"].items()},
        "queue": queue.kind if queue.threshold_packets is None else "ecn",
        "buffer_packets": queue.capacity.size,
        "mark_packets": queue.threshold_packets or 0,
    }
    core = queries.Queries(scenario)
    for number, job in enumerate(scenario.jobs):
        settings |= {
            "job_tos": tos(job.bands[0]),
            "barrier": int(job.schedule.barrier),
            "by_priority": int(job.schedule.order == "priority"),
            "iterations": job.iterations or 0,
        }
        ring = [
            (host, way(one["there"]), way(one["back"]))
            for host, one in zip(job.hosts, routed["rings"][number], strict=True)
        ]
        _write(folder / "ring.csv", ("host", "there", "back"), ring)
        _write_job(job, number, core, folder)
    return settings


def _write_links(links: Sequence[Mapping[str, Any]], folder: Path) -> dict[int, int]:
    """Write the two directions of each link as adjacent rows of `links.csv`; return {index in `links`: row}."""
    back: dict[tuple[int, int], list[int]] = {}
    for port, link in enumerate(links):
        back.setdefault((link["to"], link["from"]), []).append(port)
    places: dict[int, int] = {}
    for port, link in enumerate(links):
        if port not in places:
            other = next(one for one in back[link["from"], link["to"]] if one not in places)
            places[port], places[other] = len(places), len(places) + 1
    rows = [
        [links[port][key] for key in ("from", "to", "rate_bps")] + [links[port]["delay_ps"] // NS]
        for port in sorted(places, key=places.__getitem__)
    ]
    _write(folder / "links.csv", ("from", "to", "rate_bps", "delay_ns"), rows)
    return places


def _write_job(job: Job, number: int, core: queries.Queries, folder: Path) -> None:
    layers = job.layers
    bucket_of: dict[int, int] = {}
    parts: list[tuple[int, ...]] = []
    sent = [members for members, _ in core.planned(number)] if len(job.hosts) > 1 else []
    for bucket, members in enumerate(sent):
        bucket_of |= dict.fromkeys(members, bucket)
        table = core.messages(number, sum(layers[member].parameter_bytes for member in members))
        columns = [list(table.column(name)) for name in ("step", "from_rank", "bytes")]
        parts += [(bucket, *map(int, row)) for row in zip(*columns, strict=True)]
    _write(folder / "parts.csv", ("bucket", "step", "rank", "bytes"), parts)
    rows = [(_ns(one.forward_ps), _ns(one.backward_ps), bucket_of.get(at, -1)) for at, one in enumerate(layers)]
    _write(folder / "layers.csv", ("forward_ns", "backward_ns", "bucket"), rows)


def _ns(time_ps: int) -> int:
    return math.floor(time_ps / NS + 0.5)


def rounding_ns(jobs: Sequence[Job]) -> int:
    """Return the largest error of an iteration time, in ns, if ns-3 rounds the times of layers to nanoseconds."""
    times = [time_ps for job in jobs for layer in job.layers for time_ps in (layer.forward_ps, layer.backward_ps)]
    rounded_ps: int = sum(abs(_ns(time_ps) * NS - time_ps) for time_ps in times)
    return -(-rounded_ps // NS)


def _write(file: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
