"""`run.accuracy`: how far finish times of the fluid engine may be off."""

import json

import pytest

import gradtide as gt
from gradtide import Scenario, ScenarioError, _core, units
from gradtide.errors import CoreRefusal

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


def test_only_the_fluid_engine_has_an_accuracy() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({**RING, "run": {"engine": "packet", "accuracy": "1%"}}).check_built()
    (fault,) = caught.value.faults
    assert (fault.code, fault.loc) == ("GT015", "run.accuracy")
    assert 'engine = "fluid"' in fault.hint


def test_the_core_refuses_an_accuracy_of_packets_too() -> None:
    spec = Scenario.from_dict({**RING, "run": {"engine": "packet"}}).spec()
    spec["run"]["accuracy_ppm"] = 10_000
    with pytest.raises(CoreRefusal, match="accuracy"):
        _core.run(json.dumps(spec))


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
