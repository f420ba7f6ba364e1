"""`gradtide reproduce`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import Common, Without
from gradtide.cli.printing import cell, print_json, print_table, say
from gradtide.cli.study import conduct


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/PART[/FIGURE]",
            help="As in gao2020/ch5/5.12 or caramel/11. Default: all, counted.",
        ),
    ] = None,
    *,
    common: Annotated[Common, Without("fail_if", "verbose")],
) -> None:
    """Reproduce a paper's tables and figures, with the published value beside ours."""
    from gradtide import papers

    if what is None:
        counted, none = papers.verdicts(), dict.fromkeys(("statements", "agree", "known", "unknown"))
        rows = [{"name": name, **counted.get(name, none), "what": part.title} for name, part in papers.PARTS.items()]
        if common.as_json:
            print_json({"schema": "gradtide.parts/1", "parts": rows})
            return
        columns = ["name", "statements", "agree", "differ, cause known", "differ, cause unknown", "what"]
        print_table(columns, [[cell(one) for one in row.values()] for row in rows])
        say("", "Counted when they were last made; gradtide reproduce NAME makes one again and says why it differs.")
        return
    with as_usage_error(ValueError):
        part, figure = papers.named(what)
    conduct(
        what,
        replace(common, output=common.output or Path("out") / what.replace("/", "-")),
        make=lambda how: part.make(how["jobs"], how["progress"], figure, how["keep"], how["limits"]),
        show=lambda result: _print_reproduction(result.summary),
        usage_errors=(),
    )


def _print_reproduction(summary: dict[str, Any]) -> None:
    for table in summary["tables"]:
        say("", table["title"])
        print_table(table["columns"], [[cell(one) for one in row] for row in table["rows"]])
        if table.get("note"):
            say(f"  {table['note']}")
    say("", "Published beside ours")
    columns = ["figure", "quantity", "published", "ours", "verdict"]
    print_table(columns, [[check[name] for name in columns] for check in summary["checks"]])
    say("", summary["headline"])
