"""`gradtide profile` on modules of the user: the model file that it writes, and refused command lines.

Needs torch: `make test-torch` installs it.
"""

import json
import sys

import pytest

import gradtide as gt
import torch_models

pytestmark = torch_models.MARKS


FACTORIES = """
import torch
from torch import nn

class Config: pass

class Configured(nn.Linear):
    config_class = Config
    def __init__(self, config):
        assert isinstance(config, Config)
        super().__init__(4, 2)

def make():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def by_value():
    return nn.Linear(4, int(torch.linspace(1, 3, 3)[1].item()))

def broken():
    raise ValueError("no such size")

def number():
    return 3

SIZE = 3
"""


MEASURED = ["net_of_test.py:make", "--device", "measure", "--runs", "1"]


@pytest.fixture
def gradtide(gradtide, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_of_test.py").write_text(FACTORIES)
    return gradtide


@pytest.mark.parametrize("module", ["net_of_test", "net_of_test.py", "./net_of_test.py"])
def test_the_command_writes_a_model_file_that_a_scenario_runs(gradtide, module, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net_of_test", raising=False)
    arguments = ("--input", "16x4", "--device", "a100", "-o", "net.model.json", "--dag", "net.dag.json")
    asked = () if module.endswith(".py") else ("--python-path", ".")
    code, out, err = gradtide("profile", f"{module}:make", *asked, *arguments)
    assert code == 0, err
    assert "312 B" not in out
    assert f"{4 * (4 * 8 + 8 + 8 * 2 + 2)} B" in out
    assert 'model = "net.model.json"' in err
    scenario = gt.Scenario.from_dict({"job": {"a": {"model": "net.model.json", "workers": 2}}})
    assert [layer.name for layer in scenario.jobs[0].layers] == ["0", "2"]
    assert scenario.jobs[0].model == "make"
    with open("net.dag.json", encoding="utf-8") as file:
        assert json.load(file)["time_unit"] == "ns"


@pytest.mark.parametrize(("module", "found"), [("net_of_test", " has it, but"), ("no_such_module", "")])
def test_the_current_directory_is_searched_only_if_asked(gradtide, module, found, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "net_of_test", raising=False)
    before = list(sys.path)
    code, _, err = gradtide("profile", f"{module}:make", "--input", "16x4")
    assert (code, sys.path) == (2, before)
    hint = f"the current directory{found} is not searched: add --python-path ."
    assert err == f"error: {module} cannot be imported: ModuleNotFoundError: No module named '{module}'; {hint}\n"


def test_a_module_of_the_user_does_not_take_the_place_of_another_unless_asked(gradtide, monkeypatch, tmp_path):
    (tmp_path / "colorsys.py").write_text("print('the wrong one')")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    _, out, err = gradtide("profile", "colorsys:make", "--input", "16x4")
    assert "the wrong one" not in out
    assert "colorsys has no 'make'" in err


def test_json_is_the_model_file_and_nothing_else(gradtide):
    code, out, err = gradtide("profile", "net_of_test.py:make", "--input", "16x4", "--json", "-o", "net.model.json")
    assert (code, err) == (0, "")
    with open("net.model.json", encoding="utf-8") as file:
        assert json.loads(out) == json.load(file)


def test_a_model_class_with_a_configuration_is_built_with_its_default(gradtide):
    code, out, _ = gradtide("profile", "net_of_test.py:Configured", "--input", "2x4")
    assert code == 0
    assert "1 with 2 tensors" in out


def test_a_factory_that_needs_values_gets_them_and_says_so(gradtide):
    code, _, err = gradtide("profile", "net_of_test.py:by_value", "--input", "2x4")
    assert code == 0
    assert "cannot be built without values" in err


def test_the_command_measures_on_this_machine(gradtide):
    code, out, err = gradtide("profile", "net_of_test.py:make", "--input", "2x4", "--device", "measure", "--runs", 2)
    assert code == 0, err
    assert "explains" in out


def test_the_command_times_an_optimizer_by_its_name(gradtide):
    words = ("--device", "measure", "--runs", 2, "--optimizer", "adamw", "-o", "net.model.json")
    code, out, err = gradtide("profile", "net_of_test.py:make", "--input", "2x4", *words)
    assert code == 0, err
    with open("net.model.json", encoding="utf-8") as file:
        updates_us = [row["update_us"] for row in json.load(file)["layers"]]
    assert min(updates_us) > 0
    (shown,) = [line.split()[1] for line in out.splitlines() if line.startswith("update ")]
    assert float(shown) == pytest.approx(sum(updates_us) / 1e3, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torchvision"], "write MODULE:FACTORY"),
        (["no_such_module:f"], "no_such_module cannot be imported: ModuleNotFoundError"),
        (["nowhere.py:make"], "nowhere.py cannot be imported: FileNotFoundError"),
        (["net_of_test:make", "--python-path", "nowhere"], "--python-path nowhere: there is no such directory"),
        (["net_of_test.py:mak"], "has no 'mak'; did you mean 'make'"),
        (["net_of_test.py:SIZE"], "is a int, not a factory"),
        (["net_of_test.py:number"], "returns int, not a torch.nn.Module"),
        (["net_of_test.py:broken"], "the factory raises ValueError: no such size"),
        (["net_of_test.py:make", "--device", "a10"], "gradtide does not model a10"),
        (["net_of_test.py:make", "--input", "1x4:float12"], "no dtype 'float12'"),
        (
            ["net_of_test.py:make", "--input", "x=1x4", "--input", "1x4"],
            "inputs without a name come before inputs with one",
        ),
        (["net_of_test.py:make", "--input", "x=1x4", "--input", "x=1x4"], "given twice"),
        (["net_of_test.py:make", "--input", "1x5"], "forward pass of the model raises RuntimeError"),
        (["net_of_test.py:make", "--dag", "d.json", "--rate", "10"], "has no unit"),
        (["net_of_test.py:make", "-o", "nowhere/x.json"], "nowhere"),
        (["net_of_test.py:make", "--optimizer", "SGD"], "nothing is timed: --optimizer would do nothing"),
        ([*MEASURED, "--optimizer", "AdamWW"], "torch.optim has no such optimizer; did you mean AdamW? there are A"),
        ([*MEASURED, "--optimizer", "Optimizer"], "torch.optim has no such optimizer"),
        ([*MEASURED, "--optimizer", "LBFGS"], "the optimizer's step cannot be timed on a copy"),
    ],
)
def test_a_command_line_that_cannot_be_is_told_in_one_line(gradtide, arguments, said):
    if "--input" not in arguments:
        arguments = [*arguments, "--input", "1x4"]
    code, out, err = gradtide("profile", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_without_inputs_the_command_asks_for_them(gradtide):
    code, _, err = gradtide("profile", "net_of_test.py:make")
    assert code == 2
    assert "--input is missing" in err
