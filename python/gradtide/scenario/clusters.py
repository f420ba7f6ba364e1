"""Clusters by name: expands `cluster = "h100-hgx/32"` and `[cluster] preset = "h100-hgx/32"`.

A name is replaced by its table before the keys are read, so no later step sees a name. The table depends on the engine
(`presets.cluster`); the scenario keeps the name, which is expanded again when the engine changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide.errors import ScenarioError, hinted
from gradtide.scenario.source import Fail, Failure, Faults, Loc, Source

PRESET = "preset"
"""Key of `[cluster]` that names a built-in cluster; the other keys of the table override that cluster's keys."""


def name_of(cluster: object) -> object:
    """Return the name in `cluster` as given; `None` for a table without one."""
    return cluster.get(PRESET) if isinstance(cluster, Mapping) else cluster if isinstance(cluster, str) else None


def opened(cluster: object) -> object:
    """Return `cluster` as a table, so that keys can be set: a name becomes a table with that preset."""
    return {PRESET: cluster} if isinstance(cluster, str) else cluster


def expand(raw: dict[str, Any], source: Source) -> tuple[str | None, Faults]:
    """Replace a cluster's name by its whole table; a scenario without an engine gets the engine of the cluster.

    Returns:
        The name, or None without a known name; and the fault of an unknown name, which is then removed from `raw`.
    """
    faults, cluster = Faults(), raw.get("cluster", {})
    name = name_of(cluster)
    if name is None:
        return None, faults
    loc: Loc = ("cluster",) if isinstance(cluster, str) else ("cluster", PRESET)
    run = raw.setdefault("run", {})
    engine = run.get("engine") if isinstance(run, dict) else None
    found = _table(name, engine, Failure(source, loc, name), faults)
    if found is None:
        del raw["cluster"]
        return None, faults
    over = {key: value for key, value in cluster.items() if key != PRESET} if isinstance(cluster, dict) else {}
    raw["cluster"] = _merged(found["cluster"], over)
    if isinstance(run, dict):
        run.setdefault("engine", found["run"]["engine"])
    return str(name), faults


def whole(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a scenario file with the name of its cluster replaced by the table.

    Raises:
        ScenarioError: if the name is unknown.
    """
    run = data.get("run", {})
    found = {**data, "run": dict(run) if isinstance(run, Mapping) else run}
    _, faults = expand(found, Source())
    if faults:
        raise ScenarioError(faults)
    return found


def _table(name: object, engine: object, fail: Fail, faults: Faults) -> dict[str, Any] | None:
    """Return the keys of a named cluster, or add a fault if the name is unknown."""
    from gradtide import presets

    if not isinstance(name, str):
        faults.append(fail("GT011", "the name of a cluster is a text", f'write {PRESET} = "ethernet-25g/16"'))
        return None
    found = presets.cluster(name, engine if isinstance(engine, str) else None)
    if found is None:
        faults.append(fail("GT006", f"there is no cluster {name[:200]}", hint_of(name)))
    return found


def hint_of(name: str) -> str:
    """Return a hint with the nearest known cluster name."""
    from gradtide import presets

    known = presets.cluster_names()
    if name.partition("/")[0] in known:
        return f"write {name.partition('/')[0]}/N, where N is a number of hosts or nodes of at least 1"
    listed = f"write {known[0]}/N for N hosts; there are {', '.join(known)}, and files (.toml, .json)"
    return hinted(name.partition("/")[0], known, listed, "{}/N", kind="cluster")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively; a nested table with a `kind` replaces the old one as a whole."""
    found = dict(base)
    for key, value in over.items():
        own = found.get(key)
        if isinstance(value, dict) and isinstance(own, dict) and "kind" not in value:
            found[key] = _merged(own, value)
        else:
            found[key] = value
    return found


def with_absolute_paths(cluster: Any, base_dir: Path) -> Any:
    """Return `cluster` as given, with the path of its cables absolute, for use in another folder."""
    topology = cluster.get("topology") if isinstance(cluster, Mapping) else None
    if not isinstance(topology, Mapping) or not isinstance(links := topology.get("links"), str):
        return cluster
    return {**cluster, "topology": {**topology, "links": str((base_dir / links).resolve())}}


def count_of(name: str, places: int) -> int:
    """Return the number of hosts, or nodes, of a named cluster that hold `places` workers."""
    from gradtide import presets

    found = presets.cluster(name)
    node = {} if found is None else found["cluster"].get("node", {})
    return -(-places // int(node.get("gpus", 1)))


_OF_A_NETWORK = (PRESET, "topology", "link", "node")
"""Keys whose replacement by another cluster is expected and needs no warning."""


def left_out(before: object, given: Mapping[str, Any], name: str, scenario: str) -> Iterator[str]:
    """Yield a sentence for each key that is lost when `given` replaces the `[cluster]` of a scenario."""
    new = given.get("cluster", {})
    kept = {*_OF_A_NETWORK, *(new if isinstance(new, Mapping) else ())}
    lost = [key for key in before if key not in kept] if isinstance(before, Mapping) else []
    if lost:
        yield f"[cluster] of {scenario} is replaced by that of {name}, without its {_listed(lost)}"
    others = [f"{kind}.{key}" for kind in ("job", "traffic") for key in given.get(kind, ())]
    others += [f"run.{key}" for key in given.get("run", ()) if key != "engine"]
    if others:
        yield f"of {name}, only [cluster] is used: {_listed(others)} is left out"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
