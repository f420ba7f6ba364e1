"""Creates the executor that runs a study's scenarios, from its name."""

from gradtide.studies.sweep.executors import Executor, Local

EXECUTORS = ("local", "ray")


def opened(executor: str, address: str | None, jobs: int | None) -> Executor:
    """Return a new executor.

    Args:
        executor: its name, "local" or "ray".
        address: address of the Ray cluster. Default: RAY_ADDRESS if it is set, otherwise the cluster of this machine.
        jobs: number of concurrent runs. Default: 1 locally, and the number of processors on a Ray cluster.

    Raises:
        ValueError: if the name is unknown, or an address is given with the local executor.
        ExecutorError: if Ray is not installed, or the cluster does not answer.
    """
    check(executor, address)
    if executor == "ray":
        from gradtide.studies.sweep.on_ray import OnRay

        return OnRay(address, jobs)
    return Local(max(1, jobs or 1))


def check(executor: str, address: str | None) -> None:
    """Raise a ValueError if the executor's name is unknown, or an address is given with the local executor."""
    if executor not in EXECUTORS:
        raise ValueError(f"executor: there is no {executor!r}; write {' or '.join(EXECUTORS)}")
    if address is not None and executor != "ray":
        raise ValueError(f"address: {address!r} is of a Ray cluster; choose the executor ray, or leave it out")
