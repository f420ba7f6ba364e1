"""Gao (2020), chapter 5: a training job next to web-search flows, on the packet engine.

The thesis ran on ns-3.30.1, whose fast recovery retransmits segments that are already in flight. These runs do so, too
(`cluster.transport.recovery`). docs/validation/thesis-ch5.md has the reason, and the results with the default.

The module is longer than 600 lines because tables 5.1 to 5.5 and figs 5.5 to 5.23 share one grid of runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradtide.papers.harness import (
    SHOWN,
    TOLERANCES,
    Check,
    Claim,
    Drawn,
    Figure,
    Said,
    Statements,
    changed,
    chart,
    exactly,
    judged,
    least,
    line,
    near,
    published,
    statements_hold,
    table,
    value,
)
from gradtide.scenario import Scenario
from gradtide.studies.result import RunResult
from gradtide.studies.tenants.cases import BANDS, variant
from gradtide.studies.tenants.comparison import colour

# Table 5.3: {ratio of compute to network: compute time per iteration in ms}.
COMPUTE_MS = {16: 2240, 8: 1120, 4: 560, 2: 280}
# Table 5.4: flows per second on each host.
FLOW_RATES = (23, 46, 92, 184)
# Each run of the thesis is repeated "three times with different seeds" (section 5.4.4).
SEEDS = (0, 1, 2)
# The thesis calls flows below 100 kB small ("Small flows (<100KB)", figs 5.5 to 5.12).
SMALL_BYTES = 100_000
QUANTITIES = ("small", "large", "iteration")
PAPER = published(__name__)
NOTES = PAPER["notes"]

# Values of `cluster.transport.recovery`: the thesis's, as in the preset; and the default, which agrees with ns-3.37.
THESIS_RECOVERY = Scenario.load(PAPER["preset"]).to_dict()["cluster"]["transport"]["recovery"]
DEFAULT_RECOVERY = "sack"

# (ratio of compute to network, flows per second and host), as in tables 5.3 and 5.4.
Cell = tuple[int, int]
# (ratio, flow rate, band of the job, seed).
Key = tuple[int, int, str, int]
# (key, value of `cluster.transport.recovery`).
Case = tuple[Key, str]
# {quantity: (mean in the same band, mean in the low band, change in % as in the thesis)}.
Means = dict[str, tuple[float, float, float]]

PUBLISHED: dict[Cell, Means] = {
    (row["ratio"], row["rate"]): {quantity: tuple(row[quantity]) for quantity in QUANTITIES} for row in PAPER["cells"]
}
TABLE_5_4: dict[Cell, list[float]] = {(row["ratio"], row["rate"]): row["use"] for row in PAPER["cells"]}
NS3_37: dict[tuple[int, int, str], tuple[float, ...]] = {
    (row["ratio"], row["rate"], row["band"]): tuple(row["means"]) for row in PAPER["ns3_37"]
}

# Number of points of a CDF of completion times.
CDF_POINTS = 40

ALL = tuple(PUBLISHED)
PROGRESS: dict[str, Cell] = {"5.20, 5.21": (4, 92), "5.22, 5.23": (2, 92)}


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    (ratio, rate, band, seed), recovery = case
    scaled = base.replace(scale_to=f"{COMPUTE_MS[ratio]}ms", timeline=3 if (ratio, rate) in PROGRESS.values() else 0)
    settings = {"cluster.transport.recovery": recovery, "traffic.web.arrivals.rate": f"{rate}/s"}
    return variant(scaled.set(settings), seed, band)


class Seen:
    """The figures of a run that are kept.

    Attributes:
        web: figures of the flows, by size class.
        iteration_time: mean iteration time of the job, in seconds.
        iterations: number of iterations.
        link_use_percent: mean utilisation of all links.
        small_us: start times and completion times of small flows that start after warm-up and before cool-down; each of
            shape (flows,), NaN for unfinished flows.
        exchanges_us: start and end times of the all-reduces.
        drawn: the whole result, if its timeline is drawn; otherwise None.
    """

    def __init__(self, case: Case, result: RunResult) -> None:
        (ratio, rate, _, seed), recovery = case
        self.web: dict[str, Any] = result.summary["traffic"]["web"]
        self.iteration_time = result.iteration_time
        self.iterations = len(result.iterations)
        self.link_use_percent = float(100 * result.links["utilisation"].mean())
        start_us, fct_us = result.flows["start_us"], result.flows["fct_us"]
        first_us = result.scenario.warmup_ps / 1e6
        last_us = start_us.max(initial=0.0) - result.scenario.cooldown_ps / 1e6
        counts = (start_us > first_us) & (start_us < last_us) & (result.flows["bytes"] <= SMALL_BYTES)
        self.small_us = start_us[counts], fct_us[counts]
        self.exchanges_us = result.transfers["start_us"], result.transfers["end_us"]
        is_drawn = (ratio, rate) in PROGRESS.values() and (seed, recovery) == (0, THESIS_RECOVERY)
        self.drawn = result if is_drawn else None


@dataclass(frozen=True)
class Study:
    """The runs by key: `results` with the thesis's loss recovery, `others` with the default recovery and seed 0."""

    base: Scenario
    results: Mapping[Key, Seen]
    others: Mapping[Key, Seen]

    @cached_property
    def means(self) -> dict[Cell, Means]:
        """Means over the seeds, by cell (ratio, flow rate). Changes are computed as in the thesis (fig. 5.19)."""
        return {cell: self._means(cell) for cell in dict.fromkeys(key[:2] for key in self.results)}

    def _means(self, cell: Cell) -> Means:
        same, low = (np.mean([quantities(r) for r in self.runs(cell, band)], axis=0) for band in BANDS)
        return {
            quantity: (float(s), float(w), float(100 * ((w - s) / s if quantity == "iteration" else (s - w) / w)))
            for quantity, s, w in zip(QUANTITIES, same, low, strict=True)
        }

    def runs(self, cell: Cell, band: str) -> list[Seen]:
        """Return the runs of a cell in which the job is in a band, one per seed."""
        return [self.results[(*cell, band, seed)] for seed in SEEDS]

    def p99_ms(self, cell: Cell, band: str) -> float:
        """Return the 99th percentile of small flows' completion times in ms, as a mean over the seeds."""
        return float(np.mean([result.web["small"]["p99_fct_ms"] for result in self.runs(cell, band)]))

    def link_use_percent(self, cell: Cell, band: str) -> float:
        """Return the mean utilisation of all links in percent, as a mean over the seeds."""
        return float(np.mean([result.link_use_percent for result in self.runs(cell, band)]))

    def small_ms(self, cell: Cell, band: str, seed: int) -> NDArray[np.float64]:
        """Return the completion times of `small_us` in ms, NaN for unfinished flows; shape (flows,)."""
        return self.small_us(cell, band, seed)[1] / 1e3

    def small_us(self, cell: Cell, band: str, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `Seen.small_us` of a run: start and completion times in us, each of shape (flows,)."""
        return self.results[(*cell, band, seed)].small_us

    def gains_percent(self, cell: Cell) -> list[float]:
        """Return, for each seed, by how many percent small flows take longer in the same band than in the low band."""
        means = [[np.nanmean(self.small_ms(cell, band, seed)) for band in BANDS] for seed in SEEDS]
        return [float(100 * (same - low) / low) for same, low in means]

    def ring_share(self, cell: Cell, starts_us: NDArray[np.float64], seed: int) -> NDArray[np.bool_]:
        """Return, for each of `starts_us`, whether an all-reduce is then under way in the run with the same band."""
        within = np.zeros(len(starts_us), dtype=bool)
        for start, end in zip(*self.results[(*cell, "same", seed)].exchanges_us, strict=True):
            within |= (starts_us >= start) & (starts_us < end)
        return within


def quantities(result: Seen) -> tuple[float, float, float]:
    """Return (mean FCT of small flows in ms, mean FCT of large flows in ms, iteration time in s)."""
    return result.web["small"]["mean_fct_ms"], result.web["large"]["mean_fct_ms"], result.iteration_time


def _headline(checks: Sequence[Check], study: Study, _figure: str | None) -> str:
    held = statements_hold(checks)
    if set(study.means) != set(ALL):
        return held
    colours = [colour(own["iteration"][2]) for own in study.means.values()]
    free = [own["small"][2] for own in study.means.values() if colour(own["iteration"][2]) == "green"]
    gain = f"; where it is free, small flows take on average {np.mean(free):.0f} % longer without it" if free else ""
    return (
        f"{held} De-prioritising the job is free in {colours.count('green')} of {len(colours)} configurations, costs "
        f"1 to 30 % in {colours.count('yellow')} and more in {colours.count('red')}{gain}."
    )


# -- checks -----------------------------------------------------------------------------------------------------------


def _near_claims(cells: Sequence[Cell]) -> Callable[[Study], Iterable[Claim]]:
    """Return a function that compares means with the thesis; values from plots also with the tolerance of text."""

    def claims(study: Study) -> Iterable[Claim]:
        for quantity in QUANTITIES:
            far = []
            for cell, (at, band) in product(cells, enumerate(BANDS)):
                ours, theirs = study.means[cell][quantity][at], PUBLISHED[cell][quantity][at]
                if not near(ours, theirs):
                    far.append(f"{cell[1]}/s, {band}: {100 * (ours / theirs - 1):+.0f} %")
            name = "iteration time" if quantity == "iteration" else f"mean FCT of {quantity} flows"
            count = 2 * len(cells)
            text = f"{count - len(far)} of {count} within {100 * TOLERANCES['text']:.0f} %"
            yield name, f"{count} values", text, not far, f"{NOTES['waits']} Farther: {'; '.join(far)}."

    return claims


def _right(total: int, wrong: Sequence[str]) -> tuple[str, bool, str]:
    """Return "n of `total`" for the values that agree, whether all do, and a sentence with the values in `wrong`."""
    return f"{total - len(wrong)} of {total}", not wrong, f"Ours differs: {'; '.join(wrong)}."


def _map_claims(study: Study) -> Iterable[Claim]:
    total = len(ALL)
    for quantity in ("small", "large"):
        wrong = [_where(c) for c in ALL if study.means[c][quantity][2] * PUBLISHED[c][quantity][2] < 0]
        yield f"sign of the change, {quantity} flows", f"{total} cells", *_right(total, wrong)
    pairs = [(c, colour(study.means[c]["iteration"][2]), colour(PUBLISHED[c]["iteration"][2])) for c in ALL]
    wrong = [f"{_where(c)}: {own} for {theirs}" for c, own, theirs in pairs if own != theirs]
    text, holds, which = _right(total, wrong)
    yield "colour of the cell", f"{total} cells", text, holds, f"{NOTES['colours']} {which}"


def _side_claims(study: Study) -> Iterable[Claim]:
    pairs = ((quantities(study.others[(*key, 0)]), theirs) for key, theirs in NS3_37.items())
    worst = max(abs(a / b - 1) for own, theirs in pairs for a, b in zip(own, theirs, strict=True))
    what = f'{len(NS3_37)} runs, recovery = "{DEFAULT_RECOVERY}"'
    yield what, "ns-3.37", f"within {100 * worst:.2f} %", SHOWN, "ns-3.37 is not the thesis, which ran on 3.30.1."


def _gain_claims(cell: Cell, said: str, holds: Callable[[list[float]], bool]) -> Callable[[Study], Iterable[Claim]]:
    def claims(study: Study) -> Iterable[Claim]:
        gains = study.gains_percent(cell)
        yield "gain of small flows by run", said, " / ".join(f"{g:.0f} %" for g in gains), holds(gains), NOTES["spread"]

    return claims


def _sooner_claims(study: Study) -> Iterable[Claim]:
    shares = []
    for seed in SEEDS:
        same, low = (study.small_ms((16, 23), band, seed) for band in BANDS)
        shares.append(float(100 * np.mean(low < same)))
    text = f"{{:.0f}} % ({' / '.join(f'{share:.0f}' for share in shares)} by run)"
    said = value(15, "about 15 %")
    yield judged("small flows that end sooner, on average", said, float(np.mean(shares)), text, NOTES["met"])
    yield from _gain_claims((16, 23), "the second most (72.8 %)", lambda g: max(g) == g[1])(study)


def _start_claims(study: Study) -> Iterable[Claim]:
    cell, within, busy = (16, 23), [], []
    for seed in SEEDS:
        (starts, same), (_, low) = (study.small_us(cell, band, seed) for band in BANDS)
        most = np.argsort(low - same)[:20]
        active = study.ring_share(cell, starts, seed)
        within.append(active[most].mean())
        busy.append(active.mean())
    both = (100 * float(np.mean(busy)), 100 * float(np.mean(within)))
    form = "{:.0f} % of all, {:.0f} % of the 20 that gain most"
    yield changed("start within an all-reduce", "those that gain", both, form, grows=True)


def _rate_claims(study: Study) -> Iterable[Claim]:
    for quantity, percent in (("small", 40), ("large", 10)):
        own = min(study.means[ratio, 23][quantity][2] for ratio in COMPUTE_MS)
        said = least(percent, f"at least {percent} %")
        yield judged(f"least gain of {quantity} flows", said, own, "{:.0f} %", NOTES["spread"])


def _cost_claims(cell: Cell, theirs: float) -> Callable[[Study], Iterable[Claim]]:
    def claims(study: Study) -> Iterable[Claim]:
        own = study.means[cell]["iteration"][2]
        what = f"cost to the job, {_where(cell)}"
        yield judged(what, value(theirs, f"{theirs:g} %"), own, "{:.1f} %", NOTES["twice"])

    return claims


def _plateau_claims(study: Study) -> Iterable[Claim]:
    use = study.link_use_percent((2, 92), "low")
    said = value(40, "a plateau of 40 %")
    yield judged("link use at a ratio of 2, low band", said, use, "{:.0f} %", NOTES["plateau"])


def _heavy_claims(study: Study) -> Iterable[Claim]:
    own = [study.means[ratio, 184] for ratio in COMPUTE_MS]
    cost = min(means["iteration"][2] for means in own)
    yield judged("least cost to the job", least(29, "at least 29 %"), cost, "{:.0f} %", NOTES["spread"])
    small, large = (max(means[quantity][2] for means in own) for quantity in ("small", "large"))
    said = [value(25, "25 %"), value(10, "10 %")]
    yield judged("most gain of large and of small flows", said, [large, small], "{:.0f} % and {:.0f} %", NOTES["most"])


def _quarter_claims(study: Study) -> Iterable[Claim]:
    for quantity, low, high in (("large", 10, 20), ("small", 30, 50)):
        own = [study.means[cell][quantity][2] for cell in QUARTER]
        theirs = ", ".join(f"{PUBLISHED[cell][quantity][2]:.0f}" for cell in QUARTER)
        form = ", ".join("{:.0f}" for _ in own) + " %"
        note = f"The thesis's own fig. 5.19 prints {theirs} %."
        yield judged(f"gain of {quantity} flows", Said(f"{low} to {high} %", low, high), own, form, note)


def _iteration_claims(study: Study) -> Iterable[Claim]:
    counts = [result.iterations for result in study.runs((4, 92), "same")]
    text = f"{{:.0f}} ({' / '.join(map(str, counts))} by run)"
    yield judged("iterations within the run, same band, median", value(18, "18"), float(np.median(counts)), text)


def _ratio_claims(study: Study) -> Iterable[Claim]:
    for ratio, compute_ms in COMPUTE_MS.items():
        own = 100 / _use(study.base, (ratio, 23))[0]
        yield judged(f"eq. 5.1 at {compute_ms} ms", exactly(ratio, str(ratio)), own, "{:.2f}")


def _use_claims(study: Study) -> Iterable[Claim]:
    wrong = []
    for cell, printed in TABLE_5_4.items():
        own = _use(study.base, cell)
        wrong += [
            f"{_where(cell)}: {a:.4g} for {b:g}" for a, b in zip(own, printed, strict=True) if abs(a / b - 1) > 0.005
        ]
    total = sum(map(len, TABLE_5_4.values()))
    text, holds, which = _right(total, wrong)
    yield "entries, eqs 5.2 to 5.5", f"{total}", text, holds, f"{which} {NOTES['sum']}"


def _count_claims(study: Study) -> Iterable[Claim]:
    for seed, counts in enumerate(PAPER["flow_counts"]):
        flows = study.results[16, 23, "same", seed].web
        own = [flows[size]["completed"] for size in ("small", "medium", "large")]
        theirs, found = " / ".join(map(str, counts)), " / ".join(map(str, own))
        yield f"small / medium / large flows, run {seed}", theirs, found, own == counts


def _where(cell: Sequence[int]) -> str:
    return f"R = {cell[0]}, {cell[1]}/s"


# -- tables and maps --------------------------------------------------------------------------------------------------


def _use(base: Scenario, cell: Cell) -> tuple[float, float, float, float]:
    """Return the link utilisation in percent by job, flows, and both, and the ratio of flows to job (eqs 5.2 to 5.5).

    As in the thesis, the model has 100 MB, and flows have 1.7 MB on average.
    """
    job_bits = 100e6 * 2 * (1 - 1 / base.jobs[0].workers) * 8
    job = job_bits / (COMPUTE_MS[cell[0]] / 1e3) / base.link_rate_bps
    flows = cell[1] * 1.7e6 * 8 / base.link_rate_bps
    return 100 * job, 100 * flows, 100 * (job + flows), flows / job


def _sides_table(study: Study) -> list[Drawn]:
    rows = []
    for key, ns3 in NS3_37.items():
        cell, band = key[:2], key[2]
        default, early = quantities(study.others[(*key, 0)]), quantities(study.results[(*key, 0)])
        for i, quantity in enumerate(QUANTITIES):
            at = BANDS.index(band)
            numbers = (ns3[i], default[i], early[i], PUBLISHED[cell][quantity][at], study.means[cell][quantity][at])
            name = "iteration, s" if quantity == "iteration" else f"{quantity} flows, ms"
            rows.append([_where(cell), band, name, *(f"{number:.4g}" for number in numbers)])
    columns = (
        "cell", "band", "mean", "ns-3.37, run 0", "ours as ns-3.37, run 0", "ours as ns-3.30.1, run 0",
        "thesis, 3 runs", "ours as ns-3.30.1, 3 runs",
    )  # fmt: skip
    note = (
        "ns-3.37 and gradtide's default are equal flow by flow. The thesis ran on ns-3.30.1, whose fast recovery "
        "repeats segments that are under way already; with this recovery, gradtide reproduces the thesis's figures."
    )
    return [table("The thesis, ns-3.37 and gradtide", columns, rows, note)]


def _job_table(study: Study) -> list[Drawn]:
    (job,) = study.base.jobs
    rows = [
        ("layer sizes", "100 MB", f"{job.parameter_bytes / 1e6:.2f} MB, by the author's formula"),
        ("workers", "8", str(job.workers)),
        ("layers", "50", str(len(job.layers))),
        ("fusion buffer", "5333329 B", f"{job.schedule.cap_bytes} B"),
        ("compute time", "900 ms; tests: 2240, 1120, 560, 280 ms", ", ".join(f"{t} ms" for t in COMPUTE_MS.values())),
        ("priority", "0x10 or 0x08", "the flows' band (0) or the lowest (2)"),
    ]
    return [table("Table 5.1: the job", ("parameter", "thesis", "ours"), rows)]


def _network_table(study: Study) -> list[Drawn]:
    base = study.base
    delay_ns = base.link_delay_ps // 1000
    rows = [
        ("simulated time", "12 s", f"{base.duration_ps / 1e12:g} s" if base.duration_ps else "–"),
        ("hosts", "8, one switch", f"{base.jobs[0].workers}, one switch"),
        ("link", "10 Gbit/s, 10000 ns", f"{base.link_rate_bps / 1e9:g} Gbit/s, {delay_ns} ns"),
        ("device queue", "1 packet", "1 packet"),
        ("queue", "pfifo_fast, 1000 packets", f"{base.queue}, {base.queue_packets} packets"),
        ("priority queues", "1 printed; 3 bands by its section 5.3", "3 bands"),
        ("TCP", "of ns-3.30.1, not printed", f"newreno, recovery = {THESIS_RECOVERY}"),
    ]
    return [table("Table 5.2: the network", ("parameter", "thesis", "ours"), rows)]


def _ratio_table(study: Study) -> list[Drawn]:
    rows = []
    for ratio, compute_ms in COMPUTE_MS.items():
        use = _use(study.base, (ratio, 23))[0]
        rows.append((f"{ratio}", f"{100 / use:.2f}", f"{compute_ms}", f"{100 / ratio:g}", f"{use:.3g}"))
    columns = ("ratio", "ratio, eq. 5.1", "compute time, ms", "job's link use, %", "eq. 5.2, %")
    return [table("Table 5.3: the job's link use", columns, rows)]


def _use_table(study: Study) -> list[Drawn]:
    rows = []
    for cell, printed in TABLE_5_4.items():
        pairs = zip(printed, _use(study.base, cell), strict=True)
        rows.append([str(cell[0]), str(cell[1]), *(f"{a:g} / {b:.4g}" for a, b in pairs)])
    columns = ("R", "flows/s", "job, %", "flows, %", "both, %", "flows : job")
    note = "Printed / by equations 5.2 to 5.5. The thesis prints 72.5 % where its own 50 and 12.5 % add up to 62.5 %."
    return [table("Table 5.4: link use", columns, rows, note)]


def _count_table(study: Study) -> list[Drawn]:
    rows: list[Sequence[str]] = []
    sizes = ("small", "medium", "large")
    for seed in SEEDS:
        own = [study.results[16, 23, "same", seed].web[size] for size in sizes]
        for size, theirs, count in zip(sizes, PAPER["flow_counts"][seed], own, strict=True):
            share = 100 * count["completed"] / max(count["started"], 1)
            rows.append((str(seed), size, str(theirs), str(count["completed"]), f"{share:.0f}"))
    totals = [sum(int(row[i]) for row in rows) for i in (2, 3)]
    rows.append(("all", "all", *map(str, totals), "–"))
    return [table("Table 5.5: flows that count", ("run", "flows", "published", "ours", "completed, %"), rows)]


def _maps(study: Study) -> Iterable[Drawn]:
    """Yield the three maps of fig. 5.19, published and ours. As in the thesis, the job's highest load is on top."""
    titles = {"iteration": "What the job pays", "small": "What small flows gain", "large": "What large flows gain"}
    for (quantity, title), (who, means) in product(titles.items(), _sources(study)):
        rows = []
        for ratio in sorted(COMPUTE_MS):
            changes = [means[ratio, rate][quantity][2] for rate in FLOW_RATES]
            colours = [colour(change) if quantity == "iteration" else "" for change in changes]
            cells = [{"change_percent": a, "colour": b} for a, b in zip(changes, colours, strict=True)]
            rows.append({"load": f"R = {ratio}", "cells": cells})
        yield {"title": f"{title}: {who}", "columns": [f"{rate}/s" for rate in FLOW_RATES], "rows": rows}


# -- series -----------------------------------------------------------------------------------------------------------


def _sources(study: Study) -> tuple[tuple[str, Mapping[Cell, Means]], ...]:
    return ("published", PUBLISHED), ("ours", study.means)


def _changes(study: Study, cells: Sequence[Cell]) -> list[Drawn]:
    return [
        line(f"{quantity} flows, {who}", [means[cell][quantity][2] for cell in cells], band=band, who=who)
        for quantity, band in (("small", "same"), ("large", "low"))
        for who, means in _sources(study)
    ]


def _over_rates(cells: Sequence[Cell]) -> Callable[[Study], Iterable[Drawn]]:
    """Return a function that draws each quantity over the flow rate, with two lines per band: published and ours."""
    x = ("flows/s per host", [rate for _, rate in cells])

    def series(study: Study) -> Iterable[Drawn]:
        for title, quantity, unit in (
            ("mean FCT of small flows", "small", "ms"),
            ("mean FCT of large flows", "large", "ms"),
            ("iteration time", "iteration", "s"),
        ):
            lines = [
                line(f"{band} band, {who}", [means[cell][quantity][at] for cell in cells], band=band, who=who)
                for (at, band), (who, means) in product(enumerate(BANDS), _sources(study))
            ]
            yield chart(title, x, unit, lines, "")
        yield chart("FCT change", x, "%", _changes(study, cells), "")
        for title, unit, of, note in (
            ("99th percentile, small flows", "ms", study.p99_ms, "The published values are not printed."),
            ("link use", "%", study.link_use_percent, "Of all links, headers and repetitions included."),
        ):
            found = {band: [of(cell, band) for cell in cells] for band in BANDS}
            lines = [line(f"{band} band, ours", values, band=band, who="ours") for band, values in found.items()]
            yield chart(title, x, unit, lines, note)

    return series


def _over_use(cells: Sequence[Cell], use: int, label: str) -> Callable[[Study], Iterable[Drawn]]:
    """Return a function that draws changes of FCT and iteration time over the utilisation `_use(...)[use]`."""

    def series(study: Study) -> Iterable[Drawn]:
        x = (label, [round(_use(study.base, cell)[use], 3) for cell in cells])
        costs = [
            line(who, [means[cell]["iteration"][2] for cell in cells], band="low", who=who)
            for who, means in _sources(study)
        ]
        yield chart("FCT change", x, "%", _changes(study, cells), "")
        yield chart("iteration time change", x, "%", costs, "")

    return series


def _cdfs(cell: Cell) -> Callable[[Study], Iterable[Drawn]]:
    """Return a function that draws the CDF of small flows' completion times in a cell, with a chart per seed."""

    def series(study: Study) -> Iterable[Drawn]:
        for seed in SEEDS:
            times = {band: np.sort(study.small_ms(cell, band, seed)) for band in BANDS}
            every = np.concatenate(list(times.values()))
            x = np.array([0.1, 1.0])
            if len(every):
                x = np.geomspace(0.98 * np.nanmin(every), 1.002 * np.nanmax(every), CDF_POINTS)
            lines = []
            for band, own in times.items():
                shares = [round(float(100 * np.mean(own <= at)), 3) if len(own) else None for at in x]
                lines.append(line(f"{band} band", shares, band=band, who="ours"))
            places = ("completion time, ms", [float(f"{at:.5g}") for at in x])
            note = f"Mean gain {study.gains_percent(cell)[seed]:.0f} %."
            yield chart(f"run {seed}", places, "flows that have ended, %", lines, note)

    return series


def _gains_over_time(study: Study) -> Iterable[Drawn]:
    """Draw the time that small flows save per fifth of a second, and when all-reduces are under way."""
    cell = (16, 23)
    for seed in SEEDS:
        (starts, same), (_, low) = (study.small_us(cell, band, seed) for band in BANDS)
        ends = np.arange(0, (starts.max() if len(starts) else 0) + 2e5, 2e5)
        bins = np.digitize(starts, ends)
        saved = [float(np.nansum((same - low)[bins == i]) / 1e3) for i in range(1, len(ends) + 1)]
        fine = ends[:, None] + np.arange(0, 2e5, 2e3)[None, :]
        active = study.ring_share(cell, fine.ravel(), seed).reshape(fine.shape).mean(axis=1)
        top = max([*map(abs, saved), 1.0])
        active_ms = [round(float(top * share), 3) for share in active]
        lines = [
            line("all-reduces under way (share of time, to scale)", active_ms, band="low", who="published"),
            line("saved by the lower band", saved, band="same", who="ours"),
        ]
        x = ("start of the flows, s", [round(float(end / 1e6), 3) for end in ends])
        yield chart(f"run {seed}", x, "ms", lines, "Sum over the small flows that start within a fifth of a second.")


# -- figures ----------------------------------------------------------------------------------------------------------


def _cases(cells: Iterable[Cell]) -> list[Case]:
    return [((*cell, band, seed), THESIS_RECOVERY) for cell, band, seed in product(cells, BANDS, SEEDS)]


def _figure(cells: Sequence[Cell], claims: Callable[[Study], Iterable[Claim]], **drawn: Any) -> Figure[Study, Case]:
    return Figure(_cases(cells), claims, is_slow=len(cells) > 1, **drawn)


def _by_ratio(ratio: int) -> Figure[Study, Case]:
    cells = [(ratio, rate) for rate in FLOW_RATES]
    return _figure(cells, _near_claims(cells), series=_over_rates(cells))


def _by_rate(rate: int, claims: Callable[[Study], Iterable[Claim]]) -> Figure[Study, Case]:
    cells = [(ratio, rate) for ratio in COMPUTE_MS]
    return _figure(cells, claims, series=_over_use(cells, 0, "job's link use, %"))


def _by_traffic(cells: Sequence[Cell], claims: Callable[[Study], Iterable[Claim]]) -> Figure[Study, Case]:
    return _figure(cells, claims, series=_over_use(cells, 2, "expected link use, %"))


def _by_run(cell: Cell, claims: Callable[[Study], Iterable[Claim]]) -> Figure[Study, Case]:
    return _figure([cell], claims, series=_cdfs(cell))


def _progress(name: str, **claims: Any) -> Figure[Study, Case]:
    cell = PROGRESS[name]
    names = {band: f"R{cell[0]}-f{cell[1]}-{band}" for band in BANDS}

    def drawn(study: Study) -> Iterable[Drawn]:
        yield {"job": study.base.jobs[0].name, "runs": {band: f"runs/{own}" for band, own in names.items()}}

    def runs(study: Study) -> dict[str, RunResult]:
        drawn = {own: study.results[(*cell, band, 0)].drawn for band, own in names.items()}
        return {own: result for own, result in drawn.items() if result is not None}

    return Figure(_cases([cell]), **claims, progress=drawn, runs=runs, is_slow=True)


HALF: tuple[Cell, ...] = ((16, 23), (8, 46), (4, 92), (2, 184))
QUARTER: tuple[Cell, ...] = ((8, 23), (4, 46), (2, 92))
"""Cells in which the flows send half as much as the job (`HALF`), or a quarter as much (`QUARTER`)."""

FIGURES: dict[str, Figure[Study, Case]] = {
    "5.19": _figure(ALL, _map_claims, maps=_maps),
    "ns-3": Figure(
        [*_cases(dict.fromkeys(key[:2] for key in NS3_37)), *(((*key, 0), DEFAULT_RECOVERY) for key in NS3_37)],
        _side_claims,
        tables=_sides_table,
        is_slow=True,
    ),
    "5.5": _by_ratio(16),
    "5.8": _by_ratio(8),
    "5.10": _by_ratio(4),
    "5.12": _by_ratio(2),
    "5.6": _by_run((16, 23), _sooner_claims),
    "5.7": _figure([(16, 23)], _start_claims, series=_gains_over_time),
    "5.9": _by_run((8, 23), _gain_claims((8, 23), "66 / 74 / 26 %, the third least", lambda g: min(g) == g[2])),
    "5.11": _by_run((4, 23), _gain_claims((4, 23), "the third least", lambda g: min(g) == g[2])),
    "5.13": _by_rate(23, _rate_claims),
    "5.14": _by_rate(46, _cost_claims((2, 46), 5)),
    "5.15": _by_rate(92, _plateau_claims),
    "5.16": _by_rate(184, _heavy_claims),
    "5.17": _by_traffic(HALF, _cost_claims((4, 92), 15)),
    "5.18": _by_traffic(QUARTER, _quarter_claims),
    "5.20, 5.21": _progress("5.20, 5.21", claims=_iteration_claims),
    "5.22, 5.23": _progress("5.22, 5.23"),
    "Table 5.1": Figure(tables=_job_table),
    "Table 5.2": Figure(tables=_network_table),
    "Table 5.3": Figure(claims=_ratio_claims, tables=_ratio_table),
    "Table 5.4": Figure(claims=_use_claims, tables=_use_table),
    "Table 5.5": _figure([(16, 23)], _count_claims, tables=_count_table),
}


def _study(base: Scenario, results: Mapping[Case, Seen]) -> Study:
    by_recovery: dict[str, dict[Key, Seen]] = {THESIS_RECOVERY: {}, DEFAULT_RECOVERY: {}}
    for (key, recovery), result in results.items():
        by_recovery[recovery][key] = result
    return Study(base, *by_recovery.values())


STATEMENTS = Statements(
    paper=PAPER,
    figures=FIGURES,
    scenario=scenario,
    study=_study,
    seen=Seen,
    headline=_headline,
    seeds=SEEDS,
)
PART = STATEMENTS.part(seconds=300, quick_seconds=30)
