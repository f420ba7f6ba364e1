"""`gradtide schema`."""

from gradtide.cli.printing import print_json


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from gradtide.scenario import json_schema

    print_json(json_schema())
