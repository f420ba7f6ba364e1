"""Clusters: by name, in the place of a scenario's own, and under every study; words with either dash."""

import json
import re

import pytest

import gradtide as gt
from cluster_scenarios import LAYERS, OF_NODES, busy, scenario, small, written
from gradtide import presets
from gradtide.layers import Layer
from gradtide.scenario import json_schema
from gradtide.studies.network import altered, card_count
from gradtide.studies.tenants.bands import tenants
from gradtide.studies.tenants.boundary import boundary
from gradtide.studies.tenants.policies import policies
from gradtide.studies.what_ifs import has_what_ifs

CLUSTERS = presets.cluster_names()
WEB = {"web": {"sizes": "web-search", "load": 0.05}}

TWO_JOBS = """
[job.mine]
model = { layers = [{ name = "a", forward = "1us", backward = "1us", parameters = "800kB" }] }
workers = 8
iterations = 3
priority = "low"
collective = { kind = "ps", ps = { servers = 2 } }
[job.second]
model = { layers = [{ name = "b", forward = "1us", backward = "1us", parameters = "400kB" }] }
hosts = ["h8", "h9"]
iterations = 1
[traffic.web]
sizes = "web-search"
load = 0.05
[run]
engine = "packet"
seed = 7
duration = "20ms"
"""
INCAST = """
[cluster]
topology = { kind = "star", hosts = 5 }
link = { rate = "1Gbps", delay = "10us" }
queue = { kind = "fifo", capacity = "64pkt" }
transport = { kind = "newreno", timers = "linux" }
[traffic.a]
incast = { dst = "h0", senders = 4, bytes = "25kB", every = "10s" }
[run]
engine = "packet"
duration = "1s"
"""


def faults(error):
    return [(fault.code, fault.file, fault.loc) for fault in error.value.faults]


# ── a scenario on another cluster ─────────────────────────────────────────────────────────────────────────


def test_only_the_cluster_of_a_scenario_is_replaced(tmp_path):
    base = gt.Scenario.from_toml(TWO_JOBS)
    moved = base.on_cluster("ethernet-25g/10").to_dict()
    own = base.to_dict()
    assert moved["cluster"]["link"]["rate"] == "25Gbps"
    assert moved["cluster"]["topology"] == {"kind": "star", "hosts": 10}
    # A packet takes another time on other links.
    assert moved["run"].pop("start_jitter") != own["run"].pop("start_jitter")
    assert {key: moved[key] for key in ("job", "traffic", "run")} == {
        key: own[key] for key in ("job", "traffic", "run")
    }
    # The same by the command, whose answer is about the whole scenario.
    path = written(tmp_path, TWO_JOBS)
    run = gt.run(path, cluster="ethernet-25g/10")
    assert run.scenario == base.on_cluster("ethernet-25g/10")
    assert set(run.summary["jobs"]) == {"mine", "second"}
    assert (run.summary["seed"], run.summary["engine"], list(run.summary["traffic"])) == (7, "packet", ["web"])


@pytest.mark.parametrize("command", ["run", "compare", "tenants"])
def test_every_command_keeps_what_is_no_cluster(command, tmp_path, gradtide):
    path = written(tmp_path, TWO_JOBS)
    more = ["--schedule", "fifo"] if command == "compare" else []
    code, out, err = gradtide(*command.split(), path, "--cluster", "ethernet-25g/10", "--estimate", "--json", *more)
    assert code == 0, err
    assert json.loads(out)["flows"] > 0
    assert json.loads(out)["packets"] > 0


def test_a_scenario_that_does_not_fit_is_refused_with_its_line(tmp_path, gradtide):
    path = written(tmp_path, TWO_JOBS)
    code, _, err = gradtide("run", path, "--cluster", "ethernet-25g/8")
    assert code == 2
    line = 1 + TWO_JOBS[: TWO_JOBS.index("hosts")].count("\n")
    assert "GT040" in err
    assert f"mine.toml:{line} " in err
    assert 'hosts = ["h8", "h9"]' in err
    with pytest.raises(gt.ScenarioError) as error:
        gt.Scenario.from_toml(INCAST).on_cluster("ethernet-100g/4")
    assert faults(error) == [("GT042", "<toml>", "traffic.a.incast.senders")]


