"""Models of small traces: which traces give one, and what a trace leaves out is counted, said or refused."""

import json
from pathlib import Path

import pytest

import gradtide as gt
from trace_files import SHAPES, STEP, chakra_messages, delimited, event, kineto_of


def test_a_small_step_is_a_model_and_says_that_nothing_tells_steps_apart(tmp_path):
    model = gt.from_kineto(kineto_of(tmp_path)).to_model()
    assert model.parameter_bytes == 4000
    assert model.left_out[-1:] == ("steps cannot be distinguished: the whole trace counts as one step",)


@pytest.mark.parametrize(
    ("more", "what", "said"),
    [
        (event("ncclDevKernel_Generic", "kernel", 60, 9, 7), "unknown_transfer", "ncclDevKernel_Generic"),
        (
            event("record_param_comms", "cpu_op", 60, 9, 3, **{"Collective name": "coalesced"}),
            "unmatched_call",
            "record_param_comms",
        ),
        # Two calls and one event of the backend: one gradient used to vanish.
        (event("c10d::allreduce_", "cpu_op", 60, 1, 3), None, None),
    ],
)
def test_a_kineto_file_with_transfers_that_cannot_be_represented_is_no_model(tmp_path, more, what, said):
    trace = gt.from_kineto(kineto_of(tmp_path, more))
    found = {row["what"]: row["count"] for row in trace.summary()["left_out"]}
    if what is None:
        # One call and one event are one transfer.
        assert found == {}
        twice = gt.from_kineto(kineto_of(tmp_path, more, {**more, "ts": 65}))
        assert twice.summary()["left_out"] == [{"what": "unmatched_call", "count": 1, "names": ["c10d::allreduce_"]}]
        with pytest.raises(gt.TraceError, match="calls that enqueued a transfer whose execution was not recorded: 1"):
            twice.to_model()
        return
    assert found == {what: 1}
    with pytest.raises(gt.TraceError, match=said):
        trace.to_model()
    with pytest.raises(gt.ScenarioError) as refused:
        gt.Scenario.from_dict({"job": {"train": {"model": str(tmp_path / "rank0.json"), "workers": 2}}})
    assert refused.value.errors[0]["code"] == "GT038"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # FSDP: parameters are gathered and gradients scattered, beside a small all-reduce.
        ("gloo:all_gather", 2),
        ("gloo:reduce_scatter", 1),
    ],
)
def test_collectives_of_sharded_training_are_not_left_out_of_a_model(tmp_path, name, count):
    more = [event(name, "user_annotation", 60 + at, 5, 2, **SHAPES) for at in range(count)]
    kind = name.removeprefix("gloo:")
    with pytest.raises(gt.TraceError, match=f"beside gradients of 4kB the step sends {4 * count}kB .*{count} {kind}"):
        gt.from_kineto(kineto_of(tmp_path, *more)).to_model()


def test_small_transfers_and_unknown_events_are_left_out_of_a_model_and_counted(tmp_path):
    loss = event("gloo:broadcast", "user_annotation", 5, 3, 2, **{"Input Dims": [[1]], "Input type": ["float"]})
    other = event("step", "glow_op", 5, 3, 9)
    model = gt.from_kineto(kineto_of(tmp_path, loss, other)).to_model()
    assert "events of an unknown category: 1 (glow_op), left out" in model.left_out
    assert model.left_out[-1:] == ("transfers other than gradients: 1 broadcast, left out",)


def test_a_run_says_what_its_trace_leaves_out_and_so_does_its_folder(gradtide, tmp_path):
    path = kineto_of(tmp_path, event("step", "glow_op", 5, 3, 9))
    (tmp_path / "job.toml").write_text(f'[job.train]\nmodel = "{path}"\nworkers = 2\n')
    said = "events of an unknown category: 1 (glow_op), left out"
    for scenario, folder in ((tmp_path / "job.toml", "a"), (tmp_path / "a" / "scenario.resolved.toml", "b")):
        code, _, err = gradtide("run", scenario, "-o", tmp_path / folder, "-q")
        assert code == 0, err
        assert f"warning: {said}" in err
        assert said in json.loads((tmp_path / folder / "summary.json").read_text())["warnings"]
        assert said in (tmp_path / folder / "report.html").read_text()


def chakra_of(folder, *, starts=True, comm_type=True, size=True, duration=True):
    metadata, node = chakra_messages()
    nodes = []
    for number in range(3):
        compute = node(id=2 * number, name="mm", type=4, start_time_micros=100 * number * starts)
        compute.duration_micros = 50 * (duration or number > 0)
        compute.attr.add(name="num_ops", int64_val=9)
        reduce = node(id=2 * number + 1, name="sync", type=7, data_deps=[2 * number], duration_micros=20)
        reduce.start_time_micros = (100 * number + 50) * starts
        if comm_type or number:
            reduce.attr.add(name="comm_type", int64_val=0)
        if size or number:
            reduce.attr.add(name="comm_size", int64_val=1000 + number)
        nodes += [compute, reduce]
    path = folder / "trace.0.et"
    path.write_bytes(b"".join(map(delimited, [metadata(version="0.0.4"), *nodes])))
    return path


