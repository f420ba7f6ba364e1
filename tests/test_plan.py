"""Plans: what is found, what it is compared with, plan.json and what is refused."""

import itertools
import json
import os
import random
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gradtide as gt
from gradtide import _core, report
from gradtide.counts import ALL_REDUCES
from gradtide.errors import Interrupted
from gradtide.estimate import Limits
from gradtide.intervals import student_t
from gradtide.measured import pairs, saving_errors
from gradtide.report import RunFolderError
from gradtide.runtime import LEVELS, RUNTIMES, of_torch
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from gradtide.studies import plan as study
from gradtide.studies import search
from gradtide.studies.channels import Channel, fit
from gradtide.studies.folder import FolderError
from gradtide.studies.keep import Kept
from gradtide.studies.plan import found
from gradtide.studies.plan.result import _chosen as chosen

MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "validation" / "testbed"))
import plans as testbed_plans  # noqa: E402 - a script of the repository, not of a package

CASES = testbed_plans.cases()
TEN_LAYERS = ROOT / "scenarios" / "ten-layers.toml"


def job(rows: list[tuple[float, float, float]], **more: Any) -> dict[str, Any]:
    """Return a scenario of layers of (forward ms, backward ms, MiB) on two workers at 1 Gbit/s."""
    layers = [
        {"name": f"l{i}", "forward": f"{f}ms", "backward": f"{b}ms", "parameters": f"{round(m * MIB)}B"}
        for i, (f, b, m) in enumerate(rows)
    ]
    return {
        "job": {"train": {"model": {"name": "m", "layers": layers}, "workers": 2, "iterations": 4, **more}},
        "cluster": {"link": {"rate": "1Gbps", "delay": "50us"}},
    }


SIX = job([(8, 16, 4)] * 6)
on_cpus = partial(gt.plan, device="cpu")


# ── what is found ─────────────────────────────────────────────────────────────────────────────────────────


def small_scenario(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    count = draw.randint(2, 5)
    rows = [
        (draw.randint(1, 40), draw.randint(2, 80), draw.choice([0, 0.25, 0.5, 1, 2, 4, 8, 16])) for _ in range(count)
    ]
    rows[draw.randrange(count)] = (5, 10, draw.choice([4, 8]))
    data = job(rows, workers=draw.choice([2, 3, 4, 8]))
    rate, delay = draw.choice(["100Mbps", "500Mbps", "1Gbps", "10Gbps"]), draw.choice(["1us", "50us", "1ms"])
    data["cluster"]["link"] = {"rate": rate, "delay": delay}
    data["run"] = {"timeline": 0}
    return data


def exhaustive_ms(scenario: Scenario, overhead_ps: int) -> float:
    """Return the fastest iteration of every way to send: 2^(n-1) contiguous partitions of the n layers with parameters,
    times order and barrier, times no chunk and every power of two from 256 KiB to 16 MiB that cuts something, times
    every all-reduce and depth that the engine has for so many workers. DDP by itself (first come first served with the
    barrier) has no scheduler, so no overhead, no chunks and the scenario's depth; each of `depth` parts is a message.
    """
    spec = scenario.spec()
    (one,) = spec["jobs"]
    workers, sizes = len(one["hosts"]), [row["parameter_bytes"] for row in one["layers"]]
    with_bytes = [index for index, size in enumerate(sizes) if size]
    kinds, depths = ["ring"], [1]
    if spec["run"]["engine"] == "fluid":
        depths = [1, 2, 4, 8]
        if workers > 2:
            kinds += ["tree"] + ["halving_doubling"] * (workers & (workers - 1) == 0)
    best = float("inf")
    for (order, barrier), kind, depth in itertools.product(
        (("fifo", True), ("priority", True), ("fifo", False), ("priority", False)), kinds, depths
    ):
        is_ddp = order == "fifo" and barrier
        if is_ddp and depth > 1:
            continue
        for count in range(len(with_bytes)):
            for cuts in itertools.combinations(with_bytes[1:], count):
                edges = [0, *cuts, len(sizes)]
                counts = [high - low for low, high in itertools.pairwise(edges)]
                largest = max(sum(sizes[low:high]) for low, high in itertools.pairwise(edges))
                chunks = [None, *(2**power for power in range(18, 25))] if order == "priority" else [None]
                for chunk in chunks:
                    if chunk is not None and chunk >= largest:
                        continue
                    one["schedule"].update(
                        order={"kind": order, **({"queues": None} if order == "priority" else {})},
                        fusion={"kind": "buckets", "layer_counts": counts},
                        chunk_bytes=chunk,
                        barrier=barrier,
                    )
                    one["collective"].update(algorithm={"kind": kind}, depth=depth)
                    one["schedule"]["overhead_ps"] = 0 if is_ddp else depth * overhead_ps
                    summary = json.loads(_core.run(json.dumps(spec)).summary_json)
                    times = summary["jobs"][0]["iteration_time_ps"]
                    best = min(best, sum(times) / len(times) / 1e9)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_plan_is_within_two_percent_of_exhaustive_search(seed: int) -> None:
    scenario = Scenario.from_dict(small_scenario(seed))
    result = gt.plan(scenario, device="ideal", smallest=0, noise=0, worth=0, overhead="1ms")
    best_ms = exhaustive_ms(scenario, 10**9)
    # The best of all levels is what was searched; which level pays is another question.
    found_ms = min(row["iteration_ms"] for row in result.rows)
    assert found_ms <= 1.02 * best_ms, (found_ms, best_ms)
    # The bound holds for what nobody searched, too: half a picosecond a rounding.
    assert result.summary["lower_bound_ms"] <= best_ms * (1 + 1e-9)


def test_what_ddp_does_by_itself_takes_what_one_channel_takes() -> None:
    """DDP closes a bucket with the layer that reaches its cap: fc9 (4 MiB ≥ 1), fc8 to fc2 (28 ≥ 25), fc1 and fc0.

    The second is ready after 80 + 8·16 ms and from then on the channel sends 9 layers without a pause: the iteration
    ends after 208 ms + 9 · 4 MiB · 8 / (0.956 Gbit/s), and the delay of two ring steps over two cables, of 2 messages.
    """
    result = on_cpus(TEN_LAYERS, noise=0)
    expected_ms = 80 + 8 * 16 + 9 * 4 * MIB * 8 / 0.956e6 + 2 * 2 * 2 * 50e-3
    assert result.baseline.iteration_time * 1e3 == pytest.approx(expected_ms, abs=1e-6)
    assert [row["buckets"] for row in result.rows if row["name"] == "ddp"] == [3]


def test_ten_layers_are_worth_a_scheduler_and_its_gain_is_what_theory_says() -> None:
    """Without the barrier the channel is idle only from the last bucket's arrival through its layers' passes back: at
    least 8 + 16 ms for one layer. It sends 40 MiB and pays 1 ms for each message; what else it waits for is little."""
    result = on_cpus(TEN_LAYERS)
    (row,) = [row for row in result.rows if row["chosen"]]
    assert (result.plan.level, row["order"], row["barrier"]) == ("crossiter", "priority", False)
    wire_ms = 40 * MIB * 8 / 0.956e6
    assert row["iteration_ms"] >= wire_ms + row["messages"] + 8 + 16
    assert row["iteration_ms"] <= 1.03 * (wire_ms + row["messages"] + 8 + 16)
    low, high = result.plan.predicted["gain_interval_percent"]
    assert low < result.plan.predicted["gain_percent"] < high
    assert any("gradtide.torch.wrap" in sentence for sentence in result.plan.advice)


def test_a_small_model_is_left_alone() -> None:
    """0.8 MB in 50 layers is one message of DDP's, and a scheduler's message costs 1 ms of 13."""
    result = on_cpus(job([(0.045, 0.09, 0.8e6 / 50 / MIB)] * 50))
    assert result.plan.level == "none"
    assert result.scenario.jobs[0].schedule.barrier
    assert result.plan.advice[0].startswith("Leave DDP alone")
    assert result.plan.predicted["iteration_time_ms"] == result.plan.predicted["baseline_iteration_time_ms"]


def test_what_the_plan_has_to_save_decides() -> None:
    assert on_cpus(SIX, worth=60).plan.level == "none"
    assert on_cpus(SIX, level="buckets").plan.level == "buckets"


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60), st.integers(0, 12)), min_size=1, max_size=8).filter(
        lambda rows: any(row[2] for row in rows)
    ),
    schedule=st.sampled_from([{}, {"fusion": "0B"}, {"order": "priority", "barrier": False, "chunk": "2MiB"}]),
    noise=st.sampled_from([0.0, 0.03]),
)
@example(rows=[(1, 9, 2), (1, 1, 1)], schedule={"order": "priority", "barrier": False, "chunk": "2MiB"}, noise=0.0)
def test_a_plan_is_never_worse_than_its_baseline_and_runs_again_exactly(
    rows: list[tuple[int, int, int]], schedule: dict[str, Any], noise: float
) -> None:
    base = Scenario.from_dict(job([(f, b, m) for f, b, m in rows], schedule=schedule))
    result = on_cpus(base, noise=noise, seeds=2 if noise else None)
    predicted = result.plan.predicted
    assert predicted["baseline"] == ("scenario" if schedule else "ddp") or len(result.rows) < 5
    assert gt.run(result.plan.on(base)).job["iteration_time_ms"]["mean"] == predicted["iteration_time_ms"]
    assert gt.run(result.scenario).job["iteration_time_ms"]["mean"] == predicted["iteration_time_ms"]
    if noise == 0:
        assert predicted["iteration_time_ms"] <= predicted["baseline_iteration_time_ms"]
        assert predicted["jitter_interval_percent"] is None
    assert result.summary["lower_bound_ms"] <= predicted["iteration_time_ms"] * (1 + 1e-9)


