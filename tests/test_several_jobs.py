"""Several jobs of one run: their means are over iterations beside which all of them ran."""

from typing import Any

import numpy as np
import pytest

import gradtide as gt
from gradtide.errors import SimulationError
from gradtide.estimate import estimate
from gradtide.scenario import Scenario


def layers(compute_ms: float, megabytes: float) -> dict[str, Any]:
    half = f"{500 * compute_ms:g}us"
    return {"layers": [{"name": "one", "forward": half, "backward": half, "parameters": f"{megabytes:g}MB"}]}


def scenario(first: dict[str, Any], second: dict[str, Any], **run: Any) -> Scenario:
    """Return two jobs of two workers whose exchanges share the one cable of 10 Gbit/s between two switches."""
    base = {"model": layers(10, 5), "iterations": 4, "collective": {"kind": "ring"}}
    return Scenario.from_dict(
        {
            "job": {
                "high": {**base, "hosts": ["h0", "h4"], **first},
                "low": {**base, "hosts": ["h1", "h5"], "priority": "low", **second},
            },
            "cluster": {
                "link": {"rate": "10Gbps", "delay": "0s"},
                "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "bisection": "1/4"},
            },
            "run": {"engine": "fluid", **run},
        }
    )


def times_ms(result: Any, name: str) -> list[float]:
    return [float(time) for time in result.summary["jobs"][name]["iteration_time_ms"]["all"]]


def not_measured(result: Any, name: str) -> tuple[int, int]:
    found = result.summary["jobs"][name]["unmeasured_iterations"]
    return found["before"], found["after"]


def test_a_job_s_mean_does_not_depend_on_when_another_has_its_iterations() -> None:
    # The high job computes for 10 ms, and sends 5 MB each way, for 4 ms; the low one, which needs 10 + 12, has what is
    # left: 10 of every 14 ms.
    found = [gt.run(scenario({"iterations": count}, {"model": layers(10, 15)})) for count in (1, 4, 40)]
    for result in found:
        assert times_ms(result, "high") == pytest.approx([14.0] * len(times_ms(result, "high")), abs=1e-5)
        assert times_ms(result, "low") == pytest.approx(times_ms(found[0], "low"), abs=1e-5)
    assert min(times_ms(found[0], "low")) > 22.0 + 1e-3
    # The high job has gone on until the low one was measured.
    end_us = max(row["start_us"] + row["time_us"] for row in found[0].iterations.to_dicts())
    assert 14e3 * (2 + not_measured(found[0], "high")[1]) == pytest.approx(end_us, abs=2 * 14e3)
    assert not_measured(found[0], "high")[1] > not_measured(found[1], "high")[1] > 0
    assert not_measured(found[2], "low")[1] > 0


def test_what_a_job_does_before_another_starts_is_not_measured() -> None:
    model = {"model": layers(10, 15)}
    together = gt.run(scenario({}, model))
    shifted = gt.run(scenario({}, {**model, "start": "140ms"}))
    rows = [row for row in shifted.iterations.to_dicts() if row["job"] == "high"]
    assert min(row["start_us"] for row in rows) >= 140e3
    assert len(rows) == 4
    # Its own first iteration is not measured in any case; nine more begin before the other job does.
    assert not_measured(shifted, "high")[0] == 9
    assert not_measured(together, "high")[0] == 0
    # The other one begins when the first does an iteration anew, as together.
    assert times_ms(shifted, "low") == pytest.approx(times_ms(together, "low"), abs=1e-5)
    for table in (shifted.transfers, shifted.operations):
        rows = [row for row in table.to_dicts() if row["job"] == "high" and row["iteration"] >= 0]
        assert min(row["end_us"] for row in rows) >= 140e3


