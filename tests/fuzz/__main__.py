"""The command line of the fuzzer: runs targets side by side, and prints a line for each when it ends."""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attack import page
from attack.readers import ROOT
from fuzz import core
from fuzz.core import Fuzzed
from fuzz.feed import feed
from fuzz.targets import TARGETS

NAMES = [*core.NAMES, *TARGETS]
_FINDING = ", a finding"


def main() -> int:
    """Fuzz as asked; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="how long each target is fed")
    parser.add_argument("--only", nargs="+", metavar="TARGET", choices=NAMES, help="only these targets")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1, help="root of what hypothesis is fed")
    parser.add_argument("--out", type=Path, default=ROOT / "out/fuzz", help="where inputs and results go")
    parser.add_argument("--page", action="store_true", help="write the rows of these targets to the page")
    parser.add_argument("--feed", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.feed:
        print(json.dumps(feed(given.feed, given.seconds, given.seed, given.out)))
        return 0
    names: Sequence[str] = given.only or NAMES
    if set(names) & set(core.NAMES):
        core.build()
    results: list[Fuzzed] = []

    def run(name: str) -> None:
        found = core.run(name, given.seconds, given.out) if name in core.NAMES else _hypothesis(name, given)
        print(found, found.findings[-4000:], sep="\n" if found.findings else "", flush=True)
        results.append(found)
        (given.out / f"{name}.json").write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")

    with ThreadPoolExecutor(given.jobs) as threads:
        list(threads.map(run, names))
    if given.page:
        page.put("fuzz", _table(results))
    return int(any(found.findings for found in results))


def _hypothesis(name: str, given: argparse.Namespace) -> Fuzzed:
    words = ["--feed", name, "--seconds", str(given.seconds), "--seed", str(given.seed), "--out", str(given.out)]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        return Fuzzed(name, "hypothesis", given.seconds, 0, "", done.stderr or f"exit {done.returncode}")
    told = json.loads(done.stdout.splitlines()[-1])
    lines = f"{told['lines']:,} lines"
    return Fuzzed(name, "hypothesis", given.seconds, told["executions"], lines, told["finding"])


def _table(results: Sequence[Fuzzed]) -> str:
    rows = {row[0]: row for row in page.rows("fuzz")} | {one.name: _row(one) for one in results}
    found = [name for name, row in rows.items() if row[-1].endswith(_FINDING)]
    findings = f"{', '.join(found)} found something" if found else "none found anything"
    head = ["target", "seconds", "executions", "coverage"]
    lines = page.table([head, *(rows[name] for name in NAMES if name in rows)])
    return "\n".join([f"The last run of each of {len(rows)} targets; {findings}.", "", *lines])


def _row(one: Fuzzed) -> list[str]:
    coverage = f"{one.coverage}{_FINDING}" if one.findings else one.coverage
    return [one.name, str(one.seconds), f"{one.executions:,}", coverage]


sys.exit(main())
