"""Folders of runs and studies: their files, and the content of their summaries."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gradtide import report, words
from gradtide.answer import Again
from gradtide.answer.runtimes import runs_on
from gradtide.files import write_whole
from gradtide.results import Table
from gradtide.scenario import Job
from gradtide.scenario.times import ops_csv
from gradtide.studies.folder import MEASURED_COSTS, RESOLVED, whole_folder, write_json, write_text, write_versions
from gradtide.studies.what_ifs import has_what_ifs

if TYPE_CHECKING:
    from gradtide.studies.result import RunResult

BESIDE = {"again": vars(Again(scenario=RESOLVED))}
"""Keys of `summary.json` that describe how to repeat the run from its folder. The repetition gives the same bytes."""


def save(result: "RunResult", path: Path) -> Path:
    """Write a run folder with its report and timeline."""
    with whole_folder(path) as folder:
        write_run(result, folder)
        report.write_timeline(folder)
        report.write_report(folder)
    return path


def write_part(result: "RunResult", path: Path, name: str) -> Path:
    """Write the file `name` of the result's run folder to `path`."""
    with TemporaryDirectory(prefix="gradtide-") as parent:
        return write_whole(path, (save(result, Path(parent) / "run") / name).read_bytes())


def write_run(result: "RunResult", folder: Path) -> None:
    """Write the results of the run and of its what-if runs into the existing `folder`."""
    write_core(result, folder)
    if has_what_ifs(result.scenario):
        write_text(folder / "bandwidth.csv", result.bandwidth.to_csv())
    write_summary({**summary(result), **BESIDE}, folder)


def write_core(result: "RunResult", folder: Path) -> None:
    """Write the results of the run, without what-if runs, report and timeline, into the existing `folder`."""
    write_text(folder / RESOLVED, result.scenario.to_toml())
    optional = {
        "workers": any(job.is_uneven or not job.is_in_step for job in result.scenario.jobs),
        "flows": bool(result.scenario.traffic),
        "queues": len(result.queues) > 0,
        "cwnd": len(result.cwnd) > 0,
        "bursts": len(result.bursts) > 0,
    }
    for name in ("iterations", "workers", "transfers", "operations", "links", "flows", "queues", "cwnd", "bursts"):
        table: Table = getattr(result, name)
        if optional.get(name, True):
            write_text(folder / f"{name}.csv", table.to_csv())
    for job in result.scenario.jobs:
        if job.parallel_model is not None:
            text = ops_csv(job.parallel_model.described, job.parallel_model.own)
            write_text(folder / "ops.csv", text)
    write_summary({**result.summary, **result.answer.to_dict(), **BESIDE}, folder)
    write_versions(folder)


def run_name(parts: Iterable[str]) -> str:
    """Return the name of a run's folder in a study: the parts that identify the run, in lower case."""
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")


def write_runs(results: "Mapping[str, RunResult]", folder: Path) -> None:
    """Write the results of each run of a study into `folder`/runs/NAME."""
    for name, result in results.items():
        (folder / "runs" / name).mkdir(parents=True)
        write_core(result, folder / "runs" / name)


def write_study(
    study: Any, folder: Path, name: str = "rows.csv", runs: "Mapping[str, RunResult] | None" = None
) -> None:
    """Write a study into `folder`: its rows to the file `name`, summary, report, and a folder per item of `runs`."""
    write_runs(runs or {}, folder)
    write_text(folder / name, study.table.to_csv())
    write_summary(study.summary, folder)
    write_versions(folder)
    report.write_report(folder)


def write_summary(summary: dict[str, Any], folder: Path) -> None:
    """Write `summary.json` with `MEASURED_COSTS` set to null, so that equal runs give equal folders."""
    cost = {**summary["cost"], **dict.fromkeys(MEASURED_COSTS)}
    write_json(folder / "summary.json", {**summary, "cost": cost})


def summary(result: "RunResult") -> dict[str, Any]:
    """Return the summary of a result and its answer. The headline also says what other schedules would save."""
    headline = " ".join([result.summary["headline"], *_what_if_sentences(result)])
    return {**result.summary, **replace(result.answer, headline=headline).to_dict()}


def _what_if_sentences(result: "RunResult") -> list[str]:
    if not has_what_ifs(result.scenario):
        return []
    rows = result.bandwidth.to_dicts()
    sentences = []
    for job in result.scenario.jobs:
        times: dict[tuple[str, bool], dict[int, float]] = {}
        for row in rows:
            if row["job"] == job.name:
                times.setdefault((row["order"], row["barrier"]), {})[row["rate_bps"]] = row["iteration_time_us"]
        if not times:
            continue
        sentence = _saving(times, result.scenario.link_rate_bps, job)
        several = len(result.scenario.jobs) > 1
        sentences.append(f"Job {job.name}: {words.uncapitalised(sentence)}" if several else sentence)
    return sentences


def _saving(times_us: dict[tuple[str, bool], dict[int, float]], own_bps: int, job: Job) -> str:
    """Return the advice for a job at its own link rate: the best schedule that a runtime of its device supports.

    `times_us` has iteration times by (order, barrier), then by link rate in bit/s.
    """
    default = ("fifo", True)
    baseline = times_us.pop(default)
    carried = {one: runs_on(*one, job.collective.kind, job.device.name) for one in times_us}
    can = {one: at for one, at in times_us.items() if carried[one][0] is not None}
    best = min(can or times_us, key=lambda one: (can or times_us)[one][own_bps])
    points = [(float(rate), baseline[rate], times_us[best][rate]) for rate in baseline]
    names = words.schedule(*default), words.schedule(*best)
    by, why_not = carried[best]
    if 1 - times_us[best][own_bps] / baseline[own_bps] < words.SAME:
        return f"Keep {names[0]}: at {words.rate(own_bps)}, no other order of transfers would save time over it."
    saving = words.saving_at(points, own_bps, *names)
    if by is None:
        return f"Keep {names[0]}. {saving} No tested runtime supports {names[1]}: {why_not}."
    return f"Use {names[1]}, with {by}. {saving}"
