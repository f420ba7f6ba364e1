"""Converts one step of a trace to a table of layers, one layer per all-reduce of gradients (a bucket).

A trace records when a gradient was ready to send, but not which layers it belongs to. A layer here is therefore a
bucket. Its backward time is the compute time between the ready times of two consecutive all-reduces. The bucket sent
last is nearest to the input, because the backward pass runs from the output to the input. Times that were not recorded
are apportioned (docs/models/traces.md), and the model's `source` says so.

The device computes during a part of the step only. Its idle time is attributed to the host, except the wait for
gradients after the last of them is ready. The host time has separate rows before each all-reduce and after the last
one, so that the step keeps its length. In a layered model nothing waits for a transfer until the last gradient is
ready, so idle time during an earlier transfer is host time as well.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from gradtide import units
from gradtide.errors import TraceError
from gradtide.layers import Layer
from gradtide.traces.spans import Covered
from gradtide.units import PS_PER_NS

UNSAID_FORWARD = 3
"""If the passes cannot be distinguished, the forward pass is assumed to take one third of the compute time.

Source: the synthetic model of Gao (2020), section 4.2.
"""


NEGLIGIBLE = 0.02
"""Largest size of other transfers, such as buffers or a loss, that a model leaves out, as a share of the gradients."""


class NoGradientsError(TraceError):
    """The step sends more than gradients, so it cannot become a table of layers. It may still become a graph."""


@dataclass(frozen=True)
class TraceStep:
    """A step of a trace as a graph of all its ranks, for jobs that send more than gradients.

    Attributes:
        name: name of the model in results.
        document: the graph of `Trace.graph`. Compute ops between two transfer events are merged by pass, which does not
            change the time of the step.
        source: description of the step's origin.
    """

    name: str
    document: dict[str, Any]
    source: str

    @property
    def table(self) -> dict[str, Any]:
        """The table `model` of a scenario that runs this step."""
        groups = [{key: value for key, value in one.items() if value is not None} for one in self.document["groups"]]
        return {"kind": "step", "name": self.name, "source": self.source, **self.document, "groups": groups}


@dataclass(frozen=True)
class TraceModel:
    """A step of a trace as a model, for `Scenario.replace(model=…)` and the studies.

    Attributes:
        name: name of the model in results.
        layers: one row for each all-reduce of a gradient, input side first, a row `rest` for compute after the last
            all-reduce, and rows of host time, in which the device is idle. The times are those of the slowest rank, for
            which the others wait.
        source: the step and rank of origin, and a list of information that was not recorded.
        rank: the rank whose times were used.
        step: number of the step.
        world_size: number of ranks in the group that exchanges gradients.
        left_out: one sentence for each part of the files that the model leaves out.
    """

    name: str
    layers: tuple[Layer, ...]
    source: str
    rank: int
    step: int
    world_size: int
    left_out: tuple[str, ...] = ()
    waits_left_out: float = 0.0
    """Seconds in which the device waits for transfers that the model leaves out. They count as host time."""

    bucketed = True
    """The layers are buckets already."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def compute_time(self) -> float:
        """Compute time of a step, in seconds."""
        return sum(map(_time_ps, (layer for layer in self.layers if not layer.is_host))) / 1e12

    @property
    def host_time(self) -> float:
        """Seconds of a step in which the device is idle and does not wait for gradients."""
        return sum(map(_time_ps, (layer for layer in self.layers if layer.is_host))) / 1e12


def _time_ps(layer: Layer) -> int:
    return layer.forward_ps + layer.backward_ps + layer.update_ps