def test_the_scenarios_own_random_and_file_orders_are_baselines() -> None:
    ranking = [f"l{i}" for i in (3, 1, 0, 2, 5, 4)]
    for schedule in ({"order": "random"}, {"order": "file", "ranking": ranking}, {"order": "priority", "queues": 2}):
        base = Scenario.from_dict(job([(8, 16, 4)] * 6, schedule={**schedule, "fusion": "0B"}))
        left = on_cpus(base, worth=90, noise=0)
        assert left.plan.level == "none"
        assert gt.run(left.plan.on(base)).iteration_time == gt.run(base).iteration_time


def test_threads_change_no_plan() -> None:
    one, two = (on_cpus(SIX, jobs=jobs, seeds=2) for jobs in (1, 2))
    assert one.plan == two.plan
    assert one.candidates == two.candidates


def test_a_model_is_planned_on_a_cluster() -> None:
    cluster = {"cluster": {"link": {"rate": "25Gbps"}, "topology": {"kind": "star", "hosts": 4}}}
    result = on_cpus("resnet50", cluster=cluster, seeds=2)
    assert (result.plan.model, result.plan.workers) == ("resnet50", 4)
    layers = Scenario.from_dict(SIX).jobs[0].layers
    assert on_cpus(list(layers), cluster=TEN_LAYERS, seeds=2).plan.workers == 2
    assert study.trained("resnet50", TEN_LAYERS, 4).jobs[0].workers == 4


def test_a_file_may_have_the_cluster_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[cluster]\nlink = { rate = "25Gbps" }\ntopology = { kind = "star", hosts = 4 }\n')
    base = study.trained("resnet50", file, None)
    assert (base.jobs[0].workers, base.link_rate_bps, base.jobs[0].model) == (4, 25 * 10**9, "resnet50")
    file.write_text("[cluster\n")
    with pytest.raises(gt.ScenarioError, match="GT001"):
        study.trained("resnet50", file, None)


