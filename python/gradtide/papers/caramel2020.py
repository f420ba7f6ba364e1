"""Caramel (Hashemi et al., 2020): figs 2, 4 and 8 to 14, on simulated K80s.

The figures have no numbers in print, so what is compared is what the text says of them. `paper/caramel2020` has the
choices that the paper leaves open, with their reasons. Everything runs twice: on links that carry 10 Gbit/s, and on
links of which TensorFlow's and Horovod's programs get as much as one sentence of section 6.2 implies. That is the only
value fitted.

Models are op graphs. Caramel computes them in its order; what it is compared with, and what its other parts do without
it, in random orders, another one on each worker (section 3.3.2 A).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from gradtide import words
from gradtide.papers.harness import (
    FITTED,
    SHOWN,
    Claim,
    Drawn,
    Figure,
    chart,
    line,
    near,
    of_statements,
    published,
    table,
)
from gradtide.presets import graphs
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.schedules import parse_schedule

PAPER = published(__name__)
NOTES = PAPER["notes"]

# Section 6, with the mini-batches of TicTac's table 1; it has no ResNet-152 v2, which gets that of ResNet-101 v2.
MODELS = {
    "AlexNet-v2": ("tictac_alexnet_v2", 512),
    "Inception-v3": ("tictac_inception_v3", 32),
    "ResNet-v1-50": ("tictac_resnet50_v1", 32),
    "ResNet-v2-152": ("caramel_resnet152_v2", 32),
    "VGG-16": ("tictac_vgg16", 32),
}
INCEPTION, VGG = "Inception-v3", "VGG-16"
WORKERS = (8, 16)

WIRE, STACK = "10 Gbit/s", "1.8 Gbit/s"
LINKS = {WIRE: 1.0, STACK: 0.18}
"""Share of 10 Gbit/s that programs get. 0.18: with it, Horovod's utilisation on Inception-v3 with 8 workers is the
published 68 %; no other value of the paper is fitted, and none is for a figure of its own."""

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
"""Draws of random orders, over which times are averaged."""

# A run: what, on which link, of how many workers, with which seed. What is a system and a model, or a collective, a
# depth and a size.
Case = tuple[tuple[Any, ...], str, int, int]


def _seeds(system: str) -> range:
    return range(1 if system == CARAMEL else SEEDS)


def _trained(systems: Iterable[str], models: Iterable[str] = MODELS, workers: Iterable[int] = WORKERS) -> list[Case]:
    grid = product(systems, models, LINKS, workers)
    return [((system, model), link, n, seed) for system, model, link, n in grid for seed in _seeds(system)]


def _sent(kinds: Iterable[str], depths: Iterable[Any], sizes: Iterable[str], workers: Iterable[int]) -> list[Case]:
    return [(what, link, n, 0) for what, link, n in product(product(kinds, depths, sizes), LINKS, workers)]


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    what, link, workers, seed = case
    changes: dict[str, Any] = {"link_efficiency": LINKS[link], "workers": workers}
    rate = "2.5GB/s"
    if what[0] in KINDS:
        kind, depth, size = what
        # In step, first in, first out: an iteration is its compute and one transfer.
        layer = {"name": "all", "forward": "1ms", "backward": "1ms", "parameters": f"{SIZES[size]}B"}
        changes |= {"model": {"layers": [layer]}, "collective": {"kind": kind, "reduction_rate": rate}}
        return base.replace(
            device=None, batch=None, **changes, **parse_schedule("fifo+barrier+fusion=0B") | {"depth": depth}
        )
    system, name = what
    order = "caramel" if system == CARAMEL else "random"
    model, batch = MODELS[name]
    changes |= {"model": model, "batch": batch, "compute_order": order, "seed": seed}
    if system in (SERVERS, HALF):
        servers = workers if system == SERVERS else workers // 2
        # Servers are hosts of their own. What is ready is on its way to as many servers as there are at a time.
        schedule = parse_schedule(f"fifo+fusion=0B+depth=1+credit={servers}")
        changes |= {"workers": workers + servers, "collective": {"ps": {"servers": servers}, "reduction_rate": rate}}
        return base.replace(**changes, **schedule)
    if system == HOROVOD:
        return base.replace(**changes, collective={"kind": "ring", "reduction_rate": rate}, **parse_schedule("horovod"))
    steps = {ADAPTIVE: "fifo+barrier+fusion=0B+depth=adaptive", BATCHED: "fifo+barrier+fusion=adaptive+depth=adaptive"}
    return base.replace(**changes, **parse_schedule(steps.get(system, "caramel")))


class Study:
    """What has been run, by case."""

    def __init__(self, base: Scenario, results: dict[Case, RunResult]) -> None:
        self.base = base
        self.results = results

    def figures(self, system: str, model: str, link: str, workers: int) -> dict[str, float]:
        """Return the figures of a training job, on average over its draws."""
        jobs = [self.results[(system, model), link, workers, seed].job for seed in _seeds(system)]
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

    def time_ms(self, system: str, model: str, link: str, workers: int) -> float:
        """Return an iteration's time."""
        return self.figures(system, model, link, workers)["time_ms"]

    def transfer_ms(self, kind: str, depth: Any, size: str, link: str, workers: int) -> float:
        """Return how long a transfer takes, what it waits before its first byte included."""
        job = self.results[(kind, depth, size), link, workers, 0].job
        return float(job["iteration_time_ms"]["mean"]) - float(job["compute_ms"])

    def speedup(self, model: str, link: str, workers: int) -> tuple[float, str]:
        """Return by what factor Caramel is faster than the slowest baseline, and which that is."""
        times = {system: self.time_ms(system, model, link, workers) for system in SYSTEMS}
        slowest = max((SERVERS, HALF, HOROVOD), key=times.__getitem__)
        return times[slowest] / times[CARAMEL], slowest


