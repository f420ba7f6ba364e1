"""When background flows start and between which hosts: at random, as incasts or in bursts.

Poisson flows are those of Gao (2020): drawn with CPython's `random.Random` in its order, so that seeds 0, 1 and 2
give the flows of the thesis byte for byte.
"""

import hashlib
import math
import random
from array import array
from dataclasses import dataclass, replace
from fractions import Fraction

from gradtide.traffic.flows import BackgroundFlows, background_flows
from gradtide.traffic.sizes import Sizes

_THESIS_SEED = 123456789876
"""The thesis adds this to the number of a run to seed it; the published flows depend on it."""

_NS_PER_S = 1e9
_PS_PER_NS = 1000


@dataclass(frozen=True)
class Poisson:
    """Flows that arrive at random between random pairs of hosts.

    Attributes:
        name: key of the flows in the scenario (`traffic.NAME`).
        sizes: how large they are.
        flows_per_s: mean rate of all hosts together, over the whole time.
        host_count: hosts of the cluster, at least 2.
        until_ps: flows start before this.
        root_seed: of the source's own generator.
        band: band on the network.
        on_ps: length of a burst; 0 if flows arrive all the time.
        off_ps: silence after a burst.

    Source:
        Gao (2020), chapter 5, and its program: three seeds, for starts, sizes and pairs.
    """

    name: str
    sizes: Sizes
    flows_per_s: Fraction
    host_count: int
    until_ps: int
    root_seed: int
    band: int
    on_ps: int = 0
    off_ps: int = 0

    @property
    def expected_count(self) -> int:
        """Mean number of flows, rounded up."""
        if not self.on_ps:
            return math.ceil(self.flows_per_s * self.until_ps / 10**12)
        period_ps = self.on_ps + self.off_ps
        bursts, rest_ps = divmod(self.until_ps, period_ps)
        busy_ps = bursts * self.on_ps + min(rest_ps, self.on_ps)
        return math.ceil(self.flows_per_s * period_ps / self.on_ps * busy_ps / 10**12)

    @property
    def expected_bytes(self) -> int:
        """Mean payload of all flows together, rounded up."""
        return math.ceil(self.expected_count * self.sizes.mean_bytes)

    def draw(self) -> BackgroundFlows:
        """Draw the flows; equal sources give equal flows."""
        root = random.Random(self.root_seed)
        seeds = [root.randint(0, 100_000_000) for _ in range(3)]
        starts = self._starts_ps(random.Random(seeds[0]))
        generator = random.Random(seeds[1])
        sizes = [self.sizes.at(1.0 - generator.random()) for _ in starts]
        generator = random.Random(seeds[2])
        last = self.host_count - 1
        sources, sinks = array("I"), array("I")
        for _ in starts:
            src = generator.randint(0, last)
            dst = generator.randint(0, last)
            while dst == src:
                dst = generator.randint(0, last)
            sources.append(src)
            sinks.append(dst)
        return background_flows(self.name, starts, sources, sinks, sizes, self.band)

    def _starts_ps(self, generator: random.Random) -> "array[int]":
        """Return the starts, whole nanoseconds as in the thesis.

        Bursts are a Poisson process in the time that is on, and that time is then spread out.
        """
        period_ps = self.on_ps + self.off_ps
        rate = float(self.flows_per_s * period_ps / self.on_ps) if self.on_ps else float(self.flows_per_s)
        until_ns, on_ns, period_ns = self.until_ps / _PS_PER_NS, self.on_ps / _PS_PER_NS, period_ps / _PS_PER_NS
        starts, busy_ns = array("Q"), 0.0
        while True:
            busy_ns += -math.log(1.0 - generator.random()) / rate * _NS_PER_S
            at_ns = busy_ns
            if self.on_ps:
                bursts, rest_ns = divmod(busy_ns, on_ns)
                at_ns = bursts * period_ns + rest_ns
            if at_ns >= until_ns:
                return starts
            starts.append(round(at_ns) * _PS_PER_NS)


def root_seed(run_seed: int, name: str, *, is_first: bool) -> int:
    """Return the seed of a source's own generator.

    The first random source of a scenario draws as the thesis does, from the run's number alone; every other from its
    name, so that adding one shifts no other.
    """
    if is_first:
        return _THESIS_SEED + run_seed
    digest = hashlib.sha256(f"traffic/{name}/{run_seed}".encode()).digest()
    return int.from_bytes(digest[:16], "big")


@dataclass(frozen=True)
class Incast:
    """Many hosts that send to one at the same instant, again and again.

    Attributes:
        name: key of the flows in the scenario (`traffic.NAME`).
        senders: indices of the sending hosts.
        dst: index of the receiving host.
        size_bytes: payload of each flow.
        every_ps: time from one incast to the next.
        start_ps: time of the first.
        until_ps: flows start before this.
        band: band on the network.
    """

    name: str
    senders: tuple[int, ...]
    dst: int
    size_bytes: int
    every_ps: int
    start_ps: int
    until_ps: int
    band: int

    @property
    def expected_count(self) -> int:
        """Number of flows."""
        return len(self.senders) * max(0, -(-(self.until_ps - self.start_ps) // self.every_ps))

    @property
    def expected_bytes(self) -> int:
        """Payload of all flows together."""
        return self.expected_count * self.size_bytes

    def draw(self) -> BackgroundFlows:
        """Return the flows."""
        times = range(self.start_ps, self.until_ps, self.every_ps)
        starts = [time for time in times for _ in self.senders]
        count = len(starts)
        return background_flows(
            self.name, starts, self.senders * len(times), [self.dst] * count, [self.size_bytes] * count, self.band
        )


@dataclass(frozen=True)
class Bursts:
    """Hosts that send to one, pause, and send again: the pattern of training (Kang et al. 2021, section 4).

    Attributes:
        name: key of the flows in the scenario (`traffic.NAME`).
        senders: indices of the sending hosts, each at its own pace.
        dst: index of the receiving host.
        size_bytes: payload of each burst.
        count: bursts of each host.
        idle_ps: time from the end of a burst to the start of the host's next.
        together: whether hosts wait for one another: that end is the end of the last burst.
        setup_ps: time from when a burst may open its connection to its first byte.
        start_ps: time of the first.
        band: band on the network.
    """

    name: str
    senders: tuple[int, ...]
    dst: int
    size_bytes: int
    count: int
    idle_ps: int
    together: bool
    setup_ps: int
    start_ps: int
    band: int

    @property
    def expected_count(self) -> int:
        """Number of flows, if the run is long enough."""
        return len(self.senders) * self.count

    @property
    def expected_bytes(self) -> int:
        """Payload of all flows together."""
        return self.expected_count * self.size_bytes

    def draw(self) -> BackgroundFlows:
        """Return the flows. Only the first of each host has a known start; the run decides the others."""
        count = self.expected_count
        sizes = [self.size_bytes] * count
        starts, sinks = [self.start_ps] * count, [self.dst] * count
        flows = background_flows(self.name, starts, self.senders * self.count, sinks, sizes, self.band)
        return replace(flows, idle_ps=self.idle_ps, together=self.together, setup_ps=self.setup_ps)