def test_a_plan_of_a_packet_scenario_is_searched_on_fluid_and_has_the_figures_of_packets(tmp_path: Path) -> None:
    asked = {**SIX, "run": {"engine": "packet"}, "cluster": {**SIX["cluster"], "queue": {"kind": "fifo"}}}
    result = on_cpus(asked)
    assert [result.summary[key] for key in ("engine", "searched_on", "confirmed_on")] == ["packet", "fluid", "packet"]
    assert {row["engine"] for row in result.rows} == {"packet"}
    predicted = result.plan.predicted
    # A plan is what the run of the plan is.
    again = read_plan(result.plan.save(tmp_path / "plan.json")).on(gt.Scenario.from_dict(asked))
    assert gt.run(again).job["iteration_time_ms"]["mean"] == predicted["iteration_time_ms"]
    assert result.scenario.engine == predicted["engine"] == "packet"
    assert any("fluid" in premise["value"] for premise in result.summary["premises"])


def test_a_plan_that_packets_make_worse_is_not_recommended() -> None:
    """With queues of three packets DDP's one large bucket loses packets, and many small ones lose fewer."""
    job = {
        "model": {"layers": [dict(name=n, forward=f, backward=b, parameters=p) for n, f, b, p in LOSSY]},
        "workers": 4,
        "iterations": 5,
        "schedule": {"order": "edf"},
        "compute": {"noise": 0.1},
    }
    transport = {"kind": "newreno", "initial_cwnd": 1, "window": "64kB", "timers": "linux"}
    cluster = {"link": {"rate": "1Gbps", "delay": "200us"}, "queue": {"kind": "fifo", "capacity": "3pkt"}}
    asked = {
        "job": {"j": job},
        "cluster": {**cluster, "transport": transport},
        "run": {"engine": "packet", "seed": 30, "follow": "ns3"},
    }
    # Its cards drop, too.
    result = gt.plan(asked, seeds=2)
    fluid = gt.plan({**asked, "cluster": {"link": cluster["link"]}, "run": {"engine": "fluid", "seed": 30}}, seeds=2)
    assert (fluid.plan.level, result.plan.level) == ("buckets", "none")
    assert result.plan.predicted["verdict"] == "leave alone"


LOSSY = [
    ("l0", "346us", "138us", "50000B"),
    ("l1", "171us", "12us", "16000B"),
    ("l2", "396us", "514us", "50000B"),
    ("l3", "420us", "966us", "400B"),
    ("l4", "478us", "978us", "16000B"),
]


def test_a_plan_that_would_take_too_long_in_packets_says_why_its_figures_are_not_of_packets() -> None:
    asked = {**SIX, "run": {"engine": "packet"}}
    asked["job"] = {"train": {**SIX["job"]["train"], "iterations": 2_000}}
    result = on_cpus(asked, noise=0.0, limits=Limits(time_s=5.0))
    assert [result.summary[key] for key in ("engine", "searched_on", "confirmed_on")] == ["fluid"] * 3
    assert "would take" in result.summary["not_confirmed"]


# ── bounds, channels, buckets ─────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(0, 12)), min_size=2, max_size=7).filter(
        lambda rows: sum(row[2] > 0 for row in rows) > 1
    ),
    fixed_us=st.integers(0, 2000),
)
def test_no_score_is_below_its_bound_and_with_the_barrier_they_are_equal(
    rows: list[tuple[int, int, int]], fixed_us: int
) -> None:
    """A channel that never waits while something is ready ends at max_k (ready_k + all that is sent from k on), in any
    order: the bound of the barrier. Every transfer is rounded to picoseconds once, up or down."""
    base = Scenario.from_dict(job([(f, b, m) for f, b, m in rows]))
    layers = search.Layers(base.jobs[0])
    channel = Channel({"kind": "ring"}, 1, fixed_us * 1e6, 8000.0, 8000.0 * base.jobs[0].parameter_bytes)
    found = search.Search(search.Space(layers, [channel], search.MODES, 10**9, MIB, base))
    search.explore(found, 50)
    for choice, score in found.scores.items():
        slack_ps = 2 * found.space.messages(choice) + 2
        assert found.space.bound_ps(choice) <= score + slack_ps
        assert found.space.least_ps <= score + slack_ps
        if choice.mode.barrier:
            assert score == pytest.approx(found.space.bound_ps(choice), abs=slack_ps)


def test_channels_are_the_rings_own_formula_and_the_scenarios_comes_first() -> None:
    """2(N - 1) steps of S/N and the delay of two cables."""
    base = Scenario.from_dict(job([(8, 16, 4)] * 6, workers=4))
    channel = fit(base, None, MIB, RUNTIMES["ideal"], 1, None, None, is_deep=False)[0]
    assert channel.collective["kind"] == "ring"
    assert channel.ps_per_byte == pytest.approx(2 * 3 / 4 * 8000, rel=1e-6)
    assert channel.fixed_ps == pytest.approx(2 * 3 * 100e6, rel=1e-6)
    named = fit(base, ["tree", "ring"], MIB, RUNTIMES["gpu"], 1, None, None, is_deep=False)
    assert named[0].collective["kind"] == "ring"


@given(
    mib=st.lists(st.integers(1, 4 * MIB * 8), min_size=1, max_size=40),
    cap=st.integers(1, 40 * MIB),
    first=st.integers(1, 4 * MIB),
)
def test_ddps_buckets_hold_every_layer_once_and_close_when_they_are_full(mib: list[int], cap: int, first: int) -> None:
    base = Scenario.from_dict(job([(1, 1, size / MIB) for size in mib]))
    layers = search.Layers(base.jobs[0])
    cuts = layers.capped(cap, first)
    spans = list(reversed(layers.spans(cuts)))
    assert sum(layers.sizes_of(cuts)) == sum(mib)
    for number, (low, high) in enumerate(spans):
        limit = first if number == 0 else cap
        assert sum(mib[low + 1 : high]) < limit
        assert sum(mib[low:high]) >= limit or low == 0
    assert sum(layers.layer_counts(cuts)) == len(mib)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(64, 10 * MIB), min_size=1, max_size=30), data=st.data())
