"""What `gradtide plan` promises and what `gradtide.torch` then saves, on a real network of namespaces.

    sudo python validation/testbed/plans.py [--model NAME]… [--rate RATE]… [--page]

Four models of ten layers, two workers, as in `train.py`: gloo sends real bytes between two namespaces, and computing is
emulated by sleeping, beside the real work of gradients and of the optimizer. For each model and rate, in this order:

1. Times of all-reduces alone are measured on the network, and `gradtide.calibrate` fits link and host to them.
2. `gradtide.profile` measures layers and optimizer on both workers at once, without any exchange.
3. `gradtide.plan` predicts DDP and plans each level, from these two alone.
4. DDP and each plan train in turns.

So nothing is fitted on what is compared: the share of DDP's iteration that each plan saves. With --page the cases
replace their like in data/plans.json, and from it the table of docs/validation/plan.md and the pairs of
gradtide/measured.csv are written. Needs root, iproute2 and torch, and a machine that does nothing else. It asserts
nothing.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from network import join, network, on_each_host

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "validation" / "plan.md"
PAIRS = ROOT / "python" / "gradtide" / "measured.csv"
DATA = Path(__file__).resolve().parent / "data" / "plans.json"
BEGIN, END = "<!-- table: plans -->\n", "<!-- end of table -->\n"
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
RATES = {"200mbit": "200 Mbit/s", "1gbit": "1 Gbit/s"}
LEVELS = ("buckets", "priority", "crossiter")
NAMES = {"ddp": "DDP as it comes", **{level: f"best plan of level {level}" for level in LEVELS}}
SIZES = (MIB, 4 * MIB, 16 * MIB)
"""Of all-reduces alone: large beside what a token bucket lets through at once (network.py)."""
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
            print(page(found[-1:]), flush=True)
    if arguments.page:
        write(found)


def cases() -> list[dict[str, Any]]:
    """Return the cases that are kept."""
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []


def write(found: list[dict[str, Any]]) -> None:
    """Keep cases in the place of their like; write pairs and the table of the page."""
    from gradtide import measured

    known = {(one["model"], one["rate"]): one for one in [*cases(), *found]}
    every = [known[each] for each in sorted(known)]
    others = [line for line in PAIRS.read_text(encoding="utf-8").splitlines() if not line.startswith("plan ")]
    PAIRS.write_text("\n".join([*others, *pairs(every), ""]), encoding="utf-8")
    measured.pairs.cache_clear()  # what is advised depends on the errors of all pairs
    every = [{**one, "advised": planned(one).plan.level} for one in every]
    DATA.write_text(json.dumps(every) + "\n", encoding="utf-8")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{page(every)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="several times; all by default")
    parser.add_argument("--rate", action="append", choices=RATES, help="of every port; both by default")
    parser.add_argument("--iterations", type=int, default=6, help="timed in a run, after 2")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="keep the cases, and write page and pairs")
    for name in ("store", "answer", "plans", "stage"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.model = arguments.model or list(MODELS)
    arguments.rate = arguments.rate or list(RATES)
    return arguments


COLUMNS = ("name", "parameter_bytes", "forward_us", "backward_us", "update_us")
OF_PLAN = ("schema", "level", "order", "barrier", "chunk_bytes", "credit", "depth", "collective", "buckets")


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
        lines = [f"all_reduce,2,{size},{time_us}" for size, time_us in alone["times_us"]]
        times.write_text("\n".join(["collective,ranks,bytes,time_us", *lines, ""]))
        fit = gradtide.calibrate(times)
        layers = [{key: row[key] for key in COLUMNS if key in row} for row in alone["profile"]["layers"]]
        result = planned({"model": model, "layers": layers, "cluster": fit.cluster})
        plans = {level: plan.to_dict() for level, plan in result.plans.items() if level in LEVELS}
        (here / "plans").write_text(json.dumps(plans))
        measured = ask("train", "--plans", str(here / "plans"))
        return {
            "model": model,
            "rate": rate,
            "times_us": alone["times_us"],
            "cluster": fit.cluster,
            "layers": layers,
            "plans": {level: kept(plan) for level, plan in plans.items()},
            "advised": result.plan.level,
            "predicted_ms": {row["name"]: row["iteration_ms"] for row in result.rows},
            "measured_ms": measured,
        }


def planned(case: dict[str, Any]) -> Any:
    """Return the plan of a case, from its layers and its network alone."""
    import gradtide

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.json"
        document = {"schema": "gradtide.model/1", "name": case["model"], "layers": case["layers"]}
        model.write_text(json.dumps(document), encoding="utf-8")
        job = {"model": str(model), "workers": 2}
        scenario = {"job": {"train": job}, "cluster": case["cluster"], "run": {"engine": "fluid"}}
        return gradtide.plan(scenario, device="cpu", baseline="ddp")


def kept(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what `wrap` and a run need of a plan."""
    return {**{key: plan[key] for key in OF_PLAN}, "predicted": {"overhead_us": plan["predicted"]["overhead_us"]}}


