"""Validates types and units of all keys of a scenario file, and converts pydantic's errors into faults.

`resolve` checks keys against one another.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gradtide import units
from gradtide.errors import MAX_FAULTS, Fault, ScenarioError, hinted, nearest
from gradtide.known import lacking
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.keys.job import Adaptive, GraphModel, InlineModel, JobTable, ThesisModel
from gradtide.scenario.keys.table import Table
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.source import MAX_DEPTH, Faults, Loc, Source
from gradtide.scenario.write import toml_value

_TAGS: dict[str, type[Table]] = {
    "<table>": InlineModel,
    "<thesis>": ThesisModel,
    "<graph>": GraphModel,
    "<adaptive>": Adaptive,
}
_VOCABULARIES: dict[tuple[str | int, ...], str] = {
    ("transport", "kind"): "transport",
    ("queue", "kind"): "queue",
    ("transport", "recovery"): "recovery",
    ("cluster", "routing"): "routing",
    ("topology", "kind"): "topology",
    ("collective", "kind"): "collective",
    ("schedule", "order"): "order",
    ("compute", "precision"): "precision",
    ("parallel", "pipeline"): "parallel",
    ("parallel", "context"): "parallel",
    ("run", "engine"): "engine",
}
"""Group of `known.LACKING` in which an unsupported value of a key is looked up. A key is given by the last two parts of
its path. Values of other keys are looked up in all groups."""
_UNITS = ("gbps", "mbps", "tbps", "bps", "ps", "ns", "us", "ms", "s", "b", "kb", "mb", "gb", "bytes", "packets", "pkt")
"""Units that other programs append to keys, as in `rate_gbps`. In a scenario, the unit is part of the value."""
_ALL_TAGS = {*_TAGS, "<configuration>", "<name>", "<word>", "<band>", "<bands>", "<hosts>", "<cables>", "<file>"}


def plain(data: Any, source: Source, loc: Loc = ()) -> Any:
    """Copy a tree into dicts and lists; raise a `ScenarioError` for non-text keys, huge numbers or deep nesting."""
    if len(loc) > MAX_DEPTH:
        raise ScenarioError([source.fault("GT011", loc[:4], "nested too deeply", "flatten it")])
    if isinstance(data, Mapping):
        result = {}
        for key, value in data.items():
            if not isinstance(key, str):
                msg = f"a key must be a text, found {units.describe(key)}"
                raise ScenarioError([source.fault("GT011", loc, msg, "write it in quotes")])
            result[key] = plain(value, source, (*loc, key))
        return result
    if isinstance(data, (list, tuple)):
        return [plain(value, source, (*loc, index)) for index, value in enumerate(data)]
    if data is None or isinstance(data, (bool, float)):
        return data
    if isinstance(data, str):
        return str(data)
    index_of = getattr(type(data), "__index__", None)
    if index_of is not None:
        number = int(index_of(data))
        if abs(number) > units.U64_MAX:
            raise ScenarioError([source.fault("GT014", loc, "the number is too large", "write a number below 2^64")])
        return number
    return data


def read_keys(raw: dict[str, Any], source: Source) -> tuple[ScenarioFile, Faults, set[Loc]]:
    """Return the validated keys, with defaults for refused values; the faults; and the paths of refused values."""
    try:
        return ScenarioFile.model_validate(raw), Faults(), set()
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults = Faults()
    for detail in details[:MAX_FAULTS]:
        faults.append(_fault(detail, source))
    bad: set[Loc] = set()
    rest = raw
    for attempt in range(4):
        cuts = {_cut(_loc(detail), missing=detail["type"] == "missing" or attempt > 0) for detail in details} - bad
        bad |= cuts
        rest = _without(rest, cuts)
        try:
            return ScenarioFile.model_validate(rest), faults, bad
        except ValidationError as error:
            details = error.errors(include_url=False)
    for name in raw:
        bad.add((name,))
    return ScenarioFile(), faults, bad


def _loc(detail: ErrorDetails) -> Loc:
    """Return the path of an error in the file, which is pydantic's path without the tags of unions."""
    loc = detail["loc"]
    last = len(loc) - 1
    unknown = detail["type"] == "extra_forbidden"
    return tuple(p for i, p in enumerate(loc) if p not in _ALL_TAGS or (unknown and i == last))


def _cut(loc: Loc, *, missing: bool) -> Loc:
    """Return the subtree to delete for a fault at `loc`: a list that contains `loc`, or the table of a missing key."""
    numbers = [i for i, part in enumerate(loc) if isinstance(part, int)]
    if numbers:
        loc = loc[: numbers[0]]
        return loc[:-1] if loc[-1:] == ("layers",) else loc
    return loc[:-1] if missing and len(loc) > 1 else loc


def _without(tree: dict[str, Any], cuts: set[Loc]) -> dict[str, Any]:
    below: dict[str, set[Loc]] = {}
    for loc in cuts:
        if not loc:
            return {}
        below.setdefault(str(loc[0]), set()).add(loc[1:])
    copy = {}
    for key, value in tree.items():
        inner = below.get(key)
        if inner is None:
            copy[key] = value
        elif isinstance(value, dict) and () not in inner:
            copy[key] = _without(value, inner)
    return copy


