"""Premises of an answer, read from resolved scenarios, each with the option that changes it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradtide import units, words
from gradtide.answer import Premise
from gradtide.scenario import Job, Scenario
from gradtide.scenario.fabric import Nodes, Wiring
from gradtide.scenario.keys.parallel import OF_MESH

OPTIONS = {
    "workers": "--workers",
    "parallel": "--parallel",
    "compute.device": "--device",
    "compute.batch": "--batch",
    "compute.seq": "--seq",
    "compute.micro_batch": "--micro-batch",
    "compute.global_batch": "--global-batch",
    "compute.recompute": "--recompute",
    "compute.precision": "--precision",
    "compute.efficiency": "--efficiency",
    "compute.times": "--times",
    "collective.kind": "--collective",
    "collective.ps.servers": "--servers",
    "schedule.order": "--schedule",
    "cluster.device": "--device",
    "cluster.link.rate": "--rate",
    "cluster.topology": "--cluster",
    "run.engine": "--engine",
    "run.seed": "--seed",
}
"""Command-line option for each key; keys of a job are relative to the job. All other keys are set with `--set`."""

LACKS = {
    "buy": {"--collective"},
    "collectives": {"--collective", "--schedule"},
    "plan": {"--collective", "--schedule"},
    "sweep": set(OPTIONS.values()) - {"--cluster", "--engine", "--seed"},
}
"""Options in `OPTIONS` that a command does not have, or to which it gives another meaning."""
ONLY = {"--servers": "compare"}
"""Options in `OPTIONS` that only one command has."""
FIXED = ("demo", "reproduce")
"""Commands with fixed scenarios, whose premises no option changes."""


def premises_of(
    scenarios: Scenario | Sequence[Scenario], varied: Sequence[str] = (), command: str = "run"
) -> tuple[Premise, ...]:
    """Return the premises of a study's runs.

    Args:
        scenarios: one scenario, or all scenarios of a study. If they differ in a key, its premise lists the values.
        varied: keys that the study varies although the given scenarios do not differ in them.
        command: name of the command that runs the study, as in `compare`, whose options change the premises.
    """
    given = [scenarios] if isinstance(scenarios, Scenario) else list(scenarios)
    found: dict[tuple[str, str], list[Premise]] = {}
    for scenario in given:
        for one in _premises(scenario, command):
            found.setdefault((one.name, one.key), []).append(one)
    return tuple(_joined(some, varied) for some in found.values())


MOST_VALUES = 6
"""Maximum number of values that a premise lists; further values are only counted, as in `and 3 more`."""


def _joined(some: Sequence[Premise], varied: Sequence[str]) -> Premise:
    first = some[0]
    values = list(dict.fromkeys(one.value for one in some))
    text = ", ".join(values[:MOST_VALUES])
    if len(values) > MOST_VALUES:
        text += f" and {len(values) - MOST_VALUES} more"
    if any(first.key == key or first.key.startswith(f"{key}.") for key in varied):
        return Premise(first.name, "varied", True, first.key)
    # Values that differ between the runs are no defaults: the study chose them, so they count as stated.
    stated = len(values) > 1 or all(one.stated for one in some)
    return Premise(first.name, text, stated, first.key, first.change)


def _premises(scenario: Scenario, command: str) -> Iterator[Premise]:
    several = len(scenario.jobs) > 1

    def premise(name: str, value: str, key: str) -> Premise:
        return Premise(name, value, scenario.is_stated(key), key, change_of(key, command, is_shared=several))

    for job in scenario.jobs:
        for name, value, key in _of_job(job):
            whole = key if key.startswith("cluster.") else f"job.{job.name}.{key}"
            one = premise(f"{job.name}: {name}" if several else name, value, whole)
            # These keys of `compute` may be stated in the table `parallel` instead; their values are then no defaults.
            is_of_mesh = key.removeprefix("compute.") in OF_MESH and key.removeprefix("compute.") in job.stated
            yield replace(one, stated=True) if is_of_mesh else one
    yield premise("cluster", _cluster(scenario), "cluster.topology")
    yield from (premise(*link) for link in _links(scenario))
    if scenario.engine == "packet":
        yield premise("transport", scenario.transport, "cluster.transport.kind")
        yield premise("queue", scenario.queue, "cluster.queue.kind")
    for tenant in scenario.traffic_names:
        yield Premise("background flows", tenant, True, f"traffic.{tenant}", "")
    yield premise("engine", scenario.engine, "run.engine")
    if scenario.accuracy_ppm is not None:
        yield premise("accuracy", units.format_accuracy(scenario.accuracy_ppm), "run.accuracy")
    if scenario.drawn or scenario.is_stated("run.seed"):
        yield premise("seed", f"{scenario.seed}{'' if scenario.drawn else ', which has no effect'}", "run.seed")


_DEVICE_KEYS = {
    "stated": "compute.device",
    "assumed": "compute.device",
    "file": "model",
    "cluster": "cluster.device",
}
"""The scenario key that determines a job's device, by the origin of the device."""


