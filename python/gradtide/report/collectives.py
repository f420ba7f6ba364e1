"""The report of `gradtide collectives`: exchange time over size, and its parts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry, read_table
from gradtide.report.run import resolved_scenario

TERMS = (
    ("latency", "latency", "latency"),
    ("bandwidth", "bandwidth", "transfer"),
    ("contention", "contention", "contention"),
)
SHOWN = 3
"""Number of sizes whose exchange times are broken down into latency, bandwidth and contention."""


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a comparison of collectives."""
    path = run_dir / "summary.json"
    rows = read_table(run_dir, "collectives.csv")
    if not rows:
        raise RunFolderError(f"{run_dir / 'collectives.csv'}:2: at least one row was expected")
    if any(row["exchange_us"] <= 0 or row["bytes"] <= 0 for row in rows):
        raise RunFolderError(f"{run_dir / 'collectives.csv'}: a size or time is not above 0")
    names = list(dict.fromkeys(row["collective"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows})
    found = {(row["collective"], row["bytes"]): row for row in rows}
    times_ms = {key: row["exchange_us"] / 1e3 for key, row in found.items()}
    where = pieces.clip(entry(path, summary, "where", str), 120)
    crossings = [float(entry(path, span, "from_bytes", (int, float))) for span in entry(path, summary, "winners", list)]
    chart = pieces.chart(
        "Exchange time over size",
        x=pieces.Axis([size / 1e6 for size in sizes], "gradient, MB", "at", "MB"),
        lines=[
            pieces.line(i, words.collective(name), [times_ms.get((name, size)) for size in sizes])
            for i, name in enumerate(names[:12])
        ],
        ylabel="exchange time, ms",
        xlog=len(sizes) > 1,
        ylog=True,
        marks=_marks(crossings[1:12]),
        cap=caps.rows,
    )
    chosen = sorted({sizes[round(i * (len(sizes) - 1) / max(SHOWN - 1, 1))] for i in range(SHOWN)})

    def time(key: str) -> Callable[[Row], str]:
        return lambda row: pieces.ms(row[f"{key}_us"] / 1e3)

    columns: pieces.Columns = {
        "exchanged by": lambda row: words.collective(row["collective"]),
        "#size": lambda row: words.size(row["bytes"]),
        "#exchange, ms": time("exchange"),
        **{f"#{name}, ms": time(key) for key, name, _ in TERMS},
    }
    return "collectives.html.j2", {
        "title": "gradtide compare: collectives",
        "what": f"{len(names)} collectives on {where}",
        "chart": chart,
        "bars": [
            {"title": words.size(size), "waterfall": _bars([found[n, size] for n in names if (n, size) in found])}
            for size in chosen
        ],
        "winners": _winners(path, summary, caps),
        "times": _times(names, sizes, found, caps),
        "everything": pieces.listing("All terms", columns, rows, cap=caps.rows, where="collectives.csv"),
        "scenario": resolved_scenario(run_dir, caps),
    }


def _marks(crossings: Sequence[float]) -> list[dict[str, Any]]:
    """Return a vertical line per size at which the fastest collective changes; of close lines, the last has a label."""
    return [
        {"x": size / 1e6, "label": "" if any(size < other < 2.5 * size for other in crossings) else words.size(size, 2)}
        for size in crossings
    ]


def _bars(rows: Sequence[Row]) -> dict[str, Any]:
    longest = max(row["exchange_us"] for row in rows)
    bars = []
    for row in sorted(rows, key=lambda row: row["exchange_us"])[:16]:
        parts = []
        for key, name, kind in TERMS:
            value_us = max(row[f"{key}_us"], 0.0)
            text = f"{name} {pieces.ms(value_us / 1e3)} ms"
            parts.append(pieces.part(kind, text, 100 * value_us / longest, (text, pieces.ms(value_us / 1e3)), 85))
        total = f"{pieces.ms(row['exchange_us'] / 1e3)} ms"
        name = words.collective(row["collective"])
        label = f"{name}: {total}; " + "; ".join(part["words"] for part in parts)
        best = row["is_best"] and row["exchange_us"] < longest
        bars.append({"name": name, "parts": parts, "total": total, "label": label, "best": best})
    return {"rows": bars, "legend": [pieces.meaning(kind, name) for _, name, kind in TERMS]}


def _winners(path: Path, summary: Row, caps: pieces.Caps) -> dict[str, Any]:
    rows = []
    for index, span in enumerate(entry(path, summary, "winners", list)):
        low, high = (entry(path, span, key, (int, float)) for key in ("from_bytes", "to_bytes"))
        because, rival = entry(path, span, "because", str), entry(path, span, "next", str)
        why = f"less {because} than {words.collective(rival)}" if because else "the only one"
        name = words.collective(entry(path, span, "collective", str))
        fastest = pieces.cell(name, "best", f"winners.{index}.collective")
        rows.append([words.size(low, 2), words.size(high, 2), fastest, why])
    return pieces.table("The fastest collective by size", ("#from", "#to", "fastest", "reason"), rows, cap=caps.rows)


def _times(
    names: Sequence[str], sizes: Sequence[int], found: dict[tuple[str, int], Row], caps: pieces.Caps
) -> dict[str, Any]:
    def cell(row: Row | None) -> object:
        if row is None:
            return "–"
        return pieces.cell(pieces.ms(row["exchange_us"] / 1e3), "best" if row["is_best"] else "")

    rows = [[words.collective(name), *(cell(found.get((name, size))) for size in sizes)] for name in names]
    columns = ("exchange, ms", *(f"#{words.size(size)}" for size in sizes))
    return pieces.table("Exchange time by size", columns, rows, cap=caps.rows, where="collectives.csv")
