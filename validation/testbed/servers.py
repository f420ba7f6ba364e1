"""Parameter servers on torch and a real network of namespaces: pulls in TIC's order and in random order.

    sudo python validation/testbed/servers.py [--rate 1gbit] [--runs 4] [--page]

Workers (1, 2, 4) and servers (1, 2) are network namespaces as in `train.py`, whose emulated model they train. A row has
the iteration times of both orders, measured and predicted, the savings of TIC's order by both, and the share of pulls
that arrived out of order. A run trains with both orders, one after the other; the interval is that of the savings of
the runs. With --page the table is written into docs/validation/testbed-servers.md.

Needs root, iproute2 and torch, and an otherwise idle machine. It asserts nothing.
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

import plans
from network import join, network, on_each_host
from train import DELAY, PAYLOAD, WIDTH, emulated

from gradtide.intervals import mean_interval

CASES = [(workers, servers) for servers in (1, 2) for workers in (1, 2, 4)]
ORDERS = ("random", "tic")
SEEDS = 8
PAGE = Path(__file__).parents[2] / "docs/validation/testbed-servers.md"
BEGIN, END = "<!-- servers.py writes from here -->", "<!-- to here -->"


def main() -> None:
    """Run each case on its own network, and print the table."""
    arguments = parsed()
    if arguments.rank is not None:
        rank(arguments)
        return
    if os.geteuid() != 0:
        sys.exit("the testbed makes network namespaces: run it as root")
    rows, loads, strayed = [], [], []
    for workers, servers in CASES:
        if arguments.only not in (None, f"{workers}x{servers}"):
            continue
        loads.append(os.getloadavg()[0])
        with network(workers + servers, arguments.rate), tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            command = [sys.executable, __file__, *sys.argv[1:], "--workers", str(workers), "--servers", str(servers)]
            on_each_host(workers + servers, [*command, "--store", f"{folder}/store", "--answer", str(answer)])
            measured = json.loads(answer.read_text())
        said = {order: predicted(order, workers, servers, arguments) for order in ORDERS}
        rows.append(line(workers, servers, measured, said))
        strayed += [run["tic"]["out_of_order"] for run in measured]
        print(rows[-1], flush=True)
    loads.append(os.getloadavg()[0])
    made = (
        f"Means of {arguments.runs} runs of {arguments.iterations} iterations with each order, with the 95 % interval "
        f"of the runs (Student's t); predicted times are behind the measured ones. {statistics.mean(strayed):.2%} of "
        f"the pulls arrived out of order. The machine had {os.cpu_count()} processors and a load of "
        f"{min(loads):.1f} to {max(loads):.1f}."
    )
    table = "\n".join([*HEAD, *rows, "", made])
    if arguments.page:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


HEAD = (
    "| workers, servers | random, ms | TIC, ms | saves | predicted |",
    "|---|---:|---:|---:|---:|",
)


def line(workers: int, servers: int, runs: list[dict[str, Any]], said: dict[str, float]) -> str:
    """Return a row of the table from the measurements of each run with each order."""
    ms = {order: statistics.mean(run[order]["ms"] for run in runs) for order in ORDERS}
    times = " | ".join(f"{ms[order]:.0f} ({said[order]:.0f})" for order in ORDERS)
    ends = mean_interval([1 - run["tic"]["ms"] / run["random"]["ms"] for run in runs])
    saves = f"{1 - ms['tic'] / ms['random']:.1%}" + ("" if ends is None else f" ({ends[0]:.1%} to {ends[1]:.1%})")
    return f"| {workers}, {servers} | {times} | {saves} | {1 - said['tic'] / said['random']:.1%} |"


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of every port, as tc has it")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--forward", type=float, default=24.0, help="emulated, ms a layer")
    parser.add_argument("--backward", type=float, default=24.0, help="emulated, ms a layer")
    parser.add_argument("--iterations", type=int, default=12, help="timed in a run, after 3")
    parser.add_argument("--runs", type=int, default=4, help="of each case, for the interval")
    parser.add_argument("--only", help="one case, as in 4x1: four workers and one server")
    parser.add_argument("--page", action="store_true", help="write the table into the docs")
    for name in ("rank", "workers", "servers"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.page and arguments.only:
        parser.error("--page: the table has all cases; leave --only out")
    return arguments


def real_work() -> dict[str, float]:
    """Return the real work of a layer and of its update, beside its sleep, in microseconds (from `plans.py`)."""
    found = [one["layers"] for one in plans.cases() if one["model"] == "uniform"]
    sleeps = {"forward": 1e3 * plans.FORWARD_MS, "backward": 1e3 * plans.BACKWARD_MS, "update": 0.0}
    return {
        name: statistics.mean(row[f"{name}_us"] for layers in found for row in layers) - sleep
        for name, sleep in sleeps.items()
    }


def predicted(order: str, workers: int, servers: int, arguments: argparse.Namespace) -> float:
    """Return the simulated iteration time in milliseconds: a mean over seeds, because random orders vary."""
    import gradtide

    beside = real_work()
    row = {
        "forward": f"{1e3 * arguments.forward + beside['forward']:.0f}us",
        "backward": f"{1e3 * arguments.backward + beside['backward']:.0f}us",
        "update": f"{beside['update']:.0f}us",
        "parameters": f"{4 * arguments.width**2}B",
    }
    job = {
        "model": {"layers": [{"name": f"layer{place}", **row} for place in range(arguments.layers)]},
        "workers": workers,
        "iterations": 40,
        "collective": {"ps": {"servers": servers, "pull": "start"}},
        "schedule": {"order": order},
    }
    rate = arguments.rate.replace("bit", "bps").replace("g", "G").replace("m", "M")
    link = {"rate": rate, "delay": DELAY, "efficiency": PAYLOAD}
    seeds = range(SEEDS if order == "random" else 1)
    runs = [{"job": {"train": job}, "cluster": {"link": link}, "run": {"engine": "fluid", "seed": k}} for k in seeds]
    return 1e3 * statistics.mean(gradtide.run(one).iteration_time for one in runs)


def rank(arguments: argparse.Namespace) -> None:
    """Train or serve with each order in turn; the first rank writes the times."""
    import torch.distributed as dist

    join(arguments.rank, arguments.workers + arguments.servers, arguments.store)
    runs = [{order: trained(order, arguments) for order in ORDERS} for _ in range(arguments.runs)]
    if arguments.rank == 0:
        Path(arguments.answer).write_text(json.dumps(runs))
    dist.barrier()
    dist.destroy_process_group()


def trained(order: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Train with an order; return the mean iteration time in milliseconds and the share of pulls out of order."""
    import torch

    from gradtide.torch import ps

    model = emulated(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(8, arguments.width, generator=torch.Generator().manual_seed(arguments.rank))
    wrapped = ps.wrap(model, optimizer, servers=arguments.servers, order=order, example=(inputs,))
    if wrapped.serves:
        wrapped.serve()
        return {"ms": 0.0, "out_of_order": 0.0}
    times = []
    for _ in range(arguments.iterations + 3):
        start = time.perf_counter()
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    ps.unwrap(wrapped)
    return {"ms": statistics.mean(times[3:]), "out_of_order": wrapped.pulls.out_of_order / wrapped.pulls.count}


if __name__ == "__main__":
    main()
