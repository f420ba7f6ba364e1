"""TicTac (Hashemi et al., 2019): table 1, random orders, figs 4 and 9 to 15, on simulated K80s and CPUs.

Most figures have no numbers in print, so what is compared is what the text says of them. `paper/tictac2019` has the
choices that the paper leaves open, with their reasons; they hold for all figures, and none is fitted. As in section 6,
an iteration's time is the mean of 10 after 2, and of stragglers and overlap the largest of them counts.

Long, because one study serves eleven figures: cases, statements, tables and bars of all of them share its choices.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from gradtide import words
from gradtide.papers.harness import Claim, of_statements
from gradtide.presets import graphs
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.order import order

PAPER = {
    # model: preset, parameters, MiB, ops of inference and of training, mini-batch
    "AlexNet v2": ("tictac_alexnet_v2", 16, 191.89, 235, 483, 512),
    "Inception v1": ("tictac_inception_v1", 116, 25.24, 1114, 2246, 128),
    "Inception v2": ("tictac_inception_v2", 141, 42.64, 1369, 2706, 128),
    "Inception v3": ("tictac_inception_v3", 196, 103.54, 1904, 3672, 32),
    "ResNet-50 v1": ("tictac_resnet50_v1", 108, 97.39, 1114, 2096, 32),
    "ResNet-101 v1": ("tictac_resnet101_v1", 210, 169.74, 2083, 3898, 64),
    "ResNet-50 v2": ("tictac_resnet50_v2", 125, 97.45, 1423, 2813, 64),
    "ResNet-101 v2": ("tictac_resnet101_v2", 244, 169.86, 2749, 5380, 32),
    "VGG-16": ("tictac_vgg16", 32, 527.79, 388, 758, 32),
    "VGG-19": ("tictac_vgg19", 38, 548.05, 442, 857, 32),
}
"""Table 1."""

MODELS = (
    "Inception v1",
    "VGG-19",
    "Inception v2",
    "AlexNet v2",
    "VGG-16",
    "ResNet-50 v1",
    "ResNet-50 v2",
    "Inception v3",
    "ResNet-101 v1",
)
"""Of figs 9 to 12 and 14, as fig 9 lists them: all but ResNet-101 v2."""

INFERENCE, TRAIN = TASKS = ("inference", "train")
TRAIN_OR_NOT = {INFERENCE: "inference", TRAIN: "training"}
GPU = {"job.train.compute.device": "K80"}
CPU = {"job.train.compute.device": "Xeon-E5-2686v4", "cluster.link.rate": "1Gbps"}
NONE, TIC, TAC, REVERSED = "random", "tic", "tac", "file"

WORKERS = (1, 2, 4, 8, 16)
SERVERS = (1, 2, 4)
FACTORS = (0.5, 1, 2)
DISORDER = 0.005
"""Share of transfers that left their order in the paper, section 5.1."""

DISCARDED = 2
MEASURED = 10
REPEATS = 1000


@dataclass(frozen=True)
class Case:
    """A run: Table 1's model in one of the paper's environments.

    Attributes:
        model: as the paper writes it.
        task: inference or train.
        order: of pulls; "file" is the model's own order, backwards.
        workers: their number.
        servers: their number.
        is_cpu: whether it is envC.
        factor: of the mini-batch.
        disorder: share of pulls that leave their order.
        noise: of compute, as a multiple of what it is everywhere.
        iterations: simulated, with those that are discarded.
    """

    model: str
    task: str
    order: str
    workers: int = 4
    servers: int = 1
    is_cpu: bool = False
    factor: float = 1
    disorder: float = 0.0
    noise: int = 1
    iterations: int = DISCARDED + MEASURED


def _pairs(cases: Iterable[Case], enforced: Sequence[str] = (TIC,)) -> list[Case]:
    """Return every case without an order, and with each that is enforced."""
    return [replace(case, order=which) for case in cases for which in (NONE, *enforced)]


def servers_of(workers: int) -> int:
    """Return a quarter of the workers, at least one (section 6.1)."""
    return max(1, workers // 4)


def _grid(workers: Iterable[int] = WORKERS, models: Iterable[str] = MODELS) -> list[Case]:
    return [Case(m, t, TIC, n, servers_of(n)) for n, m, t in product(workers, models, TASKS)]


SCALED = _grid()
"""Fig 9's. Figs 12 and 14 do not say how many workers they are of: they are of these."""

