"""Bursts on real sockets, announced to the switches on their way as PCN does (Kang et al. 2021, section 3.1).

    bursts(host, …)     sender (a worker): announces a burst, waits for the answer, sends the burst, waits for the
                        confirmation of its arrival, pauses
    receive(…)          receiver: answers announcements, receives bursts

Packets on the wire:

    START, ACK          UDP between the two ports of the burst's TCP connection, 64 bytes on Ethernet; type in the type
                        of service (fig. 7), number of the burst in the payload
    burst               TCP; its first eight bytes are its size
    confirmation        one byte of TCP in the other direction

Senders are not authenticated, so a receiver limits the resources of each sender. A connection gets a place
(a receiving thread) once it has sent the size of its burst, a single address cannot have all places, and a slow sender
loses its place when another one needs it (`Places`).
"""

import errno
import queue
import select
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from gradtide import units
from gradtide.errors import SimulationError
from gradtide.results import Table
from gradtide.system import choose_congestion_control, hear_service, receive_marked

PORT, MAX_PORT = 7474, 65_535

START, ACK = 1 << 7, 1 << 6
"""Flags in a control packet's type of service: announcement of a burst, and its answer (fig. 7)."""
_MARK = b"PCN1"
_NUMBER = struct.Struct("!4sI10x")
"""Payload of a control packet: eighteen bytes, for the minimum Ethernet frame of 64 bytes."""
_SIZE = struct.Struct("!Q")
_ARRIVED = b"\x06"
_RETRANSMITS_AT = 100
"""Offset of `tcpi_total_retrans` in Linux's `struct tcp_info`."""

CHUNK_BYTES = 1 << 20
SILENCE_S = 60.0
"""Timeout after which a receiver closes a connection without data, or without the size of its burst. The size follows
the sender's `setup`, a few seconds at most."""
MOST_CONNECTIONS = 256
"""Number of places: connections from which a receiver receives bursts concurrently."""
MOST_OF_ADDRESS = MOST_CONNECTIONS * 3 // 4
"""Largest number of places of one address."""
MOST_WAITING = 256
"""Largest number of connections that wait for a place."""
PATIENCE_S, SLOW_BYTES_PER_S = 5.0, 1 << 16
"""After `PATIENCE_S`, a sender with a lower mean rate loses its place if another connection needs it."""
LARGEST_BYTES = 1 << 50
"""Largest valid size: the first bytes of other protocols, read as a size, are larger."""
LOOK_EVERY_S = 0.05
"""Interval at which a receiver checks its deadlines."""

TIMEOUT = "200ms"
"""Default timeout of the answer to an announcement: Linux's minimum retransmission timeout."""


class BurstError(SimulationError):
    """A burst could not be sent or received."""


def type_of_service(threshold_packets: int) -> int:
    """Return the type of service of an announcement: the START flag, and a fifth of the threshold."""
    return START | threshold_packets // units.ANNOUNCED_STEP << 2


# The sender


@dataclass(frozen=True)
class Burst:
    """A burst that has arrived.

    Attributes:
        burst: its number, from 0 on.
        start_s: time of its announcement, or of its begin without one, since the first burst.
        answer_ms: from the announcement to its answer; None without announcement, or after the timeout.
        burst_ms: from its first byte to the receiver's confirmation.
        completion_ms: from `start_s` to the confirmation, including the answer, the handshake and the setup.
        retransmits: number of retransmitted segments; None if the system does not report it.
    """

    burst: int
    start_s: float
    answer_ms: float | None
    burst_ms: float
    completion_ms: float
    retransmits: int | None


