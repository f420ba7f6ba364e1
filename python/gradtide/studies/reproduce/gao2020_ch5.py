"""Gao (2020), chapter 5: a training job beside web-search flows, packet by packet."""

from collections import defaultdict
from itertools import product
from typing import Any

import numpy as np

from gradtide import _core
from gradtide.estimate import Limits
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.keep import Kept
from gradtide.studies.reproduce.part import Progress, Reproduction, check
from gradtide.studies.run import run_all, total_cost
from gradtide.studies.tenants import BANDS, colour, variant

# Table 5.3: compute-to-network ratio, compute time per iteration in ms.
COMPUTE_MS = {16: 2240, 8: 1120, 4: 560, 2: 280}
# Table 5.4: flows per second and host.
FLOW_RATES = (23, 46, 92, 184)
# "Each configuration is run three times with different seeds" (section 5.4.4).
SEEDS = (0, 1, 2)
FIGURES = ("small", "large", "iteration")

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

# How near an average over three runs must come to a value read off a plot.
NEAR_PERCENT = 10.0

Cell = tuple[int, int]
# For each figure: same band, low band, change in % as the thesis counts it.
Means = dict[str, tuple[float, float, float]]


def chapter5(jobs: int, progress: Progress, keep: Kept | None = None, limits: Limits | None = None) -> Reproduction:
    """Gao (2020): tables 5.3 to 5.5 and figs 5.5 to 5.19, on the thesis's own twelve flow schedules."""
    base = Scenario.load("paper/gao2020-ch5").replace(timeline=0)
    cases = {
        (ratio, rate, band, seed): variant(_cell(base, ratio, rate), seed, band)
        for ratio, rate, band, seed in product(COMPUTE_MS, FLOW_RATES, BANDS, SEEDS)
    }
    results = dict(zip(cases, run_all(list(cases.values()), jobs, progress, keep, limits), strict=True))
    values: dict[tuple[int, int, str], list[tuple[float, float, float]]] = defaultdict(list)
    for (ratio, rate, band, _), result in results.items():
        values[ratio, rate, band].append(_values(result))
    means = {cell: _means(values[(*cell, "same")], values[(*cell, "low")]) for cell in PUBLISHED}
    summary = {
        "schema": "gradtide.reproduce/1",
        "version": _core.__version__,
        "engine": base.engine,
        "seed": list(SEEDS),
        "paper": "gao2020",
        "part": "ch5",
        "title": "Gao (2020), chapter 5: where de-prioritising a training job is free",
        "headline": _headline(means),
        "checks": _checks(base, means, results),
        "tables": [_boundary(means), *(_performance(figure, means) for figure in FIGURES), _table_5_4(base)],
        "series": [_series(figure, ratio, means) for ratio in COMPUTE_MS for figure in FIGURES],
        "timelines": [],
        "cost": total_cost(result.summary for result in results.values()),
    }
    return Reproduction(summary, {})


def _cell(base: Scenario, ratio: int, rate: int) -> Scenario:
    return base.replace(scale_to=f"{COMPUTE_MS[ratio]}ms").set({"traffic.web.arrivals.rate": f"{rate}/s"})


def _values(result: RunResult) -> tuple[float, float, float]:
    flows = result.summary["traffic"]["web"]
    return flows["small"]["mean_fct_ms"], flows["large"]["mean_fct_ms"], result.iteration_time


def _means(same: list[tuple[float, float, float]], low: list[tuple[float, float, float]]) -> Means:
    """Average over the seeds; changes as the thesis counts them (its fig. 5.19)."""
    pairs = zip(FIGURES, np.mean(same, axis=0), np.mean(low, axis=0), strict=True)
    return {
        figure: (float(s), float(w), float(100 * ((w - s) / s if figure == "iteration" else (s - w) / w)))
        for figure, s, w in pairs
    }


def _published(cell: Cell) -> Means:
    row = PUBLISHED[cell]
    return {figure: (row[3 * i], row[3 * i + 1], row[3 * i + 2]) for i, figure in enumerate(FIGURES)}


def _headline(means: dict[Cell, Means]) -> str:
    colours = [colour(cell["iteration"][2]) for cell in means.values()]
    free = [cell for cell, own in means.items() if colour(own["iteration"][2]) == "green"]
    gain = np.mean([means[cell]["small"][2] for cell in free]) if free else 0.0
    return (
        f"De-prioritising the job is free in {colours.count('green')} of {len(means)} configurations, costs "
        f"1 to 30 % in {colours.count('yellow')} and more in {colours.count('red')}; where it is free, small flows "
        f"take on average {gain:.0f} % longer when it is not done."
    )


