"""Layer tables, model files and the presets of the papers: what each resolves to."""

# ruff: noqa: E501 (rows of tables)

import itertools
import json
import pickle
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import units
from gradtide.errors import ScenarioError
from gradtide.layers import Layer
from gradtide.scenario import Scenario, preset_names
from gradtide.scenario.source import Failure, Source, tomllib
from gradtide.scenario.tables import read_layers_csv, scaled, thesis_layers
from scenario_parts import U64
from specs import NEWRENO

NO_FAULT = Failure(Source(), ())


def test_the_synthetic_table_is_that_of_the_thesis() -> None:
    count, time_ps = 50, 900 * 10**9
    layers = thesis_layers(count, 100_000_000, time_ps, "exact", NO_FAULT)
    assert layers[0].parameter_bytes == 444_444
    assert [layers[i].parameter_bytes // 444_444 for i in (0, 24, 25, 37, 38, 49)] == [1, 1, 4, 4, 12, 12]
    assert sum(r.parameter_bytes for r in layers) == 98_222_124
    forward, backward = Fraction(time_ps, 3), Fraction(2 * time_ps, 3)
    d, e = 2 * forward / (count * (count - 1)), 2 * backward / (count * (count - 1))
    # Each of the 50 times is rounded by at most half a picosecond.
    assert abs(sum(r.forward_ps for r in layers) - (forward + d)) <= Fraction(count, 2)
    assert abs(sum(r.backward_ps for r in layers) - (backward + e)) <= Fraction(count, 2)
    assert layers[0].forward_ps == units.round_half_up(2 * forward / count)
    assert layers[-1].forward_ps == units.round_half_up(d)
    assert layers[0].backward_ps == layers[1].backward_ps == units.round_half_up(e)
    assert layers[-1].backward_ps == units.round_half_up((count - 1) * e)


@given(
    st.lists(st.tuples(U64, U64, U64), min_size=1, max_size=20).filter(lambda t: any(map(any, t))),
    st.integers(1, units.U64_MAX),
)
def test_rescaled_times_sum_exactly_and_keep_their_ratio(times: list[tuple[int, int, int]], total_ps: int) -> None:
    layers = [Layer(str(i), f, b, 0, u) for i, (f, b, u) in enumerate(times)]
    result = scaled(layers, total_ps)
    after = [t for r in result for t in (r.forward_ps, r.backward_ps, r.update_ps)]
    before = list(itertools.chain.from_iterable(times))
    assert sum(after) == total_ps
    for old, new in zip(before, after, strict=True):
        assert abs(new - Fraction(old * total_ps, sum(before))) < 1


def test_a_layer_table_is_read_exactly(tmp_path: Path) -> None:
    text = "layer, backward_us, forward_us, parameter_bytes, update_us\r\n\r\n" + '"conv, 1",2.000001,0.5,400,0.25\r\n'
    (tmp_path / "net.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    scenario = Scenario.from_dict({"job": {"a": {"model": "net.csv", "workers": 1}}}, tmp_path)
    (job,) = scenario.jobs
    assert job.model == "net"
    assert job.layers == (Layer("conv, 1", 500_000, 2_000_001, 400, 250_000),)
    assert job.compute.device is None
    again = Scenario.from_toml(scenario.to_toml())
    assert again == scenario
    assert again.spec() == scenario.spec()
    assert again.jobs == scenario.jobs


def test_faults_of_a_layer_table_end_somewhere() -> None:
    text = "layer,forward_us,backward_us,parameter_bytes\n" + "a,x,y,z\n" * 10_000
    with pytest.raises(ScenarioError) as caught:
        read_layers_csv(text, "m.csv")
    assert 20 <= len(caught.value.errors) < 50


def test_a_timed_model_file_is_read_exactly(tmp_path: Path) -> None:
    rows = [
        {"name": "a", "forward_us": 0.1, "backward_us": 1e3, "parameter_bytes": 4},
        {"name": "b", "forward_us": 3, "backward_us": 2.5, "update_us": 1, "parameter_bytes": 0},
    ]
    (tmp_path / "m.json").write_text(json.dumps({"schema": "gradtide.model/1", "name": "mine", "layers": rows}))
    (tmp_path / "s.json").write_text('{"job": {"a": {"model": "m.json", "workers": 2}}}')
    scenario = Scenario.load(tmp_path / "s.json")
    assert scenario.jobs[0].model == "mine"
    assert scenario.jobs[0].layers == (
        Layer("a", 100_000, 1_000_000_000, 4),
        Layer("b", 3_000_000, 2_500_000, 0, 1_000_000),
    )
    assert Scenario.from_toml(scenario.to_toml()) == scenario


def test_a_model_of_counts_takes_its_times_from_a_device(tmp_path: Path) -> None:
    pytest.importorskip("gradtide.roofline")
    preset = Scenario.from_toml('[job.a]\nmodel = "resnet50"\nworkers = 2\ncompute = { device = "V100", batch = 64 }')
    (job,) = preset.jobs
    assert (job.model, job.compute.device, job.compute.batch) == ("resnet50", "V100", 64)
    assert job.compute_ps > 0
    assert preset.to_dict()["job"]["a"]["model"] == "resnet50"
    assert Scenario.from_toml(preset.to_toml()).spec() == preset.spec()
    rows = [{"name": "a", "forward_flops": 10**9, "activation_bytes": 10**6, "parameter_bytes": 4}]
    (tmp_path / "m.json").write_text(json.dumps({"schema": "gradtide.model/1", "name": "mine", "layers": rows}))
    counted = Scenario.from_dict({"job": {"a": {"model": "m.json", "workers": 2, "compute": {"batch": 8}}}}, tmp_path)
    assert counted.jobs[0].compute.batch == 8
    assert counted.jobs[0].compute_ps > 0
    assert Scenario.from_toml(counted.to_toml()).spec() == counted.spec()


def test_the_preset_of_chapter_4_is_table_4_1() -> None:
    scenario = Scenario.load("paper/gao2020-ch4")
    (job,) = scenario.jobs
    assert (scenario.link_rate_bps, scenario.link_delay_ps) == (10**10, 5 * 10**6)
    assert (len(job.layers), job.workers, job.schedule.order, job.schedule.barrier) == (100, 2, "fifo", True)
    assert job.schedule.fusion_bytes == 6_280_000
    assert scenario.spec()["run"] == {
        "engine": "fluid",
        "accuracy_ppm": None,
        "follow": "standards",
        "start_jitter_ps": None,
        "seed": 0,
        "all_ranks": False,
        "duration_ps": None,
        "timeline_iterations": 2,
        "probe": None,
    }


def test_the_preset_of_chapter_5_is_the_cell_r16_f23_of_its_study() -> None:
    scenario = Scenario.load("paper/gao2020-ch5")
    (job,) = scenario.jobs
    assert (len(job.layers), job.workers, job.iterations, job.schedule.barrier) == (50, 8, None, False)
    assert (job.parameter_bytes, job.schedule.fusion_bytes, job.bands) == (98_222_124, 5_333_329, (0,))
    assert (scenario.duration_ps, scenario.warmup_ps, scenario.cooldown_ps) == (12 * 10**12, 2 * 10**12, 2 * 10**12)
    spec = scenario.spec()
    assert spec["run"]["engine"] == "packet"
    assert spec["cluster"]["queue"] == {
        "discipline": {"kind": "pfifo_fast"},
        "capacity": {"packets": 1000},
        "mark": None,
        "pcn": None,
    }
    # The fast recovery of the simulator that the thesis ran.
    assert spec["cluster"]["transport"] == NEWRENO | {"recovery": "ns3.30"}
    (web,) = spec["traffic"]
    assert (web["name"], set(web["band"])) == ("web", {0})
    assert {len(web[column]) for column in ("start_ps", "src", "dst", "bytes", "band")} == {2203}


def test_the_other_cells_of_chapter_5_are_set() -> None:
    cell = Scenario.load("paper/gao2020-ch5").set(
        {
            "job.train.compute.scale_to": "560ms",
            "traffic.web.arrivals.rate": "92/s",
            "job.train.priority": "low",
        }
    )
    # The table for T = 560 ms, whose sum passes T by d + e = 2T / L(L-1), less what single precision cuts off.
    surplus_ps = 2 * 560 * 10**9 // (50 * 49)
    assert 0 <= 560 * 10**9 + surplus_ps - cell.jobs[0].compute_ps < 100 * 10**3
    assert cell.jobs[0].bands == (2,)
    assert len(cell.traffic[0]) == 8833
    assert set(cell.traffic[0].band) == {0}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_resolves_to_the_same_bytes_again(name: str) -> None:
    scenario = Scenario.load(name)
    again = Scenario.from_toml(scenario.to_toml(), name="resolved")
    assert again.to_toml() == scenario.to_toml()
    assert (again, hash(again), again.sha256) == (scenario, hash(scenario), scenario.sha256)
    assert again.to_dict() == scenario.to_dict()
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    assert tomllib.loads(scenario.to_toml()) == scenario.to_dict()


def test_a_pickled_scenario_needs_none_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("layer,forward_us,backward_us,parameter_bytes\na,1,1,1000000\n")
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n" + "1,0,1,1000\n" * 20_000)
    (tmp_path / "s.toml").write_text(
        '[job.train]\nmodel = "m.csv"\nworkers = 2\n[traffic.web]\nreplay = "f.csv"\n[run]\nengine = "fluid"\n'
        'duration = "5ms"\n[cluster]\ntopology = { kind = "star", hosts = 2 }\nlink = { rate = "10Gbps", delay = "1us" }\n'
    )
    scenario = Scenario.load(tmp_path / "s.toml")
    pickled, spec = pickle.dumps(scenario), scenario.spec()
    for file in tmp_path.iterdir():
        file.unlink()
    again = pickle.loads(pickled)
    assert (again, again.sha256, again.spec()) == (scenario, scenario.sha256, spec)
    with pytest.raises(AttributeError, match="never changes"):
        again.seed = 1
