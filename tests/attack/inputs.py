"""Mutated inputs over all readers: each ends with a value or a documented error, in 5 s and 1 GB."""

import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from attack import pool
from attack.mutate import mutated
from attack.readers import PACKAGE, READERS, Reader

CHUNK = 400
VALUE, DOCUMENTED = "value", "documented error"
FINE = (VALUE, DOCUMENTED)
MOST_MESSAGE = 200_000
"""Characters that an error may have; a terminal shows a hundred lines of them."""


@dataclass
class Result:
    """Counts by reader and outcome, and one input for each kind of finding.

    Attributes:
        counts: how often each outcome came, by reader.
        findings: number of an input by reader and outcome.
        notes: other counts.
    """

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: dict[tuple[str, str], int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Inputs that were run."""
        return sum(counts.total() for counts in self.counts.values())


def input_of(seed: int, name: str, index: int) -> bytes:
    """Return an input, which its seed, reader and number tell."""
    return mutated(Random(f"{seed} {name} {index}"), _samples(name), READERS[name].kind)


_SAMPLES: dict[str, list[bytes]] = {}


def _samples(name: str) -> list[bytes]:
    if name not in _SAMPLES:
        _SAMPLES[name] = READERS[name].samples()
    return _SAMPLES[name]


def outcome(reader: Reader, data: bytes, folder: Path) -> str:
    """Read an input; return whether it gave a value, a documented error or a finding, and where from."""
    path = folder / reader.file
    if not path.exists():
        reader.prepare(folder)
    path.write_bytes(data)
    try:
        reader.read(path)
        return VALUE
    except BaseException as error:  # a panic of the core is no Exception
        if reader.is_allowed(error):
            text = str(error)
            return DOCUMENTED if len(text) <= MOST_MESSAGE else f"an error of {len(text):,} characters"
        return f"{type(error).__name__} in {_place(error)}: {str(error)[:120]}"


def _place(error: BaseException) -> str:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    frame = next((frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)), None)
    return "the core" if frame is None else f"{Path(frame.filename).relative_to(PACKAGE.parent)} {frame.name}"


def attack(seed: int, count: int, deadline: float, processes: int, only: Sequence[str] = ()) -> Result:
    """Run `count` mutated inputs, shared out over the readers, until `deadline`."""
    names = [name for name in READERS if not only or name in only]
    for name in names:
        _samples(name)
    shares = sum(READERS[name].share for name in names)
    chunks = []
    for name in names:
        most = -(-count * READERS[name].share // shares)
        chunks += [(name, at, min(at + CHUNK, most), _attempt(seed, name)) for at in range(0, most, CHUNK)]
    # Readers take turns, so that a run that ends early has attacked all of them.
    Random(seed).shuffle(chunks)
    result = Result({name: Counter() for name in names})
    for row in pool.run(chunks, processes, deadline):
        name, told = row["reader"], row["outcome"]
        kind = told.partition(":")[0] if told not in FINE else told
        result.counts[name][kind] += 1
        if told not in FINE:
            result.findings.setdefault((name, kind), row["index"])
    return result


def _attempt(seed: int, name: str) -> pool.Attempt:
    def attempt(index: int, folder: Path) -> dict[str, Any]:
        return {"index": index, "outcome": outcome(READERS[name], input_of(seed, name, index), folder)}

    return attempt


def outcome_in_child(name: str, data: bytes) -> str:
    """Read one input in a child with limits."""

    def attempt(index: int, folder: Path) -> dict[str, Any]:
        return {"index": index, "outcome": outcome(READERS[name], data, folder)}

    (row,) = pool.run([(name, 0, 1, attempt)], 1, time.monotonic() + 1e9)
    return str(row["outcome"])


def minimised(name: str, data: bytes, seconds: float = 20) -> bytes:
    """Return a smaller input with the same outcome: halves, quarters, ... are left out as long as it stays."""
    kind = outcome_in_child(name, data).partition(":")[0]
    end = time.monotonic() + seconds
    size = len(data) // 2
    while size >= 1 and time.monotonic() < end:
        at = 0
        while at < len(data) and time.monotonic() < end:
            less = data[:at] + data[at + size :]
            if outcome_in_child(name, less).partition(":")[0] == kind:
                data = less
            else:
                at += size
        size //= 2
    return data
