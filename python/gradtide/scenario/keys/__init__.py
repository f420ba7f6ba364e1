"""Every key of a scenario file: type, default, unit and meaning; source of schema, reference, resolved file and spec.

A key is written once, where its table declares it. Quantities are held as whole picoseconds, bytes and bits per second
and written back with their units. What one key means for another is not here but in `check`.
"""

from functools import cache
from typing import Any

from gradtide.scenario.keys.cluster import Cluster, Link
from gradtide.scenario.keys.job import Collective, Compute, JobTable, Ps, Schedule
from gradtide.scenario.keys.run import Run
from gradtide.scenario.keys.table import Table, key, notes
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.source import Loc


class ScenarioFile(Table):
    """Training jobs and background traffic on a cluster. Quantities have units: B is byte, b is bit."""

    job: dict[str, JobTable] = key(default={}, examples=[{"train": {"model": "resnet50", "workers": 8}}])
    """Training jobs by name; at least one."""
    cluster: Cluster = key(default={}, examples=[{"link": {"rate": "10Gbps"}}])
    """Hosts, links and switches."""
    traffic: dict[str, TrafficTable] = key(default={}, examples=[{"web": {"sizes": "web-search", "load": 0.3}}])
    """Background flows, by tenant."""
    run: Run = key(default={}, examples=[{"engine": "pipe", "seed": 0}])
    """Engine, seed and length."""


@cache
def short_names() -> dict[str, Loc]:
    """Return the path of every key that has a short name, from its job or from the root; `*` stands for the job."""
    tables: list[tuple[type[Table], Loc]] = [
        (JobTable, ("job", "*")),
        (Compute, ("job", "*", "compute")),
        (Collective, ("job", "*", "collective")),
        (Ps, ("job", "*", "collective", "ps")),
        (Schedule, ("job", "*", "schedule")),
        (Cluster, ("cluster",)),
        (Link, ("cluster", "link")),
        (Run, ("run",)),
    ]
    found: dict[str, Loc] = {}
    for table, path in tables:
        for name, info in table.declared().items():
            short = notes(info).short
            short = table.SHORT.format(name) if short is None else short
            if short:
                assert short not in found, f"{short} is the short name of two keys"
                found[short] = (*path, name)
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file; every field has a description and examples."""
    schema = ScenarioFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gradtide scenario", **schema}
