"""Background flows on the testbed: every flow is a TCP connection of its own; one thread handles all.

A flow is timed as in the simulation: from its SYN until its sender knows that the receiver has everything and has
closed. The sockets are created beforehand, each in its host's namespace, so that only `connect` remains when a flow is
due.
"""

import contextlib
import heapq
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from network import address, inside

PORT = 9000
ZEROS = memoryview(bytes(2**18))
WAKE_BYTES = 2**14
"""Low-water mark of receivers: they wake up once per this number of bytes, or at the end of a flow, not per packet."""


@dataclass(frozen=True)
class Flow:
    """A flow of the schedule: start in seconds, hosts, bytes."""

    start: float
    src: int
    dst: int
    size: int


@dataclass
class _Sending:
    index: int
    one: socket.socket
    left: int
    began: float = 0.0


@dataclass
class _State:
    poll: "select.epoll" = field(default_factory=select.epoll)
    sending: dict[int, _Sending] = field(default_factory=dict)
    receiving: dict[int, socket.socket] = field(default_factory=dict)


def play(
    flows: Sequence[Flow], hosts: int, service: int, patience: float = 10.0
) -> "tuple[list[float | None], list[float]]":
    """Send each flow at its start time.

    Args:
        flows: flows in order of start; starts count from now.
        hosts: number of hosts of the network.
        service: type of service of the data; acknowledgements carry none, as in the simulation.
        patience: seconds after the last start in which flows may still end.

    Returns:
        Completion time of each flow in seconds, `None` if it has not ended; and the delay of each start, which shows
        whether the machine kept up.
    """
    late: list[float] = []
    took: list[float | None] = [None] * len(flows)
    with contextlib.ExitStack() as stack:
        state = _State()
        stack.callback(state.poll.close)
        listeners = {}
        waiting: list[_Sending] = []
        for host in range(hosts):
            with inside(host):
                listener = stack.enter_context(socket.create_server((address(host, routed=True), PORT), backlog=1024))
                listener.setblocking(False)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_BYTES)
                listeners[listener.fileno()] = listener
                state.poll.register(listener, select.EPOLLIN)
                for index, flow in enumerate(flows):
                    if flow.src == host:
                        one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                        one.setblocking(False)
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
                        waiting.append(_Sending(index, one, flow.size))
        due = [(flows[each.index].start, each.index, each) for each in waiting]
        heapq.heapify(due)
        begin = time.perf_counter()
        until = begin + (flows[-1].start if flows else 0.0) + patience
        buffer = bytearray(2**20)
        while due or state.sending:
            now = time.perf_counter()
            if now > until:
                break
            while due and begin + due[0][0] <= now:
                flow = heapq.heappop(due)[2]
                flow.began = time.perf_counter()
                late.append(flow.began - begin - flows[flow.index].start)
                flow.one.connect_ex((address(flows[flow.index].dst, routed=True), PORT))
                state.sending[flow.one.fileno()] = flow
                state.poll.register(flow.one, select.EPOLLOUT)
            wait = max(0.0, begin + due[0][0] - time.perf_counter()) if due else 0.1
            for number, _ in state.poll.poll(wait):
                if number in listeners:
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            peer = listeners[number].accept()[0]
                            peer.setblocking(False)
                            state.receiving[peer.fileno()] = peer
                            state.poll.register(peer, select.EPOLLIN)
                elif number in state.receiving:
                    _receive(state, number, buffer)
                elif number in state.sending:
                    _send(state, number, took)
        for peer in state.receiving.values():
            peer.close()
    return took, late


def connect_time(hosts: int, count: int = 200) -> float:
    """Return the median time in seconds to connect two hosts of an idle network: a round trip of small packets."""
    with inside(1):
        listener = socket.create_server((address(1, routed=True), PORT), backlog=count)
    times = []
    with listener:
        for _ in range(count):
            with inside(0):
                one = socket.socket()
            with one:
                start = time.perf_counter()
                one.connect((address(1, routed=True), PORT))
                times.append(time.perf_counter() - start)
    return sorted(times)[count // 2]


def _receive(state: _State, number: int, buffer: bytearray) -> None:
    peer = state.receiving[number]
    try:
        while count := peer.recv_into(buffer):
            if count < len(buffer):
                return
    except BlockingIOError:
        return
    except OSError:
        pass
    state.poll.unregister(peer)
    del state.receiving[number]
    peer.close()


def _send(state: _State, number: int, took: list[float | None]) -> None:
    flow = state.sending[number]
    try:
        if flow.left:
            while flow.left:
                flow.left -= flow.one.send(ZEROS[: flow.left])
            flow.one.shutdown(socket.SHUT_WR)
            state.poll.modify(flow.one, select.EPOLLIN)
        elif not flow.one.recv(1):
            took[flow.index] = time.perf_counter() - flow.began
            _end(state, flow)
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        _end(state, flow)


def _end(state: _State, flow: _Sending) -> None:
    state.poll.unregister(flow.one)
    del state.sending[flow.one.fileno()]
    flow.one.close()
