"""What a host adds to a transfer: stages in series and a time for each message, against closed forms.

A host is a row of servers, each of which takes one message after another. So k stages of the rate r carry one message
of S bits in k S/r, and d parts of it in (d + k - 1)/d S/r, as pipelines do.
"""

import itertools

import pytest

import gradtide as gt
from gradtide.errors import ScenarioError
from gradtide.scenario import Scenario

STAGE_BPS, WIRE_BPS = 7e9, 700e9
STAGES = {"copy": "7Gbps", "serialise": "7Gbps", "receive": "7Gbps"}
SIZE = 56_000_000
"""Takes 64 ms in a stage and 0.64 ms on the wire."""


def exchange(kind="point_to_point", *, size=SIZE, workers=2, host=None, rate="700Gbps", delay="0us", **schedule):
    """Return a scenario of one exchange an iteration, which nothing hides."""
    layer = {"name": "all", "forward": "1ms", "backward": "1ms", "parameters": f"{size}B"}
    task = {"task": "exchange"} if kind == "point_to_point" else {}
    job = {"model": {"layers": [layer]}, "workers": workers, "iterations": 1, "collective": {"kind": kind}, **task}
    cluster = {"link": {"rate": rate, "delay": delay}, **({} if host is None else {"host": host})}
    return Scenario.from_dict(
        {"job": {"a": {**job, "schedule": schedule}}, "cluster": cluster, "run": {"engine": "fluid"}}
    )


def comm_s(scenario):
    return gt.run(scenario).job["comm_ms"] / 1e3


@pytest.mark.parametrize(("depth", "gbps"), [(1, 2.33), (2, 3.5), (8, 5.6)])
def test_three_stages_in_series_carry_a_third_and_parts_of_a_message_fill_them(depth, gbps):
    """Three serial stages of 7 Gbit/s: 2.3 Gbit/s at depth 1 and 5.6 at depth 8, which is 58 % less time."""
    found = comm_s(exchange(host={"stages": STAGES}, depth=depth))
    part_s = SIZE * 8 / depth / STAGE_BPS
    expected = (depth + 2) * part_s + SIZE * 8 / depth / WIRE_BPS
    # Every part and stage is rounded to a picosecond, and the fluid engine to another.
    assert found == pytest.approx(expected, abs=4 * depth * 1e-12)
    # The wire is a hundredth of a stage, so it takes at most a hundredth of the rate.
    assert gbps * 0.99 <= SIZE * 8 / found / 1e9 <= gbps * 1.002


def test_what_goes_to_several_hosts_in_one_step_passes_the_stages_as_a_whole():
    """In each of the two steps of a shuffle, a rank sends three quarters of its buffer to three others."""
    found = comm_s(exchange("shuffle", workers=4, host={"stages": STAGES}))
    assert found == pytest.approx(2 * 0.75 * SIZE * 8 * (3 / STAGE_BPS + 1 / WIRE_BPS), abs=1e-9)


@pytest.mark.parametrize("depth", [1, 8])
def test_stages_stand_before_and_behind_the_wire_of_the_packet_engine(depth):
    scenario = exchange(host={"stages": STAGES}, depth=depth, rate="100Gbps", delay="1us")
    packet = scenario.replace(engine="packet", transport={"kind": "ideal"})
    stages_s = (depth + 2) * SIZE * 8 / depth / STAGE_BPS
    # The wire carries a part with 92 bytes of headers and gaps a segment of 1380, and a part waits a few round trips.
    wire_s = SIZE * 8 / depth / 100e9 * (1380 + 92) / 1380 + depth * 10 * 4e-6
    assert stages_s <= comm_s(packet) <= stages_s + wire_s


