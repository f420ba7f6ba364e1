"""Shell completion of values: names of presets, keys of `--set`, error codes, and fixed values of options.

`COMPLETIONS` maps names of parameters to functions, which `with_options` attaches to the commands. For all other
parameters the shell completes file names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Complete = Callable[[Any, str], list[str]]
"""Takes click's context of the command line so far and an incomplete value; returns possible complete values."""

SCENARIO_SUFFIXES = (".toml", ".json", ".csv")


def _words(words: Callable[[], Iterable[str]]) -> Complete:
    def complete(ctx: Any, incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def _list(words: Callable[[], Iterable[str]]) -> Complete:
    """Complete the last value of a comma-separated list; the values before it are kept."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last) and word not in taken]

    return complete


def _models() -> list[str]:
    from gradtide import presets

    return [*presets.model_names(), *presets.language_names()]


def _scenarios() -> list[str]:
    from gradtide import presets

    return [*_models(), *presets.paper_names()]


def _clusters() -> list[str]:
    from gradtide import presets

    return presets.cluster_names()


def _devices() -> list[str]:
    from gradtide import presets

    return presets.device_names()


def _dags() -> list[str]:
    from gradtide import presets

    return [row["name"] for row in presets.list_presets("graph")]


def _kinds() -> list[str]:
    from gradtide import presets

    return list(presets.KINDS)


def _schedules() -> list[str]:
    from gradtide.studies.schedules import SYSTEMS

    return ["fifo", "fifo+barrier", "priority", "priority+barrier", *SYSTEMS]


def _collectives() -> list[str]:
    from gradtide.algorithms import ALGORITHMS

    return [name.replace("_", "-") for name in ALGORITHMS]


def _policies() -> tuple[str, ...]:
    from gradtide.studies.tenants.policies import POLICIES

    return POLICIES


def _schedulers() -> tuple[str, ...]:
    from gradtide.studies.order import SCHEDULERS

    return SCHEDULERS


def _formats() -> list[str]:
    from gradtide import formats

    return [form.name for form in formats.FORMATS]


def _codes() -> list[str]:
    from gradtide.codes import CODES

    return list(CODES)


def _parts() -> list[str]:
    from gradtide import papers

    return list(papers.PARTS)


def _with_files(words: Callable[[], Iterable[str]], suffixes: tuple[str, ...]) -> Complete:
    """Complete names of presets, paths of files with one of these suffixes, and folders."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        folder = incomplete.rpartition("/")[0]
        found = [word for word in words() if word.startswith(incomplete)]
        for path in sorted(Path(folder or ".").glob("*")):
            name = f"{folder}/{path.name}" if folder else path.name
            if name.startswith(incomplete) and not path.name.startswith("."):
                found += [f"{name}/"] if path.is_dir() else [name] if path.suffix in suffixes else []
        return found

    return complete


def keys_of(schema: Mapping[str, Any], names: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield the dotted paths of the keys of a scenario.

    Args:
        schema: the JSON Schema of scenario files.
        names: names of the jobs under the key `job`, and of the tenants under the key `traffic`.
    """

    def walk(node: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> Iterator[str]:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in inside:
                yield from walk(schema["$defs"][name], path, (*inside, name))
            return
        for one in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from walk(one, path, inside)
        for key, below in node.get("properties", {}).items():
            here = f"{path}.{key}" if path else key
            if path:
                yield here
            yield from walk(below, here, inside)
        if isinstance(node.get("additionalProperties"), Mapping):
            for name in names.get(path, ()):
                yield from walk(node["additionalProperties"], f"{path}.{name}", inside)

    return walk(schema, "", ())


def _changes(ctx: Any, incomplete: str) -> list[str]:
    from gradtide.errors import GradtideError
    from gradtide.scenario import Scenario, json_schema

    names: dict[str, Iterable[str]] = {"job": ["train"]}
    try:
        scenario = Scenario.load(str(ctx.params.get("scenario")))
    except (GradtideError, OSError):
        pass
    else:
        names = {"job": [job.name for job in scenario.jobs], "traffic": scenario.to_dict().get("traffic", {})}
    keys = dict.fromkeys(keys_of(json_schema(), names))
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


COMPLETIONS: dict[str, Complete] = {
    "scenario": _with_files(_scenarios, SCENARIO_SUFFIXES),
    "study": _with_files(list, (".toml",)),
    "dag": _with_files(_dags, (".json",)),
    "cluster": _with_files(_clusters, (".toml", ".json")),
    "device": _words(_devices),
    "model": _list(_models),
    "schedule": _words(_schedules),
    "collective": _words(_collectives),
    "collectives": _list(_collectives),
    "fabrics": _list(lambda: ("clos2", "clos3", "leaf-spine", "star")),
    "engine": _words(lambda: ("fluid", "packet")),
    "recompute": _words(lambda: ("none", "selective", "full")),
    "precision": _words(lambda: ("bf16", "fp16", "float8", "fp32")),
    "level": _words(lambda: ("buckets", "priority", "crossiter")),
    "baseline": _words(lambda: ("ddp", "scenario")),
    "task": _list(lambda: ("train", "inference")),
    "policy": _words(_policies),
    "scheduler": _with_files(_schedulers, (".json",)),
    "ties": _words(lambda: ("id", "upstream")),
    "executor": _words(lambda: ("local", "ray")),
    "against": _words(lambda: ("ns3",)),
    "from_format": _words(_formats),
    "to_format": _words(_formats),
    "kind": _words(_kinds),
    "code": _words(_codes),
    "what": _words(_parts),
    "set_": _changes,
}
"""Completion functions by the name of the parameter that they complete."""
