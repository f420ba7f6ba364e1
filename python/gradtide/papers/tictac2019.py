"""TicTac (Hashemi et al., 2019): table 1, random orders, figs 4 and 9 to 15, on simulated K80s and CPUs.

Most figures have no printed numbers, so our values are compared with the statements in the text. The paper leaves
several parameters open; the preset `paper/tictac2019` contains our choices for all figures, and the reasons. As in
section 6, a test has 10 measured iterations after 2 discarded ones. The time of an iteration is the mean of the 10; the
straggler effect and the overlap coefficient are the largest of the 10 values. With arbitrary orders, tests scatter, so
figs 9, 12 and 14 repeat each test ten times and state the spread.

The paper can be read in two ways, and only the first reading is counted. In the first, orders without TicTac are
arbitrary: the share of transfers that swap places is calibrated on one count of section 2.2, and no other parameter is
fitted. With TicTac, the share of transfers out of order is the published one. In the second reading, orders without
TicTac are random, and orders with TicTac have no deviations. This reading contradicts section 2.2, and is shown for
comparison.

The module is longer than 600 lines because table 1 and figs 4 and 9 to 15 share one set of runs.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from gradtide import words
from gradtide.papers.harness import (
    FITTED,
    SHOWN,
    TOLERANCES,
    Claim,
    Drawn,
    Figure,
    Statements,
    Verdict,
    above,
    below,
    changed,
    chart,
    judged,
    least,
    line,
    published,
    table,
    value,
)
from gradtide.presets import graphs
from gradtide.scenario import Scenario
from gradtide.studies.order import order
from gradtide.studies.result import RunResult

PAPER = published(__name__)
NOTES = PAPER["notes"]
TABLE_1: dict[str, dict[str, Any]] = PAPER["models"]

NONE = ""
"""Key of runs without an enforced order, for both readings of the paper."""

MODELS = (
    "Inception v1", "VGG-19", "Inception v2", "AlexNet v2", "VGG-16", "ResNet-50 v1", "ResNet-50 v2", "Inception v3",
    "ResNet-101 v1",
)  # fmt: skip
"""Models of figs 9 to 12 and 14, in the order of fig. 9: all models of table 1 except ResNet-101 v2."""

INFERENCE, TRAIN = TASKS = ("inference", "train")
TRAIN_OR_NOT = {INFERENCE: "inference", TRAIN: "training"}
CPU = {"job.train.compute.device": "Xeon-E5-2686v4", "cluster.link.rate": "1Gbps"}
ARBITRARY, RANDOM, TIC, TAC, REVERSED = "arbitrary", "random", "tic", "tac", "file"

WORKERS = (1, 2, 4, 8, 16)
SERVERS = (1, 2, 4)
FACTORS = (0.5, 1, 2)
READINGS: dict[str, dict[str, float | None]] = {ARBITRARY: {TIC: None, TAC: 0.004, REVERSED: None}, RANDOM: {}}
"""The two readings of the paper: {order without TicTac: {enforced order: share of transfers that leave it}}.

