"""Ranks of a test that are whole programs: each ends as a script does, with its exit code and what it prints.

    python torch_programs.py FOLDER < cases.json > outcomes.json

One process imports torch and then forks every rank, so that a rank costs a fraction of a second. Several cases run at
once. Each case names its ranks, which of them fails, and how. `tests/test_torch_lost.py` reads the outcomes.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it at their first step, and it takes a second
from torch import nn

from gradtide.errors import RankLostError
from gradtide.torch import unwrap, wrap
from torch_ranks import meet, plan_of

AT_ONCE = 6  # cases
ENDED_BY = 60  # seconds after a rank has failed; far above what is allowed
FAILS_AT = 3  # the iteration


def note(folder, rank, **what):
    """Keep what a rank has to say, and when."""
    with open(folder / f"{rank}.notes", "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), **what}) + "\n")


def fail(how, model, timeout_s):
    """Fail in the middle of training; whether to go on after it."""
    if how == "raises":
        raise ZeroDivisionError("the user's own error")
    if how == "unwraps":
        unwrap(model)
    if how.startswith("killed"):  # when the last layers' gradients are on their way
        if how == "killed with a child" and os.fork() == 0:
            os.setsid()
            time.sleep(20)  # it has inherited all connections, and lives on
            os._exit(0)
        last = list(model.module.parameters())[-3]
        last.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    if how == "sleeps":
        time.sleep(2 * timeout_s)
    return how not in ("returns", "unwraps")


def train(rank, *, level, size, victim, how, timeout_s, has_buffers, folder):
    """Train as a user's script does, with nothing to catch errors but a note of them."""
    folder = Path(folder)
    meet(folder, rank, size, timeout_s)
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(256) if has_buffers else nn.LayerNorm(256)  # buffers are exchanged in the forward pass
    model = nn.Sequential(nn.Linear(64, 256), norm, nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = wrap(model, optimizer, plan_of(model, level, chunk=4096))
    try:
        for number in range(200):
            if rank == victim and number == FAILS_AT:
                note(folder, rank, failed=how)
                if not fail(how, model, timeout_s):
                    return
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
    except RankLostError as error:
        note(folder, rank, lost=error.rank, since=error.since.timestamp(), error=str(error))
        if rank == size - 1:  # the others leave that to the end of the script
            with contextlib.suppress(RankLostError):
                unwrap(model)
            note(folder, rank, threads=[one.name for one in threading.enumerate()])
        raise


class Rank(Exception):  # noqa: N818 - what a forked child unwinds with
    """Leads a forked child out of the loop below, to the end of this file: there it is a script of its own."""


def start(case, rank):
    """Fork a rank; its output goes to a file."""
    pid = os.fork()
    if pid == 0:
        out = os.open(Path(case["folder"]) / f"{rank}.out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        raise Rank(case, rank)
    return pid


def outcomes_of(cases, root):
    """Run all cases, and return an outcome for each rank of each."""
    waiting, running, found = list(cases.items()), {}, {name: [None] * case["size"] for name, case in cases.items()}
    while waiting or running:
        while waiting and len({name for name, _ in running.values()}) < AT_ONCE:
            name, case = waiting.pop(0)
            case["folder"] = str(root / name)
            Path(case["folder"]).mkdir(parents=True)
            for rank in range(case["size"]):
                running[start(case, rank)] = name, rank
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
            for each, (name, rank) in list(running.items()):
                case = cases[name]
                rest = [other for other, _ in running.values()].count(name)
                is_last = rest == 1 and rank == case["victim"] and case["how"] == "stopped"
                if is_last or time.time() - Path(case["folder"]).stat().st_mtime > ENDED_BY + case["timeout_s"]:
                    os.kill(each, signal.SIGKILL)
            continue
        name, rank = running.pop(pid)
        folder = Path(cases[name]["folder"])
        notes = folder / f"{rank}.notes"
        found[name][rank] = {
            "code": os.waitstatus_to_exitcode(status),
            "ended": time.time(),
            "notes": [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else [],
            "output": (folder / f"{rank}.out").read_text(errors="replace"),
        }
    return found


def main():
    """Read cases and write outcomes."""
    gc.freeze()  # Looking through all of torch again took most of a second at the end of each rank.
    cases = json.load(sys.stdin)
    json.dump(outcomes_of(cases, Path(sys.argv[1])), sys.stdout)


if __name__ == "__main__":
    child = None
    try:
        main()
    except Rank as rank:
        child = rank.args
    if child is not None:
        case, rank = child
        train(rank, **case)
