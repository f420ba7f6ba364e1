"""The network in the core's input, and what the core derives from it: sizes of a topology and names of links.

`_core` is imported inside the functions that call it: loading it would dominate the time to report a faulty scenario.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gradtide.units import PPM

Link = tuple[int, int]
"""Rate in bits per second and delay in picoseconds."""


class Shape(NamedTuple):
    """Sizes of a star, leaf-spine or Clos network, in the order of the core; `fabric.Tree` describes the fields."""

    host_count: int
    switch_count: int
    cable_count: int
    ports: int
    hops: int
    hosts_per_edge: int
    shared: int


def tree(kind: str, keys: Mapping[str, Any], trunk: Link) -> dict[str, Any]:
    """Return the core's input for a star, leaf-spine or Clos network; `trunk` is a link between switches."""
    return {"kind": kind, **keys, **({"fabric_link": link(trunk)} if kind == "leaf_spine" else {})}


def custom(host_count: int, switches: Sequence[str], cables: Iterable[tuple[int, int, Link]]) -> dict[str, Any]:
    """Return the core's input for a custom network; cables name nodes by number: hosts first, then switches."""
    listed = [{"a": a, "b": b, **link(of_cable)} for a, b, of_cable in cables]
    return {"kind": "custom", "hosts": host_count, "switches": list(switches), "cables": listed}


def link(rate_and_delay: Link) -> dict[str, int]:
    """Return the core's input for a link."""
    return dict(zip(("rate_bps", "delay_ps"), rate_and_delay, strict=True))


def node(gpus: int, nics: int, scale_up: Link) -> dict[str, Any]:
    """Return the input of `link_names` for nodes with several GPUs. The link efficiency does not affect names."""
    return {"gpus": gpus, "nics": nics, "scale_up": {**link(scale_up), "efficiency_ppm": PPM}}


def shape(topology: Mapping[str, Any], host_link: Link) -> Shape:
    """Return the sizes of a topology whose hosts have `host_link`."""
    from gradtide import _core

    return Shape(*_core.network_shape(json.dumps(topology), *host_link))


def link_names(topology: Mapping[str, Any], host_link: Link, of_node: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of all links of a topology and of its nodes, each name once."""
    from gradtide import _core

    return _core.link_names(json.dumps(topology), *host_link, None if of_node is None else json.dumps(of_node))
