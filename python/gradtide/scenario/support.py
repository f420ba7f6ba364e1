"""The features that each engine models. Each run is checked against this table; docs/reference/engines.md shows it.

A feature that an engine does not model yet causes the fault GT090, and a feature without meaning on an engine GT015.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from gradtide.algorithms import ALGORITHMS
from gradtide.errors import Fault
from gradtide.scenario.job import Job
from gradtide.scenario.keys.cluster import Queue, Transport
from gradtide.scenario.keys.job import Adaptive
from gradtide.scenario.resolve.network import transport_of
from gradtide.scenario.resolve.resolved import Resolved
from gradtide.scenario.source import Loc, Source
from gradtide.units import PPM

ENGINES = ("fluid", "packet")


class Support(Enum):
    """Support of a feature by an engine."""

    YES = "yes"
    NOT_BUILT = "not built"
    NO_MEANING = "no meaning"


YES, NOT_BUILT, NO_MEANING = Support


class Feature(NamedTuple):
    """A feature of scenarios, and its support by each engine.

    `key` is the key that enables the feature, where `NAME` is any job or tenant. `instead` is the change, for the hint
    of the fault, with which a scenario can keep its engine.
    """

    name: str
    key: str
    fluid: Support
    packet: Support
    instead: str = "leave it out"

    def on(self, engine: str) -> Support:
        """Return the support of an engine for the feature."""
        return {"fluid": self.fluid, "packet": self.packet}[engine]


class Combination(NamedTuple):
    """Two features, `name` and `beside`, that no engine models together yet, and the hint `instead`."""

    name: str
    beside: str
    instead: str


FEATURES = {
    "star": Feature("star networks", "cluster.topology", YES, YES),
    "topology": Feature("leaf-spine, Clos and custom networks", "cluster.topology", YES, YES),
    "node": Feature("nodes of several GPUs", "cluster.node", YES, YES),
    "sharing": Feature("jobs that share hosts", "job.NAME.hosts", YES, YES),
    "ring": Feature("ring all-reduce", "job.NAME.collective.kind", YES, YES),
    "collective": Feature("other collectives and parameter servers", "job.NAME.collective.kind", YES, YES),
    "reduction": Feature("time to add data", "job.NAME.collective.reduction_rate", YES, YES),
    "depth": Feature("pipelined parts of chunks", "job.NAME.schedule.depth", YES, YES),
    "schedule": Feature("order, buckets, chunks, credit, barrier", "job.NAME.schedule", YES, YES),
    "compute": Feature("noise and stragglers", "job.NAME.compute", YES, YES),
    "parallel": Feature("models divided over ranks", "job.NAME.parallel", YES, YES),
    "ranks": Feature(
        "each of these ranks simulated separately",
        "job.NAME.parallel",
        YES,
        YES,
    ),
    "overhead": Feature(
        'overhead of transfers with pull = "start"',
        "job.NAME.schedule.overhead",
        YES,
        NOT_BUILT,
        'overhead = "0us"',
    ),
    "bands": Feature("priority bands", "job.NAME.priority", YES, YES),
    "traffic": Feature("background traffic", "traffic.NAME", YES, YES),
    "margins": Feature("its warm-up and cool-down", "run.warmup", YES, YES),
    "host": Feature("stages and cost of messages in hosts", "cluster.host", YES, YES),
    "efficiency": Feature(
        "share of the rate after headers",
        "cluster.link.efficiency",
        YES,
        NO_MEANING,
        "leave it out: headers and retransmissions are simulated",
    ),
    "queue": Feature(
        "queue disciplines, marks, drops",
        "cluster.queue",
        NO_MEANING,
        YES,
        "the default, pfifo_fast of 1000pkt",
    ),
    "buffer": Feature("shared switch buffer", "cluster.switch_buffer", NO_MEANING, YES),
    "transport": Feature(
        "transports, windows, retransmissions",
        "cluster.transport",
        NO_MEANING,
        YES,
        "the default, newreno of 1380B",
    ),
    "follow": Feature("rules of ns-3 or of the standards", "run.follow", NO_MEANING, YES),
    "jitter": Feature("start jitter of background flows", "run.start_jitter", NO_MEANING, YES),
    "accuracy": Feature("bounded error of results", "run.accuracy", YES, NO_MEANING),
    "probe": Feature("samples over time", "run.probe", NOT_BUILT, YES),
}
"""The features by the id that `_asked` yields, in the order of docs/reference/engines.md."""

COMBINATIONS = {
    "pulled slowdown": Combination("compute that overlap slows down", 'with pull = "start"', 'pull = "update", or 1'),
    "pulled bands": Combination("a list of bands", 'with pull = "start"', "one band"),
    "divided bands": Combination("a list of bands", "for a model that is divided over ranks", "one band"),
    "credit of bands": Combination(
        "several chunks at one time", "with several bands of priority", "credit = 1, or one priority"
    ),
    "adaptive job": Combination(
        "an adaptive priority",
        "for more than a chain of layers and one ring at a time",
        'kind = "ring" (on nodes "single_ring"), depth = 1 and credit = 1, or another policy',
    ),
    "oracle of two": Combination('policy = "oracle"', "beside another job", 'policy = "deadline", or one job'),
    "cwnd of nodes": Combination("samples of windows", "where GPUs share network cards", "nics = gpus, or links alone"),
    "adaptive traffic": Combination("adaptive priority", "for background traffic", '"high", "low", 0 to 7'),
}
"""Pairs of features that no engine models together yet, by the id that `_asked` yields."""


def faults(resolved: Resolved, source: Source) -> list[Fault]:
    """Return a fault for each feature of a scenario that the scenario's engine does not support."""
    found = []
    engine = resolved.file.run.engine
    order = [*FEATURES, *COMBINATIONS]
    for name, loc, what in sorted(_asked(resolved), key=lambda one: order.index(one[0])):
        if name in COMBINATIONS:
            pair = COMBINATIONS[name]
            msg = f"{what} is not built yet {pair.beside}"
            found.append(source.fault("GT090", loc, msg, f"available: {pair.instead}"))
            continue
        feature = FEATURES[name]
        able = " or ".join(f'"{name}"' for name in ENGINES if feature.on(name) is YES)
        if feature.on(engine) is NOT_BUILT:
            msg = f'{what} is not built yet with engine = "{engine}"'
            found.append(source.fault("GT090", loc, msg, f"available: engine = {able}, or {feature.instead}"))
        elif feature.on(engine) is NO_MEANING:
            msg, hint = f'{what} has no effect with engine = "{engine}"', f"write engine = {able}, or {feature.instead}"
            found.append(source.fault("GT015", loc, msg, hint, at_key=True))
    return found


