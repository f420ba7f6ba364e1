"""Types of the values of keys, such as quantities with units: how a file writes them, and how they are validated."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from gradtide import units
from gradtide.units import PPM, UnitError

MAX_NAME = 200
MAX_FILE_NAME = 4000


@dataclass(frozen=True, eq=False)
class Form:
    """How a file writes a type: `read` parses a value or raises a `UnitError`; `write` is its inverse, if necessary."""

    read: Callable[[object], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return the pydantic schema that reads and writes the value."""

        def validate(value: object) -> Any:
            try:
                return self.read(value)
            except UnitError as error:
                context = {"msg": error.msg, "hint": error.hint}
                raise PydanticCustomError(error.code, "{msg}", context) from None

        out = self.write and core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(validate, serialization=out)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of the value."""
        return dict(self.schema)


class OrName:
    """Marks a table that a file may give by name, such as a built-in cluster; `clusters.expand` replaces the name."""

    def __init__(self, *examples: str) -> None:
        self._examples = list(examples)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of the table or its name."""
        name = {"type": "string", "title": "name of a cluster", "examples": self._examples}
        return {"anyOf": [handler(schema), name]}


_TIME = r"^\s*\d+(\.\d+)?\s*(ps|ns|us|µs|ms|s|min|h)\s*$"
_SIZE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?[Bb]\s*$"
_BUFFER = r"^\s*\d+(\.\d+)?\s*(k?pkt|([kKMGT]|[KMGT]i)?[Bb])\s*$"
_RATE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?(bps|bit/s|b/s|Bps|B/s)\s*$"


def _text(read: Callable[[object], Any], write: Callable[[Any], str], pattern: str, title: str, *examples: str) -> Form:
    """Return the form of a quantity that is written with its unit."""
    return Form(read, {"type": "string", "pattern": pattern, "title": title, "examples": list(examples)}, write)


def _positive(parse: Callable[[object], Any], why: str) -> Callable[[object], Any]:
    """Return `parse` with a check that the value is not zero; `why` is the hint of that fault."""

    def read(value: object) -> Any:
        parsed = parse(value)
        if (parsed.size if isinstance(parsed, units.Buffer) else parsed) == 0:
            raise UnitError("GT026", "the value is zero", why)
        return parsed

    return read


_duration = _positive(units.parse_time, 'write a time above 0, as in "900ms"')
_part_size = _positive(units.parse_bytes, 'write a size above 0, as in "1MB", or leave the key out')
positive_rate = _positive(units.parse_rate, 'nothing would ever arrive; write a rate above 0, as in "10Gbps"')
_frequency = _positive(units.parse_frequency, 'leave the table out, or write a rate above 0, as in "23/s"')
_packets = _positive(units.parse_packets, 'write a number of packets above 0, as in "1000pkt"')
_buffer = _positive(units.parse_buffer, 'write a buffer above 0, as in "1000pkt" or "1MB"')


Time = Annotated[int, _text(units.parse_time, units.format_time, _TIME, "time", "10us", "0.9s")]
Duration = Annotated[int, _text(_duration, units.format_time, _TIME, "time above 0", "900ms", "12s")]
Size = Annotated[int, _text(units.parse_bytes, units.format_bytes, _SIZE, "size", "6.28MB", "64KiB")]
PartSize = Annotated[int, _text(_part_size, units.format_bytes, _SIZE, "size above 0", "1MB", "64KiB")]
Rate = Annotated[int, _text(positive_rate, units.format_rate, _RATE, "rate", "10Gbps", "100Mbps", "4GB/s")]
Frequency = Annotated[
    Fraction,
    _text(_frequency, units.format_frequency, r"^\s*\d+(\.\d+)?\s*/(s|ms|us|min|h)\s*$", "events per time", "23/s"),
]
Packets = Annotated[int, _text(_packets, units.format_packets, r"^\s*\d+\s*k?pkt\s*$", "packets", "1000pkt")]
Fifth = Annotated[
    int,
    _text(units.parse_announced, units.format_packets, r"^\s*\d+\s*pkt\s*$", "multiple of 5 packets up to 75", "10pkt"),
]
Buffer = Annotated[units.Buffer, _text(_buffer, units.format_buffer, _BUFFER, "packets or size", "1000pkt", "1MB")]
Ratio = Annotated[
    Fraction, Form(units.parse_ratio, {"type": ["string", "number"], "title": "ratio", "examples": ["1/4", "1"]}, str)
]
Fusion = Annotated[
    int | Literal["adaptive"],
    Form(
        lambda value: value if value == "adaptive" else units.parse_bytes(value),
        {
            "anyOf": [
                {"type": "string", "pattern": _SIZE, "title": "size", "examples": ["6.28MB", "64KiB"]},
                {"const": "adaptive"},
            ]
        },
        lambda value: value if value == "adaptive" else units.format_bytes(value),
    ),
]
Accuracy = Annotated[
    int,
    _text(
        units.parse_accuracy,
        units.format_accuracy,
        r"^\s*\d+(\.\d+)?\s*%\s*$",
        "percentage above 0 and at most 10",
        "0.1%",
        "1%",
    ),
]
Announce = Annotated[
    bool | int,
    Form(
        lambda value: value if isinstance(value, bool) else units.parse_announced(value),
        {"type": ["boolean", "string"], "title": "true, false or packets", "examples": [True, "15pkt"]},
        lambda value: value if isinstance(value, bool) else units.format_packets(value),
    ),
]


