"""Runs attempts in child processes that may not take more memory or time than allowed, and survives their deaths."""

import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CPU_SECONDS = 5.0
"""Processor time that one input may take."""
WALL_SECONDS = 120
"""Time that one input may take on a machine that does other things too; what waits for ever takes longer."""
MEMORY_BYTES = 10**9
"""Address space that one input may take."""
PROGRESS_SECONDS = 30

Attempt = Callable[[int, Path], dict[str, Any]]
"""Runs one input by its number, in a folder of its own, and returns a row."""


def limit_memory() -> None:
    """Allow this process one gigabyte more than it has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Chunk:
    """Inputs `start` to `stop` of one reader, run in a child.

    Attributes:
        rows: what the child told, one for each input that it finished.
    """

    def __init__(self, name: str, start: int, stop: int, attempt: Attempt) -> None:
        self.name, self.start, self.stop, self.attempt = name, start, stop, attempt
        self._place = mmap.mmap(-1, 8)
        self._told = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - open as long as the chunk
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(prefix="gradtide-attack.", dir=base)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._run()
                os._exit(0)
            except BaseException:
                # A mistake of the attack itself.
                print(json.dumps({"index": self.place, "outcome": traceback.format_exc()}), file=self._told, flush=True)
                os._exit(99)

    def _run(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        limit_memory()
        for index in range(self.start, self.stop):
            self._place[:] = struct.pack("q", index)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
            row = self.attempt(index, Path(self.folder.name))
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps(row), file=self._told, flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return what the child told."""
        self._told.seek(0)
        return [json.loads(line) for line in self._told if line.endswith("\n")]

    @property
    def place(self) -> int:
        """The input that the child was at."""
        return int(struct.unpack("q", self._place[:])[0])


class Progress:
    """Tells stderr now and then how much is done, and when the rest will be."""

    def __init__(self, total: int) -> None:
        self._total, self._begin = total, time.monotonic()
        self._shown = self._begin

    def show(self, left: int) -> None:
        now = time.monotonic()
        if now - self._shown > PROGRESS_SECONDS and left < self._total:
            self._shown = now
            done = 1 - left / self._total
            ahead_min = (now - self._begin) * (1 / done - 1) / 60
            print(f"{done:.1%} done, about {ahead_min:.0f} min more", file=sys.stderr, flush=True)


def run(chunks: Iterable[tuple[str, int, int, Attempt]], processes: int, deadline: float) -> Iterable[dict[str, Any]]:
    """Run chunks in `processes` children at a time, and yield rows; one of an input that killed its child has `killed`.

    No chunk begins after `deadline`.
    """
    waiting, running = list(chunks)[::-1], dict[int, Chunk]()
    progress = Progress(len(waiting))
    while waiting or running:
        while waiting and len(running) < processes:
            if time.monotonic() > deadline:
                waiting.clear()
                break
            chunk = Chunk(*waiting.pop())
            running[chunk.pid] = chunk
        if not running:
            return
        pid, status = os.wait()
        chunk = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        chunk.folder.cleanup()
        for row in chunk.rows():
            yield {"reader": chunk.name, **row}
        if code:
            how = signal.Signals(-code).name if code < 0 else f"exit {code}"
            yield {"reader": chunk.name, "index": chunk.place, "outcome": f"killed by {how}"}
            if chunk.place + 1 < chunk.stop:
                waiting.append((chunk.name, chunk.place + 1, chunk.stop, chunk.attempt))
        progress.show(len(waiting) + len(running))
