"""The inputs in `scenarios/`: each runs, and what it was written to show is so."""

from pathlib import Path

import pytest

import gradtide

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_runs_and_its_resolved_form_is_the_same_scenario(path):
    scenario = gradtide.Scenario.load(path)
    result = gradtide.run(scenario)
    assert gradtide.Scenario.from_toml(scenario.to_toml()) == scenario
    for job in result.summary["jobs"].values():
        assert job["iteration_time_ms"]["mean"] == pytest.approx(sum(job["waterfall_ms"].values()), rel=1e-12)


def test_own_order_sends_the_large_layer_last():
    rows = gradtide.run(FOLDER / "own-order.toml").transfers.to_dicts()
    last = max((row for row in rows if row["iteration"] == 0), key=lambda row: row["rank"])
    assert last["layer"] == "fc6"


def test_the_second_job_starts_later_and_the_jobs_do_not_disturb_each_other():
    both = gradtide.run(FOLDER / "two-jobs.toml")
    starts = {row["job"]: row["start_us"] for row in both.iterations.to_dicts() if row["iteration"] == 0}
    assert starts["language"] > 25_000
    # No link is shared, so a job takes what it takes alone.
    alone = both.scenario.to_dict()
    del alone["job"]["language"]
    assert gradtide.run(alone).iteration_time == both.iteration_time


def test_chunks_let_the_first_layer_overtake():
    chunked = gradtide.Scenario.load(FOLDER / "chunked-priority.toml")
    whole = gradtide.run(chunked.replace(chunk=None))
    wait = {
        name: -result.margin.to_numpy()[-1] for name, result in (("chunked", gradtide.run(chunked)), ("whole", whole))
    }
    assert wait["chunked"] < wait["whole"]


def test_costs_that_the_engine_does_not_simulate_make_an_iteration_longer():
    costly = gradtide.Scenario.load(FOLDER / "real-network.toml")
    free = costly.replace(overhead=None, link_efficiency=None, host_latency=None, overlap_slowdown=None)
    assert gradtide.run(free).iteration_time < gradtide.run(costly).iteration_time
