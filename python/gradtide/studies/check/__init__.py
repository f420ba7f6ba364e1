"""`gradtide check`: compares flows and iterations of a run with those in ns-3, or in an emulation on real packets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradtide import report, words
from gradtide.estimate import Limits, foresee, within_limits
from gradtide.results import Table
from gradtide.scenario import BackgroundFlows, Scenario
from gradtide.studies.check import emulation
from gradtide.studies.check import ns3 as simulator
from gradtide.studies.check.emulation import is_emulation
from gradtide.studies.check.ns3 import NS3MissingError
from gradtide.studies.folder import whole_folder, write_text, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.run import head, part_of, run_all
from gradtide.studies.run_folder import write_core, write_summary
from gradtide.studies.trained import Cluster, trained
from gradtide.units import PS_PER_MS

SIMULATORS = ("ns3", emulation.NAME)
HALF_NS = 0.5
"""Two times count as equal if they differ by less than this, in nanoseconds, because ns-3 counts whole nanoseconds."""
SHARE_OF_OURS = 0.02
"""Fraction of the progress that gradtide's run takes. ns-3's run takes about 100 times as long."""
__all__ = ["SIMULATORS", "CheckResult", "NS3MissingError", "check", "figures", "is_emulation"]


class CheckResult:
    """Comparison of a scenario's run in gradtide with its run in another simulator.

    Attributes:
        summary: the document of `gradtide check --json`.
        run: gradtide's run.
        flows: a row for each background flow, by start time: `traffic`, `flow`, `start_us`, `src`, `dst`, `bytes`, and
            the completion times `fct_us` and `other_fct_us` (`None` if the flow has not finished).
        iterations: a row for each iteration that both simulators have finished: `iteration`, `time_us`,
            `other_time_us`.
    """

    def __init__(self, summary: dict[str, Any], run: RunResult, flows: Table, iterations: Table) -> None:
        self.summary, self.run, self.flows, self.iterations = summary, run, flows, iterations

    def save(self, path: str | Path) -> Path:
        """Write the result to the folder `path`, atomically by rename."""
        path = Path(path)
        with whole_folder(path) as folder:
            (folder / "runs" / "gradtide").mkdir(parents=True)
            write_core(self.run, folder / "runs" / "gradtide")
            write_text(folder / "flows_in_both.csv", self.flows.to_csv())
            write_text(folder / "iterations_in_both.csv", self.iterations.to_csv())
            write_summary(self.summary, folder)
            write_versions(folder)
            report.write_report(folder)
        return path

    def __repr__(self) -> str:
        return f"<CheckResult {self.summary['headline']}>"


@within_limits
def check(
    scenario: "Scenario | str | Path | dict[str, Any]",
    against: str = "ns3",
    *,
    cluster: Cluster = None,
    ns3: str | Path | None = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> CheckResult:
    """Run a scenario with the packet engine and in another simulator, and compare every flow and iteration.

    Args:
        scenario: as in `run`, with background flows, and at most one data-parallel job with a ring all-reduce, on a
            star, leaf-spine, Clos or custom network. docs/validation/ns3.md lists the supported features.
        against: "ns3", or "emulation" for real packets; then `scenario` may also be the folder of an emulation.
        cluster: as in `run`.
        ns3: folder in which ns-3 3.37 is installed. Default: the folder in the environment variable NS3, otherwise
            /usr or /usr/local.
        jobs: no effect, because each simulator executes only one run.
        progress: called periodically with the completed fraction.
        keep: where gradtide's run is stored.
        limits: memory and time limits.
        keys: as in `run`.

    Raises:
        ScenarioError: if the scenario is invalid, or has features that the other simulator does not support.
        NS3MissingError: if ns-3 or a C++ compiler is missing.
        SimulationError: if one of the two runs fails.
        ValueError: if the simulator `against` is unknown.
    """
    if against not in SIMULATORS:
        raise ValueError(f"against: no simulator is called {against!r}; there is {', '.join(SIMULATORS)}")
    if against == emulation.NAME:
        return _against_emulation(scenario, cluster, jobs, progress, keep, limits, keys)
    loaded = simulator.followed(trained(scenario, cluster, **keys))
    loaded.check_for_ns3()
    foresee(lambda: [(loaded, 1)], note=f"the run in {against}, which takes about 100 times as long")
    program = simulator.build(None if ns3 is None else Path(ns3))
    [run] = run_all([loaded], jobs, part_of(progress, 0, SHARE_OF_OURS), keep, limits)
    # Both simulators stop at `run.duration`, even if flows are unfinished. Without a duration, ns-3 stops at the latest
    # after twice the time that gradtide has simulated.
    stop_ps = loaded.duration_ps or int(2 * run.summary["simulated_ms"] * PS_PER_MS)
    measured = simulator.measure(loaded, program, stop_ps, part_of(progress, SHARE_OF_OURS, 1))
    return compared(loaded, run, measured)


def _against_emulation(
    scenario: "Scenario | str | Path | dict[str, Any]",
    cluster: Cluster,
    jobs: int,
    progress: Callable[[float], object] | None,
    keep: Kept | None,
    limits: Limits | None,
    keys: dict[str, Any],
) -> CheckResult:
    """Compare the packet engine's run of a scenario with an emulation: a finished one if `scenario` is its folder."""
    if isinstance(scenario, (str, Path)) and is_emulation(str(scenario)):
        loaded, emulated = emulation.of_folder(Path(scenario))
    else:
        loaded, emulated = trained(scenario, cluster, **keys).replace(engine="packet"), None
    foresee(lambda: [(loaded, 1)])
    [run] = run_all([loaded], jobs, part_of(progress, 0, SHARE_OF_OURS), keep, limits)
    if emulated is None:
        emulated = emulation.of_run(loaded, part_of(progress, SHARE_OF_OURS, 1))
    rows = run.flows.to_dicts()
    columns = {name: [row[name] for row in rows] for name in ("traffic", "flow", "start_us", "src", "dst", "bytes")}
    # An emulation measures when a flow has arrived, but not when its connection closes.
    columns["fct_us"] = [row["received_us"] for row in rows]
    columns["other_fct_us"] = [emulated.flows.get((row["traffic"], row["flow"])) for row in rows]
    times = zip(run.iterations["iteration"].tolist(), run.iterations["time_us"], strict=True)
    pairs = [(index, float(us), emulated.iterations[index]) for index, us in times if index in emulated.iterations]
    other = Other(NAME_OF_EMULATION, emulated.summary["packets"]["delivered"], emulated.summary["duration_s"])
    result = _compared(loaded, run, other, Table.of(columns), pairs, emulated.notes, 0)
    ours = emulation.figures(run.links.to_dicts(), rows, run.bursts.to_dicts())
    names = [name for name in ours if name in emulated.figures]
    figures = [{"figure": name, "gradtide": ours[name], "other": emulated.figures[name]} for name in names]
    result.summary["figures_in_both"] = figures
    return result


