"""File formats of gradtide and of other tools: the list of formats, their detection, and conversions between them.

A file contains one kind of data: flow sizes, flows, a network, a model or a trace; formats of one kind convert into
each other. Traces are listed here and read by `gradtide.traces`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import inputs, recognise
from gradtide.errors import ScenarioError
from gradtide.formats import flows, model, network, sizes
from gradtide.formats.text import Options
from gradtide.scenario.source import of_command_line


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: value of `--from` and `--to`.
        kind: type of content; formats of one kind convert into each other.
        what: description of the syntax.
        recognised: description of the features by which the format is detected.
        suffix: file suffix that selects this format for output; empty if only `--to` can select it.
        source: the tool that defines the format, and the file of its code that reads it.
    """

    name: str
    kind: str
    what: str
    recognised: str
    suffix: str
    source: str


_HPCC = "alibaba-edu/High-Precision-Congestion-Control"

FORMATS = (
    Format(
        "layers",
        "model",
        "CSV `layer,forward_us,backward_us,parameter_bytes[,update_us]`",
        "header",
        ".csv",
        "gradtide",
    ),
    Format("model", "model", 'JSON, `"schema": "gradtide.model/1"`', "schema", ".json", "gradtide profile"),
    Format("cdf", "sizes", "CSV `bytes,cdf`, shares up to 1", "header, or two columns up to 1", ".csv", "gradtide"),
    Format(
        "cdf-percent",
        "sizes",
        "lines `bytes,percent` up to 100; the separator may be a blank, tab, colon or semicolon",
        "two columns up to 100",
        "",
        "plain pairs, as papers print them",
    ),
    Format(
        "cdf-ns2",
        "sizes",
        "lines `value count cdf`; `--packet` gives the unit of a value, the count is ignored",
        "three columns",
        ".tcl",
        "ns-2, tools/ranvar.cc (pFabric, PIAS)",
    ),
    Format(
        "cdf-hpcc",
        "sizes",
        "lines `bytes percent` from 0 to 100, both rising",
        "as cdf-percent",
        ".txt",
        f"{_HPCC}, traffic_gen/custom_rand.py",
    ),
    Format("flows", "flows", "CSV `start_ns,src,dst,bytes[,band]`", "header", ".csv", "gradtide"),
    Format(
        "htsim-cm",
        "flows",
        "`Nodes`, `Connections`, lines `SRC->DST id N start TIME size BYTES`; TIME in ps, or in us",
        "its words",
        ".cm",
        "Broadcom/csg-htsim, sim/datacenter/connection_matrix.cpp; ultraethernet/uet-htsim",
    ),
    Format(
        "hpcc-flow",
        "flows",
        "how many, then lines `src dst pg dport bytes start_s`",
        "one number, then six columns",
        ".txt",
        f"{_HPCC}, simulation/scratch/third.cc",
    ),
    Format("links", "network", "CSV `a,b,rate,delay`", "header", ".csv", "gradtide"),
    Format(
        "hpcc-topology",
        "network",
        "`nodes switches links`, the switches, lines `src dst rate delay error_rate`",
        "three numbers, then five columns",
        ".txt",
        f"{_HPCC}, simulation/scratch/third.cc",
    ),
    Format("kineto", "trace", "JSON or gzip of it, `traceEvents`", "`.json`, `.json.gz`", "", "PyTorch's profiler"),
    Format(
        "pytorch-et",
        "trace",
        "JSON or gzip of it, `nodes`",
        "`schema` and `nodes`",
        "",
        "PyTorch, ExecutionTraceObserver",
    ),
    Format(
        "nsight",
        "trace",
        "SQLite, `nsys export --type sqlite`",
        "a database with its tables",
        "",
        "Nsight Systems",
    ),
    Format("chakra", "trace", "length-delimited protobuf", "`.et`", ".et", "MLCommons Chakra"),
    Format("dag", "trace", "JSON of one rank's ops", "`.json`, schema", ".json", "gradtide"),
)
"""All formats. Detection, in `recognise.seen`, uses the same names."""

