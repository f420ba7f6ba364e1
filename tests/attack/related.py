"""Relations between runs of random scenarios: each attempt draws a scenario of a kind and checks one relation.

What fails is made smaller as long as it fails, and told as the scenario that is left.
"""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from attack import pool, rows
from attack.changes import ran
from attack.draws import KINDS, Data
from attack.inputs import Result
from attack.relations import RELATIONS, what_is_read_runs
from gradtide.errors import GradtideError, InternalError
from gradtide.scenario.source import tomllib
from gradtide.scenario.write import toml

HOLDS, KILLED = "holds", "killed"
FOLDER = "relations"
"""Where the corpus has scenarios of relations: the first line of a file names its relation."""
_DRAWS = 30
CPU_SECONDS = 30
CHUNK = 200
STUDIES = frozenset(name for name, one in RELATIONS.items() if one.check.__module__ == rows.__name__)
"""Relations of studies, which take ten times as long as the others."""


def case(seed: int, index: int) -> tuple[str, str, Data]:
    """Return the relation, the kind and the scenario of a number."""
    name = list(RELATIONS)[index % len(RELATIONS)]
    chance = Random(f"{seed} relation {index}")
    kinds = list(KINDS)
    first = index // len(RELATIONS) % len(kinds)
    # The next kind that the relation is of takes the turn of one that it is not of.
    for kind in (*kinds[first:], *kinds[:first]):
        for _ in range(_DRAWS):
            data = KINDS[kind](chance)
            if RELATIONS[name].holds_for(data) and (RELATIONS[name].check is what_is_read_runs or runs(data)):
                return name, kind, data
    raise AssertionError(f"{name} is of no kind of scenario")


def runs(data: Data) -> bool:
    """Whether gradtide runs such a scenario."""
    try:
        ran(data)
    except GradtideError as error:
        return isinstance(error, InternalError)
    return True


def outcome(name: str, data: Data) -> str:
    """Return what is wrong with a relation of a scenario, or that it holds."""
    try:
        wrong = RELATIONS[name].check(data, Random(f"{name} {json.dumps(data)}"))
    except GradtideError as error:
        return f"ended: {str(error)[:300]}"
    except BaseException as error:  # a panic of the core is no Exception
        return f"{type(error).__name__}: {str(error)[:300]}"
    return wrong or HOLDS


def smaller(data: Any) -> Iterator[Any]:
    """Yield copies of a scenario without one of its keys or one element of a list, and with simpler numbers."""
    if isinstance(data, dict):
        for key in data:
            yield {other: value for other, value in data.items() if other != key}
        for key, value in data.items():
            for less in smaller(value):
                yield {**data, key: less}
    elif isinstance(data, list):
        for index in range(len(data)):
            yield data[:index] + data[index + 1 :]
        for index, value in enumerate(data):
            for less in smaller(value):
                yield [*data[:index], less, *data[index + 1 :]]
    elif isinstance(data, int) and not isinstance(data, bool) and data > 1:
        yield 1
        if data > 2:
            yield 2
            yield data - 1


def shrunk(name: str, data: Data, most: int = 1500) -> Data:
    """Return a smaller scenario of which the relation does not hold either, by at least half as much."""
    least = _percent(outcome(name, data)) / 2
    tries = 0
    is_smaller = True
    while is_smaller and tries < most:
        is_smaller = False
        for less in smaller(data):
            tries += 1
            if tries < most and _still_fails(name, less, least):
                data, is_smaller = less, True
                break
    return data


def _still_fails(name: str, data: Data, least_percent: float) -> bool:
    if not isinstance(data.get("run"), dict) or "engine" not in data["run"] or "cluster" not in data:
        return False
    try:
        if not RELATIONS[name].holds_for(data) or not (RELATIONS[name].check is what_is_read_runs or runs(data)):
            return False
        told = outcome(name, data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return False
    # An error of the relation itself is no finding in what is no longer a scenario of its kind.
    is_error = told.startswith(("KeyError", "TypeError", "ended", "IndexError", "UnitError"))
    return told != HOLDS and not is_error and _percent(told) >= least_percent


def _percent(told: str) -> float:
    """Return by how much a finding changes a time, if it says so."""
    found = re.search(r"\(([+-][\d.e+-]+) %\)", told)
    return abs(float(found[1])) if found else 0.0


def attack(seed: int, count: int, deadline: float, processes: int, out: Path) -> Result:
    """Check `count` relations of random scenarios until `deadline`.

    What is done stands in a file of `out` as long as the rest is not, so an attack that was ended goes on from there.
    """

    def attempt(index: int, folder: Path) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        name, kind, data = case(seed, index)
        return {"index": index, "name": name, "kind": kind, "outcome": outcome(name, data)}

    journal = out / f"relations-{seed}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {row["index"] for row in known}
    starts = [at for at in range(0, count, CHUNK) if not done.issuperset(range(at, min(at + CHUNK, count)))]
    chunks = [("relations", at, min(at + CHUNK, count), attempt) for at in starts]
    result = Result({name: Counter() for name in RELATIONS})
    with journal.open("a") as file:
        new = (row for row in pool.run(chunks, processes, deadline) if row["index"] not in done)
        for row in chain(known, new):
            if row["index"] not in done:
                print(json.dumps(row), file=file, flush=True)
            name, told = row.get("name", KILLED), row["outcome"]
            result.counts.setdefault(name, Counter())[told if told == HOLDS else "does not hold"] += 1
            if told != HOLDS:
                result.findings.setdefault((name, row.get("kind", told)), row["index"])
    if result.total >= count:
        journal.unlink()
    return result


def reduced(seed: int, index: int) -> str:
    """Return a finding as its reduced scenario, what is wrong with it, and how to see it again."""
    name, kind, data = case(seed, index)
    less = shrunk(name, data)
    return f"# {name}\n# {kind}, {seed}-{index}: {outcome(name, less)}\n{toml(less)}"


def replayed(path: Path) -> str:
    """Return what comes of the relation and the scenario of a file that `reduced` wrote."""
    text = path.read_text(encoding="utf-8")
    return outcome(text.splitlines()[0].removeprefix("# "), tomllib.loads(text))
