"""The report of `gradtide tenants lp`: start and band of each bucket, and how policies affect the job and the flows."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, RunFolderError, entry, row_of
from gradtide.report.tenants import change, saved

_WIDTH, _LEFT, _RIGHT, _ROW = 1080.0, 96.0, 16.0, 16.0
_NUMBER = (int, float)
_TIMES = ("ready", "start", "end", "needed", "slack", "margin")
_FIGURES = ("small_mean_fct_ms", "small_p99_fct_ms", "large_mean_fct_ms", "large_p99_fct_ms")


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a linear programme."""
    path = run_dir / "summary.json"
    buckets = _rows(path, summary, "buckets", ("layers",), ("bytes", "band", *(f"{key}_ms" for key in _TIMES)))
    numbers = ("high_percent", "predicted_ms", "simulated_ms", "error_percent")
    policies = _rows(path, summary, "policies", ("policy",), numbers)
    bands = sorted({bucket["band"] for bucket in buckets})
    plotted = [row for row in policies if isinstance(row.get(_FIGURES[0]), _NUMBER) and row[_FIGURES[0]] > 0]
    figures = ("#bytes in high band, %", "#predicted, ms", "#simulated, ms", "#difference, %")
    changes = ("#iteration time, %", "#interval, %", "#small flows sooner, %", "#interval, %")
    columns = [f"#{size} flows, {figure}, ms" for size, figure, *_ in (key.split("_") for key in _FIGURES)]
    return "lp.html.j2", {
        "title": "gradtide tenants: start and band",
        "what": f"{pieces.clip(entry(path, summary, 'model', str))}, bucket by bucket",
        "reproduce": "",
        "drawn": _drawn(buckets[: caps.rows], bands),
        "bands": scatter.legend(f"band {band}" for band in bands),
        "buckets": pieces.table(
            "Buckets in the order in which they are sent",
            ("layers", "#MB", *(f"#{key}, ms" for key in _TIMES), "#band"),
            [
                [b["layers"], f"{b['bytes'] / 1e6:.2f}", *(pieces.ms(b[f"{key}_ms"]) for key in _TIMES), str(b["band"])]
                for b in buckets
            ],
            cap=caps.rows,
            where="summary.json",
        ),
        "plot": _plot(plotted) if plotted else None,
        "policies": pieces.table(
            "Policies",
            ("bands", *figures, *columns, *changes),
            [_policy(row) for row in policies],
            cap=caps.rows,
        ),
        "times": pieces.clip(entry(path, summary, "transfer_times", str)),
        "seeds": len(entry(path, summary, "seeds", list)),
        "proof": _proof(path, summary),
    }


def _proof(path: Path, summary: Row) -> str:
    if entry(path, summary, "optimal", bool):
        return "proven optimal for these transfer times"
    least_ms = pieces.ms(entry(path, summary, "lower_bound_ms", _NUMBER))
    share = entry(path, summary, "least_high_percent", _NUMBER)
    return (
        f"not proven optimal: no solution takes less than {least_ms} ms, and no solution with this time sends less "
        f"than {share:.1f} % of the bytes in the high band"
    )


def _rows(path: Path, summary: Row, key: str, texts: Sequence[str], numbers: Sequence[str]) -> list[Row]:
    found: list[Row] = entry(path, summary, key, list)
    if not found:
        raise RunFolderError(f"{path}: key `{key}`: at least one item was expected")
    for index, row in enumerate(found):
        row_of(path, key, row, index, words=texts)
        for name in numbers:
            entry(path, row, name, _NUMBER)
    return found


def _policy(row: Row) -> list[str]:
    return [
        row["policy"],
        f"{row['high_percent']:.1f}",
        pieces.ms(row["predicted_ms"]),
        pieces.ms(row["simulated_ms"]),
        f"{row['error_percent']:+.1f}".replace("-", "−"),
        *(pieces.ms(row[key]) if isinstance(row.get(key), _NUMBER) else "–" for key in _FIGURES),
        *_changed(row, "iteration_change", change),
        *_changed(row, "small_mean_saves", saved),
    ]


def _changed(row: Row, name: str, write: Callable[[float | None], str]) -> list[str]:
    """Return the change against policy `same` and its interval as texts; unknown values are dashes."""
    value, *ends = (row.get(f"{name}{end}_percent") for end in ("", "_from", "_to"))
    known = all(isinstance(end, _NUMBER) for end in ends)
    return [
        write(value if isinstance(value, _NUMBER) else None),
        f"{saved(ends[0])} to {saved(ends[1])}" if known else "–",
    ]


def _plot(rows: Sequence[Row]) -> Markup:
    points = [
        scatter.Point(
            x=row[_FIGURES[0]],
            y=row["simulated_ms"],
            colour=place,
            shape=place,
            words=f"{row['policy']}: iterations of {pieces.ms(row['simulated_ms'])} ms, small flows "
            f"{pieces.ms(row[_FIGURES[0]])} ms, {row['high_percent']:.0f} % of the bytes in the high band",
            label=row["policy"],
        )
        for place, row in enumerate(rows)
    ]
    return scatter.draw(
        points,
        [],
        label="Iteration time against mean completion time of small flows",
        xlabel="mean completion time of small background flows, ms",
        ylabel="iteration time, ms",
    )


def _drawn(buckets: Sequence[Row], bands: Sequence[int]) -> Markup:
    """Draw a row per bucket: the window between its ready and needed times, and its transfer in its band's colour."""
    last = max(max(bucket["end_ms"], bucket["needed_ms"]) for bucket in buckets) or 1.0
    height = _ROW * len(buckets) + 28
    label = "Buckets: windows from ready to needed, and transfers"
    tokens = dict(zip(bands, cycle(scatter.TOKENS), strict=False))
    out = [f'<svg class="timeline" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{label}">']

    def at(time_ms: float) -> float:
        return _LEFT + time_ms / last * (_WIDTH - _LEFT - _RIGHT)

    for place, bucket in enumerate(buckets):
        ready, start, end, needed = (bucket[f"{key}_ms"] for key in ("ready", "start", "end", "needed"))
        top = _ROW * place + 2
        words = (
            f"layers {bucket['layers']}: ready {ready:.2f}, sent {start:.2f} to {end:.2f}, needed {needed:.2f} ms, "
            f"band {bucket['band']}"
        )
        bar = f'x="{at(start):.1f}" width="{max(at(end) - at(start), 1):.1f}" y="{top:g}" height="{_ROW - 5:g}"'
        name = escape(pieces.clip(bucket["layers"], 12))
        colour = f"fill:var(--{tokens[bucket['band']]})"
        window = f'x="{at(ready):.1f}" width="{max(at(needed) - at(ready), 0):.1f}" y="{top:g}" height="{_ROW - 5:g}"'
        out.append(
            f'<g class="row" data-readout="{escape(words)}"><title>{escape(words)}</title>'
            f'<text x="{_LEFT - 8:g}" y="{top + 10:g}" text-anchor="end">{name}</text>'
            f'<rect class="slack" {window}/><rect style="{colour}" {bar}/>'
            f'<path class="needed" d="M{at(needed):.1f} {top - 1:g}v{_ROW - 3:g}"/></g>'
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        anchor = "end" if share == 1 else "middle"
        text = f"{pieces.ms(share * last)} ms"
        out.append(
            f'<text class="tick" x="{at(share * last):.1f}" y="{height - 8:g}" text-anchor="{anchor}">{text}</text>'
        )
    out.append("</svg>")
    return Markup("".join(out))
