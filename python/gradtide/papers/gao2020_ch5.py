"""Gao (2020), chapter 5: a training job beside web-search flows, packet by packet.

The thesis ran on ns-3.30.1, whose fast recovery repeats segments that are under way already; so do these runs
(`cluster.transport.recovery`). Why, and what the default gives: docs/validation/thesis-ch5.md.

Long, because a quarter of it is what 5 tables and 19 figures print, and all figures share one grid of runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradtide import _core
from gradtide.estimate import Limits
from gradtide.papers.harness import Claim, Part, Progress, Reproduction, check
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.keep import Kept
from gradtide.studies.run import run_all, total_cost
from gradtide.studies.tenants.cases import BANDS, variant
from gradtide.studies.tenants.verdict import colour

# Table 5.3: compute-to-network ratio, compute time per iteration in ms.
COMPUTE_MS = {16: 2240, 8: 1120, 4: 560, 2: 280}
# Table 5.4: flows per second and host.
FLOW_RATES = (23, 46, 92, 184)
# "Each configuration is run three times with different seeds" (section 5.4.4).
SEEDS = (0, 1, 2)
# "Small flows (<100KB)" in figs 5.5 to 5.12.
SMALL_BYTES = 100_000
QUANTITIES = ("small", "large", "iteration")
# cluster.transport.recovery: the thesis's, and the default, which equals ns-3.37 packet by packet.
THESIS_RECOVERY, DEFAULT_RECOVERY = "ns3.30", "sack"

# Figs 5.5, 5.8, 5.10 and 5.12, read off the plots (about 2 %), and the changes printed in fig. 5.19: mean FCT of small
# and of large flows in ms and iteration time in s, each with the job in the flows' band, in the lower one, and the
# change in %.
PUBLISHED = {
    (16, 23): (0.812, 0.577, 40.83, 20.89, 19.05, 9.64, 2.248, 2.246, -0.08),
    (16, 46): (1.134, 1.087, 4.3, 22.92, 22.02, 4.07, 2.253, 2.261, 0.33),
    (16, 92): (2.138, 2.039, 4.86, 31.52, 28.65, 10.04, 2.281, 2.293, 0.53),
    (16, 184): (4.784, 4.610, 3.77, 57.21, 49.42, 15.76, 2.335, 3.030, 29.78),
    (8, 23): (0.925, 0.620, 49.17, 22.30, 19.75, 12.93, 1.131, 1.136, 0.38),
    (8, 46): (1.276, 1.113, 14.58, 24.21, 20.73, 16.78, 1.142, 1.148, 0.52),
    (8, 92): (2.320, 1.987, 16.71, 33.42, 28.65, 16.66, 1.171, 1.188, 1.46),
    (8, 184): (5.075, 4.541, 11.77, 62.09, 50.61, 22.69, 1.411, 3.065, 117.15),
    (4, 23): (1.099, 0.654, 67.85, 25.79, 19.84, 29.98, 0.584, 0.584, 0.1),
    (4, 46): (1.564, 1.027, 52.31, 28.11, 22.61, 24.32, 0.587, 0.587, 0.009),
    (4, 92): (2.782, 2.100, 32.49, 37.99, 30.23, 25.66, 0.629, 0.728, 15.61),
    (4, 184): (5.156, 4.800, 7.41, 62.74, 50.61, 23.97, 1.390, 2.985, 114.78),
    (2, 23): (1.756, 0.741, 136.98, 33.51, 20.14, 66.38, 0.307, 0.302, -1.68),
    (2, 46): (2.057, 1.182, 73.95, 32.08, 22.91, 40.02, 0.359, 0.376, 4.97),
    (2, 92): (2.789, 2.152, 29.59, 39.69, 29.84, 33.03, 0.545, 0.671, 23.11),
    (2, 184): (5.042, 4.748, 6.19, 63.27, 49.72, 27.25, 1.336, 2.926, 118.95),
}

# Table 5.5: flows that count at a ratio of 16 and 23 flows/s, by run.
FLOW_COUNTS = {0: (820, 609, 38), 1: (792, 623, 43), 2: (733, 635, 48)}

# Table 5.4 as printed: use by the job, by the flows, by both, in %, and flows : job.
TABLE_5_4 = {
    (16, 23): (6.25, 3.125, 9.375, 0.5), (16, 46): (6.25, 6.25, 12.5, 1), (16, 92): (6.25, 12.5, 18.75, 2),
    (16, 184): (6.25, 25, 31.25, 4), (8, 23): (12.5, 3.125, 15.63, 0.25), (8, 46): (12.5, 6.25, 18.76, 0.5),
    (8, 92): (12.5, 12.5, 25.01, 1), (8, 184): (12.5, 25, 37.5, 2), (4, 23): (25, 3.125, 28.13, 0.125),
    (4, 46): (25, 6.25, 31.25, 0.25), (4, 92): (25, 12.5, 37.51, 0.5), (4, 184): (25, 25, 50.02, 1),
    (2, 23): (50, 3.125, 53.13, 0.0625), (2, 46): (50, 6.25, 56.25, 0.125), (2, 92): (50, 12.5, 72.5, 0.25),
    (2, 184): (50, 25, 75, 0.5),
}  # fmt: skip

# ns-3.37 on the same flows, run 0 (validation/ns3): mean FCT of small and large flows in ms, iteration time in s.
NS3_37 = {
    (16, 23, "same"): (0.5444, 18.078, 2.25446),
    (16, 23, "low"): (0.4068, 16.494, 2.25150),
    (4, 92, "same"): (2.6725, 33.978, 0.61982),
    (4, 92, "low"): (1.9278, 26.343, 0.67589),
}

# How near an average over three runs must come to a value read off a plot.
NEAR_PERCENT = 10.0
# Points of a curve of completion times.
CDF_POINTS = 40

Cell = tuple[int, int]
Key = tuple[int, int, str, int]
# For each quantity: same band, low band, change in % as the thesis counts it.
Means = dict[str, tuple[float, float, float]]

ALL = tuple(PUBLISHED)
BY_RATIO = {"5.5": 16, "5.8": 8, "5.10": 4, "5.12": 2}
BY_RATE = {"5.13": 23, "5.14": 46, "5.15": 92, "5.16": 184}
BY_TRAFFIC = {"5.17": ((16, 23), (8, 46), (4, 92), (2, 184)), "5.18": ((8, 23), (4, 46), (2, 92))}
CDFS = {"5.6": (16, 23), "5.9": (8, 23), "5.11": (4, 23)}
PROGRESS = {"5.20, 5.21": (4, 92), "5.22, 5.23": (2, 92)}
SIDES = "ns-3"

# What each figure shows, what the thesis says of it, and the cells that it needs.
FIGURES: dict[str, tuple[str, str, tuple[Cell, ...]]] = {
    "5.19": (
        "where de-prioritising the job is free",
        "Green: no impact on the job; yellow: 1 to 30 %; red: the most serious, where flows take 25 % of the links.",
        ALL,
    ),
    SIDES: (
        "the thesis, ns-3.37 and gradtide",
        "Not in the thesis: what the release of the simulator changes.",
        tuple(dict.fromkeys((ratio, rate) for ratio, rate, _ in NS3_37)),
    ),
    **{
        figure: (f"compute-to-network ratio {ratio}", said, tuple((ratio, rate) for rate in FLOW_RATES))
        for (figure, ratio), said in zip(
            BY_RATIO.items(),
            (
                "In the flows' band the iteration time suffers almost nothing; in the lower one small flows gain 40 % "
                "at 23/s, large ones 10 to 15 %, and the job pays from 184/s on.",
                "The job uses 12.5 % of the links in the first three configurations and about 7 % in the last.",
                "At low rates small flows gain at least 50 %, large ones at least 25 %; the job pays from 92/s on.",
                "The job pays from 46/s on; it can be de-prioritised freely only at 23/s.",
            ),
            strict=True,
        )
    },
    "5.6": ("small flows, ratio 16, 23/s", "About 15 % of the small flows finish sooner; the second run gains 72.8 %, "
            "three times the third.", ((16, 23),)),
    "5.7": ("when small flows gain, ratio 16, 23/s", "Flows that gain start when all-reduces do.", ((16, 23),)),
    "5.9": ("small flows, ratio 8, 23/s", "The runs gain 66, 74 and 26 %.", ((8, 23),)),
    "5.11": ("small flows, ratio 4, 23/s", "All third runs gain least.", ((4, 23),)),
    **{
        figure: (f"{rate} flows/s per host", said, tuple((ratio, rate) for ratio in COMPUTE_MS))
        for (figure, rate), said in zip(
            BY_RATE.items(),
            (
                "At least 40 % for small flows and 10 % for large ones.",
                "At a ratio of 2 the lower band costs the job 5 %.",
                "Link use reaches a plateau of 40 %, because the job has become slower.",
                "The job pays at least 29 %; gains level out at 25 % for large and 10 % for small flows.",
            ),
            strict=True,
        )
    },
    "5.17": ("flows send half as much as the job", "The job pays 15 % when the links are used by nearly 40 %.",
             BY_TRAFFIC["5.17"]),
    "5.18": ("flows send a quarter of what the job does", "10 to 20 % for large flows, 30 to 50 % for small ones.",
             BY_TRAFFIC["5.18"]),
    **{
        figure: (f"progress of the job, ratio {cell[0]}, 92/s", said, (cell,))
        for (figure, cell), said in zip(
            PROGRESS.items(),
            (
                "18 iterations end within the run in the flows' band; in the lower one more transfers take longer.",
                "Transfers of later layers are delayed too.",
            ),
            strict=True,
        )
    },
    "Table 5.1": ("the job", "", ()),
    "Table 5.2": ("the network", "", ()),
    "Table 5.3": ("compute-to-network ratio and the job's link use", "", ()),
    "Table 5.4": ("link use", "", ()),
    "Table 5.5": ("flows that count", "All flows complete.", ((16, 23),)),
}  # fmt: skip


def chapter5(
    jobs: int,
    progress: Progress,
    figure: str | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> Reproduction:
    """Gao (2020): tables 5.1 to 5.5 and figs 5.5 to 5.23, on the thesis's own twelve flow schedules.

    Args:
        jobs: runs under way at once.
        progress: called with the share of the runs that is done.
        figure: run what this figure needs, and show it alone.
        keep: where finished runs are kept.
        limits: what a run may cost.
    """
    return reproduction(Scenario.load("paper/gao2020-ch5"), jobs, progress, figure, keep, limits)


def reproduction(
    base: Scenario,
    jobs: int,
    progress: Progress,
    figure: str | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> Reproduction:
    """Reproduce the chapter, or one figure of it, with `base` in place of the preset."""
    shown = FIGURES if figure is None else {figure: FIGURES[figure]}
    cells = [cell for cell in ALL if any(cell in needed for _, _, needed in shown.values())]
    thesis = base.set({"cluster.transport.recovery": THESIS_RECOVERY})
    cases: dict[Key, Scenario] = {
        (*cell, band, seed): variant(cell_scenario(thesis, cell), seed, band)
        for cell, band, seed in product(cells, BANDS, SEEDS)
    }
    others: dict[Key, Scenario] = {}
    if SIDES in shown:
        default = base.set({"cluster.transport.recovery": DEFAULT_RECOVERY})
        others = {(*key, 0): variant(cell_scenario(default, key[:2]), 0, key[2]) for key in NS3_37}
    results = run_all([*cases.values(), *others.values()], jobs, progress, keep, limits)
    study = Study(base, dict(zip(cases, results, strict=False)), dict(zip(others, results[len(cases) :], strict=True)))
    checks = [item for name in shown for item in _checks(study, name)]
    drawn = {name: cell for name, cell in PROGRESS.items() if name in shown}
    summary = {
        "schema": "gradtide.reproduce/1",
        "version": _core.__version__,
        "engine": base.engine,
        "seed": list(SEEDS),
        "paper": "gao2020",
        "part": "ch5" if figure is None else f"ch5/{figure}",
        "title": "Gao (2020), chapter 5: where de-prioritising a training job is free",
        "headline": _headline(study, checks),
        "figures": [{"figure": name, "title": title, "says": says} for name, (title, says, _) in shown.items()],
        "checks": checks,
        "maps": _maps(study) if "5.19" in shown else [],
        "tables": [table for name in shown for table in _tables(study, name)],
        "series": [series for name in shown for series in _series(study, name)],
        "timelines": [],
        "progress": [
            {"figure": name, "job": base.jobs[0].name, "runs": {band: f"runs/{_name(cell, band)}" for band in BANDS}}
            for name, cell in drawn.items()
        ],
        "cost": total_cost(result.summary for result in results),
    }
    kept = {_name(cell, band): study.results[(*cell, band, 0)] for cell in drawn.values() for band in BANDS}
    return Reproduction(summary, kept)


@dataclass(frozen=True)
class Study:
    """The runs by ratio, rate, band and seed, and what follows from them.

    Attributes:
        base: the scenario of every run but for these four.
        results: with the thesis's recovery.
        others: with the default recovery, run 0.
    """

    base: Scenario
    results: Mapping[Key, RunResult]
    others: Mapping[Key, RunResult]

    @cached_property
    def means(self) -> dict[Cell, Means]:
        """Averages over the seeds, by cell; changes as the thesis counts them (its fig. 5.19)."""
        return {cell: self._means(cell) for cell in dict.fromkeys(key[:2] for key in self.results)}

    def _means(self, cell: Cell) -> Means:
        same, low = (np.mean([quantities(r) for r in self.runs(cell, band)], axis=0) for band in BANDS)
        return {
            quantity: (float(s), float(w), float(100 * ((w - s) / s if quantity == "iteration" else (s - w) / w)))
            for quantity, s, w in zip(QUANTITIES, same, low, strict=True)
        }

    def runs(self, cell: Cell, band: str) -> list[RunResult]:
        """Return the runs of a cell and band, by seed."""
        return [self.results[(*cell, band, seed)] for seed in SEEDS]

    def p99_ms(self, cell: Cell, band: str) -> float:
        """Return the 99th percentile of small flows, mean over the seeds."""
        return float(np.mean([_web(result)["small"]["p99_fct_ms"] for result in self.runs(cell, band)]))

    def link_use_percent(self, cell: Cell, band: str) -> float:
        """Return the use of all links, mean over the seeds."""
        return float(np.mean([100 * result.links["utilisation"].mean() for result in self.runs(cell, band)]))

    def small_ms(self, cell: Cell, band: str, seed: int) -> NDArray[np.float64]:
        """Return the completion times of the small flows that count, NaN for one that did not end; shape (flows,)."""
        return self.small_us(cell, band, seed)[1] / 1e3

    def small_us(self, cell: Cell, band: str, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return starts and completion times of the small flows that count; both of shape (flows,)."""
        flows = self.results[(*cell, band, seed)].flows
        start_us, fct_us = flows["start_us"], flows["fct_us"]
        first_us, last_us = self.base.warmup_ps / 1e6, start_us.max() - self.base.cooldown_ps / 1e6
        counts = (start_us > first_us) & (start_us < last_us) & (flows["bytes"] <= SMALL_BYTES)
        return start_us[counts], fct_us[counts]

    def gains_percent(self, cell: Cell) -> list[float]:
        """Return how much longer small flows take on average in the same band, by seed."""
        means = [[np.nanmean(self.small_ms(cell, band, seed)) for band in BANDS] for seed in SEEDS]
        return [float(100 * (same - low) / low) for same, low in means]

    def ring_share(self, cell: Cell, starts_us: NDArray[np.float64], seed: int) -> NDArray[np.bool_]:
        """Return which of these instants fall into an all-reduce of the run in the same band; shape of `starts_us`."""
        transfers = self.results[(*cell, "same", seed)].transfers
        within = np.zeros(len(starts_us), dtype=bool)
        for start, end in zip(transfers["start_us"], transfers["end_us"], strict=True):
            within |= (starts_us >= start) & (starts_us < end)
        return within


