"""Fits a + b·d, the time of a collective for d bytes, to simulations of single exchanges on a scenario's network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradtide.errors import ScenarioError
from gradtide.estimate import Limits
from gradtide.runtime import Runtime
from gradtide.scenario import Scenario
from gradtide.studies.exchange import alone, exchange_s, suits, summing_collectives
from gradtide.studies.run import run_all

DEPTHS = (1, 2, 4, 8)
"""Pipelining depths that are searched, i.e. numbers of parts of a message, as in Caramel (2020), section 4.4."""

MAX_MESSAGES = 1_000_000
"""Largest number of messages of one exchange. Depths that need more messages are not searched."""

FIT_STEP = 4
"""Each message size that is simulated for a fit is this many times the previous one."""

SAME_CHANNEL = 0.005
"""A channel (a collective with a depth) is not searched if an earlier one is at most this share slower at every
size."""


@dataclass(frozen=True)
class Channel:
    """A collective with a pipelining depth, and its fitted time on the scenario's network: a + b·d for d bytes.

    `fixed_ps` is a, and `ps_per_byte` is b. `whole_ps` is the simulated time for the whole gradient in one exchange.
    """

    collective: dict[str, Any]
    depth: int
    fixed_ps: float
    ps_per_byte: float
    whole_ps: float


def own_collective(base: Scenario) -> dict[str, Any]:
    """Return the table `collective` of the scenario's only job."""
    table: dict[str, Any] = base.to_dict()["job"][base.jobs[0].name]["collective"]
    return table


def fit(
    base: Scenario,
    names: Sequence[str] | None,
    smallest_bytes: int,
    runtime: Runtime,
    jobs: int,
    progress: Callable[[float], object] | None,
    limits: Limits | None,
    *,
    is_deep: bool,
) -> list[Channel]:
    """Return the channels to search, the scenario's own first, without channels that another one dominates.

    Each channel is fitted to exchanges from about `smallest_bytes` to the whole gradient, by least squares of relative
    errors. Without `names`, the runtime's collectives that suit the workers and the network are candidates. With
    `is_deep`, the depths in `DEPTHS` are searched in addition to the scenario's.
    """
    pairs, sizes, exchanges = tried(base, names, smallest_bytes, runtime, is_deep=is_deep)
    times = [1e12 * exchange_s(result) for result in run_all(exchanges, jobs, progress, None, limits)]
    channels: list[Channel] = []
    known: list[list[float]] = []
    for number, (table, depth) in enumerate(pairs):
        takes = times[number * len(sizes) : (number + 1) * len(sizes)]
        if any(all(a <= b * (1 + SAME_CHANNEL) for a, b in zip(other, takes, strict=True)) for other in known):
            continue
        fixed, slope = line(sizes, takes)
        channels.append(Channel(table, depth, fixed, slope, takes[-1]))
        known.append(takes)
    return channels


def tried(
    base: Scenario, names: Sequence[str] | None, smallest_bytes: int, runtime: Runtime, *, is_deep: bool
) -> tuple[list[tuple[dict[str, Any], int]], list[int], list[Scenario]]:
    """Return the pairs (collective, depth), the sizes in bytes, and the exchanges that `fit` runs, grouped by pair.

    The arguments are those of `fit`.
    """
    job, own = base.jobs[0], own_collective(base)
    tables = [own]
    for table in _alternatives(base, runtime) if names is None else _named(names, own["kind"], runtime):
        if table["kind"] != own["kind"] or (names is not None and table != own):
            kept = {key: own[key] for key in ("reduction_rate", "remainder") if key in own}
            tables.append(own_collective(base.set({f"job.{job.name}.collective": {**kept, **table}})))
    own_depth = job.schedule.parts
    depths = [own_depth]
    if is_deep:
        messages = job.counts.messages
        depths += [depth for depth in DEPTHS if depth != own_depth and depth * messages <= MAX_MESSAGES]
    whole = job.parameter_bytes
    sizes = [min(max(smallest_bytes, whole // 4**6, 1), whole)]
    while FIT_STEP * sizes[-1] < whole:
        sizes.append(FIT_STEP * sizes[-1])
    sizes = list(dict.fromkeys([*sizes, whole]))
    pairs = [(table, depth) for table in tables for depth in depths]
    exchanges = [
        # This exchange omits chunks and per-message overhead, because the search adds them to the score.
        alone(base.set({f"job.{job.name}.collective": table}), size).replace(
            depth=depth, chunk=None, overhead="0s", sync=None
        )
        for table, depth in pairs
        for size in sizes
    ]
    return pairs, sizes, exchanges


def _named(names: Sequence[str], own: str, runtime: Runtime) -> list[dict[str, Any]]:
    """Return the scenario keys of each named collective. `own`, the scenario's kind, is allowed on every runtime."""
    tables = summing_collectives(names, "--collectives")
    for name, table in tables.items():
        if "depth" in table:
            raise ValueError(f"--collectives: {name}: depths are searched; write {table['kind']}")
        if not runtime.allows(table["kind"]) and table["kind"] != own:
            raise ValueError(
                f"--collectives: {name} cannot be chosen on {runtime.name}; there are {', '.join(runtime.collectives)} "
                "and the scenario's own. --device ideal searches whatever gradtide models"
            )
    return list(tables.values())


def _alternatives(base: Scenario, runtime: Runtime) -> list[dict[str, Any]]:
    """Return the all-reduces to try besides the scenario's: none for two workers, halving-doubling only for 2^k."""
    job = base.jobs[0]
    own = job.collective.kind
    if job.workers == 2 or own == "ps":
        return []
    kinds = [kind for kind in ("ring", "tree", "halving_doubling") if runtime.allows(kind)]
    if job.workers & (job.workers - 1):
        kinds = [kind for kind in kinds if kind != "halving_doubling"]
    found: list[dict[str, Any]] = [{"kind": kind} for kind in kinds if suits(base, kind)]
    if not runtime.allows("hierarchical"):
        return found
    try:
        group = base.set({f"job.{job.name}.collective": {"kind": "hierarchical"}}).jobs[0].group
    except ScenarioError:
        return found
    return [*found, {"kind": "hierarchical"}] if 1 < group < job.workers else found


def line(
    sizes: Sequence[float], times_ps: Sequence[float], weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Return (a, b) of the weighted least-squares fit a + b·d, where d is the size in bytes, and a, b >= 0.

    The default weights, 1 / time², minimise relative errors. If all sizes are equal, a is 0.
    """
    weights = [1 / time**2 for time in times_ps] if weights is None else weights
    mean_size = sum(w * d for w, d in zip(weights, sizes, strict=True)) / sum(weights)
    mean_time = sum(w * t for w, t in zip(weights, times_ps, strict=True)) / sum(weights)
    square = sum(w * (d - mean_size) ** 2 for w, d in zip(weights, sizes, strict=True))
    both = sum(w * (d - mean_size) * (t - mean_time) for w, d, t in zip(weights, sizes, times_ps, strict=True))
    slope = max(0.0, both / square) if len(set(sizes)) > 1 else mean_time / mean_size
    fixed = mean_time - slope * mean_size
    if fixed >= 0:
        return fixed, slope
    through = sum(w * d * t for w, d, t in zip(weights, sizes, times_ps, strict=True))
    return 0.0, through / sum(w * d * d for w, d in zip(weights, sizes, strict=True))
