"""Parameter servers op by op in scenarios: what is resolved, what comes out, and what the overlap says."""

import json

import numpy as np
import pytest

import gradtide as gt
from gradtide import _core
from gradtide.scenario.core.job import ARBITRARY_PPM
from gradtide.studies.compare import PULL_SCHEDULES, compare

BRANCHES = 12


def wide(branches=BRANCHES, seed=0):
    """Return a graph of branches that each receive three parameters, a sum of them, and a backward pass."""
    draw = np.random.default_rng(seed)
    ops = []

    def add(kind, inputs, time=0, **more):
        ops.append({"id": len(ops), "name": f"{kind}{len(ops)}", "kind": kind, "inputs": inputs, "time": time, **more})
        return len(ops) - 1

    ends, recvs = [], []
    for _ in range(branches):
        last = []
        for _ in range(3):
            recv = add("recv", [], bytes=int(draw.integers(10_000, 500_000)))
            last = [add("comp", [*last, recv], int(draw.integers(20, 400)))]
            recvs.append(recv)
        ends += last
    forward = add("comp", ends, 50)
    before = forward
    for recv in reversed(recvs):
        before = add("comp", [before], int(draw.integers(20, 400)), updates=[recv])
    return {"time_unit": "us", "target": before, "inference_target": forward, "ops": ops}


def scenario(tmp_path, model=None, task="train", **changes):
    if model is None:
        model = wide()
    (tmp_path / "model.json").write_text(json.dumps(model))
    data = {
        "job": {
            "train": {
                "model": "model.json",
                "workers": 4,
                "iterations": 3,
                "collective": {"ps": {"servers": 2, "pull": "start"}},
                "schedule": {"order": "tac"},
                "task": task,
            }
        },
        "run": {"engine": "fluid"},
    }
    return gt.Scenario.from_dict(data, tmp_path).set(changes)


def test_defaults_are_written_out_and_read_back(tmp_path):
    layers = gt.Scenario.from_dict(
        {
            "job": {"a": {"model": "resnet50", "workers": 8, "collective": {"ps": {"pull": "start"}}}},
            "run": {"engine": "fluid"},
        }
    )
    (job,) = layers.jobs
    assert (job.workers, job.servers, layers.hosts, job.schedule.order, job.task) == (8, 2, 10, "random", "train")
    written = layers.to_dict()["job"]["a"]
    assert written["collective"]["ps"] == {
        "servers": 2,
        "placement": "separate",
        "pull": "start",
        "shards": "bytes",
    }
    assert written["schedule"] == {"order": "random", "disorder": 0.0, "overhead": "0s"}
    for one in (layers, scenario(tmp_path)):
        again = gt.Scenario.from_toml(one.to_toml())
        assert again == one
        assert again.spec() == one.spec()


def test_servers_of_their_own_or_among_the_workers(tmp_path):
    base = scenario(tmp_path)
    assert (base.jobs[0].hosts, base.jobs[0].workers) == ((0, 1, 2, 3, 4, 5), 4)
    packed = base.set({"job.train.collective.ps.placement": "packed"})
    assert (packed.jobs[0].hosts, packed.jobs[0].workers) == ((0, 1, 2, 3), 4)
    workers = {name: set(gt.run(one).workers["host"]) for name, one in (("separate", base), ("packed", packed))}
    assert workers == {"separate": {0, 1, 2, 3}, "packed": {2, 3}}
    named = base.replace(hosts=[f"h{host}" for host in (7, 6, 5, 4, 3, 2)])
    assert set(gt.run(named).workers["host"]) == {7, 6, 5, 4}


def test_servers_beside_the_workers_of_a_collective():
    data = {
        "job": {"a": {"model": "resnet50", "workers": 4, "collective": {"ps": {"servers": 4}}}},
        "run": {"engine": "fluid"},
    }
    data["job"]["a"]["collective"]["ps"]["placement"] = "separate"
    beside = gt.Scenario.from_dict(data)
    assert (beside.hosts, beside.jobs[0].workers) == (8, 4)
    result = gt.run(beside)
    assert result.job["workers"] == 4
    # As many servers as workers: each pushes and pulls everything once, and no link carries more.
    assert result.job["comm_ms"] == pytest.approx(2 * 8e3 * result.job["parameter_bytes"] / 10e9, rel=0.01)


def test_results_have_a_row_for_every_worker_and_transfer(tmp_path):
    result = gt.run(scenario(tmp_path))
    job, count = result.job, 3 * BRANCHES
    assert len(result.transfers) == 2 * count * 4 * 3
    assert len(result.workers) == 4 * 3
    assert set(result.transfers["direction"]) == {"pull", "push"}
    assert set(result.transfers["server"].tolist()) == {0, 1}
    times = result.iterations["time_us"]
    parts = result.iterations["compute_us"] + result.iterations["exposed_us"] + result.iterations["barrier_us"]
    assert times == pytest.approx(parts, abs=1e-5)
    assert job["lower_bound_ms"] <= job["iteration_time_ms"]["mean"]
    assert job["iteration_time_ms"]["p50"] <= job["iteration_time_ms"]["p95"] <= job["iteration_time_ms"]["max"]
    assert job["rho"] == pytest.approx(job["comm_ms"] / job["compute_ms"])
    assert job["buckets"] == count


