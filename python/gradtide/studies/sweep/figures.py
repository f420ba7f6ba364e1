"""Figures of a study's runs: their names, which of them a run will have, and whether a larger value is better.

A figure is a number in a run's summary. Its name is its path, such as `jobs.train.iteration_time_ms.mean`. To know the
names before any run, a small example of each kind of job is run once, and the names of its jobs are replaced.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from gradtide.errors import nearest
from gradtide.scenario import Scenario
from gradtide.studies.trained import trained

if TYPE_CHECKING:
    from gradtide.scenario import Job

PARTS = ("jobs", "traffic", "links", "simulated_ms")
"""Keys of a summary that contain figures. CPU and wall-clock times are no figures: they differ between equal runs."""

ADVICE = ("fits_on",)
"""Tables of a summary that suggest another mesh; their numbers do not describe the run, so they are no figures."""

DEFAULTS = (".iteration_time_ms.mean", ".all.mean_fct_ms", "")
"""A study without `figure` ranks by the first figure with one of these suffixes, tried in this order, that varies."""

MOST = (
    *("alpha", "utilisation", "speed_up", "scaling_efficiency", "mfu", "completed"),
    *("_per_s", "_per_s_per_gpu", "_bps", "goodput", "throughput"),
)
"""Ends of names of figures for which the largest value is best: whole last parts, or suffixes that begin with `_`."""

AXES = ("tp", "cp", "ep", "fsdp", "dp", "expert fsdp", "expert dp", "pp", "embedding", "norm")
"""All groups of ranks that a job on a mesh can have (crates/train/src/parallel)."""
PHASES = ("begin", "forward", "recompute", "backward", "optimizer", "end")
_GROUP = re.compile(r"^(parallel\.(groups|critical_path_ms)\.)[^.]+(.*)$")
_LAYER = {"name": "a", "parameters": "8B", "forward": "1us", "backward": "1us"}
_WORKER = re.compile(r"^(asynchrony\.workers\.)\d+(.*)$")


def of_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a run's summary by name, such as `jobs.train.iteration_time_ms.mean`."""
    return dict(_numbers({part: summary[part] for part in PARTS if part in summary}, ""))


def _numbers(tree: Mapping[str, Any], home: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{home}{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}.") if key not in ADVICE else ()
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield path, value


def more_is_better(name: str) -> bool:
    """Return whether the largest value of a figure is the best one.

    Example:
        >>> more_is_better("jobs.train.samples_per_s"), more_is_better("jobs.train.iteration_time_ms.mean")
        (True, False)
    """
    last = name.rpartition(".")[2]
    return ".margin_ms." in name or any(last == end or (end[0] == "_" and last.endswith(end)) for end in MOST)


def expected(scenario: Scenario) -> Iterator[str]:
    """Yield the names of all figures that a run of a scenario can have, without running the scenario."""
    for job in scenario.jobs:
        for name in _of_job(job):
            yield f"jobs.{job.name}.{name}"
    for tenant in scenario.traffic_names:
        for name in _example("plain")["traffic.web"]:
            yield f"traffic.{tenant}.{name}"
    yield from _example("plain")[""]


def kinds(scenario: Scenario) -> tuple[object, ...]:
    """Return a key that is equal for scenarios whose runs have the same names of figures."""
    return (*((job.name, *_kinds(job), job.workers) for job in scenario.jobs), scenario.traffic_names)


def is_recorded(name: str, scenario: Scenario) -> bool:
    """Return whether `name` may belong to a rank group of a recorded step; such names are unknown before the run."""
    return any(
        name.startswith(f"jobs.{job.name}.parallel.")
        for job in scenario.jobs
        if job.is_parallel and not job.parallel_model
    )


def _kinds(job: "Job") -> list[str]:
    found = ["plain"] + ["parallel"] * job.is_parallel
    return found + ["async"] * (job.collective.bound != 0)


def _of_job(job: "Job") -> Iterator[str]:
    names = dict.fromkeys(name for kind in _kinds(job) for name in _example(kind)["jobs.train"])
    # The example runs lack this figure: only jobs with noise or a straggler have it.
    yield "slowest_worker"
    for name in names:
        group, worker = _GROUP.match(name), _WORKER.match(name)
        if group is not None:
            for part in AXES if group[2] == "groups" else (*AXES, *PHASES):
                yield f"{group[1]}{part}{group[3]}"
        elif worker is not None:
            for number in range(job.workers):
                yield f"{worker[1]}{number}{worker[2]}"
        else:
            yield name


@cache
def _example(kind: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a small run's figures by prefix: `jobs.train`, `traffic.web`, and "" for all others."""
    from gradtide.studies.run import sample, simulate

    scenario = sample()
    if kind == "async":
        servers = {"ps": {"servers": 1, "pull": "start", "sync": "async"}}
        scenario = Scenario.from_dict(
            {"job": {"train": {"model": {"layers": [_LAYER]}, "workers": 2, "iterations": 1, "collective": servers}}}
        ).replace(engine="fluid")
    elif kind == "parallel":
        scenario = trained("llama3-8b", "h100-hgx/1", parallel={"tp": 8}, seq=128, global_batch=1)
    found: dict[str, list[str]] = {"jobs.train": [], "traffic.web": [], "": []}
    for name in of_summary(simulate(scenario, None).summary):
        home = next(home for home in found if name.startswith(home))
        found[home].append(name.removeprefix(f"{home}.") if home else name)
    return {home: tuple(names) for home, names in found.items()}


def alike(name: str, known: Iterable[str]) -> str:
    """Return the known figures that are most similar to the misspelt `name`, as text; empty if none is similar."""
    known = list(dict.fromkeys(known))
    near = nearest(name, known)
    if near is None:
        wanted = _words(name)
        shared = {one: len(wanted & _words(one)) for one in known}
        most = max(shared.values(), default=0)
        found: Sequence[str] = [one for one, count in shared.items() if count == most > 0]
        found = sorted(found, key=len)[:3]
    else:
        found = [near]
    return " or ".join(f"`{one}`" for one in found)


def _words(name: str) -> set[str]:
    """Return the words in a figure's name, without words that do not distinguish figures."""
    return set(re.split(r"[._]", name)) - {"jobs", "traffic", "ms", "mean", "parallel"}
