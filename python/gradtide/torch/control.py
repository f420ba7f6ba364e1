"""Connections from rank 0 to every other rank: they announce the next piece to send and report ranks that ended.

A message has nine bytes and uses its own TCP connection. When a process dies, the kernel closes its connection, so the
other ranks know at once which rank is lost. The low-delay type of service lets announcements overtake gradients where a
port has bands (pfifo_fast). Keep-alive detects a host that disappears without closing its connection.
"""

import contextlib
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gradtide.errors import TrainingError

MESSAGE = struct.Struct("!BII")
SEND, LOST, LEFT = range(3)
"""Kinds of message: send (transfer, chunk) now; (rank) has died; (rank) has stopped training."""
NONCE_BYTES = 16
HELLO = struct.Struct(f"!{NONCE_BYTES}sI")
LOW_DELAY = 0x10  # RFC 1349, section 4: the type of service that pfifo_fast puts in its first band
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))  # seconds, seconds, times
CONNECT_S, ATTEMPT_S = 30.0, 2.0

_open: "weakref.WeakSet[Control]" = weakref.WeakSet()


class Control:
    """This rank's end of the connections.

    `share`, called once on every rank, hands a value of rank 0 to all. `heard` is called in a thread of its own with
    each message (kind, a, b).
    """

    def __init__(
        self, rank: int, size: int, share: Callable[[Any], Any], heard: Callable[[int, int, int], None]
    ) -> None:
        self.rank = rank
        self._heard = heard
        self._peers: dict[int, socket.socket] = {}
        self._left: set[int] = set()
        self._closing = False
        if rank == 0:
            self._accept(size, share)
        else:
            self._connect(rank, share)
        for peer in self._peers.values():
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)
            with contextlib.suppress(OSError):  # not for IPv6, and not everywhere allowed
                peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOW_DELAY)
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="gradtide control", daemon=True)
        self._thread.start()
        _open.add(self)

    def tell(self, kind: int, a: int, b: int = 0) -> None:
        """Send a message to every rank that this one is connected to."""
        message = MESSAGE.pack(kind, a, b)
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # who is gone is found by the thread that listens
                peer.sendall(message)

    def close(self) -> None:
        """Say good-bye, and end the connections and the thread."""
        if self._closing:
            return
        self._closing = True
        self.tell(LEFT, self.rank)
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.drop()

    def drop(self) -> None:
        """Close the sockets of this process without a word: in a forked child, they are the parent's."""
        self._closing = True
        _open.discard(self)
        for one in [*self._peers.values(), self._wake, self._woken]:
            one.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, (rank, bytearray()))
            while not self._closing:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    rank, rest = key.data
                    if not self._read(rank, rest):
                        selector.unregister(key.fileobj)

    def _read(self, rank: int, rest: bytearray) -> bool:
        """Take in what a rank has sent; `False` if that was the last of it."""
        try:
            data = self._peers[rank].recv(4096)
        except OSError:
            data = b""
        if not data:
            if rank not in self._left and not self._closing:
                self._pass_on(LOST, rank, 0)
            return False
        rest += data
        whole = len(rest) // MESSAGE.size * MESSAGE.size
        for message in MESSAGE.iter_unpack(bytes(rest[:whole])):
            self._pass_on(*message)
        del rest[:whole]
        return True

    def _pass_on(self, kind: int, a: int, b: int) -> None:
        if kind == LEFT:
            self._left.add(a)
        if self.rank == 0:
            self.tell(kind, a, b)
        self._heard(kind, a, b)

    def _accept(self, size: int, share: Callable[[Any], Any]) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        with socket.create_server(("", 0), backlog=size) as server:
            share((nonce, server.getsockname()[1], list(_addresses())))
            until = time.monotonic() + CONNECT_S
            while len(self._peers) < size - 1:
                server.settimeout(max(0.01, until - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = ", ".join(str(rank) for rank in range(1, size) if rank not in self._peers)
                    for peer in self._peers.values():
                        peer.close()
                    raise TrainingError(f"rank {missing} did not connect to rank 0 in {CONNECT_S:g} s") from None
                if (rank := _greeted(peer, nonce, size)) is None:
                    peer.close()
                else:
                    self._peers[rank] = peer

    def _connect(self, rank: int, share: Callable[[Any], Any]) -> None:
        nonce, port, addresses = share(None)
        tried = []
        for address in addresses:
            peer = None
            try:
                peer = socket.create_connection((address, port), timeout=ATTEMPT_S)
                peer.sendall(HELLO.pack(nonce, rank))
                if _received(peer, NONCE_BYTES) == nonce:
                    self._peers[0] = peer
                    return
                tried.append(f"{address}: someone else answers")
            except OSError as error:
                tried.append(f"{address}: {error}")
            if peer is not None:
                peer.close()
        raise TrainingError(
            f"rank {rank} cannot reach port {port} of rank 0 ({'; '.join(tried)}); "
            "name the network interface in GLOO_SOCKET_IFNAME"
        )


def _greeted(peer: socket.socket, nonce: bytes, size: int) -> int | None:
    """Answer a rank that knows the nonce, and return which it is; `None` for anyone else."""
    try:
        peer.settimeout(ATTEMPT_S)
        said, rank = HELLO.unpack(_received(peer, HELLO.size))
        if not secrets.compare_digest(said, nonce) or not 0 < rank < size:
            return None
        peer.sendall(nonce)
    except (OSError, struct.error):
        return None
    return int(rank)


def _received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def _addresses() -> Iterator[str]:
    """Addresses at which other ranks may find this host: the loopback, what the user has named, every interface."""
    found = ["127.0.0.1"]
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    interfaces = [name for _, name in socket.if_nameindex()]
    found += [_address_of(name) for name in sorted(interfaces, key=lambda name: name not in named)]
    found.append(os.environ.get("MASTER_ADDR", ""))
    found.append(socket.gethostname())
    yield from dict.fromkeys(address for address in found if address)


def _address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, empty if it has none (netdevice(7), SIOCGIFADDR)."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _in_forked_child() -> None:
    """Let go of the parent's connections: else they would stay open when the parent dies."""
    for control in list(_open):
        control.drop()


os.register_at_fork(after_in_child=_in_forked_child)
