"""Archives of traces: tar, optionally gzipped, and zip. Each is read like a folder of its members.

Nothing is unpacked to disk, so links, devices and absolute names in an archive are harmless; only regular files count.
Members are streamed in archive order. The size limits of files also apply to an archive and to each of its members
(`gradtide.inputs`).
"""

import io
import itertools
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, cast

from gradtide import inputs, recognise
from gradtide.inputs import InputError

MOST_MEMBERS = 100_000
"""Largest number of entries in an archive. No job has more ranks, and 100,000 headers fit into memory."""
MOST_HEADER_BYTES = 1 << 20
"""Largest size of the headers between two files of a tar archive, because `tarfile` reads names of any length."""

_BLOCK_BYTES = 512
"""Block size of tar; a header is one block (POSIX.1-2017, pax)."""
_ENCRYPTED = 1
"""Flag bit of an encrypted member of a zip archive (APPNOTE.TXT, 4.4.4)."""


@dataclass(frozen=True, order=True)
class Member:
    """A file in an archive.

    Attributes:
        archive: the archive.
        path: name of the file in the archive.
        place: index among the regular files of the archive.
    """

    archive: Path
    path: str
    place: int

    @property
    def name(self) -> str:
        """Name of the file without its folders."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.archive}: {''.join(char if char.isprintable() else '?' for char in self.path)}"


Source = Path | Member
"""A file to read, which is on disk or in an archive."""


def members(path: Path) -> tuple[Member, ...] | None:
    """Return the files in an archive, sorted by name; `None` if the file is not an archive.

    If a name occurs twice, the later file is returned, as when unpacking.

    Raises:
        InputError: if the archive is damaged, or contains too many files.
        OSError: if the archive cannot be read.
    """
    return _listed(path, stamp(path))


def stamp(source: Source) -> tuple[int, ...]:
    """Return a cache key that changes whenever the file, or the archive that contains it, changes."""
    stat = (source if isinstance(source, Path) else source.archive).stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@lru_cache(maxsize=8)
def _listed(path: Path, stamped: tuple[int, ...]) -> tuple[Member, ...] | None:
    kind = _kind(path)
    if kind is None:
        return None
    found: dict[str, Member] = {}
    for place, (name, _) in enumerate(kind(path)):
        found[name] = Member(path, name, place)
    return tuple(sorted(found.values()))


def read(
    archive: Path, wanted: set[int], most_bytes: int = inputs.MAX_DATA_BYTES
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield (index, decompressed chunks) of the files whose index is in `wanted`, in archive order.

    Raises:
        InputError: as in `members`, and as in `inputs.chunks` while chunks are read.
    """
    kind = _kind(archive)
    for place, (_, pieces) in enumerate(kind(archive) if kind else ()):
        if place in wanted:
            yield place, pieces(most_bytes)


def chunks(source: Source, most_bytes: int = inputs.MAX_DATA_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a file, as `inputs.chunks` does."""
    if isinstance(source, Path):
        yield from inputs.chunks(source, most_bytes)
    else:
        for _, pieces in read(source.archive, {source.place}, most_bytes):
            yield from pieces


def start(source: Source, count: int) -> bytes:
    """Return the first bytes of a file, as `inputs.start` does."""
    return next(chunks(source), b"")[:count]


_Files = Iterator[tuple[str, Callable[[int], Iterator[bytes]]]]
"""Regular files in archive order: name, and a function from a size limit in bytes to the chunks of the content."""


def _kind(path: Path) -> "Callable[[Path], _Files] | None":
    head = inputs.start(path, recognise.HEAD_BYTES)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        found = recognise.seen(head)
        # Spreadsheets and model weights are zip archives as well, but not archives of traces.
        return _of_zip if found is None or found.name == "zip" else None
    try:
        tarfile.TarInfo.frombuf(head[:_BLOCK_BYTES], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    return _of_tar


@contextmanager
def _archive_faults() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, ValueError) as error:
        raise inputs.damaged(f"archive is damaged or cut off: {error}") from None


def _check_count(count: int) -> None:
    if count > MOST_MEMBERS:
        raise InputError("GT004", f"contains more than {MOST_MEMBERS:,} files", "give an archive of the traces alone")


class _Info(tarfile.TarInfo):
    """A tar header that raises `ReadError` if it is damaged; `tarfile` would treat it as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Info":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf) and len(buf) in (0, _BLOCK_BYTES):
                raise
            raise tarfile.ReadError(str(error)) from None


class _Stream:
    """File object for `tarfile` that reads the chunks of an archive and limits the size of headers."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece, self._at = b"", 0
        self.left_bytes: int | None = MOST_HEADER_BYTES

    def read(self, size: int) -> bytes:
        if self.left_bytes is not None:
            self.left_bytes -= size
            if self.left_bytes < 0:
                raise tarfile.ReadError(f"a header has more than {MOST_HEADER_BYTES:,} bytes")
        parts = []
        while size > 0:
            if self._at == len(self._piece):
                self._piece, self._at = next(self._pieces, b""), 0
                if not self._piece:
                    break
            part = self._piece[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)


def _of_tar(path: Path) -> _Files:
    stream = _Stream(inputs.chunks(path))
    with _archive_faults(), tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|", tarinfo=_Info) as archive:
        for count in itertools.count(1):
            stream.left_bytes = MOST_HEADER_BYTES
            info = archive.next()
            stream.left_bytes = None
            if info is None:
                return
            _check_count(count)  # `tarfile` keeps all headers in memory
            if info.issparse():
                raise tarfile.ReadError(f"{info.name!r} is a sparse file, which is not read; pack it without --sparse")
            # POSIX.1-2017 (pax, typeflag): entries of unknown types are read as regular files.
            if info.type in tarfile.SUPPORTED_TYPES and not info.isreg():
                continue
            raw = cast(io.BufferedReader, archive.extractfile(info))
            yield info.name, partial(_pieces, raw, info.size, None)
            # The rest of the file is skipped here, because bytes read between two files count towards the header limit.
            while raw.read(inputs.CHUNK_BYTES):
                pass


def _of_zip(path: Path) -> _Files:
    with _archive_faults(), inputs.open_file(path) as file, zipfile.ZipFile(file) as archive:
        _check_count(len(archive.infolist()))
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, partial(_of_zipped, archive, info)


def _of_zipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most_bytes: int) -> Iterator[bytes]:
    if info.flag_bits & _ENCRYPTED:
        raise InputError("GT003", "cannot be unpacked: it is encrypted", "unpack it first")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError("GT003", f"cannot be unpacked: its packing is method {info.compress_type}", "pack it by gzip")
    with _archive_faults(), archive.open(info) as raw:
        yield from _pieces(cast(io.BufferedReader, raw), info.file_size, info.compress_size, most_bytes)


def _pieces(raw: io.BufferedReader, size_bytes: int, packed_bytes: int | None, most_bytes: int) -> Iterator[bytes]:
    with _archive_faults():
        yield from inputs.unpacked(raw, size_bytes, most_bytes, packed_bytes)
