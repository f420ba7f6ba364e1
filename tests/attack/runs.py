"""Random valid scenarios: each is run twice and once more from its resolved file, and gives the same bytes.

The bytes of its links are those of the messages and flows that crossed them.

A scenario is drawn key by key from the schema, so a new key is drawn without a change here. What the parser refuses is
taken out until the rest is valid.
"""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import gradtide as gt
from attack import folders, pool
from attack.inputs import Result
from gradtide.errors import GradtideError, InternalError, ScenarioError, SimulationError
from gradtide.estimate import estimate
from specs import unconserved

MOST_SECONDS, MOST_BYTES = 0.4, 3 * 10**8
"""Scenarios that are estimated to take more are drawn again: many small runs find more than few long ones."""
_DRAWS = 400
CPU_SECONDS = 60
"""Processor time that a scenario may take, which is run three times with all tables, reports and what-if runs."""

SCHEMA = gt.schema()
LAYERS = [
    {"name": f"l{index}", "forward": "1ms", "backward": "2ms", "parameters": size}
    for index, size in enumerate(("400kB", "4kB", "1MB", "40kB", "7B"))
]
MODELS: list[Any] = [
    {"kind": "thesis", "layers": 4, "size": "1MB", "time": "30ms"},
    {"name": "own", "layers": LAYERS},
    {"name": "one", "layers": LAYERS[:1]},
    "inception_v2",
]
SMALL: dict[str, list[Any]] = {
    "workers": [2, 3, 4, 5],
    "iterations": [1, 2, 3],
    "duration": ["50ms", "200ms", "1s"],
    "start": ["0s", "1ms", "30ms"],
    "hosts": [6, 8, 12],
    "idle": ["1ms", "20ms"],
    "every": ["1ms", "10ms"],
    "count": [1, 3],
    "model": MODELS,
    "seed": [0, 1, 7, 2**63 - 1],
    "rate": ["1Gbps", "10Gbps", "100Mbps"],
    "ports": [4, 6],
    "probe": [{"every": "10ms"}, {"every": "30ms", "cwnd": ["a"]}],
}
"""Values of keys whose examples make long runs."""
_SHARE = 0.3
"""How many of the optional keys a scenario has."""


def _drawn(chance: Random, schema: dict[str, Any], name: str) -> Any:
    """Return a random value that a schema allows, mostly."""
    if "$ref" in schema:
        return _table(chance, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    examples = schema.get("examples", [])
    if name in SMALL and chance.random() < 0.9:
        value = chance.choice(SMALL[name])
        if not isinstance(value, int) or schema.get("type") != "array":
            return value
    choices: list[Any] = [*examples, *schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, []) if part.get("type") != "null"]
    if parts and (not choices or chance.random() < 0.7):
        return _drawn(chance, chance.choice(parts), name)
    if schema.get("type") == "integer" and chance.random() < 0.5:
        low = schema.get("minimum", 0)
        return low + chance.choice((0, 1, 2, 3, 5))
    if schema.get("type") == "boolean":
        return chance.random() < 0.5
    if schema.get("type") == "number" and chance.random() < 0.5:
        low, high = schema.get("minimum", 0), schema.get("maximum", 2)
        return round(low + chance.random() * (min(high, low + 2) - low), 3)
    if choices:
        return chance.choice(choices)
    return schema.get("default")


def _table(chance: Random, schema: dict[str, Any]) -> dict[str, Any]:
    table = {}
    for key, inner in schema["properties"].items():
        if key in schema.get("required", ()) or chance.random() < _SHARE:
            value = _drawn(chance, inner, key)
            if value is not None:
                table[key] = value
    return table


def _first_draft(chance: Random) -> dict[str, Any]:
    kinds = SCHEMA["$defs"]
    jobs = {}
    for name in ("a", "b", "c")[: chance.choice((1, 1, 2, 3))]:
        job = _table(chance, kinds["JobTable"])
        job["model"] = chance.choice(MODELS)
        if "hosts" not in job:
            job["workers"] = chance.choice(SMALL["workers"])
        job.setdefault("iterations", chance.choice(SMALL["iterations"]))
        jobs[name] = job
    run = _table(chance, kinds["Run"])
    run["engine"] = chance.choice(("fluid", "packet"))
    data = {"job": jobs, "run": run, "cluster": _table(chance, kinds["Cluster"])}
    if chance.random() < 0.4:
        data["traffic"] = {"w": _table(chance, kinds["TrafficTable"])}
        run.setdefault("duration", chance.choice(SMALL["duration"]))
    return data


def _added(chance: Random, data: dict[str, Any], loc: str) -> bool:
    """Draw a key that the parser misses."""
    table: Any = data
    schema: Any = SCHEMA
    *above, key = loc.split(".")
    for part in above:
        schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
        links = [schema, *schema.get("anyOf", []), *schema.get("oneOf", [])]
        name = next((link["$ref"] for link in links if "$ref" in link), "/").rpartition("/")[2]
        if name not in SCHEMA["$defs"] or not isinstance(table, dict):
            return False
        schema, table = SCHEMA["$defs"][name], table.get(part)
    if not isinstance(table, dict) or key in table or key not in schema["properties"]:
        return False
    value = _drawn(chance, schema["properties"][key], key)
    table[key] = value
    return value is not None


