"""Collectives of 64 ranks against closed forms, through the command and through scenarios: on a star and on 8 nodes.

S bytes, N ranks, links of rate B with a message's delay a (two links of a star), as alpha-beta models have them
(Thakur, Rabenseifner & Gropp 2005, sections 3 and 4).
"""

import json

import pytest

import gradtide as gt

N, GROUP = 64, 8
SIZE = 64_000_000
LINK = 1e11
"""Bytes per second."""
DELAY_S = 10e-6
STAR_S = 2 * DELAY_S
PORT, PORT_S = 1e12, 2e-6
"""A port on the scale-up switch of a node."""
ROUNDED_S = 1e-9
"""Times of up to 1,000 messages are rounded up to a picosecond each."""


def ring(size, ranks, rate, delay_s):
    """2(N-1) messages of S/N, each of which the next waits for (Patarasuk & Yuan 2009, section 3)."""
    return 2 * (ranks - 1) * (size / ranks / rate + delay_s)


def direct(size, ranks, rate, delay_s):
    """Every rank sends S/N to each of N-1 others, all at once; then the sums the same way."""
    return 2 * all_to_all(size, ranks, rate, delay_s)


def all_to_all(size, ranks, rate, delay_s):
    """The link of a rank carries N-1 messages of S/N, which share it."""
    return (ranks - 1) * size / ranks / rate + delay_s


def levels(size, inside, between):
    """Rings within groups of g, then N/g ranks of each place sum their S/g (BlueConnect 2019, section 3.1).

    Args:
        size: S.
        inside: rate, and delay of a message, within a group.
        between: the same between groups.
    """
    return ring(size, GROUP, *inside) + ring(size / GROUP, N // GROUP, *between)


STAR = {
    "ring": ring(SIZE, N, LINK, STAR_S),
    "shuffle": direct(SIZE, N, LINK, STAR_S),
    "all_to_all": all_to_all(SIZE, N, LINK, STAR_S),
    "hierarchical+inside=sharded+group=8": levels(SIZE, (LINK, STAR_S), (LINK, STAR_S)),
}
NODES = {
    # A card sends to the next node what a port sends to the next rank, later and more slowly.
    "hierarchical+inside=sharded": levels(SIZE, (PORT, PORT_S), (LINK, STAR_S)),
    # 7 of 63 messages stay on the node.
    "all_to_all": (N - GROUP) * SIZE / N / LINK + STAR_S,
    "shuffle": 2 * ((N - GROUP) * SIZE / N / LINK + STAR_S),
}


def scenario(kind="ring", *, engine="fluid", on_nodes=False, size=SIZE, rate="800Gbps"):
    """Return one exchange an iteration, which nothing hides."""
    node = {"gpus": GROUP, "nics": GROUP, "scale_up": {"rate": "8Tbps", "delay": "1us"}} if on_nodes else None
    cluster = {"link": {"rate": rate, "delay": "10us"}, **({"node": node} if node else {})}
    cluster |= {"transport": {"kind": "ideal", "window": "1MB"}} if engine == "packet" else {}
    layer = {"name": "all", "forward": "1ms", "backward": "1ms", "parameters": f"{size}B"}
    job = {"model": {"layers": [layer]}, "workers": N, "iterations": 1, "collective": {"kind": kind}}
    job |= {"task": "exchange"} if kind == "all_to_all" else {}
    return {"job": {"a": job}, "cluster": cluster, "run": {"engine": engine}}


@pytest.mark.parametrize(("on_nodes", "expected_s"), [(False, STAR), (True, NODES)])
def test_the_command_prints_the_closed_forms(gradtide, on_nodes, expected_s, tmp_path):
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario(on_nodes=on_nodes)))
    code, out, err = gradtide(
        "collectives", file, "--collectives", ",".join(expected_s), "--sizes", f"{SIZE}B", "--json"
    )
    assert code == 0, err
    rows = json.loads(out)["rows"]
    found_s = {row["collective"]: row["exchange_us"] / 1e6 for row in rows}
    assert found_s == pytest.approx(expected_s, abs=ROUNDED_S, rel=0)


def test_a_ring_on_a_star():
    """Between two hosts is the delay of two links."""
    found = gt.run(scenario(engine="fluid")).job["comm_ms"] / 1e3
    assert found == pytest.approx(ring(SIZE, N, LINK, STAR_S), abs=ROUNDED_S, rel=0)


SEGMENT, HEADERS = 1380, 54
"""Payload and headers of a packet, in bytes (docs/models/packet.md)."""
SLOW = 1e8
"""Bytes per second at which a byte takes a whole number of nanoseconds."""

TOLD_S = 1e-9
"""A job learns of a completion in the nanosecond after it (docs/models/packet.md)."""


def wire_s(payload):
    """Return the time of a message's packets on one link."""
    return (payload + -(-payload // SEGMENT) * HEADERS) / SLOW


def test_a_ring_of_packets():
    """A message of the ring takes as long as its packets, one of which a switch stores and forwards besides."""
    size = N * 10 * SEGMENT
    found = gt.run(scenario(engine="packet", size=size, rate="800Mbps")).job["comm_ms"] / 1e3
    message_s = wire_s(size // N) + wire_s(SEGMENT) + STAR_S + TOLD_S
    assert found == pytest.approx(2 * (N - 1) * message_s, abs=ROUNDED_S, rel=0)


def test_an_all_to_all_of_packets():
    """The link of a rank is never idle while its messages are under way; a switch stores one packet besides."""
    size = N * 10 * SEGMENT
    found = gt.run(scenario("all_to_all", engine="packet", size=size, rate="800Mbps")).job["comm_ms"] / 1e3
    expected = (N - 1) * wire_s(size // N) + wire_s(SEGMENT) + STAR_S + TOLD_S
    assert found == pytest.approx(expected, abs=ROUNDED_S, rel=0)
