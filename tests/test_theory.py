"""Networks whose figures follow from a formula: what flows of both engines take, against it.

Every expected value is computed here. A tolerance is what the formula leaves out: a packet, a window, a standard error.
"""

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt

HEADER, OPTIONS, SEGMENT = 54, 4, 1380
"""Bytes of a header on the wire, of the option of a SYN, and of a full segment's payload."""
WIRE = SEGMENT + HEADER


def flow(src: int, dst: int, size: int, **keys: Any) -> dict[str, Any]:
    return {"start": "0s", "src": f"h{src}", "dst": f"h{dst}", "bytes": f"{size}B", **keys}


def ran(flows: list[dict[str, Any]], cluster: dict[str, Any], engine: str = "packet", **run: Any) -> gt.RunResult:
    run = {"engine": engine, "duration": "100s", **run}
    return gt.run({"traffic": {"a": {"flows": flows}}, "cluster": cluster, "run": run})


def column(result: gt.RunResult, name: str) -> list[float]:
    return [row[name] for row in result.flows.to_dicts()]


def link(result: gt.RunResult, name: str) -> dict[str, Any]:
    return next(row for row in result.links.to_dicts() if row["link"] == name)


def cables(*rows: tuple[str, str, str, str]) -> dict[str, Any]:
    links = [dict(zip(("a", "b", "rate", "delay"), row, strict=True)) for row in rows]
    return {"topology": {"kind": "custom", "links": links}}


@pytest.mark.parametrize("size", [1, 100, SEGMENT])
def test_a_packet_is_sent_whole_on_each_of_four_links(size: int) -> None:
    chain = [("h0", "s0", 10, 1), ("s0", "s1", 40, 5), ("s1", "s2", 25, 3), ("s2", "h1", 100, 2)]
    network = cables(*((a, b, f"{gbps}Gbps", f"{delay}us") for a, b, gbps, delay in chain))
    result = ran([flow(0, 1, size)], network)
    crossing_us = sum(delay for *_, delay in chain)
    us_per_byte = sum(8e-3 / gbps for *_, gbps, _ in chain)
    # SYN, its answer, and the data behind the acknowledgement that ends the handshake, on the first link.
    sent = 2 * (HEADER + OPTIONS) + size + HEADER
    assert column(result, "received_us") == [pytest.approx(3 * crossing_us + sent * us_per_byte + HEADER * 8e-4)]


def test_max_min_shares_of_a_chain_of_bottlenecks_end_together() -> None:
    hosts = [(f"h{host}", f"s{switch}", "10Gbps", "0us") for host, switch in enumerate((0, 0, 1, 1, 1, 2, 2, 2, 3, 3))]
    trunks = [("s0", "s1", "10Gbps", "0us"), ("s1", "s2", "7Gbps", "0us"), ("s2", "s3", "4Gbps", "0us")]
    # The trunk of 4 gives its two flows 2 each; of the next one's 7 those two are left 5, of the first one's 10 one 8.
    shares_gbps = {(0, 8): 2, (7, 9): 2, (3, 5): 2.5, (4, 6): 2.5, (1, 2): 8}
    flows = [flow(src, dst, int(gbps * 125_000_000)) for (src, dst), gbps in shares_gbps.items()]
    assert column(ran(flows, cables(*hosts, *trunks), "fluid"), "fct_us") == [1_000_000] * 5


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_a_shared_link_is_a_processor_sharing_queue(load: float) -> None:
    """M/G/1-PS: a flow of size s takes s / (1 - load) on average (Kleinrock 1976, section 4.4)."""
    traffic = {"a": {"cdf": [{"bytes": "1250000B", "cdf": 1.0}], "load": load}}
    cluster = {"topology": {"kind": "star", "hosts": 2}, "link": {"rate": "10Gbps", "delay": "0us"}}
    result = gt.run({"traffic": traffic, "cluster": cluster, "run": {"duration": "20s", "warmup": "1s"}})
    times = [row["fct_us"] for row in result.flows.to_dicts() if row["start_us"] > 1e6 and row["fct_us"] is not None]
    # Flows that meet are not independent, so the error is that of means of many.
    count = len(times) // 30
    batches = [statistics.mean(times[at : at + count]) for at in range(0, 30 * count, count)]
    error = statistics.stdev(batches) / math.sqrt(len(batches))
    assert statistics.mean(times) == pytest.approx(1000 / (1 - load), abs=4 * error)
    assert error < 1000 / (1 - load) / 20


