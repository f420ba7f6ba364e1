"""`gradtide buy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.checks import apply_checks, parse_check, refuse_unknown
from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import (
    FailIfOption,
    JobsOption,
    JsonOption,
    MaxMemoryOption,
    MaxTimeOption,
    OutOption,
    QuietOption,
    SeedOption,
    SetOption,
    VerboseOption,
    changed,
    check_target,
    limits_of,
    split,
)
from gradtide.cli.printing import cell, print_json, print_table, talk_of_cost, talk_of_files
from gradtide.cli.samples import sample_of_buy
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.studies.buy import BuyResult


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
    checks = [parse_check(text) for text in fail_if or ()]
    limits = limits_of(max_memory, max_time)
    from gradtide.studies import buy as study

    base = changed(study.trained(scenario, nodes), set_, seed, engine)
    check_target(output)
    refuse_unknown(checks, lambda: study.figures(sample_of_buy().rows[0]))

    def show(result: "BuyResult") -> None:
        if as_json:
            print_json(result.summary)
        else:
            _print_offers(result.summary)

    with as_usage_error(ValueError), study_under_way("networks", output, quiet, show) as (progress, keep):
        result = study.buy(
            base,
            nodes=nodes,
            fabrics=split(fabrics) or [],
            bisection=split(bisection) or [],
            collectives=study.COLLECTIVES if collectives is None else split(collectives) or [],
            rates=split(rates),
            prices=prices,
            engine=engine,
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
    apply_checks(checks, {row["candidate"]: study.figures(row) for row in result.knees})


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
                cell(row["exchange_ms"]),
                cell(row["iteration_ms"]),
                f"{row['slower_percent']:.1f} %",
            ]
        )
    columns = ["", "network", "bisection", "exchanged by", "link", "switches x ports", "cables", unit]
    print(f"The best for their cost, of {len(summary['rows'])} candidates")
    print_table([*columns, "exchange, ms", "iteration, ms", "slower"], rows)
    for one in summary["skipped"]:
        print(f"  not offered: {one['why']}")
    if summary["not_priced"]:
        print(f"  not priced: {', '.join(summary['not_priced'])}")
    print(f"\n{summary['headline']}")
