"""`gradtide collectives`: the fastest collective for each range of sizes, and the reason.

The time of an exchange has three terms. *Latency* is the time of an exchange of one byte, less the part that overlaps
with the transfer of larger messages. *Bandwidth* is the additional time of a larger exchange on a single switch, where
only the ranks' own links limit it; textbooks give this term (docs/models/collectives.md). *Contention* is the rest,
which is due to shared links.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.answer import Candidate, Feasibility
from gradtide.answer.build import build
from gradtide.answer.runtimes import runs_on
from gradtide.counts import NOT_SUMMED
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.exchange import (
    COLLECTIVES,
    alone,
    check_one_job,
    collective_names,
    exchange_s,
    exchanged_by,
    offered,
    parse_collective,
    parse_size,
)
from gradtide.studies.folder import RESOLVED, write_text
from gradtide.studies.keep import Kept
from gradtide.studies.network import cards_per_node, on_one_switch
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import head, run_all, total_cost
from gradtide.studies.run_folder import write_study
from gradtide.studies.trained import Cluster, trained

SIZES = (*(step * 10**power for power in range(3, 9) for step in (1, 3)), 10**9)
TERMS = ("latency", "bandwidth", "contention")

LATENCY = 0
"""Key of the latency in tables by size. The latency is measured with an exchange of one byte."""
NOISE = 1e-9
"""Relative difference below which two times are equal, because times are rounded to a picosecond."""


class CollectivesResult(StudyRows):
    """Exchange times by collective and size, split into latency, bandwidth and contention.

    Attributes:
        rows: one dict per collective and size, with the columns of `collectives.csv`.
    """

    def __init__(
        self, base: Scenario, times_s: dict[str, dict[int, tuple[float, float]]], results: Sequence[RunResult]
    ) -> None:
        self.base = base
        self.rows = _rows(times_s)
        cluster = self.base.to_dict()["cluster"]
        spans = winners(candidates(self.rows))
        network = words.fabric(cluster["topology"]["kind"], str(cluster["topology"].get("bisection", "")))
        gpus, _ = cards_per_node(self.base)
        workers = self.base.jobs[0].workers
        hosts = f"{workers} hosts" if gpus == 1 else f"{workers} GPUs in nodes of {gpus}"
        where = f"{hosts}, {network}, {words.rate(self.base.link_rate_bps)}"
        self.summary: dict[str, Any] = {
            **head("collectives", self.base.engine),
            "seed": self.base.seed,
            **build(
                "collectives",
                _headline(where, spans, self.rows),
                self.base,
                _answers(self.rows, self.base),
                varied=("job.*.collective",),
                scenario=RESOLVED,
            ).to_dict(),
            "where": where,
            "winners": spans,
            "rows": self.rows,
            "cost": total_cost(result.summary for result in results),
        }

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        write_text(folder / RESOLVED, self.base.to_toml())
        write_study(self, folder, "collectives.csv")


@with_lists
@within_limits
def collectives(  # noqa: PLR0913 - one argument per option of the command
    scenario: Any,
    *,
    cluster: Cluster = None,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: Sequence[int | str] = SIZES,
    engine: str = "fluid",
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> CollectivesResult:
    """Compare the times of collectives for gradients of several sizes on a scenario's cluster.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file, with one job
            and no background flows. The job's model does not matter.
        cluster: as in `run`.
        collectives: collectives as `KIND[+KEY=VALUE]`, such as `ring`, `hierarchical+group=8` or `ps+distributed`.
        sizes: increasing sizes of a gradient, in bytes or with a unit as in `10MB`.
        engine: network engine.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: replacements of the scenario's keys, by short name, as in `run`.

    Raises:
        Interrupted: on Ctrl-C.
        ScenarioError: before any run, if the scenario or a collective is invalid, or the limits would be exceeded.
        ValueError: if a list is empty or has duplicates, a collective cannot be parsed, sizes do not increase, or the
            scenario has more than one job, or background flows.
    """
    base = trained(scenario, cluster, **keys)
    check_one_job(base, "collectives")
    collectives = collective_names(offered(base, collectives))
    counts = [parse_size(size, "sizes") for size in sizes]
    if not counts or any(b <= a for a, b in pairwise((0, *counts))):
        raise ValueError("sizes: sizes are above 0 and increase; write them as in 1kB,1MB,1GB")
    if base.jobs[0].workers < 2:
        raise ValueError(f"[job.{base.jobs[0].name}] has one worker, which exchanges nothing")
    cases: dict[tuple[str, int, bool], Scenario] = {}
    for name in collectives:
        own = _with(base, name, engine)
        # The group size is set explicitly, because its default, the hosts of an edge switch, would differ on a single
        # switch.
        star = on_one_switch(own.replace(group=own.jobs[0].group) if own.jobs[0].group else own)
        for size in (LATENCY, *counts):
            cases[name, size, False] = alone(own, size or 1)
            cases[name, size, True] = alone(star, size or 1)
    try:
        results = dict(zip(cases, run_all(list(cases.values()), jobs, progress, keep, limits), strict=True))
    except Unfinished as stop:
        known = {key: result for key, result in zip(cases, stop.results, strict=True) if result is not None}
        whole = [
            name for name in collectives if all((name, s, star) in known for s in (LATENCY, *counts) for star in (0, 1))
        ]
        if whole:
            stop.attach(CollectivesResult(base, _times(known, whole, counts), list(known.values())))
        raise
    first = _with(base, collectives[0], engine)
    return CollectivesResult(first, _times(results, collectives, counts), list(results.values()))


def _with(base: Scenario, name: str, engine: str) -> Scenario:
    task: dict[str, Any] = {} if _sums(name) else {"task": "exchange"}
    return exchanged_by(base, name, engine=engine, **task)


def _times(
    results: dict[tuple[str, int, bool], RunResult], names: Sequence[str], sizes: Sequence[int]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Return (time on the network, time on one switch) in seconds, by collective and size including `LATENCY`."""
    return {
        name: {
            size: (exchange_s(results[name, size, False]), exchange_s(results[name, size, True]))
            for size in (LATENCY, *sizes)
        }
        for name in names
    }


