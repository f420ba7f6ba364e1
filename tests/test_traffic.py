"""Neighbours' flows: the thesis's own schedules, distributions of sizes, lists, bursts and incasts."""

import hashlib
import math
import random
from array import array
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide import presets, traffic
from gradtide.errors import ScenarioError
from gradtide.fct import Window, class_summary
from gradtide.scenario import Scenario
from test_layers import read_tables

# First 16 hex digits of the SHA-256 of the flows of runs 0, 1 and 2 of Gao (2020), chapter 5, by flows/s per host.
THESIS = {
    23: ("875275afa1f8d463", "f22d865c80ff365c", "19b56d766fce5c75"),
    46: ("c0920f54642055c7", "5f192229e282b0e3", "549c05d05d3b78e3"),
    92: ("d0440600a3eb401e", "633a688e9501c604", "81ea16bc2b9c82d3"),
    184: ("ccfb1c819592e3d1", "a8dcb536e7226e92", "9bc4b3351d3714e7"),
}
CELLS = [(rate, seed) for rate in THESIS for seed in range(3)]
STUDY = Scenario.load("paper/gao2020-ch5")
SECOND = 10**12
JOB = {"a": {"model": {"kind": "thesis", "layers": 4, "size": "1MB", "time": "9ms"}, "workers": 4}}


def as_csv(flows):
    rows = zip(flows.start_ps, flows.src, flows.dst, flows.bytes, strict=True)
    return "start_ns,src,dst,bytes\n" + "".join(f"{t // 1000},{a},{b},{n}\n" for t, a, b, n in rows)


def scenario(traffic, *, hosts=4, duration="2s", seed=0, base_dir=".", **cluster):
    data = {
        "job": JOB,
        "cluster": {"topology": {"hosts": hosts}, **cluster},
        "traffic": traffic,
        "run": {"engine": "packet", "duration": duration, "seed": seed},
    }
    return Scenario.from_dict(data, base_dir)


# ── the thesis's own flows ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("rate", "seed"), CELLS)
def test_the_flows_of_the_thesis_are_drawn_byte_for_byte(rate, seed):
    (web,) = STUDY.set({"traffic.web.arrivals.rate": f"{rate}/s", "run.seed": seed}).traffic
    assert hashlib.sha256(as_csv(web).encode()).hexdigest()[:16] == THESIS[rate][seed]
    assert all(start % 1000 == 0 for start in web.start_ps)


def test_the_window_holds_the_flows_of_table_5_5():
    (web,) = STUDY.traffic
    summary = class_summary(web.start_ps, web.bytes, [None] * len(web), Window(STUDY.warmup_ps, STUDY.cooldown_ps))
    assert [summary[name]["started"] for name in ("small", "medium", "large")] == [820, 609, 38]


def test_the_rate_of_the_cluster_is_that_of_a_host_times_the_hosts():
    per_host = STUDY.traffic[0]
    (total,) = STUDY.set({"traffic.web.arrivals": '{ rate = "184/s", per = "cluster" }'}).traffic
    assert total == per_host


def test_drawing_leaves_the_random_numbers_of_others_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    assert STUDY.replace(seed=5).traffic
    assert random.random() == expected


# ── streams ───────────────────────────────────────────────────────────────────────────────────────────────

WEB = {"sizes": "web-search", "arrivals": {"rate": "100/s"}}


def test_every_random_neighbour_draws_from_its_own_stream():
    alone = scenario({"web": WEB}).traffic[0]
    two = scenario({"web": WEB, "other": WEB}).traffic
    three = scenario({"web": WEB, "third": WEB, "other": WEB}).traffic
    assert two[0] == three[0] == alone
    assert two[1] == three[2]
    assert len({as_csv(flows) for flows in three}) == 3
    assert as_csv(scenario({"web": WEB, "other": WEB}, seed=1).traffic[1]) != as_csv(two[1])


def test_what_is_not_drawn_leaves_the_first_stream_to_who_draws():
    incast = {"incast": {"dst": "h0", "bytes": "1MB", "every": "500ms"}}
    assert scenario({"in": incast, "web": WEB}).traffic[1] == scenario({"web": WEB}).traffic[0]


