"""`gradtide doctor`."""

import typer

from gradtide.cli.ends import EXIT_CANNOT_GO_ON
from gradtide.cli.options import JsonOption
from gradtide.cli.printing import print_json, print_table


def doctor(as_json: JsonOption = False) -> None:
    """Print what is installed, what is missing, and what it is needed for."""
    from gradtide.studies import doctor as study

    findings = study.doctor()
    if as_json:
        print_json({"schema": "gradtide.doctor/1", "findings": findings})
    else:
        print_table(["", "what", "found", "needed for"], [[row["state"], *list(row.values())[1:]] for row in findings])
    if any(row["state"] == "broken" for row in findings):
        raise typer.Exit(EXIT_CANNOT_GO_ON)
