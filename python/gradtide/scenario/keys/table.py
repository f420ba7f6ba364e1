"""`Table`, the base class of a scenario file's tables, and `key`, which declares a key of a table."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from gradtide import signals

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema
    from typing_extensions import Self


@dataclass(frozen=True)
class Notes:
    """Arguments of `key` that are not part of the JSON Schema."""

    core: bool
    short: str | None

    def __call__(self, schema: dict[str, Any]) -> None:
        """Do nothing. pydantic calls this with the schema of the key, because it is the key's `json_schema_extra`."""


def key(
    default: Any = ..., *, examples: list[Any] | None = None, core: bool = True, short: str | None = None, **bounds: Any
) -> Any:
    """Declare a key of a table.

    The field is named as in the core's input, with the unit of its value (`overhead_ps`). The key in a file has the
    same name without the unit (`overhead`).

    Args:
        default: default value, as written in a file.
        examples: values for the schema and for hints. Default: the default value.
        core: whether the core's input has this field with the same value; `core.input` converts the other fields.
        short: name of the key in `Scenario.replace`; empty for none. Default: the name in the format `Table.SHORT`.
        bounds: `ge` and `le`, the smallest and largest value; `description` if no string below the key describes it.
    """
    examples = [default] if examples is None else examples
    return Field(default=default, examples=examples, json_schema_extra=Notes(core=core, short=short), **bounds)


_UNIT = re.compile(r"_(ps|bytes|bps|ppm|packets|iterations)$")


def _key_of(field: str, info: FieldInfo) -> str:
    """Return the key in the file for a field: its declared alias, or its name without the unit.

    pydantic's alias generator does the same, but only when it builds the class, which is deferred.
    """
    return info.alias or _UNIT.sub("", field)


class Table(BaseModel):
    """A table of the file. Unknown keys are errors, types are not coerced, and instances are immutable."""

    SHORT: ClassVar[str] = ""
    """Format of the keys' short names in `Scenario.replace`; empty if the keys have none."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_default=True,
        defer_build=True,
        alias_generator=lambda field: _UNIT.sub("", field),
    )

    @model_validator(mode="before")
    @classmethod
    def _with_either_dash(cls, data: Any) -> Any:
        """Accept `-` for `_`, and vice versa, in values from a fixed list of words, as in `leaf-spine`."""
        if not isinstance(data, dict):
            return data
        words = _words(cls)
        return {key: _respelt(value, words.get(key)) for key, value in data.items()} if words else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> "JsonSchemaValue":
        """Add the string below each key's declaration as its description, which is read from the source code."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        (tree,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(tree, ast.ClassDef)
        for declaration, text in pairwise(tree.body):
            match declaration, text:
                case ast.AnnAssign(ast.Name(field)), ast.Expr(ast.Constant(str(meaning))) if field in cls.model_fields:
                    properties[_key_of(field, cls.model_fields[field])]["description"] = inspect.cleandoc(meaning)
        return schema

    @classmethod
    def declared(cls) -> dict[str, FieldInfo]:
        """Return the declaration of each key by its name in a file, in order of declaration."""
        return {_key_of(name, info): info for name, info in cls.model_fields.items()}

    def value(self, key: str) -> Any:
        """Return the value of a key, which is given by its name in a file."""
        return getattr(self, fields(type(self))[key])

    def is_given(self, key: str) -> bool:
        """Return whether the file has a key."""
        return fields(type(self))[key] in self.model_fields_set

    def core(self) -> dict[str, Any]:
        """Return the fields that the core's input contains with the same name and value."""
        return {
            name: value.core() if isinstance(value, Table) else value
            for name, info in type(self).model_fields.items()
            if notes(info).core
            for value in (getattr(self, name),)
        }

    def plain(self) -> dict[str, Any]:
        """Return the table as written in a file, without values that are None."""
        try:
            return self.model_dump(by_alias=True, exclude_none=True, warnings="error")
        except PydanticSerializationError:
            # If a signal arrives meanwhile, pydantic converts its exception; `again` raises the original exception.
            signals.again()
            raise

    def with_values(self, **values: Any) -> "Self":
        """Return a copy with some fields replaced. The new values are not validated."""
        return self.model_copy(update=values)


@cache
def fields(table: type[Table]) -> dict[str, str]:
    """Return the name of the field for each key of a file."""
    return {_key_of(name, info): name for name, info in table.model_fields.items()}


@cache
def _words(table: type[Table]) -> dict[str, dict[str, str]]:
    """Return the allowed words of each key with a fixed list of words, by their spelling with `-` for `_`.

    Words that differ only in these characters are left out: they would be ambiguous, so they must be written exactly.
    """
    found = {}
    for name, info in table.declared().items():
        words = list(_literals(info.annotation))
        spelt = Counter(map(_with_hyphens, words))
        if any("-" in word for word in spelt):
            found[name] = {_with_hyphens(word): word for word in words if spelt[_with_hyphens(word)] == 1}
    return found


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
    elif not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for part in get_args(annotation):
            yield from _literals(part)


def _respelt(value: Any, words: dict[str, str] | None) -> Any:
    return words.get(_with_hyphens(value), value) if words and isinstance(value, str) else value


def _with_hyphens(word: str) -> str:
    return word.replace("_", "-")


def notes(info: FieldInfo) -> Notes:
    """Return the `Notes` that `key` stored in a declaration."""
    assert isinstance(info.json_schema_extra, Notes)  # set by `key`
    return info.json_schema_extra