@pytest.mark.parametrize("engine", ["fluid", "packet"])
@pytest.mark.parametrize("workers", [2, 5])
def test_a_ring_is_at_one_stage_at_a_time_on_every_engine(engine, workers):
    host = {"message": "20us", "stages": {"copy": "2Gbps", "receive": "4Gbps"}}
    size, steps = 10_000 * workers, 2 * (workers - 1)
    scenario = exchange("ring", size=size, workers=workers, rate="10Gbps", delay="10us").replace(engine=engine)
    if engine == "packet":
        # No message waits for the window of the one before.
        scenario = scenario.set({"cluster.transport.initial_cwnd": 1000})
    # In each of 2(N-1) steps, 80,000 bits: 40 us in the first stage and 20 us in the last, after 20 us of the message.
    added_s = comm_s(scenario.set({"cluster.host": host})) - comm_s(scenario)
    assert added_s == pytest.approx(steps * 80e-6, abs=steps * 2e-12)


def shuffle_s(workers, depth, message_s, latency_s):
    """Return the time of a shuffle of next to no bytes, whose messages cost their senders.

    A host has d (N - 1) messages for the first step. With one part, the second step begins a latency after the last of
    them; with more, the parts that have arrived keep the host busy meanwhile.
    """
    sending_s = depth * (workers - 1) * message_s
    return 2 * sending_s + latency_s * (2 if depth == 1 else 1)


@pytest.mark.parametrize("depth", [1, 8])
def test_messages_cost_their_host_one_after_the_other(depth):
    scenario = exchange("shuffle", size=1_000, workers=16, host={"message": "15us"}, delay="25us", depth=depth)
    # 16 workers, 15 us a message and 50 us from host to host: 550 us at depth 1, 3650 at depth 8.
    expected = shuffle_s(16, depth, 15e-6, 50e-6)
    assert comm_s(scenario) == pytest.approx(expected, abs=1e-9 + 2 * 1_000 * 8 / WIRE_BPS)


def test_with_a_millisecond_for_a_transfer_eight_parts_take_three_times_as_long():
    transfer_s, (one, eight) = 1e-3, (shuffle_s(16, depth, 15e-6, 50e-6) for depth in (1, 8))
    assert (transfer_s + eight) / (transfer_s + one) == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(("workers", "fastest"), [(4, "shuffle"), (32, "halving_doubling")])
def test_a_cost_per_message_decides_between_collectives(workers, fastest):
    """A shuffle has 2(N-1) messages a host in 2 latencies, halving-doubling 2 log2 N in as many."""
    kinds = ("ring", "shuffle", "halving_doubling")
    settings = {"size": 1_000, "workers": workers, "host": {"message": "15us"}, "rate": "10Gbps", "delay": "25us"}
    times = {kind: comm_s(exchange(kind, **settings)) for kind in kinds}
    steps = workers.bit_length() - 1
    # A kilobyte in whole, which takes 0.8 us, is more than any step sends.
    assert times["halving_doubling"] == pytest.approx(2 * steps * 65e-6, abs=2 * steps * 0.8e-6)
    assert times["shuffle"] == pytest.approx(shuffle_s(workers, 1, 15e-6, 50e-6), abs=2 * 0.8e-6)
    assert min(times, key=times.__getitem__) == fastest


def test_transfers_under_way_at_one_time_share_a_host():
    """With a credit of 2, the second transfer is in the first stage while the first is in the second."""
    host = {"stages": STAGES}
    layers = [{"name": n, "forward": "1ms", "backward": "0us", "parameters": f"{SIZE}B"} for n in ("a", "b")]
    base = exchange(host=host, fusion="0B").replace(model={"layers": layers})
    one, two = (comm_s(base.replace(credit=credit)) for credit in (1, 2))
    stage_s, wire_s = SIZE * 8 / STAGE_BPS, SIZE * 8 / WIRE_BPS
    assert one == pytest.approx(2 * (3 * stage_s + wire_s), abs=1e-9)
    assert two == pytest.approx(4 * stage_s + wire_s, abs=1e-9)


