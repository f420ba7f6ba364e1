"""Reports and Perfetto traces, parsed without a browser."""

import csv
import itertools
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gradtide.report import (
    MAX_BYTES,
    RunFolderError,
    encode_timeline,
    render,
    timeline,
    write_report,
    write_timeline,
)
from gradtide.report.folder import read_table
from run_folders import (
    EVIL,
    Job,
    make_boundary,
    make_reproduce,
    make_run,
    make_study,
    make_tenants,
    nasty,
    nasty_tenants,
)

REPORT = Path(__file__).parent.parent / "python" / "gradtide" / "report"


class Page(HTMLParser):
    """The elements of a page with their attributes, and the texts of the elements with each `data-key`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {k: v or "" for k, v in attrs}
        self.elements.append((tag, attributes))
        if tag not in ("meta", "link", "input", "br"):
            self._open.append((tag, attributes.get("data-key")))
            if "data-key" in attributes:
                self.texts.setdefault(attributes["data-key"], []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, key in self._open:
            if key is not None:
                self.texts[key][-1] += data


@pytest.fixture(scope="module")
def slow_fifo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fifo"
    make_run(folder, rate_bps=1_000_000_000)
    return folder


@pytest.fixture(scope="module")
def slow_priority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "priority"
    make_run(folder, rate_bps=1_000_000_000, order="priority", barrier=False)
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "compare"
    make_study(folder)
    return folder


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "reproduce"
    make_reproduce(folder)
    return folder


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


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def leaf(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return value


def test_sample_runs_have_the_iteration_times_of_the_thesis(slow_fifo: Path, slow_priority: Path) -> None:
    fifo, priority = (summary(x)["jobs"]["train"]["iteration_time_ms"]["mean"] for x in (slow_fifo, slow_priority))
    assert fifo == pytest.approx(1110.076, abs=5e-4)
    assert priority == pytest.approx(932.219, abs=5e-4)


def test_every_number_with_a_key_is_that_of_the_summary(slow_fifo: Path) -> None:
    page, facts = Page(render(slow_fifo)), summary(slow_fifo)
    assert page.texts["headline"] == [facts["headline"]]
    wanted = {
        "iteration_time_ms.mean",
        "utilisation",
        "waterfall_ms.exposed",
        "waterfall_ms.barrier",
        "rho",
        "alpha",
    }
    assert {f"jobs.train.{key}" for key in wanted} <= set(page.texts)
    checked = 0
    for key, texts in page.texts.items():
        value = leaf(facts, key)
        if not isinstance(value, (int, float)):
            continue
        for text in texts:
            shown = float(text.replace("−", "-"))
            percent = key.endswith("utilisation") and shown > 1
            digits = len(text.partition(".")[2])
            # A rounded text differs by half a unit of its last digit, in the full table by half a unit of the sixth.
            bound = 0.5 * 10.0**-digits * 1.000001 + 5e-6 * abs(shown)
            assert abs(shown - (100 * value if percent else value)) <= bound, (key, text, value)
            checked += 1
    assert checked >= 25


def test_report_is_the_same_bytes_each_time_and_wherever_it_lies(slow_fifo: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(slow_fifo, copy)
    assert render(slow_fifo) == render(copy)
    assert encode_timeline(slow_fifo) == encode_timeline(copy)
    versions = json.loads((slow_fifo / "versions.json").read_text(encoding="utf-8"))
    assert versions["made_at"] not in render(slow_fifo)
    assert str(slow_fifo) not in render(slow_fifo)


@pytest.mark.parametrize("name", sorted(nasty()))
def test_nasty_runs_give_small_sound_pages(name: str, tmp_path: Path) -> None:
    make_run(tmp_path, **nasty()[name])
    text = render(tmp_path)
    assert len(text.encode()) < MAX_BYTES
    sound(Page(text))


def sound(page: Page) -> None:
    """Check a page: no external resources, names for graphics, unique ids, and no script but that of the report."""
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "onclick", "onload", "onerror"} & set(attributes)
        assert re.match(r"#|data:,|cells/[\w.-]+/report\.html$", attributes.get("href", "#"))
        if tag in ("img", "svg"):
            named = attributes.get("role") == "img" and attributes.get("aria-label")
            assert named or attributes.get("aria-hidden") == "true", attributes
        if attributes.get("tabindex") == "0" and tag != "pre":
            assert attributes.get("role") in ("group", "region")
            assert attributes.get("aria-label")
    scripts = [a for tag, a in page.elements if tag == "script"]
    assert [a for a in scripts if "data-chart" not in a] == [{}]


def test_names_of_a_user_stay_text(tmp_path: Path) -> None:
    make_run(tmp_path, **nasty()["evil-names"])
    text = render(tmp_path)
    assert "<script>alert" not in text
    assert Page(text).texts["headline"] == [EVIL]
    assert "49" not in Page(text).texts["headline"][0]


def test_many_jobs_and_long_names_stay_below_the_limit_and_the_page_says_so(tmp_path: Path) -> None:
    long = "a very long name " * 20
    jobs = [Job(name=f"job{i}-{'long' * 14}", model=long[:190].strip(), layers=400, fusion_bytes=0) for i in range(20)]
    make_run(tmp_path, jobs=jobs, rate_bps=1_000_000_000, iterations=2, bandwidth=False, headline=long)
    text = render(tmp_path)
    assert len(text.encode()) < MAX_BYTES
    assert "of 20 jobs are drawn" in text
    assert "Rows show 40 of 400 buckets" in text


def test_waits_in_the_timeline_are_those_of_the_waterfall(tmp_path: Path) -> None:
    for order, barrier in itertools.product(("fifo", "priority"), (True, False)):
        folder = tmp_path / f"{order}-{barrier}"
        make_run(folder, rate_bps=1_000_000_000, order=order, barrier=barrier, workers=3)
        view = timeline.window(read_table(folder, "operations.csv"), read_table(folder, "transfers.csv"))
        assert view is not None
        first = read_table(folder, "iterations.csv")[0]
        # The times of rows are rounded to 1e-6 us, and the errors of a few dozen gaps sum to less than 1e-4 us.
        assert view.idle_ms("exposed") * 1e3 == pytest.approx(first["exposed_us"], abs=1e-4)
        assert view.idle_ms("barrier") * 1e3 == pytest.approx(first["barrier_us"], abs=1e-4)
        assert view.turn - view.start == pytest.approx(first["time_us"], abs=1e-4)


def test_timeline_draws_each_bucket_and_marks_the_late_ones(slow_priority: Path) -> None:
    text = render(slow_priority)
    rows = [row for row in read_table(slow_priority, "transfers.csv") if row["iteration"] == 0]
    late = [row for row in rows if row["margin_us"] < 0]
    assert len(re.findall(r'<g class="row"', text)) == len(rows) == 18
    drawing = text[text.index('<svg class="timeline"') : text.index("</svg>", text.index('<svg class="timeline"'))]
    assert len(re.findall(r'class="transfer late"', drawing)) == len(late) == 1
    assert f"{rows[-1]['slack_us'] / 1e3:.1f} ms" in text or "slack 0 ms" in text
    assert "waits for network 32.0 ms" in drawing


@pytest.mark.parametrize("span", [0.003, 1.0, 7.0, 932.2, 1e5])
def test_ticks_are_round_and_inside(span: float) -> None:
    found = timeline.ticks(span, 8)
    assert 4 <= len(found) <= 12
    assert found[0] == 0
    assert found[-1] <= span * 1.001
    step = found[1]
    assert float(f"{step:.0e}") == pytest.approx(step)


def test_comparison_shows_the_most_telling_group_and_every_row(study: Path) -> None:
    text = render(study)
    page = Page(text)
    sound(page)
    rows = read_table(study, "rows.csv")
    best = max(rows, key=lambda row: row["saves_percent"])
    assert f"{best['model']} on {best['workers']} workers, {best['rate_bps'] / 1e9:g} Gbit/s" in text
    assert f"{best['saves_percent']:.1f} %" in text
    assert text.count('<svg class="timeline"') == 2
    # Each model and number of workers has a small chart; the group with the largest saving has two more charts.
    assert text.count("data-chart>") == 4 + 2
    assert all(row["run"] in text for row in rows)
    assert len(text.encode()) < MAX_BYTES


def test_both_timelines_of_a_pair_have_one_time_axis(study: Path) -> None:
    drawings = re.findall(r'<svg class="timeline".*?</svg>', render(study), flags=re.DOTALL)
    axes = [re.findall(r'<text class="tick"[^>]*>([^<]+)</text>', drawing) for drawing in drawings]
    assert axes[0] == axes[1]


def test_comparison_at_one_rate_has_no_curve_of_one_point(tmp_path: Path) -> None:
    make_study(tmp_path, rates=["1Gbps"], models=["resnet50"], workers=[2])
    text = render(tmp_path)
    assert text.count("data-chart>") == 1, "slack per layer only"
    assert "priority without barrier" in text


def test_a_value_that_was_never_published_is_a_dash(reproduction: Path, tmp_path: Path) -> None:
    shutil.copytree(reproduction, tmp_path / "study")
    facts = summary(reproduction)
    facts["checks"][0]["published"] = None
    (tmp_path / "study" / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    assert '<td data-label="published">–</td>' in render(tmp_path / "study")


def test_reproduction_sets_published_values_beside_ours(reproduction: Path) -> None:
    text = render(reproduction)
    sound(Page(text))
    assert "6 of 7 published values agree with ours." in text
    assert text.count('<svg class="timeline"') == 4
    assert "Fig. 4.7" in text
    assert "about 1100 ms" in text
    assert "1110.1 ms" in text


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


def test_a_run_without_queues_has_no_column_of_them(slow_fifo: Path) -> None:
    assert "longest queue" not in render(slow_fifo)


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
        (None, "unknown", "too few small flows completed to say"),
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


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def spoil(name: str, line: int, column: str, value: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        rows[line - 1][rows[0].index(column)] = value
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)

    return change


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda d: (d / "transfers.csv").unlink(), r"transfers\.csv: no such file"),
        (lambda d: (d / "summary.json").unlink(), r"summary\.json: no such file"),
        (lambda d: (d / "versions.json").unlink(), r"versions\.json: no such file"),
        (
            lambda d: edit(d / "operations.csv", lambda t: t[:-9]),
            r"operations\.csv:\d+: the last line is cut off",
        ),
        (lambda d: edit(d / "links.csv", lambda t: ""), r"links\.csv:1: the file is empty"),
        (
            lambda d: edit(d / "transfers.csv", lambda t: t.replace("needed_us", "x")),
            r"transfers\.csv:1: no column `needed_us`",
        ),
        (
            lambda d: edit(d / "links.csv", lambda t: t + "h9,1\n"),
            r"links\.csv:6: 2 cells where the header has 8",
        ),
        (
            spoil("transfers.csv", 3, "slack_us", "soon"),
            r"transfers\.csv:3: column `slack_us`: `soon` is not a number",
        ),
        (
            spoil("transfers.csv", 3, "slack_us", "nan"),
            r"transfers\.csv:3: column `slack_us`: `nan` is not a number",
        ),
        (spoil("transfers.csv", 3, "end_us", "1e999"), r"transfers\.csv:3: column `end_us`"),
        (
            spoil("operations.csv", 7, "index", "1.5"),
            r"operations\.csv:7: column `index`: `1.5` is not a whole number",
        ),
        (
            spoil("bandwidth.csv", 2, "barrier", "yes"),
            r"bandwidth\.csv:2: column `barrier`: `yes` is not `true` or `false`",
        ),
        (lambda d: (d / "links.csv").write_bytes(b"\xff\xfe\n"), r"links\.csv: byte 0 is not UTF-8"),
        (lambda d: edit(d / "summary.json", lambda t: t[:200]), r"summary\.json:\d+: column \d+"),
        (lambda d: edit(d / "summary.json", lambda t: "[]"), r"summary\.json:1: an object was expected"),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace("run/1", "walk/1")),
            r"`schema`: `gradtide.walk/1` is none of",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace("run/1", "run/9")),
            r"summary\.json is of a newer version of gradtide: its schema is gradtide.run/9, and this version reads "
            r"gradtide.run/1",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace('"rho"', '"x"')),
            r"summary\.json: no key `rho`",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace('"workers": 2', '"workers": "2"')),
            r"`workers`: `2` is of the wrong type",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: t.replace('"seed": 0', '"seed": NaN')),
            r"`NaN` is not a number",
        ),
        (
            lambda d: edit(d / "summary.json", lambda t: json.dumps({**json.loads(t), "jobs": {"train": 1}})),
            r"key `jobs\.train`: an object was expected",
        ),
    ],
)
def test_a_damaged_folder_is_named_and_nothing_is_written(
    harm: Callable[[Path], None], says: str, slow_fifo: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(slow_fifo, folder)
    (folder / "report.html").write_text("older", encoding="utf-8")
    harm(folder)
    with pytest.raises(RunFolderError, match=says):
        write_report(folder)
    assert (folder / "report.html").read_text(encoding="utf-8") == "older"
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_files_are_written_whole_beside_the_run(slow_fifo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(slow_fifo, folder)
    before = {p.name for p in folder.iterdir()}
    report, trace = write_report(folder), write_timeline(str(folder))
    assert report.read_text(encoding="utf-8") == render(folder)
    assert trace.read_bytes() == encode_timeline(folder)
    assert {p.name for p in folder.iterdir()} - before == {"report.html", "timeline.pftrace"}


@pytest.mark.parametrize("run", ["../../etc", "/etc", "runs\\..\\.."])
def test_a_study_reads_no_folder_outside_itself(run: str, reproduction: Path, tmp_path: Path) -> None:
    facts = summary(reproduction)
    facts["timelines"][0]["run"] = run
    (tmp_path / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    shutil.copy(reproduction / "versions.json", tmp_path)
    with pytest.raises(RunFolderError, match="is not a folder below it"):
        render(tmp_path)


# Perfetto


def parse(data: bytes) -> Any:
    """Parse a trace with Perfetto's own classes."""
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace()
    trace.ParseFromString(data)
    assert trace.SerializeToString() == data  # no unknown fields, and all in the order of their numbers
    return trace


