"""One rank of an emulated job: it sleeps where the job computes, and exchanges real messages.

The rank works as in the emulation of Gao (2020), section 3.6.1. Rank 0 decides the order of transfers, as Horovod's
coordinator does. Another rank begins a transfer when it has received rank 0's order and has the gradients. In step s of
a collective, a rank sends its messages after it has received all messages of earlier steps.
"""

import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from gradtide.emulated.flows import CHUNK_BYTES, connect, listening, report, sleep_until

MESSAGE = struct.Struct("!IIIQ")
"""Header of a message: iteration, transfer, step, and payload in bytes. In step `NEXT`, rank 0 starts a transfer."""
NEXT = 0xFFFF_FFFF


class Rank:
    """One rank of a job, with its connections to other ranks."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        self.rank: int = plan["rank"]
        self._changed = threading.Condition()
        self._received: dict[tuple[int, int, int], int] = {}
        """Number of received messages by (iteration, transfer, step)."""
        self._began: set[tuple[int, int]] = set()
        self._ready: dict[int, set[int]] = {}
        self._done: dict[int, set[int]] = {}
        self._listener = listening(plan["port"])
        threading.Thread(target=self._accept, daemon=True).start()
        self._peers: dict[int, socket.socket] = {}
        self._locks: dict[int, threading.Lock] = {}

    def _accept(self) -> None:
        while True:
            tcp, _ = self._listener.accept()
            tcp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.plan["service"])
            threading.Thread(target=self._receive, args=(tcp,), daemon=True).start()

    def _receive(self, tcp: socket.socket) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while len(header := tcp.recv(MESSAGE.size, socket.MSG_WAITALL)) == MESSAGE.size:
            iteration, transfer, step, left = MESSAGE.unpack(header)
            while left:
                count = tcp.recv_into(buffer[: min(left, CHUNK_BYTES)])
                if not count:
                    return
                left -= count
            with self._changed:
                if step == NEXT:
                    self._began.add((iteration, transfer))
                else:
                    key = iteration, transfer, step
                    self._received[key] = self._received.get(key, 0) + 1
                self._changed.notify_all()

    def _send(self, peer: int, iteration: int, transfer: int, step: int, size: int) -> None:
        with self._locks[peer]:
            tcp = self._peers[peer]
            tcp.sendall(MESSAGE.pack(iteration, transfer, step, size))
            zeros = memoryview(bytearray(min(size, CHUNK_BYTES)))
            while size:
                part = min(size, CHUNK_BYTES)
                tcp.sendall(zeros[:part])
                size -= part

    def play(self, start_ns: int) -> None:
        """Train until the last iteration."""
        ranks = len(self.plan["addresses"])
        for peer in range(ranks):
            if peer != self.rank:
                self._peers[peer] = connect(self.plan["addresses"][peer], self.plan["port"], self.plan["service"])
                self._locks[peer] = threading.Lock()
        count = self.plan["iterations"]
        exchange = threading.Thread(target=self._exchange, args=(count,), daemon=True)
        exchange.start()
        sleep_until(start_ns + self.plan["start_ns"])
        now_ns = time.time_ns()
        # An iteration lasts from its backward pass to the next backward pass, as in the packet engine.
        for iteration in range(count + 1):
            now_ns = self._forward(iteration, now_ns)
            report(kind="iteration", job=self.plan["job"], rank=self.rank, iteration=iteration, start_ns=now_ns)
            if iteration < count:
                now_ns = self._backward(iteration, now_ns)
        exchange.join()

    def _forward(self, iteration: int, now_ns: int) -> int:
        layers, transfers = self.plan["layers"], self.plan["transfers"]
        for layer, (forward_ns, _) in enumerate(layers):
            if iteration and (not self.plan["barrier"] or layer == 0):
                needed = [
                    number
                    for number, (of_layers, _) in enumerate(transfers)
                    if self.plan["barrier"] or layer in of_layers
                ]
                now_ns = self._wait_for(iteration - 1, needed, now_ns)
            now_ns += forward_ns
            sleep_until(now_ns)
        return now_ns

    def _wait_for(self, iteration: int, transfers: Any, now_ns: int) -> int:
        """Wait until the transfers have ended. Return the end of the last one, or `now_ns` if that is later."""
        missing = set(transfers) - self._done.get(iteration, set())
        if not missing:
            return now_ns
        with self._changed:
            self._changed.wait_for(lambda: missing <= self._done.get(iteration, set()))
        return max(now_ns, time.time_ns())

    def _backward(self, iteration: int, now_ns: int) -> int:
        left = [set(of_layers) for of_layers, _ in self.plan["transfers"]]
        for layer in reversed(range(len(self.plan["layers"]))):
            now_ns += self.plan["layers"][layer][1]
            sleep_until(now_ns)
            for number, of_layers in enumerate(left):
                if layer in of_layers:
                    of_layers.discard(layer)
                    if not of_layers:
                        with self._changed:
                            self._ready.setdefault(iteration, set()).add(number)
                            self._changed.notify_all()
        return now_ns

    def _exchange(self, iterations: int) -> None:
        """Run the transfers of all iterations in the order of rank 0, at most `credit` of them concurrently."""
        slots = threading.Semaphore(self.plan["credit"])
        count = len(self.plan["transfers"])
        for iteration in range(iterations):
            begun: set[int] = set()
            while len(begun) < count:
                slots.acquire()
                number = self._next(iteration, begun)
                begun.add(number)
                threading.Thread(target=self._transfer, args=(iteration, number, slots), daemon=True).start()

    def _next(self, iteration: int, begun: set[int]) -> int:
        """Return the next transfer: on rank 0, the most urgent ready transfer; on others, the one that rank 0 began."""

        def candidates() -> set[int]:
            ready = self._ready.get(iteration, set())
            ordered = {number for at, number in self._began if at == iteration}
            return (ready if self.rank == 0 else ready & ordered) - begun

        with self._changed:
            self._changed.wait_for(candidates)
            number = min(candidates())
        if self.rank == 0:
            for peer in self._peers:
                self._send(peer, iteration, number, NEXT, 0)
        return number

    def _transfer(self, iteration: int, number: int, slots: threading.Semaphore) -> None:
        began_ns = time.time_ns()
        for step, (to, sends) in enumerate(self.plan["transfers"][number][1]):
            for peer, size in sends:
                self._send(peer, iteration, number, step, size)

            if to:
                key = iteration, number, step
                with self._changed:
                    self._changed.wait_for(lambda key=key, to=to: self._received.get(key, 0) >= to)  # type: ignore[misc]
        with self._changed:
            self._done.setdefault(iteration, set()).add(number)
            self._changed.notify_all()
        slots.release()
        if self.rank == 0:
            report(
                kind="transfer",
                job=self.plan["job"],
                iteration=iteration,
                transfer=number,
                start_ns=began_ns,
                end_ns=time.time_ns(),
            )