def test_too_few_hosts_name_the_cluster_that_has_enough(tmp_path, gradtide):
    path = written(tmp_path, TWO_JOBS.replace('hosts = ["h8", "h9"]', "workers = 2"))
    _, _, err = gradtide("run", path, "--cluster", "ethernet-25g/4")
    assert "--> --cluster " in err
    assert "ethernet-25g/8" in err
    with pytest.raises(gt.ScenarioError, match="h100-hgx/3"):
        scenario("h100-hgx/2", workers=20)


def test_a_fault_of_the_new_cluster_does_not_point_at_the_old_one(tmp_path, gradtide):
    path = written(tmp_path, INCAST.replace("incast = {", 'sizes = "web-search"\nload = 0.1\n#'))
    _, _, err = gradtide("run", path, "--cluster", "ethernet-25g/1")
    assert "--> --cluster " in err
    assert "mine.toml" not in err


def test_a_scenario_without_a_job_runs_on_another_cluster(tmp_path, gradtide):
    path = written(tmp_path, INCAST)
    code, out, err = gradtide("run", path, "--cluster", "ethernet-100g/5", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["traffic"]["a"]["all"]["completed"] == 4
    # What the old cluster said of queues and transport is not kept, and that is said.
    (warning,) = summary["warnings"]
    assert "queue" in warning
    assert "transport" in warning
    assert warning in err


def test_a_cluster_without_a_number_has_the_hosts_of_the_scenario():
    moved = gt.Scenario.from_toml(INCAST).on_cluster("ethernet-100g")
    assert (moved.hosts, moved.link_rate_bps) == (5, 10**11)
    on_nodes = gt.Scenario.from_toml(INCAST).on_cluster("h100-hgx")
    assert (on_nodes.fabric.node_count, on_nodes.hosts) == (1, 8)


@pytest.mark.parametrize(("stated", "engine"), [(None, "fluid"), ("packet", "packet"), ("fluid", "fluid")])
def test_the_engine_that_a_scenario_states_is_kept(stated, engine):
    base = scenario(**({"run": {"engine": stated}} if stated else {}))
    moved = base.on_cluster("infiniband-ndr/4")
    assert moved.engine == engine
    # RDMA has other windows on packets.
    assert moved.transport == ("ideal" if engine == "packet" else "newreno")


def test_another_scenario_as_cluster_gives_its_cluster_alone(tmp_path):
    other = written(tmp_path, TWO_JOBS + '[cluster]\nlink = { rate = "7Gbps" }\n', "other.toml")
    moved = gt.run(scenario(workers=2), cluster=other).scenario
    assert (moved.link_rate_bps, len(moved.jobs), moved.seed, moved.engine) == (7 * 10**9, 1, 0, "packet")
    (warning,) = moved.warnings
    for left_out in ("job.mine", "job.second", "traffic.web", "run.seed", "run.duration"):
        assert left_out in warning


def test_cables_of_a_cluster_in_another_folder_are_found(tmp_path):
    (tmp_path / "net").mkdir()
    written(tmp_path / "net", "a,b\nh0,s0\nh1,s0\nh2,s0\nh3,s0\n", "cables.csv")
    cluster = written(tmp_path / "net", '[cluster]\ntopology = { kind = "custom", links = "cables.csv" }\n')
    assert gt.run(scenario(run={"engine": "fluid"}), cluster=cluster).scenario.fabric.kind == "custom"


def test_what_is_no_cluster_is_refused():
    with pytest.raises(gt.ScenarioError, match="GT006"):
        gt.run(scenario(), cluster="ethernet-24g/4")
    with pytest.raises(gt.ScenarioError, match="GT012"):
        gt.run(scenario(), cluster={"link": {"rate": "1Gbps"}})


# ── a model in the place of a scenario's ──────────────────────────────────────────────────────────────────


def test_a_model_takes_the_place_of_one_job_only():
    with pytest.raises(gt.ScenarioError, match=r"GT016[^$]*job\.mine\.model"):
        gt.run("alexnet", cluster=gt.Scenario.from_toml(TWO_JOBS))


def test_a_time_of_the_old_model_is_not_that_of_the_new_one():
    cluster = scenario().set({"job.train.compute.scale_to": "900ms"})
    placed = gt.run("alexnet", cluster=cluster).scenario
    assert placed.jobs[0].compute_ps == gt.run("alexnet", cluster=scenario()).scenario.jobs[0].compute_ps
    (warning,) = placed.warnings
    assert "job.train.compute.scale_to" in warning
    # So in a comparison of models.
    rows = gt.compare(cluster, models=["alexnet", "vgg16"], schedules=["fifo"]).rows
    assert len({row["compute_us"] for row in rows}) == 2


def test_a_model_beside_background_flows_has_them():
    traffic = {"traffic": WEB, "run": {"engine": "fluid", "duration": "200ms"}}
    cluster = {"cluster": {"topology": {"kind": "star", "hosts": 4}}, **traffic}
    run = gt.run(LAYERS_AS_MODEL, cluster=cluster)
    assert list(run.summary["traffic"]) == ["web"]
    assert run.scenario.jobs[0].workers == 4


LAYERS_AS_MODEL = [Layer(f"l{i}", 10**9, 2 * 10**9, 10**6) for i in range(3)]

# ── clusters by name in a file ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("engine", [None, "fluid", "packet"])
def test_a_name_is_what_presets_say_it_is(name, engine):
    run = {"run": {"engine": engine}} if engine else {}
    whole = presets.cluster(f"{name}/2", engine)
    named = scenario(f"{name}/2", workers=2, **run)
    assert named == scenario(whole["cluster"], workers=2, run=whole["run"])
    assert gt.Scenario.from_toml(named.to_toml()) == named
    # The resolved scenario has the whole table.
    assert "preset" not in named.to_toml()
    assert named.to_dict()["cluster"]["link"]["rate"]


def test_other_keys_replace_those_of_a_named_cluster(tmp_path):
    text = """
[job.train]
model = "alexnet"
workers = 16
[cluster]
preset = "h100-hgx/2"
link = { rate = "100Gbps" }
topology = { kind = "leaf-spine", leaves = 2, hosts_per_leaf = 8, spines = 4 }
"""
    found = gt.Scenario.from_toml(text)
    cluster = found.to_dict()["cluster"]
    assert cluster["link"] == {"rate": "100Gbps", "delay": "2us", "efficiency": 0.96}
    assert (cluster["topology"]["kind"], cluster["node"]["gpus"], found.engine) == ("leaf_spine", 8, "fluid")


def test_keys_of_a_named_cluster_can_be_set():
    base = scenario("h100-hgx/2", workers=16)
    faster = base.set({"cluster.link.rate": "800Gbps"})
    assert (faster.link_rate_bps, faster.link_delay_ps, faster.fabric.node_count) == (8 * 10**11, 2 * 10**6, 2)
    assert base.replace(link_rate="800Gbps") == faster
    assert base.set({"cluster": "h100-hgx/4"}).fabric.node_count == 4
    assert base.replace(cluster="h100-hgx/4") == base.set({"cluster": "h100-hgx/4"})
    # A cluster as a whole comes first, in whatever order they are written.
    assert base.set({"cluster.link.rate": "1Gbps", "cluster": "ethernet-100g/16"}).link_rate_bps == 10**9
    # With another engine the name means what it means there.
    assert base.replace(engine="packet").transport == "ideal"


def test_set_takes_a_cluster(tmp_path, gradtide):
    path = written(tmp_path, TWO_JOBS)
    code, out, err = gradtide("run", path, "--set", "cluster=ethernet-100g/10", "--json")
    assert code == 0, err
    rates = {one["value"] for one in json.loads(out)["premises"] if one["name"] == "link rate"}
    assert rates == {"100 Gbit/s"}


@pytest.mark.parametrize("text", ['cluster = "h10-hgx/2"', '[cluster]\npreset = "h10-hgx/2"', "[cluster]\npreset = 5"])
def test_a_name_that_means_nothing_is_a_fault_with_its_line(text):
    job = '\n[job.train]\nmodel = "alexnet"\nworkers = 2\n'
    text = job + text if text.startswith("[") else text + job
    with pytest.raises(gt.ScenarioError) as error:
        gt.Scenario.from_toml(text)
    (fault,) = error.value.faults
    assert fault.code == ("GT011" if "5" in text else "GT006")
    assert "h10" in fault.text or "5" in fault.text
    assert "h100-hgx" in fault.hint or "ethernet-25g" in fault.hint


def test_other_faults_stand_beside_that_of_a_name():
    with pytest.raises(gt.ScenarioError) as error:
        gt.Scenario.from_toml('cluster = "nothing/2"\n[job.train]\nmodel = "alexnet"\nworkers = 0\n')
    assert {fault.code for fault in error.value.faults} == {"GT006", "GT014"}


def test_the_schema_knows_the_name():
    options = json_schema()["properties"]["cluster"]["anyOf"]
    assert {option.get("type", "table") for option in options} == {"string", "table"}


# ── words with either dash ────────────────────────────────────────────────────────────────────────────────


def words_of(schema, path=()):
    """Yield (path, word) of every fixed list of words in a schema."""
    if isinstance(schema, dict):
        for word in schema.get("enum", ()):
            yield path, word
        for key, value in schema.items():
            yield from words_of(value, (*path, key))
    elif isinstance(schema, list):
        for value in schema:
            yield from words_of(value, path)


@pytest.mark.parametrize("kind", ["leaf_spine", "leaf-spine"])
def test_a_topology_is_known_with_either_dash(kind):
    topology = {"kind": kind, "leaves": 2, "hosts_per_leaf": 2}
    found = scenario({"topology": topology}, run={"engine": "fluid"})
    assert found.to_dict()["cluster"]["topology"]["kind"] == "leaf_spine"
    assert found.replace(topology=topology) == found


@pytest.mark.parametrize(
    ("path", "value", "kept"),
    [
        ("job.train.collective.kind", "halving-doubling", "halving_doubling"),
        ("job.train.collective.kind", "butterfly-layered", "butterfly_layered"),
        ("cluster.queue.kind", "pfifo-fast", "pfifo_fast"),
        ("job.train.priority", {"adaptive": {"policy": "all_low"}}, {"adaptive": {"policy": "all-low"}}),
    ],
)
def test_a_word_is_known_with_either_dash(path, value, kept):
    table = scenario(run={"engine": "packet", "duration": "1s"}).set({path: value}).to_dict()
    for key in path.split("."):
        table = table[key]
    assert table == kept


def test_every_word_with_a_dash_is_known_with_the_other():
    from gradtide.scenario.keys.table import Table, _words

    def tables(cls):
        for one in cls.__subclasses__():
            yield one
            yield from tables(one)

    known = {word for table in tables(Table) for words in _words(table).values() for word in words.values()}
    listed = {word for _, word in words_of(json_schema()) if isinstance(word, str) and re.search("[-_]", word)}
    assert listed
    assert listed <= known


def test_a_word_that_is_wrong_is_refused_as_it_was_written():
    with pytest.raises(gt.ScenarioError, match=r"GT013[^$]*leaf-spin"):
        scenario({"topology": {"kind": "leaf-spin", "leaves": 2, "hosts_per_leaf": 2}})


# ── every study on every cluster ──────────────────────────────────────────────────────────────────────────

STUDIES = {
    "run": lambda name: gt.run(small(name)),
    "compare": lambda name: gt.compare(small(name), schedules=["fifo+barrier", "priority"], rates=["10Gbps"]),
    "compare workers": lambda name: gt.compare(small(name), schedules=["fifo"], workers=[2, 4, 24]),
    "plan": lambda name: gt.plan(small(name), budget=3, seeds=1),
    "collectives": lambda name: gt.collectives(small(name), collectives=["ring", "tree"], sizes=["1kB", "1MB"]),
    "buy": lambda name: gt.buy(
        small(name), fabrics=["star", "leaf-spine"], bisection=["1", "1/2"], collectives=["ring"], nodes=4
    ),
    "tenants": lambda name: tenants(busy(name)),
    "tenants policies": lambda name: policies(busy(name), ["all-low"]),
    "tenants map": lambda name: boundary(busy(name), job_loads=[0.5], traffic_loads=[0.02]),
    "sweep": lambda name: gt.sweep({"sweep": {"scenario": small(name), "grid": {"cluster.link.rate": ["1Gbps"]}}}),
}


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", CLUSTERS)
def test_every_study_runs_on_every_cluster(name, study):
    assert STUDIES[study](name).summary["headline"]


@pytest.mark.parametrize("name", OF_NODES)
@pytest.mark.parametrize("command", ["run", "compare", "plan", "collectives", "buy"])
def test_every_command_takes_a_model_on_every_cluster_of_nodes(command, name, gradtide):
    words = [command, "alexnet", "--cluster", f"{name}/2", "--efficiency", 0.4]
    code, out, err = gradtide(*words, "--estimate", "--json")
    assert code == 0, err
    assert json.loads(out)["runs"] >= 1


def test_a_sweep_over_clusters_and_engines_reads_each_name_for_its_engine():
    grid = {"cluster": ["infiniband-ndr/4", "ethernet-10g/4"], "run.engine": ["fluid", "packet"]}
    result = gt.sweep({"sweep": {"scenario": scenario(), "grid": grid}})
    assert len(result.rows) == 4
    for run in range(4):
        found = result.study.scenario(run)
        is_rdma = found.link_rate_bps > 10**11
        assert found.transport == ("ideal" if is_rdma and found.engine == "packet" else "newreno")


# ── one way to change workers and networks ────────────────────────────────────────────────────────────────


def test_a_star_follows_its_jobs_in_whole_nodes():
    nodes = scenario("h100-hgx/2", workers=16)
    sizes = {workers: card_count(altered(nodes, workers=workers)) for workers in (2, 8, 9, 16, 24)}
    assert sizes == {2: 8, 8: 8, 9: 16, 16: 16, 24: 24}
    hosts = scenario({"topology": {"kind": "star", "hosts": 4}})
    assert [card_count(altered(hosts, workers=count)) for count in (2, 8)] == [2, 8]


def test_a_star_with_hosts_to_spare_keeps_them():
    spare = scenario({"topology": {"kind": "star", "hosts": 9}})
    assert [card_count(altered(spare, workers=count)) for count in (2, 9, 12)] == [9, 9, 12]


def test_servers_stand_beside_the_workers():
    pulled = scenario(workers=4, run={"engine": "fluid"}).replace(collective={"ps": {"servers": 1, "pull": "start"}})
    assert [card_count(altered(pulled, servers=count)) for count in (1, 3)] == [5, 7]
    assert card_count(altered(pulled, workers=8)) == 9


def test_named_hosts_go_when_the_number_of_workers_changes():
    for where in ("hosts", "placement"):
        job = {"model": {"layers": LAYERS}, where: ["h3", "h1"]}
        named = gt.Scenario.from_dict({"job": {"train": job}, "run": {"engine": "fluid"}})
        assert altered(named, workers=4).jobs[0].hosts == (0, 1, 2, 3)


def test_jobs_that_do_not_fit_on_another_network_are_refused():
    leaf = scenario({"topology": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 2}}, run={"engine": "fluid"})
    with pytest.raises(gt.ScenarioError, match="GT042"):
        gt.compare(leaf, workers=[2, 8], schedules=["fifo"])


