"""What each engine models, in one table: read by the check before a run, and printed in docs/reference/engines.md.

What an engine could model but does not is GT090; what has no meaning there is GT015.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from gradtide.errors import Fault
from gradtide.scenario.defaults import transport_of
from gradtide.scenario.job import Job
from gradtide.scenario.keys import PPM, Adaptive, Queue, Transport
from gradtide.scenario.resolve import Resolved
from gradtide.scenario.source import Loc, Source
from gradtide.scenario.write import toml_value

ENGINES = ("pipe", "fluid", "packet")
Asked: TypeAlias = Iterator[tuple[Loc, str]]
"""Where a scenario asks for a feature, and what it asks for, in words."""


class Support(Enum):
    """What an engine does with a feature."""

    YES = "yes"
    NOT_BUILT = "not built (GT090)"
    NO_MEANING = "no meaning (GT015)"
    IGNORED = "accepted, no effect"


YES, NOT_BUILT, NO_MEANING, IGNORED = Support


@dataclass(frozen=True)
class Feature:
    """A row of the table of engines.

    Attributes:
        name: what users call it.
        key: the key that asks for it; `NAME` stands for a job or a tenant.
        pipe: what the pipe engine does with it.
        fluid: what the fluid engine does with it.
        packet: what the packet engine does with it.
        asked: finds where a scenario asks for it; `None` where another check does.
        instead: what to write to keep the engine.
    """

    name: str
    key: str
    pipe: Support
    fluid: Support
    packet: Support
    asked: Callable[[Resolved], Asked] | None = None
    instead: str = "leave it out"

    def on(self, engine: str) -> Support:
        """Return what an engine does with it."""
        return {"pipe": self.pipe, "fluid": self.fluid, "packet": self.packet}[engine]


@dataclass(frozen=True)
class Combination:
    """Two features that no engine models together yet.

    Attributes:
        name: the first.
        beside: the second.
        asked: finds where a scenario asks for both.
        instead: what is available.
    """

    name: str
    beside: str
    asked: Callable[[Resolved], Asked]
    instead: str


def faults(resolved: Resolved, source: Source) -> list[Fault]:
    """Return a fault for each feature that a scenario asks for and its engine cannot run."""
    found = []
    engine = resolved.file.run.engine
    for feature in FEATURES:
        support = feature.on(engine)
        if support in (YES, IGNORED) or feature.asked is None:
            continue
        able = " or ".join(f'"{name}"' for name in ENGINES if feature.on(name) is YES)
        for loc, what in feature.asked(resolved):
            if support is NOT_BUILT:
                msg = f'{what} is not built yet with engine = "{engine}"'
                found.append(source.fault("GT090", loc, msg, f"available: engine = {able}, or {feature.instead}"))
            else:
                msg = f'{what} has no effect with engine = "{engine}"'
                found.append(
                    source.fault("GT015", loc, msg, f"write engine = {able}, or {feature.instead}", at_key=True)
                )
    for pair in COMBINATIONS:
        for loc, what in pair.asked(resolved):
            msg = f"{what} is not built yet {pair.beside}"
            found.append(source.fault("GT090", loc, msg, f"available: {pair.instead}"))
    return found


def _jobs(resolved: Resolved) -> Iterator[tuple[Job, Loc]]:
    for job in resolved.jobs:
        yield job, ("job", job.name)


def _topology(resolved: Resolved) -> Asked:
    if resolved.fabric.kind != "star":
        yield ("cluster", "topology", "kind"), f'kind = "{resolved.fabric.kind}"'


def _queue(resolved: Resolved) -> Asked:
    if resolved.file.cluster.queue != Queue():
        yield ("cluster", "queue"), "a queue other than the default"


def _switch_buffer(resolved: Resolved) -> Asked:
    if resolved.file.cluster.switch_buffer is not None:
        yield ("cluster", "switch_buffer"), "a shared buffer"


def _transport(resolved: Resolved) -> Asked:
    cluster = resolved.file.cluster
    if cluster.transport != transport_of(cluster.with_values(transport=Transport()), resolved.fabric):
        yield ("cluster", "transport"), "a transport other than the default"


def _probe(resolved: Resolved) -> Asked:
    if resolved.file.run.probe is not None:
        yield ("run", "probe"), "a probe"


def _traffic(resolved: Resolved) -> Asked:
    for name in resolved.file.traffic:
        yield ("traffic", name), "background traffic"


def _margins(resolved: Resolved) -> Asked:
    for key in ("warmup", "cooldown"):
        if resolved.file.run.value(key):
            yield ("run", key), f"`{key}`, which is for background traffic,"


def _efficiency(resolved: Resolved) -> Asked:
    if resolved.file.cluster.link.efficiency_ppm != PPM:
        yield ("cluster", "link", "efficiency"), "`efficiency`"


def _collective(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.collective.kind != "ring":
            yield (*loc, "collective", "kind"), f'kind = "{job.collective.kind}"'


def _reduction_rate(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.collective.reduction_rate_bps is not None:
            yield (*loc, "collective", "reduction_rate"), "a rate of reduction"


def _depth(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.schedule.depth != 1:
            yield (*loc, "schedule", "depth"), f"depth = {toml_value(job.schedule.depth)}"


def _pulled_overhead(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.is_pulled and job.schedule.overhead_ps:
            yield (*loc, "schedule", "overhead"), 'an overhead, with pull = "start",'


def _pulled_slowdown(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.is_pulled and job.compute.overlap_slowdown_ppm != PPM:
            yield (*loc, "compute", "overlap_slowdown"), "compute that overlap slows down"


def _pulled_bands(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.is_pulled and len(job.bands) > 1:
            yield (*loc, "priority"), "a list of bands"


def _pulled_host_cost(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.is_pulled and job.collective.host_cost_ps is not None:
            yield (*loc, "collective", "host_cost"), "a host cost"


def _credit_of_bands(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.schedule.credit > 1 and len(set(job.bands)) > 1:
            yield (*loc, "schedule", "credit"), f"credit = {job.schedule.credit}"


def _adaptive_job(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        plain = job.collective.kind == "ring" and job.schedule.depth == 1 and job.schedule.credit == 1
        if job.adaptive is not None and (not plain or job.is_pulled or job.graph is not None):
            yield (*loc, "priority"), f'policy = "{job.adaptive.policy}"'


def _oracle_of_two(resolved: Resolved) -> Asked:
    for job, loc in _jobs(resolved):
        if job.is_foreseen and len(resolved.jobs) > 1:
            yield (*loc, "priority"), 'policy = "oracle"'


def _adaptive_traffic(resolved: Resolved) -> Asked:
    for name, table in resolved.file.traffic.items():
        if isinstance(table.priority, Adaptive):
            yield ("traffic", name, "priority"), "adaptive priority"


FEATURES = (
    Feature("a star of hosts around one switch", "cluster.topology", YES, YES, YES),
    Feature(
        "leaf-spine, Clos and custom networks", "cluster.topology", NOT_BUILT, YES, YES, _topology, 'kind = "star"'
    ),
    Feature("jobs that share hosts (GT043)", "job.NAME.hosts", NOT_BUILT, YES, YES),
    Feature("ring all-reduce", "job.NAME.collective.kind", YES, YES, YES),
    Feature(
        "other collectives and parameter servers",
        "job.NAME.collective.kind",
        NOT_BUILT,
        YES,
        YES,
        _collective,
        'kind = "ring"',
    ),
    Feature(
        "time to add what was received", "job.NAME.collective.reduction_rate", NOT_BUILT, YES, YES, _reduction_rate
    ),
    Feature("time of a host per message", "job.NAME.collective.host_cost", YES, YES, YES),
    Feature("pipelined parts of a chunk", "job.NAME.schedule.depth", NOT_BUILT, YES, YES, _depth, "depth = 1"),
    Feature("order, buckets, chunks, credit, barrier", "job.NAME.schedule", YES, YES, YES),
    Feature("workers that differ: noise, straggler", "job.NAME.compute", YES, YES, YES),
    Feature(
        'a time before each transfer, with pull = "start"',
        "job.NAME.schedule.overhead",
        NOT_BUILT,
        YES,
        NOT_BUILT,
        _pulled_overhead,
        'overhead = "0us"',
    ),
    Feature("priority bands", "job.NAME.priority", IGNORED, YES, YES),
    Feature("background traffic beside jobs, or alone", "traffic.NAME", NOT_BUILT, YES, YES, _traffic, "jobs only"),
    Feature("warm-up and cool-down of traffic", "run.warmup", NO_MEANING, YES, YES, _margins, '"0s"'),
    Feature(
        "share of the rate left after headers",
        "cluster.link.efficiency",
        YES,
        YES,
        NO_MEANING,
        _efficiency,
        "leave it out: headers and retransmissions are simulated",
    ),
    Feature(
        "queues: disciplines, marks, drops",
        "cluster.queue",
        NO_MEANING,
        NO_MEANING,
        YES,
        _queue,
        "the default, pfifo_fast of 1000pkt",
    ),
    Feature("a buffer that ports share", "cluster.switch_buffer", NO_MEANING, NO_MEANING, YES, _switch_buffer),
    Feature(
        "transports, windows, retransmissions",
        "cluster.transport",
        NO_MEANING,
        NO_MEANING,
        YES,
        _transport,
        "the default, newreno of 1380B",
    ),
    Feature("samples over time", "run.probe", NOT_BUILT, NOT_BUILT, YES, _probe),
)
"""Engine by feature. The order is that of the docs page."""

COMBINATIONS = (
    Combination("compute that overlap slows down", 'with pull = "start"', _pulled_slowdown, 'pull = "update", or 1'),
    Combination("a list of bands", 'with pull = "start"', _pulled_bands, "one band"),
    Combination("a time of a host per message", 'with pull = "start"', _pulled_host_cost, 'pull = "update", or none'),
    Combination(
        "several chunks at one time", "with several bands of priority", _credit_of_bands, "credit = 1, or one priority"
    ),
    Combination(
        "an adaptive priority",
        "for more than a chain of layers and one ring at a time",
        _adaptive_job,
        'kind = "ring", depth = 1 and credit = 1, or another policy',
    ),
    Combination('policy = "oracle"', "beside another job", _oracle_of_two, 'policy = "deadline", or one job'),
    Combination("adaptive priority", "for background traffic", _adaptive_traffic, '"high", "low", 0 to 7'),
)
"""Pairs of features that no engine models together yet."""
