"""Lower bound of each flow's completion time: its time alone on the idle network, simulated by the scenario's engine.

```text
sender   ▕1▕2▕3▕4▏            sends all segments, with their headers, back to back at link rate from the start on
switch     ▕1▕2▕3▕4▏          queues neither drop nor mark, and bursts are not announced
receiver         … ▕4▏ ack    the last acknowledgement returns on an idle path
```

No transport is faster: a congestion window can only delay segments, and so can packets of other flows. A run of the
flow alone with the scenario's own transport would not be a bound, because the flow may overflow its own queue and lose
segments that it would not lose beside other flows.

One run sends every distinct flow (tenant, sender, receiver, bytes) once, with a long pause between flows. If a flow
ends after the next one has started, the flow is simulated again with longer pauses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradtide import units
from gradtide.scenario import Scenario
from gradtide.studies.network import run_of_network
from gradtide.studies.result import Flow, RunResult

RunAll = Callable[[Sequence[Scenario]], Sequence[RunResult]]

PAUSES = (1, 16, 256)
"""Multiples of the interval between the starts of two flows, tried in this order until flows no longer overlap."""

PAUSE_PS = 20 * 10**9
SPARE_PACKETS = 100
"""Queue capacity beyond the packets of the largest flow, in packets."""

TIMES_LINE_RATE = 4
"""The interval between the starts of two flows, which `PAUSES` multiplies, is `PAUSE_PS` (20 ms) plus the set-up time,
and this multiple of the serialization time, of the earlier flow.

A guess, which affects only how often flows are simulated again, because overlapping flows are detected.
"""


def flows_of(results: Sequence[RunResult]) -> set[Flow]:
    """Return the distinct completed background flows of several runs."""
    return {flow for result in results for flow in result.distinct_flows()}


def alone_ps(runs_and_flows: Sequence[tuple[Scenario, set[Flow]]], run: RunAll) -> list[dict[Flow, int]]:
    """Return, for each scenario, the lower bound of each flow's completion time in picoseconds.

    A flow that never completes, or that overlaps with another flow even with the longest of `PAUSES`, is left out.
    """
    known: list[dict[Flow, int]] = [{} for _ in runs_and_flows]
    left = [sorted(flows) for _, flows in runs_and_flows]
    for pause in PAUSES:
        open_ = [index for index, flows in enumerate(left) if flows]
        runs = [serial(runs_and_flows[index][0], left[index], pause) for index in open_]
        for index, (_, starts), result in zip(open_, runs, run([one for one, _ in runs]), strict=True):
            known[index].update(_ended(left[index], starts, result))
            left[index] = [flow for flow in left[index] if flow not in known[index]]
    return known


def serial(base: Scenario, flows: Sequence[Flow], pause: int) -> tuple[Scenario, list[int]]:
    """Return a scenario that sends `flows` one after the other, and the start time of each flow in picoseconds."""
    keys = base.to_dict()
    tables: dict[str, dict[str, Any]] = {}
    starts, at_ps = [], 0
    for index, (name, src, dst, size) in enumerate(flows):
        own = keys["traffic"][name]
        starts.append(at_ps)
        start = units.format_time(at_ps)
        if "bursts" in own:
            # Only bursts can have a `setup`, the pause before their first byte, which is part of the completion time.
            # So bursts remain bursts here, and other flows are listed one by one.
            burst = {**own["bursts"], "src": [f"h{src}"], "count": 1, "start": start}
            tables[f"burst{index}"] = {"bursts": burst}
        else:
            row = {"start": start, "src": f"h{src}", "dst": f"h{dst}", "bytes": f"{size}B"}
            tables.setdefault(name, {"flows": []})["flows"].append(row)
        setup_ps = units.parse_time(own["bursts"]["setup"]) if "bursts" in own else 0
        at_ps += pause * (PAUSE_PS + setup_ps + TIMES_LINE_RATE * 8 * size * 10**12 // base.link_rate_bps)
    run = {**run_of_network(keys), "duration": units.format_time(at_ps)}
    if "start_jitter" in run:
        run["start_jitter"] = "0s"
    largest_bytes = max((size for *_, size in flows), default=1)
    cluster = keys["cluster"]
    if base.engine == "packet":
        cluster = _unhindered(cluster, base.segment_bytes, largest_bytes)
    return Scenario.from_dict({"cluster": cluster, "traffic": tables, "run": run}), starts


def _unhindered(cluster: Mapping[str, Any], segment_bytes: int, largest_bytes: int) -> dict[str, Any]:
    """Return the cluster with a window as large as the largest flow, and queues that neither drop nor mark packets."""
    segments = -(-largest_bytes // segment_bytes)
    own = {key: value for key, value in cluster.items() if key not in ("queue", "transport", "switch_buffer")}
    transport = {"kind": "ideal", "segment": f"{segment_bytes}B", "window": f"{segments * segment_bytes}B"}
    queue = {"kind": "fifo", "capacity": f"{segments + SPARE_PACKETS}pkt"}
    return {**own, "transport": transport, "queue": queue}


def _ended(flows: Sequence[Flow], starts: Sequence[int], result: RunResult) -> Mapping[Flow, int]:
    """Return the completion time of each flow that overlaps with no other, up to the first that does not complete."""
    rows = sorted(result.flows.to_dicts(), key=lambda row: row["start_us"])
    found, free_ps = {}, 0
    for flow, start_ps, next_ps, row in zip(flows, starts, [*starts[1:], None], rows, strict=True):
        if row["fct_us"] is None:
            break
        took_ps = round(row["fct_us"] * 1e6)
        end_ps = start_ps + took_ps
        if start_ps >= free_ps and (next_ps is None or end_ps <= next_ps):
            found[flow] = took_ps
        free_ps = max(free_ps, end_ps)
    return found
