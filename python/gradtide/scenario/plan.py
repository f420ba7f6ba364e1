"""Plans of how a job should send its gradients: `gradtide plan` writes plan.json, `run` and `gradtide.torch` read it.

`read_plan` checks the file by itself, and `Plan.on` checks it against a scenario. docs/planning.md explains each key.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.files import write_whole
from gradtide.layers import Layer
from gradtide.recognise import expecting
from gradtide.runtime import LEVELS
from gradtide.scenario import Scenario
from gradtide.scenario.source import Faults, Loc, Source, of_command_line, parse_json, read_text
from gradtide.schemas import newer_version

SCHEMA = "gradtide.plan/1"
FSDP = "fsdp"
"""Level of a plan for FSDP, and key of its sharding in plan.json."""


@dataclass(frozen=True)
class PlannedBucket:
    """A bucket: gradients that are sent together.

    Attributes:
        layers: names of the bucket's layers, in the order of the backward pass.
        bytes: size of the layers' gradients.
        rank: send priority. Of all buckets that are ready, the bucket with the smallest rank is sent first.
        release: event before which the bucket is not sent, as pass and layer: the backward pass has computed the
            layer's gradient (`backward`), or the next forward pass calls the layer (`forward`). None: no such event.
    """

    layers: tuple[str, ...]
    bytes: int
    rank: int
    release: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the bucket in the format of plan.json."""
        release = {} if self.release is None else {"release": dict(zip(("pass", "layer"), self.release, strict=True))}
        return {"layers": list(self.layers), "bytes": self.bytes, "rank": self.rank, **release}


