"""What a valid scenario becomes: quantities, layer tables, hosts, the core's input and the way back to TOML."""

# ruff: noqa: E501, PT017 (rows of tables; faults are looked at where they are caught)

import itertools
import json
import math
import pickle
import subprocess
import sys
from fractions import Fraction
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradtide
from gradtide import units
from gradtide.errors import Fault, ScenarioError
from gradtide.layers import Layer
from gradtide.scenario import Scenario, json_schema, preset_names
from gradtide.scenario.keys import short_names
from gradtide.scenario.source import Failure, Source, locate, tomllib
from gradtide.scenario.tables import read_layers_csv, scaled, thesis_layers
from specs import NEWRENO, core_fields

# A busy machine is no fault of the parser; the time of a load has a test of its own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).parent.parent
MODEL = 'model = { kind = "thesis", layers = 4, size = "1MB", time = "9ms" }'
U64 = st.integers(0, units.U64_MAX)
NO_FAULT = Failure(Source(), ())

# ── units ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate, "10Gbps", 10_000_000_000),
        (units.parse_rate, "1.5Gbit/s", 1_500_000_000),
        (units.parse_rate, "100Mbps", 100_000_000),
        (units.parse_rate, "4GB/s", 32_000_000_000),
        (units.parse_rate, " 25 Gb/s ", 25_000_000_000),
        (units.parse_time, "10us", 10_000_000),
        (units.parse_time, "10µs", 10_000_000),
        (units.parse_time, "0.9s", 900_000_000_000),
        (units.parse_time, "900ms", 900_000_000_000),
        (units.parse_time, "1.5ns", 1_500),
        (units.parse_time, "20ps", 20),
        (units.parse_time, "2min", 120 * 10**12),
        (units.parse_time, "0.4ps", 0),
        (units.parse_time, "0.5ps", 1),
        (units.parse_time, "1.4999ps", 1),
        (units.parse_time, "-0s", 0),
        (units.parse_bytes, "6.28MB", 6_280_000),
        (units.parse_bytes, "64KiB", 65_536),
        (units.parse_bytes, "5333329B", 5_333_329),
        (units.parse_bytes, "1Gb", 125_000_000),
        (units.parse_bytes, "0.1GB", 100_000_000),
        (units.parse_bytes, "1kB", 1_000),
        (units.parse_bytes, "1KB", 1_000),
        (units.parse_packets, "1000pkt", 1000),
        (units.parse_frequency, "23/s", Fraction(23)),
        (units.parse_frequency, "1/min", Fraction(1, 60)),
        (units.parse_ratio, "1/4", Fraction(1, 4)),
        (units.parse_ratio, 0.25, Fraction(1, 4)),
        (units.parse_ratio, 1, Fraction(1)),
    ],
)
def test_a_quantity_is_read_exactly(parse: object, text: object, value: object) -> None:
    assert parse(text) == value  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_time(0), "0s"),
        (units.format_time(900_000_000_000), "900ms"),
        (units.format_time(1_500), "1500ps"),
        (units.format_rate(10**10), "10Gbps"),
        (units.format_rate(1_500_000_000), "1500Mbps"),
        (units.format_bytes(0), "0B"),
        (units.format_bytes(25 * 2**20), "25MiB"),
        (units.format_bytes(5_333_329), "5333329B"),
        (units.format_bytes(1000), "1kB"),
        (units.format_frequency(Fraction(1, 2)), "0.5/s"),
        (units.format_frequency(Fraction(1, 60)), "1/min"),
        (str(units.parse_ratio("2/8")), "1/4"),
        (units.format_packets(60), "60pkt"),
    ],
)
def test_a_quantity_is_written_in_its_largest_whole_unit(text: str, expected: str) -> None:
    assert text == expected


@given(U64)
def test_what_is_written_is_read_back(value: int) -> None:
    assert units.parse_time(units.format_time(value)) == value
    assert units.parse_rate(units.format_rate(value)) == value
    assert units.parse_bytes(units.format_bytes(value)) == value
    assert units.parse_packets(units.format_packets(value)) == value


