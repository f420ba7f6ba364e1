"""Schedules that plan: keys and defaults, systems by name, and figures against closed forms."""

import json
import random
import re

import pytest

from gradtide import Scenario, _core, compare, run
from gradtide.errors import ScenarioError
from gradtide.studies.schedules import SYSTEMS, parse_schedule

MS = 10**9

# Forward and backward of 1 ms each, so an iteration computes for 8 ms; 1 MB is 1.4 ms of a ring of 8 on 10 Gbit/s.
LAYERS = [{"name": f"l{i}", "forward": "1ms", "backward": "1ms", "parameters": "1MB"} for i in range(4)]


def scenario(engine: str = "fluid", **schedule: object) -> Scenario:
    data = {
        "job": {"train": {"model": {"layers": LAYERS}, "workers": 8, "schedule": schedule}},
        "run": {"engine": engine},
        "cluster": {"link": {"delay": "0us"}},
    }
    return Scenario.from_dict(data)


@pytest.mark.parametrize(
    ("engine", "schedule", "fusion", "barrier", "depth"),
    [
        ("fluid", {}, "25MiB", True, 1),
        ("fluid", {"order": "tac"}, "25MiB", True, 1),
        ("fluid", {"order": "caramel"}, "adaptive", False, "adaptive"),
        ("fluid", {"order": "edf"}, "adaptive", False, "adaptive"),
        ("fluid", {"order": "optimal", "barrier": True, "depth": 4}, "adaptive", True, 4),
        ("fluid", {"order": "caramel", "first_fusion": "1MiB"}, "25MiB", False, "adaptive"),
        ("fluid", {"order": "caramel", "fusion": "0B"}, "0B", False, "adaptive"),
        ("fluid", {"depth": "adaptive", "fusion": "adaptive"}, "adaptive", True, "adaptive"),
    ],
)
def test_defaults_are_those_of_the_order_and_are_written_out(
    engine: str, schedule: dict[str, object], fusion: str, barrier: bool, depth: object
) -> None:
    made = scenario(engine, **schedule)
    written = made.to_dict()["job"]["train"]["schedule"]
    assert (written["fusion"], written["barrier"], written["depth"]) == (fusion, barrier, depth)
    again = Scenario.from_toml(made.to_toml())
    assert again == made
    assert again.spec() == made.spec()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_the_same_whatever_the_scenario_says(name: str) -> None:
    plain = scenario("fluid").replace(**parse_schedule(name))
    crowded = scenario("fluid", fusion="1MB", chunk="50kB", barrier=True, depth=2, credit=3)
    assert crowded.replace(**parse_schedule(name)).spec()["jobs"] == plain.spec()["jobs"]


def test_systems_take_extras() -> None:
    assert parse_schedule("p3+chunk=1MB+credit=2")["chunk"] == "1MB"
    assert parse_schedule("caramel+depth=1")["depth"] == 1
    assert parse_schedule("caramel+depth=adaptive+fusion=adaptive")["fusion"] == "adaptive"
    for text in ("ddp+depth=deep", "ddp+credit", "caramel+batch=1"):
        with pytest.raises(ValueError, match="bytescheduler"):
            parse_schedule(text)


def test_credit_with_several_bands_is_refused() -> None:
    several = scenario("packet", credit=2).replace(priority=["high", "low"])
    with pytest.raises(ScenarioError) as caught:
        several.spec()
    assert [fault["code"] for fault in caught.value.errors] == ["GT090"]
    assert "credit = 1" in caught.value.errors[0]["hint"]


def test_figures_of_a_chain_by_hand() -> None:
    """Four transfers of t = 14 · 8 Mbit / (8 · 10 Gbit/s) = 1.4 ms.

    Alone, first in, first out with a barrier: the first is complete at 5 ms, and the channel is never idle from there
    on: 5 + 4 · 1.4 = 10.6 ms. Without one, layer 0's is through at 10.6 and its forward pass waits for it, no other:
    the same. By priority, what is complete later overtakes: at 6.4 layer 2's begins, at 7.8 layer 1's, and layer 0's,
    complete at 8, at 9.2; again 10.6. No order is faster: layer 0's update at 8 ms is read at 0, and Horn's bound over
    all four is 5 + 5.6 - 3 = 7.6 ms for the last read; C = 8 and the path of layer 0 is 8 + 1.4 = 9.4 ms.
    """
    rows = {
        order: run(scenario(order=order, fusion="0B", barrier=barrier)).job
        for order, barrier in (("fifo", True), ("priority", False))
    }
    for row in rows.values():
        assert row["iteration_time_ms"]["mean"] == pytest.approx(10.6, abs=1e-9)
        assert row["iteration_time_ms"]["p95"] == pytest.approx(10.6, abs=1e-9)
        assert row["lower_bound_ms"] == pytest.approx(9.4, abs=1e-9)
    # In chunks of a tenth, layer 0's 1.4 ms wait for one of 0.14 ms: 8 + 1.4, and what is left of a chunk at 8 ms.
    # Chunks have begun at 5 + 0.14 k; the one under way at 8 ms ends at 8.08.
    chunked = run(scenario(order="priority", fusion="0B", barrier=False, chunk="100kB")).job
    assert chunked["iteration_time_ms"]["mean"] == pytest.approx(9.48, abs=1e-9)
    deadline = run(scenario(order="edf", fusion="0B", chunk="100kB")).job
    assert deadline["iteration_time_ms"]["mean"] == pytest.approx(9.48, abs=1e-9)
    assert run(scenario(order="optimal")).job["iteration_time_ms"]["mean"] <= 9.48 + 1e-9