# -- statements -------------------------------------------------------------------------------------------------------


def _why(link: str) -> str:
    return str(NOTES["wire" if link == WIRE else "stack"])


def _overlap_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        ours = {system: study.figures(system, INCEPTION, link, 8)["alpha"] for system in SYSTEMS}
        text = f"alpha {ours[HOROVOD]:.2f} against {ours[CARAMEL]:.2f}"
        holds = ours[HOROVOD] < 0.95 * ours[CARAMEL]
        yield f"Horovod's overlap against Caramel's, {link}", "poor", text, holds, _why(link)


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
    text = f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
    holds = all(near(share, 0.3) for share in shares)
    yield "forward pass, share of compute", "about 30 %", text, holds, NOTES["roofline"]
    text = f"at least {100 * min(small):.0f} %"
    yield "parameters smaller than 20 kB, in all models", "50 %", text, min(small) >= 0.5, NOTES["small_parameters"]
    per_byte = [study.transfer_ms("halving_doubling", 1, size, WIRE, 16) / SIZES[size] for size in (SMALL, LARGE)]
    text = f"a byte costs {per_byte[0] / per_byte[1]:.0f} times as much at {SMALL} as at {LARGE}"
    yield "overhead of small transfers", "large", text, per_byte[0] > 10 * per_byte[1]


def _time_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        found = {(model, n): study.speedup(model, link, n) for model, n in product(MODELS, WORKERS)}
        ratio, slowest = found[VGG, 16]
        text = f"{ratio:.2f}x against {slowest}"
        yield f"VGG-16, 16 workers, {link}", "3.62x", text, near(ratio, 3.62), _why(link)
        model, n = max(found, key=lambda key: found[key][0])
        text = f"{model}, {n} workers: {found[model, n][0]:.2f}x"
        holds = (model, n) == (VGG, 16) or ratio > 0.999 * found[model, n][0]
        yield f"largest improvement, {link}", "VGG-16, 16 workers", text, holds, NOTES["close"]
        for system in (SERVERS, HALF, HOROVOD):
            cells = [(model, link, n) for model, n in product(MODELS, WORKERS)]
            least = min(study.time_ms(system, *cell) / study.time_ms(CARAMEL, *cell) for cell in cells)
            note = NOTES["server_links"] if system == SERVERS else _why(link)
            yield f"{system} against Caramel, {link}", "slower", f"at least {least:.2f}x", least > 1 + words.SAME, note


