"""Real training by PyTorch's FSDP2 and gloo on a network of namespaces: plans of several depths beside FSDP2's own.

    sudo python validation/testbed/fsdp.py [--model gpt|residual]… [--workers 2] [--rate 1gbit] [--runs 5] [--json FILE]

The network is that of train.py. Models compute for real, on one thread for each worker. For each model, in this order:

1. On a network that is no bottleneck, each call of gloo is timed in steps that gather nothing ahead. The time between
   calls is compute (with the copies of FSDP2), unit by unit: `--units-csv` writes it. The time of a call is gloo's own
   cost, because gloo copies and sums on the processor.
2. From these times, the units' bytes and the rate alone, the step of each plan is predicted. "bytes alone" leaves out
   gloo's own times.
3. On the network of the given rate, FSDP2's own steps and each plan's take turns.
4. The mode with the shortest predicted step is the plan, whose saving is measured. All modes begin with the same
   steps, after which weights are compared with those of FSDP2's own.

So nothing is fitted on the compared figures. gloo gathers in a ring: each port carries (n-1)/n of the whole. It has no
reduce-scatter of its own: PyTorch reduces everything (twice as many bytes) and keeps a part. The bytes of a port are
counted and compared with this. gradtide simulates steps like gloo: a reduce-scatter blocks the backward pass, and two
simultaneous calls share the port. Needs root, iproute2 and torch, and an otherwise idle machine. It asserts nothing.
"""

import argparse
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from network import join, network, on_each_host

PAYLOAD = round(1448 / 1514, 4)  # share of payload in the bytes that tbf counts, as in train.py
UNLIMITED = "40gbit"
DATA = Path(__file__).resolve().parent / "data" / "fsdp.json"
ROOT = Path(__file__).resolve().parents[2]
SOURCE = "docs/validation/testbed-fsdp.md"
PAGE = ROOT / SOURCE
PAIRS = ROOT / "python" / "gradtide" / "measured.csv"
BEGIN, END = "<!-- fsdp.py writes from here -->\n", "<!-- to here -->\n"
DEPTHS = (0, 1, 2)
CHECKED = 3
"""Steps after which weights are compared."""
WARM_UP = 3
VOCABULARY, LENGTH = 2000, 64


def main() -> None:
    """Measure, predict, train, print."""
    arguments = parsed()
    if arguments.rank is not None:
        worker(arguments)
        return
    if os.geteuid() != 0:
        sys.exit("the testbed makes network namespaces: run it as root")
    rows, units = [], []
    for model in arguments.model:
        timed = on_network(arguments, model, "time", UNLIMITED, burst="16m")
        units += [{"model": model, **row} for row in timed]
        trained = on_network(arguments, model, "train", arguments.rate)
        rows.append(case(model, timed, trained, arguments))
        print(table(rows[-1], arguments), flush=True)
    if arguments.units_csv:
        columns = list(units[0])
        lines = [",".join(columns), *(",".join(str(row[name]) for name in columns) for row in units)]
        Path(arguments.units_csv).write_text("\n".join([*lines, ""]))
    if arguments.page:
        about = {name: getattr(arguments, name) for name in ("workers", "rate", "runs", "iterations")}
        cases = [*json.loads(DATA.read_text()), *({"arguments": about, **row} for row in rows)]
        DATA.write_text(json.dumps(cases, indent=1) + "\n")
        write_page(cases)
        others = [line for line in PAIRS.read_text(encoding="utf-8").splitlines() if not line.startswith("fsdp ")]
        PAIRS.write_text("\n".join([*others, *pairs(cases), ""]), encoding="utf-8")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"arguments": vars(arguments), "cases": rows}, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=sorted(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of every port, as tc has it")
    parser.add_argument("--runs", type=int, default=5, help="in which the modes take turns")
    parser.add_argument("--iterations", type=int, default=5, help="timed in a run, after one")
    parser.add_argument("--page", action="store_true", help="add to the page of the docs")
    parser.add_argument("--units-csv", help="write the measured units")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.model = arguments.model or sorted(MODELS)
    return arguments


def on_network(arguments: argparse.Namespace, model: str, phase: str, rate: str, **how: str) -> Any:
    """Run a phase on every worker, and return the answer of the first."""
    with network(arguments.workers, rate, **how), tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, "--model", model, "--phase", phase, "--workers", str(arguments.workers)]
        command += ["--runs", str(arguments.runs), "--iterations", str(arguments.iterations)]
        on_each_host(arguments.workers, [*command, "--store", str(Path(folder) / "store"), "--answer", str(answer)])
        return json.loads(answer.read_text())