def quantities(result: RunResult) -> tuple[float, float, float]:
    """Return mean FCT of small and large flows in ms and the iteration time in s."""
    return _web(result)["small"]["mean_fct_ms"], _web(result)["large"]["mean_fct_ms"], result.iteration_time


def _web(result: RunResult) -> dict[str, Any]:
    figures: dict[str, Any] = result.summary["traffic"]["web"]
    return figures


def cell_scenario(base: Scenario, cell: Sequence[int]) -> Scenario:
    """Return `base` with the compute time and the arrivals of a cell (ratio, rate)."""
    ratio, rate = cell
    scaled = base.replace(scale_to=f"{COMPUTE_MS[ratio]}ms", timeline=3 if (ratio, rate) in PROGRESS.values() else 0)
    return scaled.set({"traffic.web.arrivals.rate": f"{rate}/s"})


def _name(cell: Cell, band: str) -> str:
    return f"R{cell[0]}-f{cell[1]}-{band}"


def published(cell: Cell) -> Means:
    """Return the published averages and changes of a cell."""
    row = PUBLISHED[cell]
    return {quantity: (row[3 * i], row[3 * i + 1], row[3 * i + 2]) for i, quantity in enumerate(QUANTITIES)}


def _headline(study: Study, checks: Sequence[Mapping[str, str]]) -> str:
    agree = sum(item["verdict"] == "agrees" for item in checks)
    held = f"{agree} of {len(checks)} statements and figures of the thesis hold here."
    if set(study.means) != set(ALL):
        return held
    colours = [colour(own["iteration"][2]) for own in study.means.values()]
    free = [own["small"][2] for own in study.means.values() if colour(own["iteration"][2]) == "green"]
    gain = (
        f"; where it is free, small flows take on average {np.mean(free):.0f} % longer when it is not done"
        if free
        else ""
    )
    return (
        f"{held} De-prioritising the job is free in {colours.count('green')} of {len(colours)} configurations, costs "
        f"1 to 30 % in {colours.count('yellow')} and more in {colours.count('red')}{gain}."
    )