def _use_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        used = {(m, n): study.figures(CARAMEL, m, link, n)["utilisation"] for m, n in product(MODELS, WORKERS)}
        model, n = min(used, key=used.__getitem__)
        text = f"{100 * used[model, n]:.0f} % ({model}, {n} workers)"
        yield f"Caramel, least of all, {link}", "70 %", text, used[model, n] >= 0.7, NOTES["vgg"]
        least = min(study.figures(system, VGG, link, 16)["utilisation"] for system in (SERVERS, HALF, HOROVOD))
        gain = used[VGG, 16] / least
        yield f"VGG-16, 16 workers, {link}", "3.5x", f"{gain:.2f}x", near(gain, 3.5), _why(link)


def _cost_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        saved, more, less = {}, 0, 0
        for model, n in product(MODELS, WORKERS):
            own = study.figures(CARAMEL, model, link, n)
            others = {system: study.figures(system, model, link, n) for system in (SERVERS, HALF, HOROVOD)}
            for system, other in others.items():
                saved[model, n, system] = 1 - own["comm_ms"] / other["comm_ms"]
            more += own["alpha"] > others[HOROVOD]["alpha"] + words.SAME
            less += own["alpha"] < max(others[system]["alpha"] for system in (SERVERS, HALF)) - words.SAME
        best = max(saved, key=saved.__getitem__)
        note = NOTES["half_links"]
        text = f"{100 * saved[best]:.0f} % ({best[2]})"
        yield f"largest reduction of communication, {link}", "73 %", text, near(saved[best], 0.73), note
        count, whole = sum(value > words.SAME for value in saved.values()), len(saved)
        note = NOTES["double_hosts"]
        yield f"less communication than baselines, {link}", "always", f"{count} of {whole}", count == whole, note
        whole = len(MODELS) * len(WORKERS)
        yield f"overlap against Horovod's, {link}", "better", f"in {more} of {whole}", more == whole, _why(link)
        note = NOTES["servers_overlap"]
        yield f"overlap against servers', {link}", "worse", f"in {less} of {whole}", less == whole, note


def _used(study: Study, model: str, link: str) -> list[float]:
    return [100 * study.figures(system, model, link, 8)["utilisation"] for system in STEPS]


def _part_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        horovod, adaptive, batched, caramel = _used(study, INCEPTION, link)
        note = _why(link)
        yield f"Horovod, {link}", "68 %", f"{horovod:.0f} %", FITTED, "The rate of the other link is fitted to it."
        yield f"Caramel, {link}", "92 %", f"{caramel:.0f} %", near(caramel, 92), note
        for name, theirs, ours, why in (
            ("adaptive all-reduce adds", 14, adaptive - horovod, NOTES["parts"]),
            ("batching adds", 4, batched - adaptive, NOTES["parts"]),
            ("in all", 24, caramel - horovod, note),
        ):
            yield f"{name}, {link}", f"{theirs} points", f"{ours:.0f} points", near(ours, theirs), why


def _trend_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        gains = {model: _used(study, model, link)[-1] - _used(study, model, link)[0] for model in MODELS}
        model = min(gains, key=gains.__getitem__)
        text = f"at least {gains[model]:+.1f} points ({model})"
        yield f"Caramel against Horovod, {link}", "similar trends", text, gains[model] > 1, _why(link)


def _depth_claims(study: Study) -> Iterable[Claim]:
    for link in LINKS:
        grid = product(DEPTHS, SIZES)
        times = {(depth, size): study.transfer_ms("shuffle", depth, size, link, 16) for depth, size in grid}
        slower = times[8, SMALL] / times[1, SMALL]
        note = NOTES["latency"]
        yield f"{SMALL}, {link}: depth 8 against 1", "3x as long", f"{slower:.2f}x", near(slower, 3), note
        saved = 1 - times[8, LARGE] / times[1, LARGE]
        text = f"{100 * saved:.0f} % less"
        yield f"{LARGE}, {link}: depth 8 against 1", "60 % less", text, near(saved, 0.6), NOTES["half"]
        worse = max(times["adaptive", size] / min(times[depth, size] for depth in DEPTHS) for size in SIZES)
        text = f"within {100 * (worse - 1):.1f} %"
        note = NOTES["most_chunks"]
        yield f"adaptive depth, {link}, against the best", "best at all sizes", text, worse < 1.05, note