@dataclass(frozen=True)
class BurstsResult:
    """Bursts that were sent.

    Attributes:
        receiver: address and port of the receiver.
        size_bytes: size of each burst.
        announced_packets: the announced threshold; None without announcements.
        rows: one per burst.
    """

    receiver: str
    size_bytes: int
    announced_packets: int | None
    rows: list[Burst]

    @property
    def table(self) -> Table:
        """The rows as a table."""
        return Table.of({name: [getattr(row, name) for row in self.rows] for name in Burst.__dataclass_fields__})

    @property
    def summary(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {"schema": "gradtide.bursts/1", **asdict(self)}


def bursts(
    host: str,
    *,
    port: int = PORT,
    bytes: str,
    count: int = 1,
    idle: str = "0s",
    setup: str = "0s",
    start: str = "0s",
    announce: str | None = None,
    timeout: str = TIMEOUT,
    transport: str | None = None,
    on_burst: Callable[[Burst], object] | None = None,
) -> BurstsResult:
    """Send bursts to a host that runs `receive`, as a training worker does: with a pause after each.

    Args:
        host: name or address of the receiver.
        port: its port.
        bytes: payload of a burst, as in "400kB"; at least 8 bytes.
        count: number of bursts.
        idle: pause from the end of a burst to the start of the next, as in "7s".
        setup: time from the start of a burst to its first byte, for the application. The TCP handshake runs meanwhile.
        start: delay before the first burst.
        announce: threshold to announce before each burst, as in "10pkt": a multiple of 5 up to 75.
        timeout: time after which a burst begins even if its announcement is not answered.
        transport: a TCP congestion control of the system. Default: the system's.
        on_burst: called after each burst.

    Returns:
        One row per burst.

    Raises:
        ValueError: if an argument is wrong.
        BurstError: if the receiver cannot be reached, or closes a connection.

    Source:
        Kang et al. 2021, fig. 6 (sequence) and section 4 (DDLgen: bursts with pauses between them).
    """
    size_bytes = units.parse_option("bytes", units.parse_bytes, bytes)
    idle_ps, setup_ps = (
        units.parse_option("idle", units.parse_time, idle),
        units.parse_option("setup", units.parse_time, setup),
    )
    timeout_ps, start_ps = (
        units.parse_option("timeout", units.parse_time, timeout),
        units.parse_option("start", units.parse_time, start),
    )
    packets = None if announce is None else units.parse_option("announce", units.parse_announced, announce)
    if size_bytes < _SIZE.size:
        raise ValueError(f"bytes: {bytes!r} is less than {_SIZE.size} bytes, which say how long the burst is")
    if count < 1:
        raise ValueError(f"count: {count} is no number of bursts; send at least one")
    family, address = _addresses(host, port)[0]
    rows: list[Burst] = []
    time.sleep(start_ps / units.PS_PER_SECOND)
    begin_s = time.monotonic()
    for number in range(count):
        if number:
            time.sleep(idle_ps / units.PS_PER_SECOND)
        with ExitStack() as stack, _told(f"{host} port {port}"):
            udp, tcp = (stack.enter_context(one) for one in _pair(family, address))
            if transport is not None:
                _choose(tcp, transport)
            start_s = time.monotonic()
            answer_s = None if packets is None else _announce(udp, packets, number, timeout_ps / units.PS_PER_SECOND)
            wait_until_s = time.monotonic() + setup_ps / units.PS_PER_SECOND
            tcp.connect(address)
            time.sleep(max(0.0, wait_until_s - time.monotonic()))
            first_s = time.monotonic()
            _send(tcp, size_bytes)
            if tcp.recv(1) != _ARRIVED:
                raise BurstError(f"{host} port {port} closed the connection before burst {number} had arrived")
            end_s = time.monotonic()
            row = Burst(
                burst=number,
                start_s=start_s - begin_s,
                answer_ms=None if answer_s is None else 1e3 * answer_s,
                burst_ms=1e3 * (end_s - first_s),
                completion_ms=1e3 * (end_s - start_s),
                retransmits=_retransmits(tcp),
            )
        rows.append(row)
        if on_burst is not None:
            on_burst(row)
    return BurstsResult(f"{address[0]} port {port}", size_bytes, packets, rows)


def bursts_of(scenario: str, tenant: str | None = None) -> dict[str, Any]:
    """Return the arguments of `bursts` that reproduce the bursts of a scenario's tenant.

    Args:
        scenario: file or preset.
        tenant: its name; None for the only tenant that has bursts.

    Raises:
        ValueError: if there is no such tenant.
        ScenarioError: if the scenario is wrong.
    """
    from gradtide.scenario import Scenario

    data = Scenario.load(scenario).to_dict()
    tables = {name: table for name, table in data.get("traffic", {}).items() if "bursts" in table}
    if tenant is None and len(tables) == 1:
        (tenant,) = tables
    if tenant not in tables:
        known = f"tenants with bursts: {', '.join(tables)}" if tables else "no tenant of it sends bursts"
        raise ValueError(f"tenant: {scenario} needs the name of one; {known}")
    found = {key: tables[tenant]["bursts"][key] for key in ("bytes", "count", "idle", "setup", "start")}
    announce = tables[tenant].get("announce", False)
    if announce is not False:
        found["announce"] = data["cluster"]["queue"]["announced"] if announce is True else announce
    return found


def _addresses(host: str, port: int, flags: int = 0) -> list[tuple[int, tuple[Any, ...]]]:
    """Return family and address of each resolved address of a host; an empty name is this host."""
    if not 0 <= port <= MAX_PORT:  # otherwise the system would silently use another port
        raise ValueError(f"port: {port} is no port; ports end at {MAX_PORT}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        raise BurstError(f"{host or 'this host'} port {port} is no address: {error}") from None
    return [(family, address) for family, _, _, _, address in found]


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Translate socket errors to `BurstError`."""
    try:
        yield
    except ConnectionRefusedError:
        raise BurstError(f"nobody receives bursts at {where}; start there: gradtide bursts receive") from None
    except (ConnectionResetError, BrokenPipeError):
        raise BurstError(f"{where} closed the connection before the burst had arrived") from None
    except OSError as error:
        raise BurstError(f"{where}: {error.strerror or error}") from None


def _pair(family: int, address: tuple[Any, ...]) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket with the same local port, so that switches can match announcement and burst."""
    for _ in range(100):
        udp, tcp = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_STREAM)
        try:
            udp.connect(address)
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind(udp.getsockname())
        except OSError as error:
            udp.close()
            tcp.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return udp, tcp
    raise BurstError("no port of this host is free for both UDP and TCP")


def _choose(tcp: socket.socket, transport: str) -> None:
    try:
        choose_congestion_control(tcp, transport)
    except OSError as error:
        raise ValueError(f"transport: this system has no TCP {transport!r}; {error.strerror}") from None


def _mark(udp: socket.socket, service: int) -> None:
    """Set the type of service (IPv6: traffic class) of a socket's packets."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, service)
    else:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)


def _announce(udp: socket.socket, packets: int, number: int, timeout_s: float) -> float | None:
    """Announce a burst; return the time until its answer, None after the timeout."""
    payload = _NUMBER.pack(_MARK, number % 2**32)
    _mark(udp, type_of_service(packets))
    start_s = time.monotonic()
    udp.send(payload)
    while (left_s := start_s + timeout_s - time.monotonic()) > 0:
        if select.select([udp], [], [], left_s)[0] and udp.recv(64) == payload:
            return time.monotonic() - start_s
    return None


def _send(tcp: socket.socket, size_bytes: int) -> None:
    tcp.sendall(_SIZE.pack(size_bytes))
    zeros, left = memoryview(bytearray(CHUNK_BYTES)), size_bytes - _SIZE.size
    while left:
        part = min(left, CHUNK_BYTES)
        tcp.sendall(zeros[:part])
        left -= part


def _retransmits(tcp: socket.socket) -> int | None:
    if not hasattr(socket, "TCP_INFO"):
        return None
    info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS_AT + 4)
    return int(struct.unpack_from("=I", info, _RETRANSMITS_AT)[0])


# The receiver


@dataclass(frozen=True)
class Arrival:
    """A burst that a receiver has.

    Attributes:
        sender: its address.
        size_bytes: its size.
        burst_ms: from the first received byte to the last.
        announced_packets: its announced threshold; None if it was not announced.
    """

    sender: str
    size_bytes: int
    burst_ms: float
    announced_packets: int | None


def receive(*, listen: str = "", port: int = PORT, together: int = 1, count: int | None = None) -> Iterator[Arrival]:
    """Answer announcements, and yield bursts as they arrive.

    Args:
        listen: address to listen at; all of this host's if it is empty.
        port: port of UDP and TCP.
        together: number of bursts that are confirmed together, as `bursts.together` of a scenario.
        count: number of bursts to receive. Default: no limit.

    Raises:
        ValueError: if the port is none.
        BurstError: if the port is taken, or the address is not one of this host.
    """
    with Receiver(listen, port, together) as receiver:
        yield from receiver.receive(count)


@dataclass(eq=False)
class Sender:
    """A connection to a receiver.

    Attributes:
        connection: its socket.
        address: its socket address: host, port, and flow info and scope of IPv6.
        since_s: time of accept; later, time at which it got a place.
        heard_s: time of the last received bytes.
        begun_s: time at which the size of its burst was complete.
        head: bytes received before it got a place: at most those of the size.
        received_bytes: bytes received since.
    """

    connection: socket.socket
    address: tuple[Any, ...]
    since_s: float
    heard_s: float
    begun_s: float = 0.0
    head: bytes = b""
    received_bytes: int = 0

    @property
    def host(self) -> str:
        """Its address without the port."""
        return str(self.address[0])

    @property
    def size_bytes(self) -> int | None:
        """The size of its burst; None until it is received."""
        return int(_SIZE.unpack(self.head)[0]) if len(self.head) == _SIZE.size else None


class Places:
    """Admission control of a receiver: decides which connections get a place, and which are closed.

    Pure logic: times are arguments, sockets are not used. A connection waits until it has sent the size of its burst
    and a place is free. Connections of the address with the fewest places go first, so that an address with many
    connections cannot starve others. If too many wait, the oldest connection of the address with most is closed, but
    connections without a size are closed first.
    """

    def __init__(self) -> None:
        self.waiting: list[Sender] = []
        self.active: list[Sender] = []

    def arrive(self, sender: Sender) -> list[Sender]:
        """Enqueue a new connection; return the connections to close in exchange."""
        self.waiting.append(sender)
        own = [one for one in self.waiting if one.host == sender.host]
        if len(own) > MOST_OF_ADDRESS:
            return self._oldest(own)
        return self._oldest(self.waiting) if len(self.waiting) > MOST_WAITING else []

    def spare(self) -> list[Sender]:
        """Return a waiting connection to close when the system is out of file descriptors, if there is one."""
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
        """Return the connections that get a place now, and the evicted ones, to be closed."""
        admitted: list[Sender] = []
        closed: list[Sender] = []
        while (one := self._next(now_s, closed)) is not None:
            self.waiting.remove(one)
            self.active.append(one)
            one.since_s = one.heard_s = now_s
            admitted.append(one)
        return admitted, closed

    def _next(self, now_s: float, closed: list[Sender]) -> Sender | None:
        """Return the next connection to get a place; if it evicts another connection, append that to `closed`."""
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
        """Return the connections to close because a deadline has passed."""
        late = [one for one in self.waiting if one.size_bytes is None and now_s - one.since_s > SILENCE_S]
        late += [one for one in self.active if now_s - one.heard_s > SILENCE_S]
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


class Receiver:
    """Answers announcements and receives bursts from any sender; their content is discarded.

    Args:
        listen: address to listen at; all of this host's if it is empty.
        port: port of UDP and TCP; 0 for one that is free.
        together: number of bursts that are confirmed together, once all have arrived, as by a parameter server, which
            waits for the gradients of all workers.
        clock: returns the current time in seconds.

    Attributes:
        port: the port.

    Raises:
        ValueError: if the port is none.
        BurstError: if the port is taken or the address is not one of this host.
    """

    def __init__(
        self, listen: str = "", port: int = PORT, together: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._together = together
        self._clock = clock
        self._arrived: list[socket.socket] = []
        self._announced: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._places = Places()
        self._tcp: list[socket.socket] = []
        self._udp: list[socket.socket] = []
        self.port = port
        found = _addresses(listen, port, socket.AI_PASSIVE)
        failed: OSError | None = None
        # IPv4 first: IPv6 uses the same port, which may have been chosen by the system.
        for family, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            try:
                self._open(family, address)
            except OSError as error:
                failed = error
        # Failure of one address family is accepted: hosts may have only IPv4 or only IPv6.
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
                for key, _ in selector.select(LOOK_EVERY_S):
                    if key.data is not None:
                        self._hear(selector, key.data)
                    elif key.fileobj in self._udp:
                        self._answer(key.fileobj)
                    else:
                        self._accept(selector, key.fileobj)  # type: ignore[arg-type]
                self._seat(selector, arrivals)
                while not arrivals.empty():
                    received += 1
                    yield arrivals.get()

    def _accept(self, selector: selectors.BaseSelector, tcp: socket.socket) -> None:
        """Accept a connection, which then waits for the size of its burst."""
        try:
            connection, address = tcp.accept()
        except OSError as error:
            # Other errors mean that the sender has closed the connection already.
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

    def _hear(self, selector: selectors.BaseSelector, sender: Sender) -> None:
        """Read the burst size from a waiting connection; close it if the size is invalid."""
        if sender.connection.fileno() < 0:  # already closed in favour of another connection
            return
        try:
            part = sender.connection.recv(_SIZE.size - len(sender.head))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        sender.head += part
        size_bytes = sender.size_bytes
        if part and size_bytes is None:
            return
        if size_bytes is not None and _SIZE.size <= size_bytes <= LARGEST_BYTES:
            selector.unregister(sender.connection)
            sender.begun_s = self._clock()
            return
        with self._lock:
            self._places.leave(sender)
        self._drop(selector, [sender])

    def _seat(self, selector: selectors.BaseSelector, arrivals: "queue.SimpleQueue[Arrival]") -> None:
        """Start a receiving thread for each admitted connection, and close those past their deadline."""
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
            hear_service(udp)
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
        """Answer an announcement; anything else is ignored."""
        with suppress(OSError):
            payload, service, sender = receive_marked(udp, 64)
            if service & (START | ACK) == START and payload.startswith(_MARK) and len(payload) == _NUMBER.size:
                _mark(udp, service & ~3 | ACK)
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
                for part in _parts(sender.connection, size_bytes - _SIZE.size):
                    sender.received_bytes += len(part)
                    sender.heard_s = self._clock()
                burst_ms = 1e3 * (self._clock() - sender.begun_s)
                has_arrived = True
        finally:
            with self._lock:
                announced = self._announced.pop(sender.address[:2], None)
                self._places.leave(sender)
                if not has_arrived:
                    sender.connection.close()
        if has_arrived:
            self._tell(sender.connection)
            arrivals.put(Arrival(f"{sender.host} port {sender.address[1]}", size_bytes, burst_ms, announced))

    def _tell(self, connection: socket.socket) -> None:
        """Confirm the arrival to all waiting senders once the last of the group has arrived."""
        with self._lock:
            self._arrived.append(connection)
            left = [one for one in self._arrived if _has_left(one)]
            ready = [one for one in self._arrived if one not in left]
            if len(ready) < self._together:
                self._arrived, ready = ready, []
            else:
                self._arrived = []
            for one in ready:
                with suppress(OSError):
                    one.sendall(_ARRIVED)
            for one in (*ready, *left):
                one.close()


def _wake(sender: Sender) -> None:
    """Shut down a connection, to unblock the thread that reads from it."""
    with suppress(OSError):
        sender.connection.shutdown(socket.SHUT_RDWR)


def _parts(connection: socket.socket, size_bytes: int) -> Iterator[bytes]:
    """Yield received data, `size_bytes` in total."""
    while size_bytes > 0:
        part = connection.recv(min(size_bytes, CHUNK_BYTES))
        if not part:
            raise EOFError
        size_bytes -= len(part)
        yield part


def _has_left(connection: socket.socket) -> bool:
    """Whether the peer has closed a connection; anything readable means that, since an open peer sends no more data."""
    try:
        connection.setblocking(False)
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        connection.setblocking(True)
        return False
    except OSError:
        pass
    return True