# -- checks -----------------------------------------------------------------------------------------------------------


def _checks(study: Study, figure: str) -> list[dict[str, str]]:
    if figure in BY_RATIO:
        return _near(study, figure)
    claims = _CHECKS.get(figure)
    return [check(figure, *claim) for claim in claims(study)] if claims else []


def _near(study: Study, figure: str) -> list[dict[str, str]]:
    """How many of the figure's eight averages lie within 10 % of the published ones."""
    made = []
    for quantity in QUANTITIES:
        far = [
            f"{cell[1]}/s, {band}: {100 * (own / theirs - 1):+.0f} %"
            for cell in FIGURES[figure][2]
            for band, own, theirs in zip(
                BANDS, study.means[cell][quantity][:2], published(cell)[quantity][:2], strict=True
            )
            if abs(own / theirs - 1) > NEAR_PERCENT / 100
        ]
        name = "iteration time" if quantity == "iteration" else f"mean FCT of {quantity} flows"
        count = 2 * len(FIGURES[figure][2])
        near = f"{count - len(far)} of {count} within {NEAR_PERCENT:.0f} %"
        made.append(check(figure, name, f"{count} values", near, not far, "; ".join(far)))
    return made


def _map_claims(study: Study) -> Iterable[Claim]:
    for quantity in ("small", "large"):
        wrong = [_where(c) for c in ALL if study.means[c][quantity][2] * published(c)[quantity][2] < 0]
        right = f"{len(ALL) - len(wrong)} of {len(ALL)}"
        yield f"sign of the change, {quantity} flows", f"{len(ALL)} cells", right, not wrong, "; ".join(wrong)
    pairs = [(c, colour(study.means[c]["iteration"][2]), colour(published(c)["iteration"][2])) for c in ALL]
    wrong = [f"{_where(c)}: {own} for {theirs}" for c, own, theirs in pairs if own != theirs]
    yield (
        "colour of the cell",
        f"{len(ALL)} cells",
        f"{len(ALL) - len(wrong)} of {len(ALL)}",
        not wrong,
        "; ".join(wrong),
    )


