"""The engine against an independent re-implementation in exact fractions, to the nanosecond."""

import random
from itertools import pairwise

import pytest

from reference import simulate
from specs import column_ps, run, spec

NANOSECOND_PS = 1000


def random_spec(rng):
    """Draw a scenario: everything that section 1 of the models has, zeros and single layers included."""
    count = rng.choice([1, 2, 3, 5, 8, 13, 21, 34])

    def time():
        return 0 if rng.random() < 0.1 else rng.randrange(1, 10**11)

    layers = [
        (time(), time(), 0 if rng.random() < 0.1 else rng.randrange(1, 4 * 10**6), time() if rng.random() < 0.2 else 0)
        for _ in range(count)
    ]
    layers[0] = (rng.randrange(1, 10**11), *layers[0][1:])
    order = rng.choice(
        [
            {"kind": "fifo"},
            {"kind": "priority", "queues": None},
            {"kind": "priority", "queues": rng.randrange(1, 6)},
            {"kind": "random"},
            {"kind": "file", "ranks": rng.sample(range(count), count), "in_turn": rng.random() < 0.5},
        ]
    )
    return spec(
        layers,
        workers=rng.choice([1, 2, 3, 4, 7, 8, 16]),
        iterations=rng.randrange(1, 5),
        order=order,
        fusion=rng.choice([0, 10**6, 3 * 10**6, 10**9]),
        chunk=rng.choice([None, None, 333_333, 10**6]),
        # The engine draws its random orders itself and records those of the measured iterations. Behind a barrier the
        # order of the warm-up cannot matter to them; without one it could.
        barrier=order["kind"] == "random" or rng.random() < 0.5,
        rate_bps=rng.randrange(10**7, 10**11),
        delay_ps=rng.choice([0, rng.randrange(1, 10**8)]),
        overhead_ps=rng.choice([0, 0, rng.randrange(1, 10**8)]),
        slowdown_ppm=rng.choice([10**6, 10**6, rng.randrange(10**6, 2 * 10**6)]),
        efficiency_ppm=rng.choice([10**6, 940_000]),
        host_latency_ps=rng.choice([0, rng.randrange(1, 10**7)]),
        start_ps=rng.choice([0, rng.randrange(1, 10**12)]),
        seed=rng.randrange(1000),
    )


def uneven_spec(rng):
    """Draw a scenario whose workers differ, and whose syncer may take time."""
    drawn = random_spec(rng)
    job = drawn["jobs"][0]
    workers = len(job["hosts"])
    straggler = {
        "worker": rng.choice([None, rng.randrange(workers)]),
        "factor_ppm": rng.randrange(10**6, 3 * 10**6),
        "probability_ppm": rng.choice([10**6, rng.randrange(1, 10**6)]),
    }
    noise_ppm = rng.choice([0, rng.randrange(5 * 10**5)])
    job["compute"].update(noise_ppm=noise_ppm, straggler=rng.choice([None, straggler]))
    job["schedule"]["sync_ps"] = rng.choice([0, rng.randrange(1, 10**8)])
    if job["schedule"]["order"]["kind"] == "random":
        # What orders the warm-up had is not recorded, and workers that differ can carry its end into what follows.
        job["schedule"]["order"] = {"kind": "fifo"}
    return drawn


@pytest.mark.parametrize("case", range(200))
def test_engine_agrees_with_exact_fractions_to_a_nanosecond(case):
    check(random_spec(random.Random(case)))


@pytest.mark.parametrize("case", range(200))
def test_engine_agrees_with_exact_fractions_where_workers_differ(case):
    check(uneven_spec(random.Random(1000 + case)))


def check(drawn):
    _, output = run(drawn)
    job = drawn["jobs"][0]
    iterations, count = job["iterations"], len(job["layers"])
    order = job["schedule"]["order"]
    drawn_ranks = output.transfers.column("rank").tolist()

    def ranks(iteration, buckets):
        match order:
            case {"kind": "fifo"}:
                return [0] * len(buckets)
            case {"kind": "priority", "queues": None}:
                return [min(bucket) for bucket in buckets]
            case {"kind": "priority", "queues": queues}:
                return [min(bucket) * queues // count for bucket in buckets]
            case {"kind": "file", "ranks": layer_ranks}:
                return [min(layer_ranks[layer] for layer in bucket) for bucket in buckets]
        if iteration == 0:
            return [0] * len(buckets)
        return drawn_ranks[(iteration - 1) * len(buckets) : iteration * len(buckets)]

    starts, transfers = simulate(drawn, ranks, iterations)
    uneven = len(output.workers) > 0
    table = output.workers if uneven else output.iterations
    got_starts, got_times = (column_ps(table, name) for name in ("start_us", "time_us"))
    for worker, exact in enumerate(starts):
        mine = slice(worker, None, len(starts))
        for got, start in zip(got_starts[mine], exact, strict=False):
            assert abs(got - start) <= NANOSECOND_PS
        for got, (start, end) in zip(got_times[mine], pairwise(exact), strict=True):
            assert abs(got - (end - start)) <= NANOSECOND_PS
    for name in ("ready", "start", "end", "needed"):
        expected = [transfer[name] for block in transfers for transfer in block]
        for got, exact in zip(column_ps(output.transfers, f"{name}_us"), expected, strict=True):
            assert abs(got - exact) <= NANOSECOND_PS, name
