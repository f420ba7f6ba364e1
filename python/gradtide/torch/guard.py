"""Whether all ranks still train; if one does not, which, and the end of whatever waits for it.

A rank is lost when its process dies (the kernel closes its connection), when it says good-bye and others need it, or
when something that others wait for is overdue by the process group's timeout because of it. For the last, every rank
tells rank 0 once in a while how far it is, and rank 0 names the one that is silent or behind; if rank 0 is silent, it
is that one. All ranks then raise the same `RankLostError`.

Where the main thread waits inside PyTorch for a collective that will never end, the connections between the ranks are
cut: the collective then fails, and the error is explained by the lost rank. So no rank waits for another's exit, and
no thread of gloo is left to call into an interpreter that has ended.
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
from gradtide.torch.control import ASK, BEAT, FAILED, HANGS, LEFT, LOST, SEND, Control

GRACE_S = 3.0
"""How long a failed collective waits for the connections to report which rank is lost, and `close` for what pends."""
CUT_S = 1.0
"""So long after a rank is lost, collectives that have not failed by themselves are ended."""
ITS_OUTPUT = "Its output tells why"
OF_GLOO = ("gloo", "Application timeout caused pair closure")
"""By these words an error of gloo is told from one of the user's own code."""
BEATS_PER_TIMEOUT = 10
LEAST_BEAT_S, MOST_BEAT_S = 0.2, 1.0


@dataclass
class _Known:
    """What is known of a rank: how many steps it has made, when the last, and when it was heard; seconds."""

    steps: int = 0
    stepped: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)


