"""Studies over any keys: their points, rows, commands and estimates."""

import csv
import html
import json
import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from error_tables import Case, cases
from gradtide.errors import ScenarioError
from gradtide.studies.sweep import Study, figures, sobol
from run_folders import tiny_tenants
from sweep_studies import BASE, GRID, ZIP, rows, simulated, study

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
