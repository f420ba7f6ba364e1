"""Priority that follows the slack: its limits, what it says in results, and policies beside one another."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import Scenario
from gradtide.studies.tenants.policies import POLICIES, default_policies, policies, under
from run_folders import TINY_LOADS, random_flows, tiny_tenants

ALIKE = [policy for policy in POLICIES if policy != "straggler"]
"""Policies that differ where all workers compute alike."""


def scenario(priority: object, *, layers: list[dict[str, Any]] | None = None, neighbours: bool = True) -> Scenario:
    keys = tiny_tenants()
    keys["job"]["train"]["priority"] = priority
    if layers is not None:
        keys["job"]["train"]["model"]["layers"] = layers
    if not neighbours:
        del keys["traffic"]
    return Scenario.from_dict(keys)


def deadline(**settings: object) -> dict[str, Any]:
    return {"adaptive": {"policy": "deadline", **settings}}


def oracle(price: float | None = None) -> dict[str, Any]:
    return {"adaptive": {"policy": "oracle"} if price is None else {"policy": "oracle", "price": price}}


def layer(name: str, forward: str, backward: str, parameters: str) -> dict[str, Any]:
    return {"name": name, "forward": forward, "backward": backward, "parameters": parameters}


def tables(result: gt.RunResult) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    transfers = [
        {key: value for key, value in row.items() if key != "high_percent"} for row in result.transfers.to_dicts()
    ]
    return result.iterations.to_dicts(), transfers, result.flows.to_dicts()


def test_with_slack_for_everything_all_goes_low_once_the_high_band_is_known() -> None:
    # What is sent is ready early in the backward pass and needed late in the forward pass.
    # The lowest layer, for which the forward pass waits first, has no parameters.
    layers = [layer("first", "2ms", "2ms", "0B"), layer("last", "1ms", "1ms", "1MB")]
    alone = [
        scenario(priority, layers=layers, neighbours=False).replace(duration=None, iterations=40)
        for priority in (deadline(), {"adaptive": {"policy": "background"}})
    ]
    high = gt.run(alone[0]).transfers["high_percent"].tolist()
    # A pace is believed from 64 rounds on. Four workers receive 24 messages of a ring; the first of all says nothing.
    known = -(-(64 * 4 + 1) // 24)
    assert len(high) > 2 * known
    assert high == [100.0] * known + [0.0] * (len(high) - known)
    assert not gt.run(alone[1]).transfers["high_percent"].any()


@pytest.mark.parametrize("engine", ["packet", "fluid"])
def test_without_neighbours_a_band_changes_nothing(engine: str) -> None:
    # Connections of the low band have small windows, which on the fluid engine there are none of.
    changing = [deadline(credit=1), deadline(credit=1, exchange=False, tolerance=0)] if engine == "fluid" else []
    runs = [
        gt.run(scenario(priority, neighbours=False).replace(engine=engine, duration=None, iterations=4))
        for priority in ("high", "low", *changing, oracle())
    ]
    assert not (runs[-1].transfers["high_percent"] > 0).any(), "of two that cost the same, low is first"
    iterations, transfers, _ = zip(*(tables(run) for run in runs), strict=True)
    assert all(other == iterations[0] for other in iterations)
    assert all(other == transfers[0] for other in transfers)


def test_several_chunks_are_under_way_in_the_low_band() -> None:
    # Layers of 1 MB, ready one after the other sooner than any is sent: the next begins when one of the others ends.
    layers = [layer(f"layer {index}", "1ms", "1us", "1MB") for index in range(8)]
    for credit in (1, 3):
        priority = {"adaptive": {"policy": "background", "credit": credit}}
        base = scenario(priority, layers=layers, neighbours=False).set({"job.train.schedule.fusion": "0B"})
        sent = gt.run(base.replace(duration=None, iterations=1)).transfers
        begun = [(at, 1) for at in sent["start_us"]] + [(at, -1) for at in sent["end_us"]]
        under_way = [sum(change for other, change in begun if other <= at) for at, _ in begun]
        assert max(under_way) == credit


def test_a_late_job_goes_high_and_a_run_repeats_itself() -> None:
    # Half of the links for the job, a quarter for flows: there is little slack.
    first, second = (gt.run(scenario(deadline()).replace(scale_to="5ms")) for _ in range(2))
    assert tables(first) == tables(second)
    high = first.transfers["high_percent"].tolist()
    assert 0 < sum(high) / len(high) <= 100


def test_the_resolved_scenario_has_every_setting_and_runs_the_same(tmp_path: Path) -> None:
    result = gt.run(scenario({"adaptive": {}}))
    text = (result.save(tmp_path / "run") / "scenario.resolved.toml").read_text()
    # A link of 10 Gbit/s carries 125 kB in 100 us, and four hops of 10 us are less than half of that.
    settings = 'policy = "deadline", credit = 4, window = "125kB", tolerance = 0.02, margin = 0.0, exchange = true'
    assert f"priority = {{ adaptive = {{ {settings} }} }}" in text
    again = gt.run(Scenario.load(tmp_path / "run" / "scenario.resolved.toml"))
    assert again.summary["jobs"] == result.summary["jobs"]


def test_with_marks_one_transfer_at_a_time_is_low_with_the_whole_window() -> None:
    def settings(policy: str, **more: str) -> str:
        marks = {"cluster.transport.kind": "dctcp", "cluster.queue.threshold": "65pkt"}
        return scenario({"adaptive": {"policy": policy, **more}}).set(marks).to_toml()

    assert 'policy = "deadline", credit = 1, window = "32MiB"' in settings("deadline")
    assert 'policy = "deadline", credit = 1, window = "64kB"' in settings("deadline", window="64kB")
    assert 'policy = "background", credit = 4, window = "32MiB"' in settings("background")


def straggler(**settings: object) -> dict[str, Any]:
    return {"adaptive": {"policy": "straggler", **settings}}


def test_among_workers_that_are_alike_nobody_waits_for_a_straggler() -> None:
    for settings in ({}, {"exchange": False, "tolerance": 0.05}):
        runs = [gt.run(scenario(policy(**settings)).replace(scale_to="5ms")) for policy in (deadline, straggler)]
        assert runs[0].transfers.to_csv() == runs[1].transfers.to_csv()
        assert runs[0].flows.to_csv() == runs[1].flows.to_csv()
    assert "straggler" not in default_policies(scenario("high"))
    slow = scenario("high").set({"job.train.compute.straggler": {"worker": 1, "factor": 2.0}})
    assert default_policies(slow) == list(POLICIES)


def test_who_waits_for_a_straggler_sends_more_low() -> None:
    # Little slack, but that three of four workers wait for the fourth in every iteration.
    slow = {"job.train.compute.straggler": {"worker": 1, "factor": 2.0}, "run.duration": "1s"}
    runs = [gt.run(scenario(policy(tolerance=0)).replace(scale_to="5ms").set(slow)) for policy in (deadline, straggler)]
    high = [run.transfers["high_percent"] for run in runs]
    # The first eight waits teach; until then the policies are one.
    first = 8 * 4
    assert high[0][:first].tolist() == high[1][:first].tolist()
    assert high[1].mean() < high[0].mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", ["packet", "fluid"])
def test_what_an_oracle_foresees_comes_to_pass(engine: str, seed: int) -> None:
    # The core compares when each transfer ends with what the copy of its network showed, and stops where they differ by
    # a picosecond. Ranks add what they receive, and hosts of one neighbour wait for their own flow before the next.
    adding = {"reduction_rate": "20Gbps"}
    bursts = {"src": ["h2", "h3"], "dst": "h0", "bytes": "50kB", "count": 40, "idle": "2ms"}
    keys = {**tiny_tenants(), "traffic": {"web": random_flows(), "closed": {"bursts": bursts}}}
    base = Scenario.from_dict(keys).replace(priority=oracle(0.3), collective=adding)
    result = gt.run(base.replace(seed=seed, engine=engine, duration="100ms"))
    high = result.transfers["high_percent"]
    assert len(high) > 20
    assert 0 < high.mean() < 100


def one_flow_in_the_way(price: float) -> float:
    """Return the share of the first transfer that goes high, on links of 10 Gbit/s without delay."""
    link = {"rate": "10Gbps", "delay": "0us"}
    job = {
        "model": {"name": "one", "layers": [layer("one", "1ms", "1ms", "1MB")]},
        "workers": 2,
        "iterations": 2,
        "schedule": {"barrier": False},
        "priority": oracle(price),
    }
    flows = [{"start": "5200us", "src": "h0", "dst": "h1", "bytes": "100kB"}]
    run = {"engine": "fluid", "duration": "50ms"}
    keys = {
        "job": {"train": job},
        "cluster": {"link": link},
        "traffic": {"one": {"flows": flows, "priority": 1}},
        "run": run,
    }
    high = gt.run(keys).transfers["high_percent"].tolist()
    assert not any(high[1:])
    return float(high[0])


def test_an_oracle_sends_low_what_is_worth_its_price() -> None:
    # A ring of two sends 1 MB in 800 us, in the first measured iteration from 2.8 + 2 ms on, and the next forward pass
    # waits for it. A flow of 80 us, of a size that counts as small, starts after half of it, in the band between. Low:
    # the flow takes 80 us, and the job ends 80 us later. High: the flow waits 400 us for the job. So low is worth it
    # from a price of 80 / 400 = 0.2 on.
    assert one_flow_in_the_way(0.199) == 100
    assert one_flow_in_the_way(0.201) == 0


def test_an_oracle_for_whom_flows_are_worth_nothing_loses_nothing() -> None:
    # Where the high band sees no neighbour (fluid bands are strict, and neighbours are in the next one) and layers are
    # alike, chunks after the present one take what is expected. So low is what costs nothing and nothing else, and
    # every iteration is that of the high band, but for the rounding of the pace: 1 ps for 1024 bytes of four layers of
    # 500 kB, 2 ns.
    base = scenario("high").set({"traffic.web.priority": 1, "run.engine": "fluid"})
    runs = [gt.run(base.replace(priority=priority)) for priority in ("high", oracle(0), "low")]
    high, own, low = (run.iterations["time_us"] for run in runs)
    assert own == pytest.approx(high, abs=0.002)
    assert low.mean() > high.mean() + 100
    assert runs[1].transfers["high_percent"].mean() < 100


def test_a_higher_price_keeps_more_low() -> None:
    # No theorem: what one transfer leaves behind is another network for the next. True here.
    shares = [gt.run(scenario(oracle(price))).transfers["high_percent"].mean() for price in (0, 0.5, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_the_resolved_scenario_has_the_price(tmp_path: Path) -> None:
    result = gt.run(scenario(oracle()))
    text = (result.save(tmp_path / "run") / "scenario.resolved.toml").read_text()
    assert 'priority = { adaptive = { policy = "oracle", price = 1.0 } }' in text
    again = gt.run(Scenario.load(tmp_path / "run" / "scenario.resolved.toml"))
    assert again.summary["jobs"] == result.summary["jobs"]


def test_an_oracle_is_refused_beside_another_job() -> None:
    keys = tiny_tenants()
    keys["job"]["other"] = {**keys["job"]["train"], "workers": 2}
    keys["job"]["train"]["priority"] = oracle()
    with pytest.raises(gt.ScenarioError) as caught:
        Scenario.from_dict(keys).spec()
    (fault,) = caught.value.errors
    assert (fault["code"], fault["loc"]) == ("GT090", "job.train.priority")


@pytest.mark.parametrize(
    ("policy", "plain"), [("all-low", "low"), ("all-high", "high"), ("lower-layers-high", ["high", "low"])]
)
def test_a_fixed_policy_is_the_priority_that_it_stands_for(policy: str, plain: object) -> None:
    assert scenario({"adaptive": {"policy": policy}}).spec() == scenario(plain).spec()


@pytest.mark.parametrize("priority", [deadline(), straggler(), oracle()], ids=["deadline", "straggler", "oracle"])
@pytest.mark.parametrize("change", [{"credit": 2}, {"depth": 2}, {"collective": {"kind": "tree"}}])
def test_what_the_policy_does_not_know_is_refused(change: dict[str, Any], priority: dict[str, Any]) -> None:
    with pytest.raises(gt.ScenarioError) as caught:
        scenario(priority).replace(**change).check_built()
    assert {fault["code"] for fault in caught.value.errors} == {"GT090"}


def test_policies_are_compared_on_the_same_flows(tmp_path: Path) -> None:
    study = policies(tiny_tenants(), seeds=(0, 1), jobs=2)
    assert [row["policy"] for row in study.rows] == ALIKE
    flows = {
        (case.seed, case.side): [
            (row["start_us"], row["src"], row["dst"], row["bytes"]) for row in run.flows.to_dicts()
        ]
        for case, run in study.runs.items()
    }
    assert len(flows) == 2 * (1 + len(ALIKE))
    for seed in (0, 1):
        assert all(flows[seed, policy] == flows[seed, "same"] for policy in ALIKE)
    folder = study.save(tmp_path / "study")
    page = (folder / "report.html").read_text()
    assert all(policy in page for policy in ALIKE)
    assert page.count('class="row point"') == len(ALIKE)


def test_several_jobs_follow_a_policy_together_and_the_one_that_pays_most_is_named(tmp_path: Path) -> None:
    keys = tiny_tenants()
    keys["job"]["other"] = keys["job"]["train"]
    study = policies(keys, ["all-low", "deadline"], seeds=(0, 1), jobs=2)
    assert [row["policy"] for row in study.rows] == ["all-low", "deadline"]
    for row in study.rows:

        def mean_ms(side: str, job: str) -> float:
            runs = [run for case, run in study.runs.items() if case.side == side]
            return sum(run.summary["jobs"][job]["iteration_time_ms"]["mean"] for run in runs) / len(runs)

        grows = {job: mean_ms(row["policy"], job) / mean_ms("same", job) for job in keys["job"]}
        assert row["job"] == max(grows, key=lambda job: grows[job])
        assert row["iteration_change_percent"] == pytest.approx(100 * (grows[row["job"]] - 1))
    moved = [under(Scenario.from_dict(keys), 0, policy).jobs for policy in ("same", "all-low", "deadline")]
    assert [[job.bands for job in jobs] for jobs in moved[:2]] == [[(0,)] * 2, [(2,)] * 2]
    assert [job.adaptive.policy for job in moved[2]] == ["deadline"] * 2
    assert re.search(r": over 2 seeds those of (train|other), which pays most, take ", study.summary["headline"])
    assert "deadline" in (study.save(tmp_path / "study") / "report.html").read_text()
    with pytest.raises(ValueError, match=r"has 2 jobs \(train, other\)"):
        policies(keys, ["all-low"], loads=((0.1,), (0.1,)))
    with pytest.raises(gt.ScenarioError, match="oracle"):
        policies(keys, ["oracle"])
    assert [row["policy"] for row in policies(keys, jobs=2).rows] == [name for name in ALIKE if name != "oracle"]


def test_the_headline_names_the_best_that_a_worker_can_do() -> None:
    study = policies(tiny_tenants(), jobs=2)
    real = [row for row in study.rows if row["policy"] != "oracle"]
    free = [row for row in real if row["colour"] == "green"]
    if free:
        best = max(free, key=lambda row: row["small_mean_saves_percent"])
    else:
        best = min(real, key=lambda row: row["iteration_change_percent"])
    headline = study.summary["headline"]
    assert headline.startswith(f"One run (seed 0), {best['policy']}: ")
    assert headline.endswith("One run has no interval: add --seeds 5.")
    assert f"take {abs(best['iteration_change_percent']):.1f} %" in headline or "as long" in headline
    alone = policies(tiny_tenants(), ["oracle"]).summary["headline"]
    assert alone.startswith("One run (seed 0), oracle: ")
    assert "all-low" not in alone


def test_a_map_of_policies_has_a_row_for_every_cell_and_policy(tmp_path: Path) -> None:
    loads = (TINY_LOADS["job_loads"], TINY_LOADS["traffic_loads"])
    study = policies(tiny_tenants(), ["all-low", "deadline"], loads=loads, jobs=2)
    assert len(study.rows) == 4 * 2
    assert len({row["cell"] for row in study.rows}) == 4
    assert {row["colour"] for row in study.rows} <= {"green", "yellow", "red", "unknown"}
    assert {(row["job_load"], row["traffic_load"]) for row in study.rows} == set(product(*loads))
    page = (study.save(tmp_path / "map") / "report.html").read_text()
    # Each policy's boundary and what flows save: two maps of four cells.
    maps = re.findall(r'<section class="map" aria-label="([^"]*)">(.*?)</section>', page, re.DOTALL)
    assert [title for title, _ in maps] == [
        f"{policy}: what {what}, %"
        for policy in ("all-low", "deadline")
        for what in ("the job pays", "small flows save")
    ]
    for policy, (_, drawn) in zip(("all-low", "deadline"), maps[::2], strict=True):
        own = [row for row in study.rows if row["policy"] == policy]
        colours = re.findall(r'class="cell verdict (\w+)"', drawn)
        ordered = sorted(own, key=lambda row: (-row["job_load"], row["traffic_load"]))
        assert colours == [row["colour"] for row in ordered]


def test_a_scenario_with_its_own_settings_keeps_them() -> None:
    own = under(scenario(deadline(margin=0.3)), 5, "deadline")
    kept = own.jobs[0].adaptive
    assert (own.seed, kept.policy, kept.margin_ppm) == (5, "deadline", 300_000)
    kept = under(scenario(oracle(3)), 5, "oracle").jobs[0].adaptive
    assert (kept.policy, kept.price_ppm) == ("oracle", 3_000_000)
    assert under(scenario(oracle(3)), 5, "deadline").jobs[0].adaptive.policy == "deadline"


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="there are all-low"):
        policies(tiny_tenants(), ["clairvoyant"])
