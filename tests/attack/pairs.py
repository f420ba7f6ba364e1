"""Every command on every cluster preset with every kind of model: an answer whose premises are true, or a refusal.

All triples in the attack; the tests take rows that cover every pair of values.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from attack.inputs import Result
from gradtide import cli, presets
from gradtide.answer import KEYS

LAYERS = "layer,forward_us,backward_us,parameter_bytes\nconv,400,900,2762104\nfc,600,1200,20553728\n"
CONFIGURATION = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
PROFILED_ON = "A100"
PROFILE = {
    "schema": "gradtide.model/1",
    "name": "net",
    "title": "Net",
    "source": f"roofline on {PROFILED_ON}",
    "sample": "32x128:int64",
    "tensors": 2,
    "profile": {
        "method": "roofline",
        "device": PROFILED_ON,
        "batch": 32,
        "inputs": ["32x128:int64"],
        "torch": "2.7.1",
        "unused_parameters": [],
        "frozen_parameters": [],
        "shared_parameters": [],
    },
    "layers": [
        {
            "name": name,
            "parameter_bytes": parameters,
            "forward_us": forward,
            "backward_us": 2 * forward,
            "forward_flops": 0,
            "activation_bytes": 1000,
        }
        for name, parameters, forward in (("conv", 2_762_104, 400.0), ("fc", 20_553_728, 600.0))
    ],
}
SCENARIO = """\
[job.train]
model = { kind = "thesis", layers = 4, size = "1MB", time = "10ms" }
workers = 4
iterations = 2

[cluster]
link = { rate = "1Gbps", delay = "10us" }
topology = { kind = "star", hosts = 4 }
"""

BESIDE = (
    SCENARIO
    + """\

[traffic.web]
sizes = "web-search"
arrivals = { rate = "30/s" }

[run]
engine = "packet"
duration = "60ms"
"""
)

MODELS: dict[str, tuple[str, ...]] = {
    "image preset": ("alexnet",),
    "layer table": ("layers.csv",),
    "profile": ("net.model.json",),
    "configuration": ("config.json", "--seq", "1024"),
    "configuration on a mesh": ("config.json", "--seq", "1024", "--parallel", "fsdp={ranks}"),
    "language preset": ("llama3-8b", "--seq", "1024"),
    "language preset on a mesh": ("llama3-8b", "--seq", "1024", "--parallel", "fsdp={ranks}"),
    "scenario": ("scenario.toml",),
    "scenario beside flows": ("beside.toml",),
}
"""How a model is named, by its kind; `{ranks}` is what the cluster has."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": (),
    "compare": ("--schedule", "fifo+barrier", "--schedule", "priority"),
    "plan": (),
    "collectives": ("--sizes", "1MB", "--collectives", "ring,tree"),
    "buy": ("--fabrics", "star", "--collectives", "ring"),
    "tenants": (),
}
"""What each command is asked for beside the model and the cluster, so that it takes little time."""

HOSTS = 4
"""Hosts or nodes of each cluster."""


class Case(NamedTuple):
    """A command, a cluster preset and a kind of model."""

    command: str
    cluster: str
    model: str


CASES = [Case(*one) for one in product(COMMANDS, presets.cluster_names(), MODELS)]


def covering(seed: int) -> list[Case]:
    """Return cases in which every pair of a command, a cluster and a kind of model is found."""
    chance = Random(seed)

    def pairs(case: Case) -> set[tuple[str, str]]:
        return {(a, b) for index, a in enumerate(case) for b in case[index + 1 :]}

    missing = set().union(*map(pairs, CASES))
    found = []
    while missing:
        some = chance.sample(CASES, min(len(CASES), 60))
        best = max(some, key=lambda case: len(pairs(case) & missing))
        if new := pairs(best) & missing:
            missing -= new
            found.append(best)
    return found


def prepare(folder: Path) -> None:
    """Write the files of the models."""
    texts = {
        "layers.csv": LAYERS,
        "config.json": json.dumps(CONFIGURATION),
        "net.model.json": json.dumps(PROFILE),
        "scenario.toml": SCENARIO,
        "beside.toml": BESIDE,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)


