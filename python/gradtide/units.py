"""Quantities with units, read and written exactly: text <-> whole picoseconds, bytes and bits per second.

Arithmetic uses fractions of integers, never floats. B is byte and b is bit; k (or K), M, G and T are powers of ten, and
Ki, Mi, Gi and Ti powers of two. A time between two picoseconds is rounded half up. A size that is not a whole number of
bytes, or a rate that is not a whole number of bits per second, is refused, because a fraction of a byte is a mistake.
"""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

PPM = 1_000_000
MAX_ACCURACY_PPM = PPM // 10
"""Shares and factors are stored in millionths (PPM). The largest `run.accuracy` is 10 %."""

PS_PER_SECOND = 1_000_000_000_000
PS_PER_US, PS_PER_NS = 10**6, 1000
PS_PER_MS = 1e9
U64_MAX = 2**64 - 1
"""Largest integer of the core. As a time in picoseconds it is 213 days."""

ANNOUNCED_STEP, MAX_ANNOUNCED = 5, 75
"""Step and maximum of an announced threshold in packets, which a 4-bit field encodes (Kang et al. 2021, fig. 7)."""

Quantity = TypeVar("Quantity")

_NUMBER = re.compile(r"\s*([+-]?)(\d+(?:\.\d+)?)\s*(.*?)\s*", re.ASCII | re.DOTALL)
_MAX_TEXT = 64

_TIME_UNITS = {
    "ps": 1,
    "ns": 1_000,
    "us": 1_000_000,
    "µs": 1_000_000,
    "μs": 1_000_000,
    "ms": 1_000_000_000,
    "s": PS_PER_SECOND,
    "min": 60 * PS_PER_SECOND,
    "h": 3600 * PS_PER_SECOND,
}
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PREFIXES = _DECIMAL | _BINARY
_SIZE_UNITS = {p + "B": Fraction(f) for p, f in _PREFIXES.items()} | {
    p + "b": Fraction(f, 8) for p, f in _PREFIXES.items()
}
_RATE_UNITS = {
    prefix + unit: factor * bits
    for prefix, factor in _PREFIXES.items()
    for unit, bits in (("bps", 1), ("bit/s", 1), ("b/s", 1), ("Bps", 8), ("B/s", 8))
}
_FREQUENCY_UNITS = {
    "/s": Fraction(1),
    "/ms": Fraction(1000),
    "/us": Fraction(1_000_000),
    "/min": Fraction(1, 60),
    "/h": Fraction(1, 3600),
}
_PERCENT = {"%": Fraction(1, 100)}
_PACKET_UNITS = {"pkt": 1, "kpkt": 1000}
_BUFFER_UNITS = {unit: Fraction(factor) for unit, factor in _PACKET_UNITS.items()} | _SIZE_UNITS


class Buffer(NamedTuple):
    """Size of a buffer, in packets or in bytes."""

    size: int
    is_bytes: bool


_TIME_OUT = ("s", "ms", "us", "ns", "ps")
_RATE_OUT = ("Tbps", "Gbps", "Mbps", "kbps", "bps")
_SIZE_OUT = ("TB", "GB", "MB", "kB", "B", "TiB", "GiB", "MiB", "KiB")


class UnitError(ValueError):
    """A text is not a quantity of the expected kind. All `parse_…` functions raise it; `code` is in `codes.CODES`."""

    def __init__(self, code: str, msg: str, hint: str) -> None:
        super().__init__(f"{msg}; {hint}")
        self.code = code
        self.msg = msg
        self.hint = hint


def parse_option(name: str, parse: Callable[[Any], Quantity], text: object) -> Quantity:
    """Return the quantity in the text of option `name`, read by `parse`; raise ValueError with the option's name."""
    try:
        return parse(text)
    except UnitError as error:
        raise ValueError(f"{name}: {error.msg}; {error.hint}") from None


