"""Writes docs/reference/scenario.md from the keys of a scenario, and docs/reference/errors.md from the table of faults.

Run from anywhere: python tools/reference_scenario.py
"""

# ruff: noqa: E501 (prose of the pages)

import re
import sys
from collections.abc import Iterator, Set
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from gradtide.codes import CODES  # noqa: E402
from gradtide.scenario import json_schema, support  # noqa: E402
from gradtide.scenario.keys import short_names  # noqa: E402
from gradtide.scenario.write import toml_value  # noqa: E402

_NOTE = "<!-- Made by tools/reference_scenario.py from the code. Edit that. -->\n"
_EXAMPLE = """\
[job.train]
model = "resnet50"
workers = 8
schedule = { order = "priority", fusion = "25MiB", barrier = false }

[cluster]
link = { rate = "10Gbps", delay = "10us" }
"""
_PATHS = {
    "JobTable": "job.NAME",
    "InlineModel": "job.NAME.model, layer by layer",
    "InlineLayer": "job.NAME.model.layers",
    "ThesisModel": "job.NAME.model, synthetic",
    "GraphModel": "job.NAME.model, op by op",
    "StepModel": "job.NAME.model, a recorded step",
    "Parallel": "job.NAME.parallel",
    "Compute": "job.NAME.compute",
    "OpTimes": "job.NAME.compute.times",
    "OpTime": "job.NAME.compute.times.rows",
    "Straggler": "job.NAME.compute.straggler",
    "Collective": "job.NAME.collective",
    "Ps": "job.NAME.collective.ps",
    "Bounded": "job.NAME.collective.ps.sync",
    "Schedule": "job.NAME.schedule",
    "Adaptive": "job.NAME.priority",
    "AdaptiveTable": "job.NAME.priority.adaptive",
    "Cluster": "cluster",
    "Topology": "cluster.topology",
    "FabricLink": "cluster.topology.fabric_link",
    "CustomLink": "cluster.topology.links",
    "Link": "cluster.link",
    "Node": "cluster.node",
    "ScaleUp": "cluster.node.scale_up",
    "Host": "cluster.host",
    "Stages": "cluster.host.stages",
    "Queue": "cluster.queue",
    "SwitchBuffer": "cluster.switch_buffer",
    "Transport": "cluster.transport",
    "TrafficTable": "traffic.NAME",
    "CdfPoint": "traffic.NAME.cdf",
    "Arrivals": "traffic.NAME.arrivals",
    "Burst": "traffic.NAME.burst",
    "ListedFlow": "traffic.NAME.flows",
    "Incast": "traffic.NAME.incast",
    "Bursts": "traffic.NAME.bursts",
    "Run": "run",
    "Probe": "run.probe",
}


_TABLES = {path: table for table, path in _PATHS.items()}


def pages() -> dict[str, str]:
    return {"scenario.md": scenario_page(), "errors.md": errors_page(), "engines.md": engines_page()}


def scenario_page() -> str:
    schema = json_schema()
    tables = schema["$defs"]
    assert set(tables) == set(_PATHS), set(tables) ^ set(_PATHS)
    lines = [
        "# Scenario files\n",
        _NOTE,
        "A scenario is a TOML file; JSON and a Python dict have the same keys. A quantity is a text with its unit: B is "
        "byte, b is bit; k, M, G, T are powers of ten, Ki, Mi, Gi, Ti of two. Times are rounded half up to a "
        "picosecond; sizes must be whole bytes, and rates whole bits per second. Unknown keys and features that are "
        "not built yet ([GT090](errors.md#gt090)) are errors. Paths are relative to the scenario file.\n",
        "The shortest useful file:\n",
        f"```toml\n{_EXAMPLE}```\n",
        "A layer table (CSV) has the header `layer,forward_us,backward_us,parameter_bytes[,update_us]`, times in decimal "
        "microseconds. A model file (JSON) is "
        '`{"schema": "gradtide.model/1", "name": …, "layers": [{"name", "parameter_bytes", …}]}`. Every layer has either '
        "times (`forward_us`, `backward_us`, optional `update_us`) or counts (`forward_flops`, `activation_bytes`, "
        "optional `winograd`). `gradtide profile` makes one of [a PyTorch module](../own-model.md).\n",
    ]
    for name, path in _PATHS.items():
        table = tables[name]
        lines += [f"## {path}\n", _linked(table["description"]) + "\n"]
        needed = table.get("required", [])
        bare = []
        for key, field in table["properties"].items():
            text, words = _with_words(_description(field, tables), field)
            if text or key in needed:
                default = "" if "Default:" in text else _default(field, key in needed)
                about = "; ".join(filter(None, (_type(field, words), default)))
                lines.append(f"- **`{key}`**" + (f" ({about})" if about else "") + (f": {text}" if text else ""))
            else:
                bare.append(_type(field).replace("[table]", f"[**`{key}`**]"))
        lines += [f"- Tables: {', '.join(bare)}", ""] if bare else [""]
    lines += [
        "## Short names\n",
        "`Scenario.replace` takes keys of these tables by short names, as in "
        '`scenario.replace(link_rate="1Gbps", barrier=False)`. A key of a job changes in every job.\n',
        "| table | keys with a short name |",
        "|---|---|",
        *_short_names(),
        "",
    ]
    return "\n".join(lines)