SHARED = [case for case in SCALED if case.workers > 1]
EXAMPLE = [Case("Inception v3", task, TIC, 2, 1) for task in TASKS]
SPREAD = [Case(model, task, TIC, 8, count) for count, model, task in product(SERVERS, MODELS, TASKS)]
LOADED = [Case(model, INFERENCE, TIC, 4, 1, factor=factor) for factor, model in product(FACTORS, MODELS)]
# Neither figs 13 and 15 nor the text on orders say how many workers: 4, and 1 server; one of each sees an order.
REPEATED = {task: Case("Inception v2", task, TAC, is_cpu=True, iterations=REPEATS) for task in TASKS}
NOISES = (1, 0, 3)
SMALL = ("Inception v2", "VGG-16", "AlexNet v2")
HEURISTICS = [Case(model, task, TAC, is_cpu=True) for model, task in product(SMALL, TASKS)]
SEEN = {"ResNet-50 v2": 1000, "Inception v3": 1000, "VGG-16": 493}
"""Unique orders among 1000, section 2.2."""

ORDERS = [Case(model, INFERENCE, NONE, 1, 1, iterations=REPEATS) for model in SEEN]

# What each figure shows, what the paper says of it, and the runs that it needs.
FIGURES: dict[str, tuple[str, str, list[Case]]] = {
    "Table 1": (
        "models",
        "Parameters, their size and the ops of TensorFlow's graphs. Computing TIC and TAC takes about 10 s.",
        [],
    ),
    "Orders": (
        "random orders never repeat",
        "In 1000 iterations of ResNet-50 v2 and of Inception v3 no order of transfers was seen twice; of VGG-16, there "
        "were 493.",
        ORDERS,
    ),
    "4": (
        "overlap and utilisation of Inception v3, 2 workers and 1 server",
        "TicTac has more overlap at the same ratio of communication to computation, and so uses more of the GPU.",
        _pairs(EXAMPLE),
    ),
    "9": (
        "speed-up over workers, a server for 4",
        "Up to 37.7 % of throughput in inference, 19.2 % in training. It rises with the communication until a "
        "threshold, and falls beyond it. In small networks at small sizes it may cost up to 4.2 %.",
        _pairs(SCALED),
    ),
    "10": (
        "speed-up over servers, 8 workers",
        "Inference gains more than training. With several servers, too, the gain is significant.",
        _pairs(SPREAD),
    ),
    "11": (
        "speed-up over the mini-batch, 4 workers, inference",
        "Where communication takes longer than computation, larger batches gain more; where it takes less, they gain "
        "less.",
        _pairs(LOADED),
    ),
    "12": (
        "speed-up over the size of the graph",
        "Larger networks obtain higher gains.",
        _pairs(SCALED),
    ),
    "13": (
        "overlap predicts the step time; Inception v2 on CPUs, 1000 runs",
        "The overlap coefficient predicts step time with R² 0.98. The 95th percentiles of normalised step time are "
        "0.63403 without an order and 0.99825 with TAC, most of whose runs have an overlap near 1.",
        [
            *(replace(case, noise=n) for n in NOISES for case in _pairs([REPEATED[TRAIN]], [TAC])),
            *_pairs([REPEATED[INFERENCE]], [TAC]),
        ],
    ),
    "14": (
        "stragglers",
        "Without an order workers wait for more than 50 % of an iteration in some cases. Any order reduces that, on "
        "average and by up to 2.3 times, more in larger networks.",
        [
            *_pairs(SHARED),
            *(replace(case, disorder=DISORDER) for case in SHARED),
            *(replace(case, order=REVERSED) for case in SHARED if case.workers == 8),
        ],
    ),
    "15": (
        "TIC and TAC on CPUs",
        "Both speed up; TIC is only marginally worse than TAC.",
        _pairs(HEURISTICS, (TIC, TAC)),
    ),
}


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    name, *_, batch = PAPER[case.model]
    schedule: dict[str, Any] = {"order": case.order, "disorder": case.disorder}
    if case.order == REVERSED:
        recvs = [op["name"] for op in graphs.graph(name).counts["ops"] if op["kind"] == "recv"]
        schedule["ranking"] = recvs[::-1]
    job = {
        "model": name,
        "task": case.task,
        "workers": case.workers,
        "iterations": case.iterations,
        "compute.batch": int(batch * case.factor),
        "compute.noise": base.jobs[0].compute.noise_ppm / 1e6 * case.noise,
        "collective.ps.servers": case.servers,
        "schedule": schedule,
    }
    environment = CPU if case.is_cpu else GPU
    return base.set({f"job.train.{key}": value for key, value in job.items()} | environment)


