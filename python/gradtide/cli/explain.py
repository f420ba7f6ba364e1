"""`gradtide explain`."""

from typing import Annotated

import typer

from gradtide.cli.ends import fail_usage


def explain(code: Annotated[str, typer.Argument(help="Code of an error, as in GT012.")]) -> None:
    """Say what an error's code means, with an example and how to fix it."""
    from gradtide import codes

    if code.upper() not in codes.CODES:
        fail_usage(f"no error has the code {code}; they are GT001 and so on, as an error prints them")
    print(codes.explain(code.upper()))