def test_slow_start_takes_a_round_trip_for_each_growth_by_a_half() -> None:
    """Of a window of 10, an acknowledgement for every second segment makes 15, 22 and so on (RFC 5681, 3.1)."""
    segments, window, rounds = 100, 10.0, 0
    left = float(segments)
    while left > window:
        left, window, rounds = left - window, 1.5 * window, rounds + 1
    cluster = {
        "topology": {"kind": "star", "hosts": 2},
        "link": {"rate": "10Gbps", "delay": "5ms"},
        "transport": {"kind": "newreno", "timers": "linux"},
    }
    [received_us] = column(ran([flow(0, 1, segments * SEGMENT)], cluster), "received_us")
    # The handshake takes a round trip of 20 ms, and the last round half of one; serialisation is left out.
    expected_us = 20_000 * (1 + rounds + 0.5)
    assert expected_us < received_us < expected_us + 2 * segments * WIRE * 8e-4


@pytest.mark.parametrize("packets", [22, 44, 87, 175])
def test_the_buffer_of_a_link_decides_how_much_of_it_one_newreno_flow_uses(packets: int) -> None:
    """With a buffer of β bandwidth-delay products the window goes from (1+β)/2 to 1+β of these (Appenzeller 2004).

    Below 1 the link idles and a round trip lasts as long as ever; above 1 the queue adds to it.
    """
    rate_bps, round_trip_s = 200_000_000, 0.01
    product = rate_bps * round_trip_s / 8 / WIRE
    share = packets / product
    network = cables(("h0", "s0", "10Gbps", "1ms"), ("s0", "h1", "200Mbps", "4ms"))
    network["queue"] = {"kind": "fifo", "capacity": f"{packets}pkt"}
    network["transport"] = {"kind": "newreno", "timers": "linux"}
    result = ran([flow(0, 1, 10**12)], network, duration="60s")
    low = (1 + share) / 2
    idle, full = max(0.0, 1 - low), ((1 + share) ** 2 - max(1, low) ** 2) / 2
    expected = ((1 - min(1, low) ** 2) / 2 + full) / (idle + full)
    assert link(result, "s0-h1")["utilisation"] == pytest.approx(expected, abs=3 / product)


def test_a_low_band_gets_what_the_high_one_leaves() -> None:
    network = cables(("h0", "s", "4Gbps", "1us"), ("h1", "s", "10Gbps", "1us"), ("h2", "s", "10Gbps", "1us"))
    window = 200_000
    network["queue"] = {"kind": "strict", "bands": 2, "capacity": "1000pkt"}
    network["transport"] = {"kind": "ideal", "window": f"{window}B"}
    result = ran([flow(0, 2, 40_000 * SEGMENT, band=0), flow(1, 2, 50_000 * SEGMENT, band=1)], network)
    high_us, low_us = column(result, "fct_us")
    assert high_us == pytest.approx(40_000 * WIRE * 8 / 4e3, abs=20)
    # The first packet of the high band is 2 us behind that of the low one, which has the whole link until then.
    assert low_us == pytest.approx(50_000 * WIRE * 8 / 6e3, abs=20)


def test_weights_of_bands_are_shares_of_the_link() -> None:
    cluster = {
        "topology": {"kind": "star", "hosts": 3},
        "link": {"rate": "10Gbps", "delay": "1us"},
        "queue": {"kind": "drr", "weights": [3, 1], "capacity": "2000pkt"},
        "transport": {"kind": "ideal", "window": "200kB"},
    }
    result = ran([flow(0, 2, 10_000 * SEGMENT, band=0), flow(1, 2, 10_000 * SEGMENT, band=1)], cluster)
    heavy_us, light_us = column(result, "fct_us")
    assert heavy_us == pytest.approx(10_000 * WIRE * 8 / 7.5e3, abs=20)
    assert light_us == pytest.approx(20_000 * WIRE * 8 / 10e3, abs=20)


