"""Types of values: texts with units to whole numbers, names, shares; what each refuses and how it is written back."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from gradtide import units

T = TypeVar("T")
PPM = 1_000_000
MAX_NAME = 200
MAX_FILE_NAME = 4000
MAX_GROUP = 1_000_000
MAX_DEPTH = 1024
MAX_ANNOUNCED = 75
"""Kang et al. (2021), fig. 7: four bits count in steps of five packets."""


def _checked(parse: Callable[[object], T], *, positive: str = "") -> PlainValidator:
    """Make a validator from a parser of `units`; `positive` says why the quantity cannot be zero."""

    def validate(value: object) -> T:
        try:
            parsed = parse(value)
        except units.UnitError as error:
            raise custom(error.code, error.msg, error.hint) from None
        if positive and parsed == 0:
            raise custom("GT026", "the value is zero", positive)
        return parsed

    return PlainValidator(validate)


def custom(code: str, msg: str, hint: str) -> PydanticCustomError:
    """Return the error of a value, with the code that users see."""
    return PydanticCustomError(code, "{msg}", {"msg": msg, "hint": hint})


def _not_empty(buffer: units.Buffer) -> units.Buffer:
    if buffer.size == 0:
        raise custom("GT026", "the value is zero", 'write a buffer above 0, as in "1000pkt" or "1MB"')
    return buffer


def _packets(value: object) -> int:
    try:
        return units.parse_packets(value)
    except units.UnitError as error:
        raise custom(error.code, error.msg, error.hint) from None


def _fifth(packets: int) -> int:
    if packets % 5 or packets > MAX_ANNOUNCED:
        msg = f"a threshold of {packets:,} packets cannot be announced"
        raise custom("GT014", msg, f'a packet has four bits for it: write a multiple of 5 up to "{MAX_ANNOUNCED}pkt"')
    return packets


def _schema(pattern: str, what: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "title": what, "examples": list(examples)})


_TIME = r"^\s*\d+(\.\d+)?\s*(ps|ns|us|µs|ms|s|min|h)\s*$"
_SIZE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?[Bb]\s*$"
_BUFFER = r"^\s*\d+(\.\d+)?\s*(k?pkt|([kKMGT]|[KMGT]i)?[Bb])\s*$"
_RATE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?(bps|bit/s|b/s|Bps|B/s)\s*$"

_time_out = PlainSerializer(units.format_time, return_type=str)
_bytes_out = PlainSerializer(units.format_bytes, return_type=str)

Time = Annotated[int, _checked(units.parse_time), _time_out, _schema(_TIME, "time", "10us", "0.9s")]
Duration = Annotated[
    int,
    _checked(units.parse_time, positive='write a time above 0, as in "900ms"'),
    _time_out,
    _schema(_TIME, "time above 0", "900ms", "12s"),
]
Size = Annotated[int, _checked(units.parse_bytes), _bytes_out, _schema(_SIZE, "size", "6.28MB", "64KiB")]
PartSize = Annotated[
    int,
    _checked(units.parse_bytes, positive='write a size above 0, as in "1MB", or leave the key out'),
    _bytes_out,
    _schema(_SIZE, "size above 0", "1MB", "64KiB"),
]


def _size_or_adaptive(value: object) -> int | Literal["adaptive"]:
    return "adaptive" if value == "adaptive" else units.parse_bytes(value)


Fusion = Annotated[
    int | Literal["adaptive"],
    _checked(_size_or_adaptive),
    PlainSerializer(lambda value: value if value == "adaptive" else units.format_bytes(value), return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _SIZE, "title": "size", "examples": ["6.28MB", "64KiB"]},
                {"const": "adaptive"},
            ]
        }
    ),
]
Rate = Annotated[
    int,
    _checked(units.parse_rate, positive='nothing would ever arrive; write a rate above 0, as in "10Gbps"'),
    PlainSerializer(units.format_rate, return_type=str),
    _schema(_RATE, "rate", "10Gbps", "100Mbps", "4GB/s"),
]
Frequency = Annotated[
    Fraction,
    _checked(units.parse_frequency, positive='leave the table out, or write a rate above 0, as in "23/s"'),
    PlainSerializer(units.format_frequency, return_type=str),
    _schema(r"^\s*\d+(\.\d+)?\s*/(s|ms|us|min|h)\s*$", "events per time", "23/s"),
]
Packets = Annotated[
    int,
    _checked(units.parse_packets, positive='write a number of packets above 0, as in "1000pkt"'),
    PlainSerializer(units.format_packets, return_type=str),
    _schema(r"^\s*\d+\s*k?pkt\s*$", "packets", "1000pkt"),
]
Buffer = Annotated[
    units.Buffer,
    _checked(units.parse_buffer),
    AfterValidator(_not_empty),
    PlainSerializer(units.format_buffer, return_type=str),
    _schema(_BUFFER, "packets or size", "1000pkt", "1MB"),
]
Ratio = Annotated[
    Fraction,
    _checked(units.parse_ratio),
    PlainSerializer(units.format_ratio, return_type=str),
    WithJsonSchema({"type": ["string", "number"], "title": "ratio", "examples": ["1/4", "1"]}),
]


Fifth = Annotated[
    int,
    _checked(units.parse_packets),
    AfterValidator(_fifth),
    PlainSerializer(units.format_packets, return_type=str),
    _schema(r"^\s*\d+\s*pkt\s*$", "multiple of 5 packets up to 75", "10pkt"),
]


def _announce(value: object) -> bool | int:
    return value if isinstance(value, bool) else _fifth(_packets(value))


def _announce_text(value: bool | int) -> bool | str:
    return value if isinstance(value, bool) else units.format_packets(value)


Announce = Annotated[
    bool | int,
    PlainValidator(_announce),
    PlainSerializer(_announce_text),
    WithJsonSchema({"type": ["boolean", "string"], "title": "true, false or packets", "examples": [True, "15pkt"]}),
]


def _ppm(low: float, high: float, *, has_zero: bool) -> Callable[[object], int]:
    """Make a parser of a bare number into millionths; `low` itself is allowed unless it is a 0 that means nothing."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise units.UnitError(
                "GT011",
                f"expected a number, found {units.describe(value)}",
                "write it without quotes or unit",
            )
        ppm = 0
        if math.isfinite(value) and low <= value <= high:
            ppm = int((Decimal(repr(value)) * PPM).to_integral_value(ROUND_HALF_UP))
        if ppm == 0 and not (has_zero and value == 0):
            span = f"from {low:g} to {high:g}" if low or has_zero else f"above 0 and at most {high:g}"
            raise units.UnitError(
                "GT014",
                f"{units.describe(value)} is out of range",
                f"write a number {span}, in steps of 1e-6",
            )
        return ppm

    return parse


