"""Bursts on real sockets, announced to the switches on their way as PCN does (Kang et al. 2021, section 3.1).

    bursts(host, …)     a worker: announces a burst, waits for the answer, sends it, waits until it has arrived, pauses
    receive(…)          the other end: answers announcements, receives bursts

What switches and captures see:

    START, ACK          UDP between the two ports of the burst's TCP connection, 64 bytes on Ethernet; the type of
                        service says what it is (fig. 7), the payload which burst it is of
    the burst           TCP; its first eight bytes are its size
    has arrived         one byte of TCP in the other direction
"""

import errno
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from gradtide import units
from gradtide.errors import SimulationError
from gradtide.results import Table
from gradtide.system import choose_congestion_control, hear_service, receive_marked

PORT, MAX_PORT = 7474, 65_535

START, ACK = 1 << 7, 1 << 6
"""Flags of a control packet's type of service: a burst is announced; this is the answer (fig. 7)."""
_MARK = b"PCN1"
_NUMBER = struct.Struct("!4sI10x")
"""Payload of a control packet: eighteen bytes make the shortest Ethernet frame, 64 bytes."""
_SIZE = struct.Struct("!Q")
_ARRIVED = b"\x06"
_RETRANSMITS_AT = 100
"""Offset of `tcpi_total_retrans` in Linux's `struct tcp_info`."""

CHUNK_BYTES = 1 << 20
SILENCE_S = 60.0
"""A receiver closes a connection from which nothing has come for so long."""
MOST_CONNECTIONS = 256
LOOK_EVERY_S = 0.05
"""Between two looks of a receiver at what has arrived."""

TIMEOUT = "200ms"
"""How long a sender waits for the answer to an announcement by default: Linux's shortest retransmission timeout."""


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
        start_s: when it was announced, or begun if it was not; since the first burst.
        answer_ms: from the announcement to its answer; None if it was not announced, or not answered in time.
        burst_ms: from its first byte until the receiver has said that all of it is there.
        completion_ms: the same from `start_s` on: with the answer, the handshake and the setup.
        retransmits: segments that were sent again; None where the system does not tell.
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
        receiver: address and port.
        size_bytes: of each burst.
        announced_packets: the threshold that was announced; None if none was.
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
        """What `--json` prints."""
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
        setup: time that the application needs before the first byte. The handshake runs meanwhile.
        start: wait for so long before the first burst.
        announce: threshold to announce before each burst, as in "10pkt": a multiple of 5 up to 75.
        timeout: a burst whose announcement is not answered for so long begins all the same.
        transport: TCP congestion control, of those that the system has; its default otherwise.
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
    """Return the arguments of `bursts` for the bursts of a scenario's tenant, so that both send the same.

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
    """Return family and address of each way to a host; without a name, of this host."""
    if not 0 <= port <= MAX_PORT:  # the system would take another port, without a word
        raise ValueError(f"port: {port} is no port; ports end at {MAX_PORT}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        raise BurstError(f"{host or 'this host'} port {port} is no address: {error}") from None
    return [(family, address) for family, _, _, _, address in found]


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say of errors of sockets what they mean here."""
    try:
        yield
    except ConnectionRefusedError:
        raise BurstError(f"nobody receives bursts at {where}; start there: gradtide bursts receive") from None
    except (ConnectionResetError, BrokenPipeError):
        raise BurstError(f"{where} closed the connection before the burst had arrived") from None
    except OSError as error:
        raise BurstError(f"{where}: {error.strerror or error}") from None


def _pair(family: int, address: tuple[Any, ...]) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket of one port of this host, so that switches see which burst is announced."""
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
    """Set the type of service, or IPv6's traffic class, of what a socket sends."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, service)
    else:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)


