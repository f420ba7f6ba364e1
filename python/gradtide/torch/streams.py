"""Streams and events of a device: dependencies between compute and sums, i.e. all-reduces.

A GPU executes asynchronously what the CPU issues, in order within each stream. Sums have a separate stream:

    ready()       records an event on the compute stream, which occurs when a gradient is computed
    behind(...)   makes sums that are issued inside the block wait for events of `ready`
    end(...)      records an event at the end of a sum, and calls back when the device has reached the event
    wait(...)     makes compute that is issued later wait for events of `end`

A stream does not wait for an event that is not recorded yet. Hence the CPU calls `wait` only after `end` has recorded
the event.

The CPU has no streams and no events: operations are synchronous, and a sum has ended when its future is complete.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from gradtide.errors import TrainingError


class Streams:
    """Interface to a device's streams, and its implementation for the CPU, which has no streams."""

    def ready(self) -> Any:
        """Record and return an event that occurs after all compute issued so far."""
        return None

    def behind(self, marks: Collection[Any]) -> AbstractContextManager[Any]:
        """Make sums issued inside the block wait for events of `ready`."""
        return contextlib.nullcontext()

    def end(self, works: Collection[Any], marked: Callable[[Any], None], over: Callable[[], None]) -> None:
        """Record the end of a sum whose futures are complete.

        Calls `marked` with the recorded event, and `over` when the event occurs. Both may be called from other threads.
        """
        over()
        marked(None)

    def wait(self, marks: Collection[Any]) -> None:
        """Make compute issued from now on wait for events of `end`."""

    def handing_over(self) -> AbstractContextManager[Any]:
        """Make futures that complete inside the block depend on all sums whose end has been recorded."""
        return contextlib.nullcontext()

    def future(self) -> Any:
        """Return a future of a summed tensor."""
        return torch.futures.Future()

    def close(self) -> None:
        """Stop the threads that `end` uses."""


class CudaStreams(Streams):
    """The implementation for CUDA. `cuda` is torch.cuda, or its substitute in tests.

    This class has not run on a GPU yet; `make validate-gpu` is the test for that.
    """

    def __init__(self, device: "torch.device", cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._sums = cuda.Stream(device)
        self._marks, self._ends = _Thread("gradtide marks"), _Thread("gradtide ends")

    def ready(self) -> Any:
        """Record an event on the current (compute) stream."""
        if self._cuda.is_current_stream_capturing():
            raise TrainingError(
                "a CUDA graph is captured, and gradtide's hooks would not run when it is replayed: train without CUDA "
                "graphs, or use level buckets: wrap(..., level='buckets')"
            )
        return self._marked(self._cuda.current_stream(self._device))

    @contextlib.contextmanager
    def behind(self, marks: Collection[Any]) -> Iterator[None]:
        """Issue the block's operations on the stream of sums, after the events `marks`."""
        with self._cuda.stream(self._sums):
            for mark in marks:
                self._sums.wait_event(mark)
            yield

    def end(self, works: Collection[Any], marked: Callable[[Any], None], over: Callable[[], None]) -> None:
        """Record an event on the stream of sums that occurs after the backend's streams have finished `works`.

        A separate thread does this, because gloo completes a future before its work object, so that a callback of the
        future would deadlock if it waited for the work.
        """

        def mark() -> None:
            with self._cuda.stream(self._sums):
                for work in works:
                    work.wait()
                event = self._marked(self._sums)
            marked(event)

            def synchronize() -> None:
                event.synchronize()
                over()

            self._ends.do(synchronize)

        self._marks.do(mark)

    def wait(self, marks: Collection[Any]) -> None:
        """Make the current stream wait for events of `end`; the CPU does not block."""
        for mark in marks:
            self._cuda.current_stream(self._device).wait_event(mark)

    def handing_over(self) -> AbstractContextManager[Any]:
        """Complete the block's futures on the stream of sums, on which they record their events."""
        return self._cuda.stream(self._sums)  # type: ignore[no-any-return]

    def future(self) -> Any:
        """Return a CUDA-aware future. Waiting for it blocks the current stream instead of the CPU."""
        return torch.futures.Future(devices=[self._device])

    def close(self) -> None:
        """Stop the threads without joining them, since a lost rank may leave one blocked."""
        self._marks.do(None)
        self._ends.do(None)

    def _marked(self, stream: Any) -> Any:
        event = self._cuda.Event()
        event.record(stream)
        return event


class _Thread:
    """A thread that runs queued functions in order, and ends at `None`."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.do = self._tasks.put
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def streams_of(device: "torch.device") -> Streams:
    """Return the streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()
