"""Measured steps of language models on 2 to 512 GPUs, beside ours.

    python validation/llm_steps.py [--tables DIR] [--write]   # the errors of every table; docs/validation/llm-steps.md
    python validation/llm_steps.py --fit                      # what in presets/devices.toml is fitted, again

Each step is predicted twice: with what its own program is known to do (`Step`), which is what constants are fitted on,
and as a user can state it (`scenario_of`), which is how wrong answers are. `--write` also writes
python/gradtide/answer/compared.json (compared.py). One file, because both share the readers of the tables.

Tables (validation/llm, or DIR with files of the same names):

- vtrain_single, vtrain_multi: GPT in fp16 with Megatron-DeepSpeed on A100 (repository VIA-Research/vTrain at
  f8dda84, data/ground_truth_*.csv, MIT-style licence of KAIST). No gradient buckets, full recomputation.
- vtrain_allreduce_a100: nccl-tests all-reduce on A100 of one node, from the same repository.
- megatron_table5: Korthikanti et al. (2022), table 5, as carried by calculon-ai/calculon at caa4b11 (Apache-2.0).
- torchtitan: Llama 3 on H100 and H200, from pytorch/torchtitan at b5bcd76, benchmarks (BSD-3).
- llm_foundry: MPT with FSDP, 2,048 tokens, with the same work for each GPU of 8 to 128, from mosaicml/llm-foundry at
  061f2c7, scripts/train/benchmarking (Apache-2.0): every series of two numbers of GPUs or more. Of its steps only the
  changes from one number to the next are compared, for `scaling_loss`.
- published: steps of dense models and of mixtures of experts on A100, H100, H200 and B200, from performance summaries
  of NeMo and Megatron-Bridge, MLPerf Training, torchtitan, fms-fsdp and llm-foundry; configurations.json has their
  models. Nothing is fitted on them, but steps of MPT on 8 to 128 GPUs are also in llm_foundry. B200 has no efficiency
  of its own: 0.6 is stated, as the H100 has. Rows that no scenario can state are kept, with the reason.

What is fitted on which rows: `FITS`. Steps of Megatron are predicted with what is fitted on vTrain.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "validation")]

import compared  # noqa: E402
import pages  # noqa: E402

import gradtide  # noqa: E402
from gradtide import _core, presets, units  # noqa: E402
from gradtide.answer.uncertainty import PRECISIONS, step_kind  # noqa: E402
from gradtide.architecture import Architecture  # noqa: E402
from gradtide.parallel.costs import Beside, Costs, Training, slowest_of  # noqa: E402
from gradtide.parallel.mesh import Mesh  # noqa: E402
from gradtide.parallel.spec import Layout, describe  # noqa: E402
from gradtide.scenario.core import queries  # noqa: E402
from gradtide.scenario.core.job import parallel  # noqa: E402

TABLES = ROOT / "validation" / "llm"
UNSEEN = "unseen.csv"
"""In the folder of the tables: errors of configurations that a fit has not seen (`--fit` writes it)."""
LEFT_OUT = "left_out.json"
"""In the folder of the tables: the constants of each fit that left configurations out, in turn (`--fit` writes it)."""
ANSWERS = "answers.csv"
"""In the folder of the tables: the time of every step as a user states it (`--write` writes it)."""
OURS = "ours.csv"
"""In the folder of the tables: the time of every step (`--write` writes it)."""
PREDICTIONS = "predictions.csv"
"""In the folder of the tables: every measured step beside both predictions (`--write` writes it)."""
FAR = 0.25
"""The page lists published steps with a larger relative error than this."""
PAGE = ROOT / "docs" / "validation" / "llm-steps.md"
Row = Mapping[str, str]
GPUS_PER_NODE = 8
MOST_FIT_ROUNDS = 25


# The network of a node and between nodes.


@dataclass(frozen=True)
class Network:
    """A built-in cluster, and what a collective costs on it.

    Attributes:
        preset: its name.
        nic_rate: of the share that a GPU has of its node's network cards, if it is not the preset's.
    """

    preset: str
    nic_rate: str = ""

    @cached_property
    def keys(self) -> dict[str, Any]:
        """What the preset stands for."""
        found = presets.cluster(self.preset)
        assert found is not None
        keys: dict[str, Any] = found["cluster"]
        return {**keys, "link": {**keys["link"], "rate": self.nic_rate or keys["link"]["rate"]}}

    @cached_property
    def rates(self) -> tuple[float, float]:
        """Bytes/s that collectives reach inside a node, and of a GPU's share of the network cards."""
        inside, link = self.keys["node"]["scale_up"], self.keys["link"]
        return tuple(units.parse_rate(one["rate"]) / 8 * one["efficiency"] for one in (inside, link))  # type: ignore[return-value]

    @cached_property
    def delays(self) -> tuple[float, float, float]:
        """Seconds before the first byte of a collective, of a round inside a node, and of a round between nodes."""
        node, link = self.keys["node"], self.keys["link"]
        start, inside, between = (
            units.parse_time(text) / 1e12 for text in (node["launch"], node["scale_up"]["delay"], link["delay"])
        )
        return start, 2 * inside, 2 * between

    def ring(self, size: float, ranks: int, per_node: int, turns: int = 1) -> float:
        """Return the time of an all-gather or reduce-scatter of `size` bytes; of an all-reduce with two turns."""
        if ranks == 1:
            return 0.0
        (scale_up, nic), (start, inside_s, between_s) = self.rates, self.delays
        nodes = -(-ranks // per_node)
        moved = turns * size * (ranks - 1) / ranks
        if nodes == 1:
            return start + turns * (ranks - 1) * inside_s + moved / scale_up
        inside = moved * (per_node - 1) / per_node / scale_up
        between = moved / per_node / nic + turns * (nodes - 1) * between_s
        return start + turns * (ranks - nodes) * inside_s + max(inside, between)

    def send(self, size: float, crosses: bool) -> float:
        """Return the time in which a rank sends `size` bytes to another, on its node or not."""
        return self.delays[0] + size / self.rates[crosses]


# vTrain says 800 Gbit/s for a node of 8 GPUs; Korthikanti et al. (2022) measured on nodes with 8 cards of 200 Gbit/s.
VTRAIN = Network("a100-hgx", "100Gbps")
SELENE = Network("a100-hgx")


# A row of a table -> a job.


@dataclass(frozen=True)
class Step:
    """A measured step.

    Attributes:
        id: of the row.
        configuration: what rows of the same model and mesh have in common.
        config: what is trained, as Hugging Face writes it.
        accelerator: name of the preset.
        mesh: of ranks.
        training: how.
        layout: how ranks work together.
        network: between them.
        measured_s: of an iteration.
        gpus: number.
        memory_gib: measured, if it is known.
    """

    id: str
    configuration: tuple[Any, ...]
    config: Mapping[str, Any]
    accelerator: str
    mesh: Mesh
    training: Training
    layout: Layout
    network: Network
    measured_s: float
    gpus: int
    memory_gib: float | None = None

    @cached_property
    def model(self) -> Architecture:
        """What is trained, in numbers."""
        return Architecture.of(self.config)

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.training.micro_batch * self.layout.micro_batches * self.mesh.data * self.training.seq


@cache
def gpt(hidden: int, heads: int, layers: int, seq: int, vocabulary: int) -> Mapping[str, Any]:
    """Return a GPT."""
    config = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": seq, "vocab_size": vocabulary}
    return {"model_type": "gpt2", **config}


@cache
def llama(name: str) -> Mapping[str, Any]:
    """Return a preset by the name that torchtitan has for it."""
    return presets.configuration(name.lower().replace("llama3.1", "llama3"))


MEGATRON_HOST_S = 43e-6
"""Time in which PyTorch with Megatron-DeepSpeed issues a kernel: fitted on vtrain_single, of which most rows wait for
it. It belongs to that program and its hosts, not to the GPU."""


def of_vtrain(row: Row) -> Step:
    """Read a row of vtrain_*: full recomputation, no sequence parallelism, one gradient all-reduce after backward.

    Stages send parts that are gathered, as DeepSpeed's pipelines do by default (`pipe_partitioned`).
    """
    hidden, heads, layers, seq, micro, tp, dp, pp = (
        int(row[key]) for key in ("hidden", "heads", "layers", "seq", "micro_batch", "tp", "dp", "pp")
    )
    training = Training(
        seq, micro, "fp16", "full", "unfused", sequence_parallel=False, dropout=True, host_s=MEGATRON_HOST_S,
    )  # fmt: skip
    gpus = int(row["gpus"])
    layout = Layout(
        min(GPUS_PER_NODE, gpus), int(row["microbatches"]), 0, overlap_gradients=False, scatter_gather=tp > 1 and pp > 1
    )
    return Step(
        row["id"], (hidden, layers, tp, dp, pp), gpt(hidden, heads, layers, seq, int(row["vocab"])), "A100",
        Mesh(tp=tp, dp=dp, pp=pp), training, layout, VTRAIN, float(row["measured_ms"]) / 1e3, gpus,
    )  # fmt: skip


def of_megatron(row: Row) -> Step:
    """Read a row of megatron_table5: interleaved pipelines, no data parallelism.

    Megatron-LM of that time sends parts that are gathered by default (`scatter_gather_tensors_in_pipeline`).
    """
    layers, hidden, heads, seq, micro, batch, tp, pp, chunks = (
        int(row[key])
        for key in ("layers", "hidden", "heads", "seq", "micro_batch", "global_batch", "tp", "pp", "interleave")
    )
    recompute = "full" if row["recompute"] == "full" else "selective"
    training = Training(
        seq, micro, "fp16", recompute, "unfused",  # type: ignore[arg-type]
        sequence_parallel=row["sequence_parallel"] == "1", dropout=True, host_s=MEGATRON_HOST_S,
    )  # fmt: skip
    layout = Layout(
        GPUS_PER_NODE,
        batch // micro,
        0,
        "interleaved" if chunks > 1 else "1f1b",
        chunks,
        scatter_gather=not training.sequence_parallel and tp > 1 and pp > 1,
    )
    return Step(
        f"{row['model']} {recompute}", (row["model"],), gpt(hidden, heads, layers, seq, int(row["vocab"])), "A100",
        Mesh(tp=tp, pp=pp), training, layout, SELENE, float(row["measured_s"]), int(row["gpus"]),
    )  # fmt: skip


COMPILED_LOSS = "2025-04"
"""Torchtitan's commit e8977b0 (December 2024) left the loss uncompiled; since pull request 1033 it is compiled."""


def of_torchtitan(row: Row) -> Step:
    """Read a row of torchtitan: FSDP2, with pipelines micro-batches of one sequence and parameters that stay gathered.

    Its loss is compiled as the model is from `COMPILED_LOSS` on.

    Asynchronous tensor parallelism leaves out the head and the embedding, and sums over several products.
    """
    fsdp, tp, cp, pp, seq, batch = (int(row[key]) for key in ("fsdp", "tp", "cp", "pp", "seq", "local_batch"))
    training = Training(
        seq, 1 if pp > 1 else batch, row["dtype"], row["recompute"] or "none",  # type: ignore[arg-type]
        compiled=row["compile"] == "1", compiled_loss=row["compile"] == "1" and row["date"] >= COMPILED_LOSS,
    )  # fmt: skip
    is_interleaved = "interleaved" in row["schedule"].lower()
    layout = Layout(
        GPUS_PER_NODE, batch if pp > 1 else 1, 2 if pp > 1 else 3,
        "interleaved" if is_interleaved else "1f1b", 2 if is_interleaved else 1, async_tp=row["async_tp"] == "1",
    )  # fmt: skip
    gpus, mesh = int(row["gpus"]), Mesh(tp=tp, cp=cp, fsdp=fsdp, pp=pp)
    tokens = batch * fsdp * seq
    accelerator, cluster = ("H100-500W", "h100-hgx") if "500W" in row["hardware"] else ("H200", "h200-hgx")
    measured_s = tokens / float(row["tokens_per_s_per_gpu"]) / gpus
    return Step(
        row["id"], (row["id"],), llama(row["model"]), accelerator, mesh, training, layout, Network(cluster),
        measured_s, gpus, float(row["memory_gib"]) if row["memory_gib"] else None,
    )  # fmt: skip


READERS: dict[str, Callable[[Row], Step]] = {
    "vtrain_single": of_vtrain,
    "vtrain_multi": of_vtrain,
    "megatron_table5": of_megatron,
    "torchtitan": of_torchtitan,
}


def read(folder: Path, table: str) -> list[Step]:
    """Return the steps of a table; none if the folder does not have it."""
    file = folder / f"{table}.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return [READERS[table](row) for row in csv.DictReader(text)]


# A measured step as a user states it.


def scenario_of(step: Step) -> gradtide.Scenario:
    """Return the scenario that a user would write.

    It cannot say what only the measured program does: masks of dropout, the host's time for a kernel, and gradients
    that are reduced after the backward pass.
    """
    mesh, layout, training, keys = step.mesh, step.layout, step.training, step.network.keys
    parallel = {
        "tp": mesh.tp, "cp": mesh.cp, "fsdp": mesh.fsdp, "dp": mesh.dp, "pp": mesh.pp,
        "pipeline": layout.pipeline, "async_tp": layout.async_tp, "scatter_gather": layout.scatter_gather,
        "sequence": training.sequence_parallel,
    }  # fmt: skip
    parallel |= {"zero": layout.zero} if layout.zero else {}
    parallel |= {"chunks": layout.chunks} if layout.chunks > 1 else {}
    compute = {
        "seq": training.seq, "micro_batch": training.micro_batch, "recompute": training.recompute,
        "global_batch": training.micro_batch * layout.micro_batches * mesh.data, "precision": training.precision,
        "attention": training.attention, "device": step.accelerator, "compile": training.compiled,
        "compile_loss": training.compiled_loss,
    }  # fmt: skip
    node = {**keys["node"], "gpus": layout.gpus_per_node, "nics": layout.gpus_per_node}
    return _scenario({"link": keys["link"], "node": node}, step.config, parallel, compute)


def as_stated(step: Step) -> Step:
    """Return a step without what `scenario_of` cannot say: its `simulated` time is that of the scenario."""
    plain = {field.name: field.default for field in fields(Training) if field.name in ("dropout", "host_s")}
    return replace(step, training=replace(step.training, **plain), layout=replace(step.layout, overlap_gradients=True))


CLUSTERS = {device: f"{device.split('-')[0].lower()}-hgx" for device in ("A100", "H100", "H100-500W", "H200", "B200")}


def of_published(row: Row) -> gradtide.Scenario:
    """Read a row of published: the scenario that a user would write.

    Blocks that stages cannot share equally, even with one fewer in the first and the last, are spread from the first.
    """
    with (TABLES / "configurations.json").open(encoding="utf-8") as text:
        known = json.load(text)
    config = (
        known[row["configuration"]] if row["configuration"] in known else presets.configuration(row["configuration"])
    )
    parallel: dict[str, Any] = {name: int(row[name]) for name in ("tp", "cp", "fsdp", "dp", "pp", "zero")}
    parallel |= {"ep": int(row["ep"])} if "num_experts_per_tok" in config else {}
    chunks, blocks = int(row["chunks"]), config.get("num_hidden_layers", config.get("n_layer"))
    parallel |= {"pipeline": "interleaved", "chunks": chunks} if chunks > 1 else {}
    parallel |= {"async_tp": True} if row["async_tp"] == "1" else {}
    stages = chunks * parallel["pp"]
    if blocks % stages and (blocks + 2) % stages:
        parallel["stages"] = [blocks // stages + (index < blocks % stages) for index in range(stages)]
    compute: dict[str, Any] = {name: int(row[name]) for name in ("seq", "global_batch", "micro_batch")}
    compute |= {name: row[name] for name in ("precision", "recompute", "device")}
    compute |= {"efficiency": float(row["efficiency"])} if row["efficiency"] else {}
    compute |= {"compile": False} if row["compile"] == "0" else {}
    cluster = Network(CLUSTERS[row["device"]], row["link"]).keys
    return _scenario(cluster, config, parallel, compute)


def _scenario(
    cluster: Mapping[str, Any], config: Mapping[str, Any], parallel: Mapping[str, Any], compute: Mapping[str, Any]
) -> gradtide.Scenario:
    job = {"model": dict(config), "parallel": parallel, "compute": compute}
    return gradtide.Scenario.from_dict({"cluster": cluster, "job": {"train": job}, "run": {"engine": "fluid"}})


def published(folder: Path, expressible: str = "yes") -> list[Row]:
    """Return the rows of published that a scenario can state, or those that none can; none without the file."""
    file = folder / "published.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return [row for row in csv.DictReader(text) if row["expressible"] == expressible]


# What a job loses with each doubling of its ranks.


class Doubling(NamedTuple):
    """A job, and the same with more GPUs, each with the same work.

    Attributes:
        few: its step.
        many: the other step.
    """

    few: Step
    many: Step

    @property
    def measured(self) -> float:
        """How many times as long the second step takes."""
        return self.many.measured_s / self.few.measured_s

    def ours(self, scaling_loss: float) -> float:
        """Return the same by the closed form."""
        few, many = (closed_form(step, with_constants(step, {}, scaling_loss)) for step in self)
        return many / few


def of_foundry(row: Row) -> Step:
    """Read a row of llm_foundry: FSDP, bf16."""
    layers, hidden, heads, gpus, micro, count = (
        int(row[key]) for key in ("layers", "hidden", "heads", "gpus", "micro_batch", "microbatches")
    )
    training = Training(2048, micro, "bf16", row["recompute"])  # type: ignore[arg-type]
    accelerator, cluster = ("H100", "h100-hgx") if row["hardware"].startswith("H100") else ("A100", "a100-hgx")
    series = (row["model"], row["hardware"])
    return Step(
        f"{row['model']} {row['hardware']}", series, gpt(hidden, heads, layers, training.seq, 50368), accelerator,
        Mesh(fsdp=gpus), training, Layout(GPUS_PER_NODE, count), Network(cluster),
        micro * count * training.seq / float(row["tokens_per_s_per_gpu"]), gpus,
    )  # fmt: skip


def doublings(folder: Path) -> list[Doubling]:
    """Return each step of llm_foundry with the next of its series; none if the folder does not have them."""
    file = folder / "llm_foundry.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        steps = [of_foundry(row) for row in csv.DictReader(text)]
    return [Doubling(*pair) for pair in pairwise(steps) if pair[0].configuration == pair[1].configuration]


def loss_distance(pairs: Iterable[Doubling], scaling_loss: float) -> float:
    """Return the mean absolute error of the change from one number of GPUs to the next."""
    return fmean(abs(pair.ours(scaling_loss) - pair.measured) for pair in pairs)


def fit_loss(pairs: list[Doubling]) -> float:
    """Return the scaling loss of the least distance, in tenths of a percent: as exact as these steps can tell."""
    return min((tenths / 1000 for tenths in range(51)), key=lambda loss: loss_distance(pairs, loss))


# The time of a step. `closed_form` is what constants are fitted with, because it takes microseconds.


def closed_form(step: Step, costs: Costs) -> float:
    """Return the time of a step: its slowest stage, the pipeline's bubble, and what is sent beside or after compute."""
    mesh, layout, network = step.mesh, step.layout, step.network
    per_node = min(layout.gpus_per_node, step.gpus)
    block = costs.block(step.model.blocks[0])
    size = costs.tokens * step.model.hidden * costs.training.element_bytes
    tensor = network.ring(size, mesh.tp, min(mesh.tp, per_node), 2)
    outer = max(1, per_node // mesh.tp)

    def exposed(product: float) -> float:
        """Return how long a product in parts waits for the others' parts; all of a collective without one."""
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
    """Return what the core is given for a divided model on so many GPUs."""
    keys = network.keys
    node = {**keys["node"], "gpus": gpus_per_node, "nics": gpus_per_node}
    scenario = gradtide.Scenario.from_dict(
        {
            "cluster": {"link": keys["link"], "node": node},
            "job": {
                "train": {
                    "model": "llama3-8b",
                    "parallel": {"fsdp": gpus},
                    # Its times are replaced by those of the step.
                    "compute": {"seq": 8192, "device": "H100"},
                }
            },
            "run": {"engine": "fluid"},
        }
    )
    found: dict[str, Any] = json.loads(queries.core_input(scenario))
    return found


def simulated(step: Step, costs: Costs) -> float:
    """Return the time of a step as `gradtide run` has it, engine fluid.

    On a pipe, the last thing that a stage sends back waits behind all gradients that the same card sends, first come
    first served; a network card sends both at once.
    """
    given = core_input(step.network, step.layout.gpus_per_node, step.gpus)
    spec = parallel(costs, step.layout, describe(costs, step.layout))
    (job,) = given["jobs"]
    output = _core.run(json.dumps({**given, "jobs": [{**job, "layers": job["layers"][:1], "parallel": spec}]}))
    (time_ps,) = json.loads(output.summary_json)["jobs"][0]["iteration_time_ps"]
    return float(time_ps) / 1e12


# What is fitted, on which rows.


@dataclass(frozen=True)
class Fit:
    """Constants that are fitted together, so that the mean absolute error of some rows is least.

    Attributes:
        tables: whose rows.
        start: of the search, by name.
    """

    tables: tuple[str, ...]
    start: dict[str, float]

    @property
    def name(self) -> str:
        """The tables in one word."""
        return "+".join(self.tables)

    @property
    def folds(self) -> int:
        """Parts of the configurations that are left out in turn; of torchtitan each row."""
        return 10 if len(self.tables) > 1 else 15


FITS = (
    Fit(("vtrain_single", "vtrain_multi"), {"product": 0.83, "memory": 0.675, "half_size": 103, "host_us": 43}),
    Fit(("torchtitan",), {"product": 0.558, "float8": 0.551, "flash": 0.191, "eager": 2.77, "power": 1.106}),
)
LEAST = {"eager": 1.0, "half_size": 0.0}
MOST = {"product": 0.95, "float8": 0.95, "memory": 0.95, "flash": 0.95}


def with_constants(step: Step, constants: Mapping[str, float], scaling_loss: float | None = None) -> Costs:
    """Return the costs of a step with constants in place of the preset's."""
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

    Float8 reaches no larger share of its peak than 16 bits of theirs: products are half as long, their edges are not.
    """
    for name, value in constants.items():
        if not LEAST.get(name, 0.0) <= value <= MOST.get(name, float("inf")):
            return float("inf")
    if constants.get("float8", 0.0) > constants["product"]:
        return float("inf")
    return fmean(fmean(map(abs, errors(steps, constants))) for steps in by_table if steps)


def fit(by_table: list[list[Step]], start: Mapping[str, float], share: float = 0.1) -> dict[str, float]:
    """Return the constants of the least distance: steps along each of them, ever shorter."""
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
    """Yield what is fitted and what is predicted then; rows of a configuration stay together."""
    configurations = sorted({step.configuration for steps in tables for step in steps})
    number = min(most, len(configurations))
    of = {configuration: index % number for index, configuration in enumerate(configurations)}
    for left_out in range(number):
        yield (
            [[step for step in steps if of[step.configuration] != left_out] for steps in tables],
            [[step for step in steps if of[step.configuration] == left_out] for steps in tables],
        )


def print_fits(folder: Path) -> None:
    """Fit every set of constants, and print what is found, and the errors of configurations that a fit has not seen."""
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


# The page.


def memory_errors(steps: Iterable[Step]) -> list[float]:
    """Return the relative error of the memory of the fullest rank, of each step that has it."""
    return [
        describe(with_constants(step, {}), step.layout).memory.total / 2**30 / step.memory_gib - 1
        for step in steps
        if step.memory_gib
    ]


def times(folder: Path) -> dict[str, dict[str, float]]:
    """Simulate every step; return seconds by table and row."""
    return {
        table: {step.id: simulated(step, with_constants(step, {})) for step in read(folder, table)} for table in READERS
    }


class Answer(NamedTuple):
    """A measured step and what a user is told about it.

    Attributes:
        table: where it was measured.
        id: of the row.
        ours_s: predicted; if a fit had seen the row, by the constants of a fit that had not.
        measured_s: measured.
        kind: the facts that tell kinds of answers apart.
        link_bps: rate of a network card.
    """

    table: str
    id: str
    ours_s: float
    measured_s: float
    kind: Mapping[str, Any]
    link_bps: int

    @property
    def error(self) -> float:
        """Relative error, with its sign."""
        return self.ours_s / self.measured_s - 1


def user_times(folder: Path) -> dict[tuple[str, str], float]:
    """Predict every measured step as a user states it; return seconds by table and row.

    Of a row that constants are fitted on, the prediction is that of the fit which left it out. The host's time is
    fitted, too, but belongs to a program and stands in no preset.
    """
    without = json.loads((folder / LEFT_OUT).read_text(encoding="utf-8"))
    found: dict[tuple[str, str], float] = {}
    for one in FITS:
        tables = [read(folder, table) for table in one.tables]
        for (_, left_out), fitted in zip(folds(tables, one.folds), without[one.name], strict=True):
            constants = {name: value for name, value in fitted.items() if name != "host_us"}
            for table, steps in zip(one.tables, left_out, strict=True):
                for step in map(as_stated, steps):
                    found[table, step.id] = simulated(step, with_constants(step, constants))
    for step in read(folder, "megatron_table5"):
        found["megatron_table5", step.id] = float(gradtide.run(scenario_of(step)).iteration_time)
    for row in published(folder):
        found["published", row["id"]] = float(gradtide.run(of_published(row)).iteration_time)
    return found


def answers(folder: Path) -> list[Answer]:
    """Return every measured step with what `user_times` gave when the page was written."""
    with (folder / ANSWERS).open(newline="", encoding="utf-8") as text:
        ours = {(row["table"], row["id"]): float(row["ours_s"]) for row in csv.DictReader(text)}

    def answer(table: str, name: str, measured_s: float, scenario: gradtide.Scenario) -> Answer:
        kind = step_kind(scenario, scenario.jobs[0])
        return Answer(table, name, ours[table, name], measured_s, kind, scenario.link_rate_bps)

    found = [
        answer(table, step.id, step.measured_s, scenario_of(step)) for table in READERS for step in read(folder, table)
    ]
    rows = published(folder)
    return found + [answer("published", row["id"], float(row["measured_s"]), of_published(row)) for row in rows]


def kept(folder: Path) -> dict[str, dict[str, float]]:
    """Return what `times` gave when the page was written."""
    found: dict[str, dict[str, float]] = {table: {} for table in READERS}
    with (folder / OURS).open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            found[row["table"]][row["id"]] = float(row["ours_s"])
    return found


def tables(folder: Path, ours: Mapping[str, Mapping[str, float]]) -> str:
    """Return the tables of the page."""
    with (TABLES / UNSEEN).open(newline="", encoding="utf-8") as text:
        unseen = {row["table"]: row["mean_absolute_error_percent"] for row in csv.DictReader(text)}
    lines = [
        "<!-- table: errors -->",
        "",
    ]
    rows = [("table", "steps", "mean absolute error, %", "largest", "closed form", "unseen")]
    for table in READERS:
        steps = read(folder, table)
        if not steps:
            continue
        found = [abs(ours[table][step.id] / step.measured_s - 1) for step in steps]
        closed = f"{100 * fmean(map(abs, errors(steps, {}))):.1f}"
        mean, largest = f"{100 * fmean(found):.1f}", f"{100 * max(found):.0f}"
        rows.append((table, f"{len(found)}", mean, largest, closed, unseen.get(table, closed)))
    lines.append(pages.aligned(rows))
    memory = [abs(error) for error in memory_errors(read(folder, "torchtitan"))]
    if memory:
        lines += ["", f"Memory of the fullest rank, torchtitan: mean absolute error {100 * fmean(memory):.0f} %.", ""]
    pairs = doublings(folder)
    if pairs:
        loss = presets.accelerator("H100").scaling_loss
        ours, without = (f"{100 * loss_distance(pairs, one):.1f}" for one in (loss, 0.0))
        change = f"{100 * (median(pair.measured for pair in pairs) - 1):.1f}"
        lines += [
            f"Doubling the GPUs of MPT (n = {len(pairs)}): the median step takes {change} % longer. The mean absolute "
            f"error of the predicted change is {ours} percentage points, and {without} without `scaling_loss`.",
            "",
        ]
    return "\n".join(lines)


def tables_of_kinds(folder: Path) -> str:
    """Return the tables of the page with errors as a user states steps: by kind, and of published steps `FAR` off."""
    found = answers(folder)
    lines = [
        "<!-- table: kinds -->",
        "",
        "| models, device, precision | on one node | on several nodes |",
        "|---|---|---|",
    ]
    cells: dict[str, dict[str, list[str]]] = {}
    for row in compared.steps(found):
        if row["what"] == "step":
            device = row["device"] if row["efficiency"] is None else f"{row['device']} (stated {row['efficiency']:g})"
            of = f"{row['family']}, {device}, {PRECISIONS.get(row['precision'], row['precision'])}"
            error = f"{row['division']} {100 * row['mean_error']:.1f} ({100 * row['largest']:.0f}; {row['count']})"
            cells.setdefault(of, {"one": [], "several": []})[row["nodes"]].append(error)
    for of, by_nodes in cells.items():
        lines.append(f"| {of} | {', '.join(by_nodes['one'])} | {', '.join(by_nodes['several'])} |")
    by_family = {
        name: [abs(one.error) for one in found if one.table == "published" and one.kind["family"] == name]
        for name in ("dense", "moe")
    }
    said = [f"{len(one)} {name} steps {100 * fmean(one):.1f} %" for name, one in by_family.items() if one]
    lines += ["", f"Mean absolute error over all published steps: {', '.join(said)}.", ""]
    lines += [f"Published steps whose prediction is off by more than {100 * FAR:.0f} %:", ""]
    lines += ["<!-- table: published -->", "", "| step | from | error, % |", "|---|---|---:|"]
    rows = {row["id"]: row for row in published(folder)}
    for one in found:
        if one.table == "published" and abs(one.error) > FAR:
            row = rows[one.id]
            lines.append(
                f"| {_published_step(row)}, {row['gpus']} {row['device']} | {row['source']} | {100 * one.error:+.1f} |"
            )
    left_out = [f"{row['model']} on {row['gpus']} {row['device']}" for row in published(folder, "no")]
    lines += ["", f"No scenario can state {', '.join(left_out)}; `published.csv` says why."]
    lines += ["", "<!-- table: collectives -->", ""]
    lines += ["| collectives inside a node of 8 | rows | mean absolute error, % | largest |", "|---|---:|---:|---:|"]
    for row in compared.collectives():
        mean, largest = f"{100 * row['mean_error']:.1f}", f"{100 * row['largest']:.0f}"
        lines.append(f"| {row['device']} | {row['count']} | {mean} | {largest} |")
    return "\n".join(lines) + "\n"


def _published_step(row: Row) -> str:
    return f"{row['model']}, {PRECISIONS.get(row['precision'], row['precision'])}, seq {row['seq']}"


def predictions(folder: Path) -> str:
    """Return `PREDICTIONS`: every measured step with its predictions, by table and row."""
    by_program, rows = kept(folder), {row["id"]: row for row in published(folder)}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("table", "id", "step", "measured_s", "as_its_program_s", "as_stated_s", "as_stated_error_percent"))
    for one in answers(folder):
        row = rows[one.id] if one.table == "published" else None
        name = f"{_published_step(row)}, {row['gpus']} {row['device']}, {row['source']}" if row else ""
        program_s = by_program.get(one.table, {}).get(one.id)
        program = "" if program_s is None else f"{program_s:.4f}"
        times = (f"{one.measured_s:.4f}", program, f"{one.ours_s:.4f}", f"{100 * one.error:+.1f}")
        lines.writerow((one.table, one.id, name, *times))
    return text.getvalue()


def summed_up(found: Iterable[Answer]) -> str:
    """Return the row of README's table."""
    by_name: dict[str, list[float]] = {"dense models": [], "mixtures of experts": [], "GPTs": []}
    for one in found:
        name = "mixtures of experts" if one.kind["family"] == "moe" else "dense models"
        by_name["GPTs" if one.table == "vtrain_single" else name].append(abs(one.error))
    dense, moe, gpts = ((len(same), f"{100 * fmean(same):.0f} %") for same in by_name.values())
    count = dense[0] + moe[0] + gpts[0]
    return (
        f"| {README_STARTS} {count} | {dense[0]} of dense models {dense[1]} off on average, {moe[0]} of mixtures of "
        f"experts {moe[1]}, {gpts[0]} of GPTs on one node that wait for their host {gpts[1]}; "
        "[kind by kind](docs/validation/llm-steps.md#as-a-user-states-them), other kinds were never compared |"
    )


README_STARTS = "steps of language models that others measured:"


def write_page(folder: Path) -> None:
    """Keep the time of every step, and put the tables in place of those of the page."""
    ours = times(folder)
    rows = [f"{table},{name},{time_s:.6f}\n" for table, found in ours.items() for name, time_s in found.items()]
    (folder / OURS).write_text("table,id,ours_s\n" + "".join(rows), encoding="utf-8")
    lines = [f"{table},{name},{time_s:.6f}\n" for (table, name), time_s in user_times(folder).items()]
    (folder / ANSWERS).write_text("table,id,ours_s\n" + "".join(lines), encoding="utf-8")
    (folder / PREDICTIONS).write_text(predictions(folder), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- table: errors -->")
    _, between, rest = rest.partition("\n## As a user states them")
    text, _, rest = rest.partition("<!-- table: kinds -->")
    _, _, after = rest.partition("\n## Limits")
    ours_of_kinds = tables_of_kinds(folder)
    PAGE.write_text(
        f"{before}{tables(folder, kept(folder))}{between}{text}{ours_of_kinds}\n## Limits{after}", encoding="utf-8"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    starts = f"| {README_STARTS}"
    lines = [summed_up(answers(folder)) if line.startswith(starts) else line for line in readme.split("\n")]
    (ROOT / "README.md").write_text("\n".join(lines), encoding="utf-8")
    compared.FILE.write_text(compared.text_of(answers(folder)), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the tables")
    parser.add_argument("--fit", action="store_true", help="fit constants and print them")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    if given.fit:
        print_fits(given.tables)
    elif given.write:
        write_page(given.tables)
    else:
        print(tables(given.tables, times(given.tables)))