@dataclass(frozen=True)
class Other:
    """What gradtide's run is compared with. In an emulation, `cpu_s` is the duration of the emulation in seconds."""

    name: str
    packets: int
    cpu_s: float


NAME_OF_EMULATION = "the emulation"


def compared(scenario: Scenario, run: RunResult, measured: simulator.Measured) -> CheckResult:
    """Return the comparison of gradtide's run of a scenario with ns-3's measurements."""
    flows = _flows(scenario.traffic, run, measured)
    pairs = [
        (index, float(time_us), measured.iterations[index][1] / 1e3)
        for index, time_us in zip(run.iterations["iteration"].tolist(), run.iterations["time_us"], strict=True)
        if index < len(measured.iterations) and measured.iterations[index][1] >= 0
    ]
    rounding_ns = simulator.rounding_ns(scenario.jobs)
    followed = ", ".join(f"{key} = {value}" for key, value in simulator.FOLLOWED_KEYS.items())
    notes = [f"To follow ns-3, gradtide overrides these keys of the scenario: {followed}."]
    if rounding_ns:
        notes.append(
            f"ns-3 rounds the times of layers to nanoseconds, so iterations that differ by up to {rounding_ns} ns "
            f"count as equal."
        )
    first_ms = _first_difference_ms(flows)
    if first_ms is not None:
        notes.append(
            f"Up to {words.duration(first_ms / 1e3)} of simulated time all flows are equal. Then the order of two "
            f"packets differs and changes all later events, like another seed: compare means over several seeds."
        )
    name = f"ns-3.{measured.version.partition('.')[2]}"
    other = Other(name, measured.summary["packet_hops"], measured.summary["cpu_s"])
    return _compared(scenario, run, other, flows, pairs, notes, rounding_ns)


def _compared(
    scenario: Scenario,
    run: RunResult,
    other: Other,
    flows: Table,
    pairs: Sequence[tuple[int, float, float]],
    notes: Sequence[str],
    rounding_ns: int,
) -> CheckResult:
    ours_us, theirs_us = flows["fct_us"], flows["other_fct_us"]
    iterations = Table.of(
        {name: [pair[at] for pair in pairs] for at, name in enumerate(("iteration", "time_us", "other_time_us"))}
    )
    summary = {
        **head("check", scenario.engine),
        "against": other.name,
        "seed": scenario.seed,
        "scenario_sha256": scenario.sha256,
        "flows": _differences(ours_us, theirs_us),
        "tenants": {
            tenant.name: _differences(ours_us[mine], theirs_us[mine])
            for tenant in scenario.traffic
            for mine in [np.asarray(flows["traffic"]) == tenant.name]
        },
        "first_difference_ms": _first_difference_ms(flows),
        "iterations": _differences(iterations["time_us"], iterations["other_time_us"], rounding_ns),
        "packet_hops": {"gradtide": run.summary["cost"]["packet_hops"], "other": other.packets},
        "cpu_s": {"gradtide": run.summary["cost"]["cpu_s"], "other": other.cpu_s},
        "notes": list(notes),
        "cost": run.summary["cost"],
    }
    summary["headline"] = _headline(summary)
    return CheckResult(summary, run, flows, iterations)


