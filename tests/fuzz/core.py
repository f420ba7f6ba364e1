"""The targets of the core: builds them with cargo-fuzz, runs them in libFuzzer, and reads what it prints."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from attack.readers import ROOT
from fuzz.seeds import runs

FOLDER = ROOT / "fuzz/libfuzzer"
SEEDS = ROOT / "fuzz/seeds"
NAMES = sorted(path.name for path in SEEDS.iterdir())
BUILD = ROOT / "target/fuzz"
PATIENCE_S = 60
"""What one input of libFuzzer may take on a busy machine."""
MOST_BYTES = 8192


@dataclass(frozen=True)
class Fuzzed:
    """What came of a target.

    Attributes:
        name: of the target.
        by: who fed it.
        seconds: for how long.
        executions: inputs that it was run on.
        coverage: what they reached: edges of the core, or lines of the Python package.
        findings: what went wrong; empty if nothing did.
    """

    name: str
    by: str
    seconds: int
    executions: int
    coverage: str
    findings: str

    def __str__(self) -> str:
        found = "1 finding" if self.findings else "0 findings"
        return f"{self.name:20} {self.executions:>12,} executions  {self.coverage:>16}  {found}"


def build() -> None:
    """Build every target.

    Raises:
        CalledProcessError: if that fails; what is wrong was printed.
    """
    subprocess.run(_cargo("build"), check=True)


def _cargo(command: str) -> list[str]:
    # The core has no `unsafe`, so no sanitizer is needed; without one a stable Rust builds this.
    where = ["--fuzz-dir", str(FOLDER), "--target-dir", str(BUILD), "--sanitizer", "none"]
    return ["cargo", "fuzz", command, *where]


def run(name: str, seconds: int, out: Path) -> Fuzzed:
    """Have libFuzzer feed a target; inputs of interest and of findings go to `out`."""
    corpus = out / name
    corpus.mkdir(exist_ok=True)
    for seed, data in runs() if name == "run" else ():
        (corpus / seed).write_bytes(data)
    limits = [f"-max_total_time={seconds}", f"-timeout={PATIENCE_S}", f"-max_len={MOST_BYTES}"]
    options = [f"-artifact_prefix={out}/{name}-", "-print_final_stats=1"]
    begin = time.monotonic()
    done = subprocess.run(
        [*_cargo("run"), name, str(corpus), str(SEEDS / name), "--", *limits, *options],
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    # A finding ends it sooner.
    return told(name, min(seconds, round(time.monotonic() - begin)), done.stderr, done.returncode)


def told(name: str, seconds: int, text: str, code: int) -> Fuzzed:
    """Return what libFuzzer printed."""
    count, edges = 0, 0
    for line in text.splitlines():
        words = line.split()
        if line.startswith("stat::number_of_executed_units:"):
            count = int(words[-1])
        if line.startswith("#") and "cov:" in words:
            edges = int(words[words.index("cov:") + 1])
    return Fuzzed(name, "libFuzzer", seconds, count, f"{edges:,} edges", text if code else "")
