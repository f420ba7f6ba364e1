"""Parses the schedules of a comparison: strings, names of systems, order files and user-defined schedulers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.scenario import Job, Scenario
from gradtide.scenario.core.queries import Queries
from gradtide.scenario.opdag import Op, OpDag, load_ranks
from gradtide.studies.order import OrderScheduler, ranks_of

_OWN = dict.fromkeys(
    ("fusion", "first_fusion", "cycle", "buckets", "chunk", "credit", "queues", "barrier", "depth", "order_file")
)
"""Keys that a name in `SYSTEMS` resets to their defaults, so that the scenario's values do not apply to the system."""

SCHEDULE_KEYS = ("order", *_OWN)
"""Keys that a schedule can set, by their names in `Scenario.replace`."""

SYSTEMS: dict[str, dict[str, Any]] = {
    # Li et al. (2020), section 3.2.3; sizes are the defaults of PyTorch's DistributedDataParallel.
    "ddp": {"order": "fifo", "barrier": True, "first_fusion": "1MiB", "fusion": "25MiB"},
    # Sergeev & Del Balso (2018), section 4; sizes and times are Horovod's documented defaults until version 0.21.
    "horovod": {"order": "fifo", "barrier": True, "fusion": "64MiB", "cycle": "5ms"},
    # Jayarajan et al. (2019), section 5.1: slices of 50,000 parameters of 4 bytes.
    "p3": {"order": "priority", "fusion": "0B", "chunk": "200kB", "barrier": False},
    # Peng et al. (2019); defaults of the ByteScheduler code: partitions of 1,000,000 parameters, four in flight.
    "bytescheduler": {"order": "priority", "fusion": "0B", "chunk": "4MB", "credit": 4, "barrier": False},
    # Orders alone: all other keys have their defaults.
    "caramel": {"order": "caramel"},
    "edf": {"order": "edf"},
    "optimal": {"order": "optimal"},
}
"""Schedules of published systems, as keys of a scenario, by the names that `parse_schedule` accepts."""

UNENFORCED = ("random", "arbitrary")
"""Orders in which workers pull parameters if no scheduler enforces an order."""

GRAMMAR = (
    "ORDER[+barrier][+fusion=SIZE|adaptive][+first_fusion=SIZE][+cycle=TIME][+chunk=SIZE][+credit=N]"
    "[+depth=N|adaptive][+queues=N]"
)

FILE = "file:"
"""Prefix of the path of an order file, which replaces the name of an order."""

Schedule = str | Path | OrderScheduler
"""A schedule to compare: a string for `parse_schedule`, an order file, or a user-defined scheduler."""


@dataclass(frozen=True)
class Contender:
    """One of the compared schedules.

    `changes` are keys for `Scenario.replace`. `extras` are the user's additions to the name, such as `chunk 1MB`. `by`
    is the order file or user-defined scheduler; `None` if `changes` has the order.
    """

    name: str
    extras: tuple[str, ...]
    changes: Mapping[str, Any]
    by: Path | OrderScheduler | None = None

    def on(self, point: Scenario) -> tuple[Scenario, str]:
        """Return the scenario under this schedule, and the name under which the schedule is reported."""
        is_pulled = all(job.is_pulled for job in point.jobs)
        # Jobs that pull at the start of each iteration always have a barrier, and keep the keys in `_OWN`.
        changes = {k: v for k, v in self.changes.items() if not is_pulled or (k != "barrier" and v is not None)}
        if is_pulled and self.name in UNENFORCED:
            # `disorder`, the share of transfers that leave their order, applies to enforced orders only.
            changes["disorder"] = None
        scenario = point.replace(**changes)
        name, extras = self.name, self.extras
        if self.by is not None:
            scenario = _ordered(scenario, self.by)
        elif not is_pulled and name not in SYSTEMS:
            schedule = scenario.jobs[0].schedule
            name = words.schedule(schedule.order, schedule.barrier)
            extras = tuple(f"{key} {value}" for key, value in changes.items() if key not in ("order", "barrier"))
        return scenario, ", ".join([name, *extras])


def contender(given: Schedule) -> Contender:
    """Return the contender for a schedule that the user gave."""
    text = f"{FILE}{given}" if isinstance(given, Path) else given
    if isinstance(text, str):
        changes = parse_schedule(text)
        name, *extras = [part.strip().replace("=", " ") for part in text.split("+")]
        by = Path(name.removeprefix(FILE).strip()) if name.startswith(FILE) else None
        return Contender(name, tuple(extras), changes, by)
    if not callable(getattr(text, "ranks", None)):
        raise ValueError(f"{text!r} is neither the name of a schedule nor has a method `ranks(dag)`")
    return Contender(str(getattr(text, "name", type(text).__name__)), (), {"barrier": False}, text)


