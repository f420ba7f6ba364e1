"""What must hold for every layered job on the fluid engine, and for the bytes of every engine."""

import json

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gradtide import _core
from gradtide.algorithms import ALGORITHMS
from gradtide.errors import SimulationError
from specs import PRIORITY, column_ps, run, spec, unconserved

ARBITRARY = {"kind": "arbitrary", "disorder_ppm": 32_000}
ORDERS = st.sampled_from([{"kind": "fifo"}, PRIORITY, {"kind": "priority", "queues": 2}, {"kind": "random"}, ARBITRARY])

LAYERS = st.lists(
    st.tuples(st.integers(1, 10**10), st.integers(0, 10**10), st.integers(0, 10**6), st.integers(0, 10**9)),
    min_size=1,
    max_size=20,
)

SPECS = st.builds(
    spec,
    LAYERS,
    workers=st.integers(1, 9),
    iterations=st.integers(1, 4),
    order=ORDERS,
    fusion=st.sampled_from([0, 200_000, 10**7]),
    chunk=st.sampled_from([None, 100_000]),
    barrier=st.booleans(),
    rate_bps=st.integers(10**7, 10**11),
    delay_ps=st.integers(0, 10**8),
    seed=st.integers(0, 100),
)


def changed(base, **changes):
    """Return a copy of a spec with another order or barrier."""
    copy = json.loads(json.dumps(base))
    copy["jobs"][0]["schedule"].update(changes)
    return copy


@settings(deadline=None)
@given(SPECS)
def test_bytes_are_conserved(drawn):
    summary, output = run(drawn)
    job = summary["jobs"][0]
    sizes = output.transfers.column("bytes")
    per_iteration = sizes.reshape(job["iteration_count"], -1).sum(axis=1)
    workers = len(drawn["jobs"][0]["hosts"])
    expected = job["parameter_bytes"] if workers > 1 else 0
    assert (per_iteration == expected).all()
    assert job["bytes_per_worker"] == pytest.approx(2 * (workers - 1) / workers * job["parameter_bytes"])


PARAMETERS = {"group": {"group": 3}, "inside": {"inside": "ring"}, "ps": {"servers": 1, "placement": "packed"}}
# Messages of trees are flows, whose bytes are rounded in each round.
SUMS = [
    {"kind": kind} | {name: value for key in one.keys for name, value in PARAMETERS[key].items()}
    for kind, one in ALGORITHMS.items()
    if one.sums and kind != "tree"
]


@st.composite
def loads(draw, engine):
    """Draw a spec whose buffers seldom divide evenly: odd bytes, chunks and workers, background flows, a duration."""
    workers = draw(st.integers(1, 7))
    others = st.tuples(st.integers(0, 10**10), st.integers(0, workers - 1), st.integers(1, 6), st.integers(1, 10**6))
    flows = draw(st.lists(others, max_size=4 if workers > 1 else 0))
    drawn = spec(
        draw(st.lists(st.tuples(*[st.integers(10**8, 10**9)] * 2, st.integers(0, 10**5)), min_size=1, max_size=6)),
        workers=workers,
        iterations=draw(st.integers(1, 3)),
        order=draw(ORDERS),
        chunk=draw(st.sampled_from([None, 9_999])),
        credit=draw(st.sampled_from([1, 3])),
        barrier=draw(st.booleans()),
        rate_bps=draw(st.integers(10**8, 10**10)),
        engine=engine,
        traffic=[(at, src, (src + 1 + by % (workers - 1)) % workers, size) for at, src, by, size in sorted(flows)],
        duration_ps=draw(st.sampled_from([None, 5 * 10**9, 10**10])),
    )
    collective = drawn["jobs"][0]["collective"]
    collective["remainder"] = draw(st.sampled_from(["sent", "dropped"]))
    if engine == "fluid":
        collective["algorithm"] = draw(st.sampled_from(SUMS))
        collective["depth"] = draw(st.sampled_from([1, 2]))
    return drawn


@pytest.mark.parametrize("engine", ["fluid"])
def test_links_carry_the_bytes_of_the_messages_and_flows_that_cross_them(engine):
    @settings(deadline=None, max_examples=150)
    @given(loads(engine))
    def check(drawn):
        try:
            _, output = run(drawn)
        except SimulationError:
            reject()
        assert unconserved(drawn, output) == ""

    check()