def _short_names() -> Iterator[str]:
    """Yield one row per table: which of its keys have a short name, and how the name differs from the key."""
    for path, entries in groupby(short_names().items(), key=lambda entry: entry[1][:-1]):
        shorts = {loc[-1]: short for short, loc in entries}
        table = ".".join(map(str, path)).replace("*", "NAME")
        keys = json_schema()["$defs"][_TABLES[table]]["properties"] if table else list(shorts)
        prefixes = {short.removesuffix(str(key)) for key, short in shorts.items()}
        others = [f"`{key}`" for key in keys if key not in shorts]
        text = "all keys" if table and len(others) < len(shorts) else ", ".join(f"`{key}`" for key in shorts)
        if others and text == "all keys":
            text += f" but {' and '.join(others)}"
        if len(prefixes) == 1 and (prefix := prefixes.pop()):
            text += f", with `{prefix}` in front"
        else:
            text += "".join(f"; `{key}` is `{short}`" for key, short in shorts.items() if short != key)
        yield f"| {f'`{table}`' if table else 'the scenario itself'} | {text} |"


def engines_page() -> str:
    lines = [
        "# What each engine models\n",
        _NOTE,
        "Before a run, gradtide refuses features that are not built yet for its engine ([GT090](errors.md#gt090)), and keys "
        "that have no meaning for it ([GT015](errors.md#gt015)).\n",
        "| feature | key | fluid | packet |",
        "|---|---|---|---|",
        *(
            f"| {row.name} | `{row.key}` | " + " | ".join(row.on(engine).value for engine in support.ENGINES) + " |"
            for row in support.FEATURES.values()
            if not _is_on_all(row)
        ),
        "",
        f"Both engines model: {'; '.join(row.name for row in support.FEATURES.values() if _is_on_all(row))}.\n",
        "No engine models these pairs yet:\n",
        "| feature | not built yet | available |",
        "|---|---|---|",
        *(f"| {pair.name} | {pair.beside} | {pair.instead} |" for pair in support.COMBINATIONS.values()),
        "",
    ]
    return "\n".join(lines)


def _is_on_all(row: support.Feature) -> bool:
    return all(row.on(engine).value == "yes" for engine in support.ENGINES)


_CLEAR = (
    "GT001 GT002 GT003 GT004 GT005 GT006 GT007 GT010 GT011 GT012 GT013 GT014 GT016 GT017 GT021 GT022 GT023 GT024 "
    "GT025 GT026 GT030 GT031 GT032 GT033 GT034 GT035 GT036 GT037 GT038 GT039 GT041 GT042 GT044 GT045 GT046 GT047 "
    "GT048 GT049 GT050 GT051 GT052 GT053 GT054 GT055 GT056 GT057 GT060 GT061 GT062 GT063 GT064 GT065 GT066 GT070 "
    "GT071 GT072 GT073 GT074 GT080 GT081 GT082 GT090 GT091 GT100 GT101 GT102 GT103 GT104 GT105 GT106 GT107 GT108"
)
"""Codes whose reason, the first sentence of their text, follows from their title or is on another page.

`gradtide explain` prints it, too.
"""


def errors_page() -> str:
    lines = [
        "# Errors\n",
        _NOTE,
        "Every fault of an input has a code that never changes its meaning. `gradtide explain CODE` prints its causes, the "
        "remedy, and a wrong and a fixed example. In Python, `ScenarioError.errors` lists all faults of a file, as [`--json`](interface.md#errors-as-json) does.\n",
    ]
    for code, entry in CODES.items():
        reason = "" if code in _CLEAR else f" {_first_sentence(entry.text)}"
        lines += [f"## {code}\n", f"**{entry.title[0].upper()}{entry.title[1:]}.**{reason}\n"]
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s+", text, maxsplit=1)[0]


