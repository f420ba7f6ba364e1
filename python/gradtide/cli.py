"""The command `gradtide`. It reads options, calls a study and prints; nothing imports it.

Data goes to stdout, talk and progress to stderr. Imports that cost time stand in the commands, so that an answer to
bad input does not wait for what it does not need.
"""

import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradtide import _core
from gradtide.errors import CoreRefusal, GradtideError, Interrupted, ScenarioError, SimulationError, TraceError

if TYPE_CHECKING:
    from gradtide.estimate import Estimate, Limits
    from gradtide.formats import Format
    from gradtide.profiling import ModelProfile
    from gradtide.scenario import Scenario
    from gradtide.studies.boundary import BoundaryResult
    from gradtide.studies.buy import BuyResult
    from gradtide.studies.collectives import CollectivesResult
    from gradtide.studies.compare import CompareResult
    from gradtide.studies.keep import Kept
    from gradtide.studies.lp import LpResult
    from gradtide.studies.order import OrderResult
    from gradtide.studies.plan import PlanResult
    from gradtide.studies.policies import PoliciesResult
    from gradtide.studies.tenants import TenantsResult
    from gradtide.studies.waterfall import WaterfallResult

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_CANNOT_GO_ON, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 70, 130

app = typer.Typer(
    name="gradtide",
    help="See, plan and tame the network traffic of distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json) or preset (paper/…).")]
OutOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write a folder of results.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No talk and no progress.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Say what is resolved and what it cost.")]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Root of all random streams.")]
JobsOption = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Runs under way at once; changes no result.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, as in cluster.link.rate=1Gbps.")
]
EngineOption = Annotated[str | None, typer.Option("--engine", help="Network engine: pipe or packet (fluid to come).")]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option("--fail-if", metavar="FIGURE>LIMIT", help="Exit 1 if it holds, as in 'iteration_time_ms>950'."),
]
MaxMemoryOption = Annotated[
    str | None, typer.Option("--max-memory", metavar="SIZE", help="Refuse what would take more; 80 % of what is free.")
]
MaxTimeOption = Annotated[
    str | None, typer.Option("--max-time", metavar="TIME", help="Refuse what would take longer, as in 10h; 1h.")
]