The shares for TIC and TAC are from section 5.1. `None` is the share in the preset, which is that of TIC. An enforced
order that is missing has the share 0. Only the first reading is counted.
"""

SIGNIFICANT = 5
"""Smallest gain of throughput in percent that counts as "significant", which the paper writes without a number."""

DISCARDED = 2
MEASURED = 10
"""Numbers of discarded and of measured iterations in a test (section 6)."""
TESTS = 10
REPEATS = 1000


@dataclass(frozen=True)
class Case:
    """A run of a model of table 1, by the model's name in the paper, in one of the paper's environments.

    Attributes:
        order: order of pulls; "file" is the reverse of the model's own order.
        is_cpu: whether the environment is envC, with CPUs.
        factor: factor on the mini-batch of table 1.
        disorder: share of pulls that leave their order; `None` for the preset's share.
        noise: multiple of the preset's noise of compute times.
        iterations: number of simulated iterations, including discarded ones.
    """

    model: str
    task: str
    order: str
    workers: int = 4
    servers: int = 1
    is_cpu: bool = False
    factor: float = 1
    disorder: float | None = 0.0
    noise: int = 1
    iterations: int = DISCARDED + MEASURED


def _enforced(case: Case, none: str) -> Case:
    """Return a case with the disorder of its order in the reading `none`, which is a key of `READINGS`."""
    return replace(case, disorder=READINGS[none].get(case.order, 0.0))


def _pairs(cases: Iterable[Case], enforced: Sequence[str] = (TIC,)) -> list[Case]:
    """Return, for both readings, the runs without an enforced order and with each of the orders `enforced`."""
    return [
        _enforced(replace(case, order=which), none)
        for case in cases
        for none in READINGS
        for which in (none, *enforced)
    ]


def servers_of(workers: int) -> int:
    """Return the number of parameter servers: a quarter of the workers, at least one (section 6.1)."""
    return max(1, workers // 4)


def _scaled(model: str, task: str, workers: int) -> Case:
    return Case(model, task, TIC, workers, servers_of(workers), iterations=DISCARDED + TESTS * MEASURED)


SCALED = [_scaled(model, task, n) for n, model, task in product(WORKERS, MODELS, TASKS)]
"""Cases of fig. 9. They also serve for figs 12 and 14, for which the paper states no number of workers."""

SHARED = [case for case in SCALED if case.workers > 1]
EXAMPLE = [Case("Inception v3", task, TIC, 2, 1) for task in TASKS]
SPREAD = [Case(model, task, TIC, 8, count) for count, model, task in product(SERVERS, MODELS, TASKS)]
LOADED = [Case(model, INFERENCE, TIC, 4, 1, factor=factor) for factor, model in product(FACTORS, MODELS)]
# The paper states no number of workers for figs 13 and 15, or for the text on orders. The figures have 4 workers and a
# server, and the text has one worker, because it is about orders that a worker observes.
REPEATED = {task: Case("Inception v2", task, TAC, is_cpu=True, iterations=REPEATS) for task in TASKS}
NOISES = (1, 0, 3)
SMALL = ("Inception v2", "VGG-16", "AlexNet v2")
HEURISTICS = [Case(model, task, TAC, is_cpu=True) for model, task in product(SMALL, TASKS)]
SEEN = {"ResNet-50 v2": 1000, "Inception v3": 1000, "VGG-16": 493}
"""Numbers of unique orders that section 2.2 states for 1000 iterations."""

ORDERS = [Case(model, INFERENCE, ARBITRARY, 1, 1, iterations=REPEATS) for model in SEEN]


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    model = TABLE_1[case.model]
    disorder = (base.jobs[0].schedule.disorder_ppm or 0) / 1e6 if case.disorder is None else case.disorder
    schedule: dict[str, Any] = {"order": case.order, "disorder": disorder}
    if case.order == REVERSED:
        recvs = [op["name"] for op in graphs.graph(model["preset"]).counts["ops"] if op["kind"] == "recv"]
        schedule["ranking"] = recvs[::-1]
    job = {
        "model": model["preset"],
        "task": case.task,
        "workers": case.workers,
        "iterations": case.iterations,
        "compute.batch": int(model["batch"] * case.factor),
        "compute.noise": base.jobs[0].compute.noise_ppm / 1e6 * case.noise,
        "collective.ps.servers": case.servers,
        "schedule": schedule,
    }
    environment = CPU if case.is_cpu else {}
    return base.set({f"job.train.{key}": value for key, value in job.items()} | environment)


class Seen:
    """The data of a run that are kept: its figures, and the time, overlap, waits and pull orders of each iteration.

    The run itself is dropped, because it has one row per pull, worker and iteration, some ten megabytes.
    """

    def __init__(self, case: Case, result: RunResult) -> None:
        self.job = result.job
        self.iterations = {name: result.iterations[name].copy() for name in ("time_us", "alpha")}
        self.straggler_us = result.workers["straggler_us"].reshape(case.iterations, case.workers).max(axis=1)
        self.order_count = 0
        if case.workers == 1:
            ranks = result.transfers["rank"].reshape(case.iterations, -1)
            self.order_count = len({tuple(row) for row in ranks.tolist()})


class Study:
    """The runs by case, in the reading of the paper whose order without TicTac is `none`, a key of `READINGS`."""

    def __init__(self, results: Mapping[Case, Seen], none: str = ARBITRARY) -> None:
        self.results = results
        self.none = none

    def without(self, case: Case) -> Case:
        """Return the case that corresponds to `case` without an enforced order."""
        return replace(case, order=self.none, disorder=0.0)

    def kept(self, case: Case) -> Case:
        """Return a case with the disorder of its order in this reading."""
        return _enforced(case, self.none)

    def column(self, case: Case, name: str) -> np.ndarray:
        """Return a column of the measured iterations, shape (iterations,)."""
        return self.results[case].iterations[name][DISCARDED:]

    def time_ms(self, case: Case) -> float:
        """Return the mean iteration time in milliseconds."""
        return float(self.column(case, "time_us").mean()) / 1e3

    def gain(self, case: Case) -> float:
        """Return the gain in throughput over no enforced order, as a fraction."""
        return self.time_ms(self.without(case)) / self.time_ms(self.kept(case)) - 1

    def gains(self, cases: Iterable[Case]) -> dict[Case, float]:
        """Return `gain` of each case."""
        return {case: self.gain(case) for case in cases}

    def tested(self, cases: Iterable[Case]) -> np.ndarray:
        """Return the gains of each case in each test of `MEASURED` iterations, shape (cases, tests)."""
        times = [[self._tests(self.column(one, "time_us")) for one in (self.without(c), self.kept(c))] for c in cases]
        none, kept = np.moveaxis(np.mean(times, axis=-1), 1, 0)
        return np.asarray(none / kept - 1)

    def straggler(self, case: Case) -> float:
        """Return the longest wait of a worker for another, as a share of the iteration (section 6.3).

        The share is the maximum over the iterations of a test, averaged over tests.
        """
        waits = self.results[case].straggler_us[DISCARDED:]
        return float(self._tests(waits / self.column(case, "time_us")).max(axis=1).mean())

    @staticmethod
    def _tests(column: np.ndarray) -> np.ndarray:
        return column.reshape(-1, MEASURED)

    def rho(self, case: Case) -> float:
        """Return the ratio of communication to compute."""
        return float(self.results[case].job["rho"])

    def alpha(self, case: Case) -> float:
        """Return the largest overlap coefficient of an iteration."""
        return float(self.column(case, "alpha").max())

    def orders(self, case: Case) -> int:
        """Return the number of unique pull orders in a run with one worker."""
        return self.results[case].order_count

    def normalised(self, task: str, noise: int = 1) -> dict[str, np.ndarray]:
        """Return the shortest step time divided by the time of each step, by order."""
        times = {which: self.column(case, "time_us") for which, case in self._repeated(task, noise).items()}
        fastest = min(float(column.min()) for column in times.values())
        return {which: fastest / column for which, column in times.items()}

    def overlap(self, task: str, noise: int = 1) -> dict[str, np.ndarray]:
        """Return the overlap coefficient of each step, by order."""
        return {which: self.column(case, "alpha") for which, case in self._repeated(task, noise).items()}

    def _repeated(self, task: str, noise: int) -> dict[str, Case]:
        case = replace(REPEATED[task], noise=noise)
        return {NONE: self.without(case), TAC: self.kept(case)}

    def determination(self, task: str, noise: int = 1, orders: Sequence[str] = (NONE, TAC)) -> float:
        """Return R² of normalised step time over overlap, for the steps of all orders together, as in fig. 13 (a)."""
        alpha, step = self.overlap(task, noise), self.normalised(task, noise)
        x, y = (np.concatenate([by_order[which] for which in orders]) for by_order in (alpha, step))
        return float(np.corrcoef(x, y)[0, 1] ** 2)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's coefficient; ties have the mean of their ranks. NaN if all values of x or y are equal."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        column = np.asarray(values)
        return np.array([(column < v).sum() + (column == v).sum() / 2 for v in column])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


# -- statements -------------------------------------------------------------------------------------------------------


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _both(claims: Callable[[Study], Iterable[Claim]]) -> Callable[[Study], Iterable[Claim]]:
    """Return a function that returns the claims in both readings. Claims in the second reading are not counted."""

    def of_both(study: Study) -> Iterable[Claim]:
        yield from claims(study)
        for quantity, theirs, ours, *_ in claims(Study(study.results, RANDOM)):
            yield f"{quantity}, random orders", theirs, ours, SHOWN, NOTES["random"]

    return of_both


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _where(case: Case) -> str:
    return f"{case.model}, {_count(case.workers, 'worker')}"


def _ops(model: str) -> dict[str, int]:
    counts = graphs.graph(TABLE_1[model]["preset"]).counts
    return {INFERENCE: len(graphs.inference_part(counts)["ops"]), TRAIN: len(counts["ops"])}


def _model_claims(_study: Study) -> Iterable[Claim]:
    rows = [(graphs.graph(row["preset"]), row) for row in TABLE_1.values()]
    equal = sum(graph.tensors == row["parameters"] for graph, row in rows)
    yield "number of parameters", "table 1", f"{equal} of {len(rows)} equal", equal == len(rows)
    equal = sum(f"{graph.parameter_bytes / 2**20:.2f}" == f"{row['mib']:.2f}" for graph, row in rows)
    yield "MiB of parameters, both decimals", "table 1", f"{equal} of {len(rows)} equal", equal == len(rows)
    shares = [ours / row[task] for model, row in TABLE_1.items() for task, ours in _ops(model).items()]
    ends = [100 * min(shares), 100 * max(shares)]
    yield judged("number of ops", value(100, "table 1"), ends, "{:.0f} to {:.0f} % of them", NOTES["ops"])
    slowest = 0.0
    for row, which in product(TABLE_1.values(), (TIC, TAC)):
        start = time.process_time()
        order(graphs.graph_document(row["preset"], "K80", None, TRAIN, 10**10), which)
        slowest = max(slowest, time.process_time() - start)
    text = "less than 1 s" if slowest < 1 else f"{slowest:.0f} s"
    yield "computing TIC or TAC, slowest model", "about 10 s", text, SHOWN, NOTES["program"]


def _order_claims(study: Study) -> Iterable[Claim]:
    for case in ORDERS:
        ours, theirs = study.orders(study.without(case)), SEEN[case.model]
        is_fitted = theirs < REPEATS
        note = NOTES["calibrated" if is_fitted else "repeats"]
        counts: Verdict | None = FITTED if is_fitted else None
        what = f"{case.model}: unique orders of {REPEATS}"
        yield judged(what, value(theirs, str(theirs)), ours, "{:.0f}", note, counts)


def _example_claims(study: Study) -> Iterable[Claim]:
    # The claims compare the means that the table prints.
    for case in EXAMPLE:
        none, kept = (study.results[one].job for one in (study.without(case), study.kept(case)))
        for what, key, scale, form in (
            ("overlap", "alpha", 1, "{:.3f} to {:.3f}"),
            ("utilisation", "utilisation", 100, "{:.1f} % to {:.1f} %"),
        ):
            both = (scale * float(none[key]), scale * float(kept[key]))
            quantity = f"mean {what}, {TRAIN_OR_NOT[case.task]}"
            yield changed(quantity, "more with TicTac", both, form, NOTES["example"], grows=True, by=words.SAME)


def _worker_claims(study: Study) -> Iterable[Claim]:
    gains = {task: study.tested(case for case in SCALED if case.task == task) for task in TASKS}
    for task, theirs in ((INFERENCE, 0.377), (TRAIN, 0.192)):
        best = gains[task].max(axis=0)
        what, said = f"largest speed-up, {TRAIN_OR_NOT[task]}", value(100 * theirs, _percent(theirs))
        yield judged(what, said, 100 * float(best.mean()), _over_tests(best), NOTES["more"])
    worst = np.maximum(0, -np.min([own.min(axis=0) for own in gains.values()], axis=0))
    said = value(4.2, "4.2 %")
    yield judged("largest slow-down", said, 100 * float(worst.mean()), _over_tests(worst), NOTES["free"])
    for task in TASKS:
        by_workers = gains[task].reshape(len(WORKERS), len(MODELS), -1)
        means = by_workers.mean(axis=-1, keepdims=True)
        on_average, peaks = (
            (own[1:-1].max(axis=0) > own[[0, -1]].max(axis=0) + words.SAME).sum(axis=0) for own in (means, by_workers)
        )
        text = f"in {on_average[0]} of {len(MODELS)} models; in one test in {peaks.min()} to {peaks.max()}"
        holds = bool(on_average[0] == len(MODELS))
        yield f"gain rises and falls with workers, {TRAIN_OR_NOT[task]}", "yes", text, holds, NOTES["level"]


def _over_tests(shares: np.ndarray) -> str:
    """Return a format for the mean over tests, followed by the range of `shares`, the values of the tests."""
    return f"{{:.1f}} % ({_percent(float(shares.min()))} to {_percent(float(shares.max()))})"


def _server_claims(study: Study) -> Iterable[Claim]:
    gains = study.gains(SPREAD)
    pairs = [(gains[case], gains[replace(case, task=TRAIN)]) for case in SPREAD if case.task == INFERENCE]
    more = sum(a >= b - words.SAME for a, b in pairs)
    text = f"in {more} of {len(pairs)}"
    yield "inference gains at least what training does", "in general", text, more > 0.9 * len(pairs)
    for count in SERVERS[1:]:
        own = {case: gain for case, gain in gains.items() if case.servers == count and case.task == INFERENCE}
        worst = min(own, key=own.__getitem__)
        text, said = f"at least {{:.1f}} % ({worst.model})", above(SIGNIFICANT, "significant")
        yield judged(f"gain with {count} servers, inference", said, 100 * own[worst], text, NOTES["vgg"])


def _batch_claims(study: Study) -> Iterable[Claim]:
    falls, rises = [], []
    for model in MODELS:
        cases = [Case(model, INFERENCE, TIC, 4, 1, factor=factor) for factor in FACTORS]
        for one, other in pairwise(cases):
            ratios, grown = [study.rho(case) for case in (one, other)], study.gain(other) - study.gain(one)
            if min(ratios) > 1:
                rises.append(grown > 0)
            elif max(ratios) < 1:
                falls.append(grown < 0)
    for quantity, found in (
        ("longer communication: a batch twice as large gains more", rises),
        ("shorter communication: it gains less", falls),
    ):
        yield quantity, "yes", f"in {sum(found)} of {len(found)} steps", all(found), NOTES["balance"]


def _sizes(task: str, models: Iterable[str]) -> list[int]:
    return [TABLE_1[model][task] for model in models]


def _mean_gains(study: Study, task: str) -> dict[str, float]:
    """Return the mean gain of each model over the numbers of workers of fig. 9."""
    return {
        model: float(np.mean([study.gain(case) for case in SCALED if (case.model, case.task) == (model, task)]))
        for model in MODELS
    }


def _size_claims(study: Study) -> Iterable[Claim]:
    for task in TASKS:
        means = _mean_gains(study, task)
        found = rank_correlation(_sizes(task, means), list(means.values()))
        quantity = f"rank correlation of ops and gain, {TRAIN_OR_NOT[task]}"
        yield judged(quantity, above(0, "larger gain more"), found, "{:.2f}", NOTES["size"])


def _overlap_claims(study: Study) -> Iterable[Claim]:
    found = {
        name: study.determination(TRAIN, noise)
        for noise, name in zip(NOISES, ("", ", no noise in compute", ", three times the noise"), strict=True)
    }
    found[", steps without an order alone"] = study.determination(TRAIN, orders=[NONE])
    for name, ours in found.items():
        what, counts = f"R² of step time over overlap, training{name}", SHOWN if name else None
        yield judged(what, value(0.98, "0.98"), ours, "{:.3f}", NOTES["varies"], counts)
    steps, overlap = study.normalised(INFERENCE), study.overlap(INFERENCE)
    for which, name, theirs in ((NONE, "no order", 0.63403), (TAC, "TAC", 0.99825)):
        ours = float(np.percentile(steps[which], 95))
        what = f"95th percentile, inference, {name}"
        yield judged(what, value(theirs, str(theirs)), ours, "{:.5f}", NOTES["ratio"])
    share = float((overlap[TAC] > 0.9).mean())
    yield judged("overlap above 0.9 with TAC, inference", above(50, "most runs"), 100 * share, "{:.0f} % of runs")


def _straggler_claims(study: Study) -> Iterable[Claim]:
    plain = {case: study.straggler(study.without(case)) for case in SHARED}
    most = max(plain, key=plain.__getitem__)
    text = f"{{:.0f}} % ({_where(most)}, {TRAIN_OR_NOT[most.task]})"
    said = least(50, "more than 50 %")
    yield judged("largest, no order", said, 100 * plain[most], text, NOTES["machines"])
    kept = {case: study.straggler(study.kept(case)) for case in SHARED}
    before, mean = (float(np.mean(list(of.values()))) for of in (plain, kept))
    both = (100 * before, 100 * mean)
    form = "{:.1f} % to {:.1f} %"
    yield changed("mean, TIC", "reduced", both, form, NOTES["stray"], grows=False, by=words.SAME)
    # "Up to" refers to a single setting. The printed text also has the factor between the means.
    factors = {case: plain[case] / kept[case] for case in SHARED if kept[case]}
    top = max(factors, key=factors.__getitem__)
    text = f"{{:.1f}} ({_where(top)}, {TRAIN_OR_NOT[top.task]}; of the means {before / mean:.1f})"
    yield judged("by what factor at most, TIC", value(2.3, "up to 2.3"), factors[top], text, NOTES["stray"])
    eight = [case for case in SHARED if case.workers == 8]
    for task in TASKS:
        cases = [case for case in eight if case.task == task]
        cut = [plain[case] - study.straggler(study.kept(case)) for case in cases]
        found = rank_correlation(_sizes(task, (case.model for case in cases)), cut)
        quantity = f"rank correlation of ops and reduction, 8 workers, {TRAIN_OR_NOT[task]}"
        yield judged(quantity, above(0, "larger reduce more"), found, "{:.2f}", NOTES["similar"])
    fewer = [study.straggler(study.kept(replace(case, order=REVERSED))) <= plain[case] + words.SAME for case in eight]
    quantity = "the model's order backwards, 8 workers: no more than without an order"
    yield quantity, "regardless of quality", f"in {sum(fewer)} of {len(fewer)}", all(fewer), NOTES["noise"]


def _heuristic_claims(study: Study) -> Iterable[Claim]:
    for task in TASKS:
        cases = [case for case in HEURISTICS if case.task == task]
        gains = [study.gain(replace(case, order=which)) for case in cases for which in (TIC, TAC)]
        text, said = f"{{:.1f}} % to {_percent(max(gains))}", above(SIGNIFICANT, "significant")
        yield judged(f"speed-up, {TRAIN_OR_NOT[task]}", said, 100 * min(gains), text, NOTES["little"])
        pairs = [[study.time_ms(study.kept(replace(case, order=which))) for which in (TIC, TAC)] for case in cases]
        worst = max(tic_ms / tac_ms - 1 for tic_ms, tac_ms in pairs)
        said, what = below(100 * TOLERANCES["text"], "marginally"), f"TIC is slower than TAC, {TRAIN_OR_NOT[task]}"
        yield judged(what, said, 100 * max(0.0, worst), "by at most {:.1f} %", NOTES["stray"])


# -- tables, bars and series ------------------------------------------------------------------------------------------


def _model_table(_study: Study) -> list[Drawn]:
    rows = []
    for name, row in TABLE_1.items():
        graph, ops = graphs.graph(row["preset"]), _ops(name)
        sizes = [f"{row['mib']:.2f}", f"{graph.parameter_bytes / 2**20:.2f}"]
        both = [f"{counts[INFERENCE]}/{counts[TRAIN]}" for counts in (row, ops)]
        rows.append([name, row["parameters"], graph.tensors, *sizes, *both, row["batch"]])
    columns = ["model", "parameters", "ours", "MiB", "ours", "ops", "ours", "batch"]
    note = "Ops of inference and of training; a column of ours stands beside each of the paper's."
    return [table("Models", columns, rows, note)]


def _example_table(study: Study) -> list[Drawn]:
    rows = []
    for case, none in product(EXAMPLE, READINGS):
        of = Study(study.results, none)
        for one, name in ((of.without(case), f"{none} orders"), (of.kept(case), _kept_words(none))):
            numbers = [f"{study.results[one].job[key]:.3f}" for key in ("rho", "alpha", "utilisation")]
            rows.append([TRAIN_OR_NOT[case.task], name, *numbers])
    return [table("Inception v3, 2 workers and 1 server: means", ["task", "order", "rho", "alpha", "U"], rows)]


def _kept_words(none: str) -> str:
    return "TIC" if none == RANDOM else "TIC, 0.5 % out of order"


_GAIN = "speed-up (%)"


def _bars(title: str, unit: str, rows: Sequence[str], groups: Mapping[str, Iterable[float]]) -> Drawn:
    """Return a bar chart with a row per name and a bar per group; values are fractions, drawn in percent."""
    made = [{"name": name, "values": [100 * value for value in values]} for name, values in groups.items()]
    return {"title": title, "unit": unit, "rows": list(rows), "groups": made}


def _gain_bars(
    cases: Iterable[Case], title: Callable[[Case], str], group: Callable[[Case], str]
) -> Callable[[Study], list[Drawn]]:
    """Return a function that draws gains: a chart per title, with a row per model and a bar per group and reading."""

    def drawn(study: Study) -> list[Drawn]:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for case, none in product(cases, READINGS):
            name = f"{group(case)}, {none}"
            found.setdefault(title(case), {}).setdefault(name, {})[case.model] = Study(study.results, none).gain(case)
        return [
            _bars(name, _GAIN, list(next(iter(groups.values()))), {own: gain.values() for own, gain in groups.items()})
            for name, groups in found.items()
        ]

    return drawn


def _task(case: Case) -> str:
    return TRAIN_OR_NOT[case.task]


def _servers(case: Case) -> str:
    return _count(case.servers, "server")


def _hosts(case: Case) -> str:
    return f"{_count(case.workers, 'worker')}, {_servers(case)}"


def _batch(case: Case) -> str:
    return f"batch x {case.factor:g}"


def _order(case: Case) -> str:
    return case.order.upper()


def _straggler_bars(study: Study) -> Iterable[Drawn]:
    rows = sorted(MODELS, key=lambda model: TABLE_1[model][INFERENCE])
    for task in TASKS:
        eight = {case.model: case for case in SHARED if (case.task, case.workers) == (task, 8)}
        cases = [eight[model] for model in rows]
        shares: dict[str, list[float]] = {}
        for none in READINGS:
            of = Study(study.results, none)
            shares[f"{none} orders"] = [study.straggler(of.without(case)) for case in cases]
            shares[_kept_words(none)] = [study.straggler(of.kept(case)) for case in cases]
        shares["the model's order, backwards"] = [study.straggler(replace(case, order=REVERSED)) for case in cases]
        yield _bars(f"{TRAIN_OR_NOT[task]}, 8 workers; fewest ops first", "straggler time (%)", rows, shares)


def _size_series(study: Study) -> Iterable[Drawn]:
    for task in TASKS:
        # ResNet-50 v1 and Inception v1 have equally many ops in inference; their common point is the mean of both.
        by_size: dict[int, list[float]] = {}
        for model, gain in _mean_gains(study, task).items():
            by_size.setdefault(TABLE_1[model][task], []).append(100 * gain)
        sizes = sorted(by_size)
        gains = line(TRAIN_OR_NOT[task], [float(np.mean(by_size[size])) for size in sizes])
        title = f"{TRAIN_OR_NOT[task]}, mean over 1 to 16 workers"
        yield chart(title, ("ops, as of table 1", sizes), _GAIN, [gains])


def _overlap_series(study: Study) -> Iterable[Drawn]:
    for none in READINGS:
        yield from _overlap_charts(Study(study.results, none))


def _overlap_charts(study: Study) -> list[Drawn]:
    alpha, step = study.overlap(TRAIN), study.normalised(TRAIN)
    edges = np.arange(-0.5, 1.05, 0.05)
    middles = ((edges[:-1] + edges[1:]) / 2).round(3)

    def binned(which: str) -> list[float | None]:
        place = np.digitize(alpha[which], edges) - 1
        return [float(step[which][place == i].mean()) if (place == i).any() else None for i in range(len(middles))]

    slope, offset = np.polyfit(np.concatenate(list(alpha.values())), np.concatenate(list(step.values())), 1)
    names = {NONE: "no order", TAC: "TAC"}
    values = {name: binned(which) for which, name in names.items()}
    kept = [i for i in range(len(middles)) if any(own[i] is not None for own in values.values())]
    at = [float(middles[i]) for i in kept]
    lines = [line(name, [own[i] for i in kept]) for name, own in values.items()]
    lines.append(line("linear regression", [float(slope * x + offset) for x in at]))
    normalised = "normalised step time"
    note = "Mean of the steps whose overlap is within 0.025 of each place."
    steps = study.normalised(INFERENCE)
    places = np.linspace(min(float(s.min()) for s in steps.values()), 1, 120).round(5).tolist()
    shares = [line(name, [float((steps[which] <= x).mean()) for x in places]) for which, name in names.items()]
    return [
        chart(f"(a) training, {study.none} orders", ("overlap coefficient", at), normalised, lines, note),
        chart(f"(b) inference, {study.none} orders", (normalised, places), "share of steps", shares),
    ]


def figures() -> dict[str, Figure[Study, Case]]:
    """Return the figures, by name."""
    heuristics = [replace(case, order=which) for which in (TIC, TAC) for case in HEURISTICS]
    return {
        "Table 1": Figure(claims=_model_claims, tables=_model_table),
        "Orders": Figure([*ORDERS, *(replace(case, order=RANDOM) for case in ORDERS)], _both(_order_claims)),
        "4": Figure(_pairs(EXAMPLE), _both(_example_claims), tables=_example_table),
        "9": Figure(_pairs(SCALED), _both(_worker_claims), bars=_gain_bars(SCALED, _hosts, _task), is_slow=True),
        "10": Figure(_pairs(SPREAD), _both(_server_claims), bars=_gain_bars(SPREAD, _task, _servers)),
        "11": Figure(_pairs(LOADED), _both(_batch_claims), bars=_gain_bars(LOADED, _task, _batch)),
        "12": Figure(_pairs(SCALED), _both(_size_claims), series=_size_series, is_slow=True),
        "13": Figure(
            [
                *(replace(case, noise=n) for n in NOISES for case in _pairs([REPEATED[TRAIN]], [TAC])),
                *_pairs([REPEATED[INFERENCE]], [TAC]),
            ],
            _both(_overlap_claims),
            series=_overlap_series,
        ),
        "14": Figure(
            [
                *_pairs(SHARED),
                *(
                    _enforced(replace(case, order=REVERSED), none)
                    for case, none in product(SHARED, READINGS)
                    if case.workers == 8
                ),
            ],
            _both(_straggler_claims),
            bars=_straggler_bars,
            is_slow=True,
        ),
        "15": Figure(
            _pairs(HEURISTICS, (TIC, TAC)),
            _both(_heuristic_claims),
            bars=_gain_bars(heuristics, _task, _order),
        ),
    }


FIGURES = figures()

STATEMENTS = Statements(
    paper=PAPER,
    figures=FIGURES,
    scenario=scenario,
    study=lambda _base, results: Study(results),
    seen=Seen,
)
PART = STATEMENTS.part(seconds=113, quick_seconds=35)
