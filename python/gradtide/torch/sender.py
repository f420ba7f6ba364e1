"""Sums tensors over the ranks, most urgent piece first, for the levels `priority` and `crossiter`.

Collectives must begin in the same order on all ranks, and rank 0 decides the order. Whenever fewer than `IN_FLIGHT`
pieces or `IN_FLIGHT_BYTES` are being sent, it takes the ready piece of least rank, announces it and begins. The other
ranks begin it when they have both the announcement and the piece. No thread waits for the network: a piece is
begun by the event that makes it sendable (the backward pass, the end of another piece, an announcement).
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradtide.errors import RankLostError, TrainingError
from gradtide.torch.control import LEFT, LOST, SEND, Control

IN_FLIGHT = 2
"""Pieces being sent at once: one on the wire, and one that is announced meanwhile. More would delay urgent pieces."""
IN_FLIGHT_BYTES = 2**20
"""Up to so many bytes (8 ms at 1 Gbit/s), more than `IN_FLIGHT` pieces may be sent at once: no urgent piece is late."""
GRACE_S = 3.0
"""How long a failed collective waits for the connections to report which rank has ended."""


class Transfer:
    """A flat tensor that is replaced by its sum over all ranks."""

    def __init__(self, key: int, pieces: "tuple[torch.Tensor, ...]", done: Callable[[], None] | None) -> None:
        self.key = key  # names it on all ranks; one at a time has a key
        self.pieces = pieces  # parts of the tensor that are sent by themselves
        self.left = len(pieces)  # pieces that are not summed yet
        self.issued = 0
        self.done = done  # called when none is left, or when it has failed; from any thread


@dataclass
class Tally:
    """Counters of a sender.

    Attributes:
        pieces, bytes: begun so far.
        busy_s: time in which at least one was under way.
        waited_s: time in which training waited for a sum.
    """

    pieces: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class Sender:
    """Sums tensors over a process group that nobody else uses, within `timeout_s`; `share` is as for `Control`.

    A piece has `piece_bytes` at most, or is a whole tensor if that is `None`.
    """

    def __init__(self, group: Any, share: Callable[[Any], Any], *, piece_bytes: int | None, timeout_s: float) -> None:
        self.tally = Tally()
        self.fault: TrainingError | None = None
        self._group = group
        self._leads = dist.get_rank(group) == 0
        self._piece_bytes = piece_bytes
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: list[tuple[int, int, int, int]] = []  # the first rank's heap: rank, submission, key, piece
        self._announced: deque[tuple[int, int]] = deque()  # the others' orders: key, piece
        self._open: dict[int, Transfer] = {}  # with pieces that are not begun
        self._told: set[Transfer] = set()  # whose `done` is still to be called
        self._departed: int | None = None
        self._in_flight = self._bytes_in_flight = 0
        self._submitted = 0
        self._since = 0.0
        self._pumping = False
        self._control = Control(dist.get_rank(group), dist.get_world_size(group), share, self._heard)

    def submit(self, key: int, rank: int, tensor: "torch.Tensor", done: Callable[[], None] | None = None) -> Transfer:
        """Begin to sum a flat tensor in place; the smaller `rank` is sent first."""
        per_piece = tensor.numel()
        if self._piece_bytes is not None:
            per_piece = max(1, self._piece_bytes // tensor.element_size())
        transfer = Transfer(key, tensor.split(per_piece), done)
        with self._changed:
            if self.fault is not None:
                raise self.fault
            if key in self._open:
                raise TrainingError(f"transfer {key} is submitted while its last sum is under way")
            self._open[key] = transfer
            if done is not None:
                self._told.add(transfer)
            if self._leads:
                self._submitted += 1
                for piece in range(len(transfer.pieces)):
                    heapq.heappush(self._ready, (rank, self._submitted, key, piece))
            self._pump()
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Wait until a tensor is summed.

        Raises:
            RankLostError: if another rank has ended.
            TrainingError: if the sum fails or takes longer than the group's timeout.
        """
        if transfer.left == 0:
            return
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: transfer.left == 0 or self._is_lost(transfer), self._timeout_s)
            if transfer.left > 0:
                self.check()
                raise self._overdue()
        self.tally.waited_s += time.perf_counter() - start

    def watch(self, work: Any) -> None:
        """Wait for a collective of another group, until it ends or cannot end any more."""
        done: list[Any] = []

        def ended(future: Any) -> None:
            with self._changed:
                done.append(future)
                self._changed.notify_all()

        work.get_future().add_done_callback(ended)
        with self._changed:
            if not done:
                self._changed.wait_for(lambda: done or self.fault or self._departed is not None, self._timeout_s)
            if not done and self.fault is None:  # who has stopped may have taken part, and others be late
                self._changed.wait_for(lambda: done or self.fault, GRACE_S)
            if done:
                self.explain(done[0].value)
            else:
                self.check()
                raise self._overdue() if self._departed is None else self._stopped()

    def explain(self, action: Callable[[], Any]) -> Any:
        """Run an action; raise `RankLostError` in place of the backend's error, if a rank's end is the reason."""
        try:
            return action()
        except RuntimeError as error:
            if "gloo" not in str(error) or isinstance(error, TrainingError):
                raise
            with self._changed:
                known = lambda: isinstance(self.fault, RankLostError) or self._departed is not None  # noqa: E731
                self._changed.wait_for(known, GRACE_S)
                if isinstance(self.fault, RankLostError):
                    raise self.fault from error
                if self._departed is not None:
                    raise self._stopped() from error
            raise TrainingError(f"a collective failed: {_first_line(error)}") from error

    def check(self) -> None:
        """Raise the first failure, if there is one; a lost rank takes precedence over errors that it caused."""
        if self.fault is not None:
            with self._changed:
                self._changed.wait_for(lambda: isinstance(self.fault, RankLostError), GRACE_S)
            raise self.fault

    def close(self) -> None:
        """End the connections and their thread; sums in progress are abandoned."""
        with self._changed:
            ended = self._fail(TrainingError("the model is unwrapped"))
        _tell(ended)
        self._control.close()

    # Called with the lock held

    def _pump(self) -> None:
        """Begin every piece that may begin."""
        if self._pumping:  # a piece that ends while it is begun
            return
        self._pumping = True
        try:
            while self.fault is None:
                if self._leads:
                    is_full = self._in_flight >= IN_FLIGHT and self._bytes_in_flight >= IN_FLIGHT_BYTES
                    if not self._ready or is_full or self._departed is not None:
                        break
                    *_, key, piece = heapq.heappop(self._ready)
                    self._control.tell(SEND, key, piece)
                else:
                    if not self._announced or self._announced[0][0] not in self._open:
                        break
                    key, piece = self._announced.popleft()
                self._begin(self._open[key], piece)
        finally:
            self._pumping = False

    def _begin(self, transfer: Transfer, piece: int) -> None:
        tensor = transfer.pieces[piece]
        if self._in_flight == 0:
            self._since = time.perf_counter()
        self._in_flight += 1
        self._bytes_in_flight += tensor.nbytes
        transfer.issued += 1
        if transfer.issued == len(transfer.pieces):
            # Its key is free: the next sum of that name can only be announced after this one has ended on the first
            # rank, and so cannot be taken for it.
            del self._open[transfer.key]
        self.tally.pieces += 1
        self.tally.bytes += tensor.nbytes
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        work.get_future().add_done_callback(lambda future: self._ended(transfer, tensor.nbytes, future))

    def _is_lost(self, transfer: Transfer) -> bool:
        """Whether a sum can no longer be completed."""
        is_begun = transfer.issued == len(transfer.pieces) or bool(self._announced)
        if self.fault is None and self._departed is not None and not is_begun:
            self.fault = self._stopped()
        return self.fault is not None

    def _stopped(self) -> RankLostError:
        assert self._departed is not None
        return RankLostError(self._departed, "has stopped training while others go on")

    def _overdue(self) -> TrainingError:
        whose = "rank 0 has announced nothing that this rank has" if not self._in_flight else "a sum is not complete"
        return TrainingError(f"no gradient within the process group's {self._timeout_s:g} s: {whose}; a rank hangs")

    # Called from other threads

    def _ended(self, transfer: Transfer, size: int, future: Any) -> None:
        """A piece is summed, or has failed."""
        with self._changed:
            self._in_flight -= 1
            self._bytes_in_flight -= size
            if self._in_flight == 0:
                self.tally.busy_s += time.perf_counter() - self._since
            ended: list[Transfer] = []
            try:
                future.value()
            except Exception as error:  # whatever the backend raises
                fault = TrainingError(f"the sum of gradients failed: {_first_line(error)}")
                ended = self._fail(self._stopped() if self._departed is not None else fault)
            else:
                transfer.left -= 1
                if transfer.left == 0:
                    self._changed.notify_all()
                    if transfer in self._told:
                        self._told.remove(transfer)
                        ended = [transfer]
            self._pump()
        _tell(ended)

    def _heard(self, kind: int, a: int, b: int) -> None:
        """A message of the control connection."""
        ended: list[Transfer] = []
        with self._changed:
            if kind == SEND:
                self._announced.append((a, b))
                self._pump()
            elif kind == LOST:  # where one has stopped before, that is why this one has ended
                died = RankLostError(a, "has ended (its process died or its host is unreachable)")
                ended = self._fail(died if self._departed is None else self._stopped())
            elif kind == LEFT:
                self._departed = a if self._departed is None else self._departed
                self._changed.notify_all()
        _tell(ended)

    def _fail(self, fault: TrainingError) -> list[Transfer]:
        """Record why training cannot go on, a lost rank before its consequences; return the transfers to notify."""
        if self.fault is None or (isinstance(fault, RankLostError) and not isinstance(self.fault, RankLostError)):
            self.fault = fault
        self._changed.notify_all()
        ended, self._told = list(self._told), set()
        return ended


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


def _tell(transfers: list[Transfer]) -> None:
    for transfer in transfers:
        assert transfer.done is not None
        transfer.done()
