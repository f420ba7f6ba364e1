"""Zhang et al. (2017): how much should we invest in the network? One gradient exchange on Clos networks.

The paper's figures have no printed numbers, so our values are compared with its statements. The paper states neither
the size of the gradient nor the routing. We use 100 MB, and d-mod-k, the routing of SimGrid, on which the paper ran.
ECMP and spread are shown in addition. The latency of a switch is modelled as the delay of a link.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from gradtide import units, words
from gradtide.fabrics import crossbars_of_table_1 as crossbars
from gradtide.papers.harness import (
    SHOWN,
    Claim,
    Drawn,
    Figure,
    Said,
    Statements,
    above,
    below,
    changed,
    chart,
    judged,
    line,
    published,
    table,
)
from gradtide.scenario import Scenario
from gradtide.studies.exchange import alone, exchange_s, exchanged_by
from gradtide.studies.result import RunResult

PAPER = published(__name__)
GRADIENT_BYTES = Scenario.load(PAPER["preset"]).jobs[0].parameter_bytes
RATIOS = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 8))
# Section 3.1: rates of 40G InfiniBand and of 10G Ethernet "with TCP overhead", and latencies of a switch.
RATES_BPS = {"4 GB/s": 32 * 10**9, "1 GB/s": 8 * 10**9}
DELAYS = ("0.2us", "1us")
ROUTINGS = ("dmodk", "ecmp", "spread")
PACKED, DISTRIBUTED, FLAT, LAYERED = METHODS = ("ps+packed", "ps+distributed", "butterfly", "butterfly_layered")
# The names of the methods in the paper.
NAMES = {PACKED: "PS, packed", DISTRIBUTED: "PS, distributed", FLAT: "BF, flat", LAYERED: "BF, layered"}

SPREAD = "The paper ran on SimGrid, whose routes are d-mod-k."
"""Reason why rows with a routing other than d-mod-k are not counted."""

FACTOR, AGAINST = "{:.2f}x", "{:.1f} ms against {:.1f} ms"
AFFECTED = 1.05
"""Smallest slowdown that counts as "affected", which the paper writes without a number."""

SAME = 1.001
"""Largest ratio of two times that count as equal, because latencies add microseconds to hundreds of milliseconds."""


@dataclass(frozen=True)
class Net:
    """A network of the paper: kind (clos2 or clos3), ports per switch (k in the paper), and number of hosts in use."""

    kind: str
    ports: int
    nodes: int

    @property
    def words(self) -> str:
        """The name of the network in the paper."""
        star = "*" if self == STARRED else ""
        return f"{self.kind[-1]}-layer, {self.nodes}{star} nodes"


# A full 3-layer network has k³/4 hosts, which is never 256. Switches with k = 16 ports are the smallest that allow all
# four ratios; 256 hosts fill 4 of the 16 pods.
STARRED = Net("clos3", 16, 256)
TWO_LAYERS = (Net("clos2", 16, 128), Net("clos2", 32, 512), Net("clos2", 64, 2048))
THREE_LAYERS = (STARRED, Net("clos3", 16, 1024))
NETS = (*TWO_LAYERS, *THREE_LAYERS)
CLOS2_2048, CLOS3_1024 = TWO_LAYERS[-1], THREE_LAYERS[-1]

SIMGRID = {
    (Net(row["kind"], row["ports"], row["nodes"]), row["method"]): tuple(row["time_s"]) for row in PAPER["simgrid"]
}
"""SimGrid's times in seconds at each of `RATIOS`, with 4 GB/s, 0.2 us and d-mod-k, by (network, method)."""

Case = tuple[Net, Fraction, str, str, str, str]
COUNTED = (LAYERED, "4 GB/s", "0.2us", "dmodk")
"""(method, rate, delay, routing) of the exchanges in which switches and cables are counted."""


