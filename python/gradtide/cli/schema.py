"""`gradtide schema`."""

from gradtide.cli.options import JsonOption
from gradtide.cli.printing import json_text, print_json, put


def schema(as_json: JsonOption = False) -> None:
    """Print the JSON Schema of scenario files."""
    from gradtide.scenario import json_schema

    if as_json:
        print_json(json_schema())
    else:
        put(*json_text(json_schema()).split("\n"))
