"""`gradtide buy`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, Training, Without, option, split
from gradtide.cli.printing import cell, is_wide, print_answer, print_table, say
from gradtide.cli.study import Checked, conduct


def buy(  # noqa: PLR0913 - options of the command
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    nodes: int | None = option(
        "N", "Buy a network for N hosts, or N nodes with several GPUs. Default: as many as the job needs.", min=2
    ),
    fabrics: str = option(
        "LIST", "Compare these networks, each clos2, clos3, leaf-spine or star.", "clos2,clos3,leaf-spine,star"
    ),
    bisection: str = option(
        "LIST", "Compare these bisection ratios, the inverse of the oversubscription: 1/4 is 4:1.", "1,1/2,1/4,1/8"
    ),
    collectives: str | None = option(
        "LIST", "Compare these collectives, each KIND[+KEY=VALUE], as in ring,hierarchical+group=8."
    ),
    rates: str | None = option("LIST", "Compare these link rates, as in 10Gbps,25Gbps.", None, "--rates", "--rate"),
    prices: Path | None = option(
        "FILE", "Read the prices of switches, cables and network cards from this file (.toml)."
    ),
    engine: str = option("NAME", "Simulate the network with this engine: fluid or packet.", "fluid"),
    training: Annotated[Training, Without("rate", "collective")],
    changes: Changes,
    common: Common,
) -> None:
    """Choose fabric, oversubscription, link rate and collective.

    Compares networks by their cost and by the iteration time of the job, and recommends the cheapest network that is
    nearly as fast as the fastest.
    """
    from gradtide.studies import buy as study
    from gradtide.studies.run import sample

    base = replace(changes, engine=engine).trained(scenario, cluster, **training.keys)
    conduct(
        "networks",
        common,
        make=lambda how: study.buy(
            base,
            nodes=nodes,
            fabrics=split("--fabrics", fabrics) or [],
            bisection=split("--bisection", bisection) or [],
            collectives=study.COLLECTIVES if collectives is None else split("--collectives", collectives) or [],
            rates=split("--rates", rates),
            prices=prices,
            engine=engine,
            **how,
        ),
        show=lambda result: _print_offers(result.summary),
        checked=Checked(
            lambda result: {row["candidate"]: study.figures(row) for row in result.knees},
            lambda: study.figures(
                study.buy({"job": sample().to_dict()["job"]}, fabrics=["star"], collectives=["ring"]).rows[0]
            ),
        ),
    )


def _print_offers(summary: dict[str, Any]) -> None:
    from gradtide import words

    unit = words.cost_unit(summary["cost_unit"])
    rows = []
    for row in sorted(summary["rows"], key=lambda row: (row["rate_bps"], row["cost"], row["iteration_ms"])):
        if not row["is_frontier"] and not row["is_knee"]:
            continue
        rows.append(
            [
                "buy" if row["is_knee"] else "",
                words.fabric(row["fabric"]),
                words.oversubscription(row["bisection"]) if row["fabric"] != "star" else "–",
                words.collective(row["collective"]),
                words.rate(row["rate_bps"]),
                f"{row['switches']} x {row['ports']}",
                row["unused_ports"],
                row["cables"],
                words.amount(row["cost"]),
                cell(row["exchange_ms"]),
                cell(row["iteration_ms"]),
                f"{row['slower_percent']:.1f} %",
                cell(row["other_delay_iteration_ms"]),
            ]
        )
    columns = ["", "network", "oversubscription", "exchanged by", "link", "switches x ports", "spare ports"]
    columns += ["cables", unit]
    say(f"The best for their cost, of {len(summary['rows'])} candidates")
    print_table(
        [
            *columns,
            "exchange, ms",
            "iteration, ms",
            "slower",
            f"{words.spaced(summary['other_cable_delay'])} cables, ms",
        ],
        rows,
    )
    if unit == words.SWITCH_UNITS:
        say("  switch units: without --prices, a switch of 16 ports costs 64 units, one of 32 ports 256, and so on")
        if is_wide():
            say("  a switch of k ports costs (k/2)² units, which is its number of 2x2 crossbars")
    for one in summary["skipped"]:
        say(f"  not compared: {one['why']}")
    if summary["own_network"] is not None:
        say(f"  {summary['own_network']['sentence']}")
    if summary["not_priced"]:
        say(f"  not priced: {', '.join(summary['not_priced'])}")
    print_answer(summary)
