"""Sums tensors over the ranks, most urgent piece first, for the levels `priority` and `crossiter`.

Collectives must begin in the same order on all ranks, and rank 0 decides the order. Whenever fewer pieces are being
sent than the plan's `credit`, it takes the ready piece of least rank, announces it and begins. The other ranks begin it
when they have both the announcement and the piece. No thread waits for the network: a piece is
begun by the event that makes it sendable (the backward pass, the end of another piece, an announcement).

Where the order must be fixed before, as for NCCL, nothing is announced: each rank begins a tensor where its program
hands it over, at the same place on all ranks.
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
from gradtide.torch.streams import Streams


class Transfer:
    """A flat tensor that is replaced by its sum over all ranks."""

    def __init__(
        self, key: int, pieces: "Sequence[torch.Tensor]", ready: Sequence[Any], step: int, is_awaited: bool
    ) -> None:
        self.key = key  # names it on all ranks; one at a time has a key
        self.pieces = pieces  # parts of the tensor that are sent by themselves
        self.ready = ready  # marks of the device: what has filled the tensor
        self.done: list[Any] = []  # likewise: of the pieces that are summed
        self.left = len(pieces)  # pieces whose sum has no such mark yet; on the CPU, that are not summed
        self.issued = 0
        self.step = step  # of the guard
        self.is_awaited = is_awaited  # whether training waits for it now


@dataclass
class Tally:
    """Counters of a sender.

    Attributes:
        pieces, parts, bytes: begun so far; a piece is summed in `depth` parts at once.
        busy_s: time in which at least one was under way.
        waited_s: time in which training waited for a sum.
    """

    pieces: int = 0
    parts: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class Sender:
    """Sums tensors over a process group that nobody else uses, whose ranks are those of the guard's.

    A piece has `piece_bytes` at most, or is a whole tensor if that is `None`, and is summed in `depth` parts at once.
    `credit` pieces are sent at the same time; a more urgent one does not overtake them. The group has come after the
    connections in `earlier`. With `is_fixed`, pieces begin where they are submitted, and queue in the backend.
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
        streams: Streams | None = None,
        is_fixed: bool = False,
    ) -> None:
        self.tally = Tally()
        self.streams = streams or Streams()
        self._group = group
        self.is_fixed = is_fixed
        self._leads = is_fixed or dist.get_rank(group) == 0
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

    def submit(
        self,
        key: int,
        rank: int,
        tensor: "torch.Tensor",
        ready: Sequence[Any] = (),
        done: Callable[[], None] | None = None,
    ) -> Transfer:
        """Begin to sum a flat tensor in place behind marks of `streams`; the smaller `rank` is sent first.

        `done`, if training waits for the sum, is called when it is there, or when it never will be; from any thread.
        """
        per_piece = tensor.numel()
        if self._piece_bytes is not None:
            per_piece = max(1, self._piece_bytes // tensor.element_size())
        with self.guard.changed:
            if key in self._open:
                raise TrainingError(f"transfer {key} is submitted while its last sum is under way")
            self._open[key] = transfer = Transfer(
                key, tensor.split(per_piece), ready, self.guard.expect(done or (lambda: None)), done is not None
            )
            if self._leads:
                self._submitted += 1
                for piece in range(len(transfer.pieces)):
                    heapq.heappush(self._ready, (rank, self._submitted, key, piece))
            self._pump()
        self._on_left()
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Wait until a tensor is summed; on a GPU, let computing wait by stream.

        Raises:
            RankLostError: if another rank is lost.
            TrainingError: if the sum fails or takes longer than the group's timeout.
        """
        if transfer.left > 0:
            start = time.perf_counter()
            transfer.is_awaited = True
            self._on_left()
            with self.guard.changed:
                self.guard.changed.wait_for(lambda: transfer.left == 0 or self.guard.fault)
            if transfer.left > 0:
                self.guard.check()
            self.tally.waited_s += time.perf_counter() - start
        self.streams.wait(transfer.done)

    # Called with the guard's lock held

    def _pump(self) -> None:
        """Begin every piece that may begin."""
        if self._pumping:  # a piece that ends while it is begun
            return
        self._pumping = True
        try:
            while self.guard.fault is None:
                if self._leads:
                    is_full = self._in_flight >= self._credit and not self.is_fixed
                    if not self._ready or is_full or self.guard.departed is not None:
                        break
                    *_, key, piece = heapq.heappop(self._ready)
                    if not self.is_fixed:
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
        with self.streams.behind(transfer.ready):
            self.tally.parts += sum_parts(tensor, self._depth, self._group, self.guard, ended, is_own=True)

    # Called from other threads

    def _ended(self, transfer: Transfer, works: Sequence[Any], error: str) -> None:
        """A piece is summed, or has failed; on a GPU, the device may still have to carry it out."""
        if error:
            self._left_the_network()
            self.guard.fail_by(f"the sum of gradients failed: {error}")
            return
        self.streams.end(works, functools.partial(self._summed, transfer), self._left_the_network)

    def _summed(self, transfer: Transfer, mark: Any) -> None:
        with self.guard.changed:
            transfer.done.append(mark)
            transfer.left -= 1
            is_last = transfer.left == 0
        if is_last:
            self.guard.met(transfer.step)

    def _left_the_network(self) -> None:
        with self.guard.changed:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.tally.busy_s += time.perf_counter() - self._since
            if not self.is_fixed:
                self._pump()

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
    ended: Callable[[Sequence[Any], str], None],
    *,
    is_own: bool = False,
) -> int:
    """Sum a flat tensor over a group in `depth` parts at once; call `ended` when the last has ended, or one fails.

    Return the number of parts. `ended` is called with what the backend has given for them, and with its error or an
    empty text.

    Source: Caramel (2020), section 4.4: parts of a transfer that are aggregated side by side keep the network busy
    while others are being reduced.
    """
    parts = tensor.chunk(depth)
    works: list[Any] = []
    left, lock = [len(parts)], threading.Lock()

    def one_ended(error: str) -> None:
        with lock:
            left[0] = 0 if error and left[0] else left[0] - 1
            is_last = left[0] == 0
        if is_last:
            ended(works, error)

    for part in parts:
        works.append(dist.all_reduce(part, group=group, async_op=True))
        guard.follow(works[-1], one_ended, is_own=is_own)
    return len(parts)
