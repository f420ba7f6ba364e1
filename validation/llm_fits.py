"""Predicted steps of language models, and the constants of presets/devices.toml that are fitted on measured ones."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from llm_rows import Network, Step, of_foundry, read

import gradtide
from gradtide import _core, presets
from gradtide.parallel.costs import Beside, Costs, slowest_of
from gradtide.parallel.spec import describe
from gradtide.scenario.core import queries
from gradtide.scenario.core.job import parallel

UNSEEN = "unseen.csv"
"""File in the folder of the tables: errors of configurations that were left out of a fit (written by `--fit`)."""
LEFT_OUT = "left_out.json"
"""File in the folder of the tables: constants of the fits that leave out configurations in turn (written by
`--fit`)."""
MOST_FIT_ROUNDS = 25


# What a job loses with each doubling of its ranks.


class Doubling(NamedTuple):
    """A job, and the same job on more GPUs with the same work per GPU.

    Attributes:
        few: the step on fewer GPUs.
        many: the step on more GPUs.
    """

    few: Step
    many: Step

    @property
    def measured(self) -> float:
        """Measured time of the second step, divided by that of the first."""
        return self.many.measured_s / self.few.measured_s

    def ours(self, scaling_loss: float) -> float:
        """Return the same ratio by the closed form."""
        few, many = (closed_form(step, with_constants(step, {}, scaling_loss)) for step in self)
        return many / few


def doublings(folder: Path) -> list[Doubling]:
    """Return each step of llm_foundry with the next one of its series; an empty list if the folder lacks the table."""
    file = folder / "llm_foundry.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        steps = [of_foundry(row) for row in csv.DictReader(text)]
    return [Doubling(*pair) for pair in pairwise(steps) if pair[0].configuration == pair[1].configuration]


def loss_distance(pairs: Iterable[Doubling], scaling_loss: float) -> float:
    """Return the mean absolute error of the change between successive numbers of GPUs."""
    return fmean(abs(pair.ours(scaling_loss) - pair.measured) for pair in pairs)


def fit_loss(pairs: list[Doubling]) -> float:
    """Return the scaling loss with the smallest error, in tenths of a percent, the resolution of these measurements."""
    return min((tenths / 1000 for tenths in range(51)), key=lambda loss: loss_distance(pairs, loss))


# The time of a step. Constants are fitted with `closed_form`, because it takes only microseconds.


def closed_form(step: Step, costs: Costs) -> float:
    """Return the time of a step: its slowest stage, the pipeline's bubble, and transfers beside and after compute."""
    mesh, layout, network = step.mesh, step.layout, step.network
    per_node = min(layout.gpus_per_node, step.gpus)
    block = costs.block(step.model.blocks[0])
    size = costs.tokens * step.model.hidden * costs.training.element_bytes
    tensor = network.ring(size, mesh.tp, min(mesh.tp, per_node), 2)
    outer = max(1, per_node // mesh.tp)

    def exposed(product: float) -> float:
        """Return the exposed time of a collective that is divided beside a product; without a product, all of it."""
        part_s = network.send(size / mesh.tp, crosses=False)
        return max(0.0, (mesh.tp - 1) * (part_s - product / mesh.tp)) if product else tensor / 2

    block_s = 0.0
    for op in block:
        again = op.recompute_communicates
        beside = op.beside if layout.async_tp else (Beside(), Beside())
        forward_s, backward_s = (exposed(one.join) + exposed(one.sum) + one.add for one in beside)
        block_s += op.forward + op.backward + op.recompute + forward_s * (2 if again else 1) + backward_s
        if op.role == "attention":
            keys = network.ring(op.exchanged_bytes * mesh.cp, mesh.cp, min(mesh.cp, outer))
            block_s += keys * (4 if again else 3)
    ends = [sum(op.forward + op.backward for op in ops) + tensor for ops in (costs.embedding(), costs.head())]
    blocks = len(step.model.blocks)
    slowest = -(-blocks // (mesh.pp * layout.chunks)) * layout.chunks * block_s + (
        max(ends) if mesh.pp > 1 else sum(ends)
    )
    whole = blocks * block_s + sum(ends)
    compute = layout.micro_batches * slowest + (whole - slowest) / layout.chunks
    if mesh.pp > 1:
        crosses = mesh.tp * mesh.cp * mesh.data >= per_node
        compute += 2 * (mesh.pp - 1) * network.send(size / mesh.tp if crosses else size, crosses)
    shards = mesh.cp * mesh.fsdp
    own = sum(module.parameters for one in step.model.blocks for module in one.modules) / mesh.pp / mesh.tp
    own += step.model.vocabulary * step.model.hidden / mesh.tp
    compute += costs.optimizer(round(own / shards))
    near = min(shards, outer)
    gathers = network.ring(own * (1 if costs.training.precision == "float8" else 2), shards, near)
    beside = gathers * (2 if layout.zero == 3 else 1) + network.ring(4 * own, shards, near)
    after = network.ring(2 * own, mesh.dp, min(mesh.dp, outer), 2)
    return max(compute, beside) + beside / blocks + after


@cache
def core_input(network: Network, gpus_per_node: int, gpus: int) -> dict[str, Any]:
    """Return the core's input of a divided model on this number of GPUs."""
    keys = network.keys
    node = {**keys["node"], "gpus": gpus_per_node, "nics": gpus_per_node}
    scenario = gradtide.Scenario.from_dict(
        {
            "cluster": {"link": keys["link"], "node": node},
            "job": {
                "train": {
                    "model": "llama3-8b",
                    "parallel": {"fsdp": gpus},
                    # `simulated` replaces its times by those of the step.
                    "compute": {"seq": 8192, "device": "H100"},
                }
            },
            "run": {"engine": "fluid"},
        }
    )
    found: dict[str, Any] = json.loads(queries.core_input(scenario))
    return found


def simulated(step: Step, costs: Costs) -> float:
    """Return the time of a step as `gradtide run` computes it on the fluid engine.

    A network card sends a stage's last activation gradients and its parameter gradients at once, at shared rates; a
    FIFO would delay the former.
    """
    given = core_input(step.network, step.layout.gpus_per_node, step.gpus)
    spec = parallel(costs, step.layout, describe(costs, step.layout))
    (job,) = given["jobs"]
    output = _core.run(json.dumps({**given, "jobs": [{**job, "layers": job["layers"][:1], "parallel": spec}]}))
    (time_ps,) = json.loads(output.summary_json)["jobs"][0]["iteration_time_ps"]
    return float(time_ps) / 1e12


# The fits.


@dataclass(frozen=True)
class Fit:
    """Constants that are fitted together: they minimise the mean absolute error of the rows of some tables.

    Attributes:
        tables: names of the tables.
        start: initial values of the search, by name of the constant.
    """

    tables: tuple[str, ...]
    start: dict[str, float]

    @property
    def name(self) -> str:
        """Name of the fit: its tables, joined."""
        return "+".join(self.tables)

    @property
    def folds(self) -> int:
        """Maximum number of folds for cross-validation; with 15, torchtitan has one row per fold."""
        return 10 if len(self.tables) > 1 else 15


FITS = (
    Fit(("vtrain_single", "vtrain_multi"), {"product": 0.83, "memory": 0.675, "half_size": 103, "host_us": 43}),
    Fit(("torchtitan",), {"product": 0.558, "float8": 0.551, "flash": 0.191, "eager": 2.77, "power": 1.106}),
)
LEAST = {"eager": 1.0, "half_size": 0.0}
MOST = {"product": 0.95, "float8": 0.95, "memory": 0.95, "flash": 0.95}


def with_constants(step: Step, constants: Mapping[str, float], scaling_loss: float | None = None) -> Costs:
    """Return the costs of a step with these constants in place of the preset's."""
    accelerator = presets.accelerator(step.accelerator)
    nodes = -(-step.gpus // step.layout.gpus_per_node)
    loss = accelerator.scaling_loss if scaling_loss is None else scaling_loss
    training = replace(step.training, slowest=slowest_of(nodes, loss))
    if constants:
        power = constants.get("power", 1.0) if step.accelerator == "H200" else 1.0
        product = constants["product"] * power
        shares = {"bf16": product, "fp16": product, "float8": constants.get("float8", 0.0) * power}
        accelerator = replace(
            accelerator,
            efficiency=shares,
            attention_efficiency=constants.get("flash", product) * power,
            memory_efficiency=constants.get("memory", accelerator.memory_efficiency),
            half_size=constants.get("half_size", accelerator.half_size),
        )
        training = replace(
            training,
            host_s=constants["host_us"] * 1e-6 if "host_us" in constants else training.host_s,
            eager_moved=constants.get("eager", training.eager_moved),
        )
    return Costs(step.model, accelerator, step.mesh, training)


StepTime = Callable[[Step, Costs], float]


def errors(steps: Iterable[Step], constants: Mapping[str, float], step_time: StepTime = closed_form) -> list[float]:
    """Return the relative error of each step."""
    return [step_time(step, with_constants(step, constants)) / step.measured_s - 1 for step in steps]


def distance(by_table: Iterable[list[Step]], constants: Mapping[str, float]) -> float:
    """Return the mean over tables of the mean absolute error, so that a long table does not outweigh a short one.

    It is infinite if a constant exceeds its bounds, or if float8 would reach a larger share of its peak than 16-bit
    formats of theirs: float8 products take half as long, but the overhead at the edges of matrices is the same.
    """
    for name, value in constants.items():
        if not LEAST.get(name, 0.0) <= value <= MOST.get(name, float("inf")):
            return float("inf")
    if constants.get("float8", 0.0) > constants["product"]:
        return float("inf")
    return fmean(fmean(map(abs, errors(steps, constants))) for steps in by_table if steps)


def fit(by_table: list[list[Step]], start: Mapping[str, float], share: float = 0.1) -> dict[str, float]:
    """Return the constants with the smallest distance, by a coordinate search with decreasing steps."""
    found, best = dict(start), distance(by_table, start)
    for _ in range(MOST_FIT_ROUNDS):
        moved = False
        for name in found:
            for factor in (1 + share, 1 / (1 + share)):
                tried = {**found, name: found[name] * factor}
                reached = distance(by_table, tried)
                if reached < best - 1e-6:
                    found, best, moved = tried, reached, True
        if not moved:
            share /= 2
        if share < 0.002:
            break
    return found


def folds(tables: list[list[Step]], most: int = 10) -> Iterable[tuple[list[list[Step]], list[list[Step]]]]:
    """Yield training and test rows of each fold; all rows of a configuration are in one of the two."""
    configurations = sorted({step.configuration for steps in tables for step in steps})
    number = min(most, len(configurations))
    of = {configuration: index % number for index, configuration in enumerate(configurations)}
    for left_out in range(number):
        yield (
            [[step for step in steps if of[step.configuration] != left_out] for steps in tables],
            [[step for step in steps if of[step.configuration] == left_out] for steps in tables],
        )


def print_fits(folder: Path) -> None:
    """Fit every set of constants; print the constants, and the errors of configurations that were left out of a fit."""
    rows = [("table", "mean_absolute_error_percent")]
    without: dict[str, list[dict[str, float]]] = {}
    loss = fit_loss(doublings(folder))
    print(f"fitted on llm_foundry: a scaling loss of {loss:.1%}; other fits have that of the preset")
    for one in FITS:
        tables = [read(folder, table) for table in one.tables]
        found = fit(tables, one.start)
        print(f"fitted on {', '.join(one.tables)}:", {name: float(f"{value:.4g}") for name, value in found.items()})
        for table, steps in zip(one.tables, tables, strict=True):
            print(f"  {table}: mean absolute error {fmean(map(abs, errors(steps, found))):.1%} of {len(steps)} rows")
        unseen: dict[str, list[float]] = {table: [] for table in one.tables}
        for seen, left_out in folds(tables, one.folds):
            constants = fit(seen, found, 0.05)
            without.setdefault(one.name, []).append(constants)
            for table, steps in zip(one.tables, left_out, strict=True):
                unseen[table] += errors(steps, constants)
        for table, values in unseen.items():
            rows.append((table, f"{100 * fmean(map(abs, values)):.1f}"))
            print(f"  {table}, each configuration by a fit without it: {rows[-1][1]} %")
    (folder / UNSEEN).write_text("".join(f"{','.join(row)}\n" for row in rows), encoding="utf-8")
    (folder / LEFT_OUT).write_text(json.dumps(without, indent=1) + "\n", encoding="utf-8")
