"""Sums tensors over the ranks, most urgent piece first, for the levels `priority` and `crossiter`.

Collectives must begin in the same order on all ranks, and rank 0 decides the order. Whenever fewer pieces are being
sent than the plan's `credit`, it takes the ready piece of least rank, announces it and begins. The other ranks begin it
when they have both the announcement and the piece. No thread waits for the network: a piece is
begun by the event that makes it sendable (the backward pass, the end of another piece, an announcement).
"""

import functools
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradtide.errors import TrainingError
from gradtide.torch.control import SEND
from gradtide.torch.guard import Guard
from gradtide.torch.sockets import Ends


class Transfer:
    """A flat tensor that is replaced by its sum over all ranks."""

    def __init__(self, key: int, pieces: "Sequence[torch.Tensor]", step: int, is_awaited: bool) -> None:
        self.key = key  # names it on all ranks; one at a time has a key
        self.pieces = pieces  # parts of the tensor that are sent by themselves
        self.left = len(pieces)  # pieces that are not summed yet
        self.issued = 0
        self.step = step  # of the guard
        self.is_awaited = is_awaited  # whether training waits for it now


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
    """Sums tensors over a process group that nobody else uses, whose ranks are those of the guard's.

    A piece has `piece_bytes` at most, or is a whole tensor if that is `None`, and is summed in `depth` parts at once.
    `credit` pieces are sent at the same time; a more urgent one does not overtake them. The group has come after the
    connections in `earlier`.
    """

    def __init__(
        self,
        base: Any,
        group: Any,
        earlier: "Collection[Ends]",
        *,
        piece_bytes: int | None,
        credit: int = 1,
        depth: int = 1,
    ) -> None:
        self.tally = Tally()
        self._group = group
        self._leads = dist.get_rank(group) == 0
        self._piece_bytes, self._credit, self._depth = piece_bytes, credit, depth
        self._ready: list[tuple[int, int, int, int]] = []  # the first rank's heap: rank, submission, key, piece
        self._announced: deque[tuple[int, int]] = deque()  # the others' orders: key, piece
        self._open: dict[int, Transfer] = {}  # with pieces that are not begun
        self._in_flight = 0
        self._submitted = 0
        self._since = 0.0
        self._pumping = False
        self.guard = Guard(base, self._on_announced, self._on_left, earlier)
        self.guard.start()

    def submit(self, key: int, rank: int, tensor: "torch.Tensor", done: Callable[[], None] | None = None) -> Transfer:
        """Begin to sum a flat tensor in place; the smaller `rank` is sent first.

        `done`, if training waits for the sum, is called when it is there, or when it never will be; from any thread.
        """
        per_piece = tensor.numel()
        if self._piece_bytes is not None:
            per_piece = max(1, self._piece_bytes // tensor.element_size())
        with self.guard.changed:
            if key in self._open:
                raise TrainingError(f"transfer {key} is submitted while its last sum is under way")
            self._open[key] = transfer = Transfer(
                key, tensor.split(per_piece), self.guard.expect(done or (lambda: None)), done is not None
            )
            if self._leads:
                self._submitted += 1
                for piece in range(len(transfer.pieces)):
                    heapq.heappush(self._ready, (rank, self._submitted, key, piece))
            self._pump()
        self._on_left()
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Wait until a tensor is summed.

        Raises:
            RankLostError: if another rank is lost.
            TrainingError: if the sum fails or takes longer than the group's timeout.
        """
        if transfer.left == 0:
            return
        start = time.perf_counter()
        transfer.is_awaited = True
        self._on_left()
        with self.guard.changed:
            self.guard.changed.wait_for(lambda: transfer.left == 0 or self.guard.fault)
        if transfer.left > 0:
            self.guard.check()
        self.tally.waited_s += time.perf_counter() - start

    # Called with the guard's lock held

    def _pump(self) -> None:
        """Begin every piece that may begin."""
        if self._pumping:  # a piece that ends while it is begun
            return
        self._pumping = True
        try:
            while self.guard.fault is None:
                if self._leads:
                    if not self._ready or self._in_flight >= self._credit or self.guard.departed is not None:
                        break
                    *_, key, piece = heapq.heappop(self._ready)
                    self.guard.tell(SEND, key, piece)
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
        transfer.issued += 1
        if transfer.issued == len(transfer.pieces):
            # Its key is free: the next sum of that name can only be announced after this one has ended on the first
            # rank, and so cannot be taken for it.
            del self._open[transfer.key]
        self.tally.pieces += 1
        self.tally.bytes += tensor.nbytes
        ended = functools.partial(self._ended, transfer)
        sum_parts(tensor, self._depth, self._group, self.guard, ended, is_own=True)

    # Called from other threads

    def _ended(self, transfer: Transfer, error: str) -> None:
        """A piece is summed, or has failed."""
        with self.guard.changed:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.tally.busy_s += time.perf_counter() - self._since
            transfer.left -= not error
            self._pump()
        if error:
            self.guard.fail_by(f"the sum of gradients failed: {error}")
        elif transfer.left == 0:
            self.guard.met(transfer.step)

    def _on_announced(self, key: int, piece: int) -> None:
        with self.guard.changed:
            self._announced.append((key, piece))
            self._pump()

    def _on_left(self) -> None:
        """Give up what needs a rank that has left: rank 0 has announced it before that, or never will."""
        with self.guard.changed:
            departed = self.guard.departed
            is_needed = not self._announced and any(transfer.is_awaited for transfer in self._open.values())
        if departed is not None and is_needed:
            self.guard.fail(departed)


def sum_parts(
    tensor: "torch.Tensor",
    depth: int,
    group: Any,
    guard: Guard,
    ended: Callable[[str], None],
    *,
    is_own: bool = False,
) -> None:
    """Sum a flat tensor over a group in `depth` parts at once; call `ended` when the last has ended, or one fails.

    Source: Caramel (2020), section 4.4: parts of a transfer that are aggregated side by side keep the network busy
    while others are being reduced.
    """
    parts = tensor.chunk(depth)
    left, lock = [len(parts)], threading.Lock()

    def one_ended(error: str) -> None:
        with lock:
            left[0] = 0 if error and left[0] else left[0] - 1
            is_last = left[0] == 0
        if is_last:
            ended(error)

    for part in parts:
        guard.follow(dist.all_reduce(part, group=group, async_op=True), one_ended, is_own=is_own)