def test_a_lone_worker_pulls_in_the_order_that_the_study_gives(tmp_path):
    # The study counts a transfer's time in ticks; of one worker and one server it is bytes over the rate. Inference has
    # the ops of the forward pass, and no more.
    model = wide()
    forward = model["inference_target"]
    known = {"time_unit": "ns", "target": forward, "ops": [dict(op) for op in model["ops"] if op["id"] <= forward]}
    for op in known["ops"]:
        op["time"] = op["bytes"] * 8 // 10 if op["kind"] == "recv" else op["time"] * 1000
        if op["kind"] == "recv":
            op["bytes"] -= op["bytes"] % 5  # whole nanoseconds at 10 Gbit/s
            op["time"] = op["bytes"] * 8 // 10
    alone = {"job.train.workers": 1, "job.train.collective.ps.servers": 1, "cluster.link.delay": "0s"}
    one = scenario(tmp_path, known, "inference", **alone)
    for order in ("tic", "tac", "tac_folded", "optimal"):
        study = gt.order(known, order)
        result = gt.run(one.replace(order=order))
        mine = result.transfers
        first = mine["iteration"] == 0
        pulled = mine["bucket"][first][np.argsort(mine["rank"][first])]
        recvs = [op["id"] for op in known["ops"] if op["kind"] == "recv"]
        assert [recvs[index] for index in pulled] == study.order
        assert result.job["iteration_time_ms"]["mean"] == pytest.approx(study.makespan / 1e6, rel=1e-12)
        assert result.job["lower_bound_ms"] == pytest.approx(study.lower_bound / 1e6, rel=1e-12)


def test_an_arbitrary_order_is_the_model_order_with_as_many_swaps_as_in_tensorflow(tmp_path):
    # TicTac, section 2.2: of 1000 orders, 493 of VGG-16's 32 transfers were different; the default is calibrated on it.
    base = gt.preset("paper/tictac2019").set(
        {
            "job.train.model": "tictac_vgg16",
            "job.train.workers": 1,
            "job.train.collective.ps.servers": 1,
            "job.train.task": "inference",
            "job.train.iterations": 1000,
            "job.train.schedule": {"order": "arbitrary"},
        }
    )
    assert ARBITRARY_PPM == 32_000
    orders = gt.run(base).transfers["rank"].reshape(1000, 32)
    different = len({tuple(order) for order in orders.tolist()})
    # One order differs with probability 0.5 or less from all before it: a standard deviation of at most 16; three.
    assert abs(different - 493) < 48
    # A parameter keeps its place unless it, or one before it that draws it, swaps.
    assert (orders == np.arange(32)).mean() > 0.9


def test_arbitrary_orders_lie_between_those_that_are_kept_and_random_ones():
    rows = compare(gt.preset("paper/tictac2019"), schedules=["random", "arbitrary", "priority"]).rows
    slowest, between, fastest = [row["iteration_time_us"] for row in rows]
    assert slowest > between > fastest


def test_the_overlap_predicts_the_step_time(tmp_path):
    # TicTac, fig. 13 (a): normalised step time against the overlap coefficient over random orders, R² = 0.98 there.
    one = {"job.train.workers": 1, "job.train.collective.ps.servers": 1, "job.train.iterations": 1000}
    spec = scenario(tmp_path, **one, **{"job.train.schedule.order": "random"}).spec()
    output = _core.run(json.dumps(spec))
    step = np.asarray(output.iterations.column("time_us"))
    alpha = np.asarray(output.iterations.column("alpha"))
    ranks = np.asarray(output.transfers.column("rank")).reshape(1000, -1)[:, : 3 * BRANCHES]
    assert len({tuple(order) for order in ranks.tolist()}) == 1000  # none comes twice (section 2.2)
    normalised = step.min() / step
    slope, offset = np.polyfit(alpha, step / step.max(), 1)
    rest = step / step.max() - (slope * alpha + offset)
    determination = 1 - rest.var() / (step / step.max()).var()
    assert slope < 0
    assert determination >= 0.95
    assert normalised.min() < 0.95  # orders matter here
    assert alpha.max() <= 1 + 1e-9


def test_enforced_orders_leave_no_straggler_and_random_ones_do(tmp_path):
    base = scenario(tmp_path, **{"job.train.iterations": 10})
    straggling = {order: gt.run(base.replace(order=order)).job for order in ("random", "tic", "tac", "priority")}
    assert straggling["random"]["straggler_percent"] > 1
    for order in ("tic", "tac", "priority"):
        # Workers in one order do the same at the same time, but for a picosecond of rounding.
        assert straggling[order]["straggler_percent"] < 1e-4


