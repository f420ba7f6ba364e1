"""A collective over nodes is modelled once: in data-parallel and parallel jobs, with any card slow, on each engine."""

import random

import pytest

import gradtide as gt
from architectures import SMALL_LLAMA
from gradtide.errors import ScenarioError

CONFIG = {**SMALL_LLAMA, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "rope_scaling": None}


def star(hosts, rate="100Gbps", delay="2us", gpus=8, nics=8, inside="1us", **topology):
    node = {"node": {"gpus": gpus, "nics": nics, "scale_up": {"rate": "300GBps", "delay": inside}}} if gpus > 1 else {}
    return {"topology": {"kind": "star", "hosts": hosts, **topology}, "link": {"rate": rate, "delay": delay}, **node}


def exchange_us(cluster, kind, size, engine="fluid", depth=1, workers=16, **keys):
    job = {
        "model": {"layers": [{"name": "x", "forward": "1ms", "backward": "1ms", "parameters": f"{size}B"}]},
        "task": "exchange",
        "iterations": 1,
        "schedule": {"fusion": "1000GB", "depth": depth},
        "collective": {"kind": kind, **{key: value for key, value in keys.items() if key != "hosts"}},
        **({"hosts": keys["hosts"]} if "hosts" in keys else {"workers": workers}),
    }
    transfers = gt.run({"cluster": cluster, "job": {"train": job}, "run": {"engine": engine}}).transfers
    return float(transfers["end_us"][0] - transfers["start_us"][0])


GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257, "n_positions": 1024}


def drawn(seed):
    """A job that divides nothing but its mini-batch, on a random cluster: cluster, workers, and its transfers."""
    if seed is None:
        return "h100-hgx/2", 16, transfers_of(GPT2_XL, "h100-hgx/2", 16)
    rng = random.Random(seed)
    gpus, nodes = rng.choice([1, 2, 4, 8]), rng.choice([2, 3, 4, 5])
    nics = rng.choice([nics for nics in (1, 2, 4, 8) if gpus % nics == 0])
    rate, delay = f"{rng.choice([10, 100, 400])}Gbps", f"{rng.choice([0, 1, 50, 1000])}us"
    cluster = star(nodes * nics, rate, delay, gpus, nics, f"{rng.choice([0, 2, 30])}us")
    return cluster, gpus * nodes, transfers_of(CONFIG, cluster, gpus * nodes)


def transfers_of(model, cluster, ranks):
    """Bytes and microseconds of each transfer of a model that is divided by its mini-batch, each size once."""
    job = {"model": model, "parallel": {"dp": ranks}, "compute": {"device": "A100", "seq": 128}}
    transfers = gt.run({"cluster": cluster, "job": {"train": job}, "run": {"engine": "fluid"}}).transfers
    columns = (transfers[name] for name in ("bytes", "start_us", "end_us"))
    return sorted({int(size): end - start for size, start, end in zip(*columns, strict=True)}.items())


@pytest.mark.parametrize("seed", [*range(6), None])
def test_a_data_parallel_job_exchanges_as_a_divided_one(seed):
    """A divided job takes the faster of ring and tree. On one level a ring is its messages, whose ends are rounded."""
    cluster, workers, transfers = drawn(seed)
    for size, us in (transfers[0], transfers[-1]):
        plain = [exchange_us(cluster, kind, size, workers=workers) for kind in ("ring", "tree")]
        # Bytes of a class are rounded up to a whole one: one byte at 10 Gbit/s, and a picosecond for each round.
        assert min(plain) == pytest.approx(us, abs=0.0008 + 80e-6, rel=0)