def parse_time(text: object) -> int:
    """Return the picoseconds in a time such as `"10us"`, rounded half up; a time is from 0 to 213 days."""
    value = _scaled(text, "time", _TIME_UNITS, "10us")
    return _bounded(round_half_up(value), "time", "the simulated clock ends after 213 days (2^64 ps)")


def parse_rate(text: object) -> int:
    """Return the bits per second in a rate such as `"10Gbps"`: a whole number that fits 64 bits."""
    value = _whole(_scaled(text, "rate", _RATE_UNITS, "10Gbps"), "rate", "bits per second")
    return _bounded(value, "rate", "rates end at 2^64 bps")


def parse_bytes(text: object) -> int:
    """Return the bytes in a size such as `"6.28MB"` or `"1Gb"`: a whole number that fits 64 bits."""
    value = _whole(_scaled(text, "size", _SIZE_UNITS, "25MB"), "size", "bytes")
    return _bounded(value, "size", "sizes end at 2^64 B")


def parse_frequency(text: object) -> Fraction:
    """Return the events per second in a rate of events such as `"23/s"`."""
    return _scaled(text, "rate of events", _FREQUENCY_UNITS, "23/s")


def parse_packets(text: object) -> int:
    """Return the count in a number of packets such as `"1000pkt"`."""
    value = _whole(_scaled(text, "number of packets", _PACKET_UNITS, "1000pkt"), "number", "packets")
    return _bounded(value, "number of packets", "counts end at 2^64")


def parse_announced(text: object) -> int:
    """Return the packets in a threshold that a burst can announce, such as `"10pkt"`: a multiple of 5 up to 75."""
    packets = parse_packets(text)
    if packets % ANNOUNCED_STEP or packets > MAX_ANNOUNCED:
        msg = f"a threshold of {packets:,} packets cannot be announced"
        hint = f'a packet has four bits for it: write a multiple of {ANNOUNCED_STEP} up to "{MAX_ANNOUNCED}pkt"'
        raise UnitError("GT014", msg, hint)
    return packets


def parse_buffer(text: object) -> Buffer:
    """Return the size of a buffer in packets, as in `"1000pkt"`, or in bytes, as in `"1MB"`."""
    value = _scaled(text, "buffer size", _BUFFER_UNITS, "1000pkt")
    is_bytes = not str(text).rstrip().endswith("pkt")
    size = _whole(value, "size" if is_bytes else "number", "bytes" if is_bytes else "packets")
    return Buffer(_bounded(size, "buffer", "counts end at 2^64"), is_bytes)


def parse_ratio(text: object) -> Fraction:
    """Return a ratio in 0 < r <= 1 written `"1/4"`, `"1"`, `1` or `0.25`."""
    hint = 'write a share above 0 and at most 1, as in "1/4"'
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise UnitError("GT011", f"expected a ratio, found {describe(text)}", hint)
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(?:/\s*(\d{1,18})\s*)?", str(text), re.ASCII)
    if match is None or (match[2] is not None and int(match[2]) == 0):
        raise UnitError("GT022", f"{_shown(text)} is not a ratio", hint)
    value = Fraction(match[1]) / int(match[2] or 1)
    if not 0 < value <= 1:
        raise UnitError("GT014", f"{_shown(text)} is outside 0 < ratio <= 1", hint)
    return value


def parse_accuracy(text: object) -> int:
    """Return a percentage above 0 and at most 10 % in millionths: `parse_accuracy("0.1%") == 1000`."""
    value = _scaled(text, "percentage", _PERCENT, "0.1%") * PPM
    if value == 0 or value > MAX_ACCURACY_PPM:
        msg = f"{_shown(text)} is out of range"
        raise UnitError("GT014", msg, 'write a percentage above 0% and at most 10%, as in "0.1%", or leave the key out')
    return _whole(value, "percentage", "millionths")


def format_accuracy(ppm: int) -> str:
    """Return millionths as a percentage: `format_accuracy(1000) == "0.1%"`."""
    return f"{format_decimal(Fraction(ppm, PPM // 100))}%"


