"""Converts distributions of flow sizes, as points of a CDF, between the formats of ns-2, HPCC and gradtide."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradtide import traffic
from gradtide.errors import Fault, ScenarioError
from gradtide.formats.text import Complaints, Options, decimal, lines_of, whole_text, write
from gradtide.traffic import Point
from gradtide.units import format_decimal, round_half_up

_PACKET_HINT = "--packet 1460B if they are packets, as in pFabric's files; --packet 1B if they are bytes"


def convert(source: Path, form: str, target: Path | None, into: str, options: Options) -> dict[str, Any]:
    """Read a distribution, write it, and return its figures.

    Raises:
        ScenarioError: with every fault of the file, or if the target format cannot represent it.
        ValueError: if the format is ns-2's and `--packet` is missing.
    """
    points = _ns2(source, options) if form == "cdf-ns2" else _pairs(source)
    if target is not None:
        write(target, _WRITERS[into](points, str(source), options))
    mean = float(traffic.Sizes.of(points).mean_bytes)
    return {"points": len(points), "least_bytes": points[0][0], "most_bytes": points[-1][0], "mean_bytes": mean}


def _pairs(path: Path) -> list[Point]:
    return traffic.read_points(whole_text(path), str(path))


def _ns2(path: Path, options: Options) -> list[Point]:
    """Read lines `value count cdf`. Like tools/ranvar.cc of ns-2, ignore the count and interpolate between points."""
    packet_bytes = _packet(options)
    rows: list[tuple[int, str, list[str]]] = []
    wrong = Complaints(str(path), "GT061")
    rounded = 0
    for number, line in enumerate(lines_of(path), 1):
        cells = line.split("#", 1)[0].split()
        if not cells:
            continue
        if len(cells) != 3:
            wrong.add(number, line, "", f"the line has {len(cells)} fields", "write value, count and share: 6 1 0.15")
            continue
        value = decimal(cells[0])
        if value is None or value * packet_bytes > traffic.MAX_FLOW_BYTES:
            hint = f"write a number from 0; the flow has at most {traffic.MAX_FLOW_BYTES:,} bytes"
            wrong.add(number, line, "value", f'"{cells[0][:40]}" is not a size', hint, 0)
            continue
        if decimal(cells[1]) is None:
            wrong.add(number, line, "count", f'"{cells[1][:40]}" is not a number', "write 1; the value is ignored", 1)
        size = round_half_up(value * packet_bytes)
        rounded += size != value * packet_bytes
        rows.append((number, line, [str(size), cells[2]]))
        if len(rows) > traffic.MAX_POINTS:
            wrong.add(None, None, "", f"there are more than {traffic.MAX_POINTS:,} points", "is it the right file?")
            break
    if not rows and not wrong.any:
        wrong.add(None, None, "", f"{path} has no points", "write value, count and share: 6 1 0.15")
    wrong.end()
    points = traffic.checked_points(rows, str(path))
    options.note(rounded, "1 size is rounded to whole bytes", "sizes are rounded to whole bytes")
    return points


def _packet(options: Options) -> int:
    if options.packet_bytes is None:
        raise ValueError(f"cdf-ns2: a value has no unit; {_PACKET_HINT}")
    return options.packet_bytes


def _csv(points: list[Point], source: str, _: Options) -> str:
    return "".join(["bytes,cdf\n", *(f"{size},{_share(share, source)}\n" for size, share in points)])


def _percent(points: list[Point], source: str, _: Options) -> str:
    return "".join(f"{size},{_share(100 * share, source)}\n" for size, share in points)


def _as_ns2(points: list[Point], source: str, options: Options) -> str:
    packet_bytes = _packet(options)
    values = [round_half_up(Fraction(size, packet_bytes)) for size, _ in points]
    rounded = sum(value * packet_bytes != size for value, (size, _) in zip(values, points, strict=True))
    options.note(rounded, "1 size is rounded to whole packets", "sizes are rounded to whole packets")
    return "".join(f"{v} 1 {_share(share, source)}\n" for v, (_, share) in zip(values, points, strict=True))


def _hpcc(points: list[Point], source: str, _: Options) -> str:
    """Return lines `bytes percent` for HPCC's traffic_gen/custom_rand.py: from 0 %, with strictly rising columns."""
    said = ""
    if points[0][1] != 0 or len(points) < 2:
        said = f"the first size, {points[0][0]} bytes, has a share above 0"
    for (size_a, share_a), (size_b, share_b) in pairwise(points):
        if size_a == size_b:
            said = said or f"two points have {size_b} bytes"
        if share_a == share_b:
            said = said or f"two points have the share {float(share_b):g}"
    if said:
        hint = "HPCC needs a first share of 0 and points that rise in size and share; write cdf or cdf-ns2 instead"
        raise ScenarioError([Fault("GT061", "", f"{said}, which HPCC's format does not allow", None, hint, source)])
    return "".join(f"{size} {_share(100 * share, source)}\n" for size, share in points)


_WRITERS: dict[str, Callable[[list[Point], str, Options], str]] = {
    "cdf": _csv,
    "cdf-percent": _percent,
    "cdf-ns2": _as_ns2,
    "cdf-hpcc": _hpcc,
}


def _share(share: Fraction, source: str) -> str:
    text = format_decimal(share)
    if text is None or len(text.partition(".")[2]) > traffic.MAX_SHARE_DIGITS:
        msg = f"the share {float(share):g} has more than {traffic.MAX_SHARE_DIGITS} digits"
        raise ScenarioError([Fault("GT061", "cdf", msg, None, "round it", source)])
    return text
