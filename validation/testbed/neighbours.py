"""Effect of a training job on background flows, in their band and in a lower one: measured and predicted.

    sudo python validation/testbed/neighbours.py [--duration 20] [--cell R:LOAD:SEEDS]… [--json FILE] [--page]

The study of Gao (2020), chapter 5, on real kernels. Hosts are network namespaces around one that routes; every egress
port is a token bucket over pfifo_fast. On the hosts PyTorch trains over gloo, wrapped by `gradtide.torch.wrap` and
moved between bands by `gradtide.torch.wire_priority`, beside web-search flows, each a TCP connection. gradtide draws
and simulates the schedule of flows. It is played with the job in the flows' band and in the lower one, in turns, so
that runs are pairs.

Needs root, iproute2 and torch. It prints a table; --page writes it into docs/validation/testbed.md.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flows import Flow, connect_time, play
from network import HOST, dropped, network, urgent

from gradtide.extras import how_to_install
from gradtide.intervals import mean_interval

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "validation" / "testbed.md"
DATA = HERE / "data" / "neighbours.json"
BEGIN, END = "<!-- table: testbed -->\n", "<!-- end of table -->\n"

BANDS = {"same": "high", "low": "low"}
"""Priority of the job; that of the flows is high. As in the thesis: type of service 0x10 or 0x08."""

# Scaled down from the thesis: links by 100 from 10 Gbit/s, flows by 10; so times are ten times as long.
SCALE = 10
RATE_BPS = 100_000_000
QUEUE_PACKETS = 1000
BURST = "8kb"  # bucket of an idle port: five packets, or half a millisecond of tolerance for a late timer
SEGMENT = 1448
FRAME, MODELLED_FRAME = SEGMENT + 66, SEGMENT + 54
"""Bytes of a full packet: as tbf counts it (Ethernet, IP, TCP, time stamps), and as the packet engine counts it."""
LAYERS, WIDTH = 8, 192
WARM_UP_S = 2.0
BLOCK_S = 1.0
RESAMPLES = 10_000
HIGH = 0x10


def main() -> None:
    """Measure, predict, print."""
    arguments = parsed()
    if arguments.worker is not None:
        worker(arguments.worker, arguments.hosts, arguments.store)
        return
    if arguments.from_json:
        answer = json.loads(Path(arguments.from_json).read_text(encoding="utf-8"))
    else:
        if os.geteuid() != 0:
            sys.exit("the testbed makes network namespaces: run it as root")
        if importlib.util.find_spec("torch") is None:
            sys.exit(f"the testbed trains with PyTorch: {how_to_install('torch')}")
        try:
            answer = study(arguments)
        except KeyboardInterrupt:
            sys.exit(130)
    text = tables(answer)
    print(text)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(answer) + "\n", encoding="utf-8")
    if arguments.page:
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(json.dumps(answer) + "\n", encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--duration", type=float, default=20.0, help="seconds of a run")
    parser.add_argument(
        "--cell",
        action="append",
        help="compute-to-network ratio R, the flows' load, and how many schedules of flows are played, each twice: "
        "8:0.0315:14; several times",
    )
    parser.add_argument("--json", help="write what was measured")
    parser.add_argument("--from-json", help="print what an earlier run has measured")
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Light traffic has few flows, whose mean depends on a few that wait behind a large one: it needs more schedules.
    cells = (cell.split(":") for cell in arguments.cell or ("8:0.0315:14", "2:0.126:6"))
    arguments.cells = [(float(ratio), float(load), int(seeds)) for ratio, load, seeds in cells]
    return arguments


# The scenario: gradtide draws its flows and predicts its results


def layer_bytes() -> int:
    """Return the size of a layer's gradient."""
    return 4 * WIDTH**2


def compute_s(ratio: float, hosts: int) -> float:
    """Return the compute time of an iteration: R times the time of the gradients on the wire (Gao 2020, eq. 5.1)."""
    return ratio * 2 * (hosts - 1) / hosts * LAYERS * layer_bytes() * 8 / RATE_BPS


