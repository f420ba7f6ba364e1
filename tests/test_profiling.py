"""What of a profile needs no torch: what the command line takes, the file, and what is said where torch is missing."""

import doctest
import json
import sys

import pytest

import gradtide as gt
from gradtide import cli
from gradtide.layers import Layer
from gradtide.presets import LayerPreset
from gradtide.profiling import target
from gradtide.profiling.measure import _shares, timed_groups
from gradtide.profiling.walk import Counted


@pytest.fixture
def profile():
    """Two layers: one whose time is no whole number of nanoseconds, one without a gradient."""
    return gt.ModelProfile(
        name="two",
        title="Two",
        device="V100",
        inputs=("8x4:float32",),
        batch=8,
        torch_version="2",
        layers=(Layer("conv «1»", 1_234_567, 2_469_135, 4096), Layer("norm", 999, 10**15, 0)),
        counts=(LayerPreset("conv «1»", 4096, 1001, 64), LayerPreset("norm", 0, 0, 63)),
        tensors=1,
        unused=("never",),
    )


def test_a_model_file_gives_a_scenario_exactly_what_the_profile_holds(profile, tmp_path):
    file = profile.save(tmp_path / "two.model.json")
    job = {"model": str(file), "workers": 2}
    from_file = gt.Scenario.from_dict({"job": {"a": job}})
    assert from_file.jobs[0].layers == profile.layers
    assert from_file.jobs[0].model == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["two.model.json"]
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document == profile.to_dict()
    assert document["profile"]["unused_parameters"] == ["never"]
    # 1001 FLOPs of 8 samples are 125.125 each; counts are whole and rounded up.
    assert [row["forward_flops"] for row in document["layers"]] == [126, 0]
    # A roofline is made anew for another device.
    other = from_file.replace(device="A100").jobs[0]
    assert other.device.name == "A100"
    assert other.layers != profile.layers


def test_a_scenario_takes_the_profile_itself(profile):
    base = gt.preset("paper/gao2020-ch4").replace(model=profile)
    assert base.jobs[0].layers == profile.layers
    assert base.jobs[0].model == "two"
    assert base.replace(model=list(profile.layers)).jobs[0].layers == profile.layers


def test_times_and_bytes_are_sums_over_the_layers(profile):
    assert profile.parameter_bytes == 4096
    assert profile.forward_time == pytest.approx((1_234_567 + 999) / 1e12)
    assert profile.backward_time == pytest.approx((2_469_135 + 10**15) / 1e12)
    assert profile.explained is None


def test_a_model_file_that_cannot_be_written_leaves_nothing(profile, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        profile.save(tmp_path / "nowhere" / "two.model.json")
    assert list(tmp_path.iterdir()) == []


def test_inputs_are_written_as_name_shape_and_dtype():
    assert doctest.testmod(target).failed == 0
    for text in ("32x3x224x224:float32", "input_ids=8x128:int64", "1:bool"):
        assert str(target.parse_input(text)) == text


@pytest.mark.parametrize(
    "text", ["", "32,3", "ax3", "32x", "3x-1", "a b=3", "=3", "3:", "0x3", "1048576x1048576x2", "ids:8x128:int64"]
)
def test_an_input_that_is_none_is_refused_with_its_text(text):
    with pytest.raises(gt.ProfileError, match="--input") as caught:
        target.parse_input(text)
    assert repr(text) in str(caught.value)


def test_without_torch_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gt.ProfileError, match="pip install 'torch>="):
        gt.profile(None)
    with pytest.raises(gt.ProfileError, match="needs PyTorch"):
        gt.op_dag(None)
    monkeypatch.setattr(sys, "argv", ["gradtide", "profile", "torchvision.models:resnet50", "--input", "1x3x8x8"])
    assert cli._main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: a profile needs PyTorch")
    assert err.count("\n") == 1


def test_layers_that_begin_in_one_call_stay_together():
    layers = [Counted(str(i), str(i), ("m", 0), call) for i, call in enumerate([0, 2, 2, 1, 5, 0])]
    # The fourth begins in a call older than the second's, so no mark lies between them; so does the last.
    assert [[layer.name for layer in group] for group in timed_groups(layers)] == [
        ["0"],
        ["1", "2", "3"],
        ["4", "5"],
    ]


@pytest.mark.parametrize(("weights", "shares"), [([1, 3], [2, 8]), ([0, 0, 0], [3, 3, 4]), ([0, 7], [0, 10])])
def test_a_time_is_shared_without_losing_a_picosecond(weights, shares):
    assert _shares(10, weights) == shares
