"""Record Kineto traces of gloo ranks that divide a model: FSDP, tensor parallel, both on a mesh, a pipeline.

`python tests/record_parallel.py FOLDER` wrote `tests/data/traces/{fsdp,tp,mesh,pp}` (torch 2.15.0). Needs torch.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile, schedule

import torch_ranks

WIDTH, BLOCKS, STEPS = 32, 4, 2


class Block(nn.Module):
    """A layer of a transformer without its attention."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def divided_in_width(model, mesh):
    """Tensor parallel: the first layer of a block by columns, the second by rows, as in Megatron."""
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def sharded(model, mesh):
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def step_of(kind, rank, world_size):
    """Return a step of training, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    inputs = torch.randn(16, WIDTH)
    if kind == "pp":
        half = len(model) // 2
        model = model[:half] if rank == 0 else model[half:]
        stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
        runs = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, wanted: (out - wanted).square().mean())
        given = {0: (inputs,)}.get(rank, ())
        wanted = {"target": inputs} if rank == 1 else {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return lambda: runs.step(*given, **wanted), optimizer
    if kind == "tp":
        divided_in_width(model, init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",)))
    elif kind == "fsdp":
        sharded(model, init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",)))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        divided_in_width(model, mesh["tp"])
        sharded(model, mesh["fsdp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda: model(inputs).square().mean().backward(), optimizer


def work(rank, world_size, kind, folder):
    step, optimizer = step_of(kind, rank, world_size)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(f"{folder}/rank{rank}.pt.trace.json.gz"),
        record_shapes=True,
    ) as recorded:
        for _ in range(2 + STEPS):
            optimizer.zero_grad()
            step()
            optimizer.step()
            recorded.step()


if __name__ == "__main__":
    for kind, world_size in (("fsdp", 2), ("tp", 2), ("mesh", 4), ("pp", 2)):
        folder = Path(sys.argv[1], kind)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as meeting:
            torch_ranks.values(world_size, work, meeting, world_size, kind, folder)
