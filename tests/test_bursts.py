"""Bursts on real sockets: what stands on the wire, who waits for whom, and what a lost or hostile packet does."""

import csv
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

import gradtide as gt
from gradtide import announced
from gradtide.announced import Arrival, Receiver

LOOPBACK = "127.0.0.1"


@contextmanager
def receiving(
    count: int | None = None, together: int = 1, listen: str = LOOPBACK
) -> Iterator[tuple[int, list[Arrival]]]:
    """Receive bursts in a thread; give the port, and the list that they are put into."""
    arrivals: list[Arrival] = []
    with Receiver(listen, 0, together) as receiver:

        def work() -> None:
            with suppress(OSError, ValueError):  # the sockets are closed when the test is over
                arrivals.extend(receiver.receive(count))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield receiver.port, arrivals
        if count is not None:
            thread.join(30)
            assert not thread.is_alive()


def test_bursts_arrive_whole_and_announced():
    with receiving(count=3) as (port, arrivals):
        result = gt.bursts(LOOPBACK, port=port, bytes="3MB", count=3, idle="10ms", announce="10pkt")
    assert [(one.size_bytes, one.announced_packets) for one in arrivals] == [(3_000_000, 10)] * 3
    assert [row.burst for row in result.rows] == [0, 1, 2]
    for row, after in zip(result.rows, [*result.rows[1:], None], strict=True):
        assert row.answer_ms is not None
        assert 0 < row.answer_ms + row.burst_ms <= row.completion_ms
        if after is not None:
            assert after.start_s >= row.start_s + row.completion_ms / 1e3 + 0.01


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_bursts_go_over_ipv6_as_well():
    try:
        with receiving(count=1, listen="::1") as (port, arrivals):
            gt.bursts("::1", port=port, bytes="100kB", announce="75pkt")
    except announced.BurstError as error:
        pytest.skip(str(error))
    assert arrivals[0].announced_packets == 75


def test_an_announcement_is_the_papers_packet_from_the_port_of_the_burst():
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        tcp.bind((LOOPBACK, 0))
        udp.bind(tcp.getsockname())
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        tcp.listen()
        port = tcp.getsockname()[1]
        rows: list[announced.Burst] = []

        def send() -> None:
            rows.extend(gt.bursts(LOOPBACK, port=port, bytes="10kB", announce="35pkt", timeout="60s").rows)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        payload, told, _, sender = udp.recvmsg(2048, 64)
        # Fig. 7: START, not ACK, a fifth of the threshold in four bits, not ECN-capable.
        assert [data[0] for _, _, data in told] == [0b10_0111_00]
        # With the headers of UDP, IPv4 and Ethernet and its checksum, 64 bytes (section 4.4).
        assert len(payload) + 8 + 20 + 14 + 4 == 64
        # No burst before the answer, or an answer to something else.
        tcp.settimeout(0.2)
        udp.sendto(b"PCN1" + bytes(14).replace(b"\0", b"\1"), sender)
        with pytest.raises(TimeoutError):
            tcp.accept()
        udp.sendto(payload, sender)
        tcp.settimeout(30)
        connection, of_burst = tcp.accept()
        with connection:
            assert of_burst == sender
            whole = b""
            while len(whole) < 10_000:
                whole += connection.recv(10_000)
            assert struct.unpack("!Q", whole[:8]) == (10_000,)
            connection.sendall(b"\x06")
            thread.join(30)
    assert rows[0].answer_ms is not None


def test_a_burst_whose_announcement_is_not_answered_begins_all_the_same():
    with receiving(count=1) as (port, arrivals), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        (row,) = gt.bursts(LOOPBACK, port=port, bytes="10kB", announce="10pkt", timeout="0s").rows
        assert row.answer_ms is None
        silent.close()
    assert len(arrivals) == 1


def test_setup_begins_with_the_answer():
    with receiving(count=1) as (port, _):
        (row,) = gt.bursts(LOOPBACK, port=port, bytes="10kB", announce="10pkt", setup="50ms").rows
    assert row.answer_ms is not None
    assert row.completion_ms >= row.answer_ms + 50 + row.burst_ms