def test_trace_has_a_process_per_worker_with_both_resources(slow_priority: Path) -> None:
    names: dict[str, list[str]] = {}
    processes = {}
    for packet in parse(encode_timeline(slow_priority)).packet:
        track = packet.track_descriptor
        if track.HasField("process"):
            processes[track.process.pid] = track.process.process_name
            names[track.process.process_name] = []
        elif track.HasField("thread"):
            names[processes[track.thread.pid]].append(track.thread.thread_name)
    assert names == {f"train worker {i}": ["compute", "network"] for i in range(2)}


def test_slices_are_the_operations_to_the_nanosecond(slow_priority: Path) -> None:
    operations = read_table(slow_priority, "operations.csv")
    wanted = sorted((row["resource"], round(row["start_us"] * 1000), round(row["end_us"] * 1000)) for row in operations)
    trace = parse(encode_timeline(slow_priority))
    threads = {
        p.track_descriptor.uuid: (p.track_descriptor.thread.pid, p.track_descriptor.thread.thread_name)
        for p in trace.packet
        if p.track_descriptor.HasField("thread")
    }
    found: dict[int, list[tuple[str, int, int]]] = {}
    open_since: dict[int, int] = {}
    free_at: dict[int, int] = {}
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, packet.track_event.track_uuid
        if event.type == event.TYPE_SLICE_BEGIN:
            assert track not in open_since
            assert packet.timestamp >= free_at.get(track, 0)
            open_since[track] = packet.timestamp
        else:
            free_at[track] = packet.timestamp
            pid, name = threads[track]
            found.setdefault(pid, []).append((name, open_since.pop(track), packet.timestamp))
    assert not open_since
    assert len(found) == 2
    assert all(sorted(slices) == wanted for slices in found.values())