@given(st.decimals(0, 10**6, places=7), st.sampled_from(["/s", "/ms", "/us", "/min", "/h"]))
def test_a_rate_of_events_is_read_back(number: object, unit: str) -> None:
    value = units.parse_frequency(f"{number:f}{unit}")
    assert units.parse_frequency(units.format_frequency(value)) == value


@given(st.text())
def test_any_text_is_a_quantity_or_a_unit_error(text: str) -> None:
    for parse in (
        units.parse_time,
        units.parse_rate,
        units.parse_bytes,
        units.parse_packets,
        units.parse_ratio,
    ):
        try:
            assert parse(text) >= 0
        except units.UnitError as error:
            assert error.code.startswith("GT")


@given(st.integers(0, 10**9), st.integers(0, 999_999))
def test_microseconds_of_a_column_are_exact(whole: int, fraction: int) -> None:
    assert units.parse_decimal_us(f"{whole}.{fraction:06}") == whole * 10**6 + fraction


# ── layer tables ───────────────────────────────────────────────────────────────────────────────


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


# ── the papers' presets ────────────────────────────────────────────────────────────────────────


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


# ── the core's input ───────────────────────────────────────────────────────────────────────────


def test_the_core_gets_exactly_what_it_reads() -> None:
    text = f"""
[job.train]
{MODEL}
hosts = ["h3", "h1"]
iterations = 7
compute = {{ scale_to = "18ms", overlap_slowdown = 1.25, noise = 0.05, straggler = {{ worker = 1, factor = 1.5 }} }}
schedule = {{ order = "priority", queues = 8, fusion = "0B", chunk = "64KiB", barrier = false, overhead = "2us", sync = "4us" }}
priority = "low"
start = "1ms"
[cluster]
topology = {{ kind = "star", hosts = 4 }}
link = {{ rate = "1Gbps", delay = "5us", efficiency = 0.95 }}
host_latency = "3us"
host = {{ message = "15us", stages = {{ serialise = "7Gbps", receive = "1GB/s" }} }}
[run]
seed = 42
duration = "2s"
timeline = 0
"""
    spec = Scenario.from_toml(text).spec()
    layers = spec["jobs"][0].pop("layers")
    assert sum(r["forward_ps"] + r["backward_ps"] + r["update_ps"] for r in layers) == 18 * 10**9
    assert spec == {
        "jobs": [
            {
                "name": "train",
                "hosts": [3, 1],
                "iterations": 7,
                "collective": {
                    "algorithm": {"kind": "ring"},
                    "remainder": "sent",
                    "depth": 1,
                    "reduction_rate_bps": None,
                },
                "schedule": {
                    "order": {"kind": "priority", "queues": 8},
                    "fusion": {"kind": "cap", "bytes": 0},
                    "chunk_bytes": 65_536,
                    "credit": 1,
                    "barrier": False,
                    "overhead_ps": 2_000_000,
                    "sync_ps": 4_000_000,
                },
                "bands": [2],
                "start_ps": 10**9,
                "compute": {
                    "overlap_slowdown_ppm": 1_250_000,
                    "noise_ppm": 50_000,
                    "straggler": {"worker": 1, "factor_ppm": 1_500_000, "probability_ppm": 1_000_000},
                },
                "servers": None,
                "ops": None,
                "announced_packets": None,
                "adaptive": None,
                "parallel": None,
                "recorded": None,
            }
        ],
        "cluster": {
            "topology": {"kind": "star", "hosts": 4},
            "link": {"rate_bps": 10**9, "delay_ps": 5_000_000, "efficiency_ppm": 950_000},
            "node": None,
            "host_latency_ps": 3_000_000,
            "host": {
                "message_ps": 15_000_000,
                "stages": {"copy_bps": None, "serialise_bps": 7 * 10**9, "receive_bps": 8 * 10**9},
            },
            "routing": "ecmp",
            "queue": {
                "discipline": {"kind": "pfifo_fast"},
                "capacity": {"packets": 1000},
                "mark": None,
                "pcn": None,
            },
            "switch_buffer": None,
            "transport": NEWRENO,
        },
        "traffic": [],
        "run": {
            "engine": "fluid",
            "accuracy_ppm": None,
            "follow": "standards",
            "start_jitter_ps": None,
            "seed": 42,
            "all_ranks": False,
            "duration_ps": 2 * 10**12,
            "timeline_iterations": 0,
            "probe": None,
        },
    }


