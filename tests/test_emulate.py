"""`gradtide emulate`: programs of hosts, refusals, and runs on real packets where namespaces can be created."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import gradtide as gt
from gradtide.errors import EmulationRefusal
from gradtide.studies.check import emulation
from gradtide.studies.emulate import results
from gradtide.studies.emulate.programs import Players, bands, commands, service
from gradtide.studies.emulate.study import PREFIX, remove_leftovers

INCAST = """
[cluster]
topology = {{ kind = "star", hosts = 3 }}
link = {{ rate = "100Mbps", delay = "100us" }}
queue = {queue}
transport = {{ kind = "{transport}", timers = "linux" }}

[traffic.web]
flows = [
    {{ start = "0s", src = "h0", dst = "h1", bytes = "{bytes}" }},
    {{ start = "50ms", src = "h2", dst = "h1", bytes = "{bytes}" }},
]

[run]
engine = "packet"
duration = "10s"
"""
FIFO = '{ kind = "fifo", capacity = "60pkt" }'
ECN = '{ kind = "ecn", capacity = "60pkt", threshold = "10pkt" }'


def incast(queue=FIFO, transport="cubic", size="2MB"):
    return gt.Scenario.from_toml(INCAST.format(queue=queue, transport=transport, bytes=size))


# Programs


@pytest.mark.parametrize("count", range(1, 9))
def test_a_band_has_a_service_that_leads_back_to_it(count):
    assert [bands(count)[service(band, count) >> 2] for band in range(count)] == list(range(count))
    assert service(7, count) == service(count - 1, count)


def test_three_bands_are_those_of_linux():
    # tc-prio(8): low delay, no mark, high throughput.
    assert [bands(3)[tos >> 2] for tos in (0x10, 0x00, 0x08)] == [0, 1, 2]


def test_ranks_find_one_another():
    found = commands(incast(), {"h1": "true"}, ["python", "train.py"], [1, 0])
    assert [(one.host, one.environment.get("RANK")) for one in found] == [(1, None), (1, "0"), (0, "1")]
    assert {one.environment["MASTER_ADDR"] for one in found[1:]} == {"10.71.0.2"}
    assert found[0].environment["GRADTIDE_HOSTS"] == "10.71.0.1 10.71.0.2 10.71.0.3"
    with pytest.raises(ValueError, match="its hosts are h0 to h2"):
        commands(incast(), {"h3": "true"}, [], [])


def test_a_command_in_one_text_is_refused_with_its_words():
    with pytest.raises(ValueError, match=r"write \['python', 'a b.py'\]"):
        gt.emulate(incast(), command="python 'a b.py'")


def test_figures_can_be_checked():
    summary = {"packets": {"sent": 9, "delivered": 8, "dropped": 1, "marked": 0}, "differing_decisions": None}
    summary |= {"lateness": {"p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0, "max_us": 4.0, "late_share": 0.5}}
    jobs = {"a": {"iteration_time_ms": 5.0}, "b": {"iteration_time_ms": 6.0}}
    assert results.figures(summary | {"jobs": jobs})["iteration_time_ms"] == 6.0
    found = results.figures(summary | {"jobs": {}})
    assert set(found) == set(results.FIGURES)
    assert (found["iteration_time_ms"], found["dropped"], found["late_share"]) == (None, 1, 0.5)


def test_a_ring_of_three_sends_what_it_receives():
    base = gt.Scenario.load("paper/gao2020-ch4")
    scenario = base.set({"job.train.workers": 3, "run.engine": "packet"})
    plans = Players(scenario, plays_jobs=True).plans
    jobs = [plans[host]["jobs"][0] for host in sorted(plans)]
    sizes = [layer.parameter_bytes for layer in scenario.jobs[0].layers]
    for transfers in zip(*(job["transfers"] for job in jobs), strict=True):
        sent = sum(size for _, steps in transfers for _, sends in steps for _, size in sends)
        # Each of N ranks sends 2 (N - 1) / N of the gradients.
        assert sent == 4 * sum(sizes[layer] for layer in transfers[0][0])
        for step in range(4):
            to = [0, 0, 0]
            for _, steps in transfers:
                for peer, _ in steps[step][1]:
                    to[peer] += 1
            assert to == [steps[step][0] for _, steps in transfers] == [1, 1, 1]


# Results


def test_a_folder_has_a_report_and_is_recognised(tmp_path):
    samples = [
        {"at_ps": step * 10**9, "port": 0, "packets": step, "bytes": 10 * step, "busy_ps": step * 5 * 10**8}
        | {"drops": step // 2, "marks": 0, "threshold": None}
        for step in range(9)
    ]
    queues = results.queues_of({"samples": samples}, ["switch0-h1"], 1500.0)
    # Samples from before the start are left out; the others count from the previous sample.
    assert queues["time_us"].tolist() == [1e3 * step - 1500 for step in range(2, 9)]
    assert (queues["drops"].tolist(), set(queues["utilisation"])) == ([1, 0, 1, 0, 1, 0, 1], {0.5})
    flow = {"traffic": "web", "flow": 0, "start_us": 0.0, "src": 0, "dst": 1, "bytes": 100, "band": 0}
    rows = [{"kind": "started", "flow": number, "start_ns": 2000} for number in (0, 2)]
    rows += [{"kind": "unfinished", "flow": 2, "bytes": size, "at_ns": 2000 + 100 * size} for size in (10, 50)]
    rows += [{"kind": "received", "flow": 0, "at_ns": 9000}]
    flows = results.flows_of([flow | {"flow": number} for number in range(3)], rows, 1000)
    # Flow 1 has not started. Flow 2 is unfinished: 50 bytes had arrived after 5 us.
    assert [row["flow"] for row in flows.to_dicts()] == [0, 2]
    assert [row["received_us"] for row in flows.to_dicts()] == [7.0, None]
    assert flows["delivered_bytes"].tolist() == [100, 50]
    assert flows["mean_rate_bps"].tolist() == pytest.approx([800 / 7e-6, 400 / 5e-6])
    link = {"link": "h0", "packets": 3, "bytes": 9, "busy_ps": 10**6, "drops": 0, "marks": 0, "queue_packets_max": 1}
    links = results.links_of({"links": [link], "duration_ps": 10**9}, [100])
    burst = {"traffic": "worker", "src": 0, "dst": 1, "at_us": 1.5, "announced": True, "start_queue_packets": 3.0}
    burst |= {"longest_queue_packets": None, "mean_wait_us": None, "queue_drops": 0.0, "burst_ms": 1.5}
    burst |= {"completion_ms": 2.5, "retransmits": 2}
    begun = [
        {"kind": "iteration", "job": "train", "rank": 0, "iteration": step, "start_ns": 5000 * step}
        for step in (0, 1, 2)
    ]
    iterations = results.iterations_of(begun)
    assert iterations["time_us"].tolist() == [5.0, 5.0]
    late = {"p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0, "max_us": 4.0, "late_share": 0.0}
    summary = {"schema": results.SCHEMA, "scenario": "incast", "headline": "Done.", "duration_s": 1.0, "lateness": late}
    summary |= {"packets": dict.fromkeys(("sent", "delivered", "dropped", "marked"), 5), "differing_decisions": 0}
    summary |= {"jobs": {"train": {"iterations": 1, "iteration_time_ms": 5.0}}}
    made = gt.EmulationResult(
        incast(), summary, links, queues, flows, gt.Table.of_dicts([burst]), iterations, {"h0-command": "done"}
    )
    made.save(tmp_path / "run")
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert all(
        part in page for part in ("gradtide emulate: incast", "Queue before switch0-h1", "queue at the start, packets")
    )
    scenario, emulated = emulation.of_folder(tmp_path / "run")
    assert (scenario, emulated.flows, emulated.iterations) == (incast(), {("web", 0): 7.0}, {0: 5.0, 1: 5.0})
    assert emulation.is_emulation(str(tmp_path / "run"))
    assert not emulation.is_emulation(str(tmp_path))


# Refusals


@pytest.mark.parametrize(
    ("scenario", "code", "fix"),
    [
        (incast(ECN, "dctcp"), "transport", "cubic+ecn"),
        (incast().set({"cluster.link.rate": "40Gbps"}), "load", "--set cluster.link.rate=1Gbps"),
    ],
)
@pytest.mark.linux
def test_what_cannot_be_emulated_is_refused_with_its_fix(scenario, code, fix):
    with pytest.raises(EmulationRefusal) as refused:
        gt.emulate(scenario)
    assert refused.value.code == code
    assert fix in str(refused.value)


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EmulationRefusal, match=r"Only Linux has network namespaces. Run it on Linux"):
        gt.emulate(incast())


# Real packets

real = pytest.mark.skipif(
    "GRADTIDE_REAL_PACKETS" not in os.environ, reason="depends on the clock; make validate-testbed runs it"
)


@real
@pytest.mark.linux
def test_flows_arrive_and_a_replay_decides_the_same():
    # A loaded machine is late, which does not change decisions.
    result = gt.emulate(incast(), max_late=1.0, compares=True)
    flows = result.flows.to_dicts()
    assert [flow["bytes"] for flow in flows] == [2_000_000, 2_000_000]
    # Together, 4 MB at 100 Mbit/s take 320 ms and more.
    assert 0.32e6 < max(flow["start_us"] + flow["received_us"] for flow in flows) < 5e6
    packets = result.summary["packets"]
    assert packets["sent"] == packets["delivered"] + packets["dropped"] > 3_000
    assert result.summary["differing_decisions"] == 0
    assert result.summary["switch"]["without_checksum"] == result.summary["switch"]["too_long"] == 0
    link = next(row for row in result.links.to_dicts() if row["packets"] > 1_000)
    assert link["bytes"] > 2_000_000


@real
@pytest.mark.linux
def test_marks_reach_linux_and_replace_drops():
    result = gt.emulate(incast(ECN, "cubic+ecn", "10MB"), max_late=1.0, compares=True)
    packets = result.summary["packets"]
    assert packets["marked"] > 5
    assert packets["dropped"] < packets["marked"]
    assert result.summary["differing_decisions"] == 0


@real
@pytest.mark.linux
def test_commands_run_on_their_hosts_and_see_their_names(tmp_path):
    command = "cat /sys/class/net/eth0/mtu; getent hosts h1; ls -d /proc/[0-9]* | wc -l"
    result = gt.emulate(incast(size="1kB"), on={"h0": command}, max_late=1)
    lines = result.outputs["h0-command"].split()
    # IP packets of segment 1380 and 52 bytes of headers; the shell and its pipe are the only processes.
    assert (lines[0], lines[1], lines[2]) == ("1432", "10.71.0.2", "h1")
    assert int(lines[3]) <= 4
    result.save(tmp_path / "run")
    assert {"summary.json", "links.csv", "h0-command.txt"} <= set(os.listdir(tmp_path / "run"))
    assert json.loads((tmp_path / "run/summary.json").read_text())["schema"] == "gradtide.emulation/1"


@real
@pytest.mark.linux
def test_a_failed_command_ends_the_run_with_its_last_line():
    with pytest.raises(gt.SimulationError, match="h1 ended with status 3: no gpu"):
        gt.emulate(incast(size="1kB"), on={"h1": "echo no gpu; exit 3"}, max_late=1)


@real
@pytest.mark.linux
def test_short_links_are_refused():
    with pytest.raises(EmulationRefusal, match="60us or more"):
        gt.emulate(incast().set({"cluster.link.delay": "50us"}))


def _marked(text):
    """Return the processes whose command line contains `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@real
@pytest.mark.linux
@pytest.mark.parametrize("after_s", [0.1 * step for step in range(6, 36)])
def test_a_kill_leaves_nothing(tmp_path, after_s):
    path = tmp_path / f"killed-{os.getpid()}.toml"
    path.write_text(INCAST.format(queue=FIFO, transport="cubic", bytes="500MB"))
    sleeper = f"sleep 1234{os.getpid()}"
    command = [sys.executable, "-m", "gradtide", "emulate", str(path), "--on", f"h0={sleeper}", "--max-late", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
    end_s = time.monotonic() + 5
    while (left := _marked(sleeper.replace(" ", "\0").encode())) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert left == []
    remove_leftovers()
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}{process.pid}-*"))