def _side_claims(study: Study) -> Iterable[Claim]:
    for key, theirs in NS3_37.items():
        own = quantities(study.others[(*key, 0)])
        worst = max(abs(a / b - 1) for a, b in zip(own, theirs, strict=True))
        yield (
            f'{_where(key[:2])}, {key[2]} band, run 0, recovery = "{DEFAULT_RECOVERY}"',
            "ns-3.37",
            f"within {100 * worst:.2f} %",
            worst < 0.05,
            "",
        )


def _gain_claims(cell: Cell, said: str, holds: Callable[[list[float]], bool]) -> Callable[[Study], Iterable[Claim]]:
    def claims(study: Study) -> Iterable[Claim]:
        gains = study.gains_percent(cell)
        yield "gain of small flows by run", said, " / ".join(f"{g:.0f} %" for g in gains), holds(gains), ""

    return claims


def _sooner_claims(study: Study) -> Iterable[Claim]:
    shares = []
    for seed in SEEDS:
        same, low = (study.small_ms((16, 23), band, seed) for band in BANDS)
        shares.append(float(100 * np.mean(low < 0.9 * same)))
    text = " / ".join(f"{share:.0f} %" for share in shares)
    yield "small flows that end at least a tenth sooner", "about 15 %", text, all(10 <= s <= 20 for s in shares), ""
    yield from _gain_claims((16, 23), "the second most (72.8 %)", lambda g: max(g) == g[1])(study)