def parse_schedule(text: str) -> dict[str, Any]:
    """Return the changes for `Scenario.replace` that a schedule's string describes.

    The syntax is that of `GRAMMAR`. Keys that the string does not contain keep the scenario's values, but without
    `+barrier` there is no barrier. The order may also be the name of one of `SYSTEMS`; then keys that neither the
    system nor the string contains get their defaults. The order `file:PATH` names an order file, which `_ordered`
    applies.

    Raises:
        ValueError: if the string has another syntax.

    Example:
        >>> parse_schedule("priority+chunk=1MB")
        {'order': 'priority', 'barrier': False, 'chunk': '1MB'}
    """
    order, *extras = [part.strip() for part in text.split("+")]
    changes: dict[str, Any] = _OWN | SYSTEMS[order] if order in SYSTEMS else {"order": order, "barrier": False}
    if order.startswith(FILE):
        changes = {"barrier": False}
    for extra in extras:
        key, equals, value = extra.partition("=")
        if extra == "barrier":
            changes["barrier"] = True
        elif equals and (key in ("fusion", "first_fusion", "cycle", "chunk") or (key, value) == ("depth", "adaptive")):
            changes[key] = value
        elif equals and key in ("queues", "credit", "depth") and value.isdigit():
            changes[key] = int(value)
        else:
            raise ValueError(
                f"schedule: cannot read {extra!r} of {text!r}; write {GRAMMAR}, as in priority+chunk=1MB, or one of "
                f"{', '.join(SYSTEMS)}, {FILE}PATH"
            )
    return changes


def _ordered(scenario: Scenario, scheduler: OrderScheduler | Path) -> Scenario:
    """Return the scenario with every job's transfers in the order of a scheduler or of an order file.

    A scheduler is called once for each job. A file has one layer name per line, most urgent first, or is a .json file
    with the output of `gradtide order --json`.
    """
    if isinstance(scheduler, Path) and scheduler.suffix != ".json":
        return scenario.replace(order="file", order_file=str(scheduler.resolve()), ranking=None, queues=None)
    plain = scenario.replace(order=None, order_file=None, ranking=None, queues=None)
    queries = Queries(plain)
    rankings: dict[str, Any] = {}
    for index, job in enumerate(plain.jobs):
        dag = _dag_of(job, queries.transfer_times(index))
        ranks = load_ranks(scheduler, dag) if isinstance(scheduler, Path) else ranks_of(scheduler, dag)
        places = {op.id: place for place, op in enumerate(op for op in dag.ops if op.kind == "recv")}
        rows = [row.name for row in job.layers if row.parameter_bytes]
        # Parameters that the iteration does not pull come last. In inference, these are used by the backward pass only.
        first = [rows[places[op]] for op in sorted(ranks, key=lambda op: (ranks[op], op))]
        rankings[job.name] = [*first, *(name for name in rows if name not in set(first))]
    for name, ranking in rankings.items():
        plain = plain.set({f"job.{name}.schedule.order": "file", f"job.{name}.schedule.ranking": ranking})
    return plain


def _dag_of(job: Job, transfer_ps: list[int]) -> OpDag:
    """Return the DAG of a worker's iteration, as input of a scheduler, with times in picoseconds.

    Every parameter is one transfer of `op.bytes`. With parameter servers the transfer is a pull; with a collective it
    is the exchange that the previous iteration began. A model without an op graph becomes a chain of one op per layer
    and pass. `updates` of a backward op are the transfers of the parameters whose gradients the op completes.
    """
    if job.graph is None:
        return _chain(job, transfer_ps)
    times = iter([*transfer_ps, *[0] * len(job.graph.ops)])
    ops = [Op(**{**vars(op), "time": next(times)}) if op.kind == "recv" else op for op in job.graph.ops]
    target = job.graph.target
    if job.task == "inference":
        target = target if job.graph.inference_target is None else job.graph.inference_target
    else:
        # Training waits for all gradients, not only for the ones on which the target op of the graph depends.
        ends = tuple(dict.fromkeys([target, *(op.id for op in ops if op.updates)]))
        target = max(op.id for op in ops) + 1
        ops.append(Op(target, "comp", ends, 0, "end"))
    return OpDag(tuple(ops), target, job.model, job.graph.inference_target, "ps")


def _chain(job: Job, transfer_ps: list[int]) -> OpDag:
    ops: list[Op] = []

    def add(kind: str, name: str, inputs: tuple[int, ...], time: int, **more: Any) -> int:
        ops.append(Op(len(ops), kind, inputs, time, name, **more))
        return ops[-1].id

    layers = job.layers
    times = [*transfer_ps, *[0] * len(layers)]
    recvs = {
        row.name: add("recv", row.name, (), time, bytes=row.parameter_bytes)
        for row, time in zip(layers, times, strict=False)
        if row.parameter_bytes
    }
    before: tuple[int, ...] = ()
    for row in layers:
        own = (recvs[row.name],) if row.name in recvs else ()
        before = (add("comp", row.name, (*before, *own), row.forward_ps),)
    forward = before[0]
    for row in reversed(() if job.task == "inference" else layers):
        own = (recvs[row.name],) if row.name in recvs else ()
        before = (add("comp", row.name, before, row.backward_ps, updates=own),)
    return OpDag(tuple(ops), before[0], job.model, forward, "ps")
