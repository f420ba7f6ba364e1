"""Executors of a study's runs: the interface, and the executor with threads of this process.

`submit(scenarios)` returns a Future of the runs' documents, i.e. the dicts that the study writes to its store. If the
process or the machine that executes them is lost, the Future raises `WorkerLost`. Executors access no store.
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
    """The process or machine that executed a batch of runs is lost, and no result of the batch is available."""


class Executor(ABC):
    """Runs scenarios asynchronously. As a context manager, it is abandoned on exit.

    Attributes:
        at_once: number of concurrent runs.
        neighbours: number of concurrent runs that share the memory of one machine.
        memory_bytes: memory limit of one machine; `None` if the runs are on this machine.
        batch_s: target for the total estimated time of a batch's runs, in seconds; 0 for one run per batch.
    """

    at_once: int
    neighbours: int
    memory_bytes: int | None = None
    batch_s = 0.0

    @abstractmethod
    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start a batch of runs. The future completes with the documents of all runs, or fails with `WorkerLost`."""

    @abstractmethod
    def abandon(self) -> None:
        """Cancel all runs that have not finished, and release the executor's resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


class Local(Executor):
    """Runs scenarios in threads of this process, because the Rust core releases the GIL; the caller's limits apply."""

    def __init__(self, jobs: int) -> None:
        self.at_once = self.neighbours = jobs
        self._over = threading.Event()
        self._part = Part(current(), self._over)
        self._pool = ThreadPoolExecutor(max_workers=jobs)

    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start a batch of runs, one after the other in one thread."""
        return self._pool.submit(self._run, scenarios)

    def _run(self, scenarios: Sequence[Scenario]) -> Documents:
        with watching(self._part):
            return documents(scenarios)

    def abandon(self) -> None:
        """Cancel all runs, and end the threads."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def documents(scenarios: Sequence[Scenario]) -> Documents:
    """Run scenarios; return for each the document to store: the summary without measured costs, or the error."""
    return [_document(scenario) for scenario in scenarios]


def _document(scenario: Scenario) -> dict[str, Any]:
    try:
        return document(simulate(scenario, None))
    except LimitReached:
        raise
    except (SimulationError, CoreRefusal) as error:
        return {"error": str(error)}