def _start_claims(study: Study) -> Iterable[Claim]:
    cell, within, busy = (16, 23), [], []
    for seed in SEEDS:
        (starts, same), (_, low) = (study.small_us(cell, band, seed) for band in BANDS)
        most = np.argsort(low - same)[:20]
        active = study.ring_share(cell, starts, seed)
        within.append(active[most].mean())
        busy.append(active.mean())
    text = f"{100 * np.mean(within):.0f} % of the 20 that gain most, {100 * np.mean(busy):.0f} % of all"
    yield "start within an all-reduce", "those that gain", text, bool(np.mean(within) > 2 * np.mean(busy)), ""


def _rate_claims(study: Study) -> Iterable[Claim]:
    for quantity, least in (("small", 40), ("large", 10)):
        own = min(study.means[ratio, 23][quantity][2] for ratio in COMPUTE_MS)
        yield f"least gain of {quantity} flows", f"at least {least} %", f"{own:.0f} %", own >= 0.9 * least, ""


def _cost_claims(cell: Cell, said: str, low: float, high: float) -> Callable[[Study], Iterable[Claim]]:
    def claims(study: Study) -> Iterable[Claim]:
        own = study.means[cell]["iteration"][2]
        yield f"cost to the job, {_where(cell)}", said, f"{own:.1f} %", low <= own <= high, ""

    return claims


def _plateau_claims(study: Study) -> Iterable[Claim]:
    use = study.link_use_percent((2, 92), "low")
    yield "link use at a ratio of 2, low band", "a plateau of 40 %", f"{use:.0f} %", abs(use - 40) <= 4, ""


def _heavy_claims(study: Study) -> Iterable[Claim]:
    own = [study.means[ratio, 184] for ratio in COMPUTE_MS]
    least = min(means["iteration"][2] for means in own)
    yield "least cost to the job", "at least 29 %", f"{least:.0f} %", least >= 29 * 0.9, ""
    small, large = (max(means[quantity][2] for means in own) for quantity in ("small", "large"))
    text = f"{large:.0f} % and {small:.0f} %"
    yield (
        "most gain of large and of small flows",
        "25 % and 10 %",
        text,
        abs(large - 25) <= 5 and abs(small - 10) <= 5,
        "",
    )


def _quarter_claims(study: Study) -> Iterable[Claim]:
    for quantity, low, high in (("large", 10, 20), ("small", 30, 50)):
        own = [study.means[cell][quantity][2] for cell in BY_TRAFFIC["5.18"]]
        theirs = ", ".join(f"{published(cell)[quantity][2]:.0f}" for cell in BY_TRAFFIC["5.18"])
        text = ", ".join(f"{value:.0f}" for value in own) + " %"
        holds = min(own) >= low and max(own) <= high
        yield f"gain of {quantity} flows", f"{low} to {high} %", text, holds, f"fig. 5.19 prints {theirs} %"


def _iteration_claims(study: Study) -> Iterable[Claim]:
    counts = [len(result.iterations) for result in study.runs((4, 92), "same")]
    text = " / ".join(map(str, counts))
    yield "iterations within the run, same band", "18", text, min(counts) <= 18 <= max(counts), ""


def _ratio_claims(study: Study) -> Iterable[Claim]:
    for ratio, compute_ms in COMPUTE_MS.items():
        own = 100 / _use(study.base, (ratio, 23))[0]
        yield f"eq. 5.1 at {compute_ms} ms", str(ratio), f"{own:.2f}", abs(own / ratio - 1) < 0.025, ""


