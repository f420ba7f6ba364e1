"""The job's priority on the wire: marks on real sockets, what the kernel makes of them, rules, and NCCL's setting.

Needs torch; what needs root as well is skipped without it.
"""

import contextlib
import io
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import control, nccl_options, sockets, wire, wire_priority, wrap

pytestmark = torch_ranks.MARKS

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux does")
PRIOMAP = (1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)  # tc-prio(8), also what `tc qdisc show` prints
NORMAL, LOW, HIGH = 0x00, 0x08, 0x10


def has_nft():
    """Whether nft may look at this machine's tables: it is there, and this is root with the right to."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        return False
    return subprocess.run(["nft", "list", "tables"], capture_output=True).returncode == 0


needs_nft = pytest.mark.skipif(not has_nft(), reason="needs root and nft")


def tcp_pair(family=socket.AF_INET, host="127.0.0.1", server_family=None):
    """Two connected sockets; the server's may be of the other family."""
    bound = "::" if server_family == socket.AF_INET6 and family == socket.AF_INET else host
    with socket.socket(server_family or family) as server:
        if server.family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((bound, 0))
        server.listen()
        client = socket.create_connection((host, server.getsockname()[1]))
        return client, server.accept()[0]


def connection(service=LOW, rank=1, local=("10.0.0.1", 4000), peer=("10.0.0.2", 5000), interface="eth0"):
    return wire.Connection(rank, local, peer, interface, service)


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_words_and_dscps_become_types_of_service():
    assert [wire.service_of(each) for each in ("high", "normal", "low", 0, 2, 46, 63)] == [16, 0, 8, 0, 8, 184, 252]


@pytest.mark.parametrize("wrong", ["urgent", -1, 64, True, 8.0, None, ""])
def test_other_priorities_are_refused(wrong):
    with pytest.raises(TrainingError, match="can be high, normal, low, or a DSCP from 0 to 63"):
        wire.service_of(wrong)


@LINUX
def test_bands_are_those_that_the_kernel_derives():
    """Linux gives a socket the priority of its type of service, and reads it back (socket(7), SO_PRIORITY)."""
    with socket.socket() as one:
        for dscp in range(64):
            one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            priority = one.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
            assert wire._PRIORITIES[(dscp << 2) & 0x18] == priority
            assert wire.WirePriority(dscp << 2, (), "").band == PRIOMAP[priority]


# ── connections ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_connection_is_the_jobs_if_another_rank_has_its_other_end():
    generator = random.Random(0)
    for _ in range(50):
        size = generator.randint(2, 6)
        lists = [[] for _ in range(size)]
        expected = [{} for _ in range(size)]
        for number in range(generator.randint(0, 30)):
            a, b = generator.sample(range(size), 2)
            here, there = (f"10.0.0.{a}", 1000 + number), (f"10.0.0.{b}", 2000 + number)
            lists[a].append((here, there))
            if generator.random() < 0.7:  # otherwise to a stranger at an address like a rank's
                lists[b].append((there, here))
                expected[a][here, there], expected[b][there, here] = b, a
        for rank in range(size):
            generator.shuffle(lists[rank])
            assert sockets.matched(lists[rank], lists, rank) == expected[rank]


def test_a_connection_of_a_process_to_itself_is_not_the_jobs():
    pair = (("127.0.0.1", 1), ("127.0.0.1", 2))
    assert sockets.matched([pair, pair[::-1]], [[pair, pair[::-1]], []], 0) == {}


