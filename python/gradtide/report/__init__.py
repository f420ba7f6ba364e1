"""Reports of finished runs: one HTML file without external resources, and a Perfetto trace.

The only input is a run folder, so that reports can also be made of folders of another version, or written by hand. Each
kind of study has a module with the content of its report, such as `run.py` and the modules of `tenants/`. Templates,
styles and scripts are in `assets/`, drawings in `timeline.py`, `lanes.py`, `progress.py` and `scatter.py`. A page
contains no time stamp and nothing about the machine that renders it, so equal folders give equal bytes.
"""

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
from markupsafe import Markup, escape

from gradtide.files import write_listed
from gradtide.report import (
    answer,
    buy,
    check,
    collectives,
    compare,
    emulate,
    meshes,
    pieces,
    plan,
    reproduce,
    run,
    sharding,
    site,
    sweep,
    waterfall,
)
from gradtide.report.folder import Row, RunFolderError, entry, read_json, refuse_other
from gradtide.report.perfetto import encode_timeline
from gradtide.report.tenants import bands, boundary, lp, policies
from gradtide.schemas import newer_version

__all__ = ["RunFolderError", "encode_timeline", "read_summary", "render", "write_report", "write_timeline"]

MAX_BYTES = 400_000
"""Largest size of a report in bytes, so that it can be sent by e-mail."""

_UPLOT = "uplot-1.6.32"

# CSS variables of colours: (light theme, dark theme). A colour has one meaning in all reports: `compute` to `slowdown`
# are parts of an iteration, `good`, `warn` and `bad` are verdicts, and `s1` to `s7` are alternatives such as schedules.
# Tests check that colours of these groups differ enough, and that the contrast of texts is at least 4.5:1. Hues are
# from Okabe & Ito (2008), so that colour-blind readers can distinguish them.
_TOKENS = {
    "bg": ("#ffffff", "#11161d"),
    "panel": ("#f3f5f8", "#1b222c"),
    "text": ("#141a22", "#e9edf3"),
    "muted": ("#55606f", "#a7b1bf"),
    "line": ("#d8dde4", "#343e4b"),
    "link": ("#0b5cad", "#7db8f5"),
    "focus": ("#0b5cad", "#7db8f5"),
    "good": ("#006b52", "#45cfa6"),
    "compute": ("#2b6cb3", "#6fa8e8"),
    "backward": ("#1c4676", "#4a7cb8"),
    "transfer": ("#00876a", "#2cbd96"),
    "slack": ("#c9e8de", "#1d4a40"),
    "exposed": ("#c2410c", "#ff8a50"),
    "exposed-soft": ("#fbe3d6", "#4a2817"),
    "exposed-text": ("#b03a0a", "#ff9a68"),
    "barrier": ("#93468f", "#d993d4"),
    "barrier-soft": ("#f1ddf0", "#432743"),
    "barrier-text": ("#84387f", "#dfa0da"),
    "slowdown": ("#8a6400", "#e6b43c"),
    "update": ("#64748f", "#9fb0c8"),
    "recompute": ("#6f9fd8", "#c4dcfa"),
    "on-colour": ("#ffffff", "#11161d"),
    "bad": ("#b3261e", "#ff8a80"),
    "warn": ("#f2c14e", "#f2c14e"),
    "on-warn": ("#141a22", "#141a22"),
    "band-same": ("#b8185f", "#ff85b4"),
    "band-low": ("#0a7d94", "#4cc3da"),
    "cell-green": ("#93d9c0", "#49b394"),
    "on-green": ("#0b2b22", "#0b1f19"),
    "cell-yellow": ("#ffe08a", "#f2c14e"),
    "on-yellow": ("#141a22", "#141a22"),
    "cell-red": ("#a3201a", "#b0281f"),
    "on-red": ("#ffffff", "#ffffff"),
    "shade-0": ("#e8f0f9", "#1d2a3a"),
    "on-shade-0": ("#141a22", "#e9edf3"),
    "shade-1": ("#c4daf1", "#20466e"),
    "on-shade-1": ("#141a22", "#ffffff"),
    "shade-2": ("#8dbae4", "#2d68a3"),
    "on-shade-2": ("#141a22", "#ffffff"),
    "shade-3": ("#2f6fb5", "#6fa8e8"),
    "on-shade-3": ("#ffffff", "#11161d"),
    "shade-4": ("#174a80", "#b9d8fb"),
    "on-shade-4": ("#ffffff", "#11161d"),
    "axis-tp": ("#5a4fcf", "#a79dff"),
    "axis-cp": ("#6b7a1f", "#b5c45a"),
    "axis-ep": ("#b8185f", "#ff85b4"),
    "axis-fsdp": ("#0a7d94", "#4cc3da"),
    "axis-dp": ("#8d6e52", "#c9a27e"),
    "axis-pp": ("#c98a00", "#fff2a0"),
    "axis-other": ("#8793a3", "#7b8797"),
    "s1": ("#0a7d94", "#4cc3da"),
    "s2": ("#b8185f", "#ff85b4"),
    "s3": ("#6b7a1f", "#b5c45a"),
    "s4": ("#5a4fcf", "#a79dff"),
    "s5": ("#8d6e52", "#c9a27e"),
    "s6": ("#8793a3", "#7b8797"),
    "s7": ("#141a22", "#e9edf3"),
}

