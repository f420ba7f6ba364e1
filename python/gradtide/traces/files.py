"""Finds the files of a trace (paths, folders, archives, patterns) and streams their contents in chunks."""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gradtide import inputs, recognise
from gradtide.errors import TraceError
from gradtide.traces import archives, nsight
from gradtide.traces.archives import Member, Source

KINETO = (".json", ".json.gz")
CHAKRA = (".et",)
NSIGHT = (".sqlite",)
ANY = CHAKRA + KINETO + NSIGHT
"""Suffixes by which traces are found in folders and archives."""

GROUPS = ".groups.json"
"""Suffix of the file beside Chakra traces that lists process groups; it is not a trace."""


def named(path: str | Source | Sequence[str | Source], suffixes: tuple[str, ...]) -> list[Source]:
    """Return the files that a path, a folder, an archive, a pattern or a list names, sorted by name.

    Raises:
        TraceError: if there are no files.
    """
    if isinstance(path, Member):
        return [path]
    if not isinstance(path, (str, Path)):
        return [one for part in path for one in named(part, suffixes)] or _none("the list of files is empty")
    here = Path(path)
    with faults_of(here), suppress(FileNotFoundError, NotADirectoryError):  # `path` may be a pattern
        os.stat(here)
    if here.is_dir():
        return _traces(here.iterdir(), suffixes) or _none(f"{path} contains no file {_patterns(suffixes)}")
    if here.exists():
        return _opened(here, suffixes)
    found = sorted(Path(one) for one in glob.glob(str(path)))
    return [one for file in found for one in _opened(file, suffixes)] or _none(f"there is no file {path}")


def _opened(path: Path, suffixes: tuple[str, ...]) -> list[Source]:
    if path.name.endswith(suffixes):
        return [path]
    with faults_of(path):
        members = archives.members(path)
    if members is None:
        return [path]
    return _traces(members, suffixes) or _none(f"{path} is an archive without a file {_patterns(suffixes)}")


def _traces(files: Iterable[Source], suffixes: tuple[str, ...]) -> list[Source]:
    """Return the traces among files, sorted by name; hidden files, such as those of macOS, are skipped."""
    is_trace = (one for one in files if one.name.endswith(suffixes) and not one.name.endswith(GROUPS))
    return sorted(one for one in is_trace if not one.name.startswith("."))


def _patterns(suffixes: tuple[str, ...]) -> str:
    return " or ".join("*" + suffix for suffix in suffixes)


def _none(what: str) -> list[Source]:
    raise TraceError(what)


def pieces(sources: Sequence[Source]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield (index, decompressed chunks) of each source; files of an archive come last, in archive order.

    Raises:
        TraceError: if an archive is damaged; for errors while chunks are read, see `inputs.chunks`.
    """
    of_archive: dict[Path, dict[int, int]] = {}
    for index, source in enumerate(sources):
        if isinstance(source, Member):
            of_archive.setdefault(source.archive, {})[source.place] = index
        else:
            yield index, inputs.chunks(source)
    for archive, indices in of_archive.items():
        with faults_of(archive):
            for place, chunks in archives.read(archive, set(indices)):
                yield indices[place], chunks


def are_exports(sources: Sequence[Source]) -> bool:
    """Return whether all files are exports of Nsight Systems.

    Raises:
        TraceError: if only some of them are, or a file cannot be read.
    """
    found = []
    for source in sources:
        with faults_of(source):
            of_other = source.name.endswith(CHAKRA + KINETO)
            found.append(not of_other and archives.start(source, len(nsight.MAGIC)) == nsight.MAGIC)
    if any(found) and not all(found):
        raise TraceError(
            f"{sources[found.index(False)]} is not a database, and {sources[found.index(True)]} is one; give one format"
        )
    return any(found)


def start(path: Source) -> bytes:
    """Return the first decompressed bytes of a file, enough to detect its format."""
    with faults_of(path):
        return archives.start(path, recognise.HEAD_BYTES)


def text(path: Source, most_bytes: int) -> str:
    """Return the text of a file as `inputs.text` does, with line ends unchanged."""
    return b"".join(archives.chunks(path, most_bytes)).decode()


@contextmanager
def faults_of(path: Source, form: str = "") -> Iterator[None]:
    """Convert errors of the block to `TraceError` with the path, and the line or the format found instead of `form`."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {_other(path, form) or _with_line(path, form, str(error))}") from None
    except inputs.InputError as error:
        raise TraceError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is not UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a path"
        raise TraceError(f"{path}: it cannot be read: {reason}") from error


def _other(path: Source, form: str) -> str:
    """Say which format a file has instead of `form`; empty if it has this format or an unknown one."""
    head = archives.start(path, recognise.HEAD_BYTES) if form in _TITLES else b""
    found = recognise.seen(head)
    if found is None or not found.is_sure or found.name in (form, "chrome-trace"):
        return ""
    return f"it is not the expected {_TITLES[form]}, but {recognise.described(head, str(path))}"


_TITLES = {
    "kineto": "Kineto trace",
    "pytorch-et": "execution trace of PyTorch",
    "chakra": "Chakra trace",
    "dag": "graph of ops",
}


def _with_line(path: Source, form: str, said: str) -> str:
    """Add the line number to an error message that contains a byte offset in a text file."""
    match = re.search(r"at byte (\d+)", said)
    if match is None or form not in ("kineto", "pytorch-et", "dag"):
        return said
    left, line = int(match[1]), 1
    for chunk in archives.chunks(path):
        line += chunk.count(b"\n", 0, left)
        left -= len(chunk)
        if left <= 0:
            break
    return f"{said[: match.end()]} in line {line}{said[match.end() :]}"