def test_noise_is_each_workers_own(tmp_path):
    noisy = scenario(tmp_path, **{"job.train.compute.noise": 0.1, "job.train.iterations": 5})
    result = gt.run(noisy)
    compute = result.workers["compute_us"].reshape(5, 4)
    assert len(np.unique(compute)) == 20
    assert result.job["straggler_percent"] > 0
    assert result.job["lower_bound_ms"] <= result.job["iteration_time_ms"]["mean"]


def test_a_scaled_graph_computes_for_exactly_so_long(tmp_path):
    result = gt.run(scenario(tmp_path, **{"job.train.compute.scale_to": "7ms"}))
    assert result.job["compute_ms"] == 7.0


def test_an_order_file_ranks_parameters_by_name(tmp_path):
    model = wide(2)
    names = [op["name"] for op in model["ops"] if op["kind"] == "recv"]
    mine = list(reversed(names))
    base = scenario(tmp_path, model).set({"job.train.schedule": {"order": "file", "ranking": mine}})
    rows = gt.run(base).transfers.to_dicts()
    ranks = {row["layer"]: row["rank"] for row in rows if row["direction"] == "pull"}
    assert sorted(ranks, key=ranks.__getitem__) == mine


def test_orders_side_by_side(tmp_path):
    result = compare(scenario(tmp_path, **{"job.train.iterations": 2}))
    assert [row["schedule"] for row in result.rows] == list(PULL_SCHEDULES)
    times = {row["order"]: row["iteration_time_us"] for row in result.rows}
    assert min(times, key=times.__getitem__) != "random"


@pytest.mark.parametrize("task", ["train", "inference"])
def test_report_and_timeline_show_such_runs(tmp_path, task):
    result = gt.run(scenario(tmp_path, task=task))
    folder = result.save(tmp_path / "run")
    page = (folder / "report.html").read_text()
    assert "Timeline of one iteration" in page
    assert (folder / "timeline.pftrace").stat().st_size > 1000


def named(model="tictac_inception_v1", pull="start", **compute):
    job = {"model": model, "workers": 4, "iterations": 2, "compute": compute}
    return gt.Scenario.from_dict(
        {"job": {"a": job | {"collective": {"ps": {"pull": pull}}}}, "run": {"engine": "fluid"}}
    )


def test_a_name_means_its_graph_where_workers_compute_op_by_op():
    scenario = named(device="K80")
    (job,) = scenario.jobs
    dag = gt.preset_graph("tictac_inception_v1", device="K80")
    # The graph of `gradtide order`, nanoseconds in picoseconds; only the network knows what a transfer takes.
    assert [op.time for op in job.graph.ops] == [0 if op.kind == "recv" else op.time * 1000 for op in dag.ops]
    assert [op.bytes for op in job.graph.ops] == [op.bytes for op in dag.ops]
    assert (job.model, job.compute.device, job.compute.batch) == ("tictac_inception_v1", "K80", 128)
    assert job.parameter_count == 116
    assert gt.run(scenario).job["buckets"] == 116
    # With another batch, the convolutions take in proportion; the preset's name and its batch are written out.
    assert named(device="K80", batch=256).jobs[0].compute_ps == pytest.approx(2 * job.compute_ps, rel=0.01)
    written = scenario.to_dict()["job"]["a"]
    assert (written["model"], written["compute"]["batch"]) == ("tictac_inception_v1", 128)
    again = gt.Scenario.from_toml(scenario.to_toml())
    assert (again, again.spec()) == (scenario, scenario.spec())
    assert named(device="K80", scale_to="500ms").jobs[0].compute_ps == 500 * 10**9
    inference = scenario.set({"job.a.task": "inference"})
    assert gt.run(inference).job["compute_ms"] < 0.5 * gt.run(scenario).job["compute_ms"]


def test_a_name_means_layers_elsewhere():
    (layers,) = named(pull="update", device="K80").jobs
    assert layers.graph is None
    assert layers.compute.batch == 32
    (no_graph,) = named("resnet50").jobs
    assert no_graph.graph is None
    assert no_graph.is_pulled
    with pytest.raises(gt.ScenarioError, match="unknown device"):
        named(device="K8O")
    with pytest.raises(gt.ScenarioError, match='there are "tictac_inception_v1"'):
        named("tictac_inception_v")


def test_the_model_file_must_say_its_unit(tmp_path):
    (tmp_path / "m.json").write_text(json.dumps({k: v for k, v in wide(1).items() if k != "time_unit"}))
    data = {"job": {"a": {"model": "m.json", "workers": 2, "collective": {"ps": {"pull": "start"}}}}}
    with pytest.raises(gt.ScenarioError, match="time_unit"):
        gt.Scenario.from_dict(data, tmp_path)


def test_what_is_not_built_is_refused(tmp_path):
    base = scenario(tmp_path)
    for change, word in (
        ({"job.train.compute.overlap_slowdown": 1.5}, "overlap"),
        ({"job.train.priority": ["high", "low"]}, "list of bands"),
        ({"job.train.schedule.overhead": "1us", "run.engine": "packet"}, "overhead"),
    ):
        with pytest.raises(gt.ScenarioError, match=word):
            base.set(change).spec()
