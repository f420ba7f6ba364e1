"""Reads a scenario from TOML, JSON or a Python dict into a `Scenario`, all of whose values are valid.

All faults of a file are reported at once, each with its line. Modules of this package: `keys` declares the keys,
`source` maps keys to lines, `tables` reads models, `origins` reads background flows, `resolve` checks keys against one
another and fills in defaults, `core` converts the result into the input of the Rust core, and `write` converts it into
TOML. This module is longer than 600 lines because `Scenario` is the public interface to all of them.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.layers import Layer
from gradtide.recognise import expecting
from gradtide.scenario import chance, clusters, read, support
from gradtide.scenario.core import ns3
from gradtide.scenario.core.input import spec
from gradtide.scenario.fabric import Cable, Fabric, Group, Nodes, Reach, Tree, Wiring
from gradtide.scenario.job import Job
from gradtide.scenario.keys import Probe, ScenarioFile, json_schema, short_names
from gradtide.scenario.keys.cluster import Cluster, Node
from gradtide.scenario.opdag import OpDag
from gradtide.scenario.origins import Origin
from gradtide.scenario.resolve import resolve
from gradtide.scenario.resolve.network import announced_packets, bands_of
from gradtide.scenario.resolve.resolved import Resolved
from gradtide.scenario.source import (
    Faults,
    Loc,
    Overlay,
    Source,
    of_command_line,
    parse_json,
    parse_toml,
    read_text,
    scalar,
)
from gradtide.scenario.tables import graph_table, layers_table
from gradtide.scenario.write import toml, toml_value
from gradtide.traffic import BackgroundFlows

__all__ = ["BackgroundFlows", "Fabric", "Job", "Scenario", "Tree", "Wiring", "json_schema", "preset_names"]

_PRESETS = Path(__file__).resolve().parent.parent / "presets"

_EITHER = {"workers": "hosts", "hosts": "workers"}
_INSTEAD: dict[str, tuple[str, ...]] = {
    "replay": ("sizes", "cdf", "arrivals", "load", "burst", "replay_sha256", "flows", "incast", "bursts"),
    "sizes": ("cdf", "replay", "replay_sha256", "flows", "incast", "bursts"),
    "arrivals": ("load", "replay", "replay_sha256", "flows", "incast", "bursts"),
    "load": ("arrivals", "replay", "replay_sha256", "flows", "incast", "bursts"),
    "incast": ("sizes", "cdf", "arrivals", "load", "burst", "replay", "replay_sha256", "flows", "bursts"),
    "bursts": ("sizes", "cdf", "arrivals", "load", "burst", "replay", "replay_sha256", "flows", "incast"),
}
"""For each key of `traffic.NAME`, the keys that it excludes: `set` deletes them, unless the same call sets them."""


class Scenario:
    """A valid scenario with all defaults filled in. It is immutable.

    Two scenarios are equal if their resolved TOML is equal; the folders of replayed files are not compared.
    """

    _data: dict[str, Any]
    _source: Source
    _base_dir: Path
    _resolved: Resolved

    def __init__(self, data: Mapping[str, Any], source: Source, base_dir: Path) -> None:
        resolved = resolve(data, source, base_dir)
        # Assigned through `vars`, because `__setattr__` refuses every assignment.
        vars(self).update(_data=read.plain(data, source), _source=source, _base_dir=base_dir, _resolved=resolved)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Scenario never changes; use .replace() to make another (tried to set {name})")

    # construction

    @classmethod
    def load(cls, path: str | Path) -> "Scenario":
        """Read a scenario file (.toml or .json), or a preset such as `paper/gao2020-ch4`.

        Raises:
            ScenarioError: with every fault of the file.
        """
        name = str(path)
        file = Path(path)
        if name.startswith("paper/") and file.suffix not in (".toml", ".json"):
            file = _PRESETS / "papers" / (name.removeprefix("paper/") + ".toml")
            if "/" in name.removeprefix("paper/") or not file.is_file():
                raise ScenarioError([_no_such(name)])
            return cls.from_toml(file.read_text(encoding="utf-8"), name=name)
        if not os.path.exists(file) and file.suffix not in (".toml", ".json"):
            raise ScenarioError([_no_such(name)])
        text = read_text(file, name, of_command_line(name))
        with expecting(text, name, "a scenario", "scenario"):
            if file.suffix == ".json":
                data = parse_json(text, name)
                if not isinstance(data, dict):
                    fault = Fault("GT011", "", "a scenario is a JSON object", None, 'write { "job": … }', name)
                    raise ScenarioError([fault])
                return cls(data, Source(name, text), file.parent)
            return cls.from_toml(text, name=name, base_dir=file.parent)

    @classmethod
    def from_toml(cls, text: str, *, name: str = "<toml>", base_dir: str | Path = ".") -> "Scenario":
        """Read the text of a scenario file.

        Args:
            text: TOML.
            name: name of the file, for error messages.
            base_dir: folder to which relative paths in the text refer.

        Raises:
            ScenarioError: with every fault.
        """
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        return cls(parse_toml(text, name), Source(name, text), Path(base_dir))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], base_dir: str | Path = ".") -> "Scenario":
        """Read a dict with the keys of a scenario file.

        Raises:
            ScenarioError: with every fault. Faults in a dict have no line number.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"a scenario is a dict, not a {type(data).__name__}")
        return cls(data, Source(), Path(base_dir))

    # variants

    def replace(self, **changes: Any) -> "Scenario":
        """Return a copy with some keys changed. Keys are given by short name, such as `link_rate`.

        `None` resets a key to its default. A key of a job changes in all jobs. Setting `workers` deletes `hosts`, and
        vice versa. `model` also accepts a profile, a model read from a trace, a list of layers or an `OpDag`, and
        `collective` also accepts the name of an algorithm.

        Args:
            changes: new value of each key, by the short name that docs/reference/scenario.md lists.

        Raises:
            TypeError: if a short name is unknown.
            ScenarioError: if a value is wrong.

        Example:
            >>> base = Scenario.load("paper/gao2020-ch4")
            >>> base.replace(link_rate="1Gbps", order="priority", barrier=False).link_rate_bps
            1000000000
        """
        data, overlays, known = _copy(self._data), dict(self._source.overlays), short_names()
        for name, value in changes.items():
            if name not in known:
                hint = did_you_mean(name, known, "docs/reference/scenario.md lists the names", "'{}'")
                raise TypeError(f"replace() has no {name!r}; {hint}")
            jobs = data.get("job", {}) if known[name][:1] == ("job",) else ("",)
            paths = [tuple(job if part == "*" else part for part in known[name]) for job in jobs]
            value = _written_value(name, value)
            _open_for(data, known[name])
            text = f"{name}={_shown(value)}"
            for path in paths:
                if name in _EITHER and value is not None:
                    table = data["job"][path[1]]
                    table.pop(_EITHER[name], None)
                    if isinstance(table.get("placement"), list):
                        del table["placement"]  # it lists the old workers' hosts
                _put(data, path, value)
                overlays = _over(overlays, path, Overlay("replace()", text, len(name) + 1))
        return Scenario(data, replace(self._source, overlays=overlays), self._base_dir)

    def set(self, values: Mapping[str, Any]) -> "Scenario":
        """Return a copy with some keys changed. Keys are given by dotted path, as in the option `--set`.

        Args:
            values: new value by path, as in `{"cluster.link.rate_bps": "1Gbps", "job.train.workers": "16"}`. A string
                is parsed as a TOML value if possible; otherwise it is the value itself. Setting `replay` of a tenant
                deletes its `sizes` and `arrivals`, and vice versa.

        Raises:
            ScenarioError: if a path is unknown or a value is wrong; the faults name `--set` as their file.
        """
        data, overlays = _copy(self._data), dict(self._source.overlays)
        faults = Faults()
        # `cluster` is set first, because it would overwrite single keys of the cluster.
        for dotted_path, given in sorted(values.items(), key=lambda item: item[0].strip() != "cluster"):
            text = f"{dotted_path}={given if isinstance(given, str) else _shown(given)}"
            value = scalar(given) if isinstance(given, str) else given
            path: Loc = tuple(part.strip() for part in dotted_path.split("."))
            _open_for(data, path)
            problem = _path_problem(data, path)
            if problem is not None:
                width = len(dotted_path) or 1
                faults.append(Fault("GT017", dotted_path, problem[0], given, problem[1], "--set", None, text, 0, width))
                continue
            if path[0] == "traffic" and value is not None:
                home = data["traffic"][path[1]]
                for key in _INSTEAD.get(str(path[2]), ()):
                    if not any(other.startswith(f"traffic.{path[1]}.{key}") for other in values):
                        home.pop(key, None)
            _put(data, path, value)
            overlays = _over(overlays, path, Overlay("--set", text, len(dotted_path) + 1))
        if faults:
            raise ScenarioError(faults)
        return Scenario(data, replace(self._source, overlays=overlays), self._base_dir)

    def on_cluster(
        self, cluster: "str | Mapping[str, Any] | Scenario", *, base_dir: str | Path = ".", name: str | None = None
    ) -> "Scenario":
        """Return a copy whose `[cluster]` is replaced as a whole; all other tables remain.

        If the scenario names no engine, the engine that comes with `cluster` is used. The new cluster must have enough
        hosts for all jobs and background flows. `warnings` lists the keys that are lost: keys of the old `[cluster]`
        that the new one does not set (except preset, topology, link and node), and all keys of the argument `cluster`
        outside its table `[cluster]`.

        Args:
            cluster: name of a built-in cluster, which without `/N` gets the scenario's number of hosts; a dict with the
                keys of a scenario file; or a scenario.
            base_dir: folder to which relative paths in a dict refer.
            name: name of the cluster in errors. Default: its own.

        Raises:
            ScenarioError: if the cluster does not exist, or the scenario does not fit on it.

        Example:
            >>> job = {"model": "vgg16", "workers": 4}
            >>> base = Scenario.from_dict({"job": {"train": job}, "run": {"engine": "packet"}})
            >>> moved = base.on_cluster("ethernet-100g/8")
            >>> moved.link_rate_bps, moved.hosts, moved.engine
            (100000000000, 8, 'packet')
        """
        if isinstance(cluster, Scenario):
            return self.on_cluster(cluster._data, base_dir=cluster._base_dir, name=name or cluster.name)
        if isinstance(cluster, str):
            sized = self._sized(cluster)
            cluster, name = {"cluster": sized}, name or sized
        given = cluster
        unknown = next((key for key in given if key not in ScenarioFile.declared()), None)
        if unknown is not None:
            hint = 'a cluster is written as in { cluster = { link = { rate = "25Gbps" } } }'
            raise ScenarioError(
                [Fault("GT012", unknown, f"unknown field `{unknown}`", given[unknown], hint, name or "")]
            )
        table = clusters.with_absolute_paths(given.get("cluster", {}), Path(base_dir))
        name = name or _shown(table)
        data = _copy(self._data)
        before, run = data.pop("cluster", {}), given.get("run")
        data["cluster"] = table
        if isinstance(run, Mapping) and "engine" in run and "engine" not in data.get("run", {}):
            data.setdefault("run", {})["engine"] = run["engine"]
        overlays = _over(self._source.overlays, ("cluster",), Overlay("replace()", f"cluster={name}", len("cluster=")))
        notes = clusters.left_out(before, given, name, self.name)
        source = replace(self._source, overlays=overlays, notes=(*self._source.notes, *notes))
        return Scenario(data, source, self._base_dir)

    def with_warning(self, text: str) -> "Scenario":
        """Return a copy with `text` added to `warnings`."""
        return Scenario(self._data, replace(self._source, notes=(*self._source.notes, text)), self._base_dir)

    def _sized(self, name: str) -> str:
        """Return a cluster's name with this scenario's number of hosts, unless the name or the jobs determine it."""
        topology = self._resolved.file.cluster.topology
        if "/" in name or (topology.kind == "star" and topology.hosts is None):
            return name
        return f"{name}/{clusters.count_of(name, self.hosts)}"

    # contents

    @property
    def name(self) -> str:
        """Name of the file or preset that the scenario was read from; `<dict>` for a dict."""
        return self._source.name

    @property
    def given(self) -> dict[str, Any]:
        """The keys as the user wrote them: without defaults, and with files and built-in clusters by name."""
        data: dict[str, Any] = _copy(self._data)
        return data

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The training jobs with all defaults filled in, in the order of the file."""
        return self._resolved.jobs

    @cached_property
    def ranks_load(self) -> dict[str, tuple[int, int, int]]:
        """Work per iteration of each parallel job, by name of the job; empty unless every rank is simulated.

        The three numbers are the compute ops plus transfers, the messages, and the bytes that cross network cards.
        """
        from gradtide.scenario.core import queries  # slow: it loads the core

        return queries.ranks_load(self) if self._resolved.all_simulated else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings, one sentence each, for example about parts of a model's file that have no effect on the job."""
        return self._resolved.warnings

    @property
    def engine(self) -> str:
        """Network engine: fluid or packet."""
        return self._resolved.file.run.engine

    @property
    def accuracy_ppm(self) -> int | None:
        """Maximum relative error of results on the fluid engine, in parts per million; None if rates are exact."""
        return self._resolved.file.run.accuracy_ppm

    @property
    def seed(self) -> int:
        """Seed of all random streams."""
        return self._resolved.file.run.seed

    @cached_property
    def drawn(self) -> tuple[str, ...]:
        """What the seed determines, such as "the routes of connections"; empty if the seed has no effect."""
        return chance.drawn(self._resolved)

    def different(self, seeds: Iterable[int]) -> list[int]:
        """Return `seeds` without duplicates; only the first one if the seed has no effect on the run."""
        return list(dict.fromkeys(seeds))[: None if self.drawn else 1]

    @property
    def hosts(self) -> int:
        """Number of hosts of the cluster."""
        return self._resolved.fabric.host_count

    @property
    def node(self) -> Node | None:
        """Table `cluster.node`: GPUs per machine and the network between them; None if every host is one worker."""
        return self._resolved.file.cluster.node

    @property
    def cluster(self) -> Cluster:
        """Table `cluster`, including defaults."""
        return self._resolved.file.cluster

    @property
    def fabric(self) -> Fabric:
        """Topology of the network."""
        return self._resolved.fabric

    @cached_property
    def reach(self) -> Reach:
        """Largest hop count, lowest link rate and longest link delay over all routes between communicating hosts."""
        return self._resolved.reach

    @cached_property
    def crossed(self) -> "tuple[Cable, ...]":
        """The cables of a custom network that messages may cross; empty for other networks."""
        fabric = self.fabric
        groups: Iterable[Group] = self._resolved.groups()
        if isinstance(fabric, Nodes):
            groups, fabric = fabric.between_cards(groups), fabric.cards
        return tuple(fabric.crossed(groups)) if isinstance(fabric, Wiring) else ()

    @property
    def host_latency_ps(self) -> int:
        """Time that a host's network stack takes for a message, picoseconds."""
        return self._resolved.file.cluster.host_latency_ps

    @property
    def host_rate_bps(self) -> float:
        """Rate of the slowest stage of a host (`cluster.host.stages`), bits per second; infinite without stages."""
        host = self._resolved.file.cluster.host
        stages = {} if host is None else host.stages.core()
        return min((rate_bps for rate_bps in stages.values() if rate_bps is not None), default=math.inf)

    @property
    def link_rate_bps(self) -> int:
        """Nominal rate of links, bits per second, unless the topology sets another rate."""
        return self._resolved.file.cluster.link.rate_bps

    @property
    def link_delay_ps(self) -> int:
        """Propagation delay of links, picoseconds, unless the topology sets another delay."""
        return self._resolved.file.cluster.link.delay_ps

    @cached_property
    def traffic(self) -> tuple[BackgroundFlows, ...]:
        """The background flows of each tenant, in the order of the file. Random flows are drawn on first access."""
        return tuple(origin.flows.draw() for origin in self._resolved.origins)

    @property
    def traffic_names(self) -> tuple[str, ...]:
        """Names of the tenants with background flows, in the order of the file. Random flows are not drawn."""
        return tuple(origin.name for origin in self._resolved.origins)

    @property
    def expected_traffic(self) -> tuple[tuple[int, int], ...]:
        """Number of flows and payload bytes of each tenant. For random flows both are expected values.

        Unless flows are random, the bytes that leave an edge switch are limited to what its uplinks can send within
        `run.duration`.
        """
        return tuple((origin.flows.expected_count, self._carried_bytes(origin)) for origin in self._resolved.origins)

    def _carried_bytes(self, origin: Origin) -> int:
        between = origin.flows.between()
        if between is None or self.duration_ps is None:
            return origin.flows.expected_bytes
        carried, leaving = 0, Counter[int]()
        for src, dst, size_bytes in between:
            edge = self.fabric.edge_of(src)
            if edge == self.fabric.edge_of(dst):
                carried += size_bytes
            else:
                leaving[edge] += size_bytes
        for edge, size_bytes in leaving.items():
            uplinks_bps = self.fabric.uplinks_bps(edge)
            most = size_bytes if uplinks_bps is None else uplinks_bps * self.duration_ps // (8 * 10**12)
            carried += min(size_bytes, most)
        return carried

    @property
    def segment_bytes(self) -> int:
        """Payload of a full packet, bytes."""
        return self._resolved.file.cluster.transport.segment_bytes

    @property
    def transport(self) -> str:
        """Name of the packet engine's transport, such as newreno."""
        return self._resolved.file.cluster.transport.kind

    @property
    def queue(self) -> str:
        """Name of the packet engine's queue discipline, such as pfifo_fast."""
        return self._resolved.file.cluster.queue.kind

    @property
    def queue_packets(self) -> int:
        """Capacity of a port's queue in packets; a capacity in bytes is converted to full packets, rounded up."""
        capacity = self._resolved.file.cluster.queue.capacity
        return -(-capacity.size // self.segment_bytes) if capacity.is_bytes else capacity.size

    @property
    def band_count(self) -> int:
        """Number of bands of every queue."""
        return bands_of(self._resolved.file.cluster.queue)

    @property
    def probe(self) -> Probe | None:
        """Table `run.probe`: which queues and congestion windows are sampled; None without samples."""
        return self._resolved.file.run.probe

    def announced_packets(self, tenant: str) -> int | None:
        """Return the threshold in packets that the bursts of a tenant announce; None if they announce nothing."""
        file = self._resolved.file
        return announced_packets(file.traffic[tenant].announce, file.cluster.queue)

    @property
    def timeline(self) -> int:
        """Number of measured iterations whose operations are recorded individually."""
        return self._resolved.file.run.timeline_iterations

    @property
    def duration_ps(self) -> int | None:
        """Simulated time in picoseconds after which no iteration or flow starts; `None` if there is no limit."""
        return self._resolved.file.run.duration_ps

    @property
    def warmup_ps(self) -> int:
        """Warm-up in picoseconds: background flows that start before this time are excluded from statistics."""
        return self._resolved.file.run.warmup_ps

    @property
    def cooldown_ps(self) -> int:
        """Cool-down in picoseconds: background flows that start less than this before the last start do not count."""
        return self._resolved.file.run.cooldown_ps

    def is_stated(self, key: str) -> bool:
        """Return whether a file, an option or a caller sets a key; otherwise the key has its default.

        Args:
            key: dotted path, as in `job.train.compute.device`. A built-in cluster counts as setting all keys of
                `cluster`.
        """
        if key in self._source.assumed and tuple(key.split(".")) not in self._source.overlays:
            return False
        here: Any = self._data
        for part in key.split("."):
            if not isinstance(here, dict) or (key.startswith("cluster.") and clusters.PRESET in here):
                return True
            if part not in here:
                return clusters.PRESET in here
            here = here[part]
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved scenario as plain data, with all defaults and with the content of the files it names."""
        data: dict[str, Any] = _copy(self._resolved.written)
        return data

    def to_toml(self) -> str:
        """Return the resolved scenario as TOML. Reading the TOML gives an equal scenario."""
        return self._toml

    @cached_property
    def _toml(self) -> str:
        return toml(self._resolved.written)

    @cached_property
    def _identity(self) -> str:
        return self._identified(self.to_dict())

    def _identified(self, data: dict[str, Any]) -> str:
        """Return the resolved keys as TOML, without the folders of replayed files, whose digests identify them."""
        for table in data.get("traffic", {}).values():
            if "replay" in table:
                table["replay"] = Path(table["replay"]).name
        return toml(data)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the resolved TOML, in hex. The folders of replayed files are left out."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    @cached_property
    def run_sha256(self) -> str:
        """SHA-256 of the inputs of the run, in hex: like `sha256`, but without a seed that has no effect."""
        if self.drawn:
            return self.sha256
        data = self.to_dict()
        del data["run"]["seed"]
        return hashlib.sha256(self._identified(data).encode()).hexdigest()

    def check_built(self) -> None:
        """Check that the engine supports all features of the scenario, and that devices have enough memory.

        Raises:
            ScenarioError: with a fault for each feature that the engine does not model (docs/reference/engines.md), and
                for each job whose model exceeds a worker's memory.
        """
        faults = [*support.faults(self._resolved, self._source), *self._resolved.refusals]
        if faults:
            raise ScenarioError(sorted(faults, key=lambda f: f.line or 0))

    def check_for_ns3(self) -> None:
        """Check that `gradtide check --against ns3` supports all features of the scenario.

        Raises:
            ScenarioError: with a fault for each unsupported feature.
        """
        self.check_built()
        faults = ns3.faults(self._resolved, self._source, self.traffic)
        if faults:
            raise ScenarioError(sorted(faults, key=lambda f: f.line or 0))

    def spec(self) -> dict[str, Any]:
        """Return the input of the Rust core as nested dicts. Quantities are integers; their keys name the unit.

        Raises:
            ScenarioError: if `check_built` finds a fault.
        """
        self.check_built()
        return spec(self._resolved, self.traffic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        jobs = ", ".join(f"{j.name}: {j.model} on {j.workers}" for j in self.jobs)
        return f"<Scenario {self.name} ({jobs}; {self.engine})>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A scenario is pickled in resolved form, because its files may be absent on the machine that unpickles it.
        return (_restored, ({name: getattr(self, name) for name in Scenario.__annotations__},))


def _restored(state: dict[str, Any]) -> Scenario:
    scenario = Scenario.__new__(Scenario)
    vars(scenario).update(state)
    return scenario


def preset_names() -> list[str]:
    """Return the names of the scenario presets."""
    return sorted("paper/" + path.stem for path in (_PRESETS / "papers").glob("*.toml"))


def _no_such(name: str) -> Fault:
    known = preset_names()
    hint = did_you_mean(name, known, "name a .toml or .json file, or one of " + ", ".join(known), "{}")
    return Fault("GT006", "", f"there is no scenario {name[:200]}", name, hint, name[:200])


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_copy(value) for value in tree]
    return tree


def _put(data: dict[str, Any], path: Loc, value: Any) -> None:
    """Set the value at `path`, or delete the key if the value is `None`. Parents that are not tables are replaced."""
    *parents, last = (str(part) for part in path)
    for part in parents:
        if not isinstance(data.get(part), dict):
            if value is None:
                return
            data[part] = {}
        data = data[part]
    if value is None:
        data.pop(last, None)
    else:
        data[last] = value


def _over(overlays: Mapping[Loc, Overlay], path: Loc, new: Overlay) -> dict[Loc, Overlay]:
    """Return `overlays` with `new` at `path`, which replaces all overlays at or below this path."""
    return {**{loc: one for loc, one in overlays.items() if loc[: len(path)] != path}, path: new}


def _open_for(data: dict[str, Any], path: Loc) -> None:
    """Convert a cluster that is given by name into a table if `path` is a key inside the cluster."""
    if path[0] == "cluster" and len(path) > 1 and "cluster" in data:
        data["cluster"] = clusters.opened(data["cluster"])


def _path_problem(data: dict[str, Any], path: Loc) -> tuple[str, str] | None:
    """Return the message and hint for an invalid path of `--set`; None if the path is valid."""
    example = "write job.NAME.KEY, cluster.KEY, traffic.NAME.KEY or run.KEY, as in run.seed=1"
    if path == ("cluster",):
        return None
    if len(path) < 2 or not all(path) or path[0] not in ("job", "cluster", "traffic", "run"):
        near = read.nearest_path(".".join(str(p) for p in path))
        return "the path names no key that can be set", f"did you mean {near}?" if near else example
    if path[0] in ("job", "traffic"):
        names = list(data.get(str(path[0]), {}))
        if path[1] not in names:
            hint = did_you_mean(str(path[1]), names, f"there is {', '.join(names) or 'none'}", f"{path[0]}.{{}}")
            return f"the scenario has no {path[0]} `{path[1]}`", hint
        if len(path) < 3:
            return "the path names no key that can be set", example
    tree: Any = data
    for index, part in enumerate(path[:-1]):
        tree = tree.get(part, {})
        if not isinstance(tree, dict):
            name = ".".join(str(p) for p in path[: index + 1])
            return f"{name} is not a table", f"set {name} itself"
    return None


def _written_value(name: str, value: Any) -> Any:
    if name == "collective" and isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Path):
        return str(value)
    if name == "model":
        if isinstance(value, OpDag):
            return graph_table(value, value.name or "graph", value.time_unit)
        if hasattr(value, "table"):
            return value.table  # a recorded step
        layers = getattr(value, "layers", value)
        if isinstance(layers, Sequence) and all(isinstance(row, Layer) for row in layers):
            said: dict[str, Any] = {
                "bucketed": getattr(value, "bucketed", False),
                "source": getattr(value, "source", None),
                "device": getattr(value, "device", None),
                "left_out": getattr(value, "left_out", ()),
            }
            return layers_table(getattr(value, "name", "inline"), layers, **said)
    return value


def _shown(value: Any) -> str:
    try:
        text = toml_value(value)
    except (AttributeError, TypeError, ValueError, RecursionError):  # a value that TOML cannot represent
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
