"""Bill of materials of a network for a given number of nodes: switches, ports, cables and crossbars.

The core computes the counts; nothing is simulated. A *cable* is two links, one in each direction.

Source:
    Zhang et al. (2017), section 2.3 and table 1, whose r is the bisection ratio and k the ports of a switch.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradtide import words
from gradtide.scenario.fabric import Tree, clos, leaf_spine

KINDS = ("clos2", "clos3", "leaf_spine", "star")

MOST_HOSTS = 2
"""Maximum ratio of host ports to requested nodes. Bisection ratios that need more host ports are not offered."""

MAX_PORTS = 1024
"""Largest number of ports of a switch in a Clos or leaf-spine network; scenarios have the same limit."""


SOLD = (
    (1, (8, 16, 24, 48)),
    (10, (16, 24, 48, 64)),
    (25, (16, 48, 64, 128)),
    (50, (32, 64, 128)),
    (100, (16, 32, 64, 128, 256)),
    (200, (32, 64, 128, 256)),
    (400, (32, 64, 128)),
    (800, (64, 144)),
)
"""Port counts of commercial switches, by port rate in Gbit/s. A port that splits into four counts as four ports.

Sources: fixed-port switches of many vendors (1G); Broadcom Trident+ with 64 x 10G; NVIDIA SN2100 with 16 x 100G,
32 x 50G or 64 x 25G, SN2410 with 48 x 25G, SN2700 with 32 x 100G; Broadcom Tomahawk 1 to 5 with 32, 64, 128, 256 and
512 ports of 100G, or half as many of twice the rate; NVIDIA Quantum-2 with 64 x 400G and Quantum-X800 with 144 x 800G.
"""


def sold_ports(ports: int, rate_bps: int) -> int | None:
    """Return the ports of the smallest switch on sale with at least `ports` ports at this rate; None if there is none.

    For a rate between two rates of `SOLD`, switches of the faster rate are searched.

    Example:
        >>> sold_ports(18, 100 * 10**9), sold_ports(18, 25 * 10**9), sold_ports(600, 100 * 10**9)
        (32, 48, None)
    """
    sizes = next((sizes for gbps, sizes in SOLD if rate_bps <= gbps * 10**9), ())
    return next((size for size in sizes if size >= ports), None)


_LINK = (1, 0)
"""Placeholder for a link's rate (bit/s) and delay (ps), on which the numbers of switches and cables do not depend."""


class NoFabricError(ValueError):
    """No network satisfies the request; the message gives the reason."""


