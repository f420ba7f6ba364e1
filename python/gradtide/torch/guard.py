"""Detects lost ranks, identifies them, and aborts pending collectives that wait for them.

A rank is lost when its process dies (the kernel closes its connection), when it leaves while others still need it, or
when it delays an awaited step beyond the process group's timeout. For the last case every rank sends heartbeats with
its step to rank 0, and rank 0 identifies the rank that is silent or behind. If rank 0 itself is silent, each rank
reports rank 0. All ranks then raise the same `RankLostError`.

If the main thread is blocked inside PyTorch in a collective that can never complete, the connections between the ranks
are shut down. The collective then fails, and its error is attributed to the lost rank. Hence no rank waits for
another's exit, and no gloo thread is left to call into a finalized interpreter.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import torch.distributed as dist

from gradtide.errors import RankLostError, TrainingError
from gradtide.torch import sockets
from gradtide.torch.control import BEAT, FAILED, HANGS, LEFT, LOST, QUERY, SEND, Control

GRACE_S = 3.0
"""Seconds for which a failed collective waits for the report of a lost rank, and `close` waits for collectives."""
CUT_S = 1.0
"""Seconds after the loss of a rank until collectives that have not failed by themselves are aborted."""
ITS_OUTPUT = "Its output tells why"
OF_GLOO = ("gloo", "Application timeout caused pair closure")
"""Words by which an error of gloo is distinguished from an error of the user's code."""
BEATS_PER_TIMEOUT = 10
LEAST_BEAT_S, MOST_BEAT_S = 0.2, 1.0


@dataclass
class _Peer:
    """State of a rank: steps made, time of the last step, and time of the last message, in seconds."""

    steps: int = 0
    stepped: float = field(default_factory=time.monotonic)
    last_message: float = field(default_factory=time.monotonic)


