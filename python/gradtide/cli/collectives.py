"""`gradtide collectives`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from gradtide.cli.options import Changes, ClusterOption, Common, ModelArgument, Training, Without, option, split
from gradtide.cli.printing import cell, print_answer, print_table, say
from gradtide.cli.study import Checked, conduct

if TYPE_CHECKING:
    from gradtide.studies.collectives import CollectivesResult


def collectives(
    scenario: ModelArgument,
    *,
    cluster: ClusterOption = None,
    collectives: str | None = option(
        "LIST", "Compare these collectives, each KIND[+KEY=VALUE], as in ring,hierarchical+group=8."
    ),
    sizes: str | None = option(
        "LIST", "Exchange gradients of these sizes, as in 1kB,1MB. Default: sizes from 1kB to 1GB."
    ),
    training: Annotated[Training, Without("schedule", "collective")],
    changes: Changes,
    common: Common,
) -> None:
    """Compare collectives over sizes of the gradient.

    Simulates a single exchange on the otherwise idle cluster, and divides its time into latency, bandwidth and
    contention.
    """
    from gradtide import words
    from gradtide.studies import collectives as study

    loaded = replace(changes, engine=changes.engine or "fluid").trained(scenario, cluster, **training.keys)
    conduct(
        "exchanges",
        common,
        make=lambda how: study.collectives(
            loaded,
            collectives=study.COLLECTIVES if collectives is None else split("--collectives", collectives) or [],
            sizes=study.SIZES if sizes is None else split("--sizes", sizes) or [],
            engine=loaded.engine,
            **how,
        ),
        show=_print_collectives,
        checked=Checked(
            lambda result: {f"{row['collective']}, {words.size(row['bytes'])}": row for row in result.rows},
            lambda: dict.fromkeys(("exchange_us", *(f"{term}_us" for term in study.TERMS))),
        ),
    )


def _print_collectives(result: "CollectivesResult") -> None:
    from gradtide import words
    from gradtide.studies.collectives import TERMS

    rows = {(row["collective"], row["bytes"]): row for row in result.rows}
    known = list(dict.fromkeys(row["collective"] for row in result.rows))
    say("Exchange time in ms")
    times = [
        [words.size(size), *(_term(rows[name, size], "exchange") for name in known)]
        for size in dict.fromkeys(row["bytes"] for row in result.rows)
    ]
    print_table(["gradient", *map(words.collective, known)], times)
    largest = max(row["bytes"] for row in result.rows)
    say("", f"What they are made of at {words.size(largest)}, in ms")
    terms = [
        [words.collective(name), *(_term(rows[name, largest], term) for term in ("exchange", *TERMS))] for name in known
    ]
    print_table(["", "exchange", *TERMS], terms)
    print_answer(result.summary)


def _term(row: dict[str, Any], term: str) -> str:
    return cell(row[f"{term}_us"] / 1e3)
