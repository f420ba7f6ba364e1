"""Checks and defaults of parameter servers, mainly for pull = "start", i.e. workers pull before each iteration."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradtide import units
from gradtide.layers import Layer
from gradtide.scenario.keys.job import JobTable, Ps
from gradtide.scenario.opdag import OpDag
from gradtide.scenario.source import Loc

ORDERS = ("random", "arbitrary", "priority", "tic", "tac", "tac_folded", "optimal", "file")
"""Orders in which parameters can be pulled. As for gradients, "priority" is the order of the layers."""

WORKERS_PER_SERVER = 4
"""Default number of workers per server with pull = "start", as in TicTac (2019), section 6.1."""

Add = Callable[[Loc, str, str], None]


def placement_of(ps: Ps) -> str:
    """Return `collective.ps.placement`, or its default."""
    return ps.placement or ("separate" if ps.pull == "start" else "packed")


def count_of(ps: Ps, hosts: int) -> int:
    """Return the number of servers of a job that has `hosts` hosts including the servers."""
    if ps.servers is not None:
        return ps.servers
    if ps.pull == "start":
        return max(1, hosts // (WORKERS_PER_SERVER + 1))
    return max(1, hosts // 8)


def beside(job: JobTable) -> int:
    """Return the number of hosts that servers need in addition to `workers`; 0 if `workers` includes the servers."""
    ps = job.collective.ps
    if ps is None or placement_of(ps) != "separate":
        return 0
    if ps.servers is not None:
        return ps.servers
    if job.workers is not None:
        return max(1, job.workers // (WORKERS_PER_SERVER if ps.pull == "start" else 8))
    hosts = job.placement if isinstance(job.placement, list) else job.hosts or []
    return count_of(ps, len(hosts))


def order_of(job: JobTable) -> str:
    """Return `schedule.order`, or its default: with pull = "start", random as in TensorFlow."""
    if job.collective.is_pulled and "order" not in job.schedule.model_fields_set:
        return "random"
    return job.schedule.order


def without_effect(job: JobTable) -> list[tuple[Loc, str, str]]:
    """Return path, reason and hint for each key that has no effect because of, or without, pull = "start"."""
    found: list[tuple[Loc, str, str]] = []
    schedule, ps = job.schedule, job.collective.ps
    if job.task == "exchange" and job.collective.is_pulled:
        found.append((("task",), 'with pull = "start"', 'write task = "train" or task = "inference"'))
    if not job.collective.is_pulled:
        why = 'without collective = { ps = { pull = "start" } }'
        if ps is not None and ps.shards is not None:
            found.append((("collective", "ps", "shards"), 'with pull = "update"', "every buffer is cut in equal parts"))
        if ps is not None and ps.sync is not None:
            hint = 'all workers exchange each bucket together; write pull = "start"'
            found.append((("collective", "ps", "sync"), 'with pull = "update"', hint))
        if job.task == "inference":
            found.append((("task",), why, "leave it out"))
        if schedule.disorder_ppm is not None:
            found.append((("schedule", "disorder"), why, "leave it out"))
        if schedule.order == "tac_folded":
            found.append((("schedule", "order"), why, 'write order = "priority", or have parameter servers'))
        return found
    here = 'with pull = "start"'
    if order_of(job) not in ORDERS:
        what = "all parameters are available at once" if schedule.order == "fifo" else "it is for all-reduce"
        names = ", ".join(f'"{order}"' for order in ORDERS)
        found.append(
            (("schedule", "order"), f'{here}: "{schedule.order}" does not order pulls: {what}', f"write {names}")
        )
    whole = "every parameter is a transfer of its own"
    for key, is_given, hint in (
        ("queues", schedule.queues is not None, "every parameter has a rank of its own"),
        ("fusion", schedule.is_given("fusion"), whole),
        ("first_fusion", schedule.first_fusion_bytes is not None, whole),
        ("cycle", schedule.cycle_ps is not None, whole),
        ("buckets", schedule.buckets is not None, whole),
        ("releases", schedule.releases is not None, whole),
        ("chunk", schedule.chunk_bytes is not None, whole),
        ("in_turn", schedule.in_turn is not None, "each connection carries one transfer at a time"),
        ("credit", schedule.credit != 1, "each connection carries one transfer at a time"),
        ("depth", schedule.depth != 1, whole),
        (
            "barrier",
            not schedule.barrier,
            "an iteration begins when the previous one has ended; `collective.ps.sync` selects on which workers",
        ),
        ("sync", schedule.sync_ps != 0, "no transfer waits for others to complete"),
    ):
        if is_given:
            found.append((("schedule", key), here, hint))
    if job.collective.remainder == "dropped":
        found.append((("collective", "remainder"), here, whole))
    return found


def graph_faults(dag: OpDag, task: str, add: Add) -> None:
    """Add the faults of an op graph that can be read but not run; `task` is empty unless workers pull from servers."""
    for index, op in enumerate(dag.ops):
        if op.kind == "recv" and op.bytes == 0:
            add(("ops", index, "bytes"), f"op {op.id} is received, and has no `bytes`", 'write "bytes": 4096')
            break
    updated: dict[int, int] = {}
    for index, op in enumerate(dag.ops):
        for which, recv in enumerate(op.updates):
            if recv in updated:
                msg = f"op {recv} is updated by op {updated[recv]} and by op {op.id}"
                add(("ops", index, "updates", which), msg, "one op completes a gradient: the one that adds them up")
            updated[recv] = op.id
    if not task:
        # A training step executes all ops on which the target or an op with updates depends.
        needed = dag.needed_by([dag.target, *(op.id for op in dag.ops if op.updates)])
        for index, op in enumerate(dag.ops):
            unread = [recv for recv in op.updates if recv not in needed]
            if unread:
                msg = f"op {op.id} updates {unread[0]}, which no needed op reads"
                add(("ops", index, "updates"), msg, "leave it out, or let an op of the forward pass read it")
                break
    if task in ("train", "") and not updated:
        hint = 'write "updates": [id of a recv] where its gradient is done' + (
            ', or task = "inference"' if task else ""
        )
        add(("ops",), "no op of the graph updates a parameter", hint)
    if task == "inference" and updated and dag.inference_target is None:
        add(("inference_target",), "`inference_target` is missing", "name the last op of the forward pass")


def trained_layers(dag: OpDag, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the recvs of a graph as layers. Frozen parameters get 0 bytes, because they have no gradient to send."""
    updated = {recv for op in dag.ops for recv in op.updates}
    recvs = (op.id for op in dag.ops if op.kind == "recv")
    rows = zip(recvs, layers, strict=True)
    return tuple(layer if recv in updated else layer._replace(parameter_bytes=0) for recv, layer in rows)


def scaled(dag: OpDag, total: int) -> OpDag:
    """Return the graph with compute times rescaled to sum to exactly `total`, by the largest-remainder method."""
    times = iter(units.rescaled([op.time for op in dag.ops if op.kind == "comp"], total))
    return replace(dag, ops=tuple(replace(op, time=next(times)) if op.kind == "comp" else op for op in dag.ops))
