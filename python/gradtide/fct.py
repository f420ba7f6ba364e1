"""Flow completion times to figures: how long small, medium and large flows of a neighbour take.

Columns in, a dictionary out; no run and no scenario is known here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL_BYTES = 100_000
"""Largest small flow; Gao (2020), section 5.3."""

LARGE_BYTES = 10_000_000
"""Smallest large flow; Gao (2020), section 5.3."""

CLASSES = ("small", "medium", "large", "all")
_PS_PER_MS = 1e9
_PERCENTILES = (50, 90, 99)

Column = Sequence[int] | npt.NDArray[np.uint64]


def counted(start_ps: Column, warmup_ps: int, cooldown_ps: int) -> npt.NDArray[np.bool_]:
    """Return which flows count: those that start at or after `warmup_ps` and before the last start less `cooldown_ps`.

    With both 0 every flow counts, the last one included.

    Args:
        start_ps: when each flow starts.
        warmup_ps: length of the warm-up.
        cooldown_ps: length of the cool-down, before the last start.

    Returns:
        One boolean a flow.
    """
    starts = np.asarray(start_ps, dtype=np.uint64)
    is_counted: npt.NDArray[np.bool_] = starts >= np.uint64(warmup_ps)
    if cooldown_ps and starts.size:
        # Compared as Python integers: a cool-down may be longer than the whole run, and there is no sign in uint64.
        end_ps = int(starts.max()) - cooldown_ps
        is_counted = is_counted & (starts < np.uint64(max(end_ps, 0)))
    return is_counted


def class_summary(
    start_ps: Column,
    size_bytes: Column,
    fct_ps: "Sequence[int | None] | npt.NDArray[np.float64]",
    warmup_ps: int = 0,
    cooldown_ps: int = 0,
) -> dict[str, dict[str, Any]]:
    """Return count, mean and percentiles of the completion times of each class of flows.

    Args:
        start_ps: when each flow starts.
        size_bytes: payload of each flow; small is at most 100 kB, large at least 10 MB, medium between.
        fct_ps: completion time of each flow; `None` or NaN for one that had not ended when the run did.
        warmup_ps: flows that start before this do not count.
        cooldown_ps: flows that start within this before the last start, or at it, do not count; 0 counts them all.

    Returns:
        For "small", "medium", "large" and "all": `started`, `completed`, `mean_fct_ms`, `p50_fct_ms`, `p90_fct_ms` and
        `p99_fct_ms` (linear between the two nearest flows), which are of the completed flows, and `None` if there is
        none.

    Raises:
        ValueError: if the columns differ in length.

    Example:
        >>> class_summary([0, 5], [1000, 10**7], [2 * 10**9, None])["small"]["mean_fct_ms"]
        2.0
    """
    sizes = np.asarray(size_bytes, dtype=np.uint64)
    times_ms = np.asarray(fct_ps, dtype=np.float64) / _PS_PER_MS
    if not len(start_ps) == sizes.size == times_ms.size:
        raise ValueError(f"columns of {len(start_ps)}, {sizes.size} and {times_ms.size} flows")
    is_counted = counted(start_ps, warmup_ps, cooldown_ps)
    is_small, is_large = sizes <= SMALL_BYTES, sizes >= LARGE_BYTES
    members = (is_small, ~is_small & ~is_large, is_large, np.ones_like(is_small))
    return {name: _figures(times_ms[is_counted & member]) for name, member in zip(CLASSES, members, strict=True)}


def _figures(times_ms: npt.NDArray[np.float64]) -> dict[str, Any]:
    done = times_ms[~np.isnan(times_ms)]
    figures: dict[str, Any] = {"started": int(times_ms.size), "completed": int(done.size)}
    figures["mean_fct_ms"] = float(done.mean()) if done.size else None
    for percentile in _PERCENTILES:
        figures[f"p{percentile}_fct_ms"] = float(np.percentile(done, percentile)) if done.size else None
    return figures
