"""What the ns-3 program of `gradtide check` supports: for every field of the core's input, the supported values.

A field that is missing in these tables is a bug, because no setting may silently be left out of a comparison.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradtide.errors import Fault
from gradtide.scenario.core.input import spec as core_input
from gradtide.scenario.fabric import Tree, Wiring
from gradtide.scenario.resolve.resolved import Resolved
from gradtide.scenario.source import Loc, Source
from gradtide.traffic import BackgroundFlows

NS = 1000
"""Picoseconds per nanosecond, the resolution of ns-3."""
BANDS = 3
"""Number of bands of pfifo_fast."""


class Only(NamedTuple):
    """A field of which the ns-3 program supports only some values.

    Attributes:
        key: scenario key that sets the field, relative to the table of its job, tenant, cluster or run.
        values: the supported values, as in the core's input.
        instead: supported alternative, for the hint of the fault, as in `depth = 1`.
    """

    key: str
    values: tuple[Any, ...]
    instead: str


ANY = None
"""Every value of the field is supported: the ns-3 program uses it, or it does not affect the comparison."""

RUN: dict[str, Only | None] = {
    "engine": Only("engine", ("packet",), 'engine = "packet"'),
    "follow": Only("follow", ("ns3",), 'follow = "ns3"'),
    "start_jitter_ps": Only("start_jitter", (0,), 'start_jitter = "0us"'),
    **dict.fromkeys(("accuracy_ppm", "seed", "duration_ps", "timeline_iterations", "all_ranks", "probe"), ANY),
}
TCP = {"newreno": "TcpNewReno", "cubic": "TcpCubic", "dctcp": "TcpDctcp"}
"""Name of the ns-3 class for each congestion control that both gradtide and ns-3 have."""

CLUSTER: dict[str, Only | None] = {
    **dict.fromkeys(("topology", "link", "host_latency_ps", "routing"), ANY),
    "node": Only("node", (None,), "workers that are hosts"),
    "host": Only("host", (None,), "hosts that add nothing"),
    "switch_buffer": Only("switch_buffer", (None,), "a buffer for each port"),
    "queue.discipline": Only(
        "queue.kind", ({"kind": "pfifo_fast"}, {"kind": "fifo"}), 'kind = "pfifo_fast", "fifo" or "ecn"'
    ),
    "queue.capacity": ANY,
    "queue.mark": ANY,
    "queue.pcn": Only("queue.kind", (None,), 'kind = "pfifo_fast", "fifo" or "ecn"'),
    "transport.congestion": ANY,
    "transport.recovery": Only("transport.recovery", ("sack",), 'recovery = "sack"'),
    **dict.fromkeys(
        (
            f"transport.{name}"
            for name in ("ecn", "segment_bytes", "initial_window_segments", "window_bytes", "timers", "min_rto_ps")
        ),
        ANY,
    ),
    "transport.restart_after_idle": Only("transport.restart_after_idle", (False,), "no restart after idle times"),
}
JOB: dict[str, Only | None] = {
    **dict.fromkeys(("name", "layers", "hosts", "iterations", "bands"), ANY),
    "collective.algorithm": Only("collective.kind", ({"kind": "ring"},), 'kind = "ring"'),
    "collective.depth": Only("schedule.depth", (1,), "depth = 1"),
    "collective.reduction_rate_bps": Only("collective.reduction_rate", (None,), "no rate of reduction"),
    "collective.remainder": ANY,
    "schedule.order": Only(
        "schedule.order", ({"kind": "fifo"}, {"kind": "priority", "queues": None}), 'order = "fifo" or "priority"'
    ),
    "schedule.fusion": ANY,
    "schedule.barrier": ANY,
    "schedule.chunk_bytes": Only("schedule.chunk", (None,), "buckets that are sent whole"),
    "schedule.credit": Only("schedule.credit", (1,), "credit = 1"),
    "schedule.overhead_ps": Only("schedule.overhead", (0,), 'overhead = "0us"'),
    "schedule.sync_ps": Only("schedule.sync", (0,), 'sync = "0us"'),
    "start_ps": Only("start", (0,), 'start = "0s"'),
    "compute.overlap_slowdown_ppm": Only("compute.overlap_slowdown", (1_000_000,), "overlap_slowdown = 1"),
    "compute.noise_ppm": Only("compute.noise", (0,), "noise = 0"),
    "compute.straggler": Only("compute.straggler", (None,), "no straggler"),
    "servers": Only("collective.ps", (None,), 'kind = "ring"'),
    "ops": Only("compute.order", (None,), "layers in a chain"),
    "announced_packets": Only("announce", (None,), "no announcements"),
    "adaptive": Only("priority", (None,), 'priority = "high", "low" or a band'),
    "parallel": Only("parallel", (None,), "a data-parallel job"),
    "recorded": Only("model", (None,), "a model of layers"),
}
TRAFFIC: dict[str, Only | None] = {
    **dict.fromkeys(("name", "start_ps", "src", "dst", "bytes", "band"), ANY),
    "idle_ps": Only("bursts", (None,), "flows with times of their own"),
    "together": Only("bursts", (False,), "flows with times of their own"),
    "setup_ps": Only("bursts", (0,), "flows with times of their own"),
    "announced_packets": Only("announce", (None,), "no announcements"),
}


def faults(resolved: Resolved, source: Source, traffic: Sequence[BackgroundFlows]) -> list[Fault]:
    """Return a fault for each setting of a scenario that the ns-3 program does not support."""
    spec = core_input(resolved, traffic)
    found: list[Fault] = []

    def add(loc: Loc, what: str, instead: str) -> None:
        found.append(source.fault("GT091", loc, f"{what} is not in the comparison with ns-3", f"available: {instead}"))

    parts: list[tuple[Loc, Mapping[str, Any], dict[str, Only | None]]] = [
        (("cluster",), spec["cluster"], CLUSTER),
        (("run",), spec["run"], RUN),
        *((("job", job["name"]), job, JOB) for job in spec["jobs"]),
        *((("traffic", flows["name"]), flows, TRAFFIC) for flows in spec["traffic"]),
    ]
    for place, table, rules in parts:
        for field, rule in rules.items():
            if rule is not None and _value(table, field) not in rule.values:
                add((*place, *rule.key.split(".")), f"this `{rule.key.rpartition('.')[2]}`", rule.instead)
    for loc, what, instead in _joint(resolved, spec):
        add(loc, what, instead)
    return found


def _value(table: Mapping[str, Any], field: str) -> Any:
    value: Any = table
    for name in field.split("."):
        value = None if value is None else value[name]
    return value


def _joint(resolved: Resolved, spec: Mapping[str, Any]) -> Iterator[tuple[Loc, str, str]]:
    """Yield location, description and supported alternative of the settings that the tables above cannot express."""
    for job in spec["jobs"][1:]:
        yield ("job", job["name"]), "a second job", "one job, beside any traffic"
    for job in spec["jobs"]:
        if len(set(job["bands"])) > 1:
            yield ("job", job["name"], "priority"), "a list of bands", "one band"
        if any(layer["update_ps"] for layer in job["layers"]):
            yield ("job", job["name"], "model"), "a layer's time to apply its gradient", "layers without `update`"
    queue, transport = spec["cluster"]["queue"], spec["cluster"]["transport"]
    mark, congestion = queue["mark"], transport["congestion"]
    if "packets" not in queue["capacity"]:
        yield ("cluster", "queue", "capacity"), "a capacity in bytes", 'packets, as in "1000pkt"'
    if mark is not None:
        if (mark["kind"], mark.get("at")) != ("threshold", "enqueue") or queue["discipline"]["kind"] != "fifo":
            yield ("cluster", "queue", "kind"), "this marking", 'kind = "ecn", which marks what arrives'
        elif not transport["ecn"]:
            yield ("cluster", "transport", "ecn"), "a queue that marks, without ECN,", "ecn = true"
    if congestion["kind"] not in TCP:
        yield ("cluster", "transport", "kind"), f'kind = "{congestion["kind"]}"', '"newreno", "cubic" or "dctcp"'
    for name in ("hystart", "byte_counting", "as_linux"):
        if congestion.get(name):
            yield ("cluster", "transport", name), f"this `{name}`", f"{name} = false"
    bands = [(("job", job["name"]), job["bands"]) for job in spec["jobs"]]
    bands += [(("traffic", flows["name"]), flows["band"]) for flows in spec["traffic"]]
    for loc, used in bands:
        if queue["discipline"]["kind"] == "pfifo_fast" and max(used, default=0) >= BANDS:
            yield (*loc, "priority"), "a band above 2", "bands 0, 1 and 2"
    if any(delay_ps % NS for delay_ps in _delays_ps(resolved)):
        yield ("cluster", "link", "delay"), "a delay of picoseconds", "whole nanoseconds"


def _delays_ps(resolved: Resolved) -> set[int]:
    fabric, cluster = resolved.fabric, resolved.file.cluster
    if isinstance(fabric, Wiring):
        return {cluster.host_latency_ps, *(cable.delay_ps for cable in fabric.cables)}
    if isinstance(fabric, Tree):
        return {cluster.host_latency_ps, fabric.host_link[1], fabric.fabric_link[1]}
    return set()