def test_an_exchange_that_is_remembered_takes_as_long_as_one_that_is_not():
    host = {"message": "5us", "stages": STAGES}
    for kind, depth in itertools.product(("ring", "shuffle"), (1, 4)):
        scenario = exchange(kind, workers=4, host=host, delay="5us", depth=depth)
        # With a credit of 2, the fluid engine carries out every exchange anew.
        assert comm_s(scenario) == pytest.approx(comm_s(scenario.replace(credit=2)), abs=2e-12), (kind, depth)


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_pulls_and_pushes_of_parameter_servers_pass_the_hosts(engine):
    ps = {"kind": "ps", "ps": {"servers": 1, "pull": "start"}}
    base = exchange("ring", size=1_000_000, rate="10Gbps", delay="10us").replace(workers=1, collective=ps)
    scenario = base.replace(engine=engine)
    free, slow = (gt.run(one).job for one in (scenario, scenario.replace(host_serialise="2Gbps", host_message="50us")))
    added_s = (slow["iteration_time_ms"]["mean"] - free["iteration_time_ms"]["mean"]) / 1e3
    # A pull and a push pass one stage each, of 4 ms, after 50 us. The connection of the packet engine sends the bytes
    # of the push faster or slower, by less than the 0.8 ms that they take on the wire.
    assert added_s == pytest.approx(8.1e-3, abs=0.8e-3 if engine == "packet" else 1e-9)
    assert slow["lower_bound_ms"] <= slow["iteration_time_ms"]["mean"]


@pytest.mark.parametrize("order", ["random", "tac"])
def test_no_order_beats_the_bound_of_servers_behind_slow_hosts(order):
    cluster = {"link": {"rate": "10Gbps", "delay": "10us"}, "host": {"message": "20us", "stages": STAGES}}
    job = {"model": "tictac_inception_v1", "workers": 4, "iterations": 2, "schedule": {"order": order}}
    job["collective"] = {"ps": {"servers": 2, "pull": "start"}}
    found = gt.run({"job": {"a": job}, "cluster": cluster, "run": {"engine": "fluid"}}).job
    assert found["lower_bound_ms"] <= found["iteration_time_ms"]["mean"]


def test_a_plan_is_no_better_than_its_bound_behind_slow_hosts():
    layers = [{"name": f"l{i}", "forward": "2ms", "backward": "4ms", "parameters": "1MB"} for i in range(6)]
    job = {"model": {"layers": layers}, "workers": 4}
    cluster = {"link": {"rate": "10Gbps"}, "host": {"message": "15us", "stages": STAGES}}
    result = gt.plan({"job": {"a": job}, "cluster": cluster, "run": {"engine": "fluid"}}, device="ideal", budget=50)
    assert result.to_dict()["predicted"]["lower_bound_ms"] <= min(row["iteration_ms"] for row in result.rows)


def test_hosts_hurry_nobody_and_background_flows_pass_by():
    data = exchange("ring", workers=4, rate="10Gbps", delay="10us").to_dict()
    flow = {"src": "h0", "dst": "h1", "bytes": "1MB", "start": "0s"}
    base = Scenario.from_dict(
        {**data, "traffic": {"web": {"flows": [flow]}}, "run": {"engine": "fluid", "duration": "5s"}}
    )
    slow = base.replace(host_message="1ms", host_receive="1Gbps")
    alone = [gt.run(one.replace(iterations=1)) for one in (base, slow)]
    assert alone[0].job["iteration_time_ms"]["mean"] < alone[1].job["iteration_time_ms"]["mean"]
    assert alone[1].flows["fct_us"][0] < 1_500


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ('host = { copy = "7Gbps" }', "GT012", "belongs to cluster.host.stages"),
        ('host = { stages = { serialize = "7Gbps" } }', "GT012", "did you mean `serialise`"),
        ('host = { stages = { copy = "7" } }', "GT020", "has no unit"),
        ('host = { message = "7Gbps" }', "GT021", "is not a unit of time"),
        ('host = { stages = { copy = "0Gbps" } }', "GT026", "nothing would ever arrive"),
    ],
)
def test_wrong_keys_of_a_host_are_answered_with_their_line(keys, code, says):
    with pytest.raises(ScenarioError) as raised:
        Scenario.from_toml(f'[job.a]\nmodel = "alexnet"\nworkers = 2\n[cluster]\n{keys}\n')
    (fault,) = raised.value.errors
    assert (fault["code"], fault["line"]) == (code, 5)
    assert says in f"{fault['msg']}; {fault['hint']}"
