"""What a seed decides: `Scenario.drawn` knows it, and studies of many seeds run one where that is nothing.

That other seeds change nothing then is a relation of every kind of scenario ("another seed changes nothing" in
tests/attack/relations.py). Here are the scenarios in which they must change something, and the studies.
"""

from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide.studies.store import Store
from gradtide.studies.sweep import estimated
from gradtide.studies.tenants.bands import tenants

LAYERS = [
    {"name": f"l{index}", "forward": "100us", "backward": f"{200 + index}us", "parameters": f"{size}B"}
    for index, size in enumerate((900_000, 4_000, 300_000, 50_000))
]
JOB = {"model": {"layers": LAYERS}, "workers": 4, "iterations": 3}
SPINES = {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 4}}
FLOWS = [{"start": "0s", "src": f"h{src}", "dst": f"h{src + 4}", "bytes": "3MB"} for src in range(4)]
PACKETS = {"engine": "packet", "duration": "1s", "start_jitter": "0us"}
GRID = [
    {"a": f"{x}{y}", "b": other} for x, y, other in (("a", 0, "a1"), ("a", 0, "b0"), ("a", 1, "b1"), ("b", 0, "b1"))
]
DRAWN: dict[str, dict[str, Any]] = {
    "noise": {"job": {"train": {**JOB, "compute": {"noise": 0.1}}}},
    "one slow worker": {"job": {"train": {**JOB, "compute": {"straggler": {"factor": 2.0}}}}},
    "a worker that is slow at times": {
        "job": {"train": {**JOB, "compute": {"straggler": {"worker": 0, "factor": 2.0, "probability": 0.5}}}}
    },
    "random order": {"job": {"train": {**JOB, "schedule": {"order": "random", "fusion": "0B"}}}},
    "random order of pulls": {
        "job": {
            "train": {
                **JOB,
                "collective": {"kind": "ps", "ps": {"servers": 1, "pull": "start"}},
                "schedule": {"order": "random"},
            }
        }
    },
    "hosts": {
        "job": {"train": {**JOB, "placement": "random"}},
        "cluster": {**SPINES, "routing": "spread"},
    },
    "arrivals": {
        "traffic": {"web": {"sizes": "web-search", "load": 0.2}},
        "cluster": {"topology": {"kind": "star", "hosts": 4}},
        "run": {"duration": "20ms"},
    },
    "routes of a leaf-spine": {"traffic": {"web": {"flows": FLOWS}}, "cluster": SPINES, "run": {"duration": "1s"}},
    "routes of a custom network": {
        "traffic": {"web": {"flows": [{**FLOWS[0], "src": "h0", "dst": "h1"}, {**FLOWS[0], "src": "h2", "dst": "h3"}]}},
        "cluster": {
            "topology": {
                "kind": "custom",
                "links": [*({"a": f"h{host}", "b": ("a0", "b1")[host % 2]} for host in range(4)), *GRID],
            }
        },
        "run": {"duration": "1s"},
    },
    "starts": {
        "traffic": {"web": {"flows": FLOWS[:1]}},
        "cluster": {"topology": {"kind": "star", "hosts": 5}},
        "run": {**PACKETS, "start_jitter": "10us"},
    },
    "RED": {
        "traffic": {"web": {"incast": {"dst": "h0", "senders": 4, "bytes": "1MB", "every": "1s"}}},
        "cluster": {
            "topology": {"kind": "star", "hosts": 5},
            "queue": {"kind": "red", "min": "5pkt", "max": "15pkt", "capacity": "200pkt", "weight": 0.1},
        },
        "run": PACKETS,
    },
}
"""Scenarios of which a seed decides one thing, and that has an effect."""
NOT_DRAWN: dict[str, dict[str, Any]] = {
    "a straggler that is one worker's": {
        "job": {"train": {**JOB, "compute": {"straggler": {"worker": 1, "factor": 2.0}}}}
    },
    "a straggler of factor 1": {"job": {"train": {**JOB, "compute": {"straggler": {"factor": 1.0}}}}},
    "ranks below one leaf": {"job": {"train": JOB}, "cluster": SPINES},
    "routes by destination": {
        "traffic": {"web": {"flows": FLOWS}},
        "cluster": {**SPINES, "routing": "dmodk"},
        "run": {"duration": "1s"},
    },
    "messages of packets": {"job": {"train": JOB}, "run": {"engine": "packet"}},
}


