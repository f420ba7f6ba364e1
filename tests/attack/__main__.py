"""The command line of the attack."""

import argparse
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # children are forked, which threads do not survive

import gradtide
from attack import inputs, kills, page, pairs, related, runs, saves, sweeps
from attack.readers import PACKAGE, ROOT

KINDS = ("inputs", "runs", "relations", "pairs", "kills", "saves", "sweeps")


def main() -> int:
    """Attack as asked; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="root of all that is random")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing new after this long, for each kind")
    parser.add_argument("--only", help=f"{', '.join(KINDS)}, or the name of a reader")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="mutated inputs")
    parser.add_argument("--runs", type=int, default=1000, help="random scenarios")
    parser.add_argument("--relations", type=int, default=100_000, help="relations of random scenarios")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--commands", help="kill only these commands, or these parts of studies of sweep")
    parser.add_argument("--sweeps", type=int, default=50, help="kills of each part of studies of sweep")
    parser.add_argument("--faults", type=int, default=10**9, help="faults of each kind in each save, at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("../out/attack"), help="where inputs of findings go")
    parser.add_argument("--page", action="store_true", help="write the counts to the page of the documentation")
    parser.add_argument("--installed", action="store_true", help="refuse to attack the source tree")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="READER/FILE", help="only read these inputs again")
    parser.add_argument("--smaller", metavar="SEED-NUMBER", help="only make this finding of relations smaller")
    given = parser.parse_args()
    is_installed = not PACKAGE.is_relative_to(ROOT / "python")
    if given.installed and not is_installed:
        parser.error(f"--installed: {PACKAGE} is imported, which is the source tree; unset PYTHONPATH")
    attacked = f"gradtide {gradtide.__version__}, {'installed' if is_installed else 'from its source tree'}"
    if given.replay:
        told = {path: _replayed(path) for path in given.replay}
        print(*(f"{path}: {outcome[:300]}" for path, outcome in told.items()), sep="\n")
        return int(not set(told.values()) <= {*inputs.FINE, related.HOLDS})
    if given.smaller:
        print(related.reduced(*map(int, given.smaller.split("-"))))
        return 1
    # A shell that starts the attack in the background has it ignore Ctrl-C, and so would the commands that it kills.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"{attacked}: {PACKAGE}", f"seed {given.seed}", sep="\n", flush=True)

    def named(known: Iterable[str]) -> tuple[str, ...]:
        return tuple(given.commands.split(",") if given.commands else known)

    attacks: dict[str, Callable[[float], inputs.Result]] = {
        "inputs": lambda deadline: inputs.attack(given.seed, given.inputs, deadline, given.jobs, only),
        "runs": lambda deadline: runs.attack(given.seed, given.runs, deadline, given.jobs),
        "relations": lambda deadline: related.attack(given.seed, given.relations, deadline, given.jobs, given.out),
        "pairs": lambda deadline: pairs.attack(given.seed, deadline),
        "kills": lambda deadline: kills.attack(given.seed, given.kills, deadline, given.jobs, named(kills.COMMANDS)),
        "saves": lambda deadline: saves.attack(deadline, given.faults),
        "sweeps": lambda deadline: sweeps.attack(given.seed, given.sweeps, deadline, given.jobs, named(sweeps.WAYS)),
    }
    only = [given.only] if given.only in inputs.READERS else []
    found = 0
    for kind in KINDS:
        if given.only in (None, kind) or (only and kind == "inputs"):
            begin = time.monotonic()
            result = attacks[kind](begin + 60 * given.minutes)
            seconds = time.monotonic() - begin
            _tell(kind, result, seconds, given)
            found += len(result.findings)
            if given.page:
                page.write(kind, result, given.seed, seconds, 1 if kind in ("saves", "pairs") else given.jobs, attacked)
    return int(found > 0)


def _replayed(path: Path) -> str:
    if path.parent.name == related.FOLDER:
        return related.replayed(path)
    return inputs.outcome_in_child(path.parent.name, path.read_bytes())


def _tell(kind: str, result: inputs.Result, seconds: float, given: argparse.Namespace) -> None:
    for name, counts in result.counts.items():
        print(f"{name:20}", *(f"{count:>9,} {outcome}" for outcome, count in counts.most_common()))
    print(f"{kind}: {result.total:,} in {seconds:.0f} s", *(f"{count} {name}" for name, count in result.notes.items()))
    for (name, outcome), index in result.findings.items():
        print(f"FOUND {name} {index}: {outcome}", flush=True)
        if kind == "relations":
            print(f"      python -m attack --smaller {given.seed}-{index}", flush=True)
        if kind == "inputs":
            data = inputs.minimised(name, inputs.input_of(given.seed, name, index))
            file = given.out / name / f"{given.seed}-{index}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            print(f"      {file} ({len(data)} bytes): {inputs.outcome_in_child(name, data)[:300]}", flush=True)


sys.exit(main())
