"""`gradtide tenants policies`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, SeedsOption, Training, option
from gradtide.cli.printing import cell, print_answer, print_table, say, signed_percent
from gradtide.cli.study import Checked, conduct, seeds_of

if TYPE_CHECKING:
    from gradtide.scenario import Scenario
    from gradtide.studies.tenants.policies import PoliciesResult


def tenants_policies(
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    policy: list[str] | None = option(
        "NAME",
        "Compare this policy: all-low, lower-layers-high, background, deadline, straggler or oracle. Repeatable. "
        "Default: all of them; oracle only with one job, straggler only with unequal workers.",
    ),
    seeds: SeedsOption = 1,
    training: Training,
    changes: Changes,
    common: Common,
) -> None:
    """Compare policies that choose the band of each transfer."""
    from gradtide.studies.tenants.policies import default_policies

    loaded = changes.trained(scenario, cluster, **training.keys)
    own_seeds = seeds_of(loaded, seeds)
    compare_policies(loaded, policy or default_policies(loaded), own_seeds, None, common)


def compare_policies(
    scenario: "Scenario",
    names: Sequence[str],
    seeds: Sequence[int],
    loads: tuple[Sequence[float], Sequence[float]] | None,
    common: Common,
) -> None:
    """Compare policies on one scenario, or for each pair of job load and flow load, and print the result."""
    from gradtide.studies.run import sample
    from gradtide.studies.tenants import policies as study
    from gradtide.studies.tenants.bands import tenants

    cells = 1 if loads is None else len(loads[0]) * len(loads[1])
    conduct(
        f"{(1 + len(set(names))) * len(seeds) * cells} runs",
        common,
        make=lambda how: study.policies(scenario, names, loads=loads, seeds=seeds, **how),
        show=_print_policies,
        checked=Checked(
            lambda result: {f"{row['cell']}-{row['policy']}".strip("-"): study.figures(row) for row in result.rows},
            lambda: study.figures(study.PoliciesResult([tenants(sample()).comparison]).rows[0]),
        ),
    )


def _print_policies(result: "PoliciesResult") -> None:
    several = len(result.comparisons[0].scenario.jobs) > 1
    first = [*(["cell"] if any(row["cell"] for row in result.rows) else []), *(["job"] if several else [])]
    saved = [f"{figure}_saves_percent" for figure in ("small_mean", "small_p99", "large_mean")]
    rows = [
        [
            *(row[key] for key in first),
            row["policy"],
            row["colour"],
            cell(row["iteration_ms"]),
            *(signed_percent(row[key]) for key in ("iteration_change_percent", *saved)),
        ]
        for row in result.rows
    ]
    columns = ["policy", "colour", "iteration, ms", "change", "small, mean", "small, p99", "large, mean"]
    say("What each policy costs the job, and by how much flows finish sooner, against the band of the background flows")
    print_table([*first, *columns], rows)
    if several:
        say("job: the one that pays most; all jobs follow the policy")
    print_answer(result.summary)