# The models


def gpt() -> "tuple[Any, Any, Any]":
    """Return a small GPT, a function that makes its inputs, and its loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    width, heads = 320, 5

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mixes, self.joins = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.mixes(self.before(x)).unflatten(-1, (3, heads, -1)).movedim(2, 0).transpose(2, 3)
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
            x = x + self.joins(mixed)
            return x + self.down(functional.gelu(self.up(self.after(x))))

    model = nn.Sequential(
        nn.Embedding(VOCABULARY, width), *(Block() for _ in range(6)), nn.Linear(width, VOCABULARY, bias=False)
    )
    inputs = lambda generator: torch.randint(VOCABULARY, (4, LENGTH), generator=generator)  # noqa: E731
    return model, inputs, lambda out, x: functional.cross_entropy(out.flatten(0, 1), x.roll(-1, 1).flatten())


def residual() -> "tuple[Any, Any, Any]":
    """Return a small residual network with most bytes in its last blocks, a function for its inputs, and its loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, before: int, width: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(before, width, 3, 2 if before < width else 1, 1, bias=False)
            self.two = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.scale, self.shift = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
            self.passes = nn.Conv2d(before, width, 1, 2, bias=False) if before < width else nn.Identity()

        def forward(self, x: Any) -> Any:
            inner = functional.relu(self.scale(self.one(x)))
            return functional.relu(self.passes(x) + self.shift(self.two(inner)))

    widths = [32, 64, 64, 128, 128, 256, 256, 384, 384]
    blocks = [Block(before, width) for before, width in itertools.pairwise(widths)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
    model = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1), *blocks, head)
    inputs = lambda generator: torch.randn(12, 3, 32, 32, generator=generator)  # noqa: E731
    return model, inputs, lambda out, x: functional.cross_entropy(out, torch.arange(len(out)) % 100)


MODELS = {"gpt": gpt, "residual": residual}


class Mode(NamedTuple):
    """A way to shard: modules per unit, units gathered ahead, and whether units are freed after the forward pass."""

    name: str
    of_unit: int
    depth: int
    frees: bool

    def plan(self, children: int) -> dict[str, Any]:
        """Return the plan for a sequence of this number of modules."""
        names = [str(place) for place in range(children)]
        units = [names[place : place + self.of_unit] for place in range(0, children, self.of_unit)]
        ahead = {"forward_prefetch": self.depth, "backward_prefetch": self.depth}
        return {"schema": "gradtide.plan/1", "fsdp": {"units": units, **ahead, "reshard_after_forward": self.frees}}


OWN = Mode("fsdp2", 1, 0, True)
"""FSDP2 without a plan, which over gloo waits for each all-gather at once."""
PLANS = [Mode(f"{of_unit},{depth}", of_unit, depth, True) for of_unit in (1, 2) for depth in DEPTHS]
PLANS += [Mode(f"1,{depth},kept", 1, depth, False) for depth in DEPTHS[1:]]
MODES_BY_NAME = {mode.name: mode for mode in (OWN, *PLANS)}


# A worker