class Study:
    """What has been run, by case; of every run, the iterations that count."""

    def __init__(self, results: Mapping[Case, RunResult]) -> None:
        self.results = results

    def column(self, case: Case, name: str) -> np.ndarray:
        """Return a column of the iterations that count, shape (iterations,)."""
        return self.results[case].iterations[name][DISCARDED:]

    def time_ms(self, case: Case) -> float:
        """Return the mean time of an iteration."""
        return float(self.column(case, "time_us").mean()) / 1e3

    def gain(self, case: Case) -> float:
        """Return by how much more throughput a case has than without an order, a share."""
        return self.time_ms(replace(case, order=NONE, disorder=0.0)) / self.time_ms(case) - 1

    def gains(self, cases: Iterable[Case]) -> dict[Case, float]:
        """Return the gains of cases."""
        return {case: self.gain(case) for case in cases}

    def straggler(self, case: Case) -> float:
        """Return the longest that any worker waits for another, as a share of its iteration (section 6.3)."""
        waits = self.results[case].workers["straggler_us"].reshape(case.iterations, case.workers).max(axis=1)
        return float((waits[DISCARDED:] / self.column(case, "time_us")).max())

    def rho(self, case: Case) -> float:
        """Return the ratio of communication to computation."""
        return float(self.results[case].job["rho"])

    def alpha(self, case: Case) -> float:
        """Return the largest overlap coefficient."""
        return float(self.column(case, "alpha").max())

    def orders(self, case: Case) -> int:
        """Return how many orders of pulls a worker has seen, each counted once."""
        transfers = self.results[case].transfers
        ranks = transfers["rank"].reshape(case.iterations, -1)
        return len({tuple(row) for row in ranks.tolist()})

    def normalised(self, task: str, noise: int = 1) -> dict[str, np.ndarray]:
        """Return the time of the fastest of all steps over that of each, by order."""
        times = {
            which: self.column(replace(REPEATED[task], order=which, noise=noise), "time_us") for which in (NONE, TAC)
        }
        fastest = min(float(column.min()) for column in times.values())
        return {which: fastest / column for which, column in times.items()}

    def overlap(self, task: str, noise: int = 1) -> dict[str, np.ndarray]:
        """Return the overlap coefficient of each step, by order."""
        return {which: self.column(replace(REPEATED[task], order=which, noise=noise), "alpha") for which in (NONE, TAC)}

    def determination(self, task: str, noise: int = 1, orders: Sequence[str] = (NONE, TAC)) -> float:
        """Return R² of normalised step time over overlap, steps of all orders together, as fig 13 (a) draws them."""
        alpha, step = self.overlap(task, noise), self.normalised(task, noise)
        x, y = (np.concatenate([by_order[which] for which in orders]) for by_order in (alpha, step))
        return float(np.corrcoef(x, y)[0, 1] ** 2)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's coefficient, ties at the mean of their ranks; not a number if all of one are equal."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        column = np.asarray(values)
        return np.array([(column < v).sum() + (column == v).sum() / 2 for v in column])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


