"""What `gradtide plan` promises and what `gradtide.torch` then saves, on a real network of namespaces.

    sudo python validation/testbed/plans.py [--model NAME]… [--rate RATE]… [--json FILE]

Four models of ten layers, two workers, as in `train.py`: gloo sends real bytes between two namespaces, and computing is
emulated by sleeping, beside the real work of gradients and of the optimizer. For each model and rate, in this order:

1. Times of all-reduces alone are measured on the network, and `gradtide.calibrate` fits link and host to them.
2. `gradtide.profile` measures layers and optimizer on both workers at once, without any exchange.
3. `gradtide.plan` predicts DDP and plans each level, from these two alone.
4. DDP and each plan train in turns.

So nothing is fitted on what is compared: the share of DDP's iteration that each plan saves. Needs root, iproute2 and
torch, and a machine that does nothing else. It asserts nothing.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from network import network, on_each_host

KIB, MIB = 2**10, 2**20
WIDTH = 1024
"""A row of weights has so many; their gradients have 4 KiB."""
FORWARD_MS, BACKWARD_MS = 8.0, 16.0
MODELS = {
    "uniform": [4 * MIB] * 10,
    "tail": [416 * KIB] * 8 + [16 * MIB] * 2,
    "head": [24 * MIB] + [1 * MIB] * 9,
    "compute-bound": [400 * KIB] * 10,
}
"""Bytes of each layer's gradient, from the input side."""
RATES = ("200mbit", "1gbit")
LEVELS = ("buckets", "priority", "crossiter")
SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB)
REPEATS = 3
RUNS = 5
"""Of the profile."""