def _flows(traffic: Sequence[BackgroundFlows], run: RunResult, measured: simulator.Measured) -> Table:
    order = simulator.order_of_flows(traffic)
    found = {(row["traffic"], row["flow"]): row["fct_us"] for row in run.flows.to_dicts()}
    rows: dict[str, list[Any]] = {
        "traffic": [traffic[tenant].name for tenant, _ in order],
        "flow": [place for _, place in order],
        "start_us": [traffic[tenant].start_ps[place] / 1e6 for tenant, place in order],
        **{key: [getattr(traffic[tenant], key)[place] for tenant, place in order] for key in ("src", "dst", "bytes")},
    }
    rows["fct_us"] = [found.get(key) for key in zip(rows["traffic"], rows["flow"], strict=True)]
    rows["other_fct_us"] = [row["fct_close_ns"] / 1e3 if row["fct_close_ns"] >= 0 else None for row in measured.flows]
    return Table.of(rows)


def _first_difference_ms(flows: Table) -> float | None:
    """Return when the first flow ends, in ms, whose two completion times differ; `None` if no flow's times differ."""
    ours, theirs = flows["fct_us"], flows["other_fct_us"]
    differ = (np.isfinite(ours) | np.isfinite(theirs)) & ~(np.abs(ours - theirs) * 1e3 < HALF_NS)
    ends_us = flows["start_us"] + np.fmin(ours, theirs)
    return float(ends_us[differ].min()) / 1e3 if differ.any() else None


def _differences(ours_us: Any, theirs_us: Any, rounding_ns: int = 0) -> dict[str, Any]:
    """Return statistics of two columns of times; times that differ by < `HALF_NS` + `rounding_ns` are equal."""
    ours, theirs = np.asarray(ours_us, dtype=np.float64), np.asarray(theirs_us, dtype=np.float64)
    both = np.isfinite(ours) & np.isfinite(theirs)
    only_one = int((np.isfinite(ours) ^ np.isfinite(theirs)).sum())
    ours, theirs = ours[both], theirs[both]
    equal = np.abs(ours - theirs) * 1e3 < HALF_NS + rounding_ns
    change = ours / theirs - 1 if len(ours) else np.zeros(0)
    return {
        "compared": len(ours),
        "equal": int(equal.sum()),
        "unfinished": int((~both).sum()) - only_one,
        "unfinished_in_one": only_one,
        "mean_us": float(ours.mean()) if len(ours) else None,
        "other_mean_us": float(theirs.mean()) if len(ours) else None,
        "mean_percent": float(100 * (ours.mean() / theirs.mean() - 1)) if len(ours) else None,
        "worst_percent": float(100 * np.abs(change[~equal]).max(initial=0)) if len(ours) else None,
    }


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that `--fail-if` can test, such as `equal` for flows and `iteration_equal` for iterations."""
    named = {"": summary["flows"], "iteration_": summary["iterations"]}
    keys = ("compared", "equal", "unfinished_in_one", "mean_percent", "worst_percent")
    return {prefix + key: one[key] for prefix, one in named.items() for key in keys}


def _headline(summary: dict[str, Any]) -> str:
    other, parts = summary["against"], [("flow", summary["flows"]), ("iteration", summary["iterations"])]
    one_run = f"This is one run, with seed {summary['seed']}."
    compared = [(what, one) for what, one in parts if one["compared"]]
    lost = sum(one["unfinished_in_one"] for _, one in parts)
    only = f" {words.many(lost, 'flow')} more {'ends' if lost == 1 else 'end'} in only one of the two." if lost else ""
    if not compared:
        return f"No flow or iteration ends in both {other} and gradtide; make `run.duration` longer.{only} {one_run}"
    if all(one["equal"] == one["compared"] for _, one in compared):
        counts = " and ".join(words.many(one["compared"], what) for what, one in compared)
        is_one = sum(one["compared"] for _, one in compared) == 1
        return f"{counts} {'takes' if is_one else 'take'} the same time in {other}, to the nanosecond.{only} {one_run}"
    said = [
        f"{words.many(one['equal'], what)} of {one['compared']} take the same time in {other}; {_of_means(one)}, and "
        f"the largest difference is {words.difference(one['worst_percent'])}."
        for what, one in compared
    ]
    return f"{' '.join(said)}{only} {one_run}"


def _of_means(one: dict[str, Any]) -> str:
    percent = one["mean_percent"]
    if abs(percent) < words.LEAST_DIFFERENCE:
        return f"the means differ by {words.difference(percent)}" if percent else "the means are equal"
    return f"the mean in gradtide is {words.difference(percent)} {'longer' if percent > 0 else 'shorter'}"
