"""Times one collective on an otherwise idle network, without compute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.algorithms import ALGORITHMS
from gradtide.counts import ALL_REDUCES, NOT_SUMMED
from gradtide.errors import ScenarioError
from gradtide.results import Table
from gradtide.scenario import Scenario
from gradtide.scenario.core.queries import Queries
from gradtide.studies.arguments import as_scenario, refuse_parallel
from gradtide.studies.network import altered, run_of_network
from gradtide.studies.result import RunResult

COLLECTIVES = ("ring", "tree", "halving_doubling", "butterfly", "butterfly_layered", "ps+packed", "ps+distributed")

OF_AN_EXCHANGE = ("depth", "chunk", "credit", "overhead", "sync")
"""Keys of `schedule` that affect a single exchange. The other keys affect only the order of several exchanges."""

_HERE = ("servers", "placement")
PLACEMENTS = ("packed", "distributed")


def suits(base: Scenario, kind: str) -> bool:
    """Return whether the job can use a kind of collective: `tree` needs equally many ranks on each node."""
    try:
        base.set({f"job.{base.jobs[0].name}.collective": {"kind": kind}})
    except ScenarioError:
        return False
    return True


def offered(base: Scenario, names: Sequence[str]) -> Sequence[str]:
    """Return `names`. If these are the default names, `tree` is left out for a job that cannot use it."""
    return names if tuple(names) != COLLECTIVES or suits(base, "tree") else [name for name in names if name != "tree"]


def collective_names(texts: Sequence[str]) -> list[str]:
    """Return the names as scenarios spell them, with underscores instead of hyphens; raise for duplicates."""
    names = [text.strip().replace("-", "_") for text in texts]
    check_once("collectives", names)
    return names


def parse_collective(text: str) -> dict[str, Any]:
    """Parse a collective in the syntax of the command line, and return its keys in `job.NAME.collective`.

    Args:
        text: `KIND[+KEY=VALUE]`, such as `hierarchical+group=8`, or `ring+depth=8`, where `depth` is a key of the
            schedule. For parameter servers, the placement may be given without its key, as in `ps+distributed`.

    Raises:
        ValueError: if the text has another syntax.

    Example:
        >>> parse_collective("ps+distributed+servers=8")
        {'kind': 'ps', 'ps': {'placement': 'distributed', 'servers': 8}}
    """
    kind, *extras = [part.strip() for part in text.split("+")]
    keys: dict[str, Any] = {"kind": kind}
    if kind == "ps":
        keys["ps"] = {}
    for extra in extras:
        key, equals, value = extra.partition("=")
        if kind == "ps" and extra in PLACEMENTS:
            key, equals, value = "placement", "=", extra
        if not equals or not key or not value:
            raise ValueError(
                f"collective {text!r}: cannot read {extra!r}; write KIND[+KEY=VALUE], as in hierarchical+group=8 or "
                "ps+distributed"
            )
        home = keys["ps"] if kind == "ps" and key in _HERE else keys
        home[key] = int(value) if value.isdecimal() else value
    return keys


def summing_collectives(texts: Sequence[str], option: str) -> dict[str, dict[str, Any]]:
    """Return {name: keys of the collective}; raise if one does not sum gradients. `option` is named in the error."""
    found = {name: parse_collective(name) for name in collective_names(texts)}
    for name, keys in found.items():
        if keys["kind"] in NOT_SUMMED:
            raise ValueError(
                f"{option}: {name} does not sum gradients: {NOT_SUMMED[keys['kind']]}; write one of "
                f"{', '.join(ALL_REDUCES)}"
            )
    return found


def exchanged_by(base: Scenario, name: str, **changes: Any) -> Scenario:
    """Return a one-job scenario with its collective replaced, and with further changes.

    `name` has the syntax of `parse_collective`. If the kind stays the same, other keys of the scenario's collective are
    kept. If the kind changes, only keys that describe the reduction are kept, and only if the new collective reduces.
    Keys in `name` take precedence.
    """
    keys = parse_collective(name)
    depth = {"depth": keys.pop("depth")} if "depth" in keys else {}
    return altered(base, collective=_collective_of(base, keys), **depth, **changes)


def _collective_of(base: Scenario, keys: dict[str, Any]) -> dict[str, Any]:
    (table,) = base.given["job"].values()
    given = table.get("collective", {})
    own_kind = base.jobs[0].collective.algorithm
    algorithm = ALGORITHMS.get(keys["kind"])
    adds = algorithm is None or algorithm.reduces
    kept = {key: given[key] for key in ("reduction_rate", "remainder") if key in given and adds}
    if keys["kind"] != own_kind:
        return {**kept, **keys}
    ps = {"ps": {**given.get("ps", {}), **keys.get("ps", {})}} if own_kind == "ps" else {}
    return {**given, **keys, **ps}


def alone(scenario: Scenario, size_bytes: int) -> Scenario:
    """Return a scenario with a single exchange of `size_bytes` on the cluster, without compute."""
    data = scenario.to_dict()
    ((name, job),) = data["job"].items()
    # Compute times must be positive, so the single layer gets the shortest possible one.
    layer = {"name": "gradient", "parameters": f"{size_bytes}B", "forward": "1ps", "backward": "1ps"}
    kept: dict[str, Any] = {"task": "exchange", "schedule": {"fusion": "0B"}}
    kept["schedule"] |= {key: job["schedule"][key] for key in OF_AN_EXCHANGE if key in job["schedule"]}
    kept |= {key: job[key] for key in ("workers", "hosts", "placement", "collective", "priority") if key in job}
    if "ps" in kept["collective"]:
        # A single exchange has no `pull`.
        ps = {key: value for key, value in kept["collective"]["ps"].items() if key not in ("pull", "shards")}
        kept["collective"] = {**kept["collective"], "ps": ps}
    data["job"] = {name: {**kept, "model": {"layers": [layer]}, "iterations": 1}}
    data["run"] = {**run_of_network(data), "timeline": 0}
    return Scenario.from_dict(data)


def exchange_s(result: RunResult) -> float:
    """Return the time of the exchange in a run of `alone`, including its launch overhead, in seconds."""
    return float(result.transfers["end_us"][-1] - result.transfers["ready_us"][-1]) / 1e6


def check_one_job(base: Scenario, what: str, *, trains: bool = False) -> None:
    """Raise unless the scenario is one data-parallel job that exchanges data; with `trains`, it must sum gradients."""
    if len(base.jobs) != 1:
        raise ValueError(
            f"{what} takes one job, and {base.name} has {len(base.jobs)}: {', '.join(j.name for j in base.jobs)}"
        )
    refuse_parallel(base, what)
    if base.to_dict().get("traffic"):
        raise ValueError(
            f"{what} takes a job without background flows; delete [traffic.{next(iter(base.to_dict()['traffic']))}]"
        )
    if trains and base.jobs[0].task == "exchange":
        raise ValueError(
            f'{what} takes a job that sums gradients, and [job.{base.jobs[0].name}] has task = "exchange"; '
            f"delete it and use one of {', '.join(ALL_REDUCES)}"
        )
    if not base.jobs[0].parameter_bytes:
        raise ValueError(f"[job.{base.jobs[0].name}] has no parameters, so it exchanges nothing on any network")


def check_once(what: str, names: Sequence[str]) -> None:
    """Raise if `names` is empty or has duplicates; `what` is the name of the option in the error."""
    if not names:
        raise ValueError(f"{what}: the list is empty; leave it out for the default")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{what}: {twice} is given twice; leave one of the two out")


def messages(scenario: "Scenario | str | Path | dict[str, Any]", size: int | str, *, job: str | None = None) -> Table:
    """Return the messages with which the ranks of a job exchange a gradient, without simulating them.

    Every rank executes the same sequence of steps. A rank begins a step when it has begun the previous step and has
    received all messages that were sent to it in the previous step. It first applies these messages, then sends the
    messages of the new step. Rank 0 is the job's first host.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file.
        size: size of the gradient, in bytes or with a unit as in `10MB`.
        job: name of the job. Default: the only job.

    Returns:
        A table with the columns `chunk` (one of the `schedule.depth` chunks, which are exchanged concurrently), `step`,
        `from_rank`, `to_rank`, `offset_bytes` and `bytes` (position and size in the buffers of both ranks), and
        `action`: "reduce" adds to the receiver's data, "copy" replaces it. In an all-to-all, the buffers of all ranks
        are concatenated.

    Raises:
        ScenarioError: if the scenario is invalid.
        ValueError: if there is no such job, or the size cannot be parsed.

    Example:
        >>> job = {"model": "resnet50", "workers": 2, "iterations": 1}
        >>> [row["action"] for row in messages({"job": {"train": job}}, 8).to_dicts()]
        ['reduce', 'reduce', 'copy', 'copy']
    """
    base = as_scenario(scenario)
    base.check_built()
    names = [each.name for each in base.jobs]
    if job is None and len(names) > 1:
        raise ValueError(f"the scenario has several jobs; name one: {', '.join(names)}")
    if job is not None and job not in names:
        raise ValueError(f"the scenario has no job {job!r}; it has {', '.join(names)}")
    return Table(Queries(base).messages(0 if job is None else names.index(job), parse_size(size)))


def parse_size(size: int | str, name: str = "size") -> int:
    """Return a size in bytes; `name` is the name of the argument in the error."""
    return units.parse_option(name, units.parse_bytes, size) if isinstance(size, str) else int(size)
