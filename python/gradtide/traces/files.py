"""Files of traces: which there are, and what is in them, piece by piece."""

import glob
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradtide.errors import TraceError

CHUNK_BYTES = 1 << 20


def named(path: str | Path | Sequence[str | Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files that a path, a folder, a pattern or a list names, sorted by name.

    Raises:
        TraceError: if there are none.
    """
    if not isinstance(path, (str, Path)):
        return [one for part in path for one in named(part, suffixes)] or _none(path)
    here = Path(path)
    if here.is_dir():
        found = sorted(one for one in here.iterdir() if one.name.endswith(suffixes))
        return found or _none(f"{path} holds no file {' or '.join('*' + suffix for suffix in suffixes)}")
    if here.exists():
        return [here]
    found = sorted(Path(one) for one in glob.glob(str(path)))
    return found or _none(f"there is no file {path}")


def _none(what: object) -> list[Path]:
    raise TraceError(what if isinstance(what, str) else "the list of files is empty")


def chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed if it is gzip, whatever its name."""
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if is_gzip else raw as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def start(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed: enough to tell what it is."""
    with told(path):
        return next(chunks(path), b"")[:200]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Name the file in whatever is wrong with it."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the compressed file is damaged or cut off: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is no UTF-8: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: it cannot be read: {error.strerror}") from error
