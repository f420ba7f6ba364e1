"""Record traces of real training by PyTorch and gloo on a network of namespaces, for `gradtide report`.

    sudo python validation/testbed/record.py FOLDER [--workers N] [--rate 1gbit] [--layers 6] [--steps 5]

Stock DDP on linear layers of 1024 x 1024, in buckets of 4 MiB, computing for real on one thread per worker; the network
is that of train.py. Each rank writes `rankN.pt.trace.json.gz` of the last steps, as torch.profiler exports it.
Needs root, iproute2 and torch.
"""

import argparse
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from network import network, on_each_host

WIDTH, BATCH = 1024, 256


def main() -> None:
    """Set up and run the workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of every port, as tc has it")
    parser.add_argument("--layers", type=int, default=6, help="of 4 MiB")
    parser.add_argument("--steps", type=int, default=5, help="that are recorded")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        worker(arguments)
        return
    if os.geteuid() != 0:
        sys.exit("the testbed makes network namespaces: run it as root")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with network(arguments.workers, arguments.rate), tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", str(Path(folder) / "store")]
        on_each_host(arguments.workers, command)


def worker(arguments: argparse.Namespace) -> None:
    """Train and record on one rank."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    store = dist.FileStore(arguments.store, arguments.workers)
    dist.init_process_group(
        "gloo", store=store, rank=arguments.rank, world_size=arguments.workers, timeout=timedelta(minutes=5)
    )
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(arguments.layers)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, WIDTH)
    path = arguments.folder / f"rank{arguments.rank}.pt.trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=1, active=arguments.steps),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as recorded:
        for _ in range(3 + arguments.steps):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            recorded.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
