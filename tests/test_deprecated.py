"""What is renamed works under its old name, and warns once with what to write in its place."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import deprecated
from gradtide.cli.moved import RENAMED as RENAMED_OPTIONS
from gradtide.cli.moved import moved
from gradtide.deprecated import Deprecated
from gradtide.scenario import read
from gradtide.schemas import kind_and_version, other_version

LAYER = {"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "1MB"}
MODEL = {"layers": [LAYER]}


@pytest.fixture(autouse=True)
def _nothing_is_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated, "_told", set())


def test_a_name_in_python_works_and_warns_once_at_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gt._RENAMED, "simulate", ("run", "0.2", "0.4"))
    with pytest.warns(gt.GradtideDeprecationWarning) as told:
        assert gt.simulate is gt.run
    assert [str(one.message) for one in told] == [
        "`gradtide.simulate` is deprecated since 0.2 and goes in 0.4: write `gradtide.run`"
    ]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gt.simulate is gt.run


KEYS = {
    ("job", "*", "machines"): Deprecated("machines", "workers", "0.2", "0.4"),
    ("cluster", "link", "speed"): Deprecated("speed", "rate", "0.2", "0.4"),
}


def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, one in KEYS.items():
        monkeypatch.setitem(read.RENAMED, path, one)


def test_keys_of_a_scenario_work_and_warn(gradtide: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = {"job": {"train": {"model": MODEL, "workers": 2}}, "cluster": {"link": {"rate": "1Gbps"}}}
    old = {"job": {"train": {"model": MODEL, "machines": 2}}, "cluster": {"link": {"speed": "1Gbps"}}}
    with_keys(monkeypatch)
    with pytest.warns(gt.GradtideDeprecationWarning, match=r"write `workers`|write `rate`"):
        scenario = gt.Scenario.from_dict(old)
    assert scenario.sha256 == gt.Scenario.from_dict(new).sha256
    assert scenario.warnings == tuple(map(str, KEYS.values()))
    assert gt.Scenario.from_dict(new).warnings == ()
    (tmp_path / "s.toml").write_text(scenario.to_toml().replace("workers", "machines"), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gt.GradtideDeprecationWarning)
        code, _, err = gradtide("run", tmp_path / "s.toml", "-q", "--set", "cluster.link.speed=2Gbps")
    assert code == 2
    assert "`speed` is now `rate`, and both are given" in err
    code, _, err = gradtide("run", tmp_path / "s.toml", "-q")
    assert (code, err) == (0, f"warning: {KEYS['job', '*', 'machines']}\n")


def test_an_old_key_beside_the_new_one_is_refused_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with_keys(monkeypatch)
    text = '[job.train]\nmodel = "alexnet"\nworkers = 2\nmachines = 3\n'
    with pytest.raises(gt.ScenarioError) as found:
        gt.Scenario.from_toml(text, name="s.toml")
    (fault,) = found.value.errors
    assert (fault["code"], fault["loc"], fault["line"]) == ("GT012", "job.train.machines", 4)
    assert fault["hint"] == "delete `machines`"


def test_options_work_and_warn(gradtide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Deprecated("--speed", "--rate", "0.2", "0.4")
    monkeypatch.setitem(RENAMED_OPTIONS, ("compare", "--speed"), one)
    arguments = "compare paper/gao2020-ch4 --schedule ddp -q --speed"
    for given in (f"{arguments} 1Gbps", f"{arguments}=1Gbps"):
        code, out, err = gradtide(*given.split())
        assert (code, err) == (0, "warning: `--speed` is deprecated since 0.2 and goes in 0.4: write `--rate`\n")
        assert out == gradtide(*given.replace("--speed", "--rate").split())[1]


def minor(version: str) -> tuple[int, int]:
    major, number, *_ = version.split(".")
    return int(major), int(number)


def test_what_is_deprecated_works_in_two_minor_versions_and_goes_then() -> None:
    old = [Deprecated("", "", since, until) for _, since, until in gt._RENAMED.values()]
    old += [*read.RENAMED.values(), *RENAMED_OPTIONS.values(), moved(["tenants", "s.toml", "--map"]).why]
    for one in old:
        (major, since), (last, until) = minor(one.since), minor(one.until)
        assert last > major or until >= since + 2, f"{one}: docs/reference/stability.md promises two minor versions"
        assert minor(gt.__version__) < (last, until), f"{one}: that version is here, so delete the old name"


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("gradtide.run/1", ("run", 1)),
        ("gradtide.trace-summary/12", ("trace-summary", 12)),
        ("gradtide.run", None),
        ("other.run/1", None),
        ("gradtide.run/1.0", None),
        (None, None),
        (7, None),
    ],
)
def test_a_schema_says_kind_and_version(schema: object, found: tuple[str, int] | None) -> None:
    assert kind_and_version(schema) == found


def test_another_version_is_told_from_another_kind() -> None:
    known = ["gradtide.run/2", "gradtide.plan/1"]
    reads = "its schema is {}, and this version reads gradtide.run/2"
    earlier, newer = "is of an earlier version of gradtide: ", "is of a newer version of gradtide: "
    assert other_version("gradtide.run/1", known) == earlier + reads.format("gradtide.run/1")
    assert other_version("gradtide.run/10", known) == newer + reads.format("gradtide.run/10")
    assert [other_version(one, known) for one in ("gradtide.run/2", "gradtide.walk/9", None)] == [None] * 3