def _announce(udp: socket.socket, packets: int, number: int, timeout_s: float) -> float | None:
    """Announce a burst; return how long its answer took, None if it did not come in time."""
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
        burst_ms: from the first byte that came to the last.
        announced_packets: the threshold that was announced for it; None if none was.
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
        together: senders that wait for one another, as `bursts.together` of a scenario.
        count: bursts to receive; without it, for ever.

    Raises:
        ValueError: if the port is none.
        BurstError: if the port is taken, or the address is not one of this host.
    """
    with Receiver(listen, port, together) as receiver:
        yield from receiver.receive(count)


class Receiver:
    """Answers announcements and receives bursts, whoever sends them; what they contain is thrown away.

    Args:
        listen: address to listen at; all of this host's if it is empty.
        port: port of UDP and TCP; 0 for one that is free.
        together: senders that wait for one another: each is told that its burst has arrived when the bursts of all are
            here, as by a parameter server, which waits for the gradients of every worker.

    Attributes:
        port: the port.

    Raises:
        ValueError: if the port is none.
        BurstError: if the port is taken or the address is not one of this host.
    """

    def __init__(self, listen: str = "", port: int = PORT, together: int = 1) -> None:
        self._together = together
        self._waiting: list[socket.socket] = []
        self._announced: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self._connected: set[socket.socket] = set()
        self._tcp: list[socket.socket] = []
        self._udp: list[socket.socket] = []
        self.port = port
        found = _addresses(listen, port, socket.AI_PASSIVE)
        failed: OSError | None = None
        # IPv4 first; its port is also that of IPv6.
        for family, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            try:
                self._open(family, address)
            except OSError as error:
                failed = error
        # A host may have only one of the two.
        if failed is not None and (not self._udp or failed.errno == errno.EADDRINUSE):
            self.close()
            where = f"{listen or 'this host'} port {self.port}"
            raise BurstError(f"cannot listen at {where}: {failed.strerror or failed}")

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and leave the senders that are connected."""
        for one in (*self._tcp, *self._udp):
            one.close()
        with self._lock:
            for one in self._connected:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            for one in self._waiting:
                one.close()

    def receive(self, count: int | None = None) -> Iterator[Arrival]:
        """Yield `count` bursts as they arrive; without it, for ever."""
        arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        received = 0
        while count is None or received < count:
            with self._lock:
                accepted = self._tcp if len(self._connected) < MOST_CONNECTIONS else []
            for ready in select.select([*accepted, *self._udp], [], [], LOOK_EVERY_S)[0]:
                if ready in self._udp:
                    self._answer(ready)
                    continue
                with suppress(OSError):  # the sender has left again
                    connection, sender = ready.accept()
                    with self._lock:
                        self._connected.add(connection)
                    threading.Thread(target=self._take, args=(connection, sender, arrivals), daemon=True).start()
            while not arrivals.empty():
                received += 1
                yield arrivals.get()

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
                    while len(self._announced) >= MOST_CONNECTIONS:
                        self._announced.pop(next(iter(self._announced)))
                    self._announced[sender[:2]] = (service >> 2 & 15) * units.ANNOUNCED_STEP

    def _take(self, connection: socket.socket, sender: tuple[Any, ...], arrivals: "queue.SimpleQueue[Arrival]") -> None:
        """Receive a burst, in a thread of its own."""
        has_arrived = False
        try:
            with suppress(OSError, EOFError):
                connection.settimeout(SILENCE_S)
                (size_bytes,) = _SIZE.unpack(b"".join(_parts(connection, _SIZE.size)))
                first_s = time.monotonic()
                for _ in _parts(connection, size_bytes - _SIZE.size):
                    pass
                burst_ms = 1e3 * (time.monotonic() - first_s)
                has_arrived = True
        finally:
            with self._lock:
                announced = self._announced.pop(sender[:2], None)
                if not has_arrived:
                    self._connected.discard(connection)
                    connection.close()
        if has_arrived:
            self._tell(connection)
            arrivals.put(Arrival(f"{sender[0]} port {sender[1]}", size_bytes, burst_ms, announced))

    def _tell(self, connection: socket.socket) -> None:
        """Tell all senders that wait that their bursts have arrived, if this one is the last of them."""
        with self._lock:
            self._waiting.append(connection)
            left = [one for one in self._waiting if _has_left(one)]
            ready = [one for one in self._waiting if one not in left]
            if len(ready) < self._together:
                self._waiting, ready = ready, []
            else:
                self._waiting = []
            for one in ready:
                with suppress(OSError):
                    one.sendall(_ARRIVED)
            for one in (*ready, *left):
                self._connected.discard(one)
                one.close()


def _parts(connection: socket.socket, size_bytes: int) -> Iterator[bytes]:
    """Yield what comes, `size_bytes` in all."""
    while size_bytes > 0:
        part = connection.recv(min(size_bytes, CHUNK_BYTES))
        if not part:
            raise EOFError
        size_bytes -= len(part)
        yield part


def _has_left(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection; it sends nothing more otherwise."""
    return bool(select.select([connection], [], [], 0)[0])
