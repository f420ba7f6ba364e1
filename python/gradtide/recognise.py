"""Recognises the format of a file by its beginning: formats that gradtide reads, and formats of other tools.

A reader that cannot parse a file calls this module, so that the error names the actual format of the file in addition
to the parser's complaint. Only the beginning of a file is examined, and never its name.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gradtide.errors import Fault, ScenarioError

HEAD_BYTES = 20_000
"""Bytes of a file that are examined."""


class Seen(NamedTuple):
    """The format of a file.

    Attributes:
        name: short name of the format; formats of `formats.FORMATS` have the same name there.
        what: description of the file for use in a sentence.
        use: what the user can do with the file; `{file}` stands for its name.
        is_sure: whether no other format begins in the same way; two columns of numbers may be anything.
    """

    name: str
    what: str
    use: str
    is_sure: bool = True


_REPLAY = 'a scenario replays it: [traffic.web] replay = "{file}"; `gradtide convert {file}` describes its content'
_SIZES = (
    'background flows draw from it: [traffic.web] sizes = "{file}"; `gradtide convert {file}` describes its content'
)
_LINKS = 'a scenario takes it: cluster.topology = {{ kind = "custom", links = "{file}" }}'
_CABLES = "write its cables as a CSV file a,b,rate,delay for cluster.topology.links (docs/reference/formats.md)"
_MODEL = "gradtide run {file} --cluster CLUSTER takes it as a model"
_REPORT = "gradtide report {file} shows the parts of its time"
_FLOWS = "write its flows as a CSV file start_ns,src,dst,bytes for `replay` (docs/reference/formats.md)"
_TIMINGS = "gradtide calibrate reads the printed table of nccl-tests, and CSV with the header bytes,time_us"
_NODES = "write GPUs, network cards and NVLink of its node as cluster.node (docs/models/nodes.md)"
_NETWORKX = (
    "in Python, gt.from_networkx makes a topology of a graph that networkx.{reader} returns, if its edges have `rate` "
    "and `delay` with units (docs/models/fabrics.md)"
)
_RECORD = (
    "record the step with PyTorch's profiler and export a Chrome trace, collect a Chakra trace, or export a report of "
    "Nsight Systems as SQLite (docs/traces.md)"
)
_WEIGHTS = "gradtide needs no weights: give the model's config.json, or profile its module (docs/own-model.md)"
_SCENARIO = "gradtide run {file} takes it"
_MEMBERS = "gradtide report {file} reads the traces in it; for anything else unpack it, and name a file in it"

_OURS = {
    "scenario": ("a scenario", _SCENARIO),
    "study": ("a study", "gradtide sweep {file} runs it"),
    "prices": ("a list of prices", "gradtide buy SCENARIO --prices {file} takes it"),
    "layers": ("a table of layers", _MODEL),
    "flows": ("a list of flows", _REPLAY),
    "links": ("a list of cables", _LINKS),
    "cdf": ("a distribution of flow sizes", _SIZES),
    "op-times": ("a table of times of a model's ops", 'a scenario takes it: compute = {{ times = "{file}" }}'),
    "timings": ("a table of transfer times", "gradtide calibrate {file} fits it"),
    "htsim-cm": ("a connection matrix of htsim", _REPLAY),
    "hpcc-flow": ("a flow file of HPCC", "gradtide convert {file} flows.csv makes a list of flows for `replay`"),
    "hpcc-topology": ("a topology file of HPCC", _LINKS),
    "cdf-percent": ("a distribution of flow sizes", _SIZES),
    "cdf-ns2": (
        "a distribution of flow sizes for ns-2",
        "gradtide convert {file} sizes.csv --packet 1460B converts it",
    ),
    "model": ("a model file", _MODEL),
    "config": (
        "a model's configuration of Hugging Face",
        "gradtide run {file} --seq TOKENS --cluster CLUSTER takes it as a model",
    ),
    "plan": ("a plan", "gradtide run SCENARIO --plan {file} runs it"),
    "dag": ("a graph of ops", "gradtide order {file} orders it"),
    "order": ("an order of transfers", "gradtide compare SCENARIO --schedule file:{file} takes it"),
    "kineto": ("a trace of PyTorch's profiler", _REPORT),
    "chakra": ("a Chakra trace", _REPORT),
    "pytorch-et": (
        "an execution trace of PyTorch (ExecutionTraceObserver)",
        "gradtide convert {file} describes its content; it has no times, and a trace of PyTorch's profiler has them",
    ),
    "nccl-tests": ("the output of nccl-tests", "gradtide calibrate {file} fits it"),
}
"""Formats that gradtide reads: description and use, by name."""

_FOREIGN = {
    "graphml": ("a GraphML graph", _NETWORKX.replace("{reader}", "read_graphml")),
    "gexf": ("a GEXF graph", _NETWORKX.replace("{reader}", "read_gexf")),
    "gml": ("a GML graph", _NETWORKX.replace("{reader}", "read_gml")),
    "dot": ("a graph of Graphviz", _NETWORKX.replace("{reader}", "nx_pydot.read_dot")),
    "node-link": ("a graph of networkx as JSON", _NETWORKX.replace("{reader}", "node_link_graph")),
    "simgrid": ("a platform file of SimGrid", _CABLES),
    "nccl-topology": ("a topology of one node as NCCL writes it (NCCL_TOPO_DUMP_FILE)", _NODES),
    "nccl-graph": ("a graph of rings and trees as NCCL writes it (NCCL_GRAPH_DUMP_FILE)", _NODES),
    "hwloc": ("a topology of one machine as hwloc writes it", _NODES),
    "htsim-topo": (
        "a topology file of htsim",
        'write its tiers as cluster.topology, kind = "leaf_spine", "clos2" or "clos3" (docs/models/fabrics.md)',
    ),
    "simai": (
        "a topology file of SimAI",
        "its GPUs have cables to an NVSwitch and to the network: write nodes as cluster.node (docs/models/nodes.md), "
        "and the network between them as cluster.topology",
    ),
    "ned": ("a network of OMNeT++ (NED)", _CABLES),
    "omnet-ini": ("a configuration of OMNeT++", "write network and traffic as a scenario (docs/reference/scenario.md)"),
    "astra-network": (
        "a network of ASTRA-sim",
        "write its dimensions as cluster.topology and cluster.node (docs/models/fabrics.md); rings and tori need "
        "their cables",
    ),
    "astra-system": (
        "a system layer of ASTRA-sim",
        "write its collectives as `collective` of a job (docs/models/collectives.md)",
    ),
    "astra-workload": (
        "a workload of ASTRA-sim 1.0 or SimAI",
        "write its layers as a CSV file layer,forward_us,backward_us,parameter_bytes (docs/reference/formats.md)",
    ),
    "basic-topology": ("a topology of basic-sim", _CABLES),
    "basic-flows": ("a flow schedule of basic-sim", _FLOWS),
    "basic-config": ("a configuration of basic-sim", "write it as a scenario (docs/reference/scenario.md)"),
    "nccl-tests-json": ("the results of nccl-tests as JSON", _TIMINGS),
    "rccl-tests-json": ("the results of rccl-tests as JSON", _TIMINGS),
    "osu": ("the output of the OSU micro-benchmarks", _TIMINGS),
    "perftest": ("the output of perftest", _TIMINGS),
    "chakra-json": (
        "a Chakra trace as JSON",
        "give the .et file that it was made from: gradtide convert NAME.et describes its content",
    ),
    "chrome-trace": (
        "a Chrome trace",
        "gradtide report {file} reads it if a profiler of PyTorch wrote it (docs/traces.md)",
    ),
    "perfetto": ("a trace of Perfetto", _RECORD),
    "sqlite": ("a database of SQLite", "gradtide report {file} reads it if it is an export of Nsight Systems"),
    "nsys": (
        "a report of Nsight Systems",
        "nsys export --type sqlite {file} writes the file that gradtide report reads",
    ),
    "safetensors": ("the weights of a model (safetensors)", _WEIGHTS),
    "weight-index": ("an index of weights of Hugging Face", _WEIGHTS),
    "tokenizer": ("a tokenizer of Hugging Face", _WEIGHTS),
    "onnx": ("a model in ONNX", _WEIGHTS),
    "torch": ("a file of torch.save", _WEIGHTS),
    "pickle": ("a pickle of Python", _WEIGHTS),
    "zip": ("a zip archive", _MEMBERS),
    "tar": ("a tar archive", _MEMBERS),
    "gzip": ("a gzip file", "unpack it first"),
    "xz": ("an xz file", "unpack it by unxz first"),
    "zstd": ("a zstd file", "unpack it by unzstd first"),
    "bzip2": ("a bzip2 file", "unpack it by bunzip2 first"),
    "pcap": ("captured packets", _FLOWS),
    "parquet": ("a Parquet file", "write it as CSV"),
    "spreadsheet": ("a spreadsheet", "save it as CSV"),
    "pdf": ("a PDF", "give the file that its figures are from"),
    "picture": ("a picture", "give the file that its figures are from"),
    "program": ("a compiled program", "is it the right file?"),
    "html": ("a web page", "download the file itself, as by the button Raw"),
    "lfs": ("a pointer of Git LFS, not the file", "fetch the file by git lfs pull"),
    "ns2": ("a script of ns-2 in Tcl", "write network and traffic as a scenario (docs/reference/scenario.md)"),
    "python": ("a program in Python", "gradtide profile {file}:FACTORY makes a model of a module of PyTorch"),
    "xml": ("XML", "gradtide reads no XML"),
    "yaml": ("YAML", "gradtide reads TOML: write `key = value`, and [cluster] for a table"),
    "ini": ("an INI or properties file", "gradtide reads TOML: write texts and quantities in quotes"),
    "result": ("a result that gradtide wrote", "gradtide report DIR shows the folder that it is in"),
    "log": ("a log of NCCL", "gradtide calibrate reads the table of nccl-tests"),
}
"""Formats that gradtide does not read, each with a description and the alternative."""

_BINARY = (
    ("sqlite", rb"SQLite format 3\0"),
    ("torch", rb"PK\x03\x04.{26,200}?(data\.pkl|/version|archive/(data|constants|\.))"),
    ("spreadsheet", rb"PK\x03\x04.{26,200}?(\[Content_Types\]|xl/|mimetypeapplication/vnd)"),
    ("zip", rb"PK\x03\x04"),
    ("gzip", rb"\x1f\x8b"),
    ("xz", rb"\xfd7zXZ\0"),
    ("zstd", rb"\x28\xb5\x2f\xfd"),
    ("bzip2", rb"BZh[1-9](\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)"),
    ("parquet", rb"PAR1"),
    ("pdf", rb"%PDF-"),
    ("picture", rb"\x89PNG|\xff\xd8\xff|GIF8"),
    ("program", rb"\x7fELF|MZ\x90|\xcf\xfa\xed\xfe"),
    ("pcap", rb"\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\x0a\x0d\x0d\x0a|\x4d\x3c\xb2\xa1"),
    ("pickle", rb"\x80[\x02-\x05][\x00-\xff]"),
    ("tar", rb".{257}ustar"),
    ("safetensors", rb".{6}\0\0\{\""),
    ("nsys", rb".{0,64}(NVIDIA|nsys|QdstrmFile)"),
    ("onnx", rb"\x08[\x01-\x20]\x12.{1,64}(pytorch|onnx|tf2onnx|keras)"),
    (
        "chakra",
        rb"[\x00-\xff]{0,60}chakra|[\x00-\xff]{0,3}\x0a[\x00-\x40]0\.0\.4|[\x01-\x40]\x0a[\x01-\x40][0-9.]{3,12}[\x00-\x1f-]",
    ),
    ("perfetto", rb"\x0a[\x00-\xff]{1,3}[\x08\x1a\x22\x32\x3a\x40\x42\x50]"),
)
"""Patterns of the beginning of binary files."""

_JSON = (
    ("result", r'"schema"\s*:\s*"gradtide\.(?!(model|plan|trace)/)'),
    ("model", r'"schema"\s*:\s*"gradtide\.model/'),
    ("plan", r'"schema"\s*:\s*"gradtide\.plan/'),
    ("dag", r'"schema"\s*:\s*"gradtide\.trace/|"ops"\s*:\s*\['),
    ("kineto", r'"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"\s*:'),
    (
        "pytorch-et",
        r'"schema"\s*:\s*"\d[\d.]*(-chakra[\d.]*)?".*"nodes"\s*:\s*\[|"nodes"\s*:\s*\[.*"(rf_id|ctrl_deps|op_schema)"',
    ),
    # Either the output of chakra_jsonizer for an .et file, or the JSON that Chakra's feeder reads.
    (
        "chakra-json",
        r'"workload_graph"\s*:\s*\[|"(ctrlDeps|dataDeps|durationMicros)"\s*:'
        r'|"type"\s*:\s*"(COMP|COMM_\w+|MEM_LOAD|MEM_STORE|METADATA)_NODE"',
    ),
    ("nccl-tests-json", r'"(out_of_place|bus_bw|alg_bw)"\s*:'),
    ("rccl-tests-json", r'"(busBw|algBw)"\s*:'),
    ("weight-index", r'"weight_map"\s*:'),
    ("tokenizer", r'"(added_tokens|tokenizer_class|added_tokens_decoder)"\s*:'),
    ("config", r'"model_type"\s*:'),
    ("node-link", r'"(directed|multigraph)"\s*:.*"nodes"\s*:|"nodes"\s*:.*"(links|edges)"\s*:'),
    ("astra-system", r'"(scheduling-policy|all-reduce-implementation|active-chunks-per-dimension)"\s*:'),
    ("astra-network", r'"(logical-dims|dimensions-count|topologies-per-dim)"\s*:'),
    ("order", r'\A\s*\{\s*"priority"\s*:\s*\{'),
    ("scenario", r'\A\s*\{\s*"(job|cluster|traffic|run)"\s*:\s*\{'),
    # PyTorch's profiler writes an object. Other tools write a list of its events, which has the same categories.
    ("kineto", r'\A\s*\[.*"cat"\s*:\s*"(cpu_op|user_annotation|Operator|[Kk]ernel|Ascend Hardware)"'),
    ("chrome-trace", r'\A\s*\[?\s*\{([^{}]|\{[^{}]*\})*"ph"\s*:\s*"'),
)
"""Keys that identify kinds of JSON documents."""

_XML = {
    "graphml": "graphml",
    "gexf": "gexf",
    "platform": "simgrid",
    "system": "nccl-topology",
    "graphs": "nccl-graph",
    "topology": "hwloc",
    "html": "html",
}
"""XML formats by their root element."""

_COMMENTS = r"\A(?:[ \t]*#[^\n]*\n|[ \t]*\n)*"
"""Comments and blank lines, which may precede the header of a table."""

_TEXT = (
    ("ned", r"(?m)^\s*(package\s+[\w.]+\s*;|import\s+[\w.*]+\s*;|(network|module|simple|channel)\s+\w+[^\n{;]*\{)"),
    ("python", r"(?m)\A\s*(#!.*python.*\n|\"\"\"|from \w[\w.]* import |import \w|def \w+\(|class \w+)"),
    ("pdf", r"%PDF-"),
    ("nsys", r"NVIDIA Tegra Profiler Report"),
    ("lfs", r"version https://git-lfs\."),
    ("study", r"(?m)^\s*\[sweep[\].]"),
    ("prices", r"(?m)^\s*\[\[(switch|cable|nic)\]\]"),
    ("scenario", r"(?m)^\s*\[(job|cluster|traffic|run)[\].]|\A\s*(job|cluster|traffic|run)\.\w+"),
    (
        "htsim-topo",
        r"(?m)\ANodes[ \t]+\d+\s+(Tiers|Podsize)\b|^(Tiers|Podsize|Tier)[ \t]+\d+\s*$|^Downlink_speed_Gbps\b",
    ),
    ("htsim-cm", r"(?m)\A\s*(#.*\n\s*)*(Nodes|Connections|Triggers|Failures)[ \t]+\d+\s*$|\A\s*\d+->\d+[ \t]"),
    ("op-times", rf"{_COMMENTS}[ \t]*op[ \t]*,[^\n]*(forward_us|backward_us)"),
    ("layers", rf"{_COMMENTS}[^\n#]*\b(forward_us|backward_us|parameter_bytes)\b"),
    ("flows", rf"{_COMMENTS}[^\n#]*\bstart_ns\b"),
    ("cdf", rf"(?i){_COMMENTS}[ \t]*bytes[ \t]*,[ \t]*cdf[ \t]*(\n|\Z)"),
    ("links", rf"{_COMMENTS}[ \t]*a[ \t]*,[ \t]*b[ \t]*(,[^\n]*)?(\n|\Z)"),
    ("timings", rf"{_COMMENTS}(?=[^\n#]*\bbytes\b)[^\n#]*,[^\n#]*\btime_us\b|{_COMMENTS}time_us,[^\n]*\bbytes\b"),
    (
        "nccl-tests",
        r"(?m)^.{0,80}#\s+size\s.*\balgbw\b|# Collective test starting|^.{0,80}#\s+Rank\s+\d+\s+(Group|Pid)",
    ),
    ("osu", r"(?m)^# OSU "),
    ("perftest", r"(?m)^\s*#bytes\s+#iterations\s"),
    ("log", r"(?m)^\S+:\d+:\d+ \[\d+\] NCCL INFO"),
    ("astra-workload", r"\A\s*(DATA|MODEL|HYBRID_\w+|TRANSFORMER\w*|DLRM\w*|MICRO)\b[^\n,]*\n\s*\d+\s*(\n|\Z)"),
    (
        "astra-network",
        r"(?m)^\s*topology\s*:\s*\[[^\]]*\](.|\n)*^\s*npus_count\s*:|^\s*npus_count\s*:(.|\n)*^\s*topology\s*:",
    ),
    ("basic-topology", r"(?m)^(num_nodes|undirected_edges|switches_which_are_tors|num_undirected_edges)\s*="),
    ("basic-config", r"(?m)^simulation_(end_time_ns|seed)\s*="),
    ("basic-flows", r"\A\s*\d+,\d+,\d+,\d+,\d+,[^,\n]*,[^,\n]*(\n|\Z)"),
    ("omnet-ini", r"(?m)^\s*\[(General|Config \w+)\]\s*$"),
    ("gml", r"(?m)\A\s*(Creator[^\n]*\n\s*)?graph\s*\["),
    ("dot", r"(?m)\A\s*(strict\s+)?(di)?graph\b[^\n\[]*\{"),
    ("ns2", r"(?m)^\s*(set ns \[new Simulator\]|\$ns (duplex|simplex)-link)"),
    ("yaml", r"(?m)\A\s*(---\s*$|(#[^\n]*\n\s*)*[A-Za-z_][\w.-]*:(\s|$))"),
    ("ini", r"(?m)\A(\s*[#;!][^\n]*\n|\s*\n)*\s*[A-Za-z_][\w.-]*\s*=\s*[A-Za-z(][^\"'\n]*$"),
)
"""Patterns of the beginnings of texts by format; the first match counts."""


def seen(head: bytes | str) -> Seen | None:
    """Return the format of a file by its beginning; `None` if it is unknown.

    Args:
        head: the first `HEAD_BYTES` of the file, or all of it.

    Example:
        >>> seen('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">').what
        'a GraphML graph'
    """
    head = head[:HEAD_BYTES]
    if isinstance(head, bytes):
        name = (
            _first(_BINARY, lambda pattern: re.match(pattern, head, re.DOTALL) is not None) if _is_binary(head) else ""
        )
        head = head.decode("utf-8-sig", errors="replace")
    else:
        name = ""
    is_sure = True
    if not name:
        text = head.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        name = _of_text(text)
        # Columns named a and b alone do not identify a list of cables. The format `result` counts as not sure, so that
        # the readers of gradtide's own documents report schema errors in more detail.
        is_cables = re.search(r"\b(rate|delay|h\d+)\b", text) is not None
        is_sure = name != "result" and (name != "links" or is_cables)
        if not name:
            name, is_sure = _by_shape(text)
    if not name:
        return None
    what, use = _OURS.get(name) or _FOREIGN[name]
    if name == "xml":
        what = f"XML with the root element <{_root(head)}>"
    return Seen(name, what, use, is_sure)


@contextmanager
def expecting(text: "str | bytes", file: str, what: str, *names: str) -> Iterator[None]:
    """Replace an error in the `with` block by one that names the file's format, if the reader does not accept it.

    Args:
        text: the file, or its beginning.
        file: the file as the user named it.
        what: what was expected, as in "a list of cables".
        names: formats (`Seen.name`) that the reader accepts; its errors for files of these formats are kept.

    Raises:
        ScenarioError: GT007 in place of the reader's own faults.
    """
    try:
        yield
    except ScenarioError as error:
        fault = other_format(text, file, what, *names)
        if fault is None:
            raise
        raise ScenarioError([fault]) from error


def other_format(head: bytes | str, file: str, what: str, *names: str) -> Fault | None:
    """Return the fault of a file in a format that is not in `names`; `None` if the format is in `names` or not sure."""
    found = seen(head)
    if found is None or found.name in names or not found.is_sure:
        return None
    text = head.decode("utf-8-sig", errors="replace") if isinstance(head, bytes) else head
    number, line = next(((n, one) for n, one in enumerate(text[:HEAD_BYTES].split("\n"), 1) if one.strip()), (1, ""))
    hint = found.use.format(file=file)
    if not line.isprintable():
        return Fault("GT007", "", f"{file} is {found.what}, not {what}", None, hint, file)
    return Fault("GT007", "", f"{file} is {found.what}, not {what}", None, hint, file, number, line, 0, len(line))


def described(head: bytes | str, file: str) -> str:
    """Return the format of a file and its use as a clause; empty if it is unknown."""
    found = seen(head)
    return "" if found is None else f"{found.what}; {found.use.format(file=file)}"


def _first(rows: tuple[tuple[str, "bytes | str"], ...], matches: Callable[..., bool]) -> str:
    return next((name for name, pattern in rows if matches(pattern)), "")


def _is_binary(head: bytes) -> bool:
    if b"\0" in head or head[:2] == b"PK":
        return True
    try:
        head[:-4].decode("utf-8")  # the last character may be cut off
    except UnicodeDecodeError:
        return True
    return any(byte < 9 or 13 < byte < 27 for byte in head[:200])


def _of_text(text: str) -> str:
    bare = text.lstrip()
    if bare[:1] == "<":
        root = _root(bare)
        return "html" if re.match(r"(?i)<!doctype html", bare) else _XML.get(root, "xml") if root else ""
    if bare[:1] in ("{", "["):
        name = _first(_JSON, lambda pattern: re.search(pattern, text, re.DOTALL) is not None)
        if name:
            return name
    return _first(_TEXT, lambda pattern: re.search(pattern, text) is not None)


def _root(text: str) -> str:
    match = re.search(r"<(?![?!])(?:\w+:)?(\w[\w.-]*)[\s/>]", text)
    return match[1].lower() if match else ""


def _by_shape(text: str) -> tuple[str, bool]:
    """Return the format of a text of numbers, according to its columns, and whether the format is certain."""
    lines = [line for line in text.split("\n")[:200] if line.strip() and not line.startswith("#")]
    rows = [[cell for cell in re.split(r"[\s,;:]+", line) if cell] for line in lines[:4]]
    if not rows or not all(re.fullmatch(r"[\d.eE+-]+", cell) for cell in rows[0][:3]):
        return "", False
    widths = [len(row) for row in rows]
    if widths[0] == 6 and rows[0][5].isalnum() and not rows[0][5].isdigit() and 5 in widths[1:]:
        return "simai", True
    if widths[:2] == [1, 6] or (widths == [1] and rows[0][0].isdigit()):
        return "hpcc-flow", widths != [1]
    if widths[:1] == [3] and (5 in widths[1:3] or widths[1:2] != [3]) and all(cell.isdigit() for cell in rows[0]):
        return "hpcc-topology", 5 in widths
    if widths[:1] == [3]:
        return "cdf-ns2", False
    if widths[:1] == [2]:
        last = re.split(r"[\s,;:]+", lines[-1].strip())[-1]
        return "cdf" if re.fullmatch(r"0*1(\.0*)?|0*\.\d+", last) else "cdf-percent", False
    return "", False