# -- statements -------------------------------------------------------------------------------------------------------


NEAR = 0.1
"""A number agrees if it is within a tenth of the published one."""


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _near(ours: float, published: float) -> bool:
    return abs(ours / published - 1) <= NEAR


def _where(case: Case) -> str:
    return f"{case.model}, {case.workers} worker{'s' if case.workers > 1 else ''}"


def _ops(preset: str) -> tuple[int, int]:
    counts = graphs.graph(preset).counts
    return len(graphs.inference_part(counts)["ops"]), len(counts["ops"])


def _model_claims(study: Study) -> Iterable[Claim]:
    del study
    rows = {name: (graphs.graph(preset), parameters, mib) for name, (preset, parameters, mib, *_) in PAPER.items()}
    equal = sum(graph.tensors == parameters for graph, parameters, _ in rows.values())
    yield "number of parameters", "table 1", f"{equal} of {len(rows)} equal", equal == len(rows), ""
    equal = sum(f"{graph.parameter_bytes / 2**20:.2f}" == f"{mib:.2f}" for graph, _, mib in rows.values())
    yield "MiB of parameters, both decimals", "table 1", f"{equal} of {len(rows)} equal", equal == len(rows), ""
    shares = [
        ours / theirs
        for preset, _, _, *ops, _ in PAPER.values()
        for ours, theirs in zip(_ops(preset), ops, strict=True)
    ]
    note = (
        "ours are ATen's ops; TensorFlow's graph has variables' reads, constants and shapes besides, which take no "
        "time and change no order"
    )
    text = f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of them"
    yield "number of ops", "table 1", text, min(shares) > 0.9, note
    slowest = 0.0
    for preset, *_ in PAPER.values():
        for which in (TIC, TAC):
            start = time.process_time()
            order(graphs.graph_document(preset, "K80", None, TRAIN, 10**10), which)
            slowest = max(slowest, time.process_time() - start)
    text = "less than 1 s" if slowest < 1 else f"{slowest:.0f} s"
    yield "computing TIC or TAC, slowest model", "about 10 s", text, slowest < 10, "this machine is slow"


def _order_claims(study: Study) -> Iterable[Claim]:
    note = "TensorFlow's order is no draw of all orders alike: with few transfers some come again and again"
    for case in ORDERS:
        ours, theirs = study.orders(case), SEEN[case.model]
        yield f"{case.model}: unique orders of {REPEATS}", str(theirs), str(ours), ours == theirs, note


def _example_claims(study: Study) -> Iterable[Claim]:
    for case in EXAMPLE:
        alphas = [study.alpha(one) for one in (replace(case, order=NONE), case)]
        text = f"{alphas[0]:.2f} to {alphas[1]:.2f}"
        yield f"overlap, {TRAIN_OR_NOT[case.task]}", "more with TicTac", text, alphas[1] > alphas[0], ""
        used = [study.results[one].job["utilisation"] for one in (replace(case, order=NONE), case)]
        text = f"{_percent(used[0], 0)} to {_percent(used[1], 0)}"
        yield f"utilisation, {TRAIN_OR_NOT[case.task]}", "more with TicTac", text, used[1] > used[0], ""


_WHY_MORE = (
    "orders here are random in full, and a step waits for nearly all transfers before it computes; TensorFlow's leave "
    "part of the overlap, and its steps hold time that no order saves"
)
_WHY_VGG = (
    "a parameter is never cut, so VGG's first dense layer, most of the model, is on one server, alone on its channel: "
    "no order is faster than its transfer to all workers"
)