def main() -> None:
    """Measure, predict and compare each case."""
    arguments = parsed()
    if arguments.rank is not None:
        worker(arguments)
        return
    if os.geteuid() != 0:
        sys.exit("the testbed makes network namespaces: run it as root")
    found = []
    for rate in arguments.rate:
        for model in arguments.model:
            found.append(case(model, rate, arguments))
            print(table(found[-1]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="several times; all by default")
    parser.add_argument("--rate", action="append", choices=RATES, help="of every port; both by default")
    parser.add_argument("--iterations", type=int, default=6, help="timed in a run, after 2")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json")
    for name in ("store", "answer", "plans", "stage"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.model = arguments.model or list(MODELS)
    arguments.rate = arguments.rate or list(RATES)
    return arguments


def case(model: str, rate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is predicted and measured of a model at a rate."""
    import gradtide

    with network(2, rate), tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        own = ["--model", model, "--rate", rate, "--iterations", str(arguments.iterations)]

        def ask(stage: str, *more: str) -> Any:
            answer = here / f"{stage}.json"
            command = [sys.executable, __file__, *own, "--runs", str(arguments.runs), "--stage", stage, *more]
            on_each_host(2, [*command, "--store", str(here / f"{stage}.store"), "--answer", str(answer)])
            return json.loads(answer.read_text())

        alone = ask("alone")
        times = here / "times.csv"
        rows = [f"all_reduce,2,{size},1,{time_us}" for size, time_us in alone["times"]]
        times.write_text("\n".join(["collective,ranks,bytes,time_us".replace("bytes,", "bytes,depth,"), *rows, ""]))
        cluster = here / "cluster.toml"
        fit = gradtide.calibrate(times)
        fit.save(cluster, "times.csv")
        (here / "model.json").write_text(json.dumps(alone["profile"]))
        asked: dict[str, Any] = {"cluster": str(cluster), "workers": 2, "device": "cpu", "baseline": "ddp"}
        result = gradtide.plan(str(here / "model.json"), **asked)
        plans = {level: plan.to_dict() for level, plan in result.plans.items() if level in LEVELS}
        (here / "plans").write_text(json.dumps(plans))
        measured = ask("train", "--plans", str(here / "plans"))
        rows = {row["name"]: row for row in result.rows}
        return {
            "model": model,
            "rate": rate,
            "fit": fit.cluster,
            "times": alone["times"],
            "step_ms": alone["step_ms"],
            "layers": alone["profile"]["layers"],
            "verdict": result.plan.level,
            "rows": rows,
            "measured": measured,
            "plans": plans,
        }


# On each worker


def worker(arguments: argparse.Namespace) -> None:
    """Do what is asked; the first rank writes it down."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{arguments.store}",
        rank=arguments.rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    (model,) = arguments.model
    if arguments.stage == "alone":
        found: Any = {"times": transfer_times(), **profiled(model)}
    else:
        plans = json.loads(Path(arguments.plans).read_text())
        found = []
        for round_ in range(arguments.runs):
            for name in ("ddp", *plans):
                found.append({"name": name, "run": round_, **trained(model, plans.get(name), arguments.iterations)})
                if arguments.rank == 0:
                    print(round_, name, found[-1], file=sys.stderr, flush=True)
    if arguments.rank == 0:
        Path(arguments.answer).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def transfer_times() -> list[tuple[int, float]]:
    """Return bytes and microseconds of all-reduces alone: the quickest, as `gradtide profile --network` has it."""
    import torch
    import torch.distributed as dist

    found = []
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        takes = []
        for _ in range(REPEATS + 1):
            dist.barrier()
            takes.append(timed(lambda: dist.all_reduce(tensor)))
        found.append((size, 1e3 * min(takes[1:])))
    return found


def timed(what: Callable[[], object]) -> float:
    """Return how long it takes, milliseconds."""
    start = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - start)


def profiled(name: str) -> dict[str, Any]:
    """Return the layers' times of a model on this worker while the other one computes too."""
    import torch.distributed as dist

    import gradtide

    model, optimizer, inputs = made(name)
    dist.barrier()
    found = gradtide.profile(model, inputs, device="measure", optimizer=optimizer, name=name, runs=RUNS)
    steps = []

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    dist.barrier()
    steps = [timed(step) for _ in range(RUNS)]
    dist.barrier()
    return {"profile": found.to_dict(), "step_ms": steps}


def trained(name: str, plan: dict[str, Any] | None, iterations: int) -> dict[str, Any]:
    """Train by a plan, or with stock DDP; return the times of the timed iterations, milliseconds."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gradtide.torch

    model, optimizer, inputs = made(name)
    wrapped = DistributedDataParallel(model) if plan is None else gradtide.torch.wrap(model, optimizer, plan)

    def step() -> None:
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
    dist.barrier()
    start = time.perf_counter()
    times = []
    for _ in range(iterations):
        step()
        times.append(1e3 * (time.perf_counter() - start))
        start = time.perf_counter()
    if plan is not None:
        gradtide.torch.unwrap(wrapped)
    digest = sum(float(p.detach().double().sum()) for p in model.parameters())
    return {"mean_ms": statistics.mean(times), "times": times, "digest": digest, "load": os.getloadavg()[0]}


def made(name: str) -> tuple[Any, Any, Any]:
    """Return a model whose layers sleep as long as they are told, its optimizer and its inputs."""
    import torch

    class Pause(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(FORWARD_MS / 1e3)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(BACKWARD_MS / 1e3)
            return gradient

    class Layer(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, size // (4 * WIDTH), bias=False)

        def forward(self, x: Any) -> Any:
            return Pause.apply(x + self.linear(x).mean(dim=1, keepdim=True))

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer(size) for size in MODELS[name]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    rank = torch.distributed.get_rank()
    return model, optimizer, torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank))


# The answer


def table(found: dict[str, Any]) -> str:
    """Return predictions beside measurements."""
    measured: dict[str, list[float]] = {}
    for row in found["measured"]:
        measured.setdefault(row["name"], []).append(row["mean_ms"])
    lines = [f"{found['model']} at {found['rate']}: {found['fit']}, advised: {found['verdict']}"]
    base, said_base = statistics.mean(measured["ddp"]), found["rows"]["ddp"]["iteration_ms"]
    for name, times in measured.items():
        mean, said = statistics.mean(times), found["rows"][name]["iteration_ms"]
        runs = "/".join(f"{one:.0f}" for one in times)
        lines.append(
            f"  {name:<10} {runs:<16} {mean:7.1f} ms, predicted {said:7.1f} ({mean / said - 1:+.1%}); "
            f"saves {1 - mean / base:6.1%}, predicted {1 - said / said_base:6.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
