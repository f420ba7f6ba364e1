"""Fits the time a + b·d of a collective for d bytes to simulated single exchanges on a scenario's network."""

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
"""Pipelining depths (numbers of parts of a message) that are searched, as in Caramel (2020), section 4.4."""

MAX_MESSAGES = 1_000_000
"""Maximum number of messages of an exchange; depths that would need more messages are not searched."""

FIT_STEP = 4
"""Ratio of consecutive message sizes in the fit of a channel."""

SAME_CHANNEL = 0.005
"""A channel is not searched if another one takes at most this share more time at every size (dominates it)."""


@dataclass(frozen=True)
class Channel:
    """Time of a collective with pipelining depth `depth` on the scenario's network: a + b·d for d bytes.

    `fixed_ps` is a, and `ps_per_byte` is b. `whole_ps` is the simulated time for the whole gradient in one exchange.
    """

    collective: dict[str, Any]
    depth: int
    fixed_ps: float
    ps_per_byte: float
    whole_ps: float


def own_collective(base: Scenario) -> dict[str, Any]:
    """Return the keys of the collective of the scenario's only job."""
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
    """Return the channels (collective, depth) to search, the scenario's own first, without dominated channels.

    Each channel is fitted to exchanges from the smallest message to the whole gradient, by least squares of relative
    errors. Without `names`, candidates are the collectives of the runtime that suit the workers and the network. With
    `is_deep`, other depths than the scenario's are searched as well.
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
    """Return the pairs (collective, depth), the sizes, and the exchanges that `fit` runs, grouped by pair.

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
        # A message without per-message overhead, because the search adds chunking and that overhead to the score.
        alone(base.set({f"job.{job.name}.collective": table}), size).replace(
            depth=depth, chunk=None, overhead="0s", sync=None
        )
        for table, depth in pairs
        for size in sizes
    ]
    return pairs, sizes, exchanges


def _named(names: Sequence[str], own: str, runtime: Runtime) -> list[dict[str, Any]]:
    """Return the collectives that the user named; the scenario's own is valid even if the runtime lacks it."""
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
    """Return all-reduces that suit runtime and job: none for two workers, halving-doubling only for 2^k."""
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
    """Fit a + b·d by weighted least squares with a, b >= 0; a is 0 if all sizes are equal.

    The default weights minimise relative errors.
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