def _worker_claims(study: Study) -> Iterable[Claim]:
    for task, theirs in ((INFERENCE, 0.377), (TRAIN, 0.192)):
        gains = study.gains(case for case in SCALED if case.task == task)
        best = max(gains, key=gains.__getitem__)
        text = f"{_percent(gains[best])} ({_where(best)})"
        yield f"largest speed-up, {TRAIN_OR_NOT[task]}", _percent(theirs), text, _near(gains[best], theirs), _WHY_MORE
    gains = study.gains(SCALED)
    worst = min(gains.values())
    note = "enforcing an order costs nothing here: no counter, no blocked request, no reordering is simulated"
    yield "largest slow-down", "4.2 %", _percent(max(0.0, -worst)), _near(-worst, 0.042), note
    for task in TASKS:
        peaks = []
        for model in MODELS:
            own = [gains[Case(model, task, TIC, n, servers_of(n))] for n in WORKERS]
            peaks.append(max(own[1:-1]) > max(own[0], own[-1]) + words.SAME)
        text = f"in {sum(peaks)} of {len(peaks)} models"
        note = "a server for every 4 workers keeps the load of a link, so that curves level off; VGG as in fig 10"
        yield f"gain rises and falls with workers, {TRAIN_OR_NOT[task]}", "yes", text, all(peaks), note


def _server_claims(study: Study) -> Iterable[Claim]:
    gains = study.gains(SPREAD)
    pairs = [(gains[case], gains[replace(case, task=TRAIN)]) for case in SPREAD if case.task == INFERENCE]
    more = sum(a >= b - words.SAME for a, b in pairs)
    text = f"in {more} of {len(pairs)}"
    yield "inference gains at least what training does", "in general", text, more > 0.9 * len(pairs), ""
    for count in SERVERS[1:]:
        own = {case: gain for case, gain in gains.items() if case.servers == count and case.task == INFERENCE}
        worst = min(own, key=own.__getitem__)
        text = f"at least {_percent(own[worst])} ({worst.model})"
        yield f"gain with {count} servers, inference", "significant", text, own[worst] > 0.05, _WHY_VGG


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
        yield quantity, "yes", f"in {sum(found)} of {len(found)} steps", all(found), "near the balance of both"


def _size(case: Case) -> int:
    _, _, _, *ops, _ = PAPER[case.model]
    return ops[TASKS.index(case.task)]


def _mean_gains(study: Study, task: str) -> dict[str, float]:
    """Return the mean gain of each model over fig 9's numbers of workers."""
    return {
        model: float(np.mean([study.gain(case) for case in SCALED if (case.model, case.task) == (model, task)]))
        for model in MODELS
    }


_WHY_SIZE = (
    "what an order saves here is the smaller of communication and computation, whatever the number of ops; more ops "
    "make random orders no worse once there are a dozen"
)


def _size_claims(study: Study) -> Iterable[Claim]:
    for task in TASKS:
        means = _mean_gains(study, task)
        sizes = [_size(Case(model, task, TIC)) for model in means]
        found = rank_correlation(sizes, list(means.values()))
        quantity = f"rank correlation of ops and gain, {TRAIN_OR_NOT[task]}"
        yield quantity, "larger gain more", f"{found:.2f}", found > 0.5, _WHY_SIZE


def _overlap_claims(study: Study) -> Iterable[Claim]:
    varies = "the coefficient counts the computation that was; where that varies, so does the step, at equal overlap"
    alike = (
        "two random orders of 141 transfers delay a step nearly alike; what is left is noise of compute, and which "
        "worker was the slowest"
    )
    found = {
        name: (study.determination(TRAIN, noise), varies)
        for noise, name in zip(NOISES, ("", ", no noise in compute", ", three times the noise"), strict=True)
    }
    found[", steps without an order alone"] = study.determination(TRAIN, orders=[NONE]), alike
    for name, (ours, note) in found.items():
        yield f"R² of step time over overlap, training{name}", "0.98", f"{ours:.3f}", ours >= 0.95, note
    steps, overlap = study.normalised(INFERENCE), study.overlap(INFERENCE)
    for which, name, theirs in ((NONE, "no order", 0.63403), (TAC, "TAC", 0.99825)):
        ours = float(np.percentile(steps[which], 95))
        note = (
            "it is the ratio of communication to computation that decides, and the paper names neither CPU nor workers"
        )
        yield f"95th percentile, inference, {name}", f"{theirs}", f"{ours:.5f}", _near(ours, theirs), note
    share = float((overlap[TAC] > 0.9).mean())
    yield "overlap above 0.9 with TAC, inference", "most runs", f"{_percent(share, 0)} of runs", share > 0.5, ""


