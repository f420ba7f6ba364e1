"""`gradtide report`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import (
    JsonOption,
    Limited,
    MaxInputOption,
    OutputOption,
    QuietOption,
    WideOption,
    check_target,
    option,
)
from gradtide.cli.printing import print_json, print_table, put, say, talk, talk_of_files

if TYPE_CHECKING:
    from gradtide.studies.waterfall import WaterfallResult


def report(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR|TRACE…", help="Traces, one of each rank; or the folder of a finished run or study."
        ),
    ],
    output: OutputOption = None,
    step: int | None = option("N", "Trace: show this step. Default: the step of median length.", min=0),
    max_input: MaxInputOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
    *,
    limited: Limited,
) -> None:
    """Show where a recorded step spends its time.

    Reads traces of PyTorch, one of each rank. Of a folder of a finished run or study it writes the report again.
    """
    from gradtide import report as room

    if len(paths) == 1 and os.path.exists(os.path.join(paths[0], "summary.json")):
        for flag, given in (("-o", output), ("--step", step)):
            if given is not None:
                fail_usage(f"{flag} is for traces; {paths[0]} is a finished run or study")
        with as_usage_error(room.RunFolderError):
            written = room.write_report(Path(paths[0]))
            if as_json:
                print_json(room.read_summary(Path(paths[0])))
            else:
                put(str(written))
        return
    from gradtide import traces

    check_target(output)
    with as_usage_error(ValueError):
        found = traces.read(paths[0] if len(paths) == 1 else paths).waterfall(step)
    if as_json:
        print_json(found.to_document())
    else:
        _print_waterfall(found)
    if not quiet:
        for warning in found.summary["warnings"]:
            talk(f"warning: {warning}")
    if output is not None:
        found.save(output)
    if output is not None and not quiet:
        talk_of_files(output)


def _print_waterfall(result: "WaterfallResult") -> None:
    from gradtide import words

    def ms(us: float) -> str:
        return f"{us / 1e3:.3f}"

    shown = sorted(result.rows, key=lambda row: (-row["exposed_us"], row["transfer"]))[:20]
    if shown:
        # With several process groups, the column "group" distinguishes collectives of the same kind.
        groups = len({row["group"] for row in result.rows}) > 1
        columns = ["transfer", *["group"] * groups, "bytes"]
        columns += ["starts ms", "takes ms", "moving ms", "exposed ms", "bus rate", "bounded by"]
        rows = [
            [
                row["collective"].replace("_", "-"),
                *[row["group"] or "not named"] * groups,
                "–" if row["bytes"] is None else row["bytes"],
                *(ms(row[key]) for key in ("start_us", "duration_us", "moving_us", "exposed_us")),
                "" if row["bus_rate_bps"] is None else words.rate(row["bus_rate_bps"]),
                row["bound"] + (f" {row['late_rank']:.0f}" if row["bound"] == "late rank" else ""),
            ]
            for row in shown
        ]
        print_table(columns, rows)
        if len(shown) < len(result.rows):
            say(f"… and {len(result.rows) - len(shown)} more that are less exposed")
        say("")
    advice = result.summary["advice"]
    if advice["rows"]:
        rows = [
            [row["what"], f"{row['iteration_time_ms']:.3f}", f"{row['saves_percent']:.1f}"] for row in advice["rows"]
        ]
        print_table(["the same step, sent", "predicted ms", "saves %"], rows)
        say("")
    say(result.summary["headline"])
