"""`gradtide tenants`."""

from typing import Any

from gradtide.cli.options import Changes, Common, ScenarioArgument, SeedsOption
from gradtide.cli.printing import cell, print_table, say, signed_percent
from gradtide.cli.samples import sample_of_tenants
from gradtide.cli.study import conduct


def tenants(scenario: ScenarioArgument, *, seeds: SeedsOption = 1, changes: Changes, common: Common) -> None:
    """What does a training job do to background flows, and is a lower priority band free here?"""
    from gradtide.studies.tenants import bands as study

    loaded = changes.load(scenario)
    conduct(
        f"{2 * seeds} runs",
        common,
        make=lambda how: study.tenants(loaded, seeds=range(loaded.seed, loaded.seed + seeds), **how),
        show=lambda result: _print_tenants(result.summary),
        example=lambda: study.figures(sample_of_tenants().summary),
        figures=lambda result: {"tenants": study.figures(result.summary)},
    )


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
    say(f"{summary['model']} in its neighbours' band and in a lower one; {count}")
    print_table(["", "same band", "low band", "saves"], rows)
    say(f"\n{summary['headline']}")