@dataclass(frozen=True)
class PlannedSharding:
    """Sharding of parameters with FSDP. A unit is all-gathered before its compute; its gradients are reduce-scattered.

    Attributes:
        units: names of the modules of each unit, in the order of the forward pass. The root unit, which contains all
            remaining parameters, is the model itself and has the name "".
        forward_prefetch: number of units that are gathered ahead of the unit that computes, in the forward pass.
        backward_prefetch: number of units that are gathered ahead of the unit that computes, in the backward pass.
        reshard_after_forward: whether each unit is freed after its forward pass and gathered again for its backward
            pass. The root unit is kept, because the backward pass begins with it.
        keep_last: whether the last unit is also kept, because its backward pass follows immediately.
    """

    units: tuple[tuple[str, ...], ...]
    forward_prefetch: int
    backward_prefetch: int
    reshard_after_forward: bool
    keep_last: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the sharding in the format of plan.json."""
        return {**vars(self), "units": [list(one) for one in self.units]}


@dataclass(frozen=True)
class Plan:
    """How a job sends its gradients, or shards its parameters.

    Attributes:
        level: what the training framework must support to execute the plan: one of `LEVELS`, or `FSDP`.
        buckets: buckets in the order in which they become ready. Every layer with parameters is in one bucket. Empty at
            the level none if the plan keeps the scenario's schedule.
        order: order in which buckets are sent, a value of `schedule.order`.
        barrier: whether the next forward pass waits for all transfers.
        chunk_bytes: maximum size of a chunk, the part of a bucket that is one transfer; `None` sends whole buckets.
        credit: maximum number of chunks in flight, at the levels priority and crossiter.
        depth: number of parts of a chunk that go through the collective in a pipeline.
        collective: keys of `job.NAME.collective`; empty to keep the scenario's collective.
        model: name of the model for which the plan was made; `None` if the file does not contain it.
        workers: number of workers for which the plan was made; `None` if the file does not contain it.
        scenario_sha256: digest of the scenario for which the plan was made.
        version: version of gradtide that made the plan.
        runtime: runtime for which the plan was made: `device`, `backend`, and the settings that gradtide `cannot_set`.
        predicted: predicted results; `overhead_us` is the cost of a message in addition to the scenario's overhead.
        advice: sentences on how to use the plan.
        fsdp: the sharding at the level `FSDP`, where the keys for gradients have no effect. None at other levels.
    """

    level: str
    buckets: tuple[PlannedBucket, ...]
    order: str
    barrier: bool
    chunk_bytes: int | None = None
    credit: int = 1
    depth: int = 1
    collective: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    workers: int | None = None
    scenario_sha256: str | None = None
    version: str | None = None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    fsdp: PlannedSharding | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in the format of plan.json."""
        sends: dict[str, Any] = {
            "level": self.level,
            "order": self.order,
            "barrier": self.barrier,
            "chunk_bytes": self.chunk_bytes,
            "credit": self.credit,
            "depth": self.depth,
            "collective": dict(self.collective),
            "buckets": [one.to_dict() for one in self.buckets],
        }
        return {
            "schema": SCHEMA,
            "version": self.version,
            "scenario_sha256": self.scenario_sha256,
            "model": self.model,
            "workers": self.workers,
            **(sends if self.fsdp is None else {FSDP: self.fsdp.to_dict()}),
            "runtime": dict(self.runtime),
            "predicted": dict(self.predicted),
            "advice": list(self.advice),
        }

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON to `path`, atomically; return the absolute path.

        Raises:
            OSError: if the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        return write_whole(Path(os.path.abspath(path)), text.encode())

    def on(self, scenario: Scenario) -> Scenario:
        """Return a scenario with one job changed to follow the plan. Its network need not be the plan's network.

        Raises:
            ScenarioError: if the plan was made for another model or number of workers, or the scenario has several
            jobs.
        """
        faults: list[Fault] = []

        def add(code: str, loc: str, msg: str, hint: str, value: Any = None) -> None:
            faults.append(Fault(code, loc, msg, value, hint, "plan"))

        if len(scenario.jobs) != 1:
            msg = f"a plan is for one job, and {scenario.name} has {len(scenario.jobs)}"
            add("GT082", "", msg, "run the scenario without --plan")
            raise ScenarioError(faults)
        if self.fsdp is not None:
            return self._sharded_on(scenario, self.fsdp)
        job = scenario.jobs[0]
        if self.workers not in (None, job.workers):
            hint = f"make a plan for {job.workers}, or set workers = {self.workers}"
            msg = f"the plan is for {self.workers} workers, and [job.{job.name}] has {job.workers}"
            add("GT082", "workers", msg, hint, self.workers)
        faults += self.faults_of_layers({row.name: row.parameter_bytes for row in job.layers}, job.model)
        for number, one in enumerate(self.buckets):
            if one.release is not None and one.release[1] not in {row.name for row in job.layers}:
                msg = f"{job.model} has no layer `{one.release[1]}`"
                faults.append(Fault("GT081", f"buckets.{number}.release", msg, one.release[1], _AGAIN, "plan"))
        if self.level == "none" and not self.buckets and not faults:
            return scenario
        counts = () if faults else self._stretches(job.layers)
        if counts is None:
            msg = "a bucket does not consist of consecutive layers, from the output side"
            add("GT080", "buckets", msg, "make the plan again")
        if faults:
            raise ScenarioError(faults)
        written = scenario.to_dict()["job"][job.name]
        overhead_ps = job.schedule.overhead_ps + round(1e6 * float(self.predicted.get("overhead_us", 0)))
        schedule: dict[str, Any] = {
            "order": self.order,
            "barrier": self.barrier,
            "credit": self.credit,
            "depth": self.depth,
            "overhead": units.format_time(overhead_ps),
            "sync": written["schedule"]["sync"],
        }
        if counts:
            schedule["buckets"] = list(counts)
        if self.order == "caramel" or any(one.release for one in self.buckets):
            by_rank = sorted(self.buckets, key=lambda one: one.rank)
            schedule["order"] = "file"
            schedule["ranking"] = [name for one in by_rank for name in one.layers]
            schedule["releases"] = [" ".join(one.release or ()) for one in reversed(self.buckets)]
        if self.chunk_bytes is not None:
            schedule["chunk"] = units.format_bytes(self.chunk_bytes)
        home = f"job.{job.name}"
        return scenario.set(
            {f"{home}.schedule": schedule, f"{home}.collective": dict(self.collective or written["collective"])}
        )

    def _sharded_on(self, scenario: Scenario, fsdp: PlannedSharding) -> Scenario:
        job = scenario.jobs[0]
        home = f"job.{job.name}"
        if job.parallel_model is None:
            msg = "running a plan of FSDP on a model that is not divided over ranks is not built yet"
            hint = f"write `parallel` in [{home}], or apply the plan to real training with gradtide.torch.wrap"
            raise ScenarioError([Fault("GT090", FSDP, msg, None, hint, "plan")])
        if fsdp.reshard_after_forward and not fsdp.keep_last and fsdp.units[0] != ("",):
            msg, hint = "running a plan that frees the last unit is not built yet", 'write "keep_last": true'
            raise ScenarioError([Fault("GT090", f"{FSDP}.keep_last", msg, False, hint, "plan")])
        if self.workers not in (None, job.workers):
            hint = f"make a plan for {job.workers} ranks"
            msg = f"the plan is for {self.workers} ranks, and [{home}] has {job.workers}"
            raise ScenarioError([Fault("GT082", "workers", msg, self.workers, hint, "plan")])
        parallel = {
            **scenario.to_dict()["job"][job.name]["parallel"],
            "unit": len(fsdp.units[min(1, len(fsdp.units) - 1)]),
            "prefetch": fsdp.forward_prefetch,
            "backward_prefetch": fsdp.backward_prefetch,
            "zero": 3 if fsdp.reshard_after_forward else 2,
        }
        changed = scenario.set({f"{home}.parallel": parallel})
        parallel_model = changed.jobs[0].parallel_model
        assert parallel_model is not None
        if parallel_model.described.units != fsdp.units:
            of_plan = "" if self.model in (None, job.model) else f"; the plan is for {self.model}"
            msg = f"the plan's units are not consecutive blocks of {job.model}{of_plan}"
            raise ScenarioError([Fault("GT081", f"{FSDP}.units", msg, None, _AGAIN, "plan")])
        return changed

    def faults_of_layers(self, layer_bytes: Mapping[str, int], model: str) -> list[Fault]:
        """Return at most one fault: a layer of the model is missing in the plan, or its gradient has another size.

        Args:
            layer_bytes: size of the gradient of every layer of the model in bytes, by name of the layer.
            model: name of the model, for the fault.
        """
        if self.level == "none" and not self.buckets:
            return []
        planned = {name for one in self.buckets for name in one.layers}
        of_plan = "" if self.model in (None, model) else f"; the plan is for {self.model}"

        def fault(loc: str, msg: str, hint: str, value: Any) -> list[Fault]:
            return [Fault("GT081", loc, msg, value, hint, "plan")]

        for number, one in enumerate(self.buckets):
            for name in one.layers:
                if name not in layer_bytes:
                    hint = did_you_mean(name, layer_bytes, "make a plan for this model")
                    return fault(f"buckets.{number}.layers", f"{model} has no layer `{name}`{of_plan}", hint, name)
            size = sum(layer_bytes[name] for name in one.layers)
            if size != one.bytes:
                msg = f"bucket {number} has {one.bytes} B in the plan and {size} B in {model}{of_plan}"
                return fault(f"buckets.{number}.bytes", msg, "make a plan for this model", one.bytes)
        missing = [name for name, size in layer_bytes.items() if size and name not in planned]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            msg = f"`{missing[0]}`{more} of {model} is in no bucket{of_plan}"
            return fault("buckets", msg, "make a plan for this model", missing[0])
        return []

    def _stretches(self, layers: Sequence[Layer]) -> tuple[int, ...] | None:
        """Return the number of layers of each bucket, from the input side; `None` if a bucket's layers have gaps."""
        place = {row.name: index for index, row in enumerate(layers)}
        firsts, above = [], len(layers)
        for one in self.buckets:
            places = [place[name] for name in one.layers]
            if max(places) >= above:
                return None
            above = min(places)
            firsts.append(above)
        edges = [0, *sorted(firsts)[1:], len(layers)]
        return tuple(high - low for low, high in pairwise(edges))