def test_credit_hides_what_a_chunk_waits_before_its_first_byte() -> None:
    """Ten chunks of a layer of 2 MB, 50 us each before the first byte: one at a time, each adds its own.

    A ring of two sends 200 kB in two steps of 80 us. Two at a time, their steps take turns on the link, so one is
    through 80 us before the other, and the next has waited for its 50 us before the link is free: only the first wait
    is left.
    """
    layer = {"name": "fc", "forward": "1ms", "backward": "1ms", "parameters": "2MB"}

    def time_ms(credit: int) -> float:
        data = {
            "job": {
                "train": {
                    "model": {"layers": [layer]},
                    "workers": 2,
                    "schedule": {"chunk": "200kB", "credit": credit, "overhead": "50us", "order": "priority"},
                }
            },
            "cluster": {"link": {"delay": "0us"}},
            "run": {"engine": "fluid"},
        }
        return float(run(Scenario.from_dict(data)).job["iteration_time_ms"]["mean"])

    assert time_ms(1) == pytest.approx(2 + 10 * 0.21, abs=1e-6)
    assert time_ms(2) == pytest.approx(2 + 0.05 + 10 * 0.16, abs=1e-6)


def test_time_on_the_network_is_counted_once() -> None:
    """With a credit of four, N is the time for which anything is under way: never more than the iteration."""
    one, four = (run(scenario("fluid", order="priority", fusion="0B", chunk="100kB", credit=n)).job for n in (1, 4))
    assert four["comm_ms"] == pytest.approx(one["comm_ms"], rel=1e-6)
    assert four["lower_bound_ms"] <= four["iteration_time_ms"]["mean"] + 1e-9


def test_figures_of_a_comparison() -> None:
    base = scenario("fluid").replace(link_delay="10us")
    result = compare(base, schedules=["ddp", "horovod", "p3", "bytescheduler", "caramel", "edf", "optimal", "tac"])
    rows = {row["schedule"]: row for row in result.rows}
    assert list(rows)[:7] == ["ddp", "horovod", "p3", "bytescheduler", "caramel", "edf", "optimal"]
    best = min(row["iteration_time_us"] for row in rows.values())
    # The channel that it was chosen on has lines for costs, and the credit of another is not among its candidates.
    assert rows["optimal"]["iteration_time_us"] <= 1.001 * min(
        row["iteration_time_us"] for name, row in rows.items() if name != "bytescheduler"
    )
    for row in rows.values():
        assert row["iteration_time_us"] >= best
        assert row["lower_bound_us"] <= row["iteration_time_us"] * (1 + 1e-12)
        assert row["gain_percent"] == pytest.approx(
            100 * (rows["ddp"]["iteration_time_us"] / row["iteration_time_us"] - 1)
        )
        assert row["iteration_time_p95_us"] == pytest.approx(row["iteration_time_us"])
    assert json.loads(json.dumps(result.summary))["rows"][0]["lower_bound_ms"] > 0


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_schedules_that_plan_run_beside_others(engine: str) -> None:
    """Two jobs on one network, and workers that differ: releases and cost models are of a job alone, the run is not."""
    data = {
        "job": {
            "a": {
                "model": {"layers": LAYERS},
                "workers": 3,
                "iterations": 3,
                "schedule": {"order": "caramel"},
                "compute": {"noise": 0.1, "overlap_slowdown": 1.2},
            },
            "b": {"model": {"layers": LAYERS}, "workers": 3, "iterations": 3, "schedule": {"order": "edf"}},
        },
        "cluster": {"topology": {"kind": "star", "hosts": 3}},
        "run": {"engine": engine, "duration": "1s"},
    }
    result = run(Scenario.from_dict(data))
    for job in result.summary["jobs"].values():
        assert job["iterations"] == 3
        assert job["lower_bound_ms"] <= job["iteration_time_ms"]["mean"] * (1 + 1e-9)


