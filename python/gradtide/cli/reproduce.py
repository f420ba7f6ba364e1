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
        typer.Argument(metavar="PAPER/PART[/FIGURE]", help="As in gao2020/ch5/5.12 or caramel/11; leave out to list."),
    ] = None,
    *,
    common: Annotated[Common, Without("fail_if", "verbose")],
) -> None:
    """Reproduce a paper's tables and figures, with the published value beside ours."""
    from gradtide import papers

    if what is None and common.as_json:
        rows = [{"name": name, "what": part.title} for name, part in papers.PARTS.items()]
        print_json({"schema": "gradtide.parts/1", "parts": rows})
        return
    if what is None:
        print_table(["name", "what"], [[name, part.title] for name, part in papers.PARTS.items()])
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
