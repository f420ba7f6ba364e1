"""`gradtide presets`."""

from typing import Annotated

import typer

from gradtide.cli.ends import fail_usage
from gradtide.cli.options import JsonOption, WideOption
from gradtide.cli.printing import cell, print_json, print_table, say


def presets(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="model, language, graph, device, accelerator, cluster, flow or paper. Default: all kinds.",
        ),
    ] = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List built-in models, devices, clusters and scenarios."""
    from gradtide import presets as room

    kind = kind if kind is None else kind.removesuffix("s")

    if kind not in (None, *room.KINDS):
        fail_usage(f"no kind of presets {kind!r}; there are {', '.join(room.KINDS)}")
    rows = room.list_presets(kind)
    if as_json:
        print_json({"schema": "gradtide.presets/1", "presets": rows})
        return
    for one in room.KINDS if kind is None else (kind,):
        members = [row for row in rows if row["kind"] == one]
        columns = [name for name in members[0] if name not in ("kind", "source")]
        say("language models" if one == "language" else f"{one}s")
        print_table(columns, [[cell(row[name]) for name in columns] for row in members])
        say("")