def test_jobs_are_tried_in_one_anothers_orders():
    jobs = {
        name: {"model": {"layers": LAYERS}, "workers": 2, "schedule": {"order": order}}
        for name, order in (("a", "arbitrary"), ("b", "random"))
    }
    result = run(Scenario.from_dict({"job": jobs}))
    assert {row["order"] for row in result.bandwidth.to_dicts()} == {"fifo", "arbitrary", "random"}


# ── buckets and releases of a plan ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["fluid"])
@pytest.mark.parametrize("seed", range(6))
def test_what_caramel_plans_takes_the_same_times_when_it_is_given(engine: str, seed: int) -> None:
    draw = random.Random(seed)
    layers = [
        {"name": f"l{i}", "forward": f"{draw.randint(1, 9)}ms", "backward": f"{draw.randint(1, 9)}ms"}
        | {"parameters": f"{draw.choice((0, 20, 400, 3000))}kB" if i else "1MB"}
        for i in range(12)
    ]
    data = {
        "job": {"train": {"model": {"layers": layers}, "workers": 2, "schedule": {"order": "caramel", "depth": 1}}},
        "run": {"engine": engine},
        "cluster": {"link": {"rate": "500Mbps"}},
    }
    spec = Scenario.from_dict(data).spec()
    buckets = [
        {"layers": members, "release_ps": release_ps}
        for members, release_ps in _core.planned(json.dumps({**spec, "traffic": []}), 0)
    ]
    assert any(bucket["release_ps"] for bucket in buckets)
    (job,) = spec["jobs"]
    job["schedule"] = {**job["schedule"], "order": {"kind": "planned", "buckets": buckets}}
    given = _core.run(json.dumps({**spec, "traffic": []}))
    own = _core.run(json.dumps({**Scenario.from_dict(data).spec(), "traffic": []}))
    assert given.transfers.to_csv() == own.transfers.to_csv()
    assert given.iterations.to_csv() == own.iterations.to_csv()


def released(releases: list[str], **more: object) -> Scenario:
    schedule = {"order": "file", "ranking": ["l3", "l1", "l2", "l0"], "buckets": [1, 2, 1], "barrier": False, **more}
    return scenario(releases=releases, **{key: value for key, value in schedule.items() if value is not None})


def test_a_bucket_is_sent_from_its_gate_on() -> None:
    # Forward calls l0 to l3 at 0 to 3 ms; the gradients of l3 to l0 are there at 5 to 8 ms, compute takes 8 ms. A
    # release beyond the bucket's own read is opened by the compute that waits.
    made = released(["", "backward l0", "forward l2"])
    rows = {row["layer"]: row for row in run(made).transfers.to_dicts() if row["iteration"] == 1}
    first = min(row["ready_us"] for row in rows.values())
    ready = {name: row["ready_us"] - first for name, row in rows.items()}
    assert sorted(ready.values()) == [0, 2000, 3000]
    held = next(row for row in rows.values() if row["ready_us"] == first)
    assert held["start_us"] - held["ready_us"] >= 3000 + 2000  # until l2 is called in the next iteration
    assert Scenario.from_toml(made.to_toml()).spec() == made.spec()
    assert run(released(["forward l3"] * 3)).iteration_time >= run(released([""] * 3)).iteration_time


def test_gates_of_a_graph_are_refused() -> None:
    job = {"model": "tictac_alexnet_v2", "workers": 2, "compute": {"order": "caramel"}}
    schedule = {"order": "file", "ranking": ["a"], "buckets": [16], "releases": ["forward a"]}
    with pytest.raises(ScenarioError, match="the model is a graph of ops, which has no passes"):
        Scenario.from_dict({"job": {"train": {**job, "schedule": schedule}}})


@pytest.mark.parametrize(
    ("releases", "more", "says"),
    [
        ([""], {}, "1 release events for 3 buckets"),
        (["", "", "sideways l1"], {}, "`sideways` is not a pass"),
        (["", "", "forward l9"], {}, 'the model has no layer "l9"'),
        (["", "", "forward"], {}, 'the model has no layer ""'),
        (["", "", "backward l1"], {"in_turn": True}, "`in_turn` and `releases` contradict"),
        (["", "", ""], {"order": "fifo", "ranking": None}, 'has no effect with order = "fifo"'),
    ],
)
def test_gates_that_mean_nothing_are_refused(releases: list[str], more: dict[str, object], says: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(says)):
        released(releases, **more)
