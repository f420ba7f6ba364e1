"""Writes plain data as canonical TOML, so that equal scenarios have equal bytes."""

import json
from typing import Any


def toml(data: dict[str, Any]) -> str:
    """Return the TOML of a resolved scenario, with sections for each job, the cluster, each tenant and the run."""
    sections: list[str] = []
    for name, value in data.items():
        if name in ("job", "traffic"):
            for key, table in value.items():
                sections += _section(f"{name}.{toml_key(key)}", table)
        else:
            sections += _section(toml_key(name), value)
    return "\n".join(sections)


def _section(name: str, table: dict[str, Any]) -> list[str]:
    # A model table has many lines, so it gets a section of its own.
    inner = {k: v for k, v in table.items() if k == "model" and isinstance(v, dict)}
    lines = [f"[{name}]\n"]
    lines += [f"{toml_key(k)} = {_tall(v)}\n" for k, v in table.items() if k not in inner]
    sections = ["".join(lines)]
    for key, value in inner.items():
        sections += _section(f"{name}.{toml_key(key)}", value)
    return sections


def _tall(value: Any) -> str:
    """Return the text of a value: one line for each element of a list of tables, one line for any other value."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"    {toml_value(item)},\n" for item in value) + "]"
    return toml_value(value)


def toml_value(value: Any) -> str:
    """Return one value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        if not value:
            return "{}"
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    raise TypeError(f"a {type(value).__name__} has no TOML form")


def toml_key(key: str) -> str:
    """Return a key, quoted if necessary."""
    bare = key.isascii() and key.replace("-", "a").replace("_", "a").isalnum()
    return key if bare else toml_value(key)