def read_plan(plan: "str | Path | Mapping[str, Any] | Plan") -> Plan:
    """Read a plan that `gradtide plan` has written.

    Args:
        plan: path of a plan.json, its content as a dict, or an object with `to_dict()`.

    Raises:
        ScenarioError: with every fault; faults of a file have a line.
    """
    if isinstance(plan, Plan):
        return plan
    source = Source("plan")
    data: Any = plan
    if isinstance(plan, (str, Path)):
        name = str(plan)
        text = read_text(Path(plan), name, of_command_line(name))
        source = Source(name, text)
        with expecting(text, name, "a plan", "plan"):
            data = parse_json(text, name)
    elif not isinstance(plan, Mapping) and hasattr(plan, "to_dict"):
        data = plan.to_dict()
    reader = _Reader(source)
    with expecting(source.text or "", source.name, "a plan", "plan"):
        found = reader.plan(data)
        if found is None or reader.faults:
            raise ScenarioError(sorted(reader.faults, key=lambda fault: fault.line or 0))
    return found


_AGAIN = "make it again with gradtide plan"
_OPTIONAL: dict[str, tuple[type, str]] = {
    "order": (str, "a text"),
    "barrier": (bool, "true or false"),
    "chunk_bytes": (int, "a whole number above 0"),
    "credit": (int, "a whole number above 0"),
    "depth": (int, "a whole number above 0"),
    "collective": (dict, "a table"),
    "model": (str, "a text"),
    "workers": (int, "a whole number above 0"),
    "scenario_sha256": (str, "a text"),
    "version": (str, "a text"),
    "runtime": (dict, "a table"),
    "predicted": (dict, "a table"),
    "advice": (list, "a list"),
}
"""Optional keys of plan.json: Python type, and its name in messages. `gradtide.torch` needs none of these keys."""
_SHARDING = tuple(one.name for one in fields(PlannedSharding))
_SENDS = ("level", "buckets", "order", "barrier", "chunk_bytes", "credit", "depth", "collective")
"""Keys of plan.json that have no meaning in a plan for FSDP."""


