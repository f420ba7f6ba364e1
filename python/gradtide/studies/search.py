"""The search of `gradtide plan` over communication schedules of a job.

    choice = mode (level, order, barrier) x buckets x chunk size x channel (collective, depth)

The score of a choice is its iteration time in a short run of the fluid engine between two hosts. The link between them
takes a + b·d for d bytes; a and b are those of the channel, fitted to exchanges on the scenario's own network
(`studies.channels`). A choice is pruned without a run if its lower bound exceeds the best score. Local search over
bucket boundaries, chunk sizes and channels improves the best choices of a coarse grid. Budgets count runs, not seconds,
so equal scenarios give equal plans on any machine.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise

from gradtide.scenario import Job, Scenario
from gradtide.scenario.core.edited import OneChannel, Schedule, layers_json
from gradtide.scenario.releases import Release, Releases
from gradtide.scenario.resolve.network import MAX_FLUID_BPS
from gradtide.studies.channels import Channel
from gradtide.watch import check_cancelled

MIB = 1 << 20

DDP_FIRST_CAP = MIB
"""Cap of PyTorch DDP's first bucket (`_DEFAULT_FIRST_BUCKET_BYTES`); the gradient that reaches it closes the bucket."""

DDP_CAP = 25 * MIB
"""Cap of all other buckets of PyTorch DDP (default of `bucket_cap_mb`)."""

CAPS = tuple(count * MIB for count in (1, 2, 4, 8, 16, 25, 50, 100))
EVEN = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Numbers of buckets for which the grid has a partition of the gradient into buckets of about equal size."""

MOST_CHUNKS = 256
"""Chunks are at least the whole gradient divided by this; the overhead of smaller chunks would exceed any gain."""

ITERATIONS = 3
"""Number of measured iterations of a scoring run, after one warm-up iteration."""

BATCH = 8
"""Number of choices that are scored, one after the other, before the best choice is updated."""

EQUAL_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Local search tries chunk sizes that divide the largest bucket into these numbers of equal chunks."""

STARTS = 3
"""Number of choices in the grid from which local search starts in each mode: the best for different bucket counts."""

BETTER = 1e-4
"""Local search moves to a neighbour only if it improves the score by more than this share."""


def jitter_factors(noise: float, workers: int) -> tuple[float, ...]:
    """Return factors on compute times that represent noise: 1, and the slowest worker's mean ± standard deviation.

    `noise` is the coefficient of variation of a worker's compute time. A worker's factor is uniform within
    1 ± √3 · noise, as for `compute.noise`. The maximum over N workers has the mean 1 + √3 · noise · (N - 1)/(N + 1) and
    the standard deviation 2 √3 · noise · √(N / (N + 2)) / (N + 1).
    """
    if noise == 0:
        return (1.0,)
    width = math.sqrt(3) * noise
    mean = 1 + width * (workers - 1) / (workers + 1)
    spread = 2 * width * math.sqrt(workers / (workers + 2)) / (workers + 1)
    return (1.0, mean - spread, mean + spread)


@dataclass(frozen=True)
class Mode:
    """A send order, with or without a barrier (the next forward pass waits for all transfers), and its level."""

    level: str
    order: str
    barrier: bool


MODES = (
    Mode("buckets", "fifo", True),
    Mode("priority", "priority", True),
    Mode("crossiter", "fifo", False),
    Mode("crossiter", "priority", False),
    Mode("crossiter", "caramel", False),
)

MOST_PACKED = 64
"""Largest number of buckets with Caramel's order, because packing takes a time that is quadratic in their number."""


@dataclass(frozen=True)
class Choice:
    """A communication schedule.

    `cuts` has the first layer of every bucket except the bucket at the model's input, as an index among the layers with
    parameters. `chunk_bytes` is the size of a chunk, or `None` to send buckets whole. `channel` is an index in
    `Space.channels`.
    """

    mode: Mode
    cuts: tuple[int, ...]
    chunk_bytes: int | None
    channel: int


