"""The network topology of a scenario: numbers of hosts and switches, edge switch of each host, routes, names of links.

The core computes the sizes of star, leaf-spine and Clos networks (`crates/train/src/fabric.rs`). Custom networks are
computed here, after `cables` has checked them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from gradtide import units
from gradtide.scenario.core import network as core

MAX_CABLES = 1_000_000_000
"""Maximum number of cables between switches. Each cable is two links, and the core numbers all links with 31 bits."""
_HOST = re.compile(r"h(0|[1-9]\d{0,8})")


def host_number(name: str) -> int | None:
    """Return the number of a host named h0, h1, …; `None` for any other name."""
    match = _HOST.fullmatch(name)
    return int(match[1]) if match else None


class Cable(NamedTuple):
    """A cable between the nodes named `a` and `b`, which is two links, one in each direction."""

    a: str
    b: str
    rate_bps: int
    delay_ps: int

    def written(self) -> dict[str, str]:
        """Return the cable as an entry of `cluster.topology.links`."""
        rate, delay = units.format_rate(self.rate_bps), units.format_time(self.delay_ps)
        return {"a": self.a, "b": self.b, "rate": rate, "delay": delay}


class Reach(NamedTuple):
    """Worst case of each property over a set of routes. The three values may be from different routes.

    Attributes:
        hops: number of links of the longest route.
        rate_bps: rate of the slowest link, bits per second.
        delay_ps: longest delay of a link, picoseconds.
    """

    hops: int
    rate_bps: int
    delay_ps: int

    def joined(self, other: "Reach") -> "Reach":
        """Return the reach of the routes of `self` and `other` together."""
        return Reach(max(self.hops, other.hops), min(self.rate_bps, other.rate_bps), max(self.delay_ps, other.delay_ps))


Group = Collection[int]
"""Numbers of hosts that communicate: any of them may send to any other."""


def _worst(groups: Iterable[Group], reach: Callable[[Group], Reach], most: Reach) -> Reach:
    """Return the joined `reach` of all groups with several hosts; `most` (all routes) if there is no such group."""
    found: Reach | None = None
    for group in groups:
        if len(group) > 1:
            one = reach(group)
            found = one if found is None else found.joined(one)
        if found == most:
            break
    return most if found is None else found


@dataclass(frozen=True)
class Tree:
    """A star, leaf-spine or Clos network, with sizes computed by the core.

    Attributes:
        keys: keys of the core's `TopologySpec` except its kind and the links between switches.
        host_link: rate in bits per second and delay in picoseconds of the hosts' links.
        fabric_link: rate in bits per second and delay in picoseconds of the links between switches.
        ports: number of ports per switch. All switches have equally many, but may leave some unused.
        hops: number of links of the longest route.
        shared: largest number of hosts whose traffic can share a link: the hosts below a child of a root switch.
    """

    kind: str
    keys: Mapping[str, Any] = field(hash=False)
    host_link: tuple[int, int]
    fabric_link: tuple[int, int]
    host_count: int
    switch_count: int
    cable_count: int
    ports: int
    hops: int
    hosts_per_edge: int
    shared: int

    @classmethod
    def counted(cls, kind: str, keys: Mapping[str, Any], link: tuple[int, int], trunk: tuple[int, int]) -> "Tree":
        """Return the network whose hosts have links `link`, and whose switches are connected by links `trunk`."""
        return cls(kind, keys, link, trunk, *core.shape(core.tree(kind, keys, trunk), link))

    def reach(self, groups: Iterable[Group]) -> Reach:
        """Return the reach of the routes within groups of hosts; if no group has two hosts, of all routes."""
        links = (self.host_link, self.fabric_link)
        most = Reach(self.hops, min(rate_bps for rate_bps, _ in links), max(delay_ps for _, delay_ps in links))
        if self.kind == "star":
            return most
        return _worst(groups, lambda group: self._reach(group, most), most)

    def _reach(self, group: Group, most: Reach) -> Reach:
        if len({self.edge_of(host) for host in group}) == 1:
            return Reach(2, *self.host_link)
        # Routes between hosts below the same child of the root do not cross the root, so they are two links shorter.
        is_below = self.kind == "clos3" and len({host // self.shared for host in group}) == 1
        return most._replace(hops=most.hops - 2) if is_below else most

    def has_choice(self, groups: Iterable[Group]) -> bool:
        """Return whether there are several shortest routes between two hosts of a group."""
        return any(self._parents(group) > 1 for group in groups)

    def _parents(self, group: Group) -> int:
        """Return the largest number of uplinks of a switch on routes within a group."""
        if self.kind == "star" or len({self.edge_of(host) for host in group}) < 2:
            return 1
        if self.kind == "leaf_spine":
            return int(self.keys["spines"])
        # Half of the ports of an aggregation switch of a clos3 are uplinks (crates/net/src/topology/fat_tree.rs).
        half = int(self.keys["ports"]) // 2
        above_edge = int(half * Fraction(*self.keys["bisection"]))
        is_below = self.kind == "clos2" or len({host // self.shared for host in group}) < 2
        return above_edge if is_below else max(above_edge, half)

    @property
    def mean_host_rate_bps(self) -> Fraction:
        """Rate of a host's link."""
        return Fraction(self.host_link[0])

    @property
    def edge_count(self) -> int:
        """Number of switches with hosts."""
        return -(-self.host_count // self.hosts_per_edge)

    def edge_of(self, host: int) -> int:
        """Return the index of a host's edge switch."""
        return host // self.hosts_per_edge

    def uplinks_bps(self, _edge: int) -> int | None:
        """Return the total rate of a leaf switch's uplinks, bits per second; `None` unless the kind is leaf_spine."""
        return int(self.keys["spines"]) * self.fabric_link[0] if self.kind == "leaf_spine" else None

    def link_names(self) -> list[str]:
        """Return the names of all links, without duplicates."""
        return core.link_names(self.topology(), self.host_link)

    def topology(self) -> dict[str, Any]:
        """Return the core's input for the topology."""
        return core.tree(self.kind, self.keys, self.fabric_link)

    @property
    def end_count(self) -> int:
        """Number of hosts in the network that an engine simulates."""
        return self.host_count

    def written(self) -> dict[str, Any]:
        """Return the table `cluster.topology` of the resolved scenario."""
        table = {"kind": self.kind, **self.keys}
        if self.kind == "leaf_spine":
            rate_bps, delay_ps = self.fabric_link
            table["fabric_link"] = {"rate": units.format_rate(rate_bps), "delay": units.format_time(delay_ps)}
        elif self.kind != "star":
            table["bisection"] = str(Fraction(*table["bisection"]))
        return table


def star(host_count: int, link: tuple[int, int]) -> Tree:
    """Return a star: `host_count` hosts on one switch. A link is a rate in bit/s and a delay in picoseconds."""
    return Tree.counted("star", {"hosts": host_count}, link, link)


def leaf_spine(
    leaves: int, hosts_per_leaf: int, spines: int, host_link: tuple[int, int], fabric_link: tuple[int, int]
) -> Tree:
    """Return a leaf-spine network, in which every leaf switch has a link to every spine switch."""
    keys = {"leaves": leaves, "hosts_per_leaf": hosts_per_leaf, "spines": spines}
    return Tree.counted("leaf_spine", keys, host_link, fabric_link)


def clos(kind: str, ports: int, bisection: Fraction, link: tuple[int, int]) -> Tree:
    """Return a Clos network of kind clos2 or clos3 with k-port switches, k even, and bisection ratio r.

    (k/2)·r must be a whole number.

    Source:
        Zhang et al. (2017), section 2.3 and table 1.
    """
    keys = {"ports": ports, "bisection": [bisection.numerator, bisection.denominator]}
    return Tree.counted(kind, keys, link, link)


def nearest_ratios(parts: Fraction, wanted: Fraction) -> list[Fraction]:
    """Return the ratios next to `wanted`, below and above, for which ratio x `parts` is a whole number of switches."""
    below = math.floor(parts * wanted)
    return [count / parts for count in (below, below + 1) if 0 < count <= parts]


@dataclass(frozen=True)
class Wiring:
    """A custom network: its cables in the order of the file. The hosts h0, h1, … have one cable each."""

    host_count: int
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]

    kind = "custom"

    @property
    def end_count(self) -> int:
        """Number of hosts in the network that an engine simulates."""
        return self.host_count

    @property
    def switch_count(self) -> int:
        """Number of switches."""
        return len(self.switches)

    @property
    def cable_count(self) -> int:
        """Number of cables; each is two links."""
        return len(self.cables)

    @property
    def ports(self) -> int:
        """Largest number of cables of a switch."""
        ends = Counter(end for cable in self.cables for end in cable[:2] if host_number(end) is None)
        return max(ends.values(), default=0)

    @property
    def hosts_per_edge(self) -> int | None:
        """Number of hosts per edge switch; `None` if edge switches have different numbers of hosts."""
        sizes = set(Counter(self._edges).values())
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def shared(self) -> int:
        """Upper bound of the number of hosts whose traffic can share a link."""
        return self.host_count

    def reach(self, groups: Iterable[Group]) -> Reach:
        """Return the reach of the routes within groups of hosts; if no group has two hosts, of all routes."""
        return self._crossed(groups)[0]

    def crossed(self, groups: Iterable[Group]) -> list[Cable]:
        """Return the cables on routes within groups of hosts; if no group has two hosts, all cables."""
        cables = self._crossed(groups)[1]
        return [self.cables[place] for place in sorted(cables)]

    def has_choice(self, groups: Iterable[Group]) -> bool:
        """Return whether there are several shortest routes between two hosts of a group."""
        among = {frozenset(self._ends(group)) for group in groups}
        return any(len(places) > 1 for ends in among for _, ahead in self._routes(ends) for places in ahead)

    def _ends(self, group: Group) -> Counter[str]:
        """Return the number of the group's hosts by edge switch. A host that has no switch is its own edge switch."""
        return Counter(self.switches[edge] if edge >= 0 else f"h{-1 - edge}" for edge in map(self.edge_of, group))

    def _crossed(self, groups: Iterable[Group]) -> tuple[Reach, Iterable[int]]:
        """Return the reach of the routes within groups, and the indices of the cables on these routes."""
        found: set[int] = set()
        hops = 0
        seen: set[frozenset[str]] = set()
        for group in groups:
            if len(group) < 2:
                continue
            found.update(self._host_cables[host] for host in group)
            ends = self._ends(group)
            hops = max(hops, 2 if any(count > 1 for count in ends.values()) else 0)
            among = frozenset(ends)
            if len(among) > 1 and among not in seen:
                seen.add(among)
                hops = max(hops, self._mark_routes(among, found))
        cables = found or range(len(self.cables))
        rates, delays = zip(*{self.cables[place][2:] for place in cables}, strict=True)
        return Reach(hops or self.hops, min(rates), max(delays)), cables

    def _mark_routes(self, ends: frozenset[str], found: set[int]) -> int:
        """Add the cables of all shortest routes among `ends` to `found`; return the hosts' longest route in links."""
        longest = 0
        for distance, ahead in self._routes(ends):
            found.update(place for places in ahead for place in places)
            start = next(iter(distance))
            between = (distance[end] + sum(host_number(one) is None for one in (start, end)) for end in ends)
            longest = max(longest, *between)
        return longest

    def _routes(self, ends: frozenset[str]) -> Iterator[tuple[dict[str, int], list[list[int]]]]:
        """Yield, for each destination in `ends`, all shortest routes to it from the others, by breadth-first search.

        Each item is a pair. The first element maps every node to its distance in links from the destination, which is
        the first key. The second lists, for each node on a route, the indices of the cables to its next hops.
        """
        for start in ends:
            distance, behind = {start: 0}, []
            frontier = [start]
            for node in frontier:
                behind.append(node)
                for other, _ in self._cables_of[node]:
                    # Hosts do not forward.
                    if other not in distance and (host_number(other) is None or other in ends):
                        distance[other] = distance[node] + 1
                        frontier.append(other)
            on_route, ahead = set(ends), []
            for node in reversed(behind):
                if node in on_route:
                    nearer = [one for one in self._cables_of[node] if distance.get(one[0]) == distance[node] - 1]
                    on_route.update(other for other, _ in nearer)
                    ahead.append([place for _, place in nearer])
            yield distance, ahead

    @cached_property
    def _cables_of(self) -> dict[str, list[tuple[str, int]]]:
        """Adjacency list: for each node, its neighbours and the indices of the cables to them."""
        found: dict[str, list[tuple[str, int]]] = {name: [] for name in self.switches}
        found |= {f"h{host}": [] for host in range(self.host_count)}
        for place, cable in enumerate(self.cables):
            found[cable.a].append((cable.b, place))
            found[cable.b].append((cable.a, place))
        return found

    @cached_property
    def _host_cables(self) -> list[int]:
        return [self._cables_of[f"h{host}"][0][1] for host in range(self.host_count)]

    @property
    def mean_host_rate_bps(self) -> Fraction:
        """Mean rate of the hosts' links."""
        rates = (c.rate_bps * ((host_number(c.a) is not None) + (host_number(c.b) is not None)) for c in self.cables)
        return Fraction(sum(rates), self.host_count)

    @property
    def edge_count(self) -> int:
        """Number of switches with hosts."""
        return len(set(self._edges))

    def edge_of(self, host: int) -> int:
        """Return the index of a host's switch; the negative number -1 - `host` if the host has no switch."""
        return self._edges[host]

    def uplinks_bps(self, edge: int) -> int | None:
        """Return the total rate of a switch's links to other switches, bits per second; `None` without a switch."""
        return self._uplinks_bps[self.switches[edge]] if edge >= 0 else None

    @cached_property
    def _uplinks_bps(self) -> Counter[str]:
        rates: Counter[str] = Counter()
        for cable in self.cables:
            if host_number(cable.a) is None and host_number(cable.b) is None:
                rates[cable.a] += cable.rate_bps
                rates[cable.b] += cable.rate_bps
        return rates

    @cached_property
    def _edges(self) -> list[int]:
        number = {name: index for index, name in enumerate(self.switches)}
        edges = list(range(-1, -1 - self.host_count, -1))
        for cable in self.cables:
            for host, switch in ((cable.a, cable.b), (cable.b, cable.a)):
                index = host_number(host)
                if index is not None and switch in number:
                    edges[index] = number[switch]
        return edges

    def distances(self, start: str) -> dict[str, int]:
        """Return the distance from `start` in links, for each node that can be reached."""
        distance, frontier = {start: 0}, [start]
        for node in frontier:
            for other, _ in self._cables_of[node]:
                if other not in distance:
                    distance[other] = distance[node] + 1
                    frontier.append(other)
        return distance

    @cached_property
    def hops(self) -> int:
        """Number of links of the longest route."""
        first_hosts = {edge: f"h{host}" for host, edge in reversed(list(enumerate(self._edges)))}.values()
        hosts = [f"h{host}" for host in range(self.host_count)]
        reach = [self.distances(start) for start in first_hosts]
        return max((max(distance[host] for host in hosts) for distance in reach), default=1)

    def link_names(self) -> list[str]:
        """Return the names of all links."""
        return core.link_names(self.topology(), self.cables[0][2:])

    def topology(self) -> dict[str, Any]:
        """Return the core's input for the topology."""
        number = {name: self.host_count + index for index, name in enumerate(self.switches)}

        def node(name: str) -> int:
            host = host_number(name)
            return number[name] if host is None else host

        cables = ((node(cable.a), node(cable.b), cable[2:]) for cable in self.cables)
        return core.custom(self.host_count, self.switches, cables)

    def written(self) -> dict[str, Any]:
        """Return the table `cluster.topology` of the resolved scenario."""
        links = [cable.written() for cable in self.cables]
        return {"kind": "custom", "hosts": self.host_count, "switches": list(self.switches), "links": links}