def _use_claims(study: Study) -> Iterable[Claim]:
    wrong = []
    for cell, printed in TABLE_5_4.items():
        own = _use(study.base, cell)
        wrong += [
            f"{_where(cell)}: {a:.4g} for {b:g}" for a, b in zip(own, printed, strict=True) if abs(a / b - 1) > 0.005
        ]
    total = sum(map(len, TABLE_5_4.values()))
    yield "entries, eqs 5.2 to 5.5", f"{total}", f"{total - len(wrong)} of {total}", not wrong, "; ".join(wrong)


def _count_claims(study: Study) -> Iterable[Claim]:
    for seed, counts in FLOW_COUNTS.items():
        flows = _web(study.results[16, 23, "same", seed])
        own = tuple(flows[size]["completed"] for size in ("small", "medium", "large"))
        published, found = " / ".join(map(str, counts)), " / ".join(map(str, own))
        yield f"small / medium / large flows, run {seed}", published, found, own == counts, ""


PUBLISHED_MEANS = {cell: published(cell) for cell in ALL}
_CHECKS: dict[str, Callable[[Study], Iterable[Claim]]] = {
    "5.19": _map_claims,
    SIDES: _side_claims,
    "5.6": _sooner_claims,
    "5.7": _start_claims,
    "5.9": _gain_claims((8, 23), "66 / 74 / 26 %, the third least", lambda g: min(g) == g[2]),
    "5.11": _gain_claims((4, 23), "the third least", lambda g: min(g) == g[2]),
    "5.13": _rate_claims,
    "5.14": _cost_claims((2, 46), "5 %", 2, 8),
    "5.15": _plateau_claims,
    "5.16": _heavy_claims,
    "5.17": _cost_claims((4, 92), "15 %", 12, 19),
    "5.18": _quarter_claims,
    "5.20, 5.21": _iteration_claims,
    "Table 5.3": _ratio_claims,
    "Table 5.4": _use_claims,
    "Table 5.5": _count_claims,
}


def _where(cell: Sequence[int]) -> str:
    return f"R = {cell[0]}, {cell[1]}/s"


# -- tables and maps --------------------------------------------------------------------------------------------------


def _use(base: Scenario, cell: Cell) -> tuple[float, float, float, float]:
    """Equations 5.2 to 5.5: use by the job, by the flows, by both, in %, and flows : job.

    The thesis takes 100 MB as the size of the model and 1.7 MB as the mean size of a flow.
    """
    job_bits = 100e6 * 2 * (1 - 1 / base.jobs[0].workers) * 8
    job = job_bits / (COMPUTE_MS[cell[0]] / 1e3) / base.link_rate_bps
    flows = cell[1] * 1.7e6 * 8 / base.link_rate_bps
    return 100 * job, 100 * flows, 100 * (job + flows), flows / job


def _tables(study: Study, figure: str) -> list[dict[str, Any]]:
    made = _TABLES.get(figure)
    return [{"figure": figure, **made(study)}] if made else []


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> dict[str, Any]:
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows], "note": note}


def _sides_table(study: Study) -> dict[str, Any]:
    rows = []
    for key, ns3 in NS3_37.items():
        cell, band = key[:2], key[2]
        default, early = quantities(study.others[(*key, 0)]), quantities(study.results[(*key, 0)])
        for i, quantity in enumerate(QUANTITIES):
            at = BANDS.index(band)
            numbers = (ns3[i], default[i], early[i], published(cell)[quantity][at], study.means[cell][quantity][at])
            name = "iteration, s" if quantity == "iteration" else f"{quantity} flows, ms"
            rows.append([_where(cell), band, name, *(f"{number:.4g}" for number in numbers)])
    columns = ("cell", "band", "mean", "ns-3.37, run 0", "ours as ns-3.37, run 0", "ours as ns-3.30.1, run 0")
    return _table(
        "The thesis, ns-3.37 and gradtide",
        (*columns, "thesis, 3 runs", "ours as ns-3.30.1, 3 runs"),
        rows,
        "ns-3.37 and gradtide's default are equal flow by flow. The thesis ran on ns-3.30.1, whose fast recovery "
        "repeats segments that are under way already; with that habit gradtide comes to the thesis's figures.",
    )


def _job_table(study: Study) -> dict[str, Any]:
    (job,) = study.base.jobs
    rows = [
        ("layer sizes", "100 MB", f"{job.parameter_bytes / 1e6:.2f} MB, by the author's formula"),
        ("workers", "8", str(job.workers)),
        ("layers", "50", str(len(job.layers))),
        ("fusion buffer", "5333329 B", f"{job.schedule.cap_bytes} B"),
        ("compute time", "900 ms; tests: 2240, 1120, 560, 280 ms", ", ".join(f"{t} ms" for t in COMPUTE_MS.values())),
        ("priority", "0x10 or 0x08", "the flows' band (0) or the lowest (2)"),
    ]
    return _table("Table 5.1: the job", ("parameter", "thesis", "ours"), rows)