def format_time(ps: int) -> str:
    """Return picoseconds as a whole number of a unit: `format_time(900_000_000_000) == "900ms"`."""
    return _largest_whole(ps, _TIME_OUT, _TIME_UNITS)


def format_rate(bps: int) -> str:
    """Return bits per second as a whole number of the largest possible unit: `format_rate(10**10) == "10Gbps"`."""
    return _largest_whole(bps, _RATE_OUT, _RATE_UNITS)


def format_bytes(size_bytes: int) -> str:
    """Return bytes as a whole number of the decimal or binary unit with the shortest text; decimal if equally short."""
    candidates = [
        f"{size_bytes // int(_SIZE_UNITS[unit])}{unit}"
        for unit in _SIZE_OUT
        if size_bytes % int(_SIZE_UNITS[unit]) == 0
    ]
    return min(candidates, key=len) if size_bytes else "0B"


def format_frequency(per_second: Fraction) -> str:
    """Return events per second as an exact decimal per second, minute or hour."""
    for unit in ("/s", "/min", "/h"):
        value = per_second / _FREQUENCY_UNITS[unit]
        text = format_decimal(value)
        if text is not None:
            return text + unit
    raise ValueError(f"{per_second} events per second is not a decimal number per second, minute or hour")


def format_packets(count: int) -> str:
    """Return a number of packets."""
    return f"{count}pkt"


def format_buffer(buffer: Buffer) -> str:
    """Return the size of a buffer with its unit."""
    return format_bytes(buffer.size) if buffer.is_bytes else format_packets(buffer.size)