class Guard:
    """Monitors the ranks of a process group, from `wrap` to `unwrap`.

    A separate thread calls `on_send` with the pieces that rank 0 announces, and `on_left` when a rank has left.
    `earlier` are connections that carry other traffic too; the guard shuts them down only if a rank is lost.
    """

    def __init__(
        self,
        group: Any,
        on_send: Callable[[int, int], None] = lambda key, piece: None,
        on_left: Callable[[], None] = lambda: None,
        earlier: Collection[sockets.Ends] | None = None,
    ) -> None:
        self.fault: TrainingError | None = None
        self.departed: RankLostError | None = None  # error to raise if the rank that left is needed
        self.changed = threading.Condition()
        self.timeout_s = timeout_of(group).total_seconds()
        self._on_send, self._on_left = on_send, on_left
        self._rank = dist.get_rank(group)
        self._steps, self._last_step = 0, 0  # steps of this rank; last step of the rank that left, equal on all ranks
        self._awaited: dict[int, tuple[float, Callable[[], None]]] = {}  # by step: start of the wait, and callback
        # Numbers of pending collectives that call back into Python or block the main thread: in the sender's private
        # group, and in the user's groups.
        self._own_under_way = self._under_way = 0
        self._lost_at = 0.0
        size, first = dist.get_world_size(group), dist.get_global_rank(group, 0)
        self._peers = {rank: _Peer() for rank in range(size)}
        self._links = _links(group)
        self._own_links = [] if earlier is None else [pair for pair in self._links if pair not in earlier]

        def share(value: Any) -> Any:
            values = [value]
            dist.broadcast_object_list(values, first, group=group)
            return values[0]

        beat_s = min(max(self.timeout_s / BEATS_PER_TIMEOUT, LEAST_BEAT_S), MOST_BEAT_S)
        self._control = Control(self._rank, size, share, self._on_message, self._tick, beat_s)

    def start(self) -> None:
        """Start receiving: from now on `on_send` and `on_left` are called."""
        self._control.start()

    def send(self, kind: int, a: int, b: int = 0) -> None:
        """Send a message to every rank that this one is connected to."""
        self._control.send(kind, a, b)

    def step(self) -> int:
        """Begin a step, which is an operation that all ranks perform equally often, and return its number."""
        with self.changed:
            self._steps += 1
            if self.departed is not None and self._steps > self._last_step:
                self.fail(self.departed)
            if self.fault is not None:
                raise self.fault
            return self._steps

    def expect(self, done: Callable[[], None]) -> int:
        """Begin to wait for a step, and return its number; `done` is called when the step completes or never can."""
        with self.changed:
            step = self.step()
            self._awaited[step] = time.monotonic(), done
            return step

    def met(self, step: int) -> None:
        """End the wait for a step, and call its `done`."""
        with self.changed:
            _, done = self._awaited.pop(step, (0.0, lambda: None))
            self.changed.notify_all()
        done()

    def follow(self, work: Any, ended: Callable[[str], None], *, is_own: bool = False) -> None:
        """Call `ended` when a collective completes, with the backend's error or an empty text."""

        def call(future: Any) -> None:
            error = ""
            try:
                future.value()
            except Exception as raised:  # whatever the backend raises
                error = first_line(raised)
            try:
                ended(error)
            finally:
                self._count(-1, is_own)

        self._count(1, is_own)
        work.get_future().add_done_callback(call)

    def fail(self, fault: TrainingError) -> None:
        """Record why training stops, and wake all waiters; a lost rank replaces an error that it may have caused."""
        with self.changed:
            is_loss = isinstance(fault, RankLostError)
            if self.fault is None or (is_loss and not isinstance(self.fault, RankLostError)):
                self.fault, self._lost_at = fault, time.monotonic()
            awaited, self._awaited = self._awaited, {}
            self.changed.notify_all()
        for _, done in awaited.values():
            done()

    def fail_by(self, consequence: str) -> None:
        """Record an error that may be the consequence of a lost rank, and request the identity of that rank."""
        self.fail(self.departed or TrainingError(consequence))
        if not isinstance(self.fault, RankLostError):
            self._query_missing()

    def check(self) -> None:
        """Raise the first failure, if there is one; a lost rank takes precedence over errors that it caused."""
        if self.fault is not None:
            with self.changed:
                self.changed.wait_for(lambda: isinstance(self.fault, RankLostError) or self.departed, GRACE_S)
            if self.departed is not None:
                self.fail(self.departed)
            raise self.fault

    def watch(self, work: Any) -> None:
        """Wait for a collective until it completes or can no longer complete."""
        ended: list[str] = []
        self.follow(work, ended.append)
        step = self.expect(lambda: None)
        with self.changed:
            self.changed.wait_for(lambda: ended or self.fault)
        self.met(step)
        if not ended:
            self.check()
        elif ended[0]:
            self.fail_by(f"a collective failed: {ended[0]}")
            self.check()
        else:
            work.wait()  # on a GPU, only makes the current stream wait

    def explain(self, action: Callable[[], Any]) -> Any:
        """Run an action; raise `RankLostError` in place of the backend's error if a lost rank is the cause."""
        with self._inside():
            try:
                return action()
            except RuntimeError as error:
                is_gloos = any(words in str(error) for words in OF_GLOO)
                if not is_gloos or isinstance(error, TrainingError):
                    raise
                self.fail_by(f"a collective failed: {first_line(error)}")
                try:
                    self.check()
                except TrainingError as fault:
                    raise fault from error

    def close(self, *, at_exit: bool = False, failed: bool = False) -> None:
        """Close the connections and end their thread; pending collectives are waited for, then aborted.

        At process exit (`at_exit`) no collective may be pending, so connections that carry other traffic are shut down
        too. `failed`: this rank stops because of an error.
        """
        self.fail(TrainingError("the model is unwrapped"))
        self.send(FAILED if failed else LEFT, self._rank, self._steps)
        for seconds in (CUT_S, GRACE_S):
            with self.changed:
                self.changed.wait_for(lambda: not self._own_under_way and not self._under_way, seconds)
            self._cut(everything=at_exit)
        self._control.close()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._count(1, is_own=False)
        try:
            yield
        finally:
            self._count(-1, is_own=False)

    def _count(self, change: int, is_own: bool) -> None:
        with self.changed:
            self._own_under_way += change * is_own
            self._under_way += change * (not is_own)
            self.changed.notify_all()

    def _cut(self, everything: bool = False) -> None:
        """Shut down connections with pending collectives; those with other traffic only if a rank is lost."""
        if self._under_way and (everything or isinstance(self.fault, RankLostError)):
            sockets.cut(self._links)
        elif self._own_under_way:
            sockets.cut(self._own_links)

    # In the thread of the connections

    def _on_message(self, kind: int, a: int, b: int) -> None:
        if kind == SEND:
            self._on_send(a, b)
        elif kind == BEAT:
            self._note(a, b)
        elif kind == QUERY:
            self._name_the_missing()
        elif kind in (LEFT, FAILED):
            how = "by an error" if kind == FAILED else "while others go on"
            advice = ITS_OUTPUT if kind == FAILED else "Give every rank the same number of iterations"
            now = _now()
            with self.changed:
                if self.departed is None:
                    text = f"has stopped training {how}, at {now:%H:%M:%S}"
                    self.departed, self._last_step = RankLostError(a, text, now, advice), b
                is_needed = self._steps > self._last_step and bool(self._awaited or self._under_way)
            if is_needed:
                self.fail(self.departed)
            self._on_left()
        elif kind == LOST:  # a rank that stopped earlier is the cause, so its error takes precedence
            now = _now()
            how = f"has ended (its process died or its host is unreachable), noticed at {now:%H:%M:%S}"
            self.fail(self.departed or RankLostError(a, how, now, ITS_OUTPUT))
        elif kind == HANGS:
            since = _now() - timedelta(milliseconds=b)
            how = f"has not gone on since {since:%H:%M:%S} (the process group's timeout is {self.timeout_s:g} s)"
            advice = "See what it does there (py-spy dump), or give init_process_group a longer timeout"
            self.fail(RankLostError(a, how, since, advice))

    def _tick(self) -> None:
        now = time.monotonic()
        self._note(self._rank, self._steps)
        if self.fault is None:
            self.send(BEAT, self._rank, self._steps)
            with self.changed:
                oldest = min((since for since, _ in self._awaited.values()), default=now)
            if now - oldest >= self.timeout_s:
                self.fail_by(f"no gradient within the process group's {self.timeout_s:g} s: a rank hangs")
        elif isinstance(self.fault, RankLostError) and now - self._lost_at >= CUT_S:
            self._cut()

    def _note(self, rank: int, steps: int) -> None:
        peer, now = self._peers[rank], time.monotonic()
        if steps != peer.steps:
            peer.steps, peer.stepped = steps, now
        peer.last_message = now

    def _query_missing(self) -> None:
        """Request the identity of the rank that the others wait for; report rank 0 if it is silent itself."""
        silent_s = time.monotonic() - self._peers[0].last_message
        if self._rank == 0:
            self._name_the_missing()
        elif silent_s >= self.timeout_s / 2:
            self._on_message(HANGS, 0, round(1e3 * silent_s))
        else:
            self.send(QUERY, self._rank)

    def _name_the_missing(self) -> None:
        """On rank 0: identify the rank that has been silent for half the timeout, or else lags behind in steps."""
        now = time.monotonic()
        self._note(0, self._steps)
        others = [rank for rank in self._peers if rank != 0]
        rank = min(others, key=lambda rank: self._peers[rank].last_message)
        idle_s = now - self._peers[rank].last_message
        if idle_s < self.timeout_s / 2:
            rank = min(self._peers, key=lambda rank: self._peers[rank].steps)
            idle_s = now - self._peers[rank].stepped
            if idle_s < self.timeout_s / 2 or all(one.steps == self._peers[rank].steps for one in self._peers.values()):
                return
        self.send(HANGS, rank, round(1e3 * idle_s))
        self._on_message(HANGS, rank, round(1e3 * idle_s))


def timeout_of(group: Any) -> timedelta:
    """Return the timeout of a process group, preferably that of its CPU backend."""
    import torch

    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # the group has NCCL only
        backend = group._get_backend(torch.device("cuda"))
    timeout: timedelta = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return timeout


def first_line(error: Exception) -> str:
    """Return the first line of a backend's error."""
    return str(error).splitlines()[0] if str(error) else repr(error)


def _now() -> datetime:
    return datetime.now().astimezone()


def _links(group: Any) -> list[sockets.Ends]:
    """Return the endpoints of this rank's present connections to other ranks."""
    own = sockets.all_ends()
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    return list(sockets.matched(own, everyone, dist.get_rank(group)))
