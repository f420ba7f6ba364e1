"""Kills commands at random moments while they replace an older result.

Afterwards the old or the new result is there, whole; the same command run again gives the new one, byte for byte, and
nothing else is left beside it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from attack import folders
from attack.inputs import Result
from attack.readers import ROOT

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE_S = 100
"""How long a command may take to end after a signal. Only SIGTERM and SIGINT need any."""

SMALL = """\
[job.a]
model = {{ kind = "thesis", layers = 20, size = "20MB", time = "90ms" }}
workers = 3
iterations = {iterations}
compute = {{ noise = 0.05 }}
"""
BESIDE = """\
[run]
engine = "packet"
duration = "9s"
[cluster]
topology = { hosts = 6 }
queue = { kind = "strict", bands = 2 }
[traffic.w]
flows = [{ start = "1ms", src = "h4", dst = "h0", bytes = "4MB" }]
"""


@dataclass(frozen=True)
class Command:
    """A command that writes a result.

    Attributes:
        words: what is run; OUT stands for the result, IN for the scenario.
        out: name of the result.
        needs_traffic: whether its scenario has background flows.
    """

    words: tuple[str, ...]
    out: str = "out"
    needs_traffic: bool = False


COMMANDS = {
    "run": Command(("run", "IN", "-o", "OUT")),
    "compare": Command(("compare", "IN", "-o", "OUT", "-j", "2")),
    "collectives": Command(("collectives", "IN", "-o", "OUT")),
    "plan": Command(("plan", "IN", "--seeds", "2", "-o", "OUT")),
    "plan file": Command(("plan", "IN", "--seeds", "2", "-o", "OUT"), "plan.json"),
    "tenants": Command(("tenants", "IN", "-o", "OUT", "--seeds", "2"), needs_traffic=True),
    "tenants policies": Command(("tenants", "policies", "IN", "-o", "OUT"), needs_traffic=True),
    "tenants lp": Command(("tenants", "lp", "IN", "-o", "OUT"), needs_traffic=True),
    "reproduce": Command(("reproduce", "gao2020/ch4", "-o", "OUT")),
    "buy": Command(("buy", "IN", "-o", "OUT")),
    "report of a trace": Command(("report", str(ROOT / "scenarios/traces"), "-o", "OUT")),
    "convert a trace": Command(("convert", str(ROOT / "scenarios/traces/rank0.pt.trace.json.gz"), "OUT"), "out.json"),
}
"""Every command that works long and writes a result over an older one; `reproduce` writes the same one again."""


def _is_of_pythons_start(told: bytes) -> bool:
    """Return whether a traceback goes through no file of the package: Python was loading itself, as for any program."""
    return not re.search(rb'File "[^"]*[/\\]gradtide[/\\]', told)


class Stage:
    """One command with its scenario, its old result and its new one.

    Attributes:
        seconds: how long the command takes.
        longest_wait: seconds from a signal to the end, at most.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.command, self.folder = COMMANDS[name], folder
        self.longest_wait = 0.0
        folder.mkdir(parents=True)
        self.scenario = folder / "in.toml"
        self.kept = folder / "kept"
        self.place = folder / "place"
        self.place.mkdir()
        self.out = self.place / self.command.out
        self._write(iterations=2)
        self.run()
        shutil.move(self.out, self.kept)
        self.old = folders.content(self.kept)
        self._write(iterations=3)
        self.run()
        begin = time.monotonic()
        self.new = folders.content(self.out)
        self.run()
        self.seconds = time.monotonic() - begin
        changed = folders.differences(folders.content(self.out), self.new)
        if changed:
            raise AssertionError(f"{name}: two equal commands differ in {changed}")

    def _write(self, iterations: int) -> None:
        self.scenario.write_text(SMALL.format(iterations=iterations) + BESIDE * self.command.needs_traffic)

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the command in a process group of its own."""
        stands_for = {"IN": self.scenario.name, "OUT": os.path.join(self.place.name, self.command.out)}
        words = [stands_for.get(word, word) for word in self.command.words]
        return subprocess.Popen(
            [sys.executable, "-m", "gradtide", *words],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self) -> None:
        """Run the command to its end."""
        process = self.start()
        _, told = process.communicate(timeout=300)
        if process.returncode:
            raise AssertionError(f"{self.command.words} ended with {process.returncode}: {told.decode()[-400:]}")

    def reset(self) -> None:
        """Put the old result back, alone."""
        shutil.rmtree(self.place)
        self.place.mkdir()
        (shutil.copytree if self.kept.is_dir() else shutil.copy)(self.kept, self.out)

    def kill(self, number: signal.Signals, after_s: float) -> str:
        """Run the command over the old result, kill it, look, run it again and look; return what was found."""
        self.reset()
        process = self.start()
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        begin = time.monotonic()
        try:
            _, told = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"not ended {PATIENCE_S} s after {number.name}"
        waited = time.monotonic() - begin
        if b"Traceback" in told and not _is_of_pythons_start(told):
            return f"traceback after {number.name}: {told.decode()[-200:]}"
        found = folders.content(self.out)
        is_old, is_new = found == self.old, found == self.new
        if not (is_old or is_new):
            changed = folders.differences(found, self.new)
            return f"neither old nor new: {', '.join(changed[:5])}" if found else "lost: there is no result"
        try:
            self.run()
        except AssertionError as error:
            return f"the next run fails: {error}"
        changed = folders.differences(folders.content(self.out), self.new)
        if changed:
            return f"the next run is another one: {', '.join(changed[:5])}"
        left = sorted(path.name for path in self.place.iterdir() if path != self.out)
        if left:
            return f"left behind: {', '.join(left)}"
        self.longest_wait = max(self.longest_wait, waited)
        return "old, then new" if is_old else "new"


FINE = ("old, then new", "new")


def attack(seed: int, count: int, deadline: float, processes: int, names: Sequence[str] = tuple(COMMANDS)) -> Result:
    """Kill commands `count` times in all, as often each, until `deadline`."""
    result = Result({name: Counter() for name in names})
    signals: Counter[str] = Counter()

    def of_command(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="gradtide-kills.") as folder:
            stage = Stage(name, Path(folder) / "stage")
            for index in range(list(names).index(name), count, len(names)):
                if time.monotonic() > deadline:
                    return
                chance = Random(f"{seed} kill {index}")
                number = chance.choice(SIGNALS)
                # Half of the kills come near the end, when results are written.
                share = chance.random() * 1.1 if chance.random() < 0.5 else 0.75 + 0.35 * chance.random()
                told = stage.kill(number, share * stage.seconds)
                kind = told.partition(":")[0]
                result.counts[name][kind] += 1
                signals[number.name] += 1
                if kind not in FINE:
                    result.findings.setdefault(("kills", f"{name}, {number.name}: {told}"), index)

    with ThreadPoolExecutor(processes) as threads:
        for _ in threads.map(of_command, names):
            pass
    result.notes = dict(signals)
    return result
