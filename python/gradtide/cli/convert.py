"""`gradtide convert`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import JsonOption, Limited, MaxInputOption, QuietOption, WideOption, option
from gradtide.cli.printing import print_json, print_table, say, talk, wants_json


def _show_formats(wanted: bool) -> None:
    if not wanted:
        return
    from gradtide import formats

    if wants_json():
        found = [
            {"name": form.name, "holds": form.kind, "suffix": form.suffix, "looks_like": form.what}
            for form in formats.FORMATS
        ]
        print_json({"schema": "gradtide.formats/1", "formats": found})
        raise typer.Exit
    rows = [[form.name, form.kind, form.suffix, form.what.replace("`", "")] for form in formats.FORMATS]
    print_table(["format", "holds", "suffix", "looks like"], rows)
    say(
        "",
        "Formats with the same content convert into each other. --from and --to name formats that are not recognised.",
    )
    raise typer.Exit


def convert(  # noqa: PLR0913 - options of the command
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A file in a format of --formats; for traces also a folder or a pattern; a scenario or a run folder.",
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT",
            help="File to write; its suffix or --to determines the format. Default: print a summary.",
        ),
    ] = None,
    from_format: str | None = option(
        "FORMAT", "Read IN as this format. Default: recognised by its content.", None, "--from"
    ),
    to_format: str | None = option(
        "FORMAT", "Write OUT in this format. Default: recognised by its suffix.", None, "--to"
    ),
    formats_wanted: Annotated[
        bool, typer.Option("--formats", help="List the formats.", is_eager=True, callback=_show_formats)
    ] = False,
    packet: str | None = option("SIZE", "cdf-ns2: read values in units of this size, 1460B or 1B."),
    topology: Path | None = option("FILE", "hpcc-flow: read the hosts from this topology file."),
    start_unit: str | None = option("ps|us", "htsim-cm: read or write start times in this unit."),
    rank: int | None = option("N", "Trace: write this rank alone.", min=0),
    cut: bool = option(
        None, "Trace to DAG: let received transfers start without waiting, for gradtide order.", False, "--cut"
    ),
    version: str | None = option("V", "Trace to Chakra: write this schema, 0.0.4 or 1.0.0. Default: 0.0.4."),
    step: int | None = option(
        "N", "Trace to Chakra: write this step of all ranks, with the ops that wait for transfers.", min=0
    ),
    max_input: MaxInputOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
    *,
    limited: Limited,
) -> None:
    """Read a file of another tool, or write it in another format.

    Without OUT it prints a summary of the contents. Reads traces of PyTorch and Chakra, flow sizes, lists of flows,
    networks and models; --formats lists the formats.
    """
    from gradtide.studies import convert as study

    if target is not None and target.exists() and Path(source).exists() and target.samefile(source):
        fail_usage(f"OUT is the file IN: {target} would be overwritten; name another file")
    with as_usage_error(ValueError):
        document = study.convert(
            source,
            target,
            from_format=from_format,
            to_format=to_format,
            packet=packet,
            topology=topology,
            start_unit=start_unit,
            rank=rank,
            cut=cut,
            version=version,
            step=step,
        )
    if as_json:
        print_json(document)
    elif target is None and "ranks" in document:
        _print_trace(document)
    elif target is None:
        known = ("schema", "format", "holds", "written", "notes")
        rows = [[key.replace("_", " "), _figure(value)] for key, value in document.items() if key not in known]
        print_table([document["format"], ""], rows)
    if quiet:
        return
    for note in document.get("notes", ()):
        talk(f"note: {note}")
    for warning in document.get("warnings", ()):
        talk(f"warning: {warning}")
    written = document["written"]
    for file in [f"{written['file']} ({written['format']})"] if isinstance(written, dict) else written or ():
        talk(f"wrote {file}")


def _print_trace(summary: dict[str, Any]) -> None:
    parts = ("span", "compute", "overlapped", "exposed", "idle")
    rows = [
        [
            row["rank"],
            row["transfers"],
            *("–" if (us := row[f"{part}_us"]) is None else f"{us / 1000:.3f}" for part in parts),
        ]
        for row in summary["ranks"]
    ]
    heads = ("span", "computing", "of it overlapped", "exposed", "idle")
    print_table(["rank", "transfers", *(f"{head} ms" for head in heads)], rows)
    say("", summary["headline"])


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.9g}"
