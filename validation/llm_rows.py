"""Measured steps of language models: the rows of every table as steps and as scenarios."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gradtide
from gradtide import presets, units
from gradtide.architecture import Architecture
from gradtide.parallel.costs import Training
from gradtide.parallel.mesh import Mesh
from gradtide.parallel.spec import Layout

ROOT = Path(__file__).resolve().parent.parent

TABLES = ROOT / "validation" / "llm"
Row = Mapping[str, str]
GPUS_PER_NODE = 8


# The network of a node and between nodes.


@dataclass(frozen=True)
class Network:
    """A built-in cluster, and the times of collectives on it.

    Attributes:
        preset: name of the cluster.
        nic_rate: rate of a GPU's share of its node's network cards, if it differs from the preset's.
    """

    preset: str
    nic_rate: str = ""

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Keys of the preset's cluster."""
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
        """Delays in seconds: of the start of a collective, of a round inside a node, and of a round between nodes."""
        node, link = self.keys["node"], self.keys["link"]
        start, inside, between = (
            units.parse_time(text) / 1e12 for text in (node["launch"], node["scale_up"]["delay"], link["delay"])
        )
        return start, 2 * inside, 2 * between

    def ring(self, size: float, ranks: int, per_node: int, turns: int = 1) -> float:
        """Return the time of an all-gather or reduce-scatter of `size` bytes; with two turns, of an all-reduce."""
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
        """Return the time in which a rank sends `size` bytes to another rank, on another node if it `crosses`."""
        return self.delays[0] + size / self.rates[crosses]


# vTrain states 800 Gbit/s for a node of 8 GPUs; Korthikanti et al. (2022) used nodes with 8 cards of 200 Gbit/s.
VTRAIN = Network("a100-hgx", "100Gbps")
SELENE = Network("a100-hgx")


# Conversion of a table's row into a job.


@dataclass(frozen=True)
class Step:
    """A measured step.

    Attributes:
        id: name of the row.
        configuration: key that is common to rows of the same model and mesh.
        config: configuration of the model in Hugging Face's format.
        accelerator: name of the preset.
        mesh: mesh of the ranks.
        training: batch, precision and kernels.
        layout: pipeline schedule and sharding.
        network: network between the ranks.
        measured_s: measured time of an iteration.
        gpus: number of GPUs.
        memory_gib: measured memory of a rank, if it is known.
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
        """Architecture of the trained model."""
        return Architecture.of(self.config)

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.training.micro_batch * self.layout.micro_batches * self.mesh.data * self.training.seq


@cache
def gpt(hidden: int, heads: int, layers: int, seq: int, vocabulary: int) -> Mapping[str, Any]:
    """Return the configuration of a GPT."""
    config = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": seq, "vocab_size": vocabulary}
    return {"model_type": "gpt2", **config}


@cache
def llama(name: str) -> Mapping[str, Any]:
    """Return the configuration of a preset by torchtitan's name for it."""
    return presets.configuration(name.lower().replace("llama3.1", "llama3"))


MEGATRON_HOST_S = 43e-6
"""Time in which PyTorch with Megatron-DeepSpeed launches a kernel: fitted on vtrain_single, where most rows wait for
launches. It is a property of this program and its hosts, not of the GPU."""


def of_vtrain(row: Row) -> Step:
    """Read a row of vtrain_*: full recomputation, no sequence parallelism, one gradient all-reduce after backward.

    Ranks of a stage send parts of the activations, which the next stage gathers: the default of DeepSpeed's pipelines
    (`pipe_partitioned`).
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

    Megatron-LM of that time also sends parts and gathers them by default (`scatter_gather_tensors_in_pipeline`).
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
    """Read a row of torchtitan: FSDP2, with a pipeline micro-batches of one sequence and parameters that stay gathered.

    From `COMPILED_LOSS` on, the loss is compiled if the model is.

    Asynchronous tensor parallelism excludes the head, the embedding, and sums of several products.
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
    """Return the steps of a table; an empty list if the folder lacks it."""
    file = folder / f"{table}.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return [READERS[table](row) for row in csv.DictReader(text)]


# A measured step as a user states it.


def scenario_of(step: Step) -> gradtide.Scenario:
    """Return the scenario that a user would write.

    A scenario cannot express three properties of the measured program: masks of dropout, the host's time per kernel,
    and gradients that are reduced only after the backward pass.
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
    """Return a step without the properties that `scenario_of` cannot express, for simulation as the scenario."""
    plain = {field.name: field.default for field in fields(Training) if field.name in ("dropout", "host_s")}
    return replace(step, training=replace(step.training, **plain), layout=replace(step.layout, overlap_gradients=True))


CLUSTERS = {device: f"{device.split('-')[0].lower()}-hgx" for device in ("A100", "H100", "H100-500W", "H200", "B200")}


def of_published(row: Row) -> gradtide.Scenario:
    """Read a row of published: the scenario that a user would write.

    If the stages cannot have equal numbers of blocks, even with one fewer in the first and the last, the first stages
    have one block more.
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
    """Return the rows of published that a scenario can state, or those that none can; [] without the file."""
    file = folder / "published.csv"
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return [row for row in csv.DictReader(text) if row["expressible"] == expressible]


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
