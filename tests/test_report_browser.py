"""Reports in headless Chromium, from file://: layout, texts, keyboard and print."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradtide.report import write_report
from run_folders import (
    make_boundary,
    make_buy,
    make_check,
    make_collectives,
    make_evil_waterfall,
    make_lp,
    make_meshes,
    make_plan,
    make_policies,
    make_reproduce,
    make_run,
    make_site,
    make_study,
    make_sweep,
    make_tenants,
    make_waterfall,
    nasty,
    nasty_tenants,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    executable = os.environ.get("GRADTIDE_CHROMIUM") or shutil.which("chromium")
    if executable is None and not os.environ.get("GRADTIDE_REQUIRE_BROWSER"):
        pytest.skip("no Chromium: set GRADTIDE_CHROMIUM to its path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One report of each kind, by name."""
    root = tmp_path_factory.mktemp("pages")
    make_run(root / "fifo", rate_bps=1_000_000_000)
    make_run(root / "priority", rate_bps=1_000_000_000, order="priority", barrier=False)
    for name, options in nasty().items():
        make_run(root / name, **options)
    make_study(root / "compare", models=["resnet50"])
    make_reproduce(root / "reproduce")
    make_site(root / "site")
    for name, noise in {"sweep": 0.0, "sweep-intervals": 0.05}.items():
        make_sweep(root / name, noise)
    make_tenants(root / "tenants")
    make_boundary(root / "boundary")
    make_buy(root / "buy")
    make_check(root / "check")
    make_collectives(root / "collectives")
    make_lp(root / "lp")
    make_meshes(root / "meshes")
    make_plan(root / "plan")
    make_policies(root / "policies")
    make_waterfall(root / "waterfall")
    make_waterfall(root / "late-rank", late_us=40_000.0)
    make_evil_waterfall(root / "evil-waterfall")
    for name, options in nasty_tenants().items():
        make_tenants(root / name, **options)
    shutil.copytree(root / "tenants" / "runs" / "seed0-same", root / "packets")
    shutil.copytree(root / "meshes" / "runs" / "fsdp-16", root / "parallel")
    return {folder.name: write_report(folder) for folder in sorted(root.iterdir())}


