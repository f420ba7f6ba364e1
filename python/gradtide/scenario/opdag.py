"""Reads op DAGs, i.e. the transfers and compute ops of a worker and their dependencies, from JSON or a dict.

The format follows TicTac (docs/models/orders.md#the-file): `ops`, each with `id`, `kind` (recv or comp), `inputs` and
`time`, and the id of the `target` op, whose end is the makespan. Unknown keys are ignored. Each fault has its line.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.errors import Fault, ScenarioError
from gradtide.recognise import expecting
from gradtide.scenario.core import job as core
from gradtide.scenario.source import Failure, Faults, Loc, Source, Under, decoded, parse_json, read_data

MAX_DAG_BYTES = 100_000_000
MAX_OPS = 200_000
MAX_TOTAL_TIME = 2**62
MAX_FAULTS_OF_A_DAG = 20
TIME_UNITS = ("ps", "ns", "us", "ms", "s")
_KINDS = ("recv", "comp")


@dataclass(frozen=True)
class Op:
    """A transfer or compute op of a worker's DAG.

    Attributes:
        id: number in the file; schedulers break ties in favour of the smaller id.
        kind: "recv", a transfer without predecessors, or "comp", a compute op.
        inputs: ids of the ops for which this op waits, in the order of the file.
        time: duration in ticks, i.e. whole units of `OpDag.time_unit`.
        name: name in the file, or "".
        param_only: whether the op depends on one parameter and on no input of the model, such as a cast of a
            parameter. Derived from the graph unless the file contains the key.
        bytes: size of a transfer; 0 if the file does not contain it.
        updates: ids of the transfers of the parameters whose gradients the op produces.
    """

    id: int
    kind: str
    inputs: tuple[int, ...]
    time: int
    name: str = ""
    param_only: bool = False
    bytes: int = 0
    updates: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpDag:
    """The transfers and compute ops of one worker in one iteration, as a graph.

    Attributes:
        ops: in the order of the file.
        target: id of the op whose end is the makespan; only ops on which it depends matter.
        name: the file's `name` or `model`, or "".
        inference_target: id of the op that ends the forward pass; None if the file does not contain it.
        time_unit: length of a tick: ps, ns, us, ms or s; "" if the file does not contain it.
    """

    ops: tuple[Op, ...]
    target: int
    name: str = ""
    inference_target: int | None = None
    time_unit: str = ""

    @cached_property
    def recvs(self) -> tuple[int, ...]:
        """Ids of the transfers that the target needs, ascending."""
        needed = self.needed_by([self.target])
        return tuple(sorted(op.id for op in self.ops if op.id in needed and op.kind == "recv"))

    def needed_by(self, ids: Iterable[int]) -> set[int]:
        """Return `ids` and the ids of all ops on which these ops depend."""
        by_id = {op.id: op for op in self.ops}
        needed = set(ids)
        stack = list(needed)
        while stack:
            new = [op for op in by_id[stack.pop()].inputs if op not in needed]
            needed.update(new)
            stack += new
        return needed

    def spec(self) -> dict[str, Any]:
        """Return the DAG in the form of the core's input, in which ops are named by index."""
        return core.dag(self)


def load_op_dag(path: str | Path) -> OpDag:
    """Return the op DAG of a JSON file.

    Raises:
        ScenarioError: with up to 20 faults, each with its line. The fault of a cycle lists the cycle's ops.
    """
    text = _json_text(path)
    with expecting(text, str(path), "a graph of ops", "dag"):
        return op_dag(parse_json(text, str(path)), Source(str(path), text))


def op_dag(data: Any, source: Source | Under | None = None) -> OpDag:
    """Return the op DAG in `data`, a dict with `ops` and `target`. `source` gives faults their file and line.

    Raises:
        ScenarioError: with up to 20 faults.
    """
    return _Reader(source or Source()).read(data)


