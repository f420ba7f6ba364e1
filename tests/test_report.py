"""Reports of runs, comparisons and reproductions, parsed without a browser."""

import csv
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradtide.report import MAX_BYTES, RunFolderError, encode_timeline, render, timeline, write_report, write_timeline
from gradtide.report.folder import read_table
from report_pages import Page, edit, leaf, sound, summary
from run_folders import EVIL, Job, make_reproduce, make_run, make_study, nasty


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


def test_a_run_without_queues_has_no_column_of_them(slow_fifo: Path) -> None:
    assert "longest queue" not in render(slow_fifo)


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
