"""Queues, shared buffers and probes as a scenario asks for them: a run with a probe is the run without."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradtide import Scenario, run
from gradtide.report import encode_timeline, render
from gradtide.report.folder import read_table
from gradtide.report.pieces import busiest
from gradtide.studies.tenants.bands import tenants
from gradtide.studies.tenants.cases import SAMPLES, probed
from run_folders import tiny_tenants

TABLES = ("iterations", "transfers", "operations", "links", "flows")
HEADER_BYTES = 54
"""Headers of a packet: IPv4 20, TCP 20, timestamps 12, framing 2."""


def scenario(**cluster: Any) -> Scenario:
    return Scenario.from_dict(tiny_tenants()).set({f"cluster.{key}": value for key, value in cluster.items()})


def incast(**cluster: Any) -> Scenario:
    """Return three senders that meet at one port of the switch, beside a job that sends next to nothing."""
    flows = {"dst": "h0", "senders": 3, "bytes": "2MB", "every": "100ms"}
    return scenario(**cluster).set({"traffic.web.incast": flows})


QUEUES = st.sampled_from(
    [
        {"kind": "pfifo_fast", "capacity": "30pkt"},
        {"kind": "fifo", "capacity": "60kB"},
        {"kind": "strict", "bands": 2, "capacity": "40pkt", "threshold": "9pkt"},
        {"kind": "drr", "weights": [3, 1], "capacity": "80kB", "threshold": "9pkt", "mark_at": "dequeue"},
        {"kind": "ecn", "capacity": "40pkt", "threshold": "9pkt"},
        {"kind": "pcn", "capacity": "40pkt", "threshold": "20pkt", "announced": "5pkt"},
        {"kind": "red", "capacity": "40pkt", "min": "5pkt", "max": "15pkt", "weight": 0.1},
        {"kind": "red", "capacity": "40pkt", "min": "5pkt", "max": "15pkt", "max_probability": 0.02, "ecn": True},
    ]
)
BUFFERS = st.sampled_from(
    [None, {"capacity": "30pkt"}, {"capacity": "90kB", "alpha": 0.5}, {"capacity": "64KiB", "alpha": 8}]
)
PROBES = st.sampled_from(
    [
        {"every": "1ms"},
        {"every": "377us", "cwnd": ["train", "web"]},
        {"every": "1s"},
        {"every": "2ms", "links": ["s-h1"], "cwnd": ["web.3"]},
    ]
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queue=QUEUES, buffer=BUFFERS, probe=PROBES, seed=st.integers(0, 9))
def test_a_run_with_a_probe_is_the_run_without(queue: Any, buffer: Any, probe: Any, seed: int) -> None:
    base = scenario(queue=queue, switch_buffer=buffer).replace(seed=seed, duration="100ms")
    plain, seen = run(base), run(base.set({"run.probe": probe}))
    for name in TABLES:
        assert getattr(plain, name).to_csv() == getattr(seen, name).to_csv(), name
    assert len(plain.queues) == len(plain.cwnd) == 0
    cost = {"cpu_s", "wall_s", "peak_rss_mb"}
    for summary in (plain.summary, seen.summary):
        summary["cost"] = {key: value for key, value in summary["cost"].items() if key not in cost}
    assert seen.summary.pop("probe_every_ms") > 0
    assert seen.summary.pop("scenario_sha256") != plain.summary.pop("scenario_sha256")
    assert seen.summary == plain.summary


def test_samples_add_up_to_what_the_links_count() -> None:
    result = run(incast(queue={"kind": "fifo", "capacity": "30pkt"}).set({"run.probe": {"every": "1ms"}}))
    queues, links = result.queues.to_numpy(), result.links.to_numpy()
    assert result.summary["links"]["drops"] > 0
    # 300 ms in steps of 1 ms, with a row for every link; the last instant is the end.
    assert len(result.queues) == 300 * len(links["link"])
    assert queues["time_us"][-1] == 300_000
    for link, drops, busy_us, longest in zip(
        links["link"], links["drops"], links["busy_us"], links["max_queue_packets"], strict=True
    ):
        own = queues["link"] == link
        assert queues["drops"][own].sum() == drops
        assert queues["queue_packets"][own].max() <= longest
        # A transmission under way at the end counts as a whole among the links.
        assert -1e-6 <= busy_us - 1000 * queues["utilisation"][own].sum() <= 1434 * 8 / 10e3 + 1e-6
    assert ((queues["utilisation"] >= 0) & (queues["utilisation"] <= 1)).all()
    assert (queues["queue_bytes"] >= HEADER_BYTES * queues["queue_packets"]).all()
    of_switch = np.char.startswith(queues["link"].astype(str), "s-")
    assert queues["queue_packets"][of_switch].max() <= 30


@pytest.mark.parametrize(("capacity", "column", "limit"), [("40pkt", "packets", 40), ("90kB", "bytes", 90_000)])
@pytest.mark.parametrize("alpha", [0.5, 1, 8])
def test_the_queues_of_a_switch_fit_into_its_shared_buffer(
    capacity: str, column: str, limit: int, alpha: float
) -> None:
    base = incast(switch_buffer={"capacity": capacity, "alpha": alpha}).set({"run.probe": {"every": "50us"}})
    result = run(base)
    queues = result.queues.to_numpy()
    of_switch = np.char.startswith(queues["link"].astype(str), "s-")
    instants, lengths = queues["time_us"][of_switch], queues[f"queue_{column}"][of_switch].astype(np.int64)
    together = lengths.reshape(len(np.unique(instants)), -1).sum(axis=1)
    assert together.max() <= limit
    # Choudhury & Hahne 1998: one busy queue stops at alpha B / (1 + alpha). The last packet to be let in was compared
    # with a threshold that it lowers itself by alpha times its length: alpha / (1 + alpha) of it may lie above.
    packet = 1 if column == "packets" else 1434
    share = alpha / (1 + alpha)
    assert 0.8 * share * limit < lengths.max() <= share * (limit + packet)
    assert result.summary["links"]["drops"] > 0
    # A host's own queue is as ever.
    assert (queues["queue_packets"][~of_switch] <= 1000).all()


def test_windows_are_those_of_the_chosen_connections() -> None:
    probe = {"every": "1ms", "cwnd": ["train", "web.2"]}
    result = run(incast(queue={"kind": "fifo", "capacity": "30pkt"}).set({"run.probe": probe}))
    rows, flows = result.cwnd.to_dicts(), result.flows.to_dicts()
    job = [row for row in rows if row["tenant"] == "train"]
    assert {(row["src"], row["dst"]) for row in job} == {(i, (i + 1) % 4) for i in range(4)}
    assert {row["flow"] for row in job} == {None}
    third = [row for row in rows if row["tenant"] == "web"]
    assert {row["flow"] for row in third} == {2.0}
    flow = flows[2]
    assert all(flow["start_us"] <= row["time_us"] <= flow["start_us"] + flow["fct_us"] for row in third)
    assert {(row["src"], row["dst"]) for row in third} == {(flow["src"], flow["dst"])}
    assert all(row["cwnd_bytes"] >= 1380 for row in rows)
    # What was lost has set a threshold; before the first loss there is none.
    assert {row["ssthresh_bytes"] is None for row in third} == {False}
    assert job[0]["ssthresh_bytes"] is None


def test_a_probe_without_end_thins_itself_and_says_so() -> None:
    result = run(scenario().set({"run.probe": {"every": "100ns"}}))
    times = np.unique(result.queues["time_us"])
    assert len(result.queues) <= 1_000_000
    every_us = result.summary["probe_every_ms"] * 1e3
    # 300 ms in steps of 100 ns for 8 links are 24 million rows: halved five times they fit.
    assert every_us == pytest.approx(0.1 * 2**5)
    assert np.diff(times)[:-1] == pytest.approx(every_us)


def test_red_keeps_the_queue_shorter_than_a_full_buffer_does() -> None:
    full = run(incast(queue={"kind": "fifo", "capacity": "200pkt"}).set({"run.probe": {"every": "100us"}}))
    red = {"kind": "red", "min": "5pkt", "max": "50pkt", "capacity": "200pkt", "weight": 0.02}
    early = run(incast(queue=red).set({"run.probe": {"every": "100us"}}))
    # 6 MB behind 200 packets of buffer fill it; RED hits every packet once its average is at 50.
    assert full.links["max_queue_packets"].max() == 200
    assert early.queues["queue_packets"].mean() < full.queues["queue_packets"].mean()
    assert early.summary["links"]["drops"] > 0


def test_the_seed_decides_which_packets_red_marks() -> None:
    red = {"kind": "red", "min": "5pkt", "max": "50pkt", "capacity": "200pkt", "weight": 0.02, "ecn": True}
    base = incast(queue=red, transport={"kind": "newreno", "ecn": True})
    links = [run(base.set({"run.seed": seed})).links for seed in (0, 1, 2, 0)]
    marks = [tuple(table["ce_marks"].tolist()) for table in links]
    assert len(set(marks)) == 3
    assert marks[0] == marks[3]
    assert min(sum(of_seed) for of_seed in marks) > 0


def test_a_study_of_tenants_samples_by_itself_and_keeps_a_probe_that_is_there() -> None:
    base = Scenario.load("paper/gao2020-ch5")
    every_ps = probed(base).spec()["run"]["probe"]["every_ps"]
    assert SAMPLES / 2.5 <= base.duration_ps / every_ps <= SAMPLES
    own = base.set({"run.probe": {"every": "3ms"}})
    assert probed(own) == own


def test_the_busiest_port_is_the_switchs_with_the_longest_queue() -> None:
    def row(link: str, queue: int, use: float) -> dict[str, Any]:
        return {"link": link, "queue_packets": queue, "utilisation": use}

    assert busiest([row("h0", 9, 1.0), row("s-h0", 1, 0.5), row("s-h1", 2, 0.1)]) == "s-h1"
    assert busiest([row("s-h0", 0, 0.5), row("s-h1", 0, 0.6)]) == "s-h1"
    assert busiest([row("h0", 3, 0.5)]) == "h0"
    assert busiest([]) is None


def test_reports_draw_what_a_probe_saw(tmp_path: Path) -> None:
    probe = {"run.probe": {"every": "1ms"}, "cluster.queue.capacity": "40pkt"}
    tenants(incast().set(probe)).save(tmp_path / "study")
    text = render(tmp_path / "study")
    assert text.count("Queue before s-h0 over time, same band") == text.count("Use of s-h0 over time, lower band") > 0
    assert "Queue and link use over time" in text
    rows = [row for row in read_table(tmp_path / "study/runs/seed0-low", "queues.csv") if row["link"] == "s-h0"]
    assert max(row["queue_packets"] for row in rows) > 0
    run_text = render(tmp_path / "study/runs/seed0-low")
    assert "Queue and link use over time" in run_text
    # Without the samples the page is whole, only shorter.
    for name in ("same", "low"):
        (tmp_path / f"study/runs/seed0-{name}/queues.csv").unlink()
    assert "Queue and link use over time" not in render(tmp_path / "study")


def test_queues_are_counters_of_the_trace(tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    result = run(incast().set({"run.probe": {"every": "1ms"}}))
    result.save(tmp_path / "run")
    trace = protos.Trace()
    trace.ParseFromString(encode_timeline(tmp_path / "run"))
    names = {
        packet.track_descriptor.uuid: packet.track_descriptor.name
        for packet in trace.packet
        if packet.HasField("track_descriptor") and packet.track_descriptor.HasField("counter")
    }
    assert set(names.values()) == {f"queue before {link}" for link in result.links["link"]}
    drawn: dict[str, list[tuple[int, int]]] = {}
    for packet in trace.packet:
        if packet.track_event.type == protos.TrackEvent.TYPE_COUNTER:
            found = drawn.setdefault(names[packet.track_event.track_uuid], [])
            found.append((packet.timestamp, packet.track_event.counter_value))
    rows = [row for row in result.queues.to_dicts() if row["link"] == "s-h0"]
    changes = [row for i, row in enumerate(rows) if i == 0 or row["queue_packets"] != rows[i - 1]["queue_packets"]]
    assert drawn["queue before s-h0"] == [(round(row["time_us"] * 1e3), row["queue_packets"]) for row in changes]


def test_what_a_sender_s_own_queue_drops_is_no_drop_of_a_switch() -> None:
    # A switch between two links of one rate never has more than a packet to send.
    alone = Scenario.from_dict(
        {
            "cluster": {
                "topology": {"kind": "star", "hosts": 2},
                "link": {"rate": "10Gbps", "delay": "1us"},
                "queue": {"kind": "fifo", "capacity": "100pkt"},
                "transport": {"kind": "ideal", "window": "300kB"},
            },
            "traffic": {"web": {"flows": [{"start": "0s", "src": "h0", "dst": "h1", "bytes": "1MB"}]}},
            "run": {"engine": "packet", "duration": "1s"},
        }
    )
    into_one = incast(queue={"kind": "fifo", "capacity": "30pkt"})
    for result, has_drops in ((run(alone), False), (run(into_one), True)):
        of_host = {True: 0, False: 0}
        for row in result.links.to_dicts():
            of_host[not row["link"].startswith("s-")] += row["drops"]
        links = result.summary["links"]
        assert (links["switch_drops"], links["host_drops"]) == (of_host[False], of_host[True])
        assert links["drops"] == sum(of_host.values())
        assert (links["switch_drops"] > 0) == has_drops
