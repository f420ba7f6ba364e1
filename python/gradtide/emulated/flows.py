"""Background flows of an emulation, each over its own TCP connection."""

import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gradtide.emulated import FLOW_PORT

HEADER = struct.Struct("!QQ")
"""First bytes of each connection: number of the flow, and size of its payload in bytes."""
CHUNK_BYTES = 1 << 18
PROGRESS_S = 1.0
"""Time between reports of unfinished flows."""
_lock = threading.Lock()


def report(**row: Any) -> None:
    """Print one line of results."""
    with _lock:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def sleep_until(at_ns: int) -> None:
    """Sleep until a time of CLOCK_REALTIME."""
    while (left_ns := at_ns - time.time_ns()) > 0:
        time.sleep(left_ns * 1e-9)


def connect(address: str, port: int, service: int) -> socket.socket:
    """Return a TCP connection whose packets have the type of service `service`."""
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
    tcp.connect((address, port))
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this host."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(1024)
    return listener


class Receiver:
    """Receives flows. Reports the arrival of each flow and, every second, the bytes received of unfinished flows."""

    def __init__(self) -> None:
        self._listener = listening(FLOW_PORT)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open: dict[socket.socket, list[int]] = {}
        """By connection: number of its flow, size of the payload, and number of bytes that have not arrived."""
        self._next_report_s = time.monotonic() + PROGRESS_S

    def run(self) -> None:
        """Receive until the process ends."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while True:
            for key, _ in self._selector.select(max(self._next_report_s - time.monotonic(), 0.0)):
                if key.fileobj is self._listener:
                    tcp, _address = self._listener.accept()
                    self._selector.register(tcp, selectors.EVENT_READ)
                else:
                    self._read(key.fileobj, buffer)  # type: ignore[arg-type]
            if time.monotonic() >= self._next_report_s:
                self._report_unfinished()
                self._next_report_s = time.monotonic() + PROGRESS_S

    def _report_unfinished(self) -> None:
        at_ns = time.time_ns()
        for number, size, left in self._open.values():
            if left > 0:
                report(kind="unfinished", flow=number, bytes=size - left, at_ns=at_ns)

    def _read(self, tcp: socket.socket, buffer: memoryview) -> None:
        try:
            if tcp not in self._open:
                header = tcp.recv(HEADER.size, socket.MSG_WAITALL)
                if len(header) == HEADER.size:
                    number, size = HEADER.unpack(header)
                    self._open[tcp] = [number, size, size - HEADER.size]
                    self._end(tcp)
                    return
                count = 0
            else:
                count = tcp.recv_into(buffer)
        except OSError:
            count = 0
        if not count:
            self._selector.unregister(tcp)
            self._open.pop(tcp, None)
            tcp.close()
            return
        self._open[tcp][2] -= count
        self._end(tcp)

    def _end(self, tcp: socket.socket) -> None:
        number, _, left = self._open[tcp]
        if left <= 0:
            report(kind="received", flow=number, at_ns=time.time_ns())


def send_all(flows: Sequence[Mapping[str, Any]], start_ns: int) -> None:
    """Start every flow at its own start time, relative to `start_ns`; return when all flows are sent."""
    senders = []
    for flow in sorted(flows, key=lambda flow: int(flow["start_ns"])):
        sleep_until(start_ns + flow["start_ns"])
        sender = threading.Thread(target=_send, args=(flow,), daemon=True)
        sender.start()
        senders.append(sender)
    for sender in senders:
        sender.join()


def _send(flow: Mapping[str, Any]) -> None:
    number, size = flow["number"], max(flow["bytes"], HEADER.size)
    start_ns = time.time_ns()
    report(kind="started", flow=number, start_ns=start_ns)
    try:
        with connect(flow["address"], FLOW_PORT, flow["service"]) as tcp:
            tcp.sendall(HEADER.pack(number, size))
            zeros, left = memoryview(bytearray(CHUNK_BYTES)), size - HEADER.size
            while left:
                part = min(left, CHUNK_BYTES)
                tcp.sendall(zeros[:part])
                left -= part
            # Wait until the receiver, which has then read everything, closes the connection.
            tcp.shutdown(socket.SHUT_WR)
            tcp.recv(1)
    except OSError as error:
        report(kind="failed", flow=number, error=str(error))
