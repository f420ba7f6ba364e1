"""Studies over any keys, and the store of their runs."""

import csv
import html
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gradtide as gt
from error_tables import Case, cases
from gradtide.errors import ScenarioError
from gradtide.studies import run as runs
from gradtide.studies.store import Store, StoreError, key_of
from gradtide.studies.sweep import Study, analysis, executors, figures, sobol
from run_folders import tiny_tenants

BASE = """
[job.train]
model = { kind = "thesis", layers = 4, time = "1ms" }
workers = 2
iterations = 2
compute = { noise = 0.05 }
[cluster]
link = { rate = "10Gbps", delay = "10us" }
"""
GRID = '[sweep]\nscenario = "base.toml"\nseeds = 2\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n'
ZIP = '[sweep.zip]\n"job.train.workers" = [2, 4]\n"cluster.link.delay" = ["1us", "2us"]\n'
GRADTIDE = [sys.executable, "-m", "gradtide"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(text: str) -> Study:
    Path("s.toml").write_text(text)
    return Study.load("s.toml")


def rows(folder: str) -> list[dict[str, str]]:
    with open(f"{folder}/rows.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the link rate of every run that is simulated from now on."""
    seen: list[str] = []
    run = executors.simulate

    def noted(scenario: Any, progress: Any) -> Any:
        seen.append(scenario.sha256)
        return run(scenario, progress)

    monkeypatch.setattr(executors, "simulate", noted)
    return seen


# Studies


def test_runs_are_in_the_order_of_the_file_and_seeds_change_first(place: Path) -> None:
    found = study(GRID + ZIP)
    assert len(found) == 2 * 2 * 2
    expected = [
        {"cluster.link.rate": rate, "job.train.workers": workers, "cluster.link.delay": delay}
        for rate, (workers, delay) in product(["1Gbps", "10Gbps"], [(2, "1us"), (4, "2us")])
    ]
    assert [found.values(run) for run in range(0, 8, 2)] == expected
    assert [found.values(run) for run in range(1, 8, 2)] == expected
    assert [found.scenario(run).seed for run in range(8)] == [0, 1] * 4


def test_a_row_has_the_figures_of_the_run_by_itself(place: Path) -> None:
    study(GRID + ZIP)
    result = gt.sweep("s.toml")
    for row in result.rows:
        scenario = gt.Scenario.load("base.toml").set({key: row[key] for key in result.study.keys})
        alone = gt.run(scenario, seed=row["seed"]).summary
        assert row["jobs.train.iteration_time_ms.mean"] == alone["jobs"]["train"]["iteration_time_ms"]["mean"]
        assert row["links.max_utilisation"] == alone["links"]["max_utilisation"]
    assert {row["state"] for row in result.rows} == {"finished"}


def test_scenarios_models_and_tables_are_values_as_any(place: Path) -> None:
    Path("other.toml").write_text(BASE.replace("10us", "20us"))
    found = study(
        "[sweep]\n[sweep.grid]\nscenario = ['base.toml', 'other.toml', 'paper/gao2020-ch4']\n"
        "'job.train.schedule' = [{ order = 'fifo' }, { order = 'priority', barrier = false }]\n"
    )
    scenarios = [found.scenario(run) for run in range(len(found))]
    assert [one.link_delay_ps for one in scenarios[:4]] == [10_000_000] * 2 + [20_000_000] * 2
    assert [one.jobs[0].schedule.order for one in scenarios] == ["fifo", "priority"] * 3
    assert gt.sweep({"sweep": {"scenario": "base.toml"}}).rows[0]["seed"] == 0


def test_the_first_powers_of_two_of_a_sample_fill_every_dimension_evenly() -> None:
    for dimension, power in product(range(sobol.DIMENSIONS), range(9)):
        count = 2**power
        cells = sorted(int(sobol.point(index, dimension) * count) for index in range(count))
        assert cells == list(range(count)), (dimension, power)


def test_the_first_two_dimensions_of_a_sample_are_a_net_of_quality_0() -> None:
    # Sobol's first two dimensions are a (0, 2)-sequence: each box of 2^-a x 2^-b holds one of the first 2^(a+b) points.
    for first, second in product(range(5), range(5)):
        count = 2 ** (first + second)
        points = [[sobol.point(index, dimension) for dimension in (0, 1)] for index in range(count)]
        assert len({(int(x * 2**first), int(y * 2**second)) for x, y in points}) == count


def test_a_sample_stays_within_its_bounds_and_a_longer_one_begins_with_it(place: Path) -> None:
    text = (
        '[sweep]\nscenario = "base.toml"\n[sweep.sample]\npoints = 16\n'
        '"cluster.link.rate" = { min = "1Gbps", max = "100Gbps", log = true }\n'
        '"job.train.workers" = { min = 2, max = 5 }\n'
    )
    found = study(text)
    values = [found.values(run) for run in range(16)]
    assert sorted(one["job.train.workers"] for one in values) == [w for w in (2, 3, 4, 5) for _ in range(4)]
    rates_bps = [found.scenario(run).link_rate_bps for run in range(16)]
    assert min(rates_bps) == 1e9
    assert max(rates_bps) < 1e11
    # Half of the points are below the geometric mean of the bounds.
    assert sum(rate < 1e10 for rate in rates_bps) == 8
    longer = study(text.replace("16", "64"))
    assert [longer.values(run) for run in range(16)] == values


@pytest.mark.parametrize("case", cases("files/studies"), ids=str)
def test_a_wrong_study_names_its_line_and_the_fix(gradtide: Any, place: Path, case: Case) -> None:
    Path("s.toml").write_text(case.text)
    with pytest.raises(ScenarioError) as caught:
        _ = gt.sweep("s.toml").summary
    assert case.is_of(caught.value.faults[0]), str(caught.value)
    assert caught.value.faults[0].file == "s.toml"
    exit_code, out, err = gradtide("sweep", "s.toml", "-o", "out")
    assert exit_code == 2
    assert out == ""
    assert f"error[{case.code}]" in err
    assert not Path("out").exists()


def test_a_study_that_would_take_too_long_is_refused_before_it_runs(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("s.toml").write_text(GRID + '"job.train.iterations" = [100000]\n')
    seen = simulated(monkeypatch)
    code, _, err = gradtide("sweep", "s.toml", "-o", "out", "--max-time", "1ms")
    assert code == 2
    assert "error[GT053]: the 4 runs would take about" in err
    assert not seen


def test_in_python_a_study_may_hold_its_scenario(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a `Scenario` or a dict: the rows are those of one that is named, and the store has them."""
    seen = simulated(monkeypatch)
    grid = {"cluster.link.rate": ["1Gbps", "10Gbps"]}
    base = gt.Scenario.load("base.toml")
    named = gt.sweep({"sweep": {"scenario": "base.toml", "grid": grid}}, store="store").rows
    for held in (base, base.to_dict()):
        assert gt.sweep({"sweep": {"scenario": held, "grid": grid}}, store="store").rows == named
    assert len(seen) == 2
    with pytest.raises(gt.ScenarioError, match="unknown field `a`"):
        gt.sweep({"sweep": {"scenario": {"a": 1}}})


# Points that cannot be


PARTLY_WRONG = {
    "grid": (GRID.replace("seeds = 2\n", "") + '"cluster.link.delay" = ["1us", "10"]\n', 4, [1, 3]),
    "zip": (GRID.replace("seeds = 2\n", "") + ZIP.replace('"2us"', '"2"'), 4, [1, 3]),
    "sample": (
        '[sweep]\nscenario = "base.toml"\n[sweep.sample]\npoints = 4\n"job.train.workers" = { min = 0, max = 3 }\n',
        4,
        [0],
    ),
    "every seed of a point": (GRID.replace('"10Gbps"', '"10"'), 4, [2, 3]),
    "scenarios": ('[sweep]\n[sweep.grid]\nscenario = ["base.toml", "none.toml", "wrong.toml"]\n', 3, [1, 2]),
    "what no document can hold": (GRID.replace("seeds = 2\n", "").replace('"10Gbps"', "nan, 1e400"), 3, [1, 2]),
    "a date": (GRID.replace("seeds = 2\n", "").replace('"10Gbps"', "1979-05-27"), 2, [1]),
    "a key that one scenario lacks": (
        '[sweep]\n[sweep.grid]\nscenario = ["base.toml", "other.toml"]\n"job.train.workers" = [2, 4]\n',
        4,
        [2, 3],
    ),
}


@pytest.mark.parametrize(("text", "count", "refused"), PARTLY_WRONG.values(), ids=PARTLY_WRONG)
def test_valid_points_run_and_the_others_are_listed_with_the_reason(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int, refused: list[int]
) -> None:
    Path("wrong.toml").write_text(BASE.replace("iterations", "iteration"))
    Path("other.toml").write_text(BASE.replace("job.train", "job.other"))
    study(text)
    seen = simulated(monkeypatch)
    code, out, err = gradtide("sweep", "s.toml", "-o", "out")
    assert code == 3
    assert len(seen) == len(set(seen)) == count - len(refused)
    assert "refused" in err
    found = rows("out")
    assert [int(row["run"]) for row in found if row["state"].startswith("refused: GT")] == refused
    assert [int(row["run"]) for row in found if row["state"] == "finished"] == sorted(set(range(count)) - set(refused))
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["runs"], summary["runs_finished"], summary["runs_refused"]) == (count, len(seen), len(refused))
    others = [one for one in summary["ranking"] if one["rank"] is None]
    assert others
    assert {one["state"] for one in others} == {"refused"}
    page = html.unescape(Path("out/report.html").read_text())
    for one in others:
        assert one["reason"].startswith("GT")
        assert one["reason"] in page
        assert one["reason"][:5] in out
    # A merge says the same of them, and nothing is missing.
    code, _, _ = gradtide("sweep", "merge", "s.toml", "--store", "gradtide.store", "-o", "merged", "-q")
    assert code == 3
    for name in ("rows.csv", "points.csv", "summary.json"):
        assert Path("merged", name).read_bytes() == Path("out", name).read_bytes(), name


def test_a_shard_with_refused_runs_has_done_what_it_can(gradtide: Any, place: Path) -> None:
    study(PARTLY_WRONG["grid"][0])
    code, out, _ = gradtide("sweep", "s.toml", "--store", "one.store", "--shard", "2/2")
    assert code == 0
    assert "its 0 runs of 4" in out


MESHES = """
[sweep]
scenario = "llama3-8b"
cluster = "h100-hgx/1"
[sweep.grid]
"job.train.compute.seq" = [8192]
"job.train.compute.micro_batch" = [2]
"job.train.compute.global_batch" = [16]
[sweep.zip]
"job.train.parallel" = [{ fsdp = 8 }, { fsdp = 8 }, { fsdp = 4, tp = 2 }, { fsdp = 3 }]
"job.train.compute.recompute" = ["none", "full", "full", "full"]
"""
"""The first point is the fastest, and needs more memory than its device has; three ranks are not all of a node."""


def test_what_does_not_fit_is_marked_and_has_no_rank(gradtide: Any, place: Path) -> None:
    study(MESHES)
    code, out, _ = gradtide("sweep", "s.toml", "-o", "out", "--wide")
    assert code == 3
    summary = json.loads(Path("out/summary.json").read_text())
    states = {one["label"]: one["state"] for one in summary["ranking"]}
    assert list(states.values()) == ["ranked", "ranked", "does not fit", "refused"]
    first, _, out_of_memory, refused = summary["ranking"]
    assert out_of_memory["settings"]["job.train.parallel"] == {"fsdp": 8}
    assert out_of_memory["figure"] < first["figure"]
    assert (out_of_memory["rank"], out_of_memory["feasibility"]) == (None, "does not fit")
    assert out_of_memory["memory_bytes"] > out_of_memory["device_bytes"]
    assert first["rank"] == 1
    assert first["label"] in summary["headline"]
    assert "recompute none" not in summary["headline"]
    assert summary["runs_that_do_not_fit"] == 1
    assert [one["rank"] for one in summary["candidates"]] == [1, 2, None, None]
    page = html.unescape(Path("out/report.html").read_text())
    places = [out.index(one["label"]) for one in summary["ranking"]]
    assert places == sorted(places)
    assert "does not fit" in page
    assert refused["reason"] in page
    with open("out/points.csv", encoding="utf-8", newline="") as file:
        points = list(csv.DictReader(file))
    assert [row["rank"] for row in points] == ["1", "2", "", ""]
    assert [row["state"] for row in points] == list(states.values())
    assert [row["feasibility"] for row in rows("out")] == ["does not fit", "fits", "fits", ""]


def test_what_does_not_fit_is_in_no_chart_effect_or_front(place: Path) -> None:
    study(MESHES.replace("[sweep.grid]", 'against = "jobs.train.parallel.memory.total"\n[sweep.grid]'))
    result = gt.sweep("s.toml")
    names = [value for row in result.summary["effects"] for value in (row["value"], row["over"])]
    assert not any("none" in name for name in names)
    [chart] = result.summary["charts"]
    assert [value is None for value in chart["lines"][0]["values"]] == [True, False, False, True]
    assert all("none" not in one["values"] for one in result.summary["front"]["corners"])


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
        'workers = 1\n[traffic.web]\nincast = { dst = "h0", bytes = "100kB", every = "5ms" }\n'
        '[cluster]\ntopology = { kind = "star", hosts = 3 }\nlink = { rate = "10Gbps", delay = "10us" }\n'
        '[run]\nengine = "packet"\nduration = "9ms"\n'
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


PS = {"ps": {"servers": 1, "pull": "start", "sync": {"staleness": 2}}}
MESH = {"parallel": {"fsdp": 2, "tp": 2, "pp": 2}, "seq": 128, "global_batch": 4}
RUNS = {
    "workers in step": lambda: gt.run("base.toml"),
    "workers that differ": lambda: gt.run("base.toml", noise=0.1),
    "workers out of step": lambda: gt.run("base.toml", collective=PS, engine="fluid"),
    "beside flows": lambda: gt.run(gt.Scenario.from_dict(tiny_tenants())),
    "divided": lambda: gt.run("llama3-8b", cluster="h100-hgx/1", recompute="full", **MESH),
    "experts": lambda: gt.run("mixtral-8x7b", cluster="h100-hgx/1", seq=128, global_batch=8,
                              parallel={"fsdp": 8, "ep": 4}),
}  # fmt: skip


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
def test_the_figures_of_a_run_are_known_before_it(place: Path, make: Any) -> None:
    result = make()
    assert set(figures.of_summary(result.summary)) <= set(figures.expected(result.scenario))


# A row by itself


DIVIDED = (
    'scenario = "job.toml"\n[sweep.grid]\n'
    '"job.train.parallel" = [{ fsdp = 8 }, { fsdp = 4, tp = 2 }, { tp = 4, pp = 2 }]\n'
    '"job.train.compute.micro_batch" = [1, 2]\n'
)
JOB = (
    '[job.train]\nmodel = "llama3-8b"\nworkers = 8\nparallel = { fsdp = 8 }\n'
    'compute = { seq = 1024, global_batch = 16, device = "H100-bf16" }\n'
    '[cluster]\nnode = { gpus = 8, scale_up = { rate = "450GBps", delay = "1us" }, nics = 8 }\n'
    'link = { rate = "400Gbps", delay = "2us" }\n[run]\nengine = "fluid"\n'
)
ALONE = {
    "data-parallel": (
        'scenario = "base.toml"\nseeds = 2\n[sweep.grid]\n"job.train.compute.noise" = [0, 0.2]\n'
        '"job.train.collective" = [{ kind = "ring" }, { ps = { servers = 1 } }]\n'
        '"job.train.schedule.barrier" = [true, false]\n'
    ),
    "divided": DIVIDED,
    "a model on a cluster": MESHES.partition("[sweep]\n")[2],
    "clusters by name": (
        'scenario = "resnet50"\n[sweep.grid]\ncluster = ["ethernet-10g/4", "h100-hgx/2"]\n"run.engine" = ["fluid"]\n'
    ),
    "a sample of beside flows": (
        'scenario = "beside.json"\nseeds = 2\n[sweep.sample]\npoints = 3\n'
        '"cluster.link.delay" = { min = "1us", max = "9us" }\n'
    ),
}


@pytest.mark.parametrize("text", ALONE.values(), ids=ALONE)
def test_a_row_is_its_resolved_scenario_and_its_command_run_alone(gradtide: Any, place: Path, text: str) -> None:
    Path("beside.json").write_text(json.dumps(tiny_tenants()))
    Path("job.toml").write_text(JOB)
    study(f"[sweep]\n{text}")
    result = gt.sweep("s.toml")
    finished = [row for row in result.rows if row["state"] == "finished"]
    assert finished
    for row in random.Random(1).sample(finished, min(3, len(finished))):
        Path("alone.toml").write_text(result.study.scenario(row["run"]).to_toml())
        command = result.study.again(row["run"])
        assert command is not None
        for arguments in (["run", "alone.toml"], command[1:]):
            code, out, err = gradtide(*arguments, "--json")
            assert code == 0, err
            alone = figures.of_summary(json.loads(out))
            for name in alone:
                # Only tenants without a job have slowdowns alone.
                if name in row:
                    assert row[name] == alone[name] or (row[name] is None and alone[name] is None), name
            assert "jobs.train.iteration_time_ms.mean" in alone


def test_the_best_point_lies_beside_the_report(gradtide: Any, place: Path) -> None:
    study(GRID.replace("seeds = 2\n", ""))
    assert gradtide("sweep", "s.toml", "-o", "out", "-q")[0] == 0
    best = json.loads(Path("out/summary.json").read_text())["ranking"][0]
    _, out, _ = gradtide("run", "out/best.resolved.toml", "--json")
    assert json.loads(out)["jobs"]["train"]["iteration_time_ms"]["mean"] == best["figure"]
    assert best["again"] in html.unescape(Path("out/report.html").read_text())


def test_the_answer_rests_on_all_points(place: Path) -> None:
    """Of devices that are varied all are named, and the uncertainty is that of the kind that is known least."""
    study(
        '[sweep]\nscenario = "llama3-8b"\n[sweep.grid]\ncluster = ["h100-hgx/1", "a100-hgx/1"]\n'
        '"job.train.parallel" = [{ fsdp = 8 }]\n"job.train.compute.seq" = [2048]\n'
        '"job.train.compute.global_batch" = [8]\n'
    )
    answer = gt.sweep("s.toml").answer
    assert answer.again.scenario == "best.resolved.toml"
    premises = {one.name: one.value for one in answer.premises}
    assert all(name in premises["device"] for name in ("H100", "A100"))
    assert premises["ranked by"].startswith("jobs.train.iteration_time_ms.mean")
    alone = gt.run("llama3-8b", cluster="a100-hgx/1", parallel={"fsdp": 8}, seq=2048, global_batch=8)
    assert answer.uncertainty["sentence"].count(alone.answer.uncertainty["sentence"]) == 1


# Clusters and models


def test_a_model_is_swept_as_a_scenario_is(place: Path) -> None:
    study(
        '[sweep]\nscenario = "resnet50"\ncluster = "ethernet-25g/4"\n'
        '[sweep.grid]\n"job.train.compute.batch" = [8, 16]\n'
    )
    found = Study.load("s.toml").scenario(1)
    assert (found.hosts, found.link_rate_bps, found.jobs[0].compute.batch) == (4, 25 * 10**9, 16)
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,1000000\n")
    os.mkdir("deep")
    Path("deep/s.toml").write_text('[sweep]\nscenario = "../m.csv"\ncluster = "ethernet-25g/4"\n')
    assert Study.load("deep/s.toml").scenario(0).jobs[0].parameter_bytes == 1000000
    held = gt.sweep({"sweep": {"scenario": "resnet50", "cluster": "ethernet-25g/4"}}).rows
    layers = gt.Scenario.load("base.toml").jobs[0].layers
    assert gt.sweep({"sweep": {"scenario": list(layers)}}, cluster="ethernet-25g/4").study.scenario(0).hosts == 4
    assert held[0]["jobs.train.workers"] == 4


def test_another_cluster_takes_the_place_of_every_scenarios(gradtide: Any, place: Path) -> None:
    study(GRID.replace("cluster.link.rate", "job.train.schedule.order").replace('"1Gbps", "10Gbps"', '"fifo"'))
    assert Study.load("s.toml", "ethernet-100g/2").scenario(0).link_rate_bps == 10**11
    code, _, err = gradtide("sweep", "s.toml", "--cluster", "ethernet-100g/2", "-o", "out")
    assert code == 0, err
    times = [float(row["jobs.train.iteration_time_ms.mean"]) for row in rows("out")]
    alone = [gt.run("base.toml", cluster="ethernet-100g/2", order="fifo", seed=seed) for seed in (0, 1)]
    assert times == [run.job["iteration_time_ms"]["mean"] for run in alone]
    assert "--cluster ethernet-100g/2" in json.loads(Path("out/summary.json").read_text())["ranking"][0]["again"]
    code, _, err = gradtide("sweep", "s.toml", "--cluster", "ethernet-100gg/2")
    assert code == 2
    assert "error[GT006]" in err
    assert "--cluster" in err


def test_a_cluster_that_is_varied_and_named_is_refused(gradtide: Any, place: Path) -> None:
    study('[sweep]\nscenario = "base.toml"\n[sweep.grid]\ncluster = ["ethernet-10g/4"]\n')
    code, _, err = gradtide("sweep", "s.toml", "--cluster", "ethernet-100g/4")
    assert code == 2
    assert "error[GT103]" in err
    assert "s.toml:4" in err


# Before it runs


def test_an_estimate_runs_nothing(gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(PARTLY_WRONG["grid"][0])
    gt.sweep("s.toml", store="known", shard=(1, 4))
    seen = simulated(monkeypatch)
    code, out, _ = gradtide("sweep", "s.toml", "--estimate", "--json", "--store", "known")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "gradtide.estimate/1"
    assert [found[f"runs{part}"] for part in ("", "_finished", "_refused", "_to_do")] == [4, 1, 2, 1]
    assert found["memory_bytes"] > 0
    assert found["time_s"] > 0
    assert gradtide("sweep", "s.toml", "--estimate", "--store", "none")[0] == 0
    assert not seen
    assert not Path("none").exists()
    code, _, err = gradtide("sweep", "s.toml", "--estimate", "-o", "out")
    assert (code, "--output" in err) == (2, True)


# The store


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "file:store", "a b%20c", "é", "-store"])
def test_a_path_is_a_path(gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    study(GRID)
    seen = simulated(monkeypatch)
    for _ in range(2):
        assert gradtide("sweep", "s.toml", f"--store={name}", "-q")[0] == 0
    assert len(seen) == 4
    assert Path(name).is_file()
    assert [row["runs"] for row in gt.sweep_list(name)] == [4]
    assert gt.sweep_merge("s.toml", name).known == 4
    assert gradtide("compare", "base.toml", "--schedule", "fifo", f"--store={name}", "-q")[0] == 0


def test_a_store_may_have_a_name_that_is_no_unicode(place: Path) -> None:
    study(GRID)
    name = os.fsdecode(b"\xff.store")
    gt.sweep("s.toml", store=name)
    assert gt.sweep_merge("s.toml", name, store="all").known == 4
    # Its own runs are no others.
    assert gt.sweep_merge("s.toml", ["all", name], store="all").known == 4


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_store_that_is_no_file_is_one_error(gradtide: Any, place: Path, name: str) -> None:
    study(GRID)
    before = sorted(os.listdir("..")), sorted(os.listdir())
    code, out, err = gradtide("sweep", "s.toml", "--store", name)
    assert (code, out) == (3, "")
    assert len(err.strip().splitlines()) == 1
    assert (sorted(os.listdir("..")), sorted(os.listdir())) == before


def test_a_merge_takes_several_stores_and_loses_none(gradtide: Any, place: Path) -> None:
    study(GRID + ZIP)
    for part in "1234":
        assert gradtide("sweep", "s.toml", "--shard", f"{part}/4", "--store", f"{part}.store", "-q")[0] == 0
    whole = gt.sweep_merge("s.toml", ["1.store", "2.store", "3.store", "4.store"])
    assert (whole.known, whole.missing) == (8, 0)
    assert gt.sweep_merge("s.toml", "1.store").known == gt.sweep_merge("s.toml", Path("1.store")).known == 2
    ways = (
        ["1.store", "2.store", "3.store", "4.store"],
        ["1.store", "--from", "2.store", "3.store", "--from", "4.store"],
    )
    for number, stores in enumerate(ways):
        code, out, err = gradtide("sweep", "merge", "s.toml", *stores, "--store", f"all{number}", "-o", "out", "--json")
        assert code == 0, err
        assert json.loads(out)["runs_finished"] == 8
    for stores in (["1.store", "none"], ["--from", "none"]):
        code, _, err = gradtide("sweep", "merge", "s.toml", *stores)
        assert (code, "there is no store none" in err, Path("none").exists()) == (2, True, False)
    with pytest.raises(StoreError, match="there is no store none"):
        gt.sweep_merge("s.toml", ["none"])
    assert not Path("none").exists()


def test_the_one_store_of_a_merge_is_named_once(gradtide: Any, place: Path) -> None:
    study(GRID)
    code, out, err = gradtide("sweep", "merge", "s.toml", "--store", "one", "--store", "two")
    assert (code, out) == (2, "")
    assert "--store" in err
    assert not Path("two").exists()


def test_no_run_is_computed_twice_across_studies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = simulated(monkeypatch)
    study(GRID)
    gt.sweep("s.toml", store="store")
    assert len(seen) == len(set(seen)) == 4
    gt.sweep("s.toml", store="store")
    assert len(seen) == 4
    # A longer study runs what is new.
    study(GRID.replace('"1Gbps"', '"1Gbps", "2Gbps"').replace("seeds = 2", "seeds = 3"))
    gt.sweep("s.toml", store="store", jobs=2)
    assert len(seen) == len(set(seen)) == 9
    # The same run under other words.
    gt.sweep({"sweep": {"scenario": "base.toml", "grid": {"cluster.link.rate": ["1000Mbps"]}}}, store="store")
    assert len(seen) == 9


@pytest.mark.parametrize("jobs", [1, 4])
def test_equal_runs_of_one_study_are_one(place: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    seen = simulated(monkeypatch)
    words = ["1Gbps", "1000Mbps", "1000000000bps"]
    study(GRID.replace('"1Gbps", "10Gbps"', ", ".join(f'"{word}"' for word in words)))
    result = gt.sweep("s.toml", store="store", jobs=jobs)
    assert len(seen) == len(set(seen)) == 2
    assert [row["state"] for row in result.rows] == ["finished"] * 6


def test_what_a_scenario_names_is_part_of_a_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,1000000\n")
    study(GRID + '"job.train.model" = ["m.csv"]\n')
    seen = simulated(monkeypatch)
    gt.sweep("s.toml", store="store")
    Path("m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,2000000\n")
    gt.sweep("s.toml", store="store")
    assert len(set(seen)) == 8


def test_the_table_is_the_same_whatever_ran_before(gradtide: Any, place: Path) -> None:
    study(GRID + ZIP)
    assert gradtide("sweep", "s.toml", "-o", "one", "-j", "1", "-q")[0] == 0
    names = sorted(os.listdir("one"))
    tables = ["points.csv", "report.html", "rows.csv", "rows.parquet"]
    assert names == ["best.resolved.toml", *tables, "study.toml", "summary.json", "versions.json"]
    assert sorted(path for path in os.listdir() if path.startswith("gradtide")) == [
        "gradtide.store",
        "gradtide.store-claims",
    ]
    for shard in ("2/3", "1/3", "3/3"):
        code, out, _ = gradtide("sweep", "s.toml", "--store", f"{shard[0]}.store", "--shard", shard)
        assert code == 0
        assert f"Shard {shard}" in out
    taken = [part for number in "123" for part in ("--from", f"{number}.store")]
    code, out, _ = gradtide("sweep", "merge", "s.toml", "--store", "all.store", *taken[:4], "-o", "part")
    assert code == 0
    assert "2 runs are not finished" in out
    assert json.loads(Path("part/summary.json").read_text())["complete"] is False
    assert [row["state"] for row in rows("part")].count("missing") == 2
    assert gradtide("sweep", "merge", "s.toml", "--store", "all.store", *taken[4:], "-o", "merged")[0] == 0
    for name in names[:-1]:
        assert Path("merged", name).read_bytes() == Path("one", name).read_bytes(), name


def test_csv_and_parquet_hold_the_same_table(gradtide: Any, place: Path) -> None:
    study(GRID + '"job.train.schedule" = [{ order = \'fifo\' }]\n"run.timeline" = [1, 2]\n')
    assert gradtide("sweep", "s.toml", "-o", "out", "-q")[0] == 0
    table = pyarrow.parquet.read_table("out/rows.parquet").to_pylist()
    texts = rows("out")
    assert [list(row) for row in table] == [list(row) for row in texts]
    for row, text in zip(table, texts, strict=True):
        for name, value in row.items():
            assert (float(text[name]) if isinstance(value, (int, float)) else text[name]) == (
                "" if value is None else value
            )
    assert table[0]["job.train.schedule"] == '{"order": "fifo"}'
    assert table[0]["run.timeline"] == 1


def test_a_run_that_cannot_go_on_is_a_row_that_says_why(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(scenario: Any, progress: Any) -> Any:
        if scenario.link_rate_bps == 10**9:
            raise gt.SimulationError("job `train` waits for itself")
        return run(scenario, progress)

    run = executors.simulate
    monkeypatch.setattr(executors, "simulate", refuses)
    study(GRID)
    code, out, _ = gradtide("sweep", "s.toml", "-o", "out")
    assert code == 3
    assert "2 runs cannot go on" in out
    states = [row["state"] for row in rows("out")]
    assert states == ["failed: job `train` waits for itself"] * 2 + ["finished"] * 2


def test_a_damaged_run_is_named_and_run_again(gradtide: Any, place: Path) -> None:
    study(GRID)
    assert gradtide("sweep", "s.toml", "-o", "one", "-q")[0] == 0
    with sqlite3.connect("gradtide.store") as database:
        database.execute("UPDATE runs SET payload = zeroblob(40) WHERE rowid = 2")
    database.close()
    code, _, err = gradtide("sweep", "s.toml", "-o", "two", "-q")
    assert code == 0
    assert err.count("is damaged") == 1
    assert Path("one/rows.csv").read_bytes() == Path("two/rows.csv").read_bytes()
    assert gradtide("sweep", "s.toml", "-o", "two", "-q")[2].count("is damaged") == 0


def _older(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 0")
    database.close()


def _broken(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + bytes(5000))


def _other(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()


STORES = {
    "older": (_older, "is a store of an older gradtide"),
    "no database": (lambda path: path.write_text("mine\n" * 1000), "name another file"),
    "broken": (_broken, "cannot use the store"),
    "another database": (_other, "no store of runs"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot use the store"),
}


@pytest.mark.parametrize(("spoil", "words"), STORES.values(), ids=STORES)
def test_a_store_that_cannot_be_used_is_one_error_and_stays(gradtide: Any, place: Path, spoil: Any, words: str) -> None:
    study(GRID)
    store = place / "store"
    assert gradtide("sweep", "s.toml", "--store", store, "-q")[0] == 0
    spoil(store)
    before = store.read_bytes() if store.is_file() else None
    code, out, err = gradtide("sweep", "s.toml", "--store", store, "-o", "out", "-q")
    assert code == 3
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert str(store) in err
    assert (store.read_bytes() if store.is_file() else None) == before
    assert not Path("out").exists()


def test_a_full_disk_is_one_error_and_finished_runs_stay(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(GRID.replace("seeds = 2", "seeds = 40"))
    opened = Store._open

    def small(store: Store) -> None:
        opened(store)
        store._db.execute("PRAGMA max_page_count = 12")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_open", small)
        code, out, err = gradtide("sweep", "s.toml", "--store", "store", "-q")
    assert (code, out) == (3, "")
    assert "database or disk is full; make room" in err
    with Store(Path("store")) as store:
        kept = len(store)
    assert 0 < kept < 80
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0


def test_a_store_that_cannot_be_written_is_one_error(gradtide: Any, place: Path) -> None:
    study(GRID)
    code, _, err = gradtide("sweep", "s.toml", "--store", "base.toml/store", "-q")
    assert code == 3
    assert "cannot use the store base.toml/store" in err


def test_a_read_only_store_is_one_error_if_something_is_missing(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(GRID)
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0
    opened = Store._open

    def read_only(store: Store) -> None:
        opened(store)
        store._db.execute("PRAGMA query_only = ON")

    monkeypatch.setattr(Store, "_open", read_only)
    assert gradtide("sweep", "s.toml", "--store", "store", "-o", "out", "-q")[0] == 0
    study(GRID.replace("seeds = 2", "seeds = 3"))
    code, _, err = gradtide("sweep", "s.toml", "--store", "store", "-q")
    assert code == 3
    assert "attempt to write a readonly database; make it writable, or name another file" in err


def test_a_study_is_a_table_of_arrow(place: Path) -> None:
    study(GRID)
    result = gt.sweep("s.toml")
    table = pyarrow.table(result)
    assert table.num_rows == 4
    assert table["cluster.link.rate"].to_pylist() == ["1Gbps"] * 2 + ["10Gbps"] * 2
    assert [row["seed"] for row in result.to_dicts()] == [0, 1, 0, 1]


def test_another_process_sees_what_is_known_so_far(gradtide: Any, place: Path) -> None:
    study(GRID)
    half = Study.load("s.toml")
    with Store(Path("store")) as store:
        gt.sweep(half, store=store, shard=(1, 2))
        # The store is still open here, as in a process that works.
        code, out, _ = gradtide("sweep", "merge", "s.toml", "--store", "store", "-o", "part")
    assert code == 0
    assert "2 runs are not finished" in out
    assert [row["state"] for row in rows("part")] == ["finished", "missing"] * 2


def test_another_process_does_not_begin_what_is_under_way(place: Path) -> None:
    key = key_of(gt.Scenario.load("base.toml"))
    ask = (
        "from pathlib import Path; from gradtide.studies.store import Store\n"
        f"with Store(Path('store')).claim(bytes.fromhex('{key.hex()}')) as mine: print(mine)"
    )

    def asked() -> str:
        return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()

    with Store(Path("store")) as store, store.claim(key) as mine:
        assert mine
        assert asked() == "False"
    assert asked() == "True"


@pytest.mark.linux
@pytest.mark.slow
def test_killed_at_any_moment_the_study_ends_with_the_same_table(place: Path) -> None:
    study(GRID.replace("seeds = 2", "seeds = 150"))
    subprocess.run([*GRADTIDE, "sweep", "s.toml", "--store", "whole.store", "-o", "whole", "-q"], check=True)
    command = [*GRADTIDE, "sweep", "s.toml", "--store", "store", "-o", "out", "-q"]
    moments = random.Random(1)
    kept = 0
    for _ in range(4):
        pair = [subprocess.Popen(command) for _ in range(2)]
        time.sleep(moments.uniform(0.3, 1.0))  # a moment at random is what is tested
        for one in pair:
            one.send_signal(signal.SIGKILL)
            one.wait()
        with Store(Path("store")) as store:
            assert kept <= len(store)
            kept = len(store)
    subprocess.run(command, check=True)
    for name in ("rows.csv", "rows.parquet", "summary.json"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()


def test_ctrl_c_keeps_what_is_done(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(GRID.replace("seeds = 2", "seeds = 20"))
    seen = simulated(monkeypatch)

    def interrupt(share: float) -> None:
        if len(seen) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gt.sweep("s.toml", store="store", progress=interrupt)
    with Store(Path("store")) as store:
        kept = len(store)
    assert 5 <= kept < 40
    gt.sweep("s.toml", store="store")
    assert len(seen) <= 40 + 2  # what was under way


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
    Path("base.toml").write_text(
        '[traffic.web]\nincast = { dst = "h0", bytes = "100kB", every = "5ms" }\n'
        '[cluster]\ntopology = { kind = "star", hosts = 3 }\nlink = { rate = "10Gbps", delay = "10us" }\n'
        '[run]\nengine = "fluid"\nduration = "9ms"\n'
    )
    study(GRID)
    summary = gt.sweep("s.toml").summary
    assert summary["figure"] == "traffic.web.all.mean_fct_ms"
    assert summary["sensitivity"][0]["key"] == "cluster.link.rate"


def test_a_study_whose_runs_are_missing_has_a_report(gradtide: Any, place: Path) -> None:
    study(GRID + '[sweep.sample]\npoints = 3\n"job.train.workers" = { min = 2, max = 4 }\n')
    assert gradtide("sweep", "merge", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "12 runs are not finished" in Path("out/report.html").read_text()
    assert gradtide("sweep", "s.toml", "--store", "none", "-o", "out", "-q")[0] == 0
    assert "job.train.workers" in Path("out/report.html").read_text()


def test_a_store_says_what_it_holds(gradtide: Any, place: Path) -> None:
    Path("other.toml").write_text(BASE + '[run]\nengine = "packet"\nseed = 7\n')
    study(GRID.replace("[sweep.grid]", "[sweep.grid]\nscenario = ['base.toml', 'other.toml']"))
    assert gradtide("sweep", "s.toml", "--store", "store", "-q")[0] == 0
    found = gt.sweep_list("store")
    assert [tuple(row.values()) for row in found] == [
        ("base.toml", "fluid", gt.__version__, 0, 1, 4),
        ("other.toml", "packet", gt.__version__, 7, 8, 4),
    ]
    assert [row["runs"] for row in gt.sweep_list("store", seed=8)] == [2]
    assert [row["scenario"] for row in gt.sweep_list("store", engine="fluid")] == ["base.toml"]
    code, out, _ = gradtide("sweep", "list", "store", "--scenario", "other.toml")
    assert code == 0
    assert "4 runs" in out
    assert "base.toml" not in out
    code, _, err = gradtide("sweep", "list", "none")
    assert (code, "there is no store none" in err, Path("none").exists()) == (2, True, False)
    with pytest.raises(StoreError, match="there is no store none"):
        gt.sweep_list("none")


# Other studies on the same store


OTHERS = {
    "compare": ["compare", "base.toml", "--schedule", "fifo+barrier", "--schedule", "priority"],
    "map": ["tenants", "map", "tenants.json", "--job-loads", "0.5", "--traffic-loads", "0.03"],
    "buy": ["buy", "base.toml", "--nodes", "8", "--fabrics", "star,clos2", "--collectives", "ring"],
}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_a_study_with_a_store_repeats_no_run(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    Path("tenants.json").write_text(json.dumps(tiny_tenants()))
    assert gradtide(*command, "-o", "plain", "-q")[0] == 0
    seen: list[str] = []
    run = runs.simulate

    def noted(scenario: Any, *how: Any) -> Any:
        seen.append(scenario.sha256)
        return run(scenario, *how)

    monkeypatch.setattr(runs, "simulate", noted)
    assert gradtide(*command, "--store", "store", "-q")[0] == 0
    first = len(seen)
    assert first > 1
    assert gradtide(*command, "--store", "store", "-o", "stored", "-q")[0] == 0
    assert len(seen) == first
    names = [path.relative_to("plain") for path in Path("plain").rglob("*") if path.is_file()]
    assert names
    for name in names:
        if name.name not in ("versions.json", "report.html", "timeline.pftrace"):
            assert Path("stored", name).read_bytes() == Path("plain", name).read_bytes(), name
    assert not Path("stored.incomplete").exists()


def test_a_sweep_takes_the_runs_of_a_comparison(gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        gradtide("compare", "base.toml", "--schedule", "fifo", "--rate", "1Gbps,10Gbps", "--store", "s", "-q")[0] == 0
    )
    seen = simulated(monkeypatch)
    study(GRID.replace("seeds = 2", "seeds = 1") + "\"job.train.schedule\" = [{ order = 'fifo', barrier = false }]\n")
    assert gradtide("sweep", "s.toml", "--store", "s", "-q")[0] == 0
    assert not seen


def test_an_interrupted_study_with_a_store_goes_on_from_it(
    gradtide: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    run = runs.simulate

    def stops(scenario: Any, *how: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(scenario)
        return run(scenario, *how)

    command = [*OTHERS["compare"], "--rate", "1Gbps,2Gbps", "-j", "1", "--store", "store", "-q"]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "simulate", stops)
        code, _, err = gradtide(*command)
    assert code == 130
    assert "2 finished runs are kept in store" in err
    assert sorted(os.listdir()) == ["base.toml", "store", "store-claims"]
    assert gradtide(*command)[0] == 0
    with Store(Path("store")) as store:
        assert len(store) == 4