def not_measured(case: Case) -> bool:
    """Whether nobody measured what share of its peak the device of a cluster reaches, so that it has to be stated."""
    device = presets.document("clusters.toml")[case.cluster].get("device")
    timed = case.model in ("layer table", "profile") or case.model.startswith("scenario")
    return device is not None and not timed and presets.device(device).compute_efficiency is None


def arguments(case: Case) -> list[str]:
    """Return the command line of a case."""
    node = presets.document("clusters.toml")[case.cluster].get("node")
    ranks = HOSTS * (node["gpus"] if node else 1)
    model = [part.format(ranks=ranks) for part in MODELS[case.model]]
    if not_measured(case):
        model += ["--efficiency", "0.4"]
    extra = list(COMMANDS[case.command])
    if "mesh" in case.model and case.command == "compare":
        extra = []
    return [case.command, *model, "--cluster", f"{case.cluster}/{HOSTS}", *extra, "--json"]


def ask(given: list[str]) -> tuple[int, str, str]:
    """Run the command line in this process; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["gradtide", *given]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli._main()
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


REFUSED = "refused"
ANSWERED = "answered"


def outcome(case: Case) -> str:
    """Return what a case gave: an answer, a refusal, or what is wrong with either."""
    code, out, err = ask(arguments(case))
    if "Traceback" in err or "bug of gradtide" in err:
        return f"traceback: {err[-300:]}"
    if code == 2:
        return REFUSED
    if code != 0:
        return f"exit code {code}: {err[-300:]}"
    return _wrong(case, json.loads(out)) or ANSWERED


def _wrong(case: Case, document: dict[str, Any]) -> str:
    """Return which premise of an answer is not true; empty if all are."""
    if missing := set(KEYS) - set(document):
        return f"no {sorted(missing)[0]}"
    preset = presets.document("clusters.toml")[case.cluster]
    premises = {one["name"]: one for one in document["premises"]}
    if case.command != "buy":
        # What buying varies is the network itself.
        rate = f"{preset['rate'].removesuffix('Gbps')} Gbit/s"
        if premises["link rate"]["value"] != rate:
            return f"link rate {premises['link rate']['value']}, and the cluster has {rate}"
        who = f"{HOSTS} nodes of {preset['node']['gpus']} GPUs" if "node" in preset else f"{HOSTS} hosts"
        if not premises["cluster"]["value"].startswith(who):
            return f"cluster {premises['cluster']['value']}, and {who} were asked for"
    device = premises.get("device")
    wanted = PROFILED_ON if case.model == "profile" else preset.get("device")
    if device is not None and wanted is not None and not case.model.startswith("scenario"):
        if not device["value"].casefold().startswith(wanted.partition("-")[0].casefold()):
            return f"device {device['value']}, and {wanted} was asked for"
        if not device["stated"]:
            return f"device {device['value']} is called an assumption"
    if device is None and case.model in ("image preset", "configuration", "language preset"):
        return "no device is named"
    ranked = [one for one in document["candidates"] if one["rank"] is not None]
    if any(one["feasibility"]["verdict"] == "does not fit" for one in ranked):
        return "what does not fit is ranked"
    return ""


def attack(seed: int, deadline: float) -> Result:
    """Ask all cases, in random order."""
    result = Result()
    chance = Random(seed)
    cases = list(enumerate(CASES))
    chance.shuffle(cases)
    before = Path.cwd()
    with TemporaryDirectory(prefix="gradtide-") as folder:
        prepare(Path(folder))
        os.chdir(folder)
        try:
            for index, case in cases:
                if time.monotonic() > deadline:
                    break
                told = outcome(case)
                result.counts.setdefault(case.command, Counter())[told if told in (ANSWERED, REFUSED) else "wrong"] += 1
                if told not in (ANSWERED, REFUSED):
                    result.findings[" ".join(arguments(case)), told] = index
        finally:
            os.chdir(before)
    return result
