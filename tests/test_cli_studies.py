"""Commands that run studies: tenants, maps, policies, buy, plan and collectives."""

import json
import os

import pytest

from gradtide import Scenario
from plan_scenarios import TEN_LAYERS
from run_folders import tiny_tenants


@pytest.fixture
def tiny(tmp_path):
    """A scenario file for `tenants`."""
    path = tmp_path / "tiny.toml"
    path.write_text(Scenario.from_dict(tiny_tenants()).to_toml())
    return path


MAP = ("--job-loads", "0.125,0.5", "--traffic-loads", "0.0625,0.25")


def test_tenants_prints_both_bands_or_one_document(gradtide, tiny, tmp_path):
    code, out, err = gradtide("tenants", tiny, "--seeds", 2, "--seed", 5, "--json", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert (summary["schema"], summary["seeds"]) == ("gradtide.tenants/1", [5, 6])
    assert sorted(os.listdir(tmp_path / "out/runs")) == [
        f"seed{n}-{side}" for n in (5, 6) for side in ("low", "no-job", "same")
    ]
    code, out, _ = gradtide("tenants", tiny)
    assert code == 0
    assert "same band" in out
    assert "small flows, p99, ms" in out


def test_a_map_is_one_document_and_a_folder_with_a_study_per_cell(gradtide, tiny, tmp_path):
    code, out, err = gradtide("tenants", "map", tiny, *MAP, "--json", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    printed, kept = json.loads(out), json.loads((tmp_path / "out/summary.json").read_text())
    assert printed["schema"] == "gradtide.boundary/1"
    assert {cell["cell"] for cell in printed["cells"]} == set(os.listdir(tmp_path / "out/cells"))
    printed.pop("cost"), kept.pop("cost")
    assert printed == kept
    assert {"cells", "cells.csv", "summary.json", "versions.json", "report.html"} == set(os.listdir(tmp_path / "out"))
    for cell in (tmp_path / "out/cells").iterdir():
        assert set(os.listdir(cell)) == {"runs", "rows.csv", "summary.json", "versions.json", "report.html"}
    code, out, _ = gradtide("tenants", "map", tiny, *MAP)
    assert code == 0
    assert "flows 6.25 %" in out
    assert printed["headline"] in out


@pytest.mark.parametrize("more", [(), MAP], ids=["one", "map"])
@pytest.mark.parametrize(("check", "code"), [("change_percent>1000", 0), ("change_percent>-1000", 1)])
def test_a_check_holds_for_tenants_and_every_cell_of_a_map(gradtide, tiny, more, check, code):
    study = ["map"] if more else []
    ended, _, err = gradtide("tenants", *study, tiny, *more, "-q", "--fail-if", f"iteration_{check}")
    assert ended == code
    assert err.count("check failed") == code * (4 if more else 1)


POLICIES = ("--policy", "deadline", "--policy", "all-low")


@pytest.mark.parametrize("more", [(), MAP], ids=["one", "map"])
def test_policies_are_one_document_a_table_and_checks(gradtide, tiny, tmp_path, more):
    study = "map" if more else "policies"
    code, out, err = gradtide("tenants", study, tiny, *POLICIES, *more, "--json", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert printed["schema"] == "gradtide.policies/1"
    assert [row["policy"] for row in printed["policies"]] == ["deadline", "all-low"] * (4 if more else 1)
    kept = {"policies.csv", "summary.json", "versions.json", "report.html"}
    assert set(os.listdir(tmp_path / "out")) == (kept if more else {"runs", *kept})
    code, out, err = gradtide("tenants", study, tiny, *POLICIES, *more, "--fail-if", "iteration_change_percent>-1000")
    assert code == 1
    assert printed["headline"] in out
    assert err.count("check failed") == len(printed["policies"])
    code, _, err = gradtide("tenants", "policies", tiny, "--policy", "clairvoyant")
    assert (code, "no policy" in err) == (2, True)


def test_tenants_without_neighbours_and_maps_without_loads_say_what_is_missing(gradtide, tiny, tmp_path):
    for study in ([], ["map"]):
        code, _, err = gradtide("tenants", *study, "paper/gao2020-ch4")
        assert code == 2
        assert "[traffic.NAME]" in err
    for loads, message in (
        ("0", "0.0 is not a load"),
        ("0.5,2", "2.0 is not a load"),
        ("a", "shares"),
        (",", "a part of the list is empty"),
    ):
        for option in ("--job-loads", "--traffic-loads"):
            code, _, err = gradtide("tenants", "map", tiny, option, loads, "-o", tmp_path / "out")
            assert code == 2
            assert message in err
    code, _, err = gradtide("tenants", "map", tiny, *MAP, "-q", "--fail-if", "colour>1")
    assert code == 2
    assert "iteration_change_percent" in err
    assert os.listdir(tmp_path) == ["tiny.toml"]


def test_buy_prints_the_knee_and_checks_it(gradtide, tmp_path):
    arguments = (
        "buy",
        "alexnet",
        "--nodes",
        "4",
        "--fabrics",
        "star,clos2",
        "--bisection",
        "1",
        "--collectives",
        "ring",
    )
    code, out, _ = gradtide(*arguments, "--json")
    document = json.loads(out)
    assert (code, document["schema"], len(document["rows"])) == (0, "gradtide.buy/1", 2)
    assert document["knees"] == ["star-r1-ring-10gbps"]
    code, out, err = gradtide(
        *arguments, "-o", tmp_path / "buy", "--fail-if", "iteration_ms>1", "--fail-if", "cost>1e9"
    )
    assert code == 1
    assert "buy  " in out
    assert "check failed: iteration_ms>1 (star-r1-ring-10gbps" in err
    assert "cost" not in err.replace("cost>1e9", "")
    assert {"candidates.csv", "hottest.csv", "report.html"} <= set(os.listdir(tmp_path / "buy"))
    assert not (tmp_path / "buy.incomplete").exists()


def test_a_plan_is_printed_written_and_run_again(gradtide, tmp_path):
    path = tmp_path / "plan.json"
    code, out, err = gradtide("plan", TEN_LAYERS, "--device", "cpu", "--seeds", "2", "-o", path)
    assert code == 0
    assert "level crossiter" in out
    assert "bucket_cap_mb_list=" in out
    assert str(path) in err
    assert os.listdir(tmp_path) == ["plan.json"]
    predicted = json.loads(path.read_text())["predicted"]
    code, out, _ = gradtide("run", TEN_LAYERS, "--plan", path, "--json")
    assert (code, json.loads(out)["jobs"]["train"]["iteration_time_ms"]["mean"]) == (0, predicted["iteration_time_ms"])
    code, out, _ = gradtide("plan", TEN_LAYERS, "--device", "cpu", "--seeds", "2", "--json", "-o", tmp_path / "study")
    assert json.loads(out)["plan"]["predicted"] == predicted
    assert {"plan.json", "scored.csv", "levels.csv", "report.html"} <= set(os.listdir(tmp_path / "study"))
    code, _, err = gradtide("plan", TEN_LAYERS, "--level", "buckets", "--fail-if", "saves_low_percent<50")
    assert (code, "check failed: saves_low_percent<50 (buckets" in err) == (1, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"model": "other", "workers": 3}, "GT082"), ({"level": "most"}, "GT080"), (None, "GT001")],
)
def test_a_plan_that_does_not_fit_is_one_error(gradtide, tmp_path, change, code):
    path = tmp_path / "plan.json"
    gradtide("plan", TEN_LAYERS, "--seeds", "1", "-o", path)
    text = path.read_text()
    path.write_text(text[:200] if change is None else json.dumps({**json.loads(text), **change}))
    exit_code, out, err = gradtide("run", TEN_LAYERS, "--plan", path)
    assert (exit_code, out) == (2, "")
    assert err.count("error[") == 1
    assert f"error[{code}]" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "alexnet", "--level", "all"], "level: there is no 'all'"),
        (["plan", "alexnet", "--worth", "much"], "not a percentage"),
        (["plan", "alexnet", "--overhead", "1"], "overhead"),
        (["plan", "alexnet", "--collectives", "ring,ring"], "twice"),
        (["plan", "alexnet", "--fail-if", "saved>1"], "saves_percent"),
        (["plan", "alexnet", "-o", TEN_LAYERS / "plan.json"], "cannot write"),
        (["plan", "paper/gao2020-ch5"], "plan takes"),
        (["run", "paper/gao2020-ch4", "--plan", "none.json"], "none.json"),
        (["buy", "alexnet", "--fabrics", "torus"], "no fabric 'torus'"),
        (["buy", "alexnet", "--bisection", "3"], "outside"),
        (["buy", "alexnet", "--nodes", "8", "--fabrics", "clos3", "--bisection", "1/9"], "bought"),
        (["buy", "alexnet", "--prices", "none.toml"], "no file none.toml"),
        (["buy", "alexnet", "--fail-if", "iteratoin_ms>1"], "iteration_ms"),
        (["buy", "alexnett"], "no scenario alexnett"),
        (["collectives", "paper/zhang2017", "--collectives", "rings"], 'did you mean "ring"'),
        (
            ["collectives", "paper/zhang2017", "--collectives", "ring", "--rates", "1Gbps"],
            "--rates; did you mean --rate?",
        ),
        (["compare", "paper/zhang2017", "--sizes", "1MB"], "--sizes"),
        (["collectives", "paper/zhang2017", "--collectives", "ring", "--sizes", "1"], "sizes: "),
        (["reproduce", "zhang2017/99"], "zhang2017 has Conclusions"),
    ],
)
def test_what_cannot_be_planned_bought_or_compared_is_refused(gradtide, arguments, message):
    code, out, err = gradtide(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_collectives_side_by_side(gradtide, tmp_path):
    scenario = tmp_path / "s.toml"
    scenario.write_text('[job.a]\nmodel = "alexnet"\nworkers = 4\n')
    names = "ring,halving-doubling"
    code, out, _ = gradtide(
        "collectives", scenario, "--collectives", names, "--sizes", "1kB,1MB", "-o", tmp_path / "out"
    )
    assert code == 0
    assert "contention" in out
    assert "halving-doubling" in out
    assert {"collectives.csv", "report.html"} <= set(os.listdir(tmp_path / "out"))
