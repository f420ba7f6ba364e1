"""Networks, routing, collectives and placement in scenarios, on every engine that has them."""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import gradtide as gt
from gradtide import counts as collectives
from gradtide.algorithms import ALGORITHMS, CollectiveKind
from gradtide.answer.premises import premises_of
from gradtide.errors import ScenarioError
from gradtide.estimate import estimate
from gradtide.scenario import Scenario
from gradtide.scenario.cables import wired
from gradtide.scenario.core import job as core
from gradtide.scenario.fabric import Cable, Nodes, Tree, clos, leaf_spine, star

NETWORKS = {
    "star": {"kind": "star", "hosts": 8},
    "leaf_spine": {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 2, "spines": 2},
    "clos2": {"kind": "clos2", "ports": 4},
    "clos3": {"kind": "clos3", "ports": 4, "bisection": "1/2"},
    "custom": {
        "kind": "custom",
        "links": [
            *({"a": f"h{host}", "b": f"tor{host // 4}"} for host in range(8)),
            *({"a": f"tor{tor}", "b": core, "rate": "40Gbps"} for tor in range(2) for core in ("x", "y")),
        ],
    },
}


def scenario(topology: object = None, engine: str = "fluid", **changes: object) -> Scenario:
    """One layer of 800 kB on eight workers."""
    layer = {"name": "a", "forward": "1us", "backward": "1us", "parameters": "800kB"}
    base = Scenario.from_dict(
        {
            "job": {"train": {"model": {"layers": [layer]}, "workers": 8, "iterations": 2}},
            "cluster": {"link": {"rate": "10Gbps", "delay": "1us"}},
        }
    )
    kind = dict(changes.get("collective") or {}).get("kind")
    task = {"task": "exchange"} if kind in collectives.NOT_SUMMED else {}
    return base.replace(topology=topology or NETWORKS["star"], engine=engine, **task, **changes)


def times_us(result: gt.RunResult, job: str = "train") -> list[float]:
    return [row["time_us"] for row in result.iterations.to_dicts() if row["job"] == job]


