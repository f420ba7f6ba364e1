"""Priority policies of a job with stragglers, in configurations of Gao (2020), chapter 5: what each costs and saves.

Usage: python validation/thesis/straggler.py [JOBS]. Finished runs are kept in straggler.jsonl beside this file, one
line each, and not made again. Then the tables of docs/validation/adaptive.md are written from them.

All policies of a configuration see the same flows and the same slow workers, seed by seed: every change is a mean of
paired changes, with its 95 % interval. Nothing was calibrated on these runs.
"""

import json
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from gradtide.intervals import mean_interval
from gradtide.papers import gao2020_ch5 as ch5
from gradtide.scenario import Scenario
from gradtide.studies.run import run_all
from gradtide.studies.tenants.cases import variant

KEPT = Path(__file__).with_name("straggler.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "validation" / "adaptive.md"
CELLS = ((1, 46), (1, 92))
"""A job that computes as long as it communicates has little slack, and enough iterations to count waits."""
COMPUTE_MS = ch5.COMPUTE_MS[2] // 2
SLOW: dict[str, dict[str, Any]] = {
    "one, 1.5 times": {"straggler": {"worker": 3, "factor": 1.5}},
    "another each time, 1.5 times": {"straggler": {"factor": 1.5}},
    "now and then, 2 times": {"straggler": {"factor": 2.0, "probability": 0.2}},
    "noise of 0.1": {"noise": 0.1},
}
POLICIES: dict[str, dict[str, Any]] = {
    "all-low": {"policy": "all-low"},
    "deadline": {"policy": "deadline"},
    "straggler": {"policy": "straggler"},
    "straggler, alone": {"policy": "straggler", "exchange": False},
}
SEEDS = (20, 21, 22, 23, 24)
"""Runs of which no other page has any."""
Key = tuple[int, int, str, str, int]
Figures = dict[str, float]


def cases() -> Iterator[Key]:
    """Yield every run: ratio, rate, who is slow, policy, seed; first those that show what waits are worth."""
    for policies, cell in product((("same", "deadline", "straggler"), ("all-low", "straggler, alone")), CELLS):
        for slow, seed, policy in product(SLOW, SEEDS, policies):
            yield (*cell, slow, policy, seed)


def scenario(key: Key) -> Scenario:
    """Return the scenario of a run."""
    ratio, rate, slow, policy, seed = key
    base = Scenario.load("paper/gao2020-ch5")
    job = f"job.{base.jobs[0].name}.compute"
    changes = {f"{job}.scale_to": f"{COMPUTE_MS // ratio}ms", "traffic.web.arrivals.rate": f"{rate}/s"}
    base = base.set(changes | {f"{job}.{name}": value for name, value in SLOW[slow].items()})
    if policy == "same":
        return variant(base, seed, "same")
    return base.replace(seed=seed, priority={"adaptive": POLICIES[policy]})


def known() -> dict[Key, Figures]:
    """Return the runs that are kept."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(r["ratio"], r["rate"], r["slow"], r["policy"], r["seed"]): r["figures"] for r in rows}


def run(jobs: int) -> None:
    """Make the runs that are missing."""
    done = known()
    missing = [key for key in cases() if key not in done]
    for first in range(0, len(missing), jobs):
        part = missing[first : first + jobs]
        results = run_all([scenario(key) for key in part], jobs, None)
        with KEPT.open("a", encoding="utf-8") as file:
            for key, result in zip(part, results, strict=True):
                names = dict(zip(("ratio", "rate", "slow", "policy", "seed"), key, strict=True))
                web = next(iter(result.summary["traffic"].values()))
                figures = {
                    "iteration_s": round(result.iteration_time, 6),
                    "small_ms": round(web["small"]["mean_fct_ms"], 6),
                }
                file.write(json.dumps({**names, "figures": figures}) + "\n")


def change(done: dict[Key, Figures], key: tuple[int, int, str], policy: str, other: str, figure: str) -> str | None:
    """Write by how many percent a figure differs between two policies, with its interval; None unless all have run."""
    pairs = [(done.get((*key, policy, seed)), done.get((*key, other, seed))) for seed in SEEDS]
    changes = [100 * (own[figure] / base[figure] - 1) for own, base in pairs if own and base]
    ends = mean_interval(changes)
    if len(changes) < len(SEEDS) or ends is None:
        return None
    low, high = (f"{round(end, 1) + 0.0:+.1f}" for end in ends)
    return f"{round(sum(changes) / len(changes), 1) + 0.0:+.1f} ({low}…{high})"


COLUMNS = {
    "all-low": ("all-low", "same"),
    "deadline": ("deadline", "same"),
    "straggler against deadline": ("straggler", "deadline"),
    "alone against deadline": ("straggler, alone", "deadline"),
}
"""What the page compares with what."""


def table(done: dict[Key, Figures], figure: str) -> Iterator[str]:
    """Yield the table of a figure: a row per configuration."""
    yield f"| flows/s | slow | {' | '.join(COLUMNS)} |"
    yield "|---:|---|" + "---:|" * len(COLUMNS)
    for (ratio, rate), slow in product(CELLS, SLOW):
        cells = [change(done, (ratio, rate, slow), *pair, figure) for pair in COLUMNS.values()]
        if any(cells):
            yield f"| {rate} | {slow} | {' | '.join(cell or '' for cell in cells)} |"


def write_page(done: dict[Key, Figures]) -> None:
    """Write the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    for figure in ("iteration_s", "small_ms"):
        mark = f"<!-- table: stragglers {figure} -->\n\n"
        lines = "".join(f"{line}\n" for line in table(done, figure)) + "\n"
        text = re.sub(rf"({re.escape(mark)})(?:\|.*\n)*\n?", lambda found, new=lines: found[1] + new, text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    write_page(known())
