"""Costs and savings of priority policies for a job with stragglers, in configurations of Gao (2020), chapter 5.

Usage: python validation/thesis/straggler.py [JOBS]. Finished runs are kept in straggler.jsonl beside this file, one
line each, and not made again. Then straggler-cells.csv (every change, with its interval) is written from them;
docs/validation/adaptive.md sums it up.

All policies of a configuration see the same flows and the same slow workers, seed by seed: every change is a mean of
paired changes, with its 95 % interval. Nothing was calibrated on these runs.
"""

import csv
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from kept import Figures, KeptRuns

from gradtide.intervals import mean_interval
from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario
from gradtide.studies.result import RunResult
from gradtide.studies.tenants.cases import variant

CELLS_FILE = Path(__file__).with_name("straggler-cells.csv")
CELLS = ((1, 46), (1, 92))
"""A job that computes as long as it communicates has little slack, and enough iterations to average waits."""
COMPUTE_MS = ch5.COMPUTE_MS[2] // 2
TENTH = {
    "cluster.link.rate": "1Gbps",
    "job.train.model.size": "10MB",
    "job.train.schedule.fusion": "533332B",
}
"""A tenth of the thesis's rates and bytes, because this number of runs would otherwise take hours. Flows keep their
sizes."""
SLOW: dict[str, dict[str, Any]] = {
    "one, 1.5 times": {"straggler": {"worker": 3, "factor": 1.5}},
    "another each time, 1.5 times": {"straggler": {"factor": 1.5}},
    "now and then, 2 times": {"straggler": {"factor": 2.0, "probability": 0.2}},
    "noise of 0.1": {"noise": 0.1},
}
POLICIES = ("same", "deadline", "straggler")
SEEDS = (20, 21, 22, 23, 24)
"""Seeds that no other page uses."""
Key = tuple[int, int, str, str, int]
KEPT = KeptRuns(Path(__file__).with_name("straggler.jsonl"), ("ratio", "rate", "slow", "policy", "seed"))


def cases() -> Iterator[Key]:
    """Yield every run as ratio, rate, slow workers, policy and seed."""
    for cell, slow, seed, policy in product(CELLS, SLOW, SEEDS, POLICIES):
        yield (*cell, slow, policy, seed)


def scenario(key: Key) -> Scenario:
    """Return the scenario of a run."""
    ratio, rate, slow, policy, seed = key
    base = Scenario.load("paper/gao2020-ch5").set({"cluster.transport.recovery": "sack", **TENTH})
    job = f"job.{base.jobs[0].name}.compute"
    changes = {f"{job}.scale_to": f"{COMPUTE_MS // ratio}ms", "traffic.web.arrivals.rate": f"{rate / 10:g}/s"}
    base = base.set(changes | {f"{job}.{name}": value for name, value in SLOW[slow].items()})
    if policy == "same":
        return variant(base, seed, "same")
    return base.replace(seed=seed, priority={"adaptive": {"policy": policy}})


def figures(result: RunResult) -> Figures:
    """Return the figures of a run to keep."""
    web = next(iter(result.summary["traffic"].values()))
    return {"iteration_s": result.iteration_time, "small_ms": web["small"]["mean_fct_ms"]}


def change(done: dict[Key, Figures], key: tuple[int, int, str], policy: str, other: str, figure: str) -> str | None:
    """Return the change of a figure between two policies in percent, with its interval; None unless all have run."""
    pairs = [(done.get((*key, policy, seed)), done.get((*key, other, seed))) for seed in SEEDS]
    changes = [100 * (own[figure] / base[figure] - 1) for own, base in pairs if own and base]
    ends = mean_interval(changes)
    if len(changes) < len(SEEDS) or ends is None:
        return None
    low, high = (f"{round(end, 1) + 0.0:+.1f}" for end in ends)
    return f"{round(sum(changes) / len(changes), 1) + 0.0:+.1f} ({low}…{high})"


def write_cells(done: dict[Key, Figures]) -> None:
    """Write every change of every configuration, with its interval."""
    with CELLS_FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("ratio", "flows_per_s", "slow", "policy", "against", "iteration_percent", "small_percent"))
        for cell, slow in product(CELLS, SLOW):
            for policy, other in (("deadline", "same"), ("straggler", "same"), ("straggler", "deadline")):
                changes = [change(done, (*cell, slow), policy, other, name) for name in ("iteration_s", "small_ms")]
                writer.writerow((*cell, slow, policy, other, *changes))


if __name__ == "__main__":
    KEPT.make(cases(), scenario, figures, int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    write_cells(KEPT.known())