class Visit:
    """An open page, and its errors, messages and external requests."""

    def __init__(self, context: "BrowserContext", path: Path) -> None:
        self.faults: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", lambda m: self.faults.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("requestfailed", lambda r: self.faults.append(f"failed: {r.url[:80]}"))
        self.page.on("request", self._requested)
        self.page.goto(path.as_uri())

    def _requested(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith(("file:", "data:,")):
            self.faults.append(f"request: {url[:80]}")


KINDS = [
    "boundary",
    "buy",
    "check",
    "collectives",
    "compare",
    "evil-names",
    "evil-tenants",
    "evil-waterfall",
    "fifo",
    "late-rank",
    "lp",
    "meshes",
    "none-completed",
    "one-layer",
    "one-seed",
    "one-worker",
    "packets",
    "parallel",
    "plan",
    "policies",
    "priority",
    "reproduce",
    "site",
    "sweep",
    "sweep-intervals",
    "tenants",
    "thousand-buckets",
    "two-jobs",
    "two-neighbours",
    "waterfall",
]


CHARTLESS = (
    *("boundary", "check", "evil-waterfall", "late-rank", "lp", "meshes", "one-worker", "parallel", "plan", "policies"),
    *("site", "waterfall"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("name", KINDS)
def test_opens_clean_in_both_themes_and_on_narrow_screens(
    browser: "Browser", pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    visit = Visit(context, pages[name])
    assert pages[name].stat().st_size < 400_000
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    charts = visit.page.locator("script[data-chart]").count()
    assert visit.page.locator(".plot canvas").count() == charts
    assert (charts == 0) == (name in CHARTLESS)
    dark = visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert visit.faults == []
    context.close()


LAYOUT = """() => {
    const found = [], page = document.documentElement.clientWidth;
    const isHidden = (x) => x.closest('[aria-hidden=true], .unseen, .skip');
    const seen = (x) => x.checkVisibility({visibilityProperty: true}) && !isHidden(x);
    const says = (x) => `${x.tagName} ${x.getAttribute('class') ?? ''}: ${x.textContent.trim().slice(0, 40)}`;
    // A scroller is marked by the hint above it.
    const isMarked = (x) => {
        const box = x.closest('.table, .scroll, pre');
        return box?.previousElementSibling?.className === 'more' && box.previousElementSibling.checkVisibility();
    };
    for (const x of document.querySelectorAll('body *')) {
        if (x.closest('script, style, .uplot, details:not([open])') || !seen(x)) continue;
        const box = x.getBoundingClientRect();
        if (box.width && (box.right > page + 1 || box.left < -1) && !isMarked(x)) {
            found.push(`wider than the page by ${Math.round(box.right - page)} px, ${says(x)}`);
        }
        const own = [...x.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own) continue;
        const scale = x.ownerSVGElement ? x.getScreenCTM().a : 1;
        const size = scale ? parseFloat(getComputedStyle(x).fontSize) * scale : 11;
        if (size > 0 && size < 10.95) found.push(`text of ${size.toFixed(1)} px, ${says(x)}`);
    }
    const overlap = (texts, where) => {
        const boxes = texts.filter(seen).map((x) => {
            const range = document.createRange();
            range.selectNodeContents(x);
            return [x, (x.ownerSVGElement ? x : range).getBoundingClientRect()];
        }).filter(([, r]) => r.width > 0 && r.height > 0);
        boxes.forEach(([x, r], i) => boxes.slice(i + 1).forEach(([y, s]) => {
            const wide = Math.min(r.right, s.right) - Math.max(r.left, s.left);
            // The box of a line of text has room above and below the letters.
            const high = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
            if (wide > 1.5 && high > 0.35 * Math.min(r.height, s.height)) {
                found.push(`overlap in ${where}: ${says(x)} / ${says(y)}`);
            }
        }));
    };
    for (const x of document.querySelectorAll('svg.timeline')) overlap([...x.querySelectorAll('text')], 'a drawing');
    for (const x of document.querySelectorAll('.figures, .legend')) overlap([...x.children], 'tiles or a legend');
    for (const x of document.querySelectorAll('.waterfall, .grouped')) {
        overlap([...x.querySelectorAll('.who, .total, th, .one > b')], 'bars');
    }
    for (const x of document.querySelectorAll('tr')) {
        // Cells that stay on screen lie over the others once a table scrolls, not before.
        const pinned = x.closest('.table')?.scrollWidth > x.closest('.table')?.clientWidth + 1;
        if (!pinned) overlap([...x.children], 'a row');
        const cells = [...x.querySelectorAll('td[data-label]')].filter((td) => td.scrollWidth > td.clientWidth + 1);
        found.push(...cells.map((td) => `text beyond its cell: ${says(td)}`));
    }
    return found;
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_every_report_fits_its_screen_without_overlaps_or_small_text(
    browser: "Browser", pages: dict[str, Path], width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844})
    page, found = context.new_page(), {}
    for name in KINDS:
        page.goto(pages[name].as_uri())
        found[name] = page.evaluate(LAYOUT)
    context.close()
    assert {name: faults[:8] for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "name", ["boundary", "buy", "collectives", "compare", "fifo", "lp", "reproduce", "site", "sweep", "tenants"]
)
def test_what_scrolls_on_a_phone_says_so_and_names_and_verdicts_stay_on_screen(
    browser: "Browser", pages: dict[str, Path], name: str
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900})
    visit = Visit(context, pages[name])
    boxes = visit.page.evaluate("""() => [...document.querySelectorAll('.table, .scroll, pre')]
        .filter(x => x.checkVisibility()).map(x => {
            const is_wide = x.scrollWidth > x.clientWidth + 1, hint = x.previousElementSibling;
            const told = hint.className === 'more' && hint.checkVisibility();
            const faded = x.classList.contains('more-right');
            x.scrollLeft = 1e6;
            const edge = x.getBoundingClientRect();
            const pinned = 'tbody td:first-child, thead th:first-child, .verdict, '
                + 'td.agrees:last-child, td.differs:last-child';
            const seen = [...x.querySelectorAll(pinned)].filter(c => c.checkVisibility())
                .map(c => c.getBoundingClientRect())
                .every(c => c.left >= edge.left - 1 && c.right <= edge.right + 1);
            return {is_wide, told, faded, seen};
        })""")
    assert boxes
    for box in boxes:
        assert box["told"] == box["faded"] == box["is_wide"], box
        assert box["seen"], box
    if name in ("buy", "compare", "fifo"):
        assert any(box["is_wide"] for box in boxes)
    # A box that is scrolled to its end does not fade. The scroll event arrives with the next frame.
    frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    visit.page.evaluate(frames)
    assert (
        visit.page.evaluate("[...document.querySelectorAll('.more-right')].filter(x => x.checkVisibility()).length")
        == 0
    )
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visit.faults == []
    context.close()


@pytest.mark.parametrize("width", [1200, 390, 330])
@pytest.mark.parametrize("name", ["collectives", "compare", "fifo", "waterfall"])
def test_no_number_in_a_bar_is_cut_and_none_stands_apart_from_its_unit(
    browser: "Browser", pages: dict[str, Path], name: str, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = Visit(context, pages[name]).page
    pieces = page.evaluate("""() => [...document.querySelectorAll('.bars > span')]
        .map(x => [x.textContent, x.scrollWidth - x.clientWidth])""")
    assert any(text for text, _ in pieces)
    assert [text for text, over in pieces if text and over > 0] == []
    lines = page.evaluate("[...document.querySelectorAll('.whole')].map(x => x.getClientRects().length)")
    assert lines
    assert set(lines) == {1}
    context.close()


def test_names_of_lanes_stay_on_screen_while_a_timeline_scrolls(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    visit = Visit(context, pages["fifo"])
    box = visit.page.locator(".timeline-box").first
    box.evaluate("x => { x.scrollLeft = 400; }")
    names = box.locator("svg.pinned text")
    assert {"forward", "backward", "network"} <= set(names.all_text_contents())
    for place in names.evaluate_all("all => all.map(x => x.getBoundingClientRect().toJSON())"):
        assert 0 <= place["left"] < place["right"] < 160
    visit.page.set_viewport_size({"width": 1280, "height": 844})
    visit.page.wait_for_function("!document.querySelector('svg.pinned')")
    assert visit.faults == []
    context.close()


def test_what_a_reader_sees_is_the_summary(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context()
    page = Visit(context, pages["fifo"]).page
    facts = json.loads((pages["fifo"].parent / "summary.json").read_text(encoding="utf-8"))
    job = facts["jobs"]["train"]
    assert " ".join(page.locator("h1").inner_text().split()) == facts["headline"]
    for key, value, unit in (
        ("iteration_time_ms.mean", f"{job['iteration_time_ms']['mean']:.1f}", "ms"),
        ("utilisation", f"{100 * job['utilisation']:.1f}", "%"),
        ("waterfall_ms.exposed", f"{job['waterfall_ms']['exposed']:.1f}", "ms"),
        ("rho", f"{job['rho']:.2f}", ""),
    ):
        tile = page.locator(f".figures b:has([data-key='jobs.train.{key}'])")
        assert tile.inner_text().split() == [value, *unit.split()]
        assert tile.is_visible()
    # The widths of the pieces of the bar are proportional to their times.
    widths = page.evaluate("[...document.querySelectorAll('.bars span')].map(x => x.getBoundingClientRect().width)")
    parts = [v for v in job["waterfall_ms"].values() if v > 0]
    for width, part in zip(widths, parts, strict=True):
        assert width / sum(widths) == pytest.approx(part / sum(parts), abs=0.005)
    context.close()


def test_blocks_lie_where_their_times_are(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = Visit(context, pages["priority"]).page
    blocks = page.evaluate(
        """[...document.querySelectorAll('.timeline .row')].map(row => ({
            words: row.dataset.readout,
            sent: [...row.querySelectorAll('rect.transfer:not(.old)')]
                .map(r => [r.x.baseVal.value, r.width.baseVal.value]),
            needed: row.querySelector('.needed').getBBox().x,
        }))"""
    )
    ticks = page.evaluate(
        """[...document.querySelectorAll('.timeline .tick')].filter(t => t.textContent !== 'ms')
            .map(t => [Number(t.textContent), Number(t.getAttribute('x'))])"""
    )
    (first, left), (last, right) = ticks[0], ticks[-1]
    scale = (right - left) / (last - first)
    assert len(blocks) == 18
    for block in blocks:
        found = re.search(r"sent (\S+) to (\S+) · needed (\S+) ms", block["words"])
        assert found is not None
        start, end, needed = (float(x) for x in found.groups())
        ((x, width),) = block["sent"]
        # Times in words are rounded to 0.1 ms, ticks and blocks to 0.1 px.
        assert x == pytest.approx(left + start * scale, abs=0.3)
        assert x + width == pytest.approx(left + end * scale, abs=0.3)
        assert block["needed"] == pytest.approx(left + needed * scale, abs=0.3)
    context.close()


def test_transfers_of_a_trace_lie_where_their_times_are(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = Visit(context, pages["waterfall"]).page
    facts = json.loads((pages["waterfall"].parent / "summary.json").read_text(encoding="utf-8"))
    assert " ".join(page.locator("h1").inner_text().split()) == facts["headline"]
    widths = page.evaluate("[...document.querySelectorAll('.bars span')].map(x => x.getBoundingClientRect().width)")
    parts = [v for v in facts["waterfall_ms"].values() if v > 0]
    for width, part in zip(widths, parts, strict=True):
        assert width / sum(widths) == pytest.approx(part / sum(parts), abs=0.005)
    rows = page.evaluate(
        """[...document.querySelectorAll('.timeline .row')].map(row => ({
            words: row.dataset.readout,
            sent: (r => [r.x.baseVal.value, r.width.baseVal.value])(row.querySelector('rect.transfer')),
        }))"""
    )
    ticks = page.evaluate(
        """[...document.querySelectorAll('.timeline .tick')].filter(t => t.textContent !== 'ms')
            .map(t => [Number(t.textContent), Number(t.getAttribute('x'))])"""
    )
    (first, left), (last, right) = ticks[0], ticks[-1]
    scale = (right - left) / (last - first)
    assert len(rows) == len((pages["waterfall"].parent / "waterfall.csv").read_text().splitlines()) - 1
    for row in rows:
        found = re.search(r"ready \S+, (\S+) to (\S+) ms", row["words"])
        assert found is not None
        start, end = (float(x) for x in found.groups())
        x, width = row["sent"]
        # Times in words are rounded to 0.1 ms, ticks and blocks to 0.1 px.
        assert x == pytest.approx(left + start * scale, abs=0.05 * scale + 0.2)
        assert x + width == pytest.approx(left + end * scale, abs=0.05 * scale + 0.2)
    page.locator(".timeline-box").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("figure output").inner_text() == rows[0]["words"]
    context.close()


def test_keyboard_alone_reaches_and_reads_everything(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = Visit(context, pages["fifo"]).page
    stops = []
    for _ in range(14):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("(x => x.id || x.className || x.tagName)(document.activeElement)"))
    order = [stops.index(x) for x in ("skip", "theme", "scroll timeline-box", "plot")]
    assert order == sorted(order)
    assert stops.count("plot") == 2

    box = page.locator(".timeline-box")
    output = page.locator("figure:has(.timeline-box) output")
    box.focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    hint = output.inner_text()
    page.keyboard.press("ArrowDown")
    first = output.inner_text()
    page.keyboard.press("ArrowDown")
    second = output.inner_text()
    assert len({hint, first, second}) == 3
    assert "layers 0–9" in first
    assert "209.9 ms late" in first
    page.keyboard.press("ArrowUp")
    assert output.inner_text() == first
    page.keyboard.press("End")
    assert "Bucket 0 " in output.inner_text()

    chart = page.locator(".plot").nth(1)
    chart.focus()
    # The link rates of the chart begin at a tenth of the rate of the run.
    for _ in ("0.1", "0.2", "0.5", "1 Gbit/s"):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelectorAll('.chart output')[1].classList.contains('live')")
    reading = page.locator(".chart output").nth(1)
    page.wait_for_function("document.querySelectorAll('.chart output')[1].textContent.startsWith('at 1 Gbit/s')")
    assert "FIFO with barrier 1110.1 ms" in reading.inner_text()
    assert "priority without barrier 932.22 ms" in reading.inner_text()
    context.close()


def test_keyboard_reads_the_progress_and_the_distributions_of_tenants(
    browser: "Browser", pages: dict[str, Path]
) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = Visit(context, pages["tenants"]).page
    page.locator(".timeline-box").focus()
    page.keyboard.press("ArrowDown")
    output = page.locator("figure:has(.timeline-box) output")
    assert output.inner_text().startswith("Same band · layer")
    page.keyboard.press("End")
    assert output.inner_text().startswith("Lower band · layer")
    assert "iteration 1: ready" in output.inner_text()
    page.locator(".plot").first.focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.chart output').textContent.includes('same band 100 %')")
    assert "lower band 100 %" in page.locator(".chart output").first.inner_text()
    # The lengths of the bars of links are their values.
    bars = page.evaluate(
        """[...document.querySelectorAll('.links tbody tr td:nth-child(2) .pair')].map(x => [
            Number(x.querySelector('.value').textContent),
            x.querySelector('i').getBoundingClientRect().width / x.querySelector('.track').getBoundingClientRect().width
        ])"""
    )
    assert len(bars) == 2 * 8
    for shown, share in bars:
        assert 100 * share == pytest.approx(shown, abs=0.4)
    context.close()


def test_keyboard_opens_a_cell_of_the_boundary_and_the_way_back(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    visit = Visit(context, pages["boundary"])
    page = visit.page
    for _ in range(4):
        page.keyboard.press("Tab")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("Job load 50 %, background load 6.25 %: ")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/cells/job-50-flows-6.25/report.html")
    assert "iterations take" in page.locator("h1").inner_text()
    page.go_back()
    assert page.locator(".map").count() == 3
    assert visit.faults == []
    context.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_site_says_its_point_in_the_first_screen_and_its_links_lead_there_and_back(
    browser: "Browser", pages: dict[str, Path], width: int, height: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height})
    visit = Visit(context, pages["site"])
    page = visit.page
    facts = json.loads((pages["site"].parent / "summary.json").read_text(encoding="utf-8"))

    def bottom(selector: str) -> float:
        return float(page.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().bottom"))

    assert " ".join(page.locator("h1").inner_text().split()) == facts["headline"]
    tiles = [int(text) for text in page.locator(".figures b").all_inner_texts()]
    assert tiles == [sum(row[key] for row in facts["parts"]) for key in ("agree", "known", "unknown", "not_made")]
    # The first screen has the counts and the first part with its bar.
    assert bottom("h1") < bottom(".figures") < bottom(".waterfall .bars") < height
    assert page.locator(".waterfall .who a").all_inner_texts() == ["gao2020/ch3", "gao2020/ch4", "gao2020/ch5"]
    assert "gradtide reproduce tictac" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.locator(".waterfall .who a").first.click()
    page.wait_for_url("**/gao2020-ch3/report.html")
    part = json.loads((pages["site"].parent / "gao2020-ch3" / "summary.json").read_text(encoding="utf-8"))
    assert " ".join(page.locator("h1").inner_text().split()) == part["headline"]
    row = page.locator(".checks tbody tr").first
    assert [cell.strip() for cell in row.locator("td").all_inner_texts()][1:] == (
        ["0.85 s", "0.837 s", "−1.5 %", "agrees", ""]
    )
    # The first statement and its verdict are on the first screen.
    box = page.evaluate("document.querySelector('.checks .verdict').getBoundingClientRect().toJSON()")
    assert box["bottom"] < height
    assert box["right"] <= width
    assert page.locator("code", has_text="gradtide reproduce gao2020/ch3/table-3.1").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("link", name="All papers").click()
    page.wait_for_url("**/site/index.html")
    assert visit.faults == []
    context.close()


def test_pointing_at_a_row_reads_it(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = Visit(context, pages["priority"]).page
    page.locator(".row").nth(3).hover()
    assert page.locator("figure:has(.timeline-box) output").inner_text() == page.locator(".row").nth(3).get_attribute(
        "data-readout"
    )
    context.close()


def test_button_switches_the_theme_of_page_and_canvas(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(color_scheme="light")
    visit = Visit(context, pages["fifo"])
    page = visit.page
    look = (
        "[getComputedStyle(document.body).backgroundColor,"
        " document.querySelector('.plot canvas').toDataURL().length,"
        " document.getElementById('theme').textContent]"
    )
    light = page.evaluate(look)
    page.locator("#theme").click()
    dark = page.evaluate(look)
    page.locator("#theme").click()
    assert [light[0], dark[0]] == ["rgb(255, 255, 255)", "rgb(17, 22, 29)"]
    assert light[1] != dark[1]
    assert [light[2], dark[2]] == ["Dark", "Light"]
    assert page.evaluate(look)[0] == light[0]
    assert visit.faults == []
    context.close()


@pytest.mark.parametrize(
    "name", ["fifo", "compare", "reproduce", "site", "sweep", "tenants", "boundary", "buy", "collectives"]
)
def test_prints_light_with_no_chart_cut(browser: "Browser", pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="dark")
    visit = Visit(context, pages[name])
    paper = visit.page.pdf(format="A4", path=tmp_path / "report.pdf")
    assert paper.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) <= 6
    visit.page.emulate_media(media="print")
    visit.page.set_viewport_size({"width": 720, "height": 1000})
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not visit.page.locator("#theme").is_visible()
    drawn = "[...document.querySelectorAll('.plot canvas, svg.timeline')].map(x => x.getBoundingClientRect().right)"
    assert all(right <= 721 for right in visit.page.evaluate(drawn))
    if name in ("tenants", "boundary", "buy", "collectives"):
        tables = "[...document.querySelectorAll('table')].map(x => x.getBoundingClientRect().right)"
        assert all(right <= 721 for right in visit.page.evaluate(tables))
    assert visit.faults == []
    context.close()


def test_graphics_have_names_and_headings_descend(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context()
    for name in KINDS:
        page = Visit(context, pages[name]).page
        nameless = page.evaluate(
            """[...document.querySelectorAll('img, svg, canvas, [role=img], [role=group], button')]
                .filter(x => !x.closest('[aria-hidden=true]') && !x.closest('[aria-label]')).length"""
        )
        assert nameless == 0
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(x => Number(x.tagName[1]))")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.title()
        page.close()
    context.close()