_CONVERT: dict[str, Callable[[Path, str, Path | None, str, Options], dict[str, Any]]] = {
    "model": model.convert,
    "sizes": sizes.convert,
    "flows": flows.convert,
    "network": network.convert,
}


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion.

    Attributes:
        source: format of the file that was read.
        target: format of the file that was written; `None` if none was.
        figures: counts, sizes and times of the content, for `--json`.
        notes: sentences that say what was left out or rounded.
    """

    source: Format
    target: Format | None
    figures: dict[str, Any]
    notes: Sequence[str]


def known(name: str) -> Format:
    """Return a format by name.

    Raises:
        ValueError: if the name is unknown.
    """
    for form in FORMATS:
        if form.name == name:
            return form
    raise ValueError(f"no format is called {name!r}; there are {', '.join(form.name for form in FORMATS)}")


def recognised(path: Path) -> Format | None:
    """Detect the format of a file from its content; `None` for a trace, a folder or a pattern.

    Raises:
        ValueError: if the text matches no format.
        ScenarioError: if the file cannot be read.
    """
    if not os.path.isfile(path) or path.name.endswith((".et", ".gz")):
        return None
    try:
        head = inputs.start(path, recognise.HEAD_BYTES)
    except inputs.InputError as error:
        raise ScenarioError([of_command_line(str(path))(error.code, f"{path} {error.msg}", error.hint)]) from None
    except OSError as error:
        raise ScenarioError(
            [of_command_line(str(path))("GT002", f"{path} cannot be read: {error.strerror}", "")]
        ) from None
    found = recognise.seen(head)
    if found is None and path.suffix != ".json":
        raise ValueError(f"the format of {path} cannot be recognised from its content; name it with --from")
    form = next((form for form in FORMATS if found is not None and form.name == found.name), None)
    if form is not None:
        return None if form.kind == "trace" else form
    fault = recognise.other_format(head, str(path), "a file that gradtide converts", *_MAYBE_TRACES)
    if fault is not None:
        raise ScenarioError([fault])
    return None


_MAYBE_TRACES = ("chrome-trace", "tar", "zip", "sqlite")
"""Formats left to the readers of traces, which report faults in more detail."""


def form_of(text: str) -> str | None:
    """Detect the format of a text from its beginning; `None` if it is not in `FORMATS`."""
    found = recognise.seen(text)
    return found.name if found is not None and any(form.name == found.name for form in FORMATS) else None


def convert(
    source: Path,
    target: Path | None = None,
    *,
    form: Format,
    into: str | None = None,
    packet_bytes: int | None = None,
    topology: Path | None = None,
    start_unit: str | None = None,
) -> Conversion:
    """Read a file, and write its content in another format, atomically.

    Args:
        source: file to read.
        target: file to write; without it nothing is written.
        form: format of `source`.
        into: name of the format of `target`. Default: the format of its suffix.
        packet_bytes: unit of the sizes in a cdf-ns2 file, in bytes.
        topology: HPCC topology file, which determines the hosts among the nodes of an hpcc-flow file.
        start_unit: unit (ps or us) of the start times in the htsim-cm file: `source` if it has this format, else
            `target`. Default: detected in `source`; ps for `target`.

    Raises:
        ScenarioError: with every fault of the file, each at its line and field.
        TraceError: if `target` cannot be written.
        ValueError: if the conversion is not supported, or an option is missing or without effect.
    """
    chosen = None if target is None else _target(form, target, into)
    names = {form.name, chosen.name if chosen else ""}
    if packet_bytes is not None and "cdf-ns2" not in names:
        raise ValueError("--packet has no effect here; it is for the format cdf-ns2")
    if topology is not None and form.name != "hpcc-flow":
        raise ValueError("--topology has no effect here; it is for reading hpcc-flow")
    if start_unit is not None and "htsim-cm" not in names:
        raise ValueError("--start-unit has no effect here; it is for the format htsim-cm")
    if start_unit not in (None, *flows.START_UNITS):
        raise ValueError(f"--start-unit: there is no {start_unit!r}; write {' or '.join(flows.START_UNITS)}")
    hosts = None if topology is None else network.hosts_of(topology)
    options = Options(packet_bytes, hosts, start_unit)
    head = inputs.start(source, recognise.HEAD_BYTES) if os.path.isfile(source) else b""
    with recognise.expecting(head, str(source), f"of the format {form.name}", *_like(form)):
        figures = _CONVERT[form.kind](source, form.name, target, chosen.name if chosen else "", options)
    return Conversion(form, chosen, figures, options.notes)


def _like(form: Format) -> list[str]:
    """Return the formats that detection may report for a file of format `form`: all distributions look alike."""
    numbers = "sizes" if form.kind == "sizes" else form.kind
    return [one.name for one in FORMATS if one.name == form.name or (numbers == "sizes" and one.kind == "sizes")]


def _target(form: Format, path: Path, into: str | None) -> Format:
    siblings = [one for one in FORMATS if one.kind == form.kind]
    names = ", ".join(one.name for one in siblings)
    if into is not None:
        chosen = known(into)
        if chosen.kind != form.kind:
            raise ValueError(f"{form.name} holds {form.kind}, {into} {chosen.kind}; --to is one of {names}")
        return chosen
    by_suffix = next((one for one in siblings if one.suffix and one.suffix == path.suffix), None)
    if by_suffix is None:
        raise ValueError(
            f"the suffix of {path} does not determine a format for {form.kind}; name one with --to: {names}"
        )
    return by_suffix
