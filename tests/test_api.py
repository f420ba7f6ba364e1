"""The Python names that a user imports: results as arrays, dicts, Arrow and files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import gradtide as gt
from gradtide import cli

SCENARIOS = Path(__file__).parent.parent / "scenarios"


@pytest.fixture(scope="module")
def result():
    """Chapter 4 of the thesis at 1 Gbit/s, urgent gradients first, no barrier."""
    base = gt.preset("paper/gao2020-ch4").replace(link_rate="1Gbps", order="priority", barrier=False)
    return gt.run(base)


def test_times_are_seconds_and_slack_has_one_value_per_bucket_and_iteration(result):
    assert result.iteration_time == pytest.approx(result.job["iteration_time_ms"]["mean"] / 1e3)
    assert len(result.slack) == len(result.transfers) == 18 * 10
    np.testing.assert_allclose(result.slack.to_numpy(), result.transfers["slack_us"] / 1e6)
    np.testing.assert_array_equal(np.asarray(result.slack), result.slack.to_numpy())
    assert (result.slack.to_numpy() >= result.margin.to_numpy()).all()


def test_arrow_dicts_and_numpy_hold_the_same_table(result):
    for table in (result.iterations, result.transfers, result.operations, result.links, result.bandwidth):
        arrow = pa.table(table)
        assert arrow.column_names == table.columns
        assert arrow.to_pylist() == table.to_dicts()
        assert {name: len(column) for name, column in table.to_numpy().items()} == dict.fromkeys(
            table.columns, len(table)
        )


def test_absent_numbers_are_nan_in_numpy_none_in_dicts_and_null_in_arrow():
    alone = gt.run(gt.preset("paper/gao2020-ch4").replace(workers=1))
    assert np.isnan(alone.iterations["alpha"]).all()
    assert {row["alpha"] for row in alone.iterations.to_dicts()} == {None}
    assert pa.table(alone.iterations)["alpha"].null_count == len(alone.iterations)
    assert len(alone.transfers) == len(alone.bandwidth) == 0
    assert alone.job["alpha"] is None
    assert alone.job["slack_ms"] == {"min": None, "p50": None, "max": None}


def test_files_of_a_result_appear_where_they_are_wanted(result, tmp_path):
    assert result.report(tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert result.timeline(tmp_path / "a.pftrace").stat().st_size > 1000
    folder = result.save(tmp_path / "run")
    assert (folder / "transfers.csv").read_text() == result.transfers.to_csv()


def test_a_comparison_says_what_each_schedule_saves(tmp_path):
    study = gt.compare("paper/gao2020-ch4", schedules=["fifo+barrier", "priority"], rates=["1Gbps", "2Gbps"], jobs=2)
    saves = {(row["rate_bps"], row["schedule"]): row["saves_percent"] for row in study.to_dicts()}
    assert saves[10**9, "priority without barrier"] == pytest.approx(16.02, abs=0.005)
    assert saves[2 * 10**9, "priority without barrier"] == pytest.approx(0, abs=1e-9)
    assert pa.table(study).to_pylist() == study.to_dicts()
    assert list(study.results) == [row["run"] for row in study.rows]
    assert study.headline in study.save(tmp_path / "study").joinpath("summary.json").read_text()


def test_yes_and_no_in_rows_are_booleans_everywhere_and_words_in_csv(result):
    small = {"job": {"train": {"model": "alexnet", "workers": 4}}}
    bought = gt.buy(small, fabrics=["star"], collectives=["ring", "butterfly"])
    compared = gt.compare(small, schedules=["fifo+barrier", "priority"])
    exchanged = gt.collectives(small, collectives=["ring", "butterfly"], sizes=["1MB"])
    for columns, table in (
        (("is_knee", "is_frontier"), bought.table),
        (("barrier",), compared.table),
        (("is_best",), exchanged.table),
        (("barrier",), result.bandwidth),
    ):
        for column in columns:
            assert table[column].dtype == np.bool_, column
            assert pa.table(table)[column].type == pa.bool_(), column
            assert {row[column] for row in table.to_dicts()} == {True, False}, column
        at = table.columns.index(columns[0])
        assert {line.split(",")[at] for line in table.to_csv().splitlines()[1:]} <= {"true", "false"}
    assert [row["is_knee"] for row in bought.rows] == [row["is_knee"] for row in bought.to_dicts()]


@pytest.mark.parametrize("engine", ["fluid"])
def test_a_run_says_its_speed_up_over_one_worker_without_a_network(engine):
    layers = [{"name": "a", "forward": "4ms", "backward": "6ms", "parameters": "10MB"}]
    job = {"model": {"layers": layers}, "workers": 4, "schedule": {"barrier": True}}
    run = gt.run(
        {"job": {"train": job}, "cluster": {"link": {"rate": "10Gbps", "delay": "0s"}}, "run": {"engine": engine}}
    )
    # One bucket that nothing overlaps: 10 ms, then a ring of 4 sends 2 x 3/4 x 10 MB at 10 Gbit/s.
    expected_ms = 10 + 1.5 * 8
    assert run.job["iteration_time_ms"]["mean"] == pytest.approx(expected_ms, rel=1e-6)
    assert run.job["alone_ms"] == 10
    assert run.job["speed_up"] == pytest.approx(4 * 10 / expected_ms, rel=1e-6)
    assert run.job["scaling_efficiency"] == pytest.approx(10 / expected_ms, rel=1e-6)
    assert run.job["samples_per_s"] is None  # a table of times has no mini-batch
    alone = gt.run({"job": {"train": {**job, "workers": 1}}})
    assert (alone.job["speed_up"], alone.job["scaling_efficiency"]) == (1, 1)


def test_a_slow_worker_costs_scaling_efficiency():
    job = {"model": "resnet50", "workers": 4, "compute": {"straggler": {"worker": 1, "factor": 2.0}, "batch": 16}}
    run = gt.run({"job": {"train": job}, "cluster": {"link": {"rate": "800Gbps", "delay": "0s"}}})
    assert run.job["scaling_efficiency"] < 0.5 < run.job["utilisation"]
    assert run.job["samples_per_s"] == pytest.approx(4 * 16 / run.iteration_time)


def test_a_model_runs_on_a_cluster_of_the_presets_as_in_compare():
    run = gt.run("resnet50", cluster="ethernet-100g/16")
    compared = gt.compare("resnet50", cluster="ethernet-100g/16", schedules=["fifo+barrier"])
    assert run.job["workers"] == compared.rows[0]["workers"] == 16
    assert run.scenario.link_rate_bps == compared.rows[0]["rate_bps"] == 100 * 10**9
    assert gt.run("resnet50").job["workers"] == 8


@pytest.mark.parametrize(
    ("own", "slowest", "around"), [("10Gbps", 10**9, 5 * 10**9), ("400Gbps", 5 * 10**10, 2 * 10**11)]
)
def test_what_if_rates_lie_around_the_runs_own_and_reach_800_gigabits(own, slowest, around):
    run = gt.run("resnet50", cluster={"cluster": {"link": {"rate": own}}, "run": {"engine": "fluid"}})
    rates = sorted(set(run.bandwidth["rate_bps"].tolist()))
    assert rates[0] == slowest
    assert rates[-1] == 800 * 10**9
    assert {around, run.scenario.link_rate_bps, 2 * run.scenario.link_rate_bps} <= set(rates)
    # On the run's own rate it is the run itself.
    own_rows = [
        row for row in run.bandwidth.to_dicts()
        if (row["rate_bps"], row["order"], row["barrier"]) == (run.scenario.link_rate_bps, "fifo", True)
    ]  # fmt: skip
    assert [row["iteration_time_us"] for row in own_rows] == [pytest.approx(1e6 * run.iteration_time, rel=1e-9)]


def test_results_show_themselves_in_notebooks_without_trusting_names():
    layer = {"name": "<b>", "forward": "1ms", "backward": "1ms", "parameters": "1MB"}
    result = gt.run({"job": {"a": {"model": {"name": "<i>x</i>", "layers": [layer]}, "workers": 2}}})
    for shown in (result, result.transfers, gt.compare(result.scenario)):
        html = shown._repr_html_()
        assert html.startswith("<table>")
        assert "<b>" not in html
        assert "<i>" not in html
    assert "<gradtide.RunResult" in repr(result)


def test_a_wrong_scenario_is_a_value_error_with_its_faults():
    with pytest.raises(ValueError, match="GT020") as caught:
        gt.run({"job": {"a": {"model": "resnet50", "workers": 2}}, "cluster": {"link": {"rate": 10}}})
    assert isinstance(caught.value, gt.ScenarioError)
    assert {"code", "loc", "msg", "input", "hint"} <= set(caught.value.errors[0])


def test_a_scenario_that_the_core_refuses_is_told_as_such():
    layer = {"name": "l", "forward": "1ps", "backward": "1ps", "parameters": "1MB"}
    many = [{**layer, "name": f"l{index}"} for index in range(400)]
    job = {"model": {"layers": many}, "workers": 2, "iterations": 100_000, "schedule": {"fusion": "0B"}}
    with pytest.raises(gt.GradtideError, match="40000000 transfers"):
        gt.run({"job": {"a": job}})


def test_every_public_name_is_there():
    for name in gt.__all__:
        assert getattr(gt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        gt.rum  # noqa: B018 - the access is the test


def test_every_command_has_a_function_of_its_name():
    names = {name.replace(" ", "_") for name in command_names()}
    assert {"run", "tenants_map", "collectives", "presets", "report", "schema"} <= names
    assert names <= set(gt.__all__)
    assert all(callable(getattr(gt, name)) for name in names)


def command_names():
    for name in cli.COMMANDS:
        yield name
        yield from (f"{name} {inner}" for inner in cli.SUBCOMMANDS.get(name, ()))


def test_small_commands_give_in_python_what_they_print(tmp_path):
    assert {row["kind"] for row in gt.presets("device")} == {"device"}
    assert gt.explain("GT012").startswith("GT012")
    assert gt.schema()["$schema"].startswith("https://json-schema.org")
    assert {row["what"] for row in gt.doctor()} >= {"gradtide", "core"}
    gt.run("paper/gao2020-ch4").save(tmp_path / "run")
    assert gt.report(tmp_path / "run") == tmp_path / "run" / "report.html"
    with pytest.raises(ValueError, match="no reproduction"):
        gt.reproduce("nobody/1")
    with pytest.raises(ValueError, match="--rank"):
        gt.convert(SCENARIOS / "twelve-layers.csv", from_format="layers", rank=1)