def _ppm_text(ppm: int) -> float:
    return ppm / PPM


def _number(low: float, high: float, *examples: float, has_zero: bool = False) -> Any:
    bound = {"minimum": low} if low or has_zero else {"exclusiveMinimum": 0}
    schema = {"type": "number", **bound, "maximum": high, "examples": list(examples)}
    return (
        _checked(_ppm(low, high, has_zero=has_zero)),
        PlainSerializer(_ppm_text, return_type=float),
        WithJsonSchema(schema),
    )


def _cumulated(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = units.describe(value)
        raise units.UnitError("GT011", f"expected a number, found {what}", "write a share from 0 to 1, as in 0.15")
    if not 0 <= value <= 1:
        raise units.UnitError("GT014", f"{units.describe(value)} is out of range", "write a share from 0 to 1")
    return float(value)


Cumulated = Annotated[
    float,
    _checked(_cumulated),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1, "examples": [0.15]}),
]
_alpha_validator, _alpha_out, _alpha_schema = _number(0, 1024, 1.0)
_share_validator, _share_out, _share_schema = _number(0, 1, 0.95)
_factor_validator, _factor_out, _factor_schema = _number(1, 100, 1.1)
_variation_validator, _variation_out, _variation_schema = _number(0, 0.5, 0.05, has_zero=True)
_tolerance_validator, _tolerance_out, _tolerance_schema = _number(0, 1000, 0.02, has_zero=True)
_part_validator, _part_out, _part_schema = _number(0, 1, 0.005, has_zero=True)
Part = Annotated[int, _part_validator, _part_out, _part_schema]
Tolerance = Annotated[int, _tolerance_validator, _tolerance_out, _tolerance_schema]
Share = Annotated[int, _share_validator, _share_out, _share_schema]
Alpha = Annotated[int, _alpha_validator, _alpha_out, _alpha_schema]
Factor = Annotated[int, _factor_validator, _factor_out, _factor_schema]
Variation = Annotated[int, _variation_validator, _variation_out, _variation_schema]


def _text(longest: int) -> Any:
    def validate(value: object) -> str:
        if not isinstance(value, str):
            raise custom("GT011", f"expected a text, found {units.describe(value)}", "write it in quotes")
        if not value.strip() or len(value) > longest or not value.isprintable():
            raise custom(
                "GT018",
                f"{units.describe(value)} cannot be a name",
                f"a name is 1 to {longest} printable characters, not all blank",
            )
        return value

    return PlainValidator(validate), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": longest})


_name_validator, _name_schema = _text(MAX_NAME)
_file_validator, _file_schema = _text(MAX_FILE_NAME)
Name = Annotated[str, _name_validator, _name_schema]
FileName = Annotated[str, _file_validator, _file_schema]
