"""Formats the values of a study's varied keys as table cells, as labels and for command lines.

A value can have any type that a scenario key can have. A table cell is a number, a string or a boolean; values of other
types are written as JSON. A label is a short text for people, such as `fsdp=32, tp=8`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradtide import units
from gradtide.scenario.write import toml_value

LABEL = 60
"""Largest number of characters of a label; longer labels, such as those of inline models, are truncated."""

UNITS = {"bps": (1e9, "Gbit/s"), "ps": (1e6, "us"), "B": (1e6, "MB"), None: (1.0, "")}
"""Divisor and display unit of a quantity, by its base unit (bits per second, picoseconds, bytes, or no unit)."""

_LARGEST = 2**63
_QUANTITIES: tuple[tuple[Callable[[object], int], str], ...] = (
    (units.parse_rate, "bps"),
    (units.parse_time, "ps"),
    (units.parse_bytes, "B"),
)


def quantity(value: Any) -> tuple[float, str | None] | None:
    """Return (number, unit), where a plain number has unit `None`, and a quantity bps, ps or B; else return `None`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value, None
    for parse, unit in _QUANTITIES:
        try:
            return parse(value), unit
        except units.UnitError:
            continue
    return None


def cell(value: Any) -> Any:
    """Return a value as a table cell.

    A number that tables or JSON cannot represent is written as text, because the row of its refused run still lists it.
    """
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return json.dumps(value, sort_keys=True, default=str)


def label(value: Any) -> str:
    """Return the label of a value: for a table, `fsdp=32, tp=8`, or only its kind or name if it has no other key.

    Example:
        >>> label({"ps": {"placement": "packed"}}), label({"kind": "ring"}), label(True), label([1, "2"])
        ('ps.placement=packed', 'ring', 'true', '[1, 2]')
    """
    text = _whole(value)
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"


def _whole(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        parts = dict(_flat(value, ""))
        if len(parts) == 1 and set(parts) <= {"kind", "name", "preset"}:
            return next(iter(parts.values()))
        # The label of an inline model is its name.
        return str(value["name"]) if "name" in value and "layers" in value else ", ".join(map("=".join, parts.items()))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_whole, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(table: Mapping[str, Any], home: str) -> "list[tuple[str, str]]":
    found = []
    for key, value in table.items():
        inner = isinstance(value, Mapping) and value
        found += _flat(value, f"{home}{key}.") if inner else [(f"{home}{key}", _whole(value))]
    return found


def sampled(value: Any) -> str:
    """Return the label of a sampled value: a rate in Gbit/s, a time in us, a size in MB, or a plain number.

    Example:
        >>> sampled("63116700000bps"), sampled(12)
        ('63.1167 Gbit/s', '12')
    """
    found = quantity(value)
    if found is None:
        return label(value)
    factor, unit = UNITS[found[1]]
    return f"{found[0] / factor:.6g} {unit}".rstrip()


def labels(values: Sequence[Any]) -> list[str]:
    """Return the labels of all values of a key; equal labels are distinguished by their number, as in `name (#2)`."""
    found = [label(value) for value in values]
    counts = Counter(found)
    return [f"{one} (#{at})" if counts[one] > 1 else one for at, one in enumerate(found, 1)]


def short(keys: Sequence[str]) -> dict[str, str]:
    """Map each dotted key to its shortest suffix that is unique among the keys.

    Example:
        >>> short(["job.a.workers", "job.b.workers", "cluster.link.rate"])
        {'job.a.workers': 'a.workers', 'job.b.workers': 'b.workers', 'cluster.link.rate': 'rate'}
    """
    found = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        found[key] = next(
            end for end in ends if end == key or not any(f".{one}".endswith(f".{end}") for one in keys if one != key)
        )
    return found


def argument(value: Any) -> str | None:
    """Return a value in the syntax of the option `--set`; `None` if it cannot be written as TOML."""
    if isinstance(value, str):
        return value if value == value.strip() else toml_value(value)
    try:
        return toml_value(value)
    except TypeError:
        return None


def option(value: Any) -> str:
    """Return a value in the syntax of the command-line option for its key; a mesh becomes `fsdp=16,tp=8`."""
    if not isinstance(value, Mapping):
        return str(value)
    return ",".join(f"{key}={part if isinstance(part, str) else toml_value(part)}" for key, part in value.items())