def _without(data: dict[str, Any], loc: str) -> bool:
    """Take a key out of a scenario; a key that must be there takes its table with it."""
    path = loc.replace("[", ".").split(".")
    table: Any = data
    holders = []
    for part in path:
        if not isinstance(table, dict) or part not in table:
            break
        holders.append((table, part))
        table = table[part]
    if len(holders) < 2:
        return False
    table, key = holders[-1]
    if len(holders) < len(path) and isinstance(table[key], dict) and len(holders) > 2:
        # What is missing is missing in this table.
        del table[key]
        return True
    if holders[0][1] == "job" and len(holders) <= 2:
        return False
    if key in ("model", "workers") and len(holders) == 3:
        return False
    del table[key]
    return True


def scenario_of(seed: int, index: int) -> gt.Scenario:
    """Return a random valid scenario that is quick to run."""
    chance = Random(f"{seed} run {index}")
    for _ in range(_DRAWS):
        data = _first_draft(chance)
        for _ in range(30):
            try:
                scenario = gt.Scenario.from_dict(json.loads(json.dumps(data)))
                scenario.check_built()
            except ScenarioError as error:
                first = error.errors[0]
                is_added = first["code"] == "GT010" and _added(chance, data, first["loc"])
                if not is_added and not _without(data, first["loc"]):
                    break
                continue
            about = estimate(scenario)
            if about.cpu_s <= MOST_SECONDS and about.memory_bytes <= MOST_BYTES:
                return scenario
            break
    raise AssertionError(f"no valid scenario was drawn for {seed} {index}")


class UnconservedError(Exception):
    """The bytes of links are not those of what crossed them."""


def _saved(scenario: gt.Scenario, folder: Path) -> dict[str, bytes] | str:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        result = gt.run(scenario)
        result.save(folder)
    except (SimulationError, GradtideError) as error:
        if isinstance(error, InternalError):
            raise
        return str(error)
    if wrong := unconserved(scenario.spec(), result.output):
        raise UnconservedError(wrong)
    return folders.content(folder) or {}


def _stated(folder: dict[str, bytes]) -> dict[str, bytes]:
    """Return a folder in which every premise is stated, as it is after a run of the resolved file.

    A seed that decides nothing is a premise only where it is stated.
    """
    summary = json.loads(folder["summary.json"])
    summary["premises"] = [one for one in summary["premises"] if one["name"] != "seed"]
    for premise in summary["premises"]:
        premise |= {"stated": True, "key": "", "change": ""}
    kept = {name: content for name, content in folder.items() if name not in ("report.html", "versions.json")}
    return kept | {"summary.json": json.dumps(summary).encode()}


def outcome(scenario: gt.Scenario, folder: Path) -> str:
    """Run a scenario twice and from its resolved text; return what came of it."""
    try:
        first = _saved(scenario, folder / "a")
        second = _saved(scenario, folder / "b")
        text = scenario.to_toml()
        third = _saved(gt.Scenario.from_toml(text, base_dir=folder), folder / "c")
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    if isinstance(first, str):
        return "refused or ended" if first == second == third else f"another end: {first[:80]}"
    for what, other in (("again", second), ("resolved", third)):
        if isinstance(other, str):
            return f"{what}: ended: {other[:80]}"
        is_stated = what == "resolved"
        changed = folders.differences(_stated(first) if is_stated else first, _stated(other) if is_stated else other)
        if changed:
            return f"{what}: not byte-equal: {', '.join(changed)}"
    summary = json.loads(first["summary.json"])
    for job in summary["jobs"].values():
        bound = job.get("lower_bound_ms")
        measured = job["iteration_time_ms"]["mean"]
        # Both are rounded to a picosecond.
        if bound is not None and bound > measured + 2e-9:
            return f"bound: lower_bound_ms {bound} is above iteration_time_ms {measured}"
    return "byte-equal"


FINE = ("byte-equal", "refused or ended")


def attack(seed: int, count: int, deadline: float, processes: int) -> Result:
    """Run `count` random scenarios, three times each, until `deadline`."""

    def attempt(index: int, folder: Path) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        scenario = scenario_of(seed, index)
        return {"index": index, "outcome": outcome(scenario, folder), "engine": scenario.engine}

    chunks = [("runs", at, min(at + 20, count), attempt) for at in range(0, count, 20)]
    result = Result({"fluid": Counter(), "packet": Counter(), "": Counter()})
    for row in pool.run(chunks, processes, deadline):
        told = row["outcome"]
        result.counts[row.get("engine", "")][told.partition(":")[0]] += 1
        if told not in FINE:
            result.findings.setdefault(("runs", told), row["index"])
    return result
