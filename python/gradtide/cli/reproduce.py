"""`gradtide reproduce`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import Common, Without, option
from gradtide.cli.printing import cell, print_answer, print_json, print_table, say, talk
from gradtide.cli.study import conduct


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/PART[/FIGURE]",
            help="A paper, or a part or figure of it, as in gao2020/ch5/5.12 or caramel/11. Default: a site of all "
            "papers.",
        ),
    ] = None,
    *,
    quick: bool = option(None, "For the site of all papers: leave out figures with long runs.", False, "--quick"),
    only_list: bool = option(
        None, "List the parts, and how many statements agreed when they were last reproduced.", False, "--list"
    ),
    common: Annotated[Common, Without("fail_if", "verbose")],
) -> None:
    """Reproduce tables and figures of papers.

    Prints the published values beside ours. Without an argument it writes a site of all papers. The default of -o is
    out/PAPER for a paper and out/reproduce for the site.
    """
    from gradtide import papers

    for flag, is_given in (("--quick", quick), ("--list", only_list)):
        if is_given and what is not None:
            fail_usage(f"{flag} is for all papers; leave out {flag} or {what}")
    for flag, is_given in (("--quick", quick), ("--estimate", common.estimate)):
        if only_list and is_given:
            fail_usage(f"--list reproduces nothing; leave out {flag}")
    if only_list:
        _list(common)
        return

    def default(name: str) -> Path | None:
        return None if common.estimate else Path("out") / name

    if what is None:
        conduct(
            f"{len(papers.PARTS)} parts of papers",
            replace(common, output=common.output or default("reproduce")),
            make=lambda how: papers.everything(quick=quick, **how),
            show=lambda result: _print_site(result.summary),
            name_files=lambda folder: talk("", f"site  {folder / 'index.html'}"),
            usage_errors=(),
        )
        return
    with as_usage_error(ValueError):
        part, figure = papers.named(what)
    conduct(
        what,
        replace(common, output=common.output or default(what.replace("/", "-"))),
        make=lambda how: part.make(how["jobs"], how["progress"], figure, how["keep"], how["limits"]),
        show=lambda result: _print_reproduction(result.summary),
        usage_errors=(),
    )


COUNTED = {
    "statements": "statements",
    "agree": "agree",
    "known": "differ, cause known",
    "unknown": "differ, cause unknown",
}
"""Column headers of the numbers of checked statements, by verdict."""


def _list(common: Common) -> None:
    from gradtide import papers

    counted, none = papers.verdicts(), dict.fromkeys(COUNTED)
    rows = [{"name": name, **counted.get(name, none), "what": part.title} for name, part in papers.PARTS.items()]
    if common.as_json:
        print_json({"schema": "gradtide.parts/1", "parts": rows})
        return
    print_table(["name", *COUNTED.values(), "what"], [[cell(one) for one in row.values()] for row in rows])
    say("", "Counted at the last reproduction; gradtide reproduce NAME repeats it and explains differences.")


def _print_site(summary: dict[str, Any]) -> None:
    counted = {**COUNTED, "not_made": "not made"}
    rows = [[row["name"], *(cell(row[key]) for key in counted)] for row in summary["parts"]]
    print_table(["part", *counted.values()], rows)
    print_answer(summary)


def _print_reproduction(summary: dict[str, Any]) -> None:
    for table in summary["tables"]:
        say("", table["title"])
        print_table(table["columns"], [[cell(one) for one in row] for row in table["rows"]])
        if table.get("note"):
            say(f"  {table['note']}")
    say("", "Published beside ours")
    columns = ["figure", "quantity", "published", "ours", "verdict"]
    print_table(columns, [[check[name] for name in columns] for check in summary["checks"]])
    print_answer(summary)
