"""All-reduces tensors by priority, for the levels `priority` and `crossiter`.

In this module, the `rank` of a tensor is its send priority (smaller is more urgent), and `credit` is the limit of
pieces in flight.

Collectives must start in the same order on all ranks, so rank 0 decides the order. Whenever fewer than `credit` pieces
are in flight, it announces and starts the most urgent ready piece. The other ranks start a piece as soon as they have
both its announcement and its data. No thread blocks on the network: each event (a gradient becomes ready, a piece ends,
an announcement arrives) starts the pieces for which it was the last condition.

With NCCL (`is_fixed`) the order must be fixed in advance, so there are no announcements: each rank starts a tensor when
the program submits it, and all ranks run the same program.
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
    """An in-place all-reduce of a flat tensor.

    Attributes:
        key: number that is the same on all ranks and unique among pending transfers.
        pieces: slices of the tensor that are reduced separately.
        ready: device events after which the tensor is filled.
        done: device events after which pieces are reduced.
        left: number of pieces that have no event in `done` yet.
        issued: number of pieces whose reduction has been started.
        step: number of the step in `Guard`.
        is_awaited: whether training waits for the transfer.
    """

    def __init__(
        self, key: int, pieces: "Sequence[torch.Tensor]", ready: Sequence[Any], step: int, is_awaited: bool
    ) -> None:
        self.key = key
        self.pieces = pieces
        self.ready = ready
        self.done: list[Any] = []
        self.left = len(pieces)
        self.issued = 0
        self.step = step
        self.is_awaited = is_awaited


@dataclass
class Tally:
    """Counters of a sender.

    Attributes:
        pieces, parts, bytes: totals started so far. A piece is reduced in `depth` concurrent parts.
        busy_s: seconds with at least one piece in flight.
        waited_s: seconds in which training waited for a transfer.
    """

    pieces: int = 0
    parts: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class Sender:
    """All-reduces tensors over `group`, a private process group with the same ranks as the user's group `base`.

    A tensor is sent in pieces of at most `piece_bytes`, or as a whole if `piece_bytes` is `None`. A piece is reduced in
    `depth` concurrent parts. At most `credit` pieces are in flight; they are not preempted. With `is_fixed`, pieces
    start when they are submitted, and the backend queues them. `earlier` contains the connections that this process had
    before `group` was created.
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
        # On rank 0, a heap of the pieces to start: send priority, number of the submission, key, piece. On the other
        # ranks, the announced pieces in order: key, piece.
        self._ready: list[tuple[int, int, int, int]] = []
        self._announced: deque[tuple[int, int]] = deque()
        self._open: dict[int, Transfer] = {}  # some pieces not started
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
        """Queue an in-place all-reduce of a flat tensor. A smaller `rank` is sent first.

        The tensor is read after the device events `ready`. `done` is called from any thread when the all-reduce ends or
        fails; with `done`, training counts as waiting for the transfer.
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
        """Wait until a tensor is reduced. On a GPU, only the compute stream waits for the end of the reduction.

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
        if self._pumping:  # re-entered by a piece that completed immediately
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
                        self.guard.send(SEND, key, piece)
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
            # From now on the key can be reused. Rank 0 announces its next transfer only after this one has ended there,
            # so other ranks cannot confuse the two.
            del self._open[transfer.key]
        self.tally.pieces += 1
        self.tally.bytes += tensor.nbytes
        ended = functools.partial(self._ended, transfer)
        with self.streams.behind(transfer.ready):
            self.tally.parts += sum_parts(tensor, self._depth, self._group, self.guard, ended, is_own=True)

    # Called from other threads

    def _ended(self, transfer: Transfer, works: Sequence[Any], error: str) -> None:
        """Handle the end or failure of a piece. On a GPU, the reduction is issued, but perhaps not executed yet."""
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
        """After a rank has left: fail if training waits for a transfer, because it may never be announced."""
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
    """All-reduce a flat tensor in `depth` concurrent parts, and return the number of parts.

    `ended` is called when all parts have ended or one has failed, with the backend's work objects and its error message
    (empty on success).

    Source: Caramel (2020), section 4.4: concurrent parts of a transfer keep the network busy while other parts are
    being reduced.
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
