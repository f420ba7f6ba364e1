"""Kineto traces of a simulated run: what a profiler would have written of it, rank by rank."""

import json
from pathlib import Path


def kineto_of_run(result, folder: Path, *, ranks: int = 2, late_us: float = 0.0, is_marked: bool = True) -> Path:
    """Write the first recorded iterations of a run's first job, one file per rank, into `folder`.

    Args:
        result: of a run whose `timeline` covers some iterations.
        folder: made if it is not there.
        ranks: how many; all compute alike.
        late_us: by how much the last rank is late: the others' all-reduces begin so much earlier and end with its.
        is_marked: whether the profiler was told of the steps.
    """
    operations, transfers = result.operations.to_dicts(), result.transfers.to_dicts()
    compute = [row for row in operations if row["resource"] == "compute" and row["kind"] != "barrier"]
    starts = {}
    for row in compute:
        if row["kind"] == "forward":
            starts.setdefault(row["iteration"], row["start_us"])
    numbers = sorted(number for number in starts if number + 1 in starts)
    sizes = {(row["iteration"], row["bucket"]): row for row in transfers}
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        events = []

        def event(category, name, thread, start, end, events=events, **args):
            # Both ends rounded to nanoseconds, so that what follows at once still does.
            first, last = round(start, 3), round(end, 3)
            times = {"ts": first, "dur": round(last - first, 3)}
            events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, **times, "args": args})

        for number in numbers:
            if is_marked:
                event("user_annotation", f"ProfilerStep#{int(number)}", 1, starts[number], starts[number + 1])
        for row in compute:
            # While the host is busy, the device does nothing.
            if row["iteration"] not in numbers or row["kind"] == "host":
                continue
            names = {"backward": "autograd::engine::evaluate_function: ", "forward": "aten::", "update": "aten::add_ "}
            if row["kind"] == "update":
                event("user_annotation", "Optimizer.step#SGD.step", 1, row["start_us"], row["end_us"])
            event("cpu_op", names[row["kind"]] + row["name"], 1, row["start_us"], row["end_us"])
        for (number, _), row in sizes.items():
            if number in numbers:
                early = late_us if rank < ranks - 1 else 0.0
                shape = {"Input Dims": [[row["bytes"] // 4]], "Input type": ["float"]}
                event("cpu_op", "c10d::allreduce_", 1, row["ready_us"] - early, row["ready_us"] - early)
                event("user_annotation", "gloo:all_reduce", 2, row["start_us"] - early, row["end_us"], **shape)
        events.sort(key=lambda one: one["ts"])
        job = {"rank": rank, "world_size": ranks, "pg_config": [{"pg_name": "0", "ranks": list(range(ranks))}]}
        document = {"schemaVersion": 1, "distributedInfo": job, "traceEvents": events, "baseTimeNanoseconds": 10**18}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))
    return folder
