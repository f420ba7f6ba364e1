"""`gradtide tenants` with policies side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.cli.checks import Check, apply_checks, refuse_unknown
from gradtide.cli.ends import as_usage_error
from gradtide.cli.printing import cell, print_json, print_table, signed_percent, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_tenants
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario
    from gradtide.studies.tenants.policies import PoliciesResult


def compare_policies(
    scenario: "Scenario",
    names: list[str],
    seeds: range,
    loads: tuple[list[float] | None, list[float] | None] | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence[Check],
    limits: "Limits",
) -> None:
    """Compare policies, and print the result."""
    from gradtide.studies.tenants import boundary
    from gradtide.studies.tenants import policies as study

    def sample() -> dict[str, float | None]:
        return study.figures(study.PoliciesResult([sample_of_tenants().comparison]).rows[0])

    refuse_unknown(checks, sample)
    cells = None if loads is None else (loads[0] or boundary.JOB_LOADS, loads[1] or boundary.TRAFFIC_LOADS)

    def show(result: "PoliciesResult") -> None:
        if as_json:
            print_json(result.summary)
            return
        rows = [
            [
                *([row["cell"]] if cells else []),
                row["policy"],
                row["colour"],
                cell(row["iteration_ms"]),
                *(signed_percent(row[key]) for key in ("iteration_change_percent", *shown)),
            ]
            for row in result.rows
        ]
        columns = ["policy", "colour", "iteration, ms", "change", "small, mean", "small, p99", "large, mean"]
        print("What each policy costs the job, and by how much flows finish sooner, against the neighbours' band")
        print_table([*(["cell"] if cells else []), *columns], rows)
        print(f"\n{result.summary['headline']}")

    shown = [f"{figure}_saves_percent" for figure in ("small_mean", "small_p99", "large_mean")]
    count = (1 + len(set(names))) * len(seeds) * (1 if cells is None else len(cells[0]) * len(cells[1]))
    with as_usage_error(ValueError), study_under_way(f"{count} runs", output, quiet, show) as (progress, keep):
        result = study.policies(
            scenario, names, loads=cells, seeds=seeds, jobs=jobs, progress=progress, keep=keep, limits=limits
        )
        save(result, output, keep)
    show(result)
    talk_of_files(output, quiet or as_json)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {f"{row['cell']}-{row['policy']}".strip("-"): study.figures(row) for row in result.rows})
