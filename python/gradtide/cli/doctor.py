"""`gradtide doctor`."""

import typer

from gradtide.cli.ends import EXIT_CANNOT_GO_ON
from gradtide.cli.options import JsonOption, WideOption
from gradtide.cli.printing import print_json, print_table


def doctor(as_json: JsonOption = False, wide: WideOption = False) -> None:
    """Print which optional parts are installed or missing.

    Also names the commands that need each part. The exit code is 3 if a part is broken.
    """
    from gradtide.studies import doctor as study

    findings = study.doctor()
    if as_json:
        print_json({"schema": "gradtide.doctor/1", "findings": findings})
    else:
        print_table(["", "what", "found", "needed for"], [[row["state"], *list(row.values())[1:]] for row in findings])
    if any(row["state"] == "broken" for row in findings):
        raise typer.Exit(EXIT_CANNOT_GO_ON)
