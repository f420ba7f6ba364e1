"""`gradtide tenants` as a map over loads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.cli.checks import Check, apply_checks, refuse_unknown
from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import split
from gradtide.cli.printing import print_json, print_table, signed_percent, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_tenants
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario
    from gradtide.studies.tenants.boundary import BoundaryResult


def parse_loads(text: str | None) -> list[float] | None:
    """Return the loads of a list such as `0.125,0.25`."""
    try:
        return None if text is None else [float(part) for part in split(text) or ()]
    except ValueError:
        fail_usage(f"{text}: write shares of a link, as in 0.125,0.25")


def map_tenants(
    scenario: "Scenario",
    seeds: range,
    job_loads: list[float] | None,
    traffic_loads: list[float] | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence[Check],
    limits: "Limits",
) -> None:
    """Map the study over job loads and background loads, and print the result."""
    from gradtide.studies.tenants import boundary as study
    from gradtide.studies.tenants.cases import Cell

    refuse_unknown(checks, lambda: study.figures(study.BoundaryResult({Cell(0.5, 0.5): sample_of_tenants()}).rows[0]))
    rows = study.JOB_LOADS if job_loads is None else job_loads
    columns = study.TRAFFIC_LOADS if traffic_loads is None else traffic_loads

    def show(result: "BoundaryResult") -> None:
        if as_json:
            print_json(result.summary)
            return
        cells = {(row["job_load"], row["traffic_load"]): row for row in result.rows}
        print("What the lower band costs the job, and what it saves small flows (mean FCT)")
        print_table(
            ["job load", *(f"flows {study.load_words(load)}" for load in columns)],
            [
                [study.load_words(load), *(_boundary_cell(cells.get((load, other))) for other in columns)]
                for load in rows
            ],
        )
        print(f"\n{result.summary['headline']}")

    what = f"{2 * len(seeds) * len(rows) * len(columns)} runs"
    with as_usage_error(ValueError), study_under_way(what, output, quiet, show) as (progress, keep):
        result = study.boundary(
            scenario,
            job_loads=rows,
            traffic_loads=columns,
            seeds=seeds,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        save(result, output, keep)
    show(result)
    talk_of_files(output, quiet or as_json)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {row["cell"]: study.figures(row) for row in result.rows})


def _boundary_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not finished"
    cost, gain = row["iteration_change_percent"], row["small_saves_percent"]
    return f"{row['colour']} {signed_percent(cost)}, {signed_percent(gain)}"
