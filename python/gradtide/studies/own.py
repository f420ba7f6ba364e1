"""Asks a scheduler of the user's own for the order of each job's transfers, and writes it into the scenario."""

import json
from pathlib import Path
from typing import Any

from gradtide import _core
from gradtide.scenario import Job, Scenario
from gradtide.scenario.opdag import Op, OpDag, load_ranks
from gradtide.studies.order import OrderScheduler, ranks_of


def ordered(scenario: Scenario, scheduler: OrderScheduler | Path) -> Scenario:
    """Return the scenario with every job's transfers in the order of a scheduler or of an order file.

    Args:
        scenario: its jobs' own orders are replaced.
        scheduler: an object with a method `ranks(dag)`, asked once for each job; or a file: one layer name a line, most
            urgent first, or .json as `gradtide order --json` prints.

    Raises:
        ScenarioError: if the file is wrong.
        SchedulerError: if the scheduler fails, or does not rank every transfer with a number.
    """
    if isinstance(scheduler, Path) and scheduler.suffix != ".json":
        return scenario.replace(order="file", order_file=str(scheduler.resolve()), ranking=None, queues=None)
    plain = scenario.replace(order=None, order_file=None, ranking=None, queues=None)
    spec = json.dumps({**plain.spec(), "traffic": []})
    rankings: dict[str, Any] = {}
    for index, job in enumerate(plain.jobs):
        dag = dag_of(job, _core.transfer_times(spec, index))
        ranks = load_ranks(scheduler, dag) if isinstance(scheduler, Path) else ranks_of(scheduler, dag)
        places = {op.id: place for place, op in enumerate(op for op in dag.ops if op.kind == "recv")}
        rows = [row.name for row in job.layers if row.parameter_bytes]
        # Parameters that the iteration does not need, such as those of the backward pass in inference, come last.
        first = [rows[places[op]] for op in sorted(ranks, key=lambda op: (ranks[op], op))]
        rankings[job.name] = [*first, *(name for name in rows if name not in set(first))]
    for name, ranking in rankings.items():
        plain = plain.set({f"job.{name}.schedule.order": "file", f"job.{name}.schedule.ranking": ranking})
    return plain


def dag_of(job: Job, transfer_ps: list[int]) -> OpDag:
    """Return what a worker of a job receives and computes in an iteration, as a scheduler is shown it.

    Every parameter is one transfer of `op.bytes`. With parameter servers the transfer is a pull; with a collective it
    is the exchange that the previous iteration began. Layers become a chain of ops. A backward op `updates` the
    parameters whose gradients it completes. Times are picoseconds.
    """
    if job.graph is None:
        return _chain(job, transfer_ps)
    times = iter([*transfer_ps, *[0] * len(job.graph.ops)])
    ops = [Op(**{**vars(op), "time": next(times)}) if op.kind == "recv" else op for op in job.graph.ops]
    target = job.graph.target
    if job.task == "inference":
        target = target if job.graph.inference_target is None else job.graph.inference_target
    else:
        # Training waits for all gradients, not only for those that the file's target needs.
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


__all__ = ["dag_of", "ordered"]
