"""Makes the pictures of README and docs/gallery.md from real runs: `python tools/pictures.py [NAME…]`; needs Chromium.

A picture is a screenshot of a part of a report. The gallery shows the command of the report above the picture; this
file has only the part.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
GALLERY = ROOT / "docs" / "gallery.md"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
# Script for elements that only a live page has.
LIVE = """
.timeline-readout, output, details, .skip, .more { display: none !important; }
.more-right { mask-image: none !important; }
"""


class Part(NamedTuple):
    """Part of a report in a picture: from the top of one element to the top of a later one."""

    report: str
    first: str
    until: str


PICTURES = {
    # Pictures of README.
    "meshes": Part("out/meshes/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    "rates": Part("out/rates/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    "tenants": Part("out/tenants/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    # Pictures of the gallery.
    "timeline": Part("out/demo/report.html", "h2:has-text('One iteration')", "h2:has-text('All groups')"),
    "trace": Part("out/step/report.html", "h2:has-text('Where the step goes')", "h2:has-text('What would help')"),
    "lanes": Part("out/llama/report.html", "h3:has-text('One iteration')", "h3:has-text('Stages of the pipeline')"),
    "plan": Part("out/plan/report.html", "h2:has-text('Searched plans')", "h2:has-text('Buckets of the plan')"),
    "collectives": Part("out/collectives/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    "buy": Part("out/buy/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    "sweep": Part("out/sweep/report.html", "h2 >> nth=0", "h2 >> nth=1"),
    "map": Part("out/map/report.html", "h2 >> nth=0", "h2 >> nth=2"),
    "papers": Part("out/papers/index.html", "h1", "h2 >> nth=1"),
}


def commands() -> Iterator[tuple[str, str]]:
    """Yield each picture of the gallery and of README, with its commands."""
    readme = r"^```console\n\$ (.*)\n(?:(?!```).*\n)*```\n+!\[[^\]]*\]\(docs/images/(\w+)\.png\)"
    for command, name in re.findall(readme, (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE):
        yield name, f"{command} -q -o out/{name}"
    pattern = r"^```(?:console|sh)\n(.*?)^```\n+\[!\[[^\]]*\]\(images/(\w+)\.png\)"
    for block, name in re.findall(pattern, GALLERY.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        lines = [line[2:] for line in block.splitlines() if line.startswith(("$ ", "> "))]
        yield name, "\n".join(lines or block.splitlines())


def photograph(page: Page, part: Part, report: Path, to: Path) -> None:
    """Write a part of a report as PNG."""
    page.goto(report.as_uri())
    page.add_style_tag(content=LIVE)
    main, first, until = (page.locator(at).first.bounding_box() for at in ("main", part.first, part.until))
    assert main is not None
    assert first is not None
    assert until is not None
    clip = {"x": main["x"], "y": first["y"] - 8, "width": main["width"], "height": until["y"] - first["y"] - 8}
    page.screenshot(path=to, clip=clip, full_page=True)


def main() -> None:
    """Run the commands of the named pictures, or of all, and take screenshots of their reports."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH")
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.copytree(ROOT / "scenarios", Path(folder) / "scenarios")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 980, "height": 1400}, device_scale_factor=1.3)
        for name, command in commands():
            if not sys.argv[1:] or name in sys.argv[1:]:
                print(name, flush=True)
                subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": paths}, check=True)
                photograph(page, PICTURES[name], Path(folder) / PICTURES[name].report, IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