def test_the_fields_are_those_of_the_core() -> None:
    cells = {
        "cluster.queue": {"kind": "ecn", "threshold": "40pkt"},
        "cluster.switch_buffer": {"capacity": "1MB"},
        "run.probe": {"every": "1ms", "cwnd": ["train"]},
    }
    spec = Scenario.load("paper/gao2020-ch5").set(cells).spec()
    assert set(Scenario.load("paper/gao2020-ch4").spec()) == set(spec)
    # What Python leaves out would have the core's default.
    for place in (
        (),
        ("jobs", 0),
        ("jobs", 0, "layers", 0),
        ("jobs", 0, "collective"),
        ("jobs", 0, "compute"),
        ("jobs", 0, "schedule"),
        ("cluster",),
        ("cluster", "link"),
        ("cluster", "queue"),
        ("cluster", "switch_buffer"),
        ("cluster", "transport"),
        ("run",),
        ("run", "probe"),
        ("run", "probe", "cwnd", 0),
        ("traffic", 0),
    ):
        assert set(reduce(getitem, place, spec)) == core_fields(spec, *place), place


@pytest.mark.parametrize(
    ("queue", "discipline", "mark"),
    [
        ({"kind": "pfifo_fast"}, {"kind": "pfifo_fast"}, None),
        ({"kind": "fifo"}, {"kind": "fifo"}, None),
        ({"kind": "strict", "bands": 4}, {"kind": "strict", "bands": 4}, None),
        ({"kind": "drr", "weights": [4, 1]}, {"kind": "drr", "weights": [4, 1]}, None),
        (
            {"kind": "ecn", "threshold": "20pkt"},
            {"kind": "fifo"},
            {"kind": "threshold", "packets": 20, "at": "enqueue"},
        ),
        (
            {"kind": "ecn", "threshold": "20pkt", "mark_at": "dequeue"},
            {"kind": "fifo"},
            {"kind": "threshold", "packets": 20, "at": "dequeue"},
        ),
        (
            {"kind": "strict", "bands": 3, "threshold": "20pkt"},
            {"kind": "strict", "bands": 3},
            {"kind": "threshold", "packets": 20, "at": "enqueue"},
        ),
        (
            {"kind": "red", "min": "5pkt", "max": "15pkt"},
            {"kind": "fifo"},
            {
                "kind": "red",
                "min_packets": 5,
                "max_packets": 15,
                "max_probability_ppm": 100_000,
                "weight_ppm": 2_000,
                "ecn": False,
            },
        ),
        (
            {"kind": "red", "min": "5pkt", "max": "15pkt", "max_probability": 0.02, "weight": 0.5, "ecn": True},
            {"kind": "fifo"},
            {
                "kind": "red",
                "min_packets": 5,
                "max_packets": 15,
                "max_probability_ppm": 20_000,
                "weight_ppm": 500_000,
                "ecn": True,
            },
        ),
    ],
)
def test_a_queue_is_a_discipline_and_perhaps_marks(queue: object, discipline: object, mark: object) -> None:
    scenario = Scenario.load("paper/gao2020-ch5").set({"cluster.queue": queue, "cluster.transport.segment": "1448B"})
    spec = scenario.spec()["cluster"]
    assert spec["queue"] == {"discipline": discipline, "capacity": {"packets": 1000}, "mark": mark, "pcn": None}
    assert spec["transport"]["segment_bytes"] == 1448
    assert Scenario.from_toml(scenario.to_toml()).spec()["cluster"] == spec