def _cases(
    nets: Iterable[Net],
    rates: Iterable[str] = ("4 GB/s",),
    delays: Iterable[str] = ("0.2us",),
    routings: Iterable[str] = ("dmodk",),
    methods: Iterable[str] = METHODS,
) -> list[Case]:
    return list(product(nets, RATIOS, methods, rates, delays, routings))


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case: a single exchange."""
    net, ratio, method, rate, delay, routing = case
    cluster = base.set({"cluster.link.delay": delay, "cluster.routing": routing})
    topology = {"kind": net.kind, "ports": net.ports, "bisection": str(ratio)}
    rate_of_links = units.format_rate(RATES_BPS[rate])
    placed = exchanged_by(
        cluster, method, workers=net.nodes, topology=topology, link_rate=rate_of_links, engine="fluid"
    )
    return alone(placed, base.jobs[0].parameter_bytes)


class Seen:
    """The data of an exchange that are kept: time and, for `COUNTED` exchanges, numbers of switches and of cables."""

    def __init__(self, case: Case, result: RunResult) -> None:
        self.time_s = exchange_s(result)
        links = result.links["link"].tolist() if case[2:] == COUNTED else []
        ends = {end for link in links for end in link.split("-")}
        self.nodes_and_cables = sum(re.fullmatch(r"h\d+", end) is None for end in ends), len(links) // 2


class Study:
    """The data of the exchanges, by case."""

    def __init__(self, results: dict[Case, Seen]) -> None:
        self.results = results

    def time_s(
        self, net: Net, ratio: Fraction, method: str, rate: str = "4 GB/s", delay: str = "0.2us", routing: str = "dmodk"
    ) -> float:
        """Return the time of an exchange in seconds."""
        return self.results[net, ratio, method, rate, delay, routing].time_s

    def slowdown(self, net: Net, method: str, routing: str = "dmodk") -> float:
        """Return the time of an exchange with a bisection ratio of 1/8, divided by the time with full bisection."""
        least_s, full_s = (self.time_s(net, ratio, method, routing=routing) for ratio in (RATIOS[-1], RATIOS[0]))
        return least_s / full_s

    def nodes_and_cables(self, net: Net, ratio: Fraction) -> tuple[int, int]:
        """Return (switches, cables) of a network as built, counted in the names of its links."""
        return self.results[(net, ratio, *COUNTED)].nodes_and_cables


# -- statements -------------------------------------------------------------------------------------------------------


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _factor(value: float) -> str:
    return f"{value:.2f}x"


def _shape_claims(net: Net) -> Callable[[Study], Iterable[Claim]]:
    """Return a function that checks the statements about fig. 7 or 8 for a network."""

    def claims(study: Study) -> Iterable[Claim]:
        slower = {method: study.slowdown(net, method) for method in METHODS}
        what = "at 1/8 against 1"
        note = "With d-mod-k the heads of sub-clusters share links, as figure Routing shows."
        for method, said, why in (
            (PACKED, above(2, "significant drops"), ""),
            (DISTRIBUTED, below(AFFECTED, "hardly affected"), ""),
            (FLAT, above(AFFECTED, "affected"), ""),
            (LAYERED, below(SAME, "not affected at all"), note),
        ):
            yield judged(f"{NAMES[method]}: {what}", said, slower[method], FACTOR, why)
        if net.kind == "clos3":
            at = study.slowdown(net, LAYERED, "spread")
            yield f"{NAMES[LAYERED]}, routes that spread: {what}", "not affected at all", _factor(at), SHOWN, SPREAD
        servers_s = min(study.time_s(net, RATIOS[0], method) for method in (PACKED, DISTRIBUTED))
        for method in (FLAT, LAYERED):
            own_s = study.time_s(net, RATIOS[0], method)
            what, both = f"servers against {NAMES[method]} at full bisection", (1e3 * servers_s, 1e3 * own_s)
            note = (
                "Servers take 350 ms whatever the number of nodes, and a butterfly has more steps the more nodes there "
                "are (log N)."
            )
            yield changed(what, "servers are inferior", both, AGAINST, note, grows=False)

    return claims


def _fourfold(quantity: str, factors: Sequence[float]) -> Claim:
    """Return the claim that all given factors are 4, within 0.01."""
    return judged(quantity, Said("4x", 3.99, 4.01), [min(factors), max(factors)], "{:.4f} to {:.4f}x")


def _conclusion_claims(study: Study) -> Iterable[Claim]:
    # Statements about all networks are counted for d-mod-k, the paper's routing; the other routing is only shown.
    routings = ((NETS, "dmodk", ""), (THREE_LAYERS, "spread", ", 3 layers, routes that spread"))
    for nets, routing, which in routings:
        slower = [study.slowdown(net, LAYERED, routing) for net in nets]
        what, form = f"1) {NAMES[LAYERED]} at 1/8 against 1{which}", " / ".join(FACTOR for _ in slower)
        note = "On 3 layers, with d-mod-k, the heads of sub-clusters share links, as figure Routing shows."
        counts = (SPREAD, SHOWN) if which else (note, None)
        yield judged(what, below(SAME, "not affected"), slower, form, *counts)
    for method in (PACKED, FLAT):
        slower = [study.slowdown(net, method) for net in NETS]
        form = " / ".join(FACTOR for _ in slower)
        yield judged(f"1) {NAMES[method]} at 1/8 against 1", above(AFFECTED, "affected"), slower, form)
    yield _fourfold(
        "2) 1 against 4 GB/s, all networks and methods",
        [
            study.time_s(*cell, "1 GB/s", delay) / study.time_s(*cell, "4 GB/s", delay)
            for cell, delay in product(product(NETS, RATIOS, METHODS), DELAYS)
        ],
    )
    for nets, routing, which in routings:
        cells = list(product(nets, RATIOS))
        for servers in (DISTRIBUTED, PACKED):
            missing = [
                cell
                for cell in cells
                if min(study.time_s(*cell, method, routing=routing) for method in (FLAT, LAYERED)) * SAME
                >= study.time_s(*cell, servers, routing=routing)
            ]
            what, text = f"3) the better butterfly against {NAMES[servers]}{which}", _faster_in(cells, missing)
            note = (
                "A server's 7 shards take 350 ms whatever the number of nodes, and the paper does not say how many "
                f"servers it had. The butterflies are not faster {_where(missing)}."
            )
            yield what, "substantially faster", text, *((SHOWN, SPREAD) if which else (not missing, note))
    for nets, routing, which in routings:
        cells = list(product(nets, RATIOS[1:]))
        missing = [
            cell
            for cell in cells
            if study.time_s(*cell, LAYERED, routing=routing) >= study.time_s(*cell, FLAT, routing=routing)
        ]
        what, text = f"4) {NAMES[LAYERED]} against flat below 1{which}", _faster_in(cells, missing)
        note = f"The heads of sub-clusters share links with d-mod-k: it is not faster {_where(missing)}."
        yield what, "faster", text, *((SHOWN, SPREAD) if which else (not missing, note))
    full = [study.time_s(net, RATIOS[0], FLAT) < study.time_s(net, RATIOS[0], LAYERED) for net in NETS]
    yield "4) flat against layered at 1", "flat is faster", f"in {sum(full)} of {len(full)} networks", all(full)


def _faster_in(cells: Sequence[Any], missing: Sequence[Any]) -> str:
    return f"faster in {len(cells) - len(missing)} of {len(cells)} cells"


def _where(cells: Sequence[tuple[Net, Fraction]]) -> str:
    """Return the names of networks and ratios, as in `on 3-layer, 1024 nodes at 1/2, 1/4`."""
    ratios: dict[Net, list[str]] = {}
    for net, ratio in cells:
        ratios.setdefault(net, []).append(str(ratio))
    return "; ".join(f"on {net.words} at {', '.join(of_net)}" for net, of_net in ratios.items())


def table_1(net: Net, ratio: Fraction) -> tuple[Fraction, Fraction]:
    """Return (switches, links) by the formulas of table 1."""
    k = Fraction(net.ports)
    if net.kind == "clos2":
        return k / 2 * (2 + ratio), k**2 / 2 * (1 + ratio)
    return k**2 / 4 * (2 + 3 * ratio), k**3 / 4 * (1 + 2 * ratio)


def _count_claims(study: Study) -> Iterable[Claim]:
    cells = list(product(NETS, RATIOS))
    for index, what in enumerate(("switches", "links")):
        equal = sum(table_1(*cell)[index] == study.nodes_and_cables(*cell)[index] for cell in cells)
        text = f"{equal} of {len(cells)} networks as built"
        yield f"{what}, by its formulas", "k/2·(2+r) …" if index == 0 else "k²/2·(1+r) …", text, equal == len(cells)


def _resource_claims(_study: Study) -> Iterable[Claim]:
    firsts = []
    for ratio in RATIOS:
        fewer = [n for n in range(2, 2049) if crossbars("clos3", n, ratio) < crossbars("clos2", n, ratio)]
        firsts.append(fewer[0] if fewer == list(range(fewer[0], 2049)) else 2049)
    text = f"from {' / '.join(map(str, firsts))} nodes on"
    ratios = " / ".join(map(str, RATIOS))
    yield f"3 layers take fewer crossbars, r = {ratios}", "smaller", text, max(firsts) <= 128


def _linear_claims(study: Study) -> Iterable[Claim]:
    yield _fourfold(
        "all methods: 1 against 4 GB/s",
        [
            study.time_s(CLOS3_1024, ratio, method, "1 GB/s") / study.time_s(CLOS3_1024, ratio, method)
            for ratio, method in product(RATIOS, METHODS)
        ],
    )


def _step_claims(study: Study) -> Iterable[Claim]:
    flat_s, layered_s = (study.time_s(CLOS3_1024, RATIOS[0], method) for method in (FLAT, LAYERED))
    both = (1e3 * flat_s, 1e3 * layered_s)
    yield changed("flat against layered at full bisection", "slightly faster", both, AGAINST, grows=True)
    # Section 2.1: flat has log2 N steps, layered has log2 n + log2 m + log2 n, where n is 8 here.
    levels = CLOS3_1024.nodes.bit_length() - 1
    expected = [levels, levels + 3]
    step_s = GRADIENT_BYTES * 8 / RATES_BPS["4 GB/s"]
    steps = [round(time_s / step_s) for time_s in (flat_s, layered_s)]
    yield "steps", f"{expected[0]} and {expected[1]}", f"{steps[0]} and {steps[1]}", steps == expected


def _routing_claims(study: Study) -> Iterable[Claim]:
    for net, routing in product(THREE_LAYERS, ROUTINGS):
        at = study.slowdown(net, LAYERED, routing)
        note = {
            "dmodk": "With d-mod-k the heads of sub-clusters share links.",
            "ecmp": "With ECMP some heads of sub-clusters share links by chance.",
        }.get(routing, SPREAD)
        what = f"{NAMES[LAYERED]}, {net.nodes} nodes, {routing}: at 1/8 against 1"
        yield what, "not affected at all", _factor(at), SHOWN, note


def _simgrid_claims(study: Study) -> Iterable[Claim]:
    pairs = [
        (theirs, study.time_s(net, ratio, method))
        for (net, method), times in SIMGRID.items()
        for ratio, theirs in zip(RATIOS, times, strict=True)
    ]
    # SimGrid prints times with seven decimals.
    equal = sum(abs(ours - theirs) < 1e-7 for theirs, ours in pairs)
    note = "The paper's own times are in no table; SimGrid was run for this."
    yield "SimGrid's times, to its seven decimals", "equal", f"{equal} of {len(pairs)}", SHOWN, note


# -- tables and series ------------------------------------------------------------------------------------------------


def _count_table(study: Study) -> list[Drawn]:
    rows = []
    for net, ratio in product(NETS, RATIOS):
        switches, links = table_1(net, ratio)
        own_switches, own_links = study.nodes_and_cables(net, ratio)
        rows.append([net.words, net.ports, str(ratio), int(switches), own_switches, int(links), own_links])
    columns = ["network", "ports", "ratio", "switches, table 1", "switches, built", "links, table 1", "links, built"]
    note = (
        "A link is a cable. *No k³/4 is 256: 16-port switches are the smallest that have all four ratios, and 256 "
        "nodes fill 4 of the 16 pods of that network, which has room for 1024."
    )
    return [table("Table 1: switches and links", columns, rows, note)]


def _time_tables(study: Study) -> list[Drawn]:
    """Draw tables of the times of all exchanges, and of SimGrid's times next to ours where SimGrid was run."""
    ratios = [f"r = {ratio}" for ratio in RATIOS]
    rows = []
    for net, rate, delay, method in product(NETS, RATES_BPS, DELAYS, METHODS):
        times = [_ms(study.time_s(net, ratio, method, rate, delay)).removesuffix(" ms") for ratio in RATIOS]
        rows.append([net.words, rate, delay, NAMES[method], *times])
    own = table("Every exchange, d-mod-k, ms", ["network", "link", "latency", "method", *ratios], rows)
    rows = []
    for (net, method), theirs in SIMGRID.items():
        ours = [study.time_s(net, ratio, method) for ratio in RATIOS]
        rows.append([net.words, NAMES[method], *(f"{a:.7f} / {b:.7f}" for a, b in zip(theirs, ours, strict=True))])
    note = "4 GB/s, 0.2 us, d-mod-k; both share links by max-min fairness."
    return [table("SimGrid / gradtide, s", ["network", "method", *ratios], rows, note), own]