class Guard:
    """Watches the ranks of a process group, from `wrap` to `unwrap`.

    In a thread of its own, `on_send` is called with the pieces that rank 0 announces, and `on_left` when a rank has
    left. `earlier` are the connections that others use, too: they are cut only if a rank is lost.
    """

    def __init__(
        self,
        group: Any,
        on_send: Callable[[int, int], None] = lambda key, piece: None,
        on_left: Callable[[], None] = lambda: None,
        earlier: Collection[sockets.Ends] | None = None,
    ) -> None:
        self.fault: TrainingError | None = None
        self.departed: RankLostError | None = None  # what is the matter if its rank is needed
        self.changed = threading.Condition()
        self.timeout_s = timeout_of(group).total_seconds()
        self._on_send, self._on_left = on_send, on_left
        self._rank = dist.get_rank(group)
        self._steps, self._last_step = 0, 0  # of this rank, and of the one that has departed: equal on all ranks
        self._awaited: dict[int, tuple[float, Callable[[], None]]] = {}  # since when, and whom to tell, by step
        # Collectives that call into Python when they end, or in which the main thread waits: of a group of the
        # sender's own, and of the user's.
        self._own_under_way = self._under_way = 0
        self._lost_at = 0.0
        size, first = dist.get_world_size(group), dist.get_global_rank(group, 0)
        self._known = {rank: _Known() for rank in range(size)}
        self._links = _links(group)
        self._own_links = [] if earlier is None else [pair for pair in self._links if pair not in earlier]

        def share(value: Any) -> Any:
            values = [value]
            dist.broadcast_object_list(values, first, group=group)
            return values[0]

        beat_s = min(max(self.timeout_s / BEATS_PER_TIMEOUT, LEAST_BEAT_S), MOST_BEAT_S)
        self._control = Control(self._rank, size, share, self._heard, self._tick, beat_s)

    def start(self) -> None:
        """Begin to listen: from now on `on_send` and `on_left` are called."""
        self._control.start()

    def tell(self, kind: int, a: int, b: int = 0) -> None:
        """Send a message to every rank that this one is connected to."""
        self._control.tell(kind, a, b)

    def step(self) -> int:
        """Begin what needs all ranks and what all do equally often, and return its number."""
        with self.changed:
            self._steps += 1
            if self.departed is not None and self._steps > self._last_step:
                self.fail(self.departed)
            if self.fault is not None:
                raise self.fault
            return self._steps

    def expect(self, done: Callable[[], None]) -> int:
        """Begin to wait for a step; `done` is called when it is made, or when it never will be."""
        with self.changed:
            step = self.step()
            self._awaited[step] = time.monotonic(), done
            return step

    def met(self, step: int) -> None:
        """End a wait."""
        with self.changed:
            _, done = self._awaited.pop(step, (0.0, lambda: None))
            self.changed.notify_all()
        done()

    def follow(self, work: Any, ended: Callable[[str], None], *, is_own: bool = False) -> None:
        """Call `ended` when a collective has ended, with the backend's error or an empty text."""

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
        """Record why training cannot go on, a lost rank before its consequences, and tell whoever waits."""
        with self.changed:
            is_loss = isinstance(fault, RankLostError)
            if self.fault is None or (is_loss and not isinstance(self.fault, RankLostError)):
                self.fault, self._lost_at = fault, time.monotonic()
            awaited, self._awaited = self._awaited, {}
            self.changed.notify_all()
        for _, done in awaited.values():
            done()

    def fail_by(self, consequence: str) -> None:
        """Record what may be the consequence of a lost rank, and ask which one it is."""
        self.fail(self.departed or TrainingError(consequence))
        if not isinstance(self.fault, RankLostError):
            self._ask()

    def check(self) -> None:
        """Raise the first failure, if there is one; a lost rank takes precedence over errors that it caused."""
        if self.fault is not None:
            with self.changed:
                self.changed.wait_for(lambda: isinstance(self.fault, RankLostError) or self.departed, GRACE_S)
            if self.departed is not None:
                self.fail(self.departed)
            raise self.fault

    def watch(self, work: Any) -> None:
        """Wait for a collective, until it ends or cannot end any more."""
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
            work.wait()  # on a GPU, what is issued from now on

    def explain(self, action: Callable[[], Any]) -> Any:
        """Run an action; raise `RankLostError` in place of the backend's error, if a rank's end is the reason."""
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
        """End the connections and their thread; collectives under way are waited for, and cut off if that is long.

        At the exit of the process none may be left, and nobody needs the connections any more. `failed` says that an
        error is why this rank stops.
        """
        self.fail(TrainingError("the model is unwrapped"))
        self.tell(FAILED if failed else LEFT, self._rank, self._steps)
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
        """Cut the connections on which something pends; those that the user has, too, only if a rank is lost."""
        if self._under_way and (everything or isinstance(self.fault, RankLostError)):
            sockets.cut(self._links)
        elif self._own_under_way:
            sockets.cut(self._own_links)

    # In the thread of the connections

    def _heard(self, kind: int, a: int, b: int) -> None:
        if kind == SEND:
            self._on_send(a, b)
        elif kind == BEAT:
            self._note(a, b)
        elif kind == ASK:
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
        elif kind == LOST:  # where one has stopped before, that is why this one has ended
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
            self.tell(BEAT, self._rank, self._steps)
            with self.changed:
                oldest = min((since for since, _ in self._awaited.values()), default=now)
            if now - oldest >= self.timeout_s:
                self.fail_by(f"no gradient within the process group's {self.timeout_s:g} s: a rank hangs")
        elif isinstance(self.fault, RankLostError) and now - self._lost_at >= CUT_S:
            self._cut()

    def _note(self, rank: int, steps: int) -> None:
        known, now = self._known[rank], time.monotonic()
        if steps != known.steps:
            known.steps, known.stepped = steps, now
        known.heard = now

    def _ask(self) -> None:
        """Have the rank named that others wait for."""
        silent_s = time.monotonic() - self._known[0].heard
        if self._rank == 0:
            self._name_the_missing()
        elif silent_s >= self.timeout_s / 2:
            self._heard(HANGS, 0, round(1e3 * silent_s))
        else:
            self.tell(ASK, self._rank)

    def _name_the_missing(self) -> None:
        """On rank 0: name the rank that has been silent for half the timeout, or else made no step while others did."""
        now = time.monotonic()
        self._note(0, self._steps)
        others = [rank for rank in self._known if rank != 0]
        rank = min(others, key=lambda rank: self._known[rank].heard)
        idle_s = now - self._known[rank].heard
        if idle_s < self.timeout_s / 2:
            rank = min(self._known, key=lambda rank: self._known[rank].steps)
            idle_s = now - self._known[rank].stepped
            if idle_s < self.timeout_s / 2 or all(one.steps == self._known[rank].steps for one in self._known.values()):
                return
        self.tell(HANGS, rank, round(1e3 * idle_s))
        self._heard(HANGS, rank, round(1e3 * idle_s))


def timeout_of(group: Any) -> timedelta:
    """Return the timeout of a process group: of its backend for the CPU, if it has one."""
    import torch

    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # NCCL alone
        backend = group._get_backend(torch.device("cuda"))
    timeout: timedelta = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return timeout


def first_line(error: Exception) -> str:
    """Return the first line of a backend's error."""
    return str(error).splitlines()[0] if str(error) else repr(error)


def _now() -> datetime:
    return datetime.now().astimezone()


def _links(group: Any) -> list[sockets.Ends]:
    """Return the ends of this rank's connections to the others that it has now."""
    own = sockets.all_ends()
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    return list(sockets.matched(own, everyone, dist.get_rank(group)))
