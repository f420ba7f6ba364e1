"""A file that is there whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file, or replace it, so that it is never seen in part.

    Raises:
        OSError: if it cannot be written; an older file stays.
    """
    with whole(path) as file:
        file.write(data)
    return path


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write or replace; it is there when the block ends, and as before if that fails.

    Raises:
        OSError: if it cannot be written.
    """
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
