"""Studies of a job beside its neighbours: bands paired by seed, the thesis's formulas, the loads of a map."""

import math
from pathlib import Path
from typing import Any

import pytest

from gradtide import Scenario, run
from gradtide.studies.alone import alone_ps, flows_of
from gradtide.studies.run import run_all
from gradtide.studies.tenants.bands import TenantsResult, figures, tenants
from gradtide.studies.tenants.boundary import BoundaryResult, boundary
from gradtide.studies.tenants.boundary import figures as figures_of_cell
from gradtide.studies.tenants.cases import SAME, Case, Cell, variant
from gradtide.studies.tenants.comparison import Effect, averaged, colour, sentence, verdict
from gradtide.units import PS_PER_MS
from run_folders import TINY_LOADS, listed_flows, results, tiny_tenants


@pytest.fixture(scope="module")
def beside() -> TenantsResult:
    return tenants(tiny_tenants(), seeds=(0, 3), jobs=2)


@pytest.fixture(scope="module")
def mapped() -> BoundaryResult:
    return boundary(tiny_tenants(), **TINY_LOADS)


def test_both_bands_of_a_seed_see_the_same_flows_and_seeds_differ(beside: TenantsResult) -> None:
    def flows(seed: int, band: str) -> list[tuple[Any, ...]]:
        table = beside.results[Case(seed, band)].flows.to_dicts()
        return [tuple(row[key] for key in ("traffic", "flow", "start_us", "src", "dst", "bytes")) for row in table]

    assert len(flows(0, "same")) > 20
    assert flows(0, "same") == flows(0, "low")
    assert flows(3, "same") == flows(3, "low")
    assert flows(0, "same") != flows(3, "same")


def test_the_bands_differ_in_the_priority_of_the_job_alone(beside: TenantsResult) -> None:
    same, low = (beside.results[Case(0, band)].scenario.to_dict() for band in ("same", "low"))
    assert same["job"]["train"].pop("priority") != low["job"]["train"].pop("priority")
    assert same == low


def test_figures_are_means_over_seeds_and_changes_those_of_the_thesis(beside: TenantsResult) -> None:
    def mean(band: str, size: str) -> float:
        rows = [row for row in beside.rows if (row["band"], row["class"]) == (band, size)]
        assert [row["seed"] for row in rows] == [0, 3]
        return sum(row["mean_fct_ms"] for row in rows) / 2

    small = beside.summary["classes"]["small"]["mean_fct_ms"]
    same, low = mean("same", "small"), mean("low", "small")
    assert (small["same"], small["low"]) == pytest.approx((same, low))
    # Section 5.4: what shrinks is related to the lower band; what grows, to the same band.
    assert small["change_percent"] == pytest.approx(100 * (same - low) / low)
    assert small["saves_percent"] == pytest.approx(100 * (same - low) / same)
    iteration = beside.summary["iteration_time_ms"]
    change = 100 * (iteration["low"] - iteration["same"]) / iteration["same"]
    assert iteration["change_percent"] == pytest.approx(change)
    assert iteration["saves_percent"] == pytest.approx(-change)
    assert figures(beside.summary)["iteration_change_percent"] == iteration["change_percent"]
    assert figures(beside.summary)["small_mean_saves_percent"] == small["saves_percent"]


@pytest.mark.parametrize(
    ("cost_percent", "name"),
    [
        (None, "unknown"),
        (-5.0, "green"),
        (0.0, "green"),
        (math.nextafter(1.0, 0.0), "green"),
        (1.0, "yellow"),
        (30.0, "yellow"),
        (math.nextafter(30.0, 31.0), "red"),
        (1e6, "red"),
    ],
)
def test_colours_change_at_one_and_thirty_percent(cost_percent: float | None, name: str) -> None:
    assert colour(cost_percent) == name


def test_the_loads_of_a_cell_are_those_of_the_thesis(mapped: BoundaryResult) -> None:
    for (job_load, traffic_load), study in mapped.cells.items():
        job = study.scenario.jobs[0]
        # Eq. 5.2: size x 2 (1 - 1/N) x 8 / (compute time x rate). Each layer's time is rounded to whole picoseconds.
        bits = job.parameter_bytes * 2 * (1 - 1 / job.workers) * 8
        seconds = job.compute_ps / 1e12
        assert bits / (seconds * study.scenario.link_rate_bps) == pytest.approx(job_load, rel=1e-8)
        assert study.scenario.to_dict()["traffic"]["web"]["load"] == traffic_load
        row = next(row for row in mapped.rows if row["cell"] == Cell(job_load, traffic_load).name)
        assert row["compute_ms"] == job.compute_ps / PS_PER_MS


