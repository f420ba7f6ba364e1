"""Replaces stdout and stderr of the command by streams that record write errors instead of raising them.

Otherwise, with a full disk or a closed pipe, any print could raise: between two files of a folder, in the handler of
another error, or when Python flushes its buffers at exit. Output that cannot be written is discarded, and `failures`
returns the streams with lost output.
"""

import errno
import io
import os
import select
import sys
from typing import Any, NamedTuple

NAMES = ("stdin", "stdout", "stderr")
"""Names of the standard streams, indexed by descriptor."""


class Failure(NamedTuple):
    """A standard stream to which some output could not be written.

    Attributes:
        name: stdout or stderr.
        error: the error of the first failed write.
    """

    name: str
    error: OSError

    @property
    def reader_left(self) -> bool:
        """Whether the reader has closed the pipe, as `head -1` does; this is not an error of the command."""
        return isinstance(self.error, (BrokenPipeError, ConnectionResetError))


class StandardStream(io.RawIOBase):
    """A raw stream that discards all output from the first failed write on.

    Args:
        raw: underlying stream; None if the descriptor was closed before the command started.
    """

    def __init__(self, raw: io.RawIOBase | None) -> None:
        self._raw = raw
        self._is_used = False
        self._error: OSError | None = None if raw is not None else OSError(errno.EBADF, os.strerror(errno.EBADF))

    @property
    def error(self) -> OSError | None:
        """The error of the first failed write; None if nothing was lost."""
        return self._error if self._is_used else None

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether the underlying stream is a terminal."""
        return self._raw is not None and self._raw.isatty()

    def fileno(self) -> int:
        """Return the descriptor."""
        if self._raw is None:
            raise io.UnsupportedOperation("fileno")
        return self._raw.fileno()

    def write(self, data: Any, /) -> int:
        """Write all of the data; after a failure, discard it."""
        view = memoryview(data).cast("B")
        self._is_used = self._is_used or len(view) > 0
        left = view
        while left and self._raw is not None and self._error is None:
            try:
                written = self._raw.write(left)
                if written is None:
                    # The stream is a non-blocking pipe, which some programs pass to their children, and is full.
                    select.select([], [self._raw.fileno()], [])
                    continue
                left = left[written:]
            except OSError as error:
                self._error = error
        return len(view)


_streams: dict[str, StandardStream] = {}


def install() -> None:
    """Replace `sys.stdout` and `sys.stderr`; call this before anything else opens a file."""
    _occupy()
    for name in NAMES[1:]:
        stream = getattr(sys, name)
        raw = None
        if stream is not None:
            if not isinstance(stream, io.TextIOWrapper):
                # A program that embeds the command line has replaced the stream to capture the output.
                continue
            buffer = stream.buffer
            raw = getattr(buffer, "raw", buffer)
        _streams[name] = standard = StandardStream(raw)
        unbuffered = stream is not None and stream.write_through
        text = io.TextIOWrapper(
            standard if unbuffered else io.BufferedWriter(standard),  # type: ignore[type-var]
            encoding="utf-8" if stream is None else stream.encoding,
            # The terminal's encoding may lack characters that gradtide prints.
            errors="backslashreplace",
            line_buffering=name == "stderr" or (stream is not None and stream.line_buffering),
            write_through=unbuffered,
        )
        setattr(sys, name, text)


def failures() -> list[Failure]:
    """Flush both streams; return those with lost output."""
    found = []
    for name, standard in _streams.items():
        getattr(sys, name).flush()
        if standard.error is not None:
            found.append(Failure(name, standard.error))
    return found


def takes_more(name: str) -> bool:
    """Flush a stream; return whether it can still be written to."""
    getattr(sys, name).flush()
    return name not in _streams or _streams[name].error is None


def _occupy() -> None:
    """Open closed standard descriptors, so that no file of the command gets descriptor 0, 1 or 2.

    Otherwise a library that prints would write into that file. Stdout and stderr are opened for reading, so that writes
    to them fail.
    """
    for number in range(len(NAMES)):
        try:
            os.fstat(number)
        except OSError:
            # The system assigns the lowest free descriptor, which is `number` because all lower ones are in use.
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY), True)
