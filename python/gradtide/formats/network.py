"""Converts networks between two lists of cables: gradtide's CSV, and HPCC's topology files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.formats.text import Complaints, Options, count, decimal, lines_of, whole_text, write
from gradtide.scenario.cables import read_cables, wired
from gradtide.scenario.fabric import Cable, Wiring, host_number
from gradtide.scenario.keys.types import positive_rate

MAX_NODES = 1_000_000
_UNSAID = -1
"""Placeholder for a rate or delay that the file leaves out."""

_FIELDS = ("src", "dst", "rate", "delay", "error_rate")
_SWITCH = re.compile(r"s(0|[1-9]\d{0,8})", re.ASCII)
_NS3_RATES = (("Gbps", 10**9), ("Mbps", 10**6), ("Kbps", 10**3), ("bps", 1))


def convert(source: Path, form: str, target: Path | None, into: str, options: Options) -> dict[str, Any]:
    """Read a network, write it, and return its figures.

    Raises:
        ScenarioError: with every fault of the file, or if no scenario can have such a network.
    """
    if form == "hpcc-topology":
        cables, rows, hosts, switches = read_hpcc(lines_of(source), str(source))
        wiring = _checked(source, cables, rows, hosts, switches)
    else:
        wiring = _read_csv(source)
    if target is not None:
        write(target, _hpcc(wiring, options) if into == "hpcc-topology" else _csv(wiring))
    return {"hosts": wiring.host_count, "switches": wiring.switch_count, "cables": wiring.cable_count}


def hosts_of(path: Path) -> dict[int, int]:
    """Return the host number of every host in an HPCC topology file, by node number.

    Raises:
        ScenarioError: as in `convert`.
    """
    wrong = Complaints(str(path), "GT046")
    hosts, _, _ = _hpcc_nodes(lines_of(path), wrong)
    wrong.end()
    return hosts


def _read_csv(path: Path) -> Wiring:
    cables, lines = read_cables(whole_text(path), str(path), (_UNSAID, _UNSAID))
    wrong = Complaints(str(path), "GT046")
    for cable, (number, line) in zip(cables, lines, strict=True):
        for field, value in (("rate", cable.rate_bps), ("delay", cable.delay_ps)):
            if value == _UNSAID:
                wrong.add(number, line, field, f"the cable has no {field}", f"write the column {field} for every cable")
    wrong.end()
    return _checked(path, cables, lines, None)


def _hpcc_nodes(
    lines: Iterable[str], wrong: Complaints
) -> tuple[dict[int, int], dict[int, int], list[tuple[int, str]]]:
    """Read the numbers of the nodes, and the lines of the links, of an HPCC topology file.

    Returns:
        A map from node numbers to host numbers, a map from node numbers to switch numbers, and a list with the line
        number and the text of each link.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line and not line.isspace())
    number, line = next(numbered, (1, ""))
    first, head, counts = number, line, [count(cell, MAX_NODES) for cell in line.split()]
    if len(counts) != 3 or None in counts:
        wrong.add(number, line, "", "the first line is not three counts", "write nodes, switches and links: 66 1 65")
        wrong.end()
    nodes, switches, links = (value or 0 for value in counts)
    ids: list[int] = []
    while len(ids) < switches:
        number, line = next(numbered, (0, ""))
        if not number:
            hint = "the file is cut off, or its first line is wrong"
            wrong.add(first, head, "", f"line {first} counts {switches:,} switches and {len(ids):,} follow", hint)
            wrong.end()
        for at, cell in enumerate(line.split()):
            node = count(cell, max(0, nodes - 1))
            if node is None:
                hint = f"write {switches:,} different numbers of nodes, 0 to {nodes - 1:,}"
                wrong.add(number, line, "", f'"{cell[:40]}" is not the number of a node', hint, at)
                wrong.end()
            ids.append(node or 0)
    if len(set(ids)) != switches:
        hint = f"write {switches:,} different numbers of nodes"
        wrong.add(
            number,
            line,
            "",
            f"the number of different switches is {len(set(ids)):,}, and line {first} counts {switches:,}",
            hint,
        )
        wrong.end()
    switch_of = {node: index for index, node in enumerate(sorted(ids))}
    host_of = {node: index for index, node in enumerate(node for node in range(nodes) if node not in switch_of)}
    rows = [row for _, row in zip(range(links), numbered, strict=False)]
    if len(rows) < links:
        hint = "the file is cut off, or its first line is wrong"
        wrong.add(first, head, "", f"line {first} counts {links:,} links and {len(rows):,} follow", hint)
    return host_of, switch_of, rows