def test_caps_in_the_advice_give_ddp_the_plans_buckets(sizes: list[int], data: st.DataObject) -> None:
    """DDP closes a bucket when its bytes reach int(cap · 2^20). Rounded down to 1e-4 MiB, 105 B, a cap is reached with
    the plan's last layer, unless that layer has fewer bytes than were rounded away."""
    base = Scenario.from_dict(job([(1, 1, size / MIB) for size in sizes]))
    layers = search.Layers(base.jobs[0])
    cuts = tuple(cut for cut in range(1, len(sizes)) if data.draw(st.booleans()))
    buckets = found._buckets(layers, cuts, "fifo")
    caps = [float(text) for text in re.findall(r"[\d.]+", study.caps(gt.Plan("buckets", buckets, "fifo", True)))]
    made, names = [], [name for one in buckets for name in one.layers]
    held: list[str] = []
    for name in names:
        held.append(name)
        size = sum(sizes[int(each[1:])] for each in held)
        if size >= int(caps[min(len(made), len(caps) - 1)] * MIB) and len(made) < len(caps):
            made.append(tuple(held))
            held = []
    if min(sizes) > 105:
        assert made == [one.layers for one in buckets]


def test_jitter_factors_are_those_of_the_slowest_worker() -> None:
    """Against 200,000 draws of the largest of N: its mean is known to a thousandth of the width."""
    draws = np.random.default_rng(1)
    for workers in (2, 8, 64):
        largest = 1 + np.sqrt(3) * 0.03 * draws.uniform(-1, 1, (200_000, workers)).max(axis=1)
        first, low, high = search.jitter_factors(0.03, workers)
        assert first == 1
        assert (low + high) / 2 == pytest.approx(largest.mean(), abs=2e-4)
        assert (high - low) / 2 == pytest.approx(largest.std(), abs=2e-4)
    assert search.jitter_factors(0, 8) == (1.0,)


# ── plan.json ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def planned() -> gt.PlanResult:
    return on_cpus(SIX, seeds=2)


def test_a_plan_is_written_and_read_again(planned: gt.PlanResult, tmp_path: Path) -> None:
    path = planned.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == [path]
    assert gt.read_plan(path) == planned.plan == gt.read_plan(planned) == gt.read_plan(planned.to_dict())
    document = json.loads(path.read_text())
    assert document["schema"] == "gradtide.plan/1"
    assert [one["rank"] for one in document["buckets"]] == list(range(len(document["buckets"])))[::-1]
    assert sum(one["bytes"] for one in document["buckets"]) == 6 * 4 * MIB
    assert document["scenario_sha256"] == Scenario.from_dict(SIX).sha256
    planned.save(path)