def _straggler_claims(study: Study) -> Iterable[Claim]:
    plain = {case: study.straggler(replace(case, order=NONE)) for case in SHARED}
    most = max(plain, key=plain.__getitem__)
    text = f"{_percent(plain[most], 0)} ({_where(most)}, {TRAIN_OR_NOT[most.task]})"
    note = (
        "random orders of many transfers are late alike, on every worker; virtual machines differ by more than the 3 % "
        "that are simulated"
    )
    yield "largest, no order", "more than 50 %", text, plain[most] > 0.5, note
    for disorder, name in ((0.0, "TIC"), (DISORDER, "TIC, 0.5 % out of order")):
        own = {case: study.straggler(replace(case, disorder=disorder)) for case in SHARED}
        mean, before = float(np.mean(list(own.values()))), float(np.mean(list(plain.values())))
        note = (
            "a pull that strays changes places with any that waits, which is as far as it can: one late parameter "
            "stops its worker, and the others wait"
        )
        text = f"{_percent(before)} to {_percent(mean)}"
        yield f"mean, {name}", "reduced", text, mean < before, note
        factor = before / mean
        note = note if disorder else "what is left is noise of compute, of which cloud machines have more"
        yield f"by what factor on average, {name}", "up to 2.3", f"{factor:.1f}", _near(factor, 2.3), note
    eight = [case for case in SHARED if case.workers == 8]
    for task in TASKS:
        cases = [case for case in eight if case.task == task]
        cut = [plain[case] - study.straggler(case) for case in cases]
        found = rank_correlation([_size(case) for case in cases], cut)
        quantity = f"rank correlation of ops and reduction, 8 workers, {TRAIN_OR_NOT[task]}"
        note = "the more transfers, the more alike are random orders in what they delay"
        yield quantity, "larger reduce more", f"{found:.2f}", found > 0.5, note
    fewer = [study.straggler(replace(case, order=REVERSED)) <= plain[case] + words.SAME for case in eight]
    quantity = "the model's order backwards, 8 workers: no more than without an order"
    note = "where an order cannot matter, both are noise"
    yield quantity, "regardless of quality", f"in {sum(fewer)} of {len(fewer)}", all(fewer), note


def _heuristic_claims(study: Study) -> Iterable[Claim]:
    for task in TASKS:
        cases = [case for case in HEURISTICS if case.task == task]
        gains = [study.gain(replace(case, order=which)) for case in cases for which in (TIC, TAC)]
        text = f"{_percent(min(gains))} to {_percent(max(gains))}"
        yield f"speed-up, {TRAIN_OR_NOT[task]}", "significant", text, min(gains) > 0.05, "little is left to overlap"
        worst = max(study.time_ms(replace(case, order=TIC)) / study.time_ms(case) - 1 for case in cases)
        text = f"by at most {_percent(max(0.0, worst))}"
        yield f"TIC is slower than TAC, {TRAIN_OR_NOT[task]}", "marginally", text, worst < 0.02, ""


_CHECKS: dict[str, Callable[[Study], Iterable[Claim]]] = {
    "Table 1": _model_claims,
    "Orders": _order_claims,
    "4": _example_claims,
    "9": _worker_claims,
    "10": _server_claims,
    "11": _batch_claims,
    "12": _size_claims,
    "13": _overlap_claims,
    "14": _straggler_claims,
    "15": _heuristic_claims,
}

# -- tables, bars and series ------------------------------------------------------------------------------------------


