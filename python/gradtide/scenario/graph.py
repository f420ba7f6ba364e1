"""From a networkx graph to the keys of a custom topology."""

import re
from collections.abc import Hashable
from typing import Any

_HOST = re.compile(r"h(0|[1-9]\d{0,8})")


def from_networkx(graph: Any) -> dict[str, Any]:
    """Return the `cluster.topology` that a networkx graph describes, for `gt.Scenario.from_dict` and `replace`.

    Hosts are the nodes whose attribute `kind` is "host", or, where no node has one, those named h0, h1, …; all others
    are switches, under their own names. Hosts that are not all named h0, h1, … are numbered in the order of the graph.

    Args:
        graph: an undirected `networkx.Graph`. Edges may have the attributes `rate` and `delay`, texts with units as
            in "25Gbps" and "1us"; the rest have those of `cluster.link`.

    Returns:
        A table of kind "custom".

    Raises:
        ValueError: if the graph is directed, or has no hosts.

    Example:
        >>> import networkx as nx
        >>> from_networkx(nx.Graph([("h0", "s"), ("h1", "s")]))["links"]
        [{'a': 'h0', 'b': 's'}, {'a': 'h1', 'b': 's'}]
    """
    if graph.is_directed():
        raise ValueError("the graph is directed; a cable is a link in each direction: give graph.to_undirected()")
    kinds = dict(graph.nodes(data="kind"))
    has_kinds = any(kinds.values())
    hosts = [n for n, kind in kinds.items() if (kind == "host" if has_kinds else _HOST.fullmatch(str(n)))]
    if not hosts:
        raise ValueError('the graph has no hosts; name them h0, h1, … or give them kind="host"')
    own = {str(host) for host in hosts}
    is_numbered = own == {f"h{index}" for index in range(len(hosts))}
    names: dict[Hashable, str] = {n: str(n) for n in kinds}
    if not is_numbered:
        names |= {host: f"h{index}" for index, host in enumerate(hosts)}
    links = []
    for a, b, data in graph.edges(data=True):
        given = {key: data[key] for key in ("rate", "delay") if key in data}
        links.append({"a": names[a], "b": names[b], **given})
    is_host = set(hosts)
    switches = [names[n] for n in kinds if n not in is_host]
    return {"kind": "custom", "hosts": len(hosts), "switches": switches, "links": links}
