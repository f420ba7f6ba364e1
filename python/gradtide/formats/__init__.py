"""Files of other tools and ours: what there is, how each is recognised, and from which to which it is converted.

A file holds one kind of thing: flow sizes, flows, a network, a model or a trace; formats of one kind convert into
each other. Traces are listed here and read by `gradtide.traces`.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gradtide import inputs
from gradtide.errors import ScenarioError
from gradtide.formats import flows, model, network, sizes
from gradtide.formats.text import Options, lines_of


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: what `--from` and `--to` call it.
        kind: what it holds: formats of one kind convert into each other.
        what: what a file looks like.
        recognised: what tells it from the other formats.
        suffix: suffix that chooses this format for a file to write; empty if only `--to` can choose it.
        source: the tool that defines it, and where.
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
        "lines `value count cdf`; `--packet` says what a value is, the count is ignored",
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
        "`Nodes`, `Connections`, lines `SRC->DST id N start PS size BYTES`",
        "its words",
        ".cm",
        "Broadcom/csg-htsim, sim/datacenter/connection_matrix.cpp",
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
    Format("chakra", "trace", "length-delimited protobuf", "`.et`", ".et", "MLCommons Chakra"),
    Format("dag", "trace", "JSON of one rank's ops", "`.json`, schema", ".json", "gradtide"),
)
"""Every format. If a text could be of two formats, the first one is taken."""

_CONVERT: dict[str, Callable[[Path, str, Path | None, str, Options], dict[str, Any]]] = {
    "model": model.convert,
    "sizes": sizes.convert,
    "flows": flows.convert,
    "network": network.convert,
}
_HEAD_LINES = 200
_HEADERS = (
    ("layers", re.compile(r".*(forward_us|backward_us|parameter_bytes)")),
    ("flows", re.compile(r".*\b(start_ns)\b")),
    ("cdf", re.compile(r"\s*bytes\s*,\s*cdf\s*", re.IGNORECASE)),
    ("links", re.compile(r"\s*a\s*,\s*b\s*(,.*)?")),
    ("htsim-cm", re.compile(r"\s*(Nodes|Connections|Triggers|Failures)\s|\s*\d+->\d+\s")),
)


@dataclass(frozen=True)
class Conversion:
    """What was read and written.

    Attributes:
        source: format that was read.
        target: format that was written; `None` if nothing was.
        figures: what is in it, for `--json`.
        notes: what was left out or rounded.
    """

    source: Format
    target: Format | None
    figures: dict[str, Any]
    notes: Sequence[str]


def known(name: str) -> Format:
    """Return the format of a name.

    Raises:
        ValueError: if there is none.
    """
    for form in FORMATS:
        if form.name == name:
            return form
    raise ValueError(f"no format is called {name!r}; there are {', '.join(form.name for form in FORMATS)}")


def recognised(path: Path) -> Format | None:
    """Return the format of a file by its content; `None` for a trace, a folder or a pattern.

    Raises:
        ValueError: if the text is of no format.
        ScenarioError: if it cannot be read.
    """
    if not os.path.isfile(path) or path.name.endswith((".et", ".gz")):
        return None
    if path.suffix == ".json":
        return known("model") if b"gradtide.model/" in inputs.start(path, 4096) else None
    try:
        lines = list(islice(lines_of(path), _HEAD_LINES))
    except ScenarioError as error:
        if error.errors[0]["code"] == "GT002":
            raise
        lines = []
    name = form_of(lines)
    if name is None:
        raise ValueError(f"{path} has no format that its content tells; name it with --from")
    return known(name)


def form_of(lines: Sequence[str]) -> str | None:
    """Return the name of the format of a text by its first lines; `None` if they are of none."""
    lines = [line for line in lines[:_HEAD_LINES] if line.strip() and not line.startswith("#")]
    return next((name for name, pattern in _HEADERS if lines and pattern.match(lines[0])), None) or _by_shape(lines)


def _by_shape(lines: Sequence[str]) -> str | None:
    """Return the format of lines of numbers, by how many there are in each."""
    rows = [[cell for cell in re.split(r"[\s,;:]+", line) if cell] for line in lines[:4]]
    widths = [len(row) for row in rows]
    if widths[:2] == [1, 6] or (widths == [1] and rows[0][0].isdigit()):
        return "hpcc-flow"
    if widths[:1] == [3] and (5 in widths[1:3] or widths[1:2] != [3]) and all(cell.isdigit() for cell in rows[0]):
        return "hpcc-topology"
    if widths[:1] == [3]:
        return "cdf-ns2"
    if widths[:1] == [2]:
        last = re.split(r"[\s,;:]+", lines[-1].strip())[-1]
        return "cdf" if re.fullmatch(r"0*1(\.0*)?|0*\.\d+", last) else "cdf-percent"
    return None


def convert(
    source: Path,
    target: Path | None = None,
    *,
    form: Format,
    into: str | None = None,
    packet_bytes: int | None = None,
    topology: Path | None = None,
) -> Conversion:
    """Read a file, and write what it holds in another format; the new file appears whole or not at all.

    Args:
        source: file to read.
        target: file to write; nothing is written without.
        form: format of `source`.
        into: name of the format of `target`. Default: the format of its suffix.
        packet_bytes: what a value of a cdf-ns2 file is.
        topology: HPCC topology file that says which nodes of an hpcc-flow file are hosts.

    Raises:
        ScenarioError: with every fault of the file, each at its line and field.
        TraceError: if `target` cannot be written.
        ValueError: if there is no such conversion, or an option is missing or without effect.
    """
    chosen = None if target is None else _target(form, target, into)
    names = {form.name, chosen.name if chosen else ""}
    if packet_bytes is not None and "cdf-ns2" not in names:
        raise ValueError("--packet has no effect here; it is for the format cdf-ns2")
    if topology is not None and form.name != "hpcc-flow":
        raise ValueError("--topology has no effect here; it is for reading hpcc-flow")
    hosts = None if topology is None else network.hosts_of(topology)
    options = Options(packet_bytes, hosts)
    figures = _CONVERT[form.kind](source, form.name, target, chosen.name if chosen else "", options)
    return Conversion(form, chosen, figures, options.notes)


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
        raise ValueError(f"{path} has no suffix that tells a format of {form.kind}; name one with --to: {names}")
    return by_suffix
