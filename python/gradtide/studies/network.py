"""Changes to a scenario's workers or network, for all studies.

    workers, servers, hosts of a star      the star is resized to the hosts that the jobs need, in whole nodes
    topology                               the network is replaced; with nodes, its `hosts` counts network cards, so
                                           it is a multiple of the cards of a node
    rate, engine, collective               derived defaults are updated: links between switches, windows, depth

Derived defaults are updated because changes are applied to the keys that the user gave, not to the resolved keys.
"""

from collections.abc import Mapping
from typing import Any

from gradtide import units
from gradtide.scenario import Scenario
from gradtide.scenario.fabric import Nodes

_SIZES = ("workers", "servers", "model", "parallel")
"""Keys of `Scenario.replace` that can change the number of hosts that a job needs."""


def altered(base: Scenario, *, topology: Mapping[str, Any] | None = None, **changes: Any) -> Scenario:
    """Return a scenario with other workers, servers, network or any other key of `Scenario.replace`.

    A star with exactly as many hosts as the jobs need is resized with the jobs; a larger star grows only if necessary.
    On any other network the jobs must fit. If the number of workers changes, a job's list of hosts is dropped.

    Args:
        base: the scenario to change.
        topology: keys of `cluster.topology`; if the cluster has nodes, its `hosts` counts network cards. Default: the
            scenario's topology.
        changes: further changes by short name, as in `Scenario.replace`.

    Raises:
        ScenarioError: if a value is invalid, or the jobs do not fit on the network.
    """
    if topology is None and "link_rate" in changes and base.fabric.kind == "leaf_spine":
        topology = _with_its_spines(base)
    if topology is not None:
        return base.replace(topology=dict(topology), **changes)
    if base.fabric.kind != "star" or not any(name in changes for name in _SIZES):
        return base.replace(**changes)
    followed = base.replace(topology={"kind": "star"}, **changes)
    spare = card_count(base) - card_count(base.replace(topology={"kind": "star"}))
    if spare > 0 and card_count(base) > card_count(followed):
        return followed.replace(topology={"kind": "star", "hosts": card_count(base)})
    return followed


def run_of_network(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `run` that affect how messages cross the network."""
    return {key: keys["run"][key] for key in ("engine", "follow", "start_jitter", "seed") if key in keys["run"]}


def _with_its_spines(base: Scenario) -> dict[str, Any]:
    """Return the keys of a leaf-spine topology, with its current number of spines in place of a bisection ratio."""
    given = base.given["cluster"]["topology"]
    kept = {key: value for key, value in given.items() if key != "bisection"}
    return {**kept, "spines": base.fabric.written()["spines"]}


def has_rate_of_links(scenario: Scenario) -> bool:
    """Return whether `link.rate` has an effect. It has none if a custom topology gives the rate of every cable."""
    if scenario.fabric.kind != "custom":
        return True
    return altered(scenario, link_rate=units.format_rate(2 * scenario.link_rate_bps)).fabric != scenario.fabric


def card_count(scenario: Scenario) -> int:
    """Return the number of hosts in the topology, i.e. of network cards if the cluster has nodes with several GPUs."""
    fabric = scenario.fabric
    return fabric.cards.host_count if isinstance(fabric, Nodes) else fabric.host_count


def cards_per_node(scenario: Scenario) -> tuple[int, int]:
    """Return (workers per node, network cards per node); (1, 1) for a cluster without nodes."""
    fabric = scenario.fabric
    return (fabric.gpus, fabric.nics) if isinstance(fabric, Nodes) else (1, 1)


def on_one_switch(base: Scenario) -> Scenario:
    """Return the scenario with the same hosts and nodes, but on a single switch, where ranks share no link."""
    return altered(base, topology={"kind": "star", "hosts": card_count(base)})