def _over_ratio(
    title: str, net: Net, methods: Sequence[str] = METHODS, rate: str = "4 GB/s", routing: str = "dmodk"
) -> Callable[[Study], Drawn]:
    ratios = sorted(RATIOS)

    def drawn(study: Study) -> Drawn:
        lines = []
        for method in methods:
            times_s = [study.time_s(net, ratio, method, rate, routing=routing) for ratio in ratios]
            lines.append(line(NAMES[method], [1e3 * time_s for time_s in times_s]))
        return chart(title, ("bisection ratio", list(map(float, ratios))), "exchange time (ms)", lines)

    return drawn


def _all(*charts: Callable[[Study], Drawn]) -> Callable[[Study], list[Drawn]]:
    return lambda study: [drawn(study) for drawn in charts]


def _resource_series(_study: Study) -> Iterable[Drawn]:
    nodes = range(64, 2049, 64)
    for ratio in RATIOS:
        counts = {kind: [crossbars(kind, count, ratio) for count in nodes] for kind in ("clos2", "clos3")}
        lines = [line(words.fabric(kind), values) for kind, values in counts.items()]
        yield chart(f"r = {ratio}", ("nodes", nodes), "2x2 crossbars", lines)


def figures() -> dict[str, Figure[Study, Case]]:
    """Return the figures, by name."""
    return {
        "Conclusions": Figure(
            [*_cases(NETS, RATES_BPS, DELAYS), *_cases(THREE_LAYERS, routings=["spread"])], _conclusion_claims
        ),
        "7": Figure(
            _cases([CLOS2_2048]),
            _shape_claims(CLOS2_2048),
            series=_all(_over_ratio("2 layers, 2048 nodes", CLOS2_2048)),
        ),
        "8": Figure(
            _cases([CLOS3_1024], routings=["dmodk", "spread"]),
            _shape_claims(CLOS3_1024),
            series=_all(
                _over_ratio("d-mod-k", CLOS3_1024), _over_ratio("routes that spread", CLOS3_1024, routing="spread")
            ),
        ),
        "9": Figure(
            _cases([CLOS3_1024], RATES_BPS),
            _linear_claims,
            series=_all(*(_over_ratio(rate, CLOS3_1024, rate=rate) for rate in ("1 GB/s", "4 GB/s"))),
        ),
        "10": Figure(
            _cases([CLOS3_1024], methods=[FLAT, LAYERED]),
            _step_claims,
            series=_all(_over_ratio("butterflies", CLOS3_1024, (FLAT, LAYERED))),
        ),
        "Routing": Figure(
            _cases(THREE_LAYERS, routings=ROUTINGS),
            _routing_claims,
            series=_all(
                *(
                    _over_ratio(f"{net.nodes} nodes, {routing}", net, routing=routing)
                    for net in reversed(THREE_LAYERS)
                    for routing in ROUTINGS
                )
            ),
        ),
        "6": Figure(claims=_resource_claims, series=_resource_series),
        "Table 1": Figure(_cases(NETS, methods=[LAYERED]), _count_claims, tables=_count_table),
        "Exchanges": Figure(_cases(NETS, RATES_BPS, DELAYS), _simgrid_claims, tables=_time_tables),
    }


FIGURES = figures()

STATEMENTS = Statements(
    paper=PAPER, figures=FIGURES, scenario=scenario, study=lambda _base, results: Study(results), seen=Seen
)
PART = STATEMENTS.part(seconds=12)
