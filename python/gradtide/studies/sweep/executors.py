"""Where the runs of a study take place. An executor knows neither the study nor the store: scenarios in, documents out.

submit(scenarios) -> Future of what the store keeps of each run; `WorkerLost` if the machine that had them is gone
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from gradtide.errors import CoreRefusal, GradtideError, LimitReached, SimulationError
from gradtide.scenario import Scenario
from gradtide.studies.run import simulate
from gradtide.studies.store import document
from gradtide.watch import Part, current, watching

EXECUTORS = ("local", "ray")

Documents = list[dict[str, Any]]


class WorkerLost(GradtideError):  # noqa: N818 - the study begins these runs again
    """The worker that had some runs under way is gone, and nothing is known of them."""


class Executor(ABC):
    """Runs scenarios beside the thread that asks, until the block of its `with` ends.

    Attributes:
        at_once: runs that are under way at once.
        neighbours: how many of these share a memory.
        memory_bytes: that memory; None for what is free on this machine.
        batch_s: time of the runs that are worth submitting together.
    """

    at_once: int
    neighbours: int
    memory_bytes: int | None = None
    batch_s = 0.0

    @abstractmethod
    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Begin runs one after the other; the future ends with all of them, or with `WorkerLost`."""

    @abstractmethod
    def abandon(self) -> None:
        """End what is under way; nobody waits for it any more."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


class Local(Executor):
    """Threads of this process, because the core does not hold the interpreter's lock; their limits are the caller's."""

    def __init__(self, jobs: int) -> None:
        self.at_once = self.neighbours = jobs
        self._over = threading.Event()
        self._part = Part(current(), self._over)
        self._pool = ThreadPoolExecutor(max_workers=jobs)

    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Begin runs in a thread."""
        return self._pool.submit(self._run, scenarios)

    def _run(self, scenarios: Sequence[Scenario]) -> Documents:
        with watching(self._part):
            return documents(scenarios)

    def abandon(self) -> None:
        """End the threads."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def opened(executor: str, address: str | None, jobs: int | None) -> Executor:
    """Return an executor by its name.

    Args:
        executor: local or ray.
        address: of the Ray cluster; None for the one of this machine, or of RAY_ADDRESS.
        jobs: runs at once; None for one here, and for all processors of a cluster.

    Raises:
        ValueError: if there is no such executor, or if it has no address.
        ExecutorError: if it cannot be used.
    """
    check(executor, address)
    if executor == "ray":
        from gradtide.studies.sweep.on_ray import OnRay

        return OnRay(address, jobs)
    return Local(max(1, jobs or 1))


def check(executor: str, address: str | None) -> None:
    """Raise a ValueError if there is no such executor, or if it has no address."""
    if executor not in EXECUTORS:
        raise ValueError(f"executor: there is no {executor!r}; write {' or '.join(EXECUTORS)}")
    if address is not None and executor != "ray":
        raise ValueError(f"address: {address!r} is of a Ray cluster; choose the executor ray, or leave it out")


def documents(scenarios: Sequence[Scenario]) -> Documents:
    """Return what the store keeps of each run: its summary without what was measured, or why it cannot go on."""
    return [_document(scenario) for scenario in scenarios]


def _document(scenario: Scenario) -> dict[str, Any]:
    try:
        return document(simulate(scenario, None))
    except LimitReached:
        raise
    except (SimulationError, CoreRefusal) as error:
        return {"error": str(error)}
