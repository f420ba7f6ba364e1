"""plan.json: written, read again, and refused with one fault; the folder of a plan and its report."""

import json
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import report
from gradtide.report import RunFolderError
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from gradtide.studies.folder import FolderError
from plan_scenarios import MIB, ROOT, SIX, on_cpus


@pytest.fixture(scope="module")
def planned() -> gt.PlanResult:
    return on_cpus(SIX, seeds=2)


def test_a_plan_is_written_and_read_again(planned: gt.PlanResult, tmp_path: Path) -> None:
    path = planned.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == [path]
    assert gt.read_plan(path) == planned.plan == gt.read_plan(planned) == gt.read_plan(planned.to_dict())
    document = json.loads(path.read_text())
    assert document["schema"] == "gradtide.plan/1"
    assert [one["rank"] for one in document["buckets"]] == list(range(len(document["buckets"])))[::-1]
    assert sum(one["bytes"] for one in document["buckets"]) == 6 * 4 * MIB
    assert document["scenario_sha256"] == Scenario.from_dict(SIX).sha256
    planned.save(path)


def test_a_plan_replaces_nothing_that_is_none(planned: gt.PlanResult, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(FolderError, match="not a plan"):
        planned.save(tmp_path / "notes.json")
    assert (tmp_path / "notes.json").read_text() == "{}"
    with pytest.raises(FolderError):
        planned.save(tmp_path / "notes.json" / "plan.json")


def fault_of(document: Any, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    with pytest.raises(gt.ScenarioError) as caught:
        read_plan(path).on(Scenario.from_dict(SIX))
    (fault,) = caught.value.errors
    return fault


BUCKET = {"layers": ["l5"], "bytes": 4 * MIB, "rank": 0}


@pytest.mark.parametrize(
    ("change", "code", "loc"),
    [
        ({"schema": "gradtide.run/1"}, "GT080", "schema"),
        ({"level": "crossitter"}, "GT080", "level"),
        ({"level": None}, "GT080", "level"),
        ({"barrier": "yes"}, "GT080", "barrier"),
        ({"workers": 0}, "GT080", "workers"),
        ({"workers": True}, "GT080", "workers"),
        ({"chunk_bytes": -1}, "GT080", "chunk_bytes"),
        ({"chunk_bytes": "1MB"}, "GT080", "chunk_bytes"),
        ({"credit": 0}, "GT080", "credit"),
        ({"credit": 1.5}, "GT080", "credit"),
        ({"advice": [1]}, "GT080", "advice"),
        ({"predicted": {"overhead_us": "1ms"}}, "GT080", "predicted.overhead_us"),
        ({"predicted": {"overhead_us": float("1e300")}}, "GT080", "predicted.overhead_us"),
        ({"buckets": []}, "GT080", "buckets"),
        ({"buckets": [{**BUCKET, "rank": None}]}, "GT080", "buckets[0]"),
        ({"buckets": [{**BUCKET, "layers": []}]}, "GT080", "buckets[0]"),
        ({"buckets": [BUCKET, {**BUCKET, "rank": 1}]}, "GT080", "buckets[1].layers"),
        ({"buckets": [BUCKET, {**BUCKET, "layers": ["l4"]}]}, "GT080", "buckets"),
        ({"buckets": [{**BUCKET, "layers": ["l55"]}]}, "GT081", "buckets.0.layers"),
        ({"buckets": [{**BUCKET, "bytes": 5}]}, "GT081", "buckets.0.bytes"),
        ({"buckets": [BUCKET]}, "GT081", "buckets"),
        ({"workers": 3}, "GT082", "workers"),
    ],
)
def test_a_wrong_plan_has_one_fault(
    change: dict[str, Any], code: str, loc: str, planned: gt.PlanResult, tmp_path: Path
) -> None:
    fault = fault_of({**planned.to_dict(), **change}, tmp_path)
    assert (fault["code"], fault["loc"]) == (code, loc)
    assert fault["hint"]


def test_a_plan_that_is_cut_off_is_one_fault(planned: gt.PlanResult, tmp_path: Path) -> None:
    text = json.dumps(planned.to_dict())
    assert fault_of(text[: len(text) // 2], tmp_path)["code"] == "GT001"
    assert fault_of("[]", tmp_path)["code"] == "GT080"
    with pytest.raises(gt.ScenarioError, match="GT002"):
        read_plan(tmp_path / "none.json")


def test_buckets_that_are_no_stretches_are_refused(planned: gt.PlanResult, tmp_path: Path) -> None:
    order = [[5, 3], [4, 2], [1, 0]]
    buckets = [{"layers": [f"l{i}" for i in some], "bytes": 8 * MIB, "rank": n} for n, some in enumerate(order)]
    assert fault_of({**planned.to_dict(), "buckets": buckets}, tmp_path)["code"] == "GT080"


def test_a_plan_is_for_one_job(planned: gt.PlanResult) -> None:
    both = {"job": {"a": SIX["job"]["train"], "b": SIX["job"]["train"]}, "run": {"engine": "fluid"}}
    with pytest.raises(gt.ScenarioError, match="GT082"):
        planned.plan.on(Scenario.from_dict(both))
    with pytest.raises(ValueError, match="one job"):
        on_cpus(both)


def test_a_plan_of_the_runtimes_alone_needs_little() -> None:
    plan = read_plan({"schema": "gradtide.plan/1", "level": "none"})
    assert plan.on(Scenario.from_dict(SIX)) == Scenario.from_dict(SIX)
    bare = read_plan({"schema": "gradtide.plan/1", "level": "crossiter", "buckets": [BUCKET]})
    assert (bare.order, bare.barrier, bare.workers) == ("priority", False, None)


SHARDED: dict[str, Any] = {
    "schema": "gradtide.plan/1",
    "model": "gpt",
    "fsdp": {
        "units": [[""], ["blocks.0"], ["norm", "head"]],
        "forward_prefetch": 1,
        "backward_prefetch": 2,
        "reshard_after_forward": True,
    },
}


def test_a_plan_of_fsdp_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = read_plan(SHARDED)
    assert plan.fsdp is not None
    assert plan.fsdp.units == (("",), ("blocks.0",), ("norm", "head"))
    assert read_plan(plan.save(tmp_path / "plan.json")) == plan == read_plan(plan.to_dict())
    # What says how DDP sends is not in it.
    assert plan.to_dict().keys() & {"level", "buckets", "order", "depth"} == set()
    with pytest.raises(gt.ScenarioError, match="GT090"):
        plan.on(Scenario.from_dict(SIX))


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"units": []}, "fsdp.units", "no list of units"),
        ({"units": None}, "fsdp.units", "no list of units"),
        ({"units": [["a"], []]}, "fsdp.units[1]", "a list of modules"),
        ({"units": ["a", "b", "c"]}, "fsdp.units[0]", "a list of modules"),
        ({"units": [["a"], ["b"], ["a"]]}, "fsdp.units[2]", "`a` is in two units"),
        ({"units": [["a"], ["b"], [""]]}, "fsdp.units[2]", "and the first"),
        ({"forward_prefetch": -1}, "fsdp.forward_prefetch", "0 to 2"),
        ({"forward_prefetch": 3}, "fsdp.forward_prefetch", "0 to 2"),
        ({"backward_prefetch": True}, "fsdp.backward_prefetch", "0 to 2"),
        ({"backward_prefetch": 1.0}, "fsdp.backward_prefetch", "0 to 2"),
        ({"backward_prefetch": float("nan")}, "fsdp.backward_prefetch", "0 to 2"),
        ({"reshard_after_forward": None}, "fsdp.reshard_after_forward", "true or false"),
        ({"reshard": True}, "fsdp.reshard", "there is no key `reshard`"),
    ],
)
def test_what_a_plan_of_fsdp_cannot_say_is_a_fault(change: dict[str, Any], loc: str, words: str) -> None:
    with pytest.raises(gt.ScenarioError) as caught:
        read_plan({**SHARDED, "fsdp": {**SHARDED["fsdp"], **change}})
    assert any(one["loc"] == loc and words in one["msg"] for one in caught.value.errors), caught.value