@app.command()
def run(
    scenario: ScenarioArgument,
    output: OutOption = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: EngineOption = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Send gradients as a plan.json of gradtide plan says.")
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say what it will take, and do not run it.")] = False,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 1,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Simulate one scenario: how long is an iteration, and what does it wait for?"""
    checks = [_parse_check(text) for text in fail_if or ()]
    limits = _limits(max_memory, max_time)
    loaded = _load(scenario, set_, seed, engine)
    if plan is not None:
        from gradtide.scenario.plan import read_plan

        loaded = read_plan(plan).on(loaded)
        loaded.check_built()
    if estimate:
        from gradtide.estimate import estimate as estimate_of

        _print_estimate(estimate_of(loaded), as_json)
        return
    _check_target(output)
    from gradtide.studies import run as study

    _refuse_unknown(checks, lambda: _figures(study.run(study.sample()).job))
    with _progress("simulating", quiet) as progress:
        [result] = study.run_all([loaded], progress=progress, limits=limits)
    summary = study.summary(result)
    if output is not None:
        result.save(output)
    if as_json:
        _print_json(summary)
    else:
        from gradtide import words

        _print_table(*words.run_rows(summary))
        for name, classes in summary["traffic"].items():
            print()
            _print_table(*words.flow_rows(name, classes))
        print(f"\n{summary['headline']}")
        _talk_of_files(output, quiet)
    if verbose:
        _talk_of_cost(summary["cost"])
    _apply_checks(checks, {name: _figures(job) for name, job in summary["jobs"].items()})


@app.command()
def compare(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json), preset (paper/…) or model preset.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="For a model: a cluster of presets, as in ethernet-25g/16, a file of one, or a scenario.",
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="As in fifo+barrier, priority+chunk=1MB, ddp, horovod, p3, bytescheduler, caramel, edf, optimal, or "
            "file:order.csv; repeat it; the first is compared with.",
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="LIST", help="Link rates, as in 1Gbps,10Gbps.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="LIST", help="Numbers of workers, as in 2,8.")] = None,
    servers: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of parameter servers, as in 1,2,4.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="LIST", help="Samples in a worker's mini-batch, as in 32,64.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="LIST", help="With parameter servers: train,inference.")] = None,
    model: Annotated[str | None, typer.Option(metavar="LIST", help="Models, as in resnet50,vgg16.")] = None,
    collective: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Instead: ways to exchange gradients, as in ring,halving_doubling."),
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="LIST", help="With --collective: gradients; 1kB to 1GB.")] = None,
    output: OutOption = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: EngineOption = None,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 1,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Schedules side by side, over rates, workers, servers, batches, tasks and models; or collectives, over sizes."""
    checks = [_parse_check(text) for text in fail_if or ()]
    limits = _limits(max_memory, max_time)
    if collective is not None:
        options = {"schedule": schedule, "rate": rate, "workers": workers, "servers": servers}
        for option, given in (options | {"batch": batch, "task": task, "model": model, "cluster": cluster}).items():
            if given:
                _fail_usage(f"--collective compares on the scenario's cluster; leave out --{option}, or use --set")
        loaded = _load(scenario, set_, seed, engine or "fluid")
        _compare_collectives(loaded, collective, sizes, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    if sizes is not None:
        _fail_usage("--sizes is for --collective")
    from gradtide.studies import compare as study
    from gradtide.studies.trained import trained

    loaded = _changed(trained(scenario, cluster), set_, seed, engine)
    _check_target(output)
    with _as_usage_error(ValueError):
        variants = study.grid(
            loaded,
            schedule or None,
            _split(model),
            _counts("workers", workers),
            _split(rate),
            servers=_counts("servers", servers),
            batches=_counts("batch", batch),
            tasks=_split(task),
        )
    _compare(variants, output, as_json, jobs, quiet, verbose, checks, limits)


def _compare_collectives(
    loaded: "Scenario",
    names: str,
    sizes: str | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence["Check"],
    limits: "Limits",
) -> None:
    _check_target(output)
    from gradtide import words
    from gradtide.studies import collectives as study

    _refuse_unknown(checks, lambda: dict.fromkeys(("exchange_us", *(f"{term}_us" for term in study.TERMS))))

    def show(result: "CollectivesResult") -> None:
        if as_json:
            _print_json(result.summary)
            return
        rows = {(row["collective"], row["bytes"]): row for row in result.rows}
        known = list(dict.fromkeys(row["collective"] for row in result.rows))
        print("Exchange time in ms")
        times = [
            [words.size(size), *(_term(rows[name, size], "exchange") for name in known)]
            for size in dict.fromkeys(row["bytes"] for row in result.rows)
        ]
        _print_table(["gradient", *map(words.collective, known)], times)
        largest = max(row["bytes"] for row in result.rows)
        print(f"\nWhat they are made of at {words.size(largest)}, in ms")
        terms = [
            [words.collective(name), *(_term(rows[name, largest], term) for term in ("exchange", *study.TERMS))]
            for name in known
        ]
        _print_table(["", "exchange", *study.TERMS], terms)
        print(f"\n{result.summary['headline']}")

    with _as_usage_error(ValueError), _study("exchanges", output, quiet, show) as (progress, keep):
        result = study.compare_collectives(
            loaded,
            collectives=_split(names) or [],
            sizes=study.SIZES if sizes is None else _split(sizes) or [],
            engine=loaded.engine,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {f"{row['collective']}, {words.size(row['bytes'])}": row for row in result.rows})


def _term(row: dict[str, Any], term: str) -> str:
    return _cell(row[f"{term}_us"] / 1e3)


@app.command()
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
    checks = [_parse_check(text) for text in fail_if or ()]
    limits = _limits(max_memory, max_time)
    loaded = _load(scenario, set_, seed, engine)
    _check_target(output)
    seed_range = range(loaded.seed, loaded.seed + seeds)
    loads = _loads(job_loads), _loads(traffic_loads)
    if lp and (map_ or policy):
        _fail_usage("--lp is a study of its own; leave out --map and --policy")
    if not lp and (give is not None or quantile is not None):
        _fail_usage("--give and --quantile are for --lp")
    if policy:
        _policies(
            loaded, policy, seed_range, loads if map_ else None, output, as_json, jobs, quiet, verbose, checks, limits
        )
        return
    if map_:
        _map(loaded, seed_range, *loads, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    if lp:
        _lp(loaded, seed_range, give, quantile, output, as_json, jobs, quiet, verbose, checks, limits)
        return
    from gradtide.studies import tenants as study

    _refuse_unknown(checks, lambda: study.figures(_sample_of_tenants().summary))

    def show(result: "TenantsResult") -> None:
        if as_json:
            _print_json(result.summary)
        else:
            _print_tenants(result.summary)

    with _as_usage_error(ValueError), _study(f"{2 * seeds} runs", output, quiet, show) as (progress, keep):
        result = study.tenants(loaded, seeds=seed_range, jobs=jobs, progress=progress, keep=keep, limits=limits)
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {"tenants": study.figures(result.summary)})


def _lp(
    scenario: "Scenario",
    seeds: range,
    give: str | None,
    quantile: float | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence["Check"],
    limits: "Limits",
) -> None:
    from gradtide.lp import SolverMissingError
    from gradtide.studies import lp as study
    from gradtide.studies.plan import parse_percent

    _refuse_unknown(checks, lambda: study.figures(_sample_of_lp().summary))
    with (
        _as_usage_error(ValueError, SolverMissingError),
        _study("runs in each band, and the answer", output, quiet, lambda part: None) as (progress, keep),
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
        _save(result, output, keep)
    if as_json:
        _print_json(result.summary)
    else:
        _print_lp(result.summary)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {"lp": study.figures(result.summary)})


def _sample_of_lp() -> "LpResult":
    from gradtide.studies import lp, run

    return lp.plan_bands(run.sample())


def _policies(
    scenario: "Scenario",
    names: list[str],
    seeds: range,
    loads: tuple[list[float] | None, list[float] | None] | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence["Check"],
    limits: "Limits",
) -> None:
    from gradtide.studies import boundary
    from gradtide.studies import policies as study

    def sample() -> dict[str, float | None]:
        tenants = _sample_of_tenants()
        return study.figures(study.PoliciesResult({(None, "all-low"): tenants}, tenants.results).rows[0])

    _refuse_unknown(checks, sample)
    cells = None if loads is None else (loads[0] or boundary.JOB_LOADS, loads[1] or boundary.TRAFFIC_LOADS)

    def show(result: "PoliciesResult") -> None:
        if as_json:
            _print_json(result.summary)
            return
        rows = [
            [
                *([row["cell"]] if cells else []),
                row["policy"],
                row["colour"],
                _cell(row["iteration_ms"]),
                *(_signed_percent(row[key]) for key in ("iteration_change_percent", *shown)),
            ]
            for row in result.rows
        ]
        columns = ["policy", "colour", "iteration, ms", "change", "small, mean", "small, p99", "large, mean"]
        print("What each policy costs the job, and by how much flows finish sooner, against the neighbours' band")
        _print_table([*(["cell"] if cells else []), *columns], rows)
        print(f"\n{result.summary['headline']}")

    shown = [f"{figure}_saves_percent" for figure in ("small_mean", "small_p99", "large_mean")]
    count = (1 + len(set(names))) * len(seeds) * (1 if cells is None else len(cells[0]) * len(cells[1]))
    with _as_usage_error(ValueError), _study(f"{count} runs", output, quiet, show) as (progress, keep):
        result = study.policies(
            scenario, names, loads=cells, seeds=seeds, jobs=jobs, progress=progress, keep=keep, limits=limits
        )
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {f"{row['cell']}-{row['policy']}".strip("-"): study.figures(row) for row in result.rows})


def _sample_of_tenants() -> "TenantsResult":
    from gradtide.studies import run, tenants

    return tenants.tenants(run.sample())


def _loads(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in _split(text) or ()]
    except ValueError:
        _fail_usage(f"{text}: write shares of a link, as in 0.125,0.25")


def _map(
    scenario: "Scenario",
    seeds: range,
    job_loads: list[float] | None,
    traffic_loads: list[float] | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence["Check"],
    limits: "Limits",
) -> None:
    from gradtide.studies import boundary as study

    _refuse_unknown(checks, lambda: study.figures(study.BoundaryResult({(0.5, 0.5): _sample_of_tenants()}).rows[0]))
    rows = study.JOB_LOADS if job_loads is None else job_loads
    columns = study.TRAFFIC_LOADS if traffic_loads is None else traffic_loads

    def show(result: "BoundaryResult") -> None:
        if as_json:
            _print_json(result.summary)
            return
        cells = {(row["job_load"], row["traffic_load"]): row for row in result.rows}
        print("What the lower band costs the job, and what it saves small flows (mean FCT)")
        _print_table(
            ["job load", *(f"flows {study.load_words(load)}" for load in columns)],
            [
                [study.load_words(load), *(_boundary_cell(cells.get((load, other))) for other in columns)]
                for load in rows
            ],
        )
        print(f"\n{result.summary['headline']}")

    what = f"{2 * len(seeds) * len(rows) * len(columns)} runs"
    with _as_usage_error(ValueError), _study(what, output, quiet, show) as (progress, keep):
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
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {row["cell"]: study.figures(row) for row in result.rows})


def _boundary_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not finished"
    cost, gain = row["iteration_change_percent"], row["small_saves_percent"]
    return f"{row['colour']} {_signed_percent(cost)}, {_signed_percent(gain)}"


def _signed_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f} %"


@app.command()
def buy(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json), preset (paper/…) or model preset.")
    ],
    nodes: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Hosts that take part; the job's workers.")
    ] = None,
    fabrics: Annotated[
        str, typer.Option(metavar="LIST", help="Networks: clos2, clos3, leaf-spine, star.")
    ] = "clos2,clos3,leaf-spine,star",
    bisection: Annotated[str, typer.Option(metavar="LIST", help="Bisection ratios.")] = "1,1/2,1/4,1/8",
    collectives: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="KIND[+KEY=VALUE], as in butterfly,hierarchical+group=8,ps+distributed."),
    ] = None,
    rates: Annotated[str | None, typer.Option(metavar="LIST", help="Link rates, as in 10Gbps,25Gbps.")] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What switches, cables and network cards cost (TOML).")
    ] = None,
    output: OutOption = None,
    as_json: JsonOption = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    engine: Annotated[str, typer.Option("--engine", help="Network engine: fluid or packet.")] = "fluid",
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    fail_if: FailIfOption = None,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """How much network is this job worth? Every fabric, bisection ratio, collective and link rate, and the knee."""
    checks = [_parse_check(text) for text in fail_if or ()]
    limits = _limits(max_memory, max_time)
    from gradtide.studies import buy as study

    base = _changed(study.trained(scenario, nodes), set_, seed, engine)
    _check_target(output)
    _refuse_unknown(checks, lambda: study.figures(_sample_of_buy().rows[0]))

    def show(result: "BuyResult") -> None:
        if as_json:
            _print_json(result.summary)
        else:
            _print_offers(result.summary)

    with _as_usage_error(ValueError), _study("networks", output, quiet, show) as (progress, keep):
        result = study.buy(
            base,
            nodes=nodes,
            fabrics=_split(fabrics) or [],
            bisection=_split(bisection) or [],
            collectives=study.COLLECTIVES if collectives is None else _split(collectives) or [],
            rates=_split(rates),
            prices=prices,
            engine=engine,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {row["candidate"]: study.figures(row) for row in result.knees})


def _sample_of_buy() -> "BuyResult":
    from gradtide.studies import buy, run

    job = run.sample().to_dict()["job"]
    return buy.buy({"job": job}, fabrics=["star"], collectives=["ring"])


def _print_offers(summary: dict[str, Any]) -> None:
    from gradtide import words

    unit = summary["cost_unit"]
    rows = []
    for row in sorted(summary["rows"], key=lambda row: (row["rate_bps"], row["cost"], row["iteration_ms"])):
        if not row["is_frontier"] and not row["is_knee"]:
            continue
        rows.append(
            [
                "knee" if row["is_knee"] else "",
                words.fabric(row["fabric"]),
                row["bisection"],
                words.collective(row["collective"]),
                words.rate(row["rate_bps"]),
                f"{row['switches']} x {row['ports']}",
                row["cables"],
                words.amount(row["cost"]),
                _cell(row["exchange_ms"]),
                _cell(row["iteration_ms"]),
                f"{row['slower_percent']:.1f} %",
            ]
        )
    columns = ["", "network", "bisection", "exchanged by", "link", "switches x ports", "cables", unit]
    print(f"The best for their cost, of {len(summary['rows'])} candidates")
    _print_table([*columns, "exchange, ms", "iteration, ms", "slower"], rows)
    for one in summary["skipped"]:
        print(f"  not offered: {one['why']}")
    if summary["not_priced"]:
        print(f"  not priced: {', '.join(summary['not_priced'])}")
    print(f"\n{summary['headline']}")


@app.command()
def plan(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json), preset (paper/…) or model preset.")
    ],
    workers: Annotated[int | None, typer.Option(min=2, metavar="N", help="Number of workers.")] = None,
    level: Annotated[
        str, typer.Option(metavar="NAME", help="The most that the runtime may do: buckets, priority or crossiter.")
    ] = "crossiter",
    collectives: Annotated[
        str | None, typer.Option(metavar="LIST", help="KIND[+KEY=VALUE], as in ring,tree; those that suit the network.")
    ] = None,
    overhead: Annotated[
        str, typer.Option(metavar="TIME", help="What a message costs a scheduler, above level buckets.")
    ] = "1ms",
    worth: Annotated[str, typer.Option(metavar="PERCENT", help="What a plan has to save at least.")] = "1%",
    smallest: Annotated[str, typer.Option(metavar="SIZE", help="No message is smaller.")] = "1MiB",
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="ddp or scenario; the scenario's schedule if it has one, else DDP's."),
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of compute times, if the scenario has none.")
    ] = 0.03,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Paired runs with noise.")] = 8,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", help="NAME.json for the plan alone, else a folder with it."),
    ] = None,
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
    """How should this job send its gradients, what does that save, and is it worth it? Writes plan.json."""
    checks = [_parse_check(text) for text in fail_if or ()]
    limits = _limits(max_memory, max_time)
    from gradtide.studies import plan as study

    with _as_usage_error(ValueError):
        least = study.parse_percent(worth)
        base = _changed(study.trained(scenario, None, workers), set_, seed, engine)
    with _as_usage_error(GradtideError):
        study.check_target(output)
    _refuse_unknown(checks, lambda: study.figures(_sample_of_plan()))

    def show(result: "PlanResult") -> None:
        if as_json:
            _print_json(result.summary)
        else:
            _print_plan(result)

    with _as_usage_error(ValueError), _study("plans", output, quiet, show) as (progress, keep):
        result = study.plan(
            base,
            level=level,
            collectives=_split(collectives),
            overhead=overhead,
            worth=least,
            smallest=smallest,
            baseline=baseline,
            noise=noise,
            seeds=seeds,
            jobs=jobs,
            progress=progress,
            keep=keep,
            limits=limits,
        )
        _save(result, output, keep)
    show(result)
    if output is not None and not quiet and not as_json:
        is_alone = output.suffix == ".json"
        _talk(f"\nplan      {output if is_alone else output / 'plan.json'}   (gradtide run {scenario} --plan takes it)")
        _talk_of_files(None if is_alone else output, quiet)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {result.plan.level: study.figures(result)})


def _sample_of_plan() -> "PlanResult":
    from gradtide.studies import plan, run

    return plan.plan({"job": run.sample().to_dict()["job"]})


def _print_plan(result: "PlanResult") -> None:
    from gradtide import words

    rows = []
    for row in result.rows:
        interval = "–"
        if row["saves_low_percent"] is not None:
            interval = f"{row['saves_low_percent']:.1f} to {row['saves_high_percent']:.1f} %"
        bound = row["above_bound_percent"]
        rows.append(
            [
                "plan" if row["chosen"] else "",
                words.level(row["name"]),
                words.schedule(row["order"], row["barrier"]),
                words.collective(row["collective"]) + (f", depth {row['depth']}" if row["depth"] > 1 else ""),
                row["buckets"],
                row["messages"],
                f"{row['iteration_ms']:.1f}",
                f"{row['saves_percent']:.1f} %",
                interval,
                "–" if bound is None else f"{bound:.1f} %",
            ]
        )
    bound_ms = result.summary["lower_bound_ms"]
    searched = result.summary["searched"]
    print(f"The best of each level, of {searched['scored']} plans scored and {searched['pruned']} ruled out by bounds")
    columns = [
        "",
        "level",
        "schedule",
        "exchanged by",
        "buckets",
        "messages",
        "iteration, ms",
        "saves",
        "95 % interval",
    ]
    _print_table([*columns, "above the bound"], rows)
    if bound_ms is not None:
        print(f"  no plan can be faster than {words.milliseconds(bound_ms)}: compute, the wire, or the critical path")
    print(f"\n{result.summary['headline']}")
    for sentence in result.plan.advice:
        print(f"  - {sentence}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of results.")] = Path(
        "out/demo"
    ),
    as_json: JsonOption = False,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The built-in study: ResNet-50 and VGG-16 on V100s, 1 to 25 Gbit/s, 2 and 8 workers. Takes seconds."""
    _check_target(output)
    from gradtide.studies import demo as study

    if not quiet and not as_json:
        _talk(study.QUESTION)
    _compare(study.variants(), output, as_json, jobs, quiet, verbose, [], _limits(None, None))


