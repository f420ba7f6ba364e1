"""Workers of parameter servers that are not in step, in scenarios: what is refused, what comes out, and where."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradtide as gt
from gradtide import Scenario, ScenarioError, words
from gradtide.studies.compare import compare

STRAGGLER = {"worker": 0, "factor": 3.0}
MODEL = {"model": "tictac_alexnet_v2", "workers": 3, "iterations": 2, "compute": {"batch": 32}}


def scenario(sync: object = None, engine: str = "fluid", **changes: Any) -> Scenario:
    layers = [
        {"name": "first", "forward": "1ms", "backward": "2ms", "parameters": "40kB", "update": "20us"},
        {"name": "last", "forward": "2ms", "backward": "3ms", "parameters": "90kB"},
    ]
    ps = {"servers": 2, "pull": "start", **({} if sync is None else {"sync": sync})}
    job = {"model": {"layers": layers}, "workers": 3, "iterations": 5, "collective": {"ps": ps}}
    return Scenario.from_dict({"job": {"train": job}, "run": {"engine": engine}}).set(changes)


def fault(**job: Any) -> tuple[str, str]:
    keys = scenario().to_dict()
    keys["job"]["train"] |= job
    with pytest.raises(ScenarioError) as error:
        Scenario.from_dict(keys)
    (found,) = error.value.faults
    return found.code, found.loc


@pytest.mark.parametrize("engine", ["fluid", "packet"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"job.train.compute.straggler": STRAGGLER, "job.train.compute.noise": 0.1},
        {"job.train.collective.reduction_rate": "1GB/s", "job.train.schedule.disorder": 0.2},
        {"job.train.task": "inference"},
        {"job.train.iterations": None, "run.duration": "60ms"},
    ],
)
def test_no_staleness_is_in_step_to_the_last_byte(tmp_path: Path, engine: str, changes: dict[str, Any]) -> None:
    folders = []
    for name, sync in (("default", None), ("sync", "sync"), ("bound", {"staleness": 0})):
        folder = gt.run(scenario(sync, engine, **changes)).save(tmp_path / name)
        folders.append({path.name: path.read_bytes() for path in folder.iterdir() if path.name != "versions.json"})
    assert folders[1] == folders[0]
    assert folders[2] == folders[0]
    assert "asynchrony" not in json.loads(folders[0]["summary.json"])["jobs"]["train"]
    assert b"staleness" not in folders[0].get("workers.csv", b"")


def test_the_key_is_written_out_and_read_back() -> None:
    for sync, bound in (("async", None), ({"staleness": 2}, 2)):
        one = scenario(sync)
        assert one.to_dict()["job"]["train"]["collective"]["ps"]["sync"] == sync
        assert one.jobs[0].collective.bound == bound
        assert Scenario.from_toml(one.to_toml()) == one
        assert Scenario.from_toml(one.to_toml()).spec() == one.spec()
    assert "sync" not in scenario("sync").to_dict()["job"]["train"]["collective"]["ps"]


@pytest.mark.parametrize("sync", ["asynchronous", "", 3, True, -1, {}, {"staleness": -1}, {"staleness": 1.5}, []])
def test_a_wrong_value_is_an_error_with_its_place(sync: object) -> None:
    code, loc = fault(collective={"ps": {"servers": 2, "pull": "start", "sync": sync}})
    assert loc.startswith("job.train.collective.ps.sync")
    assert code != "GT000"


@pytest.mark.parametrize("staleness", [float("nan"), float("inf"), 10**30, "3", None, True])
def test_a_wrong_staleness_is_an_error_with_its_place(staleness: object) -> None:
    _, loc = fault(collective={"ps": {"servers": 2, "pull": "start", "sync": {"staleness": staleness}}})
    assert loc.startswith("job.train.collective.ps.sync")


def test_a_collective_of_all_workers_cannot_be_asynchronous() -> None:
    for sync in ("async", "sync", {"staleness": 1}):
        keys = {"model": "resnet50", "workers": 4, "collective": {"ps": {"servers": 1, "sync": sync}}}
        with pytest.raises(ScenarioError, match="exchange each bucket together") as error:
            Scenario.from_dict({"job": {"train": keys}, "run": {"engine": "fluid"}})
        (found,) = error.value.faults
        assert (found.code, found.loc) == ("GT015", "job.train.collective.ps.sync")


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_figures_of_workers_agree_with_the_tables(engine: str) -> None:
    for sync in ("async", {"staleness": 1}):
        result = gt.run(scenario(sync, engine, **{"job.train.compute.straggler": STRAGGLER}))
        again = gt.run(scenario(sync, engine, **{"job.train.compute.straggler": STRAGGLER}))
        assert again.summary["jobs"] == result.summary["jobs"]
        found, table = result.job["asynchrony"], result.workers.to_numpy()
        assert found["bound"] == (None if sync == "async" else 1)
        for number, figures in found["workers"].items():
            mine = table["worker"] == int(number)
            assert figures["iterations"] == mine.sum()
            assert figures["iteration_time_ms"] == pytest.approx(table["time_us"][mine].mean() / 1e3)
            assert figures["iterations_per_s"] == pytest.approx(1e6 / table["time_us"][mine].mean())
            assert figures["bound_wait_ms"] == pytest.approx(table["straggler_us"][mine].mean() / 1e3)
            for name in ("staleness_iterations", "staleness_updates"):
                assert figures[name]["mean"] == pytest.approx(table[name][mine].mean())
                assert figures[name]["max"] >= table[name][mine].max()
        assert found["staleness_updates"]["mean"] == pytest.approx(table["staleness_updates"].mean())
        waits = 100 * table["straggler_us"].sum() / table["time_us"].sum()
        assert found["bound_wait_percent"] == pytest.approx(waits)
        # A job's iteration is one of each worker, and its parts are all of it.
        job = result.job
        assert sum(job["waterfall_ms"].values()) == pytest.approx(job["iteration_time_ms"]["mean"])
        assert job["lower_bound_ms"] <= job["iteration_time_ms"]["mean"] * (1 + 1e-9)
        per_s = 3 * 1e3 / job["iteration_time_ms"]["mean"]
        # Of few iterations, the workers' means are of some that end behind the job's last.
        assert found["iterations_per_s"] == pytest.approx(per_s, rel=0.05 if sync == "async" else 0.25)
        assert job["speed_up"] == pytest.approx(found["iterations_per_s"] * job["alone_ms"] / 1e3)
        sampled = gt.run({"job": {"train": {**MODEL, "collective": {"ps": {"pull": "start", "sync": sync}}}}}).job
        assert sampled["samples_per_s"] == pytest.approx(sampled["asynchrony"]["iterations_per_s"] * 32)


def test_asynchrony_pays_where_a_worker_is_slow_and_a_bound_limits_it() -> None:
    changes = {"job.train.compute.straggler": STRAGGLER, "job.train.iterations": 30}
    bounds: list[object] = ["sync", {"staleness": 1}, {"staleness": 10}, "async"]
    times = [gt.run(scenario(sync, **changes)).iteration_time for sync in bounds]
    assert times == sorted(times, reverse=True)
    # 24 ms, or 3 / (1/24 + 2/8) = 10.3 ms, and transfers of less than 1 ms.
    assert 24e-3 <= times[0] <= 25e-3
    assert 3e-3 / (1 / 24 + 2 / 8) <= times[-1] <= 3e-3 / (1 / 25 + 2 / 9)


def test_what_a_run_prints_and_its_report_shows(tmp_path: Path) -> None:
    one = scenario({"staleness": 1}, **{"job.train.compute.straggler": STRAGGLER})
    result = gt.run(one)
    folder = result.save(tmp_path / "run")
    report = (folder / "report.html").read_text()
    assert "Workers that are not in step" in report
    assert "which the others wait for" not in report
    assert "Workers are not in step: this is an iteration of worker" in report
    assert 'data-key="jobs.train.asynchrony.staleness_iterations.mean"' in report
    in_step = gt.run(scenario("sync", **{"job.train.compute.straggler": STRAGGLER})).save(tmp_path / "in-step")
    assert "which the others wait for" in (in_step / "report.html").read_text()
    assert "jobs.train.asynchrony.workers.2.staleness_updates.max" in report
    header = (folder / "workers.csv").read_text().splitlines()[0].split(",")
    assert header[-2:] == ["staleness_iterations", "staleness_updates"]
    _, rows = words.run_rows(result.summary)
    printed = {name.strip(): cell for name, cell in rows}
    assert printed["waits for slower workers"].endswith("at most 1 ahead")
    assert "per s, of a worker" in printed["iterations of workers"]
    forward = gt.run(one.set({"job.train.task": "inference"}))
    assert forward.job["asynchrony"]["staleness_updates"] is None
    assert "Workers that are not in step" in (forward.save(tmp_path / "forward") / "report.html").read_text()
    assert "–" in dict(map(tuple, words.run_rows(forward.summary)[1]))["  staleness, updates"]


def test_jobs_in_step_and_not_stand_side_by_side(tmp_path: Path) -> None:
    keys = scenario("async", **{"job.train.compute.straggler": STRAGGLER}).to_dict()
    other = {**keys["job"]["train"], "collective": {"kind": "ring"}, "workers": 3}
    for key in ("schedule", "task", "hosts", "placement"):
        other.pop(key, None)
    keys["job"]["other"] = other
    keys["cluster"].pop("topology")
    result = gt.run(keys)
    assert ["asynchrony" in job for job in result.summary["jobs"].values()] == [True, False]
    table = result.workers.to_numpy()
    is_ring = table["job"] == "other"
    assert np.isnan(table["staleness_updates"][is_ring]).all()
    assert not np.isnan(table["staleness_updates"][~is_ring]).any()
    assert (result.save(tmp_path / "run") / "report.html").exists()


def test_schedules_compare_without_a_barrier_as_in_step() -> None:
    base = scenario("async", **{"job.train.compute.straggler": STRAGGLER})
    study = compare(base)
    for row in study.rows:
        own = gt.run(base.set({"job.train.schedule.order": row["order"]})).job
        assert row["iteration_time_us"] == pytest.approx(1e3 * own["iteration_time_ms"]["mean"])
        assert row["above_bound_percent"] >= -1e-6


@pytest.mark.parametrize("study", [gt.buy, gt.plan])
def test_studies_of_collectives_refuse_servers_from_which_workers_pull(study: Any) -> None:
    for sync in (None, "async", {"staleness": 2}):
        with pytest.raises(ValueError, match="not op by op with parameter servers"):
            study(scenario(sync))
