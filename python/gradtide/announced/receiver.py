"""The receiver of announced bursts: answers announcements, receives bursts, and confirms their arrival."""

import errno
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from gradtide import units
from gradtide.announced.places import MOST_CONNECTIONS, Places, Sender
from gradtide.announced.wire import (
    ACK,
    ARRIVED,
    CHUNK_BYTES,
    MARK,
    NUMBER,
    PORT,
    SIZE,
    START,
    BurstError,
    addresses,
    set_service,
)
from gradtide.system import enable_service_type, receive_marked

LARGEST_BYTES = 1 << 50
"""Largest valid burst size in bytes. It rejects other protocols, whose first eight bytes are a larger number."""
POLL_S = 0.05
"""Interval at which a receiver checks its timeouts, in seconds."""


@dataclass(frozen=True)
class Arrival:
    """A burst that has arrived at a receiver.

    Attributes:
        sender: address of the sender.
        size_bytes: size of the burst.
        burst_ms: time from the receipt of the size, which the first eight bytes contain, to that of the last byte.
        announced_packets: marking threshold that the sender announced; `None` if it announced none.
    """

    sender: str
    size_bytes: int
    burst_ms: float
    announced_packets: int | None


def receive(*, listen: str = "", port: int = PORT, together: int = 1, count: int | None = None) -> Iterator[Arrival]:
    """Answer announcements, and yield bursts as they arrive.

    Args:
        listen: address to listen at. Default: all addresses of this host.
        port: UDP and TCP port.
        together: number of bursts that are confirmed at once, when all have arrived (`bursts.together` of a scenario).
        count: number of bursts to receive. Default: no limit.

    Raises:
        ValueError: if the port is invalid.
        BurstError: if the port is taken, or the address is not one of this host.
    """
    with Receiver(listen, port, together) as receiver:
        yield from receiver.receive(count)


