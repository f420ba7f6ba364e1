"""What a valid scenario becomes: hosts, queues, transports, the core's input, and changed copies."""

# ruff: noqa: E501 (rows of tables)

import math
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

import gradtide
from gradtide.errors import Fault, ScenarioError
from gradtide.layers import Layer
from gradtide.scenario import Scenario
from scenario_parts import MODEL
from specs import NEWRENO, core_fields

# ── the core's input ───────────────────────────────────────────────────────────────────────────


CORE_SCENARIO = f"""
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
CORE_INPUT = {
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


def test_the_core_gets_exactly_what_it_reads() -> None:
    spec = Scenario.from_toml(CORE_SCENARIO).spec()
    layers = spec["jobs"][0].pop("layers")
    assert sum(r["forward_ps"] + r["backward_ps"] + r["update_ps"] for r in layers) == 18 * 10**9
    assert spec == CORE_INPUT


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


NEWRENO = {"kind": "newreno", "byte_counting": False}
CUBIC = {"kind": "cubic", "hystart": False, "byte_counting": False, "as_linux": False}
ECN_QUEUE = {"kind": "ecn", "threshold": "65pkt"}


@pytest.mark.parametrize(
    ("transport", "congestion", "ecn"),
    [
        ({"kind": "newreno"}, NEWRENO, False),
        ({"kind": "newreno", "ecn": True}, NEWRENO, True),
        ({"kind": "newreno+ecn"}, NEWRENO, True),
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
