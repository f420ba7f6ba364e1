"""Jobs and neighbours on the packet engine: against theory, and against the fluid engine where both must agree."""

import random

import numpy as np
import pytest

from specs import PRIORITY, column_ps, run, spec

HEADER_BYTES = 54  # IPv4 20, TCP 20, timestamps 12, framing 2
SEGMENT_BYTES = 1380
GBPS = 10**9


def test_a_ring_takes_what_its_bytes_and_headers_take_on_the_wire():
    # One layer of 4 MB, 4 workers, 10 Gbit/s: 2(N-1) = 6 parts of 1 MB one after the other. A part is shorter than the
    # queue of 1000 packets, so nothing is lost.
    workers, size, rate = 4, 4 * 10**6, 10 * GBPS
    summary, _ = run(
        spec([(10**9, 10**9, size)], workers=workers, rate_bps=rate, delay_ps=10**7, engine="packet", iterations=2)
    )
    steps, part = 2 * (workers - 1), size // workers
    segments = -(-part // SEGMENT_BYTES)
    wire_ps = steps * (part + segments * HEADER_BYTES) * 8 * 10**12 // rate
    comm_ps = summary["jobs"][0]["comm_ps"]
    # Each step pays two propagation delays and a store-and-forward; slow start and the handshake cost some round trips.
    slack_ps = steps * (2 * 10**7 + 2 * 1434 * 8 * 10**12 // rate) + 12 * 4 * 10**7
    assert wire_ps <= comm_ps <= wire_ps + slack_ps


def test_without_headers_in_sight_fluid_and_packet_agree_on_a_compute_bound_job():
    layers = [(3 * 10**9, 6 * 10**9, 10**6)] * 10
    options = {"workers": 4, "rate_bps": 10 * GBPS, "barrier": False, "order": PRIORITY, "iterations": 3}
    fluid = run(spec(layers, **options))[0]["jobs"][0]
    packet = run(spec(layers, engine="packet", **options))[0]["jobs"][0]
    # Both are 90 ms of compute and the last bucket: 1 MB over 4 workers is 1.2 ms, and 4 % more with headers.
    assert np.mean(packet["iteration_time_ps"]) == pytest.approx(np.mean(fluid["iteration_time_ps"]), rel=0.005)


def test_iterations_of_the_packet_engine_go_from_backward_to_backward_and_all_count():
    layers = [(10**9, 2 * 10**9, 10**5)] * 3
    summary, output = run(spec(layers, engine="packet", iterations=4))
    starts = column_ps(output.iterations, "start_us")
    times = column_ps(output.iterations, "time_us")
    assert len(times) == 4
    # The job begins when its connections stand: a handshake is two ways of two links, of 10 us each and a little more.
    assert 40 * 10**6 < starts[0] < 45 * 10**6
    assert [start + time for start, time in zip(starts, times, strict=True)][:-1] == starts[1:]
    assert min(times) >= summary["jobs"][0]["compute_ps"]


def test_the_waterfall_adds_up_on_the_packet_engine_too():
    rng = random.Random(1)
    flows = sorted((rng.randrange(10**11), rng.randrange(4), 0, 10**6) for _ in range(40))
    flows = [(start, src, (src + 1) % 4, size) for start, src, _, size in flows]
    layers = [(10**9, 2 * 10**9, 10**6)] * 8
    for barrier in (True, False):
        _, output = run(
            spec(layers, workers=4, engine="packet", traffic=flows, barrier=barrier, rate_bps=GBPS, fusion=3 * 10**6)
        )
        parts = [column_ps(output.iterations, f"{name}_us") for name in ("compute", "slowdown", "exposed", "barrier")]
        assert [sum(row) for row in zip(*parts, strict=True)] == column_ps(output.iterations, "time_us")


def test_a_lone_flow_is_no_faster_than_its_bytes_and_round_trips():
    size, rate, delay = 10**6, 10 * GBPS, 10**7
    _, output = run(spec([(10**9, 10**9, 0)], workers=4, engine="packet", rate_bps=rate, traffic=[(0, 1, 2, size)]))
    fct_ps = output.flows.column("fct_us")[0] * 1e6
    assert fct_ps >= size * 8 * 10**12 / rate + 4 * delay  # a handshake, and the way there
    assert fct_ps <= 2 * size * 8 * 10**12 / rate


def test_a_job_in_a_lower_band_does_not_delay_its_neighbour_by_more_than_packets_under_way():
    flows = [(i * 10**9, 0, 1, 50_000) for i in range(20)]
    layers = [(10**7, 10**7, 4 * 10**6)] * 4
    options = {"workers": 4, "engine": "packet", "rate_bps": 10 * GBPS, "traffic": flows, "duration_ps": 2 * 10**11}
    alone = run(spec([(10**9, 10**9, 0)], iterations=None, **options))[1].flows.column("fct_us")
    beside = run(spec(layers, iterations=None, band=2, **options))[1].flows.column("fct_us")
    # Per hop at most the packets that the device holds: two of 1434 bytes. The window opens in four round trips of four
    # hops, each led by a packet that can be held up. Acknowledgements go in band 1, above band 2.
    held_us = 2 * 1434 * 8 / 10e9 * 1e6
    assert (beside <= alone + 4 * 4 * 2 * held_us).all()


def test_the_duration_ends_everything_and_unfinished_flows_have_no_completion_time():
    layers = [(10**9, 2 * 10**9, 10**6)] * 3
    flows = [(0, 0, 1, 1000), (4 * 10**9, 0, 1, 10**9), (10**12, 1, 0, 1000)]
    summary, output = run(
        spec(layers, workers=2, engine="packet", iterations=None, traffic=flows, duration_ps=5 * 10**10)
    )
    assert summary["end_ps"] == 5 * 10**10
    assert np.isnan(output.flows.column("fct_us")).tolist() == [False, True], "the third never started"
    iterations = output.iterations
    assert (iterations.column("start_us") + iterations.column("time_us") <= 50_000).all()


def test_two_jobs_may_share_their_hosts():
    one = spec([(10**9, 2 * 10**9, 4 * 10**6)] * 3, workers=4, engine="packet", iterations=3)
    both = spec([(10**9, 2 * 10**9, 4 * 10**6)] * 3, workers=4, engine="packet", iterations=3)
    both["jobs"].append({**both["jobs"][0], "name": "other"})
    alone = run(one)[0]["jobs"][0]["iteration_time_ps"]
    shared = run(both)[0]["jobs"]
    assert all(np.mean(job["iteration_time_ps"]) > np.mean(alone) for job in shared)


def test_packets_repeat_byte_for_byte():
    rng = random.Random(7)
    flows = sorted((rng.randrange(5 * 10**10), *rng.sample(range(4), 2), rng.randrange(1, 10**6)) for _ in range(50))
    drawn = spec([(10**9, 2 * 10**9, 10**6)] * 5, workers=4, engine="packet", rate_bps=GBPS, traffic=flows)
    first, second = run(drawn)[1], run(drawn)[1]
    assert first.summary_json == second.summary_json
    for name in ("iterations", "transfers", "operations", "links", "flows"):
        assert getattr(first, name).to_csv() == getattr(second, name).to_csv()


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ((0, 0, 0, 1), "nowhere"),
        ((0, 0, 9, 1), "no such host"),
        ((0, 0, 1, 1, 9), "no such band"),
    ],
)
def test_the_core_refuses_flows_that_cannot_be(flow, message):
    from gradtide.errors import CoreRefusal

    with pytest.raises(CoreRefusal, match=message):
        run(spec([(1, 1, 1)], engine="packet", traffic=[flow]))
