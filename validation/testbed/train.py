"""Real training by PyTorch and gloo on a real network of namespaces: stock DDP beside every level of a plan.

    sudo python validation/testbed/train.py [--workers N] [--rate 1gbit] [--runs 3] [--mode MODE]… [--json FILE]

Each worker is a network namespace; a bridge in another namespace connects them. Every egress port, of hosts and of the
switch, is a token bucket (tbf) at the given rate over pfifo_fast, which has three bands by type of service. Nothing
leaves the machine, and everything is deleted at the end. The model has layers of 1024 x 1024 weights; computing is
emulated by sleeping, because an accelerator would leave the processor idle. Modes take turns, so that changes of the
machine's load affect all alike.

Needs root, iproute2 and torch. It prints a table and asserts nothing.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from network import join, network, on_each_host

MODES = ("ddp", "none", "buckets", "priority", "crossiter-fifo", "crossiter")
DEFAULT_MODES = ("ddp", "buckets", "priority", "crossiter-fifo", "crossiter")
WIDTH = 1024
PAYLOAD = round(1448 / 1514, 4)  # of what tbf counts: a frame with its Ethernet, IP and TCP headers and time stamps
DELAY = "50us"


def main() -> None:
    """Set up, run the workers, print."""
    arguments = parsed()
    if arguments.rank is not None:
        worker(arguments)
        return
    if os.geteuid() != 0:
        sys.exit("the testbed makes network namespaces: run it as root")
    predictions = {mode: predicted(mode, arguments) for mode in arguments.mode}
    with network(arguments.workers, arguments.rate), tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, *sys.argv[1:], "--store", str(store), "--answer", str(answer)]
        command += ["--predicted", json.dumps(predictions)]
        on_each_host(arguments.workers, command)
        rows = json.loads(answer.read_text())
    print(table(rows, arguments, predictions))
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"arguments": vars(arguments), "predicted_ms": predictions, "rows": rows}, indent=1) + "\n"
        )


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of every port, as tc has it")
    parser.add_argument("--layers", type=int, default=10, help="of 4 MiB, or of --width")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--forward", type=float, default=8.0, help="emulated, ms a layer")
    parser.add_argument("--backward", type=float, default=16.0, help="emulated, ms a layer")
    parser.add_argument("--chunk", type=int, default=2**20, help="bytes; 0: whole buckets")
    parser.add_argument("--mode", action="append", choices=MODES, help="several times; all but none by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12, help="timed in a run, after 3")
    parser.add_argument("--verify", action="store_true", help="print what gradtide.torch.verify says of crossiter")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--predicted", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.mode = arguments.mode or list(DEFAULT_MODES)
    return arguments


# Predictions


def predicted(mode: str, arguments: argparse.Namespace) -> float:
    """Return the simulated iteration time of the same training in milliseconds; the scheduler has no cost there."""
    import gradtide

    level, _, order = mode.partition("-")
    size = 4 * arguments.width**2
    schedule: dict[str, Any] = {
        "order": "priority" if level in ("priority", "crossiter") and not order else "fifo",
        "barrier": level != "crossiter",
        "buckets": ddp_buckets(arguments.layers, size) if level in ("ddp", "none") else [1] * arguments.layers,
    }
    if level in ("priority", "crossiter") and arguments.chunk:
        schedule["chunk"] = f"{arguments.chunk}B"
    with tempfile.TemporaryDirectory() as folder:
        row = f"{1e3 * arguments.forward},{1e3 * arguments.backward},{size}"
        rows = [f"layer{place},{row}" for place in range(arguments.layers)]
        model = Path(folder) / "layers.csv"
        model.write_text("\n".join(["layer,forward_us,backward_us,parameter_bytes", *rows, ""]))
        job = {"model": str(model), "workers": arguments.workers, "iterations": 5, "schedule": schedule}
        link = {"rate": arguments.rate.replace("bit", "bps").replace("g", "G").replace("m", "M"), "delay": DELAY}
        scenario = {"job": {"train": job}, "cluster": {"link": {**link, "efficiency": PAYLOAD}}}
        return 1e3 * gradtide.run(scenario).iteration_time


def ddp_buckets(layers: int, size: int) -> list[int]:
    """Return the number of layers in each of DDP's buckets, from the input side: closed at 1 MiB, then at 25 MiB."""
    buckets, cap = [0], 2**20
    for _ in range(layers):
        if buckets[-1] * size >= cap:
            buckets.append(0)
            cap = 25 * 2**20
        buckets[-1] += 1
    return buckets[::-1]