def test_links_between_switches_follow_the_rate_of_links():
    leaf = scenario({"topology": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 2}}, run={"engine": "fluid"})
    for one in gt.compare(leaf, rates=["1Gbps", "25Gbps"], schedules=["fifo"]).results.values():
        assert one.scenario.fabric.fabric_link[0] == one.scenario.link_rate_bps


LEAF = {"topology": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 2}, "link": {"rate": "10Gbps"}}


@pytest.mark.parametrize(
    "topology",
    [
        {},
        {"spines": 1},
        {"bisection": "1/2"},
        {"fabric_link": {"rate": "20Gbps"}},
        {"kind": "custom", "links": [{"a": f"h{host}", "b": "s"} for host in range(4)]},
    ],
    ids=lambda keys: next(iter(keys), "defaults"),
)
def test_what_a_run_says_of_other_rates_is_what_a_run_at_them_says(topology):
    """Links between switches follow, where nothing is stated of them; the number of switches stays."""
    shape = topology if "kind" in topology else {**LEAF["topology"], **topology}
    base = scenario({**LEAF, "topology": shape}, run={"engine": "fluid"})
    rows = [row for row in gt.run(base).bandwidth.to_dicts() if row["order"] == "fifo" and row["barrier"]]
    assert len(rows) > 5
    spines = base.fabric.written().get("spines")
    for row in rows[::3]:
        at = altered(base, link_rate=f"{row['rate_bps']}bps")
        assert at.fabric.written().get("spines") == spines
        assert row["iteration_time_us"] == pytest.approx(gt.run(at).job["iteration_time_ms"]["mean"] * 1e3)


