"""Scatter plots as SVG, such as cost against iteration time. Each point has a text, shown on hover."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from gradtide.report.pieces import STYLES

_WIDTH, _HEIGHT = 680.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 24.0, 16.0, 52.0
_SIZE = 6.0

TOKENS = tuple(token for token, _, _ in STYLES)
"""Colours of the points, in the order of `STYLES`, so that a series has one colour in plots and line charts."""

SHAPES = ("circle", "square", "triangle", "diamond")


def legend(names: Iterable[str]) -> list[dict[str, str]]:
    """Return the legend of colours for these names, in the order of `TOKENS`."""
    return [{"token": TOKENS[i % len(TOKENS)], "name": name} for i, name in enumerate(names)]


@dataclass(frozen=True)
class Point:
    """A point: coordinates, description (`words`), and an optional label.

    `colour` and `shape` are indices into `TOKENS` and `SHAPES`, modulo their lengths. `href` is the address of a page
    about the point.
    """

    x: float
    y: float
    colour: int
    shape: int
    words: str
    href: str = ""
    label: str = ""


def draw(
    points: Sequence[Point],
    frontier: Sequence[tuple[float, float]],
    *,
    label: str,
    xlabel: str,
    ylabel: str,
    floor: tuple[float, str] | None = None,
    including: Sequence[tuple[float, float]] = (),
) -> Markup:
    """Draw points, and their Pareto front as a staircase.

    Args:
        points: at least one point.
        frontier: the corners of the staircase, from left to right, with decreasing y.
        label: description of the drawing for screen readers.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        floor: a lower bound of y and its name, drawn as a dotted line.
        including: coordinates that the axes must include, so that small differences do not fill the plot.
    """
    x = _Axis.over([*(at for at, _ in including), *(p.x for p in points)], _LEFT, _WIDTH - _RIGHT)
    low = [] if floor is None or floor[0] <= 0 else [floor[0]]
    y = _Axis.over([*low, *(at for _, at in including), *(p.y for p in points)], _HEIGHT - _BOTTOM, _TOP)
    out = [
        f'<svg class="timeline scatter" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(label)}">'
    ]
    for value in x.ticks():
        at = x.place(value)
        out.append(f'<path class="grid" d="M{at:.1f} {_TOP:g}V{_HEIGHT - _BOTTOM:g}"/>')
        text = _short(value)
        out.append(f'<text class="tick" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18:g}" text-anchor="middle">{text}</text>')
    for value in y.ticks():
        at = y.place(value)
        out.append(f'<path class="grid" d="M{_LEFT:g} {at:.1f}H{_WIDTH - _RIGHT:g}"/>')
        out.append(f'<text class="tick" x="{_LEFT - 8:g}" y="{at + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    out.append(f'<text x="{middle:g}" y="{_HEIGHT - 8:g}" text-anchor="middle">{escape(xlabel)}</text>')
    centre = (_TOP + _HEIGHT - _BOTTOM) / 2
    out.append(f'<text transform="translate(16 {centre:g}) rotate(-90)" text-anchor="middle">{escape(ylabel)}</text>')
    if floor is not None and low:
        at = y.place(floor[0])
        out.append(f'<path class="floor" d="M{_LEFT:g} {at:.1f}H{_WIDTH - _RIGHT:g}"/>')
        words = escape(floor[1])
        out.append(f'<text class="muted" x="{_WIDTH - _RIGHT:g}" y="{at + 14:.1f}" text-anchor="end">{words}</text>')
    if frontier:
        path = "".join(
            f"{'M' if not index else 'H'}{x.place(cost):.1f}{' ' if not index else 'V'}{y.place(time):.1f}"
            for index, (cost, time) in enumerate(frontier)
        )
        out.append(f'<path class="frontier" d="{path}H{_WIDTH - _RIGHT:g}"/>')
    # Labelled points are drawn last, on top of the others.
    for point in sorted(points, key=lambda p: bool(p.label)):
        out.append(_mark(point, x.place(point.x), y.place(point.y)))
    out.append("</svg>")
    return Markup("".join(out))


def shape(kind: int, x: float, y: float, size: float = _SIZE) -> str:
    """Return the SVG of marker number `kind` in `SHAPES`, centred at (x, y), with a radius of `size`."""
    name = SHAPES[kind % len(SHAPES)]
    if name == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    if name == "square":
        return f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:g}" height="{2 * size:g}"/>'
    reach = 1.25 * size
    if name == "triangle":
        return f'<path d="M{x:.1f} {y - reach:.1f}l{reach:g} {1.8 * reach:g}h{-2 * reach:g}z"/>'
    return f'<path d="M{x:.1f} {y - reach:.1f}l{reach:g} {reach:g}l{-reach:g} {reach:g}l{-reach:g} {-reach:g}z"/>'


def _mark(point: Point, x: float, y: float) -> str:
    words = escape(point.words)
    inner = f'<title>{words}</title><circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
    if point.label:
        right = x > _WIDTH * 0.6
        inner += f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
        inner += (
            f'<text class="strong halo" x="{x + (-18 if right else 18):.1f}" y="{y - 10:.1f}" '
            f'text-anchor="{"end" if right else "start"}">{escape(point.label)}</text>'
        )
    inner += f'<g style="fill:var(--{TOKENS[point.colour % len(TOKENS)]})">{shape(point.shape, x, y)}</g>'
    if point.href:
        inner = f'<a href="{escape(point.href)}" tabindex="-1" aria-label="{words}">{inner}</a>'
    return f'<g class="row point" data-readout="{words}">{inner}</g>'


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        """Return an axis over all values, with a margin; logarithmic if the largest is over 5 times the smallest."""
        low, high = min(values), max(values)
        if high > 5 * low > 0:
            room = (high / low) ** 0.06
            return cls(low / room, high * room, start, end, True)
        room = (high - low) * 0.08 or high * 0.1 or 1.0
        return cls(low - room if low < 0 else max(0.0, low - room), high + room, start, end, False)

    def place(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [value for value in every if self.low <= value <= self.high]
        span = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(span))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= span)
        count = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(count, math.floor(self.high / step) + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