def test_a_plan_replaces_nothing_that_is_none(planned: gt.PlanResult, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(FolderError, match="not a plan"):
        planned.save(tmp_path / "notes.json")
    assert (tmp_path / "notes.json").read_text() == "{}"
    with pytest.raises(FolderError):
        planned.save(tmp_path / "notes.json" / "plan.json")


def fault_of(document: Any, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    with pytest.raises(gt.ScenarioError) as caught:
        read_plan(path).on(Scenario.from_dict(SIX))
    (fault,) = caught.value.errors
    return fault


BUCKET = {"layers": ["l5"], "bytes": 4 * MIB, "rank": 0}


@pytest.mark.parametrize(
    ("change", "code", "loc"),
    [
        ({"schema": "gradtide.run/1"}, "GT080", "schema"),
        ({"level": "crossitter"}, "GT080", "level"),
        ({"level": None}, "GT080", "level"),
        ({"barrier": "yes"}, "GT080", "barrier"),
        ({"workers": 0}, "GT080", "workers"),
        ({"workers": True}, "GT080", "workers"),
        ({"chunk_bytes": -1}, "GT080", "chunk_bytes"),
        ({"chunk_bytes": "1MB"}, "GT080", "chunk_bytes"),
        ({"credit": 0}, "GT080", "credit"),
        ({"credit": 1.5}, "GT080", "credit"),
        ({"advice": [1]}, "GT080", "advice"),
        ({"predicted": {"overhead_us": "1ms"}}, "GT080", "predicted.overhead_us"),
        ({"predicted": {"overhead_us": float("1e300")}}, "GT080", "predicted.overhead_us"),
        ({"buckets": []}, "GT080", "buckets"),
        ({"buckets": [{**BUCKET, "rank": None}]}, "GT080", "buckets[0]"),
        ({"buckets": [{**BUCKET, "layers": []}]}, "GT080", "buckets[0]"),
        ({"buckets": [BUCKET, {**BUCKET, "rank": 1}]}, "GT080", "buckets[1].layers"),
        ({"buckets": [BUCKET, {**BUCKET, "layers": ["l4"]}]}, "GT080", "buckets"),
        ({"buckets": [{**BUCKET, "layers": ["l55"]}]}, "GT081", "buckets.0.layers"),
        ({"buckets": [{**BUCKET, "bytes": 5}]}, "GT081", "buckets.0.bytes"),
        ({"buckets": [BUCKET]}, "GT081", "buckets"),
        ({"workers": 3}, "GT082", "workers"),
    ],
)
def test_a_wrong_plan_has_one_fault(
    change: dict[str, Any], code: str, loc: str, planned: gt.PlanResult, tmp_path: Path
) -> None:
    fault = fault_of({**planned.to_dict(), **change}, tmp_path)
    assert (fault["code"], fault["loc"]) == (code, loc)
    assert fault["hint"]


def test_a_plan_that_is_cut_off_is_one_fault(planned: gt.PlanResult, tmp_path: Path) -> None:
    text = json.dumps(planned.to_dict())
    assert fault_of(text[: len(text) // 2], tmp_path)["code"] == "GT001"
    assert fault_of("[]", tmp_path)["code"] == "GT080"
    with pytest.raises(gt.ScenarioError, match="GT002"):
        read_plan(tmp_path / "none.json")


def test_buckets_that_are_no_stretches_are_refused(planned: gt.PlanResult, tmp_path: Path) -> None:
    order = [[5, 3], [4, 2], [1, 0]]
    buckets = [{"layers": [f"l{i}" for i in some], "bytes": 8 * MIB, "rank": n} for n, some in enumerate(order)]
    assert fault_of({**planned.to_dict(), "buckets": buckets}, tmp_path)["code"] == "GT080"


def test_a_plan_is_for_one_job(planned: gt.PlanResult) -> None:
    both = {"job": {"a": SIX["job"]["train"], "b": SIX["job"]["train"]}, "run": {"engine": "fluid"}}
    with pytest.raises(gt.ScenarioError, match="GT082"):
        planned.plan.on(Scenario.from_dict(both))
    with pytest.raises(ValueError, match="one job"):
        on_cpus(both)


def test_a_plan_of_the_runtimes_alone_needs_little() -> None:
    plan = read_plan({"schema": "gradtide.plan/1", "level": "none"})
    assert plan.on(Scenario.from_dict(SIX)) == Scenario.from_dict(SIX)
    bare = read_plan({"schema": "gradtide.plan/1", "level": "crossiter", "buckets": [BUCKET]})
    assert (bare.order, bare.barrier, bare.workers) == ("priority", False, None)


SHARDED: dict[str, Any] = {
    "schema": "gradtide.plan/1",
    "model": "gpt",
    "fsdp": {
        "units": [[""], ["blocks.0"], ["norm", "head"]],
        "forward_prefetch": 1,
        "backward_prefetch": 2,
        "reshard_after_forward": True,
    },
}


def test_a_plan_of_fsdp_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = read_plan(SHARDED)
    assert plan.fsdp is not None
    assert plan.fsdp.units == (("",), ("blocks.0",), ("norm", "head"))
    assert read_plan(plan.save(tmp_path / "plan.json")) == plan == read_plan(plan.to_dict())
    # What says how DDP sends is not in it.
    assert plan.to_dict().keys() & {"level", "buckets", "order", "depth"} == set()
    with pytest.raises(gt.ScenarioError, match="GT090"):
        plan.on(Scenario.from_dict(SIX))


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"units": []}, "fsdp.units", "no list of units"),
        ({"units": None}, "fsdp.units", "no list of units"),
        ({"units": [["a"], []]}, "fsdp.units[1]", "a list of modules"),
        ({"units": ["a", "b", "c"]}, "fsdp.units[0]", "a list of modules"),
        ({"units": [["a"], ["b"], ["a"]]}, "fsdp.units[2]", "`a` is in two units"),
        ({"units": [["a"], ["b"], [""]]}, "fsdp.units[2]", "and the first"),
        ({"forward_prefetch": -1}, "fsdp.forward_prefetch", "0 to 2"),
        ({"forward_prefetch": 3}, "fsdp.forward_prefetch", "0 to 2"),
        ({"backward_prefetch": True}, "fsdp.backward_prefetch", "0 to 2"),
        ({"backward_prefetch": 1.0}, "fsdp.backward_prefetch", "0 to 2"),
        ({"backward_prefetch": float("nan")}, "fsdp.backward_prefetch", "0 to 2"),
        ({"reshard_after_forward": None}, "fsdp.reshard_after_forward", "true or false"),
        ({"reshard": True}, "fsdp.reshard", "there is no key `reshard`"),
    ],
)
def test_what_a_plan_of_fsdp_cannot_say_is_a_fault(change: dict[str, Any], loc: str, words: str) -> None:
    with pytest.raises(gt.ScenarioError) as caught:
        read_plan({**SHARDED, "fsdp": {**SHARDED["fsdp"], **change}})
    assert any(one["loc"] == loc and words in one["msg"] for one in caught.value.errors), caught.value