def load_ranks(path: str | Path, dag: OpDag) -> dict[int, int]:
    """Return the rank (send priority, smallest first) of each transfer by id, as `gradtide order --json` writes them.

    Raises:
        ScenarioError: if a transfer that the target needs has no rank, or an id is not the id of such a transfer.
    """
    text = _json_text(path)
    with expecting(text, str(path), "an order of transfers", "order"):
        return _ranks(parse_json(text, str(path)), Source(str(path), text), dag)


def _ranks(data: Any, source: Source, dag: OpDag) -> dict[int, int]:
    priority = data.get("priority") if isinstance(data, dict) else None
    if not isinstance(priority, dict):
        hint = 'write { "priority": { "0": 1, "1": 0 } }: op id and rank, smaller first'
        raise ScenarioError(
            [source.fault("GT010", ("priority",), "`priority` is missing: an order file needs this table", hint)]
        )
    faults = Faults()
    for key, rank in priority.items():
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < 2**63:
            hint = "write a whole number from 0; smaller is sent earlier"
            faults.append(source.fault("GT011", ("priority", key), "a rank must be a whole number", hint, rank))
    known = {str(op): op for op in dag.recvs}
    for key in priority:
        if key not in known:
            hint = f"the transfers are {_some(list(known.values()))}"
            fault = source.fault(
                "GT071", ("priority", key), f"the target needs no transfer {key}", hint, key, at_key=True
            )
            faults.append(fault)
    missing = [op for key, op in known.items() if key not in priority]
    if missing:
        hint = "rank every transfer that the target needs"
        faults.append(source.fault("GT073", ("priority",), f"{_some(missing)} of the transfers have no rank", hint))
    if faults:
        raise ScenarioError(faults[:MAX_FAULTS_OF_A_DAG])
    return {known[key]: rank for key, rank in priority.items()}


def _json_text(path: str | Path) -> str:
    name = str(path)
    fail = Failure(Source(name), ())
    text = decoded(read_data(Path(path), name, fail, MAX_DAG_BYTES), name, fail)
    if not text.strip():
        raise ScenarioError(
            [Fault("GT005", "", f"{name} is empty", hint='write { "ops": [...], "target": 0 }', file=name)]
        )
    return text


class _Full(Exception):  # noqa: N818 - not an error
    """Raised by `_Reader.fail` when `MAX_FAULTS_OF_A_DAG` faults have been found."""


