"""`gradtide reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.ends import fail_usage
from gradtide.cli.options import (
    JobsOption,
    JsonOption,
    MaxMemoryOption,
    MaxTimeOption,
    OutOption,
    QuietOption,
    check_target,
    limits_of,
)
from gradtide.cli.printing import print_json, print_table, talk_of_files
from gradtide.cli.study import save, study_under_way


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
        print_table(["name", "what"], [[name, part.title] for name, part in study.PARTS.items()])
        return
    found = study.find(what)
    if found is None:
        name = what.rpartition("/")[0]
        known = f"{name} has {', '.join(study.PARTS[name].figures)}" if name in study.PARTS else ", ".join(study.PARTS)
        fail_usage(f"no reproduction {what!r}; there are {known}")
    part, figure = found
    output = Path("out") / what.replace("/", "-") if output is None else output
    check_target(output)
    limits = limits_of(max_memory, max_time)
    with study_under_way(what, output, quiet, lambda result: None) as (progress, keep):
        result = part.make(jobs, progress, figure, keep, limits)
        save(result, output, keep)
    if as_json:
        print_json(result.summary)
        return
    for table in result.summary["tables"]:
        print(f"\n{table['title']}")
        print_table(table["columns"], [[cell(cell) for cell in row] for row in table["rows"]])
        if table.get("note"):
            print(f"  {table['note']}")
    print("\nPublished beside ours")
    columns = ["figure", "quantity", "published", "ours", "verdict"]
    print_table(columns, [[check[name] for name in columns] for check in result.summary["checks"]])
    print(f"\n{result.summary['headline']}")
    talk_of_files(output, quiet)
