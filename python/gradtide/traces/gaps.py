"""Gaps: information that trace files lack or that a `Trace` cannot represent, counted for the report."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MOST_NAMES = 3
"""Largest number of names listed in the sentence about one kind of gap."""

_WORDS = {
    "size": ("transfers without a size", "so their bytes are unknown; record with record_shapes=True"),
    "element_type": ("transfers without an element type", "taken for float32"),
    "collective_type": ("collectives without a `comm_type`", "taken for all-reduces"),
    "unknown_transfer": ("transfers of an unknown kind", "counted as communication of unknown size"),
    "group": ("collectives whose process group is not named", "taken for collectives of all ranks (gloo names none)"),
    "unmatched_call": ("calls that enqueued a transfer whose execution was not recorded", "left out"),
    "unknown_category": ("events of an unknown category", "left out"),
    "duration": ("compute nodes without a duration", "counted as 0 us"),
    "start": ("nodes of a file in which none has a start time", "so there is no timeline"),
    "dependency": ("dependencies on ops that the files do not have", "left out"),
    "other": ("nodes that neither compute nor send", "their time counts as idle"),
    "damaged": ("events that are damaged or lack a time", "left out"),
    "mended": ("events with a part that is not valid JSON", "read without that part"),
}
"""Description of each kind of gap, and how the reader treats it. Keys are the core's names."""

_OF_NSIGHT = {
    "size": "so their bytes are unknown; record with --trace=cuda,nvtx and export with --include-blobs=true",
}
"""Treatments that replace those of `_WORDS` in exports of Nsight Systems."""

_FIXES = {
    "collective_type": "write `comm_type` into the collectives",
    "unknown_transfer": "their bytes would be missing from the model",
    "group": "the job has several groups; NCCL names them",
    "unmatched_call": "record every backend (ProfilerActivity.CUDA, or --trace=cuda, for NCCL)",
    "duration": "give each compute node its duration, since a model needs recorded times",
    "start": "the file has ops but not their times; record a run with its times",
}
"""How to fix kinds of gaps that change the length of a step. A trace with such a gap cannot become a model."""


@dataclass(frozen=True)
class Gap:
    """All gaps of one kind in the files of all ranks.

    Attributes:
        what: the core's name of the kind.
        count: number of gaps.
        names: names of the affected items in the files.
        form: format of the files.
    """

    what: str
    count: int
    names: tuple[str, ...]
    form: str = ""

    @property
    def fix(self) -> str | None:
        """How to fix this gap if it prevents the trace from becoming a model; otherwise `None`."""
        # A model contains only all-reduces, so unmatched calls of other collectives leave nothing out of it.
        words = [name.replace("_", "") for name in self.names]
        if self.what == "unmatched_call" and not any("allreduce" in word or "unknown" in word for word in words):
            return None
        return _FIXES.get(self.what)

    def to_dict(self) -> dict[str, Any]:
        """Return the gap as a JSON-compatible dict."""
        return {"what": self.what, "count": self.count, "names": list(self.names)}

    def __str__(self) -> str:
        subject, taken = _WORDS[self.what]
        if self.form == "nsight":
            taken = _OF_NSIGHT.get(self.what, taken)
        shown = ", ".join(self.names[:MOST_NAMES]) + (", …" if len(self.names) > MOST_NAMES else "")
        return f"{subject}: {self.count}{f' ({shown})' if shown else ''}, {taken}"


def _shown(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)[:60]


def found_gaps(rows: Iterable[tuple[int, str, str, int]], form: str) -> list[Gap]:
    """Merge the core's rows (rank, kind, name, count) into one gap per kind."""
    counts: dict[str, int] = {}
    names: dict[str, dict[str, None]] = {}
    for _, what, name, count in rows:
        if form == "nsight":
            name = name.partition(" from line ")[0]  # Nsight exports have no lines
        counts[what] = counts.get(what, 0) + count
        names.setdefault(what, {}).update({_shown(name): None} if name else {})
    return [Gap(what, count, tuple(names[what]), form) for what, count in counts.items()]
