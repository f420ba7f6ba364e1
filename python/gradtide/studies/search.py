"""The search of `gradtide plan` over ways to send a job's gradients.

    choice = mode (level, order, barrier) x buckets x chunk x channel (collective, depth)

The score of a choice is its iteration time in a short run of the fluid engine between two hosts. Their link takes
a + b·d for d bytes, fitted to exchanges on the scenario's own network. A choice is not run if its bound is above the
best score. Local search over the edges of buckets, chunk and channel improves the best choices of a coarse grid.
Budgets count runs, not seconds, so equal scenarios give equal plans on any machine.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise
from typing import Any

from gradtide import _core
from gradtide.scenario import Job
from gradtide.scenario.check.network import MAX_FLUID_BPS
from gradtide.scenario.gates import Gate, Gates
from gradtide.studies.channels import Channel
from gradtide.studies.network import as_one_channel
from gradtide.watch import look

MIB = 1 << 20

DDP_FIRST_CAP = MIB
"""PyTorch DDP closes its first bucket with the gradient that reaches 1 MiB (`_DEFAULT_FIRST_BUCKET_BYTES`)."""

DDP_CAP = 25 * MIB
"""DDP closes every further bucket with the gradient that reaches 25 MiB (`bucket_cap_mb`)."""

CAPS = tuple(count * MIB for count in (1, 2, 4, 8, 16, 25, 50, 100))
EVEN = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Numbers of buckets of about equal size that the grid begins with."""

MOST_CHUNKS = 256
"""No chunk is smaller than this part of the whole gradient: smaller ones would cost more than they could save."""

ITERATIONS = 3
"""Measured iterations of a scoring run, after one that is not measured."""

BATCH = 8
"""Choices scored before the best is updated. They run one after the other: a run takes a fraction of a millisecond, and
threads would slow each other down."""

EQUAL_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Local search tries chunks that cut the largest bucket into so many equal parts."""

STARTS = 3
"""Choices of the grid that local search starts from, in each mode."""

BETTER = 1e-4
"""Local search takes a step only if it gains at least this share."""


def paces(noise: float, workers: int) -> tuple[float, ...]:
    """Return factors on compute times that stand for noise: none, and the slowest worker's, a little below and above.

    A worker's factor is uniform within 1 ± √3 · noise, as `compute.noise` draws it. The largest of N has the mean
    1 + √3 · noise · (N - 1)/(N + 1) and the standard deviation 2 √3 · noise · √(N / (N + 2)) / (N + 1).
    """
    if noise == 0:
        return (1.0,)
    width = math.sqrt(3) * noise
    mean = 1 + width * (workers - 1) / (workers + 1)
    spread = 2 * width * math.sqrt(workers / (workers + 2)) / (workers + 1)
    return (1.0, mean - spread, mean + spread)


@dataclass(frozen=True)
class Mode:
    """What the runtime has to be able to do; with `barrier`, the next forward pass waits for all transfers."""

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
"""Buckets that Caramel's packing is tried with at most: its effort grows with their square."""


@dataclass(frozen=True)
class Choice:
    """One way to send the gradients; `chunk_bytes` is the largest part sent at once, and `None` sends a bucket whole.

    A bucket begins at each of `cuts`: layers with parameters, counted from the input side, without the first.
    """

    mode: Mode
    cuts: tuple[int, ...]
    chunk_bytes: int | None
    channel: int


