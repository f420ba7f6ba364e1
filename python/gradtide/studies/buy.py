"""`gradtide buy`: cost and speed of networks for a training job, and which of them to buy.

At each link rate, the knee is recommended: the cheapest network and collective that is about as fast as the fastest.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from gradtide import answer, report, units, words
from gradtide.answer.build import build
from gradtide.errors import Unfinished, hinted
from gradtide.estimate import Limits, within_limits
from gradtide.fabrics import KINDS, Fabric, NoFabricError, crossbars_of_table_1, fit, sold_ports
from gradtide.results import Table, numbers
from gradtide.scenario import Scenario
from gradtide.scenario.prices import Prices, read_prices
from gradtide.studies.arguments import with_lists
from gradtide.studies.exchange import (
    COLLECTIVES,
    alone,
    check_once,
    check_one_job,
    exchange_s,
    exchanged_by,
    offered,
    summing_collectives,
)
from gradtide.studies.folder import write_text
from gradtide.studies.keep import Kept
from gradtide.studies.network import cards_per_node
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import head, run_all, total_cost
from gradtide.studies.run_folder import run_name, write_core, write_study
from gradtide.studies.trained import Cluster, trained

FABRICS = ("clos2", "clos3", "leaf_spine", "star")
BISECTIONS = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 8))

KNEE = 0.05
"""The knee is the cheapest candidate whose iteration takes at most this share longer than the fastest candidate's."""

ITERATIONS = 2
"""Limit on the iterations of a run without random draws, because all of its iterations are equal."""

HOTTEST = 8
"""Number of busiest links that are reported for each candidate."""

OTHER_DELAY_PS = (1_000_000, 10_000_000)
"""Typical one-way delays of a cable with RDMA and with kernel TCP, in picoseconds. The best network can depend on
it, so candidates are also run with the first of these delays that is not the scenario's."""

EXCHANGES = 2
"""Number of exchanges in a run that times a single exchange: one warm-up and one measured exchange."""

NODES = tuple(range(64, 2049, 64))
"""Numbers of nodes in the plot of switch costs over nodes."""


@dataclass(frozen=True)
class Candidate:
    """A network, and the collective that exchanges the gradients over it.

    `run` is the user's job on the network, `exchange` a single exchange of the whole gradient, and `delayed` the job
    with another cable delay. `price` is the total price of switches, cables and network cards; `None` without prices.
    """

    name: str
    fabric: Fabric
    collective: str
    rate_bps: int
    run: Scenario
    exchange: Scenario
    delayed: Scenario
    price: float | None


@dataclass(frozen=True)
class Skipped:
    """A requested network that cannot be built or bought, with the reason; `rate_bps` is `None` for all rates."""

    fabric: str
    bisection: str
    rate_bps: int | None
    why: str