@pytest.mark.parametrize("key", ["level", "buckets", "credit", "collective"])
def test_a_plan_of_fsdp_says_nothing_of_ddp(key: str) -> None:
    value: Any = {"level": "none", "buckets": [BUCKET], "credit": 1, "collective": {"kind": "ring"}}[key]
    with pytest.raises(gt.ScenarioError, match="how DDP sends"):
        read_plan({**SHARDED, key: value})
    with pytest.raises(gt.ScenarioError, match="expected a table"):
        read_plan({**SHARDED, "fsdp": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "all"}, "level: there is no 'all'"),
        ({"device": "abacus"}, "device: there is no 'abacus'; there are cpu, gpu, ideal, K80"),
        (
            {"device": "H100", "level": "crossiter"},
            "level: H100 with NCCL cannot carry out crossiter; --device cpu can",
        ),
        ({"device": None, "level": "priority"}, "level: the scenario names no device"),
        ({"overhead": "1"}, "overhead"),
        ({"worth": -1}, "worth"),
        ({"noise": 0.9}, "noise"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 4, "noise": 0}, "seeds: has no effect with noise = 0"),
        ({"overhead": "2ms", "level": "buckets"}, "overhead: has no effect at level buckets"),
        ({"overhead": "2ms", "device": "gpu"}, "overhead: has no effect at level buckets"),
        ({"smallest": "1"}, "smallest"),
        ({"baseline": "horovod"}, "no baseline"),
        ({"collectives": []}, "collectives"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        on_cpus(SIX, **options)


# ── what a device can carry out ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("device", ["H100", "gpu", "cpu", None])
def test_a_plan_asks_for_nothing_that_its_device_cannot_carry_out(device: str | None) -> None:
    """Of eight workers with long cables halving-doubling has fewer steps than a ring, and without the barrier more is
    saved: without the table of runtimes both are searched and the level is chosen."""
    base = job([(20, 40, 6)] * 6, workers=8)
    base["run"], base["cluster"]["link"]["delay"] = {"engine": "fluid"}, "1ms"
    ideal = gt.plan(base, device="ideal", seeds=2)
    assert ideal.plan.level == "crossiter"
    assert "halving_doubling" in {row["collective"] for row in ideal.candidates}
    result = gt.plan(base, device=device, seeds=2)
    runtime = RUNTIMES[{"H100": "gpu", None: "unknown"}.get(device, device)]
    assert result.plan.level in runtime.levels
    assert {row["level"] for row in result.candidates} <= set(runtime.levels)
    assert {row["collective"] for row in result.candidates} <= set(runtime.collectives)
    assert {row["depth"] for row in result.candidates} == {1}
    assert result.plan.runtime["backend"] == runtime.backend
    assert result.plan.runtime["cannot_set"] == list(runtime.cannot)
    told = "; ".join([result.summary["headline"], *result.plan.advice])
    assert {"H100": "H100 with NCCL", "gpu": "GPUs with NCCL", "cpu": "CPUs with gloo", None: "any device"}[
        device
    ] in told
    assert ("wrap(" in told) == (device == "cpu")
    if device is None:
        assert "The scenario names no device" in told
    elif device != "cpu":
        assert "The plan does not use what gradtide cannot set on" in told
        assert "level crossiter" in told


def test_the_device_is_the_scenarios_unless_the_user_names_one() -> None:
    cluster = {"cluster": {"link": {"rate": "25Gbps"}, "topology": {"kind": "star", "hosts": 4}}}
    of_scenario = {"job": {"train": {"model": "resnet50", "workers": 4, "compute": {"device": "A100"}}}, **cluster}
    assert gt.plan(of_scenario, seeds=1, budget=5).plan.runtime["device"] == "gpu"
    of_scenario["job"]["train"]["compute"]["device"] = "Xeon-E5-2686v4"
    result = gt.plan(of_scenario, seeds=1, budget=5)
    assert result.plan.runtime["device"] == "cpu"
    assert "Xeon-E5-2686v4 with gloo" in result.summary["headline"]
    assert gt.plan(of_scenario, device="gpu", seeds=1, budget=5).plan.runtime["backend"] == "nccl"


def test_a_named_collective_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"--collectives: halving_doubling cannot be chosen on GPUs with NCCL; .*ring, tree"
    ):
        gt.plan({**SIX, "run": {"engine": "fluid"}}, device="gpu", collectives=["ring", "halving-doubling"])


def test_the_table_of_runtimes_holds_together() -> None:
    for runtime in RUNTIMES.values():
        assert runtime.levels == LEVELS[: len(runtime.levels)]
        assert set(runtime.collectives) <= set(ALL_REDUCES)
    known = [one for one in RUNTIMES.values() if one.backend is not None]
    unknown = RUNTIMES["unknown"]
    assert set(unknown.levels) == set.intersection(*(set(one.levels) for one in known))
    assert set(unknown.collectives) == set.intersection(*(set(one.collectives) for one in known))
    assert of_torch("cuda") is RUNTIMES["gpu"]
    assert "crossiter" not in of_torch("mps").levels


# ── how far predictions were off ──────────────────────────────────────────────────────────────────────────


def test_the_interval_comes_from_measured_errors_not_from_noise() -> None:
    """The log of a ratio is off by s·t(n) at most, in 95 of 100 cases; noise moves the mean by a hundredth of that."""
    result = on_cpus(TEN_LAYERS)
    predicted = result.plan.predicted
    low, high = predicted["gain_interval_percent"]
    errors = saving_errors()
    assert 1 - low / 100 == pytest.approx((1 - predicted["gain_percent"] / 100) * np.exp(errors.half))
    assert 1 - high / 100 == pytest.approx((1 - predicted["gain_percent"] / 100) * np.exp(-errors.half))
    jitter_low, jitter_high = predicted["jitter_interval_percent"]
    assert low < jitter_low < predicted["gain_percent"] < jitter_high < high
    quiet = on_cpus(TEN_LAYERS, noise=0).plan.predicted["gain_interval_percent"]
    assert quiet == pytest.approx([low, high], abs=1)


def test_savings_of_a_setup_lie_in_the_interval_that_the_others_give() -> None:
    """Nothing is fitted to the figures that the interval then covers: each setup is predicted from the others.

    Of n savings 95 % are expected within it. Fewer than n - 5 of 24 would be seen in one of 1,000 cases (binomial).
    """
    outside = 0
    for setup in {pair.setup for pair in pairs() if pair.baseline}:
        others = saving_errors([pair for pair in pairs() if pair.setup != setup])
        own = saving_errors([pair for pair in pairs() if pair.setup == setup])
        outside += sum(abs(log) > others.half for log in own.logs)
    assert outside <= 5 * len(saving_errors().logs) / 24


def test_the_page_has_the_table_of_runtimes() -> None:
    lines = ["| device | library | levels | collectives |", "|---|---|---|---|"]
    for one in RUNTIMES.values():
        kinds = (
            "all, at every depth" if one.any_collective else "; ".join(f"{k}: {h}" for k, h in one.collectives.items())
        )
        name = "not named" if one.device == "unknown" else f"`{one.device}`"
        lines.append(f"| {name} | {one.library or '–'} | {', '.join(one.levels)} | {kinds} |")
    page = ROOT / "docs" / "planning.md"
    text = page.read_text()
    start, end = "<!-- table: runtimes -->\n", "<!-- end of table -->"
    now = text.partition(start)[2].partition(end)[0].strip()
    if os.environ.get("UPDATE_GOLDEN"):
        table = "\n".join(lines)
        page.write_text(
            text.replace(f"{start}{now}\n\n{end}" if now else f"{start}{end}", f"{start}\n{table}\n\n{end}")
        )
        return
    assert now == "\n".join(lines)


def test_the_documentation_holds_every_measured_pair() -> None:
    for pair in pairs():
        text = (ROOT / pair.source).read_text()
        assert any(f"{pair.measured_ms:.{digits}f}" in text for digits in (0, 1, 2)), pair
        assert any(f"{pair.predicted_ms:.{digits}f}" in text for digits in (0, 1, 2)), pair