def _compare(
    variants: Sequence[Any],
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence["Check"],
    limits: "Limits",
) -> None:
    from gradtide.studies import compare as study
    from gradtide.studies.run import sample

    _refuse_unknown(checks, lambda: study.compare(sample(), schedules=["fifo"]).summary["rows"][0])

    def show(result: "CompareResult") -> None:
        if as_json:
            _print_json(result.summary)
        else:
            _print_comparison(result)

    with _study(f"{len(variants)} runs", output, quiet, show) as (progress, keep):
        result = study.run_variants(variants, jobs=jobs, progress=progress, keep=keep, limits=limits)
        _save(result, output, keep)
    show(result)
    _talk_of_files(output, quiet or as_json)
    if verbose:
        _talk_of_cost(result.summary["cost"])
    _apply_checks(checks, {row["run"]: row for row in result.summary["rows"]})


@app.command()
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(metavar="PAPER/PART[/FIGURE]", help="As in gao2020/ch5/5.12 or caramel/11; leave out to list."),
    ] = None,
    output: OutOption = None,
    as_json: JsonOption = False,
    max_memory: MaxMemoryOption = None,
    max_time: MaxTimeOption = None,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
) -> None:
    """A paper's tables and figures: the published value beside ours."""
    from gradtide.studies import reproduce as study

    if what is None:
        _print_table(["name", "what"], [[name, part.title] for name, part in study.PARTS.items()])
        return
    found = study.find(what)
    if found is None:
        name = what.rpartition("/")[0]
        known = f"{name} has {', '.join(study.PARTS[name].figures)}" if name in study.PARTS else ", ".join(study.PARTS)
        _fail_usage(f"no reproduction {what!r}; there are {known}")
    part, figure = found
    output = Path("out") / what.replace("/", "-") if output is None else output
    _check_target(output)
    limits = _limits(max_memory, max_time)
    with _study(what, output, quiet, lambda result: None) as (progress, keep):
        result = part.make(jobs, progress, figure, keep, limits)
        _save(result, output, keep)
    if as_json:
        _print_json(result.summary)
        return
    for table in result.summary["tables"]:
        print(f"\n{table['title']}")
        _print_table(table["columns"], [[_cell(cell) for cell in row] for row in table["rows"]])
        if table.get("note"):
            print(f"  {table['note']}")
    print("\nPublished beside ours")
    columns = ["figure", "quantity", "published", "ours", "verdict"]
    _print_table(columns, [[check[name] for name in columns] for check in result.summary["checks"]])
    print(f"\n{result.summary['headline']}")
    _talk_of_files(output, quiet)


