"""Control connections between rank 0 and all other ranks, for announcements of pieces to send and for heartbeats.

Rank 0 listens on one port of the process group's interface only until all ranks have connected. The port and a random
key are distributed over the process group. Both ends prove knowledge of the key without sending it:

    rank r    challenge r, r
    rank 0    challenge 0, HMAC(key, 0, challenge r, challenge 0)
    rank r    HMAC(key, r, challenge 0, challenge r)

A connection without this proof is closed after `GREETING_S`, and does not delay the others. The connections transport
only messages of 13 bytes. If a process dies, the kernel closes its connection, which identifies the lost rank at once;
TCP_USER_TIMEOUT detects hosts that disappear without closing theirs. With the low-delay type of service, announcements
overtake gradients at ports with priority bands (pfifo_fast).
"""

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from gradtide.errors import TrainingError
from gradtide.system import in_forked_children
from gradtide.torch.sockets import meeting_address

MESSAGE = struct.Struct("!BIQ")
SEND, BEAT, QUERY, LEFT, FAILED, LOST, HANGS = range(7)
"""Kinds of message (kind, a, b).

SEND: start piece b of transfer a now. BEAT: rank a has reached step b. QUERY: rank a asks which rank is missing. LEFT
and FAILED: rank a has stopped after step b, regularly or because of an error. LOST: rank a's connection has ended.
HANGS: rank a has made no progress for b milliseconds.
"""
RELAYED = (LEFT, FAILED, LOST, HANGS)
"""Kinds of message that rank 0 forwards to every rank."""

KEY_BYTES = 32
CHALLENGE_BYTES = PROOF_BYTES = 32  # SHA-256
HELLO = struct.Struct(f"!{CHALLENGE_BYTES}sI")
LOW_DELAY = 0x10
"""Type of service "minimize delay" (RFC 1349, section 4); pfifo_fast sends packets with it in its first band."""
USER_TIMEOUT_MS = 20_000
"""Longest time for which sent data may be unacknowledged, in milliseconds (tcp(7), TCP_USER_TIMEOUT)."""
CONNECT_S = 30.0
"""Time limit in seconds for all ranks to connect."""
GREETING_S = 5.0
"""Time limit in seconds for the authentication of a connection."""
MAX_GREETINGS = 256
"""Limit of unauthenticated connections, in addition to one per rank. If it is exceeded, the oldest is closed."""

_open: "weakref.WeakSet[Control]" = weakref.WeakSet()


class Control:
    """This rank's end of the control connections.

    Every rank calls `share` once, which broadcasts a value from rank 0. A separate thread calls `on_message` with each
    received message (kind, a, b), and `tick` every `tick_s` seconds.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        share: Callable[[Any], Any],
        on_message: Callable[[int, int, int], None],
        tick: Callable[[], None] = lambda: None,
        tick_s: float = 1.0,
    ) -> None:
        self.rank = rank
        self._on_message, self._tick, self._tick_s = on_message, tick, tick_s
        self._left: set[int] = set()
        self._closing = False
        self._sending = threading.Lock()  # keeps messages of several threads from interleaving
        self._peers = _accept(size, share) if rank == 0 else {0: _connect(rank, share)}
        for peer in self._peers.values():
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
            with contextlib.suppress(OSError):  # IPv6, or not permitted
                peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOW_DELAY)
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="gradtide control", daemon=True)
        _open.add(self)

    def start(self) -> None:
        """Start the thread that receives messages."""
        self._thread.start()

    def send(self, kind: int, a: int, b: int = 0) -> None:
        """Send a message to every rank that this one is connected to."""
        message = MESSAGE.pack(kind, a, b)
        with self._sending:
            for peer in self._peers.values():
                with contextlib.suppress(OSError):  # the receiving thread detects closed connections
                    peer.sendall(message)

    def close(self) -> None:
        """Close the connections and end the thread. If LEFT or FAILED was not sent before, this rank counts as lost."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.drop()

    def drop(self) -> None:
        """Close the sockets but do not shut down the connections, because in a forked child the parent uses them."""
        self._closing = True
        _open.discard(self)
        for one in [*self._peers.values(), self._wake, self._woken]:
            one.close()

    def _listen(self) -> None:
        due = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, (rank, bytearray()))
            while not self._closing:
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.data is None:
                        return
                    rank, rest = key.data
                    if not self._read(rank, rest):
                        selector.unregister(key.fileobj)
                if time.monotonic() >= due:
                    self._tick()
                    due = time.monotonic() + self._tick_s

    def _read(self, rank: int, rest: bytearray) -> bool:
        """Receive and handle data of a rank; return `False` at the end of its connection."""
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
        if kind in (LEFT, FAILED):
            self._left.add(a)
        if self.rank == 0 and kind in RELAYED:
            self.send(kind, a, b)
        self._on_message(kind, a, b)