def scenario(arguments: argparse.Namespace, cell: Sequence[float], seed: int, band: str, delay_s: float) -> Any:
    """Return the scenario of a run."""
    from gradtide.presets import flow_text
    from gradtide.traffic import read_sizes

    ratio, load = cell
    compute = compute_s(ratio, arguments.hosts)
    drawn = read_sizes(flow_text("web-search"), "web-search")
    sizes = [{"bytes": f"{size // SCALE}B", "cdf": share} for size, share in zip(drawn.bytes, drawn.cdf, strict=True)]
    each = {"forward": f"{1e6 * compute / 3 / LAYERS:.0f}us", "backward": f"{2e6 * compute / 3 / LAYERS:.0f}us"}
    layers = [{"name": f"{index}.linear", **each, "parameters": f"{layer_bytes()}B"} for index in range(LAYERS)]
    return {
        "job": {
            "train": {
                "model": {"name": "layers", "layers": layers},
                "workers": arguments.hosts,
                "iterations": iterations(arguments, cell),
                "collective": {"kind": "ring"},
                "schedule": {"order": "fifo", "barrier": True, "buckets": [1] * LAYERS},
                "priority": BANDS[band],
            }
        },
        "cluster": {
            "topology": {"kind": "star", "hosts": arguments.hosts},
            "link": {"rate": f"{RATE_BPS * MODELLED_FRAME / FRAME:.0f}bps", "delay": f"{1e9 * delay_s:.0f}ns"},
            "queue": {"kind": "pfifo_fast", "capacity": f"{QUEUE_PACKETS}pkt"},
            # Defaults of Linux.
            "transport": {"kind": "cubic", "segment": f"{SEGMENT}B", "hystart": True, "byte_counting": True},
        },
        "traffic": {"web": {"cdf": sizes, "load": load, "priority": "high"}},
        "run": {"engine": "packet", "duration": f"{1e3 * arguments.duration:.0f}ms", "seed": seed},
    }


def iterations(arguments: argparse.Namespace, cell: Sequence[float]) -> int:
    """Return a number of iterations that outlasts a run at any speed."""
    return math.ceil(arguments.duration / compute_s(cell[0], arguments.hosts)) + 1


# Measurements


def study(arguments: argparse.Namespace) -> dict[str, Any]:
    """Play every schedule twice, once with the job in each band, and simulate it."""
    runs = []
    with network(arguments.hosts, f"{RATE_BPS}bit", burst=BURST, queue=QUEUE_PACKETS, routed=True):
        round_trip = connect_time(arguments.hosts)
        # Four links; an idle port sends at once from its bucket, so the round trip has no serialisation time.
        delay = round_trip / 4
        with workers(arguments) as tell:
            urgent(2)
            for *cell, seeds in arguments.cells:
                for seed in range(seeds):
                    # Bands alternate in their order, so that a slow drift of the machine affects both alike.
                    for band in ("same", "low") if seed % 2 == 0 else ("low", "same"):
                        runs.append(one_run(arguments, cell, seed, band, delay, tell))
                        said = runs[-1]
                        note = f"R {cell[0]:g}, load {cell[1]:g}, seed {seed}, {band}: {len(said['flows'])} flows, "
                        note += f"iteration {1e3 * mean_iteration(said, 'measured'):.0f} ms, "
                        note += f"99 % of flows less than {1e3 * said['late_p99']:.2f} ms late, "
                        print(f"{note}{said['drops']} drops, load average {said['load']:.1f}", file=sys.stderr)
    return {
        "hosts": arguments.hosts,
        "duration_s": arguments.duration,
        "cells": arguments.cells,
        "round_trip_s": round_trip,
        "delay_s": delay,
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "runs": runs,
    }