def of_step(
    document: dict[str, Any], found_by: str, rank: int | None, name: str, members: int, warnings: tuple[str, ...] = ()
) -> TraceModel:
    """Convert a step of a trace to a model.

    Args:
        document: number of the step and the core's description of it, with unmerged intervals.
        found_by: how steps were found, as in `Recording.steps_found_by`.
        rank: rank whose times are used. Default: the slowest rank, for which the others wait.
        name: name of the model in results.
        members: number of ranks of the job, used for groups whose ranks are not listed.
        warnings: descriptions of the gaps of the whole trace, for `TraceModel.left_out`.

    Raises:
        TraceError: if the step has no all-reduce of a gradient, has no compute, or sends more than gradients.
    """
    number = document["number"]
    rows = [row for row in document["ranks"] if rank in (None, row["rank"])]
    # The slowest rank waits least: the other ranks wait for it in their collectives.
    chosen = max(rows, key=lambda row: (row["compute_ns"] + row["idle_ns"], row["compute_ns"], -row["rank"]))
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
    said = [f"step {number} of rank {chosen['rank']}"]
    own = [end - start for start, end in zip([0, *ready], [*ready, backward_ns], strict=False)]
    sizes = [one["bytes"] for one in sent]
    # Names are in backward order, from the output side; backward compute after the last all-reduce is the row "rest".
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
    host = _host_rows(chosen, sent, forward_ns, forward, names)
    # Rows are in backward order, and each bucket follows its host row.
    both = (one for pair in zip_longest(host, layers) for one in pair if one is not None)
    layers = [one for one in both if _time_ps(one) or not one.is_host]
    host_ms = sum(map(_time_ps, host)) / 1e9
    beside_ms = host_ms - chosen["idle_ns"] / 1e6
    if host_ms:
        beside = f", {beside_ms:.3f} ms of it beside transfers" if beside_ms >= 0.001 else ""
        idle = f"{host_ms:.3f} of {chosen['span_ns'] / 1e6:.3f} ms{beside}"
        said.append(f"the device is idle for {idle}, which is kept as time of the host")
    left_out = list(warnings)
    if found_by == "whole":
        left_out.append("steps cannot be distinguished: the whole trace counts as one step")
    said.append("forward times are shares by backward times" + (", update times by bytes" if update_ns else ""))
    if not is_split:
        said.append("no op is marked as backward: a third of the compute time counts as the forward pass")
    waits_left_out = sum(row["seen"]["exposed_ns"] for row in others) / 1e9
    if others:
        said.append(f"transfers other than gradients, left out: {len(others)}")
        kept_us = round(1e6 * waits_left_out)
        kept = f"; the device waits {kept_us} us for them, which is kept as time of the host" if kept_us else ""
        left_out.append(f"transfers other than gradients: {_counted(others)}, left out{kept}")
    size = next((one["group_size"] for one in sent if one["group_size"]), members)
    source = "; ".join(said)
    return TraceModel(
        name, tuple(reversed(layers)), source, chosen["rank"], number, size, tuple(left_out), waits_left_out
    )


def _host_rows(
    chosen: dict[str, Any],
    sent: Sequence[dict[str, Any]],
    forward_ns: int,
    weights: Sequence[int],
    names: Sequence[str],
) -> list[Layer]:
    """Return rows of host time before each all-reduce of gradients, before the row `rest`, and after the last transfer.

    Args:
        chosen: the rank's step, with unmerged intervals.
        sent: all-reduces of gradients in the order of their ready times.
        forward_ns: compute time of the forward pass.
        weights: forward times of the layers, by which the host time of the forward pass is apportioned.
        names: names of the buckets.
    """
    computing = Covered((start, end) for start, end, _ in chosen["computing"])
    ready = [one["seen"]["ready_ns"] for one in sent]
    idle = [ready_ns - computing.between(0, ready_ns) for ready_ns in ready]
    begins_ns = chosen["backward_ns"]
    if begins_ns is not None:
        forward_idle = begins_ns - computing.between(0, begins_ns)
    else:
        forward_idle = idle[0] * forward_ns // max(1, computing.between(0, ready[0]))
    backward = [end - start for start, end in pairwise([forward_idle, *idle])]
    moving = [(one["seen"]["start_ns"], one["seen"]["start_ns"] + one["seen"]["duration_ns"]) for one in sent]
    busy = Covered([*moving, *((start, end) for start, end, _ in chosen["computing"])])
    after = chosen["span_ns"] - ready[-1] - busy.between(ready[-1], chosen["span_ns"])
    forward = _shared(forward_idle, weights if any(weights) else [1] * len(weights))
    rows = [
        Layer(f"host, {name}", PS_PER_NS * one, PS_PER_NS * other, 0, 0, is_host=True)
        for name, one, other in zip([*names, "rest"], forward, [*backward, 0], strict=False)
    ]
    rows.append(Layer("host, update", 0, 0, 0, PS_PER_NS * after, is_host=True))
    return rows


