"""The sender of announced bursts: it announces each burst, sends it, waits for its confirmation, and pauses."""

import errno
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from gradtide import units
from gradtide.announced.wire import (
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
from gradtide.results import Table
from gradtide.system import choose_congestion_control

_RETRANSMITS_AT = 100
"""Offset of `tcpi_total_retrans` in Linux's `struct tcp_info`, in bytes."""

TIMEOUT = "200ms"
"""Default time to wait for the answer to an announcement: Linux's minimum retransmission timeout."""


@dataclass(frozen=True)
class Burst:
    """Times of a confirmed burst, measured by its sender.

    Attributes:
        burst: number of the burst, from 0.
        start_s: time from the start of the first burst to the announcement of this burst, or to its TCP handshake if it
            is not announced.
        answer_ms: time from the announcement to its answer; `None` without an announcement or after the timeout.
        burst_ms: time from the first byte to the receiver's confirmation.
        completion_ms: time from `start_s` to the confirmation, which includes `answer_ms`, the handshake and `setup`.
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
    """Result of `bursts`: the measured times of each burst that was sent.

    Attributes:
        receiver: address and port of the receiver.
        size_bytes: size of each burst.
        announced_packets: the announced marking threshold; `None` without announcements.
        rows: one entry per burst.
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


def bursts(  # noqa: PLR0913 - options of the command
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
    """Send bursts to a host that runs `receive`, with a pause after each burst, as a training worker does.

    Args:
        host: name or address of the receiver.
        port: its port.
        bytes: payload of a burst, as in "400kB"; at least 8 bytes.
        count: number of bursts.
        idle: pause from the end of a burst to the start of the next, as in "7s".
        setup: time that the application takes before the first byte of a burst. The TCP handshake runs meanwhile.
        start: delay before the first burst.
        announce: marking threshold to announce before each burst: a multiple of 5 of at most "75pkt". Default: none.
        timeout: time after which a burst begins even if its announcement is not answered.
        transport: TCP congestion control. Default: the system's.
        on_burst: called after each burst.

    Returns:
        One row per burst.

    Raises:
        ValueError: if an argument is invalid.
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
    if size_bytes < SIZE.size:
        raise ValueError(f"bytes: {bytes!r} is less than {SIZE.size} bytes, the size of its announcement")
    if count < 1:
        raise ValueError(f"count: {count} is not a number of bursts; send at least one")
    family, address = addresses(host, port)[0]
    rows: list[Burst] = []
    time.sleep(start_ps / units.PS_PER_SECOND)
    begin_s = time.monotonic()
    for number in range(count):
        if number:
            time.sleep(idle_ps / units.PS_PER_SECOND)
        with ExitStack() as stack, _as_burst_errors(f"{host} port {port}"):
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
            if tcp.recv(1) != ARRIVED:
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
        tenant: name of the tenant. Default: the only tenant with bursts.

    Raises:
        ValueError: if there is no such tenant.
        ScenarioError: if the scenario is invalid.
    """
    from gradtide.scenario import Scenario

    data = Scenario.load(scenario).to_dict()
    tables = {name: table for name, table in data.get("traffic", {}).items() if "bursts" in table}
    if tenant is None and len(tables) == 1:
        (tenant,) = tables
    if tenant not in tables:
        known = (
            f"tenants with bursts: {', '.join(tables)}" if tables else "the scenario has no tenant that sends bursts"
        )
        raise ValueError(f"tenant: name a tenant of {scenario} that sends bursts; {known}")
    found = {key: tables[tenant]["bursts"][key] for key in ("bytes", "count", "idle", "setup", "start")}
    announce = tables[tenant].get("announce", False)
    if announce is not False:
        found["announce"] = data["cluster"]["queue"]["announced"] if announce is True else announce
    return found


def type_of_service(threshold_packets: int) -> int:
    """Return the type of service of an announcement: the START bit, and the threshold in units of five packets."""
    return START | threshold_packets // units.ANNOUNCED_STEP << 2


@contextmanager
def _as_burst_errors(where: str) -> Iterator[None]:
    try:
        yield
    except ConnectionRefusedError:
        raise BurstError(f"there is no receiver at {where}; start gradtide bursts receive there") from None
    except (ConnectionResetError, BrokenPipeError):
        raise BurstError(f"{where} closed the connection before the burst had arrived") from None
    except OSError as error:
        raise BurstError(f"{where}: {error.strerror or error}") from None


def _pair(family: int, address: tuple[Any, ...]) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket with the same local port, by which switches match announcement and burst."""
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


def _announce(udp: socket.socket, packets: int, number: int, timeout_s: float) -> float | None:
    """Announce a burst; return the time until the answer in seconds, `None` after the timeout."""
    payload = NUMBER.pack(MARK, number % 2**32)
    set_service(udp, type_of_service(packets))
    start_s = time.monotonic()
    udp.send(payload)
    while (left_s := start_s + timeout_s - time.monotonic()) > 0:
        if select.select([udp], [], [], left_s)[0] and udp.recv(64) == payload:
            return time.monotonic() - start_s
    return None


def _send(tcp: socket.socket, size_bytes: int) -> None:
    tcp.sendall(SIZE.pack(size_bytes))
    zeros, left = memoryview(bytearray(CHUNK_BYTES)), size_bytes - SIZE.size
    while left:
        part = min(left, CHUNK_BYTES)
        tcp.sendall(zeros[:part])
        left -= part


def _retransmits(tcp: socket.socket) -> int | None:
    if not hasattr(socket, "TCP_INFO"):
        return None
    info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS_AT + 4)
    return int(struct.unpack_from("=I", info, _RETRANSMITS_AT)[0])
