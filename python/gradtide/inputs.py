"""Opens every file that a user names. The file must be regular and not exceed a number of bytes.

A FIFO, a device or a socket is refused at once, because reading it may never end. The size of a gzip file is checked
while it is unpacked. The content of a file is not interpreted here.
"""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from gradtide.errors import GradtideError
from gradtide.units import UnitError, parse_bytes

MAX_TEXT_BYTES = 10_000_000
"""Largest size of a scenario, and of other files that are read as a whole."""
MAX_DATA_BYTES = 4_000_000_000
"""Largest size of a trace, a list of flows or a table after unpacking."""
MAX_PACKING = 100
"""Largest ratio of unpacked to packed size of a gzip file. Traces of PyTorch's profiler shrink 10 to 30 times."""
FREE_BYTES = 64_000_000
"""Unpacked size that is allowed even if the ratio exceeds `MAX_PACKING`."""

CHUNK_BYTES = 1 << 20

_allowed: ContextVar[int | None] = ContextVar("_allowed", default=None)


class InputError(GradtideError):
    """A file is not a regular file, is too large, or is damaged.

    Attributes:
        code: code of the fault.
        msg: description of the fault, without the name of the file.
        hint: the fix.
    """

    def __init__(self, code: str, msg: str, hint: str) -> None:
        super().__init__(f"it {msg}; {hint}")
        self.code, self.msg, self.hint = code, msg, hint


@contextmanager
def allowing(most_bytes: int | None) -> Iterator[None]:
    """Allow files of up to `most_bytes` in the `with` block, before and after unpacking; None changes nothing."""
    token = _allowed.set(most_bytes if most_bytes is not None else _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


def allow(size: str | None) -> None:
    """From now on, allow files of up to a size such as "8GB"; None restores this module's default limits.

    Raises:
        ValueError: if `size` is no size.
    """
    try:
        _allowed.set(None if size is None else parse_bytes(size))
    except UnitError as error:
        raise ValueError(f"--max-input: {error.msg}; {error.hint}") from None


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file to read its bytes.

    Raises:
        InputError: if it is not a regular file.
        OSError: if it cannot be opened.
    """
    # Opening a device may have effects, so the file type is checked before opening. It is checked again afterwards,
    # because another process may have replaced the file in between.
    _regular(os.stat(path).st_mode)
    handle = os.open(path, os.O_RDONLY | _ANSWER_AT_ONCE)
    try:
        _regular(os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


_ANSWER_AT_ONCE = sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


def _regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InputError("GT002", "is a directory", "name a file in it")
    if not stat.S_ISREG(mode):
        raise InputError("GT002", "is not a regular file", "copy it to a file first")


def chunks(path: Path, most_bytes: int = MAX_DATA_BYTES) -> Iterator[bytes]:
    """Yield a file's bytes; a gzip file is unpacked, whatever its name.

    Raises:
        InputError: if it is not a regular file, or has more than `most_bytes`. The limit of `allow` replaces both that
            limit and `MAX_PACKING`.
        OSError: if it cannot be read.
    """
    with open_file(path) as raw:
        yield from unpacked(raw, os.fstat(raw.fileno()).st_size, most_bytes)


def unpacked(
    raw: io.BufferedReader, size_bytes: int, most_bytes: int = MAX_DATA_BYTES, packed_bytes: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of an open file or of a member of an archive, unpacked if they are gzip.

    Args:
        raw: the open file, at the first byte.
        size_bytes: number of bytes before unpacking.
        most_bytes: as in `chunks`.
        packed_bytes: compressed size of a member in its archive; None for a file.

    Raises:
        InputError: as `chunks`.
    """
    is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
    if is_gzip or packed_bytes is not None:
        packing = MAX_PACKING * (size_bytes if packed_bytes is None else packed_bytes)
        most_bytes = min(most_bytes, max(FREE_BYTES, packing))
    most_bytes = _most(most_bytes)
    if size_bytes > most_bytes:
        raise _too_large(f"has {size_bytes:,} bytes, more than {most_bytes:,}", size_bytes)
    left_bytes = most_bytes
    file = gzip.GzipFile(fileobj=raw) if is_gzip else raw
    try:
        while chunk := file.read(min(CHUNK_BYTES, left_bytes + 1)):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise _too_large(f"{'unpacks to' if is_gzip else 'has'} more than {most_bytes:,} bytes", None)
            yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(f"compressed file is damaged or cut off: {error}") from None


def check_size(file: io.BufferedReader) -> None:
    """Check the size of a file that a reader has opened by itself.

    Raises:
        InputError: if the file is larger than allowed.
    """
    size_bytes, most_bytes = os.fstat(file.fileno()).st_size, _most(MAX_DATA_BYTES)
    if size_bytes > most_bytes:
        raise _too_large(f"has {size_bytes:,} bytes, more than {most_bytes:,}", size_bytes)


def _most(most_bytes: int) -> int:
    allowed = _allowed.get()
    return most_bytes if allowed is None else allowed


def damaged(what: str) -> InputError:
    """Return the error of a file that cannot be unpacked."""
    return InputError("GT003", f"cannot be unpacked: the {what}", "copy it again")


def _too_large(msg: str, size_bytes: int | None) -> InputError:
    size = "SIZE" if size_bytes is None else f"{-(-size_bytes // 10**6)}MB"
    return InputError("GT004", msg, f"is it the right file? --max-input {size} reads it")


def read(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of a file, unpacked if it is gzip; raise the errors of `chunks`."""
    return b"".join(chunks(path, most_bytes))


def start(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, unpacked if it is gzip; raise the errors of `chunks`."""
    return next(chunks(path), b"")[:count]


def text(path: Path, most_bytes: int = MAX_DATA_BYTES) -> str:
    """Return the UTF-8 text of a file, with LF at line ends; raise the errors of `chunks`, or UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(read(path, most_bytes)), encoding="utf-8").read()