CUBIC = {"kind": "cubic", "hystart": False, "byte_counting": False}
ECN_QUEUE = {"kind": "ecn", "threshold": "65pkt"}


@pytest.mark.parametrize(
    ("transport", "congestion", "ecn"),
    [
        ({"kind": "newreno"}, {"kind": "newreno"}, False),
        ({"kind": "newreno", "ecn": True}, {"kind": "newreno"}, True),
        ({"kind": "newreno+ecn"}, {"kind": "newreno"}, True),
        ({"kind": "cubic"}, CUBIC, False),
        ({"kind": "cubic", "hystart": True}, CUBIC | {"hystart": True}, False),
        ({"kind": "cubic+ecn", "ecn": True}, CUBIC, True),
        ({"kind": "dctcp"}, {"kind": "dctcp", "gain_ppm": 62_500}, True),
        ({"kind": "dctcp", "gain": 0.25}, {"kind": "dctcp", "gain_ppm": 250_000}, True),
        ({"kind": "ideal"}, {"kind": "ideal"}, False),
    ],
)
def test_a_transport_is_a_congestion_control_and_perhaps_ecn(transport: object, congestion: object, ecn: bool) -> None:
    scenario = Scenario.load("paper/gao2020-ch5").set({"cluster.queue": ECN_QUEUE, "cluster.transport": transport})
    spec = scenario.spec()["cluster"]["transport"]
    assert (spec["congestion"], spec["ecn"]) == (congestion, ecn)
    assert set(scenario.to_dict()["cluster"]["transport"]) >= {"kind", "ecn", "segment", "initial_cwnd", "window"}
    assert Scenario.from_toml(scenario.to_toml()) == scenario


def test_the_window_of_the_ideal_transport_is_twice_what_a_route_holds() -> None:
    base = Scenario.load("paper/gao2020-ch5")

    def window(transport: object) -> int:
        spec = base.set({"cluster.transport": transport}).spec()["cluster"]["transport"]
        assert isinstance(spec["window_bytes"], int)
        return spec["window_bytes"]

    # Four delays of 10 us; a packet of 1434 bytes and one of 54, twice each at 10 Gbit/s.
    round_ns = 4 * 10_000 + 2 * (1434 + 54) * 0.8
    assert window({"kind": "ideal"}) == 2 * math.ceil(round_ns / (1434 * 0.8)) * 1380
    assert window({"kind": "ideal", "window": "1MB"}) == 10**6
    assert window({"kind": "cubic"}) == 32 * 2**20


@pytest.mark.parametrize(
    ("written", "capacity"),
    [
        ("60pkt", {"packets": 60}),
        ("2kpkt", {"packets": 2000}),
        ("1MB", {"bytes": 1_000_000}),
        ("64KiB", {"bytes": 65_536}),
    ],
)
def test_buffers_are_in_packets_or_in_bytes(written: str, capacity: object) -> None:
    changes = {"cluster.queue.capacity": written, "cluster.switch_buffer": {"capacity": written, "alpha": 0.5}}
    scenario = Scenario.load("paper/gao2020-ch5").set(changes)
    spec = scenario.spec()["cluster"]
    assert spec["queue"]["capacity"] == capacity
    assert spec["switch_buffer"] == {"capacity": capacity, "alpha_ppm": 500_000}
    assert Scenario.from_toml(scenario.to_toml()).spec()["cluster"] == spec


def test_what_a_queue_leaves_open_is_written_out() -> None:
    base = Scenario.load("paper/gao2020-ch5")
    red = base.set({"cluster.queue": {"kind": "red", "min": "5pkt", "max": "15pkt"}}).to_dict()["cluster"]["queue"]
    assert (red["max_probability"], red["weight"], red["ecn"]) == (0.1, 0.002, False)
    marked = base.set({"cluster.queue": {"kind": "strict", "bands": 2, "threshold": "9pkt"}}).to_dict()["cluster"]
    assert marked["queue"]["mark_at"] == "enqueue"