@LINUX
@pytest.mark.parametrize("kinds", ["IPv4", "IPv6", "IPv4 in IPv6"])
def test_marks_are_read_back_for_every_family(kinds):
    try:
        if kinds == "IPv4":
            ours, theirs = tcp_pair()
        elif kinds == "IPv6":
            ours, theirs = tcp_pair(socket.AF_INET6, "::1")
        else:
            theirs, ours = tcp_pair(server_family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with ours, theirs:
        assert sockets.ends(ours) == sockets.ends(theirs)[::-1]
        for service in (LOW, HIGH, NORMAL):
            assert wire._mark(ours, service) == service
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == wire._PRIORITIES[service]


def strangers():
    """A connection of this process that is nobody else's business."""
    return tcp_pair()


def marks(rank):
    dist.all_reduce(torch.ones(10))
    ours, theirs = strangers()
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    plan = {
        "schema": "gradtide.plan/1",
        "level": "crossiter",
        "buckets": [{"layers": ["1"], "bytes": 20, "rank": 1}, {"layers": ["0"], "bytes": 144, "rank": 0}],
    }
    wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    found = {}
    with ours, theirs:
        for word in ("low", "high", "normal"):
            text = io.StringIO()
            marked = wire_priority(word, file=text if rank == 0 else None)
            with contextlib.ExitStack() as stack:
                now = {sockets.ends(one): one.getsockopt(0, socket.IP_TOS) for one in sockets.open_connections(stack)}
            found[word] = {
                "others": sorted({each.rank for each in marked.connections}),
                "marked": [now[each.local, each.peer] for each in marked.connections],
                "said": [each.service for each in marked.connections],
                "interfaces": {each.interface for each in marked.connections},
                "stranger": now[sockets.ends(ours)],
                "announcing": [
                    peer.getsockopt(0, socket.IP_TOS) for each in control._open for peer in each._peers.values()
                ],
                "text": text.getvalue(),
            }
        wrapped(torch.ones(2, 8)).sum().backward()
    wrapped.flush()
    return found


@LINUX
def test_connections_between_ranks_are_marked_and_no_others(tmp_path):
    values = torch_ranks.values(3, marks, tmp_path)
    for rank, value in enumerate(values):
        for word, service in (("low", LOW), ("high", HIGH), ("normal", NORMAL)):
            found = value[word]
            assert found["others"] == [other for other in range(3) if other != rank]
            # Two groups, the default one and that of wrap: each has a connection to every other rank.
            assert found["marked"] == found["said"] == [service] * 4
            assert found["interfaces"] <= {"lo", "eth0"} | {name for _, name in socket.if_nameindex()}
            assert found["stranger"] == NORMAL
            assert set(found["announcing"]) == {control.LOW_DELAY}
    text = values[0]["low"]["text"]
    assert text.startswith("type of service 0x08 (DSCP 2, band 2 of pfifo_fast) on 4 of 4 connections to other ranks\n")
    assert "nft -f -" in text


def test_alone_there_is_nothing_to_mark():
    with pytest.raises(TrainingError, match="no other rank"):
        wire_priority("low")


# ── doubts ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("result", "priority", "words"),
    [
        (wire.WirePriority(LOW, (), ""), "low", "no connection of this process leads to another rank"),
        (wire.WirePriority(LOW, (connection(NORMAL), connection()), ""), "low", "1 connections refuse type of service"),
        (wire.WirePriority(32, (connection(32),), ""), 8, "DSCP 8 into band 1, like unmarked traffic"),
    ],
)
def test_what_does_not_work_is_said(result, priority, words):
    (said,) = wire._doubts(result, priority)
    assert words in said


def test_what_works_raises_no_doubt():
    for word, service in wire.SERVICES.items():
        assert not list(wire._doubts(wire.WirePriority(service, (connection(service),), ""), word))


def test_applying_rules_needs_root(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TrainingError, match="needs root and nft"):
        wire_priority("low", apply=True)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rules_name_each_connection():
    six = connection(local=("fd00::1", 4001), peer=("fd00::2", 5001))
    assert wire.rules_of(LOW, [connection(), six], table="gradtide_7", bands={"eth0": "fq_codel"}) == (
        "# the operator's rules; as root, on this host\n"
        "nft -f - <<'END'\n"
        "add table inet gradtide_7\n"
        "add chain inet gradtide_7 output { type filter hook output priority mangle; policy accept; }\n"
        "add rule inet gradtide_7 output ip saddr . tcp sport . ip daddr . tcp dport "
        "{ 10.0.0.1 . 4000 . 10.0.0.2 . 5000 } ip dscp set 2 meta priority set 0:2\n"
        "add rule inet gradtide_7 output ip6 saddr . tcp sport . ip6 daddr . tcp dport "
        "{ fd00::1 . 4001 . fd00::2 . 5001 } ip6 dscp set 2 meta priority set 0:2\n"
        "END\n"
        "#   undo: nft delete table inet gradtide_7\n"
        "#   started by `systemd-run --scope`, the job has a cgroup, whose packets one rule marks\n"
        "# eth0: fq_codel may have no bands; this is for the traffic of all programs\n"
        "tc qdisc replace dev eth0 root pfifo_fast"
    )


def test_a_cgroup_stands_for_all_connections():
    text = wire.rules_of(HIGH, [connection()], table="t", cgroup="/train.slice/job.scope", bands={"eth0": "pfifo_fast"})
    assert 'output socket cgroupv2 level 2 "train.slice/job.scope" meta l4proto tcp ip dscp set 4 meta pri' in text
    assert "10.0.0.1" not in text
    assert "systemd-run" not in text
    assert "tc qdisc" not in text
    assert "eth0: pfifo_fast has three bands" in text