@pytest.mark.parametrize("ports", [1, 3])
def test_full_ports_share_a_buffer_by_dynamic_thresholds(ports: int) -> None:
    """A port holds at most α of what is free: with n ports that are full, α·B / (1 + n·α) (Choudhury & Hahne 1998)."""
    cluster = {
        "topology": {"kind": "star", "hosts": 9},
        "link": {"rate": "10Gbps", "delay": "1us"},
        "queue": {"kind": "fifo", "capacity": "5000pkt"},
        "switch_buffer": {"capacity": "300pkt", "alpha": 0.5},
        "transport": {"kind": "ideal", "window": "1MB", "timers": "linux"},
    }
    result = ran([flow(3 + 2 * port + which, port, 3_000_000) for port in range(ports) for which in (0, 1)], cluster)
    most = 0.5 * 300 / (1 + ports * 0.5)
    assert [link(result, f"s-h{port}")["max_queue_packets"] for port in range(ports)] == [most] * ports


def test_an_all_to_all_takes_what_leaves_a_leaf_at_the_rate_of_its_spine(tmp_path: Path) -> None:
    hosts, per_leaf, size = 32, 8, 1_000_000
    with open(tmp_path / "flows.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("start_ns", "src", "dst", "bytes"))
        rows.writerows((0, src, dst, size) for src in range(hosts) for dst in range(hosts) if src != dst)
    topology = {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": per_leaf, "spines": 1}
    topology["fabric_link"] = {"rate": "20Gbps"}
    cluster = {"topology": topology, "link": {"rate": "10Gbps", "delay": "0us"}}
    traffic = {"a": {"replay": str(tmp_path / "flows.csv")}}
    result = gt.run({"traffic": traffic, "cluster": cluster, "run": {"duration": "10s"}})
    assert max(column(result, "fct_us")) == per_leaf * (hosts - per_leaf) * size * 8 / 20e3


def test_the_queue_of_dctcp_is_at_most_its_threshold_and_a_packet_of_each_sender() -> None:
    """K + N in the steady state of N flows (Alizadeh et al. 2010, equation 10)."""
    senders, threshold = 10, 65
    cluster = {
        "topology": {"kind": "star", "hosts": 1 + senders},
        "link": {"rate": "10Gbps", "delay": "25us"},
        "queue": {"kind": "ecn", "threshold": f"{threshold}pkt", "capacity": "2000pkt"},
        "transport": {"kind": "dctcp"},
    }
    flows = [flow(1 + sender, 0, 40_000_000) for sender in range(senders)]
    result = ran(flows, cluster, probe={"every": "20us", "links": ["s-h0"]})
    steady = [row["queue_packets"] for row in result.queues.to_dicts() if 100_000 < row["time_us"] < 250_000]
    assert max(steady) <= threshold + senders
    assert min(steady) > 0


def test_hashed_flows_use_as_many_spines_as_balls_fill_bins() -> None:
    """Of n spines, n flows use n·(1 - (1 - 1/n)^n) on average."""
    count, seeds = 32, range(30)
    topology = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": count, "spines": count}
    cluster = {"topology": topology, "link": {"rate": "10Gbps", "delay": "1us"}}
    flows = [flow(host, count + host, 1_000_000) for host in range(count)]
    used = []
    for seed in seeds:
        links = ran(flows, cluster, "fluid", seed=seed).links.to_dicts()
        used.append(sum(row["bytes"] > 0 for row in links if row["link"].startswith("leaf0-spine")))
    error = statistics.stdev(used) / math.sqrt(len(seeds))
    assert statistics.mean(used) == pytest.approx(count * (1 - (1 - 1 / count) ** count), abs=3 * error)


@pytest.mark.parametrize("rate", ["1Gbps", "10Gbps", "800Gbps", "2400Gbps", "3600Gbps", "7200Gbps"])
@pytest.mark.parametrize("segment", [None, 100, SEGMENT, 1449, 4096, 8934])
def test_no_link_carries_more_than_its_rate(rate: str, segment: int | None) -> None:
    """On the fluid engine, and packet by packet: the time of each is rounded up to a picosecond."""
    bps = int(rate.removesuffix("Gbps")) * 10**9
    cluster: dict[str, Any] = {"topology": {"kind": "star", "hosts": 2}, "link": {"rate": rate, "delay": "1us"}}
    count, payload, header = 2000, segment or SEGMENT, HEADER if segment else 0
    if segment is not None:
        cluster["queue"] = {"kind": "fifo", "capacity": "100000pkt"}
        cluster["transport"] = {"kind": "ideal", "window": "16MB", "segment": f"{segment}B"}
    result = ran([flow(0, 1, count * payload)], cluster, "packet" if segment else "fluid")
    for row in result.links.to_dicts():
        least_us = row["bytes"] * 8e6 / bps
        # The run ends while the last acknowledgement is sent, which is counted at its start.
        assert least_us - header * 8e6 / bps - 1e-6 <= row["busy_us"] <= least_us + 2 * count * 1e-6
    [received_us] = column(result, "received_us")
    assert received_us > count * (payload + header) * 8e6 / bps


def test_a_lost_end_waits_for_a_timeout_and_the_answer_says_so() -> None:
    """With RACK-TLP (RFC 8985) a probe follows after two round trips; without, the least timeout passes first."""
    flows = [flow(src, 2, 10 * SEGMENT) for src in (0, 1)]
    cluster: dict[str, Any] = {
        "topology": {"kind": "star", "hosts": 3},
        "link": {"rate": "1Gbps", "delay": "50us"},
        "transport": {"kind": "newreno", "timers": "linux"},
    }
    whole = ran(flows, cluster)
    lossy = ran(flows, {**cluster, "queue": {"kind": "fifo", "capacity": "4pkt"}})
    # Linux's least timeout is 200 ms, of which the round trip before it is 1 ms at most.
    assert max(column(whole, "fct_us")) < 2000 < 199_000 < max(column(lossy, "fct_us"))
    assert (whole.summary["links"]["timeouts"], lossy.summary["links"]["timeouts"]) == (0, 1)
    told = ["loss recovery" in [one.name for one in run.answer.premises] for run in (whole, lossy)]
    assert told == [False, True]
    assert ran(flows, {"topology": cluster["topology"]}, "fluid").summary["links"]["timeouts"] is None


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("behind_us", [0, 1])
def test_of_packets_that_arrive_together_the_one_that_left_first_goes_first_then_that_of_the_first_link(
    early: int, behind_us: int
) -> None:
    """A SYN that waits for another one delays all of its flow by the time of that; nothing else of the flows meets."""
    late, syn_us = 1 - early, (HEADER + OPTIONS) * 8e-4
    delays = {early: 1 + behind_us, late: 1, 2: 1}
    network = cables(*((f"h{host}", "s", "10Gbps", f"{delays[host]}us") for host in range(3)))
    starts = {early: "0us", late: f"{behind_us}us"}
    flows = {host: {**flow(host, 2, 1), "start": starts[host]} for host in (late, early)}

    def received_us(*hosts: int) -> dict[int, float]:
        result = ran([flows[host] for host in hosts], network, start_jitter="0us")
        return dict(zip(column(result, "src"), column(result, "received_us"), strict=True))

    alone, together = received_us(early) | received_us(late), received_us(late, early)
    first = early if behind_us else 0
    assert together[first] == alone[first]
    assert together[1 - first] > alone[1 - first] + 0.99 * syn_us
    if behind_us:
        assert together[late] == pytest.approx(alone[late] + syn_us)


def test_ns3_is_followed_in_nothing_but_its_habits() -> None:
    """Those that have a key are spelled out; a byte takes a nanosecond, nothing is lost, and no card is full.

    So clock, ssthresh, what was SACKed and full cards, which have no key, have no say.
    """
    cluster = {
        "topology": {"kind": "star", "hosts": 5},
        "link": {"rate": "8Gbps", "delay": "3us"},
        "queue": {"kind": "fifo", "capacity": "10000pkt"},
        "transport": {"kind": "newreno", "timers": "linux", "recovery": "sack"},
    }
    flows = [
        {**flow(src, dst, 1000 * (1 + 7 * src + dst) ** 2), "start": f"{src}us"}
        for src in range(5)
        for dst in range(src)
    ]
    job = {"model": {"layers": [{"name": "a", "forward": "9us", "backward": "30us", "parameters": "70kB"}]}}
    runs = [
        gt.run(
            {
                "job": {"train": {**job, "workers": 4, "iterations": 3}},
                "traffic": {"a": {"flows": flows}},
                "cluster": cluster,
                "run": {"engine": "packet", "duration": "1s", "follow": follow, "start_jitter": "0us"},
            }
        )
        for follow in ("standards", "ns3")
    ]
    assert [run.summary["links"]["drops"] for run in runs] == [0, 0]
    assert runs[0].flows.to_dicts() == runs[1].flows.to_dicts()
    assert runs[0].iterations.to_dicts() == runs[1].iterations.to_dicts()
