"""Executor on an existing Ray cluster; this process is the driver, and the only process that accesses the store.

Tasks contain resolved scenarios, so workers need gradtide but no scenario files. A task has several runs, because Ray
takes about a millisecond for a task, which is as long as a short run.
"""

import os
import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from gradtide import _core
from gradtide.errors import ExecutorError, Fault
from gradtide.estimate import estimate
from gradtide.extras import how_to_install
from gradtide.scenario import Scenario
from gradtide.studies.store import code_digest
from gradtide.studies.sweep.executors import Documents, Executor, WorkerLost, documents

TASK_S = 1.0
"""Target for the estimated time of a task's runs, in seconds."""
RETRIES = 1
"""Number of times that Ray retries a task whose worker is lost. After that, the executor reports `WorkerLost`."""
ANSWER_S = 5.0
"""Timeout, in seconds, of a test connection to the cluster's head; without the test, Ray would retry for minutes."""
CPUS_S = 2.0
"""Interval, in seconds, at which Ray is asked for the cluster's number of processors, which can change."""


class OtherCodeError(Exception):
    """The code of gradtide on a worker differs from the driver's."""


class OnRay(Executor):
    """Runs each batch as a Ray task, on one processor of the cluster.

    Raises:
        ExecutorError: if Ray is not installed, or the cluster does not answer.
    """

    neighbours = 1
    batch_s = TASK_S

    def __init__(self, address: str | None, jobs: int | None) -> None:
        self._ray = _imported()
        self._jobs = jobs
        self._is_ours = address is not None or not self._ray.is_initialized()
        if self._is_ours:
            _connect(self._ray, address or os.environ.get("RAY_ADDRESS") or "auto")
        self._task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_task())
        self._refs: dict[Future[Documents], Any] = {}
        self._cpus, self._looked_s = 0, -CPUS_S
        sizes = (node["Resources"].get("memory", 0) for node in self._ray.nodes() if node["Alive"])
        self.memory_bytes = int(max(sizes, default=0)) or None

    @property
    def at_once(self) -> int:  # type: ignore[override]
        """Number of concurrent runs: the cluster's current number of processors, or `jobs` if that is smaller."""
        if time.monotonic() - self._looked_s >= CPUS_S:
            self._cpus, self._looked_s = int(self._ray.cluster_resources().get("CPU", 0)), time.monotonic()
        return max(1, min(self._cpus, self._jobs or self._cpus))

    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start a task for a batch of runs. Ray places it on a node with enough free memory for each of its runs."""
        memory_bytes = max(estimate(one).memory_bytes for one in scenarios)
        ref = self._task.options(memory=memory_bytes).remote(_code(), pickle.dumps(list(scenarios)))
        future: Future[Documents] = Future()
        self._refs[future] = ref

        def end(theirs: "Future[Documents]") -> None:
            self._refs.pop(future, None)
            error = theirs.exception()
            if future.set_running_or_notify_cancel():
                future.set_result(theirs.result()) if error is None else future.set_exception(self._words(error))

        ref.future().add_done_callback(end)
        return future

    def _words(self, error: BaseException) -> BaseException:
        """Translate an exception of Ray to `WorkerLost`, `ExecutorError`, or the exception that the task raised."""
        # Runs open no files, so an OSError means that the node was lost, as some versions of Ray report it.
        if not isinstance(error, self._ray.exceptions.RayTaskError) or isinstance(error.cause, OSError):
            return WorkerLost(" ".join(str(error).split())[:300])
        if isinstance(error.cause, (ImportError, OtherCodeError)):
            msg = f"a worker cannot run this study: {error.cause}"
            hint = f"install gradtide {_core.__version__} on every node, as on this one"
            return ExecutorError(Fault("GT107", "", msg, None, hint, "--executor"))
        cause: BaseException = error.cause
        return cause

    def abandon(self) -> None:
        """Cancel the tasks, and disconnect from the cluster if this executor connected to it."""
        for ref in list(self._refs.values()):
            self._ray.cancel(ref, force=True)
        self._refs.clear()
        if self._is_ours:
            self._ray.shutdown()


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        msg = f"the executor ray needs Ray, which cannot be imported ({error})"
        raise _unusable(msg, how_to_install("ray"), "--executor") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    """Connect to an existing cluster; never start one."""
    hint = "name a cluster that runs, as `ray start --head` prints it: --address 10.0.0.1:6379"
    try:
        match = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address)
        if match is not None:
            socket.create_connection((match[1], int(match[2])), ANSWER_S).close()
        with _own_signals():
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        msg = f"there is no Ray cluster at {address}: {' '.join(str(error).split())[:300]}"
        raise _unusable(msg, hint, "--address") from None


def _unusable(msg: str, hint: str, option: str) -> ExecutorError:
    return ExecutorError(Fault("GT106", "", msg, None, hint, option))


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the process's signal handlers during `ray.init`, which replaces them by handlers that exit on SIGTERM."""
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _task() -> Callable[[str, bytes], Documents]:
    """Return the task function. Ray pickles inner functions by value, so a worker without gradtide can report that."""

    def run(code: str, packed: bytes) -> Documents:
        try:
            from gradtide.studies.sweep.on_ray import run_packed
        except ImportError as error:
            raise ImportError(f"{socket.gethostname()} has no gradtide with studies on Ray ({error})") from None
        return run_packed(code, packed)

    return run


def run_packed(code: str, packed: bytes) -> Documents:
    """Run the pickled scenarios of a task; raise `OtherCodeError` unless `code` identifies the code of this worker."""
    if code != _code():
        raise OtherCodeError(f"{socket.gethostname()} has gradtide {_code()}, and here is {code}")
    return documents(pickle.loads(packed))


def _code() -> str:
    return f"{_core.__version__} ({code_digest().hex()[:12]})"
