"""`gradtide calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.ends import as_usage_error, writing
from gradtide.cli.options import JsonOption, Limited, MaxInputOption, QuietOption, WideOption, option
from gradtide.cli.printing import print_json, print_table, put, say, talk


def calibrate(  # noqa: PLR0913 - options of the command
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Output of nccl-tests, or a CSV file with the columns bytes and time_us, and optionally depth, "
            "collective and ranks.",
        ),
    ],
    link: str | None = option(
        "RATE", "Set the rate of the hosts' links, as in 10Gbps. Default: the rate of the slowest stage."
    ),
    collective: str | None = option(
        "NAME", "Read the times as times of send, all_reduce, all_gather or reduce_scatter. Default: stated in FILE."
    ),
    ranks: int | None = option("N", "Read the times as times of N ranks. Default: stated in FILE, or 2.", min=2),
    output: Path | None = option("FILE", "Write the keys to a file for --cluster.", None, "-o", "--output"),
    max_input: MaxInputOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
    *,
    limited: Limited,
) -> None:
    """Fit the cost of messages on hosts to measured transfers.

    Prints the keys of [cluster.host] that explain the times best: the rates of the stages of a host, and the time of
    a message.
    """
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
