"""How long each flow takes alone: simulated on the idle network, by the engine of the scenario.

Every distinct flow of some runs (tenant, sender, receiver, bytes) is sent once in one run, each long after the one
before it has ended. That is checked: where a flow ends later than the next one starts, the run is repeated with longer
pauses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradtide import units
from gradtide.results import Flow, RunResult
from gradtide.scenario import Scenario

RunAll = Callable[[Sequence[Scenario]], Sequence[RunResult]]

PAUSES = (1, 16, 256)
"""Multiples of the pause after a flow that are tried one after the other."""

PAUSE_PS = 20 * 10**9
TIMES_LINE_RATE = 4
"""The shortest pause after a flow is 20 ms, and four times what its bytes take at the rate of a link. A guess that is
checked: it decides how often a run is repeated, and no result."""


def flows_of(results: Sequence[RunResult]) -> set[Flow]:
    """Return every distinct flow of some runs."""
    return {flow for result in results for flow in result.distinct_flows()}


def alone_ps(asked: Sequence[tuple[Scenario, set[Flow]]], run: RunAll) -> list[dict[Flow, int]]:
    """Return how long each flow takes alone, in picoseconds, on the network of its scenario.

    A flow that does not end in any run is left out.
    """
    known: list[dict[Flow, int]] = [{} for _ in asked]
    left = [sorted(flows) for _, flows in asked]
    for pause in PAUSES:
        open_ = [index for index, flows in enumerate(left) if flows]
        runs = [serial(asked[index][0], left[index], pause) for index in open_]
        for index, (_, starts), result in zip(open_, runs, run([one for one, _ in runs]), strict=True):
            known[index].update(_ended(left[index], starts, result))
            left[index] = [flow for flow in left[index] if flow not in known[index]]
    return known


def serial(base: Scenario, flows: Sequence[Flow], pause: int) -> tuple[Scenario, list[int]]:
    """Return a scenario that sends flows one after the other, and when each starts, in picoseconds."""
    keys = base.to_dict()
    tables: dict[str, dict[str, Any]] = {}
    starts, at_ps = [], 0
    for index, (name, src, dst, size) in enumerate(flows):
        own = keys["traffic"][name]
        same = {key: own[key] for key in ("announce", "priority") if key in own}
        starts.append(at_ps)
        start = units.format_time(at_ps)
        if "bursts" in own:
            # The pause before the first byte of a burst belongs to its time, and a list of flows has none.
            burst = {**own["bursts"], "src": [f"h{src}"], "count": 1, "start": start}
            tables[f"burst{index}"] = {**same, "bursts": burst}
        else:
            row = {"start": start, "src": f"h{src}", "dst": f"h{dst}", "bytes": f"{size}B"}
            tables.setdefault(name, {**same, "flows": []})["flows"].append(row)
        setup_ps = units.parse_time(own["bursts"]["setup"]) if "bursts" in own else 0
        at_ps += pause * (PAUSE_PS + setup_ps + TIMES_LINE_RATE * 8 * size * 10**12 // base.link_rate_bps)
    run = {"engine": base.engine, "seed": base.seed, "duration": units.format_time(at_ps)}
    return Scenario.from_dict({"cluster": keys["cluster"], "traffic": tables, "run": run}), starts


def _ended(flows: Sequence[Flow], starts: Sequence[int], result: RunResult) -> Mapping[Flow, int]:
    """Return the times of the flows that were alone: the one before had ended, and the next had not begun."""
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
