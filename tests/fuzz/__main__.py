"""The command line of the fuzzer: runs targets side by side, and prints a line for each when it ends."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from attack import page
from attack.readers import ROOT
from fuzz.feed import feed
from fuzz.targets import TARGETS

FOLDER = ROOT / "fuzz/libfuzzer"
SEEDS = ROOT / "fuzz/seeds"
CORE = sorted(path.name for path in SEEDS.iterdir())
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
        executions: inputs that it was run on.
        coverage: what they reached: edges of the core, or lines of the Python package.
        findings: what went wrong; empty if nothing did.
    """

    name: str
    by: str
    executions: int
    coverage: str
    findings: str

    def __str__(self) -> str:
        found = "1 finding" if self.findings else "0 findings"
        return f"{self.name:20} {self.executions:>12,} executions  {self.coverage:>16}  {found}"


def main() -> int:
    """Fuzz as asked; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="how long each target is fed")
    parser.add_argument("--only", nargs="+", metavar="TARGET", choices=[*CORE, *TARGETS], help="only these targets")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1, help="root of what hypothesis is fed")
    parser.add_argument("--out", type=Path, default=ROOT / "out/fuzz", help="where inputs of findings go")
    parser.add_argument("--page", action="store_true", help="write the counts to the page of the documentation")
    parser.add_argument("--feed", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.feed:
        print(json.dumps(feed(given.feed, given.seconds, given.seed, given.out)))
        return 0
    names: Sequence[str] = given.only or [*CORE, *TARGETS]
    if set(names) & set(CORE):
        subprocess.run([*_cargo("build")], check=True)
    results: list[Fuzzed] = []

    def run(name: str) -> None:
        found = _core(name, given) if name in CORE else _hypothesis(name, given)
        print(found, found.findings[-4000:], sep="\n" if found.findings else "", flush=True)
        results.append(found)

    with ThreadPoolExecutor(given.jobs) as threads:
        list(threads.map(run, names))
    if given.page:
        page.put("fuzz", _table(sorted(results, key=lambda found: names.index(found.name)), given.seconds))
    return int(any(found.findings for found in results))


def _cargo(command: str) -> list[str]:
    # The core has no `unsafe`, so no sanitizer is needed; without one a stable Rust builds this.
    where = ["--fuzz-dir", str(FOLDER), "--target-dir", str(BUILD), "--sanitizer", "none"]
    return ["cargo", "fuzz", command, *where]


def _core(name: str, given: argparse.Namespace) -> Fuzzed:
    corpus = given.out / name
    corpus.mkdir(exist_ok=True)
    limits = [f"-max_total_time={given.seconds}", f"-timeout={PATIENCE_S}", f"-max_len={MOST_BYTES}"]
    told = [f"-artifact_prefix={given.out}/{name}-", "-print_final_stats=1"]
    done = subprocess.run(
        [*_cargo("run"), name, str(corpus), str(SEEDS / name), "--", *limits, *told],
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return told_by_libfuzzer(name, done.stderr, done.returncode)


def told_by_libfuzzer(name: str, text: str, code: int) -> Fuzzed:
    """Return what libFuzzer printed."""
    count, edges = 0, 0
    for line in text.splitlines():
        words = line.split()
        if line.startswith("stat::number_of_executed_units:"):
            count = int(words[-1])
        if line.startswith("#") and "cov:" in words:
            edges = int(words[words.index("cov:") + 1])
    return Fuzzed(name, "libFuzzer", count, f"{edges:,} edges", text if code else "")


def _hypothesis(name: str, given: argparse.Namespace) -> Fuzzed:
    words = ["--feed", name, "--seconds", str(given.seconds), "--seed", str(given.seed), "--out", str(given.out)]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        return Fuzzed(name, "hypothesis", 0, "", done.stderr or f"exit {done.returncode}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Fuzzed(name, "hypothesis", told["executions"], f"{told['lines']:,} lines", told["finding"])


def _table(results: Sequence[Fuzzed], seconds: int) -> str:
    found = sum(bool(one.findings) for one in results)
    findings = "none found anything" if not found else f"{found} found something"
    rows = [f"{len(results)} targets for {seconds} seconds each; {findings}.", ""]
    rows += ["| target | fed by | executions | coverage |", "|---|---|---:|---:|"]
    rows += [f"| {one.name} | {one.by} | {one.executions:,} | {one.coverage} |" for one in results]
    return "\n".join(rows)


sys.exit(main())