def _collective_claims(study: Study) -> Iterable[Claim]:
    for link, size in product(LINKS, (SMALL, LARGE)):
        grid = product(KINDS, CROWDS)
        times = {(kind, n): study.transfer_ms(kind, "adaptive", size, link, n) for kind, n in grid}
        few = min(KINDS, key=lambda kind: times[kind, CROWDS[0]])
        yield f"{size}, {link}, {CROWDS[0]} workers: fastest", "shuffle", KINDS[few], few == "shuffle"
        many = min(KINDS, key=lambda kind: times[kind, CROWDS[-1]])
        quantity, holds = f"{size}, {link}, {CROWDS[-1]} workers: fastest", many == "halving_doubling"
        yield quantity, "halving-doubling", KINDS[many], holds, NOTES["no_cost"]


def _once(claims: Callable[[Study], Iterable[Claim]]) -> Callable[[Study], Iterable[Claim]]:
    """Count statements once: on the links that programs get. Those on links of 10 Gbit/s are shown."""

    def counted(study: Study) -> Iterable[Claim]:
        for claim in claims(study):
            yield (*claim[:3], SHOWN, NOTES["wire"]) if WIRE in claim[0] else claim

    return counted


# -- tables and series ------------------------------------------------------------------------------------------------


def _by_system(
    title: str, of: Callable[[dict[str, float]], str], systems: Sequence[str], workers: Sequence[int] = WORKERS
) -> Callable[[Study], list[Drawn]]:
    """Make a table with a row for each model, link and number of workers, and a column for each system."""

    def made(study: Study) -> list[Drawn]:
        rows = (
            [model, link, n, *(of(study.figures(system, model, link, n)) for system in systems)]
            for link, model, n in product(LINKS, MODELS, workers)
        )
        return [table(title, ["model", "link", "workers", *systems], rows)]

    return made


def _used_percent(job: dict[str, float]) -> str:
    return f"{100 * job['utilisation']:.0f}"


def _inception(systems: Sequence[str]) -> Callable[[Study], list[Drawn]]:
    def made(study: Study) -> list[Drawn]:
        keys = ("rho", "alpha", "utilisation")
        rows = (
            [link, system, *(f"{study.figures(system, INCEPTION, link, 8)[key]:.3f}" for key in keys)]
            for link, system in product(LINKS, systems)
        )
        return [table("Inception-v3, 8 workers", ["link", "system", "rho", "alpha", "U"], rows)]

    return made


def _over_size(title: str, named: dict[str, tuple[str, Any]]) -> Callable[[Study], Iterable[Drawn]]:
    def made(study: Study) -> Iterable[Drawn]:
        for link in LINKS:
            lines = []
            for name, (kind, depth) in named.items():
                lines.append(line(name, [study.transfer_ms(kind, depth, size, link, 16) for size in SIZES]))
            x = ("bytes", list(SIZES.values()))
            yield chart(f"{title}, 16 workers, {link}", x, "transfer time (ms)", lines)

    return made


def _over_workers(study: Study) -> Iterable[Drawn]:
    for link, size in product(LINKS, (SMALL, LARGE)):
        lines = []
        for kind, name in KINDS.items():
            lines.append(line(name, [study.transfer_ms(kind, "adaptive", size, link, n) for n in CROWDS]))
        yield chart(f"{size}, {link}", ("workers", CROWDS), "transfer time (ms)", lines)


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

FIGURES = {name: replace(figure, claims=_once(figure.claims)) for name, figure in FIGURES.items()}

PART = of_statements(PAPER, FIGURES, scenario=scenario, study=Study)
"""All runs together take about a minute."""
