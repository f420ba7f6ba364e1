"""Caramel (Hashemi et al., 2020): figs 2, 4 and 8 to 14, on simulated K80s.

The figures have no printed numbers, so our values are compared with the statements in the text. The paper leaves
several parameters open: links, hosts, and the fixed cost of a transfer. The preset `paper/caramel2020` contains our
choices and the reasons; all systems have the same parameters. Two values of the host are fitted, each to one sentence
of the paper, and these sentences are not compared. `validation/causes.py` tests the causes of the remaining
differences.

Models are op graphs. Caramel computes their ops in its own order. Horovod, and the incomplete versions of Caramel in
the ablation, compute them in random orders, which differ between workers (section 3.3.2 A). Parameter servers are those
of TensorFlow: workers pull whole tensors at the start of an iteration, and push gradients as they are computed. Pulls
are in arbitrary orders, because TicTac (section 2.2), a paper by the same first author, observed such orders in
TensorFlow.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from gradtide import words
from gradtide.papers.harness import (
    FITTED,
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
    least,
    line,
    published,
    table,
    value,
)
from gradtide.presets import graphs
from gradtide.scenario import Scenario
from gradtide.studies.schedules import parse_schedule

PAPER = published(__name__)
NOTES = PAPER["notes"]

# The models of section 6: {name: (op graph, mini-batch)}. Mini-batches are from table 1 of TicTac; ResNet-152 v2, which
# is missing there, has the mini-batch of ResNet-101 v2.
MODELS = {
    "AlexNet-v2": ("tictac_alexnet_v2", 512),
    "Inception-v3": ("tictac_inception_v3", 32),
    "ResNet-v1-50": ("tictac_resnet50_v1", 32),
    "ResNet-v2-152": ("caramel_resnet152_v2", 32),
    "VGG-16": ("tictac_vgg16", 32),
}
INCEPTION, VGG = "Inception-v3", "VGG-16"
WORKERS = (8, 16)

IN_FLIGHT = 6
"""Largest number of concurrent transfers in those steps of the ablation that have no scheduler of transfers.

