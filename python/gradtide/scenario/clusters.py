"""Replaces the name of a built-in cluster by its table: `cluster = "h100-hgx/32"` or `preset = "h100-hgx/32"`.

This happens before the keys are read, so all other modules get a table. The table depends on the engine
(`presets.cluster`). Therefore the scenario keeps the name, which is replaced again when the engine changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide.errors import ScenarioError, hinted
from gradtide.scenario.source import Fail, Failure, Faults, Loc, Source

PRESET = "preset"
"""Key of `[cluster]` that names a built-in cluster; the other keys of `[cluster]` override the keys of this cluster."""


def name_of(cluster: object) -> object:
    """Return the name of the built-in cluster in the value of `cluster`, unchecked; `None` for a table without name."""
    return cluster.get(PRESET) if isinstance(cluster, Mapping) else cluster if isinstance(cluster, str) else None


def opened(cluster: object) -> object:
    """Return the value of `cluster` as a table in which keys can be set: a name becomes the table's `preset`."""
    return {PRESET: cluster} if isinstance(cluster, str) else cluster


def expand(raw: dict[str, Any], source: Source) -> tuple[str | None, Faults]:
    """Replace the name of a built-in cluster in `raw` by its table, and set `run.engine` if it is missing.

    Returns:
        The name, or None if there is no valid name; and the fault of an unknown name, which is deleted from `raw`.
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
    """Return the keys of a scenario file with the name of a built-in cluster replaced by its table.

    Raises:
        ScenarioError: if there is no such cluster.
    """
    run = data.get("run", {})
    found = {**data, "run": dict(run) if isinstance(run, Mapping) else run}
    _, faults = expand(found, Source())
    if faults:
        raise ScenarioError(faults)
    return found


def _table(name: object, engine: object, fail: Fail, faults: Faults) -> dict[str, Any] | None:
    from gradtide import presets

    if not isinstance(name, str):
        faults.append(fail("GT011", "the name of a cluster is a text", f'write {PRESET} = "ethernet-25g/16"'))
        return None
    found = presets.cluster(name, engine if isinstance(engine, str) else None)
    if found is None:
        faults.append(fail("GT006", f"there is no cluster {name[:200]}", hint_of(name)))
    return found


def hint_of(name: str) -> str:
    """Return a hint for an unknown cluster, such as a similar name."""
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
    """Return `cluster` with an absolute path in `topology.links`, so that it can be used in another folder."""
    topology = cluster.get("topology") if isinstance(cluster, Mapping) else None
    if not isinstance(topology, Mapping) or not isinstance(links := topology.get("links"), str):
        return cluster
    return {**cluster, "topology": {**topology, "links": str((base_dir / links).resolve())}}


def count_of(name: str, places: int) -> int:
    """Return N of `NAME/N`, the number of hosts or nodes that a built-in cluster needs for `places` workers."""
    from gradtide import presets

    found = presets.cluster(name)
    node = {} if found is None else found["cluster"].get("node", {})
    return -(-places // int(node.get("gpus", 1)))


_OF_A_NETWORK = (PRESET, "topology", "link", "node")
"""Keys of `[cluster]` whose loss needs no warning, because every cluster defines its own network."""


def left_out(before: object, given: Mapping[str, Any], name: str, scenario: str) -> Iterator[str]:
    """Yield warnings about keys that are lost when `[cluster]` of `given`, called `name`, replaces `before`."""
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
