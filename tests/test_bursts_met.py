"""The queues that bursts met: `studies/bursts.py`, in a run and by hand."""

import numpy as np
import pytest

import gradtide as gt
from gradtide.studies.bursts import QueueSamples, slowest_link
from gradtide.studies.check import emulation

RATE_BPS = 100_000_000


def samples(packets, utilisation=1.0):
    count = len(packets)
    lengths = np.array(packets, dtype=float)
    return QueueSamples(np.arange(count) * 100.0, lengths, 1500 * lengths, np.full(count, utilisation), np.ones(count))


def test_a_burst_meets_the_queue_before_its_first_packet():
    met = samples([9, 4, 30, 50, 20, 99]).met(150.0, 400.0, RATE_BPS)
    assert (met["start_queue_packets"], met["longest_queue_packets"], met["queue_drops"]) == (4, 50, 3)
    # Little's law: 33.3 packets of 120 us each wait before a link that is always busy.
    assert met["mean_wait_us"] == pytest.approx(100 / 3 * 120)
    # A link that sends half of the time serves half as many packets, which wait twice as long.
    half = samples([9, 4, 30, 50, 20, 99], 0.5).met(150.0, 400.0, RATE_BPS)
    assert half["mean_wait_us"] == pytest.approx(100 / 3 * 240)


@pytest.mark.parametrize(("first_us", "end_us"), [(-1.0, 300.0), (101.0, 150.0), (900.0, 950.0)])
def test_without_samples_the_queue_is_unknown(first_us, end_us):
    assert set(samples([1, 2, 3]).met(first_us, end_us, RATE_BPS).values()) == {None}
    assert set(samples([]).met(first_us, end_us, RATE_BPS).values()) == {None}


def test_the_slowest_link_of_a_path():
    links = [{"rate_bps": rate, "delay_ps": 10**6} for rate in (10, 5, 5, 20)]
    assert slowest_link([0, 1, 2, 3], links) == (1, 1.0)


def test_a_run_lists_its_bursts(tmp_path):
    # One sender without competition: each burst meets an empty queue.
    changes = {
        "traffic.background.flows": [{"start": "0s", "src": "h2", "dst": "h9", "bytes": "1kB"}],
        "traffic.worker.bursts.src": ["h0"],
        "traffic.worker.bursts.count": 2,
        "traffic.worker.bursts.idle": "100ms",
        "traffic.worker.bursts.start": "10ms",
        "run.duration": "1s",
    }
    result = gt.run(gt.Scenario.load("paper/pcn").set(changes))
    flows = [row for row in result.flows.to_dicts() if row["traffic"] == "worker"]
    rows = result.bursts.to_dicts()
    assert [row["at_us"] for row in rows] == [row["start_us"] for row in flows]
    assert [row["completion_ms"] for row in rows] == [row["fct_us"] / 1e3 for row in flows]
    # The preset's setup is 13.2 ms.
    assert [row["completion_ms"] - row["burst_ms"] for row in rows] == pytest.approx([13.2, 13.2])
    assert [row["start_queue_packets"] for row in rows] == [0, 0]
    # 400 kB at 100 Mbit/s take at least 32 ms.
    assert all(row["longest_queue_packets"] > 0 and row["burst_ms"] > 32 for row in rows)
    result.save(tmp_path / "run")
    assert (tmp_path / "run/bursts.csv").read_text().count("\n") == 3
    assert "Bursts" in (tmp_path / "run/report.html").read_text()


def test_a_run_without_bursts_has_no_table_of_them(tmp_path):
    result = gt.run("paper/gao2020-ch4")
    assert len(result.bursts) == 0


def test_figures_of_a_run_and_an_emulation_have_the_same_names():
    links = [{"drops": 3, "ce_marks": "4", "utilisation": "0.5"}, {"drops": 1, "ce_marks": 0, "utilisation": 0.25}]
    flows = [
        {"traffic": "long", "received_us": None, "mean_rate_bps": 2e6},
        {"traffic": "long", "received_us": "", "mean_rate_bps": "4e6"},
        {"traffic": "long", "received_us": 5.0, "mean_rate_bps": 9e9},
    ]
    absent = dict.fromkeys(emulation.BURSTS, "")
    found = emulation.figures(links, flows, [absent, {**absent, "burst_ms": "3"}, {**absent, "burst_ms": 5.0}])
    assert found == {
        "drops of all queues": 4,
        "marks of all queues": 4,
        "highest utilisation of a link, %": 50,
        "rate of unfinished flows of long, Mbit/s": 3,
        "burst, ms": 4,
    }
