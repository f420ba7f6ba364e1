"""Reads traces of any format, file by file, into a `Recording`."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gradtide import _core, recognise
from gradtide.errors import TraceError
from gradtide.scenario.opdag import MAX_DAG_BYTES
from gradtide.schemas import newer_version
from gradtide.traces import archives, files, nsight
from gradtide.traces.archives import Source
from gradtide.traces.model import NoGradientsError, TraceModel, TraceStep
from gradtide.traces.recording import Recording

MAX_RANK_DIGITS = 5
"""Largest number of digits of a rank in a file's name. A longer number is a date, a time or a process id."""

DAG_SCHEMA = "gradtide.trace/1"
"""Schema of the op DAG that the core writes from a trace."""

T = TypeVar("T", bound=Recording)


def read(path: str | Path | Source | Sequence[str | Path | Source], make: type[T]) -> T:
    """Read a trace and detect its format: that of another tool, or an op DAG written by `Trace.save`.

    Args:
        path: as in `from_kineto`.
        make: class of the returned trace.

    Raises:
        TraceError: as in `from_kineto`, `from_execution_trace` and `from_chakra`.
    """
    names = files.named(path, files.ANY)
    if all(name.name.endswith(files.CHAKRA) for name in names):
        return read_as(names, "chakra", make)
    if files.are_exports(names):
        return read_as(names, "nsight", make)
    head = files.start(names[0])
    schema = re.search(rb"gradtide\.trace/\d{1,9}", head[:200]) if len(names) == 1 else None
    if schema is not None:
        newer = newer_version(schema[0].decode(), [DAG_SCHEMA])
        if newer is not None:
            raise TraceError(f"{names[0]} {newer}; update gradtide, or make it again")
        with files.faults_of(names[0], "dag"):
            return make(_core.Trace.from_dag(files.text(names[0], MAX_DAG_BYTES)), "dag")
    found = recognise.seen(head)
    is_graph = found is not None and found.name == "pytorch-et"
    return read_as(names, "pytorch-et" if is_graph else "kineto", make)


_RANK = re.compile(r"rank[_\-.]?(\d+)")

_READERS: dict[str, tuple[Callable[[Iterator[bytes]], _core.Trace], "re.Pattern[str]"]] = {
    "kineto": (_core.kineto, _RANK),
    "nsight": (_core.kineto, _RANK),
    "pytorch-et": (_core.execution_trace, _RANK),
    "chakra": (_core.chakra, re.compile(r"(\d+)(?=\D*$)")),
}
"""The core's reader of each format, and the pattern of the rank in a file's name."""


def read_as(names: Sequence[Source], form: str, make: type[T]) -> T:
    """Read a trace of one format."""
    parts: list[_core.Trace] = []
    numbers: dict[int, Source] = {}
    for name, otherwise, chunks in _exports(names) if form == "nsight" else _files(names, form):
        with files.faults_of(name, form):
            part = _READERS[form][0](chunks)
        [(_, said, _, _)] = part.about
        number = otherwise if said is None else said
        if number in numbers:
            raise TraceError(f"{name} and {numbers[number]} are both of rank {number}; give one file per rank")
        numbers[number] = name
        parts.append(part)
    return make(_core.Trace.of_ranks(list(numbers), parts), form)


def _files(names: Sequence[Source], form: str) -> Iterator[tuple[Source, int, Iterator[bytes]]]:
    """Yield (file, rank, chunks of bytes). The rank is that in the file's name, otherwise the index of the file."""
    for index, chunks in files.pieces(names):
        yield names[index], _rank_in_name(names[index], form, index), chunks


def _exports(names: Sequence[Source]) -> Iterator[tuple[Source, int, Iterator[bytes]]]:
    """Yield (export, rank, chunks of events) for each process in exports of Nsight Systems."""
    count = 0
    for name in names:
        if not isinstance(name, Path):
            raise TraceError(f"{name}: an export of Nsight Systems is not read in an archive; unpack it first")
        with files.faults_of(name):
            found = nsight.processes(name)
        for one in found:
            rank = _rank_in_name(name, "nsight", count) if len(found) == 1 else count
            yield name, rank if one.rank is None else one.rank, one.chunks()
            count += 1


def _rank_in_name(name: Source, form: str, otherwise: int) -> int:
    found = _READERS[form][1].findall(name.name)
    return _rank(found[-1] if found else "", otherwise)


def _rank(digits: str, otherwise: int) -> int:
    """Return `digits` as a rank, or `otherwise` if there are no digits or too many."""
    return int(digits) if 0 < len(digits) <= MAX_RANK_DIGITS else otherwise


def read_model(path: str | Path) -> TraceModel | TraceStep:
    """Read a trace of any format as a model, or as a graph of all ranks if its step sends more than gradients.

    Results are cached until a file changes.

    Raises:
        TraceError: if there is no such file, the file is not a trace, or its step cannot become a model.
    """
    names = files.named(path, files.ANY)
    try:
        stamps = tuple(archives.stamp(name) for name in names)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    return _read_once(tuple(names), stamps, _name(Path(path)))


@lru_cache(maxsize=8)
def _read_once(names: tuple[Source, ...], stamps: tuple[Any, ...], name: str) -> TraceModel | TraceStep:
    trace = read(names, Recording)
    try:
        return trace.to_model(name=name)
    except NoGradientsError as error:
        try:
            return trace.to_step(name=name)
        except TraceError as why:
            raise TraceError(f"{error}, and as a graph of its ranks: {why}") from None


def _name(path: Path) -> str:
    """Return the name of a trace's model: that of the file without suffixes; for a pattern, that of the folder."""
    if re.search(r"[*?\[]", path.name):
        path = path.parent
    name = re.sub(r"(\.pt)?(\.trace)?(\.json|\.tar)?(\.gz|\.et|\.tgz|\.zip|\.sqlite)?$", "", path.name)
    return name.strip("._- ") or "trace"