class BuyResult(StudyRows):
    """Result of `buy`: candidate networks with their costs and the iteration times of the job on them.

    Attributes:
        rows: one dict per candidate, with the columns of `candidates.csv`.
        runs: the run of the user's job on each candidate's network, by the candidate's name.
        hottest: the busiest links of each candidate during an exchange, with the columns of `hottest.csv`.
    """

    def __init__(
        self,
        base: Scenario,
        nodes: int,
        candidates: Sequence[Candidate],
        results: Sequence[tuple[RunResult, RunResult, RunResult]],
        skipped: Sequence[Skipped],
        prices: Prices | None,
    ) -> None:
        self.runs = {one.name: run for one, (run, _, _) in zip(candidates, results, strict=True)}
        exchanges = [exchange for _, exchange, _ in results]
        self.rows = [_row(one, *three) for one, three in zip(candidates, results, strict=True)]
        _judge(self.rows)
        hot = [link for one, exchange in zip(candidates, exchanges, strict=True) for link in _hottest(one, exchange)]
        self.hottest = Table.of_dicts(hot)
        first = next(iter(self.runs.values())).summary
        unit = "crossbars" if prices is None else prices.currency or "price"
        self.summary: dict[str, Any] = {
            **head("buy", first["engine"]),
            "seed": first["seed"],
            "job": base.jobs[0].name,
            "model": base.jobs[0].model,
            "parameter_bytes": base.jobs[0].parameter_bytes,
            "nodes": nodes,
            "routing": str(base.to_dict()["cluster"]["routing"]),
            "cost_unit": unit,
            "not_priced": [] if prices is None else prices.free,
            "cable_delay": units.format_time(_delay_ps(base)),
            "other_cable_delay": units.format_time(_other_delay_ps(base)),
            **build(
                "buy",
                _headline(self.rows, base, nodes, unit),
                [run.scenario for run in self.runs.values()],
                [
                    *(
                        answer.Candidate(row["candidate"], row["iteration_ms"], group=words.rate(row["rate_bps"]))
                        for row in self.rows
                    ),
                    *(answer.Candidate(f"{one.fabric} {one.bisection}", None, refused=one.why) for one in skipped),
                ],
            ).to_dict(),
            "own_network": own_network(base, candidates),
            "knees": [row["candidate"] for row in self.knees],
            "rows": self.rows,
            "needs": _needs(self.rows),
            "skipped": [vars(one) for one in skipped],
            "series": [*_exchange_series(self.rows), _switch_series()],
            "cost": total_cost(run.summary for run in self.runs.values()),
        }

    @property
    def knees(self) -> list[dict[str, Any]]:
        """The recommended row of each link rate, i.e. its knee."""
        return [row for row in self.rows if row["is_knee"]]

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        for name, result in self.runs.items():
            (folder / "candidates" / name).mkdir(parents=True)
            write_core(result, folder / "candidates" / name)
            report.write_report(folder / "candidates" / name)
        write_text(folder / "hottest.csv", self.hottest.to_csv())
        write_study(self, folder, "candidates.csv")