class Layers:
    """Sizes and times of a model's layers, and their sums."""

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
        # From the update of a layer through both passes back to its gradient.
        self.around_ps = [below[-1] - below[place] for place in self.places]
        # From the barrier to a layer's gradient.
        self.ready_ps = [below[-1] - backward_below[place] for place in self.places]

    @property
    def count(self) -> int:
        """Layers with parameters."""
        return len(self.places)

    def stretches(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Return each bucket as (first, behind the last) of the layers with parameters, from the input side."""
        edges = [0, *cuts, self.count]
        return list(pairwise(edges))

    def layer_counts(self, cuts: Sequence[int]) -> list[int]:
        """Return the buckets as `schedule.buckets` has them."""
        edges = [0, *(self.places[cut] for cut in cuts), len(self.job.layers)]
        return [high - low for low, high in pairwise(edges)]

    def sizes_of(self, cuts: Sequence[int]) -> list[int]:
        """Return the bytes of each bucket, from the input side."""
        return [self.bytes_below[high] - self.bytes_below[low] for low, high in self.stretches(cuts)]

    def capped(self, cap: int, first_cap: int | None = None) -> tuple[int, ...]:
        """Return cuts as PyTorch DDP makes them: from the output side, closed by the layer that reaches the cap.

        Source: `compute_bucket_assignment_by_size` of PyTorch's reducer.
        """
        cuts, room = [], cap if first_cap is None else first_cap
        for layer in range(self.count - 1, 0, -1):
            room -= self.sizes[layer]
            if room <= 0:
                cuts.append(layer)
                room = cap
        return tuple(reversed(cuts))

    def even(self, count: int) -> tuple[int, ...]:
        """Return cuts into about equal sizes."""

        def nearest(at: int) -> int:
            return min(range(1, self.count), key=lambda cut: abs(self.bytes_below[cut] - at))

        whole = self.bytes_below[-1]
        return tuple(sorted({nearest(part * whole // count) for part in range(1, count) if self.count > 1}))

    def not_below(self, cuts: Sequence[int], smallest: int) -> tuple[int, ...]:
        """Return cuts without those that leave a bucket below the smallest; what is too small joins the next one."""
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
    """The choices, and what each costs.

    Attributes:
        channels: the scenario's own first.
        overhead_ps: what a message costs at the levels priority and crossiter, beyond the scenario's own overhead.
        smallest_bytes: no bucket and no chunk is smaller, but where the whole gradient is.
        spec: the scenario as the core takes it.
        paces: factors on compute times. A choice's score is the mean over them, so that a choice which is good only
            without late workers does not win.
    """

    layers: Layers
    channels: Sequence[Channel]
    modes: Sequence[Mode]
    overhead_ps: int
    smallest_bytes: int
    spec: dict[str, Any]
    paces: Sequence[float] = (1.0,)

    @property
    def smallest_chunk(self) -> int:
        """The smallest chunk that is looked at."""
        return max(1, self.smallest_bytes, self.layers.bytes_below[-1] // MOST_CHUNKS)

    def messages(self, choice: Choice) -> int:
        """Return how many messages an iteration has."""
        sizes, chunk = self.layers.sizes_of(choice.cuts), choice.chunk_bytes
        return sum(1 if chunk is None else -(-size // chunk) for size in sizes)

    def fixed_ps(self, choice: Choice) -> float:
        """Return the cost of a message without bytes."""
        return self.channels[choice.channel].fixed_ps + self.layers.job.schedule.overhead_ps + self.extra_ps(choice)

    def extra_ps(self, choice: Choice) -> int:
        """Return the cost of a message beyond the scenario's own overhead: each of `depth` parts counts."""
        if choice.mode.level == "buckets":
            return 0
        return self.overhead_ps * self.channels[choice.channel].depth

    def allows(self, choice: Choice) -> bool:
        """Whether a runtime of that level can do it: DDP by itself cuts nothing."""
        own = self.channels[0].depth
        if choice.mode.order == "caramel" and len(choice.cuts) >= MOST_PACKED:
            return False
        return choice.mode.level != "buckets" or self.channels[choice.channel].depth == own

    def bound_ps(self, choice: Choice) -> float:
        """Return a lower bound of the choice's iteration time.

        With the barrier: a bucket and those after it are sent no earlier than when the bucket is ready. Without:
        compute, the channel, and the way from a bucket's arrival through both passes back to its gradient.
        """
        fixed, slope, chunk = self.fixed_ps(choice), self.channels[choice.channel].ps_per_byte, choice.chunk_bytes
        layers = self.layers
        best, behind = 0.0, 0.0
        for first, last in layers.stretches(choice.cuts):
            size = layers.bytes_below[last] - layers.bytes_below[first]
            takes = fixed * (1 if chunk is None else -(-size // chunk)) + slope * size
            behind += takes
            # Buckets nearer to the input side are ready later.
            best = max(
                best, (layers.ready_ps[first] + behind) if choice.mode.barrier else layers.around_ps[first] + takes
            )
        return max(best, behind, float(layers.compute_ps))

    @cached_property
    def least_ps(self) -> float:
        """Lower bound of every choice: compute, the whole gradient in one exchange, and the critical path."""
        layers = self.layers
        whole_ps = min(channel.whole_ps for channel in self.channels)
        per_byte = whole_ps / layers.bytes_below[-1]
        path = max(around + per_byte * size for around, size in zip(layers.around_ps, layers.sizes, strict=True))
        return max(float(layers.compute_ps), whole_ps, path)


@dataclass
class Search:
    """Scores of choices, and the search for the best.

    Attributes:
        scores: mean iteration time in picoseconds of every choice that has been run.
        pruned: choices that a bound has ruled out.
    """

    space: Space
    scores: dict[Choice, float] = field(default_factory=dict)
    pruned: int = 0

    def __post_init__(self) -> None:
        spec = json.loads(json.dumps({**self.space.spec, "traffic": []}))
        (job,) = spec["jobs"]
        times = ("forward_ps", "backward_ps", "update_ps")
        paced = [
            [{**row, **{key: round(pace * row[key]) for key in times}} for row in job["layers"]]
            for pace in self.space.paces
        ]
        self._layers = [json.dumps(rows) for rows in paced]
        self._gates = [Gates(rows) for rows in paced]
        self._plain = json.dumps(job["layers"]), Gates(job["layers"])
        self._packed: dict[Choice, list[tuple[int, Gate | None]]] = {}
        job.update(
            layers="@",
            hosts=[0, 1],
            iterations=ITERATIONS,
            schedule={**job["schedule"], "credit": 1},
            collective={**job["collective"], "algorithm": {"kind": "ring"}, "depth": 1, "reduction_rate_bps": None},
            compute={**job["compute"], "noise_ppm": 0, "straggler": None},
        )
        as_one_channel(spec)
        self._spec = spec

    def packed(self, choice: Choice) -> list[tuple[int, Gate | None]]:
        """Return the buckets of a choice in Caramel's order, each with its gate: the last event before its place.

        A bucket is a number of `Layers.stretches`. An event before its place does not send it too early: the bucket
        waits for those before it in the order.
        """
        if choice not in self._packed:
            rows, gates = self._plain
            number_of = {}
            for number, (first, last) in enumerate(self.space.layers.stretches(choice.cuts)):
                number_of.update(dict.fromkeys(self.space.layers.places[first:last], number))
            sent = _core.planned(self._input(choice, {"kind": "caramel"}).replace('"@"', rows, 1), 0)
            self._packed[choice] = [
                (number_of[members[0]], gates.before(offset_ps, members)) for members, offset_ps in sent
            ]
        return self._packed[choice]

    def _order(self, choice: Choice, gates: Gates) -> dict[str, Any]:
        """Return the order of a choice as the core takes it, for layers with these events."""
        order = choice.mode.order
        if order != "caramel":
            return {"kind": order, **({"queues": None} if order == "priority" else {})}
        layers, buckets = self.space.layers, []
        stretches = layers.stretches(choice.cuts)
        for number, gate in self.packed(choice):
            members = layers.places[slice(*stretches[number])]
            buckets.append({"layers": members, "gate_ps": gates.opens_ps(gate)})
        return {"kind": "planned", "buckets": buckets}

    def _input(self, choice: Choice, order: dict[str, Any]) -> str:
        """Return a run of two hosts whose ring takes as long as the channel: 2 · (d/2) at the rate 1/b."""
        (job,) = self._spec["jobs"]
        channel = self.space.channels[choice.channel]
        schedule = {
            **job["schedule"],
            "order": order,
            "fusion": {"kind": "buckets", "layer_counts": self.space.layers.layer_counts(choice.cuts)},
            "chunk_bytes": choice.chunk_bytes,
            "barrier": choice.mode.barrier,
        }
        rate_bps = max(1, min(round(8e12 / max(channel.ps_per_byte, 1e-6)), MAX_FLUID_BPS))
        overhead_ps = round(self.space.fixed_ps(choice))
        cluster = {**self._spec["cluster"], "link": {"rate_bps": rate_bps, "delay_ps": 0, "efficiency_ppm": 1_000_000}}
        one = {**job, "schedule": {**schedule, "overhead_ps": overhead_ps}}
        return json.dumps({**self._spec, "jobs": [one], "cluster": cluster})

    def score(self, choices: Iterable[Choice]) -> None:
        """Run the choices that have no score yet."""
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.scores]
        for choice in new:
            look()
            times: list[int] = []
            for layers, gates in zip(self._layers, self._gates, strict=True):
                text = self._input(choice, self._order(choice, gates))
                output = _core.run(text.replace('"@"', layers, 1))
                times += json.loads(output.summary_json)["jobs"][0]["iteration_time_ps"]
            self.scores[choice] = float(sum(times) / len(times))

    def key(self, choice: Choice) -> tuple[float, int, int, tuple[int, ...], int]:
        """Return the sort key of choices: time, then number of messages; the rest makes the order total.

        Times within a nanosecond are equal: each message is rounded, and that is no reason to send more of them.
        """
        messages = self.space.messages(choice)
        return round(self.scores[choice] / 1000), messages, choice.channel, choice.cuts, choice.chunk_bytes or 0

    def best(self, mode: Mode, channel: int | None = None) -> Choice | None:
        """Return the best choice known of a mode."""
        known = [c for c in self.scores if c.mode == mode and channel in (None, c.channel)]
        return min(known, key=self.key, default=None)

    def grid(self) -> None:
        """Score the coarse grid, lowest bounds first, without the choices that a bound rules out."""
        for mode in self.space.modes:
            found = sorted(grid(self.space, mode), key=lambda choice: (self.space.bound_ps(choice), choice.cuts))
            for some in _batches(found):
                best = self.best(mode)
                limit = float("inf") if best is None else self.scores[best]
                kept = [choice for choice in some if self.space.bound_ps(choice) < limit]
                self.pruned += len(some) - len(kept)
                self.score(kept)

    def descend(self, mode: Mode, budget: int) -> None:
        """Improve the best of a mode by local search, with at most `budget` runs."""
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
    """Return the coarse grid of a mode: DDP's buckets at several caps, even ones, one for all, one a layer."""
    layers = space.layers
    cuts = [layers.capped(DDP_CAP, DDP_FIRST_CAP), *(layers.capped(cap) for cap in CAPS), *map(layers.even, EVEN)]
    cuts.append(tuple(range(1, layers.count)))
    # DDP's own buckets are tried unchanged, however small the last one is.
    partitions = dict.fromkeys([cuts[0], *(layers.not_below(each, space.smallest_bytes) for each in cuts)])
    chunks: list[int | None] = [None]
    if mode.order == "priority":
        # First in, first out gains nothing from chunks; Caramel sends its batches whole.
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
    """Return how many choices the grid of a mode has at most."""
    chunks = 2 + MOST_CHUNKS.bit_length() if mode.order == "priority" else 1
    return channels * (2 + len(CAPS) + len(EVEN)) * chunks


def neighbours(space: Space, choice: Choice) -> Iterator[Choice]:
    """Yield choices that differ in one thing: channel, chunk, an edge of a bucket, a bucket more or less."""
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
        # Equal parts of the largest bucket, and a little more or less.
        sizes = [None, *(-(-largest // parts) for parts in EQUAL_PARTS)]
        sizes += [] if chunk is None else [2 * chunk, chunk // 2, chunk * 4 // 3, chunk * 3 // 4]
        for size in sizes:
            if size is None or space.smallest_chunk <= size < largest:
                yield replace(choice, chunk_bytes=size)

    def with_cuts(new: Iterable[int]) -> Choice:
        return replace(choice, cuts=layers.not_below(sorted(set(new)), space.smallest_bytes))

    for index in range(len(cuts)):
        yield with_cuts([*cuts[:index], *cuts[index + 1 :]])
    # Of a large bucket, about eight layers are tried as new edges.
    for first, last in layers.stretches(cuts):
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
    """Score the grid, then improve the best of every mode with so many runs of local search each."""
    modes = search.space.modes
    search.grid()
    for number, mode in enumerate(modes):
        if progress is not None:
            progress((number + 1) / (len(modes) + 1))
        search.descend(mode, budget)