@settings(deadline=None, max_examples=60)
@given(loads("fluid"))
def test_an_exchange_that_is_remembered_loads_links_as_one_that_is_carried_out(drawn):
    drawn["run"]["duration_ps"], drawn["traffic"], drawn["jobs"][0]["schedule"]["credit"] = None, [], 1
    remembered = run(drawn)[1].links
    drawn["traffic"] = spec([(1, 1, 1)], traffic=[(0, 0, 1, 1)])["traffic"]
    for column in ("start_ps", "src", "dst", "bytes", "band"):
        drawn["traffic"][0][column] = []
    assert remembered.column("bytes").tolist() == run(drawn)[1].links.column("bytes").tolist()


@settings(deadline=None)
@given(SPECS)
def test_behind_a_barrier_order_does_not_matter_to_the_iteration_time(drawn):
    # One queue that never idles while a bucket waits is done at the same time in any order. Chunks are rounded one by
    # one, so only whole buckets are equal to the picosecond.
    whole = changed(drawn, barrier=True, chunk_bytes=None)
    fifo, _ = run(changed(whole, order={"kind": "fifo"}))
    for order in (PRIORITY, {"kind": "random"}):
        other, _ = run(changed(whole, order=order))
        assert other["jobs"][0]["iteration_time_ps"] == fifo["jobs"][0]["iteration_time_ps"]


@settings(deadline=None)
@given(SPECS)
def test_no_transfer_starts_before_its_bucket_is_ready_and_none_is_used_before_it_has_arrived(drawn):
    _, output = run(drawn)
    ready, start, end, needed = (
        np.array(column_ps(output.transfers, f"{name}_us")) for name in ("ready", "start", "end", "needed")
    )
    assert (ready <= start).all()
    assert (start <= end).all()
    assert (ready <= needed).all()
    operations = list(
        zip(
            output.operations.column("kind"),
            output.operations.column("iteration").tolist(),
            output.operations.column("index").tolist(),
            column_ps(output.operations, "start_us"),
            strict=True,
        )
    )
    forward = {(iteration, layer): at for kind, iteration, layer, at in operations if kind == "forward"}
    rows = output.transfers
    for row, (iteration, layer) in enumerate(
        zip(rows.column("iteration").tolist(), rows.column("first_layer").tolist(), strict=True)
    ):
        if (iteration + 1, layer) in forward:
            assert end[row] <= forward[iteration + 1, layer]


@settings(deadline=None)
@given(SPECS)
def test_an_iteration_is_no_shorter_than_compute_or_network_and_no_longer_than_both(drawn):
    summary, output = run(drawn)
    job = summary["jobs"][0]
    times, comms = column_ps(output.iterations, "time_us"), column_ps(output.iterations, "comm_us")
    schedule = drawn["jobs"][0]["schedule"]
    # A fresh random order without a barrier can leave up to all its work to the next iteration; a fixed order leaves
    # as much as it took over.
    repeats = schedule["barrier"] or schedule["order"]["kind"] not in ("random", "arbitrary")
    for time, comm in zip(times, comms, strict=True):
        assert time >= (max(job["compute_ps"], comm) if repeats else job["compute_ps"])
        assert time <= job["compute_ps"] + (comm if repeats else 2 * comm)


@settings(deadline=None)
@given(SPECS)
def test_the_waterfall_adds_up(drawn):
    drawn["jobs"][0]["compute"]["overlap_slowdown_ppm"] = 1_300_000
    _, output = run(drawn)
    parts = [column_ps(output.iterations, f"{name}_us") for name in ("compute", "slowdown", "exposed", "barrier")]
    assert [sum(row) for row in zip(*parts, strict=True)] == column_ps(output.iterations, "time_us")