def _checks(
    base: Scenario, means: dict[Cell, Means], results: dict[tuple[int, int, str, int], RunResult]
) -> list[dict[str, str]]:
    checks = []
    for figure, shown in (("small", "5.5-5.12"), ("large", "5.5-5.12"), ("iteration", "5.5-5.12")):
        far = [
            f"R={cell[0]}, {cell[1]}/s, {band}: {100 * (own / theirs - 1):+.0f} %"
            for cell in means
            for band, own, theirs in zip(BANDS, means[cell][figure][:2], _published(cell)[figure][:2], strict=True)
            if abs(own / theirs - 1) > NEAR_PERCENT / 100
        ]
        quantity = f"{figure} time" if figure == "iteration" else f"mean FCT of {figure} flows"
        near = f"{2 * len(means) - len(far)} of {2 * len(means)} within {NEAR_PERCENT:.0f} %"
        checks.append(check(shown, quantity, "figs 5.5 to 5.12", near, not far, "; ".join(far)))
    for figure in ("small", "large"):
        wrong = [f"R={c[0]}, {c[1]}/s" for c in means if means[c][figure][2] * _published(c)[figure][2] < 0]
        right = f"{len(means) - len(wrong)} of {len(means)}"
        checks.append(
            check("5.19", f"sign of the change, {figure} flows", "fig. 5.19", right, not wrong, "; ".join(wrong))
        )
    wrong = [
        f"R={c[0]}, {c[1]}/s: {colour(means[c]['iteration'][2])} for {colour(_published(c)['iteration'][2])}"
        for c in means
        if colour(means[c]["iteration"][2]) != colour(_published(c)["iteration"][2])
    ]
    right = f"{len(means) - len(wrong)} of {len(means)}"
    checks.append(check("5.19", "colour of the cell", "fig. 5.19", right, not wrong, "; ".join(wrong)))
    for seed, counts in FLOW_COUNTS.items():
        flows = results[16, 23, "same", seed].summary["traffic"]["web"]
        ours = tuple(flows[size]["completed"] for size in ("small", "medium", "large"))
        published, found = " / ".join(map(str, counts)), " / ".join(map(str, ours))
        quantity = f"small / medium / large flows, run {seed}"
        checks.append(check("Table 5.5", quantity, published, found, ours == counts))
    for ratio, compute_ms in COMPUTE_MS.items():
        ours_ratio = _compute_to_network(base, compute_ms)
        checks.append(
            check("eq. 5.1", f"compute-to-network ratio at {compute_ms} ms", str(ratio), f"{ours_ratio:.2f}",
                  abs(ours_ratio / ratio - 1) < 0.025)
        )  # fmt: skip
    return checks


def _compute_to_network(base: Scenario, compute_ms: int) -> float:
    """Equation 5.1, with the thesis's model size of 100 MB."""
    workers = base.jobs[0].workers
    bits = 100e6 * 2 * (1 - 1 / workers) * 8
    return compute_ms / 1e3 * base.link_rate_bps / bits


def _boundary(means: dict[Cell, Means]) -> dict[str, Any]:
    rows = [
        [f"R = {ratio}"]
        + [
            f"{colour(own[2])} {own[2]:+.1f} % (thesis {colour(theirs[2])} {theirs[2]:+.1f} %)"
            for rate in FLOW_RATES
            for own, theirs in [(means[ratio, rate]["iteration"], _published((ratio, rate))["iteration"])]
        ]
        for ratio in COMPUTE_MS
    ]
    return {
        "title": "Figure 5.19: what the lower band costs the job",
        "columns": ["compute-to-network", *(f"{rate} flows/s per host" for rate in FLOW_RATES)],
        "rows": rows,
        "note": "Change of the iteration time, low band against same band, mean of three runs.",
    }


def _performance(figure: str, means: dict[Cell, Means]) -> dict[str, Any]:
    unit = "s" if figure == "iteration" else "ms"
    name = "Iteration time" if figure == "iteration" else f"Mean FCT of {figure} flows"
    rows = []
    for (ratio, rate), own in means.items():
        theirs = _published((ratio, rate))[figure]
        cells = [
            text
            for ours, printed in zip(own[figure], theirs, strict=True)
            for text in (f"{printed:.3g}", f"{ours:.3g}")
        ]
        rows.append([f"{ratio}", f"{rate}", *cells])
    bands = [f"{band} band, {unit}" for band in BANDS]
    columns = [f"{name} {who}" for name in (*bands, "change, %") for who in ("published", "ours")]
    return {"title": f"{name}, figs 5.5 to 5.12", "columns": ["R", "flows/s", *columns], "rows": rows, "note": ""}


def _table_5_4(base: Scenario) -> dict[str, Any]:
    """Equations 5.2 to 5.5; the thesis takes 1.7 MB as the mean size of a flow."""
    workers = base.jobs[0].workers
    bits = 100e6 * 2 * (1 - 1 / workers) * 8
    rows = []
    for ratio, rate in PUBLISHED:
        job = bits / (COMPUTE_MS[ratio] / 1e3) / base.link_rate_bps
        flows = rate * 1.7e6 * 8 / base.link_rate_bps
        rows.append(
            [
                f"{ratio}",
                f"{rate}",
                *(f"{100 * share:.3g}" for share in (job, flows, job + flows)),
                f"{flows / job:.3g}",
            ]
        )
    return {
        "title": "Table 5.4: link use",
        "columns": ["R", "flows/s", "job, %", "flows, %", "both, %", "flows : job"],
        "rows": rows,
        "note": "By equations 5.2 to 5.5.",
    }


def _series(figure: str, ratio: int, means: dict[Cell, Means]) -> dict[str, Any]:
    number = {16: "5.5", 8: "5.8", 4: "5.10", 2: "5.12"}[ratio]
    quantity = {
        "small": "mean FCT of small flows (ms)",
        "large": "mean FCT of large flows (ms)",
        "iteration": "iteration time (s)",
    }
    lines = [
        {"name": f"{band} band, {who}", "values": [source((ratio, rate))[figure][index] for rate in FLOW_RATES]}
        for index, band in enumerate(BANDS)
        for who, source in (("published", _published), ("ours", means.__getitem__))
    ]
    return {
        "figure": number,
        "title": f"R = {ratio}: {quantity[figure]}",
        "x": {"label": "flows/s per host", "values": list(FLOW_RATES)},
        "y": {"label": quantity[figure]},
        "lines": lines,
        "note": "",
    }
