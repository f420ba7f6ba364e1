"""`run.accuracy`: how far rates of the fluid engine may be off, and results of the packet engine."""

import pytest

import gradtide as gt
from gradtide import Scenario, ScenarioError, units

SERVERS = {
    "job": {
        "train": {
            "model": "resnet50",
            "workers": 6,
            "iterations": 3,
            "compute": {"batch": 32},
            "collective": {"kind": "shuffle"},
        }
    },
    "traffic": {"web": {"sizes": "web-search", "load": 0.3}},
    "run": {"engine": "fluid", "duration": "1s"},
}


def _with(**run: object) -> Scenario:
    return Scenario.from_dict({**SERVERS, "run": {**SERVERS["run"], **run}})


@pytest.mark.parametrize(
    ("text", "ppm"), [("0.1%", 1_000), ("10%", 100_000), ("0.0001%", 1), (" 2.5 % ", 25_000), ("1%", 10_000)]
)
def test_an_accuracy_is_a_percentage(text: str, ppm: int) -> None:
    scenario = _with(accuracy=text)
    assert scenario.accuracy_ppm == ppm
    assert scenario.spec()["run"]["accuracy_ppm"] == ppm
    again = Scenario.from_toml(scenario.to_toml())
    assert again.accuracy_ppm == ppm
    assert units.parse_accuracy(units.format_accuracy(ppm)) == ppm


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("0%", "GT014"),
        ("10.1%", "GT014"),
        ("-1%", "GT023"),
        ("0.1", "GT020"),
        (0.001, "GT020"),
        ("0.00001%", "GT025"),
        ("exact", "GT022"),
        ("0.1ppm", "GT021"),
        (True, "GT011"),
    ],
)
def test_what_is_no_accuracy_is_refused_with_its_place(value: object, code: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _with(accuracy=value)
    (fault,) = caught.value.faults
    assert (fault.code, fault.loc) == (code, "run.accuracy")
    assert fault.hint


RING = {"job": {"train": {"model": "resnet50", "workers": 4, "iterations": 2, "compute": {"batch": 32}}}}


def test_the_pipe_engine_is_exact_and_refuses_the_key() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({**RING, "run": {"engine": "pipe", "accuracy": "0.1%"}}).check_built()
    (fault,) = caught.value.faults
    assert (fault.code, fault.loc) == ("GT015", "run.accuracy")
    assert 'engine = "fluid" or "packet"' in fault.hint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run.probe", {"every": "1ms"}),
        ("job.train.priority", {"adaptive": {"policy": "deadline"}}),
        ("cluster.queue", {"kind": "pcn", "threshold": "40pkt", "announced": "10pkt"}),
    ],
)
def test_what_needs_every_packet_is_refused_beside_an_accuracy(path: str, value: object) -> None:
    scenario = Scenario.from_dict({**RING, "run": {"engine": "packet", "accuracy": "1%"}})
    scenario.check_built()
    with pytest.raises(ScenarioError) as caught:
        scenario.set({path: value}).check_built()
    (fault,) = caught.value.faults
    assert (fault.code, fault.loc) == ("GT090", "run.accuracy")
    assert "no accuracy" in fault.hint


def _long(**run: object) -> Scenario:
    flows = [{"start": "0s", "src": f"h{host}", "dst": f"h{host + 4}", "bytes": "300MB"} for host in range(4)]
    cluster = {"topology": {"hosts": 8}, "link": {"rate": "10Gbps"}}
    keys = {"engine": "packet", "duration": "1s", **run}
    return Scenario.from_dict({"cluster": cluster, "traffic": {"long": {"flows": flows}}, "run": keys})


def test_long_flows_of_packets_end_within_the_accuracy() -> None:
    exact, bounded = gt.run(_long()), gt.run(_long(accuracy="1%"))
    assert bounded.summary["accuracy"] == "1%"
    assert bounded.flows["fct_us"] == pytest.approx(exact.flows["fct_us"], rel=0.01)
    assert list(bounded.flows["fct_us"]) != list(exact.flows["fct_us"])
    for column in ("bytes", "busy_us"):
        assert bounded.links[column] == pytest.approx(exact.links[column], rel=0.01, abs=1e3)
    # How long they take alone is as exact.
    assert bounded.summary["traffic"]["long"]["all"]["mean_slowdown"] == pytest.approx(1, rel=0.02)


def test_a_job_of_packets_has_an_accuracy_too() -> None:
    keys = {"engine": "packet"}
    exact, bounded = (gt.run(Scenario.from_dict({**RING, "run": run})) for run in (keys, {**keys, "accuracy": "1%"}))
    times = [run.summary["jobs"]["train"]["iteration_time_ms"]["mean"] for run in (exact, bounded)]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_without_the_key_rates_are_exact_and_nothing_is_said_of_them() -> None:
    scenario = _with()
    assert scenario.accuracy_ppm is None
    assert "accuracy" not in scenario.to_toml()
    assert "accuracy" not in gt.run(scenario).summary


def test_a_run_says_its_accuracy_and_few_flows_are_exact(tmp_path) -> None:
    exact, bounded = gt.run(_with()), gt.run(_with(accuracy="1%"))
    assert bounded.summary["accuracy"] == "1%"
    assert bounded.iterations.to_csv() == exact.iterations.to_csv()
    assert bounded.flows.to_csv() == exact.flows.to_csv()
    bounded.save(tmp_path / "run")
    assert 'accuracy = "1%"' in (tmp_path / "run" / "scenario.resolved.toml").read_text()
    assert "accuracy 1%" in (tmp_path / "run" / "report.html").read_text()