def test_a_network_whose_cables_state_their_rates_has_no_other_rates():
    links = [{"a": f"h{host}", "b": "s", "rate": "1Gbps"} for host in range(4)]
    base = scenario({"topology": {"kind": "custom", "links": links}}, run={"engine": "fluid"})
    assert not has_what_ifs(base)


def test_what_is_bought_for_nodes_has_a_port_for_each_card_and_whole_nodes():
    nics = scenario("h100-hgx/2", workers=16).replace(node={"gpus": 8, "nics": 2, "scale_up": {"rate": "450GBps"}})
    for base, nodes, cards, workers in (
        (scenario("h100-hgx/2", workers=16), None, 16, 16),
        (scenario("h100-hgx/2", workers=16), 4, 32, 32),
        (nics.replace(topology={"kind": "star"}), None, 4, 16),
    ):
        result = gt.buy(base, nodes=nodes, fabrics=["star", "leaf-spine"], collectives=["ring"], bisection=["1"])
        assert {row["nodes"] for row in result.rows} == {cards}
        assert {run.scenario.jobs[0].workers for run in result.runs.values()} == {workers}
        assert all(run.scenario.fabric.cards.host_count >= cards for run in result.runs.values())


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize(
    "collective",
    [
        {"kind": "shuffle", "reduction_rate": "2.5GB/s"},
        {"kind": "ps", "ps": {"servers": 3}},
        {"kind": "hierarchical", "inside": "sharded", "group": 4},
    ],
    ids=lambda keys: keys["kind"],
)
def test_run_collectives_and_buy_agree_on_an_exchange(collective, depth):
    """A whole gradient in one bucket, with costs of hosts, of adding and of a launch: one answer, whoever is asked."""
    layer = {"name": "all", "forward": "1ps", "backward": "1ps", "parameters": "100MB"}
    job = {
        "model": {"layers": [layer]},
        "workers": 8,
        "iterations": 1,
        "collective": collective,
        "schedule": {"fusion": "0B", "depth": depth, "overhead": "3ms"},
    }
    stages = {"copy": "6.6Gbps", "serialise": "6.6Gbps", "receive": "6.6Gbps"}
    cluster = {"link": {"rate": "10Gbps", "delay": "25us"}, "host": {"message": "15us", "stages": stages}}
    base = gt.Scenario.from_dict({"job": {"train": job}, "cluster": cluster, "run": {"engine": "fluid"}})
    run_ms = gt.run(base).job["iteration_time_ms"]["mean"]
    (row,) = gt.collectives(base, collectives=[collective["kind"]], sizes=["100MB"]).rows
    (offer,) = gt.buy(base, collectives=[collective["kind"]], fabrics=["star"]).rows
    assert [row["exchange_us"] / 1e3, offer["exchange_ms"], offer["iteration_ms"]] == pytest.approx([run_ms] * 3)