def read_hpcc(lines: Iterable[str], file: str) -> tuple[list[Cable], list[tuple[int, str]], int, list[str]]:
    """Read an HPCC topology file.

    The file has a line `nodes switches links`, the numbers of the switches, and `src dst rate delay error_rate` per
    link. All other nodes are hosts, h0, h1, … in numerical order; switches are s0, s1, ….

    Args:
        lines: the lines of the file, without line endings.
        file: the file as the user named it.

    Returns:
        A list of the cables, a list with the line number and the text of each cable, the number of hosts, and the names
        of the switches.

    Raises:
        ScenarioError: with every fault, each at its line and field.

    Source: main in simulation/scratch/third.cc of alibaba-edu/High-Precision-Congestion-Control, which ignores
    everything after the number of links in the first line.
    """
    wrong = Complaints(file, "GT046")
    host_of, switch_of, rows = _hpcc_nodes(lines, wrong)
    names = {node: f"h{index}" for node, index in host_of.items()}
    names |= {node: f"s{index}" for node, index in switch_of.items()}
    cables = []
    for number, line in rows:
        cells = line.split()
        if len(cells) != len(_FIELDS):
            hint = f"write {' '.join(_FIELDS)}: 0 1 100Gbps 1us 0"
            wrong.add(number, line, "", f"the line has {len(cells)} fields", hint)
            continue
        ends = [names.get(count(cell, MAX_NODES) or 0) if count(cell) is not None else None for cell in cells[:2]]
        for at, end in enumerate(ends):
            if end is None:
                hint = f"line 1 counts {len(names):,} nodes: 0 to {len(names) - 1:,}"
                wrong.add(number, line, _FIELDS[at], f'there is no node "{cells[at][:40]}"', hint, at)
        quantities = []
        for at, parse in ((2, positive_rate), (3, units.parse_time)):
            try:
                quantities.append(parse(cells[at]))
            except units.UnitError as error:
                wrong.add(number, line, _FIELDS[at], error.msg, error.hint, at, code=error.code)
        loss = decimal(cells[4])
        if loss is None or loss > 1:
            wrong.add(number, line, "error_rate", f'"{cells[4][:40]}" is not a share', "write 0", 4)
        elif loss:
            hint = "links of gradtide lose packets only if a queue drops them; write 0 to ignore the loss"
            wrong.add(number, line, "error_rate", f"the link loses {float(loss):g} of its packets", hint, 4)
        if len(quantities) == 2 and ends[0] is not None and ends[1] is not None:
            cables.append(Cable(ends[0], ends[1], *quantities))
    wrong.end()
    return cables, rows, len(host_of), [f"s{index}" for index in range(len(switch_of))]


def _checked(
    path: Path,
    cables: Sequence[Cable],
    lines: Sequence[tuple[int, str]],
    hosts: int | None,
    switches: Sequence[str] | None = None,
) -> Wiring:
    wiring, complaints = wired(cables, hosts, switches, MAX_NODES)
    wrong = Complaints(str(path), "GT046")
    for complaint in complaints:
        number, line = (None, None) if complaint.place is None else lines[complaint.place]
        wrong.add(number, line, complaint.key if complaint.place is not None else "", complaint.msg, complaint.hint)
    wrong.end()
    assert wiring is not None
    return wiring


def _csv(wiring: Wiring) -> str:
    rows = [f"{c.a},{c.b},{units.format_rate(c.rate_bps)},{units.format_time(c.delay_ps)}\n" for c in wiring.cables]
    return "".join(["a,b,rate,delay\n", *rows])


def _hpcc(wiring: Wiring, options: Options) -> str:
    """Return the text of an HPCC topology file.

    Hosts get the first numbers. Switches follow in the order of their names if all are named s0, s1, …, otherwise in
    the order in which they occur.
    """
    switches = list(wiring.switches)
    if all(_SWITCH.fullmatch(name) for name in switches):
        switches.sort(key=lambda name: int(name[1:]))
    number = {name: wiring.host_count + index for index, name in enumerate(switches)}

    def node(name: str) -> int:
        host = host_number(name)
        return number[name] if host is None else host

    finer = sum(cable.delay_ps % 1000 != 0 for cable in wiring.cables)
    many = "delays are not whole nanoseconds, the resolution of ns-3"
    options.note(finer, "1 delay is not a whole number of nanoseconds, the resolution of ns-3", many)
    lines = [
        f"{wiring.host_count + len(switches)} {len(switches)} {wiring.cable_count}",
        " ".join(str(number[name]) for name in switches),
        *(f"{node(c.a)} {node(c.b)} {_ns3_rate(c.rate_bps)} {units.format_time(c.delay_ps)} 0" for c in wiring.cables),
    ]
    return "\n".join(lines) + "\n"


def _ns3_rate(rate_bps: int) -> str:
    return next(f"{rate_bps // factor}{unit}" for unit, factor in _NS3_RATES if rate_bps % factor == 0)
