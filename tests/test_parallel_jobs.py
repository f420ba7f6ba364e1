"""Language models that are divided over ranks, from the scenario to the report."""

import json
import re

import pytest

import gradtide as gt
from architectures import SMALL_LLAMA
from gradtide import words
from gradtide.scenario import Scenario
from gradtide.studies.meshes import meshes

CONFIG = {**SMALL_LLAMA, "rope_scaling": None}
MIXTURE = {**CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def scenario(parallel, *, model=CONFIG, cluster="h100-hgx", engine="fluid", **compute):
    keys = gt.presets.cluster(cluster, engine)
    job = {"model": model, "parallel": parallel, "compute": {"seq": 1024, **compute}}
    return {**keys, "job": {"train": job}, "run": {"engine": engine}}


def facts(result):
    return result.job["parallel"]


MESHES = [
    {"fsdp": 8},
    {"fsdp": 8, "prefetch": 0},
    {"fsdp": 8, "unit": 3, "prefetch": 2, "backward_prefetch": 0},
    {"fsdp": 8, "zero": 1},
    {"fsdp": 4, "dp": 2},
    {"tp": 4, "fsdp": 2},
    {"tp": 4, "fsdp": 2, "sequence": False},
    {"tp": 4, "fsdp": 2, "async_tp": True},
    {"cp": 2, "fsdp": 4},
    {"cp": 2, "fsdp": 4, "context": "all-gather"},
    {"dp": 8},
]


def test_more_nodes_compute_for_longer_unless_the_user_says_how_ranks_differ():
    """The device says by what share for each doubling of nodes; beside noise or a straggler the engine finds it."""

    def compute_ms(nodes, **compute):
        return gt.run(scenario({"fsdp": 8 * nodes}, device="H100", **compute)).job["compute_ms"]

    loss = gt.presets.accelerator("H100").scaling_loss
    stated, none = compute_ms(4, scaling_loss=0.05), compute_ms(4, scaling_loss=0.0)
    assert stated == pytest.approx(1.1 * none, rel=1e-6)
    assert compute_ms(4) == pytest.approx((1 + 2 * loss) * none, rel=1e-6)
    assert compute_ms(1) == compute_ms(1, scaling_loss=0.05)
    differs = Scenario.from_dict(scenario({"fsdp": 32}, straggler={"worker": 3, "factor": 1.5}))
    assert differs.jobs[0].compute.scaling_loss_ppm == 0


@pytest.mark.parametrize("engine", ["fluid"])
@pytest.mark.parametrize("parallel", MESHES, ids=str)
def test_compute_and_waits_make_an_iteration(parallel, engine):
    result = gt.run(scenario(parallel, engine=engine))
    waits = sum(group["exposed_ms"] for group in facts(result)["groups"].values())
    waits += facts(result)["waits_for_stages_ms"]
    time_ms = result.job["iteration_time_ms"]["mean"]
    assert result.job["compute_ms"] + waits == pytest.approx(time_ms, rel=1e-6)
    assert sum(facts(result)["critical_path_ms"].values()) == pytest.approx(time_ms, rel=1e-6)


def test_tensor_parallelism_has_no_slack_and_fsdp_has():
    groups = facts(gt.run(scenario({"tp": 2, "fsdp": 4}, micro_batch=4)))["groups"]
    assert groups["tp"]["slack_ms"] == {"min": 0.0, "p50": 0.0, "max": 0.0}
    assert groups["fsdp"]["slack_ms"]["max"] > 0


def test_waits_do_not_depend_on_what_is_recorded_for_the_timeline():
    base = Scenario.from_dict(scenario({"fsdp": 8}))
    recorded, bare = gt.run(base), gt.run(base.set({"run.timeline": 0}))
    assert facts(bare) == facts(recorded)
    assert len(bare.operations) == 0 < len(recorded.operations)


def test_only_stages_of_a_pipeline_wait_for_one_another():
    assert facts(gt.run(scenario({"fsdp": 8})))["waits_for_stages_ms"] == 0
    figures = facts(gt.run(scenario({"pp": 4})))
    assert figures["waits_for_stages_ms"] > 0
    assert len(figures["classes"]) == 4


@pytest.mark.parametrize("engine", ["fluid"])
def test_what_is_needed_first_goes_first_if_asked(engine):
    """Torch's order is that one with up to two units ahead; behind eight gathers a reduce-scatter is late."""

    def time_ms(order, ahead):
        parallel = {"fsdp": 8, "backward_prefetch": ahead}
        base = scenario(parallel, engine=engine, model={**CONFIG, "num_hidden_layers": 16})
        result = gt.run(Scenario.from_dict(base).set({"job.train.schedule.order": order}))
        return result.job["iteration_time_ms"]["mean"]

    assert time_ms("tic", 2) == time_ms("fifo", 2)
    assert time_ms("tac", 8) == time_ms("tic", 8) < time_ms("fifo", 8)


def test_experts_exchange_their_tokens():
    groups = facts(gt.run(scenario({"fsdp": 8, "ep": 8}, model=MIXTURE)))["groups"]
    assert {"ep", "fsdp"} <= set(groups)
    # Dispatch and combine, forward and backward, of each of four layers.
    assert groups["ep"]["transfers"] == 16


def test_a_resolved_scenario_is_read_as_it_was():
    one = Scenario.from_dict(scenario({"fsdp": 4, "ep": 2}, model=MIXTURE | {"_name_or_path": "org/small"}))
    assert one.jobs[0].model == "small"
    again = Scenario.from_toml(one.to_toml())
    assert again == one
    assert again.spec() == one.spec()


@pytest.mark.parametrize(
    ("parallel", "where", "words"),
    [
        ({"fsdp": 4, "tp": 3}, "parallel.tp", "cannot share 16 heads"),
        ({"pp": 8}, "parallel.pp", "4 blocks cannot fill 8 stages"),
        ({"fsdp": 4, "ep": 2}, "parallel.ep", "no experts"),
        ({"fsdp": 4, "tq": 2}, "parallel.tq", "unknown field"),
        ({"fsdp": 0}, "parallel.fsdp", "0"),
        ({"pp": 2, "pipeline": "interleaved"}, "parallel.pipeline", "`chunks` is missing"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_at_its_key(parallel, where, words):
    with pytest.raises(gt.ScenarioError) as caught:
        Scenario.from_dict(scenario(parallel))
    fault = caught.value.faults[0]
    assert fault.loc == f"job.train.{where}"
    assert words in str(caught.value)


BLOCKING = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 8, "spines": 2}
"""A quarter of what hosts may send goes between leaves. The name of a job says its place."""


def time_ms(data, job=0):
    return list(gt.run(data).summary["jobs"].values())[job]["iteration_time_ms"]["mean"]


@pytest.mark.parametrize("parallel", MESHES, ids=str)
def test_packets_on_one_node_take_as_long_as_classes(parallel):
    """All goes over the scale-up switch, which has no packets. Connections are opened before the iteration."""
    assert time_ms(scenario(parallel, engine="packet")) == pytest.approx(time_ms(scenario(parallel)), rel=1e-6)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("delay", ["0us", "1us", "50us"])
@pytest.mark.parametrize(
    "parallel",
    [*[mesh for mesh in MESHES if "async_tp" not in mesh], {"dp": 4, "pp": 2}, {"tp": 2, "dp": 2, "pp": 2}],
    ids=str,
)
def test_ranks_one_by_one_take_what_classes_take(parallel, delay, gpus):
    """On one level a ring's messages are even shares, whose ends are rounded in each way: by less than a picosecond for
    each of at most 14 rounds of at most 50 transfers. On nodes both are the same flows."""

    def figures(hosts, beside=None, **compute):
        job = {"model": CONFIG, "parallel": parallel, "hosts": [f"h{rank}" for rank in range(8)], "iterations": 1}
        job["compute"] = {"device": "A100", "seq": 1024, "scaling_loss": 0, **compute}
        cluster = {"topology": {"kind": "star", "hosts": hosts}, "link": {"rate": "100Gbps", "delay": delay}}
        if gpus > 1:
            scale_up = {"rate": "300GBps", "delay": "2us"}
            cluster["node"] = {"gpus": gpus, "nics": gpus, "launch": "11us", "scale_up": scale_up}
        run = {"engine": "fluid", **({"duration": "1s"} if beside else {})}
        keys = {"cluster": cluster, "job": {"train": job}, "run": run, **({"traffic": beside} if beside else {})}
        job = gt.run(keys).job
        groups = {
            f"{name} {key}": of[key]
            for name, of in job["parallel"]["groups"].items()
            for key in ("busy_ms", "exposed_ms")
        }
        spreads = {f"{name} {key}": ms for name in ("slack_ms", "margin_ms") for key, ms in job[name].items()}
        return {"iteration": job["iteration_time_ms"]["mean"], **groups, **spreads}

    classes = pytest.approx(figures(8), abs=3 * 14 * 50 * 1e-9, rel=0)
    stranger = {"idle": {"flows": [{"start": "0us", "src": "h8", "dst": "h9", "bytes": "1B"}]}}
    assert figures(8, straggler={"worker": 0, "factor": 1.0}) == classes
    assert figures(16, stranger) == classes


@pytest.mark.parametrize(
    "topology",
    [{"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "bisection": "1"}, {"kind": "clos2", "ports": 4}],
    ids=str,
)
@pytest.mark.parametrize("parallel", [{"tp": 4, "fsdp": 2}, {"fsdp": 4, "dp": 2}], ids=str)
def test_over_several_switches_a_straggler_of_factor_one_changes_nothing(parallel, topology):
    """Routes differ in length and meet on links there, so classes would not be their ranks."""

    def iteration_ms(**compute):
        job = {"model": CONFIG, "parallel": parallel, "iterations": 1}
        job["compute"] = {"device": "A100", "seq": 128, **compute}
        cluster = {"topology": topology, "link": {"rate": "100Gbps", "delay": "50us"}}
        return time_ms({"cluster": cluster, "job": {"train": job}, "run": {"engine": "fluid"}})

    assert iteration_ms() == iteration_ms(straggler={"worker": 0, "factor": 1.0})


def test_a_straggler_holds_up_all_ranks_and_no_longer_than_it_computes():
    plain, slow = scenario({"fsdp": 8}), scenario({"fsdp": 8}, straggler={"worker": 3, "factor": 2})
    compute_ms = gt.run(plain).job["compute_ms"]
    assert time_ms(plain) + 0.5 * compute_ms < time_ms(slow) < time_ms(plain) + 1.001 * compute_ms
    result = gt.run(slow)
    assert len(facts(result)["classes"]) == 8
    assert result.job["slowest_worker"] == 3


def test_shared_links_other_jobs_and_flows_slow_a_job_down():
    wide = {"kind": "star", "hosts": 16}
    data = scenario({"fsdp": 16})
    times = {}
    for name, topology in (("wide", wide), ("thin", BLOCKING)):
        data["cluster"]["topology"] = topology
        times[name] = time_ms(data)
    assert times["thin"] > 1.5 * times["wide"]
    flows = [{"src": f"h{host}", "dst": f"h{8 + host}", "bytes": "10GB", "start": "0s"} for host in range(8)]
    run = {"engine": "fluid", "duration": "1s"}
    assert time_ms({**data, "traffic": {"other": {"flows": flows}}, "run": run}) > times["thin"]
    data["cluster"]["topology"] = {**BLOCKING, "leaves": 4}
    alone = time_ms(data)
    data["job"]["second"] = data["job"]["train"]
    assert time_ms(data) == pytest.approx(alone, rel=1e-6)
    assert time_ms(data, 1) == pytest.approx(alone, rel=0.5)


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_in_a_low_band_a_job_leaves_the_links_to_others(engine):
    data = scenario({"fsdp": 16}, engine=engine)
    data["cluster"]["topology"] = {"kind": "star", "hosts": 16}
    flow = {"src": "h0", "dst": "h8", "bytes": "50MB", "start": "1ms"}
    data |= {"traffic": {"other": {"flows": [flow]}}, "run": {"engine": engine, "duration": "20ms"}}

    def fct_us(band):
        data["job"]["train"]["priority"] = band
        return gt.run(data).flows["fct_us"][0]

    # 50 MB at 400 Gbit/s, of which the fluid engine keeps 4 % for headers; halved by an equal.
    assert fct_us("low") == pytest.approx(1000, rel=0.1)
    assert fct_us("high") > 1300


def test_several_bands_of_a_divided_job_are_refused():
    for priority, message in (
        (["high", "low"], "a list of bands"),
        ({"adaptive": {"policy": "deadline"}}, "not built yet"),
    ):
        data = scenario({"fsdp": 8})
        data["job"]["train"]["priority"] = priority
        with pytest.raises(gt.ScenarioError, match=message):
            Scenario.from_dict(data).check_built()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 12}, "the mesh has 8 ranks, and there are 12 workers"),
        ({"schedule": {"order": "priority"}}, 'order = "priority" is for buckets of gradients'),
        ({"compute": {"seq": 1024, "batch": 4}}, "`batch` has no effect"),
        ({"compute": {"seq": 1024, "global_batch": 12}}, "cannot share 12 sequences"),
        ({"compute": {"seq": 1024, "device": "K8"}}, "no accelerator"),
        ({"model": "resnet50"}, "resnet50 cannot be divided"),
        ({"model": MIXTURE}, "`ep` is missing"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(changes, words):
    data = scenario({"fsdp": 8})
    data["job"]["train"] |= changes
    with pytest.raises(gt.ScenarioError) as caught:
        Scenario.from_dict(data)
    assert words in str(caught.value)


def test_meshes_are_compared_and_reported(tmp_path):
    base = scenario({"fsdp": 8})
    result = meshes(base, [{"fsdp": 8}, {"fsdp": 2, "tp": 4}, {"fsdp": 2, "pp": 4}])
    assert [row["mesh"] for row in result.rows] == ["fsdp=8", "fsdp=2,tp=4", "fsdp=2,pp=4"]
    assert min(row["behind_percent"] for row in result.rows) == 0
    result.save(tmp_path / "meshes")
    page = (tmp_path / "meshes" / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="timeline') == 3
    kept = json.loads((tmp_path / "meshes" / "summary.json").read_text(encoding="utf-8"))
    assert kept["headline"] == result.summary["headline"]
    with pytest.raises(ValueError, match="given twice"):
        meshes(base, [{"fsdp": 8}, {"fsdp": 8}])


def test_keys_and_values_are_as_many_bytes_either_way():
    """Of n ranks each sends (n-1) parts forward and twice as many backward, around a ring and gathered."""
    sent = {
        context: facts(gt.run(scenario({"cp": 4, "fsdp": 2, "context": context})))["groups"]["cp"]["bytes_per_rank"]
        for context in ("ring", "all-gather")
    }
    heads, layers = CONFIG["num_key_value_heads"], CONFIG["num_hidden_layers"]
    part = 2 * 1024 // 4 * 2 * heads * CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    assert sent["ring"] == sent["all-gather"] == 3 * part * 3 * layers


def test_gathering_keys_and_values_is_waited_for_and_a_ring_hides():
    waits = [
        facts(gt.run(scenario({"cp": 4, "fsdp": 2, "context": context})))["groups"]["cp"]["exposed_ms"]
        for context in ("ring", "all-gather")
    ]
    assert waits[0] < waits[1]


def test_asynchronous_tensor_parallelism_hides_what_products_are_long_enough_for():
    one, other = (
        gt.run(scenario({"tp": 4, "fsdp": 2, "async_tp": is_async}, micro_batch=16)) for is_async in (False, True)
    )
    assert other.iteration_time < one.iteration_time
    assert 0 < facts(other)["groups"]["tp"]["exposed_ms"] < facts(one)["groups"]["tp"]["exposed_ms"]


def test_skewed_experts_send_and_compute_more():
    groups = [
        facts(gt.run(scenario({"fsdp": 8, "ep": 8, "expert_skew": skew}, model=MIXTURE)))["groups"]["ep"]
        for skew in (1.0, 2.0)
    ]
    assert groups[1]["bytes_per_rank"] == 2 * groups[0]["bytes_per_rank"]
    with pytest.raises(gt.ScenarioError, match="write at most 4"):
        Scenario.from_dict(scenario({"fsdp": 8, "ep": 8, "expert_skew": 5.0}, model=MIXTURE))


def test_a_model_that_no_worker_has_memory_for_can_be_read_and_is_not_run():
    """8,030,261,248 parameters of at least 16 bytes on a GPU of 80 GiB."""
    base = gt.presets.cluster("h100-hgx")
    job = {"model": "llama3-8b", "workers": 8, "compute": {"seq": 1024}}
    large = Scenario.from_dict({**base, "job": {"train": job}})
    (warning,) = large.warnings
    assert "--parallel fsdp=8" in warning
    with pytest.raises(gt.ScenarioError) as caught:
        gt.run(large)
    assert [error["code"] for error in caught.value.errors] == ["GT057"]
    assert not Scenario.from_dict({**base, "job": {"train": {**job, "model": CONFIG}}}).warnings
    assert gt.run(large.replace(parallel={"fsdp": 8})).iteration_time > 0
    divided = {"model": "llama3-8b", "parallel": {"fsdp": 8}, "compute": {"seq": 1024}}
    assert not Scenario.from_dict({**base, "job": {"train": divided}}).warnings


def test_an_accelerator_of_which_no_step_was_compared_needs_an_efficiency(gradtide):
    question = ("run", "-q", "llama3-8b", "--cluster", "b200-hgx/1", "--parallel", "fsdp=8", "--seq", "1024")
    code, _, err = gradtide(*question)
    assert code == 2
    assert "--efficiency 0.6" in err
    slow, fast = (gradtide(*question, "--efficiency", efficiency)[1] for efficiency in (0.3, 0.6))
    times = [float(re.search(r"iteration time +([\d.]+) ms", shown)[1]) for shown in (slow, fast)]
    assert times[1] < times[0]


def test_an_efficiency_of_ones_own_is_told():
    fitted, stated = scenario({"fsdp": 8}), scenario({"fsdp": 8}, device="B200", efficiency=0.6)
    assert facts(gt.run(fitted))["stated_efficiency"] is None
    result = gt.run(stated)
    assert facts(result)["stated_efficiency"] == 0.6
    assert ["  efficiency", "60.0 % of the peak, as stated"] in words.parallel_rows("train", result.job)[1]