@pytest.mark.parametrize(
    ("queue", "low"),
    [({"kind": "pfifo_fast"}, 2), ({"kind": "strict", "bands": 2}, 1), ({"kind": "strict", "bands": 8}, 7)],
)
def test_low_is_the_last_band_of_the_queue(queue: object, low: int) -> None:
    base = Scenario.load("paper/gao2020-ch5").set({"cluster.queue": queue})
    scenario = base.set({"job.train.priority": "low", "traffic.web.priority": 1})
    assert (scenario.jobs[0].bands, set(scenario.traffic[0].band)) == ((low,), {1})


def test_defaults_are_those_documented() -> None:
    scenario = Scenario.from_toml(f"[job.a]\n{MODEL}\nworkers = 3")
    (job,) = scenario.jobs
    assert (scenario.engine, scenario.seed, scenario.hosts) == ("fluid", 0, 3)
    assert (scenario.link_rate_bps, scenario.link_delay_ps) == (10**10, 10**7)
    assert (job.iterations, job.schedule.order, job.schedule.barrier, job.bands, job.schedule.chunk_bytes) == (
        10,
        "fifo",
        True,
        (0,),
        None,
    )
    assert job.schedule.fusion_bytes == 25 * 2**20
    assert "V100" not in scenario.to_toml()


def test_a_duration_alone_leaves_iterations_open() -> None:
    text = f'[job.a]\n{MODEL}\nworkers = 3\n[run]\nduration = "1s"'
    assert Scenario.from_toml(text).jobs[0].iterations is None
    assert Scenario.from_toml(text.replace("workers", "iterations = 5\nworkers")).jobs[0].iterations == 5


def test_jobs_get_the_lowest_free_hosts() -> None:
    text = f"[job.a]\n{MODEL}\nworkers = 2\n[job.b]\n{MODEL}\nhosts = ['h1', 'h4']\n[job.c]\n{MODEL}\nworkers = 2\n"
    scenario = Scenario.from_toml(text)
    assert [job.hosts for job in scenario.jobs] == [(0, 2), (1, 4), (3, 5)]
    assert scenario.hosts == 6
    assert Scenario.from_toml(scenario.to_toml()) == scenario


def test_jobs_may_share_hosts_of_the_packet_engine() -> None:
    text = f"[job.a]\n{MODEL}\nworkers = 2\n[job.b]\n{MODEL}\nworkers = 2\n[cluster]\ntopology.hosts = 3\n"
    scenario = Scenario.from_toml(text + '[run]\nengine = "packet"')
    assert [job.hosts for job in scenario.jobs] == [(0, 1), (2, 0)]


def test_hosts_of_a_clos_follow_from_its_ports() -> None:
    text = f"[job.a]\n{MODEL}\nworkers = 16\n[cluster]\ntopology = {{ kind = 'clos3', ports = 4 }}\n"
    assert Scenario.from_toml(text).hosts == 16
    with pytest.raises(ScenarioError):
        Scenario.from_toml(text.replace("clos3", "clos2"))


