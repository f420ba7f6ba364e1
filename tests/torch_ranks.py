"""Ranks of a test: processes that train together over gloo, and what each of them came to. Needs torch."""

import contextlib
import gc
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

MARKS = [
    pytest.mark.linux,
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
"""Marks of a module whose tests start ranks."""

ENDED_BY = 240  # seconds; far above what any test takes, and below the limit of those that use it


@dataclass
class Outcome:
    """What one rank returned or raised; `error` is "" if it raised nothing, and "killed" if it said nothing."""

    value: object = None
    kind: str = ""
    error: str = ""
    seconds: float = 0.0


def meet(folder, rank, size, timeout_s):
    """Join the default group. Ranks meet in a file: a free port may be taken by the time they do."""
    torch.set_num_threads(1)
    store, timeout = f"file://{folder}/store", timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timeout)


def _rank(task, rank, size, folder, timeout_s, arguments, pipe):
    torch.set_num_threads(1)
    start = time.monotonic()
    try:
        if size:
            meet(folder, rank, size, timeout_s)
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


def values(size, task, folder, *arguments, **options):
    """Run `task` as `run` does, on ranks that must not fail; return what each of them returned."""
    outcomes = run(size, task, folder, *arguments, **options)
    errors = "\n".join(filter(None, (outcome.error for outcome in outcomes)))
    assert not errors, errors
    return [outcome.value for outcome in outcomes]


def levels_equal_to_ddp(rank, train, levels):
    """Return for each level whether `train(rank, level)` returns the tensors of `train(rank, "ddp")`, bit for bit."""
    expected = train(rank, "ddp")
    return {level: all(map(torch.equal, expected, train(rank, level))) for level in levels}


def plan_of(model, level, *, chunk=None, **more):
    """Return a plan of one bucket for each module that owns parameters: the last ready first, the first most urgent."""
    seen, sizes = set(), {}
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and id(p) not in seen]
        seen.update(map(id, own))
        if own:
            sizes[name] = sum(p.nbytes for p in own)
    buckets = [{"layers": [name], "bytes": size, "rank": rank} for rank, (name, size) in enumerate(sizes.items())]
    return {"schema": "gradtide.plan/1", "level": level, "buckets": buckets[::-1], "chunk_bytes": chunk, **more}


def live_tensors():
    """Return every tensor that lives, by its id; with the garbage collector off, those in garbage too."""
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
