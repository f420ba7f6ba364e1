"""Streams and events of a device: what comes before a sum, and what before the use of its result.

A GPU carries out later what the CPU issues now, stream by stream. Sums have a stream of their own, beside computing:

    ready()       marks what computing has been issued: it fills the tensor
    behind(...)   a sum that is issued inside begins behind those marks
    end(...)      marks the end of a sum, and tells when the device has come there
    wait(...)     computing that is issued from now on begins behind that mark

A mark that does not exist yet holds up nobody. So the CPU waits until a sum has its mark, and then calls `wait`.

The CPU has no streams: what is issued is done, and a sum has ended when its future has. There, nothing is marked.
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
    """Those of the CPU, which has none; of other devices, what they have in their place."""

    def ready(self) -> Any:
        """Mark what has been issued to compute."""
        return None

    def behind(self, marks: Collection[Any]) -> AbstractContextManager[Any]:
        """Let sums that are issued inside begin behind some marks of `ready`."""
        return contextlib.nullcontext()

    def end(self, works: Collection[Any], marked: Callable[[Any], None], over: Callable[[], None]) -> None:
        """Mark the end of a sum whose futures have ended; call `marked` with the mark, `over` when the device is there.

        Both may be called from other threads.
        """
        over()
        marked(None)

    def wait(self, marks: Collection[Any]) -> None:
        """Let computing that is issued from now on begin behind some marks of `end`."""

    def handing_over(self) -> AbstractContextManager[Any]:
        """Let a future that is completed inside come behind all sums with a mark."""
        return contextlib.nullcontext()

    def future(self) -> Any:
        """Return a future of a summed tensor."""
        return torch.futures.Future()

    def close(self) -> None:
        """End what `end` has begun."""


class CudaStreams(Streams):
    """Those of a GPU. `cuda` is torch.cuda, or what stands for it in tests.

    It has not run on a GPU yet: `make validate-gpu` runs it.
    """

    def __init__(self, device: "torch.device", cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._sums = cuda.Stream(device)
        self._marks, self._ends = _Thread("gradtide marks"), _Thread("gradtide ends")

    def ready(self) -> Any:
        """Mark the stream that computes here."""
        if self._cuda.is_current_stream_capturing():
            raise TrainingError(
                "a CUDA graph is captured, and gradtide's hooks would not run when it is replayed: train without CUDA "
                "graphs, or use level buckets: wrap(..., level='buckets')"
            )
        return self._marked(self._cuda.current_stream(self._device))

    @contextlib.contextmanager
    def behind(self, marks: Collection[Any]) -> Iterator[None]:
        """Issue on the stream of sums."""
        with self._cuda.stream(self._sums):
            for mark in marks:
                self._sums.wait_event(mark)
            yield

    def end(self, works: Collection[Any], marked: Callable[[Any], None], over: Callable[[], None]) -> None:
        """Mark the stream of sums, behind the streams of the backend.

        Not in the thread that calls: gloo completes a future before the work that it is of, so that a callback which
        waits for the work would wait for ever.
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
        """Let the stream that computes here wait; the CPU goes on."""
        for mark in marks:
            self._cuda.current_stream(self._device).wait_event(mark)

    def handing_over(self) -> AbstractContextManager[Any]:
        """Complete it on the stream of sums, which it then stands for."""
        return self._cuda.stream(self._sums)  # type: ignore[no-any-return]

    def future(self) -> Any:
        """Return a future that knows the device: whoever waits for it waits by stream."""
        return torch.futures.Future(devices=[self._device])

    def close(self) -> None:
        """End the threads; they are not waited for, since a lost rank may leave one waiting."""
        self._marks.do(None)
        self._ends.do(None)

    def _marked(self, stream: Any) -> Any:
        event = self._cuda.Event()
        event.record(stream)
        return event


class _Thread:
    """Does one thing after the other, and ends at `None`."""

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
