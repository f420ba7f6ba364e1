"""What the files of a trace do not say, or what a `Trace` cannot represent: counted, and reported."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MOST_NAMES = 3
"""Names of one kind of gap that a sentence shows."""

_WORDS = {
    "size": ("transfers without a size", "so their bytes are unknown; record with record_shapes=True"),
    "element_type": ("transfers without an element type", "taken for float32"),
    "collective_type": ("collectives without a `comm_type`", "taken for all-reduces"),
    "unknown_transfer": ("transfers of an unknown kind", "counted as communication of unknown size"),
    "group": ("collectives whose process group is not named", "taken for collectives of all ranks (gloo names none)"),
    "unmatched_call": ("calls of transfers that were enqueued and never seen to run", "left out"),
    "unknown_category": ("events of an unknown category", "left out"),
    "duration": ("compute nodes without a duration", "counted as 0 us"),
    "start": ("nodes of a file in which none has a start time", "so there is no timeline"),
    "dependency": ("dependencies on ops that the files do not have", "left out"),
    "other": ("nodes that neither compute nor send", "their time counts as idle"),
    "damaged": ("events that are damaged or lack a time", "left out"),
    "mended": ("events with something in them that is no JSON", "read without it"),
}
"""By the core's word: what there is so often, and how it is read."""

_OF_NSIGHT = {
    "size": "so their bytes are unknown; record with --trace=cuda,nvtx and export with --include-blobs=true",
}
"""In place of the above for exports of Nsight Systems: how it is read."""

_FIXES = {
    "collective_type": "write `comm_type` into the collectives",
    "unknown_transfer": "what they send would be missing from the model",
    "group": "the job has several groups; NCCL names them",
    "unmatched_call": "record every backend (ProfilerActivity.CUDA, or --trace=cuda, for NCCL)",
    "duration": "give each compute node its duration, since a model needs recorded times",
    "start": "the file says what is done and not when; record a run with its times",
}
"""Of a gap that decides how long a step takes: what to do about it. A trace with one is no model."""


@dataclass(frozen=True)
class Gap:
    """What is missing in the files of all ranks.

    Attributes:
        what: the core's word for it.
        count: how often.
        names: what the files call it.
        form: format of the files.
    """

    what: str
    count: int
    names: tuple[str, ...]
    form: str = ""

    @property
    def fix(self) -> str | None:
        """What to do before the trace can be a model; None if it can be one as it is."""
        # Calls of other transfers may lack a kernel: their bytes are not a model's.
        words = [name.replace("_", "") for name in self.names]
        if self.what == "unmatched_call" and not any("allreduce" in word or "unknown" in word for word in words):
            return None
        return _FIXES.get(self.what)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict that JSON can hold."""
        return {"what": self.what, "count": self.count, "names": list(self.names)}

    def __str__(self) -> str:
        subject, taken = _WORDS[self.what]
        if self.form == "nsight":
            taken = _OF_NSIGHT.get(self.what, taken)
        shown = ", ".join(self.names[:MOST_NAMES]) + (", …" if len(self.names) > MOST_NAMES else "")
        return f"{subject}: {self.count}{f' ({shown})' if shown else ''}, {taken}"


def _shown(name: str) -> str:
    """Return a file's name for something, short and printable."""
    return "".join(char if char.isprintable() else "?" for char in name)[:60]


def found_gaps(rows: Iterable[tuple[int, str, str, int]], form: str) -> list[Gap]:
    """Join what the core counted by rank, kind and name in files of a format."""
    counts: dict[str, int] = {}
    names: dict[str, dict[str, None]] = {}
    for _, what, name, count in rows:
        if form == "nsight":
            name = name.partition(" from line ")[0]  # rows of a database have no line
        counts[what] = counts.get(what, 0) + count
        names.setdefault(what, {}).update({_shown(name): None} if name else {})
    return [Gap(what, count, tuple(names[what]), form) for what, count in counts.items()]
