"""Flow completion times to figures: how long small, medium and large background flows take.

Columns in, a dictionary out; no run and no scenario is known here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradtide import units
from gradtide.units import PS_PER_MS

SMALL_BYTES = 100_000
"""Default size of the largest small flow (Gao 2020, section 5.3)."""

LARGE_BYTES = 10_000_000
"""Default size of the smallest large flow (Gao 2020, section 5.3)."""

CLASSES = ("small", "medium", "large", "all")
TIMES = ("mean_fct_ms", "p50_fct_ms", "p90_fct_ms", "p99_fct_ms")
SLOWDOWNS = ("mean_slowdown", "p99_slowdown")

Column = Sequence[int] | npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Classes:
    """Where small flows end and large ones begin: the payloads of the largest small and of the smallest large flow."""

    small_bytes: int = SMALL_BYTES
    large_bytes: int = LARGE_BYTES

    def __post_init__(self) -> None:
        if not 0 < self.small_bytes < self.large_bytes:
            small, large = units.format_bytes(self.small_bytes), units.format_bytes(self.large_bytes)
            raise ValueError(f"small is up to {small} and large from {large}: write a larger size for large")

    @classmethod
    def parse(cls, text: str) -> "Classes":
        """Read size classes such as `small=100kB,large=1MB`; omitted ones keep their default."""
        sizes: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(small|large)\s*=\s*(.*\S)\s*", part)
            if match is None:
                raise ValueError(f'"{part}" is no size class; write small=SIZE, large=SIZE or both, as in large=1MB')
            if f"{match[1]}_bytes" in sizes:
                raise ValueError(f"{match[1]} is given twice")
            sizes[f"{match[1]}_bytes"] = units.parse_bytes(match[2])
        return cls(**sizes)

    def members(self, sizes: Column) -> dict[str, npt.NDArray[np.bool_]]:
        """Return for each of `CLASSES` which of some flows are of it, by their sizes in bytes."""
        column = np.asarray(sizes, dtype=np.uint64)
        is_small, is_large = column <= self.small_bytes, column >= self.large_bytes
        of = (is_small, ~is_small & ~is_large, is_large, np.ones_like(is_small))
        return dict(zip(CLASSES, of, strict=True))


DEFAULT = Classes()


@dataclass(frozen=True)
class Window:
    """Which flows count, by their start.

    Attributes:
        warmup_ps: flows that start before this time are excluded.
        cooldown_ps: flows that start less than or exactly this long before the last start are excluded; 0 excludes
            none.
        until_ps: flows that start at this time or later are excluded; None for no limit.
    """

    warmup_ps: int = 0
    cooldown_ps: int = 0
    until_ps: int | None = None

    def counted(self, start_ps: Column) -> npt.NDArray[np.bool_]:
        """Return which flows count, shape (flows,)."""
        starts = np.asarray(start_ps, dtype=np.uint64)
        is_counted: npt.NDArray[np.bool_] = starts >= np.uint64(self.warmup_ps)
        if self.cooldown_ps and starts.size:
            # Compared as Python integers, because a cool-down longer than the run would make the difference negative.
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
        fct_ps: completion time of each flow; `None` or NaN for one that had not ended when the run did.
        window: which flows count. Default: all.
        classes: which flows are small and which are large. Default: up to 100 kB, and from 10 MB on.
        alone_ps: the least completion time that an idle network allows each flow.
        delivered: payload of each flow that its receiver has, and its mean rate in bit/s, NaN where no time passed.

    Returns:
        For "small", "medium", "large" and "all": `started`, `completed`, `mean_fct_ms`, `p50_fct_ms`, `p90_fct_ms` and
        `p99_fct_ms` (linear between the two nearest flows), which are of the completed flows, and `None` if there is
        none: how long the unfinished ones take is not known. With `delivered` also `unfinished`, their number,
        `unfinished_bytes`, which they have delivered together, and `unfinished_rate_bps`, the mean of their rates. With
        `alone_ps` also `mean_slowdown` and `p99_slowdown`: a flow's slowdown is its completion time divided by the
        least that the network allows it alone.

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