@dataclass(frozen=True)
class Fabric:
    """A network of identical switches with `hosts` host ports, to which `nodes` nodes are connected.

    Trunks are the cables between switches; `topology` contains the keys of `cluster.topology`.
    """

    kind: str
    nodes: int
    hosts: int
    ports: int
    bisection: Fraction
    switches: int
    trunks: int
    topology: dict[str, Any]

    @property
    def cables(self) -> int:
        """Number of cables, with one per node. If all host ports are used, it equals the number of links in table 1."""
        return self.trunks + self.nodes

    @property
    def crossbars(self) -> int:
        """Number of 2x2 crossbars in all switches: (k/2)² per switch with k ports (section 2.3)."""
        return self.switches * (self.ports // 2) ** 2

    @property
    def unused_ports(self) -> int:
        """Number of switch ports without a cable."""
        return self.switches * self.ports - 2 * self.trunks - self.nodes


def fit(kind: str, nodes: int, bisection: Fraction, multiple: int = 1) -> Fabric:
    """Return the network with the smallest switches that has room for `nodes`.

    Switches have an even number of ports. If the bisection ratio gives no whole number of switches, larger switches are
    tried, as long as the network has room for at most twice the nodes.

    Args:
        kind: one of `KINDS`. A leaf of a leaf-spine network uses all of its ports: at a ratio of 1/3, a quarter of them
            lead to spines. A leaf of a Clos network has half of its ports for hosts at any ratio.
        nodes: at least 2.
        multiple: the number of hosts is a multiple of this number, for example of the network cards per machine.
        bisection: above 0 and at most 1; 1 for a star.

    Raises:
        NoFabricError: if there is no such network; the message names the ratio.

    Example:
        >>> net = fit("clos3", 1024, Fraction(1, 4))
        >>> net.ports, net.switches, net.cables, net.crossbars
        (16, 176, 1536, 11264)
    """
    if nodes < 2:
        raise NoFabricError(f"{nodes} nodes need no network")
    if not 0 < bisection <= 1:
        raise NoFabricError(f"a bisection ratio is above 0 and at most 1, not {bisection}")
    if kind == "star":
        if bisection != 1:
            raise NoFabricError(f"a star has a bisection ratio of 1, not {bisection}")
        return Fabric(kind, nodes, nodes, nodes + nodes % 2, bisection, 1, 0, {"kind": "star", "hosts": nodes})
    first, parts_machines = None, False
    is_clos = kind != "leaf_spine"
    for ports in range(2, MAX_PORTS + 1, 2):
        fabric = _clos(kind, ports, nodes, bisection) if is_clos else _leaf_spine(ports, nodes, bisection)
        if fabric is None or fabric.hosts < nodes:
            has_room = is_clos and clos(kind, ports, Fraction(1), _LINK).host_count >= nodes
            first = first or (ports if has_room else None)
            continue
        if fabric.hosts > max(MOST_HOSTS * nodes, 8):
            break
        if fabric.hosts % multiple == 0:
            return fabric
        parts_machines = True
    if parts_machines:
        raise NoFabricError(
            f"{_name(kind, bisection)} has no number of hosts for {nodes} network cards that is a multiple of "
            f"{multiple}, the cards of a node"
        )
    if first is None:
        raise NoFabricError(
            f"{words.fabric(kind)} of switches of at most {MAX_PORTS} ports has no room for {nodes} nodes"
        )
    raise NoFabricError(
        f"{_name(kind, bisection)} for {nodes} nodes has no whole number of switches: with {first}-port switches there "
        f"would be {float(bisection * (first // 2)):.3g} above each edge switch"
    )


def _name(kind: str, bisection: Fraction) -> str:
    return words.fabric(kind, str(bisection))


def crossbars_of_table_1(kind: str, nodes: int, bisection: Fraction) -> float:
    """Return the number of 2x2 crossbars of a Clos network of exactly `nodes` hosts; k need not be whole (fig. 6).

    Args:
        kind: clos2 or clos3.
        nodes: N = k²/2 (clos2) or k³/4 (clos3), where k is the number of ports per switch.
        bisection: r. By table 1, k/2·(2+r) (clos2) or k²/4·(2+3r) (clos3) switches have (k/2)² crossbars each.
    """
    r = float(bisection)
    if kind == "clos2":
        ports = math.sqrt(2 * nodes)
        return ports / 2 * (2 + r) * (ports / 2) ** 2
    ports = math.exp(math.log(4 * nodes) / 3)
    return ports**2 / 4 * (2 + 3 * r) * (ports / 2) ** 2


def _clos(kind: str, ports: int, nodes: int, bisection: Fraction) -> Fabric | None:
    if (bisection * ports / 2).denominator != 1:
        return None
    topology = {"kind": kind, "ports": ports, "bisection": str(bisection)}
    return _fabric(clos(kind, ports, bisection, _LINK), nodes, ports, bisection, topology)


def _leaf_spine(ports: int, nodes: int, bisection: Fraction) -> Fabric | None:
    # A leaf has `up` ports to spines and `down` ports to hosts, in the bisection ratio. A spine has one port per leaf.
    step = ports // (bisection.numerator + bisection.denominator)
    down, up = step * bisection.denominator, step * bisection.numerator
    if not step or -(-nodes // down) > ports:
        return None
    leaves = -(-nodes // down)
    topology = {"kind": "leaf_spine", "leaves": leaves, "hosts_per_leaf": down, "spines": up}
    return _fabric(leaf_spine(leaves, down, up, _LINK, _LINK), nodes, ports, bisection, topology)


def _fabric(tree: Tree, nodes: int, ports: int, bisection: Fraction, topology: dict[str, Any]) -> Fabric:
    trunks = tree.cable_count - tree.host_count
    return Fabric(tree.kind, nodes, tree.host_count, ports, bisection, tree.switch_count, trunks, topology)
