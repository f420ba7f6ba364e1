"""Reports of finished runs: one HTML file and a Perfetto trace, made from run folders alone.

Nothing of a simulation lives here: a folder written by another version, or by hand, reports as well.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gradtide.files import write_listed
from gradtide.report.folder import RunFolderError, read_json
from gradtide.report.html import render
from gradtide.report.perfetto import encode_timeline

__all__ = ["RunFolderError", "encode_timeline", "read_summary", "render", "write_report", "write_timeline"]


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` into a run or study folder, replacing an older one.

    Args:
        run_dir: finished run or study folder.

    Returns:
        Path of the report.

    Raises:
        RunFolderError: if a file of the folder is missing, truncated or garbled; nothing is written then.
    """
    return write_listed(Path(run_dir) / "report.html", render(Path(run_dir)).encode("utf-8"))


def write_timeline(run_dir: Path | str) -> Path:
    """Write `timeline.pftrace` into a run folder, replacing an older one; open it at https://ui.perfetto.dev.

    Args:
        run_dir: finished run folder.

    Returns:
        Path of the trace.

    Raises:
        RunFolderError: if a file of the folder is missing, truncated or garbled; nothing is written then.
    """
    return write_listed(Path(run_dir) / "timeline.pftrace", encode_timeline(Path(run_dir)))


def read_summary(run_dir: Path | str) -> dict[str, Any]:
    """Return the figures of a finished run or study: its `summary.json`.

    Raises:
        RunFolderError: if the file is missing, truncated or garbled.
    """
    return read_json(Path(run_dir) / "summary.json")


class _Command(ModuleType):
    """This module can be called, as the command of its name can: `gradtide.report("out/run")`."""

    def __call__(self, run_dir: Path | str) -> Path:
        """Make the report of a finished run or study again; return its path."""
        return write_report(run_dir)


sys.modules[__name__].__class__ = _Command