def ends(data: dict[str, Any], seed: int) -> Any:
    run = gt.run(data, seed=seed)
    return run.iterations.to_dicts(), run.flows.to_dicts()


@pytest.mark.parametrize("name", DRAWN)
def test_what_a_seed_decides_is_known_and_changes_the_run(name: str) -> None:
    assert len(gt.Scenario.from_dict(DRAWN[name]).drawn) == 1
    assert any(ends(DRAWN[name], seed) != ends(DRAWN[name], 0) for seed in (1, 2, 3))


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_a_seed_that_decides_nothing_changes_nothing(name: str) -> None:
    assert gt.Scenario.from_dict(NOT_DRAWN[name]).drawn == ()
    assert ends(NOT_DRAWN[name], 1) == ends(NOT_DRAWN[name], 0)


BESIDE = {
    "job": {"train": JOB},
    "traffic": {"web": {"flows": [{**FLOWS[0], "src": f"h{src}", "dst": "h3"} for src in range(3)]}},
    "run": {"duration": "50ms"},
}


def test_many_seeds_run_once_where_they_decide_nothing() -> None:
    one, many = tenants(BESIDE), tenants(BESIDE, seeds=range(5))
    assert many.seeds == [0]
    assert many.rows == one.rows
    assert many.summary["headline"] == one.summary["headline"]
    drawn = tenants({**BESIDE, "job": {"train": {**JOB, "compute": {"noise": 0.1}}}}, seeds=range(2))
    assert drawn.seeds == [0, 1]


@pytest.mark.parametrize(
    "keys", [{"seeds": 4, "grid": {"job.train.workers": [2]}}, {"grid": {"run.seed": [5, 6, 7, 8]}}]
)
def test_a_study_over_seeds_runs_once_where_they_decide_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    noisy = {"job": {"train": {**JOB, "compute": {"noise": 0.1}}}}
    for scenario, runs in (({"job": {"train": JOB}}, 1), (noisy, 4)):
        study = {"sweep": {"scenario": scenario, **keys}}
        assert estimated(study)["runs_to_do"] == runs
        path = tmp_path / f"{runs}.store"
        result = gt.sweep(study, store=path)
        assert [row["state"] for row in result.rows] == ["finished"] * 4
        with Store(path) as store:
            assert len(store) == runs


def test_an_answer_rests_on_a_seed_that_decides_something() -> None:
    def premises(scenario: dict[str, Any], **keys: Any) -> list[str]:
        return [one.name for one in gt.run(scenario, **keys).answer.premises]

    assert "seed" not in premises({"job": {"train": JOB}})
    assert "seed" in premises({"job": {"train": JOB}}, seed=3)
    assert "seed" in premises(DRAWN["noise"])


@pytest.mark.parametrize(("scheduler", "named"), [("tic", set()), ("tac", {"ties"}), ("random", {"seed"})])
def test_the_answer_of_an_order_rests_on_what_its_scheduler_reads(scheduler: str, named: set[str]) -> None:
    recv = {"id": 0, "kind": "recv", "time": 2, "bytes": 8, "inputs": []}
    graph = {"kind": "graph", "target": 1, "ops": [recv, {"id": 1, "kind": "comp", "time": 1, "inputs": [0]}]}
    premises = {one.name for one in gt.order(graph, scheduler).answer.premises}
    assert premises & {"ties", "seed"} == named