def test_rings_leave_a_node_by_all_cards():
    """1 GB among 32 GPUs, 16 in a node with 8 cards of 100 Gbit/s: 2 · 31/32 GB over 800 Gbit/s, and half of it."""
    cluster = star(16, delay="1.3us", gpus=16, nics=8, inside="0.175us")
    sending_us = 31 / 32 * 1e9 * 8 / 800e9 * 1e6
    for kind, turns in (("ring", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        latency_us = turns * (2.6 + 30 * 0.35)
        expected = pytest.approx(turns * sending_us + latency_us, abs=0.001)
        assert exchange_us(cluster, kind, 10**9, workers=32) == expected
    # One ring crosses between two nodes by one card: 62 rounds of 1/32 GB.
    assert exchange_us(cluster, "single_ring", 10**9, workers=32) > 62 / 32 * 1e9 * 8 / 100e9 * 1e6


def test_a_ring_of_h200_takes_what_was_measured():
    """4 GiB on 4 nodes of 8: 365 GB/s of bus bandwidth. No buffer leaves 8 cards of 48 GB/s faster than at 384."""
    hgx = star(32, "400Gbps", gpus=8)
    hgx["link"]["efficiency"] = 0.96
    hgx["node"] |= {"launch": "11us", "scale_up": {"rate": "450GBps", "delay": "1us", "efficiency": 0.81}}
    us = exchange_us(hgx, "ring", 4 << 30, workers=32) + 11
    assert 2 * 31 / 32 * (4 << 30) / us / 1e3 == pytest.approx(365, rel=0.06)


def test_data_parallel_training_on_two_hgx_hides_its_exchange():
    job = gt.run("vgg16", cluster="h100-hgx/2").job
    assert 0 < job["waterfall_ms"]["exposed"] < 0.03 * job["iteration_time_ms"]["mean"]


@pytest.mark.parametrize("kind", ["ring", "tree", "all_gather"])
def test_a_slow_card_slows_a_collective_whichever_it_is(kind):
    def with_slow(card):
        cables = [{"a": f"h{host}", "b": "leaf", **({"rate": "25Gbps"} if host == card else {})} for host in range(16)]
        cluster = {**star(16), "topology": {"kind": "custom", "links": cables}}
        return exchange_us(cluster, kind, 10**8)

    slow = {with_slow(card) for card in (0, 3, 7, 8, 15)}
    assert len(slow) == 1
    assert slow.pop() > 3 * with_slow(None)


def test_nodes_with_different_numbers_of_workers_have_the_rings_of_the_smallest():
    """8 + 4 workers: 4 rings, each with a quarter; a card sends 2 · 11/12 of it."""
    sending_us = 2 * 11 / 12 * 1e8 / 4 * 8 / 100e9 * 1e6
    expected = sending_us + 2 * (4 + 10 * 2)
    assert exchange_us(star(16), "ring", 10**8, workers=12) == pytest.approx(expected, abs=0.001)
    with pytest.raises(ScenarioError, match="GT048"):
        exchange_us(star(16), "tree", 10**8, workers=12)


def test_on_one_level_rings_are_one_ring():
    for cluster, workers in ((star(8, gpus=1), 8), (star(8), 8)):
        single = exchange_us(cluster, "single_ring", 10**7, workers=workers)
        assert exchange_us(cluster, "ring", 10**7, workers=workers) == single


@pytest.mark.parametrize("kind", ["ring", "tree"])
def test_depth_hides_no_more_than_the_delay(kind):
    cluster = star(16, delay="50us")
    times = [exchange_us(cluster, kind, 10**8, depth=depth) for depth in (1, 2, 8, 32)]
    bytes_alone = exchange_us(star(16, delay="0us", inside="0us"), kind, 10**8)
    assert times == sorted(times, reverse=True)
    assert times[-1] >= bytes_alone
    assert (times[-1] < times[0]) == (kind == "ring")


def test_what_ranks_add_is_paid():
    """All rings of a rank share its adder: 15/16 of the buffer at 20 GB/s after whole messages."""
    plain, adding = (exchange_us(star(16), "ring", 10**8, **keys) for keys in ({}, {"reduction_rate": "20GB/s"}))
    assert adding - plain == pytest.approx(15 / 16 * 1e8 / 20e9 * 1e6, abs=0.001)


@pytest.mark.parametrize("kind", ["ring", "tree"])
def test_packets_take_all_cards_too(kind):
    """With headers and slow start, and in less than half of what one card would take."""
    cluster = star(16, delay="100ns", inside="50ns")
    packets = exchange_us(cluster, kind, 10**7, engine="packet")
    assert exchange_us(cluster, kind, 10**7) < packets < 0.5 * exchange_us(cluster, "single_ring", 10**7)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["ring", "tree", "all_gather"])
def test_an_exchange_in_closed_form_is_the_one_that_is_simulated(kind, seed):
    """Two at once may be on the network, so none is computed: the same picosecond, and the same bytes on each link."""
    rng = random.Random(seed)
    gpus, delay = rng.choice([1, 2, 4]), f"{rng.choice([0, 1, 50])}us"
    cluster = star(3 * gpus, f"{rng.choice([10, 400])}Gbps", delay, gpus, gpus, f"{rng.choice([0, 2])}us")
    job = {
        "model": {
            "layers": [{"name": "x", "forward": "1ms", "backward": "1ms", "parameters": f"{10 ** rng.randint(0, 9)}B"}]
        }
    }
    job |= {"workers": 3 * gpus, "task": "exchange", "iterations": 2, "collective": {"kind": kind}}

    def told(credit):
        schedule = {"fusion": "0B", "depth": 1 if kind == "tree" else 3, "credit": credit}
        result = gt.run(
            {"cluster": cluster, "job": {"train": {**job, "schedule": schedule}}, "run": {"engine": "fluid"}}
        )
        return list(result.transfers["end_us"]), result.links.to_dicts()

    assert told(1) == told(2)
