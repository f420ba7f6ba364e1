"""`gradtide tenants` with a linear programme."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.cli.checks import Check, apply_checks, refuse_unknown
from gradtide.cli.ends import as_usage_error
from gradtide.cli.printing import cell, print_json, print_table, signed_percent, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_lp
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario


def plan_by_lp(
    scenario: "Scenario",
    seeds: range,
    give: str | None,
    quantile: float | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence[Check],
    limits: "Limits",
) -> None:
    """Plan starts and bands by a linear programme, and print the result."""
    from gradtide.lp import SolverMissingError
    from gradtide.studies.plan import parse_percent
    from gradtide.studies.tenants import lp as study

    refuse_unknown(checks, lambda: study.figures(sample_of_lp().summary))
    with (
        as_usage_error(ValueError, SolverMissingError),
        study_under_way("runs in each band, and the answer", output, quiet, lambda part: None) as (progress, keep),
    ):
        share = 0.0 if give is None else parse_percent(give) / 100
        result = study.plan_bands(
            scenario,
            seeds=seeds,
            quantile=quantile,
            give=share,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        save(result, output, keep)
    if as_json:
        print_json(result.summary)
    else:
        _print_lp(result.summary)
    talk_of_files(output, quiet or as_json)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {"lp": study.figures(result.summary)})


def _print_lp(summary: dict[str, Any]) -> None:
    times = ("ready", "start", "end", "needed", "slack", "margin")
    print("Buckets in the order in which they are sent; times in ms from the start of the backward pass")
    rows = [
        [bucket["layers"], *(f"{bucket[f'{key}_ms']:.2f}" for key in times), bucket["band"]]
        for bucket in summary["buckets"]
    ]
    print_table(["layers", *times, "band"], rows)
    print("\nIteration time and neighbours' completion times in ms")
    policies = [
        [
            row["policy"],
            f"{row['high_percent']:.1f} %",
            f"{row['predicted_ms']:.1f}",
            f"{row['simulated_ms']:.1f}",
            signed_percent(row["error_percent"]),
            *(cell(row[key]) for key in ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms")),
        ]
        for row in summary["policies"]
    ]
    columns = ("bands", "bytes high", "predicted", "simulated", "off by", "small, mean", "small, p99", "large, mean")
    print_table(list(columns), policies)
    print(f"\n{summary['headline']}")
