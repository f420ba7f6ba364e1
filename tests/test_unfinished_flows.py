"""Flows that have not ended when the run does: what they have delivered, at what rate, and in which sentences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradtide as gt
from gradtide import words
from gradtide.fct import class_summary

ENDLESS = 10**12
RATE_BPS = 10e9
DELAY_S = 2 * 10e-6


def star(flows: list[tuple[str, str, str, str]], **run: Any) -> dict[str, Any]:
    rows = [{"start": start, "src": src, "dst": dst, "bytes": size} for start, src, dst, size in flows]
    return {
        "cluster": {"topology": {"kind": "star", "hosts": 4}, "link": {"rate": "10Gbps", "delay": "10us"}},
        "traffic": {"video": {"flows": rows}},
        "run": {"duration": "1s", **run},
    }


TWO = [("0s", "h0", "h3", "1TB"), ("500ms", "h1", "h3", "1TB"), ("0s", "h1", "h2", "1MB")]


def test_a_fluid_flow_has_delivered_its_share_of_the_link() -> None:
    result = gt.run(star(TWO, engine="fluid"))
    flows = {(row["src"], row["dst"]): row for row in result.flows.to_dicts()}
    # Alone for half a second and at half of the link for another; the first byte of each takes the delay.
    first = RATE_BPS / 8 * (0.5 + DELAY_S - DELAY_S) + RATE_BPS / 16 * (0.5 - DELAY_S)
    second = RATE_BPS / 16 * (0.5 - DELAY_S)
    assert flows[0, 3]["delivered_bytes"] == pytest.approx(first, abs=2)
    assert flows[1, 3]["delivered_bytes"] == pytest.approx(second, abs=2)
    assert flows[0, 3]["mean_rate_bps"] == pytest.approx(8 * first / 1.0)
    assert flows[1, 3]["mean_rate_bps"] == pytest.approx(8 * second / 0.5)
    ended = flows[1, 2]
    assert ended["delivered_bytes"] == ended["bytes"] == 10**6
    assert ended["mean_rate_bps"] == pytest.approx(8e12 * 10**6 / (1e6 * ended["received_us"]))


def test_packets_deliver_what_the_link_carries() -> None:
    result = gt.run(star(TWO[:1], engine="packet"))
    (row,) = result.flows.to_dicts()
    assert row["fct_us"] is None
    # Slow start is over in milliseconds; 1380 B of a packet of 1434 B are payload, and it takes 1147 whole nanoseconds.
    assert 0.97 * RATE_BPS * 1380 / 1434 < row["mean_rate_bps"] <= 8 * 1380 / 1147e-9
    assert row["delivered_bytes"] == pytest.approx(row["mean_rate_bps"] / 8)


def test_bytes_of_packets_are_conserved_on_the_way() -> None:
    """What is delivered has crossed the receiver's link, and no more: headers and repetitions come on top."""
    result = gt.run(star(TWO, engine="packet"))
    into = {row["link"]: row["bytes"] for row in result.links.to_dicts()}
    delivered = sum(row["delivered_bytes"] for row in result.flows.to_dicts() if row["dst"] == 3)
    assert 0 < delivered < into["s-h3"]


def test_the_rate_of_a_burst_counts_the_pause_before_its_first_byte() -> None:
    bursts = {"src": ["h0"], "dst": "h1", "bytes": "1GB", "count": 1, "idle": "0s", "setup": "600ms"}
    scenario = star([], engine="fluid")
    scenario["traffic"] = {"video": {"bursts": bursts}}
    (row,) = gt.run(scenario).flows.to_dicts()
    assert row["delivered_bytes"] == pytest.approx(RATE_BPS / 8 * (0.4 - DELAY_S), abs=2)
    assert row["mean_rate_bps"] == pytest.approx(8 * row["delivered_bytes"])


def test_the_summary_counts_what_has_not_ended_and_the_headline_names_its_rate() -> None:
    summary = gt.run(star(TWO, engine="fluid")).summary
    large = summary["traffic"]["video"]["large"]
    assert (large["started"], large["completed"], large["unfinished"]) == (2, 0, 2)
    assert large["unfinished_rate_bps"] == pytest.approx((7.5e9 + 5e9) / 2, rel=1e-3)
    assert large["unfinished_bytes"] == pytest.approx(1.25e9, rel=1e-3)
    assert words.rate(large["unfinished_rate_bps"]) in summary["headline"]
    # A flow that has not ended is in no mean of completion times, and in none of slowdowns.
    assert large["mean_fct_ms"] is None
    assert large["mean_slowdown"] is None


def test_a_run_with_a_job_names_flows_that_have_not_ended() -> None:
    scenario = star(TWO[:1], engine="packet", duration="200ms")
    layer = {"name": "a", "parameters": "1MB", "forward": "1ms", "backward": "1ms"}
    scenario["job"] = {"train": {"model": {"layers": [layer]}, "hosts": ["h1", "h2"], "iterations": 2}}
    summary = gt.run(scenario).summary
    of = summary["traffic"]["video"]["all"]
    assert of["unfinished"] == 1
    assert words.rate(of["unfinished_rate_bps"]) in summary["headline"]


def test_classes_say_what_is_delivered_only_where_that_is_known() -> None:
    columns = ([0, 0, 0], [10, 10**9, 10**9], [1e9, np.nan, np.nan])
    known = class_summary(*columns, delivered=([10, 600, 200], np.array([80.0, 3e9, 1e9])))["large"]
    assert (known["unfinished"], known["unfinished_bytes"], known["unfinished_rate_bps"]) == (2, 800, 2e9)
    assert "unfinished" not in class_summary(*columns)["large"]


def test_the_report_shows_their_number_and_rate(tmp_path: Path) -> None:
    folder = gt.run(star(TWO, engine="fluid")).save(tmp_path / "run")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "unfinished" in page
    header = (folder / "flows.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header.endswith("delivered_bytes,mean_rate_bps")


def test_slowdowns_are_of_flows_that_ended() -> None:
    """A terabyte alone would take minutes to simulate, for a slowdown that its run does not have."""
    result = gt.run(star(TWO, engine="fluid"))
    assert result.distinct_flows() == {("video", 1, 2, 10**6)}


PULLS = {"kind": "ps", "ps": {"servers": 1, "pull": "start"}}


def pulling(**keys: Any) -> dict[str, Any]:
    return {"model": "tictac_alexnet_v2", "workers": 2, "iterations": 3, "collective": PULLS, **keys}


def test_two_jobs_of_one_model_are_told_apart_and_inference_waits_for_no_gradients() -> None:
    jobs = {"train": pulling(hosts=["h0", "h1", "h2"]), "agents": pulling(hosts=["h3", "h4", "h5"], task="inference")}
    for job in jobs.values():
        job.pop("workers")
    summary = gt.run({"job": jobs, "run": {"engine": "fluid"}}).summary
    train, agents = (summary["headline"].partition("agents: ")[index] for index in (0, 2))
    assert train.startswith("train: ")
    assert "gradients" in train
    assert "parameters" in agents
    assert "gradients" not in agents


def test_workers_that_are_not_in_step_wait_for_no_slowest() -> None:
    ps = {"servers": 1, "pull": "start", "sync": "async"}
    job = pulling(collective={"kind": "ps", "ps": ps}, workers=3, compute={"device": "V100", "noise": 0.1})
    summary = gt.run({"job": {"train": job}, "run": {"engine": "fluid"}}).summary
    _, rows = words.run_rows(summary)
    slowest = dict((row[0], row[1]) for row in rows)["slowest worker"]
    assert "others wait" not in slowest
