"""Record traces of two gloo ranks: a step of DDP, then one of each kind of transfer. Needs torch.

`python tests/record_trace.py FOLDER` wrote `tests/data/traces` (Kineto's) and `tests/data/execution_traces`
(ExecutionTraceObserver's) with torch 2.15.0, which were then compressed.
"""

import sys
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

import torch_ranks


def work(rank, world_size, folder):
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(32, 256)

    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    def recorded_part():
        step()
        dist.broadcast(torch.ones(1000), 0)
        gathered = [torch.empty(250, dtype=torch.float64) for _ in range(world_size)]
        dist.all_gather(gathered, torch.ones(250, dtype=torch.float64))
        if rank == 0:
            dist.send(torch.ones(77), 1)
        else:
            dist.recv(torch.ones(77), 0)
        dist.barrier()

    step()  # DDP makes its buckets anew before the second step
    step()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        recorded_part()
    recorded.export_chrome_trace(f"{folder}/rank{rank}.pt.trace.json")
    observer = ExecutionTraceObserver().register_callback(f"{folder}/rank{rank}.et.json")
    observer.start()
    recorded_part()
    observer.stop()
    observer.unregister_callback()


if __name__ == "__main__":
    with TemporaryDirectory() as meeting:
        torch_ranks.values(2, work, meeting, 2, sys.argv[1])