def test_senders_wait_for_one_another():
    with receiving(count=4, together=2) as (port, arrivals):
        done: list[int] = []

        def send(name: int) -> None:
            gt.bursts(LOOPBACK, port=port, bytes="10kB", count=2, on_burst=lambda _: done.append(name))

        first = threading.Thread(target=send, args=(0,), daemon=True)
        first.start()
        while not arrivals:
            first.join(0.01)
        assert done == []
        send(1)
        first.join(30)
        assert sorted(done) == [0, 0, 1, 1]


def test_a_sender_that_has_left_is_not_waited_for_and_not_counted():
    with receiving(count=3, together=2) as (port, arrivals):
        with socket.create_connection((LOOPBACK, port)) as leaves:
            leaves.sendall(struct.pack("!Q", 8))
            while not arrivals:
                threading.Event().wait(0.01)
        threads = [
            threading.Thread(target=gt.bursts, args=(LOOPBACK,), kwargs={"port": port, "bytes": "10kB"}, daemon=True)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_strangers_stop_no_receiver():
    with receiving(count=1) as (port, arrivals), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for service in (0, announced.START, announced.ACK, announced.START | announced.ACK):
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
            for payload in (b"", b"PCN1", b"PCN1" + bytes(100), bytes(18)):
                udp.sendto(payload, (LOOPBACK, port))
        silent = [socket.create_connection((LOOPBACK, port)) for _ in range(5)]
        silent[0].sendall(b"\xff" * 100)
        silent[1].close()
        assert gt.bursts(LOOPBACK, port=port, bytes="10kB", announce="10pkt").rows[0].answer_ms is not None
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(64)
        for one in silent:
            one.close()
    assert len(arrivals) == 1


class Clock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def strangers(port: int, says: bytes, counts: dict[str, int]) -> list[socket.socket]:
    """Connect so many times from each of some addresses of this host, say something, and stay."""
    found = []
    for address, count in counts.items():
        for _ in range(count):
            one = socket.create_connection((LOOPBACK, port), source_address=(address, 0))
            with suppress(OSError):  # it has been closed already
                one.sendall(says)
            found.append(one)
    return found


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


HTTP = b"GET / HTTP/1.1\r\n\r\n"
MORE_THAN_PLACES = {LOOPBACK: announced.MOST_CONNECTIONS + 30}


@pytest.mark.parametrize(
    "says",
    [b"", b"\0\0\0", b"\xff" * 100, HTTP, bytes(8), struct.pack("!Q", 7)],
    ids=["nothing", "a part of a size", "garbage", "another protocol", "no bytes", "too few bytes"],
)
def test_more_strangers_than_places_keep_no_sender_waiting(says):
    with receiving(count=1) as (port, arrivals):
        held = strangers(port, says, MORE_THAN_PLACES)
        gt.bursts(LOOPBACK, port=port, bytes="10kB")
        for one in held:
            one.close()
    assert [one.size_bytes for one in arrivals] == [10_000]


def test_strangers_that_hold_all_places_and_drip_lose_them_to_a_sender():
    clock = Clock()
    with Receiver(LOOPBACK, 0, clock=clock) as receiver, ExitStack() as ends:
        arrivals: list[Arrival] = []
        thread = threading.Thread(target=lambda: arrivals.extend(receiver.receive(1)), daemon=True)
        thread.start()
        half = announced.MOST_CONNECTIONS // 2
        counts = {"127.0.0.2": half, "127.0.0.3": half}
        held = strangers(receiver.port, struct.pack("!Q", 1_000_000), counts)
        for one in held:
            ends.enter_context(one)
        wait_until(lambda: len(receiver._places.active) == announced.MOST_CONNECTIONS)
        sender = threading.Thread(target=gt.bursts, args=(LOOPBACK,), kwargs={"port": receiver.port, "bytes": "10kB"})
        sender.daemon = True
        sender.start()
        wait_until(lambda: any(one.size_bytes == 10_000 for one in receiver._places.waiting))
        for _ in range(int(announced.PATIENCE_S) + 1):
            assert not arrivals
            clock.now_s += 1
            for one in held:
                with suppress(OSError):
                    one.sendall(b"\0")
        sender.join(30)
        thread.join(30)
        assert [one.size_bytes for one in arrivals] == [10_000]


def test_one_address_cannot_have_all_places():
    with Receiver(LOOPBACK, 0, clock=Clock()) as receiver, ExitStack() as ends:
        arrivals: list[Arrival] = []
        thread = threading.Thread(target=lambda: arrivals.extend(receiver.receive(1)), daemon=True)
        thread.start()
        counts = {"127.0.0.2": announced.MOST_CONNECTIONS}
        for one in strangers(receiver.port, struct.pack("!Q", 1_000_000), counts):
            ends.enter_context(one)
        wait_until(lambda: len(receiver._places.active) == announced.MOST_OF_ADDRESS)
        # Without any deadline: the clock stands still.
        gt.bursts(LOOPBACK, port=receiver.port, bytes="10kB")
        thread.join(30)
        assert len(arrivals) == 1


def test_a_connection_that_drips_its_size_is_closed_at_the_deadline():
    clock = Clock()
    with Receiver(LOOPBACK, 0, clock=clock) as receiver:
        thread = threading.Thread(target=lambda: list(receiver.receive(1)), daemon=True)
        thread.start()
        with socket.create_connection((LOOPBACK, receiver.port)) as drips:
            drips.settimeout(30)
            for number in range(4):
                drips.sendall(b"\0")
                wait_until(lambda: [len(one.head) for one in receiver._places.waiting] == [number + 1])  # noqa: B023
                clock.now_s += announced.SILENCE_S / 3.5
            # Though it has never been silent for long.
            assert drips.recv(1) == b""
        assert receiver._places.waiting == []


def sender_of(host: str, at_s: float, size: int | None = 1000) -> announced.Sender:
    head = b"" if size is None else struct.pack("!Q", size)
    with socket.socket() as unused:
        return announced.Sender(unused, (host, 1), at_s, at_s, head=head)


def test_of_too_many_that_wait_the_oldest_of_the_address_with_the_most_is_closed():
    places = announced.Places()
    few = sender_of("few", 0.0, None)
    assert places.arrive(few) == []
    many = [sender_of(f"many{number % 2}", 1.0, None) for number in range(announced.MOST_WAITING)]
    closed = [one for sender in many for one in places.arrive(sender)]
    assert closed == [many[0]]
    assert few in places.waiting


def test_a_sender_that_is_fast_enough_keeps_its_place():
    places = announced.Places()
    for number in range(announced.MOST_CONNECTIONS):
        places.arrive(sender_of(f"host{number % 4}", 0.0))
    assert len(places.admit(0.0)[0]) == announced.MOST_CONNECTIONS
    passed_s = 10 * announced.PATIENCE_S
    for one in places.active:
        one.received_bytes = int(announced.SLOW_BYTES_PER_S * passed_s)
    newcomer = sender_of("new", passed_s)
    places.arrive(newcomer)
    assert places.admit(passed_s) == ([], [])
    slow = places.active[7]
    slow.received_bytes -= 1
    assert places.admit(passed_s) == ([newcomer], [slow])


def test_a_burst_that_arrived_holds_no_place_while_others_are_waited_for():
    together = announced.MOST_OF_ADDRESS + 1
    with Receiver(LOOPBACK, 0, together, clock=Clock()) as receiver, ExitStack() as ends:
        thread = threading.Thread(target=lambda: list(receiver.receive(together)), daemon=True)
        thread.start()
        senders = strangers(receiver.port, struct.pack("!Q", 8), {LOOPBACK: together})
        for one in senders:
            ends.enter_context(one)
            one.settimeout(30)
        assert {one.recv(1) for one in senders} == {b"\x06"}
        thread.join(30)


def test_a_receiver_that_leaves_is_one_error():
    with socket.socket() as tcp:
        tcp.bind((LOOPBACK, 0))
        port = tcp.getsockname()[1]
        with pytest.raises(announced.BurstError, match="gradtide bursts receive"):
            gt.bursts(LOOPBACK, port=port, bytes="10kB")
        tcp.listen()

        def leave() -> None:
            tcp.accept()[0].close()

        threading.Thread(target=leave, daemon=True).start()
        with pytest.raises(announced.BurstError, match=r"closed the connection before (the )?burst"):
            gt.bursts(LOOPBACK, port=port, bytes="100MB")


def test_a_port_that_is_taken_is_one_error():
    with (
        receiving() as (port, _),
        pytest.raises(announced.BurstError, match=f"cannot listen at {LOOPBACK} port {port}"),
    ):
        next(gt.bursts_receive(listen=LOOPBACK, port=port))


@pytest.mark.parametrize(
    ("host", "port", "error", "said"),
    [
        ("nowhere.invalid", 7474, announced.BurstError, "is not an address"),
        (LOOPBACK, 99_999, ValueError, "port: 99999"),
    ],
)
def test_an_address_that_is_none_is_one_error_at_both_ends(host, port, error, said):
    with pytest.raises(error, match=said):
        next(gt.bursts_receive(listen=host, port=port))
    with pytest.raises(error, match=said):
        gt.bursts(host, port=port, bytes="10kB")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bytes": "7B"}, "bytes: '7B' is less than 8 bytes"),
        ({"bytes": "1MB", "count": 0}, "count: 0"),
        ({"bytes": "lots"}, "bytes: "),
        ({"bytes": "1MB", "idle": "7"}, "idle: "),
        ({"bytes": "1MB", "announce": "11pkt"}, "announce: a threshold of 11 packets cannot be announced"),
        ({"bytes": "1MB", "announce": "80pkt"}, 'a multiple of 5 up to "75pkt"'),
        ({"bytes": "1MB", "transport": "none"}, "transport: this system has no TCP 'none'"),
    ],
)
def test_wrong_arguments_are_named(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        gt.bursts(LOOPBACK, port=1, **given)


def test_the_bursts_of_a_scenario_are_sent_as_they_are_simulated():
    expected = {"bytes": "400kB", "count": 6, "idle": "7s", "setup": "13200us", "start": "20s", "announce": "10pkt"}
    assert announced.bursts_of("paper/pcn") == expected
    with pytest.raises(ValueError, match="the scenario has no tenant that sends bursts"):
        announced.bursts_of("paper/gao2020-ch5")
    with pytest.raises(ValueError, match="tenants with bursts: worker"):
        announced.bursts_of("paper/pcn", "background")


def test_the_announced_threshold_of_a_scenario_is_that_of_its_queues(tmp_path):
    scenario = gt.Scenario.load("paper/pcn").set({"traffic.worker.announce": True})
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    assert announced.bursts_of(str(tmp_path / "s.toml"))["announce"] == "10pkt"


def test_the_command_prints_and_writes_what_it_measured(gradtide, tmp_path):
    with receiving(count=4) as (port, _):
        command = ("bursts", LOOPBACK, "--port", port, "--bytes", "1MB", "--count", "2", "--announce", "10pkt")
        code, out, err = gradtide(*command, "-o", tmp_path / "bursts.csv")
        assert (code, err.count("ms\n")) == (0, 2)
        assert "2 of 2 announcements of 10 packets were answered" in " ".join(out.split())
        code, out, err = gradtide(*command, "--json")
    document = json.loads(out)
    assert (code, err, document["schema"], len(document["rows"])) == (0, "", "gradtide.bursts/1", 2)
    rows = list(csv.DictReader((tmp_path / "bursts.csv").read_text().splitlines()))
    assert list(rows[0]) == list(document["rows"][0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bursts", "somewhere"], "--bytes is missing"),
        (["bursts", "somewhere", "--bytes", "1MB", "--tenant", "worker"], "--tenant names a tenant"),
        (["bursts", "somewhere", "--bytes", "1MB", "--announce", "3pkt"], "--announce: a threshold of 3 packets"),
        (
            ["bursts", "somewhere", "--like", "paper/gao2020-ch5"],
            "tenant: name a tenant of paper/gao2020-ch5 that sends bursts; the scenario has no tenant",
        ),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(gradtide, arguments, said):
    code, out, err = gradtide(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_one_document_of_what_is_received_has_an_end(gradtide):
    code, out, err = gradtide("bursts", "receive", "--json")
    assert (code, json.loads(out)["kind"]) == (2, "usage")
    assert "--count 6" in err