def _model_table(study: Study) -> list[dict[str, Any]]:
    del study
    rows = []
    for name, (preset, parameters, mib, forward, whole, batch) in PAPER.items():
        graph, ops = graphs.graph(preset), _ops(preset)
        own = [graph.tensors, f"{graph.parameter_bytes / 2**20:.2f}", f"{ops[0]}/{ops[1]}"]
        rows.append([name, parameters, own[0], f"{mib:.2f}", own[1], f"{forward}/{whole}", own[2], batch])
    columns = ["model", "parameters", "ours", "MiB", "ours", "ops", "ours", "batch"]
    note = "Ops of inference and of training; a column of ours stands beside each of the paper's."
    return [{"title": "Models", "columns": columns, "rows": rows, "note": note}]


def _example_table(study: Study) -> list[dict[str, Any]]:
    rows = []
    for case, (which, name) in product(EXAMPLE, ((NONE, "no order"), (TIC, "TIC"))):
        job = study.results[replace(case, order=which)].job
        numbers = [f"{job[key]:.3f}" for key in ("rho", "alpha", "utilisation")]
        rows.append([TRAIN_OR_NOT[case.task], name, *numbers])
    return [
        {
            "title": "Inception v3, 2 workers and 1 server: means",
            "columns": ["task", "order", "rho", "alpha", "U"],
            "rows": rows,
            "note": "",
        }
    ]


_TABLES: dict[str, Callable[[Study], list[dict[str, Any]]]] = {"Table 1": _model_table, "4": _example_table}


