"""From one step of a trace to a table of layers: each all-reduce of a gradient is one.

A trace says when what was computed could be sent, and not which layers need it. So a layer here is what was sent at
once: its backward time is what was computed from one all-reduce's start to the next one's, and what is sent last is
nearest to the input, because backward passes run from the output to the input. Where nothing is recorded, shares are
given out (docs/models/traces.md) and the model's `source` says so.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide import units
from gradtide.errors import TraceError
from gradtide.layers import Layer
from gradtide.traces import archives, files
from gradtide.traces.archives import Source

if TYPE_CHECKING:
    from gradtide.traces import Trace

PS_PER_NS = 1000
UNSAID_FORWARD = 3
"""A third of the computing of a step is forward where nothing tells the passes apart: backward takes twice as long, as
in the synthetic model of Gao (2020), section 4.2."""


NEGLIGIBLE = 0.02
"""Bytes of other transfers, as a share of the gradients', up to which they are left out: buffers, a loss."""


class NoGradientsError(TraceError):
    """A step sends something else than gradients, so it is no table of layers; it may be a graph."""


@dataclass(frozen=True)
class TraceStep:
    """A step of a trace as a graph of all its ranks, for jobs that send more than gradients.

    Attributes:
        name: what results call it.
        document: what `Trace.graph` returns, without what changes no time: computing between two moments at which a
            transfer is ready or ends is summed up by pass.
        source: which step it is.
    """

    name: str
    document: dict[str, Any]
    source: str

    @property
    def table(self) -> dict[str, Any]:
        """The model as a scenario has it."""
        groups = [{key: value for key, value in one.items() if value is not None} for one in self.document["groups"]]
        return {"kind": "step", "name": self.name, "source": self.source, **self.document, "groups": groups}


@dataclass(frozen=True)
class TraceModel:
    """A step of a trace as a model, for `Scenario.replace(model=…)` and the studies.

    Attributes:
        name: what results call it.
        layers: one for each all-reduce of a gradient, input side first, and `rest` for what was computed after the
            last one. Times are those of the rank that computed longest.
        source: which step of which rank it is, and what was not recorded.
        rank: that rank.
        step: number of the step.
        world_size: ranks of the group that exchanges gradients.
        left_out: what the files hold and the model does not, a sentence each.
    """

    name: str
    layers: tuple[Layer, ...]
    source: str
    rank: int
    step: int
    world_size: int
    left_out: tuple[str, ...] = ()

    bucketed = True
    """Its layers are buckets already."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all gradients: what one exchange moves."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def compute_time(self) -> float:
        """Seconds that a step computes."""
        return sum(layer.forward_ps + layer.backward_ps + layer.update_ps for layer in self.layers) / 1e12


def of_step(
    document: dict[str, Any], found_by: str, rank: int | None, name: str, members: int, warnings: tuple[str, ...] = ()
) -> TraceModel:
    """Return the model that a step of a trace is.

    Args:
        document: number of the step, and what the core says of it.
        found_by: how steps were told apart: by marks, by transfers that repeat, or not at all (whole).
        rank: whose; None for the one that computes longest, for which the others wait.
        name: what results call it.
        members: ranks of the job, for groups whose ranks are not listed.
        warnings: what is missing in the whole trace.

    Raises:
        TraceError: if the step has no all-reduce of a gradient, computes nothing, or sends more than gradients.
    """
    number = document["number"]
    rows = [row for row in document["ranks"] if rank in (None, row["rank"])]
    chosen = max(rows, key=lambda row: (row["compute_ns"], -row["rank"]))
    passes = chosen["passes"]
    is_split = chosen["backward_ns"] is not None
    sent, others = _gradients(document, chosen, found_by)
    compute_ns = sum(passes.values())
    if compute_ns == 0:
        raise TraceError(f"step {number} of rank {chosen['rank']} computes nothing; record operators and kernels")
    first = sent[0]
    if is_split:
        forward_ns, backward_ns, update_ns = (passes[f"{part}_ns"] for part in ("forward", "backward", "update"))
        ready = [one["seen"]["computed"]["backward_ns"] for one in sent]
    else:
        forward_ns = min(compute_ns // UNSAID_FORWARD, first["seen"]["computed"]["unsaid_ns"])
        backward_ns, update_ns = compute_ns - forward_ns, 0
        ready = [one["seen"]["computed"]["unsaid_ns"] - forward_ns for one in sent]
    own = [end - start for start, end in zip([0, *ready], [*ready, backward_ns], strict=False)]
    sizes = [one["bytes"] for one in sent]
    # From the output side, as a backward pass computes them; what is computed after the last is of no bucket.
    names = [f"bucket {place}" for place in range(1, len(sent) + 1)]
    forward = _shared(forward_ns, own if any(own) else [1] * len(own))
    update = _shared(update_ns, sizes if any(sizes) else [1] * len(sizes))
    layers = [
        Layer(*row)
        for row in zip(
            [*names, "rest"],
            (PS_PER_NS * time for time in forward),
            (PS_PER_NS * time for time in own),
            [*sizes, 0],
            (PS_PER_NS * time for time in [*update, 0]),
            strict=True,
        )
    ]
    if not layers[-1].forward_ps + layers[-1].backward_ps:
        layers.pop()
    left_out = list(warnings)
    if found_by == "whole":
        left_out.append("nothing tells steps apart: the whole trace is taken for one step")
    said = [f"step {number} of rank {chosen['rank']}"]
    said.append("forward times are shares by backward times" + (", update times by bytes" if update_ns else ""))
    if not is_split:
        said.append("no op says that it is of the backward pass: a third of the computing is taken for forward")
    if others:
        said.append(f"transfers that are no gradients, left out: {len(others)}")
        left_out.append(f"transfers that are no gradients: {_counted(others)}, left out")
    size = next((one["group_size"] for one in sent if one["group_size"]), members)
    source = "; ".join(said)
    return TraceModel(name, tuple(reversed(layers)), source, chosen["rank"], number, size, tuple(left_out))


def _of(transfer: dict[str, Any], rank: int) -> dict[str, Any] | None:
    return next((seen for seen in transfer["seen"] if seen["rank"] == rank), None)


def _gradients(
    document: dict[str, Any], chosen: dict[str, Any], found_by: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the all-reduces of gradients of a rank, in the order in which they were ready, and its other transfers.

    Raises:
        TraceError: if there is no gradient, one has no size, or what else was sent is too much to leave out.
    """
    rank, backward_ns = chosen["rank"], chosen["backward_ns"]
    seen_by = ({**transfer, "seen": _of(transfer, rank)} for transfer in document["transfers"])
    moved = [row for row in seen_by if row["seen"] is not None]
    # What was ready before the step is of the step before it, and what is ready after it of the next.
    own = [row for row in moved if 0 <= row["seen"]["ready_ns"] < chosen["span_ns"]]
    # Before the backward pass there is no gradient to send.
    found: dict[str, list[dict[str, Any]]] = {}
    for row in own:
        if row["collective"] == "all_reduce" and row["seen"]["ready_ns"] >= (backward_ns or 0):
            found.setdefault(row["group"], []).append(row)
    if not found:
        raise NoGradientsError(
            f"the step has no all-reduce of a gradient ({_listed(own) or 'no transfer at all'}), so what a worker "
            "sends is not known"
        )
    # Of several groups, as with tensor parallelism, gradients are where most is moved.
    group, sent = max(found.items(), key=lambda item: sum(row["bytes"] or 0 for row in item[1]))
    whole = sum(row["bytes"] or 0 for row in sent)
    sizeless = sum(not row["bytes"] for row in sent)
    if sizeless:
        what = "its all-reduces" if sizeless == len(sent) else f"{sizeless} of its {len(sent)} all-reduces"
        raise TraceError(f"{what} have no size; record with record_shapes=True (of nsys: --include-blobs=true)")
    cut = [row for row in moved if row["collective"] == "all_reduce" and row["group"] == group and row not in own]
    if cut and found_by == "transfers":
        count = f"{len(cut)} of {len(cut) + len(sent)} all-reduces"
        raise TraceError(
            f"{count} of step {document['number']} belong to another step, and "
            "nothing marks where a step begins; record with profiler.step() and read the profiler's own file"
        )
    others = [row for row in own if row not in sent]
    other_bytes = sum(row["bytes"] or 0 for row in others)
    if other_bytes > NEGLIGIBLE * whole:
        raise NoGradientsError(
            f"beside gradients of {units.format_bytes(whole)} the step sends {units.format_bytes(other_bytes)} that no "
            f"layer can represent ({_listed(others)})"
        )
    return sorted(sent, key=lambda row: (row["seen"]["ready_ns"], row["seen"]["start_ns"])), others