# ── load ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sizes", presets.flow_names())
def test_a_load_is_the_rate_that_its_mean_flow_needs(sizes):
    distribution = traffic.read_sizes(presets.flow_text(sizes), sizes)
    made = scenario({"web": {"sizes": sizes, "load": 0.3}}, link={"rate": "10Gbps"})
    flows_per_s = made._resolved.origins[0].flows.flows_per_s
    offered_bps = flows_per_s * distribution.mean_bytes * 8
    assert offered_bps == Fraction(3, 10) * 4 * 10**10


def test_the_count_of_drawn_flows_is_poisson():
    """200 runs of mean 400 flows: their mean differs from 400 by four standard errors once in 16,000 tries."""
    counts = [len(scenario({"web": WEB}, duration="1s", seed=seed).traffic[0]) for seed in range(200)]
    assert abs(sum(counts) / 200 - 400) < 4 * math.sqrt(400 / 200)


def test_drawn_sizes_have_the_mean_of_their_lines():
    """The variance of the distribution follows from its lines too; four standard errors again."""
    sizes = traffic.read_sizes(presets.flow_text("web-search"), "web-search")
    pieces = list(zip(sizes.bytes, sizes.bytes[1:], sizes.cdf, sizes.cdf[1:], strict=False))
    mean = sum((q - p) * (a + b) / 2 for a, b, p, q in pieces)
    square = sum((q - p) * (a * a + a * b + b * b) / 3 for a, b, p, q in pieces)
    assert float(sizes.mean_bytes) == pytest.approx(mean, rel=1e-12) == pytest.approx(1_711_550)
    flows = STUDY.set({"traffic.web.arrivals.rate": "184/s"}).traffic[0]
    error = math.sqrt((square - mean * mean) / len(flows))
    assert abs(sum(flows.bytes) / len(flows) - mean) < 4 * error


# ── distributions ─────────────────────────────────────────────────────────────────────────────────────────

DIALECTS = [
    "10 0\n20 50\n40 100\n",
    "10:0\n20:50\n40:100",
    "# bytes and share\n10\t0\n20 0.5 # half\n\n40 1.0\n",
    "bytes,cdf\n10,0\n20,.5\n40,1\n",
    "Bytes, CDF\n10, 0\n20, 50.0\n40, 100\n",
]


@pytest.mark.parametrize("text", DIALECTS)
def test_three_dialects_say_the_same(text):
    assert traffic.read_sizes(text, "s.cdf") == traffic.Sizes((10, 20, 40), (0.0, 0.5, 1.0))


def test_sizes_lie_on_the_lines_between_points():
    sizes = traffic.Sizes((10, 20, 40), (0.0, 0.5, 1.0))
    assert [sizes.at(share) for share in (0.25, 0.5, 0.75, 1.0)] == [15, 20, 30, 40]
    assert sizes.mean_bytes == Fraction(45, 2)


def test_the_first_share_and_a_step_are_flows_of_exactly_that_size():
    sizes = traffic.read_sizes("7 20\n9 20\n9 60\n9 100\n", "s.cdf")
    assert {sizes.at(share) for share in (0.0001, 0.2)} == {7}
    assert {sizes.at(share) for share in (0.3, 0.6, 0.61, 1.0)} == {9}
    assert sizes.mean_bytes == Fraction(sizes.cdf[0]) * 7 + (1 - Fraction(sizes.cdf[0])) * 9


def test_one_point_is_one_size_and_no_flow_is_empty():
    assert traffic.read_sizes("1000 1", "s.cdf").at(0.5) == 1000
    assert traffic.read_sizes("0 0\n1 100", "s.cdf").at(0.01) == 1


@given(st.floats(1e-9, 1.0), st.sampled_from(presets.flow_names()))
def test_a_larger_share_is_no_smaller_size(share, name):
    sizes = traffic.read_sizes(presets.flow_text(name), name)
    assert max(1, sizes.bytes[0]) <= sizes.at(share / 2) <= sizes.at(share) <= sizes.bytes[-1]


@pytest.mark.parametrize("row", presets.list_presets("flow"), ids=lambda row: row["name"])
def test_a_preset_names_its_source_and_its_mean(row):
    sizes = traffic.read_sizes(presets.flow_text(row["name"]), row["name"])
    assert row["title"]
    mean, unit = row["source"].split("Mean ")[1].replace(";", ".").split(".  ")[0].split()[:2]
    assert unit.startswith("MB")
    assert float(sizes.mean_bytes) / 1e6 == pytest.approx(float(mean), rel=0.05)


