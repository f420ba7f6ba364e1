"""Make the pictures of README and docs from real runs: `python tools/pictures.py`; needs Chromium.

Each is a piece of a report as a reader sees it, photographed.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from gradtide.studies import compare, demo

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = compare.run_variants(demo.variants(), jobs=2).save(Path(folder) / "demo") / "report.html"
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 980, "height": 1400}, device_scale_factor=1.5)
        page.goto(report.as_uri())
        # From "One iteration" to the end of the second timeline, without what only a live page can do.
        page.add_style_tag(content=".timeline-readout, output, details, .skip { display: none !important; }")
        first = page.locator("h2", has_text="One iteration").bounding_box()
        last = page.locator("svg.timeline").nth(1).bounding_box()
        assert first is not None
        assert last is not None
        left, right = first["x"] - 12, last["x"] + last["width"] + 12
        height = last["y"] + last["height"] - first["y"] + 8
        clip = {"x": left, "y": first["y"] - 8, "width": right - left, "height": height}
        page.screenshot(path=ROOT / "docs" / "images" / "timeline.png", clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
