"""`gradtide explain`."""

from typing import Annotated

import typer

from gradtide.cli.ends import fail_usage
from gradtide.cli.options import JsonOption
from gradtide.cli.printing import print_json, put


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="Code of an error, as in GT012.")],
    as_json: JsonOption = False,
) -> None:
    """Explain an error code, with a wrong and a fixed example."""
    from gradtide import codes

    code = code.strip().upper()
    if code not in codes.CODES:
        fail_usage(f"no error has the code {code}; they are GT001 and so on, as an error prints them")
    if as_json:
        print_json({"schema": "gradtide.explain/1", "code": code, **codes.CODES[code]._asdict()})
    else:
        put(*codes.explain(code).split("\n"))
