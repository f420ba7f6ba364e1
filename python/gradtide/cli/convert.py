"""`gradtide convert`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.ends import as_usage_error
from gradtide.cli.options import JsonOption, QuietOption, refuse
from gradtide.cli.printing import print_json, print_table, say, talk
from gradtide.errors import TraceError

if TYPE_CHECKING:
    from gradtide.formats import Format


def _show_formats(wanted: bool) -> None:
    if not wanted:
        return
    from gradtide import formats

    rows = [[form.name, form.kind, form.suffix, form.what.replace("`", "")] for form in formats.FORMATS]
    print_table(["format", "holds", "suffix", "looks like"], rows)
    say("\nFormats that hold the same convert into each other; --from and --to name what no suffix or content says.")
    raise typer.Exit


def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="File of any format of --formats; traces also as folder or pattern.")
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write; its suffix says the format, or --to.")
    ] = None,
    from_format: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="Format of IN; by its content if not given.")
    ] = None,
    to_format: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="Format of OUT; by its suffix if not given.")
    ] = None,
    formats_wanted: Annotated[
        bool, typer.Option("--formats", help="List the formats.", is_eager=True, callback=_show_formats)
    ] = False,
    packet: Annotated[
        str | None, typer.Option("--packet", metavar="SIZE", help="cdf-ns2: what a value is, 1460B or 1B.")
    ] = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", metavar="FILE", help="hpcc-flow: which nodes are hosts.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Trace: this rank alone.")] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Trace to DAG: what is received starts without waiting, for order.")
    ] = False,
    version: Annotated[
        str | None,
        typer.Option(metavar="V", help="Trace to Chakra: write this schema, 0.0.4 or 1.0.0. Default: 0.0.4."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read a file of another tool and say what is in it; write it as another format.

    Traces of PyTorch and Chakra, flow sizes, lists of flows, networks and models: --formats lists them.
    """
    from gradtide import formats

    with as_usage_error(ValueError):
        form = formats.recognised(Path(source)) if from_format is None else formats.known(from_format)
        if form is not None and form.kind != "trace":
            refuse(f"{form.name} is no trace", {"--rank": rank, "--cut": cut or None, "--version": version})
            if target is None:
                refuse("nothing is written without OUT", {"--to": to_format})
            _convert_file(Path(source), target, form, to_format, packet, topology, as_json, quiet)
            return
        refuse(
            "of a trace the suffix of OUT says the format",
            {"--packet": packet, "--topology": topology, "--to": to_format},
        )
        suffix = None if target is None else target.suffix
        if suffix is None:
            refuse("nothing is written without OUT", {"--rank": rank, "--cut": cut or None, "--version": version})
        if suffix == ".et":
            refuse("a Chakra trace is written as it is", {"--cut": cut or None})
        if suffix == ".json":
            refuse("an op DAG has no version", {"--version": version})
    _convert_trace(source, target, rank, cut, version or "0.0.4", as_json, quiet)


def _convert_file(
    source: Path,
    target: Path | None,
    form: "Format",
    to_format: str | None,
    packet: str | None,
    topology: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from gradtide import formats, units

    with as_usage_error(ValueError, TraceError):
        packet_bytes = None if packet is None else units.parse_bytes(packet)
        if packet_bytes == 0:
            raise ValueError("--packet: a value of 0 bytes is no size; write 1460B or 1B")
        done = formats.convert(source, target, form=form, into=to_format, packet_bytes=packet_bytes, topology=topology)
    if as_json:
        written = None if done.target is None else {"file": str(target), "format": done.target.name}
        summary = {"schema": "gradtide.convert/1", "format": form.name, "holds": form.kind, **done.figures}
        print_json({**summary, "written": written, "notes": list(done.notes)})
    elif target is None:
        rows = [[key.replace("_", " "), _figure(value)] for key, value in done.figures.items()]
        print_table([form.name, ""], rows)
    if not quiet:
        for note in done.notes:
            talk(f"note: {note}")
        if done.target is not None:
            talk(f"wrote {target} ({done.target.name})")


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.9g}"


def _convert_trace(
    source: str, target: Path | None, rank: int | None, cut: bool, version: str, as_json: bool, quiet: bool
) -> None:
    from gradtide import traces

    with as_usage_error(ValueError, TraceError):
        trace = traces.read(source)
        written = [] if target is None else trace.save(target, rank=rank, cut=cut, version=version)
    summary = trace.summary()
    if as_json:
        print_json(summary)
    elif target is None:
        parts = ("span", "compute", "overlapped", "exposed", "idle")
        rows = [
            [row["rank"], row["transfers"], *(f"{row[f'{part}_us'] / 1000:.3f}" for part in parts)]
            for row in summary["ranks"]
        ]
        print_table(["rank", "transfers", *(f"{part} ms" for part in parts)], rows)
        say(f"\n{summary['headline']}")
    if not quiet:
        for warning in summary["warnings"]:
            talk(f"warning: {warning}")
        for file in written:
            talk(f"wrote {file}")