def _listed(transfers: Sequence[dict[str, Any]]) -> str:
    """Return what is sent of each kind, in which group, and when the first is: `8 all_gather (first at 1.2 ms)`."""
    firsts: dict[tuple[str, str], list[float]] = {}
    for row in transfers:
        firsts.setdefault((row["collective"], row["group"]), []).append(row["seen"]["start_ns"] / 1e6)
    return ", ".join(
        f"{len(starts)} {kind}{f' of group {group}' if group else ''} (the first at {min(starts):.3f} ms)"
        for (kind, group), starts in sorted(firsts.items())
    )


def _counted(transfers: Sequence[dict[str, Any]]) -> str:
    """Return how many transfers there are of each kind: `2 all_gather, 1 broadcast`."""
    counts = Counter(row["collective"] for row in transfers)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _shared(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole shares of `total` by weight that sum to it, the largest remainders rounded up."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


def read_model(path: str | Path) -> TraceModel | TraceStep:
    """Read a trace of any format as a model, a step that sends more than gradients as a graph of all its ranks.

    Files that have not changed are read once.

    Raises:
        TraceError: if there is no such file, it is no trace, or its step is no model.
    """
    names = files.named(path, files.ANY)
    try:
        stamps = tuple(archives.stamp(name) for name in names)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    return _read_once(tuple(names), stamps, _name(Path(path)))


@lru_cache(maxsize=8)
def _read_once(names: tuple[Source, ...], stamps: tuple[Any, ...], name: str) -> TraceModel | TraceStep:
    from gradtide.traces import read

    trace: Trace = read(names)
    try:
        return trace.to_model(name=name)
    except NoGradientsError as error:
        try:
            return trace.to_step(name=name)
        except TraceError as why:
            raise TraceError(f"{error}, and as a graph of its ranks: {why}") from None


def _name(path: Path) -> str:
    """Return what results call the model of a trace: the file's name without endings, of several their folder's."""
    if re.search(r"[*?\[]", path.name):
        path = path.parent
    name = re.sub(r"(\.pt)?(\.trace)?(\.json|\.tar)?(\.gz|\.et|\.tgz|\.zip|\.sqlite)?$", "", path.name)
    return name.strip("._- ") or "trace"
