"""Files of traces: which there are, and what is in them, piece by piece."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gradtide import inputs, recognise
from gradtide.errors import TraceError

GROUPS = ".groups.json"
"""End of the name of the file that lists process groups, beside Chakra traces; it is no trace."""


def named(path: str | Path | Sequence[str | Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files that a path, a folder, a pattern or a list names, sorted by name.

    Raises:
        TraceError: if there are none.
    """
    if not isinstance(path, (str, Path)):
        return [one for part in path for one in named(part, suffixes)] or _none(path)
    here = Path(path)
    with told(here), suppress(FileNotFoundError, NotADirectoryError):  # a pattern, or nothing
        os.stat(here)
    if here.is_dir():
        found = sorted(one for one in here.iterdir() if one.name.endswith(suffixes) and not one.name.endswith(GROUPS))
        return found or _none(f"{path} holds no file {' or '.join('*' + suffix for suffix in suffixes)}")
    if here.exists():
        return [here]
    found = sorted(Path(one) for one in glob.glob(str(path)))
    return found or _none(f"there is no file {path}")


def _none(what: object) -> list[Path]:
    raise TraceError(what if isinstance(what, str) else "the list of files is empty")


def start(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed: enough to tell what it is."""
    with told(path):
        return inputs.start(path, recognise.HEAD_BYTES)


@contextmanager
def told(path: Path, form: str = "") -> Iterator[None]:
    """Name the file in whatever is wrong with it, the line of a text, and what it is if it is no file of `form`."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {_other(path, form) or _with_line(path, str(error))}") from None
    except inputs.InputError as error:
        raise TraceError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is no UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is no path"
        raise TraceError(f"{path}: it cannot be read: {reason}") from error


def _other(path: Path, form: str) -> str:
    """Return what a file is that is no trace of the form; empty if it is one, or nobody knows."""
    head = inputs.start(path, recognise.HEAD_BYTES) if form else b""
    found = recognise.seen(head)
    if found is None or not found.is_sure or found.name in (form, "chrome-trace"):
        return ""
    return f"it is no {_TITLES[form]}, but {recognise.told(head, str(path))}"


_TITLES = {
    "kineto": "Kineto trace",
    "pytorch-et": "execution trace of PyTorch",
    "chakra": "Chakra trace",
    "dag": "graph of ops",
}


def _with_line(path: Path, said: str) -> str:
    """Return what is wrong at a byte of a text with the line of it."""
    match = re.search(r"at byte (\d+)", said)
    if match is None or path.name.endswith(".et"):
        return said
    left, line = int(match[1]), 1
    for chunk in inputs.chunks(path):
        line += chunk.count(b"\n", 0, left)
        left -= len(chunk)
        if left <= 0:
            break
    return f"{said[: match.end()]} in line {line}{said[match.end() :]}"
