"""plan.json: what is read, and the one line for everything else. Needs no torch."""

import json

import pytest

from gradtide.errors import PlanError
from gradtide.scenario.plan import read_plan

PLAN = {
    "schema": "gradtide.plan/1",
    "version": "0.1.0",
    "model": "net",
    "workers": 8,
    "level": "crossiter",
    "order": "priority",
    "barrier": False,
    "chunk_bytes": 1048576,
    "buckets": [{"layers": ["fc"], "bytes": 12, "rank": 1}, {"layers": ["conv"], "bytes": 34, "rank": 0}],
    "predicted": {"iteration_time_ms": 410.0},
    "advice": [],
}


class Result:
    def to_dict(self):
        return PLAN


def test_a_path_a_dict_and_a_result_are_the_same_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    plan = read_plan(path)
    assert plan == read_plan(str(path)) == read_plan(PLAN) == read_plan(Result()) == read_plan(plan)
    assert (plan.level, plan.chunk_bytes, plan.workers) == ("crossiter", 1048576, 8)
    assert [(bucket.layers, bucket.bytes, bucket.rank) for bucket in plan.buckets] == [
        (("fc",), 12, 1),
        (("conv",), 34, 0),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "gradtide.model/1"}, "schema is 'gradtide.model/1'"),
        ({"level": "best"}, "level is 'best', and can be none, buckets, priority, crossiter"),
        ({"buckets": []}, "expected a list of at least one"),
        ({"buckets": [7]}, r"buckets\[0\]: expected a table, got 7"),
        ({"buckets": [{"layers": [], "bytes": 1, "rank": 0}]}, r"buckets\[0\].layers: expected names"),
        ({"buckets": [{"layers": ["a", "a"], "bytes": 1, "rank": 0}]}, "twice"),
        ({"buckets": [{"layers": ["a"], "bytes": -1, "rank": 0}]}, r"buckets\[0\].bytes"),
        ({"buckets": [{"layers": ["a"], "bytes": 1, "rank": 0.5}]}, r"buckets\[0\].rank"),
        ({"buckets": [{"layers": ["a"], "bytes": 1, "rank": 0}] * 2}, r"in buckets\[0\] and in buckets\[1\]"),
        ({"chunk_bytes": 0}, "chunk_bytes: expected a whole number of at least 1"),
        ({"workers": "8"}, "workers: expected a whole number"),
        ({"predicted": 1}, "predicted: expected a table"),
    ],
)
def test_what_is_no_plan_is_one_clear_error(change, message):
    with pytest.raises(PlanError, match=message) as error:
        read_plan({**PLAN, **change})
    assert "\n" not in str(error.value)


def test_a_plan_that_leaves_ddp_alone_needs_no_buckets():
    assert read_plan({"schema": "gradtide.plan/1", "level": "none"}).buckets == ()


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "gradtide.plan/1", "lev', "[" * 100_000, "\udcff"])
def test_a_file_that_is_none_names_itself(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanError, match=r"plan\.json"):
        read_plan(path)


def test_a_missing_file_and_a_wrong_type_are_told():
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan("no-such-plan.json")
    with pytest.raises(PlanError, match="not int"):
        read_plan(7)