def _fault(detail: ErrorDetails, source: Source) -> Fault:
    kind, value, loc = detail["type"], detail["input"], _loc(detail)
    ctx = detail.get("ctx", {})
    named = detail["loc"]
    while named and (isinstance(named[-1], int) or named[-1] in ("<bands>", "<hosts>", "<cables>", "<file>", "<word>")):
        named = named[:-1]
    key = str(named[-1]) if named else ""
    table = _table_of(named[:-1])
    info = table.declared().get(key) if table else None
    if kind.startswith("GT"):
        return source.fault(kind, loc, ctx["msg"], ctx["hint"], value)
    if kind == "extra_forbidden":
        return source.fault("GT012", loc, f"unknown field `{key}`", _near_key(key, table), value, at_key=True)
    if kind == "missing":
        return source.fault("GT010", loc, f"`{key}` is missing", example(key, info), None)
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(ctx.get("expected", "")))
        listed = ", ".join(allowed)
        if not isinstance(value, str):
            msg = f"expected a text, found {units.describe(value)}"
            return source.fault("GT011", loc, msg, f"one of {listed}", value)
        hint = hinted(
            value,
            allowed,
            f"one of {listed}",
            '"{}"',
            kind=_VOCABULARIES.get((str(named[-2]) if len(named) > 1 else "", key), ""),
        )
        return source.fault("GT013", loc, f"unknown value {units.describe(value)[9:]}", hint, value)
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {ctx['ge']}" if "ge" in ctx else f"at most {ctx['le']}"
        return source.fault("GT014", loc, f"{value} is out of range", f"`{key}` is {bound}", value)
    expected = {
        "int_type": "a whole number",
        "bool_type": "true or false",
        "string_type": "a text",
        "list_type": "a list",
        "union_tag_not_found": {
            "priority": "a text, a number or a table",
            "placement": "a text or a list",
            "links": "a list or the name of a file",
        }.get(key, "a text or a table"),
    }.get(kind, "a table")
    msg = f"expected {expected}, found {units.describe(value)}"
    tables: dict[Loc, type[Table]] = {("job",): JobTable, ("traffic",): TrafficTable}
    inner = tables.get(named[:-1])
    if inner is not None and key in inner.declared():
        # The user wrote a key, as in [job] model = …, where the name of a job or tenant is expected.
        key, info = str(named[0]), ScenarioFile.declared()[str(named[0])]
    return source.fault("GT011", loc, msg, example(key, info), value)


def example(key: str, info: FieldInfo | None) -> str:
    """Return a hint with the first example of a key."""
    if info is None or not info.examples:
        return "write it as gradtide schema says"
    if key in ("job", "traffic"):
        return f"write a table with a name, as in [{key}.{next(iter(info.examples[0]))}]"
    return f"write {key} = {toml_value(info.examples[0])}"


def _table_of(loc: Loc) -> type[Table] | None:
    """Return the class of the table at one of pydantic's paths, which contain the tags of unions."""
    table: type[Table] | None = ScenarioFile
    skip = 0
    for index, part in enumerate(loc):
        if skip:
            skip -= 1
        elif isinstance(part, int) or part in ("<cables>", "<file>"):
            continue
        elif index > 0 and part in _TAGS and loc[index - 1] in ("model", "priority"):
            table = _TAGS[part]
        elif table is not None:
            info = table.declared().get(str(part))
            table = _inner(info.annotation) if info else None
            skip = 1 if table in (JobTable, TrafficTable) else 0
    if skip:
        return None
    return table


def _inner(annotation: Any) -> type[Table] | None:
    arguments = typing.get_args(annotation)
    # `arguments` is checked first, because `isinstance(list[str], type)` is true in Python 3.10.
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return typing.cast("type[Table]", annotation)
    for argument in arguments:
        found = _inner(argument)
        if found is not None:
            return found
    return None


def _near_key(key: str, table: type[Table] | None) -> str:
    if table is None:
        return "delete it"
    known = list(table.declared())
    whole, _, unit = key.lower().rpartition("_")
    near = nearest(key, known) or (whole if whole in known and (unit in _UNITS or nearest(unit, _UNITS)) else None)
    homes = [path for path, name in _homes() if name == key.lower()]
    said = None if homes else lacking("", key)
    if near and not said:
        return _offer(near, table)
    if homes:
        return f"it belongs to {' or '.join(homes[:2])}"
    return said or "known fields are " + ", ".join(known)


def _offer(key: str, table: type[Table]) -> str:
    examples = table.declared()[key].examples or [None]
    shown = "" if examples[0] is None or isinstance(examples[0], list) else f"{key} = {toml_value(examples[0])}"
    has_unit = isinstance(examples[0], str) and re.match(r"[\d.]+[^\d./]", examples[0])
    if not shown or len(shown) > 60:
        return f"did you mean `{key}`?"
    return f"did you mean `{key}`, {'with a unit, ' if has_unit else ''}as in {shown}?"


def _homes() -> Iterator[tuple[str, str]]:
    def walk(table: type[Table], path: str) -> Iterator[tuple[str, str]]:
        for name, info in table.declared().items():
            if path:
                yield path, name
            inner = _inner(info.annotation)
            below = f"{path}.{name}" if path else name
            if inner is not None and name not in ("model", "priority", "layers", "links", "cdf", "flows"):
                yield from walk(inner, below + (".NAME" if inner in (JobTable, TrafficTable) else ""))

    return walk(ScenarioFile, "")


def nearest_path(path: str) -> str | None:
    """Return the known dotted path that ends in `path` or is similar; names of jobs and tenants are `NAME`."""
    known = [f"{home}.{name}" for home, name in _homes()]
    return next((one for one in known if path and one.endswith(f".{path}") and "." in path), nearest(path, known))
