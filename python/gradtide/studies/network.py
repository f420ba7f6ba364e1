"""The one way in which a study changes the workers of a scenario or the network under them.

    workers, servers, hosts of a star      the star has as many hosts as the jobs need, in whole nodes
    topology                               its hosts are the network cards of whole nodes
    rate, engine, collective               defaults that follow from them follow: links between switches, windows, depth

Defaults follow because keys are changed as they were given, not as they were resolved.
"""

from collections.abc import Mapping
from typing import Any

from gradtide import units
from gradtide.scenario import Scenario
from gradtide.scenario.fabric import Nodes

_SIZES = ("workers", "servers", "model", "parallel")
"""Changes that can give a job another number of hosts."""


def altered(base: Scenario, *, topology: Mapping[str, Any] | None = None, **changes: Any) -> Scenario:
    """Return a scenario with other workers, servers, network or whatever else `Scenario.replace` names.

    A star that has exactly as many hosts as the jobs need grows and shrinks with them; one with more hosts grows where
    it must. On any other network the jobs have to fit. Workers of a new number have no named hosts.

    Args:
        base: what is changed.
        topology: keys of `cluster.topology`; its hosts are network cards where the cluster has nodes. Default: the
            scenario's own shape.
        changes: by short name, as `Scenario.replace` takes them.

    Raises:
        ScenarioError: if a value is wrong, or the jobs do not fit on the network.
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
    """Return of the keys of a scenario those of its run that say how messages cross the network."""
    return {key: keys["run"][key] for key in ("engine", "follow", "start_jitter", "seed") if key in keys["run"]}


def _with_its_spines(base: Scenario) -> dict[str, Any]:
    """Return the keys of a leaf-spine network that has as many spines at any rate of its links."""
    given = base.given["cluster"]["topology"]
    kept = {key: value for key, value in given.items() if key != "bisection"}
    return {**kept, "spines": base.fabric.written()["spines"]}


def has_rate_of_links(scenario: Scenario) -> bool:
    """Whether the rate of links is that of any link: a list of cables may state the rate of each."""
    if scenario.fabric.kind != "custom":
        return True
    return altered(scenario, link_rate=units.format_rate(2 * scenario.link_rate_bps)).fabric != scenario.fabric


def card_count(scenario: Scenario) -> int:
    """Return the hosts of a scenario's topology: network cards where the cluster has nodes."""
    fabric = scenario.fabric
    return fabric.cards.host_count if isinstance(fabric, Nodes) else fabric.host_count


def cards_per_node(scenario: Scenario) -> tuple[int, int]:
    """Return the workers and the network cards of a node; one of each where every host is a worker."""
    fabric = scenario.fabric
    return (fabric.gpus, fabric.nics) if isinstance(fabric, Nodes) else (1, 1)


def on_one_switch(base: Scenario) -> Scenario:
    """Return a scenario on one switch: the same hosts and nodes, and nothing between them that they share."""
    return altered(base, topology={"kind": "star", "hosts": card_count(base)})


def as_one_channel(spec: dict[str, Any]) -> None:
    """Make one link between two hosts of the network in a core's input: whatever is fitted to it is all that it has."""
    spec["cluster"].update(topology={"kind": "star", "hosts": 2}, node=None, host_latency_ps=0, host=None)
    spec["run"].update(engine="fluid", accuracy_ppm=None, duration_ps=None, timeline_iterations=0, probe=None)