def _asked(resolved: Resolved) -> Iterator[tuple[str, Loc, str]]:
    """Yield id, location and description, for a fault, of each feature or pair of features that a scenario uses."""
    cluster, run = resolved.file.cluster, resolved.file.run
    for job in resolved.jobs:
        on_nodes = cluster.node is not None and cluster.node.gpus > 1
        yield from _asked_by_job(job, ("job", job.name), is_alone=len(resolved.jobs) == 1, on_nodes=on_nodes)
    for name, table in resolved.file.traffic.items():
        if isinstance(table.priority, Adaptive):
            yield "adaptive traffic", ("traffic", name, "priority"), "adaptive priority"
    if cluster.link.efficiency_ppm != PPM:
        yield "efficiency", ("cluster", "link", "efficiency"), "`efficiency`"
    if cluster.queue != Queue():
        yield "queue", ("cluster", "queue"), "a queue other than the default"
    if cluster.switch_buffer is not None:
        yield "buffer", ("cluster", "switch_buffer"), "a shared buffer"
    if cluster.transport != transport_of(cluster.with_values(transport=Transport()), lambda: resolved.reach):
        yield "transport", ("cluster", "transport"), "a transport other than the default"
    if run.follow != "standards":
        yield "follow", ("run", "follow"), "`follow`"
    if run.start_jitter_ps is not None and run.engine != "packet":
        yield "jitter", ("run", "start_jitter"), "`start_jitter`"
    if run.accuracy_ppm is not None:
        yield "accuracy", ("run", "accuracy"), "`accuracy`"
    if run.probe is not None:
        yield "probe", ("run", "probe"), "a probe"
        if run.probe.cwnd and cluster.node is not None and cluster.node.nics != cluster.node.gpus:
            yield "cwnd of nodes", ("run", "probe", "cwnd"), "`cwnd`"


def _asked_by_job(job: Job, loc: Loc, *, is_alone: bool, on_nodes: bool) -> Iterator[tuple[str, Loc, str]]:
    collective, schedule = job.collective, job.schedule
    if job.is_parallel:
        if len(job.bands) > 1:
            yield "divided bands", (*loc, "priority"), "a list of bands"
        if job.adaptive is not None:
            yield "adaptive job", (*loc, "priority"), f'policy = "{job.adaptive.policy}"'
        return
    if job.is_pulled:
        if schedule.overhead_ps:
            yield "overhead", (*loc, "schedule", "overhead"), 'overhead of transfers with pull = "start"'
        if job.compute.overlap_slowdown_ppm != PPM:
            yield "pulled slowdown", (*loc, "compute", "overlap_slowdown"), "compute that overlap slows down"
        if len(job.bands) > 1:
            yield "pulled bands", (*loc, "priority"), "a list of bands"
    if schedule.credit > 1 and len(set(job.bands)) > 1:
        yield "credit of bands", (*loc, "schedule", "credit"), f"credit = {schedule.credit}"
    if job.adaptive is None:
        return
    policy = f'policy = "{job.adaptive.policy}"'
    algorithm = ALGORITHMS[collective.kind]
    is_one = algorithm.is_ring and not (on_nodes and algorithm.uses_all_cards)
    is_ring = is_one and schedule.depth == 1 and schedule.credit == 1
    if not is_ring or job.is_pulled or job.graph is not None:
        yield "adaptive job", (*loc, "priority"), policy
    if job.is_foreseen and not is_alone:
        yield "oracle of two", (*loc, "priority"), policy