@pytest.mark.parametrize("key", ["level", "buckets", "credit", "collective"])
def test_a_plan_of_fsdp_says_nothing_of_ddp(key: str) -> None:
    value: Any = {"level": "none", "buckets": [BUCKET], "credit": 1, "collective": {"kind": "ring"}}[key]
    with pytest.raises(gt.ScenarioError, match="is a setting of DDP"):
        read_plan({**SHARDED, key: value})
    with pytest.raises(gt.ScenarioError, match="expected a table"):
        read_plan({**SHARDED, "fsdp": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "all"}, "level: there is no 'all'"),
        ({"device": "abacus"}, "device: there is no 'abacus'; there are cpu, gpu, ideal, K80"),
        (
            {"device": "H100", "level": "crossiter"},
            "level: H100 with NCCL cannot carry out crossiter; --device cpu can",
        ),
        ({"device": None, "level": "priority"}, "level: the scenario names no device"),
        ({"overhead": "1"}, "overhead"),
        ({"worth": -1}, "worth"),
        ({"noise": 0.9}, "noise"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 4, "noise": 0}, "seeds: has no effect with noise = 0"),
        ({"overhead": "2ms", "level": "buckets"}, "overhead: has no effect at level buckets"),
        ({"overhead": "2ms", "device": "gpu"}, "overhead: has no effect at level buckets"),
        ({"smallest": "1"}, "smallest"),
        ({"baseline": "horovod"}, "no baseline"),
        ({"collectives": []}, "collectives"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        on_cpus(SIX, **options)


def test_the_folder_reports_and_garbled_ones_are_refused(planned: gt.PlanResult, tmp_path: Path) -> None:
    folder = planned.save(tmp_path / "study")
    page = (folder / "report.html").read_text()
    assert f"{planned.plan.predicted['gain_percent']:.1f}" in page
    assert (folder / "timeline.pftrace").exists()
    assert gt.read_plan(folder / "plan.json") == planned.plan
    summary = json.loads((folder / "summary.json").read_text())
    for change in (
        {"rows": []},
        {"rows": [1]},
        {"lower_bound_ms": 0},
        {"plan": {}},
        {"searched": {}},
        {"rows": [{**summary["rows"][0], "chosen": True, "iteration_ms": "fast"}]},
    ):
        (folder / "summary.json").write_text(json.dumps({**summary, **change}))
        with pytest.raises(RunFolderError):
            report.write_report(folder)


def test_results_show_themselves(planned: gt.PlanResult) -> None:
    assert "crossiter" in repr(planned) or "barrier" in repr(planned)
    assert "<table>" in planned._repr_html_()
    assert set(planned.to_numpy()) == set(planned.rows[0])


def test_the_reference_has_the_columns_of_the_tables(planned: gt.PlanResult) -> None:
    text = (ROOT / "docs" / "reference" / "run-folder.md").read_text()
    assert f"`levels.csv`: `{', '.join(planned.rows[0])}`" in text
    assert f"`scored.csv`: `{', '.join(planned.candidates[0])}`" in text