def test_an_order_file_gives_every_layer_its_rank(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("layer2\nlayer0\n\nlayer3\nlayer1\n")
    text = f'[job.a]\n{MODEL}\nworkers = 2\nschedule = {{ order = "file", file = "o.csv" }}\n'
    scenario = Scenario.from_toml(text, base_dir=tmp_path)
    assert scenario.spec()["jobs"][0]["schedule"]["order"] == {"kind": "file", "ranks": [1, 3, 0, 2], "in_turn": False}
    again = Scenario.from_toml(scenario.to_toml(), base_dir="/nowhere")
    assert again.spec() == scenario.spec()


@pytest.mark.parametrize("workers", [1_000_000])
def test_the_largest_number_of_workers_is_quick(workers: int) -> None:
    assert Scenario.load("paper/gao2020-ch4").replace(workers=workers).jobs[0].workers == workers


# ── variations ─────────────────────────────────────────────────────────────────────────────────


def test_replace_changes_a_copy() -> None:
    base = Scenario.load("paper/gao2020-ch4")
    fast = base.replace(link_rate="25Gbps", order="priority", queues=4, barrier=False, workers=8, seed=3)
    assert (fast.link_rate_bps, fast.jobs[0].schedule.queues, fast.jobs[0].workers, fast.seed) == (25 * 10**9, 4, 8, 3)
    assert base.link_rate_bps == 10**10
    assert fast.replace(queues=None, order="fifo").jobs[0].schedule.queues is None
    assert base.replace(collective="ring") == base
    assert base.replace(fusion=None).jobs[0].schedule.fusion_bytes == 25 * 2**20
    with pytest.raises(AttributeError):
        base.seed = 1  # type: ignore[misc]


def test_replace_takes_layers_and_every_job() -> None:
    text = f"[job.a]\n{MODEL}\nhosts = ['h0', 'h1']\n[job.b]\n{MODEL}\nhosts = ['h2', 'h3']\n"
    base = Scenario.from_toml(text)
    layers = [Layer("x", 1000, 2000, 4, 5)]
    changed = base.replace(model=layers, iterations=3)
    assert [(job.layers, job.iterations) for job in changed.jobs] == [(tuple(layers), 3)] * 2
    assert [job.hosts for job in base.replace(workers=3).jobs] == [(0, 1, 2), (3, 4, 5)]


def test_replace_has_no_other_names() -> None:
    with pytest.raises(TypeError, match="did you mean 'workers'"):
        Scenario.load("paper/gao2020-ch4").replace(worker=3)


def test_set_reads_toml_values_and_else_texts() -> None:
    base = Scenario.load("paper/gao2020-ch4")
    changed = base.set(
        {
            "cluster.link.rate": "1Gbps",
            "job.train.workers": "16",
            "job.train.schedule.barrier": "false",
            "job.train.compute": '{ scale_to = "1s" }',
            "run.seed": 7,
        }
    )
    assert (changed.link_rate_bps, changed.jobs[0].workers, changed.jobs[0].schedule.barrier) == (10**9, 16, False)
    assert (changed.jobs[0].compute_ps, changed.seed) == (10**12, 7)
    assert changed.set({"job.train.compute.scale_to": "2s"}).jobs[0].compute_ps == 2 * 10**12


# ── round trips ────────────────────────────────────────────────────────────────────────────────

NAMES = st.text(st.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=12)
LAYER = st.fixed_dictionaries(
    {
        "name": NAMES,
        "forward": st.integers(1, 10**12).map(units.format_time),
        "backward": st.integers(0, 10**12).map(units.format_time),
        "parameters": st.integers(0, 10**9).map(units.format_bytes),
    },
    optional={"update": st.integers(0, 10**9).map(units.format_time)},
)
SCENARIOS = st.fixed_dictionaries(
    {
        "job": st.dictionaries(
            st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
            st.fixed_dictionaries(
                {
                    "model": st.fixed_dictionaries(
                        {"layers": st.lists(LAYER, min_size=1, max_size=4, unique_by=lambda r: r["name"])},
                        optional={"name": NAMES},
                    ),
                    "workers": st.integers(1, 20),
                },
                optional={
                    "iterations": st.integers(1, 1000),
                    "priority": st.sampled_from(["high", 0, {"adaptive": {"policy": "deadline"}}]),
                    "compute": st.fixed_dictionaries(
                        {},
                        optional={
                            "scale_to": st.integers(1, 10**12).map(units.format_time),
                            "overlap_slowdown": st.floats(1, 100),
                        },
                    ),
                    "schedule": st.fixed_dictionaries(
                        {"order": st.sampled_from(["fifo", "random", "priority", "tic"])},
                        optional={
                            "fusion": st.integers(0, 10**9).map(units.format_bytes),
                            "chunk": st.integers(10**6, 10**9).map(units.format_bytes),
                            "barrier": st.booleans(),
                        },
                    ),
                },
            ),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "cluster": st.fixed_dictionaries(
            {},
            optional={
                "link": st.fixed_dictionaries(
                    {}, optional={"efficiency": st.floats(0.01, 1), "delay": st.sampled_from(["0s", "1us"])}
                ),
                "routing": st.sampled_from(["ecmp", "dmodk", "spread"]),
                "queue": st.sampled_from(
                    [
                        {"kind": "fifo", "capacity": "1MB"},
                        {"kind": "red", "min": "5pkt", "max": "15pkt"},
                        {"kind": "drr", "weights": [4, 2, 1], "threshold": "9pkt"},
                    ]
                ),
                "switch_buffer": st.sampled_from([{"capacity": "100pkt"}, {"capacity": "1MB", "alpha": 0.5}]),
            },
        ),
        "run": st.fixed_dictionaries(
            {},
            optional={
                "seed": st.integers(0, 2**63 - 1),
                "probe": st.sampled_from([{"every": "1ms"}, {"every": "3us", "links": ["h0"]}]),
            },
        ),
    },
)


@given(SCENARIOS)
def test_a_resolved_scenario_is_read_back(data: dict[str, dict[str, dict[str, object]]]) -> None:
    has_one_band = data.get("cluster", {}).get("queue", {}).get("kind") in ("fifo", "red")
    assume(not (has_one_band and any(isinstance(job.get("priority"), dict) for job in data["job"].values())))
    scenario = Scenario.from_dict(data)
    again = Scenario.from_toml(scenario.to_toml())
    assert again.to_toml() == scenario.to_toml()
    assert again.jobs == scenario.jobs
    assert again.sha256 == scenario.sha256
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    spans = locate(scenario.to_toml())
    assert paths(scenario.to_dict()) <= set(spans)


def paths(tree: object, at: tuple[object, ...] = ()) -> set[tuple[object, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = {at} if at else set()
    return found.union(*(paths(value, (*at, key)) for key, value in children))


def test_every_way_to_write_a_key_has_its_line() -> None:
    text = (
        'a = 1 # not b = 2\n"quoted \\u0061" = 2\nsite."google.com" = true\n[t . "x y"]\ns = """\n[no]\nk = 1\\"""" \n'
        "l = [ 1, # one\n  { z = 'a]b', y.x = [[2]] },\n]\n[[arr]]\nn = 1\n[[arr]]\nn = 2\n[arr.sub]\nd = 1979-05-27 07:32:00\n"
        "[[arr.deep]]\nq = ''''two'' quotes'''\n[t.u]\nv = {}\n"
    )
    spans = locate(text)
    lines = {".".join(str(p) for p in path): text.count("\n", 0, span.value[0]) + 1 for path, span in spans.items()}
    data = tomllib.loads(text)
    assert paths(data) <= set(spans)
    assert lines["quoted a"] == 2
    assert lines["site.google.com"] == 3
    assert lines["t.x y.s"] == 5
    assert lines["t.x y.l.1.y.x.0.0"] == 9
    assert (lines["arr.0.n"], lines["arr.1.n"], lines["arr.1.sub.d"], lines["arr.1.deep.0.q"]) == (
        12,
        14,
        16,
        18,
    )
    assert lines["t.u.v"] == 20
    start, stop = spans["arr", 1, "sub", "d"].value
    assert text[start:stop] == "1979-05-27 07:32:00"


# ── schema ─────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_describes_every_field_with_an_example() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    tables = [schema, *schema["$defs"].values()]
    for table in tables:
        assert table["description"]
        assert table["additionalProperties"] is False
        for name, field in table["properties"].items():
            assert field["description"].endswith("."), name
            assert field["examples"], name


def test_examples_of_the_schema_are_valid() -> None:
    fields = json_schema()["$defs"]["Schedule"]["properties"]
    for key in ("order", "fusion", "chunk", "barrier", "depth", "overhead"):
        for value in fields[key]["examples"]:
            Scenario.from_toml(f"[job.a]\n{MODEL}\nworkers = 2").set({f"job.a.schedule.{key}": value})


def test_importing_the_parser_brings_nothing_heavy() -> None:
    code = (
        "import sys, gradtide.scenario; "
        "print([m for m in ('numpy', 'torch', 'rich', 'typer', 'jinja2', 'tomlkit') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fault_without_text_has_no_carets() -> None:
    assert Fault("GT002", "", "m", file="f").render() == "error[GT002]: m\n  --> f\nhelp: gradtide explain GT002"


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_a_scenario_of_background_flows_alone_is_valid(engine: str) -> None:
    text = f"""
traffic.web = {{ sizes = "web-search", load = 0.1 }}
cluster.topology = {{ kind = "star", hosts = 4 }}
run = {{ engine = "{engine}", duration = "20ms" }}
"""
    scenario = Scenario.from_toml(text)
    assert (scenario.jobs, scenario.hosts, len(scenario.traffic)) == ((), 4, 1)
    assert (scenario.spec()["jobs"], len(scenario.spec()["traffic"])) == ([], 1)
    assert "job" not in scenario.to_dict()
    again = Scenario.from_toml(scenario.to_toml())
    assert (again, again.replace(seed=3).seed) == (scenario, 3)


def test_every_short_name_reaches_its_key() -> None:
    base = Scenario.from_toml(f"[job.a]\n{MODEL}\nworkers = 2")
    tables = json_schema()["$defs"]
    assert {"overhead", "link_rate", "compute_order", "order_file", "servers"} <= set(short_names())
    for name, path in short_names().items():
        with pytest.raises(ScenarioError) as caught:
            base.replace(**{name: {"nonsense": 1}})
        where = ".".join("a" if part == "*" else part for part in path)
        assert any(fault.loc.startswith(where) or fault.text.startswith(f"{name}=") for fault in caught.value.faults)
    assert path[-1] in tables["Run"]["properties"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["compare", "--rate", "10"], "--rate 10"),
        (["compare", "--workers", "0"], "--workers 0"),
        (["run", "--engine", "foo"], "--engine foo"),
        (["run", "--set", "run.engine=foo"], "run.engine=foo"),
    ],
)
def test_a_fault_names_the_option_that_was_typed(arguments: list[str], shown: str) -> None:
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "gradtide", command, str(ROOT / "scenarios" / "own-model.toml"), *rest],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"--> {rest[0]} " in done.stderr
    assert f"   | {shown}\n" in done.stderr
    assert "replace()" not in done.stderr


def test_a_host_cost_is_paid_for_every_message() -> None:
    base = Scenario.from_toml(f'[job.a]\n{MODEL}\nworkers = 4\n[cluster]\nlink = {{ delay = "10us" }}')
    slow = base.replace(host_message="10us")
    assert "host]" not in base.to_toml()
    assert slow.to_dict()["cluster"]["host"]["message"] == "10us"
    assert slow.spec()["cluster"]["host"]["message_ps"] == 10_000_000
    # Another 10 us in each of the 2(N-1) steps is what 15 us on each of two links are.
    delayed = base.replace(link_delay="15us")
    times = [gradtide.run(one).job["iteration_time_ms"]["mean"] for one in (base, slow, delayed)]
    assert times[0] < times[1] == times[2]


def test_an_error_is_answered_without_what_a_run_needs() -> None:
    code = (
        "import sys\n"
        "from gradtide.errors import ScenarioError\n"
        "from gradtide.studies.trained import trained\n"
        "try:\n    trained('no-such.toml')\n"
        "except ScenarioError:\n    print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