def _network_table(study: Study) -> dict[str, Any]:
    base, cluster = study.base, study.base.spec()["cluster"]
    delay_ns = cluster["link"]["delay_ps"] // 1000
    kind = cluster["queue"]["discipline"]["kind"]
    rows = [
        ("simulated time", "12 s", f"{base.duration_ps / 1e12:g} s" if base.duration_ps else "–"),
        ("hosts", "8, one switch", f"{base.jobs[0].workers}, one switch"),
        ("link", "10 Gbit/s, 10000 ns", f"{base.link_rate_bps / 1e9:g} Gbit/s, {delay_ns} ns"),
        ("device queue", "1 packet", "1 packet"),
        ("queue", "pfifo_fast, 1000 packets", f"{kind}, {base.queue_packets} packets"),
        ("priority queues", "1 printed; 3 bands by its section 5.3", "3 bands"),
        ("TCP", "of ns-3.30.1, not printed", f"newreno, recovery = {THESIS_RECOVERY}"),
    ]
    return _table("Table 5.2: the network", ("parameter", "thesis", "ours"), rows)


def _ratio_table(study: Study) -> dict[str, Any]:
    rows = []
    for ratio, compute_ms in COMPUTE_MS.items():
        use = _use(study.base, (ratio, 23))[0]
        rows.append((f"{ratio}", f"{100 / use:.2f}", f"{compute_ms}", f"{100 / ratio:g}", f"{use:.3g}"))
    columns = ("ratio", "ratio, eq. 5.1", "compute time, ms", "job's link use, %", "eq. 5.2, %")
    return _table("Table 5.3: the job's link use", columns, rows)


def _use_table(study: Study) -> dict[str, Any]:
    rows = []
    for cell, printed in TABLE_5_4.items():
        pairs = zip(printed, _use(study.base, cell), strict=True)
        rows.append([str(cell[0]), str(cell[1]), *(f"{a:g} / {b:.4g}" for a, b in pairs)])
    columns = ("R", "flows/s", "job, %", "flows, %", "both, %", "flows : job")
    note = "Printed / by equations 5.2 to 5.5. The thesis prints 72.5 % where its own 50 and 12.5 % add up to 62.5 %."
    return _table("Table 5.4: link use", columns, rows, note)


def _count_table(study: Study) -> dict[str, Any]:
    rows: list[Sequence[str]] = []
    sizes = ("small", "medium", "large")
    for seed in SEEDS:
        own = [_web(study.results[16, 23, "same", seed])[size] for size in sizes]
        for size, published, count in zip(sizes, FLOW_COUNTS[seed], own, strict=True):
            share = 100 * count["completed"] / max(count["started"], 1)
            rows.append((str(seed), size, str(published), str(count["completed"]), f"{share:.0f}"))
    totals = [sum(int(row[i]) for row in rows) for i in (2, 3)]
    rows.append(("all", "all", *map(str, totals), "–"))
    return _table("Table 5.5: flows that count", ("run", "flows", "published", "ours", "completed, %"), rows)


_TABLES: dict[str, Callable[[Study], dict[str, Any]]] = {
    SIDES: _sides_table,
    "Table 5.1": _job_table,
    "Table 5.2": _network_table,
    "Table 5.3": _ratio_table,
    "Table 5.4": _use_table,
    "Table 5.5": _count_table,
}


def _maps(study: Study) -> list[dict[str, Any]]:
    """The three maps of fig. 5.19, published and ours; the job's highest link use on top, as there."""
    titles = {"iteration": "What the job pays", "small": "What small flows gain", "large": "What large flows gain"}
    made = []
    for quantity, title in titles.items():
        for who, means in (("published", PUBLISHED_MEANS), ("ours", study.means)):
            rows = [
                {
                    "load": f"R = {ratio}",
                    "cells": [
                        {
                            "change_percent": means[ratio, rate][quantity][2],
                            "colour": colour(means[ratio, rate][quantity][2]) if quantity == "iteration" else "",
                        }
                        for rate in FLOW_RATES
                    ],
                }
                for ratio in sorted(COMPUTE_MS)
            ]
            columns = [f"{rate}/s" for rate in FLOW_RATES]
            made.append({"figure": "5.19", "title": f"{title}: {who}", "columns": columns, "rows": rows})
    return made


# -- series -----------------------------------------------------------------------------------------------------------


def _series(study: Study, figure: str) -> list[dict[str, Any]]:
    if figure in CDFS:
        return [_cdf(study, figure, CDFS[figure], seed) for seed in SEEDS]
    if figure == "5.7":
        return [_gains_over_time(study, seed) for seed in SEEDS]
    if figure in BY_RATIO:
        return _by_rate(study, figure)
    if figure in BY_RATE or figure in BY_TRAFFIC:
        return _by_load(study, figure)
    return []


def _lines(
    cells: Sequence[Cell], own: Callable[[Cell, int], float], theirs: Callable[[Cell, int], float] | None
) -> list[Any]:
    """A line per band, published and ours."""
    sources = (("published", theirs), ("ours", own))
    return [
        {"name": f"{band} band, {who}", "band": band, "who": who, "values": [source(cell, at) for cell in cells]}
        for at, band in enumerate(BANDS)
        for who, source in sources
        if source is not None
    ]