def format_decimal(value: Fraction) -> "str | None":
    """Return `value`, at least 0, as an exact decimal number; `None` if its decimal expansion does not end."""
    digits = 0
    denominator = value.denominator
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0:
            denominator //= prime
            count += 1
        digits = max(digits, count)
    if denominator != 1:
        return None
    scaled = str(value.numerator * 10**digits // value.denominator).rjust(digits + 1, "0")
    return scaled if digits == 0 else f"{scaled[:-digits]}.{scaled[-digits:]}"


def parse_decimal_us(text: str) -> int:
    """Return the picoseconds in a decimal number of microseconds without unit, as in a column `forward_us`."""
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_TEXT else None
    hint = "write plain microseconds, as in 1250.5"
    if match is None or match[3]:
        raise UnitError("GT033", f"{_shown(text)} is not a number of microseconds", hint)
    if match[1] == "-" and Fraction(match[2]) != 0:
        raise UnitError("GT033", f"{_shown(text)} is negative", "times start at 0")
    ps = round_half_up(Fraction(match[2]) * 1_000_000)
    return _bounded(ps, "time", "the simulated clock ends after 213 days (2^64 ps)")


def round_half_up(value: Fraction) -> int:
    """Return the nearest whole number; halves are rounded up."""
    return divided(value.numerator, value.denominator)


def divided(dividend: int, divisor: int) -> int:
    """Return the quotient rounded half up, without constructing a `Fraction`."""
    return (2 * dividend + divisor) // (2 * divisor)


def rescaled(parts: Sequence[int], total: int) -> list[int]:
    """Return the parts scaled to the sum `total`: rounded down, then up by 1 for those with the largest fractions."""
    now = sum(parts)
    scaled = [part * total // now for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: (-(parts[index] * total % now), index))
    for index in by_remainder[: total - sum(scaled)]:
        scaled[index] += 1
    return scaled


def describe(value: object) -> str:
    """Return the type of a value as a scenario file names it, with the value if it is short."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {_shown(value)}"
    if isinstance(value, str):
        return f"the text {_shown(value)}"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"a {type(value).__name__}"


def _scaled(text: object, kind: str, units: "dict[str, int] | dict[str, Fraction]", example: str) -> Fraction:
    with_unit, as_in = f'write a {kind} with its unit, as in "{example}"', f'write it as in "{example}"'
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        raise UnitError("GT020", f"the number {_shown(text)} has no unit", with_unit)
    if not isinstance(text, str):
        raise UnitError("GT011", f"expected a {kind}, found {describe(text)}", as_in)
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise UnitError(
            "GT022", f"{_shown(text)} is not a {kind}", f'write a plain decimal number and a unit, as in "{example}"'
        )
    sign, number, unit = match.groups()
    if not unit:
        raise UnitError("GT020", f"{_shown(text)} has no unit", with_unit)
    factor = units.get(unit)
    if factor is None:
        raise UnitError("GT021", f"{_shown(unit)} is not a unit of {kind}", _unit_hint(number, unit, units))
    value = Fraction(number) * factor
    if sign == "-" and value != 0:
        raise UnitError("GT023", f"a {kind} cannot be negative: {_shown(text)}", as_in)
    return value


def _unit_hint(number: str, unit: str, units: "dict[str, int] | dict[str, Fraction]") -> str:
    """Return a hint with the unit that was probably meant, and the list of units."""
    listed = [u for u in units if u[:1] not in ("µ", "μ")]
    prefixed = [u for u in listed if len(u) > len(unit) and u.startswith(unit) and unit in _PREFIXES]
    same = [u for u in listed if u.lower() == unit.lower()]
    if units is _RATE_UNITS:
        same = same or [u for u in listed if u.endswith("bps") and u.lower() == (unit + "ps").lower()]
        names = "bps, kbps, Mbps, Gbps, Tbps (bits) or B/s, kB/s, MB/s, GB/s (bytes)"
    elif units is _SIZE_UNITS:
        names = "B, kB, MB, GB (bytes), KiB, MiB, GiB, or b, kb, Mb, Gb (bits)"
    elif units is _BUFFER_UNITS:
        names = "pkt, kpkt (packets) or B, kB, MB, KiB, MiB (bytes)"
    else:
        names = ", ".join(listed)
    if prefixed:
        pair = [u for u in prefixed if u in ("Gbps", "Mbps", "kbps", "Tbps")] or prefixed[:2]
        return "did you mean " + " or ".join(f'"{number}{u}"' for u in pair[:2]) + "?"
    if same:
        return f'did you mean "{number}{same[0]}"? units are {names}'
    return f"units are {names}"


def _whole(value: Fraction, kind: str, what: str) -> int:
    if value.denominator != 1:
        nearest = round_half_up(value)
        raise UnitError("GT025", f"the {kind} is not a whole number of {what}", f"the nearest is {nearest} {what}")
    return value.numerator


def _bounded(value: int, kind: str, why: str) -> int:
    if value > U64_MAX:
        raise UnitError("GT024", f"the {kind} is too large", f"{why}; is the unit what you meant?")
    return value


def _largest_whole(value: int, out: tuple[str, ...], units: dict[str, int]) -> str:
    if value == 0:
        return "0" + ("s" if out is _TIME_OUT else "bps")
    return next(f"{value // units[u]}{u}" for u in out if value % units[u] == 0)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else '"' + value + '"'
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 48 else text[:45] + "..."


def memory_words(size_bytes: float) -> str:
    """Write a size in bytes, as in `1.3 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if size_bytes >= size:
            number = size_bytes / size
            return f"{number:,.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"
    return f"{size_bytes / 1e6:,.0f} MB"


def time_words(seconds: float) -> str:
    """Write a duration, as in `3 min`."""
    for unit, size in (("years", 365.25 * 86_400), ("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:,.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def rounded_up(number: float) -> str:
    """Write a number rounded up to two significant digits."""
    if number <= 0:
        return "1"
    digits = 1 - math.floor(math.log10(number))
    rounded = math.ceil(number * 10.0**digits) / 10.0**digits
    return f"{rounded:.{max(0, digits)}f}"


def memory_asked(size_bytes: float) -> str:
    """Write a size, rounded up, as `--max-memory` reads it."""
    return f"{rounded_up(size_bytes / 1e9)}GB"


def time_asked(seconds: float) -> str:
    """Write a time, rounded up, as `--max-time` reads it."""
    return f"{rounded_up(seconds / 3600)}h" if seconds > 360 else f"{rounded_up(seconds)}s"