@settings(deadline=None)
@given(SPECS, st.sampled_from([2, 3]))
def test_rates_times_k_and_times_divided_by_k_divide_the_iteration_time_by_k(drawn, factor):
    # Start from times that are multiples of the factor, so that the faster scenario is exact.
    slow = json.loads(json.dumps(drawn))
    slow["jobs"][0]["layers"] = [
        {**layer, **{key: factor * layer[key] for key in ("forward_ps", "backward_ps", "update_ps")}}
        for layer in drawn["jobs"][0]["layers"]
    ]
    slow["cluster"]["link"]["delay_ps"] *= factor
    fast = json.loads(json.dumps(drawn))
    fast["cluster"]["link"]["rate_bps"] *= factor
    slow_ps = np.array(run(slow)[0]["jobs"][0]["iteration_time_ps"], dtype=float)
    fast_ps = np.array(run(fast)[0]["jobs"][0]["iteration_time_ps"], dtype=float)
    # Each chunk is rounded by half a picosecond at most, in both scenarios, over two iterations that meet.
    chunks = 2 * sum(max(1, layer["parameter_bytes"] // 100_000 + 1) for layer in drawn["jobs"][0]["layers"])
    np.testing.assert_allclose(slow_ps, factor * fast_ps, rtol=0, atol=(factor + 1) * chunks)


@settings(deadline=None)
@given(LAYERS, st.booleans())
def test_a_single_worker_sends_nothing_and_never_waits(layers, barrier):
    summary, output = run(spec(layers, workers=1, barrier=barrier))
    job = summary["jobs"][0]
    assert len(output.transfers) == 0
    assert job["comm_ps"] == 0
    assert job["slack_ps"] is None
    assert job["bytes_per_worker"] == 0
    assert set(job["iteration_time_ps"]) == {job["compute_ps"]}


@settings(deadline=None)
@given(SPECS)
def test_the_same_seed_gives_the_same_bytes(drawn):
    first, second = run(drawn)[1], run(drawn)[1]
    assert first.summary_json == second.summary_json
    for name in ("iterations", "transfers", "operations", "links"):
        assert getattr(first, name).to_csv() == getattr(second, name).to_csv()


def test_random_orders_are_fresh_every_iteration_and_differ_by_seed():
    layers = [(10**9, 10**9, 10**6)] * 12
    one = run(spec(layers, iterations=50, order={"kind": "random"}, seed=1))[1].transfers.column("rank").reshape(50, 12)
    two = run(spec(layers, iterations=50, order={"kind": "random"}, seed=2))[1].transfers.column("rank").reshape(50, 12)
    assert all(sorted(ranks) == list(range(12)) for ranks in one.tolist())
    # 50 of 12! orders: the chance that two are equal is 3e-6.
    assert len({tuple(ranks) for ranks in one.tolist()}) == 50
    assert (one != two).any()


def test_arbitrary_orders_are_first_come_first_served_but_for_swaps():
    layers = [(10**9, 10**9, 10**6)] * 12

    def ranks(disorder_ppm):
        order = {"kind": "arbitrary", "disorder_ppm": disorder_ppm}
        return run(spec(layers, iterations=50, order=order))[1].transfers.column("rank").reshape(50, 12)

    assert (ranks(0) == np.arange(12)).all()
    some = (ranks(32_000) != np.arange(12)).sum(axis=1)
    # 11 of 12 can swap: an iteration keeps its order with a probability of 0.968 ** 11 = 0.70, so 35 of 50 do, give or
    # take three times 3.2.
    assert 25 <= (some == 0).sum() <= 45


def test_chunks_let_an_urgent_bucket_pass():
    # Layer 1's 8 MB bucket is ready first and takes 64 ms at 1 Gbit/s; layer 0's is ready 1 ms later.
    layers = [(10**9, 10**9, 10**6), (10**9, 10**9, 8 * 10**6)]
    whole = run(spec(layers, order=PRIORITY, barrier=False, delay_ps=0))[1].transfers
    parts = run(spec(layers, order=PRIORITY, barrier=False, delay_ps=0, chunk=10**6))[1].transfers
    assert whole.column("end_us")[1] - whole.column("ready_us")[1] == pytest.approx(63_000 + 8_000)
    # It waits for the chunk under way only: 8 ms for a chunk, of which 1 ms had passed.
    assert parts.column("end_us")[1] - parts.column("ready_us")[1] == pytest.approx(7_000 + 8_000)


def test_eq_4_1_by_hand():
    # One layer, 8 workers, 10 Gbit/s, no delay: T = 2(1 - 1/N) S/bw (thesis eq. 4.1) = 2 * 7/8 * 10 MB * 8 / 10
    # Gbit/s = 14 ms.
    summary, _ = run(spec([(10**9, 10**9, 10**7)], workers=8, rate_bps=10**10, delay_ps=0))
    assert summary["jobs"][0]["comm_ps"] == 14 * 10**9
    assert summary["jobs"][0]["iteration_time_ps"][0] == 16 * 10**9


def test_a_progress_callback_that_raises_ends_the_run_and_passes_through():
    class StopError(Exception):
        pass

    def stop(share):
        raise StopError(share)

    long = spec([(1000, 1000, 8)] * 10, iterations=100_000)
    with pytest.raises(StopError):
        _core.run(json.dumps(long), stop)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda drawn: drawn["jobs"].clear(), "neither a job"),
        (lambda drawn: drawn["jobs"][0]["layers"].clear(), "no layers"),
        (lambda drawn: drawn["jobs"][0]["hosts"].clear(), "no workers"),
        (lambda drawn: drawn["jobs"][0].update(hosts=[0, 9]), "host 9"),
        (lambda drawn: drawn["jobs"][0].update(hosts=[0, 0]), "two workers"),
        (lambda drawn: drawn["jobs"][0].update(bands=[8]), "band 8"),
        (lambda drawn: drawn["jobs"][0].update(iterations=None), "no duration"),
        (lambda drawn: drawn["jobs"][0]["compute"].update(overlap_slowdown_ppm=999_999), "slow"),
        (lambda drawn: drawn["jobs"][0]["schedule"].update(chunk_bytes=0), "chunk"),
        (lambda drawn: drawn["jobs"][0]["schedule"].update(order={"kind": "priority", "queues": 0}), "queue"),
        (
            lambda drawn: drawn["jobs"][0]["schedule"].update(order={"kind": "file", "ranks": [1], "in_turn": False}),
            "ranks 1 layers",
        ),
        (
            lambda drawn: drawn["jobs"][0]["schedule"].update(fusion={"kind": "buckets", "layer_counts": [1]}),
            "hold 1 layers of 2",
        ),
        (lambda drawn: drawn["cluster"]["link"].update(efficiency_ppm=0), "one bit per second"),
        (lambda drawn: drawn["cluster"]["link"].update(rate_bps=1), "106 days"),
        (lambda drawn: drawn["jobs"][0].update(iterations=2**32 - 1), "record|days"),
        (lambda drawn: drawn["jobs"][0].update(start_ps=2**63), "106 days"),
        (
            lambda drawn: (
                drawn["cluster"]["link"].update(rate_bps=2**63),
                drawn["jobs"][0]["layers"][0].update(parameter_bytes=2**61),
            ),
            r"2\^64 bytes",
        ),
    ],
)
def test_the_core_refuses_what_means_nothing(change, message):
    from gradtide.errors import CoreRefusal

    drawn = spec([(10**9, 10**9, 10**9)] * 2)
    change(drawn)
    with pytest.raises(CoreRefusal, match=message):
        run(drawn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda drawn: drawn["run"].update(sed=1), "unknown field `sed`"),
        (lambda drawn: drawn["cluster"]["link"].update(rate_bps=0), "a rate is above 0"),
        (lambda drawn: drawn["cluster"]["link"].update(rate_bps=-1), "-1"),
    ],
)
def test_the_core_refuses_what_no_field_can_have(change, message):
    drawn = spec([(1, 1, 1)])
    change(drawn)
    with pytest.raises(ValueError, match=message):
        run(drawn)


def test_a_duration_stops_the_run_and_one_too_short_says_so():
    from gradtide.errors import SimulationError

    drawn = spec([(10**9, 10**9, 0)], iterations=None)
    drawn["run"]["duration_ps"] = 10 * 10**9
    # 2 ms an iteration: the warm-up, then measured ones begin at 2, 4, 6 and 8 ms.
    assert run(drawn)[0]["jobs"][0]["iteration_count"] == 4
    drawn["run"]["duration_ps"] = 10**9
    with pytest.raises(SimulationError, match="make it longer"):
        run(drawn)


@settings(deadline=None, max_examples=300)
@given(SPECS, st.sampled_from([0, 10**5]))
def test_the_lower_bound_is_never_above_what_was_measured(drawn, noise_ppm):
    drawn["jobs"][0]["compute"]["noise_ppm"] = noise_ppm
    job = run(drawn)[0]["jobs"][0]
    mean = sum(job["iteration_time_ps"]) / len(job["iteration_time_ps"])
    # A mean is rounded to a float.
    assert job["lower_bound_ps"] <= mean * (1 + 1e-12)