def whole_or(word: str, most: int, hint: str) -> Form:
    """Return the form of a value that is a whole number from 1 to `most`, or `word`."""

    def read(value: object) -> int | str:
        if value == word:
            return word
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnitError("GT011", f"expected a number, found {units.describe(value)}", hint)
        if not 1 <= value <= most:
            raise UnitError("GT014", f"{value} is out of range", hint)
        return value

    return Form(read, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": most}, {"const": word}]})


def _number(low: float, high: float, example: float, *, has_zero: bool = False) -> Form:
    """Return the form of a number from `low` to `high`, which is stored in millionths; 0 is allowed with `has_zero`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            found = units.describe(value)
            raise UnitError("GT011", f"expected a number, found {found}", "write it without quotes or unit")
        ppm = 0
        if math.isfinite(value) and low <= value <= high:
            ppm = int((Decimal(repr(value)) * PPM).to_integral_value(ROUND_HALF_UP))
        if ppm == 0 and not (has_zero and value == 0):
            span = f"from {low:g} to {high:g}" if low or has_zero else f"above 0 and at most {high:g}"
            hint = f"write a number {span}, in steps of 1e-6"
            raise UnitError("GT014", f"{units.describe(value)} is out of range", hint)
        return ppm

    bound = {"minimum": low} if low or has_zero else {"exclusiveMinimum": 0}
    schema = {"type": "number", **bound, "maximum": high, "examples": [example]}
    return Form(read, schema, lambda ppm: ppm / PPM)


Share = Annotated[int, _number(0, 1, 0.95)]
Part = Annotated[int, _number(0, 1, 0.005, has_zero=True)]
Alpha = Annotated[int, _number(0, 1024, 1.0)]
Factor = Annotated[int, _number(1, 100, 1.1)]
Variation = Annotated[int, _number(0, 0.5, 0.05, has_zero=True)]
Tolerance = Annotated[int, _number(0, 1000, 0.02, has_zero=True)]


def _cumulated(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        found = units.describe(value)
        raise UnitError("GT011", f"expected a number, found {found}", "write a share from 0 to 1, as in 0.15")
    if not 0 <= value <= 1:
        raise UnitError("GT014", f"{units.describe(value)} is out of range", "write a share from 0 to 1")
    return float(value)


Cumulated = Annotated[float, Form(_cumulated, {"type": "number", "minimum": 0, "maximum": 1, "examples": [0.15]})]


def parse_name(value: object, longest: int = MAX_NAME) -> str:
    """Return `value` if it is 1 to `longest` printable characters, not all blank; otherwise raise a `UnitError`."""
    if not isinstance(value, str) or not value.strip() or len(value) > longest or not value.isprintable():
        hint = f"a name is 1 to {longest} printable characters, not all blank"
        raise UnitError("GT018", f"{units.describe(value)} cannot be a name", hint)
    return value


def _name(longest: int) -> Form:
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise UnitError("GT011", f"expected a text, found {units.describe(value)}", "write it in quotes")
        return parse_name(value, longest)

    return Form(read, {"type": "string", "minLength": 1, "maxLength": longest})


Name = Annotated[str, _name(MAX_NAME)]
FileName = Annotated[str, _name(MAX_FILE_NAME)]
