"""A drawing over time as SVG: its axis, blocks, words and rows. Colours are classes: the theme decides.

What is drawn is in `timeline.py`, `progress.py` and `waterfall.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from markupsafe import Markup, escape

WIDTH = 1080.0

_ANGLES = {"exposed": 45, "barrier": -45}
"""How the hatching of each cause of waiting leans."""


class Drawing:
    """One `<svg>` element on whose horizontal axis microseconds lie, with room for words on the left and on the right.

    `ident` is the prefix of the ids in the drawing, unique in the page. If the drawing `clips`, what lies outside of
    the axis is drawn at its ends.
    """

    def __init__(self, ident: str, start: float, span: float, left: float, right: float, clips: bool = True) -> None:
        self.left = left
        self.plot = WIDTH - left - right
        self._ident = ident
        self._start = start
        self._span = span
        self._clips = clips
        self._out: list[str] = []

    def x(self, us: float) -> float:
        """Return the place of a time."""
        share = (us - self._start) / self._span
        if self._clips:
            share = min(max(share, 0.0), 1.0)
        return self.left + share * self.plot

    def add(self, element: str) -> None:
        """Add an element that is written out."""
        self._out.append(element)

    def path(self, kind: str, places: str) -> None:
        """Add a path."""
        self.add(f'<path class="{kind}" d="{places}"/>')

    def text(self, kind: str, at: float, y: float, words: str, anchor: str = "start") -> None:
        """Add words; they begin, have their middle or end at a place."""
        self.add(f'<text class="{kind}" x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def block(self, kind: str, a: float, b: float, y: float, height: float, least: float = 0.6, fill: str = "") -> None:
        """Add a block from time `a` to time `b`, at least `least` wide; `fill` names a hatching."""
        paint = f' fill="url(#{self._ident}-{fill})"' if fill else ""
        wide = max(self.x(b) - self.x(a), least)
        self.add(
            f'<rect class="{kind}"{paint} x="{self.x(a):.2f}" y="{y:.1f}" width="{wide:.2f}" height="{height:.1f}"/>'
        )

    def lane(self, name: str, y: float, height: float, words_y: float) -> None:
        """Add the ground of a lane that is as long as the axis, and its name."""
        self.text("label", self.left - 10, words_y, name, "end")
        self.add(f'<rect class="lane" x="{self.left}" y="{y:.1f}" width="{self.plot}" height="{height:.1f}"/>')

    def axis(self, count: int, top: float, bottom: float, words_y: float) -> None:
        """Add about `count` lines at round milliseconds since the start, from `top` to `bottom`."""
        for tick in ticks(self._span / 1e3, count):
            at = self.x(self._start + tick * 1e3)
            self.path("grid", f"M{at:.1f} {top}V{bottom:.1f}")
            self.text("tick", at, words_y, f"{tick:g}", "middle")
        self.text("tick", self.left - 10, words_y, "ms", "end")

    @contextmanager
    def row(self, words: str, y: float, height: float) -> Iterator[None]:
        """Group what is added meanwhile as a row that a reader can point at; `words` describe it."""
        self.add(f'<g class="row" data-readout="{escape(words)}">')
        self.add(f'<rect class="hit" x="0" y="{y:.1f}" width="{WIDTH}" height="{height:.1f}"/>')
        yield
        self.add("</g>")

    def svg(
        self, label: str, height: float, hatchings: Sequence[str] = ("exposed", "barrier"), more: str = ""
    ) -> Markup:
        """Return the element; `label` says what it shows, for readers who do not see it."""
        angles = {"exposed": 45, "barrier": -45}
        patterns = "".join(
            f'<pattern id="{self._ident}-{cause}" class="{cause}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({angles[cause]})"><rect width="7" height="7"/><path d="M0 0V7"/></pattern>'
            for cause in hatchings
        )
        return Markup(
            f'<svg class="timeline{more}" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
            f'aria-label="{escape(label)}"><defs>{patterns}</defs>{"".join(self._out)}</svg>'
        )


def ticks(end: float, count: int) -> list[float]:
    """Return round numbers from 0 to `end`, about `count` of them."""
    step = 10.0 ** int(f"{end / count:e}".split("e")[1])
    step *= next(m for m in (1, 2, 5, 10) if step * m * count >= end * 0.999 or m == 10)
    return [i * step for i in range(4 * count) if i * step <= end * (1 + 1e-12)]