def _of(transfer: dict[str, Any], rank: int) -> dict[str, Any] | None:
    return next((seen for seen in transfer["seen"] if seen["rank"] == rank), None)


def _gradients(
    document: dict[str, Any], chosen: dict[str, Any], found_by: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a rank's all-reduces of gradients, ordered by ready time, and its other transfers.

    Raises:
        TraceError: if there is no gradient, a gradient has no size, or the other transfers are too large to be left
            out.
    """
    rank, backward_ns = chosen["rank"], chosen["backward_ns"]
    seen_by = ({**transfer, "seen": _of(transfer, rank)} for transfer in document["transfers"])
    moved = [row for row in seen_by if row["seen"] is not None]
    # A transfer belongs to the step in which it became ready.
    own = [row for row in moved if 0 <= row["seen"]["ready_ns"] < chosen["span_ns"]]
    # Gradients do not exist before the backward pass, so earlier all-reduces are other transfers.
    found: dict[str, list[dict[str, Any]]] = {}
    for row in own:
        if row["collective"] == "all_reduce" and row["seen"]["ready_ns"] >= (backward_ns or 0):
            found.setdefault(row["group"], []).append(row)
    if not found:
        raise NoGradientsError(
            f"the step has no all-reduce of a gradient ({_listed(own) or 'no transfer at all'}), so what a worker "
            "sends is not known"
        )
    # With several groups, as in tensor parallelism, the group that moves most bytes is assumed to carry the gradients.
    group, sent = max(found.items(), key=lambda item: sum(row["bytes"] or 0 for row in item[1]))
    # Unknown sizes count as 0 here and raise an error below.
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
    sizeless_others = [row for row in others if row["bytes"] is None and row["collective"] != "barrier"]
    if sizeless_others:
        raise NoGradientsError(
            f"beside gradients of {units.format_bytes(whole)} the step has transfers of unknown size, which may be as "
            f"large ({_listed(sizeless_others)})"
        )
    other_bytes = sum(row["bytes"] or 0 for row in others)
    if other_bytes > NEGLIGIBLE * whole:
        raise NoGradientsError(
            f"beside gradients of {units.format_bytes(whole)} the step sends {units.format_bytes(other_bytes)} that no "
            f"layer can represent ({_listed(others)})"
        )
    return sorted(sent, key=lambda row: (row["seen"]["ready_ns"], row["seen"]["start_ns"])), others


def _listed(transfers: Sequence[dict[str, Any]]) -> str:
    """Describe transfers by kind and group, e.g. `8 all_gather of group tp (the first at 1.200 ms)`."""
    firsts: dict[tuple[str, str], list[float]] = {}
    for row in transfers:
        firsts.setdefault((row["collective"], row["group"]), []).append(row["seen"]["start_ns"] / 1e6)
    return ", ".join(
        f"{len(starts)} {kind}{f' of group {group}' if group else ''} (the first at {min(starts):.3f} ms)"
        for (kind, group), starts in sorted(firsts.items())
    )


def _counted(transfers: Sequence[dict[str, Any]]) -> str:
    """Describe the number of transfers of each kind, e.g. `2 all_gather, 1 broadcast`."""
    counts = Counter(row["collective"] for row in transfers)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _shared(total: int, weights: Sequence[int]) -> list[int]:
    """Apportion `total` by weight into integers that sum to it (largest-remainder method)."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares
