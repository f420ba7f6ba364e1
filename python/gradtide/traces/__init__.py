"""Traces recorded by other tools. `from_*` functions each read one format into a `Trace`, which converts it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.traces import files, reading
from gradtide.traces.archives import Source
from gradtide.traces.recording import CHAKRA_VERSIONS, Recording

if TYPE_CHECKING:
    from gradtide.studies.waterfall import WaterfallResult

__all__ = ["CHAKRA_VERSIONS", "Trace", "from_chakra", "from_execution_trace", "from_kineto", "read"]


class Trace(Recording):
    """The traces of the ranks of a job, recorded by one tool.

    Attributes:
        format: format of the files: "kineto", "pytorch-et", "chakra", "nsight" or "dag".
    """

    def waterfall(self, step: int | None = None) -> "WaterfallResult":
        """Return the time components of a step, what bounds each transfer, and possible improvements.

        Args:
            step: number of the step. Default: the step of median length (`typical_step`).

        Raises:
            TraceError: if there is no such step.
        """
        from gradtide.studies.waterfall import waterfall

        return waterfall(self, step)


def from_kineto(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read traces of PyTorch's profiler, one file per rank.

    Args:
        path: a file (.json or .json.gz), a folder or an archive of files (tar, tar.gz, zip), a pattern such as
            `"traces/rank*.json.gz"`, or a list. A file's rank is given by its `distributedInfo`, otherwise by the last
            number after "rank" in its name.

    Returns:
        The trace. Files are read in chunks; only the needed data are kept in memory.

    Raises:
        TraceError: if a file cannot be read, is truncated or has another format, or two files have the same rank.

    Source:
        torch.profiler, `export_chrome_trace`; docs/models/traces.md.
    """
    return reading.read_as(files.named(path, files.KINETO), "kineto", Trace)


def from_execution_trace(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read traces of PyTorch's ExecutionTraceObserver, one file per rank: operators, transfers and dependencies.

    The files contain no times, so the ops have none.

    Args:
        path: as in `from_kineto`. A file's rank is the rank that its collectives record, otherwise the last number
            after "rank" in its name.

    Returns:
        The trace.

    Raises:
        TraceError: if a file cannot be read, is truncated or has another format, or two files have the same rank.

    Source:
        torch.profiler, `ExecutionTraceObserver`, schemas 1.0.1 to 1.1.1; docs/models/traces.md.
    """
    return reading.read_as(files.named(path, files.KINETO), "pytorch-et", Trace)


def from_chakra(path: str | Path | Sequence[str | Path]) -> Trace:
    """Read MLCommons Chakra execution traces, one file per rank.

    Args:
        path: a file (.et), a folder or an archive of files (tar, tar.gz, zip), a pattern such as `"trace.*.et"`, or a
            list. A file's rank is the last number in its name, as in `trace.3.et`.

    Raises:
        TraceError: if a file cannot be read, is truncated or has another format, or two files have the same rank.

    Source:
        MLCommons Chakra, `et_def.proto`, schemas 0.0.4 and 1.0.0; docs/models/traces.md.
    """
    return reading.read_as(files.named(path, files.CHAKRA), "chakra", Trace)


def read(path: str | Path | Source | Sequence[str | Path | Source]) -> Trace:
    """Read a trace and detect its format: that of another tool, or an op DAG written by `Trace.save`.

    Args:
        path: as in `from_kineto`.

    Raises:
        TraceError: as in `from_kineto`, `from_execution_trace` and `from_chakra`.
    """
    return reading.read(path, Trace)