TensorFlow runs as many ops as there are cores, and a Standard NC6 has 6 cores (section 6).
"""

CARAMEL, HOROVOD, SERVERS, HALF = "Caramel", "Horovod", "PS, as many", "PS, half as many"
ADAPTIVE, BATCHED = "adaptive all-reduce", "and batching"
SYSTEMS = (SERVERS, HALF, HOROVOD, CARAMEL)
STEPS = (HOROVOD, ADAPTIVE, BATCHED, CARAMEL)

SIZES = {"1 kB": 1_000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 10**6, "10 MB": 10**7, "100 MB": 10**8}
SMALL, LARGE = "1 kB", "100 MB"
DEPTHS = (1, 2, 4, 8, "adaptive")
KINDS = {"shuffle": "shuffle", "halving_doubling": "halving-doubling", "ring": "ring"}
CROWDS = (4, 8, 16, 32)

SEEDS = 3
"""Number of seeds over which the times of systems with random orders of ops or pulls are averaged."""

# A run: (subject, number of workers, seed). The subject is (system, model), or (collective, depth, size).
Case = tuple[tuple[Any, ...], int, int]


def _seeds(system: str) -> range:
    return range(1 if system == CARAMEL else SEEDS)


def _trained(systems: Iterable[str], models: Iterable[str] = MODELS, workers: Iterable[int] = WORKERS) -> list[Case]:
    grid = product(systems, models, workers)
    return [((system, model), n, seed) for system, model, n in grid for seed in _seeds(system)]


def _sent(kinds: Iterable[str], depths: Iterable[Any], sizes: Iterable[str], workers: Iterable[int]) -> list[Case]:
    return [(what, n, 0) for what, n in product(product(kinds, depths, sizes), workers)]


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    what, workers, seed = case
    changes: dict[str, Any] = {"workers": workers}
    (job,) = base.to_dict()["job"].values()
    rate = job["collective"]["reduction_rate"]
    if what[0] in KINDS:
        kind, depth, size = what
        # With FIFO order and the barrier, an iteration consists of its compute, followed by this one transfer.
        layer = {"name": "all", "forward": "1ms", "backward": "1ms", "parameters": f"{SIZES[size]}B"}
        changes |= {"model": {"layers": [layer]}, "collective": {"kind": kind, "reduction_rate": rate}}
        return base.replace(
            device=None, batch=None, **changes, **parse_schedule("fifo+barrier+fusion=0B") | {"depth": depth}
        )
    system, name = what
    order = "caramel" if system == CARAMEL else "random"
    model, batch = MODELS[name]
    changes |= {"model": model, "batch": batch, "seed": seed}
    if system in (SERVERS, HALF):
        ps = {"servers": workers if system == SERVERS else workers // 2, "pull": "start"}
        return base.replace(**changes, schedule={"order": "arbitrary"}, collective={"ps": ps, "reduction_rate": rate})
    changes["compute_order"] = order
    if system == HOROVOD:
        return base.replace(**changes, collective={"kind": "ring", "reduction_rate": rate}, **parse_schedule("horovod"))
    freely = f"depth=adaptive+credit={IN_FLIGHT}"
    steps = {ADAPTIVE: f"fifo+barrier+fusion=0B+{freely}", BATCHED: f"fifo+barrier+fusion=adaptive+{freely}"}
    return base.replace(**changes, **parse_schedule(steps.get(system, "caramel")))


class Study:
    """The figures of the jobs, by case."""

    def __init__(self, base: Scenario, jobs: dict[Case, dict[str, Any]]) -> None:
        self.base = base
        self.jobs = jobs

    def figures(self, system: str, model: str, workers: int) -> dict[str, float]:
        """Return the figures of a training job as means over its seeds."""
        jobs = [self.jobs[(system, model), workers, seed] for seed in _seeds(system)]
        time_ms = fmean(job["iteration_time_ms"]["mean"] for job in jobs)
        comm_ms, compute_ms = (fmean(job[key] for job in jobs) for key in ("comm_ms", "compute_ms"))
        return {
            "time_ms": time_ms,
            "comm_ms": comm_ms,
            "compute_ms": compute_ms,
            "rho": comm_ms / compute_ms,
            "alpha": (comm_ms + compute_ms - time_ms) / min(comm_ms, compute_ms),
            "utilisation": compute_ms / time_ms,
        }

    def time_ms(self, system: str, model: str, workers: int) -> float:
        """Return the iteration time in milliseconds."""
        return self.figures(system, model, workers)["time_ms"]

    def transfer_ms(self, kind: str, depth: Any, size: str, workers: int) -> float:
        """Return the time of a transfer in milliseconds, including the wait before its first byte."""
        job = self.jobs[(kind, depth, size), workers, 0]
        return float(job["iteration_time_ms"]["mean"]) - float(job["compute_ms"])


# -- statements -------------------------------------------------------------------------------------------------------


def _overlap_claims(study: Study) -> Iterable[Claim]:
    ours = {system: study.figures(system, INCEPTION, 8)["alpha"] for system in SYSTEMS}
    both = ours[HOROVOD], ours[CARAMEL]
    form = "alpha {:.2f} against {:.2f}"
    yield changed("Horovod's overlap against Caramel's", "poor", both, form, grows=True, by=0.05)


def _model_claims(study: Study) -> Iterable[Claim]:
    shares, small = [], []
    for preset, batch in MODELS.values():
        step, forward = (
            graphs.graph_document(preset, "K80", batch, task, rate_bps=10**9)["ops"] for task in graphs.TASKS
        )
        computed = [sum(op["time"] for op in ops if op["kind"] == "comp") for ops in (forward, step)]
        shares.append(computed[0] / computed[1])
        sizes = [op["bytes"] for op in step if op["kind"] == "recv"]
        small.append(sum(size < 20_000 for size in sizes) / len(sizes))
    ends = [100 * min(shares), 100 * max(shares)]
    said = value(30, "about 30 %")
    yield judged("forward pass, share of compute", said, ends, "{:.0f} to {:.0f} %", NOTES["roofline"])
    said, note = Said("50 %", low=50), NOTES["small_parameters"]
    yield judged("parameters smaller than 20 kB, in all models", said, 100 * min(small), "at least {:.0f} %", note)
    per_byte = [study.transfer_ms("halving_doubling", 1, size, 16) / SIZES[size] for size in (SMALL, LARGE)]
    text = f"a byte costs {{:.0f}} times as much at {SMALL} as at {LARGE}"
    yield judged("overhead of small transfers", above(10, "large"), per_byte[0] / per_byte[1], text)


def _time_claims(study: Study) -> Iterable[Claim]:
    cells = list(product(MODELS, WORKERS))
    # The claims are from section 6.3, "Compared with Horovod".
    gains = {cell: study.time_ms(HOROVOD, *cell) / study.time_ms(CARAMEL, *cell) for cell in cells}
    said = value(3.62, "3.62x")
    yield judged("VGG-16, 16 workers, against Horovod", said, gains[VGG, 16], "{:.2f}x", NOTES["vgg"])
    model, n = max(gains, key=gains.__getitem__)
    text = f"{model}, {n} workers: {gains[model, n]:.2f}x"
    yield "largest improvement", "VGG-16, 16 workers", text, (model, n) == (VGG, 16), NOTES["vgg"]
    for system in (SERVERS, HALF, HOROVOD):
        lowest = min(study.time_ms(system, *cell) / study.time_ms(CARAMEL, *cell) for cell in cells)
        yield judged(f"{system} against Caramel", above(1 + words.SAME, "slower"), lowest, "at least {:.2f}x")


def _use_claims(study: Study) -> Iterable[Claim]:
    used = {(model, n): study.figures(CARAMEL, model, n)["utilisation"] for model, n in product(MODELS, WORKERS)}
    model, n = min(used, key=used.__getitem__)
    said, text = least(70, "at least 70 %"), f"{{:.0f}} % ({model}, {n} workers)"
    yield judged("Caramel, least of all", said, 100 * used[model, n], text, NOTES["vgg"])
    gain = used[VGG, 16] / study.figures(HOROVOD, VGG, 16)["utilisation"]
    yield judged("VGG-16, 16 workers, against Horovod", value(3.5, "3.5x"), gain, "{:.2f}x", NOTES["vgg"])


def _cost_claims(study: Study) -> Iterable[Claim]:
    saved, more, less = {}, 0, 0
    for model, n in product(MODELS, WORKERS):
        own = study.figures(CARAMEL, model, n)
        others = {system: study.figures(system, model, n) for system in (SERVERS, HALF, HOROVOD)}
        for system, other in others.items():
            saved[model, n, system] = 1 - own["comm_ms"] / other["comm_ms"]
        more += own["alpha"] > others[HOROVOD]["alpha"] + words.SAME
        less += own["alpha"] < max(others[system]["alpha"] for system in (SERVERS, HALF)) - words.SAME
    # The paper states this reduction next to the speed-up of 3.62x over Horovod, so Horovod is the baseline here.
    best = max((cell for cell in saved if cell[2] == HOROVOD), key=saved.__getitem__)
    said, text = value(73, "73 %"), f"{{:.0f}} % ({best[0]}, {best[1]} workers)"
    yield judged("largest reduction of communication, of Horovod's", said, 100 * saved[best], text, NOTES["cost"])
    count, whole = sum(value > words.SAME for value in saved.values()), len(saved)
    yield "less communication than baselines", "always", f"{count} of {whole}", count == whole, NOTES["cost"]
    whole = len(MODELS) * len(WORKERS)
    yield "overlap against Horovod's", "better", f"in {more} of {whole}", more == whole, NOTES["cost"]
    yield "overlap against servers'", "worse", f"in {less} of {whole}", less == whole, NOTES["servers_overlap"]


def _used(study: Study, model: str) -> list[float]:
    return [100 * study.figures(system, model, 8)["utilisation"] for system in STEPS]


def _part_claims(study: Study) -> Iterable[Claim]:
    horovod, adaptive, batched, caramel = _used(study, INCEPTION)
    yield "Horovod", "68 %", f"{horovod:.0f} %", FITTED, "The rate of the stages is fitted to it."
    yield judged("Caramel", value(92, "92 %"), caramel, "{:.0f} %", NOTES["parts"])
    for name, theirs, ours in (
        ("adaptive all-reduce adds", 14, adaptive - horovod),
        ("batching adds", 4, batched - adaptive),
        ("in all", 24, caramel - horovod),
    ):
        yield judged(name, value(theirs, f"{theirs} points"), ours, "{:.1f} points", NOTES["parts"])


def _trend_claims(study: Study) -> Iterable[Claim]:
    gains = {model: _used(study, model)[-1] - _used(study, model)[0] for model in MODELS}
    model = min(gains, key=gains.__getitem__)
    said, text = above(1, "similar trends"), f"at least {{:+.1f}} points ({model})"
    yield judged("Caramel against Horovod", said, gains[model], text)


def _depth_claims(study: Study) -> Iterable[Claim]:
    times = {(depth, size): study.transfer_ms("shuffle", depth, size, 16) for depth, size in product(DEPTHS, SIZES)}
    slower = f"{times[8, SMALL] / times[1, SMALL]:.2f}x"
    yield f"{SMALL}: depth 8 against 1", "3x as long", slower, FITTED, "The cost of a message is fitted to it."
    saved = 1 - times[8, LARGE] / times[1, LARGE]
    said = value(60, "60 % less")
    yield judged(f"{LARGE}: depth 8 against 1", said, 100 * saved, "{:.0f} % less", NOTES["half"])
    worse = max(times["adaptive", size] / min(times[depth, size] for depth in DEPTHS) for size in SIZES)
    said, note = below(5, "best at all sizes"), NOTES["threshold"]
    yield judged("adaptive depth, against the best", said, 100 * (worse - 1), "within {:.1f} %", note)


def _collective_claims(study: Study) -> Iterable[Claim]:
    for size in (SMALL, LARGE):
        times = {
            (kind, n): study.transfer_ms(kind, "adaptive", size, n)
            for kind, n in product(KINDS, (CROWDS[0], CROWDS[-1]))
        }
        for n, theirs in ((CROWDS[0], "shuffle"), (CROWDS[-1], "halving_doubling")):
            first = min(KINDS, key=lambda kind: times[kind, n])
            quantity = f"{size}, {n} workers: fastest"
            yield quantity, KINDS[theirs], KINDS[first], first == theirs, NOTES["large"]


# -- tables and series ------------------------------------------------------------------------------------------------


def _by_system(
    title: str, of: Callable[[dict[str, float]], str], systems: Sequence[str], workers: Sequence[int] = WORKERS
) -> Callable[[Study], list[Drawn]]:
    """Return a function that draws a table, with a row per model and number of workers and a column per system."""

    def made(study: Study) -> list[Drawn]:
        rows = (
            [model, n, *(of(study.figures(system, model, n)) for system in systems)]
            for model, n in product(MODELS, workers)
        )
        return [table(title, ["model", "workers", *systems], rows)]

    return made


def _used_percent(job: dict[str, float]) -> str:
    return f"{100 * job['utilisation']:.0f}"


def _inception(systems: Sequence[str]) -> Callable[[Study], list[Drawn]]:
    def made(study: Study) -> list[Drawn]:
        keys = ("rho", "alpha", "utilisation")
        rows = ([system, *(f"{study.figures(system, INCEPTION, 8)[key]:.3f}" for key in keys)] for system in systems)
        return [table("Inception-v3, 8 workers", ["system", "rho", "alpha", "U"], rows)]

    return made


def _over_size(title: str, named: dict[str, tuple[str, Any]]) -> Callable[[Study], Iterable[Drawn]]:
    def made(study: Study) -> Iterable[Drawn]:
        lines = []
        for name, (kind, depth) in named.items():
            lines.append(line(name, [study.transfer_ms(kind, depth, size, 16) for size in SIZES]))
        yield chart(f"{title}, 16 workers", ("bytes", list(SIZES.values())), "transfer time (ms)", lines)

    return made


def _over_workers(study: Study) -> Iterable[Drawn]:
    for size in (SMALL, LARGE):
        lines = []
        for kind, name in KINDS.items():
            lines.append(line(name, [study.transfer_ms(kind, "adaptive", size, n) for n in CROWDS]))
        yield chart(size, ("workers", CROWDS), "transfer time (ms)", lines)


FIGURES: dict[str, Figure[Study, Case]] = {
    "2": Figure(_trained(SYSTEMS, [INCEPTION], [8]), _overlap_claims, tables=_inception(SYSTEMS)),
    "4": Figure(
        _sent(["halving_doubling"], [1], SIZES, [16]),
        _model_claims,
        series=_over_size("Halving-doubling", {"halving-doubling": ("halving_doubling", 1)}),
    ),
    "8": Figure(
        _trained(SYSTEMS),
        _time_claims,
        tables=_by_system("Iteration time, ms", lambda job: f"{job['time_ms']:.0f}", SYSTEMS),
    ),
    "9": Figure(_trained(SYSTEMS), _use_claims, tables=_by_system("Utilisation, %", _used_percent, SYSTEMS)),
    "10": Figure(
        _trained(SYSTEMS),
        _cost_claims,
        tables=_by_system(
            "Communication, ms, and overlap", lambda job: f"{job['comm_ms']:.0f}, alpha {job['alpha']:.2f}", SYSTEMS
        ),
    ),
    "11": Figure(_trained(STEPS, [INCEPTION], [8]), _part_claims, tables=_inception(STEPS)),
    "12": Figure(
        _trained(STEPS, MODELS, [8]), _trend_claims, tables=_by_system("Utilisation, %", _used_percent, STEPS, [8])
    ),
    "13": Figure(
        _sent(["shuffle"], DEPTHS, SIZES, [16]),
        _depth_claims,
        series=_over_size("Shuffle", {f"depth {depth}": ("shuffle", depth) for depth in DEPTHS}),
    ),
    "14": Figure(_sent(KINDS, ["adaptive"], [SMALL, LARGE], CROWDS), _collective_claims, series=_over_workers),
}

STATEMENTS = Statements(
    paper=PAPER, figures=FIGURES, scenario=scenario, study=Study, seen=lambda _case, result: result.job
)
PART = STATEMENTS.part(seconds=7)