@dataclass
class _Reader:
    source: Source

    def __post_init__(self) -> None:
        self.faults = Faults()

    def add(self, loc: Loc, msg: str, hint: str, value: Any = None) -> None:
        self.faults.append(self.source.fault("GT080", loc, msg, hint, value))

    def plan(self, data: Any) -> Plan | None:
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, Mapping) else data
            newer = newer_version(found, [SCHEMA])
            msg = f'this is not a plan: "schema" is not "{SCHEMA}"' if newer is None else f"this plan {newer}"
            self.add(("schema",), msg, _AGAIN, found)
            return None
        given: dict[str, Any] = {key: data[key] for key in _OPTIONAL if data.get(key) is not None}
        for key, value in given.items():
            kind, what = _OPTIONAL[key]
            is_low = kind is int and isinstance(value, int) and (value is True or value < 1)
            if is_low or not isinstance(value, kind):
                self.add((key,), f"expected {what}, found {units.describe(value)}", _AGAIN, value)
        is_sharded = data.get(FSDP) is not None
        sharding = self.sharding(data, data[FSDP]) if is_sharded else None
        level = FSDP if is_sharded else data.get("level")
        if not is_sharded and level not in LEVELS:
            self.add(("level",), f"there is no level {units.describe(level)}", f"write {', '.join(LEVELS)}", level)
        predicted = given.get("predicted")
        overhead = predicted.get("overhead_us", 0) if isinstance(predicted, dict) else 0
        if isinstance(overhead, bool) or not isinstance(overhead, (int, float)) or not 0 <= overhead < 1e9:
            found = units.describe(overhead)
            self.add(("predicted", "overhead_us"), f"expected a time, found {found}", _AGAIN, overhead)
        advice = data.get("advice")
        if isinstance(advice, list) and not all(isinstance(text, str) for text in advice):
            self.add(("advice",), "expected a list of texts", _AGAIN)
        buckets = () if is_sharded else self.buckets(data.get("buckets"), level)
        if self.faults:
            return None
        return Plan(
            **{
                "order": "fifo" if level in ("none", "buckets", FSDP) else "priority",
                "barrier": level != "crossiter",
                **given,
                "level": level,
                "buckets": buckets,
                "advice": tuple(advice or ()),
                FSDP: sharding,
            }
        )

    def sharding(self, data: Mapping[str, Any], table: Any) -> PlannedSharding | None:
        for key in _SENDS:
            if data.get(key) is not None:
                self.add(
                    (key,), f"`{key}` is a setting of DDP, and FSDP sends by units", f"leave out `{key}`", data[key]
                )
        if not isinstance(table, dict):
            found = units.describe(table)
            self.add((FSDP,), f"expected a table, found {found}", f"write {', '.join(_SHARDING)}", table)
            return None
        for key in table:
            if key not in _SHARDING:
                self.add((FSDP, key), f"there is no key `{key}`", f"write {', '.join(_SHARDING)}", table[key])
        rows = table.get("units")
        if not isinstance(rows, list) or not rows:
            self.add(
                (FSDP, "units"), "the plan has no list of units", 'a unit is a list of modules: ["blocks.0"]', rows
            )
            return None
        seen: set[str] = set()
        for place, row in enumerate(rows):
            if not isinstance(row, list) or not row or not all(isinstance(name, str) for name in row):
                self.add((FSDP, "units", place), 'a unit is a list of modules: ["blocks.0"]', _AGAIN, row)
                continue
            for name in row:
                if name in seen:
                    self.add((FSDP, "units", place), f"`{name}` is in two units, or twice", "name it once", name)
                seen.add(name)
            if "" in row and (place > 0 or len(row) > 1):
                msg = 'the model itself, "", must be a unit of its own, and the first: its forward pass begins first'
                self.add((FSDP, "units", place), msg, 'write [""] first', row)
        for key in ("forward_prefetch", "backward_prefetch"):
            ahead = table.get(key)
            if isinstance(ahead, bool) or not isinstance(ahead, int) or not 0 <= ahead < len(rows):
                msg = f"expected a number of units ahead, 0 to {len(rows) - 1}, found {units.describe(ahead)}"
                self.add((FSDP, key), msg, "write 1, or 0 to gather nothing ahead", ahead)
        reshard = table.get("reshard_after_forward")
        if not isinstance(reshard, bool):
            msg = f"expected true or false, found {units.describe(reshard)}"
            self.add((FSDP, "reshard_after_forward"), msg, "true frees each unit after its forward pass", reshard)
        keeps = table.get("keep_last", False)
        if not isinstance(keeps, bool):
            msg = f"expected true or false, found {units.describe(keeps)}"
            self.add((FSDP, "keep_last"), msg, "true does not free the last unit after its forward pass", keeps)
        elif keeps and reshard is False:
            msg = "`keep_last` has no effect if no unit is freed"
            self.add((FSDP, "keep_last"), msg, "leave it out", keeps)
        if self.faults:
            return None
        return PlannedSharding(**{**table, "units": tuple(tuple(row) for row in rows)})

    def buckets(self, rows: Any, level: Any) -> tuple[PlannedBucket, ...]:
        found: list[PlannedBucket] = []
        seen: set[str] = set()
        if not rows and level == "none":
            return ()
        if not isinstance(rows, list) or not rows:
            self.add(("buckets",), "the plan has no list of buckets", _AGAIN, rows)
            return ()
        for index, row in enumerate(rows):
            loc: Loc = ("buckets", index)
            table = row if isinstance(row, dict) else {}
            layers, size, rank = table.get("layers"), table.get("bytes"), table.get("rank")
            release = table.get("release")
            if release is not None and not _is_release(release):
                self.add(
                    (*loc, "release"), 'a release event is { "pass": "forward", "layer": "fc" }', "or backward", release
                )
                continue
            is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (size, rank))
            names = isinstance(layers, list) and layers and all(isinstance(name, str) for name in layers)
            if not is_whole or not names:
                self.add(loc, 'a bucket is { "layers": ["fc"], "bytes": 4096, "rank": 0 }', _AGAIN, row)
                continue
            assert isinstance(layers, list)
            for name in layers:
                if name in seen:
                    self.add((*loc, "layers"), f"`{name}` is in two buckets", _AGAIN, name)
                    break
                seen.add(name)
            opens = None if release is None else (release["pass"], release["layer"])
            found.append(PlannedBucket(tuple(layers), int(size or 0), int(rank or 0), opens))
        if len({one.rank for one in found}) < len(found):
            self.add(("buckets",), "two buckets have the same rank", _AGAIN)
        return tuple(found)


def _is_release(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"pass", "layer"}:
        return False
    return value["pass"] in ("backward", "forward") and isinstance(value["layer"], str)