class Receiver:
    """Answers announcements and receives bursts from any sender; their content is discarded.

    Args:
        listen: address to listen at. Default: all addresses of this host.
        port: UDP and TCP port; 0 chooses a free port.
        together: number of bursts that are confirmed together, once all have arrived, like the gradients of all workers
            at a parameter server.
        clock: returns the current time in seconds.

    Attributes:
        port: the UDP and TCP port.

    Raises:
        ValueError: if the port is invalid.
        BurstError: if the port is taken or the address is not one of this host.
    """

    def __init__(
        self, listen: str = "", port: int = PORT, together: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group_size = together
        self._clock = clock
        self._arrived: list[socket.socket] = []
        self._announced: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._places = Places()
        self._tcp: list[socket.socket] = []
        self._udp: list[socket.socket] = []
        self.port = port
        found = addresses(listen, port, socket.AI_PASSIVE)
        failed: OSError | None = None
        # If `port` is 0, the system chooses a port for IPv4, and IPv6 uses the same one.
        for family, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            try:
                self._open(family, address)
            except OSError as error:
                failed = error
        # A host may lack IPv4 or IPv6, so the failure of one of them is ignored unless its port is in use.
        if failed is not None and (not self._udp or failed.errno == errno.EADDRINUSE):
            self.close()
            where = f"{listen or 'this host'} port {self.port}"
            raise BurstError(f"cannot listen at {where}: {failed.strerror or failed}")

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._is_closed = True
        for one in (*self._tcp, *self._udp):
            one.close()
        with self._lock:
            for sender in self._places.active:
                _wake(sender)
            for connection in (*(one.connection for one in self._places.waiting), *self._arrived):
                connection.close()

    def receive(self, count: int | None = None) -> Iterator[Arrival]:
        """Yield `count` bursts as they arrive; without `count`, run until closed."""
        arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        received = 0
        with selectors.DefaultSelector() as selector:
            for one in (*self._tcp, *self._udp):
                selector.register(one, selectors.EVENT_READ)
            for sender in self._places.waiting:
                if sender.size_bytes is None:
                    selector.register(sender.connection, selectors.EVENT_READ, sender)
            while not self._is_closed and (count is None or received < count):
                for key, _ in selector.select(POLL_S):
                    if key.data is not None:
                        self._read_size(selector, key.data)
                    elif key.fileobj in self._udp:
                        self._answer(key.fileobj)
                    else:
                        self._accept(selector, key.fileobj)  # type: ignore[arg-type]
                self._admit(selector, arrivals)
                while not arrivals.empty():
                    received += 1
                    yield arrivals.get()

    def _accept(self, selector: selectors.BaseSelector, tcp: socket.socket) -> None:
        try:
            connection, address = tcp.accept()
        except OSError as error:
            # EMFILE and ENFILE: no file descriptor is left. After other errors, the sender has closed the connection.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                with self._lock:
                    closed = self._places.spare()
                self._drop(selector, closed)
            return
        connection.setblocking(False)
        now_s = self._clock()
        sender = Sender(connection, address, now_s, now_s)
        selector.register(connection, selectors.EVENT_READ, sender)
        with self._lock:
            closed = self._places.arrive(sender)
        self._drop(selector, closed)

    def _read_size(self, selector: selectors.BaseSelector, sender: Sender) -> None:
        """Read the burst size from a waiting connection; close it if the size is invalid."""
        if sender.connection.fileno() < 0:  # already closed in favour of another connection
            return
        try:
            part = sender.connection.recv(SIZE.size - len(sender.head))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        sender.head += part
        size_bytes = sender.size_bytes
        if part and size_bytes is None:
            return
        if size_bytes is not None and SIZE.size <= size_bytes <= LARGEST_BYTES:
            selector.unregister(sender.connection)
            sender.begun_s = self._clock()
            return
        with self._lock:
            self._places.leave(sender)
        self._drop(selector, [sender])

    def _admit(self, selector: selectors.BaseSelector, arrivals: "queue.SimpleQueue[Arrival]") -> None:
        """Start a receiving thread for each admitted connection; close evicted and silent connections."""
        now_s = self._clock()
        with self._lock:
            late = self._places.expired(now_s)
            admitted, slow = self._places.admit(now_s)
        self._drop(selector, [one for one in late if one.size_bytes is None])
        for sender in (*slow, *(one for one in late if one.size_bytes is not None)):
            _wake(sender)
        for sender in admitted:
            sender.connection.setblocking(True)
            threading.Thread(target=self._take, args=(sender, arrivals), daemon=True).start()

    def _drop(self, selector: selectors.BaseSelector, senders: Iterable[Sender]) -> None:
        for sender in senders:
            if sender.connection in selector.get_map():
                selector.unregister(sender.connection)
            sender.connection.close()

    def _open(self, family: int, address: tuple[Any, ...]) -> None:
        with ExitStack() as stack:
            tcp = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            udp = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            if family == socket.AF_INET6:
                for one in (tcp, udp):
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            enable_service_type(udp)
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((address[0], self.port, *address[2:]))
            self.port = tcp.getsockname()[1]
            udp.bind((address[0], self.port, *address[2:]))
            udp.setblocking(False)
            tcp.setblocking(False)
            tcp.listen(MOST_CONNECTIONS)
            stack.pop_all()
        self._tcp.append(tcp)
        self._udp.append(udp)

    def _answer(self, udp: socket.socket) -> None:
        with suppress(OSError):
            payload, service, sender = receive_marked(udp, 64)
            if service & (START | ACK) == START and payload.startswith(MARK) and len(payload) == NUMBER.size:
                set_service(udp, service & ~3 | ACK)
                udp.sendto(payload, sender)
                with self._lock:
                    if len(self._announced) >= MOST_CONNECTIONS:
                        counted = Counter(host for host, _ in self._announced)
                        self._announced.pop(max(self._announced, key=lambda one: counted[one[0]]))
                    self._announced[sender[:2]] = (service >> 2 & 15) * units.ANNOUNCED_STEP

    def _take(self, sender: Sender, arrivals: "queue.SimpleQueue[Arrival]") -> None:
        """Receive a burst; runs in a separate thread."""
        has_arrived = False
        size_bytes = sender.size_bytes or 0
        try:
            with suppress(OSError, EOFError):
                for part in _parts(sender.connection, size_bytes - SIZE.size):
                    sender.received_bytes += len(part)
                    sender.received_s = self._clock()
                burst_ms = 1e3 * (self._clock() - sender.begun_s)
                has_arrived = True
        finally:
            with self._lock:
                announced = self._announced.pop(sender.address[:2], None)
                self._places.leave(sender)
                if not has_arrived:
                    sender.connection.close()
        if has_arrived:
            self._confirm(sender.connection)
            arrivals.put(Arrival(f"{sender.host} port {sender.address[1]}", size_bytes, burst_ms, announced))

    def _confirm(self, connection: socket.socket) -> None:
        """Confirm a burst; with `together` above 1, confirm the whole group when its last burst has arrived."""
        with self._lock:
            self._arrived.append(connection)
            left = [one for one in self._arrived if _has_left(one)]
            ready = [one for one in self._arrived if one not in left]
            if len(ready) < self._group_size:
                self._arrived, ready = ready, []
            else:
                self._arrived = []
            for one in ready:
                with suppress(OSError):
                    one.sendall(ARRIVED)
            for one in (*ready, *left):
                one.close()


def _wake(sender: Sender) -> None:
    """Shut down a connection, to unblock the thread that reads from it."""
    with suppress(OSError):
        sender.connection.shutdown(socket.SHUT_RDWR)


def _parts(connection: socket.socket, size_bytes: int) -> Iterator[bytes]:
    while size_bytes > 0:
        part = connection.recv(min(size_bytes, CHUNK_BYTES))
        if not part:
            raise EOFError
        size_bytes -= len(part)
        yield part


def _has_left(connection: socket.socket) -> bool:
    """Return whether a peer has closed its connection. It sends nothing after a burst, so readable means closed."""
    try:
        connection.setblocking(False)
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        connection.setblocking(True)
        return False
    except OSError:
        pass
    return True
