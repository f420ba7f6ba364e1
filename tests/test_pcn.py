"""Announced bursts: what a scenario says of them, and `gradtide reproduce pcn` on runs that are short."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradtide import Scenario, bursts_thresholds, marking, report, run
from gradtide.papers import PARTS, Reproduction, find
from gradtide.papers import pcn as paper
from run_folders import tiny_tenants

PCN = {"kind": "pcn", "capacity": "60pkt", "threshold": "40pkt", "announced": "10pkt"}
BURSTS = {"src": ["h1", "h2"], "dst": "h0", "bytes": "50kB", "count": 3, "idle": "5ms", "start": "2ms"}
ROUND_US = 4 * (10 + 0.0512)
"""Two hops of 10 us each way, 64 bytes at 10 Gbit/s on each, in whole nanoseconds."""


def bursty(**neighbour: Any) -> Scenario:
    """Return two hosts that send bursts to a third, beside a job of one worker that sends nothing."""
    data = tiny_tenants()
    data["job"]["train"]["workers"] = 1
    data["cluster"] |= {"queue": PCN, "topology": {"kind": "star", "hosts": 4}}
    data["traffic"] = {"ddl": {"bursts": BURSTS, **neighbour}}
    data["run"] |= {"duration": "60ms", "start_jitter": "0us"}
    return Scenario.from_dict(data)


def test_a_host_pauses_between_its_bursts() -> None:
    flows = run(bursty()).flows
    assert list(flows["src"]) == [1, 2] * 3
    starts, ends = (np.asarray(flows[name]).reshape(3, 2) for name in ("start_us", "fct_us"))
    assert (starts[0] == 2000).all()
    assert starts[1:] - (starts + ends)[:-1] == pytest.approx(5000, abs=1e-6)


def test_hosts_that_wait_for_one_another_begin_together() -> None:
    # h2 has a quarter of h1's rate: its bursts end later.
    base = bursty(bursts={**BURSTS, "together": True}).set(
        {
            "cluster.topology": {
                "kind": "custom",
                "hosts": 4,
                "links": [
                    {"a": "h0", "b": "s"},
                    {"a": "h1", "b": "s"},
                    {"a": "h2", "b": "s", "rate": "2.5Gbps"},
                    {"a": "h3", "b": "s"},
                ],
            }
        }
    )
    together, alone = (run(base.set({"traffic.ddl.bursts.together": waits})).flows for waits in (True, False))
    starts, ends = (np.asarray(together[name]).reshape(3, 2) for name in ("start_us", "fct_us"))
    assert (ends[:, 0] < ends[:, 1]).all()
    assert starts[1:, 0] - (starts + ends)[:-1, 1] == pytest.approx([5000, 5000], abs=1e-6)
    assert (starts[:, 0] == starts[:, 1]).all()
    assert sorted(np.asarray(alone["start_us"])[np.asarray(alone["src"]) == 1])[1] < starts[1, 0]


def test_an_application_that_needs_time_sends_so_much_later() -> None:
    def times(setup: str, announce: bool) -> Any:
        bursts = {**BURSTS, "src": ["h1"], "setup": setup}
        return np.asarray(run(bursty(bursts=bursts, announce=announce)).flows["fct_us"])

    assert times("2ms", False) - times("1ms", False) == pytest.approx(1000, abs=1e-6)
    # The handshake runs meanwhile: four hops of 10 us, on each a packet of less than 100 bytes at 10 Gbit/s.
    handshake_us = times("0s", False) + 1000 - times("1ms", False)
    assert ((handshake_us > 4 * 10) & (handshake_us < 4 * (10 + 100 * 8 / 1e4))).all()
    assert times("1ms", True) - times("1ms", False) == pytest.approx(ROUND_US, abs=1e-6)


def test_what_the_run_does_not_come_to_is_not_among_its_flows() -> None:
    flows = run(bursty().replace(duration="12ms")).flows
    assert list(flows["flow"]) == [0, 1, 2, 3]


def test_an_announced_burst_takes_a_round_trip_longer_on_an_empty_network() -> None:
    bursts = {**BURSTS, "src": ["h1"]}
    plain, announced = (run(bursty(bursts=bursts, announce=announce)).flows["fct_us"] for announce in (False, True))
    assert np.asarray(announced) - np.asarray(plain) == pytest.approx(ROUND_US, abs=1e-6)
    own = run(bursty(bursts=bursts, announce="15pkt")).flows["fct_us"]
    assert list(own) == list(announced)


@pytest.mark.parametrize(
    ("collective", "rounds"),
    [({"kind": "point_to_point"}, 1), ({"kind": "ring"}, 1), ({"ps": {"servers": 1}}, 2)],
    ids=["one message", "ring of two", "push and pull"],
)
def test_a_job_announces_each_message_that_follows_a_pause(collective: dict[str, Any], rounds: int) -> None:
    data = tiny_tenants()
    del data["traffic"]
    layers = [{"name": "all", "forward": "1ms", "backward": "1ms", "parameters": "50kB"}]
    data["job"]["train"] |= {
        "model": {"name": "one", "layers": layers},
        "workers": 2,
        "collective": collective,
        "schedule": {"barrier": True},
        "iterations": 4,
    }
    if collective.get("kind") == "point_to_point":
        data["job"]["train"]["task"] = "exchange"
    data["cluster"]["queue"] = PCN
    data["run"]["start_jitter"] = "0us"
    plain = Scenario.from_dict(data)
    times = [run(one).iterations["time_us"] for one in (plain, plain.set({"job.train.announce": True}))]
    # The ring's second message follows the first one before that is acknowledged: it is the same burst. A server
    # answers on a connection of its own.
    later_us = np.asarray(times[1]) - np.asarray(times[0])
    assert later_us == pytest.approx(rounds * ROUND_US, abs=2e-3)


def test_the_resolved_scenario_says_how_long_is_waited() -> None:
    scenario = bursty(announce=True)
    queue = scenario.to_dict()["cluster"]["queue"]
    # Two hops there and two back, 10 us and 60 + 3 packets of 1434 bytes at 10 Gbit/s each.
    assert queue["timeout"] == f"{4 * (10_000_000 + 63 * 1434 * 800)}ps"
    assert queue["expire"] == f"{3 * 4 * (10_000_000 + 63 * 1434 * 800)}ps"
    assert scenario.to_dict()["traffic"]["ddl"]["announce"] is True
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    given = scenario.set({"cluster.queue.timeout": "1ms", "traffic.ddl.announce": "15pkt"})
    assert given.to_dict()["cluster"]["queue"]["expire"] == "3ms"
    slow = given.set({"traffic.ddl.bursts.setup": "2ms"})
    assert [
        one.to_dict()["cluster"]["queue"]["expire"] for one in (slow, slow.set({"traffic.ddl.announce": False}))
    ] == [
        "5ms",
        "3ms",
    ]
    assert given.spec()["cluster"]["queue"]["pcn"] == {"timeout_ps": 10**9, "expire_ps": 3 * 10**9}
    assert given.spec()["traffic"][0]["announced_packets"] == 15


def test_a_lost_handshake_is_repeated_after_linux_s_second() -> None:
    # Four handshakes at once through a host's port with room for three, one of them in the queue: the last waits for
    # its timeout, which is derived from 10 Gbit/s or a second. ns-3's cards drop what finds them full.
    flows = [{"start": "0s", "src": "h1", "dst": f"h{dst}", "bytes": "1kB"} for dst in (0, 2, 3, 0)]
    data = bursty().to_dict()
    data["traffic"]["ddl"] = {"flows": flows}
    base = Scenario.from_dict(data).set({"cluster.queue": {"kind": "fifo", "capacity": "1pkt"}, "run.follow": "ns3"})
    linux = base.replace(duration="3s").set({"cluster.transport.timers": "linux"})
    derived, slow = (np.asarray(run(one).flows["fct_us"]) for one in (base.replace(duration="3s"), linux))
    assert max(derived) < 1e5
    # Two come through, a segment of the third is lost, and the fourth's handshake.
    assert sorted(slow)[:2] == pytest.approx(sorted(derived)[:2])
    assert 200e3 < sorted(slow)[2] < 201e3
    assert 1e6 < max(slow) < 1.3e6


@pytest.fixture(scope="module")
def whole() -> Reproduction:
    """Every figure, of three bursts after half a second, repeated twice."""
    base = Scenario.load("paper/pcn").set(
        {
            "traffic.worker.bursts.count": 3,
            "traffic.worker.bursts.idle": "300ms",
            "traffic.worker.bursts.start": "0.5s",
            "run.duration": "6s",
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "SETTLED_S", (0.3, 0.5))
        patch.setattr(paper, "BURSTS", 3)
        patch.setattr(paper, "AGAIN", 1)
        patch.setattr(paper, "KS", (10, 40))
        patch.setattr(paper, "REPEATED", paper.REPEATED[:4])
        patch.setattr(paper, "VARIANTS", paper.VARIANTS[:2])
        patch.setattr(paper, "FIXED", paper.FIXED[:2])
        return replace(paper.STATEMENTS, figures=paper.figures(), base=base).make(2, None)


def test_every_figure_is_there(whole: Reproduction, tmp_path: Path) -> None:
    summary = whole.summary
    names = [item["figure"] for item in summary["figures"]]
    assert names == list(paper.FIGURES)
    assert {item["figure"] for key in ("checks", "tables", "series") for item in summary[key]} == set(names)
    for series in summary["series"]:
        assert all(len(line["values"]) == len(series["x"]["values"]) for line in series["lines"])
    folder = whole.save(tmp_path / "pcn")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "gradtide reproduce pcn<" in page
    assert report.write_report(folder).read_text(encoding="utf-8") == page


def test_one_figure_is_found() -> None:
    assert find("pcn/9a") == (PARTS["pcn"], "9a")
    assert find("pcn/eq. 3") == (PARTS["pcn"], "Eq. 3")


def test_bursts_go_as_published_where_nothing_is_left_to_chance() -> None:
    """One repetition of the paper's set-up: six bursts each. Directions, not sizes: those are the validation's."""
    base = Scenario.load("paper/pcn")
    seen = [paper.Seen(case, run(paper.scenario(base, case))) for case in paper._pair(paper.ON)]
    off, on = seen
    assert len(off.bursts) == len(on.bursts) == paper.BURSTS

    def means(of: Any) -> tuple[float, float]:
        return tuple(float(np.mean([of(burst) for burst in one.bursts])) for one in seen)  # type: ignore[return-value]

    for of in (
        lambda burst: burst.start,
        lambda burst: burst.longest,
        lambda burst: burst.sent_s,
        lambda burst: burst.whole_latency_s,
    ):
        without, with_pcn = means(of)
        assert with_pcn < without
    assert max(burst.longest for burst in on.bursts) < paper.CAPACITY
    assert all(burst.drops == 0 for burst in on.bursts)
    # A round trip without queues, at least, and what iperf3 needs; the last sample before the first segment is up to a
    # step early.
    setup_s = paper.SETUP_ROUNDS * (paper.ON.round_packets + paper.ANNOUNCED) * paper.PACKET_S
    least_s = setup_s + paper.ON.round_packets * paper.PACKET_S - 2 * on.step_s
    assert all(burst.waited_s > least_s for burst in on.bursts)
    assert any(burst.drops > 0 for burst in off.bursts)


@pytest.mark.parametrize(("transport", "held"), [("cubic+ecn", 111), ("dctcp", 111), ("dctcp", 33)])
def test_the_threshold_of_a_link_is_measured(transport: str, held: int) -> None:
    """Three long flows over a link that holds `held` packets: RTT · C / (3 · MTU), as the paper's 37 for 111."""
    case = paper.Case(None, transport=transport, round_packets=held, has_bursts=False)
    probe = {"every": "5ms", "links": ["a-root", "h2"]}
    result = run(paper.scenario(Scenario.load("paper/pcn"), case).set({"run.probe": probe}))
    (row,) = result.thresholds()
    assert (row["link"], row["long_flows"]) == ("a-root", 3)
    # Each flow has up to two segments more under way than are in the network: one whose acknowledgement is delayed, and
    # one whose acknowledgement is just answered; another is in the device of the port.
    assert held <= row["round_trip_packets"] <= held + 3 * 2 + 1
    assert row["policy_packets"] == row["round_trip_packets"] / 3
    assert row["threshold_packets"] == 5 * (row["policy_packets"] // 5) + 5
    assert row["announced_packets"] == max(5, 5 * round(row["threshold_packets"] / 20))
    with pytest.raises(ValueError, match="k: 0 is"):
        result.thresholds(k=0)
    with pytest.raises(ValueError, match=r"run\.probe"):
        run(bursty()).thresholds()


def test_the_published_thresholds_follow_from_the_published_round_trip(gradtide: Any) -> None:
    # Kang et al., section 3.3: RTT · C / (3 · MTU) = 37, thresholds of 40 and 10, or 20 with k = 1/2. At 100 Mbit/s,
    # 111 packets of 1500 bytes take 13.32 ms.
    found = marking.thresholds(3 * 37)
    assert (found["policy_packets"], found["threshold_packets"], found["announced_packets"]) == (37, 40, 10)
    assert [marking.thresholds(111, k=k)["announced_packets"] for k in (1 / 2, 1)] == [20, 40]
    assert marking.thresholds(3 * 400)["announced_packets"] == 75
    queue = Scenario.load("paper/pcn").to_dict()["cluster"]["queue"]
    assert [queue["threshold"], queue["announced"]] == [
        f"{found[name]}pkt" for name in ("threshold_packets", "announced_packets")
    ]
    assert bursts_thresholds("100Mbps", "13.32ms") == found
    code, out, _ = gradtide("bursts", "thresholds", "100Mbps", "13.32ms", "--json")
    assert (code, json.loads(out)) == (0, {"schema": "gradtide.thresholds/1", **found})
    for wrong, message in (
        ("--k=0", "--k: 0"),
        ("--long-flows=0", "--long-flows: 0 is"),
        ("--packet=0B", "--packet: 0B"),
    ):
        code, _, err = gradtide("bursts", "thresholds", "100Mbps", "13.32ms", wrong)
        assert (code, err.startswith(f"error: {message}")) == (2, True)


def test_a_run_with_samples_prints_the_thresholds_of_its_links(gradtide: Any, tmp_path: Path) -> None:
    keys = {"run.duration": "1s", "traffic.worker.bursts.start": "0.9s"}
    command = ["run", "paper/pcn", "-q", "--wide", *(f"--set={key}={value}" for key, value in keys.items())]
    code, out, _ = gradtide(*command, "--set=run.probe.every=5ms")
    rows = [line.split() for line in out.splitlines() if line.startswith(("a-root", "b-root"))]
    found = run(Scenario.load("paper/pcn").set({**keys, "run.probe.every": "5ms"})).thresholds()
    assert code == 0
    assert [(row[0], *map(int, row[-2:])) for row in rows] == [
        (row["link"], row["threshold_packets"], row["announced_packets"]) for row in found
    ]
    # Without samples of queues nothing is known of them.
    unsampled = Scenario.load("paper/pcn").set(keys).to_dict()
    del unsampled["run"]["probe"]
    (tmp_path / "unsampled.json").write_text(json.dumps(unsampled))
    code, out, _ = gradtide("run", str(tmp_path / "unsampled.json"), "-q")
    assert (code, "Thresholds in packets" in out) == (0, False)
    assert set(run(unsampled).bursts.to_dicts()[0][name] for name in ("start_queue_packets", "mean_wait_us")) == {None}
