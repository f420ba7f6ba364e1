"""`gradtide calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.ends import as_usage_error, writing
from gradtide.cli.options import JsonOption, Limited, MaxInputOption, QuietOption, option
from gradtide.cli.printing import print_json, print_table, put, say, talk


def calibrate(  # noqa: PLR0913 - the options of the command
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Output of nccl-tests, or CSV with bytes, time_us and perhaps depth, collective, ranks.",
        ),
    ],
    link: str | None = option(
        "RATE", "Set the rate of the hosts' links, as in 10Gbps. Default: that of the slowest stage."
    ),
    collective: str | None = option(
        "NAME", "Read the times as those of send, all_reduce, all_gather or reduce_scatter. Default: what FILE says."
    ),
    ranks: int | None = option("N", "Read the times as those of N ranks. Default: what FILE says, or 2.", min=2),
    output: Path | None = option("FILE", "Write the keys as a file for --cluster.", None, "-o", "--output"),
    max_input: MaxInputOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    limited: Limited,
) -> None:
    """What do my hosts add to a transfer? Fits their stages and the cost of a message to measured times."""
    from gradtide.studies import calibrate as study

    name = Path(source).name
    with as_usage_error(ValueError):
        result = study.calibrate(source, link=link, collective=collective, ranks=ranks)
    if output is not None:
        with writing(output):
            result.save(output, name)
    if as_json:
        print_json(result.to_dict())
        return
    figures = ("measured_us", "fitted_us", "error_percent")
    rows = [
        [row["bytes"], row["depth"], *(f"{round(row[key], 1) + 0.0:,.1f}" for key in figures)] for row in result.rows()
    ]
    print_table(["bytes", "depth", "measured, us", "fitted, us", "error, %"], rows)
    say("", result.headline)
    put("", *result.to_toml(name).splitlines())
    if quiet:
        return
    for note in result.notes:
        talk(f"note: {note}")
    if output is not None:
        talk(f"wrote {output}   (gradtide plan MODEL --cluster {output})")