@dataclass(frozen=True)
class Nodes:
    """Nodes, i.e. machines with several GPUs. Hosts of jobs are GPUs; hosts of `cards` are network cards.

    Attributes:
        cards: the network between the network cards of all nodes.
        gpus: number of GPUs per node.
        nics: number of network cards per node, a divisor of `gpus`.
        scale_up: rate in bits per second and delay in picoseconds of the link between a GPU and its node's switch.
    """

    cards: Tree | Wiring
    gpus: int
    nics: int
    scale_up: tuple[int, int]

    @property
    def kind(self) -> str:
        """Kind of the network between nodes."""
        return self.cards.kind

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.cards.host_count // self.nics

    @property
    def host_count(self) -> int:
        """Number of GPUs."""
        return self.node_count * self.gpus

    @property
    def end_count(self) -> int:
        """Number of hosts in the network that an engine simulates: all network cards, and a scale-up port per GPU."""
        return self.cards.host_count + self.host_count

    @property
    def switch_count(self) -> int:
        """Number of switches, including the scale-up switch of each node."""
        return self.cards.switch_count + self.node_count

    @property
    def cable_count(self) -> int:
        """Number of cables, including a scale-up cable per GPU."""
        return self.cards.cable_count + self.host_count

    @property
    def ports(self) -> int:
        """Number of ports of a switch between nodes."""
        return self.cards.ports

    @property
    def hops(self) -> int:
        """Number of links of the longest route."""
        return max(2, self.cards.hops)

    @property
    def hosts_per_edge(self) -> int:
        """Number of GPUs per node."""
        return self.gpus

    @property
    def shared(self) -> int:
        """Largest number of hosts whose traffic can share a link."""
        return min(self.host_count, max(1, self.cards.shared) * (self.gpus // self.nics))

    def reach(self, groups: Iterable[Group]) -> Reach:
        """Return the reach of the routes within groups of GPUs; if no group has two GPUs, of all routes."""
        within = Reach(2, *self.scale_up)
        most = within.joined(self.cards.reach(()))
        return _worst(groups, lambda group: self._reach(group, within), most)

    def _reach(self, group: Group, within: Reach) -> Reach:
        nodes = Counter(gpu // self.gpus for gpu in group)
        if len(nodes) == 1:
            return within
        between = self.cards.reach(self.between_cards([group]))
        return between if max(nodes.values()) == 1 else between.joined(within)

    def between_cards(self, groups: Iterable[Group]) -> Iterator[Group]:
        """Yield, for each group of GPUs on several nodes, the network cards that the GPUs use."""
        for group in groups:
            if len({gpu // self.gpus for gpu in group}) > 1:
                # crates/net/src/nodes.rs chooses the network card of a GPU by the same formula.
                yield frozenset(gpu * self.nics // self.gpus for gpu in group)

    def has_choice(self, groups: Iterable[Group]) -> bool:
        """Return whether there are several shortest routes between two network cards of a group."""
        return self.cards.has_choice(self.between_cards(groups))

    @property
    def mean_host_rate_bps(self) -> Fraction:
        """Mean rate per GPU of the network cards' links."""
        return self.cards.mean_host_rate_bps * self.nics / self.gpus

    @property
    def edge_count(self) -> int:
        """Number of switches with hosts, including the scale-up switch of each node."""
        return self.cards.edge_count + self.node_count

    def edge_of(self, host: int) -> int:
        """Return the index of a GPU's node."""
        return host // self.gpus

    def uplinks_bps(self, _edge: int) -> int | None:
        """Return `None`: `Scenario.expected_traffic` does not limit the bytes that leave a node."""
        return None

    def link_names(self) -> list[str]:
        """Return the names of all links, without duplicates."""
        any_link = self.cards.cables[0][2:] if isinstance(self.cards, Wiring) else self.cards.host_link
        return core.link_names(self.topology(), any_link, core.node(self.gpus, self.nics, self.scale_up))

    def topology(self) -> dict[str, Any]:
        """Return the core's input for the network between nodes."""
        return self.cards.topology()

    def written(self) -> dict[str, Any]:
        """Return the table `cluster.topology` of the resolved scenario."""
        return self.cards.written()


Fabric = Tree | Wiring | Nodes


def dealt_out(hosts: Iterable[int], fabric: Fabric) -> list[int]:
    """Return hosts in round-robin order over their edge switches, so that neighbours are on different switches."""
    placed: Counter[int] = Counter()
    keyed = []
    for host in hosts:
        edge = fabric.edge_of(host)
        keyed.append((placed[edge], edge, host))
        placed[edge] += 1
    return [host for *_, host in sorted(keyed, key=lambda entry: entry[:2])]
