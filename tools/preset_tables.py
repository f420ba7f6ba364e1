"""Tables of the presets in Markdown for docs/models/compute.md, and the published figures that calibrate devices.

python tools/make_model_presets.py --table devices|checks
"""

from dataclasses import dataclass

from gradtide.presets import device, device_names, document, model
from gradtide.roofline import PICOSECONDS_PER_SECOND, roofline

TABLES = ("devices", "checks")


@dataclass(frozen=True)
class Published:
    """A published training throughput of one device. The first figure of a device calibrates its efficiency."""

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
    """Return the predicted training throughput in samples/s of one device without waits for the network."""
    rows = roofline(model(model_name), device(device_name), batch)
    return batch * PICOSECONDS_PER_SECOND / sum(row.forward_ps + row.backward_ps for row in rows)


def markdown_table(table: str) -> str:
    """Render one table of the compute page.

    Args:
        table: `devices` or `checks` (published throughput beside ours).

    Raises:
        ValueError: if there is no such table.
    """
    rows: list[tuple[str, ...]]
    figures = published_throughputs()
    sources = list(dict.fromkeys(figure.source for figure in figures))
    if table == "devices":
        basis = {d.name: d.basis for d in map(device, device_names())}
        for figure in figures:
            if figure.calibrates:
                number = 1 + sources.index(figure.source)
                measured = f"{figure.images_per_s:g} images/s at batch {figure.batch} [{number}]"
                shown = basis[figure.device].replace("first figure below", measured)
                basis[figure.device] = shown if measured in shown else f"{shown}; {measured}"
        rows = [
            (
                f"`{d.name}`",
                f"{d.compute_efficiency:g}",
                f"{d.efficiency}: {basis[d.name]}",
            )
            for d in map(device, device_names())
            if d.compute_efficiency is not None
        ]
        return _render(("preset", "e_c", "from"), rows)
    if table == "checks":
        rows = []
        for figure in figures:
            if figure.calibrates:
                continue
            ours = images_per_s(figure.model, figure.device, figure.batch)
            ratio = 100 * (ours / figure.images_per_s - 1)
            rows.append(
                (
                    f"`{figure.device}`",
                    f"`{figure.model}`",
                    str(figure.batch),
                    f"{figure.images_per_s:g}",
                    f"{ours:.0f}",
                    f"{ratio:+.0f} %",
                    str(1 + sources.index(figure.source)),
                )
            )
        head = ("device", "model", "batch", "published, images/s", "ours", "difference", "source")
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(sources, 1))
        return f"{_render(head, rows)}\n\n{listed}"
    raise ValueError(f"table must be one of {', '.join(TABLES)}, got {table!r}")


def _render(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