class _Reader:
    def __init__(self, source: Source | Under) -> None:
        self.source = source
        self.faults: list[Fault] = []

    def read(self, data: Any) -> OpDag:
        try:
            dag = self.dag(data)
        except _Full:
            dag = None
        if self.faults or dag is None:
            raise ScenarioError(self.faults)
        return dag

    def fail(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None) -> None:
        self.faults.append(self.source.fault(code, loc, msg, hint, value))
        if len(self.faults) == MAX_FAULTS_OF_A_DAG:
            raise _Full

    def dag(self, data: Any) -> OpDag | None:
        if not isinstance(data, Mapping):
            self.fail("GT011", (), "an op DAG must be a table", 'write { "ops": [...], "target": 0 }', data)
            return None
        rows = self.needed(data, (), "ops", '"ops": [{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }]')
        if rows is not None and (not isinstance(rows, Sequence) or isinstance(rows, str)):
            self.fail("GT011", ("ops",), "`ops` must be a list", "write a list of tables", rows)
            rows = None
        if rows is not None and not rows:
            self.fail("GT014", ("ops",), "the DAG has no ops", "list at least a transfer and what needs it", rows)
            return None
        if rows is not None and len(rows) > MAX_OPS:
            self.fail("GT050", ("ops",), f"the DAG has {len(rows):,} ops, more than {MAX_OPS:,}", "merge small ops")
            return None
        ops = [self.op(row, ("ops", index)) for index, row in enumerate(rows or ())]
        target = self.whole(data, (), "target", "the id of the op that is waited for")
        if rows is None or target is None or None in ops or self.faults:
            return None
        forward = data.get("inference_target")
        if forward is not None:
            forward = self.whole(data, (), "inference_target", "the id of the op that ends the forward pass")
        if self.faults:
            return None
        name = str(data.get("name") or data.get("model") or "")
        unit = data.get("time_unit")
        if unit is not None and unit not in TIME_UNITS:
            msg = f"{units.describe(unit)} is not a unit of time"
            self.fail("GT013", ("time_unit",), msg, f"write one of {', '.join(TIME_UNITS)}, or leave the key out", unit)
            return None
        dag = OpDag(tuple(op for op in ops if op), target, name, forward, unit or "")
        by_id = self.edges(dag)
        if self.faults:
            return None
        topological = self.topological(dag, by_id)
        if topological is None:
            return None
        if not dag.recvs:
            self.fail("GT014", ("target",), f"op {target} depends on no transfer", "name an op that does", target)
        if any(isinstance(row, Mapping) and "param_only" in row for row in rows):
            return dag
        return replace(dag, ops=_with_param_only(dag, topological))

    def op(self, row: Any, loc: Loc) -> Op | None:
        if not isinstance(row, Mapping):
            hint = 'write { "id": 0, "kind": "recv", "inputs": [], "time": 5 }'
            self.fail("GT011", loc, "an op must be a table", hint, row)
            return None
        before = len(self.faults)
        number = self.whole(row, loc, "id", "a whole number from 0, another one for every op")
        time = self.whole(row, loc, "time", "whole ticks; take a smaller unit if parts matter", MAX_TOTAL_TIME)
        kind = self.needed(row, loc, "kind", '"kind": "recv" or "comp"')
        if kind is not None and kind not in _KINDS:
            self.fail("GT013", (*loc, "kind"), f"{kind!r} is not a kind of op", "write recv or comp", kind)
        inputs = self.needed(row, loc, "inputs", '"inputs": [], or the ids of the ops that it waits for')
        if inputs is not None and not _are_ids(inputs):
            hint = "write the ids of the ops that it waits for"
            self.fail("GT011", (*loc, "inputs"), "`inputs` must be a list of ids", hint, inputs)
        elif inputs and kind == "recv":
            hint = 'a transfer starts without waiting: delete the inputs, or write "comp"'
            self.fail("GT070", (*loc, "inputs"), "a recv cannot have inputs", hint, list(inputs))
        name, param_only = row.get("name", ""), row.get("param_only", False)
        if not isinstance(param_only, bool):
            msg = "`param_only` must be true or false"
            self.fail("GT011", (*loc, "param_only"), msg, "write true or false", param_only)
        size = 0
        if row.get("bytes") is not None:
            size = self.whole(row, loc, "bytes", "how many bytes are received") or 0
        updates = row.get("updates", [])
        if not _are_ids(updates):
            hint = "write the ids of the transfers whose gradients it produces"
            self.fail("GT011", (*loc, "updates"), "`updates` must be a list of ids", hint, updates)
        if len(self.faults) > before or number is None or time is None or kind is None or inputs is None:
            return None
        return Op(number, kind, tuple(map(int, inputs)), time, str(name), param_only, size, tuple(map(int, updates)))

    def needed(self, table: Mapping[str, Any], loc: Loc, key: str, example: str) -> Any:
        value = table.get(key)
        if value is None:
            self.fail("GT010", (*loc, key), f"`{key}` is missing", f"write {example}")
        return value

    def whole(self, table: Mapping[str, Any], loc: Loc, key: str, what: str, most: int = 2**63 - 1) -> int | None:
        value = self.needed(table, loc, key, f'"{key}": {what}')
        if value is None:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.fail("GT014", (*loc, key), f"`{key}` is {value}", f"write {what}", value)
        elif not _is_whole(value):
            self.fail("GT011", (*loc, key), f"`{key}` is not a whole number", f"write {what}", value)
        elif not 0 <= value <= most:
            limit = "negative" if value < 0 else f"more than {most}"
            self.fail("GT014", (*loc, key), f"`{key}` is {limit}", f"write {what}", value)
        else:
            return int(value)
        return None

    def edges(self, dag: OpDag) -> dict[int, Op]:
        by_id: dict[int, Op] = {}
        for index, op in enumerate(dag.ops):
            if op.id in by_id:
                hint = "give every op an id of its own"
                self.fail("GT070", ("ops", index, "id"), f"two ops have the id {op.id}", hint, op.id)
            by_id[op.id] = op
        for index, op in enumerate(dag.ops):
            for which, other in enumerate(op.inputs):
                if other not in by_id:
                    loc = ("ops", index, "inputs", which)
                    self.fail("GT071", loc, f"op {op.id} waits for op {other}, which is not there", "name an op", other)
            for which, other in enumerate(op.updates):
                if other not in by_id or by_id[other].kind != "recv":
                    loc = ("ops", index, "updates", which)
                    self.fail(
                        "GT071", loc, f"op {op.id} updates {other}, which is not a transfer", "name a recv", other
                    )
        forward = dag.inference_target
        if forward is not None and forward not in by_id:
            self.fail("GT071", ("inference_target",), f"the op {forward} is not there", "name an op", forward)
        if dag.target not in by_id:
            self.fail("GT071", ("target",), f"the target {dag.target} is not there", "name an op", dag.target)
        if sum(op.time for op in dag.ops) > MAX_TOTAL_TIME:
            self.fail("GT014", ("ops",), "the times sum to more than 2^62", "take a larger unit")
        return by_id

    def topological(self, dag: OpDag, by_id: Mapping[int, Op]) -> list[Op] | None:
        waits = {op.id: len(op.inputs) for op in dag.ops}
        readers: dict[int, list[int]] = {op.id: [] for op in dag.ops}
        for op in dag.ops:
            for other in op.inputs:
                readers[other].append(op.id)
        done = [op.id for op in dag.ops if not op.inputs]
        for one in done:  # `done` grows inside the loop
            for reader in readers[one]:
                waits[reader] -= 1
                if waits[reader] == 0:
                    done.append(reader)
        if len(done) == len(dag.ops):
            return [by_id[one] for one in done]
        at = next(op.id for op in dag.ops if waits[op.id])
        path: dict[int, None] = {}
        # The loop ends: every blocked op has a blocked input, so the path reaches a cycle.
        while at not in path:
            path[at] = None
            at = next(other for other in by_id[at].inputs if waits[other])
        walked = list(path)
        cycle = [*walked[walked.index(at) :], at]
        index = next(index for index, op in enumerate(dag.ops) if op.id == at)
        names = " -> ".join(f"{one} ({by_id[one].name})" if by_id[one].name else str(one) for one in cycle[:20])
        names += " -> …" if len(cycle) > 20 else ""
        self.fail("GT072", ("ops", index, "inputs"), f"ops wait for each other: {names}", "remove one of these inputs")
        return None


def _are_ids(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_is_whole(one) for one in value)


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value.is_integer())
    )


def _with_param_only(dag: OpDag, topological: Sequence[Op]) -> tuple[Op, ...]:
    """Set `param_only` for compute ops that depend on exactly one transfer and on no compute op without inputs."""
    several = -1
    parameter: dict[int, int] = {}
    for op in topological:
        sources = {parameter[other] for other in op.inputs}
        alone = sources.pop() if len(sources) == 1 else several
        parameter[op.id] = op.id if op.kind == "recv" else alone

    def marked(op: Op) -> Op:
        return replace(op, param_only=True) if op.kind == "comp" and parameter[op.id] != several else op

    return tuple(map(marked, dag.ops))


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
