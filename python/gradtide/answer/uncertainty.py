"""Looks up the errors of earlier answers of the same kind, which were compared with measurements.

    uncertainty_of(scenario, "run").sentence()

Answers are of one kind if they agree in certain facts: for a language model its family, device, precision, parallelism
and number of nodes. `compared.json` has the errors of every kind that was compared. It is written by
validation/compared.py, which groups measured steps by the function `step_kind`. The same function determines the kind
of an answer, so an answer has the error of exactly its own kind, or none.

Pairs of predictions and measurements with gloo are in `gradtide.measured`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradtide import measured, presets, words

if TYPE_CHECKING:
    from gradtide.scenario import Job, Scenario

Kind = dict[str, Any]
"""Facts that define a kind of answer, by name: a row of compared.json without its error columns."""

MEASUREMENTS = "measurements"
PRECISIONS = {"float8": "fp8"}
FAMILIES = {"dense": "dense language models", "moe": "mixtures of experts"}
PARALLELISMS = {
    "data": "data-parallel alone (DP or FSDP)",
    "tensor": "tensor-parallel",
    "context": "context-parallel",
    "pipeline": "pipeline-parallel",
}
GLOO_BPS = (80e6, 1e9)
"""Range of link rates in the gloo measurements, in bit/s. Links were nominally 0.1 to 1 Gbit/s; calibrated rates are
lower."""
GLOO_WORKERS = 4


@dataclass(frozen=True)
class Uncertainty:
    """Errors of earlier answers of one kind.

    Attributes:
        of: description of such answers, a plural noun phrase.
        mean_error: mean absolute relative error of predictions; None without a comparison, or if it is not recorded.
        largest: largest absolute relative error; None without a comparison.
        count: number of compared predictions; 0 without a comparison.
        source: page with the comparison; "" without a comparison.
        against: reference of the comparison: measurements, or another simulator.
        parts: errors of parts of the answer, if the answer as a whole was not compared.
    """

    of: str
    mean_error: float | None = None
    largest: float | None = None
    count: int = 0
    source: str = ""
    against: str = MEASUREMENTS
    parts: tuple["Uncertainty", ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether answers of this kind were compared with measurements."""
        return self.count > 0 and self.against == MEASUREMENTS

    def sentence(self) -> str:
        """Return the errors as a sentence."""
        return " ".join([self._own(), *(part.sentence() for part in self.parts)])

    def _own(self) -> str:
        if not self.count:
            return f"Never compared with a measurement: {self.of}."
        if self.count == 1:
            off = words.percent(self.largest or 0.0)
        elif self.mean_error is None:
            off = f"{_share(self.largest or 0.0)} at most"
        else:
            off = f"{words.percent(self.mean_error)} on average and {_share(self.largest or 0.0)} at most"
        other = MEASUREMENTS if self.against == MEASUREMENTS else f"another simulator, {self.against}"
        return f"Predicted {self.of} were off by {off} where they were compared with {other} (n = {self.count:,})."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the sentence of this kind as a JSON object. Each part has its own sentence."""
        return {**asdict(self), "parts": [part.to_dict() for part in self.parts], "sentence": self._own()}


ORDERS = Uncertainty("orders in which workers receive parameters, and the time that these take")
"""Uncertainty of `gradtide order`, whose input is an op graph instead of a scenario."""


def uncertainty_of(scenario: "Scenario", question: str = "run") -> Uncertainty:
    """Return the errors of earlier answers of the same kind as a study's answer about a scenario.

    Args:
        scenario: the scenario, or one of the variants of a study.
        question: the command: run, compare, plan, sweep, tenants, buy, collectives, order or reproduce.
            The command determines the figure of the answer: iteration time, flow completion times or exchange times.
    """
    if question == "tenants":
        return _flows(scenario)
    if question == "collectives":
        return _collectives(scenario)
    if question == "buy":
        return Uncertainty("costs of networks and iteration times on them", parts=_parts(scenario))
    if question == "order":
        return ORDERS
    if len(scenario.jobs) != 1:
        what = (
            "iterations of several jobs that share a network" if scenario.jobs else "flows on a network without a job"
        )
        return Uncertainty(what, parts=_parts(scenario))
    (job,) = scenario.jobs
    if job.parallel_model is not None and job.parallel_model.own is None:
        return _step(scenario, job)
    return _iteration(scenario, job)


# Steps of language models.


def step_kind(scenario: "Scenario", job: "Job") -> Kind:
    """Return the kind of answer for training steps of a language model that is divided over ranks."""
    parallel_model = job.parallel_model
    assert parallel_model is not None
    mesh, layout = parallel_model.costs.mesh.sizes, parallel_model.layout
    axes = (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp"))
    experts = any(kind.expert_parameter_bytes for kind in parallel_model.described.kinds)
    stated = parallel_model.accelerator.stated_efficiency(parallel_model.training.precision)
    return {
        "what": "step",
        "family": "moe" if experts else "dense",
        "device": parallel_model.accelerator.name,
        "precision": parallel_model.training.precision,
        "parallelism": next((name for name, axis in axes if mesh[axis] > 1), "data"),
        "nodes": "one" if parallel_model.described.ranks <= layout.gpus_per_node else "several",
        "efficiency": stated,
        "engine": scenario.engine,
    }


def step_words(kind: Mapping[str, Any]) -> str:
    """Return the description of a kind of training steps, a plural noun phrase."""
    precision = PRECISIONS.get(kind["precision"], kind["precision"])
    stated = "" if kind["efficiency"] is None else f" at a stated efficiency of {kind['efficiency']:g}"
    nodes = "within one node" if kind["nodes"] == "one" else "over several nodes"
    engine = "" if kind["engine"] == "fluid" else f", by the {kind['engine']} engine"
    return (
        f"steps of {FAMILIES[kind['family']]} on {kind['device']} in {precision}{stated}, "
        f"{PARALLELISMS[kind['parallelism']]} {nodes}{engine}"
    )


def _step(scenario: "Scenario", job: "Job") -> Uncertainty:
    kind = step_kind(scenario, job)
    what = step_words(kind)
    if kind["nodes"] == "several":
        least_bps, most_bps = _row({"what": "links of steps"})["bps"]
        if not least_bps <= scenario.link_rate_bps <= most_bps:
            side = "less" if scenario.link_rate_bps < least_bps else "more"
            bound = least_bps if side == "less" else most_bps
            return Uncertainty(f"{what}, on links of {side} than {bound / 1e9:g} Gbit/s")
    return _found(kind, what)


# Iterations of other jobs.


def _iteration(scenario: "Scenario", job: "Job") -> Uncertainty:
    if job.step is not None:
        return Uncertainty("iterations rebuilt from a recorded step", parts=_parts(scenario))
    is_given = job.compute.batch is None or job.parallel_model is not None
    if is_given:
        gloo = _gloo(scenario, job)
        if gloo is not None:
            return gloo
        return Uncertainty(
            "iterations of a model whose compute times were given, on this network", parts=_parts(scenario)
        )
    compute = _compute(job)
    if job.workers == 1:
        return compute
    parts = (compute, *_parts(scenario)) if compute.count else _parts(scenario)
    return Uncertainty(f"iterations of {_models(job)} on several {job.compute.device}, with their network", parts=parts)


def _models(job: "Job") -> str:
    is_image = job.model in presets.model_names() and "image" in presets.model(job.model).sample
    return "image models" if is_image else "models other than image models"


def _compute(job: "Job") -> Uncertainty:
    """Return the error of compute times that use an efficiency calibrated with one model on the job's device."""
    device, models = job.compute.device, _models(job)
    if job.compute.efficiency_ppm is not None:
        return Uncertainty(f"compute times on {device} at a stated efficiency")
    return _found({"what": "compute", "models": models, "device": device}, f"compute times of {models} on one {device}")


