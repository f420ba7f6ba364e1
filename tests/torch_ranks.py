"""Ranks of a test: processes that train together over gloo, and what each of them came to."""

import contextlib
import gc
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta

ENDED_BY = 150  # seconds; far above what any test takes, and below the limit of those that use it


@dataclass
class Outcome:
    """What one rank returned or raised; `error` is "" if it raised nothing, and "killed" if it said nothing."""

    value: object = None
    kind: str = ""
    error: str = ""
    seconds: float = 0.0


def _rank(task, rank, size, folder, timeout_s, arguments, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    start = time.monotonic()
    try:
        if size:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )
        outcome = Outcome(task(rank, *arguments))
    except Exception as error:
        outcome = Outcome(None, type(error).__name__, f"{error}", time.monotonic() - start)
        if os.environ.get("SHOW_RANKS"):
            traceback.print_exc()
    pipe.send(outcome)
    pipe.close()


def run(size, task, folder, *arguments, timeout_s=60, start="forkserver"):
    """Run `task(rank, *arguments)` on every rank; return an `Outcome` for each. None may hang."""
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel"])
    ranks = []
    for rank in range(max(size, 1)):
        receives, sends = context.Pipe(duplex=False)
        process = context.Process(
            target=_rank, args=(task, rank, size, str(folder), timeout_s, arguments, sends), daemon=False
        )
        process.start()
        sends.close()
        ranks.append((process, receives))
    outcomes, until = [], time.monotonic() + ENDED_BY
    try:
        for _, receives in ranks:
            try:
                there = receives.poll(max(0.0, until - time.monotonic()))
                outcomes.append(receives.recv() if there else Outcome(None, "hangs", "hangs"))
            except EOFError:
                outcomes.append(Outcome(None, "killed", "killed"))
        for process, _ in ranks:
            process.join(max(1.0, until - time.monotonic()))
            assert process.exitcode is not None, "a rank does not end"
    finally:
        for process, _ in ranks:
            process.kill()
    return outcomes


def live_tensors():
    """Return every tensor that lives, by its id; with the garbage collector off, those in garbage too."""
    import torch

    return {id(one): one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)}


@contextlib.contextmanager
def no_garbage_collection():
    """Free what nobody refers to, and nothing else, in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left_behind(before, seconds=5):
    """Return the tensors that live now and are not in `before`, by their id.

    A thread that has just ended holds what it used for a moment.
    """
    until = time.monotonic() + seconds
    while True:
        left = [key for key in live_tensors() if key not in before]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def wanted(request, parameter):
    """Return the values of a parameter in those tests of this module that are to run, so that ranks do no more."""
    tests = [item for item in request.session.items if item.module is request.module and hasattr(item, "callspec")]
    return list(dict.fromkeys(item.callspec.params[parameter] for item in tests if parameter in item.callspec.params))
