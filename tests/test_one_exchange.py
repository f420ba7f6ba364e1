"""An exchange takes the same time in `run`, `collectives` and `buy`, and `workers` are those that compute."""

import pytest

import gradtide as gt
from gradtide.counts import ALL_REDUCES

LAYER = {"name": "all", "forward": "1ps", "backward": "1ps", "parameters": "10MB"}
HOST = {"message": "15us", "stages": {"copy": "6.6Gbps", "serialise": "6.6Gbps", "receive": "6.6Gbps"}}
NODE = {"gpus": 4, "nics": 4, "scale_up": {"rate": "50GBps", "delay": "1us"}}
CABLES = [{"a": f"h{host}", "b": "leaf", **({"rate": "2Gbps"} if host == 3 else {})} for host in range(8)]
CLUSTERS = {
    "star": {},
    "stages": {"host": HOST},
    "leaf-spine": {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "bisection": "1/2"}},
    "nodes": {"node": NODE},
    "shared cards": {"node": {**NODE, "nics": 2, "launch": "11us"}},
    "a slow card": {"node": NODE, "topology": {"kind": "custom", "links": CABLES}},
}
CHANGES = [
    {},
    {"schedule": {"depth": 8}},
    {"schedule": {"overhead": "40us"}},
    {"schedule": {"chunk": "1MB"}},
    {"schedule": {"chunk": "1MB", "credit": 2, "overhead": "40us", "depth": 4}},
    {"collective": {"reduction_rate": "2.5GB/s"}},
    {"collective": {"reduction_rate": "2.5GB/s"}, "schedule": {"depth": 8, "overhead": "40us"}},
]


def scenario(kind, cluster, change):
    job = {"model": {"layers": [LAYER]}, "workers": 8, "iterations": 1, **change}
    job["collective"] = {"kind": kind, **change.get("collective", {})}
    job["schedule"] = {"fusion": "0B", **change.get("schedule", {})}
    link = {"rate": "10Gbps", "delay": "25us"}
    return {"job": {"train": job}, "cluster": {"link": link, **CLUSTERS[cluster]}, "run": {"engine": "fluid"}}


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_exchange_takes_in_a_study_what_it_takes_in_a_run(cluster, change):
    """The model computes two picoseconds."""
    for kind in ("ring", "halving_doubling") if change else ALL_REDUCES:
        asked = scenario(kind, cluster, change)
        iteration_ms = gt.run(asked).job["iteration_time_ms"]["mean"]
        [row] = gt.collectives(asked, collectives=[kind], sizes=["10MB"]).rows
        assert row["exchange_us"] / 1e3 == pytest.approx(iteration_ms, abs=1e-8)
        if cluster == "star":
            bought = gt.buy(asked, fabrics=["star"], collectives=[kind]).rows
            assert bought[0]["iteration_ms"] == pytest.approx(bought[0]["exchange_ms"], abs=1e-8)
            assert bought[0]["iteration_ms"] == pytest.approx(iteration_ms, abs=1e-8)


def test_a_depth_is_part_of_a_candidate():
    asked = scenario("ring", "stages", {})
    rows = gt.collectives(asked, collectives=["ring", "ring+depth=8"], sizes=[1, "10MB"]).rows
    times = {(row["collective"], row["bytes"]): row["exchange_us"] for row in rows}
    assert len(times) == 4
    deep = gt.run(scenario("ring", "stages", {"schedule": {"depth": 8}})).job["iteration_time_ms"]["mean"]
    assert times["ring+depth=8", 10_000_000] / 1e3 == pytest.approx(deep, abs=1e-8)
    assert times["ring+depth=8", 10_000_000] < times["ring", 10_000_000]
    [bought] = gt.buy(asked, fabrics=["star"], collectives=["ring+depth=8"]).rows
    assert bought["iteration_ms"] == pytest.approx(deep, abs=1e-8)


@pytest.mark.parametrize("placement", ["packed", "distributed", "separate"])
@pytest.mark.parametrize("pull", ["update", "start"])
def test_workers_are_those_that_compute(placement, pull):
    servers = {"servers": 1, "placement": placement, "pull": pull}
    job = {"model": "alexnet", "workers": 4, "iterations": 1, "collective": {"ps": servers}, "compute": {"batch": 32}}
    asked = gt.Scenario.from_dict({"job": {"train": job}, "run": {"engine": "fluid"}})
    result = gt.run(asked)
    computing = 4 if placement == "separate" else 3
    assert (result.job["workers"], result.job["servers"]) == (computing, 1)
    each = 32 / (result.job["iteration_time_ms"]["mean"] / 1e3)
    assert result.job["samples_per_s"] == pytest.approx(computing * each)
    rows = gt.compare(asked, schedules=["fifo"]).rows if pull == "update" else []
    assert {row["workers"] for row in rows} <= {computing}
    premises = {premise.name: premise.value for premise in result.answer.premises}
    assert (premises["workers"], premises["parameter servers"]) == (str(computing), "1")


@pytest.mark.parametrize("workers", [8, 6])
def test_trees_are_offered_where_nodes_are_equally_full(workers):
    asked = scenario("ring", "nodes", {})
    asked["job"]["train"]["workers"] = workers
    names = {row["collective"] for row in gt.collectives(asked, sizes=["1MB"]).rows}
    assert names >= {"ring", "halving_doubling", "ps+packed"}
    assert ("tree" in names) == (workers == 8)
    assert not names & {"single_ring", "binary_tree"}