def test_page_and_pairs_are_written_from_the_cases_of_the_testbed() -> None:
    text = (ROOT / "docs" / "validation" / "plan.md").read_text()
    now = text.partition(testbed_plans.BEGIN)[2].partition(testbed_plans.END)[0].strip()
    assert now == testbed_plans.page(CASES)
    rows = (ROOT / "python" / "gradtide" / "measured.csv").read_text().splitlines()
    assert [row for row in rows if row.startswith("plan ")] == testbed_plans.pairs(CASES)
    errors = saving_errors()
    assert f"for the {len(errors.logs)} savings" in text
    assert f"Its root mean square is {errors.half / student_t(len(errors.logs)):.3f}." in text
    assert f"within ±{errors.half:.3f}:" in text
    low, high = errors.interval(0.75)
    assert f"predicted to save 25 % is expected to save {100 - 100 * high:.0f} to {100 - 100 * low:.0f} %" in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']} {case['rate']}")
def test_predicted_times_of_the_pairs_are_what_gradtide_predicts(case: dict[str, Any], tmp_path: Path) -> None:
    """From layers and network alone, as they were measured without any of what is predicted.

    Of plans that take equally long another one may be found today: the measured one still takes as long.
    """
    result = testbed_plans.planned(case)
    assert result.plan.level == case["advised"]
    (ddp,) = [row for row in result.rows if row["name"] == "ddp"]
    assert ddp["iteration_ms"] == pytest.approx(case["predicted_ms"]["ddp"], rel=1e-9)
    alone = Scenario.from_dict(result.baseline.scenario.to_dict())
    for level, plan in result.plans.items():
        measured = tmp_path / f"{level}.json"
        measured.write_text(json.dumps({**plan.to_dict(), **case["plans"][level], "predicted": plan.predicted}))
        times = [gt.run(each.on(alone)).iteration_time for each in (plan, read_plan(measured))]
        assert times[1] == pytest.approx(times[0], rel=1e-9)
        assert plan.predicted["iteration_time_ms"] == pytest.approx(case["predicted_ms"][level], rel=1e-9)


def test_gains_are_predicted_within_three_points_and_what_is_advised_pays() -> None:
    """The bar that was set before anything was measured; one gain misses it, as docs/validation/plan.md says."""
    missed = set()
    for case in CASES:
        times = testbed_plans.means(case)
        said, took = times.pop("ddp")
        for level, (predicted, measured) in times.items():
            if abs(predicted / said - measured / took) >= 0.03:
                missed.add((case["model"], case["rate"], level))
        assert case["advised"] == "none" or times[case["advised"]][1] < took
    assert missed == {("head", "1gbit", "buckets")}


def row_that_saves(level: str, percent: float, jitter_low: float | None = None) -> dict[str, Any]:
    low, _ = (100 - 100 * end for end in reversed(saving_errors().interval(1 - percent / 100)))
    return {"level": level, "saves_percent": percent, "saves_low_percent": low, "jitter_low_percent": jitter_low}


def test_a_level_is_advised_if_it_pays_after_the_error_and_no_other_clearly_beats_it() -> None:
    """With h the interval's half, a saving s pays if 1 - (1 - s) exp(h) is enough; t clearly beats it beyond that."""
    h = saving_errors().half
    pays = 100 - 99 * np.exp(-h)  # its low end is the 1 % that it has to save
    assert chosen([row_that_saves("buckets", pays - 0.01)], 1) == "none"
    assert chosen([row_that_saves("buckets", pays + 0.01)], 1) == "buckets"
    assert chosen([row_that_saves("buckets", pays + 0.01, jitter_low=0.9)], 1) == "none"
    more = 100 - (100 - pays) * np.exp(-h)  # what is left of it is less by the error
    for beyond, level in ((0.9, "buckets"), (1.1, "crossiter")):
        rows = [row_that_saves("buckets", pays + 0.01), row_that_saves("crossiter", more + 0.01 + beyond)]
        assert chosen(rows, 1) == level
    assert chosen([], 1) == chosen([row_that_saves("crossiter", -3.0)], 0) == "none"


def test_the_verdict_follows_the_interval() -> None:
    """Ten layers: 25 % is worth it at its low end. Between the low end and the prediction, nothing is sure."""
    sure = on_cpus(TEN_LAYERS).plan
    assert sure.predicted["verdict"] == "worth it"
    assert sure.advice[0].startswith("Worth it: even the low end")
    (row,) = [row for row in on_cpus(SIX, level="buckets").rows if row["level"] == "buckets"]
    result = on_cpus(SIX, level="buckets", worth=(row["saves_percent"] + row["saves_low_percent"]) / 2)
    assert result.plan.predicted["verdict"] == "leave alone"
    assert "measured savings differed so much from predictions" in result.plan.advice[0]


def test_the_best_plan_of_each_level_is_there_though_one_is_chosen() -> None:
    result = on_cpus(TEN_LAYERS, noise=0)
    assert list(result.plans) == ["buckets", "priority", "crossiter"]
    for level, plan in result.plans.items():
        assert plan.level == level
        alone = gt.run(plan.on(Scenario.from_toml(TEN_LAYERS.read_text())))
        assert alone.job["iteration_time_ms"]["mean"] == plan.predicted["iteration_time_ms"]
    assert replace(result.plans["crossiter"], advice=result.plan.advice) == result.plan


def test_noise_beside_the_scenarios_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise: the scenario has compute.noise = 0.05"):
        gt.plan(job([(8, 16, 4)] * 6, compute={"noise": 0.05}), noise=0.01)


def test_a_single_worker_has_no_plan() -> None:
    with pytest.raises(ValueError, match="single worker"):
        on_cpus(job([(8, 16, 4)], workers=1))


