"""Tables of the presets in Markdown for docs/models/compute.md, and what the devices are calibrated against.

python tools/make_model_presets.py --table models|devices|checks
"""

from dataclasses import dataclass

from gradtide.presets import device, device_names, document, list_presets, model
from gradtide.roofline import PICOSECONDS_PER_SECOND, roofline

TABLES = ("models", "devices", "checks")


@dataclass(frozen=True)
class Published:
    """A published training throughput of one device; the first of a device calibrates its efficiency."""

    device: str
    model: str
    batch: int
    images_per_s: float
    source: str
    calibrates: bool


def published_throughputs() -> list[Published]:
    """Return the published figures that the devices are calibrated against and checked with."""
    devices = document("devices.toml")
    figures: list[Published] = []
    for entry in devices["published"]:
        is_first = all(figure.device != entry["device"] for figure in figures)
        known = {**entry, "images_per_s": float(entry["images_per_s"]), "source": devices["source"][entry["source"]]}
        figures.append(Published(**known, calibrates=is_first))
    return figures


def images_per_s(model_name: str, device_name: str, batch: int) -> float:
    """Return the predicted training throughput of one device that never waits for the network, samples/s."""
    rows = roofline(model(model_name), device(device_name), batch)
    return batch * PICOSECONDS_PER_SECOND / sum(row.forward_ps + row.backward_ps for row in rows)


def markdown_table(table: str) -> str:
    """Render one table of the compute page.

    Args:
        table: `models`, `devices` or `checks` (published throughput beside ours).

    Raises:
        ValueError: if there is no such table.
    """
    rows: list[tuple[str, ...]]
    if table == "models":
        presets = list_presets("model")
        rows = [
            (
                f"`{row['name']}`",
                row["title"],
                row["sample"],
                f"{row['parameter_mib']:.2f}",
                f"{row['forward_gflop']:.3f}",
            )
            for row in presets
        ]
        counted = dict.fromkeys(row["source"].partition(";")[0] for row in presets)
        head = ("preset", "model", "sample", "parameters, MiB", "forward, GFLOP")
        return f"{_render(head, rows)}\n\nSources: {'; '.join(counted)}."
    if table == "devices":
        return _render(
            (
                "preset",
                "device",
                "precision",
                "bytes an element",
                "peak, TFLOP/s",
                "memory, GB/s",
                "Winograd gain",
                "compute efficiency",
                "from",
            ),
            [
                (
                    f"`{d.name}`",
                    d.title,
                    d.precision,
                    str(d.element_bytes),
                    f"{d.peak_flops / 1e12:g}",
                    f"{d.memory_bytes_per_s / 1e9:g}",
                    f"{d.winograd_gain:g}",
                    "–" if d.compute_efficiency is None else f"{d.compute_efficiency:g}",
                    f"{d.efficiency}: {d.basis}",
                )
                for d in map(device, device_names())
            ],
        )
    if table == "checks":
        rows = []
        for figure in published_throughputs():
            ours = images_per_s(figure.model, figure.device, figure.batch)
            ratio = 100 * (ours / figure.images_per_s - 1)
            rows.append(
                (
                    f"`{figure.device}`",
                    f"`{figure.model}`",
                    str(figure.batch),
                    f"{figure.images_per_s:g}",
                    f"{ours:.0f}",
                    "calibrates" if figure.calibrates else f"{ratio:+.0f} %",
                    figure.source,
                )
            )
        return _with_sources(("device", "model", "batch", "published, images/s", "ours", "difference", "source"), rows)
    raise ValueError(f"table must be one of {', '.join(TABLES)}, got {table!r}")


def _with_sources(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Render rows whose last cell is a source, with a number in its place and the sources in a list below."""
    sources = list(dict.fromkeys(row[-1] for row in rows))
    table = _render(head, [(*row[:-1], str(1 + sources.index(row[-1]))) for row in rows])
    return "\n".join([table, "", *(f"{number}. {text}" for number, text in enumerate(sources, 1))])


def _render(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
