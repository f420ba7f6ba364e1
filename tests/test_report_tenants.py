"""Reports of tenants and of boundaries: verdicts, distributions, progress of buckets, and maps with links to cells."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradtide.report import MAX_BYTES, RunFolderError, render, timeline
from gradtide.report.folder import read_table
from report_pages import Page, edit, leaf, sound, summary
from run_folders import EVIL, make_boundary, make_tenants, nasty_tenants


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "tenants"
    make_tenants(folder)
    return folder


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "boundary"
    make_boundary(folder)
    return folder


def chart_specs(text: str) -> list[dict[str, Any]]:
    return [json.loads(x) for x in re.findall(r"<script[^>]* data-chart>(.*?)</script>", text, flags=re.DOTALL)]


def agrees(text: str, value: float | None) -> bool:
    """Return whether a text is the value to half a unit of its last digit; a dash stands for None."""
    if value is None:
        return text == "–"
    shown = float(text.replace("−", "-").replace("+", ""))
    return abs(shown - value) <= 0.5 * 10.0 ** -len(text.partition(".")[2]) * 1.000001 + 5e-6 * abs(shown)


@pytest.mark.parametrize("name", ["both-seeds", *sorted(nasty_tenants())])
def test_studies_of_tenants_give_small_sound_pages_with_the_numbers_of_the_summary(name: str, tmp_path: Path) -> None:
    facts = make_tenants(tmp_path / "study", **nasty_tenants().get(name, {}))
    text = render(tmp_path / "study")
    page = Page(text)
    sound(page)
    assert len(text.encode()) < MAX_BYTES
    assert text == render(tmp_path / "study")
    assert "<script>alert" not in text
    assert page.texts["headline"] == [facts["headline"]]
    numbers = {key: texts for key, texts in page.texts.items() if key != "headline"}
    # The numbers are, for four classes, the flows, and for each figure the saving and the values in both bands and
    # without job; then the iteration time and the drops.
    pairs = [pair for figures in facts["classes"].values() for name, pair in figures.items() if name != "flows"]
    shown = sum(1 + 2 * (pair["same"] is not None) + (pair["no_job"] is not None) for pair in pairs)
    assert len(pairs) == 4 * 6
    assert len(numbers) == 4 + shown + 3 + 2
    for key, texts in numbers.items():
        assert all(agrees(shown, leaf(facts, key)) for shown in texts), (key, texts, leaf(facts, key))
    for run in (tmp_path / "study" / "runs").iterdir():
        sound(Page(render(run)))


@pytest.mark.parametrize(
    ("change", "colour", "words"),
    [(0.99, "green", "green: free"), (30.0, "yellow", "yellow: the job pays"), (31.0, "red", "red: too expensive")],
)
def test_the_verdict_is_a_word_beside_its_colour(
    change: float, colour: str, words: str, beside: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(beside, folder)
    facts = summary(folder)
    facts["iteration_time_ms"]["change_percent"] = change
    facts["colour"] = colour
    (folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    assert re.search(rf'<span class="badge {colour}">.*? {words}', render(folder))


def test_a_figure_that_gets_worse_is_named_at_the_top(beside: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(beside, folder)
    facts = summary(folder)
    pair = facts["classes"]["large"]["p99_fct_ms"]
    pair |= {"saves_percent": -12.5, "saves_interval_percent": [-20.0, -5.0]}
    (folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    text = re.sub(r"<[^>]*>", "", render(folder))
    worse = re.search(r"✕ Worse\. Longer in the lower band: .*", text)
    assert worse is not None
    assert "large flows, p99 (12.5 %)" in worse[0]
    assert worse.start() < text.index("What the flows save")


def test_distributions_count_the_flows_that_the_summary_counts(beside: Path) -> None:
    facts, charts = summary(beside), chart_specs(render(beside))
    counts = {name: len(facts["seeds"]) * figures["flows"] for name, figures in facts["classes"].items()}
    assert counts["small"] > 20
    assert counts["large"] > 0
    drawn = [c for c in charts if c["ylabel"].startswith("flows")]
    captions = re.findall(r"<figcaption>(\d+ flows?\.)</figcaption>", render(beside))
    assert captions == [f"{n:.0f} flow{'s' if n != 1 else ''}." for n in counts.values() if n]
    for chart in drawn:
        assert chart["x"] == sorted(set(chart["x"]))
        assert all(values == sorted(values) and values[0] == 0 for values in (x["values"] for x in chart["lines"]))
        # All flows end within the longest completion time of the two bands.
        assert {line["values"][-1] for line in chart["lines"]} == {100}


def test_flows_that_did_not_end_keep_a_distribution_below_its_top(tmp_path: Path) -> None:
    make_tenants(tmp_path, **nasty_tenants()["none-completed"])
    text = render(tmp_path)
    assert "No counted flow completed" in text
    assert "0 of 4 flows end sooner, 0 later; 4 did not complete in at least one of the bands." in text
    for name in ("seed0-same", "seed0-low"):
        path = tmp_path / "runs" / name / "flows.csv"
        with path.open(encoding="utf-8", newline="") as file:
            flows = list(csv.DictReader(file))
        flows[0].update(fct_us="1500.0", received_us="1499.0")
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, flows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(flows)
    charts = [c for c in chart_specs(render(tmp_path)) if c["ylabel"].startswith("flows")]
    assert [line["values"][-1] for chart in charts for line in chart["lines"]] == [25] * 4
    assert "not completed: 3 in the same band, 3 in the lower" in render(tmp_path)


def test_flows_that_gain_most_are_paired_by_neighbour_number_and_seed(beside: Path) -> None:
    facts, gains = summary(beside), []
    for seed in facts["seeds"]:
        same, low = (read_table(beside / "runs" / f"seed{seed}-{band}", "flows.csv") for band in ("same", "low"))
        last = max(row["start_us"] for row in same)
        times = {row["flow"]: row["fct_us"] for row in low}
        for row in same:
            if 20_000 <= row["start_us"] < last - 20_000:
                gains.append((row["fct_us"] - times[row["flow"]], row["flow"], seed))
    text = render(beside)
    best, worst = max(gains), min(gains)
    for heading, (gain, flow, seed) in (("Largest gains", best), ("Largest losses", worst)):
        first = re.search(rf"<h3>{heading}</h3>.*?<tbody><tr>(.*?)</tr>", text, flags=re.DOTALL)
        assert first is not None
        cells = re.findall(r"<td[^>]*>(.*?)</td>", first[1])
        assert cells[:2] == [str(flow), str(seed)]
        assert timeline.milliseconds(gain) in cells
    later = sum(gain < 0 for gain, _, _ in gains)
    assert f"{sum(g > 0 for g, _, _ in gains)} of {len(gains)} flows end sooner, {later} later" in text


def test_progress_draws_the_buckets_of_both_bands_on_one_axis(beside: Path) -> None:
    text = render(beside)
    drawing = re.findall(r'<svg class="timeline progress".*?</svg>', text, flags=re.DOTALL)
    assert len(drawing) == 1
    rows = read_table(beside / "runs" / "seed0-same", "transfers.csv")
    buckets = len({row["bucket"] for row in rows})
    assert drawing[0].count('<g class="row"') == 2 * buckets
    # Two iterations have their operations recorded.
    assert len(re.findall(r'<rect class="transfer', drawing[0])) == 2 * 2 * buckets
    first = next(row for row in rows if row["iteration"] == 0 and row["first_layer"] == 0)
    assert f"iteration 0: ready {timeline.milliseconds(first['ready_us'])}, sent" in drawing[0]


def test_a_study_of_tenants_fits_with_many_links_flows_and_buckets(beside: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(beside, folder)
    for run in (folder / "runs").iterdir():
        links = (run / "links.csv").read_text(encoding="utf-8").splitlines()
        more = [f"{'very-long-name' * 9}{i},{links[1].partition(',')[2]}" for i in range(2000)]
        (run / "links.csv").write_text("\n".join([*links, *more]) + "\n", encoding="utf-8")
        flows = (run / "flows.csv").read_text(encoding="utf-8").splitlines()
        for i in range(20_000):
            flows.append(f"web,{1000 + i},{50_000 + i}.0,0,1,{1000 + i},0,{500 + 7 * (i % 977)}.0,400.0,{1000 + i},8.0")
        (run / "flows.csv").write_text("\n".join(flows) + "\n", encoding="utf-8")
    text = render(folder)
    assert len(text.encode()) < MAX_BYTES
    assert "The 32 busiest of 2008 links" in text


def test_a_run_of_the_packet_engine_draws_its_first_whole_iteration(beside: Path, tmp_path: Path) -> None:
    run = beside / "runs" / "seed0-same"
    operations, transfers = read_table(run, "operations.csv"), read_table(run, "transfers.csv")
    labels = {kind: {row["iteration"] for row in operations if row["kind"] == kind} for kind in ("forward", "backward")}
    assert 0 in labels["backward"] - labels["forward"]
    view = timeline.window(operations, transfers)
    assert view is not None
    assert {row["iteration"] for row in view.transfers} == {1}
    assert view.compute[0]["kind"] == "forward"
    text = render(run)
    assert "measured from one backward pass to the next" in text
    assert "Flows of web" in text
    assert "longest queue, packets" in text

    # One recorded iteration: the backward pass and the forward pass that follows are one iteration, as it is measured.
    first_of = {"forward": 1, "backward": 0, "transfer": 0}
    view = timeline.window([row for row in operations if row["iteration"] == first_of.get(row["kind"])], transfers)
    assert view is not None
    first = read_table(run, "iterations.csv")[0]
    assert view.turn - view.start == pytest.approx(first["time_us"], abs=1e-4)
    assert view.idle_ms("exposed") * 1e3 == pytest.approx(first["exposed_us"], abs=1e-4)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda d: (d / "runs" / "seed0-low" / "flows.csv").unlink(), r"flows\.csv: no such file"),
        (lambda d: edit(d / "summary.json", lambda t: t.replace('"seeds"', '"seed"')), "no key `seeds`"),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace('"job": "train"', '"job": 1')),
            "`job`: `1` is of the wrong type",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace('"saves_percent": ', '"saves_percent": "x", "y": ')),
            "`x` is of the wrong type",
        ),
    ],
)
def test_a_damaged_study_of_tenants_is_named(
    harm: Callable[[Path], None], says: str, beside: Path, tmp_path: Path
) -> None:
    shutil.copytree(beside, tmp_path / "study")
    harm(tmp_path / "study")
    with pytest.raises(RunFolderError, match=says):
        render(tmp_path / "study")


def changed_boundary(mapped: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy a boundary without its cells, its summary changed."""
    folder.mkdir()
    facts = summary(mapped)
    change(facts)
    (folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    shutil.copy(mapped / "versions.json", folder)
    return folder


def test_a_boundary_is_a_sound_page_with_the_numbers_of_the_summary(mapped: Path, tmp_path: Path) -> None:
    facts, text = summary(mapped), render(mapped)
    page = Page(text)
    sound(page)
    assert len(text.encode()) < MAX_BYTES
    assert page.texts["headline"] == [facts["headline"]]
    numbers = {key: texts for key, texts in page.texts.items() if key != "headline"}
    # Iteration time in both bands and its change; of four classes what they save and how many flows.
    assert len(numbers) == 4 * (3 + 4 * 2)
    for key, texts in numbers.items():
        assert all(agrees(shown, leaf(facts, key)) for shown in texts), (key, texts, leaf(facts, key))
    shutil.copytree(mapped, tmp_path / "elsewhere")
    assert render(tmp_path / "elsewhere") == text


def test_every_cell_of_every_map_links_to_its_report_and_says_so_in_words(mapped: Path) -> None:
    facts, page = summary(mapped), Page(render(mapped))
    links = [a for tag, a in page.elements if tag == "a" and a.get("class", "").startswith("cell")]
    maps = [links[i : i + 4] for i in (0, 4, 8)]
    assert len(links) == 3 * len(facts["cells"])
    # The highest job load first, the lowest background load first.
    ordered = sorted(facts["cells"], key=lambda cell: (-cell["job_load"], cell["traffic_load"]))
    for drawn in maps:
        assert [a["href"] for a in drawn] == [f"cells/{cell['cell']}/report.html" for cell in ordered]
        assert all("tabindex" not in a for a in drawn)
    for a, cell in zip(maps[0], ordered, strict=True):
        assert cell["colour"] in a["class"].split()
        where = f"Job load {100 * cell['job_load']:g} %, background load {100 * cell['traffic_load']:g} %"
        assert a["aria-label"].startswith(f"{where}: {cell['colour']}, ")
        assert a["aria-label"].startswith(a["title"])
    assert all((mapped / a["href"]).is_file() for a in links)


@pytest.mark.parametrize(
    ("value", "cls", "words"),
    [
        (None, "unknown", "too few small flows completed to judge"),
        (0.04, "shade-0", "finish at the same time"),
        (-0.04, "shade-0", "finish at the same time"),
        (-3.2, "loss", "take 3.2 % longer"),
        (4.9, "shade-0", "finish 4.9 % sooner"),
        (9.96, "shade-2", "finish 10.0 % sooner"),
        (85.0, "shade-4", "finish 85.0 % sooner"),
    ],
)
def test_a_saving_has_a_shade_and_words(
    value: float | None, cls: str, words: str, mapped: Path, tmp_path: Path
) -> None:
    folder = changed_boundary(mapped, tmp_path / "map", lambda f: f["cells"][0].update(small_saves_percent=value))
    name = "Job load 12.5 %, background load 6.25 %: "
    found = [a for _, a in Page(render(folder)).elements if a.get("title", "").startswith(name)]
    assert words in found[1]["title"]
    assert found[1]["class"] == f"cell {cls}"


def test_a_boundary_without_its_cells_still_renders_and_links_nothing(mapped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "map"
    shutil.copytree(mapped, folder)
    shutil.rmtree(folder / "cells" / summary(folder)["cells"][0]["cell"])
    text = render(folder)
    assert text.count('<a class="cell') == 3 * 3
    assert "1 of 4 cells have no report beside this page" in text
    assert "Make this again" in text
    shutil.rmtree(folder / "cells")
    text = render(folder)
    sound(Page(text))
    assert '<a class="cell' not in text
    assert "Make this again" not in text


def test_names_in_a_boundary_stay_text(tmp_path: Path) -> None:
    make_boundary(tmp_path, name=EVIL, job_loads=(0.25,), traffic_loads=(0.125,))
    text = render(tmp_path)
    sound(Page(text))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_a_boundary_with_holes_and_many_cells_fits_and_says_what_is_left_out(mapped: Path, tmp_path: Path) -> None:
    def grow(facts: dict[str, Any]) -> None:
        cell = facts["cells"][0]
        loads = [i / 50 for i in range(1, 50)]
        facts["cells"] = [
            {**cell, "cell": f"job-{a:g}-flows-{b:g}", "job_load": a, "traffic_load": b}
            for a in loads
            for b in loads
            if a != b
        ]

    text = render(changed_boundary(mapped, tmp_path / "map", grow))
    assert len(text.encode()) < MAX_BYTES
    assert re.search(r"The maps show (\d+) of 49 job loads and \1 of 49 background loads", text)
    assert "<td>–</td>" in text
    sound(Page(text))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.update(cells=[]), "at least one cell"),
        (lambda f: f.update(cells=[1]), "item 0 is not an object"),
        (lambda f: f["cells"][0].update(cell="../../etc"), "is not a folder below it"),
        (lambda f: f["cells"][0].update(cell='a" onclick=x'), "is not a folder below it"),
        (lambda f: f["cells"][0].update(job_load="x"), "`x` is of the wrong type"),
        (lambda f: f["cells"][1].pop("large_saves_percent"), "no key `large_saves_percent`"),
        (lambda f: f.update(seeds=["0"]), "a list of whole numbers"),
    ],
)
def test_a_damaged_boundary_is_named(
    change: Callable[[dict[str, Any]], object], says: str, mapped: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match=says):
        render(changed_boundary(mapped, tmp_path / "map", change))