def _gloo(scenario: "Scenario", job: "Job") -> Uncertainty | None:
    """Return the error of gloo runs on CPUs if the job resembles them: timed layers, slow links and few workers."""
    least_bps, most_bps = GLOO_BPS
    if not least_bps <= scenario.link_rate_bps <= most_bps or job.workers > GLOO_WORKERS or _has_node(scenario):
        return None
    if job.is_pulled:
        return _found({"what": "servers"}, "iterations of timed layers on CPUs with parameter servers over gloo")
    if job.collective.ps is not None or job.is_uneven:
        return None
    if job.parallel_model is not None:
        return _of_pairs(measured.pairs(sharded=True), "steps of FSDP by timed ops on CPUs over gloo")
    if not scenario.expected_traffic:
        alone = [one for one in measured.pairs() if one.setup not in _beside_flows()]
        return _of_pairs(alone, "iterations of timed layers on CPUs over gloo at up to 1 Gbit/s")
    if _is_linux(scenario):
        beside = [one for one in measured.pairs() if one.setup in _beside_flows()]
        return _of_pairs(beside, "iterations of timed layers over gloo beside flows on Linux queues")
    return None


def _beside_flows() -> set[str]:
    return {one.setup for one in measured.pairs() if one.source == _row({"what": "flows"})["source"]}


def _of_pairs(pairs: Sequence[measured.Pair], what: str) -> Uncertainty:
    found = [abs(one.predicted_ms / one.measured_ms - 1) for one in pairs]
    return Uncertainty(what, fmean(found), max(found), len(found), ", ".join(dict.fromkeys(p.source for p in pairs)))


