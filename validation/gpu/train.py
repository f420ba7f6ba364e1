"""Tests the levels priority and crossiter on a GPU, as the tests of the repository cannot do without one.

    python validation/gpu/train.py [--device cuda|cpu] [--json FILE]

Two processes share one GPU and reduce with gloo, which accepts CUDA tensors; NCCL refuses two ranks on one GPU. The
device is delayed on purpose (`torch.cuda._sleep` before every gradient and in every layer), so that a missing wait
gives wrong weights. Weights must equal DDP's bit for bit. With `--device cpu`, everything except calls to streams runs.

It prints a line for each check, and ends with exit code 1 if one fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 2
STEPS = 12
LATE_CYCLES = 2_000_000  # about a millisecond
WITHIN_S = 300


def main() -> None:
    """Start the ranks, or run one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    refuse_missing(arguments.device)
    if arguments.rank is not None:
        be_rank(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", f"{folder}/store"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(RANKS)]
        try:
            codes = [rank.wait(WITHIN_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            sys.exit(f"validate-gpu: a rank has not ended within {WITHIN_S} s")
        finally:
            for rank in ranks:
                rank.kill()
    sys.exit(max(map(abs, codes)) and 1)


def refuse_missing(device: str) -> None:
    """Exit with a sentence about a missing requirement."""
    try:
        import torch
    except ImportError:
        from gradtide.extras import how_to_install

        sys.exit(f"validate-gpu: PyTorch is missing: {how_to_install('torch')}")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("validate-gpu: PyTorch sees no GPU here; --device cpu runs all but the calls to its streams")


def be_rank(arguments: argparse.Namespace) -> None:
    """Run every check; the first rank prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{arguments.store}",
        rank=arguments.rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    rows = []
    for name, check in checks(torch.device(arguments.device)):
        try:
            said = check()
        except Exception as error:  # an exception of a check is its result
            said = f"{type(error).__name__}: {error}"
        everyone: list[Any] = [None] * RANKS
        dist.all_gather_object(everyone, said)
        rows.append({"check": name, "ranks": everyone})
        if arguments.rank == 0:
            print(f"{'failed' if any(everyone) else 'passed'}  {name}", *filter(None, everyone), flush=True)
    if arguments.rank == 0:
        print(f"{torch.__version__} on {arguments.device}: {sum(not any(row['ranks']) for row in rows)} of {len(rows)}")
        if arguments.json:
            Path(arguments.json).write_text(json.dumps({"device": arguments.device, "checks": rows}, indent=1) + "\n")
    dist.destroy_process_group()
    sys.exit(any(any(row["ranks"]) for row in rows))


def checks(device: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield checks; each returns a description of an error, or an empty text."""
    import torch

    optimizers = {
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "fused AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
    }
    for level in ("priority", "crossiter"):
        for name, optimize in optimizers.items():
            yield f"{level}, {name}: DDP's weights", lambda a=level, b=optimize: against_ddp(device, a, b)
        yield f"{level}: a late device", lambda a=level: against_ddp(device, a, optimizers["SGD"], is_late=True)
    yield "crossiter: releases", lambda: against_ddp(device, "crossiter", optimizers["SGD"], is_late=True, is_held=True)
    yield "crossiter: a GradScaler is refused", lambda: refused(device, "GradScaler")
    if device.type == "cuda":
        yield "crossiter: a CUDA graph is refused", lambda: refused(device, "graph")


def network(device: Any, *, is_late: bool) -> Any:
    """Return a model whose passes are delayed on the device, if it has streams."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 10)).to(device)
    if is_late and device.type == "cuda":
        for layer in model:
            layer.register_forward_pre_hook(lambda *_: torch.cuda._sleep(LATE_CYCLES))
            for parameter in layer.parameters():
                parameter.register_hook(lambda gradient: (torch.cuda._sleep(LATE_CYCLES), gradient)[1])
    return model


def wrapped(device: Any, model: Any, optimizer: Any, level: str, *, is_held: bool = False) -> Any:
    """Return the model wrapped with a plan that has a bucket per layer, in chunks of 256 KiB."""
    from gradtide.torch import wrap

    sizes = [sum(parameter.nbytes for parameter in layer.parameters()) for layer in model]
    buckets = [{"layers": [str(place)], "bytes": size, "rank": place} for place, size in enumerate(sizes)][::-1]
    if is_held:
        buckets[0]["release"] = {"pass": "backward", "layer": "2"}
        buckets[3]["release"] = {"pass": "forward", "layer": "1"}
    plan = {"schema": "gradtide.plan/1", "level": level, "buckets": buckets, "chunk_bytes": 2**18, "order": "caramel"}
    return wrap(model, optimizer, plan, **({"untested_on_gpu": True} if device.type == "cuda" else {}))


def train(device: Any, model: Any, called: Any, optimizer: Any) -> list[Any]:
    """Train some steps; the CPU waits for the device only at the end."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(16, 512, generator=generator).to(device)
        called(inputs).square().mean().backward()
        optimizer.step()
    if called is not model and hasattr(called, "flush"):
        called.flush()
    return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def against_ddp(device: Any, level: str, optimize: Any, *, is_late: bool = False, is_held: bool = False) -> str:
    """Train with DDP and with a plan; the weights must be equal."""
    import torch

    from gradtide.torch import unwrap

    plain = network(device, is_late=False)
    expected = train(device, plain, torch.nn.parallel.DistributedDataParallel(plain), optimize(plain))
    model = network(device, is_late=is_late)
    optimizer = optimize(model)
    by_plan = wrapped(device, model, optimizer, level, is_held=is_held)
    try:
        found = train(device, model, by_plan, optimizer)
    finally:
        unwrap(by_plan)
    apart = max(float((one - other).abs().max()) for one, other in zip(expected, found, strict=True))
    return "" if all(map(torch.equal, expected, found)) else f"weights are {apart:.3g} from DDP's"


def refused(device: Any, habit: str) -> str:
    """Train in a way that crossiter refuses; it must raise an error with the remedy."""
    import torch

    from gradtide.torch import TrainingError, unwrap

    model = network(device, is_late=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_plan = wrapped(device, model, optimizer, "crossiter")
    inputs = torch.ones(4, 512, device=device)
    try:
        if habit == "graph":
            by_plan(inputs).sum().backward()
            optimizer.step()
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                by_plan(inputs).sum().backward()
        else:
            scaler = torch.amp.GradScaler(device.type)
            scaler.scale(by_plan(inputs).sum()).backward()
            scaler.step(optimizer)
    except TrainingError as error:
        return "" if "wrap(..., level=" in str(error) else f"the error has no remedy: {error}"
    finally:
        unwrap(by_plan)
    return "nothing was refused"


if __name__ == "__main__":
    main()
