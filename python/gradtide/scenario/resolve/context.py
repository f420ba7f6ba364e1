"""`Context`, the input of every check: the keys, their locations in the file, and the faults found so far."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradtide.errors import Fault, nearest
from gradtide.scenario.keys import Run, ScenarioFile
from gradtide.scenario.keys.cluster import Queue
from gradtide.scenario.keys.job import JobTable
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.source import Faults, Loc, Source
from gradtide.scenario.tables import LayerTable

MAX_WORKERS = 1_000_000


@dataclass
class Context:
    """A scenario during the checks: its keys, and the results so far.

    Attributes:
        file: the keys. Values that have a wrong type or unit are replaced by defaults.
        bad: paths of the replaced values.
        cluster_name: name of the built-in cluster; None if the scenario names none.
        tables: models that have been read, by job.
        rankings: the user's send order, as names of layers, by job.
        too_large: faults of models that exceed a worker's memory, by job. They prevent a run, not the reading.
    """

    file: ScenarioFile
    source: Source
    base_dir: Path
    bad: set[Loc]
    faults: Faults
    cluster_name: str | None = None
    tables: dict[str, LayerTable] = field(default_factory=dict)
    rankings: dict[str, list[str]] = field(default_factory=dict)
    too_large: dict[str, Fault] = field(default_factory=dict)

    def add(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None, *, at_key: bool = False) -> None:
        """Add a fault at the path `loc`."""
        self.faults.append(self.source.fault(code, loc, msg, hint, value, at_key=at_key))

    def no_effect(self, loc: Loc, why: str, hint: str) -> None:
        """Add the fault that the key at `loc` has no effect; `why` continues "has no effect", as in "with fifo"."""
        self.add("GT015", loc, f"`{loc[-1]}` has no effect {why}", hint, at_key=True)

    def too_many(self, loc: Loc, count: int, limit: int, what: str) -> None:
        """Add the fault that the number `count` of `what`, given at `loc`, exceeds the limit of a run."""
        msg = f"{count:,} {what} are too many"
        self.add("GT050", loc, msg, f"a run has at most {limit:,}: its results are held in memory", count)

    def ok(self, *loc: str) -> bool:
        """Return whether no value at, above or below a path was replaced because of a wrong type or unit."""
        return not any(b == loc[: len(b)] or loc == b[: len(loc)] for b in self.bad)

    def misspelt(self, loc: Loc, *keys: str) -> bool:
        """Return whether the table at `loc` has an unknown key, already a fault, that resembles one of `keys`."""
        unknown = [str(b[-1]) for b in self.bad if b[:-1] == loc]
        known = {*JobTable.declared(), *TrafficTable.declared(), *Queue.declared(), *Run.declared()}
        return any(nearest(u, keys) for u in unknown if u not in known)

    @property
    def is_packet(self) -> bool:
        """Whether the engine is packet, and `run.engine` is valid."""
        return self.file.run.engine == "packet" and self.ok("run", "engine")

    @property
    def is_open_star(self) -> bool:
        """Whether the jobs determine the number of hosts: in a star without `hosts`. False if `node` is not valid."""
        topology = self.file.cluster.topology
        return topology.kind == "star" and topology.hosts is None and self.ok("cluster", "node")
