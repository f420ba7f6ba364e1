"""Statistics of flow completion times for small, medium and large background flows.

The functions take columns with one value per flow, and depend on no run or scenario.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradtide import units
from gradtide.units import PS_PER_MS

SMALL_BYTES = 100_000
"""Default upper limit of small flows, in bytes of payload (Gao 2020, section 5.3)."""

LARGE_BYTES = 10_000_000
"""Default lower limit of large flows, in bytes of payload (Gao 2020, section 5.3)."""

CLASSES = ("small", "medium", "large", "all")
TIMES = ("mean_fct_ms", "p50_fct_ms", "p90_fct_ms", "p99_fct_ms")
SLOWDOWNS = ("mean_slowdown", "p99_slowdown")

if TYPE_CHECKING:
    from gradtide.results import Table

Column = Sequence[int] | npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Classes:
    """Size classes of flows by payload: small up to `small_bytes`, large from `large_bytes` on, medium between."""

    small_bytes: int = SMALL_BYTES
    large_bytes: int = LARGE_BYTES

    def __post_init__(self) -> None:
        if not 0 < self.small_bytes < self.large_bytes:
            small, large = units.format_bytes(self.small_bytes), units.format_bytes(self.large_bytes)
            raise ValueError(f"classes: large={large} is not above small={small}; write a larger size for large")

    @classmethod
    def parse(cls, text: str) -> "Classes":
        """Read size classes such as `small=100kB,large=1MB`; omitted ones keep their default."""
        sizes: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(small|large)\s*=\s*(.*\S)\s*", part)
            if match is None:
                raise ValueError(
                    f'classes: "{part}" is not a size class; write small=SIZE, large=SIZE or both, as in large=1MB'
                )
            if f"{match[1]}_bytes" in sizes:
                raise ValueError(f"classes: {match[1]} is given twice; leave one of the two out")
            sizes[f"{match[1]}_bytes"] = units.parse_option("classes", units.parse_bytes, match[2])
        return cls(**sizes)

    def members(self, sizes: Column) -> dict[str, npt.NDArray[np.bool_]]:
        """Return a mask of shape (flows,) for each of `CLASSES`, from the sizes of the flows in bytes."""
        column = np.asarray(sizes, dtype=np.uint64)
        is_small, is_large = column <= self.small_bytes, column >= self.large_bytes
        of = (is_small, ~is_small & ~is_large, is_large, np.ones_like(is_small))
        return dict(zip(CLASSES, of, strict=True))


DEFAULT = Classes()


@dataclass(frozen=True)
class Window:
    """Selects the flows that count in the statistics by their start.

    Attributes:
        warmup_ps: flows that start before this time are excluded.
        cooldown_ps: flows that start at most this long before the last start are excluded; 0 excludes none.
        until_ps: flows that start at this time or later are excluded; None for no limit.
    """

    warmup_ps: int = 0
    cooldown_ps: int = 0
    until_ps: int | None = None

    def counted(self, start_ps: Column) -> npt.NDArray[np.bool_]:
        """Return the mask of the flows that count, shape (flows,)."""
        starts = np.asarray(start_ps, dtype=np.uint64)
        is_counted: npt.NDArray[np.bool_] = starts >= np.uint64(self.warmup_ps)
        if self.cooldown_ps and starts.size:
            # The times are subtracted as Python integers, because a cool-down longer than the run gives a negative
            # difference.
            end_ps = int(starts.max()) - self.cooldown_ps
            is_counted = is_counted & (starts < np.uint64(max(end_ps, 0)))
        if self.until_ps is not None:
            is_counted = is_counted & (starts < np.uint64(self.until_ps))
        return is_counted


WHOLE_RUN = Window()


def class_summary(
    start_ps: Column,
    size_bytes: Column,
    fct_ps: "Sequence[int | None] | npt.NDArray[np.float64]",
    window: Window = WHOLE_RUN,
    *,
    classes: Classes = DEFAULT,
    alone_ps: "Sequence[int | None] | npt.NDArray[np.float64] | None" = None,
    delivered: "tuple[Column, npt.NDArray[np.float64]] | None" = None,
) -> dict[str, dict[str, Any]]:
    """Return count, mean and percentiles of the completion times of each class of flows.

    Args:
        start_ps: start of each flow.
        size_bytes: payload of each flow.
        fct_ps: completion time of each flow; `None` or NaN for a flow that was unfinished at the end of the run.
        window: which flows count. Default: all.
        classes: which flows are small and which are large. Default: up to 100 kB, and from 10 MB on.
        alone_ps: least completion time of each flow on an idle network.
        delivered: delivered payload of each flow, and the flow's mean rate in bit/s, NaN if no time has passed.

    Returns:
        For "small", "medium", "large" and "all": `started`, `completed`, `mean_fct_ms`, `p50_fct_ms`, `p90_fct_ms` and
        `p99_fct_ms` (linear between the two nearest flows). The times cover completed flows only, and are `None` if
        no flow has completed. With `delivered` also `unfinished` (the number of unfinished flows), `unfinished_bytes`
        (the payload that they have delivered) and `unfinished_rate_bps` (the mean of their rates). With `alone_ps` also
        `mean_slowdown` and `p99_slowdown`: a flow's slowdown is its completion time divided by its `alone_ps`.

    Raises:
        ValueError: if the columns differ in length.

    Example:
        >>> class_summary([0, 5], [1000, 10**7], [2 * 10**9, None])["small"]["mean_fct_ms"]
        2.0
    """
    sizes = np.asarray(size_bytes, dtype=np.uint64)
    times_ms = np.asarray(fct_ps, dtype=np.float64) / PS_PER_MS
    if not len(start_ps) == sizes.size == times_ms.size:
        raise ValueError(f"columns of {len(start_ps)}, {sizes.size} and {times_ms.size} flows")
    slowdowns = None
    if alone_ps is not None:
        slowdowns = times_ms / (np.asarray(alone_ps, dtype=np.float64) / PS_PER_MS)
    is_counted = window.counted(start_ps)

    def of(member: npt.NDArray[np.bool_]) -> dict[str, Any]:
        mine = is_counted & member
        come_to = None if delivered is None else (np.asarray(delivered[0])[mine], delivered[1][mine])
        return _figures(times_ms[mine], None if slowdowns is None else slowdowns[mine], come_to)

    return {name: of(member) for name, member in classes.members(sizes).items()}


def by_tenant(
    tenants: Iterable[str],
    flows: "Table",
    window: Window = WHOLE_RUN,
    *,
    classes: Classes = DEFAULT,
    alone_ps: "npt.NDArray[np.float64] | None" = None,
    completed: str = "fct_us",
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return `class_summary` of each tenant.

    Args:
        tenants: names of the tenants.
        flows: one row per flow, as in `flows.csv`.
        window: which flows count. Default: all.
        classes: which flows are small and which are large.
        alone_ps: least completion time of each flow on an idle network, shape (flows,).
        completed: the column with the completion times.
    """
    names = np.asarray(flows["traffic"])
    start_ps = np.rint(flows["start_us"] * 1e6).astype(np.uint64)
    size_bytes, fct_ps = flows["bytes"], flows[completed] * 1e6
    delivered = flows["delivered_bytes"], flows["mean_rate_bps"]
    return {
        tenant: class_summary(
            start_ps[mine],
            size_bytes[mine],
            fct_ps[mine],
            window,
            classes=classes,
            alone_ps=None if alone_ps is None else alone_ps[mine],
            delivered=(delivered[0][mine], delivered[1][mine]),
        )
        for tenant in tenants
        for mine in [names == tenant]
    }