def test_a_cell_is_the_study_of_its_own_scenario(mapped: BoundaryResult) -> None:
    cell = (0.5, 0.25)
    alone = tenants(mapped.cells[cell].scenario)
    row = next(row for row in mapped.rows if row["cell"] == "job-50-flows-25")
    assert row["iteration_same_ms"] == alone.summary["iteration_time_ms"]["same"]
    assert row["iteration_change_percent"] == alone.summary["iteration_time_ms"]["change_percent"]
    assert row["small_saves_percent"] == alone.summary["classes"]["small"]["mean_fct_ms"]["saves_percent"]
    assert row["colour"] == alone.summary["colour"]
    assert "cell" not in figures_of_cell(row)
    assert mapped.summary["cells"] == mapped.rows


def test_more_flows_come_at_a_higher_load(mapped: BoundaryResult) -> None:
    counts = {cell: len(study.results[Case(0, SAME, cell)].flows.to_dicts()) for cell, study in mapped.cells.items()}
    assert counts[0.125, 0.25] > 2 * counts[0.125, 0.0625]
    assert counts[0.125, 0.25] == counts[0.5, 0.25]


def test_several_neighbours_share_the_background_load() -> None:
    base = tiny_tenants()
    base["traffic"]["store"] = {"sizes": "cache-follower", "load": 0.4}
    result = boundary(base, job_loads=(0.25,), traffic_loads=(0.1,))
    written = next(iter(result.cells.values())).scenario.to_dict()["traffic"]
    assert [table["load"] for table in written.values()] == [0.05, 0.05]