def _rows(times_s: dict[str, dict[int, tuple[float, float]]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, by_size in times_s.items():
        latency_s, star_latency_s = by_size[LATENCY]
        for size, (here_s, star_s) in by_size.items():
            if size == LATENCY:
                continue
            bandwidth_s = star_s - star_latency_s
            contention_s = here_s - latency_s - bandwidth_s
            if abs(contention_s) < NOISE * here_s:
                contention_s = 0.0
            # Without lock step, ranks hide part of the latency behind other ranks' transfers.
            hidden_s = min(max(-contention_s, 0.0), latency_s)
            rows.append(
                {
                    "collective": name,
                    "bytes": size,
                    "exchange_us": 1e6 * here_s,
                    "latency_us": 1e6 * (latency_s - hidden_s),
                    "bandwidth_us": 1e6 * bandwidth_s,
                    "contention_us": 1e6 * (contention_s + hidden_s),
                    "is_best": False,
                }
            )
    for size in dict.fromkeys(row["bytes"] for row in rows):
        own = [row for row in candidates(rows) if row["bytes"] == size]
        min(own, key=lambda row: row["exchange_us"])["is_best"] = True
    return rows


def candidates(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of collectives that sum gradients; all rows if none does."""
    return [row for row in rows if _sums(row["collective"])] or list(rows)


def _sums(name: str) -> bool:
    return parse_collective(name)["kind"] not in NOT_SUMMED


def winners(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one dict per range of sizes: the fastest collective, the second, and the term that separates them most.

    Times are interpolated linearly between sizes, which is exact if they are a constant plus bytes / rate.
    """
    times: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        times.setdefault(row["collective"], []).append((row["bytes"], row["exchange_us"]))
    sizes = [size for size, _ in next(iter(times.values()))]
    best = min(times, key=lambda name: times[name][0][1])
    spans: list[dict[str, Any]] = [{"collective": best, "from_bytes": float(sizes[0]), "to_bytes": float(sizes[-1])}]
    for i, (low, high) in enumerate(pairwise(sizes)):
        at = float(low)
        while True:
            crossings = [
                (size, times[name][i + 1][1], name)
                for name in times
                if (size := _crossing(times[best][i : i + 2], times[name][i : i + 2])) is not None and size >= at
            ]
            if not crossings:
                break
            at, _, best = min(crossings)
            if at >= high:
                break
            spans[-1]["to_bytes"] = at
            spans.append({"collective": best, "from_bytes": at, "to_bytes": float(sizes[-1])})
    for span in spans:
        span["because"], span["next"] = _because(rows, span)
    return spans


def _crossing(own: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> float | None:
    """Return the size between two (bytes, time) points from which `other` is faster than `own`; `None` if never."""
    (low, before), (high, after) = own
    lead, lag = other[0][1] - before, after - other[1][1]
    if lag <= NOISE * after:
        return None
    return low + (high - low) * max(lead, 0.0) / (max(lead, 0.0) + lag)


def _because(rows: Sequence[dict[str, Any]], span: dict[str, Any]) -> tuple[str, str]:
    """Return the term in which the winner leads most at the middle of the range `span`, and the second collective."""
    middle = (span["from_bytes"] * span["to_bytes"]) ** 0.5
    size = min({row["bytes"] for row in rows}, key=lambda at: abs(at - middle) / (at + middle))
    own = next(row for row in rows if row["bytes"] == size and row["collective"] == span["collective"])
    others = [row for row in rows if row["bytes"] == size and row is not own]
    if not others:
        return "", ""
    rival = min(others, key=lambda row: row["exchange_us"])
    return max(TERMS, key=lambda term: rival[f"{term}_us"] - own[f"{term}_us"]), rival["collective"]


def _answers(rows: Sequence[dict[str, Any]], base: Scenario) -> list[Candidate]:
    """Return each row of `candidates` as a `Candidate` of the study's answer, grouped by size."""
    job = base.jobs[0]
    found = []
    for row in candidates(rows):
        kind = row["collective"].partition("+")[0]
        by, why_not = runs_on("fifo", True, kind, job.device.name)
        name, size = words.collective(row["collective"]), words.size(row["bytes"])
        found.append(Candidate(name, row["exchange_us"], Feasibility(), by, why_not, group=size))
    return found


def _headline(where: str, spans: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> str:
    """Return sentences with the winner of each range of sizes, why the last one wins, and contention, if large."""
    others = [name for name in dict.fromkeys(row["collective"] for row in rows) if not _sums(name)]
    rows = candidates(rows)
    *before, last = spans
    name = words.collective(last["collective"])
    if before:
        fastest = ", ".join(
            f"{words.collective(span['collective'])} {'is the fastest ' if not index else ''}"
            f"up to {words.size(span['to_bytes'], 2)}"
            for index, span in enumerate(before)
        )
        text = f"{fastest}, {name} above that"
    else:
        text = f"{name} is the fastest at every size"
    if last["because"]:
        text += f", because its {last['because']} term is smaller than that of {words.collective(last['next'])}"
    largest = max(row["bytes"] for row in rows)
    most = max((row for row in rows if row["bytes"] == largest), key=lambda row: row["contention_us"])
    end = ""
    if most["contention_us"] > 0.05 * most["exchange_us"]:
        share = most["contention_us"] / most["exchange_us"]
        who = words.collective(most["collective"])
        end = f" At {words.size(largest)}, {words.percent(share)} of {who} is contention."
    if others:
        who = ", ".join(map(words.collective, others))
        end += f" Not for gradients, because {'it does' if len(others) == 1 else 'they do'} not sum them: {who}."
    return f"On {where}: {text}.{end}"


__all__ = ["COLLECTIVES", "CollectivesResult", "collectives"]
