"""The testbed's network of namespaces: bands at its ports, flows on it, nothing left behind. Needs root on Linux."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation" / "testbed"))
if sys.platform.startswith("linux"):
    import flows
    import network


def can_make_namespaces():
    """Whether this process may make network namespaces with token buckets."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"gradtide-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    shape = ["root", "tbf", "rate", "1mbit", "burst", "8kb", "latency", "20ms"]
    made = made and not subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "lo", *shape]).returncode
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return made


pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root, iproute2 and network namespaces"),
    pytest.mark.slow,
]


def ours():
    """The testbed's namespaces that are there."""
    return [name for name in os.listdir("/run/netns") if name.startswith(network.HOST) or name == network.SWITCH]


def arrivals(routed):
    """Types of service in the order of arrival: 40 datagrams of the low one, then 5 of the high one, in one port."""
    with network.network(2, "200kbit", burst="8kb", queue=1000, routed=routed):
        network.run("tc", "-n", f"{network.HOST}0", "qdisc", "delete", "dev", "eth0", "root")
        with network.inside(1):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.bind((network.address(1, routed=routed), 9000))
            receiver.settimeout(20)
        with network.inside(0):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiver, sender:
            sender.connect(receiver.getsockname())
            sender.send(b"ARP is done by the first one")
            receiver.recv(2000)
            for service, count in ((0x08, 40), (0x10, 5)):
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
                for _ in range(count):
                    sender.send(bytes([service]) * 1000)
            return [receiver.recv(2000)[0] for _ in range(45)]


@pytest.mark.parametrize("routed", [True, False])
def test_a_switch_has_bands_if_it_routes(routed):
    """Eight datagrams go at once, 40 ms each takes the rest: those of the high band are sent within the first second.

    A bridge's port sees no priority, and sends in the order of arrival.
    """
    order = arrivals(routed)
    assert sorted(order) == [0x08] * 40 + [0x10] * 5
    if routed:
        assert order[-10:] == [0x08] * 10
    else:
        assert order == [0x08] * 40 + [0x10] * 5
    assert ours() == []


def test_every_flow_ends_and_takes_at_least_its_time_on_the_wire():
    sizes = [1, 1000, 1448, 1449, 50_000, 200_000]
    chosen = [flows.Flow(0.01 * index, index % 3, (index + 1) % 3, size) for index, size in enumerate(sizes)]
    with network.network(3, "20mbit", burst="8kb", queue=1000, routed=True):
        took, late = flows.play(chosen, 3, 0x10, patience=60)
        assert network.dropped(3) == 0
        assert 0 < flows.connect_time(3, 10) < 60
    assert len(late) == len(chosen)
    assert min(late) >= 0
    for flow, seconds in zip(chosen, took, strict=True):
        # A silent port sends 8 KiB at once; the rest goes at the rate.
        assert seconds is not None
        assert seconds >= (flow.size - 8192) * 8 / 20e6


def test_what_is_too_large_for_the_patience_is_told_from_what_took_long():
    with network.network(2, "200kbit", burst="8kb", queue=1000, routed=True):
        assert flows.play([flows.Flow(0.0, 0, 1, 10**7)], 2, 0x10, patience=0.3)[0] == [None]


def fail_inside():
    with network.network(2, "10mbit", routed=True):
        assert len(ours()) == 3
        with pytest.raises(SystemExit, match="another testbed is running"), network.network(2, "10mbit"):
            pass
        assert len(ours()) == 3
        raise ZeroDivisionError


def test_one_testbed_at_a_time_and_none_is_left_behind():
    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert ours() == []
    with pytest.raises(SystemExit, match="tc"), network.network(2, "a rate", routed=True):
        pass
    assert ours() == []