def _of_job(job: Job) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and key of each premise of a job. Keys are relative to the job unless they are `cluster.…`."""
    if (parallel_model := job.parallel_model) is not None:
        training, own = parallel_model.training, parallel_model.own
        yield "device", parallel_model.accelerator.name, _DEVICE_KEYS[job.device.origin]
        yield "compute times", "roofline model" if own is None else f"from {own.source}", "compute.times"
        stated = parallel_model.accelerator.stated_efficiency(training.precision)
        if stated is not None:
            yield "efficiency", f"{words.percent(stated)} of the peak", "compute.efficiency"
        yield "precision", training.precision, "compute.precision"
        yield "sequence length", f"{training.seq:,}", "compute.seq"
        yield "micro-batch", f"{training.micro_batch:,}", "compute.micro_batch"
        yield "global batch", f"{parallel_model.global_batch:,} sequences", "compute.global_batch"
        yield "recompute", training.recompute, "compute.recompute"
        return
    if job.step is not None:
        yield "compute times", "recorded", "model"
        return
    if job.device.name is not None:
        yield "device", job.device.name, _DEVICE_KEYS[job.device.origin]
    if job.compute.batch is not None:
        yield "compute times", "roofline model", "model"
        yield "mini-batch", f"{job.compute.batch:,} per worker", "compute.batch"
    else:
        taken_on = job.device.times_of or (job.device.name if job.device.origin == "file" else None)
        yield "compute times", "those of the model's file" + (f", on {taken_on}" if taken_on else ""), "model"
    if job.device.cluster is not None:
        yield "device of the cluster", f"{job.device.cluster}, not used", "cluster.device"
    if job.compute.seq is not None:
        yield "sequence length", f"{job.compute.seq:,}", "compute.seq"
    if job.compute.scale_to_ps is not None:
        yield "compute times scaled to", _time(job.compute.scale_to_ps), "compute.scale_to"
    yield "workers", f"{job.computing:,}", "workers"
    if job.servers:
        yield "parameter servers", f"{job.servers:,}", "collective.ps.servers"
    if job.workers > 1 and job.parameter_bytes:
        yield "collective", words.collective(job.collective.kind), "collective.kind"
        if not job.is_pulled:
            yield "schedule", words.schedule(job.schedule.order, job.schedule.barrier), "schedule.order"


def _links(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and key of the premises about links. In a custom network, only links in use count."""
    fabric = scenario.fabric
    network = fabric.cards if isinstance(fabric, Nodes) else fabric
    if isinstance(network, Wiring):
        rates = sorted({cable.rate_bps for cable in scenario.crossed})
        delays = sorted({cable.delay_ps for cable in scenario.crossed})
        yield "link rate", _span([words.rate(rate_bps) for rate_bps in rates]), "cluster.topology.links"
        yield "link delay", _span([_time(delay_ps) for delay_ps in delays]), "cluster.topology.links"
        return
    yield "link rate", words.rate(scenario.link_rate_bps), "cluster.link.rate"
    yield "link delay", _time(scenario.link_delay_ps), "cluster.link.delay"
    if network.kind == "leaf_spine" and network.fabric_link != network.host_link:
        rate_bps, delay_ps = network.fabric_link
        yield "links between switches", f"{words.rate(rate_bps)}, {_time(delay_ps)}", "cluster.topology.fabric_link"


def _span(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}" if values else "none"


def _time(time_ps: int) -> str:
    return words.spaced(units.format_time(time_ps))


def _cluster(scenario: Scenario) -> str:
    fabric = scenario.fabric
    shape = words.fabric(fabric.kind, str(fabric.written().get("bisection", "")))
    if isinstance(fabric, Nodes):
        who = f"{words.many(fabric.node_count, 'node')} of {fabric.gpus} GPUs"
        return who if fabric.kind == "star" else f"{who}, {shape}"
    return f"{words.many(fabric.host_count, 'host')} on {shape}"


def change_of(key: str, command: str, *, is_shared: bool = False) -> str:
    """Return the shortest option with which a command changes a key of a scenario; empty if it cannot.

    Args:
        key: dotted path of the key.
        command: name of the command, as in `tenants map`.
        is_shared: whether the scenario has several jobs; an option for a key of a job then changes all jobs.
    """
    name = command.partition(" ")[0]
    if name in FIXED:
        return ""
    top, _, rest = key.partition(".")
    own = rest.partition(".")[2] if top in ("job", "traffic") else key
    option = OPTIONS.get(own, "")
    is_there = option and option not in LACKS.get(name, ()) and ONLY.get(option, name) == name
    return option if is_there and not (is_shared and top == "job") else f"--set {key}=…"