def _by_rate(study: Study, figure: str) -> list[dict[str, Any]]:
    cells = FIGURES[figure][2]
    x = {"label": "flows/s per host", "values": [cell[1] for cell in cells]}

    def series(title: str, unit: str, lines: list[Any], note: str = "") -> dict[str, Any]:
        return {
            "figure": figure,
            "title": title,
            "x": x,
            "y": {"label": unit},
            "lines": lines,
            "note": note,
        }

    def mean(quantity: str) -> list[Any]:
        return _lines(cells, lambda c, i: study.means[c][quantity][i], lambda c, i: published(c)[quantity][i])

    return [
        series("mean FCT of small flows", "ms", mean("small")),
        series("mean FCT of large flows", "ms", mean("large")),
        series("iteration time", "s", mean("iteration")),
        series("FCT change", "%", _changes(study, cells)),
        series(
            "99th percentile, small flows", "ms", _lines(cells, lambda c, i: study.p99_ms(c, BANDS[i]), None),
            "The published values are not printed.",
        ),
        series(
            "link use", "%", _lines(cells, lambda c, i: study.link_use_percent(c, BANDS[i]), None),
            "Of all links, headers and repetitions included.",
        ),
    ]  # fmt: skip


def _changes(study: Study, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{quantity} flows, {who}",
            "band": band,
            "who": who,
            "values": [means[cell][quantity][2] for cell in cells],
        }
        for quantity, band in (("small", "same"), ("large", "low"))
        for who, means in (("published", PUBLISHED_MEANS), ("ours", study.means))
    ]


def _by_load(study: Study, figure: str) -> list[dict[str, Any]]:
    cells = sorted(FIGURES[figure][2], key=lambda cell: -cell[0])
    total = figure in BY_TRAFFIC
    x = {
        "label": "expected link use, %" if total else "job's link use, %",
        "values": [round(_use(study.base, cell)[2 if total else 0], 3) for cell in cells],
    }
    costs = [
        {"name": f"{who}", "band": "low", "who": who, "values": [means[cell]["iteration"][2] for cell in cells]}
        for who, means in (("published", PUBLISHED_MEANS), ("ours", study.means))
    ]
    return [
        {"figure": figure, "title": title, "x": x, "y": {"label": "%"}, "lines": lines, "note": ""}
        for title, lines in (("FCT change", _changes(study, cells)), ("iteration time change", costs))
    ]


def _cdf(study: Study, figure: str, cell: Cell, seed: int) -> dict[str, Any]:
    times = {band: np.sort(study.small_ms(cell, band, seed)) for band in BANDS}
    every = np.concatenate(list(times.values()))
    x = (
        np.geomspace(0.98 * np.nanmin(every), 1.002 * np.nanmax(every), CDF_POINTS)
        if len(every)
        else np.array([0.1, 1.0])
    )
    lines = [
        {
            "name": f"{band} band",
            "band": band,
            "who": "ours",
            "values": [round(float(100 * np.mean(own <= at)), 3) if len(own) else None for at in x],
        }
        for band, own in times.items()
    ]
    return {
        "figure": figure,
        "title": f"run {seed}",
        "x": {"label": "completion time, ms", "values": [float(f"{at:.5g}") for at in x]},
        "y": {"label": "flows that have ended, %"},
        "lines": lines,
        "note": f"Mean gain {study.gains_percent(cell)[seed]:.0f} %.",
    }


def _gains_over_time(study: Study, seed: int) -> dict[str, Any]:
    """What small flows save in each fifth of a second, and when the ring was active."""
    cell = (16, 23)
    (starts, same), (_, low) = (study.small_us(cell, band, seed) for band in BANDS)
    ends = np.arange(0, (starts.max() if len(starts) else 0) + 2e5, 2e5)
    bins = np.digitize(starts, ends)
    saved = [float(np.nansum((same - low)[bins == i]) / 1e3) for i in range(1, len(ends) + 1)]
    fine = ends[:, None] + np.arange(0, 2e5, 2e3)[None, :]
    active = study.ring_share(cell, fine.ravel(), seed).reshape(fine.shape).mean(axis=1)
    top = max([*map(abs, saved), 1.0])
    return {
        "figure": "5.7",
        "title": f"run {seed}",
        "x": {"label": "start of the flows, s", "values": [round(float(end / 1e6), 3) for end in ends]},
        "y": {"label": "ms"},
        "lines": [
            {"name": "all-reduces under way (share of time, to scale)", "band": "low", "who": "published",
             "values": [round(float(top * share), 3) for share in active]},
            {"name": "saved by the lower band", "band": "same", "who": "ours", "values": saved},
        ],
        "note": "Sum over the small flows that start within a fifth of a second.",
    }  # fmt: skip


PART = Part("Gao (2020), chapter 5: tables 5.1 to 5.5, figs 5.5 to 5.23", chapter5, FIGURES)