@app.command()
def profile(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY", help="As in torchvision.models:resnet50 or model.py:make."),
    ],
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]SHAPE[:DTYPE]", help="As in 32x3x224x224 or input_ids=8x128:int64."),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="A device preset, or measure: time it on this machine.")
    ] = "V100",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a model file.")] = None,
    dag: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the step's graph of ops.")] = None,
    rate: Annotated[str, typer.Option(metavar="RATE", help="With --dag: at which parameters are received.")] = "10Gbps",
    runs: Annotated[int, typer.Option(min=1, help="With measure: how many to take the quickest of.")] = 20,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """A torch module's layers with bytes and times, by roofline or measured: a model file for scenarios."""
    from gradtide import profiling as room

    with _as_usage_error(room.ProfileError):
        room.require_torch()
        if not input_:
            _fail_usage("--input is missing: what forward takes, as in --input 32x3x224x224")
        specs = [room.parse_input(text) for text in input_]
        is_measured = device == room.MEASURE
        say = (lambda text: None) if quiet else _talk
        model = room.build(target, on_meta=not is_measured, say=say)
        args, kwargs = room.make_inputs(specs, room.best_device(model) if is_measured else "meta")
        name = target.rpartition(":")[2]
        result = room.profile(model, *args, kwargs=kwargs, device=device, name=name, runs=runs)
        graph = None
        if dag is not None:
            graph = room.op_dag(model, *args, kwargs=kwargs, device=device, rate=rate, runs=runs)
    with _as_usage_error(OSError):
        if output is not None:
            result.save(output)
        if dag is not None and graph is not None:
            room.write_json(graph, dag)
    if as_json:
        _print_json(result.to_dict())
        return
    _print_profile(result)
    if quiet:
        return
    if output is not None:
        _talk(f'\nmodel file  {output}   (in a scenario: model = "{output}")')
    if graph is not None:
        recvs = sum(op["kind"] == "recv" for op in graph["ops"])
        _talk(f"op graph    {dag}   ({len(graph['ops'])} ops, {recvs} of them receive a parameter)")


