"""Executor on an existing Ray cluster; this process is the driver, and the only process that accesses the store.

Tasks contain resolved scenarios, so a worker needs gradtide but no files. Ray retries a task whose worker is lost. A
task has several runs, because Ray's overhead of about a millisecond is as long as a short run.
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
"""Number of times that Ray itself retries a task whose worker is lost, before the study is informed."""
ANSWER_S = 5.0
"""Timeout for a connection to the head of a cluster, in seconds; Ray itself would try for minutes."""
CPUS_S = 2.0
"""Polling interval for the cluster's number of processors, in seconds."""


class OtherCodeError(Exception):
    """A worker has another version of gradtide than the driver."""


class OnRay(Executor):
    """Executor with one task for each batch and one processor for each task.

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
        """Number of concurrent runs, which is the present number of processors of the cluster."""
        if time.monotonic() - self._looked_s >= CPUS_S:
            self._cpus, self._looked_s = int(self._ray.cluster_resources().get("CPU", 0)), time.monotonic()
        return max(1, min(self._cpus, self._jobs or self._cpus))

    def submit(self, scenarios: Sequence[Scenario]) -> "Future[Documents]":
        """Start a task; Ray places it on a node with enough free memory."""
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
        """Return this package's error for an error of Ray."""
        # A run opens no files, so an OSError means a lost node; not every version of Ray reports lost nodes as such.
        if not isinstance(error, self._ray.exceptions.RayTaskError) or isinstance(error.cause, OSError):
            return WorkerLost(" ".join(str(error).split())[:300])
        if isinstance(error.cause, (ImportError, OtherCodeError)):
            msg = f"a worker cannot run what is here: {error.cause}"
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
    """Restore the process's signal handlers, because Ray's would exit on SIGTERM."""
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _task() -> Callable[[str, bytes], Documents]:
    """Return the task function.

    Ray pickles inner functions by value, so a worker without gradtide can still report that it lacks gradtide.
    """

    def run(code: str, packed: bytes) -> Documents:
        try:
            from gradtide.studies.sweep.on_ray import run_packed
        except ImportError as error:
            raise ImportError(f"{socket.gethostname()} has no gradtide with studies on Ray ({error})") from None
        return run_packed(code, packed)

    return run


def run_packed(code: str, packed: bytes) -> Documents:
    """Run scenarios sent by a driver with the same code."""
    if code != _code():
        raise OtherCodeError(f"{socket.gethostname()} has gradtide {_code()}, and here is {code}")
    return documents(pickle.loads(packed))


def _code() -> str:
    return f"{_core.__version__} ({code_digest().hex()[:12]})"