# On each worker


def worker(arguments: argparse.Namespace) -> None:
    """Do what is asked; the first rank writes it down."""
    import torch.distributed as dist

    join(arguments.rank, 2, arguments.store)
    (model,) = arguments.model
    if arguments.stage == "alone":
        found: Any = {"times_us": transfer_times(), "profile": profiled(model)}
    else:
        plans = json.loads(Path(arguments.plans).read_text())
        found = {name: [] for name in ("ddp", *plans)}
        for _ in range(arguments.runs):
            for name, times in found.items():
                times.append(trained(model, plans.get(name), arguments.iterations))
                if arguments.rank == 0:
                    print(f"{name}: {times[-1]:.1f} ms, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
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
            takes.append(timed(partial(dist.all_reduce, tensor)))
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
    dist.barrier()
    return found.to_dict()


def trained(name: str, plan: dict[str, Any] | None, iterations: int) -> float:
    """Train by a plan, or with stock DDP; return the mean time of the timed iterations, milliseconds."""
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
    takes_ms = timed(lambda: [step() for _ in range(iterations)])
    if plan is not None:
        gradtide.torch.unwrap(wrapped)
    return takes_ms / iterations


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


def means(case: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return predicted and measured milliseconds of DDP and of each level."""
    return {name: (case["predicted_ms"][name], statistics.mean(case["measured_ms"][name])) for name in NAMES}


def page(found: list[dict[str, Any]]) -> str:
    """Return the table of the page: a row for each case, with a star at the advised level."""
    sys.path.insert(0, str(ROOT / "validation"))
    from pages import aligned

    lines = [["model, network", "DDP, ms", *(f"{level}, ms; saves, %" for level in LEVELS)]]
    for one in found:
        times = means(one)
        (said, took), cells = times["ddp"], []
        for level in LEVELS:
            predicted, measured = times[level]
            saves = f"{100 * (1 - predicted / said):.1f}→{100 * (1 - measured / took):.1f}"
            cell = f"{predicted:.1f}→{measured:.1f}; {saves}"
            cells.append(f"{cell}{'*' if level == one['advised'] else ' '}")
        name = f"{one['model']}, {RATES[one['rate']]}"
        lines.append([name, f"{said:.1f}→{took:.1f}", *cells])
    return aligned(lines)


def pairs(found: list[dict[str, Any]]) -> list[str]:
    """Return rows of measured.csv."""
    rows = []
    for one in found:
        for name, (predicted, measured) in means(one).items():
            baseline = "" if name == "ddp" else NAMES["ddp"]
            runs, where = len(one["measured_ms"][name]), PAGE.relative_to(ROOT)
            row = [
                f"plan {one['model']} {one['rate']}",
                NAMES[name],
                baseline,
                "2",
                "gloo",
                RATES[one["rate"]],
                str(runs),
            ]
            rows.append(",".join([*row, f"{predicted:.1f}", f"{measured:.1f}", str(where)]))
    return rows


if __name__ == "__main__":
    main()