def test_an_exchange_on_nodes_waits_for_its_launch():
    layer = {"name": "all", "forward": "1ps", "backward": "1ps", "parameters": "100MB"}
    hgx = {"model": {"layers": [layer]}, "workers": 16, "iterations": 1, "schedule": {"fusion": "0B"}}
    nodes = gt.Scenario.from_dict({"job": {"train": hgx}, "cluster": "h100-hgx/2"})
    (row,) = gt.collectives(nodes, collectives=["ring"], sizes=["100MB"]).rows
    assert row["exchange_us"] / 1e3 == pytest.approx(gt.run(nodes).job["iteration_time_ms"]["mean"])


# ── a model and a cluster wherever a scenario is taken ────────────────────────────────────────────────────


@pytest.mark.parametrize("study", [gt.collectives, gt.buy, gt.plan])
def test_studies_take_a_model_and_a_cluster_in_python(study):
    more = {gt.collectives: {"sizes": ["1MB"]}, gt.buy: {"fabrics": ["star"]}, gt.plan: {"budget": 1, "seeds": 1}}
    for asked in ("alexnet", scenario()):
        summary = study(asked, cluster="ethernet-100g/4", **more[study]).summary
        rates = {one["value"] for one in summary["premises"] if one["name"] == "link rate"}
        assert rates <= {"100 Gbit/s", "varied"}


@pytest.mark.parametrize(
    ("study", "more"),
    [(tenants, {}), (policies, {"names": ["all-low"]}), (boundary, {"job_loads": [0.5], "traffic_loads": [0.02]})],
)
def test_studies_of_tenants_take_a_model_and_a_cluster(study, more):
    base = busy("ethernet-10g")
    cluster = {key: value for key, value in base.given.items() if key != "job"}
    model = study(LAYERS_AS_MODEL, cluster=cluster, **more)
    moved = study(base, cluster="ethernet-25g", seed=3, **more)
    for result, rate in ((model, "10 Gbit/s"), (moved, "25 Gbit/s")):
        assert result.summary["job"] == "train"
        assert rate in {one["value"] for one in result.summary["premises"]}


@pytest.mark.parametrize("command", ["tenants", "tenants map", "tenants policies", "tenants lp", "collectives", "buy"])
def test_commands_take_a_cluster_and_settings_of_training(command, gradtide):
    code, out, _ = gradtide(*command.split(), "--help")
    assert code == 0
    for option in ("--cluster", "--seq", "--precision", "--set", "--estimate"):
        assert option in out