def test_transfers_carry_their_slack_and_arrows_join_backward_transfer_forward(slow_priority: Path) -> None:
    rows = {(r["iteration"], r["bucket"]): r for r in read_table(slow_priority, "transfers.csv")}
    leaves: dict[int, str] = {}
    reaches: dict[int, str] = {}
    seen = 0
    for packet in parse(encode_timeline(slow_priority)).packet:
        event = packet.track_event
        if not packet.HasField("track_event") or event.type != event.TYPE_SLICE_BEGIN:
            continue
        facts = {a.name: a for a in event.debug_annotations}
        key = facts["iteration"].int_value, facts["bucket"].int_value if "bucket" in facts else -1
        if key in rows:
            seen += 1
            assert facts["slack_us"].double_value == rows[key]["slack_us"]
            assert facts["bytes"].int_value == rows[key]["bytes"]
        for flow in event.flow_ids:
            assert flow not in leaves
            leaves[flow] = event.categories[0]
        for flow in event.terminating_flow_ids:
            assert flow not in reaches
            reaches[flow] = event.categories[0]
    assert set(leaves) == set(reaches)
    arrows = [(leaves[flow], reaches[flow]) for flow in leaves]
    assert set(arrows) == {("backward", "transfer"), ("transfer", "forward")}
    # Two recorded iterations of 18 buckets, on two workers. Transfers of the warm-up are not in transfers.csv
    # and have no arrows.
    assert seen == 2 * 2 * 18
    assert len(arrows) == 2 * seen


def test_overlapping_transfers_get_lanes_of_their_own(slow_fifo: Path, tmp_path: Path) -> None:
    shutil.copytree(slow_fifo, tmp_path / "run")
    table = tmp_path / "run" / "operations.csv"
    network = [line for line in table.read_text(encoding="utf-8").splitlines() if ",network," in line]
    edit(table, lambda text: text + network[0].replace(",transfer,0,0,", ",transfer,0,1,") + "\n")
    names = [
        p.track_descriptor.thread.thread_name
        for p in parse(encode_timeline(tmp_path / "run")).packet
        if p.track_descriptor.HasField("thread")
    ]
    assert names == ["compute", "network", "network 2"] * 2


def test_at_most_64_workers_are_traced(tmp_path: Path) -> None:
    make_run(tmp_path, layers=3, workers=100, bandwidth=False)
    processes = [p for p in parse(encode_timeline(tmp_path)).packet if p.track_descriptor.HasField("process")]
    assert len(processes) == 64
