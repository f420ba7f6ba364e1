"""`gradtide check`."""

from pathlib import Path
from typing import Annotated, Any

from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, Training, Without, option
from gradtide.cli.printing import cell, print_table, say
from gradtide.cli.study import Checked, conduct


def check(
    scenario: ModelArgument,
    *,
    against: str = option("SIMULATOR", "Compare with this simulator, or on real packets: ns3 or emulation.", "ns3"),
    ns3: Path | None = option("DIR", "Use the ns-3 that is installed in this directory. Default: /usr or /usr/local."),
    cluster: ClusterOption = None,
    training: Training,
    changes: Changes,
    common: Annotated[Common, Without("jobs", "store")],
) -> None:
    """Compare a scenario with ns-3 or an emulation, flow by flow.

    Runs the scenario in an installed ns-3, too, and compares the completion times of flows and iterations. With
    --against emulation, it runs on real packets instead, or SCENARIO is a folder of gradtide emulate.
    """
    from gradtide.studies import check as study

    is_recorded = against == "emulation" and study.is_emulation(scenario)
    loaded = scenario if is_recorded else changes.trained(scenario, cluster, **training.keys)
    none = {"compared": 0, "equal": 0, "unfinished_in_one": 0, "mean_percent": 0.0, "worst_percent": 0.0}
    conduct(
        f"{against} and gradtide",
        common,
        make=lambda how: study.check(loaded, against, ns3=ns3, **how),
        show=lambda result: _print_check(result.summary, against),
        checked=Checked(
            lambda result: {"check": study.figures(result.summary)},
            lambda: study.figures({"flows": none, "iterations": none}),
        ),
        usage_errors=(ValueError, study.NS3MissingError),
    )


def _print_check(summary: dict[str, Any], against: str) -> None:
    from gradtide import words

    rows = [(name, one) for name, one in summary["tenants"].items()]
    rows += [("iterations", summary["iterations"])] if summary["iterations"]["compared"] else []
    print_table(
        ["", "compared", "equal", "gradtide, mean us", f"{summary['against']}, mean us", "means differ by", "worst"],
        [
            [
                name,
                one["compared"],
                one["equal"],
                *(cell(one[key]) for key in ("mean_us", "other_mean_us")),
                words.difference(one["mean_percent"], signed=True),
                words.difference(one["worst_percent"]),
            ]
            for name, one in rows
        ],
    )
    if "figures_in_both" in summary:
        say("")
        both = [[one["figure"], cell(one["gradtide"]), cell(one["other"])] for one in summary["figures_in_both"]]
        print_table(["", "gradtide", summary["against"]], both)
    say("", summary["headline"])
    cpu_s = summary["cpu_s"]
    unit = "s of real time" if against == "emulation" else "CPU s"
    say(f"  {summary['against']} took {cell(cpu_s['other'])} {unit}, gradtide {cell(cpu_s['gradtide'])} CPU s.")
    for note in summary["notes"]:
        say(f"  {note}")