def test_without_connections_there_is_no_table():
    assert wire.nft_of(LOW, [], table="t", cgroup="/") == ""
    assert "nft" not in wire.rules_of(LOW, [], table="t")


@needs_nft
@pytest.mark.parametrize("service", [0, 8, 16, 24, 184, 252])
def test_nft_takes_the_rules(service):
    six = connection(local=("fd00::1", 4001), peer=("fd00::2", 5001))
    text = wire.nft_of(service, [connection(), six, connection(peer=("10.0.0.3", 1))], table="t")
    done = subprocess.run(["nft", "-c", "-f", "-"], input=f"{text}\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ── packets ───────────────────────────────────────────────────────────────────────────────────────────────


def services_of(ports, exchange):
    """Types of service of the TCP segments with data between two ports while something is exchanged."""
    seen = set()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**24)
        tap.bind(("lo", 0x0800))
        tap.settimeout(0.2)
        exchange()
        with contextlib.suppress(TimeoutError):
            while True:
                packet = tap.recv(65535)
                start = 4 * (packet[0] & 15)
                length = struct.unpack_from("!H", packet, 2)[0] or len(packet)
                if packet[9] != socket.IPPROTO_TCP or length <= start + 4 * (packet[start + 12] >> 4):
                    continue
                if set(struct.unpack_from("!HH", packet, start)) == ports:
                    seen.add(packet[1] & 0xFC)
    return seen


def packets(rank, by_rules):
    dist.all_reduce(torch.ones(10))
    marked = wire_priority("low", apply=by_rules, file=io.StringIO())
    (each,) = marked.connections
    if by_rules:
        with contextlib.ExitStack() as stack:
            for one in sockets.open_connections(stack):
                if sockets.ends(one) == (each.local, each.peer):
                    wire._mark(one, NORMAL)
    dist.barrier()
    seen = services_of({each.local[1], each.peer[1]}, lambda: dist.all_reduce(torch.ones(100_000)))
    dist.barrier()
    return seen, wire._table()


@LINUX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="reads packets: needs root")
def test_packets_carry_the_mark(tmp_path):
    assert [value[0] for value in torch_ranks.values(2, packets, tmp_path, False)] == [{LOW}] * 2


@LINUX
@needs_nft
def test_rules_mark_packets_of_sockets_without_a_mark_and_go_with_the_process(tmp_path):
    values = torch_ranks.values(2, packets, tmp_path, True)
    assert [value[0] for value in values] == [{LOW}] * 2
    names, until = {value[1] for value in values}, time.monotonic() + 60
    while names & set(subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout.split()):
        assert time.monotonic() < until, "rules outlive the processes that they are of"
        time.sleep(0.05)


# ── NCCL ──────────────────────────────────────────────────────────────────────────────────────────────────


def nccl_of(monkeypatch, **config):
    """A torch whose NCCL has these settings."""
    options = SimpleNamespace(config=SimpleNamespace(**config))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=lambda: options), raising=False)
    return options


@pytest.mark.parametrize("said", [None, "", "-1", "8", "0x8"])
def test_nccl_takes_the_traffic_class(monkeypatch, recwarn, said):
    options = nccl_of(monkeypatch, traffic_class=-1)
    assert nccl_options("low", {} if said is None else {"NCCL_IB_TC": said}) is options
    assert options.config.traffic_class == LOW
    assert not recwarn.list


def test_an_environment_that_overrides_nccl_is_told(monkeypatch):
    nccl_of(monkeypatch, traffic_class=-1)
    monkeypatch.setenv("NCCL_IB_TC", "106")
    with pytest.warns(UserWarning, match="NCCL_IB_TC=106 in the environment overrides traffic_class 8"):
        nccl_options("low")


def test_an_nccl_without_traffic_class_names_the_variable(monkeypatch):
    nccl_of(monkeypatch)
    with pytest.raises(TrainingError, match="set NCCL_IB_TC=8 before"):
        nccl_options("low")


def test_a_torch_without_nccl_is_told(monkeypatch):
    monkeypatch.delattr(dist, "ProcessGroupNCCL", raising=False)
    with pytest.raises(TrainingError, match="no NCCL"):
        nccl_options("low")


@pytest.mark.skipif(not hasattr(dist, "ProcessGroupNCCL"), reason="this torch has no NCCL")
def test_real_nccl_options_are_read_back():
    options = nccl_options("high", {})
    assert options.config.traffic_class == HIGH