_EXPLAINED = re.compile(r"(?:^|(?<=[.] ))([\w+-]+(?:(?:, | and )[\w+-]+)*)(?=: )")
"""Words of a fixed list at the start of a sentence that explains them, as in "tic, tac: the orders of TicTac"."""


def _with_words(text: str, field: dict[str, Any]) -> tuple[str, set[str]]:
    """Return a description with its explained words set as code, and these words if it explains the whole list."""
    words = {type.strip("`") for type in _types(field) if type.startswith("`")}
    explained: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        found = re.split(r", | and ", match[1])
        if not words.issuperset(found):
            return match[1]
        explained.update(found)
        return re.sub(r"[\w+-]+(?=, |$| and )", r"`\g<0>`", match[1])

    text = _EXPLAINED.sub(mark, text)
    return text, {f"`{word}`" for word in words} if explained == words else set()


def _type(field: dict[str, Any], hidden: Set[str] = frozenset()) -> str:
    """Return the types of a key as a phrase, as in "text, table or list of tables", without the words in `hidden`."""
    words = [word for word in _types(field) if word not in hidden]
    if hidden and words:
        words.insert(0, "word")
    variants = [word for word in words if word.startswith("[") and not word.startswith("[table]")]
    if variants:
        words = [word for word in words if word not in variants]
        words.insert(1, f"table ({', '.join(variants)})")
    if all(word.startswith("`") for word in words):
        return ", ".join(words)
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _types(field: dict[str, Any]) -> Iterator[str]:
    """Yield each type that a key can have, and each word of a fixed list."""
    kind = field.get("type")
    options = field.get("anyOf", field.get("oneOf"))
    if options:
        found: list[str] = []
        for option in options:
            parts = list(_types(option["items"])) if option.get("type") == "array" else []
            found += ["list of these"] if parts and set(parts) <= set(found) else _types(option)
        yield from dict.fromkeys(found)
    elif "$ref" in field:
        path = _PATHS[field["$ref"].rsplit("/", 1)[1]]
        _, _, variant = path.partition(", ")
        yield f"[{variant or 'table'}](#{_anchor(path)})"
    elif "enum" in field:
        yield from (f"`{value}`" for value in field["enum"])
    elif "const" in field:
        yield f"`{field['const']}`"
    elif kind == "array":
        items = _type(field["items"])
        yield "list of " + re.sub(r"^(\[?)(text|table|integer)\b", r"\1\2s", items)
    elif kind in ("integer", "number"):
        yield f"{kind} {_span(field)}".rstrip()
    elif isinstance(kind, list) or "pattern" in field or (kind == "object" and "title" in field):
        yield str(field["title"])
    elif kind != "null":
        yield {"string": "text", "boolean": "boolean", "object": "table"}[str(kind)]


def _span(field: dict[str, Any]) -> str:
    """Return the range of a number, as in "1–1,000,000", "in (0, 1]" or "from 1"."""
    low, high = field.get("minimum"), field.get("maximum")
    most = "2^63 - 1" if high == 2**63 - 1 else "" if high is None else f"{high:,}"
    if low is None:
        return f"in (0, {most}]" if "exclusiveMinimum" in field else ""
    return f"{low:,}–{most}" if most else f"from {low:,}"


def _description(field: dict[str, Any], tables: dict[str, Any]) -> str:
    """Return what a key means; of a table, only the default, if its own section begins with the same words."""
    text = _one_line(field["description"])
    refs = [option["$ref"] for option in (field, *field.get("anyOf", ())) if "$ref" in option]
    if len(refs) == 1:
        about = _one_line(tables[refs[0].rsplit("/", 1)[1]]["description"])
        first = re.split(r"(?= Default: )", text, maxsplit=1)
        if about.startswith(first[0]):
            text = "".join(first[1:]).strip()
    return _linked(text)


def _linked(text: str) -> str:
    """Return a text with a link for each page of docs that it names."""
    return re.sub(r"docs/([\w/-]+\.md(?:#[\w-]+)?)", r"[details](../\1)", text).replace("(../reference/", "(")


def _default(field: dict[str, Any], is_needed: bool) -> str:
    if is_needed:
        return "needed"
    default = field.get("default")
    return "" if default is None or default == {} else f"default `{toml_value(default)}`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _anchor(heading: str) -> str:
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    for file, text in pages().items():
        (ROOT / "docs" / "reference" / file).write_text(text, encoding="utf-8")
