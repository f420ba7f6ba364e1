"""Reads and checks the cables of custom networks. Faults name the line of the file."""

import csv
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from gradtide import units
from gradtide.errors import Fault, ScenarioError
from gradtide.scenario.fabric import Cable, Wiring, host_number
from gradtide.scenario.keys.types import parse_name, positive_rate

MAX_FAULTS_OF_CABLES = 20
_HEADER = "a,b[,rate][,delay]"


class Complaint(NamedTuple):
    """An error in a cable or, if `place` is None, in the list as a whole; `place` is the cable's index in the list."""

    code: str
    place: int | None
    key: str
    msg: str
    hint: str


def wired(
    cables: Sequence[Cable], hosts: int | None, switches: Sequence[str] | None, max_hosts: int
) -> tuple[Wiring | None, list[Complaint]]:
    """Return the network that consists of the cables and no complaints, or None and the complaints.

    If `hosts` is None, the number of hosts is the highest host number in the cables plus 1. If `switches` is None,
    every end of a cable that is not a host is a switch.
    """
    found: list[Complaint] = []

    def add(index: int | None, key: str, msg: str, hint: str, code: str = "GT046") -> None:
        if len(found) < MAX_FAULTS_OF_CABLES:
            found.append(Complaint(code, index, key, msg, hint))

    numbers = [n for cable in cables for n in map(host_number, cable[:2]) if n is not None]
    host_count = max(numbers, default=-1) + 1 if hosts is None else hosts
    if host_count > max_hosts:
        add(None, "links", f"{host_count:,} hosts are too many", f"at most {max_hosts:,}", "GT050")
        return None, found
    if not cables or not numbers:
        add(None, "links", "no cable leads to a host", 'write { a = "h0", b = "s0" }: hosts are h0, h1, …')
        return None, found
    known = dict.fromkeys(end for c in cables for end in c[:2] if host_number(end) is None)
    names = tuple(known) if switches is None else tuple(switches)
    declared = set(names)
    joined: set[frozenset[str]] = set()
    cable_of: dict[str, int] = {}
    for index, cable in enumerate(cables):
        ends = frozenset(cable[:2])
        if len(ends) == 1:
            add(index, "b", f"the cable leads from {cable.a} to itself", "a cable joins two nodes")
            continue
        if ends in joined:
            msg = f"there is a cable between {cable.a} and {cable.b} already"
            add(index, "a", msg, "two nodes have one cable; for more capacity raise its `rate`")
            continue
        joined.add(ends)
        for key, end in (("a", cable.a), ("b", cable.b)):
            number = host_number(end)
            if number is None and end not in declared:
                add(index, key, f'unknown node "{end[:80]}"', "`switches` does not name it, and hosts are h0, h1, …")
            elif number is not None and number >= host_count:
                add(index, key, f'unknown node "{end}"', f"`hosts` is {host_count}: hosts are h0 to h{host_count - 1}")
            elif number is not None and cable_of.setdefault(end, index) != index:
                hint = "a host has one cable; put a switch of its own in front of it, or leave the second out"
                add(index, key, f"{end} has a second cable", hint)
    for host in range(host_count):
        if f"h{host}" not in cable_of:
            hint = "hosts are numbered from h0 on without gaps" if hosts is None else "give it one, or lower `hosts`"
            add(None, "links", f"h{host} has no cable", hint)
    if found:
        return None, found
    wiring = Wiring(host_count, names, tuple(cables))
    reached = wiring.distances("h0")
    lost = [name for name in (*(f"h{host}" for host in range(host_count)), *names) if name not in reached]
    if lost:
        shown = ", ".join(lost[:5]) + (", …" if len(lost) > 5 else "")
        msg = f"the network is not connected: no cables lead from h0 to {shown}"
        add(None, "links", msg, "add the cable that joins the parts", "GT045")
        return None, found
    # Two links have the same name only if the name of a switch contains "-".
    counted = Counter(wiring.link_names() if any("-" in name for name in names) else ())
    twice = next((name for name, count in counted.items() if count > 1), None)
    if twice is not None:
        add(None, "links", f'two links are called "{twice}"', 'give switches names without "-"')
        return None, found
    return wiring, found


def read_cables(text: str, name: str, link: tuple[int, int]) -> tuple[list[Cable], list[tuple[int, str]]]:
    """Return the cables of a CSV file `a,b[,rate][,delay]`, and the number and text of each cable's line.

    `link` is the default rate, in bits per second, and delay, in picoseconds.

    Raises:
        ScenarioError: with every fault, each at its line and field.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ScenarioError([Fault("GT047", "", f"{name} is empty", None, f"its first line is {_HEADER}", name)])
    columns = [cell.strip() for cell in lines[0][1].split(",")]
    known = ("a", "b", "rate", "delay")
    if columns[:2] != ["a", "b"] or len(set(columns)) < len(columns) or not set(columns) <= set(known):
        msg = "the first line is not the header of a list of cables"
        number, line = lines[0]
        raise ScenarioError([Fault("GT047", "", msg, line[:80], f"write {_HEADER}", name, number, line, 0, len(line))])
    cables: list[Cable] = []
    faults: list[Fault] = []
    for number, line in lines[1:]:
        if len(faults) >= MAX_FAULTS_OF_CABLES:
            break
        try:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
        except csv.Error as error:
            faults.append(cable_fault("GT046", "", f"not valid CSV: {error}", "check the quotes", name, number, line))
            continue
        if len(cells) != len(columns):
            msg = f"the line has {len(cells)} fields, the header {len(columns)}"
            faults.append(cable_fault("GT046", "", msg, f"write {','.join(columns)}", name, number, line))
            continue
        row = dict(zip(columns, cells, strict=True))
        rate_bps, delay_ps = link
        for key in columns:
            try:
                if key in ("a", "b"):
                    parse_name(row[key])
                elif not row[key]:
                    continue
                elif key == "rate":
                    rate_bps = positive_rate(row[key])
                else:
                    delay_ps = units.parse_time(row[key])
            except units.UnitError as error:
                faults.append(cable_fault(error.code, key, error.msg, error.hint, name, number, line, row[key]))
        cables.append(Cable(row["a"], row["b"], rate_bps, delay_ps))
    if faults:
        raise ScenarioError(faults)
    return cables, lines[1:]


def cable_fault(
    code: str, key: str, msg: str, hint: str, name: str, number: int, line: str, value: str | None = None
) -> Fault:
    """Return a fault at line `number` of a list of cables, or at `value` in this line."""
    start = max(0, line.find(value)) if value else 0
    return Fault(code, key, msg, value, hint, name, number, line, start, len(value) if value else len(line))


def from_networkx(graph: Any) -> dict[str, Any]:
    """Convert a networkx graph into a table `cluster.topology`, for `gt.Scenario.from_dict` and `replace`.

    Hosts are the nodes whose attribute `kind` is "host". If no node has this attribute, hosts are the nodes named h0,
    h1, …. All other nodes are switches and keep their names. Unless all hosts are named h0, h1, …, they get these names
    in the order of the graph.

    Args:
        graph: an undirected `networkx.Graph`. Edges may have the attributes `rate` and `delay`, texts with units as
            in "25Gbps" and "1us". Defaults: `cluster.link.rate` and `cluster.link.delay`.

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
    hosts = [n for n, kind in kinds.items() if (kind == "host" if has_kinds else host_number(str(n)) is not None)]
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