def _figures(
    times_ms: npt.NDArray[np.float64],
    slowdowns: npt.NDArray[np.float64] | None,
    delivered: "tuple[npt.NDArray[Any], npt.NDArray[np.float64]] | None",
) -> dict[str, Any]:
    is_open = np.isnan(times_ms)
    done = times_ms[~is_open]
    figures: dict[str, Any] = {"started": int(times_ms.size), "completed": int(done.size)}
    if delivered is not None:
        sizes, rates = delivered[0][is_open], delivered[1][is_open]
        rates = rates[~np.isnan(rates)]
        figures["unfinished"] = int(is_open.sum())
        figures["unfinished_bytes"] = int(sizes.sum())
        figures["unfinished_rate_bps"] = float(rates.mean()) if rates.size else None
    figures.update({figure: _statistic(figure, done) for figure in TIMES})
    if slowdowns is not None:
        known = slowdowns[~np.isnan(slowdowns)]
        figures.update({figure: _statistic(figure, known) for figure in SLOWDOWNS})
    return figures


def _statistic(figure: str, values: npt.NDArray[np.float64]) -> float | None:
    """Return the statistic that a figure's name denotes: the mean, or a percentile as in `p99_slowdown`."""
    if not values.size:
        return None
    name = figure.partition("_")[0]
    return float(values.mean() if name == "mean" else np.percentile(values, int(name[1:])))