def _print_profile(result: "ModelProfile") -> None:
    seconds = result.forward_time + result.backward_time
    rows = [
        ["model", f"{result.name}, {', '.join(result.inputs)}"],
        ["device", result.device],
        ["layers", f"{len(result.layers)} with {result.tensors} tensors"],
        ["gradients", f"{result.parameter_bytes} B ({result.parameter_bytes / 2**20:.2f} MiB)"],
        ["forward", f"{result.forward_time * 1e3:.3f} ms"],
        ["backward", f"{result.backward_time * 1e3:.3f} ms"],
        ["alone", f"{result.batch / seconds:.1f} samples/s"],
    ]
    if result.explained is not None and result.step_ps is not None:
        rows.append(["explains", f"{100 * result.explained:.1f} % of a step of {result.step_ps / 1e9:.3f} ms"])
    for label, names in (("unused", result.unused), ("frozen", result.frozen), ("shared", result.shared)):
        if names:
            rows.append([label, ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")])
    _print_table(["", result.title], rows)


@app.command()
def report(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN_DIR|TRACE…", help="Folder of a finished run or study; or traces, one a rank."),
    ],
    output: OutOption = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Of a trace: this step; the typical one.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make the report of a finished run or study again, or say where the time of a trace's step goes."""
    from gradtide import report as room

    if len(paths) == 1 and Path(paths[0]).is_dir() and (Path(paths[0]) / "summary.json").exists():
        for option, given in (("-o", output), ("--step", step)):
            if given is not None:
                _fail_usage(f"{option} is for traces; {paths[0]} is a finished run or study")
        with _as_usage_error(room.RunFolderError):
            written = room.write_report(Path(paths[0]))
            if as_json:
                _print_json(room.read_summary(Path(paths[0])))
            else:
                print(written)
        return
    from gradtide import traces

    _check_target(output)
    with _as_usage_error(ValueError, TraceError):
        found = traces.read(paths[0] if len(paths) == 1 else paths).waterfall(step)
    if as_json:
        _print_json(found.to_document())
    else:
        _print_waterfall(found)
    if not quiet:
        for warning in found.summary["warnings"]:
            _talk(f"warning: {warning}")
    if output is not None:
        found.save(output)
    _talk_of_files(output, quiet)


def _print_waterfall(result: "WaterfallResult") -> None:
    from gradtide import words

    def ms(us: float) -> str:
        return f"{us / 1e3:.3f}"

    shown = sorted(result.rows, key=lambda row: (-row["exposed_us"], row["transfer"]))[:20]
    if shown:
        columns = ("transfer", "bytes", "starts ms", "takes ms", "moving ms", "exposed ms", "bus rate", "bounded by")
        rows = [
            [
                row["collective"].replace("_", "-"),
                row["bytes"],
                *(ms(row[key]) for key in ("start_us", "duration_us", "moving_us", "exposed_us")),
                "" if row["bus_rate_bps"] is None else words.rate(row["bus_rate_bps"]),
                row["bound"] + (f" {row['late_rank']:.0f}" if row["bound"] == "late rank" else ""),
            ]
            for row in shown
        ]
        _print_table(columns, rows)
        if len(shown) < len(result.rows):
            print(f"… and {len(result.rows) - len(shown)} more that are less exposed")
        print()
    advice = result.summary["advice"]
    if advice["rows"]:
        rows = [
            [row["what"], f"{row['iteration_time_ms']:.3f}", f"{row['saves_percent']:.1f}"] for row in advice["rows"]
        ]
        _print_table(["the same step, sent", "predicted ms", "saves %"], rows)
        print()
    print(result.summary["headline"])


@app.command()
def presets(
    kind: Annotated[
        str | None, typer.Argument(help="model, graph, device, cluster, flow or paper; leave out for all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the built-in models, op graphs, devices, clusters, flow sizes and papers' scenarios."""
    from gradtide import presets as room

    kind = kind if kind is None else kind.removesuffix("s")

    if kind not in (None, *room.KINDS):
        _fail_usage(f"no kind of presets {kind!r}; there are {', '.join(room.KINDS)}")
    rows = room.list_presets(kind)
    if as_json:
        _print_json({"schema": "gradtide.presets/1", "presets": rows})
        return
    for one in room.KINDS if kind is None else (kind,):
        members = [row for row in rows if row["kind"] == one]
        columns = [name for name in members[0] if name not in ("kind", "source")]
        print(f"{one}s")
        _print_table(columns, [[_cell(row[name]) for name in columns] for row in members])
        print()


@app.command()
def order(
    dag: Annotated[
        str, typer.Argument(metavar="DAG", help="Op DAG (.json: ops and target), or a built-in one (presets graph).")
    ],
    scheduler: Annotated[
        str,
        typer.Option(
            "--scheduler",
            metavar="NAME",
            help="layer, tic, tac, tac_folded, random, optimal, or an order file (.json).",
        ),
    ] = "optimal",
    ties: Annotated[
        str, typer.Option("--ties", metavar="RULE", help="Whom TAC holds for equal: id, or upstream as released.")
    ] = "id",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root of all random streams.")] = 0,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Built-in DAG: what computes; K80.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Built-in DAG: samples; as the paper has.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Built-in DAG: train or inference; train.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Built-in DAG: rate of transfers; 10Gbps.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """In which order should a worker receive its parameters, and how far is that from the best?"""
    from gradtide.studies import graph
    from gradtide.studies import order as study

    with _as_usage_error(ValueError):
        loaded = graph.find_dag(dag, device, batch, task, rate)
        result = study.order(loaded, scheduler, ties=ties, seed=seed)
    if as_json:
        _print_json(result.to_dict())
        return
    ops = {op.id: op for op in loaded.ops}
    shown = list(result.priority.items())[:MAX_TRANSFERS_SHOWN]
    _print_table(["priority", "op", "name", "time"], [[rank, op, ops[op].name, ops[op].time] for op, rank in shown])
    if len(shown) < len(result.priority):
        print(f"and {len(result.priority) - len(shown)} more; --json has them all")
    print(f"\n{_words_of_order(result)}")


MAX_TRANSFERS_SHOWN = 20


def _words_of_order(result: "OrderResult") -> str:
    best = "and no order is faster" if result.optimal else f"at most {result.proven_gap:.2%} more than the best order"
    bound = f"{result.gap:.2%} above the lower bound of {result.lower_bound}"
    return f"{result.scheduler}: the iteration takes {result.makespan}, {best}; it is {bound}."


def _show_formats(wanted: bool) -> None:
    if not wanted:
        return
    from gradtide import formats

    rows = [[form.name, form.kind, form.suffix, form.what.replace("`", "")] for form in formats.FORMATS]
    _print_table(["format", "holds", "suffix", "looks like"], rows)
    print("\nFormats that hold the same convert into each other; --from and --to name what no suffix or content says.")
    raise typer.Exit


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="File of any format of --formats; traces also as folder or pattern.")
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write; its suffix says the format, or --to.")
    ] = None,
    from_format: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="Format of IN; by its content if not given.")
    ] = None,
    to_format: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="Format of OUT; by its suffix if not given.")
    ] = None,
    formats_wanted: Annotated[
        bool, typer.Option("--formats", help="List the formats.", is_eager=True, callback=_show_formats)
    ] = False,
    packet: Annotated[
        str | None, typer.Option("--packet", metavar="SIZE", help="cdf-ns2: what a value is, 1460B or 1B.")
    ] = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", metavar="FILE", help="hpcc-flow: which nodes are hosts.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Trace: this rank alone.")] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Trace to DAG: what is received starts without waiting, for order.")
    ] = False,
    version: Annotated[str, typer.Option("--version", metavar="V", help="Chakra schema: 0.0.4 or 1.0.0.")] = "0.0.4",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read a file of another tool and say what is in it; write it as another format.

    Traces of PyTorch and Chakra, flow sizes, lists of flows, networks and models: --formats lists them.
    """
    from gradtide import formats

    with _as_usage_error(ValueError):
        form = formats.recognised(Path(source)) if from_format is None else formats.known(from_format)
        if form is not None and form.kind != "trace":
            if rank is not None or cut:
                raise ValueError("--rank and --cut are for traces")
            _convert_file(Path(source), target, form, to_format, packet, topology, as_json, quiet)
            return
        if packet is not None or topology is not None or to_format is not None:
            raise ValueError("--packet, --topology and --to are not for traces: the suffix of OUT says the format")
    _convert_trace(source, target, rank, cut, version, as_json, quiet)


def _convert_file(
    source: Path,
    target: Path | None,
    form: "Format",
    to_format: str | None,
    packet: str | None,
    topology: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from gradtide import formats, units

    with _as_usage_error(ValueError, TraceError):
        packet_bytes = None if packet is None else units.parse_bytes(packet)
        if packet_bytes == 0:
            raise ValueError("--packet: a value of 0 bytes is no size; write 1460B or 1B")
        done = formats.convert(source, target, form=form, into=to_format, packet_bytes=packet_bytes, topology=topology)
    if as_json:
        written = None if done.target is None else {"file": str(target), "format": done.target.name}
        summary = {"schema": "gradtide.convert/1", "format": form.name, "holds": form.kind, **done.figures}
        _print_json({**summary, "written": written, "notes": list(done.notes)})
    elif target is None:
        rows = [[key.replace("_", " "), _figure(value)] for key, value in done.figures.items()]
        _print_table([form.name, ""], rows)
    if not quiet:
        for note in done.notes:
            _talk(f"note: {note}")
        if done.target is not None:
            _talk(f"wrote {target} ({done.target.name})")


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.9g}"


def _convert_trace(
    source: str, target: Path | None, rank: int | None, cut: bool, version: str, as_json: bool, quiet: bool
) -> None:
    from gradtide import traces

    with _as_usage_error(ValueError, TraceError):
        trace = traces.read(source)
        written = [] if target is None else trace.save(target, rank=rank, cut=cut, version=version)
    summary = trace.summary()
    if as_json:
        _print_json(summary)
    elif target is None:
        parts = ("span", "compute", "overlapped", "exposed", "idle")
        rows = [
            [row["rank"], row["transfers"], *(f"{row[f'{part}_us'] / 1000:.3f}" for part in parts)]
            for row in summary["ranks"]
        ]
        _print_table(["rank", "transfers", *(f"{part} ms" for part in parts)], rows)
        print(f"\n{summary['headline']}")
    if not quiet:
        for warning in summary["warnings"]:
            _talk(f"warning: {warning}")
        for file in written:
            _talk(f"wrote {file}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from gradtide.scenario import json_schema

    _print_json(json_schema())


@app.command()
def explain(code: Annotated[str, typer.Argument(help="Code of an error, as in GT012.")]) -> None:
    """Say what an error's code means, with an example and its mend."""
    from gradtide import errors

    if code.upper() not in errors.CODES:
        _fail_usage(f"no error has the code {code}; they are GT001 and so on, as an error prints them")
    print(errors.explain(code.upper()))


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what is installed, what is missing, and what for."""
    from gradtide.studies import doctor as study

    findings = study.examine()
    if as_json:
        _print_json({"schema": "gradtide.doctor/1", "findings": findings})
    else:
        _print_table(["", "what", "found", "needed for"], [[row["state"], *list(row.values())[1:]] for row in findings])
    if any(row["state"] == "broken" for row in findings):
        raise typer.Exit(EXIT_CANNOT_GO_ON)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"gradtide {_core.__version__}")
        raise typer.Exit


def _load(name: str, changes: Sequence[str] | None, seed: int | None, engine: str | None) -> "Scenario":
    from gradtide.scenario import Scenario

    return _changed(Scenario.load(name), changes, seed, engine)


def _changed(scenario: "Scenario", changes: Sequence[str] | None, seed: int | None, engine: str | None) -> "Scenario":
    values: dict[str, Any] = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key:
            _fail_usage(f"--set {change}: write KEY=VALUE, as in --set cluster.link.rate=1Gbps")
        values[key.strip()] = value.strip()
    if seed is not None:
        values["run.seed"] = seed
    if engine is not None:
        values["run.engine"] = engine
    scenario = scenario.set(values) if values else scenario
    scenario.check_built()
    return scenario


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _counts(option: str, text: str | None) -> list[int] | None:
    counts = _split(text)
    if counts is not None and not all(count.isdecimal() for count in counts):
        _fail_usage(f"--{option} {text}: write whole numbers, as in 2,8")
    return None if counts is None else [int(count) for count in counts]


def _check_target(output: Path | None) -> None:
    if output is not None:
        from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable

        with _as_usage_error(FolderError):
            refuse_foreign(output)
            refuse_unwritable(output)


def _limits(max_memory: str | None, max_time: str | None) -> "Limits":
    from gradtide.estimate import limits

    with _as_usage_error(ValueError):
        return limits(max_memory, max_time)


# Studies of many runs: their finished part is kept


@contextmanager
def _study(
    what: str, output: Path | None, quiet: bool, show: Callable[[Any], None]
) -> Iterator[tuple[Callable[[float], object] | None, "Kept | None"]]:
    """Give a study its progress and the place for its finished runs; when it is interrupted, show what is known."""
    from gradtide.studies.folder import FolderError
    from gradtide.studies.keep import Kept

    with _as_usage_error(FolderError):
        keep = None if output is None else Kept(output)
    try:
        with _progress(what, quiet) as progress:
            yield progress, keep
    except Interrupted as stop:
        _talk(_words_of_kept(str(stop), keep))
        if keep is not None and keep.count:
            keep.show_part(stop)
        if stop.study is not None:
            show(stop.study)
        raise Stopped from stop
    except (KeyboardInterrupt, GradtideError):
        if keep is not None and keep.count:
            _talk(_words_of_kept("not finished", keep))
        raise


def _words_of_kept(what: str, keep: "Kept | None") -> str:
    if keep is None:
        return f"{what}; with -o DIR they would be kept"
    if not keep.count:
        return f"{what}; nothing is left behind"
    return f"{what}; they are kept in {os.path.relpath(keep.folder)}, and the same command goes on from there"


def _save(result: Any, output: Path | None, keep: "Kept | None") -> None:
    if output is not None and keep is not None:
        result.save(output)
        keep.forget()


# Checks: --fail-if


class Check:
    """`FIGURE OP LIMIT`; the run fails if it holds."""

    def __init__(self, text: str, figure: str, operator: str, limit: float) -> None:
        self.text, self.figure, self.limit = text, figure, limit
        self._holds: Callable[[float, float], bool] = {
            ">": float.__gt__,
            ">=": float.__ge__,
            "<": float.__lt__,
            "<=": float.__le__,
        }[operator]

    def holds(self, value: float) -> bool:
        """Whether the figure is on the wrong side of the limit."""
        return self._holds(float(value), self.limit)


def _parse_check(text: str) -> Check:
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*", text)
    try:
        if match is not None:
            return Check(text, match[1], match[2], float(match[3]))
    except ValueError:
        pass
    _fail_usage(f"--fail-if {text!r}: write FIGURE, one of > >= < <=, and a number, as in 'iteration_time_ms>950'")


def _figures(job: dict[str, Any]) -> dict[str, Any]:
    figures = {name: value for name, value in job.items() if isinstance(value, (int, float))}
    figures["iteration_time_ms"] = job["iteration_time_ms"]["mean"]
    figures.update({f"{name}_ms": value for name, value in job["waterfall_ms"].items()})
    return figures


def _refuse_unknown(checks: Sequence[Check], example: Callable[[], dict[str, Any]]) -> None:
    """Refuse a figure that no result has, before there is one: `example` gives the figures of a small one."""
    if not checks:
        return
    known = sorted(name for name, value in example().items() if value is None or isinstance(value, (int, float)))
    for check in checks:
        if check.figure not in known:
            nearest_first = dict.fromkeys((*difflib.get_close_matches(check.figure, known, 3), *known))
            _fail_usage(f"--fail-if {check.text!r}: no figure {check.figure!r}; there are {', '.join(nearest_first)}")


def _apply_checks(checks: Sequence[Check], figures_of: dict[str, dict[str, Any]]) -> None:
    failed = []
    for check in checks:
        for name, figures in figures_of.items():
            value = figures[check.figure]
            if value is None:
                failed.append(f"check failed: {check.text} ({name}: it has no value)")
            elif check.holds(value):
                failed.append(f"check failed: {check.text} ({name}: {value:.6g})")
    if failed:
        _talk("\n".join(failed))
        raise typer.Exit(EXIT_CHECK_FAILED)


# Printing


def _talk(text: str) -> None:
    print(text, file=sys.stderr)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) >= 1000 and value.is_integer():
        return f"{value:.0f}"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"
    return str(value)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    numeric = [
        all(re.match(r"^[-–+]?[\d.]*( ?%| ms)?$", str(row[index])) for row in rows) for index in range(len(columns))
    ]
    for column, is_numeric in zip(columns, numeric, strict=True):
        table.add_column(Text(column), justify="right" if is_numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # What is piped is not wrapped: a table must survive `grep`.
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table)


def _print_comparison(result: "CompareResult") -> None:
    from gradtide import words
    from gradtide.studies.compare import GROUP

    schedules = list(dict.fromkeys(row["schedule"] for row in result.rows))
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in result.rows:
        groups.setdefault(tuple(row[key] for key in GROUP), {})[row["schedule"]] = row
    varied = [key for key in GROUP if len({row[key] for row in result.rows}) > 1]
    if len(groups) > 1:
        shown = [key for key in GROUP if key in varied or key in ("model", "workers", "rate_bps")]
        table = []
        for members in groups.values():
            times = [
                f"{members[name]['iteration_time_us'] / 1e3:.1f}" if name in members else "–" for name in schedules
            ]
            best = max(words.settled(members.values()), key=lambda row: row["saves_percent"])
            of = [words.rate(best[key]) if key == "rate_bps" else best[key] or "–" for key in shown]
            saves = f"{best['saves_percent']:.1f} %"
            table.append([*of, *times, saves, words.percent(1 - best["utilisation"])])
        print("Iteration time in ms")
        names = ["link" if key == "rate_bps" else key for key in shown]
        _print_table([*names, *schedules, "best saves", "still waits"], table)
    if len(groups) == 1 or len(schedules) > 1:
        telling = max(
            groups.values(), key=lambda members: max(row["saves_percent"] for row in words.settled(members.values()))
        )
        row = next(iter(telling.values()))
        print(("\n" if len(groups) > 1 else "") + f"{words.group(row, varied)}, {words.rate(row['rate_bps'])}")
        _print_figures(telling)
    print(f"\n{result.summary['headline']}")


def _print_figures(rows: dict[str, dict[str, Any]]) -> None:
    """Print what each schedule of one group comes to."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    table = [
        [
            name,
            f"{row['iteration_time_us'] / 1e3:.1f}",
            f"{row['iteration_time_p95_us'] / 1e3:.1f}",
            _signed_percent(row["gain_percent"]),
            *(share(row[key]) for key in ("rho", "alpha", "utilisation")),
            f"{row['straggler_percent']:.1f} %",
            f"{row['lower_bound_us'] / 1e3:.1f}",
            f"{round(row['above_bound_percent'], 1) + 0.0:.1f} %",
        ]
        for name, row in rows.items()
    ]
    columns = ("schedule", "T, ms", "p95", "throughput", "rho", "alpha", "U", "straggler", "bound, ms", "above it")
    _print_table(list(columns), table)


def _print_tenants(summary: dict[str, Any]) -> None:
    def cells(pair: dict[str, Any], *, saves: bool = True) -> list[str]:
        change = pair["saves_percent"]
        change = change if saves or change is None else -change
        return [_cell(pair["same"]), _cell(pair["low"]), _signed_percent(change)]

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
    _print_table(["", "same band", "low band", "saves"], rows)
    print(f"\n{summary['headline']}")


def _print_lp(summary: dict[str, Any]) -> None:
    times = ("ready", "start", "end", "needed", "slack", "margin")
    print("Buckets in the order in which they are sent; times in ms from the start of the backward pass")
    rows = [
        [bucket["layers"], *(f"{bucket[f'{key}_ms']:.2f}" for key in times), bucket["band"]]
        for bucket in summary["buckets"]
    ]
    _print_table(["layers", *times, "band"], rows)
    print("\nIteration time and neighbours' completion times in ms")
    policies = [
        [
            row["policy"],
            f"{row['high_percent']:.1f} %",
            f"{row['predicted_ms']:.1f}",
            f"{row['simulated_ms']:.1f}",
            _signed_percent(row["error_percent"]),
            *(_cell(row[key]) for key in ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms")),
        ]
        for row in summary["policies"]
    ]
    columns = ("bands", "bytes high", "predicted", "simulated", "off by", "small, mean", "small, p99", "large, mean")
    _print_table(list(columns), policies)
    print(f"\n{summary['headline']}")


def _print_estimate(estimate: "Estimate", as_json: bool) -> None:
    from gradtide.estimate import memory_words, time_words

    if as_json:
        _print_json(estimate.to_dict())
        return
    rows = [
        [name, f"{getattr(estimate, name):,}"] for name in ("flows", "iterations", "packets", "packet_hops", "events")
    ]
    rows += [["memory", memory_words(estimate.memory_bytes)], ["time", time_words(estimate.cpu_s)]]
    _print_table(["about", "estimate"], rows)
    print(f"\nMost of the time goes into {estimate.mostly}, most of the memory into {estimate.memory_mostly}.")


def _talk_of_files(output: Path | None, quiet: bool) -> None:
    if output is not None and not quiet:
        _talk(f"\nreport    {output / 'report.html'}")
        if (output / "timeline.pftrace").exists():
            _talk(f"timeline  {output / 'timeline.pftrace'}   (open at https://ui.perfetto.dev)")


def _talk_of_cost(cost: dict[str, Any]) -> None:
    _talk(f"{cost['events']} events in {cost['wall_s']:.3f} s, at most {cost['peak_rss_mb']:.0f} MB")


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[float], object] | None]:
    """Show a bar with the time left on stderr, if somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)


# Ends


class UsageError(GradtideError):
    """A command line that means nothing."""


def _fail_usage(message: str) -> NoReturn:
    raise UsageError(message)


class Stopped(GradtideError):  # noqa: N818 - an end, and no error
    """Ctrl-C, and the user has been told what is kept."""


@contextmanager
def _as_usage_error(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except ScenarioError:
        raise
    except errors as error:
        _fail_usage(str(error))


def main() -> None:
    """Run the command line; every end has its exit code."""
    code = _main()
    if code == EXIT_INTERRUPTED:
        # Runs that are still under way are not waited for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _reader_went_away() -> int:
    """Let nobody be told: what is still to be flushed at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _main() -> int:
    wants_json = "--json" in sys.argv
    try:
        code = int(app(standalone_mode=False) or 0)
        if code == EXIT_INTERRUPTED:
            # What typer makes of a KeyboardInterrupt.
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except ScenarioError as error:
        _talk(str(error))
        if wants_json:
            _print_json({"schema": "gradtide.error/1", "errors": error.errors})
        return EXIT_BAD_INPUT
    except (UsageError, CoreRefusal) as error:
        _talk(f"error: {error}")
        return EXIT_BAD_INPUT
    except Stopped:
        return EXIT_INTERRUPTED
    except (SimulationError, GradtideError) as error:
        _talk(f"error: {error}")
        return EXIT_CANNOT_GO_ON
    except BrokenPipeError:
        return _reader_went_away()
    except SystemExit as error:
        # typer turns a broken pipe into exit 1.
        if isinstance(error.__context__, BrokenPipeError):
            return _reader_went_away()
        raise
    except (KeyboardInterrupt, typer.Abort):
        _talk("interrupted; nothing half-written is left behind")
        return EXIT_INTERRUPTED
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None:
            show(file=sys.stderr)
            return EXIT_BAD_INPUT
        traceback.print_exc()
        _talk("This is a bug of gradtide. Please report it with the lines above and the scenario.")
        return EXIT_BUG