# Flows, collectives and network engines


def _flows(scenario: "Scenario") -> Uncertainty:
    if _is_linux(scenario) and scenario.link_rate_bps <= GLOO_BPS[1]:
        return _found({"what": "flows"}, "mean completion times of classes of flows beside a job on Linux queues")
    return Uncertainty("completion times of background flows beside a job", parts=_parts(scenario))


def _is_linux(scenario: "Scenario") -> bool:
    """Whether queues and transport are those of the testbed: pfifo_fast and CUBIC on the packet engine."""
    cluster = scenario.to_dict()["cluster"]
    transport = cluster["transport"]
    is_cubic = transport["kind"] == "cubic" and not transport.get("ecn")
    return scenario.engine == "packet" and is_cubic and cluster["queue"]["kind"] == "pfifo_fast"


def _has_node(scenario: "Scenario") -> bool:
    return "node" in scenario.to_dict()["cluster"]


def node_kind(name: str) -> Kind:
    """Return the kind of answer for collectives inside a node of a built-in cluster."""
    return {"what": "collective", "node": name}


def _collectives(scenario: "Scenario") -> Uncertainty:
    """Return the error of collective times. It is known only inside a node with the parameters of a measured node."""
    cluster = scenario.to_dict()["cluster"]
    node = cluster.get("node")
    workers = max((len(job.hosts) for job in scenario.jobs), default=0)
    if node is None or workers > node["gpus"]:
        between = "between hosts" if node is None else "over several nodes"
        return Uncertainty(f"exchange times {between}", parts=_parts(scenario))
    device = _device(scenario)
    for name in presets.cluster_names():
        kind = node_kind(name)
        if _is_compared(kind) and _node_of(name) == _figures(node) and device in (None, _plain(_row(kind)["device"])):
            return _found(kind, f"times of collectives inside a node of 8 {_row(kind)['device']} on NVSwitch")
    on = "" if device is None else f" of {device}"
    return Uncertainty(f"times of collectives inside a node{on}", parts=_parts(scenario))


def _device(scenario: "Scenario") -> str | None:
    """Return the device of the job without its precision; None if its times are given."""
    for job in scenario.jobs:
        if job.parallel_model is not None:
            return _plain(job.parallel_model.accelerator.name)
        if job.device.name is not None:
            return _plain(job.device.name)
    return None


def _plain(device: str) -> str:
    return device.removesuffix("-bf16").removesuffix("-fp8")


@cache
def _node_of(name: str) -> tuple[Any, ...] | None:
    from gradtide.scenario import Scenario

    found = presets.cluster(f"{name}/1")
    assert found is not None
    if "node" not in found["cluster"]:
        return None
    layers = [{"name": "any", "forward": "1ms", "backward": "1ms", "parameters": "4B"}]
    scenario = Scenario.from_dict({**found, "job": {"any": {"model": {"layers": layers}, "workers": 2}}})
    return _figures(scenario.to_dict()["cluster"]["node"])


def _figures(node: Mapping[str, Any]) -> tuple[Any, ...]:
    scale_up = node["scale_up"]
    return node["gpus"], node.get("launch"), *(scale_up.get(key) for key in ("rate", "delay", "efficiency"))


def _parts(scenario: "Scenario") -> tuple[Uncertainty, ...]:
    """Return the error of the network engine against another simulator; empty if the engine was not compared."""
    kind: Kind = {"what": "engine", "engine": scenario.engine}
    what = f"times of flows by the {scenario.engine} engine"
    if scenario.engine == "packet":
        transport = scenario.to_dict()["cluster"]["transport"]
        kind["transport"] = f"{transport['kind']}{'+ecn' if transport.get('ecn') else ''}"
        what += f" with {kind['transport']}"
    return (_found(kind, what),) if _is_compared(kind) else ()


# The table.


@cache
def _table() -> tuple[dict[str, Any], ...]:
    text = resources.files(__package__ or "gradtide.answer").joinpath("compared.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


def _row(kind: Mapping[str, Any]) -> dict[str, Any]:
    return next(row for row in _table() if kind.items() <= row.items())


def _is_compared(kind: Mapping[str, Any]) -> bool:
    return any(kind.items() <= row.items() for row in _table())


def _found(kind: Mapping[str, Any], what: str) -> Uncertainty:
    if not _is_compared(kind):
        return Uncertainty(what)
    row = _row(kind)
    return Uncertainty(
        what, row["mean_error"], row["largest"], row["count"], row["source"], row.get("against", MEASUREMENTS)
    )


def _share(share: float) -> str:
    """Write an error in percent, with one decimal below 10 %, none above, and more decimals if it is below 0.05 %."""
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 0.995 else words.difference(value)