@with_lists
@within_limits
def buy(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    nodes: int | None = None,
    fabrics: Sequence[str] = FABRICS,
    bisection: "Sequence[str | int | float | Fraction]" = BISECTIONS,
    collectives: Sequence[str] = COLLECTIVES,
    rates: Sequence[str] | None = None,
    prices: str | Path | None = None,
    engine: str = "fluid",
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> BuyResult:
    """Compare cost and speed of networks for a training job: all fabrics, bisection ratios, collectives and link rates.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, a dict with the keys of a scenario file, or a model, which
            then trains on `cluster` or the defaults. The scenario must have one job and no background flows.
        cluster: as in `run`: the links, hosts or machines for which a network is bought.
        nodes: number of hosts, or of machines with several GPUs. Default: as many as the job's workers need.
        fabrics: kinds of networks: clos2, clos3, leaf_spine or star. Each is built from the smallest switches that have
            enough ports for the nodes.
        bisection: bisection ratios above 0 and at most 1, as numbers or as in "1/4". A star always has ratio 1.
        collectives: collectives as `KIND[+KEY=VALUE]`, such as `hierarchical+group=8` or `ps+distributed`.
        rates: link rates with their units, as in `25Gbps`. Default: the scenario's rate.
        prices: file with prices of switches, cables and network cards. Default: the cost of a network is the number of
            2x2 crossbars in its switches.
        engine: network engine of the runs.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: values that replace keys of the scenario, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C, with the finished candidates.
        ScenarioError: before any run, if a scenario or the file of prices is invalid, or the limits would be exceeded.
        ValueError: if a list is empty or has duplicates, a fabric or collective cannot be parsed, or no requested
            candidate can be built.
    """
    base = trained(scenario, cluster, **keys)
    check_one_job(base, "buy", trains=True)
    if base.jobs[0].is_pulled:
        raise ValueError("buy takes a job that exchanges gradients in buckets, not op by op with parameter servers")
    gpus, _ = cards_per_node(base)
    nodes = -(-base.jobs[0].workers // gpus) if nodes is None else nodes
    _check_network(base, nodes, *_fabrics(fabrics, bisection))
    known = None if prices is None else read_prices(prices)
    names = offered(base, collectives)
    candidates, skipped = offers(base, nodes, fabrics, bisection, names, rates, known, engine)
    runs = [scenario for one in candidates for scenario in (one.run, one.exchange, one.delayed)]
    try:
        results = run_all(runs, jobs, progress, keep, limits)
    except Unfinished as stop:
        done = [
            (one, (run, exchange, delayed))
            for one, (run, exchange, delayed) in zip(candidates, _in_threes(stop.results), strict=True)
            if run is not None and exchange is not None and delayed is not None
        ]
        if done:
            stop.attach(BuyResult(base, nodes, [one for one, _ in done], [three for _, three in done], skipped, known))
        raise
    return BuyResult(base, nodes, candidates, _in_threes(results), skipped, known)


T = TypeVar("T")


def _in_threes(results: Sequence[T]) -> list[tuple[T, T, T]]:
    return list(zip(results[::3], results[1::3], results[2::3], strict=True))


def _delay_ps(scenario: Scenario) -> int:
    return scenario.link_delay_ps


def _other_delay_ps(scenario: Scenario) -> int:
    return next(ps for ps in OTHER_DELAY_PS if ps != _delay_ps(scenario))


def _check_network(base: Scenario, nodes: int, kinds: Sequence[str], ratios: Sequence[Fraction]) -> None:
    """Raise a ValueError if the scenario has a network of several switches that is not among the candidates."""
    own = base.to_dict()["cluster"]["topology"]
    kind = str(own["kind"])
    if kind == "star":
        return
    is_offered = any(_has(own, offered) for offered in _topologies(kind, nodes, kinds, ratios))
    if not is_offered:
        raise ValueError(
            f"buy chooses the network, and {base.name} has one of its own, {words.fabric(kind)}: delete "
            "[cluster.topology] to choose a network, or simulate the present one with gradtide run"
        )


def _topologies(kind: str, nodes: int, kinds: Sequence[str], ratios: Sequence[Fraction]) -> Iterator[dict[str, Any]]:
    """Yield the networks of one kind among the candidates, as keys of `cluster.topology`."""
    for ratio in ratios if kind in kinds else ():
        try:
            yield fit(kind, nodes, ratio).topology
        except NoFabricError:
            continue


def _has(own: Mapping[str, Any], offered: Mapping[str, Any]) -> bool:
    return all(str(own.get(key)) == str(value) for key, value in offered.items())


def own_network(base: Scenario, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
    """Return the scenario's topology, the candidates that have it, and a sentence on both; `None` for one switch."""
    topology = base.to_dict()["cluster"]["topology"]
    if topology["kind"] == "star":
        return None
    same = [one.name for one in candidates if _has(topology, one.fabric.topology)]
    network = words.fabric(topology["kind"], str(topology.get("bisection", "")))
    sentence = f"The scenario's own network, {network}, is one of those compared."
    return {"topology": topology, "candidates": same, "sentence": sentence}


def figures(row: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures of a knee that `--fail-if` can test: `iteration_ms`, `exchange_ms`, `cost` and others."""
    return numbers(row)


def offers(
    base: Scenario,
    nodes: int,
    fabrics: Sequence[str],
    bisection: "Sequence[str | int | float | Fraction]",
    collectives: Sequence[str],
    rates: Sequence[str] | None,
    prices: Prices | None,
    engine: str = "fluid",
) -> tuple[list[Candidate], list[Skipped]]:
    """Return the candidates, and networks that cannot be built or bought; arguments and errors are those of `buy`."""
    kinds, ratios = _fabrics(fabrics, bisection)
    given_bps = [] if rates is None else [units.parse_option("rates", units.parse_rate, text) for text in rates]
    if 0 in given_bps:
        raise ValueError("rates: nothing would ever arrive at a rate of 0")
    rates_bps = [base.link_rate_bps] if rates is None else given_bps
    check_once("fabrics", kinds)
    check_once("bisection", [str(ratio) for ratio in ratios])
    collectives = list(summing_collectives(collectives, "--collectives"))
    check_once("rates", [units.format_rate(rate) for rate in rates_bps])
    if prices is not None:
        for rate_bps in rates_bps:
            for what in prices.missing(rate_bps):
                raise ValueError(f"{prices.name} has no price of a {what} at {units.format_rate(rate_bps)}")
    gpus, nics = cards_per_node(base)
    ends = nodes * nics
    # The job keeps its number of workers if it needs exactly this many machines; otherwise every GPU has a worker.
    own = base.jobs[0].workers
    workers = own if nodes == -(-own // gpus) else nodes * gpus
    candidates: list[Candidate] = []
    skipped: list[Skipped] = []

    def skip(kind: str, ratio: Fraction, rate_bps: int | None, why: str) -> None:
        skipped.append(Skipped(kind, str(ratio), rate_bps, why))

    # A star always has full bisection.
    shapes = [(kind, ratio) for kind in kinds for ratio in ([Fraction(1)] if kind == "star" else ratios)]
    for kind, ratio in shapes:
        try:
            fabric = fit(kind, ends, ratio, nics)
        except NoFabricError as error:
            skip(kind, ratio, None, str(error))
            continue
        for rate_bps in rates_bps:
            price, bought = None, fabric
            if prices is None:
                ports = sold_ports(fabric.ports, rate_bps)
                if ports is None:
                    why = f"no switch of {fabric.ports} ports or more is sold at {words.rate(rate_bps)}"
                    skip(kind, ratio, rate_bps, f"{words.fabric(kind)} for {ends} hosts: {why}")
                    continue
                bought = replace(fabric, ports=ports)
            else:
                found = prices.switch(fabric.ports, rate_bps)
                if found is None:
                    rate = units.format_rate(rate_bps)
                    skip(
                        kind, ratio, rate_bps, f"{prices.name} has no switch of {fabric.ports} ports or more at {rate}"
                    )
                    continue
                bought = replace(fabric, ports=found[0])
                price = float(
                    fabric.switches * found[1]
                    + fabric.cables * prices.cables.get(rate_bps, Fraction(0))
                    + ends * prices.nics.get(rate_bps, Fraction(0))
                )
            for collective in collectives:
                candidates.append(_candidate(base, workers, bought, collective, rate_bps, price, engine))
    if not candidates:
        raise ValueError(
            "nothing that is asked for can be bought: " + "; ".join(dict.fromkeys(one.why for one in skipped))
        )
    return candidates, skipped


def _fabrics(
    fabrics: Sequence[str], bisection: "Sequence[str | int | float | Fraction]"
) -> tuple[list[str], list[Fraction]]:
    kinds = [name.replace("-", "_") for name in fabrics]
    for name, kind in zip(fabrics, kinds, strict=True):
        if kind not in KINDS:
            hint = hinted(name, KINDS, f"there are {', '.join(KINDS)}", kind="topology")
            raise ValueError(f"there is no fabric {name!r}; {hint}")
    ratios = [
        one if isinstance(one, Fraction) else units.parse_option("bisection", units.parse_ratio, one)
        for one in bisection
    ]
    return kinds, ratios


def _candidate(
    base: Scenario, workers: int, fabric: Fabric, collective: str, rate_bps: int, price: float | None, engine: str
) -> Candidate:
    of_links = {"link_rate": units.format_rate(rate_bps), "engine": engine}
    run = exchanged_by(base, collective, workers=workers, topology=fabric.topology, **of_links)
    job = run.jobs[0]
    if not job.is_uneven and not job.draws_orders and run.duration_ps is None:
        run = run.replace(iterations=min(job.iterations or ITERATIONS, ITERATIONS))
    parts = [fabric.kind, f"r{fabric.bisection}", collective, units.format_rate(rate_bps)]
    name = run_name(parts)
    delayed = run.replace(link_delay=units.format_time(_other_delay_ps(run)))
    return Candidate(name, fabric, collective, rate_bps, run, alone(run, job.parameter_bytes), delayed, price)


def _row(one: Candidate, run: RunResult, exchange: RunResult, delayed: RunResult) -> dict[str, Any]:
    fabric = one.fabric
    counted = ("nodes", "hosts", "ports", "switches", "cables", "unused_ports", "crossbars")
    return {
        "candidate": one.name,
        "fabric": fabric.kind,
        "bisection": str(fabric.bisection),
        "collective": one.collective,
        "rate_bps": one.rate_bps,
        **{name: getattr(fabric, name) for name in counted},
        "price": one.price,
        "cost": float(fabric.crossbars) if one.price is None else one.price,
        "exchange_ms": 1e3 * exchange_s(exchange),
        "iteration_ms": run.job["iteration_time_ms"]["mean"],
        "other_delay_iteration_ms": delayed.job["iteration_time_ms"]["mean"],
        "compute_ms": run.job["compute_ms"],
        "max_link_utilisation": exchange.summary["links"]["max_utilisation"],
    }


def _judge(rows: list[dict[str, Any]]) -> None:
    """Compare the rows of each link rate.

    Adds the columns `slower_percent` (than the fastest row), `is_frontier` (all cheaper rows are slower) and `is_knee`.
    """
    for group in _comparable(rows):
        fastest_ms, knee = _knee(group)
        best_ms = float("inf")
        for row in sorted(group, key=lambda row: (row["cost"], row["iteration_ms"])):
            row["slower_percent"] = 100 * (row["iteration_ms"] / fastest_ms - 1)
            row["is_frontier"] = row["iteration_ms"] < best_ms
            row["is_knee"] = row is knee
            best_ms = min(best_ms, row["iteration_ms"])


def _knee(rows: Sequence[dict[str, Any]], time: str = "iteration_ms") -> tuple[float, dict[str, Any]]:
    """Return the time of the fastest row, and the row of the knee. `time` names the column with the times."""
    fastest_ms = min(row[time] for row in rows)
    near = [row for row in rows if row[time] <= fastest_ms * (1 + KNEE)]
    return fastest_ms, min(near, key=lambda row: (row["cost"], row[time]))


def _comparable(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group the rows by link rate, because networks with other link rates are not alternatives for one purchase."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["rate_bps"], []).append(row)
    return list(groups.values())


def _needs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, by link rate and collective, the knee among the collective's rows and the range of exchange times."""
    found = []
    for group in _comparable(rows):
        for collective in dict.fromkeys(row["collective"] for row in group):
            own = [row for row in group if row["collective"] == collective]
            exchanges_ms = [row["exchange_ms"] for row in own]
            found.append(
                {
                    "collective": collective,
                    "candidate": _knee(own)[1]["candidate"],
                    "fastest_exchange_ms": min(exchanges_ms),
                    "slowest_exchange_ms": max(exchanges_ms),
                }
            )
    return found


def _hottest(one: Candidate, exchange: RunResult) -> list[dict[str, Any]]:
    """Return the links with the longest busy times; if there are links between switches, only one host link is kept."""
    rows = sorted(exchange.links.to_dicts(), key=lambda row: -row["busy_us"])
    hosts = [row for row in rows if re.search(r"(^|-)h\d+$", row["link"])]
    own = {row["link"] for row in hosts}
    trunks = [row for row in rows if row["link"] not in own]
    chosen = [*trunks[: HOTTEST - 1], *hosts[:1]] if trunks else rows[:HOTTEST]
    return [
        {
            "candidate": one.name,
            "link": row["link"],
            "rate_bps": row["rate_bps"],
            "bytes": row["bytes"] // EXCHANGES,
            "busy_us": row["busy_us"] / EXCHANGES,
            "utilisation": row["busy_us"] / EXCHANGES / 1e6 / exchange_s(exchange),
        }
        for row in sorted(chosen, key=lambda row: -row["busy_us"])
    ]


def _headline(rows: Sequence[dict[str, Any]], base: Scenario, nodes: int, unit: str) -> str:
    groups = _comparable(rows)
    return "\n".join([*(_answer(group, base, nodes, unit, len(groups) > 1) for group in groups), _delays(groups, base)])


def _answer(group: Sequence[dict[str, Any]], base: Scenario, nodes: int, unit: str, several: bool) -> str:
    knee = next(row for row in group if row["is_knee"])
    at = f" at {words.rate(knee['rate_bps'])}" if several else ""
    built = words.built(knee).removeprefix("1 switch of ")
    text = (
        f"For {base.jobs[0].model} on {nodes} nodes{at}, buy {_network(knee)} ({built}) and exchange by "
        f"{words.collective(knee['collective'])}: {words.milliseconds(knee['iteration_ms'])} an iteration"
    )
    is_priced = knee["price"] is not None
    if len(group) > 1:
        slower = knee["slower_percent"]
        text += ", the fastest of all" if slower < 0.05 else f", {slower:.1f} % more than the fastest"
        text += "," if is_priced else ""
    if is_priced:
        text += f" for {words.amount(knee['cost'])} {unit}"
    full = [row for row in group if row["bisection"] == "1" and row["fabric"] == knee["fabric"]]
    dearest = max(full, key=lambda row: row["cost"], default=None)
    if dearest is not None and dearest["cost"] > 1.005 * knee["cost"]:
        what = "the network" if is_priced else "switches"
        times = words.number(float(f"{dearest['cost'] / knee['cost']:.2g}"))
        text += f"; without oversubscription, {what} would cost {times} times as much"
    return text + "."


def _delays(groups: Sequence[Sequence[dict[str, Any]]], base: Scenario) -> str:
    """Return the sentences on the cable delay that the answer assumes, and on the answer with the other delay."""
    own, other = (words.spaced(units.format_time(ps)) for ps in (_delay_ps(base), _other_delay_ps(base)))
    moved = []
    for group in groups:
        knee = next(row for row in group if row["is_knee"])
        _, there = _knee(group, "other_delay_iteration_ms")
        if knee is not there:
            at = f" at {words.rate(there['rate_bps'])}" if len(groups) > 1 else ""
            what = f"{_network(there)}{at} and exchange by {words.collective(there['collective'])}"
            moved.append(f"{what}, for {words.milliseconds(there['other_delay_iteration_ms'])} an iteration")
    answer = f"buy {'; '.join(moved)}" if moved else "the answer is the same"
    return f"The answer assumes a delay of {own} for each cable (cluster.link.delay). With {other}, {answer}."


def _network(row: dict[str, Any]) -> str:
    name = words.fabric(row["fabric"])
    if row["fabric"] == "star":
        return name
    return f"a {name} network with an oversubscription of {words.oversubscription(row['bisection'])}"


# -- figures ----------------------------------------------------------------------------------------------------------


def _exchange_series(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return plots of exchange time over bisection ratio, as in figs 7 to 10 of Zhang et al. (2017)."""
    made = []
    keys = dict.fromkeys((row["fabric"], row["rate_bps"]) for row in rows if row["fabric"] != "star")
    for fabric, rate_bps in keys:
        mine = [row for row in rows if (row["fabric"], row["rate_bps"]) == (fabric, rate_bps)]
        ratios = sorted({Fraction(row["bisection"]) for row in mine})
        if len(ratios) < 2:
            continue
        found = {(row["collective"], Fraction(row["bisection"])): row["exchange_ms"] for row in mine}
        made.append(
            {
                "figure": "exchange",
                "title": f"{words.fabric(fabric)}, {words.rate(rate_bps)}",
                "x": {"label": "bisection ratio", "values": [float(ratio) for ratio in ratios]},
                "y": {"label": "exchange (ms)"},
                "ylog": True,
                "lines": [
                    {"name": words.collective(name), "values": [found.get((name, ratio)) for ratio in ratios]}
                    for name in dict.fromkeys(row["collective"] for row in mine)
                ],
            }
        )
    return made


def _switch_series() -> dict[str, Any]:
    """Return the plot of the number of crossbars over the number of nodes, as in fig. 6 of Zhang et al. (2017)."""
    return {
        "figure": "switches",
        "title": "switches over nodes",
        "x": {"label": "nodes", "values": list(NODES)},
        "y": {"label": "2x2 crossbars"},
        "lines": [
            {
                "name": f"{words.fabric(kind)}, {ratio}",
                "values": [crossbars_of_table_1(kind, nodes, ratio) for nodes in NODES],
            }
            for kind in ("clos2", "clos3")
            for ratio in (BISECTIONS[0], BISECTIONS[2], BISECTIONS[3])
        ],
    }


__all__ = ["COLLECTIVES", "BuyResult", "buy"]