def test_a_chakra_file_that_says_all_is_a_model(tmp_path):
    trace = gt.from_chakra(chakra_of(tmp_path))
    assert trace.summary()["left_out"] == []
    assert trace.to_model().parameter_bytes == 3003


@pytest.mark.parametrize(
    ("missing", "what", "said"),
    [
        ("starts", "start", "nodes of a file in which none has a start time: 6"),
        ("comm_type", "collective_type", "collectives without a `comm_type`: 1 (sync)"),
        ("duration", "duration", "compute nodes without a duration: 1 (mm)"),
        ("size", "size", "1 of its 3 all-reduces have no size"),
    ],
)
def test_a_chakra_file_with_nodes_that_lack_what_a_model_needs_is_refused(tmp_path, missing, what, said):
    trace = gt.from_chakra(chakra_of(tmp_path, **{missing: False}))
    summary = trace.summary()
    assert [row["what"] for row in summary["left_out"]] == [what]
    assert any(str(row["count"]) in warning for row in summary["left_out"] for warning in summary["warnings"])
    with pytest.raises(gt.TraceError) as refused:
        trace.to_model()
    assert said in str(refused.value)


def test_a_file_without_start_times_has_counts_and_no_timeline(tmp_path):
    trace = gt.from_chakra(chakra_of(tmp_path, starts=False))
    summary = trace.summary()
    assert (trace.has_times, summary["effective_ranks"]) == (False, None)
    (row,) = summary["ranks"]
    assert (row["ops"], row["transfers"], row["transfer_bytes"]) == (6, 3, 3003)
    assert {row[f"{part}_us"] for part in ("span", "compute", "overlapped", "exposed", "idle")} == {None}
    assert "never wait" not in summary["headline"]
    with pytest.raises(gt.TraceError, match="no step has a timeline"):
        trace.waterfall()


def test_no_rate_is_fitted_where_a_rank_of_the_group_was_not_recorded(tmp_path):
    one = sorted((Path(__file__).parent.parent / "scenarios" / "traces").glob("*.json*"))[0]
    advice = gt.from_kineto(one).waterfall().summary["advice"]
    assert advice["rows"] == []
    assert "wait for other ranks" in advice["why_not"]


def test_a_trace_converted_to_chakra_has_the_gradients_of_the_recorded_one(tmp_path):
    # Chakra keeps no marks of steps; six alike buckets used to be cut into five, and four of them left out.
    recorded = gt.from_kineto(Path(__file__).parent.parent / "scenarios" / "traces")
    recorded.save(tmp_path / "out.et")
    kineto, chakra = recorded.to_model(), gt.from_chakra(tmp_path).to_model()
    sizes = [[layer.parameter_bytes for layer in model.layers if not layer.is_host] for model in (chakra, kineto)]
    assert sizes[0] == sizes[1]
    # A step ends with its last transfer there, and not with the profiler's mark.
    assert chakra.compute_time == pytest.approx(kineto.compute_time, rel=0.02)


def test_steps_that_cannot_be_told_apart_are_no_model(tmp_path):
    # Two gradients a step, alike and with nothing that names a pass: which two belong together is not recorded.
    metadata, node = chakra_messages()
    nodes = []
    for number in range(6):
        nodes.append(node(id=2 * number, name="mm", type=4, start_time_micros=100 * number, duration_micros=90))
        reduce = node(id=2 * number + 1, name="sync", type=7, data_deps=[2 * number], duration_micros=150)
        reduce.start_time_micros = 100 * number + 90
        reduce.attr.add(name="comm_type", int64_val=0)
        reduce.attr.add(name="comm_size", int64_val=1000)
        nodes.append(reduce)
    (tmp_path / "t.0.et").write_bytes(b"".join(map(delimited, [metadata(version="0.0.4"), *nodes])))
    with pytest.raises(gt.TraceError, match="nothing marks where a step begins"):
        gt.from_chakra(tmp_path).to_model()


def test_steps_that_only_some_ranks_have_are_counted(tmp_path):
    for rank, numbers in ((0, (1, 2, 3)), (1, (2, 3))):
        marks = [event(f"ProfilerStep#{number}", "user_annotation", 200 * number, 200) for number in numbers]
        job = {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
        steps = [{**one, "ts": one["ts"] + 200 * number} for number in numbers for one in STEP]
        document = {"distributedInfo": job, "traceEvents": [*marks, *steps]}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    trace = gt.from_kineto(tmp_path)
    assert trace.steps == [2, 3]
    assert "steps that only some ranks have: 1, left out" in trace.summary()["warnings"]
