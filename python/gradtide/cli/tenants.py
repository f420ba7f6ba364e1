"""`gradtide tenants`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.checks import apply_checks, parse_check, refuse_unknown
from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import (
    EngineOption,
    FailIfOption,
    JobsOption,
    JsonOption,
    MaxMemoryOption,
    MaxTimeOption,
    OutOption,
    QuietOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    VerboseOption,
    check_target,
    limits_of,
    load,
)
from gradtide.cli.printing import cell, print_json, print_table, signed_percent, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_tenants
from gradtide.cli.study import save, study_under_way
from gradtide.cli.tenants_lp import plan_by_lp
from gradtide.cli.tenants_map import map_tenants, parse_loads
from gradtide.cli.tenants_policies import compare_policies

if TYPE_CHECKING:
    from gradtide.studies.tenants.bands import TenantsResult


def tenants(
    scenario: ScenarioArgument,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Run N seeds, from --seed on.")] = 1,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare policies: all-low, lower-layers-high, background, deadline, oracle. Repeat it.",
        ),
    ] = None,
    map_: Annotated[bool, typer.Option("--map", help="Map it over job load and background load.")] = False,
    job_loads: Annotated[str | None, typer.Option(metavar="LIST", help="With --map, as in 0.125,0.25.")] = None,
    traffic_loads: Annotated[str | None, typer.Option(metavar="LIST", help="With --map, as in 0.03,0.1.")] = None,
    lp: Annotated[bool, typer.Option("--lp", help="Give each bucket start and band by a linear programme.")] = False,
    give: Annotated[
        str | None, typer.Option(metavar="SHARE", help="With --lp: iteration time to give up for it, as in 1%.")
    ] = None,
    quantile: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --lp: plan with this quantile of times; the mean.")
    ] = None,
    output: OutOption = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: EngineOption = None,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """What does a training job do to its neighbours' flows, and is de-prioritising it free here?"""
    checks = [parse_check(text) for text in fail_if or ()]
    limits = limits_of(max_memory, max_time)
    loaded = load(scenario, set_, seed, engine)
    check_target(output)
    seed_range = range(loaded.seed, loaded.seed + seeds)
    loads = parse_loads(job_loads), parse_loads(traffic_loads)
    if lp and (map_ or policy):
        fail_usage("--lp is a study of its own; leave out --map and --policy")
    if not lp and (give is not None or quantile is not None):
        fail_usage("--give and --quantile are for --lp")
    if policy:
        compare_policies(
            loaded, policy, seed_range, loads if map_ else None, output, as_json, jobs, quiet, verbose, checks, limits
        )
        return
    if map_:
        map_tenants(loaded, seed_range, *loads, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    if lp:
        plan_by_lp(loaded, seed_range, give, quantile, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    from gradtide.studies.tenants import bands as study

    refuse_unknown(checks, lambda: study.figures(sample_of_tenants().summary))

    def show(result: "TenantsResult") -> None:
        if as_json:
            print_json(result.summary)
        else:
            _print_tenants(result.summary)

    with as_usage_error(ValueError), study_under_way(f"{2 * seeds} runs", output, quiet, show) as (progress, keep):
        result = study.tenants(loaded, seeds=seed_range, jobs=jobs, progress=progress, keep=keep, limits=limits)
        save(result, output, keep)
    show(result)
    talk_of_files(output, quiet or as_json)
    if verbose:
        talk_of_cost(result.summary["cost"])
    apply_checks(checks, {"tenants": study.figures(result.summary)})


def _print_tenants(summary: dict[str, Any]) -> None:
    def cells(pair: dict[str, Any], *, saves: bool = True) -> list[str]:
        change = pair["saves_percent"]
        change = change if saves or change is None else -change
        return [cell(pair["same"]), cell(pair["low"]), signed_percent(change)]

    rows = []
    for size, figures in summary["classes"].items():
        for name, label in (
            ("mean_fct_ms", "mean"),
            ("p50_fct_ms", "p50"),
            ("p90_fct_ms", "p90"),
            ("p99_fct_ms", "p99"),
        ):
            rows.append([f"{size} flows, {label}, ms", *cells(figures[name])])
    rows.append(["iteration time, ms", *cells(summary["iteration_time_ms"])])
    rows.append(["busiest link", *cells(summary["max_link_utilisation"])])
    rows.append(["packets dropped", *cells(summary["drops"])])
    seeds = summary["seeds"]
    count = "1 seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
    print(f"{summary['model']} in its neighbours' band and in a lower one; {count}")
    print_table(["", "same band", "low band", "saves"], rows)
    print(f"\n{summary['headline']}")
