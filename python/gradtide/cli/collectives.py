"""Collectives side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.cli.checks import Check, apply_checks, refuse_unknown
from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import check_target, split
from gradtide.cli.printing import cell, print_json, print_table, talk_of_cost, talk_of_files
from gradtide.cli.study import save, study_under_way

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario
    from gradtide.studies.collectives import CollectivesResult


def compare_collectives(
    loaded: "Scenario",
    names: str,
    sizes: str | None,
    output: Path | None,
    as_json: bool,
    jobs: int,
    quiet: bool,
    verbose: bool,
    checks: Sequence[Check],
    limits: "Limits",
) -> None:
    """Compare collectives over sizes, and print the result."""
    check_target(output)
    from gradtide import words
    from gradtide.studies import collectives as study

    refuse_unknown(checks, lambda: dict.fromkeys(("exchange_us", *(f"{term}_us" for term in study.TERMS))))

    def show(result: "CollectivesResult") -> None:
        if as_json:
            print_json(result.summary)
            return
        rows = {(row["collective"], row["bytes"]): row for row in result.rows}
        known = list(dict.fromkeys(row["collective"] for row in result.rows))
        print("Exchange time in ms")
        times = [
            [words.size(size), *(_term(rows[name, size], "exchange") for name in known)]
            for size in dict.fromkeys(row["bytes"] for row in result.rows)
        ]
        print_table(["gradient", *map(words.collective, known)], times)
        largest = max(row["bytes"] for row in result.rows)
        print(f"\nWhat they are made of at {words.size(largest)}, in ms")
        terms = [
            [words.collective(name), *(_term(rows[name, largest], term) for term in ("exchange", *study.TERMS))]
            for name in known
        ]
        print_table(["", "exchange", *study.TERMS], terms)
        print(f"\n{result.summary['headline']}")

    with as_usage_error(ValueError), study_under_way("exchanges", output, quiet, show) as (progress, keep):
        result = study.compare_collectives(
            loaded,
            collectives=split(names) or [],
            sizes=study.SIZES if sizes is None else split(sizes) or [],
            engine=loaded.engine,
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
    apply_checks(checks, {f"{row['collective']}, {words.size(row['bytes'])}": row for row in result.rows})


def _term(row: dict[str, Any], term: str) -> str:
    return cell(row[f"{term}_us"] / 1e3)
