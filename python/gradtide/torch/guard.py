"""Detects lost ranks, identifies them, and aborts pending collectives that wait for them.

A rank is lost if its process dies (the kernel closes its connection), if it leaves while others still need it, or if it
delays an awaited step beyond the process group's timeout. To identify the rank in the last case, rank 0 uses the
heartbeats in which all ranks report their step; if rank 0 itself is silent, each rank reports rank 0. All ranks then
raise the same `RankLostError`.

If the main thread is blocked inside PyTorch in a collective that can never complete, the guard shuts down the
connections between the ranks. The collective then fails, and its error is attributed to the lost rank. Hence no rank
waits until another exits, and no gloo thread calls into a finalized interpreter.
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
"""Seconds to wait after a failed collective for the report of a lost rank, and in `close` for collectives."""
CUT_S = 1.0
"""Seconds after the loss of a rank until collectives that are still pending are aborted."""
ITS_OUTPUT = "Its output has the reason"
OF_GLOO = ("gloo", "Application timeout caused pair closure")
"""Texts by which errors of gloo are distinguished from errors of the user's code."""
BEATS_PER_TIMEOUT = 10
LEAST_BEAT_S, MOST_BEAT_S = 0.2, 1.0


@dataclass
class _Peer:
    """State of a rank: number of steps, and monotonic times of the last step and message in seconds."""

    steps: int = 0
    stepped: float = field(default_factory=time.monotonic)
    last_message: float = field(default_factory=time.monotonic)


class Guard:
    """Monitors the ranks of a process group, from `wrap` to `unwrap`.

    A separate thread calls `on_send` with each piece that rank 0 announces, and `on_left` when a rank has left.
    Connections in `earlier` may have other traffic as well, so they are shut down only if a rank is lost.

    Attributes:
        fault: the error that ended training; `None` while there is none.
        departed: the error for a rank that has left, which is raised if that rank is still needed.
        _steps, _last_step: number of steps of this rank, and of the rank that left.
        _awaited: start time (monotonic, seconds) and callback of each awaited step, by number of the step.
    """

    def __init__(
        self,
        group: Any,
        on_send: Callable[[int, int], None] = lambda key, piece: None,
        on_left: Callable[[], None] = lambda: None,
        earlier: Collection[sockets.Ends] | None = None,
    ) -> None:
        self.fault: TrainingError | None = None
        self.departed: RankLostError | None = None
        self.changed = threading.Condition()
        self.timeout_s = timeout_of(group).total_seconds()
        self._on_send, self._on_left = on_send, on_left
        self._rank = dist.get_rank(group)
        self._steps, self._last_step = 0, 0
        self._awaited: dict[int, tuple[float, Callable[[], None]]] = {}
        # Two numbers of pending collectives that call back into Python or block the main thread: collectives in the
        # sender's private group, and collectives in the user's groups.
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
        """Start the thread that calls `on_send` and `on_left`."""
        self._control.start()

    def send(self, kind: int, a: int, b: int = 0) -> None:
        """Send a message to every rank that this one is connected to."""
        self._control.send(kind, a, b)

    def step(self) -> int:
        """Begin a step and return its number. A step is an operation that all ranks perform equally often."""
        with self.changed:
            self._steps += 1
            if self.departed is not None and self._steps > self._last_step:
                self.fail(self.departed)
            if self.fault is not None:
                raise self.fault
            return self._steps

    def expect(self, done: Callable[[], None]) -> int:
        """Begin to wait for a step and return its number. `done` is called when the step completes or has failed."""
        with self.changed:
            step = self.step()
            self._awaited[step] = time.monotonic(), done
            return step

    def met(self, step: int) -> None:
        """End the wait for a completed step, and call its `done`."""
        with self.changed:
            _, done = self._awaited.pop(step, (0.0, lambda: None))
            self.changed.notify_all()
        done()

    def follow(self, work: Any, ended: Callable[[str], None], *, is_own: bool = False) -> None:
        """Call `ended` when a collective ends, with the backend's error message or an empty text."""

        def call(future: Any) -> None:
            error = ""
            try:
                future.value()
            except Exception as raised:  # backends raise various types
                error = first_line(raised)
            try:
                ended(error)
            finally:
                self._count(-1, is_own)

        self._count(1, is_own)
        work.get_future().add_done_callback(call)

    def fail(self, fault: TrainingError) -> None:
        """Record why training stops, and wake all waiters. `RankLostError` replaces errors that it may have caused."""
        with self.changed:
            is_loss = isinstance(fault, RankLostError)
            if self.fault is None or (is_loss and not isinstance(self.fault, RankLostError)):
                self.fault, self._lost_at = fault, time.monotonic()
            awaited, self._awaited = self._awaited, {}
            self.changed.notify_all()
        for _, done in awaited.values():
            done()

    def fail_by(self, consequence: str) -> None:
        """Record an error that a lost rank may have caused, and ask rank 0 for the lost rank."""
        self.fail(self.departed or TrainingError(consequence))
        if not isinstance(self.fault, RankLostError):
            self._query_missing()

    def check(self) -> None:
        """Raise the recorded failure, if any. After other errors, first wait up to `GRACE_S` for a lost rank."""
        if self.fault is not None:
            with self.changed:
                self.changed.wait_for(lambda: isinstance(self.fault, RankLostError) or self.departed, GRACE_S)
            if self.departed is not None:
                self.fail(self.departed)
            raise self.fault

    def watch(self, work: Any) -> None:
        """Wait for a collective; raise `TrainingError` if it fails or can no longer complete."""
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
            work.wait()  # does not block on a GPU

    def explain(self, action: Callable[[], Any]) -> Any:
        """Run an action; if a lost rank makes the backend fail, raise `RankLostError` instead of its error."""
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
        """Wait for pending collectives and then abort them; close the control connections and end their thread.

        At process exit (`at_exit`) no collective may remain pending, so connections with other traffic are shut down as
        well. With `failed`, this rank stops because of an error.
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
        """Shut down connections with pending collectives; connections with other traffic only if a rank is lost."""
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
            how = "by an error" if kind == FAILED else "while others continue"
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
        elif kind == LOST:
            now = _now()
            how = f"has ended (its process died or its host is unreachable), noticed at {now:%H:%M:%S}"
            # If a rank has left before, it is the probable cause.
            self.fail(self.departed or RankLostError(a, how, now, ITS_OUTPUT))
        elif kind == HANGS:
            since = _now() - timedelta(milliseconds=b)
            how = f"has made no progress since {since:%H:%M:%S} (the process group's timeout is {self.timeout_s:g} s)"
            advice = "Inspect it there (py-spy dump), or give init_process_group a longer timeout"
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
        """Ask rank 0 for the rank that the others wait for, or report rank 0 itself if it is silent."""
        silent_s = time.monotonic() - self._peers[0].last_message
        if self._rank == 0:
            self._name_the_missing()
        elif silent_s >= self.timeout_s / 2:
            self._on_message(HANGS, 0, round(1e3 * silent_s))
        else:
            self.send(QUERY, self._rank)

    def _name_the_missing(self) -> None:
        """On rank 0: report the rank that was silent for half the timeout; if none was, a rank that is behind."""
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
    """Return the timeout of a process group, from its CPU backend if it has one."""
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
    """Return the addresses of this rank's current connections to other ranks."""
    own = sockets.all_ends()
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    return list(sockets.matched(own, everyone, dist.get_rank(group)))
