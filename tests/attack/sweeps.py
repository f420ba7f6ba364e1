"""Kills studies of `gradtide sweep` at random moments, here and on a Ray cluster of two nodes.

What was not killed goes on; a command that was is run again, and may be killed again. In the end each command has the
result of one that was not disturbed, byte for byte. The driver of a study on Ray is its command. The head of the
cluster is never killed.
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack import folders
from attack.inputs import Result
from gradtide.extras import how_to_install
from gradtide.studies.store import Store

PATIENCE_S = 300
"""How long a command may take."""
KILLS = 5
"""How often the same study is killed, at most."""

FILES = {
    "base.toml": """\
[job.train]
model = "model.csv"
workers = 2
iterations = 3000
compute = { noise = 0.05 }
[cluster]
link = { rate = "10Gbps", delay = "10us" }
""",
    "model.csv": "layer,forward_us,backward_us,parameter_bytes\na,10,20,1000000\nb,10,20,2000000\n",
    "s.toml": '[sweep]\nscenario = "base.toml"\nseeds = 100\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n',
}
RUNS = 200
"""A study whose runs have a file of their own and take some milliseconds each."""

STORE = "gradtide.store"

NODES = 2
"""Of the cluster, beside its head; each has one processor."""


# The cluster


@contextmanager
def cluster() -> Iterator[Any]:
    """Give a Ray cluster whose head has no processor."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(NODES):
            nodes.add_node(num_cpus=1)
        yield nodes
    finally:
        nodes.shutdown()


def workers(nodes: Any, title: bytes = b"ray::run") -> list[int]:
    """Return the processes that have a task of ours under way, by their titles."""
    found = []
    for node in nodes.list_all_nodes():
        raylet = node.all_processes["raylet"][0].process.pid
        for child in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split():
            try:
                if Path(f"/proc/{child}/cmdline").read_bytes().startswith(title):
                    found.append(int(child))
            except FileNotFoundError:
                continue
    return found


# A study and its commands


def write_files(place: Path) -> None:
    """Write the study."""
    for name, text in FILES.items():
        (place / name).write_text(text)


def start(place: Path, *more: str, out: str = "out") -> "subprocess.Popen[bytes]":
    """Start the study."""
    command = [sys.executable, "-m", "gradtide", "sweep", "s.toml", "-q", "-o", out, "--store", STORE, *more]
    with _log(place, out).open("ab") as log:
        return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)


def _log(place: Path, out: str) -> Path:
    """Return where a command writes what it prints."""
    return place / f"{out}.log"


def finished(path: Path) -> int:
    """Return how many runs are in a store."""
    if not path.exists():
        return 0
    with Store(path) as store:
        return len(store)


