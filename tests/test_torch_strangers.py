"""The port of gradtide.torch: where it listens, until when, and what strangers who connect to it can do.

Needs torch: `make test-torch` installs it. Strangers are real connections to real ports.
"""

import contextlib
import os
import socket
import struct
import threading
import time

import pytest
import torch
import torch.distributed as dist

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import control, sockets, unwrap, wrap

pytestmark = torch_ranks.MARKS


@pytest.fixture
def loopback(monkeypatch):
    monkeypatch.setattr(control, "meeting_address", lambda: "127.0.0.1")


def silent(port):
    return [socket.create_connection(("127.0.0.1", port))]


def garbage(port):
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" * 100)
    return [one]


def slow(port):
    """Say a byte a second for as long as somebody listens."""
    one = socket.create_connection(("127.0.0.1", port))

    def drip():
        with contextlib.suppress(OSError):
            while True:
                one.sendall(b"\0")
                time.sleep(1)

    threading.Thread(target=drip, daemon=True).start()
    return [one]


def impostor(port):
    """Claim to be the second rank, without the key."""
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(control.HELLO.pack(bytes(control.CHALLENGE_BYTES), 1))
    one.recv(1)
    one.sendall(bytes(control.PROOF_BYTES))
    return [one]


def hasty(port):
    """Connect, say half of a greeting, and reset the connection."""
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"\1" * (control.HELLO.size // 2))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    return []


def met(size, before):
    """Connect `size` ranks, after `before` has seen what rank 0 has shared; return their ends and the seconds taken."""
    shared, is_shared = [], threading.Event()
    ends, errors = [None] * size, []

    def share(value):
        if value is not None:
            shared.append(value)
            before(value)
            is_shared.set()
        is_shared.wait(20)
        return shared[0]

    def make(rank):
        try:
            ends[rank] = control.Control(rank, size, share, lambda *message: None)
            ends[rank].start()
        except TrainingError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(size)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    return ends, time.monotonic() - start


@pytest.mark.parametrize(
    ("kinds", "count"),
    [((silent,), 5), ((garbage,), 5), ((slow,), 5), ((impostor,), 5), ((hasty,), 5), ((silent,), 700),
     ((silent, garbage, slow, hasty), 20)],
    ids=lambda value: "+".join(kind.__name__ for kind in value) if isinstance(value, tuple) else str(value),
)  # fmt: skip
def test_ranks_meet_in_spite_of_strangers(loopback, kinds, count):
    # Five silent strangers, waited for one after the other, were more than a rank would wait for.
    crowd = []

    def come(value):
        _, port, _ = value

        def flood():
            for kind in kinds * count:
                with contextlib.suppress(OSError):  # whoever is late finds nobody
                    crowd.extend(kind(port))

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        thread.join(0.5)  # most are there before the first rank; impostors and a crowd want rank 0 to listen

    ends, seconds = met(3, come)
    assert seconds < control.CONNECT_S / 2
    assert sorted(ends[0]._peers) == [1, 2]
    ours = {sockets.ends(peer)[::-1] for peer in ends[0]._peers.values()}
    assert ours == {sockets.ends(end._peers[0]) for end in ends[1:]}
    for one in [*ends, *crowd]:
        one.close()


def test_a_connection_that_proves_nothing_is_closed_in_time(loopback, monkeypatch):
    monkeypatch.setattr(control, "GREETING_S", 0.5)
    monkeypatch.setattr(control, "CONNECT_S", 3.0)
    seen = []

    def come(value):
        def wait():
            (one,) = silent(value[1])
            one.settimeout(10)
            start = time.monotonic()
            seen.append((one.recv(1), time.monotonic() - start))

        thread = threading.Thread(target=wait)
        thread.start()
        threads.append(thread)

    threads = []
    with pytest.raises(TrainingError, match=r"^rank 1 did not connect to rank 0 in 3 s$"):
        control._accept(2, come)
    threads[0].join()
    ((data, seconds),) = seen
    assert data == b""
    assert seconds < 2


def test_the_port_is_closed_when_all_ranks_have_met(loopback):
    ports = []
    ends, _ = met(2, lambda value: ports.append(value[1]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]))
    for end in ends:
        end.close()


def test_the_port_is_open_on_one_address_alone(loopback):
    said = []

    def come(value):
        with pytest.raises(ConnectionRefusedError) as caught:
            socket.create_connection(("127.0.0.2", value[1]), timeout=5)
        said.append(caught.value)

    ends, _ = met(2, come)
    assert said
    for end in ends:
        end.close()


def test_the_key_never_crosses_the_connection(loopback):
    keys, seen = [], []
    real = control._Greeting.is_over

    def listen(self):
        before = self._data
        over = real(self)
        seen.append(before + self._data)
        return over

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control._Greeting, "is_over", listen)
        ends, _ = met(2, lambda value: keys.append(value[0]))
    assert len(keys[0]) == control.KEY_BYTES
    assert any(seen)
    assert not any(keys[0] in data for data in seen)
    for end in ends:
        end.close()


def test_a_rank_does_not_believe_a_stranger_who_listens(monkeypatch):
    monkeypatch.setattr(control, "CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as one:
                        one.recv(control.HELLO.size)
                        one.sendall(bytes(control.CHALLENGE_BYTES + control.PROOF_BYTES))

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with pytest.raises(TrainingError, match=r"someone else answers.*GLOO_SOCKET_IFNAME"):
            control._connect(1, lambda value: (bytes(control.KEY_BYTES), port, "127.0.0.1"))


# Where it listens


def interface_of(address):
    return next(name for _, name in socket.if_nameindex() if sockets.address_of(name) == address)


def test_the_named_interface_comes_first(monkeypatch):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: dist.PrefixStore("a", store))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", f"nosuch0,{interface_of('127.0.0.1')}")
    assert sockets.meeting_address() == "127.0.0.1"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert sockets.meeting_address() in ("127.0.0.1", "::1")


def test_the_address_of_the_store_comes_next(monkeypatch):
    others = [sockets.address_of(name) for _, name in socket.if_nameindex()]
    other = next((one for one in others if one and one != "127.0.0.1"), None)
    if other is None:
        pytest.skip("this machine has the loopback alone")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    store = dist.TCPStore(other, 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    assert sockets.meeting_address() == other


def train_among_strangers(rank):
    """Strangers know of the port of rank 0 before the ranks do."""
    crowd, real = [], socket.create_server

    def create_server(*arguments, **options):
        server = real(*arguments, **options)
        host, port = server.getsockname()[:2]
        for _ in range(5):
            crowd.append(socket.create_connection((host, port)))
        return server

    socket.create_server = create_server
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    plan = {
        "schema": "gradtide.plan/1",
        "level": "crossiter",
        "buckets": [{"layers": ["1"], "bytes": 20, "rank": 1}, {"layers": ["0"], "bytes": 144, "rank": 0}],
    }
    start = time.monotonic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan)
    seconds = time.monotonic() - start
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(torch.full((2, 8), rank + 1.0)).sum().backward()
        optimizer.step()
    weights = [value.tolist() for value in unwrap(wrapped).state_dict().values()]
    return weights, seconds, len(crowd), os.environ.get("GLOO_SOCKET_IFNAME", "")


def test_a_job_trains_among_strangers(tmp_path):
    first, second = torch_ranks.values(2, train_among_strangers, tmp_path)
    assert first[0] == second[0]
    assert first[2] == 5
    assert max(first[1], second[1]) < control.CONNECT_S / 2
