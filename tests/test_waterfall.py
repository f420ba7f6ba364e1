"""From a trace to an answer: a recorded step as a model, where its time goes, and what would help."""

import contextlib
import gzip
import html
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradtide as gt
from gradtide import report
from gradtide.studies.waterfall import bus_bytes
from gradtide.traces import read
from gradtide.traces.model import _shared
from kineto_of_run import kineto_of_run

RECORDED = Path(__file__).parent / "data" / "traces"

# As tests/record_trace.py trains: two layers in one bucket of DDP's, float32.
PARAMETER_BYTES = 4 * (256 * 512 + 512 + 512 * 10 + 10)


def scenario(rate="5Gbps", **more):
    job = {"model": "resnet50", "workers": 2, "iterations": 4, "schedule": {"first_fusion": "1MiB"}}
    cluster = {"link": {"rate": rate, "delay": "10us"}}
    return gt.Scenario.from_dict({"job": {"train": job}, "cluster": cluster, "run": {"timeline": 4}}).replace(**more)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A run, and the folder of what a profiler would have written of it."""
    result = gt.run(scenario())
    return result, kineto_of_run(result, tmp_path_factory.mktemp("traces") / "run")


# A step as a model


def test_a_recorded_step_computes_as_long_and_sends_as_much_as_its_model():
    trace = gt.from_kineto(RECORDED)
    model = trace.to_model()
    row = max(trace.summary()["ranks"], key=lambda row: row["compute_us"])
    assert model.rank == row["rank"]
    assert [layer.parameter_bytes for layer in model.layers if not layer.is_host] == [0, PARAMETER_BYTES]
    # Whole nanoseconds on both sides; the table shows float64 microseconds below 2^14, whose ulp is 2^-39 us.
    assert 1e6 * model.compute_time == pytest.approx(row["compute_us"], abs=2 * 2**-39)
    base = gt.Scenario.from_dict({"job": {"train": {"model": str(RECORDED), "workers": 2}}})
    assert base.jobs[0].compute_ps == round(1e12 * (model.compute_time + model.host_time))
    assert gt.run(base).job["parameter_bytes"] == PARAMETER_BYTES


@pytest.mark.parametrize(("rate", "fusion"), [("1Gbps", "1MiB"), ("5Gbps", "1MiB"), ("50Gbps", "25MiB")])
def test_a_simulated_run_traced_and_run_again_takes_as_long(tmp_path, rate, fusion):
    base = scenario(rate, first_fusion=None, fusion=fusion)
    first = gt.run(base)
    folder = kineto_of_run(first, tmp_path / "run")
    again = gt.run(base.replace(model=str(folder), fusion=None))
    assert again.job["buckets"] == first.job["buckets"]
    assert again.job["parameter_bytes"] == first.job["parameter_bytes"]
    # Of an iteration only the last bucket's readiness and the passes count, each the difference of two times that the
    # trace rounds to a nanosecond: one nanosecond for forward, one for when each bucket is ready.
    tolerance_s = (1 + first.job["buckets"]) * 1e-9
    assert again.iteration_time == pytest.approx(first.iteration_time, abs=tolerance_s)


@settings(max_examples=20)
@given(
    host_us=st.lists(st.integers(0, 4000), min_size=9, max_size=9),
    rate=st.sampled_from(["1Gbps", "5Gbps", "50Gbps"]),
)
def test_the_host_s_time_is_kept_wherever_it_was(tmp_path_factory, host_us, rate):
    # Whatever a step waits for the host, its model has the length of the recorded step, and says how long that was.
    layers = []
    for place in range(3):
        forward, backward, update = host_us[3 * place : 3 * place + 3]
        layers += [
            {"name": f"layer{place}", "forward": "1ms", "backward": "2ms", "parameters": "2MB"},
            {"name": f"host{place}", "forward": f"{forward}us", "backward": f"{backward}us", "update": f"{update}us"}
            | {"parameters": "0B", "host": True},
        ]
    first = gt.run(scenario(rate, model={"layers": layers}, first_fusion=None, fusion="0B"))
    folder = kineto_of_run(first, tmp_path_factory.mktemp("host") / "run")
    trace = gt.from_kineto(folder)
    model, step = trace.to_model(), trace.waterfall()
    again = gt.run(first.scenario.replace(model=str(folder)))
    # Report, what convert says, and the scenario of the report have one step time. That scenario's network is fitted
    # to whole nanoseconds of three alike transfers of at least 0.3 ms.
    assert trace.summary()["typical_step"]["span_ms"] == step.summary["step_ms"]
    assert 1e3 * gt.run(step.scenario).iteration_time == pytest.approx(step.summary["step_ms"], rel=1e-5)
    # As above, a nanosecond for each of some ten times that the trace rounds.
    assert again.iteration_time == pytest.approx(first.iteration_time, abs=2e-8)
    assert model.compute_time == pytest.approx(9e-3, abs=2e-8)
    assert model.host_time == pytest.approx(1e-6 * sum(host_us), abs=2e-8)
    assert again.job.get("host_ms", 0.0) == pytest.approx(1e3 * model.host_time, abs=1e-9)


@pytest.mark.parametrize("collective", [{"kind": "ring"}, {"kind": "ps"}, {"kind": "ps", "ps": {"pull": "start"}}])
def test_the_host_s_time_is_no_computing_and_part_of_the_iteration(collective):
    layer = {"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "2MB"}
    host = {
        "name": "host",
        "forward": "300us",
        "backward": "500us",
        "update": "100us",
        "parameters": "0B",
        "host": True,
    }
    train = {"model": {"layers": [layer, host]}, "workers": 2, "collective": collective}
    result = gt.run(gt.Scenario.from_dict({"job": {"train": train}, "run": {"timeline": 2}}))
    parts, times = result.job["waterfall_ms"], result.iterations.to_dicts()[0]
    assert (parts["compute"], parts["host"], result.job["alone_ms"]) == pytest.approx((3.0, 0.9, 3.9))
    assert sum(parts.values()) == pytest.approx(result.job["iteration_time_ms"]["mean"])
    assert (times["compute_us"], times["host_us"]) == pytest.approx((3000, 900))
    assert "host" in result.operations["kind"].tolist()
    scaled = gt.Scenario.from_dict({"job": {"train": train | {"compute": {"scale_to": "1ms"}}}})
    assert (scaled.jobs[0].compute_ps, gt.run(scaled).job["host_ms"]) == (19 * 10**8, pytest.approx(0.9))


def test_priority_of_a_traced_run_needs_the_input_side_first(simulated):
    result, folder = simulated
    model = gt.from_kineto(folder).to_model()
    rows = [row for row in result.transfers.to_dicts() if row["iteration"] == 1]
    sent = [row["bytes"] for row in sorted(rows, key=lambda row: row["first_layer"])]
    assert [layer.parameter_bytes for layer in model.layers if layer.parameter_bytes] == sent
    shares = [layer.forward_ps / max(layer.backward_ps, 1) for layer in model.layers]
    # Shares of the forward pass by backward time, whole nanoseconds each: off by less than one of at least a million.
    assert max(shares) == pytest.approx(min(shares), rel=1e-5)


def test_chakra_knows_steps_by_what_repeats(simulated, tmp_path):
    _, folder = simulated
    kineto = gt.from_kineto(folder)
    kineto.save(tmp_path / "a.et")
    chakra = gt.from_chakra(tmp_path)
    assert (kineto.steps_found_by, chakra.steps_found_by) == ("marks", "transfers")
    assert len(kineto.steps) == len(chakra.steps)
    one, other = kineto.to_model(), chakra.to_model()
    sizes = [[layer.parameter_bytes for layer in model.layers if not layer.is_host] for model in (one, other)]
    assert sizes[0] == sizes[1]
    # Starts are cut to whole microseconds and durations rounded: up to 1.5 us for each of some hundred ops.
    ops = len(kineto.ops) // (2 * len(kineto.steps))
    assert other.compute_time == pytest.approx(one.compute_time, abs=1.5e-6 * ops)


def test_the_resolved_scenario_needs_no_trace_and_says_what_was_not_recorded(simulated, tmp_path):
    _, folder = simulated
    (tmp_path / "s.toml").write_text('[job.train]\nmodel = "traces/run"\nworkers = 2\n')
    (tmp_path / "traces").mkdir()
    for path in folder.iterdir():
        (tmp_path / "traces" / "run").mkdir(exist_ok=True)
        (tmp_path / "traces" / "run" / path.name).write_bytes(path.read_bytes())
    loaded = gt.Scenario.load(tmp_path / "s.toml")
    text = loaded.to_toml()
    assert str(tmp_path) not in text
    assert "traces/run: step 2 of rank 0; forward times are shares by backward times" in text
    assert 'fusion = "0B"' in text
    for path in (tmp_path / "traces" / "run").iterdir():
        path.unlink()
    assert gt.Scenario.from_toml(text) == loaded
    assert gt.Scenario.from_toml(text).sha256 == loaded.sha256
    # What the user says of fusion holds: layers are what a bucket is made of then.
    together = gt.Scenario.from_toml(text.replace('fusion = "0B"', 'fusion = "1GB"'))
    assert gt.run(together).job["buckets"] == 1


def test_a_changed_trace_is_read_again(simulated, tmp_path):
    _, folder = simulated
    path = tmp_path / "rank0.json"
    text = (folder / "rank0.pt.trace.json").read_text()
    path.write_text(text)
    data = {"job": {"train": {"model": str(path), "workers": 2}}}
    before = gt.Scenario.from_dict(data).jobs[0].parameter_bytes
    path.write_text(text.replace('"float"', '"double"'))
    assert gt.Scenario.from_dict(data).jobs[0].parameter_bytes == 2 * before


def test_studies_take_a_trace_for_a_model(simulated):
    _, folder = simulated
    rows = gt.compare(gt.from_kineto(folder), cluster="ethernet-10g/4", schedules=["fifo", "priority"]).rows
    assert {row["workers"] for row in rows} == {4}


def events_of(folder, rank=0):
    return json.loads((folder / f"rank{rank}.pt.trace.json").read_text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: "all" not in one["name"], "no all-reduce of a gradient (no transfer at all)"),
        (lambda one: one["args"].pop("Input Dims", None) or True, "record with record_shapes=True"),
        (lambda one: one["cat"] != "cpu_op" or "all" in one["name"], "computes nothing"),
    ],
)
def test_what_a_model_lacks_is_said(simulated, tmp_path, change, said):
    document = events_of(simulated[1])
    document["traceEvents"] = [one for one in document["traceEvents"] if change(one)]
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    with pytest.raises(gt.TraceError) as caught:
        gt.from_kineto(tmp_path).to_model()
    assert said in str(caught.value)
    with pytest.raises(gt.ScenarioError) as refused:
        gt.Scenario.from_dict({"job": {"train": {"model": str(tmp_path / "rank0.json"), "workers": 2}}})
    [fault] = refused.value.errors
    assert (fault["code"], fault["loc"]) == ("GT038", "job.train.model")
    assert said in fault["msg"]


def test_where_no_op_is_of_the_backward_pass_a_third_is_taken_for_forward(simulated, tmp_path):
    document = events_of(simulated[1])
    text = json.dumps(document).replace("autograd::engine::evaluate_function: ", "")
    (tmp_path / "rank0.json").write_text(text)
    known, unknown = gt.from_kineto(simulated[1]).to_model(), gt.from_kineto(tmp_path).to_model()
    assert unknown.compute_time == known.compute_time
    assert unknown.parameter_bytes == known.parameter_bytes
    total_ps = round(1e12 * unknown.compute_time)
    first_ps = total_ps - sum(layer.backward_ps for layer in unknown.layers)
    # In whole nanoseconds, and not more than was computed before the first gradient.
    assert first_ps <= total_ps / 3
    assert "a third of the compute time counts as the forward pass" in unknown.source


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=30).filter(any))
def test_shares_sum_to_the_whole_and_follow_the_weights(total, weights):
    shares = _shared(total, weights)
    assert sum(shares) == total
    assert all(
        abs(share * sum(weights) - total * weight) < sum(weights) for share, weight in zip(shares, weights, strict=True)
    )


# Where the time goes


def test_the_waterfall_of_a_simulated_run_is_that_of_the_run(simulated):
    result, folder = simulated
    found = gt.from_kineto(folder).waterfall().summary
    parts, job = found["waterfall_ms"], result.job
    # Every op's ends are rounded to a nanosecond.
    tolerance_ms = 1e-6 * len(result.operations)
    assert found["step_ms"] == pytest.approx(1e3 * result.iteration_time, abs=tolerance_ms)
    assert parts["compute"] == pytest.approx(job["waterfall_ms"]["compute"], abs=tolerance_ms)
    waits_ms = job["waterfall_ms"]["exposed"] + job["waterfall_ms"]["barrier"]
    assert parts["exposed"] + parts["late"] + parts["idle"] == pytest.approx(waits_ms, abs=tolerance_ms)
    assert sum(parts.values()) == pytest.approx(found["step_ms"])
    assert found["effective_ranks"] == pytest.approx(2 * job["utilisation"], rel=1e-6)
    assert f"2 ranks do the work of {2 * job['utilisation']:.2f}" in found["headline"]


def test_the_predicted_step_is_the_recorded_one_and_the_same_as_a_run_says(simulated):
    result, folder = simulated
    found = gt.from_kineto(folder).waterfall()
    advice = found.summary["advice"]
    # An exchange is a fixed part, 2 steps over two cables of 10 us, and 5 Gbit/s; fitted to whole nanoseconds.
    assert advice["overhead_us"] == pytest.approx(40, abs=0.1)
    assert advice["link_rate_bps"] == pytest.approx(5e9, rel=1e-6)
    assert abs(advice["off_percent"]) < 1e-3
    by_name = {row["what"]: row["iteration_time_ms"] for row in advice["rows"]}
    double = gt.run(result.scenario.replace(link_rate="10Gbps")).iteration_time
    assert by_name["as recorded, at twice the bandwidth"] == pytest.approx(1e3 * double, rel=1e-6)
    assert by_name["in parts of 4MiB, by priority, without barrier"] < by_name["as recorded"]
    # The order is not recommended to someone whose device cannot carry it out.
    assert found.summary["headline"].endswith("; gradtide.torch has this schedule on CPUs with gloo.")


def test_the_marked_row_of_a_report_is_the_recommended_schedule(simulated, tmp_path):
    _, folder = simulated
    found = gt.from_kineto(folder).waterfall()
    advice = found.summary["advice"]
    # Twice the bandwidth saves more, and is no schedule.
    assert max(advice["rows"], key=lambda row: row["saves_percent"])["what"] == "as recorded, at twice the bandwidth"
    page = html.unescape((found.save(tmp_path / "out") / "report.html").read_text())
    table = page.partition("What would help")[2].partition("</table>")[0]
    marked = [row for row in table.split("<tr>") if re.search(r'class="[^"]*\bbest\b', row)]
    assert len(marked) == 1
    assert f">{advice['recommended']}<" in marked[0]
    assert advice["recommended"] in found.summary["headline"]


def test_a_recorded_job_on_a_real_network_is_predicted_and_its_network_found():
    # Two ranks of DDP on ports of 400 Mbit/s, scenarios/traces; docs/traces.md says how it was recorded.
    trace = gt.from_kineto(Path(__file__).parent.parent / "scenarios" / "traces")
    assert trace.steps == [3, 4, 5, 6, 7]
    assert trace.to_model().parameter_bytes == 6 * 4 * 1024 * 1024
    step = trace.waterfall()
    assert [row["bytes"] for row in step.rows] == [4 * 1024 * 1024] * 6
    advice = step.summary["advice"]
    assert advice["why_not"] is None
    # Of a frame of 1514 B, 1448 B are gradients: no more of the port's rate can be seen, and one busy with two
    # transfers at a time shows nearly all of it.
    assert 0.9 * 400e6 < advice["link_rate_bps"] <= 400e6 * 1448 / 1514
    assert abs(advice["off_percent"]) < 10


def test_what_cannot_be_predicted_is_not():
    # Beside DDP's step the recorded one has transfers of its own, which no model of training has.
    found = gt.from_kineto(RECORDED).waterfall()
    assert found.summary["advice"]["rows"] == []
    assert "other transfers than gradients" in found.summary["advice"]["why_not"]
    assert "it would take" not in found.summary["headline"]


def test_a_late_rank_is_named_with_what_it_costs(tmp_path):
    # One bucket that is ready when nothing is left to compute: rank 0 waits for rank 1, then bytes move.
    result = gt.run(scenario("50Gbps", first_fusion=None, fusion="1GB"))
    folder = kineto_of_run(result, tmp_path / "late", late_us=40_000.0)
    trace = gt.from_kineto(folder)
    [row] = trace.waterfall().rows
    assert row["late_rank"] == 1
    # The difference of two durations of whole nanoseconds.
    assert row["waited_us"] == pytest.approx(40_000, abs=0.002)
    # 2 steps over two cables of 10 us, and half of the bytes each.
    taken_s = 40e-6 + 8 * row["bytes"] / 50e9
    assert row["bus_rate_bps"] == pytest.approx(8 * row["bytes"] / taken_s, rel=1e-6)
    alone = gt.from_kineto(folder / "rank0.pt.trace.json").waterfall()
    assert alone.rows[0]["late_rank"] is None
    assert alone.rows[0]["bus_rate_bps"] < 25e9


def recorded_step(
    tmp_path, transfers, compute=((0, 10, "aten::mm"), (10, 50, "autograd::engine::evaluate_function: A"))
):
    """Write a trace of one rank from (start, end, bytes, ready) in milliseconds, and return its rows."""
    events = []

    def event(category, name, thread, start, end, **args):
        times = {"ts": 1e3 * start, "dur": 1e3 * (end - start)}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, **times, "args": args})

    for start, end, name in compute:
        event("cpu_op", name, 1, start, end)
    for start, end, size, ready in transfers:
        event("cpu_op", "c10d::allreduce_", 3, ready, ready)
        shapes = {"Input Dims": [[size]], "Input type": ["float"]} if size else {}
        event("user_annotation", "gloo:all_reduce", 2, start, end, **shapes)
    events.sort(key=lambda one: one["ts"])
    job = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    (tmp_path / "rank0.json").write_text(json.dumps({"distributedInfo": job, "traceEvents": events}))
    return gt.from_kineto(tmp_path / "rank0.json").waterfall().rows


def test_every_bound_is_called_by_its_name(tmp_path):
    # (start, end, elements, ready); the backward pass computes from 10 to 50 ms.
    rows = recorded_step(tmp_path, [(20, 40, 10**6, 20), (45, 65, 10**6, 45), (65, 85, 10**6, 40), (85, 90, 100, 84)])
    assert [row["bound"] for row in rows] == ["hidden", "bandwidth", "queued", "small message"]
    assert [row["exposed_us"] for row in rows] == [0, 15_000, 20_000, 5_000]
    [row] = recorded_step(tmp_path, [(50, 70, 10**6, 50)])
    assert row["bound"] == "last"
    assert row["bus_rate_bps"] == pytest.approx(8 * 4 * 10**6 / 0.02)


def test_bytes_that_are_unknown_or_explain_nothing_bound_no_transfer(tmp_path):
    # 4 bytes do not take 20 ms: no network is so slow, and no message costs so much beside its bytes.
    assert [row["bound"] for row in recorded_step(tmp_path, [(50, 70, 1, 50)])] == ["unknown"]
    rows = recorded_step(tmp_path, [(10, 40, 10**6, 10), (45, 65, 0, 45), (65, 85, 1, 65)])
    assert [(row["bytes"], row["bound"]) for row in rows[1:]] == [(None, "unknown"), (4, "unknown")]
    folder = read(tmp_path / "rank0.json").waterfall().save(tmp_path / "step")
    assert "all-reduce of –" in report.write_report(folder).read_text()


def test_ranks_that_send_nothing_are_not_said_never_to_wait(tmp_path):
    assert recorded_step(tmp_path, []) == []
    trace = read(tmp_path / "rank0.json")
    step = trace.waterfall()
    for summary in (trace.summary(), step.summary):
        assert summary["effective_ranks"] is None
        assert "no transfer was recognised" in summary["headline"].lower()
        assert "never wait" not in summary["headline"]
    assert "no transfer was recognised" in report.write_report(step.save(tmp_path / "step")).read_text()


def test_a_transfer_of_unknown_size_beside_gradients_is_not_taken_for_a_small_one(tmp_path):
    recorded_step(tmp_path, [(20, 40, 10**6, 20), (50, 60, 0, 50)])
    path = tmp_path / "rank0.json"
    events = json.loads(path.read_text())
    call, kernel = (one for one in events["traceEvents"] if one["ts"] == 50_000)
    call["name"], kernel["name"] = "c10d::allgather_", "gloo:all_gather"
    path.write_text(json.dumps(events))
    with pytest.raises(gt.TraceError, match="unknown size"):
        read(path).to_model()


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bus_bytes_are_what_the_plans_of_collectives_send(ranks):
    # What a ring's rank sends of an all-reduce, by the messages that it is made of.
    base = scenario(workers=ranks, engine="fluid")
    size = 840 * ranks
    sent = gt.messages(base, size=size).to_dicts()
    assert bus_bytes("all_reduce", size, ranks) == pytest.approx(
        sum(row["bytes"] for row in sent if row["from_rank"] == 0)
    )
    assert bus_bytes("all_gather", size // ranks, ranks) == pytest.approx(size - size // ranks)
    assert bus_bytes("barrier", 0, ranks) == 0


def test_a_step_is_chosen_by_its_number(simulated):
    trace = gt.from_kineto(simulated[1])
    assert trace.waterfall(1).summary["step"] == 1
    with pytest.raises(gt.TraceError, match="there is no step 99 that all ranks have; there are 0, 1, 2, 3"):
        trace.waterfall(99)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_parts_of_any_step_sum_and_the_exposed_time_is_owned(tmp_path_factory, data):
    times = st.floats(0, 100, allow_nan=False)
    spans = data.draw(st.lists(st.tuples(times, times, st.integers(1, 10**6), times), min_size=1, max_size=8))
    transfers = [(min(a, b), max(a, b) + 0.01, size, min(a, b, ready)) for a, b, size, ready in spans]
    folder = tmp_path_factory.mktemp("step")
    rows = recorded_step(folder, transfers)
    summary = gt.from_kineto(folder).waterfall().summary
    parts = summary["waterfall_ms"]
    assert sum(parts.values()) == pytest.approx(summary["step_ms"])
    assert sum(row["exposed_us"] for row in rows) / 1e3 == pytest.approx(parts["exposed"] + parts["late"])
    assert all(part >= -1e-9 for part in parts.values())


# The page and the command


def test_the_page_stays_small_whatever_the_trace_holds(tmp_path):
    compute = [(i / 100, i / 100 + 0.006, "autograd::engine::evaluate_function: A") for i in range(20_000)]
    transfers = [(i / 10, i / 10 + 0.08, 1000, i / 10) for i in range(2_000)]
    recorded_step(tmp_path, transfers, compute)
    page = read(tmp_path / "rank0.json").waterfall().report(tmp_path / "page.html")
    assert page.stat().st_size < 400_000
    assert "Only the 30 most exposed of 2000 transfers have a row." in page.read_text()


def test_the_command_writes_a_folder_that_reports_again_and_a_scenario_that_runs(gradtide, simulated, tmp_path):
    result, folder = simulated
    out = tmp_path / "step"
    code, shown, err = gradtide("report", folder, "-o", out)
    assert code == 0, err
    assert f"2 ranks do the work of {2 * result.job['utilisation']:.2f}" in shown
    names = {path.name for path in out.iterdir()}
    assert names == {"report.html", "summary.json", "waterfall.csv", "picture.json", "scenario.toml", "versions.json"}
    page = (out / "report.html").read_bytes()
    assert gradtide("report", out)[0] == 0
    assert (out / "report.html").read_bytes() == page
    again = gt.run(out / "scenario.toml")
    assert again.iteration_time == pytest.approx(result.iteration_time, rel=1e-6)
    document = json.loads(gradtide("report", *sorted(folder.iterdir()), "--json")[1])
    assert document["schema"] == "gradtide.waterfall/1"
    assert len(document["transfers"]) == result.job["buckets"]
    assert gradtide("report", out, "--step", 1)[0] == 2


def test_what_is_neither_a_run_nor_a_trace_is_refused_and_leaves_nothing(gradtide, tmp_path):
    (tmp_path / "cut.json").write_bytes(gzip.decompress((RECORDED / "rank0.pt.trace.json.gz").read_bytes())[:9000])
    (tmp_path / "empty").mkdir()
    for bad in ("nothing", "cut.json", "empty"):
        code, shown, err = gradtide("report", tmp_path / bad, "-o", tmp_path / "out")
        assert (code, shown) == (2, "")
        assert "Traceback" not in err
        assert bad in err
    assert not (tmp_path / "out").exists()


def has_open(pid, path):
    opened = Path(f"/proc/{pid}/fd")
    for number in os.listdir(opened):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(opened / number) == str(path):
                return True
    return False


def test_ctrl_c_while_a_trace_is_read_ends_at_once_and_leaves_nothing(tmp_path):
    # A pattern of events that goes on for some seconds of reading.
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":3,"args":{"External id":1}},\n'
    path = tmp_path / "rank0.json"
    block = "".join(event % number for number in range(20_000))
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for _ in range(60):
            file.write(block)
    command = [sys.executable, "-m", "gradtide", "report", str(path), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not has_open(process.pid, path):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["summary.json", "picture.json", "waterfall.csv"])
def test_a_garbled_folder_is_refused_by_name(simulated, tmp_path, name):
    gt.from_kineto(simulated[1]).waterfall().save(tmp_path / "step")
    path = tmp_path / "step" / name
    text = path.read_text()
    for place, cut in itertools.product((0.2, 0.5, 0.9), ("", "x", "[]", "null")):
        path.write_text(text[: int(place * len(text))] + cut)
        # What a cut leaves may be whole by chance; anything else is refused by name.
        with contextlib.suppress(report.RunFolderError):
            report.write_report(tmp_path / "step")
    path.write_text("{")
    with pytest.raises(report.RunFolderError, match=name):
        report.write_report(tmp_path / "step")
    if name == "picture.json":
        path.write_text('{"ranks": [{"rank": 0, "span_ns": 5, "computing": [[1]], "waiting": []}]}')
        with pytest.raises(report.RunFolderError, match="lists of two whole numbers"):
            report.write_report(tmp_path / "step")


def test_the_rank_of_a_step_is_finite(simulated, tmp_path):
    gt.from_kineto(simulated[1]).waterfall().save(tmp_path / "step")
    path = tmp_path / "step" / "summary.json"
    text = path.read_text()
    path.write_text(re.sub(r'"world_size": \d+', '"world_size": 1e999', text))
    with pytest.raises(report.RunFolderError, match="key `world_size`: not a finite number"):
        report.write_report(tmp_path / "step")