# A worker


def worker(arguments: argparse.Namespace) -> None:
    """Train in each mode in turn; the first rank writes the times."""
    import torch.distributed as dist

    join(arguments.rank, arguments.workers, arguments.store)
    rows = []
    for round_ in range(arguments.runs):
        for mode in arguments.mode:
            rows.append({"mode": mode, "run": round_, **trained(mode, arguments)})
            if arguments.rank == 0:
                shown = f"{rows[-1]['mean_ms']:.1f} ms, load {os.getloadavg()[0]:.1f}"
                print(f"run {round_} {mode}: {shown}", file=sys.stderr, flush=True)
    if arguments.rank == 0:
        Path(arguments.answer).write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def trained(mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train in a mode; return the times of the timed iterations in milliseconds, and a sum over all weights."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gradtide.torch

    model = emulated(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if mode == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        level, _, order = mode.partition("-")
        said = {"iteration_time_ms": json.loads(arguments.predicted)[mode]}
        wrapped = gradtide.torch.wrap(model, optimizer, {**plan(arguments, order), "predicted": said}, level=level)
    generator = torch.Generator().manual_seed(arguments.rank)
    inputs = torch.randn(8, arguments.width, generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    dist.barrier()
    times = []
    start = time.perf_counter()
    for _ in range(arguments.iterations):
        step()
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    waited = wrapped.tally.waited_s if mode.startswith("crossiter") else 0.0
    if mode != "ddp":
        wrapped.flush()
    digest = sum(float(p.detach().double().sum()) for p in model.parameters())
    if arguments.verify and mode == "crossiter":
        gradtide.torch.verify(wrapped, step, steps=arguments.iterations)
    if mode != "ddp":
        gradtide.torch.unwrap(wrapped)
    return {
        "mean_ms": 1e3 * statistics.mean(times),
        "median_ms": 1e3 * statistics.median(times),
        "waited_ms": 1e3 * waited / (arguments.iterations + 3),
        "digest": digest,
        "load": os.getloadavg()[0],
    }


def plan(arguments: argparse.Namespace, order: str) -> dict[str, Any]:
    """Return a plan with one bucket per layer, the first layer first or in the order of readiness."""
    layers = range(arguments.layers)
    ready = list(reversed(layers))
    return {
        "schema": "gradtide.plan/1",
        "level": "crossiter",
        "chunk_bytes": arguments.chunk or None,
        "buckets": [
            {
                "layers": [f"{layer}.linear"],
                "bytes": 4 * arguments.width**2,
                "rank": place if order == "fifo" else layer,
            }
            for place, layer in enumerate(ready)
        ],
    }


def emulated(arguments: argparse.Namespace) -> Any:
    """Return a model whose layers sleep for their compute time."""
    import torch

    class Pause(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(arguments.forward / 1e3)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(arguments.backward / 1e3)
            return gradient

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(arguments.width, arguments.width, bias=False)

        def forward(self, x: Any) -> Any:
            return Pause.apply(self.linear(x))

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(arguments.layers)))


# Results


def table(rows: list[dict[str, Any]], arguments: argparse.Namespace, predictions: dict[str, float]) -> str:
    """Return the table of the means of each run, beside the predictions, in milliseconds."""
    megabytes = arguments.layers * 4 * arguments.width**2 / 1e6
    compute = arguments.layers * (arguments.forward + arguments.backward)
    lines = [
        f"{arguments.workers} workers, {megabytes:.1f} MB, {compute:g} ms of compute, ports of {arguments.rate}, "
        f"mean of {arguments.iterations} iterations",
        "",
        f"{'mode':<16}{'runs, ms':<32}{'mean':>8}{'to the first':>14}{'predicted':>11}  same weights",
    ]
    first = None
    digests = {row["digest"] for row in rows if row["mode"] == rows[0]["mode"]}
    for mode in arguments.mode:
        mine = [row for row in rows if row["mode"] == mode]
        mean = statistics.mean(row["mean_ms"] for row in mine)
        first = first or mean
        runs = " / ".join(f"{row['mean_ms']:.1f}" for row in mine)
        same = "yes" if {row["digest"] for row in mine} <= digests else "to rounding"
        lines.append(f"{mode:<16}{runs:<32}{mean:>8.1f}{mean / first - 1:>+14.1%}{predictions[mode]:>11.1f}  {same}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
