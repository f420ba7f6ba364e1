"""plan.json as `gradtide plan` writes it: the one place that reads it.

What is read has the types and the sense that the format says; whether it fits a model is for who has the model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradtide.errors import PlanError, repr_short

SCHEMA = "gradtide.plan/1"
LEVELS = ("none", "buckets", "priority", "crossiter")
"""What a runtime is to do: nothing; bucket sizes; the order too; the order and no barrier between iterations."""


@dataclass(frozen=True)
class PlannedBucket:
    """Gradients that are exchanged together.

    Attributes:
        layers: names of the model's layers, which are paths of modules for a profiled model.
        bytes: of their gradients.
        rank: the smaller is sent first.
    """

    layers: tuple[str, ...]
    bytes: int
    rank: int


@dataclass(frozen=True)
class Plan:
    """A plan, read.

    Attributes:
        level: one of `LEVELS`.
        buckets: in the order in which they become ready.
        chunk_bytes: the most that is sent in one piece; `None` if a bucket goes whole.
        model, workers: what it was made for; `None` if it does not say.
        predicted: what `gradtide plan` has predicted, as it stands there.
        document: the whole of it.
    """

    level: str
    buckets: tuple[PlannedBucket, ...]
    chunk_bytes: int | None = None
    model: str | None = None
    workers: int | None = None
    predicted: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)


def read_plan(source: "Mapping[str, Any] | str | Path | Plan | Any") -> Plan:
    """Read a plan.

    Args:
        source: the path of a plan.json, its content, or an object whose `to_dict()` is that.

    Raises:
        PlanError: if it cannot be read or is none; one clear line.
    """
    if isinstance(source, Plan):
        return source
    if isinstance(source, (str, Path)):
        return _plan(_load(Path(source)), str(source))
    if hasattr(source, "to_dict"):
        source = source.to_dict()
    if not isinstance(source, Mapping):
        raise PlanError(f"a plan is a path, a dict or a result of gt.plan, not {type(source).__name__}")
    return _plan(source, "the plan")


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: no JSON, perhaps cut off: {error}") from error


def _plan(document: Any, where: str) -> Plan:
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, Mapping) else document
        raise PlanError(f"{where}: not a plan: schema is {repr_short(found)}, and {SCHEMA!r} was expected")
    level = document.get("level")
    if level not in LEVELS:
        raise PlanError(f"{where}: level is {repr_short(level)}, and can be {', '.join(LEVELS)}")
    entries = document.get("buckets", [])
    if not isinstance(entries, list) or (not entries and level != "none"):
        raise PlanError(f"{where}: buckets: expected a list of at least one, got {repr_short(entries)}")
    buckets = tuple(_bucket(entry, f"{where}: buckets[{place}]") for place, entry in enumerate(entries))
    seen: dict[str, int] = {}
    for place, bucket in enumerate(buckets):
        for layer in bucket.layers:
            if seen.setdefault(layer, place) != place:
                raise PlanError(f"{where}: layer {layer!r} is in buckets[{seen[layer]}] and in buckets[{place}]")
    chunk = document.get("chunk_bytes")
    workers, model = document.get("workers"), document.get("model")
    return Plan(
        level=level,
        buckets=buckets,
        chunk_bytes=None if chunk is None else _whole(chunk, f"{where}: chunk_bytes", 1),
        model=None if model is None else str(model),
        workers=None if workers is None else _whole(workers, f"{where}: workers", 1),
        predicted=_table(document.get("predicted", {}), f"{where}: predicted"),
        document=document,
    )


def _bucket(entry: Any, where: str) -> PlannedBucket:
    entry = _table(entry, where)
    layers = entry.get("layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, str) for layer in layers):
        raise PlanError(f"{where}.layers: expected names of layers, got {repr_short(layers)}")
    if len(set(layers)) != len(layers):
        raise PlanError(f"{where}.layers: a layer stands there twice")
    return PlannedBucket(
        tuple(layers), _whole(entry.get("bytes"), f"{where}.bytes", 0), _whole(entry.get("rank"), f"{where}.rank", 0)
    )


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected a table, got {repr_short(value)}")
    return value


def _whole(value: Any, where: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PlanError(f"{where}: expected a whole number of at least {least}, got {repr_short(value)}")
    return value