class Layers:
    """Sizes and times of a model's layers, with prefix sums. A layer's index counts only layers with parameters."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.places = [index for index, row in enumerate(job.layers) if row.parameter_bytes]
        self.sizes = [job.layers[index].parameter_bytes for index in self.places]
        self.bytes_below = [0, *accumulate(self.sizes)]
        rows = job.layers
        self.compute_ps = job.compute_ps
        total = [row.forward_ps + row.backward_ps + row.update_ps for row in rows]
        below = [0, *accumulate(total)]
        backward_below = [0, *accumulate(row.backward_ps for row in rows)]
        # For each layer: compute time from the update of its parameters to its next gradient.
        self.cycle_ps = [below[-1] - below[place] for place in self.places]
        # For each layer: compute time from the end of the barrier until its gradient is ready.
        self.ready_ps = [below[-1] - backward_below[place] for place in self.places]

    @property
    def count(self) -> int:
        """Number of layers with parameters."""
        return len(self.places)

    def spans(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Return the buckets as half-open ranges [first, last) of layers, from the model's input side."""
        edges = [0, *cuts, self.count]
        return list(pairwise(edges))

    def layer_counts(self, cuts: Sequence[int]) -> list[int]:
        """Return the number of layers of each bucket, including layers without parameters, as in `schedule.buckets`."""
        edges = [0, *(self.places[cut] for cut in cuts), len(self.job.layers)]
        return [high - low for low, high in pairwise(edges)]

    def sizes_of(self, cuts: Sequence[int]) -> list[int]:
        """Return the bytes of each bucket, from the input side."""
        return [self.bytes_below[high] - self.bytes_below[low] for low, high in self.spans(cuts)]

    def capped(self, cap: int, first_cap: int | None = None) -> tuple[int, ...]:
        """Return the cuts of PyTorch DDP for caps in bytes; `first_cap` is that of the first bucket. Default: `cap`.

        From the model's output side, the layer that reaches the cap closes a bucket. Source:
        `compute_bucket_assignment_by_size` of PyTorch's reducer.
        """
        cuts, room = [], cap if first_cap is None else first_cap
        for layer in range(self.count - 1, 0, -1):
            room -= self.sizes[layer]
            if room <= 0:
                cuts.append(layer)
                room = cap
        return tuple(reversed(cuts))

    def even(self, count: int) -> tuple[int, ...]:
        """Return the cuts for `count` buckets of about equal size."""

        def nearest(at: int) -> int:
            return min(range(1, self.count), key=lambda cut: abs(self.bytes_below[cut] - at))

        whole = self.bytes_below[-1]
        return tuple(sorted({nearest(part * whole // count) for part in range(1, count) if self.count > 1}))

    def not_below(self, cuts: Sequence[int], smallest: int) -> tuple[int, ...]:
        """Return the cuts without those that would leave a bucket below `smallest` bytes; neighbours are merged."""
        kept: list[int] = []
        above = self.count
        for cut in reversed(cuts):
            if self.bytes_below[above] - self.bytes_below[cut] >= smallest:
                kept.append(cut)
                above = cut
        if kept and self.bytes_below[kept[-1]] < smallest:
            kept.pop()
        return tuple(reversed(kept))


@dataclass
class Space:
    """The search space, with the costs of messages and lower bounds of iteration times.

    Attributes:
        channels: the searched channels; the scenario's own channel comes first.
        overhead_ps: overhead per message at the levels priority and crossiter, in addition to the scenario's.
        smallest_bytes: size of the smallest bucket and chunk, unless the whole gradient is smaller.
        scenario: the scenario whose job is run for scores.
        jitter_factors: factors on compute times. The score of a choice is the mean over these factors, so a choice
            that is good only without stragglers cannot win.
    """

    layers: Layers
    channels: Sequence[Channel]
    modes: Sequence[Mode]
    overhead_ps: int
    smallest_bytes: int
    scenario: Scenario
    jitter_factors: Sequence[float] = (1.0,)

    @property
    def smallest_chunk(self) -> int:
        """Smallest chunk of the search space, in bytes."""
        return max(1, self.smallest_bytes, self.layers.bytes_below[-1] // MOST_CHUNKS)

    def messages(self, choice: Choice) -> int:
        """Return the number of messages per iteration, i.e. of chunks, or of buckets without chunks."""
        sizes, chunk = self.layers.sizes_of(choice.cuts), choice.chunk_bytes
        return sum(1 if chunk is None else -(-size // chunk) for size in sizes)

    def fixed_ps(self, choice: Choice) -> float:
        """Return the fixed cost of a message, i.e. the time of an empty message with all overheads, in picoseconds."""
        return self.channels[choice.channel].fixed_ps + self.layers.job.schedule.overhead_ps + self.extra_ps(choice)

    def extra_ps(self, choice: Choice) -> int:
        """Return the overhead of a message in addition to the scenario's, in ps: `overhead_ps` for each part."""
        if choice.mode.level == "buckets":
            return 0
        return self.overhead_ps * self.channels[choice.channel].depth

    def allows(self, choice: Choice) -> bool:
        """Whether the choice is in the search space. At level `buckets`, DDP needs the scenario's own depth."""
        own = self.channels[0].depth
        if choice.mode.order == "caramel" and len(choice.cuts) >= MOST_PACKED:
            return False
        return choice.mode.level != "buckets" or self.channels[choice.channel].depth == own

    def bound_ps(self, choice: Choice) -> float:
        """Return a lower bound of the choice's iteration time, in picoseconds.

        With a barrier, the bound is the maximum over buckets of the time at which a bucket is ready, plus the time to
        send all buckets that are ready then or later. Without a barrier, it is the maximum of compute time, channel
        time, and the longest cycle of a bucket: its transfer, and the compute from its update to its next gradient.
        """
        fixed, slope, chunk = self.fixed_ps(choice), self.channels[choice.channel].ps_per_byte, choice.chunk_bytes
        layers = self.layers
        best, behind = 0.0, 0.0
        for first, last in layers.spans(choice.cuts):
            size = layers.bytes_below[last] - layers.bytes_below[first]
            takes = fixed * (1 if chunk is None else -(-size // chunk)) + slope * size
            behind += takes
            # `behind` is the time to send this bucket and all buckets that become ready after it.
            best = max(
                best, (layers.ready_ps[first] + behind) if choice.mode.barrier else layers.cycle_ps[first] + takes
            )
        return max(best, behind, float(layers.compute_ps))

    @cached_property
    def least_ps(self) -> float:
        """Lower bound of all choices in ps: compute, one exchange of the whole gradient, or a layer's longest cycle."""
        layers = self.layers
        whole_ps = min(channel.whole_ps for channel in self.channels)
        per_byte = whole_ps / layers.bytes_below[-1]
        path = max(cycle + per_byte * size for cycle, size in zip(layers.cycle_ps, layers.sizes, strict=True))
        return max(float(layers.compute_ps), whole_ps, path)


@dataclass
class Search:
    """State of the search.

    Attributes:
        scores: mean iteration time in picoseconds of every choice that has been run.
        pruned: number of choices that were excluded by their lower bound.
    """

    space: Space
    scores: dict[Choice, float] = field(default_factory=dict)
    pruned: int = 0

    def __post_init__(self) -> None:
        (job,) = self.space.scenario.jobs
        times = ("forward_ps", "backward_ps", "update_ps")
        jittered = [
            [row._replace(**{key: round(factor * getattr(row, key)) for key in times}) for row in job.layers]
            for factor in self.space.jitter_factors
        ]
        self._jittered = [(layers_json(layers), Releases(layers)) for layers in jittered]
        self._plain = layers_json(job.layers), Releases(job.layers)
        self._packed: dict[Choice, list[tuple[int, Release | None]]] = {}
        self._core = OneChannel(self.space.scenario, ITERATIONS)

    def packed(self, choice: Choice) -> list[tuple[int, Release | None]]:
        """Return the buckets of a choice (indices in `Layers.spans`) in Caramel's order, each with its release event.

        The release event is the last compute event before the planned start of the bucket. A bucket that is released
        earlier than planned still waits for the buckets before it in the order.
        """
        if choice not in self._packed:
            layers, releases = self._plain
            number_of = {}
            for number, (first, last) in enumerate(self.space.layers.spans(choice.cuts)):
                number_of.update(dict.fromkeys(self.space.layers.places[first:last], number))
            sent = self._core.planned(self._schedule(choice, "caramel"), layers)
            self._packed[choice] = [
                (number_of[members[0]], releases.before(offset_ps, members)) for members, offset_ps in sent
            ]
        return self._packed[choice]

    def _buckets(self, choice: Choice, releases: Releases) -> list[tuple[list[int], int]]:
        """Return layers and release time (ps) of each bucket in Caramel's order; `releases` has the times of events."""
        places = self.space.layers.places
        spans = self.space.layers.spans(choice.cuts)
        return [(places[slice(*spans[number])], releases.opens_ps(release)) for number, release in self.packed(choice)]

    def _schedule(self, choice: Choice, order: str) -> Schedule:
        """Return a choice as a schedule of the core, with the link rate and the overhead of its channel."""
        channel = self.space.channels[choice.channel]
        return Schedule(
            order,
            self.space.layers.layer_counts(choice.cuts),
            choice.chunk_bytes,
            choice.mode.barrier,
            overhead_ps=round(self.space.fixed_ps(choice)),
            rate_bps=max(1, min(round(8e12 / max(channel.ps_per_byte, 1e-6)), MAX_FLUID_BPS)),
        )

    def score(self, choices: Iterable[Choice]) -> None:
        """Run the choices that have no score yet."""
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.scores]
        for choice in new:
            check_cancelled()
            is_packed = choice.mode.order == "caramel"
            schedule = self._schedule(choice, "planned" if is_packed else choice.mode.order)
            times: list[int] = []
            for layers, releases in self._jittered:
                times += self._core.times_ps(schedule, layers, self._buckets(choice, releases) if is_packed else ())
            self.scores[choice] = float(sum(times) / len(times))

    def key(self, choice: Choice) -> tuple[float, int, int, tuple[int, ...], int]:
        """Return the sort key of choices: score, then number of messages; the other fields make the order total.

        Scores are rounded to nanoseconds, so that rounding per message cannot favour more messages.
        """
        messages = self.space.messages(choice)
        return round(self.scores[choice] / 1000), messages, choice.channel, choice.cuts, choice.chunk_bytes or 0

    def best(self, mode: Mode, channel: int | None = None) -> Choice | None:
        """Return the best scored choice of a mode, on one channel or (`None`) on all; `None` if no choice is scored."""
        known = [c for c in self.scores if c.mode == mode and channel in (None, c.channel)]
        return min(known, key=self.key, default=None)

    def grid(self) -> None:
        """Score the coarse grid by ascending lower bound, and prune choices with a bound above the best score."""
        for mode in self.space.modes:
            found = sorted(grid(self.space, mode), key=lambda choice: (self.space.bound_ps(choice), choice.cuts))
            for some in _batches(found):
                best = self.best(mode)
                limit = float("inf") if best is None else self.scores[best]
                kept = [choice for choice in some if self.space.bound_ps(choice) < limit]
                self.pruned += len(some) - len(kept)
                self.score(kept)

    def descend(self, mode: Mode, budget: int) -> None:
        """Improve the best choices of a mode by local search, with at most `budget` runs."""
        known = sorted((choice for choice in self.scores if choice.mode == mode), key=self.key)
        starts: list[Choice] = []
        for choice in known:
            if all(len(choice.cuts) != len(start.cuts) for start in starts) and len(starts) < STARTS:
                starts.append(choice)
        for number, start in enumerate(starts):
            share = budget // (len(starts) - number)
            budget -= share - self._descend(start, share)

    def _descend(self, at: Choice, budget: int) -> int:
        while budget > 0:
            better = None
            for some in _batches(neighbours(self.space, at)):
                limit = self.scores[at] * (1 - BETTER)
                new = [choice for choice in some if choice not in self.scores]
                kept = [choice for choice in new if self.space.bound_ps(choice) < limit][:budget]
                self.pruned += len(new) - len(kept)
                budget -= len(kept)
                self.score(kept)
                scored = [choice for choice in some if self.scores.get(choice, limit) < limit]
                better = min(scored, key=self.key, default=None)
                if better is not None or budget <= 0:
                    break
            if better is None:
                break
            at = better
        return budget


def grid(space: Space, mode: Mode) -> list[Choice]:
    """Return the coarse grid of a mode: DDP's buckets at several caps, buckets of equal size, and one per layer."""
    layers = space.layers
    cuts = [layers.capped(DDP_CAP, DDP_FIRST_CAP), *(layers.capped(cap) for cap in CAPS), *map(layers.even, EVEN)]
    cuts.append(tuple(range(1, layers.count)))
    # DDP's own buckets are kept unchanged, even if the last one is below the smallest size.
    partitions = dict.fromkeys([cuts[0], *(layers.not_below(each, space.smallest_bytes) for each in cuts)])
    chunks: list[int | None] = [None]
    if mode.order == "priority":
        # In FIFO order, chunks only add overhead, and Caramel sends its batches whole.
        chunks.append(space.smallest_chunk)
        while 2 * (chunks[-1] or 0) < layers.bytes_below[-1]:
            chunks.append(2 * (chunks[-1] or 0))
    found = [
        Choice(mode, each, chunk, channel)
        for channel in range(len(space.channels))
        for each in partitions
        for chunk in chunks
        if chunk is None or chunk < max(layers.sizes_of(each))
    ]
    return [choice for choice in found if space.allows(choice)]


def most_of_grid(mode: Mode, channels: int) -> int:
    """Return an upper bound of the number of choices in the grid of a mode."""
    chunks = 2 + MOST_CHUNKS.bit_length() if mode.order == "priority" else 1
    return channels * (2 + len(CAPS) + len(EVEN)) * chunks


def neighbours(space: Space, choice: Choice) -> Iterator[Choice]:
    """Yield the neighbours of a choice: another channel or chunk size, one bucket less or more, or a moved cut."""
    seen = {choice}
    for other in _neighbours(space, choice):
        if other not in seen and space.allows(other):
            seen.add(other)
            yield other


def _neighbours(space: Space, choice: Choice) -> Iterator[Choice]:
    layers, cuts = space.layers, choice.cuts
    for channel in range(len(space.channels)):
        yield replace(choice, channel=channel)
    if choice.mode.order == "priority":
        largest, chunk = max(layers.sizes_of(cuts)), choice.chunk_bytes
        # Chunk sizes are equal parts of the largest bucket, and multiples of the current chunk size.
        sizes = [None, *(-(-largest // parts) for parts in EQUAL_PARTS)]
        sizes += [] if chunk is None else [2 * chunk, chunk // 2, chunk * 4 // 3, chunk * 3 // 4]
        for size in sizes:
            if size is None or space.smallest_chunk <= size < largest:
                yield replace(choice, chunk_bytes=size)

    def with_cuts(new: Iterable[int]) -> Choice:
        return replace(choice, cuts=layers.not_below(sorted(set(new)), space.smallest_bytes))

    for index in range(len(cuts)):
        yield with_cuts([*cuts[:index], *cuts[index + 1 :]])
    # A new cut is tried at about eight layers of each bucket.
    for first, last in layers.spans(cuts):
        step = max(1, (last - first) // 8)
        for cut in range(first + 1, last, step):
            yield with_cuts([*cuts, cut])
    edges = [0, *cuts, layers.count]
    for index, cut in enumerate(cuts):
        low, high = edges[index], edges[index + 2]
        for distance in (1, 2, 4, 8, 16):
            for moved in (cut - distance, cut + distance):
                if low < moved < high:
                    yield with_cuts([*cuts[:index], moved, *cuts[index + 1 :]])


def _batches(choices: Iterable[Choice]) -> Iterator[list[Choice]]:
    rest = iter(choices)
    while some := list(islice(rest, BATCH)):
        yield some


def explore(search: Search, budget: int, progress: Callable[[float], object] | None = None) -> None:
    """Score the grid, then improve the best choices of each mode by local search with at most `budget` runs each."""
    modes = search.space.modes
    search.grid()
    for number, mode in enumerate(modes):
        if progress is not None:
            progress((number + 1) / (len(modes) + 1))
        search.descend(mode, budget)
