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
"""Keys of a schedule that affect a single exchange, as opposed to the order of exchanges."""

_HERE = ("servers", "placement")
PLACEMENTS = ("packed", "distributed")


def suits(base: Scenario, kind: str) -> bool:
    """Whether a collective can run on the ranks of the scenario's job: trees need equally many ranks per node."""
    try:
        base.set({f"job.{base.jobs[0].name}.collective": {"kind": kind}})
    except ScenarioError:
        return False
    return True


def offered(base: Scenario, names: Sequence[str]) -> Sequence[str]:
    """Return the names of collectives; unsuitable trees are removed from the default list."""
    return names if tuple(names) != COLLECTIVES or suits(base, "tree") else [name for name in names if name != "tree"]


def collective_names(texts: Sequence[str]) -> list[str]:
    """Normalise names of collectives to those of scenarios: hyphens become underscores."""
    names = [text.strip().replace("-", "_") for text in texts]
    check_once("collectives", names)
    return names


def parse_collective(text: str) -> dict[str, Any]:
    """Return the keys of `job.NAME.collective` that a name on the command line stands for.

    Args:
        text: `KIND[+KEY=VALUE]`, as in `hierarchical+group=8` and `ring+depth=8`, whose `depth` is that of the
            schedule; of parameter servers the placement may stand alone, as in `ps+distributed`.

    Raises:
        ValueError: if it is not written so.

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
    """Return the keys of each collective that `option` names for the sum of gradients, by its name."""
    found = {name: parse_collective(name) for name in collective_names(texts)}
    for name, keys in found.items():
        if keys["kind"] in NOT_SUMMED:
            raise ValueError(
                f"{option}: {name} does not sum gradients: {NOT_SUMMED[keys['kind']]}; write one of "
                f"{', '.join(ALL_REDUCES)}"
            )
    return found


def exchanged_by(base: Scenario, name: str, **changes: Any) -> Scenario:
    """Return a single-job scenario with another collective, given by its name in a study, and further changes.

    The scenario's keys about reduction are kept if the collective reduces, and keys of its own kind if the kind is the
    same; keys in the name take precedence. The depth is the scenario's unless the name has one.
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
    """Return a scenario with a single exchange of `size_bytes` on the cluster, without other traffic or compute."""
    data = scenario.to_dict()
    ((name, job),) = data["job"].items()
    # The shortest possible compute time, since a layer must compute.
    layer = {"name": "gradient", "parameters": f"{size_bytes}B", "forward": "1ps", "backward": "1ps"}
    kept: dict[str, Any] = {"task": "exchange", "schedule": {"fusion": "0B"}}
    kept["schedule"] |= {key: job["schedule"][key] for key in OF_AN_EXCHANGE if key in job["schedule"]}
    kept |= {key: job[key] for key in ("workers", "hosts", "placement", "collective", "priority") if key in job}
    if "ps" in kept["collective"]:
        # The time of the pull has no meaning for a single exchange.
        ps = {key: value for key, value in kept["collective"]["ps"].items() if key not in ("pull", "shards")}
        kept["collective"] = {**kept["collective"], "ps": ps}
    data["job"] = {name: {**kept, "model": {"layers": [layer]}, "iterations": 1}}
    data["run"] = {**run_of_network(data), "timeline": 0}
    return Scenario.from_dict(data)


def exchange_s(result: RunResult) -> float:
    """Return the duration of the exchange of `alone`, including its launch overhead, in seconds."""
    return float(result.transfers["end_us"][-1] - result.transfers["ready_us"][-1]) / 1e6


def check_one_job(base: Scenario, what: str, *, trains: bool = False) -> None:
    """Refuse a scenario without exactly one job that communicates; with `trains`, it must all-reduce gradients."""
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
    """Refuse an empty list, and a list that names something twice."""
    if not names:
        raise ValueError(f"{what} is empty; leave it out for the default")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{what} names {twice} twice")


def messages(scenario: "Scenario | str | Path | dict[str, Any]", size: int | str, *, job: str | None = None) -> Table:
    """Return what a job's ranks send one another to exchange a gradient, message by message. Nothing is run.

    Every rank works through the same steps. It begins one when it has begun the step before and every message that was
    sent to it in the step before has arrived; it takes these in, then sends its own. Rank 0 is the job's first host.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file.
        size: bytes of the gradient, or with a unit as in `10MB`.
        job: name of the job; it may be left out where there is one.

    Returns:
        Columns `chunk` (of `schedule.depth`; chunks go side by side), `step`, `from_rank`, `to_rank`, `offset_bytes`
        and `bytes` in the buffers of both, and `action`: "reduce" adds to what the receiver has, "copy" replaces it.
        An all-to-all has all ranks' buffers one behind the other.

    Raises:
        ScenarioError: if the scenario is wrong.
        ValueError: if there is no such job, or the size cannot be read.

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
    """Return bytes; an error calls them `name`."""
    return units.parse_option(name, units.parse_bytes, size) if isinstance(size, str) else int(size)
