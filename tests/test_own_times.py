"""A user's own times of ops in place of those of the device, for models that are divided over ranks."""

import csv

import pytest

import gradtide as gt
from architectures import SMALL_LLAMA
from gradtide.scenario import Scenario
from gradtide.studies.meshes import meshes

HEADER = "op,forward_us,backward_us"
WHOLE = f"{HEADER}\nembed,10,20\nlayers.*,300,600\nhead,40,80\n"


def scenario(parallel, **compute):
    job = {"model": SMALL_LLAMA, "parallel": parallel, "compute": {"seq": 1024, **compute}}
    return {**gt.presets.cluster("h100-hgx"), "job": {"train": job}, "run": {"engine": "fluid"}}


def ops(folder):
    with (folder / "ops.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refused(tmp_path, text, **changes):
    (tmp_path / "times.csv").write_text(text, encoding="utf-8")
    keys = {"parallel": {"fsdp": 8}, **changes}
    with pytest.raises(gt.ScenarioError) as caught:
        Scenario.from_dict(scenario(keys.pop("parallel"), times=str(tmp_path / "times.csv"), **keys))
    return caught.value.faults


@pytest.mark.parametrize(
    ("parallel", "compute"),
    [
        ({"fsdp": 4, "tp": 2}, {}),
        ({"pp": 2, "fsdp": 4}, {"recompute": "full"}),
        ({"cp": 2}, {"recompute": "selective"}),
    ],
)
def test_the_times_that_a_run_had_give_the_same_run(tmp_path, parallel, compute):
    device = gt.run(scenario(parallel, **compute))
    device.save(tmp_path / "run")
    own = gt.run(scenario(parallel, times=str(tmp_path / "run/ops.csv"), **compute))
    assert own.operations.to_csv() == device.operations.to_csv()
    assert own.job["parallel"]["times"] == "ops.csv"
    assert own.scenario.jobs[0].parallel_model.described == device.scenario.jobs[0].parallel_model.described


def test_a_rank_computes_as_long_as_the_table_says(tmp_path):
    """(10 + 20) + 4 (300 + 600) + (40 + 80) us, and an optimizer of 5 + 4 x 7 + 6 us, without a network."""
    rows = [("embed", 10, 20, 5), ("layers.*.attn", 100, 250, 3), ("layers.*.mlp", 200, 350, 4), ("head", 40, 80, 6)]
    text = "\n".join([HEADER + ",update_us", *(",".join(map(str, row)) for row in rows)])
    (tmp_path / "times.csv").write_text(text, encoding="utf-8")
    result = gt.run(scenario({"fsdp": 8}, times=str(tmp_path / "times.csv")))
    assert result.job["compute_ms"] == pytest.approx((30 + 4 * 900 + 120 + 39) / 1e3, rel=1e-9)


def test_every_stage_updates_its_own_layers():
    names = ("embed", "layers.0", "layers.1", "layers.2", "layers.3", "head")
    rows = [
        {"op": name, "forward": "1ms", "backward": "2ms", "update": f"{2**index}us"} for index, name in enumerate(names)
    ]
    one = Scenario.from_dict(scenario({"pp": 2}, times={"rows": rows}))
    assert one.jobs[0].parallel_model.described.optimizer_ps == [7_000_000, 56_000_000]


def test_ops_share_the_time_of_a_block_as_on_the_device(tmp_path):
    (tmp_path / "times.csv").write_text(WHOLE, encoding="utf-8")
    for name, times in (("device", {}), ("own", {"times": str(tmp_path / "times.csv")})):
        gt.run(scenario({"fsdp": 8}, **times)).save(tmp_path / name)
    device, own = ops(tmp_path / "device"), ops(tmp_path / "own")
    assert [row["op"] for row in own] == [row["op"] for row in device]
    for column, whole in (("forward_us", 300), ("backward_us", 600)):
        mine, theirs = ([float(row[column]) for row in rows[1:3]] for rows in (own, device))
        assert sum(mine) == pytest.approx(whole, abs=2e-6)  # each rounded to a picosecond
        assert mine[0] / mine[1] == pytest.approx(theirs[0] / theirs[1], rel=1e-6)


def test_a_resolved_scenario_has_the_rows(tmp_path):
    (tmp_path / "times.csv").write_text(WHOLE, encoding="utf-8")
    one = Scenario.from_dict(scenario({"fsdp": 8}, times=str(tmp_path / "times.csv")))
    (tmp_path / "times.csv").unlink()
    again = Scenario.from_toml(one.to_toml())
    assert again == one
    assert again.spec() == one.spec()


def test_a_device_without_a_known_efficiency_needs_none_beside_own_times(tmp_path):
    (tmp_path / "times.csv").write_text(WHOLE, encoding="utf-8")
    unknown = [row["name"] for row in gt.presets("accelerator") if row["efficiency"] is None]
    assert unknown
    for device in unknown:
        gt.run(scenario({"fsdp": 8}, device=device, times=str(tmp_path / "times.csv")))


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        ("", "GT005", None, "is empty"),
        ("name,ms\n", "GT032", 1, "not the header"),
        (f"{HEADER},wait_us\n", "GT032", 1, "unknown column `wait_us`"),
        (WHOLE.replace("40", "-40"), "GT033", 4, "negative"),
        (WHOLE.replace(",40,", ","), "GT033", 4, "2 fields"),
        (WHOLE.replace("head", "hed"), "GT056", 4, "no op `hed`"),
        (WHOLE.replace("head,40,80\n", ""), "GT056", None, "an op has no times: head"),
        (WHOLE + "layers.2.mlp,1,2\n", "GT056", 5, "`layers.2.mlp` has times already"),
        (WHOLE.replace("layers.*", "layers.*.attn"), "GT056", None, "4 ops have no times: layers.0.mlp"),
        (WHOLE.replace("layers.*", "layers.9"), "GT056", 3, "no op `layers.9`"),
    ],
)
def test_a_table_that_does_not_fit_says_where(tmp_path, text, code, line, words):
    faults = refused(tmp_path, text)
    found = [fault for fault in faults if words in fault.msg]
    assert [(fault.code, fault.line) for fault in found] == [(code, line)]
    assert found[0].file == str(tmp_path / "times.csv")
    assert found[0].hint


