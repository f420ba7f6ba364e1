"""Machines with several GPUs: their links, collectives against closed forms, named hardware, what is refused.

Times of classes against all ranks, and other collectives, are in crates/train/tests/classes.rs.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import presets
from gradtide.errors import ScenarioError
from gradtide.scenario import Scenario

ROOT = Path(__file__).resolve().parent.parent
SIZE = 64_000_000
PORT, CARD = 1e12, 1e11
"""Bytes per second."""
INSIDE_S, BETWEEN_S = 2e-6, 20e-6
"""A message crosses two links."""


def exchange(workers, kind, *, engine="fluid", topology=None, nics=8, **node):
    """Return a scenario of one exchange an iteration, which nothing hides."""
    node = {"gpus": 8, "nics": nics, "scale_up": {"rate": "8Tbps", "delay": "1us"}, **node}
    cluster = {"link": {"rate": "800Gbps", "delay": "10us"}, "node": node}
    layer = {"name": "all", "forward": "1ms", "backward": "1ms", "parameters": f"{SIZE}B"}
    job = {"model": {"layers": [layer]}, "workers": workers, "iterations": 1}
    job["collective"] = {"kind": kind} if isinstance(kind, str) else kind
    cluster |= {} if topology is None else {"topology": topology, "routing": "spread"}
    return Scenario.from_dict({"job": {"a": job}, "cluster": cluster, "run": {"engine": engine}})


def comm_s(scenario):
    return gt.run(scenario).job["comm_ms"] / 1e3


SHARDED = {"kind": "hierarchical", "inside": "sharded"}
LEAF_SPINE = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 8, "fabric_link": {"delay": "0us"}}
"""Spread routing has no two messages meet, here and in the next."""
CLOS = {"kind": "clos2", "ports": 8}


def test_hosts_that_are_named_are_spread_over_the_nodes_of_a_star_without_a_size():
    job = {"model": {"layers": [{"name": "all", "forward": "1ms", "backward": "1ms", "parameters": "1MB"}]}}
    job |= {"hosts": ["h0", "h1", "h3"], "placement": "spread"}
    node = {"gpus": 3, "scale_up": {"rate": "8Tbps"}, "nics": 3}
    scenario = Scenario.from_dict({"job": {"a": job}, "cluster": {"node": node}, "run": {"engine": "fluid"}})
    # h0 and h1 are on one node.
    assert scenario.spec()["jobs"][0]["hosts"] == [0, 3, 1]
    assert Scenario.from_toml(scenario.to_toml()).spec() == scenario.spec()


def test_a_ring_within_a_node_takes_the_time_of_its_ports():
    assert comm_s(exchange(8, "ring")) == pytest.approx(14 * (SIZE / 8 / PORT + INSIDE_S), abs=1e-9)


@pytest.mark.parametrize(("nics", "topology"), [(8, None), (4, None), (1, None), (8, LEAF_SPINE), (8, CLOS)])
def test_a_hierarchical_all_reduce_takes_its_levels_one_after_the_other(nics, topology):
    """2(k-1) messages of S/k within nodes, 2(m-1) of S/(km) between them, each card shared by 8/nics GPUs."""
    inside_s = 14 * (SIZE / 8 / PORT + INSIDE_S)
    # Links between leaves take no time here, and those of the Clos network as much as those of hosts.
    between_s = 2 * (SIZE / 16 / (CARD * nics / 8) + BETWEEN_S * (2 if topology == CLOS else 1))
    assert comm_s(exchange(16, SHARDED, topology=topology, nics=nics)) == pytest.approx(inside_s + between_s, abs=1e-9)


def test_groups_are_nodes_unless_a_scenario_says_otherwise():
    assert exchange(16, SHARDED).jobs[0].group == 8
    assert exchange(16, {"kind": "hierarchical", "inside": "sharded", "group": 4}).jobs[0].group == 4


def test_within_a_node_packets_take_the_time_of_the_fluid():
    node = exchange(8, "ring")
    assert comm_s(node.set({"run.engine": "packet"})) == comm_s(node)


def test_packets_between_nodes_are_those_of_a_star_of_cards():
    ideal = {"cluster.transport": {"kind": "ideal", "window": "1MB"}, "run.engine": "packet"}
    nodes = exchange(2, "ring").replace(hosts=["h0", "h8"]).set({**ideal, "cluster.link.rate": "8Gbps"})
    star = nodes.replace(hosts=["h0", "h1"]).set({"cluster.node": None})
    assert comm_s(nodes) == comm_s(star)


def test_links_say_what_they_join(tmp_path):
    result = gt.run(exchange(16, SHARDED, nics=4))
    result.save(tmp_path / "run")
    rows = (tmp_path / "run" / "links.csv").read_text().splitlines()[1:]
    sent = {row.split(",")[0]: int(row.split(",")[2]) for row in rows}
    assert len(sent) == 2 * 8 + 2 * 16
    # Within nodes 14/8 of the buffer out of every port, twice: one iteration goes before the measured one.
    assert sent["node1.gpu7->nvswitch"] == sent["nvswitch->node0.gpu0"] == 2 * SIZE * 14 // 8
    # A card carries what two GPUs send of their eighths.
    assert sent["node1.nic3->s"] == sent["s->node0.nic0"] == 2 * 2 * SIZE // 8


@pytest.mark.parametrize("nics", [8, 4])
def test_a_probe_of_windows_needs_a_card_for_each_gpu(nics):
    scenario = exchange(16, "ring", engine="packet", nics=nics).set({"run.probe": {"every": "1ms", "cwnd": ["a"]}})
    if nics == 8:
        assert gt.run(scenario).job["comm_ms"] > 0
    else:
        with pytest.raises(ScenarioError, match="GPUs share network cards"):
            gt.run(scenario)


def test_launch_is_the_default_of_overhead():
    base, late = exchange(8, "ring"), exchange(8, "ring", launch="30us")

    def iteration_s(scenario):
        return gt.run(scenario).job["iteration_time_ms"]["mean"] / 1e3

    assert iteration_s(late) - iteration_s(base) == pytest.approx(30e-6, abs=1e-9)
    assert iteration_s(late.set({"job.a.schedule.overhead": "0us"})) == pytest.approx(iteration_s(base), abs=1e-9)


def test_a_star_has_whole_nodes_and_the_resolved_scenario_means_the_same():
    scenario = exchange(12, "ring", launch="5us")
    assert scenario.hosts == 16
    resolved = scenario.to_dict()
    assert resolved["cluster"]["topology"] == {"kind": "star", "hosts": 16}
    assert resolved["cluster"]["node"]["nics"] == 8
    again = Scenario.from_dict(json.loads(json.dumps(resolved)))
    assert again.to_dict() == resolved
    assert again.spec() == scenario.spec()


def test_a_scenario_without_nodes_says_nothing_of_them():
    plain = Scenario.from_dict({"job": {"a": {"model": "resnet50", "workers": 8}}})
    assert "node" not in plain.to_dict()["cluster"]


@pytest.mark.parametrize(
    ("change", "code", "where", "words"),
    [
        ({"cluster.node.nics": 3}, "GT014", "cluster.node.nics", "8 GPUs cannot share 3 network cards"),
        ({"cluster.node.nics": 16}, "GT014", "cluster.node.nics", "8 GPUs cannot share 16"),
        ({"cluster.node.gpus": 0}, "GT014", "cluster.node.gpus", "out of range"),
        ({"cluster.node.gpus": 2000}, "GT014", "cluster.node.gpus", "out of range"),
        ({"cluster.node.scale_up.rate": "0bps"}, "GT026", "cluster.node.scale_up.rate", "zero"),
        ({"cluster.node.scale_up.delay": "-1us"}, "GT0", "cluster.node.scale_up.delay", ""),
        ({"cluster.node.scale_up": {}}, "GT010", "cluster.node.scale_up.rate", "missing"),
        ({"cluster.topology": {"kind": "star", "hosts": 12}}, "GT014", "cluster.topology.hosts", "12 network cards"),
        ({"cluster.topology": {"kind": "star", "hosts": 8}}, "GT042", "cluster.topology.hosts", "16 workers on 8 GPUs"),
        ({"cluster.topology": {"kind": "clos2", "ports": 6}}, "GT014", "cluster.topology.kind", "18 network cards"),
        ({"job.a.hosts": ["h16"], "job.a.workers": None, "cluster.topology": {"kind": "star", "hosts": 16}},
         "GT040", "job.a.hosts", "unknown host"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_are_refused(change, code, where, words):
    base = exchange(16, "ring")
    with pytest.raises(ScenarioError) as caught:
        gt.run(base.set(change))
    faults = [fault for fault in caught.value.faults if where in fault.loc]
    assert faults, caught.value
    assert faults[0].code.startswith(code)
    assert words in faults[0].msg
    assert faults[0].hint


def test_a_probe_of_an_unknown_link_is_told_which_there_are():
    with pytest.raises(ScenarioError, match=r"node0\.nic0->s"):
        exchange(8, "ring", engine="packet").set({"run.probe": {"every": "1ms", "links": ["h0"]}})


def test_a_probe_of_links_of_nodes_that_cannot_be_adds_nothing():
    base = {"job": {"a": {"model": "resnet50", "workers": 8, "iterations": 1}}}
    node = {"gpus": 5, "nics": 3, "scale_up": {"rate": "600Gbps"}}
    run = {"engine": "fluid", "probe": {"every": "1ms", "links": ["node0.nic0->s"]}}
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(base | {"cluster": {"node": node}, "run": run})
    assert [fault.loc for fault in caught.value.faults] == ["cluster.node.nics"]


HARDWARE = [name for name in presets.cluster_names() if presets.cluster_device(name)]


@pytest.mark.parametrize("name", HARDWARE)
def test_named_hardware_has_nodes_of_eight_gpus_of_a_known_device(name):
    found = presets.cluster(f"{name}/3")
    assert found["cluster"]["topology"]["hosts"] == 3 * found["cluster"]["node"]["nics"]
    assert found["cluster"]["node"]["gpus"] == 8
    presets.device(presets.cluster_device(name))
    job = {"model": "resnet50", "workers": 24, "compute": {"efficiency": 0.4}}
    scenario = Scenario.from_dict({**found, "job": {"a": job}})
    assert scenario.hosts == 24
    assert scenario.jobs[0].device.name == presets.cluster_device(name) == found["cluster"]["device"]


def test_the_cluster_of_a_command_brings_its_gpus_and_their_number(gradtide):
    code, out, err = gradtide("run", "resnet50", "--cluster", "a100-hgx/2", "--json")
    assert code == 0, err
    assert json.loads(out)["jobs"]["train"]["workers"] == 16
    # In mixed precision an A100 takes under a fifth of the V100's time, which is the default.
    _, plain, _ = gradtide("run", "resnet50", "--cluster", "infiniband-ndr/16", "--json")
    compute_ms = [json.loads(text)["jobs"]["train"]["compute_ms"] for text in (out, plain)]
    assert compute_ms[0] < compute_ms[1] / 2


def test_hardware_has_what_its_fit_gives():
    """Rounded: launch to a microsecond, delay and efficiency to a hundredth."""
    script = ROOT / "validation" / "clusters.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = [[float(word) for word in line if word[0].isdigit()] for line in lines if line[0] in ("fitted", "preset")]
    assert len(rows) == 4
    for fitted, preset in zip(rows[::2], rows[1::2], strict=True):
        assert preset == pytest.approx(fitted, abs=0.5, rel=0.0)
        assert preset[1:] == pytest.approx(fitted[1:], abs=0.021)