def test_runs_at_once_change_no_byte(tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        of_tenants: list[float] = []
        of_map: list[float] = []
        tenants(tiny_tenants(), seeds=(0, 1), jobs=jobs, progress=of_tenants.append).save(tmp_path / name / "tenants")
        boundary(tiny_tenants(), **TINY_LOADS, jobs=jobs, progress=of_map.append).save(tmp_path / name / "map")
        for shares in (of_tenants, of_map):
            assert shares == sorted(shares)
            assert shares[-1] == 1
    one, two = (results(tmp_path / name) for name in ("one", "two"))
    assert {"map/cells.csv", "map/report.html", "map/cells/job-50-flows-25/report.html"} <= set(one)
    assert one == two


def test_the_scenario_of_any_run_of_a_map_makes_the_map_again(mapped: BoundaryResult, tmp_path: Path) -> None:
    mapped.save(tmp_path / "map")
    scenario = tmp_path / "map/cells/job-50-flows-6.25/runs/seed0-same/scenario.resolved.toml"
    boundary(Scenario.load(str(scenario)), **TINY_LOADS).save(tmp_path / "again")
    assert results(tmp_path / "map") == results(tmp_path / "again")


def test_one_seed_is_called_one_run_and_its_headline_tells_how_to_get_an_interval() -> None:
    summary = tenants(tiny_tenants(), seeds=(2,)).summary
    assert "One run (seed 2), de-prioritising this job: " in summary["headline"]
    assert summary["headline"].endswith("One run has no interval: add --seeds 5.")
    assert summary["verdict"] == "one run"
    assert summary["iteration_time_ms"]["saves_interval_percent"] is None


def test_the_interval_is_students_t_on_what_each_seed_saves(beside: TenantsResult) -> None:
    of = {(row["seed"], row["band"]): row["mean_fct_ms"] for row in beside.rows if row["class"] == "small"}
    saved = [of[seed, "same"] - of[seed, "low"] for seed in (0, 3)]
    mean_same = (of[0, "same"] + of[3, "same"]) / 2
    # Two values: their mean, and 12.706 times half their distance (the standard error of two values).
    half = 12.706 * abs(saved[0] - saved[1]) / 2
    ends = [100 * (sum(saved) / 2 + sign * half) / mean_same for sign in (-1, 1)]
    pair = beside.summary["classes"]["small"]["mean_fct_ms"]
    assert pair["saves_interval_percent"] == pytest.approx(ends, rel=1e-4)
    assert ends[0] < pair["saves_percent"] < ends[1]


@pytest.mark.parametrize(
    ("cost", "gain", "said", "begins"),
    [
        ((-0.2, 0.3), (12.0, 30.0), "free", "Doing so is free here: "),
        ((-0.2, 0.3), (-4.0, 30.0), "no cost", "Doing so costs the job nothing here, and with 2 seeds it is unclear"),
        ((-0.2, 0.3), (-20.0, -4.0), "harmful", "Doing so costs the job nothing here, but small flows finish later: "),
        ((0.5, 2.0), (12.0, 30.0), "unclear", "Unclear with 2 seeds whether doing so is free here: "),
        ((2.0, 9.0), (12.0, 30.0), "costs", "Doing so has a price here: "),
        ((31.0, 50.0), (12.0, 30.0), "too expensive", "Doing so is too expensive here: "),
        # Not free is known where it is unclear how dear it is.
        ((2.0, 50.0), (12.0, 30.0), "costs, unclear", "Doing so has a price here, and with 2 seeds it is unclear"),
        ((1.0, 30.5), (12.0, 30.0), "costs, unclear", "Doing so has a price here, and with 2 seeds it is unclear"),
        ((0.9, 50.0), (12.0, 30.0), "unclear", "Unclear with 2 seeds whether doing so is free here: "),
    ],
)
def test_the_verdict_follows_from_both_intervals(
    cost: tuple[float, float], gain: tuple[float, float], said: str, begins: str
) -> None:
    effects = [Effect(sum(ends) / 2, ends) for ends in (cost, gain)]
    assert verdict(*effects) == said
    assert sentence("doing so", *effects, (0, 1)).startswith(begins)


def test_the_average_over_cells_is_unknown_where_one_of_them_is() -> None:
    # Else a policy under which too little completes in the hardest cell would be judged by the others.
    assert averaged([[0.0, 0.2], [0.4, 0.2]]) == pytest.approx([0.2, 0.2])
    assert averaged([[0.0, 0.2], None]) is None
    assert Effect.of(averaged([[0.0, 0.2], None])).is_free is None


def test_small_flows_that_are_slower_are_never_said_to_gain_nothing() -> None:
    text = sentence("doing so", Effect(0.0), Effect(-10.6), (2,))
    assert "small flows finish 10.6 % later on average" in text
    assert "free" not in text


def test_a_single_measured_iteration_is_called_that() -> None:
    keys = {**tiny_tenants(), "run": {"engine": "packet", "duration": "600ms"}}
    keys["job"]["train"]["iterations"] = 1
    keys["traffic"]["web"]["arrivals"] = {"rate": "400/s"}
    result = tenants(keys)
    assert result.summary["jobs"]["train"]["measured_iterations"] == 1
    assert "its only measured iteration takes" in result.summary["headline"]


def test_flows_that_start_when_no_job_runs_say_nothing_about_it() -> None:
    keys = tiny_tenants()
    keys["job"]["train"] |= {"iterations": 2, "start": "50ms"}
    result = tenants(keys)
    ends = [result.results[Case(0, side)].iterations.to_dicts()[-1] for side in ("same", "low")]
    until_us = min(row["start_us"] + row["time_us"] for row in ends)
    assert 50e3 < until_us < 150e3
    for row in (row for row in result.rows if row["class"] == "all"):
        starts = result.results[Case(0, row["band"])].flows["start_us"]
        assert row["started"] == ((starts >= 50e3) & (starts < until_us)).sum() > 0
    assert result.summary["counted"]["until_ms"] == pytest.approx(until_us / 1e3)
    assert "until_ms" not in tenants(tiny_tenants()).summary["counted"]


def test_seeds_that_give_the_same_run_have_no_interval() -> None:
    keys = {**tiny_tenants(), "traffic": {"web": listed_flows(0, 20)}}
    keys["run"]["start_jitter"] = "0s"
    # Each iteration draws whether the worker is slow, and it always is.
    keys["job"]["train"]["compute"] = {"straggler": {"worker": 0, "factor": 1.5, "probability": 0.999999}}
    result = tenants(keys, seeds=(0, 1))
    assert result.comparison.is_repeated
    assert "2 seeds that gave the same run, " in result.summary["headline"]
    assert result.summary["classes"]["small"]["mean_fct_ms"]["saves_interval_percent"] is None


def test_the_flows_without_any_job_are_always_beside(beside: TenantsResult) -> None:
    small = beside.summary["classes"]["small"]["mean_fct_ms"]
    alone = [beside.results[Case(seed, "no-job")] for seed in (0, 3)]
    assert all(not run.scenario.jobs for run in alone)
    own = [run.summary["traffic"]["web"]["small"]["mean_fct_ms"] for run in alone]
    assert small["no_job"] == pytest.approx(sum(own) / 2)
    assert small["no_job"] < small["same"]
    # What the job does to them in their band: paired by seed, in percent of the mean without it.
    with_job = [beside.results[Case(seed, SAME)].summary["traffic"]["web"]["small"]["mean_fct_ms"] for seed in (0, 3)]
    added = [100 * (b - a) / small["no_job"] for a, b in zip(own, with_job, strict=True)]
    assert small["job_adds_percent"] == pytest.approx(sum(added) / 2)
    half = 12.706 * abs(added[0] - added[1]) / 2
    assert small["job_adds_interval_percent"] == pytest.approx([sum(added) / 2 - half, sum(added) / 2 + half], rel=1e-4)
    assert f"{small['job_adds_percent']:.1f} % later" in beside.summary["headline"]


def test_alone_a_flow_takes_what_its_packets_take_on_idle_links() -> None:
    quiet = variant(Scenario.from_dict(tiny_tenants()), 0, "no-job")
    segment, rate = quiet.segment_bytes, quiet.link_rate_bps
    sizes = [segment, 2 * segment, 50 * segment, 1000 * segment]
    (times,) = alone_ps([(quiet, {("web", 0, 1, size) for size in sizes})], run_all)
    took = [times["web", 0, 1, size] for size in sizes]
    # Behind the first, every segment takes its own time on one link: payload and 54 bytes of headers.
    each_ps = (segment + 54) * 8 * 10**12 / rate
    for ps, size in zip(took, sizes, strict=True):
        assert ps - took[0] == pytest.approx((size // segment - 1) * each_ps, abs=size // segment * 1e3)


LOSING = {"kind": "fifo", "capacity": "20pkt"}


@pytest.mark.parametrize(
    ("engine", "cluster"),
    [
        ("fluid", {}),
        ("packet", {"queue": LOSING}),
        ("packet", {"queue": LOSING, "transport": {"kind": "cubic"}}),
        ("packet", {"queue": {"kind": "ecn", "threshold": "8pkt"}, "transport": {"kind": "dctcp"}}),
        ("packet", {"queue": LOSING, "transport": {"kind": "ideal", "window": "300kB"}}),
    ],
)
def test_no_flow_is_faster_than_the_network_allows_it_alone(engine: str, cluster: dict[str, Any]) -> None:
    keys = {key: value for key, value in tiny_tenants().items() if key != "job"}
    link = keys["cluster"].get("link", {})
    keys["cluster"] = {"link": link, "topology": {"kind": "star", "hosts": 4}, **cluster}
    keys["run"]["engine"] = engine
    drawn = run(keys)
    (times,) = alone_ps([(drawn.scenario, flows_of([drawn]))], run_all)
    flows = [row for row in drawn.flows.to_dicts() if row["fct_us"]]
    assert len(flows) > 20
    for row in flows:
        assert round(1e6 * row["fct_us"]) >= times[row["traffic"], row["src"], row["dst"], row["bytes"]]


def test_slowdown_is_completion_time_by_that_of_the_flow_alone(beside: TenantsResult) -> None:
    for seed, side in ((0, "same"), (3, "low")):
        result, alone = beside.results[Case(seed, side)], beside.comparison.alone_ps[seed]
        flows = result.flows.to_dicts()
        own = [1e6 * f["fct_us"] / alone[f["traffic"], f["src"], f["dst"], f["bytes"]] for f in flows if f["fct_us"]]
        row = next(row for row in beside.rows if (row["seed"], row["band"], row["class"]) == (seed, side, "all"))
        assert row["mean_slowdown"] == pytest.approx(sum(own) / len(own))
        assert min(own) >= 1


def test_size_classes_can_be_set() -> None:
    result = tenants(tiny_tenants(), classes="small=10kB,large=1MB")
    sizes = result.results[Case(0, SAME)].flows["bytes"]
    counts = {row["class"]: row["started"] for row in result.rows if row["band"] == "same"}
    assert (counts["small"], counts["large"]) == ((sizes <= 10_000).sum(), (sizes >= 1_000_000).sum())
    assert result.summary["counted"]["small_bytes"] == 10_000


@pytest.mark.parametrize("text", ["tiny=1kB", "small=1MB,large=1MB", "small=1kB,small=2kB", "small", "large=3", ""])
def test_size_classes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size class|larger size|given twice|unit"):
        tenants(tiny_tenants(), classes=text)


def test_of_several_jobs_all_or_one_move_and_each_is_shown() -> None:
    keys = of_two_jobs()
    both, one = tenants(keys), tenants(keys, job="other")
    assert [job["moved"] for job in both.summary["jobs"].values()] == [True, True]
    assert {name: job["moved"] for name, job in one.summary["jobs"].items()} == {"train": False, "other": True}
    low = one.results[Case(0, "low")].scenario
    assert [job.bands for job in low.jobs] == [(0,), (2,)]
    assert all(job["iteration_time_ms"]["same"] for job in both.summary["jobs"].values())
    assert "these 2 jobs" in both.summary["headline"]
    with pytest.raises(ValueError, match='no job "third"; it has train, other'):
        tenants(keys, job="third")


def test_a_cell_whose_interval_has_several_colours_is_unclear() -> None:
    assert Effect(0.5, (-1.0, 0.9)).colour == "green"
    assert Effect(0.5, (-1.0, 1.5)).colour == "unclear"
    assert Effect(0.5).colour == "green"
    study = boundary(tiny_tenants(), job_loads=(0.5,), traffic_loads=(0.25,), seeds=(0, 1))
    (row,) = study.rows
    ends = (row["iteration_change_from_percent"], row["iteration_change_to_percent"])
    assert row["colour"] == Effect(row["iteration_change_percent"], ends).colour


def test_the_headline_counts_every_colour(mapped: BoundaryResult) -> None:
    study = next(iter(mapped.cells.values()))
    unknown = TenantsResult(study.comparison)
    unknown.summary["colour"] = "unknown"
    text = BoundaryResult({Cell(0.1, 0.1): unknown}).summary["headline"]
    assert "less than 1 % in 0 of 1 cells" in text
    assert "In 1, too few flows or iterations completed to judge." in text


def test_a_headline_promises_no_gain_that_is_a_loss(mapped: BoundaryResult) -> None:
    study = next(iter(mapped.cells.values()))
    losing = TenantsResult(study.comparison)
    losing.summary["colour"] = "green"
    losing.summary["classes"]["small"]["mean_fct_ms"]["saves_percent"] = -3.0
    assert "sooner" not in BoundaryResult({Cell(0.1, 0.1): losing}).summary["headline"]


def without_flows() -> dict[str, Any]:
    return {key: value for key, value in tiny_tenants().items() if key != "traffic"}


def of_four_hosts() -> dict[str, Any]:
    base = tiny_tenants()
    base["cluster"]["topology"] = {"kind": "star", "hosts": 4}
    return base


def of_two_jobs() -> dict[str, Any]:
    base = tiny_tenants()
    base["job"]["other"] = base["job"]["train"]
    return base


@pytest.mark.parametrize("study", [tenants, boundary])
@pytest.mark.parametrize(
    ("scenario", "options", "message"),
    [
        (without_flows(), {}, r"no \[traffic\.NAME\]"),
        ({key: value for key, value in of_four_hosts().items() if key != "job"}, {}, r"no \[job\.NAME\]"),
        (tiny_tenants(), {"seeds": ()}, "at least one seed"),
    ],
)
def test_what_is_no_study_of_tenants_is_refused(
    study: Any, scenario: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        study(scenario, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"job_loads": ()}, "job_loads: the list is empty"),
        ({"traffic_loads": (0.1, 1.0)}, "1.0 is not a load"),
        ({"job_loads": (0.0,)}, "0.0 is not a load"),
        ({"job_loads": (math.nan,)}, "nan is not a load"),
        ({"traffic_loads": (0.25, 0.1, 0.2500000001)}, "25 % is given twice"),
        ({"job_loads": (0.5, 0.001)}, r"two do not fit into run.duration = .* or job loads from 0\.0\d on"),
    ],
)
def test_loads_that_make_no_map_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        boundary(tiny_tenants(), **options)


def test_a_map_is_of_one_job() -> None:
    with pytest.raises(ValueError, match=r"has 2 jobs \(train, other\); this study takes one"):
        boundary(of_two_jobs())


def test_flows_that_are_listed_and_a_job_that_sends_nothing_have_no_map() -> None:
    with pytest.raises(ValueError, match=r"\[traffic\.web\] has no random arrivals"):
        boundary({**tiny_tenants(), "traffic": {"web": listed_flows(0, 5)}})
    silent = tiny_tenants()
    for layer in silent["job"]["train"]["model"]["layers"]:
        layer["parameters"] = "0B"
    with pytest.raises(ValueError, match=r"\[job\.train\] sends nothing"):
        boundary(silent)