Commands = list["subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Way:
    """A way to run a study, and to kill it.

    Attributes:
        kill: kills something of the commands that work, on a cluster if there is one; returns whether it did.
        outs: a command for each of these results.
        is_on_ray: whether they are drivers of a cluster.
    """

    kill: Callable[[Commands, Any, random.Random], bool]
    outs: tuple[str, ...] = ("out",)
    is_on_ray: bool = False


def _kill_some(commands: Commands, _nodes: Any, chance: random.Random) -> bool:
    """Kill one command, or all of them at once."""
    works = [one for one in commands if one.poll() is None]
    some = works if chance.random() < 0.5 else [chance.choice(works)] if works else []
    for one in some:
        one.kill()
        one.wait()
    return bool(some)


def _kill_worker(commands: Commands, nodes: Any, chance: random.Random) -> bool:
    """Kill a process that runs a task, as soon as there is one."""
    while any(one.poll() is None for one in commands):
        found = workers(nodes)
        if found:
            # By the command, since the process may have ended meanwhile.
            return subprocess.run(["kill", "-9", str(chance.choice(found))], check=False).returncode == 0
        time.sleep(0.01)
    return False


def _kill_node(_commands: Commands, nodes: Any, chance: random.Random) -> bool:
    """Kill a node that is not the head, with all its processes."""
    nodes.remove_node(chance.choice(list(nodes.worker_nodes)), allow_graceful=False)
    return True


WAYS = {
    "one process": Way(_kill_some),
    "one or both of two processes on one store": Way(_kill_some, ("one", "two")),
    "a worker of Ray": Way(_kill_worker, is_on_ray=True),
    "a node of Ray": Way(_kill_node, is_on_ray=True),
    "the driver of Ray": Way(_kill_some, is_on_ray=True),
}


class Stage:
    """A study that is run in one way.

    Attributes:
        seconds: how long it takes.
        whole: the result of a command that nobody disturbed.
    """

    def __init__(self, way: Way, folder: Path, nodes: Any, whole: dict[str, bytes] | None) -> None:
        self.way, self.folder, self.whole = way, folder, whole
        self._nodes = nodes if way.is_on_ray else None
        self._words = ("--executor", "ray", "--address", nodes.address) if way.is_on_ray else ()
        self.reset()
        begin = time.monotonic()
        for out, one in zip(way.outs, self._start(), strict=True):
            _ended(one, _log(folder, out))
        self.seconds = time.monotonic() - begin

    def reset(self) -> None:
        """Leave nothing but the study."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        write_files(self.folder)
        self._add_nodes()

    def _add_nodes(self) -> None:
        """Put a node in the place of one that was killed."""
        while self._nodes is not None and len(self._nodes.worker_nodes) < NODES:
            with suppress(TimeoutError):  # it is there later, if the machine is slow
                self._nodes.add_node(num_cpus=1)

    def _start(self) -> Commands:
        return [self._started(out) for out in self.way.outs]

    def _started(self, out: str) -> "subprocess.Popen[bytes]":
        return start(self.folder, *self._words, out=out)

    def kill(self, chance: random.Random, most: int) -> Iterator[str]:
        """Run the study, kill something up to `most` times until it ends; give what was found, once for each kill."""
        self.reset()
        had: list[int] = []
        commands: Commands = []
        try:
            commands += self._start()
            while len(had) < most and self._wait(commands, chance):
                if not self.way.kill(commands, self._nodes, chance):
                    break
                had.append(finished(self.folder / STORE))
                self._add_nodes()
                for at, one in enumerate(commands):
                    if one.poll() == -signal.SIGKILL:
                        commands[at] = self._started(self.way.outs[at])
            for out, one in zip(self.way.outs, commands, strict=True):
                _ended(one, _log(self.folder, out))
            told = self._other()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            told = f"a command fails: {error}"
        finally:
            for one in commands:
                one.kill()
                one.wait()
        if told:
            yield told
            return
        for runs in had:
            yield "before the first run" if not runs else "between two runs" if runs < RUNS else "after the last run"

    def _wait(self, commands: Commands, chance: random.Random) -> bool:
        """Wait for a moment at random, or until all commands have ended; return whether one of them has not.

        Half of the moments are when some more runs have ended, because a command takes longer to begin and to end.
        """
        runs, seconds = RUNS, chance.random() * self.seconds
        if chance.random() < 0.5:
            had = finished(self.folder / STORE)
            runs, seconds = had + chance.randrange(1 + (RUNS - had) // 2), PATIENCE_S
        begin = time.monotonic()
        while works := any(one.poll() is None for one in commands):
            if time.monotonic() > begin + seconds or (runs < RUNS and finished(self.folder / STORE) > runs):
                break
            time.sleep(0.01)
        return works

    def _other(self) -> str:
        """Return what is not as if nobody had disturbed the study."""
        for out in self.way.outs:
            if changed := folders.differences(folders.content(self.folder / out), self.whole):
                return f"another result: {', '.join(changed[:5])}"
        runs = finished(self.folder / STORE)
        return "" if runs == RUNS else f"another number of runs: {runs}"


FINE = ("before the first run", "between two runs", "after the last run")


def _ended(command: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for a command that must end well."""
    command.wait(PATIENCE_S)
    if command.returncode:
        raise AssertionError(f"it ended with {command.returncode}: {log.read_text()[-400:]}")


def attack(seed: int, count: int, deadline: float, processes: int, names: Sequence[str] = tuple(WAYS)) -> Result:
    """Kill studies `count` times in each way, in turn until `deadline`; without Ray, its ways are left out.

    With two processes or more, studies here and studies on Ray are killed at the same time.
    """
    result = Result({name: Counter() for name in names})
    with tempfile.TemporaryDirectory(prefix="gradtide-sweeps.") as folder, ExitStack() as ends:
        nodes = None
        if any(WAYS[name].is_on_ray for name in names):
            try:
                nodes = ends.enter_context(cluster())
            except ImportError:
                print(f"Ray is missing ({how_to_install('ray')}): its part is left out")
        (place := Path(folder) / "whole").mkdir()
        write_files(place)
        _ended(start(place), _log(place, "out"))
        whole = folders.content(place / "out")

        def in_turn(ways: Sequence[str]) -> None:
            stages = {name: Stage(WAYS[name], Path(folder) / name, nodes, whole) for name in ways}
            left, index = deque(stages), 0
            while left and time.monotonic() < deadline:
                name, index = left.popleft(), index + 1
                counts = result.counts[name]
                most = min(KILLS, count - counts.total())
                for told in stages[name].kill(random.Random(f"{seed} {name} {index}"), most):
                    kind = told.partition(":")[0]
                    counts[kind] += 1
                    if kind not in FINE:
                        result.findings.setdefault(("sweeps", f"{name}: {told}"), index)
                if counts.total() < count:
                    left.append(name)
                print(f"{name}: {counts.total()} kills", file=sys.stderr, flush=True)

        here = [name for name in names if not WAYS[name].is_on_ray]
        there = [name for name in names if WAYS[name].is_on_ray and nodes is not None]
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(in_turn, here)
            if processes < 2:
                done.result()
            in_turn(there)  # Ray adds nodes in the main thread alone
            done.result()
    return result