def test_with_a_duration_all_jobs_are_measured_until_its_end() -> None:
    result = gt.run(scenario({"iterations": None}, {"iterations": 2, "start": "50ms"}, duration="300ms"))
    rows = result.iterations.to_dicts()
    assert all(row["start_us"] >= 50e3 and row["start_us"] + row["time_us"] <= 300e3 + 1e-3 for row in rows)
    high = [row for row in rows if row["job"] == "high"]
    # It is measured while the other one, which has its two iterations, goes on.
    assert len(high) == pytest.approx((300 - 50) / 14, abs=2)
    assert not_measured(result, "low")[1] > 0


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_jobs_on_hosts_of_their_own_take_what_each_takes_alone(engine: str) -> None:
    jobs = {
        "a": {"model": layers(1, 0.2), "hosts": ["h0", "h1"], "iterations": 2},
        "b": {"model": layers(3, 0.1), "hosts": ["h2", "h3"], "iterations": 3},
    }
    star = {"link": {"rate": "10Gbps", "delay": "1us"}, "topology": {"kind": "star", "hosts": 4}}
    # Draws of when senders begin are by connection, and the second job has other ones alone.
    run = {"engine": engine, **({"start_jitter": "0s"} if engine == "packet" else {})}
    both = gt.run({"job": jobs, "cluster": star, "run": run})
    for name, job in jobs.items():
        alone = gt.run({"job": {name: job}, "cluster": star, "run": run})
        assert times_ms(both, name) == pytest.approx(times_ms(alone, name), abs=2e-6)
        assert "unmeasured_iterations" not in alone.summary["jobs"][name]
    assert not_measured(both, "a")[1] > 0
    assert not_measured(both, "b")[1] == 0


@pytest.mark.parametrize("sync", ["sync", "async"])
def test_workers_of_servers_are_measured_while_all_jobs_run(sync: str) -> None:
    servers = {"servers": 1, "pull": "start", "sync": sync}
    job = {"collective": {"ps": servers}, "hosts": ["h0", "h4", "h2"], "model": layers(2, 0.5), "priority": 0}
    alone = scenario(job, {}).to_dict()
    del alone["job"]["low"]
    own = times_ms(gt.run(alone), "high")
    # The other job sends nothing, so that it disturbs nobody.
    silent = {"model": layers(30, 0)}
    result = gt.run(scenario(job, {**silent, "start": "100ms", "iterations": 3}))
    assert times_ms(result, "high") == pytest.approx([np.mean(own)] * len(own), rel=0.02)
    before, after = not_measured(result, "high")
    assert before == pytest.approx(100 / np.mean(own), abs=2)
    assert after > 0
    rows = [row for row in result.iterations.to_dicts() if row["job"] == "high"]
    assert min(row["start_us"] for row in rows) >= 100e3
    assert min(row["start_us"] for row in result.transfers.to_dicts() if row["job"] == "high") >= 100e3 - 1e-3


def test_a_job_that_is_never_served_ends_the_run_with_an_error_that_names_it() -> None:
    # The high job sends all the time: what its next iteration reads has not come when it asks for it.
    greedy = {"model": layers(0.0001, 5), "schedule": {"order": "priority", "barrier": False}}
    with pytest.raises(SimulationError, match=r"job `low` gets nothing done while job `high` runs .* priority"):
        gt.run(scenario(greedy, {}))


def test_the_estimate_knows_that_a_job_goes_on_for_another() -> None:
    short = estimate(scenario({"iterations": 1}, {"iterations": 1}))
    longer = estimate(scenario({"iterations": 1}, {"iterations": 100}))
    late = estimate(scenario({"iterations": 1}, {"iterations": 1, "start": "1s"}))
    assert short.iterations == 2
    assert longer.iterations >= 199
    assert late.iterations >= 2 + 1000 // 14


def test_tables_have_the_rows_of_every_job():
    """A model divided over ranks beside one that is not: the columns of their transfers differ."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1}
    llama = {"model_type": "llama", "vocab_size": 128, **sizes}
    parallel = {"model": llama, "parallel": {"dp": 2}, "compute": {"device": "A100", "seq": 16, "scaling_loss": 0}}
    both = {"parallel": parallel, "plain": {"model": "alexnet", "workers": 2}}
    jobs = {name: {**job, "iterations": 1} for name, job in both.items()}
    scenario = {"cluster": {"link": {"rate": "10Gbps", "delay": "5us"}}, "run": {"engine": "fluid", "timeline": 1}}
    together = gt.run(gt.Scenario.from_dict({"job": jobs, **scenario}))
    for name, job in jobs.items():
        alone = gt.run(gt.Scenario.from_dict({"job": {name: job}, **scenario}))
        for table in ("transfers", "operations"):
            columns = getattr(alone, table).columns
            rows = [row for row in getattr(together, table).to_dicts() if row["job"] == name]
            assert {key for key in rows[0] if rows[0][key] not in (None, "")} <= set(columns)
            assert rows