def _proof(key: bytes, rank: int, *challenges: bytes) -> bytes:
    return hmac.digest(key, struct.pack("!I", rank) + b"".join(challenges), "sha256")


def _accept(size: int, share: Callable[[Any], Any]) -> dict[int, socket.socket]:
    """Return an authenticated connection to every other rank, by rank."""
    key, host = secrets.token_bytes(KEY_BYTES), meeting_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    peers: dict[int, socket.socket] = {}
    greetings: list[_Greeting] = []  # the oldest first
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        server = stack.enter_context(socket.create_server((host, 0), family=family, backlog=size + MAX_GREETINGS))
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        share((key, server.getsockname()[1], host))
        until = time.monotonic() + CONNECT_S
        while len(peers) < size - 1 and time.monotonic() < until:
            for found, _ in selector.select(GREETING_S / 10):
                greeting = found.data
                if greeting is None:
                    with contextlib.suppress(OSError):  # closed meanwhile
                        greetings.append(_Greeting(server.accept()[0], key, size))
                        selector.register(greetings[-1].socket, selectors.EVENT_READ, greetings[-1])
                elif greeting.is_over():
                    selector.unregister(greeting.socket)
                    greetings.remove(greeting)
                    if greeting.is_proved and greeting.rank not in peers:
                        peers[greeting.rank] = greeting.socket
                    else:
                        greeting.socket.close()
            while greetings and (len(greetings) > size + MAX_GREETINGS or greetings[0].until < time.monotonic()):
                selector.unregister(greetings[0].socket)
                greetings.pop(0).socket.close()
    for greeting in greetings:
        greeting.socket.close()
    if len(peers) < size - 1:
        for peer in peers.values():
            peer.close()
        missing = ", ".join(str(rank) for rank in range(1, size) if rank not in peers)
        raise TrainingError(f"rank {missing} did not connect to rank 0 in {CONNECT_S:g} s")
    return peers


class _Greeting:
    """Rank 0's end of a connection during its authentication."""

    def __init__(self, one: socket.socket, key: bytes, size: int) -> None:
        one.setblocking(False)
        self.socket, self.until = one, time.monotonic() + GREETING_S
        self.rank, self.is_proved = 0, False
        self._key, self._size = key, size
        self._data = self._expected = b""

    def is_over(self) -> bool:
        """Receive available data; return whether the authentication has ended, with or without success."""
        wanted = len(self._expected) or HELLO.size
        try:
            more = self.socket.recv(wanted - len(self._data))
            self._data += more
            if not more or len(self._data) < wanted:
                return not more
            if self._expected:
                self.is_proved = hmac.compare_digest(self._data, self._expected)
                return True
            theirs, self.rank = HELLO.unpack(self._data)
            if not 0 < self.rank < self._size:
                return True
            ours, self._data = secrets.token_bytes(CHALLENGE_BYTES), b""
            self._expected = _proof(self._key, self.rank, ours, theirs)
            self.socket.sendall(ours + _proof(self._key, 0, theirs, ours))  # cannot block: fits the empty send buffer
        except OSError:
            return True
        return False


def _connect(rank: int, share: Callable[[Any], Any]) -> socket.socket:
    key, port, host = share(None)
    until, said = time.monotonic() + CONNECT_S, ""
    while (left := until - time.monotonic()) > 0:
        try:
            peer = socket.create_connection((host, port), timeout=min(left, GREETING_S))
            try:
                theirs = secrets.token_bytes(CHALLENGE_BYTES)
                peer.sendall(HELLO.pack(theirs, rank))
                answer = _received(peer, CHALLENGE_BYTES + PROOF_BYTES)
                ours, proof = answer[:CHALLENGE_BYTES], answer[CHALLENGE_BYTES:]
                if hmac.compare_digest(proof, _proof(key, 0, theirs, ours)):
                    peer.sendall(_proof(key, rank, ours, theirs))
                    return peer
                said = "someone else answers"
            except BaseException:
                peer.close()
                raise
            peer.close()
        except OSError as error:
            said = str(error)
        time.sleep(min(0.2, max(0.0, until - time.monotonic())))
    raise TrainingError(
        f"rank {rank} cannot reach port {port} of rank 0 ({host}: {said}); "
        "name the network interface in GLOO_SOCKET_IFNAME"
    )


def _received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def _in_forked_child() -> None:
    """Close inherited copies of the parent's connections, which would keep them open after the parent's death."""
    for control in list(_open):
        control.drop()


in_forked_children(_in_forked_child)
