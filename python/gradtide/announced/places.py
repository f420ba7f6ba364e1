"""Admission control of a receiver of bursts: which connections get a receiving thread, and which are closed.

Senders are not authenticated, so a receiver limits the resources of each sender. A connection gets a place (a receiving
thread) only after it has sent the size of its burst. A single address cannot occupy all places. A slow sender loses its
place when another connection needs it.
"""

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradtide.announced.wire import SIZE

SILENCE_S = 60.0
"""Seconds after which a receiver closes a connection that has not sent the size of its burst, or whose burst stalls.

A sender sends the size after its `setup`, the start-up time of its application, which is a few seconds at most.
"""
MOST_CONNECTIONS = 256
"""Number of places, i.e. of connections from which a receiver reads bursts at the same time."""
MOST_OF_ADDRESS = MOST_CONNECTIONS * 3 // 4
"""Maximum number of places of one address, and maximum number of connections of one address that wait for a place."""
MOST_WAITING = 256
"""Largest number of connections that wait for a place."""
PATIENCE_S, SLOW_BYTES_PER_S = 5.0, 1 << 16
"""After `PATIENCE_S` seconds, a sender with a mean rate below `SLOW_BYTES_PER_S` may lose its place to another."""


@dataclass(eq=False)
class Sender:
    """A connection to a receiver.

    Attributes:
        connection: the socket.
        address: the socket address: host, port, and for IPv6 flow info and scope.
        since_s: time at which the connection was accepted; from admission on, the time of admission.
        received_s: time of the last received bytes.
        begun_s: time at which the size of the burst was received completely.
        head: bytes received before admission: the size of the burst, or its beginning.
        received_bytes: number of bytes received since admission.
    """

    connection: socket.socket
    address: tuple[Any, ...]
    since_s: float
    received_s: float
    begun_s: float = 0.0
    head: bytes = b""
    received_bytes: int = 0

    @property
    def host(self) -> str:
        """The sender's address without the port."""
        return str(self.address[0])

    @property
    def size_bytes(self) -> int | None:
        """The size of the burst; `None` until it is received."""
        return int(SIZE.unpack(self.head)[0]) if len(self.head) == SIZE.size else None


class Places:
    """Admission control of a receiver: decides which connections get a place, and which are closed.

    Pure logic: the time is an argument, and the caller reads and closes the sockets. A connection waits until it has
    sent the size of its burst and a place is free. Connections of the address with the fewest places go first, so that
    an address with many connections cannot starve others. If too many connections wait, the oldest one of the address
    with the most waiting connections is closed; connections that have not sent a size are closed first.
    """

    def __init__(self) -> None:
        self.waiting: list[Sender] = []
        self.active: list[Sender] = []

    def arrive(self, sender: Sender) -> list[Sender]:
        """Enqueue a new connection; if too many wait now, return the one to close, else an empty list."""
        self.waiting.append(sender)
        own = [one for one in self.waiting if one.host == sender.host]
        if len(own) > MOST_OF_ADDRESS:
            return self._oldest(own)
        return self._oldest(self.waiting) if len(self.waiting) > MOST_WAITING else []

    def spare(self) -> list[Sender]:
        """Return a waiting connection to close if file descriptors run out; empty if no connection waits."""
        return self._oldest(self.waiting)

    def _oldest(self, those: Sequence[Sender]) -> list[Sender]:
        those = [one for one in those if one.size_bytes is None] or those
        if not those:
            return []
        counted = Counter(one.host for one in self.waiting)
        closed = max(those, key=lambda one: counted[one.host])
        self.waiting.remove(closed)
        return [closed]

    def admit(self, now_s: float) -> tuple[list[Sender], list[Sender]]:
        """Return the connections that get a place now, and the evicted connections, which the caller closes."""
        admitted: list[Sender] = []
        closed: list[Sender] = []
        while (one := self._next(now_s, closed)) is not None:
            self.waiting.remove(one)
            self.active.append(one)
            one.since_s = one.received_s = now_s
            admitted.append(one)
        return admitted, closed

    def _next(self, now_s: float, closed: list[Sender]) -> Sender | None:
        """Return the next connection to admit; append the connection that it evicts, if any, to `closed`."""
        held = Counter(one.host for one in self.active)
        for one in sorted((one for one in self.waiting if one.size_bytes is not None), key=lambda one: held[one.host]):
            is_many = held[one.host] >= MOST_OF_ADDRESS
            if not is_many and len(self.active) < MOST_CONNECTIONS:
                return one
            slow = [
                other for other in self.active if _is_slow(other, now_s) and (other.host == one.host or not is_many)
            ]
            if slow:
                loser = max(slow, key=lambda other: held[other.host])
                self.active.remove(loser)
                closed.append(loser)
                return one
        return None

    def expired(self, now_s: float) -> list[Sender]:
        """Remove and return the connections that have been silent for longer than `SILENCE_S`."""
        late = [one for one in self.waiting if one.size_bytes is None and now_s - one.since_s > SILENCE_S]
        late += [one for one in self.active if now_s - one.received_s > SILENCE_S]
        for one in late:
            self.leave(one)
        return late

    def leave(self, sender: Sender) -> None:
        """Free the place of a finished or closed connection."""
        for those in (self.waiting, self.active):
            if sender in those:
                those.remove(sender)


def _is_slow(sender: Sender, now_s: float) -> bool:
    passed_s = now_s - sender.since_s
    return passed_s > PATIENCE_S and sender.received_bytes < SLOW_BYTES_PER_S * passed_s