@pytest.mark.parametrize("routing", ["ecmp", "dmodk", "spread"])
@pytest.mark.parametrize("engine", ["fluid", "packet"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_network_runs_on_every_engine_with_every_routing(kind: str, engine: str, routing: str) -> None:
    given = scenario(NETWORKS[kind], engine, routing=routing)
    assert Scenario.from_toml(given.to_toml()) == given
    result = gt.run(given)
    assert result.links["link"].tolist().count("h7") == 1
    # A probe can name every link of the run, each has one name, and the counts of cables are those of links.
    assert sorted(result.links["link"].tolist()) == sorted(given.fabric.link_names())
    assert len(result.links) == 2 * given.fabric.cable_count
    # Nobody is faster than the ring's own bytes on one link: 2 (N-1)/N S.
    assert min(times_us(result)) >= 2 * 7 / 8 * 800e3 * 8 / 10e9 * 1e6
    # The hosts send 2(N-1) S in an iteration, and a bit more with headers; three exchanges with the warm-up.
    sent = sum(row["bytes"] for row in result.links.to_dicts() if re.fullmatch(r"h\d+", row["link"]))
    exchanges = 3 if engine == "fluid" else 2
    headers = 1 if engine == "fluid" else 1.1
    assert exchanges * 14 * 800e3 <= sent <= exchanges * 14 * 800e3 * headers


MEETING: dict[str, Any] = {
    "job": {
        "train": {
            "model": {"layers": [{"name": "a", "forward": "1us", "backward": "1us", "parameters": "800kB"}]},
            "workers": 16,
            "placement": "spread",
            "iterations": 1,
        }
    },
    "traffic": {
        "web": {
            "flows": [
                {"start": "1ms", "src": f"h{src}", "dst": f"h{(src + 5) % 16}", "bytes": "300kB"}
                for src in range(0, 16, 3)
            ]
        }
    },
    "cluster": {
        "topology": {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 4},
        "link": {"rate": "10Gbps", "delay": "1us"},
    },
}
"""A job whose ring crosses the spines, beside background flows."""


def meeting(engine: str, seed: int) -> Scenario:
    return Scenario.from_dict({**MEETING, "run": {"engine": engine, "seed": seed, "duration": "1s"}})


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_the_seed_decides_which_flows_meet_by_hash(engine: str) -> None:
    given = [meeting(engine, seed) for seed in range(3)]
    assert len({gt.run(each).summary["simulated_ms"] for each in given}) == 3
    assert len({gt.run(each.replace(routing="spread")).summary["simulated_ms"] for each in given}) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_flow_takes_the_same_links_on_the_fluid_and_the_packet_engine(seed: int) -> None:
    fluid, packet = (gt.run(meeting(engine, seed)) for engine in ("fluid", "packet"))
    alone = gt.run(Scenario.from_dict({**MEETING, "traffic": {}, "run": {"engine": "fluid", "seed": seed}}))
    assert packet.summary["links"]["drops"] == 0
    rows = zip(fluid.links.to_dicts(), alone.links.to_dicts(), packet.links.to_dicts(), strict=True)
    for both, job, wire in rows:
        # The fluid engine has the exchange twice, once in an iteration to warm up. A packet has 54 bytes of headers for
        # at most 1380 of payload. Acknowledgements come on top: less than a background flow or connection of the job.
        payload = both["bytes"] - job["bytes"] / 2
        assert payload * 1434 / 1380 - 2 <= wire["bytes"] < payload * 1434 / 1380 + 300e3, wire["link"]


def test_a_flow_keeps_its_path_whatever_jobs_there_are() -> None:
    # One job or two that send nothing to speak of: not a flow takes longer by more than their own bytes take.
    layer = {"name": "a", "forward": "1us", "backward": "1us", "parameters": "16B"}
    job = {**MEETING["job"]["train"], "model": {"layers": [layer]}}
    run = {"engine": "fluid", "seed": 1, "duration": "1s"}
    given = [Scenario.from_dict({**MEETING, "job": dict.fromkeys(names, job), "run": run}) for names in ("a", "ab")]
    fcts = [gt.run(each).flows["fct_us"].tolist() for each in given]
    assert fcts[0] == pytest.approx(fcts[1], abs=1)


@pytest.mark.parametrize("kind", collectives.KINDS)
def test_a_job_that_is_alone_is_simulated_as_beside_another(kind: str) -> None:
    # Two jobs on leaves of their own never meet: each is as fast as alone, where an exchange is carried out once.
    model = {
        "layers": [
            {"name": name, "forward": "20us", "backward": "30us", "parameters": size}
            for name, size in (("a", "100kB"), ("b", "50001B"), ("c", "100kB"))
        ]
    }
    job = {"model": model, "iterations": 3, "collective": {"kind": kind}, "schedule": {"fusion": "0B"}}
    job["task"] = "exchange" if kind in collectives.NOT_SUMMED else "train"
    cluster = {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 1}}
    first = {**job, "hosts": [f"h{host}" for host in range(4)]}
    other = {**job, "hosts": [f"h{host}" for host in range(4, 8)]}
    run = {"engine": "fluid"}
    alone = gt.run(Scenario.from_dict({"job": {"train": first}, "cluster": cluster, "run": run}))
    both = gt.run(Scenario.from_dict({"job": {"train": first, "other": other}, "cluster": cluster, "run": run}))
    # An exchange that is remembered is rounded down to a picosecond; three in an iteration.
    for name in ("train", "other"):
        assert times_us(both, name) == pytest.approx(times_us(alone), abs=3e-6)
    links = {row["link"]: row["bytes"] for row in alone.links.to_dicts()}
    for row in both.links.to_dicts():
        if row["link"] in ("h0", "h1", "h2", "h3"):
            # The job alone has done its last exchange too, whichever ended first here.
            assert abs(row["bytes"] - links[row["link"]]) <= 12


@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
@pytest.mark.parametrize("kind", collectives.KINDS)
def test_the_core_sends_what_is_counted(kind: CollectiveKind, ranks: int) -> None:
    collective: dict[str, object] = {"kind": kind}
    group = 2 if "group" in ALGORITHMS[kind].keys else 1
    if group > 1:
        collective["group"] = group
    servers = max(1, ranks // 8)
    for inside in ("reduce", "ring", "sharded") if "inside" in ALGORITHMS[kind].keys else ("ring",):
        if "inside" in ALGORITHMS[kind].keys:
            if inside == "sharded" and ranks % group:
                continue
            collective["inside"] = inside
        # 960960 divides by all parts, and by parts of parts.
        layer = {"name": "a", "forward": "1us", "backward": "1us", "parameters": "960960B"}
        result = gt.run(scenario(model={"layers": [layer]}, workers=ranks, collective=collective, iterations=1))
        counts = core.counts(core.algorithm(kind, collective.get("group"), collective.get("inside"), servers), ranks)
        sent = {row["link"]: row["bytes"] for row in result.links.to_dicts() if "-" not in row["link"]}
        assert sum(sent.values()) == 2 * 960960 * counts.sent
        assert result.job["bytes_per_worker"] == pytest.approx(float(960960 * counts.most))
        if ranks in (2, 8):
            assert max(sent.values()) == 2 * 960960 * counts.most
        # A flow of each rank has all messages of a tree.
        assert estimate(result.scenario).events >= (ranks if kind == "tree" else counts.messages)


def carried_out(kind: str, ranks: int, size: int, **keys: object) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A collective's messages on arrays, one number a byte: what every rank begins and ends with, and the servers."""
    cluster = {"kind": "star", "hosts": 17}
    table = gt.messages(scenario(cluster, workers=ranks, collective={"kind": kind, **keys}), size).to_numpy()
    begin = np.random.default_rng(ranks).integers(0, 1000, (ranks, size))
    servers = sorted(set(table["to_rank"][table["step"] == 0].tolist())) if kind == "ps" else []
    begin[servers] = 0  # They have no gradient.
    buffers = begin.copy()
    for step in np.unique(table["step"]):
        rows = np.flatnonzero(table["step"] == step)
        places = {row: slice(at := table["offset_bytes"][row], at + table["bytes"][row]) for row in rows}
        sent = {row: buffers[table["from_rank"][row], places[row]].copy() for row in rows}
        for row, values in sent.items():
            into = buffers[table["to_rank"][row], places[row]]
            into[:] = into + values if table["action"][row] == "reduce" else values
    return begin, buffers, servers


@pytest.mark.parametrize("ranks", range(1, 18))
@pytest.mark.parametrize(
    "kind", [kind for kind, one in ALGORITHMS.items() if one.operation not in ("all_to_all", "send")]
)
def test_every_rank_ends_with_what_is_promised(kind: CollectiveKind, ranks: int) -> None:
    """The whole sum, or the part that the collective promises, also of a size that does not divide evenly."""
    size = 5 * ranks + 3
    algorithm = ALGORITHMS[kind]
    keys: dict[str, object] = {"group": min(3, ranks)} if "group" in algorithm.keys else {}
    begin, end, servers = carried_out(kind, ranks, size, **keys)
    total = begin.sum(axis=0)
    cuts = [size // ranks * index + min(index, size % ranks) for index in range(ranks + 1)]
    own = [slice(*pair) for pair in pairwise(cuts)]
    if algorithm.sums:
        assert all((end[rank] == total).all() for rank in range(ranks) if rank not in servers)
    elif algorithm.operation == "broadcast":
        assert (end == begin[0]).all()
    elif algorithm.operation == "all_gather":
        assert (end == np.concatenate([begin[rank, own[rank]] for rank in range(ranks)])).all()
    else:
        assert all((end[rank, own[rank]] == total[own[rank]]).all() for rank in range(ranks))


@pytest.mark.parametrize("ranks", range(1, 18))
def test_an_all_to_all_transposes(ranks: int) -> None:
    """Buffers of all ranks stand behind one another: rank j ends with part j of everybody's."""
    size = 3 * ranks
    table = gt.messages(scenario({"kind": "star", "hosts": 17}, workers=ranks, collective={"kind": "all_to_all"}), size)
    rows = table.to_dicts()
    assert len(rows) == ranks * (ranks - 1)
    for row in rows:
        assert row["offset_bytes"] == row["from_rank"] * size + row["to_rank"] * 3
        assert row["bytes"] == 3


def test_messages_are_of_one_job() -> None:
    base = scenario()
    two = Scenario.from_dict(
        {**base.to_dict(), "job": {name: dict(base.to_dict()["job"]["train"], workers=4) for name in ("a", "b")}}
    )
    with pytest.raises(ValueError, match="several jobs; name one: a, b"):
        gt.messages(two, "1kB")
    with pytest.raises(ValueError, match="no job 'c'"):
        gt.messages(two, "1kB", job="c")
    with pytest.raises(ValueError, match="size: "):
        gt.messages(base, "1 kilo")
    # A ring of 4 has 6 steps of 4 messages.
    assert len(gt.messages(two, "1kB", job="b")) == 24


def test_zhangs_exchanges_take_what_bandwidth_says() -> None:
    # By hand: 100 MB at 4 GB/s take 25 ms. A flat butterfly of 128 takes 7 of these; with 1/8 of the uplinks the last 4
    # steps, between leaves of 8 hosts, take 8 times as long. Layered: 3 + 4 + 3 in all networks.
    times = {}
    for name, collective in (
        ("flat", {"kind": "butterfly"}),
        ("layered", {"kind": "butterfly_layered"}),
        ("packed", {"ps": {}}),
        ("distributed", {"ps": {"placement": "distributed"}}),
    ):
        for bisection in ("1", "1/8"):
            base = gt.preset("paper/zhang2017").replace(collective=collective, link_delay="0s")
            result = gt.run(base.set({"cluster.topology.bisection": bisection}))
            times[name, bisection] = times_us(result)[0] / 25_000
    expected = {
        ("flat", "1"): 7, ("flat", "1/8"): 3 + 4 * 8, ("layered", "1"): 10, ("layered", "1/8"): 10,
        # 16 servers receive and send 112/16 gradients each way; packed ones share the uplinks of two leaves.
        ("packed", "1"): 14, ("packed", "1/8"): 14 * 8, ("distributed", "1"): 14, ("distributed", "1/8"): 14,
    }  # fmt: skip
    # The two passes take a picosecond each.
    assert times == pytest.approx(expected, abs=1e-9)


def test_time_to_reduce_is_hidden_by_chunks() -> None:
    # A broadcast tree has nothing to reduce; a reduction at the link's rate doubles what a ring's first half takes.
    plain = times_us(gt.run(scenario(link_delay="0s")))[0]
    slow = times_us(gt.run(scenario(link_delay="0s", collective={"kind": "ring", "reduction_rate": "10Gbps"})))[0]
    compute_us = 2.0
    assert slow - compute_us == pytest.approx(1.5 * (plain - compute_us), rel=1e-6)
    chunked = times_us(
        gt.run(scenario(link_delay="0s", depth=8, collective={"kind": "ring", "reduction_rate": "10Gbps"}))
    )[0]
    # Of eight chunks the link waits for no more than one reduction; the lower bound is the wire.
    assert plain <= chunked < plain + 0.2 * (slow - plain)


def test_ranks_are_where_the_placement_says() -> None:
    leaf_spine = {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 2, "spines": 1}

    def hosts(**changes: object) -> tuple[int, ...]:
        return scenario(leaf_spine, **changes).jobs[0].hosts

    assert hosts(workers=4) == (0, 1, 2, 3)
    assert hosts(workers=6, placement="spread") == (0, 2, 4, 6, 1, 3)
    assert hosts(workers=None, hosts=["h1", "h0", "h2", "h7"], placement="spread") == (1, 2, 7, 0)
    assert hosts(workers=3, placement=["h5", "h0", "h3"]) == (5, 0, 3)
    drawn = hosts(workers=5, placement="random")
    assert len(set(drawn)) == 5
    assert drawn == hosts(workers=5, placement="random")
    assert len({hosts(workers=5, placement="random", seed=seed) for seed in range(5)}) > 1
    data = scenario(leaf_spine, workers=3, placement="spread").to_dict()
    data["job"]["other"] = {**data["job"]["train"], "placement": "packed"}
    jobs = Scenario.from_dict(data).jobs
    assert [job.hosts for job in jobs] == [(0, 2, 4), (1, 3, 5)]


def test_where_ranks_are_decides_what_a_narrow_network_costs() -> None:
    narrow = {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 1}
    packed = times_us(gt.run(scenario(narrow, collective={"kind": "all_to_all"})))[0]
    spread = times_us(gt.run(scenario(narrow, collective={"kind": "all_to_all"}, placement="spread")))[0]
    # Packed, each of two leaves sends 4 x 4/8 S up; spread over four leaves, 2 x 6/8 S.
    wire_us = 800e3 * 8 / 10e9 * 1e6
    assert packed == pytest.approx(2 * wire_us, rel=0.02)
    assert spread == pytest.approx(1.5 * wire_us, rel=0.02)


def test_routes_decide_whether_heads_of_groups_collide_on_three_layers() -> None:
    # Heads are the first hosts of all edge switches, alike in the digit that d-mod-k looks at.
    clos3 = {"kind": "clos3", "ports": 16, "bisection": "1/4"}
    times = {
        routing: times_us(
            gt.run(scenario(clos3, workers=1024, collective={"kind": "butterfly_layered"}, routing=routing))
        )[0]
        for routing in ("dmodk", "spread")
    }
    assert times["dmodk"] > 1.2 * times["spread"]


def test_neighbours_slow_a_job_on_the_fluid_engine() -> None:
    flows = [{"start": "0s", "src": "h0", "dst": "h4", "bytes": "100MB"}]
    data = scenario(NETWORKS["clos2"]).to_dict()
    data["traffic"] = {"web": {"flows": flows}}
    data["run"]["duration"] = "100ms"
    alone = times_us(gt.run(scenario(NETWORKS["clos2"])))[0]
    beside = gt.run(Scenario.from_dict(data))
    # The flow and the ring share the link of host 0: half for each.
    assert times_us(beside)[0] == pytest.approx(2 * alone, rel=0.05)
    low = gt.run(Scenario.from_dict(data).set({"traffic.web.priority": "low"}))
    assert times_us(low)[0] == pytest.approx(alone, rel=1e-6)
    assert beside.summary["traffic"]["web"]["all"]["completed"] == 1
    assert beside.summary["links"]["max_queue_packets"] is None


def test_servers_compute_nothing() -> None:
    straggler = {"worker": 5, "factor": 2.0}
    result = gt.run(scenario(collective={"ps": {"servers": 2}}, straggler=straggler))
    assert sorted({row["host"] for row in result.workers.to_dicts()}) == [2, 3, 4, 5, 6, 7]
    slow = {row["host"] for row in result.workers.to_dicts() if row["compute_us"] > 2.5}
    assert slow == {7}
    with pytest.raises(ScenarioError, match="workers are 0 to 5"):
        scenario(collective={"ps": {"servers": 2}}, straggler={"worker": 6, "factor": 2.0})


def test_cables_from_a_file_are_those_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "fabric.csv").write_text("a,b,rate,delay\nh0,s0,,\nh1,s1,25Gbps,\ns0,s1,100Gbps,3us\n")
    text = """
[job.train]
model = { kind = "thesis", layers = 4, size = "1MB", time = "9ms" }
workers = 2
[cluster]
topology = { kind = "custom", links = "fabric.csv" }
[run]
engine = "fluid"
"""
    given = Scenario.from_toml(text, base_dir=tmp_path)
    assert given.to_dict()["cluster"]["topology"] == {
        "kind": "custom",
        "hosts": 2,
        "switches": ["s0", "s1"],
        "links": [
            {"a": "h0", "b": "s0", "rate": "10Gbps", "delay": "10us"},
            {"a": "h1", "b": "s1", "rate": "25Gbps", "delay": "10us"},
            {"a": "s0", "b": "s1", "rate": "100Gbps", "delay": "3us"},
        ],
    }
    assert Scenario.from_toml(given.to_toml()) == given
    assert (given.fabric.hops, given.fabric.switch_count, given.fabric.hosts_per_edge) == (3, 2, 1)
    rates = dict(zip(*(gt.run(given).links[name].tolist() for name in ("link", "rate_bps")), strict=True))
    assert rates["s1-h1"] == 25 * 10**9
    assert rates["s1-s0"] == 100 * 10**9


BAD_CABLES = [
    ("from,to\nh0,s\n", "GT047", 1, "the header"),
    ("", "GT047", None, "is empty"),
    ("a,b\nh0,s\nh1\n", "GT046", 3, "has 1 fields"),
    ("a,b,rate\nh0,s,10\nh1,s,10Gbps\n", "GT020", 2, "has no unit"),
    ("a,b,rate\nh0,s,0Gbps\nh1,s,10Gbps\n", "GT026", 2, "zero"),
    ("a,b\nh0,s\n\nh1,s\nh1,s\n", "GT046", 5, "there is a cable between h1 and s already"),
    ("a,b\nh0,s\nh1,s\ns,s\n", "GT046", 4, "to itself"),
    ("a,b\nh0,s\nh1,s\nx,y\n", "GT045", None, "no cables lead from h0 to x, y"),
    ("a,b\nx,y\n", "GT046", None, "no cable leads to a host"),
    ("a,b\nh0,s\nh1,s\ns,\n", "GT018", 4, "cannot be a name"),
    ("a,b\nh0,a-b\nh1,a\na-b,c\na,b-c\nb-c,c\n", "GT046", None, 'called "a-b-c"'),
]


@pytest.mark.parametrize(("text", "code", "line", "msg"), BAD_CABLES, ids=[c[3] for c in BAD_CABLES])
def test_a_list_of_cables_that_is_wrong(tmp_path: Path, text: str, code: str, line: int | None, msg: str) -> None:
    (tmp_path / "f.csv").write_text(text)
    data = scenario().to_dict()
    data["cluster"]["topology"] = {"kind": "custom", "links": "f.csv"}
    data["job"]["train"]["workers"] = 2
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(data, base_dir=tmp_path)
    fault = next(e for e in caught.value.errors if e["code"] == code)
    assert msg in fault["msg"]
    if line is not None:
        assert (fault["file"], fault["line"]) == ("f.csv", line)


def test_a_networkx_graph_is_a_topology() -> None:
    graph = nx.Graph()
    graph.add_nodes_from(range(4), kind="host")
    graph.add_edges_from((host, f"tor{host // 2}") for host in range(4))
    graph.add_edge("tor0", "tor1", rate="100Gbps", delay="5us")
    table = gt.from_networkx(graph)
    given = scenario(table, workers=4)
    assert (given.fabric.host_count, given.fabric.switch_count, given.fabric.cable_count) == (4, 2, 5)
    assert table["links"][-1] == {"a": "tor0", "b": "tor1", "rate": "100Gbps", "delay": "5us"}
    assert len(times_us(gt.run(given))) == 2
    by_name = gt.from_networkx(nx.Graph([("h1", "s"), ("h0", "s")]))
    assert by_name["links"] == [{"a": "h1", "b": "s"}, {"a": "s", "b": "h0"}]
    with pytest.raises(ValueError, match="directed"):
        gt.from_networkx(nx.DiGraph([("h0", "s")]))
    with pytest.raises(ValueError, match="no hosts"):
        gt.from_networkx(nx.Graph([("a", "b")]))


def test_shapes_are_counted_as_table_1_does() -> None:
    # Zhang et al. (2017), table 1: k/2 (2 + r) switches for k²/2 nodes; k²/4 (2 + 3r) for k³/4.
    for ports, r in ((16, Fraction(1)), (16, Fraction(1, 8)), (32, Fraction(1, 4))):
        two = scenario({"kind": "clos2", "ports": ports, "bisection": str(r)}).fabric
        assert (two.host_count, two.switch_count) == (ports**2 // 2, Fraction(ports, 2) * (2 + r))
        assert two.cable_count == Fraction(ports**2, 2) * (1 + r)
        three = scenario({"kind": "clos3", "ports": ports, "bisection": str(r)}).fabric
        assert (three.host_count, three.switch_count) == (ports**3 // 4, Fraction(ports**2, 4) * (2 + 3 * r))
        assert three.cable_count == Fraction(ports**3, 4) * (1 + 2 * r)


def graph_of(kind: str) -> tuple[Tree, nx.Graph]:
    """A network and the graph of its cables; links of hosts are ten times as fast as those between switches."""
    if kind == "leaf_spine":
        tree = leaf_spine(3, 3, 2, (10_000, 1), (1_000, 5))
        cables = [(f"h{host}", f"leaf{host // 3}") for host in range(9)]
        cables += [(f"leaf{leaf}", f"spine{spine}") for leaf in range(3) for spine in range(2)]
    else:
        tree = clos(kind, 4, Fraction(1), (10_000, 1))
        cables = [tuple(name.split("-")) for name in tree.link_names() if "-" in name and "core" not in name]
        if kind == "clos3":
            # Names of links leave the core layer out where there are many; one node stands for its plane.
            cables += [(f"agg{at}", f"plane{at % 2}") for at in range(8)]
    graph = nx.Graph()
    for a, b in cables:
        is_trunk = kind == "leaf_spine" and "h" not in (a[0], b[0])
        graph.add_edge(a, b, link=(1_000, 5) if is_trunk else (10_000, 1))
    return tree, graph


def reach_by_networkx(graph: nx.Graph, group: Sequence[int]) -> tuple[int, int, int]:
    """Longest route, slowest link and longest delay over every shortest path of every pair of hosts."""
    hops, links = 0, set()
    for a, b in combinations(group, 2):
        for path in nx.all_shortest_paths(graph, f"h{a}", f"h{b}"):
            hops = max(hops, len(path) - 1)
            links |= {graph.edges[edge]["link"] for edge in pairwise(path)}
    return hops, min(rate for rate, _ in links), max(delay for _, delay in links)


@pytest.mark.parametrize("kind", ["leaf_spine", "clos2", "clos3"])
def test_the_reach_of_hosts_is_that_of_all_their_shortest_paths(kind: str) -> None:
    tree, graph = graph_of(kind)
    rng = np.random.default_rng(0)
    for _ in range(20):
        group = rng.permutation(tree.host_count)[: rng.integers(2, 4)].tolist()
        assert tuple(tree.reach([group])) == reach_by_networkx(graph, group), group


def test_the_reach_of_a_custom_network_is_that_of_all_shortest_paths() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        graph = nx.connected_watts_strogatz_graph(7, 4, 0.5, seed=seed)
        graph = nx.relabel_nodes(graph, {node: f"s{node}" for node in graph})
        graph.add_edges_from((f"h{host}", f"s{rng.integers(7)}") for host in range(8))
        for edge in graph.edges:
            graph.edges[edge]["link"] = (int(rng.integers(1, 100)), int(rng.integers(100)))
        cables = [Cable(a, b, *graph.edges[a, b]["link"]) for a, b in graph.edges]
        wiring, _ = wired(cables, None, None, 100)
        assert wiring is not None
        groups = [rng.permutation(8)[: rng.integers(2, 4)].tolist() for _ in range(2)]
        each = [reach_by_networkx(graph, group) for group in groups]
        hops, rates, delays = zip(*each, strict=True)
        assert tuple(wiring.reach(groups)) == (max(hops), min(rates), max(delays)), (seed, groups)


SLOW = {"rate": "1Gbps", "delay": "1ms"}
UNUSED = {
    "nothing": [],
    "host": [{"a": "h4", "b": "s0", **SLOW}],
    "switch": [{"a": "s0", "b": "s2", **SLOW}, {"a": "s2", "b": "s3", **SLOW}],
    "long way round": [{"a": "s0", "b": "s2", **SLOW}, {"a": "s2", "b": "s1", **SLOW}],
}


def with_unused(links: list[dict[str, str]], queue: dict[str, str], job: dict[str, Any], **cluster: Any) -> Scenario:
    """Four hosts on two switches, and links that no message between the four crosses."""
    cables = [{"a": f"h{host}", "b": f"s{host // 2}"} for host in range(4)] + [{"a": "s0", "b": "s1"}, *links]
    layer = {"name": "a", "forward": "1us", "backward": "1us", "parameters": "800kB"}
    return Scenario.from_dict(
        {
            "job": {"train": {"model": {"layers": [layer]}, "workers": 4, "iterations": 2, **job}},
            "cluster": {
                "link": {"rate": "100Gbps", "delay": "1us"},
                "topology": {"kind": "custom", "links": cables},
                "queue": queue,
                **cluster,
            },
            "traffic": {"web": {"flows": [{"start": "0s", "src": "h1", "dst": "h2", "bytes": "10kB"}]}},
            "run": {"engine": "packet", "duration": "1s"},
        }
    )


@pytest.mark.parametrize("unused", [name for name in UNUSED if name != "nothing"])
def test_no_default_counts_a_link_that_no_message_crosses(unused: str) -> None:
    queue = {"kind": "pcn", "threshold": "40pkt", "announced": "10pkt"}
    strict = {"kind": "strict", "bands": 2}
    adaptive = {"priority": {"adaptive": {"policy": "deadline"}}}
    for given in (
        {"queue": queue, "job": {}, "transport": {"kind": "ideal"}},
        {"queue": strict, "job": adaptive},
    ):
        plain, other = (with_unused(UNUSED[name], **given) for name in ("nothing", unused))
        named = [one.to_dict() for one in (plain, other)]
        for one in named:
            del one["cluster"]["topology"]
        assert named[0] == named[1]
        cores = [one.spec()["jobs"][0]["adaptive"] for one in (plain, other)]
        assert cores[0] == cores[1]
        assert estimate(plain).packet_hops == estimate(other).packet_hops
        said = [{one.name: one.value for one in premises_of(s) if one.name.startswith("link")} for s in (plain, other)]
        assert said[0] == said[1] == {"link rate": "100 Gbit/s", "link delay": "1 us"}


def test_the_window_of_the_ideal_transport_is_twice_a_round_trip_of_the_longest_used_route() -> None:
    given = with_unused(UNUSED["host"], {"kind": "fifo"}, {}, transport={"kind": "ideal"})
    # Three links at 100 Gbit/s there and back, 1 us each: 1502-byte packets and 54-byte acknowledgements.
    segment = given.segment_bytes
    packet_ps, ack_ps = ((segment + 54) * 80, 54 * 80)
    round_ps = 3 * (2 * 1_000_000 + packet_ps + ack_ps)
    assert given.spec()["cluster"]["transport"]["window_bytes"] == 2 * -(-round_ps // packet_ps) * segment


def test_a_job_on_one_leaf_has_the_window_of_a_star() -> None:
    inside = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 8, "spines": 1, "fabric_link": SLOW}
    windows = [
        scenario(topology, "packet", transport={"kind": "ideal"}).spec()["cluster"]["transport"]["window_bytes"]
        for topology in (inside, {"kind": "star", "hosts": 8})
    ]
    assert windows[0] == windows[1]


def test_gpus_of_one_node_do_not_cross_its_network_cards() -> None:
    nodes = Nodes(star(4, (1_000, 50)), 4, 2, (9_000, 3))
    assert tuple(nodes.reach([(0, 1, 2, 3)])) == (2, 9_000, 3)
    assert tuple(nodes.reach([(0, 4)])) == (2, 1_000, 50)
    assert tuple(nodes.reach([(0, 1, 4)])) == (2, 1_000, 50)