def one_run(
    arguments: argparse.Namespace,
    cell: Sequence[float],
    seed: int,
    band: str,
    delay_s: float,
    tell: "Callable[[dict[str, Any]], list[dict[str, Any]]]",
) -> dict[str, Any]:
    """Simulate a run, then play it."""
    import gradtide

    predicted = gradtide.run(scenario(arguments, cell, seed, band, delay_s))
    table = predicted.flows
    columns = (table[name].tolist() for name in ("start_us", "src", "dst", "bytes", "fct_us"))
    flows, said = [], []
    for start, src, dst, size, took in zip(*columns, strict=True):
        flows.append(Flow(start / 1e6, src, dst, size))
        said.append(None if took is None or math.isnan(took) else took / 1e6)
    compute = compute_s(cell[0], arguments.hosts)
    order = {"band": BANDS[band], "compute_s": compute, "iterations": iterations(arguments, cell)}
    ready = tell({"do": "get ready", **order})
    if any(each["marked"] < 1 for each in ready):
        raise SystemExit("the job's connections could not be marked")
    before = dropped(arguments.hosts)
    tell({"do": "go"})
    took, late = play(flows, arguments.hosts, HIGH)
    trained = tell({})
    starts, times = predicted.iterations["start_us"], predicted.iterations["time_us"]
    return {
        "cell": list(cell),
        "seed": seed,
        "band": band,
        "flows": [
            [round(flow.start, 3), flow.size, micro(measured), micro(simulated)]
            for flow, measured, simulated in zip(flows, took, said, strict=True)
        ],
        "measured": [[micro(a), micro(b)] for a, b in trained[0]["iterations"]],
        "predicted": [[micro(a / 1e6), micro(b / 1e6)] for a, b in zip(starts.tolist(), times.tolist(), strict=True)],
        "marked": [each["marked"] for each in ready],
        "late_p99": micro(sorted(late)[len(late) * 99 // 100]),
        "drops": dropped(arguments.hosts) - before,
        "predicted_drops": int(predicted.links["drops"].sum()),
        "load": os.getloadavg()[0],
    }


def micro(seconds: float | None) -> float | None:
    """Return seconds rounded to whole microseconds."""
    return None if seconds is None else round(seconds, 6)


@contextlib.contextmanager
def workers(arguments: argparse.Namespace) -> "Iterator[Callable[[dict[str, Any]], list[dict[str, Any]]]]":
    """Start a worker on each host; yield a function that sends a message to all and returns their answers."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        command = [sys.executable, __file__, "--hosts", str(arguments.hosts), "--store", store]
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", f"{HOST}{rank}", *command, "--worker", str(rank)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # this process passes Ctrl-C on
            )
            for rank in range(arguments.hosts)
        ]

        def tell(message: dict[str, Any]) -> list[dict[str, Any]]:
            if message:
                for process in started:
                    assert process.stdin is not None
                    process.stdin.write(json.dumps(message) + "\n")
                    process.stdin.flush()
            if message.get("do") == "go":
                return []
            answers = []
            for rank, process in enumerate(started):
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"worker {rank} has ended with {process.wait()}")
                answers.append(json.loads(line))
            return answers

        try:
            yield tell
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=30)
        finally:
            for process in started:
                process.kill()
                process.wait()


def worker(rank: int, hosts: int, store: str) -> None:
    """Train on command, in the requested band; answer with the times."""
    import torch
    import torch.distributed as dist

    import gradtide.torch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    torch.set_num_threads(1)
    urgent(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=hosts)
    pause = {"s": 0.0}
    model = emulated(pause)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    buckets = [
        {"layers": [f"{layer}.linear"], "bytes": layer_bytes(), "rank": layer} for layer in reversed(range(LAYERS))
    ]
    plan = {"schema": "gradtide.plan/1", "level": "buckets", "buckets": buckets}
    wrapped = gradtide.torch.wrap(model, optimizer, plan)
    inputs = torch.randn(8, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    for line in sys.stdin:
        order = json.loads(line)
        with open(os.devnull, "w") as nowhere:
            marked = gradtide.torch.wire_priority(order["band"], file=nowhere)
        pause["s"] = order["compute_s"] / 3 / LAYERS
        dist.barrier()
        print(json.dumps({"marked": len(marked.connections)}), file=answers, flush=True)
        sys.stdin.readline()
        begin = time.perf_counter()
        times = []
        for _ in range(order["iterations"]):
            start = time.perf_counter()
            step()
            times.append((start - begin, time.perf_counter() - start))
        print(json.dumps({"iterations": times}), file=answers, flush=True)
    gradtide.torch.unwrap(wrapped)
    dist.destroy_process_group()


def emulated(pause: dict[str, float]) -> Any:
    """Return a model whose layers sleep: for `pause` in the forward pass, twice as long in the backward pass."""
    import torch

    class Pause(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(pause["s"])
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(2 * pause["s"])
            return gradient

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            return Pause.apply(self.linear(x))

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))


# Results


def mean_iteration(run: dict[str, Any], source: str) -> float:
    """Return the mean time of the iterations within the measured window, seconds."""
    end = max(flow[0] for flow in run["flows"])
    times = [took for start, took in run[source] if start >= WARM_UP_S and start + took <= end]
    return sum(times) / len(times)


def pairs(answer: dict[str, Any], cell: Sequence[float]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the pairs of runs of a cell, (same band, lower band), by seed."""
    found = {(run["seed"], run["band"]): run for run in answer["runs"] if run["cell"] == list(cell)}
    return [(found[seed, "same"], found[seed, "low"]) for seed in sorted({seed for seed, _ in found})]


def completion(answer: dict[str, Any], cell: Sequence[float], source: str, name: str) -> dict[str, Any]:
    """Return mean completion times of a class of flows in both bands, and the change with its interval.

    A flow counts if it starts after the warm-up and ends in both runs. The 95 % interval is from a bootstrap over
    seconds of the schedule, each with all of its flows in both runs, because flows of one second meet the same queues.
    """
    import numpy as np

    column = {"measured": 2, "predicted": 3}[source]
    sums: dict[tuple[int, int], list[float]] = {}
    for seed, (same, low) in enumerate(pairs(answer, cell)):
        for a, b in zip(same["flows"], low["flows"], strict=True):
            if a[0] < WARM_UP_S or a[column] is None or b[column] is None or class_of(a[1]) != name:
                continue
            block = sums.setdefault((seed, int(a[0] / BLOCK_S)), [0.0, 0.0, 0])
            block[0] += a[column]
            block[1] += b[column]
            block[2] += 1
    blocks = np.array(list(sums.values()))
    drawn = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    resampled = blocks[drawn].sum(axis=1)
    same_s, low_s, count = blocks.sum(axis=0)
    low_end, high_end = np.percentile(100 * (resampled[:, 1] / resampled[:, 0] - 1), [2.5, 97.5])
    return {
        "count": int(count),
        "same_ms": float(1e3 * same_s / count),
        "low_ms": float(1e3 * low_s / count),
        "change": float(100 * (low_s / same_s - 1)),
        "interval": (float(low_end), float(high_end)),
    }


def class_of(size: int) -> str:
    """Return the class of a flow; the bounds are scaled like the sizes."""
    from gradtide.fct import LARGE_BYTES, SMALL_BYTES

    return "small" if size * SCALE <= SMALL_BYTES else "large" if size * SCALE >= LARGE_BYTES else "medium"


def training(answer: dict[str, Any], cell: Sequence[float], source: str) -> dict[str, Any]:
    """Return mean iteration times in both bands, and the change with its interval over the seeds (Student's t)."""
    rows = [(mean_iteration(same, source), mean_iteration(low, source)) for same, low in pairs(answer, cell)]
    same, low = (1e3 * sum(column) / len(rows) for column in zip(*rows, strict=True))
    changes = [100 * (b / a - 1) for a, b in rows]
    return {
        "count": len(rows),
        "same_ms": same,
        "low_ms": low,
        "change": sum(changes) / len(changes),
        "interval": mean_interval(changes) or (-math.inf, math.inf),
    }


def _interval(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{low:+.1f} to {high:+.1f}"


def tables(answer: dict[str, Any]) -> str:
    """Return one table for each cell, predicted→measured, and what was seen beside."""
    sys.path.insert(0, str(HERE.parent))
    from pages import aligned

    loads = [run["load"] for run in answer["runs"]]
    lates = [1e3 * run["late_p99"] for run in answer["runs"]]
    texts = []
    for ratio, load, seeds in answer["cells"]:
        lines = [
            f"**R = {ratio:g}, load {100 * load:.3g} %** ({seeds} schedules of flows, {answer['duration_s']:g} s each)",
            "",
        ]
        table = [["", "n", "same band, ms", "lower band, ms", "change, % (95 % interval)"]]
        for name in ("small", "medium", "large", "iteration"):
            found, said = (
                training(answer, (ratio, load), source)
                if name == "iteration"
                else completion(answer, (ratio, load), source, name)
                for source in ("measured", "predicted")
            )
            means = (
                f"{said[band]:.2f}→{found[band]:.2f} ({100 * (said[band] / found[band] - 1):+.0f} %)"
                for band in ("same_ms", "low_ms")
            )
            changes = (f"{row['change']:+.1f} ({_interval(row)})" for row in (said, found))
            what = "iterations" if name == "iteration" else f"{name} flows"
            table.append([what, f"{said['count']}→{found['count']}", *means, " → ".join(changes)])
        lines.append(aligned(table))
        chosen = [run for run in answer["runs"] if run["cell"] == [ratio, load]]
        drops = {
            band: [sum(run[key] for run in chosen if run["band"] == band) for key in ("drops", "predicted_drops")]
            for band in BANDS
        }
        lines += [
            "",
            f"Packets dropped, predicted→measured: {drops['same'][1]}→{drops['same'][0]} in the same band, "
            f"{drops['low'][1]}→{drops['low'][0]} in the lower band.",
            "",
        ]
        texts.append("\n".join(lines))
    return "\n".join(
        [
            *texts,
            f"The {answer['hosts']} hosts ran on Linux {answer['kernel']} with {answer['cores']} cores and a load "
            f"average of {min(loads):.1f} to {max(loads):.1f}. In each run, 99 % of the flows began at most "
            f"{min(lates):.1f} to {max(lates):.1f} ms late. The links' delay of {1e6 * answer['delay_s']:.0f} us "
            f"follows from {1e6 * answer['round_trip_s']:.0f} us to connect on the idle network.",
        ]
    )


if __name__ == "__main__":
    main()