@pytest.mark.parametrize(
    ("text", "compute", "words"),
    [
        (WHOLE, {"efficiency": 0.5}, "`efficiency` has no effect"),
        (WHOLE, {"compile": False}, "`compile` has no effect"),
        (WHOLE, {"scaling_loss": 0.02}, "`scaling_loss` has no effect"),
        (f"{HEADER},recompute_us\nembed,1,2,0\nlayers.*,1,2,1\nhead,1,2,0\n", {}, "recompute times have no effect"),
    ],
)
def test_what_has_no_effect_beside_own_times_is_refused(tmp_path, text, compute, words):
    assert words in refused(tmp_path, text, **compute)[0].msg


def test_own_times_need_a_mesh(tmp_path):
    (tmp_path / "times.csv").write_text(WHOLE, encoding="utf-8")
    data = scenario(None, times=str(tmp_path / "times.csv"))
    del data["job"]["train"]["parallel"]
    data["job"]["train"]["workers"] = 2
    with pytest.raises(gt.ScenarioError, match="`times` has no effect without `parallel`"):
        Scenario.from_dict(data)


def test_meshes_with_other_parts_of_an_op_are_not_compared(tmp_path):
    (tmp_path / "times.csv").write_text(WHOLE, encoding="utf-8")
    base = scenario({"fsdp": 8}, times=str(tmp_path / "times.csv"))
    assert [row["mesh"] for row in meshes(base, [{"fsdp": 8}, {"pp": 2}]).rows] == ["fsdp=8", "pp=2"]
    with pytest.raises(ValueError, match=r"times: times\.csv has the times of one rank"):
        meshes(base, [{"fsdp": 8}, {"fsdp": 4, "tp": 2}])
