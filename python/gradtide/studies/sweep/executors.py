"""Executors of a study's runs: local threads or a Ray cluster. They use neither the study nor the store.

`submit(scenarios)` returns a Future with the document of each run, which the study stores. If the machine of the runs
is lost, the Future raises `WorkerLost`.
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

Documents = list[dict[str, Any]]


class WorkerLost(GradtideError):  # noqa: N818 - the study begins these runs again
    """The worker that executed some runs is lost, and the outcome of these runs is unknown."""


class Executor(ABC):
    """Runs scenarios asynchronously; a context manager.

    Attributes:
        at_once: number of concurrent runs.
        neighbours: number of concurrent runs that share a machine's memory.
        memory_bytes: memory of a machine; `None` for the free memory of this machine.
        batch_s: target duration of a batch of runs, in seconds.
    """

    at_once: int
    neighbours: int
    memory_bytes: int | None = None
    batch_s = 0.0

    @abstractmethod
    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start a sequence of runs; the future completes with all of them, or fails with `WorkerLost`."""

    @abstractmethod
    def abandon(self) -> None:
        """Cancel active runs, whose results are no longer needed."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


class Local(Executor):
    """Threads of this process, since the core releases the interpreter's lock; the caller's limits apply."""

    def __init__(self, jobs: int) -> None:
        self.at_once = self.neighbours = jobs
        self._over = threading.Event()
        self._part = Part(current(), self._over)
        self._pool = ThreadPoolExecutor(max_workers=jobs)

    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start runs in a thread."""
        return self._pool.submit(self._run, scenarios)

    def _run(self, scenarios: Sequence[Scenario]) -> Documents:
        with watching(self._part):
            return documents(scenarios)

    def abandon(self) -> None:
        """End the threads."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def documents(scenarios: Sequence[Scenario]) -> Documents:
    """Run scenarios, and return the stored document of each: its summary without measured costs, or its error."""
    return [_document(scenario) for scenario in scenarios]


def _document(scenario: Scenario) -> dict[str, Any]:
    try:
        return document(simulate(scenario, None))
    except LimitReached:
        raise
    except (SimulationError, CoreRefusal) as error:
        return {"error": str(error)}
