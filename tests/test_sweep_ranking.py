"""How a study ranks its points: figures, marks, charts, sensitivities and fronts of its report."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide.studies.sweep import Study, analysis
from sweep_studies import GRID, ZIP, rows, simulated, study

INCAST = (
    '[traffic.web]\nincast = { dst = "h0", bytes = "100kB", every = "5ms" }\n'
    '[cluster]\ntopology = { kind = "star", hosts = 3 }\nlink = { rate = "10Gbps", delay = "10us" }\n'
)
"""Background flows on a network of three hosts."""

# The ranking


AXES = {
    "a number": ('"job.train.workers" = [2, 4]', ["workers 2", "workers 4"]),
    "a text": ('"job.train.schedule.order" = ["fifo", "priority"]', ["order fifo", "order priority"]),
    "a boolean": ('"job.train.schedule.barrier" = [true, false]', ["barrier true", "barrier false"]),
    "a table": (
        '"job.train.collective" = [{ kind = "ring" }, { ps = { servers = 1 } }]',
        ["collective ring", "collective ps.servers=1"],
    ),
    "a list": ('"job.train.hosts" = [["h0", "h1"], ["h0", "h1", "h2"]]', ["hosts [h0, h1]", "hosts [h0, h1, h2]"]),
    "kinds together": ('"job.train.workers" = [2, "4"]', ["workers 2", "workers 4"]),
    "a model": ('"job.train.model" = ["resnet50", "vgg16"]', ["model resnet50", "model vgg16"]),
    "a model's file": ('"job.train.model" = ["m.csv", "resnet50"]', ["model m.csv", "model resnet50"]),
    "models that are written out": (
        '"job.train.model" = [{ name = "small", layers = [{ name = "a", forward = "1us", backward = "1us", '
        'parameters = "4B" }] }, { kind = "thesis", layers = 2, time = "1ms" }]',
        ["model small", "model kind=thesis, layers=2, time=1ms"],
    ),
    "a cluster": ('cluster = ["ethernet-10g/4", "ethernet-100g/4"]', ["cluster ethernet-10g/4"]),
    "a scenario": ('scenario = ["base.toml", "paper/gao2020-ch4"]', ["scenario base.toml"]),
}


@pytest.mark.parametrize(("line", "labels"), AXES.values(), ids=AXES)
def test_any_kind_of_key_may_be_on_the_axis(gradtide: Any, place: Path, line: str, labels: list[str]) -> None:
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,1000000\n")
    study(f'[sweep]\nscenario = "base.toml"\n[sweep.grid]\n{line}\n')
    _, out, _ = gradtide("sweep", "s.toml", "-o", "out", "--wide")
    summary = json.loads(Path("out/summary.json").read_text())
    page = html.unescape(Path("out/report.html").read_text())
    found = [one["label"] for one in summary["ranking"]]
    assert len(set(found)) == 2
    for label in labels:
        assert label in found
        assert label in page
        assert label in out
    [chart] = summary["charts"]
    assert len(chart.get("labels", chart["x"])) == 2


def test_points_are_ranked_best_first_by_what_is_better(place: Path) -> None:
    study(GRID.replace("seeds = 2", 'figure = "jobs.train.samples_per_s"') + '"job.train.model" = ["resnet50"]\n')
    fast = gt.sweep("s.toml")
    assert [point.settings["cluster.link.rate"] for point in fast.points()] == ["10Gbps", "1Gbps"]
    assert fast.summary["best"] == "most"
    figures = [point.figure for point in fast.points()]
    assert figures == sorted(figures, reverse=True)
    behind = [point.behind_percent for point in fast.points()]
    assert behind == pytest.approx([0, 100 * (1 - figures[1] / figures[0])])
    # A study may say that it is the other way round.
    study(GRID.replace("seeds = 2", 'figure = "jobs.train.samples_per_s"\nbest = "least"'))
    assert gt.sweep("s.toml").summary["best"] == "least"


def test_a_figure_that_no_point_changes_is_not_what_the_study_is_about(place: Path) -> None:
    """A job that computes and sends nothing, beside flows: their completion times are ranked."""
    Path("base.toml").write_text(
        '[job.clock]\nmodel = { layers = [{ name = "a", forward = "1ms", backward = "1ms", parameters = "0B" }] }\n'
        "workers = 1\n" + INCAST + '[run]\nengine = "packet"\nduration = "9ms"\n'
    )
    study(GRID)
    result = gt.sweep("s.toml")
    assert result.summary["figure"] == "traffic.web.all.mean_fct_ms"
    assert next(result.points()).settings == {"cluster.link.rate": "10Gbps"}


def test_seeds_that_do_not_tell_two_points_apart_are_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(GRID + '"job.train.compute.noise" = [0.3, 0.301]\n')
    result = gt.sweep("s.toml")
    first, second, *_ = result.points()
    assert first.rank == 1
    assert second.low_percent is not None
    assert second.low_percent < 0 < second.high_percent
    assert "is not significant" in result.summary["headline"]


WRONG_FIGURES = {
    "misspelt": "jobs.train.iteration_time_ms.men",
    "no such job": "jobs.other.iteration_time_ms.mean",
    "no such tenant": "traffic.web.all.mean_fct_ms",
    "of a divided job": "jobs.train.parallel.mfu",
    "of workers that are not in step": "jobs.train.asynchrony.bound_wait_percent",
    "a text": "jobs.train.model",
    "the state": "state",
}


@pytest.mark.parametrize("key", ["figure", "against"])
@pytest.mark.parametrize("name", WRONG_FIGURES.values(), ids=WRONG_FIGURES)
def test_a_wrong_figure_is_found_before_the_runs(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str
) -> None:
    study(GRID.replace("seeds = 2", f'{key} = "{name}"'))
    seen = simulated(monkeypatch)
    code, out, err = gradtide("sweep", "s.toml", "-o", "out")
    assert (code, out) == (2, "")
    assert "error[GT105]" in err
    assert "s.toml:3" in err
    assert not seen
    assert not Path("out").exists()


# What the report says


def of(parts: dict[str, Any], seeds: int = 1) -> Study:
    return Study.load({"sweep": {"scenario": "base.toml", "seeds": seeds, **parts}})


def test_sensitivity_of_a_sum_is_the_share_of_each_term() -> None:
    # y = i + 2 j over i, j in {0, 1}: the variances 1/4 and 1 add up, and no key acts only with another.
    found = analysis.sensitivity(of({"grid": {"a.b": [0, 1], "c.d": [0, 1]}}), [0.0, 2.0, 1.0, 3.0])
    assert [(row["key"], round(row["share"], 12)) for row in found] == [("c.d", 0.8), ("a.b", 0.2)]
    assert (found[0]["least"], found[0]["most"]) == (0.5, 2.5)
    # A product of signs is due to both keys together, and to none alone.
    found = analysis.sensitivity(of({"grid": {"a.b": [-1, 1], "c.d": [-1, 1]}}), [1.0, -1.0, -1.0, 1.0])
    assert [row["share"] for row in found] == [0, 0]
    assert analysis.sensitivity(of({"grid": {"a.b": [0, 1]}}), [5.0, 5.0]) == []


def test_sensitivity_finds_the_one_sampled_key_that_matters() -> None:
    study = of({"sample": {"points": 256, "a.b": {"min": 0, "max": 1000}, "c.d": {"min": 0, "max": 1000}}})
    found = analysis.sensitivity(study, [float(study.values(run)["a.b"]) for run in range(256)])
    # Of a straight line, eight parts of one size keep 1 - 1/64 of the variance.
    assert found[0]["key"] == "a.b"
    assert found[0]["share"] == pytest.approx(1 - 1 / 64, abs=2e-3)
    assert found[1]["share"] < 0.01


def test_effects_pair_runs_that_differ_in_one_key_alone() -> None:
    # By 10 % with the first seed and by 30 % with the second, whatever the other key: a mean of 20 %, and of two values
    # an interval of 12.706 standard errors of 10 % (Student's t, one degree of freedom).
    study = of({"grid": {"a.b": ["x", "y"], "c.d": [1, 2]}}, seeds=2)
    ys = [10.0, 20.0, 100.0, 200.0, 11.0, 26.0, 110.0, 260.0]
    found = analysis.effects(study, ys)
    one = next(row for row in found if row["key"] == "a.b")
    assert (one["value"], one["over"], one["pairs"]) == ("y", "x", 4)
    assert one["change_percent"] == pytest.approx(20)
    assert [one["low_percent"], one["high_percent"]] == pytest.approx([20 - 127.06, 20 + 127.06], abs=0.01)
    assert analysis.effects(of({"grid": {"a.b": [1, 2]}}), [1.0, float("nan")]) == []


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    study = of({"grid": {"a.b": [1, 2, 3, 4, 5]}})
    found = analysis.front(study, [1.0, 2.0, 3.0, 4.0, float("nan")], [9.0, 7.0, 8.0, 6.0, 1.0])
    assert [one["run"] for one in found["corners"]] == [0, 1, 3]
    assert [one["run"] for one in found["others"]] == [2]
    assert found["points"] == 4


def test_charts_have_the_mean_of_the_seeds_in_the_order_of_the_axis(gradtide: Any, place: Path) -> None:
    study(
        GRID.replace("seeds", 'against = "cluster.link.rate"\nseeds').replace('"1Gbps", "10Gbps"', '"10Gbps", "1Gbps"')
        + ZIP
    )
    assert gradtide("sweep", "s.toml", "-o", "out", "-q")[0] == 0
    summary = json.loads(Path("out/summary.json").read_text())
    [chart] = summary["charts"]
    assert (chart["key"], chart["unit"], chart["x"]) == ("cluster.link.rate", "Gbit/s", [1, 10])
    assert [line["name"] for line in chart["lines"]] == ["workers 2, delay 1us", "workers 4, delay 2us"]
    name = "jobs.train.iteration_time_ms.mean"
    assert summary["figure"] == name
    times = [float(row[name]) for row in rows("out") if row["job.train.workers"] == "2"]
    assert chart["lines"][0]["values"] == pytest.approx([sum(times[2:]) / 2, sum(times[:2]) / 2])
    page = Path("out/report.html").read_text()
    for words in ("Which key matters most", "Paired changes", "iteration time, mean over cluster.link.rate"):
        assert words in page
    assert gradtide("report", "out")[0] == 0
    assert Path("out/report.html").read_text() == page


def test_a_study_without_jobs_is_about_the_completion_times_of_its_flows(place: Path) -> None:
    Path("base.toml").write_text(INCAST + '[run]\nengine = "fluid"\nduration = "9ms"\n')
    study(GRID)
    result = gt.sweep("s.toml")
    assert result.summary["figure"] == "traffic.web.all.mean_fct_ms"
    assert result.summary["sensitivity"][0]["key"] == "cluster.link.rate"
    assert "flows" in result.answer.uncertainty["of"]


def test_the_errors_of_an_answer_are_those_of_its_figure(place: Path) -> None:
    Path("base.toml").write_text(
        '[job.train]\nmodel = "alexnet"\nworkers = 2\n' + INCAST + '[run]\nengine = "fluid"\nduration = "900ms"\n'
    )
    kinds = {}
    for figure in ("jobs.train.iteration_time_ms.mean", "traffic.web.all.mean_fct_ms"):
        study(GRID.replace("[sweep]", f'[sweep]\nfigure = "{figure}"', 1))
        kinds[figure] = gt.sweep("s.toml").answer.uncertainty["of"]
    assert "iterations" in kinds["jobs.train.iteration_time_ms.mean"]
    assert "flows" in kinds["traffic.web.all.mean_fct_ms"]


def test_a_study_whose_runs_are_missing_has_a_report(gradtide: Any, place: Path) -> None:
    study(GRID + '[sweep.sample]\npoints = 3\n"job.train.workers" = { min = 2, max = 4 }\n')
    assert gradtide("sweep", "merge", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "12 runs are not finished" in Path("out/report.html").read_text()
    assert gradtide("sweep", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "job.train.workers" in Path("out/report.html").read_text()