def _bars(title: str, unit: str, rows: Sequence[str], groups: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return bars: for each row one of each group, values as shares in percent."""
    made = [{"name": name, "values": [100 * value for value in values]} for name, values in groups.items()]
    return {"title": title, "unit": unit, "rows": list(rows), "groups": made}


_GAIN = "speed-up (%)"


def _gain_bars(study: Study, title: str, groups: Mapping[str, Sequence[Case]], rows: Sequence[str]) -> dict[str, Any]:
    return _bars(title, _GAIN, rows, {name: [study.gain(case) for case in cases] for name, cases in groups.items()})


def _worker_bars(study: Study) -> list[dict[str, Any]]:
    def of(task: str, n: int) -> list[Case]:
        return [Case(model, task, TIC, n, servers_of(n)) for model in MODELS]

    titles = {n: f"{n} worker{'s' if n > 1 else ''}, {servers_of(n)} server{'s' if n > 7 else ''}" for n in WORKERS}
    return [_gain_bars(study, titles[n], {TRAIN_OR_NOT[t]: of(t, n) for t in TASKS}, MODELS) for n in WORKERS]


def _server_bars(study: Study) -> list[dict[str, Any]]:
    def of(task: str, count: int) -> list[Case]:
        return [Case(model, task, TIC, 8, count) for model in MODELS]

    names = {count: f"{count} server{'s' if count > 1 else ''}" for count in SERVERS}
    return [
        _gain_bars(study, TRAIN_OR_NOT[t], {names[count]: of(t, count) for count in SERVERS}, MODELS) for t in TASKS
    ]


def _batch_bars(study: Study) -> list[dict[str, Any]]:
    groups = {f"batch x {f:g}": [Case(m, INFERENCE, TIC, 4, 1, factor=f) for m in MODELS] for f in FACTORS}
    return [_gain_bars(study, "inference", groups, MODELS)]


def _straggler_bars(study: Study) -> list[dict[str, Any]]:
    rows = sorted(MODELS, key=lambda model: _size(Case(model, INFERENCE, TIC)))
    changes = {
        "no order": {"order": NONE},
        "TIC": {},
        "TIC, 0.5 % out of order": {"disorder": DISORDER},
        "the model's order, backwards": {"order": REVERSED},
    }
    return [
        _bars(
            f"{TRAIN_OR_NOT[task]}, 8 workers; fewest ops first",
            "straggler time (%)",
            rows,
            {
                name: [study.straggler(replace(Case(m, task, TIC, 8, 2), **change)) for m in rows]  # type: ignore[arg-type]
                for name, change in changes.items()
            },
        )
        for task in TASKS
    ]


def _heuristic_bars(study: Study) -> list[dict[str, Any]]:
    return [
        _gain_bars(
            study,
            TRAIN_OR_NOT[task],
            {which.upper(): [Case(m, task, which, is_cpu=True) for m in SMALL] for which in (TIC, TAC)},
            SMALL,
        )
        for task in TASKS
    ]


_BARS: dict[str, Callable[[Study], list[dict[str, Any]]]] = {
    "9": _worker_bars,
    "10": _server_bars,
    "11": _batch_bars,
    "14": _straggler_bars,
    "15": _heuristic_bars,
}


def _size_series(study: Study) -> list[dict[str, Any]]:
    made = []
    for task in TASKS:
        means = _mean_gains(study, task)
        # ResNet-50 v1 and Inception v1 have as many ops in inference: one place, and the mean of both.
        by_size: dict[int, list[float]] = {}
        for model, gain in means.items():
            by_size.setdefault(_size(Case(model, task, TIC)), []).append(100 * gain)
        sizes = sorted(by_size)
        line = {"name": TRAIN_OR_NOT[task], "values": [float(np.mean(by_size[size])) for size in sizes]}
        made.append(
            {
                "title": f"{TRAIN_OR_NOT[task]}, mean over 1 to 16 workers",
                "x": {"label": "ops, as of table 1", "values": sizes},
                "y": {"label": _GAIN},
                "lines": [line],
            }
        )
    return made


def _overlap_series(study: Study) -> list[dict[str, Any]]:
    alpha, step = study.overlap(TRAIN), study.normalised(TRAIN)
    edges = np.arange(-0.5, 1.05, 0.05)
    middles = ((edges[:-1] + edges[1:]) / 2).round(3)

    def binned(which: str) -> list[float | None]:
        place = np.digitize(alpha[which], edges) - 1
        return [float(step[which][place == i].mean()) if (place == i).any() else None for i in range(len(middles))]

    slope, offset = np.polyfit(np.concatenate(list(alpha.values())), np.concatenate(list(step.values())), 1)
    lines = {"no order": binned(NONE), "TAC": binned(TAC)}
    kept = [i for i in range(len(middles)) if any(values[i] is not None for values in lines.values())]
    at = [float(middles[i]) for i in kept]
    drawn = [{"name": name, "values": [values[i] for i in kept]} for name, values in lines.items()]
    drawn.append({"name": "linear regression", "values": [float(slope * x + offset) for x in at]})
    normalised = "normalised step time"
    steps = study.normalised(INFERENCE)
    places = np.linspace(min(float(s.min()) for s in steps.values()), 1, 120).round(5).tolist()
    shares = {
        name: [float((steps[which] <= x).mean()) for x in places] for which, name in ((NONE, "no order"), (TAC, "TAC"))
    }
    return [
        {
            "title": "(a) training",
            "x": {"label": "overlap coefficient", "values": at},
            "y": {"label": normalised},
            "lines": drawn,
            "note": "Mean of the steps whose overlap is within 0.025 of each place.",
        },
        {
            "title": "(b) inference",
            "x": {"label": normalised, "values": places},
            "y": {"label": "share of steps"},
            "lines": [{"name": name, "values": values} for name, values in shares.items()],
        },
    ]


_SERIES: dict[str, Callable[[Study], list[dict[str, Any]]]] = {"12": _size_series, "13": _overlap_series}


PART = of_statements(
    "TicTac (Hashemi et al., 2019): table 1, orders, figs 4, 9 to 15",
    name="tictac",
    preset="paper/tictac2019",
    subject="TicTac (Hashemi et al., 2019): communication scheduling with parameter servers",
    figures=FIGURES,
    scenario=scenario,
    study=lambda _base, results: Study(results),
    claims=_CHECKS,
    bars=_BARS,
    tables=_TABLES,
    series=_SERIES,
)
"""All runs together take less than a minute."""
