"""`gradtide tenants map`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradtide.cli.ends import fail_usage
from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, SeedsOption, Training, option, split
from gradtide.cli.printing import print_answer, print_table, say, signed_percent
from gradtide.cli.study import Checked, conduct, seeds_of
from gradtide.cli.tenants_policies import compare_policies

if TYPE_CHECKING:
    from gradtide.studies.tenants.boundary import BoundaryResult


def tenants_map(  # noqa: PLR0913 - options of the command
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    policy: list[str] | None = option(
        "NAME",
        "Map this policy; gradtide tenants policies lists them. Repeatable. Default: the low band for all transfers.",
    ),
    job_loads: str | None = option("LIST", "Give the job these loads, as in 0.125,0.25."),
    traffic_loads: str | None = option("LIST", "Give background flows these loads, as in 0.03,0.1."),
    seeds: SeedsOption = 1,
    training: Training,
    changes: Changes,
    common: Common,
) -> None:
    """Map the loads at which a lower priority band is free.

    Repeats gradtide tenants for every pair of a load of the job and a load of the background flows.
    """
    from gradtide.studies.run import sample
    from gradtide.studies.tenants import boundary as study
    from gradtide.studies.tenants.bands import tenants
    from gradtide.studies.tenants.cases import Cell

    rows = parse_loads("--job-loads", job_loads) or study.JOB_LOADS
    columns = parse_loads("--traffic-loads", traffic_loads) or study.TRAFFIC_LOADS
    loaded = changes.trained(scenario, cluster, **training.keys)
    own_seeds = seeds_of(loaded, seeds)
    if policy:
        compare_policies(loaded, policy, own_seeds, (rows, columns), common)
        return
    conduct(
        f"{2 * len(own_seeds) * len(rows) * len(columns)} runs",
        common,
        make=lambda how: study.boundary(loaded, job_loads=rows, traffic_loads=columns, seeds=own_seeds, **how),
        show=lambda result: _print_map(result, rows, columns),
        checked=Checked(
            lambda result: {row["cell"]: study.figures(row) for row in result.rows},
            lambda: study.figures(study.BoundaryResult({Cell(0.5, 0.5): tenants(sample())}).rows[0]),
        ),
    )


def parse_loads(option: str, text: str | None) -> list[float] | None:
    """Parse the value of an option as comma-separated loads, i.e. shares of a link's rate, e.g. `0.125,0.25`."""
    if text is None:
        return None
    try:
        loads = [float(part) for part in split(option, text) or ()]
    except ValueError:
        fail_usage(f"{option} {text}: write shares of a link, as in 0.125,0.25")
    return loads


def _print_map(result: "BoundaryResult", rows: Sequence[float], columns: Sequence[float]) -> None:
    from gradtide.studies.tenants.boundary import load_words

    cells = {(row["job_load"], row["traffic_load"]): row for row in result.rows}
    say("What the lower band costs the job, and what it saves small flows (mean completion time)")
    print_table(
        ["job load", *(f"flows {load_words(load)}" for load in columns)],
        [[load_words(load), *(_boundary_cell(cells.get((load, other))) for other in columns)] for load in rows],
    )
    print_answer(result.summary)


def _boundary_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not finished"
    cost, gain = row["iteration_change_percent"], row["small_saves_percent"]
    return f"{row['colour']} {signed_percent(cost)}, {signed_percent(gain)}"