def worker(arguments: argparse.Namespace) -> None:
    """Run a phase; the first rank writes the answer."""
    import torch.distributed as dist

    join(arguments.rank, arguments.workers, arguments.store)
    [name] = arguments.model
    answer = timed(name, arguments) if arguments.phase == "time" else trained(name, arguments)
    if arguments.rank == 0:
        Path(arguments.answer).write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def training(name: str, arguments: argparse.Namespace, shard: Any) -> "tuple[Any, Any]":
    """Return a sharded model and a step of its training."""
    import torch

    torch.manual_seed(0)
    model, inputs, loss = MODELS[name]()
    model = shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(arguments.rank)

    def step() -> None:
        optimizer.zero_grad()
        x = inputs(generator)
        loss(model(x), x).backward()
        optimizer.step()

    return model, step


class Timed:
    """A blocking call of gloo that records its begin and end."""

    def __init__(self, calls: list[Any], kind: str, unit: int) -> None:
        self.calls, self.kind, self.unit = calls, kind, unit

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Return memory for the output; FSDP2 calls this."""
        import torch

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any = None, async_op: bool = False
    ) -> Any:
        """Make the call and wait for it."""
        import torch.distributed as dist

        begin = time.perf_counter()
        if self.kind == "all-gather":
            dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
        else:
            dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
        size = max(output_tensor.nbytes, input_tensor.nbytes)
        self.calls.append((self.kind, self.unit, begin, time.perf_counter(), size))


def timed(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the medians of each unit, for units of one and of two modules: bytes, compute, and gloo's own time."""
    import torch.distributed as dist

    import gradtide.torch

    rows: list[dict[str, Any]] = []
    for of_unit in (1, 2):
        calls: list[Any] = []

        def shard(model: Any, calls: list[Any] = calls, of_unit: int = of_unit) -> Any:
            plan = Mode("", of_unit, 0, True).plan(len(model))
            gradtide.torch.wrap(model, plan)
            for unit, part in enumerate(plan["fsdp"]["units"]):
                module = model.get_submodule(part[0])
                module.set_custom_all_gather(Timed(calls, "all-gather", unit))
                module.set_custom_reduce_scatter(Timed(calls, "reduce-scatter", unit))
            return model

        model, step = training(name, arguments, shard)
        count = -(-len(model) // of_unit)
        found: list[dict[str, list[float]]] = []
        for _ in range(WARM_UP + 20):
            dist.barrier()
            calls.clear()
            begin = time.perf_counter()
            step()
            found.append(between(calls, count, begin, time.perf_counter()))
        sizes = {unit: size for kind, unit, _, _, size in calls if kind == "all-gather"}
        for unit in range(count):
            row = {"of_unit": of_unit, "unit": unit, "bytes": sizes[unit]}
            for part in found[0]:
                row[part] = round(1e6 * statistics.median(one[part][unit] for one in found[WARM_UP:]))
            rows.append(row)
    everyone: list[Any] = [None] * arguments.workers
    dist.all_gather_object(everyone, rows)
    # The slower worker determines a step, but which one that is changes from unit to unit; so take the mean.
    return [
        {key: round(statistics.mean(theirs[key] for theirs in same)) for key in same[0]}
        for same in zip(*everyone, strict=True)
    ]


def between(calls: Sequence[Any], count: int, begin: float, end: float) -> dict[str, list[float]]:
    """Return the seconds between the calls of a step, by unit of the preceding call; the others are the update's."""
    parts = ("forward_us", "backward_us", "update_us", "gather_us", "reduce_us")
    found = {part: [0.0] * count for part in parts}
    found["update_us"][0] += calls[0][2] - begin
    seen: set[int] = set()
    for place, (kind, unit, start, stop, _) in enumerate(calls):
        after = calls[place + 1][2] if place + 1 < len(calls) else end
        is_gather = kind == "all-gather"
        is_forward = is_gather and unit not in seen
        part = "forward_us" if is_forward else "backward_us"
        found["update_us" if place + 1 == len(calls) else part][0 if place + 1 == len(calls) else unit] += after - stop
        found["gather_us" if is_gather else "reduce_us"][unit] += (stop - start) / (2 if is_gather else 1)
        if is_gather:
            seen.add(unit)
    return found


def trained(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the step times of each mode in each run, and the bytes that a port sent per step."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import gradtide.torch

    def own(model: Any) -> Any:
        for part in model:
            fully_shard(part)
        return fully_shard(model)

    children = len(MODELS[name]()[0])
    modes: dict[str, Any] = {"fsdp2": own}

    def planned(mode: Mode) -> Any:
        return lambda model: gradtide.torch.wrap(model, mode.plan(children))

    modes |= {mode.name: planned(mode) for mode in PLANS}
    steps = {mode: training(name, arguments, shard) for mode, shard in modes.items()}
    apart = weights_apart(steps)
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    carried: dict[str, float] = {}
    for mode, (model, step) in steps.items():
        if mode == "fsdp2":
            step()
        else:
            gradtide.torch.verify(model, step, steps=2, warm_up=1, file=io.StringIO())
    for run in range(arguments.runs):
        for mode, (_, step) in steps.items():
            dist.barrier()
            step()
            before, start = sent(), time.perf_counter()
            for _ in range(arguments.iterations):
                step()
            times[mode].append(1e3 * (time.perf_counter() - start) / arguments.iterations)
            carried[mode] = (sent() - before) / arguments.iterations
        if arguments.rank == 0:
            shown = "  ".join(f"{mode} {values[-1]:.1f}" for mode, values in times.items())
            print(f"{name}, run {run}: {shown} ms, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return {"times_ms": times, "bytes": carried, "weights_apart": apart}


def weights_apart(steps: "dict[str, tuple[Any, Any]]") -> dict[str, float]:
    """Return the largest difference of each mode's weights from FSDP2's own, after the same steps."""
    import torch

    weights: dict[str, list[Any]] = {}
    for mode, (model, step) in steps.items():
        for _ in range(CHECKED):
            step()
        weights[mode] = [value.full_tensor().clone() for value in model.state_dict().values()]
    return {
        mode: max(float(torch.max(torch.abs(one - own))) for one, own in zip(mine, weights[OWN.name], strict=True))
        for mode, mine in weights.items()
    }


def sent() -> int:
    """Return the bytes that this host has sent so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


# Predictions


def predicted(rows: Sequence[dict[str, Any]], mode: Mode, workers: int, rate: float, *, own: bool = True) -> float:
    """Return the time of a step in milliseconds, as gradtide simulates it.

    Args:
        rows: measured units.
        mode: how units are sharded.
        workers: ranks of the ring.
        rate: payload rate of a port, bytes per second.
        own: whether calls also take gloo's own time, on the core that computes.
    """
    from gradtide import _core
    from gradtide.scenario import Scenario

    def kind(size: int, forward_us: int, backward_us: int) -> dict[str, Any]:
        op = {"name": "op", "role": "other", "recompute_ps": 0, "recompute_communicates": False, "exchanged_bytes": 0}
        op |= {"forward_ps": 10**6 * forward_us, "backward_ps": 10**6 * backward_us}
        op["beside"] = [{"join_ps": 0, "sum_ps": 0, "add_ps": 0}] * 2
        sizes = {"parameter_bytes": size, "gradient_bytes": size, "expert_parameter_bytes": 0}
        return {**sizes, "expert_gradient_bytes": 0, "ops": [op]}

    kinds = [
        kind(
            row["bytes"],
            row["forward_us"] + own * row["gather_us"],
            row["backward_us"] + own * (mode.frees * row["gather_us"] + row["reduce_us"]),
        )
        for row in rows
    ]
    # The simulator keeps the last unit gathered, while FSDP2 frees it like all others; an empty unit takes its place.
    kinds.append(kind(0, 0, 0))
    layer = {"name": "any", "forward": "1ms", "backward": "1ms", "parameters": "4B"}
    job = {"workers": workers, "model": {"layers": [layer]}}
    cluster = {
        "topology": {"kind": "star", "hosts": workers},
        "link": {"rate": f"{round(8 * rate)}bps", "delay": "0us"},
    }
    spec = Scenario.from_dict({"job": {"train": job}, "cluster": cluster, "run": {"engine": "fluid"}}).spec()
    spec["jobs"][0]["parallel"] = {
        "mesh": {"tp": 1, "cp": 1, "ep": 1, "fsdp": workers, "dp": 1, "pp": 1},
        "gpus_per_node": 1,
        "sharding": "zero3" if mode.frees else "zero2",
        "micro_batches": 1,
        "pipeline": {"kind": "one_f_one_b"},
        "sequence_parallel": False,
        "async_tp": False,
        "scatter_gather": False,
        "context": "ring",
        "forward_prefetch": mode.depth,
        "backward_prefetch": mode.depth,
        "overlap_gradients": True,
        "gloo": True,
        "kinds": kinds,
        "blocks": [{"name": f"unit {unit}", "kind": unit} for unit in range(len(kinds))],
        "units": [1] * len(kinds),
        "stages": [len(kinds)],
        "optimizer_ps": [10**6 * rows[0]["update_us"]],
        "activation_bytes": 0,
        "norm_bytes": 0,
        "tied_embedding_bytes": 0,
    }
    times = json.loads(_core.run(json.dumps(spec)).summary_json)["jobs"][0]["iteration_time_ps"]
    return float(times[-1]) / 1e9


def case(
    model: str, units: Sequence[dict[str, Any]], answer: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the modes of a model, measured and predicted."""
    from gradtide.intervals import mean_interval

    number, unit = float(arguments.rate.rstrip("gmkbit")), arguments.rate.lstrip("0123456789.")
    rate = number * {"gbit": 1e9, "mbit": 1e6}[unit] / 8 * PAYLOAD  # bytes per second
    times = answer["times_ms"]
    rows = []
    for mode, values in times.items():
        how = MODES_BY_NAME[mode]
        mine = [row for row in units if row["of_unit"] == how.of_unit]
        gains = [100 * (1 - value / own) for value, own in zip(values, times["fsdp2"], strict=True)]
        mean = statistics.mean(values)
        rows.append(
            {
                "mode": mode,
                "runs_ms": values,
                "mean_ms": mean,
                "predicted_ms": (said := predicted(mine, how, arguments.workers, rate)),
                "error_percent": 100 * (said / mean - 1),
                "without_own_ms": predicted(mine, how, arguments.workers, rate, own=False),
                "gain_percent": statistics.mean(gains),
                "gain_interval_percent": mean_interval(gains),
                "bytes": answer["bytes"][mode],
                # Two gathers or one, and a reduction in a ring that carries twice the bytes.
                "expected_bytes": (3 + how.frees)
                * (arguments.workers - 1)
                / arguments.workers
                * sum(row["bytes"] for row in mine),
                "weights_apart": answer.get("weights_apart", {}).get(mode),
            }
        )
    alone = [row for row in units if row["of_unit"] == 1]
    return {
        "model": model,
        "megabytes": sum(row["bytes"] for row in alone) / 1e6,
        "compute_ms": sum(row["forward_us"] + row["backward_us"] + row["update_us"] for row in alone) / 1e3,
        "units": list(units),
        "rows": rows,
    }


def table(found: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Return the table of a model."""
    lines = [
        "",
        f"{found['model']}: {arguments.workers} workers, {found['megabytes']:.1f} MB, {found['compute_ms']:.0f} ms of "
        f"computing, ports of {arguments.rate}, {arguments.runs} runs of {arguments.iterations} steps",
        "",
        f"{'units':<12}{'ahead':<18}{'measured':>10}{'predicted':>11}{'error':>9}{'bytes alone':>13}{'saves':>9}"
        f"  {'95 % interval':<18}"
        f"{'bytes sent / expected':>22}",
    ]
    for row in found["rows"]:
        how = MODES_BY_NAME[row["mode"]]
        low, high = row["gain_interval_percent"] or (0.0, 0.0)
        lines.append(
            f"{_units(how):<12}{_ahead(how):<18}{row['mean_ms']:>10.1f}{row['predicted_ms']:>11.1f}"
            f"{row['error_percent']:>+8.1f}%{row['without_own_ms']:>13.1f}{row['gain_percent']:>+8.1f}%"
            f"  {f'{low:+.1f} to {high:+.1f} %':<18}"
            f"{row['bytes'] / row['expected_bytes']:>22.3f}"
        )
    return "\n".join([*lines, "", verdict(found)])


def planned(found: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the mode with the shortest predicted step, which is the plan, and its predicted saving in percent."""
    own, *plans = found["rows"]
    best = min(plans, key=lambda row: row["predicted_ms"])
    return best, 100 * (1 - best["predicted_ms"] / own["predicted_ms"])


def verdict(found: dict[str, Any]) -> str:
    """Return the plan of a case and its saving as text."""
    best, saves = planned(found)
    how = MODES_BY_NAME[best["mode"]]
    low, high = best["gain_interval_percent"] or (0.0, 0.0)
    apart = max(row["weights_apart"] or 0.0 for row in found["rows"])
    return (
        f"plan: {_units(how)}, {_ahead(how)} ahead; predicted to save {saves:.1f} %, saved {best['gain_percent']:.1f} "
        f"% ({low:.1f} to {high:.1f} %); weights of all modes differ by at most {apart:g}"
    )


def _units(how: Mode) -> str:
    return "pair" if how.of_unit == 2 else "block"


def _ahead(how: Mode) -> str:
    return "FSDP2 as it is" if how == OWN else f"{how.depth}{'' if how.frees else ', kept'}"


def _title(how: Mode) -> str:
    return _ahead(how) if how == OWN else f"{_units(how)} {_ahead(how)}"


def pairs(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Return rows of measured.csv."""
    own, lines, seen = _ahead(OWN), [], Counter[str]()
    for found in cases:
        workers, rate = found["arguments"]["workers"], found["arguments"]["rate"]
        setup = f"fsdp {found['model']} {rate}"
        seen[setup] += 1
        setup += f" {seen[setup]}" if seen[setup] > 1 else ""
        for row in found["rows"]:
            how = MODES_BY_NAME[row["mode"]]
            what, base = (own, "") if how == OWN else (f"{_units(how)} {_ahead(how)} ahead", own)
            times = f"{row['predicted_ms']:.1f},{row['mean_ms']:.1f}"
            on = f"{workers},gloo,{rate.replace('gbit', ' Gbit/s')},{len(row['runs_ms'])}"
            lines.append(f"{setup},{what.replace(',', '')},{base},{on},{times},{SOURCE}")
    return lines


def page(cases: Sequence[dict[str, Any]]) -> str:
    """Return the table of the page: a row for each case with all modes, and what the plan saves."""
    columns: dict[str, list[str]] = {}
    for mode, how in MODES_BY_NAME.items():
        columns.setdefault(_ahead(how) if how == OWN else f"{_units(how)}{'' if how.frees else ', kept'}", []).append(
            mode
        )
    heads = [
        name if modes == [OWN.name] else f"{name}: {', '.join(str(MODES_BY_NAME[mode].depth) for mode in modes)}"
        for name, modes in columns.items()
    ]
    lines = [["model, ranks, rounds", *heads, "plan: saves, % (95 % interval)"]]
    lines.append(["---"] * len(lines[0]))
    for found in cases:
        rows = {row["mode"]: f"{row['predicted_ms']:.0f}→{row['mean_ms']:.0f}" for row in found["rows"]}
        best, saves = planned(found)
        low, high = best["gain_interval_percent"] or (0.0, 0.0)
        lines.append(
            [
                f"{found['model']}, {found['arguments']['workers']}, {found['arguments']['runs']}",
                *(", ".join(rows[mode] for mode in modes if mode in rows) for modes in columns.values()),
                f"{_title(MODES_BY_NAME[best['mode']])}: {saves:.0f}→{best['gain_percent']:.0f} "
                f"({low:.0f} to {high:.0f})",
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_page(cases: Sequence[dict[str, Any]]) -> None:
    """Write the table of all cases into the page."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{page(cases)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
