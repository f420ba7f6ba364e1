"""Measures transfers between two hosts with torch's gloo backend, for the fit of `gradtide calibrate`.

Rank 0 sends a buffer in concurrent parts; when rank 1 has received all of them, it returns parts of the same sizes. The
time of a transfer is half of the fastest of several round trips, because other load on a host only adds time.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.errors import ProfileError
from gradtide.files import write_whole

if TYPE_CHECKING:
    import torch

SIZES = tuple(4**power * 1000 for power in range(9))
"""Sizes of the measured transfers in bytes, from 1 kB to 65.5 MB."""
DEPTHS = (1, 2, 4, 8)
WARM_UP = 2
BYTES_OF_ALL_RUNS = 100_000_000
"""Limit for the bytes that all rounds of one size send in total: large transfers have fewer rounds, though at least
`LEAST_RUNS`."""
LEAST_RUNS = 3

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HINT = (
    "start it on two hosts, as in: torchrun --nnodes 2 --nproc-per-node 1 --node-rank RANK --master-addr HOST "
    "-m gradtide profile --network -o times.csv"
)

Row = tuple[int, int, float]


def network_times(runs: int, say: Callable[[str], object]) -> list[Row]:
    """Measure transfers between two ranks. Rank 0 returns rows (bytes, parts, microseconds); rank 1 returns none.

    Args:
        runs: number of measured round trips per size and number of parts; fewer for large transfers.
        say: called with each measurement as text.

    Raises:
        ProfileError: if torch lacks gloo, the environment does not describe two ranks, or a rank cannot be reached.
    """
    missing = [name for name in ENVIRONMENT if name not in os.environ]
    if missing:
        raise ProfileError(f"--network measures between two ranks, and {', '.join(missing)} is not set; {HINT}")
    if os.environ["WORLD_SIZE"] != "2":
        raise ProfileError(f"--network measures between 2 ranks, not {os.environ['WORLD_SIZE']}; {HINT}")
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise ProfileError("this torch has no gloo backend; install the usual torch package")
    try:
        dist.init_process_group("gloo")
        try:
            return list(_measure(dist.get_rank(), runs, say))
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        raise ProfileError(f"the other rank cannot be reached: {error}") from error


def _measure(rank: int, runs: int, say: Callable[[str], object]) -> Iterator[Row]:
    import torch

    for size in SIZES:
        count = max(LEAST_RUNS, min(runs, BYTES_OF_ALL_RUNS // size))
        for depth in DEPTHS:
            parts = list(torch.zeros(size, dtype=torch.uint8).tensor_split(depth))
            times = [_round_trip(parts, rank) for _ in range(WARM_UP + count)][WARM_UP:]
            if rank == 0:
                row = size, depth, 1e6 * min(times) / 2
                say(f"{size} B in {depth} parts: {row[2]:.1f} us, the quickest of {count}")
                yield row


def _round_trip(parts: "list[torch.Tensor]", rank: int) -> float:
    import torch.distributed as dist

    def each(transfer: Callable[..., "dist.Work | None"]) -> None:
        works = [transfer(part, 1 - rank, tag=tag) for tag, part in enumerate(parts)]
        for work in works:
            if work is not None:
                work.wait()

    ways = (dist.isend, dist.irecv) if rank == 0 else (dist.irecv, dist.isend)
    began = time.perf_counter()
    for way in ways:
        each(way)
    return time.perf_counter() - began


def table(rows: list[Row]) -> str:
    """Return rows as CSV for `gradtide calibrate`."""
    lines = (f"send,2,{size},{depth},{time_us:.3f}\n" for size, depth, time_us in rows)
    return "".join(["collective,ranks,bytes,depth,time_us\n", *lines])


def save(rows: list[Row], path: Path) -> None:
    """Write rows as a CSV file, atomically.

    Raises:
        OSError: if the file cannot be written.
    """
    write_whole(path, table(rows).encode())