def test_the_page_lists_the_presets_with_their_means():
    page = (Path(__file__).parent.parent / "docs" / "models" / "traffic.md").read_text(encoding="utf-8")
    rows = {row["preset"].strip("`"): row["mean"] for row in read_tables(page)["flow sizes"]}
    means = {name: traffic.read_sizes(presets.flow_text(name), name).mean_bytes for name in presets.flow_names()}
    assert rows == {name: f"{float(mean) / 1e6:.3g} MB" for name, mean in means.items()}


def test_a_cdf_file_is_written_out_in_the_resolved_scenario(tmp_path):
    (tmp_path / "mine").write_text("1000 0\n2000 33.3\n4000 100\n")
    made = scenario({"web": {"sizes": "./mine", "load": 0.01}}, base_dir=tmp_path)
    assert made.to_dict()["traffic"]["web"]["cdf"][1] == {"bytes": "2kB", "cdf": 0.333}
    again = Scenario.from_toml(made.to_toml(), base_dir="/nowhere")
    assert again == made
    assert again.traffic == made.traffic
    assert scenario({"web": {"sizes": "mine", "load": 0.01}}, base_dir=tmp_path) == made


# ── bursts ────────────────────────────────────────────────────────────────────────────────────────────────


def test_bursts_keep_the_rate_and_their_silence():
    on, off = SECOND // 100, 9 * SECOND // 100
    table = {**WEB, "arrivals": {"rate": "1000/s", "per": "cluster"}, "burst": {"on": "10ms", "off": "90ms"}}
    (flows,) = scenario({"web": table}, duration="20s").traffic
    # A start is rounded to a nanosecond, so that the last of a burst may fall on its end.
    assert all(start % (on + off) <= on for start in flows.start_ps)
    assert len({start // (on + off) for start in flows.start_ps}) == 200
    assert abs(len(flows) - 20_000) < 4 * math.sqrt(20_000)


# ── incast ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_incast_sends_from_all_others_at_once_again_and_again():
    table = {"incast": {"dst": "h1", "bytes": "1MB", "every": "100ms", "start": "50ms"}}
    (flows,) = scenario({"in": table}, duration="260ms").traffic
    assert flows.start_ps.tolist() == [t * 10**9 for t in (50, 150, 250) for _ in range(3)]
    assert flows.src.tolist() == [0, 2, 3] * 3
    assert (set(flows.dst), set(flows.bytes), set(flows.band)) == ({1}, {10**6}, {0})


def test_an_incast_has_the_lowest_other_hosts():
    table = {"incast": {"dst": "h0", "senders": 2, "bytes": "1B", "every": "2s"}, "priority": "low"}
    (flows,) = scenario({"in": table}).traffic
    assert (flows.src.tolist(), flows.band.tolist()) == ([1, 2], [2, 2])


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_list_is_sorted_by_start_and_keeps_its_order_at_one_instant(tmp_path):
    text = "# mine\ndst,src,bytes,start_ns,band\r\n1,h0,5,300,2\r\n\r\nh2,0,6,100,1\r\n3,2,7,300,0\r\n"
    (tmp_path / "f.csv").write_bytes(text.encode())
    (flows,) = scenario({"web": {"replay": "f.csv"}}, base_dir=tmp_path).traffic
    assert flows.start_ps == array("Q", [100_000, 300_000, 300_000])
    assert (flows.src.tolist(), flows.dst.tolist()) == ([0, 0, 2], [2, 1, 3])
    assert (flows.bytes.tolist(), flows.band.tolist()) == ([6, 5, 7], [1, 2, 0])


def test_the_band_of_a_list_without_bands_is_the_neighbours(tmp_path):
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n1,0,1,5\n")
    made = scenario({"web": {"replay": "f.csv", "priority": "low"}}, base_dir=tmp_path)
    assert made.traffic[0].band.tolist() == [2]
    again = Scenario.from_toml(made.to_toml())
    assert again == made
    assert again.set({"traffic.web.priority": 1}).traffic[0].band.tolist() == [1]


def test_flows_that_start_at_the_end_or_later_are_left_out(tmp_path):
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n2000000000,0,1,5\n1999999999,0,1,6\n")
    made = scenario({"web": {"replay": "f.csv"}}, base_dir=tmp_path)
    assert made.traffic[0].bytes.tolist() == [6]
    assert Scenario.from_toml(made.to_toml()).replace(duration="3s").traffic[0].bytes.tolist() == [6, 5]


@pytest.mark.parametrize("count", [100, 101])
def test_a_short_list_is_written_out_and_a_long_one_named_with_its_digest(tmp_path, count):
    path = tmp_path / "f.csv"
    path.write_text("start_ns,src,dst,bytes\n" + "".join(f"{i},0,1,5\n" for i in range(count)))
    made = scenario({"web": {"replay": "f.csv"}}, base_dir=tmp_path)
    table = made.to_dict()["traffic"]["web"]
    assert ("flows" in table) == (count == 100)
    assert (table.get("replay") == str(path)) == (count == 101)
    again = Scenario.from_toml(made.to_toml(), base_dir="/nowhere")
    assert again == made
    assert again.spec() == made.spec()
    path.write_text("start_ns,src,dst,bytes\n5,0,1,5\n")
    if count == 100:
        assert Scenario.from_toml(made.to_toml()) == made
    else:
        with pytest.raises(ScenarioError, match="GT064"):
            Scenario.from_toml(made.to_toml())


def test_a_scenario_is_the_same_wherever_its_list_lies(tmp_path):
    made = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f.csv").write_text(as_csv(STUDY.traffic[0]))
        made.append(STUDY.set({"traffic.web.replay": str(tmp_path / folder / "f.csv")}))
    assert made[0].to_toml() != made[1].to_toml()
    assert made[0] == made[1]
    assert (hash(made[0]), made[0].sha256) == (hash(made[1]), made[1].sha256)


def test_what_is_replayed_takes_the_place_of_what_was_drawn(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text(as_csv(STUDY.traffic[0]))
    replayed = STUDY.set({"traffic.web.replay": str(path)})
    assert replayed.traffic == STUDY.traffic
    assert replayed.spec() == STUDY.spec()
    back = replayed.set({"traffic.web.sizes": "web-search", "traffic.web.arrivals.rate": "23/s"})
    assert back == STUDY
    with pytest.raises(ScenarioError, match="contradict"):
        STUDY.set({"traffic.web.replay": str(path), "traffic.web.sizes": "web-search"})
    loaded = STUDY.set({"traffic.web.load": 0.1})
    assert "arrivals" not in loaded.to_dict()["traffic"]["web"]


def test_all_faults_of_a_list_are_found_at_once():
    text = "start_ns,src,dst,bytes\nx,0,9,1\n1,1,h1,1\n1,0,1\n1,0,1,-1\n" + "y,0,1,1\n" * 1000
    with pytest.raises(ScenarioError) as caught:
        traffic.read_flows(text, "f.csv", "web", 4, 3, 0)
    places = [(e["line"], e["loc"]) for e in caught.value.errors]
    assert places[:5] == [(2, "start_ns"), (2, "dst"), (3, "dst"), (4, ""), (5, "bytes")]
    assert len(places) == traffic.MAX_FAULTS_OF_A_FILE


def test_too_many_flows_are_refused_with_what_they_would_take():
    with pytest.raises(ScenarioError, match=r"about 1,288,000,000 flows .* 515\.2 GB"):
        STUDY.set({"traffic.web.arrivals.rate": "23000/s", "run.duration": "7000s", "job.train.iterations": 5})


def test_neighbours_are_counted_together():
    most = {"sizes": "web-search", "arrivals": {"rate": "300000000/s", "per": "cluster"}}
    with pytest.raises(ScenarioError) as caught:
        scenario({"a": most, "b": most})
    assert [(e["code"], e["loc"]) for e in caught.value.errors] == [("GT050", "traffic.b.arrivals")]


def test_the_flows_are_drawn_when_asked_for():
    made = scenario({"a": {"sizes": "web-search", "arrivals": {"rate": "2000000/s", "per": "cluster"}}})
    assert "traffic" not in vars(made)


def test_the_study_of_the_thesis_is_whole_without_any_file():
    assert not [line for line in STUDY.to_toml().splitlines() if "/" in line and "/s" not in line]
    assert Path(STUDY.name).suffix == ""