# ── interruption and folder ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["run_noisy", "explore"])
def test_ctrl_c_leaves_the_best_so_far(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def stop(under_way: Any, *more: Any) -> None:
        calls.append(where)
        if where == "explore":
            under_way.grid()
        raise KeyboardInterrupt

    monkeypatch.setattr(found, where, stop)
    keep = Kept(tmp_path / "plan.json")
    with pytest.raises(Interrupted) as caught:
        on_cpus(SIX, keep=keep)
    best = caught.value.study
    assert calls
    assert best.plan.level == "crossiter"
    assert best.summary["complete"] is False
    assert best.plan.predicted["jitter_interval_percent"] is None
    keep.show_part(caught.value)
    assert gt.read_plan(tmp_path / "plan.json.incomplete" / "plan.json") == best.plan
    monkeypatch.undo()
    again = on_cpus(SIX, keep=keep)
    assert again.summary["complete"]
    again.save(tmp_path / "plan.json")
    keep.forget()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_the_folder_reports_and_garbled_ones_are_refused(planned: gt.PlanResult, tmp_path: Path) -> None:
    folder = planned.save(tmp_path / "study")
    page = (folder / "report.html").read_text()
    assert f"{planned.plan.predicted['gain_percent']:.1f}" in page
    assert (folder / "timeline.pftrace").exists()
    assert gt.read_plan(folder / "plan.json") == planned.plan
    summary = json.loads((folder / "summary.json").read_text())
    for change in (
        {"rows": []},
        {"rows": [1]},
        {"lower_bound_ms": 0},
        {"plan": {}},
        {"searched": {}},
        {"rows": [{**summary["rows"][0], "chosen": True, "iteration_ms": "fast"}]},
    ):
        (folder / "summary.json").write_text(json.dumps({**summary, **change}))
        with pytest.raises(RunFolderError):
            report.write_report(folder)


def test_results_show_themselves(planned: gt.PlanResult) -> None:
    assert "crossiter" in repr(planned) or "barrier" in repr(planned)
    assert "<table>" in planned._repr_html_()
    assert set(planned.to_numpy()) == set(planned.rows[0])


def test_the_reference_has_the_columns_of_the_tables(planned: gt.PlanResult) -> None:
    text = (ROOT / "docs" / "reference" / "run-folder.md").read_text()
    assert f"`levels.csv`: `{', '.join(planned.rows[0])}`" in text
    assert f"`scored.csv`: `{', '.join(planned.candidates[0])}`" in text


@pytest.mark.parametrize(
    ("keys", "device", "said"),
    [
        ({"collective": {"kind": "halving_doubling"}}, "cpu", "CPUs with gloo cannot be told to use"),
        ({"schedule": {"depth": 2}}, "gpu", "GPUs with NCCL cannot cut messages into 2 parts"),
    ],
)
def test_an_exchange_that_the_device_cannot_carry_out_is_not_planned_for(keys, device, said):
    layers = [{"name": "fc", "forward": "1ms", "backward": "1ms", "parameters": "4MiB"}]
    scenario = {"job": {"train": {"model": {"layers": layers}, "workers": 2, **keys}}, "run": {"engine": "fluid"}}
    with pytest.raises(ValueError, match=said):
        gt.plan(scenario, device=device)


# ── Caramel's schedule ────────────────────────────────────────────────────────────────────────────────────


def test_a_named_schedule_is_planned_whatever_it_saves_and_caramel_only_if_named() -> None:
    assert {row["order"] for row in on_cpus(SIX).candidates} == {"fifo", "priority"}
    for schedule in ("fifo", "priority", "caramel"):
        result = on_cpus(SIX, schedule=schedule, worth=99.0)
        assert result.plan.level != "none"
        assert result.plan.order == schedule
        assert {row["order"] for row in result.candidates} == {schedule}
        assert result.plan.predicted["verdict"] == "leave alone"
        assert result.plan.advice[0].startswith(f"Leave it alone: {schedule}, which you named, saves ")


def test_a_plan_with_gates_runs_in_the_time_that_it_predicts(tmp_path: Path) -> None:
    data = job([(1, 2, 0.06)] * 6)
    data["cluster"]["link"]["rate"] = "80Mbps"
    result = on_cpus(data, schedule="caramel", overhead="0us", smallest=0, seeds=2)
    releases = [bucket.release for bucket in result.plan.buckets if bucket.release]
    assert {where for where, _ in releases} == {"backward", "forward"}
    plan = read_plan(result.save(tmp_path / "plan.json"))
    assert [bucket.release for bucket in plan.buckets if bucket.release] == releases
    again = gt.run(plan.on(Scenario.from_dict(data)))
    assert again.iteration_time * 1e3 == pytest.approx(plan.predicted["iteration_time_ms"], rel=1e-12)
    # With later releases the channel idles: they are kept.
    late = plan.on(Scenario.from_dict(data)).replace(releases=["forward l5"] * len(plan.buckets))
    assert gt.run(late).iteration_time > again.iteration_time


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": "edf"}, "schedule: there is no 'edf'; there are fifo, priority, caramel"),
        ({"schedule": "caramel", "level": "priority"}, "schedule: caramel needs level crossiter"),
        ({"schedule": "caramel", "device": "gpu"}, "schedule: caramel needs level crossiter"),
        ({"schedule": "priority", "level": "buckets"}, "schedule: priority needs level priority"),
    ],
)
def test_a_schedule_that_cannot_be_planned_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        gt.plan(SIX, **{"device": "cpu", **options})


def test_a_gate_of_another_model_is_refused() -> None:
    bucket = {"layers": [f"l{index}" for index in reversed(range(6))], "bytes": 6 * 4 * MIB, "rank": 0}
    plan = {"schema": "gradtide.plan/1", "level": "crossiter", "buckets": [{**bucket, "release": RELEASE}]}
    with pytest.raises(gt.ScenarioError, match=r"GT081.*has no layer `fc`"):
        read_plan(plan).on(Scenario.from_dict(SIX))


RELEASE = {"pass": "forward", "layer": "fc"}
