"""Selection of the executor of a study, by name."""

from gradtide.studies.sweep.executors import Executor, Local

EXECUTORS = ("local", "ray")


def opened(executor: str, address: str | None, jobs: int | None) -> Executor:
    """Return an executor by its name.

    Args:
        executor: local or ray.
        address: address of the Ray cluster. Default: that in RAY_ADDRESS, otherwise the cluster of this machine.
        jobs: number of concurrent runs. Default: 1 locally, and the number of processors on a cluster.

    Raises:
        ValueError: if there is no such executor, or the executor takes no address.
        ExecutorError: if the executor cannot be used.
    """
    check(executor, address)
    if executor == "ray":
        from gradtide.studies.sweep.on_ray import OnRay

        return OnRay(address, jobs)
    return Local(max(1, jobs or 1))


def check(executor: str, address: str | None) -> None:
    """Raise a ValueError if there is no such executor, or the executor takes no address."""
    if executor not in EXECUTORS:
        raise ValueError(f"executor: there is no {executor!r}; write {' or '.join(EXECUTORS)}")
    if address is not None and executor != "ray":
        raise ValueError(f"address: {address!r} is of a Ray cluster; choose the executor ray, or leave it out")