_CAPS = (
    pieces.Caps(200, 6, 8, 12, 40_000),
    pieces.Caps(60, 3, 4, 8, 10_000),
    pieces.Caps(20, 1, 2, 4, 3_000),
    pieces.Caps(8, 1, 1, 2, 500),
)


_VIEWS = {
    "gradtide.run/1": run.view,
    "gradtide.compare/1": compare.view,
    "gradtide.reproduce/1": reproduce.view,
    "gradtide.tenants/1": bands.view,
    "gradtide.boundary/1": boundary.view,
    "gradtide.policies/1": policies.view,
    "gradtide.buy/1": buy.view,
    "gradtide.planning/1": plan.view,
    "gradtide.collectives/1": collectives.view,
    "gradtide.lp/1": lp.view,
    "gradtide.waterfall/1": waterfall.view,
    "gradtide.meshes/1": meshes.view,
    "gradtide.sharding/1": sharding.view,
    "gradtide.sweep/1": sweep.view,
    "gradtide.check/1": check.view,
    "gradtide.emulation/1": emulate.view,
    "gradtide.site/1": site.view,
}
_INDEX = ("gradtide.site/1",)
"""Schemas whose report is an index of other reports, and is written to `index.html`."""


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` into a finished run or study folder, replacing an older one, and return its path.

    The file is `index.html` for the index of a site.

    Raises:
        RunFolderError: if a file of the folder is missing, truncated or garbled; nothing is written then.
    """
    page = render(Path(run_dir)).encode("utf-8")
    name = "index.html" if read_summary(run_dir)["schema"] in _INDEX else "report.html"
    return write_listed(Path(run_dir) / name, page)


def write_timeline(run_dir: Path | str) -> Path:
    """Write `timeline.pftrace` into a finished run folder, replacing an older one, and return its path.

    https://ui.perfetto.dev displays the file.

    Raises:
        RunFolderError: if a file of the folder is missing, truncated or garbled; nothing is written then.
    """
    return write_listed(Path(run_dir) / "timeline.pftrace", encode_timeline(Path(run_dir)))


def read_summary(run_dir: Path | str) -> dict[str, Any]:
    """Return the figures of a finished run or study: its `summary.json`.

    Raises:
        RunFolderError: if the file is missing, truncated or garbled.
    """
    return read_json(Path(run_dir) / "summary.json")


def render(run_dir: Path) -> str:
    """Return the report of a finished run or study folder: an HTML document of less than `MAX_BYTES`.

    Rows and charts that would exceed the size are left out, and the page says how many.
    """
    path = run_dir / "summary.json"
    summary = read_json(path)
    schema = entry(path, summary, "schema", str)
    refuse_other(run_dir)
    newer = newer_version(schema, _VIEWS)
    if newer is not None:
        raise RunFolderError(f"{path} {newer}; read it with that version, or update gradtide")
    if schema not in _VIEWS:
        raise RunFolderError(f"{path}: key `schema`: `{pieces.clip(schema)}` is none of {', '.join(_VIEWS)}")
    for caps in _CAPS:
        template, view = _VIEWS[schema](run_dir, summary, caps)
        page = _page(template, view, run_dir, summary, caps)
        if len(page.encode("utf-8")) < MAX_BYTES:
            break
    return page


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "assets")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["whole"] = _whole
    return templates


def _page(template: str, view: dict[str, Any], run_dir: Path, summary: Row, caps: pieces.Caps) -> str:
    light, dark = ("".join(f"--{k}:{v[i]};" for k, v in _TOKENS.items()) for i in (0, 1))
    css = (
        f":root{{color-scheme:light;{light}}}"
        "@media screen and (prefers-color-scheme:dark){"
        f":root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
    # Makes uPlot draw canvases with at least two device pixels per CSS pixel, so that charts are sharp in print.
    uplot = (
        f"/*!\n{_asset(_UPLOT + '.LICENSE.txt')}\n*/\nconst uPlot = (() => {{\n"
        "const devicePixelRatio = Math.max(2, window.devicePixelRatio || 1);\n"
        f"{_asset(_UPLOT + '.iife.min.js')}\nreturn uPlot;\n}})();\n"
    )
    context = {"reproduce": "", **view, **answer.view(run_dir / "summary.json", summary, caps)}
    # The summary of a recorded step has no premises. The view of its report makes the line of premises instead.
    context["rests_on"] = context["rests_on"] or view.get("rests_on", [])
    versions = read_json(run_dir / "versions.json")
    known = [f"{key} {pieces.clip(versions[key])}" for key in ("gradtide", "python", "platform") if key in versions]
    facts = [f"{key} {pieces.clip(summary[key])}" for key in ("engine", "accuracy", "seed") if key in summary]
    sha = summary.get("scenario_sha256")
    if isinstance(sha, str):
        facts.append(f"scenario sha256 {sha[:12]}")
    return (
        _templates()
        .get_template(template)
        .render(
            css=Markup(css + _asset(_UPLOT + ".min.css") + _asset("report.css")),
            js=Markup(uplot + _asset("report.js")),
            headline=_first_sentence(pieces.clip(entry(run_dir / "summary.json", summary, "headline", str), 600)),
            version=pieces.clip(summary.get("version", "")),
            versions=" · ".join(known + facts),
            **context,
        )
    )


_SENTENCE = re.compile(r"(.*?(?<!\bfig)(?<!\beq)\.\s+)(?=[A-Z0-9])(.*)", re.DOTALL)


def _first_sentence(headline: str) -> tuple[str, str]:
    """Split a headline into its first sentence, which the page shows in large type, and the remaining sentences."""
    found = _SENTENCE.fullmatch(headline)
    return (found[1], found[2]) if found else (headline, "")


_QUANTITY = re.compile(r"(\d[\d.,]* (?:%|[mun]?s|[kMG]?B|[kMG]?bit/s)(?!\w))")
"""A number and its unit. A line must not break between the two."""


def _whole(text: str) -> Markup:
    """Return a text as HTML without line breaks between numbers and their units."""
    parts = (
        Markup('<span class="whole">{}</span>').format(part) if index % 2 else escape(part)
        for index, part in enumerate(_QUANTITY.split(text))
    )
    return Markup("").join(parts)


class _Command(ModuleType):
    """Type of this module, which makes the module callable: `gradtide.report("out/run")` writes a report."""

    def __call__(self, run_dir: Path | str) -> Path:
        """Write the report of a finished run or study again, and return its path."""
        return write_report(run_dir)


sys.modules[__name__].__class__ = _Command
