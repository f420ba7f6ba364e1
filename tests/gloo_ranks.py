"""Start ranks of gloo that meet and leave together. Needs torch."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def together(work, world_size, *args):
    """Call `work(rank, world_size, *args)` in a process for each rank, within their default group."""
    with tempfile.TemporaryDirectory() as folder:
        all_done = mp.get_context("spawn").Barrier(world_size)
        mp.spawn(_rank, args=(world_size, Path(folder, "meet"), all_done, work, args), nprocs=world_size)


def _rank(rank, world_size, meet, all_done, work, args):
    torch.set_num_threads(1)
    # Ranks meet in a file: a free port may be taken by the time they do.
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world_size)
    work(rank, world_size, *args)
    all_done.wait()  # a barrier of gloo may fail where a peer is gone right after it (pytorch/gloo#155)
    dist.destroy_process_group()
