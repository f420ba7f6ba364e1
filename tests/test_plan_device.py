"""What the device that runs a plan can carry out: collectives, levels, and release events of Caramel's schedule."""

import re
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide.counts import ALL_REDUCES
from gradtide.runtime import LEVELS, RUNTIMES, of_torch
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from plan_scenarios import MIB, SIX, job, on_cpus

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


@pytest.mark.parametrize(
    ("keys", "device", "said"),
    [
        ({"collective": {"kind": "halving_doubling"}}, "cpu", "cannot be selected on CPUs with gloo"),
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
